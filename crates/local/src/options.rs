//! Options of a cluster's processes, given on the command line and handed on to them.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Most servers of a cluster on one machine.
pub const SERVERS_MAX: u32 = 64;

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Durability {
    /// When all replicas are with the operating systems of their servers: survives the death of
    /// processes, and of all machines but one with a replica
    Buffered,
    /// When all replicas are on their devices: survives a power loss too
    Synced,
}

impl Durability {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Synced => "synced",
        }
    }
}

/// The environment variable with the password of `--metadata-user`, unless that is in a file.
pub const METADATA_PASSWORD: &str = "PLUVIO_METADATA_PASSWORD";

/// The environment variable that may hold the password of the Redis user `default`.
pub const REDIS_PASSWORD: &str = "PLUVIO_REDIS_PASSWORD";

/// Who coordinators are for etcd or ZooKeeper. Passwords are no arguments: everybody on a machine
/// sees those.
#[derive(Args, Clone, Debug, Default)]
pub struct MetadataLogin {
    /// The user that etcd or ZooKeeper knows coordinators by, with the password of
    /// --metadata-password-file
    #[arg(long, value_name = "NAME", env = "PLUVIO_METADATA_USER")]
    pub metadata_user: Option<String>,
    /// The file with the password of --metadata-user [default: what the environment variable
    /// PLUVIO_METADATA_PASSWORD has]
    #[arg(long, value_name = "FILE", env = "PLUVIO_METADATA_PASSWORD_FILE")]
    pub metadata_password_file: Option<PathBuf>,
}
