//! Running other programs: line by line, or with a time limit.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Real time, for what a step took.
#[allow(
    clippy::disallowed_methods,
    reason = "reports how long real work took; nothing is decided by it"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Runs `command`, prints its standard output as it comes and shows each line to `see`.
/// Gives whether it succeeded.
///
/// # Errors
/// It cannot be started.
pub fn run_seen(command: &mut Command, mut see: impl FnMut(&str)) -> Result<bool> {
    let mut child = start(command.stdout(Stdio::piped()))?;
    let stdout = child.stdout.take().context("standard output was piped")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        see(&line);
    }
    Ok(child.wait()?.success())
}

/// How a program ended that ran with a limit.
pub struct Outcome {
    /// Whether it ended in time and with success.
    pub success: bool,
    /// Whether it was ended because its time was over.
    pub timed_out: bool,
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output, then standard error.
    pub text: String,
}

/// Runs `command` quietly for at most `limit`.
///
/// # Errors
/// It cannot be started.
pub fn run_limited(command: &mut Command, limit: Duration) -> Result<Outcome> {
    let mut child = start(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )?;
    let stdout = child.stdout.take().context("standard output was piped")?;
    let stderr = child.stderr.take().context("standard error was piped")?;
    let (ended, end) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // The sender falls with the reader: the program ended or closed its output.
        let out = scope.spawn(move || {
            let text = read_all(stdout);
            drop(ended);
            text
        });
        let err = scope.spawn(move || read_all(stderr));
        let timed_out = end.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if timed_out {
            child
                .kill()
                .context("cannot end a program that overran its time")?;
        }
        let status = child.wait()?;
        let out = out.join().unwrap_or_default();
        let err = err.join().unwrap_or_default();
        Ok(Outcome {
            success: status.success() && !timed_out,
            timed_out,
            code: status.code(),
            text: format!("{out}{err}"),
        })
    })
}

/// Runs `command` with its output where ours goes; whether it succeeded. Not there is a failure.
pub fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Like [`succeeds`], without a word.
pub fn succeeds_quietly(command: &mut Command) -> bool {
    succeeds(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )
}

fn start(command: &mut Command) -> Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // A broken pipe ends the text; the program's exit status says the rest.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_failure_are_seen() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; exit 3"]);
        let outcome = run_limited(&mut command, Duration::from_secs(60)).expect("sh runs");
        assert!(!outcome.success && !outcome.timed_out);
        assert_eq!(outcome.text, "a\nb\n");
    }

    #[test]
    fn a_program_that_overruns_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 600"]);
        let outcome = run_limited(&mut command, Duration::from_millis(50)).expect("sh runs");
        assert!(outcome.timed_out && !outcome.success);
    }
}
