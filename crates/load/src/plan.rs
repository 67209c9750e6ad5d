//! What is to be measured.

use crate::error::BenchError;
use pluvio_units::{KEY_MAX, VALUE_MAX};
use serde::Serialize;
use std::time::Duration;

/// One load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Workload {
    /// Connections (native: callers) at a time.
    pub connections: usize,
    /// Operations sent at once on each.
    pub pipeline: usize,
    /// Number of different keys.
    pub keys: u64,
    /// Bytes of each value.
    pub value_size: usize,
    /// How many of a hundred operations read.
    pub get_percent: u8,
    /// How long to measure.
    pub seconds: f64,
    /// How long to run before that, unmeasured.
    pub warmup_seconds: f64,
    /// Seed of keys and values.
    pub seed: u64,
}

impl Workload {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`BenchError::Parameters`], with what is allowed.
    pub fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Parameters(text));
        if self.connections == 0 || self.connections > 10_000 {
            return wrong("connections must be 1 to 10000".into());
        }
        if self.pipeline == 0 || self.pipeline > 1024 {
            return wrong("pipeline must be 1 to 1024".into());
        }
        if self.keys == 0 {
            return wrong("there must be at least one key".into());
        }
        if self.value_size > VALUE_MAX {
            return wrong(format!("value-size must be at most {VALUE_MAX}"));
        }
        if self.get_percent > 100 {
            return wrong("get-percent must be at most 100".into());
        }
        // NaN is refused too.
        let sensible = |s: f64| (0.0..=86_400.0).contains(&s);
        if !sensible(self.seconds) || !sensible(self.warmup_seconds) {
            return wrong("seconds must be 0 to 86400".into());
        }
        Ok(())
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub(crate) fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup_seconds)
    }
}

/// A load with several values for some parameters: every combination gives a row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sweep {
    /// The parameters that all rows share; its `pipeline`, `value_size` and `get_percent` are not
    /// used.
    pub base: Workload,
    /// Pipelines.
    pub pipelines: Vec<usize>,
    /// Value sizes.
    pub value_sizes: Vec<usize>,
    /// Shares of reads.
    pub get_percents: Vec<u8>,
}

impl Sweep {
    /// The loads, value sizes outermost: each size is loaded once.
    #[must_use]
    pub fn workloads(&self) -> Vec<Workload> {
        let mut all = Vec::new();
        for &value_size in &self.value_sizes {
            for &get_percent in &self.get_percents {
                for &pipeline in &self.pipelines {
                    all.push(Workload {
                        pipeline,
                        value_size,
                        get_percent,
                        ..self.base.clone()
                    });
                }
            }
        }
        all
    }
}

/// Bytes of every key: 20 digits behind a prefix.
pub const KEY_BYTES: usize = 4 + 20;
const _: () = assert!(KEY_BYTES <= KEY_MAX);

/// The key with this number.
#[must_use]
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key:00000000000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload {
            connections: 1,
            pipeline: 1,
            keys: 1,
            value_size: 0,
            get_percent: 0,
            seconds: 1.0,
            warmup_seconds: 0.0,
            seed: 0,
        }
    }

    #[test]
    fn keys_differ_and_have_one_length() {
        assert_eq!(&key(0), b"key:00000000000000000000");
        assert_eq!(&key(u64::MAX), b"key:18446744073709551615");
    }

    #[test]
    fn senseless_parameters_are_refused() {
        assert_eq!(workload().check(), Ok(()));
        let changes: [fn(&mut Workload); 7] = [
            |w| w.connections = 0,
            |w| w.pipeline = 0,
            |w| w.keys = 0,
            |w| w.value_size = VALUE_MAX + 1,
            |w| w.get_percent = 101,
            |w| w.seconds = f64::NAN,
            |w| w.warmup_seconds = -1.0,
        ];
        for change in changes {
            let mut wrong = workload();
            change(&mut wrong);
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_combination_is_a_row() {
        let sweep = Sweep {
            base: workload(),
            pipelines: vec![1, 16],
            value_sizes: vec![100, 1000],
            get_percents: vec![100, 0],
        };
        assert_eq!(sweep.workloads().len(), 8);
        assert_eq!(sweep.workloads()[1].pipeline, 16);
    }
}
