//! What a tablet that moves to another store takes along, as entries that [`Replay`](crate::Replay)
//! reads.
//!
//! - LEAVE-1: an object that is there all along while its range is copied, part after part, is in
//!   one of the parts; what changes meanwhile is the caller's business.
//! - LEAVE-2: what is copied need not be durable here. Who takes it over makes it durable before
//!   anybody is told.
//! - LEAVE-3: what is copied is compared with its checksum first, and what stands for a key that is
//!   not found as well: the copy gets a checksum of its own, and the replicas of the original are
//!   freed.
//!
//! Stores whose values are overwritten in place are not moved: only embedded stores are such.

use crate::completions::LeavingResults;
use crate::engine::{Engine, key_of, unreachable_kind};
use crate::scan::ranks_of;
use crate::table::EngineTable;
use core::time::Duration;
use pluvio_format::{Completion, Encoded, Entry, Graves, Object, Tombstone};
use pluvio_log::EntryView;
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, HashRange, ObjectVersion, Rank, SegmentId, UnixMs};

/// Entries, one after the other, and where to go on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Copied {
    /// The entries.
    pub data: Vec<u8>,
    /// The next rank; none at the end of the range.
    pub next: Option<Rank>,
}

impl Engine {
    /// Copies the objects of `range` from a rank on, about `bytes` of them; objects with one rank
    /// stay together. Begin with rank 0.
    #[must_use]
    pub fn copy_objects(
        &self,
        table: &EngineTable,
        range: HashRange,
        from: Rank,
        bytes: usize,
    ) -> Copied {
        let kind = table.hash_kind();
        let (first, end) = ranks_of(kind, range);
        let mut copied = Copied::default();
        let mut from = from.max(first);
        loop {
            let guard = self.space.pin();
            let mut slots = Vec::new();
            let covered = table.indexes.scan(range, from, &mut slots).min(end);
            let views = slots.iter().map(|slot| self.checked(slot.entry, &guard));
            let hashes = views.map(|view| (table.hash(key_of(&view.entry())), view));
            let mut ranks: Vec<_> = hashes
                .filter(|(hash, _)| range.contains(*hash))
                .map(|(hash, view)| (kind.rank(hash), view))
                .filter(|(rank, _)| (from..=covered).contains(rank))
                .collect();
            ranks.sort_by_key(|(rank, _)| *rank);
            let mut last = from;
            for (rank, view) in ranks {
                if rank != last && copied.data.len() >= bytes {
                    copied.next = Some(rank);
                    return copied;
                }
                copy_entry(&view, &mut copied.data);
                last = rank;
            }
            if covered == end {
                return copied;
            }
            from = Rank(covered.0 + 1);
        }
    }

    /// What an entry is, compared with its checksum (LEAVE-3).
    fn checked<'g>(&'g self, entry: EntryRef, guard: &'g EpochGuard<'_>) -> EntryView<'g> {
        match self.space.entry_checked(entry, guard) {
            Ok(view) => view,
            Err(corruption) => self.corrupt(&corruption),
        }
    }

    /// Copies the object with this key, or says that there is none; then `deleted`, the version of
    /// the one that was deleted, is copied instead.
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
        let found = index.as_ref().and_then(|index| {
            index.lookup_with(hash, |slot| {
                let view = self.checked(slot.entry, &guard);
                (view.key() == key).then_some(view)
            })
        });
        if let Some(object) = found.as_ref().and_then(EntryView::object) {
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

    /// Copies results of operations on a range, the safe version (MIG-5) and the horizon
    /// (EXPIRY-2).
    pub fn copy_results(&self, records: &[Completion], to: &mut Vec<u8>) {
        for record in records {
            encode(&Entry::Completion(record.clone()), to);
        }
        encode(&Entry::SafeVersion(self.space.safe_version()), to);
        // Of a frozen tablet: nobody judges these keys by a later time here.
        let horizon = self.expiry().judged();
        if horizon > UnixMs(0) {
            encode(&Entry::Horizon(horizon), to);
        }
    }

    /// The results of operations on a range, and what clients have acknowledged. It looks at all
    /// clients, which takes some tenths of a second when there are very many. `now` is the clock of
    /// [`Engine::admit`].
    #[must_use]
    pub fn results_of(
        &self,
        table: &EngineTable,
        range: HashRange,
        now: Duration,
    ) -> LeavingResults {
        self.completions().of_range(table.id(), range, now)
    }
}

/// A key that was deleted, but not durably yet, leaves nothing.
fn copy_entry(view: &EntryView<'_>, to: &mut Vec<u8>) {
    match view.entry() {
        Entry::Object(object) => encode(&as_it_travels(object), to),
        Entry::Tombstone(_) => {}
        other => unreachable_kind(&other),
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
