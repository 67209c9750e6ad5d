//! Objects in the order of their ranks.

use crate::engine::prepared::current_of;
use crate::engine::{Engine, StoreKind, unreachable_kind};
use crate::table::EngineTable;
use pluvio_format::Entry;
use pluvio_index::Slot;
use pluvio_log::Awaited;
use pluvio_memory::EpochGuard;
use pluvio_units::{Deadline, HashKind, HashRange, LogId, LogPosition, ObjectVersion, Rank};
use std::collections::BTreeMap;

/// One object of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanItem {
    /// Its key's rank.
    pub rank: Rank,
    /// Its key.
    pub key: Vec<u8>,
    /// Its version.
    pub version: ObjectVersion,
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
    /// Its value; empty when values were not asked for.
    pub value: Vec<u8>,
}

/// A stretch of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// All objects of the range whose ranks lie from the start of the scan to `last`, in their
    /// order.
    pub items: Vec<ScanItem>,
    /// The last rank that was covered. Behind it a group of ranks begins
    /// ([`HashKind::group_bits`]), or the range ends.
    pub last: Rank,
    /// Whether the range ends there.
    pub is_end: bool,
    /// Whether a transaction has locked an object of the first group of ranks. What it is cannot be
    /// said, so nothing is there. One that is locked behind others ends the scan in front of it.
    pub is_locked: bool,
}

/// Where a scan begins, and how much of its objects is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanOptions {
    /// The first rank.
    pub from: Rank,
    /// About how many objects.
    pub items: usize,
    /// About how many bytes of keys and values.
    pub bytes: usize,
    /// Whether values are wanted.
    pub values: bool,
}

/// Buckets looked at in one scan, about a millisecond's work. A range of few slots may share its
/// index with many others, or be nearly empty.
const BUCKETS_MAX: u32 = 4096;

impl Engine {
    /// Scans `range` from a rank on until about as much is there as is wanted; objects of one group
    /// of ranks stay together. An index bucket is looked at as a whole, so an object that is there
    /// all the time is found exactly once by scans that follow each other. After
    /// `BUCKETS_MAX` buckets it ends, perhaps without an object. It ends in front of the first
    /// object that a transaction has locked, too. So scans come on while there are always some.
    pub fn scan(
        &self,
        table: &EngineTable,
        range: HashRange,
        options: ScanOptions,
    ) -> Awaited<Scan> {
        let kind = table.hash_kind();
        let (first, end) = ranks_of(kind, range);
        let first = first.max(options.from);
        let mut found: Vec<ScanItem> = Vec::new();
        let (mut size, mut buckets, mut is_locked) = (0, 0, false);
        let mut pending: BTreeMap<LogId, LogPosition> = BTreeMap::new();
        let mut from = first;
        let last = loop {
            let at = (from, options.values);
            let (covered, mut stretch, locked) = self.scan_bucket(table, range, at, &mut pending);
            let locked = locked.filter(|rank| *rank <= end);
            let covered = covered.min(end).min(locked.unwrap_or(end));
            stretch.retain(|item| item.rank <= covered);
            put_in_order(&mut stretch);
            size += stretch.iter().map(bytes_of).sum::<usize>();
            found.append(&mut stretch);
            if let Some(Rank(locked)) = locked {
                pluvio_units::mark("scan-ends-before-locked-object");
                let before = locked.checked_sub(1).map(Rank);
                let whole = before.and_then(|before| last_of_whole_groups(kind, first, before));
                is_locked = whole.is_none();
                let kept = |item: &ScanItem| whole.is_some_and(|whole| item.rank <= whole);
                found.truncate(found.partition_point(kept));
                break whole.unwrap_or(first);
            }
            if covered == end {
                break end;
            }
            buckets += 1;
            let is_enough = found.len() >= options.items || size >= options.bytes;
            if (is_enough || buckets >= BUCKETS_MAX)
                && let Some(whole) = last_of_whole_groups(kind, first, covered)
            {
                found.truncate(found.partition_point(|item| item.rank <= whole));
                break whole;
            }
            from = Rank(covered.0 + 1);
        };
        let (items, last) = cut(found, last, kind, &options);
        let is_end = last == end;
        // STORE-2.
        self.marks.marked(
            pending,
            Scan {
                items,
                last,
                is_end,
                is_locked,
            },
        )
    }

