//! Side logs: segments that are written apart from the head and join the log all at once.
//!
//! Recovery and migration replay into a side log. Replicas can be lost, the recovery can be given
//! up, and nothing of it was ever part of the log [RAMCloud §7.8].
//!
//! - LOG-11: a side log's segments are listed by a digest only when each of them is durable.

use super::admission::seglets_left_by;
use super::heads::{Heads, current};
use super::log_state::LogState;
use super::roll::Opening;
use super::writer::SegmentWriter;
use super::{AppendClass, EntryRefs, with_encoded};
use crate::durable::{Appended, Durability};
use crate::error::{AppendError, CommitError, Corruption, FullReason};
use crate::segments::{Departure, Purpose, Segment, compare_checksums};
use crate::space::LogSpace;
use core::time::Duration;
use pluvio_format::{Check, Encoded, Entry, SegmentKind};
use pluvio_memory::EpochGuard;
use pluvio_units::{LogId, SEGLET_BYTES, SegmentId};
use std::sync::Arc;

/// Bytes of a segment header entry: kind, length and checksum, and a body of 37 bytes.
pub(crate) const SIDE_HEADER_BYTES: usize = 43;

/// See the module. Dropping it without [`SideLog::commit`] is [`SideLog::abort`].
pub struct SideLog {
    space: Arc<LogSpace>,
    log: LogId,
    closed: Vec<Arc<Segment>>,
    /// The number of closed segments, from the first on, that were compared with their checksums.
    compared: usize,
    open: Option<SegmentWriter>,
    /// The cleaner is to be kept away also after the commit.
    held: bool,
    /// Replicas are made only when it is closed.
    held_back: bool,
}

/// A commit that was refused, with the side log as it was.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CommitRefused {
    /// Why.
    pub error: CommitError,
    /// To be tried again or aborted.
    pub side_log: SideLog,
}

impl SideLog {
    /// An empty side log for `log`. Takes memory with the first append.
    #[must_use]
    pub fn new(space: Arc<LogSpace>, log: LogId) -> Self {
        Self {
            space,
            log,
            closed: Vec::new(),
            compared: 0,
            open: None,
            held: false,
            held_back: false,
        }
    }

    /// Lets replicas wait until it is closed ([`Self::close`]): what they cost in processor and
    /// disk is needed for what is appended. For a side log that is large, and read before it is
    /// durable.
    pub fn hold_back(&mut self) {
        self.held_back = true;
    }

