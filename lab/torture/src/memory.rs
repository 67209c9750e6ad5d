//! How much clients read in the memory of servers.

use pluvio_env::{DoorOf, MappedMemory, MappedRead, MappedReader, NotMapped};
use pluvio_units::{KeyHash, TableId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of servers, where every read that it answers is counted.
pub struct Counted {
    memory: Arc<dyn MappedMemory>,
    reads: Arc<AtomicU64>,
}

impl Counted {
    /// Counts in `reads`.
    pub fn new(memory: Arc<dyn MappedMemory>, reads: Arc<AtomicU64>) -> Self {
        Self { memory, reads }
    }
}

impl MappedMemory for Counted {
    fn machine(&self) -> Option<String> {
        self.memory.machine()
    }

    fn requests_before(&self) -> u32 {
        self.memory.requests_before()
    }

    fn attach(&self, door: &DoorOf) -> Result<Arc<dyn MappedReader>, NotMapped> {
        Ok(Arc::new(Reader {
            memory: self.memory.attach(door)?,
            reads: Arc::clone(&self.reads),
        }))
    }
}

struct Reader {
    memory: Arc<dyn MappedReader>,
    reads: Arc<AtomicU64>,
}

impl MappedReader for Reader {
    fn read(&self, table: TableId, hash: KeyHash, key: &[u8], into: &mut Vec<u8>) -> MappedRead {
        let read = self.memory.read(table, hash, key, into);
        match read {
            MappedRead::Found(_) | MappedRead::Absent => {
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
            MappedRead::Ask => {}
        }
        read
    }

    fn is_current(&self) -> bool {
        self.memory.is_current()
    }

    fn refresh(&self) -> Result<(), NotMapped> {
        self.memory.refresh()
    }
}
