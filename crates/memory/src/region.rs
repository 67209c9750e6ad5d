//! A region: one mapping whose content is addressed by offsets, never by Rust pointers (rule B).
//!
//! Owns the mapping and, for a memfd region, its file descriptors. One is its own. Another process
//! may map the other one.
//!
//! Invariants:
//! - R1: `base..base + len` is mapped readable and writable from creation to drop, and starts at a
//!   multiple of [`HUGE_PAGE_BYTES`].
//! - R2: `len` is a multiple of [`REGION_GRANULE_BYTES`] and at most [`REGION_LEN_MAX`].
//! - R3: untouched and discarded bytes read as zero.
//! - R4: a region for readers is written only where it was asked for pages before
//!   ([`Region::allocate`]). The system refuses them by an error there; without, a store that lacks
//!   a page would end in a bus error. Its users keep this.
//!
//! Threads: words are atomics, and any thread may use them at any time. Plain bytes follow the rule
//! of the `unsafe` methods: a caller that asks for bytes guarantees that no thread writes them
//! meanwhile.
//!
//! Limits: it hands out no space; the owner of each byte is the caller's book-keeping.

mod huge_blocks;

use crate::copy::CopyMethod;
use crate::racing_bytes::RacingBytes;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use huge_blocks::HugeBlocks;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;

/// Bytes of a cache line: what one miss brings in.
pub const CACHE_LINE_BYTES: u64 = 64;

/// The length of a region, and the borders of discarded ranges, are multiples of this. 64 KiB is
/// the size of a seglet, and a multiple of every page size Linux uses by default.
pub const REGION_GRANULE_BYTES: u64 = 64 << 10;

/// Longest region: 48-bit offsets, as many as an index slot can hold.
pub const REGION_LEN_MAX: u64 = 1 << 48;

/// Bytes of a page of this system.
#[must_use]
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The seals of a file for readers: its length is fixed for ever. `F_SEAL_FUTURE_WRITE` would keep
/// the system from taking pages back; readers get a file instead that was opened to be read.
pub(crate) const READER_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// How the system promises memory; `2` is strictly.
const OVERCOMMIT_PATH: &str = "/proc/sys/vm/overcommit_memory";

/// Regions start on such a border, so that the kernel can use huge pages from the first byte.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Asks for huge pages at once. A number of Linux; the headers of musl lack it.
const MADV_COLLAPSE: libc::c_int = 25;

/// Why a region could not be made or given back.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The length is zero or more than [`REGION_LEN_MAX`]. Not retryable; nothing happened.
    #[error("a region of {len} bytes: the length must be between 1 and {REGION_LEN_MAX}")]
    BadLength {
        /// The length asked for.
        len: u64,
    },
    /// The system refused the address space (`ulimit -v`, `vm.overcommit_memory=2`, a cgroup), or
    /// the memory file. Retryable only after the limit was changed; nothing stays reserved.
    #[error(
        "cannot reserve {len} bytes of memory: {source} (see ulimit -v and vm.overcommit_memory)"
    )]
    ReserveFailed {
        /// The length asked for, in bytes.
        len: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused to take pages back, to fill them in, or to make them huge. The bytes are
    /// unchanged.
    #[error("cannot {what} {len} bytes at offset {offset}: {source}")]
    AdviceFailed {
        /// What was asked for: "discard", "allocate", "populate", or "use huge pages for".
        what: &'static str,
        /// Where the bytes begin.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The system's answer.
        source: io::Error,
    },
}

/// A mapping of zeroed memory, reserved whole at creation and touched as it is used: an untouched
/// page costs nothing.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: u64,
    /// The file behind the mapping; none for anonymous memory.
    memfd: Option<OwnedFd>,
    /// What readers of other processes map it by.
    for_readers: Option<ForReaders>,
}

