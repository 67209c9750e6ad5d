//! The calling side of one connection: calls, their queue and their replies. `client_io` is the
//! task that moves the bytes.
//!
//! Invariants
//! - CALL-1: every id in `queue` or on the wire with a waiting caller is in `pending`. Removing it
//!   from there ends the call.
//! - CALL-2: once `closed` or `retired`, nothing is added, and a new connection must be made.
//! - CALL-3: a retired connection is in no map, and ends with the last of its calls.

use crate::lock;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::task::Waker;
use pluvio_env::{Address, CallError, Clock, Frame, Moment, NoConnection, Replies, TaskHandle};
use pluvio_units::{CoreId, FixedMap};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{Notify, oneshot};

type Outcome = Result<Frame, CallError>;

/// One connection to one peer, from its making to its end.
pub(crate) struct Connection {
    pub(crate) address: Address,
    pub(crate) core: CoreId,
    calls_max: usize,
    queue_bytes_max: usize,
    state: Mutex<State>,
    /// Number of times that bytes have come. Orders nothing.
    heard: AtomicU64,
    /// Notified when there is room for calls again.
    room: Notify,
    /// The task that runs the connection.
    task: OnceLock<TaskHandle>,
}

#[derive(Default)]
struct State {
    /// Requests outside the socket's buffer.
    queue: VecDeque<(u64, Frame)>,
    queue_bytes: usize,
    pending: FixedMap<u64, Waiting>,
    next_id: u64,
    /// Callers that wait for room.
    crowd: usize,
    /// The task that moves the bytes, when it sleeps.
    mover: Option<Waker>,
    closed: bool,
    /// Another connection has taken its place; it only waits for its calls.
    retired: bool,
}

impl State {
    fn is_spent(&self) -> bool {
        self.retired && self.pending.is_empty()
    }
}

/// The party that wants an outcome.
enum Give {
    /// It waits in a call.
    Call(oneshot::Sender<Outcome>),
    /// It has posted the request, under this number of its own.
    Post(Arc<dyn Replies>, u64),
}

impl Give {
    /// Gives the outcome. False: nobody waits for it any more.
    fn send(self, outcome: Outcome) -> bool {
        match self {
            Self::Call(give) => give.send(outcome).is_ok(),
            Self::Post(replies, number) => {
                replies.replied(number, outcome);
                true
            }
        }
    }

    fn is_post(&self, of: &Arc<dyn Replies>, number: u64) -> bool {
        match self {
            Self::Call(_) => false,
            Self::Post(replies, its) => *its == number && Arc::ptr_eq(replies, of),
        }
    }
}

struct Waiting {
    give: Give,
    /// Present when the request may have reached the peer.
    sent: Option<Sent>,
}

/// The time of sending a request, and the number of arrivals of bytes by then.
#[derive(Clone, Copy)]
struct Sent {
    at: Moment,
    heard: u64,
}

/// The state of a call that was given up.
pub(crate) enum GivenUp {
    /// Its request was not sent.
    Unsent,
    /// Its request may have reached the peer.
    Sent {
        /// The time of sending, if nothing has come on the connection since.
        unheard_since: Option<Moment>,
    },
}

/// The outcome of trying to begin a call.
pub(crate) enum Begun<'a> {
    Waiting(Call<'a>),
    /// No room; the request is given back.
    Crowded(Frame),
    /// The connection has ended; the request is given back.
    Closed(Frame),
}

/// The outcome of trying to post a request.
pub(crate) enum Posted {
    Waiting,
    Crowded,
    /// The connection has ended; the request is given back.
    Closed(Frame),
}

/// The outcome of queueing a request.
enum Queued {
    Id(u64),
    Crowded(Frame),
    Closed(Frame),
}

impl Connection {
    pub(crate) fn new(
        address: Address,
        core: CoreId,
        calls_max: usize,
        queue_bytes_max: usize,
    ) -> Self {
        Self {
            address,
            core,
            calls_max,
            queue_bytes_max,
            state: Mutex::default(),
            heard: AtomicU64::new(0),
            room: Notify::new(),
            task: OnceLock::new(),
        }
    }

    /// Notes the task that runs this connection, to be called once.
    pub(crate) fn run_by(&self, task: TaskHandle) {
        assert!(self.task.set(task).is_ok(), "a connection has one task");
    }

