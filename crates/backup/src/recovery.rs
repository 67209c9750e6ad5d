//! The backup's part in the recovery of a crashed master [RAMCloud §7.4-§7.6]:
//! 1. It says what it has.
//! 2. It reads each replica once, and sorts its entries by partition.
//! 3. It hands them to the recovery masters.

use crate::backup::{Backup, Inner};
use crate::buckets::{Buckets, Damage, Router, head_info, sort};
use crate::catalogue::is_visible;
use crate::frame::{Frame, ReplicaKey, Stage};
use crate::options::BackupOptions;
use crate::stats::count;
use bytes::Bytes;
use core::fmt;
use core::time::Duration;
use pluvio_env::buffers::Buffer;
use pluvio_env::{OpenMode, watch};
use pluvio_format::{FRAME_DATA_OFFSET, FrameHeader, SegmentKind, segment_in_frame};
use pluvio_units::{CoreId, RecoveryId, SegmentId, ServerId};
use pluvio_wire::{
    FatalKind, GetRecoveryData, GetRecoveryDataReply, Refusal, ReplicaInfo, RetryReason,
    ServerList, SetPartitions, StartRecovery, StartRecoveryReply,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};

/// The most that a replica, a segment of a digest, a table, and a damaged replica take in a list.
const REPLICA_BYTES: usize = 128;
const SEGMENT_BYTES: usize = 9;
const TABLE_BYTES: usize = 64;
const DAMAGED_BYTES: usize = 512;

/// When to ask again for data whose partitions are not known yet.
const PARTITIONS_AGAIN: Duration = Duration::from_millis(5);

/// What came of reading and sorting a replica.
type Outcome = Result<Arc<Buckets>, Refusal>;
/// Where that is told.
type Reading = watch::Receiver<Option<Outcome>>;

/// The most bytes of a replica in a list.
fn listed_bytes(replica: &ReplicaInfo) -> usize {
    let head = replica.head.as_ref().map_or(0, |head| {
        head.digest.len() * SEGMENT_BYTES + head.tables.len() * TABLE_BYTES
    });
    REPLICA_BYTES + head
}

/// All recoveries, and the buffer of sorted replicas.
pub(crate) struct Recoveries {
    state: Mutex<State>,
    reads: Semaphore,
    buffer_max: u64,
    /// Whoever reads ahead looks again: a replica in the buffer is wanted no more, or an attempt is
    /// over.
    room: Notify,
}

#[derive(Default)]
struct State {
    crashed: BTreeMap<ServerId, Attempt>,
    buffer: BTreeMap<ReplicaKey, Sorted>,
    /// Bytes of the buffer's ready entries.
    bytes: u64,
    clock: u64,
}

struct Attempt {
    plan: Plan,
    /// Which partitions have fetched their part of a segment, also when it is in the buffer no
    /// more.
    fetched: BTreeMap<SegmentId, Vec<bool>>,
}

impl Attempt {
    /// Whether a partition has yet to fetch its part.
    fn wants(&self, segment: SegmentId) -> bool {
        let fetched = self.fetched.get(&segment);
        !fetched.is_some_and(|partitions| partitions.iter().all(|fetched| *fetched))
    }

    fn fetches(&mut self, segment: SegmentId, partition: usize) {
        let partitions = self.plan.router.partitions();
        let fetched = self.fetched.entry(segment);
        fetched.or_insert_with(|| vec![false; partitions])[partition] = true;
    }
}

#[derive(Clone)]
struct Plan {
    recovery: RecoveryId,
    router: Arc<Router>,
    /// How much of the last segments belongs to the log (COORD-13).
    ends: Arc<BTreeMap<SegmentId, u32>>,
}

struct Sorted {
    recovery: RecoveryId,
    outcome: Reading,
    /// Zero until it is ready.
    bytes: u64,
    last_used: u64,
}

