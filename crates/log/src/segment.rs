//! One segment as replication, cleaner and side logs see it.
//!
//! A segment is opened, appended to by its one writer, closed, and later dropped from the log and
//! freed. Its seglets are taken one by one while it grows, so that a head that is closed early or
//! a survivor that is not full wastes less than one seglet.
//!
//! Compaction exchanges the bytes of a closed segment for fewer: the same segment to recovery, for
//! which either is a valid replica. Who copies a segment in several pieces holds its bytes
//! meanwhile ([`Segment::hold_bytes`]).

use crate::durable::Durability;
use crate::error::Corruption;
use crate::memory::LogMemory;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use pluvio_format::{ParseErrorKind, SegmentKind, check_piece};
use pluvio_memory::ReclaimStamp;
use pluvio_units::{EntryRef, LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// Tombstones of a segment are counted exactly for up to this many segments that they name; what
/// names others is estimated to be alive in the same share. 4 KiB for each segment.
const TARGETS_MAX: usize = 256;

/// How many bytes of tombstones name which segment that is on disk: so the cleaner knows, without
/// reading them, how many died when that segment left the log.
#[derive(Default, Debug)]
pub(crate) struct TombstoneTargets {
    /// Ascending by segment.
    exact: Vec<(SegmentId, u32)>,
    /// What `exact` ever counted.
    exact_ever: u64,
    /// What it counts.
    exact_live: u64,
    other: u64,
}

impl TombstoneTargets {
    pub(crate) fn add(&mut self, target: SegmentId, bytes: u32) {
        let Err(at) = self.exact.binary_search_by_key(&target, |t| t.0).map(|at| {
            self.exact[at].1 += bytes;
        }) else {
            self.count(bytes);
            return;
        };
        if self.exact.len() < TARGETS_MAX {
            self.exact.insert(at, (target, bytes));
            self.count(bytes);
        } else {
            self.other += u64::from(bytes);
        }
    }

    fn count(&mut self, bytes: u32) {
        self.exact_ever += u64::from(bytes);
        self.exact_live += u64::from(bytes);
    }

    /// Segment `target` has left the disk.
    pub(crate) fn forget(&mut self, target: SegmentId) {
        if let Ok(at) = self.exact.binary_search_by_key(&target, |t| t.0) {
            let (_, bytes) = self.exact.remove(at);
            self.exact_live -= u64::from(bytes);
        }
    }

    /// Forgets what names segments that are not there.
    pub(crate) fn keep(&mut self, is_there: impl Fn(SegmentId) -> bool) {
        self.exact.retain(|(target, _)| is_there(*target));
        self.exact_live = self.exact.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
    }

    /// Bytes of tombstones whose segment is there, partly estimated.
    pub(crate) fn live_bytes(&self) -> u64 {
        if self.exact_ever == 0 {
            return self.other;
        }
        let share = u128::from(self.other) * u128::from(self.exact_live);
        self.exact_live + (share / u128::from(self.exact_ever)) as u64
    }
}

/// Bits of [`Segment::uses`]: a cleaner has the segment in a pass.
const CLAIMED: u8 = 1;
/// That pass will exchange its bytes.
const COMPACTING: u8 = 2;
/// Replication needs the bytes as they are.
const BYTES_HELD: u8 = 4;

/// Bytes that are compared with their checksums at once.
const COMPARED_BYTES: u32 = 256 << 10;

/// See the module. Shared; the log owns its state. Heads of two cores share no cache line.
#[repr(align(64))]
pub struct Segment {
    id: SegmentId,
    log: LogId,
    kind: SegmentKind,
    created_s: u32,
    /// Opened only to publish a digest: takes no entries and leaves with the next head.
    emergency: bool,
    slot: u32,
    memory: Arc<LogMemory>,
    seglets: RwLock<Vec<u32>>,
    appended: AtomicU32,
    opening: AtomicU32,
    closed: AtomicBool,
    durable: AtomicBool,
    leaving: AtomicBool,
    held: AtomicBool,
    freed: AtomicBool,
    /// Every live entry was moved elsewhere: nothing may be counted as live when it is freed.
    cleaned: AtomicBool,
    settled: OnceLock<ReclaimStamp>,
    tombstones: Mutex<TombstoneTargets>,
    /// Who works on it: `CLAIMED`, `COMPACTING`, `BYTES_HELD`.
    uses: AtomicU8,
    /// Bytes of a replica that was never exchanged for a shorter one: what the log on disk is
    /// charged with.
    disk_len: AtomicU32,
    /// A compaction found that it would gain nothing with so many live bytes.
    barren_at: AtomicU32,
}

/// What a segment is made from.
pub(crate) struct NewSegment {
    pub id: SegmentId,
    pub log: LogId,
    pub kind: SegmentKind,
    pub created_s: u32,
    pub emergency: bool,
    pub slot: u32,
    pub durability: Durability,
    /// What the log on disk is charged with until the segment is closed.
    pub disk_len: u32,
}

impl Segment {
    pub(crate) fn new(memory: Arc<LogMemory>, new: NewSegment) -> Self {
        let uses = match new.durability {
            Durability::Volatile => 0,
            Durability::Replicated => BYTES_HELD,
        };
        Self {
            id: new.id,
            log: new.log,
            kind: new.kind,
            created_s: new.created_s,
            emergency: new.emergency,
            slot: new.slot,
            memory,
            seglets: RwLock::new(Vec::new()),
            appended: AtomicU32::new(0),
            opening: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            durable: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            held: AtomicBool::new(false),
            freed: AtomicBool::new(false),
            cleaned: AtomicBool::new(false),
            settled: OnceLock::new(),
            tombstones: Mutex::default(),
            uses: AtomicU8::new(uses),
            disk_len: AtomicU32::new(new.disk_len),
            barren_at: AtomicU32::new(u32::MAX),
        }
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
        // Acquire: pairs with `set_appended`; the bytes below are there.
        self.appended.load(Ordering::Acquire)
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
        // Acquire: pairs with `close`; the last appended length is visible.
        self.closed.load(Ordering::Acquire)
    }

    /// Bytes of memory it takes, in whole seglets.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.seglet_count() * SEGLET_BYTES) as u64
    }

    /// Replication: this side segment is closed and every replica has all of it. Nothing for heads,
    /// whose progress is [`LogSpace::advance_durable`](crate::LogSpace::advance_durable).
    pub fn mark_durable(&self) {
        assert!(
            self.is_closed(),
            "LOG-11: segment {} became durable while open",
            self.id
        );
        // Release: pairs with `is_marked_durable`.
        self.durable.store(true, Ordering::Release);
    }

    /// Replication: keeps the bytes as they are until [`Self::release_bytes`], because they are
    /// copied out in pieces. False while they are being exchanged: ask again later. A segment of a
    /// replicated log is born with its bytes held. To be called by one party only.
    #[must_use]
    pub fn hold_bytes(&self) -> bool {
        // Acquire: pairs with the release of `end_pass`, so that the holder sees the new bytes.
        self.uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |uses| {
                (uses & COMPACTING == 0).then_some(uses | BYTES_HELD)
            })
            .is_ok()
    }

    /// Replication: every replica there should be is there and closed; the bytes may be exchanged
    /// for fewer in memory.
    pub fn release_bytes(&self) {
        self.uses.fetch_and(!BYTES_HELD, Ordering::AcqRel);
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
        let guard = self.memory.epochs().pin();
        // SeqCst: the flag was set before the epoch was retired; a guard that does not see it was
        // taken before, so the memory stays while the guard lives.
        if self.freed.load(Ordering::SeqCst) {
            return false;
        }
        let seglets = self.seglets_locked();
        assert!(
            range.start <= range.end && range.end <= self.appended_len(),
            "{range:?} of segment {} is not appended yet",
            self.id
        );
        into.reserve((range.end - range.start) as usize);
        let mut at = range.start as usize;
        while at < range.end as usize {
            let within = at % SEGLET_BYTES;
            let len = (SEGLET_BYTES - within).min(range.end as usize - at);
            // SAFETY: below the appended length, not freed when the guard was taken.
            let bytes = unsafe {
                self.memory
                    .bytes(seglets[at / SEGLET_BYTES], within, len, &guard)
            };
            into.extend_from_slice(bytes);
            at += len;
        }
        true
    }

    /// [`Self::copy_out`] for a replica that is written anew, of what others may have had for long:
    /// the checksum of every entry is compared. `from`, not behind the range, is where an entry or
    /// padding begins. Gives the bytes, and where the next copy has to begin to look: an entry that
    /// the range cuts off is compared by the next copy, and one that was cut off by the last by
    /// this.
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

    /// Compares all entries of a closed segment, whose replicas have what it has now, with their
    /// checksums.
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken, and replicas may have been made of it; the process must stop.
    pub(crate) fn compare_checksums(&self) -> Result<(), Corruption> {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.compare_piece(from)?;
        }
        Ok(())
    }

    /// A piece of [`Self::compare_checksums`]: what begins at `from`, 256 KiB or one entry. Gives
    /// where the next piece begins, if there is one.
    ///
    /// # Errors
    /// As of [`Self::compare_checksums`].
    pub(crate) fn compare_piece(&self, from: u32) -> Result<Option<u32>, Corruption> {
        let (len, mut piece) = (self.appended_len(), COMPARED_BYTES);
        if from >= len {
            return Ok(None);
        }
        loop {
            let end = len.min(from.saturating_add(piece));
            let Some(checked) = self.copy_checked(from, from..end) else {
                // It was freed: nobody needs it any more.
                return Ok(None);
            };
            let (_, next) = checked?;
            if next > from {
                return Ok((next < len).then_some(next));
            }
            if end == len {
                return Err(self.corruption(from, ParseErrorKind::Truncated));
            }
            // One entry is longer.
            piece = piece.saturating_mul(2);
        }
    }

    /// That the entry at `offset` is broken.
    #[must_use]
    pub fn corruption(&self, offset: u32, what: ParseErrorKind) -> Corruption {
        let seglets = self.seglets_locked();
        // Freed meanwhile: the process stops all the same.
        let seglet = seglets.get(offset as usize / SEGLET_BYTES);
        let base = seglet.map_or(0, |seglet| LogMemory::base(*seglet));
        Corruption {
            entry: EntryRef::new(base + u64::from(offset) % SEGLET_BYTES as u64),
            segment: self.id,
            offset,
            what,
        }
    }

    pub(crate) fn is_marked_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn is_emergency(&self) -> bool {
        self.emergency
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    fn seglets_locked(&self) -> std::sync::RwLockReadGuard<'_, Vec<u32>> {
        // The list is only pushed to: after a panic elsewhere it is still right.
        self.seglets.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seglet_count(&self) -> usize {
        self.seglets_locked().len()
    }

    pub(crate) fn push_seglet(&self, seglet: u32) {
        self.seglets
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seglet);
    }

    /// Takes the seglets away, when nobody can see the segment's memory any more.
    pub(crate) fn take_seglets(&self) -> Vec<u32> {
        core::mem::take(&mut *self.seglets.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_appended(&self, len: u32) {
        debug_assert!(
            len >= self.appended_len() && !self.is_closed(),
            "LOG-1: {self:?} does not end at {len}"
        );
        self.appended.store(len, Ordering::Release);
    }

    pub(crate) fn set_opening(&self, len: u32) {
        self.opening.store(len, Ordering::Relaxed);
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The next digest will not list it.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// The cleaner must leave it alone, or no longer.
    pub(crate) fn set_held(&self, held: bool) {
        // Set before the segment becomes a member, so whoever finds it among them sees it.
        self.held.store(held, Ordering::Release);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Takes the segment for a pass of a cleaner, which others then leave alone. A pass that
    /// exchanges its bytes in place needs them not to be held.
    pub(crate) fn claim(&self, compact: bool) -> bool {
        let (refuse, set) = if compact {
            (CLAIMED | BYTES_HELD, CLAIMED | COMPACTING)
        } else {
            (CLAIMED, CLAIMED)
        };
        self.uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |uses| {
                (uses & refuse == 0).then_some(uses | set)
            })
            .is_ok()
    }

    /// The pass is over, or goes on without the segment.
    pub(crate) fn end_pass(&self) {
        self.uses
            .fetch_and(!(CLAIMED | COMPACTING), Ordering::AcqRel);
    }

    pub(crate) fn can_be_claimed(&self, compact: bool) -> bool {
        let refuse = if compact {
            CLAIMED | BYTES_HELD
        } else {
            CLAIMED
        };
        self.uses.load(Ordering::Acquire) & refuse == 0
    }

    /// Bytes the log on disk is charged with for it.
    pub(crate) fn disk_len(&self) -> u32 {
        self.disk_len.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disk_len(&self, len: u32) {
        self.disk_len.store(len, Ordering::Relaxed);
    }

    /// Live bytes with which cleaning it alone gained nothing.
    pub(crate) fn barren_at(&self) -> u32 {
        self.barren_at.load(Ordering::Relaxed)
    }

    pub(crate) fn set_barren_at(&self, live_bytes: u32) {
        self.barren_at.store(live_bytes, Ordering::Relaxed);
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
            self.uses.load(Ordering::Acquire) & (COMPACTING | BYTES_HELD) == COMPACTING,
            "CLEAN-8: the bytes of segment {} are exchanged while they are held",
            self.id
        );
        *self.tombstones() = tombstones;
        let mut list = self.seglets.write().unwrap_or_else(PoisonError::into_inner);
        // Under the list's lock, so that `copy_into` finds a length and a list that belong
        // together.
        self.appended.store(appended, Ordering::Release);
        debug_assert!(
            seglets.iter().all(|seglet| !list.contains(seglet)),
            "LOG-5: a compaction of segment {} wrote to seglets that it has",
            self.id
        );
        core::mem::replace(&mut *list, seglets)
    }

    pub(crate) fn set_cleaned(&self) {
        self.cleaned.store(true, Ordering::Release);
    }

    pub(crate) fn is_cleaned(&self) -> bool {
        self.cleaned.load(Ordering::Acquire)
    }

    pub(crate) fn set_freed(&self) {
        self.freed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::SeqCst)
    }

    /// The seglets, in their order.
    pub(crate) fn seglet_list(&self) -> Vec<u32> {
        self.seglets_locked().clone()
    }

    pub(crate) fn tombstones(&self) -> MutexGuard<'_, TombstoneTargets> {
        self.tombstones
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch after which no writer can be between append and index update in this segment.
    /// The first call, after the segment was closed, asks `stamp` for it.
    pub(crate) fn settled(&self, stamp: impl FnOnce() -> ReclaimStamp) -> ReclaimStamp {
        *self.settled.get_or_init(stamp)
    }

    /// Whether it was asked for its settling epoch: only then can it be known to be over.
    pub(crate) fn has_settled_epoch(&self) -> bool {
        self.settled.get().is_some()
    }

    /// Whether a pass of a cleaner has it.
    pub(crate) fn is_claimed(&self) -> bool {
        self.uses.load(Ordering::Acquire) & CLAIMED != 0
    }
}

impl core::fmt::Debug for Segment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.id)
            .field("log", &self.log)
            .field("kind", &self.kind)
            .field("appended", &self.appended_len())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstones_die_with_the_segment_they_name() {
        let mut targets = TombstoneTargets::default();
        for id in 1..=300u64 {
            targets.add(SegmentId(id), 100);
            targets.add(SegmentId(id), 20);
        }
        assert_eq!(targets.live_bytes(), 300 * 120);
        for id in (1..=300u64).step_by(2) {
            targets.forget(SegmentId(id));
        }
        assert_eq!(
            targets.live_bytes(),
            150 * 120,
            "those beyond the limit are estimated by the others"
        );
        targets.keep(|_| false);
        assert_eq!(targets.live_bytes(), 0);
    }
}
