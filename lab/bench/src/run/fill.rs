//! Fills a contestant.

use super::{put, stamp};
use crate::contestant::{Holdings, KeyValue};
use crate::error::ExperimentError;
use pluvio_load::Random;
use serde::{Deserialize, Serialize};

/// How often the fill looks at the utilization, in bytes of values: it is right to that.
const LOOK_BYTES: u64 = 64 << 10;
/// Room that is left below the limit of live objects: heads look at it once for each 64 KiB.
const LIMIT_SLACK: u64 = 1 << 20;
/// Share of that limit that is left, too. Entries of up to 512 bytes do not cross the ends of
/// seglets. So memory is full when live objects are up to 0.8 % below it.
const LIMIT_SLACK_SHARE: u64 = 100;

/// What to fill a store with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadPlan {
    /// Keys `0..objects` at most.
    pub objects: u64,
    /// Stop when live objects take this share of our log's memory, or most of what its reserves
    /// leave.
    pub until: Option<f64>,
    /// Bytes of each value.
    pub value_size: usize,
    /// Seed of the values.
    pub seed: u64,
}

/// A filled store.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Loaded {
    /// Objects: their keys are `0..objects`.
    pub objects: u64,
    /// What the store holds.
    pub holdings: Holdings,
}

/// Fills the store, in the order of the keys.
pub(crate) fn load<S: KeyValue>(store: &S, plan: &LoadPlan) -> Result<Loaded, ExperimentError> {
    let mut value = Random::new(plan.seed, 0).bytes(plan.value_size);
    let mut objects = 0;
    let look = (LOOK_BYTES / (plan.value_size as u64).max(1)).max(1);
    store.begin(false);
    while objects < plan.objects {
        if objects.is_multiple_of(look)
            && let Some(until) = plan.until
        {
            let holdings = store.counts();
            let slack = LIMIT_SLACK + holdings.live_log_max / LIMIT_SLACK_SHARE;
            let limit = holdings.live_log_max.saturating_sub(slack);
            let wanted = (until * holdings.log_memory as f64).min(limit as f64);
            if holdings.live_log as f64 >= wanted {
                break;
            }
        }
        stamp(objects, &mut value);
        put(store, objects, &value)?;
        objects += 1;
    }
    let holdings = store.holdings();
    Ok(Loaded { objects, holdings })
}
