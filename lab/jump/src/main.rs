//! The binary `pluvio-jump`: the experiments of the SpaceJMP paper, one command each. It prints
//! rows and ratios, and writes the rows and a picture into files on request.

use clap::{Args, Parser, Subcommand};
use pluvio_bench::experiment::{Experiment, Picture};
use pluvio_jump::role::{Role, play};
use pluvio_jump::{JumpError, Program, Result, Setting, attach, gups, redis, switch, tools, walk};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The experiments of the SpaceJMP paper on stock Linux.
#[derive(Parser, Debug)]
#[command(name = "pluvio-jump", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What every experiment takes.
#[derive(Args, Clone, Debug)]
struct Common {
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Where spans and files lie [default: /dev/shm]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print one object of JSON
    #[arg(long)]
    json: bool,
    /// Write the rows to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the results into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// An experiment's own options behind the common ones.
#[derive(Args, Clone, Debug)]
struct Run<O: Args> {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    options: O,
}

impl<O: Args> Run<O> {
    /// Runs the experiment, and tells what it gives.
    fn tell(
        self,
        experiment: impl FnOnce(&Setting, &O) -> Result<(Experiment, Picture)>,
    ) -> Result<()> {
        let setting = Setting {
            rounds: self.common.rounds,
            folder: self.common.folder.clone(),
            program: Program::own()?,
        };
        let (experiment, picture) = experiment(&setting, &self.options)?;
        tell(&self.common, &experiment, &picture)
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// One switch, by each way there is
    Switch(Run<switch::Options>),
    /// Getting a region into the address space, by its size
    Attach(Run<attach::Options>),
    /// Loads of random pages behind a switch, by the number of pages
    Walk(Run<walk::Options>),
    /// Random updates of a table in several windows
    Gups(Run<gups::Options>),
    /// A store that callers enter, beside servers that they ask
    Redis(Run<redis::Options>),
    /// Programs over alignments, one after the other: in a span, and with files
    Tools(Run<tools::Options>),
    /// What a process of an experiment does
    #[command(hide = true)]
    Child {
        /// The process to end with
        #[arg(long)]
        parent: u32,
        #[command(subcommand)]
        role: Role,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Switch(run) => run.tell(switch::run),
        Command::Attach(run) => run.tell(attach::run),
        Command::Walk(run) => run.tell(walk::run),
        Command::Gups(run) => run.tell(gups::run),
        Command::Redis(run) => run.tell(redis::run),
        Command::Tools(run) => run.tell(tools::run),
        Command::Child { parent, role } => match pluvio_env_os::die_with_parent(parent) {
            Ok(true) => play(&role),
            // Nobody waits for it.
            Ok(false) => Ok(()),
            Err(source) => Err(JumpError::System {
                doing: "end with the parent".to_owned(),
                source,
            }),
        },
    }
}

/// Prints the results and writes the files.
fn tell(common: &Common, experiment: &Experiment, picture: &Picture) -> Result<()> {
    let failed = |doing: String| move |source| JumpError::System { doing, source };
    let text = match common.json {
        true => serde_json::to_string(experiment).unwrap_or_default() + "\n",
        false => as_text(experiment),
    };
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(failed("print the results".to_owned()))?;
    if let Some(path) = &common.csv {
        let written = std::fs::write(path, experiment.csv());
        written.map_err(failed(format!("write {}", path.display())))?;
    }
    if let Some(path) = &common.plot {
        let svg = picture.svg();
        let svg = svg.map_err(|error| JumpError::Parameters(error.to_string()))?;
        let written = std::fs::write(path, svg);
        written.map_err(failed(format!("write {}", path.display())))?;
    }
    Ok(())
}

/// The machine, the rows as comma-separated values, and the ratios.
fn as_text(experiment: &Experiment) -> String {
    let m = &experiment.machine;
    let mut text = format!(
        "{}: {}, {} processors, Linux {}, load {} at the beginning, {} build\n\n{}",
        experiment.experiment,
        m.processor,
        m.processors,
        m.kernel,
        m.load,
        m.build,
        experiment.csv()
    );
    if !experiment.ratios.is_empty() {
        text += "\nratios, with the least and the most of the rounds\n";
    }
    for (name, ratio) in &experiment.ratios {
        let spread = experiment.ratio_spreads.get(name);
        let spread = spread.map(|spread| format!(" ({:.3} to {:.3})", spread.min, spread.max));
        text += &format!("{ratio:>10.3}  {name}{}\n", spread.unwrap_or_default());
    }
    text
}
