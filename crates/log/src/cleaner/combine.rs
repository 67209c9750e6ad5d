//! Combined cleaning: one pass scans several segments of a log, relocates what lives, and exchanges
//! the segments for survivors (000 §3).

use super::choose::{Barren, Reach};
use super::entries::{Dropped, Moved, Place, Scan, Source, Survivor, TableCache};
use super::{Cleaner, IDLE, Stage};
use crate::durable::Durability;
use crate::error::Corruption;
use crate::log_state::LogState;
use crate::segment::Segment;
use crate::side_log::SIDE_HEADER_BYTES;
use crate::writer::{Packing, SegmentWriter};
use core::sync::atomic::Ordering;
use pluvio_format::Check;
use pluvio_memory::SegletClass;
use pluvio_units::{LogId, LogPosition, Pace, SEGLET_BYTES, SegmentId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a pass is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// It frees seglets.
    Memory,
    /// It makes the log on disk shorter, so that tombstones die, and takes no more seglets than it
    /// frees.
    Disk,
    /// It takes fewer segments than it frees, also with the head of its digest, and no more
    /// seglets.
    Slots,
}

/// What a pass is for, and among whose segments it was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Aim {
    pub goal: Goal,
    pub reach: Reach,
}

/// The state of a pass.
pub(super) struct Pass {
    log: LogId,
    aim: Aim,
    victims: Vec<Source>,
    /// What existed on disk when the pass began: names in older tombstones are looked up here.
    on_disk: BTreeMap<SegmentId, Arc<Segment>>,
    tables: TableCache,
    live: Vec<Survivor>,
    moved: usize,
    moved_bytes: Moved,
    /// Where in `live` each survivor segment begins, as planned.
    starts: Vec<usize>,
    opened: usize,
    stock_seglets: Vec<u32>,
    stock_slots: Vec<u32>,
    writer: Option<SegmentWriter>,
    survivors: Vec<Arc<Segment>>,
    /// Where each log must be durable before the exchange (CLEAN-2).
    await_positions: Vec<(LogId, LogPosition)>,
    dropped: Dropped,
    /// Seglets that others may count on ([`LogSpace::gains`](crate::LogSpace)).
    gain: usize,
    /// Which survivor is compared with its checksums next, and from where on (CLEAN-10).
    compared: (usize, u32),
}

/// The survivors of a pass on paper.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Layout {
    seglets: usize,
    bytes: u64,
    /// For each segment, which of the entries that are needed is its first.
    starts: Vec<usize>,
}

impl Pass {
    /// A pass over segments that were claimed, with an empty list for what lives in them.
    pub(super) fn new(
        log: LogId,
        aim: Aim,
        victims: Vec<Source>,
        on_disk: BTreeMap<SegmentId, Arc<Segment>>,
        live: Vec<Survivor>,
    ) -> Self {
        // What a closed segment's tombstones name was opened before that segment was closed, so
        // it is in `on_disk` unless it is gone for good.
        Self {
            log,
            aim,
            victims,
            on_disk,
            tables: TableCache::default(),
            live,
            moved: 0,
            moved_bytes: Moved::default(),
            starts: Vec::new(),
            opened: 0,
            stock_seglets: Vec::new(),
            stock_slots: Vec::new(),
            writer: None,
            survivors: Vec::new(),
            await_positions: Vec::new(),
            dropped: Dropped::default(),
            gain: 0,
            compared: (0, 0),
        }
    }

    /// Whether `survivor`, which may outlive the pass, is needed when the victims, as they are now,
    /// have left the log. Depends on the victims only, so that a plan stays true.
    fn outlives_pass(&self, survivor: &Survivor) -> bool {
        survivor
            .only_while()
            .is_none_or(|id| !self.victims.iter().any(|v| v.segment.id() == id))
    }

    /// Forgets the tombstones whose segments have left since they were scanned.
    fn forget_gone(&mut self) {
        let (on_disk, log, dropped) = (&self.on_disk, self.log, &mut self.dropped);
        self.live.retain(|survivor| {
            let named = survivor.only_while();
            let stays = named.is_none_or(|id| may_outlive_pass(on_disk, log, id));
            if !stays {
                dropped.note(survivor);
            }
            stays
        });
    }

