//! The engine's half of expiry: the time, the horizon in the log, and dropping what is past.
//! [`crate::expiry`] has the invariants.

use super::apply::{Applied, Old, Site, Target, Write};
use super::prepared::counted_bytes;
use super::{Engine, EngineError, StoreKind};
use crate::expiry::{Expiry, LEAD_MS, Place, Walk};
use crate::table::EngineTable;
use pluvio_format::{Entry, ObjectState};
use pluvio_log::{AppendClass, Awaited};
use pluvio_mutation::{Now, Output};
use pluvio_units::{Deadline, HashRange, LogId, ObjectVersion, Rank, TableId, UnixMs};
use std::sync::PoisonError;

/// Index buckets that one step of a walk looks at: a millisecond's work.
const WALK_BUCKETS: u32 = 1024;

/// What [`Engine::drop_expired`] found under a hash.
pub enum Expired {
    /// An object whose deadline is past; its slot is to be settled. There may be others.
    Dropped(Awaited<Applied>),
    /// Nothing to be dropped.
    Nothing,
}

impl Engine {
    /// Deadlines: clock and notes.
    #[must_use]
    pub fn expiry(&self) -> &Expiry {
        &self.expiry
    }

    /// The time by which deadlines are judged now (EXPIRY-1, EXPIRY-2).
    #[must_use]
    pub fn now(&self) -> UnixMs {
        let shown = self.expiry.shown();
        if self.kind != StoreKind::Replicated {
            return self.expiry.judge(shown);
        }
        if shown > self.expiry.reached() {
            self.confirm_horizon();
        }
        self.expiry.judge(shown.min(self.expiry.reached()))
    }

    /// No object whose deadline is up to this time is there any more for a read that begins now.
    /// `None`: no object has ever had a deadline. For observers: it changes nothing, and may be
    /// behind [`Self::now`].
    #[must_use]
    pub fn surely_past(&self) -> Option<UnixMs> {
        if !self.expiry.is_used() {
            return None;
        }
        let shown = match self.kind {
            StoreKind::Replicated => self.expiry.shown().min(self.expiry.reached()),
            StoreKind::Volatile | StoreKind::InPlace => self.expiry.shown(),
        };
        let judged = shown.max(self.expiry.judged());
        Some(
            self.expiry
                .earliest_standing()
                .map_or(judged, |standing| standing.min(judged)),
        )
    }

    /// [`Self::now`], and the clock.
    pub(crate) fn time(&self) -> Now {
        let judged = self.now();
        Now {
            judged,
            shown: self.expiry.shown().max(judged),
        }
    }

    /// [`Self::time`] for a key, which may be in a tablet that is not durable here (EXPIRY-5).
    pub(crate) fn time_at(&self, table: &EngineTable, key: &[u8]) -> Now {
        match self.expiry.standing(table.id(), || table.hash(key)) {
            Some(judged) => Now {
                judged,
                shown: self.expiry.shown().max(judged),
            },
            None => self.time(),
        }
    }

    /// Sees whether the horizon that was appended is durable.
    fn confirm_horizon(&self) {
        // Whoever has the lock does it.
        let Ok(mut asked) = self.expiry.asked.try_lock() else {
            return;
        };
        if let Some((appended, horizon)) = asked.take() {
            match self.space.confirm(appended) {
                Ok(_durable) => self.expiry.reach(horizon),
                Err(appended) => *asked = Some((appended, horizon)),
            }
        }
    }

    /// Appends a horizon ahead of the clock, if deadlines are in use and the last one is near.
    /// Where that finds no room, time stands still for deadlines until it does.
    pub fn tend_horizon(&self, log: LogId) {
        let log = self.log_of_core(log);
        self.expiry.follow();
        if self.kind != StoreKind::Replicated || !self.expiry.is_used() {
            return;
        }
        self.confirm_horizon();
        let shown = self.expiry.shown();
        if self.expiry.reached().0 >= shown.0.saturating_add(LEAD_MS / 2) {
            return;
        }
        let asked = self.expiry.asked.lock();
        let mut asked = asked.unwrap_or_else(PoisonError::into_inner);
        if asked.is_some() || self.space.is_stalled(log) {
            return;
        }
        let horizon = UnixMs(shown.0.saturating_add(LEAD_MS));
        // Raised first: a head that is opened now must record it.
        self.space.raise_horizon(horizon);
        let guard = self.space.pin();
        let entry = [Entry::Horizon(horizon)];
        if let Ok(appended) = self.append(log, &entry, AppendClass::Internal, &guard) {
            *asked = Some((appended.map(|_| ()), horizon));
        }
    }

