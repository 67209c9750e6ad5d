//! The door: its socket, its thread, its policy.

use crate::owner::Owner;
use crate::session::{ReaderInfo, Session};
use pluvio_env::Pace;
use pluvio_env::host::{Host, ThisMachine, Worker};
use pluvio_mapped::boottime_ns;
use pluvio_mapped::messages::Message;
use pluvio_mapped::socket::send;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two looks while somebody reads: the page is made fresh, and the time brought
/// forward by which deadlines are judged.
const PACE: Duration = Duration::from_millis(5);
/// Time between two looks while nobody does: how long the end of the door may take.
const IDLE: Duration = Duration::from_millis(50);
/// Processes that wait to be let in.
const BACKLOG: i32 = 16;
/// Most readers that a door can be opened for.
const READERS_LIMIT: usize = 1024;

/// The users that may read, beside the one that the owner runs as.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// These users.
    pub uids: Vec<u32>,
    /// Processes whose group is one of these. Their supplementary groups do not count.
    pub gids: Vec<u32>,
}

impl Allowed {
    /// Whether a process of that user and group may read the memory of one of the user `own`.
    #[must_use]
    pub fn allows(&self, uid: u32, gid: u32, own: u32) -> bool {
        uid == own || self.uids.contains(&uid) || self.gids.contains(&gid)
    }
}

/// How a door is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoorOptions {
    /// The users that may read.
    pub allowed: Allowed,
    /// Most readers at a time, 1 to 1024. Default 64.
    pub readers_max: usize,
}

impl Default for DoorOptions {
    fn default() -> Self {
        Self {
            allowed: Allowed::default(),
            readers_max: 64,
        }
    }
}

/// Why a door cannot be opened. Nothing was kept.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The engine was opened without readers. Not retryable.
    #[error("the store's memory is not shared: build it with option shared")]
    NotShared,
    /// Another process listens there, or it is no socket. Retryable with another place.
    #[error("{0} is in use, or is no socket")]
    InUse(PathBuf),
    /// The number of readers is out of range. Not retryable.
    #[error("option readers_max: {0}; 1 to {most} are possible", most = READERS_LIMIT)]
    ReadersMax(usize),
    /// The system's answer.
    #[error("cannot {what} {path}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The place.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

/// Counts of a door.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DoorStats {
    /// The processes that read now.
    pub readers: Vec<ReaderInfo>,
    /// Processes that were let in since the start.
    pub let_in: u64,
    /// Processes that were refused since the start.
    pub refused: u64,
}

/// An open door. Dropping it ends all sessions, and no read counts from then on.
pub struct Door {
    path: PathBuf,
    /// Which file at `path` is ours.
    inode: u64,
    owner: Arc<dyn Owner>,
    stats: Arc<Mutex<DoorStats>>,
    worker: Option<Worker>,
}

impl Door {
    /// Opens a door at `path`, where a socket of an owner that is gone is replaced.
    ///
    /// # Errors
    /// See [`DoorError`].
    pub fn open(
        path: impl AsRef<Path>,
        owner: Arc<dyn Owner>,
        options: DoorOptions,
    ) -> Result<Self, DoorError> {
        let path = path.as_ref();
        if !owner.engine().is_read() {
            return Err(DoorError::NotShared);
        }
        if !(1..=READERS_LIMIT).contains(&options.readers_max) {
            return Err(DoorError::ReadersMax(options.readers_max));
        }
        let (socket, inode) = listen(path, &options.allowed)?;
        let stats = Arc::<Mutex<DoorStats>>::default();
        let mut keeper = Keeper {
            socket,
            own: rustix::process::geteuid().as_raw(),
            owner: Arc::clone(&owner),
            options,
            sessions: Vec::new(),
            stats: Arc::clone(&stats),
        };
        let step = move || {
            keeper.step();
            Pace::Again
        };
        let worker = ThisMachine.work("door".into(), Box::new(step));
        let worker = worker.map_err(|source| DoorError::System {
            what: "start a thread for",
            path: path.into(),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            inode,
            owner,
            stats,
            worker: Some(worker),
        })
    }

    /// Counts, and the processes that read now.
    #[must_use]
    pub fn stats(&self) -> DoorStats {
        locked(&self.stats).clone()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Ends the thread, and with it the sessions.
        self.worker = None;
        if let Some(gate) = self.owner.engine().gate() {
            gate.close();
        }
        self.owner.engine().space().foreign_readers(false);
        if inode_of(&self.path) == Some(self.inode) {
            let _gone_already = std::fs::remove_file(&self.path);
        }
    }
}

impl core::fmt::Debug for Door {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Door")
            .field("path", &self.path)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The time of the clock that readers share.
fn boottime() -> Duration {
    Duration::from_nanos(boottime_ns())
}

fn locked(stats: &Mutex<DoorStats>) -> MutexGuard<'_, DoorStats> {
    stats.lock().unwrap_or_else(PoisonError::into_inner)
}