/// What a region for readers has beside.
#[derive(Debug)]
struct ForReaders {
    /// The file of the region, opened to be read and nothing else.
    file: OwnedFd,
    /// A reader that touches a hole is given a page. Where memory is promised strictly that may
    /// fail, by a bus error of the reader. No holes are made there.
    gives_back: bool,
    /// Blocks that are to become huge pages when they get their first bytes.
    huge: HugeBlocks,
}

// SAFETY: the mapping belongs to no thread, and every safe access to it is an atomic one.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; plain accesses are `unsafe` methods whose callers rule out data races.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len` bytes (rounded up to [`REGION_GRANULE_BYTES`]) of memory private to this
    /// process. `huge` asks for transparent huge pages where the system has them; without them the
    /// region works the same, with more TLB misses.
    ///
    /// # Errors
    /// [`RegionError::BadLength`] and [`RegionError::ReserveFailed`]; nothing stays reserved.
    pub fn anonymous(len: u64, huge: bool) -> Result<Self, RegionError> {
        Self::map(len, huge, None)
    }

    /// Reserves `len` bytes in a memory file called `name` (seen in `/proc/PID/maps`), which
    /// another process can map through [`Region::memfd`].
    ///
    /// # Errors
    /// [`RegionError::BadLength`] and [`RegionError::ReserveFailed`] (also for a name with a zero
    /// byte or more than 249 bytes); nothing stays reserved.
    pub fn with_memfd(name: &str, len: u64) -> Result<Self, RegionError> {
        let rounded = round_len(len)?;
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)
            .and_then(|file| rustix::fs::ftruncate(&file, rounded).map(|()| file))
            .map_err(|errno| RegionError::ReserveFailed {
                len,
                source: errno.into(),
            })?;
        Self::map(len, true, Some(file))
    }

    /// Reserves `len` bytes in a memory file that other processes may map to read
    /// ([`crate::ReadRegion`]). They get a file by [`Self::memfd`] that was opened to be read.
    /// Nobody may open it anew: the file has no rights for anybody. So processes of other users can
    /// change neither its bytes nor its length. One of this process's user could give itself the
    /// rights. Bytes have to be [allocated](Self::allocate) before they are written (R4).
    ///
    /// # Errors
    /// As of [`Self::with_memfd`]; also where `/proc` is not mounted.
    pub fn for_readers(name: &str, len: u64, huge: bool) -> Result<Self, RegionError> {
        let rounded = round_len(len)?;
        let make = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create(name, flags)?;
            rustix::fs::ftruncate(&file, rounded)?;
            rustix::fs::fcntl_add_seals(&file, READER_SEALS)?;
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let readable = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::fchmod(&file, Mode::empty())?;
            Ok((file, readable))
        };
        let (file, readable) = make().map_err(|errno: Errno| RegionError::ReserveFailed {
            len,
            source: errno.into(),
        })?;
        let mut region = Self::map(len, false, Some(file))?;
        region.for_readers = Some(ForReaders {
            file: readable,
            gives_back: !is_promised_strictly(),
            huge: HugeBlocks::none(region.len),
        });
        if huge {
            let _works_without = region.prefer_huge_pages(0, region.len);
        }
        Ok(region)
    }

    /// Maps `len` bytes of `file` to read them.
    pub(crate) fn read_only(file: BorrowedFd<'_>, len: u64) -> Result<Self, RegionError> {
        let copy = file.try_clone_to_owned();
        let copy = copy.map_err(|source| RegionError::ReserveFailed { len, source })?;
        let mut region = Self::map_with(len, false, Some(copy), ProtFlags::READ)?;
        region.memfd = None;
        Ok(region)
    }

    /// Maps `len` bytes of `file`, which the caller keeps no longer than it likes.
    ///
    /// # Errors
    /// [`RegionError::BadLength`] and [`RegionError::ReserveFailed`]; nothing stays reserved.
    pub(crate) fn of_file(file: BorrowedFd<'_>, len: u64) -> Result<Self, RegionError> {
        let copy = file.try_clone_to_owned();
        let copy = copy.map_err(|source| RegionError::ReserveFailed { len, source })?;
        let mut region = Self::map(len, false, Some(copy))?;
        // The mapping stays without it.
        region.memfd = None;
        Ok(region)
    }

    fn map(len: u64, huge: bool, memfd: Option<OwnedFd>) -> Result<Self, RegionError> {
        Self::map_with(len, huge, memfd, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_with(
        len: u64,
        huge: bool,
        memfd: Option<OwnedFd>,
        protection: ProtFlags,
    ) -> Result<Self, RegionError> {
        let rounded = round_len(len)?;
        let refused = |errno: Errno| RegionError::ReserveFailed {
            len,
            source: errno.into(),
        };
        let bytes = to_usize(rounded);
        let base = reserve_aligned(bytes).map_err(refused)?;
        let mapped = match &memfd {
            // SAFETY: `base..base + bytes` was reserved by this call a moment ago and is unknown
            // elsewhere, so replacing that mapping takes nothing from anybody.
            None => unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
                rustix::mm::mmap_anonymous(base.as_ptr().cast(), bytes, protection, flags)
            },
            // SAFETY: as above.
            Some(file) => unsafe {
                let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
                rustix::mm::mmap(base.as_ptr().cast(), bytes, protection, flags, file, 0)
            },
        };
        let region = Self {
            base,
            len: rounded,
            memfd,
            for_readers: None,
        };
        // `region` unmaps the reservation when this fails.
        mapped.map_err(refused)?;
        assert!(
            base.addr().get().is_multiple_of(to_usize(HUGE_PAGE_BYTES)),
            "R1: a region begins at {base:?}"
        );
        assert!(
            rounded.is_multiple_of(REGION_GRANULE_BYTES) && rounded <= REGION_LEN_MAX,
            "R2: a region of {rounded} bytes"
        );
        if huge {
            let _works_without = region.prefer_huge_pages(0, rounded);
        }
        Ok(region)
    }

    /// Asks for transparent huge pages in `len` bytes from `offset` on, where the system has them.
    ///
    /// # Errors
    /// [`RegionError::AdviceFailed`] when the kernel was built without them. The region works the
    /// same, with more TLB misses. A kernel that has them, but is set to give none, accepts the
    /// call.
    ///
    /// # Panics
    /// When the range leaves the region or its borders are no multiples of
    /// [`REGION_GRANULE_BYTES`].
    pub fn prefer_huge_pages(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        self.want_huge(offset, len, true);
        self.prefer(offset, len, Advice::LinuxHugepage)
            .map_err(|errno| advice_failed("use huge pages for", offset, len, errno))
    }

    /// Asks for no more transparent huge pages in `len` bytes from `offset` on. Existing ones stay.
    ///
    /// # Panics
    /// As of [`Self::prefer_huge_pages`].
    pub fn prefer_small_pages(&self, offset: u64, len: u64) {
        self.want_huge(offset, len, false);
        // A kernel that refuses has no huge pages.
        let _there_are_none = self.prefer(offset, len, Advice::LinuxNoHugepage);
    }

    fn want_huge(&self, offset: u64, len: u64, wanted: bool) {
        if let Some(readers) = &self.for_readers {
            self.check_granules(offset, len);
            readers.huge.want(offset..offset + len, wanted);
        }
    }

    fn prefer(&self, offset: u64, len: u64, pages: Advice) -> Result<(), Errno> {
        self.check_granules(offset, len);
        // SAFETY: advice about our own mapping (R1, checked above); it changes no content.
        unsafe { rustix::mm::madvise(self.at(offset), to_usize(len), pages) }
    }

    /// Bytes in the region: the requested length, rounded up.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: a region has at least one granule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The memory file, if the region has one, for another process.
    #[must_use]
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        let readable = self.for_readers.as_ref().map(|readers| &readers.file);
        readable.or(self.memfd.as_ref()).map(AsFd::as_fd)
    }

    /// Whether other processes may map it to read.
    #[must_use]
    pub fn is_for_readers(&self) -> bool {
        self.for_readers.is_some()
    }

    /// Whether [`Self::discard`] gives pages back. It does not in a region for readers where the
    /// system promises memory strictly (`vm.overcommit_memory=2`).
    #[must_use]
    pub fn gives_back(&self) -> bool {
        let readers = self.for_readers.as_ref();
        readers.is_none_or(|readers| readers.gives_back)
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8 or lies behind the end (M1).
    #[must_use]
    #[inline(always)]
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        self.check_words(offset, 1);
        // SAFETY: inside the mapping and aligned (checked above). Mapped memory is initialised
        // (R3), and an `AtomicU64` has the layout of its eight bytes. The reference lives no longer
        // than `self`, which keeps the mapping (R1).
        unsafe { &*self.at(offset).cast::<AtomicU64>() }
    }

    /// The `count` words from `offset` on.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8 or the range leaves the region (M1).
    #[must_use]
    #[inline]
    pub fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        self.check_words(offset, count);
        // SAFETY: as for `word`, for each of the `count` words.
        unsafe { core::slice::from_raw_parts(self.at(offset).cast(), count) }
    }

    /// The cache line of eight words at `offset`.
    ///
    /// # Panics
    /// When `offset` is no multiple of 64 or lies behind the end (M1).
    #[must_use]
    #[inline(always)]
    pub fn line(&self, offset: u64) -> &[AtomicU64; 8] {
        if !(offset.is_multiple_of(CACHE_LINE_BYTES) && offset < self.len) {
            no_line(offset, self.len);
        }
        // SAFETY: aligned, and inside because `len` is a multiple of 64 (R2); else as for `word`.
        unsafe { &*self.at(offset).cast::<[AtomicU64; 8]>() }
    }

    /// The `len` bytes from `offset` on, to be read in place.
    ///
    /// # Panics
    /// When the range leaves the region (M1).
    ///
    /// # Safety
    /// As long as the slice lives, no thread of this process or another one writes or discards any
    /// of these bytes, not through words either.
    #[must_use]
    #[inline]
    pub unsafe fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        self.check_bytes(offset, len);
        // SAFETY: inside the mapping, initialised (R3); the caller keeps writers away.
        unsafe { core::slice::from_raw_parts(self.at(offset).cast(), len) }
    }

    /// [`Self::bytes`] that lie in one granule ([`REGION_GRANULE_BYTES`]). A caller that has
    /// checked this saves a check here.
    ///
    /// # Panics
    /// When the range leaves the region or its granule (M1).
    ///
    /// # Safety
    /// As of [`Self::bytes`].
    #[must_use]
    #[inline(always)]
    pub unsafe fn bytes_in_granule(&self, offset: u64, len: usize) -> &[u8] {
        self.check_in_granule(offset, len);
        // SAFETY: the region is whole granules (R2), so all of the granule of `offset` is inside
        // the mapping. It is initialised (R3), and the caller keeps writers away.
        unsafe { core::slice::from_raw_parts(self.at(offset).cast(), len) }
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// When the range leaves the region (M1).
    ///
    /// # Safety
    /// During the call no other thread reads or writes any of the written bytes, and no slice of
    /// [`Region::bytes`] covers one of them. A later reader learns of them through some
    /// release/acquire pair.
    #[inline]
    pub unsafe fn write(&self, offset: u64, data: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.write_by(CopyMethod::Library, offset, data) }
    }

    /// [`Self::write`] by the given method.
    ///
    /// # Panics
    /// As of [`Self::write`].
    ///
    /// # Safety
    /// As of [`Self::write`].
    #[inline]
    pub unsafe fn write_by(&self, method: CopyMethod, offset: u64, data: &[u8]) {
        self.check_bytes(offset, data.len());
        let to = self.at(offset).cast::<u8>();
        // SAFETY: the target is inside the mapping; `data` cannot overlap it, because the caller
        // promises that no slice covers it.
        unsafe { method.copy(data, to) }
    }

    /// The `len` bytes from `offset` on, which lie in one granule, to be written.
    ///
    /// # Panics
    /// When the range leaves the region or its granule (M1).
    ///
    /// # Safety
    /// As of [`Self::write`], as long as the result lives.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // as the caller promises, nobody else has these bytes
    pub unsafe fn room_in_granule(&self, offset: u64, len: usize) -> &mut [u8] {
        self.check_in_granule(offset, len);
        // SAFETY: inside the mapping, as in `bytes_in_granule`; initialised (R3). The caller keeps
        // all others away.
        unsafe { core::slice::from_raw_parts_mut(self.at(offset).cast(), len) }
    }

    /// The `len` bytes from `offset` on, which lie in one granule. Others may read and overwrite
    /// them at the same time.
    ///
    /// # Panics
    /// When the range leaves the region or its granule (M1).
    #[must_use]
    #[inline(always)]
    pub fn racing_in_granule(&self, offset: u64, len: usize) -> RacingBytes<'_> {
        self.check_in_granule(offset, len);
        // SAFETY: as in `bytes_in_granule`; the mapping lives as long as the borrow of `self` (R1).
        unsafe { RacingBytes::new(self.base.add(to_usize(offset)), len) }
    }

    /// Gives the pages of `len` bytes from `offset` on back to the system. They read as zero from
    /// now on, and cost a page fault when touched again. In a region for readers they have to be
    /// [allocated](Self::allocate) before they are written again (R4).
    ///
    /// # Errors
    /// [`RegionError::AdviceFailed`]: the bytes are unchanged; retrying is harmless. Always so where
    /// the region gives nothing back ([`Self::gives_back`]).
    ///
    /// # Panics
    /// When the range leaves the region or its borders are no multiples of
    /// [`REGION_GRANULE_BYTES`].
    ///
    /// # Safety
    /// As for [`Region::write`]: it is a write of zeroes.
    pub unsafe fn discard(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        self.check_granules(offset, len);
        let done = match &self.memfd {
            // SAFETY: our own mapping (R1, checked above); the caller allows the bytes to change.
            None => unsafe {
                rustix::mm::madvise(self.at(offset), to_usize(len), Advice::LinuxDontNeed)
            },
            Some(_) if !self.gives_back() => Err(Errno::NOTSUP),
            Some(file) => punch(file, offset, len),
        };
        done.map_err(|errno| advice_failed("discard", offset, len, errno))
    }

    /// Asks for pages for `len` bytes from `offset` on, where the region is one for readers (R4).
    /// Memory of other kinds needs none: it has its pages when it is touched. The content stays the
    /// same.
    ///
    /// # Errors
    /// [`RegionError::AdviceFailed`]: the system has no memory. Some of the bytes may have pages
    /// now. Retryable once there is memory.
    ///
    /// # Panics
    /// When the range leaves the region or its borders are no multiples of
    /// [`REGION_GRANULE_BYTES`].
    pub fn allocate(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        match (&self.for_readers, &self.memfd) {
            (Some(readers), Some(file)) => {
                self.fetch(file.as_fd(), offset, len)?;
                let blocks = readers.huge.take(offset..offset + len);
                blocks.for_each(|block| self.join(block));
                Ok(())
            }
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Asks the system to make a huge page of the block that begins there, some of whose bytes have
    /// pages. The others get theirs by that, of zeroes.
    fn join(&self, block: u64) {
        assert!(block + HUGE_PAGE_BYTES <= self.len, "M1: block {block}");
        let len = to_usize(HUGE_PAGE_BYTES);
        // SAFETY: our own mapping (R1, checked above); it changes no content.
        let _works_without = unsafe { libc::madvise(self.at(block), len, MADV_COLLAPSE) };
    }

    fn fetch(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), RegionError> {
        self.check_granules(offset, len);
        // SAFETY: our own mapping (R1, checked above); populating changes no content. A page that
        // is missing is an error of this call, not a bus error.
        let done = unsafe {
            rustix::mm::madvise(self.at(offset), to_usize(len), Advice::LinuxPopulateWrite)
        };
        let done = match done {
            // Older than Linux 5.14: the pages come to the file, and by a fault to the mapping.
            Err(Errno::INVAL) => rustix::io::retry_on_intr(|| {
                rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len)
            }),
            done => done,
        };
        done.map_err(|errno| advice_failed("allocate", offset, len, errno))
    }

    /// Gives the system's page of `offset` back; its bytes read as zero from now on. Nothing
    /// happens in a memory file, where pages are larger than [`REGION_GRANULE_BYTES`], or where the
    /// system refuses.
    ///
    /// # Panics
    /// When `offset` lies behind the end (M1).
    ///
    /// # Safety
    /// As for [`Region::write`]: it is a write of zeroes, to all of the page.
    pub(crate) unsafe fn discard_page(&self, offset: u64) {
        let page = page_bytes();
        self.check_bytes(offset, 1);
        if page > REGION_GRANULE_BYTES || self.memfd.is_some() {
            return;
        }
        // SAFETY: our own mapping (R1), in whole pages because a granule is whole pages (R2). The
        // caller allows the bytes to change.
        let done = unsafe {
            let first = self.at(offset - offset % page);
            rustix::mm::madvise(first, to_usize(page), Advice::LinuxDontNeed)
        };
        // If the system refuses, the page stays resident.
        let _stays_resident = done;
    }

    /// Backs `len` bytes from `offset` on with pages now, so that their first use causes no fault.
    /// The content stays the same.
    ///
    /// # Errors
    /// [`RegionError::AdviceFailed`]: too little memory, or Linux older than 5.14. Harmless: the
    /// pages come with their first use.
    ///
    /// # Panics
    /// When the range leaves the region or its borders are no multiples of
    /// [`REGION_GRANULE_BYTES`].
    pub fn populate(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        self.check_granules(offset, len);
        // SAFETY: our own mapping (R1, checked above); populating changes no content.
        unsafe { rustix::mm::madvise(self.at(offset), to_usize(len), Advice::LinuxPopulateWrite) }
            .map_err(|errno| advice_failed("populate", offset, len, errno))
    }

    /// Asks the processor to bring the cache line of `offset` near. Never faults, whatever the
    /// offset.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has SSE. A prefetch changes no content, and does nothing
        // where nothing is mapped.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line = self.base.as_ptr().wrapping_add(offset as usize);
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
    }

    /// The address of `offset`, which may be at most `len`.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> *mut c_void {
        debug_assert!(offset <= self.len, "M1: offset {offset} outside");
        // SAFETY: every caller checked `offset <= len`, and `len` bytes are mapped (R1).
        unsafe { self.base.as_ptr().add(to_usize(offset)).cast() }
    }

    #[inline]
    fn check_words(&self, offset: u64, count: usize) {
        let fits = offset <= self.len && count as u64 <= (self.len - offset) / 8;
        if !(offset.is_multiple_of(8) && fits) {
            no_words(offset, count, self.len);
        }
    }

    #[inline(always)]
    fn check_bytes(&self, offset: u64, len: usize) {
        if !(offset <= self.len && len as u64 <= self.len - offset) {
            no_bytes(offset, len, self.len);
        }
    }

    #[inline(always)]
    fn check_in_granule(&self, offset: u64, len: usize) {
        let left = REGION_GRANULE_BYTES - offset % REGION_GRANULE_BYTES;
        if !(offset < self.len && len as u64 <= left) {
            no_bytes_in_granule(offset, len, self.len);
        }
    }

    pub(crate) fn check_granules(&self, offset: u64, len: u64) {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "M1: no {len} bytes at offset {offset} of a region of {} bytes",
            self.len
        );
        assert!(
            offset.is_multiple_of(REGION_GRANULE_BYTES) && len.is_multiple_of(REGION_GRANULE_BYTES),
            "{len} bytes at offset {offset} are no whole granules of {REGION_GRANULE_BYTES} bytes"
        );
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let (Some(readers), Some(file)) = (&self.for_readers, &self.memfd)
            && readers.gives_back
        {
            // A reader that keeps its mapping keeps no memory. If the system refuses, it does.
            let _kept = punch(file, 0, self.len);
        }
        // SAFETY: the mapping is ours (R1), and every reference into it borrowed `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at(0), to_usize(self.len)) };
        debug_assert!(
            unmapped.is_ok(),
            "munmap of a whole own mapping: {unmapped:?}"
        );
    }
}

