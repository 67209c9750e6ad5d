//! One segment and its replicas, as the master sees them: decided here, without touching the
//! network.

use crate::placement::View;
use crate::replica::{FLIGHTS_MAX, Flight, Owed, Progress, Replica, ReplicaStage};
use core::time::Duration;
use pluvio_env::Moment;
use pluvio_format::SegmentKind;
use pluvio_units::{ReplicationEpoch, SegmentId, ServerId};
use std::collections::BTreeSet;

/// Most bytes of the writes under way to one replica, and so of one (RAMCloud's limit too). Bounds
/// their memory, and how long a small write waits behind a large one.
pub const WRITE_BYTES_MAX: u32 = 1 << 20;
/// A write that goes out beside others has at least this many bytes. A message costs about as much
/// as copying them several times. So fewer wait for the next answer, and share a message.
const BESIDE_BYTES_MIN: u32 = 16 << 10;
/// Two places to cut a segment are kept only when they are at least so far apart; the last one is
/// always kept. So a write ends at most this much earlier than it could.
const CUT_DISTANCE_MIN: u32 = 64 << 10;

/// A write to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WriteOrder {
    pub(crate) segment: SegmentId,
    pub(crate) kind: SegmentKind,
    pub(crate) server: ServerId,
    pub(crate) primary: bool,
    pub(crate) open: bool,
    pub(crate) synced: bool,
    pub(crate) offset: u32,
    pub(crate) flight: Flight,
    /// The replica is written from bytes of this length, which took the place of what the log had
    /// appended (REP-12); `None`: from what it appended.
    pub(crate) image: Option<u32>,
    /// The replica was not among the first ones, or was behind them: what it is sent may have been
    /// acknowledged long ago (REP-13).
    pub(crate) anew: bool,
    /// It brings a lagging replica the rest.
    completes_lagging: bool,
}

impl WriteOrder {
    /// Whether it makes a replica at `stage` count once it is there.
    pub(crate) fn completes(&self, stage: ReplicaStage) -> bool {
        match stage {
            ReplicaStage::Rewriting => !self.flight.rewriting,
            ReplicaStage::Lagging(_) => self.completes_lagging,
            ReplicaStage::Opening | ReplicaStage::Completing(_) | ReplicaStage::Current => false,
        }
    }
}

/// How far a segment may be sent; its log decides (REP-2, REP-3, REP-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    /// The opening group.
    Opening,
    /// All that is appended.
    Appended,
    /// All that is appended, and closing it.
    Close,
}

#[derive(Debug)]
pub(crate) struct ReplicatedSegment {
    pub(crate) id: SegmentId,
    pub(crate) kind: SegmentKind,
    opening: u32,
    /// Its replicas are on their devices when they answer. Else several writes may be under way to
    /// one (REP-10). That of the settings when it was opened.
    pub(crate) synced: bool,
    /// Bytes appended when we last looked.
    pub(crate) appended: u32,
    /// Nothing more will be appended.
    pub(crate) closed: bool,
    /// Ends of groups, ascending; the last one is `appended`.
    cuts: Vec<u32>,
    pub(crate) replicas: Vec<Replica>,
    /// Places that were given up although their servers are up, and are not freed yet (REP-9).
    pub(crate) given_up: BTreeSet<ServerId>,
    /// Such places that were, or are being, freed, and those where another cluster's server
    /// answers, which are never freed (REP-8).
    pub(crate) spent: BTreeSet<ServerId>,
    /// The first replicas were chosen.
    pub(crate) placed: bool,
    /// The epoch that replicas must have.
    pub(crate) epoch: ReplicationEpoch,
    /// The epoch that the coordinator has.
    pub(crate) recorded: ReplicationEpoch,
    pub(crate) recording: bool,
    pub(crate) record_failures: u32,
    pub(crate) record_next_try: Moment,
    /// Closed on as many replicas as needed, and on all that recovery might find.
    pub(crate) durably_closed: bool,
    /// The log keeps its bytes as they are, because we need them (REP-12).
    pub(crate) held: bool,
    /// When to ask the log again to hold them.
    pub(crate) hold_next_try: Moment,
    /// Length of the bytes that took the place of what was appended, if there are such.
    image: Option<u32>,
}

