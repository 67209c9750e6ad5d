//! The memory that the connections of a process's RPC ports hold together, and its bound.
//!
//! Counted is what waits for a peer: frames that have come in part, and replies that the peer has
//! not taken. Requests in the hands of the service have bounds of their own there. Not counted are
//! the buffers of the kernel, and the structures of an idle connection.
//!
//! ```text
//!                requests, in part      replies, not taken
//!  clients      [ a quarter         ]  [ a quarter         ]
//!  servers      [ a quarter         ]  [ a quarter         ]
//! ```
//!
//! The bound has four quarters, and nothing waits for another quarter than its own. A connection is
//! a server's once it has sent a request that only servers send. So clients cannot starve
//! replication, and no wait of one kind ends in the other kind.
//!
//! What happens as a quarter fills:
//!
//! 1. At half of it, a frame larger than [`SMALL_BYTES`] is read on only with a grant for all of
//!    it. Grants are given in the order of the asking, as far as the quarter goes. In search of
//!    a header little is read. A connection takes no more requests while [`SCARCE_BYTES`] of
//!    replies wait for its peer.
//! 2. When replies fill their quarter, requests wait until there is room, also in order. Those that
//!    never wait are the exception: replication, whose replies are small, and pings.
//! 3. While one waits, connections that stand still are closed, those that hold most first. A peer
//!    stands still if it was its turn for a while, and it moved less than a part of what it holds.
//! 4. Replies to requests that were taken before are made all the same: what is under way holds
//!    what others wait for. A connection is closed at once if its peer leaves more of them than
//!    [`QUEUES_MAX`] queues and a frame.
//!
//! Sessions of datagrams count in the same quarters. A message that is cut is begun only with room
//! for all of it, so none waits while it holds memory. A piece without room is dropped without an
//! ack, and its sender sends it again. So sessions stand in no line: they take the room that those
//! in line leave.
//!
//! Invariants
//! - NETMEM-1: the connections of a quarter hold at most the quarter and [`GRAIN`] bytes each. For
//!   each core comes as much as one of them takes in a turn. Replies that are made long after their
//!   requests were taken come on top, for each connection up to the bound of rule 4.
//! - NETMEM-2: what a connection counted is taken off again when it ends, however it ends.
//! - NETMEM-3: the first that waits for a grant gets it, at the latest when all that were granted
//!   are done or closed. Frames without a grant hold about half of the quarter at most, and the
//!   other half has room for the largest frame. So frames never wait for each other in a circle.
//! - NETMEM-4: a session of datagrams keeps pieces only of messages that have room for all of their
//!   bytes. That room is free again when the message is whole, or the session over.
//!
//! Threads: any. A connection tells from its own core. The lock of a quarter is held for a few
//! operations on maps, and while the first that waits looks at all holders.

use crate::lock;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use pluvio_env::{BoxFuture, Clock, Moment};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A connection counts what it holds once that has changed by this much. So connections with small
/// requests and replies do not write to what all share.
pub(crate) const GRAIN: usize = 16 << 10;
/// Bodies up to this size need no grant. In search of a header no more is read when memory is
/// scarce. A connection that waits in the middle of such a frame holds less than [`GRAIN`].
pub(crate) const SMALL_BYTES: usize = 4 << 10;
/// The most that late replies of a connection take when memory is full, in queues; a frame comes to
/// it. A recovery master asks for four segments at a time.
pub(crate) const QUEUES_MAX: usize = 8;
/// Bytes of replies at which a connection takes no more requests when memory is scarce.
pub(crate) const SCARCE_BYTES: usize = 64 << 10;
/// The least bound, in frames of the largest size. Half of a quarter has room for two (NETMEM-3),
/// and for a cut message of datagrams, which counts twice (NETMEM-4).
const FRAMES_MIN: usize = 16;
/// Bytes that a connection holds around a frame: its buffer.
const AROUND_BYTES: usize = 128 << 10;
/// A peer that moves this part of what it holds in the time given to it does not stand still. At
/// that pace a frame would take twice as long as it may.
const PACE: usize = 64;
/// Between two looks of the first that waits.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// The memory of the connections of a process's RPC ports. See the module.
pub(crate) struct PortMemory {
    bound: usize,
    /// Of clients, and of servers.
    shares: [Share; 2],
    /// How long a peer may stand still while others wait.
    still: Duration,
    last: AtomicU64,
}

