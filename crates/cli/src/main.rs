//! The binary `pluvio`: all roles of a cluster, and the tools of its users.
//!
//! - `args`: what is asked for; `cmd`: one file for each command.
//! - `server_process`, `coordinator_process`: a role as a process, with `admin` for metrics and
//!   health.
//!
//! Experiments, simulations and the torture are those of `pluvio-lab`; their words are handed over.
//!
//! CLI-1: the last line on standard error says what happened and what to do, and the exit code is
//! 1, whatever goes wrong. The code is 2 when the command was used wrongly; then a line with
//! `error:` stands before the usage. Bad input is never a panic. A reader that wants no more of the
//! output is no failure of a command that only writes output.

mod admin;
mod allocator;
mod args;
mod cmd;
mod coordinator_process;
mod heap;
mod ingest;
mod machine;
mod mapped;
mod process;
mod server_process;
mod spans;

use crate::args::{Cli, Command};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::{handover, traces};
use std::process::ExitCode;

fn main() -> ExitCode {
    pluvio_console::main(&[], run)
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let Cli { global, command } = cli;
    let level = match &command {
        Command::Server(_) | Command::Coordinator(_) => "info",
        _ => "warn",
    };
    traces::start(&global, level)?;
    let only_output_is_wanted = matches!(
        command,
        Command::Get(_)
            | Command::Completions(_)
            | Command::Scan(_)
            | Command::Space(_)
            | Command::Export(_)
            | Command::Status(_)
            | Command::Table(_)
            | Command::Top(_)
    );
    match execute(&global, command) {
        // As after `pluvio scan | head`.
        Err(failure) if only_output_is_wanted && failure.is_silent() => Ok(ExitCode::SUCCESS),
        done => done,
    }
}

fn execute(global: &Global, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Dev(dev) => cmd::dev::run(global, &dev),
        Command::Demo(demo) => cmd::demo::run(global, &demo),
        Command::Server(server) => server_process::run(global, &server),
        Command::Coordinator(coordinator) => coordinator_process::run(global, &coordinator),
        Command::Status(status) => cmd::status::run(global, &status),
        Command::Top(top) => cmd::top::run(global, &top),
        Command::Table(table) => cmd::table::run(global, &table),
        Command::Balance(balance) => cmd::balance::run(global, &balance),
        Command::Drain(drain) => cmd::drain::run(global, &drain),
        Command::Settings(settings) => cmd::settings::run(global, &settings),
        Command::Finalize(_) => cmd::settings::finalize(global),
        Command::Recover(recover) => cmd::recover::run(global, &recover),
        Command::Get(get) => cmd::objects::get(global, &get),
        Command::Put(put) => cmd::objects::put(global, &put),
        Command::Delete(delete) => cmd::objects::delete(global, &delete),
        Command::Incr(incr) => cmd::objects::incr(global, &incr),
        Command::Expire(expire) => cmd::lifetime::expire(global, &expire),
        Command::Persist(persist) => cmd::lifetime::persist(global, &persist),
        Command::Scan(scan) => cmd::scan::run(global, &scan),
        Command::Import(import) => cmd::import::run(global, &import),
        Command::Export(export) => cmd::export::run(global, &export),
        Command::Backup(backup) => cmd::backup::run(global, &backup),
        Command::Restore(restore) => cmd::restore::run(global, &restore),
        Command::Bench(bench) => cmd::bench::run(global, &bench),
        Command::Space(space) => cmd::space::run(global, &space),
        Command::Completions(completions) => cmd::manual::completions(&completions),
        Command::Man(man) => cmd::manual::man(&man),
        Command::Sim(_) | Command::Simulate(_) | Command::Torture(_) => {
            Err(handover::to_laboratory())
        }
    }
}
