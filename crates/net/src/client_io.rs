//! The task of one outgoing connection: connects, then moves requests out and replies in.

use crate::client::{Connection, PeerMap, take_out};
use crate::counters::{CoreCounters, Counters, add};
use crate::datagram;
#[cfg(feature = "fabric")]
use crate::fabric::Hubs;
use crate::fabric::{self, Side};
use crate::frame::{FrameFault, Header, Kind};
use crate::handshake::{Terms, Ungreeted, greet};
use crate::link::Link;
use crate::memory::PortMemory;
use crate::options::NetOptions;
use crate::reader::FrameReader;
use crate::ring::handover;
use crate::ring::poller::Poller;
use crate::ring::socket::{Meeting, connect as meet};
use crate::socket::{Tuning, connect, tune};
use crate::tls::Tls;
use crate::watch::{Overdue, Watch};
use crate::writer::WriteQueue;
use core::future::poll_fn;
use core::task::{Context, Poll};
use pluvio_env::{
    Address, CallError, Clock, Frame, NoConnection, TaskHandle, Tasks, Transport, timeout,
};
use pluvio_units::CoreId;
use std::io;
use std::sync::{Arc, OnceLock, Weak};

/// Bytes given to the socket's buffer before it takes some: more would only copy earlier.
const WRITE_AHEAD_BYTES: usize = 256 << 10;
/// Rounds of reading before other tasks have their turn.
const ROUNDS_MAX: usize = 16;

/// The reason why a caller cannot use any endpoint of an address.
const NO_TRANSPORT: &str = "this process has none of the transports that the address names";

/// The state that all connections of a network share.
pub(crate) struct Shared {
    pub(crate) options: NetOptions,
    /// That of every TCP connection, if this process has it.
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) tasks: Arc<dyn Tasks>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Arc<Counters>,
    /// What the connections of the RPC ports hold.
    pub(crate) memory: Arc<PortMemory>,
    /// The endpoints of libfabric, per core.
    #[cfg(feature = "fabric")]
    pub(crate) fabric: Vec<Hubs>,
    /// Of the rings, per core. The first ring of a core starts its task.
    pub(crate) pollers: Vec<(Arc<Poller>, OnceLock<TaskHandle>)>,
}

impl Shared {
    pub(crate) fn new(
        options: NetOptions,
        tls: Option<Arc<Tls>>,
        tasks: Arc<dyn Tasks>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let cores = tasks.cores();
        let poller = |_| {
            let (min, max) = (options.spin, options.ring_spin_max);
            let poller = Poller::new(Arc::clone(&clock), min, max);
            (Arc::new(poller), OnceLock::new())
        };
        let memory = PortMemory::new(
            options.connections_bytes_max,
            options.frame_bytes_max,
            options.standstill_limit,
        );
        Self {
            counters: Arc::new(Counters::new(cores)),
            memory: Arc::new(memory),
            #[cfg(feature = "fabric")]
            fabric: (0..cores.max(1)).map(|_| Hubs::default()).collect(),
            pollers: (0..cores).map(poller).collect(),
            options,
            tls,
            tasks,
            clock,
        }
    }

