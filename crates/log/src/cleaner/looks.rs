//! Looking at segments for a choice: in turn, as many as the choice can afford.
//!
//! The roster of its log keeps what was seen of a segment, and this orders it among the others. A
//! store of few segments is looked at as a whole for every choice. In a larger one a segment may be
//! better than it was when it was seen; its turn comes. The more was written since the last choice,
//! the more is looked at.
//!
//! A segment is claimed only after another look, which also says whether it may be cleaned
//! (CLEAN-1).

use super::Shared;
use super::choose::{Choice, worth_of_compaction};
use crate::append::{LogState, Seen};
use crate::durable::Durability;
use crate::segments::{Claim, Segment};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pluvio_format::SegmentKind;
use pluvio_units::SegmentId;
use std::sync::Arc;

/// A store of this number of segments or fewer is looked at as a whole for each choice.
const WHOLE_STORE: usize = 512;
/// Segments that the choice of a compaction looks at, at least. Its gain is written before the next
/// choice, so in a round hundredths of the memory are written.
pub(super) const LOOKS_TO_COMPACT: usize = 8;
/// The same for the choice of a combined pass, which takes ten segments or so.
pub(super) const LOOKS_TO_COMBINE: usize = 256;
/// Looks more for each segment opened since the last choice, by appends or survivors. A store whose
/// memory was filled without a choice is looked at as a whole.
const LOOKS_AN_OPENING: u64 = 8;
/// Looks with the members of a log locked. A head that is opened waits for them.
const LOOKS_AT_ONCE: usize = 256;

/// Whose turn it is to be looked at. Several cleaners may look at once: the segments of a log are
/// then looked at by one of them, or twice.
#[derive(Default)]
pub(super) struct Turn {
    log: AtomicUsize,
    /// The segments that had been opened at the last choice.
    opened: AtomicU64,
    /// All looks.
    #[cfg(feature = "made-up")]
    pub(super) looks: AtomicU64,
}

impl Choice<'_> {
    /// Looks at segments whose turn it is: at `count` in this choice, or more.
    pub(super) fn look_around(&self, count: usize) {
        let more = count.saturating_sub(self.looks.get());
        if self.has_seen_all.get() || more == 0 {
            return;
        }
        let table = &self.storage().table;
        let all = self.storage().geometry.slots.all - table.free_slot_count();
        let opened = table.opened();
        let before = self.shared.turn.opened.swap(opened, Ordering::Relaxed);
        let due = LOOKS_AN_OPENING.saturating_mul(opened.saturating_sub(before));
        let due = more.saturating_add(usize::try_from(due).unwrap_or(usize::MAX));
        self.looks.set(self.looks.get() + due);
        if all <= WHOLE_STORE || due >= all {
            self.look_at_all();
            return;
        }
        let logs = self.shared.space.heads.logs();
        let mut left = due;
        let mut ends = 0;
        while left > 0 && ends <= logs.len() {
            let turn = self.shared.turn.log.load(Ordering::Relaxed);
            let log = &logs[turn % logs.len()];
            let (looks, is_end) = self.look_on(log, left.min(LOOKS_AT_ONCE));
            left -= looks;
            if is_end {
                ends += 1;
                let next = (turn + 1) % logs.len();
                self.shared.turn.log.store(next, Ordering::Relaxed);
            }
        }
    }

    /// Looks at all segments. Does nothing, and gives false, if this choice has done so.
    pub(super) fn look_at_all(&self) -> bool {
        if self.has_seen_all.replace(true) {
            return false;
        }
        for log in self.shared.space.heads.logs() {
            let mut left = log.members().in_log.len();
            while left > 0 {
                let (looks, _) = self.look_on(log, left.min(LOOKS_AT_ONCE));
                // None when they have all left meanwhile.
                left -= looks.clamp(1, left);
            }
        }
        true
    }

    fn look_on(&self, log: &LogState, count: usize) -> (usize, bool) {
        let mut members = log.members();
        let look = |segment: &Segment, seen: &mut Seen| self.look(log, segment, seen);
        members.in_log.look_on(count, look)
    }

    /// Claims a segment of a log that still is as wanted, by another look. Gives it with its live
    /// bytes.
    pub(super) fn claim(
        &self,
        log: &LogState,
        id: SegmentId,
        claim: Claim,
        is_wanted: impl Fn(&Seen) -> bool,
    ) -> Option<(Arc<Segment>, u64)> {
        let mut members = log.members();
        let claimed = core::cell::Cell::new(false);
        let look = |segment: &Segment, seen: &mut Seen| {
            self.look(log, segment, seen);
            let is_claimed = seen.is_cleanable && is_wanted(seen) && segment.uses().claim(claim);
            claimed.set(is_claimed);
            if is_claimed {
                // Until its next turn, which may find the pass at its end.
                (seen.may_scan, seen.worth) = (false, 0.0);
            }
        };
        let (segment, seen) = members.in_log.look_at(id, look)?;
        claimed
            .get()
            .then(|| (Arc::clone(segment), u64::from(seen.live_bytes)))
    }

    /// What can be seen of a segment now.
    fn look(&self, log: &LogState, segment: &Segment, seen: &mut Seen) {
        #[cfg(feature = "made-up")]
        self.shared.turn.looks.fetch_add(1, Ordering::Relaxed);
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        seen.tombstone_bytes = bytes(segment.tombstones().live_bytes());
        (seen.may_scan, seen.worth) = (false, 0.0);
        seen.is_cleanable = seen.is_cleanable
            || (!segment.is_emergency()
                && self.is_durable(log, segment)
                && self.is_settled(segment));
        if !seen.is_cleanable {
            return;
        }
        let live_bytes = self.shared.live_bytes(segment);
        seen.live_bytes = bytes(live_bytes);
        seen.disk_bytes = segment.disk_len();
        seen.seglets = bytes(segment.contents().seglets() as u64);
        seen.is_barren = segment.is_barren(live_bytes);
        seen.may_scan = segment.uses().can_be_claimed(Claim::Scan);
        if segment.uses().can_be_claimed(Claim::Compact) {
            seen.worth = worth_of_compaction(seen);
        }
    }

    /// Whether no writer is between append and index update in a closed segment (CLEAN-1).
    pub(super) fn is_settled(&self, segment: &Segment) -> bool {
        let look = || self.shared.memory().epochs().frontier();
        let frontier = *self.frontier.get_or_init(look);
        segment
            .settled()
            .is_some_and(|stamp| frontier.covers(stamp))
    }

    /// Closed, and on all replicas (CLEAN-1).
    pub(super) fn is_durable(&self, log: &LogState, segment: &Segment) -> bool {
        if !segment.is_closed() {
            return false;
        }
        match self.storage().options.durability {
            Durability::Volatile => true,
            Durability::Replicated => match segment.kind() {
                SegmentKind::Head => log.durable.covers(segment.end()),
                SegmentKind::Side => segment.state().is_durable(),
            },
        }
    }
}

impl Shared {
    /// Bytes of tombstones that choices have seen.
    pub(super) fn tombstone_bytes(&self) -> u64 {
        let logs = self.space.heads.logs().iter();
        logs.map(|log| log.members().in_log.tombstone_bytes()).sum()
    }
}
