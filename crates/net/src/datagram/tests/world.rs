//! A server, clients and the network between them, in one thread and in virtual time.

use super::super::caller::{Answer, Caller, Odd, Over};
use super::super::endpoint::{Arrived, Counts, Endpoint, Rules};
use super::super::opening::Terms;
use super::super::packet::Credit;
use super::super::session::{End, Limits};
use super::super::siphash::{Key, Secret};
use crate::memory::{GRAIN, PortMemory};
use core::net::SocketAddr;
use core::time::Duration;
use pluvio_env::{Frame, Moment, Traffic};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub(super) const SERVER: usize = 0;

/// Memory that is never short.
const AMPLE: usize = 1 << 30;

/// Draws numbers from a seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    pub(super) fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood, public domain).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// What the network does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// In percent.
    pub(super) loss: u64,
    pub(super) duplicate: u64,
    /// Chance that a datagram takes up to ten times as long.
    pub(super) late: u64,
    pub(super) delay_us: u64,
    /// Chance of a forged, damaged, cut or repeated datagram beside each real one.
    pub(super) hostile: u64,
    /// Everything is lost from the first time to the second.
    pub(super) cut: Option<(Moment, Moment)>,
}

pub(super) const CLEAN: Faults = Faults {
    loss: 0,
    duplicate: 0,
    late: 0,
    delay_us: 100,
    hostile: 0,
    cut: None,
};

pub(super) const BAD: Faults = Faults {
    loss: 20,
    duplicate: 10,
    late: 20,
    ..CLEAN
};

/// What became of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Reply,
    TooLarge,
    Lost,
    Unreachable,
}

struct Client {
    caller: Caller,
    /// Calls that are not begun.
    queue: VecDeque<(u64, Frame)>,
    /// Calls begun on this session.
    begun: BTreeMap<u64, Frame>,
}

pub(super) struct World {
    pub(super) now: Moment,
    pub(super) dice: Dice,
    pub(super) faults: Faults,
    pub(super) rules: Rules,
    pub(super) endpoint: Endpoint,
    clients: Vec<Client>,
    client_terms: Terms,
    secret: Secret,
    /// Datagrams under way, by arrival: to whom, from whom.
    wire: BTreeMap<(Moment, u64), (usize, SocketAddr, Vec<u8>)>,
    /// Datagrams that an attacker has seen.
    seen: VecDeque<(usize, SocketAddr, Vec<u8>)>,
    /// Answers in the making.
    work: BTreeMap<(Moment, u64), (Arrived, Frame)>,
    order: u64,
    /// The next number of a call.
    calls: u64,
    pub(super) executed: BTreeMap<u64, usize>,
    pub(super) outcomes: BTreeMap<u64, Outcome>,
    pub(super) counts: Counts,
    pub(super) ends: Vec<Over>,
    pub(super) server_ends: Vec<End>,
    pub(super) sent: u64,
    /// Most bytes of arrived pieces that one session held.
    pub(super) partial_bytes_max: usize,
    /// Most memory that all sessions of the server counted.
    pub(super) memory_used_max: usize,
    /// Longest work of the service.
    pub(super) work_us: u64,
}

pub(super) fn limits() -> Limits {
    Limits {
        silence: Duration::from_secs(10),
        opening: Duration::from_secs(30),
        idle: Duration::from_secs(60),
        message: Duration::from_secs(30),
        keepalive: None,
        waiting: Duration::from_millis(100),
        flight_bytes_max: 256 << 10,
    }
}

pub(super) fn address(who: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, who as u8], 7_000 + who as u16))
}

/// An endpoint whose sessions share this memory, or the least that its frames need. Requests with
/// odd opcodes are of servers.
pub(super) fn new_endpoint(key: Key, rules: Rules, bytes: usize) -> Endpoint {
    let frame_bytes_max = rules.terms.frame_bytes_max as usize;
    let memory = PortMemory::new(bytes, frame_bytes_max, Duration::from_secs(1));
    let traffic = Box::new(|opcode, _: &[u8]| Traffic {
        is_of_servers: opcode % 2 == 1,
        never_waits: false,
    });
    Endpoint::new(key, rules, Arc::new(memory), traffic)
}

