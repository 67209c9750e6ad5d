//! The first 64 KiB of a span's file: which span it is, where it lies, what was decided.
//!
//! ```text
//! 0      description A   512 B: magic, format, checksum, number, id, base, size, reach, kind, lock
//! 512    description B   the same; the valid one with the higher number counts
//! 2048   decided         u64: the number of the newest decided change of the heap
//! 2056   written         u64: the newest one that is written whole
//! 2064   mark            u64: of words with the kernel's lock: a writer is inside, or died there
//! 4096   robust lock     (`robust`)
//! 65536  data            `size` bytes; behind them the journal
//! ```
//!
//! Owns the bytes' meaning. A change of the description goes into the slot that does not count, so
//! a process that dies in the middle leaves the old one.

use crate::error::{Result, SpaceError};
use crate::files;
use crate::names::SpanId;
use pluvio_units::{Size, crc32c};
use rustix::fd::AsFd;
use std::path::Path;

/// Bytes of the header: a multiple of every page size that Linux uses by default.
pub(crate) const HEADER_BYTES: u64 = 64 << 10;
/// Sizes and bases are multiples of this.
pub const GRANULE_BYTES: u64 = 64 << 10;
/// The format of the files that this crate writes and reads.
pub const FORMAT: u32 = 1;
/// The first address that no process can have, on processors with 47 bits for programs.
const ADDRESS_END: u64 = 1 << 47;

/// Bytes in front of the robust lock: what is read and checked as a whole.
const HEAD_BYTES: usize = 4096;

/// The first word of a journal (`journal`), which may stand behind the data.
pub(crate) const JOURNAL_MAGIC: u64 = u64::from_le_bytes(*b"PLUVJRNL");

const MAGIC: [u8; 8] = *b"PLUVSPAN";
const SLOT_BYTES: usize = 512;
/// Where a slot's number lies.
pub(crate) const NUMBER_AT: u64 = 16;
/// Where the two slots begin.
pub(crate) const SLOTS_AT: [u64; 2] = [0, SLOT_BYTES as u64];
/// Where the number of the newest decided change lies.
pub(crate) const DECIDED_AT: u64 = 2048;
/// Where the number of the newest change that is written whole lies.
pub(crate) const WRITTEN_AT: u64 = 2056;
/// Where the mark of a writer inside lies: of words with the kernel's lock.
pub(crate) const MARK_AT: u64 = 2064;

/// What a span holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// A heap with typed objects. Programs enter it by locks, and change it by whole changes.
    Heap = 1,
    /// 64-bit words that all who are inside read and write at the same time.
    Words = 2,
}

impl Kind {
    /// In words, for messages and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Words => "words",
        }
    }
}

/// Whether entering a space locks the span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Lock {
    /// No. Only for [`Kind::Words`].
    None = 0,
    /// Shared for readers, exclusive for writers. The kernel keeps the lock, and frees it when its
    /// holder dies. Words are then poisoned, if the holder may have changed some.
    Kernel = 1,
    /// The same by words in the header, without a system call if nobody has to wait. All who attach
    /// the span, readers as well, need the right to write its file. The lock is free when its
    /// holder has died. Words are then poisoned, if the holder may have changed some.
    Robust = 2,
}

impl Lock {
    /// In words, for messages and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kernel => "kernel",
            Self::Robust => "robust",
        }
    }
}

/// The addresses that belong to a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AddressRange {
    /// The first one.
    pub(crate) base: u64,
    /// Bytes.
    pub(crate) reach: u64,
}

impl AddressRange {
    /// Whether an address belongs to both.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.base < other.base.saturating_add(other.reach)
            && other.base < self.base.saturating_add(self.reach)
    }
}

/// The description of a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Counts the descriptions of this span.
    pub(crate) number: u64,
    pub(crate) id: SpanId,
    /// Where the file is mapped.
    pub(crate) base: u64,
    /// Bytes of data.
    pub(crate) size: u64,
    /// Bytes of address space that belong to the span, header included.
    pub(crate) reach: u64,
    pub(crate) kind: Kind,
    pub(crate) lock: Lock,
}

impl Header {
    /// Bytes that are mapped.
    pub(crate) fn mapped(&self) -> u64 {
        HEADER_BYTES + self.size
    }

    /// The addresses that belong to the span.
    pub(crate) fn range(&self) -> AddressRange {
        let (base, reach) = (self.base, self.reach);
        AddressRange { base, reach }
    }

    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0_u8; SLOT_BYTES];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &FORMAT.to_le_bytes());
        put(16, &self.number.to_le_bytes());
        put(24, &self.id.0.to_le_bytes());
        put(40, &self.base.to_le_bytes());
        put(48, &self.size.to_le_bytes());
        put(56, &self.reach.to_le_bytes());
        put(64, &(self.kind as u32).to_le_bytes());
        put(68, &(self.lock as u32).to_le_bytes());
        let crc = crc32c(&[&slot]);
        slot[12..16].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    fn decode(slot: &[u8]) -> std::result::Result<Self, Unfit> {
        let word = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("8 bytes"));
        if slot[..8] != MAGIC {
            return Err(Unfit::NoMagic);
        }
        if word(8) != FORMAT {
            return Err(Unfit::Format(word(8)));
        }
        if crc32c(&[&slot[..12], &[0; 4], &slot[16..]]) != word(12) {
            return Err(Unfit::Checksum);
        }
        let header = Self {
            number: long(16),
            id: SpanId(u128::from_le_bytes(
                slot[24..40].try_into().expect("16 bytes"),
            )),
            base: long(40),
            size: long(48),
            reach: long(56),
            kind: match word(64) {
                1 => Kind::Heap,
                2 => Kind::Words,
                _ => return Err(Unfit::Range),
            },
            lock: match word(68) {
                0 => Lock::None,
                1 => Lock::Kernel,
                2 => Lock::Robust,
                _ => return Err(Unfit::Range),
            },
        };
        let open_heap = header.kind == Kind::Heap && header.lock == Lock::None;
        match check_range(header.base, header.size, header.reach) {
            Ok(()) if !open_heap => Ok(header),
            Ok(()) | Err(_) => Err(Unfit::Range),
        }
    }
}

