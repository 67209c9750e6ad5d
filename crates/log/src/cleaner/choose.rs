//! Which segments to clean: of those that were seen (`looks`), the best.

use super::balance::{Balance, Pressure};
use super::combine::{Aim, Pass};
use super::compact::Compaction;
use super::entries::Source;
use super::looks::{LOOKS_TO_COMBINE, LOOKS_TO_COMPACT};
use super::{Goal, Shared, Stage, State};
use crate::append::{LogState, Seen};
use crate::segments::{Claim, Segment, Storage, Use};
use core::cell::{Cell, OnceCell};
use core::cmp::Ordering;
use pluvio_memory::{FreeSeglets, PartIndex, ReclaimFrontier};
use pluvio_units::{SEGLET_BYTES, SegmentId};

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

/// A combined pass is chosen among this number of segments, those with the best scores. It takes a
/// tenth of them or so. The others are not sorted unless these gain nothing.
const SORTED: usize = 512;

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
pub(super) struct Barren {
    found: [[Option<Fingerprint>; 2]; 3],
    /// The last pass gained nothing, and its choice did not know all segments as they were.
    by_part: bool,
}

impl Barren {
    /// A pass gained nothing. `saw_all` says whether all segments were looked at for its choice:
    /// otherwise the next one looks at all of them.
    pub(super) fn note(&mut self, found: Fingerprint, saw_all: bool) {
        self.by_part = !saw_all;
        if !saw_all {
            return;
        }
        let wide = match found.reach {
            Reach::Own(_) => 0,
            Reach::All => 1,
        };
        self.found[found.goal as usize][wide] = Some(found);
    }

    /// A pass gains something.
    pub(super) fn note_gain(&mut self) {
        self.by_part = false;
    }

