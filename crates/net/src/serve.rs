//! The serving side of one RPC connection: reads requests, gives them to the service in their
//! order, drives the answers that come later, writes replies.
//!
//! - HOLD-1: a reply that the service wants held leaves once the service says that all it rests on
//!   is durable, and never before. The service is told of each that has left or never will.
//!
//! Backpressure: while the service or the replies' queue is at its bound, reading stops, and TCP
//! makes the other side wait. So it does while memory of connections is short ([`Account`]).

use crate::accept::{Arrival, Place};
use crate::client_io::{End, Shared};
use crate::counters::{CoreCounters, add};
use crate::fabric::{self, Side};
use crate::frame::{FrameFault, Header, Kind};
use crate::handshake::{Unwelcome, welcome};
use crate::link::Link;
use crate::memory::{Account, QUEUES_MAX, SCARCE_BYTES, SMALL_BYTES};
use crate::options::NetOptions;
use crate::reader::FrameReader;
use crate::ring::handover::{self, ring_bytes};
use crate::spare::BUFFER_BYTES;
use crate::watch::Watch;
use crate::writer::WriteQueue;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pluvio_env::{
    BoxFuture, Clock, Frame, Handled, HeldReply, Peer, Service, Traffic, timeout, waiting_party,
};
use pluvio_units::{LogId, LogPosition};
use std::collections::VecDeque;
use std::sync::Arc;

/// Rounds of reading before other tasks have their turn.
const ROUNDS_MAX: usize = 16;

/// Serves a connection until it ends, then drives the requests that have begun (NET-5).
pub(crate) async fn serve(
    place: &Place,
    mut arrival: Arrival,
    peer: Peer,
    service: &Arc<dyn Service>,
) {
    let shared: &Shared = &place.port.shared;
    let counters = shared.counters.of(place.core);
    let terms = shared.terms(place.port.mark);
    let welcomed = match &mut arrival {
        Arrival::Tcp(stream, _) => welcome(stream, &terms).await,
        Arrival::Tls(stream, _) => welcome(&mut **stream, &terms).await,
        Arrival::Ring(socket) => welcome(socket, &terms).await,
    };
    let theirs = match welcomed {
        Ok(theirs) => theirs,
        Err(Unwelcome::Wordless) => {
            tracing::debug!(peer = %peer.address, "RPC connection closed without a word");
            return;
        }
        Err(Unwelcome::Stranger { why, answer }) => {
            add(&counters.handshakes_failed, 1);
            if place.port.may_warn() {
                // As text: `why` quotes the stranger's bytes, and would be escaped twice.
                tracing::warn!(peer = %peer.address, %why, "RPC connection refused");
            }
            if let Some(answer) = answer {
                // On the heap: its buffer would be part of every connection.
                Box::pin(arrival.answer_and_close(answer, &*shared.clock)).await;
            }
            return;
        }
    };
    let Some(stream) = carrier(place, arrival, &peer).await else {
        add(&counters.handshakes_failed, 1);
        return;
    };
    add(&counters.connections_accepted, 1);
    add(&counters.rings_accepted, usize::from(stream.is_ring()));
    add(&counters.fabrics_accepted, usize::from(stream.is_fabric()));
    let mut server = Server {
        options: &shared.options,
        service: &**service,
        counters,
        peer,
        reply_bytes_max: theirs.min(shared.options.frame_bytes_max),
        stream,
        reader: FrameReader::new(shared.options.frame_bytes_max),
        writer: WriteQueue::default(),
        watch: Watch::new(
            Arc::clone(&shared.clock),
            shared.options.frame_limit,
            shared.options.stall_limit,
        ),
        clock: &*shared.clock,
        account: Account::new(&shared.memory),
        received: 0,
        later: FuturesUnordered::new(),
        later_bytes: 0,
        held: VecDeque::new(),
        held_bytes: 0,
        held_reply_bytes: 0,
        party: waiting_party(),
        waits_for: None,
    };
    let end = poll_fn(|cx| server.poll(cx)).await;
    end.count(counters);
    add(&counters.connections_ended, 1);
    let peer = &server.peer.address;
    match &end {
        End::Closed | End::Broken(_) => tracing::debug!(%peer, %end, "RPC connection ended"),
        End::Garbage(_) | End::Fault(_) | End::Overdue(_) | End::Evicted => {
            if place.port.may_warn() {
                tracing::warn!(%peer, %end, "RPC connection closed");
            }
        }
    }
    let later = core::mem::take(&mut server.later);
    // Drops the socket, unwanted replies and read bytes: a request may take long to end.
    drop(server);
    later
        .for_each(|_nobody_to_tell| core::future::ready(()))
        .await;
}

