//! Reads in the memory of servers on this machine.
//!
//! ```text
//! a read of a key of server S
//!   ├─ S's memory is mapped ─┬─ it answers ──► done
//!   │                        └─ "ask" ──► request; the task fetches a newer map, if that helps
//!   └─ it is not ──► request; after some of them a task asks S where its door is
//!          ├─ on this machine, and it opens ──► mapped, until S is gone or nobody reads any more
//!          ├─ shut, or no door ──► again later, after a pause that grows
//!          └─ on another machine, or S does not know the question ──► never again
//! ```
//!
//! Mapped memory gives the answer that the server had given (crate `mapped`, MAP-1). So a client
//! may read here and there in any order.

use crate::options::Parts;
use crate::table::Table;
use arc_swap::{ArcSwap, ArcSwapOption};
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use pluvio_env::{
    Address, Clock, DoorOf, MappedMemory, MappedRead, MappedReader, Moment, Network, NotMapped,
    TaskHandle, Tasks, timeout,
};
use pluvio_mutation::{Current, Get, Now, Outcome, Projection, look};
use pluvio_units::{ClusterId, CoreId, KeyHash, ServerId, UnixMs};
use pluvio_wire::{DoorPlace, FatalKind, GetDoor, Header, Refusal, RpcError, call};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, oneshot};

/// The longest that a server is asked for its door.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Pauses between two looks for a door that was not open: each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Pauses between two requests for a map: from this to [`LOOK`].
const MAP_PAUSE_MIN: Duration = Duration::from_millis(5);
/// How often mapped memory is looked at that nobody reads. The memory of a server that has died is
/// given back by then.
const LOOK: Duration = Duration::from_secs(1);
/// Looks without a read, after which memory is given back.
const LOOKS_IDLE: u32 = 60;
/// Servers that are remembered, at most. Further ones are asked by request alone.
const SERVERS_MAX: usize = 4096;
/// A larger buffer is not kept for the next read.
const BUFFER_KEPT: usize = 64 << 10;

/// The doors of all servers that a client reads.
pub(crate) struct Doors {
    system: System,
    servers: ArcSwap<BTreeMap<(ClusterId, ServerId), Arc<Door>>>,
}

/// What tasks need.
#[derive(Clone)]
struct System {
    memory: Arc<dyn MappedMemory>,
    tasks: Arc<dyn Tasks>,
    clock: Arc<dyn Clock>,
    network: Arc<dyn Network>,
}

/// One life of a server, and where it listens.
struct Owner {
    cluster: ClusterId,
    server: ServerId,
    address: Address,
}

/// No task is at work for the door.
const IDLE: u8 = 0;
/// A task looks for it, or keeps its memory mapped.
const AT_WORK: u8 = 1;
/// There is none that this process could use.
const NEVER: u8 = 2;

/// The door of one life of a server.
#[derive(Default)]
struct Door {
    reader: ArcSwapOption<Mapped>,
    phase: AtomicU8,
    /// Reads by request since the last look.
    requests: AtomicU32,
    /// The next look is no earlier; in microseconds of [`Moment`].
    not_before_us: AtomicU64,
    /// The last pause, in milliseconds.
    pause_ms: AtomicU64,
    /// Somebody has read since the task last looked.
    used: AtomicBool,
    /// A newer map may help.
    stale: Notify,
    task: Mutex<Option<TaskHandle>>,
}

struct Mapped(Arc<dyn MappedReader>);

/// Why there is no mapped memory.
enum NoDoor {
    /// It may open later.
    Later(String),
    /// Not in this life of the server.
    Never(&'static str),
}

impl Doors {
    /// `None` where no memory can be mapped.
    pub(crate) fn new(parts: &Parts) -> Option<Self> {
        Some(Self {
            system: System {
                memory: parts.mapped.clone()?,
                tasks: parts.tasks.clone()?,
                clock: Arc::clone(&parts.clock),
                network: Arc::clone(&parts.network),
            },
            servers: ArcSwap::default(),
        })
    }

    /// The outcome of a read, if mapped memory tells it.
    #[inline]
    pub(crate) fn read(&self, table: &Table, hash: KeyHash, get: &Get<'_>) -> Option<Outcome> {
        // Memory tells no deadlines.
        if matches!(get.projection, Projection::Deadline | Projection::TimeLeft) {
            return None;
        }
        let owner = table.owner(hash)?;
        let servers = self.servers.load();
        let Some(door) = servers.get(&(table.cluster(), owner)) else {
            self.remember(table.cluster(), owner);
            return None;
        };
        let reader = door.reader.load();
        match &*reader {
            Some(mapped) => door.read(mapped, table, hash, get),
            None => {
                self.missed(door, table, hash);
                None
            }
        }
    }

