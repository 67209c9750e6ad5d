//! Puts and deletes of an embedded store without a sink whose values do not change. Here are the
//! fast paths, each in one piece of code, for nearly all of them.
//!
//! The same steps as [`Engine::apply`] takes, without what only other stores and other changes
//! need: nothing is pending, no graves and no tombstones are written, no result is kept for a
//! retry, nobody decides by the old value, neither object has a deadline.

use crate::engine::{Engine, StoreKind};
use crate::table::{EngineTable, Growth};
use pluvio_format::{Encoded, Graves, Object, ObjectState};
use pluvio_index::{Approach, BucketGuard, Room, Slot};
use pluvio_log::{AppendClass, OpenHead};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, KeyHash, LogId, ObjectVersion};

/// What is to be stored.
#[derive(Clone, Copy)]
pub(crate) struct NewValue<'n> {
    pub(crate) table: &'n EngineTable,
    pub(crate) key: &'n [u8],
    pub(crate) value: &'n [u8],
    pub(crate) now_s: u32,
}

impl NewValue<'_> {
    /// It, as an object with this version.
    #[inline(always)]
    fn object(&self, version: ObjectVersion) -> Object<'_> {
        Object {
            table: self.table.id(),
            version,
            timestamp_s: self.now_s,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: self.key,
            value: self.value,
        }
    }
}

/// The object that is there.
#[derive(Clone, Copy)]
struct Old {
    entry: EntryRef,
    version: ObjectVersion,
    /// Bytes of the value.
    value_len: usize,
    /// Bytes in the log.
    len: u32,
}

impl Old {
    #[inline(always)]
    fn of(entry: EntryRef, (version, value, len): (ObjectVersion, &[u8], u32)) -> Self {
        Self {
            entry,
            version,
            value_len: value.len(),
            len,
        }
    }

    /// What a table counts of it.
    #[inline(always)]
    fn growth(&self, key: &[u8]) -> Growth {
        Growth::by(key.len() + self.value_len, self.len)
    }
}

