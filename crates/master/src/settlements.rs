//! Index slots that are marked as pending, to be settled once their entries are durable.
//!
//! An outcome goes to the task that waits for it, which may give up. Its slot stays here.
//!
//! - SETTLE-1: every noted slot is settled soon after its entry is durable. The thread that notes
//!   it may learn of that first, or the one that advances the durable position.
//!
//! Bounded by the log: a noted slot has an entry that is not durable yet. Any thread; the lock of a
//! log's queue is held for single steps, and no other one is taken under it.

use pluvio_log::Appended;
use pluvio_store::{Engine, EngineTable, Unsettled};
use pluvio_units::LogId;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots that are settled together: as many misses as a core has in flight.
const GROUP: usize = 16;

type Noted = (Arc<EngineTable>, Appended<Unsettled>);

/// The slots to be settled, by log.
pub(crate) struct Settlements {
    logs: Box<[Mutex<VecDeque<Noted>>]>,
}

impl Settlements {
    pub(crate) fn new(logs: usize) -> Self {
        Self {
            logs: (0..logs).map(|_| Mutex::default()).collect(),
        }
    }

    /// Remembers a slot. The caller holds no lock of the index.
    pub(crate) fn note(&self, store: &Engine, table: &Arc<EngineTable>, slot: Appended<Unsettled>) {
        let (log, position) = (slot.log(), slot.position());
        self.queue(log).push_back((Arc::clone(table), slot));
        // The entry may have become durable before the slot was noted: nobody comes for it then.
        if store.space().is_durable(log, position) {
            self.settle(store, log);
        }
    }

    /// Settles what is durable by now.
    pub(crate) fn settle(&self, store: &Engine, log: LogId) {
        loop {
            let group = self.take(store, log);
            if group.is_empty() {
                return;
            }
            for same in group.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
                if same.len() > 1 {
                    store.prefetch(
                        &same[0].0,
                        same.iter().map(|(_, slot)| slot.pending().hash()),
                    );
                }
            }
            for (table, slot) in group {
                match store.space().confirm(slot) {
                    Ok(slot) => store.settle_slot(&table, slot),
                    Err(_) => unreachable!("durable positions never move back"),
                }
            }
        }
    }

    /// The first slots of the queue whose entries are durable. One behind another that is not waits
    /// for that.
    fn take(&self, store: &Engine, log: LogId) -> SmallVec<[Noted; GROUP]> {
        let mut queue = self.queue(log);
        let is_durable =
            |(_, slot): &Noted| slot.waits().all(|(l, p)| store.space().is_durable(l, p));
        let durable = queue
            .iter()
            .take(GROUP)
            .take_while(|noted| is_durable(noted));
        let count = durable.count();
        queue.drain(..count).collect()
    }

    fn queue(&self, log: LogId) -> MutexGuard<'_, VecDeque<Noted>> {
        let queue = self.logs[usize::from(log.0)].lock();
        queue.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_log::{Awaited, Durability, LogOptions};
    use pluvio_mutation::{Change, Mutation};
    use pluvio_store::{Applied, EngineOptions, Site};
    use pluvio_units::{HashRange, Size, TableId};

    fn apply(store: &Engine, table: &Arc<EngineTable>, change: Change<'_>) -> Appended<Unsettled> {
        let site = Site {
            log: LogId(0),
            table,
            hash: table.hash(b"k"),
            now_s: 1,
            only_this_log: false,
        };
        let mutation = Mutation::new(table.id(), b"k", change);
        let Ok(Awaited::Later(applied)) = store.apply(&site, &mutation, None) else {
            panic!("it is executed and not durable")
        };
        let (slot, _outcome) = applied.split(Applied::split);
        slot.transpose().expect("a slot is marked")
    }

    // shows: SETTLE-1
    #[test]
    fn a_slot_is_settled_whoever_learns_first_that_it_is_durable() {
        let mut log = LogOptions::new(Size::mib(32));
        log.durability = Durability::Replicated;
        let store = Engine::open(EngineOptions { log }).expect("it has memory");
        let table = store.table(TableId(1), 7, HashRange::ALL).expect("a table");
        let settlements = Settlements::new(1);
        let make_durable = || {
            let space = store.space();
            space.advance_durable(LogId(0), space.end_position(LogId(0)));
        };
        let value = b"v".as_slice().into();
        for noted_first in [true, false] {
            settlements.note(&store, &table, apply(&store, &table, Change::Put(value)));
            make_durable();
            settlements.settle(&store, LogId(0));
            let slot = apply(&store, &table, Change::Delete);
            if noted_first {
                settlements.note(&store, &table, slot);
                settlements.settle(&store, LogId(0));
                assert_eq!(
                    store.stats().index_entries,
                    1,
                    "the tombstone is not durable"
                );
                make_durable();
                settlements.settle(&store, LogId(0));
            } else {
                make_durable();
                settlements.note(&store, &table, slot);
            }
            assert_eq!(store.stats().index_entries, 0, "SETTLE-1");
        }
    }
}
