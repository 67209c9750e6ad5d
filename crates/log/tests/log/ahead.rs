//! Memory is there before it is missed: cleaning begins before an append is refused.

use crate::support::replication::Replication;
use crate::support::{Random, Store, options};
use pluvio_log::{AppendError, Durability};
use pluvio_units::LogId;
use std::collections::VecDeque;

const LOG: LogId = LogId(0);
const LEN: usize = 200;

/// A store with one log, whose keys `0..keys` are there.
struct Full {
    store: Store,
    replication: Option<Replication>,
    random: Random,
    keys: u32,
}

impl Full {
    /// Live objects take `percent` of the memory; there is room for `more` keys.
    fn new(mib: u64, durability: Durability, percent: u64, more: u32) -> Self {
        let mut options = options(mib, 1, durability);
        options.live_percent_max = 98;
        let most = (mib << 20) / LEN as u64;
        let store = Store::new(options, most as u32 + more);
        let replication = match durability {
            Durability::Volatile => None,
            Durability::Replicated => Some(Replication::new(&store.space, 4 << 20)),
        };
        let mut full = Self {
            store,
            replication,
            random: Random::new(3),
            keys: 0,
        };
        let stats = full.store.space.stats();
        while full.store.space.stats().live_bytes * 100 < stats.memory_bytes * percent {
            for _ in 0..100 {
                let key = full.keys;
                full.put(key).expect("it is not full yet");
                full.keys += 1;
            }
            full.replicate();
        }
        full
    }

    fn put(&self, key: u32) -> Result<(), AppendError> {
        self.store.change(LOG, key, Some(LEN), 1).map(drop)
    }

    fn replicate(&mut self) {
        if let Some(replication) = &mut self.replication {
            while replication.step(LOG, &mut self.random) {}
        }
    }

    fn step(&mut self) {
        let _pace = self.store.cleaner.step(1).expect("memory is right");
        self.replicate();
    }
}

/// Inserts and deletes by turns, with a step of the cleaner now and then; gives how many inserts
/// were refused.
fn churn(mut full: Full, bytes: u64) -> u64 {
    let keys = full.keys;
    let mut there: Vec<u32> = (0..keys).collect();
    let mut gone: VecDeque<u32> = (keys..keys + 1000).collect();
    let mut refused = 0;
    for change in 0..bytes / LEN as u64 {
        let at = full.random.below(u64::from(keys)) as usize;
        let new = gone.pop_front().expect("as many are gone at all times");
        gone.push_back(core::mem::replace(&mut there[at], new));
        let old = *gone.back().expect("it was pushed");
        match full.replication {
            None => full.store.forget(old),
            Some(_) => drop(
                full.store
                    .change(LOG, old, None, 1)
                    .expect("a delete works"),
            ),
        }
        while full.put(new).is_err() {
            refused += 1;
            assert!(refused < 30_000, "{change} {:#?}", full.store.space);
            full.step();
        }
        if change.is_multiple_of(8) {
            full.step();
        }
    }
    full.store.check_live_bytes();
    refused
}

#[test]
fn inserts_and_deletes_have_memory_cleaned_before_one_is_refused() {
    for (durability, percent) in [(Durability::Volatile, 80), (Durability::Replicated, 78)] {
        let full = Full::new(128, durability, percent, 1000);
        let refused = churn(full, 48 << 20);
        assert!(refused <= 2, "{durability:?}: {refused} were refused");
    }
}