    /// Ends the connection's task.
    pub(crate) fn abort(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// Puts a request into the queue and wakes the mover.
    pub(crate) fn begin(&self, request: Frame) -> Begun<'_> {
        let (give, take) = oneshot::channel();
        match self.enqueue(request, Give::Call(give)) {
            Queued::Id(id) => Begun::Waiting(Call {
                connection: self,
                id,
                take,
                done: false,
            }),
            Queued::Crowded(request) => Begun::Crowded(request),
            Queued::Closed(request) => Begun::Closed(request),
        }
    }

    /// Begins a request whose outcome goes to `replies`.
    pub(crate) fn post(&self, request: Frame, number: u64, replies: &Arc<dyn Replies>) -> Posted {
        match self.enqueue(request, Give::Post(Arc::clone(replies), number)) {
            Queued::Id(_) => Posted::Waiting,
            Queued::Crowded(_) => Posted::Crowded,
            Queued::Closed(request) => Posted::Closed(request),
        }
    }

    fn enqueue(&self, request: Frame, give: Give) -> Queued {
        let (id, mover) = {
            let mut state = lock(&self.state);
            if state.closed || state.retired {
                return Queued::Closed(request);
            }
            if state.pending.len() >= self.calls_max || state.queue_bytes >= self.queue_bytes_max {
                return Queued::Crowded(request);
            }
            let id = state.next_id;
            state.next_id += 1;
            state.queue_bytes += request.len();
            state.queue.push_back((id, request));
            state.pending.insert(id, Waiting { give, sent: None });
            (id, state.mover.take())
        };
        if let Some(mover) = mover {
            mover.wake();
        }
        Queued::Id(id)
    }

    /// Gives up what was posted under this number. `None`: it is not under way here.
    pub(crate) fn give_up_post(&self, number: u64, replies: &Arc<dyn Replies>) -> Option<GivenUp> {
        let id = {
            let state = lock(&self.state);
            let mut pending = state.pending.iter();
            let posted = pending.find(|(_, waiting)| waiting.give.is_post(replies, number));
            *posted?.0
        };
        self.take_off(id)
    }

    /// Ends the wait for a request; `None` if its outcome is on the way.
    fn take_off(&self, id: u64) -> Option<GivenUp> {
        let (waiting, is_spent) = {
            let mut state = lock(&self.state);
            let waiting = state.pending.remove(&id);
            self.tell_crowd(&state);
            (waiting, state.is_spent())
        };
        if is_spent {
            self.abort();
        }
        Some(match waiting?.sent {
            None => GivenUp::Unsent,
            Some(sent) => {
                let unheard = sent.heard == self.heard.load(Relaxed);
                GivenUp::Sent {
                    unheard_since: unheard.then_some(sent.at),
                }
            }
        })
    }