impl Recoveries {
    pub(crate) fn new(options: &BackupOptions) -> Self {
        Self {
            state: Mutex::default(),
            reads: Semaphore::new(options.recovery_reads_max.max(1)),
            buffer_max: options.recovery_buffer_bytes,
            room: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more replica may be read.
    async fn permit(&self) -> SemaphorePermit<'_> {
        let permit = self.reads.acquire().await;
        permit.expect("the semaphore is never closed")
    }

    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// A partition gets its part of a replica.
    fn fetched(&self, key: ReplicaKey, plan: &Plan, partition: usize) {
        let mut state = self.lock();
        let attempt = state.crashed.get_mut(&key.master);
        let Some(attempt) = attempt.filter(|a| a.plan.recovery == plan.recovery) else {
            return;
        };
        attempt.fetches(key.segment, partition);
        let wanted = attempt.wants(key.segment);
        state.clock += 1;
        let now = state.clock;
        if let Some(sorted) = state.buffer.get_mut(&key) {
            sorted.last_used = now;
        }
        drop(state);
        if !wanted {
            self.room.notify_waiters();
        }
    }

    /// Waits until a replica of so many bytes fits the buffer beside all that is wanted there.
    /// `None` when every partition has it, when it fits no buffer, or when the attempt is over.
    async fn room_for(&self, key: ReplicaKey, recovery: RecoveryId, bytes: u64) -> Option<Plan> {
        loop {
            // Registered before the look, so that nothing that happens after it is missed.
            let changed = self.room.notified();
            {
                let state = self.lock();
                let attempt = state.crashed.get(&key.master)?;
                if attempt.plan.recovery != recovery
                    || !attempt.wants(key.segment)
                    || bytes > self.buffer_max
                {
                    return None;
                }
                if state.wanted_bytes() + bytes <= self.buffer_max {
                    return Some(attempt.plan.clone());
                }
            }
            changed.await;
        }
    }

    /// Forgets recoveries of servers that are over.
    pub(crate) fn keep_listed(&self, list: &ServerList) {
        let mut state = self.lock();
        state.crashed.retain(|id, _| list.get(*id).is_some());
        let gone: Vec<_> = state
            .buffer
            .keys()
            .filter(|k| list.get(k.master).is_none())
            .copied()
            .collect();
        for key in gone {
            state.remove(key);
        }
        drop(state);
        self.room.notify_waiters();
    }
}

impl State {
    fn remove(&mut self, key: ReplicaKey) {
        if let Some(sorted) = self.buffer.remove(&key) {
            self.bytes -= sorted.bytes;
        }
    }

    /// Replicas that this attempt has in the buffer, ready or being read.
    ///
    /// # Errors
    /// `Stale` when a later attempt has its own there: the attempt is over.
    fn known(&self, key: ReplicaKey, recovery: RecoveryId) -> Result<Option<Reading>, Refusal> {
        match self.buffer.get(&key) {
            Some(sorted) if sorted.recovery == recovery => Ok(Some(sorted.outcome.clone())),
            Some(sorted) if sorted.recovery > recovery => Err(over(recovery, sorted.recovery)),
            Some(_) | None => Ok(None),
        }
    }

    /// A read has begun. What an older attempt left there since goes.
    fn begin(&mut self, key: ReplicaKey, recovery: RecoveryId, outcome: Reading) {
        self.remove(key);
        self.clock += 1;
        let sorted = Sorted {
            recovery,
            outcome,
            bytes: 0,
            last_used: self.clock,
        };
        self.buffer.insert(key, sorted);
    }

    /// A read has ended; without `bytes` it has failed. Gives whether the buffer keeps what came of
    /// it.
    fn end(&mut self, key: ReplicaKey, recovery: RecoveryId, bytes: Option<u64>) -> bool {
        let sorted = self.buffer.get_mut(&key);
        let Some(sorted) = sorted.filter(|s| s.recovery == recovery) else {
            return false;
        };
        let Some(bytes) = bytes else {
            self.remove(key);
            return false;
        };
        // Not zero when there was another read of the same.
        let former = std::mem::replace(&mut sorted.bytes, bytes);
        self.bytes = self.bytes - former + bytes;
        true
    }

