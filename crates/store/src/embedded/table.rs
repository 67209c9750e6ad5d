//! A table of an embedded store: reads, writes, batches.

use crate::embedded::conditions::PutOptions;
use crate::embedded::error::{IncrementError, StoreError};
use crate::embedded::iter::Iter;
use crate::embedded::put::NewValue;
use crate::embedded::read::BATCH;
use crate::embedded::store::{Shared, StoreGuard};
use crate::engine::in_place::with_buffer;
use crate::engine::read::Seen;
use crate::engine::{Applied, EngineError, Site, StoreKind};
use crate::table::EngineTable;
use core::ops::Deref;
use pluvio_format::Object;
use pluvio_log::Awaited;
use pluvio_mutation::{
    Addend, Change, Get, Lifetime, Mutation, Outcome, Output, Projection, RejectRules, TouchIf,
    Unfit,
};
use pluvio_units::{Deadline, KeyHash, ObjectVersion, TableId};
use std::sync::Arc;

/// A handle of one table. Cheap to clone; keeps the store alive.
#[derive(Clone)]
pub struct Table {
    pub(crate) shared: Arc<Shared>,
    pub(crate) table: Arc<EngineTable>,
    /// For messages.
    name: Arc<str>,
}

/// A value where it lies in the log, or a copy of one that is cut in two there.
pub struct Borrowed<'g>(Held<'g>);

enum Held<'g> {
    Seen(Seen<'g>),
    Copy(ObjectVersion, Vec<u8>),
}

impl Borrowed<'_> {
    /// The version of the object.
    #[must_use]
    pub fn version(&self) -> ObjectVersion {
        match &self.0 {
            Held::Seen(seen) => object_of(seen).version,
            Held::Copy(version, _) => *version,
        }
    }
}

fn object_of<'a>(seen: &'a Seen<'_>) -> Object<'a> {
    seen.object().expect("only objects are borrowed")
}

impl core::fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Borrowed").field(&&**self).finish()
    }
}

impl Deref for Borrowed<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Seen(seen) => object_of(seen).value,
            Held::Copy(_, value) => value,
        }
    }
}

impl Table {
    pub(crate) fn new(shared: &Arc<Shared>, table: Arc<EngineTable>, name: &str) -> Self {
        Self {
            shared: Arc::clone(shared),
            table,
            name: name.into(),
        }
    }

