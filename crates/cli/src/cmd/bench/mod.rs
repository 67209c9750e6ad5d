//! `pluvio bench`: measures servers over the network, and the storage engine inside this process.

mod network;

use crate::args::Global;
use crate::failure::Failure;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// `pluvio bench`.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Write all keys of a cluster once
    Load(network::Load),
    /// A cluster with one connection, one operation at a time
    Latency(network::Latency),
    /// A cluster with many connections, with and without pipelining
    Throughput(network::Throughput),
}

/// Runs the command.
pub fn run(global: &Global, bench: &Bench) -> Result<ExitCode, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build: its speed says nothing; use `cargo build --release`");
    }
    match &bench.what {
        What::Load(load) => network::run(global, &network::What::Load(load)),
        What::Latency(latency) => network::run(global, &network::What::Latency(latency)),
        What::Throughput(all) => network::run(global, &network::What::Throughput(all)),
    }
}
