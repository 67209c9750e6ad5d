//! The tasks of a port, one for each core. A task runs the sessions whose datagrams the kernel
//! gives to its socket. It drives the handlers of their requests.

use super::endpoint::{Arrived, Endpoint, Rules};
use super::session::End;
use super::socket::{fresh_key, limits, open, terms};
use super::timer::Timer;
use crate::client_io::Shared;
use crate::counters::{CoreCounters, add};
use crate::spare;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pluvio_env::{
    Address, BoxFuture, Frame, Handled, Listening, Moment, Peer, Service, TaskHandle,
};
use pluvio_units::CoreId;
use std::io;
use std::net::UdpSocket as StdSocket;
use std::sync::Arc;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;

/// Rounds before other tasks have their turn.
const ROUNDS_MAX: usize = 16;
/// Datagrams received before others are sent.
const RECEIVED_MAX: usize = 64;
/// Traces about strangers: at most one per this time and core.
const WARN_PAUSE: Duration = Duration::from_secs(1);

/// Opens a port of datagrams.
///
/// # Errors
/// Text for people.
pub(crate) async fn open_port(
    shared: &Arc<Shared>,
    at: SocketAddr,
    connections_max: usize,
    service: Arc<dyn Service>,
) -> Result<Listening, String> {
    let cores = shared.tasks.cores();
    let sockets = open(&*shared.clock, at, cores).await?;
    let local = sockets.first().map(StdSocket::local_addr);
    let local = local.ok_or("no core")?.map_err(|error| error.to_string())?;
    let address = Address::from(format!("udp:{local}").as_str());
    let tasks = (0..cores).zip(sockets).map(|(core, socket)| {
        let (shared, service) = (Arc::clone(shared), Arc::clone(&service));
        let tasks = Arc::clone(&shared.tasks);
        // The kernel deals the senders evenly, about.
        let sessions_max = connections_max.div_ceil(usize::from(cores));
        tasks.spawn(CoreId(core), "datagrams", async move {
            serve(&shared, CoreId(core), socket, sessions_max, &service).await;
        })
    });
    let guard = PortGuard(tasks.collect());
    tracing::debug!(%address, connections_max, "listening");
    Ok(Listening {
        address,
        guard: Box::new(guard),
    })
}

/// Closes a port. Its sockets are freed a little later, each on its own core.
struct PortGuard(Vec<TaskHandle>);

impl Drop for PortGuard {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

async fn serve(
    shared: &Shared,
    core: CoreId,
    socket: StdSocket,
    sessions_max: usize,
    service: &Arc<dyn Service>,
) {
    let socket = match UdpSocket::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(%error, "cannot watch a socket of datagrams");
            return;
        }
    };
    let options = &shared.options;
    let window = options.request_bytes_max + options.frame_bytes_max;
    let rules = Rules {
        terms: terms(options, window, options.requests_max),
        limits: limits(options),
        sessions_max,
        reply_bytes_max: options.reply_queue_bytes_max,
    };
    let asked = Arc::clone(service);
    let traffic = Box::new(move |opcode, begun: &[u8]| asked.traffic(opcode, begun));
    let mut server = Server {
        shared,
        core,
        counters: shared.counters.of(core),
        service: &**service,
        socket,
        endpoint: Endpoint::new(fresh_key(), rules, Arc::clone(&shared.memory), traffic),
        out: Vec::new(),
        out_to: None,
        timer: Timer::default(),
        later: FuturesUnordered::new(),
        requests: Vec::new(),
        warned: None,
    };
    poll_fn(|cx| server.poll(cx)).await;
}

struct Server<'a> {
    shared: &'a Shared,
    core: CoreId,
    counters: &'a CoreCounters,
    service: &'a dyn Service,
    socket: UdpSocket,
    endpoint: Endpoint,
    out: Vec<u8>,
    /// Where `out` goes, while the socket has not taken it.
    out_to: Option<SocketAddr>,
    timer: Timer,
    later: FuturesUnordered<Later>,
    /// Empty between polls; kept for its memory.
    requests: Vec<Arrived>,
    warned: Option<Moment>,
}

/// A request in the hands of the service.
struct Later {
    session: u64,
    call: u64,
    bytes: usize,
    answer: BoxFuture<'static, Frame>,
}

impl Future for Later {
    type Output = (u64, u64, usize, Frame);
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.answer.as_mut().poll(cx));
        Poll::Ready((self.session, self.call, self.bytes, reply))
    }
}

