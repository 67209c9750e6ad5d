//! Memory of servers on this machine, by crate `mapped`.

use pluvio_env::{DoorOf, MappedMemory, MappedRead, MappedReader, NotMapped};
use pluvio_mapped::{Answer, OnlyOwner, OpenError, Reader};
use pluvio_units::{KeyHash, TableId};
use std::sync::Arc;

/// Drawn by the kernel when the machine starts. Containers have it in common with it.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The memory of this machine.
pub(crate) struct OsMemory;

struct Memory(Reader);

fn not_mapped(error: &OpenError) -> NotMapped {
    NotMapped(error.to_string())
}

impl MappedMemory for OsMemory {
    fn machine(&self) -> Option<String> {
        let id = std::fs::read_to_string(BOOT_ID).ok()?;
        let id = id.trim();
        (!id.is_empty()).then(|| id.to_owned())
    }

    fn attach(&self, door: &DoorOf) -> Result<Arc<dyn MappedReader>, NotMapped> {
        let only = OnlyOwner {
            cluster: door.cluster,
            server: door.server,
            uid: door.uid,
        };
        let reader = Reader::open_server(&door.path, only);
        let reader = reader.map_err(|error| not_mapped(&error))?;
        Ok(Arc::new(Memory(reader)))
    }
}

impl MappedReader for Memory {
    #[inline]
    fn read(&self, table: TableId, hash: KeyHash, key: &[u8], into: &mut Vec<u8>) -> MappedRead {
        match self.0.read_hashed(table, hash, key, into) {
            Answer::Found(version) => MappedRead::Found(version),
            Answer::Absent => MappedRead::Absent,
            Answer::Ask(_) => MappedRead::Ask,
        }
    }

    fn is_current(&self) -> bool {
        self.0.is_current()
    }

    fn refresh(&self) -> Result<(), NotMapped> {
        self.0.refresh().map_err(|error| not_mapped(&error))
    }
}
