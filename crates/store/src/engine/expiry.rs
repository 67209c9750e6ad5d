//! The engine's half of expiry: the time, the horizon in the log, and dropping what is past.
//! [`crate::expiry`] has the invariants.

use super::apply::{Applied, Old, Site, Write};
use super::{Engine, EngineError, StoreKind};
use crate::expiry::{Expiry, LEAD_MS, Place};
use pluvio_format::Entry;
use pluvio_log::{AppendClass, Awaited};
use pluvio_mutation::{Now, Output};
use pluvio_units::{Deadline, HashRange, LogId, Rank, UnixMs};
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

    /// [`Self::now`], and the clock.
    pub(crate) fn time(&self) -> Now {
        let judged = self.now();
        Now {
            judged,
            shown: self.expiry.shown().max(judged),
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

    /// Another owner may have judged deadlines of keys that are served here next by times up to
    /// `horizon`, and a head that says so is durable here (EXPIRY-2).
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

    /// A step of the walk that notes keys again which found no room.
    pub fn walk_for_deadlines(&self) {
        let notes = self.expiry.notes();
        let Ok(mut walk) = self.expiry.walk.try_lock() else {
            return;
        };
        let (mut table, mut from) = match *walk {
            Some(place) => place,
            None if notes.is_beyond() && notes.has_room() => {
                notes.begin_walk();
                (pluvio_units::TableId(0), Rank(0))
            }
            None => return,
        };
        let mut left = WALK_BUCKETS;
        loop {
            let Some(known) = self.tables.first_from(table) else {
                *walk = None;
                return;
            };
            if known.id() != table {
                (table, from) = (known.id(), Rank(0));
            }
            let guard = self.space.pin();
            let mut slots = Vec::new();
            let last = known.indexes.scan(HashRange::ALL, from, &mut slots);
            for slot in slots {
                let view = self.view(slot.entry, &guard);
                if let Some(object) = view.object()
                    && let Some(deadline) = object.deadline
                {
                    self.expiry.note((table, known.hash(object.key)), deadline);
                }
            }
            left = left.saturating_sub(1);
            if last == Rank(u64::MAX) {
                (table, from) = (pluvio_units::TableId(table.0.saturating_add(1)), Rank(0));
            } else {
                from = Rank(last.0 + 1);
            }
            if notes.is_beyond() {
                // It is full again: what was not walked is found by the next walk.
                *walk = None;
                notes.stay_beyond();
                return;
            }
            if left == 0 {
                *walk = Some((table, from));
                return;
            }
        }
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
        let mut write = Write {
            log,
            table,
            hash: site.hash,
            key: object.key,
            now_s: site.now_s,
            bucket,
            old: Some(Old {
                entry: slot.entry,
                len: view.total_len(),
                object_bytes: object.key.len() + object.value.len(),
                version: object.version,
                graves: object.graves,
                deadline: object.deadline,
                is_gone: false,
            }),
            deadline: None,
            guard: &guard,
        };
        let applied = self.delete(&mut write, Output::Nothing, None)?;
        each(object.key, applied.pending());
        drop(write);
        self.expiry.count_dropped();
        index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        Ok(Expired::Dropped(applied))
    }
}
