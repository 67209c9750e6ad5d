//! The task of one outgoing session: gives calls to the machine, its datagrams to the socket, and
//! answers to their callers.

use super::caller::{Answer, Caller, Odd, Over};
use super::packet::Strange;
use super::session::{End, Ignored};
use super::siphash::Secret;
use super::socket::{client_limits, connect, fresh_key, terms};
use super::timer::Timer;
use crate::client::Connection;
use crate::client_io::Shared;
use crate::counters::{CoreCounters, add};
use crate::socket::resolve;
use crate::spare;
use bytes::BytesMut;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::task::{Context, Poll};
use pluvio_env::{CallError, Clock, Frame, Moment, NoConnection};
use std::io;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;

/// Bytes of requests given to the machine at a time.
const REQUEST_BYTES: usize = 256 << 10;
/// Rounds before other tasks have their turn.
const ROUNDS_MAX: usize = 16;
/// Datagrams received before others are sent.
const RECEIVED_MAX: usize = 64;

/// The end of a session, or of the attempt to open one.
#[derive(Debug, thiserror::Error)]
enum Finish {
    #[error("nothing listens there")]
    Refused,
    #[error("{0}")]
    Broken(io::Error),
    #[error("{0}")]
    Over(Over),
}

impl From<io::Error> for Finish {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ => Self::Broken(error),
        }
    }
}

/// Runs the session until it ends. Gives the reason for calls that were not sent.
pub(crate) async fn run(
    shared: &Shared,
    connection: &Connection,
    place: &str,
    connected: &mut bool,
) -> NoConnection {
    let counters = shared.counters.of(connection.core);
    let found = match resolve(&*shared.tasks, place).await {
        Ok(found) => found,
        Err(why) => {
            add(&counters.connects_failed, 1);
            return why.into();
        }
    };
    let share = shared.options.connect_limit / u32::try_from(found.len().max(1)).unwrap_or(1);
    let mut last = NoConnection::Other("the name has no address".to_owned());
    for at in found {
        let finish = match Mover::new(shared, connection, counters, at, share) {
            Ok(mut mover) => poll_fn(|cx| mover.poll(cx, connected)).await,
            Err(error) => error.into(),
        };
        if *connected {
            match &finish {
                Finish::Over(Over::Ended(End::Fault(_) | End::Overdue)) => {
                    tracing::warn!(peer = %connection.address, %finish, "session closed");
                }
                Finish::Refused | Finish::Broken(_) | Finish::Over(_) => {
                    tracing::debug!(peer = %connection.address, %finish, "session ended");
                }
            }
            return format!("the connection ended before the request was sent: {finish}").into();
        }
        tracing::debug!(peer = %connection.address, %finish, "cannot open a session");
        last = match finish {
            Finish::Refused => NoConnection::Refused,
            Finish::Broken(_) | Finish::Over(_) => NoConnection::Other(finish.to_string()),
        };
    }
    add(&counters.connects_failed, 1);
    last
}

struct Mover<'a> {
    connection: &'a Connection,
    clock: &'a dyn Clock,
    counters: &'a CoreCounters,
    socket: UdpSocket,
    caller: Caller,
    /// A datagram that the socket has not taken yet, if `out_waits`.
    out: Vec<u8>,
    out_waits: bool,
    timer: Timer,
    /// Calls begun and not answered.
    unanswered: usize,
    /// Empty between polls; kept for their memory.
    requests: Vec<(u64, Frame)>,
    answers: Vec<(u64, Answer)>,
    outcomes: Vec<(u64, Result<Frame, CallError>)>,
}

