//! Deterministic simulation of whole clusters in one thread from one seed.
//!
//! [`Sim`] owns virtual time, an executor, a network, disks and processes; [`SimHandle::process`]
//! gives an [`pluvio_env::Env`] for one incarnation of a process, and the real code of the cluster
//! runs on it. [`cluster::run`] runs a whole one under faults and checks it. `docs/simulation.md`
//! explains how it works and how to add a fault.
//!
//! Invariants
//! - SIM-1: a run is a function of (seed, options, calls made on the [`Sim`]);
//!   [`SimHandle::trace_hash`] is equal for equal runs, bit for bit.
//! - SIM-2: virtual time moves only between events, never while code of the cluster runs.
//! - SIM-3: code of the cluster (polls, handlers, steps, wakers, destructors) runs only while the
//!   simulation's own lock is free, so it may call anything of its `Env` at any place.
//! - SIM-4: once a process has crashed, nothing of that incarnation runs again, and whatever is
//!   still called on its `Env` does nothing and never completes.
//! - SIM-5: a request reaches a service at most once per call, unless
//!   [`NetworkFaults::duplicate_requests`] asks for worse.
//!
//! Thread rules: the types are `Send + Sync` because the traits ask for it; a simulation is used
//! from one thread at a time. Several simulations may run in several threads.
//!
//! Not simulated: byte streams, computing time (a poll takes no virtual time), memory limits.

pub mod check;
mod clock;
#[cfg(feature = "cluster")]
pub mod cluster;
mod condition;
#[cfg(feature = "cluster")]
mod datagrams;
mod device;
mod disk;
mod executor;
pub mod history;
mod intercept;
mod logging;
mod network;
mod options;
mod packets;
mod queue;
mod random;
mod sim;
mod slab;
mod state;
mod storage;
mod stuck;
mod tasks;
mod trace;

pub use device::{Device, DeviceMode, DeviceSwitch};
pub use intercept::{Intercepted, Interceptor};
pub use network::NetworkStats;
pub use options::{DiskFaults, NetworkFaults, SimOptions};
pub use sim::{ProcessEnv, Sim, SimHandle};
pub use state::ProcessId;
pub use stuck::{Stuck, StuckWhy};
