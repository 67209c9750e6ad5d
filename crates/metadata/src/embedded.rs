//! The file of the embedded store, while the store does not have it open.
//!
//! A new file gets its name when it is whole and on the device. An interrupted first start
//! therefore never leaves an empty file with that name. Such a file is the trace of another fault,
//! and begins no new cluster.
//!
//! Before the store opens the file, at the start and after an error, all of it is written again and
//! synced (`settle`).

use pluvio_coordinator::{FileDoor, RedbStore, StoreError};
use pluvio_env::Tasks;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// The file's name below the store's directory.
const FILE: &str = "metadata.redb";
/// The file's name until it is whole.
const FILE_NEW: &str = "metadata.redb.new";
/// Bytes that are written again at a time: a page of redb, the unit that a file has or lacks.
const PIECE_BYTES: usize = 4096;

const EMPTY: &str = "the file is empty, as after a copy that failed; restore a backup of it, or, if it never held a cluster, \
     remove it to begin a new one";
const DIRECTORY: &str =
    "a directory stands where a file belongs; move it away or choose another data directory";
const DANGLING: &str = "it is a symbolic link to something that is not there; is a device not mounted? Make what it points to \
     accessible, or remove the link to begin a new cluster";

const IN_USE: &str = "it is in use by another process";

const DOOR: FileDoor = FileDoor { settle, identity };

/// The device and the number of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let there = fs::metadata(path)?;
    Ok((there.dev(), there.ino()))
}

/// Opens the store in `directory`, or begins one where there is no file. Blocks on the disk.
///
/// # Errors
/// The file is in use by another process, is something else, is empty, or cannot be read, written
/// or created.
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
    RedbStore::open(file, Arc::clone(tasks), DOOR)
}

/// Gives all readable bytes of a file to its device; a missing file is no error. After a failed
/// sync, of this process or an earlier one, the kernel takes unwritten pages for written ones. A
/// later sync covers only pages that are written again.
///
/// Pages of zeros are left as they are. Where the file has holes, writing them would need room that
/// a full device lacks. No record has that many zeros in a row.
///
/// # Errors
/// Another process has the file open (`ResourceBusy`), or the file system fails. The content of the
/// file is unchanged.
fn settle(path: &Path) -> io::Result<()> {
    let file = match fs::OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    // redb takes the same lock. Its holder may write meanwhile, and this function would undo that.
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, IN_USE));
        }
        Err(fs::TryLockError::Error(error)) => return Err(error),
    }
    let length = file.metadata()?.len();
    let mut page = [0; PIECE_BYTES];
    for at in (0..length).step_by(PIECE_BYTES) {
        let size = usize::try_from(length - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let piece = &mut page[..size];
        // An unreadable part is not in memory; redb finds out whether it needs it.
        let is_read = file.read_exact_at(piece, at).is_ok();
        if is_read && piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, at)?;
        }
    }
    file.sync_all()
}

/// Makes an empty store under another name, and renames it when it is on the device.
fn begin(directory: &Path, tasks: &Arc<dyn Tasks>) -> Result<(), StoreError> {
    let new = directory.join(FILE_NEW);
    let fail = |error: io::Error| StoreError(format!("{}: {error}", new.display()));
    // An interrupted start has left it; it is empty.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        Ok(()) | Err(_) => {}
    }
    drop(RedbStore::open(&new, Arc::clone(tasks), DOOR)?);
    fs::rename(&new, directory.join(FILE)).map_err(fail)?;
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn settling_changes_nothing_and_fills_no_holes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        settle(&path).unwrap();
        assert!(!path.exists(), "a file that is not there is not begun");
        let file = fs::File::create(&path).unwrap();
        // Pages with a hole of some hundred between them, and an end that is no page's.
        file.write_all_at(&[7; 2 * PIECE_BYTES], 0).unwrap();
        file.write_all_at(b"the end", 1 << 20).unwrap();
        file.sync_all().unwrap();
        let (before, blocks) = (fs::read(&path).unwrap(), file.metadata().unwrap().blocks());
        settle(&path).unwrap();
        assert!(fs::read(&path).unwrap() == before);
        let after = file.metadata().unwrap();
        assert!(after.blocks() <= blocks, "{} of {blocks}", after.blocks());
    }

    #[test]
    fn what_somebody_has_open_is_not_settled() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let open = fs::File::create(&path).unwrap();
        open.try_lock().unwrap();
        let refused = settle(&path).unwrap_err();
        assert_eq!(refused.to_string(), IN_USE);
        open.unlock().unwrap();
        settle(&path).unwrap();
    }
}