    /// Whether connections may be carried by something that TLS does not secure (TLS-1).
    ///
    /// # Errors
    /// Text for people.
    pub(crate) fn may_be_open(&self, transport: &str) -> Result<(), String> {
        match &self.tls {
            Some(tls) if !tls.trusts_network() => Err(format!(
                "{transport} carries everything unencrypted, and this process has TLS; give an \
                 address of TCP, or --trust-network if nobody else is on that network"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The poller of a core's rings, which runs from now on.
    pub(crate) fn poller(&self, core: CoreId) -> &Arc<Poller> {
        let (poller, task) = &self.pollers[usize::from(core.0)];
        task.get_or_init(|| {
            let poller = Arc::clone(poller);
            let run = async move { poller.run().await };
            self.tasks.spawn(core, "rings", run)
        });
        poller
    }

    pub(crate) fn tuning(&self) -> Tuning {
        Tuning {
            keepalive: self.options.keepalive,
            stall_limit: self.options.stall_limit,
        }
    }

    pub(crate) fn stream_tuning(&self) -> Tuning {
        Tuning {
            stall_limit: self.options.stream_stall_limit,
            ..self.tuning()
        }
    }

    /// `mark`: that of the process that is wanted, or of this one.
    pub(crate) fn terms(&self, mark: u64) -> Terms<'_> {
        Terms {
            clock: &*self.clock,
            limit: self.options.handshake_limit,
            body_bytes_max: self.options.frame_bytes_max,
            mark,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for task in self.pollers.iter().filter_map(|(_, task)| task.get()) {
            task.abort();
        }
    }
}

/// Ends the connection for its callers when its task ends, for any reason. Takes it out of the map,
/// so that the next call makes a new one.
pub(crate) struct Closer {
    shared: Arc<Shared>,
    peers: Weak<Vec<PeerMap>>,
    connection: Arc<Connection>,
    /// Whether the connection was made.
    connected: bool,
    why: NoConnection,
}

impl Closer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        peers: Weak<Vec<PeerMap>>,
        connection: Arc<Connection>,
    ) -> Self {
        Self {
            shared,
            peers,
            connection,
            connected: false,
            why: NoConnection::Other("this process is shutting down".to_owned()),
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        let connection = &self.connection;
        let (lost, unsent) = connection.close(&self.why);
        let counters = self.shared.counters.of(connection.core);
        add(&counters.calls_lost, lost);
        add(&counters.calls_unreachable, unsent);
        add(&counters.connects_ended, usize::from(self.connected));
        if let Some(peers) = self.peers.upgrade() {
            take_out(&peers, connection);
        }
    }
}

/// Runs the connection until it ends.
pub(crate) async fn run(mut closer: Closer) {
    let shared = Arc::clone(&closer.shared);
    let connection = Arc::clone(&closer.connection);
    let counters = shared.counters.of(connection.core);
    if let Some(place) = datagrams_of(&connection.address) {
        if let Err(why) = shared.may_be_open("udp") {
            closer.why = why.into();
            return;
        }
        closer.why =
            datagram::client_io::run(&shared, &connection, place, &mut closer.connected).await;
        return;
    }
    let (stream, body_bytes_max) = match open(&shared, &connection).await {
        Ok(opened) => opened,
        Err(why) => {
            add(&counters.connects_failed, 1);
            tracing::debug!(peer = %connection.address, %why, "cannot connect");
            closer.why = why;
            return;
        }
    };
    add(&counters.connects, 1);
    add(&counters.rings_made, usize::from(stream.is_ring()));
    add(&counters.fabrics_made, usize::from(stream.is_fabric()));
    closer.connected = true;
    tracing::debug!(peer = %connection.address, core = connection.core.0, "connected");
    let mut mover = Mover {
        connection: &connection,
        clock: &*shared.clock,
        counters,
        stream,
        reader: FrameReader::new(shared.options.frame_bytes_max),
        writer: WriteQueue::default(),
        watch: Watch::new(
            Arc::clone(&shared.clock),
            shared.options.frame_limit,
            shared.options.stall_limit,
        ),
        body_bytes_max,
        requests: Vec::new(),
        outcomes: Vec::new(),
    };
    let end = poll_fn(|cx| mover.poll(cx)).await;
    match &end {
        End::Closed | End::Broken(_) => {
            tracing::debug!(peer = %connection.address, %end, "connection ended");
        }
        End::Garbage(_) | End::Fault(_) | End::Overdue(_) | End::Evicted => {
            tracing::warn!(peer = %connection.address, %end, "connection closed");
        }
    }
    closer.why = format!("the connection ended before the request was sent: {end}").into();
}

/// The place for datagrams, if the address has none for TCP.
fn datagrams_of(address: &Address) -> Option<&str> {
    let place = address.place_of(Transport::Datagrams)?;
    address.place_of(Transport::Tcp).is_none().then_some(place)
}

/// Takes the first endpoint that works: rings, libfabric, TCP.
async fn open(shared: &Shared, connection: &Connection) -> Result<(Link, usize), NoConnection> {
    let (address, core) = (&connection.address, connection.core);
    let tcp = address.place_of(Transport::Tcp);
    let fabric = address.place_of(Transport::Fabric);
    // If there is no TCP, the caller is told why libfabric fails.
    let fabric = fabric.filter(|_| fabric::IS_BUILT || tcp.is_none());
    let is_open = shared.may_be_open("libfabric");
    if tcp.is_none() && fabric.is_some() {
        is_open.clone()?;
    }
    let fabric = fabric.filter(|_| is_open.is_ok());
    let mut failed = None;
    if let Some(ring) = address.place_of(Transport::Ring) {
        match open_ring(shared, core, ring).await {
            Ok(opened) => return Ok(within(shared, opened)),
            Err(why) => failed = Some(why),
        }
    }
    if let Some(place) = fabric
        && failed.as_ref().is_none_or(|failed| failed.is_elsewhere)
    {
        match open_fabric(shared, core, place).await {
            Ok(opened) => return Ok(within(shared, opened)),
            Err(why) => failed = Some(why),
        }
    }
    match (failed, tcp) {
        (Some(failed), Some(_)) if !failed.is_elsewhere => Err(failed.why),
        (Some(failed), None) => Err(failed.why),
        (None, None) => Err(NO_TRANSPORT.to_owned().into()),
        (failed, Some(tcp)) => {
            if let Some(failed) = failed {
                tracing::trace!(peer = %address, why = %failed.why, "TCP it is");
            }
            open_tcp(shared, tcp)
                .await
                .map(|opened| within(shared, opened))
        }
    }
}

/// Bounds what the other side takes by what this one sends.
fn within(shared: &Shared, (link, body_bytes_max): (Link, usize)) -> (Link, usize) {
    (link, body_bytes_max.min(shared.options.frame_bytes_max))
}

async fn open_tcp(shared: &Shared, place: &str) -> Result<(Link, usize), NoConnection> {
    let (tasks, clock) = (&*shared.tasks, &*shared.clock);
    let mut stream = connect(tasks, clock, place, shared.options.connect_limit).await?;
    tune(&stream, shared.tuning());
    if let Some(tls) = &shared.tls {
        let within = (clock, shared.options.handshake_limit);
        let mut stream = Box::new(tls.connect(stream, place, within).await?);
        let greeted = greet(&mut *stream, &shared.terms(0)).await;
        let body_bytes_max = greeted.map_err(Ungreeted::into_words)?;
        return Ok((Link::Tls(Box::new((*stream).into())), body_bytes_max));
    }
    let greeted = greet(&mut stream, &shared.terms(0)).await;
    let body_bytes_max = greeted.map_err(Ungreeted::into_words)?;
    Ok((Link::Tcp(stream), body_bytes_max))
}

/// Why a process cannot be reached over one endpoint of its address.
struct NotThere {
    why: NoConnection,
    /// The process may be on another machine, or out of reach for this user or this endpoint.
    /// Another endpoint of its address may lead to it.
    is_elsewhere: bool,
}

async fn open_ring(shared: &Shared, core: CoreId, place: &str) -> Result<(Link, usize), NotThere> {
    let meeting = Meeting::parse(place);
    let limit = shared.options.connect_limit;
    let connected = meet(&*shared.clock, meeting.path, limit).await;
    let mut socket = connected.map_err(|why| NotThere {
        why,
        is_elsewhere: true,
    })?;
    let broken = |why: String| NotThere {
        why: why.into(),
        is_elsewhere: false,
    };
    let body_bytes_max = match greet(&mut socket, &shared.terms(meeting.mark)).await {
        Ok(body_bytes_max) => body_bytes_max,
        Err(Ungreeted::Refused(why)) => {
            return Err(NotThere {
                why: why.into(),
                is_elsewhere: true,
            });
        }
        Err(Ungreeted::Broken(why)) => return Err(broken(why)),
    };
    let limit = shared.options.handshake_limit;
    match timeout(
        &*shared.clock,
        limit,
        handover::take(socket, shared.poller(core)),
    )
    .await
    {
        Ok(Ok(stream)) => Ok((Link::Ring(Box::new(stream)), body_bytes_max)),
        Ok(Err(error)) => Err(broken(format!("no rings came behind its hello: {error}"))),
        Err(_) => Err(broken(format!("no rings came within {limit:?}"))),
    }
}

async fn open_fabric(
    shared: &Shared,
    core: CoreId,
    place: &str,
) -> Result<(Link, usize), NotThere> {
    let elsewhere = |why: NoConnection| NotThere {
        why,
        is_elsewhere: true,
    };
    let Some((provider, meeting)) = place.split_once(':') else {
        return Err(elsewhere("its address names no provider".to_owned().into()));
    };
    let (tasks, clock) = (&*shared.tasks, &*shared.clock);
    let connected = connect(tasks, clock, meeting, shared.options.connect_limit).await;
    let mut stream = connected.map_err(elsewhere)?;
    tune(&stream, shared.tuning());
    let greeted = greet(&mut stream, &shared.terms(0)).await;
    let body_bytes_max = greeted.map_err(|why| elsewhere(why.into_words().into()))?;
    let limit = shared.options.handshake_limit;
    let met = Box::pin(fabric::meet(stream, shared, core, provider, Side::Caller));
    match timeout(clock, limit, met).await {
        Ok(Ok(stream)) => Ok((Link::Fabric(Box::new(stream)), body_bytes_max)),
        Ok(Err(error)) => {
            let why = format!("no connection over libfabric: {error}");
            Err(elsewhere(why.into()))
        }
        Err(_) => {
            let why = format!("nothing came over libfabric within {limit:?}");
            Err(elsewhere(why.into()))
        }
    }
}

/// The end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("the peer closed it")]
    Closed,
    #[error("{0}")]
    Broken(io::Error),
    #[error("{0}")]
    Garbage(io::Error),
    #[error("{0}")]
    Fault(#[from] FrameFault),
    #[error("{}", match .0 {
        Overdue::Frame => "the rest of a frame did not come in time",
        Overdue::Stalled => "the peer took no bytes for too long",
    })]
    Overdue(Overdue),
    #[error("the peer stood still, and others needed the memory that it held")]
    Evicted,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Garbage(error),
            _ => Self::Broken(error),
        }
    }
}

