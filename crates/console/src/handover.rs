//! Commands that stand in the one program and are done by the other one, which lies beside it.
//!
//! - HAND-1: the other program takes this process's place. It has the same arguments, streams and
//!   environment, and its exit status is that of the command.

use crate::failure::Failure;
use clap::{ArgMatches, Args, Command};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// The program of the laboratory.
pub const LABORATORY: &str = "pluvio-lab";
/// The product's program.
pub const PRODUCT: &str = "pluvio";
/// Marks a command that another program does.
const MARK: &str = "handed-over";

/// What follows the name of such a command: the other program reads it.
#[derive(Args, Clone, Debug)]
pub struct HandedOver {
    /// Options and arguments, as `--help` tells
    #[arg(id = MARK, value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// Whether another program does this command.
pub(crate) fn is_handed_over(command: &Command) -> bool {
    command.get_arguments().any(|a| a.get_id() == MARK)
}

/// Whether the given command is one of another program.
pub(crate) fn asks_another(command: &Command, matches: &ArgMatches) -> bool {
    let Some((name, deeper)) = matches.subcommand() else {
        return is_handed_over(command);
    };
    let next = command.find_subcommand(name);
    next.is_some_and(|next| asks_another(next, deeper))
}

/// Where the program `name` lies, if it is beside this one.
///
/// # Errors
/// It is not there, or it is not known where this program is.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    let path = own.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    match path.try_exists() {
        Ok(true) => Ok(path),
        Ok(false) | Err(_) => Err(missing(name, &path)),
    }
}

fn missing(name: &str, path: &Path) -> Failure {
    Failure::new(format!(
        "this needs the program {name}, and there is no {}; `cargo build --release -p {name}` makes it, to be put there",
        path.display()
    ))
}

/// Hands this process over to the laboratory's program, arguments and all. Comes back only with the
/// reason why that failed: it is not installed beside this program, or cannot be started.
pub fn to_laboratory() -> Failure {
    let path = match beside(LABORATORY) {
        Ok(path) => path,
        Err(failure) => return failure,
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| PRODUCT.into());
    let mut command = std::process::Command::new(&path);
    // Its usage lines then show the words that were typed.
    command.arg0(name).args(arguments);
    let error = command.exec();
    match error.kind() {
        io::ErrorKind::NotFound => missing(LABORATORY, &path),
        _ => Failure::file(&path, &error),
    }
}
