//! Compaction: what lives in one segment is copied to fewer seglets of the same segment (000 §5).
//!
//! The segment keeps its id, its place in the digests and its replicas, which keep what died. So no
//! network and no disk is needed, and a tombstone that names it stays needed. What is dropped from
//! memory must be dead for good before the old bytes go: replication copies a replica that was lost
//! from the new ones (CLEAN-8).

use super::entries::{Dropped, Place, Scan, Source, Survivor, TableCache};
use super::{Cleaner, FINISHED_MAX, IDLE, Stage};
use crate::error::Corruption;
use crate::segment::{Segment, TombstoneTargets};
use crate::side_log::SIDE_HEADER_BYTES;
use crate::writer::SegmentWriter;
use core::sync::atomic::Ordering;
use pluvio_format::Encoded;
use pluvio_memory::SegletClass;
use pluvio_units::{LogId, LogPosition, Pace, SEGLET_BYTES, SegmentId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a compaction.
pub(super) struct Compaction {
    source: Source,
    on_disk: BTreeMap<SegmentId, Arc<Segment>>,
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
    pub(super) fn new(
        source: Source,
        on_disk: BTreeMap<SegmentId, Arc<Segment>>,
        live: Vec<Survivor>,
    ) -> Self {
        Self {
            source,
            on_disk,
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
}

impl Cleaner {
    /// Reads a slice; after the last one, takes memory for what lives.
    pub(super) fn compact_scan(
        &self,
        mut compaction: Compaction,
    ) -> Result<(Stage, Pace), Corruption> {
        let on_disk = &compaction.on_disk;
        let scan = Scan {
            number: 0,
            bytes: self.options.slice_bytes,
            // Not even when that segment is leaving: only a digest drops it, and none is
            // written for this (CLEAN-5).
            needed_for: &|id| on_disk.contains_key(&id),
        };
        self.scan_slice(
            &mut compaction.source,
            &mut compaction.tables,
            &mut compaction.live,
            &mut compaction.dropped,
            &scan,
        )?;
        if !compaction.source.is_scanned() {
            return Ok((Stage::CompactScan(compaction), Pace::Again));
        }
        self.plan_compaction(compaction)
    }

    fn plan_compaction(&self, mut compaction: Compaction) -> Result<(Stage, Pace), Corruption> {
        let mut needed = self.seglets_for(&compaction.live);
        if needed >= compaction.source.seglets.len() {
            let sources = core::slice::from_ref(&compaction.source);
            self.forget_dead(&mut compaction.live, &compaction.tables, sources)?;
            needed = self.seglets_for(&compaction.live);
        }
        let source = &compaction.source;
        let gain = source.seglets.len().saturating_sub(needed);
        let log = source.segment.log();
        let take = || self.space.take_reserved(log, SegletClass::Cleaner, needed);
        let seglets = (gain > 0).then(take).flatten();
        let Some(seglets) = seglets else {
            if gain == 0 {
                source.set_barren();
                self.add(|c| &c.barren_passes, 1);
            } else {
                // Survivors have taken the reserve; what they replace comes back with a digest.
                self.publish();
            }
            source.segment.end_pass();
            self.lists.give_back(compaction.live);
            let pace = if gain == 0 { Pace::Again } else { IDLE };
            return Ok((Stage::Choose, pace));
        };
        compaction.gain = gain;
        self.space.gains.fetch_add(gain, Ordering::Relaxed);
        let segment = &source.segment;
        let mut writer =
            SegmentWriter::rewriting(Arc::clone(segment), Arc::clone(&self.space.memory));
        writer.extend(seglets);
        let header = self.space.segment_header(
            segment.log(),
            segment.kind(),
            segment.id(),
            segment.created_s(),
        );
        let header = Encoded::new(&header, false).expect("it was encoded before");
        writer.put(&header.parts());
        compaction.writer = Some(writer);
        Ok((Stage::CompactCopy(compaction), Pace::Again))
    }

    /// Seglets that these take behind the header of a segment.
    fn seglets_for(&self, live: &[Survivor]) -> usize {
        let lens = live.iter().map(|s| s.len as usize);
        let packing = self.space.memory.packing();
        let end = packing.end_after(SIDE_HEADER_BYTES as u32, lens);
        (end as usize).div_ceil(SEGLET_BYTES)
    }

    /// Copies a slice; after the last entry, notes what must be durable.
    pub(super) fn compact_copy(
        &self,
        mut compaction: Compaction,
        finished: &mut Vec<Compaction>,
    ) -> Result<(Stage, Pace), Corruption> {
        let Compaction {
            live,
            tables,
            writer,
            tombstones,
            moved,
            ..
        } = &mut compaction;
        let writer = writer.as_mut().expect("made by the plan");
        let mut copied = 0;
        let guard = self.space.pin();
        let begun = *moved;
        while *moved < live.len() && copied < self.options.slice_bytes {
            self.prefetch_ahead(live, (begun, *moved), tables);
            let survivor = &live[*moved];
            let mut place = Place::SameSegment(tombstones);
            self.move_entry(survivor, writer, tables, &mut place, &guard)?;
            *moved += 1;
            copied += survivor.len as usize;
        }
        drop(guard);
        self.add(|c| &c.bytes_compacted, copied as u64);
        if compaction.moved < compaction.live.len() {
            return Ok((Stage::CompactCopy(compaction), Pace::Again));
        }
        self.lists.give_back(core::mem::take(&mut compaction.live));
        compaction.await_positions = self.end_positions();
        finished.push(compaction);
        self.exchange_finished(finished);
        Ok((Stage::Choose, Pace::Again))
    }

    /// Exchanges the bytes of compacted segments for which all logs are durable (CLEAN-2). Returns
    /// whether there were any.
    pub(super) fn exchange_finished(&self, finished: &mut Vec<Compaction>) -> bool {
        let before = finished.len();
        while let Some(first) = finished.first() {
            if !self.are_durable(&first.await_positions) {
                break;
            }
            let first = finished.remove(0);
            self.exchange(first);
        }
        finished.len() < before
    }

    /// Whether another compaction has to wait for those that wait.
    pub(super) fn has_enough_finished(&self, finished: &[Compaction]) -> bool {
        finished.len() >= FINISHED_MAX
    }

    fn exchange(&self, compaction: Compaction) {
        let segment = compaction.source.segment;
        let writer = compaction.writer.expect("made by the plan");
        let bytes = (compaction.source.seglets.len() * SEGLET_BYTES) as u64;
        self.add(|c| &c.compactions, 1);
        self.add(|c| &c.bytes_cleaned, bytes);
        self.space
            .gains
            .fetch_sub(compaction.gain, Ordering::Relaxed);
        assert!(
            compaction.await_positions.len() == usize::from(self.space.options.logs)
                && self.are_durable(&compaction.await_positions),
            "CLEAN-2: what {segment:?} loses may not be dead for good"
        );
        self.check_dropped(&compaction.dropped, |_| false);
        let end = writer.at();
        let mut new = writer.into_seglets();
        assert!(
            new.len() < compaction.source.seglets.len(),
            "CLEAN-4: a compaction of {segment:?} takes {} seglets",
            new.len()
        );
        // What died since the plan was written nowhere.
        let unused = new.split_off((end as usize).div_ceil(SEGLET_BYTES));
        let freed = bytes - (new.len() * SEGLET_BYTES) as u64;
        let members = self.space.log(segment.log()).members();
        let free = if members.in_log.contains_key(&segment.id()) {
            segment.exchange(new, end, compaction.tombstones)
        } else {
            // `drop_committed` took it meanwhile, as it was not held: nothing points to either
            // copy.
            new
        };
        drop(members);
        self.add(|c| &c.bytes_freed, freed);
        self.space.forget_gone_targets(&segment);
        segment.end_pass();
        self.space.retire_seglets(free);
        self.space.give_back(unused);
    }
}
