//! The replicator of a log: the task that tells the machine what happened and does what it decides.
//!
//! A write is a record in `sent`, without a future or a timer. Its answer comes to [`Answers`]. The
//! oldest record says when the next wait has to end at the latest.

use crate::answers::Answers;
use crate::machine::{Action, Machine, WriteOutcome};
use crate::replication::Inner;
use crate::segment::WriteOrder;
use crate::traced::TracedWrite;
use crate::waiters::Waiters;
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use pluvio_env::buffers::Buffer;
use pluvio_env::{Address, BoxFuture, CallError, Frame, Moment, Replies};
use pluvio_format::{ParseErrorKind, SegmentKind};
use pluvio_log::Segment;
use pluvio_trace::{Span, SpanKind, TraceContext, Value};
use pluvio_units::{CoreId, LogId, ReplicationEpoch, SegmentId, ServerId, ServerListVersion};
use pluvio_wire::{
    FatalKind, FreeReplica, Header, Refusal, Request, RetryReason, RpcError, SetReplicationEpoch,
    TRACED_SINCE, WriteReplica, call, encode, reply_to, wrap_traced,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The longest time without a look at the log: for changes that nobody tells of, such as a side
/// log that was given up.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// After a refusal that only a new server list can mend.
const MEMBERSHIP_PAUSE: Duration = Duration::from_millis(100);
/// For the coordinator's answer, and for frees.
const SMALL_LIMIT: Duration = Duration::from_secs(2);

/// One log as others see it.
pub(crate) struct LogShare {
    machine: Mutex<Machine>,
    pub(crate) notify: Arc<Notify>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) traced: TracedWrite,
}

impl LogShare {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine: Mutex::new(machine),
            notify: Arc::default(),
            waiters: Arc::default(),
            traced: TracedWrite::default(),
        }
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call has ended. Answers to writes come to [`Answers`] instead.
enum Ended {
    Record(SegmentId, ReplicationEpoch, bool),
    Free(ServerId, SegmentId, bool),
}

/// A write on its way.
struct Sent {
    segment: SegmentId,
    server: ServerId,
    to: Address,
    /// When it is given up.
    until: Moment,
    /// If it is a part of a trace.
    span: Option<Span>,
}

/// The replicator of a log.
pub(crate) struct LogTask {
    inner: Arc<Inner>,
    log: LogId,
    share: Arc<LogShare>,
    segments: BTreeMap<SegmentId, Arc<Segment>>,
    calls: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// Writes without an answer, by their numbers; so the first one is given up first.
    sent: BTreeMap<u64, Sent>,
    answers: Arc<Answers>,
    /// Answers that are being looked at; empty between turns, kept for its memory.
    came: Vec<(u64, Result<Frame, CallError>)>,
    /// The addresses of backups, from the server list of this version.
    addresses: (ServerListVersion, BTreeMap<ServerId, Address>),
    /// The last copy made: all replicas of a segment are mostly sent the same bytes.
    copied: Option<(SegmentId, Range<u32>, Bytes)>,
    /// How far replicas that are written anew were compared with the checksums of their entries
    /// (REP-13): the beginning of an entry, or the end. Forgotten when the segment's bytes may be
    /// exchanged.
    compared: BTreeMap<(SegmentId, ServerId), u32>,
    alarm: Option<(Moment, BoxFuture<'static, ()>)>,
    /// When a backup that had no space is asked again.
    full_until: Option<Moment>,
    /// Replicas needed for an acknowledgement, for what is sent.
    needed: u8,
}

impl LogTask {
    pub(crate) fn new(inner: Arc<Inner>, log: LogId, share: Arc<LogShare>) -> Self {
        Self {
            inner,
            log,
            answers: Answers::new(Arc::clone(&share.notify)),
            share,
            segments: BTreeMap::new(),
            calls: FuturesUnordered::new(),
            sent: BTreeMap::new(),
            came: Vec::new(),
            addresses: (ServerListVersion(0), BTreeMap::new()),
            copied: None,
            compared: BTreeMap::new(),
            alarm: None,
            full_until: None,
            needed: 1,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            while self.work() {}
            self.copied = None;
            self.wait().await;
        }
    }

