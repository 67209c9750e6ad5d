//! The reader's end of a session: it asks for what it may map, and for new maps.

use crate::clock::boottime_ns;
use crate::map::Map;
use crate::messages::{Message, Welcome};
use crate::socket::{receive, send};
use pluvio_index::IndexReader;
use pluvio_log::LogReader;
use pluvio_memory::{GateView, SharedMemoryError};
use pluvio_units::{ClusterId, ServerId};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long an answer of the owner is waited for: it answers within some milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Owner and reader agree on the time up to this. The answer to the greeting shows it.
pub(crate) const CLOCK_SLACK: Duration = Duration::from_millis(50);
/// Greetings, one of which must be answered within [`CLOCK_SLACK`].
const GREETINGS: u32 = 20;

/// Why a store cannot be read. Retryable, but for [`Self::Refused`], [`Self::OtherOwner`],
/// [`Self::OtherUser`] and [`Self::Clocks`], which another configuration helps against.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system's answer: nobody listens there, or this user may not connect.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// The address.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The owner lets this process not read.
    #[error("the owner refuses: {0}")]
    Refused(String),
    /// The session broke off.
    #[error("the owner does not answer: {0}")]
    Broken(io::Error),
    /// Another one than the wanted server has this door.
    #[error("the door is that of server {1} of cluster {0}")]
    OtherOwner(ClusterId, ServerId),
    /// Another user listens there than the wanted server's.
    #[error("the door is that of user {0}")]
    OtherUser(u32),
    /// The owner speaks another protocol, or shares memory of another layout.
    #[error("the owner is another version: {0}")]
    OtherVersion(String),
    /// The clocks of owner and reader differ, or the machine is so busy that this cannot be told.
    #[error("the owner has another clock (a time namespace?), or answers too slowly")]
    Clocks,
}

impl OpenError {
    fn broken(errno: Errno) -> Self {
        Self::Broken(errno.into())
    }

    fn other(why: impl ToString) -> Self {
        Self::OtherVersion(why.to_string())
    }
}

/// The one owner whose memory is wanted. The path of a door does not tell: others may get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnlyOwner {
    /// The cluster.
    pub cluster: ClusterId,
    /// The server. Its id stands for one life of it.
    pub server: ServerId,
    /// The user that it runs as, whom the system knows.
    pub uid: u32,
}

/// The mapped memory that stays the same as long as the owner lives.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) gate: GateView,
    pub(crate) log: LogReader,
    pub(crate) welcome: Welcome,
}

/// A session of the process that made it.
#[derive(Debug)]
pub(crate) struct Session {
    socket: OwnedFd,
    pid: rustix::process::Pid,
}

impl Session {
    /// Connects, and maps what the owner shares, if it is the wanted one.
    pub(crate) fn connect(
        path: &Path,
        only: Option<OnlyOwner>,
    ) -> Result<(Self, Memory), OpenError> {
        let refused = |errno: Errno| OpenError::Connect {
            path: path.into(),
            source: errno.into(),
        };
        let mut last = OpenError::Clocks;
        for _greeting in 0..GREETINGS {
            let address = SocketAddrUnix::new(path).map_err(refused)?;
            let kind = SocketType::SEQPACKET;
            let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
            let socket = socket.map_err(refused)?;
            for which in [Timeout::Recv, Timeout::Send] {
                set_socket_timeout(&socket, which, Some(PATIENCE)).map_err(refused)?;
            }
            retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(refused)?;
            let session = Self {
                socket,
                pid: rustix::process::getpid(),
            };
            if let Some(only) = only {
                let peer = socket_peercred(&session.socket).map_err(refused)?;
                if peer.uid.as_raw() != only.uid {
                    return Err(OpenError::OtherUser(peer.uid.as_raw()));
                }
            }
            match session.greet(only) {
                Ok(memory) => return Ok((session, memory)),
                Err(OpenError::Clocks) => last = OpenError::Clocks,
                Err(other) => return Err(other),
            }
        }
        Err(last)
    }

