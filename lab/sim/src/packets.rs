//! What the network does with messages: ways, faults, arrival.
//!
//! A request is bound to the incarnation that listens at its address when it is sent, as on a TCP
//! connection: a copy that arrives when another incarnation listens there is lost. Together with
//! the filter for duplicates this gives "at most once per call" (SIM-5) also over restarts.
//! A request that finds nobody listening when it is sent goes out unbound and as one copy; nobody
//! can have executed it when it is refused on arrival, which is what `Unreachable` promises.

use crate::clock::nanos;
use crate::executor::Action;
use crate::network::Call;
use crate::options::NetworkFaults;
use crate::queue::Event;
use crate::random::mix;
use crate::slab::Key;
use crate::state::{Current, Life, Owner, ProcessId, State};
use crate::trace::{Fact, content};
use pluvio_env::{Address, CallError, Frame, NoConnection, Peer, Service};
use pluvio_units::CoreId;
use std::sync::Arc;

/// Somebody listens.
pub(crate) struct Port {
    pub(crate) owner: Owner,
    /// Tells this port from a later one at the same address.
    pub(crate) id: u64,
    pub(crate) service: Arc<dyn Service>,
}

/// The way from one process to another.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) cut: bool,
    pub(crate) faults: Option<NetworkFaults>,
    /// When the last message that keeps its order arrives.
    pub(crate) last_arrival: u64,
}

pub(crate) fn link_key(from: ProcessId, to: ProcessId) -> u64 {
    from.word() << 32 | to.word()
}

/// Where the reply to a request goes.
#[derive(Clone)]
pub(crate) struct ReplyTo {
    pub(crate) call: Key,
    pub(crate) number: u64,
    pub(crate) client: Owner,
    pub(crate) server: Owner,
}

/// A request on its way.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) call: Key,
    pub(crate) number: u64,
    pub(crate) from: Owner,
    pub(crate) from_core: u16,
    pub(crate) to: Address,
    /// The listener it is bound to; `None` when nobody listened when it was sent.
    pub(crate) bound: Option<Owner>,
    /// Whether a second copy was sent.
    pub(crate) duplicated: bool,
    pub(crate) frame: Frame,
}

#[derive(Clone)]
pub(crate) enum Packet {
    Request(Request),
    Reply(ReplyTo, Frame),
    /// The client's end learns that the connection is refused or broken.
    Failure(ReplyTo, CallError),
    #[cfg(feature = "cluster")]
    Datagram(crate::datagrams::Datagram),
}

/// A request for a service, to be handed over without the lock.
pub(crate) struct Arrival {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) peer: Peer,
    pub(crate) frame: Frame,
    pub(crate) reply: ReplyTo,
}

/// How one message is sent.
pub(crate) struct Way {
    pub(crate) from: ProcessId,
    pub(crate) to: Option<ProcessId>,
    pub(crate) length: usize,
}

impl State {
    pub(crate) fn faults(&self, from: ProcessId, to: Option<ProcessId>) -> &NetworkFaults {
        to.and_then(|to| self.links.get(&link_key(from, to)))
            .and_then(|link| link.faults.as_ref())
            .unwrap_or(&self.options.network)
    }

    pub(crate) fn is_cut(&self, from: ProcessId, to: ProcessId) -> bool {
        self.links
            .get(&link_key(from, to))
            .is_some_and(|link| link.cut)
    }

    /// Draws when a message that is sent now arrives.
    pub(crate) fn arrival_time(&mut self, way: &Way) -> u64 {
        if way.to == Some(way.from) {
            return self.now + 1 + self.random_network.below(2_000);
        }
        let faults = self.faults(way.from, way.to);
        let (low, high) = (nanos(faults.latency_min), nanos(faults.latency_max));
        let (tail_ppm, tail_max) = (faults.tail_ppm, nanos(faults.tail_max));
        let reorder_ppm = faults.reorder_ppm;
        let transfer = (way.length as u64)
            .saturating_mul(1_000_000_000)
            .checked_div(faults.bytes_per_second)
            .unwrap_or(0);
        let random = &mut self.random_network;
        let mut time = self.now + random.between(low, high) + transfer;
        if random.chance(tail_ppm) {
            time += random.between(0, tail_max);
        }
        let overtakes = random.chance(reorder_ppm);
        let Some(to) = way.to else {
            return time;
        };
        let link = self.links.entry(link_key(way.from, to)).or_default();
        if time >= link.last_arrival {
            link.last_arrival = time;
        } else if overtakes {
            self.network_stats.reordered += 1;
        } else {
            time = link.last_arrival;
        }
        time
    }

