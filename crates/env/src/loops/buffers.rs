//! Large buffers that are used again.
//!
//! A fresh buffer costs the clearing of its pages and a page fault for every 4 KiB. That takes
//! longer than most of the work on its bytes.
//!
//! The process has one store of them. A user never sees the bytes that an earlier user left, so the
//! store is no state of a simulated process (ENV-2). Without the store everything would go the same
//! way, only slower.
//!
//! - BUF-1: the buffers in the store have at most [`KEPT_BYTES_MAX`] together.
//! - BUF-2: while a [`keep`]er runs, a buffer that lies unused from one of its looks to the next
//!   goes back to the allocator.

use crate::Clock;
use bytes::Bytes;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Smaller buffers are not kept: the allocator has them at hand.
pub const POOLED_BYTES_MIN: usize = 64 << 10;
/// Larger buffers are not kept. A segment of 8 MiB fits, and so do the messages made of it.
pub const POOLED_BYTES_MAX: usize = 16 << 20;
/// BUF-1: some reads of whole segments, and the sorted, sent and received copies made meanwhile.
pub const KEPT_BYTES_MAX: usize = 64 << 20;
/// Time between two looks (BUF-2): far longer than a buffer lies unused during a recovery.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Number of sizes from one power of two to the next. A buffer thus has at most a fourth more room
/// than its user asked for.
const STEPS: usize = 4;
/// All sizes of buffers.
const SIZES: usize = STEPS * (POOLED_BYTES_MAX / POOLED_BYTES_MIN).ilog2() as usize + 1;

static STORE: Mutex<Store> = Mutex::new(Store::new());
/// Signals that a buffer was put into the store.
static FILLED: Notify = Notify::const_new();

/// Bytes that are written and then perhaps shared ([`Self::freeze`]). The memory is used again in
/// the end.
#[derive(Default, Debug)]
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// An empty buffer with room for this many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        let Some(size) = size_for(bytes) else {
            return Self(Vec::with_capacity(bytes));
        };
        // Memory is allocated outside the lock, because the whole process shares it.
        let kept = lock(&STORE).take(size);
        let mut buffer = kept.unwrap_or_else(|| Vec::with_capacity(bytes_of(size)));
        buffer.clear();
        Self(buffer)
    }

    /// As [`Self::with_capacity`], but only from the store: nothing is allocated.
    #[must_use]
    pub fn recycled(bytes: usize) -> Option<Self> {
        let mut buffer = lock(&STORE).take(size_for(bytes)?)?;
        buffer.clear();
        Some(Self(buffer))
    }

    /// A buffer of this many bytes, to be overwritten. Their content is arbitrary.
    #[must_use]
    pub fn of_anything(bytes: usize) -> Self {
        let Some(size) = size_for(bytes) else {
            return Self(vec![0; bytes]);
        };
        // Bytes written by an earlier user need no clearing. The rest is cleared outside the lock.
        let kept = lock(&STORE).take(size);
        let mut buffer = kept.unwrap_or_else(|| vec![0; bytes_of(size)]);
        buffer.resize(bytes, 0);
        Self(buffer)
    }

    /// The bytes, to be shared. The memory is used again when the last share is gone.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        if self.0.capacity() < POOLED_BYTES_MIN {
            let mut this = self;
            return Bytes::from(core::mem::take(&mut this.0));
        }
        Bytes::from_owner(self)
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = core::mem::take(&mut self.0);
        if buffer.capacity() < POOLED_BYTES_MIN {
            return;
        }
        // A buffer that the store refuses is freed here, after the lock was released.
        let refused = lock(&STORE).put(buffer);
        if refused.is_none() {
            FILLED.notify_waiters();
        }
    }
}

/// Gives unused memory back (BUF-2). Runs as long as the process; with several keepers, memory goes
/// back earlier.
pub async fn keep(clock: Arc<dyn Clock>) {
    loop {
        // Made before the look, so that it hears of every later change.
        let filled = FILLED.notified();
        if kept_bytes() == 0 {
            filled.await;
        }
        clock.sleep(LOOK_PAUSE).await;
        let unused = lock(&STORE).take_unused();
        drop(unused);
    }
}

/// Bytes of all buffers in the store.
#[must_use]
pub fn kept_bytes() -> usize {
    lock(&STORE).bytes
}

fn lock(store: &Mutex<Store>) -> std::sync::MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The smallest size that has room; `None` when such buffers are not kept.
fn size_for(bytes: usize) -> Option<usize> {
    if !(POOLED_BYTES_MIN..=POOLED_BYTES_MAX).contains(&bytes) {
        return None;
    }
    let (doublings, step, beyond) = place(bytes);
    Some(STEPS * doublings + beyond.div_ceil(step))
}

/// The largest size that fits into this many bytes. At least [`POOLED_BYTES_MIN`] are needed.
fn size_within(bytes: usize) -> usize {
    let (doublings, step, beyond) = place(bytes);
    (STEPS * doublings + beyond / step).min(SIZES - 1)
}

/// The power of two below, the distance between its sizes, and the bytes beyond it.
fn place(bytes: usize) -> (usize, usize, usize) {
    let doublings = (bytes / POOLED_BYTES_MIN).ilog2() as usize;
    let power = POOLED_BYTES_MIN << doublings;
    (doublings, power / STEPS, bytes - power)
}

fn bytes_of(size: usize) -> usize {
    (POOLED_BYTES_MIN << (size / STEPS)) / STEPS * (STEPS + size % STEPS)
}

