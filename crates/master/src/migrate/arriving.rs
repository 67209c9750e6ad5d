//! Tablets that arrive: asking for all of them, replaying it, and reporting.
//!
//! Stages:
//!
//! 1. *copy* the objects while the owner serves them;
//! 2. *follow* its changes until few are left;
//! 3. *freeze* and take the rest;
//! 4. *join* the side log to this master's log;
//! 5. *report*.
//!
//! A failure before the report ends the migration, and the owner serves on. After the report the
//! coordinator decides.

use super::ended::Ended;
use crate::cancel::Cancellation;
use crate::master::Master;
use crate::recover::micros;
use crate::side_log::{Joined, ReplayFailure, SharedReplay};
use bytes::Bytes;
use futures_util::future::join;
use pluvio_env::Moment;
use pluvio_store::{EngineTable, Replay};
use pluvio_units::{
    Acknowledged, CoreId, HashRange, LogId, MigrationId, Rank, SegmentId, ServerId,
};
use pluvio_wire::{
    FatalKind, GetTabletData, GetTabletDataReply, Header, MigrationProgress, ReceiveTablet,
    Refusal, RpcError, ServerList, ServerState, TabletPart, TabletReceived, call,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The tablet is frozen when no more changes than these are left: copying them takes a few
/// milliseconds.
const FEW_CHANGES: u64 = 256;
/// Parts of changes after which the tablet is frozen, however many are left. The owner's clients
/// change as fast as we copy then, and waiting longer makes it no better. The rest is bounded by
/// the notes (MOVE-4).
const ROUNDS_MAX: u32 = 256;
/// How long a frozen tablet may wait for the rest and for its replicas before it is given back.
const FROZEN_MAX: Duration = Duration::from_secs(5);
/// Pause before the owner is asked again.
const FETCH_PAUSE: Duration = Duration::from_millis(10);

/// One tablet that arrives.
pub(crate) struct Arrival {
    request: ReceiveTablet,
    cancellation: Cancellation,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    progress: MigrationProgress,
    /// Since when the owner is asked to freeze it. It may be frozen from then on; an owner that
    /// waits for its replicas serves it a while longer (MOVE-6).
    to_freeze: Option<Moment>,
    /// Since when it is frozen, as the owner says.
    frozen: Option<Moment>,
}

impl Arrival {
    fn new(request: ReceiveTablet) -> Self {
        Self {
            request,
            cancellation: Cancellation::new("the owner is not up any more"),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self, now: Moment) -> MigrationProgress {
        let state = *self.state();
        MigrationProgress {
            frozen_us: state.frozen.map_or(0, |since| micros(now.since(since))),
            ..state.progress
        }
    }

    /// The owner has answered at `now` that the tablet is frozen.
    fn note_frozen(&self, now: Moment, frozen_us: Option<u64>) {
        let mut state = self.state();
        let since = match frozen_us {
            Some(us) => Some(Moment(now.0.saturating_sub(Duration::from_micros(us)))),
            None => state.to_freeze,
        };
        state.frozen = state.frozen.or(since);
    }
}

#[derive(Default)]
struct Inner {
    under_way: BTreeMap<MigrationId, Arc<Arrival>>,
    ended: Ended,
}

/// All tablets that arrive.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Inner>);

impl Arrivals {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends migrations whose owners are not up any more.
    pub(crate) fn cancel_if_gone(&self, list: &ServerList) {
        for arrival in self.inner().under_way.values() {
            if is_gone(list, arrival.request.from) {
                arrival.cancellation.cancel();
            }
        }
    }

    fn end(&self, id: MigrationId) {
        let mut inner = self.inner();
        inner.under_way.remove(&id);
        inner.ended.add(id);
    }
}

/// Whether a server that was up is not any more. A list that has it not and no later one is older
/// than that server.
fn is_gone(list: &ServerList, server: ServerId) -> bool {
    match list.get(server) {
        Some(info) => info.state != ServerState::Up,
        None => list.servers.iter().any(|info| info.id > server),
    }
}

impl Master {
    /// Starts to take over a tablet into `log`, on the event loop of `core`; the end is reported to
    /// the coordinator. Asked again it tells how far it is.
    ///
    /// # Errors
    /// `Retry` while something else occupies the tablet here, or address space for an index is
    /// missing. Fatal when it is served here, or the migration has ended. Nothing was started.
    pub fn receive_tablet(
        self: &Arc<Self>,
        core: CoreId,
        log: LogId,
        request: ReceiveTablet,
    ) -> Result<MigrationProgress, Refusal> {
        let id = request.migration;
        let mut inner = self.arriving.inner();
        if inner.ended.has(id) {
            return Err(Refusal::fatal(FatalKind::Stale, "the migration is over"));
        }
        if let Some(known) = inner.under_way.get(&id) {
            return Ok(known.progress(self.env.clock.now()));
        }
        let table = self.occupy(&request.tablet)?;
        let arrival = Arc::new(Arrival::new(request));
        inner.under_way.insert(id, Arc::clone(&arrival));
        drop(inner);
        let master = Arc::clone(self);
        self.env.tasks.spawn(core, "tablet arrives", async move {
            let tablets = [(table, request.tablet.range)];
            let log = master.log_of_tablets(log, &tablets);
            match master.take_over(log, &arrival, &tablets).await {
                Ok((since, joined)) => {
                    let progress = arrival.progress(master.env.clock.now());
                    let accepted = master.report_received(id, since, Ok(progress)).await;
                    tracing::info!(migration = %id, ?accepted, ?progress, "a tablet has arrived");
                    if let Some(accepted) = accepted {
                        master.settle(accepted, joined, &tablets).await;
                    }
                }
                Err(why) => {
                    tracing::info!(migration = %id, why, "a tablet could not be taken over");
                    master.remove_tablets(&tablets);
                    master.report_received(id, SegmentId(0), Err(why)).await;
                }
            }
            master.arriving.end(id);
        });
        Ok(MigrationProgress::default())
    }

    /// Copies, follows, freezes, joins: all of it is durable here then (MIG-2). On an error nothing
    /// is left but the tablet's entry in the map.
    async fn take_over(
        &self,
        log: LogId,
        arrival: &Arrival,
        tablets: &[(Arc<EngineTable>, HashRange)],
    ) -> Result<(SegmentId, Joined), String> {
        let since = self
            .log_of_tablets_begins(tablets, &arrival.cancellation)
            .await?;
        let replay =
            Replay::new(self.store(), log, tablets.to_vec()).map_err(|error| error.to_string())?;
        let replay = SharedReplay::new(replay);
        let copied = self.copy(arrival, &replay).await;
        let replay = replay.take().map_err(ReplayFailure::text)?;
        if let Err(why) = copied {
            self.elsewhere(move || replay.abort()).await;
            return Err(why.text());
        }
        let within = Some(FROZEN_MAX);
        let joined = self
            .join(log, replay, tablets, &arrival.cancellation, within, async {
            })
            .await?;
        Ok((since, joined))
    }

    async fn copy(&self, arrival: &Arrival, replay: &SharedReplay) -> Result<(), ReplayFailure> {
        let first = TabletPart::Objects(Rank(0));
        let mut part = Some(self.fetch_part(arrival, first).await?);
        while let Some(now) = part {
            let ahead = async {
                match now.next {
                    Some(next) => {
                        let next = TabletPart::Objects(Rank(next));
                        self.fetch_part(arrival, next).await.map(Some)
                    }
                    None => Ok(None),
                }
            };
            let (replayed, next) = join(self.replay_part(arrival, replay, now.data), ahead).await;
            replayed?;
            part = next?;
        }
        let mut after = 0;
        for _ in 0..ROUNDS_MAX {
            let part = self.fetch_part(arrival, TabletPart::Changes(after)).await?;
            let left = part.left;
            after = self.replay_changes(arrival, replay, part, after).await?;
            if left <= FEW_CHANGES {
                break;
            }
        }
        arrival.state().to_freeze = Some(self.env.clock.now());
        self.copy_rest(arrival, replay, after).await
    }

    /// Of the frozen tablet.
    async fn copy_rest(
        &self,
        arrival: &Arrival,
        replay: &SharedReplay,
        mut after: u64,
    ) -> Result<(), ReplayFailure> {
        loop {
            let part = TabletPart::LastChanges(after);
            let part = self.fetch_part(arrival, part).await?;
            arrival.note_frozen(self.env.clock.now(), part.frozen_us);
            let is_last = part.next.is_none();
            after = self.replay_changes(arrival, replay, part, after).await?;
            if is_last {
                break;
            }
        }
        let mut from = Some(0);
        while let Some(next) = from {
            let part = self.fetch_part(arrival, TabletPart::Results(next)).await?;
            from = part.next;
            self.take_acknowledged(part.acknowledged).await?;
            self.replay_part(arrival, replay, part.data).await?;
        }
        Ok(())
    }

    /// That need not be taken back if the tablet stays where it is: it is so, wherever the tablet
    /// is. Nor need it outlive this life of the server, which is the one that late copies name.
    async fn take_acknowledged(&self, clients: Vec<Acknowledged>) -> Result<(), ReplayFailure> {
        let (store, now) = (Arc::clone(self.store()), self.monotonic());
        let take = move || store.completions().take_acknowledged(&clients, now);
        let taken = self.elsewhere(take).await;
        taken.ok_or_else(|| ReplayFailure::Other("the process is stopping".into()))
    }

    async fn replay_changes(
        &self,
        arrival: &Arrival,
        replay: &SharedReplay,
        part: GetTabletDataReply,
        after: u64,
    ) -> Result<u64, ReplayFailure> {
        let Some(up_to) = part.next else {
            return Ok(after);
        };
        self.replay_part(arrival, replay, part.data).await?;
        arrival.state().progress.changes += up_to.saturating_sub(after);
        Ok(up_to)
    }

    async fn replay_part(
        &self,
        arrival: &Arrival,
        replay: &SharedReplay,
        data: Bytes,
    ) -> Result<(), ReplayFailure> {
        let bytes = data.len() as u64;
        let patience = self.patience(arrival);
        self.replay_slice(
            &arrival.cancellation,
            replay,
            data,
            patience,
            Replay::replay,
        )
        .await?;
        let replay = replay.lock();
        let objects = replay.as_ref().map_or(0, |replay| replay.load().objects);
        let progress = &mut arrival.state().progress;
        progress.bytes += bytes;
        progress.objects = objects;
        self.moved_here.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// How long to wait for memory, or for the owner: less when clients may wait, too.
    fn patience(&self, arrival: &Arrival) -> Duration {
        match arrival.state().to_freeze {
            None => self.recovery_options.patience,
            Some(asked) => FROZEN_MAX.saturating_sub(self.env.clock.now().since(asked)),
        }
    }

    async fn fetch_part(
        &self,
        arrival: &Arrival,
        part: TabletPart,
    ) -> Result<GetTabletDataReply, ReplayFailure> {
        let request = &arrival.request;
        let ask = GetTabletData {
            migration: request.migration,
            tablet: request.tablet,
            part,
        };
        let give_up = self.env.clock.now() + self.patience(arrival);
        loop {
            let answer = self.ask_owner(&ask, request.from);
            let answer = arrival.cancellation.unless_cancelled(answer).await;
            let (error, pause) = match answer.map_err(ReplayFailure::Other)? {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(RpcError::Refused(Refusal::Retry { after_us, why }))) => {
                    let pause = Duration::from_micros(u64::from(after_us));
                    (why.to_string(), pause)
                }
                Some(Err(error @ RpcError::Call(_))) => (error.to_string(), FETCH_PAUSE),
                Some(Err(error @ (RpcError::Refused(_) | RpcError::BadReply(..)))) => {
                    return Err(ReplayFailure::Other(error.to_string()));
                }
                // It joined a moment ago, and our server list comes.
                None => ("it is not known here".to_owned(), FETCH_PAUSE),
            };
            if self.env.clock.now() >= give_up {
                let why = format!("the owner gives nothing: {error}");
                return Err(ReplayFailure::Other(why));
            }
            self.env.clock.sleep(pause).await;
        }
    }

    /// `None` when it is not in the server list that we have.
    async fn ask_owner(
        &self,
        ask: &GetTabletData,
        owner: ServerId,
    ) -> Option<Result<GetTabletDataReply, RpcError>> {
        let address = (self.addresses)(owner)?;
        let limit = self.recovery_options.fetch_limit;
        let network = &*self.env.network;
        Some(call(network, &address, Header::to(owner), ask, limit).await)
    }

    /// Tells the coordinator. Gives whether this master owns the tablet now; `None` when it is not
    /// told ([`Master::tell_end`]).
    async fn report_received(
        &self,
        migration: MigrationId,
        since: SegmentId,
        result: Result<MigrationProgress, String>,
    ) -> Option<bool> {
        let report = TabletReceived {
            cluster: self.cluster,
            migration,
            server: self.id,
            since,
            result,
        };
        let reply = self.tell_end(&report).await?;
        Some(reply.accepted)
    }
}
