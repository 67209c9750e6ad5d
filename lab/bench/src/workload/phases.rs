//! Phases of allocation with changing sizes: the workloads that fragment memory.
//!
//! W1-W8: [LSM-DRAM table 1]. Five times the live bytes are allocated from one distribution of
//! sizes, with random deletions that keep the live bytes at their limit. A part is deleted; then
//! the same follows with another distribution. P1-P6: figure 14b of the Nibble dissertation. The
//! limit is allocated in objects of one size, and nine of ten are removed at random. Then it is
//! filled again with objects of another size.

use super::stream::{Live, Operation, Stream};
use pluvio_load::Random;
use serde::{Deserialize, Serialize};

/// One phase.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Allocates until this many bytes were, and deletes at random to keep the live bytes at the
    /// limit.
    Allocate {
        /// Bytes of all allocations.
        bytes: u64,
        /// Most bytes live.
        live_max: u64,
        /// Least and largest size; between them all are alike.
        sizes: (u32, u32),
    },
    /// Allocates until this many bytes are live.
    Fill {
        /// Bytes live at the end.
        live_max: u64,
        /// Least and largest size.
        sizes: (u32, u32),
    },
    /// Deletes this part of all objects, at random.
    Delete {
        /// Of a hundred.
        percent: u32,
    },
}

/// A named sequence of phases.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// `W1` … `P6`.
    pub name: &'static str,
    /// Sizes before.
    pub before: (u32, u32),
    /// Percent deleted in between; `None` when there is only one phase.
    pub deleted: Option<u32>,
    /// Sizes after.
    pub after: (u32, u32),
    /// Whether memory is turned over several times (W) or only filled (P).
    pub turns: bool,
}

/// The mark behind deletions, also behind those of no object.
pub const DELETED: &str = "deleted";
/// How many times the live bytes each W phase allocates.
const TURNOVER: u64 = 5;

const fn w(
    name: &'static str,
    before: (u32, u32),
    deleted: Option<u32>,
    after: (u32, u32),
) -> Workload {
    Workload {
        name,
        before,
        deleted,
        after,
        turns: true,
    }
}

const fn p(name: &'static str, before: u32, after: u32) -> Workload {
    Workload {
        name,
        before: (before, before),
        deleted: Some(90),
        after: (after, after),
        turns: false,
    }
}

const KIB: u32 = 1024;

/// All workloads of both papers.
#[must_use]
pub fn workloads() -> [Workload; 14] {
    [
        w("W1", (100, 100), None, (100, 100)),
        w("W2", (100, 100), Some(0), (130, 130)),
        w("W3", (100, 100), Some(90), (130, 130)),
        w("W4", (100, 150), Some(0), (200, 250)),
        w("W5", (100, 150), Some(90), (200, 250)),
        w("W6", (100, 200), Some(50), (1000, 2000)),
        w("W7", (1000, 2000), Some(90), (1500, 2500)),
        w("W8", (50, 150), Some(90), (5000, 15_000)),
        p("P1", 60, 70),
        p("P2", 1000, 1024),
        p("P3", 1000, 1030),
        p("P4", KIB, 10 * KIB),
        p("P5", 10 * KIB, 100 * KIB),
        p("P6", 500 * KIB, 600 * KIB),
    ]
}

impl Workload {
    /// The phases with `live_max` bytes live.
    #[must_use]
    pub fn phases(&self, live_max: u64) -> Vec<Phase> {
        let phase = |sizes| match self.turns {
            true => Phase::Allocate {
                bytes: live_max * TURNOVER,
                live_max,
                sizes,
            },
            false => Phase::Fill { live_max, sizes },
        };
        let mut phases = vec![phase(self.before)];
        if let Some(percent) = self.deleted {
            phases.push(Phase::Delete { percent });
            phases.push(phase(self.after));
        }
        phases
    }

    /// Most objects that are live at a time.
    #[must_use]
    pub fn objects_max(&self, live_max: u64) -> u64 {
        live_max / u64::from(self.before.0.min(self.after.0)) + 1
    }

    /// The sizes of each phase that allocates.
    #[must_use]
    pub fn sizes(&self) -> Vec<(u32, u32)> {
        let mut sizes = vec![self.before];
        sizes.extend(self.deleted.map(|_| self.after));
        sizes
    }

    /// The smallest mean size of an object in any phase.
    #[must_use]
    pub fn mean_min(&self) -> u64 {
        let mean = |sizes: (u32, u32)| u64::from(sizes.0 + sizes.1) / 2;
        mean(self.before).min(mean(self.after))
    }

    /// Bytes of all allocations.
    #[must_use]
    pub fn allocated(&self, live_max: u64) -> u64 {
        let phases = if self.deleted.is_some() { 2 } else { 1 };
        phases * live_max * if self.turns { TURNOVER } else { 1 }
    }
}

