//! `env::Network` over simulated datagrams: the sessions of crate `net` carry requests and replies,
//! over sockets whose datagrams meet all faults of the network ([`socket`]).
//!
//! The machines are those of production; `client` and `server` drive them as the tasks of crate
//! `net` do. A session belongs to a core of a process and a peer.
//!
//! Not here: the kernel, and the tasks of crate `net` themselves.

mod client;
mod server;
mod socket;

pub(crate) use socket::{Datagram, Sockets};

use crate::executor::Shared;
use crate::network::no_streams;
use crate::random::derive;
use crate::state::Owner;
use bytes::Bytes;
use client::Line;
use core::task::Context;
use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Clock, Frame, Listening, Moment, Network, NetworkError, Service,
    StreamService, timeout,
};
use pluvio_net::NetOptions;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A session is replaced if it was silent for this long after a request that timed out, as those of
/// `OsNetwork`.
const SILENCE_MIN: Duration = Duration::from_millis(200);

/// What the parts share.
#[derive(Clone)]
struct Ground {
    shared: Arc<Shared>,
    owner: Owner,
    clock: Arc<dyn Clock>,
    options: Arc<NetOptions>,
}

impl Ground {
    /// A key that nobody else has.
    fn fresh_key(&self) -> (u64, u64) {
        let mut state = self.shared.lock();
        state.session_keys += 1;
        let key = |half| derive(state.seed, half, state.session_keys);
        (key("session key"), key("other half of a session key"))
    }
}

/// The network of one incarnation of a process.
pub(crate) struct Datagrams {
    ground: Ground,
    lines: Mutex<BTreeMap<(u16, Address), Arc<Line>>>,
}

impl Datagrams {
    pub(crate) fn new(
        shared: Arc<Shared>,
        owner: Owner,
        clock: Arc<dyn Clock>,
        datagram_bytes_max: usize,
        frame_bytes_max: usize,
    ) -> Self {
        let mut options = NetOptions::default();
        options.datagram_bytes_max = datagram_bytes_max;
        options.frame_bytes_max = frame_bytes_max;
        Self {
            ground: Ground {
                shared,
                owner,
                clock,
                options: Arc::new(options),
            },
            lines: Mutex::default(),
        }
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, BTreeMap<(u16, Address), Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of this core to a peer; made if there is none.
    fn line(&self, to: &Address) -> Arc<Line> {
        let state = self.ground.shared.lock();
        let core = state.current.as_ref().map_or(0, |current| current.core);
        drop(state);
        let mut lines = self.lines();
        if let Some(line) = lines.get(&(core, to.clone())).filter(|line| line.is_open()) {
            return Arc::clone(line);
        }
        let line = Arc::new(Line::new(to.clone()));
        lines.insert((core, to.clone()), Arc::clone(&line));
        drop(lines);
        let (shared, owner) = (&self.ground.shared, self.ground.owner);
        let work = client::run(self.ground.clone(), Arc::clone(&line));
        shared.spawn(owner, core, "session", Box::pin(work));
        line
    }
}

impl Network for Datagrams {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let most = self.ground.options.frame_bytes_max;
            if request.len() > most {
                return Err(CallError::TooLarge(request.len(), most));
            }
            let line = self.line(to);
            let clock = &*self.ground.clock;
            let asked = clock.now();
            let mut call = line.call(request);
            match timeout(clock, limit, &mut call).await {
                Ok(outcome) => outcome,
                Err(_) if call.is_begun() => {
                    line.retire_if_silent(asked, clock.now(), SILENCE_MIN);
                    Err(CallError::TimedOut(to.clone(), limit))
                }
                Err(_) => {
                    let why = format!("the request could not be sent within {limit:?}");
                    Err(CallError::Unreachable(to.clone(), why.into()))
                }
            }
        })
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let address = address.clone();
        Box::pin(async move { server::open(&self.ground, &address, &service) })
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

/// Whether the deadline is still to come; a timer is then set.
fn rests_until(
    ground: &Ground,
    timer: &mut Option<(Moment, BoxFuture<'static, ()>)>,
    deadline: Option<Moment>,
    cx: &mut Context<'_>,
) -> bool {
    let Some(deadline) = deadline else {
        *timer = None;
        return true;
    };
    let left = deadline.since(ground.clock.now());
    if left.is_zero() {
        return false;
    }
    if timer.as_ref().is_none_or(|(at, _)| *at != deadline) {
        *timer = Some((deadline, ground.clock.sleep(left)));
    }
    match timer {
        Some((_, sleep)) => sleep.as_mut().poll(cx).is_pending(),
        None => true,
    }
}
