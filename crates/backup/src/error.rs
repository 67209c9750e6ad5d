//! Why a backup does not start.

use crate::directory::Directory;
use pluvio_env::DiskError;
use pluvio_units::ClusterId;

/// Why a backup does not start. Nothing was changed on the disk.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The disk refused. Retryable once the cause is mended.
    #[error("cannot use the frames in the data directory: {0}")]
    Disk(#[from] DiskError),
    /// The disk of a further data directory refused. Retryable once the cause is mended, or with
    /// [`crate::BackupOptions::leaves_failed`].
    #[error("cannot use the frames in {directory}: {error}")]
    FurtherDisk {
        /// Its name.
        directory: String,
        /// What the disk says.
        error: DiskError,
    },
    /// Frames of another cluster. Not retryable.
    #[error(
        "{path} belongs to cluster {found:016x}, this server to {expected:016x}: use the right data directory, or an empty one"
    )]
    ForeignCluster {
        /// The frame's file below the data directory.
        path: String,
        /// The cluster in its header.
        found: u64,
        /// The cluster of this server.
        expected: u64,
    },
    /// A frame of a program that lays out frames otherwise. Not retryable.
    #[error(
        "{path} has frame format version {version}, which this program cannot read: use the program that wrote it"
    )]
    FormatVersion {
        /// The frame's file below the data directory.
        path: String,
        /// The version in its header.
        version: u32,
    },
}

impl BackupError {
    /// Says in which data directory it happened, if that is not the first one.
    pub(crate) fn of_directory(self, home: &Directory) -> Self {
        if home.index == 0 {
            return self;
        }
        let name = &home.name;
        match self {
            Self::Disk(error) => Self::FurtherDisk {
                directory: name.clone(),
                error,
            },
            Self::ForeignCluster {
                path,
                found,
                expected,
            } => Self::ForeignCluster {
                path: format!("{name}/{path}"),
                found,
                expected,
            },
            Self::FormatVersion { path, version } => Self::FormatVersion {
                path: format!("{name}/{path}"),
                version,
            },
            other @ Self::FurtherDisk { .. } => other,
        }
    }

    /// Whether the disk of a further data directory is to blame.
    pub(crate) fn is_of_further(&self) -> bool {
        matches!(self, Self::FurtherDisk { .. })
    }

    pub(crate) fn foreign(path: String, found: ClusterId, expected: ClusterId) -> Self {
        Self::ForeignCluster {
            path,
            found: found.0,
            expected: expected.0,
        }
    }
}
