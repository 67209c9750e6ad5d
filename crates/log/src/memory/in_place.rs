//! Objects whose values are overwritten where they lie [Nibble ch. 6], in log spaces without
//! replicas.
//!
//! In such a space ([`LogOptions::in_place`](crate::LogOptions)) the value of a small object
//! (`SMALL_ENTRY_MAX`) may change as long as the index points to it; everything before the value,
//! and larger objects, never do.
//!
//! Such a value begins with [`VALUE_HEAD_BYTES`] of the owner's; these and the rest are accessed
//! each for itself, so that everybody agrees which bytes are accessed as words.
//!
//! - LOG-12: the value of such an object is stored and read by accesses that may race only, from
//!   its publication until its memory is free. Nobody takes a slice of it.
//! - LOG-13: a thread that overwrites a value holds the lock of its bucket and lets readers know by
//!   the bucket's version. So does one that points the index to a copy, after it took the value
//!   again.

use super::LogMemory;
use super::view::{Entries, is_same_key};
use core::ops::Range;
use pluvio_format::{Object, ObjectFront};
use pluvio_memory::{EpochGuard, RacingBytes};
use pluvio_units::{EntryRef, ObjectVersion, SEGLET_BYTES, SMALL_ENTRY_MAX};

/// Bytes of the owner's at the beginning of a value that may be overwritten: version and length, so
/// that a shorter value fits as well.
pub const VALUE_HEAD_BYTES: usize = 12;

/// An object whose value may change.
#[derive(Clone, Copy, Debug)]
pub struct MutableObject<'g> {
    /// Its version when it was appended.
    pub version: ObjectVersion,
    /// Its key, which never changes.
    pub key: &'g [u8],
    /// Head of its value.
    head: RacingBytes<'g>,
    /// What follows the head.
    rest: RacingBytes<'g>,
    /// Bytes in the log.
    total_len: u32,
}

impl<'g> MutableObject<'g> {
    /// An object with these bytes, whose value begins at `value_at`; `None` when the value is too
    /// short to have a head.
    #[inline(always)]
    fn new(
        version: ObjectVersion,
        key: &'g [u8],
        bytes: RacingBytes<'g>,
        value_at: usize,
    ) -> Option<Self> {
        let (_, value) = bytes.split_at(value_at);
        if value.len() < VALUE_HEAD_BYTES {
            return None;
        }
        let (head, rest) = value.split_at(VALUE_HEAD_BYTES);
        Some(Self {
            version,
            key,
            head,
            rest,
            total_len: bytes.len() as u32,
        })
    }

    /// Bytes that a value may have to fit here, its head not counted.
    #[must_use]
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.rest.len()
    }

    /// Whether it has this key.
    #[must_use]
    #[inline(always)]
    pub fn has_key(&self, key: &[u8]) -> bool {
        is_same_key(self.key, key)
    }

    /// Bytes it takes in the log.
    #[must_use]
    #[inline]
    pub fn total_len(&self) -> u32 {
        self.total_len
    }

    /// The head of the value. It may be torn, and so may be the rest, unless the bucket is locked,
    /// or its version tells afterwards that nobody wrote.
    #[must_use]
    #[inline(always)]
    pub fn load_head(&self) -> [u8; VALUE_HEAD_BYTES] {
        self.head.load_array()
    }

    /// Lets `into` hold the first `len` bytes of what follows the head; see [`Self::load_head`].
    ///
    /// # Panics
    /// When the room is smaller.
    #[inline(always)]
    pub fn load_rest(&self, len: usize, into: &mut Vec<u8>) {
        self.rest.load_vec(len, into);
    }

    /// Overwrites head and first bytes. The caller has the lock of the object's bucket, and has
    /// told readers (LOG-13).
    ///
    /// # Panics
    /// When `rest` is longer than the room.
    #[inline(always)]
    pub fn overwrite(&self, head: &[u8; VALUE_HEAD_BYTES], rest: &[u8]) {
        // SAFETY: nobody takes a slice of the value of such an object (LOG-12), its first copy was
        // written before the index pointed to it, and the bucket's lock keeps other writers away
        // (LOG-13).
        unsafe {
            self.head.store_array(head);
            self.rest.store(rest);
        }
    }
}