    /// Forgets the tombstones that are not needed. The victims must not change afterwards.
    fn settle(&mut self) {
        let mut live = core::mem::take(&mut self.live);
        let mut dropped = core::mem::take(&mut self.dropped);
        live.retain(|survivor| {
            let stays = self.outlives_pass(survivor);
            if !stays {
                dropped.note(survivor);
            }
            stays
        });
        (self.live, self.dropped) = (live, dropped);
    }

    /// Lays the survivors out. Entries that turn out to be dead when they are copied are left out
    /// of their segment; the end of a segment is nowhere further than planned then, because where
    /// an entry ends never depends on those before it but through where they end, and ascends with
    /// that.
    fn layout(&self, capacity: u32, packing: Packing) -> Layout {
        let mut layout = Layout::default();
        let mut at = None;
        let needed = self.live.iter().filter(|s| self.outlives_pass(s));
        for (number, survivor) in needed.enumerate() {
            let len = survivor.len as usize;
            let end = at.map(|at| packing.end_after(at, [len].into_iter()));
            at = match end {
                Some(end) if end <= capacity => Some(end),
                _ => {
                    layout.finish(at);
                    layout.starts.push(number);
                    Some(packing.end_after(SIDE_HEADER_BYTES as u32, [len].into_iter()))
                }
            };
        }
        layout.finish(at);
        layout
    }

    fn seglets(&self) -> usize {
        self.victims.iter().map(|v| v.seglets.len()).sum()
    }

    /// Seglets of its survivors so far.
    fn taken(&self) -> usize {
        self.survivors.iter().map(|s| s.seglet_count()).sum()
    }

    /// Whether the exchange would bring the pass nearer to its goal (CLEAN-4).
    fn gains(&self, layout: &Layout, least: usize) -> bool {
        match self.aim.goal {
            Goal::Memory => layout.seglets + least <= self.seglets(),
            Goal::Disk => {
                let on_disk: u64 = self
                    .victims
                    .iter()
                    .map(|v| u64::from(v.segment.disk_len()))
                    .sum();
                layout.seglets <= self.seglets()
                    && layout.starts.len() <= self.victims.len()
                    && layout.bytes + (least * SEGLET_BYTES) as u64 <= on_disk
            }
            Goal::Slots => {
                layout.seglets <= self.seglets()
                    && layout.starts.len() + least <= self.victims.len()
            }
        }
    }

    /// Takes the victim out of the pass that gains least. Tombstones that name it count again.
    fn drop_fullest(&mut self, full_segment: u32) {
        let mut live = vec![0u64; self.victims.len()];
        for survivor in &self.live {
            live[survivor.source as usize] += u64::from(survivor.len);
        }
        let dead = |i: usize| {
            let all = match self.aim.goal {
                Goal::Memory => (self.victims[i].seglets.len() * SEGLET_BYTES) as u64,
                Goal::Disk => u64::from(self.victims[i].segment.disk_len()),
                Goal::Slots => u64::from(full_segment),
            };
            all.saturating_sub(live[i])
        };
        let Some(fullest) = (0..self.victims.len()).min_by_key(|&i| dead(i)) else {
            return;
        };
        self.victims.remove(fullest).segment.end_pass();
        let fullest = fullest as u32;
        self.live.retain(|s| s.source != fullest);
        for survivor in &mut self.live {
            if survivor.source > fullest {
                survivor.source -= 1;
            }
        }
        // Alone and in its own order, a segment never takes more than it has.
        if self.victims.len() == 1 {
            self.live.sort_by_key(|s| s.offset);
        }
    }
}

impl Layout {
    /// Counts a segment that ends at `at`, if there is one.
    fn finish(&mut self, at: Option<u32>) {
        let at = at.unwrap_or(0);
        self.seglets += (at as usize).div_ceil(SEGLET_BYTES);
        self.bytes += u64::from(at);
    }
}

