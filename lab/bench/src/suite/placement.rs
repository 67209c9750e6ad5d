//! Lookups in a hash table, by the memory nodes in which it lies and from which it is read [Nibble
//! fig. 2]. It needs a machine with two memory nodes at least.
//!
//! ```text
//! one node       all of the table in the first node, threads on all nodes
//! own part       a part in each node, each thread looks in that of its node
//! any part       the same parts, each lookup in any of them
//! ```
//!
//! Linux gives memory in the node of the thread that touches it first. So each part is filled by a
//! thread that stays in the part's node.
//!
//! There is no store and no contestant: a store of ours has a memory part for each node by itself.

use super::{Rounds, Watch, lines, step, turns};
use crate::clock;
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{THREADS_MAX, side_by_side};
use crate::suite::Step;
use core::time::Duration;
use pluvio_load::Random;
use pluvio_store::{Host, Nodes, ThisMachine};
use pluvio_units::Size;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct PlacementOptions {
    /// Threads, dealt to the nodes in turn; several give rows each.
    pub threads: Vec<usize>,
    /// Bytes of the whole table.
    pub memory: u64,
    /// How long, and how often.
    pub rounds: Rounds,
}

/// Where the table is, and where a thread looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Placing {
    OneNode,
    OwnPart,
    AnyPart,
}

impl Placing {
    const ALL: [Self; 3] = [Self::OneNode, Self::OwnPart, Self::AnyPart];

    fn name(self) -> &'static str {
        match self {
            Self::OneNode => "one node",
            Self::OwnPart => "own part",
            Self::AnyPart => "any part",
        }
    }
}

/// Keys of a bucket.
const SLOTS: usize = 8;
/// Buckets have half as many keys as slots, so that few lookups go on to the next bucket.
const KEYS_OF_BUCKET: u64 = 4;
/// Least and most memory of a table.
const MEMORY_LEAST: u64 = 1 << 20;
const MEMORY_MAX: u64 = 1 << 40;
/// Lookups between two looks at the clock.
const LOOK: u64 = 1024;

/// A bucket is a line of the caches. A slot holds a key plus one; zero is none.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

/// A hash table with the keys `0..keys`.
struct Table {
    buckets: Vec<Bucket>,
    keys: u64,
}

impl Table {
    /// Its memory is touched by the calling thread, so it lies in that thread's node.
    fn filled(bytes: u64) -> Self {
        let count = (bytes / size_of::<Bucket>() as u64).max(1);
        let mut table = Self {
            buckets: vec![Bucket([0; SLOTS]); count as usize],
            keys: count * KEYS_OF_BUCKET,
        };
        for key in 0..table.keys {
            let mut at = table.bucket(key);
            let slot = loop {
                let bucket = &mut table.buckets[at].0;
                match bucket.iter().position(|slot| *slot == 0) {
                    Some(slot) => break &mut bucket[slot],
                    None => at = (at + 1) % count as usize,
                }
            };
            *slot = key + 1;
        }
        table
    }

    #[inline]
    fn bucket(&self, key: u64) -> usize {
        let word = (key ^ (key >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(word) * self.buckets.len() as u128) >> 64) as usize
    }

    #[inline]
    fn has(&self, key: u64) -> bool {
        let mut at = self.bucket(key);
        loop {
            for slot in self.buckets[at].0 {
                if slot == key + 1 {
                    return true;
                }
                if slot == 0 {
                    return false;
                }
            }
            at = (at + 1) % self.buckets.len();
        }
    }
}

/// Keeps the calling thread on those of these processors that it may use; where there are none, or
/// the system refuses, it runs anywhere.
fn stay_on(processors: &[usize]) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut near = CpuSet::new();
    for &processor in processors {
        if processor < CpuSet::MAX_CPU && allowed.is_set(processor) {
            near.set(processor);
        }
    }
    if near.count() > 0 {
        let _elsewhere = sched_setaffinity(None, &near);
    }
}

/// Runs the experiment on the nodes of this machine.
///
/// # Errors
/// The machine has one node, or the parameters make no sense.
pub fn placement(
    options: &PlacementOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    options.rounds.check()?;
    for &threads in &options.threads {
        within("threads", threads, 1..=THREADS_MAX)?;
    }
    if !(MEMORY_LEAST..=MEMORY_MAX).contains(&options.memory) {
        return Err(ExperimentError::OutOfRange {
            option: "memory",
            value: Size(options.memory).to_string(),
            first: Size(MEMORY_LEAST).to_string(),
            last: Size(MEMORY_MAX).to_string(),
        });
    }
    let nodes = ThisMachine.nodes();
    let nodes = nodes.map_err(|error| ExperimentError::Run(error.to_string()))?;
    are_several(&nodes)?;
    Ok(on(&nodes, options, watch))
}

fn are_several(nodes: &Nodes) -> Result<(), ExperimentError> {
    match nodes.len() {
        0 | 1 => Err(ExperimentError::Run(
            "this machine has one memory node; the experiment needs two at least, because it \
             compares memory of the own node with that of another one"
                .into(),
        )),
        _ => Ok(()),
    }
}

