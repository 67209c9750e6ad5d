//! How a change of a heap becomes whole: all of its pages, or none.
//!
//! A writer works on private copies of pages. To make its change stay, it
//!
//! 1. writes the changed pages into the journal, behind the data, with a checksum;
//! 2. writes the change's number into `decided`: from here on the change counts;
//! 3. writes the pages to their places;
//! 4. writes the number into `written`.
//!
//! A process that dies before 2 has changed nothing. If it dies later, the next writer repeats 3
//! and 4 from the journal. All four happen under the exclusive lock.
//!
//! Invariants
//! - JUMP-1: whatever step of a change is the last one, the next writer finds all of the change or
//!   nothing of it.
//!
//! ```text
//! 0    magic, number of the change, bytes of a page, count, checksum of all that follows
//! 64   count file offsets, padded to a whole page
//! …    count pages
//! ```

use crate::error::{Result, SpaceError};
use crate::files;
use crate::header::{self, DECIDED_AT, HEADER_BYTES, JOURNAL_MAGIC, WRITTEN_AT};
use pluvio_units::crc32c;
use rustix::fd::BorrowedFd;
use std::path::Path;

const HEAD_BYTES: usize = 64;
/// A longer journal is cut off when its change is written; a shorter one stays for the next.
const KEPT_BYTES: u64 = 1 << 20;

/// Finishes the change that a dead process has decided, if there is one. The caller has the
/// exclusive lock.
///
/// # Errors
/// Those of [`header::read`] and [`Journal::repeat`].
pub(crate) fn finish(file: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let found = header::read(file, path)?;
    let at = found.header.mapped();
    match found.decided == found.written {
        true => Ok(()),
        false => Journal { file, path, at }.repeat(found.decided),
    }
}

/// A file whose journal is written or read. The caller has the exclusive lock.
pub(crate) struct Journal<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) path: &'a Path,
    /// Where the data ends and the journal begins.
    pub(crate) at: u64,
}

/// A run of changed pages: their offset in the file, and their bytes.
pub(crate) type Run<'a> = (u64, &'a [u8]);

impl Journal<'_> {
    /// Makes the change `number` of these pages of `page` bytes stay.
    ///
    /// # Errors
    /// Those of step 1 and 2: nothing has changed. [`SpaceError::Unfinished`]: the change counts,
    /// and the next writer finishes it.
    pub(crate) fn commit(&self, number: u64, page: usize, runs: &[Run<'_>]) -> Result<()> {
        let kept = self.write_pages(number, page, runs);
        let decided = kept.and_then(|()| self.set(DECIDED_AT, number));
        if let Err(error) = decided {
            // Room that is needed elsewhere; of no consequence if it stays.
            let _stays = files::truncate(self.file, self.path, self.at);
            return Err(error);
        }
        let done = runs
            .iter()
            .try_for_each(|&(offset, bytes)| files::write(self.file, self.path, bytes, offset))
            .and_then(|()| self.set(WRITTEN_AT, number));
        done.map_err(|_| SpaceError::Unfinished(self.path.display().to_string()))?;
        self.trim();
        Ok(())
    }

    /// Step 1.
    fn write_pages(&self, number: u64, page: usize, runs: &[Run<'_>]) -> Result<()> {
        let mut offsets = Vec::new();
        for (offset, bytes) in runs {
            let starts = (0..bytes.len()).step_by(page);
            offsets.extend(starts.flat_map(|start| (offset + start as u64).to_le_bytes()));
        }
        let count = offsets.len() / 8;
        offsets.resize(list_bytes(count, page) - HEAD_BYTES, 0);
        let mut parts: Vec<&[u8]> = vec![&offsets];
        parts.extend(runs.iter().map(|(_, bytes)| *bytes));
        let crc = crc32c(&parts);
        let mut head = Vec::with_capacity(HEAD_BYTES + offsets.len());
        for word in [
            JOURNAL_MAGIC,
            number,
            page as u64,
            count as u64,
            u64::from(crc),
        ] {
            head.extend(word.to_le_bytes());
        }
        head.resize(HEAD_BYTES, 0);
        head.extend(&offsets);
        files::write(self.file, self.path, &head, self.at)?;
        let mut at = self.at + head.len() as u64;
        for (_, bytes) in runs {
            files::write(self.file, self.path, bytes, at)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Steps 3 and 4 of the change `number`, which another process has decided.
    ///
    /// # Errors
    /// [`SpaceError::Damaged`]: the journal does not hold that change. Or the system's; the change
    /// still counts.
    fn repeat(&self, number: u64) -> Result<()> {
        let wrong = || SpaceError::damaged(self.path, "the journal of its last change is damaged");
        let mut head = [0_u8; HEAD_BYTES];
        if !files::read(self.file, self.path, &mut head, self.at)? {
            return Err(wrong());
        }
        let word = |index: usize| {
            u64::from_le_bytes(head[8 * index..8 * index + 8].try_into().expect("8 bytes"))
        };
        let [page, count, crc] = [2, 3, 4].map(word);
        let fits = word(0) == JOURNAL_MAGIC
            && word(1) == number
            && page.is_power_of_two()
            && (4096..=HEADER_BYTES).contains(&page)
            && count <= self.at / page;
        if !fits {
            return Err(wrong());
        }
        let (page, count) = (page as usize, count as usize);
        let mut list = vec![0_u8; list_bytes(count, page) - HEAD_BYTES];
        let mut whole = files::read(self.file, self.path, &mut list, self.at + HEAD_BYTES as u64)?;
        let pages_at = self.at + list_bytes(count, page) as u64;
        let mut pages = vec![0_u8; count * page];
        whole &= files::read(self.file, self.path, &mut pages, pages_at)?;
        if !whole || u64::from(crc32c(&[&list, &pages])) != crc {
            return Err(wrong());
        }
        for (offset, bytes) in list.chunks_exact(8).zip(pages.chunks_exact(page)) {
            let offset = u64::from_le_bytes(offset.try_into().expect("8 bytes"));
            let inside = (HEADER_BYTES..=self.at - page as u64).contains(&offset);
            if !inside || !offset.is_multiple_of(page as u64) {
                return Err(wrong());
            }
            files::write(self.file, self.path, bytes, offset)?;
        }
        self.set(WRITTEN_AT, number)?;
        self.trim();
        Ok(())
    }

    /// Eight bytes inside one page are written whole or not at all.
    fn set(&self, at: u64, number: u64) -> Result<()> {
        files::write(self.file, self.path, &number.to_le_bytes(), at)
    }

    fn trim(&self) {
        let long = |length| length > self.at + KEPT_BYTES;
        if files::length(self.file, self.path).is_ok_and(long) {
            let _stays_long = files::truncate(self.file, self.path, self.at);
        }
    }
}

/// Bytes of the head and of the list of offsets: whole pages, so that the pages begin at a border.
fn list_bytes(count: usize, page: usize) -> usize {
    (HEAD_BYTES + 8 * count).next_multiple_of(page)
}
