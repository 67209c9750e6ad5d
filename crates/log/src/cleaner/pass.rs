//! One pass: scan, relocate, exchange.

use super::{Cleaner, CleanerPace, Stage};
use crate::durable::Durability;
use crate::error::Corruption;
use crate::log_state::LogState;
use crate::memory::LogMemory;
use crate::segment::Segment;
use crate::side_log::SIDE_HEADER_BYTES;
use crate::writer::{SegmentWriter, end_after};
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_format::{Check, Encoded, Entry, ParseErrorKind};
use pluvio_memory::SegletClass;
use pluvio_units::{EntryRef, LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Completion records are the youngest of all survivors: they die within seconds or minutes, whatever
/// the age of the objects beside them, so they belong where most will die soon.
const COMPLETIONS_AGE_S: u32 = u32::MAX;

/// An entry that lives, or a tombstone that may.
struct Survivor {
    timestamp_s: u32,
    /// Number of its segment in [`Pass::victims`].
    victim: u32,
    entry: EntryRef,
    len: u32,
    /// For a tombstone that is not in the index: it lives as long as this segment is on disk.
    only_while: Option<SegmentId>,
}

/// A segment being cleaned.
struct Victim {
    segment: Arc<Segment>,
    seglets: Vec<u32>,
    scanned: u32,
}

/// The state of a pass.
pub(super) struct Pass {
    log: LogId,
    victims: Vec<Victim>,
    /// What existed on disk when the pass began: names in older tombstones are looked up here.
    on_disk: BTreeMap<SegmentId, Arc<Segment>>,
    /// The pass must free memory, and not only slots.
    for_memory: bool,
    live: Vec<Survivor>,
    moved: usize,
    stock_seglets: Vec<u32>,
    stock_slots: Vec<u32>,
    writer: Option<SegmentWriter>,
    survivors: Vec<Arc<Segment>>,
    /// Where each log must be durable before the exchange (CLEAN-2).
    await_positions: Vec<(LogId, LogPosition)>,
}

/// What the survivors of a pass take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Need {
    seglets: usize,
    segments: usize,
}

impl Pass {
    pub(super) fn new(
        log: LogId,
        victims: Vec<Arc<Segment>>,
        on_disk: BTreeMap<SegmentId, Arc<Segment>>,
        for_memory: bool,
    ) -> Self {
        // What a closed segment's tombstones name was opened before that segment was closed, so
        // it is in `on_disk` unless it is gone for good.
        let victim = |segment: Arc<Segment>| Victim {
            seglets: segment.seglet_list(),
            segment,
            scanned: 0,
        };
        Self {
            log,
            victims: victims.into_iter().map(victim).collect(),
            on_disk,
            for_memory,
            live: Vec::new(),
            moved: 0,
            stock_seglets: Vec::new(),
            stock_slots: Vec::new(),
            writer: None,
            survivors: Vec::new(),
            await_positions: Vec::new(),
        }
    }

    /// Whether a tombstone that names `id` may be needed when this pass is through: unless that
    /// segment is gone, or goes with the next digest of this log (CLEAN-5).
    fn may_outlive_pass(&self, id: SegmentId) -> bool {
        self.on_disk
            .get(&id)
            .is_some_and(|named| !(named.log() == self.log && named.is_leaving()))
    }

    /// Whether `survivor` is needed when the victims, as they are now, have left the log.
    fn outlives_pass(&self, survivor: &Survivor) -> bool {
        survivor.only_while.is_none_or(|id| {
            self.may_outlive_pass(id) && !self.victims.iter().any(|v| v.segment.id() == id)
        })
    }

    /// Forgets the tombstones that are not needed. The victims must not change afterwards.
    fn settle(&mut self) {
        let live = core::mem::take(&mut self.live);
        self.live = live.into_iter().filter(|s| self.outlives_pass(s)).collect();
    }

