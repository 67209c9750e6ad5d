//! How the programs `pluvio` and `pluvio-lab` speak with people.
//!
//! - `options`: options of all commands; `config`: where their values come from.
//! - `output`, `failure`, `traces`: what is said, and how it ends.
//! - `session`: the client of a cluster that a command needs; `ports`: what it may listen on.
//! - `handover`: commands of the one program that the other one does.
//!
//! Not here: the commands.

pub mod config;
pub mod failure;
pub mod handover;
pub mod options;
pub mod output;
pub mod ports;
pub mod session;
pub mod tls;
pub mod traces;

use crate::config::Asked;
use crate::failure::Failure;
use std::process::ExitCode;

/// Reads the command line of this process, and does with `run` what it asks for. `elsewhere` names
/// the sections of configuration files that are for another program.
pub fn main<C: clap::Parser>(
    elsewhere: &[&str],
    run: impl FnOnce(C) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let done = config::read(&arguments, elsewhere).and_then(|asked| match asked {
        Asked::Do(cli) => run(*cli),
        Asked::Show(text) => {
            output::print_line(text.trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
    });
    done.unwrap_or_else(|failure| failure.report())
}