impl ReplicatedSegment {
    pub(crate) fn new(id: SegmentId, kind: SegmentKind, opening: u32, synced: bool) -> Self {
        Self {
            id,
            kind,
            opening,
            synced,
            appended: opening,
            closed: false,
            cuts: vec![opening],
            replicas: Vec::new(),
            given_up: BTreeSet::new(),
            spent: BTreeSet::new(),
            placed: false,
            epoch: ReplicationEpoch(0),
            recorded: ReplicationEpoch(0),
            recording: false,
            record_failures: 0,
            record_next_try: Moment::default(),
            durably_closed: false,
            held: true,
            hold_next_try: Moment::default(),
            image: None,
        }
    }

    /// Length of a whole replica written now.
    fn whole(&self) -> u32 {
        self.image.unwrap_or(self.appended)
    }

    /// Whether there is nothing to be copied out of the log, which may exchange the bytes then
    /// (REP-12). `parked` says that what lacks has no place to go.
    pub(crate) fn is_releasable(&self, view: &View, parked: bool) -> bool {
        let idle = |r: &Replica| r.is_idle() && (!parked || r.is_current());
        self.held
            && self.durably_closed
            && (parked || self.is_complete(view))
            && self.replicas.iter().all(idle)
    }

    /// The log holds the bytes again, which have this length. Gives the servers of replicas that
    /// were begun with others and are of no use therefore.
    pub(crate) fn hold(&mut self, length: u32) -> Vec<ServerId> {
        self.held = true;
        if length == self.whole() {
            return Vec::new();
        }
        assert!(
            self.durably_closed && length < self.whole(),
            "only a closed segment becomes shorter"
        );
        self.image = Some(length);
        let begun = |r: &&Replica| !r.is_current() && (r.sent || r.acked > 0);
        self.replicas
            .iter()
            .filter(begun)
            .map(|r| r.server)
            .collect()
    }

    /// The log has grown. `appended` is the end of a group.
    pub(crate) fn grew(&mut self, appended: u32, closed: bool) {
        assert!(appended >= self.appended, "a segment only grows");
        if appended > self.appended {
            let before = self.cuts.len().checked_sub(2).map_or(0, |i| self.cuts[i]);
            // The opening's end stays: it is all that may be sent of a new head.
            if self.cuts.len() > 1 && appended - before < CUT_DISTANCE_MIN {
                self.cuts.pop();
            }
            self.cuts.push(appended);
            self.appended = appended;
        }
        self.closed |= closed;
    }

    /// The last end of a group within the first `end` bytes.
    fn cut_within(&self, end: u32) -> u32 {
        let behind = self.cuts.partition_point(|cut| *cut <= end);
        behind.checked_sub(1).map_or(0, |i| self.cuts[i])
    }

    pub(crate) fn replica(&mut self, server: ServerId) -> Option<&mut Replica> {
        self.replicas.iter_mut().find(|r| r.server == server)
    }

    /// Whether a server has or had a replica (REP-8).
    pub(crate) fn has_used(&self, server: ServerId) -> bool {
        self.given_up.contains(&server)
            || self.spent.contains(&server)
            || self.replicas.iter().any(|r| r.server == server)
    }

    /// Servers with a replica that counts.
    pub(crate) fn holders(&self) -> Vec<ServerId> {
        let current = self.replicas.iter().filter(|r| r.is_current());
        current.map(|r| r.server).collect()
    }

    /// Servers where recovery might find a replica, as long as none that it might find was lost or
    /// lags.
    pub(crate) fn places_found(&self) -> Vec<ServerId> {
        let found = |r: &&Replica| r.is_current() || r.may_be_found_open();
        self.replicas
            .iter()
            .filter(found)
            .map(|r| r.server)
            .collect()
    }

    /// Replicas that count.
    pub(crate) fn current(&self) -> usize {
        self.replicas.iter().filter(|r| r.is_current()).count()
    }

    /// Whether a replica of which we do not know whether it is there would be used by recovery.
    fn is_uncertain(&self) -> bool {
        let fenced_by_nothing = self.kind == SegmentKind::Head && !self.durably_closed;
        // Replicas of side segments count for recovery only when closed, and are whole then.
        self.replicas
            .iter()
            .any(|r| r.is_uncertain() && (fenced_by_nothing || !r.aside))
    }