struct Share {
    requests: Quarter,
    replies: Quarter,
}

struct Quarter {
    bound: usize,
    /// Mirrors that of the state, to be read without the lock.
    used: AtomicUsize,
    /// Whether one waits, likewise.
    is_waited_for: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    /// Of connections that are closed because of it, and not gone yet.
    leaving: usize,
    holders: BTreeMap<u64, Holder>,
    /// Those that wait, by their places.
    line: BTreeMap<u64, Waker>,
    last: u64,
}

struct Holder {
    signal: Arc<Signal>,
    held: usize,
    /// Bytes that a frame may grow to.
    granted: usize,
    /// How much had moved at some moment, while it was the peer's turn.
    seen: Option<(u64, Moment)>,
    /// Bytes that it counted when it was closed.
    left_with: usize,
}

impl Holder {
    fn counts(&self) -> usize {
        self.held.max(self.granted)
    }
}

/// What a connection shows to others.
#[derive(Default)]
struct Signal {
    evicted: AtomicBool,
    waker: Mutex<Option<Waker>>,
    sides: [Side; 2],
}

/// The requests of a connection, or its replies.
#[derive(Default)]
struct Side {
    /// Bytes that the peer has sent, or taken.
    moved: AtomicU64,
    /// It is the peer's turn.
    is_peers_turn: AtomicBool,
}

const REQUESTS: usize = 0;
const REPLIES: usize = 1;

impl PortMemory {
    /// With this bound in bytes, or more if frames of this size need more.
    pub(crate) fn new(bound: usize, frame_bytes_max: usize, still: Duration) -> Self {
        let bound = bound.max(FRAMES_MIN * (frame_bytes_max + AROUND_BYTES));
        let share = || Share {
            requests: Quarter::new(bound / 4),
            replies: Quarter::new(bound / 4),
        };
        Self {
            bound,
            shares: [share(), share()],
            still,
            last: AtomicU64::new(0),
        }
    }

    /// The bound in bytes.
    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    /// Bytes that connections hold, or may hold by grants.
    pub(crate) fn used(&self) -> usize {
        let quarters = self.shares.iter().flat_map(|s| [&s.requests, &s.replies]);
        quarters.map(|quarter| quarter.used.load(Relaxed)).sum()
    }
}

impl Quarter {
    fn new(bound: usize) -> Self {
        Self {
            bound,
            used: AtomicUsize::new(0),
            is_waited_for: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn is_scarce(&self) -> bool {
        self.used.load(Relaxed) >= self.bound / 2
    }

    /// Changes what a connection counts, and wakes the first that waits if there is more room.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (done, woken) = {
            let mut state = lock(&self.state);
            let (before, first) = (state.used, state.first());
            let done = act(&mut state);
            self.used.store(state.used, Relaxed);
            self.is_waited_for.store(!state.line.is_empty(), Relaxed);
            let has_room = state.used < before || state.first() != first;
            let woken = state.line.first_key_value().filter(|_| has_room);
            (done, woken.map(|(_, waker)| waker.clone()))
        };
        if let Some(waker) = woken {
            waker.wake();
        }
        done
    }

    /// Whether replies leave room for another one. If not, the caller waits in line.
    fn may_reply(&self, place: &mut Option<u64>, cx: &Context<'_>) -> bool {
        let has_room = self.used.load(Relaxed) < self.bound;
        if has_room && !self.is_waited_for.load(Relaxed) {
            return true;
        }
        self.change(|state| {
            let may = state.used < self.bound && state.is_turn_of(*place);
            state.wait(place, may, cx);
            may
        })
    }

