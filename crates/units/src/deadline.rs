//! Wall-clock time and deadlines of objects.

use core::fmt;
use core::num::NonZeroU64;
use serde::{Deserialize, Serialize};

/// A time: milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UnixMs(pub u64);

impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// When an object expires: milliseconds since 1970, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Deadline(NonZeroU64);

/// No object has such a deadline: it is 0, or behind [`Deadline::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoDeadline(u64);

impl fmt::Display for NoDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms is no deadline", self.0)
    }
}

impl TryFrom<u64> for Deadline {
    type Error = NoDeadline;

    fn try_from(ms: u64) -> Result<Self, NoDeadline> {
        Self::new(ms).ok_or(NoDeadline(ms))
    }
}

impl From<Deadline> for u64 {
    fn from(deadline: Deadline) -> Self {
        deadline.ms()
    }
}

impl Deadline {
    /// The latest deadline: clients keep them in signed numbers.
    pub const MAX: Self = match NonZeroU64::new(i64::MAX as u64) {
        Some(most) => Self(most),
        None => unreachable!(),
    };

    /// The deadline at this millisecond; `None` for 0 and for what is behind [`Self::MAX`].
    #[must_use]
    pub const fn new(ms: u64) -> Option<Self> {
        match NonZeroU64::new(ms) {
            Some(at) if ms <= Self::MAX.0.get() => Some(Self(at)),
            Some(_) | None => None,
        }
    }

    /// The deadline `ms` milliseconds after `now`, at least 1 and at most [`Self::MAX`].
    #[must_use]
    pub fn after(now: UnixMs, ms: u64) -> Self {
        let at = now.0.saturating_add(ms).clamp(1, Self::MAX.ms());
        Self::new(at).unwrap_or(Self::MAX)
    }

    /// Its millisecond.
    #[must_use]
    #[inline]
    pub const fn ms(self) -> u64 {
        self.0.get()
    }

    /// Whether an object with this deadline is gone.
    #[must_use]
    #[inline]
    pub fn is_past(self, now: UnixMs) -> bool {
        self.ms() <= now.0
    }

    /// Milliseconds until it is past.
    #[must_use]
    pub fn left(self, now: UnixMs) -> u64 {
        self.ms().saturating_sub(now.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_no_deadline_is_refused() {
        for ms in [0, i64::MAX as u64 + 1, u64::MAX] {
            assert_eq!(Deadline::try_from(ms), Err(NoDeadline(ms)));
        }
        for ms in [1, i64::MAX as u64] {
            assert_eq!(Deadline::try_from(ms).map(u64::from), Ok(ms));
        }
    }

    #[test]
    fn a_deadline_is_past_at_its_own_millisecond_and_has_limits() {
        let at = Deadline::new(10).unwrap();
        assert!(!at.is_past(UnixMs(9)) && at.is_past(UnixMs(10)));
        assert_eq!((at.left(UnixMs(3)), at.left(UnixMs(11))), (7, 0));
        assert_eq!(Deadline::new(0), None);
        assert_eq!(Deadline::new(u64::MAX), None);
        assert_eq!(Deadline::after(UnixMs(5), 0).ms(), 5);
        assert_eq!(Deadline::after(UnixMs(0), 0).ms(), 1);
        assert_eq!(Deadline::after(UnixMs(5), u64::MAX), Deadline::MAX);
    }
}
