//! Entries of another process's log, whose memory is mapped to be read.
//!
//! Every byte may change while it is copied, and may be rubbish: the owner may use the memory for
//! something else, or may have died in the middle of anything. So everything is copied first and
//! looked at afterwards, and no length is believed. The caller then sees whether the copy counts
//! ([`pluvio_memory::GateView::check`]).
//!
//! - LOG-16: whatever the memory holds, reading an entry ends, and reads nothing outside of it.
//!
//! Threads: any; nothing is kept.

use super::LogBytes;
use super::seglet_table::{NEXT_WORD, WORDS_PER_SEGLET};
use super::view::is_same_key;
use pluvio_format::{Check, Entry, EntryHead, ObjectState, Parsed, PlainFront, Restored};
use pluvio_memory::{ReadRegion, SharedMemoryError};
use pluvio_units::{Deadline, ENTRY_MAX, EntryRef, ObjectVersion, SEGLET_BYTES, TableId};
use rustix::fd::BorrowedFd;

/// Keys up to this are compared without an allocation.
const SHORT_KEY_MAX: usize = 256;

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
        if !is_key(found, key) {
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
            Entry::Tombstone(tombstone) => {
                match tombstone.table == table && tombstone.key == key {
                    true => ReadEntry::Tombstone,
                    false => ReadEntry::Other,
                }
            }
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

#[inline(always)]
fn is_key(found: pluvio_memory::RacingBytes<'_>, key: &[u8]) -> bool {
    if key.len() <= SHORT_KEY_MAX {
        let mut copy = [0; SHORT_KEY_MAX];
        let copy = &mut copy[..key.len()];
        found.load(copy);
        is_same_key(copy, key)
    } else {
        let mut copy = Vec::new();
        found.load_vec(key.len(), &mut copy);
        copy == key
    }
}
