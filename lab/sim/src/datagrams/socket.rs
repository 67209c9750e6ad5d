//! Simulated sockets of datagrams: what is sent may be lost, doubled, late, damaged, or come again
//! much later. A machine where nothing listens mostly says so.
//!
//! An address is made of the process and a number, so that the faults of the way to it are known.

use crate::executor::{Action, Shared};
use crate::packets::{Packet, Way};
use crate::queue::Event;
use crate::random::mix;
use crate::state::{Life, Owner, ProcessId, State};
use crate::trace::Fact;
use core::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use core::task::{Context, Poll, Waker};
use pluvio_env::Address;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// Bytes that wait for a socket's process; more are dropped, as by a kernel.
const INBOX_BYTES_MAX: usize = 4 << 20;
/// A datagram that comes again much later is at most so late.
const REPLAY_MAX_NS: u64 = 10_000_000_000;
/// The process of an address where nobody has ever listened.
const NOBODY: u32 = u32::MAX;

/// All sockets, and where ports are found.
#[derive(Default)]
pub(crate) struct Sockets {
    /// Those that share an address, one for each core of a port.
    bound: BTreeMap<SocketAddr, Vec<Bound>>,
    names: BTreeMap<Address, SocketAddr>,
    last: u32,
}

struct Bound {
    owner: Owner,
    id: u32,
    inbox: VecDeque<Arrived>,
    bytes: usize,
    waker: Option<Waker>,
}

/// What a socket's process gets.
pub(super) enum Arrived {
    Datagram(SocketAddr, Vec<u8>),
    /// The machine at the other end says that nothing listens there.
    Refused,
}

/// A datagram on its way.
#[derive(Clone)]
pub(crate) struct Datagram {
    from: Owner,
    from_at: SocketAddr,
    to: SocketAddr,
    bytes: Option<Vec<u8>>,
}

fn place(process: u32, number: u32) -> SocketAddr {
    let half = |word: u32| ((word >> 16) as u16, word as u16);
    let ((p1, p0), (n1, n0)) = (half(process), half(number));
    let ip = Ipv6Addr::new(0xfd00, 0, 0, 0, p1, p0, n1, n0);
    SocketAddr::V6(SocketAddrV6::new(ip, 1, 0, 0))
}

fn process_of(at: SocketAddr) -> Option<ProcessId> {
    let SocketAddr::V6(at) = at else {
        return None;
    };
    let [.., p1, p0, _, _] = at.ip().segments();
    let process = u32::from(p1) << 16 | u32::from(p0);
    (process != NOBODY).then_some(ProcessId(process))
}

impl Sockets {
    /// Where a port of this name is, or would be.
    pub(super) fn resolve(&mut self, name: &Address) -> SocketAddr {
        if let Some(at) = self.names.get(name) {
            return *at;
        }
        self.last += 1;
        place(NOBODY, self.last)
    }

    /// A process is to listen under this name.
    pub(super) fn name(&mut self, name: &Address, process: ProcessId) -> SocketAddr {
        let known = self.names.get(name).copied();
        if let Some(at) = known.filter(|at| process_of(*at) == Some(process)) {
            return at;
        }
        self.last += 1;
        let at = place(process.0, self.last);
        self.names.insert(name.clone(), at);
        at
    }

    /// Whether somebody has a socket there.
    pub(super) fn is_bound(&self, at: SocketAddr) -> bool {
        self.bound.contains_key(&at)
    }
}

/// A socket of a process.
pub(super) struct Socket {
    shared: Arc<Shared>,
    owner: Owner,
    at: SocketAddr,
    id: u32,
}

impl Socket {
    /// A socket at an address of its own, or one of those at `at`.
    pub(super) fn bind(shared: &Arc<Shared>, owner: Owner, at: Option<SocketAddr>) -> Self {
        let mut state = shared.lock();
        state.sockets.last += 1;
        let id = state.sockets.last;
        let at = at.unwrap_or_else(|| place(owner.process.0, id));
        state.sockets.bound.entry(at).or_default().push(Bound {
            owner,
            id,
            inbox: VecDeque::new(),
            bytes: 0,
            waker: None,
        });
        drop(state);
        Self {
            shared: Arc::clone(shared),
            owner,
            at,
            id,
        }
    }

    /// The next thing that has arrived.
    pub(super) fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Arrived> {
        let mut state = self.shared.lock();
        let bound = state.sockets.bound.get_mut(&self.at);
        let own = bound.and_then(|bound| bound.iter_mut().find(|one| one.id == self.id));
        let Some(own) = own else {
            return Poll::Pending;
        };
        if let Some(arrived) = own.inbox.pop_front() {
            own.bytes -= arrived.len();
            return Poll::Ready(arrived);
        }
        let old = own.waker.replace(cx.waker().clone());
        drop(state);
        drop(old);
        Poll::Pending
    }

