//! A whole cluster of the real code from one seed: coordinator, servers, clients, faults, and
//! checks of what came of it. `docs/simulation.md` explains how to read and extend it.
//!
//! Invariants
//! - RUN-1: a report is a function of its [`RunOptions`]: equal options, equal reports.
//! - RUN-2: faults stay within what the cluster promises to survive (`nemesis`), so every
//!   violation is an error of the code under test or of the harness.
//! - RUN-3: every run ends: clients have limits, the quiet time at the end has one, and what does
//!   not end then is a violation.
//!
//! Thread rules: a run is one thread; several runs may go on in several threads.

mod attempts;
mod classes;
mod clients;
mod faults;
mod journal;
mod memory;
mod narrow;
mod nemesis;
mod nodes;
mod plan;
mod report;
mod run;
pub mod several;
mod shrink;
mod times;
pub mod values;
mod workload;

pub use classes::Durability;
pub use faults::{Fault, Faults, UnknownFault};
pub use narrow::{BadNumbers, Keep, Numbers};
pub use plan::{OperationKind, Plan};
pub use report::{OperationCounts, RunReport};
pub use run::{RunOptions, TraceSink, run, run_traced};
pub use shrink::{Shrunk, shrink};
