//! Recovers one partition of a crashed master's tablets [RAMCloud §7.5-7.8].
//!
//! Stages:
//!
//! 1. *fetch and replay* the entries of all segments, several fetches under way, in whatever order
//!    they come;
//! 2. *answer reads*, if the coordinator allows it: it has recorded this master as owner, and that
//!    the tablets stand on the crashed server's replicas (COORD-14);
//! 3. *re-replicate* what survives, beside that;
//! 4. *commit* the side log;
//! 5. *report* to the coordinator.
//!
//! Changes are taken only when the coordinator has recorded that the tablets are durable here.
//!
//! - REC-1: a tablet under recovery takes no changes, and is here at most once. Before the
//!   coordinator has recorded this master as its owner it is not read, either.
//! - REC-2: whatever fails, the tablets are gone from here and the coordinator is told, so that it
//!   can try elsewhere.
//! - REC-3, REC-4: what the coordinator rejects leaves nothing behind; see `side_log`.
//! - REC-5: an attempt that nobody waits for ends soon. A later attempt for the same server, or a
//!   server list without that server, cancels it, whatever it waits for. Only a log that joins ours
//!   already stays until the coordinator has decided. Until then its tablets are in the way of
//!   others here. An attempt that answers reads is waited for, whatever else of that server is
//!   recovered later.
//! - REC-6: what has joined the log leaves it only when the coordinator says that it is not wanted.
//!   A master that gets no answer, because it is no member any more, leaves its log as it is. It
//!   may own the tablets, by an answer that was lost; then they are recovered from there.
//! - REC-7: what is read before it is durable here does not change, and is all replayed. If the
//!   attempt fails, no read is under way when the objects are forgotten and the coordinator is
//!   told.

use crate::cancel::Cancellation;
use crate::master::{Master, NotAdded};
use crate::recovery_attempts::{AttemptKey, Passing, Replaying};
use crate::side_log::{Joined, ReplayFailure, SharedReplay, Step};
use crate::tablets::TabletPhase;
use bytes::Bytes;
use futures_util::stream;
use futures_util::{FutureExt, StreamExt};
use pluvio_env::{Address, BoxFuture, Moment, timeout};
use pluvio_store::{EngineTable, Replay, ReplayLoad};
use pluvio_units::{CoreId, HashRange, LogId, SegmentId, ServerId, UnixMs};
use pluvio_wire::{
    FatalKind, GetRecoveryData, Header, PartitionReplayed, PartitionReplayedReply, Recover,
    RecoveryMasterFinished, RecoverySegment, Refusal, ReplayStats, RpcError, ServerList,
    TabletSpec, call,
};
use std::sync::Arc;
use std::time::Duration;

/// Bounds of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryOptions {
    /// Fetches under way at a time ([RAMCloud §7.6]: 4). Each holds at most a segment in memory.
    pub fetches: usize,
    /// How long to wait for one fetch.
    pub fetch_limit: Duration,
    /// How long a segment may take to become ready at its backups, and memory to become free.
    pub patience: Duration,
}

impl Default for RecoveryOptions {
    fn default() -> Self {
        Self {
            fetches: 4,
            fetch_limit: Duration::from_secs(5),
            patience: Duration::from_secs(10),
        }
    }
}

/// How long a quick replay waits for memory before it gives way to a thrifty one.
const QUICK_PATIENCE: Duration = Duration::from_secs(1);
/// For how long the rest of a partition waits for its first part. Nothing is served sooner, because
/// the crashed server's leases have to end. Waiting longer would cost a second reading of replicas
/// where the disks are what is slow.
const FIRST_PART_AHEAD: Duration = Duration::from_millis(500);
/// For how long tablets that may be read early wait until they are durable here. Nothing else ends
/// an attempt that answers reads (REC-5). It is as long as the coordinator waits for others.
const STANDING_MAX: Duration = Duration::from_secs(600);
/// Pause before backups are asked again for a segment that none of them could give.
const ROUND_PAUSE: Duration = Duration::from_millis(10);

/// How a log is replayed. The result is the same (REPLAY-1 in crate `store`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manner {
    /// As backups become ready. An object that is replayed before its successor takes memory
    /// that only the cleaner gives back, when the recovery is over.
    Quick,
    /// Everything is read twice, the first time to find out what lives: nothing else takes memory.
    /// For a log with more dead data than there is room for here.
    Thrifty,
}

/// What came from backups.
#[derive(Clone, Copy, Default)]
struct Fetched {
    bytes: u64,
    /// For how long there was nothing to replay.
    waited: Duration,
}

/// A replay that is durable and part of the log.
struct Committed {
    joined: Joined,
    /// Where this master's log of the tablets begins (JOIN-1).
    since: SegmentId,
    stats: ReplayStats,
}