impl Server<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..ROUNDS_MAX {
            let now = self.shared.clock.now();
            let received = self.receive(cx, now);
            self.handle_requests();
            while let Poll::Ready(Some((session, call, bytes, reply))) =
                self.later.poll_next_unpin(cx)
            {
                self.reply(session, call, bytes, reply);
            }
            self.endpoint.alarm(now);
            self.count(now);
            self.transmit(cx, now);
            // The socket's writability wakes this task while a datagram waits for it.
            let rests = received == 0 && (self.out_to.is_some() || self.rests(cx));
            if rests {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn rests(&mut self, cx: &mut Context<'_>) -> bool {
        let deadline = self.endpoint.deadline();
        self.timer.rests_until(&*self.shared.clock, deadline, cx)
    }

    fn receive(&mut self, cx: &mut Context<'_>, now: Moment) -> usize {
        let mut buffer = spare::take();
        let (mut count, mut bytes) = (0, 0);
        while count < RECEIVED_MAX {
            let mut room = ReadBuf::uninit(buffer.spare_capacity_mut());
            match self.socket.poll_recv_from(cx, &mut room) {
                Poll::Pending => break,
                Poll::Ready(Ok(from)) => {
                    let datagram = room.filled();
                    bytes += datagram.len();
                    self.endpoint
                        .receive(now, from, datagram, &mut self.requests);
                }
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "cannot receive");
                }
            }
            count += 1;
        }
        spare::give(buffer);
        add(&self.counters.datagrams_received, count);
        add(&self.counters.bytes_received, bytes);
        count
    }

    fn handle_requests(&mut self) {
        let mut requests = core::mem::take(&mut self.requests);
        add(&self.counters.requests_received, requests.len());
        for request in requests.drain(..) {
            let (session, call, bytes) = (request.session, request.call, request.frame.len());
            let peer = Peer {
                address: request.peer,
                core: self.core,
            };
            match self.service.handle(peer, request.frame) {
                Handled::Now(reply) => self.reply(session, call, bytes, reply),
                Handled::Later(answer) => self.later.push(Later {
                    session,
                    call,
                    bytes,
                    answer,
                }),
            }
        }
        self.requests = requests;
    }

    fn reply(&mut self, session: u64, call: u64, bytes: usize, reply: Frame) {
        add(&self.counters.replies_sent, 1);
        self.endpoint.reply(session, call, bytes, reply);
    }

    /// Passes the machine's counts on, and traces its sessions' ends.
    fn count(&mut self, now: Moment) {
        let (counts, to) = (self.endpoint.take_counts(), self.counters);
        add(&to.datagrams_garbage, counts.garbage);
        add(&to.datagrams_other_version, counts.other_version);
        add(&to.datagrams_forged, counts.forged);
        add(&to.datagrams_repeated, counts.repeated);
        add(&to.datagrams_unknown, counts.unknown);
        add(&to.datagrams_lost, counts.lost);
        add(&to.connections_accepted, counts.opened);
        add(&to.connections_refused, counts.refused);
        add(&to.connections_ended, counts.ended);
        add(&to.frames_rejected, counts.faults);
        add(&to.frames_overdue, counts.overdue);
        add(&to.connections_evicted, counts.evicted);
        add(&to.connections_waited, counts.waited);
        for (peer, end) in self.endpoint.take_ended() {
            let is_strange = matches!(end, End::Fault(_) | End::Overdue | End::Evicted);
            let may_warn = self.warned.is_none_or(|at| now.since(at) >= WARN_PAUSE);
            if is_strange && may_warn {
                self.warned = Some(now);
                tracing::warn!(%peer, %end, "session closed");
            } else {
                tracing::debug!(%peer, %end, "session ended");
            }
        }
    }

    fn transmit(&mut self, cx: &mut Context<'_>, now: Moment) {
        let (mut count, mut bytes) = (0, 0);
        loop {
            if self.out_to.is_none() {
                self.out_to = self.endpoint.transmit(now, &mut self.out);
            }
            let Some(to) = self.out_to else {
                break;
            };
            match self.socket.poll_send_to(cx, &self.out, to) {
                Poll::Pending => break,
                Poll::Ready(Ok(_)) => {
                    count += 1;
                    bytes += self.out.len();
                }
                // As good as lost: it is sent again, or the silence ends the session.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => tracing::debug!(%to, %error, "cannot send"),
            }
            self.out_to = None;
        }
        add(&self.counters.datagrams_sent, count);
        add(&self.counters.bytes_sent, bytes);
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let socket = &self.socket;
        self.endpoint
            .farewells("the port was closed", |to, datagram| {
                // Best effort: without it the client learns it from the next thing that it sends.
                let _not_sent = socket.try_send_to(datagram, to);
            });
    }
}
