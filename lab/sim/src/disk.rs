//! `env::Disk` over [`Storage`](crate::storage::Storage): every operation takes virtual time and
//! happens at its end.
//!
//! An operation begins when its future is first polled and goes on when the future is dropped, as
//! one in the hands of an operating system does. Of operations that were under way when their
//! process died, the seed chooses those that happened.

use crate::clock::nanos;
use crate::executor::{Action, Shared, locked};
use crate::queue::Event;
use crate::slab::Key;
use crate::state::{Owner, Process, ProcessId, State};
use crate::storage::{SECTOR, SharedInode};
use crate::trace::Fact;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use pluvio_env::{BoxFuture, Disk, DiskError, File, FileAt, OpenMode};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// A disk that takes longer has no writes that end at once.
const QUICK: Duration = Duration::from_millis(1);

/// What to do. Syncs carry the number of the last change at the time of the call.
enum Request {
    Open {
        path: String,
        mode: OpenMode,
    },
    Remove {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    List {
        directory: String,
    },
    SyncDirectory {
        directory: String,
        upto: u64,
    },
    Read {
        inode: SharedInode,
        path: Arc<str>,
        offset: u64,
        length: usize,
    },
    Write {
        inode: SharedInode,
        path: Arc<str>,
        offset: u64,
        data: Bytes,
    },
    Sync {
        inode: SharedInode,
        path: Arc<str>,
        upto: u64,
    },
    Length {
        inode: SharedInode,
        path: Arc<str>,
    },
}

enum Answer {
    Opened(SharedInode),
    Names(Vec<String>),
    Data(Bytes),
    Length(u64),
    Done,
}

type Outcome = Result<Answer, DiskError>;

/// Where an operation leaves its outcome and finds who waits for it.
#[derive(Default)]
struct Pickup {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// An operation that has begun.
pub(crate) struct DiskOperation {
    pub(crate) owner: Owner,
    pub(crate) task: Option<Key>,
    pub(crate) since: u64,
    request: Request,
    pickup: Arc<Mutex<Pickup>>,
}

impl Request {
    fn what(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Remove { .. } => "remove",
            Self::Rename { .. } => "rename",
            Self::List { .. } => "list",
            Self::SyncDirectory { .. } => "sync directory",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Sync { .. } => "sync",
            Self::Length { .. } => "length",
        }
    }

    fn path(&self) -> &str {
        match self {
            Self::Open { path, .. } | Self::Remove { path } => path,
            Self::Rename { to, .. } => to,
            Self::List { directory } | Self::SyncDirectory { directory, .. } => directory,
            Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::Sync { path, .. }
            | Self::Length { path, .. } => path,
        }
    }

    /// Offset and length.
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Read { offset, length, .. } => (*offset, *length as u64),
            Self::Write { offset, data, .. } => (*offset, data.len() as u64),
            Self::Open { .. }
            | Self::Remove { .. }
            | Self::Rename { .. }
            | Self::List { .. }
            | Self::SyncDirectory { .. }
            | Self::Sync { .. }
            | Self::Length { .. } => (0, 0),
        }
    }
}

impl DiskOperation {
    /// For the list of what a stuck run waits for.
    pub(crate) fn describe(&self) -> String {
        format!("disk {} {}", self.request.what(), self.request.path())
    }
}

struct DiskFuture {
    shared: Arc<Shared>,
    owner: Owner,
    request: Option<Request>,
    pickup: Arc<Mutex<Pickup>>,
}

impl Future for DiskFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut pickup = locked(&self.pickup);
        if let Some(outcome) = pickup.outcome.take() {
            return Poll::Ready(outcome);
        }
        let old = pickup.waker.replace(context.waker().clone());
        drop(pickup);
        drop(old);
        if let Some(request) = self.request.take() {
            let mut state = self.shared.lock();
            if state.is_alive(self.owner) {
                let pickup = Arc::clone(&self.pickup);
                state.begin_disk(self.owner, request, pickup);
            }
        }
        Poll::Pending
    }
}