    /// Whether a partition has yet to fetch its part of a replica.
    fn wants(&self, key: ReplicaKey) -> bool {
        let attempt = self.crashed.get(&key.master);
        attempt.is_some_and(|attempt| attempt.wants(key.segment))
    }

    /// Bytes of the buffer that some partition has yet to fetch.
    fn wanted_bytes(&self) -> u64 {
        let wanted = self.buffer.iter().filter(|(key, _)| self.wants(**key));
        wanted.map(|(_, sorted)| sorted.bytes).sum()
    }

    /// Throws out what was used longest ago, first of what every partition has fetched, until
    /// the buffer is within its limit (BACKUP-9). Gives how many were still wanted.
    fn shrink(&mut self, max: u64) -> u64 {
        let mut evicted = 0;
        while self.bytes > max {
            let ready = self.buffer.iter().filter(|(_, s)| s.bytes > 0);
            let victim = ready
                .map(|(key, s)| (self.wants(*key), s.last_used, *key))
                .min();
            let Some((wanted, _, key)) = victim else {
                return evicted;
            };
            self.remove(key);
            evicted += u64::from(wanted);
        }
        evicted
    }
}

impl Backup {
    /// Lists the replicas of a crashed master, or a page of them, and refuses its writes from now
    /// on (BACKUP-4). Open heads carry what their first entries say.
    ///
    /// # Errors
    /// None of its own; damaged replicas are listed as such.
    pub async fn start_recovery(
        &self,
        request: StartRecovery,
    ) -> Result<StartRecoveryReply, Refusal> {
        self.0.catalogue().fence(request.crashed);
        let reply = self.offer(&request, self.0.options.list_bytes_max).await;
        let (usable, damaged) = (reply.replicas.len(), reply.damaged.len());
        tracing::info!(crashed = %request.crashed, usable, damaged, "listed the replicas of a crashed server");
        Ok(reply)
    }

    /// What it would list if `master` had crashed. By itself it is for checkers: the master may go
    /// on writing meanwhile.
    pub async fn would_offer(&self, master: ServerId) -> StartRecoveryReply {
        self.offer(&StartRecovery::of(master), usize::MAX).await
    }

    /// Replicas of about `bytes_max` as they are listed; one at least.
    async fn offer(&self, request: &StartRecovery, bytes_max: usize) -> StartRecoveryReply {
        let master = request.crashed;
        let (_, rewrites) = self.0.catalogue().frames_of(master);
        // Whatever is being completed is complete, or, behind a fence, never will be, once we have
        // had its turn.
        for frame in rewrites {
            drop(frame.turn().await);
        }
        let (frames, _) = self.0.catalogue().frames_of(master);
        let mut reply = StartRecoveryReply::default();
        let (mut listed, mut bytes) = (0, 0);
        for frame in frames.into_iter().filter(|f| f.key.segment >= request.from) {
            if bytes >= bytes_max {
                pluvio_units::mark("backup-lists-by-pages");
                reply.next = Some(frame.key.segment);
                break;
            }
            self.0.describe(&frame, &mut reply).await;
            let news = reply.replicas.get(listed..).unwrap_or_default();
            bytes += news.iter().map(listed_bytes).sum::<usize>();
            bytes += DAMAGED_BYTES * usize::from(news.is_empty());
            listed = reply.replicas.len();
        }
        reply
    }

