//! Reading the entries of closed segments and moving the live ones: what both levels share.
//!
//! Entries are looked at in batches: the index buckets of a batch are asked for together, and are on their way from memory
//! while those of the batch before are looked at and the next entries are parsed. Nothing is allocated for an entry.
//!
//! Reading them is here, moving them in `moving`.

mod moving;

pub(super) use moving::{Moved, Place};

use super::{Asked, Cleaner, Liveness, TableLiveness};
use crate::error::Corruption;
use crate::memory::LogMemory;
use crate::segment::Segment;
use crate::view::EntryView;
use pluvio_format::{Check, Entry, EntryHead, EntryKind, ParseErrorKind};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, KeyHash, SEGLET_BYTES, SegmentId, TableId, crc32c};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

/// Entries whose buckets are asked for together: twice as many are under way at most, of two lines each, which stay in the
/// first cache, and no fewer than a core has misses in flight.
const BATCH: usize = 16;
/// Entries are prefetched so many lengths of the current one ahead: right when neighbours are alike,
/// harmless otherwise.
const ENTRIES_AHEAD: u32 = 6;

/// No segment: an entry that lives by itself.
const NO_SEGMENT: SegmentId = SegmentId(0);
/// No table is here for the entry.
const NO_TABLE: u32 = u32::MAX;
/// Completion records are the youngest of all survivors: they die within seconds or minutes, whatever
/// the age of the objects beside them, so they belong where most will die soon.
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
    /// What was counted as live when it was chosen.
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
            seglets: segment.seglet_list(),
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
        let live_bytes = u32::try_from(self.live_bytes).unwrap_or(u32::MAX);
        self.segment.set_barren_at(live_bytes);
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
    /// See [`Asked::away`].
    away: bool,
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
            away: false,
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

/// The segments named by tombstones that a pass left behind. Noted in builds with debug assertions only: in others the
/// set stays empty.
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

impl Cleaner {
    /// Reads a slice of `source`, notes what lives in `live`, and returns how many bytes of the slice
    /// are left over.
    pub(super) fn scan_slice(
        &self,
        source: &mut Source,
        tables: &mut TableCache,
        live: &mut Vec<Survivor>,
        dropped: &mut Dropped,
        scan: &Scan<'_>,
    ) -> Result<usize, Corruption> {
        let guard = self.space.pin();
        let memory = &*self.space.memory;
        let start = source.scanned;
        let mut at = start;
        let mut batch = Vec::with_capacity(2 * BATCH);
        while at < source.end && ((at - start) as usize) < scan.bytes {
            let seglet = source.seglets[at as usize / SEGLET_BYTES];
            let within = at as usize % SEGLET_BYTES;
            if memory.is_padding(seglet, within, &guard) {
                if !memory.is_blank(seglet, within, &guard) {
                    return Err(source.segment.corruption(at, ParseErrorKind::BadPadding));
                }
                at += (SEGLET_BYTES - within) as u32;
                continue;
            }
            let entry = EntryRef::new(LogMemory::base(seglet) + within as u64);
            // Most entries are objects in one piece.
            let (len, found) = match memory.identity(entry, &guard) {
                Some(object) => {
                    let found = Survivor::new(Kind::Object, object.timestamp_s, entry);
                    let found = self.look_up(found, object.table, object.key, tables);
                    (object.total_len, Some(found))
                }
                None => {
                    let view = memory.view(entry, Check::Structure, &guard)?;
                    if view.kind() != EntryKind::Object {
                        // They are small, and what they say decides what is left behind (CLEAN-9).
                        memory.view(entry, Check::Checksum, &guard)?;
                    }
                    (view.total_len(), self.look_at(&view, entry, tables))
                }
            };
            let ahead = entry.offset() + u64::from(ENTRIES_AHEAD * len);
            memory.prefetch(EntryRef::new(ahead), 1);
            if let Some(mut found) = found {
                (found.source, found.offset, found.len) = (scan.number, at, len);
                batch.push(found);
                if batch.len() == BATCH {
                    prefetch_each(&batch, tables);
                } else if batch.len() == 2 * BATCH {
                    prefetch_each(&batch[BATCH..], tables);
                    let older = batch.drain(..BATCH);
                    self.keep_living(older, tables, live, dropped, scan, &guard)?;
                }
            }
            at += len;
        }
        if at > source.end {
            return Err(overrun(source, start));
        }
        // Those behind the last full batch were not asked for.
        let rest = batch.split_off(batch.len() / BATCH * BATCH);
        prefetch_each(&rest, tables);
        self.keep_living(batch.drain(..), tables, live, dropped, scan, &guard)?;
        self.keep_living(rest.into_iter(), tables, live, dropped, scan, &guard)?;
        source.scanned = at;
        Ok(scan.bytes.saturating_sub((at - start) as usize))
    }

