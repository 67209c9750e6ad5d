//! Reads and writes of a store whose values are overwritten where they lie (004 ch. 6).
//!
//! A value in the log begins with its head: version and length. The room behind the head is as long as the value was
//! when it was appended; a new value that fits is written there, others are appended as usual.
//!
//! ```text
//!  object in the log:  ... | key | version u64 | length u32 | value ... | unused |
//!                                 <---- head, 12 bytes ---->  <------ room ------>
//! ```
//!
//! A writer changes head and value under the bucket's lock and between two versions of the bucket
//! ([`BucketGuard::change_in_place`]). A reader copies them, and copies again if the bucket's version has changed.

use crate::engine::{Engine, Old, Place};
use crate::read::PREFETCH_LINES;
use crate::table::{EngineTable, Growth};
use core::cell::Cell;
use pluvio_format::Object;
use pluvio_index::BucketGuard;
use pluvio_log::{LogSpace, MutableObject, VALUE_HEAD_BYTES};
use pluvio_memory::EpochGuard;
use pluvio_units::{LogId, ObjectVersion};

/// Largest buffer that a thread keeps for its next read.
const BUFFER_KEPT_MAX: usize = 64 << 10;

thread_local! {
    /// Where a value is copied to that is only looked at.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `f` with a buffer of the thread's. `f` may call the store: the inner call gets another buffer.
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
    fn read(bytes: [u8; VALUE_HEAD_BYTES]) -> Self {
        let (version, len) = bytes.split_at(8);
        let (version, len) = (version.first_chunk(), len.first_chunk());
        Self {
            version: ObjectVersion(version.map_or(0, |b| u64::from_le_bytes(*b))),
            len: len.map_or(0, |b| u32::from_le_bytes(*b)) as usize,
        }
    }

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

    /// The object as users know it, from one as it lies in the log. A torn head gives some length that is there.
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

    fn of(space: &LogSpace, object: &MutableObject<'_>) -> Self {
        Self::read(space.load_head(object))
    }
}

impl Engine {
    /// Replaces what `into` holds by a copy of the value; gives its version. What `into` holds when there is no object is
    /// not said.
    pub(crate) fn read_in_place(
        &self,
        table: &EngineTable,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<ObjectVersion> {
        let hash = table.hash(key);
        let guard = self.space.pin();
        let index = table.indexes.of(hash)?;
        index.lookup_stable(hash, |entry| {
            self.space.prefetch(entry, PREFETCH_LINES);
            let Some(object) = self.space.mutable_object(entry, &guard) else {
                // A large one: such a value does not change.
                let view = self.view(entry, &guard);
                let object = ValueHead::strip(view.object().filter(|o| o.key == key)?);
                into.clear();
                into.extend_from_slice(object.value);
                return Some(object.version);
            };
            if !object.has_key(key) {
                return None;
            }
            let head = ValueHead::of(&self.space, &object);
            // Torn, it may say anything.
            into.resize(head.len.min(object.room()), 0);
            self.space.load_rest(&object, into);
            Some(head.version)
        })
    }

    /// Overwrites an object if it is there and the value fits; gives the new version. `by` is the log that the
    /// thread appends to. `None`, and nothing has changed, when an append is needed.
    pub(crate) fn put_in_place(
        &self,
        by: LogId,
        table: &EngineTable,
        key: &[u8],
        value: &[u8],
    ) -> Option<ObjectVersion> {
        let hash = table.hash(key);
        let guard = self.space.pin();
        let index = table.indexes.of(hash)?;
        // On their way before the lock is waited for.
        if let Some(slot) = index.at_home(index.home(hash)).next() {
            self.space.prefetch(slot.entry, PREFETCH_LINES);
        }
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return None;
        }
        let mut found = None;
        bucket.find(|entry| {
            let object = self.space.mutable_object(entry, &guard);
            found = object.filter(|object| object.has_key(key));
            found.is_some()
        })?;
        let object = found?;
        let before = ValueHead::of(&self.space, &object);
        let version = before.version.next();
        self.overwrite(by, table, &mut bucket, (&object, before), version, value)
    }

    /// Under the bucket's lock: overwrites the object if the value fits, and counts what that changes.
    fn overwrite(
        &self,
        by: LogId,
        table: &EngineTable,
        bucket: &mut BucketGuard<'_>,
        (object, before): (&MutableObject<'_>, ValueHead),
        version: ObjectVersion,
        value: &[u8],
    ) -> Option<ObjectVersion> {
        if value.len() > object.room() {
            return None;
        }
        let head = ValueHead {
            version,
            len: value.len(),
        };
        bucket.change_in_place(|| self.space.overwrite(object, &head.bytes(), value));
        let growth = Growth::by(value.len(), 0).without(Growth::by(before.len, 0));
        table.count(by, growth);
        Some(version)
    }

    /// [`Self::overwrite`] for an update that has found the object it replaces.
    pub(crate) fn overwrite_old(
        &self,
        at: &Place<'_>,
        bucket: &mut BucketGuard<'_>,
        old: &Old<'_>,
        value: &[u8],
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let object = self.space.mutable_object(old.entry, guard)?;
        let before = ValueHead::of(&self.space, &object);
        let version = old.version.next();
        self.overwrite(at.log, at.table, bucket, (&object, before), version, value)
    }
}