/// Runs it on these nodes.
fn on(nodes: &Nodes, options: &PlacementOptions, watch: Watch<'_>) -> (Experiment, Picture) {
    let runs = options.threads.len() * Placing::ALL.len() * (options.rounds.rounds + 1);
    watch(Step::Total(2 + runs as u64));
    let fill = |places: Vec<usize>, bytes: u64| {
        side_by_side(places, |node, _| {
            stay_on(&nodes[node]);
            Table::filled(bytes)
        })
    };
    let whole = step(watch, "fills one node", || fill(vec![0], options.memory));
    let part = options.memory / nodes.len() as u64;
    let parts = step(watch, "fills all nodes", || {
        fill((0..nodes.len()).collect(), part)
    });
    let parameters = Row::new()
        .with("nodes", nodes.len())
        .with("memory", Size(options.memory).to_string())
        .and(options.rounds.cells());
    let mut experiment = Experiment::new("placement", parameters);
    let mut panel = lines("lookups".into(), "threads", "lookups/s");
    for &threads in &options.threads {
        let mut rates = vec![Vec::new(); Placing::ALL.len()];
        // The first round warms up.
        for round in 0..=options.rounds.rounds {
            for at in turns(round, Placing::ALL.len()) {
                let placing = Placing::ALL[at];
                let name = format!("{}, {threads} threads", placing.name());
                let rate = step(watch, name, || {
                    let tables = match placing {
                        Placing::OneNode => &whole,
                        Placing::OwnPart | Placing::AnyPart => &parts,
                    };
                    look_up(nodes, options, (placing, tables), threads, round)
                });
                if round > 0 {
                    rates[at].push(rate);
                }
            }
        }
        for (placing, rates) in Placing::ALL.into_iter().zip(&rates) {
            let rate = Spread::of(rates).unwrap_or_default();
            panel.point(placing.name(), threads as f64, rate.median);
            experiment.rows.push(
                Row::new()
                    .with("table", placing.name())
                    .with("threads", threads)
                    .and(rate.cells("lookups_per_s")),
            );
        }
        let of = |at: usize| rates[at].as_slice();
        for (at, placing) in [(1, Placing::OwnPart), (2, Placing::AnyPart)] {
            let name = format!("{threads} threads: {} / one node", placing.name());
            experiment.ratio_by_round(name, of(at), of(0));
        }
    }
    let picture = Picture {
        title: "A hash table by memory node".into(),
        panels: vec![panel],
    };
    (experiment, picture)
}

/// Lookups a second, all threads together.
fn look_up(
    nodes: &Nodes,
    options: &PlacementOptions,
    (placing, tables): (Placing, &[Table]),
    threads: usize,
    round: usize,
) -> f64 {
    let limit = Duration::from_secs_f64(options.rounds.seconds);
    let seed = options.rounds.seed + round as u64;
    let rates = side_by_side(0..threads, |thread, ready| {
        let node = thread % nodes.len();
        stay_on(&nodes[node]);
        let mut random = Random::new(seed, thread as u64);
        ready();
        let begin = clock::now();
        let mut lookups = 0;
        loop {
            for _ in 0..LOOK {
                let table = match placing {
                    Placing::OneNode => &tables[0],
                    Placing::OwnPart => &tables[node],
                    Placing::AnyPart => &tables[random.below(tables.len() as u64) as usize],
                };
                let key = random.below(table.keys);
                assert!(table.has(key), "every key was put in");
            }
            lookups += LOOK;
            let took = begin.elapsed();
            if took >= limit {
                return lookups as f64 / took.as_secs_f64();
            }
        }
    });
    rates.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> PlacementOptions {
        PlacementOptions {
            threads: vec![1, 3],
            memory: MEMORY_LEAST,
            rounds: Rounds {
                seconds: 0.01,
                rounds: 1,
                seed: 1,
            },
        }
    }

    #[test]
    fn a_table_has_its_keys_and_no_others() {
        let table = Table::filled(1 << 16);
        assert_eq!(table.keys, 4096);
        assert!((0..table.keys).all(|key| table.has(key)));
        assert!(!(table.keys..table.keys + 1000).any(|key| table.has(key)));
    }

    #[test]
    fn every_placing_is_measured_with_every_number_of_threads() {
        // Nodes that need not be there: a thread that has no processor of its node runs anywhere.
        let nodes = Nodes::new(vec![vec![0], vec![1]]).unwrap();
        let (experiment, picture) = on(&nodes, &options(), &|_| ());
        assert_eq!(experiment.rows.len(), 6);
        assert_eq!(
            (picture.panels.len(), picture.panels[0].series.len()),
            (1, 3)
        );
        assert!(
            experiment
                .ratios
                .contains_key("3 threads: any part / one node")
        );
    }

    #[test]
    fn one_node_is_told_to_be_too_few() {
        let of = |nodes: Vec<Vec<usize>>| are_several(&Nodes::new(nodes).unwrap());
        let error = of(vec![vec![0, 1]]).unwrap_err().to_string();
        assert!(error.contains("needs two at least"), "{error}");
        assert!(of(vec![vec![0], vec![1]]).is_ok());
    }
}