    /// The name that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table's number: of use in traces.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.table.id()
    }

    /// Number of objects; while others write, some number it had. One that has expired counts until
    /// it is dropped, a second later as a rule.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.table.objects()
    }

    /// Whether there are no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the value.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get_with(key, |_, value| value.to_vec())
    }

    /// Puts a copy of the value into `into`, whose content it replaces; false, and `into` is empty,
    /// when there is no object.
    #[inline]
    pub fn get_into(&self, key: &[u8], into: &mut Vec<u8>) -> bool {
        let engine = &self.shared.engine;
        match engine.kind {
            StoreKind::InPlace => {
                let hash = self.table.hash(key);
                let to = (hash, self.table.indexes.approach(hash));
                let guard = engine.space.pin();
                let found = engine
                    .copy_fast(&self.table, to, key, into, &guard)
                    .is_some();
                if !found {
                    into.clear();
                }
                found
            }
            StoreKind::Replicated | StoreKind::Volatile => {
                into.clear();
                engine.copy_appended(&self.table, key, into).is_some()
            }
        }
    }

    /// Shows version and value to `see`, which must be quick: no memory is reclaimed meanwhile. It
    /// may call the store.
    #[inline]
    pub fn get_with<R>(
        &self,
        key: &[u8],
        see: impl FnOnce(ObjectVersion, &[u8]) -> R,
    ) -> Option<R> {
        let engine = &self.shared.engine;
        match engine.kind {
            StoreKind::InPlace => with_buffer(|value| {
                let version = engine.read_in_place(&self.table, key, value)?;
                Some(see(version, value))
            }),
            StoreKind::Replicated | StoreKind::Volatile => engine.read_fast(&self.table, key, see),
        }
    }

    /// The value where it lies, for as long as the guard lives. No copy is made, unless the value
    /// is large and cut in two in memory, or the store overwrites values in place.
    ///
    /// ```
    /// # use pluvio_store::{Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// towns.put(b"Bern", b"134794")?;
    /// let guard = store.pin();
    /// let bern = towns.get_ref(&guard, b"Bern").ok_or("no Bern")?;
    /// towns.put(b"Bern", b"137000")?;
    /// assert_eq!(&bern[..], b"134794", "what was borrowed stays as it was");
    /// assert_eq!(towns.get(b"Bern").as_deref(), Some(&b"137000"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When the guard is of another store: it would not keep the value readable.
    #[must_use]
    pub fn get_ref<'g>(&'g self, guard: &'g StoreGuard<'_>, key: &[u8]) -> Option<Borrowed<'g>> {
        let engine = &self.shared.engine;
        let pinned = engine.space().is_pinned_by(&guard.0);
        assert!(pinned, "the guard is of another store than the table");
        match engine.kind {
            StoreKind::InPlace => {
                let mut value = Vec::new();
                let version = engine.read_in_place(&self.table, key, &mut value)?;
                Some(Borrowed(Held::Copy(version, value)))
            }
            StoreKind::Replicated | StoreKind::Volatile => {
                let hash = self.table.hash(key);
                let index = self.table.indexes.of(hash)?;
                let (_, seen) = engine.lookup(&index, hash, key, &guard.0)?;
                let is_gone = engine.is_gone(&self.table, &seen.object()?);
                (!is_gone).then_some(Borrowed(Held::Seen(seen)))
            }
        }
    }

    /// Whether there is an object.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.get_with(key, |_, _| ()).is_some()
    }

    /// Stores a value, whatever was there; gives its version. Versions of one key only grow, also
    /// over delete and re-create. A deadline that the key had is over: see [`Self::put_for`].
    ///
    /// # Errors
    /// See [`StoreError`]; nothing changed. Never waits: [`StoreError::Full`] says when to try
    /// again.
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<ObjectVersion, StoreError> {
        self.check(key, value)?;
        // First of all: it comes from memory while the operation before this one waits for its
        // entry.
        let hash = self.table.hash(key);
        let approach = self.table.indexes.approach(hash);
        let engine = &self.shared.engine;
        let head = || self.shared.heads.mine(hash);
        let done = match engine.kind {
            StoreKind::InPlace => {
                let to = (hash, approach);
                engine.overwrite_in_place(head, &self.table, to, key, value)
            }
            StoreKind::Volatile => {
                let new = NewValue {
                    table: &self.table,
                    key,
                    value,
                    now_s: engine.space().time_s(),
                };
                approach.and_then(|approach| engine.put_fast(head, approach, new))
            }
            StoreKind::Replicated => None,
        };
        if let Some(version) = done {
            return Ok(version);
        }
        let put = Mutation::new(self.table.id(), key, Change::Put(value.into()));
        let applied = self.apply(hash, &put)?;
        match applied.pending().outcome() {
            Outcome::Written { version, .. } => Ok(*version),
            other => unreachable!("a put without rules writes: {other:?}"),
        }
    }

    /// Stores a value unless the rules reject it.
    ///
    /// ```
    /// # use pluvio_store::{RejectRules, Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// let first = towns.put_if(b"Bern", b"134794", RejectRules::EXISTS)?;
    /// let second = towns.put_if(b"Bern", b"137000", RejectRules::unless_version(first))?;
    /// assert!(second > first);
    /// let late = towns.put_if(b"Bern", b"1", RejectRules::unless_version(first));
    /// assert_eq!(
    ///     late.unwrap_err().to_string(),
    ///     format!("the condition does not hold: the object has version {second}")
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Condition`], or as [`Self::put`]; nothing changed.
    pub fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
    ) -> Result<ObjectVersion, StoreError> {
        self.put_with(key, value, PutOptions::from(rules))
    }

    /// Stores a value, whatever was there, that expires; gives its version. From its deadline on
    /// it is absent for every call. Its memory comes back without reads, about a second later.
    ///
    /// ```
    /// # use pluvio_store::{Deadline, Lifetime, Size, Store, TouchIf};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let sessions = store.create_table("sessions")?;
    /// sessions.put_for(b"7", b"Zoe", Lifetime::For(60_000))?;
    /// assert!(sessions.deadline(b"7").flatten().is_some());
    /// assert!(sessions.touch(b"7", Lifetime::Endless, TouchIf::Always)?);
    /// assert_eq!(sessions.deadline(b"7"), Some(None), "it lives for ever");
    /// let past = Deadline::new(1).ok_or("no deadline")?;
    /// sessions.put_for(b"7", b"Zoe", Lifetime::Until(past))?;
    /// assert_eq!(sessions.get(b"7"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::NoDeadlines`], or as [`Self::put`]; nothing changed.
    pub fn put_for(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Lifetime,
    ) -> Result<ObjectVersion, StoreError> {
        self.put_with(key, value, PutOptions::from(lifetime))
    }

    /// Gives an object another lifetime, if its deadline fulfils the condition; says whether it
    /// got it. One that is over at once deletes the object. False when there is no object. The
    /// object is written anew, with its value, and gets the next version.
    ///
    /// # Errors
    /// [`StoreError::NoDeadlines`], or as [`Self::put`]; nothing changed.
    pub fn touch(&self, key: &[u8], lifetime: Lifetime, when: TouchIf) -> Result<bool, StoreError> {
        self.check(key, &[])?;
        self.check_lifetime(lifetime)?;
        let touch = Mutation {
            lifetime,
            ..Mutation::new(self.table.id(), key, Change::Touch(when))
        };
        let applied = self.apply(self.table.hash(key), &touch)?;
        match applied.pending().outcome() {
            Outcome::Written { .. } => Ok(true),
            Outcome::Unchanged { .. } => Ok(false),
            Outcome::Deleted { .. } => {
                self.keep_deletion(applied);
                Ok(true)
            }
            other => unreachable!("a lifetime is changed or not: {other:?}"),
        }
    }

    /// The deadline of an object; `None` when there is no object, `Some(None)` when it does not
    /// expire.
    #[must_use]
    pub fn deadline(&self, key: &[u8]) -> Option<Option<Deadline>> {
        let get = Get {
            projection: Projection::Deadline,
            ..Get::new(self.table.id(), key)
        };
        let found = self
            .shared
            .engine
            .get(&self.table, self.table.hash(key), &get);
        let found = found.expect("an embedded store has no transactions of several owners");
        match found.pending().output() {
            Output::Integer(ms) => Some(u64::try_from(*ms).ok().and_then(Deadline::new)),
            Output::Nothing | Output::Bytes(_) | Output::Integers(_) => None,
        }
    }

    /// Removes the object; says whether there was one.
    ///
    /// # Errors
    /// [`StoreError::TableDropped`], [`StoreError::KeyTooLong`]; [`StoreError::Full`] only in a
    /// store with a sink, for the tombstone.
    pub fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.check(key, &[])?;
        let hash = self.table.hash(key);
        let engine = &self.shared.engine;
        if let StoreKind::Volatile = engine.kind
            && let Some(approach) = self.table.indexes.approach(hash)
        {
            let by = || self.shared.heads.mine(hash);
            let done = engine.delete_fast(by, &self.table, (hash, approach), key);
            if let Some(deleted) = done {
                return Ok(deleted);
            }
        }
        let delete = Mutation::new(self.table.id(), key, Change::Delete);
        let applied = self.apply(hash, &delete)?;
        let deleted = match applied.pending().outcome() {
            Outcome::Deleted { version, .. } => *version > ObjectVersion(0),
            other => unreachable!("a delete without rules deletes: {other:?}"),
        };
        if deleted {
            self.keep_deletion(applied);
        }
        Ok(deleted)
    }

    /// Keeps a deletion until the sink has its tombstone.
    pub(super) fn keep_deletion(&self, applied: Awaited<Applied>) {
        if let (Awaited::Later(appended), Some(sink)) = (applied, &self.shared.sink) {
            sink.deleted(&self.table, appended);
        }
    }

    /// Adds to a number, which is stored as decimal text; an object that is not there counts as 0.
    /// Gives the sum.
    ///
    /// # Errors
    /// See [`IncrementError`]; nothing changed.
    pub fn increment(&self, key: &[u8], by: i64) -> Result<i64, IncrementError> {
        self.check(key, &[])?;
        let add = Change::Add(Addend::Integer(by));
        let add = Mutation::new(self.table.id(), key, add);
        let applied = self.apply(self.table.hash(key), &add)?;
        match applied.pending().outcome() {
            Outcome::Written {
                output: Output::Integer(sum),
                ..
            } => Ok(*sum),
            Outcome::Refused(unfit) => Err(match unfit {
                Unfit::Overflow => IncrementError::Overflow { by },
                Unfit::NotANumber | Unfit::TooLong => IncrementError::NotANumber,
            }),
            other => unreachable!("a sum is written or refused: {other:?}"),
        }
    }

    /// Shows `see` the value of each key, by its place in `keys`, in that order. The keys' places
    /// in index and log are asked for together, so that the waits for memory overlap. Each value is
    /// that of some moment of the call: what `see` writes, the rest of its batch may or may not
    /// show.
    ///
    /// ```
    /// # use pluvio_store::{Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// towns.put(b"Bern", b"134794")?;
    /// let mut found = Vec::new();
    /// towns.get_batch(&[b"Bern", b"Atlantis"], |at, value| {
    ///     found.push((at, value.map(|value| value.to_vec())));
    /// });
    /// assert_eq!(found, [(0, Some(b"134794".to_vec())), (1, None)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_batch(&self, keys: &[&[u8]], see: impl FnMut(usize, Option<&[u8]>)) {
        let engine = &self.shared.engine;
        match engine.kind {
            StoreKind::InPlace => engine.read_batch_in_place(&self.table, keys, see),
            StoreKind::Replicated | StoreKind::Volatile => {
                engine.read_batch(&self.table, keys, see);
            }
        }
    }

    /// Stores each pair as [`Self::put`] would, in their order: all of them, if there is no error.
    ///
    /// ```
    /// # use pluvio_store::{Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// let pairs: [(&[u8], &[u8]); 2] = [(b"Bern", b"134794"), (b"Thun", b"43734")];
    /// towns.put_batch(&pairs).map_err(|(_stored, why)| why)?;
    /// assert_eq!(towns.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first error and how many pairs were stored before it; those stay.
    pub fn put_batch(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), (usize, StoreError)> {
        for (group, chunk) in pairs.chunks(BATCH).enumerate() {
            let engine = &self.shared.engine;
            {
                let _guard = engine.space().pin();
                let _batch = engine.prefetch_batch(&self.table, chunk.iter().map(|(key, _)| *key));
            }
            for (at, (key, value)) in chunk.iter().enumerate() {
                self.put(key, value)
                    .map_err(|error| (group * BATCH + at, error))?;
            }
        }
        Ok(())
    }

    /// All pairs of key and value, in no useful order. An object that is there all the time comes
    /// exactly once; one that is written or deleted, or expires, meanwhile may or may not come.
    ///
    /// ```
    /// # use pluvio_store::{Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// towns.put(b"Bern", b"134794")?;
    /// towns.put(b"Thun", b"43734")?;
    /// let mut all: Vec<(Vec<u8>, Vec<u8>)> = towns.iter().collect();
    /// all.sort();
    /// assert_eq!(all[0], (b"Bern".to_vec(), b"134794".to_vec()));
    /// assert_eq!(all[1], (b"Thun".to_vec(), b"43734".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter {
        Iter::new(self.clone())
    }

    pub(super) fn check(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let limits = &self.shared.limits;
        if key.len() > limits.key_max {
            return Err(StoreError::KeyTooLong(key.len(), limits.key_max));
        }
        if value.len() > limits.value_max {
            return Err(StoreError::ValueTooLong(value.len(), limits.value_max));
        }
        Ok(())
    }

    /// Values that are overwritten have no room for a deadline, whether it is past or not.
    pub(super) fn check_lifetime(&self, lifetime: Lifetime) -> Result<(), StoreError> {
        match self.shared.engine.kind {
            StoreKind::InPlace if lifetime.is_bounded() => Err(StoreError::NoDeadlines),
            StoreKind::InPlace | StoreKind::Replicated | StoreKind::Volatile => Ok(()),
        }
    }

    pub(super) fn apply(
        &self,
        hash: KeyHash,
        mutation: &Mutation<'_>,
    ) -> Result<Awaited<Applied>, StoreError> {
        let engine = &self.shared.engine;
        let site = Site {
            log: self.shared.heads.mine(hash),
            table: &self.table,
            hash,
            now_s: engine.space().time_s(),
            only_this_log: false,
        };
        let applied = engine.apply(&site, mutation, None);
        applied.map_err(|error| self.refused(error))
    }

    /// Wakes those who make room when there is none.
    #[cold]
    fn refused(&self, error: EngineError) -> StoreError {
        if let EngineError::Full { .. } = error {
            self.shared.memory_is_short();
        }
        StoreError::of(error, &self.name)
    }
}

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table")
            .field("name", &self.name)
            .field("id", &self.id())
            .field("objects", &self.len())
            .finish_non_exhaustive()
    }
}

impl IntoIterator for &Table {
    type Item = (Vec<u8>, Vec<u8>);
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        self.iter()
    }
}
