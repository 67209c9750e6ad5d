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

    /// The log.
    #[must_use]
    #[inline(always)]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Appends one object that takes the place of none, if that needs no seglet. Counts it as live,
    /// and gives it with its length in the log. `None`, and nothing has changed, when it needs
    /// [`LogSpace::append_object`](crate::LogSpace::append_object). `guard`: as for that.
    #[inline(always)]
    pub fn add(&mut self, object: Object<'_>, guard: &EpochGuard<'_>) -> Option<(EntryRef, u32)> {
        let (entry, len) = self.put(object, guard)?;
        let writer = current(&mut self.head);
        writer.publish();
        let live = self.heads.storage.memory.live();
        live.add_locked(self.log, writer.segment().slot(), len as i64);
        Some((entry, len as u32))
    }

    /// Counts the object at `old`, given with its length, as dead. Once nothing points to it,
    /// [`LogSpace::mark_overwritten`](crate::LogSpace::mark_overwritten) is to be called for it. It
    /// was found under a guard that the caller still has.
    #[inline(always)]
    pub fn count_dead(&mut self, (old, old_len): (EntryRef, u32)) {
        let memory = &self.heads.storage.memory;
        let slot = memory.table().slot_of(old);
        memory
            .live()
            .add_locked(self.log, slot, -i64::from(old_len));
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
        let (entry, len) = self.put(object, guard)?;
        let memory = &self.heads.storage.memory;
        let writer = current(&mut self.head);
        writer.publish();
        let new = (writer.segment().slot(), len as u32);
        let old = (memory.table().slot_of(old.0), old.1);
        memory.live().exchange_locked(self.log, new, old);
        Some((entry, len as u32))
    }

    /// Puts an entry, to be published, and gives it with its length.
    #[inline(always)]
    fn put(&mut self, object: Object<'_>, guard: &EpochGuard<'_>) -> Option<(EntryRef, usize)> {
        let storage = &self.heads.storage;
        storage.clock.set(object.timestamp_s);
        let layout = match PlainLayout::of(&object) {
            Some(layout) if storage.memory.raw().copies_as_usual() => layout,
            _ => return self.put_encoded(object, guard),
        };
        let len = layout.total_len();
        let (entry, to) = current(&mut self.head).room_within(len)?;
        layout.write(&object, to);
        Some((entry, len))
    }

    /// [`Self::put`] of what is laid out in another way, or copied by another method.
    #[inline(never)]
    fn put_encoded(
        &mut self,
        object: Object<'_>,
        _guard: &EpochGuard<'_>,
    ) -> Option<(EntryRef, usize)> {
        let encoded = Encoded::object(&object, false, Check::Structure).ok()?;
        let entry = current(&mut self.head).put_within(&encoded.parts())?;
        Some((entry, encoded.len()))
    }
}
