//! What one log does next: the order between its segments [RAMCloud §7.4], the choice of places,
//! and what became durable. Decided here, without touching network, log or clock.
//!
//! ```text
//!  head N:    open ── data ─────────────────── close
//!                          head N+1:    open ┘   └ digest durable ── data ── …
//! ```

mod look;

use crate::frees::Frees;
use crate::placement::{Placement, View};
use crate::replica::{Replica, ReplicaStage, pause};
use crate::segment::{Allowed, ReplicatedSegment, WriteOrder};
use crate::status::ReplicationStatus;
use core::time::Duration;
use pluvio_env::{Moment, Rng};
use pluvio_format::SegmentKind;
use pluvio_units::{LogPosition, ReplicationEpoch, SegmentId, ServerId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most writes under way that are not for heads: side segments and repairs. With
/// [`crate::WRITE_BYTES_MAX`] it bounds their memory, and what they take from the network.
const BACKGROUND_WRITES_MAX: usize = 12;
/// Before the log is asked again to hold bytes that it is exchanging: about as long as copying a
/// segment takes.
const HOLD_PAUSE: Duration = Duration::from_millis(5);

/// A replica is left behind that has been behind the others for this time (REP-14). A disk that is
/// merely busy takes less; writers wait about as long as for a server that died in silence.
const LATE_MAX: Duration = Duration::from_secs(3);
/// A replica is also left behind if it has been behind for this time, `SLOW_MAX` times in a row.
const SLOW: Duration = Duration::from_millis(1500);
const SLOW_MAX: u32 = 3;
/// Between two looks for late replicas.
const LATE_LOOK_PAUSE: Duration = Duration::from_millis(250);
/// Most repairs that one such look covers.
const LATE_REPAIRS_MAX: usize = 64;
/// Pause between two new heads that are asked for (REP-19). Each costs a segment, as long as a
/// backup gives up every replica.
const ROLL_PAUSE: Duration = Duration::from_secs(10);

/// Something to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Send a write to a backup.
    Write(WriteOrder),
    /// Tell the coordinator an epoch (REP-5).
    Record(SegmentId, ReplicationEpoch),
    /// Free a replica.
    Free(ServerId, SegmentId),
    /// Tell the log that a head's digest counts.
    DigestDurable(SegmentId),
    /// Tell the log how far it is durable.
    Durable(LogPosition),
    /// Tell the log that a side segment is durable.
    SideDurable(SegmentId),
    /// Tell the log that a segment's bytes are not needed any more as they are (REP-12).
    Release(SegmentId),
    /// Ask the log to keep a segment's bytes as they are, to be answered with [`Machine::held`].
    Hold(SegmentId),
    /// Ask the log for a new head after this one (REP-19).
    Roll(SegmentId),
}

/// What came of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WriteOutcome {
    /// It was done.
    Done,
    /// Nobody knows. The same must be sent again until the backup answers or is gone.
    Unknown,
    /// Not done; to be tried again, after this time if it is known.
    Later(Option<Duration>),
    /// Not done, for want of space, at least until then.
    Full(Moment),
    /// The backup does not have the replica: use another one.
    Useless,
    /// The backup's disk has failed: use another one, for other segments, too.
    Broken,
    /// Not done: another cluster's server has the place. Use another one, and leave that replica
    /// alone.
    Foreign,
}

pub(crate) struct Machine {
    view: View,
    segments: BTreeMap<SegmentId, ReplicatedSegment>,
    /// Heads that are not durably closed, oldest first.
    heads: VecDeque<SegmentId>,
    /// The newest head whose digest counts; then it is the first of `heads`, or closed.
    digest: Option<SegmentId>,
    /// Side segments that are not durable yet.
    sides: BTreeSet<SegmentId>,
    /// Segments that are durably closed but not complete.
    repairs: BTreeSet<SegmentId>,
    /// Heads, side segments and repairs for which there was no backup. Tried again when something
    /// changed.
    unplaced: BTreeSet<SegmentId>,
    /// Segments whose bytes the log may have, to be told in the next step.
    releasable: BTreeSet<SegmentId>,
    frees: Frees,
    /// The newest segment that the log has shown.
    newest: SegmentId,
    durable: LogPosition,
    background: usize,
    /// The number of the newest write.
    last_number: u64,
    /// When to look for late replicas.
    next_late_look: Moment,
    /// When to ask for a new head again, if at all (REP-19).
    next_roll: Moment,
    counters: ReplicationStatus,
}

