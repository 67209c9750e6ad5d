//! A place that is a directory.

use crate::error::ArchiveError;
use crate::ground::{Ground, Listed, Room, Write};
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The name of a file begins with this until the file is whole.
pub(crate) const UNFINISHED: &str = "unfinished-";

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    root: PathBuf,
}

impl Directory {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn room(&self, room: Room) -> PathBuf {
        self.root.join(room.name())
    }
}

impl Ground for Directory {
    fn path(&self, file: Option<(Room, &str)>) -> PathBuf {
        match file {
            Some((room, name)) => self.room(room).join(name),
            None => self.root.clone(),
        }
    }

    fn prepare(&self) -> Result<(), ArchiveError> {
        for room in Room::ALL {
            let directory = self.room(room);
            fs::create_dir_all(&directory).map_err(|error| ArchiveError::io(&directory, error))?;
        }
        sync(&self.root)
    }

    fn read(&self, file: (Room, &str), most: u64) -> Result<Vec<u8>, ArchiveError> {
        let path = self.path(Some(file));
        let fail = |error| ArchiveError::io(&path, error);
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(fail)?;
        file.take(most + 1).read_to_end(&mut bytes).map_err(fail)?;
        match bytes.len() as u64 <= most {
            true => Ok(bytes),
            false => Err(ArchiveError::damaged(&path, "it is too long")),
        }
    }

    /// Under another name first, so that nobody sees a part of it.
    fn write(&self, file: (Room, &str), bytes: &[u8], how: Write) -> Result<(), ArchiveError> {
        let path = self.path(Some(file));
        let write = || {
            let mut unfinished = tempfile::Builder::new()
                .prefix(UNFINISHED)
                .tempfile_in(self.room(file.0))?;
            unfinished.write_all(bytes)?;
            unfinished.as_file().sync_all()?;
            let persisted = match how {
                Write::Replace => unfinished.persist(&path),
                Write::Create => unfinished.persist_noclobber(&path),
            };
            persisted.map(drop).map_err(|error| error.error)
        };
        write().map_err(|error| match (how, error.kind()) {
            (Write::Create, io::ErrorKind::AlreadyExists) => ArchiveError::Exists(path.clone()),
            (Write::Create | Write::Replace, _) => ArchiveError::io(&path, error),
        })
    }

    fn list(&self, room: Room) -> Result<Vec<Listed>, ArchiveError> {
        let directory = self.room(room);
        let fail = |error| ArchiveError::io(&directory, error);
        let entries = match fs::read_dir(&directory) {
            // Somebody's directory without archives.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.root.is_dir() => {
                return Ok(Vec::new());
            }
            entries => entries.map_err(fail)?,
        };
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let known = match entry.metadata() {
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                known => known.map_err(fail)?,
            };
            let written = known.modified().map_err(fail)?;
            let since = written.duration_since(UNIX_EPOCH).unwrap_or_default();
            listed.push(Listed {
                name,
                bytes: known.len(),
                written_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
                // Also where a link leads to one.
                is_directory: entry.path().is_dir(),
            });
        }
        Ok(listed)
    }

    fn remove(&self, file: (Room, &str)) -> Result<(), ArchiveError> {
        let path = self.path(Some(file));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ArchiveError::io(&path, error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn settle(&self, room: Room) -> Result<(), ArchiveError> {
        sync(&self.room(room))
    }
}

fn sync(directory: &Path) -> Result<(), ArchiveError> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|error| ArchiveError::io(directory, error))
}