    /// Whether the requests of a connection may grow to `next` bytes. If not, the caller waits in
    /// line for a grant of `whole`.
    fn may_grow(
        &self,
        own: (u64, &Arc<Signal>),
        sizes: (usize, usize),
        place: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> bool {
        self.change(|state| {
            let may = state.grows(self.bound, own, sizes, *place);
            state.wait(place, may, cx);
            may
        })
    }

    /// Closes those that stand still, as the first in line, until there is room for `wanted`. One
    /// without a place does so while no line is there. Gives how many were closed.
    fn look(
        &self,
        place: Option<u64>,
        wanted: usize,
        side: usize,
        still: Duration,
        now: Moment,
    ) -> usize {
        let mut state = lock(&self.state);
        if state.first() != place {
            return 0;
        }
        let mut standing: Vec<(usize, u64)> = Vec::new();
        for (id, holder) in &mut state.holders {
            let of = &holder.signal.sides[side];
            let counts = holder.counts();
            if holder.left_with > 0 || !of.is_peers_turn.load(Relaxed) {
                holder.seen = None;
                continue;
            }
            let moved = of.moved.load(Relaxed);
            let (before, since) = *holder.seen.get_or_insert((moved, now));
            if moved - before >= (counts / PACE).max(1) as u64 {
                holder.seen = Some((moved, now));
            } else if now.since(since) >= still {
                standing.push((counts, *id));
            }
        }
        standing.sort_unstable();
        let mut closed = 0;
        while state.used + wanted > self.bound + state.leaving
            && let Some((counts, id)) = standing.pop()
        {
            state.leaving += counts;
            if let Some(holder) = state.holders.get_mut(&id) {
                holder.left_with = counts;
                holder.signal.evict();
                closed += 1;
            }
        }
        closed
    }
}

impl Signal {
    fn evict(&self) {
        self.evicted.store(true, Relaxed);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }
}

impl State {
    /// The place of the first that waits.
    fn first(&self) -> Option<u64> {
        self.line.first_key_value().map(|(place, _)| *place)
    }

    /// Whether nobody is before the one with this place, or before one without.
    fn is_turn_of(&self, place: Option<u64>) -> bool {
        self.first().is_none_or(|first| Some(first) == place)
    }

    /// Changes what a connection counts.
    fn set(&mut self, id: u64, signal: &Arc<Signal>, change: impl FnOnce(&mut Holder)) {
        let holder = self.holders.entry(id).or_insert_with(|| Holder {
            signal: Arc::clone(signal),
            held: 0,
            granted: 0,
            seen: None,
            left_with: 0,
        });
        let before = holder.counts();
        change(holder);
        let counts = holder.counts();
        // One that is closed counts among those that leave until it is gone.
        if counts == 0 && holder.left_with == 0 {
            self.holders.remove(&id);
        }
        self.used = self.used - before + counts;
    }

    /// Lets the requests of a connection grow to `next` bytes, with a grant of `whole` if memory is
    /// scarce and it is its turn. Gives whether it did.
    fn grows(
        &mut self,
        bound: usize,
        (id, signal): (u64, &Arc<Signal>),
        (next, whole): (usize, usize),
        place: Option<u64>,
    ) -> bool {
        let (held, granted) = self
            .holders
            .get(&id)
            .map_or((0, 0), |holder| (holder.held, holder.granted));
        let others = self.used - held.max(granted);
        let is_free = granted >= whole || others + next <= bound / 2;
        let has_room = others + whole <= bound;
        let may = is_free || (has_room && self.is_turn_of(place));
        if may && (granted < whole || held < next) {
            let grant = if is_free { granted } else { whole };
            self.set(id, signal, |holder| {
                holder.held = holder.held.max(next);
                holder.granted = grant;
            });
        }
        may
    }

    fn forget(&mut self, id: u64) {
        if let Some(holder) = self.holders.remove(&id) {
            self.used -= holder.counts();
            self.leaving -= holder.left_with;
        }
    }

    /// Takes a place in line, or gives it up.
    fn wait(&mut self, place: &mut Option<u64>, may: bool, cx: &Context<'_>) {
        if may {
            if let Some(place) = place.take() {
                self.line.remove(&place);
            }
            return;
        }
        let place = *place.get_or_insert_with(|| {
            self.last += 1;
            self.last
        });
        self.line.insert(place, cx.waker().clone());
    }
}

/// A connection's part of the memory, which is taken off on drop (NETMEM-2).
pub(crate) struct Account {
    memory: Arc<PortMemory>,
    id: u64,
    /// Whether it is a connection of a server.
    is_servers: bool,
    signal: Arc<Signal>,
    told: [usize; 2],
    has_grant: bool,
    places: [Option<u64>; 2],
    /// Bytes that the request needs that waits for a grant.
    wanted: usize,
    look: Option<BoxFuture<'static, ()>>,
}

impl Account {
    pub(crate) fn new(memory: &Arc<PortMemory>) -> Self {
        Self {
            id: memory.last.fetch_add(1, Relaxed),
            memory: Arc::clone(memory),
            is_servers: false,
            signal: Arc::default(),
            told: [0; 2],
            has_grant: false,
            places: [None; 2],
            wanted: 0,
            look: None,
        }
    }

