//! A tiny store over the log, replication that is late and goes in slices, and a recovery that
//! reads only what is durable. All deterministic, from one seed.

// Each test file uses its own part of this.
pub mod refusal;
pub mod replication;

use pluvio_format::{Completion, Encoded, Entry, Object, ObjectState, Tombstone};
use pluvio_log::{
    AppendClass, AppendError, Appended, Burial, Cleaner, CleanerOptions, Durability, Liveness,
    LogOptions, LogSpace, TableLiveness,
};
use pluvio_units::{EntryRef, KeyHash, LogId, ObjectVersion, Pace, SegmentId, Size, TableId};
use std::sync::{Arc, Mutex, MutexGuard};

/// A small generator of numbers; the same seed gives the same run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// 1 byte to 1 MiB, every order of magnitude equally often.
    pub fn mixed_size(&mut self) -> usize {
        let bits = self.below(21);
        1 + self.below(1 << bits) as usize
    }
}

/// Sizes that fit badly: the smallest, the largest, just above and below a seglet, and the largest
/// that may not cross a seglet's border. In stores that overwrite in place, also those that leave
/// most of a seglet unused.
pub fn adversarial(random: &mut Random) -> usize {
    match random.below(10) {
        9 => 512 - 40 + random.below(80) as usize,
        0 => 1 + random.below(32) as usize,
        1 => 4096 - 40 + random.below(40) as usize,
        2 => 65_536 - 60 + random.below(120) as usize,
        3 => 3_260,
        4 => 2 * 65_536 - 60 + random.below(120) as usize,
        5 if random.below(20) == 0 => 1 << 20,
        6 => random.mixed_size(),
        _ => 100,
    }
}

/// Random numbers that `PLUVIO_SEED` makes others (`cargo xtask long-tests`).
pub fn seeded(number: u64) -> Random {
    let seed = match std::env::var("PLUVIO_SEED") {
        Ok(seed) => seed.parse().expect("PLUVIO_SEED is a number"),
        Err(_) => 0,
    };
    println!("PLUVIO_SEED={seed}");
    Random::new(number + seed * 1000)
}

/// The usual number of steps, or the number that `PLUVIO_STEPS` says (`cargo xtask long-tests`).
pub fn steps_or(usual: u64) -> u64 {
    match std::env::var("PLUVIO_STEPS") {
        Ok(steps) => steps.parse().expect("PLUVIO_STEPS is a number of steps"),
        Err(_) => usual,
    }
}

const TABLE: TableId = TableId(1);

/// A value that tells what it is, so that a mix-up is seen. Cheap to make.
pub fn value_of(key: u32, version: u64, len: usize) -> Vec<u8> {
    let seed = u64::from(key) << 32 ^ version;
    let mut value = vec![seed as u8; len];
    for (to, from) in value.iter_mut().zip(seed.to_le_bytes()) {
        *to = from;
    }
    value
}

/// Key → place, as an index would have it, with a lock for each key.
pub struct Index {
    slots: Vec<Mutex<Option<EntryRef>>>,
}

impl Index {
    fn new(keys: u32) -> Self {
        Self {
            slots: (0..keys).map(|_| Mutex::default()).collect(),
        }
    }

    fn lock(&self, key: usize) -> MutexGuard<'_, Option<EntryRef>> {
        self.slots[key]
            .lock()
            .expect("no test thread panics in here")
    }
}

pub fn key_of(entry: &Entry<'_>) -> u32 {
    let key = match entry {
        Entry::Object(object) => object.key,
        Entry::Tombstone(tombstone) => tombstone.key,
        other => panic!("not in the index: {other:?}"),
    };
    u32::from_le_bytes(key.try_into().expect("keys of four bytes"))
}

/// The index as the cleaner sees it.
struct OneTable(Arc<Index>);

impl Liveness for OneTable {
    fn table(&self, table: TableId) -> Option<Arc<dyn TableLiveness>> {
        assert_eq!(table, TABLE);
        Some(Arc::clone(&self.0) as Arc<dyn TableLiveness>)
    }

