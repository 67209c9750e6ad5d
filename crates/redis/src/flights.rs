//! The commands of one connection that are under way, and the order of their replies.
//!
//! An entry of the queue is in one of three states:
//! - *Done*: its reply waits for those before it.
//! - *Held*: executed at once, and not durable yet. It is a record, not a task, and costs no
//!   allocation and no timer.
//! - *Running*: a future that asks other servers, or waits for something else. A future that is
//!   done at its first poll costs no allocation either: it lives in a slot that is used again.
//!
//! Invariants
//! - FLIGHT-1: replies leave in the order in which their commands came, whenever they are ready.
//! - FLIGHT-2: two commands with a key in common are never under way together, nor is anything
//!   beside a command that runs alone.
//! - FLIGHT-3: number and bytes of commands under way are bounded, and so is the number of values
//!   that are read. It shrinks while replies are large, because their size is only known when they
//!   are there. One read of several keys may go beyond it.
//! - FLIGHT-4: a held outcome becomes a reply once it is durable ([`Client::open`]). When it does
//!   not become durable in time, it is replaced by a failure: of a change, that it is not known
//!   whether it was executed; of a read, that it is to be tried again.

use crate::commands::Shape;
use crate::failure::not_durable;
use crate::reply::Reply;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pluvio_client::{Client, Held};
use pluvio_env::Moment;
use pluvio_units::{FixedMap, KeyHash};
use std::collections::VecDeque;

/// Bytes of replies that commands under way are expected to give, at most, unless there are fewer
/// than [`FLIGHTS_MIN`] of them.
const REPLIES_BYTES: usize = 8 << 20;
/// This number may always be under way.
const FLIGHTS_MIN: usize = 4;
/// The assumed size of values before there was one. It is large enough that the first commands of a
/// connection cannot take much memory. It is small enough that some dozens may be under way.
const REPLY_BYTES_FIRST: usize = REPLIES_BYTES / 32;

/// Bounds of the commands under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) flights: usize,
    pub(crate) bytes: usize,
}

/// The load of a command while it is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Bytes of the command.
    pub(crate) bytes: usize,
    /// Values that its reply may hold; 1 unless it reads several keys.
    pub(crate) values: usize,
}

/// What a command keeps others from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// Others with this key.
    Key(u64),
    /// Others with one of these keys.
    Keys(Vec<u64>),
    /// All others.
    All,
}

impl Claim {
    /// The claim on these keys; on everything when there are none.
    pub(crate) fn of<'a>(mut keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let hash = |key| KeyHash::of(0, key).0;
        match (keys.next(), keys.len()) {
            (None, _) => Self::All,
            (Some(key), 0) => Self::Key(hash(key)),
            (Some(key), _) => Self::Keys(core::iter::once(key).chain(keys).map(hash).collect()),
        }
    }

    fn hashes(&self) -> &[u64] {
        match self {
            Self::Key(hash) => core::slice::from_ref(hash),
            Self::Keys(hashes) => hashes,
            Self::All => &[],
        }
    }
}

type Slot<F> = Pin<Box<Option<F>>>;

/// A command that waits for something.
struct Flight<F> {
    slot: Option<Slot<F>>,
    number: u64,
    claim: Claim,
    load: Load,
}

struct Landed<F> {
    slot: Slot<F>,
    number: u64,
    claim: Claim,
    load: Load,
    reply: Reply,
}

impl<F: Future<Output = Reply>> Future for Flight<F> {
    type Output = Landed<F>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Landed<F>> {
        let slot = self.slot.as_mut().expect("polled only until it lands");
        let Poll::Ready(reply) = poll_slot(slot, context) else {
            return Poll::Pending;
        };
        Poll::Ready(Landed {
            slot: self.slot.take().expect("it was there a moment ago"),
            number: self.number,
            claim: core::mem::replace(&mut self.claim, Claim::All),
            load: self.load,
            reply,
        })
    }
}

fn poll_slot<F: Future<Output = Reply>>(
    slot: &mut Slot<F>,
    context: &mut Context<'_>,
) -> Poll<Reply> {
    let future = slot.as_mut().as_pin_mut();
    let polled = future.expect("a slot in use is full").poll(context);
    if polled.is_ready() {
        slot.as_mut().set(None);
    }
    polled
}

/// An executed command that is not durable yet.
pub(crate) struct HeldReply {
    pub(crate) held: Held,
    pub(crate) shape: Shape,
    pub(crate) is_change: bool,
    /// When it is given up.
    pub(crate) until: Moment,
}

/// The state of a command in the order of replies.
enum State {
    Done(Reply),
    Held(HeldReply),
    Running,
}

/// The place of a command in the order of replies.
struct Place {
    /// Whether its reply is wanted.
    answered: bool,
    state: State,
}

/// The commands under way.
pub(crate) struct Flights<F> {
    bounds: Bounds,
    running: FuturesUnordered<Flight<F>>,
    spare: Vec<Slot<F>>,
    /// Commands whose replies have not left, oldest first; the first has number `first`.
    queue: VecDeque<Place>,
    first: u64,
    /// How many commands under way have a key of this hash.
    claimed: FixedMap<u64, u32>,
    alone: bool,
    /// Of all commands under way.
    load: Load,
    bytes_waiting: usize,
    /// About the largest reply of late; of a reply with several values, their mean.
    largest_reply: usize,
}