    fn quarter(&self, side: usize) -> &Quarter {
        let share = &self.memory.shares[usize::from(self.is_servers)];
        match side {
            REQUESTS => &share.requests,
            _ => &share.replies,
        }
    }

    /// The connection counts among those of servers from here on.
    pub(crate) fn join_servers(&mut self) {
        if self.is_servers {
            return;
        }
        let told = core::mem::take(&mut self.told);
        self.leave();
        self.is_servers = true;
        self.tell(told[REQUESTS], told[REPLIES]);
    }

    /// The same, unless its messages in part have no room there. Then it joins with a later request
    /// (NETMEM-1).
    pub(crate) fn join_servers_with_room(&mut self) {
        let quarter = &self.memory.shares[1].requests;
        let told = self.told[REQUESTS];
        if told == 0 || quarter.used.load(Relaxed) + told <= quarter.bound / 2 {
            self.join_servers();
        }
    }

    /// Whether little is to be read in search of a header.
    pub(crate) fn are_requests_scarce(&self) -> bool {
        self.quarter(REQUESTS).is_scarce()
    }

    /// Whether few replies are to wait for a peer.
    pub(crate) fn are_replies_scarce(&self) -> bool {
        self.quarter(REPLIES).is_scarce()
    }

    /// Bytes of untaken replies at which the connection takes no more requests. It is `usual` while
    /// memory is plenty.
    pub(crate) fn reply_bytes_max(&self, usual: usize) -> usize {
        match self.are_replies_scarce() {
            true => usual.min(SCARCE_BYTES),
            false => usual,
        }
    }

    /// Whether replies leave no room for others.
    pub(crate) fn are_replies_full(&self) -> bool {
        let quarter = self.quarter(REPLIES);
        quarter.used.load(Relaxed) >= quarter.bound
    }

    /// Whether a request may be handled whose reply may be large. If not, the task is woken when
    /// it is to ask again.
    pub(crate) fn may_reply(&mut self, cx: &Context<'_>) -> bool {
        let mut place = self.places[REPLIES];
        let may = self.quarter(REPLIES).may_reply(&mut place, cx);
        self.places[REPLIES] = place;
        may
    }

    /// Whether the frame that is being read, of `whole` bytes, may take `next` bytes. If not, the
    /// task is woken when it is to ask again.
    pub(crate) fn may_grow(&mut self, next: usize, whole: usize, cx: &Context<'_>) -> bool {
        let whole = whole + AROUND_BYTES / 2;
        if next <= self.told[REQUESTS] {
            return true;
        }
        self.wanted = whole;
        let mut place = self.places[REQUESTS];
        let own = (self.id, &self.signal);
        let may = self
            .quarter(REQUESTS)
            .may_grow(own, (next, whole), &mut place, cx);
        self.places[REQUESTS] = place;
        if may {
            self.told[REQUESTS] = self.told[REQUESTS].max(next);
            self.has_grant = true;
        }
        may
    }

    /// Whether the requests may grow to `next` bytes at once: all that they will be, as long as no
    /// other begins. One that may not has no place in line, and asks again (NETMEM-4).
    pub(crate) fn may_begin(&mut self, next: usize) -> bool {
        if next <= self.told[REQUESTS] {
            return true;
        }
        let own = (self.id, &self.signal);
        let quarter = self.quarter(REQUESTS);
        let may = quarter.change(|state| state.grows(quarter.bound, own, (next, next), None));
        if may {
            self.told[REQUESTS] = next;
            self.has_grant = true;
        }
        self.wanted = next;
        may
    }

    /// Whether replies leave room for another one, and nobody waits for it.
    pub(crate) fn has_reply_room(&self) -> bool {
        let quarter = self.quarter(REPLIES);
        !self.are_replies_full() && !quarter.is_waited_for.load(Relaxed)
    }

