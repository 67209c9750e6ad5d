//! CLIENT PAUSE: commands that wait until a moment, or until CLIENT UNPAUSE.
//!
//! - PAUSE-1: a pause ends by itself, at most [`PAUSE_MAX`] after it was asked for.
//!
//! A connection whose next command has to wait reads no more. CLIENT UNPAUSE alone goes on, so that
//! a pause of everything can be ended. Shared by all cores of a port; without a pause, a command
//! looks at one flag.

use core::time::Duration;
use pluvio_env::Moment;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Longest pause. Clients whose commands wait longer have given them up.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Which commands wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Paused {
    /// Changes.
    Writes,
    /// All.
    All,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pause {
    /// Relaxed: whoever sees it takes the lock.
    is_on: AtomicBool,
    until: Mutex<Option<(Paused, Moment)>>,
}

impl Pause {
    /// Begins one, or makes the one under way stricter or longer.
    pub(crate) fn begin(&self, paused: Paused, now: Moment, time: Duration) {
        let end = now + time.min(PAUSE_MAX);
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let before = until.filter(|(_, end)| *end > now);
        *until = Some(before.map_or((paused, end), |(which, until)| {
            (which.max(paused), until.max(end))
        }));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends it.
    pub(crate) fn end(&self) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = None;
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Whether there may be one.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// What waits now, and until when.
    pub(crate) fn now(&self, now: Moment) -> Option<(Paused, Moment)> {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|(_, end)| end <= now) {
            *until = None;
            self.is_on.store(false, Ordering::Relaxed);
        }
        *until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: PAUSE-1
    #[test]
    fn a_pause_ends_by_itself_and_can_be_made_longer() {
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let pause = Pause::default();
        pause.begin(Paused::All, at(0), Duration::from_secs(5));
        pause.begin(Paused::Writes, at(1), Duration::MAX);
        assert_eq!(pause.now(at(2)), Some((Paused::All, at(601))));
        assert_eq!(pause.now(at(601)), None);
        assert!(!pause.is_on());
        pause.begin(Paused::Writes, at(602), Duration::from_secs(1));
        pause.end();
        assert!(!pause.is_on() && pause.now(at(602)).is_none());
    }
}