    /// How the crashed master's tablets are partitioned. Begins to read primary replicas, whenever
    /// there is room in the buffer. `core` is where the request arrived.
    ///
    /// # Errors
    /// `Stale` when a later attempt is known already.
    pub async fn set_partitions(
        &self,
        core: CoreId,
        request: SetPartitions,
    ) -> Result<(), Refusal> {
        self.0.catalogue().fence(request.crashed);
        {
            let mut state = self.0.recoveries.lock();
            match state.crashed.get(&request.crashed) {
                Some(Attempt { plan, .. }) if plan.recovery == request.recovery => return Ok(()),
                Some(Attempt { plan, .. }) if plan.recovery > request.recovery => {
                    return Err(over(request.recovery, plan.recovery));
                }
                Some(_) | None => {}
            }
            let old: Vec<_> = state
                .buffer
                .keys()
                .filter(|k| k.master == request.crashed)
                .copied()
                .collect();
            for key in old {
                state.remove(key);
            }
            let ends = request.ends.iter();
            let plan = Plan {
                recovery: request.recovery,
                router: Arc::new(Router::new(&request.partitions)),
                ends: Arc::new(ends.map(|end| (end.segment, end.length)).collect()),
            };
            let fetched = BTreeMap::new();
            let attempt = Attempt { plan, fetched };
            state.crashed.insert(request.crashed, attempt);
        }
        self.0.recoveries.room.notify_waiters();
        let me = self.clone();
        self.0
            .env
            .tasks
            .spawn(core, "recovery read ahead", async move {
                me.read_ahead(core, &request).await
            });
        Ok(())
    }

    /// The entries of one segment that belong to one partition (BACKUP-7, BACKUP-8). `core` is
    /// where the request arrived.
    ///
    /// # Errors
    /// - `Retry`: `NotReady` when the partitions of this attempt are not known yet.
    /// - `Fatal`: `Stale` (the attempt is over), `NotFound` (no such replica or partition). Or
    ///   `Corrupt` (the replica is damaged: use another one), `Other` (the disk failed; a later try
    ///   may succeed).
    pub async fn get_recovery_data(
        &self,
        core: CoreId,
        request: GetRecoveryData,
    ) -> Result<GetRecoveryDataReply, Refusal> {
        let key = ReplicaKey {
            master: request.crashed,
            segment: request.segment,
        };
        let plan = self
            .0
            .recoveries
            .lock()
            .crashed
            .get(&request.crashed)
            .map(|attempt| attempt.plan.clone());
        let plan = match plan {
            Some(plan) if plan.recovery == request.recovery => plan,
            Some(plan) if plan.recovery > request.recovery => {
                return Err(over(request.recovery, plan.recovery));
            }
            Some(_) | None => return Err(Refusal::retry(PARTITIONS_AGAIN, RetryReason::NotReady)),
        };
        let partition = request.partition as usize;
        if partition >= plan.router.partitions() {
            return Err(Refusal::fatal(
                FatalKind::NotFound,
                format!("there is no partition {partition}"),
            ));
        }
        let buckets = self.sorted(core, key, &plan).await?;
        count(&self.0.counters.recovery_answers, 1);
        self.0.recoveries.fetched(key, &plan, partition);
        let bucket = &buckets.0[partition];
        Ok(GetRecoveryDataReply {
            entries: bucket.entries,
            data: bucket.data.clone(),
        })
    }

    /// The sorted replica: from the buffer, from a read under way, or from a new one.
    async fn sorted(&self, core: CoreId, key: ReplicaKey, plan: &Plan) -> Outcome {
        let mut outcome = self.start_sorting(core, key, plan)?;
        // Without a result: whoever should give it has ended.
        let _ended = outcome.wait_for(Option::is_some).await;
        let ready = outcome.borrow().clone();
        ready.unwrap_or_else(|| Err(Refusal::retry(PARTITIONS_AGAIN, RetryReason::NotReady)))
    }

