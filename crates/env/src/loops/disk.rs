//! Files of one data directory.

use crate::BoxFuture;
use bytes::Bytes;
use std::sync::Arc;

/// The reasons why an operation on a file fails.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// No such file. Not retryable.
    #[error("{path}: no such file")]
    NotFound {
        /// The file's path below the data directory.
        path: String,
    },
    /// The file system, or a quota, is full. Retryable once room was made; the data of the failed
    /// write may be there in part.
    #[error("{path}: no space left on the device")]
    Full {
        /// The file's path below the data directory.
        path: String,
    },
    /// The data directory is used by another process. Not retryable until that process ends.
    #[error("{path}: the data directory is in use by another process")]
    InUse {
        /// The data directory.
        path: String,
    },
    /// The process, or the machine, may open no more files. Retryable; nothing was changed.
    #[error("{path}: too many open files; raise the limit (ulimit -n, LimitNOFILE=)")]
    TooManyFiles {
        /// The file's path below the data directory.
        path: String,
    },
    /// The path of a directory leads to another one by now, or to none; open files go on working.
    /// Not retryable until it is back.
    #[error(
        "{path}: the directory is not there any more; was it removed or moved, or its device unmounted?"
    )]
    Gone {
        /// The directory.
        path: String,
    },
    /// Anything else, for example a device error or missing rights. Not retryable.
    #[error("{path}: {message}")]
    Other {
        /// The file's path below the data directory.
        path: String,
        /// The operating system's words.
        message: String,
    },
}

/// How to open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Must exist.
    Existing,
    /// Must not exist; created empty.
    New,
    /// Created empty when it does not exist.
    Create,
}

/// A file, and the path that should lead to it.
#[derive(Clone)]
pub struct FileAt {
    /// Below the data directory.
    pub path: String,
    /// The file, if it is open. Otherwise any file will do.
    pub open: Option<Arc<dyn File>>,
}

/// Flat names (`frames/00000001`) below one data directory, which the process holds alone.
/// Directories come and go with the files in them.
pub trait Disk: Send + Sync {
    /// Opens a file for reading and writing.
    fn open(&self, path: &str, mode: OpenMode) -> BoxFuture<'_, Result<Arc<dyn File>, DiskError>>;
    /// Removes a file; open handles stay usable. Removing a missing file succeeds.
    fn remove(&self, path: &str) -> BoxFuture<'_, Result<(), DiskError>>;
    /// Replaces `to` by `from` in one step.
    fn rename(&self, from: &str, to: &str) -> BoxFuture<'_, Result<(), DiskError>>;
    /// Names of all files in a directory, sorted, without the directory; empty when there is none.
    fn list(&self, directory: &str) -> BoxFuture<'_, Result<Vec<String>, DiskError>>;
    /// Makes creations, removals and renames in `directory` survive a power loss. Once this has
    /// failed for a directory, it fails for as long as the process runs. The changes that the
    /// failed call should have covered may be lost, and a later call could not tell.
    fn sync_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>>;
    /// Whether `directory` is the one that the first call for it found, or made.
    ///
    /// # Errors
    /// [`DiskError::Gone`] when another one has its name by now, or that of the data directory, or
    /// none has. Or the file system refuses.
    fn same_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let _always = directory;
        Box::pin(core::future::ready(Ok(())))
    }
    /// Which of these files, by number, are not at their paths: nothing is there, or another file
    /// than the open one. Writes to an open file tell nothing of that. It looks at each file once,
    /// on a thread that may block.
    ///
    /// # Errors
    /// The file system refuses: then nothing is known of any.
    fn misplaced(&self, files: Vec<FileAt>) -> BoxFuture<'_, Result<Vec<usize>, DiskError>> {
        let _none = files;
        Box::pin(core::future::ready(Ok(Vec::new())))
    }
    /// Bytes that the file system has left for this process; `None` if it does not say.
    fn room(&self) -> BoxFuture<'_, Option<u64>> {
        Box::pin(core::future::ready(None))
    }
    /// The number of this start of the machine, which no other start has; 0 if it is unknown. Data
    /// written in an earlier start and never synced may be missing, in whole or in its newest part.
    fn boot(&self) -> u64;
}

/// An open file. Positions are absolute; concurrent calls are allowed where ranges do not overlap.
pub trait File: Send + Sync {
    /// Reads exactly `length` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>>;
    /// Writes all of `data` at `offset`, growing the file. When it returns, the data is with the
    /// operating system: it survives the death of the process, not a power loss.
    fn write_at(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DiskError>>;
    /// Writes `first` at `offset` and `second` behind it, as one write.
    fn write_both_at(
        &self,
        offset: u64,
        first: Bytes,
        second: Bytes,
    ) -> BoxFuture<'_, Result<(), DiskError>>;
    /// As [`File::write_both_at`], before this returns. `None` when that would have to wait: then
    /// some of it may be written, and the same is to be written by [`File::write_both_at`].
    fn write_both_now(
        &self,
        offset: u64,
        first: &[u8],
        second: &[u8],
    ) -> Option<Result<(), DiskError>> {
        let _waits = (offset, first, second);
        None
    }
    /// Makes everything written before the call survive a power loss.
    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>>;
    /// A device and a number on it, which no other file has while this one is open. `None` if that
    /// is unknown. The file system is asked before this returns: not for event loops.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }
    /// The file's length in bytes.
    fn size(&self) -> BoxFuture<'_, Result<u64, DiskError>>;
}
