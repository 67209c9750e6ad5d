//! Opening heads.
//!
//! Every head begins with one group: segment header, log digest, table statistics, safe version.
//!
//! - LOG-9: there is a head at all times, and its digest lists every segment of the log: a new head
//!   is written before the old one is closed.
//! - LOG-10: an emergency head holds nothing but its first group, so it needs no cleaning: the next
//!   head's digest does not list it.

use crate::append::current;
use crate::durable::Durability;
use crate::error::{AppendError, FullReason};
use crate::log_state::{LogState, Members};
use crate::segment::{NewSegment, Segment};
use crate::space::LogSpace;
use crate::writer::SegmentWriter;
use core::sync::atomic::Ordering;
use pluvio_format::{
    Encoded, Entry, FORMAT_VERSION, LogDigest, SegmentHeader, SegmentKind, TableStats,
};
use pluvio_memory::SegletClass;
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::sync::Arc;

/// What a new segment gets from its opener.
pub(crate) struct Opening {
    pub kind: SegmentKind,
    pub emergency: bool,
    pub slot: u32,
    pub seglets: Vec<u32>,
}

impl LogSpace {
    /// Opens a new head now, so that its digest tells of every change, even when memory is full.
    /// The commit of a side log, the cleaner, and whoever wants a position after which everything
    /// lies in a new segment (003 §7) need it. Returns the end of the new head's first group.
    ///
    /// # Errors
    /// [`AppendError::Full`] when even the emergency reserve is in use; it comes back when the
    /// digest before is durable. Or when nothing leaves with this digest, and the last slots are
    /// kept for those by which segments leave.
    pub fn roll(&self, log: LogId) -> Result<LogPosition, AppendError> {
        let state = self.log(log);
        let mut head = state.head();
        self.roll_to_publish(state, &mut head)
            .map_err(|why| self.full(why))?;
        let position = current(&mut head).position();
        drop(head);
        LogState::call(&state.append_hook);
        Ok(position)
    }

    pub(crate) fn open_first_head(&self, log: &LogState) {
        let mut head = log.head();
        self.roll_for_append(log, &mut head, 0)
            .expect("an empty memory has room for a head in every log");
    }

