//! The experiments of the storage engine: each starts its contestants, interleaves their rounds,
//! and gives one [`Experiment`](crate::experiment::Experiment) and a picture.
//!
//! - SUITE-1: compared contestants ran in the same run, round by round in turn, and each round
//!   begins with another one. A row gives the median of the rounds, and for times also the least
//!   and the most.

mod breakdown;
mod cleaner;
mod copy;
mod demand;
mod fragmentation;
mod latency;
mod placement;
mod store;
mod stream;

pub use breakdown::{BreakdownOptions, Part, breakdown};
pub use cleaner::{CleanerOptions, cleaner};
pub use copy::{CopyOptions, copy};
pub use fragmentation::{FragmentationOptions, fragmentation};
pub use latency::{LatencyOptions, Update, latency};
pub use placement::{PlacementOptions, placement};
pub use store::{StoreOptions, store};
pub use stream::{StreamOptions, Volume, stream};

use crate::contestant::{Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Axis, Panel, Row, Shape};
use crate::run::LoadPlan;
use pluvio_units::VALUE_MAX;

/// How far an experiment is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// This many steps in all.
    Total(u64),
    /// A step with this name begins.
    Begins(String),
    /// It ended.
    Ended,
}

/// Is told how far an experiment is.
pub type Watch<'a> = &'a dyn Fn(Step);

/// Tells of a step and does it.
fn step<T>(watch: Watch<'_>, name: impl Into<String>, work: impl FnOnce() -> T) -> T {
    watch(Step::Begins(name.into()));
    let done = work();
    watch(Step::Ended);
    done
}

/// The order in which `count` contestants take a round. Each round another one is first, since the
/// first may find the machine cooler.
fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| (round + place) % count)
}

/// Bytes of a key that all contestants use.
const KEY: u64 = 8;
/// Memory of the store that is asked what an object takes.
const PROBE_MEMORY: u64 = 128 << 20;
const PROBE_OBJECTS: u64 = 20_000;

/// What our store needs beside the values: the bytes of log (key included) and of index for each
/// object.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Overhead {
    log: f64,
    index: f64,
}

impl Overhead {
    /// Asks a small store.
    fn measure(program: &Program) -> Result<Self, ExperimentError> {
        const VALUE: usize = 100;
        let ours = Contender {
            kind: Kind::Pluvio,
            allocator: crate::contestant::Allocator::Glibc,
        };
        let setup = Setup::new(Kind::Pluvio, PROBE_OBJECTS, PROBE_MEMORY);
        let mut process = Process::start(program, ours, &setup)?;
        let loaded = process.load(&LoadPlan {
            objects: PROBE_OBJECTS,
            until: None,
            value_size: VALUE,
            seed: 1,
        })?;
        let each = |bytes: u64| bytes as f64 / PROBE_OBJECTS as f64;
        Ok(Self {
            log: each(loaded.holdings.live_log) - VALUE as f64,
            index: each(loaded.holdings.index),
        })
    }

    /// The memory in which this many objects and bytes of values are this part of the log, without
    /// the index. It is at least as much as a store needs to open.
    fn memory(self, kind: Kind, objects: u64, bytes: u64, utilization: f64) -> u64 {
        let head = match kind {
            Kind::PluvioInPlace => VALUE_HEAD as f64,
            Kind::Pluvio
            | Kind::Dashmap
            | Kind::DashmapInPlace
            | Kind::Papaya
            | Kind::Scc
            | Kind::SlabLru
            | Kind::Malloc
            | Kind::Redis
            | Kind::Memcached => 0.0,
        };
        let live = bytes as f64 + objects as f64 * (self.log + head);
        ((live / utilization) as u64).max(demand::MEMORY_LEAST)
    }
}

fn lines(title: String, x: &str, y: &str) -> Panel {
    Panel {
        title,
        x: x.into(),
        y: y.into(),
        shape: Shape::Lines {
            x: Axis::Linear,
            y: Axis::Linear,
        },
        series: Vec::new(),
    }
}

fn bars(title: String, x: &str, y: &str, groups: Vec<String>) -> Panel {
    Panel {
        title,
        x: x.into(),
        y: y.into(),
        shape: Shape::Bars { groups },
        series: Vec::new(),
    }
}

/// How long an experiment measures, how often, and from which seed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rounds {
    /// How long each round is.
    pub seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// Seed of values and draws.
    pub seed: u64,
}

impl Rounds {
    /// They are sensible.
    fn check(&self) -> Result<(), ExperimentError> {
        within("rounds", self.rounds, 1..=1000)?;
        within("seconds", self.seconds, 0.01..=86_400.0)
    }

    /// As cells of a report.
    fn cells(&self) -> Row {
        Row::new()
            .with("seconds", self.seconds)
            .with("rounds", self.rounds)
            .with("seed", self.seed)
    }
}

/// Bytes a value may have in every contestant.
fn check_value_size(bytes: usize) -> Result<(), ExperimentError> {
    within("value-size", bytes, 0..=VALUE_MAX_IN_PLACE)
}

/// Bytes that our store keeps in front of a value that may be overwritten.
const VALUE_HEAD: usize = 12;
/// Most bytes of a value in a store that overwrites in place.
pub const VALUE_MAX_IN_PLACE: usize = VALUE_MAX - VALUE_HEAD;
/// Largest share of the log that live objects may take in an experiment, in percent. Above the
/// limit that the reserves of a memory leave, a store is as full as it gets.
const UTILIZATION_MAX: u8 = 98;

/// A utilization that a store can have.
fn check_utilization(percent: u8) -> Result<(), ExperimentError> {
    within("utilization", percent, 1..=UTILIZATION_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_another_one() {
        let order = |round| turns(round, 3).collect::<Vec<_>>();
        assert_eq!(order(0), [0, 1, 2]);
        assert_eq!(order(4), [1, 2, 0]);
        assert_eq!(turns(2, 0).count(), 0);
    }

    #[test]
    fn values_that_may_be_overwritten_need_more_memory() {
        let overhead = Overhead {
            log: 21.0,
            index: 11.0,
        };
        let memory = |kind| overhead.memory(kind, 1_000_000, 100_000_000, 0.5);
        assert_eq!(memory(Kind::Pluvio), 242_000_000);
        assert_eq!(memory(Kind::PluvioInPlace), 266_000_000);
    }
}
