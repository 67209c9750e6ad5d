//! The steps by Debian's samtools, on its own format: BAM, with compression and without.

use super::work::Step;
use crate::children::run;
use crate::error::Result;
use std::path::Path;
use std::process::Command;

/// The program.
pub(crate) const PROGRAM: &str = "samtools";

/// How strongly it compresses what it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compression {
    /// As it does by itself.
    Usual,
    /// Not at all.
    Off,
}

impl Compression {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Usual => "samtools",
            Self::Off => "samtools, uncompressed",
        }
    }

    fn level(self) -> &'static str {
        match self {
            Self::Usual => "-1",
            Self::Off => "0",
        }
    }

    fn file(self, name: &str) -> String {
        match self {
            Self::Usual => format!("{name}.bam"),
            Self::Off => format!("{name}-0.bam"),
        }
    }
}

/// The command of a step.
fn command(compression: Compression, step: Step, folder: &Path) -> Command {
    let file = |name| compression.file(name);
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder);
    match step {
        Step::Convert => {
            command.args(["view", "-b"]);
            if compression == Compression::Off {
                command.arg("-u");
            }
            command.args(["-o", &file("reads"), "reads.sam"]);
        }
        Step::Flagstat => {
            command.args(["flagstat", &file("reads")]);
        }
        Step::SortName | Step::SortPosition => {
            command.args(["sort", "-l", compression.level(), "-m", "2G"]);
            if step == Step::SortName {
                command.arg("-n");
            }
            let to = match step {
                Step::SortName => "name",
                _ => "position",
            };
            command.args(["-o", &file(to), &file("reads")]);
        }
        Step::Index => {
            command.args(["index", &file("position")]);
        }
    }
    command
}

/// Does a step, and gives what it printed.
pub(crate) fn work(compression: Compression, step: Step, folder: &Path) -> Result<Vec<u8>> {
    run(compression.name(), &mut command(compression, step, folder))
}

/// The two numbers of each line of `samtools flagstat`, as the tools print them.
pub(crate) fn counts(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    let two = |line: &str| {
        let mut words = line.split(' ');
        let (good, bad) = (words.next()?, words.nth(1)?);
        Some(format!("{good} + {bad}\n"))
    };
    text.lines().filter_map(two).collect()
}

/// The records of a file, as lines.
#[cfg(test)]
pub(crate) fn lines(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let mut command = Command::new(PROGRAM);
    command
        .current_dir(folder)
        .args(["view", &Compression::Usual.file(name)]);
    run(PROGRAM, &mut command)
}

/// How many records of a sequence overlap the bases from `begin` to `end`, which count from 1.
#[cfg(test)]
pub(crate) fn overlapping(folder: &Path, sequence: &str, begin: i32, end: i32) -> Result<usize> {
    let mut command = Command::new(PROGRAM);
    let region = format!("{sequence}:{begin}-{end}");
    command
        .current_dir(folder)
        .args(["view", "-c", &Compression::Usual.file("position"), &region]);
    let printed = run(PROGRAM, &mut command)?;
    let text = String::from_utf8_lossy(&printed).trim().to_owned();
    text.parse()
        .map_err(|_| crate::JumpError::of(PROGRAM, text))
}
