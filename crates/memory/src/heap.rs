//! The heap of the C library, which all small and passing memory of a process comes from.
//!
//! The library keeps what is freed, for later. After a burst of large buffers that may be most of
//! what a process holds.

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
