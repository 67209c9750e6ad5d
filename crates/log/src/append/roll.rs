//! Opening heads.
//!
//! Every head begins with one group: segment header, log digest, table statistics, safe version.
//!
//! - LOG-9: there is a head at all times, and its digest lists every segment of the log. A new head
//!   is written before the old one is closed.
//! - LOG-17: a spare log is opened with a head of its own. Heads of other logs count it only once
//!   that head is durable, so recovery never waits for a head that was nowhere. Nothing is appended
//!   there before a head of another log is durable that counts it. So no recovery overlooks it.
//! - LOG-10: an emergency head holds nothing but its first group, so it needs no cleaning: the next
//!   head's digest does not list it.

use super::heads::{Heads, current};
use super::log_state::{LogState, Members};
use super::writer::SegmentWriter;
use crate::durable::Durability;
use crate::error::{AppendError, FullReason};
use crate::segments::{Departure, NewSegment, Purpose, Segment};
use core::sync::atomic::Ordering;
use pluvio_format::{Encoded, Entry, SegmentKind, TableStats};
use pluvio_memory::SegletClass;
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::sync::Arc;

/// What a new segment gets from its opener.
pub(crate) struct Opening {
    pub kind: SegmentKind,
    pub purpose: Purpose,
    pub slot: u32,
    pub seglets: Vec<u32>,
}

impl Heads {
    /// Opens a new head now, so that its digest tells of every change, even when memory is full.
    /// Returns the end of the new head's first group.
    ///
    /// # Errors
    /// [`AppendError::Full`]; see [`LogSpace::roll`](crate::LogSpace::roll).
    pub(crate) fn roll(&self, log: LogId) -> Result<LogPosition, AppendError> {
        let state = self.log(log);
        let mut head = state.head();
        self.roll_to_publish(state, &mut head)
            .map_err(|why| self.admission.full(why))?;
        let position = current(&mut head).position();
        drop(head);
        LogState::call(&state.append_hook);
        Ok(position)
    }

    pub(super) fn open_first_heads(&self) {
        for log in self.logs() {
            self.roll_for_append(log, &mut log.head(), 0)
                .expect("an empty memory has room for a head in every log");
        }
    }

