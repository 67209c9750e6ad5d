//! Memory that this process shares with another one, which it does not trust.
//!
//! Owns a region in a sealed memory file. The other process may change any byte at any time. So no
//! slice of the bytes is ever given out: they are copied, or accessed as atomic words.
//!
//! Invariants:
//! - SHARED-1: the file is as long as the mapping and can shrink no more, so that no access ends in
//!   a bus error. Its maker seals it. Its receiver maps it only with the seals, and only if it lies
//!   in the system's own memory file system.
//!
//! Threads: any thread may use it at any time. Loads and stores race, with those of the other
//! process at least, and act as relaxed atomic ones. Their values may be torn.
//!
//! Limits: it gives the bytes no meaning.

use crate::region::{REGION_GRANULE_BYTES, Region};
use core::sync::atomic::AtomicU64;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;

/// The seals of a shared file: its length is fixed for ever.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// The file system of memory files with pages of the usual size. A file of huge pages may lack one
/// when it is touched, which would be a bus error.
pub(crate) const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why memory cannot be shared. Not retryable, but for a lack of memory or of files.
#[derive(Debug, thiserror::Error)]
pub enum SharedMemoryError {
    /// The system refused to make or to map the file.
    #[error("cannot share {len} bytes of memory: {source}")]
    Refused {
        /// The length asked for.
        len: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The file of the other process is not what is shared here. Nothing was mapped.
    #[error("the other process shares {0}")]
    Unfit(&'static str),
}

/// Memory of two processes. Zero where nobody has written.
#[derive(Debug)]
pub struct SharedMemory {
    region: Region,
}

impl SharedMemory {
    /// Makes a memory file of `len` bytes, rounded up to [`REGION_GRANULE_BYTES`], and maps it.
    /// `name` is seen in `/proc/PID/maps`. The file is for the other process.
    ///
    /// # Errors
    /// [`SharedMemoryError::Refused`].
    pub fn make(name: &str, len: u64) -> Result<(Self, OwnedFd), SharedMemoryError> {
        let refused = |errno: rustix::io::Errno| SharedMemoryError::Refused {
            len,
            source: errno.into(),
        };
        let whole = len.next_multiple_of(REGION_GRANULE_BYTES);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags).map_err(refused)?;
        rustix::fs::ftruncate(&file, whole).map_err(refused)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(refused)?;
        Ok((Self::map(file.as_fd(), whole)?, file))
    }

    /// Maps the file that another process has made by [`Self::make`] with the same length.
    ///
    /// # Errors
    /// [`SharedMemoryError::Unfit`] if it is another file, and [`SharedMemoryError::Refused`].
    pub fn open(file: BorrowedFd<'_>, len: u64) -> Result<Self, SharedMemoryError> {
        let unfit = |what| SharedMemoryError::Unfit(what);
        let place = rustix::fs::fstatfs(file).map_err(|_| unfit("no file"))?;
        if u64::try_from(place.f_type) != Ok(TMPFS_MAGIC) {
            return Err(unfit("a file that lies elsewhere than in memory"));
        }
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| unfit("a file without seals"))?;
        if !seals.contains(SEALS) {
            return Err(unfit("a file that may change its length"));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(unfit("a file that cannot be written"));
        }
        // Behind the seals, so that the length stays.
        let status = rustix::fs::fstat(file).map_err(|_| unfit("no file"))?;
        let whole = len.next_multiple_of(REGION_GRANULE_BYTES);
        if u64::try_from(status.st_size) != Ok(whole) {
            return Err(unfit("a file of another length"));
        }
        Self::map(file, whole)
    }

    fn map(file: BorrowedFd<'_>, len: u64) -> Result<Self, SharedMemoryError> {
        let region = Region::of_file(file, len).map_err(|source| SharedMemoryError::Refused {
            len,
            source: io::Error::other(source),
        })?;
        assert_eq!(
            region.len(),
            len,
            "SHARED-1: the mapping is as long as asked for"
        );
        Ok(Self { region })
    }

