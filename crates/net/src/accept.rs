//! Ports: accepts connections on one core and deals them to all.
//!
//! One acceptor per port gives each connection to the core that has the fewest of this port's, ties
//! in turn. A listener per core with `SO_REUSEPORT` would save the hand-over. But then the kernel
//! deals by hash, which leaves cores idle when connections are few, and two processes could take
//! the same port unnoticed.
//!
//! Invariants
//! - ACCEPT-1: the count of open connections is at most `connections_max`; each is given up when
//!   its task ends, for any reason.
//! - ACCEPT-2: when the port is closed, it can be bound again at once, and its connections' tasks
//!   end at their next suspension.

use crate::client_io::Shared;
use crate::counters::add;
use crate::handshake::{Status, refusal};
use crate::lock;
use crate::ring::socket::SocketFile;
use crate::serve;
use crate::socket::{tune, write_and_close};
use crate::streams::OsByteStream;
use crate::tls::{self, Unsecured};
use bytes::Bytes;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use pluvio_env::{Address, Clock, Listening, Moment, Peer, Service, StreamService, TaskHandle};
use pluvio_units::CoreId;
use socket2::SockRef;
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

/// Pause after the kernel lacked a file or memory for a connection: without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Refusals spoken at a time; further connections are closed without a word.
const REFUSALS_MAX: usize = 64;
/// Traces about strangers: at most one per this time and port, so that a scanner cannot fill a
/// disk.
const WARN_PAUSE: Duration = Duration::from_secs(1);

/// The use of a port.
#[derive(Clone)]
pub(crate) enum Role {
    Rpc(Arc<dyn Service>),
    Streams {
        service: Arc<dyn StreamService>,
        refusal: Bytes,
    },
}

/// An open port.
pub(crate) struct Port {
    pub(crate) shared: Arc<Shared>,
    role: Role,
    connections_max: usize,
    /// The mark in its address, or 0.
    pub(crate) mark: u64,
    /// The provider of libfabric that carries its connections, if one does.
    pub(crate) provider: Option<Box<str>>,
    state: Mutex<PortState>,
    refusing: AtomicUsize,
}

#[derive(Default)]
struct PortState {
    /// Open connections; `None` while the task is being started.
    tasks: BTreeMap<u64, Option<TaskHandle>>,
    /// Open connections of each core.
    per_core: Vec<usize>,
    next_id: u64,
    /// The core after the one that got the latest connection.
    turn: usize,
    closed: bool,
    warned: Option<Moment>,
}

impl Port {
    pub(crate) fn new(
        shared: Arc<Shared>,
        role: Role,
        connections_max: usize,
        mark: u64,
        provider: Option<Box<str>>,
    ) -> Arc<Self> {
        let cores = usize::from(shared.tasks.cores());
        Arc::new(Self {
            shared,
            role,
            connections_max,
            mark,
            provider,
            state: Mutex::new(PortState {
                per_core: vec![0; cores],
                ..PortState::default()
            }),
            refusing: AtomicUsize::new(0),
        })
    }

    /// Whether a trace about a stranger may be written now.
    pub(crate) fn may_warn(&self) -> bool {
        let now = self.shared.clock.now();
        let warned = &mut lock(&self.state).warned;
        let may = warned.is_none_or(|before| now.since(before) >= WARN_PAUSE);
        if may {
            *warned = Some(now);
        }
        may
    }

    /// Takes a place for a connection, on the core with the fewest. `None` at the bound, or if the
    /// port is closed.
    fn take_place(self: &Arc<Self>) -> Option<Place> {
        let mut state = lock(&self.state);
        if state.closed || state.tasks.len() >= self.connections_max {
            return None;
        }
        let cores = state.per_core.len();
        let turn = state.turn;
        let core = (0..cores)
            .map(|i| (turn + i) % cores)
            .min_by_key(|&core| state.per_core[core])
            .expect("a process has at least one core");
        state.turn = (core + 1) % cores;
        state.per_core[core] += 1;
        let id = state.next_id;
        state.next_id += 1;
        state.tasks.insert(id, None);
        Some(Place {
            port: Arc::clone(self),
            id,
            core: CoreId(u16::try_from(core).expect("cores are counted in a u16")),
        })
    }

