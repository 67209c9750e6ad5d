//! The binary as its users meet it: real processes, real sockets, real disks, real `kill -9`.
//!
//! All tests are one program, so that it is linked once and one semaphore bounds how many
//! clusters run at a time. Each starts what it needs on free ports with directories of its own,
//! and leaves no process and no file behind, however it ends. They wait for states, never for
//! time; limits are far above what is usual.

#![allow(clippy::unwrap_used)] // of the helpers too

mod archives;
mod bad_input;
mod balance;
mod broken_bytes;
mod classes;
mod client_memory;
mod console;
mod contract;
mod coordinators;
mod corruption;
mod data_directories;
mod data_directory;
mod data_sets;
mod documents;
mod durability;
mod encryption;
mod every_step;
mod expiry;
mod from_redis;
mod full;
mod given_up;
mod handover;
mod import_export;
mod killed_leaders;
mod limits;
mod mapped_clients;
mod mapped_reads;
mod metadata;
mod metadata_trouble;
mod migrate;
mod network_bench;
mod older_formats;
mod one_moment;
mod quotas;
mod replication;
mod rings;
mod rolling_restart;
mod rpc_memory;
mod seen;
mod services;
mod spaces;
mod spans;
mod stock_clients;
mod support;
mod transactions;
mod upgrade;
mod users;
