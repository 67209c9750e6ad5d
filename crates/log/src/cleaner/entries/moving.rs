//! Moving the entries that live: what is asked for ahead, the copy, and the swing of what points to
//! it.

use super::{GROUP, Kind, Scanner, Survivor, TableCache, is_intact, prefetch_each};
use crate::append::SegmentWriter;
use crate::cleaner::Liveness;
use crate::error::Corruption;
use crate::memory::LogMemory;
use crate::segments::TombstoneTargets;
use pluvio_format::{Check, Encoded, Entry, EntryHead};
use pluvio_memory::EpochGuard;
use pluvio_units::EntryRef;

/// Of an entry that is to be moved, so many cache lines are asked for: the processor sees by itself
/// that more follow.
const LINES_MAX: u64 = 3;

/// Copies entries that live to where they survive, and swings what points to them.
#[derive(Clone, Copy)]
pub(in crate::cleaner) struct Mover<'c> {
    memory: &'c LogMemory,
    liveness: &'c dyn Liveness,
}

impl<'c> Mover<'c> {
    pub(in crate::cleaner) fn new(memory: &'c LogMemory, liveness: &'c dyn Liveness) -> Self {
        Self { memory, liveness }
    }

    /// Asks for the bytes and the buckets of entries that will be moved soon, a group at a time. To
    /// be called before each entry of `live`; those from `begun` on are moved one after the other.
    /// Lines that are found only by following these are asked for later.
    #[inline]
    pub(in crate::cleaner) fn prefetch_ahead(
        &self,
        live: &[Survivor],
        (begun, at): (usize, usize),
        tables: &TableCache,
    ) {
        if !(at - begun).is_multiple_of(GROUP) {
            return;
        }
        let group = |first: usize| {
            let rest = live.get(first..).unwrap_or(&[]);
            &rest[..rest.len().min(GROUP)]
        };
        let (now, next) = (group(at), group(at + GROUP));
        if at == begun {
            self.prefetch_group(now, tables);
        }
        self.prefetch_group(next, tables);
    }

    fn prefetch_group(&self, group: &[Survivor], tables: &TableCache) {
        for survivor in group {
            let lines = u64::from(survivor.len).div_ceil(64).min(LINES_MAX);
            self.memory.raw().prefetch(survivor.entry, lines);
        }
        prefetch_each(group, tables);
    }

    /// Compares one entry with its checksum, copies it behind `writer`, which has room for it, and
    /// swings the index to it. An entry that died since the scan leaves nothing behind (CLEAN-6).
    pub(in crate::cleaner) fn move_entry(
        &self,
        survivor: &Survivor,
        writer: &mut SegmentWriter,
        tables: &TableCache,
        place: &mut Place<'_>,
        guard: &EpochGuard<'_>,
    ) -> Result<(), Corruption> {
        if survivor.kind == Kind::Object && self.memory.is_dead(survivor.entry) {
            return Scanner::new(self.memory, self.liveness).check_dead(
                survivor.entry,
                survivor.len,
                guard,
            );
        }
        let before = writer.at();
        let planned = writer.end_after(core::iter::once(survivor.len as usize));
        let new = match self.copy_whole(survivor, writer, guard) {
            Some(new) => new,
            None => self.copy_view(survivor, writer, guard)?,
        };
        let is_needed = match survivor.kind {
            Kind::Tombstone => {
                // Needed on disk, whether or not the index has it.
                if survivor.only_while().is_none() {
                    swing(survivor, new, tables);
                }
                place.count_tombstone(survivor, writer);
                check_copied(writer, planned);
                return Ok(());
            }
            Kind::Object => swing(survivor, new, tables),
            Kind::Completion => self.swing_completion(survivor, new, guard)?,
        };
        if is_needed {
            place.count_live(survivor);
            check_copied(writer, planned);
        } else {
            writer.rewind(before);
        }
        Ok(())
    }

