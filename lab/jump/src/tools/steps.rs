//! The steps, the same for records of all kinds: counting by flags, two orders, and an index of
//! positions.

use super::record::{REFERENCES, Records, flag, name};

/// Numbers that `flagstat` counts, of reads that passed quality control and of those that failed.
pub(crate) const COUNTS: usize = 16;
/// Bases of a window of the index, as in samtools' format BAI.
const WINDOW_SHIFT: u32 = 14;
/// No record lies in a window, nor behind it.
const NONE: u32 = u32::MAX;

/// What `samtools flagstat` counts, in its order.
pub(crate) fn flagstat(records: &(impl Records + ?Sized)) -> [[u64; 2]; COUNTS] {
    let mut counts = [[0; 2]; COUNTS];
    for number in 0..records.count() {
        let core = records.core(number);
        let which = usize::from(core.has(flag::FAILED));
        let mut add = |count: usize, is: bool| counts[count][which] += u64::from(is);
        let mapped = !core.has(flag::UNMAPPED);
        let secondary = core.has(flag::SECONDARY);
        let supplementary = !secondary && core.has(flag::SUPPLEMENTARY);
        let primary = !secondary && !supplementary;
        let pair = primary && core.has(flag::PAIRED);
        let both = pair && mapped && !core.has(flag::MATE_UNMAPPED);
        let apart = both && core.mate_reference != core.reference;
        add(0, true);
        add(1, primary);
        add(2, secondary);
        add(3, supplementary);
        add(4, core.has(flag::DUPLICATE));
        add(5, primary && core.has(flag::DUPLICATE));
        add(6, mapped);
        add(7, primary && mapped);
        add(8, pair);
        add(9, pair && core.has(flag::FIRST));
        add(10, pair && core.has(flag::LAST));
        add(11, pair && core.has(flag::PROPER_PAIR) && mapped);
        add(12, both);
        add(13, pair && mapped && core.has(flag::MATE_UNMAPPED));
        add(14, apart);
        add(15, apart && core.quality >= 5);
    }
    counts
}

/// The first bytes of a name, as a number with the same order. Most names differ in it, so that
/// few have to be fetched again.
fn beginning(name: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let count = name.len().min(bytes.len());
    bytes[..count].copy_from_slice(&name[..count]);
    u128::from_be_bytes(bytes)
}

/// The records by name; those of one name by their place in the pair, then secondary ones behind.
pub(crate) fn by_name(records: &(impl Records + ?Sized)) -> Vec<u32> {
    let name_of = |number: u32| {
        name(
            &records.core(number as usize),
            records.tail(number as usize),
        )
    };
    let rank = |number: u32| {
        let flags = u32::from(records.core(number as usize).flags);
        (flags & 0xc0) << 8 | (flags & 0x100) << 3 | (flags & 0x800) >> 3
    };
    let all = 0..records.count() as u32;
    let mut keys: Vec<(u128, u32)> = all
        .map(|number| (beginning(name_of(number)), number))
        .collect();
    keys.sort_unstable_by(|&(begin, one), &(begin_2, other)| {
        let beginnings = begin.cmp(&begin_2);
        let names = beginnings.then_with(|| name_of(one).cmp(name_of(other)));
        names.then_with(|| rank(one).cmp(&rank(other)).then(one.cmp(&other)))
    });
    keys.into_iter().map(|(_, number)| number).collect()
}

/// The records by sequence, position and strand; those without a position at the end.
pub(crate) fn by_position(records: &(impl Records + ?Sized)) -> Vec<u32> {
    let key = |number: u32| {
        let core = records.core(number as usize);
        let strand = u64::from(core.has(flag::REVERSE));
        let place = u64::from(core.reference as u32) << 32 | ((core.position + 1) as u64) << 1;
        (place | strand, number)
    };
    let mut keys: Vec<(u64, u32)> = (0..records.count() as u32).map(key).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, number)| number).collect()
}

/// Where to begin to look for what overlaps a place, in records that are in order by position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Index {
    /// Mapped and unmapped records of each sequence, and behind them records without a position.
    pub(crate) counts: Vec<u64>,
    /// For each window of each sequence, the place in the order of the first record that ends in
    /// the window or behind it.
    pub(crate) first: Vec<u32>,
}

/// Windows in front of those of each sequence, and of all.
fn windows() -> [usize; REFERENCES.len() + 1] {
    let mut before = [0; REFERENCES.len() + 1];
    for (number, (_, length)) in REFERENCES.iter().enumerate() {
        before[number + 1] = before[number] + (length >> WINDOW_SHIFT) as usize + 1;
    }
    before
}

/// Makes the index.
pub(crate) fn index(records: &(impl Records + ?Sized), order: &[u32]) -> Index {
    let windows = windows();
    let mut counts = vec![0; 2 * REFERENCES.len() + 1];
    let mut first = vec![NONE; windows[REFERENCES.len()]];
    for (place, &number) in order.iter().enumerate() {
        let core = records.core(number as usize);
        let Ok(reference) = usize::try_from(core.reference) else {
            counts[2 * REFERENCES.len()] += 1;
            continue;
        };
        counts[2 * reference + usize::from(core.has(flag::UNMAPPED))] += 1;
        let end = core.end();
        let from = windows[reference] + (core.position >> WINDOW_SHIFT) as usize;
        let to = windows[reference] + ((end - 1) >> WINDOW_SHIFT) as usize;
        let to = to.min(windows[reference + 1] - 1);
        for window in first.iter_mut().take(to + 1).skip(from) {
            if *window == NONE {
                *window = place as u32;
            }
        }
    }
    // A window without a record begins where the next one of its sequence does.
    for reference in 0..REFERENCES.len() {
        let mut next = NONE;
        for window in (windows[reference]..windows[reference + 1]).rev() {
            match first[window] {
                NONE => first[window] = next,
                found => next = found,
            }
        }
    }
    Index { counts, first }
}

/// How many records overlap the bases from `begin` to before `end` of a sequence.
#[cfg(test)]
pub(crate) fn overlapping(
    records: &(impl Records + ?Sized),
    order: &[u32],
    index: &Index,
    reference: usize,
    range: core::ops::Range<i32>,
) -> usize {
    let window = windows()[reference] + (range.start >> WINDOW_SHIFT) as usize;
    let first = index.first[window];
    if first == NONE {
        return 0;
    }
    let behind = order[first as usize..]
        .iter()
        .map(|&number| number as usize);
    let near = behind.take_while(|&number| {
        let core = records.core(number);
        core.reference == reference as i32 && core.position < range.end
    });
    near.filter(|&number| {
        let core = records.core(number);
        core.end() > range.start
    })
    .count()
}