    /// Notes the task of a connection, so that closing the port ends it.
    fn run_by(&self, id: u64, task: TaskHandle) {
        let mut state = lock(&self.state);
        let closed = state.closed;
        // A missing place: the task has ended already.
        if let Some(slot) = state.tasks.get_mut(&id) {
            if closed {
                drop(state);
                task.abort();
            } else {
                *slot = Some(task);
            }
        }
    }
}

/// A connection's place among those of its port; given up on drop.
pub(crate) struct Place {
    pub(crate) port: Arc<Port>,
    id: u64,
    pub(crate) core: CoreId,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.port.state);
        let task = state.tasks.remove(&self.id);
        state.per_core[usize::from(self.core.0)] -= 1;
        drop(state);
        // The handle's destructor is foreign code: drop it outside the lock.
        drop(task);
    }
}

/// Closes a port and its connections.
struct PortGuard {
    port: Arc<Port>,
    /// A second descriptor of the listening socket. Shutting it down frees the port at once. The
    /// acceptor's task is dropped a little later on its own core.
    listener: Door,
    acceptor: TaskHandle,
}

impl Drop for PortGuard {
    fn drop(&mut self) {
        let tasks: Vec<TaskHandle> = {
            let mut state = lock(&self.port.state);
            state.closed = true;
            state.tasks.values_mut().filter_map(Option::take).collect()
        };
        self.listener.close();
        self.acceptor.abort();
        for task in tasks {
            task.abort();
        }
    }
}

/// A socket that takes connections, on no event loop.
pub(crate) enum Door {
    Tcp(StdTcpListener),
    /// Of connections over rings. Its file goes with it.
    Ring(
        StdUnixListener,
        #[expect(dead_code, reason = "its destructor removes the file")] Option<SocketFile>,
    ),
}

impl Door {
    /// Frees the port at once.
    fn close(&self) {
        match self {
            Self::Tcp(listener) => {
                if let Err(error) = SockRef::from(listener).shutdown(Shutdown::Both) {
                    tracing::debug!(%error, "the listening socket was closed already");
                }
            }
            // Its file goes. A Unix socket that is shut down would say for ever that a connection
            // waits, and the acceptor would never come to its end.
            Self::Ring(..) => {}
        }
    }

    /// A second descriptor of the same socket.
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Ring(listener, _) => Self::Ring(listener.try_clone()?, None),
        })
    }
}

/// [`Door`] on an event loop.
enum Acceptor {
    Tcp(TcpListener),
    Ring(UnixListener),
}

impl Acceptor {
    fn new(door: Door) -> io::Result<Self> {
        Ok(match door {
            Door::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?),
            Door::Ring(listener, _) => Self::Ring(UnixListener::from_std(listener)?),
        })
    }

    async fn accept(&self) -> io::Result<Arrival> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Arrival::Tcp(stream, from)
            }
            Self::Ring(listener) => Arrival::Ring(listener.accept().await?.0),
        })
    }
}

/// A connection that came in.
pub(crate) enum Arrival {
    Tcp(TcpStream, SocketAddr),
    /// The same, with TLS begun. It stays on its core.
    Tls(Box<TlsStream<TcpStream>>, SocketAddr),
    /// One that is to have rings.
    Ring(UnixStream),
}

impl Arrival {
    /// The other end, for traces.
    fn from(&self) -> Address {
        match self {
            Self::Tcp(_, from) | Self::Tls(_, from) => Address::from(from.to_string().as_str()),
            Self::Ring(socket) => match socket.peer_cred().ok().and_then(|cred| cred.pid()) {
                Some(pid) => Address::from(format!("process {pid} of this machine").as_str()),
                None => Address::from("a process of this machine"),
            },
        }
    }

    /// Says `text`, and closes.
    pub(crate) async fn answer_and_close(self, text: Bytes, clock: &dyn Clock) {
        match self {
            Self::Tcp(stream, _) => write_and_close(stream, text, clock).await,
            Self::Tls(stream, _) => write_and_close(*stream, text, clock).await,
            Self::Ring(socket) => write_and_close(socket, text, clock).await,
        }
    }

