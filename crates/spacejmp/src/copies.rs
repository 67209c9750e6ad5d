//! Which pages of a private mapping are copies: those that this process has written.
//!
//! Linux tells it in `/proc/self/pagemap`, without any right. Since 6.7 it can be asked for the
//! copies alone, which passes over memory that was never touched. Before, a word is read for each
//! page.

use crate::error::{Result, SpaceError};
use crate::files;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::Path;

const PAGEMAP: &str = "/proc/self/pagemap";
/// Bits of a word: the page is in memory, or swapped out, or of a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// Words that are read at once.
const WORDS: usize = 4096;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
/// Its categories.
const SCAN_OF_FILE: u64 = 1 << 2;
const SCAN_PRESENT: u64 = 1 << 3;
const SCAN_SWAPPED: u64 = 1 << 4;
/// Ranges that it gives at once.
const RANGES: usize = 256;

/// `struct pm_scan_arg` of the kernel.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    ranges: u64,
    ranges_len: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

/// `struct page_region` of the kernel.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Range {
    start: u64,
    end: u64,
    categories: u64,
}

/// The memory map of this process.
#[derive(Debug)]
pub(crate) struct PageMap(OwnedFd);

impl PageMap {
    /// # Errors
    /// `/proc` is not there.
    pub(crate) fn open() -> Result<Self> {
        let path = Path::new(PAGEMAP);
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map(Self)
            .map_err(|errno| SpaceError::of("read", path, errno))
    }

    /// The copies among the pages from address `start` to `end`, as runs of address and length, in
    /// order.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn copies(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        match self.scan(start, end) {
            Some(runs) => Ok(runs),
            None => self.read(start, end),
        }
    }

    /// By one call for all copies; none if this kernel does not know it.
    #[allow(unsafe_code)] // one system call
    fn scan(&self, start: u64, end: u64) -> Option<Vec<(u64, u64)>> {
        let mut runs = Vec::new();
        let mut ranges = [Range::default(); RANGES];
        let mut from = start;
        while from < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: 0,
                start: from,
                end,
                walk_end: 0,
                ranges: ranges.as_mut_ptr().addr() as u64,
                ranges_len: RANGES as u64,
                pages_max: 0,
                inverted: SCAN_OF_FILE,
                all_of: SCAN_OF_FILE,
                any_of: SCAN_PRESENT | SCAN_SWAPPED,
                told: SCAN_PRESENT | SCAN_SWAPPED,
            };
            // SAFETY: the kernel reads and writes `scan`, and writes `RANGES` ranges at most to
            // `ranges`. Both live here.
            let count =
                unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
            let count = usize::try_from(count).ok()?;
            for range in ranges.get(..count)? {
                join(&mut runs, range.start, range.end - range.start);
            }
            if scan.walk_end <= from {
                return None;
            }
            from = scan.walk_end;
        }
        Some(runs)
    }

    /// By a word for each page.
    fn read(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let page = rustix::param::page_size() as u64;
        let mut runs = Vec::new();
        let mut bytes = vec![0_u8; 8 * WORDS];
        let (mut at, end) = (start / page, end.div_ceil(page));
        while at < end {
            let count = WORDS.min((end - at) as usize);
            let part = &mut bytes[..8 * count];
            let path = Path::new(PAGEMAP);
            if !files::read(self.0.as_fd(), path, part, 8 * at)? {
                return Err(SpaceError::damaged(path, "it ends before the span"));
            }
            for (index, word) in part.chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                if word & (PRESENT | SWAPPED) != 0 && word & OF_FILE == 0 {
                    join(&mut runs, (at + index as u64) * page, page);
                }
            }
            at += count as u64;
        }
        Ok(runs)
    }
}

/// Adds a run behind others, to the last one if it follows it.
fn join(runs: &mut Vec<(u64, u64)>, start: u64, len: u64) {
    match runs.last_mut() {
        Some((last, length)) if *last + *length == start => *length += len,
        Some(_) | None => runs.push((start, len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Board, board, registry};

    #[test]
    fn both_ways_find_the_same_copies() {
        let (_place, registry) = registry();
        let space = board(&registry);
        let info = registry.find_span("board").expect("a span");
        let (start, end) = (info.base + (64 << 10), info.base + (64 << 10) + info.size);
        let map = PageMap::open().expect("a map");
        let mut inside = space.enter().expect("inside");
        assert_eq!(map.read(start, end).expect("read"), []);
        let changed = inside.write::<Board<'_>, _>("board", |_, board| {
            // Two pages far from each other, and one place of its own.
            board.row[0] = 1;
            board.row[super::super::tests::ROW - 1] = 1;
            let read = map.read(start, end)?;
            let pages = read.iter().map(|(_, len)| len).sum::<u64>();
            assert!(read.len() >= 2 && pages <= 4 * 4096.max(rustix::param::page_size() as u64));
            match map.scan(start, end) {
                Some(scanned) => assert_eq!(scanned, read),
                None => eprintln!("this kernel has no PAGEMAP_SCAN"),
            }
            Ok(())
        });
        changed.expect("changed");
        assert_eq!(map.copies(start, end).expect("read"), []);
    }
}
