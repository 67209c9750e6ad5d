//! Reading the entries of closed segments and moving the live ones: what both levels share.
//!
//! To read a segment takes its bytes alone: what is dead has a bit that says so (LOG-15). The index
//! buckets of what is moved are asked for in groups, and are on their way from memory while the
//! group before is moved. Nothing is allocated for an entry.
//!
//! Reading them is here, moving them in `moving`.

mod moving;

pub(super) use moving::{Moved, Mover, Place};

use super::{Liveness, TableLiveness};
use crate::error::Corruption;
use crate::memory::{EntryView, Identity, LogBytes, LogMemory};
use crate::segments::{Segment, SegmentTable};

use pluvio_format::{Check, Entry, EntryHead, ParseErrorKind};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, KeyHash, SEGLET_BYTES, SegmentId, TableId, crc32c};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Entries that are asked for together before they are moved. Twice as many are under way at most,
/// with their index lines, and these stay in the first cache.
const GROUP: usize = 8;
/// The buckets of tombstones are asked for this many entries ahead: a few misses in flight where
/// neighbours are alike.
const TOMBSTONES_AHEAD: usize = 16;
/// Entries are prefetched this many lengths of the current one ahead: right when neighbours are
/// alike, harmless otherwise.
const ENTRIES_AHEAD: u32 = 6;

/// No segment: an entry that lives by itself.
const NO_SEGMENT: SegmentId = SegmentId(0);
/// No table is here for the entry.
const NO_TABLE: u32 = u32::MAX;
/// Completion records are the youngest of all survivors. They die within seconds or minutes,
/// whatever the age of the objects beside them, so they belong where most will die soon.
const COMPLETIONS_AGE_S: u32 = u32::MAX;

/// What an entry is to the cleaner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Object,
    Tombstone,
    Completion,
}

/// A segment being read.
pub(super) struct Source {
    pub(super) segment: Arc<Segment>,
    /// The bytes that counted as live when it was chosen.
    pub(super) live_bytes: u64,
    pub(super) seglets: Vec<u32>,
    pub(super) end: u32,
    pub(super) scanned: u32,
}

impl Source {
    /// `segment` was claimed, so its bytes stay.
    pub(super) fn new(segment: Arc<Segment>, live_bytes: u64) -> Self {
        Self {
            live_bytes,
            seglets: segment.contents().list(),
            end: segment.appended_len(),
            segment,
            scanned: 0,
        }
    }

    pub(super) fn is_scanned(&self) -> bool {
        self.scanned == self.end
    }

    /// Notes that cleaning it alone gains nothing until something in it dies.
    pub(super) fn set_barren(&self) {
        self.segment.note_barren(self.live_bytes);
    }
}

/// An entry that lives, or a tombstone that may.
pub(super) struct Survivor {
    pub(super) timestamp_s: u32,
    /// Number of its source.
    pub(super) source: u32,
    /// Where it lies in its source.
    pub(super) offset: u32,
    pub(super) len: u32,
    table: u32,
    kind: Kind,
    /// A tombstone that lives as long as the segment that it names is on disk, and no longer.
    while_named: bool,
    entry: EntryRef,
    hash: KeyHash,
    /// The segment that a tombstone names.
    named: SegmentId,
}

impl Survivor {
    /// Of an entry at `entry`; its place, and its table if it has one, are to be filled in.
    fn new(kind: Kind, timestamp_s: u32, entry: EntryRef) -> Self {
        Self {
            timestamp_s,
            source: 0,
            offset: 0,
            len: 0,
            table: NO_TABLE,
            kind,
            while_named: false,
            entry,
            hash: KeyHash(0),
            named: NO_SEGMENT,
        }
    }

    /// For a tombstone that is not in the index: it lives as long as this segment is on disk.
    pub(super) fn only_while(&self) -> Option<SegmentId> {
        self.while_named.then_some(self.named)
    }
}

/// The segments named by tombstones that a pass left behind. Noted in builds with debug assertions
/// only: in others the set stays empty.
#[derive(Default)]
pub(super) struct Dropped {
    named: BTreeSet<SegmentId>,
    last: Option<SegmentId>,
}

