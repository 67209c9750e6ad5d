//! The heap of the C library, which all small and passing memory of a process comes from.
//!
//! The library keeps what is freed, for later. After a burst of large buffers that may be most of
//! what a process holds.

/// Freed bytes at the end of a part of the heap that go back to the system at once. A buffer of
/// this size or more is a mapping of its own, which ends with it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_AT_END_MAX: core::ffi::c_int = 4 << 20;

/// Bounds what the heap keeps at the end of each of its parts, for the life of the process. glibc
/// raises this bound to tens of mebibytes when large buffers are freed, and [`give_back_heap`] does
/// not reach the ends of the parts that threads have. Whether the bound holds: not where the C
/// library is another one than glibc.
pub fn bound_heap() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the calls take no pointers and set numbers under the library's own lock. Any
        // thread may do this at any time.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_AT_END_MAX) == 1
                && libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_AT_END_MAX) == 1
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}

/// Gives the free pages of the heap back to the system. Whether there were any. Other threads that
/// allocate wait for a part of it, so it is for moments when much was freed. Does nothing where the
/// C library is another one than glibc.
pub fn give_back_heap() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the call takes no pointers. It gives back pages that the library itself knows to
        // be free, under its own locks.
        unsafe { libc::malloc_trim(0) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}
