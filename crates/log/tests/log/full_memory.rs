//! Memory at its limits: overwriting for ever at high utilization, full memory, deletes, and
//! writing again. Nothing may hang and nothing may be lost.

use crate::support::refusal::Refusal;
use crate::support::replication::Replication;
use crate::support::{Random, Store, adversarial, options, seeded, steps_or};
use pluvio_log::{AppendError, Durability, FullReason, SegletClass};
use pluvio_units::LogId;

/// A store that is driven by one thread: cleaner and replication get steps when an append is
/// refused, and now and then.
struct Driver {
    store: Store,
    replication: Option<Replication>,
    random: Random,
    /// The log that is appended to; `None`: any.
    only: Option<LogId>,
    now_s: u32,
    changes: u64,
}

impl Driver {
    fn new(mib: u64, logs: u16, durability: Durability, live_percent_max: u32, keys: u32) -> Self {
        let mut options = options(mib, logs, durability);
        options.live_percent_max = live_percent_max;
        let store = Store::new(options, keys);
        let replication = match durability {
            Durability::Volatile => None,
            Durability::Replicated => Some(Replication::new(&store.space, 4 << 20)),
        };
        Self {
            store,
            replication,
            random: seeded(7),
            only: None,
            now_s: 1,
            changes: 0,
        }
    }

    fn log(&mut self) -> LogId {
        let logs = self.store.space.logs().count() as u64;
        self.only
            .unwrap_or_else(|| LogId(self.random.below(logs) as u16))
    }

    fn background(&mut self) {
        for _ in 0..4 {
            let _pace = self
                .store
                .cleaner
                .step(self.now_s)
                .expect("memory is right");
            if let Some(replication) = &mut self.replication {
                for log in self.store.space.logs() {
                    while replication.step(log, &mut self.random) {}
                }
            }
        }
    }

    /// Changes a key; tries again as long as the cleaner may help.
    fn change(&mut self, key: u32, len: Option<usize>) -> Result<(), FullReason> {
        self.changes += 1;
        if self.changes.is_multiple_of(1000) {
            self.now_s += 1;
        }
        if self.changes.is_multiple_of(16) {
            let _pace = self
                .store
                .cleaner
                .step(self.now_s)
                .expect("memory is right");
        }
        let log = self.log();
        // A change that makes live data more may be refused for good, by fragmentation before the
        // limit.
        let old = self.store.read(key).map(|(_, len)| len);
        let may_be_refused = len > old;
        let mut last = None;
        for attempt in 0..3000 {
            match self.store.change(log, key, len, self.now_s) {
                Ok(_) => return Ok(()),
                Err(AppendError::Full {
                    why: FullReason::LiveObjects,
                    ..
                }) => {
                    return Err(FullReason::LiveObjects);
                }
                Err(AppendError::Full { why, .. }) if may_be_refused && attempt > 100 => {
                    return Err(why);
                }
                Err(AppendError::Full { why, .. }) => {
                    last = Some(why);
                    self.background();
                }
                Err(other) => panic!("{other}"),
            }
        }
        panic!(
            "no progress, {old:?} to {len:?}: {last:?}, {:#?}",
            self.store.space
        );
    }

    /// Writes new keys until live objects are at `percent` of the memory; returns how many.
    fn fill(&mut self, percent: u64, size: impl Fn(&mut Random) -> usize) -> u32 {
        let mut keys = 0;
        loop {
            let stats = self.store.space.stats();
            for _ in 0..50 {
                let live = self.store.space.stats().live_bytes;
                let len = size(&mut self.random);
                if (live + len as u64) * 100 > stats.memory_bytes * percent {
                    return keys;
                }
                self.change(keys, Some(len)).expect("below the limit");
                keys += 1;
            }
        }
    }

    /// Overwrites random keys with values of the sizes they have. Gives the share of overwrites, in
    /// percent, that left no more than 2 % of the memory free.
    fn overwrite(&mut self, keys: u32, bytes: u64) -> u64 {
        let (mut written, mut used, mut samples) = (0, 0, 1);
        while written < bytes {
            if self.changes.is_multiple_of(64) {
                let stats = self.store.space.stats();
                used += u64::from(stats.free_bytes * 100 <= stats.memory_bytes * 2);
                samples += 1;
            }
            let key = self.random.below(u64::from(keys)) as u32;
            let len = self.store.read(key).expect("it was written").1;
            self.change(key, Some(len)).expect("it grows nothing");
            written += len as u64 + 20;
        }
        used * 100 / samples
    }

    fn finish(&mut self) {
        if let Some(replication) = &mut self.replication {
            replication.finish(&mut self.random);
        }
        self.store.check_live_bytes();
    }
}

