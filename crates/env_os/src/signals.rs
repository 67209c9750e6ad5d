//! The signals that ask a process to stop.

use core::fmt;
use core::task::Poll;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Which signal asked the process to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopSignal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: the service manager.
    Terminate,
    /// SIGHUP: the terminal was closed.
    HangUp,
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::HangUp => "SIGHUP",
        })
    }
}

/// Receives SIGINT, SIGTERM and SIGHUP in place of the kernel's default, which kills the process.
/// From its creation on the process must watch it: the default does not come back when it is
/// dropped. A SIGHUP that the process was started to ignore (`nohup`) stays ignored.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl StopSignals {
    /// Begins to receive. Must be called on an event loop (inside `OsRuntime::block_on`).
    ///
    /// # Errors
    /// The kernel refuses. Not retryable.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: if is_hang_up_ignored() {
                None
            } else {
                Some(signal(SignalKind::hangup())?)
            },
        })
    }

    /// Waits for the next one. Can be called again, for those who press Ctrl-C twice.
    pub async fn next(&mut self) -> StopSignal {
        core::future::poll_fn(|cx| {
            if self.interrupt.poll_recv(cx).is_ready() {
                Poll::Ready(StopSignal::Interrupt)
            } else if self.terminate.poll_recv(cx).is_ready() {
                Poll::Ready(StopSignal::Terminate)
            } else if let Some(hang_up) = &mut self.hang_up
                && hang_up.poll_recv(cx).is_ready()
            {
                Poll::Ready(StopSignal::HangUp)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

/// Whether SIGHUP is ignored, as the kernel shows it: `SigIgn:` and a mask whose lowest bit is
/// signal 1. Unknown counts as not ignored.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}
