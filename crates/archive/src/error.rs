//! Why an archive cannot be written or read.

use std::io;
use std::path::{Path, PathBuf};

/// See the module. Each says what to do; nothing that was there before is changed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file or directory of the place cannot be used.
    #[error("{}: {error}{}", path.display(), advice(error))]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The place is of a kind that this program cannot use.
    #[error("{0:?} is no place for archives: give a directory, or s3://BUCKET/PREFIX")]
    NoPlace(String),
    /// The place is in an object store, and this program knows none.
    #[error(
        "{0:?}: this pluvio is built without object stores; build it with `--features s3`, or give a directory"
    )]
    NoObjectStores(String),
    /// The name of a bucket, or what the environment says of its store, cannot be used.
    #[error("{name:?}: {why}")]
    NoBucket {
        /// The name of the place.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// An object store did not do what it was asked, after some tries.
    #[error("{}: {why}{advice}", path.display())]
    Store {
        /// The object, or the place.
        path: PathBuf,
        /// Why.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// Packs are removed, or a manifest is written, and this cannot be done meanwhile.
    #[error("{}: another command removes archives or ends a backup, or was killed within the last 15 minutes; run this one again later", .0.display())]
    Busy(PathBuf),
    /// The command stood still for minutes, and others may have gone on.
    #[error("{}: this command stood still too long, and stops; run it again", .0.display())]
    Late(PathBuf),
    /// A pack was removed since it was found.
    #[error("{}: it was removed by another command meanwhile; run this one again: it goes on", .0.display())]
    Removed(PathBuf),
    /// There is no such archive.
    #[error("{place} has no archive{}", no_archive(place, id))]
    NoArchive {
        /// The place.
        place: String,
        /// The name that was asked for.
        id: Option<String>,
    },
    /// The file is something else.
    #[error("{}: this is no manifest of an archive; check the path", .0.display())]
    Foreign(PathBuf),
    /// A later program wrote it.
    #[error("{}: its format is {found}, and this program reads up to {known}; use the pluvio that wrote it, or a later one", path.display())]
    Future {
        /// The manifest or pack.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest one that is known.
        known: u32,
    },
    /// Its bytes are not those that were written.
    #[error("{}: damaged ({what}); use another archive, or a copy of this file", path.display())]
    Damaged {
        /// The manifest or pack.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// An archive of this name is there.
    #[error("{}: an archive of this name is there, and none is overwritten; run the command again", .0.display())]
    Exists(PathBuf),
}

impl ArchiveError {
    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io { path, error }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        let (path, what) = (path.to_owned(), what.into());
        Self::Damaged { path, what }
    }
}

/// The archive that was asked for, and what to do.
fn no_archive(place: &str, id: &Option<String>) -> String {
    match id {
        Some(id) => format!(" {id:?}; `pluvio backup list {place}` shows those that are there"),
        None => format!("; `pluvio backup {place}` makes one"),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; is it mounted, and is the path right?",
        io::ErrorKind::PermissionDenied => "; check the rights of this user",
        io::ErrorKind::StorageFull => "; make room and run the command again: it goes on",
        io::ErrorKind::ReadOnlyFilesystem => "; choose a place that can be written",
        _ => "",
    }
}
