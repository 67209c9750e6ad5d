//! One segment as replication, cleaner and side logs see it.
//!
//! A segment is opened, appended to by its one writer, closed, and later dropped from the log and
//! freed. `state` has the table of its states and of the parties that have it. Its seglets are
//! taken one by one while it grows: a head that is closed early, or a short survivor, wastes less
//! than one.
//!
//! Compaction exchanges the bytes of a closed segment for fewer: the same segment to recovery, for
//! which either is a valid replica. A party that copies a segment in several pieces holds its bytes
//! meanwhile ([`Segment::hold_bytes`]).

use super::contents::Contents;
use super::state::{Departure, Life, SegmentState, Use, Uses};
use super::tombstones::{TombstoneTargets, Tombstones};
use crate::durable::Durability;
use crate::error::Corruption;
use crate::memory::LogMemory;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pluvio_format::{ParseErrorKind, SegmentKind, check_piece};
use pluvio_memory::ReclaimStamp;
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::sync::{Arc, OnceLock};

/// What a segment is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To hold entries.
    Entries,
    /// Only to publish a digest: it takes no entries and leaves with the next head (LOG-10).
    Digest,
}

/// With how many live bytes cleaning a segment alone gained nothing.
struct Barren(AtomicU32);

impl Barren {
    const NEVER: u32 = u32::MAX;

    fn note(&self, live_bytes: u64) {
        let live_bytes = u32::try_from(live_bytes).unwrap_or(Self::NEVER);
        self.0.store(live_bytes, Ordering::Relaxed);
    }

    fn covers(&self, live_bytes: u64) -> bool {
        live_bytes >= u64::from(self.0.load(Ordering::Relaxed))
    }
}

/// See the module. Shared; the log owns its state. Heads of two cores share no cache line.
#[repr(align(64))]
pub struct Segment {
    id: SegmentId,
    log: LogId,
    kind: SegmentKind,
    created_s: u32,
    purpose: Purpose,
    slot: u32,
    contents: Contents,
    opening: AtomicU32,
    life: Life,
    uses: Uses,
    /// Once every guard from before this stamp is gone, no writer is between append and index
    /// update in this segment. Set when it is closed.
    settling: OnceLock<ReclaimStamp>,
    tombstones: Tombstones,
    /// Bytes of a replica that was never exchanged for a shorter one: what the log on disk is
    /// charged with.
    disk_len: AtomicU32,
    barren: Barren,
    /// See [`Segment::is_held_back`].
    held_back: AtomicBool,
}

/// What a segment is made from.
pub(crate) struct NewSegment {
    pub id: SegmentId,
    pub log: LogId,
    pub kind: SegmentKind,
    pub created_s: u32,
    pub purpose: Purpose,
    pub slot: u32,
    pub durability: Durability,
    /// The bytes that the log on disk is charged with until the segment is closed.
    pub disk_len: u32,
}

impl Segment {
    pub(crate) fn new(memory: Arc<LogMemory>, new: NewSegment) -> Self {
        let bytes_held = match new.durability {
            Durability::Volatile => false,
            Durability::Replicated => true,
        };
        Self {
            id: new.id,
            log: new.log,
            kind: new.kind,
            created_s: new.created_s,
            purpose: new.purpose,
            slot: new.slot,
            contents: Contents::new(memory),
            opening: AtomicU32::new(0),
            life: Life::new(),
            uses: Uses::new(bytes_held),
            settling: OnceLock::new(),
            tombstones: Tombstones::default(),
            disk_len: AtomicU32::new(new.disk_len),
            barren: Barren(AtomicU32::new(Barren::NEVER)),
            held_back: AtomicBool::new(false),
        }
    }

