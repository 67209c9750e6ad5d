//! Processes of an experiment: this program again, with the command `child`, which talks over its
//! standard input and output.

use crate::error::{JumpError, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};

/// The program that children are: `pluvio-jump`.
#[derive(Clone, Debug)]
pub struct Program(PathBuf);

impl Program {
    /// This program itself.
    ///
    /// # Errors
    /// The system does not tell where it lies.
    pub fn own() -> Result<Self> {
        let path = std::env::current_exe();
        let path = path.map_err(|error| JumpError::system("find this program's file", error))?;
        Ok(Self(path))
    }

    /// The one at this path.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A program in the same directory.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.0.with_file_name(name)
    }

    /// A command of it that is a child.
    pub(crate) fn child(&self, role: &str) -> Command {
        let mut command = Command::new(&self.0);
        let parent = std::process::id().to_string();
        command.args(["child", "--parent", &parent, role]);
        command
    }
}

/// A child with pipes. It is killed when it is dropped, unless it has ended.
#[derive(Debug)]
pub(crate) struct Child {
    who: String,
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(who: impl Into<String>, command: &mut Command) -> Result<Self> {
        let who = who.into();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let mut process =
            started.map_err(|error| JumpError::system(format!("start {who}"), error))?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self {
                who,
                process,
                input,
                output: BufReader::new(output),
            }),
            (_, _) => Err(JumpError::of(who, "it has no pipes")),
        }
    }

    fn failed(&self, error: impl std::fmt::Display) -> JumpError {
        JumpError::of(&self.who, error)
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.input.write_all(bytes);
        sent.map_err(|error| self.failed(error))
    }

    /// Waits for as many bytes as `into` has.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        let got = self.output.read_exact(into);
        got.map_err(|error| self.failed(error))
    }

    /// Waits for a line.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err(self.failed("it ended")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Runs it on one processor.
    pub(crate) fn pin(&self, processor: usize) -> Result<()> {
        let set = one_of(processor);
        let pid = rustix::process::Pid::from_child(&self.process);
        let done = sched_setaffinity(Some(pid), &set);
        done.map_err(|errno| JumpError::system(format!("bind {}", self.who), errno))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself; then nothing is left to do.
        let _killed = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn one_of(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// The processors that this thread may use.
pub(crate) fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| one_of(0));
    (0..CpuSet::MAX_CPU)
        .filter(|&one| allowed.is_set(one))
        .collect()
}

/// This thread on one processor, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pinned(CpuSet);

impl Pinned {
    pub(crate) fn to(processor: usize) -> Result<Self> {
        let failed = |errno| JumpError::system("bind this thread", errno);
        let before = sched_getaffinity(None).map_err(failed)?;
        sched_setaffinity(None, &one_of(processor)).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It may run there for ever; only times suffer.
        let _stays = sched_setaffinity(None, &self.0);
    }
}

/// A process that answers each byte with a byte, on the processor of this one. Asking it takes two
/// hand-offs of the processor, each with another set of page tables.
#[derive(Debug)]
pub(crate) struct Echo {
    child: Child,
    _here: Pinned,
}

impl Echo {
    pub(crate) fn start(program: &Program) -> Result<Self> {
        let first = processors().first().copied().unwrap_or(0);
        let here = Pinned::to(first)?;
        // A child begins on the processors of its parent.
        let child = Child::start("the echo", &mut program.child("echo"))?;
        Ok(Self { child, _here: here })
    }

    /// To the other process and back.
    pub(crate) fn there_and_back(&mut self) -> Result<()> {
        self.child.send(&[1])?;
        self.child.receive(&mut [0])
    }
}

/// The child of [`Echo`].
pub(crate) fn echo() -> Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut byte = [0];
    while input.read_exact(&mut byte).is_ok() {
        let answered = output.write_all(&byte).and_then(|()| output.flush());
        answered.map_err(|error| JumpError::of("the echo", error))?;
    }
    Ok(())
}

/// Runs a command to its end, without what it writes, and gives its standard output.
pub(crate) fn run(who: &str, command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| JumpError::system(format!("start {who}"), error))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(JumpError::of(
            who,
            format!(
                "{}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            ),
        )),
    }
}

/// Whether a program can be started here.
#[must_use]
pub fn is_installed(program: impl AsRef<OsStr>) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