    /// The log it will join.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// The segments so far; the last one may still be open.
    #[must_use]
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        let open = self.open.as_ref().map(SegmentWriter::segment);
        self.closed.iter().chain(open).cloned().collect()
    }

    /// Appends a group, as [`LogSpace::append`] does. Its durability comes with the commit.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was appended.
    pub fn append(
        &mut self,
        entries: &[Entry<'_>],
        class: AppendClass,
        _guard: &EpochGuard<'_>,
    ) -> Result<EntryRefs, AppendError> {
        let space = Arc::clone(&self.space);
        let (heads, storage) = (&space.heads, space.storage());
        with_encoded(entries, |encoded| {
            let lens = || encoded.iter().map(Encoded::len);
            let capacity = storage.geometry.segment_bytes();
            let packing = storage.memory.packing();
            if packing.end_after(SIDE_HEADER_BYTES as u32, lens()) > capacity {
                return Err(heads.too_large(SIDE_HEADER_BYTES as u32, lens()));
            }
            let leave = seglets_left_by(&storage.geometry, class, encoded);
            let full_up = |writer: &SegmentWriter| writer.end_after(lens()) > capacity;
            if self.open.as_ref().is_none_or(full_up) {
                self.finish_segment();
                let writer = heads.open_side_segment(self.log, leave)?;
                writer.segment().hold_back(self.held_back);
                self.open = Some(writer);
            }
            let writer = self.open.as_mut().expect("opened above");
            let missing = writer.missing_seglets(writer.end_after(lens()));
            if missing > 0 {
                heads.admission.check_live_limit(storage, class, encoded)?;
                let seglets = storage
                    .take_default(heads.log(self.log).part, missing, leave)
                    .ok_or_else(|| heads.admission.full(FullReason::Seglets))?;
                writer.extend(seglets);
            }
            let refs = writer.put_group(entries, encoded);
            LogState::call(&heads.log(self.log).append_hook);
            Ok(refs)
        })
    }

    fn finish_segment(&mut self) {
        if let Some(writer) = self.open.take() {
            self.space.storage().close_segment(writer.segment());
            self.closed.push(Arc::clone(writer.segment()));
        }
    }

    /// Closes the open segment and returns all of them, for replication to finish. More may be
    /// appended afterwards, to a new segment.
    pub fn close(&mut self) -> Vec<Arc<Segment>> {
        self.finish_segment();
        self.held_back = false;
        self.closed.iter().for_each(|s| s.hold_back(false));
        LogState::call(&self.space.heads.log(self.log).append_hook);
        self.closed.clone()
    }

    /// Compares the closed segments whose replicas are closed with their checksums, each once. To
    /// be called from time to time, so that [`Self::compare_rest`] has little left to do.
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken; the process must stop.
    pub fn compare_durable(&mut self) -> Result<(), Corruption> {
        self.compare(|segment| segment.state().is_durable())
    }

    /// Compares with its checksums what was not compared yet. To be done when the replicas have it
    /// and before the commit. Once the replayed segments are freed, replicas made of broken memory
    /// would be the only ones.
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken; the process must stop.
    pub fn compare_rest(&mut self) -> Result<(), Corruption> {
        debug_assert!(
            self.open.is_none(),
            "what is open would be committed uncompared"
        );
        self.compare(|_| true)
    }

    fn compare(&mut self, is_due: fn(&Segment) -> bool) -> Result<(), Corruption> {
        if self.space.memory().possible(Check::Checksum) == Check::Structure {
            return Ok(());
        }
        while let Some(segment) = self.closed.get(self.compared).filter(|s| is_due(s)) {
            compare_checksums(segment)?;
            self.compared += 1;
        }
        Ok(())
    }

    /// Keeps the cleaner away from the segments also once they are committed, until
    /// [`LogSpace::release`] or [`LogSpace::drop_committed`]. For a side log that may have to be
    /// taken back as a whole.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Makes the segments part of the log: a new head is opened whose digest lists them. The
    /// entries are durable once the position returned is. The ids are for
    /// [`LogSpace::drop_committed`].
    ///
    /// The segments are among the log's while the head is opened, which may fail. The cleaner is
    /// kept away from them until it has succeeded, and then as [`Self::hold`] says.
    ///
    /// # Errors
    /// [`CommitRefused`], with the side log: a segment is not durable, or there is no memory for
    /// the digest. Retryable; nothing has changed.
    #[allow(clippy::result_large_err)]
    pub fn commit(mut self) -> Result<Appended<Vec<SegmentId>>, CommitRefused> {
        self.finish_segment();
        if let Some(waiting) = self.first_not_durable() {
            let error = CommitError::NotDurable(waiting);
            return Err(CommitRefused {
                error,
                side_log: self,
            });
        }
        let space = Arc::clone(&self.space);
        let state = space.heads.log(self.log);
        let mut head = state.head();
        {
            let mut members = state.members();
            for segment in &self.closed {
                segment.uses().hold();
                let before = members.in_log.insert(segment.id(), Arc::clone(segment));
                assert!(
                    before.is_none() && segment.is_closed(),
                    "LOG-11: segment {} joins the log as a whole and once",
                    segment.id()
                );
            }
        }
        if space.heads.roll_to_publish(state, &mut head).is_err() {
            let mut members = state.members();
            for segment in &self.closed {
                members.in_log.remove(&segment.id());
            }
            // They stay held: a cleaner may have seen them among the members, and looks at them
            // later.
            drop((members, head));
            let error = CommitError::Full {
                retry_after: Duration::from_millis(2),
            };
            return Err(CommitRefused {
                error,
                side_log: self,
            });
        }
        let position = current(&mut head).position();
        if !self.held {
            self.closed.iter().for_each(|s| s.uses().release());
        }
        drop(head);
        LogState::call(&state.append_hook);
        let ids = self.closed.drain(..).map(|segment| segment.id()).collect();
        Ok(Appended::new(self.log, position, ids))
    }

    fn first_not_durable(&self) -> Option<SegmentId> {
        match self.space.durability() {
            Durability::Volatile => None,
            Durability::Replicated => {
                let waiting = self.closed.iter().find(|s| !s.state().is_durable());
                waiting.map(|segment| segment.id())
            }
        }
    }

    /// Gives the side log up: its memory and its replicas are freed. The index must not point into
    /// it any more.
    pub fn abort(mut self) {
        self.discard();
    }

    fn discard(&mut self) {
        self.finish_segment();
        let mut members = self.space.heads.log(self.log).members();
        for segment in self.closed.drain(..) {
            segment.leave(Departure::Dropped);
            self.space.heads.drop_segment(&mut members, segment);
        }
    }
}

impl Drop for SideLog {
    fn drop(&mut self) {
        self.discard();
    }
}

impl core::fmt::Debug for SideLog {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SideLog")
            .field("log", &self.log)
            .field("segments", &self.segments())
            .finish_non_exhaustive()
    }
}

