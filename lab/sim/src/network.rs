//! `env::Network` over simulated packets.

use crate::executor::{Action, Shared};
use crate::packets::Port;
use crate::queue::Event;
use crate::slab::Key;
use crate::state::{Owner, State};
use crate::trace::Fact;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Frame, Listening, Network, NetworkError, Service, StreamService,
};
use std::sync::Arc;

/// What the network did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkStats {
    /// Requests and replies sent.
    pub sent: u64,
    /// Requests given to services.
    pub delivered: u64,
    /// Messages lost by chance.
    pub lost: u64,
    /// Messages lost in a cut.
    pub cut: u64,
    /// Messages sent twice.
    pub duplicated: u64,
    /// Second copies of requests that the transport kept from a service.
    pub duplicates_filtered: u64,
    /// Messages that overtook an earlier one on the same way.
    pub reordered: u64,
    /// Calls refused because nobody listened.
    pub refused: u64,
    /// Calls that reached their limit.
    pub timed_out: u64,
    /// Datagrams that came once more, much later.
    pub replayed: u64,
    /// Datagrams that were damaged on their way.
    pub damaged: u64,
    /// Datagrams that the sessions found lost, and whose content they sent again.
    pub sent_again: u64,
    /// Datagrams that the sessions knew as repeated.
    pub repeated: u64,
    /// Datagrams that no session took for one of its own: damaged ones, and those of other times.
    pub refused_datagrams: u64,
    /// Replies dropped because their call had ended: late ones and second copies.
    pub replies_unwanted: u64,
}

#[cfg(feature = "cluster")]
impl NetworkStats {
    /// Adds what sessions of datagrams have seen.
    pub(crate) fn count(&mut self, seen: pluvio_net::machines::Seen) {
        let add = |to: &mut u64, by: usize| *to += by as u64;
        add(&mut self.sent_again, seen.lost);
        add(&mut self.repeated, seen.repeated);
        let refused = seen.forged + seen.garbage + seen.unknown;
        add(&mut self.refused_datagrams, refused);
    }
}

/// A call that waits for its reply.
pub(crate) struct Call {
    pub(crate) owner: Owner,
    pub(crate) core: u16,
    pub(crate) task: Option<Key>,
    pub(crate) to: Address,
    /// The listener the request went to.
    pub(crate) bound: Option<Owner>,
    pub(crate) number: u64,
    pub(crate) opcode: u16,
    pub(crate) limit: Duration,
    pub(crate) since: u64,
    waker: Waker,
    outcome: Option<Result<Frame, CallError>>,
    /// Whether the event of the limit has left the queue.
    limit_passed: bool,
}

pub(crate) struct SimNetwork {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
}

/// Why nobody listens for streams here.
pub(crate) fn no_streams(address: &Address) -> NetworkError {
    NetworkError {
        address: address.clone(),
        message: "byte streams are not simulated; test their protocol over env_os".into(),
    }
}

impl Network for SimNetwork {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(CallFuture {
            shared: Arc::clone(&self.shared),
            owner: self.owner,
            to: to.clone(),
            request: Some(request),
            limit,
            key: Key::NONE,
        })
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let address = address.clone();
        Box::pin(async move { self.open(&address, service) })
    }

    fn listen_streams(
        &self,
        address: &Address,
        _connections_max: usize,
        _refusal: Bytes,
        _service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let refused = no_streams(address);
        Box::pin(async move { Err(refused) })
    }
}

