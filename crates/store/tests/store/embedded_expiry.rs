//! Deadlines in an embedded store. Every call sees an object as gone from its deadline on, whatever
//! clocks show, and also after a crash. Its memory comes back without reads.

use crate::disk::Disk;
use pluvio_store::{
    Deadline, Host, Lifetime, Nodes, Pace, RejectRules, Size, Store, StoreBuilder, StoreError,
    Table, ThisMachine, TopologyError, TouchIf, UpdatePolicy, Worker,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The wall clock when the others show 0.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// A machine whose clocks show what they are told.
#[derive(Default)]
struct Hands {
    monotonic_ms: AtomicU64,
    /// How far the wall clock is behind where it should be.
    behind_ms: AtomicU64,
}

impl Hands {
    fn advance(&self, ms: u64) {
        self.monotonic_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn unix_ms(&self) -> u64 {
        EPOCH_MS + self.monotonic_ms.load(Ordering::Relaxed)
            - self.behind_ms.load(Ordering::Relaxed)
    }
}

impl Host for Hands {
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_ms.load(Ordering::Relaxed))
    }

    fn unix_time(&self) -> Duration {
        Duration::from_millis(self.unix_ms())
    }

    fn random(&self) -> u64 {
        4
    }

    fn nodes(&self) -> Result<Nodes, TopologyError> {
        Nodes::new(vec![vec![0]])
    }

    fn processor(&self) -> usize {
        0
    }

    fn work(
        &self,
        name: String,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        ThisMachine.work(name, step)
    }
}

fn builder(hands: &Arc<Hands>) -> StoreBuilder {
    Store::builder()
        .memory(Size::mib(64))
        .heads(2)
        .cleaner_threads(0)
        .host(Arc::clone(hands) as Arc<dyn Host>)
}

fn at(ms: u64) -> Lifetime {
    Lifetime::Until(Deadline::new(ms).unwrap())
}

/// Every call that could show that there is an object says that there is none.
#[track_caller]
fn is_absent(store: &Store, table: &Table, key: &[u8]) {
    let mut into = b"old".to_vec();
    assert_eq!(table.get(key), None);
    assert!(!table.get_into(key, &mut into) && into.is_empty());
    assert!(!table.contains(key));
    assert!(table.get_ref(&store.pin(), key).is_none());
    assert_eq!(table.deadline(key), None);
    table.get_batch(&[key], |_, value| assert_eq!(value, None));
    assert!(table.iter().all(|(found, _)| found != key));
    let touched = table.touch(key, Lifetime::Endless, TouchIf::Always);
    assert_eq!(touched, Ok(false));
    let rejected = table.put_if(key, b"new", RejectRules::ABSENT);
    assert_eq!(rejected, Err(StoreError::Condition { found: None }));
    assert_eq!(table.delete(key), Ok(false));
}

/// With and without a sink; values in one piece, and cut in many.
#[test]
fn from_its_deadline_on_an_object_is_absent_for_every_call() {
    for has_sink in [false, true] {
        for len in [1, 300 << 10] {
            let hands = Arc::<Hands>::default();
            let mut builder = builder(&hands);
            if has_sink {
                builder = builder.sink(Disk::default());
            }
            let store = builder.build().unwrap();
            let table = store.create_table("test").unwrap();
            let value = vec![7; len];
            let first = table.put_for(b"key", &value, Lifetime::For(1_000)).unwrap();
            // The horizon is with the sink.
            store.sync().unwrap();
            hands.advance(999);
            let deadline = EPOCH_MS + 1_000;
            assert_eq!(table.get(b"key").as_deref(), Some(&value[..]));
            assert_eq!(table.deadline(b"key"), Some(Deadline::new(deadline)));
            assert_eq!(table.iter().count(), 1);
            let guard = store.pin();
            let borrowed = table.get_ref(&guard, b"key").unwrap();
            hands.advance(1);
            is_absent(&store, &table, b"key");
            assert_eq!(&borrowed[..], &value[..], "what was borrowed stays");
            drop(guard);
            // Its place is taken as if there were nothing, and by a larger version.
            let second = table.put_if(b"key", b"5", RejectRules::EXISTS).unwrap();
            assert!(second > first);
            assert_eq!(table.deadline(b"key"), Some(None));
            assert_eq!(table.increment(b"key", 2), Ok(7));
        }
    }
}

