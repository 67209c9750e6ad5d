//! The binary as a process: run to its end, or left running.

use super::patience::{Deadline, LONG, pause};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// Where the binary is, in this order: where `PLUVIO_BINARY` says, where cargo built it for these
/// tests, or beside the laboratory's binary that cargo built.
pub fn binary() -> PathBuf {
    if let Some(given) = std::env::var_os("PLUVIO_BINARY") {
        return PathBuf::from(given);
    }
    if let Some(built) = option_env!("CARGO_BIN_EXE_pluvio") {
        return PathBuf::from(built);
    }
    static BESIDE: OnceLock<PathBuf> = OnceLock::new();
    let laboratory = option_env!("CARGO_BIN_EXE_pluvio-lab");
    let beside = || fresh(&Path::new(laboratory?).with_file_name("pluvio"));
    let beside = BESIDE.get_or_init(|| beside().expect("PLUVIO_BINARY says where the binary is"));
    beside.clone()
}

/// A binary of another package, which cargo does not build for these tests: it must be there, and
/// not be older than its sources.
fn fresh(binary: &Path) -> Option<PathBuf> {
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let again = "`cargo build -p pluvio`, with the profile of these tests, makes it";
    let shown = binary.display();
    let built = modified(binary).unwrap_or_else(|| panic!("{shown} is missing; {again}"));
    // Cargo writes beside it what it was built from.
    let list = std::fs::read_to_string(binary.with_extension("d")).unwrap_or_default();
    let sources = list.split_once(": ").map_or("", |(_, sources)| sources);
    for source in sources.split_whitespace().map(Path::new) {
        let newer = modified(source).is_some_and(|modified| modified > built);
        assert!(
            !newer,
            "{shown} is older than {}; {again}",
            source.display()
        );
    }
    Some(binary.to_owned())
}

/// The binary with nothing of our environment that it would listen to.
pub fn command() -> Command {
    command_through(binary())
}

/// The same of a program that starts the binary.
pub fn command_through(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("PLUVIO_") || name.starts_with("OTEL_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// How a program ended.
#[derive(Debug)]
pub struct Output {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
    /// What was run.
    line: String,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Checks for success.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(
            self.code,
            Some(0),
            "{}\n{}{}",
            self.line,
            self.text(),
            self.stderr
        );
        self
    }

    /// Checks for success and gives the JSON on standard output.
    #[track_caller]
    pub fn json(self) -> Value {
        let this = self.ok();
        serde_json::from_slice(&this.stdout)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", this.line, this.text()))
    }

    /// Checks for this exit code and that the last line on standard error is an error which has
    /// all these words; gives that line.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> String {
        let shown = format!("{}\n{}{}", self.line, self.text(), self.stderr);
        assert_eq!(self.code, Some(code), "{shown}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in: {shown}");
        }
        assert!(!self.stderr.contains("panicked"), "{shown}");
        self.stderr
    }
}

/// Runs the binary to its end.
#[track_caller]
pub fn pluvio<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    run(command().args(arguments), b"")
}

/// Runs `command` with `input` on standard input, to its end, which must come within [`LONG`].
#[track_caller]
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    let line = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let stdout = child.stdout.take().unwrap();
    let stderr = child.stderr.take().unwrap();
    thread::scope(|scope| {
        let out = scope.spawn(move || read_all(stdout));
        let err = scope.spawn(move || read_all(stderr));
        scope.spawn(move || {
            // A program that does not read its input closes it, which is its own affair.
            let _ = stdin.write_all(input);
        });
        let status = wait(&mut child, 3 * LONG);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let output = Output {
            code: status.and_then(|status| status.code()),
            stdout: out.join().unwrap(),
            stderr: String::from_utf8_lossy(&err.join().unwrap()).into_owned(),
            line,
        };
        assert!(status.is_some(), "does not end: {output:?}");
        output
    })
}

fn read_all(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Deadline::after(limit);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if deadline.over() {
            return None;
        }
        pause(Duration::from_millis(2));
    }
}

/// Sends a signal; a process that is gone already is no error.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may be gone already.
    let _ = kill_process(pid.expect("a process id"), signal);
}

/// Whether a process runs whose command line has `words`.
pub fn runs(pid: u32, words: &str) -> bool {
    // A process that has ended but was not collected yet has an empty command line.
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| String::from_utf8_lossy(&line).contains(words))
}

/// A process left running. Killed and collected when dropped.
pub struct Running {
    child: Child,
    /// Behind a lock, so that threads can share the rest.
    lines: Mutex<Receiver<String>>,
    stderr: Arc<Mutex<String>>,
    line: String,
}

impl Running {
    /// Starts the binary.
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::spawn(command().args(arguments))
    }

    /// Starts `command`.
    pub fn spawn(command: &mut Command) -> Self {
        let line = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        let (give, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let reading = thread::Builder::new().spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Nobody may care for more lines.
                let _ = give.send(line);
            }
        });
        reading.unwrap();
        let stderr = Arc::<Mutex<String>>::default();
        let (from, into) = (child.stderr.take().unwrap(), Arc::clone(&stderr));
        let reading = thread::Builder::new().spawn(move || {
            for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
                let mut text = into.lock().unwrap();
                text.push_str(&String::from_utf8_lossy(&line));
                text.push('\n');
            }
        });
        reading.unwrap();
        Self {
            child,
            lines: Mutex::new(lines),
            stderr,
            line,
        }
    }

    /// The line of JSON that says that it is ready.
    #[track_caller]
    pub fn ready(&mut self) -> Value {
        let line = self.lines.get_mut().unwrap().recv_timeout(LONG);
        let Ok(line) = line else {
            let ended = self.child.try_wait();
            panic!("{} is not ready ({ended:?}): {}", self.line, self.stderr());
        };
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{}: {error}: {line}", self.line));
        assert_eq!(ready["ready"], true, "{line}");
        ready
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard error.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end, and waits until it has; gives the exit code.
    #[track_caller]
    pub fn stop(&mut self) -> Option<i32> {
        signal(self.pid(), Signal::TERM);
        self.wait_end()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended by itself; gives the exit code.
    #[track_caller]
    pub fn wait_end(&mut self) -> Option<i32> {
        match wait(&mut self.child, LONG) {
            Some(status) => status.code(),
            None => panic!("{} does not end: {}", self.line, self.stderr()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