    fn start_sorting(
        &self,
        core: CoreId,
        key: ReplicaKey,
        plan: &Plan,
    ) -> Result<Reading, Refusal> {
        let mut state = self.0.recoveries.lock();
        if let Some(outcome) = state.known(key, plan.recovery)? {
            return Ok(outcome);
        }
        let (send, outcome) = watch::channel(None);
        state.begin(key, plan.recovery, outcome.clone());
        drop(state);
        let (me, plan) = (self.clone(), plan.clone());
        self.0.env.tasks.spawn(core, "recovery read", async move {
            let result = me.0.read_and_sort(key, &plan).await;
            me.0.keep(key, plan.recovery, &result);
            // Nobody may be waiting any more.
            send.send_replace(Some(result));
        });
        Ok(outcome)
    }

    /// Reads primary replicas, newest first, which is the order in which recovery masters ask for
    /// them. Waits for room in the buffer: never at the expense of something that is wanted.
    async fn read_ahead(&self, core: CoreId, request: &SetPartitions) {
        let (frames, _) = self.0.catalogue().frames_of(request.crashed);
        for frame in frames.iter().rev() {
            let state = frame.state();
            if !state.primary || !is_visible(&state) {
                continue;
            }
            let bytes = u64::from(state.certified);
            let recoveries = &self.0.recoveries;
            let room = recoveries.room_for(frame.key, request.recovery, bytes);
            if let Some(plan) = room.await {
                // A failure is told to whoever fetches it.
                drop(self.sorted(core, frame.key, &plan).await);
            }
        }
    }
}

fn over(asked: RecoveryId, current: RecoveryId) -> Refusal {
    Refusal::fatal(
        FatalKind::Stale,
        format!("recovery {asked} is over, {current} is under way"),
    )
}

/// Why a replica was not read.
#[derive(Debug)]
enum Unread {
    /// It will be no better later: no master writes to it any more.
    Damaged(Damage),
    /// Perhaps the disk recovers: the frame is not given up.
    NotNow(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(damage) => damage.fmt(f),
            Self::NotNow(why) => f.write_str(why),
        }
    }
}

impl Inner {
    async fn describe(&self, frame: &Arc<Frame>, reply: &mut StartRecoveryReply) {
        drop(frame.turn().await);
        let state = frame.state();
        let segment = frame.key.segment;
        match &state.stage {
            Stage::Usable => {}
            Stage::Damaged(why) => return reply.damaged.push((segment, why.clone())),
            Stage::Creating | Stage::Rewriting | Stage::Gone => return,
        }
        if !is_visible(&state) {
            return;
        }
        let mut head = None;
        if state.kind == SegmentKind::Head && !state.closed {
            let parsed = self.read(frame).await.and_then(|(image, header)| {
                let boot = frame.home.env.disk.boot();
                let doubt = (state.copies(boot), state.may_lack(boot));
                let info = head_info(&image, &header, self.options.seglet_bytes, doubt);
                info.map_err(Unread::Damaged)
            });
            match parsed {
                Ok(info) => head = Some(info),
                Err(why) => {
                    tracing::warn!(%segment, master = %frame.key.master, %why, "an open head cannot be read");
                    count(&self.counters.damaged, 1);
                    return reply.damaged.push((segment, why.to_string()));
                }
            }
        }
        reply.replicas.push(ReplicaInfo {
            segment,
            log: state.log,
            side: state.kind == SegmentKind::Side,
            epoch: state.epoch,
            closed: state.closed,
            primary: state.primary,
            length: state.certified,
            head,
        });
    }

    /// The certified bytes of a replica of a fenced master.
    async fn read(&self, frame: &Frame) -> Result<(Bytes, FrameHeader), Unread> {
        let state = frame.state();
        let cluster = self
            .catalogue()
            .cluster
            .ok_or_else(|| Unread::NotNow("of no known cluster".to_owned()))?;
        let header = state.header(cluster, frame.key);
        let length = state.certified as usize;
        let there = match state.in_line_from {
            None => length,
            Some(_) => state.end as usize,
        };
        let home = &frame.home;
        let read = async {
            let _under_way = home.under_way();
            let path = frame.key.path();
            let file = home.env.disk.open(&path, OpenMode::Existing).await?;
            file.read_at(FRAME_DATA_OFFSET as u64, there).await
        };
        let read = home.unless_left(read).await;
        let read = read.ok_or_else(|| Unread::NotNow("its data directory was left".to_owned()))?;
        let mut image = read.map_err(|error| {
            self.disk_failed(home);
            Unread::NotNow(error.to_string())
        })?;
        if state.in_line_from.is_some() {
            image = self.without_certificates(header, image, length).await?;
        }
        if image.len() < length {
            let why = format!("has {} bytes, {length} are certified", image.len());
            return Err(Unread::Damaged(Damage(why)));
        }
        Ok((image, header))
    }