fn inode_of(path: &Path) -> Option<u64> {
    rustix::fs::lstat(path).ok().map(|status| status.st_ino)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A socket that listens at `path`, and its inode. It comes there by a rename: no moment passes
/// without a socket where there was one.
fn listen(path: &Path, allowed: &Allowed) -> Result<(OwnedFd, u64), DoorError> {
    let failed = |what| {
        move |errno: Errno| DoorError::System {
            what,
            path: path.into(),
            source: errno.into(),
        }
    };
    let address = SocketAddrUnix::new(path).map_err(failed("listen at"))?;
    if let Ok(status) = rustix::fs::lstat(path) {
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        let probe = new_socket().map_err(failed("look at"))?;
        let answers = match rustix::net::connect(&probe, &address) {
            Err(Errno::CONNREFUSED | Errno::NOENT) => false,
            Ok(()) | Err(_) => true,
        };
        if !is_socket || answers {
            return Err(DoorError::InUse(path.into()));
        }
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", rustix::process::getpid().as_raw_nonzero()));
    let aside = PathBuf::from(name);
    let _none = std::fs::remove_file(&aside);
    let socket = new_socket().map_err(failed("listen at"))?;
    let address = SocketAddrUnix::new(&aside).map_err(failed("listen at"))?;
    rustix::net::bind(&socket, &address).map_err(failed("listen at"))?;
    // Connecting takes the right to write. Credentials decide about the rest.
    let mode = match allowed == &Allowed::default() {
        true => Mode::from_raw_mode(0o600),
        false => Mode::from_raw_mode(0o666),
    };
    let placed = rustix::fs::chmod(&aside, mode)
        .and_then(|()| rustix::net::listen(&socket, BACKLOG))
        .and_then(|()| rustix::fs::lstat(&aside))
        .and_then(|status| rustix::fs::rename(&aside, path).map(|()| status.st_ino));
    match placed {
        Ok(inode) => Ok((socket, inode)),
        Err(errno) => {
            let _rest = std::fs::remove_file(&aside);
            Err(failed("listen at")(errno))
        }
    }
}

/// The work of the door's thread.
struct Keeper {
    socket: OwnedFd,
    /// The user that this process runs as.
    own: u32,
    owner: Arc<dyn Owner>,
    options: DoorOptions,
    sessions: Vec<Session>,
    stats: Arc<Mutex<DoorStats>>,
}

impl Keeper {
    fn step(&mut self) {
        let mut ready = self.wait(boottime());
        let now = boottime();
        let knocked = ready.pop().is_some_and(|listening| !listening.is_empty());
        let mut ready = ready.into_iter();
        let owner = &*self.owner;
        self.sessions.retain_mut(|session| {
            session.work(owner, ready.next().unwrap_or(PollFlags::empty()), now)
        });
        if knocked {
            self.let_in(now);
        }
        let attached = self.sessions.iter().any(Session::is_attached);
        self.owner.engine().space().foreign_readers(attached);
        if !self.sessions.is_empty() {
            let until = self.owner.fresh_until(boottime());
            self.owner.engine().tend_readers(until);
        }
        let readers = self.sessions.iter().filter(|s| s.is_attached());
        let readers = readers.map(|session| session.info(now)).collect();
        locked(&self.stats).readers = readers;
    }

    /// Waits for sessions, in their order, and for the socket that listens, which comes last.
    fn wait(&self, now: Duration) -> Vec<PollFlags> {
        let sessions = self.sessions.iter();
        let of_session = |s: &'_ Session| s.interest(now);
        let mut fds: Vec<PollFd<'_>> = sessions
            .map(|session| PollFd::from_borrowed_fd(session.socket(), of_session(session)))
            .chain([PollFd::new(&self.socket, PollFlags::IN)])
            .collect();
        let pause = if self.sessions.is_empty() { IDLE } else { PACE };
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(pause.subsec_nanos()),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => fds.iter().map(PollFd::revents).collect(),
            // Interrupted, or no memory: nothing is known.
            Err(_) => vec![PollFlags::empty(); fds.len()],
        }
    }

    fn let_in(&mut self, now: Duration) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.socket, flags) else {
            return;
        };
        match self.judge(&socket) {
            Ok(info) => {
                let (pid, uid, gid) = (info.pid, info.uid, info.gid);
                tracing::info!(pid, uid, gid, "a process maps this memory to read it");
                self.sessions.push(Session::new(socket, info, now));
                locked(&self.stats).let_in += 1;
            }
            Err(why) => {
                tracing::warn!(why, "a process may not read this memory");
                let packet = Message::Refused(why).encode();
                let _it_has_gone = send(&socket, &packet, &[], SendFlags::DONTWAIT);
                locked(&self.stats).refused += 1;
            }
        }
    }

    /// Whether the process at the other end may read (DOOR-3).
    fn judge(&self, socket: &OwnedFd) -> Result<ReaderInfo, String> {
        let cred = rustix::net::sockopt::socket_peercred(socket)
            .map_err(|errno| format!("its credentials are not known: {errno}"))?;
        let (uid, gid) = (cred.uid.as_raw(), cred.gid.as_raw());
        if !self.options.allowed.allows(uid, gid, self.own) {
            return Err(format!("user {uid} (group {gid}) may not read here"));
        }
        if self.sessions.len() >= self.options.readers_max {
            return Err(format!("there are {} readers already", self.sessions.len()));
        }
        Ok(ReaderInfo {
            pid: cred.pid.as_raw_nonzero().get(),
            uid,
            gid,
            since: Duration::ZERO,
            maps: 0,
        })
    }
}
