//! Memory of servers that clients read in place: a fake of `pluvio_mapped`.
//!
//! A real reader maps the memory of a process of its machine. It cannot be simulated: its clock and
//! its pages are those of the real machine. This one looks at the simulated server itself, and
//! answers where memory would: what is served, durable, and under a lease. So the client's part is
//! tried out under every fault: when it reads where, and what it does with servers that are gone.

use pluvio_env::{DoorOf, MappedMemory, MappedRead, MappedReader, NotMapped};
use pluvio_server::Server;
use pluvio_units::{ClusterId, KeyHash, ServerId, TableId};
use pluvio_wire::{DoorPlace, Get, Header};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// All processes are on it.
const MACHINE: &str = "the one machine";

/// The doors of all servers, by their paths.
#[derive(Clone, Default)]
pub(super) struct Memories(Arc<Shared>);

#[derive(Default)]
struct Shared {
    doors: Mutex<BTreeMap<String, Weak<Server>>>,
    reads: AtomicU64,
}

impl Memories {
    /// Lets clients read the memory of a server whose process has this number.
    pub(super) fn open(&self, number: usize, server: &Arc<Server>) {
        let path = format!("/server-{number}");
        let mut doors = self.0.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.insert(path.clone(), Arc::downgrade(server));
        server.tell_door(DoorPlace {
            machine: MACHINE.into(),
            path,
            uid: 0,
        });
    }

    /// Reads that were answered in memory.
    pub(super) fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }
}

impl MappedMemory for Memories {
    fn machine(&self) -> Option<String> {
        Some(MACHINE.into())
    }

    fn requests_before(&self) -> u32 {
        1
    }

    fn attach(&self, door: &DoorOf) -> Result<Arc<dyn MappedReader>, NotMapped> {
        let doors = self.0.doors.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = Reader {
            memories: self.clone(),
            server: doors.get(&door.path).cloned().unwrap_or_default(),
            owner: (door.cluster, door.server),
        };
        reader.refresh()?;
        Ok(Arc::new(reader))
    }
}

struct Reader {
    memories: Memories,
    server: Weak<Server>,
    owner: (ClusterId, ServerId),
}

impl Reader {
    /// The server, as long as it lives.
    fn server(&self) -> Option<Arc<Server>> {
        let server = self.server.upgrade();
        server.filter(|server| (server.cluster(), server.id()) == self.owner)
    }
}

impl MappedReader for Reader {
    fn read(&self, table: TableId, hash: KeyHash, key: &[u8], into: &mut Vec<u8>) -> MappedRead {
        let Some(master) = self.server().and_then(|server| server.master()) else {
            return MappedRead::Ask;
        };
        let header = Header::within(self.owner.0, self.owner.1);
        let get = Get {
            hash: Some(hash),
            ..Get::new(table, key)
        };
        let shown = master.show_at_once(&header, &get, |current| match current {
            // Deadlines are left to the server, as all of them were near.
            Some(object) if object.deadline.is_some() => MappedRead::Ask,
            Some(object) => {
                into.clear();
                into.extend_from_slice(object.value);
                MappedRead::Found(object.version)
            }
            None => MappedRead::Absent,
        });
        let Ok(Some(answer)) = shown else {
            return MappedRead::Ask;
        };
        let answer = answer.into_value();
        if answer != MappedRead::Ask {
            self.memories.0.reads.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    fn is_current(&self) -> bool {
        let master = self.server().and_then(|server| server.master());
        master.is_some_and(|master| master.may_serve())
    }

    fn refresh(&self) -> Result<(), NotMapped> {
        let gone = || NotMapped("the server is gone".into());
        self.server().map(|_| ()).ok_or_else(gone)
    }
}
