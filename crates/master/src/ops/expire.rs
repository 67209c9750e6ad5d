//! Dropping objects whose deadlines are past: the way by which their memory comes back.
//!
//! 1. The store takes the keys that are due.
//! 2. The tablet of the key must be served here, as for every change. A copy that is being made of
//!    the tablet takes note. A key of a tablet that is not served yet is due again later.
//! 3. The store drops the object by a delete. Nobody waits for that.
//!
//! Not here: what reads see. They judge deadlines themselves.

use crate::master::Master;
use pluvio_store::{Expired, Place};
use pluvio_units::LogId;

/// What became of the keys under one hash.
enum Dropped {
    /// Nothing is past there any more, or it is not ours.
    All,
    /// Their tablet takes no changes now. Others may.
    NotServed,
    /// The log takes nothing now.
    NoRoom,
}

impl Master {
    /// Drops up to `most` expired objects; gives whether there may be more now. To be called again
    /// and again by each core, with its log: it also lets the time of deadlines go on.
    pub fn expire(&self, log: LogId, most: usize) -> bool {
        let store = self.store();
        // The clock follows the wall clock before there is any deadline, too.
        store.tend_horizon(log);
        if !store.expiry().is_used() {
            return false;
        }
        store.walk_for_deadlines();
        // Nothing is dropped by one that may not answer: others may have its tablets.
        if !self.may_serve() || self.writes_possible().is_err() {
            return false;
        }
        let due = store.due(most);
        let is_more = due.len() == most;
        let snapshot = self.tablets().snapshot();
        for of_one in due.chunk_by(|(one, _), (other, _)| one == other) {
            if let Some(local) = snapshot.get(&of_one[0].0) {
                store.prefetch(&local.table, of_one.iter().map(|(_, hash)| *hash));
            }
        }
        drop(snapshot);
        let mut has_room = true;
        for place in due {
            // Where one has no room now, the others wait a second, too.
            let dropped = has_room.then(|| self.drop_at(log, place));
            match dropped {
                Some(Dropped::All) => {}
                Some(Dropped::NotServed) => store.due_again(place),
                Some(Dropped::NoRoom) | None => {
                    has_room = false;
                    store.due_again(place);
                }
            }
        }
        is_more && has_room
    }

    /// Drops what has expired under this hash.
    fn drop_at(&self, log: LogId, (table, hash): Place) -> Dropped {
        let snapshot = self.tablets().snapshot();
        let local = snapshot.get(&table);
        let Some(tablet) = local.and_then(|local| local.tablet_of(hash)) else {
            return Dropped::All;
        };
        let Ok(served) = self.serving(&snapshot, table, Some(hash)) else {
            return match tablet.phase.is_left() {
                true => Dropped::All,
                false => Dropped::NotServed,
            };
        };
        let changeable = self.must_be_changeable(&served);
        let Ok(noting) = changeable.and_then(|()| self.noting(&served)) else {
            return Dropped::NotServed;
        };
        let site = self.site(log, &served);
        loop {
            let dropped = self.store().drop_expired(&site, |key, applied| {
                noting.note(key, applied.outcome());
            });
            match dropped {
                // Its slot is settled when it is durable; nobody is told.
                Ok(Expired::Dropped(applied)) => drop(self.outcome_of(served.table, applied)),
                Ok(Expired::Nothing) => return Dropped::All,
                Err(_) => return Dropped::NoRoom,
            }
        }
    }
}
