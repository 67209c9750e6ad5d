//! Sets of numbers that come nearly in order, as a short list of ranges.

use core::ops::Range;

/// Disjoint ranges in ascending order, none empty, none touching the next.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds the numbers of `new`.
    pub(crate) fn add(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        // The ranges that touch it, nearly always the last one or none.
        let mut first = self.0.len();
        while first > 0 && self.0[first - 1].end >= new.start {
            first -= 1;
        }
        let mut end = first;
        while end < self.0.len() && self.0[end].start <= new.end {
            end += 1;
        }
        if first == end {
            self.0.insert(first, new);
            return;
        }
        let joined = new.start.min(self.0[first].start)..new.end.max(self.0[end - 1].end);
        self.0[first] = joined;
        self.0.drain(first + 1..end);
    }

    /// Whether `number` is in the set.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let before = self.0.iter().rev().find(|range| range.start <= number);
        before.is_some_and(|range| number < range.end)
    }

    /// Whether `all` is in the set.
    pub(crate) fn covers(&self, all: &Range<u64>) -> bool {
        all.is_empty()
            || (self.0.iter()).any(|range| range.start <= all.start && all.end <= range.end)
    }

    /// The parts of `all` outside the set.
    pub(crate) fn gaps(&self, all: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut from = all.start;
        for range in &self.0 {
            if range.start >= all.end {
                break;
            }
            if range.start > from {
                gaps.push(from..range.start);
            }
            from = from.max(range.end);
        }
        if from < all.end {
            gaps.push(from..all.end);
        }
        gaps
    }

    /// Keeps the `count` highest ranges. Gives the number below which the rest was forgotten.
    pub(crate) fn keep_highest(&mut self, count: usize) -> Option<u64> {
        let over = self.0.len().checked_sub(count).filter(|&over| over > 0)?;
        let last = self.0.drain(..over).next_back();
        last.map(|range| range.end)
    }

    /// The ranges, lowest first.
    pub(crate) fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_behave_as_the_set_of_their_numbers() {
        let mut state = 1_u64;
        let mut below = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..300 {
            let (mut ranges, mut set) = (Ranges::default(), [false; 64]);
            for _ in 0..20 {
                let start = below(60);
                let end = start + below(5);
                ranges.add(start..end);
                set[start as usize..end as usize].fill(true);
                for n in 0..64 {
                    assert_eq!(ranges.contains(n), set[n as usize], "{n} in {ranges:?}");
                }
                let gaps = ranges.gaps(3..50);
                for n in 3..50 {
                    let in_gap = gaps.iter().any(|gap| gap.contains(&n));
                    assert_eq!(in_gap, !set[n as usize], "{n}");
                }
                let whole = start.saturating_sub(2)..end;
                let all = (whole.start..whole.end).all(|n| set[n as usize]);
                assert_eq!(ranges.covers(&whole), all);
                let list = ranges.as_slice();
                assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }

    #[test]
    fn the_lowest_ranges_are_forgotten_first() {
        let mut ranges = Ranges::default();
        for n in [1, 3, 5, 7] {
            ranges.add(n..n + 1);
        }
        assert_eq!(ranges.keep_highest(4), None);
        assert_eq!(ranges.keep_highest(2), Some(4));
        assert_eq!(ranges.as_slice(), [5..6, 7..8]);
    }
}
