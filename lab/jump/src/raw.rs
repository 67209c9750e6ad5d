//! Mappings that a program makes by itself, without crate `spacejmp`: what the experiments compare
//! spans with. And the processor's clock. All `unsafe` of this crate but for the promise of
//! attaching is here.
//!
//! Invariants
//! - RAW-1: a [`View`] borrows its [`Mapping`], and mappings that move have no views meanwhile.

use crate::error::{JumpError, Result};
use core::ffi::c_void;
use core::sync::atomic::AtomicU64;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Parking places are multiples of this, so that page tables of whole units move at once.
const UNIT_BYTES: usize = 1 << 30;

fn failed(doing: &'static str) -> impl Fn(Errno) -> JumpError {
    move |errno| JumpError::system(doing, errno)
}

/// How the pages of a mapping come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// When they are touched.
    Lazy,
    /// At once.
    Populated,
}

/// Memory that is mapped until drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    place: *mut c_void,
    bytes: usize,
}

impl Mapping {
    /// `bytes` of a file from `offset` on, shared with all others who map it, for writing.
    ///
    /// # Errors
    /// The system's.
    #[allow(unsafe_code)] // a mapping where nothing lies
    pub(crate) fn of_file(
        file: impl AsFd,
        offset: u64,
        bytes: usize,
        pages: Pages,
    ) -> Result<Self> {
        let flags = match pages {
            Pages::Lazy => MapFlags::SHARED,
            Pages::Populated => MapFlags::SHARED | MapFlags::POPULATE,
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses addresses where nothing lies.
        let place = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                bytes,
                protection,
                flags,
                file,
                offset,
            )
        };
        let place = place.map_err(failed("map a file"))?;
        Ok(Self { place, bytes })
    }

    /// Memory of this process.
    ///
    /// # Errors
    /// The system's.
    #[allow(unsafe_code)] // a mapping where nothing lies
    pub(crate) fn own(bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE;
        // SAFETY: the kernel chooses addresses where nothing lies.
        let place =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, protection, flags) };
        let place = place.map_err(failed("map memory"))?;
        let mapping = Self { place, bytes };
        // Small pages, as spans have them. A kernel without huge ones refuses.
        // SAFETY: the range is of this mapping, and advice changes no content.
        let _refused = unsafe { rustix::mm::madvise(place, bytes, Advice::LinuxNoHugepage) };
        Ok(mapping)
    }

    /// Its words, which others may change at any time.
    #[allow(unsafe_code)] // a slice of the mapping
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the range is mapped until drop, and aligned. Its pages are those of a file that
        // nobody cuts, or this process's own. Atomics may change under others.
        unsafe { core::slice::from_raw_parts(self.place.cast(), self.bytes / 8) }
    }

    /// Its bytes.
    ///
    /// # Safety
    /// Nobody changes the file as long as the mapping lives.
    #[allow(unsafe_code)] // the caller's promise
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped until drop; nobody changes it, says the caller.
        unsafe { core::slice::from_raw_parts(self.place.cast(), self.bytes) }
    }

    /// Takes the right to write away and gives it back: the processor has to forget what it knows
    /// of these pages. Of more than 33 it forgets everything.
    ///
    /// # Errors
    /// The system's.
    #[allow(unsafe_code)] // changes rights
    pub(crate) fn flip_rights(&self) -> Result<()> {
        for flags in [
            MprotectFlags::READ,
            MprotectFlags::READ | MprotectFlags::WRITE,
        ] {
            // SAFETY: the range is of this mapping, and nobody writes to it meanwhile.
            let done = unsafe { rustix::mm::mprotect(self.place, self.bytes, flags) };
            done.map_err(failed("change rights"))?;
        }
        Ok(())
    }

    /// Unmaps it now.
    pub(crate) fn unmap(self) {
        drop(self);
    }
}

impl Drop for Mapping {
    #[allow(unsafe_code)] // unmaps
    fn drop(&mut self) {
        // SAFETY: the range is of this mapping, and all views have ended with its borrow.
        let done = unsafe { rustix::mm::munmap(self.place, self.bytes) };
        debug_assert!(done.is_ok(), "munmap of an own mapping: {done:?}");
    }
}