    /// The bytes of the segment. Copied outside the event loops (rule D).
    async fn without_certificates(
        &self,
        header: FrameHeader,
        area: Bytes,
        length: usize,
    ) -> Result<Bytes, Unread> {
        let (done, wait) = oneshot::channel();
        let work = Box::new(move || {
            let mut image = Buffer::with_capacity(length);
            let put = |bytes: &[u8]| image.extend_from_slice(bytes);
            let whole = segment_in_frame(&header, &area, length, put);
            drop(done.send(whole.map(|()| image.freeze())));
        });
        self.env.tasks.run_blocking(work).await;
        let image = wait.await.ok().flatten();
        image.ok_or_else(|| Unread::Damaged(Damage("a certificate in line is damaged".to_owned())))
    }

    async fn read_and_sort(&self, key: ReplicaKey, plan: &Plan) -> Outcome {
        let _permit = self.recoveries.permit().await;
        let frame = self.readable(key).await?;
        count(&self.counters.recovery_reads, 1);
        let sorted = match self.read(&frame).await {
            Ok((mut image, header)) => {
                if let Some(end) = plan.ends.get(&key.segment).map(|end| *end as usize) {
                    if image.len() < end {
                        return Err(missing(key));
                    }
                    if image.len() > end {
                        pluvio_units::mark("backup-cuts-at-end-of-log");
                    }
                    image.truncate(end);
                }
                let router = Arc::clone(&plan.router);
                let sorted = self.sort_elsewhere(image, header, router).await;
                sorted.map_err(Unread::Damaged)
            }
            Err(why) => Err(why),
        };
        let sorted = sorted.map(Arc::new);
        sorted.map_err(|why| self.unread(&frame, why))
    }

    /// The bytes of a replica, up to `length`, that another backup is to keep. They are checked
    /// entry by entry, as recovery data is (BACKUP-7).
    pub(crate) async fn read_whole(
        &self,
        key: ReplicaKey,
        length: usize,
    ) -> Result<Bytes, Refusal> {
        let _permit = self.recoveries.permit().await;
        let frame = self.readable(key).await?;
        let (mut image, header) = match self.read(&frame).await {
            Ok(read) => read,
            Err(why) => return Err(self.unread(&frame, why)),
        };
        if image.len() < length {
            return Err(missing(key));
        }
        let nobody = Arc::new(Router::new(&[]));
        let sorted = self.sort_elsewhere(image.clone(), header, nobody).await;
        sorted.map_err(|damage| self.unread(&frame, Unread::Damaged(damage)))?;
        image.truncate(length);
        Ok(image)
    }

    /// The frame of a replica that may be read, once nothing is under way there.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`.
    async fn readable(&self, key: ReplicaKey) -> Result<Arc<Frame>, Refusal> {
        let frame = self.catalogue().frames.get(&key).cloned();
        let frame = frame.ok_or_else(|| missing(key))?;
        drop(frame.turn().await);
        let state = frame.state();
        match &state.stage {
            Stage::Damaged(why) => Err(corrupt(key.segment, why)),
            Stage::Creating | Stage::Rewriting | Stage::Usable | Stage::Gone
                if !is_visible(&state) =>
            {
                Err(missing(key))
            }
            Stage::Creating | Stage::Rewriting | Stage::Usable | Stage::Gone => Ok(frame),
        }
    }

