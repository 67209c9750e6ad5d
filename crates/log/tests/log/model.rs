//! Random changes to a small replicated store, with power cuts at random moments: what was durable
//! is there, and nothing that was not written.

use crate::support::refusal::Refusal;
use crate::support::replication::Replication;
use crate::support::{Done, Random, Store, options, steps_or};
use pluvio_log::{
    AppendError, Appended, CleanerStats, Durability, LogOptions, SegletClass, Tombstones,
};
use pluvio_units::LogId;
use std::collections::BTreeMap;

/// Per key: what was written, by version; a delete has the version it deleted.
#[derive(Default)]
struct History {
    /// Version → length of the value.
    written: BTreeMap<(u32, u64), usize>,
    /// The newest change that was confirmed as durable: version, and whether it is a value.
    durable: BTreeMap<u32, (u64, bool)>,
    /// The newest change that was made: version, length.
    newest: BTreeMap<u32, (u64, Option<usize>)>,
}

impl History {
    /// Forgets what recovery can only find by an error that `check_recovered` tells of: what is
    /// older than what is durable.
    fn forget_old(&mut self) {
        let durable = &self.durable;
        self.written.retain(|(key, version), _| {
            durable.get(key).is_none_or(|(newest, _)| version >= newest)
        });
    }

    fn check_recovered(&self, replication: &Replication) {
        let found = &replication.recover();
        for (&key, &(version, is_value)) in &self.durable {
            let &(found_version, found_len) = found.get(&key).unwrap_or(&(0, None));
            if is_value {
                assert!(
                    found_version >= version,
                    "key {key}: version {version} was durable, found {found_version}"
                );
                if found_version == version && found_len.is_none() {
                    // Only a delete of this version may have hidden it.
                    assert_eq!(
                        self.newest_or_later(key, version),
                        None,
                        "key {key} is lost"
                    );
                }
            } else if found_len.is_some() {
                assert!(
                    found_version > version,
                    "key {key} came back from the dead: {found_version} was deleted by {version}: {:#?}",
                    replication.trace(key)
                );
            }
        }
        for (&key, &(version, len)) in found {
            if let Some(len) = len {
                assert_eq!(self.written.get(&(key, version)), Some(&len), "key {key}");
            }
            assert!(version <= self.newest[&key].0);
        }
    }

    /// The newest change of a key, when it has this version.
    fn newest_or_later(&self, key: u32, version: u64) -> Option<usize> {
        let (newest, len) = self.newest[&key];
        if newest == version { len } else { None }
    }
}

struct Run {
    store: Store,
    replication: Replication,
    random: Random,
    history: History,
    waiting: Vec<Appended<Done>>,
    keys: u32,
    /// The number of keys that get half of all changes.
    hot: u32,
    now_s: u32,
}

/// Most steps before a check, on average: it reads everything.
const CHECK_EACH_MAX: u64 = 2_000;

const BOTH: [Tombstones; 2] = [Tombstones::Every, Tombstones::Deletes];

impl Run {
    fn new(seed: u64, logs: u16, mib: u64, keys: u32, tombstones: Tombstones) -> Self {
        let options = LogOptions {
            tombstones,
            ..options(mib, logs, Durability::Replicated)
        };
        let store = Store::new(options, keys);
        let replication = Replication::new(&store.space, 300_000);
        Self {
            store,
            replication,
            random: Random::new(seed),
            history: History::default(),
            waiting: Vec::new(),
            keys,
            hot: 0,
            now_s: 1,
        }
    }