    /// Keys are served here next whose last owner may have judged deadlines by times up to
    /// `horizon`. A head that records it is durable here (EXPIRY-2).
    pub fn go_on_from(&self, horizon: UnixMs) {
        if horizon > UnixMs(0) {
            debug_assert!(self.space.horizon() >= horizon, "EXPIRY-2: heads say so");
            self.expiry.go_on_from(horizon);
        }
    }

    /// Takes up to `most` keys that are due (EXPIRY-4). Whoever takes one drops it, or notes it
    /// again.
    #[must_use]
    pub fn due(&self, most: usize) -> Vec<Place> {
        if !self.expiry.is_due(self.expiry.shown()) {
            return Vec::new();
        }
        self.expiry.take_due(self.now(), most)
    }

    /// A key that is due could not be dropped: it is due again a second later.
    pub fn due_again(&self, place: Place) {
        let later = Deadline::after(self.expiry.shown(), 1_000);
        self.expiry.note(place, later);
    }

    /// A step of a walk through the indexes, while there may be keys without a note (EXPIRY-4).
    /// Each walk finds the keys that are due. Once there is room for all, one walk notes them anew.
    pub fn walk_for_deadlines(&self) {
        let notes = self.expiry.notes();
        let Ok(mut walk) = self.expiry.walk.try_lock() else {
            return;
        };
        let now = self.now();
        // What was found goes first.
        if (walk.at.is_none() && !notes.is_beyond()) || notes.is_due(now) {
            return;
        }
        let (mut table, mut from) = match walk.at {
            Some(place) => place,
            None => {
                walk.notes = walk.met_before.is_some_and(|met| notes.has_room_for(met));
                walk.met = 0;
                if walk.notes {
                    notes.clear();
                }
                (TableId(0), Rank(0))
            }
        };
        for _ in 0..WALK_BUCKETS {
            let Some(known) = self.tables.first_from(table) else {
                walk.met_before = Some(walk.met);
                walk.at = None;
                return;
            };
            if known.id() != table {
                (table, from) = (known.id(), Rank(0));
            }
            let last = self.walk_bucket(&known, from, now, &mut walk);
            if last == Rank(u64::MAX) {
                (table, from) = (TableId(table.0.saturating_add(1)), Rank(0));
            } else {
                from = Rank(last.0 + 1);
            }
        }
        walk.at = Some((table, from));
    }

    /// Looks at the buckets that cover `from`; gives the last rank that they cover.
    fn walk_bucket(&self, table: &EngineTable, from: Rank, now: UnixMs, walk: &mut Walk) -> Rank {
        let notes = self.expiry.notes();
        let guard = self.space.pin();
        let mut slots = Vec::new();
        let last = table.indexes.scan(HashRange::ALL, from, &mut slots);
        for slot in slots {
            let view = self.view(slot.entry, &guard);
            let Some(object) = view.object() else {
                continue;
            };
            let Some(deadline) = object.deadline else {
                continue;
            };
            walk.met += 1;
            let place = (table.id(), table.hash(object.key));
            if deadline.is_past(now) {
                notes.add_due(place);
            } else if walk.notes {
                notes.add(place, deadline, now);
            }
        }
        last
    }

