//! Reads and writes of a store whose values are overwritten where they lie [Nibble ch. 6]. The
//! embedded store has fast paths of its own ([`crate::embedded`]).
//!
//! A value in the log begins with its head: version and length. The room behind the head is as long
//! as the value was when it was appended; a new value that fits is written there, others are
//! appended as usual.
//!
//! ```text
//!  object in the log:  ... | key | version u64 | length u32 | value ... | unused |
//!                                 <---- head, 12 bytes ---->  <------ room ------>
//! ```
//!
//! A writer changes head and value under the bucket's lock and between two versions of the bucket
//! ([`BucketGuard::begin_change`]). A reader copies them, and copies again if the bucket's version
//! has changed.
//!
//! A head that is torn may say any length. One that is not, because the bucket is locked or its
//! version has not changed, and says more than there is room for, is corrupt (STORE-4).

use super::apply::{Applied, Write};
use super::read::{PREFETCH_LINES, Seen};
use super::{Engine, EngineError, key_of};
use crate::completions::Execution;
use crate::scan::{ScanItem, Wanted};
use crate::table::{EngineTable, Growth};
use core::cell::Cell;
use pluvio_format::{EntryKind, Object, ParseErrorKind};
use pluvio_index::{BucketGuard, Index};
use pluvio_log::{Awaited, Corruption, EntryView, Fatal, LogSpace, Overwritable, VALUE_HEAD_BYTES};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Current, Get, Now, Outcome, Output, look};
use pluvio_units::{EntryRef, KeyHash, LogId, ObjectVersion};

/// Largest buffer that a thread keeps for its next read.
const BUFFER_KEPT_MAX: usize = 64 << 10;

thread_local! {
    /// Where a value is copied to that is only looked at.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `f` with a buffer of the thread's. `f` may call the store: the inner call gets another
/// buffer.
pub(crate) fn with_buffer<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // A thread that exits has no buffer any more.
    let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
    let result = f(&mut buffer);
    if buffer.capacity() <= BUFFER_KEPT_MAX {
        let _exiting = BUFFER.try_with(|kept| kept.set(buffer));
    }
    result
}

/// What the first bytes of a value say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueHead {
    pub version: ObjectVersion,
    /// Bytes of the value.
    pub len: usize,
}

impl ValueHead {
    #[inline(always)]
    fn read(bytes: [u8; VALUE_HEAD_BYTES]) -> Self {
        let (version, len) = bytes.split_at(8);
        let (version, len) = (version.first_chunk(), len.first_chunk());
        Self {
            version: ObjectVersion(version.map_or(0, |b| u64::from_le_bytes(*b))),
            len: len.map_or(0, |b| u32::from_le_bytes(*b)) as usize,
        }
    }

    #[inline(always)]
    fn bytes(self) -> [u8; VALUE_HEAD_BYTES] {
        let mut bytes = [0; VALUE_HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.version.0.to_le_bytes());
        let len = u32::try_from(self.len).expect("values are limited to far less");
        bytes[8..].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// The head in front of the value: what is appended.
    pub(crate) fn with(version: ObjectVersion, value: &[u8]) -> Vec<u8> {
        let head = Self {
            version,
            len: value.len(),
        };
        [&head.bytes()[..], value].concat()
    }

    /// The object as users know it, from one as it lies in the log. A torn head gives some length
    /// that is there.
    pub(crate) fn strip<'a>(object: Object<'a>) -> Object<'a> {
        let Some((head, rest)) = object.value.split_first_chunk() else {
            return object;
        };
        let head = Self::read(*head);
        Object {
            version: head.version,
            value: &rest[..head.len.min(rest.len())],
            ..object
        }
    }

    /// Whether an object as it lies in the log has a head, and room for what that says.
    fn is_sound(object: &Object<'_>) -> bool {
        let head = object.value.split_first_chunk();
        head.is_some_and(|(head, rest)| Self::read(*head).len <= rest.len())
    }

    #[inline(always)]
    fn of<O: Overwritable + ?Sized>(object: &O) -> Self {
        Self::read(object.load_head())
    }
}

/// Lets `into` hold the value; gives its version. Both may be torn, as
/// [`Overwritable::load_head`] says. `None` when there is no room for a value so long: the
/// head is torn, or corrupt.
#[inline(always)]
pub(crate) fn copy_object<O: Overwritable + ?Sized>(
    object: &O,
    into: &mut Vec<u8>,
) -> Option<ObjectVersion> {
    let head = ValueHead::of(object);
    if head.len > object.room() {
        return None;
    }
    object.load_rest(head.len, into);
    Some(head.version)
}

