//! The replay that recovery and migration share.
//!
//! 1. Entries are replayed into a side log.
//! 2. The side log joins this master's log.
//! 3. The coordinator says whether it stays.
//!
//! - REC-3: a replay that the coordinator rejects leaves nothing behind. The side log's segments
//!   are dropped, and the tablets can be taken again only after a digest without them is durable.
//!   Otherwise a later recovery of this master could bring back objects that were deleted elsewhere
//!   meanwhile.
//! - REC-4: the cleaner leaves the committed segments alone until the coordinator has decided.
//!   Copies that it had made of their entries would stay, against REC-3.
//! - JOIN-1: segment ids divide the stays of a tablet that comes back. Entries of its new stay lie
//!   in segments with at least the ids of the heads that were opened before it came
//!   ([`Master::log_of_tablets_begins`]). Entries of former stays lie in segments with lower ids.
//!
//!   JOIN-1 holds, because before a tablet can come back, the operations of a former stay have
//!   ended (TAB-2). Every map is waited for under which one can have begun. Its objects are out of
//!   the index by then, so nobody appends for it any more. A copy of such an object by the cleaner
//!   stays only if the index pointed to the object until the copy was there. So the segment of the
//!   copy was opened before.

use crate::cancel::Cancellation;
use crate::master::Master;
use crate::tablets::{TabletPhase, until_gone};
use bytes::Bytes;
use futures_util::future::{Either, select};
use pluvio_env::{Moment, timeout};
use pluvio_log::{CommitError, SideLog};
use pluvio_store::{EngineError, EngineTable, Replay, ReplayError};
use pluvio_units::{HashRange, LogId, SegmentId};
use pluvio_wire::{FatalKind, Refusal, Request, RetryReason, RpcError};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pause before memory is asked for again.
pub(crate) const MEMORY_PAUSE: Duration = Duration::from_millis(5);

/// Pause between reports while the coordinator does not answer.
const REPORT_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait for the coordinator's answer to a report.
const REPORT_LIMIT: Duration = Duration::from_secs(2);

/// A replay that is stepped outside the event loop.
#[derive(Clone)]
pub(crate) struct SharedReplay(Arc<Mutex<Option<Replay>>>);

impl SharedReplay {
    pub(crate) fn new(replay: Replay) -> Self {
        Self(Arc::new(Mutex::new(Some(replay))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Replay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the replay back after its last step.
    ///
    /// # Errors
    /// It was taken before.
    pub(crate) fn take(&self) -> Result<Replay, ReplayFailure> {
        let replay = self.lock().take();
        replay.ok_or_else(|| ReplayFailure::Other("the replay was lost".into()))
    }
}

/// What is done with a slice of entries.
pub(crate) type Step = fn(&mut Replay, &[u8], Duration) -> Result<(), ReplayError>;

/// Why a replay ended early.
pub(crate) enum ReplayFailure {
    /// Memory was full for too long, or cannot be enough.
    Full(String),
    /// Anything else.
    Other(String),
}

impl ReplayFailure {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Full(text) | Self::Other(text) => text,
        }
    }
}

/// A side log that is durable and part of the log.
pub(crate) struct Joined {
    log: LogId,
    segments: Vec<SegmentId>,
}

/// Does `work`, and something else beside it, which is dropped when the work is done.
async fn beside<T>(work: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    match select(pin!(work), pin!(other)).await {
        Either::Left((done, _)) => done,
        Either::Right(((), work)) => work.await,
    }
}

impl Master {
    /// Where this master's log of tablets that are about to come begins (JOIN-1, MIG-6): 0 unless
    /// one of them was here before.
    pub(crate) async fn log_of_tablets_begins(
        &self,
        tablets: &[(Arc<EngineTable>, HashRange)],
        cancellation: &Cancellation,
    ) -> Result<SegmentId, String> {
        let was_here = |(table, range): &(Arc<EngineTable>, HashRange)| {
            self.leaving.were_here(table.id(), *range)
        };
        if !tablets.iter().any(was_here) {
            return Ok(SegmentId(0));
        }
        let space = Arc::clone(self.store().space());
        let mut begin = SegmentId(u64::MAX);
        for log in space.logs() {
            let give_up = self.env.clock.now() + self.recovery_options.patience;
            let head = loop {
                cancellation.check()?;
                match space.roll(log) {
                    Ok(position) => break position.segment,
                    Err(error) if self.env.clock.now() >= give_up => return Err(error.to_string()),
                    Err(_) => self.env.clock.sleep(MEMORY_PAUSE).await,
                }
            };
            begin = begin.min(head);
        }
        Ok(begin)
    }

