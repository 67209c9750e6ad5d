//! Giving memory back to the system: when the store is written little, or not at all, and its log
//! takes much more than what lives.
//!
//! Nothing here happens on the way of a write, or while memory is short. A store that is busy being
//! written keeps its memory: what it gave back it would soon have to fetch again, a page fault for
//! every 4 KiB.

use super::choose::WASTE_PERCENT_MIN;
use super::{Cleaner, CleanerOptions};
use crate::options::HEAD_DEAD_SEGLETS;
use core::sync::atomic::Ordering;
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SEGMENT_BYTES};
use std::sync::PoisonError;

/// Most seglets given back by one step: 4 MiB take some 100 µs.
const SEGLETS_PER_STEP: usize = 64;
/// Most seglets of the reserve given back by one step: so many fewer others of several cleaners
/// find for a moment.
const RESERVE_SEGLETS_PER_STEP: usize = 8;
/// How long the store is watched before its load is judged, in seconds.
const WINDOW_S: u32 = 2;
/// Steps of a cleaner in a process that runs are some milliseconds apart.
const STEPS_APART_MAX_S: u32 = 1;
/// Bytes that a log may take in a window when the load is light: 4 MiB a second. To gain so much
/// where five sixths live the cleaner copies 20 MiB, which takes it some hundredth of the time.
const LIGHT_BYTES: u64 = SEGMENT_BYTES as u64;
/// After so many looks in vain, which are some milliseconds apart, waste is looked for once in a
/// window: until then what was just closed may wait for guards or replicas.
const LOOKS_IN_VAIN: u32 = 8;

/// How much the store is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Load {
    /// Memory that lies idle is going to be used.
    #[default]
    Busy,
    /// The logs took no more than [`LIGHT_BYTES`] each, on average, in the last window.
    Light,
    /// Nothing was appended in the last window.
    Still,
}

/// What a cleaner remembers about how busy the store is.
#[derive(Default)]
pub(super) struct PagePolicy {
    /// When the cleaner did its last step, if it did one.
    stepped_s: Option<u32>,
    /// There was a pause between two steps since the load was judged: the process, or its machine,
    /// stood still.
    stood_still: bool,
    /// When the window began.
    since_s: u32,
    heads_before: u64,
    /// Where the logs ended then.
    ends_before: Vec<(LogId, LogPosition)>,
    load: Load,
    /// The log takes too much, and is cleaned until it does not.
    shrinking: bool,
    in_vain: u32,
    /// Waste is not looked for before this time.
    rests_until_s: u32,
}

impl PagePolicy {
    /// The cleaner does a step, whatever it is about.
    pub(super) fn note_step(&mut self, now_s: u32) {
        let before_s = self.stepped_s.replace(now_s).unwrap_or(now_s);
        self.stood_still |= now_s.saturating_sub(before_s) > STEPS_APART_MAX_S;
    }

    /// Whether the log is to be cleaned although there is memory.
    pub(super) fn is_shrinking(&self, now_s: u32) -> bool {
        self.shrinking && now_s >= self.rests_until_s
    }

    pub(super) fn found_waste(&mut self) {
        self.in_vain = 0;
    }
}

/// What went back of the memory and is not in use again.
#[derive(Default)]
pub(super) struct GivenBack {
    /// Seglets that went back since huge pages were asked for last, without those that were taken
    /// again.
    seglets: u64,
    /// The most that this was.
    most: u64,
    /// Seglets without pages when it was counted.
    blank: u64,
}

impl GivenBack {
    /// Takes into account what was taken since the last count; `blank` seglets have no pages.
    fn count_taken(&mut self, blank: u64) {
        let taken = self.blank.saturating_sub(blank);
        self.seglets = self.seglets.saturating_sub(taken);
        self.blank = blank;
    }

    /// So many seglets went back, after which `blank` have no pages.
    fn add(&mut self, seglets: u64, blank: u64) {
        self.count_taken(blank.saturating_sub(seglets));
        self.seglets += seglets;
        self.most = self.most.max(self.seglets);
        self.blank = blank;
    }

    fn is_half_in_use(&self) -> bool {
        self.seglets < self.most.div_ceil(2)
    }
}

/// Bytes of memory for which an action begins or ends.
struct Limits {
    /// Cleaning begins when the log takes more.
    begin: u64,
    /// It ends when it takes no more than this.
    end: u64,
    /// So much free memory is kept.
    keep: u64,
}

impl Limits {
    /// The log may take `waste_percent` more than what lives, and is cleaned to a quarter of that;
    /// an eighth of it is kept free. Beside that what heads have that cannot be cleaned.
    fn of(options: &CleanerOptions, live: u64, heads: u64) -> Option<Self> {
        let waste = live / 100 * u64::from(options.waste_percent?);
        Some(Self {
            begin: live + waste + heads,
            end: live + waste / 4 + heads,
            keep: waste / 8,
        })
    }
}

