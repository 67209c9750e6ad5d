//! The recoveries that this master takes part in.

use crate::cancel::Cancellation;
use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_units::{RecoveryId, ServerId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One partition of one attempt to recover a crashed server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct AttemptKey {
    pub(crate) crashed: ServerId,
    pub(crate) recovery: RecoveryId,
    pub(crate) partition: u32,
}

/// An attempt that is under way here.
struct Known {
    cancellation: Arc<Cancellation>,
    /// It has entries to replay at this moment.
    replaying: AtomicBool,
    /// All of its entries are replayed.
    replayed: AtomicBool,
    /// It answers reads: its tablets are its own, unless it fails (REC-5).
    reads: AtomicBool,
}

/// When an attempt lets earlier partitions of its recovery pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passing {
    /// Until all of their entries are replayed.
    Whole,
    /// While they have entries to replay.
    Ready,
}

/// The attempts under way here. Each is known from its request until it has left nothing behind or
/// has been handed over.
#[derive(Default)]
pub(crate) struct Attempts {
    known: Mutex<BTreeMap<AttemptKey, Known>>,
    /// One of them has nothing to replay any more.
    idle: Notify,
}

/// While this is there an attempt has entries to replay.
pub(crate) struct Replaying<'a> {
    attempts: &'a Attempts,
    key: AttemptKey,
}

impl Drop for Replaying<'_> {
    fn drop(&mut self) {
        self.attempts.set_replaying(&self.key, false);
    }
}

impl Attempts {
    fn map(&self) -> MutexGuard<'_, BTreeMap<AttemptKey, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an attempt its turn at the processor: earlier partitions of the same recovery pass
    /// before. They are the small ones, to be served early.
    pub(crate) async fn turn(&self, key: AttemptKey, passing: Passing) -> Replaying<'_> {
        loop {
            // Registered before the look, so that nothing that happens after it is missed.
            let idle = self.idle.notified();
            let earlier = AttemptKey {
                partition: 0,
                ..key
            };
            let in_the_way = {
                let map = self.map();
                let mut earlier = map.range(earlier..key);
                earlier.any(|(_, known)| match passing {
                    Passing::Whole => !known.replayed.load(Ordering::Relaxed),
                    Passing::Ready => known.replaying.load(Ordering::Relaxed),
                })
            };
            if !in_the_way {
                self.set_replaying(&key, true);
                return Replaying {
                    attempts: self,
                    key,
                };
            }
            pluvio_units::mark("recovery-lets-first-part-pass");
            idle.await;
        }
    }

    /// All entries of this attempt are replayed.
    pub(crate) fn replayed(&self, key: &AttemptKey) {
        if let Some(known) = self.map().get(key) {
            known.replayed.store(true, Ordering::Relaxed);
        }
        self.idle.notify_waiters();
    }

    /// Its tablets answer reads from now on. No later attempt is for these.
    pub(crate) fn reads(&self, key: &AttemptKey) {
        if let Some(known) = self.map().get(key) {
            // Under the map's lock, like each look at it.
            known.reads.store(true, Ordering::Relaxed);
        }
    }

    fn set_replaying(&self, key: &AttemptKey, replaying: bool) {
        if let Some(known) = self.map().get(key) {
            // Under the map's lock, like each look at it.
            known.replaying.store(replaying, Ordering::Relaxed);
        }
        if !replaying {
            self.idle.notify_waiters();
        }
    }

    /// Begins an attempt and cancels the earlier ones of the same server: the coordinator has
    /// given them up, unless they answer reads (REC-5). `None` when it is under way already.
    /// `prepare` runs while no other attempt can begin; on its error nothing has begun.
    pub(crate) fn begin<E>(
        &self,
        key: AttemptKey,
        prepare: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<Arc<Cancellation>>, E> {
        let mut map = self.map();
        if map.contains_key(&key) {
            return Ok(None);
        }
        for (earlier, known) in map.iter() {
            let is_earlier = earlier.crashed == key.crashed && earlier.recovery < key.recovery;
            if is_earlier && !known.reads.load(Ordering::Relaxed) {
                known.cancellation.cancel();
            }
        }
        prepare()?;
        let cancellation = Arc::new(Cancellation::new("nobody waits for it any longer"));
        let known = Known {
            cancellation: Arc::clone(&cancellation),
            replaying: AtomicBool::new(false),
            replayed: AtomicBool::new(false),
            reads: AtomicBool::new(false),
        };
        map.insert(key, known);
        Ok(Some(cancellation))
    }

    /// Cancels the attempts for servers that are not `in_list`: what they had is served
    /// elsewhere.
    pub(crate) fn cancel_unless(&self, in_list: impl Fn(ServerId) -> bool) {
        for (key, known) in self.map().iter() {
            if !in_list(key.crashed) {
                known.cancellation.cancel();
            }
        }
    }

    /// It has ended.
    pub(crate) fn end(&self, key: &AttemptKey) {
        self.map().remove(key);
        self.idle.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

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

    // shows: REC-5
    #[test]
    fn a_later_attempt_leaves_one_that_answers_reads() {
        let attempts = Attempts::default();
        let earlier = begin(&attempts, key(1, 10, 0)).expect("new");
        attempts.reads(&key(1, 10, 0));
        begin(&attempts, key(1, 11, 0)).expect("new");
        assert_eq!(earlier.check(), Ok(()));
        attempts.cancel_unless(|_| false);
        assert!(earlier.check().is_err());
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

    #[test]
    fn a_later_partition_of_a_recovery_lets_earlier_ones_pass() {
        let _marks = pluvio_units::Marks::to_reach(&["recovery-lets-first-part-pass"]);
        let attempts = Attempts::default();
        let keys = [key(1, 10, 0), key(1, 10, 1), key(1, 11, 1), key(2, 12, 1)];
        let [first, second, other_attempt, other_server] = keys;
        for known in keys {
            begin(&attempts, known).expect("new");
        }
        let turn = |key| attempts.turn(key, Passing::Ready).now_or_never();
        let whole = |key| attempts.turn(key, Passing::Whole).now_or_never();
        let replaying = turn(first).expect("nothing comes before it");
        assert!(turn(second).is_none());
        assert!(turn(other_attempt).is_some() && turn(other_server).is_some());
        let mut waiting = core::pin::pin!(attempts.turn(second, Passing::Ready));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(replaying);
        let replaying = waiting
            .now_or_never()
            .expect("the first one waits for data");
        assert!(whole(second).is_none());
        // What has begun is not taken back.
        let _first = turn(first).expect("nothing comes before it");
        drop(replaying);
        assert!(turn(second).is_none() && whole(second).is_none());
        attempts.replayed(&first);
        assert!(whole(second).is_some());
        attempts.end(&first);
        assert!(turn(second).is_some());
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
