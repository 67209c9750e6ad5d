//! Recoveries, for people: what is under way, and the latest that ended.

use pluvio_env::Moment;
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{RecoveryStage, RecoveryStatus, ReplayStats};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Finished recoveries that are kept.
const FINISHED_MAX: usize = 32;

/// See the module.
#[derive(Default)]
pub(super) struct History(Mutex<VecDeque<Entry>>);

struct Entry {
    since: Moment,
    status: RecoveryStatus,
}

impl History {
    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        // Held for single steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A recovery begins.
    pub(super) fn begin(&self, crashed: ServerId, address: String, now: Moment) {
        let status = RecoveryStatus {
            recovery: RecoveryId(0),
            crashed,
            address,
            done: false,
            stage: RecoveryStage::Queued,
            attempts: 0,
            duration_ms: 0,
            tablets: 0,
            masters: Vec::new(),
            bytes: 0,
            objects: 0,
            segments: 0,
            planning_us: 0,
            last_partition: ReplayStats::default(),
        };
        self.entries().push_back(Entry { since: now, status });
    }

    /// Changes what is said of a recovery under way.
    pub(super) fn note(&self, crashed: ServerId, change: impl FnOnce(&mut RecoveryStatus)) {
        let mut entries = self.entries();
        if let Some(entry) = entries
            .iter_mut()
            .find(|e| e.status.crashed == crashed && !e.status.done)
        {
            change(&mut entry.status);
        }
    }

    /// A recovery has ended; gives its final status.
    pub(super) fn finish(&self, crashed: ServerId, now: Moment) -> Option<RecoveryStatus> {
        let mut entries = self.entries();
        let entry = entries
            .iter_mut()
            .find(|e| e.status.crashed == crashed && !e.status.done)?;
        entry.status.done = true;
        entry.status.stage = RecoveryStage::Done;
        entry.status.duration_ms = milliseconds(entry.since, now);
        let last = entry.status.clone();
        let finished = entries.iter().filter(|e| e.status.done).count();
        if finished > FINISHED_MAX
            && let Some(oldest) = entries.iter().position(|e| e.status.done)
        {
            entries.remove(oldest);
        }
        Some(last)
    }

    /// All of them, oldest first.
    pub(super) fn list(&self, now: Moment) -> Vec<RecoveryStatus> {
        let status = |e: &Entry| {
            let mut status = e.status.clone();
            if !status.done {
                status.duration_ms = milliseconds(e.since, now);
            }
            status
        };
        self.entries().iter().map(status).collect()
    }
}

fn milliseconds(since: Moment, now: Moment) -> u64 {
    u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn finished_recoveries_are_bounded_and_those_under_way_stay() {
        let history = History::default();
        let now = |ms| Moment(Duration::from_millis(ms));
        history.begin(ServerId(1), "a".into(), now(0));
        for id in 2..50 {
            history.begin(ServerId(id), "b".into(), now(id));
            history.note(ServerId(id), |status| status.attempts += 1);
            let last = history.finish(ServerId(id), now(id + 5)).unwrap();
            assert_eq!((last.attempts, last.duration_ms), (1, 5));
        }
        let list = history.list(now(100));
        assert_eq!(list.len(), FINISHED_MAX + 1);
        assert_eq!((list[0].crashed, list[0].done), (ServerId(1), false));
        assert_eq!(list[0].duration_ms, 100);
        assert_eq!(list[32].crashed, ServerId(49));
        assert_eq!(history.finish(ServerId(2), now(0)), None);
    }
}