    fn change(&mut self, size: impl Fn(&mut Random) -> usize) {
        let logs = self.store.space.logs().count() as u64;
        let log = LogId(self.random.below(logs) as u16);
        let among = match self.hot {
            0 => self.keys,
            hot if self.random.below(2) == 0 => hot,
            _ => self.keys,
        };
        let key = self.random.below(u64::from(among)) as u32;
        // Keys that are deleted seldom have many dead versions.
        let delete = self.random.below(if key < self.hot { 100 } else { 5 }) == 0;
        let len = (!delete).then(|| size(&mut self.random));
        match self.store.change(log, key, len, self.now_s) {
            Ok(None) => {}
            Ok(Some(appended)) => {
                let done = *appended.pending();
                if let Some(len) = done.len {
                    self.history.written.insert((key, done.version), len);
                }
                self.history.newest.insert(key, (done.version, done.len));
                self.waiting.push(appended);
            }
            Err(AppendError::Full { .. }) => {
                let _pace = self
                    .store
                    .cleaner
                    .step(self.now_s)
                    .expect("memory is right");
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn confirm(&mut self) {
        let space = &self.store.space;
        for appended in std::mem::take(&mut self.waiting) {
            match space.confirm(appended) {
                Err(still) => self.waiting.push(still),
                Ok(durable) => {
                    let done = durable.into_value();
                    let (version, is_value) =
                        *self.history.durable.get(&done.key).unwrap_or(&(0, false));
                    let newer = (done.version, done.len.is_none()) > (version, !is_value);
                    if newer {
                        let change = (done.version, done.len.is_some());
                        self.history.durable.insert(done.key, change);
                    }
                }
            }
        }
    }

    fn check(&mut self) {
        self.confirm();
        self.history.forget_old();
        self.history.check_recovered(&self.replication);
        for key in 0..self.keys {
            let expected = self.history.newest.get(&key).copied();
            let expected = expected.and_then(|(version, len)| len.map(|len| (version, len)));
            assert_eq!(self.store.read(key), expected, "key {key}");
        }
        self.store.check_live_bytes();
    }

    fn go(&mut self, steps: u64, size: impl Fn(&mut Random) -> usize) {
        for step in 0..steps {
            if step % 64 == 0 {
                self.now_s += 1;
            }
            self.change(&size);
            for log in self.store.space.logs() {
                if self.random.below(2) == 0 {
                    self.replication.step(log, &mut self.random);
                }
            }
            if self.random.below(4) == 0 {
                let _pace = self
                    .store
                    .cleaner
                    .step(self.now_s)
                    .expect("memory is right");
            }
            if self.random.below(40) == 0 {
                self.confirm();
            }
            if self.random.below((steps / 12).min(CHECK_EACH_MAX)) == 0 {
                self.check();
            }
        }
        self.replication.finish(&mut self.random);
        self.check();
        assert!(self.waiting.is_empty(), "all is durable in the end");
    }
}

fn large(random: &mut Random) -> usize {
    20_000 + random.below(200_000) as usize
}

#[test]
fn what_was_durable_survives_a_power_cut_with_one_log() {
    for tombstones in BOTH {
        let mut run = Run::new(1, 1, 32, 150, tombstones);
        run.go(steps_or(3000), large);
        let cleaner = run.store.space.stats().cleaner;
        assert!(cleaner.passes > 5 && cleaner.compactions > 2, "{cleaner:?}");
        let replaced = run.replication.replaced;
        assert!(replaced > 20, "{replaced}");
    }
}

/// More dead versions of a key than its graves can name: the oldest get tombstones.
// shows: STORE-3
#[test]
fn keys_that_are_overwritten_all_the_time_survive_a_power_cut() {
    for seed in 10..13 {
        let mut run = Run::new(seed, 2, 72, 300, Tombstones::Deletes);
        run.hot = 3;
        run.go(steps_or(6000), large);
        let graves = (0..3).filter_map(|key| run.store.graves_of(key));
        let most = graves.max().unwrap_or(0);
        assert!(most > 10, "keys had {most} graves at most");
    }
}

// shows: STORE-3
#[test]
fn what_was_durable_survives_a_power_cut_with_three_logs() {
    let mut compactions = 0;
    for (seed, tombstones) in (2..6).zip(BOTH.into_iter().cycle()) {
        let mut run = Run::new(seed, 3, 40, 150, tombstones);
        run.go(steps_or(2000), large);
        let cleaner = run.store.space.stats().cleaner;
        assert!(cleaner.passes > 2, "{cleaner:?}");
        compactions += cleaner.compactions;
    }
    assert!(compactions > 0);
}

#[test]
fn sizes_of_all_orders_survive_a_power_cut() {
    for (seed, tombstones) in (5..9).zip(BOTH.into_iter().cycle()) {
        let mut run = Run::new(seed, 2, 32, 400, tombstones);
        run.go(steps_or(3000), Random::mixed_size);
    }
}

/// Appends, heads and the cleaner get no seglets now and then, each of them.
#[test]
fn memory_that_is_refused_at_random_loses_nothing() {
    let mut of_cleaner = 0;
    for (seed, tombstones) in (20..24).zip(BOTH.into_iter().cycle()) {
        let mut run = Run::new(seed, 2, 40, 150, tombstones);
        let refusal = Refusal::at_random(&run.store.space, seed, 3);
        run.go(steps_or(2500), large);
        assert!(refusal.refused(SegletClass::Default) > 100, "{refusal:?}");
        of_cleaner += refusal.refused(SegletClass::Cleaner);
        let cleaner = run.store.space.stats().cleaner;
        assert!(cleaner.passes > 1 && cleaner.compactions > 0, "{cleaner:?}");
    }
    assert!(of_cleaner > 20, "{of_cleaner}");
}

/// The memory refuses three times in a row, at one moment of a run after the other: what it does in
/// between is the same.
#[test]
fn memory_that_is_refused_at_any_one_moment_loses_nothing() {
    let mut least = CleanerStats::default();
    for moment in 0.. {
        let mut run = Run::new(30, 2, 32, 120, BOTH[moment % 2]);
        let first = 60 + 37 * moment as u64;
        let refusal = Refusal::of(&run.store.space, first..first + 3);
        run.go(700, large);
        if refusal.asked() < first {
            assert!(moment > 10, "the run takes memory often: {refusal:?}");
            break;
        }
        least = run.store.space.stats().cleaner;
    }
    assert!(least.passes + least.compactions > 0, "{least:?}");
}

/// The old value lies in log 0 and is durable; the new one lies in log 1, whose replication is
/// stuck. Cleaning log 0 must not take the only durable value away (CLEAN-2).
// shows: STORE-3
#[test]
fn a_value_is_not_cleaned_away_while_its_successor_can_be_lost() {
    const KEYS: u32 = 1100;
    let (old_log, stuck_log) = (LogId(0), LogId(1));
    let mut run = Run::new(9, 2, 32, KEYS, Tombstones::Deletes);
    let clean = |run: &mut Run| {
        for _ in 0..300 {
            let _pace = run.store.cleaner.step(run.now_s).expect("memory is right");
            while run.replication.step(old_log, &mut run.random) {}
        }
    };
    for key in 0..KEYS {
        let written = run
            .store
            .change(old_log, key, Some(20_000), 1)
            .expect("there is room");
        run.waiting.extend(written);
    }
    run.replication.finish(&mut run.random);
    run.confirm();
    assert!(run.waiting.is_empty());
    let mut overwritten = 0;
    while overwritten < KEYS {
        match run.store.change(stuck_log, overwritten, Some(20_000), 2) {
            Ok(appended) => {
                run.waiting.extend(appended);
                overwritten += 1;
            }
            Err(AppendError::Full { .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        (100..KEYS).contains(&overwritten),
        "memory is full: {overwritten}"
    );
    clean(&mut run);
    let found = run.replication.recover();
    for key in 0..KEYS {
        assert_eq!(found.get(&key), Some(&(1, Some(20_000))), "key {key}");
    }
    // The cleaner has taken what it could, and gives nothing back before log 1 goes on.
    let deleted = run.store.change(old_log, KEYS - 1, None, 3);
    run.waiting.extend(deleted.expect("deletes go on"));
    run.replication.finish(&mut run.random);
    clean(&mut run);
    let cleaner = run.store.space.stats().cleaner;
    assert!(
        cleaner.passes + cleaner.compactions > 0,
        "it goes on once log 1 does"
    );
    run.confirm();
    assert!(run.waiting.is_empty());
}
