//! Alignments from a seed: pairs of reads at random places, with the kinds of records that
//! sequencers and aligners make.

use super::record::{Core, Loaded, REFERENCES, covered, flag};
use pluvio_load::Random;

/// Bases of a read.
const READ_BASES: u32 = 100;
/// Most bases of a pair.
const TEMPLATE_MAX: u64 = 500;
/// CIGARs of mapped reads: each stands for 100 bases.
const CIGARS: [&[(u32, u32)]; 4] = [
    &[(100, 0)],
    &[(60, 0), (2, 1), (38, 0)],
    &[(50, 0), (1, 2), (50, 0)],
    &[(10, 4), (90, 0)],
];

/// `count` records. Names have as many digits as the last one, so that their order as text is
/// that of samtools.
pub(crate) fn records(count: u32, seed: u64) -> Vec<Loaded> {
    let mut random = Random::new(seed, 0);
    let mut all = Vec::with_capacity(count as usize);
    while all.len() < count as usize {
        // Names are not in the order of the file.
        let pair = (all.len() as u64).wrapping_mul(0x9e37_79b9) % 100_000_000;
        let name = format!("SIM:{pair:08}:{:09}", all.len());
        pair_of(&mut random, name.as_bytes(), &mut all);
    }
    all.truncate(count as usize);
    all
}

/// Whether something happens in `percent` of all cases.
fn in_percent(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

/// Both reads of a pair, and sometimes a third record of one of them.
fn pair_of(random: &mut Random, name: &[u8], all: &mut Vec<Loaded>) {
    let reference = random.below(REFERENCES.len() as u64) as usize;
    let room = u64::from(REFERENCES[reference].1) - 2 * TEMPLATE_MAX;
    let position = random.below(room) as i32;
    let distance = 120 + random.below(TEMPLATE_MAX - 220) as i32;
    let mut ends = [
        core_of(random, reference, position),
        core_of(random, reference, position + distance),
    ];
    if in_percent(random, 3) {
        // Its mate lies on another sequence.
        let other = random.below(REFERENCES.len() as u64) as usize;
        ends[1] = core_of(random, other, position % 100_000);
    }
    let unmapped = random.below(100);
    if unmapped < 4 {
        // An unmapped read lies where its mate does.
        ends[1].flags |= flag::UNMAPPED;
        (ends[1].reference, ends[1].position) = (ends[0].reference, ends[0].position);
    }
    if unmapped < 1 {
        for end in &mut ends {
            end.flags |= flag::UNMAPPED;
            (end.reference, end.position) = (-1, -1);
        }
    }
    let common = match in_percent(random, 2) {
        true => flag::PAIRED | flag::FAILED,
        false => flag::PAIRED,
    };
    let proper = unmapped >= 4 && ends[0].reference == ends[1].reference;
    for number in 0..2 {
        let mate = ends[1 - number];
        let end = &mut ends[number];
        end.flags |= common | [flag::FIRST, flag::LAST][number];
        if mate.has(flag::UNMAPPED) {
            end.flags |= flag::MATE_UNMAPPED;
        }
        if mate.has(flag::REVERSE) {
            end.flags |= flag::MATE_REVERSE;
        }
        if proper {
            end.flags |= flag::PROPER_PAIR;
            let bases = distance + READ_BASES as i32;
            end.template = [bases, -bases][number];
        }
        (end.mate_reference, end.mate_position) = (mate.reference, mate.position);
        if !end.has(flag::UNMAPPED) && in_percent(random, 2) {
            end.flags |= flag::DUPLICATE;
        }
    }
    for end in ends {
        all.push(read_of(random, name, end));
    }
    if !ends[0].has(flag::UNMAPPED) && in_percent(random, 2) {
        let mut third = ends[0];
        third.flags |= match in_percent(random, 50) {
            true => flag::SECONDARY,
            false => flag::SUPPLEMENTARY,
        };
        third.position = random.below(100_000) as i32;
        all.push(read_of(random, name, third));
    }
}

fn core_of(random: &mut Random, reference: usize, position: i32) -> Core {
    Core {
        reference: reference as i32,
        position,
        bases: READ_BASES,
        flags: match in_percent(random, 50) {
            true => flag::REVERSE,
            false => 0,
        },
        quality: random.below(61) as u8,
        ..Core::default()
    }
}

fn read_of(random: &mut Random, name: &[u8], mut core: Core) -> Loaded {
    let mut tail = name.to_vec();
    core.name = name.len() as u8;
    match core.has(flag::UNMAPPED) {
        true => core.quality = 0,
        false => {
            let cigar = CIGARS[random.below(CIGARS.len() as u64) as usize];
            core.operations = cigar.len() as u16;
            for (length, operation) in cigar {
                tail.extend((length << 4 | operation).to_le_bytes());
            }
        }
    }
    for _ in 0..core.bases {
        tail.push(b"ACGT"[random.below(4) as usize]);
    }
    for _ in 0..core.bases {
        // Neighbours are alike, as those of sequencers are.
        tail.push(b"#,:FFFFF"[random.below(8) as usize]);
    }
    core.covers = covered(&core, &tail);
    Loaded { core, tail }
}
