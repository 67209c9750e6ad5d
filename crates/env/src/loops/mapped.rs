//! Memory of servers on the same machine, which they let other processes read.

use pluvio_units::{ClusterId, KeyHash, ObjectVersion, ServerId, TableId};
use std::sync::Arc;

/// Maps memory of servers on this machine. Production has it on Linux; elsewhere, and in
/// simulations, no process maps another one's memory.
pub trait MappedMemory: Send + Sync {
    /// The machine, and the time since it was started: a name that no other one has. `None` if it
    /// is unknown.
    fn machine(&self) -> Option<String>;

    /// How many requests for objects a server answers before its door is looked for. Programs that
    /// read little need none.
    fn requests_before(&self) -> u32 {
        16
    }

    /// Connects to a door of this machine, if the server that is named has it. Blocks, some seconds
    /// at most.
    ///
    /// # Errors
    /// Why its memory cannot be read. A later attempt may succeed.
    fn attach(&self, door: &DoorOf) -> Result<Arc<dyn MappedReader>, NotMapped>;
}

/// A door, and who has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoorOf {
    /// The path of its socket on this machine.
    pub path: String,
    /// The cluster of its server.
    pub cluster: ClusterId,
    /// The server.
    pub server: ServerId,
    /// The user that the server runs as. A socket of another user is none of its.
    pub uid: u32,
}

/// The memory of one server. Any thread may use it. Dropping it gives the memory back.
pub trait MappedReader: Send + Sync {
    /// Looks for an object, and lets `into` hold its value. Only after [`MappedRead::Found`] does
    /// its content mean something. Never blocks.
    fn read(&self, table: TableId, hash: KeyHash, key: &[u8], into: &mut Vec<u8>) -> MappedRead;

    /// Whether reads can be answered: its map is the newest, and the server has confirmed its
    /// memory lately. Never blocks.
    fn is_current(&self) -> bool;

    /// Gets the newest map. Blocks, some seconds at most.
    ///
    /// # Errors
    /// The server is gone, or lets this process read no more.
    fn refresh(&self) -> Result<(), NotMapped>;
}

/// What a read of mapped memory has found: what the server had answered, had it been asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MappedRead {
    /// The object, in this version.
    Found(ObjectVersion),
    /// There is none.
    Absent,
    /// It cannot be told: the server is to be asked.
    Ask,
}

/// Memory that cannot be mapped, and why, for people.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotMapped(pub String);