    /// A head for appends, which leaves `leave` seglets of the default pool.
    pub(crate) fn roll_for_append(
        &self,
        log: &LogState,
        head: &mut Option<SegmentWriter>,
        leave: usize,
    ) -> Result<(), FullReason> {
        let slot = self
            .storage
            .slot_for_appends()
            .ok_or(FullReason::Segments)?;
        self.roll_with(log, head, slot, |count| {
            let seglets = self.storage.take_default(log.part, count, leave)?;
            Some((seglets, Purpose::Entries))
        })?;
        self.counters.filled.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A head whose purpose is its digest: an ordinary one while there is memory, otherwise an
    /// emergency head.
    pub(crate) fn roll_to_publish(
        &self,
        log: &LogState,
        head: &mut Option<SegmentWriter>,
    ) -> Result<(), FullReason> {
        // A segment that leaves with the digest gives back at least the slot that its head takes. A
        // digest that nothing leaves with keeps away from the slots of those that do, and from one
        // for each cleaner.
        let frees = current(head).segment().is_emergency() || !log.members().leaving.is_empty();
        let storage = &self.storage;
        let geometry = &storage.geometry;
        let leave = if frees {
            0
        } else {
            geometry.slots.digests + usize::from(storage.options.cleaners)
        };
        let slots = storage.table.take_slots(1, leave);
        let slot = slots.ok_or(FullReason::Segments)?[0];
        self.roll_with(log, head, slot, |count| {
            let ordinary = storage.take_default(log.part, count, geometry.reserves.delete);
            let emergency = || storage.take_reserved(log.part, SegletClass::Emergency, count);
            match ordinary {
                Some(seglets) => Some((seglets, Purpose::Entries)),
                None => Some((emergency()?, Purpose::Digest)),
            }
        })?;
        let counters = &self.counters;
        counters.forced_digests.fetch_add(1, Ordering::Relaxed);
        if current(head).segment().is_emergency() {
            pluvio_units::mark("log-emergency-head");
            counters.emergency_heads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Opens the head with seglets from `take`, which also says what for.
    fn roll_with(
        &self,
        log: &LogState,
        head: &mut Option<SegmentWriter>,
        slot: u32,
        take: impl FnOnce(usize) -> Option<(Vec<u32>, Purpose)>,
    ) -> Result<(), FullReason> {
        let stats = self.first_group.table_stats();
        let mut members = log.members();
        let old = head.as_ref().map(|writer| Arc::clone(writer.segment()));
        let retiring = old.as_ref().filter(|old| old.is_emergency());
        let count = self
            .head_bytes(log, &members, &stats)
            .div_ceil(SEGLET_BYTES);
        let Some((seglets, purpose)) = take(count) else {
            drop(members);
            self.storage.table.give_back_slots([slot]);
            return Err(FullReason::Seglets);
        };
        let opening = Opening {
            kind: SegmentKind::Head,
            purpose,
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
            self.first_group
                .entries(&self.storage, log, (id, created_s), listed, stats)
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

    /// Side segments that joined the log are durable.
    fn check_listed(&self, members: &Members) {
        match self.storage.options.durability {
            Durability::Volatile => {}
            Durability::Replicated => {
                let joined = |s: &&Arc<Segment>| match s.kind() {
                    SegmentKind::Head => false,
                    SegmentKind::Side => true,
                };
                for side in members.in_log.values().filter(joined) {
                    assert!(
                        side.state().is_durable(),
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
            self.storage.close_segment(&old);
            if old.is_emergency() {
                assert_eq!(
                    old.appended_len(),
                    old.opening_len(),
                    "LOG-10: the emergency head {} has entries",
                    old.id()
                );
                members.in_log.remove(&old.id());
                old.leave(Departure::Dropped);
                dropped.push(old);
            }
        }
        members.in_log.insert(new.id(), Arc::clone(new));
        members.unpublished = false;
        if !dropped.is_empty() {
            members.dropped_by.push_back((new.id(), dropped));
        }
        match self.storage.options.durability {
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
        let storage = &self.storage;
        let created_s = storage.clock.now_s();
        // The id is given out under the queue's lock, so that the queue is in the order of ids.
        let mut queue = log.queue();
        let id = storage.table.next_id();
        let segment = Arc::new(Segment::new(
            Arc::clone(&storage.memory),
            NewSegment {
                id,
                log: log.id,
                kind: opening.kind,
                created_s,
                purpose: opening.purpose,
                slot: opening.slot,
                durability: storage.options.durability,
                disk_len: storage.geometry.segment_bytes(),
            },
        ));
        let mut writer = SegmentWriter::new(Arc::clone(&segment), Arc::clone(&storage.memory));
        writer.extend(opening.seglets);
        let entries = first_group(id, created_s);
        let last = entries.len() - 1;
        for (i, entry) in entries.iter().enumerate() {
            let encoded = Encoded::new(entry, i < last).expect("ids ascend and all is in bounds");
            writer.put(&encoded.parts());
        }
        segment.set_opening(writer.at());
        writer.publish();
        storage.table.add(&segment);
        match self.storage.options.durability {
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

    /// Bytes of the first group of a head opened now, or a few more.
    pub(super) fn head_bytes(
        &self,
        log: &LogState,
        members: &Members,
        stats: &TableStats,
    ) -> usize {
        let listed = members.in_log.keys().copied().collect();
        self.first_group.bytes(&self.storage, log, listed, stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::{AppendClass, SideLog};
    use crate::options::LogOptions;
    use crate::space::LogSpace;
    use pluvio_format::{Check, Parsed};
    use pluvio_units::{ObjectVersion, Size};

    #[test]
    fn heads_that_are_refused_do_not_make_a_store_look_busy() {
        let space = LogSpace::new(LogOptions::new(Size::mib(32))).expect("enough memory");
        let filled = || space.heads.counters.filled.load(Ordering::Relaxed);
        let before = filled();
        space.set_seglet_gate(Box::new(|_, _| false));
        let state = space.heads.log(LogId(0));
        let refused = space.heads.roll_for_append(state, &mut state.head(), 0);
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
        let left =
            space.storage().geometry.slots.digests + usize::from(space.storage().options.cleaners);
        assert_eq!(space.storage().table.free_slot_count(), left);
        let unknown = space.drop_committed(log, committed.pending());
        assert!(unknown.is_empty());
        space.roll(log).expect("something leaves with this digest");
    }

    // shows: LOG-17
    #[test]
    fn heads_count_a_spare_log_when_they_are_told_to() {
        let mut options = LogOptions::new(Size::mib(32));
        (options.durability, options.spare_logs) = (Durability::Replicated, 2);
        let space = LogSpace::new(options).expect("enough memory");
        assert_eq!(space.logs().collect::<Vec<_>>(), [LogId(0)]);
        assert_eq!(space.all_logs().count(), 3);
        let counted = |log| {
            let head = space.segments(log).pop().expect("it has a head");
            let bytes = head.copy_out(0..head.appended_len());
            let bytes = bytes.expect("nobody frees it");
            let mut at = 0;
            loop {
                let parsed = Parsed::read(&bytes[at..], Check::Checksum).expect("it is whole");
                match parsed.entry {
                    Entry::LogDigest(digest) => return digest.logs_of_master,
                    _ => at += parsed.head.total_len(),
                }
            }
        };
        assert_eq!(counted(LogId(0)), 1);
        assert_eq!(space.open_log().expect("there is room"), Some(LogId(1)));
        assert_eq!((counted(LogId(1)), space.counted_logs()), (2, 1));
        space.roll(LogId(0)).expect("there is room");
        assert_eq!(counted(LogId(0)), 1, "its head is durable nowhere yet");
        space.raise_logs(2);
        space.roll(LogId(0)).expect("there is room");
        assert_eq!(counted(LogId(0)), 2);
    }
}