/// The carrier of the connection from here on, once the hellos are over, if there is one.
async fn carrier(place: &Place, arrival: Arrival, peer: &Peer) -> Option<Link> {
    let shared: &Shared = &place.port.shared;
    let limit = shared.options.handshake_limit;
    let made = match (arrival, &place.port.provider) {
        (Arrival::Tcp(stream, _), None) => return Some(Link::Tcp(stream)),
        (Arrival::Tls(stream, _), _) => return Some(Link::Tls(Box::new((*stream).into()))),
        (Arrival::Tcp(stream, _), Some(provider)) => {
            let met = fabric::meet(stream, shared, place.core, provider, Side::Server);
            let met = timeout(&*shared.clock, limit, Box::pin(met)).await;
            met.map(|met| met.map(|stream| Link::Fabric(Box::new(stream))))
        }
        (Arrival::Ring(socket), _) => {
            let poller = shared.poller(place.core);
            let given = handover::give(socket, ring_bytes(&shared.options), poller);
            let given = timeout(&*shared.clock, limit, given).await;
            given.map(|given| given.map(|stream| Link::Ring(Box::new(stream))))
        }
    };
    match made {
        Ok(Ok(link)) => Some(link),
        Ok(Err(error)) => {
            if place.port.may_warn() {
                tracing::warn!(peer = %peer.address, %error, "nothing carries a connection");
            }
            None
        }
        Err(_) => None,
    }
}

struct Server<'a> {
    options: &'a NetOptions,
    service: &'a dyn Service,
    counters: &'a CoreCounters,
    peer: Peer,
    reply_bytes_max: usize,
    stream: Link,
    reader: FrameReader,
    writer: WriteQueue,
    watch: Watch,
    clock: &'a dyn Clock,
    /// What the connection holds, among all.
    account: Account,
    /// Bytes since the connection began, and those of replies whose taking lets it go on.
    received: u64,
    later: FuturesUnordered<Later>,
    /// Bytes of the requests in `later`.
    later_bytes: usize,
    /// Executed, and not durable yet.
    held: VecDeque<Held>,
    /// Bytes of the requests and replies in `held`.
    held_bytes: usize,
    /// Bytes of the replies in `held`.
    held_reply_bytes: usize,
    /// This connection, among those that wait for positions.
    party: u64,
    /// The position at which this task is woken: one that the first of `held` rests on.
    waits_for: Option<(LogId, LogPosition)>,
}

/// A reply that leaves once it is durable.
struct Held {
    id: u64,
    opcode: u16,
    held: HeldReply,
}

impl Held {
    fn bytes(&self) -> usize {
        self.held.charge + self.held.reply.len()
    }
}

/// Whoever is gone gets no reply: what was executed stays so.
impl Drop for Server<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.waits_for {
            self.service.give_up_waiting(wait, self.party);
        }
        for held in &self.held {
            self.service.held_left(held.held.charge);
        }
    }
}

/// A request in the hands of the service.
struct Later {
    id: u64,
    opcode: u16,
    bytes: usize,
    answer: BoxFuture<'static, Frame>,
}

struct Answered {
    id: u64,
    opcode: u16,
    bytes: usize,
    reply: Frame,
}

impl Future for Later {
    type Output = Answered;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let reply = ready!(self.answer.as_mut().poll(cx));
        Poll::Ready(Answered {
            id: self.id,
            opcode: self.opcode,
            bytes: self.bytes,
            reply,
        })
    }
}

/// What came of looking for replies.
#[derive(Clone, Copy, Default)]
struct Collected {
    /// There were some.
    some: bool,
    /// There may be more.
    has_more: bool,
}

/// The work done in one turn of the task.
#[derive(Default)]
struct Step {
    /// Whether a request was taken in.
    progress: bool,
    /// Not yet counted.
    requests: usize,
    /// Likewise.
    replies: usize,
}

impl Step {
    /// Done before the replies leave, so that a caller with a reply finds it counted.
    fn count(&mut self, counters: &CoreCounters) {
        self.progress |= self.requests > 0;
        add(
            &counters.requests_received,
            core::mem::take(&mut self.requests),
        );
        add(&counters.replies_sent, core::mem::take(&mut self.replies));
    }
}