impl SimNetwork {
    fn open(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> Result<Listening, NetworkError> {
        let mut state = self.shared.lock();
        let failed = |message: &str| NetworkError {
            address: address.clone(),
            message: message.into(),
        };
        if !state.is_alive(self.owner) {
            drop(state);
            drop(service);
            return Err(failed("this incarnation of the process is dead"));
        }
        let address = match address.0.strip_suffix(":0") {
            Some(host) => {
                state.port_last += 1;
                Address::from(format!("{host}:{}", state.port_last).as_str())
            }
            None => address.clone(),
        };
        if state.ports.contains_key(&address) {
            drop(state);
            drop(service);
            return Err(failed("address already in use; choose another one"));
        }
        state.call_last += 1;
        let id = state.call_last;
        let port = Port {
            owner: self.owner,
            id,
            service,
        };
        state.ports.insert(address.clone(), port);
        let process = self.owner.process;
        state.address_owners.insert(address.clone(), process);
        let named = state.process(process).address.0 != state.names[process.0 as usize];
        if !named {
            state.process_mut(process).address = address.clone();
        }
        drop(state);
        let guard = Box::new(PortGuard {
            shared: Arc::clone(&self.shared),
            address: address.clone(),
            id,
        });
        Ok(Listening { address, guard })
    }
}

struct PortGuard {
    shared: Arc<Shared>,
    address: Address,
    id: u64,
}

impl Drop for PortGuard {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let ours = state
            .ports
            .get(&self.address)
            .is_some_and(|port| port.id == self.id);
        let port = ours.then(|| state.ports.remove(&self.address));
        drop(state);
        drop(port);
    }
}

struct CallFuture {
    shared: Arc<Shared>,
    owner: Owner,
    to: Address,
    request: Option<Frame>,
    limit: Duration,
    key: Key,
}

impl CallFuture {
    /// Sends the request; an error when it cannot be sent at all.
    fn start(&mut self, state: &mut State, request: Frame, waker: &Waker) -> Result<(), CallError> {
        let process = state.process(self.owner.process);
        let deadline = process.clock.later(state.now, self.limit);
        let max = state.options.network.message_bytes_max;
        if request.len() > max {
            return Err(CallError::TooLarge(request.len(), max));
        }
        state.call_last += 1;
        let number = state.call_last;
        let current = state.current.as_ref();
        let call = Call {
            owner: self.owner,
            core: current.map_or(0, |current| current.core),
            task: current.and_then(|current| current.task),
            to: self.to.clone(),
            bound: state.ports.get(&self.to).map(|port| port.owner),
            number,
            opcode: request.opcode,
            limit: self.limit,
            since: state.now,
            waker: waker.clone(),
            outcome: None,
            limit_passed: false,
        };
        self.key = state.calls.insert(call);
        state.queue.push(deadline, Event::CallLimit(self.key));
        state.send_request(self.key, number, request);
        Ok(())
    }
}

impl Future for CallFuture {
    type Output = Result<Frame, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if !state.is_alive(self.owner) {
            return Poll::Pending;
        }
        if let Some(request) = self.request.take() {
            return match self.start(&mut state, request, context.waker()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
        }
        let key = self.key;
        let Some(call) = state.calls.get_mut(key) else {
            return Poll::Pending;
        };
        if let Some(outcome) = call.outcome.take() {
            let call = state.end_call(key);
            self.key = Key::NONE;
            drop(state);
            drop(call);
            return Poll::Ready(outcome);
        }
        let old = (!call.waker.will_wake(context.waker()))
            .then(|| std::mem::replace(&mut call.waker, context.waker().clone()));
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        if self.key != Key::NONE {
            let call = self.shared.lock().end_call(self.key);
            drop(call);
        }
    }
}

impl State {
    fn end_call(&mut self, key: Key) -> Option<Call> {
        let call = self.calls.remove(key)?;
        if !call.limit_passed {
            self.note_stale();
        }
        Some(call)
    }

    pub(crate) fn call_limit(&mut self, key: Key) -> Action {
        let Some(call) = self.calls.get_mut(key) else {
            return Action::Nothing;
        };
        call.limit_passed = true;
        if call.outcome.is_some() {
            return Action::Nothing;
        }
        let error = CallError::TimedOut(call.to.clone(), call.limit);
        let owner = call.owner;
        self.network_stats.timed_out += 1;
        self.record(&Fact::Timer { owner });
        self.finish_call(key, Err(error))
    }

    /// Gives a call its outcome, unless it has one or nobody waits for it any more.
    pub(crate) fn finish_call(&mut self, key: Key, outcome: Result<Frame, CallError>) -> Action {
        let Some(call) = self
            .calls
            .get_mut(key)
            .filter(|call| call.outcome.is_none())
        else {
            self.network_stats.replies_unwanted += u64::from(outcome.is_ok());
            return Action::Nothing;
        };
        call.outcome = Some(outcome);
        Action::Wake(call.waker.clone())
    }
}