    /// Asks the index about a batch, or less, and keeps what lives. What is left behind is compared with its
    /// checksum: its key or its table may have changed, and the index was asked about another object (CLEAN-9). What lives is compared when it is copied.
    fn keep_living(
        &self,
        batch: impl Iterator<Item = Survivor> + AsRef<[Survivor]>,
        tables: &TableCache,
        live: &mut Vec<Survivor>,
        dropped: &mut Dropped,
        scan: &Scan<'_>,
        guard: &EpochGuard<'_>,
    ) -> Result<(), Corruption> {
        let asked = by_table(&batch, tables, |table, asked| table.points_to_each(asked));
        for (mut found, asked) in batch.zip(asked) {
            let table = tables.get(found.table);
            let lives = match found.kind {
                Kind::Object => {
                    found.away = asked.away;
                    asked.lives
                }
                Kind::Tombstone => {
                    if table.is_some_and(|table| table.needs_tombstone(found.hash, found.entry)) {
                        found.while_named = false;
                    }
                    found.only_while().is_none_or(scan.needed_for)
                }
                // Asked when it was found.
                Kind::Completion => true,
            };
            if lives {
                live.push(found);
                continue;
            }
            match found.kind {
                Kind::Object => self.check_dead(&found, guard)?,
                // Compared when they were scanned.
                Kind::Tombstone | Kind::Completion => {}
            }
            dropped.note(&found);
        }
        Ok(())
    }

    fn check_dead(&self, found: &Survivor, guard: &EpochGuard<'_>) -> Result<(), Corruption> {
        let memory = &self.space.memory;
        let intact = match memory.possible(Check::Checksum) {
            Check::Structure => true,
            Check::Checksum => memory
                .whole_entry(found.entry, found.len, guard)
                .is_some_and(is_intact),
        };
        if !intact {
            // What is not whole, or what is wrong with it.
            memory.view(found.entry, Check::Checksum, guard)?;
        }
        Ok(())
    }

    /// An entry that the index has to be asked about, a tombstone, or a record that lives.
    fn look_at(
        &self,
        view: &EntryView<'_>,
        entry: EntryRef,
        tables: &mut TableCache,
    ) -> Option<Survivor> {
        match view.entry() {
            Entry::Object(object) => {
                let found = Survivor::new(Kind::Object, object.timestamp_s, entry);
                Some(self.look_up(found, object.table, object.key, tables))
            }
            Entry::Tombstone(tombstone) => {
                let found = Survivor {
                    named: tombstone.segment,
                    while_named: true,
                    ..Survivor::new(Kind::Tombstone, tombstone.timestamp_s, entry)
                };
                Some(self.look_up(found, tombstone.table, tombstone.key, tables))
            }
            Entry::Completion(record) => {
                let lives = self.liveness.needs_completion(&record, entry);
                lives.then(|| Survivor::new(Kind::Completion, COMPLETIONS_AGE_S, entry))
            }
            // The newest head has its own.
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_) => None,
        }
    }

    /// Notes table and hash of an entry.
    fn look_up(
        &self,
        found: Survivor,
        id: TableId,
        key: &[u8],
        tables: &mut TableCache,
    ) -> Survivor {
        let table = tables.number(id, &*self.liveness);
        let hash = tables.get(table).map_or(KeyHash(0), |t| t.hash(key));
        Survivor {
            table,
            hash,
            ..found
        }
    }

    /// The segments that left tombstones named are gone from disk; or they go with the next digest of the pass's log, which
    /// `leave_with_it` tells.
    pub(super) fn check_dropped(
        &self,
        dropped: &Dropped,
        leave_with_it: impl Fn(&Segment) -> bool,
    ) {
        let on_disk = self.space.on_disk.read();
        let on_disk = on_disk.unwrap_or_else(PoisonError::into_inner);
        for named in dropped.named.iter().filter_map(|id| on_disk.get(id)) {
            assert!(
                leave_with_it(named),
                "CLEAN-5: tombstones that name segment {} were dropped, and it stays on disk",
                named.id()
            );
        }
    }
}

/// Whether these are the bytes of one entry with its checksum.
fn is_intact(bytes: &[u8]) -> bool {
    EntryHead::read(bytes).is_ok_and(|head| {
        head.total_len() == bytes.len() && {
            let (header, body) = bytes.split_at(head.header_len);
            let covered = &header[..head.header_len - size_of::<u32>()];
            crc32c(&[covered, body]) == head.crc
        }
    })
}

/// Calls `ask` for each run of entries of one table, with questions about them, and with their places. They are one batch, or
/// less.
fn by_table<T: AsRef<[Survivor]>>(
    entries: T,
    tables: &TableCache,
    mut ask: impl FnMut(&dyn TableLiveness, &mut [Asked]),
) -> [Asked; BATCH] {
    let mut asked = [Asked::new(KeyHash(0), EntryRef::new(0)); BATCH];
    let mut first = 0;
    for run in entries.as_ref().chunk_by(|a, b| a.table == b.table) {
        let asked = &mut asked[first..first + run.len()];
        for (one, entry) in asked.iter_mut().zip(run) {
            *one = Asked::new(entry.hash, entry.entry);
        }
        if let Some(table) = tables.get(run[0].table) {
            ask(table, asked);
        }
        first += run.len();
    }
    asked
}

/// Asks for the buckets of a batch, or less.
fn prefetch_each(entries: &[Survivor], tables: &TableCache) {
    by_table(entries, tables, |table, asked| table.prefetch_each(asked));
}

/// An entry that reaches beyond its segment's end.
fn overrun(source: &Source, offset: u32) -> Corruption {
    let seglet = source.seglets[offset as usize / SEGLET_BYTES];
    Corruption {
        entry: EntryRef::new(LogMemory::base(seglet) + u64::from(offset) % SEGLET_BYTES as u64),
        segment: source.segment.id(),
        offset,
        what: ParseErrorKind::Truncated,
    }
}