    /// Looks at the log, asks the machine, does what it says. False when there was nothing to do.
    fn work(&mut self) -> bool {
        let now = self.inner.env.clock.now();
        let (inner, share) = (Arc::clone(&self.inner), Arc::clone(&self.share));
        let actions = {
            let mut machine = share.machine();
            let mut placement = inner.placement();
            self.look(&mut machine);
            for id in self.inner.space.take_freeable(self.log) {
                self.segments.remove(&id);
                self.compared.retain(|(segment, _), _| *segment != id);
                machine.segment_left(id, &mut placement);
                self.inner.progress.notify_waiters();
            }
            if self.full_until.is_some_and(|until| until <= now) {
                machine.retry_placement();
            }
            let actions = machine.step(&mut placement, now, &*self.inner.env.rng);
            self.needed = machine.needed();
            let lacks_space = machine.lacks_space(&placement, now);
            self.inner.space.set_stalled(self.log, lacks_space);
            self.full_until = placement.next_retry(now).map(|after| now + after);
            actions
        };
        let any = !actions.is_empty();
        for action in actions {
            self.execute(action);
        }
        any
    }

    /// Tells the machine what the log has.
    fn look(&mut self, machine: &mut Machine) {
        for segment in self.inner.space.take_new_segments(self.log) {
            machine.opened(segment.id(), segment.kind(), segment.opening_len());
            self.segments.insert(segment.id(), segment);
        }
        for id in machine.growing() {
            let segment = self.segments.get(&id);
            if let Some(segment) = segment.filter(|segment| !segment.is_held_back()) {
                // In this order: the length is final once the segment is closed.
                let closed = segment.is_closed();
                machine.grew(id, segment.appended_len(), closed);
            }
        }
    }

    fn execute(&mut self, action: Action) {
        let space = &self.inner.space;
        match action {
            Action::Write(order) => self.write(&order),
            Action::Record(segment, epoch) => {
                let call = self.record(segment, epoch);
                self.calls.push(call);
            }
            Action::Free(server, segment) => {
                let call = self.free(server, segment);
                self.calls.push(call);
            }
            Action::DigestDurable(head) => {
                space.digest_durable(self.log, head);
                self.inner.progress.notify_waiters();
            }
            Action::Durable(position) => {
                space.advance_durable(self.log, position);
                self.share.waiters.wake(position);
            }
            Action::SideDurable(id) => {
                if let Some(segment) = self.segments.get(&id) {
                    segment.mark_durable();
                }
                self.inner.progress.notify_waiters();
            }
            Action::Release(id) => {
                self.compared.retain(|(segment, _), _| *segment != id);
                if let Some(segment) = self.segments.get(&id) {
                    segment.release_bytes();
                }
            }
            Action::Hold(id) => self.hold(id),
            Action::Roll(head) => {
                // Without memory for a head it is asked for again.
                let rolled = space.roll(self.log);
                tracing::info!(log = %self.log, segment = %head, rolled = rolled.is_ok(), "a backup that failed a replica of the head gets one of the next");
            }
        }
    }

    /// Asks the log to keep a segment's bytes, and tells the machine the answer (REP-12).
    fn hold(&self, id: SegmentId) {
        let Some(segment) = self.segments.get(&id) else {
            return;
        };
        // The length is asked for only once the bytes are held.
        let length = segment.hold_bytes().then(|| segment.appended_len());
        let now = self.inner.env.clock.now();
        let mut machine = self.share.machine();
        machine.held(id, length, &mut self.inner.placement(), now);
    }

    /// The bytes for a write; `None` when the segment was freed.
    fn copy(&mut self, id: SegmentId, range: Range<u32>) -> Option<Bytes> {
        if range.is_empty() {
            return Some(Bytes::new());
        }
        if let Some((last, same, bytes)) = &self.copied
            && *last == id
            && *same == range
        {
            return Some(bytes.clone());
        }
        let mut copy = Buffer::with_capacity(range.len());
        if !self.segments.get(&id)?.copy_into(range.clone(), &mut copy) {
            return None;
        }
        let bytes = copy.freeze();
        self.copied = Some((id, range, bytes.clone()));
        Some(bytes)
    }

