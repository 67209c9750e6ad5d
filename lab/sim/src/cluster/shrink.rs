//! Makes a failing run smaller: fewer kinds of faults, fewer operations, fewer clients, fewer
//! events.
//!
//! Each try leaves something out ([`Keep`]) and runs. What still fails in the same way stays left
//! out. A run is chaotic, so a smaller one often fails no more although what was left out had
//! nothing to do with it: the order of tries is that in which most is gained, and it goes round
//! until a whole round gains nothing.

use crate::cluster::faults::{Fault, Faults};
use crate::cluster::narrow::{Keep, Numbers};
use crate::cluster::report::RunReport;
use crate::cluster::run::RunOptions;

/// A failing run that was made smaller.
#[derive(Clone, PartialEq, Debug)]
pub struct Shrunk {
    /// The smaller run.
    pub options: RunOptions,
    /// What it shows; its `replay` is the command that shows it again.
    pub report: RunReport,
    /// Runs that were tried.
    pub tries: u64,
}

/// Makes a run smaller as long as `fails` holds for what it shows, in at most `tries_max` runs.
/// `run` runs it, `failed` is what the run with `options` showed.
pub fn shrink(
    options: &RunOptions,
    failed: RunReport,
    tries_max: u64,
    run: &mut dyn FnMut(&RunOptions) -> RunReport,
    fails: &dyn Fn(&RunReport) -> bool,
) -> Shrunk {
    let mut search = Search {
        shrunk: Shrunk {
            options: options.clone(),
            report: failed,
            tries: 0,
        },
        tries_max,
        run,
        fails,
    };
    loop {
        let before = search.shrunk.options.keep.clone();
        search.fewer_kinds();
        search.fewer_steps();
        search.fewer_clients();
        search.fewer_events();
        if search.shrunk.options.keep == before || search.is_over() {
            return search.shrunk;
        }
    }
}

struct Search<'a> {
    shrunk: Shrunk,
    tries_max: u64,
    run: &'a mut dyn FnMut(&RunOptions) -> RunReport,
    fails: &'a dyn Fn(&RunReport) -> bool,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.shrunk.tries >= self.tries_max
    }

    /// Runs with this kept; keeps no more from now on if it still fails.
    fn attempt(&mut self, keep: Keep) -> bool {
        if self.is_over() {
            return false;
        }
        self.shrunk.tries += 1;
        let mut options = self.shrunk.options.clone();
        options.keep = keep;
        let report = (self.run)(&options);
        let fails = (self.fails)(&report);
        if fails {
            self.shrunk.report = report;
            self.shrunk.options = options;
        }
        fails
    }

    fn with(&mut self, change: impl FnOnce(&mut Keep)) -> bool {
        let mut keep = self.shrunk.options.keep.clone();
        change(&mut keep);
        self.attempt(keep)
    }

    /// Kinds of faults that happen.
    fn kinds(&self) -> Vec<Fault> {
        let kept = self.shrunk.options.keep.faults.as_ref();
        let drawn = self.shrunk.report.plan.faults.iter();
        drawn
            .filter(|f| kept.is_none_or(|kept| kept.has(*f)))
            .collect()
    }

    fn fewer_kinds(&mut self) {
        for kind in self.kinds() {
            let fewer: Faults = self.kinds().into_iter().filter(|f| *f != kind).collect();
            self.with(|keep| keep.faults = Some(fewer));
        }
    }

    fn fewer_steps(&mut self) {
        // Operations behind the failure are given up in a few steps; those before it cost more.
        let mut cut = self.shrunk.report.steps_done / 2;
        while cut > 0 {
            let fewer = self.shrunk.report.steps_done.saturating_sub(cut);
            if fewer == 0 || !self.with(|keep| keep.steps = Some(fewer)) {
                cut /= 2;
            }
            cut = cut.min(self.shrunk.report.steps_done / 2);
        }
    }

    fn fewer_clients(&mut self) {
        let mut cut = self.shrunk.report.plan.clients / 2;
        while cut > 0 {
            let fewer = self.shrunk.report.plan.clients - cut;
            if !self.with(|keep| keep.clients = Some(fewer)) {
                cut /= 2;
            }
            cut = cut.min(self.shrunk.report.plan.clients / 2);
        }
    }

    /// The events that happen: those that are kept and come before the end.
    fn events(&self) -> Vec<u64> {
        let kept = self.shrunk.options.keep.events.as_ref();
        let all = 0..self.shrunk.report.fault_events;
        all.filter(|n| kept.is_none_or(|kept| kept.has(*n)))
            .collect()
    }

    /// Leaves out pieces of the list of events, halves first, single ones last.
    fn fewer_events(&mut self) {
        let mut piece = self.events().len().div_ceil(2);
        while piece > 0 {
            let mut at = 0;
            while at < self.events().len() {
                let events = self.events();
                let end = events.len().min(at + piece);
                let fewer: Numbers = { events[..at].iter() }
                    .chain(&events[end..])
                    .copied()
                    .collect();
                if !self.with(|keep| keep.events = Some(fewer)) {
                    at += piece;
                }
                if self.is_over() {
                    return;
                }
            }
            piece /= 2;
        }
    }
}