impl<F: Future<Output = Reply>> Flights<F> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            running: FuturesUnordered::new(),
            spare: Vec::new(),
            queue: VecDeque::new(),
            first: 0,
            claimed: FixedMap::default(),
            alone: false,
            load: Load::default(),
            bytes_waiting: 0,
            largest_reply: REPLY_BYTES_FIRST,
        }
    }

    /// Whether nothing is under way and every reply has left.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of replies that wait for earlier ones.
    pub(crate) fn bytes_waiting(&self) -> usize {
        self.bytes_waiting
    }

    /// Whether a command that needs no order may be answered.
    pub(crate) fn has_place(&self) -> bool {
        self.queue.is_empty() || self.queue.len() < self.bounds.flights
    }

    /// Whether a command with this claim may start.
    pub(crate) fn may_start(&self, claim: &Claim) -> bool {
        if self.queue.is_empty() {
            return true;
        }
        let expected = (REPLIES_BYTES / self.largest_reply.max(1)).max(FLIGHTS_MIN);
        !self.alone
            && *claim != Claim::All
            && self.has_place()
            && self.load.values < expected
            && self.load.bytes < self.bounds.bytes
            && !claim.hashes().iter().any(|h| self.claimed.contains_key(h))
    }

    /// Starts a command. Gives its reply if that may leave at once.
    pub(crate) fn start(
        &mut self,
        future: F,
        claim: Claim,
        load: Load,
        answered: bool,
        context: &mut Context<'_>,
    ) -> Option<Reply> {
        let mut slot = self.spare.pop().unwrap_or_else(|| Box::pin(None));
        slot.as_mut().set(Some(future));
        if let Poll::Ready(reply) = poll_slot(&mut slot, context) {
            self.spare.push(slot);
            return self.answer(reply, answered);
        }
        for hash in claim.hashes() {
            *self.claimed.entry(*hash).or_default() += 1;
        }
        self.alone = claim == Claim::All;
        self.load.bytes += load.bytes;
        self.load.values += load.values;
        let number = self.first + self.queue.len() as u64;
        self.queue.push_back(Place {
            answered,
            state: State::Running,
        });
        self.running.push(Flight {
            slot: Some(slot),
            number,
            claim,
            load,
        });
        None
    }

    /// Takes a reply that is ready; gives it back if it may leave at once and is wanted.
    pub(crate) fn answer(&mut self, reply: Reply, answered: bool) -> Option<Reply> {
        if self.queue.is_empty() {
            return answered.then_some(reply);
        }
        self.bytes_waiting += reply.size();
        self.queue.push_back(Place {
            answered,
            state: State::Done(reply),
        });
        None
    }

    /// Whether a command that is executed at once, on these keys, may be executed.
    pub(crate) fn may_execute(&self, claim: impl FnOnce() -> Claim) -> bool {
        match self.running.is_empty() {
            true => self.has_place(),
            false => self.may_start(&claim()),
        }
    }

    /// Takes an executed command whose outcome is not durable yet.
    pub(crate) fn hold(&mut self, reply: HeldReply, answered: bool) {
        self.bytes_waiting += reply.held.bytes();
        let state = State::Held(reply);
        self.queue.push_back(Place { answered, state });
    }

    /// The outcome that the first reply waits for, and until when.
    pub(crate) fn first_held(&self) -> Option<(&Held, Moment)> {
        match &self.queue.front()?.state {
            State::Held(reply) => Some((&reply.held, reply.until)),
            State::Done(_) | State::Running => None,
        }
    }

    /// Gives up the first reply, whose time is over (FLIGHT-4).
    pub(crate) fn give_up(&mut self, limit: Duration) {
        let Some(place) = self.queue.front_mut() else {
            return;
        };
        if let State::Held(reply) = &place.state {
            let failure = Reply::Error(not_durable(limit, reply.is_change));
            self.bytes_waiting -= reply.held.bytes();
            self.bytes_waiting += failure.size();
            place.state = State::Done(failure);
        }
    }

    /// Drives what is under way. Wakes again when there is more.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(landed)) = self.running.poll_next_unpin(context) {
            any = true;
            self.land(landed);
        }
        any
    }

    fn land(&mut self, landed: Landed<F>) {
        self.spare.push(landed.slot);
        self.load.bytes -= landed.load.bytes;
        self.load.values -= landed.load.values;
        for hash in landed.claim.hashes() {
            if let Some(count) = self.claimed.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    self.claimed.remove(hash);
                }
            }
        }
        self.alone = false;
        let size = landed.reply.size();
        let faded = self.largest_reply - self.largest_reply / 16;
        self.largest_reply = faded.max(size / landed.load.values.max(1));
        self.bytes_waiting += size;
        let at = usize::try_from(landed.number - self.first).expect("the queue fits memory");
        self.queue[at].state = State::Done(landed.reply);
    }

    /// The next reply that may leave, oldest first; those that are not wanted are left out.
    pub(crate) fn next_reply(&mut self, client: &Client) -> Option<Reply> {
        while !matches!(self.queue.front()?.state, State::Running) {
            let Place { answered, state } = self.queue.pop_front()?;
            let reply = match state {
                State::Done(reply) => {
                    self.bytes_waiting -= reply.size();
                    reply
                }
                State::Held(reply) => match client.open(reply.held) {
                    Ok(outcome) => {
                        self.bytes_waiting -= outcome.output().bulk_len();
                        reply.shape.reply(outcome)
                    }
                    Err(held) => {
                        let state = State::Held(HeldReply { held, ..reply });
                        self.queue.push_front(Place { answered, state });
                        return None;
                    }
                },
                State::Running => unreachable!("looked at a moment ago"),
            };
            self.first += 1;
            if answered {
                return Some(reply);
            }
        }
        None
    }

    /// Gives back memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        self.spare = Vec::new();
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
            self.claimed = FixedMap::default();
        }
    }
}