#[test]
fn changes_keep_a_deadline_and_puts_end_it() {
    let hands = Arc::<Hands>::default();
    let store = builder(&hands).build().unwrap();
    let table = store.create_table("test").unwrap();
    let deadline = || table.deadline(b"n").unwrap().map(Deadline::ms);
    table.put_for(b"n", b"1", at(EPOCH_MS + 50)).unwrap();
    assert_eq!(table.increment(b"n", 1), Ok(2));
    assert_eq!(deadline(), Some(EPOCH_MS + 50));
    table.put_for(b"n", b"3", Lifetime::Keep).unwrap();
    assert_eq!(deadline(), Some(EPOCH_MS + 50));
    table.put(b"n", b"4").unwrap();
    assert_eq!(deadline(), None);
    let touch = |lifetime, when| table.touch(b"n", lifetime, when).unwrap();
    assert!(!touch(Lifetime::For(70), TouchIf::Bounded));
    assert!(touch(Lifetime::For(70), TouchIf::Endless));
    assert_eq!(deadline(), Some(EPOCH_MS + 70));
    assert!(!touch(Lifetime::For(60), TouchIf::Later));
    assert!(touch(Lifetime::For(60), TouchIf::Earlier));
    assert!(touch(Lifetime::Endless, TouchIf::Always));
    assert!(!touch(Lifetime::Endless, TouchIf::Always));
    assert_eq!(deadline(), None);
    // The longest one there is, and one that is over at once.
    assert!(touch(Lifetime::For(u64::MAX), TouchIf::Always));
    assert_eq!(deadline(), Some(Deadline::MAX.ms()));
    assert!(touch(at(1), TouchIf::Always));
    is_absent(&store, &table, b"n");
    table.put_for(b"n", b"5", Lifetime::For(0)).unwrap();
    is_absent(&store, &table, b"n");
    for nonsense in [0, i64::MAX as u64 + 1, u64::MAX] {
        assert_eq!(Deadline::new(nonsense), None);
    }
}

#[test]
fn memory_comes_back_without_reads() {
    const KEYS: u32 = 20_000;
    let hands = Arc::<Hands>::default();
    for threads in [0, 1] {
        let disk = Disk::default();
        for has_sink in [false, true] {
            let mut builder = builder(&hands).cleaner_threads(threads);
            if has_sink {
                builder = builder.sink(disk.clone());
            }
            let store = builder.build().unwrap();
            let table = store.create_table("test").unwrap();
            for key in 0..KEYS {
                let lifetime = match key % 2 {
                    0 => Lifetime::For(500),
                    _ => Lifetime::For(1 << 40),
                };
                table
                    .put_for(&key.to_le_bytes(), b"value", lifetime)
                    .unwrap();
            }
            let full = store.stats();
            assert_eq!(full.objects, u64::from(KEYS));
            // In a store with a sink time follows its horizon.
            while store.stats().objects > u64::from(KEYS / 2) {
                hands.advance(100);
                store.sync().unwrap();
                match threads {
                    0 => drop(store.clean_step()),
                    _ => std::thread::yield_now(),
                }
            }
            let swept = store.stats();
            assert_eq!(swept.expired, u64::from(KEYS / 2));
            assert!(swept.live_bytes < full.live_bytes);
            assert_eq!(table.iter().count() as u32, KEYS / 2);
        }
    }
}

#[test]
fn a_wall_clock_that_goes_back_lets_nothing_live_again() {
    let hands = Arc::<Hands>::default();
    let store = builder(&hands).build().unwrap();
    let table = store.create_table("test").unwrap();
    table.put_for(b"gone", b"v", Lifetime::For(1_000)).unwrap();
    table.put_for(b"soon", b"v", Lifetime::For(5_000)).unwrap();
    hands.advance(1_500);
    assert!(!table.contains(b"gone"));
    hands.behind_ms.store(3_600_000, Ordering::Relaxed);
    for _ in 0..10 {
        hands.advance(100);
        store.clean_step();
        is_absent(&store, &table, b"gone");
    }
    assert!(table.contains(b"soon"));
    // It follows the wall clock back at 1 %.
    hands.advance(2_600);
    assert!(!table.contains(b"soon"));
}

