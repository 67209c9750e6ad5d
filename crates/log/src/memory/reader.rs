//! Entries of another process's log, whose memory is mapped to be read.
//!
//! Every byte may change while it is copied, and may be rubbish. The owner may use the memory for
//! something else, or may have died in the middle of anything. So everything is copied first and
//! looked at afterwards, and no length is believed. The caller then sees whether the copy counts
//! ([`pluvio_memory::GateView::check`]).
//!
//! - LOG-16: whatever the memory holds, reading an entry ends, and reads nothing outside of it.
//!
//! Threads: any; nothing is kept.

use super::LogBytes;
use super::seglet_table::{NEXT_WORD, WORDS_PER_SEGLET};
use pluvio_format::{Check, Entry, EntryHead, ObjectState, Parsed, PlainFront, Restored};
use pluvio_memory::{ReadRegion, SharedMemoryError};
use pluvio_units::{Deadline, ENTRY_MAX, EntryRef, ObjectVersion, SEGLET_BYTES, TableId};
use rustix::fd::BorrowedFd;

/// The log of another process.
#[derive(Debug)]
pub struct LogReader {
    bytes: ReadRegion,
    table: ReadRegion,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEntry {
    /// Something of another key or table.
    Other,
    /// The object. Its value was copied.
    Object {
        /// Its version, as clients know it.
        version: ObjectVersion,
        /// When it expires, if it does.
        deadline: Option<Deadline>,
    },
    /// The key's tombstone.
    Tombstone,
    /// A transaction has locked the key.
    Locked,
    /// No entry that an index points to.
    Broken,
}

impl LogReader {
    /// Maps the log of another process: the file with its bytes, that with its table of seglets,
    /// and the bytes of each.
    ///
    /// # Errors
    /// As of [`ReadRegion::open`], and [`SharedMemoryError::Unfit`] if they do not belong together.
    pub fn open(
        bytes: (BorrowedFd<'_>, u64),
        table: (BorrowedFd<'_>, u64),
    ) -> Result<Self, SharedMemoryError> {
        let seglets = (bytes.1 / SEGLET_BYTES as u64).saturating_sub(1);
        if seglets.saturating_mul(8 * WORDS_PER_SEGLET) > table.1 {
            return Err(SharedMemoryError::Unfit("a log without its table"));
        }
        Ok(Self {
            bytes: ReadRegion::open(bytes.0, bytes.1)?,
            table: ReadRegion::open(table.0, table.1)?,
        })
    }

    /// Asks for the first lines of an entry to come near.
    #[inline(always)]
    pub fn prefetch(&self, entry: EntryRef, lines: u64) {
        for line in 0..lines {
            self.bytes.prefetch(entry.offset() + line * 64);
        }
    }

    /// Reads an entry if it is one of this key, and lets `into` hold its value.
    #[inline]
    pub fn read(
        &self,
        entry: EntryRef,
        (table, key): (TableId, &[u8]),
        into: &mut Vec<u8>,
    ) -> ReadEntry {
        let offset = entry.offset();
        let left = SEGLET_BYTES - offset as usize % SEGLET_BYTES;
        if offset < SEGLET_BYTES as u64 || offset >= self.bytes.len() {
            return ReadEntry::Broken;
        }
        if left < PlainFront::LONG {
            return self.read_other(entry, (table, key), into);
        }
        let Some(start) = self.bytes.bytes(offset, PlainFront::LONG) else {
            return ReadEntry::Broken;
        };
        let start: [u8; PlainFront::LONG] = start.load_array();
        let (front, key_at) = match start.first_chunk() {
            Some(short) if start[1] < 0x80 => (PlainFront::of_short(short), PlainFront::SHORT),
            Some(_) | None => (PlainFront::of_long(&start), PlainFront::LONG),
        };
        let Some(front) = front.filter(|front| front.total_len <= left) else {
            return self.read_other(entry, (table, key), into);
        };
        if front.table != table || front.key_len != key.len() {
            return ReadEntry::Other;
        }
        let value_at = key_at + front.key_len;
        let Some(value_len) = front.total_len.checked_sub(value_at) else {
            return ReadEntry::Broken;
        };
        let Some(whole) = self.bytes.bytes(offset, front.total_len) else {
            return ReadEntry::Broken;
        };
        let (_, rest) = whole.split_at(key_at);
        let (found, value) = rest.split_at(front.key_len);
        if !found.is_same(key) {
            return ReadEntry::Other;
        }
        value.load_vec(value_len, into);
        ReadEntry::Object {
            version: front.version,
            deadline: None,
        }
    }

    /// [`Self::read`] of what is laid out in another way, or crosses a seglet border.
    #[inline(never)]
    fn read_other(
        &self,
        entry: EntryRef,
        (table, key): (TableId, &[u8]),
        into: &mut Vec<u8>,
    ) -> ReadEntry {
        let Some(copy) = self.gather(entry, EntryHead::BYTES_MAX, true) else {
            return ReadEntry::Broken;
        };
        let Ok(head) = EntryHead::read(&copy) else {
            return ReadEntry::Broken;
        };
        // A lock holds two values, and is not looked into.
        if head.kind == pluvio_format::EntryKind::Prepared {
            return self.is_locked(entry, head.total_len(), (table, key));
        }
        if head.total_len() > ENTRY_MAX {
            return ReadEntry::Broken;
        }
        let Some(copy) = self.gather(entry, head.total_len(), false) else {
            return ReadEntry::Broken;
        };
        let Ok(parsed) = Parsed::read(&copy, Check::Structure) else {
            return ReadEntry::Broken;
        };
        match parsed.entry {
            Entry::Object(object) => {
                if object.table != table || object.key != key {
                    return ReadEntry::Other;
                }
                let (version, value) = match object.state {
                    ObjectState::Plain => (object.version, object.value),
                    ObjectState::Restored => match Restored::decode(object.value) {
                        Some(restored) => (restored.version, restored.value),
                        None => return ReadEntry::Broken,
                    },
                    ObjectState::Prepared => return ReadEntry::Locked,
                };
                into.clear();
                into.extend_from_slice(value);
                ReadEntry::Object {
                    version,
                    deadline: object.deadline,
                }
            }
            Entry::Tombstone(tombstone) => match tombstone.table == table && tombstone.key == key {
                true => ReadEntry::Tombstone,
                false => ReadEntry::Other,
            },
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Completion(_)
            | Entry::Horizon(_) => ReadEntry::Broken,
        }
    }

    /// Whether a prepared object is of this key.
    fn is_locked(&self, entry: EntryRef, len: usize, (table, key): (TableId, &[u8])) -> ReadEntry {
        // Two values at most, and what belongs to them: a wild length is cut.
        let len = len.min(3 * ENTRY_MAX);
        let Some(copy) = self.gather(entry, len, false) else {
            return ReadEntry::Broken;
        };
        match Parsed::read(&copy, Check::Structure).map(|parsed| parsed.entry) {
            Ok(Entry::Object(object)) if object.table == table && object.key == key => {
                ReadEntry::Locked
            }
            Ok(
                Entry::Object(_)
                | Entry::Tombstone(_)
                | Entry::SegmentHeader(_)
                | Entry::LogDigest(_)
                | Entry::SafeVersion(_)
                | Entry::TableStats(_)
                | Entry::Completion(_)
                | Entry::Horizon(_),
            ) => ReadEntry::Other,
            Err(_) => ReadEntry::Broken,
        }
    }

    /// Copies `len` bytes from an entry on, which go on in the seglets that follow. Fewer, if
    /// `or_less` says so and there is no other seglet. `None` where the table leads outside.
    fn gather(&self, entry: EntryRef, len: usize, or_less: bool) -> Option<Vec<u8>> {
        let mut copy = Vec::with_capacity(len);
        let mut piece = Vec::new();
        let mut at = entry.offset();
        loop {
            let left = SEGLET_BYTES - at as usize % SEGLET_BYTES;
            let want = left.min(len - copy.len());
            self.bytes.bytes(at, want)?.load_vec(want, &mut piece);
            copy.extend_from_slice(&piece);
            if copy.len() == len {
                return Some(copy);
            }
            let seglet = at / SEGLET_BYTES as u64 - 1;
            let next = self
                .table
                .peek((seglet * WORDS_PER_SEGLET + NEXT_WORD) * 8)?;
            match u32::try_from(next).ok()?.checked_sub(1) {
                Some(next) => at = LogBytes::base(next),
                None if or_less => return Some(copy),
                None => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use pluvio_format::{Encoded, Graves, Object, Tombstone};
    use pluvio_memory::Region;
    use pluvio_units::SegmentId;

    const SEGLETS: u64 = 4;
    const KEY: &[u8] = b"a key of some bytes";

    struct Log {
        bytes: Region,
        table: Region,
        reader: LogReader,
    }

    impl Log {
        fn new() -> Self {
            let region = |bytes| Region::for_readers("pluvio-test", bytes, false).unwrap();
            let bytes = region((SEGLETS + 1) * SEGLET_BYTES as u64);
            let table = region(SEGLETS * WORDS_PER_SEGLET * 8);
            let reader = LogReader::open(
                (bytes.memfd().unwrap(), bytes.len()),
                (table.memfd().unwrap(), table.len()),
            );
            Self {
                reader: reader.unwrap(),
                bytes,
                table,
            }
        }

        fn put(&self, mut at: u64, bytes: &[u8]) {
            for &byte in bytes {
                let word = self.bytes.word(at / 8 * 8);
                let shift = at % 8 * 8;
                let before = word.load(Ordering::Relaxed) & !(0xff << shift);
                word.store(before | u64::from(byte) << shift, Ordering::Relaxed);
                at += 1;
            }
        }

        fn link(&self, seglet: u64, next: u64) {
            let at = (seglet * WORDS_PER_SEGLET + NEXT_WORD) * 8;
            self.table.word(at).store(next, Ordering::Relaxed);
        }
    }

    fn object<'a>(value: &'a [u8], state: ObjectState, deadline: Option<Deadline>) -> Entry<'a> {
        Entry::Object(Object {
            table: TableId(3),
            version: ObjectVersion(9),
            timestamp_s: 7,
            graves: Graves::NONE,
            deadline,
            state,
            key: KEY,
            value,
        })
    }

    fn bytes_of(entry: &Entry<'_>) -> Vec<u8> {
        Encoded::new(entry, false).unwrap().parts().concat()
    }

    #[test]
    fn entries_are_read_as_they_were_written_wherever_seglets_end() {
        let log = Log::new();
        let deadline = Deadline::new(1_000);
        let restored = Restored {
            version: ObjectVersion(5),
            value: b"before",
        };
        let (restored, long) = (restored.encode(), vec![7; 100_000]);
        let found = |version, deadline| ReadEntry::Object {
            version: ObjectVersion(version),
            deadline,
        };
        let tombstone = Entry::Tombstone(Tombstone {
            table: TableId(3),
            version: ObjectVersion(9),
            segment: SegmentId(1),
            timestamp_s: 0,
            key: KEY,
        });
        let plain = ObjectState::Plain;
        let cases: [(Entry<'_>, ReadEntry, &[u8]); 7] = [
            (object(b"", plain, None), found(9, None), b""),
            (object(b"value", plain, None), found(9, None), b"value"),
            (
                object(&long[..300], plain, None),
                found(9, None),
                &long[..300],
            ),
            (object(&long, plain, None), found(9, None), &long),
            (object(b"v", plain, deadline), found(9, deadline), b"v"),
            (
                object(&restored, ObjectState::Restored, None),
                found(5, None),
                b"before",
            ),
            (tombstone, ReadEntry::Tombstone, b"?"),
        ];
        // Seglet 2 is followed by 0, and 0 by 3.
        log.link(2, 1);
        log.link(0, 4);
        let base = |seglet: u64| (seglet + 1) * SEGLET_BYTES as u64;
        for (entry, expected, value) in cases {
            let bytes = bytes_of(&entry);
            for left in [SEGLET_BYTES, 60_000, 1_000, 40, 14, 13, 5, 1] {
                let at = base(2) + (SEGLET_BYTES - left) as u64;
                let (first, rest) = bytes.split_at(bytes.len().min(left));
                let (second, third) = rest.split_at(rest.len().min(SEGLET_BYTES));
                log.put(at, first);
                log.put(base(0), second);
                log.put(base(3), third);
                let mut into = b"?".to_vec();
                let read = |key, into: &mut Vec<u8>| {
                    log.reader.read(EntryRef::new(at), (TableId(3), key), into)
                };
                assert_eq!(
                    read(KEY, &mut into),
                    expected,
                    "{left} bytes before the border"
                );
                assert_eq!(into, value);
                assert_eq!(read(b"a key of some bytez", &mut into), ReadEntry::Other);
                assert_eq!(read(b"a key", &mut into), ReadEntry::Other);
                let other = (TableId(4), KEY);
                let other = log.reader.read(EntryRef::new(at), other, &mut into);
                assert_eq!(other, ReadEntry::Other);
            }
        }
    }

    #[test]
    fn a_lock_is_not_looked_into() {
        let log = Log::new();
        let prepared = object(b"two values", ObjectState::Prepared, None);
        log.put(SEGLET_BYTES as u64, &bytes_of(&prepared));
        let entry = EntryRef::new(SEGLET_BYTES as u64);
        let mut into = Vec::new();
        let read = |key, into: &mut Vec<u8>| log.reader.read(entry, (TableId(3), key), into);
        assert_eq!(read(KEY, &mut into), ReadEntry::Locked);
        assert_eq!(read(b"other", &mut into), ReadEntry::Other);
    }

    // shows: LOG-16
    #[test]
    fn rubbish_is_answered() {
        let log = Log::new();
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            random ^ random >> 31
        };
        let whole = bytes_of(&object(&[3; 900], ObjectState::Plain, Deadline::new(5)));
        let mut into = Vec::new();
        for round in 0..60_000_u64 {
            let at = SEGLET_BYTES as u64 + next() % log.bytes.len();
            let at = at.min(log.bytes.len() - 1 - next() % 40);
            match round % 3 {
                // A broken entry.
                0 => {
                    let mut bytes = whole.clone();
                    for _ in 0..3 {
                        let which = next() as usize % 30;
                        bytes[which] = next() as u8;
                    }
                    let room = (log.bytes.len() - at) as usize;
                    bytes.truncate(room);
                    log.put(at, &bytes);
                }
                1 => log.put(at, &next().to_le_bytes()[..1]),
                _ => log.link(next() % SEGLETS, next() >> (next() % 64)),
            }
            let key = if round % 2 == 0 { KEY } else { &KEY[..3] };
            let _any = log
                .reader
                .read(EntryRef::new(at), (TableId(3), key), &mut into);
            let wild = EntryRef::new(next() & ((1 << EntryRef::BITS) - 1));
            let _any = log.reader.read(wild, (TableId(3), key), &mut into);
        }
        // A chain of seglets that never ends.
        (0..SEGLETS).for_each(|seglet| log.link(seglet, seglet + 1));
        log.put(SEGLET_BYTES as u64, &[whole[0], 0xff, 0xff, 0xff, 0x03]);
        let first = EntryRef::new(SEGLET_BYTES as u64);
        let read = log.reader.read(first, (TableId(3), KEY), &mut into);
        assert_eq!(read, ReadEntry::Broken);
    }
}