    /// The bytes for a write to a replica that is written anew. Every entry is compared with its
    /// checksum, at the latest before the write that makes the replica count (REP-13). `None` also
    /// when memory is corrupt.
    fn copy_anew(&mut self, order: &WriteOrder) -> Option<Bytes> {
        let (id, flight) = (order.segment, order.flight);
        let range = order.offset..flight.end;
        let replica = (id, order.server);
        let compared = self.compared.get(&replica).copied().unwrap_or(0);
        let from = if compared <= range.start { compared } else { 0 };
        let segment = self.segments.get(&id)?;
        let result = match segment.copy_checked(from, range)? {
            // What is certified ends behind an entry.
            Ok((_, next)) if flight.certified == flight.end && next != flight.end => {
                Err(segment.corruption(next, ParseErrorKind::Truncated))
            }
            other => other,
        };
        match result {
            Ok((bytes, next)) => {
                self.compared.insert(replica, next);
                Some(Bytes::from(bytes))
            }
            Err(corruption) => {
                self.inner.space.found_corrupt(&corruption);
                None
            }
        }
    }

    fn write(&mut self, order: &WriteOrder) {
        let (segment, server, flight) = (order.segment, order.server, order.flight);
        let address = self.address_of(server);
        let bytes = if order.anew {
            self.copy_anew(order)
        } else {
            self.copy(segment, order.offset..flight.end)
        };
        let (Some(to), Some(data)) = (address, bytes) else {
            // The next look at the log or the server list shows that nobody wants it any more.
            let (now, later) = (self.inner.env.clock.now(), WriteOutcome::Later(None));
            let mut machine = self.share.machine();
            let write = (segment, server, flight.number);
            machine.written(write, later, &mut self.inner.placement(), now);
            return;
        };
        let options = &self.inner.options;
        let request = WriteReplica {
            cluster: options.cluster,
            master: options.me,
            segment,
            log: self.log,
            side: order.kind == SegmentKind::Side,
            epoch: flight.epoch,
            open: order.open,
            rewriting: flight.rewriting,
            primary: order.primary,
            offset: order.offset,
            certified: flight.certified,
            close: flight.close,
            synced: order.synced,
            needed: self.needed,
            data,
        };
        let limit = options.write_limit;
        let frame = encode(&Header::to(server).waiting(limit), &request);
        let until = self.inner.env.clock.now() + limit;
        let is_of_head = order.kind == SegmentKind::Head && !order.anew;
        let write = is_of_head.then_some((segment, order.offset..flight.end));
        let (frame, span) = match self.share.traced.of_write(write) {
            None => (frame, None),
            Some(context) => self.traced(context, server, frame),
        };
        let sent = Sent {
            segment,
            server,
            to: to.clone(),
            until,
            span,
        };
        self.sent.insert(flight.number, sent);
        self.post(to, frame, flight.number);
    }

    /// The frame of a write that is a part of a trace, and its span.
    fn traced(
        &self,
        context: TraceContext,
        server: ServerId,
        frame: Frame,
    ) -> (Frame, Option<Span>) {
        let mut span = Span::child(context, SpanKind::Client, WriteReplica::OPCODE.name());
        let id = i64::try_from(server.0).unwrap_or(i64::MAX);
        span.note("pluvio.backup", || Value::Number(id));
        let frame = match self.inner.list().active >= TRACED_SINCE {
            true => wrap_traced(&span.context(), &frame),
            false => frame,
        };
        (frame, Some(span))
    }

    /// Sends a request whose answer comes to `answers`.
    fn post(&self, to: Address, frame: Frame, number: u64) {
        let replies: Arc<dyn Replies> = Arc::<Answers>::clone(&self.answers);
        let network = &self.inner.env.network;
        let Some(frame) = network.post(&to, frame, number, &replies) else {
            return;
        };
        // This network offers calls only.
        let (network, limit) = (Arc::clone(network), self.inner.options.write_limit);
        let tasks = &self.inner.env.tasks;
        let core = CoreId(self.log.0 % tasks.cores());
        let _ends_by_itself = tasks.spawn(core, "replica write", async move {
            let outcome = network.call(&to, frame, limit).await;
            replies.replied(number, outcome);
        });
    }