    /// Whether every replica that recovery might find counts, and they are as many as needed.
    fn is_settled(&self, view: &View) -> bool {
        !self.is_uncertain() && self.current() >= view.needed()
    }

    /// Replicas that are there or on their way.
    pub(crate) fn hopeful(&self) -> usize {
        self.replicas.iter().filter(|r| !r.aside).count()
    }

    /// Whether the next head can have more replicas than this segment, which will have fewer than
    /// are wanted, or would after one more loss. It can on backups that have given up a replica of
    /// this one (REP-8).
    pub(crate) fn next_can_have_more(&self, view: &View) -> bool {
        if self.given_up.is_empty() {
            return false;
        }
        let usable = || view.usable().map(|s| s.id);
        let unused = usable().filter(|id| !self.has_used(*id)).count();
        let is_for_others = |id: ServerId| {
            self.given_up.contains(&id) && !self.replicas.iter().any(|r| r.server == id)
        };
        self.hopeful() + unused <= view.wanted() && usable().any(is_for_others)
    }

    /// Whether every current replica that is open has the newest epoch.
    fn has_epoch(&self) -> bool {
        self.replicas
            .iter()
            .filter(|r| r.is_current())
            .all(|r| r.closed || r.epoch == self.epoch)
    }

    /// How far it is safe on its replicas; `None` when that cannot be said at the moment (REP-1,
    /// REP-5).
    pub(crate) fn durable(&self, view: &View) -> Option<u32> {
        let safe = self.is_settled(view) && self.has_epoch() && self.recorded == self.epoch;
        if !safe {
            return None;
        }
        let current = self.replicas.iter().filter(|r| r.is_current());
        let certified = current.map(|r| r.certified).min();
        certified.or(view.keeps_none().then_some(self.appended))
    }

    /// Whether its opening group is on its replicas. The coordinator need not know the epoch yet:
    /// all there can be is the opening group (REP-4, REP-6).
    pub(crate) fn is_durably_open(&self, view: &View) -> bool {
        self.is_settled(view)
            && self.has_epoch()
            && self
                .replicas
                .iter()
                .filter(|r| r.is_current())
                .all(|r| r.certified >= self.opening)
    }

    /// Whether it is closed on its replicas, and the coordinator has its epoch.
    pub(crate) fn is_closed_everywhere(&self, view: &View) -> bool {
        // Later replicas may be shorter, and are closed only when they are whole.
        let whole = |durable| self.durably_closed || durable == self.appended;
        self.closed
            && self.durable(view).is_some_and(whole)
            && self
                .replicas
                .iter()
                .filter(|r| r.is_current())
                .all(|r| r.closed)
    }

    /// Whether the coordinator is to be told the epoch now (REP-5). Every replica that recovery
    /// might find has it then, and they are as many as needed. With fewer nothing can be
    /// acknowledged. A lost replica still has all acknowledged bytes, and may be the only one that
    /// is left when the others are lost as well.
    pub(crate) fn wants_record(&self, view: &View, now: Moment) -> bool {
        self.recorded < self.epoch
            && !self.recording
            && self.record_next_try <= now
            && self.has_epoch()
            && self.is_settled(view)
    }

    /// Whether it has all replicas that are wanted, and all of them count.
    pub(crate) fn is_complete(&self, view: &View) -> bool {
        self.current() >= view.wanted()
    }

