//! Which keys expire when: a note for each key with a deadline, by *ticks* of a quarter of a
//! second.
//!
//! A key has a note for a tick not later than its deadline's. When that tick is over, the key is
//! looked at: it is dropped, noted again, or was changed meanwhile. So a deadline that moves away
//! needs no new note.
//!
//! A deadline that is far away is noted for a tick up to 1/64 of the time earlier. So notes share
//! some thousand ticks, and cost little more than their 16 bytes. Such a key is noted again, once
//! for each factor of 64.
//!
//! Bounded by [`NOTES_MAX`]. Keys that find no room are found by walks through the indexes, for as
//! long as there are more ([`Notes::is_beyond`]).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pluvio_units::{Deadline, KeyHash, TableId, UnixMs};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A key that expires.
pub type Place = (TableId, KeyHash);

/// Most notes, of 16 bytes and somewhat more each: a master that has more volatile keys finds the
/// rest by walking.
const NOTES_MAX: usize = 8 << 20;
const NONE: u64 = u64::MAX;
/// Milliseconds of a tick: how late a key that is due is found, at most. Where many expire all the
/// time, their memory is back the sooner, and what is due at once is less.
const TICK_MS: u64 = 250;

#[derive(Default)]
struct Inner {
    /// By the first tick that is not before the deadline.
    ticks: BTreeMap<u64, Vec<Place>>,
    count: usize,
}

/// See the module.
pub(crate) struct Notes {
    inner: Mutex<Inner>,
    most: usize,
    /// The first tick that has notes.
    first: AtomicU64,
    beyond: AtomicBool,
}

impl Default for Notes {
    fn default() -> Self {
        Self::with_room(NOTES_MAX)
    }
}

/// The tick in which a key is looked at: the first one that is not before its deadline, or earlier
/// by up to 1/64 of the time until then.
fn tick_of(deadline: Deadline, now: UnixMs) -> u64 {
    let tick = deadline.ms().div_ceil(TICK_MS);
    let away = tick.saturating_sub(now.0 / TICK_MS);
    let granule = 1 << (away / 64).checked_ilog2().unwrap_or(0);
    tick - tick % granule
}

impl Notes {
    pub(crate) fn with_room(most: usize) -> Self {
        Self {
            inner: Mutex::default(),
            most,
            first: AtomicU64::new(NONE),
            beyond: AtomicBool::new(false),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, place: Place, deadline: Deadline, now: UnixMs) {
        let mut inner = self.inner();
        if inner.count >= self.most {
            self.beyond.store(true, Ordering::Release);
            return;
        }
        let tick = tick_of(deadline, now);
        inner.ticks.entry(tick).or_default().push(place);
        inner.count += 1;
        self.first.fetch_min(tick, Ordering::AcqRel);
    }

    /// Whether there is a key to be looked at.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        let first = self.first.load(Ordering::Acquire);
        first != NONE && first <= now.0 / TICK_MS
    }

    /// Takes up to `most` keys whose ticks are over.
    pub(crate) fn take(&self, now: UnixMs, most: usize) -> Vec<Place> {
        let mut taken = Vec::new();
        if !self.is_due(now) {
            return taken;
        }
        let mut inner = self.inner();
        while taken.len() < most
            && let Some(mut notes) = inner.ticks.first_entry()
            && *notes.key() <= now.0 / TICK_MS
        {
            let rest = notes.get().len().saturating_sub(most - taken.len());
            taken.extend(notes.get_mut().drain(rest..));
            if rest == 0 {
                notes.remove();
            }
        }
        inner.count -= taken.len();
        let first = inner
            .ticks
            .first_key_value()
            .map_or(NONE, |(tick, _)| *tick);
        self.first.store(first, Ordering::Release);
        taken
    }

    /// Notes now.
    pub(crate) fn count(&self) -> usize {
        self.inner().count
    }

    /// Whether keys may be without a note.
    pub(crate) fn is_beyond(&self) -> bool {
        self.beyond.load(Ordering::Acquire)
    }

    /// Adds a key that is due, also where there is no room.
    pub(crate) fn add_due(&self, place: Place) {
        let mut inner = self.inner();
        inner.ticks.entry(0).or_default().push(place);
        inner.count += 1;
        self.first.store(0, Ordering::Release);
    }

    /// Whether this number of keys has room, with some to spare.
    pub(crate) fn has_room_for(&self, keys: usize) -> bool {
        keys < self.most / 2
    }

    /// Forgets all notes: somebody makes them anew.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner();
        let old = std::mem::take(&mut *inner);
        self.first.store(NONE, Ordering::Release);
        self.beyond.store(false, Ordering::Release);
        // Freed without the lock.
        drop(inner);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(hash: u64) -> Place {
        (TableId(1), KeyHash(hash))
    }

    #[test]
    fn a_key_is_due_when_its_tick_is_over() {
        let notes = Notes::default();
        for (hash, ms) in [(1, 1_000), (2, 1_001), (3, 1_250), (4, 9_000)] {
            notes.add(place(hash), Deadline::new(ms).unwrap(), UnixMs(1));
        }
        assert!(!notes.is_due(UnixMs(999)) && notes.is_due(UnixMs(1_000)));
        assert_eq!(notes.take(UnixMs(1_249), 10), [place(1)]);
        assert!(!notes.is_due(UnixMs(1_249)));
        assert_eq!(notes.take(UnixMs(1_250), 1).len(), 1);
        assert_eq!(notes.take(UnixMs(5_000), 10).len(), 1);
        assert_eq!(notes.count(), 1);
        assert_eq!(notes.take(UnixMs(u64::MAX), 10), [place(4)]);
        assert_eq!(notes.take(UnixMs(u64::MAX), 10), []);
    }

    #[test]
    fn deadlines_far_away_share_ticks_that_are_before_them() {
        let (notes, now) = (Notes::default(), UnixMs(1_700_000_000_000));
        for away_s in 0..100_000_u64 {
            let deadline = Deadline::after(now, away_s * 1_000 + 1);
            let (tick, exact) = (tick_of(deadline, now), deadline.ms().div_ceil(TICK_MS));
            let away = exact - now.0 / TICK_MS;
            assert!(tick > now.0 / TICK_MS && tick <= exact, "{away_s}");
            assert!(exact - tick <= away / 64, "{away_s}");
            notes.add(place(away_s), deadline, now);
        }
        let ticks = notes.inner().ticks.len();
        assert!(ticks < 1_000, "{ticks}");
    }

    #[test]
    fn what_finds_no_room_is_told() {
        let notes = Notes::with_room(1);
        notes.add(place(1), Deadline::MAX, UnixMs(1));
        assert!(!notes.is_beyond());
        notes.add(place(2), Deadline::MAX, UnixMs(1));
        assert!(notes.is_beyond() && notes.count() == 1);
    }
}
