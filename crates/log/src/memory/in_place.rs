//! Objects whose values are overwritten where they lie [Nibble ch. 6], in log spaces without
//! replicas.
//!
//! In such a space ([`LogOptions::in_place`](crate::LogOptions)) the value of an object may change
//! as long as the index points to it; everything before the value never does.
//!
//! Such a value begins with [`VALUE_HEAD_BYTES`] of the owner's. The head and the rest are accessed
//! as parts of their own, and each is cut where a seglet ends:
//!
//! ```text
//!  seglet 7                          | seglet 12                |  seglet 3
//!  ... kind .. key [ head ][ rest ...|... rest ...              |... rest ]
//!                   part 1   part 2      part 3                    part 4
//! ```
//!
//! An object in one seglet has two parts ([`MutableObject`], the common case). Others have as many
//! as they have pieces ([`ScatteredObject`]). The cuts depend on nothing but where the entry lies:
//! all threads agree which of its bytes are accessed as words.
//!
//! - LOG-12: the value of such an object is stored and read by accesses that may race only, from
//!   its publication until its memory is free. Nobody takes a slice of it.
//! - LOG-13: a thread that overwrites a value holds the lock of its bucket and lets readers know by
//!   the bucket's version, from before the first part until after the last.
//!   So does a thread that points the index to a copy, after it has taken the value again. A change
//!   during the copy is kept so, wherever borders cut the two.

use super::LogMemory;
use super::log_bytes::LogBytes;
use super::view::{Entries, is_same_key};
use pluvio_format::{Object, ObjectFront};
use pluvio_memory::{EpochGuard, RacingBytes};
use pluvio_units::{EntryRef, ObjectVersion, SEGLET_BYTES};

/// Bytes of the owner's at the beginning of a value that may be overwritten: version and length, so
/// that a shorter value fits as well.
pub const VALUE_HEAD_BYTES: usize = 12;

/// An object whose value may change where it lies.
pub trait Overwritable {
    /// Whether it has this key.
    fn has_key(&self, key: &[u8]) -> bool;

    /// Bytes that a value may have to fit here, its head not counted.
    fn room(&self) -> usize;

    /// The head of the value. It may be torn, and so may be the rest, unless the bucket is locked,
    /// or its version tells afterwards that nobody wrote.
    fn load_head(&self) -> [u8; VALUE_HEAD_BYTES];

    /// Lets `into` hold the first `len` bytes of what follows the head; see [`Self::load_head`].
    ///
    /// # Panics
    /// When there is less room.
    fn load_rest(&self, len: usize, into: &mut Vec<u8>);

    /// Overwrites head and first bytes. The caller has the lock of the object's bucket, and has
    /// told readers (LOG-13).
    ///
    /// # Panics
    /// When `rest` is longer than the room.
    fn overwrite(&self, head: &[u8; VALUE_HEAD_BYTES], rest: &[u8]);
}

/// An object in one seglet whose value may change.
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
}

impl Overwritable for MutableObject<'_> {
    #[inline(always)]
    fn has_key(&self, key: &[u8]) -> bool {
        is_same_key(self.key, key)
    }

    #[inline(always)]
    fn room(&self) -> usize {
        self.rest.len()
    }

    #[inline(always)]
    fn load_head(&self) -> [u8; VALUE_HEAD_BYTES] {
        self.head.load_array()
    }

    #[inline(always)]
    fn load_rest(&self, len: usize, into: &mut Vec<u8>) {
        self.rest.load_vec(len, into);
    }

    #[inline(always)]
    fn overwrite(&self, head: &[u8; VALUE_HEAD_BYTES], rest: &[u8]) {
        // SAFETY: nobody takes a slice of the value of such an object (LOG-12), its first copy was
        // written before the index pointed to it, and the bucket's lock keeps other writers away
        // (LOG-13).
        unsafe {
            self.head.store_array(head);
            self.rest.store(rest);
        }
    }
}

/// An object whose value may change, in as many seglets as it takes.
#[derive(Clone, Debug)]
pub struct ScatteredObject<'g> {
    /// Its key, which never changes.
    pub key: Vec<u8>,
    /// Pieces of the head of its value.
    head: Vec<RacingBytes<'g>>,
    /// Pieces of what follows the head.
    rest: Vec<RacingBytes<'g>>,
}

impl Overwritable for ScatteredObject<'_> {
    fn has_key(&self, key: &[u8]) -> bool {
        self.key == key
    }

    fn room(&self) -> usize {
        self.rest.iter().map(|piece| piece.len()).sum()
    }

    fn load_head(&self) -> [u8; VALUE_HEAD_BYTES] {
        let mut head = [0; VALUE_HEAD_BYTES];
        load_pieces(&self.head, &mut head);
        head
    }

    fn load_rest(&self, len: usize, into: &mut Vec<u8>) {
        assert!(len <= self.room(), "{len} bytes of {}", self.room());
        into.clear();
        into.resize(len, 0);
        load_pieces(&self.rest, into);
    }

    fn overwrite(&self, head: &[u8; VALUE_HEAD_BYTES], rest: &[u8]) {
        assert!(rest.len() <= self.room(), "no room for {}", rest.len());
        let pieces = |of: &[RacingBytes<'_>], mut data: &[u8]| {
            for piece in of {
                let (now, later) = data.split_at(data.len().min(piece.len()));
                // SAFETY: as in `MutableObject::overwrite`: LOG-12 and LOG-13 hold for each piece.
                unsafe { piece.store(now) };
                data = later;
            }
        };
        pieces(&self.head, head);
        pieces(&self.rest, rest);
    }
}