    /// The next write to one of its replicas.
    pub(crate) fn next_write(
        &self,
        replica: &Replica,
        allowed: Allowed,
        now: Moment,
    ) -> Option<WriteOrder> {
        if replica.next_try > now || !self.held {
            return None;
        }
        if let Some(last) = replica.flights.last() {
            return self.next_beside(replica, last, allowed);
        }
        let limit = match allowed {
            Allowed::Opening => self.opening,
            Allowed::Appended | Allowed::Close => self.whole(),
        };
        let may_close = allowed == Allowed::Close && self.closed;
        let from = replica.acked;
        // An opening group goes out whole, however long its digest is.
        let chunk = limit.min((from + WRITE_BYTES_MAX).max(self.opening.min(limit)));
        let (end, rewriting) = match replica.stage {
            ReplicaStage::Opening => (chunk, false),
            ReplicaStage::Current => {
                let epoch_is_old = !replica.closed && replica.epoch < self.epoch;
                let close = may_close && !replica.closed && chunk == self.whole();
                if chunk <= from && !epoch_is_old && !close {
                    return None;
                }
                (chunk.max(from), false)
            }
            // The first write only makes the place; later ones fill it; the last one makes it
            // count.
            ReplicaStage::Rewriting if from == 0 || limit - from.min(limit) > WRITE_BYTES_MAX => {
                (chunk, true)
            }
            ReplicaStage::Rewriting => (limit.max(from), false),
            ReplicaStage::Lagging(old)
                if replica.probes || limit - from.min(limit) > WRITE_BYTES_MAX =>
            {
                return Some(self.catch_up(replica, chunk.max(from), old));
            }
            ReplicaStage::Lagging(_) => (limit.max(from), false),
            ReplicaStage::Completing(end) => (end, false),
        };
        let certified = match replica.stage {
            _ if rewriting => 0,
            ReplicaStage::Rewriting | ReplicaStage::Completing(_) | ReplicaStage::Lagging(_) => end,
            ReplicaStage::Opening | ReplicaStage::Current => {
                self.cut_within(end).max(replica.certified)
            }
        };
        let close = may_close && !rewriting && end == self.whole();
        let flight = Flight {
            number: 0,
            end,
            certified,
            epoch: self.epoch,
            rewriting,
            close,
        };
        Some(self.order(replica, replica.acked, flight, true))
    }

    /// The next write to a replica of an open head, behind those under way (REP-15). Each of them,
    /// and this one, adds bytes and nothing else.
    fn next_beside(
        &self,
        replica: &Replica,
        last: &Flight,
        allowed: Allowed,
    ) -> Option<WriteOrder> {
        let is_stream = !self.synced
            && self.kind == SegmentKind::Head
            && replica.is_current()
            && !replica.broken
            && replica.flights.len() < FLIGHTS_MAX
            && replica.failures == 0
            && !last.close
            && last.epoch == self.epoch;
        if !is_stream || allowed == Allowed::Opening {
            return None;
        }
        let from = last.end;
        let end = self.whole().min(replica.acked + WRITE_BYTES_MAX);
        if end < from + BESIDE_BYTES_MIN {
            return None;
        }
        pluvio_units::mark("replica-writes-beside-others");
        let flight = Flight {
            number: 0,
            end,
            certified: self.cut_within(end).max(last.certified),
            epoch: self.epoch,
            rewriting: false,
            close: false,
        };
        Some(self.order(replica, from, flight, true))
    }

    /// A write that brings a replica nearer without making it count.
    fn catch_up(&self, replica: &Replica, end: u32, epoch: ReplicationEpoch) -> WriteOrder {
        let certified = self.cut_within(end).max(replica.certified);
        let flight = Flight {
            number: 0,
            end,
            certified,
            epoch,
            rewriting: false,
            close: false,
        };
        self.order(replica, replica.acked, flight, false)
    }

    fn order(
        &self,
        replica: &Replica,
        offset: u32,
        flight: Flight,
        completes_lagging: bool,
    ) -> WriteOrder {
        WriteOrder {
            segment: self.id,
            kind: self.kind,
            server: replica.server,
            primary: replica.primary,
            open: offset == 0,
            synced: self.synced,
            offset,
            flight,
            image: self.image,
            anew: match replica.stage {
                ReplicaStage::Opening | ReplicaStage::Current => false,
                ReplicaStage::Rewriting
                | ReplicaStage::Completing(_)
                | ReplicaStage::Lagging(_) => true,
            },
            completes_lagging,
        }
    }

    /// A backup has no space for the rest of a replica that it may have a part of.
    pub(crate) fn stall(&mut self, server: ServerId, until: Moment) {
        self.put_aside(server, until);
        if let Some(replica) = self.replica(server) {
            replica.full = true;
        }
    }

    /// A backup is late (REP-14). A write to it may be under way.
    pub(crate) fn leave_behind(&mut self, server: ServerId, until: Moment) {
        self.put_aside(server, until);
        if let Some(replica) = self.replica(server) {
            (replica.owed, replica.slow) = (None, 0);
            replica.probes = true;
        }
    }

