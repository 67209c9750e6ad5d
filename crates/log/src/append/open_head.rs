//! The head of a log for one thread: appends that need nothing but room in the seglet it is in.

use super::heads::{Heads, current};
use super::log_state::HeadGuard;
use pluvio_format::{Check, Encoded, Object, PlainLayout};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, LogId};

/// A head that this thread alone appends to as long as this lives. Nothing else of the log can be
/// called meanwhile.
pub struct OpenHead<'a> {
    heads: &'a Heads,
    log: LogId,
    head: HeadGuard<'a>,
}

impl core::fmt::Debug for OpenHead<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("OpenHead").field(&self.log).finish()
    }
}

impl<'a> OpenHead<'a> {
    #[inline(always)]
    pub(super) fn new(heads: &'a Heads, log: LogId) -> Self {
        Self {
            heads,
            log,
            head: heads.log(log).head(),
        }
    }

    /// Appends one object that takes the place of the one at `old`, given with its length, if that
    /// needs no seglet. Counts the new one as live and the old one as dead, and gives the new one
    /// with its length in the log. Once nothing points to the old one,
    /// [`LogSpace::mark_overwritten`](crate::LogSpace::mark_overwritten) is to be called for it.
    /// `None`, and nothing has changed, when it needs
    /// [`LogSpace::append_object`](crate::LogSpace::append_object). `guard`: as for that; `old` was
    /// found under it.
    #[inline(always)]
    pub fn exchange(
        &mut self,
        object: Object<'_>,
        old: (EntryRef, u32),
        guard: &EpochGuard<'_>,
    ) -> Option<(EntryRef, u32)> {
        let storage = &self.heads.storage;
        storage.clock.set(object.timestamp_s);
        let layout = match PlainLayout::of(&object) {
            Some(layout) if storage.memory.raw().copies_as_usual() => layout,
            _ => return self.exchange_encoded(object, old, guard),
        };
        let writer = current(&mut self.head);
        let len = layout.total_len();
        let (entry, to) = writer.room_within(len)?;
        layout.write(&object, to);
        self.publish(len, old);
        Some((entry, len as u32))
    }

    /// [`Self::exchange`] of what is laid out in another way, or copied by another method.
    #[inline(never)]
    fn exchange_encoded(
        &mut self,
        object: Object<'_>,
        old: (EntryRef, u32),
        _guard: &EpochGuard<'_>,
    ) -> Option<(EntryRef, u32)> {
        let encoded = Encoded::object(&object, false, Check::Structure).ok()?;
        let entry = current(&mut self.head).put_within(&encoded.parts())?;
        self.publish(encoded.len(), old);
        Some((entry, encoded.len() as u32))
    }

    /// Shows the entry of `len` bytes that was just put, and counts it as live and the old one as
    /// dead.
    #[inline(always)]
    fn publish(&mut self, len: usize, (old, old_len): (EntryRef, u32)) {
        let memory = &self.heads.storage.memory;
        let writer = current(&mut self.head);
        writer.publish();
        let new = (writer.segment().slot(), len as u32);
        let old = (memory.table().slot_of(old), old_len);
        memory.live().exchange_locked(self.log, new, old);
    }
}