    /// The refusal of whoever wanted what was not read. A damaged frame is given up.
    fn unread(&self, frame: &Frame, why: Unread) -> Refusal {
        let ReplicaKey { master, segment } = frame.key;
        match why {
            Unread::NotNow(why) => Refusal::fatal(
                FatalKind::Other,
                format!("segment {segment} cannot be read: {why}"),
            ),
            Unread::Damaged(damage) => {
                tracing::warn!(%segment, %master, %damage, "a replica is damaged");
                pluvio_units::mark("backup-replica-damaged");
                self.damaged(frame, damage.0.clone());
                corrupt(segment, &damage.0)
            }
        }
    }

    /// Sorts outside the event loops: up to 8 MiB of checksums are too long for them (rule D).
    async fn sort_elsewhere(
        &self,
        image: Bytes,
        header: FrameHeader,
        router: Arc<Router>,
    ) -> Result<Buckets, Damage> {
        let (done, wait) = oneshot::channel();
        let seglet_bytes = self.options.seglet_bytes;
        let work = Box::new(move || drop(done.send(sort(&image, &header, &router, seglet_bytes))));
        self.env.tasks.run_blocking(work).await;
        wait.await
            .unwrap_or_else(|_| Err(Damage("sorting it was given up".to_owned())))
    }

    /// Accounts for a finished read, and makes room. Failures are not kept: the next one who asks
    /// tries again.
    fn keep(&self, key: ReplicaKey, recovery: RecoveryId, outcome: &Outcome) {
        let mut state = self.recoveries.lock();
        // An empty one has a size too, or it would never be thrown out.
        let bytes = outcome.as_ref().ok().map(|buckets| buckets.bytes() + 1);
        if state.end(key, recovery, bytes) {
            let evicted = state.shrink(self.recoveries.buffer_max);
            drop(state);
            count(&self.counters.recovery_evicted, evicted);
        }
    }
}

fn corrupt(segment: SegmentId, why: &str) -> Refusal {
    let message = format!("the replica of segment {segment} is damaged: {why}");
    Refusal::fatal(FatalKind::Corrupt, message)
}

fn missing(key: ReplicaKey) -> Refusal {
    let ReplicaKey { master, segment } = key;
    let message = format!("no replica of segment {segment} of server {master}");
    Refusal::fatal(FatalKind::NotFound, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ReplicaKey = ReplicaKey {
        master: ServerId(1),
        segment: SegmentId(1),
    };
    const OLD: RecoveryId = RecoveryId(1);
    const NEW: RecoveryId = RecoveryId(2);

    fn begin(state: &mut State, recovery: RecoveryId) {
        let (_send, outcome) = watch::channel(None);
        state.begin(KEY, recovery, outcome);
    }

    // shows: BACKUP-9
    #[test]
    fn two_reads_of_a_replica_are_counted_once() {
        let mut state = State::default();
        begin(&mut state, NEW);
        begin(&mut state, NEW);
        assert!(state.end(KEY, NEW, Some(100)));
        assert!(state.end(KEY, NEW, Some(70)));
        assert_eq!(state.bytes, 70);
        assert!(!state.end(KEY, NEW, None));
        assert_eq!((state.bytes, state.buffer.len()), (0, 0));
    }

    #[test]
    fn an_attempt_that_is_over_leaves_what_a_later_one_reads() {
        let mut state = State::default();
        begin(&mut state, OLD);
        assert!(matches!(state.known(KEY, OLD), Ok(Some(_))));
        assert!(matches!(state.known(KEY, NEW), Ok(None)));
        begin(&mut state, NEW);
        let refusal = state.known(KEY, OLD).map(|_| ()).unwrap_err();
        assert_eq!(refusal.fatal_kind(), Some(FatalKind::Stale));
        assert!(!state.end(KEY, OLD, Some(100)), "it is not kept");
        assert!(state.end(KEY, NEW, Some(100)));
        assert_eq!(state.bytes, 100);
    }
}
