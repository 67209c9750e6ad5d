//! Combined cleaning: one pass scans several segments of a log, relocates what lives, and exchanges
//! the segments for survivors [LSM-DRAM §3].

use super::choose::{Barren, Fingerprint, Reach};
use super::entries::{Dropped, Moved, Place, Scan, Source, Survivor, TableCache};
use super::{Goal, IDLE, Shared, Stage};
use crate::append::{LogState, SIDE_HEADER_BYTES, SegmentWriter};
use crate::durable::Durability;
use crate::error::Corruption;
use crate::memory::Packing;
use crate::segments::{Departure, Segment, SegmentTable, compare_piece};
use pluvio_format::Check;
use pluvio_memory::SegletClass;
use pluvio_units::{LogId, LogPosition, Pace, SEGLET_BYTES, SegmentId};
use std::sync::Arc;

/// The goal of a pass, and the logs among whose segments it was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Aim {
    pub goal: Goal,
    pub reach: Reach,
    /// Whether all segments were looked at for the choice.
    pub saw_all: bool,
}

/// The state of a pass.
pub(super) struct Pass {
    log: LogId,
    aim: Aim,
    victims: Vec<Source>,
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
    pub(super) fn new(log: LogId, aim: Aim, victims: Vec<Source>, live: Vec<Survivor>) -> Self {
        Self {
            log,
            aim,
            victims,
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

    /// Ends a pass that has not begun to read; its segments stay claimed.
    #[cfg(feature = "made-up")]
    pub(super) fn into_victims(self, shared: &Shared) -> Vec<Arc<Segment>> {
        shared.lists.give_back(self.live);
        self.victims.into_iter().map(|v| v.segment).collect()
    }

    /// Whether `survivor`, which may outlive the pass, is needed when the victims, as they are now,
    /// have left the log. Depends on the victims only, so that a plan stays true.
    fn outlives_pass(&self, survivor: &Survivor) -> bool {
        survivor
            .only_while()
            .is_none_or(|id| !self.victims.iter().any(|v| v.segment.id() == id))
    }

    /// Forgets the tombstones whose segments have left since they were scanned.
    fn forget_gone(&mut self, table: &SegmentTable) {
        let (log, dropped) = (self.log, &mut self.dropped);
        self.live.retain(|survivor| {
            let named = survivor.only_while();
            let stays = named.is_none_or(|id| may_outlive_pass(table, log, id));
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

    /// Lays the survivors out. An entry that turns out to be dead when it is copied is left out. A
    /// survivor segment never ends later than planned: an entry's end grows monotonically with the
    /// end of the entry before it.
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
        self.survivors.iter().map(|s| s.contents().seglets()).sum()
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
        self.victims.remove(fullest).segment.uses().end_pass();
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

/// Whether a tombstone that names `id` may be needed when a pass over `log` is through. It is not
/// if that segment is gone, or goes with the next digest of this log (CLEAN-5).
fn may_outlive_pass(table: &SegmentTable, log: LogId, id: SegmentId) -> bool {
    table.has_that(id, |named| {
        !(named.log() == log && named.state().is_leaving())
    })
}

impl Pass {
    /// Reads a slice of the victims; after the last one, plans the survivors.
    pub(super) fn scan(
        mut self,
        shared: &Shared,
        barren: &mut Barren,
    ) -> Result<(Stage, Pace), Corruption> {
        let scanner = shared.scanner();
        let mut bytes = shared.options.slice_bytes;
        let (table, log) = (&shared.storage().table, self.log);
        for (number, victim) in self.victims.iter_mut().enumerate() {
            let scan = Scan {
                number: number as u32,
                bytes,
                needed_for: &|id| may_outlive_pass(table, log, id),
            };
            let (tables, live) = (&mut self.tables, &mut self.live);
            bytes = scanner.scan_slice(victim, tables, live, &mut self.dropped, &scan)?;
            if bytes == 0 {
                break;
            }
        }
        if self.victims.iter().all(Source::is_scanned) {
            return self.plan(shared, barren);
        }
        Ok((Stage::Scan(self), Pace::Again))
    }

    /// Takes memory for the survivors (CLEAN-4), leaving victims out until it suffices.
    fn plan(mut self, shared: &Shared, barren: &mut Barren) -> Result<(Stage, Pace), Corruption> {
        self.forget_gone(&shared.storage().table);
        if self.victims.len() > 1 {
            // Equal seconds stay in the order of the segments, which is that of writing, because
            // the victims are in the order of their ids. In place: a sort that needs memory leaves
            // it to the heap.
            self.live
                .sort_unstable_by_key(|s| (s.timestamp_s, s.source, s.offset));
        }
        let balance = shared.balance();
        let capacity = shared.storage().geometry.segment_bytes();
        let least = balance.least_gain(self.aim.goal);
        let mut is_refused = false;
        // With a segment that is known to be barren, the next choice is another one.
        let mut pace = IDLE;
        let mut has_asked = false;
        while !self.victims.is_empty() {
            let layout = self.layout(capacity, shared.memory().packing());
            let fits = layout.seglets <= balance.survivor_budget();
            let gains = self.gains(&layout, least);
            if !gains
                && !core::mem::replace(&mut has_asked, true)
                && shared
                    .scanner()
                    .forget_dead(&mut self.live, &self.tables, &self.victims)?
            {
                continue;
            }
            if let [last] = self.victims.as_slice()
                && !gains
                && balance.cleans_alone(self.aim.goal)
            {
                last.set_barren();
                pace = Pace::Again;
            }
            let is_useful = gains && fits;
            if is_useful && self.stock_up(shared, &layout) {
                shared.add(|c| &c.bytes_cleaned, (self.seglets() * SEGLET_BYTES) as u64);
                self.settle();
                self.gain = self.seglets() - layout.seglets;
                shared.storage().seglets.expect_gain(self.gain);
                self.starts = layout.starts;
                self.moved_bytes.went = vec![0; self.victims.len()];
                barren.note_gain();
                return Ok((Stage::Relocate(self), Pace::Again));
            }
            is_refused |= is_useful;
            self.drop_fullest(capacity);
        }
        shared.add(|c| &c.barren_passes, 1);
        // A pass that would gain, and got no memory, may gain another time.
        if !is_refused {
            let found = Fingerprint::of(shared, self.aim.goal, self.aim.reach);
            barren.note(found, self.aim.saw_all);
        }
        shared.publish();
        shared.lists.give_back(self.live);
        Ok((Stage::Choose, pace))
    }

    fn stock_up(&mut self, shared: &Shared, layout: &Layout) -> bool {
        let geometry = &shared.storage().geometry;
        let count = layout.starts.len();
        let heads = match shared.storage().options.durability {
            Durability::Volatile => 0,
            Durability::Replicated => 1,
        };
        // The victims' slots come back with a digest, whose head needs one. Survivors that are more
        // than the victims take slots for good, as appends do. Passes that make segments no fewer
        // leave the slots with which others do that.
        let leave = if count > self.victims.len() {
            geometry.slots.reserve
        } else if count + heads > self.victims.len() {
            geometry.slots.digests + usize::from(shared.storage().options.cleaners)
        } else {
            geometry.slots.digests
        };
        let Some(slots) = shared.storage().table.take_slots(count, leave) else {
            return false;
        };
        let part = shared.space.heads.log(self.log).part;
        let Some(seglets) =
            shared
                .storage()
                .take_reserved(part, SegletClass::Cleaner, layout.seglets)
        else {
            shared.storage().table.give_back_slots(slots);
            return false;
        };
        (self.stock_slots, self.stock_seglets) = (slots, seglets);
        true
    }

    /// Copies a slice; after the last entry, closes the survivors and notes what must be durable.
    pub(super) fn relocate(mut self, shared: &Shared) -> Result<(Stage, Pace), Corruption> {
        let mover = shared.mover();
        let mut copied = 0;
        let guard = shared.space.pin();
        let begun = self.moved;
        while self.moved < self.live.len() && copied < shared.options.slice_bytes {
            mover.prefetch_ahead(&self.live, (begun, self.moved), &self.tables);
            let len = self.live[self.moved].len;
            self.make_room(shared, len);
            let Self {
                live,
                writer,
                tables,
                moved_bytes,
                moved,
                ..
            } = &mut self;
            let writer = writer.as_mut().expect("opened for the first entry");
            let mut place = Place::Survivor(moved_bytes);
            mover.move_entry(&live[*moved], writer, tables, &mut place, &guard)?;
            self.moved += 1;
            copied += len as usize;
        }
        self.count_moved(shared);
        drop(guard);
        shared.add(|c| &c.bytes_moved, copied as u64);
        if let Some(writer) = &mut self.writer {
            writer.publish();
            LogState::call(&shared.space.heads.log(self.log).append_hook);
        }
        if self.moved < self.live.len() {
            return Ok((Stage::Relocate(self), Pace::Again));
        }
        self.close_survivor(shared);
        shared
            .storage()
            .seglets
            .give_back(core::mem::take(&mut self.stock_seglets));
        shared
            .storage()
            .table
            .give_back_slots(core::mem::take(&mut self.stock_slots));
        self.await_positions = shared.end_positions();
        let taken = self.taken();
        assert!(
            taken + self.gain <= self.seglets(),
            "CLEAN-4: survivors of {} seglets take {taken}",
            self.seglets()
        );
        shared.lists.give_back(core::mem::take(&mut self.live));
        LogState::call(&shared.space.heads.log(self.log).append_hook);
        Ok((Stage::AwaitDurable(self), Pace::Again))
    }

    /// Sees to it that the writer is that of the planned survivor and has seglets for `len` bytes
    /// more.
    fn make_room(&mut self, shared: &Shared, len: u32) {
        if self.starts.get(self.opened) == Some(&self.moved) {
            self.close_survivor(shared);
            let slot = self.stock_slots.pop().expect("one for each planned");
            let first = self.stock_seglets.pop().into_iter().collect();
            let writer = shared.space.heads.open_survivor(self.log, slot, first);
            shared.add(|c| &c.survivors, 1);
            self.opened += 1;
            self.writer = Some(writer);
        }
        let writer = self.writer.as_mut().expect("opened for the first entry");
        let end = writer.end_after([len as usize].into_iter());
        let missing = writer.missing_seglets(end);
        if missing > 0 {
            let keep = self.stock_seglets.len().checked_sub(missing);
            let keep = keep.expect("CLEAN-4: a survivor ends where it was planned to, or before");
            writer.extend(self.stock_seglets.drain(keep..));
        }
    }

    /// Counts what was moved since the last time as live where it is. The logs' counters stay.
    fn count_moved(&mut self, shared: &Shared) {
        let memory = &shared.memory();
        if let Some(writer) = &self.writer {
            memory
                .live()
                .add_moved(writer.segment().slot(), self.log, self.moved_bytes.came);
        }
        self.moved_bytes.came = 0;
        for (victim, went) in self.victims.iter().zip(&mut self.moved_bytes.went) {
            memory
                .live()
                .add_moved(victim.segment.slot(), self.log, -core::mem::take(went));
        }
    }

    fn close_survivor(&mut self, shared: &Shared) {
        self.count_moved(shared);
        if let Some(mut writer) = self.writer.take() {
            writer.publish();
            shared.storage().close_segment(writer.segment());
            self.survivors.push(Arc::clone(writer.segment()));
        }
    }

    /// Compares a piece of the survivors with their checksums. Returns whether there was one left.
    fn compare_piece(&mut self, shared: &Shared) -> Result<bool, Corruption> {
        if shared.memory().possible(Check::Checksum) == Check::Structure {
            return Ok(false);
        }
        let (number, from) = self.compared;
        let Some(survivor) = self.survivors.get(number) else {
            return Ok(false);
        };
        self.compared = match compare_piece(survivor, from)? {
            Some(next) => (number, next),
            None => (number + 1, 0),
        };
        Ok(true)
    }

    /// Exchanges the segments, once everything needed is durable (CLEAN-2, CLEAN-3) and the
    /// survivors are right (CLEAN-10).
    pub(super) fn await_durable(mut self, shared: &Shared) -> Result<(Stage, Pace), Corruption> {
        let survivors_are_durable = || match shared.storage().options.durability {
            Durability::Volatile => true,
            Durability::Replicated => self.survivors.iter().all(|s| s.state().is_durable()),
        };
        if !survivors_are_durable() || !shared.are_durable(&self.await_positions) {
            return Ok((Stage::AwaitDurable(self), IDLE));
        }
        if self.compare_piece(shared)? {
            return Ok((Stage::AwaitDurable(self), Pace::Again));
        }
        let freed = (self.seglets() - self.taken()) * SEGLET_BYTES;
        shared.add(|c| &c.passes, 1);
        shared.add(|c| &c.segments_cleaned, self.victims.len() as u64);
        shared.add(|c| &c.bytes_freed, freed as u64);
        shared.storage().seglets.end_gain(self.gain);
        // A log that was opened since holds nothing that this pass depends on.
        assert!(
            self.await_positions.len() >= usize::from(shared.storage().options.logs),
            "CLEAN-2: each log is waited for"
        );
        let mut members = shared.space.heads.log(self.log).members();
        self.dropped.check(&shared.storage().table, |named| {
            let is_victim = self.victims.iter().any(|v| v.segment.id() == named.id());
            named.log() == self.log && (is_victim || named.state().is_leaving())
        });
        for survivor in self.survivors {
            assert!(
                survivor.is_closed() && !survivor.state().is_leaving(),
                "CLEAN-3: {survivor:?} joins the log as a whole"
            );
            members.in_log.insert(survivor.id(), survivor);
        }
        for victim in self.victims {
            // `drop_committed` may have taken it meanwhile, if it was not held: those of recoveries
            // are (REC-4).
            let Some(segment) = members.in_log.remove(&victim.segment.id()) else {
                continue;
            };
            segment.leave(Departure::Cleaned);
            match shared.storage().options.durability {
                Durability::Volatile => shared.space.heads.drop_segment(&mut members, segment),
                Durability::Replicated => members.leaving.push(segment),
            }
        }
        members.unpublished = true;
        Ok((Stage::Choose, Pace::Again))
    }
}
