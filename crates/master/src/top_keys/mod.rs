//! Which keys of this server are used most, and which are the largest: from samples of operations.
//!
//! ```text
//!  every operation   one step of a counter of its thread
//!  one in N          the lock, if it is free · reads or writes of its table: weight N · its size
//!  each second       N is chosen anew: about a thousand samples a second
//!  each half minute  all weights are halved
//! ```
//!
//! - TOP-2: an operation waits for no lock for the sake of this. A sample that meets another one is
//!   dropped.
//! - TOP-3: memory is bounded, whatever the keys are. There are at most [`TABLES`] tables, each
//!   with a fixed number of keys. Of a key the first bytes are remembered.
//! - TOP-4: each operation is sampled with the same chance, whatever it is: the steps between two
//!   samples are drawn at random. So operations that come in turn are not taken for one another.
//!
//! An object of [`LARGE`] or more is noticed whenever it is put, sampled or not.
//!
//! Any thread.

mod list;
mod session;

pub use session::{TableTraffic, Traffic};

use core::cell::Cell;
use list::{KEY_SHOWN, ShownKey, TopList};
use pluvio_units::{KeyHash, KeyPlace, TableId};
use session::Session;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Samples in a second that are wanted. A sample costs less than a microsecond, so they cost less
/// than a thousandth of a core.
const PER_SECOND: u32 = 1000;
/// How often the distance between samples is chosen.
const WINDOW: Duration = Duration::from_secs(1);
/// Longest mean distance between samples.
const DISTANCE_MAX: u32 = 1 << 16;
/// How often weights are halved. So rates are averages over half a minute to a minute.
const HALVING: Duration = Duration::from_secs(30);
/// More halvings than this leave nothing.
const HALVINGS_MAX: u32 = 64;
/// Tables whose keys are counted. A further one takes the place of the one that is used least.
const TABLES: usize = 32;
/// Large objects that are remembered of each table.
const LARGEST: usize = 64;
/// An object of this size is noticed whenever it is put: the copy of it takes far longer.
pub(crate) const LARGE: usize = 64 << 10;

/// The samples of a thread. Servers of one thread, as in the simulator, share them.
#[derive(Clone, Copy)]
struct Steps {
    /// Operations until the next sample.
    left: u32,
    /// The mean distance under which `left` was drawn: what the next sample stands for.
    mean: u32,
    random: u64,
}

impl Steps {
    const START: Self = Self {
        left: 1,
        mean: 1,
        random: 0x9e37_79b9_7f4a_7c15,
    };
}

thread_local! {
    static STEPS: Cell<Steps> = const { Cell::new(Steps::START) };
}

/// What an operation does with its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Read,
    Write,
}

/// A sampled operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'k> {
    pub(crate) table: TableId,
    pub(crate) hash: KeyHash,
    pub(crate) key: &'k [u8],
    pub(crate) used: Use,
    /// Operations that it stands for.
    pub(crate) weight: u32,
    /// Bytes of key and value, where there is an object.
    pub(crate) bytes: Option<u64>,
    /// Bytes of keys and values that the operation moved.
    pub(crate) traffic: u64,
}

/// A large object.
#[derive(Clone, Debug)]
struct Large {
    key: ShownKey,
    bytes: u64,
}

#[derive(Default)]
struct OfTable {
    reads: TopList,
    writes: TopList,
    largest: Vec<Large>,
}

impl OfTable {
    fn total(&self) -> f64 {
        self.reads.total() + self.writes.total()
    }

    fn note_size(&mut self, hash: KeyHash, key: &[u8], bytes: u64) {
        let known = self.largest.iter().position(|large| large.key.hash == hash);
        if let Some(known) = known {
            self.largest[known].bytes = bytes;
            return;
        }
        let large = |key| Large { key, bytes };
        if self.largest.len() < LARGEST {
            self.largest.push(large(ShownKey::of(hash, key)));
            return;
        }
        let least = self.largest.iter_mut().min_by_key(|large| large.bytes);
        if let Some(least) = least.filter(|least| least.bytes < bytes) {
            *least = large(ShownKey::of(hash, key));
        }
    }
}

#[derive(Default)]
struct State {
    /// When the distance was chosen, and the samples and operations since then.
    window: Duration,
    samples: u32,
    operations: u64,
    /// When weights were halved, and for how many seconds they stood then.
    halved: Duration,
    seconds: f64,
    tables: BTreeMap<TableId, OfTable>,
    /// Of HOTKEYS, the latest.
    session: Option<Session>,
}

