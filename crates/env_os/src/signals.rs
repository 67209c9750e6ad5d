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
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// Receives SIGINT and SIGTERM in place of the kernel's default, which kills the process. From
/// its creation on the process must watch it: the default does not come back when it is dropped.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
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
        })
    }

    /// Waits for the next one. Can be called again, for those who press Ctrl-C twice.
    pub async fn next(&mut self) -> StopSignal {
        core::future::poll_fn(|cx| {
            if self.interrupt.poll_recv(cx).is_ready() {
                Poll::Ready(StopSignal::Interrupt)
            } else if self.terminate.poll_recv(cx).is_ready() {
                Poll::Ready(StopSignal::Terminate)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}
