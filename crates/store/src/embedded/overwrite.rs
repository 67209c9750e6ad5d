//! Overwriting an object of an embedded store by an append: the fast path, in one piece of code,
//! for nearly every put.
//!
//! The same steps as [`Engine::apply`] takes, less the steps that only other stores and other
//! changes need. Nothing is pending, and neither graves nor tombstones are written. No result is
//! kept for a retry. Nobody decides by the old value.

use crate::engine::{Engine, StoreKind};
use crate::table::{EngineTable, Growth};
use core::cell::Cell;
use pluvio_format::{Graves, Object};
use pluvio_index::{Approach, BucketGuard};
use pluvio_log::OpenHead;
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, LogId, ObjectVersion};

/// What is to be stored.
#[derive(Clone, Copy)]
pub(crate) struct NewValue<'n> {
    pub(crate) table: &'n EngineTable,
    pub(crate) key: &'n [u8],
    pub(crate) value: &'n [u8],
    pub(crate) now_s: u32,
}

/// The object that is there: where, and its version, value and length in the log.
type Old<'g> = (EntryRef, (ObjectVersion, &'g [u8], u32));

/// What an overwrite has changed.
struct Overwritten {
    old: EntryRef,
    version: ObjectVersion,
    /// Bytes of the value, and of the entry, before ...
    before: (usize, u32),
    /// ... and now.
    now: (usize, u32),
}

impl Engine {
    /// Overwrites the object if it is there, lies in one piece, and the new one fits the seglet
    /// that the head of the log that `by` gives is in; `approach` is that of the key. Gives the new
    /// version. `None`, and nothing has changed, when it takes [`Self::apply`]. The lengths were
    /// checked.
    #[inline]
    pub(crate) fn overwrite_fast(
        &self,
        by: impl FnOnce() -> LogId,
        approach: Approach,
        new: NewValue<'_>,
    ) -> Option<ObjectVersion> {
        debug_assert_eq!(self.kind, StoreKind::Volatile, "others write otherwise");
        let NewValue { table, key, .. } = new;
        let whole = table.indexes.whole()?;
        let by = by();
        let guard = self.space.pin();
        let ahead = |entry| {
            self.space.prefetch(entry, 1);
            self.space.prefetch_mark(entry);
        };
        let (mut bucket, likely) = whole.index().lock_after(approach, ahead);
        if table.indexes.is_closed() {
            return None;
        }
        // Locked before the old entry is looked at: a locked instruction waits for what comes
        // before it, and nothing that follows begins before it. So what comes from memory next for
        // the next operation is under way while this one waits for the entry.
        let mut head = self.space.open_head(by)?;
        if let Some(likely) = likely
            && let Some(found) = self.space.value_of(likely.entry(), key, &guard)
        {
            let (entry, done) = append_new(&mut head, new, (likely.entry(), found), &guard)?;
            bucket.replace_likely(likely, entry);
            drop(head);
            drop(bucket);
            return Some(self.finish(by, table, &done, &guard));
        }
        let done = self.overwrite_slow(&mut head, new, &mut bucket, &guard)?;
        drop(head);
        drop(bucket);
        Some(self.finish(by, table, &done, &guard))
    }

    /// What is left to do when nothing points to the old object any more; gives the new version.
    #[inline(always)]
    fn finish(
        &self,
        by: LogId,
        table: &EngineTable,
        done: &Overwritten,
        guard: &EpochGuard<'_>,
    ) -> ObjectVersion {
        self.space.mark_overwritten(done.old, guard);
        // Most are as long as what they take the place of.
        if done.before != done.now {
            let of = |(value_len, len)| Growth::by(value_len, len);
            table.count(by, of(done.now).without(of(done.before)));
        }
        done.version
    }

    /// Slow path of [`Self::overwrite_fast`]: the object is outside its home line.
    #[inline(never)]
    fn overwrite_slow(
        &self,
        head: &mut OpenHead<'_>,
        new: NewValue<'_>,
        bucket: &mut BucketGuard<'_>,
        guard: &EpochGuard<'_>,
    ) -> Option<Overwritten> {
        let found = Cell::new(None);
        let mut done = None;
        bucket.replace_found(
            |entry| {
                found.set(self.space.value_of(entry, new.key, guard));
                found.get().is_some()
            },
            |old| {
                let (entry, overwritten) = append_new(head, new, (old, found.get()?), guard)?;
                done = Some(overwritten);
                Some(entry)
            },
        )?;
        done
    }
}

/// Appends the new object to a head, in a locked bucket that still refers to the old one.
#[inline(always)]
fn append_new(
    head: &mut OpenHead<'_>,
    new: NewValue<'_>,
    (old, (old_version, old_value, old_len)): Old<'_>,
    guard: &EpochGuard<'_>,
) -> Option<(EntryRef, Overwritten)> {
    let object = Object {
        table: new.table.id(),
        version: old_version.next(),
        timestamp_s: new.now_s,
        graves: Graves::NONE,
        deadline: None,
        key: new.key,
        value: new.value,
    };
    let version = object.version;
    let (entry, len) = head.exchange(object, (old, old_len), guard)?;
    let overwritten = Overwritten {
        old,
        version,
        before: (old_value.len(), old_len),
        now: (new.value.len(), len),
    };
    Some((entry, overwritten))
}