/// Whether a tombstone that names `id` may be needed when a pass over `log` is through: unless that
/// segment is gone, or goes with the next digest of this log (CLEAN-5).
fn may_outlive_pass(
    on_disk: &BTreeMap<SegmentId, Arc<Segment>>,
    log: LogId,
    id: SegmentId,
) -> bool {
    on_disk
        .get(&id)
        .is_some_and(|named| !(named.log() == log && named.is_leaving()))
}

impl Cleaner {
    /// Reads a slice of the victims; after the last one, plans the survivors.
    pub(super) fn scan(
        &self,
        mut pass: Pass,
        barren: &mut Barren,
    ) -> Result<(Stage, Pace), Corruption> {
        let mut bytes = self.options.slice_bytes;
        let (on_disk, log) = (&pass.on_disk, pass.log);
        for (number, victim) in pass.victims.iter_mut().enumerate() {
            let scan = Scan {
                number: number as u32,
                bytes,
                needed_for: &|id| may_outlive_pass(on_disk, log, id),
            };
            let (tables, live) = (&mut pass.tables, &mut pass.live);
            bytes = self.scan_slice(victim, tables, live, &mut pass.dropped, &scan)?;
            if bytes == 0 {
                break;
            }
        }
        if pass.victims.iter().all(Source::is_scanned) {
            return self.plan(pass, barren);
        }
        Ok((Stage::Scan(pass), Pace::Again))
    }

    /// Takes memory for the survivors (CLEAN-4), leaving victims out until it suffices.
    fn plan(&self, mut pass: Pass, barren: &mut Barren) -> Result<(Stage, Pace), Corruption> {
        pass.forget_gone();
        if pass.victims.len() > 1 {
            // Equal seconds stay in the order of the segments, which is that of writing, because
            // the victims are in the order of their ids. In place: a sort that needs memory leaves
            // it to the heap.
            pass.live
                .sort_unstable_by_key(|s| (s.timestamp_s, s.source, s.offset));
        }
        let capacity = self.space.geometry.segment_bytes();
        let least = self.least_gain(pass.aim.goal);
        let mut is_refused = false;
        // With a segment that is known to be barren, the next choice is another one.
        let mut pace = IDLE;
        let mut has_asked = false;
        while !pass.victims.is_empty() {
            let layout = pass.layout(capacity, self.space.memory.packing());
            let fits = layout.seglets <= self.survivor_budget();
            let gains = pass.gains(&layout, least);
            if !gains
                && !core::mem::replace(&mut has_asked, true)
                && self.forget_dead(&mut pass.live, &pass.tables, &pass.victims)?
            {
                continue;
            }
            if let [last] = pass.victims.as_slice()
                && !gains
                && self.cleans_alone(pass.aim.goal)
            {
                last.set_barren();
                pace = Pace::Again;
            }
            let is_useful = gains && fits;
            if is_useful && self.stock_up(&mut pass, &layout) {
                self.add(|c| &c.bytes_cleaned, (pass.seglets() * SEGLET_BYTES) as u64);
                pass.settle();
                pass.gain = pass.seglets() - layout.seglets;
                self.space.gains.fetch_add(pass.gain, Ordering::Relaxed);
                pass.starts = layout.starts;
                pass.moved_bytes.went = vec![0; pass.victims.len()];
                return Ok((Stage::Relocate(pass), Pace::Again));
            }
            is_refused |= is_useful;
            pass.drop_fullest(capacity);
        }
        self.add(|c| &c.barren_passes, 1);
        // What would gain, and got no memory, is not in vain another time.
        if !is_refused {
            let Aim { goal, reach } = pass.aim;
            barren.note(self.fingerprint(goal, reach));
        }
        self.publish();
        self.lists.give_back(pass.live);
        Ok((Stage::Choose, pace))
    }

