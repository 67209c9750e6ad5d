//! Deadlines of objects: by which time they are judged, and who looks for those that are past.
//!
//! An object whose deadline is past counts as absent for every read and every rule, from that
//! millisecond on. It leaves memory later: the keys that are due are taken from here, and each is
//! dropped by [`Engine::drop_expired`](crate::Engine::drop_expired), which is a delete.
//!
//! Owns the clock, the horizon that is durable, and the notes of keys that expire.
//!
//! Invariants
//! - EXPIRY-1: the time that deadlines are judged by never goes back while the engine lives.
//! - EXPIRY-2: no deadline is judged by a time later than a durable horizon, in a store with
//!   replicas. The next owner of a key goes on from that horizon (`Engine::go_on_from`). Where a
//!   tablet moves, it goes on from the last time that was judged by. So an object that was seen as
//!   gone stays gone.
//! - EXPIRY-3: an object whose deadline is past is dropped by a delete. That leaves tombstones for
//!   all its dead versions, and a safe version above its own. Otherwise an earlier version could
//!   return.
//! - EXPIRY-4: a key with a deadline has a note, or a walk through the indexes is due.
//! - EXPIRY-5: a tablet that is read before it is durable here is judged by the horizon of the last
//!   owner. If this master crashes as well, the next one begins with no earlier time.
//!
//! Any thread. Not here: what a deadline does to an outcome (crate `mutation`), who calls this and
//! how often (crate `master`, and `embedded` for the library).

mod clock;
mod notes;

pub use clock::DeadlineTime;
pub use notes::Place;

use clock::DeadlineClock;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use notes::Notes;
use pluvio_log::Appended;
use pluvio_memory::GateWord;
use pluvio_units::{Deadline, HashRange, KeyHash, Rank, TableId, UnixMs};
use std::sync::{Mutex, PoisonError, RwLock};

/// How far ahead of its clock a master writes its horizon. It is durable long before it is needed.
/// After a crash keys expire earlier by this, at most.
pub(crate) const LEAD_MS: u64 = 2_000;

/// See the module.
#[derive(Default)]
pub struct Expiry {
    clock: DeadlineClock,
    notes: Notes,
    /// The horizon that is durable.
    reached: AtomicU64,
    /// A horizon that was appended, and may be durable by now.
    pub(crate) asked: Mutex<Option<(Appended<()>, UnixMs)>>,
    /// Whether there ever was a deadline.
    used: AtomicBool,
    /// Whether the first horizon is to be appended.
    is_new: AtomicBool,
    dropped: AtomicU64,
    /// Tablets that are judged by a time of their own, and how many (EXPIRY-5).
    standing: RwLock<Vec<Standing>>,
    standing_count: AtomicUsize,
    pub(crate) walk: Mutex<Walk>,
}

/// A walk through the indexes for keys that have no note.
#[derive(Default)]
pub(crate) struct Walk {
    /// Where it goes on; `None` where none is under way.
    pub(crate) at: Option<(TableId, Rank)>,
    /// Keys with deadlines that it has met.
    pub(crate) met: usize,
    /// Those that the walk before it has met, if there was one.
    pub(crate) met_before: Option<usize>,
    /// Whether it notes them all anew. Others look for what is due alone.
    pub(crate) notes: bool,
}

/// A tablet whose deadlines are judged by the time of its last owner.
struct Standing {
    table: TableId,
    range: HashRange,
    horizon: UnixMs,
}

impl Expiry {
    /// Deadlines in this range are judged by `horizon` from now on (EXPIRY-5).
    pub fn stand(&self, table: TableId, range: HashRange, horizon: UnixMs) {
        let mut standing = self
            .standing
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        standing.push(Standing {
            table,
            range,
            horizon,
        });
        self.standing_count.store(standing.len(), Ordering::Release);
    }

    /// Deadlines in this range are judged by the clock again.
    pub fn stand_no_more(&self, table: TableId, range: HashRange) {
        let mut standing = self
            .standing
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        standing.retain(|one| one.table != table || !one.range.overlaps(&range));
        self.standing_count.store(standing.len(), Ordering::Release);
    }

