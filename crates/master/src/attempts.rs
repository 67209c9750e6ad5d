//! The recoveries that this master takes part in.

use pluvio_units::{RecoveryId, ServerId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One partition of one attempt to recover a crashed server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct AttemptKey {
    pub(crate) crashed: ServerId,
    pub(crate) recovery: RecoveryId,
    pub(crate) partition: u32,
}

/// What is known of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// The coordinator waits for its end.
    Wanted,
    /// Nobody waits for it: it should end soon.
    Withdrawn,
}

/// The attempts under way here. Each is known from its request until it has left nothing behind or has
/// been handed over.
#[derive(Default)]
pub(crate) struct Attempts(Mutex<BTreeMap<AttemptKey, Use>>);

/// How a request to recover is to be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begin {
    /// It is under way here from now on.
    Begun,
    /// It has been asked for before.
    Known,
}

impl Attempts {
    fn map(&self) -> MutexGuard<'_, BTreeMap<AttemptKey, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt and withdraws the earlier ones of the same server: the coordinator has given
    /// them up (REC-5). `prepare` runs while no other attempt can begin; on its error nothing has begun.
    pub(crate) fn begin<E>(
        &self,
        key: AttemptKey,
        prepare: impl FnOnce() -> Result<(), E>,
    ) -> Result<Begin, E> {
        let mut map = self.map();
        if map.contains_key(&key) {
            return Ok(Begin::Known);
        }
        for (earlier, used) in map.iter_mut() {
            if earlier.crashed == key.crashed && earlier.recovery < key.recovery {
                *used = Use::Withdrawn;
            }
        }
        prepare()?;
        map.insert(key, Use::Wanted);
        Ok(Begin::Begun)
    }

    /// Withdraws the attempts for servers that are not `in_list`: what they had is served elsewhere.
    pub(crate) fn withdraw_unless(&self, in_list: impl Fn(ServerId) -> bool) {
        for (key, used) in self.map().iter_mut() {
            if !in_list(key.crashed) {
                *used = Use::Withdrawn;
            }
        }
    }

    /// Whether nobody waits for it.
    pub(crate) fn is_withdrawn(&self, key: &AttemptKey) -> bool {
        self.map().get(key) != Some(&Use::Wanted)
    }

    /// It has ended.
    pub(crate) fn end(&self, key: &AttemptKey) {
        self.map().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(crashed: u64, recovery: u64, partition: u32) -> AttemptKey {
        AttemptKey {
            crashed: ServerId(crashed),
            recovery: RecoveryId(recovery),
            partition,
        }
    }

    fn begin(attempts: &Attempts, key: AttemptKey) -> Begin {
        attempts.begin(key, || Ok::<(), ()>(())).expect("prepared")
    }

    #[test]
    fn a_later_attempt_withdraws_earlier_ones_of_its_server_only() {
        let attempts = Attempts::default();
        for known in [key(1, 10, 0), key(1, 10, 1), key(2, 11, 0), key(1, 13, 0)] {
            assert_eq!(begin(&attempts, known), Begin::Begun);
        }
        assert_eq!(begin(&attempts, key(1, 12, 0)), Begin::Begun);
        assert_eq!(begin(&attempts, key(1, 12, 1)), Begin::Begun);
        assert_eq!(begin(&attempts, key(1, 12, 1)), Begin::Known);
        let withdrawn = |key| attempts.is_withdrawn(&key);
        assert!(withdrawn(key(1, 10, 0)) && withdrawn(key(1, 10, 1)));
        assert!(!withdrawn(key(2, 11, 0)) && !withdrawn(key(1, 12, 0)));
        assert!(!withdrawn(key(1, 12, 1)) && !withdrawn(key(1, 13, 0)));
    }

    #[test]
    fn what_could_not_be_prepared_withdraws_and_leaves_nothing() {
        let attempts = Attempts::default();
        begin(&attempts, key(1, 10, 0));
        assert_eq!(
            attempts.begin(key(1, 11, 0), || Err("occupied")),
            Err("occupied")
        );
        assert!(attempts.is_withdrawn(&key(1, 10, 0)));
        attempts.end(&key(1, 10, 0));
        assert_eq!(begin(&attempts, key(1, 11, 0)), Begin::Begun);
    }

    #[test]
    fn attempts_for_servers_that_left_are_withdrawn() {
        let attempts = Attempts::default();
        begin(&attempts, key(1, 10, 0));
        begin(&attempts, key(2, 11, 0));
        attempts.withdraw_unless(|server| server == ServerId(2));
        assert!(attempts.is_withdrawn(&key(1, 10, 0)));
        assert!(!attempts.is_withdrawn(&key(2, 11, 0)));
    }
}
