//! All ways of the tools against plain computations, and against samtools where it is installed.

use super::record::{Core, Loaded, REFERENCES, flag, name};
use super::samtools::{self, Compression};
use super::work::{Results, digest_of, work};
use super::*;

const COUNT: u32 = 3000;

fn records() -> Vec<Loaded> {
    generate::records(COUNT, 7)
}

/// Order by any key, by the standard library's stable sort.
fn sorted<K: Ord>(records: &[Loaded], key: impl Fn(&Loaded) -> K) -> Vec<u32> {
    let mut order: Vec<u32> = (0..records.len() as u32).collect();
    order.sort_by_key(|&number| key(&records[number as usize]));
    order
}

fn position_key(record: &Loaded) -> (u32, i32, bool) {
    let core = record.core;
    (
        core.reference as u32,
        core.position,
        core.has(flag::REVERSE),
    )
}

fn name_key(record: &Loaded) -> (Vec<u8>, u16, u16) {
    let core = record.core;
    let rest = core.flags & (flag::SECONDARY | flag::SUPPLEMENTARY);
    (name(&core, &record.tail).to_vec(), core.flags & 0xc0, rest)
}

/// The index by looking at everything.
fn plain_results(records: &[Loaded]) -> Results {
    let order = sorted(records, position_key);
    let placed: Vec<(&Core, i32)> = order
        .iter()
        .map(|&number| &records[number as usize])
        .map(|one| (&one.core, one.core.end()))
        .collect();
    let (mut counts, mut first) = (Vec::new(), Vec::new());
    for (reference, (_, length)) in REFERENCES.iter().enumerate() {
        let of = |unmapped: bool| {
            let here = placed
                .iter()
                .filter(|(core, _)| core.reference == reference as i32);
            here.filter(|(core, _)| core.has(flag::UNMAPPED) == unmapped)
                .count() as u64
        };
        counts.extend([of(false), of(true)]);
        for window in 0..=length >> 14 {
            let begin = (window << 14) as i32;
            let found = placed
                .iter()
                .position(|(core, end)| core.reference == reference as i32 && *end > begin);
            first.push(found.map_or(u32::MAX, |place| place as u32));
        }
    }
    counts.push(placed.iter().filter(|(core, _)| core.reference < 0).count() as u64);
    Results {
        by_name: digest_of(records, &sorted(records, name_key)),
        by_position: digest_of(records, &order),
        index: steps::Index { counts, first },
    }
}

fn in_a_folder(ways: &[Way]) -> Place {
    let place = Place::new(None).expect("a folder");
    let all = records();
    let mut text = Vec::new();
    text::write(&all[..], 0..all.len(), "unsorted", &mut text).expect("written");
    std::fs::write(place.path().join("reads.sam"), text).expect("written");
    for &way in ways {
        for step in [Step::Convert].into_iter().chain(STEPS) {
            work(way, step, place.path()).expect("worked");
        }
    }
    place
}

// shows: TOOLS-1
#[test]
fn all_ways_give_what_a_plain_computation_gives() {
    let place = in_a_folder(&[Way::Binary, Way::Mapped, Way::Text, Way::Space]);
    let expected = plain_results(&records());
    for way in WAYS {
        assert_eq!(
            results(way, place.path()).expect("left"),
            expected,
            "{way:?}"
        );
    }
    // A second run takes the place of the first.
    for step in STEPS {
        work(Way::Space, step, place.path()).expect("worked");
    }
    assert_eq!(results(Way::Space, place.path()).expect("left"), expected);
}

#[test]
fn counts_are_those_of_a_plain_loop() {
    let all = records();
    let counts = steps::flagstat(&all[..]);
    let count = |is: &dyn Fn(&Core) -> bool| {
        let of = |failed| {
            all.iter()
                .filter(|one| one.core.has(flag::FAILED) == failed && is(&one.core))
                .count()
        };
        [of(false) as u64, of(true) as u64]
    };
    assert_eq!(counts[0], count(&|_| true));
    assert_eq!(counts[2], count(&|core| core.has(flag::SECONDARY)));
    assert_eq!(counts[6], count(&|core| !core.has(flag::UNMAPPED)));
    let more = flag::SECONDARY | flag::SUPPLEMENTARY;
    assert_eq!(
        counts[9],
        count(&|core| core.has(flag::FIRST) && !core.has(more))
    );
    assert!(
        counts.iter().all(|[good, _]| *good > 0),
        "each kind is there: {counts:?}"
    );
}

#[test]
fn text_and_binary_files_hold_what_was_written() {
    let all = records();
    let (mut sam, mut bin) = (Vec::new(), Vec::new());
    text::write(&all[..], 0..all.len(), "unsorted", &mut sam).expect("written");
    binary::write(&all[..], 0..all.len(), &mut bin).expect("written");
    assert!(text::parse(&sam).expect("parsed") == all);
    let file = binary::File::new(&bin).expect("a file");
    assert!(file.load().expect("loaded") == all);
    // Cut files and lines are refused.
    assert!(text::parse(b"a\t0\tchr1\n").is_err());
    assert!(binary::File::new(&bin[..7]).is_err());
    let cut = binary::File::new(&bin[1..]).expect("its end is there");
    assert!(cut.load().is_err());
}

mod needs_samtools {
    use super::*;

    #[test]
    fn it_gives_the_same_answers() {
        let place = in_a_folder(&[Way::Text, Way::Space]);
        let folder = place.path();
        let printed = |step| samtools::work(Compression::Usual, step, folder).expect("worked");
        printed(Step::Convert);
        let all = records();
        let counts = steps::flagstat(&all[..]);
        let ours: String = counts
            .iter()
            .map(|[good, bad]| format!("{good} + {bad}\n"))
            .collect();
        assert_eq!(samtools::counts(&printed(Step::Flagstat)), ours);
        for step in [Step::SortName, Step::SortPosition, Step::Index] {
            printed(step);
        }
        for file in ["name", "position"] {
            let theirs = samtools::lines(folder, file).expect("lines");
            let ours = std::fs::read(folder.join(format!("{file}.sam"))).expect("a file");
            let head = ours
                .split(|&byte| byte == b'\n')
                .take_while(|line| line.starts_with(b"@"));
            let head: usize = head.map(|line| line.len() + 1).sum();
            assert!(theirs == ours[head..], "order by {file}");
        }
        let order = steps::by_position(&all[..]);
        let index = results(Way::Space, folder).expect("left").index;
        for (reference, (sequence, length)) in REFERENCES.iter().enumerate() {
            for begin in (0..*length as i32 - 5000).step_by(90_001) {
                let ours =
                    steps::overlapping(&all[..], &order, &index, reference, begin..begin + 5000);
                let theirs = samtools::overlapping(folder, sequence, begin + 1, begin + 5000);
                assert_eq!(ours, theirs.expect("counted"), "{sequence} from {begin}");
            }
        }
    }
}
