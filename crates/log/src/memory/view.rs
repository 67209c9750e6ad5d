//! Entries as readers and the cleaner see them.

use super::LogMemory;
use crate::error::Corruption;
use pluvio_format::{
    Check, Encoded, Entry, EntryHead, EntryKind, Object, ObjectFront, ParseErrorKind, Parsed,
    PlainFront, Tombstone,
};
use pluvio_memory::EpochGuard;
use pluvio_units::{
    EntryRef, ObjectVersion, SEGLET_BYTES, SMALL_ENTRY_MAX, SegmentId, TableId, VALUE_MAX,
};

/// An entry in log memory: borrowed where it lies in one piece, which all small ones do; copied
/// where it crosses a seglet border.
#[derive(Clone, Debug)]
pub struct EntryView<'g> {
    head: EntryHead,
    content: Content<'g>,
}

#[derive(Clone, Debug)]
enum Content<'g> {
    Whole(&'g [u8], Entry<'g>),
    Copied(Vec<u8>),
}

impl EntryView<'_> {
    /// A tombstone of no table with an empty key and version 0, in the place of a corrupt entry. A
    /// caller sees it that goes on because its process only seems to run
    /// ([`LogSpace::set_corruption_hook`](crate::LogSpace::set_corruption_hook)).
    #[must_use]
    pub fn nothing() -> Self {
        let tombstone = Entry::Tombstone(Tombstone {
            table: TableId(0),
            version: ObjectVersion(0),
            segment: SegmentId(0),
            timestamp_s: 0,
            key: &[],
        });
        let encoded = Encoded::new(&tombstone, false).expect("an empty key is short");
        let bytes = encoded.parts().concat();
        let head = EntryHead::read(&bytes).expect("it was just encoded");
        Self {
            head,
            content: Content::Copied(bytes),
        }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> EntryKind {
        self.head.kind
    }

    /// Bytes it takes in the log, header included: what `mark_dead` wants to know.
    #[must_use]
    pub fn total_len(&self) -> u32 {
        self.head.total_len() as u32
    }

    /// The content.
    #[must_use]
    pub fn entry(&self) -> Entry<'_> {
        match &self.content {
            Content::Whole(_, entry) => entry.clone(),
            Content::Copied(bytes) => {
                Parsed::read(bytes, Check::Structure)
                    .expect("was read when the view was made")
                    .entry
            }
        }
    }

    /// The object, borrowed from the view; `None` for other kinds.
    #[must_use]
    pub fn object(&self) -> Option<Object<'_>> {
        if let Some(lens) = Object::lens(self.bytes()) {
            return Object::of_body(&self.bytes()[lens.header_len..], &lens);
        }
        match Parsed::read(self.bytes(), Check::Structure).map(|parsed| parsed.entry) {
            Ok(Entry::Object(object)) => Some(object),
            Ok(
                Entry::Tombstone(_)
                | Entry::SegmentHeader(_)
                | Entry::LogDigest(_)
                | Entry::SafeVersion(_)
                | Entry::TableStats(_)
                | Entry::Completion(_)
                | Entry::Horizon(_),
            )
            | Err(_) => None,
        }
    }

    /// The key of an object or a tombstone; empty for other kinds.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match Parsed::read(self.bytes(), Check::Structure).map(|parsed| parsed.entry) {
            Ok(Entry::Object(object)) => object.key,
            Ok(Entry::Tombstone(tombstone)) => tombstone.key,
            Ok(
                Entry::SegmentHeader(_)
                | Entry::LogDigest(_)
                | Entry::SafeVersion(_)
                | Entry::TableStats(_)
                | Entry::Completion(_)
                | Entry::Horizon(_),
            )
            | Err(_) => &[],
        }
    }

    /// All bytes of the entry, header included.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Whole(bytes, _) => bytes,
            Content::Copied(bytes) => bytes,
        }
    }

    pub(crate) fn head(&self) -> EntryHead {
        self.head
    }
}