impl Dropped {
    pub(super) fn note(&mut self, entry: &Survivor) {
        // Neighbours name the same segments.
        let is_new = entry.kind == Kind::Tombstone && self.last != Some(entry.named);
        if cfg!(debug_assertions) && is_new {
            self.named.insert(entry.named);
            self.last = Some(entry.named);
        }
    }

    /// The segments that left tombstones named are gone from disk; or they go with the next digest
    /// of the pass's log, which `leave_with_it` tells.
    pub(super) fn check(&self, table: &SegmentTable, leave_with_it: impl Fn(&Segment) -> bool) {
        for &named in &self.named {
            assert!(
                !table.has_that(named, |segment| !leave_with_it(segment)),
                "CLEAN-5: tombstones that name segment {named} were dropped, and it stays on disk"
            );
        }
    }
}

/// The indexes that a pass has met.
#[derive(Default)]
pub(super) struct TableCache {
    numbers: BTreeMap<TableId, u32>,
    tables: Vec<Arc<dyn TableLiveness>>,
    last: Option<(TableId, u32)>,
}

impl TableCache {
    fn number(&mut self, id: TableId, liveness: &dyn Liveness) -> u32 {
        if let Some((last, number)) = self.last
            && last == id
        {
            return number;
        }
        let number = *self.numbers.entry(id).or_insert_with(|| {
            let Some(table) = liveness.table(id) else {
                return NO_TABLE;
            };
            self.tables.push(table);
            u32::try_from(self.tables.len() - 1).expect("fewer tables than entries")
        });
        self.last = Some((id, number));
        number
    }

    fn get(&self, number: u32) -> Option<&dyn TableLiveness> {
        self.tables.get(number as usize).map(|table| &**table)
    }
}

/// How a segment is read.
pub(super) struct Scan<'s> {
    /// Number of the source.
    pub(super) number: u32,
    /// About as many bytes are read.
    pub(super) bytes: usize,
    /// Whether a tombstone that names a segment may be needed.
    pub(super) needed_for: &'s dyn Fn(SegmentId) -> bool,
}

/// Reads segments and finds what lives in them.
#[derive(Clone, Copy)]
pub(super) struct Scanner<'c> {
    memory: &'c LogMemory,
    liveness: &'c dyn Liveness,
}

impl<'c> Scanner<'c> {
    pub(super) fn new(memory: &'c LogMemory, liveness: &'c dyn Liveness) -> Self {
        Self { memory, liveness }
    }

    /// Reads a slice of `source`, notes what lives in `live`, and returns how many bytes of the
    /// slice are left over. An object that is not known to be dead is taken for one that lives. The
    /// move finds out whether the index points to it. An entry left behind is compared with its
    /// checksum: a changed length would lead past entries that live (CLEAN-9). An entry that lives
    /// is compared when it is copied.
    pub(super) fn scan_slice(
        &self,
        source: &mut Source,
        tables: &mut TableCache,
        live: &mut Vec<Survivor>,
        dropped: &mut Dropped,
        scan: &Scan<'_>,
    ) -> Result<usize, Corruption> {
        let guard = self.memory.epochs().pin();
        let memory = self.memory;
        let start = source.scanned;
        let mut at = start;
        let first = live.len();
        let mut tombstones = false;
        while at < source.end && ((at - start) as usize) < scan.bytes {
            let seglet = source.seglets[at as usize / SEGLET_BYTES];
            let within = at as usize % SEGLET_BYTES;
            if memory.entries().is_padding(seglet, within, &guard) {
                if !memory.entries().is_blank(seglet, within, &guard) {
                    return Err(source.segment.corruption(at, ParseErrorKind::BadPadding));
                }
                at += (SEGLET_BYTES - within) as u32;
                continue;
            }
            let entry = EntryRef::new(LogBytes::base(seglet) + within as u64);
            // Most entries are objects in one piece.
            let (len, found) = match memory.entries().identity(entry, &guard) {
                Some(object) => {
                    let len = object.total_len;
                    let found = self.look_at_object(entry, &object, tables);
                    if found.is_none() {
                        self.check_dead(entry, len, &guard)?;
                    }
                    (len, found)
                }
                None => {
                    let view = memory.entries().view(entry, Check::Structure, &guard)?;
                    let found = self.look_at(&view, entry, tables);
                    if found.is_none() || !view.kind().is_object() {
                        // All but objects are small, and their content decides what is left behind.
                        memory.entries().view(entry, Check::Checksum, &guard)?;
                    }
                    (view.total_len(), found)
                }
            };
            let ahead = entry.offset() + u64::from(ENTRIES_AHEAD * len);
            memory.raw().prefetch(EntryRef::new(ahead), 1);
            if let Some(mut found) = found {
                (found.source, found.offset, found.len) = (scan.number, at, len);
                tombstones |= found.kind == Kind::Tombstone;
                live.push(found);
            }
            at += len;
        }
        if at > source.end {
            return Err(overrun(source, start));
        }
        if tombstones {
            keep_needed(live, first, tables, dropped, scan);
        }
        source.scanned = at;
        Ok(scan.bytes.saturating_sub((at - start) as usize))
    }

