//! The server's side of all sessions that come to one socket, without socket, clock or task.
//!
//! Invariants
//! - ENDPOINT-1: nothing is kept for a sender that has not shown a cookie for its address. No
//!   answer to it is longer than its datagram.
//! - ENDPOINT-2: at most `sessions_max` sessions are open.
//! - ENDPOINT-3: a hello that comes again opens no second session while the first one lives.
//! - ENDPOINT-4: the bytes that sessions hold count in the memory of all connections
//!   ([`PortMemory`]). At its bound pieces of new requests are refused. Sessions that stand still
//!   are closed.

use super::inbox::Delivered;
use super::opening::{self, Cookie, Hello, Keys, Terms, Welcome};
use super::outbox::Message;
use super::packet::{self, Head, Kind, MessageKind, Strange};
use super::session::{Beginning, End, Fault, Ignored, Limits, Session, Setup, Trouble};
use super::siphash::{Key, Secret};
use crate::memory::{Account, LOOK_PAUSE, PortMemory, QUEUES_MAX, SMALL_BYTES};
use core::net::SocketAddr;
use core::time::Duration;
use pluvio_env::{Address, Frame, Moment, Traffic};
use pluvio_units::FixedMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Answers to hellos and strangers that wait for the socket. Further ones are not given.
const ANSWERS_MAX: usize = 256;
/// Refused sessions for which others are looked at in one turn. Each look goes over all that hold
/// memory.
const LOOKS_MAX: usize = 16;
/// How long a refused request counts as wanted. Its sender asks more often than that.
const REFUSED_HOLDS: Duration = Duration::from_secs(1);

/// A request that has arrived whole.
pub struct Arrived {
    /// Its session.
    pub session: u64,
    /// The client.
    pub peer: Address,
    /// The client's number of the call.
    pub call: u64,
    /// The request.
    pub frame: Frame,
}

/// Counts since they were last taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) garbage: usize,
    pub(crate) other_version: usize,
    pub(crate) forged: usize,
    pub(crate) repeated: usize,
    pub(crate) unknown: usize,
    pub(crate) lost: usize,
    pub(crate) opened: usize,
    pub(crate) refused: usize,
    pub(crate) ended: usize,
    pub(crate) faults: usize,
    pub(crate) overdue: usize,
    pub(crate) evicted: usize,
    pub(crate) waited: usize,
}

/// How a request with this opcode and these first bytes is treated while memory is short.
pub(crate) type TrafficOf = Box<dyn Fn(u16, &[u8]) -> Traffic + Send + Sync>;

/// What an endpoint is made of.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) terms: Terms,
    pub(crate) limits: Limits,
    pub(crate) sessions_max: usize,
    /// Bytes of unacknowledged replies of one session at which it gets no more credit.
    pub(crate) reply_bytes_max: usize,
}

struct Open {
    session: Session,
    /// What it holds, among all connections.
    account: Account,
    /// Why its last new request was refused, and when.
    refused: Option<(Refused, Moment)>,
    from: SocketAddr,
    /// The same, for the service.
    peer: Address,
    client_session: u64,
    welcome: Welcome,
    keys: Keys,
    /// The alarm that is set; the true deadline may be later.
    alarm: Option<Moment>,
    is_ready: bool,
    /// Bytes of answered requests whose credit waits until replies are acknowledged.
    owed: Vec<usize>,
}

/// What a refused request lacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    /// Room for its own bytes.
    RequestRoom,
    /// Room for its reply.
    ReplyRoom,
    /// A client that takes the replies it has. Closing others does not help.
    UntakenReplies,
}

pub(crate) struct Endpoint {
    rules: Rules,
    secret: Secret,
    cookie_key: Key,
    sessions: FixedMap<u64, Open>,
    by_hello: BTreeMap<(SocketAddr, u64), u64>,
    /// Sessions that may have something to send, each once.
    ready: VecDeque<u64>,
    alarms: BTreeSet<(Moment, u64)>,
    answers: VecDeque<(SocketAddr, Vec<u8>)>,
    counts: Counts,
    ended: Vec<(SocketAddr, End)>,
    whole: Vec<Delivered>,
    memory: Arc<PortMemory>,
    traffic: TrafficOf,
    /// Sessions that count something, or were refused something.
    holders: BTreeSet<u64>,
    /// When to look at them.
    look_at: Option<Moment>,
    /// Which of them is looked at first: those before it had their turn.
    look_from: u64,
}

