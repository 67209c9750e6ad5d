//! Compaction: what lives in one segment is copied to fewer seglets of the same segment [LSM-DRAM
//! §5].
//!
//! The segment keeps its id, its place in the digests and its replicas, which keep what died. So no
//! network and no disk is needed, and a tombstone that names it stays needed. Entries dropped from
//! memory must be dead for good before the old bytes go: replication copies a lost replica from the
//! new ones (CLEAN-8).

use super::entries::{Dropped, Place, Scan, Source, Survivor, TableCache};
use super::{IDLE, Shared, Stage};
use crate::append::{SIDE_HEADER_BYTES, SegmentWriter};
use crate::error::Corruption;
use crate::memory::Packing;
use crate::segments::{Retired, TombstoneTargets};
use pluvio_format::Encoded;
use pluvio_memory::SegletClass;
use pluvio_units::{LogId, LogPosition, Pace, SEGLET_BYTES};
use std::sync::Arc;

/// Compactions that may wait to be durable while the next one runs. With one, a cleaner would idle
/// for a round trip to the backups after each; more would only hold memory.
const FINISHED_MAX: usize = 3;

/// The state of a compaction.
pub(super) struct Compaction {
    source: Source,
    tables: TableCache,
    live: Vec<Survivor>,
    moved: usize,
    writer: Option<SegmentWriter>,
    tombstones: TombstoneTargets,
    await_positions: Vec<(LogId, LogPosition)>,
    dropped: Dropped,
    gain: usize,
}

impl Compaction {
    /// A compaction of a segment that was claimed for it, with an empty list for what lives there.
    pub(super) fn new(source: Source, live: Vec<Survivor>) -> Self {
        Self {
            source,
            tables: TableCache::default(),
            live,
            moved: 0,
            writer: None,
            tombstones: TombstoneTargets::default(),
            await_positions: Vec::new(),
            dropped: Dropped::default(),
            gain: 0,
        }
    }

    /// Ends a compaction that has not begun to read; its segment stays claimed.
    #[cfg(feature = "made-up")]
    pub(super) fn into_victims(self, shared: &Shared) -> Vec<Arc<crate::segments::Segment>> {
        shared.lists.give_back(self.live);
        vec![self.source.segment]
    }
}

impl Compaction {
    /// Reads a slice; after the last one, takes memory for what lives.
    pub(super) fn scan(mut self, shared: &Shared) -> Result<(Stage, Pace), Corruption> {
        let table = &shared.storage().table;
        let scan = Scan {
            number: 0,
            bytes: shared.options.slice_bytes,
            // Not even when that segment is leaving: only a digest drops it, and none is
            // written for this (CLEAN-5).
            needed_for: &|id| table.contains(id),
        };
        shared.scanner().scan_slice(
            &mut self.source,
            &mut self.tables,
            &mut self.live,
            &mut self.dropped,
            &scan,
        )?;
        if !self.source.is_scanned() {
            return Ok((Stage::CompactScan(self), Pace::Again));
        }
        self.plan(shared)
    }

    fn plan(mut self, shared: &Shared) -> Result<(Stage, Pace), Corruption> {
        let mut needed = seglets_for(&self.live, shared.memory().packing());
        if needed >= self.source.seglets.len() {
            let sources = core::slice::from_ref(&self.source);
            shared
                .scanner()
                .forget_dead(&mut self.live, &self.tables, sources)?;
            needed = seglets_for(&self.live, shared.memory().packing());
        }
        let source = &self.source;
        let gain = source.seglets.len().saturating_sub(needed);
        let part = shared.space.heads.log(source.segment.log()).part;
        let take = || {
            shared
                .storage()
                .take_reserved(part, SegletClass::Cleaner, needed)
        };
        let seglets = (gain > 0).then(take).flatten();
        let Some(seglets) = seglets else {
            if gain == 0 {
                source.set_barren();
                shared.add(|c| &c.barren_passes, 1);
            } else {
                // Survivors have taken the reserve; the segments they replace come back with a
                // digest.
                shared.publish();
            }
            source.segment.uses().end_pass();
            shared.lists.give_back(self.live);
            let pace = if gain == 0 { Pace::Again } else { IDLE };
            return Ok((Stage::Choose, pace));
        };
        self.gain = gain;
        shared.storage().seglets.expect_gain(gain);
        let segment = &source.segment;
        let mut writer =
            SegmentWriter::rewriting(Arc::clone(segment), Arc::clone(&shared.storage().memory));
        writer.extend(seglets);
        let header = shared.storage().segment_header(
            segment.log(),
            segment.kind(),
            segment.id(),
            segment.created_s(),
        );
        let header = Encoded::new(&header, false).expect("it was encoded before");
        writer.put(&header.parts());
        self.writer = Some(writer);
        Ok((Stage::CompactCopy(self), Pace::Again))
    }

