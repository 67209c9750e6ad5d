//! The parent's side of a contestant: starts its process and asks it to do things.
//!
//! A process is stopped (SIGSTOP) from its answer to the next question. Otherwise a store's work on
//! its own, our cleaner's above all, would take processors from the contestant that is measured. It
//! would also find its own store better prepared than one that is never left alone. A contestant
//! that has a server as its own child goes on: it only waits, and must be able to end the server.

use super::name::Contender;
use super::{Holdings, Kind, Setup};
use crate::error::ExperimentError;
use crate::run::{Idle, IdlePlan, LoadPlan, Loaded, Ran, ReplayPlan, Replayed, RunPlan};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What a parent asks for: one line of JSON each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Open(Setup),
    Load(LoadPlan),
    Run(RunPlan),
    Replay(ReplayPlan),
    Idle(IdlePlan),
    Holdings,
}

/// What it is answered: one line of JSON each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Loaded(Loaded),
    Ran(Ran),
    Replayed(Replayed),
    Idle(Idle),
    Holdings(Holdings),
    Failed(String),
}

/// The program that becomes a contestant: this program with these arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Arguments that make it call [`serve`](super::serve).
    pub arguments: Vec<String>,
}

/// A contestant that runs. Ends with this value.
#[derive(Debug)]
pub struct Process {
    who: Contender,
    child: Child,
    /// `None` once it is closed, which is how the child learns that it can go.
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// It was told to stop and not yet to go on.
    stopped: bool,
}

/// Whether a contestant's process stands still between what it is asked.
pub(super) fn is_stopped_while_it_waits(kind: Kind) -> bool {
    !kind.is_server()
}

impl Process {
    /// Starts a contestant on its allocator and opens its store.
    ///
    /// # Errors
    /// The allocator is not installed, the process does not start, the store refuses its options.
    pub fn start(
        program: &Program,
        who: Contender,
        setup: &Setup,
    ) -> Result<Self, ExperimentError> {
        let failed = |problem: String| ExperimentError::Contestant {
            contestant: who.to_string(),
            problem,
        };
        let mut command = Command::new(&program.path);
        command.args(&program.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        match who.allocator.path().map_err(failed)? {
            Some(library) => command.env("LD_PRELOAD", library),
            None => command.env_remove("LD_PRELOAD"),
        };
        if is_stopped_while_it_waits(who.kind) {
            // A terminal's signal to go on is not for those that wait.
            command.process_group(0);
        }
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let (asks, answers) = match (child.stdin.take(), child.stdout.take()) {
            (Some(asks), Some(answers)) => (asks, answers),
            (_, _) => return Err(failed("it has no pipes".into())),
        };
        let mut process = Self {
            who,
            child,
            asks: Some(asks),
            answers: BufReader::new(answers),
            stopped: false,
        };
        match process.ask(&Ask::Open(setup.clone()))? {
            Answer::Done => Ok(process),
            other => Err(process.unexpected(&other)),
        }
    }

    /// Who it is.
    #[must_use]
    pub fn who(&self) -> Contender {
        self.who
    }

    /// Fills the store.
    ///
    /// # Errors
    /// The contestant refused or died.
    pub fn load(&mut self, plan: &LoadPlan) -> Result<Loaded, ExperimentError> {
        match self.ask(&Ask::Load(plan.clone()))? {
            Answer::Loaded(loaded) => Ok(loaded),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Runs random operations for a time.
    ///
    /// # Errors
    /// The contestant refused, gave a wrong value, or died.
    pub fn run(&mut self, plan: &RunPlan) -> Result<Ran, ExperimentError> {
        match self.ask(&Ask::Run(plan.clone()))? {
            Answer::Ran(ran) => Ok(ran),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Runs a stream of operations to its end.
    ///
    /// # Errors
    /// The contestant refused, gave a wrong value, or died.
    pub fn replay(&mut self, plan: &ReplayPlan) -> Result<Replayed, ExperimentError> {
        match self.ask(&Ask::Replay(plan.clone()))? {
            Answer::Replayed(replayed) => Ok(replayed),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Spins without doing anything: what the machine itself does to latency.
    ///
    /// # Errors
    /// The contestant died.
    pub fn idle(&mut self, plan: &IdlePlan) -> Result<Idle, ExperimentError> {
        match self.ask(&Ask::Idle(plan.clone()))? {
            Answer::Idle(idle) => Ok(idle),
            other => Err(self.unexpected(&other)),
        }
    }

    /// What it holds.
    ///
    /// # Errors
    /// The contestant died.
    pub fn holdings(&mut self) -> Result<Holdings, ExperimentError> {
        match self.ask(&Ask::Holdings)? {
            Answer::Holdings(holdings) => Ok(holdings),
            other => Err(self.unexpected(&other)),
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer, ExperimentError> {
        let answer = self
            .exchange(ask)
            .map_err(|problem| ExperimentError::Process {
                contestant: self.who.to_string(),
                problem,
            })?;
        match answer {
            Answer::Failed(problem) => Err(ExperimentError::Contestant {
                contestant: self.who.to_string(),
                problem,
            }),
            other => Ok(other),
        }
    }

    fn exchange(&mut self, ask: &Ask) -> Result<Answer, String> {
        let text = serde_json::to_string(ask).map_err(|error| error.to_string())?;
        self.go_on()?;
        let asks = self.asks.as_mut().ok_or("it was told to go")?;
        writeln!(asks, "{text}").map_err(|error| error.to_string())?;
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(match self.child.wait() {
                Ok(status) => format!("ended with {status}"),
                Err(error) => error.to_string(),
            }),
            Ok(_) => {
                self.stop()?;
                serde_json::from_str(&line).map_err(|error| format!("{error} in {line:?}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// After an answer: it has not ended, or is not waited for yet, so that the number is still its
    /// own.
    fn stop(&mut self) -> Result<(), String> {
        if is_stopped_while_it_waits(self.who.kind) {
            self.signal(Signal::STOP)?;
            self.stopped = true;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), String> {
        if self.stopped {
            self.signal(Signal::CONT)?;
            self.stopped = false;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let sent = kill_process(Pid::from_child(&self.child), signal);
        sent.map_err(|error| format!("cannot be sent {signal:?}: {error}"))
    }

    fn unexpected(&self, answer: &Answer) -> ExperimentError {
        ExperimentError::Process {
            contestant: self.who.to_string(),
            problem: format!("answered {answer:?}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closed input asks it to go; servers it started go with it. One that cannot be told to go
        // on is gone.
        let _went_on = self.go_on();
        drop(self.asks.take());
        let _reaped = self.child.wait();
    }
}
