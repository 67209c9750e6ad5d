//! The manifest: which tables an archive has, and which packs belong to each.
//!
//! A file is `{"pluvio_archive":FORMAT,"sha256":"…","manifest":{…}}`; the checksum is that of the
//! bytes of the object behind `manifest`.

use crate::error::ArchiveError;
use core::fmt;
use pluvio_units::{ClusterId, HashKind, ObjectVersion};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::Path;

/// The latest format of manifests that this program reads; it reads all from 1 on. It writes the
/// earliest one that can say all.
pub const MANIFEST_FORMAT: u32 = 3;
/// The first format of manifests that knows durabilities of tables. Programs before it would
/// restore such tables as the cluster's settings say, so they are to refuse the archive.
const FORMAT_DURABILITIES: u32 = 3;

/// How the objects of an archive belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// Each object is as it was at some moment between the beginning and the end. So the archive
    /// has everything that was acknowledged before the beginning and not changed since.
    EachObject,
    /// All objects are as they were at one moment between the beginning and the end.
    OneMoment,
}

impl Consistency {
    /// The first format of manifests that knows it.
    fn format(self) -> u32 {
        match self {
            Self::EachObject => 1,
            Self::OneMoment => 2,
        }
    }
}

/// How a table hashes its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArchivedHash {
    /// By a seed.
    Seeded,
    /// By Redis Cluster's slots.
    Slots,
}

impl From<HashKind> for ArchivedHash {
    fn from(kind: HashKind) -> Self {
        match kind {
            HashKind::Seeded => Self::Seeded,
            HashKind::Slots => Self::Slots,
        }
    }
}

impl From<ArchivedHash> for HashKind {
    fn from(kind: ArchivedHash) -> Self {
        match kind {
            ArchivedHash::Seeded => Self::Seeded,
            ArchivedHash::Slots => Self::Slots,
        }
    }
}

/// How a table that had a durability of its own was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArchivedDurability {
    /// Replicas of its objects; 0: it was volatile.
    pub replicas: u32,
    /// Whether its writes were acknowledged only when their replicas were on their devices.
    pub synced: bool,
}

impl fmt::Display for ArchivedDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.synced { "synced" } else { "buffered" };
        match self.replicas {
            0 => write!(f, "volatile"),
            1 => write!(f, "{word}, 1 replica"),
            replicas => write!(f, "{word}, {replicas} replicas"),
        }
    }
}

/// Names a pack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PackRef {
    /// The checksum of its bytes, in hexadecimal digits: its name.
    pub sha256: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// How many objects it has.
    pub objects: u64,
}

/// A table of an archive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArchivedTable {
    /// Its name.
    pub name: String,
    /// How it hashes keys.
    pub hash: ArchivedHash,
    /// How it was kept; `None`: as the cluster's settings said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<ArchivedDurability>,
    /// Objects.
    pub objects: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// The highest version of them.
    pub newest_version: ObjectVersion,
    /// Where they are.
    pub packs: Vec<PackRef>,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The archive's name in its place.
    pub id: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// The program that made it.
    pub program: String,
    /// When reading began, in milliseconds since 1970.
    pub began_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
    /// How the objects belong together.
    pub consistency: Consistency,
    /// For how long writes stood still for that, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_us: Option<u64>,
    /// Whether it has all tables that the cluster had when it began.
    pub all_tables: bool,
    /// The tables, by name.
    pub tables: Vec<ArchivedTable>,
}

#[derive(Deserialize)]
struct Front {
    pluvio_archive: u32,
}

#[derive(Serialize, Deserialize)]
struct File<'a> {
    pluvio_archive: u32,
    sha256: String,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// The name of the archive of a cluster that was begun at this time.
#[must_use]
pub fn archive_id(cluster: ClusterId, unix_ms: u64) -> String {
    format!("{unix_ms:013}-{:016x}", cluster.0)
}

/// Whether an archive can have this name: whether [`archive_id`] gives it.
pub(crate) fn is_archive_id(name: &str) -> bool {
    let Some((began, cluster)) = name.split_once('-') else {
        return false;
    };
    let (began, cluster) = (began.parse(), u64::from_str_radix(cluster, 16));
    let (Ok(began), Ok(cluster)) = (began, cluster) else {
        return false;
    };
    archive_id(ClusterId(cluster), began) == name
}

/// A checksum in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes text");
            text
        })
}

impl Manifest {
    /// The earliest format that can say all of it.
    fn format(&self) -> u32 {
        match self.tables.iter().any(|table| table.durability.is_some()) {
            true => FORMAT_DURABILITIES,
            false => self.consistency.format(),
        }
    }

    /// The bytes of its file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let text = serde_json::to_string_pretty(self).expect("it is numbers and strings");
        let sha256 = sha256(text.as_bytes());
        let manifest = RawValue::from_string(text).expect("it is JSON");
        let file = File {
            pluvio_archive: self.format(),
            sha256,
            manifest: &manifest,
        };
        serde_json::to_vec(&file).expect("it is JSON")
    }

    /// Reads a file that lies at `path`, for messages.
    ///
    /// # Errors
    /// Damage, something else, a later format.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, ArchiveError> {
        let front: Front = serde_json::from_slice(bytes).map_err(|error| {
            match bytes.starts_with(b"{\"pluvio_archive\"") {
                true => ArchiveError::damaged(path, error.to_string()),
                false => ArchiveError::Foreign(path.to_owned()),
            }
        })?;
        let damaged = |error: serde_json::Error| ArchiveError::damaged(path, error.to_string());
        match front.pluvio_archive {
            0 => return Err(ArchiveError::damaged(path, "it has no format")),
            1..=MANIFEST_FORMAT => {}
            found => {
                return Err(ArchiveError::Future {
                    path: path.to_owned(),
                    found,
                    known: MANIFEST_FORMAT,
                });
            }
        }
        let file: File<'_> = serde_json::from_slice(bytes).map_err(damaged)?;
        if sha256(file.manifest.get().as_bytes()) != file.sha256 {
            return Err(ArchiveError::damaged(path, "its checksum is another one"));
        }
        serde_json::from_str(file.manifest.get()).map_err(damaged)
    }

    /// Objects of all tables.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.tables.iter().map(|table| table.objects).sum()
    }
}