/// The request, as long as a coordinator waits for it.
struct Attempt {
    request: Recover,
    cancellation: Arc<Cancellation>,
}

impl Attempt {
    fn key(&self) -> AttemptKey {
        key_of(&self.request)
    }
}

fn key_of(request: &Recover) -> AttemptKey {
    AttemptKey {
        crashed: request.crashed,
        recovery: request.recovery,
        partition: request.partition,
    }
}

impl Master {
    /// Starts the recovery of one partition into `log`, on the event loop of `core`; its end is
    /// reported to the coordinator. Starting it again does nothing.
    ///
    /// # Errors
    /// `Retry` while an earlier attempt has not yet ended here, or address space for an index is
    /// missing. Fatal when a tablet overlaps one that is served here. Nothing was started.
    pub fn recover(
        self: &Arc<Self>,
        core: CoreId,
        log: LogId,
        request: Recover,
    ) -> Result<(), Refusal> {
        let key = key_of(&request);
        let mut tablets: Vec<(Arc<EngineTable>, HashRange)> = Vec::new();
        // While no other attempt can begin: of two requests for one tablet the second finds it.
        let begun = self.attempts.begin(key, || {
            for spec in &request.tablets {
                match self.occupy(spec) {
                    Ok(table) => tablets.push((table, spec.range)),
                    Err(refusal) => {
                        self.remove_tablets(&tablets);
                        return Err(refusal);
                    }
                }
            }
            Ok(())
        })?;
        let Some(cancellation) = begun else {
            return Ok(());
        };
        let log = self.log_of_tablets(log, &tablets);
        let attempt = Attempt {
            request,
            cancellation,
        };
        let master = Arc::clone(self);
        self.env.tasks.spawn(core, "recovery master", async move {
            match master.recover_tablets(log, &attempt, &tablets).await {
                Ok(committed) => master.hand_over(key, committed, &tablets).await,
                Err(why) => {
                    let AttemptKey {
                        crashed, partition, ..
                    } = key;
                    tracing::info!(%crashed, partition, why, "a partition could not be recovered here");
                    master.remove_tablets(&tablets);
                    master.report(key, Err(why)).await;
                }
            }
            master.attempts.end(&key);
        });
        Ok(())
    }

    /// Adds a tablet that is to be recovered.
    pub(crate) fn occupy(&self, spec: &TabletSpec) -> Result<Arc<EngineTable>, Refusal> {
        self.class_is_open(spec)?;
        let here = {
            let snapshot = self.tablets().snapshot();
            let tablets = snapshot.get(&spec.table).map(|t| &t.tablets);
            let mut tablets = tablets.into_iter().flatten();
            tablets.find(|t| t.range.overlaps(&spec.range)).copied()
        };
        // No index is made for a tablet that is refused anyway. The second look meets another
        // attempt or an arrival that comes in between.
        let added = match here {
            Some(known) => Err(NotAdded::InTheWay(known)),
            None => self.add_tablet(spec, TabletPhase::Recovering),
        };
        added.map_err(|why| why.refusal(spec))
    }

    /// Ends recoveries of servers that are not in the list: their tablets are served elsewhere
    /// (REC-5).
    pub fn server_list_changed(&self, list: &ServerList) {
        self.attempts
            .cancel_unless(|crashed| list.get(crashed).is_some());
        self.arriving.cancel_if_gone(list);
    }

    /// Takes tablets without objects out of the map, and gives back their indexes (TAB-3).
    pub(crate) fn remove_tablets(&self, tablets: &[(Arc<EngineTable>, HashRange)]) {
        for (table, range) in tablets {
            self.remove_tablet(table, *range, || {
                self.tablets().remove(table.id(), *range);
            });
        }
    }

    /// Takes what `remove` takes of a table out of the map, and gives back the indexes that no
    /// tablet uses any more (TAB-3). All that goes lies in `range`.
    pub(crate) fn remove_tablet(
        &self,
        table: &Arc<EngineTable>,
        range: HashRange,
        remove: impl FnOnce(),
    ) {
        let _alone = self.indexing();
        remove();
        let snapshot = self.tablets().snapshot();
        let tablets = snapshot.get(&table.id()).map(|local| &local.tablets);
        let kept: Vec<HashRange> = tablets.into_iter().flatten().map(|t| t.range).collect();
        self.store().keep_indexes(table, range, &kept);
    }