    /// The objects of one bucket from a rank on, and the last rank of the bucket. With them the
    /// lowest rank of an object that a transaction has locked.
    fn scan_bucket(
        &self,
        table: &EngineTable,
        range: HashRange,
        (from, values): (Rank, bool),
        pending: &mut BTreeMap<LogId, LogPosition>,
    ) -> (Rank, Vec<ScanItem>, Option<Rank>) {
        let guard = self.space.pin();
        let mut slots = Vec::new();
        let last = table.indexes.scan(range, from, &mut slots);
        let wanted = Wanted {
            range,
            from,
            values,
        };
        let (mut items, mut locked) = (Vec::with_capacity(slots.len()), None::<Rank>);
        for slot in slots {
            let item = match self.kind {
                StoreKind::Replicated | StoreKind::Volatile => {
                    let item = self.scan_appended(table, slot, &wanted, &guard, pending);
                    item.unwrap_or_else(|Locked(rank)| {
                        locked = Some(locked.map_or(rank, |lowest| lowest.min(rank)));
                        None
                    })
                }
                StoreKind::InPlace => self.scan_in_place(table, slot.entry, &wanted, &guard),
            };
            items.extend(item);
        }
        (last, items, locked)
    }

    /// One object of a scan, where values do not change; `None` when it is not wanted, and for
    /// tombstones and for what has expired. A pending entry of any kind is noted.
    ///
    /// # Errors
    /// [`Locked`].
    fn scan_appended(
        &self,
        table: &EngineTable,
        slot: Slot,
        wanted: &Wanted,
        guard: &EpochGuard<'_>,
        pending: &mut BTreeMap<LogId, LogPosition>,
    ) -> Result<Option<ScanItem>, Locked> {
        let view = self.view(slot.entry, guard);
        if let Some(wait) = self.pending(slot, view.total_len(), guard) {
            let known = pending.entry(wait.log).or_insert(wait.position);
            *known = wait.position.max(*known);
        }
        let object = match view.entry() {
            Entry::Object(object) => object,
            Entry::Tombstone(_) => return Ok(None),
            other => unreachable_kind(&other),
        };
        if self.is_gone(table, &object) {
            return Ok(None);
        }
        let Some(rank) = wanted.rank(table, object.key) else {
            return Ok(None);
        };
        let Ok(current) = current_of(Some(&object)) else {
            return Err(Locked(rank));
        };
        Ok(current.map(|current| ScanItem {
            rank,
            key: object.key.to_vec(),
            version: current.version,
            deadline: current.deadline,
            value: match wanted.values {
                true => current.value.to_vec(),
                false => Vec::new(),
            },
        }))
    }
}

/// A transaction has locked an object of this rank.
struct Locked(Rank);

/// What of a bucket is wanted.
pub(crate) struct Wanted {
    range: HashRange,
    from: Rank,
    /// Whether values are.
    pub(crate) values: bool,
}

impl Wanted {
    /// The rank of a key that is wanted.
    pub(crate) fn rank(&self, table: &EngineTable, key: &[u8]) -> Option<Rank> {
        let hash = table.hash(key);
        let rank = table.hash_kind().rank(hash);
        (self.range.contains(hash) && rank >= self.from).then_some(rank)
    }
}

fn bytes_of(item: &ScanItem) -> usize {
    item.key.len() + item.value.len()
}

/// The first and the last rank that hashes of `range` may have.
pub(crate) fn ranks_of(kind: HashKind, range: HashRange) -> (Rank, Rank) {
    match kind {
        HashKind::Seeded => (kind.rank(range.first), kind.rank(range.last)),
        HashKind::Slots => (Rank(0), Rank(u64::MAX)),
    }
}

/// The last rank of the last group that ends from `first` to `covered`.
fn last_of_whole_groups(kind: HashKind, first: Rank, covered: Rank) -> Option<Rank> {
    let bits = kind.group_bits();
    let last = ((covered.0 + 1) >> bits << bits).checked_sub(1)?;
    (last >= first.0).then_some(Rank(last))
}

/// By ascending rank, each key once: one that is deleted and stored again while a bucket is looked
/// at may be seen in both of its slots, and the newer one counts.
fn put_in_order(stretch: &mut Vec<ScanItem>) {
    stretch.sort_by(|a, b| {
        let (of_a, of_b) = ((a.rank, &a.key), (b.rank, &b.key));
        of_a.cmp(&of_b).then(b.version.cmp(&a.version))
    });
    stretch.dedup_by(|older, newest| older.key == newest.key);
}

/// Drops what is beyond the limits, but never splits a group of ranks and keeps at least one.
fn cut(
    mut found: Vec<ScanItem>,
    last: Rank,
    kind: HashKind,
    options: &ScanOptions,
) -> (Vec<ScanItem>, Rank) {
    let group = |item: &ScanItem| item.rank.0 >> kind.group_bits();
    let mut size = 0;
    for i in 0..found.len() {
        let is_new = i > 0 && group(&found[i]) != group(&found[i - 1]);
        if is_new && (i >= options.items || size >= options.bytes) {
            let next = group(&found[i]) << kind.group_bits();
            found.truncate(i);
            return (found, Rank(next - 1));
        }
        size += bytes_of(&found[i]);
    }
    (found, last)
}