impl End {
    /// Counts every end but the ordinary one.
    pub(crate) fn count(&self, counters: &CoreCounters) {
        match self {
            Self::Closed | Self::Broken(_) => {}
            Self::Garbage(_) | Self::Fault(_) => add(&counters.frames_rejected, 1),
            Self::Overdue(Overdue::Frame) => add(&counters.frames_overdue, 1),
            Self::Overdue(Overdue::Stalled) => add(&counters.peers_stalled, 1),
            Self::Evicted => add(&counters.connections_evicted, 1),
        }
    }
}

struct Mover<'a> {
    connection: &'a Connection,
    clock: &'a dyn Clock,
    counters: &'a CoreCounters,
    stream: Link,
    reader: FrameReader,
    writer: WriteQueue,
    watch: Watch,
    /// The largest body that both sides take.
    body_bytes_max: usize,
    /// Empty between polls; kept for its memory.
    requests: Vec<(u64, Frame)>,
    /// Likewise.
    outcomes: Vec<(u64, Result<Frame, CallError>)>,
}

impl Mover<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let end = self.move_bytes(cx);
        if let Poll::Ready(end) = &end {
            end.count(self.counters);
        }
        end
    }

    fn move_bytes(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let sent_before = self.writer.sent();
        let mut replies = 0;
        let mut asleep = false;
        for _ in 0..ROUNDS_MAX {
            self.encode_requests();
            match self.writer.poll_flush(&mut self.stream, cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            let read = match self.reader.poll_fill(&mut self.stream, cx, usize::MAX) {
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Closed),
                Poll::Ready(Ok(count)) => {
                    self.connection.note_heard();
                    count
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => 0,
            };
            add(&self.counters.bytes_received, read);
            match self.deliver_replies() {
                Ok(count) => replies += count,
                Err(fault) => return Poll::Ready(fault.into()),
            }
            // The socket's readiness wakes this task; so does its writability while bytes wait.
            if read == 0 && (!self.writer.is_empty() || self.connection.may_sleep(cx.waker())) {
                asleep = true;
                break;
            }
        }
        if !asleep {
            cx.waker().wake_by_ref();
        }
        let sent = self.writer.sent() - sent_before;
        add(&self.counters.bytes_sent, sent as usize);
        add(&self.counters.replies_received, replies);
        self.watch
            .note_reading(self.reader.is_inside_frame(), replies > 0);
        self.watch.note_writing(!self.writer.is_empty(), sent > 0);
        self.watch.poll(cx).map(End::Overdue)
    }

    fn encode_requests(&mut self) {
        let room = WRITE_AHEAD_BYTES.saturating_sub(self.writer.bytes());
        if room == 0 {
            return;
        }
        self.connection
            .take_requests(room, self.clock, &mut self.requests);
        let mut sent = 0;
        for (id, request) in self.requests.drain(..) {
            if request.len() > self.body_bytes_max {
                let error = CallError::TooLarge(request.len(), self.body_bytes_max);
                self.outcomes.push((id, Err(error)));
                continue;
            }
            sent += 1;
            let header = Header::of(Kind::Request, id, &request);
            self.writer.push(&header, request);
        }
        add(&self.counters.requests_sent, sent);
    }

    /// Gives whole frames that have come to their callers. The result is their number.
    fn deliver_replies(&mut self) -> Result<usize, FrameFault> {
        let mut count = 0;
        let fault = loop {
            match self.reader.next_frame() {
                Ok(None) => break None,
                Err(fault) => break Some(fault),
                Ok(Some((header, frame))) => {
                    let outcome = match header.kind {
                        Kind::Reply => Ok(frame),
                        Kind::ReplyTooLarge => Err(CallError::TooLarge(
                            header.too_long as usize,
                            self.body_bytes_max,
                        )),
                        Kind::Request => break Some(FrameFault::WrongWay(header.kind)),
                    };
                    count += 1;
                    self.outcomes.push((header.id, outcome));
                }
            }
        };
        if !self.outcomes.is_empty() {
            let late = self.connection.deliver(&mut self.outcomes);
            add(&self.counters.replies_late, late);
        }
        fault.map_or(Ok(count), Err)
    }
}
