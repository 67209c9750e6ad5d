//! Memory that another process owns, mapped to be read.
//!
//! Owns a read-only mapping of a sealed memory file ([`Region::for_readers`]). The owner changes
//! any byte at any time. So no slice of the bytes is given out: words are loaded, bytes are copied.
//! Every offset may come from that memory, so an access outside of it is an answer, not a panic.
//!
//! Invariants:
//! - VIEW-1: the file is as long as the mapping and can shrink no more, so that no access ends in
//!   a bus error. It is mapped only with the seals of a file for readers.
//!
//! Threads: any. A forked child may use it as well: nothing in it is ever written.

use crate::racing_bytes::RacingBytes;
use crate::region::{CACHE_LINE_BYTES, READER_SEALS, REGION_GRANULE_BYTES, Region};
use crate::shared::{SharedMemoryError, TMPFS_MAGIC};
use core::sync::atomic::{Ordering, fence};
use rustix::fd::BorrowedFd;
use std::io;

/// See the module.
#[derive(Debug)]
pub struct ReadRegion(Region);

impl ReadRegion {
    /// Maps the file of [`Region::for_readers`] that another process, or this one, has made with
    /// the same length.
    ///
    /// # Errors
    /// [`SharedMemoryError::Unfit`] if it is another file, and [`SharedMemoryError::Refused`].
    pub fn open(file: BorrowedFd<'_>, len: u64) -> Result<Self, SharedMemoryError> {
        let unfit = |what| SharedMemoryError::Unfit(what);
        if len == 0 || !len.is_multiple_of(REGION_GRANULE_BYTES) {
            return Err(unfit("memory of no whole granules"));
        }
        let place = rustix::fs::fstatfs(file).map_err(|_| unfit("no file"))?;
        if u64::try_from(place.f_type) != Ok(TMPFS_MAGIC) {
            return Err(unfit("a file that lies elsewhere than in memory"));
        }
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| unfit("a file without seals"))?;
        if !seals.contains(READER_SEALS) {
            return Err(unfit("a file that others may change"));
        }
        // Behind the seals, so that the length stays.
        let status = rustix::fs::fstat(file).map_err(|_| unfit("no file"))?;
        if u64::try_from(status.st_size) != Ok(len) {
            return Err(unfit("a file of another length"));
        }
        let region = Region::read_only(file, len).map_err(|source| SharedMemoryError::Refused {
            len,
            source: io::Error::other(source),
        })?;
        Ok(Self(region))
    }

    /// Bytes of the memory.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Always false: there is at least one granule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The word at `offset`, without order to other memory; `None` outside, or between words.
    #[must_use]
    #[inline(always)]
    pub fn peek(&self, offset: u64) -> Option<u64> {
        // Relaxed: the language allows no other load of memory that is mapped to be read.
        let is_there = offset.is_multiple_of(8) && offset < self.0.len();
        is_there.then(|| self.0.word(offset).load(Ordering::Relaxed))
    }

    /// [`Self::peek`]; loads that follow stay behind it.
    #[must_use]
    #[inline(always)]
    pub fn load(&self, offset: u64) -> Option<u64> {
        let word = self.peek(offset);
        fence(Ordering::Acquire);
        word
    }

    /// The eight words of the cache line at `offset`, each loaded once; loads that follow stay
    /// behind them. `None` outside, or between lines.
    #[must_use]
    #[inline(always)]
    pub fn load_line(&self, offset: u64) -> Option<[u64; 8]> {
        if !(offset.is_multiple_of(CACHE_LINE_BYTES) && offset < self.0.len()) {
            return None;
        }
        let line = self.0.line(offset);
        let words = core::array::from_fn(|at| line[at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        Some(words)
    }

    /// The `len` bytes from `offset` on; `None` if they are not in one granule of the memory.
    #[must_use]
    #[inline(always)]
    pub fn bytes(&self, offset: u64, len: usize) -> Option<RacingBytes<'_>> {
        let left = REGION_GRANULE_BYTES - offset % REGION_GRANULE_BYTES;
        let is_there = offset < self.0.len() && len as u64 <= left;
        is_there.then(|| self.0.racing_in_granule(offset, len))
    }

    /// Asks the processor to bring the cache line of `offset` near. Never faults.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64) {
        self.0.prefetch(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

    fn pair() -> (Region, ReadRegion) {
        let region = Region::for_readers("pluvio-test", 2 * REGION_GRANULE_BYTES, false).unwrap();
        let view = ReadRegion::open(region.memfd().unwrap(), region.len()).unwrap();
        (region, view)
    }

    #[test]
    fn what_the_owner_stores_is_read_and_nothing_outside_is() {
        let (region, view) = pair();
        region.word(64).store(7, Ordering::Relaxed);
        assert_eq!((view.peek(64), view.load(64)), (Some(7), Some(7)));
        assert_eq!(view.load_line(64), Some([7, 0, 0, 0, 0, 0, 0, 0]));
        for offset in [1, 68, view.len(), u64::MAX, u64::MAX - 7] {
            assert_eq!(view.peek(offset), None);
            assert_eq!(view.load_line(offset), None);
        }
        assert!(view.bytes(REGION_GRANULE_BYTES - 1, 2).is_none());
        assert!(view.bytes(view.len(), 0).is_none() && view.bytes(u64::MAX, 1).is_none());
        let mut byte = [0];
        view.bytes(64, 1).unwrap().load(&mut byte);
        assert_eq!(byte, [7]);
    }

    // shows: VIEW-1
    #[test]
    fn a_file_that_others_may_change_is_not_mapped() {
        let open = Region::with_memfd("pluvio-test", REGION_GRANULE_BYTES).unwrap();
        assert!(ReadRegion::open(open.memfd().unwrap(), open.len()).is_err());
        let (region, _) = pair();
        let file = region.memfd().unwrap();
        assert!(
            ReadRegion::open(file, REGION_GRANULE_BYTES).is_err(),
            "another length"
        );
        assert!(ReadRegion::open(file, 0).is_err() && ReadRegion::open(file, 1).is_err());
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY,
            rustix::fs::Mode::empty(),
        );
        assert!(ReadRegion::open(null.unwrap().as_fd(), REGION_GRANULE_BYTES).is_err());
    }

    fn resident(region: &Region) -> u64 {
        let status = rustix::fs::fstat(region.memfd().unwrap()).unwrap();
        u64::try_from(status.st_blocks).unwrap() * 512
    }

    // shows: R3, R4
    #[test]
    fn memory_goes_back_although_it_is_mapped_and_comes_again() {
        let (region, view) = pair();
        if !region.gives_back() {
            println!("skipped: vm.overcommit_memory is 2");
            return;
        }
        region.allocate(0, region.len()).unwrap();
        region.word(64).store(7, Ordering::Relaxed);
        region
            .word(REGION_GRANULE_BYTES)
            .store(8, Ordering::Relaxed);
        assert_eq!((view.load(64), resident(&region)), (Some(7), region.len()));
        // SAFETY: this thread alone uses the region.
        unsafe { region.discard(0, REGION_GRANULE_BYTES) }.unwrap();
        assert_eq!(resident(&region), REGION_GRANULE_BYTES);
        assert_eq!(view.load(REGION_GRANULE_BYTES), Some(8));
        assert_eq!(view.load(64), Some(0), "which makes a page");
        assert!(resident(&region) > REGION_GRANULE_BYTES);
        region.allocate(0, REGION_GRANULE_BYTES).unwrap();
        assert_eq!(resident(&region), region.len());
        region.word(64).store(9, Ordering::Relaxed);
        assert_eq!(view.load(64), Some(9));
    }

    #[test]
    fn a_reader_keeps_no_memory_of_an_owner_that_has_ended() {
        let (region, view) = pair();
        if !region.gives_back() {
            println!("skipped: vm.overcommit_memory is 2");
            return;
        }
        region.allocate(0, region.len()).unwrap();
        region.word(64).store(7, Ordering::Relaxed);
        let file = region.memfd().unwrap().try_clone_to_owned().unwrap();
        assert_eq!(view.load(64), Some(7));
        drop(region);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
        assert_eq!(view.load(64), Some(0));
    }

    #[test]
    fn a_forked_child_reads_on() {
        let (region, view) = pair();
        // SAFETY: the child loads words and ends, which is safe between fork and exec.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no process");
        if child == 0 {
            while view.load(0) != Some(8) {
                core::hint::spin_loop();
            }
            // SAFETY: ends this process, and runs nothing else in it.
            unsafe { libc::_exit(0) };
        }
        region.word(0).store(8, Ordering::Release);
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is ours.
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((ended, status), (child, 0));
    }

    /// Whether a process that has the file can open it anew after it has changed itself. The change
    /// makes system calls and nothing else.
    fn opens_anew(file: BorrowedFd<'_>, flags: i32, change: fn() -> bool) -> bool {
        const CHANGED_NOT: i32 = 2;
        let number = rustix::fd::AsRawFd::as_raw_fd(&file);
        let path = std::ffi::CString::new(format!("/proc/self/fd/{number}")).unwrap();
        // SAFETY: the child makes system calls and ends, which is safe between fork and exec.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no process");
        if child == 0 {
            // SAFETY: as above; the path was made before.
            unsafe {
                libc::_exit(match change() {
                    true => i32::from(libc::open(path.as_ptr(), flags) >= 0),
                    false => CHANGED_NOT,
                });
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        let code = libc::WEXITSTATUS(status);
        assert_ne!(code, CHANGED_NOT, "the process could not change itself");
        code != 0
    }

    /// Root's right to open everything is given up; others have none.
    fn gives_up_capabilities() -> bool {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, sets).is_ok()
    }

    const WAYS: [i32; 3] = [libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY];

    /// Whatever a process does that has the file: it can only read.
    #[test]
    fn nobody_who_has_the_file_can_write_it_or_change_its_length() {
        let (region, view) = pair();
        region.allocate(0, region.len()).unwrap();
        region.word(0).store(5, Ordering::Relaxed);
        let file = region.memfd().unwrap();
        for flags in WAYS {
            assert!(!opens_anew(file, flags, gives_up_capabilities), "{flags}");
        }
        rustix::fs::fchmod(file, rustix::fs::Mode::RUSR).unwrap();
        assert!(opens_anew(file, libc::O_RDONLY, gives_up_capabilities));
        rustix::fs::fchmod(file, rustix::fs::Mode::empty()).unwrap();
        assert!(rustix::fs::ftruncate(file, 0).is_err());
        assert!(rustix::io::pwrite(file, &[1], 0).is_err());
        assert!(rustix::fs::fcntl_add_seals(file, rustix::fs::SealFlags::WRITE).is_err());
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(file, punch, 0, REGION_GRANULE_BYTES).is_err());
        // SAFETY: a new mapping at an address the kernel chooses disturbs nothing.
        let writable = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        assert!(writable.is_err());
        // SAFETY: our own mapping; it is refused.
        let turned = unsafe {
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            rustix::mm::mprotect(view.0.at(0), 4096, flags)
        };
        assert!(turned.is_err());
        assert_eq!(view.peek(0), Some(5));
    }

    /// The rights of root, which alone becomes another user.
    mod needs_root {
        use super::*;

        /// The system then keeps `/proc/self` from it, but not from a process that was started by
        /// that user.
        fn becomes_another_user() -> bool {
            // SAFETY: it changes this process, a child that was forked for it.
            unsafe {
                libc::setgroups(0, core::ptr::null()) == 0
                    && libc::setgid(65_534) == 0
                    && libc::setuid(65_534) == 0
                    && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0
            }
        }

        #[test]
        fn another_user_who_has_the_file_cannot_open_it_anew() {
            let (region, _view) = pair();
            let file = region.memfd().unwrap();
            for flags in WAYS {
                assert!(!opens_anew(file, flags, becomes_another_user), "{flags}");
            }
            rustix::fs::fchmod(file, rustix::fs::Mode::ROTH).unwrap();
            assert!(opens_anew(file, libc::O_RDONLY, becomes_another_user));
        }
    }
}
