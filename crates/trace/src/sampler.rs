//! Which requests are sampled.

use pluvio_env::Rng;

/// Draws which requests begin a trace: each one with the same probability.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sampler {
    ratio: f64,
}

impl Sampler {
    /// No request.
    pub const OFF: Self = Self { ratio: 0.0 };

    /// This part of all requests, 0 to 1. A number beyond counts as the nearer end.
    #[must_use]
    pub fn ratio(ratio: f64) -> Self {
        let ratio = if ratio.is_finite() { ratio } else { 0.0 };
        Self {
            ratio: ratio.clamp(0.0, 1.0),
        }
    }

    /// Whether no request is sampled.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.ratio <= 0.0
    }

    /// How many requests from now on the next sampled one is: 1 is the next one, [`u64::MAX`] is
    /// never. So a request that is not sampled costs the count down.
    #[must_use]
    pub fn next(&self, rng: &dyn Rng) -> u64 {
        if self.is_off() {
            return u64::MAX;
        }
        if self.ratio >= 1.0 {
            return 1;
        }
        // Above 0 and below 1.
        let drawn = ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let failures = drawn.ln() / (-self.ratio).ln_1p();
        // A conversion that saturates: ratios near 0 give more than there are.
        (failures as u64).saturating_add(1)
    }

    /// Whether one request is sampled, drawn by itself.
    #[must_use]
    pub fn draws(&self, rng: &dyn Rng) -> bool {
        !self.is_off() && ((rng.next_u64() >> 11) as f64) < self.ratio * (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    /// splitmix64.
    struct Numbers(AtomicU64);

    impl Rng for Numbers {
        fn next_u64(&self) -> u64 {
            let step = 0x9e37_79b9_7f4a_7c15;
            let mut mixed = self.0.fetch_add(step, Ordering::Relaxed);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }
    }

    #[test]
    fn about_the_wanted_part_is_sampled() {
        let rng = Numbers(AtomicU64::new(7));
        let sampler = Sampler::ratio(0.01);
        let mean = (0..20_000).map(|_| sampler.next(&rng)).sum::<u64>() as f64 / 20_000.0;
        assert!((95.0..105.0).contains(&mean), "{mean}");
        let drawn = (0..100_000).filter(|_| sampler.draws(&rng)).count();
        assert!((800..1200).contains(&drawn), "{drawn}");
    }

    #[test]
    fn the_ends_are_none_and_all() {
        let rng = Numbers(AtomicU64::new(7));
        for off in [0.0, -1.0, f64::NAN] {
            assert_eq!(Sampler::ratio(off).next(&rng), u64::MAX);
            assert!(!Sampler::ratio(off).draws(&rng));
        }
        assert!((0..100).all(|_| Sampler::ratio(2.0).next(&rng) == 1));
        assert!((0..100).all(|_| Sampler::ratio(1.0).draws(&rng)));
        assert!(Sampler::ratio(f64::MIN_POSITIVE).next(&rng) > 1 << 60);
    }
}