    /// Drops one object with the site's hash whose deadline is past, by a delete (EXPIRY-3). `each`
    /// gets its key, under the lock. One whose deadline is still to come is noted again.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing changed.
    pub fn drop_expired(
        &self,
        site: &Site<'_>,
        each: impl FnOnce(&[u8], &Applied),
    ) -> Result<Expired, EngineError> {
        let table = site.table;
        let now = self.now();
        let guard = self.space.pin();
        let index = table.indexes.of(site.hash).ok_or(EngineError::NotHere)?;
        let bucket = index.lock(site.hash);
        if table.indexes.is_closed() {
            return Err(EngineError::NotHere);
        }
        let mut found = None;
        let mut later: Option<Deadline> = None;
        let slot = bucket.find(|entry| {
            let view = self.view(entry, &guard);
            let deadline = view.object().and_then(|object| {
                let is_it = table.hash(object.key) == site.hash;
                object.deadline.filter(|_| is_it)
            });
            let is_past = deadline.is_some_and(|deadline| deadline.is_past(now));
            match is_past {
                true => found = Some(view),
                false => later = later.into_iter().chain(deadline).min(),
            }
            is_past
        });
        let Some((slot, view)) = slot.zip(found.as_ref()) else {
            drop(bucket);
            if let Some(later) = later {
                self.expiry.note((table.id(), site.hash), later);
            }
            return Ok(Expired::Nothing);
        };
        let object = view.object().expect("it was one a moment ago");
        let pending = self.pending(slot, view.total_len(), &guard);
        // STORE-5.
        let log = pending.map_or(site.log, |pending| pending.log);
        if self.space.is_stalled(log) {
            return Err(EngineError::Stalled);
        }
        let target = Target {
            log,
            table,
            hash: site.hash,
            key: object.key,
            now_s: site.now_s,
            old: Some(Old {
                entry: slot.entry,
                len: view.total_len(),
                object_bytes: counted_bytes(&object),
                version: object.version,
                known: object.version,
                graves: object.graves,
                deadline: object.deadline,
                is_gone: false,
            }),
            deadline: None,
            least: ObjectVersion(0),
            state: ObjectState::Plain,
            guard: &guard,
        };
        let mut write = Write { target, bucket };
        let applied = self.delete(&mut write, Output::Nothing, None)?;
        each(object.key, applied.pending());
        drop(write);
        self.expiry.count_dropped();
        index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        Ok(Expired::Dropped(applied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiry::DeadlineTime;
    use crate::options::EngineOptions;
    use core::sync::atomic::{AtomicU64, Ordering};
    use core::time::Duration;
    use pluvio_log::{Durability, LogOptions};
    use pluvio_mutation::{Change, Lifetime, Mutation};
    use pluvio_units::Size;
    use std::sync::Arc;

    #[derive(Clone)]
    struct Hands(Arc<AtomicU64>);

    impl DeadlineTime for Hands {
        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }

        fn wall(&self) -> Duration {
            self.monotonic()
        }
    }

    fn site(table: &EngineTable, hash: pluvio_units::KeyHash) -> Site<'_> {
        Site {
            log: LogId(0),
            table,
            hash,
            now_s: 1,
            only_this_log: false,
        }
    }

    // shows: EXPIRY-4
    #[test]
    fn keys_that_found_no_room_for_a_note_are_found_by_walks() {
        const KEYS: u64 = 1_000;
        let log = LogOptions {
            durability: Durability::Volatile,
            ..LogOptions::new(Size::mib(64))
        };
        let mut store = Engine::open(EngineOptions { log }).unwrap();
        Arc::get_mut(&mut store).unwrap().expiry = Expiry::with_room(100);
        let hands = Hands(Arc::new(AtomicU64::new(1_000_000)));
        store.expiry.start(Box::new(hands.clone()));
        let table = store.table(TableId(3), 7, HashRange::ALL).unwrap();
        for key in 0..KEYS {
            // Some live long, and take the room first.
            let ms = if key < 200 { 1 << 40 } else { 1_000 + key };
            let key = key.to_le_bytes();
            let put = Mutation {
                lifetime: Lifetime::For(ms),
                ..Mutation::new(table.id(), &key, Change::Put(b"v".as_slice().into()))
            };
            let _ = store
                .apply(&site(&table, table.hash(&key)), &put, None)
                .unwrap();
        }
        assert_eq!(store.expiry.noted(), 100);
        let sweep = || {
            for _ in 0..200 {
                store.walk_for_deadlines();
                for (_, hash) in store.due(16) {
                    let _ = store.drop_expired(&site(&table, hash), |_, _| {}).unwrap();
                }
            }
        };
        sweep();
        assert_eq!(table.objects(), KEYS, "nothing is past yet");
        hands.0.fetch_add(10_000, Ordering::Relaxed);
        sweep();
        assert_eq!(table.objects(), 200);
        for key in 0..180_u64 {
            let key = key.to_le_bytes();
            let delete = Mutation::new(table.id(), &key, Change::Delete);
            let _ = store
                .apply(&site(&table, table.hash(&key)), &delete, None)
                .unwrap();
        }
        sweep();
        // There is room for all that are left.
        assert_eq!(store.expiry.noted(), 20);
        assert!(!store.expiry.notes().is_beyond());
        hands.0.fetch_add(1 << 41, Ordering::Relaxed);
        sweep();
        assert_eq!(table.objects(), 0);
    }
}