    /// Lays the survivors out as they will be written.
    fn need(&self, capacity: u32) -> Need {
        let (mut seglets, mut segments, mut at) = (0, 0, None);
        for survivor in self.live.iter().filter(|s| self.outlives_pass(s)) {
            let len = survivor.len as usize;
            let end = at.map(|at| end_after(at, [len].into_iter()));
            at = match end {
                Some(end) if end <= capacity => Some(end),
                _ => {
                    seglets += (at.unwrap_or(0) as usize).div_ceil(SEGLET_BYTES);
                    segments += 1;
                    Some(end_after(SIDE_HEADER_BYTES as u32, [len].into_iter()))
                }
            };
        }
        seglets += (at.unwrap_or(0) as usize).div_ceil(SEGLET_BYTES);
        Need { seglets, segments }
    }

    fn seglets(&self) -> usize {
        self.victims.iter().map(|v| v.seglets.len()).sum()
    }

    /// Takes the victim out of the pass that gains least. Tombstones that name it count again.
    fn drop_fullest(&mut self) {
        let mut live = vec![0u64; self.victims.len()];
        for survivor in &self.live {
            live[survivor.victim as usize] += u64::from(survivor.len);
        }
        let dead = |i: usize| {
            let all = (self.victims[i].seglets.len() * SEGLET_BYTES) as u64;
            all.saturating_sub(live[i])
        };
        let Some(fullest) = (0..self.victims.len()).min_by_key(|&i| dead(i)) else {
            return;
        };
        self.victims.remove(fullest);
        let fullest = fullest as u32;
        self.live.retain(|s| s.victim != fullest);
        for survivor in &mut self.live {
            if survivor.victim > fullest {
                survivor.victim -= 1;
            }
        }
    }
}

impl Cleaner {
    /// Reads a slice of the victims; after the last one, plans the survivors.
    pub(super) fn scan(&self, mut pass: Pass) -> Result<(Stage, CleanerPace), Corruption> {
        let mut left = self.options.slice_bytes;
        for number in 0..pass.victims.len() {
            left = self.scan_victim(&mut pass, number, left)?;
            if left == 0 {
                return Ok((Stage::Scan(pass), CleanerPace::Again));
            }
        }
        Ok(self.plan(pass))
    }

    /// Scans up to `left` bytes of a victim and returns what is left of them.
    fn scan_victim(
        &self,
        pass: &mut Pass,
        number: usize,
        left: usize,
    ) -> Result<usize, Corruption> {
        let guard = self.space.pin();
        let memory = &self.space.memory;
        let victim = &pass.victims[number];
        let end = victim.segment.appended_len();
        let start = victim.scanned;
        let mut at = start;
        let mut live = Vec::new();
        while at < end && ((at - start) as usize) < left {
            let seglet = victim.seglets[at as usize / SEGLET_BYTES];
            let within = at as usize % SEGLET_BYTES;
            if memory.is_padding(seglet, within, &guard) {
                at += (SEGLET_BYTES - within) as u32;
                continue;
            }
            let entry = EntryRef::new(LogMemory::base(seglet) + within as u64);
            let view = memory.view(entry, Check::Checksum, &guard)?;
            let survivor = |timestamp_s, only_while| Survivor {
                timestamp_s,
                victim: number as u32,
                entry,
                len: view.total_len(),
                only_while,
            };
            match view.entry() {
                Entry::Object(object) => {
                    if self.liveness.is_live(entry, &view) {
                        live.push(survivor(object.timestamp_s, None));
                    }
                }
                Entry::Tombstone(tombstone) => {
                    if self.liveness.is_live(entry, &view) {
                        live.push(survivor(tombstone.timestamp_s, None));
                    } else if pass.may_outlive_pass(tombstone.segment) {
                        live.push(survivor(tombstone.timestamp_s, Some(tombstone.segment)));
                    }
                }
                Entry::Completion(_) => {
                    if self.liveness.is_live(entry, &view) {
                        live.push(survivor(COMPLETIONS_AGE_S, None));
                    }
                }
                // The newest head has its own.
                Entry::SegmentHeader(_)
                | Entry::LogDigest(_)
                | Entry::SafeVersion(_)
                | Entry::TableStats(_) => {}
            }
            at += view.total_len();
        }
        if at > end {
            return Err(self.overrun(&pass.victims[number], start));
        }
        pass.live.append(&mut live);
        pass.victims[number].scanned = at;
        Ok(left.saturating_sub((at - start) as usize))
    }

