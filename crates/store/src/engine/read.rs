//! Reading one object, whatever the kind of store: [`Engine::get`], and the look at an entry that
//! reads and writes share. The embedded store has fast paths of its own
//! ([`crate::embedded`]).

use super::in_place::ValueHead;
use super::prepared::current_of;
use super::{Engine, EngineError, StoreKind, unreachable_kind};
use crate::table::EngineTable;
use pluvio_format::{Entry, Object};
use pluvio_index::{Index, Slot};
use pluvio_log::{Awaited, Durable, EntryView};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Current, Get, Now, Outcome, look};
use pluvio_units::{EntryRef, KeyHash, LogId, LogPosition};

/// The end of an entry that is not known to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// The log to wait for.
    pub(crate) log: LogId,
    /// The position that must be durable.
    pub(crate) position: LogPosition,
}

impl Pending {
    pub(crate) fn end(self) -> (LogId, LogPosition) {
        (self.log, self.position)
    }
}

/// Cache lines of an entry that a read asks for before it looks at the first: objects of some
/// hundred bytes lie in these.
pub(crate) const PREFETCH_LINES: u64 = 3;

/// What an index slot refers to.
pub(crate) enum Seen<'g> {
    /// An object in one piece, and its length in the log.
    Object(Object<'g>, u32),
    /// Anything else.
    Other(Box<EntryView<'g>>),
    /// A copy of an object whose value may be overwritten.
    Mutable(Box<EntryView<'g>>),
}

impl Seen<'_> {
    /// The object, if it is one.
    #[inline]
    pub(crate) fn object(&self) -> Option<Object<'_>> {
        match self {
            Self::Object(object, _) => Some(*object),
            Self::Mutable(view) => view.object().map(ValueHead::strip),
            Self::Other(view) => match view.entry() {
                Entry::Object(_) => view.object(),
                Entry::Tombstone(_) => None,
                other => unreachable_kind(&other),
            },
        }
    }

    #[inline]
    pub(crate) fn total_len(&self) -> u32 {
        match self {
            Self::Object(_, len) => *len,
            Self::Other(view) | Self::Mutable(view) => view.total_len(),
        }
    }
}

impl Engine {
    /// Reads of an object what is wanted of it. `hash` is that of the key.
    ///
    /// # Errors
    /// [`EngineError::Locked`].
    pub fn get(
        &self,
        table: &EngineTable,
        hash: KeyHash,
        get: &Get<'_>,
    ) -> Result<Awaited<Outcome>, EngineError> {
        debug_assert_eq!(hash, table.hash(get.key), "the hash belongs to the key");
        match self.kind {
            StoreKind::Replicated | StoreKind::Volatile => self.get_appended(table, hash, get),
            StoreKind::InPlace => Ok(self.get_in_place(table, hash, get)),
        }
    }

    /// [`Self::get`] where values do not change.
    fn get_appended(
        &self,
        table: &EngineTable,
        hash: KeyHash,
        get: &Get<'_>,
    ) -> Result<Awaited<Outcome>, EngineError> {
        let guard = self.space.pin();
        let index = table.indexes.of(hash);
        let found = index.and_then(|index| self.lookup(&index, hash, get.key, &guard));
        let Some((slot, seen)) = found else {
            let absent = look(get, None, Now::default());
            return Ok(Awaited::Now(self.marks.unmarked(absent)));
        };
        let object = seen.object();
        let current = current_of(object.as_ref())?;
        let outcome = look(get, current, self.time_of(table, object.as_ref()));
        if !slot.pending {
            return Ok(Awaited::Now(self.marks.unmarked(outcome)));
        }
        let pending = self.pending(slot, seen.total_len(), &guard);
        Ok(self.marks.marked(pending.map(Pending::end), outcome))
    }

