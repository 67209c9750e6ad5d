//! Random numbers that follow from the seed of a torture (`SplitMix64`, public domain).

use std::time::Duration;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of numbers. Each concern has one of its own, so that one more number for the one does
/// not change what the others draw.
#[derive(Clone, Debug)]
pub struct Draw(u64);

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Draw {
    /// The stream called `name`, with a number, of the run with `seed`.
    pub fn new(seed: u64, name: &str, number: u64) -> Self {
        let named = name.bytes().fold(seed, |word, byte| {
            mix(word.wrapping_add(STEP) ^ u64::from(byte))
        });
        Self(mix(named.wrapping_add(number.wrapping_mul(STEP))))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A place in a list of `length` things, at least one.
    pub fn place(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// Whether something happens that happens so often in a hundred times.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time from `low` to `high` milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(low + self.below(high.saturating_sub(low) + 1))
    }
}