    /// Whether replication is to leave what is appended alone for a while, because something else
    /// is more urgent. Only a hint: nothing rests on it.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.held_back.load(Ordering::Relaxed)
    }

    pub(crate) fn hold_back(&self, held: bool) {
        self.held_back.store(held, Ordering::Relaxed);
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// The log it belongs to.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Head or side segment.
    #[must_use]
    pub fn kind(&self) -> SegmentKind {
        self.kind
    }

    /// Seconds of the cluster's time when it was opened.
    #[must_use]
    pub fn created_s(&self) -> u32 {
        self.created_s
    }

    /// Bytes appended. Only grows, always from the end of one group to the end of another, so that
    /// every value is one to certify. A closed segment whose bytes nobody holds can become shorter:
    /// the new length and bytes are those of an equally valid replica.
    #[must_use]
    pub fn appended_len(&self) -> u32 {
        self.contents.len()
    }

    /// Bytes of the first group: for a head its header, digest, statistics and safe version. Until
    /// the head before it is durably closed, replication writes no more of a new head than this.
    #[must_use]
    pub fn opening_len(&self) -> u32 {
        // Set before anybody else has the segment.
        self.opening.load(Ordering::Relaxed)
    }

    /// The position behind everything appended.
    #[must_use]
    pub fn end(&self) -> LogPosition {
        LogPosition {
            segment: self.id,
            offset: self.appended_len(),
        }
    }

    /// Whether nothing more will be appended. Once true, [`Self::appended_len`] is final as long as
    /// the bytes are held.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // A thread that sees the state sees the last appended length.
        self.state().is_closed()
    }

    /// Bytes of memory it takes, in whole seglets.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.contents.seglets() * SEGLET_BYTES) as u64
    }

    /// Replication: this side segment is closed and every replica has all of it. Nothing for heads,
    /// whose progress is [`LogSpace::advance_durable`](crate::LogSpace::advance_durable).
    ///
    /// # Panics
    /// When the segment is open.
    pub fn mark_durable(&self) {
        self.life.make_durable();
    }

    /// Replication: keeps the bytes as they are until [`Self::release_bytes`], because they are
    /// copied out in pieces. False while they are being exchanged: ask again later. A segment of a
    /// replicated log is born with its bytes held. To be called by one party only.
    #[must_use]
    pub fn hold_bytes(&self) -> bool {
        self.uses.hold_bytes()
    }

    /// Replication: every replica there should be is there and closed; the bytes may be exchanged
    /// for fewer in memory.
    pub fn release_bytes(&self) {
        self.uses.release_bytes();
    }

    /// Copies bytes out for a backup. `None` when the segment was freed meanwhile: then nobody
    /// needs them any more.
    ///
    /// # Panics
    /// When the range is not below [`Self::appended_len`].
    #[must_use]
    pub fn copy_out(&self, range: Range<u32>) -> Option<Vec<u8>> {
        let mut copy = Vec::new();
        self.copy_into(range, &mut copy).then_some(copy)
    }

    /// As [`Self::copy_out`], behind what is in `into`. False when the segment was freed meanwhile:
    /// then nobody needs them any more, and nothing was copied.
    ///
    /// # Panics
    /// When the range is not below [`Self::appended_len`].
    #[must_use]
    pub fn copy_into(&self, range: Range<u32>, into: &mut Vec<u8>) -> bool {
        self.contents
            .copy_into(range, into, || self.state().is_freed())
    }

    /// [`Self::copy_out`] for a replica that is written anew, of what others may have had for long:
    /// the checksum of every entry is compared. `from`, not behind the range, is where an entry or
    /// padding begins. Gives the bytes, and where the next copy has to begin to look. An entry that
    /// the range cuts off is compared by the next copy, as this one compares that of the last.
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken; the process must stop. Nothing of the copy may be used.
    ///
    /// # Panics
    /// When the range is not below [`Self::appended_len`], or `from` is behind its start.
    pub fn copy_checked(
        &self,
        from: u32,
        range: Range<u32>,
    ) -> Option<Result<(Vec<u8>, u32), Corruption>> {
        let mut bytes = self.copy_out(from..range.end)?;
        let checked = check_piece(&bytes, from as usize, SEGLET_BYTES);
        Some(match checked {
            Ok(next) => {
                bytes.drain(..(range.start - from) as usize);
                Ok((bytes, next as u32))
            }
            Err(error) => Err(self.corruption(error.offset as u32, error.kind)),
        })
    }

    /// That the entry at `offset` is broken.
    #[must_use]
    pub fn corruption(&self, offset: u32, what: ParseErrorKind) -> Corruption {
        Corruption {
            entry: self.contents.entry_at(offset),
            segment: self.id,
            offset,
            what,
        }
    }

    /// Its bytes and the seglets they lie in.
    #[inline]
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> SegmentState {
        self.life.get()
    }

    #[inline]
    pub(crate) fn is_emergency(&self) -> bool {
        match self.purpose {
            Purpose::Entries => false,
            Purpose::Digest => true,
        }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn set_appended(&self, len: u32) {
        debug_assert!(
            len >= self.appended_len() && !self.is_closed(),
            "LOG-1: {self:?} does not end at {len}"
        );
        self.contents.set_len(len);
    }

    pub(crate) fn set_opening(&self, len: u32) {
        self.opening.store(len, Ordering::Relaxed);
    }

    /// Nothing more is appended. `stamp` is asked for the epoch after which all that was appended
    /// has reached the index, or never will.
    pub(crate) fn close(&self, stamp: impl FnOnce() -> ReclaimStamp) {
        self.life.close();
        let is_first = self.settling.set(stamp()).is_ok();
        assert!(is_first, "LOG-2: segment {} is closed twice", self.id);
    }

    /// The next digest will not list it.
    pub(crate) fn leave(&self, why: Departure) {
        self.life.leave(why);
    }

    /// It is gone from disk.
    pub(crate) fn free(&self) {
        self.life.free();
    }

    /// Which parties have it.
    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Bytes the log on disk is charged with for it.
    pub(crate) fn disk_len(&self) -> u32 {
        self.disk_len.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disk_len(&self, len: u32) {
        self.disk_len.store(len, Ordering::Relaxed);
    }

    /// Cleaning it alone gains nothing with this many live bytes.
    pub(crate) fn note_barren(&self, live_bytes: u64) {
        self.barren.note(live_bytes);
    }

    /// Whether cleaning it alone gained nothing, and nothing in it has died since.
    pub(crate) fn is_barren(&self, live_bytes: u64) -> bool {
        self.barren.covers(live_bytes)
    }

    /// Exchanges the bytes for those a compaction wrote: fewer seglets, the same live entries.
    /// Gives the old seglets; readers and copies that began before may still look at them.
    pub(crate) fn exchange(
        &self,
        seglets: Vec<u32>,
        appended: u32,
        tombstones: TombstoneTargets,
    ) -> Vec<u32> {
        assert!(
            self.is_closed() && appended <= self.appended_len(),
            "CLEAN-8: a compaction of segment {} made it longer",
            self.id
        );
        assert!(
            self.uses.get() == Use::Compacting && !self.uses.are_bytes_held(),
            "CLEAN-8: the bytes of segment {} are exchanged while they are held",
            self.id
        );
        self.tombstones.replace(tombstones);
        self.contents.exchange(seglets, appended)
    }

    #[inline]
    pub(crate) fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }

    /// The epoch after which no writer can be between append and index update in this segment;
    /// `None` while it is open.
    pub(crate) fn settled(&self) -> Option<ReclaimStamp> {
        self.settling.get().copied()
    }
}

impl core::fmt::Debug for Segment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.id)
            .field("log", &self.log)
            .field("kind", &self.kind)
            .field("appended", &self.appended_len())
            .field("state", &self.life.get())
            .field("use", &self.uses.get())
            .finish_non_exhaustive()
    }
}
