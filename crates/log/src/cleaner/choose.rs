//! Which segments to clean.

use super::balance::{Balance, Pressure};
use super::combine::{Aim, Pass};
use super::compact::Compaction;
use super::entries::Source;
use super::{Goal, Shared, Stage, State};
use crate::append::LogState;
use crate::durable::Durability;
use crate::segments::{Claim, Segment, Storage, Use};
use core::cell::OnceCell;
use pluvio_format::SegmentKind;
use pluvio_memory::{FreeSeglets, PartIndex, ReclaimFrontier};
use pluvio_units::SEGLET_BYTES;
use std::sync::Arc;

/// To give memory back, segments with less dead data than this, in percent, are left alone.
pub(super) const WASTE_PERCENT_MIN: u32 = 15;

/// The weight of a dead byte in memory against one on disk, when a pass for disk chooses. Its
/// survivors have to be copied, and memory that this frees need not be freed by a compaction. From
/// 10 on the choice is that by memory, among segments with much dead on disk.
const MEMORY_WEIGHT: f64 = 10.0;

/// Combined cleaning helps memory when tombstones take this share of what live objects leave (the
/// value is RAMCloud's).
const TOMBSTONE_PERCENT: u64 = 40;

/// Segments of the part of memory with the least free are chosen when they score more than the
/// others divided by this. So its logs need not take seglets of other memory nodes, and hardly more
/// is copied.
const POOREST_PREFERENCE: f64 = 2.0;

/// A pass stays with its own part of memory [Nibble §4.4] until another one has less free than its
/// own share divided by this. Then it helps there [Nibble §12.1.1].
const HELPED_BELOW: u64 = 2;

/// Whose segments a choice looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Those of the logs of one part of the memory.
    Own(PartIndex),
    /// Those of all logs.
    All,
}

impl Reach {
    fn covers(self, log: &LogState) -> bool {
        match self {
            Self::Own(part) => log.part == part,
            Self::All => true,
        }
    }
}

/// The store as it was when combined passes gained nothing, the last one for each goal and reach.
/// Another one is of no use before something has changed.
#[derive(Default)]
pub(super) struct Barren([[Option<Fingerprint>; 2]; 3]);

impl Barren {
    pub(super) fn note(&mut self, found: Fingerprint) {
        let wide = match found.reach {
            Reach::Own(_) => 0,
            Reach::All => 1,
        };
        self.0[found.goal as usize][wide] = Some(found);
    }

    fn has(&self, now: Fingerprint) -> bool {
        self.0.as_flattened().contains(&Some(now))
    }
}

/// What a choice of segments depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fingerprint {
    goal: Goal,
    reach: Reach,
    live_bytes: u64,
    disk_bytes: u64,
    free: FreeSeglets,
}

/// A segment that may be cleaned.
struct Candidate {
    segment: Arc<Segment>,
    live_bytes: u64,
    seglets: usize,
    disk_bytes: u64,
    /// Bytes of a full segment.
    full_bytes: u64,
    score: f64,
}

impl Candidate {
    fn memory_bytes(&self) -> u64 {
        (self.seglets * SEGLET_BYTES) as u64
    }

    /// The bytes it takes that are of no use, for this goal.
    fn dead_bytes(&self, goal: Goal) -> u64 {
        let all = match goal {
            Goal::Memory => self.memory_bytes(),
            Goal::Disk => self.disk_bytes,
            Goal::Slots => self.full_bytes,
        };
        all.saturating_sub(self.live_bytes)
    }

    fn is_worthwhile(&self, goal: Goal, percent: u32) -> bool {
        let dead = self.dead_bytes(goal);
        dead * 100 >= (dead + self.live_bytes) * u64::from(percent)
    }

    /// Seglets that it takes at least when it is cleaned alone.
    fn seglets_alone_min(&self) -> usize {
        (self.live_bytes as usize).div_ceil(SEGLET_BYTES).max(1)
    }

    /// Seglets it seems to free when it is cleaned alone.
    fn gain_alone(&self) -> usize {
        self.seglets.saturating_sub(self.seglets_alone_min())
    }