impl World {
    pub(super) fn new(seed: u64, clients: usize, faults: Faults) -> Self {
        let terms = Terms {
            frame_bytes_max: 1 << 20,
            datagram_bytes_max: 1_400,
            credit: Credit {
                bytes: 3 << 20,
                messages: 16,
            },
        };
        let rules = Rules {
            terms,
            limits: limits(),
            sessions_max: 100,
            reply_bytes_max: 1 << 20,
        };
        let mut dice = Dice::new(seed);
        let endpoint = new_endpoint(Key(dice.next(), dice.next()), rules, AMPLE);
        let secret = Secret::new(Key(dice.next(), dice.next()));
        let mut this = Self {
            now: Moment(Duration::from_secs(1)),
            dice,
            faults,
            rules,
            endpoint,
            clients: Vec::new(),
            client_terms: terms,
            secret,
            wire: BTreeMap::new(),
            seen: VecDeque::new(),
            work: BTreeMap::new(),
            order: 0,
            calls: 0,
            executed: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            counts: Counts::default(),
            ends: Vec::new(),
            server_ends: Vec::new(),
            sent: 0,
            partial_bytes_max: 0,
            memory_used_max: 0,
            work_us: 2_000,
        };
        for _ in 0..clients {
            let caller = this.new_caller();
            this.clients.push(Client {
                caller,
                queue: VecDeque::new(),
                begun: BTreeMap::new(),
            });
        }
        this
    }

    fn new_caller(&mut self) -> Caller {
        let limits = Limits {
            keepalive: Some(Duration::from_secs(15)),
            ..limits()
        };
        Caller::new(self.now, &mut self.secret, self.client_terms, limits)
    }

    /// Begins a call of `client` with this many bytes; the reply has about as many.
    pub(super) fn call(&mut self, client: usize, bytes: usize) -> u64 {
        let call = self.calls;
        self.calls += 1;
        let frame = body(call, bytes, 1);
        self.clients[client - 1].queue.push_back((call, frame));
        call
    }

    /// The server dies and comes back without its memory.
    pub(super) fn restart_server(&mut self) {
        self.endpoint = new_endpoint(Key(self.dice.next(), self.dice.next()), self.rules, AMPLE);
        self.work.clear();
    }

    /// Puts bytes on the wire without faults, as an attacker would.
    pub(super) fn inject(&mut self, to: usize, from: SocketAddr, datagram: Vec<u8>) {
        self.order += 1;
        self.wire
            .insert((self.now, self.order), (to, from, datagram));
    }

    /// All datagrams that were sent.
    pub(super) fn seen(&self) -> impl Iterator<Item = &(usize, SocketAddr, Vec<u8>)> {
        self.seen.iter()
    }

    fn send(&mut self, from: usize, to: usize, datagram: &[u8]) {
        self.sent += 1;
        assert!(
            datagram.len() <= 1_400,
            "a datagram of {} bytes",
            datagram.len()
        );
        let entry = (to, address(from), datagram.to_vec());
        if self.seen.len() == 200 {
            let gone = self.dice.below(200) as usize;
            self.seen.remove(gone);
        }
        self.seen.push_back(entry.clone());
        let is_cut = self
            .faults
            .cut
            .is_some_and(|(a, b)| (a..b).contains(&self.now));
        let copies = 1 + usize::from(self.dice.percent(self.faults.duplicate));
        for _ in 0..copies {
            if is_cut || self.dice.percent(self.faults.loss) {
                continue;
            }
            let most = match self.dice.percent(self.faults.late) {
                true => 10 * self.faults.delay_us,
                false => self.faults.delay_us,
            };
            // A network without late ones keeps the order.
            let more = if self.faults.late > 0 {
                self.dice.below(most)
            } else {
                0
            };
            let delay = Duration::from_micros(self.faults.delay_us + more);
            self.order += 1;
            self.wire
                .insert((self.now + delay, self.order), entry.clone());
        }
        if self.dice.percent(self.faults.hostile) {
            self.attack();
        }
    }