    pub(super) fn send(&self, to: SocketAddr, bytes: Vec<u8>) {
        let mut state = self.shared.lock();
        if state.is_alive(self.owner) {
            state.send_datagram(Datagram {
                from: self.owner,
                from_at: self.at,
                to,
                bytes: Some(bytes),
            });
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let Some(bound) = state.sockets.bound.get_mut(&self.at) else {
            return;
        };
        let own = bound.iter().position(|one| one.id == self.id);
        let own = own.map(|own| bound.remove(own));
        if bound.is_empty() {
            state.sockets.bound.remove(&self.at);
        }
        drop(state);
        drop(own);
    }
}

impl Arrived {
    fn len(&self) -> usize {
        match self {
            Self::Datagram(_, bytes) => bytes.len(),
            Self::Refused => 0,
        }
    }
}

impl Datagram {
    fn fact(&self, what: &'static str, to: ProcessId) -> Fact<'static> {
        let bytes = self.bytes.as_deref().unwrap_or_default();
        Fact::Arrived {
            what,
            from: self.from.process,
            to,
            call: 0,
            opcode: 0,
            length: bytes.len(),
            content: XxHash3_64::oneshot(bytes),
        }
    }
}

impl State {
    fn send_datagram(&mut self, mut datagram: Datagram) {
        let from = datagram.from.process;
        let to = process_of(datagram.to);
        let length = datagram.bytes.as_ref().map_or(0, Vec::len);
        let way = Way { from, to, length };
        self.network_stats.sent += 1;
        if let Some(why) = self.loss(&way) {
            self.lost(&way, why, 0, 0);
            return;
        }
        let is_far = to != Some(from);
        let faults = self.faults(from, to);
        let (duplicate_ppm, replay_ppm) = (faults.duplicate_ppm, faults.replay_ppm);
        let damage_ppm = faults.damage_ppm;
        if is_far && self.random_network.chance(duplicate_ppm) {
            self.network_stats.duplicated += 1;
            let time = self.arrival_time(&way);
            self.datagram_arrives(time, datagram.clone());
        }
        if is_far && self.random_network.chance(replay_ppm) {
            self.network_stats.replayed += 1;
            let late = self.random_network.below(REPLAY_MAX_NS);
            let time = self.arrival_time(&way) + late;
            self.datagram_arrives(time, datagram.clone());
        }
        if is_far
            && self.random_network.chance(damage_ppm)
            && let Some(bytes) = &mut datagram.bytes
        {
            self.network_stats.damaged += 1;
            let place = self.random_network.below(bytes.len() as u64) as usize;
            bytes[place] ^= 1 << self.random_network.below(8);
        }
        let time = self.arrival_time(&way);
        self.datagram_arrives(time, datagram);
    }

    fn datagram_arrives(&mut self, time: u64, datagram: Datagram) {
        let packet = Packet::Datagram(datagram);
        self.queue.push(time, Event::Packet(Box::new(packet)));
    }

    /// A datagram reaches the other machine.
    pub(crate) fn arrive_datagram(&mut self, datagram: Datagram) -> Action {
        let from = datagram.from.process;
        // The kernel deals senders to the sockets of a port, always the same.
        let sender = mix(XxHash3_64::oneshot(datagram.from_at.to_string().as_bytes()));
        let bound = self.sockets.bound.get(&datagram.to);
        let chosen = bound.filter(|bound| !bound.is_empty()).map(|bound| {
            let index = sender % bound.len() as u64;
            (index as usize, bound[index as usize].owner)
        });
        let Some((index, owner)) = chosen.filter(|(_, owner)| self.is_alive(*owner)) else {
            return self.nobody_hears(&datagram);
        };
        if self.is_cut(from, owner.process) {
            self.network_stats.cut += 1;
            let way = Way {
                from,
                to: Some(owner.process),
                length: 0,
            };
            self.lost(&way, "cut", 0, 0);
            return Action::Nothing;
        }
        if self.process(owner.process).life == Life::Paused {
            let held = &mut self.process_mut(owner.process).held_events;
            held.push(Event::Packet(Box::new(Packet::Datagram(datagram))));
            return Action::Nothing;
        }
        let what = match datagram.bytes {
            Some(_) => "datagram",
            None => "refusal",
        };
        self.record(&datagram.fact(what, owner.process));
        let bound = self.sockets.bound.get_mut(&datagram.to);
        let Some(own) = bound.and_then(|bound| bound.get_mut(index)) else {
            return Action::Nothing;
        };
        let arrived = match datagram.bytes {
            Some(bytes) => Arrived::Datagram(datagram.from_at, bytes),
            None => Arrived::Refused,
        };
        if own.bytes + arrived.len() > INBOX_BYTES_MAX {
            self.network_stats.lost += 1;
            return Action::Nothing;
        }
        own.bytes += arrived.len();
        own.inbox.push_back(arrived);
        self.network_stats.delivered += 1;
        own.waker.take().map_or(Action::Nothing, Action::Wake)
    }

    /// Nothing listens there: the machine says so, if it runs.
    fn nobody_hears(&mut self, datagram: &Datagram) -> Action {
        let to = process_of(datagram.to);
        let way = Way {
            from: datagram.from.process,
            to,
            length: 0,
        };
        self.lost(&way, "nobody listens", 0, 0);
        let refused_ppm = self.faults(way.from, to).refused_ppm;
        if datagram.bytes.is_some() && self.random_network.chance(refused_ppm) {
            self.network_stats.refused += 1;
            let back = Datagram {
                from: Owner {
                    process: to.unwrap_or(way.from),
                    incarnation: 0,
                },
                from_at: datagram.to,
                to: datagram.from_at,
                bytes: None,
            };
            let way = Way {
                from: back.from.process,
                to: Some(way.from),
                length: 0,
            };
            let time = self.arrival_time(&way);
            self.datagram_arrives(time, back);
        }
        Action::Nothing
    }
}