    /// Replays entries outside the event loop: that takes longer than other requests should wait.
    pub(crate) async fn replay_slice(
        &self,
        cancellation: &Cancellation,
        replay: &SharedReplay,
        data: Bytes,
        patience: Duration,
        step: Step,
    ) -> Result<(), ReplayFailure> {
        let give_up = self.env.clock.now() + patience;
        loop {
            cancellation.check().map_err(ReplayFailure::Other)?;
            let (work, data) = (replay.clone(), data.clone());
            let (now, space) = (self.monotonic(), Arc::clone(self.store().space()));
            let outcome = self
                .elsewhere(move || {
                    let mut replay = work.lock();
                    let replay = replay.as_mut()?;
                    let outcome = step(replay, &data, now);
                    // Bit by bit: nobody serves the tablets while the end is compared.
                    if let Err(corruption) = replay.compare_durable() {
                        space.found_corrupt(&corruption);
                        return None;
                    }
                    Some(outcome)
                })
                .await;
            // Entries that were not replayed must never pass for replayed.
            match outcome.flatten() {
                Some(Ok(())) => return Ok(()),
                // Replaying the same entries again changes nothing (REPLAY-1).
                Some(Err(ReplayError::Engine(EngineError::Full { .. }))) => {
                    if self.env.clock.now() >= give_up {
                        // The error tells when to try again, which is over.
                        return Err(ReplayFailure::Full(RetryReason::MemoryFull.to_string()));
                    }
                    self.env.clock.sleep(MEMORY_PAUSE).await;
                }
                // Waiting does not help: the keys stay as many as they are.
                Some(Err(error @ ReplayError::SurveyFull(_))) => {
                    return Err(ReplayFailure::Full(error.to_string()));
                }
                Some(Err(error)) => return Err(ReplayFailure::Other(error.to_string())),
                None => return Err(ReplayFailure::Other("the replay was given up".into())),
            }
        }
    }

    /// Ends a replay and joins the side log to the log: durable when this ends. After an error
    /// nothing is left. It is an error when the replicas or the memory for a head take longer than
    /// the limit. It is one, too, when the work was cancelled before they were there. A log that
    /// has joined is not taken back here: for the replicas of its digest there is no limit.
    ///
    /// `meanwhile` begins when everything is in memory and nothing is durable yet. It is dropped
    /// when the replicas are there.
    pub(crate) async fn join(
        &self,
        log: LogId,
        replay: Replay,
        tablets: &[(Arc<EngineTable>, HashRange)],
        cancellation: &Cancellation,
        limit: Option<Duration>,
        meanwhile: impl Future<Output = ()>,
    ) -> Result<Joined, String> {
        let horizon = replay.horizon();
        let side = self.close(log, replay).await?;
        let give_up = limit.map(|limit| self.env.clock.now() + limit);
        let durable = async {
            let durable = self.side_log_durable(&side);
            let Some(limit) = limit else {
                durable.await;
                return Ok(());
            };
            timeout(&*self.env.clock, limit, durable)
                .await
                .map_err(|_| format!("it has not enough replicas after {limit:?}"))
        };
        let durable = cancellation.unless_cancelled(beside(durable, meanwhile));
        let durable = durable.await.flatten();
        if let Err(why) = durable {
            self.abort(side, tablets).await;
            return Err(why);
        }
        let side = self.compare(side).await?;
        let joined = self.commit(side, tablets, cancellation, give_up).await?;
        // The head of the commit records it, and is durable (EXPIRY-2).
        self.store().go_on_from(horizon);
        Ok(joined)
    }

    /// Leaves nothing of what was replayed and is in no digest.
    async fn abort(&self, side: SideLog, tablets: &[(Arc<EngineTable>, HashRange)]) {
        self.end_reads(tablets).await;
        for (table, range) in tablets {
            self.forget(table, *range).await;
        }
        side.abort();
    }

    /// Answers no more reads of tablets that are not durable here. No read of them is under way
    /// when this ends (REC-7).
    async fn end_reads(&self, tablets: &[(Arc<EngineTable>, HashRange)]) {
        let (from, to) = (&[TabletPhase::Standing], TabletPhase::Recovering);
        for (table, range) in tablets {
            let Some(mut old) = self.tablets().shift(table.id(), *range, from, to) else {
                continue;
            };
            pluvio_units::mark("recovery-reads-end");
            until_gone(&*self.env.clock, || old.is_gone()).await;
        }
        for (table, range) in tablets {
            self.store().expiry().stand_no_more(table.id(), *range);
        }
    }

    /// Checks that the replicas have the right bytes of the side log.
    async fn compare(&self, side: SideLog) -> Result<SideLog, String> {
        let mut side = side;
        let compared = self.elsewhere(move || (side.compare_rest(), side));
        match compared.await {
            Some((Ok(()), side)) => Ok(side),
            Some((Err(corruption), _side)) => {
                self.store().space().found_corrupt(&corruption);
                Err(corruption.to_string())
            }
            None => Err("the process is stopping".to_owned()),
        }
    }

