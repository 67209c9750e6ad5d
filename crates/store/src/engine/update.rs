//! Updates of single objects: the decision under the lock of the key's bucket, the slot that swings
//! to what was appended, and what is left to do with that slot once this is durable.

use crate::bury::Written;
use crate::engine::{Engine, EngineError};
use crate::in_place::ValueHead;
use crate::once::{Effect, Once};
use crate::read::{Pending, Seen};
use crate::table::{EngineTable, Growth};
use pluvio_format::{Entry, Graves, Object};
use pluvio_index::BucketGuard;
use pluvio_log::{Appended, Durable};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, KEY_MAX, KeyHash, LogId, LogPosition, ObjectVersion, VALUE_MAX};

/// The object as an update sees it, under the lock of its bucket.
#[derive(Clone, Copy, Debug)]
pub struct Current<'a> {
    /// Its version.
    pub version: ObjectVersion,
    /// Its value.
    pub value: &'a [u8],
}

/// What an update wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change<'v> {
    /// This value.
    Put(std::borrow::Cow<'v, [u8]>),
    /// No object.
    Delete,
    /// Leave it.
    Keep,
}

/// What an update did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Updated {
    /// The object's version now: the new one, or that of the object that was deleted.
    pub version: ObjectVersion,
    /// The version before; 0 when there was no object.
    pub replaced: ObjectVersion,
    /// To be given to [`Engine::settle`] once durable.
    pub settle: Settle,
}

impl Updated {
    /// What the update came to.
    #[must_use]
    pub fn effect<E>(&self) -> Effect<'static, E> {
        if self.settle.tombstone {
            return Effect::Deleted {
                version: self.version,
            };
        }
        Effect::Put {
            version: self.version,
            replaced: self.replaced,
        }
    }
}

/// The index slot that an update left pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settle {
    hash: KeyHash,
    entry: EntryRef,
    tombstone: bool,
}

/// How an update ended.
#[derive(Debug)]
pub enum Update<E> {
    /// Something was appended.
    Done(Appended<Updated>),
    /// Nothing changed: the caller's decision, [`Change::Keep`] or nothing to delete.
    Unchanged {
        /// The object's version; 0 when there is none.
        version: ObjectVersion,
        /// What the decision rests on, if that is not yet known to be durable.
        pending: Option<Pending>,
        /// The caller's reason, if it refused.
        refused: Option<E>,
    },
}

impl Engine {
    /// Changes one object: `decide` sees it as it is, under the lock of its bucket, and says what
    /// is to become of it. It must be quick and must not call the store.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing changed.
    pub fn update<'v, E>(
        &self,
        log: LogId,
        table: &EngineTable,
        key: &[u8],
        now_s: u32,
        decide: impl FnOnce(Option<Current<'_>>) -> Result<Change<'v>, E>,
    ) -> Result<Update<E>, EngineError> {
        self.update_once(log, table, key, now_s, None, decide)
    }