    fn stock_up(&self, pass: &mut Pass, layout: &Layout) -> bool {
        let geometry = &self.space.geometry;
        let count = layout.starts.len();
        let heads = match self.space.options.durability {
            Durability::Volatile => 0,
            Durability::Replicated => 1,
        };
        // The victims' slots come back with a digest, whose head needs one. Survivors that are more
        // than the victims take slots for good, as appends do. Passes that make segments no fewer
        // leave the slots with which others do that.
        let leave = if count > pass.victims.len() {
            geometry.slots_reserve
        } else if count + heads > pass.victims.len() {
            geometry.slots_of_digests + usize::from(self.space.options.cleaners)
        } else {
            geometry.slots_of_digests
        };
        let Some(slots) = self.space.take_slots(count, leave) else {
            return false;
        };
        let Some(seglets) =
            self.space
                .take_reserved(pass.log, SegletClass::Cleaner, layout.seglets)
        else {
            self.space.give_back_slots(slots);
            return false;
        };
        (pass.stock_slots, pass.stock_seglets) = (slots, seglets);
        true
    }

    /// Copies a slice; after the last entry, closes the survivors and notes what must be durable.
    pub(super) fn relocate(&self, mut pass: Pass) -> Result<(Stage, Pace), Corruption> {
        let mut copied = 0;
        let guard = self.space.pin();
        let begun = pass.moved;
        while pass.moved < pass.live.len() && copied < self.options.slice_bytes {
            self.prefetch_ahead(&pass.live, (begun, pass.moved), &pass.tables);
            let len = pass.live[pass.moved].len;
            self.make_room(&mut pass, len);
            let Pass {
                live,
                writer,
                tables,
                moved_bytes,
                moved,
                ..
            } = &mut pass;
            let writer = writer.as_mut().expect("opened for the first entry");
            let mut place = Place::Survivor(moved_bytes);
            self.move_entry(&live[*moved], writer, tables, &mut place, &guard)?;
            pass.moved += 1;
            copied += len as usize;
        }
        self.count_moved(&mut pass);
        drop(guard);
        self.add(|c| &c.bytes_moved, copied as u64);
        if let Some(writer) = &mut pass.writer {
            writer.publish();
            LogState::call(&self.space.log(pass.log).append_hook);
        }
        if pass.moved < pass.live.len() {
            return Ok((Stage::Relocate(pass), Pace::Again));
        }
        self.close_survivor(&mut pass);
        self.space
            .give_back(core::mem::take(&mut pass.stock_seglets));
        self.space
            .give_back_slots(core::mem::take(&mut pass.stock_slots));
        pass.await_positions = self.end_positions();
        let taken = pass.taken();
        assert!(
            taken + pass.gain <= pass.seglets(),
            "CLEAN-4: survivors of {} seglets take {taken}",
            pass.seglets()
        );
        self.lists.give_back(core::mem::take(&mut pass.live));
        LogState::call(&self.space.log(pass.log).append_hook);
        Ok((Stage::AwaitDurable(pass), Pace::Again))
    }

    /// The ends of all logs. Whatever made an entry dead whose liveness was decided before lies
    /// before them (CLEAN-2).
    pub(super) fn end_positions(&self) -> Vec<(LogId, LogPosition)> {
        let logs = self.space.logs();
        logs.map(|log| (log, self.space.end_position(log)))
            .collect()
    }

    /// Whether all logs are durable up to these positions.
    pub(super) fn are_durable(&self, positions: &[(LogId, LogPosition)]) -> bool {
        match self.space.options.durability {
            Durability::Volatile => true,
            Durability::Replicated => positions
                .iter()
                .all(|(log, position)| self.space.is_durable(*log, *position)),
        }
    }

    /// Sees to it that the writer is that of the planned survivor and has seglets for `len` bytes
    /// more.
    fn make_room(&self, pass: &mut Pass, len: u32) {
        if pass.starts.get(pass.opened) == Some(&pass.moved) {
            self.close_survivor(pass);
            let slot = pass.stock_slots.pop().expect("one for each planned");
            let first = pass.stock_seglets.pop().into_iter().collect();
            let writer = self.space.open_survivor(pass.log, slot, first);
            self.add(|c| &c.survivors, 1);
            pass.opened += 1;
            pass.writer = Some(writer);
        }
        let writer = pass.writer.as_mut().expect("opened for the first entry");
        let end = writer.end_after([len as usize].into_iter());
        let missing = writer.missing_seglets(end);
        if missing > 0 {
            let keep = pass.stock_seglets.len().checked_sub(missing);
            let keep = keep.expect("CLEAN-4: a survivor ends where it was planned to, or before");
            writer.extend(pass.stock_seglets.drain(keep..));
        }
    }