/// Every order of magnitude up to 1 MiB. So the large ones hold most of the bytes, and the small
/// ones are most of the objects.
fn mixed(random: &mut Random) -> usize {
    if random.below(50) == 0 {
        1 + random.below(1 << 20) as usize
    } else {
        random.mixed_size()
    }
}

fn overwrite_for_ever(
    mut driver: Driver,
    percent: u64,
    turns: u64,
    size: fn(&mut Random) -> usize,
) {
    let keys = driver.fill(percent, size);
    let memory = driver.store.space.stats().memory_bytes;
    driver.overwrite(keys, memory * turns);
    driver.finish();
    for key in 0..keys {
        driver.store.read(key).expect("nothing was deleted");
    }
    let stats = driver.store.space.stats();
    assert!(stats.live_bytes * 100 >= stats.memory_bytes * (percent - 3));
    println!(
        "{} MiB, {percent} %: write cost {:?}, {:?}",
        memory >> 20,
        stats.cleaner.write_cost(),
        stats.cleaner
    );
}

#[test]
fn mixed_sizes_are_overwritten_for_ever_at_80_percent_without_replicas() {
    let driver = Driver::new(64, 1, Durability::Volatile, 90, 20_000);
    overwrite_for_ever(driver, 80, 3, mixed);
}

#[test]
fn mixed_sizes_are_overwritten_for_ever_at_80_percent_with_replicas() {
    let driver = Driver::new(64, 1, Durability::Replicated, 90, 20_000);
    overwrite_for_ever(driver, 80, 2, mixed);
}

/// Bits that say what is dead may be lost: the index is asked then.
fn overwrite_while_dead_bits_are_lost(durability: Durability) {
    let _marks = pluvio_units::Marks::to_reach(&["cleaner-dead-bit-lost"]);
    let mut driver = Driver::new(64, 1, durability, 92, 600_000);
    let keys = driver.fill(88, |_| 300);
    for _ in 0..32 {
        driver.overwrite(keys, 1 << 20);
        driver.store.space.lose_dead_bits();
    }
    driver.finish();
    for key in 0..keys {
        driver.store.read(key).expect("nothing was deleted");
    }
}

#[test]
fn a_full_memory_is_overwritten_although_all_dead_bits_are_lost_without_replicas() {
    overwrite_while_dead_bits_are_lost(Durability::Volatile);
}

#[test]
fn a_full_memory_is_overwritten_although_all_dead_bits_are_lost_with_replicas() {
    overwrite_while_dead_bits_are_lost(Durability::Replicated);
}

#[test]
fn small_objects_are_overwritten_for_ever_at_90_percent_without_replicas() {
    let driver = Driver::new(64, 1, Durability::Volatile, 92, 600_000);
    overwrite_for_ever(driver, 90, 1, |_| 100);
}

#[test]
fn small_objects_are_overwritten_for_ever_at_90_percent_with_replicas() {
    let _marks = pluvio_units::Marks::to_reach(&["log-emergency-head"]);
    let driver = Driver::new(64, 1, Durability::Replicated, 92, 600_000);
    overwrite_for_ever(driver, 90, 1, |_| 100);
}

/// Filled until new objects are refused, then overwritten: the graves go beyond the limit, as far
/// as there is memory.
#[test]
fn overwrites_at_the_limit_of_live_objects_have_graves_as_long_as_there_is_memory() {
    let graves = |driver: &Driver, keys: u32| {
        let with = (0..keys).filter(|&key| driver.store.graves_of(key).is_some_and(|n| n > 0));
        with.count() as u32
    };
    let (keys_max, size) = (400_000, 100);
    let mut driver = Driver::new(48, 1, Durability::Replicated, 80, keys_max);
    let fill = |driver: &mut Driver| {
        let mut keys = 0;
        while driver.change(keys, Some(size)).is_ok() {
            keys += 1;
        }
        keys
    };
    let keys = fill(&mut driver);
    assert!(keys < keys_max, "the limit was met");
    driver.overwrite(keys, 48 << 20);
    assert!(graves(&driver, keys) > keys / 4);
    let stats = driver.store.space.stats();
    assert!(stats.live_bytes > stats.live_bytes_max, "{stats:?}");
    driver.finish();
}

/// Versions are written in as many bytes as they need. Live objects are at their limit, to the
/// byte.
#[test]
fn an_overwrite_that_grows_by_its_version_alone_is_not_refused() {
    let keys_max = 40_000;
    let mut driver = Driver::new(32, 1, Durability::Volatile, 80, keys_max);
    let mut keys = 0;
    for size in [1000, 1] {
        while driver.change(keys, Some(size)).is_ok() {
            keys += 1;
        }
    }
    assert!(keys < keys_max, "the limit was met");
    for key in 0..40 {
        for _ in 0..130 {
            let done = driver.change(key, Some(1000));
            done.expect("it has the value's length that it had");
        }
    }
    let stats = driver.store.space.stats();
    assert!(stats.live_bytes > stats.live_bytes_max, "{stats:?}");
    driver.finish();
}

