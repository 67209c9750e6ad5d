//! What the experiments do to a store: which keys, how often, how large; and streams of operations.

mod census;
mod distribution;
mod phases;
mod postmark;
mod profile;
mod stream;
mod trace;
pub mod twitter;
pub mod ycsb;

pub use census::{Census, Use};
pub use distribution::{Distribution, Draw};
pub use phases::{DELETED, Phase, Workload, workloads};
pub use postmark::Postmark;
pub use profile::ProfilePlan;
pub use stream::{LOADED, Live, Operation, Plan, Stream};
pub use trace::TracePlan;
