//! A place: a directory with archives.

use crate::error::ArchiveError;
use crate::manifest::{Manifest, PackRef, sha256};
use crate::pack::PACK_BYTES_MAX;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Manifests are small: a hundred bytes for each pack of a few megabytes.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// See the module.
#[derive(Clone, Debug)]
pub struct Place {
    root: PathBuf,
}

/// A pack that is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrittenPack {
    /// Its name.
    pub pack: PackRef,
    /// Whether it was not there before.
    pub is_new: bool,
}

impl Place {
    /// The place with this name.
    ///
    /// # Errors
    /// It is no directory's name. Nothing is looked at.
    pub fn named(name: &str) -> Result<Self, ArchiveError> {
        if name.is_empty() || name.contains("://") {
            return Err(ArchiveError::NoPlace(name.to_owned()));
        }
        let root = PathBuf::from(name);
        Ok(Self { root })
    }

    /// Makes its directories, if they are missing. Later calls do not: where the device of a place
    /// is gone, they fail instead of writing to the one below.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn prepare(&self) -> Result<(), ArchiveError> {
        for directory in [self.packs(), self.archives()] {
            fs::create_dir_all(&directory).map_err(|error| ArchiveError::io(&directory, error))?;
        }
        sync(&self.root)
    }

    fn packs(&self) -> PathBuf {
        self.root.join("packs")
    }

    fn archives(&self) -> PathBuf {
        self.root.join("archives")
    }

    /// Where a pack lies.
    #[must_use]
    pub fn path_of(&self, pack: &PackRef) -> PathBuf {
        self.packs().join(format!("{}.pack", pack.sha256))
    }

    /// Keeps a pack with this number of objects; it is durable then. One that is there is read and
    /// compared, and replaced if it is damaged.
    ///
    /// # Errors
    /// The place cannot be written.
    pub fn put_pack(&self, bytes: &[u8], objects: u64) -> Result<WrittenPack, ArchiveError> {
        let pack = PackRef {
            sha256: sha256(bytes),
            bytes: bytes.len() as u64,
            objects,
        };
        let is_new = self.pack(&pack).is_err();
        if is_new {
            let path = self.path_of(&pack);
            write(&self.packs(), &path, bytes, |file, path| {
                file.persist(path).map(drop).map_err(|error| error.error)
            })
            .map_err(|error| ArchiveError::io(&path, error))?;
        }
        Ok(WrittenPack { pack, is_new })
    }

    /// Reads a pack (ARCHIVE-3).
    ///
    /// # Errors
    /// It is not there, or damaged.
    pub fn pack(&self, pack: &PackRef) -> Result<Vec<u8>, ArchiveError> {
        let path = self.path_of(pack);
        if pack.sha256.len() != 64 || !pack.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ArchiveError::damaged(&path, "the name of a pack is none"));
        }
        let bytes = read(&path, PACK_BYTES_MAX as u64)?;
        if bytes.len() as u64 != pack.bytes {
            let what = format!("{} bytes instead of {}", bytes.len(), pack.bytes);
            return Err(ArchiveError::damaged(&path, what));
        }
        if sha256(&bytes) != pack.sha256 {
            let what = "its checksum is another one";
            return Err(ArchiveError::damaged(&path, what));
        }
        Ok(bytes)
    }

    /// Keeps a manifest, whose packs are durable (ARCHIVE-1). The archive is there then.
    ///
    /// # Errors
    /// The place cannot be written; there is an archive of this name.
    pub fn put_manifest(&self, manifest: &Manifest) -> Result<(), ArchiveError> {
        sync(&self.packs())?;
        let path = self.archives().join(format!("{}.json", manifest.id));
        let written = write(
            &self.archives(),
            &path,
            &manifest.to_bytes(),
            |file, path| {
                file.persist_noclobber(path)
                    .map(drop)
                    .map_err(|error| error.error)
            },
        );
        written.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => ArchiveError::Exists(path.clone()),
            _ => ArchiveError::io(&path, error),
        })?;
        sync(&self.archives())
    }

    /// The names of all archives, the oldest first.
    ///
    /// # Errors
    /// The directory cannot be read, or has none.
    pub fn ids(&self) -> Result<Vec<String>, ArchiveError> {
        let directory = self.archives();
        let fail = |error| ArchiveError::io(&directory, error);
        let entries = match fs::read_dir(&directory) {
            // Somebody's directory without archives.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.root.is_dir() => {
                return Err(self.no_archive(None));
            }
            entries => entries.map_err(fail)?,
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(fail)?.file_name();
            if let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".json")) {
                ids.push(id.to_owned());
            }
        }
        ids.sort_unstable();
        match ids.is_empty() {
            true => Err(self.no_archive(None)),
            false => Ok(ids),
        }
    }

    /// The manifest of an archive: the newest one, or that of this name.
    ///
    /// # Errors
    /// There is none; it is damaged, or of a later format.
    pub fn manifest(&self, id: Option<&str>) -> Result<Manifest, ArchiveError> {
        let ids = self.ids()?;
        let found = match id {
            None => ids.last(),
            Some(id) => ids.iter().find(|known| *known == id),
        };
        let id = found.ok_or_else(|| self.no_archive(id))?;
        let path = self.archives().join(format!("{id}.json"));
        let manifest = Manifest::from_bytes(&path, &read(&path, MANIFEST_BYTES_MAX)?)?;
        match manifest.id == *id {
            true => Ok(manifest),
            false => {
                let what = format!("it is the manifest of {:?}", manifest.id);
                Err(ArchiveError::damaged(&path, what))
            }
        }
    }

    fn no_archive(&self, id: Option<&str>) -> ArchiveError {
        ArchiveError::NoArchive {
            place: self.root.display().to_string(),
            id: id.map(str::to_owned),
        }
    }
}

fn sync(directory: &Path) -> Result<(), ArchiveError> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|error| ArchiveError::io(directory, error))
}

/// Writes a file under another name first, so that nobody sees a part of it.
fn write(
    directory: &Path,
    path: &Path,
    bytes: &[u8],
    persist: impl FnOnce(tempfile::NamedTempFile, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix("unfinished-")
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    persist(file, path)
}

/// Reads a file of at most `most` bytes.
fn read(path: &Path, most: u64) -> Result<Vec<u8>, ArchiveError> {
    let fail = |error| ArchiveError::io(path, error);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(fail)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(fail)?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes),
        false => Err(ArchiveError::damaged(path, "it is too long")),
    }
}