    /// Bytes of the memory.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Always false: there is at least one granule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8 or lies behind the end (M1).
    #[must_use]
    #[inline(always)]
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        self.region.word(offset)
    }

    /// Copies the bytes from `offset` on into `into`.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8, or the bytes, rounded up to words, leave the memory (M1).
    #[inline]
    pub fn load(&self, offset: u64, into: &mut [u8]) {
        check_words(offset);
        let mut at = offset;
        for piece in pieces(offset, into.len()) {
            let to = &mut into[piece.clone()];
            let words = to.len().next_multiple_of(8);
            self.region.racing_in_granule(at, words).load(to);
            at += words as u64;
        }
    }

    /// Copies `data` to `offset`. Bytes behind it, up to the end of its last word, are unspecified
    /// afterwards.
    ///
    /// # Panics
    /// As of [`Self::load`].
    #[inline]
    pub fn store(&self, offset: u64, data: &[u8]) {
        check_words(offset);
        let mut at = offset;
        for piece in pieces(offset, data.len()) {
            let from = &data[piece.clone()];
            let words = from.len().next_multiple_of(8);
            let to = self.region.racing_in_granule(at, words);
            // SAFETY: this module gives out no slice of the bytes and writes them in no other way.
            // Threads that store at the same time leave torn bytes behind, as the other process
            // may at any time. Its stores are accesses of the processor, not of this program.
            unsafe { to.store(from) };
            at += words as u64;
        }
    }
}

#[inline(always)]
fn check_words(offset: u64) {
    assert!(
        offset.is_multiple_of(8),
        "M1: shared bytes at offset {offset}"
    );
}

/// The ranges of `len` bytes from `offset` on that lie in one granule each.
#[inline(always)]
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
    let granule = REGION_GRANULE_BYTES as usize;
    let mut end = 0;
    let mut room = granule - offset as usize % granule;
    core::iter::from_fn(move || {
        if end == len {
            return None;
        }
        let begin = end;
        end = len.min(begin + room);
        room = granule;
        Some(begin..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create};

    const LEN: u64 = 3 * REGION_GRANULE_BYTES;

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (one, file) = SharedMemory::make("pluvio-test", LEN - 1).unwrap();
        let other = SharedMemory::open(file.as_fd(), LEN - 1).unwrap();
        drop(file);
        assert_eq!((one.len(), other.len()), (LEN, LEN));
        one.word(8).store(7, Ordering::Relaxed);
        assert_eq!(other.word(8).load(Ordering::Relaxed), 7);
        for (offset, len) in [
            (0, 0),
            (16, 1),
            (16, 100),
            (REGION_GRANULE_BYTES - 8, 9),
            (REGION_GRANULE_BYTES, 70_000),
            (8, LEN as usize - 8),
        ] {
            let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8 + 1).collect();
            one.store(offset, &data);
            let mut back = vec![0; len];
            other.load(offset, &mut back);
            assert!(back == data, "{len} bytes at {offset}");
        }
    }

    // shows: SHARED-1
    #[test]
    fn a_shared_file_keeps_its_length() {
        let (_one, file) = SharedMemory::make("pluvio-test", LEN).unwrap();
        for len in [0, LEN - REGION_GRANULE_BYTES, 2 * LEN] {
            assert!(ftruncate(&file, len).is_err(), "{len}");
        }
        assert!(fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).is_err());
    }

    // shows: SHARED-1
    #[test]
    fn files_that_could_end_in_a_bus_error_are_refused() {
        let refused = |file: &OwnedFd| {
            let opened = SharedMemory::open(file.as_fd(), LEN);
            opened.expect_err("it must be refused").to_string()
        };
        let memfd = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("pluvio-test", flags).unwrap();
            ftruncate(&file, LEN).unwrap();
            file
        };
        let unsealed = memfd();
        assert!(refused(&unsealed).contains("may change its length"));
        fcntl_add_seals(&unsealed, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(refused(&unsealed).contains("may change its length"));
        let read_only = memfd();
        fcntl_add_seals(&read_only, SEALS.union(SealFlags::FUTURE_WRITE)).unwrap();
        assert!(refused(&read_only).contains("cannot be written"));
        let short = memfd();
        ftruncate(&short, LEN - 8).unwrap();
        fcntl_add_seals(&short, SEALS).unwrap();
        assert!(refused(&short).contains("another length"));
        let elsewhere = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(refused(&elsewhere.into()).contains("elsewhere"));
        let (read, _write) = std::io::pipe().unwrap();
        assert!(refused(&read.into()).contains("elsewhere"));
    }

    #[test]
    #[should_panic(expected = "M1")]
    fn bytes_behind_the_end_are_refused() {
        let (one, _file) = SharedMemory::make("pluvio-test", LEN).unwrap();
        one.load(LEN - 8, &mut [0; 9]);
    }
}