    async fn close(&self, log: LogId, replay: Replay) -> Result<SideLog, String> {
        let closed = self.elsewhere(move || replay.finish()).await;
        let (mut side, _) = closed.ok_or("the process is stopping")?;
        debug_assert_eq!(side.log(), log);
        // REC-4.
        side.hold();
        Ok(side)
    }

    async fn side_log_durable(&self, side: &SideLog) {
        if self.is_replicated() {
            let ids: Vec<SegmentId> = side.segments().iter().map(|s| s.id()).collect();
            self.replication
                .side_segments_durable(side.log(), &ids)
                .await;
            // MASTER-3.
            self.replication.opened().await;
        }
    }

    /// Joins the side log to the log; waits until that is durable. Leaves nothing when it cannot
    /// join until `give_up`, or nobody wants it any more.
    async fn commit(
        &self,
        mut side: SideLog,
        tablets: &[(Arc<EngineTable>, HashRange)],
        cancellation: &Cancellation,
        give_up: Option<Moment>,
    ) -> Result<Joined, String> {
        let log = side.log();
        loop {
            let refused = match side.commit() {
                Ok(appended) => {
                    let segments = self.durable(appended).await.into_value();
                    return Ok(Joined { log, segments });
                }
                Err(refused) => refused,
            };
            side = refused.side_log;
            let (pause, why) = match refused.error {
                // The error tells when to try again, which is over if this is told.
                CommitError::Full { retry_after } => {
                    (retry_after, RetryReason::MemoryFull.to_string())
                }
                error @ CommitError::NotDurable(_) => (MEMORY_PAUSE, error.to_string()),
            };
            let is_over = give_up.is_some_and(|moment| self.env.clock.now() >= moment);
            let goes_on = if is_over {
                Err(why)
            } else {
                cancellation.check()
            };
            if let Err(why) = goes_on {
                self.abort(side, tablets).await;
                return Err(why);
            }
            self.env.clock.sleep(pause).await;
        }
    }

    /// Tells the coordinator that a recovery or a migration has ended here, however long that
    /// takes, and gives its answer. `None` when there is none, because this master is no member any
    /// more. It may own the tablets all the same then, and has to leave its log as it is (REC-6).
    /// After any other refusal it asks again.
    pub(crate) async fn tell_end<R: Request + Sync>(&self, report: &R) -> Option<R::Reply> {
        let what = R::OPCODE.name();
        loop {
            let network = &*self.env.network;
            let answer = self.coordinators.call(network, report, REPORT_LIMIT).await;
            let error = match answer {
                Ok(reply) => return Some(reply),
                Err(error) => error,
            };
            match &error {
                RpcError::Refused(refusal)
                    if refusal.fatal_kind() == Some(FatalKind::NotInCluster) =>
                {
                    tracing::info!(what, %error, "the coordinator refuses a report: this is no member");
                    return None;
                }
                RpcError::Refused(Refusal::Fatal { .. }) => {
                    tracing::error!(what, %error, "the coordinator refuses a report; trying again");
                }
                RpcError::Refused(_) | RpcError::Call(_) | RpcError::BadReply(..) => {
                    tracing::info!(what, %error, "the coordinator cannot be told that something ended; trying again");
                }
            }
            self.env.clock.sleep(REPORT_PAUSE).await;
        }
    }

    /// Does what the coordinator says of tablets that were received: serve, or forget.
    pub(crate) async fn settle(
        &self,
        accepted: bool,
        Joined { log, segments }: Joined,
        tablets: &[(Arc<EngineTable>, HashRange)],
    ) {
        let space = Arc::clone(self.store().space());
        if accepted {
            space.release(log, &segments);
            for (table, range) in tablets {
                // Nobody else recovers it from the crashed server any more (EXPIRY-5).
                self.store().expiry().stand_no_more(table.id(), *range);
                // The table may have been dropped meanwhile, or the tablet cut.
                if !self.tablets().serve_within(table.id(), *range) {
                    self.forget(table, *range).await;
                }
            }
            return;
        }
        self.end_reads(tablets).await;
        for (table, range) in tablets {
            self.forget(table, *range).await;
        }
        let unknown = space.drop_committed(log, &segments);
        debug_assert!(unknown.is_empty(), "REC-4: {unknown:?}");
        // REC-3.
        let position = loop {
            match space.roll(log) {
                Ok(position) => break position,
                Err(_) => self.env.clock.sleep(MEMORY_PAUSE).await,
            }
        };
        self.replication.synced(log, position).await;
        self.remove_tablets(tablets);
    }

    /// Takes all objects of a range out of the index.
    pub(crate) async fn forget(&self, table: &Arc<EngineTable>, range: HashRange) {
        let (store, table) = (Arc::clone(self.store()), Arc::clone(table));
        self.elsewhere(move || store.forget(&table, range)).await;
    }
}