    /// The servers whose memory is mapped.
    pub(crate) fn mapped(&self) -> Vec<ServerId> {
        let servers = self.servers.load();
        let mapped = servers.iter().filter(|(_, door)| door.is_mapped());
        mapped.map(|((_, server), _)| *server).collect()
    }

    #[cold]
    fn remember(&self, cluster: ClusterId, server: ServerId) {
        let door = Arc::<Door>::default();
        self.servers.rcu(|servers| {
            let mut servers = BTreeMap::clone(servers);
            if servers.len() >= SERVERS_MAX {
                servers.retain(|_, door| door.phase.load(Ordering::Relaxed) == AT_WORK);
            }
            if servers.len() < SERVERS_MAX {
                let place = servers.entry((cluster, server));
                place.or_insert_with(|| Arc::clone(&door));
            }
            servers
        });
    }

    /// A read has to be a request. After some of them it is time to look for the door.
    fn missed(&self, door: &Arc<Door>, table: &Table, hash: KeyHash) {
        if door.phase.load(Ordering::Relaxed) != IDLE
            || door.requests.fetch_add(1, Ordering::Relaxed) < self.system.memory.requests_before()
        {
            return;
        }
        let now = self.system.clock.now();
        if micros(now.0) < door.not_before_us.load(Ordering::Relaxed) {
            return;
        }
        let map = table.map();
        let Some(tablet) = map.locate(hash) else {
            return;
        };
        let owner = Owner {
            cluster: table.cluster(),
            server: tablet.owner,
            address: tablet.address.clone(),
        };
        // The map may be newer than the door that was found.
        let is_its = self.servers.load();
        let is_its = is_its.get(&(owner.cluster, owner.server));
        if !is_its.is_some_and(|its| Arc::ptr_eq(its, door)) {
            return;
        }
        let relaxed = Ordering::Relaxed;
        let begun = door
            .phase
            .compare_exchange(IDLE, AT_WORK, Ordering::AcqRel, relaxed);
        if begun.is_err() {
            return;
        }
        let at_work = AtWork(Arc::clone(door));
        let system = self.system.clone();
        let task = async move { system.keep(&at_work, &owner).await };
        let task = self.system.tasks.spawn(CoreId(0), "mapped reads", task);
        *door.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        for door in self.servers.load().values() {
            let mut task = door.task.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(task) = task.take() {
                task.abort();
            }
            door.reader.store(None);
        }
    }
}

impl Door {
    fn is_mapped(&self) -> bool {
        self.reader.load().is_some()
    }

    #[inline]
    fn read(
        &self,
        mapped: &Mapped,
        table: &Table,
        hash: KeyHash,
        get: &Get<'_>,
    ) -> Option<Outcome> {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        // Nothing expires here: memory answers only if the deadline is not near.
        const NOW: Now = Now {
            judged: UnixMs(0),
            shown: UnixMs(0),
        };
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        BUFFER.with_borrow_mut(|buffer| {
            let outcome = match mapped.0.read(table.id(), hash, get.key, buffer) {
                MappedRead::Found(version) => {
                    let current = Current {
                        version,
                        value: buffer,
                        deadline: None,
                    };
                    Some(look(get, Some(current), NOW))
                }
                MappedRead::Absent => Some(look(get, None, NOW)),
                MappedRead::Ask => {
                    if !mapped.0.is_current() {
                        self.stale.notify_one();
                    }
                    None
                }
            };
            if buffer.capacity() > BUFFER_KEPT {
                *buffer = Vec::new();
            }
            outcome
        })
    }