    /// Closes connections that stand still, for one without a place in line that wants to grow, or
    /// to be answered.
    pub(crate) fn look(&self, wants_reply: bool, now: Moment) {
        let (side, wanted) = match wants_reply {
            true => (REPLIES, 1),
            false => (REQUESTS, self.wanted.saturating_sub(self.told[REQUESTS])),
        };
        let still = self.memory.still;
        self.quarter(side).look(None, wanted, side, still, now);
    }

    /// Whether the connection is to be closed to make room.
    pub(crate) fn is_evicted(&self) -> bool {
        self.signal.evicted.load(Relaxed)
    }

    /// Whether it counts anything.
    pub(crate) fn is_counted(&self) -> bool {
        self.told != [0; 2] || self.has_grant
    }

    /// Gives the grant back: its frame is whole, or all of its bytes count as held from here on.
    pub(crate) fn end_grant(&mut self) {
        if core::mem::take(&mut self.has_grant) {
            let (id, signal) = (self.id, &self.signal);
            let ends = |state: &mut State| state.set(id, signal, |holder| holder.granted = 0);
            self.quarter(REQUESTS).change(ends);
        }
    }

    /// Counts what the connection holds (NETMEM-1).
    pub(crate) fn tell(&mut self, requests: usize, replies: usize) {
        self.tell_of(REQUESTS, requests);
        self.tell_of(REPLIES, replies);
    }

    /// Counts replies while they are made.
    pub(crate) fn tell_replies(&mut self, bytes: usize) {
        self.tell_of(REPLIES, bytes);
    }

    fn tell_of(&mut self, side: usize, now: usize) {
        let told = self.told[side];
        if now.abs_diff(told) < GRAIN && (now > 0 || told == 0) {
            return;
        }
        self.told[side] = now;
        let (id, signal) = (self.id, &self.signal);
        let tells = |state: &mut State| state.set(id, signal, |holder| holder.held = now);
        self.quarter(side).change(tells);
    }

    /// Notes bytes that the peer has sent and taken since the connection began, and whether it is
    /// its turn to send or to take more.
    pub(crate) fn note(&self, moved: [u64; 2], is_peers_turn: [bool; 2]) {
        for (side, of) in self.signal.sides.iter().enumerate() {
            of.moved.store(moved[side], Relaxed);
            of.is_peers_turn.store(is_peers_turn[side], Relaxed);
        }
    }

    /// Ready when the connection is to be closed to make room. Otherwise the task is woken when it
    /// is.
    pub(crate) fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_counted() {
            let mut waker = lock(&self.signal.waker);
            if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        match self.is_evicted() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Gives up places in line that are not `wanted` any more. While there is one, the task is
    /// woken to look for connections that stand still.
    pub(crate) fn wait(&mut self, wanted: [bool; 2], clock: &dyn Clock, cx: &mut Context<'_>) {
        for side in [REQUESTS, REPLIES] {
            if !wanted[side]
                && let Some(place) = self.places[side].take()
            {
                self.quarter(side).change(|state| state.line.remove(&place));
            }
        }
        while self.is_waiting() {
            let look = self.look.get_or_insert_with(|| clock.sleep(LOOK_PAUSE));
            if look.as_mut().poll(cx).is_pending() {
                return;
            }
            self.look = None;
            for side in [REQUESTS, REPLIES] {
                if let Some(place) = self.places[side] {
                    let wanted = if side == REQUESTS { self.wanted } else { 1 };
                    let (quarter, still) = (self.quarter(side), self.memory.still);
                    quarter.look(Some(place), wanted, side, still, clock.now());
                }
            }
        }
        self.look = None;
    }

    /// Whether it waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.places != [None; 2]
    }