/// Copies the first bytes of the pieces out: as many as `into` has.
fn load_pieces(pieces: &[RacingBytes<'_>], mut into: &mut [u8]) {
    for piece in pieces {
        let (now, later) = into.split_at_mut(into.len().min(piece.len()));
        piece.load(now);
        into = later;
    }
}

impl<'g> Entries<'g> {
    /// The object at `entry` if it lies in one seglet and its value may change.
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
        if front.total_len > left {
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
        if front.total_len > left {
            return None;
        }
        let bytes = self.0.racing(entry, front.total_len);
        MutableObject::new(front.version, front.key, bytes, front.value_at)
    }

    /// The object at `entry` if its value may change, wherever it lies.
    #[inline(never)]
    pub(crate) fn scattered_object(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<ScatteredObject<'g>> {
        if !self.0.is_in_place() {
            return None;
        }
        let front = self.front_of(entry, guard)?;
        let rest_len = (front.total_len - front.value_at).checked_sub(VALUE_HEAD_BYTES)?;
        let mut at = LogMemory::split(entry);
        let _front = self.racing_pieces(&mut at, front.value_at)?;
        let key = front.value_at - front.key_len..front.value_at;
        Some(ScatteredObject {
            key: front.bytes.get(key)?.to_vec(),
            head: self.racing_pieces(&mut at, VALUE_HEAD_BYTES)?,
            rest: self.racing_pieces(&mut at, rest_len)?,
        })
    }

    /// `len` bytes from `at` on, cut where seglets end; `at` becomes where they end.
    fn racing_pieces(self, at: &mut (u32, usize), len: usize) -> Option<Vec<RacingBytes<'g>>> {
        let (seglet, within) = at;
        let (mut pieces, mut left) = (Vec::new(), len);
        while left > 0 {
            if *within == SEGLET_BYTES {
                (*seglet, *within) = (self.0.table().next_seglet(*seglet)?, 0);
            }
            let piece = left.min(SEGLET_BYTES - *within);
            let first = EntryRef::new(LogBytes::base(*seglet) + *within as u64);
            pieces.push(self.0.racing(first, piece));
            *within += piece;
            left -= piece;
        }
        Some(pieces)
    }

    /// A copy of what lies before the value of the object at `entry`, if it is an object.
    fn front_of(self, entry: EntryRef, guard: &'g EpochGuard<'_>) -> Option<FrontCopy> {
        let (seglet, within) = LogMemory::split(entry);
        let mut len = ObjectFront::BYTES_MIN;
        loop {
            // No more than there are before the value, which never change (LOG-12). An entry of
            // another kind may be shorter: what follows it then is not the value of an object.
            let bytes = self.gather(seglet, within, len, guard)?;
            match Object::front(&bytes) {
                Ok(front) => {
                    return Some(FrontCopy {
                        key_len: front.key.len(),
                        value_at: front.value_at,
                        total_len: front.total_len,
                        bytes,
                    });
                }
                Err(Some(more)) => len = more,
                Err(None) => return None,
            }
        }
    }

    /// A copy of the whole object if its value may change: the value by accesses that may race.
    pub(crate) fn copy_mutable(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<Vec<u8>> {
        let Some(object) = self.mutable_object(entry, guard) else {
            return self.copy_scattered(entry, guard);
        };
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

    /// [`Self::copy_mutable`] for an object in several seglets.
    #[inline(never)]
    fn copy_scattered(self, entry: EntryRef, guard: &'g EpochGuard<'_>) -> Option<Vec<u8>> {
        let object = self.scattered_object(entry, guard)?;
        let mut front = self.front_of(entry, guard)?;
        front.bytes.truncate(front.value_at);
        front.bytes.extend_from_slice(&object.load_head());
        let mut rest = Vec::new();
        object.load_rest(object.room(), &mut rest);
        front.bytes.append(&mut rest);
        Some(front.bytes)
    }

    /// Takes the value of `old` once more into its copy `new`, which the index does not point to
    /// yet. The caller has the lock of the object's bucket (LOG-13). Does nothing where values do
    /// not change.
    pub(crate) fn copy_value_again(self, old: EntryRef, new: EntryRef, guard: &'g EpochGuard<'_>) {
        let small = self
            .mutable_object(old, guard)
            .zip(self.mutable_object(new, guard));
        if let Some((from, to)) = small {
            copy_small(&from, &to);
            return;
        }
        let scattered = self
            .scattered_object(old, guard)
            .zip(self.scattered_object(new, guard));
        if let Some((from, to)) = scattered {
            check_room(&from, &to);
            let mut rest = Vec::new();
            from.load_rest(from.room(), &mut rest);
            to.overwrite(&from.load_head(), &rest);
        }
    }
}

/// What lies before the value of an object.
struct FrontCopy {
    bytes: Vec<u8>,
    key_len: usize,
    value_at: usize,
    total_len: usize,
}

/// Takes the value of one object into its copy, which nobody knows of, by pieces that the stack has
/// room for. That these cut words elsewhere is no harm: nobody stores to either meanwhile.
fn copy_small(from: &MutableObject<'_>, to: &MutableObject<'_>) {
    check_room(from, to);
    let mut piece = [0; 256];
    // SAFETY: as in `MutableObject::overwrite`; nobody knows of the copy.
    unsafe { to.head.store_array(&from.load_head()) };
    for at in (0..from.room()).step_by(piece.len()) {
        let piece = &mut piece[..(from.room() - at).min(256)];
        from.rest.split_at(at).1.load(piece);
        // SAFETY: as above.
        unsafe { to.rest.split_at(at).1.store(piece) };
    }
}

fn check_room(from: &impl Overwritable, to: &impl Overwritable) {
    assert_eq!(
        from.room(),
        to.room(),
        "a copy is as long as what it copies"
    );
}