impl State {
    fn begin_disk(&mut self, owner: Owner, mut request: Request, pickup: Arc<Mutex<Pickup>>) {
        match &mut request {
            Request::SyncDirectory { upto, .. } => {
                *upto = self.process(owner.process).storage.change_last();
            }
            Request::Sync { upto, inode, .. } => *upto = locked(inode).write_last(),
            Request::Open { .. }
            | Request::Remove { .. }
            | Request::Rename { .. }
            | Request::List { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Length { .. } => {}
        }
        let time = self.now + self.disk_time(owner.process, &request);
        let key = self.disk_operations.insert(DiskOperation {
            owner,
            task: self.current.as_ref().and_then(|current| current.task),
            since: self.now,
            request,
            pickup,
        });
        self.queue.push(time, Event::Disk(key));
    }

    fn disk_time(&mut self, process: ProcessId, request: &Request) -> u64 {
        let faults = &self.processes[process.0 as usize].disk;
        let random = &mut self.random_disk;
        let mut time = random.between(nanos(faults.latency_min), nanos(faults.latency_max));
        if random.chance(faults.tail_ppm) {
            time += random.between(0, nanos(faults.tail_max));
        }
        if matches!(
            request,
            Request::Sync { .. } | Request::SyncDirectory { .. }
        ) {
            time += nanos(faults.sync_latency);
        }
        let (_, length) = request.range();
        time + length
            .saturating_mul(1_000_000_000)
            .checked_div(faults.bytes_per_second)
            .unwrap_or(0)
    }

    /// Whether a write ends at once: every other one, where the disk is quick.
    fn writes_now(&mut self, process: ProcessId) -> bool {
        let quick = self.processes[process.0 as usize].disk.latency_max <= QUICK;
        quick && self.random_disk.below(2) == 0
    }

    pub(crate) fn complete_disk(&mut self, key: Key) -> Action {
        let Some(operation) = self.disk_operations.remove(key) else {
            return Action::Nothing;
        };
        let process = operation.owner.process;
        let outcome = self.execute(process, &operation.request);
        self.record_disk(process, &operation.request, outcome.is_ok());
        let mut pickup = locked(&operation.pickup);
        pickup.outcome = Some(outcome);
        match pickup.waker.take() {
            Some(waker) => Action::Wake(waker),
            None => Action::Nothing,
        }
    }

    fn record_disk(&mut self, process: ProcessId, request: &Request, ok: bool) {
        let (offset, length) = request.range();
        self.record(&Fact::Disk {
            what: request.what(),
            process,
            path: request.path(),
            offset,
            length,
            ok,
        });
    }

    fn execute(&mut self, process: ProcessId, request: &Request) -> Outcome {
        let Process { storage, disk, .. } = &mut self.processes[process.0 as usize];
        let random = &mut self.random_disk;
        let broken = |path: &str| DiskError::Other {
            path: path.into(),
            message: "simulated device error".into(),
        };
        match request {
            Request::Open { path, mode } => Ok(Answer::Opened(storage.open(path, *mode)?)),
            Request::Remove { path } => {
                storage.remove(path);
                Ok(Answer::Done)
            }
            Request::Rename { from, to } => {
                storage.rename(from, to)?;
                Ok(Answer::Done)
            }
            Request::List { directory } => Ok(Answer::Names(storage.list(directory))),
            Request::SyncDirectory { directory, upto } => {
                if random.chance(disk.sync_error_ppm) {
                    return Err(broken(directory));
                }
                storage.sync_directory(directory, *upto);
                Ok(Answer::Done)
            }
            Request::Read {
                inode,
                path,
                offset,
                length,
            } => {
                if random.chance(disk.read_error_ppm) {
                    return Err(broken(path));
                }
                Ok(Answer::Data(locked(inode).read(*offset, *length)))
            }
            Request::Write {
                inode,
                path,
                offset,
                data,
            } => {
                let mut inode = locked(inode);
                if random.chance(disk.write_error_ppm) {
                    let part = random.below(data.len() as u64 + 1) as usize;
                    if part > 0 {
                        // A disk that is full on top of it still fails this write only once.
                        let _ = inode.write(path, *offset, &data.slice(..part), disk.capacity);
                    }
                    return Err(broken(path));
                }
                inode.write(path, *offset, data, disk.capacity)?;
                Ok(Answer::Done)
            }
            Request::Sync { inode, path, upto } => {
                let mut inode = locked(inode);
                if random.chance(disk.sync_error_ppm) {
                    if random.below(2) == 0 {
                        inode.forget(*upto);
                    }
                    return Err(broken(path));
                }
                inode.sync(*upto);
                Ok(Answer::Done)
            }
            Request::Length { inode, .. } => Ok(Answer::Length(locked(inode).len())),
        }
    }

    /// Decides what becomes of the operations that were under way when `owner` died.
    pub(crate) fn settle_disk(&mut self, owner: Owner) -> Vec<(Key, DiskOperation)> {
        let under_way = self
            .disk_operations
            .drain_where(|operation| operation.owner == owner);
        for (_, operation) in &under_way {
            let request = &operation.request;
            if self.random_disk.below(2) == 0 {
                continue;
            }
            if let Request::Write {
                inode,
                path,
                offset,
                data,
            } = request
                && !data.is_empty()
                && self.random_disk.below(2) == 0
            {
                let part = self.random_disk.between(1, data.len() as u64);
                let part = whole_sectors(*offset, part, data.len() as u64) as usize;
                if part == 0 {
                    continue;
                }
                let part = Request::Write {
                    inode: Arc::clone(inode),
                    path: Arc::clone(path),
                    offset: *offset,
                    data: data.slice(..part),
                };
                let ok = self.execute(owner.process, &part).is_ok();
                self.record_disk(owner.process, &part, ok);
                continue;
            }
            let ok = self.execute(owner.process, request).is_ok();
            self.record_disk(owner.process, request, ok);
        }
        under_way
    }
}

/// How much of a write that was cut off after `part` of `length` bytes is there: sectors are
/// written whole.
fn whole_sectors(offset: u64, part: u64, length: u64) -> u64 {
    if part == length {
        return length;
    }
    ((offset + part) / SECTOR * SECTOR).saturating_sub(offset)
}

/// The disk of one incarnation.
pub(crate) struct SimDisk {
    shared: Arc<Shared>,
    owner: Owner,
    /// Directories of which a sync has failed: no later one succeeds.
    failed_syncs: Mutex<BTreeSet<String>>,
}

fn run(shared: &Arc<Shared>, owner: Owner, request: Request) -> DiskFuture {
    DiskFuture {
        shared: Arc::clone(shared),
        owner,
        request: Some(request),
        pickup: Arc::default(),
    }
}

impl SimDisk {
    pub(crate) fn new(shared: Arc<Shared>, owner: Owner) -> Self {
        Self {
            shared,
            owner,
            failed_syncs: Mutex::default(),
        }
    }