    /// Gives up writes whose time is over. Gives how long the next one has.
    fn time_out(&mut self, machine: &mut Machine, now: Moment) -> Option<Duration> {
        let replies: Arc<dyn Replies> = Arc::<Answers>::clone(&self.answers);
        while let Some(first) = self.sent.first_entry() {
            if first.get().until > now {
                return Some(first.get().until.since(now));
            }
            let (number, mut sent) = first.remove_entry();
            if let Some(span) = &mut sent.span {
                span.fail(|| "no answer in time".to_owned());
            }
            self.inner.env.network.give_up(&sent.to, number, &replies);
            self.inner.suspect(sent.server);
            let write = (sent.segment, sent.server, number);
            let unknown = WriteOutcome::Unknown;
            machine.written(write, unknown, &mut self.inner.placement(), now);
        }
        None
    }

    /// Tells the machine what came of writes.
    fn take_answers(&mut self, now: Moment) {
        let mut came = core::mem::take(&mut self.came);
        self.answers.take(&mut came);
        if !came.is_empty() {
            let share = Arc::clone(&self.share);
            let mut machine = share.machine();
            let mut placement = self.inner.placement();
            for (number, outcome) in came.drain(..) {
                // One that was given up meanwhile may still be answered.
                let Some(mut sent) = self.sent.remove(&number) else {
                    continue;
                };
                let (server, segment) = (sent.server, sent.segment);
                let result = outcome.map_err(RpcError::from);
                let result = result.and_then(|reply| reply_to::<WriteReplica>(&sent.to, reply));
                if let (Some(span), Err(error)) = (&mut sent.span, &result) {
                    span.fail(|| error.to_string());
                }
                if result.is_ok() {
                    let limit = self.inner.options.write_limit;
                    machine.timed(limit.saturating_sub(sent.until.since(now)));
                }
                let outcome = self.inner.outcome(server, segment, result);
                if matches!(outcome, WriteOutcome::Full(_)) && placement.is_news(server, now) {
                    tracing::warn!(%server, %segment, "a backup has no space: its disk is full");
                }
                machine.written((segment, server, number), outcome, &mut placement, now);
            }
        }
        self.came = came;
    }

    fn address_of(&mut self, server: ServerId) -> Option<Address> {
        let list = self.inner.list();
        let (version, addresses) = &mut self.addresses;
        if *version != list.version {
            *version = list.version;
            addresses.clear();
        }
        if let Some(address) = addresses.get(&server) {
            return Some(address.clone());
        }
        let address = Address::from(list.get(server)?.address.as_str());
        addresses.insert(server, address.clone());
        Some(address)
    }

    fn record(&self, segment: SegmentId, epoch: ReplicationEpoch) -> BoxFuture<'static, Ended> {
        let request = SetReplicationEpoch {
            cluster: self.inner.options.cluster,
            server: self.inner.options.me,
            log: self.log,
            segment,
            epoch,
        };
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let done = inner.tell_coordinator(&request).await;
            Ended::Record(segment, epoch, done)
        })
    }

    fn free(&self, server: ServerId, segment: SegmentId) -> BoxFuture<'static, Ended> {
        let request = FreeReplica {
            cluster: self.inner.options.cluster,
            master: self.inner.options.me,
            segment,
        };
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let done = match inner.address_of(server) {
                None => true,
                Some(address) => {
                    let network = &*inner.env.network;
                    let header = Header::to(server);
                    match call(network, &address, header, &request, SMALL_LIMIT).await {
                        Ok(()) => true,
                        // A replica of another cluster's server is none of ours.
                        Err(RpcError::Refused(refusal)) => {
                            refusal.fatal_kind() == Some(FatalKind::WrongCluster)
                        }
                        Err(RpcError::Call(_) | RpcError::BadReply(..)) => false,
                    }
                }
            };
            Ended::Free(server, segment, done)
        })
    }

    /// Waits until something happened.
    async fn wait(&mut self) {
        let now = self.inner.env.clock.now();
        let share = Arc::clone(&self.share);
        let pause = {
            let mut machine = share.machine();
            let next_given_up = self.time_out(&mut machine, now);
            let pause = machine.next_try(now).unwrap_or(IDLE_TICK).min(IDLE_TICK);
            next_given_up.map_or(pause, |next| pause.min(next))
        };
        let full = self.full_until.map_or(pause, |until| until.since(now));
        let at = now + pause.min(full).max(Duration::from_micros(50));
        // An alarm that rings earlier stays set: the task then looks, and waits anew.
        let (_, alarm) = match self.alarm.take() {
            Some(alarm) if alarm.0 <= at => self.alarm.insert(alarm),
            Some(_) | None => self
                .alarm
                .insert((at, self.inner.env.clock.sleep(at.since(now)))),
        };
        let ended = tokio::select! {
            biased;
            Some(ended) = self.calls.next(), if !self.calls.is_empty() => Some(ended),
            () = share.notify.notified() => None,
            () = alarm => {
                self.alarm = None;
                None
            }
        };
        let now = self.inner.env.clock.now();
        self.take_answers(now);
        let mut next = ended;
        while let Some(one) = next {
            let mut machine = share.machine();
            match one {
                Ended::Record(segment, epoch, done) => machine.recorded(segment, epoch, done, now),
                Ended::Free(server, segment, done) => machine.freed(server, segment, done, now),
            }
            next = self.calls.next().now_or_never().flatten();
        }
    }
}

