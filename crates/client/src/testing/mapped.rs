//! Memory that clients map, as a fake: reads of it look at the objects where they are.

use super::{FakeCluster, State};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll};
use pluvio_env::{
    BoxFuture, DoorOf, MappedMemory, MappedRead, MappedReader, NotMapped, Pace, TaskHandle, Tasks,
};
use pluvio_units::{ClusterId, CoreId, KeyHash, ServerId, TableId};
use pluvio_wire::{DoorPlace, TabletState};
use std::sync::Arc;

/// The machine on which the fake cluster's clients are.
const MACHINE: &str = "this machine";

/// Doors of the fake servers, and who reads there.
#[derive(Default)]
pub(super) struct FakeDoors {
    /// A server, what it says of its door, and whether it is open.
    doors: Vec<(ServerId, DoorPlace, bool)>,
    /// Raised with each change of a tablet.
    pub(super) version: u64,
    /// Reads that were answered in memory.
    reads: u64,
    /// Readers that live.
    readers: u64,
}

type Spawned = (Arc<AtomicBool>, BoxFuture<'static, ()>);

/// Tasks that run while [`FakeCluster::run`] does.
#[derive(Default)]
pub(super) struct FakeTasks(Vec<Spawned>);

impl FakeCluster {
    /// The parts of a client that runs tasks, and maps memory of servers with doors.
    #[must_use]
    pub fn parts_with_memory(&self) -> crate::Parts {
        crate::Parts {
            tasks: Some(Arc::new(self.clone())),
            mapped: Some(Arc::new(self.clone())),
            ..self.parts()
        }
    }

    /// The server has a door, on the clients' machine or on another one.
    pub fn open_door(&self, server: ServerId, is_here: bool) {
        let place = DoorPlace {
            machine: if is_here { MACHINE } else { "another" }.into(),
            path: format!("/door-{}", server.0),
            uid: 0,
        };
        self.state().mapped.doors.push((server, place, true));
    }

    /// The server's door opens nobody any more, or does again.
    pub fn shut_door(&self, server: ServerId, is_open: bool) {
        for (owner, _, open) in &mut self.state().mapped.doors {
            if *owner == server {
                *open = is_open;
            }
        }
    }

    /// The server says that another one's door is its own.
    pub fn point_to_door(&self, server: ServerId, other: ServerId) {
        let place = DoorPlace {
            machine: MACHINE.into(),
            path: format!("/door-{}", other.0),
            uid: 0,
        };
        self.state().mapped.doors.insert(0, (server, place, true));
    }

    /// Reads that were answered in memory, and clients that have memory mapped, of each server by
    /// itself.
    #[must_use]
    pub fn mapped_reads(&self) -> (u64, u64) {
        let state = self.state();
        (state.mapped.reads, state.mapped.readers)
    }

    /// Lets the tasks work.
    pub(super) fn poll_tasks(&self, context: &mut Context<'_>) {
        // They use the state themselves.
        let mut tasks = core::mem::take(&mut self.state().tasks.0);
        tasks.retain_mut(|(ended, task): &mut Spawned| {
            !ended.load(Ordering::SeqCst) && task.as_mut().poll(context) == Poll::Pending
        });
        self.state().tasks.0.extend(tasks);
    }
}

impl State {
    /// What a server says of its door.
    pub(super) fn door(&self, server: ServerId) -> Option<DoorPlace> {
        let mut doors = self.mapped.doors.iter();
        doors
            .find(|(owner, ..)| *owner == server)
            .map(|(_, place, _)| place.clone())
    }

    /// The server behind a door, if it is up and the door is open.
    fn behind(&self, path: &str) -> Result<ServerId, NotMapped> {
        let mut doors = self.mapped.doors.iter();
        let name = |server: &ServerId| format!("/door-{}", server.0);
        let owner = doors.find(|(owner, _, open)| *open && name(owner) == path);
        let owner = owner.map(|(owner, ..)| *owner);
        let is_up = |server: &ServerId| self.servers.get(server).is_some_and(|(_, up)| *up);
        owner
            .filter(is_up)
            .ok_or_else(|| NotMapped("nobody is there".into()))
    }
}

struct FakeReader {
    cluster: FakeCluster,
    path: String,
    owner: (ClusterId, ServerId),
    version: AtomicU64,
}

impl MappedMemory for FakeCluster {
    fn machine(&self) -> Option<String> {
        Some(MACHINE.into())
    }

    fn attach(&self, door: &DoorOf) -> Result<Arc<dyn MappedReader>, NotMapped> {
        let owner = (door.cluster, door.server);
        let mut state = self.state();
        if (state.cluster, state.behind(&door.path)?) != owner {
            return Err(NotMapped("another one has this door".into()));
        }
        state.mapped.readers += 1;
        Ok(Arc::new(FakeReader {
            cluster: self.clone(),
            path: door.path.clone(),
            owner,
            version: AtomicU64::new(state.mapped.version),
        }))
    }
}

impl FakeReader {
    fn counts(&self, state: &State) -> bool {
        let version = self.version.load(Ordering::SeqCst);
        state.behind(&self.path) == Ok(self.owner.1)
            && state.cluster == self.owner.0
            && version == state.mapped.version
    }
}

impl MappedReader for FakeReader {
    fn read(&self, table: TableId, hash: KeyHash, key: &[u8], into: &mut Vec<u8>) -> MappedRead {
        let mut state = self.cluster.state();
        let serves = |tablet: &pluvio_wire::TabletInfo| {
            tablet.owner == self.owner.1 && tablet.state == TabletState::Normal
        };
        let is_served = state.tablet(table, hash).as_ref().is_some_and(serves);
        let place = (table, (hash, key.to_vec()));
        if !self.counts(&state) || !is_served || state.locks.contains_key(&place) {
            return MappedRead::Ask;
        }
        // Whatever has a deadline is left to the server.
        let answer = match state.object(table, &place.1) {
            Some(object) if object.deadline.is_some() => return MappedRead::Ask,
            Some(object) => {
                into.clear();
                into.extend_from_slice(object.value);
                MappedRead::Found(object.version)
            }
            None => MappedRead::Absent,
        };
        state.mapped.reads += 1;
        answer
    }

    fn is_current(&self) -> bool {
        self.counts(&self.cluster.state())
    }

    fn refresh(&self) -> Result<(), NotMapped> {
        let state = self.cluster.state();
        if (state.cluster, state.behind(&self.path)?) != self.owner {
            return Err(NotMapped("another one has this door".into()));
        }
        self.version.store(state.mapped.version, Ordering::SeqCst);
        Ok(())
    }
}

impl Drop for FakeReader {
    fn drop(&mut self) {
        self.cluster.state().mapped.readers -= 1;
    }
}

impl Tasks for FakeCluster {
    fn cores(&self) -> u16 {
        1
    }

    fn spawn_on(&self, _: CoreId, _: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        let ended = Arc::new(AtomicBool::new(false));
        self.state().tasks.0.push((Arc::clone(&ended), task));
        TaskHandle::new(move || ended.store(true, Ordering::SeqCst))
    }

    fn background(&self, _: &'static str, mut step: Box<dyn FnMut() -> Pace + Send>) -> TaskHandle {
        // Clients have none: once is as good as never.
        let _pace = step();
        TaskHandle::new(|| {})
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        work();
        Box::pin(core::future::ready(()))
    }
}
