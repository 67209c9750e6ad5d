//! Random numbers that are a function of the seed (`SplitMix64`, public domain).
//!
//! Every concern of the simulator draws from a stream of its own, so that for example one more
//! disk operation does not change which messages get lost.

use pluvio_env::Rng;
use std::sync::atomic::{AtomicU64, Ordering};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Parts in a million: the unit of every probability here. Integers, so that no rounding of the
/// machine can change a run.
pub(crate) const MILLION: u32 = 1_000_000;

pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The seed of the stream called `name` of the run with `seed`.
pub(crate) fn derive(seed: u64, name: &str, number: u64) -> u64 {
    let named = twox_hash::XxHash3_64::oneshot_with_seed(seed, name.as_bytes());
    mix(named.wrapping_add(number.wrapping_mul(STEP)))
}

/// A stream for the simulator itself.
pub(crate) struct Stream(u64);

impl Stream {
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        Self(derive(seed, name, 0))
    }

    /// The stream of one of several things of one name.
    #[cfg(feature = "cluster")]
    pub(crate) fn numbered(seed: u64, name: &str, number: u64) -> Self {
        Self(derive(seed, name, number))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high` (`low` when they are exchanged).
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Whether something of probability `ppm` happens. Draws only when the answer is open.
    pub(crate) fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && (ppm >= MILLION || self.below(u64::from(MILLION)) < u64::from(ppm))
    }
}

/// The stream that the code of one incarnation draws from.
pub(crate) struct SimRng(AtomicU64);

impl SimRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Rng for SimRng {
    fn next_u64(&self) -> u64 {
        // Relaxed: one thread; the atomic is there only because `Rng` is `Sync`.
        mix(self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }
}