    /// A head for appends, which leaves `leave` seglets of the default pool.
    pub(crate) fn roll_for_append(
        &self,
        log: &LogState,
        head: &mut Option<SegmentWriter>,
        leave: usize,
    ) -> Result<(), FullReason> {
        let slot = self.slot_for_appends().ok_or(FullReason::Segments)?;
        self.roll_with(log, head, slot, |count| {
            Some((self.take_default(log.id, count, leave)?, false))
        })?;
        self.heads_filled.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A slot for a segment of appends, which has to fit the disks of the backups as well (000
    /// §5.2). Survivors and emergency heads may go beyond: they are what makes the log shorter
    /// again.
    pub(crate) fn slot_for_appends(&self) -> Option<u32> {
        let with_it = self.disk_bytes() + u64::from(self.geometry.segment_bytes());
        if with_it > self.geometry.disk_bytes_max {
            return None;
        }
        let slot = self.take_slots(1, self.geometry.slots_reserve);
        slot.map(|slots| slots[0])
    }

    /// A head whose purpose is its digest: an ordinary one while there is memory, otherwise an
    /// emergency head.
    pub(crate) fn roll_to_publish(
        &self,
        log: &LogState,
        head: &mut Option<SegmentWriter>,
    ) -> Result<(), FullReason> {
        // What leaves with the digest gives back at least the slot that its head takes. A digest
        // that nothing leaves with has to keep away from the slots of those, and from the one that
        // each cleaner needs to make segments fewer.
        let frees = current(head).segment().is_emergency() || !log.members().leaving.is_empty();
        let leave = if frees {
            0
        } else {
            self.geometry.slots_of_digests + usize::from(self.options.cleaners)
        };
        let slot = self.take_slots(1, leave).ok_or(FullReason::Segments)?[0];
        self.roll_with(log, head, slot, |count| {
            let ordinary = self.take_default(log.id, count, self.geometry.delete_reserve);
            let emergency = || self.take_reserved(log.id, SegletClass::Emergency, count);
            match ordinary {
                Some(seglets) => Some((seglets, false)),
                None => Some((emergency()?, true)),
            }
        })?;
        let counters = &self.cleaner_counters;
        counters.forced_digests.fetch_add(1, Ordering::Relaxed);
        if current(head).segment().is_emergency() {
            pluvio_units::mark("log-emergency-head");
            counters.emergency_heads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Opens the head with seglets from `take`, which also says whether they make an emergency
    /// head.
    fn roll_with(
        &self,
        log: &LogState,
        head: &mut Option<SegmentWriter>,
        slot: u32,
        take: impl FnOnce(usize) -> Option<(Vec<u32>, bool)>,
    ) -> Result<(), FullReason> {
        let stats = self.table_stats();
        let mut members = log.members();
        let old = head.as_ref().map(|writer| Arc::clone(writer.segment()));
        let retiring = old.as_ref().filter(|old| old.is_emergency());
        let count = self
            .head_bytes(log, &members, &stats)
            .div_ceil(SEGLET_BYTES);
        let Some((seglets, emergency)) = take(count) else {
            drop(members);
            self.give_back_slots([slot]);
            return Err(FullReason::Seglets);
        };
        let opening = Opening {
            kind: SegmentKind::Head,
            emergency,
            slot,
            seglets,
        };
        let listed: Vec<SegmentId> = members
            .in_log
            .keys()
            .copied()
            .filter(|id| retiring.is_none_or(|old| old.id() != *id))
            .collect();
        self.check_listed(&members);
        let count = listed.len();
        let writer = self.open_segment(log, opening, |id, created_s| {
            self.head_entries(log, id, created_s, listed, stats)
        });
        self.change_head(&mut members, &writer, old);
        assert!(
            members.in_log.len() == count + 1
                && members.in_log.contains_key(&writer.segment().id()),
            "LOG-9: the digest of head {} lists {count} segments beside it, the log has {}",
            writer.segment().id(),
            members.in_log.len()
        );
        *head = Some(writer);
        Ok(())
    }

    /// What joined the log beside its heads is durable.
    fn check_listed(&self, members: &Members) {
        match self.options.durability {
            Durability::Volatile => {}
            Durability::Replicated => {
                let joined = |s: &&Arc<Segment>| match s.kind() {
                    SegmentKind::Head => false,
                    SegmentKind::Side => true,
                };
                for side in members.in_log.values().filter(joined) {
                    assert!(
                        side.is_marked_durable(),
                        "LOG-11, CLEAN-3: a digest is to list segment {}, which is not durable",
                        side.id()
                    );
                }
            }
        }
    }

    /// Closes the old head and makes the new one a member; its digest is written.
    fn change_head(
        &self,
        members: &mut Members,
        writer: &SegmentWriter,
        old: Option<Arc<Segment>>,
    ) {
        let new = writer.segment();
        let mut dropped = core::mem::take(&mut members.leaving);
        if let Some(old) = old {
            assert!(
                old.id() < new.id() && !new.is_closed(),
                "LOG-9: head {} comes after head {}",
                new.id(),
                old.id()
            );
            self.close_segment(&old);
            if old.is_emergency() {
                assert_eq!(
                    old.appended_len(),
                    old.opening_len(),
                    "LOG-10: the emergency head {} has entries",
                    old.id()
                );
                members.in_log.remove(&old.id());
                old.set_leaving();
                dropped.push(old);
            }
        }
        members.in_log.insert(new.id(), Arc::clone(new));
        members.unpublished = false;
        if !dropped.is_empty() {
            members.dropped_by.push_back((new.id(), dropped));
        }
        match self.options.durability {
            Durability::Volatile => self.drop_published(members, new.id()),
            Durability::Replicated => {}
        }
    }

    /// Makes a segment, writes its first group, and shows it to replication.
    pub(crate) fn open_segment(
        &self,
        log: &LogState,
        opening: Opening,
        first_group: impl FnOnce(SegmentId, u32) -> Vec<Entry<'static>>,
    ) -> SegmentWriter {
        let created_s = self.newest_s();
        // The id is given out under the queue's lock, so that the queue is in the order of ids.
        let mut queue = log.queue();
        let id = self.next_segment_id();
        let segment = Arc::new(Segment::new(
            Arc::clone(&self.memory),
            NewSegment {
                id,
                log: log.id,
                kind: opening.kind,
                created_s,
                emergency: opening.emergency,
                slot: opening.slot,
                durability: self.options.durability,
                disk_len: self.geometry.segment_bytes(),
            },
        ));
        let mut writer = SegmentWriter::new(Arc::clone(&segment), Arc::clone(&self.memory));
        writer.extend(opening.seglets);
        let entries = first_group(id, created_s);
        let last = entries.len() - 1;
        for (i, entry) in entries.iter().enumerate() {
            let encoded = Encoded::new(entry, i < last).expect("ids ascend and all is in bounds");
            writer.put(&encoded.parts());
        }
        segment.set_opening(writer.at());
        writer.publish();
        self.register(&segment);
        match self.options.durability {
            Durability::Volatile => {}
            Durability::Replicated => {
                let newest = queue.back().map(|newest| newest.id());
                assert!(
                    newest.is_none_or(|newest| newest < id),
                    "LOG-3: segment {id} comes after {newest:?}"
                );
                queue.push_back(segment);
            }
        }
        writer
    }

    /// The header of any segment.
    pub(crate) fn segment_header(
        &self,
        log: LogId,
        kind: SegmentKind,
        segment: SegmentId,
        created_s: u32,
    ) -> Entry<'static> {
        Entry::SegmentHeader(SegmentHeader {
            format_version: FORMAT_VERSION,
            cluster: self.options.cluster,
            server: self.options.server,
            log,
            segment,
            kind,
            created_s,
        })
    }

    fn head_entries(
        &self,
        log: &LogState,
        id: SegmentId,
        created_s: u32,
        mut listed: Vec<SegmentId>,
        stats: TableStats,
    ) -> Vec<Entry<'static>> {
        // Side segments may have been opened later than the newest member, never later than `id`.
        listed.push(id);
        let digest = LogDigest {
            log: log.id,
            logs_of_master: self.options.logs,
            segments: listed,
        };
        vec![
            self.segment_header(log.id, SegmentKind::Head, id, created_s),
            Entry::LogDigest(digest),
            Entry::TableStats(stats),
            Entry::SafeVersion(self.safe_version()),
        ]
    }

    /// Bytes of the first group of a head opened now, or a few more.
    fn head_bytes(&self, log: &LogState, members: &Members, stats: &TableStats) -> usize {
        let listed = members.in_log.keys().copied().collect();
        let id = SegmentId(u64::MAX >> 1);
        let entries = self.head_entries(log, id, u32::MAX, listed, stats.clone());
        let lens = entries.iter().map(|entry| {
            let encoded = Encoded::new(entry, true).expect("ids ascend and all is in bounds");
            encoded.len()
        });
        self.memory.packing().end_after(0, lens) as usize
    }

    /// Bytes of the first group of the next head, or a few more.
    pub(crate) fn head_entries_bound(&self, log: &LogState) -> u32 {
        let stats = self.table_stats();
        self.head_bytes(log, &log.members(), &stats) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::AppendClass;
    use crate::options::LogOptions;
    use crate::side_log::SideLog;
    use pluvio_units::{ObjectVersion, Size};

    #[test]
    fn heads_that_are_refused_do_not_make_a_store_look_busy() {
        let space = LogSpace::new(LogOptions::new(Size::mib(32))).expect("enough memory");
        let filled = || space.heads_filled.load(Ordering::Relaxed);
        let before = filled();
        space.set_seglet_gate(Box::new(|_, _| false));
        let state = space.log(LogId(0));
        let refused = space.roll_for_append(state, &mut state.head(), 0);
        assert_eq!(refused, Err(FullReason::Seglets));
        assert_eq!(filled(), before);
    }

    #[test]
    fn digests_that_nothing_leaves_with_keep_away_from_the_slots_of_others() {
        let space = LogSpace::new(LogOptions::new(Size::mib(32))).expect("enough memory");
        let log = LogId(0);
        let mut side = SideLog::new(Arc::clone(&space), log);
        let entry = Entry::SafeVersion(ObjectVersion(1));
        let appended = side.append(&[entry], AppendClass::Internal, &space.pin());
        appended.expect("there is room");
        let committed = side.commit().expect("a volatile side log is durable");
        while space.roll(log).is_ok() {}
        let left = space.geometry.slots_of_digests + usize::from(space.options.cleaners);
        assert_eq!(space.free_slot_count(), left);
        let unknown = space.drop_committed(log, committed.pending());
        assert!(unknown.is_empty());
        space.roll(log).expect("something leaves with this digest");
    }
}