    /// An object, unless it is dead (LOG-15).
    #[inline]
    fn look_at_object(
        &self,
        entry: EntryRef,
        object: &Identity<'_>,
        tables: &mut TableCache,
    ) -> Option<Survivor> {
        let number = tables.number(object.table, self.liveness);
        let table = tables.get(number)?;
        if self.memory.is_dead(entry) {
            debug_assert!(
                !table.points_to(table.hash(object.key), entry),
                "LOG-15: the index points to {entry:?}, which is known to be dead"
            );
            return None;
        }
        Some(Survivor {
            table: number,
            hash: table.hash(object.key),
            ..Survivor::new(Kind::Object, object.timestamp_s, entry)
        })
    }

    /// Forgets objects that were taken for living without a place in the index. Their bits were
    /// lost, or are about to be set (LOG-15). Asks only if more was taken for living than counts as
    /// living in their segments. Gives whether there were any. Looks at a whole pass at once. It is
    /// called only when nothing would be gained otherwise.
    pub(super) fn forget_dead(
        &self,
        live: &mut Vec<Survivor>,
        tables: &TableCache,
        sources: &[Source],
    ) -> Result<bool, Corruption> {
        let memory = self.memory;
        let counted = |source: &Source| memory.live().of_slot(source.segment.slot());
        let counted = sources.iter().map(counted).sum();
        let objects = live.iter().filter(|found| found.kind != Kind::Tombstone);
        if objects.map(|found| u64::from(found.len)).sum::<u64>() <= counted {
            return Ok(false);
        }
        let guard = self.memory.epochs().pin();
        let mut wrong = None;
        let before = live.len();
        live.retain(|found| {
            let table = tables.get(found.table);
            let lives = found.kind != Kind::Object
                || table.is_some_and(|table| table.points_to(found.hash, found.entry));
            if !lives {
                pluvio_units::mark("cleaner-dead-bit-lost");
                memory.set_dead(found.entry, &guard);
                let checked = self.check_dead(found.entry, found.len, &guard);
                wrong = wrong.take().or(checked.err());
            }
            lives
        });
        wrong.map_or(Ok(live.len() < before), Err)
    }

    /// Compares an object that is left behind with its checksum, if it has one.
    pub(super) fn check_dead(
        &self,
        entry: EntryRef,
        len: u32,
        guard: &EpochGuard<'_>,
    ) -> Result<(), Corruption> {
        let memory = self.memory;
        let intact = match memory.possible(Check::Checksum) {
            Check::Structure => true,
            Check::Checksum => memory
                .entries()
                .whole_entry(entry, len, guard)
                .is_some_and(|bytes| is_intact(&[bytes])),
        };
        if !intact {
            // What is wrong with it.
            memory.entries().view(entry, Check::Checksum, guard)?;
        }
        Ok(())
    }