impl Heads {
    fn open_side_segment(&self, log: LogId, leave: usize) -> Result<SegmentWriter, AppendError> {
        let storage = &self.storage;
        let slot = storage
            .slot_for_appends()
            .ok_or_else(|| self.admission.full(FullReason::Segments))?;
        let count = SIDE_HEADER_BYTES.div_ceil(SEGLET_BYTES);
        let Some(seglets) = storage.take_default(self.log(log).part, count, leave) else {
            storage.table.give_back_slots([slot]);
            return Err(self.admission.full(FullReason::Seglets));
        };
        Ok(self.open_survivor(log, slot, seglets))
    }

    /// A side segment with nothing but its header.
    pub(crate) fn open_survivor(&self, log: LogId, slot: u32, seglets: Vec<u32>) -> SegmentWriter {
        let opening = Opening {
            kind: SegmentKind::Side,
            purpose: Purpose::Entries,
            slot,
            seglets,
        };
        let writer = self.open_segment(self.log(log), opening, |id, created_s| {
            vec![
                self.storage
                    .segment_header(log, SegmentKind::Side, id, created_s),
            ]
        });
        assert_eq!(
            writer.at() as usize,
            SIDE_HEADER_BYTES,
            "plans rest on the length of a segment's header"
        );
        writer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LogOptions;
    use crate::segments::{Use, compare_piece};
    use core::sync::atomic::{AtomicBool, Ordering};
    use pluvio_units::Size;

    // shows: CLEAN-10
    #[test]
    fn a_bit_that_turns_over_in_a_side_log_is_found_before_the_commit() {
        let options = LogOptions {
            durability: Durability::Replicated,
            ..LogOptions::new(Size::mib(64))
        };
        let space = LogSpace::new(options).expect("enough memory");
        let mut side = SideLog::new(Arc::clone(&space), LogId(0));
        let value = vec![7; 300_000];
        let object = Entry::Object(pluvio_format::Object {
            table: pluvio_units::TableId(1),
            version: pluvio_units::ObjectVersion(1),
            timestamp_s: 1,
            graves: pluvio_format::Graves::NONE,
            deadline: None,
            state: pluvio_format::ObjectState::Plain,
            key: b"key",
            value: &value,
        });
        let mut last = None;
        for _ in 0..20 {
            let refs = side.append(
                std::slice::from_ref(&object),
                AppendClass::Replay,
                &space.pin(),
            );
            last = Some(refs.expect("there is room")[0]);
        }
        side.close();
        assert!(side.compare_durable().is_ok(), "nothing is durable yet");
        let segment = Arc::clone(&side.segments()[0]);
        let (mut from, mut pieces) = (0, vec![0]);
        while let Some(next) = compare_piece(&segment, from).expect("memory is right") {
            pieces.push(next);
            from = next;
        }
        let most = pieces.windows(2).map(|piece| piece[1] - piece[0]).max();
        assert!(most <= Some(512 << 10) && pieces.len() > 6, "{pieces:?}");
        assert!(space.flip_bit(last.expect("appended"), 8 * 290_000));
        assert!(side.compare_durable().is_ok(), "nothing is durable yet");
        side.segments().iter().for_each(|s| s.mark_durable());
        assert!(side.compare_durable().is_err());
        assert!(side.compare_rest().is_err());
    }

    #[test]
    fn the_cleaner_gets_no_segment_before_its_commit_has_succeeded() {
        let space = LogSpace::new(LogOptions::new(Size::mib(32))).expect("enough memory");
        let (log, full) = (LogId(0), Arc::new(AtomicBool::new(false)));
        let is_full = Arc::clone(&full);
        space.set_seglet_gate(Box::new(move |_, _| !is_full.load(Ordering::Relaxed)));
        let sides = [false, true].map(|held| {
            let mut side = SideLog::new(Arc::clone(&space), log);
            if held {
                side.hold();
            }
            let entry = Entry::SafeVersion(pluvio_units::ObjectVersion(1));
            let appended = side.append(&[entry], AppendClass::Internal, &space.pin());
            appended.expect("there is room");
            (side, held)
        });
        for (side, held) in sides {
            full.store(true, Ordering::Relaxed);
            let segment = Arc::clone(&side.segments()[0]);
            let is_member = || {
                space
                    .heads
                    .log(log)
                    .members()
                    .in_log
                    .contains_key(&segment.id())
            };
            let refused = side.commit().expect_err("no head can be opened");
            assert!(matches!(refused.error, CommitError::Full { .. }));
            assert_eq!((segment.uses().get(), is_member()), (Use::SideLog, false));
            full.store(false, Ordering::Relaxed);
            let _ = refused.side_log.commit().expect("there is room");
            let is_held = segment.uses().get() == Use::SideLog;
            assert_eq!((is_member(), is_held), (true, held));
        }
    }
}
