//! When to clean, and what.

use super::pass::Pass;
use super::{Cleaner, CleanerPace, Stage};
use crate::append::current;
use crate::durable::Durability;
use crate::log_state::LogState;
use crate::segment::Segment;
use core::cell::OnceCell;
use core::sync::atomic::Ordering;
use pluvio_format::SegmentKind;
use pluvio_units::{SEGLET_BYTES, SegmentId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A segment with less dead data than this, in percent, is not cleaned for the sake of order
/// (000 §7): the copy costs more than it gains.
const DEAD_PERCENT_MIN: u64 = 2;
/// Cleaning begins when this share of the usable memory is taken, or half of what live objects
/// leave, whichever is later (RAMCloud's rule): the later, the more has died by itself.
const LOW_PERCENT: u64 = 90;
/// So many percent of the segment slots may be in use before segments are cleaned to get slots
/// back, even when there is memory.
const SLOTS_PERCENT: usize = 95;

/// What there is too little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pressure {
    /// Seglets.
    Memory,
    /// Segment slots: frames on the backups' disks.
    Segments,
}

/// A segment that may be cleaned.
struct Candidate {
    segment: Arc<Segment>,
    live_bytes: u64,
    seglets: usize,
    score: f64,
}

impl Candidate {
    fn dead_bytes(&self) -> u64 {
        ((self.seglets * SEGLET_BYTES) as u64).saturating_sub(self.live_bytes)
    }
}

impl Cleaner {
    /// The first stage of a pass.
    pub(super) fn choose(&self) -> (Stage, CleanerPace) {
        let wanted = self.space.cleaning_wanted.swap(false, Ordering::Relaxed);
        let waiting = self.space.seglets_on_their_way();
        let Some(pressure) = self.pressure(wanted, waiting) else {
            if waiting > 0 && (wanted || self.memory_low(0)) {
                self.publish();
            }
            return (Stage::Choose, CleanerPace::Idle);
        };
        match self.choose_segments(pressure) {
            Some(pass) => (Stage::Scan(pass), CleanerPace::Again),
            None => {
                if waiting > 0 {
                    self.publish();
                } else if wanted {
                    self.close_emptiest_head();
                }
                (Stage::Choose, CleanerPace::Idle)
            }
        }
    }

    fn pressure(&self, wanted: bool, waiting: usize) -> Option<Pressure> {
        let slots = self.space.geometry.slots - self.space.geometry.slots_reserve;
        let free = self.space.free_slot_count();
        let usable = free.saturating_sub(self.space.geometry.slots_reserve);
        if usable * 100 < slots * (100 - SLOTS_PERCENT) {
            return Some(Pressure::Segments);
        }
        // An append was refused: what is on its way may be all it needs; if nothing is, clean.
        (self.memory_low(waiting) || (wanted && waiting == 0)).then_some(Pressure::Memory)
    }

    /// Whether memory is low, `waiting` seglets taken as free.
    fn memory_low(&self, waiting: usize) -> bool {
        let geometry = &self.space.geometry;
        let usable = geometry.usable() as u64;
        let free = self.space.pool.free();
        let free = (free.default + free.cleaner) as usize + waiting;
        let free = free.saturating_sub(geometry.cleaner_reserve) as u64;
        let live_percent = self.space.live_bytes() * 100 / (usable * SEGLET_BYTES as u64);
        let start_percent = LOW_PERCENT.max((100 + live_percent) / 2).min(100);
        let floor = (geometry.delete_reserve + geometry.segment_seglets / 4) as u64;
        free * 100 < usable * (100 - start_percent) || free < floor
    }

    /// Opens a head in every log with a digest to be published.
    pub(super) fn publish(&self) {
        for log in self.space.log_states() {
            let due = {
                let members = log.members();
                members.unpublished && !members.leaving.is_empty()
            };
            if due {
                // Refused when both emergency heads of this log are in use: the digest of one of
                // them must become durable first, then a later step comes here again.
                let _tried_again_later = self.space.roll(log.id);
            }
        }
    }

    /// Dead entries in a head cannot be collected. When nothing else is left, a head with many of
    /// them is closed.
    fn close_emptiest_head(&self) {
        let dead_of = |log: &LogState| {
            let segment = Arc::clone(current(&mut log.head()).segment());
            let live = self.live_bytes(&segment, &|_| true);
            segment.memory_bytes().saturating_sub(live)
        };
        let best = self
            .space
            .log_states()
            .iter()
            .map(|log| (dead_of(log), log.id))
            .max();
        if let Some((dead, log)) = best
            && dead >= 3 * SEGLET_BYTES as u64
        {
            let _tried_again_later = self.space.roll(log);
        }
    }

    fn live_bytes(&self, segment: &Segment, named_is_there: &dyn Fn(SegmentId) -> bool) -> u64 {
        let objects = self.space.memory.live_of_slot(segment.slot());
        objects + segment.tombstones().live_bytes(named_is_there)
    }

    /// The segments of the next pass, all of one log.
    fn choose_segments(&self, pressure: Pressure) -> Option<Pass> {
        let on_disk = self.space.on_disk();
        let mut best: Option<(f64, &LogState, Vec<Candidate>)> = None;
        for log in self.space.log_states() {
            let mut candidates = self.candidates(log, &on_disk, pressure);
            candidates.sort_by(|a, b| {
                let order = b.score.total_cmp(&a.score);
                order.then(a.segment.id().cmp(&b.segment.id()))
            });
            if let Some(first) = candidates.first()
                && best
                    .as_ref()
                    .is_none_or(|(score, _, _)| first.score > *score)
            {
                best = Some((first.score, log, candidates));
            }
        }
        let (_, log, candidates) = best?;
        let chosen = self.fit_budget(candidates, pressure)?;
        // Looked at again: what was opened while we chose may be named in what was closed meanwhile.
        let on_disk = self.space.on_disk();
        Some(Pass::new(
            log.id,
            chosen,
            on_disk,
            pressure == Pressure::Memory,
        ))
    }