    /// An entry that reaches beyond its segment's end.
    fn overrun(&self, victim: &Victim, offset: u32) -> Corruption {
        let seglet = victim.seglets[offset as usize / SEGLET_BYTES];
        Corruption {
            entry: EntryRef::new(LogMemory::base(seglet) + u64::from(offset) % SEGLET_BYTES as u64),
            segment: victim.segment.id(),
            offset,
            what: ParseErrorKind::Truncated,
        }
    }

    /// Takes memory for the survivors (CLEAN-4), leaving victims out until it suffices.
    fn plan(&self, mut pass: Pass) -> (Stage, CleanerPace) {
        // Ids ascend with the time of writing, so equal seconds stay in the order of writing.
        pass.live.sort_by_key(|s| s.timestamp_s);
        let capacity = self.space.geometry.segment_bytes();
        while !pass.victims.is_empty() {
            let need = pass.need(capacity);
            let gains = if pass.for_memory {
                need.seglets < pass.seglets()
            } else {
                need.segments < pass.victims.len()
            };
            if gains && need.seglets <= self.survivor_budget() && self.stock_up(&mut pass, need) {
                self.space
                    .cleaner_counters
                    .bytes_cleaned
                    .fetch_add((pass.seglets() * SEGLET_BYTES) as u64, Ordering::Relaxed);
                pass.settle();
                return (Stage::Relocate(pass), CleanerPace::Again);
            }
            pass.drop_fullest();
        }
        self.add(|c| &c.barren_passes, 1);
        self.publish();
        (Stage::Choose, CleanerPace::Idle)
    }

    fn stock_up(&self, pass: &mut Pass, need: Need) -> bool {
        let Some(slots) = self.space.take_slots(need.segments, 0) else {
            return false;
        };
        let Some(seglets) = self.space.take_reserved(SegletClass::Cleaner, need.seglets) else {
            self.space.give_back_slots(slots);
            return false;
        };
        (pass.stock_slots, pass.stock_seglets) = (slots, seglets);
        true
    }

    /// Copies a slice; after the last entry, closes the survivors and notes what must be durable.
    pub(super) fn relocate(&self, mut pass: Pass) -> Result<(Stage, CleanerPace), Corruption> {
        let mut copied = 0;
        while pass.moved < pass.live.len() && copied < self.options.slice_bytes {
            let survivor = &pass.live[pass.moved];
            let (entry, len) = (survivor.entry, survivor.len);
            if !self.relocate_one(&mut pass, entry)? {
                return Ok((Stage::Relocate(pass), CleanerPace::Idle));
            }
            pass.moved += 1;
            copied += len as usize;
        }
        self.add(|c| &c.bytes_moved, copied as u64);
        if let Some(writer) = &mut pass.writer {
            writer.publish();
            LogState::call(&self.space.log(pass.log).append_hook);
        }
        if pass.moved < pass.live.len() {
            return Ok((Stage::Relocate(pass), CleanerPace::Again));
        }
        self.close_survivor(&mut pass);
        self.space
            .give_back(core::mem::take(&mut pass.stock_seglets));
        self.space
            .give_back_slots(core::mem::take(&mut pass.stock_slots));
        // The liveness of every entry was decided before this line, so whatever made one dead was
        // appended before it (CLEAN-2).
        pass.await_positions = self
            .space
            .logs()
            .map(|log| (log, self.space.end_position(log)))
            .collect();
        pass.live = Vec::new();
        LogState::call(&self.space.log(pass.log).append_hook);
        Ok((Stage::AwaitDurable(pass), CleanerPace::Again))
    }

