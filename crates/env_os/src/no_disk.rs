//! The disk of a process that has none.

use pluvio_env::{BoxFuture, Disk, DiskError, File, OpenMode};
use std::sync::Arc;

/// For pure clients: every operation fails with a message that says so.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoDisk;

fn refuse<T: Send + 'static>(path: &str) -> BoxFuture<'static, Result<T, DiskError>> {
    let error = DiskError::Other {
        path: path.to_owned(),
        message: "this process was started without a data directory".to_owned(),
    };
    Box::pin(core::future::ready(Err(error)))
}

impl Disk for NoDisk {
    fn open(&self, path: &str, _mode: OpenMode) -> BoxFuture<'_, Result<Arc<dyn File>, DiskError>> {
        refuse(path)
    }
    fn remove(&self, path: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        refuse(path)
    }
    fn rename(&self, from: &str, _to: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        refuse(from)
    }
    fn list(&self, directory: &str) -> BoxFuture<'_, Result<Vec<String>, DiskError>> {
        refuse(directory)
    }
    fn sync_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        refuse(directory)
    }
    fn boot(&self) -> u64 {
        0
    }
}
