//! The sessions that a process opens, and the calls that wait for them.

use super::Ground;
use super::socket::{Arrived, Socket};
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use pluvio_env::{Address, BoxFuture, CallError, Frame, Moment, NoConnection};
use pluvio_net::machines::Client;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rounds before other tasks have their turn.
const ROUNDS_MAX: usize = 16;
/// Datagrams received before others are sent.
const RECEIVED_MAX: usize = 64;

#[derive(Default)]
struct Waiting {
    is_begun: bool,
    outcome: Option<Result<Frame, CallError>>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Calls {
    last: u64,
    queue: VecDeque<(u64, Frame)>,
    waiting: BTreeMap<u64, Waiting>,
    /// The task of the session, while it rests.
    task: Option<Waker>,
    /// When anything came last.
    heard: Option<Moment>,
    is_retired: bool,
    is_over: bool,
}

/// A session to a peer, from the wish for it to its end.
pub(super) struct Line {
    to: Address,
    calls: Mutex<Calls>,
}

impl Line {
    pub(super) fn new(to: Address) -> Self {
        Self {
            to,
            calls: Mutex::default(),
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls may still be given to it.
    pub(super) fn is_open(&self) -> bool {
        let calls = self.calls();
        !calls.is_retired && !calls.is_over
    }

    /// A call, which waits for its turn.
    pub(super) fn call(self: &Arc<Self>, request: Frame) -> Call {
        let mut calls = self.calls();
        calls.last += 1;
        let number = calls.last;
        calls.queue.push_back((number, request));
        calls.waiting.insert(number, Waiting::default());
        let task = calls.task.take();
        drop(calls);
        if let Some(task) = task {
            task.wake();
        }
        Call {
            line: Arc::clone(self),
            number,
        }
    }

    /// Lets the next call have a new session, if nothing came on this one for `silence`.
    pub(super) fn retire_if_silent(&self, since: Moment, now: Moment, silence: Duration) {
        let mut calls = self.calls();
        let heard = calls.heard.map_or(since, |heard| heard.max(since));
        if now.since(heard) < silence {
            return;
        }
        calls.is_retired = true;
        let task = calls.task.take();
        drop(calls);
        if let Some(task) = task {
            task.wake();
        }
    }

    fn end(&self, number: u64, outcome: Result<Frame, CallError>) {
        let mut calls = self.calls();
        let Some(waiting) = calls.waiting.get_mut(&number) else {
            return;
        };
        waiting.outcome = Some(outcome);
        let waker = waiting.waker.take();
        drop(calls);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The session is over, and all its calls.
    fn is_over(&self, why: &NoConnection) {
        let mut calls = self.calls();
        calls.is_over = true;
        calls.queue.clear();
        let open: Vec<(u64, bool)> = { calls.waiting.iter() }
            .filter(|(_, waiting)| waiting.outcome.is_none())
            .map(|(number, waiting)| (*number, waiting.is_begun))
            .collect();
        drop(calls);
        for (number, is_begun) in open {
            let to = self.to.clone();
            let error = match is_begun {
                true => CallError::Lost(to),
                false => CallError::Unreachable(to, why.clone()),
            };
            self.end(number, Err(error));
        }
    }
}

/// A call that waits for its outcome. A dropped one is not begun any more.
pub(super) struct Call {
    line: Arc<Line>,
    number: u64,
}

impl Call {
    /// Whether a part of the request may have been sent.
    pub(super) fn is_begun(&self) -> bool {
        let calls = self.line.calls();
        let waiting = calls.waiting.get(&self.number);
        waiting.is_some_and(|waiting| waiting.is_begun)
    }
}

impl Future for Call {
    type Output = Result<Frame, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut calls = self.line.calls();
        let waiting = calls.waiting.get_mut(&self.number);
        let waiting = waiting.expect("it stays until this is dropped");
        if let Some(outcome) = waiting.outcome.take() {
            return Poll::Ready(outcome);
        }
        let old = waiting.waker.replace(cx.waker().clone());
        drop(calls);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = self.line.calls();
        let number = self.number;
        let waiting = calls.waiting.remove(&number);
        let queued = calls.queue.iter().position(|(queued, _)| *queued == number);
        let queued = queued.and_then(|queued| calls.queue.remove(queued));
        drop(calls);
        drop((waiting, queued));
    }
}

/// Runs a session until it ends.
pub(super) async fn run(ground: Ground, line: Arc<Line>) {
    let socket = Socket::bind(&ground.shared, ground.owner, None);
    let at = ground.shared.lock().sockets.resolve(&line.to);
    let now = ground.clock.now();
    let mut mover = Mover {
        client: Client::new(now, ground.fresh_key(), &ground.options),
        ground: &ground,
        line: &line,
        socket,
        at,
        timer: None,
    };
    let why = poll_fn(|cx| mover.poll(cx)).await;
    let seen = mover.client.take_seen();
    ground.shared.lock().network_stats.count(seen);
    line.is_over(&why);
}

struct Mover<'a> {
    ground: &'a Ground,
    line: &'a Line,
    client: Client,
    socket: Socket,
    at: SocketAddr,
    timer: Option<(Moment, BoxFuture<'static, ()>)>,
}

impl Mover<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<NoConnection> {
        for _ in 0..ROUNDS_MAX {
            let now = self.ground.clock.now();
            if self.line.calls().is_retired {
                return Poll::Ready("the session was silent".to_owned().into());
            }
            if self.client.deadline() <= now
                && let Err(why) = self.client.alarm(now)
            {
                return Poll::Ready(why.into());
            }
            let received = self.receive(cx, now);
            for (call, reply) in self.client.take_replies() {
                let most = self.ground.options.frame_bytes_max;
                let outcome = reply.map_err(|bytes| CallError::TooLarge(bytes, most));
                self.line.end(call, outcome);
            }
            let received = match received {
                Ok(received) => received,
                Err(why) => return Poll::Ready(why),
            };
            self.begin_calls();
            let mut datagram = Vec::new();
            while self.client.transmit(now, &mut datagram) {
                self.socket.send(self.at, core::mem::take(&mut datagram));
            }
            if received == 0 && self.rests(cx) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn receive(&mut self, cx: &mut Context<'_>, now: Moment) -> Result<usize, NoConnection> {
        for received in 0..RECEIVED_MAX {
            match self.socket.poll_receive(cx) {
                Poll::Pending => return Ok(received),
                Poll::Ready(Arrived::Refused) => return Err(NoConnection::Refused),
                // A socket that is connected takes nothing from others.
                Poll::Ready(Arrived::Datagram(from, _)) if from != self.at => {}
                Poll::Ready(Arrived::Datagram(_, datagram)) => {
                    self.line.calls().heard = Some(now);
                    self.client.receive(now, &datagram)?;
                }
            }
        }
        Ok(RECEIVED_MAX)
    }

    fn begin_calls(&mut self) {
        while self.client.has_room() {
            let next = self.line.calls().queue.pop_front();
            let Some((number, request)) = next else {
                break;
            };
            let bytes = request.len();
            match self.client.call(number, request) {
                Ok(()) => {
                    if let Some(waiting) = self.line.calls().waiting.get_mut(&number) {
                        waiting.is_begun = true;
                    }
                }
                Err(most) => self.line.end(number, Err(CallError::TooLarge(bytes, most))),
            }
        }
        let calls = self.line.calls();
        let is_waiting = calls.waiting.values().any(|waiting| waiting.is_begun);
        drop(calls);
        self.client.set_waiting(is_waiting);
    }

    /// Whether nothing is to be done before the next deadline; a timer is then set.
    fn rests(&mut self, cx: &mut Context<'_>) -> bool {
        let mut calls = self.line.calls();
        if calls.is_retired || !calls.queue.is_empty() && self.client.has_room() {
            return false;
        }
        let old = calls.task.replace(cx.waker().clone());
        drop(calls);
        drop(old);
        super::rests_until(
            self.ground,
            &mut self.timer,
            Some(self.client.deadline()),
            cx,
        )
    }
}