    /// [`Engine::update`] of an operation with an identity: its result is appended in one group
    /// with what it changes, or alone when it changes nothing, and kept for retries.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing changed, and a retry is executed.
    pub fn update_once<'v, E>(
        &self,
        log: LogId,
        table: &EngineTable,
        key: &[u8],
        now_s: u32,
        once: Option<Once<'_, E>>,
        decide: impl FnOnce(Option<Current<'_>>) -> Result<Change<'v>, E>,
    ) -> Result<Update<E>, EngineError> {
        if key.len() > KEY_MAX {
            return Err(EngineError::KeyTooLong(key.len()));
        }
        let hash = table.hash(key);
        let guard = self.space.pin();
        let index = table.indexes.of(hash).ok_or(EngineError::NotHere)?;
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return Err(EngineError::NotHere);
        }
        let mut seen = None;
        let slot = bucket.find(|entry| {
            seen = self.see_key(entry, key, &guard);
            seen.is_some()
        });
        if let Some((slot, seen)) = slot.zip(seen.as_ref()) {
            self.check_seen(slot.entry, seen, &guard);
            self.space.prefetch_mark(slot.entry);
        }
        let current = seen.as_ref().and_then(Seen::object).map(|object| Current {
            version: object.version,
            value: object.value,
        });
        let version = current.map_or(ObjectVersion(0), |c| c.version);
        let pending = slot
            .zip(seen.as_ref())
            .and_then(|(slot, seen)| self.pending(slot, seen.total_len(), &guard));
        // STORE-5.
        let log = pending.map_or(log, |pending| pending.log);
        let unchanged = |once: Option<Once<'_, E>>, refused: Option<E>| {
            let effect = match &refused {
                Some(why) => Effect::Refused(why),
                None => Effect::Unchanged { version },
            };
            let pending = match once {
                Some(once) => self.keep_unchanged(log, once, effect, pending, &guard)?,
                None => pending,
            };
            Ok(Update::Unchanged {
                version,
                pending,
                refused,
            })
        };
        let change = match decide(current) {
            Ok(change) => change,
            Err(why) => return unchanged(once, Some(why)),
        };
        let old = slot.zip(seen.as_ref()).map(|(slot, seen)| Old {
            entry: slot.entry,
            len: seen.total_len(),
            object_bytes: current.map_or(0, |c| key.len() + c.value.len()),
            version,
            graves: seen.object().map_or(Graves::NONE, |object| object.graves),
        });
        let place = Place {
            log,
            table,
            key,
            hash,
            now_s,
        };
        match change {
            Change::Keep => unchanged(once, None),
            Change::Put(value) => {
                let done = self.put(&place, &mut bucket, old.as_ref(), &value, once, &guard)?;
                drop(bucket);
                index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
                Ok(Update::Done(done))
            }
            Change::Delete => match old {
                Some(old) if version > ObjectVersion(0) => {
                    let done = self.delete(&place, &mut bucket, &old, once, &guard)?;
                    drop(bucket);
                    index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
                    Ok(Update::Done(done))
                }
                Some(_) | None => unchanged(once, None),
            },
        }
    }

    /// Appends the new value, with what keeps the object dead that it replaces (STORE-3), and
    /// swings the slot.
    fn put<E>(
        &self,
        at: &Place<'_>,
        bucket: &mut BucketGuard<'_>,
        old: Option<&Old<'_>>,
        value: &[u8],
        once: Option<Once<'_, E>>,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<Updated>, EngineError> {
        if value.len() > VALUE_MAX {
            return Err(EngineError::ValueTooLong(value.len()));
        }
        let replaced = old.filter(|old| old.version > ObjectVersion(0));
        let version = match replaced {
            Some(old) => old.version.next(),
            None => self.space.safe_version(),
        };
        debug_assert!(
            replaced.is_none_or(|old| old.version < version) && version > ObjectVersion(0),
            "STORE-1: {version} is the next version of {:?}",
            replaced.map(|old| old.version)
        );
        if let Some(old) = replaced
            && let Some(version) = self.overwrite_old(at, bucket, old, value, guard)
        {
            let replaced = old.version;
            // Only stores without replicas do this.
            let effect = Effect::Put { version, replaced };
            if let Some(kept) = once.and_then(|once| once.keep(effect)) {
                kept.volatile();
            }
            let settle = Settle {
                hash: at.hash,
                entry: old.entry,
                tombstone: false,
            };
            let updated = Updated {
                version,
                replaced,
                settle,
            };
            return Ok(Appended::new(at.log, LogPosition::default(), updated));
        }
        let with_head;
        let (value, value_len) = if self.space.is_in_place() {
            with_head = ValueHead::with(version, value);
            (&with_head[..], value.len())
        } else {
            (value, value.len())
        };
        let object = Object {
            table: at.table.id(),
            version,
            timestamp_s: at.now_s,
            graves: Graves::NONE,
            key: at.key,
            value,
        };
        // Before the append, which cannot be taken back: replicas may have the entry at once.
        let room = match old {
            Some(_) => None,
            None => Some(bucket.room()?),
        };
        let effect = Effect::Put {
            version,
            replaced: replaced.map_or(ObjectVersion(0), |old| old.version),
        };
        let kept = once.and_then(|once| once.keep(effect));
        let Written { appended, len } = self.append_put(at, object, replaced, kept, guard)?;
        let durable = self.is_durable_store();
        let entry = *appended.pending();
        match room {
            Some(room) => bucket.fill(room, entry, durable),
            None => assert!(
                old.is_some_and(|old| bucket.replace(old.entry, entry, durable)),
                "the bucket is locked since the slot was found"
            ),
        }
        let mut growth = Growth::by(at.key.len() + value_len, len);
        if let Some(old) = replaced {
            growth = growth.without(self.bury(at, old, guard));
        }
        at.table.count(at.log, growth);
        let settle = Settle {
            hash: at.hash,
            entry,
            tombstone: false,
        };
        let replaced = replaced.map_or(ObjectVersion(0), |old| old.version);
        Ok(appended.map(|_| Updated {
            version,
            replaced,
            settle,
        }))
    }

    /// Appends tombstones and swings the slot to the first; without replicas the slot is just
    /// emptied.
    fn delete<E>(
        &self,
        at: &Place<'_>,
        bucket: &mut BucketGuard<'_>,
        old: &Old<'_>,
        once: Option<Once<'_, E>>,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<Updated>, EngineError> {
        // Raised first: the head that this append may open must record it (STORE-1).
        self.space.raise_safe_version(old.version.next());
        debug_assert!(
            self.space.safe_version() > old.version,
            "STORE-1: the safe version is above every version deleted"
        );
        let settle = |entry| Settle {
            hash: at.hash,
            entry,
            tombstone: true,
        };
        let effect = Effect::Deleted {
            version: old.version,
        };
        let kept = once.and_then(|once| once.keep(effect));
        let appended = if self.is_durable_store() {
            let appended = self.append_delete(at, old, kept, guard)?;
            bucket.replace(old.entry, *appended.pending(), true);
            appended.map(settle)
        } else {
            bucket.remove(old.entry);
            if let Some(kept) = kept {
                kept.volatile();
            }
            Appended::new(at.log, LogPosition::default(), settle(old.entry))
        };
        let growth = Growth::default().without(self.bury(at, old, guard));
        at.table.count(at.log, growth);
        Ok(appended.map(|settle| Updated {
            version: old.version,
            replaced: old.version,
            settle,
        }))
    }

    /// The log counts an object as dead that the index does not point to any more; gives what the
    /// table is to count.
    #[inline]
    fn bury(&self, at: &Place<'_>, old: &Old<'_>, guard: &EpochGuard<'_>) -> Growth {
        self.space.mark_dead_by(at.log, old.entry, old.len, guard);
        Growth::by(old.object_bytes, old.len)
    }

    /// The entry of an update is durable: its slot needs no check any more. A tombstone's slot is
    /// emptied. Does nothing when the key was changed again since.
    pub fn settle(&self, table: &EngineTable, updated: &Durable<Updated>) {
        let Settle {
            hash,
            entry,
            tombstone,
        } = updated.value().settle;
        let guard = self.space.pin();
        let Some(index) = table.indexes.of(hash) else {
            return;
        };
        {
            let mut bucket = index.lock(hash);
            let Some(slot) = bucket.find(|found| found == entry) else {
                return;
            };
            // The update's guard is gone long since: its entry may have been cleaned, and another
            // one lie in its place.
            let view = self.view(entry, &guard);
            if self.pending(slot, view.total_len(), &guard).is_some() {
                return;
            }
            match view.entry() {
                Entry::Tombstone(_) if tombstone => {
                    bucket.remove(entry);
                }
                Entry::Object(_) if !tombstone => {
                    bucket.replace(entry, entry, false);
                }
                _ => {}
            }
        }
        if tombstone {
            index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        }
    }
}

/// The entry that an update finds.
pub(crate) struct Old<'o> {
    pub(crate) entry: EntryRef,
    /// Bytes in the log.
    pub(crate) len: u32,
    /// Bytes of key and value; 0 for a tombstone.
    object_bytes: usize,
    /// 0 for a tombstone.
    pub(crate) version: ObjectVersion,
    /// Where dead versions of it lie.
    pub(crate) graves: Graves<'o>,
}

/// Where an update happens.
pub(crate) struct Place<'k> {
    pub(crate) log: LogId,
    pub(crate) table: &'k EngineTable,
    key: &'k [u8],
    hash: KeyHash,
    pub(crate) now_s: u32,
}

impl<'k> Place<'k> {
    pub(crate) fn key(&self) -> &'k [u8] {
        self.key
    }
}
