//! The server's memory behind a door: joins crate `door` with the server.

use pluvio_door::{Door, DoorError, DoorOptions, Engine, FRESH_FOR, Owner, ReadableMap};
use pluvio_server::Master;
use pluvio_units::{ClusterId, ServerId};
use pluvio_wire::{MappedReader, MappedReaders};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

struct Memory {
    cluster: ClusterId,
    master: Arc<Master>,
}

impl Owner for Memory {
    fn engine(&self) -> &Engine {
        self.master.store()
    }

    fn cluster(&self) -> ClusterId {
        self.cluster
    }

    fn server(&self) -> ServerId {
        self.master.id()
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn map(&self) -> ReadableMap {
        self.master.readable()
    }

    fn fresh_until(&self, now: Duration) -> Duration {
        // `now` was read first: the sum is no later than the end of the lease.
        now + self.master.serves_for().min(FRESH_FOR)
    }
}

/// Opens a door to the memory of a master of that cluster.
pub fn open(
    path: &Path,
    cluster: ClusterId,
    master: Arc<Master>,
    options: DoorOptions,
) -> Result<Door, DoorError> {
    Door::open(path, Arc::new(Memory { cluster, master }), options)
}

/// The processes that read, for the status.
pub fn readers_of(door: &Door) -> MappedReaders {
    let stats = door.stats();
    let reader = |info: &pluvio_door::ReaderInfo| MappedReader {
        pid: info.pid,
        uid: info.uid,
        since_ms: u64::try_from(info.since.as_millis()).unwrap_or(u64::MAX),
    };
    MappedReaders {
        readers: stats.readers.iter().map(reader).collect(),
        let_in: stats.let_in,
        refused: stats.refused,
    }
}
