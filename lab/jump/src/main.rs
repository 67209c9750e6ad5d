//! The binary `pluvio-jump`: the experiments of the SpaceJMP paper, one command each. It prints
//! rows and ratios, and writes the rows and a picture into files on request.

use clap::{Args, Parser, Subcommand};
use pluvio_bench::experiment::{Experiment, Picture};
use pluvio_jump::role::{Role, play};
use pluvio_jump::{JumpError, Program, Result, attach, gups, redis, switch, tools, walk};
use pluvio_units::Size;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

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

#[derive(Subcommand, Debug)]
enum Command {
    /// One switch, by each way there is
    Switch {
        #[command(flatten)]
        common: Common,
        /// Cheap switches of a turn
        #[arg(long, value_name = "N", default_value_t = 200_000)]
        switches: u32,
        /// Sizes of spans that have to be moved or mapped
        #[arg(
            long,
            value_name = "SIZE",
            value_delimiter = ',',
            default_value = "1MiB,64MiB,512MiB"
        )]
        sizes: Vec<Size>,
    },
    /// Getting a region into the address space, by its size
    Attach {
        #[command(flatten)]
        common: Common,
        /// Sizes of the region
        #[arg(
            long,
            value_name = "SIZE",
            value_delimiter = ',',
            default_value = "1MiB,4MiB,16MiB,64MiB,256MiB,1GiB"
        )]
        sizes: Vec<Size>,
    },
    /// Loads of random pages behind a switch, by the number of pages
    Walk {
        #[command(flatten)]
        common: Common,
        /// Loads of a turn
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        loads: u32,
        /// Numbers of pages
        #[arg(
            long,
            value_name = "N",
            value_delimiter = ',',
            default_value = "1,4,16,64,256,512,1024,2048,4096,16384,65536"
        )]
        pages: Vec<u32>,
    },
    /// Random updates of a table in several windows
    Gups {
        #[command(flatten)]
        common: Common,
        /// How long a turn takes, in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 200)]
        turn: u64,
        /// Numbers of windows
        #[arg(
            long,
            value_name = "N",
            value_delimiter = ',',
            default_value = "1,2,4,8,16"
        )]
        windows: Vec<u32>,
        /// Updates of a set
        #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16,64")]
        sets: Vec<u32>,
        /// Size of a window
        #[arg(long, value_name = "SIZE", default_value = "64MiB")]
        window: Size,
        /// Most windows with a process each
        #[arg(long, value_name = "N", default_value_t = 8)]
        processes_max: u32,
    },
    /// A store that callers enter, beside servers that they ask
    Redis {
        #[command(flatten)]
        common: Common,
        /// How long a turn takes, in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 500)]
        turn: u64,
        /// Keys, each with 100 bytes
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        keys: u64,
        /// Numbers of callers
        #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4")]
        callers: Vec<u32>,
        /// Of a hundred operations, how many write
        #[arg(
            long,
            value_name = "N",
            value_delimiter = ',',
            default_value = "0,5,50"
        )]
        set_percent: Vec<u64>,
        /// Redis servers of the contestant that has several
        #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=64))]
        servers: u32,
        /// Log memory of our server
        #[arg(long, value_name = "SIZE", default_value = "256MiB")]
        memory: Size,
        /// Let callers ask our server by rings in shared memory instead of TCP
        #[arg(long)]
        rings: bool,
        /// The program `pluvio` [default: the one beside this program]
        #[arg(long, value_name = "FILE")]
        pluvio: Option<PathBuf>,
        /// Leave our server out
        #[arg(long, conflicts_with = "pluvio")]
        no_pluvio: bool,
    },
    /// Programs over alignments, one after the other: in a span, and with files
    Tools {
        #[command(flatten)]
        common: Common,
        /// Alignments
        #[arg(long, value_name = "N", default_value_t = 500_000)]
        records: u32,
        /// Of their random numbers
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Leave samtools out
        #[arg(long)]
        no_samtools: bool,
    },
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
    let program = Program::own()?;
    let (common, (experiment, picture)) = match command {
        Command::Switch {
            common,
            switches,
            sizes,
        } => {
            let options = switch::Options {
                rounds: common.rounds,
                switches,
                sizes,
                folder: common.folder.clone(),
                program,
            };
            (common, switch::run(&options)?)
        }
        Command::Attach { common, sizes } => {
            let options = attach::Options {
                rounds: common.rounds,
                sizes,
                folder: common.folder.clone(),
            };
            (common, attach::run(&options)?)
        }
        Command::Walk {
            common,
            loads,
            pages,
        } => {
            let options = walk::Options {
                rounds: common.rounds,
                loads,
                pages,
                program,
            };
            (common, walk::run(&options)?)
        }
        Command::Gups {
            common,
            turn,
            windows,
            sets,
            window,
            processes_max,
        } => {
            let options = gups::Options {
                rounds: common.rounds,
                turn: gups::Turn::For(Duration::from_millis(turn)),
                windows,
                sets,
                window,
                processes_max,
                folder: common.folder.clone(),
                program,
            };
            (common, gups::run(&options)?)
        }
        Command::Redis {
            common,
            turn,
            keys,
            callers,
            set_percent,
            servers,
            memory,
            rings,
            pluvio,
            no_pluvio,
        } => {
            let beside = program.beside("pluvio");
            let options = redis::Options {
                rounds: common.rounds,
                turn_ms: turn,
                keys,
                callers,
                set_percent,
                servers,
                memory,
                rings,
                pluvio: (!no_pluvio).then(|| pluvio.unwrap_or(beside)),
                folder: common.folder.clone(),
                program,
            };
            (common, redis::run(&options)?)
        }
        Command::Tools {
            common,
            records,
            seed,
            no_samtools,
        } => {
            let options = tools::Options {
                rounds: common.rounds,
                records,
                seed,
                samtools: !no_samtools,
                folder: common.folder.clone(),
                program,
            };
            (common, tools::run(&options)?)
        }
        Command::Child { parent, role } => {
            return match pluvio_env_os::die_with_parent(parent) {
                Ok(true) => play(&role),
                // Nobody waits for it.
                Ok(false) => Ok(()),
                Err(source) => Err(JumpError::System {
                    doing: "end with the parent".to_owned(),
                    source,
                }),
            };
        }
    };
    tell(&common, &experiment, &picture)
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
