//! Loads generated from the published properties of a production cluster.

use super::distribution::{Distribution, Draw};
use super::stream::{LOADED, Live, Operation, Stream};
use super::twitter::profile;
use crate::error::ExperimentError;
use pluvio_load::Random;
use pluvio_units::VALUE_MAX;
use serde::{Deserialize, Serialize};

/// Bytes of the keys that all contestants use; longer keys of a cluster make its values longer.
const KEY: u32 = 8;

/// A cluster, scaled.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProfilePlan {
    /// Its number.
    pub cluster: u32,
    /// Different keys of each thread.
    pub objects: u64,
    /// Operations of each thread, after all keys were written once.
    pub operations: u64,
    /// Mean bytes of a value and of what keys are longer than eight.
    bytes_mean: u32,
    gets: u32,
    deletes: u32,
    skew: f64,
}

impl ProfilePlan {
    /// A cluster with this many keys and operations.
    ///
    /// # Errors
    /// There is no such cluster in the table.
    pub fn new(cluster: u32, objects: u64, operations: u64) -> Result<Self, ExperimentError> {
        let Some(found) = profile(cluster) else {
            return Err(ExperimentError::Parameters(format!(
                "there is no profile twitter:{cluster}; give 1 to 54 (a few have no published skew)"
            )));
        };
        Ok(Self {
            cluster,
            objects,
            operations,
            bytes_mean: found.value_bytes + found.key_bytes.saturating_sub(KEY),
            gets: found.gets,
            deletes: found.deletes,
            skew: found.skew,
        })
    }

    /// Mean bytes of an object's value.
    #[must_use]
    pub fn bytes_mean(&self) -> u32 {
        self.bytes_mean
    }

    /// Most bytes of an object's value.
    #[must_use]
    pub fn bytes_max(&self) -> u32 {
        (self.bytes_mean - self.bytes_mean / 2 + self.bytes_mean).clamp(1, VALUE_MAX as u32)
    }
}

/// The stream: every key is written once, then operations are drawn.
pub(super) struct ProfileStream {
    plan: ProfilePlan,
    loaded: u64,
    done: u64,
    draw: Draw,
    random: Random,
    first_key: u64,
    sizes: Vec<u32>,
    live: Live,
}

impl ProfileStream {
    pub(super) fn new(plan: &ProfilePlan, seed: u64, thread: usize, first_key: u64) -> Self {
        Self {
            loaded: 0,
            done: 0,
            draw: Distribution::Zipfian(plan.skew).over(plan.objects),
            random: Random::new(seed, thread as u64),
            first_key,
            sizes: vec![0; plan.objects as usize],
            live: Live::default(),
            plan: plan.clone(),
        }
    }

    /// Sizes between half the mean and one and a half: the table tells no more than the mean.
    fn put(&mut self, number: u64) -> Operation {
        let mean = u64::from(self.plan.bytes_mean);
        let size = (mean - mean / 2 + self.random.below(mean + 1)).clamp(1, VALUE_MAX as u64);
        self.resize(number, size as u32);
        Operation::Put {
            key: self.first_key + number,
            size: size as u32,
        }
    }

    fn resize(&mut self, number: u64, size: u32) {
        let old = std::mem::replace(&mut self.sizes[number as usize], size);
        self.live.bytes = self.live.bytes + u64::from(size) - u64::from(old);
        self.live.objects = self.live.objects + u64::from(size > 0) - u64::from(old > 0);
    }
}

impl Stream for ProfileStream {
    fn next(&mut self) -> Option<Operation> {
        if self.loaded < self.plan.objects {
            self.loaded += 1;
            return Some(self.put(self.loaded - 1));
        }
        self.done += 1;
        if self.done == 1 {
            return Some(Operation::Mark(LOADED));
        }
        if self.done > self.plan.operations + 1 {
            return None;
        }
        let number = self.draw.spread(&mut self.random);
        let key = self.first_key + number;
        let kind = self.random.below(1000) as u32;
        Some(if kind < self.plan.gets {
            Operation::Get { key }
        } else if kind < self.plan.gets + self.plan.deletes {
            self.resize(number, 0);
            Operation::Delete { key }
        } else {
            self.put(number)
        })
    }

    fn live(&self) -> Live {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_that_of_the_cluster() {
        let plan = ProfilePlan::new(14, 1000, 100_000).unwrap();
        let mut stream = ProfileStream::new(&plan, 1, 0, 0);
        let (mut gets, mut deletes, mut puts) = (0, 0, 0);
        while let Some(operation) = stream.next() {
            match operation {
                Operation::Get { .. } => gets += 1,
                Operation::Delete { .. } => deletes += 1,
                Operation::Put { .. } => puts += 1,
                Operation::Append { .. } | Operation::Mark(_) => {}
            }
        }
        assert!((gets as f64 / 65_000.0 - 1.0).abs() < 0.02, "{gets}");
        assert!((deletes as f64 / 22_000.0 - 1.0).abs() < 0.03, "{deletes}");
        assert_eq!(gets + deletes + puts, 101_000);
        let mean = stream.live().bytes / stream.live().objects;
        assert!((450..560).contains(&mean), "{mean}");
        assert_eq!(plan.bytes_max(), 251 + 502);
        assert!(ProfilePlan::new(999, 1, 1).is_err());
    }
}
