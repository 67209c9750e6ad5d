//! The page by which the owner of memory tells readers of other processes whether what they have
//! just copied counts.
//!
//! ```text
//! line 0     | magic and layout |                                     ...
//! line 1     | version of the map: what is served, and where its index is |
//! line 2     | nothing read at this time of CLOCK_BOOTTIME or later counts, in ns |
//! line 3     | deadlines were judged by this time, in ms since 1970 |
//!  ...
//! byte 4096  | the epoch table: its counter, and below which stamp memory is used again |
//! ```
//!
//! A reader writes nothing, here or anywhere. It copies, and then asks the page (`epoch_protocol`).
//! So a reader that is stopped, killed or hostile is in nobody's way.
//!
//! Invariants:
//! - GATE-1: the version is raised before anything that a reader with the old map may not see.
//! - GATE-2: a page that is closed, or whose owner is gone, makes every later read not count. So
//!   does one whose memory went back to the system: it reads as zero.
//!
//! Threads: any; every access is an atomic one.

use crate::epoch::{ReclaimEpochs, protocol};
use crate::read_region::ReadRegion;
use crate::region::{CACHE_LINE_BYTES, Region, RegionError};
use crate::shared::SharedMemoryError;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use rustix::fd::BorrowedFd;
use std::sync::Arc;

/// Begins with "PLVM"; the last byte is the layout of this page, of the seglet table and of the
/// index. A reader of another layout is refused.
const MAGIC: u64 = 0x504c_564d_0000_0001;

const VERSION_AT: u64 = CACHE_LINE_BYTES;
const FRESH_UNTIL_AT: u64 = 2 * CACHE_LINE_BYTES;
const JUDGED_AT: u64 = 3 * CACHE_LINE_BYTES;
/// Where the epoch table begins.
const EPOCHS_AT: u64 = 4096;

/// The owner's side: see the module.
#[derive(Debug, Clone)]
pub struct GatePage(Arc<Region>);

/// One word of the page that the owner uses as its own.
#[derive(Debug)]
pub struct GateWord {
    region: Arc<Region>,
    offset: u64,
}

impl Deref for GateWord {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        self.region.word(self.offset)
    }
}

impl GatePage {
    /// A page with an epoch table for `slots` threads. Nothing counts before
    /// [`Self::fresh_until`].
    ///
    /// # Errors
    /// As of [`Region::for_readers`].
    pub fn new(slots: u32) -> Result<Self, RegionError> {
        let len = EPOCHS_AT + ReclaimEpochs::bytes(slots);
        let region = Region::for_readers("pluvio-gate", len, false)?;
        region.allocate(0, region.len())?;
        region.word(VERSION_AT).store(1, Ordering::Release);
        region.word(0).store(MAGIC, Ordering::Release);
        Ok(Self(Arc::new(region)))
    }

    pub(crate) fn epochs(&self) -> (Arc<Region>, u64) {
        (Arc::clone(&self.0), EPOCHS_AT)
    }

    /// The file, for readers.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.memfd().expect("it was made for readers")
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.len()
    }

    /// The version of the map.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.word(VERSION_AT).load(Ordering::Acquire)
    }

    /// To be called before the map changes (GATE-1). Whatever the caller does next, a reader that
    /// sees it finds its map old.
    pub fn raise_version(&self) {
        self.0.word(VERSION_AT).fetch_add(1, Ordering::SeqCst);
        // A later store, relaxed ones included, is visible only after it.
        fence(Ordering::SeqCst);
    }

    /// Reads up to that time of `CLOCK_BOOTTIME`, in nanoseconds, count. An earlier time than
    /// before is taken as well.
    pub fn fresh_until(&self, boottime_ns: u64) {
        // Release: the state that counts until then is visible.
        self.0
            .word(FRESH_UNTIL_AT)
            .store(boottime_ns, Ordering::Release);
    }

    /// Nothing counts any more (GATE-2).
    pub fn close(&self) {
        self.fresh_until(0);
        self.raise_version();
    }

    /// The latest time by which a deadline was judged.
    #[must_use]
    pub fn judged(&self) -> GateWord {
        GateWord {
            region: Arc::clone(&self.0),
            offset: JUDGED_AT,
        }
    }
}

/// The reader's side: see the module.
#[derive(Debug)]
pub struct GateView(ReadRegion);

/// When a read began, for [`GateView::check`].
#[derive(Debug, Clone, Copy)]
pub struct Since(u64);

/// Why a read does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCounted {
    /// The memory may have been used again meanwhile: read anew.
    Reused,
    /// Tablets, or their places, have changed: get a new map.
    OldMap,
}

impl GateView {
    /// Maps the page of another process.
    ///
    /// # Errors
    /// As of [`ReadRegion::open`], and [`SharedMemoryError::Unfit`] for another layout.
    pub fn open(file: BorrowedFd<'_>, len: u64) -> Result<Self, SharedMemoryError> {
        let view = ReadRegion::open(file, len)?;
        if view.load(0) != Some(MAGIC) || len < EPOCHS_AT + ReclaimEpochs::bytes(0) {
            return Err(SharedMemoryError::Unfit("memory of another layout"));
        }
        Ok(Self(view))
    }

    #[inline(always)]
    fn peek(&self, offset: u64) -> u64 {
        // Zero refuses the read in each of the words.
        self.0.peek(offset).unwrap_or(0)
    }

    /// The version of the map.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.load(VERSION_AT).unwrap_or(0)
    }

    /// Begins a read, before its first access.
    #[must_use]
    #[inline(always)]
    pub fn begin(&self) -> Since {
        let since = self.peek(EPOCHS_AT);
        fence(Ordering::Acquire);
        Since(since)
    }

    /// Whether a read under the map of `version` counts, after its last access.
    ///
    /// # Errors
    /// See [`NotCounted`].
    #[inline(always)]
    pub fn check(&self, since: Since, version: u64) -> Result<(), NotCounted> {
        // The loads below stay behind those of the read (`protocol::counts`).
        fence(Ordering::Acquire);
        if !protocol::is_above(since.0, self.peek(EPOCHS_AT + protocol::REUSED_BELOW_AT)) {
            return Err(NotCounted::Reused);
        }
        if self.peek(VERSION_AT) != version {
            return Err(NotCounted::OldMap);
        }
        Ok(())
    }

    /// Until when reads count, in nanoseconds of `CLOCK_BOOTTIME`.
    #[must_use]
    #[inline(always)]
    pub fn fresh_until_ns(&self) -> u64 {
        self.peek(FRESH_UNTIL_AT)
    }

    /// The latest time by which a deadline was judged, in milliseconds.
    #[must_use]
    pub fn judged_ms(&self) -> u64 {
        self.0.load(JUDGED_AT).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: GATE-1, GATE-2
    #[test]
    fn a_read_counts_only_under_the_map_that_it_began_with() {
        let page = GatePage::new(4).unwrap();
        let view = GateView::open(page.file(), page.bytes()).unwrap();
        let (since, version) = (view.begin(), view.version());
        page.fresh_until(9);
        assert_eq!(view.fresh_until_ns(), 9);
        page.judged().store(77, Ordering::Release);
        assert_eq!(view.judged_ms(), 77);
        page.raise_version();
        assert_eq!(view.check(since, version), Err(NotCounted::OldMap));
        page.close();
        assert_eq!(view.fresh_until_ns(), 0);
    }

    #[test]
    fn memory_of_another_layout_is_refused() {
        let region = Region::for_readers("pluvio-test", 1 << 16, false).unwrap();
        assert!(GateView::open(region.memfd().unwrap(), region.len()).is_err());
    }
}