fn fill_delete_and_write_again(mut driver: Driver, size: fn(&mut Random) -> usize) {
    let mut keys = 0u32;
    let refused = loop {
        let len = size(&mut driver.random);
        match driver.change(keys, Some(len)) {
            Ok(()) => keys += 1,
            Err(why) => break why,
        }
    };
    assert!(
        matches!(refused, FullReason::LiveObjects | FullReason::Seglets),
        "{refused}"
    );
    let full = driver.store.space.stats();
    assert!(
        full.live_bytes * 100 >= full.live_bytes_max * 95,
        "{full:?}"
    );
    // Overwriting works at the limit, growing does not.
    let len = driver.store.read(0).expect("it was written").1;
    driver.change(0, Some(len)).expect("it grows nothing");
    // Deletes work from the first to the last.
    for key in 0..keys {
        driver
            .change(key, None)
            .expect("a delete works on a full memory");
    }
    driver.finish();
    assert_eq!(driver.store.space.stats().live_bytes, 0);
    for key in 0..keys / 2 {
        let len = size(&mut driver.random).min(100_000);
        driver.change(key, Some(len)).expect("memory is free again");
    }
    driver.finish();
    assert!(driver.store.read(keys - 1).is_none());
}

// shows: LOG-8
#[test]
fn a_full_memory_takes_deletes_and_then_writes() {
    let driver = Driver::new(32, 1, Durability::Volatile, 90, 20_000);
    fill_delete_and_write_again(driver, mixed);
    let driver = Driver::new(40, 3, Durability::Replicated, 90, 20_000);
    fill_delete_and_write_again(driver, mixed);
}

#[test]
fn tiny_objects_can_be_deleted_though_their_tombstones_are_as_large() {
    let driver = Driver::new(32, 1, Durability::Replicated, 90, 300_000);
    fill_delete_and_write_again(driver, |_| 150);
}

/// Memory is full all the time: new objects take at once the memory that deletes free. Deletes and
/// overwrites must go on. In each turn of `turn` steps it is filled, and then overwritten, which
/// uses the memory that the reserves keep from new objects. Gives the share of the steps, in
/// percent, after which at least 98 % of the memory were in use. Reserves that lie free count as
/// free.
fn live_at_the_limit(mut driver: Driver, keys: u32, turn: u64, steps: u64) -> u64 {
    let mut lens: Vec<Option<usize>> = vec![None; keys as usize];
    for key in 0..keys {
        let new = adversarial(&mut driver.random);
        if driver.change(key, Some(new)).is_err() {
            break;
        }
        lens[key as usize] = Some(new);
    }
    let full = driver.store.space.stats().free_bytes;
    let (mut refused, mut samples, mut used, mut brim) = (0u64, 0u64, 0u64, 0u64);
    let mut fills = true;
    for step in 0..steps {
        let key = driver.random.below(u64::from(keys)) as usize;
        let new = adversarial(&mut driver.random);
        // Filled until something is refused, then overwritten for a while, with a few deletes.
        fills |= step.is_multiple_of(turn);
        let (len, must) = match (driver.random.below(20), lens[key]) {
            (0, _) => (None, true),
            (1..5, Some(len)) => (Some(new.min(len)), true),
            (_, Some(len)) if !fills => (Some(len), true),
            (_, None) if !fills => continue,
            (_, old) => (Some(new), Some(new) <= old),
        };
        match driver.change(key as u32, len) {
            Ok(()) => lens[key] = len,
            Err(why) if must => panic!("step {step}: {len:?} for {:?}: {why}", lens[key]),
            Err(_) => {
                refused += 1;
                fills = false;
            }
        }
        let stats = driver.store.space.stats();
        samples += 1;
        used += u64::from(stats.free_bytes <= full);
        let free = stats.free_bytes + stats.reserve_free_bytes;
        brim += u64::from(free * 100 <= stats.memory_bytes * 2);
        if step % turn < 10 {
            driver.store.check_live_bytes();
            for (key, len) in lens.iter().enumerate().skip(step as usize % 97).step_by(97) {
                assert_eq!(driver.store.read(key as u32).map(|(_, len)| len), *len);
            }
        }
    }
    driver.finish();
    for (key, len) in lens.iter().enumerate() {
        assert_eq!(driver.store.read(key as u32).map(|(_, len)| len), *len);
    }
    let stats = driver.store.space.stats();
    println!(
        "{refused} refused, full after {used} of {samples} steps, 98 % used after {brim}, {:?}",
        stats.cleaner
    );
    assert!(
        refused > 0 && used * 4 > samples,
        "memory was full: {used} of {samples}"
    );
    brim * 100 / samples
}