    /// Fetch and replay, re-replicate, commit. On an error nothing is left but the tablets' entries
    /// in the map.
    async fn recover_tablets(
        self: &Arc<Self>,
        log: LogId,
        attempt: &Attempt,
        tablets: &[(Arc<EngineTable>, HashRange)],
    ) -> Result<Committed, String> {
        let started = self.env.clock.now();
        let since = self
            .log_of_tablets_begins(tablets, &attempt.cancellation)
            .await?;
        let quick = self.replay_all(log, attempt, tablets, Manner::Quick).await;
        let (replay, fetched) = match quick {
            Err(ReplayFailure::Full(why)) => {
                pluvio_units::mark("recovery-memory-full");
                tracing::info!(crashed = %attempt.request.crashed, why, "memory is full: replaying again, only what lives");
                self.replay_all(log, attempt, tablets, Manner::Thrifty).await
            }
            replayed => replayed,
        }
        .map_err(ReplayFailure::text)?;
        self.attempts.replayed(&attempt.key());
        let ReplayLoad { entries, objects } = replay.load();
        let replay_us = micros(self.env.clock.now().since(started));
        let limit = attempt.request.early.then_some(STANDING_MAX);
        let horizon = replay.horizon();
        let reads = async {
            if attempt.request.early {
                self.read_early(attempt.key(), tablets, horizon).await;
            }
        };
        let joined = self
            .join(log, replay, tablets, &attempt.cancellation, limit, reads)
            .await
            .inspect_err(|_| pluvio_units::mark("recovery-withdrawn-awaiting-replicas"))?;
        let total_us = micros(self.env.clock.now().since(started));
        let stats = ReplayStats {
            bytes: fetched.bytes,
            entries,
            objects,
            replay_us,
            waiting_us: micros(fetched.waited),
            total_us,
        };
        Ok(Committed {
            joined,
            since,
            stats,
        })
    }

    /// Replays everything in this manner; says what was fetched, too. On an error nothing is left.
    async fn replay_all(
        self: &Arc<Self>,
        log: LogId,
        attempt: &Attempt,
        tablets: &[(Arc<EngineTable>, HashRange)],
        manner: Manner,
    ) -> Result<(Replay, Fetched), ReplayFailure> {
        let mut replay = Replay::new(self.store(), log, tablets.to_vec())
            .map_err(|error| ReplayFailure::Other(error.to_string()))?;
        if attempt.request.early {
            // Reads wait for this, and replicas take as much processor and disk.
            replay.hold_back();
        }
        let replay = SharedReplay::new(replay);
        let fetched = self.fetch_and_replay(attempt, &replay, manner).await;
        let replay = replay.take()?;
        match fetched {
            Ok(fetched) => Ok((replay, fetched)),
            Err(why) => {
                self.elsewhere(move || replay.abort()).await;
                Err(why)
            }
        }
    }

    async fn fetch_and_replay(
        self: &Arc<Self>,
        attempt: &Attempt,
        replay: &SharedReplay,
        manner: Manner,
    ) -> Result<Fetched, ReplayFailure> {
        if manner == Manner::Thrifty {
            self.each_segment(attempt, replay, manner, |replay, data, _| {
                replay.survey(data)
            })
            .await?;
        }
        self.each_segment(attempt, replay, manner, Replay::replay)
            .await
    }

    /// Does the same with all segments, in the order in which they come.
    async fn each_segment(
        self: &Arc<Self>,
        attempt: &Attempt,
        replay: &SharedReplay,
        manner: Manner,
        step: Step,
    ) -> Result<Fetched, ReplayFailure> {
        let Attempt {
            request,
            cancellation,
        } = attempt;
        let mut fetches: Vec<BoxFuture<'_, _>> = Vec::with_capacity(request.segments.len());
        for segment in &*request.segments {
            fetches.push(Box::pin(self.fetch(request, segment)));
        }
        let mut fetches = stream::iter(fetches).buffer_unordered(self.recovery_options.fetches);
        let mut fetched = Fetched::default();
        let mut replaying = None;
        let pass_until = self.env.clock.now() + FIRST_PART_AHEAD;
        loop {
            let asked = self.env.clock.now();
            let next = match fetches.next().now_or_never() {
                Some(next) => next,
                None => {
                    // Later partitions have the processor meanwhile.
                    drop(replaying.take());
                    // A backup may be silent for long (REC-5).
                    let next = cancellation.unless_cancelled(fetches.next()).await;
                    next.map_err(ReplayFailure::Other)?
                }
            };
            let Some(data) = next else {
                return Ok(fetched);
            };
            fetched.waited += self.env.clock.now().since(asked);
            let data = data.map_err(ReplayFailure::Other)?;
            fetched.bytes += data.len() as u64;
            drop(replaying.take());
            let turn = self.turn(attempt.key(), pass_until);
            let turn = cancellation.unless_cancelled(turn).await;
            replaying = Some(turn.map_err(ReplayFailure::Other)?);
            self.replay_slice(cancellation, replay, data, self.patience_for(manner), step)
                .await?;
        }
    }