    /// Counts what was moved since the last time as live where it is. The logs' counters stay.
    fn count_moved(&self, pass: &mut Pass) {
        let memory = &self.space.memory;
        if let Some(writer) = &pass.writer {
            memory.move_live(writer.segment().slot(), pass.log, pass.moved_bytes.came);
        }
        pass.moved_bytes.came = 0;
        for (victim, went) in pass.victims.iter().zip(&mut pass.moved_bytes.went) {
            memory.move_live(victim.segment.slot(), pass.log, -core::mem::take(went));
        }
    }

    fn close_survivor(&self, pass: &mut Pass) {
        self.count_moved(pass);
        if let Some(mut writer) = pass.writer.take() {
            writer.publish();
            self.space.close_segment(writer.segment());
            pass.survivors.push(Arc::clone(writer.segment()));
        }
    }

    /// Compares a piece of the survivors with their checksums. Returns whether there was one left.
    fn compare_piece(&self, pass: &mut Pass) -> Result<bool, Corruption> {
        if self.space.memory.possible(Check::Checksum) == Check::Structure {
            return Ok(false);
        }
        let (number, from) = pass.compared;
        let Some(survivor) = pass.survivors.get(number) else {
            return Ok(false);
        };
        pass.compared = match survivor.compare_piece(from)? {
            Some(next) => (number, next),
            None => (number + 1, 0),
        };
        Ok(true)
    }

    /// Exchanges the segments, once everything needed is durable (CLEAN-2, CLEAN-3) and the
    /// survivors are right (CLEAN-10).
    pub(super) fn await_durable(&self, mut pass: Pass) -> Result<(Stage, Pace), Corruption> {
        let survivors_are_durable = || match self.space.options.durability {
            Durability::Volatile => true,
            Durability::Replicated => pass.survivors.iter().all(|s| s.is_marked_durable()),
        };
        if !survivors_are_durable() || !self.are_durable(&pass.await_positions) {
            return Ok((Stage::AwaitDurable(pass), IDLE));
        }
        if self.compare_piece(&mut pass)? {
            return Ok((Stage::AwaitDurable(pass), Pace::Again));
        }
        let freed = (pass.seglets() - pass.taken()) * SEGLET_BYTES;
        self.add(|c| &c.passes, 1);
        self.add(|c| &c.segments_cleaned, pass.victims.len() as u64);
        self.add(|c| &c.bytes_freed, freed as u64);
        self.space.gains.fetch_sub(pass.gain, Ordering::Relaxed);
        assert_eq!(
            pass.await_positions.len(),
            usize::from(self.space.options.logs),
            "CLEAN-2: each log is waited for"
        );
        let mut members = self.space.log(pass.log).members();
        self.check_dropped(&pass.dropped, |named| {
            let is_victim = pass.victims.iter().any(|v| v.segment.id() == named.id());
            named.log() == pass.log && (is_victim || named.is_leaving())
        });
        for survivor in pass.survivors {
            assert!(
                survivor.is_closed() && !survivor.is_leaving(),
                "CLEAN-3: {survivor:?} joins the log as a whole"
            );
            members.in_log.insert(survivor.id(), survivor);
        }
        for victim in pass.victims {
            // `drop_committed` may have taken it meanwhile, if it was not held: those of recoveries
            // are (REC-4).
            let Some(segment) = members.in_log.remove(&victim.segment.id()) else {
                continue;
            };
            segment.set_cleaned();
            segment.set_leaving();
            match self.space.options.durability {
                Durability::Volatile => self.space.drop_segment(&mut members, segment),
                Durability::Replicated => members.leaving.push(segment),
            }
        }
        members.unpublished = true;
        Ok((Stage::Choose, Pace::Again))
    }
}