impl Cleaner {
    /// Looks at the store in a step in which memory was not short.
    pub(super) fn look_at_waste(&self, policy: &mut PagePolicy) {
        self.judge_load(policy);
        let space = &self.space;
        let of_head = match policy.load {
            Load::Busy => {
                policy.shrinking = false;
                return;
            }
            Load::Light => u64::from(space.geometry.segment_bytes()),
            // One that has more dead data is closed.
            Load::Still => ((HEAD_DEAD_SEGLETS + 1) * SEGLET_BYTES) as u64,
        };
        self.lists.free();
        let heads = u64::from(space.options.logs) * of_head;
        let Some(limits) = Limits::of(&self.options, space.live_bytes(), heads) else {
            return;
        };
        let free = space.pool.free().total() as usize;
        let taken = ((space.geometry.seglets - free) * SEGLET_BYTES) as u64;
        policy.shrinking = if policy.shrinking {
            taken > limits.end
        } else {
            taken > limits.begin
        };
        let pages = u64::from(space.pool.free_with_pages()) * SEGLET_BYTES as u64;
        let spare = pages.saturating_sub(limits.keep) as usize / SEGLET_BYTES;
        let mut given = space.give_pages_back(spare.min(SEGLETS_PER_STEP));
        if policy.load == Load::Still && !policy.is_shrinking(space.newest_s()) {
            given += space.give_reserve_pages_back(RESERVE_SEGLETS_PER_STEP);
        }
        if given > 0 {
            self.note_given_back(given);
        }
    }

    /// Judges the load once in a window. After the process stood still a new one begins: in the old
    /// one little was written for want of time.
    fn judge_load(&self, policy: &mut PagePolicy) {
        let space = &self.space;
        let now_s = space.newest_s();
        let stood_still = core::mem::take(&mut policy.stood_still);
        if !stood_still && now_s.saturating_sub(policy.since_s) < WINDOW_S {
            return;
        }
        let heads = space.heads_filled.load(Ordering::Relaxed);
        let ends = self.end_positions();
        let taken = (heads - policy.heads_before) * u64::from(space.geometry.segment_bytes());
        policy.load = if stood_still {
            Load::Busy
        } else if ends == policy.ends_before {
            Load::Still
        } else if taken <= u64::from(space.options.logs) * LIGHT_BYTES {
            Load::Light
        } else {
            Load::Busy
        };
        (policy.heads_before, policy.ends_before, policy.since_s) = (heads, ends, now_s);
    }

    /// No closed segment has enough dead data. That in heads cannot be cleaned: of a store that is
    /// not written they are closed. If nothing is found there either, the cleaner rests for a
    /// window.
    pub(super) fn look_for_waste_in_heads(&self, policy: &mut PagePolicy) {
        if policy.load == Load::Still && self.close_emptiest_head(WASTE_PERCENT_MIN) {
            pluvio_units::mark("log-head-closed-for-its-waste");
            policy.found_waste();
            return;
        }
        policy.in_vain += 1;
        if policy.in_vain >= LOOKS_IN_VAIN {
            policy.in_vain = 0;
            policy.rests_until_s = self.space.newest_s().saturating_add(WINDOW_S);
        }
    }

    fn note_given_back(&self, seglets: usize) {
        self.add(|c| &c.bytes_given_back, (seglets * SEGLET_BYTES) as u64);
        let blank = u64::from(self.space.pool.blank());
        let mut back = self
            .given_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if back.most == 0 {
            self.space.memory.prefer_small_pages();
        }
        back.add(seglets as u64, blank);
    }

    /// Asks for huge pages again when half of what was given back is in use.
    pub(super) fn look_at_growth(&self) {
        let mut back = self
            .given_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if back.most == 0 {
            return;
        }
        back.count_taken(u64::from(self.space.pool.blank()));
        if back.is_half_in_use() {
            *back = GivenBack::default();
            if self.space.options.huge_pages {
                let _works_without = self.space.memory.prefer_huge_pages();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GivenBack;

    #[test]
    fn what_went_back_and_was_taken_again_does_not_count() {
        let mut back = GivenBack::default();
        let mut blank = 100;
        for _ in 0..50 {
            blank += 60;
            back.add(60, blank);
            blank -= 60;
            back.count_taken(blank);
        }
        assert_eq!((back.seglets, back.most), (0, 60));
    }

    #[test]
    fn half_of_what_went_back_is_in_use() {
        let mut back = GivenBack::default();
        back.add(60, 100);
        back.add(40, 130);
        assert_eq!(back.seglets, 90, "ten were taken in between");
        back.count_taken(85);
        assert!(!back.is_half_in_use());
        back.count_taken(84);
        assert!(back.is_half_in_use());
    }
}