impl Inner {
    /// What an answer to a write means.
    fn outcome(
        &self,
        server: ServerId,
        segment: SegmentId,
        result: Result<(), RpcError>,
    ) -> WriteOutcome {
        let error = match result {
            Ok(()) => return WriteOutcome::Done,
            Err(error) => error,
        };
        match &error {
            RpcError::Call(CallError::Unreachable(..)) => {
                self.suspect(server);
                WriteOutcome::Later(None)
            }
            RpcError::Call(CallError::TooLarge(..)) => {
                tracing::error!(%server, %segment, %error, "the network does not carry our writes");
                WriteOutcome::Later(Some(IDLE_TICK))
            }
            RpcError::Call(_) => {
                self.suspect(server);
                WriteOutcome::Unknown
            }
            RpcError::BadReply(..) => WriteOutcome::Unknown,
            RpcError::Refused(Refusal::Retry {
                why: RetryReason::NoSpace,
                ..
            }) => {
                tracing::debug!(%server, %segment, "no space for a write");
                WriteOutcome::Full(self.env.clock.now() + self.options.full_pause)
            }
            RpcError::Refused(Refusal::Retry { after_us, .. }) => WriteOutcome::Later(Some(
                Duration::from_micros(u64::from(*after_us).clamp(100, 1_000_000)),
            )),
            // Another life answers there; the server list will tell.
            RpcError::Refused(Refusal::Refresh) => WriteOutcome::Later(Some(MEMBERSHIP_PAUSE)),
            RpcError::Refused(Refusal::Fatal {
                kind: FatalKind::Stale | FatalKind::NotInCluster,
                message,
            }) => {
                self.doubt(format!(
                    "the backup on server {server} refuses us: {message}"
                ));
                WriteOutcome::Later(Some(MEMBERSHIP_PAUSE))
            }
            RpcError::Refused(Refusal::Fatal {
                kind: FatalKind::WrongCluster,
                ..
            }) => {
                tracing::warn!(%server, %segment, %error, "another cluster's server answers in place of a backup");
                WriteOutcome::Foreign
            }
            RpcError::Refused(Refusal::Fatal {
                kind: FatalKind::Corrupt,
                ..
            }) => {
                tracing::warn!(%server, %segment, %error, "a backup cannot keep a replica: its disk has failed");
                WriteOutcome::Broken
            }
            RpcError::Refused(Refusal::Fatal { .. } | Refusal::Rejected { .. }) => {
                tracing::warn!(%server, %segment, %error, "a backup cannot keep a replica");
                WriteOutcome::Useless
            }
        }
    }

    /// Records an epoch at the coordinator (REP-5).
    async fn tell_coordinator(&self, request: &SetReplicationEpoch) -> bool {
        let network = &*self.env.network;
        match self
            .options
            .coordinators
            .call(network, request, SMALL_LIMIT)
            .await
        {
            Ok(()) => return true,
            Err(RpcError::Refused(refusal))
                if refusal.fatal_kind() == Some(FatalKind::NotInCluster) =>
            {
                self.doubt(format!("the coordinator refuses us: {refusal}"));
            }
            Err(error) => tracing::info!(%error, "cannot record a replication epoch"),
        }
        false
    }

    pub(crate) fn address_of(&self, server: ServerId) -> Option<Address> {
        self.list()
            .get(server)
            .map(|s| Address::from(s.address.as_str()))
    }
}
