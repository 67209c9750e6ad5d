//! One child process that announces itself when it is ready.

use crate::announcement::Announcement;
use crate::options::{METADATA_PASSWORD, REDIS_PASSWORD};
use crate::program::Program;
use pluvio_console::failure::Failure;
use pluvio_console::output::say;
use pluvio_env::{Clock, timeout};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

/// How much of a trace file is searched for the reason of a death.
const TRACE_TAIL: u64 = 16 << 10;

/// A child process. Killed when dropped.
pub struct Child {
    name: String,
    process: tokio::process::Child,
    pid: u32,
    output: Lines<BufReader<ChildStdout>>,
    trace: Option<PathBuf>,
    /// Set once it is ready.
    announced: Option<Announcement>,
}

impl Child {
    /// Starts `pluvio` with these arguments; by another program that becomes it, when `through`
    /// names one. Traces go to `trace`, or to this process's standard error.
    ///
    /// # Errors
    /// The process or the trace file cannot be created.
    pub fn start(
        program: &Program,
        through: &[OsString],
        name: &str,
        arguments: &[OsString],
        trace: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let stderr = match &trace {
            None => Stdio::inherit(),
            Some(path) => {
                Stdio::from(open_trace(path).map_err(|error| Failure::file(path, &error))?)
            }
        };
        let mut command = match through {
            [] => {
                let mut command = Command::new(program.path());
                command.arg0("pluvio");
                command
            }
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program.path_for_all());
                command
            }
        };
        command
            .args(arguments)
            .arg("--parent")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C goes to this process alone, which then stops its children in order.
            .process_group(0)
            .kill_on_drop(true);
        // Its options are those it is given, not those meant for this process; but a password is
        // never given as an option.
        for (variable, _) in std::env::vars_os() {
            let is_password = variable == METADATA_PASSWORD || variable == REDIS_PASSWORD;
            if variable.to_string_lossy().starts_with("PLUVIO_") && !is_password {
                command.env_remove(variable);
            }
        }
        let fail = |error: io::Error| {
            Failure::new(format!(
                "cannot start {name} ({}): {error}",
                program.path().display()
            ))
        };
        let mut process = command.spawn().map_err(fail)?;
        let gone = || fail(io::Error::other("it ended at once"));
        let pid = process.id().ok_or_else(gone)?;
        let output = process.stdout.take().ok_or_else(gone)?;
        Ok(Self {
            name: name.to_owned(),
            process,
            pid,
            output: BufReader::new(output).lines(),
            trace,
            announced: None,
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it announced; `None` before.
    pub fn announced(&self) -> Option<&Announcement> {
        self.announced.as_ref()
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// It ended instead; the message holds its own reason.
    pub async fn ready(&mut self) -> Result<&Announcement, Failure> {
        while self.announced.is_none() {
            match self.output.next_line().await {
                Ok(Some(line)) => self.announced = serde_json::from_str(&line).ok(),
                Ok(None) | Err(_) => {
                    let status = self.ended().await;
                    return Err(Failure::new(format!(
                        "{} did not start: {}",
                        self.name,
                        self.reason(status)
                    )));
                }
            }
        }
        Ok(self
            .announced
            .as_ref()
            .expect("the loop above ends only then"))
    }

    /// Waits for its end; `None` when the kernel does not tell how it ended.
    pub async fn ended(&mut self) -> Option<ExitStatus> {
        self.process.wait().await.ok()
    }

    /// Why it ended, for people: its own last words if it has any.
    pub fn reason(&self, status: Option<ExitStatus>) -> String {
        let how = status.map_or_else(|| "it ended".to_owned(), |status| status.to_string());
        let Some(trace) = &self.trace else { return how };
        match last_error(trace) {
            Some(words) => words,
            None => format!("{how}; its trace is {}", trace.display()),
        }
    }

    /// Kills it (SIGKILL), as a power loss of its machine would.
    pub fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.process.start_kill();
    }

    /// Sends it a signal; whether it got it, and had not ended by itself.
    pub fn signal(&self, signal: Signal) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        match pid {
            // The id is still the child's: it was not waited for.
            Some(pid) if self.process.id().is_some() => kill_process(pid, signal).is_ok(),
            _ => false,
        }
    }

    /// Asks it to end at once, and kills it when it has not after `limit`. After SIGTERM a server
    /// would first move its tablets to others, but those are stopped, too.
    pub async fn stop(&mut self, clock: &dyn Clock, limit: Duration) {
        // It may have ended by itself; then there is nothing to do.
        self.signal(Signal::INT);
        if timeout(clock, limit, self.ended()).await.is_err() {
            say(format_args!(
                "{} did not stop within {limit:?} and is killed",
                self.name
            ));
            self.kill();
            self.ended().await;
        }
    }
}

fn open_trace(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    File::options().create(true).append(true).open(path)
}

/// The last line of a trace that begins with `error: `.
fn last_error(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TRACE_TAIL)))
        .ok()?;
    let mut text = Vec::new();
    file.take(TRACE_TAIL).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let words = text.lines().last()?.strip_prefix("error: ")?;
    Some(words.to_owned())
}
