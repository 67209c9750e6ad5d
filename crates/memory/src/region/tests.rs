//! Words, bytes and pages of anonymous and of memfd regions, and what is refused.

use super::*;
use core::sync::atomic::Ordering;

fn both() -> [Region; 2] {
    [
        Region::anonymous(1 << 20, true).unwrap(),
        Region::with_memfd("pluvio-test", 1 << 20).unwrap(),
    ]
}

#[test]
fn words_and_bytes_are_the_same_memory() {
    for region in both() {
        region
            .word(64)
            .store(0x0807_0605_0403_0201, Ordering::Relaxed);
        // SAFETY: this thread alone uses the region.
        assert_eq!(unsafe { region.bytes(64, 8) }, [1, 2, 3, 4, 5, 6, 7, 8]);
        // SAFETY: as above; the slice is gone.
        unsafe { region.write(65, &[9]) };
        let line = region.line(64);
        assert_eq!(line[0].load(Ordering::Relaxed), 0x0807_0605_0403_0901);
        assert_eq!(region.words(region.len() - 16, 2).len(), 2);
    }
}

// shows: R3
#[test]
fn discarded_pages_read_as_zero_and_their_neighbours_stay() {
    for region in both() {
        let granule = REGION_GRANULE_BYTES;
        for at in 0..3 {
            region.word(at * granule).store(7, Ordering::Relaxed);
        }
        // SAFETY: this thread alone uses the region.
        unsafe { region.discard(granule, granule) }.unwrap();
        let at = |n: u64| region.word(n * granule).load(Ordering::Relaxed);
        assert_eq!((at(0), at(1), at(2)), (7, 0, 7));
    }
}

#[test]
fn a_large_reservation_costs_nothing_until_touched() {
    let region = Region::anonymous(1 << 40, false).unwrap();
    region.word((1 << 40) - 8).store(1, Ordering::Relaxed);
    assert_eq!(region.len(), 1 << 40);
}

#[test]
fn lengths_are_rounded_up_and_limited() {
    assert_eq!(
        Region::anonymous(1, false).unwrap().len(),
        REGION_GRANULE_BYTES
    );
    for len in [0, REGION_LEN_MAX + 1] {
        let refused = Region::anonymous(len, false);
        assert!(matches!(refused, Err(RegionError::BadLength { .. })));
    }
    let refused = Region::anonymous(REGION_LEN_MAX, false);
    assert!(matches!(refused, Err(RegionError::ReserveFailed { .. })));
    let refused = Region::with_memfd("a\0b", 1);
    assert!(matches!(refused, Err(RegionError::ReserveFailed { .. })));
}

#[test]
fn a_memfd_can_be_mapped_a_second_time() {
    let region = Region::with_memfd("pluvio-test", 1).unwrap();
    region.word(8).store(42, Ordering::Relaxed);
    let file = region.memfd().unwrap().try_clone_to_owned().unwrap();
    let second = Region::map(1, false, Some(file)).unwrap();
    assert_eq!(second.word(8).load(Ordering::Relaxed), 42);
    assert!(Region::anonymous(1, false).unwrap().memfd().is_none());
}

#[test]
fn huge_pages_are_refused_where_the_kernel_has_none() {
    let has_some = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    for region in both() {
        let asked = region.prefer_huge_pages(0, region.len());
        assert_eq!(asked.is_ok(), has_some, "{asked:?}");
    }
}

#[test]
fn populate_and_prefetch_change_nothing() {
    for region in both() {
        region.word(0).store(3, Ordering::Relaxed);
        if let Err(error) = region.populate(0, region.len()) {
            assert!(error.to_string().contains("populate"), "{error}");
        }
        region.prefetch(0);
        region.prefetch(u64::MAX);
        assert_eq!(region.word(0).load(Ordering::Relaxed), 3);
    }
}

#[test]
#[should_panic(expected = "no 2 words at offset 65528")]
fn words_behind_the_end_are_refused() {
    let region = Region::anonymous(1, false).unwrap();
    let _ = region.words(65528, 2);
}

#[test]
#[should_panic(expected = "no 18446744073709551615 bytes")]
fn a_byte_range_that_overflows_is_refused() {
    let region = Region::anonymous(1, false).unwrap();
    // SAFETY: refused before any access.
    let _ = unsafe { region.bytes(8, usize::MAX) };
}

/// A file in a memory file system of that many bytes; `None` without the right to make one.
fn file_in_small_memory(bytes: u64) -> Option<OwnedFd> {
    use std::os::fd::FromRawFd;
    let size = std::ffi::CString::new(bytes.to_string()).unwrap();
    let fd = |number: libc::c_long| {
        // SAFETY: the system has just given it to us, and to nobody else.
        (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(i32::try_from(number).unwrap()) })
    };
    // SAFETY: the calls read these strings alone. The mount is seen by nobody else, and goes with
    // the descriptors.
    unsafe {
        let context = fd(libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1))?;
        let number = context.as_raw_fd();
        let set = |command: u32, key: *const i8, value: *const i8| {
            libc::syscall(libc::SYS_fsconfig, number, command, key, value, 0) == 0
        };
        let (string, create) = (1, 6);
        let made = set(string, c"size".as_ptr(), size.as_ptr())
            && set(create, core::ptr::null(), core::ptr::null());
        let mount = fd(libc::syscall(libc::SYS_fsmount, number, 1, 0)).filter(|_| made)?;
        let flags = OFlags::RDWR | OFlags::TMPFILE;
        rustix::fs::openat(&mount, ".", flags, Mode::from_raw_mode(0o600)).ok()
    }
}

/// Without asking for pages the store would end this process by a bus error.
// shows: R4
#[test]
fn pages_that_the_system_does_not_have_are_refused_by_an_error() {
    let granules = 8;
    let Some(file) = file_in_small_memory(4 * REGION_GRANULE_BYTES) else {
        println!("skipped: no right to make a file system");
        return;
    };
    rustix::fs::ftruncate(&file, granules * REGION_GRANULE_BYTES).unwrap();
    let mut region = Region::of_file(file.as_fd(), granules * REGION_GRANULE_BYTES).unwrap();
    region.memfd = Some(file.try_clone().unwrap());
    region.for_readers = Some(ForReaders {
        file,
        gives_back: true,
        huge: HugeBlocks::none(region.len),
    });
    let allocate =
        |granule: u64| region.allocate(granule * REGION_GRANULE_BYTES, REGION_GRANULE_BYTES);
    let write = |granule: u64| {
        region
            .word(granule * REGION_GRANULE_BYTES + 65_528)
            .store(1, Ordering::Relaxed);
    };
    let mut had = Vec::new();
    for granule in 0..granules {
        match allocate(granule) {
            Ok(()) => {
                write(granule);
                had.push(granule);
            }
            Err(RegionError::AdviceFailed { what, .. }) => assert_eq!(what, "allocate"),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        (1..granules as usize).contains(&had.len()),
        "{had:?} were given"
    );
    // What goes back is there for others.
    for &granule in &had {
        // SAFETY: this thread alone uses the region.
        unsafe { region.discard(granule * REGION_GRANULE_BYTES, REGION_GRANULE_BYTES) }.unwrap();
    }
    allocate(granules - 1).unwrap();
    write(granules - 1);
}
