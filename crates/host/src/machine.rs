//! The machine this process runs on.

use crate::{Host, Nodes, Pace, TopologyError, Worker};
use core::hash::{BuildHasher, Hasher};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::hash::RandomState;
use std::time::{SystemTime, UNIX_EPOCH};

/// The real machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisMachine;

impl Host for ThisMachine {
    #[allow(clippy::disallowed_methods)] // this crate is the door
    fn unix_seconds(&self) -> u32 {
        let passed = SystemTime::now().duration_since(UNIX_EPOCH);
        passed.map_or(0, |t| u32::try_from(t.as_secs()).unwrap_or(u32::MAX))
    }

    fn random(&self) -> u64 {
        // Keyed by the system's randomness.
        RandomState::new().build_hasher().finish()
    }

    fn nodes(&self) -> Result<Nodes, TopologyError> {
        let allowed = sched_getaffinity(None).map_err(|e| TopologyError::Affinity(e.into()))?;
        let allowed = |processor| processor < CpuSet::MAX_CPU && allowed.is_set(processor);
        Nodes::read(
            "/sys/devices/system/node".as_ref(),
            CpuSet::MAX_CPU,
            allowed,
        )
    }

    fn processor(&self) -> usize {
        rustix::thread::sched_getcpu()
    }

    fn work(
        &self,
        name: String,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        Worker::start(name, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_runs_on_a_processor_of_this_machine() {
        let nodes = ThisMachine.nodes().unwrap();
        let all: Vec<usize> = nodes.iter().flatten().copied().collect();
        assert!(all.contains(&ThisMachine.processor()), "{all:?}");
        assert!(ThisMachine.unix_seconds() > 1_700_000_000);
    }
}