    /// These tests write no completion records.
    fn needs_completion(&self, _: &Completion, _: EntryRef) -> bool {
        false
    }

    fn relocate_completion(&self, _: &Completion, _: EntryRef, _: EntryRef) -> bool {
        false
    }
}

impl TableLiveness for Index {
    fn hash(&self, key: &[u8]) -> KeyHash {
        let key = key.try_into().expect("keys of four bytes");
        KeyHash(u64::from(u32::from_le_bytes(key)))
    }

    fn points_to(&self, hash: KeyHash, entry: EntryRef) -> bool {
        *self.lock(hash.0 as usize) == Some(entry)
    }

    fn needs_tombstone(&self, _hash: KeyHash, _entry: EntryRef) -> bool {
        false
    }

    fn relocate(&self, hash: KeyHash, old: EntryRef, new: EntryRef) -> bool {
        let mut slot = self.lock(hash.0 as usize);
        let pointed = *slot == Some(old);
        if pointed {
            *slot = Some(new);
        }
        pointed
    }
}

/// What a write or delete did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    pub key: u32,
    pub version: u64,
    /// Length of the value, `None` when deleted.
    pub len: Option<usize>,
}

/// The store.
pub struct Store {
    pub space: Arc<LogSpace>,
    pub index: Arc<Index>,
    pub cleaner: Cleaner,
}

pub fn options(mib: u64, logs: u16, durability: Durability) -> LogOptions {
    LogOptions {
        logs,
        durability,
        ..LogOptions::new(Size::mib(mib))
    }
}

impl Store {
    pub fn new(options: LogOptions, keys: u32) -> Self {
        Self::with_cleaner(options, CleanerOptions::default(), keys)
    }

    pub fn with_cleaner(options: LogOptions, cleaner: CleanerOptions, keys: u32) -> Self {
        let space = LogSpace::new(options).expect("enough memory");
        let index = Arc::new(Index::new(keys));
        let liveness: Arc<dyn Liveness> = Arc::new(OneTable(Arc::clone(&index)));
        let cleaner = Cleaner::new(Arc::clone(&space), liveness, cleaner);
        Self {
            space,
            index,
            cleaner,
        }
    }

    /// Writes (`Some(len)`) or deletes (`None`) a key. Deleting an absent key gives `None`.
    pub fn change(
        &self,
        log: LogId,
        key: u32,
        len: Option<usize>,
        now_s: u32,
    ) -> Result<Option<Appended<Done>>, AppendError> {
        let with_graves = self.space.uses_graves(4);
        match self.try_change(log, key, len, now_s, with_graves) {
            // Graves make an object larger, tombstones do not.
            Err(AppendError::Full { .. }) if with_graves && len.is_some() => {
                self.try_change(log, key, len, now_s, false)
            }
            other => other,
        }
    }

