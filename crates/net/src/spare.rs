//! Buffers that connections lend each other.
//!
//! A connection holds a buffer only while bytes are in it, so thousands of idle ones cost no buffer
//! memory. A busy one gets the same warm buffer again.

use bytes::BytesMut;
use core::cell::RefCell;

/// Size of a fresh buffer: one read takes at most this many bytes from the kernel.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Larger buffers are given back to the allocator.
const KEPT_BYTES_MAX: usize = 4 * BUFFER_BYTES;
/// Buffers kept per thread. A thread uses few at a time; the rest waits in slow connections.
const KEPT_MAX: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for at least [`BUFFER_BYTES`].
pub(crate) fn take() -> BytesMut {
    SPARE
        .with(|spare| spare.borrow_mut().pop())
        .unwrap_or_else(|| BytesMut::with_capacity(BUFFER_BYTES))
}

/// Takes back `buffer`, whose content is no longer wanted.
pub(crate) fn give(mut buffer: BytesMut) {
    buffer.clear();
    // Fails, rightly, when parts of it were given away and still live.
    if buffer.try_reclaim(BUFFER_BYTES) && buffer.capacity() <= KEPT_BYTES_MAX {
        SPARE.with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEPT_MAX {
                spare.push(buffer);
            }
        });
    }
}
