//! What a tablet that moves to another store takes along, as entries that [`Replay`](crate::Replay) reads.
//!
//! - LEAVE-1: an object that is there all along while its range is copied, part after part, is in one of the parts; what
//!   changes meanwhile is the caller's business.
//! - LEAVE-2: what is copied need not be durable here. Who takes it over makes it durable before anybody is told.
//!
//! LEAVE-1 is shown by `objects_that_the_cleaner_moves_leave_exactly_once`; LEAVE-2 is the receiver's part, which
//! `the_receiver_is_killed_at_every_message` (crate `sim`) tries.
//!
//! Stores whose values are overwritten in place are not moved: only embedded stores are such.

use crate::engine::{Engine, unreachable_kind};
use crate::table::EngineTable;
use core::time::Duration;
use pluvio_format::{Completion, Encoded, Entry, Graves, Object, Tombstone};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, HashRange, KeyHash, ObjectVersion, SegmentId};

/// Entries, one after the other, and where to go on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Copied {
    /// The entries.
    pub data: Vec<u8>,
    /// The next hash; none at the end of the range.
    pub next: Option<KeyHash>,
}

impl Engine {
    /// Copies the objects of `range` from its start on, about `bytes` of them; objects with one hash stay together.
    #[must_use]
    pub fn copy_objects(&self, table: &EngineTable, range: HashRange, bytes: usize) -> Copied {
        let mut copied = Copied::default();
        let mut from = range.first;
        loop {
            let guard = self.space.pin();
            let mut slots = Vec::new();
            let covered = table.indexes.scan(from, &mut slots).min(range.last);
            let hashes = slots
                .iter()
                .map(|slot| (self.hash_of(table, slot.entry, &guard), slot.entry));
            let mut hashes: Vec<_> = hashes
                .filter(|(hash, _)| (from..=covered).contains(hash))
                .collect();
            hashes.sort_unstable();
            let mut last = from;
            for (hash, entry) in hashes {
                if hash != last && copied.data.len() >= bytes {
                    copied.next = Some(hash);
                    return copied;
                }
                self.copy_entry(entry, &mut copied.data, &guard);
                last = hash;
            }
            if covered == range.last {
                return copied;
            }
            from = KeyHash(covered.0 + 1);
        }
    }

    fn copy_entry(&self, entry: EntryRef, to: &mut Vec<u8>, guard: &EpochGuard<'_>) {
        match self.view(entry, guard).entry() {
            Entry::Object(object) => encode(&as_it_travels(object), to),
            // A deleted key whose deletion is not durable yet.
            Entry::Tombstone(_) => {}
            other => unreachable_kind(&other),
        }
    }

    /// Copies the object with this key, or says that there is none; then `deleted`, the version of the one that was
    /// deleted, is copied instead.
    pub fn copy_change(
        &self,
        table: &EngineTable,
        key: &[u8],
        deleted: Option<ObjectVersion>,
        now_s: u32,
        to: &mut Vec<u8>,
    ) {
        let hash = table.hash(key);
        let guard = self.space.pin();
        let index = table.indexes.of(hash);
        let found = index
            .as_ref()
            .and_then(|index| self.lookup(index, hash, key, &guard));
        let object = found.as_ref().and_then(|(_, seen)| seen.object());
        if let Some(object) = object {
            encode(&as_it_travels(object), to);
        } else if let Some(version) = deleted {
            let tombstone = Tombstone {
                table: table.id(),
                version,
                segment: SegmentId(0),
                timestamp_s: now_s,
                key,
            };
            encode(&Entry::Tombstone(tombstone), to);
        }
    }

    /// Copies results of operations on a range, and the safe version.
    pub fn copy_results(&self, records: &[Completion], to: &mut Vec<u8>) {
        for record in records {
            encode(&Entry::Completion(*record), to);
        }
        encode(&Entry::SafeVersion(self.space.safe_version()), to);
    }

    /// The results of operations on a range. `now` is the clock of
    /// [`Completions::admit`](crate::Completions::admit).
    #[must_use]
    pub fn results_of(
        &self,
        table: &EngineTable,
        range: HashRange,
        now: Duration,
    ) -> Vec<Completion> {
        self.completions().of_range(table.id(), range, now)
    }
}

/// Its graves are in this store's log, and stay there.
fn as_it_travels(object: Object<'_>) -> Entry<'_> {
    Entry::Object(Object {
        graves: Graves::NONE,
        ..object
    })
}

fn encode(entry: &Entry<'_>, to: &mut Vec<u8>) {
    let encoded = Encoded::new(entry, false).expect("it was encoded before, or is as short");
    for part in encoded.parts() {
        to.extend_from_slice(part);
    }
}
