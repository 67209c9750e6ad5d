//! A wall clock that jumps: nothing correct depends on it. What does are the ages of segments, by
//! which the cleaner chooses, and the pages that it gives back.

use pluvio_store::{Host, Nodes, Pace, Size, Store, StoreError, Table, TopologyError, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const HOUR: i64 = 3600;
const KEYS: u64 = 40_000;
const VALUE: usize = 1000;

/// A machine whose clock shows what it is told, and which has no threads for us.
struct Clock(AtomicU32);

impl Host for Clock {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed).into())
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
        _name: String,
        _step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        unreachable!("the tests clean by themselves")
    }
}

struct World {
    clock: Arc<Clock>,
    store: Store,
    table: Table,
    /// Of each key, how often it was written.
    written: Vec<u64>,
    random: u64,
}

impl World {
    /// Filled to some 83 %.
    fn new() -> Self {
        let clock = Arc::new(Clock(AtomicU32::new(1_800_000_000)));
        let builder = Store::builder()
            .memory(Size::mib(48))
            .heads(1)
            .cleaner_threads(0)
            .host(Arc::clone(&clock) as Arc<dyn Host>);
        let store = builder.build().unwrap();
        let table = store.create_table("test").unwrap();
        let mut world = Self {
            clock,
            store,
            table,
            written: vec![0; KEYS as usize],
            random: 0x9e37_79b9_7f4a_7c15,
        };
        (0..KEYS).for_each(|key| world.write(key));
        world
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }

    fn write(&mut self, key: u64) {
        let times = &mut self.written[key as usize];
        *times += 1;
        let mut value = vec![key as u8; VALUE];
        value[..8].copy_from_slice(&times.to_le_bytes());
        for _ in 0..10_000 {
            match self.table.put(&key.to_le_bytes(), &value) {
                Ok(_) => return,
                Err(StoreError::Full { .. }) => {
                    let _more = self.store.clean_step();
                }
                Err(other) => panic!("{other}"),
            }
        }
        panic!("no room although little is live: {:?}", self.store.stats());
    }

    /// Overwrites so many objects, nine of ten times one of the hot tenth; each thousand takes a
    /// second.
    fn overwrite(&mut self, changes: u64) {
        for change in 1..=changes {
            let key = match self.below(10) {
                0 => self.below(KEYS),
                _ => self.below(KEYS / 10),
            };
            self.write(key);
            if change % 16 == 0 {
                let _more = self.store.clean_step();
            }
            if change % 1000 == 0 {
                self.clock.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn jump(&self, by: i64) {
        let now = i64::from(self.clock.unix_seconds()) + by;
        self.clock
            .0
            .store(u32::try_from(now).unwrap(), Ordering::Relaxed);
    }

    /// Bytes copied by the cleaner so far.
    fn copied(&self) -> u64 {
        self.store.stats().cleaner.bytes_copied()
    }

    fn check(&self) {
        for (key, times) in (0_u64..).zip(&self.written) {
            let value = self.table.get(&key.to_le_bytes()).unwrap();
            assert_eq!(value[..8], times.to_le_bytes(), "key {key}");
        }
        assert_eq!(self.table.len(), KEYS);
    }
}

/// What the clock does before each part of the writes.
type Jump = dyn Fn(&World, u32);

/// What the cleaner copies for the same writes, while the clock does `jump` before each part of
/// them.
fn copied_with(jump: impl Fn(&World, u32)) -> u64 {
    let mut world = World::new();
    world.overwrite(40_000);
    let before = world.copied();
    for part in 0..20 {
        jump(&world, part);
        world.overwrite(5_000);
    }
    world.check();
    world.copied() - before
}

#[test]
fn a_clock_that_goes_back_and_forth_by_an_hour_makes_cleaning_hardly_dearer() {
    let steady = copied_with(|_, _| ());
    let scenarios: [(&str, &Jump); 3] = [
        ("back once", &|world, part| {
            world.jump(if part == 0 { -HOUR } else { 0 });
        }),
        ("forth and back once", &|world, part| {
            world.jump(match part {
                0 => HOUR,
                1 => -HOUR,
                _ => 0,
            });
        }),
        ("back and forth all the time", &|world, part| {
            world.jump(if part % 2 == 0 { -HOUR } else { HOUR });
        }),
    ];
    for (what, jump) in scenarios {
        let copied = copied_with(jump);
        println!("{what}: {copied} bytes copied, {steady} by a steady clock");
        assert!(
            copied * 2 <= steady * 3,
            "{what}: {copied} bytes copied, {steady} by a steady clock"
        );
    }
}

/// Most is deleted after the clock went back: the pages of it go back to the system all the same.
#[test]
fn a_clock_that_went_back_by_an_hour_does_not_keep_memory_from_the_system() {
    let mut world = World::new();
    world.jump(HOUR);
    world.overwrite(2_000);
    world.jump(-HOUR);
    for key in KEYS / 10..KEYS {
        assert!(world.table.delete(&key.to_le_bytes()).unwrap());
    }
    for _ in 0..60 {
        world.jump(1);
        for _ in 0..100 {
            let _more = world.store.clean_step();
        }
    }
    let stats = world.store.stats();
    assert!(
        stats.cleaner.bytes_given_back > stats.memory_bytes / 3,
        "of {} bytes: {:?}",
        stats.memory_bytes,
        stats.cleaner
    );
}