/// Whether the system has no more memory than it has promised. Also if it does not tell.
fn is_promised_strictly() -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut how = [0; 1];
    let read = rustix::fs::open(OVERCOMMIT_PATH, flags, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut how));
    read != Ok(1) || how == *b"2"
}

fn punch(file: &OwnedFd, offset: u64, len: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, len))
}

fn round_len(len: u64) -> Result<u64, RegionError> {
    if len == 0 || len > REGION_LEN_MAX {
        return Err(RegionError::BadLength { len });
    }
    Ok(len.next_multiple_of(REGION_GRANULE_BYTES))
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("regions exist on 64-bit machines only")
}

// The panics of accesses that every operation makes. They take values and are out of line:
// formatting a number in place would make the caller keep it in memory.

#[cold]
#[inline(never)]
#[track_caller]
fn no_line(offset: u64, len: u64) -> ! {
    panic!("M1: no cache line at offset {offset} of a region of {len} bytes")
}

#[cold]
#[inline(never)]
#[track_caller]
fn no_words(offset: u64, count: usize, len: u64) -> ! {
    panic!("M1: no {count} words at offset {offset} of a region of {len} bytes")
}

#[cold]
#[inline(never)]
#[track_caller]
fn no_bytes(offset: u64, bytes: usize, len: u64) -> ! {
    panic!("M1: no {bytes} bytes at offset {offset} of a region of {len} bytes")
}