    /// Sends something of an attacker.
    fn attack(&mut self) {
        let pick = self.dice.below(self.seen.len() as u64) as usize;
        let (mut to, mut from, mut bytes) = self.seen[pick].clone();
        match self.dice.below(6) {
            0 => {}
            1 => {
                let bit = self.dice.below(8 * bytes.len() as u64) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            2 => bytes.truncate(self.dice.below(bytes.len() as u64) as usize),
            3 => from = address(77),
            4 => {
                let length = self.dice.below(1_400) as usize;
                bytes = (0..length).map(|_| self.dice.next() as u8).collect();
            }
            _ => to = self.dice.below(1 + self.clients.len() as u64) as usize,
        }
        let delay = Duration::from_micros(self.dice.below(50_000));
        self.order += 1;
        self.wire
            .insert((self.now + delay, self.order), (to, from, bytes));
    }

    /// Lets everything happen until all calls have ended, at most for `limit` of virtual time.
    pub(super) fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.outcomes.len() < self.calls as usize {
            assert!(self.now < end, "calls did not end: {}", self.stuck());
            self.step();
        }
    }

    /// Lets everything happen for some time.
    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn stuck(&self) -> String {
        let open = (0..self.calls).filter(|call| !self.outcomes.contains_key(call));
        format!(
            "{:?} at {} after {} datagrams",
            open.collect::<Vec<_>>(),
            self.now,
            self.sent
        )
    }

    fn step(&mut self) {
        self.pump();
        let mut next = self
            .endpoint
            .deadline()
            .unwrap_or(self.now + Duration::from_secs(1));
        for client in &self.clients {
            next = next.min(client.caller.deadline());
        }
        for at in [self.wire.keys().next(), self.work.keys().next()]
            .into_iter()
            .flatten()
        {
            next = next.min(at.0);
        }
        // A machine that asks for the past would spin.
        self.now = next.max(self.now + Duration::from_nanos(1));
        while let Some(entry) = self
            .wire
            .first_entry()
            .filter(|entry| entry.key().0 <= self.now)
        {
            let (to, from, datagram) = entry.remove();
            self.arrive(to, from, &datagram);
        }
        while let Some(entry) = self
            .work
            .first_entry()
            .filter(|entry| entry.key().0 <= self.now)
        {
            let (request, reply) = entry.remove();
            let bytes = request.frame.len();
            self.endpoint
                .reply(request.session, request.call, bytes, reply);
        }
        self.endpoint.alarm(self.now);
        for at in 0..self.clients.len() {
            if let Err(over) = self.clients[at].caller.alarm(self.now) {
                self.over(at, over);
            }
        }
        self.check();
    }

