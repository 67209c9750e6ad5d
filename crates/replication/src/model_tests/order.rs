//! The order in which things must be done, whatever recovery would find.

use super::World;
use super::backup::{Frame, ModelBackup};
use pluvio_units::{LogPosition, SegmentId, ServerId};
use std::collections::BTreeSet;

impl World {
    /// REP-2: all heads but the predecessor of a new one are durably closed.
    pub(super) fn check_head_begun(&self, head: SegmentId) {
        let older = self.heads.iter().take_while(|id| **id < head);
        let older: Vec<SegmentId> = older.copied().collect();
        for id in older.split_last().map_or(&[][..], |(_, before)| before) {
            let closed = self.closed_on.get(id).map_or(0, BTreeSet::len);
            let whole = self.segments.get(id).is_none_or(|s| {
                self.durable
                    >= LogPosition {
                        segment: *id,
                        offset: s.length,
                    }
            });
            assert!(
                whole && closed >= self.min_replicas as usize,
                "REP-2: {head} is opened, and {id} is closed on {closed} backups\n{}",
                self.describe()
            );
        }
    }

    /// REP-9: a place in a segment that belongs to the log is given back when as many others as
    /// wanted have all of it.
    pub(super) fn check_free(&self, server: ServerId, id: SegmentId) {
        let Some(segment) = self.segments.get(&id) else {
            return;
        };
        let whole = |frame: &Frame| {
            frame.closed && frame.certified == frame.image.unwrap_or(segment.length)
        };
        let others = self.backups.iter().filter(|(other, _)| **other != server);
        let has = |(other, b): &(&ServerId, &ModelBackup)| {
            let untold = self.untold.contains(&(**other, id));
            let lost = b.lost.get(&id).filter(|_| untold);
            b.frames.get(&id).or(lost).is_some_and(whole)
        };
        let count = others.filter(has).count();
        assert!(
            count >= self.replicas as usize,
            "REP-9: {id} is freed on {server}, and {count} others have it\n{}",
            self.describe()
        );
    }
}
