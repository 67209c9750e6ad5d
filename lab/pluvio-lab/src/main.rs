//! The binary `pluvio-lab`: experiments, simulations, and the torture of real processes. `pluvio`
//! hands the commands with these names over to it.
//!
//! - `cmd`: one file for each command; `experiment`: how results are told; `systems`:
//!   clusters and servers under load.

mod cmd;
mod experiment;
mod systems;

use clap::{Parser, Subcommand};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::traces;
use std::process::ExitCode;

/// Experiments with Pluvio: measurements, simulations, and the torture of real processes.
#[derive(Parser, Debug)]
#[command(name = "pluvio-lab", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure the storage engine and recovery
    Bench(cmd::bench::Bench),
    /// Run simulated clusters with faults, from a seed
    Sim(cmd::sim::Sim),
    /// Simulate one mechanism by itself
    Simulate(cmd::simulate::Simulate),
    /// Torment a cluster of real processes, and check that nothing is lost, doubled or out of order
    Torture(pluvio_torture::Torture),
}

/// Sections of configuration files that are for `pluvio`.
const OF_PLUVIO: [&str; 29] = [
    "backup",
    "balance",
    "bench.latency",
    "bench.load",
    "bench.throughput",
    "completions",
    "coordinator",
    "delete",
    "demo",
    "dev",
    "drain",
    "expire",
    "export",
    "finalize",
    "get",
    "import",
    "incr",
    "man",
    "persist",
    "put",
    "recover",
    "restore",
    "scan",
    "server",
    "settings",
    "space",
    "status",
    "table",
    "top",
];

fn main() -> ExitCode {
    pluvio_console::main(&OF_PLUVIO, run)
}

fn run(Cli { global, command }: Cli) -> Result<ExitCode, Failure> {
    traces::start(&global, "warn")?;
    match command {
        Command::Bench(bench) => cmd::bench::run(&global, &bench),
        Command::Sim(sim) => cmd::sim::run(&global, &sim),
        Command::Simulate(simulate) => cmd::simulate::run(&global, &simulate),
        Command::Torture(torture) => pluvio_torture::run(&global, &torture),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
