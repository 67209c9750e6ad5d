//! The file of the embedded store, before the store has it.
//!
//! A new file gets its name when it is whole and on the device. An empty one with that name is therefore never what a first start
//! left that was interrupted, but the trace of something else that went wrong, and begins no new cluster.

use pluvio_coordinator::{RedbStore, StoreError};
use pluvio_env::Tasks;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The file, below the store's directory.
const FILE: &str = "metadata.redb";
/// The file until it is whole.
const FILE_NEW: &str = "metadata.redb.new";

const EMPTY: &str = "the file is empty, as after a copy that failed; restore a backup of it, or, if it never held a cluster, \
     remove it to begin a new one";
const DIRECTORY: &str =
    "a directory stands where a file belongs; move it away or choose another data directory";
const DANGLING: &str = "it is a symbolic link to something that is not there; is a device not mounted? Make what it points to \
     accessible, or remove the link to begin a new cluster";

/// Opens the store in `directory`, or begins one where no file is. Blocks on the disk.
///
/// # Errors
/// The file is in use by another process, is something else, is empty, or cannot be read or created.
pub(crate) fn open(directory: &Path, tasks: &Arc<dyn Tasks>) -> Result<RedbStore, StoreError> {
    let file = directory.join(FILE);
    let refuse = |why: &str| Err(StoreError(format!("{}: {why}", file.display())));
    match fs::metadata(&file) {
        Ok(there) if there.is_dir() => return refuse(DIRECTORY),
        Ok(there) if there.len() == 0 => return refuse(EMPTY),
        Ok(_) => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return refuse(&error.to_string());
        }
        Err(_) if file.is_symlink() => return refuse(DANGLING),
        Err(_) => begin(directory, tasks)?,
    }
    RedbStore::open(file, Arc::clone(tasks))
}

/// Makes an empty store under another name, and gives it its own when it is on the device.
fn begin(directory: &Path, tasks: &Arc<dyn Tasks>) -> Result<(), StoreError> {
    let new = directory.join(FILE_NEW);
    let fail = |error: io::Error| StoreError(format!("{}: {error}", new.display()));
    // A start that was interrupted has left it; there is nothing in it.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        Ok(()) | Err(_) => {}
    }
    drop(RedbStore::open(&new, Arc::clone(tasks))?);
    fs::rename(&new, directory.join(FILE)).map_err(fail)?;
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(fail)
}