    /// Makes a replica one on which nobody counts. It may catch up later, or another one takes its
    /// place.
    fn put_aside(&mut self, server: ServerId, until: Moment) {
        let old = self.epoch;
        let is_whole = self.durably_closed;
        let fence = self.kind == SegmentKind::Head && !is_whole;
        let Some(replica) = self.replica(server) else {
            return;
        };
        replica.aside = true;
        replica.next_try = until;
        let found_open = replica.may_be_found_open();
        match replica.stage {
            ReplicaStage::Rewriting | ReplicaStage::Lagging(_) => {}
            // The same write again will do: it closes the replica, so no part of it counts alone.
            // While the segment grows it would not.
            ReplicaStage::Completing(_) if is_whole => {}
            ReplicaStage::Opening | ReplicaStage::Completing(_) | ReplicaStage::Current => {
                pluvio_units::mark("replica-lags");
                replica.stage = ReplicaStage::Lagging(old);
            }
        }
        if fence && found_open {
            self.epoch = old.next();
        }
    }

    /// Takes a replica away whose server is gone (`given_up` false), or that is useless although
    /// its server is up. Gives it when there was one.
    pub(crate) fn lose(&mut self, server: ServerId, given_up: bool) -> Option<Replica> {
        let at = self.replicas.iter().position(|r| r.server == server)?;
        let lost = self.replicas.remove(at);
        if given_up {
            self.given_up.insert(server);
        }
        // REP-5. Side segments need no fence: recovery uses only closed ones, and those are whole.
        if self.kind == SegmentKind::Head && !self.durably_closed && lost.may_be_found_open() {
            self.epoch = self.epoch.next();
        }
        Some(lost)
    }

    /// The servers whose replicas are late. For longer than `limit` they have not made the progress
    /// that as many others as needed had made before. Or they took long for it `slow_max` times in
    /// a row (REP-14).
    pub(crate) fn late(
        &mut self,
        view: &View,
        now: Moment,
        limit: Duration,
        slow_max: u32,
    ) -> Vec<ServerId> {
        let needed = view.needed();
        let mut late = Vec::new();
        for at in 0..self.replicas.len() {
            let expected = self.expected_of(at, needed);
            let replica = &mut self.replicas[at];
            let Some(expected) = expected else {
                replica.owed = None;
                continue;
            };
            let owed = replica.owed.filter(|owed| !replica.has_made(owed.progress));
            let is_late = owed.is_some_and(|owed| now.since(owed.since) >= limit);
            if is_late || replica.slow >= slow_max {
                late.push(replica.server);
            }
            let is_behind = !replica.has_made(expected);
            replica.owed = owed.or(is_behind.then_some(Owed {
                since: now,
                progress: expected,
            }));
        }
        late
    }

    /// The progress that as many others as needed have made. `None` when they are not enough, or
    /// when the backup is not to be measured.
    fn expected_of(&self, at: usize, needed: usize) -> Option<Progress> {
        let replica = &self.replicas[at];
        if replica.full || replica.aside {
            return None;
        }
        let others = || {
            let others = self.replicas.iter().enumerate();
            let current = others.filter(|(i, other)| *i != at && other.is_current());
            current.map(|(_, other)| other)
        };
        let mut certified: Vec<u32> = others().map(|other| other.certified).collect();
        certified.sort_unstable_by(|a, b| b.cmp(a));
        let certified = *certified.get(needed.checked_sub(1)?)?;
        match replica.stage {
            ReplicaStage::Opening | ReplicaStage::Completing(_) | ReplicaStage::Current => {
                let has_epoch = |other: &&Replica| other.closed || other.epoch == self.epoch;
                let epoch = match others().filter(has_epoch).count() >= needed {
                    true => self.epoch,
                    false => ReplicationEpoch(0),
                };
                let closed = others().filter(|other| other.closed).count() >= needed;
                Some(Progress::Counts {
                    epoch,
                    certified,
                    closed,
                })
            }
            ReplicaStage::Rewriting => replica
                .awaits_its_backup()
                .then_some(Progress::Beyond(replica.acked)),
            // It waits for space.
            ReplicaStage::Lagging(_) => None,
        }
    }

    /// The coordinator could not be told.
    pub(crate) fn record_failed(&mut self, now: Moment, pause: Duration) {
        self.recording = false;
        self.record_failures = self.record_failures.saturating_add(1);
        self.record_next_try = now + pause;
    }
}