    /// As [`Self::begin`], waiting for room. Gives the request back when the connection has ended.
    pub(crate) async fn begin_with_room(&self, mut request: Frame) -> Result<Call<'_>, Frame> {
        loop {
            match self.begin(request) {
                Begun::Waiting(call) => return Ok(call),
                Begun::Closed(frame) => return Err(frame),
                Begun::Crowded(frame) => request = frame,
            }
            let _in_crowd = InCrowd::enter(self);
            let told = self.room.notified();
            let mut told = std::pin::pin!(told);
            // From here on no notice is missed; room made before shows in the next attempt.
            told.as_mut().enable();
            match self.begin(request) {
                Begun::Waiting(call) => return Ok(call),
                Begun::Closed(frame) => return Err(frame),
                Begun::Crowded(frame) => request = frame,
            }
            told.await;
        }
    }

    fn tell_crowd(&self, state: &State) {
        if state.crowd > 0 {
            self.room.notify_waiters();
        }
    }

    /// Takes requests to send, at most `bytes` (and one more). Requests that were given up are left
    /// out.
    pub(crate) fn take_requests(
        &self,
        bytes: usize,
        clock: &dyn Clock,
        into: &mut Vec<(u64, Frame)>,
    ) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.queue.is_empty() {
            return;
        }
        let sent = Sent {
            at: clock.now(),
            heard: self.heard.load(Relaxed),
        };
        let mut taken = 0;
        while taken < bytes
            && let Some((id, request)) = state.queue.pop_front()
        {
            state.queue_bytes -= request.len();
            if let Some(waiting) = state.pending.get_mut(&id) {
                waiting.sent = Some(sent);
                taken += request.len();
                into.push((id, request));
            }
        }
        self.tell_crowd(state);
    }

    /// Whether the mover may sleep: nothing waits to be taken. It is woken by the next request.
    pub(crate) fn may_sleep(&self, mover: &Waker) -> bool {
        let mut state = lock(&self.state);
        if !state.queue.is_empty() {
            return false;
        }
        if !state.mover.as_ref().is_some_and(|old| old.will_wake(mover)) {
            state.mover = Some(mover.clone());
        }
        true
    }

    /// Notes that bytes have come.
    pub(crate) fn note_heard(&self) {
        self.heard.fetch_add(1, Relaxed);
    }

    /// Takes no more calls, and ends with those that it has. Posted requests end at once: their
    /// senders send again. For a connection that was taken out of the map.
    pub(crate) fn retire(&self) {
        let (posted, is_spent) = {
            let mut state = lock(&self.state);
            state.retired = true;
            self.tell_crowd(&state);
            let is_post = |_: &u64, waiting: &mut Waiting| matches!(waiting.give, Give::Post(..));
            let posted: Vec<_> = state.pending.extract_if(is_post).collect();
            (posted, state.is_spent())
        };
        for (_, waiting) in posted {
            let outcome = Err(CallError::Lost(self.address.clone()));
            waiting.give.send(outcome);
        }
        if is_spent {
            self.abort();
        }
    }

    /// Ends calls. Gives the number of replies without a waiting caller.
    pub(crate) fn deliver(&self, outcomes: &mut Vec<(u64, Outcome)>) -> usize {
        let mut ready = Vec::with_capacity(outcomes.len());
        let mut late = 0;
        let is_spent = {
            let mut state = lock(&self.state);
            for (id, outcome) in outcomes.drain(..) {
                match state.pending.remove(&id) {
                    Some(waiting) => ready.push((waiting.give, outcome)),
                    None => late += 1,
                }
            }
            self.tell_crowd(&state);
            state.is_spent()
        };
        for (give, outcome) in ready {
            late += usize::from(!give.send(outcome));
        }
        if is_spent {
            self.abort();
        }
        late
    }

    /// Ends the connection for all callers. The callers of unsent requests learn `why`. Gives the
    /// number of requests that may have been executed, and the number of those that were not.
    pub(crate) fn close(&self, why: &NoConnection) -> (usize, usize) {
        let pending = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.queue.clear();
            state.queue_bytes = 0;
            state.mover = None;
            self.tell_crowd(&state);
            core::mem::take(&mut state.pending)
        };
        let (mut lost, mut unsent) = (0, 0);
        for waiting in pending.into_values() {
            let error = if waiting.sent.is_some() {
                lost += 1;
                CallError::Lost(self.address.clone())
            } else {
                unsent += 1;
                CallError::Unreachable(self.address.clone(), why.clone())
            };
            // Its caller may have given up in this moment.
            waiting.give.send(Err(error));
        }
        (lost, unsent)
    }
}

/// Counts a caller that waits for room, also when it gives up.
struct InCrowd<'a>(&'a Connection);

impl<'a> InCrowd<'a> {
    fn enter(connection: &'a Connection) -> Self {
        lock(&connection.state).crowd += 1;
        Self(connection)
    }
}

impl Drop for InCrowd<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).crowd -= 1;
    }
}

/// A call that has begun. Dropping it gives it up.
pub(crate) struct Call<'a> {
    connection: &'a Connection,
    id: u64,
    take: oneshot::Receiver<Outcome>,
    done: bool,
}

impl Call<'_> {
    /// Waits for the outcome.
    pub(crate) async fn outcome(&mut self) -> Outcome {
        let outcome = (&mut self.take).await;
        self.done = true;
        outcome.unwrap_or_else(|_| Err(CallError::Lost(self.connection.address.clone())))
    }

    /// Gives the call up.
    pub(crate) fn give_up(&mut self) -> GivenUp {
        let answered = GivenUp::Sent {
            unheard_since: None,
        };
        if core::mem::replace(&mut self.done, true) {
            return answered;
        }
        self.connection.take_off(self.id).unwrap_or(answered)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The connections of one core, by address.
pub(crate) type PeerMap = Mutex<FixedMap<Address, Arc<Connection>>>;

/// Takes a connection out of its core's map, so that the next call makes a new one. Gives whether
/// it was in the map.
pub(crate) fn take_out(peers: &[PeerMap], connection: &Arc<Connection>) -> bool {
    let mut peers = lock(&peers[usize::from(connection.core.0)]);
    let there = peers.get(&connection.address);
    let is_there = there.is_some_and(|there| Arc::ptr_eq(there, connection));
    if is_there {
        peers.remove(&connection.address);
    }
    is_there
}
