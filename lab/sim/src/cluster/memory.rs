//! Memory of servers that clients read in place: a fake of `pluvio_mapped`.
//!
//! A real reader maps the memory of a process of its machine. It cannot be simulated: its clock and
//! its pages are those of the real machine. This one looks at the simulated server itself, and
//! answers where memory would: what is served, durable, and under a lease. So the client's part is
//! tried out under every fault: when it reads where, and what it does with servers that are gone.
//! The memory of a server that has died is read until its lease ends, as real memory is.

use crate::cluster::faults::Fault;
use crate::cluster::plan::Plan;
use pluvio_env::{DoorOf, MappedMemory, MappedRead, MappedReader, NotMapped};
use pluvio_server::{Master, Server};
use pluvio_units::{ClusterId, KeyHash, ServerId, TableId};
use pluvio_wire::{DoorPlace, Get, Header};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// All processes are on it.
const MACHINE: &str = "the one machine";

/// The doors of all servers, by their paths.
#[derive(Clone)]
pub(super) struct Memories(Arc<Shared>);

struct Shared {
    doors: Mutex<BTreeMap<String, Weak<Server>>>,
    reads: AtomicU64,
    /// Of these, in memory of servers that were dead.
    reads_of_dead: AtomicU64,
    /// Memory is read of servers that have died. Not where the stand-in would do more than memory
    /// does: judge a deadline, or find an object corrupt.
    outlives: bool,
}

impl Memories {
    /// None is open.
    pub(super) fn new(plan: &Plan) -> Self {
        Self(Arc::new(Shared {
            doors: Mutex::default(),
            reads: AtomicU64::new(0),
            reads_of_dead: AtomicU64::new(0),
            outlives: plan.volatiles == 0 && !plan.faults.has(Fault::Memory),
        }))
    }

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

    /// Of these, those of a server that was dead, and whose lease was not over.
    pub(super) fn reads_of_dead(&self) -> u64 {
        self.0.reads_of_dead.load(Ordering::Relaxed)
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
        let owner = (door.cluster, door.server);
        let server = doors.get(&door.path).and_then(Weak::upgrade);
        let server = server.filter(|server| (server.cluster(), server.id()) == owner);
        let server = server.ok_or_else(gone)?;
        Ok(Arc::new(Reader {
            memories: self.clone(),
            master: server.master().ok_or_else(gone)?,
            server: Arc::downgrade(&server),
            owner,
        }))
    }
}

fn gone() -> NotMapped {
    NotMapped("the server is gone".into())
}

struct Reader {
    memories: Memories,
    /// As long as it lives.
    server: Weak<Server>,
    /// What it has in memory.
    master: Arc<Master>,
    owner: (ClusterId, ServerId),
}

impl Reader {
    fn lives(&self) -> bool {
        self.server.strong_count() > 0
    }

    fn is_readable(&self) -> bool {
        self.lives() || self.memories.0.outlives
    }
}

impl MappedReader for Reader {
    fn read(&self, table: TableId, hash: KeyHash, key: &[u8], into: &mut Vec<u8>) -> MappedRead {
        if !self.is_readable() {
            return MappedRead::Ask;
        }
        let header = Header::within(self.owner.0, self.owner.1);
        let get = Get {
            hash: Some(hash),
            ..Get::new(table, key)
        };
        let shown = self
            .master
            .show_at_once(&header, &get, |current| match current {
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
            let is_dead = u64::from(!self.lives());
            let of_dead = &self.memories.0.reads_of_dead;
            of_dead.fetch_add(is_dead, Ordering::Relaxed);
        }
        answer
    }

    fn is_current(&self) -> bool {
        self.is_readable() && self.master.may_serve()
    }

    fn refresh(&self) -> Result<(), NotMapped> {
        self.lives().then_some(()).ok_or_else(gone)
    }
}
