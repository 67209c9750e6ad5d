//! The allocator: that of the system, which counts.

use crate::places;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Initialized as a constant and without a destructor: it may be used in an allocator.
    static MADE: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator. It counts what each thread allocates. To give a block another size
/// counts as one allocation, and to free one as none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Allocations that the calling thread has made so far. Zero for ever where [`Counting`] is not the
/// global allocator.
#[must_use]
pub fn made_here() -> u64 {
    MADE.get()
}

fn count() {
    MADE.set(MADE.get() + 1);
    places::note();
}

// SAFETY: every call goes to the system's allocator as it came, and nothing here unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the block is one of the system's allocator, for all are. The rest is the
        // caller's.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(block, layout) }
    }
}