impl Machine {
    pub(crate) fn new(view: View) -> Self {
        Self {
            view,
            last_number: 0,
            segments: BTreeMap::new(),
            heads: VecDeque::new(),
            digest: None,
            sides: BTreeSet::new(),
            repairs: BTreeSet::new(),
            unplaced: BTreeSet::new(),
            releasable: BTreeSet::new(),
            frees: Frees::default(),
            newest: SegmentId(0),
            durable: LogPosition::default(),
            background: 0,
            next_late_look: Moment::default(),
            next_roll: Moment::default(),
            counters: ReplicationStatus::default(),
        }
    }

    // --- what happened --------------------------------------------------------------------------

    /// The log opened a segment.
    pub(crate) fn opened(&mut self, id: SegmentId, kind: SegmentKind, opening: u32) {
        assert!(
            id > self.newest,
            "segments are opened in the order of their ids"
        );
        self.newest = id;
        self.segments.insert(
            id,
            ReplicatedSegment::new(id, kind, opening, self.view.settings.synced),
        );
        match kind {
            SegmentKind::Head => self.heads.push_back(id),
            SegmentKind::Side => {
                self.sides.insert(id);
            }
        }
    }

    /// Segments that may still grow: the task looks at them before each step.
    pub(crate) fn growing(&self) -> Vec<SegmentId> {
        let open = |id: &&SegmentId| self.segments.get(*id).is_some_and(|s| !s.closed);
        self.heads
            .iter()
            .chain(&self.sides)
            .filter(open)
            .copied()
            .collect()
    }