    /// Seglets that it takes at most when it is cleaned alone: never more than it has.
    fn seglets_alone_max(&self) -> usize {
        let needed = (self.live_bytes as usize).div_ceil(SEGLET_BYTES);
        (needed + 1).min(self.seglets)
    }

    /// Cleaned alone it gained nothing, and nothing in it has died since.
    fn is_barren(&self) -> bool {
        self.segment.is_barren(self.live_bytes)
    }
}

impl Fingerprint {
    pub(super) fn of(shared: &Shared, goal: Goal, reach: Reach) -> Self {
        Self {
            goal,
            reach,
            live_bytes: shared.storage().live_bytes(),
            disk_bytes: shared.storage().table.disk_bytes(),
            free: shared.storage().seglets.free(),
        }
    }
}

/// One choice of segments: by one look at the guards, and at the store as it is now.
pub(super) struct Choice<'c> {
    shared: &'c Shared,
    balance: Balance<'c>,
    /// A segment that was closed before this has no writer between append and index.
    frontier: OnceCell<ReclaimFrontier>,
}

impl<'c> Choice<'c> {
    pub(super) fn new(shared: &'c Shared) -> Self {
        Self {
            shared,
            balance: shared.balance(),
            frontier: OnceCell::new(),
        }
    }

    fn storage(&self) -> &'c Storage {
        self.shared.storage()
    }

    /// Which level comes first [LSM-DRAM §5.2], and what is tried when it finds nothing. Passes
    /// that hardly gain anything are tried only when an append was refused.
    pub(super) fn begin(
        &self,
        pressure: Pressure,
        refused: bool,
        state: &mut State,
    ) -> Option<Stage> {
        let percent = self.shared.options.dead_percent_min;
        let (combine_first, goal) = match pressure {
            Pressure::Slots => (true, Goal::Slots),
            Pressure::Disk => (true, Goal::Disk),
            Pressure::Memory => (false, Goal::Disk),
            // Compaction frees whatever is dead but tombstones. Without many of those, a combined
            // pass would only copy, and send to backups, what can stay where it is until the disk
            // is full.
            Pressure::MemoryCritical => (
                !state.combined_last && self.has_many_tombstones(),
                Goal::Disk,
            ),
        };
        state.combined_last = combine_first;
        let state = &*state;
        let combine = |goal, percent| self.combine(goal, percent, state);
        if !self.balance.has_two_levels() {
            let first = match pressure {
                Pressure::Slots | Pressure::Disk => combine(goal, percent),
                Pressure::Memory | Pressure::MemoryCritical => None,
            };
            let worthwhile = first.or_else(|| combine(Goal::Memory, percent));
            let any = || combine(Goal::Memory, 0).or_else(|| combine(Goal::Disk, 0));
            return worthwhile.or_else(|| refused.then(any).flatten());
        }
        let first = combine_first.then(|| combine(goal, percent)).flatten();
        let first = first.or_else(|| self.compact(percent, state));
        // When compaction cannot free, what is left in memory are tombstones: the log on disk has
        // to become shorter for them to die.
        let tombstones = || {
            let useful = refused || self.has_many_tombstones();
            useful.then(|| combine(goal, percent)).flatten()
        };
        let any = || {
            let compacted = self.compact(0, state);
            let freed = compacted.or_else(|| combine(Goal::Memory, 0));
            freed.or_else(|| combine(Goal::Disk, 0))
        };
        first
            .or_else(tombstones)
            .or_else(|| refused.then(any).flatten())
    }

    /// Whether tombstones take much of the memory that live objects leave (RAMCloud's balancer).
    fn has_many_tombstones(&self) -> bool {
        let usable = (self.storage().geometry.usable() * SEGLET_BYTES) as u64;
        let others = usable.saturating_sub(self.storage().live_bytes());
        let mut tombstones = 0;
        for log in self.shared.space.heads.logs() {
            let members = log.members();
            let each = members.in_log.values();
            tombstones += each.map(|s| s.tombstones().live_bytes()).sum::<u64>();
        }
        tombstones * 100 >= others * TOMBSTONE_PERCENT
    }

    /// Where a pass looks for segments: first, and if it finds nothing there.
    fn reaches(&self, state: &State) -> impl Iterator<Item = Reach> + use<> {
        let own = state.home.filter(|home| !self.is_needed_elsewhere(*home));
        own.map(Reach::Own).into_iter().chain([Reach::All])
    }

    /// Whether another part of memory has much less free than this one.
    fn is_needed_elsewhere(&self, home: PartIndex) -> bool {
        let free = self.storage().seglets.free_permille();
        let own = free[usize::from(home.0)];
        free.iter().any(|&other| other < own / HELPED_BELOW)
    }

    /// A combined pass, over segments of one log: that with the best segment, if some of its
    /// segments gain together.
    pub(super) fn combine(&self, goal: Goal, percent: u32, state: &State) -> Option<Stage> {
        self.reaches(state)
            .find_map(|reach| self.combine_within(reach, goal, percent, state))
    }

    fn combine_within(
        &self,
        reach: Reach,
        goal: Goal,
        percent: u32,
        state: &State,
    ) -> Option<Stage> {
        let in_vain = state.barren.has(Fingerprint::of(self.shared, goal, reach));
        if in_vain && !self.balance.cleans_alone(goal) {
            return None;
        }
        let poorest = self.storage().seglets.poorest();
        let mut logs: Vec<(f64, &LogState, Vec<Candidate>)> = Vec::new();
        for log in self
            .shared
            .space
            .heads
            .logs()
            .iter()
            .filter(|l| reach.covers(l))
        {
            let preference = self.preference(log, poorest);
            let score = |candidate: &Candidate| preference * self.score(candidate, goal);
            let mut candidates = self.candidates(log, score);
            candidates.retain(|c| c.segment.uses().can_be_claimed(Claim::Scan));
            candidates.sort_by(|a, b| {
                let order = b.score.total_cmp(&a.score);
                order.then(a.segment.id().cmp(&b.segment.id()))
            });
            let first = candidates
                .iter()
                .find(|c| c.is_worthwhile(goal, percent))
                .map(|c| c.score);
            logs.extend(first.map(|score| (score, log, candidates)));
        }
        // Stable: of equals, the first log.
        logs.sort_by(|(a, _, _), (b, _, _)| b.total_cmp(a));
        let (log, mut chosen) = logs.iter().find_map(|(_, log, candidates)| {
            let together = (!in_vain).then(|| self.fit_budget(candidates, goal, percent));
            let alone = || Some(vec![self.best_alone(candidates, goal, percent)?]);
            Some((log, together.flatten().or_else(alone)?))
        })?;
        chosen.retain(|candidate| candidate.segment.uses().claim(Claim::Scan));
        if chosen.is_empty() {
            return None;
        }
        chosen.sort_by_key(|candidate| candidate.segment.id());
        let victim = |candidate: &&Candidate| {
            self.check_cleanable(log, &candidate.segment);
            Source::new(Arc::clone(&candidate.segment), candidate.live_bytes)
        };
        let victims = chosen.iter().map(victim).collect();
        // Looked at again: what was opened while we chose may be named in what was closed
        // meanwhile.
        let on_disk = self.storage().table.snapshot();
        let live = self.shared.lists.take();
        let aim = Aim { goal, reach };
        Some(Stage::Scan(Pass::new(log.id, aim, victims, on_disk, live)))
    }

    /// A compaction of the segment, of all logs, that gives most memory for what is copied.
    fn compact(&self, percent: u32, state: &State) -> Option<Stage> {
        if state.finished.is_full() {
            return None;
        }
        self.reaches(state)
            .find_map(|reach| self.compact_within(reach, percent))
    }

    fn compact_within(&self, reach: Reach, percent: u32) -> Option<Stage> {
        let score =
            |c: &Candidate| (c.gain_alone() * SEGLET_BYTES) as f64 / (c.live_bytes + 1) as f64;
        // Others hold what there was until they are durable: a segment would be read through in
        // vain.
        let free = self.storage().seglets.free();
        let spare = (free.default as usize).saturating_sub(self.storage().geometry.reserves.delete);
        let free = free.cleaner as usize + spare;
        let poorest = self.storage().seglets.poorest();
        let of_log = |log| {
            let preference = self.preference(log, poorest);
            self.candidates(log, |candidate| preference * score(candidate))
        };
        let logs = self.shared.space.heads.logs().iter();
        let mut candidates: Vec<Candidate> = logs
            .filter(|log| reach.covers(log))
            .flat_map(of_log)
            .filter(|c| {
                c.gain_alone() > 0
                    && c.seglets_alone_min() <= free
                    && c.is_worthwhile(Goal::Memory, percent)
                    && !c.is_barren()
                    && c.segment.uses().can_be_claimed(Claim::Compact)
            })
            .collect();
        candidates.sort_by(|a, b| {
            let order = b.score.total_cmp(&a.score);
            order.then(a.segment.id().cmp(&b.segment.id()))
        });
        let chosen = candidates
            .into_iter()
            .find(|c| c.segment.uses().claim(Claim::Compact))?;
        self.check_cleanable(
            self.shared.space.heads.log(chosen.segment.log()),
            &chosen.segment,
        );
        let on_disk = self.storage().table.snapshot();
        let source = Source::new(chosen.segment, chosen.live_bytes);
        let live = self.shared.lists.take();
        Some(Stage::CompactScan(Compaction::new(source, on_disk, live)))
    }

    /// By how much segments of a log are preferred: what they free is mostly of the log's part of
    /// the memory.
    fn preference(&self, log: &LogState, poorest: Option<(PartIndex, u64)>) -> f64 {
        match poorest {
            Some((part, _)) if part == log.part => POOREST_PREFERENCE,
            Some(_) | None => 1.0,
        }
    }

    /// The segments of a log that could be cleaned, with their scores.
    fn candidates(&self, log: &LogState, score: impl Fn(&Candidate) -> f64) -> Vec<Candidate> {
        let members: Vec<_> = log.members().in_log.values().cloned().collect();
        let mut candidates = Vec::new();
        for segment in members {
            if segment.is_emergency()
                || segment.uses().get() == Use::SideLog
                || !self.is_durable(log, &segment)
                || !self.is_settled(&segment)
            {
                continue;
            }
            let mut candidate = Candidate {
                live_bytes: self.shared.live_bytes(&segment),
                seglets: segment.contents().seglets(),
                disk_bytes: u64::from(segment.disk_len()),
                full_bytes: u64::from(self.storage().geometry.segment_bytes()),
                segment,
                score: 0.0,
            };
            candidate.score = score(&candidate);
            candidates.push(candidate);
        }
        candidates
    }

    /// Whether no writer is between append and index update in a closed segment (CLEAN-1).
    fn is_settled(&self, segment: &Segment) -> bool {
        let look = || self.shared.memory().epochs().frontier();
        let frontier = *self.frontier.get_or_init(look);
        segment
            .settled()
            .is_some_and(|stamp| frontier.covers(stamp))
    }

    /// A segment that was claimed for a pass may be cleaned.
    fn check_cleanable(&self, log: &LogState, segment: &Segment) {
        assert!(
            matches!(segment.uses().get(), Use::Scanning | Use::Compacting)
                && segment.settled().is_some()
                && self.is_durable(log, segment)
                && !segment.is_emergency(),
            "CLEAN-1: a pass has {segment:?}"
        );
    }

    /// Closed, and on all replicas (CLEAN-1).
    fn is_durable(&self, log: &LogState, segment: &Segment) -> bool {
        if !segment.is_closed() {
            return false;
        }
        match self.storage().options.durability {
            Durability::Volatile => true,
            Durability::Replicated => match segment.kind() {
                SegmentKind::Head => log.durable.covers(segment.end()),
                SegmentKind::Side => segment.state().is_durable(),
            },
        }
    }

    /// Cost-benefit with the age of the segment [LSM-DRAM §3]: `(1 - u) * age / u`. `u` is a live
    /// share. For memory it is that of the memory the segment takes, for disk that of its replica,
    /// for slots that of a full segment.
    fn score(&self, candidate: &Candidate, goal: Goal) -> f64 {
        let mut dead = candidate.dead_bytes(goal) as f64;
        if goal == Goal::Disk {
            dead += MEMORY_WEIGHT * candidate.dead_bytes(Goal::Memory) as f64;
        }
        let live = candidate.live_bytes as f64;
        let created_s = candidate.segment.created_s();
        let age = f64::from(self.storage().clock.now_s().saturating_sub(created_s)) + 1.0;
        dead * age / (live + 1.0)
    }

    /// Takes the best candidates for whose live data there is memory now.
    fn fit_budget<'s>(
        &self,
        candidates: &'s [Candidate],
        goal: Goal,
        percent: u32,
    ) -> Option<Vec<&'s Candidate>> {
        let worthwhile = candidates.iter().filter(|c| c.is_worthwhile(goal, percent));
        // Not more than is useful now: what is left will have less that lives later on.
        let segment_bytes = u64::from(self.storage().geometry.segment_bytes());
        let usable = (self.storage().geometry.usable() * SEGLET_BYTES) as u64;
        let enough = match goal {
            Goal::Memory | Goal::Disk => (2 * segment_bytes).max(usable / 64),
            Goal::Slots => u64::MAX,
        };
        let by_score = self.take_while_fitting(worthwhile, goal, enough);
        if self.seem_to_gain(&by_score, goal) {
            return Some(by_score);
        }
        // The best by age and share free nothing together; those with most dead bytes may.
        let mut by_dead: Vec<&Candidate> = candidates.iter().collect();
        by_dead.sort_by_key(|c| (core::cmp::Reverse(c.dead_bytes(goal)), c.segment.id()));
        let by_dead = self.take_while_fitting(by_dead.into_iter(), goal, u64::MAX);
        self.seem_to_gain(&by_dead, goal).then_some(by_dead)
    }

    /// The candidate that frees most memory alone, if that is for passes. Padding may eat up the
    /// gain, so each that gains nothing is remembered, and another one is next.
    fn best_alone<'s>(
        &self,
        candidates: &'s [Candidate],
        goal: Goal,
        percent: u32,
    ) -> Option<&'s Candidate> {
        if !self.balance.cleans_alone(goal) {
            return None;
        }
        let budget = self.balance.survivor_budget();
        let least = self.balance.least_gain(goal);
        candidates
            .iter()
            .filter(|c| {
                c.is_worthwhile(goal, percent)
                    && c.seglets_alone_max() <= budget
                    && c.gain_alone() >= least
                    && !c.is_barren()
            })
            .max_by_key(|c| (c.dead_bytes(goal), core::cmp::Reverse(c.segment.id())))
    }

    fn take_while_fitting<'s>(
        &self,
        candidates: impl Iterator<Item = &'s Candidate>,
        goal: Goal,
        enough: u64,
    ) -> Vec<&'s Candidate> {
        let segment_bytes = u64::from(self.storage().geometry.segment_bytes());
        let budget = (self.balance.survivor_budget() * SEGLET_BYTES) as u64;
        let most = budget.min(segment_bytes * self.shared.options.pass_segments_max as u64);
        let mut chosen = Vec::new();
        let (mut live, mut dead) = (0, 0);
        for candidate in candidates {
            if dead >= enough {
                break;
            }
            let with_it = live + candidate.live_bytes;
            if with_it <= most && chosen.len() < 4 * self.shared.options.pass_segments_max {
                live = with_it;
                dead += candidate.dead_bytes(goal);
                chosen.push(candidate);
            }
        }
        chosen
    }

    /// Whether a pass over these seems to come nearer to its goal. For slots the plan looks more
    /// closely.
    fn seem_to_gain(&self, chosen: &[&Candidate], goal: Goal) -> bool {
        if let [one] = chosen
            && self.balance.cleans_alone(goal)
            && one.is_barren()
        {
            return false;
        }
        let live: u64 = chosen.iter().map(|c| c.live_bytes).sum();
        let least = self.balance.least_gain(goal);
        match goal {
            Goal::Memory => {
                let needed = (live as usize).div_ceil(SEGLET_BYTES);
                needed + least <= chosen.iter().map(|c| c.seglets).sum()
            }
            Goal::Disk => {
                let on_disk: u64 = chosen.iter().map(|c| c.disk_bytes).sum();
                live + (least * SEGLET_BYTES) as u64 <= on_disk
            }
            Goal::Slots => chosen.len() >= least.max(2),
        }
    }
}