    /// Sends what the machines want to send.
    fn pump(&mut self) {
        let mut datagram = Vec::new();
        while let Some(to) = self.endpoint.transmit(self.now, &mut datagram) {
            let who = (1..=self.clients.len()).find(|&who| address(who) == to);
            if let Some(who) = who {
                self.send(SERVER, who, &datagram);
            }
        }
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            while client.caller.has_room() {
                let Some((call, frame)) = client.queue.pop_front() else {
                    break;
                };
                if client.caller.call(call, frame.clone()).is_err() {
                    self.outcomes.insert(call, Outcome::TooLarge);
                } else {
                    client.begun.insert(call, frame);
                }
            }
            let is_waiting = !client.begun.is_empty();
            if let Some(session) = client.caller.session() {
                session.set_waiting(is_waiting);
            }
            while self.clients[at].caller.transmit(self.now, &mut datagram) {
                self.send(at + 1, SERVER, &datagram);
            }
        }
    }

    fn arrive(&mut self, to: usize, from: SocketAddr, datagram: &[u8]) {
        if to == SERVER {
            let mut requests = Vec::new();
            self.endpoint
                .receive(self.now, from, datagram, &mut requests);
            for request in requests {
                self.serve(request);
            }
            return;
        }
        let mut answers = Vec::new();
        let at = to - 1;
        let taken = self.clients[at]
            .caller
            .receive(self.now, datagram, &mut answers);
        for (call, answer) in answers {
            let Some(request) = self.clients[at].begun.remove(&call) else {
                panic!("two replies for call {call}");
            };
            let outcome = match answer {
                Answer::Reply(frame) => {
                    assert_eq!(frame, reply_to(&request), "a wrong reply");
                    Outcome::Reply
                }
                Answer::TooLarge(_) => Outcome::TooLarge,
            };
            self.outcomes.insert(call, outcome);
        }
        if let Err(Odd::Over(over)) = taken {
            self.over(at, over);
        }
    }

    fn serve(&mut self, request: Arrived) {
        let call = number_of(&request.frame);
        assert_eq!(call, request.call);
        assert_eq!(
            request.frame,
            body(call, request.frame.payload.len(), 1),
            "a wrong request"
        );
        *self.executed.entry(call).or_default() += 1;
        let reply = reply_to(&request.frame);
        let time = Duration::from_micros(self.dice.below(self.work_us + 1));
        self.order += 1;
        self.work
            .insert((self.now + time, self.order), (request, reply));
    }

    fn over(&mut self, at: usize, over: Over) {
        self.ends.push(over);
        let fresh = self.new_caller();
        let client = &mut self.clients[at];
        client.caller = fresh;
        for (call, _) in core::mem::take(&mut client.begun) {
            self.outcomes.insert(call, Outcome::Lost);
        }
        for (call, _) in core::mem::take(&mut client.queue) {
            self.outcomes.insert(call, Outcome::Unreachable);
        }
    }

    /// What holds at each moment.
    fn check(&mut self) {
        let counts = self.endpoint.take_counts();
        for (all, new) in [
            (&mut self.counts.garbage, counts.garbage),
            (&mut self.counts.other_version, counts.other_version),
            (&mut self.counts.forged, counts.forged),
            (&mut self.counts.repeated, counts.repeated),
            (&mut self.counts.unknown, counts.unknown),
            (&mut self.counts.lost, counts.lost),
            (&mut self.counts.opened, counts.opened),
            (&mut self.counts.refused, counts.refused),
            (&mut self.counts.ended, counts.ended),
            (&mut self.counts.faults, counts.faults),
            (&mut self.counts.overdue, counts.overdue),
            (&mut self.counts.evicted, counts.evicted),
            (&mut self.counts.waited, counts.waited),
        ] {
            *all += new;
        }
        self.server_ends
            .extend(self.endpoint.take_ended().into_iter().map(|(_, end)| end));
        let most = self.rules.terms.credit.bytes as usize;
        for session in self.endpoint.sessions() {
            self.partial_bytes_max = self.partial_bytes_max.max(session.partial_bytes());
        }
        for client in &mut self.clients {
            if let Some(session) = client.caller.session() {
                self.partial_bytes_max = self.partial_bytes_max.max(session.partial_bytes());
            }
        }
        assert!(self.partial_bytes_max <= most, "SESSION-2");
        let (held, counted) = self.endpoint.held_and_counted();
        let uncounted = GRAIN * self.clients.len();
        self.memory_used_max = self.memory_used_max.max(counted);
        assert!(
            held[0] <= counted + uncounted,
            "NETMEM-4: {held:?} of {counted}"
        );
        assert!(
            self.executed.values().all(|&count| count == 1),
            "NET-4: executed twice"
        );
    }
}

/// A frame of a call: its number, then bytes that follow from it.
pub(super) fn body(call: u64, bytes: usize, salt: u64) -> Frame {
    let mut dice = Dice::new(call ^ salt << 40);
    let meta: Vec<u8> = [
        &call.to_le_bytes()[..],
        &vec![salt as u8; (call % 50) as usize],
    ]
    .concat();
    let mut payload = vec![0; bytes];
    for chunk in payload.chunks_mut(8) {
        let word = dice.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    Frame {
        opcode: call as u16,
        meta: meta.into(),
        payload: payload.into(),
    }
}

fn number_of(frame: &Frame) -> u64 {
    u64::from_le_bytes(frame.meta[..8].try_into().expect("eight bytes"))
}

/// The reply of the service, of another size than its request.
fn reply_to(request: &Frame) -> Frame {
    let call = number_of(request);
    let bytes = match call % 3 {
        0 => 0,
        1 => request.payload.len() / 2 + 1,
        _ => (request.payload.len() * 2).min(900_000),
    };
    Frame {
        opcode: request.opcode,
        ..body(call, bytes, 2)
    }
}