/// The stream of the phases. Keys of deleted objects are given to new ones.
pub(super) struct Phases {
    phases: std::vec::IntoIter<Phase>,
    now: Option<Phase>,
    /// Bytes this phase has allocated, or objects it has still to delete.
    progress: u64,
    /// The object that waits for room.
    waiting: Option<u32>,
    live: Vec<(u32, u32)>,
    free: Vec<u32>,
    bytes: u64,
    random: Random,
}

impl Phases {
    pub(super) fn new(phases: &[Phase], seed: u64) -> Self {
        let objects = phases.iter().map(objects_max).max().unwrap_or(0);
        // Touched here, so that the driver's memory is there before the first object.
        let mut live = vec![(1, 1); objects as usize];
        live.clear();
        let mut free: Vec<u32> = (0..objects as u32).rev().collect();
        free.shrink_to_fit();
        let mut phases = Vec::from(phases).into_iter();
        let now = phases.next();
        Self {
            phases,
            now,
            progress: 0,
            waiting: None,
            live,
            free,
            bytes: 0,
            random: Random::new(seed, 0),
        }
    }

    fn size(&mut self, (least, largest): (u32, u32)) -> u32 {
        least + self.random.below(u64::from(largest - least) + 1) as u32
    }

    fn delete_any(&mut self) -> Operation {
        let at = self.random.below(self.live.len() as u64) as usize;
        let (key, size) = self.live.swap_remove(at);
        self.bytes -= u64::from(size);
        self.free.push(key);
        Operation::Delete {
            key: u64::from(key),
        }
    }

    fn allocate(&mut self, size: u32) -> Operation {
        let key = self
            .free
            .pop()
            .expect("there are keys for all that can be live");
        self.live.push((key, size));
        self.bytes += u64::from(size);
        Operation::Put {
            key: u64::from(key),
            size,
        }
    }

    fn end_phase(&mut self, name: &'static str) -> Operation {
        self.now = self.phases.next();
        self.progress = 0;
        self.waiting = None;
        if let Some(Phase::Delete { percent }) = self.now {
            self.progress = self.live.len() as u64 * u64::from(percent) / 100;
        }
        Operation::Mark(name)
    }
}

fn objects_max(phase: &Phase) -> u64 {
    match phase {
        // Objects of the phase before may still be there; they were counted with their own size.
        Phase::Allocate {
            live_max, sizes, ..
        }
        | Phase::Fill { live_max, sizes } => live_max / u64::from(sizes.0.max(1)) + 1,
        Phase::Delete { .. } => 0,
    }
}

impl Stream for Phases {
    fn next(&mut self) -> Option<Operation> {
        Some(match *self.now.as_ref()? {
            Phase::Allocate {
                bytes,
                live_max,
                sizes,
            } => {
                let size = match self.waiting.take() {
                    Some(size) => size,
                    None if self.progress >= bytes => return Some(self.end_phase("allocated")),
                    None => self.size(sizes),
                };
                if self.bytes + u64::from(size) > live_max && !self.live.is_empty() {
                    self.waiting = Some(size);
                    self.delete_any()
                } else {
                    self.progress += u64::from(size);
                    self.allocate(size)
                }
            }
            Phase::Fill { live_max, sizes } => {
                let size = self.size(sizes);
                match self.bytes + u64::from(size) > live_max {
                    true => self.end_phase("filled"),
                    false => self.allocate(size),
                }
            }
            Phase::Delete { .. } => match self.progress {
                0 => self.end_phase(DELETED),
                _ => {
                    self.progress -= 1;
                    self.delete_any()
                }
            },
        })
    }

    fn live(&self) -> Live {
        Live {
            objects: self.live.len() as u64,
            bytes: self.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_workload_keeps_its_limit_and_deletes_what_is_there() {
        let limit = 2 << 20;
        for workload in workloads() {
            let mut stream = Phases::new(&workload.phases(limit), 1);
            let mut objects = BTreeMap::new();
            let (mut marks, mut allocated) = (0, 0);
            while let Some(operation) = stream.next() {
                match operation {
                    Operation::Put { key, size } => {
                        assert!(objects.insert(key, size).is_none(), "{}", workload.name);
                        allocated += u64::from(size);
                    }
                    Operation::Delete { key } => assert!(objects.remove(&key).is_some()),
                    Operation::Mark(_) => marks += 1,
                    other => panic!("{other:?}"),
                }
                assert!(stream.live().bytes <= limit);
                assert!(objects.len() as u64 <= workload.objects_max(limit));
            }
            let live: u64 = objects.values().map(|&size| u64::from(size)).sum();
            assert_eq!(stream.live().bytes, live);
            assert_eq!(marks, workload.phases(limit).len());
            assert!(live > limit * 6 / 10, "{}: {live}", workload.name);
            assert!(allocated <= workload.allocated(limit) + (1 << 20));
        }
    }
}
