//! Reads and writes of a store whose values are overwritten where they lie (004 ch. 6).
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

use crate::completions::Execution;
use crate::engine::{Applied, Engine, EngineError, Write};
use crate::read::{PREFETCH_LINES, Seen};
use crate::table::{EngineTable, Growth};
use core::cell::Cell;
use pluvio_format::{EntryKind, Object, ParseErrorKind};
use pluvio_index::{Approach, BucketGuard};
use pluvio_log::{Awaited, Corruption, EntryView, Fatal, MutableObject, VALUE_HEAD_BYTES};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Outcome, Output};
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
    fn of(object: &MutableObject<'_>) -> Self {
        Self::read(object.load_head())
    }
}

impl Engine {
    /// Replaces what `into` holds by a copy of the value; gives its version. What `into` holds when
    /// there is no object is not said.
    #[inline(always)]
    pub(crate) fn read_in_place(
        &self,
        table: &EngineTable,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<ObjectVersion> {
        let hash = table.hash(key);
        let approach = table.indexes.approach(hash);
        self.copy_value(table, (hash, approach), key, into, &self.space.pin())
    }

    /// [`Self::read_in_place`] for those who do more than copy: one piece of code for all of them.
    #[inline(never)]
    pub(crate) fn copy_in_place(
        &self,
        table: &EngineTable,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<ObjectVersion> {
        self.read_in_place(table, key, into)
    }

    /// [`Self::read_in_place`] for who has the key's hash, has approached it in the one index if
    /// there is one, and holds a guard: the short way, in one piece of code, for nearly every read.
    /// [`Self::copy_away`] finds what this does not.
    #[inline(always)]
    pub(crate) fn copy_value(
        &self,
        table: &EngineTable,
        (hash, approach): (KeyHash, Option<Approach>),
        key: &[u8],
        into: &mut Vec<u8>,
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let space = &*self.space;
        if let Some(approach) = approach
            && let Some(index) = table.indexes.of_all()
            && let Some(home) = index.stable_home(approach)
        {
            for slot in home.slots() {
                space.prefetch(slot.entry, PREFETCH_LINES);
                let object = space.plain_mutable_object(slot.entry, key, guard);
                let Some(object) = object else { continue };
                let version = self.copy_object(&object, into);
                if version.is_some() && home.is_stable() {
                    return version;
                }
                break;
            }
        }
        self.copy_away(table, hash, key, into, guard)
    }

    /// Lets `into` hold the value; gives its version. Both may be torn, as
    /// [`MutableObject::load_head`] says. `None` when there is no room for a value so long: the
    /// head is torn, or corrupt.
    #[inline(always)]
    fn copy_object(&self, object: &MutableObject<'_>, into: &mut Vec<u8>) -> Option<ObjectVersion> {
        let head = ValueHead::of(object);
        if head.len > object.room() {
            return None;
        }
        object.load_rest(head.len, into);
        Some(head.version)
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

    /// [`Self::copy_value`] for what is not where nearly everything is, not as nearly everything
    /// is, or not at rest.
    #[inline(never)]
    fn copy_away(
        &self,
        table: &EngineTable,
        hash: KeyHash,
        key: &[u8],
        into: &mut Vec<u8>,
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let index = table.indexes.of(hash)?;
        let found = index.lookup_stable(hash, |entry| {
            self.space.prefetch(entry, PREFETCH_LINES);
            if let Some(object) = self.space.mutable_object(entry, guard) {
                if !object.has_key(key) {
                    return None;
                }
                return Some(self.copy_object(&object, into).ok_or(entry));
            }
            // A large one: such a value does not change.
            let view = self.view(entry, guard);
            let object = view.object().filter(|o| o.key == key)?;
            self.check_head(entry, &view, guard);
            let object = ValueHead::strip(object);
            into.clear();
            into.extend_from_slice(object.value);
            Some(Ok(object.version))
        })?;
        // The bucket did not change while it was read.
        Some(found.unwrap_or_else(|entry| self.corrupt_head(entry, guard)))
    }

    /// Overwrites an object if it is there and the value fits; gives the new version. `by` gives
    /// the log that the thread appends to; the hash is the key's, and what was approached is its
    /// home. `None`, and nothing has changed, when an append is needed.
    ///
    /// The short way, in one piece of code, for nearly every put; [`Self::put_away`] finds what
    /// this does not.
    #[inline(always)]
    pub(crate) fn put_in_place(
        &self,
        by: impl Fn() -> LogId,
        table: &EngineTable,
        (hash, approach): (KeyHash, Option<Approach>),
        key: &[u8],
        value: &[u8],
    ) -> Option<ObjectVersion> {
        let (approach, whole) = approach.zip(table.indexes.whole())?;
        let (index, space) = (whole.index(), &*self.space);
        let guard = space.pin();
        let ahead = |entry| space.prefetch(entry, PREFETCH_LINES);
        let (mut bucket, likely) = index.lock_after(approach, ahead);
        if table.indexes.is_closed() {
            return None;
        }
        if let Some(likely) = likely
            && let Some(object) = space.plain_mutable_object(likely.entry(), key, &guard)
        {
            let at = (likely.entry(), &guard);
            let (before, now) = self.overwrite(&mut bucket, at, &object, value)?;
            drop(bucket);
            count_overwrite(table, by, before, now);
            return Some(now.version);
        }
        drop(bucket);
        self.put_away(by(), table, hash, key, value, &guard)
    }

    /// [`Self::put_in_place`] for what is not where nearly everything is, or not as nearly
    /// everything is.
    #[inline(never)]
    fn put_away(
        &self,
        by: LogId,
        table: &EngineTable,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let index = table.indexes.of(hash)?;
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return None;
        }
        let mut found = None;
        let slot = bucket.find(|entry| {
            let object = self.space.mutable_object(entry, guard);
            found = object.filter(|object| object.has_key(key));
            found.is_some()
        })?;
        let at = (slot.entry, guard);
        let (before, now) = self.overwrite(&mut bucket, at, &found?, value)?;
        drop(bucket);
        count_overwrite(table, || by, before, now);
        Some(now.version)
    }

    /// Overwrites the object, found where `at` says, if the value fits. Gives the value's head
    /// before and after, to be counted ([`count_overwrite`]).
    #[inline(always)]
    fn overwrite(
        &self,
        bucket: &mut BucketGuard<'_>,
        at: (EntryRef, &EpochGuard<'_>),
        object: &MutableObject<'_>,
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
    pub(crate) fn put_or_overwrite(
        &self,
        write: &mut Write<'_, '_>,
        value: &[u8],
        output: Output,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let replaced = write.replaced_version();
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
        let guard = write.guard;
        let object = self.space.mutable_object(entry, guard)?;
        let (before, now) = self.overwrite(&mut write.bucket, (entry, guard), &object, value)?;
        debug_assert_eq!(before.version, version, "read under the same lock");
        count_overwrite(write.table, || write.log, before, now);
        Some(now.version)
    }
}

/// Counts what an overwrite has changed: nothing, while sizes stay.
#[inline(always)]
fn count_overwrite(table: &EngineTable, by: impl Fn() -> LogId, before: ValueHead, now: ValueHead) {
    if now.len != before.len {
        let growth = Growth::by(now.len, 0).without(Growth::by(before.len, 0));
        table.count(by(), growth);
    }
}