/// The time that the first life judged by is in its log. So the second one shows none of what was
/// gone, even where its wall clock shows an hour less.
// shows: EMBED-5
#[test]
fn what_was_gone_stays_gone_in_the_next_life() {
    let hands = Arc::<Hands>::default();
    let disk = Disk::default();
    let store = builder(&hands).sink(disk.clone()).build().unwrap();
    let table = store.create_table("test").unwrap();
    let put = |key: &[u8], ms| table.put_for(key, b"v", Lifetime::For(ms)).unwrap();
    // The version before must not return either.
    table.put(b"gone", b"for ever").unwrap();
    put(b"gone", 1_000);
    put(b"near", 1_900);
    put(b"later", 100_000);
    table.put(b"endless", b"v").unwrap();
    store.sync().unwrap();
    hands.advance(1_500);
    assert!(!table.contains(b"gone") && table.contains(b"near"));
    // Nobody has swept, so the log has the object and no tombstone.
    hands.behind_ms.store(3_600_000, Ordering::Relaxed);
    let kept = disk.read_back().unwrap();
    let found: BTreeMap<&[u8], Option<Deadline>> = kept
        .objects
        .iter()
        .map(|object| (&object.key[..], object.deadline))
        .collect();
    let later = Deadline::new(EPOCH_MS + 100_000);
    let expected: [(&[u8], _); 2] = [(b"endless", None), (b"later", later)];
    assert_eq!(found, BTreeMap::from(expected), "near went up to 2 s early");
    let next = builder(&hands)
        .first_version(kept.next_version)
        .build()
        .unwrap();
    let again = next.create_table("test").unwrap();
    for object in &kept.objects {
        again
            .put_for(&object.key, &object.value, object.lifetime())
            .unwrap();
    }
    assert_eq!(again.deadline(b"later"), Some(later));
    is_absent(&next, &again, b"gone");
}

/// A sink that takes nothing keeps time from going on: no time is judged by that it does not have.
#[test]
fn time_stands_still_while_a_sink_takes_no_horizon() {
    let hands = Arc::<Hands>::default();
    let disk = Disk::default();
    let store = builder(&hands).sink(disk.clone()).build().unwrap();
    let table = store.create_table("test").unwrap();
    table.put_for(b"first", b"v", Lifetime::For(1_000)).unwrap();
    table
        .put_for(b"second", b"v", Lifetime::For(5_000))
        .unwrap();
    store.sync().unwrap();
    disk.0.fails_each.store(1, Ordering::Relaxed);
    hands.advance(10_000);
    store.clean_step();
    assert!(!table.contains(b"first"), "the horizon was 2 s ahead");
    assert!(table.contains(b"second"));
    disk.0.fails_each.store(0, Ordering::Relaxed);
    store.clean_step();
    // The failure is told once.
    while store.sync().is_err() {}
    assert!(!table.contains(b"second"));
}

#[test]
fn a_store_that_overwrites_in_place_refuses_deadlines() {
    let hands = Arc::<Hands>::default();
    let builder = builder(&hands).update(UpdatePolicy::InPlace);
    let store = builder.build().unwrap();
    let table = store.create_table("test").unwrap();
    table.put(b"key", b"value").unwrap();
    for lifetime in [Lifetime::For(0), Lifetime::For(1 << 40), at(1), at(1 << 60)] {
        let refused = Err(StoreError::NoDeadlines);
        assert_eq!(table.put_for(b"key", b"other", lifetime), refused);
        assert_eq!(table.put_for(b"new", b"other", lifetime), refused);
        let touched = table.touch(b"key", lifetime, TouchIf::Always);
        assert_eq!(touched, Err(StoreError::NoDeadlines));
    }
    assert_eq!(table.get(b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!(table.deadline(b"key"), Some(None));
    assert_eq!(table.deadline(b"new"), None);
    for lifetime in [Lifetime::Endless, Lifetime::Keep] {
        table.put_for(b"key", b"again", lifetime).unwrap();
        let touched = table.touch(b"key", lifetime, TouchIf::Always);
        assert_eq!(touched, Ok(false));
    }
    assert_eq!(table.get(b"key").as_deref(), Some(&b"again"[..]));
}

/// A value, and when it expires.
type Held = (Vec<u8>, Option<u64>);

/// A small generator of numbers; the same seed gives the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
    }

    fn lifetime(&mut self, now: u64) -> Lifetime {
        match self.below(4) {
            0 => Lifetime::Keep,
            1 => Lifetime::Endless,
            2 => at(now + self.below(3_000) - 500),
            _ => Lifetime::For(self.below(3_000)),
        }
    }
}

