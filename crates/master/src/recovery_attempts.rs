//! The recoveries that this master takes part in.

use crate::cancel::Cancellation;
use pluvio_units::{RecoveryId, ServerId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One partition of one attempt to recover a crashed server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct AttemptKey {
    pub(crate) crashed: ServerId,
    pub(crate) recovery: RecoveryId,
    pub(crate) partition: u32,
}

/// The attempts under way here. Each is known from its request until it has left nothing behind or
/// has been handed over.
#[derive(Default)]
pub(crate) struct Attempts(Mutex<BTreeMap<AttemptKey, Arc<Cancellation>>>);

impl Attempts {
    fn map(&self) -> MutexGuard<'_, BTreeMap<AttemptKey, Arc<Cancellation>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt and cancels the earlier ones of the same server: the coordinator has
    /// given them up (REC-5). `None` when it is under way already. `prepare` runs while no other
    /// attempt can begin; on its error nothing has begun.
    pub(crate) fn begin<E>(
        &self,
        key: AttemptKey,
        prepare: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<Arc<Cancellation>>, E> {
        let mut map = self.map();
        if map.contains_key(&key) {
            return Ok(None);
        }
        for (earlier, cancellation) in map.iter() {
            if earlier.crashed == key.crashed && earlier.recovery < key.recovery {
                cancellation.cancel();
            }
        }
        prepare()?;
        let cancellation = Arc::new(Cancellation::new("nobody waits for it any longer"));
        map.insert(key, Arc::clone(&cancellation));
        Ok(Some(cancellation))
    }

    /// Cancels the attempts for servers that are not `in_list`: what they had is served
    /// elsewhere.
    pub(crate) fn cancel_unless(&self, in_list: impl Fn(ServerId) -> bool) {
        for (key, cancellation) in self.map().iter() {
            if !in_list(key.crashed) {
                cancellation.cancel();
            }
        }
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

    fn begin(attempts: &Attempts, key: AttemptKey) -> Option<Arc<Cancellation>> {
        attempts.begin(key, || Ok::<(), ()>(())).expect("prepared")
    }

    // shows: REC-5
    #[test]
    fn a_later_attempt_cancels_earlier_ones_of_its_server_only() {
        let attempts = Attempts::default();
        let [first, beside, other, later] =
            [key(1, 10, 0), key(1, 10, 1), key(2, 11, 0), key(1, 13, 0)]
                .map(|known| begin(&attempts, known).expect("new"));
        let new = begin(&attempts, key(1, 12, 0)).expect("new");
        let new_beside = begin(&attempts, key(1, 12, 1)).expect("new");
        assert!(begin(&attempts, key(1, 12, 1)).is_none(), "known");
        assert!(first.check().is_err() && beside.check().is_err());
        for cancellation in [other, later, new, new_beside] {
            assert_eq!(cancellation.check(), Ok(()));
        }
    }

    #[test]
    fn what_could_not_be_prepared_cancels_and_leaves_nothing() {
        let attempts = Attempts::default();
        let earlier = begin(&attempts, key(1, 10, 0)).expect("new");
        let refused = attempts.begin(key(1, 11, 0), || Err("occupied"));
        assert_eq!(refused.err(), Some("occupied"));
        assert!(earlier.check().is_err());
        attempts.end(&key(1, 10, 0));
        assert!(begin(&attempts, key(1, 11, 0)).is_some());
    }

    // shows: REC-5
    #[test]
    fn attempts_for_servers_that_left_are_cancelled() {
        let attempts = Attempts::default();
        let of_one_that_left = begin(&attempts, key(1, 10, 0)).expect("new");
        let other = begin(&attempts, key(2, 11, 0)).expect("new");
        attempts.cancel_unless(|server| server == ServerId(2));
        assert!(of_one_that_left.check().is_err());
        assert_eq!(other.check(), Ok(()));
    }
}
