//! Traces of troubles that come again and again, as when the coordinator is away.

use pluvio_env::Moment;
use pluvio_units::ServerId;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// After a trace of a trouble, the next ones like it are left out for this time.
const PAUSE: Duration = Duration::from_secs(10);

/// What a trouble is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Trouble {
    /// A server does not answer.
    Silent(ServerId),
    /// The coordinator cannot be told of it.
    Untold(ServerId),
    /// The coordinator does not tell the server list.
    NoList,
}

/// When each trouble was traced last. Those of the last ten seconds are kept, so a trouble for each
/// server of the list at most.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<BTreeMap<Trouble, Moment>>);

impl Seldom {
    /// Whether to trace it now.
    pub(super) fn may_tell(&self, trouble: Trouble, now: Moment) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, at| now.since(*at) < PAUSE);
        let may = !told.contains_key(&trouble);
        if may {
            told.insert(trouble, now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_is_told_once_in_ten_seconds() {
        let seldom = Seldom::default();
        let may = |trouble, s| seldom.may_tell(trouble, Moment(Duration::from_secs(s)));
        assert!(may(Trouble::Silent(ServerId(1)), 0));
        assert!(may(Trouble::Silent(ServerId(2)), 1));
        assert!(may(Trouble::NoList, 1));
        assert!(!may(Trouble::Silent(ServerId(1)), 9));
        assert!(may(Trouble::Silent(ServerId(1)), 10));
        assert!(!may(Trouble::NoList, 10));
        assert!(may(Trouble::NoList, 11));
    }
}
