//! The machines of datagrams for programs with a network of their own: simulations.
//!
//! They are the same that `client_io` and `serve` give sockets and time: a session of a client, and
//! all sessions of a port's socket. Their driver does the same as those tasks, in their order:
//!
//! 1. the alarm, when a deadline is over
//! 2. datagrams that have arrived
//! 3. calls or replies
//! 4. datagrams to be sent

use super::caller::{Answer, Caller, Odd};
use super::endpoint::{Arrived, Endpoint, Rules};
use super::packet::Strange;
use super::session::Ignored;
use super::siphash::{Key, Secret};
use super::socket::{client_limits, limits, terms};
use crate::memory::PortMemory;
use crate::options::NetOptions;
use core::net::SocketAddr;
use pluvio_env::{Frame, Moment, Service};
use std::sync::Arc;

pub use super::endpoint::Arrived as Request;

/// The use that a session had for the datagrams that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Seen {
    /// Datagrams of its own that it found lost, and whose content it sent again.
    pub lost: usize,
    /// Datagrams that had come before.
    pub repeated: usize,
    /// Datagrams whose tag was wrong.
    pub forged: usize,
    /// Datagrams that are none of ours, or damaged.
    pub garbage: usize,
    /// Datagrams of other sessions, or of other times.
    pub unknown: usize,
}

/// A reply, or the length of one that is larger than this side takes.
pub type Reply = Result<Frame, usize>;

/// The client's side of one session.
pub struct Client {
    caller: Caller,
    answers: Vec<(u64, Answer)>,
    seen: Seen,
}

impl Client {
    /// A session that is about to open. Nobody else may know `key`.
    #[must_use]
    pub fn new(now: Moment, key: (u64, u64), options: &NetOptions) -> Self {
        let terms = terms(options, 2 * options.frame_bytes_max, options.calls_max);
        let limits = client_limits(options, options.connect_limit);
        let mut secret = Secret::new(Key(key.0, key.1));
        Self {
            caller: Caller::new(now, &mut secret, terms, limits),
            answers: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Whether the session is open, and would begin a call at once.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.caller.has_room()
    }

    /// Begins a call, and names it. The session must be open.
    ///
    /// # Errors
    /// The request is larger than the peer takes, which is given.
    pub fn call(&mut self, call: u64, request: Frame) -> Result<(), usize> {
        self.caller.call(call, request)
    }

    /// Says whether calls wait for replies.
    pub fn set_waiting(&mut self, is_waiting: bool) {
        if let Some(session) = self.caller.session() {
            session.set_waiting(is_waiting);
        }
    }

    /// Takes a datagram.
    ///
    /// # Errors
    /// The session is over; text for people.
    pub fn receive(&mut self, now: Moment, datagram: &[u8]) -> Result<(), String> {
        let taken = self.caller.receive(now, datagram, &mut self.answers);
        if let Some(session) = self.caller.session() {
            self.seen.lost += session.take_lost();
        }
        let seen = &mut self.seen;
        match taken {
            Ok(()) => {}
            Err(Odd::Over(over)) => return Err(over.to_string()),
            Err(Odd::Unknown) => seen.unknown += 1,
            Err(Odd::Ignored(Ignored::Forged)) => seen.forged += 1,
            Err(Odd::Ignored(Ignored::Repeated)) => seen.repeated += 1,
            Err(Odd::Strange(Strange::Garbage | Strange::OtherVersion { .. })) => seen.garbage += 1,
        }
        Ok(())
    }

    /// The replies that have come, by the names of their calls.
    pub fn take_replies(&mut self) -> Vec<(u64, Reply)> {
        let reply = |answer| match answer {
            Answer::Reply(frame) => Ok(frame),
            Answer::TooLarge(bytes) => Err(bytes),
        };
        let answers = self.answers.drain(..);
        answers
            .map(|(call, answer)| (call, reply(answer)))
            .collect()
    }

    /// Writes the next datagram, if one is to be sent now.
    pub fn transmit(&mut self, now: Moment, into: &mut Vec<u8>) -> bool {
        self.caller.transmit(now, into)
    }

    /// When [`Self::alarm`] has something to do, at the latest.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.caller.deadline()
    }

    /// Time has passed.
    ///
    /// # Errors
    /// The session is over, or none comes; text for people.
    pub fn alarm(&mut self, now: Moment) -> Result<(), String> {
        self.caller.alarm(now).map_err(|over| over.to_string())
    }

    /// What it has seen since the last time.
    pub fn take_seen(&mut self) -> Seen {
        core::mem::take(&mut self.seen)
    }
}

/// The server's side of all sessions of one socket.
pub struct Server {
    endpoint: Endpoint,
    requests: Vec<Arrived>,
}

impl Server {
    /// No sessions yet. Nobody else may know `key`. The memory of connections is its own.
    #[must_use]
    pub fn new(key: (u64, u64), options: &NetOptions, service: Arc<dyn Service>) -> Self {
        let memory = PortMemory::new(
            options.connections_bytes_max,
            options.frame_bytes_max,
            options.standstill_limit,
        );
        let traffic = Box::new(move |opcode, begun: &[u8]| service.traffic(opcode, begun));
        let window = options.request_bytes_max + options.frame_bytes_max;
        let rules = Rules {
            terms: terms(options, window, options.requests_max),
            limits: limits(options),
            sessions_max: options.connections_max,
            reply_bytes_max: options.reply_queue_bytes_max,
        };
        Self {
            endpoint: Endpoint::new(Key(key.0, key.1), rules, Arc::new(memory), traffic),
            requests: Vec::new(),
        }
    }

    /// Takes a datagram.
    pub fn receive(&mut self, now: Moment, from: SocketAddr, datagram: &[u8]) {
        self.endpoint
            .receive(now, from, datagram, &mut self.requests);
    }

    /// The requests that have arrived whole.
    pub fn take_requests(&mut self) -> Vec<Request> {
        core::mem::take(&mut self.requests)
    }

    /// Answers a request of `request_bytes`. One whose session is over is dropped.
    pub fn reply(&mut self, session: u64, call: u64, request_bytes: usize, reply: Frame) {
        self.endpoint.reply(session, call, request_bytes, reply);
    }

    /// Writes the next datagram, if one is to be sent now, and gives where to.
    pub fn transmit(&mut self, now: Moment, into: &mut Vec<u8>) -> Option<SocketAddr> {
        self.endpoint.transmit(now, into)
    }

    /// When [`Self::alarm`] has something to do, once nothing is to be sent.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        self.endpoint.deadline()
    }

    /// Time has passed.
    pub fn alarm(&mut self, now: Moment) {
        self.endpoint.alarm(now);
        let _ended = self.endpoint.take_ended();
    }

    /// What it has seen since the last time.
    pub fn take_seen(&mut self) -> Seen {
        let counts = self.endpoint.take_counts();
        Seen {
            lost: counts.lost,
            repeated: counts.repeated,
            forged: counts.forged,
            garbage: counts.garbage + counts.other_version,
            unknown: counts.unknown,
        }
    }
}
