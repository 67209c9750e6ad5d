//! A system without pages left, under a store whose memory other processes read.

use crate::support::{Store, options};
use core::time::Duration;
use pluvio_log::{AppendError, Durability, LogOptions};
use pluvio_memory::GraceClock;
use pluvio_units::LogId;

const LEN: usize = 20_000;

fn store(keys: u32) -> Store {
    let readers = Some(GraceClock::new(|| Duration::ZERO));
    let options = LogOptions {
        readers,
        ..options(64, 1, Durability::Volatile)
    };
    Store::new(options, keys)
}

/// Writes a key as often as the cleaner may help; false if there is no room.
fn write(store: &Store, key: u32) -> bool {
    for _ in 0..2000 {
        match store.change(LogId(0), key, Some(LEN), 1) {
            Ok(_) => return true,
            Err(AppendError::Full { .. }) => {
                let _pace = store.cleaner.step(1).expect("memory is right");
            }
            Err(other) => panic!("{other}"),
        }
    }
    false
}

/// The store lives in what it has: it is cleaned as if it were no larger.
// shows: R4
#[test]
fn a_store_whose_pages_are_refused_goes_on_in_those_that_it_has() {
    let store = store(3000);
    let write_all = |keys: core::ops::Range<u32>| {
        for key in keys {
            assert!(write(&store, key), "no room for {key}: {:?}", store.space);
        }
    };
    write_all(0..1000);
    write_all(0..400);
    store.space.refuse_pages(true);
    let resident = store.space.stats().resident_bytes;
    for _ in 0..5 {
        write_all(0..1000);
    }
    let stats = store.space.stats();
    assert_eq!(stats.resident_bytes, resident, "{stats:?}");
    assert!(stats.free_bytes < stats.memory_bytes / 4, "{stats:?}");
    // New objects find room until there is none.
    let first = (1000..3000).find(|&key| !write(&store, key));
    let full = first.expect("not all keys fit");
    assert!((0..full).all(|key| store.read(key).is_some_and(|(_, len)| len == LEN)));
    // A delete makes room.
    (0..500).for_each(|key| store.forget(key));
    write_all(full..full + 200);
    assert_eq!(store.space.stats().resident_bytes, resident);
    // The system has memory again.
    store.space.refuse_pages(false);
    write_all(full + 200..full + 900);
    assert!(store.space.stats().resident_bytes > resident);
    let left = (500..full + 900).map(|key| store.read(key));
    assert!(left.flatten().all(|(_, len)| len == LEN));
    store.check_live_bytes();
}
