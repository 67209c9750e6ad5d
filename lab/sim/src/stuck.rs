//! Why a run did not get where it should, and what was waiting for what.

use crate::slab::Key;
use crate::state::State;
use crate::trace::Seconds;
use core::fmt;
use std::collections::BTreeMap;

/// Entries of [`Stuck::pending`]; more would hide the interesting ones.
const PENDING_MAX: usize = 200;

/// Why a run ended without its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StuckWhy {
    /// The limit of virtual time was reached.
    Limit,
    /// Nothing is left that could ever happen: a deadlock.
    Idle,
    /// The task that was to give the result is gone: its process crashed, or it was aborted.
    Gone,
}

/// A run did not get its result.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Stuck {
    /// Why it ended.
    pub why: StuckWhy,
    /// The seed of the simulation.
    pub seed: u64,
    /// The virtual time in nanoseconds.
    pub at_ns: u64,
    /// A line for each task, saying what it waits for as far as the simulator knows it.
    pub pending: Vec<String>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            StuckWhy::Limit => "not finished within the limit",
            StuckWhy::Idle => "not finished, and nothing is left that could happen",
            StuckWhy::Gone => "the task has ended without its result",
        };
        write!(f, "seed {:#x} at {}: {why}", self.seed, Seconds(self.at_ns))?;
        for line in &self.pending {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

impl State {
    pub(crate) fn stuck(&self, why: StuckWhy) -> Stuck {
        let mut waits: BTreeMap<Option<Key>, Vec<String>> = BTreeMap::new();
        for (_, call) in self.calls.iter() {
            waits.entry(call.task).or_default().push(format!(
                "a reply from {} to opcode {} since {}",
                call.to,
                call.opcode,
                Seconds(call.since)
            ));
        }
        for (_, operation) in self.disk_operations.iter() {
            waits.entry(operation.task).or_default().push(format!(
                "{} since {}",
                operation.describe(),
                Seconds(operation.since)
            ));
        }
        for (_, timer) in self.timers.iter() {
            let line = format!("a sleep until {}", Seconds(timer.deadline));
            waits.entry(timer.task).or_default().push(line);
        }
        let mut pending: Vec<String> = self
            .tasks
            .iter()
            .map(|(key, task)| {
                let waits = waits.remove(&Some(key));
                let waits = waits.map_or_else(
                    || "something inside its process".to_string(),
                    |waits| waits.join(" and "),
                );
                let process = self.name(task.owner.process);
                format!("{process}: task {} waits for {waits}", task.name)
            })
            .collect();
        for (_, worker) in self.workers.iter() {
            let process = self.name(worker.owner.process);
            pending.push(format!("{process}: background {} runs", worker.name));
        }
        if pending.len() > PENDING_MAX {
            let more = pending.len() - PENDING_MAX;
            pending.truncate(PENDING_MAX);
            pending.push(format!("and {more} more"));
        }
        Stuck {
            why,
            seed: self.seed,
            at_ns: self.now,
            pending,
        }
    }
}
