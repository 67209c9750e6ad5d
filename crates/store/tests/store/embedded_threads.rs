//! Many threads on one embedded store. Every value says which key it belongs to and carries its own
//! checksum, and every thread checks that the versions it sees of a key never go back.

use pluvio_store::{
    EpochKind, Experiments, Size, Store, StoreBuilder, StoreError, Table, Topology, UpdatePolicy,
    Version,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const KEYS: u64 = 300;

/// A small generator; the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % below
    }
}

/// Key, seed, and bytes that follow from them: every byte of the value is checked by [`check`].
fn value(key: u64, seed: u64, len: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(16 + len);
    value.extend_from_slice(&key.to_le_bytes());
    value.extend_from_slice(&seed.to_le_bytes());
    let mut random = Random(seed | 1);
    value.extend((0..len).map(|_| random.next(256) as u8));
    value
}

fn check(key: u64, found: &[u8]) {
    let seed = u64::from_le_bytes(found[8..16].try_into().unwrap());
    assert!(
        found == value(key, seed, found.len() - 16),
        "a value of {} bytes under key {key} is torn or another one's",
        found.len()
    );
}

fn put(table: &Table, key: u64, value: &[u8]) -> Version {
    loop {
        match table.put(&key.to_le_bytes(), value) {
            Ok(version) => return version,
            Err(StoreError::Full { .. }) => thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

fn work(table: &Table, thread: u64, rounds: u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (thread + 1));
    let mut newest = vec![Version(0); KEYS as usize];
    let mut see = |key: u64, version: Version| {
        let newest = &mut newest[key as usize];
        assert!(
            *newest <= version,
            "key {key} went back from {newest:?} to {version:?}"
        );
        *newest = version;
    };
    let mut buffer = Vec::new();
    for _ in 0..rounds {
        let key = random.next(KEYS);
        let bytes = key.to_le_bytes();
        match random.next(16) {
            0..6 => {
                let len = match random.next(20) {
                    0 => random.next(100_000),
                    _ => random.next(400),
                };
                let seed = random.next(u64::MAX);
                see(key, put(table, key, &value(key, seed, len as usize)));
            }
            6 => {
                table.delete(&bytes).unwrap();
            }
            7 => {
                let keys: Vec<[u8; 8]> = (0..20).map(|_| random.next(KEYS).to_le_bytes()).collect();
                let wanted: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
                table.get_batch(&wanted, |at, found| {
                    if let Some(found) = found {
                        check(u64::from_le_bytes(keys[at]), found);
                    }
                });
            }
            8 => {
                if table.get_into(&bytes, &mut buffer) {
                    check(key, &buffer);
                }
            }
            _ => {
                let seen = table.get_with(&bytes, |version, found| {
                    check(key, found);
                    version
                });
                if let Some(version) = seen {
                    see(key, version);
                }
            }
        }
    }
}

fn small(update: UpdatePolicy, epochs: EpochKind, cleaners: u16) -> StoreBuilder {
    Store::builder()
        .memory(Size::mib(48))
        .heads(2)
        .cleaner_threads(cleaners)
        .update(update)
        .experiments(Experiments {
            epochs,
            ..Experiments::default()
        })
        .threads_max(4)
}

fn stress(store: &Store) {
    let table = store.create_table("stress").unwrap();
    let rest = store.create_table("rest").unwrap();
    let counter = store.create_table("counter").unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|n| {
                let (table, counter) = (&table, &counter);
                scope.spawn(move || {
                    work(table, n, 20_000);
                    for _ in 0..500 {
                        while counter.increment(b"n", 1).is_err() {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        // Threads that come and go, and tables that do.
        let (rest, done) = (&rest, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let gone = store.create_table("gone").unwrap();
                thread::scope(|inner| {
                    for n in 0..3 {
                        let gone = &gone;
                        inner.spawn(move || {
                            for key in 0..50 {
                                match gone.put(&[n, key], &[key; 300]) {
                                    Ok(_)
                                    | Err(StoreError::TableDropped(_) | StoreError::Full { .. }) => {}
                                    Err(other) => panic!("{other}"),
                                }
                                assert!(gone.get(&[n, key]).is_none_or(|v| v == [key; 300]));
                            }
                        });
                    }
                    assert!(store.drop_table("gone"));
                });
                for (key, found) in rest {
                    check(u64::from_le_bytes(key.try_into().unwrap()), &found);
                }
            }
        });
        workers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(counter.get(b"n").unwrap(), b"3000");
    let mut objects = 0;
    for (key, found) in &table {
        check(u64::from_le_bytes(key.try_into().unwrap()), &found);
        objects += 1;
    }
    assert_eq!(table.len(), objects);
    assert!(store.stats().cleaner.passes > 0, "{:?}", store.stats());
}

#[test]
fn appended_values_are_whole_and_never_go_back() {
    stress(
        &small(UpdatePolicy::Append, EpochKind::Counter, 1)
            .build()
            .unwrap(),
    );
    stress(
        &small(UpdatePolicy::Append, EpochKind::Counter, 3)
            .build()
            .unwrap(),
    );
}

#[test]
fn values_overwritten_in_place_are_whole_and_never_go_back() {
    stress(
        &small(UpdatePolicy::InPlace, EpochKind::Counter, 2)
            .build()
            .unwrap(),
    );
}

#[test]
fn values_of_two_memory_nodes_with_a_cleaner_each_are_whole_and_never_go_back() {
    let nodes = vec![(0, vec![0]), (1, vec![1])];
    let builder = small(UpdatePolicy::Append, EpochKind::Counter, 2);
    let builder = builder.memory(Size::mib(64)).experiments(Experiments {
        topology: Topology::Numbered(nodes),
        ..Experiments::default()
    });
    let store = builder.build().unwrap();
    assert_eq!(store.stats().memory_nodes, 2);
    stress(&store);
}

/// Time stamps that go at one pace and never stop; not every processor has them.
mod needs_invariant_tsc {
    use super::*;

    #[test]
    fn epochs_of_time_stamps_protect_as_well() {
        stress(
            &small(UpdatePolicy::Append, EpochKind::Tsc, 1)
                .build()
                .unwrap(),
        );
    }
}

// shows: EMBED-3
#[test]
fn a_thread_that_panics_in_a_call_leaves_the_store_usable() {
    for update in [UpdatePolicy::Append, UpdatePolicy::InPlace] {
        let builder = Store::builder().memory(Size::mib(48)).update(update);
        let store = builder.build().unwrap();
        let table = store.create_table("test").unwrap();
        table.put(b"key", b"value").unwrap();
        let died = thread::scope(|scope| {
            let reader = scope.spawn(|| table.get_with(b"key", |_, _| panic!("on purpose")));
            reader.join().is_err()
        });
        assert!(died);
        assert_eq!(table.get(b"key").unwrap(), b"value");
        table.put(b"key", b"other").unwrap();
        assert!(table.delete(b"key").unwrap());
    }
}

#[test]
#[should_panic(expected = "another store")]
fn a_guard_of_another_store_keeps_nothing_readable_and_is_refused() {
    let build = || Store::builder().memory(Size::mib(48)).build().unwrap();
    let (one, two) = (build(), build());
    let table = one.create_table("t").unwrap();
    table.put(b"key", b"value").unwrap();
    let guard = two.pin();
    drop(table.get_ref(&guard, b"key"));
}

#[test]
fn two_stores_in_one_process_know_nothing_of_each_other() {
    let build = || Store::builder().memory(Size::mib(48)).build().unwrap();
    let (one, two) = (build(), build());
    let tables = [&one, &two].map(|store| store.create_table("same").unwrap());
    let written = AtomicU64::new(0);
    thread::scope(|scope| {
        for (n, table) in tables.iter().enumerate() {
            let written = &written;
            scope.spawn(move || {
                for key in 0..1000_u32 {
                    table.put(&key.to_le_bytes(), &[n as u8]).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    drop(one);
    assert_eq!(two.stats().objects, 1000);
    for (n, table) in tables.iter().enumerate() {
        assert!(
            table.iter().all(|(_, value)| value == [n as u8]),
            "a handle keeps its store"
        );
    }
    assert_eq!(written.into_inner(), 2000);
}