impl Endpoint {
    pub(crate) fn new(key: Key, rules: Rules, memory: Arc<PortMemory>, traffic: TrafficOf) -> Self {
        Self {
            rules,
            secret: Secret::new(key.derive(1)),
            cookie_key: key.derive(2),
            sessions: FixedMap::default(),
            by_hello: BTreeMap::new(),
            ready: VecDeque::new(),
            alarms: BTreeSet::new(),
            answers: VecDeque::new(),
            counts: Counts::default(),
            ended: Vec::new(),
            whole: Vec::new(),
            memory,
            traffic,
            holders: BTreeSet::new(),
            look_at: None,
            look_from: 0,
        }
    }

    /// The counts since the last time.
    pub(crate) fn take_counts(&mut self) -> Counts {
        core::mem::take(&mut self.counts)
    }

    /// Sessions that have ended since the last time.
    pub(crate) fn take_ended(&mut self) -> Vec<(SocketAddr, End)> {
        core::mem::take(&mut self.ended)
    }

    #[cfg(test)]
    pub(crate) fn sessions(&mut self) -> impl Iterator<Item = &mut Session> {
        self.sessions.values_mut().map(|open| &mut open.session)
    }

    /// Bytes of messages in part and of replies, and the memory that counts for them.
    #[cfg(test)]
    pub(crate) fn held_and_counted(&self) -> ([usize; 2], usize) {
        let (mut requests, mut replies) = (0, 0);
        for open in self.sessions.values() {
            requests += open.session.partial_bytes();
            replies += open.session.unacked_bytes();
        }
        ([requests, replies], self.memory.used())
    }

    /// Sessions that are to make room, and are not ended yet.
    #[cfg(test)]
    pub(crate) fn leaving(&self) -> usize {
        let accounts = self.sessions.values().map(|open| &open.account);
        accounts.filter(|account| account.is_evicted()).count()
    }

    /// The bound of the memory of all connections.
    #[cfg(test)]
    pub(crate) fn memory_bound(&self) -> usize {
        self.memory.bound()
    }

    /// Takes a datagram. Whole requests go to `requests`.
    pub(crate) fn receive(
        &mut self,
        now: Moment,
        from: SocketAddr,
        datagram: &[u8],
        requests: &mut Vec<Arrived>,
    ) {
        let (head, body) = match packet::open(datagram) {
            Ok(opened) => opened,
            Err(Strange::Garbage) => {
                self.counts.garbage += 1;
                return;
            }
            Err(Strange::OtherVersion { version, hello, .. }) => {
                self.counts.other_version += 1;
                if let Some(id) = hello.filter(|_| datagram.len() >= opening::HELLO_BYTES) {
                    let text = opening::other_version(version, version);
                    self.answer(from, |into| opening::encode_refusal(id, &text, into));
                }
                return;
            }
        };
        match head.kind {
            Kind::Hello => match Hello::decode(head.number, body) {
                Some(hello) => self.receive_hello(now, from, &hello),
                None => self.counts.garbage += 1,
            },
            Kind::Data => self.receive_data(now, from, &head, datagram, body, requests),
            Kind::Reset => self.receive_reset(from, &head),
            Kind::Cookie | Kind::Welcome | Kind::Refused => self.counts.unknown += 1,
        }
    }

    fn answer(&mut self, to: SocketAddr, write: impl FnOnce(&mut Vec<u8>)) {
        if self.answers.len() < ANSWERS_MAX {
            let mut datagram = Vec::new();
            write(&mut datagram);
            self.answers.push_back((to, datagram));
        }
    }