/// Whether the value of an entry of `total_len` bytes may change where it lies, with `left` bytes
/// of its seglet from its beginning on: a small entry never crosses a seglet border, wherever the
/// cleaner copies it to; a large one might, and then a change during the copy would be lost.
#[inline(always)]
fn may_change(total_len: usize, left: usize) -> bool {
    total_len <= SMALL_ENTRY_MAX && total_len <= left
}

impl<'g> Entries<'g> {
    /// The object at `entry`, without its value; `None` when it is none, or one whose value never
    /// changes.
    #[inline]
    pub(crate) fn mutable_object(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<MutableObject<'g>> {
        if let Some(object) = self.plain_mutable_object(entry, guard) {
            return Some(object);
        }
        self.other_mutable_object(entry, guard)
    }

    /// [`Self::mutable_object`] for one that is laid out as nearly all are.
    #[inline(always)]
    pub(crate) fn plain_mutable_object(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<MutableObject<'g>> {
        if !self.0.is_in_place() {
            return None;
        }
        let left = SEGLET_BYTES - entry.offset() as usize % SEGLET_BYTES;
        let (front, key_at) = self.plain_front(entry, left, guard)?;
        let value_at = key_at + front.key_len;
        if !may_change(front.total_len, left) {
            return None;
        }
        // SAFETY: below the appended length and under the guard, as in `view`; and what lies before
        // the value never changes (LOG-12).
        let before = unsafe { self.0.raw().piece(entry, value_at, guard) };
        let bytes = self.0.racing(entry, front.total_len);
        MutableObject::new(front.version, before.get(key_at..)?, bytes, value_at)
    }

    #[inline(never)]
    fn other_mutable_object(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<MutableObject<'g>> {
        if !self.0.is_in_place() {
            return None;
        }
        let (seglet, within) = LogMemory::split(entry);
        let left = SEGLET_BYTES - within;
        let mut len = ObjectFront::BYTES_MIN;
        let front = loop {
            if len > left {
                return None;
            }
            // SAFETY: below the appended length and under the guard, as in `view`; and `len` bytes,
            // no more than there are before the value, never change (LOG-12).
            let bytes = unsafe { self.0.raw().bytes(seglet, within, len, guard) };
            match Object::front(bytes) {
                Ok(front) => break front,
                Err(Some(more)) => len = more,
                Err(None) => return None,
            }
        };
        if !may_change(front.total_len, left) {
            return None;
        }
        let bytes = self.0.racing(entry, front.total_len);
        MutableObject::new(front.version, front.key, bytes, front.value_at)
    }

    /// A copy of the whole object: its value by atomic loads.
    pub(crate) fn copy_mutable(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<Vec<u8>> {
        let object = self.mutable_object(entry, guard)?;
        let total_len = object.total_len as usize;
        let value_at = total_len - VALUE_HEAD_BYTES - object.room();
        let (seglet, within) = LogMemory::split(entry);
        // SAFETY: what lies before the value never changes (LOG-12).
        let mut copy = unsafe { self.0.raw().bytes(seglet, within, value_at, guard) }.to_vec();
        copy.extend_from_slice(&object.load_head());
        copy.resize(total_len, 0);
        object.rest.load(&mut copy[value_at + VALUE_HEAD_BYTES..]);
        Some(copy)
    }

    /// Takes the value of `old` once more into its copy `new`, which the index does not point to
    /// yet. The caller has the lock of the object's bucket (LOG-13). Does nothing where values do
    /// not change.
    pub(crate) fn copy_value_again(self, old: EntryRef, new: EntryRef, guard: &'g EpochGuard<'_>) {
        let pair = self
            .mutable_object(old, guard)
            .zip(self.mutable_object(new, guard));
        let Some((from, to)) = pair else {
            return;
        };
        assert_eq!(
            from.room(),
            to.room(),
            "a copy is as long as what it copies"
        );
        let mut piece = [0; 256];
        // SAFETY: as in `MutableObject::overwrite`; nobody knows of the copy.
        unsafe { to.head.store_array(&from.load_head()) };
        for range in pieces(from.room(), piece.len()) {
            let piece = &mut piece[..range.len()];
            from.rest.split_at(range.start).1.load(piece);
            // SAFETY: as above.
            unsafe { to.rest.split_at(range.start).1.store(piece) };
        }
    }
}

/// Pieces of at most `most` bytes. That they cut words differently than others do is no harm:
/// nobody stores to either copy meanwhile.
fn pieces(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(most).map(move |at| at..len.min(at + most))
}