/// Why a slot does not count.
enum Unfit {
    NoMagic,
    Format(u32),
    Checksum,
    Range,
}

/// Whether a span may lie there.
///
/// # Errors
/// [`SpaceError::BadRange`].
pub(crate) fn check_range(base: u64, size: u64, reach: u64) -> Result<()> {
    let whole = |n: u64| n.is_multiple_of(GRANULE_BYTES);
    if size == 0 || !whole(size) || !whole(base) || !whole(reach) {
        return Err(SpaceError::BadRange(format!(
            "size {}, base {base:#x} and reach {} have to be multiples of 64 KiB, and the size at least that",
            Size(size),
            Size(reach)
        )));
    }
    let fits = size
        .checked_add(HEADER_BYTES)
        .is_some_and(|mapped| mapped <= reach)
        && base >= GRANULE_BYTES
        && base
            .checked_add(reach)
            .is_some_and(|end| end <= ADDRESS_END);
    if !fits {
        return Err(SpaceError::BadRange(format!(
            "a span of {} with reach {} does not fit at {base:#x}: the reach holds 64 KiB more than the size, and ends below {ADDRESS_END:#x}",
            Size(size),
            Size(reach)
        )));
    }
    Ok(())
}

/// Whether a writer is inside, or has died there. The caller has the kernel's lock, so no other
/// one is.
///
/// # Errors
/// The system's.
pub(crate) fn is_marked(file: impl AsFd, path: &Path) -> Result<bool> {
    let mut mark = [0_u8; 8];
    let whole = files::read(file, path, &mut mark, MARK_AT)?;
    Ok(whole && mark != [0; 8])
}

/// What a span's file says of itself.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) header: Header,
    /// Number of the newest decided change.
    pub(crate) decided: u64,
    /// Number of the newest change that is written whole.
    pub(crate) written: u64,
}

/// Writes the first description into a new file.
pub(crate) fn write_first(file: impl AsFd, path: &Path, header: &Header) -> Result<()> {
    files::write(file, path, &header.encode(), SLOTS_AT[0])
}

/// Writes the next description into the slot that does not count.
pub(crate) fn write_next(file: impl AsFd, path: &Path, header: &Header) -> Result<()> {
    let slot = SLOTS_AT[usize::from(header.number.is_multiple_of(2))];
    files::write(file, path, &header.encode(), slot)
}

/// Whether the bytes from `at` on can be a journal, or are none yet. A writer may truncate them at
/// the same time.
fn has_journal(file: impl AsFd, path: &Path, at: u64) -> Result<bool> {
    let mut magic = [0_u8; 8];
    let whole = files::read(file, path, &mut magic, at)?;
    let magic = u64::from_le_bytes(magic);
    Ok(!whole || magic == JOURNAL_MAGIC || magic == 0)
}

/// Reads and checks the header, and that the file is as long as it says.
///
/// # Errors
/// [`SpaceError::Damaged`] (no span, truncated, grown or scribbled on),
/// [`SpaceError::WrongVersion`], or the system's.
pub(crate) fn read(file: impl AsFd, path: &Path) -> Result<Found> {
    let mut bytes = [0_u8; HEAD_BYTES];
    if !files::read(&file, path, &mut bytes, 0)? {
        return Err(SpaceError::damaged(path, "it is too short for a header"));
    }
    let slots = SLOTS_AT.map(|at| Header::decode(&bytes[at as usize..at as usize + SLOT_BYTES]));
    let header = match slots {
        [Ok(a), Ok(b)] => match a.number > b.number {
            true => a,
            false => b,
        },
        [Ok(one), Err(_)] | [Err(_), Ok(one)] => one,
        [Err(Unfit::Format(found)), Err(_)] | [Err(_), Err(Unfit::Format(found))] => {
            return Err(SpaceError::WrongVersion {
                path: path.to_owned(),
                found,
                known: FORMAT,
            });
        }
        [Err(Unfit::NoMagic), Err(Unfit::NoMagic)] => {
            return Err(SpaceError::damaged(path, "it is no span"));
        }
        [Err(_), Err(_)] => {
            return Err(SpaceError::damaged(path, "its header has a wrong checksum"));
        }
    };
    let long = |at: u64| {
        let at = at as usize;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    let (decided, written) = (long(DECIDED_AT), long(WRITTEN_AT));
    if decided != written && decided != written.wrapping_add(1) {
        return Err(SpaceError::damaged(path, "its change numbers disagree"));
    }
    let length = files::length(&file, path)?;
    let wanted = header.mapped();
    if length < wanted {
        return Err(SpaceError::damaged(
            path,
            format!("it was cut: {length} bytes instead of {wanted}"),
        ));
    }
    if length > wanted && !has_journal(&file, path, wanted)? {
        return Err(SpaceError::damaged(
            path,
            format!("it has grown: {length} bytes instead of {wanted}"),
        ));
    }
    Ok(Found {
        header,
        decided,
        written,
    })
}