    /// The next look comes after a pause; each is longer than the one before.
    fn put_off(&self, now: Moment) {
        let before = Duration::from_millis(self.pause_ms.load(Ordering::Relaxed));
        let pause = (before * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause_ms.store(millis(pause), Ordering::Relaxed);
        let next = micros((now + pause).0);
        self.not_before_us.store(next, Ordering::Relaxed);
    }
}

/// A task's right to a door. When the task ends, its memory is given back.
struct AtWork(Arc<Door>);

impl Drop for AtWork {
    fn drop(&mut self) {
        let door = &*self.0;
        door.reader.store(None);
        door.requests.store(0, Ordering::Relaxed);
        let _never =
            door.phase
                .compare_exchange(AT_WORK, IDLE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl System {
    /// Looks for a door once, and keeps its memory mapped as long as the server lives and somebody
    /// reads.
    async fn keep(&self, at_work: &AtWork, owner: &Owner) {
        let door = &*at_work.0;
        let server = owner.server.0;
        match self.find(owner).await {
            Ok(reader) => {
                tracing::debug!(server, "its memory is mapped");
                door.pause_ms.store(0, Ordering::Relaxed);
                door.used.store(true, Ordering::Relaxed);
                door.reader
                    .store(Some(Arc::new(Mapped(Arc::clone(&reader)))));
                let why = self.watch(door, &reader).await;
                tracing::debug!(server, %why, "its memory is mapped no more");
                door.reader.store(None);
                door.put_off(self.clock.now());
                // Many pages take a while.
                self.tasks
                    .run_blocking(Box::new(move || drop(reader)))
                    .await;
            }
            Err(NoDoor::Later(why)) => {
                tracing::debug!(server, %why, "its memory cannot be mapped now");
                door.put_off(self.clock.now());
            }
            Err(NoDoor::Never(why)) => {
                tracing::debug!(server, why, "its memory is not mapped");
                door.phase.store(NEVER, Ordering::Release);
            }
        }
    }

    async fn find(&self, owner: &Owner) -> Result<Arc<dyn MappedReader>, NoDoor> {
        let DoorPlace { machine, path, uid } = self.ask(owner).await?;
        let memory = Arc::clone(&self.memory);
        let door = DoorOf {
            path,
            cluster: owner.cluster,
            server: owner.server,
            uid,
        };
        let attached = self.outside(move || {
            let is_here = memory.machine().is_some_and(|own| own == machine);
            is_here.then(|| memory.attach(&door))
        });
        match attached.await {
            Some(Some(Ok(reader))) => Ok(reader),
            Some(Some(Err(NotMapped(why)))) => Err(NoDoor::Later(why)),
            Some(None) => Err(NoDoor::Never("it is on another machine")),
            None => Err(NoDoor::Later("this process ends".into())),
        }
    }

    /// Asks a server for its door.
    async fn ask(&self, owner: &Owner) -> Result<DoorPlace, NoDoor> {
        let header = Header::within(owner.cluster, owner.server);
        let asked = call(
            &*self.network,
            &owner.address,
            header,
            &GetDoor {},
            ASK_LIMIT,
        );
        match asked.await {
            Ok(reply) => reply
                .door
                .ok_or_else(|| NoDoor::Later("it has no door".into())),
            Err(RpcError::Refused(Refusal::Fatal {
                kind: FatalKind::Unsupported,
                ..
            })) => Err(NoDoor::Never("it is an earlier build")),
            Err(error @ (RpcError::Refused(_) | RpcError::Call(_) | RpcError::BadReply(..))) => {
                Err(NoDoor::Later(error.to_string()))
            }
        }
    }

    /// Does work that blocks; `None` when the process ends.
    async fn outside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (give, take) = oneshot::channel();
        let work = Box::new(move || {
            // Without a receiver nobody wants to know.
            drop(give.send(work()));
        });
        self.tasks.run_blocking(work).await;
        take.await.ok()
    }

    /// Fetches newer maps, until the server is gone or nobody has read for a while; says why it
    /// ended.
    async fn watch(&self, door: &Door, reader: &Arc<dyn MappedReader>) -> String {
        let (mut pause, mut idle) = (MAP_PAUSE_MIN, 0);
        loop {
            let stale = door.stale.notified();
            if timeout(&*self.clock, LOOK, stale).await.is_err() {
                idle += 1;
            }
            if door.used.swap(false, Ordering::Relaxed) {
                idle = 0;
            } else if idle >= LOOKS_IDLE {
                return "nobody reads".into();
            }
            if reader.is_current() {
                pause = MAP_PAUSE_MIN;
                continue;
            }
            let stale = Arc::clone(reader);
            match self.outside(move || stale.refresh()).await {
                Some(Ok(())) => {}
                Some(Err(NotMapped(why))) => return why,
                None => return "this process ends".into(),
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(LOOK);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
