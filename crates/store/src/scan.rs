//! Objects in the order of their key hashes.

use crate::engine::{Engine, StoreKind, unreachable_kind};
use crate::table::EngineTable;
use pluvio_format::Entry;
use pluvio_index::Slot;
use pluvio_log::Awaited;
use pluvio_memory::EpochGuard;
use pluvio_units::{HashRange, KeyHash, LogId, LogPosition, ObjectVersion};
use std::collections::BTreeMap;

/// One object of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanItem {
    /// Its key's hash.
    pub hash: KeyHash,
    /// Its key.
    pub key: Vec<u8>,
    /// Its version.
    pub version: ObjectVersion,
    /// Its value; empty when values were not asked for.
    pub value: Vec<u8>,
}

/// A stretch of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// All objects whose hashes lie from the start of the scan to `last`, by ascending hash.
    pub items: Vec<ScanItem>,
    /// The last hash that was covered.
    pub last: KeyHash,
}

impl Engine {
    /// Scans `range` from its start until about `items` objects or `bytes` of keys and values are
    /// there; objects with one hash stay together. An index bucket is looked at as a whole, so an
    /// object that is there all the time is found exactly once by scans that follow each other.
    pub fn scan(
        &self,
        table: &EngineTable,
        range: HashRange,
        items: usize,
        bytes: usize,
        values: bool,
    ) -> Awaited<Scan> {
        let mut found: Vec<ScanItem> = Vec::new();
        let mut size = 0;
        let mut pending: BTreeMap<LogId, LogPosition> = BTreeMap::new();
        let mut from = range.first;
        let last = loop {
            let (stretch_last, mut stretch) = self.scan_bucket(table, from, values, &mut pending);
            stretch.retain(|item| range.contains(item.hash));
            put_in_order(&mut stretch);
            size += stretch
                .iter()
                .map(|i| i.key.len() + i.value.len())
                .sum::<usize>();
            found.append(&mut stretch);
            let covered = stretch_last.min(range.last);
            if covered == range.last || found.len() >= items || size >= bytes {
                break covered;
            }
            from = KeyHash(covered.0 + 1);
        };
        let (items, last) = cut(found, last, items, bytes);
        // STORE-2.
        self.marks.marked(pending, Scan { items, last })
    }

    fn scan_bucket(
        &self,
        table: &EngineTable,
        from: KeyHash,
        values: bool,
        pending: &mut BTreeMap<LogId, LogPosition>,
    ) -> (KeyHash, Vec<ScanItem>) {
        let guard = self.space.pin();
        let mut slots = Vec::new();
        let last = table.indexes.scan(from, &mut slots);
        let mut items = Vec::with_capacity(slots.len());
        for slot in slots {
            let item = match self.kind {
                StoreKind::Replicated | StoreKind::Volatile => {
                    self.scan_appended(table, slot, (from, values), &guard, pending)
                }
                StoreKind::InPlace => self.scan_in_place(table, slot.entry, (from, values), &guard),
            };
            items.extend(item);
        }
        (last, items)
    }

    /// One object of a scan, where values do not change; `None` when its hash lies before `from`,
    /// and for tombstones. A pending entry of either kind is noted.
    fn scan_appended(
        &self,
        table: &EngineTable,
        slot: Slot,
        (from, values): (KeyHash, bool),
        guard: &EpochGuard<'_>,
        pending: &mut BTreeMap<LogId, LogPosition>,
    ) -> Option<ScanItem> {
        let view = self.view(slot.entry, guard);
        if let Some(wait) = self.pending(slot, view.total_len(), guard) {
            let known = pending.entry(wait.log).or_insert(wait.position);
            *known = wait.position.max(*known);
        }
        let object = match view.entry() {
            Entry::Object(object) => object,
            Entry::Tombstone(_) => return None,
            other => unreachable_kind(&other),
        };
        let hash = table.hash(object.key);
        (hash >= from).then(|| ScanItem {
            hash,
            key: object.key.to_vec(),
            version: object.version,
            value: if values {
                object.value.to_vec()
            } else {
                Vec::new()
            },
        })
    }
}

/// By ascending hash, each key once: one that is deleted and stored again while a bucket is looked
/// at may be seen in both of its slots, and the newer one counts.
fn put_in_order(stretch: &mut Vec<ScanItem>) {
    stretch.sort_by(|a, b| {
        let (of_a, of_b) = ((a.hash, &a.key), (b.hash, &b.key));
        of_a.cmp(&of_b).then(b.version.cmp(&a.version))
    });
    stretch.dedup_by(|older, newest| older.key == newest.key);
}

/// Drops what is beyond the limits, but never splits one hash and keeps at least one.
fn cut(
    mut found: Vec<ScanItem>,
    last: KeyHash,
    items: usize,
    bytes: usize,
) -> (Vec<ScanItem>, KeyHash) {
    let mut size = 0;
    for i in 0..found.len() {
        let new_hash = i > 0 && found[i].hash != found[i - 1].hash;
        if new_hash && (i >= items || size >= bytes) {
            let last = found[i - 1].hash;
            found.truncate(i);
            return (found, last);
        }
        size += found[i].key.len() + found[i].value.len();
    }
    (found, last)
}