    fn has(&self, now: Fingerprint) -> bool {
        self.found.as_flattened().contains(&Some(now))
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

/// A segment that may be cleaned, as it was seen last.
#[derive(Clone, Copy)]
struct Candidate {
    seen: Seen,
    /// Bytes of a full segment.
    full_bytes: u64,
    score: f64,
}

/// Bytes that a compaction of a segment gains for each that it copies.
pub(super) fn worth_of_compaction(seen: &Seen) -> f64 {
    match seen.is_barren {
        true => 0.0,
        false => (gain_alone(seen) * SEGLET_BYTES) as f64 / (f64::from(seen.live_bytes) + 1.0),
    }
}

/// Seglets that a segment takes at least when it is cleaned alone.
fn seglets_alone_min(seen: &Seen) -> usize {
    (seen.live_bytes as usize).div_ceil(SEGLET_BYTES).max(1)
}

/// Seglets that it seems to free when it is cleaned alone.
fn gain_alone(seen: &Seen) -> usize {
    (seen.seglets as usize).saturating_sub(seglets_alone_min(seen))
}

impl Candidate {
    fn live_bytes(&self) -> u64 {
        u64::from(self.seen.live_bytes)
    }

    /// The bytes it takes that are of no use, for this goal.
    fn dead_bytes(&self, goal: Goal) -> u64 {
        let all = match goal {
            Goal::Memory => u64::from(self.seen.seglets) * SEGLET_BYTES as u64,
            Goal::Disk => u64::from(self.seen.disk_bytes),
            Goal::Slots => self.full_bytes,
        };
        all.saturating_sub(self.live_bytes())
    }

    fn is_worthwhile(&self, goal: Goal, percent: u32) -> bool {
        let dead = self.dead_bytes(goal);
        dead * 100 >= (dead + self.live_bytes()) * u64::from(percent)
    }

    /// Seglets that it takes at most when it is cleaned alone: never more than it has.
    fn seglets_alone_max(&self) -> usize {
        let needed = (self.seen.live_bytes as usize).div_ceil(SEGLET_BYTES);
        (needed + 1).min(self.seen.seglets as usize)
    }

    /// The best come first; of equals, the oldest.
    fn order(a: &Self, b: &Self) -> Ordering {
        let order = b.score.total_cmp(&a.score);
        order.then(a.seen.id.cmp(&b.seen.id))
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
    pub(super) shared: &'c Shared,
    balance: Balance<'c>,
    /// A segment that was closed before this has no writer between append and index.
    pub(super) frontier: OnceCell<ReclaimFrontier>,
    /// Segments that were looked at in turn.
    pub(super) looks: Cell<usize>,
    pub(super) has_seen_all: Cell<bool>,
}

impl<'c> Choice<'c> {
    pub(super) fn new(shared: &'c Shared) -> Self {
        Self {
            shared,
            balance: shared.balance(),
            frontier: OnceCell::new(),
            looks: Cell::new(0),
            has_seen_all: Cell::new(false),
        }
    }

    pub(super) fn storage(&self) -> &'c Storage {
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
        self.look_around(LOOKS_TO_COMPACT);
        self.shared.tombstone_bytes() * 100 >= others * TOMBSTONE_PERCENT
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
        let is_of_use = |reach: &Reach| {
            self.balance.cleans_alone(goal) || !self.is_in_vain(goal, *reach, state)
        };
        let reaches: Vec<Reach> = self.reaches(state).filter(is_of_use).collect();
        if reaches.is_empty() {
            return None;
        }
        match state.barren.by_part {
            true => _ = self.look_at_all(),
            false => self.look_around(LOOKS_TO_COMBINE),
        }
        let combine = |reach: &Reach| self.combine_seen(*reach, goal, percent, state);
        let search = || reaches.iter().find_map(combine);
        search().or_else(|| self.look_at_all().then(search).flatten())
    }

    /// Whether such a pass gained nothing, and nothing has changed since.
    fn is_in_vain(&self, goal: Goal, reach: Reach, state: &State) -> bool {
        state.barren.has(Fingerprint::of(self.shared, goal, reach))
    }

    /// Chooses by what was seen.
    fn combine_seen(&self, reach: Reach, goal: Goal, percent: u32, state: &State) -> Option<Stage> {
        let in_vain = self.is_in_vain(goal, reach, state);
        let poorest = self.storage().seglets.poorest();
        let logs = self.shared.space.heads.logs().iter();
        let first_of = |log| {
            let scores = self.worthwhile_scores(log, goal, percent);
            scores.map(|score| (self.preference(log, poorest) * score, log))
        };
        let covered = logs.filter(|log| reach.covers(log));
        let mut logs: Vec<(f64, &LogState)> = covered.filter_map(first_of).collect();
        // Stable: of equals, the first log.
        logs.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let (log, chosen) = logs.iter().find_map(|(_, log)| {
            let candidates = self.candidates(log, goal);
            let together = (!in_vain)
                .then(|| self.fit_budget(&candidates, goal, percent))
                .flatten();
            let alone = || Some(vec![self.best_alone(&candidates, goal, percent)?.seen.id]);
            Some((*log, together.or_else(alone)?))
        })?;
        let wanted = |seen: &Seen| seen.may_scan;
        let claimed = chosen
            .into_iter()
            .filter_map(|id| self.claim(log, id, Claim::Scan, wanted));
        let mut victims: Vec<Source> = claimed
            .inspect(|(segment, _)| self.check_cleanable(log, segment))
            .map(|(segment, live_bytes)| Source::new(segment, live_bytes))
            .collect();
        if victims.is_empty() {
            return None;
        }
        victims.sort_by_key(|victim| victim.segment.id());
        let live = self.shared.lists.take();
        let aim = Aim {
            goal,
            reach,
            saw_all: self.has_seen_all.get(),
        };
        Some(Stage::Scan(Pass::new(log.id, aim, victims, live)))
    }

    /// The best score of a log's segments that are worth a pass.
    fn worthwhile_scores(&self, log: &LogState, goal: Goal, percent: u32) -> Option<f64> {
        let members = log.members();
        let seen = members.in_log.seen().iter().filter(|seen| seen.may_scan);
        let candidates = seen.map(|seen| self.candidate(seen, goal));
        let worthwhile = candidates.filter(|c| c.is_worthwhile(goal, percent));
        worthwhile.map(|c| c.score).max_by(f64::total_cmp)
    }

    fn candidate(&self, seen: &Seen, goal: Goal) -> Candidate {
        let mut candidate = Candidate {
            seen: *seen,
            full_bytes: u64::from(self.storage().geometry.segment_bytes()),
            score: 0.0,
        };
        candidate.score = self.score(&candidate, goal);
        candidate
    }

    /// The segments of a log that a pass could clean, with their scores: the [`SORTED`] best come
    /// first, in order.
    fn candidates(&self, log: &LogState, goal: Goal) -> Vec<Candidate> {
        let members = log.members();
        let seen = members.in_log.seen().iter().filter(|seen| seen.may_scan);
        let mut candidates: Vec<_> = seen.map(|seen| self.candidate(seen, goal)).collect();
        drop(members);
        let sorted = candidates.len().min(SORTED);
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by(sorted, Candidate::order);
        }
        candidates[..sorted].sort_unstable_by(Candidate::order);
        candidates
    }

    /// A compaction of the segment, of all logs, that gives most memory for what is copied.
    fn compact(&self, percent: u32, state: &State) -> Option<Stage> {
        if state.finished.is_full() {
            return None;
        }
        self.look_around(LOOKS_TO_COMPACT);
        let compact = |reach| self.compact_seen(reach, percent);
        let search = || self.reaches(state).find_map(compact);
        search().or_else(|| self.look_at_all().then(search).flatten())
    }

    /// Chooses by what was seen.
    fn compact_seen(&self, reach: Reach, percent: u32) -> Option<Stage> {
        // Others hold what there was until they are durable: a segment would be read through in
        // vain.
        let free = self.storage().seglets.free();
        let spare = (free.default as usize).saturating_sub(self.storage().geometry.reserves.delete);
        let free = free.cleaner as usize + spare;
        let poorest = self.storage().seglets.poorest();
        let is_wanted = |seen: &Seen| {
            seen.worth > 0.0
                && seglets_alone_min(seen) <= free
                && self
                    .candidate(seen, Goal::Memory)
                    .is_worthwhile(Goal::Memory, percent)
        };
        // The most that a log has to give. It is looked into when no other has more.
        let most = |log: &LogState| log.members().in_log.most();
        let logs = self.shared.space.heads.logs().iter();
        let covered = logs.filter(|log| reach.covers(log));
        let mut logs: Vec<(f64, &LogState)> = covered
            .map(|log| (self.preference(log, poorest) * most(log), log))
            .collect();
        // Each turn takes a log away, or finds that one of its segments is not to be had.
        loop {
            let best = logs.iter().enumerate();
            let best = best.max_by(|(a, (x, _)), (b, (y, _))| x.total_cmp(y).then(b.cmp(a)));
            let (place, &(worth, log)) = best?;
            let Some((id, found)) = log.members().in_log.best_of(is_wanted) else {
                logs.swap_remove(place);
                continue;
            };
            let found = self.preference(log, poorest) * found;
            if found < worth {
                logs[place].0 = found;
                continue;
            }
            if let Some((segment, live_bytes)) = self.claim(log, id, Claim::Compact, is_wanted) {
                self.check_cleanable(log, &segment);
                let source = Source::new(segment, live_bytes);
                let live = self.shared.lists.take();
                return Some(Stage::CompactScan(Compaction::new(source, live)));
            }
        }
    }

    /// By how much segments of a log are preferred: what they free is mostly of the log's part of
    /// the memory.
    fn preference(&self, log: &LogState, poorest: Option<(PartIndex, u64)>) -> f64 {
        match poorest {
            Some((part, _)) if part == log.part => POOREST_PREFERENCE,
            Some(_) | None => 1.0,
        }
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
        // Another choice may have seen it settled after this one took its frontier.
        let is_settled = || {
            let frontier = self.shared.memory().epochs().frontier();
            segment
                .settled()
                .is_some_and(|stamp| frontier.covers(stamp))
        };
        debug_assert!(
            is_settled(),
            "CLEAN-1: {segment:?} has a writer between append and index"
        );
    }

    /// Cost-benefit with the age of the segment [LSM-DRAM §3]: `(1 - u) * age / u`. `u` is a live
    /// share. For memory it is that of the memory the segment takes, for disk that of its replica,
    /// for slots that of a full segment.
    fn score(&self, candidate: &Candidate, goal: Goal) -> f64 {
        let mut dead = candidate.dead_bytes(goal) as f64;
        if goal == Goal::Disk {
            dead += MEMORY_WEIGHT * candidate.dead_bytes(Goal::Memory) as f64;
        }
        let live = f64::from(candidate.seen.live_bytes);
        let created_s = candidate.seen.created_s;
        let age = f64::from(self.storage().clock.now_s().saturating_sub(created_s)) + 1.0;
        dead * age / (live + 1.0)
    }

    /// Takes the best candidates for whose live data there is memory now. Those behind the best are
    /// sorted only if these gain nothing.
    fn fit_budget(
        &self,
        candidates: &[Candidate],
        goal: Goal,
        percent: u32,
    ) -> Option<Vec<SegmentId>> {
        let ids = |chosen: Vec<Candidate>| -> Vec<SegmentId> {
            chosen.iter().map(|candidate| candidate.seen.id).collect()
        };
        // Not more than is useful now: what is left will have less that lives later on.
        let segment_bytes = u64::from(self.storage().geometry.segment_bytes());
        let usable = (self.storage().geometry.usable() * SEGLET_BYTES) as u64;
        let enough = match goal {
            Goal::Memory | Goal::Disk => (2 * segment_bytes).max(usable / 64),
            Goal::Slots => u64::MAX,
        };
        let best = candidates.iter().take(SORTED).copied();
        let worthwhile = best.filter(|c| c.is_worthwhile(goal, percent));
        let by_score = self.take_while_fitting(worthwhile, goal, enough);
        if self.seem_to_gain(&by_score, goal) {
            return Some(ids(by_score));
        }
        // The best by age and share free nothing together; those with most dead bytes may.
        let dead = |c: &Candidate| (core::cmp::Reverse(c.dead_bytes(goal)), c.seen.id);
        let mut by_dead = candidates.to_vec();
        by_dead.sort_unstable_by_key(dead);
        let by_dead = self.take_while_fitting(by_dead.into_iter(), goal, u64::MAX);
        self.seem_to_gain(&by_dead, goal).then(|| ids(by_dead))
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
                    && gain_alone(&c.seen) >= least
                    && !c.seen.is_barren
            })
            .max_by_key(|c| (c.dead_bytes(goal), core::cmp::Reverse(c.seen.id)))
    }

    fn take_while_fitting(
        &self,
        candidates: impl Iterator<Item = Candidate>,
        goal: Goal,
        enough: u64,
    ) -> Vec<Candidate> {
        let segment_bytes = u64::from(self.storage().geometry.segment_bytes());
        let budget = (self.balance.survivor_budget() * SEGLET_BYTES) as u64;
        let most = budget.min(segment_bytes * self.shared.options.pass_segments_max as u64);
        let mut chosen = Vec::new();
        let (mut live, mut dead) = (0, 0);
        for candidate in candidates {
            if dead >= enough {
                break;
            }
            let with_it = live + candidate.live_bytes();
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
    fn seem_to_gain(&self, chosen: &[Candidate], goal: Goal) -> bool {
        if let [one] = chosen
            && self.balance.cleans_alone(goal)
            && one.seen.is_barren
        {
            return false;
        }
        let live: u64 = chosen.iter().map(Candidate::live_bytes).sum();
        let least = self.balance.least_gain(goal);
        match goal {
            Goal::Memory => {
                let needed = (live as usize).div_ceil(SEGLET_BYTES);
                needed + least <= chosen.iter().map(|c| c.seen.seglets as usize).sum()
            }
            Goal::Disk => {
                let on_disk: u64 = chosen.iter().map(|c| u64::from(c.seen.disk_bytes)).sum();
                live + (least * SEGLET_BYTES) as u64 <= on_disk
            }
            Goal::Slots => chosen.len() >= least.max(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_in_vain_counts_only_where_all_segments_were_looked_at() {
        let found = Fingerprint {
            goal: Goal::Disk,
            reach: Reach::All,
            live_bytes: 1,
            disk_bytes: 2,
            free: FreeSeglets {
                default: 3,
                cleaner: 4,
                emergency: 5,
            },
        };
        let mut barren = Barren::default();
        barren.note(found, false);
        assert!(
            barren.by_part && !barren.has(found),
            "the next one sees more"
        );
        barren.note(found, true);
        assert!(!barren.by_part && barren.has(found));
        barren.note(found, false);
        barren.note_gain();
        assert!(!barren.by_part);
    }
}