    fn run(&self, request: Request) -> DiskFuture {
        run(&self.shared, self.owner, request)
    }
}

/// The kind of an answer follows from the request; the compiler cannot see it.
fn mismatch() -> ! {
    unreachable!("State::execute gives every request its own kind of answer")
}

async fn done(future: DiskFuture) -> Result<(), DiskError> {
    future.await.map(|_| ())
}

impl Disk for SimDisk {
    fn open(&self, path: &str, mode: OpenMode) -> BoxFuture<'_, Result<Arc<dyn File>, DiskError>> {
        let name: Arc<str> = path.into();
        let path = path.to_string();
        Box::pin(async move {
            let Answer::Opened(inode) = self.run(Request::Open { path, mode }).await? else {
                mismatch();
            };
            let file: Arc<dyn File> = Arc::new(SimFile {
                shared: Arc::clone(&self.shared),
                owner: self.owner,
                path: name,
                inode,
            });
            Ok(file)
        })
    }

    fn remove(&self, path: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let path = path.to_string();
        Box::pin(done(self.run(Request::Remove { path })))
    }

    fn rename(&self, from: &str, to: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let (from, to) = (from.to_string(), to.to_string());
        Box::pin(done(self.run(Request::Rename { from, to })))
    }

    fn list(&self, directory: &str) -> BoxFuture<'_, Result<Vec<String>, DiskError>> {
        let directory = directory.to_string();
        let future = self.run(Request::List { directory });
        Box::pin(async move {
            match future.await? {
                Answer::Names(names) => Ok(names),
                Answer::Opened(_) | Answer::Data(_) | Answer::Length(_) | Answer::Done => {
                    mismatch()
                }
            }
        })
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let directory = directory.to_string();
        let future = self.run(Request::SyncDirectory {
            directory: directory.clone(),
            upto: 0,
        });
        Box::pin(async move {
            let result = done(future).await;
            let mut failed = locked(&self.failed_syncs);
            if result.is_err() {
                failed.insert(directory.clone());
            }
            if result.is_ok() && failed.contains(&directory) {
                return Err(DiskError::Other {
                    path: directory,
                    message: "an earlier sync failed".into(),
                });
            }
            result
        })
    }

    /// Takes no time: the system has names in memory.
    fn misplaced(&self, files: Vec<FileAt>) -> BoxFuture<'_, Result<Vec<usize>, DiskError>> {
        let state = self.shared.lock();
        let storage = &state.process(self.owner.process).storage;
        let is_there = |file: &FileAt| {
            let found = storage.get(&file.path).map(identity_of);
            let open = file.open.as_ref().and_then(|open| open.identity());
            found.is_some_and(|found| open.is_none_or(|open| open == found))
        };
        let all = files.iter().enumerate();
        let misplaced = all.filter(|(_, file)| !is_there(file));
        let misplaced = misplaced.map(|(number, _)| number).collect();
        Box::pin(core::future::ready(Ok(misplaced)))
    }

    fn boot(&self) -> u64 {
        self.shared
            .lock()
            .process_mut(self.owner.process)
            .storage
            .boot()
    }
}