    /// Copies one entry. Gives `false` when a seglet is missing.
    fn relocate_one(&self, pass: &mut Pass, old: EntryRef) -> Result<bool, Corruption> {
        let guard = self.space.pin();
        let view = self.space.memory.view(old, Check::Structure, &guard)?;
        let entry = view.entry();
        let Some(writer) = self.room_for(pass, view.total_len()) else {
            return Ok(false);
        };
        let before = writer.at();
        let new = if view.head().group_continues {
            // The survivor stands alone; its group was complete.
            let encoded = Encoded::new(&entry, false).expect("it was encoded before");
            writer.put(&encoded.parts())
        } else {
            writer.put(&[view.bytes()])
        };
        let pointed_to = self.liveness.relocate(old, new, &view);
        match entry {
            Entry::Object(_) | Entry::Completion(_) if pointed_to => {
                self.space.count(writer, &entry, view.total_len() as usize);
                self.space.mark_dead(old, view.total_len(), &guard);
            }
            // It died since the scan, and the tombstone names the old segment only (CLEAN-6).
            Entry::Object(_) | Entry::Completion(_) => writer.rewind(before),
            // Needed on disk, whether or not the index has it.
            Entry::Tombstone(_) => {
                self.space.count(writer, &entry, view.total_len() as usize);
            }
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_) => {}
        }
        Ok(true)
    }

    /// The writer of a survivor with room for `len` bytes, from the pass's own stock.
    fn room_for<'p>(&self, pass: &'p mut Pass, len: u32) -> Option<&'p mut SegmentWriter> {
        let capacity = self.space.geometry.segment_bytes();
        let end = |at: u32| end_after(at, [len as usize].into_iter());
        if pass.writer.as_ref().is_none_or(|w| end(w.at()) > capacity) {
            self.refill_stock(pass, 1)?;
            self.close_survivor(pass);
            let slot = pass.stock_slots.pop();
            let slot = slot.expect("leaving entries out never makes more survivors than planned");
            let first = pass.stock_seglets.pop().into_iter().collect();
            let writer = self.space.open_survivor(pass.log, slot, first);
            self.add(|c| &c.survivors, 1);
            pass.writer = Some(writer);
        }
        let writer = pass.writer.as_ref().expect("opened above");
        let missing = writer.missing_seglets(end(writer.at()));
        self.refill_stock(pass, missing)?;
        let keep = pass.stock_seglets.len() - missing;
        let writer = pass.writer.as_mut().expect("opened above");
        writer.extend(pass.stock_seglets.drain(keep..));
        Some(writer)
    }

    /// Sees to it that the stock has `count` seglets. The plan took enough; but when entries are
    /// left out that died since, the others lie differently and may, by the rounding at the
    /// survivors' ends, need one more.
    fn refill_stock(&self, pass: &mut Pass, count: usize) -> Option<()> {
        let missing = count.saturating_sub(pass.stock_seglets.len());
        if missing > 0 {
            let more = self
                .space
                .take_reserved(SegletClass::Cleaner, missing)
                .or_else(|| self.space.take_reserved(SegletClass::Emergency, missing))?;
            pass.stock_seglets.extend(more);
        }
        Some(())
    }

    fn close_survivor(&self, pass: &mut Pass) {
        if let Some(mut writer) = pass.writer.take() {
            writer.publish();
            writer.segment().close();
            pass.survivors.push(Arc::clone(writer.segment()));
        }
    }

    /// Exchanges the segments, once everything needed is durable (CLEAN-2, CLEAN-3).
    pub(super) fn await_durable(&self, pass: Pass) -> (Stage, CleanerPace) {
        let ready = match self.space.options.durability {
            Durability::Volatile => true,
            Durability::Replicated => {
                pass.survivors.iter().all(|s| s.is_marked_durable())
                    && pass
                        .await_positions
                        .iter()
                        .all(|(log, position)| self.space.is_durable(*log, *position))
            }
        };
        if !ready {
            return (Stage::AwaitDurable(pass), CleanerPace::Idle);
        }
        self.add(|c| &c.passes, 1);
        self.add(|c| &c.segments_cleaned, pass.victims.len() as u64);
        let mut members = self.space.log(pass.log).members();
        for survivor in pass.survivors {
            members.in_log.insert(survivor.id(), survivor);
        }
        for victim in pass.victims {
            // A rejected recovery may have dropped it meanwhile.
            let Some(segment) = members.in_log.remove(&victim.segment.id()) else {
                continue;
            };
            segment.set_leaving();
            match self.space.options.durability {
                Durability::Volatile => self.space.drop_segment(&mut members, segment),
                Durability::Replicated => members.leaving.push(segment),
            }
        }
        members.unpublished = true;
        (Stage::Choose, CleanerPace::Again)
    }

    fn add(&self, counter: impl FnOnce(&super::CleanerCounters) -> &AtomicU64, by: u64) {
        counter(&self.space.cleaner_counters).fetch_add(by, Ordering::Relaxed);
    }
}
