//! Why a call on spans and spaces failed, and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// The result of a call of this crate.
pub type Result<T> = std::result::Result<T, SpaceError>;

/// Why a call failed. Unless a variant says otherwise, nothing was changed and a retry gives the
/// same answer until the cause is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// The name has a form that no span or space may have.
    #[error(
        "`{0}` is no name: use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter, a digit, `_` or `-`"
    )]
    BadName(String),
    /// A length or an address cannot be used.
    #[error("{0}")]
    BadRange(String),
    /// The name is taken.
    #[error("the {what} `{name}` exists; choose another name, or destroy it first")]
    Exists {
        /// "span" or "space".
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Nothing has this name.
    #[error("there is no {what} `{name}` in {}", root.display())]
    NotFound {
        /// "span" or "space".
        what: &'static str,
        /// The name.
        name: String,
        /// The registry.
        root: PathBuf,
    },
    /// The file system gives this user no such right.
    #[error("no right to {doing} {}; ask its owner (chmod, setfacl)", path.display())]
    Denied {
        /// For example "read".
        doing: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The file system is full. A change of a heap that meets it is taken back.
    #[error("no room to {doing} {}; make room, or use a larger file system", path.display())]
    NoSpace {
        /// For example "reserve the memory of".
        doing: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The addresses belong to another span.
    #[error("the addresses of `{name}` overlap those of `{other}`; choose another base")]
    RangeTaken {
        /// The span, or the space, that was asked for.
        name: String,
        /// The span that has them.
        other: String,
    },
    /// Something else of this process lies at the span's addresses.
    #[error("`{name}` cannot be mapped at {base:#x}: {why}")]
    Conflict {
        /// The span.
        name: String,
        /// Its first address.
        base: u64,
        /// What is in the way.
        why: &'static str,
    },
    /// The file was written by another version of this crate.
    #[error("{} has format {found}, and this program knows {known}", path.display())]
    WrongVersion {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format of this program.
        known: u32,
    },
    /// The root of the heap has another type, or the type has another layout in this program.
    #[error(
        "the root of `{name}` is no `{asked}` of this program: layout {found:016x} instead of {wanted:016x}; build both programs from the same types, or clear the span"
    )]
    WrongLayout {
        /// The span.
        name: String,
        /// The type asked for.
        asked: &'static str,
        /// The layout in the file.
        found: u64,
        /// The layout of the type asked for.
        wanted: u64,
    },
    /// The file was changed by something else than this crate.
    #[error("{} is damaged: {why}; destroy it, or bring it back from a copy", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The span that the space lists is gone; its name may have been given to another one.
    #[error(
        "the space `{space}` lists a span `{span}` that was destroyed; remove it from the space"
    )]
    Gone {
        /// The space.
        space: String,
        /// The span.
        span: String,
    },
    /// Spaces list the span.
    #[error("`{span}` is listed by the space `{space}`; remove it there first")]
    InUse {
        /// The span.
        span: String,
        /// One space that lists it.
        space: String,
    },
    /// Another thread or process is inside. Retryable.
    #[error("`{0}` is locked by another thread or process")]
    WouldBlock(String),
    /// Another thread or process was inside for all the time given. Retryable.
    #[error("`{0}` was locked by another thread or process for all the time given")]
    TimedOut(String),
    /// The thread is inside a space that holds locks. Waiting for more locks could be for ever.
    #[error("this thread is inside a space already; leave it first, or use try_enter")]
    Nested,
    /// The span has grown since it was attached.
    #[error("`{0}` has changed since it was attached; detach the space and attach it again")]
    Stale(String),
    /// A process died after it had decided a change and before it had written all of it. A program
    /// that may write the span finishes that by entering.
    #[error(
        "a process died while it wrote `{0}`; it is whole again when a program that may write it has entered"
    )]
    Unfinished(String),
    /// A process died while it was inside for writing. The words may be half of a change. A program
    /// that may write the span sees to that by [`Space::recover`](crate::Space::recover).
    #[error("a process died while it changed `{0}`; look at the words, and recover the span")]
    Poisoned(String),
    /// As many processes have the span attached as a robust lock has places for. Retryable.
    #[error("`{0}` is attached by 255 processes, and its lock has no place for one more")]
    Crowded(String),
    /// The heap has no room for the block. A user who may write the file can let it grow.
    #[error("the heap is full: no room for {bytes} bytes; let the span grow")]
    Full {
        /// The size of the block.
        bytes: u64,
    },
    /// The span was attached, or entered, for reading.
    #[error("`{0}` is attached or entered for reading only")]
    NotWritable(String),
    /// The space has no such span.
    #[error("the space has no span `{0}`")]
    NotAttached(String),
    /// The span is of the other kind: a heap, or words.
    #[error("`{name}` holds {is}, and {asked} were asked for")]
    WrongKind {
        /// The span.
        name: String,
        /// Its kind.
        is: &'static str,
        /// The kind asked for.
        asked: &'static str,
    },
    /// The heap has no root yet.
    #[error("the heap of `{0}` has no root yet; give it one with init")]
    NoRoot(String),
    /// The heap has a root.
    #[error("the heap of `{0}` has a root")]
    RootExists(String),
    /// The program wants its change taken back. It was.
    #[error("the change was given up: {0}")]
    GivenUp(String),
    /// A worker is a fork of this process, which has more threads than one. Retryable when they
    /// have ended.
    #[error("this process has {0} threads; start workers while it has one, early in main")]
    Threads(usize),
    /// The worker has died. The call may have been done, in part if it was of several changes. All
    /// later calls give this error as well.
    #[error("the worker of `{space}` has died: {how}; start another one")]
    WorkerDied {
        /// Its space.
        space: String,
        /// How it died.
        how: String,
    },
    /// The worker was busy with an earlier call for all the time given. Nothing was called.
    /// Retryable.
    #[error("the worker of `{0}` was busy with another call for all the time given")]
    WorkerBusy(String),
    /// The worker has not answered in the time given. The call goes on, and nobody will see its
    /// answer.
    #[error("the worker of `{0}` has not answered in the time given; the call goes on")]
    WorkerLate(String),
    /// The function that a worker was to call has panicked. The worker goes on.
    #[error("a function has panicked in a worker: {0}")]
    WorkerPanicked(String),
    /// A worker's call, or its start, has failed. This is the text of the worker's error, of a kind
    /// that holds more than a text.
    #[error("{0}")]
    WorkerFailed(String),
    /// The system refused a call.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// For example "map".
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Errors that consist of a text reach another process as they are.
macro_rules! told {
    ($($number:literal $variant:ident),*) => {
        /// A number and a text for another process of this program.
        pub(crate) fn tell(&self) -> (u32, String) {
            match self {
                $(Self::$variant(text) => ($number, text.clone()),)*
                Self::Nested => (u32::MAX, String::new()),
                other => (0, other.to_string()),
            }
        }

        /// What another process has told.
        pub(crate) fn told((number, text): (u32, String)) -> Self {
            match number {
                $($number => Self::$variant(text),)*
                u32::MAX => Self::Nested,
                _ => Self::WorkerFailed(text),
            }
        }
    };
}

impl SpaceError {
    /// The error of a system call on `path`.
    pub(crate) fn of(doing: &'static str, path: &Path, errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        let path = path.to_owned();
        match errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied { doing, path },
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::NoSpace { doing, path },
            _ => Self::System {
                doing,
                path,
                source: errno.into(),
            },
        }
    }

    told!(
        1 BadName, 2 BadRange, 3 WouldBlock, 4 TimedOut, 5 Stale, 6 Unfinished, 7 Poisoned,
        8 Crowded, 9 NotWritable, 10 NotAttached, 11 NoRoot, 12 RootExists, 13 GivenUp,
        14 WorkerPanicked
    );

    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            why: why.into(),
        }
    }
}