impl Engine {
    /// [`Self::get`] in such a store.
    pub(super) fn get_in_place(
        &self,
        table: &EngineTable,
        hash: KeyHash,
        get: &Get<'_>,
    ) -> Awaited<Outcome> {
        let outcome = with_buffer(|value| {
            let guard = self.space.pin();
            let version = self.copy_slow(table, hash, get.key, value, &guard);
            let current = version.map(|version| Current {
                version,
                value,
                deadline: None,
            });
            look(get, current, Now::default())
        });
        Awaited::Now(self.marks.unmarked(outcome))
    }

    /// One object of a scan, whose entry the index was seen to point to; `None` when its hash lies
    /// before `from`, or when it was deleted meanwhile.
    pub(crate) fn scan_in_place(
        &self,
        table: &EngineTable,
        entry: EntryRef,
        wanted: &Wanted,
        guard: &EpochGuard<'_>,
    ) -> Option<ScanItem> {
        let key = self.key_in_place(entry, guard);
        let rank = wanted.rank(table, &key)?;
        let hash = table.hash(&key);
        let mut value = Vec::new();
        let version = match wanted.values {
            true => self.copy_slow(table, hash, &key, &mut value, guard),
            false => self.read_stable(table, hash, &key, guard, |object| {
                Some(ValueHead::of(object).version)
            }),
        };
        Some(ScanItem {
            rank,
            key,
            version: version?,
            deadline: None,
            value,
        })
    }

    /// The key of an object, without a look at its value.
    pub(crate) fn key_in_place(&self, entry: EntryRef, guard: &EpochGuard<'_>) -> Vec<u8> {
        if let Some(object) = self.space.mutable_object(entry, guard) {
            return object.key.to_vec();
        }
        match self.space.scattered_object(entry, guard) {
            Some(object) => object.key,
            None => key_of(&self.view(entry, guard).entry()).to_vec(),
        }
    }

    /// Slow path of every read: the key may be outside its home line, its object in several
    /// seglets, or its bucket under change. Replaces what `into` holds by a copy of the value, and
    /// gives its version. What `into` holds when there is no object is not said.
    #[inline(never)]
    pub(crate) fn copy_slow(
        &self,
        table: &EngineTable,
        hash: KeyHash,
        key: &[u8],
        into: &mut Vec<u8>,
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        self.read_stable(table, hash, key, guard, |object| copy_object(object, into))
    }

    /// Gives `take` the object with this key. Where it saw a torn head or value, it is asked again.
    /// A whole one of which it makes `None` has a corrupt head.
    fn read_stable<T>(
        &self,
        table: &EngineTable,
        hash: KeyHash,
        key: &[u8],
        guard: &EpochGuard<'_>,
        mut take: impl FnMut(&dyn Overwritable) -> Option<T>,
    ) -> Option<T> {
        let index = table.indexes.of(hash)?;
        let found = index.lookup_stable(hash, |entry| {
            self.space.prefetch(entry, PREFETCH_LINES);
            let mut taken = |object: &dyn Overwritable| {
                let has_key = object.has_key(key);
                has_key.then(|| take(object).ok_or(entry))
            };
            if let Some(object) = self.space.mutable_object(entry, guard) {
                return taken(&object);
            }
            if let Some(object) = self.space.scattered_object(entry, guard) {
                return taken(&object);
            }
            // No room for a head.
            self.key_is(entry, key, guard).then_some(Err(entry))
        })?;
        // The bucket did not change while it was read.
        Some(found.unwrap_or_else(|entry| self.corrupt_head(entry, guard)))
    }

    /// Stops the process: the head of this value, which nobody writes meanwhile, says what cannot
    /// be.
    #[cold]
    #[inline(never)]
    fn corrupt_head(&self, entry: EntryRef, guard: &EpochGuard<'_>) -> ! {
        let (_, at) = self.space.position_of(entry, guard);
        Fatal::corrupt(&Corruption {
            entry,
            segment: at.segment,
            offset: at.offset,
            what: ParseErrorKind::BadBody(EntryKind::Object),
        })
    }