impl Server<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let sent_before = self.writer.sent();
        let mut did = Step::default();
        let mut asleep = false;
        let mut reading = false;
        // Whether it waits for memory: to read on, to take a request.
        let mut waits = [false; 2];
        for _ in 0..ROUNDS_MAX {
            let no_room = match self.handle_requests(cx, &mut did) {
                Ok(no_room) => no_room,
                Err(fault) => {
                    did.count(self.counters);
                    return Poll::Ready(fault.into());
                }
            };
            let stuck = !self.may_handle();
            let collected = self.collect_replies(cx, &mut did);
            self.release_held(cx, &mut did);
            did.count(self.counters);
            match self.writer.poll_flush(&mut self.stream, cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Ready(Ok(())) => {}
                Poll::Pending => self.writer.settle(),
            }
            (reading, waits[1]) = (false, no_room);
            if collected.some && self.are_replies_beyond() {
                return Poll::Ready(End::Evicted);
            }
            if collected.has_more {
                continue;
            }
            reading = self.may_handle() && !no_room;
            if !reading {
                // An answer, the socket's writability or room for replies wakes this task.
                asleep = true;
                self.reader.settle();
                break;
            }
            if stuck {
                // There is room again for requests that the buffer may still hold.
                continue;
            }
            let Some(most) = self.may_read(cx) else {
                (reading, asleep, waits[0]) = (false, true, true);
                self.reader.settle();
                break;
            };
            match self.reader.poll_fill(&mut self.stream, cx, most) {
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Closed),
                Poll::Ready(Ok(count)) => {
                    self.received += count as u64;
                    add(&self.counters.bytes_received, count);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => {
                    asleep = true;
                    break;
                }
            }
        }
        if !asleep {
            cx.waker().wake_by_ref();
        }
        let sent = self.writer.sent() - sent_before;
        add(&self.counters.bytes_sent, sent as usize);
        let inside = reading && self.reader.is_inside_frame();
        self.watch.note_reading(inside, did.progress);
        self.watch.note_writing(!self.writer.is_empty(), sent > 0);
        // A frame is not read on because the peer takes no replies: it is its turn all the same.
        let by_replies = !reading && self.reader.is_inside_frame() && self.are_replies_full();
        if by_replies {
            self.received += sent;
        }
        if self.account_for(cx, inside || by_replies, waits).is_ready() {
            return Poll::Ready(End::Evicted);
        }
        self.watch.poll(cx).map(End::Overdue)
    }

    /// Counts what the connection holds. Ready when it is to be closed to make room.
    fn account_for(&mut self, cx: &mut Context<'_>, inside: bool, waits: [bool; 2]) -> Poll<()> {
        let account = &mut self.account;
        let replies = self.writer.bytes_held() + self.held_reply_bytes;
        account.tell(self.reader.bytes_held(), replies);
        let moved = [self.received, self.writer.sent()];
        account.note(moved, [inside, !self.writer.is_empty()]);
        account.wait(waits, self.clock, cx);
        account.poll_evicted(cx)
    }

    /// How many bytes may be read in search of a header; `None`: it waits until it may go on with
    /// a frame.
    fn may_read(&mut self, cx: &Context<'_>) -> Option<usize> {
        let is_scarce = self.account.are_requests_scarce();
        let Some(bytes) = self.reader.awaited_bytes().filter(|n| *n > SMALL_BYTES) else {
            return Some(if is_scarce { SMALL_BYTES } else { usize::MAX });
        };
        if bytes <= BUFFER_BYTES && !is_scarce {
            return Some(usize::MAX);
        }
        let waited = self.account.is_waiting();
        let next = self.reader.bytes_held_next();
        let may = self.account.may_grow(next, bytes.max(next), cx);
        add(
            &self.counters.connections_waited,
            usize::from(!may && !waited),
        );
        may.then_some(usize::MAX)
    }

    /// Whether another request may be given to the service.
    fn may_handle(&self) -> bool {
        self.later.len() + self.held.len() < self.options.requests_max
            && self.later_bytes + self.held_bytes < self.options.request_bytes_max
            && !self.are_replies_full()
    }

    /// Whether replies that wait for the peer fill their queue: then no more requests are taken.
    fn are_replies_full(&self) -> bool {
        let usual = self.options.reply_queue_bytes_max;
        self.writer.bytes() >= self.account.reply_bytes_max(usual)
    }

    /// Whether there is room for the reply to a request.
    fn may_answer(&mut self, traffic: Traffic, cx: &Context<'_>) -> bool {
        if traffic.is_of_servers {
            self.account.join_servers();
        }
        if traffic.never_waits && self.writer.bytes() < SMALL_BYTES {
            return true;
        }
        self.may_reply(cx)
    }

    /// Whether there is room for another reply.
    fn may_reply(&mut self, cx: &Context<'_>) -> bool {
        let bytes = self.writer.bytes() + self.held_reply_bytes;
        if bytes >= SCARCE_BYTES {
            // Those of one turn may be many.
            let bytes = self.writer.bytes_held() + self.held_reply_bytes;
            self.account.tell_replies(bytes);
        }
        let waited = self.account.is_waiting();
        let may = self.account.may_reply(cx);
        add(
            &self.counters.connections_waited,
            usize::from(!may && !waited),
        );
        may
    }

    /// Gives requests to the service. Whether there is one that waits for room for its reply.
    fn handle_requests(&mut self, cx: &Context<'_>, did: &mut Step) -> Result<bool, FrameFault> {
        while self.may_handle()
            && let Some((header, is_whole)) = self.reader.next_header()?
        {
            if header.kind != Kind::Request {
                return Err(FrameFault::WrongWay(header.kind));
            }
            if !is_whole {
                let traffic = self.service.traffic(header.opcode, self.reader.begun());
                if traffic.is_of_servers {
                    self.account.join_servers();
                }
                return Ok(false);
            }
            let traffic = self.service.traffic(header.opcode, self.reader.begun());
            if !self.may_answer(traffic, cx) {
                return Ok(true);
            }
            let Some((header, request)) = self.reader.next_frame()? else {
                return Ok(false);
            };
            self.account.end_grant();
            did.requests += 1;
            let bytes = request.len();
            let handled = match self.service.handle_or_hold(self.peer.clone(), request) {
                Ok(handled) => handled,
                Err(held) => {
                    let (id, opcode) = (header.id, header.opcode);
                    let held = Held { id, opcode, held };
                    self.held_bytes += held.bytes();
                    self.held_reply_bytes += held.held.reply.len();
                    self.held.push_back(held);
                    continue;
                }
            };
            match handled {
                Handled::Now(reply) => self.push_reply(header.id, header.opcode, reply, did),
                Handled::Later(answer) => {
                    self.later_bytes += bytes;
                    self.later.push(Later {
                        id: header.id,
                        opcode: header.opcode,
                        bytes,
                        answer,
                    });
                }
            }
        }
        Ok(false)
    }

    /// Takes replies that the service has made by now, as many as the queue is meant for.
    ///
    /// They are taken although the peer takes none: what is under way holds what others wait for.
    fn collect_replies(&mut self, cx: &mut Context<'_>, did: &mut Step) -> Collected {
        let mut taken = 0;
        let mut collected = Collected::default();
        while taken < self.options.reply_queue_bytes_max {
            let Poll::Ready(Some(answered)) = self.later.poll_next_unpin(cx) else {
                return collected;
            };
            self.later_bytes -= answered.bytes;
            taken += answered.reply.len();
            collected.some = true;
            self.push_reply(answered.id, answered.opcode, answered.reply, did);
        }
        collected.has_more = !self.later.is_empty();
        collected
    }

    /// Whether the peer has left more replies than even a recovery master asks for at a time, while
    /// those of all fill their memory.
    fn are_replies_beyond(&mut self) -> bool {
        let bytes = self.writer.bytes_held() + self.held_reply_bytes;
        if bytes >= SCARCE_BYTES {
            self.account.tell_replies(bytes);
        }
        let most = QUEUES_MAX * self.options.reply_queue_bytes_max + self.options.frame_bytes_max;
        self.writer.bytes() >= most && self.account.are_replies_full()
    }

    /// Sends held replies that are durable by now, oldest first, and has this task woken for the
    /// first that is not. One behind it that rests on another log may wait longer than it must.
    fn release_held(&mut self, cx: &Context<'_>, did: &mut Step) {
        while let Some(first) = self.held.front() {
            if !self.service.may_leave(&first.held.waits) {
                let (service, party) = (self.service, self.party);
                let is_woken = |wait: &(LogId, LogPosition)| {
                    service.wake_when_durable(*wait, party, cx.waker())
                };
                let wait = first.held.waits.iter().find(is_woken);
                let before = core::mem::replace(&mut self.waits_for, wait);
                if let Some(before) = before.filter(|before| Some(*before) != wait) {
                    service.give_up_waiting(before, party);
                }
                match wait {
                    Some(_) => return,
                    // Durable since.
                    None => continue,
                }
            }
            let Some(held) = self.held.pop_front() else {
                return;
            };
            self.held_bytes -= held.bytes();
            self.held_reply_bytes -= held.held.reply.len();
            self.service.held_left(held.held.charge);
            self.push_reply(held.id, held.opcode, held.held.reply, did);
        }
        if let Some(wait) = self.waits_for.take() {
            self.service.give_up_waiting(wait, self.party);
        }
    }

    fn push_reply(&mut self, id: u64, opcode: u16, reply: Frame, did: &mut Step) {
        did.replies += 1;
        if reply.len() > self.reply_bytes_max {
            let (bytes, most) = (reply.len(), self.reply_bytes_max);
            tracing::error!(opcode, bytes, most, "a reply is larger than the peer takes");
            self.writer
                .push_header(&Header::too_large(id, opcode, bytes));
            return;
        }
        let header = Header::of(Kind::Reply, id, &reply);
        self.writer.push(&header, reply);
    }
}