/// An object whose value does not change, in one seglet with all that lies before the value: the
/// value may go on in others.
#[derive(Clone, Copy)]
pub struct CutObject<'g> {
    memory: &'g LogMemory,
    guard: &'g EpochGuard<'g>,
    seglet: u32,
    front: ObjectFront<'g>,
    /// The part of the value that is in the first seglet.
    begin: &'g [u8],
}

impl<'g> CutObject<'g> {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &'g [u8] {
        self.front.key
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> ObjectVersion {
        self.front.version
    }

    /// Bytes it takes in the log.
    #[must_use]
    pub fn total_len(&self) -> u32 {
        self.front.total_len as u32
    }

    /// Bytes of its value.
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.front.total_len - self.front.value_at
    }

    /// Puts a copy of its value behind what `into` holds. False, and `into` holds a part of it,
    /// when the memory is broken.
    #[must_use]
    pub fn copy_into(&self, into: &mut Vec<u8>) -> bool {
        into.reserve(self.value_len());
        into.extend_from_slice(self.begin);
        let (mut left, mut seglet) = (self.value_len() - self.begin.len(), self.seglet);
        while left > 0 {
            let Some(next) = self.memory.table().next_seglet(seglet) else {
                return false;
            };
            let piece = left.min(SEGLET_BYTES);
            // SAFETY: inside an appended entry, under the guard (see `view`).
            into.extend_from_slice(unsafe { self.memory.raw().bytes(next, 0, piece, self.guard) });
            (left, seglet) = (left - piece, next);
        }
        true
    }
}

impl core::fmt::Debug for CutObject<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("CutObject").field(&self.front).finish()
    }
}

/// Which object an entry is, without its value.
pub(crate) struct Identity<'g> {
    pub(crate) table: TableId,
    pub(crate) timestamp_s: u32,
    pub(crate) key: &'g [u8],
    /// Bytes in the log.
    pub(crate) total_len: u32,
}

/// Compares keys of one length, without a call when they are short.
#[inline(always)]
pub(crate) fn is_same_key(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match (one.first_chunk::<8>(), other.first_chunk::<8>()) {
        (Some(first), Some(other_first)) if one.len() <= 16 => {
            first == other_first && one.last_chunk::<8>() == other.last_chunk::<8>()
        }
        _ => one == other,
    }
}

/// The entries of log memory, to be read. Views of them live as long as the guard that the caller
/// has.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'g>(pub(super) &'g LogMemory);

impl<'g> Entries<'g> {
    #[inline(always)]
    pub(super) fn of(memory: &'g LogMemory) -> Self {
        Self(memory)
    }

    /// Whether a byte below the end of a closed segment says that the rest of its seglet is
    /// padding.
    pub(crate) fn is_padding(self, seglet: u32, within: usize, guard: &'g EpochGuard<'_>) -> bool {
        // SAFETY: a closed segment is not written; the cleaner, the only caller, keeps the segment
        // from being freed.
        unsafe { self.0.raw().bytes(seglet, within, 1, guard) == [0] }
    }

    /// Whether all bytes from there to the end of the seglet are zero, and as few as padding has;
    /// as [`Self::is_padding`].
    pub(crate) fn is_blank(self, seglet: u32, within: usize, guard: &'g EpochGuard<'_>) -> bool {
        // SAFETY: as in `is_padding`; behind an entry in a closed segment lie padding or other
        // entries, up to the border.
        let bytes = unsafe {
            self.0
                .raw()
                .bytes(seglet, within, SEGLET_BYTES - within, guard)
        };
        bytes.len() < SMALL_ENTRY_MAX && bytes.iter().all(|byte| *byte == 0)
    }

