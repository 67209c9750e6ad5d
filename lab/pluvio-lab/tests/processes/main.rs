//! The laboratory's binary, asked for by the words that `pluvio` hands over to it: real processes,
//! real sockets, real disks.
//!
//! All tests are one program, as those of `pluvio`, with whom they share what they need. Cargo
//! builds `pluvio-lab` for them; `pluvio` must lie beside it.

#![allow(clippy::unwrap_used)] // of the helpers too

mod experiments;
mod handover;
mod simulator;
#[path = "../../../../crates/cli/tests/processes/support/mod.rs"]
mod support;
mod torture;