    /// The time by which deadlines of this key are judged, if it is not the clock's.
    #[inline]
    pub(crate) fn standing(
        &self,
        table: TableId,
        hash: impl FnOnce() -> KeyHash,
    ) -> Option<UnixMs> {
        if self.standing_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let hash = hash();
        let standing = self.standing.read().unwrap_or_else(PoisonError::into_inner);
        let mut standing = standing.iter();
        let found = standing.find(|one| one.table == table && one.range.contains(hash));
        found.map(|one| one.horizon)
    }

    /// The earliest time that a tablet is judged by, of those that have one of their own.
    pub(crate) fn earliest_standing(&self) -> Option<UnixMs> {
        let standing = self.standing.read().unwrap_or_else(PoisonError::into_inner);
        standing.iter().map(|one| one.horizon).min()
    }

    /// One that keeps the latest time that was judged by where other processes see it.
    pub(crate) fn judging_in(judged: GateWord) -> Self {
        Self {
            clock: DeadlineClock::judging_in(judged),
            ..Self::default()
        }
    }

    /// With room for fewer notes.
    #[cfg(test)]
    pub(crate) fn with_room(most: usize) -> Self {
        Self {
            notes: Notes::with_room(most),
            ..Self::default()
        }
    }

    /// Sets the clocks; only the first call counts. Nothing expires before it.
    pub fn start(&self, time: Box<dyn DeadlineTime>) {
        self.clock.start(time);
    }

    /// What the clock shows. Deadlines are judged by [`Engine::now`](crate::Engine::now).
    pub(crate) fn shown(&self) -> UnixMs {
        self.clock.shown()
    }

    pub(crate) fn follow(&self) {
        self.clock.follow();
    }

    pub(crate) fn judge(&self, time: UnixMs) -> UnixMs {
        self.clock.judge(time)
    }

    /// The latest time by which deadlines were judged.
    #[must_use]
    pub fn judged(&self) -> UnixMs {
        self.clock.judged()
    }

    pub(crate) fn reached(&self) -> UnixMs {
        UnixMs(self.reached.load(Ordering::Acquire))
    }

    pub(crate) fn reach(&self, horizon: UnixMs) {
        self.reached.fetch_max(horizon.0, Ordering::AcqRel);
    }

    /// See [`Engine::go_on_from`](crate::Engine::go_on_from).
    pub(crate) fn go_on_from(&self, horizon: UnixMs) {
        self.used.store(true, Ordering::Release);
        self.clock.not_before(horizon);
        // The clock may show less again when it follows the wall clock.
        self.clock.judge(horizon);
        self.reach(horizon);
    }

    /// Whether there ever was a deadline.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Whether the first deadline came a moment ago: true once.
    #[inline]
    pub(crate) fn take_new(&self) -> bool {
        self.is_new.load(Ordering::Relaxed) && self.is_new.swap(false, Ordering::AcqRel)
    }

    /// A key expires then.
    pub(crate) fn note(&self, place: Place, deadline: Deadline) {
        if !self.is_used() && !self.used.swap(true, Ordering::AcqRel) {
            self.is_new.store(true, Ordering::Release);
        }
        self.notes.add(place, deadline, self.clock.shown());
    }

    /// A key that had the deadline `old`, whose note is still there, has another one.
    #[inline]
    pub(crate) fn renote(&self, place: Place, old: Option<Deadline>, new: Option<Deadline>) {
        if let Some(new) = new
            && old.is_none_or(|old| old > new)
        {
            self.note(place, new);
        }
    }

    /// Takes up to `most` keys that are due; there may be more.
    pub(crate) fn take_due(&self, now: UnixMs, most: usize) -> Vec<Place> {
        self.notes.take(now, most)
    }

    /// Whether keys are due at that time.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        self.notes.is_due(now)
    }

    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Keys noted: about as many as have deadlines, up to a bound.
    #[must_use]
    pub fn noted(&self) -> u64 {
        self.notes.count() as u64
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Objects dropped since the start because their deadlines were past.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
