//! Giving memory back to the system: when the store is written little, or not at all, and its log
//! takes much more than what lives.
//!
//! Nothing here happens on the way of a write, or while memory is short. A store that is busy being
//! written keeps its memory. It would soon have to fetch pages again that it gave back, a page
//! fault for every 4 KiB.
//!
//! So giving back has a hysteresis. A store is busy until a whole window has shown otherwise, and
//! busy again as soon as it takes more than a light load does. A store that is written in bursts
//! fetches again what it gave back between two of them. Each time doubles the pause that it waits
//! for. After the longest such pause, giving back was right in any case.

use super::choose::WASTE_PERCENT_MIN;
use super::{CleanerOptions, Shared};
use crate::geometry::HEAD_DEAD_SEGLETS;
use crate::segments::Storage;
use core::sync::atomic::Ordering;
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SEGMENT_BYTES};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most seglets given back by one step: 4 MiB take some 100 µs.
const SEGLETS_PER_STEP: usize = 64;
/// Most seglets of the reserve given back by one step: other cleaners find that many fewer for a
/// moment.
const RESERVE_SEGLETS_PER_STEP: usize = 8;
/// How long the store is watched before its load is judged, in seconds.
const WINDOW_S: u32 = 2;
/// Steps of a cleaner in a process that runs are some milliseconds apart.
const STEPS_APART_MAX_S: u32 = 1;
/// Bytes that a log may take in a window when the load is light: 4 MiB a second. To gain so much
/// where five sixths live the cleaner copies 20 MiB, which takes it some hundredth of the time.
const LIGHT_BYTES: u64 = SEGMENT_BYTES as u64;
/// Windows in a row without load after which it was right to give memory back, whatever comes: a
/// minute. It is also the most that a store waits for.
const CALM_WINDOWS: u32 = 30;
/// After this many looks without a find, some milliseconds apart, waste is looked for once in a
/// window. Until then, segments that were just closed may wait for guards or replicas.
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

/// How long a store is without load before memory goes back, in windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Patience {
    /// Windows in a row without load.
    calm: u32,
    /// The number that is waited for.
    needed: u32,
    /// Memory went back since the store was busy last.
    gave: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            calm: 0,
            needed: 1,
            gave: false,
        }
    }
}

impl Patience {
    /// A window without load has ended.
    fn note_calm(&mut self) {
        self.calm = self.calm.saturating_add(1);
    }

    /// The store is busy: what went back a short time ago is fetched again.
    fn note_busy(&mut self) {
        if self.calm >= CALM_WINDOWS {
            self.needed = 1;
        } else if self.gave {
            self.needed = (2 * self.needed).min(CALM_WINDOWS);
        }
        (self.calm, self.gave) = (0, false);
    }

    fn is_over(self) -> bool {
        self.calm >= self.needed
    }
}

/// The memory of a cleaner about how busy the store is.
#[derive(Default)]
pub(super) struct PagePolicy {
    /// When the cleaner did its last step, if it did one.
    stepped_s: Option<u32>,
    /// There was a pause between two steps since the load was judged: the process, or its machine,
    /// stood still.
    stood_still: bool,
    /// When the window began; `None` before the first look.
    since_s: Option<u32>,
    heads_before: u64,
    /// Where the logs ended then.
    ends_before: Vec<(LogId, LogPosition)>,
    load: Load,
    patience: Patience,
    /// The log takes too much, and is cleaned until it does not.
    shrinking: bool,
    /// It was cleaned under a light load. Without load it is cleaned to the end, which is lower.
    shrunk_in_light: bool,
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

/// Memory that went back to the system and is not in use again.
#[derive(Default)]
struct GivenBack {
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

    /// `seglets` went back, after which `blank` have no pages.
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

impl PagePolicy {
    /// Looks at the store in a step in which memory was not short.
    pub(super) fn look_at_waste(&mut self, shared: &Shared) {
        self.judge_load(shared);
        if !self.patience.is_over() {
            self.shrinking = false;
            return;
        }
        let storage = shared.storage();
        let of_head = match self.load {
            Load::Busy => {
                self.shrinking = false;
                return;
            }
            Load::Light => u64::from(storage.geometry.segment_bytes()),
            // One that has more dead data is closed.
            Load::Still => ((HEAD_DEAD_SEGLETS + 1) * SEGLET_BYTES) as u64,
        };
        shared.lists.free();
        let heads = shared.space.logs().count() as u64 * of_head;
        let Some(limits) = Limits::of(&shared.options, storage.live_bytes(), heads) else {
            return;
        };
        let free = storage.seglets.free().total() as usize;
        let taken = ((storage.geometry.seglets - free) * SEGLET_BYTES) as u64;
        let is_still = self.load == Load::Still;
        let goes_on = self.shrinking || is_still && core::mem::take(&mut self.shrunk_in_light);
        self.shrinking = taken > if goes_on { limits.end } else { limits.begin };
        self.shrunk_in_light |= self.shrinking && !is_still;
        let pages = u64::from(storage.seglets.free_with_pages()) * SEGLET_BYTES as u64;
        let spare = pages.saturating_sub(limits.keep) as usize / SEGLET_BYTES;
        let mut given = storage.give_pages_back(spare.min(SEGLETS_PER_STEP));
        if is_still && !self.is_shrinking(storage.clock.now_s()) {
            given += storage.give_reserve_pages_back(RESERVE_SEGLETS_PER_STEP);
        }
        if given > 0 {
            self.patience.gave = true;
            shared.add(|c| &c.bytes_given_back, (given * SEGLET_BYTES) as u64);
            shared.given_back.note(given, storage);
        }
    }