/// See the module.
pub(crate) struct Samples {
    /// The mean distance between samples.
    mean: AtomicU32,
    state: Mutex<State>,
}

/// The top lists of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    pub(crate) table: TableId,
    pub(crate) reads_per_s: f64,
    pub(crate) writes_per_s: f64,
    pub(crate) reads: Vec<Rate>,
    pub(crate) writes: Vec<Rate>,
    pub(crate) largest: Vec<Noticed>,
}

/// How much a key is used, in a second.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rate {
    pub(crate) hash: KeyHash,
    pub(crate) key: Box<[u8]>,
    pub(crate) key_len: usize,
    /// The estimate that is certain, but for sampling.
    pub(crate) per_s: f64,
    /// It may be so much less: two standard deviations of sampling.
    pub(crate) less: f64,
    /// It may be so much more: the same, and what the key inherited.
    pub(crate) more: f64,
}

/// A large object, as it was when it was noticed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Noticed {
    pub(crate) key: Box<[u8]>,
    pub(crate) key_len: usize,
    pub(crate) hash: KeyHash,
    pub(crate) bytes: u64,
}

impl Noticed {
    /// The key, if all of it is remembered.
    pub(crate) fn whole_key(&self) -> Option<&[u8]> {
        (self.key.len() == self.key_len).then_some(&*self.key)
    }
}

/// The top lists of all tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Top {
    /// The time over which rates are averages.
    pub(crate) seconds: f64,
    /// The mean distance between samples.
    pub(crate) one_in: u32,
    pub(crate) tables: Vec<Lists>,
}

impl Samples {
    /// Nothing was sampled yet.
    pub(crate) fn new(now: Duration) -> Self {
        // A simulated run depends on no run before it.
        STEPS.with(|steps| steps.set(Steps::START));
        Self {
            mean: AtomicU32::new(1),
            state: Mutex::new(State {
                window: now,
                halved: now,
                ..State::default()
            }),
        }
    }

    /// For how many operations this one stands, if it is to be sampled.
    #[inline]
    pub(crate) fn due(&self) -> Option<u32> {
        STEPS.with(|place| {
            let mut steps = place.get();
            steps.left -= 1;
            let due = (steps.left == 0).then_some(steps.mean);
            if due.is_some() {
                steps = self.next_steps(steps);
            }
            place.set(steps);
            due
        })
    }

    /// Draws the distance to the next sample (TOP-4): from 1 to twice the mean, less one.
    #[cold]
    fn next_steps(&self, steps: Steps) -> Steps {
        let mut random = steps.random;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mean = self.mean.load(Ordering::Relaxed);
        let most = u64::from(2 * mean - 1);
        let drawn = (u128::from(random) * u128::from(most)) >> 64;
        Steps {
            left: u32::try_from(drawn).map_or(1, |drawn| drawn + 1),
            mean,
            random,
        }
    }

    /// Counts a sample, unless another one is being counted (TOP-2).
    pub(crate) fn note(&self, now: Duration, sample: &Sample<'_>) {
        let Some(mut state) = self.try_lock() else {
            return;
        };
        state.fade(now);
        self.keep_pace(&mut state, now, sample.weight);
        let weight = f64::from(sample.weight);
        if let Some(session) = &mut state.session {
            let key = (sample.hash, sample.key);
            session.count(now, sample.table, key, weight * sample.traffic as f64);
        }
        let of_table = state.of_table(sample.table);
        match sample.used {
            Use::Read => of_table.reads.count(sample.hash, sample.key, weight),
            Use::Write => of_table.writes.count(sample.hash, sample.key, weight),
        }
        if let Some(bytes) = sample.bytes {
            of_table.note_size(sample.hash, sample.key, bytes);
        }
    }

    /// Notes the size of an object, whose use is not counted; unless a sample is being counted
    /// (TOP-2).
    pub(crate) fn note_size(&self, now: Duration, (table, hash): KeyPlace, key: &[u8], bytes: u64) {
        let Some(mut state) = self.try_lock() else {
            return;
        };
        state.fade(now);
        state.of_table(table).note_size(hash, key, bytes);
    }

