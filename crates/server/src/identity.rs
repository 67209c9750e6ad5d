//! Who the data directory belongs to.
//!
//! One small file says which cluster and which server life last used the directory. So a restarted
//! server can say whose successor it is. A directory of another cluster or another format is
//! refused before anything is touched.

use bytes::Bytes;
use pluvio_env::{Disk, DiskError, OpenMode};
use pluvio_units::{ClusterId, ServerId};
use pluvio_wire::Versions;
use serde::{Deserialize, Serialize};

/// Version of everything below the data directory. Raised when an older program could not read it:
/// 2 has objects with graves, 3 completion records with output. Older ones are read.
pub const FORMAT_VERSION: u32 = 6;
const FILE: &str = "identity.json";
/// What takes the place of the file next. It keeps the room that this needs, so that a server can
/// start again on a full disk.
const FILE_NEW: &str = "identity.json.new";
/// Length of both files: a block of usual file systems, and far more than there is to say.
const LENGTH: usize = 4096;

/// The contents of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// See [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The cluster.
    pub cluster: ClusterId,
    /// The latest life of the server.
    pub server: ServerId,
    /// The version that its cluster spoke last (VERSION-2).
    #[serde(default = "Versions::active_unsaid")]
    pub protocol: u16,
}

/// Why the directory cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file system refused. Retryable if the cause is mended.
    #[error("cannot use the data directory: {0}")]
    Disk(#[from] DiskError),
    /// The file is there but cannot be understood. Not retryable.
    #[error(
        "{FILE} in the data directory is damaged ({0}): restore it, or start with an empty directory and let the cluster recover the server's data"
    )]
    Damaged(String),
    /// Written by a newer program. Not retryable.
    #[error(
        "the data directory has format version {0}, this program reads up to {FORMAT_VERSION}: use a newer program"
    )]
    TooNew(u32),
    /// Its cluster speaks another version. Not retryable.
    #[error(
        "the data directory is of a cluster that speaks version {active}, and this program {own}: use a program that speaks it; there is no way back after `pluvio finalize`"
    )]
    OtherVersion {
        /// The version of the cluster.
        active: u16,
        /// Those of this program.
        own: Versions,
    },
}

impl Identity {
    /// Reads the file, for a program that speaks `own`; `None` when the directory was never used.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub async fn load(disk: &dyn Disk, own: Versions) -> Result<Option<Self>, IdentityError> {
        let file = match disk.open(FILE, OpenMode::Existing).await {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let text = file.read_at(0, LENGTH).await?;
        let identity: Self =
            serde_json::from_slice(&text).map_err(|e| IdentityError::Damaged(e.to_string()))?;
        if identity.format_version > FORMAT_VERSION {
            return Err(IdentityError::TooNew(identity.format_version));
        }
        let active = identity.protocol;
        if !own.speak(active) {
            return Err(IdentityError::OtherVersion { active, own });
        }
        Ok(Some(identity))
    }

    /// Makes sure that there is room for the file, before the cluster hears of a server that could
    /// not keep it.
    ///
    /// # Errors
    /// When the file system refuses.
    pub async fn keep_room(disk: &dyn Disk) -> Result<(), DiskError> {
        let kept = match disk.open(FILE_NEW, OpenMode::Existing).await {
            Ok(file) => file.size().await?,
            Err(DiskError::NotFound { .. }) => 0,
            Err(error) => return Err(error),
        };
        if kept >= LENGTH as u64 {
            return Ok(());
        }
        write_new(disk, Vec::new()).await
    }

    /// Replaces the file in one step that survives a power loss, and keeps room for the next time.
    ///
    /// # Errors
    /// When the file system refuses; the old file is still there then.
    pub async fn store(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        let text = serde_json::to_vec_pretty(self).expect("three numbers can be written as JSON");
        write_new(disk, text).await?;
        disk.rename(FILE_NEW, FILE).await?;
        disk.sync_directory("").await?;
        let kept = async {
            write_new(disk, Vec::new()).await?;
            disk.sync_directory("").await
        };
        if let Err(error) = kept.await {
            tracing::warn!(%error, "no room is kept for the next start: a server does not start on a full disk without");
        }
        Ok(())
    }
}

/// Writes the file that is to take the place of the other one, over any remainder of an earlier
/// try.
async fn write_new(disk: &dyn Disk, mut text: Vec<u8>) -> Result<(), DiskError> {
    assert!(text.len() <= LENGTH, "it would be cut off");
    text.resize(LENGTH, b' ');
    let file = disk.open(FILE_NEW, OpenMode::Create).await?;
    file.write_at(0, Bytes::from(text)).await?;
    file.sync().await
}
