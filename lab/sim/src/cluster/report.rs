//! What a run was like and what it showed.

use crate::check::Violation;
use crate::cluster::faults::Faults;
use crate::cluster::plan::{OperationKind, Plan};
use core::fmt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often operations of one kind ended how. Items of batches count each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OperationCounts {
    /// Acknowledged, or read.
    pub done: u64,
    /// A condition did not hold.
    pub rejected: u64,
    /// Failed and not executed.
    pub failed: u64,
    /// Nobody knows whether it was executed.
    pub unknown: u64,
    /// Sent to another server after one had not answered.
    pub sent_again: u64,
}

/// What a run was like and what it showed. Equal for equal options, field by field.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// Operations that clients were to do.
    pub steps: u64,
    /// Operations that clients did.
    pub steps_done: u64,
    /// Kinds of faults that were allowed.
    pub faults: Faults,
    /// What the seed made of it.
    pub plan: Plan,
    /// Operations by kind.
    pub operations: BTreeMap<OperationKind, OperationCounts>,
    /// Why operations failed: kinds of errors, and what the cluster asked to wait for.
    pub failures: BTreeMap<String, u64>,
    /// Writes, deletes and additions that were acknowledged.
    pub acknowledged_writes: u64,
    /// Faults that happened, by kind.
    pub faults_injected: BTreeMap<String, u64>,
    /// Events of faults, those that were left out included: they are numbered from 0 on.
    pub fault_events: u64,
    /// Coverage marks: rare branches that were reached, and how often.
    pub marks: BTreeMap<String, u64>,
    /// Crashed servers that were recovered.
    pub recoveries: u64,
    /// Servers that were declared dead while they lived, and started again.
    pub expelled: u64,
    /// Reads that clients did in the memory of servers.
    pub mapped_reads: u64,
    /// Keys whose histories were shown to be linearizable.
    pub keys_linearizable: u64,
    /// Keys whose histories were too tangled to tell.
    pub keys_undecided: u64,
    /// Everything that happened, as one number: equal for equal runs.
    pub trace_hash: String,
    /// How many things happened.
    pub events: u64,
    /// Virtual time, to the microsecond.
    pub virtual_seconds: f64,
    /// What did not hold; empty when all is well.
    pub violations: Vec<Violation>,
    /// The command that does the same again.
    pub replay: String,
}

impl RunReport {
    /// Whether every check held.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_ok() { "ok" } else { "FAILED" };
        let faults: u64 = self.faults_injected.values().sum();
        write!(
            f,
            "seed {}: {verdict}, {} operations, {} acknowledged writes, {faults} faults, {} recoveries, {:.1} s of virtual time, trace {}",
            self.seed,
            self.steps_done,
            self.acknowledged_writes,
            self.recoveries,
            self.virtual_seconds,
            self.trace_hash
        )?;
        if self.is_ok() {
            return Ok(());
        }
        for violation in &self.violations {
            write!(f, "\n  {violation}")?;
        }
        write!(f, "\n  again: {}", self.replay)
    }
}