    /// Copies a slice; after the last entry, notes what must be durable.
    pub(super) fn copy(
        mut self,
        shared: &Shared,
        finished: &mut Finished,
    ) -> Result<(Stage, Pace), Corruption> {
        let Self {
            live,
            tables,
            writer,
            tombstones,
            moved,
            ..
        } = &mut self;
        let writer = writer.as_mut().expect("made by the plan");
        let mover = shared.mover();
        let mut copied = 0;
        let guard = shared.space.pin();
        let begun = *moved;
        while *moved < live.len() && copied < shared.options.slice_bytes {
            mover.prefetch_ahead(live, (begun, *moved), tables);
            let survivor = &live[*moved];
            let mut place = Place::SameSegment(tombstones);
            mover.move_entry(survivor, writer, tables, &mut place, &guard)?;
            *moved += 1;
            copied += survivor.len as usize;
        }
        drop(guard);
        shared.add(|c| &c.bytes_compacted, copied as u64);
        if self.moved < self.live.len() {
            return Ok((Stage::CompactCopy(self), Pace::Again));
        }
        shared.lists.give_back(core::mem::take(&mut self.live));
        self.await_positions = shared.end_positions();
        finished.add(self, shared);
        Ok((Stage::Choose, Pace::Again))
    }

    fn exchange(self, shared: &Shared) {
        let segment = self.source.segment;
        let writer = self.writer.expect("made by the plan");
        let bytes = (self.source.seglets.len() * SEGLET_BYTES) as u64;
        shared.add(|c| &c.compactions, 1);
        shared.add(|c| &c.bytes_cleaned, bytes);
        shared.storage().seglets.end_gain(self.gain);
        assert!(
            self.await_positions.len() >= usize::from(shared.storage().options.logs)
                && shared.are_durable(&self.await_positions),
            "CLEAN-2: what {segment:?} loses may not be dead for good"
        );
        self.dropped.check(&shared.storage().table, |_| false);
        let end = writer.at();
        let mut new = writer.into_seglets();
        assert!(
            new.len() < self.source.seglets.len(),
            "CLEAN-4: a compaction of {segment:?} takes {} seglets",
            new.len()
        );
        // What died since the plan was written nowhere.
        let unused = new.split_off((end as usize).div_ceil(SEGLET_BYTES));
        let freed = bytes - (new.len() * SEGLET_BYTES) as u64;
        let members = shared.space.heads.log(segment.log()).members();
        let free = if members.in_log.contains_key(&segment.id()) {
            segment.exchange(new, end, self.tombstones)
        } else {
            // `drop_committed` took it meanwhile, as it was not held: nothing points to either
            // copy.
            new
        };
        drop(members);
        shared.add(|c| &c.bytes_freed, freed);
        shared.storage().table.follow_targets(&segment);
        segment.uses().end_pass();
        shared.storage().retire(Retired::Seglets(free));
        shared.storage().seglets.give_back(unused);
    }
}

/// Seglets that these take behind the header of a segment.
fn seglets_for(live: &[Survivor], packing: Packing) -> usize {
    let lens = live.iter().map(|s| s.len as usize);
    let end = packing.end_after(SIDE_HEADER_BYTES as u32, lens);
    (end as usize).div_ceil(SEGLET_BYTES)
}

/// Compactions that wait for all logs to be durable, oldest first; they hold memory, so they are
/// few.
#[derive(Default)]
pub(super) struct Finished(Vec<Compaction>);

impl Finished {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether another compaction has to wait for those that wait.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= FINISHED_MAX
    }

    fn add(&mut self, compaction: Compaction, shared: &Shared) {
        self.0.push(compaction);
        self.exchange_ready(shared);
    }

    /// Exchanges the bytes of those for which all logs are durable (CLEAN-2). Returns whether there
    /// were any.
    pub(super) fn exchange_ready(&mut self, shared: &Shared) -> bool {
        let is_ready = |waiting: &Compaction| shared.are_durable(&waiting.await_positions);
        let ready = self
            .0
            .iter()
            .take_while(|waiting| is_ready(waiting))
            .count();
        for compaction in self.0.drain(..ready) {
            compaction.exchange(shared);
        }
        ready > 0
    }
}
