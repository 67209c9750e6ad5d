//! The bytes of a segment: the seglets they lie in and how many were appended.
//!
//! Its lock is `seglets`, under which no other is taken.

use crate::memory::{LogBytes, LogMemory};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use pluvio_units::{EntryRef, SEGLET_BYTES};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See the module.
pub(crate) struct Contents {
    memory: Arc<LogMemory>,
    seglets: RwLock<Vec<u32>>,
    appended: AtomicU32,
}

impl Contents {
    pub(crate) fn new(memory: Arc<LogMemory>) -> Self {
        Self {
            memory,
            seglets: RwLock::new(Vec::new()),
            appended: AtomicU32::new(0),
        }
    }

    /// Bytes appended.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        // Acquire: pairs with `set_len`; the bytes below are there.
        self.appended.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn set_len(&self, len: u32) {
        self.appended.store(len, Ordering::Release);
    }

    /// The number of seglets.
    pub(crate) fn seglets(&self) -> usize {
        self.read().len()
    }

    /// The seglets, in their order.
    pub(crate) fn list(&self) -> Vec<u32> {
        self.read().clone()
    }

    pub(crate) fn push(&self, seglet: u32) {
        self.write().push(seglet);
    }

    /// Takes the seglets away, when nobody can see the segment's memory any more.
    pub(crate) fn take(&self) -> Vec<u32> {
        core::mem::take(&mut *self.write())
    }

    /// Exchanges seglets and length for those of a compaction; gives the old seglets.
    pub(crate) fn exchange(&self, seglets: Vec<u32>, appended: u32) -> Vec<u32> {
        let mut list = self.write();
        // Under the list's lock, so that `copy_into` finds a length and a list that belong
        // together.
        self.set_len(appended);
        debug_assert!(
            seglets.iter().all(|seglet| !list.contains(seglet)),
            "LOG-5: a compaction wrote to seglets that its segment has"
        );
        core::mem::replace(&mut *list, seglets)
    }

    /// Copies bytes out, behind what is in `into`. False, and nothing was copied, when `is_freed`
    /// says that the segment is gone.
    ///
    /// # Panics
    /// When the range is not below the appended length.
    pub(crate) fn copy_into(
        &self,
        range: Range<u32>,
        into: &mut Vec<u8>,
        is_freed: impl FnOnce() -> bool,
    ) -> bool {
        let guard = self.memory.epochs().pin();
        // A guard that does not see it freed was taken before the epoch was retired, so the memory
        // stays while the guard lives (see `Life`).
        if is_freed() {
            return false;
        }
        let seglets = self.read();
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} is not appended yet"
        );
        into.reserve((range.end - range.start) as usize);
        let mut at = range.start as usize;
        while at < range.end as usize {
            let within = at % SEGLET_BYTES;
            let len = (SEGLET_BYTES - within).min(range.end as usize - at);
            // SAFETY: below the appended length, not freed when the guard was taken.
            let bytes = unsafe {
                self.memory
                    .raw()
                    .bytes(seglets[at / SEGLET_BYTES], within, len, &guard)
            };
            into.extend_from_slice(bytes);
            at += len;
        }
        true
    }

    /// The entry at an offset. Of a segment that was freed meanwhile: none that can be read.
    pub(crate) fn entry_at(&self, offset: u32) -> EntryRef {
        let seglets = self.read();
        let seglet = seglets.get(offset as usize / SEGLET_BYTES);
        let base = seglet.map_or(0, |seglet| LogBytes::base(*seglet));
        EntryRef::new(base + u64::from(offset) % SEGLET_BYTES as u64)
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<u32>> {
        // The list is only pushed to: after a panic elsewhere it is still right.
        self.seglets.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<u32>> {
        self.seglets.write().unwrap_or_else(PoisonError::into_inner)
    }
}
