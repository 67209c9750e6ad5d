//! Whole clusters in the simulator: seeds, and scenarios that arrange what seeds seldom meet.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod batches;
mod classes;
mod cluster;
mod crowd;
mod cut_from_coordinator;
mod drain;
mod exactly_once;
mod expiry;
mod load;
mod lost_answers;
mod migration;
mod moment;
mod recovery;
mod several;
mod side_log;
mod struck;
mod support;
mod survives;
mod volatile;