    /// Lets earlier partitions of the same recovery pass: as a whole until `pass_until`, then
    /// whenever they have entries to replay.
    async fn turn(&self, key: AttemptKey, pass_until: Moment) -> Replaying<'_> {
        let left = pass_until.since(self.env.clock.now());
        if !left.is_zero() {
            let turn = self.attempts.turn(key, Passing::Whole);
            if let Ok(turn) = timeout(&*self.env.clock, left, turn).await {
                return turn;
            }
        }
        self.attempts.turn(key, Passing::Ready).await
    }

    fn patience_for(&self, manner: Manner) -> Duration {
        match manner {
            Manner::Quick => self.recovery_options.patience.min(QUICK_PATIENCE),
            Manner::Thrifty => self.recovery_options.patience,
        }
    }

    /// Fetches one segment's entries from the first backup that has them. Asks again while one of
    /// them may have them yet.
    async fn fetch(&self, request: &Recover, segment: &RecoverySegment) -> Result<Bytes, String> {
        let ask = GetRecoveryData {
            recovery: request.recovery,
            crashed: request.crashed,
            segment: segment.segment,
            partition: request.partition,
        };
        let give_up = self.env.clock.now() + self.recovery_options.patience;
        let mut latest = String::from("no backup has it");
        loop {
            let mut wait = ROUND_PAUSE;
            let mut all_refused = true;
            for &backup in &segment.backups {
                let Some(address) = (self.addresses)(backup) else {
                    all_refused = false;
                    continue;
                };
                let limit = self.recovery_options.fetch_limit;
                let network = &*self.env.network;
                let answer = call(network, &address, Header::to(backup), &ask, limit).await;
                if let Err(RpcError::Refused(Refusal::Retry { after_us, .. })) = &answer {
                    // It is being read: waiting is better than reading another replica as well.
                    wait = Duration::from_micros(u64::from(*after_us));
                    all_refused = false;
                    break;
                }
                match answer {
                    Ok(reply) => return Ok(reply.data),
                    Err(error) => {
                        all_refused &= is_final(&error);
                        pluvio_units::mark("recovery-replica-passed-over");
                        latest = format!("backup {backup}: {error}");
                    }
                }
            }
            if all_refused || self.env.clock.now() >= give_up {
                return Err(format!(
                    "segment {} cannot be read: {latest}",
                    segment.segment
                ));
            }
            self.env.clock.sleep(wait).await;
        }
    }

    /// Answers reads of tablets that are replayed, if the coordinator allows it.
    async fn read_early(
        &self,
        key: AttemptKey,
        tablets: &[(Arc<EngineTable>, HashRange)],
        horizon: UnixMs,
    ) {
        if self.is_replicated() {
            // MASTER-3.
            self.replication.opened().await;
        }
        let report = PartitionReplayed {
            cluster: self.cluster,
            recovery: key.recovery,
            server: self.id,
            partition: key.partition,
        };
        let Some(PartitionReplayedReply { may_read: true }) = self.tell_end(&report).await else {
            return;
        };
        self.attempts.reads(&key);
        for (table, range) in tablets {
            self.store().expiry().stand(table.id(), *range, horizon);
            // The table may have been dropped meanwhile.
            self.tablets()
                .set_within(table.id(), *range, TabletPhase::Standing);
        }
    }

    /// Reports success and does what the coordinator says: serve, or forget.
    async fn hand_over(
        self: &Arc<Self>,
        key: AttemptKey,
        committed: Committed,
        tablets: &[(Arc<EngineTable>, HashRange)],
    ) {
        let result = Ok((committed.since, committed.stats));
        if let Some(accepted) = self.report(key, result).await {
            self.settle(accepted, committed.joined, tablets).await;
        }
    }

    /// Tells the coordinator. Gives whether this master owns the tablets now; `None` when it is not
    /// told ([`Master::tell_end`]).
    async fn report(
        &self,
        key: AttemptKey,
        result: Result<(SegmentId, ReplayStats), String>,
    ) -> Option<bool> {
        let since = result.as_ref().map_or(SegmentId(0), |(since, _)| *since);
        let report = RecoveryMasterFinished {
            cluster: self.cluster,
            recovery: key.recovery,
            server: self.id,
            partition: key.partition,
            since,
            result: result.map(|(_, stats)| stats),
        };
        let reply = self.tell_end(&report).await?;
        if !reply.accepted {
            pluvio_units::mark("recovery-report-not-accepted");
        }
        Some(reply.accepted)
    }
}

/// Whether a backup will give the same answer as long as the attempt lasts.
fn is_final(error: &RpcError) -> bool {
    let RpcError::Refused(Refusal::Fatal { kind, .. }) = error else {
        return false;
    };
    matches!(
        kind,
        FatalKind::Corrupt | FatalKind::NotFound | FatalKind::Stale
    )
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Finds the address of a server that is up.
pub type AddressBook = Arc<dyn Fn(ServerId) -> Option<Address> + Send + Sync>;
