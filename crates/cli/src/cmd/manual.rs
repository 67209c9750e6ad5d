//! `pluvio completions` and `pluvio man`: what shells and `man` know of the command line, written
//! from its definition. So packages hold nothing that could disagree with the program.

use crate::args::Cli;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use pluvio_console::failure::Failure;
use pluvio_console::output::print_text;
use std::path::PathBuf;
use std::process::ExitCode;

/// The name by which the program is called.
const NAME: &str = "pluvio";

/// `pluvio completions`.
#[derive(Args, Clone, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `pluvio man`.
#[derive(Args, Clone, Debug)]
pub struct Man {
    /// The folder for the pages: pluvio.1, and one for each command
    pub directory: PathBuf,
}

/// Prints the script of a shell.
///
/// # Errors
/// Standard output is closed.
pub fn completions(arguments: &Completions) -> Result<ExitCode, Failure> {
    print_text(&script(arguments.shell))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut text);
    text
}

/// Writes the pages. Those of an earlier run are replaced.
///
/// # Errors
/// The folder cannot be made, or a page cannot be written.
pub fn man(arguments: &Man) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| Failure::file(directory, &error))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_completes_commands_and_options() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(script(*shell)).expect("text");
            for word in ["coordinator", "drain-timeout"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let directory = tempfile::tempdir().expect("a folder");
        let directory = directory.path().join("deeper");
        let arguments = Man { directory };
        man(&arguments).expect("pages");
        let page = |name: &str| {
            std::fs::read_to_string(arguments.directory.join(name)).expect("the page is there")
        };
        assert!(page("pluvio.1").contains("durable"));
        assert!(page("pluvio-table-create.1").contains("create"));
        let server = page("pluvio-server.1");
        assert!(server.contains("drain\\-timeout"), "{server}");
        assert!(!server.contains("stamps"), "hidden options stay hidden");
        std::fs::remove_dir_all(&arguments.directory).expect("removed");
        std::fs::write(&arguments.directory, "a file").expect("written");
        let refused = man(&arguments).expect_err("a file is in the way");
        assert!(refused.to_string().contains("deeper"), "{refused}");
    }
}