/// Only good for comparisons: it differs from run to run.
fn identity_of(inode: &SharedInode) -> (u64, u64) {
    (0, Arc::as_ptr(inode).addr() as u64)
}

struct SimFile {
    shared: Arc<Shared>,
    owner: Owner,
    path: Arc<str>,
    inode: SharedInode,
}

impl SimFile {
    fn run(&self, request: Request) -> DiskFuture {
        run(&self.shared, self.owner, request)
    }
}

impl File for SimFile {
    fn read_at(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        let future = self.run(Request::Read {
            inode: Arc::clone(&self.inode),
            path: Arc::clone(&self.path),
            offset,
            length,
        });
        Box::pin(async move {
            match future.await? {
                Answer::Data(data) => Ok(data),
                Answer::Opened(_) | Answer::Names(_) | Answer::Length(_) | Answer::Done => {
                    mismatch()
                }
            }
        })
    }

    fn write_at(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(done(self.run(Request::Write {
            inode: Arc::clone(&self.inode),
            path: Arc::clone(&self.path),
            offset,
            data,
        })))
    }

    fn write_both_at(
        &self,
        offset: u64,
        first: Bytes,
        second: Bytes,
    ) -> BoxFuture<'_, Result<(), DiskError>> {
        let both = [first, second].concat();
        self.write_at(offset, both.into())
    }

    fn write_both_now(
        &self,
        offset: u64,
        first: &[u8],
        second: &[u8],
    ) -> Option<Result<(), DiskError>> {
        let mut state = self.shared.lock();
        if !state.is_alive(self.owner) || !state.writes_now(self.owner.process) {
            return None;
        }
        let request = Request::Write {
            inode: Arc::clone(&self.inode),
            path: Arc::clone(&self.path),
            offset,
            data: [first, second].concat().into(),
        };
        let outcome = state.execute(self.owner.process, &request);
        state.record_disk(self.owner.process, &request, outcome.is_ok());
        Some(outcome.map(|_| ()))
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(done(self.run(Request::Sync {
            inode: Arc::clone(&self.inode),
            path: Arc::clone(&self.path),
            upto: 0,
        })))
    }

    fn identity(&self) -> Option<(u64, u64)> {
        Some(identity_of(&self.inode))
    }

    fn size(&self) -> BoxFuture<'_, Result<u64, DiskError>> {
        let future = self.run(Request::Length {
            inode: Arc::clone(&self.inode),
            path: Arc::clone(&self.path),
        });
        Box::pin(async move {
            match future.await? {
                Answer::Length(length) => Ok(length),
                Answer::Opened(_) | Answer::Names(_) | Answer::Data(_) | Answer::Done => mismatch(),
            }
        })
    }
}