#[test]
fn deletes_and_overwrites_go_on_at_the_limit_without_replicas() {
    let driver = Driver::new(64, 1, Durability::Volatile, 95, 6_000);
    live_at_the_limit(driver, 6_000, 250, steps_or(5_000));
}

#[test]
fn deletes_and_overwrites_go_on_at_the_limit_with_replicas() {
    let driver = Driver::new(64, 2, Durability::Replicated, 95, 6_000);
    live_at_the_limit(driver, 6_000, 250, steps_or(5_000));
}

/// In a memory of which the reserves are little, so that it can be full to 98 % with all of them.
fn live_at_the_brim(durability: Durability) {
    let driver = Driver::new(320, 1, durability, 98, 20_000);
    let brim = live_at_the_limit(driver, 20_000, 2_000, steps_or(6_000));
    assert!(
        brim >= 30,
        "98 % of the memory were in use after {brim} % of the steps"
    );
}

#[test]
fn deletes_and_overwrites_go_on_with_98_percent_of_the_memory_in_use_without_replicas() {
    live_at_the_brim(Durability::Volatile);
}

#[test]
fn deletes_and_overwrites_go_on_with_98_percent_of_the_memory_in_use_with_replicas() {
    live_at_the_brim(Durability::Replicated);
}

/// A third of all that ask for seglets, deletes and the cleaner among them, get none although there
/// are some.
#[test]
fn deletes_and_overwrites_go_on_although_a_full_memory_refuses_at_random() {
    for durability in [Durability::Volatile, Durability::Replicated] {
        let driver = Driver::new(64, 2, durability, 95, 6_000);
        let refusal = Refusal::at_random(&driver.store.space, 3, 3);
        live_at_the_limit(driver, 6_000, 250, steps_or(2_000));
        let [appends, cleaner] =
            [SegletClass::Default, SegletClass::Cleaner].map(|class| refusal.refused(class));
        assert!(appends > 100 && cleaner > 5, "{refusal:?}");
    }
}

/// Small objects up to the limit that the reserves leave, then only overwrites. Each has to find
/// room in the end, since the live data stays the same.
fn overwritten_at_the_limit(mib: u64, logs: u16, durability: Durability, size: usize) {
    let keys_max = (mib << 20) as u32 / (size as u32 + 20);
    let mut driver = Driver::new(mib, logs, durability, 98, keys_max);
    let mut keys = 0;
    while keys < keys_max && driver.change(keys, Some(size)).is_ok() {
        keys += 1;
    }
    let full = driver.store.space.stats();
    println!(
        "{mib} MiB, {logs} logs, {durability:?}, {size} B: {} % live",
        full.live_bytes * 100 / full.memory_bytes
    );
    let used = driver.overwrite(keys, mib << 20);
    assert!(
        used > 50,
        "98 % of the memory were in use after {used} % of the overwrites"
    );
    driver.finish();
    let stats = driver.store.space.stats();
    assert!(
        stats.live_bytes * 100 >= stats.live_bytes_max * 97,
        "{stats:?}"
    );
    for key in 0..keys {
        driver.store.read(key).expect("nothing was deleted");
    }
}

#[test]
fn small_memories_at_their_limit_are_overwritten_for_ever_with_replicas() {
    for (mib, logs, size) in [(48, 1, 100), (40, 1, 1000), (64, 3, 1000)] {
        overwritten_at_the_limit(mib, logs, Durability::Replicated, size);
    }
}

#[test]
fn small_memories_at_their_limit_are_overwritten_for_ever_without_replicas() {
    for (mib, logs, size) in [(48, 1, 100), (64, 3, 1000)] {
        overwritten_at_the_limit(mib, logs, Durability::Volatile, size);
    }
}

/// The objects of one log are much older than those overwritten in the other one. So that log is
/// cleaned first, however little it gives.
fn overwritten_beside_an_old_log(durability: Durability) {
    let (mib, size) = (64, 1000);
    let keys_max = (mib << 20) as u32 / (size as u32 + 20);
    let mut driver = Driver::new(mib, 2, durability, 98, keys_max);
    driver.only = Some(LogId(1));
    for key in 0..keys_max / 20 {
        driver.change(key, Some(size)).expect("there is room");
    }
    driver.now_s += 1_000_000_000;
    driver.only = Some(LogId(0));
    let mut keys = keys_max / 20;
    while driver.change(keys, Some(size)).is_ok() {
        keys += 1;
    }
    driver.overwrite(keys, 2 * (mib << 20));
    driver.finish();
}

#[test]
fn a_full_memory_is_overwritten_for_ever_beside_an_old_log_with_replicas() {
    overwritten_beside_an_old_log(Durability::Replicated);
}

#[test]
fn a_full_memory_is_overwritten_for_ever_beside_an_old_log_without_replicas() {
    overwritten_beside_an_old_log(Durability::Volatile);
}
