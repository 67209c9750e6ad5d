//! Writers, readers and two cleaner threads, in a memory that is nearly full.

use crate::support::{Random, Store, options};
use pluvio_log::{AppendError, Durability, LogOptions};
use pluvio_units::LogId;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const WRITERS: u32 = 2;
const KEYS_EACH: u32 = 1500;
const ROUNDS: u32 = 6;

#[test]
fn writers_readers_and_cleaners_do_not_disturb_each_other() {
    let options = LogOptions {
        cleaners: 2,
        ..options(48, WRITERS as u16, Durability::Volatile)
    };
    let store = Store::new(options, WRITERS * KEYS_EACH);
    let running = AtomicU32::new(WRITERS);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, running, failed) = (&store, &running, &failed);
            scope.spawn(move || {
                let done = write(store, writer, failed);
                running.fetch_sub(1, Ordering::SeqCst);
                assert!(done, "another thread failed");
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while running.load(Ordering::SeqCst) > 0 {
                    if store.cleaner.step(1).is_err() {
                        failed.store(true, Ordering::SeqCst);
                        panic!("memory is corrupt");
                    }
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            let mut random = Random::new(99);
            while running.load(Ordering::SeqCst) > 0 {
                store.read(random.below(u64::from(WRITERS * KEYS_EACH)) as u32);
            }
        });
    });
    store.check_live_bytes();
    let cleaner = store.space.stats().cleaner;
    assert!(cleaner.passes > 3, "{cleaner:?}");
    for key in 0..WRITERS * KEYS_EACH {
        let (_, len) = store.read(key).expect("every key was written");
        assert_eq!(len, last_len(key));
    }
}

fn last_len(key: u32) -> usize {
    1000 + key as usize * 31 % 20_000
}

fn write(store: &Store, writer: u32, failed: &AtomicBool) -> bool {
    for round in 0..ROUNDS {
        for i in 0..KEYS_EACH {
            let key = writer * KEYS_EACH + i;
            let len = if round + 1 == ROUNDS {
                last_len(key)
            } else {
                10_000
            };
            let log = LogId((i % WRITERS) as u16);
            while let Err(error) = store.change(log, key, Some(len), 1) {
                assert!(matches!(error, AppendError::Full { .. }), "{error}");
                if failed.load(Ordering::SeqCst) {
                    return false;
                }
                std::thread::yield_now();
            }
        }
    }
    true
}