    fn candidates(
        &self,
        log: &LogState,
        on_disk: &BTreeMap<SegmentId, Arc<Segment>>,
        pressure: Pressure,
    ) -> Vec<Candidate> {
        let now_s = self.space.newest_s();
        let epochs = self.space.memory.epochs();
        let new_stamp = OnceCell::new();
        let still_there = |id: SegmentId| {
            on_disk
                .get(&id)
                .is_some_and(|s| !(s.is_leaving() && s.log() == log.id))
        };
        let members: Vec<_> = log.members().in_log.values().cloned().collect();
        let mut candidates = Vec::new();
        for segment in members {
            if segment.is_emergency() || segment.is_held() || !self.is_durable(log, &segment) {
                continue;
            }
            // One stamp serves all segments that were closed since the last look.
            let stamp = segment.settled(|| *new_stamp.get_or_init(|| epochs.retire_epoch()));
            if !epochs.is_quiesced(stamp) {
                continue;
            }
            let live_bytes = self.live_bytes(&segment, &still_there);
            let seglets = segment.seglet_count();
            let score = self.score(&segment, live_bytes, seglets, now_s, pressure);
            candidates.push(Candidate {
                segment,
                live_bytes,
                seglets,
                score,
            });
        }
        candidates
    }

    /// Closed, and on all replicas (CLEAN-1).
    fn is_durable(&self, log: &LogState, segment: &Segment) -> bool {
        if !segment.is_closed() {
            return false;
        }
        match self.space.options.durability {
            Durability::Volatile => true,
            Durability::Replicated => match segment.kind() {
                SegmentKind::Head => log.durable.covers(segment.end()),
                SegmentKind::Side => segment.is_marked_durable(),
            },
        }
    }

    /// Cost-benefit with the age of the segment (002): `(1 - u) * age / u`. For memory, `u` is the
    /// live share of the memory the segment takes; for disk, that of a whole frame.
    fn score(
        &self,
        segment: &Segment,
        live_bytes: u64,
        seglets: usize,
        now_s: u32,
        pressure: Pressure,
    ) -> f64 {
        let bytes = match pressure {
            Pressure::Memory => (seglets * SEGLET_BYTES) as f64,
            Pressure::Segments => f64::from(self.space.geometry.segment_bytes()),
        };
        let u = (live_bytes as f64 / bytes).clamp(0.0, 1.0);
        let age = f64::from(now_s.saturating_sub(segment.created_s())) + 1.0;
        (1.0 - u) * age / (u + 1e-6)
    }

    /// Takes the best candidates for whose live data there is memory now.
    fn fit_budget(
        &self,
        candidates: Vec<Candidate>,
        pressure: Pressure,
    ) -> Option<Vec<Arc<Segment>>> {
        let worthwhile = |c: &Candidate| {
            let total = (c.seglets * SEGLET_BYTES) as u64;
            pressure == Pressure::Segments || c.dead_bytes() * 100 >= total * DEAD_PERCENT_MIN
        };
        let by_score = self.take_while_fitting(candidates.iter().filter(|c| worthwhile(c)));
        if self.gains(&by_score, pressure) {
            return Some(by_score.iter().map(|c| Arc::clone(&c.segment)).collect());
        }
        // The best by age and share free nothing together; those with most dead bytes may.
        let mut by_dead: Vec<&Candidate> = candidates.iter().collect();
        by_dead.sort_by_key(|c| (core::cmp::Reverse(c.dead_bytes()), c.segment.id()));
        let by_dead = self.take_while_fitting(by_dead.into_iter());
        self.gains(&by_dead, pressure)
            .then(|| by_dead.iter().map(|c| Arc::clone(&c.segment)).collect())
    }

    fn take_while_fitting<'c>(
        &self,
        candidates: impl Iterator<Item = &'c Candidate>,
    ) -> Vec<&'c Candidate> {
        let segment_bytes = u64::from(self.space.geometry.segment_bytes());
        let budget = (self.survivor_budget() * SEGLET_BYTES) as u64;
        let most = budget.min(segment_bytes * self.options.pass_segments_max as u64);
        let mut chosen = Vec::new();
        let mut live = 0;
        for candidate in candidates {
            // Half a seglet for what is lost at the ends of seglets and survivors.
            let with_it = live + candidate.live_bytes + SEGLET_BYTES as u64 / 2;
            if with_it <= most && chosen.len() < 4 * self.options.pass_segments_max {
                live = with_it;
                chosen.push(candidate);
            }
        }
        chosen
    }

    /// Whether a pass over these seems to free something.
    fn gains(&self, chosen: &[&Candidate], pressure: Pressure) -> bool {
        let live: u64 = chosen.iter().map(|c| c.live_bytes).sum();
        let needed = (live as usize).div_ceil(SEGLET_BYTES);
        match pressure {
            Pressure::Memory => needed < chosen.iter().map(|c| c.seglets).sum(),
            Pressure::Segments => {
                needed.div_ceil(self.space.geometry.segment_seglets) < chosen.len()
            }
        }
    }

    /// Seglets that survivors may take now: the cleaner's own, and half of what is free beyond
    /// what deletes need.
    pub(super) fn survivor_budget(&self) -> usize {
        let free = self.space.pool.free();
        let spare = (free.default as usize).saturating_sub(self.space.geometry.delete_reserve);
        free.cleaner as usize + spare / 2
    }
}
