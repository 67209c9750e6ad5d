//! How a command fails: one line that says what happened and what to do, and an exit code.

use crate::output::say;
use pluvio_client::{ClientError, ErrorKind, RetryReason};
use pluvio_env::DiskError;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Something went wrong: exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 1,
        }
    }

    /// The command was used wrongly: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 2,
        }
    }

    /// Nobody reads the output any more: nothing is said.
    pub fn silent() -> Self {
        Self::new("")
    }

    /// Whether it is that nobody reads the output any more.
    pub fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// A file of the user's cannot be used.
    pub fn file(path: &Path, error: &io::Error) -> Self {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "; check the path",
            io::ErrorKind::PermissionDenied => "; check the rights of this user",
            io::ErrorKind::StorageFull => "; make room or choose another place",
            _ => "",
        };
        Self::new(format!("{}: {error}{advice}", path.display()))
    }

    /// Says it on standard error, on one line, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            say(format_args!("error: {}", self.message.replace('\n', " ")));
        }
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let advice = match error.kind() {
            ErrorKind::TimedOut => match error.retry_reason() {
                Some(RetryReason::TooFewBackups) => "; start more servers, or see `pluvio status`",
                Some(RetryReason::MemoryFull) => "",
                Some(RetryReason::NotLeader) => {
                    ", and no leader that it knows of answers; give --coordinator the addresses of all coordinators, with commas"
                }
                Some(_) => "; see `pluvio status`",
                None => "; is the cluster running, and is --coordinator right? See `pluvio status`",
            },
            ErrorKind::NoSuchTable => "; see `pluvio table list`",
            ErrorKind::Protocol => "; use the version of pluvio that the cluster has",
            _ => "",
        };
        Self::new(format!("{error}{advice}"))
    }
}

impl From<DiskError> for Failure {
    fn from(error: DiskError) -> Self {
        let advice = match &error {
            DiskError::InUse { .. } => "; stop that process or choose another directory",
            DiskError::Full { .. } => "; make room or choose another directory",
            DiskError::Gone { .. } => "; bring it back and start the process again",
            DiskError::NotFound { .. } | DiskError::Other { .. } => "",
            _ => "",
        };
        Self::new(format!("data directory {error}{advice}"))
    }
}

impl From<io::Error> for Failure {
    /// For standard output: a closed pipe is how `pluvio scan | head` ends.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::silent(),
            _ => Self::new(format!("cannot write the output: {error}")),
        }
    }
}