    /// An object that is not known to be dead, a tombstone, or a record that lives.
    fn look_at(
        &self,
        view: &EntryView<'_>,
        entry: EntryRef,
        tables: &mut TableCache,
    ) -> Option<Survivor> {
        match view.entry() {
            Entry::Object(object) => {
                let identity = Identity {
                    table: object.table,
                    timestamp_s: object.timestamp_s,
                    key: object.key,
                    total_len: view.total_len(),
                };
                self.look_at_object(entry, &identity, tables)
            }
            Entry::Tombstone(tombstone) => {
                let table = tables.number(tombstone.table, self.liveness);
                let hash_of = |table: &dyn TableLiveness| table.hash(tombstone.key);
                Some(Survivor {
                    named: tombstone.segment,
                    while_named: true,
                    table,
                    hash: tables.get(table).map_or(KeyHash(0), hash_of),
                    ..Survivor::new(Kind::Tombstone, tombstone.timestamp_s, entry)
                })
            }
            Entry::Completion(record) => {
                let lives = self.liveness.needs_completion(&record, entry);
                lives.then(|| Survivor::new(Kind::Completion, COMPLETIONS_AGE_S, entry))
            }
            // The newest head has its own.
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Horizon(_) => None,
        }
    }
}

/// Whether these are the bytes of one entry with its checksum.
fn is_intact(pieces: &[&[u8]]) -> bool {
    let Some((&first, rest)) = pieces.split_first() else {
        return false;
    };
    let rest_len: usize = rest.iter().map(|piece| piece.len()).sum();
    EntryHead::read(first).is_ok_and(|head| {
        head.total_len() == first.len() + rest_len
            && first
                .split_at_checked(head.header_len)
                .is_some_and(|(header, body)| {
                    let covered = &header[..head.header_len - size_of::<u32>()];
                    let crc = match rest {
                        [] => crc32c(&[covered, body]),
                        _ => crc32c(&[&[covered, body], rest].concat()),
                    };
                    crc == head.crc
                })
    })
}

/// Leaves out the tombstones from the `first` entry of `live` on that nothing needs.
fn keep_needed(
    live: &mut Vec<Survivor>,
    first: usize,
    tables: &TableCache,
    dropped: &mut Dropped,
    scan: &Scan<'_>,
) {
    let mut found = live.split_off(first);
    for at in 0..found.len() {
        let ahead = found.get(at + TOMBSTONES_AHEAD);
        if let Some(ahead) = ahead.filter(|ahead| ahead.kind == Kind::Tombstone) {
            prefetch_each(core::slice::from_ref(ahead), tables);
        }
        let tombstone = &mut found[at];
        if tombstone.kind == Kind::Tombstone
            && let Some(table) = tables.get(tombstone.table)
            && table.needs_tombstone(tombstone.hash, tombstone.entry)
        {
            tombstone.while_named = false;
        }
    }
    live.extend(found.into_iter().filter(|found| {
        let lives = found.only_while().is_none_or(scan.needed_for);
        if !lives {
            dropped.note(found);
        }
        lives
    }));
}

/// Asks for the buckets of some entries, [`GROUP`] at most.
fn prefetch_each(entries: &[Survivor], tables: &TableCache) {
    let mut hashes = [KeyHash(0); GROUP];
    for run in entries.chunk_by(|a, b| a.table == b.table) {
        let Some(table) = tables.get(run[0].table) else {
            continue;
        };
        let hashes = &mut hashes[..run.len()];
        for (hash, entry) in hashes.iter_mut().zip(run) {
            *hash = entry.hash;
        }
        table.prefetch_each(hashes);
    }
}

/// An entry that reaches beyond its segment's end.
fn overrun(source: &Source, offset: u32) -> Corruption {
    let seglet = source.seglets[offset as usize / SEGLET_BYTES];
    Corruption {
        entry: EntryRef::new(LogBytes::base(seglet) + u64::from(offset) % SEGLET_BYTES as u64),
        segment: source.segment.id(),
        offset,
        what: ParseErrorKind::Truncated,
    }
}