    fn leave(&mut self) {
        let places = core::mem::take(&mut self.places);
        for (side, place) in places.into_iter().enumerate() {
            let id = self.id;
            self.quarter(side).change(|state| {
                state.forget(id);
                place.map(|place| state.line.remove(&place))
            });
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 1 << 20;
    const STILL: Duration = Duration::from_secs(1);

    /// A quarter has room for four frames and what is around them.
    fn memory() -> Arc<PortMemory> {
        Arc::new(PortMemory::new(0, FRAME, STILL))
    }

    fn accounts(memory: &Arc<PortMemory>, count: usize) -> Vec<Account> {
        (0..count).map(|_| Account::new(memory)).collect()
    }

    // shows: NETMEM-1, NETMEM-2, NETMEM-3
    #[test]
    fn frames_stop_at_half_of_a_quarter_and_are_granted_the_rest_in_order() {
        let memory = memory();
        let cx = Context::from_waker(Waker::noop());
        let mut all = accounts(&memory, 8);
        let begun: Vec<bool> = all
            .iter_mut()
            .map(|account| account.may_grow(FRAME / 2, FRAME, &cx))
            .collect();
        // Four fit the half; two of the others are granted all of their frames.
        assert_eq!(begun, [true, true, true, true, true, true, false, false]);
        assert!(memory.used() <= memory.bound() / 4);
        // One that was granted goes on. The others wait for their turns.
        assert!(all[4].may_grow(FRAME, FRAME, &cx));
        assert!(!all[0].may_grow(FRAME, FRAME, &cx));
        all[4].end_grant();
        all[4].tell(0, 0);
        assert!(
            !all[7].may_grow(FRAME / 2, FRAME, &cx),
            "it is not the first"
        );
        assert!(all[6].may_grow(FRAME / 2, FRAME, &cx));
        assert!(memory.used() <= memory.bound() / 4);
        // One that has waited and is gone is in nobody's way.
        drop(all.remove(7));
        all[5].end_grant();
        all[5].tell(0, 0);
        assert!(all[0].may_grow(FRAME, FRAME, &cx));
        all.clear();
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn connections_of_servers_have_quarters_of_their_own() {
        let memory = memory();
        let cx = Context::from_waker(Waker::noop());
        let quarter = memory.bound() / 4;
        let mut all = accounts(&memory, 3);
        all[0].tell(quarter, quarter);
        assert!(!all[1].may_reply(&cx) && !all[1].may_grow(FRAME, FRAME, &cx));
        all[2].tell(FRAME, 0);
        all[2].join_servers();
        assert_eq!(memory.used(), 2 * quarter + FRAME);
        assert!(all[2].may_reply(&cx) && all[2].may_grow(FRAME, FRAME, &cx));
        assert!(!all[2].are_requests_scarce() && !all[2].are_replies_scarce());
        // Those that wait are served in order, also by one that has not waited.
        all[0].tell(0, 0);
        let mut late = Account::new(&memory);
        assert!(!late.may_reply(&cx));
        assert!(all[1].may_reply(&cx) && late.may_reply(&cx));
        drop(late);
        all.clear();
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn of_those_that_stand_still_the_largest_is_closed_and_no_other() {
        let memory = memory();
        let cx = Context::from_waker(Waker::noop());
        let quarter = memory.bound() / 4;
        let mut all = accounts(&memory, 4);
        let share = quarter / 8;
        // One is slow, one small, one large, and of one it is not the turn.
        for (account, parts) in all.iter_mut().zip([4, 1, 2, 1]) {
            account.tell(0, parts * share);
        }
        let mut waiting = Account::new(&memory);
        assert!(!waiting.may_reply(&cx));
        let place = waiting.places[REPLIES];
        let look = |all: &[Account], waiting: &Account, moved: u64, at: u32| {
            all[0].note([0, moved], [false, true]);
            all[1].note([0, 0], [false, true]);
            all[2].note([0, 0], [false, true]);
            all[3].note([0, 0], [false, false]);
            let now = Moment(STILL * at / 10);
            waiting.quarter(REPLIES).look(place, 1, REPLIES, STILL, now)
        };
        let enough = (4 * share / PACE) as u64 + 1;
        assert_eq!(look(&all, &waiting, 0, 0), 0);
        assert_eq!(look(&all, &waiting, enough, 9), 0, "it is too early");
        assert_eq!(look(&all, &waiting, enough, 10), 1);
        let evicted: Vec<_> = all.iter().map(|a| a.poll_evicted(&cx).is_ready()).collect();
        assert_eq!(evicted, [false, false, true, false]);
        // There is room as soon as it is gone, and nobody else has to go.
        assert_eq!(look(&all, &waiting, enough, 18), 0);
        assert!(!waiting.may_reply(&cx));
        drop(all.remove(2));
        assert!(waiting.may_reply(&cx));
    }
}