/// One window of addresses, and several files that come there in turn, by moving their page tables.
/// This is what crate `spacejmp` does for heaps with the same addresses.
#[derive(Debug)]
pub(crate) struct Turning {
    /// The window, and behind it a parking place for each file.
    all: Mapping,
    first: usize,
    /// Addresses from one place to the next.
    step: usize,
    bytes: usize,
    here: Option<usize>,
    files: usize,
}

impl Turning {
    /// Maps `bytes` of each file from `offset` on.
    ///
    /// # Errors
    /// The system's.
    #[allow(unsafe_code)] // mappings in a range of its own
    pub(crate) fn new<F: AsFd>(files: &[F], offset: u64, bytes: usize) -> Result<Self> {
        let step = bytes.next_multiple_of(UNIT_BYTES);
        let len = step * (files.len() + 1) + UNIT_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let nothing = ProtFlags::empty();
        // SAFETY: the kernel chooses addresses where nothing lies.
        let place =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, nothing, flags) };
        let place = place.map_err(failed("reserve addresses"))?;
        let turning = Self {
            all: Mapping { place, bytes: len },
            first: place.addr().next_multiple_of(UNIT_BYTES),
            step,
            bytes,
            here: None,
            files: files.len(),
        };
        for (number, file) in files.iter().enumerate() {
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let at = turning.place(number + 1);
            // SAFETY: the range lies in `all`, which has no views yet.
            let done = unsafe { rustix::mm::mmap(at, bytes, protection, flags, file, offset) };
            done.map_err(failed("map a file"))?;
        }
        Ok(turning)
    }

    fn place(&self, number: usize) -> *mut c_void {
        let skip = self.first + number * self.step - self.all.place.addr();
        self.all.place.wrapping_byte_add(skip)
    }

    /// Brings a file into the window, and gives its words there.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// There is no file of this number.
    #[allow(unsafe_code)] // a slice of the mapping
    pub(crate) fn bring(&mut self, number: usize) -> Result<&[AtomicU64]> {
        assert!(number < self.files, "RAW-1: no file {number}");
        if self.here != Some(number) {
            if let Some(old) = self.here.take() {
                self.shift(0, old + 1)?;
            }
            self.shift(number + 1, 0)?;
            self.here = Some(number);
        }
        // SAFETY: the file is mapped in the window, and stays there as long as this borrow. Atomics
        // may change under others.
        Ok(unsafe { core::slice::from_raw_parts(self.place(0).cast(), self.bytes / 8) })
    }

    #[allow(unsafe_code)] // moves a mapping
    fn shift(&self, from: usize, to: usize) -> Result<()> {
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        let (from, to) = (self.place(from), self.place(to));
        // SAFETY: both ranges lie in `all`. `bring` borrows this value alone, so that no slice of
        // the window is there (RAW-1).
        let done = unsafe { rustix::mm::mremap_fixed(from, self.bytes, self.bytes, flags, to) };
        done.map(drop).map_err(failed("move a mapping"))
    }
}

/// The processor's clock, behind all loads before it and in front of all behind it.
#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)] // instructions
pub(crate) fn ticks() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every processor with 64 bits has both instructions.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Nanoseconds, where no cheaper clock is known.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    // shows: RAW-1
    #[test]
    fn files_take_turns_at_one_window() {
        let file = |number: u64| {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(2 << 20).expect("a length");
            let mapping = Mapping::of_file(&file, 0, 2 << 20, Pages::Lazy).expect("mapped");
            mapping.words()[1000].store(number, Relaxed);
            file
        };
        let files = [file(7), file(8), file(9)];
        let mut turning = Turning::new(&files, 0, 2 << 20).expect("mapped");
        for _ in 0..3 {
            for (number, word) in [(2, 9), (0, 7), (0, 7), (1, 8)] {
                let words = turning.bring(number).expect("moved");
                assert_eq!(words[1000].load(Relaxed), word);
                words[5].fetch_add(1, Relaxed);
            }
        }
        let first = Mapping::of_file(&files[0], 0, 2 << 20, Pages::Populated).expect("mapped");
        assert_eq!(first.words()[5].load(Relaxed), 6);
    }

    #[test]
    fn own_memory_keeps_its_content_when_its_rights_change() {
        let own = Mapping::own(64 * PAGE_BYTES).expect("memory");
        own.words()[100].store(3, Relaxed);
        own.flip_rights().expect("changed");
        assert_eq!(own.words()[100].load(Relaxed), 3);
        assert!(ticks() <= ticks());
    }
}