    /// Whether a message is lost on its way, and why.
    pub(crate) fn loss(&mut self, way: &Way) -> Option<&'static str> {
        let to = way.to?;
        if to == way.from {
            return None;
        }
        if self.is_cut(way.from, to) {
            self.network_stats.cut += 1;
            return Some("cut");
        }
        let loss_ppm = self.faults(way.from, way.to).loss_ppm;
        if self.random_network.chance(loss_ppm) {
            self.network_stats.lost += 1;
            return Some("by chance");
        }
        None
    }

    /// Lets the client notice, by the seed, that its connection to `at` broke.
    fn maybe_notice(&mut self, reply: &ReplyTo, at: ProcessId) {
        let client = reply.client.process;
        let noticed_ppm = self.faults(at, Some(client)).noticed_ppm;
        let Some(call) = self.calls.get(reply.call) else {
            return;
        };
        let address = call.to.clone();
        if self.random_network.chance(noticed_ppm) {
            let way = Way {
                from: at,
                to: Some(client),
                length: 0,
            };
            let time = self.arrival_time(&way);
            let failure = Packet::Failure(reply.clone(), CallError::Lost(address));
            self.queue.push(time, Event::Packet(Box::new(failure)));
        }
    }

    /// Sends the request of a new call.
    pub(crate) fn send_request(&mut self, call: Key, number: u64, frame: Frame) {
        let Some(Call {
            owner, to, core, ..
        }) = self.calls.get(call)
        else {
            return;
        };
        let (from, from_core, to) = (*owner, *core, to.clone());
        let bound = self.ports.get(&to).map(|port| port.owner);
        let target = bound
            .map(|owner| owner.process)
            .or_else(|| self.address_owners.get(&to).copied());
        let way = Way {
            from: from.process,
            to: target,
            length: frame.len(),
        };
        self.network_stats.sent += 1;
        let mut request = Request {
            call,
            number,
            from,
            from_core,
            to,
            bound,
            duplicated: false,
            frame,
        };
        if let Some(why) = self.loss(&way) {
            self.lost(&way, why, number, request.frame.opcode);
            if let Some(server) = bound {
                self.maybe_notice(&request.reply_to(server), server.process);
            }
            return;
        }
        let duplicate_ppm = self.faults(from.process, target).duplicate_ppm;
        if bound.is_some()
            && target != Some(from.process)
            && self.random_network.chance(duplicate_ppm)
        {
            request.duplicated = true;
            self.network_stats.duplicated += 1;
            let time = self.arrival_time(&way);
            let copy = Packet::Request(request.clone());
            self.queue.push(time, Event::Packet(Box::new(copy)));
        }
        let time = self.arrival_time(&way);
        let packet = Packet::Request(request);
        self.queue.push(time, Event::Packet(Box::new(packet)));
    }

    /// Sends the reply of a handler; one of a dead incarnation sends nothing.
    pub(crate) fn send_reply(&mut self, reply: &ReplyTo, frame: Frame) {
        if !self.is_alive(reply.server) {
            return;
        }
        let (from, to) = (reply.server.process, reply.client.process);
        let way = Way {
            from,
            to: Some(to),
            length: frame.len(),
        };
        self.network_stats.sent += 1;
        if let Some(why) = self.loss(&way) {
            self.lost(&way, why, reply.number, frame.opcode);
            self.maybe_notice(reply, from);
            return;
        }
        let duplicate_ppm = self.faults(from, Some(to)).duplicate_ppm;
        if from != to && self.random_network.chance(duplicate_ppm) {
            self.network_stats.duplicated += 1;
            let time = self.arrival_time(&way);
            let copy = Packet::Reply(reply.clone(), frame.clone());
            self.queue.push(time, Event::Packet(Box::new(copy)));
        }
        let time = self.arrival_time(&way);
        let packet = Packet::Reply(reply.clone(), frame);
        self.queue.push(time, Event::Packet(Box::new(packet)));
    }

    pub(crate) fn lost(&mut self, way: &Way, why: &'static str, call: u64, opcode: u16) {
        self.record(&Fact::Lost {
            why,
            from: way.from,
            to: way.to,
            call,
            opcode,
        });
    }

    /// A packet reaches the other machine.
    pub(crate) fn arrive(&mut self, packet: Packet) -> Action {
        match packet {
            Packet::Request(request) => self.arrive_request(request),
            #[cfg(feature = "cluster")]
            Packet::Datagram(datagram) => self.arrive_datagram(datagram),
            Packet::Reply(reply, frame) => {
                let (from, to) = (reply.server.process, reply.client.process);
                if self.is_cut(from, to) {
                    return self.cut_on_the_way(from, to, reply.number, frame.opcode);
                }
                self.record(&Fact::Arrived {
                    what: "reply",
                    from,
                    to,
                    call: reply.number,
                    opcode: frame.opcode,
                    length: frame.len(),
                    content: content(&frame),
                });
                self.finish_call(reply.call, Ok(frame))
            }
            Packet::Failure(reply, error) => {
                let (from, to) = (reply.server.process, reply.client.process);
                if self.is_cut(from, to) {
                    return self.cut_on_the_way(from, to, reply.number, 0);
                }
                self.record(&Fact::Arrived {
                    what: "failure",
                    from,
                    to,
                    call: reply.number,
                    opcode: 0,
                    length: 0,
                    content: 0,
                });
                self.finish_call(reply.call, Err(error))
            }
        }
    }

    fn cut_on_the_way(&mut self, from: ProcessId, to: ProcessId, call: u64, opcode: u16) -> Action {
        self.network_stats.cut += 1;
        self.record(&Fact::Lost {
            why: "cut",
            from,
            to: Some(to),
            call,
            opcode,
        });
        Action::Nothing
    }

    fn arrive_request(&mut self, request: Request) -> Action {
        let from = request.from.process;
        let (number, opcode) = (request.number, request.frame.opcode);
        let port = self.ports.get(&request.to);
        let listener = port.map(|port| (port.owner, Arc::clone(&port.service)));
        let listener =
            listener.filter(|(owner, _)| request.bound.is_none_or(|bound| bound == *owner));
        let Some((server, service)) = listener else {
            return self.nobody_listens(&request);
        };
        if self.is_cut(from, server.process) {
            self.had_first_copy(&request, false);
            return self.cut_on_the_way(from, server.process, number, opcode);
        }
        if self.process(server.process).life == Life::Paused {
            let held = &mut self.process_mut(server.process).held_events;
            held.push(Event::Packet(Box::new(Packet::Request(request))));
            return Action::Nothing;
        }
        let mut what = "request";
        if self.had_first_copy(&request, true) {
            if !self.faults(from, Some(server.process)).duplicate_requests {
                self.network_stats.duplicates_filtered += 1;
                pluvio_units::mark("duplicate-filtered");
                return Action::Nothing;
            }
            what = "duplicate request";
        }
        self.network_stats.delivered += 1;
        self.record(&Fact::Arrived {
            what,
            from,
            to: server.process,
            call: number,
            opcode,
            length: request.frame.len(),
            content: content(&request.frame),
        });
        let core = self.core_of_connection(&request, server);
        self.current = Some(Current {
            owner: server,
            core: core.0,
            task: None,
            name: "service",
        });
        Action::Request(Arrival {
            service,
            peer: Peer {
                address: self.process(from).address.clone(),
                core,
            },
            reply: request.reply_to(server),
            frame: request.frame,
        })
    }

    /// The filter for duplicates: notes that this copy reaches a service (or not), and says whether
    /// the other copy has. Both copies go to one incarnation, so this needs no memory beyond it,
    /// and forgets a call once both copies have met their fate.
    fn had_first_copy(&mut self, request: &Request, delivers: bool) -> bool {
        if !request.duplicated {
            return false;
        }
        match self.copies.remove(&request.number) {
            Some(delivered) => delivered,
            None => {
                self.copies.insert(request.number, delivers);
                false
            }
        }
    }

    /// The core that serves a connection: any one, but always the same. A client has a connection
    /// for each of its cores.
    fn core_of_connection(&self, request: &Request, server: Owner) -> CoreId {
        let connection = mix(request.from.word())
            .wrapping_add(mix(server.word()).rotate_left(1))
            .wrapping_add(u64::from(request.from_core));
        CoreId((mix(connection) % u64::from(self.options.cores)) as u16)
    }

    fn nobody_listens(&mut self, request: &Request) -> Action {
        self.had_first_copy(request, false);
        let from = request.from.process;
        let at = request
            .bound
            .map(|owner| owner.process)
            .or_else(|| self.address_owners.get(&request.to).copied());
        self.record(&Fact::Lost {
            why: "nobody listens",
            from,
            to: at,
            call: request.number,
            opcode: request.frame.opcode,
        });
        // The client of a bound request gets no notice here but where its listener went away.
        let refused_ppm = self.faults(from, at).refused_ppm;
        if request.bound.is_none() && self.random_network.chance(refused_ppm) {
            self.network_stats.refused += 1;
            let server = Owner {
                process: at.unwrap_or(from),
                incarnation: 0,
            };
            let error = CallError::Unreachable(request.to.clone(), NoConnection::Refused);
            let failure = Packet::Failure(request.reply_to(server), error);
            let way = Way {
                from: server.process,
                to: Some(from),
                length: 0,
            };
            let time = self.arrival_time(&way);
            self.queue.push(time, Event::Packet(Box::new(failure)));
        }
        Action::Nothing
    }

    /// Tells the clients of a process that died, by the seed, that their connections broke.
    pub(crate) fn break_connections(&mut self, dead: Owner) {
        let waiting: Vec<ReplyTo> = self
            .calls
            .iter()
            .filter(|(_, call)| call.bound == Some(dead) && call.owner != dead)
            .map(|(key, call)| ReplyTo {
                call: key,
                number: call.number,
                client: call.owner,
                server: dead,
            })
            .collect();
        for reply in waiting {
            if !self.is_cut(dead.process, reply.client.process) {
                self.maybe_notice(&reply, dead.process);
            }
        }
    }
}

impl Request {
    fn reply_to(&self, server: Owner) -> ReplyTo {
        ReplyTo {
            call: self.call,
            number: self.number,
            client: self.from,
            server,
        }
    }
}