impl Engine {
    /// Stores the value, at the head of the log that `by` gives; `approach` is that of the key.
    /// Gives the new version. `None`, and nothing has changed, when it takes [`Self::apply`]. The
    /// lengths were checked.
    #[inline]
    pub(crate) fn put_fast(
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
            let old = Old::of(likely.entry(), found);
            if let Some((entry, version)) = exchange(&mut head, new, old, &guard) {
                bucket.replace_likely(likely, entry);
                drop(head);
                drop(bucket);
                self.space.mark_overwritten(old.entry, &guard);
                return Some(version);
            }
        }
        self.put_slow(head, new, bucket, &guard)
    }

    /// Slow path of [`Self::put_fast`]: there is no object with the key yet, it is outside its home
    /// line, or the new one needs another seglet.
    #[inline(never)]
    fn put_slow(
        &self,
        mut head: OpenHead<'_>,
        new: NewValue<'_>,
        mut bucket: BucketGuard<'_>,
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let Some((slot, old)) = self.find_locked(&bucket, new.key, guard) else {
            let room = bucket.room().ok()?;
            let version = self.insert(head, new, &mut bucket, room, guard)?;
            drop(bucket);
            self.resize(new.table, guard);
            return Some(version);
        };
        let old = old?;
        let (entry, version) = match exchange(&mut head, new, old, guard) {
            Some(appended) => {
                drop(head);
                appended
            }
            None => self.exchange_slow(head, new, old, guard)?,
        };
        let replaced = bucket.replace(slot.entry, entry, false);
        assert!(replaced, "the bucket is locked since the slot was found");
        drop(bucket);
        self.space.mark_overwritten(old.entry, guard);
        Some(version)
    }

    /// [`exchange`] of what needs more than the seglet that the head is in.
    fn exchange_slow(
        &self,
        head: OpenHead<'_>,
        new: NewValue<'_>,
        old: Old,
        guard: &EpochGuard<'_>,
    ) -> Option<(EntryRef, ObjectVersion)> {
        let version = old.version.next();
        let class = AppendClass::Replace {
            old_bytes: Encoded::object_len_at(old.len as usize, old.version, version) as u32,
            graves_bytes: 0,
        };
        let by = head.log();
        drop(head);
        let (entry, growth) = self.append_slow(by, &new.object(version), class, guard)?;
        let mut head = self.space.lock_head(by);
        head.count_dead((old.entry, old.len));
        new.table
            .count_locked(&head, growth.without(old.growth(new.key)));
        Some((entry, version))
    }

    /// Appends an object with a new key, and lets the slot that there is room for refer to it.
    #[inline(always)]
    fn insert(
        &self,
        mut head: OpenHead<'_>,
        new: NewValue<'_>,
        bucket: &mut BucketGuard<'_>,
        room: Room<'_>,
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let object = new.object(self.space.safe_version());
        let Some((entry, len)) = head.add(object, guard) else {
            let by = head.log();
            drop(head);
            let (entry, growth) = self.append_slow(by, &object, AppendClass::Normal, guard)?;
            bucket.fill(room, entry, false);
            new.table.count(by, growth);
            return Some(object.version);
        };
        bucket.fill(room, entry, false);
        let growth = Growth::by(new.key.len() + new.value.len(), len);
        new.table.count_locked(&head, growth);
        Some(object.version)
    }

    /// Appends an object whatever it needs; gives what a table is to count. `None` when there is no
    /// memory.
    fn append_slow(
        &self,
        by: LogId,
        object: &Object<'_>,
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Option<(EntryRef, Growth)> {
        let appended = self.space.append_object(by, object, class, guard).ok()?;
        let len = Encoded::object_len(object) as u32;
        let growth = Growth::by(object.key.len() + object.value.len(), len);
        Some((*appended.pending(), growth))
    }

    /// Deletes the object, if there is one; says whether there was. `approach` is that of the key
    /// with this hash, and `by` gives the log that the thread appends to. `None`, and nothing has
    /// changed, when it takes [`Self::apply`].
    #[inline]
    pub(crate) fn delete_fast(
        &self,
        by: impl FnOnce() -> LogId,
        table: &EngineTable,
        (hash, approach): (KeyHash, Approach),
        key: &[u8],
    ) -> Option<bool> {
        debug_assert_eq!(self.kind, StoreKind::Volatile, "others delete otherwise");
        let guard = self.space.pin();
        let index = table.indexes.of_all()?;
        // Many deletes find nothing. These store nothing and lock nothing.
        let is_it = |entry| {
            self.space.prefetch_mark(entry);
            self.find_old(entry, key, &guard).is_some()
        };
        if index.lookup(hash, is_it).is_none() {
            return Some(false);
        }
        let (mut bucket, _) = index.lock_after(approach, |_| ());
        if table.indexes.is_closed() {
            return None;
        }
        let Some((slot, old)) = self.find_locked(&bucket, key, &guard) else {
            return Some(false);
        };
        let old = old?;
        let mut head = self.space.lock_head(by());
        // Before the object goes: whoever does not find it gives the key a larger version
        // (STORE-1).
        self.space.raise_safe_version(old.version.next());
        bucket.remove(slot.entry);
        head.count_dead((old.entry, old.len));
        table.count_locked(&head, Growth::default().without(old.growth(key)));
        drop(head);
        drop(bucket);
        self.space.mark_overwritten(old.entry, &guard);
        self.resize(table, &guard);
        Some(true)
    }

    /// The slot of the key in a locked bucket, and the object that it refers to, if it is one.
    #[inline(always)]
    fn find_locked(
        &self,
        bucket: &BucketGuard<'_>,
        key: &[u8],
        guard: &EpochGuard<'_>,
    ) -> Option<(Slot, Option<Old>)> {
        let mut old = None;
        let slot = bucket.find(|entry| {
            old = self.find_old(entry, key, guard);
            old.is_some()
        })?;
        Some((slot, old.flatten()))
    }

    /// Whether an entry has this key, and the object that it is, if that has no deadline.
    #[inline(always)]
    fn find_old(&self, entry: EntryRef, key: &[u8], guard: &EpochGuard<'_>) -> Option<Option<Old>> {
        match self.space.value_of(entry, key, guard) {
            Some(found) => Some(Some(Old::of(entry, found))),
            None => self.find_cut(entry, key, guard),
        }
    }

    /// Slow path of [`Self::find_old`]: the entry has another key, or its value is in several
    /// seglets, or it has a deadline. What has one is left to [`Self::apply`].
    #[inline(never)]
    fn find_cut(&self, entry: EntryRef, key: &[u8], guard: &EpochGuard<'_>) -> Option<Option<Old>> {
        if let Some(object) = self.space.cut_object(entry, guard) {
            let old = Old {
                entry,
                version: object.version(),
                value_len: object.value_len(),
                len: object.total_len(),
            };
            return (object.key() == key).then_some(Some(old));
        }
        let seen = self.see_key(entry, key, guard)?;
        let len = seen.total_len();
        let object = seen.object().filter(|object| object.deadline.is_none());
        Some(object.map(|object| Old::of(entry, (object.version, object.value, len))))
    }

    /// Makes the index longer or shorter, if that is due.
    #[inline(always)]
    fn resize(&self, table: &EngineTable, guard: &EpochGuard<'_>) {
        if let Some(index) = table.indexes.of_all() {
            index.resize(guard, |entry| self.hash_of(table, entry, guard));
        }
    }
}

/// Appends the new object to a head, in a locked bucket that still refers to the old one, and
/// counts both.
#[inline(always)]
fn exchange(
    head: &mut OpenHead<'_>,
    new: NewValue<'_>,
    old: Old,
    guard: &EpochGuard<'_>,
) -> Option<(EntryRef, ObjectVersion)> {
    let version = old.version.next();
    let (entry, len) = head.exchange(new.object(version), (old.entry, old.len), guard)?;
    // Most are as long as what they take the place of.
    if (new.value.len(), len) != (old.value_len, old.len) {
        let growth = Growth::by(new.key.len() + new.value.len(), len);
        new.table
            .count_locked(head, growth.without(old.growth(new.key)));
    }
    Some((entry, version))
}
