//! Recoveries, for people: what is under way, and the latest that ended.

use pluvio_env::Moment;
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{RecoveryStatus, ReplayStats};
use std::collections::VecDeque;

/// Finished recoveries that are kept.
const FINISHED_MAX: usize = 32;

/// See the module.
#[derive(Default)]
pub(crate) struct History(VecDeque<Entry>);

struct Entry {
    since: Moment,
    status: RecoveryStatus,
}

impl History {
    /// A recovery begins.
    pub(crate) fn begin(&mut self, crashed: ServerId, address: String, now: Moment) {
        let status = RecoveryStatus {
            recovery: RecoveryId(0),
            crashed,
            address,
            done: false,
            phase: "waiting for its turn".into(),
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
        self.0.push_back(Entry { since: now, status });
    }

    /// Changes what is said of a recovery under way.
    pub(crate) fn note(&mut self, crashed: ServerId, change: impl FnOnce(&mut RecoveryStatus)) {
        let mut entries = self.0.iter_mut();
        if let Some(entry) = entries.find(|e| e.status.crashed == crashed && !e.status.done) {
            change(&mut entry.status);
        }
    }

    /// A recovery has ended; gives its final status.
    pub(crate) fn finish(&mut self, crashed: ServerId, now: Moment) -> Option<RecoveryStatus> {
        let mut entries = self.0.iter_mut();
        let entry = entries.find(|e| e.status.crashed == crashed && !e.status.done)?;
        entry.status.done = true;
        entry.status.phase = "done".into();
        entry.status.duration_ms = milliseconds(entry.since, now);
        let last = entry.status.clone();
        let finished = self.0.iter().filter(|e| e.status.done).count();
        if finished > FINISHED_MAX
            && let Some(oldest) = self.0.iter().position(|e| e.status.done)
        {
            self.0.remove(oldest);
        }
        Some(last)
    }

    /// All of them, oldest first.
    pub(crate) fn list(&self, now: Moment) -> Vec<RecoveryStatus> {
        let status = |e: &Entry| {
            let mut status = e.status.clone();
            if !status.done {
                status.duration_ms = milliseconds(e.since, now);
            }
            status
        };
        self.0.iter().map(status).collect()
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
        let mut history = History::default();
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