    fn try_change(
        &self,
        log: LogId,
        key: u32,
        len: Option<usize>,
        now_s: u32,
        graves: bool,
    ) -> Result<Option<Appended<Done>>, AppendError> {
        let guard = self.space.pin();
        let mut slot = self.index.lock(key as usize);
        let mut dead = Burial::NOTHING;
        let old = slot.map(|entry| {
            let view = self.space.entry(entry, &guard).expect("memory is right");
            let Entry::Object(object) = view.entry() else {
                panic!("only objects are in this index");
            };
            if self.space.durability() == Durability::Replicated {
                let all = self.space.dead_with(entry, object.graves, &guard);
                dead = if len.is_some() && graves {
                    all.in_graves()
                } else {
                    all.all_tombstones()
                };
            }
            (entry, object.version, view.total_len())
        });
        let old_version = old.map_or(0, |(_, version, _)| version.0);
        let version = (old_version + 1).max(self.space.safe_version().0);
        let key_bytes = key.to_le_bytes();
        let value = len.map(|len| value_of(key, version, len));
        let mut group = Vec::with_capacity(2);
        if let Some(value) = &value {
            group.push(Entry::Object(Object {
                table: TABLE,
                version: ObjectVersion(version),
                timestamp_s: now_s,
                graves: dead.graves(),
                deadline: None,
                state: ObjectState::Plain,
                key: &key_bytes,
                value,
            }));
        }
        let nowhere = [SegmentId(0)];
        let named = match (self.space.durability(), old, len) {
            (Durability::Replicated, _, _) => dead.tombstones(),
            (Durability::Volatile, Some(_), None) => &nowhere,
            (Durability::Volatile, _, _) => &[],
        };
        let old_version = ObjectVersion(old_version);
        for &segment in named {
            group.push(Entry::Tombstone(Tombstone {
                table: TABLE,
                version: old_version,
                segment,
                timestamp_s: now_s,
                key: &key_bytes,
            }));
        }
        if group.is_empty() {
            return Ok(None);
        }
        if len.is_none() {
            self.space.raise_safe_version(old_version.next());
        }
        let class = match (len, old) {
            (None, _) => AppendClass::Delete,
            (Some(_), None) => AppendClass::Normal,
            (Some(_), Some((_, from, len))) => AppendClass::Replace {
                old_bytes: Encoded::object_len_at(len as usize, from, ObjectVersion(version))
                    as u32,
                graves_bytes: dead.graves().encoded_len() as u32,
            },
        };
        let appended = self.space.append(log, &group, class, &guard)?;
        *slot = len.map(|_| appended.pending()[0]);
        if let Some((entry, _, bytes)) = old {
            self.space.mark_dead(entry, bytes, &guard);
        }
        let version = if len.is_some() {
            version
        } else {
            old_version.0
        };
        Ok(Some(appended.map(|_| Done { key, version, len })))
    }

    /// Takes a key's object out of the index, as a store without replicas deletes: nothing is
    /// written.
    pub fn forget(&self, key: u32) {
        let guard = self.space.pin();
        let mut slot = self.index.lock(key as usize);
        if let Some(entry) = slot.take() {
            let view = self.space.entry(entry, &guard).expect("memory is right");
            let (bytes, version) = (view.total_len(), view.object().expect("an object").version);
            self.space.raise_safe_version(version.next());
            self.space.mark_dead(entry, bytes, &guard);
        }
    }

    /// Reads a key: version and length; checks that the value is the one written.
    pub fn read(&self, key: u32) -> Option<(u64, usize)> {
        let guard = self.space.pin();
        let entry = (*self.index.lock(key as usize))?;
        let view = self.space.entry(entry, &guard).expect("memory is right");
        let Entry::Object(object) = view.entry() else {
            panic!("only objects are in this index");
        };
        assert_eq!(object.key, key.to_le_bytes());
        let expected = value_of(key, object.version.0, object.value.len());
        assert!(object.value == expected, "key {key} has another's value");
        Some((object.version.0, object.value.len()))
    }

    /// Where a key's object lies.
    pub fn place_of(&self, key: u32) -> EntryRef {
        (*self.index.lock(key as usize)).expect("it was written")
    }

    /// How many segments a key's object names, if there is one.
    pub fn graves_of(&self, key: u32) -> Option<usize> {
        let guard = self.space.pin();
        let entry = (*self.index.lock(key as usize))?;
        let view = self.space.entry(entry, &guard).expect("memory is right");
        Some(view.object()?.graves.segments().count())
    }

    /// Steps the cleaner until it has nothing to do.
    pub fn clean(&self, now_s: u32) {
        for _ in 0..100_000 {
            match self.cleaner.step(now_s).expect("memory is right") {
                Pace::Again => {}
                Pace::After(_) | Pace::Done => return,
            }
        }
        panic!("the cleaner finds no end: {:?}", self.space);
    }

    /// Live bytes as the index has them must be what the log counts.
    pub fn check_live_bytes(&self) {
        let guard = self.space.pin();
        let live: u64 = (0..self.index.slots.len())
            .filter_map(|key| *self.index.lock(key))
            .map(|entry| {
                let view = self.space.entry(entry, &guard).expect("memory is right");
                u64::from(view.total_len())
            })
            .sum();
        assert_eq!(self.space.stats().live_bytes, live);
    }
}
