//! Several writers, readers, cleaners and replication, each in its thread, over a memory that is
//! full all the time. Deletes and overwrites go on, each refusal has a delay, and nothing is lost,
//! in memory or on disk.
//!
//! `PLUVIO_STEPS` says how many steps each writer does (`cargo xtask long-tests`).

use crate::support::refusal::Refusal;
use crate::support::replication::Replication;
use crate::support::{Random, Store, adversarial, options, seeded, steps_or};
use pluvio_log::{AppendError, Durability, FullReason, LogOptions};
use pluvio_units::{LogId, Pace};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const WRITERS: u32 = 3;
const CLEANERS: u16 = 3;
const LOGS: u16 = 2;
const KEYS_EACH: u32 = 2_000;
/// A change that is refused for this number of cleaner steps is refused for ever: they would have
/// cleaned all memory many times over.
const CLEANER_STEPS_MAX: u64 = 2_000_000;

struct World {
    store: Store,
    /// Writers that have not ended.
    writing: AtomicU32,
    /// A thread has panicked: the others end, so that the test does.
    failed: AtomicBool,
    cleaner_steps: AtomicU64,
    changes: AtomicU64,
    refused: AtomicU64,
    /// How often a writer looked at the memory, and how often 95 % of it were in use. The reserves
    /// of several heads keep the rest.
    samples: AtomicU64,
    samples_full: AtomicU64,
}

/// Tells the others when a thread panics.
struct Failing<'w>(&'w World);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
        }
    }
}

impl World {
    fn is_running(&self) -> bool {
        self.writing.load(Ordering::SeqCst) > 0 && !self.failed.load(Ordering::SeqCst)
    }

    fn now_s(&self) -> u32 {
        1 + (self.changes.load(Ordering::Relaxed) / 1000) as u32
    }

