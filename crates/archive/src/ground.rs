//! What a place stands on: rooms with files, be they a directory's or a bucket's.
//!
//! An implementation keeps bytes and names. It knows nothing of manifests and packs.

use crate::error::ArchiveError;
use std::fmt::Debug;
use std::path::PathBuf;

/// A part of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Manifests.
    Archives,
    /// Packs.
    Packs,
    /// Claims of commands that run.
    Claims,
}

impl Room {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Archives, Self::Packs, Self::Claims];

    /// Its name in a place.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Archives => "archives",
            Self::Packs => "packs",
            Self::Claims => "claims",
        }
    }
}

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// One that is there is replaced.
    Replace,
    /// One that is there stays, and the call fails with [`ArchiveError::Exists`].
    Create,
}

/// A file or directory of a room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    /// Its name.
    pub(crate) name: String,
    /// Its length.
    pub(crate) bytes: u64,
    /// When it was written last, in milliseconds since 1970 by the clock of the place.
    pub(crate) written_ms: u64,
    /// Whether it is a directory. No command makes one in a room.
    pub(crate) is_directory: bool,
}

/// See the module. Calls block; nobody sees a part of a file that is written.
pub(crate) trait Ground: Send + Sync + Debug {
    /// The place, or a file of it, for people.
    fn path(&self, file: Option<(Room, &str)>) -> PathBuf;

    /// Makes the rooms, if they are missing.
    fn prepare(&self) -> Result<(), ArchiveError>;

    /// Reads a file of at most `most` bytes.
    fn read(&self, file: (Room, &str), most: u64) -> Result<Vec<u8>, ArchiveError>;

    /// Writes a file. Its bytes are durable then, its name after [`Ground::settle`].
    fn write(&self, file: (Room, &str), bytes: &[u8], how: Write) -> Result<(), ArchiveError>;

    /// The files and directories of a room, in any order.
    fn list(&self, room: Room) -> Result<Vec<Listed>, ArchiveError>;

    /// Removes a file, if it is there.
    fn remove(&self, file: (Room, &str)) -> Result<(), ArchiveError>;

    /// Makes names of a room durable, and that others are gone.
    fn settle(&self, room: Room) -> Result<(), ArchiveError>;
}