    /// Takes the socket off this core's event queue.
    fn into_loose(self) -> io::Result<Loose> {
        Ok(match self {
            Self::Tcp(stream, from) => Loose::Tcp(stream.into_std()?, from),
            Self::Tls(..) => return Err(io::ErrorKind::Unsupported.into()),
            Self::Ring(socket) => Loose::Ring(socket.into_std()?),
        })
    }
}

/// [`Arrival`] on its way to its core.
enum Loose {
    Tcp(StdTcpStream, SocketAddr),
    Ring(StdUnixStream),
}

impl Loose {
    /// Puts the socket on the event queue of the calling task's core.
    fn into_arrival(self) -> io::Result<Arrival> {
        Ok(match self {
            Self::Tcp(stream, from) => Arrival::Tcp(TcpStream::from_std(stream)?, from),
            Self::Ring(socket) => Arrival::Ring(UnixStream::from_std(socket)?),
        })
    }
}

/// Begins to accept at `address`.
///
/// # Errors
/// The kernel's, when descriptors run out.
pub(crate) fn open_port(
    port: Arc<Port>,
    address: Address,
    listener: Door,
) -> io::Result<Listening> {
    let for_task = listener.try_clone()?;
    let loop_port = Arc::clone(&port);
    let tasks = Arc::clone(&port.shared.tasks);
    let acceptor = tasks.spawn(CoreId(0), "acceptor", async move {
        match Acceptor::new(for_task) {
            Ok(acceptor) => accept_all(&loop_port, &acceptor).await,
            Err(error) => tracing::error!(%error, "cannot watch a listening socket"),
        }
    });
    tracing::debug!(%address, connections_max = port.connections_max, "listening");
    Ok(Listening {
        address,
        guard: Box::new(PortGuard {
            port,
            listener,
            acceptor,
        }),
    })
}

