//! Overwriting an object in a store without replicas: the short way, in one piece of code, for nearly every put.
//!
//! The same steps as [`Engine::update`] takes, without what only other stores and other changes need: nothing is
//! pending, no graves and no tombstones are written, no result is kept for a retry, nobody decides by the old value.

use crate::engine::Engine;
use crate::table::{EngineTable, Growth};
use core::cell::Cell;
use pluvio_format::{Graves, Object};
use pluvio_units::{LogId, ObjectVersion};

impl Engine {
    /// Overwrites the object if it is there, lies in one piece, and the new one fits the seglet that the head of `by` is in;
    /// gives the new version. `None`, and nothing has changed, when it takes [`Self::update`]. The lengths were checked.
    #[inline]
    pub(crate) fn overwrite_short(
        &self,
        by: LogId,
        table: &EngineTable,
        key: &[u8],
        value: &[u8],
        now_s: u32,
    ) -> Option<ObjectVersion> {
        if self.is_durable_store() || self.space.is_in_place() {
            return None;
        }
        let hash = table.hash(key);
        let guard = self.space.pin();
        let index = table.indexes.of(hash)?;
        // Nothing is on its way from memory while a lock waits for the stores before it.
        if let Some(slot) = index.at_home(index.home(hash)).next() {
            self.space.prefetch(slot.entry, 1);
        }
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return None;
        }
        let found = Cell::new(None);
        let mut done = None;
        bucket.replace_found(
            |entry| {
                found.set(self.space.value_of(entry, key, &guard));
                found.get().is_some()
            },
            |old| {
                let (old_version, old_value, old_len) = found.get()?;
                let object = Object {
                    table: table.id(),
                    version: old_version.next(),
                    timestamp_s: now_s,
                    graves: Graves::NONE,
                    key,
                    value,
                };
                let old = (old, old_len);
                let (entry, len) = self.space.append_short(by, &object, old, &guard)?;
                done = Some((object.version, len, old_value.len(), old_len));
                Some(entry)
            },
        )?;
        drop(bucket);
        let (version, len, old_value_len, old_len) = done?;
        let growth = Growth::by(value.len(), len).without(Growth::by(old_value_len, old_len));
        table.count(by, growth);
        Some(version)
    }
}