    fn receive_hello(&mut self, now: Moment, from: SocketAddr, hello: &Hello) {
        let id = hello.session;
        if !hello.speaks_ours() {
            self.counts.other_version += 1;
            let text = opening::other_version(hello.oldest, hello.newest);
            self.answer(from, |into| opening::encode_refusal(id, &text, into));
            return;
        }
        if !hello.cookie.is_good(self.cookie_key, now, from, hello) {
            let cookie = Cookie::bake(self.cookie_key, now, from, hello);
            self.answer(from, |into| opening::encode_cookie(id, &cookie, into));
            return;
        }
        if let Some(open) = (self.by_hello.get(&(from, id))).and_then(|id| self.sessions.get(id)) {
            let (welcome, keys) = (open.welcome, open.keys);
            self.answer(from, |into| welcome.encode(id, &keys, into));
            return;
        }
        if self.sessions.len() >= self.rules.sessions_max {
            self.counts.refused += 1;
            let most = self.rules.sessions_max;
            let text = format!("too many connections: this server takes {most}; close some");
            self.answer(from, |into| opening::encode_refusal(id, &text, into));
            return;
        }
        let welcome = Welcome {
            terms: self.rules.terms,
            key_half: self.secret.draw(),
            session: self.secret.draw(),
        };
        let keys = Keys::new(hello.key_half, welcome.key_half);
        let setup = Setup {
            peer_session: id,
            key_out: keys.to_client,
            key_in: keys.to_server,
            ours: self.rules.terms,
            theirs: hello.terms,
            limits: self.rules.limits,
        };
        let open = Open {
            session: Session::new(now, &setup),
            account: Account::new(&self.memory),
            refused: None,
            from,
            peer: Address::from(from.to_string().as_str()),
            client_session: id,
            welcome,
            keys,
            alarm: None,
            is_ready: false,
            owed: Vec::new(),
        };
        self.counts.opened += 1;
        self.sessions.insert(welcome.session, open);
        self.by_hello.insert((from, id), welcome.session);
        self.touch(welcome.session);
        self.answer(from, |into| welcome.encode(id, &keys, into));
    }

