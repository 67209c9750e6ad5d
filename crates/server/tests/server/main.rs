//! Servers in simulated clusters: what they promise to each other and to clients.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod batches;
mod cluster;
mod cold_start;
mod corruption;
mod detection;
mod enumeration;
mod frozen;
mod in_place;
mod killed_log;
mod late_copies;
mod memory_nodes;
mod overload;
mod protocol;
mod quotas;
mod racks;
mod recovery_master;
mod rig;
mod scripted;
mod strangers;
mod top_keys;
mod upgrade;
mod zombies;