impl<'a> Mover<'a> {
    fn new(
        shared: &'a Shared,
        connection: &'a Connection,
        counters: &'a CoreCounters,
        at: SocketAddr,
        opening: core::time::Duration,
    ) -> io::Result<Self> {
        let options = &shared.options;
        let clock = &*shared.clock;
        let window = 2 * options.frame_bytes_max;
        let caller = Caller::new(
            clock.now(),
            &mut Secret::new(fresh_key()),
            terms(options, window, options.calls_max),
            client_limits(options, opening),
        );
        Ok(Self {
            connection,
            clock,
            counters,
            socket: UdpSocket::from_std(connect(at)?)?,
            caller,
            out: Vec::new(),
            out_waits: false,
            timer: Timer::default(),
            unanswered: 0,
            requests: Vec::new(),
            answers: Vec::new(),
            outcomes: Vec::new(),
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>, connected: &mut bool) -> Poll<Finish> {
        for _ in 0..ROUNDS_MAX {
            let now = self.clock.now();
            if self.caller.deadline() <= now
                && let Err(over) = self.caller.alarm(now)
            {
                return Poll::Ready(Finish::Over(over));
            }
            let received = match self.receive(cx, now) {
                Ok(received) => received,
                Err(finish) => {
                    self.deliver();
                    return Poll::Ready(finish);
                }
            };
            if !*connected && self.caller.session().is_some() {
                *connected = true;
                add(&self.counters.connects, 1);
                tracing::debug!(peer = %self.connection.address, "session opened");
            }
            self.deliver();
            self.begin_calls();
            if let Err(error) = self.transmit(cx, now) {
                return Poll::Ready(error.into());
            }
            // With calls that find no room, what makes room comes by the socket.
            let may_sleep = !self.caller.has_room() || self.connection.may_sleep(cx.waker());
            if received == 0 && may_sleep && self.rests(cx) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether nothing is to be done before the next deadline; a timer is then set.
    fn rests(&mut self, cx: &mut Context<'_>) -> bool {
        if self.out_waits {
            // The socket's writability wakes this task.
            return true;
        }
        let deadline = self.caller.deadline();
        self.timer.rests_until(self.clock, Some(deadline), cx)
    }

    fn receive(&mut self, cx: &mut Context<'_>, now: Moment) -> Result<usize, Finish> {
        let mut buffer = spare::take();
        let received = self.receive_into(&mut buffer, cx, now);
        spare::give(buffer);
        received
    }

    fn receive_into(
        &mut self,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
        now: Moment,
    ) -> Result<usize, Finish> {
        let (mut count, mut bytes) = (0, 0);
        while count < RECEIVED_MAX {
            let mut room = ReadBuf::uninit(buffer.spare_capacity_mut());
            match self.socket.poll_recv(cx, &mut room) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
                Poll::Ready(result) => result?,
            }
            let datagram = room.filled();
            count += 1;
            bytes += datagram.len();
            match self.caller.receive(now, datagram, &mut self.answers) {
                Ok(()) => self.connection.note_heard(),
                Err(Odd::Over(over)) => return Err(Finish::Over(over)),
                Err(Odd::Unknown) => add(&self.counters.datagrams_unknown, 1),
                Err(Odd::Ignored(Ignored::Forged)) => add(&self.counters.datagrams_forged, 1),
                Err(Odd::Ignored(Ignored::Repeated)) => add(&self.counters.datagrams_repeated, 1),
                Err(Odd::Strange(Strange::Garbage)) => add(&self.counters.datagrams_garbage, 1),
                Err(Odd::Strange(Strange::OtherVersion { .. })) => {
                    add(&self.counters.datagrams_other_version, 1);
                }
            }
        }
        add(&self.counters.datagrams_received, count);
        add(&self.counters.bytes_received, bytes);
        if let Some(session) = self.caller.session() {
            add(&self.counters.datagrams_lost, session.take_lost());
        }
        Ok(count)
    }

    fn deliver(&mut self) {
        let most = self.caller.frame_bytes_max();
        add(&self.counters.replies_received, self.answers.len());
        // A peer may answer a call twice; that is only late.
        self.unanswered = self.unanswered.saturating_sub(self.answers.len());
        for (call, answer) in self.answers.drain(..) {
            let outcome = match answer {
                Answer::Reply(frame) => Ok(frame),
                Answer::TooLarge(bytes) => Err(CallError::TooLarge(bytes, most)),
            };
            self.outcomes.push((call, outcome));
        }
        if !self.outcomes.is_empty() {
            let late = self.connection.deliver(&mut self.outcomes);
            add(&self.counters.replies_late, late);
        }
    }

    fn begin_calls(&mut self) {
        while self.caller.has_room() {
            self.connection
                .take_requests(REQUEST_BYTES, self.clock, &mut self.requests);
            if self.requests.is_empty() {
                break;
            }
            let mut sent = 0;
            for (id, request) in self.requests.drain(..) {
                let bytes = request.len();
                match self.caller.call(id, request) {
                    Ok(()) => sent += 1,
                    Err(most) => {
                        let error = CallError::TooLarge(bytes, most);
                        self.outcomes.push((id, Err(error)));
                    }
                }
            }
            self.unanswered += sent;
            add(&self.counters.requests_sent, sent);
        }
        if !self.outcomes.is_empty() {
            self.deliver();
        }
        let is_waiting = self.unanswered > 0;
        if let Some(session) = self.caller.session() {
            session.set_waiting(is_waiting);
        }
    }

    fn transmit(&mut self, cx: &mut Context<'_>, now: Moment) -> io::Result<()> {
        let (mut count, mut bytes) = (0, 0);
        let mut result = Ok(());
        while self.out_waits || self.caller.transmit(now, &mut self.out) {
            match self.socket.poll_send(cx, &self.out) {
                Poll::Pending => {
                    self.out_waits = true;
                    break;
                }
                Poll::Ready(Ok(_)) => {
                    count += 1;
                    bytes += self.out.len();
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    result = Err(error);
                    break;
                }
                // As good as lost: it is sent again, or the silence ends the session.
                Poll::Ready(Err(error)) => {
                    tracing::debug!(peer = %self.connection.address, %error, "cannot send");
                    self.out_waits = false;
                    break;
                }
            }
            self.out_waits = false;
        }
        add(&self.counters.datagrams_sent, count);
        add(&self.counters.bytes_sent, bytes);
        result
    }
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.caller.session() {
            session.farewell("the client has closed it", &mut self.out);
            // Best effort: without it the server gives the session up when it hears nothing more.
            let _not_sent = self.socket.try_send(&self.out);
        }
    }
}
