//! The time of one copy, by method and by size [Nibble fig. 25].
//!
//! Copies go from one memory to another one, each from a random byte to a random byte, in one
//! thread. Two draws of a place are in the time, the same for all methods. The memories are touched
//! before. With small ones (`--memory 16KiB`) everything is in the caches.
//!
//! There is no store and no contestant: this process copies.

use super::{Rounds, Watch, step, turns};
use crate::clock;
use crate::error::{ExperimentError, within};
use crate::experiment::{Axis, Experiment, Panel, Picture, Row, Shape, Spread};
use crate::suite::Step;
use core::hint::black_box;
use core::time::Duration;
use pluvio_load::Random;
use pluvio_store::CopyMethod;
use pluvio_units::Size;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct CopyOptions {
    /// Bytes of a copy; several give rows each.
    pub sizes: Vec<usize>,
    /// Bytes of the memory that is copied from, and of the one that is copied to.
    pub memory: u64,
    /// How long each method copies a size, and how often.
    pub rounds: Rounds,
}

const METHODS: [(&str, CopyMethod); 3] = [
    ("memcpy", CopyMethod::Library),
    ("rep movsb", CopyMethod::StringMove),
    ("around the caches", CopyMethod::Streaming),
];
/// The others are compared with this one: places in [`METHODS`].
const MEMCPY: usize = 0;
const STRING_MOVE: usize = 1;
const STREAMING: usize = 2;
/// Copies between two looks at the clock.
const LOOK: u64 = 64;
/// Most memory of one side.
const MEMORY_MAX: u64 = 64 << 30;

/// The two memories.
struct Memories {
    from: Vec<u8>,
    to: Vec<u8>,
    random: Random,
}

impl Memories {
    fn new(bytes: usize, seed: u64) -> Self {
        Self {
            // No zeros, which the system would not bring into memory before they are written.
            from: vec![1; bytes],
            to: vec![2; bytes],
            random: Random::new(seed, 0),
        }
    }

    /// Copies for a time; gives nanoseconds of a copy.
    fn copy(&mut self, method: CopyMethod, size: usize, seconds: f64) -> f64 {
        let limit = Duration::from_secs_f64(seconds);
        let places = (self.from.len() - size) as u64 + 1;
        let begin = clock::now();
        let mut copies = 0;
        loop {
            for _ in 0..LOOK {
                let from = self.random.below(places) as usize;
                let to = self.random.below(places) as usize;
                method.copy_to(&self.from[from..from + size], &mut self.to[to..]);
                black_box(&mut self.to);
            }
            copies += LOOK;
            let took = begin.elapsed();
            if took >= limit {
                return took.as_nanos() as f64 / copies as f64;
            }
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// The parameters make no sense.
pub fn copy(
    options: &CopyOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    options.rounds.check()?;
    if !(1..=MEMORY_MAX).contains(&options.memory) {
        return Err(ExperimentError::OutOfRange {
            option: "memory",
            value: Size(options.memory).to_string(),
            first: "1B".into(),
            last: Size(MEMORY_MAX).to_string(),
        });
    }
    let bytes = options.memory as usize;
    for &size in &options.sizes {
        within("size", size, 1..=bytes)?;
    }
    let runs = METHODS.len() * (options.rounds.rounds + 1);
    watch(Step::Total((options.sizes.len() * runs) as u64));
    let mut memories = Memories::new(bytes, options.rounds.seed);
    let mut all = Vec::new();
    for &size in &options.sizes {
        let mut each = vec![Vec::new(); METHODS.len()];
        // The first round warms up.
        for round in 0..=options.rounds.rounds {
            for at in turns(round, METHODS.len()) {
                let (name, method) = METHODS[at];
                let ns = step(watch, format!("{name}, {size} B"), || {
                    memories.copy(method, size, options.rounds.seconds)
                });
                if round > 0 {
                    each[at].push(ns);
                }
            }
        }
        all.push((size, each));
    }
    Ok(report(options, &all))
}

/// Nanoseconds of a copy by method and round, for each size.
type Times = (usize, Vec<Vec<f64>>);

fn report(options: &CopyOptions, all: &[Times]) -> (Experiment, Picture) {
    let parameters = Row::new()
        .with("memory", Size(options.memory).to_string())
        .and(options.rounds.cells());
    let mut experiment = Experiment::new("copy", parameters);
    let panel = |title: &str, up: &str, y: Axis| Panel {
        title: title.into(),
        x: "bytes of a copy".into(),
        y: up.into(),
        shape: Shape::Lines {
            x: Axis::Logarithmic,
            y,
        },
        series: Vec::new(),
    };
    let mut times = panel("one copy", "ns", Axis::Logarithmic);
    let mut over = panel("over rep movsb", "time / time of rep movsb", Axis::Linear);
    for (size, each) in all {
        let x = *size as f64;
        for ((name, _), rounds) in METHODS.iter().zip(each) {
            let ns = Spread::of(rounds).unwrap_or_default();
            experiment.rows.push(
                Row::new()
                    .with("method", *name)
                    .with("size", *size)
                    .and(ns.cells("ns"))
                    .with("gb_per_s", x / ns.median),
            );
            times.point(name, x, ns.median);
        }
        for (ours, theirs) in [(MEMCPY, STRING_MOVE), (STREAMING, MEMCPY)] {
            let name = format!(
                "{size} B, time: {} / {}",
                METHODS[ours].0, METHODS[theirs].0
            );
            experiment.ratio_by_round(name, &each[ours], &each[theirs]);
        }
        let median = |at: usize| Spread::of(&each[at]).unwrap_or_default().median;
        for at in [MEMCPY, STREAMING] {
            over.point(METHODS[at].0, x, median(at) / median(STRING_MOVE));
        }
    }
    let picture = Picture {
        title: "Copies".into(),
        panels: vec![times, over],
    };
    (experiment, picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_a_row_for_each_method_and_methods_are_compared() {
        let options = CopyOptions {
            sizes: vec![64, 4096],
            memory: 4096,
            rounds: Rounds {
                seconds: 0.01,
                rounds: 2,
                seed: 1,
            },
        };
        let (experiment, picture) = copy(&options, &|_| ()).unwrap();
        assert_eq!(experiment.rows.len(), 6);
        for row in &experiment.rows {
            assert!(row.number("ns") > Some(0.0), "{row:?}");
        }
        assert_eq!(picture.panels.len(), 2);
        let all = [(64, vec![vec![8.0, 9.0], vec![10.0, 10.0], vec![16.0, 18.0]])];
        let (told, _) = report(&options, &all);
        let ratio = told.ratios["64 B, time: memcpy / rep movsb"];
        assert!((ratio - 0.85).abs() < 1e-9, "{ratio}");
        assert_eq!(told.ratios["64 B, time: around the caches / memcpy"], 2.0);
        for (sizes, memory, wrong) in [
            (vec![0], 4096, "--size 0: 1 to 4096"),
            (vec![4097], 4096, "--size 4097: 1 to 4096"),
            (vec![1], 0, "--memory"),
        ] {
            let options = CopyOptions {
                sizes,
                memory,
                ..options.clone()
            };
            let error = copy(&options, &|_| ()).unwrap_err().to_string();
            assert!(error.starts_with(wrong), "{error}");
        }
    }
}
