//! `pluvio bench` of everything but a running cluster: the storage engine inside processes of its
//! own, recovery, and clusters of its own beside servers of others.

mod arguments;
mod cluster_cleaner;
mod commands;
mod expiry;
mod recovery;
mod requests;
mod store;
mod streams;
mod transactions;
mod ycsb;

use crate::experiment::{Files, tell};
use clap::{Args, Subcommand};
use pluvio_bench::ExperimentError;
use pluvio_bench::contestant::{Program, serve};
use pluvio_bench::experiment::{Experiment, Picture};
use pluvio_bench::suite::{Step, Watch};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, say};
use pluvio_load::Machine;
use std::process::ExitCode;

/// `pluvio bench`.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// The storage engine and maps of others inside a process: reads and writes a second
    Store(store::Store),
    /// The storage engine's writes a second and its cleaner's work, by memory utilization
    Cleaner(store::Cleaner),
    /// The storage engine's write latency, with and without a cleaner
    LatencyCdf(store::LatencyCdf),
    /// What each part of the storage engine brings
    Breakdown(store::Breakdown),
    /// The time of one copy, by method and size
    Copy(store::Copy),
    /// Lookups in a hash table by the memory nodes where it lies; needs two nodes at least
    Placement(store::Placement),
    /// Memory of the storage engine, of allocators and of servers, while the sizes of objects
    /// change
    Fragmentation(store::Fragmentation),
    /// Replay a trace file, or a load like that of a production cluster, inside a process
    Trace(streams::Trace),
    /// Small files that are created, read, appended to and deleted, as objects
    Postmark(streams::Postmark),
    /// Recovery: replay by object size, a killed server of a real cluster, and Redis loading as
    /// much
    Recovery(recovery::Recovery),
    /// YCSB's workloads A to D and F, over the native client and the Redis port, beside servers of
    /// others
    Ycsb(ycsb::YcsbBench),
    /// Requests to a real cluster: latency by size, under load, and in batches
    Requests(requests::Requests),
    /// The cleaner behind a network, by memory utilization: client, master and backups
    ClusterCleaner(cluster_cleaner::ClusterCleaner),
    /// Transactions of one and of two servers, beside single writes
    Transactions(transactions::Transactions),
    /// Commands of the Redis port beside SET and GET: volatile keys, blocks, scripts, keys that
    /// expire; and redis-server
    Commands(commands::Commands),
    /// Keys that expire under load: how late their memory comes back, what readers notice, and a
    /// nearly full store of volatile keys
    Expiry(expiry::ExpiryBench),
    /// A contestant of an experiment; started by the experiment
    #[command(hide = true)]
    Contestant,
}

/// Runs the command.
pub fn run(global: &Global, bench: &Bench) -> Result<ExitCode, Failure> {
    if cfg!(debug_assertions) && !matches!(bench.what, What::Contestant) {
        say("this is a debug build: its speed says nothing; use `cargo build --release`");
    }
    match &bench.what {
        What::Store(store) => store::store(global, store),
        What::Cleaner(cleaner) => store::cleaner(global, cleaner),
        What::LatencyCdf(latency) => store::latency_cdf(global, latency),
        What::Breakdown(breakdown) => store::breakdown(global, breakdown),
        What::Copy(copy) => store::copy(global, copy),
        What::Placement(placement) => store::placement(global, placement),
        What::Fragmentation(all) => store::fragmentation(global, all),
        What::Trace(trace) => streams::trace(global, trace),
        What::Postmark(postmark) => streams::postmark(global, postmark),
        What::Recovery(all) => recovery::recovery(global, all),
        What::Ycsb(all) => ycsb::ycsb(global, all),
        What::Requests(all) => requests::requests(global, all),
        What::ClusterCleaner(all) => cluster_cleaner::cluster_cleaner(global, all),
        What::Transactions(all) => transactions::transactions(global, all),
        What::Commands(all) => commands::commands(global, all),
        What::Expiry(all) => expiry::expiry(global, all),
        What::Contestant => {
            serve(std::io::stdin().lock(), std::io::stdout().lock()).map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs an experiment under a progress bar, with this program as the contestants, and tells its
/// results.
fn conduct(
    global: &Global,
    files: &Files,
    experiment: impl FnOnce(&Program, Watch<'_>) -> Result<(Experiment, Picture), ExperimentError>,
) -> Result<ExitCode, Failure> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program: {error}")))?;
    let program = Program {
        path,
        arguments: ["bench", "contestant"].map(str::to_owned).to_vec(),
    };
    // The earlier load average: afterwards it tells of the experiment itself.
    let machine = Machine::this();
    let progress = bar(0, "starting", false);
    let watch = |step: Step| match step {
        Step::Total(total) => progress.set_length(total),
        Step::Begins(name) => progress.set_message(name),
        Step::Ended => progress.inc(1),
    };
    let done = experiment(&program, &watch);
    progress.finish_and_clear();
    let (mut experiment, picture) = done.map_err(failure)?;
    experiment.machine = machine;
    tell(global, files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: ExperimentError) -> Failure {
    match error {
        wrong @ (ExperimentError::Parameters(_) | ExperimentError::OutOfRange { .. }) => {
            Failure::usage(wrong.to_string())
        }
        other => Failure::new(other.to_string()),
    }
}