    /// The bytes of an entry of a known length, when they lie in one piece and cannot change.
    /// `entry` was found under `guard`.
    pub(crate) fn whole_entry(
        self,
        entry: EntryRef,
        len: u32,
        guard: &'g EpochGuard<'_>,
    ) -> Option<&'g [u8]> {
        if self.0.is_in_place() {
            return None;
        }
        let (seglet, within) = LogMemory::split(entry);
        let fits = len as usize <= SEGLET_BYTES - within;
        // SAFETY: the reference names an entry that was appended before, and the guard is older
        // than its end.
        fits.then(|| unsafe { self.0.raw().bytes(seglet, within, len as usize, guard) })
    }

    /// The bytes of an entry of a known length as they lie, cut where seglets end. As
    /// [`Self::whole_entry`], for any number of pieces.
    pub(crate) fn pieces(
        self,
        entry: EntryRef,
        len: u32,
        guard: &'g EpochGuard<'_>,
    ) -> Option<Vec<&'g [u8]>> {
        if self.0.is_in_place() {
            return None;
        }
        let (mut seglet, mut within) = LogMemory::split(entry);
        let (mut pieces, mut left) = (Vec::new(), len as usize);
        loop {
            let piece = left.min(SEGLET_BYTES - within);
            // SAFETY: inside an appended entry, under the guard (see `view`).
            pieces.push(unsafe { self.0.raw().bytes(seglet, within, piece, guard) });
            left -= piece;
            if left == 0 {
                return Some(pieces);
            }
            (seglet, within) = (self.0.table().next_seglet(seglet)?, 0);
        }
    }

    /// The object at `entry`, which was found or appended under `guard`. Its value cannot change,
    /// and all that lies before the value is in one seglet. Reads no byte of the value. `None` for
    /// any other entry, or a wild length: [`Self::view`] says what is wrong.
    pub(crate) fn cut_object(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<CutObject<'g>> {
        if self.0.is_in_place() {
            return None;
        }
        let (seglet, within) = LogMemory::split(entry);
        let left = SEGLET_BYTES - within;
        // SAFETY: as in `view`.
        let start = unsafe {
            let len = left.min(EntryHead::BYTES_MAX);
            self.0.raw().bytes(seglet, within, len, guard)
        };
        let total_len = Object::lens(start)?.total_len;
        // SAFETY: as in `view`.
        let bytes = unsafe {
            self.0
                .raw()
                .bytes(seglet, within, total_len.min(left), guard)
        };
        let front = Object::front(bytes).ok()?;
        let others = total_len.saturating_sub(left).div_ceil(SEGLET_BYTES);
        (0..others).try_fold(seglet, |at, _| self.0.table().next_seglet(at))?;
        if front.total_len - front.value_at > VALUE_MAX {
            return None;
        }
        Some(CutObject {
            memory: self.0,
            guard,
            seglet,
            front,
            begin: bytes.get(front.value_at..)?,
        })
    }

    /// The object at `entry` and its length in the log, if it is an object in one piece. `entry`
    /// was found or appended under `guard`. [`Self::view`] reads others.
    #[inline]
    pub(crate) fn object(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<(Object<'g>, u32)> {
        if self.0.is_in_place() {
            return None;
        }
        let (seglet, within) = LogMemory::split(entry);
        let left = SEGLET_BYTES - within;
        // SAFETY: as in `view`.
        let start = unsafe {
            self.0
                .raw()
                .bytes(seglet, within, left.min(EntryHead::BYTES_MAX), guard)
        };
        let lens = Object::lens(start)?;
        let total_len = lens.total_len;
        if total_len > left {
            return None;
        }
        // SAFETY: as in `view`.
        let bytes = unsafe { self.0.raw().bytes(seglet, within, total_len, guard) };
        let object = Object::of_body(&bytes[lens.header_len..], &lens)?;
        Some((object, total_len as u32))
    }

    /// Version, value and length in the log of the object at `entry`. It must have this key, lie in
    /// one piece, and have neither graves nor a deadline. `entry` was found or appended under
    /// `guard`. [`Self::view`] reads others.
    #[inline(always)]
    pub(crate) fn value_of(
        self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<(ObjectVersion, &'g [u8], u32)> {
        let Some((front, key_at, bytes)) = self.plain(entry, guard) else {
            return self.value_of_other(entry, key, guard);
        };
        if front.key_len != key.len() {
            return None;
        }
        let (found, value) = bytes.get(key_at..)?.split_at_checked(key.len())?;
        is_same_key(found, key).then_some((front.version, value, bytes.len() as u32))
    }

    /// The object at `entry` if it is laid out as nearly all are and lies in one piece, where its
    /// key begins, and its bytes.
    #[inline(always)]
    pub(crate) fn plain(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<(PlainFront, usize, &'g [u8])> {
        let left = SEGLET_BYTES - entry.offset() as usize % SEGLET_BYTES;
        if self.0.is_in_place() {
            return None;
        }
        let (front, key_at) = self.plain_front(entry, left, guard)?;
        if front.total_len > left {
            return None;
        }
        // SAFETY: as in `view`.
        let bytes = unsafe { self.0.raw().piece(entry, front.total_len, guard) };
        Some((front, key_at, bytes))
    }

    /// The front of the object at `entry` and the place of its key, if it has the usual layout.
    /// `left` bytes of its seglet come from `entry` on. Reads no byte of the value.
    #[inline(always)]
    pub(crate) fn plain_front(
        self,
        entry: EntryRef,
        left: usize,
        guard: &'g EpochGuard<'_>,
    ) -> Option<(PlainFront, usize)> {
        if left < PlainFront::LONG {
            return None;
        }
        // SAFETY: as in `view`: no entry with a reference has less, and so much of an object lies
        // before its value.
        let mut start = unsafe { self.0.raw().piece(entry, PlainFront::SHORT, guard) };
        let front = if start[1] < 0x80 {
            PlainFront::of_short(start.first_chunk()?)
        } else {
            // SAFETY: as in `view`. An entry whose length takes two bytes has more than 128, and
            // lengths of two bytes make the front of an object a byte longer.
            start = unsafe { self.0.raw().piece(entry, PlainFront::LONG, guard) };
            PlainFront::of_long(start.first_chunk()?)
        };
        if let Some(front) = front {
            return Some((front, start.len()));
        }
        PlainFront::of_aged(start, |len| {
            // SAFETY: as in `view`: it is asked for what an object with such a version has before
            // its key.
            (len <= left).then(|| unsafe { self.0.raw().piece(entry, len, guard) })
        })
    }

    /// Table, time and key of the object at `entry`, if it is an object in one piece;
    /// [`Self::view`] reads what is not.
    #[inline]
    pub(crate) fn identity(
        self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<Identity<'g>> {
        let Some((front, key_at, bytes)) = self.plain(entry, guard) else {
            let (object, total_len) = self.object(entry, guard)?;
            return Some(Identity {
                table: object.table,
                timestamp_s: object.timestamp_s,
                key: object.key,
                total_len,
            });
        };
        Some(Identity {
            table: front.table,
            timestamp_s: front.timestamp_s,
            key: bytes.get(key_at..)?.get(..front.key_len)?,
            total_len: bytes.len() as u32,
        })
    }

    /// [`Self::value_of`] for what is laid out in another way.
    #[inline(never)]
    fn value_of_other(
        self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<(ObjectVersion, &'g [u8], u32)> {
        let (object, len) = self.object(entry, guard)?;
        let is_bare = object.graves.is_empty() && object.deadline.is_none();
        let plain = is_bare && object.key == key;
        plain.then_some((object.version, object.value, len))
    }

    /// Reads the entry at `entry`, a reference that was found or appended under `guard`.
    pub(crate) fn view(
        self,
        entry: EntryRef,
        check: Check,
        guard: &'g EpochGuard<'_>,
    ) -> Result<EntryView<'g>, Corruption> {
        let check = self.0.possible(check);
        let corrupt = |what: ParseErrorKind| {
            let (_, position) = self.0.locate(entry);
            Corruption {
                entry,
                segment: position.segment,
                offset: position.offset,
                what,
            }
        };
        if self.0.is_in_place()
            && let Some(bytes) = self.copy_mutable(entry, guard)
        {
            let parsed = Parsed::read(&bytes, check).map_err(|e| corrupt(e.kind))?;
            return Ok(EntryView {
                head: parsed.head,
                content: Content::Copied(bytes),
            });
        }
        let (seglet, within) = LogMemory::split(entry);
        let left = SEGLET_BYTES - within;
        // SAFETY: the reference names an entry that was appended before, and the guard is older
        // than its end. A few bytes behind a short entry may be touched only in a closed segment.
        // The shortest object, tombstone or completion record has 13 bytes. Nothing else has a
        // reference while its segment is open.
        let start = unsafe {
            self.0
                .raw()
                .bytes(seglet, within, left.min(EntryHead::BYTES_MAX), guard)
        };
        let head = match EntryHead::read(start) {
            // Only entries of more than WHOLE_ENTRY_MAX bytes begin so close to a border.
            Err(e) if e.kind == ParseErrorKind::Truncated && left < EntryHead::BYTES_MAX => {
                let start = self
                    .gather(seglet, within, EntryHead::BYTES_MAX, guard)
                    .ok_or_else(|| corrupt(ParseErrorKind::Truncated))?;
                EntryHead::read(&start)
            }
            other => other,
        }
        .map_err(|e| corrupt(e.kind))?;
        if head.total_len() <= left {
            // SAFETY: as above; the length is the one that was written.
            let bytes = unsafe { self.0.raw().bytes(seglet, within, head.total_len(), guard) };
            let parsed = Parsed::read(bytes, check).map_err(|e| corrupt(e.kind))?;
            return Ok(EntryView {
                head,
                content: Content::Whole(bytes, parsed.entry),
            });
        }
        let bytes = self
            .gather(seglet, within, head.total_len(), guard)
            .ok_or_else(|| corrupt(ParseErrorKind::Truncated))?;
        Parsed::read(&bytes, check).map_err(|e| corrupt(e.kind))?;
        Ok(EntryView {
            head,
            content: Content::Copied(bytes),
        })
    }

    /// Copies `len` bytes that begin in `seglet` and go on in those that follow it.
    pub(super) fn gather(
        self,
        mut seglet: u32,
        mut within: usize,
        len: usize,
        guard: &'g EpochGuard<'_>,
    ) -> Option<Vec<u8>> {
        let mut copy = Vec::with_capacity(len);
        loop {
            let piece = (SEGLET_BYTES - within).min(len - copy.len());
            // SAFETY: inside an appended entry, under the guard (see `view`).
            copy.extend_from_slice(unsafe { self.0.raw().bytes(seglet, within, piece, guard) });
            if copy.len() == len {
                return Some(copy);
            }
            within = 0;
            seglet = self.0.table().next_seglet(seglet)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppendClass, Durability, LogOptions, LogSpace};
    use pluvio_format::{Graves, ObjectState};
    use pluvio_units::{LogId, Size};

    #[test]
    fn a_flipped_bit_is_found_by_its_checksum_and_its_place_is_named() {
        let options = LogOptions {
            durability: Durability::Replicated,
            ..LogOptions::new(Size::mib(32))
        };
        let space = LogSpace::new(options).unwrap();
        let object = Entry::Object(Object {
            table: TableId(1),
            version: ObjectVersion(1),
            timestamp_s: 1,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: b"key",
            value: &[7; 50],
        });
        let guard = space.pin();
        let appended = space
            .append(LogId(0), &[object], AppendClass::Normal, &guard)
            .unwrap();
        let entry = appended.pending()[0];
        let (_, position) = space.position_of(entry, &guard);
        let len = space.entry(entry, &guard).unwrap().bytes().len();
        let (seglet, within) = LogMemory::split(entry);
        // SAFETY: this test's only thread holds no view of the entry.
        unsafe { space.memory().raw().write(seglet, within + len - 1, &[6]) };
        assert!(
            space.entry(entry, &guard).is_ok(),
            "reads check the layout only"
        );
        let corruption = space.entry_checked(entry, &guard).unwrap_err();
        assert_eq!(
            (corruption.segment, corruption.offset),
            (position.segment, position.offset)
        );
        assert!(matches!(
            corruption.what,
            ParseErrorKind::BadChecksum { .. }
        ));
    }
}
