//! The times that clocks of owners can have shown. By them checkers know when a deadline may be
//! past, and when it surely is.
//!
//! Times are those of histories (since the start of the run); clocks show milliseconds since 1970.
//!
//! Not here: how these bounds follow from what happened to processes (`cluster::times`).

use core::time::Duration;

/// Bounds of the clocks by which owners judge deadlines. By default they are all right.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Clocks {
    /// The time that a right clock shows at the start of the run.
    pub start_ms: u64,
    /// How much a clock may gain or lose, in parts per million of the time that has passed.
    pub drift_ppm: u64,
    /// From these moments on some clock may be behind, and some ahead, by so much: milliseconds.
    /// Ascending; the last entry before a moment counts.
    pub bounds: Vec<(Duration, u64, u64)>,
    /// Deadlines up to this were past at all owners that there were at this moment. Ascending
    /// moments; the time is less again where an owner begins whose clock is behind.
    pub past: Vec<(Duration, u64)>,
}

/// Milliseconds of a time, rounded up.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Clocks {
    fn bounds_at(&self, at: Duration) -> (u64, u64) {
        let later = self.bounds.partition_point(|(from, _, _)| *from <= at);
        let last = later.checked_sub(1).map(|last| self.bounds[last]);
        let (behind, ahead) = last.map_or((0, 0), |(_, behind, ahead)| (behind, ahead));
        let drift = ms(at).saturating_mul(self.drift_ppm).div_ceil(1_000_000);
        (behind.saturating_add(drift), ahead.saturating_add(drift))
    }

    /// No owner's clock shows less between these moments. One that begins meanwhile may be behind
    /// all that there were.
    #[must_use]
    pub fn earliest(&self, at: Duration, until: Duration) -> u64 {
        let shown = |moment| {
            let right = self.start_ms.saturating_add(ms(moment));
            // Rounded down.
            right
                .saturating_sub(self.bounds_at(moment).0)
                .saturating_sub(1)
        };
        let steps = self.bounds.iter().map(|(from, _, _)| *from);
        let meanwhile = steps.filter(|from| at < *from && *from <= until);
        meanwhile.map(shown).fold(shown(at), u64::min)
    }

    /// No owner's clock shows more at this moment.
    #[must_use]
    pub fn latest(&self, at: Duration) -> u64 {
        let right = self.start_ms.saturating_add(ms(at));
        right.saturating_add(self.bounds_at(at).1)
    }

    /// Deadlines up to this are past for a read between these moments. An owner that begins
    /// meanwhile may make earlier ones; it is known at the next entry.
    #[must_use]
    pub fn past(&self, at: Duration, until: Duration) -> u64 {
        let entries = |moment| self.past.partition_point(|(from, _)| *from <= moment);
        let Some(first) = entries(at).checked_sub(1) else {
            return 0;
        };
        let end = self.past.len().min(entries(until.max(at)) + 1);
        let seen = self.past[first..end].iter().map(|(_, past)| *past);
        seen.min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_lie_between_their_bounds() {
        let second = Duration::from_secs;
        let clocks = Clocks {
            start_ms: 1_000_000,
            drift_ppm: 10_000,
            bounds: vec![(second(2), 0, 500), (second(5), 3_000, 2_500)],
            past: vec![
                (second(1), 1_000_500),
                (second(3), 1_003_000),
                (second(11), 1_001_000),
                (second(12), 1_012_000),
            ],
        };
        let at = |s| {
            let moment = second(s);
            (clocks.earliest(moment, moment), clocks.latest(moment))
        };
        assert_eq!(at(1), (1_000_989, 1_001_010));
        assert_eq!(at(2), (1_001_979, 1_002_520));
        assert_eq!(at(10), (1_006_899, 1_012_600));
        // A clock that is behind came meanwhile.
        let between = |at, until| clocks.earliest(second(at), second(until));
        assert_eq!((between(4, 4), between(4, 9)), (1_003_959, 1_001_949));
        let past = |at, until| clocks.past(second(at), second(until));
        assert_eq!([0, 1, 2].map(|s| past(s, s)), [0, 1_000_500, 1_000_500]);
        assert_eq!((past(0, 12), past(1, 9)), (0, 1_000_500));
        // An owner with a clock that is behind came next, or meanwhile.
        assert_eq!((past(3, 9), past(3, 12)), (1_001_000, 1_001_000));
        assert_eq!((past(11, 11), past(12, 13)), (1_001_000, 1_012_000));
    }
}
