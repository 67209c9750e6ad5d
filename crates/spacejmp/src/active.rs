//! The heaps that this thread changes, so that a value of a heap is freed when it is dropped.
//!
//! A change of a span is a call on one thread, and the values of its heap cannot leave it. So a
//! value that is dropped belongs to a heap in the list.

use crate::heap::RawHeap;
use core::cell::Cell;
use core::ptr::NonNull;

/// A heap in the list of its thread; it lies on the stack.
struct Active {
    heap: RawHeap,
    outer: *const Active,
}

thread_local! {
    static INNERMOST: Cell<*const Active> = const { Cell::new(core::ptr::null()) };
}

/// Takes the innermost heap out of the list.
struct Leave(*const Active);

impl Drop for Leave {
    fn drop(&mut self) {
        INNERMOST.set(self.0);
    }
}

/// Calls `change` while `heap` is in the list.
pub(crate) fn during<R>(heap: RawHeap, change: impl FnOnce() -> R) -> R {
    let active = Active {
        heap,
        outer: INNERMOST.get(),
    };
    let _leave = Leave(active.outer);
    INNERMOST.set(&raw const active);
    change()
}

/// Gives the block back to its heap.
///
/// # Safety
/// It is a block of a heap that this thread changes, and nothing uses it.
#[inline]
#[allow(unsafe_code)] // a list on the stack, and mapped memory
pub(crate) unsafe fn free(place: NonNull<u8>) {
    let mut at = INNERMOST.get();
    // SAFETY: `during` keeps each `Active` of the list alive until it is out of the list.
    while let Some(active) = unsafe { at.as_ref() } {
        if active.heap.holds(place) {
            // SAFETY: the caller's promise.
            unsafe { active.heap.free(place) };
            return;
        }
        at = active.outer;
    }
    debug_assert!(false, "a block of no heap that this thread changes");
}