#[cold]
#[inline(never)]
#[track_caller]
fn no_bytes_in_granule(offset: u64, bytes: usize, len: u64) -> ! {
    panic!("M1: no {bytes} bytes in the granule at offset {offset} of a region of {len} bytes")
}

fn advice_failed(what: &'static str, offset: u64, len: u64, e: Errno) -> RegionError {
    RegionError::AdviceFailed {
        what,
        offset,
        len,
        source: e.into(),
    }
}

/// Reserves `len` bytes of inaccessible address space starting at a multiple of
/// [`HUGE_PAGE_BYTES`]: reserves one huge page more and gives the ends back.
fn reserve_aligned(len: usize) -> Result<NonNull<u8>, Errno> {
    let huge = to_usize(HUGE_PAGE_BYTES);
    let whole = len + huge;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address the kernel chooses disturbs nothing.
    let start = unsafe {
        rustix::mm::mmap_anonymous(core::ptr::null_mut(), whole, ProtFlags::empty(), flags)?
    };
    let before = start.align_offset(huge);
    let after = whole - before - len;
    // SAFETY: both ends lie in the mapping made above, which is unknown elsewhere. `before` and
    // `after` are multiples of the page size, because `start`, `len` and `huge` are.
    unsafe {
        if before > 0 {
            rustix::mm::munmap(start, before)?;
        }
        let base = start.byte_add(before);
        if after > 0 {
            rustix::mm::munmap(base.byte_add(len), after)?;
        }
        Ok(NonNull::new(base.cast()).expect("the kernel maps nothing at address zero"))
    }
}

#[cfg(test)]
mod tests;