    /// Judges the load at the end of a window, or as soon as it is no light one. After the process
    /// stood still a new window begins: in the old one little was written for want of time.
    fn judge_load(&mut self, shared: &Shared) {
        let storage = shared.storage();
        let now_s = storage.clock.now_s();
        let heads = shared.space.heads.counters.filled.load(Ordering::Relaxed);
        let taken = (heads - self.heads_before) * u64::from(storage.geometry.segment_bytes());
        let is_busy = taken > u64::from(storage.options.logs) * LIGHT_BYTES;
        let stood_still = core::mem::take(&mut self.stood_still);
        let is_over = |since_s| now_s.saturating_sub(since_s) >= WINDOW_S;
        let begins = stood_still || self.since_s.is_none();
        if !begins && !is_busy && !self.since_s.is_some_and(is_over) {
            return;
        }
        let ends = shared.end_positions();
        self.load = if begins || is_busy {
            Load::Busy
        } else if ends == self.ends_before {
            Load::Still
        } else {
            Load::Light
        };
        match self.load {
            Load::Busy if begins => self.patience.calm = 0,
            Load::Busy => self.patience.note_busy(),
            Load::Light | Load::Still => self.patience.note_calm(),
        }
        (self.heads_before, self.ends_before, self.since_s) = (heads, ends, Some(now_s));
    }

    /// No closed segment has enough dead data. That in heads cannot be cleaned: of a store that is
    /// not written they are closed. If nothing is found there either, the cleaner rests for a
    /// window.
    pub(super) fn look_for_waste_in_heads(&mut self, shared: &Shared) {
        if self.load == Load::Still && shared.close_emptiest_head(WASTE_PERCENT_MIN) {
            pluvio_units::mark("log-head-closed-for-its-waste");
            self.found_waste();
            return;
        }
        self.in_vain += 1;
        if self.in_vain >= LOOKS_IN_VAIN {
            self.in_vain = 0;
            self.rests_until_s = shared.storage().clock.now_s().saturating_add(WINDOW_S);
        }
    }
}

/// Memory that went back to the system, counted over all passes.
#[derive(Default)]
pub(super) struct PagesGivenBack(Mutex<GivenBack>);

impl PagesGivenBack {
    fn note(&self, seglets: usize, storage: &Storage) {
        let blank = u64::from(storage.seglets.blank());
        let mut back = self.locked();
        if back.most == 0 {
            storage.memory.prefer_small_pages();
        }
        back.add(seglets as u64, blank);
    }

    /// Asks for huge pages again when half of what was given back is in use.
    pub(super) fn look_at_growth(&self, storage: &Storage) {
        let mut back = self.locked();
        if back.most == 0 {
            return;
        }
        back.count_taken(u64::from(storage.seglets.blank()));
        if back.is_half_in_use() {
            *back = GivenBack::default();
            if storage.options.huge_pages {
                let _works_without = storage.memory.prefer_huge_pages();
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, GivenBack> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM_WINDOWS, GivenBack, Patience};

    /// Gives back if it may, after some windows without load; says whether it did. Then the store
    /// is busy.
    fn pause(patience: &mut Patience, windows: u32) -> bool {
        (0..windows).for_each(|_| patience.note_calm());
        patience.gave |= patience.is_over();
        let gave = patience.gave;
        patience.note_busy();
        gave
    }

    #[test]
    fn a_store_that_is_written_in_bursts_keeps_its_memory_after_some_of_them() {
        let mut patience = Patience::default();
        assert!(!patience.is_over(), "not before a window was seen");
        let gave = (0..100).filter(|_| pause(&mut patience, 10)).count();
        assert_eq!(gave, 4, "after pauses of 1, 2, 4, and 8 windows");
        assert!(pause(&mut patience, CALM_WINDOWS), "a long pause");
        assert!(pause(&mut patience, 1), "and all is forgotten");
        assert!(!pause(&mut patience, 1));
    }

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
