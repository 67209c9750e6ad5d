//! The experiments of the storage engine: each starts its contestants, interleaves their rounds, and gives one
//! [`Experiment`](crate::experiment::Experiment) and a picture.
//!
//! - SUITE-1: what is compared ran in the same run, round by round in turn; a row gives the median of
//!   the rounds with the least and the most.

mod breakdown;
mod cleaner;
mod fragmentation;
mod latency;
mod store;
mod stream;

pub use breakdown::{BreakdownOptions, breakdown};
pub use cleaner::{CleanerOptions, cleaner};
pub use fragmentation::{FragmentationOptions, fragmentation};
pub use latency::{LatencyOptions, latency};
pub use store::{StoreOptions, store};
pub use stream::{StreamOptions, stream};

use crate::contestant::{Contender, Kind, Process, Program, Setup};
use crate::error::ExperimentError;
use crate::experiment::{Axis, Panel, Shape};
use crate::run::LoadPlan;

/// How far an experiment is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// So many steps there are.
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

/// Bytes of a key that all contestants use.
const KEY: u64 = 8;
/// Memory of the store that is asked what an object takes.
const PROBE_MEMORY: u64 = 128 << 20;
const PROBE_OBJECTS: u64 = 20_000;

/// What our store needs beside the values: the bytes of log (key included) and of index for each object.
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

    /// The memory in which so many objects with so many bytes of values are this part of the log. At least
    /// what a store needs to open.
    fn memory(self, objects: u64, bytes: u64, utilization: f64) -> u64 {
        /// What heads and reserves of a small store take.
        const LEAST: f64 = (96 << 20) as f64;
        let live = bytes as f64 + objects as f64 * self.log;
        let index = objects as f64 * self.index;
        (live / utilization + index).max(LEAST) as u64
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

/// Rounds and their length are sensible.
fn check_rounds(rounds: usize, seconds: f64) -> Result<(), ExperimentError> {
    // NaN is refused too.
    if rounds == 0 || rounds > 1000 || !(0.01..=86_400.0).contains(&seconds) {
        let problem = "rounds must be 1 to 1000, seconds 0.01 to 86400";
        return Err(ExperimentError::Parameters(problem.into()));
    }
    Ok(())
}