/// The deadline that a lifetime gives.
fn deadline_of(lifetime: Lifetime, known: Option<u64>, now: u64) -> Option<u64> {
    match lifetime {
        Lifetime::Keep => known,
        Lifetime::Endless => None,
        Lifetime::Until(deadline) => Some(deadline.ms()),
        Lifetime::For(ms) => Some(now + ms),
    }
}

#[test]
fn a_store_does_what_a_map_with_deadlines_does() {
    const STEPS: u64 = 20_000;
    for seed in 1..=4_u64 {
        let hands = Arc::<Hands>::default();
        let store = builder(&hands).build().unwrap();
        let table = store.create_table("test").unwrap();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut model: BTreeMap<Vec<u8>, Held> = BTreeMap::new();
        for step in 0..STEPS {
            let now = hands.unix_ms();
            model.retain(|_, (_, deadline)| deadline.is_none_or(|ms| ms > now));
            let key = random.below(40).to_string().into_bytes();
            // Now and then one that is cut in many pieces.
            let len = match random.below(50) {
                0 => 200 << 10,
                _ => random.below(300),
            };
            let value = vec![step as u8; len as usize];
            let known = model.get(&key).and_then(|(_, deadline)| *deadline);
            match random.below(9) {
                0 => {
                    table.put(&key, &value).unwrap();
                    model.insert(key.clone(), (value, None));
                }
                1 | 2 => {
                    let lifetime = random.lifetime(now);
                    table.put_for(&key, &value, lifetime).unwrap();
                    let deadline = deadline_of(lifetime, known, now);
                    model.insert(key.clone(), (value, deadline));
                }
                3 => {
                    let lifetime = random.lifetime(now);
                    let touched = table.touch(&key, lifetime, TouchIf::Always).unwrap();
                    let deadline = deadline_of(lifetime, known, now);
                    let bounded = matches!(lifetime, Lifetime::Until(_) | Lifetime::For(_));
                    let held = model.get_mut(&key);
                    assert_eq!(touched, held.is_some() && (bounded || deadline != known));
                    if let Some((_, held)) = held {
                        *held = deadline;
                    }
                }
                4 => {
                    let deleted = model.remove(&key).is_some();
                    assert_eq!(table.delete(&key), Ok(deleted), "seed {seed}, step {step}");
                }
                5 => hands.advance(random.below(400)),
                6 => drop(store.clean_step()),
                _ => {}
            }
            let now = hands.unix_ms();
            let is_there = |(_, deadline): &&Held| deadline.is_none_or(|ms| ms > now);
            let held = model.get(&key).filter(is_there);
            let found = table.get(&key);
            assert_eq!(
                found.as_deref(),
                held.map(|(value, _)| &value[..]),
                "seed {seed}, step {step}"
            );
            let deadline = table.deadline(&key).map(|found| found.map(Deadline::ms));
            assert_eq!(deadline, held.map(|(_, deadline)| *deadline));
        }
        let now = hands.unix_ms();
        let left = model.into_iter();
        let left = left.filter(|(_, (_, deadline))| deadline.is_none_or(|ms| ms > now));
        let left: BTreeMap<Vec<u8>, Vec<u8>> = left.map(|(key, (value, _))| (key, value)).collect();
        assert_eq!(
            table.iter().collect::<BTreeMap<_, _>>(),
            left,
            "seed {seed}"
        );
    }
}