    /// The log appended to a segment, or closed it.
    pub(crate) fn grew(&mut self, id: SegmentId, appended: u32, closed: bool) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.grew(appended, closed);
        }
    }

    /// A segment left the log: its replicas are to be freed.
    pub(crate) fn segment_left(&mut self, id: SegmentId, placement: &mut Placement) {
        let Some(segment) = self.segments.remove(&id) else {
            return;
        };
        self.heads.retain(|head| *head != id);
        self.sides.remove(&id);
        self.repairs.remove(&id);
        self.unplaced.remove(&id);
        for replica in &segment.replicas {
            self.background -= usize::from(replica.background);
            if replica.primary {
                placement.count_primary(replica.server, false);
            }
        }
        let places = segment
            .replicas
            .iter()
            .map(|r| r.server)
            .chain(segment.given_up);
        for server in places {
            self.frees.want(server, id);
        }
    }

    /// The cluster has changed. Replicas on servers that cannot hold any are lost.
    pub(crate) fn view_changed(&mut self, view: View, placement: &mut Placement) {
        self.view = view;
        let list = std::sync::Arc::clone(&self.view.list);
        self.frees.keep_up(&list);
        let ids: Vec<SegmentId> = self.segments.keys().copied().collect();
        for id in ids {
            let Some(segment) = self.segments.get_mut(&id) else {
                continue;
            };
            segment.given_up.retain(|server| list.is_up(*server));
            segment.spent.retain(|server| list.is_up(*server));
            let lost: Vec<ServerId> = segment
                .replicas
                .iter()
                .map(|r| r.server)
                .filter(|s| !self.view.is_usable(*s))
                .collect();
            for server in lost {
                // Our own disk, once others count, is a place to give up; a dead server is none.
                self.lose(id, server, list.is_up(server), placement);
            }
            self.refile(id);
        }
        self.unplaced.clear();
    }

    fn lose(&mut self, id: SegmentId, server: ServerId, given_up: bool, placement: &mut Placement) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let Some(lost) = segment.lose(server, given_up) else {
            return;
        };
        self.background -= usize::from(lost.background);
        if lost.primary {
            placement.count_primary(server, false);
        }
        self.counters.replicas_lost += 1;
        // Fewer than wanted may have it now (REP-9).
        for server in self.frees.withdraw(id) {
            segment.spent.remove(&server);
            segment.given_up.insert(server);
        }
        self.refile(id);
    }

    /// A backup has lost its replica of a segment, and goes on (REP-16).
    pub(crate) fn lost_at(&mut self, id: SegmentId, server: ServerId, placement: &mut Placement) {
        let has = |segment: &mut ReplicatedSegment| segment.replica(server).is_some();
        if !self.segments.get_mut(&id).is_some_and(has) {
            return;
        }
        pluvio_units::mark("replica-lost-by-backup");
        self.lose(id, server, true, placement);
        self.unplaced.remove(&id);
        self.refile(id);
    }

    /// Puts a segment where the next step finds it, if it needs one.
    fn refile(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get(&id) else {
            return;
        };
        let busy = !segment.given_up.is_empty() || !segment.is_complete(&self.view);
        if segment.durably_closed && busy {
            self.repairs.insert(id);
        } else {
            self.repairs.remove(&id);
        }
        if segment.is_releasable(&self.view, false) {
            self.releasable.insert(id);
        }
    }

    /// The log's answer to [`Action::Hold`]: the length of the bytes it holds, or none when it is
    /// exchanging them at the moment.
    pub(crate) fn held(
        &mut self,
        id: SegmentId,
        length: Option<u32>,
        placement: &mut Placement,
        now: Moment,
    ) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let Some(length) = length else {
            segment.hold_next_try = now + HOLD_PAUSE;
            return;
        };
        for server in segment.hold(length) {
            self.lose(id, server, true, placement);
        }
    }

    /// The write of this number came back.
    pub(crate) fn written(
        &mut self,
        (id, server, number): (SegmentId, ServerId, u64),
        outcome: WriteOutcome,
        placement: &mut Placement,
        now: Moment,
    ) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let Some(replica) = segment.replica(server) else {
            return;
        };
        let Some(flight) = replica.flight(number) else {
            return;
        };
        self.background -= usize::from(std::mem::take(&mut replica.background));
        match outcome {
            WriteOutcome::Done => {
                let ended = replica.flights.iter().filter(|f| f.number <= number);
                self.counters.writes += ended.count() as u64;
                self.counters.bytes_written += u64::from(flight.end - replica.acked);
                replica.acknowledged(flight);
                replica.settle(now, SLOW);
            }
            WriteOutcome::Unknown => {
                self.counters.write_failures += 1;
                replica.failed(flight, now, None, true);
            }
            WriteOutcome::Later(after) => {
                self.counters.write_failures += 1;
                replica.failed(flight, now, after, false);
            }
            WriteOutcome::Full(until) => {
                self.counters.write_failures += 1;
                replica.failed(flight, now, None, false);
                placement.set_full(server, until);
                if replica.sent || replica.acked > 0 {
                    segment.stall(server, until);
                } else {
                    self.lose(id, server, false, placement);
                }
                self.unplaced.remove(&id);
            }
            WriteOutcome::Useless | WriteOutcome::Broken => {
                if outcome == WriteOutcome::Broken {
                    placement.set_bad(server, now);
                }
                self.counters.write_failures += 1;
                replica.failed(flight, now, None, true);
                pluvio_units::mark("replica-useless");
                self.lose(id, server, true, placement);
                self.unplaced.remove(&id);
            }
            WriteOutcome::Foreign => {
                self.counters.write_failures += 1;
                replica.failed(flight, now, None, false);
                // Never used again for this segment, as if it had been freed (REP-8).
                segment.spent.insert(server);
                pluvio_units::mark("replica-of-another-cluster");
                self.lose(id, server, false, placement);
                self.unplaced.remove(&id);
            }
        }
        self.refile(id);
    }

    /// The coordinator has an epoch of a head, or could not be told.
    pub(crate) fn recorded(
        &mut self,
        id: SegmentId,
        epoch: ReplicationEpoch,
        done: bool,
        now: Moment,
    ) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        if done {
            segment.recording = false;
            segment.record_failures = 0;
            segment.recorded = segment.recorded.max(epoch);
            pluvio_units::mark("replication-epoch-recorded");
        } else {
            segment.record_failed(now, pause(segment.record_failures));
        }
    }

    /// A free came back.
    pub(crate) fn freed(&mut self, server: ServerId, id: SegmentId, done: bool, now: Moment) {
        self.frees.ended(server, id, done, now);
    }

    /// Backups that were left in peace may have space again.
    pub(crate) fn retry_placement(&mut self) {
        for id in std::mem::take(&mut self.unplaced) {
            self.refile(id);
        }
    }

    // --- what to do -----------------------------------------------------------------------------

    /// Everything that can be done now. To be called again until it gives nothing: some actions
    /// allow others.
    pub(crate) fn step(
        &mut self,
        placement: &mut Placement,
        now: Moment,
        rng: &dyn Rng,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        self.step_releases(&mut actions);
        self.step_late(placement, now);
        self.step_heads(placement, now, rng, &mut actions);
        self.step_background(placement, now, rng, &mut actions);
        actions.extend(
            self.frees
                .start(now)
                .into_iter()
                .map(|(server, id)| Action::Free(server, id)),
        );
        actions
    }

    fn step_releases(&mut self, actions: &mut Vec<Action>) {
        for id in std::mem::take(&mut self.releasable) {
            let parked = self.unplaced.contains(&id) && !self.repairs.contains(&id);
            let segment = self.segments.get_mut(&id);
            if let Some(segment) = segment.filter(|s| {
                s.is_releasable(&self.view, false) || parked && s.is_releasable(&self.view, true)
            }) {
                segment.held = false;
                actions.push(Action::Release(id));
            }
        }
    }

    /// Leaves replicas behind whose backups hang or crawl, where enough others have what they lack
    /// (REP-14).
    fn step_late(&mut self, placement: &mut Placement, now: Moment) {
        if now < self.next_late_look {
            return;
        }
        self.next_late_look = now + LATE_LOOK_PAUSE;
        let heads = self.heads.iter().take(2).chain(&self.sides);
        let watched = heads.chain(self.repairs.iter().take(LATE_REPAIRS_MAX));
        let watched: Vec<SegmentId> = watched.copied().collect();
        for id in watched {
            let Some(segment) = self.segments.get_mut(&id) else {
                continue;
            };
            for server in segment.late(&self.view, now, LATE_MAX, SLOW_MAX) {
                tracing::warn!(%server, segment = %id, "a backup is late: nobody waits for its replica");
                pluvio_units::mark("replica-late");
                let until = placement.set_bad(server, now);
                segment.leave_behind(server, until);
                self.unplaced.remove(&id);
            }
            self.refile(id);
        }
    }

    fn step_heads(
        &mut self,
        placement: &mut Placement,
        now: Moment,
        rng: &dyn Rng,
        actions: &mut Vec<Action>,
    ) {
        self.step_digest(actions);
        // At most two heads are open: the one that takes data and its successor (REP-2).
        for index in 0..self.heads.len().min(2) {
            let id = self.heads[index];
            let allowed = self.allowed_of_head(index);
            self.place(id, placement, now, rng);
            self.writes_of(id, allowed, now, usize::MAX, actions);
            if index == 0 {
                self.record(id, now, actions);
            }
        }
        self.step_durable(actions);
        self.step_roll(now, actions);
    }

    /// Asks for a new head if that can have replicas on more backups (REP-19).
    fn step_roll(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let [id] = self.heads.make_contiguous() else {
            return;
        };
        let Some(head) = self.segments.get(id) else {
            return;
        };
        let can_be_closed =
            self.digest == Some(*id) && !head.closed && head.durable(&self.view).is_some();
        if can_be_closed && self.next_roll <= now && head.next_can_have_more(&self.view) {
            pluvio_units::mark("head-left-for-places");
            self.next_roll = now + ROLL_PAUSE;
            actions.push(Action::Roll(*id));
        }
    }

    /// Records the epoch of the oldest head, the only one that may be (REP-6). The record makes
    /// stale replicas useless, so something must be left that says where the log ends (REP-4).
    fn record(&mut self, id: SegmentId, now: Moment, actions: &mut Vec<Action>) {
        let next_is_open = self.successor_is_open();
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let tells_the_end =
            next_is_open || segment.replicas.iter().any(|r| r.is_current() && !r.closed);
        if tells_the_end && segment.wants_record(&self.view, now) {
            segment.recording = true;
            actions.push(Action::Record(id, segment.epoch));
        }
    }

    fn successor_is_open(&self) -> bool {
        let next = self.heads.get(1).and_then(|id| self.segments.get(id));
        next.is_some_and(|next| next.is_durably_open(&self.view))
    }

    fn allowed_of_head(&self, index: usize) -> Allowed {
        if index > 0 || self.digest != Some(self.heads[index]) {
            Allowed::Opening
        } else if self.successor_is_open() {
            Allowed::Close
        } else {
            Allowed::Appended
        }
    }

    /// Closed heads leave. The digest of the oldest one left counts as soon as it is durably open
    /// and the coordinator knows its epoch.
    fn step_digest(&mut self, actions: &mut Vec<Action>) {
        loop {
            let Some(first) = self.heads.front().copied() else {
                return;
            };
            let Some(segment) = self.segments.get_mut(&first) else {
                return;
            };
            if self.digest == Some(first) {
                if self.heads.len() < 2 || !segment.is_closed_everywhere(&self.view) {
                    return;
                }
                segment.durably_closed = true;
                let end = segment.appended;
                self.durable_to(
                    LogPosition {
                        segment: first,
                        offset: end,
                    },
                    actions,
                );
                self.heads.pop_front();
                self.refile(first);
            } else {
                if !segment.is_durably_open(&self.view) || segment.recorded != segment.epoch {
                    return;
                }
                self.digest = Some(first);
                actions.push(Action::DigestDurable(first));
            }
        }
    }

    fn step_durable(&mut self, actions: &mut Vec<Action>) {
        let Some(first) = self
            .heads
            .front()
            .copied()
            .filter(|first| self.digest == Some(*first))
        else {
            return;
        };
        if let Some(offset) = self
            .segments
            .get(&first)
            .and_then(|s| s.durable(&self.view))
        {
            self.durable_to(
                LogPosition {
                    segment: first,
                    offset,
                },
                actions,
            );
        }
    }

    fn durable_to(&mut self, position: LogPosition, actions: &mut Vec<Action>) {
        if position > self.durable {
            self.durable = position;
            actions.push(Action::Durable(position));
        }
    }

    fn step_background(
        &mut self,
        placement: &mut Placement,
        now: Moment,
        rng: &dyn Rng,
        actions: &mut Vec<Action>,
    ) {
        let sides: Vec<SegmentId> = self.sides.iter().copied().collect();
        for id in sides {
            self.step_one(id, placement, now, rng, actions);
            let done = self
                .segments
                .get_mut(&id)
                .filter(|s| s.is_closed_everywhere(&self.view));
            if let Some(segment) = done {
                segment.durably_closed = true;
                self.sides.remove(&id);
                self.refile(id);
                actions.push(Action::SideDurable(id));
            }
        }
        let mut next = self.repairs.first().copied();
        let mut asked = 0;
        while let Some(id) = next.filter(|_| self.background + asked < BACKGROUND_WRITES_MAX) {
            if self.ask_for_bytes(id, now, actions) {
                asked += 1;
            } else {
                self.step_one(id, placement, now, rng, actions);
            }
            self.give_back(id);
            self.park(id);
            next = self
                .repairs
                .range((std::ops::Bound::Excluded(id), std::ops::Bound::Unbounded))
                .next()
                .copied();
        }
    }

    /// Asks the log to hold what a segment that lacks replicas is to be copied from. False when it
    /// does, or need not.
    fn ask_for_bytes(&mut self, id: SegmentId, now: Moment, actions: &mut Vec<Action>) -> bool {
        let view = &self.view;
        let lacks_bytes = |s: &&mut ReplicatedSegment| !s.held && !s.is_complete(view);
        let Some(segment) = self.segments.get_mut(&id).filter(lacks_bytes) else {
            return false;
        };
        if segment.hold_next_try <= now && !self.unplaced.contains(&id) {
            // Until the answer is there; a refusal says how long.
            segment.hold_next_try = now + HOLD_PAUSE;
            actions.push(Action::Hold(id));
        }
        true
    }

    fn step_one(
        &mut self,
        id: SegmentId,
        placement: &mut Placement,
        now: Moment,
        rng: &dyn Rng,
        actions: &mut Vec<Action>,
    ) {
        let room = BACKGROUND_WRITES_MAX.saturating_sub(self.background);
        if room == 0 {
            return;
        }
        self.place(id, placement, now, rng);
        self.writes_of(id, Allowed::Close, now, room, actions);
    }

    /// Takes a segment off the list of repairs when all it wants is a backup, and there is none.
    fn park(&mut self, id: SegmentId) {
        let is_idle =
            |s: &ReplicatedSegment| s.replicas.iter().all(|r| r.is_current() && r.is_idle());
        if self.unplaced.contains(&id) && self.segments.get(&id).is_none_or(is_idle) {
            self.repairs.remove(&id);
            self.releasable.insert(id);
        }
    }

    /// Frees places that were given up, once enough others have the segment (REP-9).
    fn give_back(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        if !segment.is_complete(&self.view) || !segment.is_closed_everywhere(&self.view) {
            return;
        }
        let places = std::mem::take(&mut segment.given_up);
        segment.spent.extend(places.iter().copied());
        self.repairs.remove(&id);
        for server in places {
            self.frees.want(server, id);
        }
    }

    fn writes_of(
        &mut self,
        id: SegmentId,
        allowed: Allowed,
        now: Moment,
        room: usize,
        actions: &mut Vec<Action>,
    ) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let background = is_background(segment);
        let crowded = segment.hopeful() >= self.view.wanted();
        let mut orders: SmallVec<[WriteOrder; 4]> = segment
            .replicas
            .iter()
            .filter(|r| !(crowded && r.aside))
            .filter_map(|r| segment.next_write(r, allowed, now))
            .take(room)
            .collect();
        for order in &mut orders {
            self.last_number += 1;
            order.flight.number = self.last_number;
            let replica = segment
                .replica(order.server)
                .expect("the order is for one of them");
            replica.flights.push(order.flight);
            replica.aside = false;
            replica.background = background;
            self.background += usize::from(background);
            if order.completes(replica.stage) {
                pluvio_units::mark("replica-rewritten");
                replica.stage = ReplicaStage::Completing(order.flight.end);
            }
        }
        actions.extend(orders.into_iter().map(Action::Write));
    }

    /// Chooses backups for the replicas that a segment lacks.
    fn place(&mut self, id: SegmentId, placement: &mut Placement, now: Moment, rng: &dyn Rng) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        if self.unplaced.contains(&id) {
            return;
        }
        // Places that are to be freed are in use too (REP-8).
        let frees = &self.frees;
        while segment.hopeful() < self.view.wanted() {
            let primary = !segment.replicas.iter().any(|r| r.primary);
            // One that is not counted on leaves its rack free.
            let strict = self.view.settings.strict_racks;
            let near = segment.replicas.iter().filter(|r| !(strict && r.aside));
            let near: Vec<ServerId> = near.map(|r| r.server).collect();
            let taken = |server| segment.has_used(server) || frees.wants(server, id);
            let or_bad = |server| taken(server) || placement.is_bad(server, now);
            // A server that is drained will be stopped soon, and then its replicas made again.
            let or_drained = |server| or_bad(server) || self.view.is_drained(server);
            let mut chosen = placement.choose(&self.view, &or_drained, &near, primary, now, rng);
            if chosen.is_none() {
                chosen = placement.choose(&self.view, &or_bad, &near, primary, now, rng);
            }
            // Without it nothing would be acknowledged.
            if chosen.is_none() && segment.hopeful() < self.view.needed() {
                chosen = placement.choose(&self.view, &taken, &near, primary, now, rng);
            }
            let Some(server) = chosen else {
                self.unplaced.insert(id);
                break;
            };
            if primary {
                placement.count_primary(server, true);
            }
            let stage = if segment.placed {
                ReplicaStage::Rewriting
            } else {
                ReplicaStage::Opening
            };
            segment.replicas.push(Replica::new(server, primary, stage));
        }
        segment.placed |= !segment.replicas.is_empty();
    }
}

/// Whether writes to a segment count against the limit for those that are not for heads.
fn is_background(segment: &ReplicatedSegment) -> bool {
    match segment.kind {
        SegmentKind::Side => true,
        SegmentKind::Head => segment.durably_closed,
    }
}
