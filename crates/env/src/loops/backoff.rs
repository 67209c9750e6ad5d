//! Pauses of callers that met others.

use crate::{BoxFuture, Clock, Rng};
use core::time::Duration;

/// Random pauses of callers that met at the same objects, so that they do not meet again.
///
/// The pause after `n` earlier ones is drawn from zero up to `first * 2^n`, and at most `most`.
/// Every length is equally likely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
}

impl Backoff {
    /// The bound of the first pause, and that of all.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// The pause after this number of `earlier` ones.
    fn draw(self, rng: &dyn Rng, earlier: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << earlier.min(31));
        let nanos = doubled.min(self.most).as_nanos();
        let bound = u64::try_from(nanos).unwrap_or(u64::MAX);
        Duration::from_nanos(rng.below(bound.max(1)))
    }

    /// Waits, after this number of `earlier` pauses.
    pub fn pause(self, clock: &dyn Clock, rng: &dyn Rng, earlier: u32) -> BoxFuture<'static, ()> {
        clock.sleep(self.draw(rng, earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always the same bits.
    struct Bits(u64);

    impl Rng for Bits {
        fn next_u64(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let backoff = Backoff::new(Duration::from_nanos(100), Duration::from_nanos(1000));
        let longest = [0, 1, 2, 3, 4, 31, u32::MAX].map(|n| backoff.draw(&Bits(u64::MAX), n));
        let expected = [99, 199, 399, 799, 999, 999, 999].map(Duration::from_nanos);
        assert_eq!(longest, expected);
        assert_eq!(backoff.draw(&Bits(0), 5), Duration::ZERO);
        assert_eq!(
            backoff.draw(&Bits(1 << 63), 0),
            Duration::from_nanos(50),
            "half of the way"
        );
        let none = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert_eq!(none.draw(&Bits(u64::MAX), 3), Duration::ZERO);
    }
}