async fn accept_all(port: &Arc<Port>, listener: &Acceptor) {
    loop {
        match listener.accept().await {
            Ok(arrival) => {
                if let Err(error) = deal(port, arrival) {
                    tracing::debug!(%error, "a new connection was gone at once");
                }
            }
            Err(error) if is_of_one_connection(&error) => {
                tracing::debug!(%error, "a connection was gone before it was accepted");
            }
            Err(error) => {
                if lock(&port.state).closed {
                    return;
                }
                add(&port.shared.counters.of(CoreId(0)).accepts_failed, 1);
                if port.may_warn() {
                    tracing::warn!(
                        %error,
                        "cannot accept connections; raise the limit of open files if they ran out"
                    );
                }
                port.shared.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Errors of `accept` that say nothing about the next connection.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::PermissionDenied
    )
}

/// Gives a connection to a core, or refuses it.
fn deal(port: &Arc<Port>, arrival: Arrival) -> io::Result<()> {
    let Some(place) = port.take_place() else {
        // A port that is being closed has no bound to name.
        if !lock(&port.state).closed {
            refuse(port, arrival);
        }
        return Ok(());
    };
    let (id, core) = (place.id, place.core);
    // The socket leaves this core's event queue and enters that of its own.
    let loose = arrival.into_loose()?;
    let task = port
        .shared
        .tasks
        .spawn(core, "connection", attend(place, loose));
    port.run_by(id, task);
    Ok(())
}

/// Serves one connection on its core.
async fn attend(place: Place, loose: Loose) {
    let arrival = match loose.into_arrival() {
        Ok(arrival) => arrival,
        Err(error) => {
            tracing::warn!(%error, "cannot watch a connection");
            return;
        }
    };
    let shared = &place.port.shared;
    let tuning = match &place.port.role {
        Role::Rpc(_) => shared.tuning(),
        Role::Streams { .. } => shared.stream_tuning(),
    };
    if let Arrival::Tcp(stream, _) = &arrival {
        tune(stream, tuning);
    }
    let peer = Peer {
        address: arrival.from(),
        core: place.core,
    };
    let Some(arrival) = secured(&place, arrival, &peer).await else {
        return;
    };
    match (&place.port.role, arrival) {
        (Role::Rpc(service), arrival) => {
            Box::pin(serve::serve(&place, arrival, peer, service)).await;
        }
        (Role::Streams { service, .. }, Arrival::Tcp(stream, _)) => {
            let stream = OsByteStream::new(stream, peer, Arc::clone(shared));
            service.serve(Box::new(stream)).await;
        }
        (Role::Streams { service, .. }, Arrival::Tls(stream, _)) => {
            let stream = OsByteStream::new(stream, peer, Arc::clone(shared));
            service.serve(Box::new(stream)).await;
        }
        // No such port is opened.
        (Role::Streams { .. }, Arrival::Ring(_)) => {}
    }
}

/// Begins TLS on a connection, if this process has it (TLS-1). `None`: the connection is over.
async fn secured(place: &Place, arrival: Arrival, peer: &Peer) -> Option<Arrival> {
    let shared = &place.port.shared;
    let (stream, from) = match (arrival, &place.port.provider) {
        // Rings are of this user's processes (MEET-1). Libfabric is not secured.
        (arrival @ (Arrival::Ring(_) | Arrival::Tls(..)), _) | (arrival, Some(_)) => {
            return Some(arrival);
        }
        (Arrival::Tcp(stream, from), None) => (stream, from),
    };
    let Some(tls) = &shared.tls else {
        return Some(Arrival::Tcp(stream, from));
    };
    let (whom, plain_answer) = match &place.port.role {
        Role::Rpc(_) => {
            let words = refusal(Status::Unsecured, &tls::refusal_words());
            (tls::Whom::Members, words)
        }
        Role::Streams { .. } => (tls::Whom::StreamClients, tls::speak_tls()),
    };
    let within = (&*shared.clock, shared.options.handshake_limit);
    // On the heap: a handshake is large, and most of a connection's life it is over.
    let (why, plain) = match Box::pin(tls.accept(stream, whom, within)).await {
        Ok(stream) => return Some(Arrival::Tls(Box::new(stream), from)),
        Err(Unsecured::Wordless) => return None,
        Err(Unsecured::Plain(stream)) => ("it does not speak TLS".to_owned(), Some(stream)),
        Err(Unsecured::Broken(why)) => (why, None),
    };
    add(&shared.counters.of(place.core).tls_failed, 1);
    if place.port.may_warn() {
        tracing::warn!(peer = %peer.address, %why, "a connection got no TLS");
    }
    if let Some(stream) = plain {
        Box::pin(write_and_close(stream, plain_answer, &*shared.clock)).await;
    }
    None
}

/// Tells a connection over the bound the reason for its end.
fn refuse(port: &Arc<Port>, arrival: Arrival) {
    let counters = port.shared.counters.of(CoreId(0));
    add(&counters.connections_refused, 1);
    let most = port.connections_max;
    if port.may_warn() {
        tracing::warn!(most, "a connection was refused: this port has its most");
    }
    if port.refusing.fetch_add(1, Relaxed) >= REFUSALS_MAX {
        port.refusing.fetch_sub(1, Relaxed);
        return;
    }
    // A peer that waits for TLS would not understand words without it.
    let is_plain = port.shared.tls.is_none() || port.provider.is_some();
    let text = match &port.role {
        Role::Rpc(_) | Role::Streams { .. } if !is_plain => Bytes::new(),
        Role::Rpc(_) => {
            let text = format!("too many connections: this server takes {most}; close some");
            refusal(Status::Full, &text)
        }
        Role::Streams { refusal, .. } => refusal.clone(),
    };
    let speaking = Refusing(Arc::clone(port));
    let task = async move {
        let clock = &*speaking.0.shared.clock;
        arrival.answer_and_close(text, clock).await;
    };
    let _runs_alone = port.shared.tasks.spawn(CoreId(0), "refusal", task);
}

/// Counts a refusal that is being spoken.
struct Refusing(Arc<Port>);

impl Drop for Refusing {
    fn drop(&mut self) {
        self.0.refusing.fetch_sub(1, Relaxed);
    }
}