    /// Whether this process made it: not a child that was forked since.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == rustix::process::getpid()
    }

    fn greet(&self, only: Option<OnlyOwner>) -> Result<Memory, OpenError> {
        let before = boottime_ns();
        // An owner that refuses says so, and closes, before it hears anything: then the greeting
        // may fail, and the end is reported before its reason.
        let greeted = self.send(&Message::Hello);
        let answer = match (greeted, self.receive()) {
            (Ok(()), Err(OpenError::Broken(_))) => self.receive(),
            (Err(error), Err(OpenError::Broken(_))) => Err(error),
            // A packet that is no message of this version is an answer, too.
            (Ok(()) | Err(_), answer) => answer,
        };
        let (message, files) = answer?;
        let after = boottime_ns();
        let welcome = match message {
            Message::Welcome(welcome) => welcome,
            Message::Refused(why) => return Err(OpenError::Refused(why)),
            other => return Err(OpenError::other(format!("it sent {other:?}"))),
        };
        let owner = (welcome.cluster, welcome.server);
        if only.is_some_and(|only| (only.cluster, only.server) != owner) {
            return Err(OpenError::OtherOwner(owner.0, owner.1));
        }
        // The owner's clock was read between these two.
        let slack = u64::try_from(CLOCK_SLACK.as_nanos()).unwrap_or(0);
        if !(before..=after).contains(&welcome.boottime_ns) || after - before > slack {
            return Err(OpenError::Clocks);
        }
        let Ok([gate, log, seglets]) = <[OwnedFd; 3]>::try_from(files) else {
            return Err(OpenError::other("it sent other files"));
        };
        let unfit = |error: SharedMemoryError| OpenError::other(error);
        Ok(Memory {
            gate: GateView::open(gate.as_fd(), welcome.gate).map_err(unfit)?,
            log: LogReader::open(
                (log.as_fd(), welcome.log),
                (seglets.as_fd(), welcome.seglets),
            )
            .map_err(unfit)?,
            welcome,
        })
    }

    /// A new map. Indexes that `known` has stay mapped.
    pub(crate) fn map(&self, known: &Map) -> Result<Map, OpenError> {
        self.send(&Message::GetMap)?;
        let (Message::Map(version), _) = self.receive()? else {
            return Err(OpenError::other("it sent no map"));
        };
        let mut map = Map::new(version);
        loop {
            let (message, files) = self.receive()?;
            match message {
                Message::Table(table) => map.add_table(table).map_err(OpenError::other)?,
                Message::Index(entry) => {
                    let index = match files.first() {
                        Some(file) => {
                            let index = IndexReader::open(file.as_fd(), entry.layout);
                            Arc::new(index.map_err(OpenError::other)?)
                        }
                        None => {
                            let index = map.index(entry.layout.id);
                            let index = index.or_else(|| known.index(entry.layout.id));
                            let index = index.cloned();
                            index.ok_or_else(|| OpenError::other("an index without its file"))?
                        }
                    };
                    map.add_index(&entry, index).map_err(OpenError::other)?;
                }
                Message::MapEnd(end) if end == version => {
                    return map.finish().map_err(OpenError::other);
                }
                other => return Err(OpenError::other(format!("it sent {other:?}"))),
            }
        }
    }

    fn send(&self, message: &Message) -> Result<(), OpenError> {
        let flags = SendFlags::empty();
        send(&self.socket, &message.encode(), &[], flags).map_err(OpenError::broken)
    }

    fn receive(&self) -> Result<(Message, Vec<OwnedFd>), OpenError> {
        let flags = RecvFlags::empty();
        let (packet, files) = receive(&self.socket, flags).map_err(OpenError::broken)?;
        if packet.is_empty() {
            return Err(OpenError::broken(Errno::CONNRESET));
        }
        let message = Message::decode(&packet).map_err(OpenError::other)?;
        Ok((message, files))
    }
}
