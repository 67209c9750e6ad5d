//! A place: archives in a directory, or in a bucket of an object store.

use crate::claims::{Claim, Purpose, Ticks, unique};
use crate::directory::Directory;
use crate::error::ArchiveError;
use crate::ground::{Ground, Listed, Room, Write};
use crate::manifest::{Manifest, PackRef, archive_id, is_archive_id, sha256};
use crate::pack::PACK_BYTES_MAX;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Manifests are small: a hundred bytes for each pack of a few megabytes.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// How many names of archives are tried: more than there are backups of a cluster that begin in the
/// same moment.
const IDS_MAX: u64 = 1000;
/// Behind the name of an archive in that of its manifest.
pub(crate) const MANIFEST_SUFFIX: &str = ".json";
/// Behind the checksum in a pack's name.
pub(crate) const PACK_SUFFIX: &str = ".pack";

/// See the module.
#[derive(Clone, Debug)]
pub struct Place {
    ground: Arc<dyn Ground>,
}

/// A pack that is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrittenPack {
    /// Its name.
    pub pack: PackRef,
    /// Whether it was not there before.
    pub is_new: bool,
}

/// What is named as manifests are.
#[derive(Default)]
pub(crate) struct Found {
    /// The names of archives, the oldest first.
    pub(crate) ids: Vec<String>,
    /// What no command has named so: directories, and files under names that no archive has.
    pub(crate) foreign: Vec<Listed>,
}

impl Place {
    /// The place with this name: a directory, or `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// It is neither; this program is built without object stores; the environment says nonsense
    /// of them. Nothing is looked at.
    pub fn named(name: &str) -> Result<Self, ArchiveError> {
        if let Some(behind) = name.strip_prefix("s3://") {
            return s3(name, behind);
        }
        if name.is_empty() || name.contains("://") {
            return Err(ArchiveError::NoPlace(name.to_owned()));
        }
        Ok(Self::over(Directory::new(PathBuf::from(name))))
    }

    pub(crate) fn over(ground: impl Ground + 'static) -> Self {
        Self {
            ground: Arc::new(ground),
        }
    }

    pub(crate) fn ground(&self) -> &dyn Ground {
        &*self.ground
    }

    /// Makes its directories, if they are missing. Later calls do not: where the device of a place
    /// is gone, they fail instead of writing to the one below.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn prepare(&self) -> Result<(), ArchiveError> {
        self.ground.prepare()
    }

    /// Where a pack lies.
    #[must_use]
    pub fn path_of(&self, pack: &PackRef) -> PathBuf {
        self.ground.path(Some((Room::Packs, &file_of(pack))))
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
            let file = file_of(&pack);
            self.ground
                .write((Room::Packs, &file), bytes, Write::Replace)?;
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
        let file = file_of(pack);
        let bytes = self
            .ground
            .read((Room::Packs, &file), PACK_BYTES_MAX as u64)?;
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

    /// Keeps a manifest, whose packs are durable (ARCHIVE-1). The archive is there then. Where
    /// there is one of its name, it gets that of a later millisecond. `ticks` is a clock that never
    /// goes back.
    ///
    /// # Errors
    /// - The place cannot be written; there are archives of all names that are tried.
    /// - [`ArchiveError::Busy`] while packs are removed. Retryable.
    /// - [`ArchiveError::Removed`] where a pack was removed since it was found (ARCHIVE-5).
    pub fn put_manifest(
        &self,
        manifest: &mut Manifest,
        ticks: Ticks<'_>,
    ) -> Result<(), ArchiveError> {
        self.ground.settle(Room::Packs)?;
        // Backups that began in the same millisecond have claims of their own, too.
        let unique = format!("{}-{}", manifest.id, unique(ticks));
        let mut claim = Claim::make(&*self.ground, ticks, Purpose::Backup, &unique)?;
        let listed = self.ground.list(Room::Packs)?;
        let sizes: BTreeMap<_, _> = listed
            .iter()
            .map(|listed| (&*listed.name, listed.bytes))
            .collect();
        for pack in manifest.tables.iter().flat_map(|table| &table.packs) {
            if sizes.get(&*file_of(pack)) != Some(&pack.bytes) {
                return Err(ArchiveError::Removed(self.path_of(pack)));
            }
        }
        for later_ms in 1..=IDS_MAX {
            claim.hold()?;
            let file = format!("{}{MANIFEST_SUFFIX}", manifest.id);
            let bytes = manifest.to_bytes();
            let written = self
                .ground
                .write((Room::Archives, &file), &bytes, Write::Create);
            match written {
                Err(ArchiveError::Exists(_)) if later_ms < IDS_MAX => {
                    manifest.id = archive_id(manifest.cluster, manifest.began_ms + later_ms);
                }
                written => {
                    written?;
                    break;
                }
            }
        }
        self.ground.settle(Room::Archives)
    }

    /// The names of all archives, the oldest first.
    ///
    /// # Errors
    /// The place cannot be read, or has none.
    pub fn ids(&self) -> Result<Vec<String>, ArchiveError> {
        let ids = self.found()?.ids;
        match ids.is_empty() {
            true => Err(self.no_archive(None)),
            false => Ok(ids),
        }
    }

    /// Files among the manifests under names that no archive has, sorted. They are left out.
    ///
    /// # Errors
    /// The place cannot be read.
    pub fn foreign(&self) -> Result<Vec<PathBuf>, ArchiveError> {
        let foreign = self.found()?.foreign;
        let path = |file: &Listed| self.ground.path(Some((Room::Archives, &file.name)));
        Ok(foreign.iter().map(path).collect())
    }

    /// Everything that is named as manifests are.
    pub(crate) fn found(&self) -> Result<Found, ArchiveError> {
        let mut found = Found::default();
        for file in self.ground.list(Room::Archives)? {
            match file.name.strip_suffix(MANIFEST_SUFFIX) {
                Some(id) if is_archive_id(id) && !file.is_directory => {
                    found.ids.push(id.to_owned());
                }
                Some(_) => found.foreign.push(file),
                None => {}
            }
        }
        found.ids.sort_unstable();
        found.foreign.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
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
        let name = format!("{id}{MANIFEST_SUFFIX}");
        let manifest = self.read_manifest(&name)?;
        match manifest.id == *id {
            true => Ok(manifest),
            false => {
                let path = self.ground.path(Some((Room::Archives, &name)));
                let what = format!("it is the manifest of {:?}", manifest.id);
                Err(ArchiveError::damaged(&path, what))
            }
        }
    }

    /// Reads the manifest in this file, whatever archive it is of.
    pub(crate) fn read_manifest(&self, name: &str) -> Result<Manifest, ArchiveError> {
        let file = (Room::Archives, name);
        let bytes = self.ground.read(file, MANIFEST_BYTES_MAX)?;
        Manifest::from_bytes(&self.ground.path(Some(file)), &bytes)
    }

    fn no_archive(&self, id: Option<&str>) -> ArchiveError {
        ArchiveError::NoArchive {
            place: self.ground.path(None).display().to_string(),
            id: id.map(str::to_owned),
        }
    }
}

fn file_of(pack: &PackRef) -> String {
    format!("{}{PACK_SUFFIX}", pack.sha256)
}

#[cfg(feature = "s3")]
fn s3(name: &str, behind: &str) -> Result<Place, ArchiveError> {
    crate::bucket::Bucket::s3(name, behind).map(Place::over)
}

#[cfg(not(feature = "s3"))]
fn s3(name: &str, _behind: &str) -> Result<Place, ArchiveError> {
    Err(ArchiveError::NoObjectStores(name.to_owned()))
}