    fn receive_data(
        &mut self,
        now: Moment,
        from: SocketAddr,
        head: &Head,
        datagram: &[u8],
        body: &[u8],
        requests: &mut Vec<Arrived>,
    ) {
        let id = head.session;
        let Some(open) = self.sessions.get_mut(&id).filter(|open| open.from == from) else {
            self.counts.unknown += 1;
            // Its sender knows the tag of what it sent, and nobody else does.
            let (number, tag) = (head.number, head.tag);
            self.answer(from, |into| {
                packet::begin(into);
                packet::seal(into, Kind::Reset, id, number, |_| tag);
            });
            return;
        };
        let (account, traffic) = (&mut open.account, &self.traffic);
        let unacked = open.session.unacked_bytes();
        let reply_bytes_max = self.rules.reply_bytes_max;
        let mut refused = open.refused;
        let mut gate = |beginning: &Beginning<'_>| {
            let traffic = traffic(beginning.opcode, beginning.begun);
            let why = lacks(account, traffic, beginning.room, unacked, reply_bytes_max);
            self.counts.waited += usize::from(why.is_some() && refused.is_none());
            refused = why.map(|why| (why, now));
            why.is_none()
        };
        let mut taken =
            (open.session).receive(now, head, datagram, body, &mut gate, &mut self.whole);
        open.refused = refused;
        for message in self.whole.drain(..) {
            match message.head.kind {
                MessageKind::Request => requests.push(Arrived {
                    session: id,
                    peer: open.peer.clone(),
                    call: message.head.call,
                    frame: message.frame,
                }),
                MessageKind::Reply | MessageKind::ReplyTooLarge => {
                    taken = Err(Fault::WrongWay.into());
                }
            }
        }
        self.counts.lost += open.session.take_lost();
        match taken {
            Ok(()) => {
                open.pay(self.rules.reply_bytes_max);
                self.account_for(id);
                self.touch(id);
            }
            Err(Trouble::Ignored(Ignored::Forged)) => self.counts.forged += 1,
            Err(Trouble::Ignored(Ignored::Repeated)) => self.counts.repeated += 1,
            Err(Trouble::End(end)) => self.end(id, end),
        }
    }

    /// The client's end of a session is gone, if it can show a datagram of it.
    fn receive_reset(&mut self, from: SocketAddr, head: &Head) {
        let id = self.by_hello.get(&(from, head.session)).copied();
        let knows = |open: &Open| open.session.knows(head.number, head.tag);
        match id.filter(|id| self.sessions.get(id).is_some_and(knows)) {
            Some(id) => self.end(id, End::Reset),
            None => self.counts.unknown += 1,
        }
    }

    fn end(&mut self, id: u64, end: End) {
        let Some(mut open) = self.sessions.remove(&id) else {
            return;
        };
        self.by_hello.remove(&(open.from, open.client_session));
        if let Some(at) = open.alarm {
            self.alarms.remove(&(at, id));
        }
        self.holders.remove(&id);
        self.counts.ended += 1;
        match &end {
            End::Closed(_) | End::Reset | End::Silent(_) => {}
            End::Overdue => self.counts.overdue += 1,
            End::Evicted => self.counts.evicted += 1,
            End::Fault(_) => self.counts.faults += 1,
        }
        if !matches!(end, End::Closed(_) | End::Reset) {
            let text = end.to_string();
            self.answer(open.from, |into| open.session.farewell(&text, into));
        }
        self.ended.push((open.from, end));
    }

    /// Notes that a session may have something to send, or an earlier deadline.
    fn touch(&mut self, id: u64) {
        let Some(open) = self.sessions.get_mut(&id) else {
            return;
        };
        if !open.is_ready {
            open.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Sets the alarm of a session that has sent what it could.
    fn set_alarm(&mut self, id: u64) {
        let Some(open) = self.sessions.get_mut(&id) else {
            return;
        };
        let deadline = open.session.deadline();
        // An alarm that comes too early costs less than moving it each time.
        if open.alarm.is_some_and(|set| set <= deadline) {
            return;
        }
        if let Some(old) = open.alarm.replace(deadline) {
            self.alarms.remove(&(old, id));
        }
        self.alarms.insert((deadline, id));
    }

    /// Answers a request of `request_bytes`. One whose session is over is dropped.
    pub(crate) fn reply(&mut self, session: u64, call: u64, request_bytes: usize, reply: Frame) {
        let most = self.rules.terms.frame_bytes_max as usize;
        let Some(open) = self.sessions.get_mut(&session) else {
            return;
        };
        let message = if reply.len() > open.session.frame_bytes_max().min(most) {
            Message {
                kind: MessageKind::ReplyTooLarge,
                call,
                frame: Frame {
                    opcode: reply.opcode,
                    meta: bytes::Bytes::new(),
                    payload: bytes::Bytes::copy_from_slice(&(reply.len() as u64).to_le_bytes()),
                },
            }
        } else {
            Message {
                kind: MessageKind::Reply,
                call,
                frame: reply,
            }
        };
        open.owed.push(request_bytes);
        open.session.push(message);
        open.pay(self.rules.reply_bytes_max);
        let most = QUEUES_MAX * self.rules.reply_bytes_max + most;
        let is_beyond = open.session.unacked_bytes() >= most;
        self.account_for(session);
        let is_full = |open: &Open| open.account.are_replies_full();
        if is_beyond && self.sessions.get(&session).is_some_and(is_full) {
            self.end(session, End::Evicted);
            return;
        }
        self.touch(session);
    }

    /// Counts what a session holds (ENDPOINT-4).
    fn account_for(&mut self, id: u64) {
        let Some(open) = self.sessions.get_mut(&id) else {
            return;
        };
        let (requests, replies) = (open.session.partial_room(), open.session.unacked_bytes());
        // Messages that have begun count with all of their room, so they need no grant beside it.
        open.account.end_grant();
        open.account.tell(requests, replies);
        let is_peers_turn = [requests > 0, replies > 0];
        open.account.note(open.session.moved(), is_peers_turn);
        // One that is to make room is ended by the next look, though it holds nothing any more.
        let is_evicted = open.account.is_evicted();
        if open.account.is_counted() || is_evicted || open.refused.is_some() {
            self.holders.insert(id);
        } else {
            self.holders.remove(&id);
        }
    }

    /// Ends sessions that are to make room, and looks for such while others are refused.
    fn look(&mut self, now: Moment) {
        if self.holders.is_empty() {
            self.look_at = None;
            return;
        }
        if *self.look_at.get_or_insert(now + LOOK_PAUSE) > now {
            return;
        }
        self.look_at = None;
        let mut before = core::mem::take(&mut self.holders);
        let behind = before.split_off(&self.look_from);
        let mut looks = 0;
        for id in behind.into_iter().chain(before) {
            let Some(open) = self.sessions.get_mut(&id) else {
                continue;
            };
            (open.refused).take_if(|(_, at)| now.since(*at) >= REFUSED_HOLDS);
            let wants_reply = match open.refused {
                Some((Refused::RequestRoom, _)) => Some(false),
                Some((Refused::ReplyRoom, _)) => Some(true),
                Some((Refused::UntakenReplies, _)) | None => None,
            };
            if let Some(wants_reply) = wants_reply.filter(|_| looks < LOOKS_MAX) {
                open.account.look(wants_reply, now);
                looks += 1;
                self.look_from = id.wrapping_add(1);
            }
            if open.account.is_evicted() {
                self.end(id, End::Evicted);
            } else if open.account.is_counted() || open.refused.is_some() {
                self.holders.insert(id);
                self.look_at = Some(now + LOOK_PAUSE);
            }
        }
    }

    /// Writes the next datagram, if one is to be sent now, and gives where to.
    pub(crate) fn transmit(&mut self, now: Moment, into: &mut Vec<u8>) -> Option<SocketAddr> {
        if let Some((to, datagram)) = self.answers.pop_front() {
            into.clear();
            into.extend_from_slice(&datagram);
            return Some(to);
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(open) = self.sessions.get_mut(&id) else {
                continue;
            };
            if open.session.transmit(now, into) {
                // Sessions take turns.
                self.ready.push_back(id);
                return Some(open.from);
            }
            open.is_ready = false;
            self.set_alarm(id);
        }
        None
    }

    /// When [`Self::alarm`] has something to do, once nothing is to be sent.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        let alarm = self.alarms.first().map(|(at, _)| *at);
        [alarm, self.look_at].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(crate) fn alarm(&mut self, now: Moment) {
        self.look(now);
        while let Some(&(at, id)) = self.alarms.first() {
            if at > now {
                return;
            }
            self.alarms.pop_first();
            let Some(open) = self.sessions.get_mut(&id) else {
                continue;
            };
            open.alarm = None;
            match open.session.alarm(now) {
                Ok(()) => {
                    self.counts.lost += open.session.take_lost();
                    self.touch(id);
                }
                Err(end) => self.end(id, end),
            }
        }
    }

    /// Writes a farewell to each session, for a port that closes.
    pub(crate) fn farewells(&mut self, text: &str, mut send: impl FnMut(SocketAddr, &[u8])) {
        let mut datagram = Vec::new();
        for open in self.sessions.values_mut() {
            open.session.farewell(text, &mut datagram);
            send(open.from, &datagram);
        }
    }
}

/// The lack that keeps a request from beginning. `None`: it may begin.
fn lacks(
    account: &mut Account,
    traffic: Traffic,
    room: Option<usize>,
    unacked: usize,
    reply_bytes_max: usize,
) -> Option<Refused> {
    if traffic.is_of_servers {
        account.join_servers_with_room();
    }
    if !(traffic.never_waits && unacked < SMALL_BYTES) {
        // While memory is plenty, credit that is held back does the same (`Open::pay`).
        if account.are_replies_scarce() && unacked >= account.reply_bytes_max(reply_bytes_max) {
            return Some(Refused::UntakenReplies);
        }
        if !account.has_reply_room() {
            return Some(Refused::ReplyRoom);
        }
    }
    let has_room = room.is_none_or(|room| account.may_begin(room));
    (!has_room).then_some(Refused::RequestRoom)
}

impl Open {
    /// Gives the credit of answered requests back, unless too many replies wait for acks.
    fn pay(&mut self, reply_bytes_max: usize) {
        if self.session.unacked_bytes() < reply_bytes_max {
            for bytes in self.owed.drain(..) {
                self.session.release(bytes);
            }
        }
    }
}