    /// Changes a key; tries again as long as the cleaners may help.
    fn change(&self, log: LogId, key: u32, len: Option<usize>) -> Result<(), FullReason> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        // A change that makes live data more may be refused for good, by fragmentation before the
        // limit.
        let old = self.store.read(key).map(|(_, len)| len);
        let may_be_refused = len > old;
        let before = self.cleaner_steps.load(Ordering::Relaxed);
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.store.change(log, key, len, self.now_s()) {
                Ok(_) => return Ok(()),
                Err(AppendError::Full { why, .. })
                    if may_be_refused && (attempts > 100 || why == FullReason::LiveObjects) =>
                {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return Err(why);
                }
                Err(AppendError::Full { why, .. }) => {
                    let steps = self.cleaner_steps.load(Ordering::Relaxed) - before;
                    assert!(
                        steps < CLEANER_STEPS_MAX,
                        "no progress, {old:?} to {len:?}: {why}, {:#?}",
                        self.store.space
                    );
                    assert!(!self.failed.load(Ordering::SeqCst), "another thread failed");
                    std::thread::yield_now();
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// One writer's life; gives the lengths of its keys.
    fn write(&self, writer: u32, steps: u64) -> Vec<Option<usize>> {
        let _failing = Failing(self);
        let mut random = seeded(100 + u64::from(writer));
        let key_of = |own: usize| own as u32 * WRITERS + writer;
        let mut lens: Vec<Option<usize>> = vec![None; KEYS_EACH as usize];
        let log = |random: &mut Random| LogId(random.below(u64::from(LOGS)) as u16);
        for (own, len) in lens.iter_mut().enumerate() {
            let new = Some(adversarial(&mut random));
            if self.change(log(&mut random), key_of(own), new).is_err() {
                break;
            }
            *len = new;
        }
        for step in 0..steps {
            let own = random.below(u64::from(KEYS_EACH)) as usize;
            let new = adversarial(&mut random);
            // Filled up, then overwritten for a while, with a few deletes.
            let fills = step % 250 < 50;
            let (len, must) = match (random.below(20), lens[own]) {
                (0, _) => (None, true),
                (1..5, Some(len)) => (Some(new.min(len)), true),
                (_, Some(len)) if !fills => (Some(len), true),
                (_, None) if !fills => continue,
                (_, old) => (Some(new), Some(new) <= old),
            };
            match self.change(log(&mut random), key_of(own), len) {
                Ok(()) => lens[own] = len,
                Err(why) if must => panic!("step {step}: {len:?} for {:?}: {why}", lens[own]),
                Err(_) => {}
            }
            if step % 20 == 0 {
                let stats = self.store.space.stats();
                let full = stats.free_bytes * 100 <= stats.memory_bytes * 5;
                self.samples.fetch_add(1, Ordering::Relaxed);
                self.samples_full
                    .fetch_add(u64::from(full), Ordering::Relaxed);
            }
        }
        self.writing.fetch_sub(1, Ordering::SeqCst);
        lens
    }

    fn clean(&self) {
        let _failing = Failing(self);
        while self.is_running() {
            let pace = self.store.cleaner.step(self.now_s());
            self.cleaner_steps.fetch_add(1, Ordering::Relaxed);
            if pace.expect("memory is right") != Pace::Again {
                std::thread::yield_now();
            }
        }
    }

    /// Reads any keys: that a value is one that was written is checked by the read.
    fn read(&self) {
        let _failing = Failing(self);
        let mut random = Random::new(99);
        while self.is_running() {
            for _ in 0..64 {
                let key = random.below(u64::from(WRITERS * KEYS_EACH));
                self.store.read(key as u32);
            }
            std::thread::yield_now();
        }
    }

    fn replicate(&self, replication: &mut Replication) {
        let _failing = Failing(self);
        let mut random = Random::new(98);
        while self.is_running() {
            let mut more = false;
            for log in self.store.space.logs() {
                more |= replication.step(log, &mut random);
            }
            if !more {
                std::thread::yield_now();
            }
        }
    }
}

fn full_all_the_time(durability: Durability, steps: u64, refuses: bool) {
    let options = LogOptions {
        cleaners: CLEANERS,
        live_percent_max: 98,
        ..options(96, LOGS, durability)
    };
    let world = World {
        store: Store::new(options, WRITERS * KEYS_EACH),
        writing: AtomicU32::new(WRITERS),
        failed: AtomicBool::new(false),
        cleaner_steps: AtomicU64::new(0),
        changes: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        samples: AtomicU64::new(0),
        samples_full: AtomicU64::new(0),
    };
    let refusal = refuses.then(|| Refusal::at_random(&world.store.space, 5, 4));
    let mut replication = match durability {
        Durability::Volatile => None,
        Durability::Replicated => Some(Replication::new(&world.store.space, 4 << 20)),
    };
    let lens: Vec<Vec<Option<usize>>> = std::thread::scope(|scope| {
        let world = &world;
        for _ in 0..CLEANERS {
            scope.spawn(move || world.clean());
        }
        scope.spawn(move || world.read());
        if let Some(replication) = &mut replication {
            scope.spawn(move || world.replicate(replication));
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || world.write(writer, steps)))
            .collect();
        let lens = writers.into_iter().map(|writer| writer.join());
        lens.map(|lens| lens.expect("no writer panics")).collect()
    });
    if let Some(refusal) = &refusal {
        refusal.end();
    }
    let expected = |key: u32| lens[(key % WRITERS) as usize][(key / WRITERS) as usize];
    let keys = 0..WRITERS * KEYS_EACH;
    for key in keys.clone() {
        let found = world.store.read(key).map(|(_, len)| len);
        assert_eq!(found, expected(key), "key {key}");
    }
    world.store.check_live_bytes();
    if let Some(replication) = &mut replication {
        // All is durable then: recovery, by the digests there are, finds what memory has.
        replication.finish(&mut Random::new(97));
        let found = replication.recover();
        for key in keys {
            let (version, len) = found.get(&key).copied().unwrap_or((0, None));
            assert_eq!(len, expected(key), "key {key}, version {version}, on disk");
        }
    }
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    println!(
        "{durability:?}: {} changes, {} refused, 95 % used at {} of {} looks, {:?}",
        count(&world.changes),
        count(&world.refused),
        count(&world.samples_full),
        count(&world.samples),
        world.store.space.stats().cleaner,
    );
    assert!(
        count(&world.refused) > 0 && count(&world.samples_full) * 10 > count(&world.samples),
        "memory was full"
    );
}

// shows: LOG-7
#[test]
fn writers_and_cleaners_go_on_in_a_full_memory_without_replicas() {
    full_all_the_time(Durability::Volatile, steps_or(2_500), false);
}

#[test]
fn writers_and_cleaners_go_on_in_a_full_memory_with_replicas() {
    full_all_the_time(Durability::Replicated, steps_or(2_500), false);
}

#[test]
fn writers_and_cleaners_go_on_in_a_full_memory_that_refuses_at_random() {
    full_all_the_time(Durability::Replicated, steps_or(1_500), true);
}