    /// Makes the table of results point to the copy, if it points to the record.
    fn swing_completion(
        &self,
        survivor: &Survivor,
        new: EntryRef,
        guard: &EpochGuard<'_>,
    ) -> Result<bool, Corruption> {
        let memory = self.memory;
        let view = memory
            .entries()
            .view(survivor.entry, Check::Structure, guard)?;
        let Entry::Completion(record) = view.entry() else {
            unreachable!("it was a completion record when it was scanned");
        };
        Ok(self
            .liveness
            .relocate_completion(&record, survivor.entry, new))
    }

    /// Copies an entry as it is, when it stands alone.
    fn copy_whole(
        &self,
        survivor: &Survivor,
        writer: &mut SegmentWriter,
        guard: &EpochGuard<'_>,
    ) -> Option<EntryRef> {
        let entries = self.memory.entries();
        let Some(bytes) = entries.whole_entry(survivor.entry, survivor.len, guard) else {
            let pieces = entries.pieces(survivor.entry, survivor.len, guard)?;
            return self.stands_alone(&pieces).then(|| writer.put(&pieces));
        };
        // Whatever is wrong, or only unusual, is found out by the slow path.
        self.stands_alone(&[bytes]).then(|| {
            writer
                .put_within(&[bytes, &[], &[]])
                .unwrap_or_else(|| writer.put(&[bytes]))
        })
    }

    /// Whether these are the bytes of one entry as it was written, the last of its group.
    #[inline]
    fn stands_alone(&self, pieces: &[&[u8]]) -> bool {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let head = pieces.first().and_then(|first| EntryHead::read(first).ok());
        head.is_some_and(|head| {
            head.total_len() == len
                && !head.group_continues
                && match self.memory.possible(Check::Checksum) {
                    Check::Structure => true,
                    Check::Checksum => is_intact(pieces),
                }
        })
    }

    /// Copies an entry that has to be put together, or encoded anew.
    fn copy_view(
        &self,
        survivor: &Survivor,
        writer: &mut SegmentWriter,
        guard: &EpochGuard<'_>,
    ) -> Result<EntryRef, Corruption> {
        let view = self
            .memory
            .entries()
            .view(survivor.entry, Check::Checksum, guard)?;
        Ok(if view.head().group_continues {
            // The copy stands alone, under a checksum of its own; its group was complete.
            let encoded = Encoded::new(&view.entry(), false).expect("it was encoded before");
            writer.put(&encoded.parts())
        } else {
            writer.put(&[view.bytes()])
        })
    }
}

/// One copy was added, and nothing else.
fn check_copied(writer: &SegmentWriter, planned: u32) {
    debug_assert_eq!(
        writer.at(),
        planned,
        "CLEAN-6: a survivor has what was asked for and nothing else"
    );
}

/// Makes the index point to the copy, if it points to the entry.
fn swing(survivor: &Survivor, new: EntryRef, tables: &TableCache) -> bool {
    tables
        .get(survivor.table)
        .is_some_and(|table| table.relocate(survivor.hash, survivor.entry, new))
}

/// Live bytes that were moved, by source; counted in the segments' counters now and then.
#[derive(Default)]
pub(in crate::cleaner) struct Moved {
    /// Bytes that came to the survivor.
    pub(in crate::cleaner) came: i64,
    /// Bytes that went from each source.
    pub(in crate::cleaner) went: Vec<i64>,
}

impl Place<'_> {
    fn count_tombstone(&mut self, survivor: &Survivor, writer: &SegmentWriter) {
        let (named, len) = (survivor.named, survivor.len);
        match self {
            Place::Survivor(_) => writer.segment().tombstones().add(named, len),
            Place::SameSegment(targets) => targets.add(named, len),
        }
    }

    fn count_live(&mut self, survivor: &Survivor) {
        match self {
            Place::Survivor(moved) => {
                moved.came += i64::from(survivor.len);
                moved.went[survivor.source as usize] += i64::from(survivor.len);
            }
            // Live bytes are counted by segment, and it stays in its segment.
            Place::SameSegment(_) => {}
        }
    }
}

/// Where copies go.
pub(in crate::cleaner) enum Place<'p> {
    /// To another segment of the log.
    Survivor(&'p mut Moved),
    /// To new bytes of their segment, whose tombstones are counted here.
    SameSegment(&'p mut TombstoneTargets),
}