    /// Lets `show` look at an object, or its absence, where it lies, without a copy. `None`: it is
    /// not durable yet, or locked, or its value may be overwritten meanwhile. Then `show` is not
    /// called; ask [`Self::get`].
    #[inline]
    pub fn show<R>(
        &self,
        table: &EngineTable,
        hash: KeyHash,
        key: &[u8],
        show: impl FnOnce(Option<Current<'_>>) -> R,
    ) -> Option<Durable<R>> {
        debug_assert_eq!(hash, table.hash(key), "the hash belongs to the key");
        if self.kind == StoreKind::InPlace {
            return None;
        }
        let guard = self.space.pin();
        let index = table.indexes.of(hash);
        let found = index.and_then(|index| self.lookup(&index, hash, key, &guard));
        let Some((slot, seen)) = found else {
            return Some(self.marks.unmarked(show(None)));
        };
        if slot.pending && self.pending(slot, seen.total_len(), &guard).is_some() {
            return None;
        }
        let object = seen.object();
        let now = self.time_of(table, object.as_ref());
        let current = current_of(object.as_ref()).ok()?;
        let current = current.filter(|current| !current.is_gone(now));
        Some(self.marks.unmarked(show(current)))
    }

    /// The time by which an object is judged; 0 where it does not matter.
    #[inline]
    pub(crate) fn time_of(&self, table: &EngineTable, object: Option<&Object<'_>>) -> Now {
        match object {
            Some(object) if object.deadline.is_some() => self.time_at(table, object.key),
            Some(_) | None => Now::default(),
        }
    }

    /// Whether the deadline of an object is past.
    #[inline]
    pub(crate) fn is_gone(&self, table: &EngineTable, object: &Object<'_>) -> bool {
        object.deadline.is_some_and(|deadline| {
            let now = self.time_of(table, Some(object));
            deadline.is_past(now.judged)
        })
    }

    /// Asks for the memory of keys that are read or changed next: first for their index buckets,
    /// then for the entries that these point to, so that the waits overlap [RAMCloud §5].
    pub fn prefetch(&self, table: &EngineTable, hashes: impl Iterator<Item = KeyHash> + Clone) {
        let guard = self.space.pin();
        for hash in hashes.clone() {
            if let Some(index) = table.indexes.of(hash) {
                index.prefetch_with_head(hash);
            }
        }
        for hash in hashes {
            let Some(index) = table.indexes.of(hash) else {
                continue;
            };
            match index.at_home(index.home(hash)).next() {
                Some(slot) => self.space.prefetch(slot.entry, PREFETCH_LINES),
                None => index.prefetch_behind_home(hash),
            }
        }
        drop(guard);
    }

    /// The slot of a key, and what it refers to.
    #[inline]
    pub(crate) fn lookup<'g>(
        &'g self,
        index: &Index,
        hash: KeyHash,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<(Slot, Seen<'g>)> {
        index.lookup_with(hash, |slot| {
            // Where the value ends is known only when its beginning has come; without this, its
            // lines come one after the other.
            self.space.prefetch(slot.entry, PREFETCH_LINES);
            Some((slot, self.see_key(slot.entry, key, guard)?))
        })
    }

    /// What an entry is, if it has this key.
    #[inline]
    pub(crate) fn see_key<'g>(
        &'g self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<Seen<'g>> {
        match self.space.object(entry, guard) {
            Some((object, len)) => (object.key == key).then_some(Seen::Object(object, len)),
            None => self.see_slow(entry, key, guard),
        }
    }

    /// Slow path of [`Self::see_key`]: the entry is no object, or one that crosses a seglet border,
    /// or one whose value may change.
    #[cold]
    fn see_slow<'g>(
        &'g self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<Seen<'g>> {
        let view = Box::new(self.view(entry, guard));
        if view.key() != key {
            return None;
        }
        Some(match self.kind {
            StoreKind::Replicated | StoreKind::Volatile => Seen::Other(view),
            StoreKind::InPlace => Seen::Mutable(view),
        })
    }
}