    /// The state, unless another thread has it.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Chooses the distance between samples by the operations of the last second, or by those of
    /// less time where there were too many samples.
    fn keep_pace(&self, state: &mut State, now: Duration, weight: u32) {
        state.samples += 1;
        state.operations += u64::from(weight);
        let passed = now.saturating_sub(state.window);
        let mean = self.mean.load(Ordering::Relaxed);
        let next = if passed >= WINDOW {
            let rate = state.operations as f64 / passed.as_secs_f64();
            // In the direction of few samples: as a cast, which has a bound.
            let distance = (rate / f64::from(PER_SECOND)) as u32;
            distance.clamp(1, DISTANCE_MAX).next_power_of_two()
        } else if state.samples >= 2 * PER_SECOND {
            (mean * 2).min(DISTANCE_MAX)
        } else {
            return;
        };
        self.mean.store(next, Ordering::Relaxed);
        state.window = now;
        state.samples = 0;
        state.operations = 0;
    }

    /// The top lists, with at most `count` keys each; of one table only, where it is named.
    pub(crate) fn top(&self, now: Duration, table: Option<TableId>, count: usize) -> Top {
        let mut state = self.lock();
        state.fade(now);
        let seconds = state.seconds(now);
        let wanted = state.tables.iter();
        let wanted = wanted.filter(|(id, _)| table.is_none_or(|table| table == **id));
        Top {
            seconds,
            one_in: self.mean.load(Ordering::Relaxed),
            tables: wanted
                .map(|(id, of_table)| lists(*id, of_table, seconds, count))
                .collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session that notes traffic, for this time or until it is stopped. False: another
    /// one is on.
    pub(crate) fn start_session(
        &self,
        now: Duration,
        wanted: usize,
        lasts: Option<Duration>,
    ) -> bool {
        let mut state = self.lock();
        let is_on = state.has_active_session(now);
        if !is_on {
            state.session = Some(Session::new(now, wanted, lasts));
        }
        !is_on
    }

    /// Ends the session, which stays to be seen. False: none is on.
    pub(crate) fn stop_session(&self, now: Duration) -> bool {
        let mut state = self.lock();
        let session = state.session.as_mut().filter(|one| one.is_active(now));
        session.map(|session| session.stop(now)).is_some()
    }

    /// Forgets the session. False: it is on.
    pub(crate) fn reset_session(&self, now: Duration) -> bool {
        let mut state = self.lock();
        let is_on = state.has_active_session(now);
        if !is_on {
            state.session = None;
        }
        !is_on
    }

    /// The traffic of the latest session, and the mean distance between samples now.
    pub(crate) fn session(&self, now: Duration) -> Option<(Traffic, u32)> {
        let seen = self.lock().session.as_ref().map(|one| one.seen(now));
        seen.map(|seen| (seen, self.mean.load(Ordering::Relaxed)))
    }

    /// Forgets a table.
    pub(crate) fn forget(&self, table: TableId) {
        let mut state = self.lock();
        state.tables.remove(&table);
    }
}

fn lists(table: TableId, of_table: &OfTable, seconds: f64, count: usize) -> Lists {
    let rates = |list: &TopList| {
        let most = list.most(count);
        let rates = most.into_iter().map(|counted| {
            let sampling = 2.0 * counted.variance.sqrt();
            let certain = counted.weight - counted.inherited;
            Rate {
                hash: counted.key.hash,
                key: counted.key.start,
                key_len: counted.key.len,
                per_s: certain / seconds,
                less: sampling.min(certain) / seconds,
                more: (sampling + counted.inherited) / seconds,
            }
        });
        rates.collect()
    };
    let mut largest = of_table.largest.clone();
    largest.sort_by_key(|large| core::cmp::Reverse(large.bytes));
    let largest = largest.into_iter().take(count).map(|large| Noticed {
        key: large.key.start,
        key_len: large.key.len,
        hash: large.key.hash,
        bytes: large.bytes,
    });
    Lists {
        table,
        reads_per_s: of_table.reads.total() / seconds,
        writes_per_s: of_table.writes.total() / seconds,
        reads: rates(&of_table.reads),
        writes: rates(&of_table.writes),
        largest: largest.collect(),
    }
}

impl State {
    /// Halves the weights as often as is due.
    fn fade(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.halved);
        let due = passed.as_nanos() / HALVING.as_nanos();
        let Some(halvings) = u32::try_from(due).ok().filter(|due| *due > 0) else {
            return;
        };
        let halvings = halvings.min(HALVINGS_MAX);
        for _ in 0..halvings {
            self.seconds = (self.seconds + HALVING.as_secs_f64()) / 2.0;
        }
        self.halved = match halvings {
            HALVINGS_MAX => now,
            _ => self.halved + HALVING * halvings,
        };
        self.tables.retain(|_, of_table| {
            of_table.reads.fade(halvings);
            of_table.writes.fade(halvings);
            !(of_table.reads.is_empty()
                && of_table.writes.is_empty()
                && of_table.largest.is_empty())
        });
    }

    /// For how many seconds the weights stand: as many as they would have with one use a second.
    fn seconds(&self, now: Duration) -> f64 {
        let since = now.saturating_sub(self.halved).as_secs_f64();
        // At the very start there is no rate yet.
        (self.seconds + since).max(0.001)
    }

    fn has_active_session(&self, now: Duration) -> bool {
        self.session.as_ref().is_some_and(|one| one.is_active(now))
    }

    /// The lists of a table (TOP-3).
    fn of_table(&mut self, table: TableId) -> &mut OfTable {
        if self.tables.len() >= TABLES && !self.tables.contains_key(&table) {
            let tables = self.tables.iter();
            let least = tables.min_by(|(_, a), (_, b)| a.total().total_cmp(&b.total()));
            if let Some(least) = least.map(|(id, _)| *id) {
                self.tables.remove(&least);
            }
        }
        self.tables.entry(table).or_default()
    }
}

/// Most bytes of keys that are remembered (TOP-3).
const _: () = assert!(TABLES * (3 * list::PLACES + LARGEST) * KEY_SHOWN <= 2 << 20);

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(7);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sample(n: u64, key: &[u8], used: Use, weight: u32) -> Sample<'_> {
        Sample {
            table: TABLE,
            hash: KeyHash(n),
            key,
            used,
            weight,
            bytes: None,
            traffic: 0,
        }
    }

    fn only(top: &Top) -> &Lists {
        assert_eq!(top.tables.len(), 1);
        &top.tables[0]
    }

    // shows: TOP-4
    #[test]
    fn of_operations_in_turn_each_is_sampled_as_often() {
        let samples = Samples::new(secs(0));
        samples.mean.store(16, Ordering::Relaxed);
        let mut sampled = [0_u32; 4];
        let mut stands_for = 0;
        for n in 0..400_000 {
            if let Some(weight) = samples.due() {
                sampled[n % 4] += 1;
                stands_for += weight;
            }
        }
        for each in sampled {
            assert!((5_600..6_900).contains(&each), "{sampled:?}");
        }
        assert!((380_000..420_000).contains(&stands_for), "{stands_for}");
    }

    #[test]
    fn rates_are_those_of_the_last_minute_with_their_error() {
        let samples = Samples::new(secs(0));
        // 64 reads a second of one key, of which each sixteenth is sampled; then nothing.
        for second in 0..300 {
            for _ in 0..4 {
                samples.note(secs(second), &sample(1, b"hot", Use::Read, 16));
            }
            samples.note(secs(second), &sample(2, b"w", Use::Write, 1));
        }
        let top = samples.top(secs(300), None, 10);
        assert!((28.0..61.0).contains(&top.seconds), "{top:?}");
        let lists = only(&top);
        let hot = &lists.reads[0];
        assert_eq!((&*hot.key, hot.key_len), (&b"hot"[..], 3));
        assert!((hot.per_s - 64.0).abs() < 3.0, "{hot:?}");
        assert!(hot.less > 4.0 && hot.less < 16.0, "{hot:?}");
        assert!(
            (hot.more - hot.less).abs() < 1e-6,
            "nothing inherited: {hot:?}"
        );
        assert!((lists.reads_per_s - 64.0).abs() < 3.0);
        let write = &lists.writes[0];
        assert!(
            (write.per_s - 1.0).abs() < 0.1 && write.less == 0.0,
            "{write:?}"
        );
        let later = samples.top(secs(900), None, 10);
        assert!(later.tables.is_empty(), "{later:?}");
    }

    #[test]
    fn the_distance_between_samples_follows_the_load() {
        let samples = Samples::new(secs(0));
        let one = |now: Duration| {
            let weight = samples.mean.load(Ordering::Relaxed);
            samples.note(now, &sample(1, b"k", Use::Read, weight));
        };
        // As many operations as there may be, within a second: samples become rare.
        for n in 0..20_000 {
            one(Duration::from_micros(n));
        }
        assert_eq!(samples.mean.load(Ordering::Relaxed), 1 << 10);
        // A hundred a second: each is sampled again.
        for n in 1..300 {
            samples.note(
                Duration::from_millis(20 + n * 10),
                &sample(1, b"k", Use::Read, 1),
            );
        }
        assert_eq!(samples.mean.load(Ordering::Relaxed), 1);
        // The highest rate that there may be.
        for n in 0..u64::from(PER_SECOND) * 100 {
            one(secs(10) + Duration::from_nanos(n));
        }
        assert_eq!(samples.mean.load(Ordering::Relaxed), DISTANCE_MAX);
    }

    #[test]
    fn the_largest_objects_are_remembered_with_their_latest_size() {
        let samples = Samples::new(secs(0));
        let put = |n: u64, bytes: u64| {
            let key = n.to_string();
            samples.note_size(secs(1), (TABLE, KeyHash(n)), key.as_bytes(), bytes);
        };
        for n in 0..1000 {
            put(n, (n * 7919) % 1000 + 1);
        }
        put(5000, 1_000_000);
        put(5001, 2_000_000);
        put(5001, 10);
        let top = samples.top(secs(1), Some(TABLE), 3);
        let lists = only(&top);
        let bytes: Vec<u64> = lists.largest.iter().map(|large| large.bytes).collect();
        assert_eq!(bytes, [1_000_000, 1000, 999]);
        assert_eq!(lists.largest[0].whole_key(), Some(&b"5000"[..]));
        assert!(lists.writes.is_empty(), "sizes alone are no uses");
        assert!(samples.top(secs(1), Some(TableId(1)), 3).tables.is_empty());
        samples.forget(TABLE);
        assert!(samples.top(secs(1), None, 3).tables.is_empty());
    }

    // shows: TOP-3
    #[test]
    fn tables_beyond_the_bound_take_the_place_of_the_one_used_least() {
        let samples = Samples::new(secs(0));
        let use_of = |table: u64, times: u32| {
            for _ in 0..times {
                let sample = Sample {
                    table: TableId(table),
                    ..sample(1, b"k", Use::Read, 1)
                };
                samples.note(secs(1), &sample);
            }
        };
        for table in 0..TABLES as u64 {
            use_of(table, 5);
        }
        use_of(3, 100);
        use_of(100, 10);
        use_of(101, 1);
        let top = samples.top(secs(1), None, 1);
        assert_eq!(top.tables.len(), TABLES);
        let has = |id| top.tables.iter().any(|lists| lists.table == TableId(id));
        assert!(has(3) && has(100) && has(101) && !has(0) && !has(1));
    }

    #[test]
    fn a_session_notes_traffic_until_it_ends() {
        let samples = Samples::new(secs(0));
        let moves = |second: u64, n: u64, traffic: u64| {
            let key = n.to_string();
            let moved = Sample {
                traffic,
                ..sample(n, key.as_bytes(), Use::Read, 4)
            };
            samples.note(secs(second), &moved);
        };
        moves(0, 1, 1000);
        assert_eq!(samples.session(secs(0)), None);
        assert!(!samples.stop_session(secs(0)));
        assert!(samples.start_session(secs(1), 5, Some(secs(10))));
        assert!(!samples.start_session(secs(2), 5, None) && !samples.reset_session(secs(2)));
        moves(2, 1, 100);
        moves(3, 2, 250);
        moves(3, 1, 0);
        let (seen, _) = samples.session(secs(5)).expect("it is on");
        assert!(seen.is_active);
        assert_eq!(seen.lasted, secs(4));
        let traffic = &seen.tables[&TABLE];
        let keys = vec![(b"2".to_vec(), 1000), (b"1".to_vec(), 400)];
        assert_eq!((traffic.bytes, &traffic.keys), (1400, &keys));
        // It ends by itself.
        moves(11, 1, 5000);
        let (seen, _) = samples.session(secs(100)).expect("it is remembered");
        assert_eq!((seen.is_active, seen.lasted), (false, secs(10)));
        assert_eq!(seen.tables[&TABLE].bytes, 1400);
        // A new one begins with nothing, and is stopped.
        assert!(samples.start_session(secs(100), 7, None));
        assert!(samples.stop_session(secs(103)) && !samples.stop_session(secs(104)));
        let (seen, _) = samples.session(secs(200)).expect("it is remembered");
        assert_eq!((seen.lasted, seen.tables.len()), (secs(3), 0));
        assert_eq!((seen.since_start, seen.wanted), (secs(100), 7));
        assert!(samples.reset_session(secs(200)));
        assert_eq!(samples.session(secs(200)), None);
    }

    // shows: TOP-2
    #[test]
    fn a_sample_that_meets_another_one_is_dropped() {
        let samples = Samples::new(secs(0));
        let held = samples.state.lock().expect("nobody holds it");
        samples.note(secs(1), &sample(1, b"k", Use::Read, 1));
        drop(held);
        assert!(samples.top(secs(1), None, 1).tables.is_empty());
    }
}