/// Buffers without a user.
struct Store {
    /// By size; the newest is taken first. Capacities are at least the size.
    free: [Vec<Vec<u8>>; SIZES],
    /// Their capacities.
    bytes: usize,
    /// The fewest of each size since the last look.
    fewest: [usize; SIZES],
}

impl Store {
    const fn new() -> Self {
        Self {
            free: [const { Vec::new() }; SIZES],
            bytes: 0,
            fewest: [0; SIZES],
        }
    }

    fn take(&mut self, size: usize) -> Option<Vec<u8>> {
        let buffer = self.free[size].pop()?;
        self.bytes -= buffer.capacity();
        self.fewest[size] = self.fewest[size].min(self.free[size].len());
        Some(buffer)
    }

    /// Gives the buffer back if the store has no room for it (BUF-1).
    fn put(&mut self, buffer: Vec<u8>) -> Option<Vec<u8>> {
        let capacity = buffer.capacity();
        if !(POOLED_BYTES_MIN..2 * POOLED_BYTES_MAX).contains(&capacity)
            || self.bytes + capacity > KEPT_BYTES_MAX
        {
            return Some(buffer);
        }
        self.bytes += capacity;
        // The buffer may have grown: it counts as the largest size that fits into it.
        let size = size_within(capacity);
        self.free[size].push(buffer);
        None
    }

    /// Takes out the buffers that were not used since the last call.
    fn take_unused(&mut self) -> Vec<Vec<u8>> {
        let mut unused = Vec::new();
        for (free, fewest) in self.free.iter_mut().zip(&mut self.fewest) {
            // The first ones have lain there longest.
            unused.extend(free.drain(..*fewest));
            *fewest = free.len();
        }
        self.bytes -= unused.iter().map(Vec::capacity).sum::<usize>();
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_buffer_is_used_again_and_its_bytes_are_not() {
        // A size that only this test uses, because the process shares the store.
        let mut first = Buffer::with_capacity(3 << 20);
        first.resize(3 << 20, 7);
        let place = first.as_ptr();
        let shared = first.freeze();
        let part = shared.slice(5..9);
        drop(shared);
        assert_eq!(&part[..], [7; 4]);
        let other = Buffer::with_capacity(3 << 20);
        assert_ne!(other.as_ptr(), place, "a part of it still lives");
        drop(part);
        let again = Buffer::with_capacity((3 << 20) - 5);
        assert!(again.is_empty());
        assert_eq!(again.as_ptr(), place);
        drop(again);
        let anything = Buffer::of_anything((3 << 20) - 1);
        assert_eq!(anything.as_ptr(), place);
        assert_eq!(anything.len(), (3 << 20) - 1);
    }

    #[test]
    fn the_store_is_bounded_and_takes_no_small_and_no_huge_ones() {
        let mut store = Store::new();
        let kept = |store: &mut Store, bytes| store.put(Vec::with_capacity(bytes)).is_none();
        assert!(!kept(&mut store, POOLED_BYTES_MIN - 1));
        assert!(!kept(&mut store, 2 * POOLED_BYTES_MAX));
        let places = KEPT_BYTES_MAX / POOLED_BYTES_MAX;
        for at in 0..2 * places {
            assert_eq!(kept(&mut store, POOLED_BYTES_MAX), at < places, "{at}");
        }
        assert_eq!(store.bytes, KEPT_BYTES_MAX, "BUF-1");
    }

    #[test]
    fn what_nobody_used_between_two_looks_goes_back() {
        let mut store = Store::new();
        for _ in 0..3 {
            store.put(Vec::with_capacity(POOLED_BYTES_MIN));
        }
        assert!(store.take_unused().is_empty(), "it has just come");
        let used = store.take(0).expect("there are three");
        let also = store.take(0).expect("two are left");
        store.put(used);
        store.put(also);
        assert_eq!(store.take_unused().len(), 1);
        assert_eq!(store.take_unused().len(), 2, "BUF-2");
        assert_eq!(store.bytes, 0);
        assert!(store.take(0).is_none());
    }

    #[test]
    fn a_buffer_that_grew_counts_as_what_it_became() {
        let mut store = Store::new();
        let grown = 2 * POOLED_BYTES_MIN + 1000;
        store.put(Vec::with_capacity(grown));
        assert!(
            store.take(STEPS + 1).is_none(),
            "it has no room for as much"
        );
        let buffer = store.take(STEPS).expect("it has room for two");
        assert_eq!(buffer.capacity(), grown);
        assert_eq!(store.bytes, 0);
    }

    #[test]
    fn every_size_has_room_and_little_more() {
        for bytes in (POOLED_BYTES_MIN..=POOLED_BYTES_MAX).step_by(1000) {
            let size = size_for(bytes).expect("such buffers are kept");
            let room = bytes_of(size);
            assert!(
                bytes <= room && room - bytes <= bytes / STEPS,
                "{bytes} {room}"
            );
            assert_eq!(size_within(room), size);
            assert_eq!(size_for(room), Some(size));
        }
        assert_eq!(bytes_of(SIZES - 1), POOLED_BYTES_MAX);
        assert_eq!(size_for(POOLED_BYTES_MAX), Some(SIZES - 1));
        assert_eq!(size_for(POOLED_BYTES_MAX + 1), None);
        assert_eq!(size_for(POOLED_BYTES_MIN - 1), None);
    }
}