    /// Looks at the head of a value that nobody writes meanwhile, if it has one.
    pub(crate) fn check_head(&self, entry: EntryRef, view: &EntryView<'_>, guard: &EpochGuard<'_>) {
        if view.object().is_some_and(|o| !ValueHead::is_sound(&o)) {
            self.corrupt_head(entry, guard);
        }
    }

    /// [`Self::check_head`] of what was found in a locked bucket.
    pub(crate) fn check_seen(&self, entry: EntryRef, seen: &Seen<'_>, guard: &EpochGuard<'_>) {
        match seen {
            Seen::Mutable(view) => self.check_head(entry, view, guard),
            Seen::Object(..) | Seen::Other(_) => {}
        }
    }

    /// Overwrites the object, found where `at` says, if the value fits. Gives the value's head
    /// before and after, to be counted ([`count_overwrite`]).
    #[inline(always)]
    pub(crate) fn overwrite(
        &self,
        bucket: &mut BucketGuard<'_>,
        at: (EntryRef, &EpochGuard<'_>),
        object: &impl Overwritable,
        value: &[u8],
    ) -> Option<(ValueHead, ValueHead)> {
        if value.len() > object.room() {
            return None;
        }
        let before = ValueHead::of(object);
        if before.len > object.room() {
            self.corrupt_head(at.0, at.1);
        }
        let now = ValueHead {
            version: before.version.next(),
            len: value.len(),
        };
        let change = bucket.begin_change();
        object.overwrite(&now.bytes(), value);
        drop(change);
        Some((before, now))
    }

    /// A mutation's new value: written over the old one if it fits there, else appended.
    pub(super) fn put_in_place(
        &self,
        write: &mut Write<'_, '_>,
        value: &[u8],
        output: Output,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let replaced = write.replaced_version();
        // An overwrite gives the next version.
        let version = match self.overwrite_old(write, value) {
            Some(version) => version,
            None => {
                let version = self.next_version(write);
                let with_head = ValueHead::with(version, value);
                self.append_volatile(write, version, &with_head, value.len())?;
                version
            }
        };
        let outcome = Outcome::Written {
            version,
            replaced,
            output,
        };
        Ok(self.done(outcome, execution))
    }

    /// [`Self::overwrite`] for a mutation that has found the object it replaces.
    fn overwrite_old(&self, write: &mut Write<'_, '_>, value: &[u8]) -> Option<ObjectVersion> {
        let (entry, version) = write.replaced().map(|old| (old.entry, old.version))?;
        if write.least > version.next() {
            return None;
        }
        let at = (entry, write.guard);
        let (before, now) = match self.space.mutable_object(entry, write.guard) {
            Some(object) => self.overwrite(&mut write.bucket, at, &object, value)?,
            None => {
                let object = self.space.scattered_object(entry, write.guard)?;
                self.overwrite(&mut write.bucket, at, &object, value)?
            }
        };
        debug_assert_eq!(before.version, version, "read under the same lock");
        count_overwrite(write.table, || write.log, before, now);
        Some(now.version)
    }

    /// The object as users know it, from an entry that nobody writes meanwhile.
    pub(super) fn object_in_place<'a>(
        &self,
        entry: EntryRef,
        view: &'a EntryView<'_>,
        guard: &EpochGuard<'_>,
    ) -> Option<Object<'a>> {
        self.check_head(entry, view, guard);
        view.object().map(ValueHead::strip)
    }
}

/// Counts what an overwrite has changed: nothing, while sizes stay.
#[inline(always)]
pub(crate) fn count_overwrite(
    table: &EngineTable,
    by: impl Fn() -> LogId,
    before: ValueHead,
    now: ValueHead,
) {
    if now.len != before.len {
        let growth = Growth::by(now.len, 0).without(Growth::by(before.len, 0));
        table.count(by(), growth);
    }
}

/// Lets an index point to `new`, the cleaner's copy of `old`; false when it points elsewhere. The
/// value may have changed since the cleaner copied it; it cannot while the bucket is locked.
pub(crate) fn relocate(
    space: &LogSpace,
    index: &Index,
    hash: KeyHash,
    (old, new): (EntryRef, EntryRef),
) -> bool {
    let guard = space.pin();
    let mut bucket = index.lock(hash);
    if bucket.find(|entry| entry == old).is_none() {
        return false;
    }
    space.copy_value_again(old, new, &guard);
    bucket.replace(old, new, false)
}
