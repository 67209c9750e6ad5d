//! Emptying a server before its process ends: the coordinator's part.
//!
//! 1. A request stores that the server is drained. From then on it gets no tablet while another
//!    server can have it (COORD-16), and masters put replicas elsewhere where they can.
//! 2. This work begins a migration of each of its tablets, a few at a time, and again when one was
//!    given up. Receivers are those with the most free memory. A tablet is cut if it fits nowhere
//!    as a whole, or would make its receiver much fuller than the others.
//! 3. A server without tablets may leave: one stored change takes it out of the list (COORD-17).
//!    Nobody has to miss it, and there is nothing to recover.
//!
//! Step 2 follows from the stored state and needs no memory of its own: a coordinator that takes
//! over goes on. When the server crashes, the drain is over, and what is left is recovered.

mod plan;

use super::migrate::Migrations;
use super::sizes::{free, log_bytes, share_of};
use crate::context::Context;
use crate::refusals::{COME_AGAIN, not_a_member};
use crate::state::{State, TABLETS_MAX, TabletRecord};
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use plan::{Cut, Deal, Plan, Receiver};
use pluvio_env::timeout;
use pluvio_units::{HashRange, KeyHash, MigrationId, ServerId, TableId};
use pluvio_wire::{
    CountObjects, DrainServer, DrainStatus, DrainWish, FatalKind, GetServerStatus, LeaveCluster,
    MigrateTablet, MigrateTabletReply, Refusal, RetryReason, ServerInfo, ServerState, TableRef,
    WhichTablet,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tablets of one server that move at a time. Each is read at its owner while that serves all
/// others, and has a side log at its receiver.
const MOVES_AT_ONCE: usize = 4;
/// How often the work looks when nothing changes.
const LOOK: Duration = Duration::from_millis(500);
/// The pause when nobody has room, or everybody gave a tablet up.
const AGAIN: Duration = Duration::from_secs(2);
/// Servers that do not say within this time how full they are get no tablets.
const LIMIT: Duration = Duration::from_millis(500);
/// Servers asked at a time.
const CALLS_MAX: usize = 64;
/// Tables with as many tablets or more are cut for want of room alone.
const TABLETS_EVEN_MAX: usize = TABLETS_MAX / 2;

impl State {
    /// Whether a server may be given tablets of others: it is to stay, and keeps replicas.
    pub(in crate::work) fn may_receive(info: &ServerInfo) -> bool {
        info.state == ServerState::Up && !info.draining && !info.volatile
    }

    fn is_draining(&self, server: ServerId) -> bool {
        let record = self.servers.get(&server);
        record.is_some_and(|r| r.info.state == ServerState::Up && r.info.draining)
    }

    /// Whether a server is drained and has something to move.
    pub(in crate::work) fn wants_drain(&self, server: ServerId) -> bool {
        self.is_draining(server) && !self.drain_of(server).is_empty()
    }

    /// How far the drain of a server is, as far as the state says it.
    fn drain_of(&self, server: ServerId) -> DrainStatus {
        let tables = self.tables.values();
        let tablets = tables.clone().flat_map(|t| &t.tablets);
        let moves = tables.flat_map(|t| &t.moves);
        let mut others = self.up().filter(|info| info.id != server);
        DrainStatus {
            server,
            draining: self.is_draining(server),
            tablets: tablets.filter(|t| t.owner == server).count() as u64,
            moving: moves.filter(|m| m.concerns(server)).count() as u64,
            waits: None,
            alone: !others.any(Self::may_receive),
        }
    }

    /// Begins a drain, or takes it back. Says whether that changes anything.
    ///
    /// # Errors
    /// The server is not up, or nobody else can have its tablets.
    fn set_draining(&mut self, request: DrainServer) -> Result<bool, Refusal> {
        let DrainServer { server, wish } = request;
        self.check_up(server)?;
        let drained = wish == DrainWish::Drain;
        if drained && !self.is_draining(server) && self.drain_of(server).alone {
            let mut others = self.up().filter(|info| info.id != server);
            let why = match others.any(|info| info.volatile) {
                true => {
                    "no other server that keeps replicas is up and stays, and tablets do not move to those with --replicas 0; start another one first"
                }
                false => "no other server is up and stays; start another one first",
            };
            let message = format!("server {server} cannot be drained: {why}");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        let record = self.servers.get_mut(&server).expect("it is up");
        if record.info.draining == drained {
            return Ok(false);
        }
        Arc::make_mut(record).info.draining = drained;
        Ok(true)
    }

    fn check_up(&self, server: ServerId) -> Result<(), Refusal> {
        if self.is_up(server) {
            return Ok(());
        }
        let message = match self.servers.contains_key(&server) {
            true => format!("server {server} has crashed; it is recovered and needs no drain"),
            false => {
                format!("there is no server {server}: `pluvio status` lists those that are up")
            }
        };
        Err(Refusal::fatal(FatalKind::NotFound, message))
    }

    /// Takes a server without tablets out of the list (COORD-17). No recovery may be under way: it
    /// may read this server's replicas.
    ///
    /// # Errors
    /// It owns a tablet, or one moves from it or to it, or somebody is recovered: come again. It
    /// was declared crashed.
    fn leave(&mut self, request: LeaveCluster) -> Result<(), Refusal> {
        let LeaveCluster { cluster, server } = request;
        self.check_cluster(cluster)?;
        let Some(record) = self.servers.get(&server) else {
            // Its first request was done, and the answer lost.
            let was_given = server <= self.globals.last_server;
            return was_given.then_some(()).ok_or_else(|| not_a_member(server));
        };
        if record.info.state == ServerState::Crashed {
            return Err(not_a_member(server));
        }
        let is_recovering = self
            .servers
            .values()
            .any(|s| s.info.state == ServerState::Crashed);
        if !self.drain_of(server).is_empty() || is_recovering {
            return Err(Refusal::retry(COME_AGAIN, RetryReason::TabletNotReady));
        }
        self.servers.remove(&server);
        Ok(())
    }

    /// Stores that a tablet of a server shall move, if that is still drained. Its drain may have
    /// been taken back while others were asked for room.
    ///
    /// # Errors
    /// See [`State::begin_move`]. The server is not drained any more.
    fn begin_drain_move(
        &mut self,
        server: ServerId,
        request: &MigrateTablet,
    ) -> Result<MigrateTabletReply, Refusal> {
        if !self.is_draining(server) {
            let message = format!("the drain of server {server} is over");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        self.begin_move(request)
    }

    /// Tablets of a server that can be moved now.
    fn movable(&self, server: ServerId) -> Vec<(TableId, TabletRecord)> {
        let mut found = Vec::new();
        for table in self.tables.values().filter(|t| !t.dropping) {
            let movable = |t: &&TabletRecord| {
                t.owner == server && t.is_settled() && !table.moves_within(t.range)
            };
            found.extend(table.tablets.iter().filter(movable).map(|t| (table.id, *t)));
        }
        found
    }

    /// Why tablets of a server cannot be moved yet, if that is so.
    fn unsettled(&self, server: ServerId) -> Option<String> {
        let tablets = self.tables.values().flat_map(|t| &t.tablets);
        let is_unsettled = |t: &&TabletRecord| t.owner == server && !t.is_settled();
        let found = tablets.filter(is_unsettled).count();
        (found > 0).then(|| format!("{found} of its tablets are being assigned or recovered"))
    }
}

/// Whether a table with this number of tablets may get another one.
fn may_cut(tablets: usize) -> Cut {
    if tablets < TABLETS_EVEN_MAX {
        Cut::Evenly
    } else if tablets + 1 < TABLETS_MAX {
        Cut::ForRoom
    } else {
        Cut::Never
    }
}

/// A migration that was begun for a drain.
struct Begun {
    table: TableId,
    id: MigrationId,
    first: KeyHash,
    to: ServerId,
    bytes: u64,
}

/// A tablet that is to be moved.
struct Waiting {
    table: TableId,
    range: HashRange,
    /// What it has, about.
    bytes: u64,
}

/// Knowledge of the work on one server, beside the state.
#[derive(Default)]
struct Progress {
    begun: Vec<Begun>,
    /// Live bytes that the server had at the beginning, once it has said so.
    had: Option<u64>,
    /// Bytes of tablets that were given to others since, or are on their way.
    given: u64,
    /// Which servers could not take which tablet.
    failed: BTreeSet<(TableId, KeyHash, ServerId)>,
    /// Why the last one could not.
    why: Option<String>,
}

impl Progress {
    /// Looks which migrations have ended, and how.
    fn settle(&mut self, state: &State, server: ServerId, migrations: &Migrations) {
        self.begun.retain(|begun| {
            let table = state.tables.get(&begun.table);
            let Some(table) = table.filter(|t| !t.dropping) else {
                return false;
            };
            if table.moves.iter().any(|m| m.id == begun.id) {
                return true;
            }
            let mut tablets = table.tablets.iter();
            if tablets.any(|t| t.range.contains(begun.first) && t.owner == server) {
                pluvio_units::mark("drain-move-failed");
                self.given = self.given.saturating_sub(begun.bytes);
                self.failed.insert((begun.table, begun.first, begun.to));
                let status = migrations.get(begun.id).status;
                let phase = status.map_or_else(|| "it was given up".to_owned(), |s| s.phase);
                self.why = Some(format!(
                    "server {} did not take a tablet: {phase}",
                    begun.to
                ));
            }
            false
        });
    }

    /// Deals a tablet to a server that has not given it up yet.
    ///
    /// # Errors
    /// None of them has room. All are asked again, after a pause: with why it waits, if one that
    /// gave the tablet up knows.
    fn deal(&mut self, plan: &mut Plan, tablet: &Waiting, cut: Cut) -> Result<Deal, String> {
        let (table, first) = (tablet.table, tablet.range.first);
        let has_failed = |to| self.failed.contains(&(table, first, to));
        let nobody_is_left = plan.all(has_failed);
        if let Some(deal) = plan.deal(tablet.range, tablet.bytes, cut, has_failed) {
            return Ok(deal);
        }
        self.failed.retain(|(t, f, _)| (*t, *f) != (table, first));
        let why = self.why.clone().filter(|_| nobody_is_left);
        Err(why.unwrap_or_else(|| {
            format!(
                "the other servers have no room for a tablet of {} MiB: delete objects, or start another server",
                tablet.bytes >> 20
            )
        }))
    }

    /// Bytes that are on their way to a server.
    fn bytes_to(&self, server: ServerId) -> u64 {
        let to_it = self.begun.iter().filter(|b| b.to == server);
        to_it.map(|b| b.bytes).sum()
    }
}

/// The work of `Work::Drain`, and the requests that concern it.
pub(crate) struct Drains {
    context: Arc<Context>,
    migrations: Arc<Migrations>,
    /// Why drains do not get on at the moment.
    waits: Mutex<BTreeMap<ServerId, String>>,
}

impl Drains {
    pub(super) fn new(context: Arc<Context>, migrations: Arc<Migrations>) -> Self {
        Self {
            context,
            migrations,
            waits: Mutex::default(),
        }
    }

    fn waits(&self) -> MutexGuard<'_, BTreeMap<ServerId, String>> {
        // Held for single steps.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers when it is stored that the server is drained, or is not any more.
    ///
    /// # Errors
    /// The server is not up; nobody else can have its tablets; or all others together have no room
    /// for them.
    pub(crate) async fn drain_server(&self, request: DrainServer) -> Result<DrainStatus, Refusal> {
        let DrainServer { server, wish } = request;
        let state = self.context.state();
        if wish == DrainWish::Drain && !state.is_draining(server) {
            state.check_up(server)?;
            self.check_room(&state, server).await?;
        }
        let change = move |state: &mut State| state.set_draining(request);
        if self.context.ledger.change_for_caller(change).await? {
            tracing::info!(%server, ?wish, "drain");
        }
        self.status(server)
    }

    /// How far the drain of a server is.
    ///
    /// # Errors
    /// It is not up.
    pub(crate) fn status(&self, server: ServerId) -> Result<DrainStatus, Refusal> {
        let state = self.context.state();
        state.check_up(server)?;
        Ok(self.status_in(&state, server))
    }

    fn status_in(&self, state: &State, server: ServerId) -> DrainStatus {
        let status = state.drain_of(server);
        let waits = match status.draining && !status.is_empty() {
            true => self.waits().get(&server).cloned(),
            false => None,
        };
        DrainStatus { waits, ..status }
    }

    /// All servers that are drained.
    pub(crate) fn list(&self) -> Vec<DrainStatus> {
        let state = self.context.state();
        let drained = state.up().filter(|info| info.draining);
        drained
            .map(|info| self.status_in(&state, info.id))
            .collect()
    }

    /// A server leaves the cluster.
    pub(crate) async fn leave(&self, request: LeaveCluster) -> Result<(), Refusal> {
        let server = request.server;
        let ledger = &self.context.ledger;
        let was_there = ledger.state().servers.contains_key(&server);
        ledger.change(move |state| state.leave(request)).await?;
        if was_there {
            tracing::info!(%server, "server left");
        }
        Ok(())
    }

    /// Those that may have tablets of others, with their free memory. One that does not answer in
    /// time is not among them.
    async fn receivers(&self, state: &State, server: ServerId) -> Vec<Receiver> {
        let loads = state.loads();
        let others = state
            .up()
            .filter(|i| i.id != server && State::may_receive(i));
        let others: Vec<ServerInfo> = others.cloned().collect();
        let calls = &self.context.calls;
        let answers = stream::iter(others).map(|info| async move {
            let status = calls.call(&info, &GetServerStatus {}, LIMIT).await.ok()?;
            Some((info.id, free(&status)))
        });
        let answers = answers.buffer_unordered(CALLS_MAX);
        let rooms: BTreeMap<ServerId, u64> =
            answers.filter_map(|a| async move { a }).collect().await;
        let receiver = |(id, free)| Receiver {
            id,
            free,
            tablets: loads.get(&id).copied().unwrap_or(0),
        };
        rooms.into_iter().map(receiver).collect()
    }

    /// # Errors
    /// All others together have no room for what a server has. When it or all others do not say how
    /// full they are, the drain will show it.
    async fn check_room(&self, state: &State, server: ServerId) -> Result<(), Refusal> {
        let info = &state.servers[&server].info;
        let own = self
            .context
            .calls
            .call(info, &GetServerStatus {}, LIMIT)
            .await;
        let receivers = self.receivers(state, server).await;
        let Ok(own) = own else { return Ok(()) };
        let room = plan::room(&receivers);
        if receivers.is_empty() || own.memory_live <= room || own.tablets == 0 {
            return Ok(());
        }
        let message = format!(
            "server {server} cannot be drained: it has {} MiB of live data, and the others have room for {} MiB; delete objects, or start another server",
            own.memory_live >> 20,
            room >> 20
        );
        Err(Refusal::fatal(FatalKind::Other, message))
    }

    /// Bytes and objects of a table at one of its owners, as bytes of a log.
    async fn bytes_of(&self, owner: &ServerInfo, table: TableId) -> u64 {
        let count = CountObjects { table };
        match self.context.calls.call(owner, &count, LIMIT).await {
            Ok(count) => log_bytes(&count),
            // The receiver finds out.
            Err(_) => 0,
        }
    }

    /// Bytes that a server still has to give, about; 0 if it did not say. What it has now is of no
    /// use: memory of tablets that have gone comes back a while later.
    async fn left(&self, state: &State, server: ServerId, progress: &mut Progress) -> u64 {
        if progress.had.is_none() {
            let (calls, info) = (&self.context.calls, &state.servers[&server].info);
            let status = calls.call(info, &GetServerStatus {}, LIMIT).await;
            progress.had = status.ok().map(|status| status.memory_live);
        }
        progress.had.unwrap_or(0).saturating_sub(progress.given)
    }

    /// Ends when the server has no tablets, crashes, or is not drained any more.
    pub(super) async fn drain(&self, server: ServerId) {
        let mut progress = Progress::default();
        loop {
            let state = self.context.state();
            if !state.wants_drain(server) {
                break;
            }
            progress.settle(&state, server, &self.migrations);
            let pause = self.step(&state, server, &mut progress).await;
            let before = self.context.state().drain_of(server);
            let changed = self
                .context
                .ledger
                .until(|state| state.drain_of(server) != before);
            // Both ends mean the same: look again.
            let _ = timeout(&*self.context.env.clock, pause, changed).await;
        }
        self.waits().remove(&server);
    }

    /// Begins as many migrations as may be under way. A tablet that fits nowhere holds up no other.
    /// Gives the pause until the next look.
    async fn step(&self, state: &State, server: ServerId, progress: &mut Progress) -> Duration {
        let under_way = state.drain_of(server).moving as usize;
        let mut may_begin = MOVES_AT_ONCE.saturating_sub(under_way);
        let movable = state.movable(server);
        if movable.is_empty() || may_begin == 0 {
            self.note(
                server,
                (under_way == 0).then(|| state.unsettled(server)).flatten(),
            );
            return LOOK;
        }
        let mut receivers = self.receivers(state, server).await;
        for receiver in &mut receivers {
            receiver.free = receiver.free.saturating_sub(progress.bytes_to(receiver.id));
        }
        if receivers.is_empty() {
            self.note(server, Some("no other server can have its tablets".into()));
            return AGAIN;
        }
        let mut plan = Plan::new(receivers, self.left(state, server, progress).await);
        let mut pause = LOOK;
        let mut why = None;
        let mut counted = BTreeMap::new();
        for (table, tablet) in movable {
            if may_begin == 0 {
                break;
            }
            let all = match counted.get(&table) {
                Some(all) => *all,
                None => {
                    let owner = &state.servers[&server].info;
                    let all = self.bytes_of(owner, table).await;
                    *counted.entry(table).or_insert(all)
                }
            };
            let record = &state.tables[&table];
            let waiting = Waiting {
                table,
                range: tablet.range,
                bytes: share_of(record, server, tablet.range, all),
            };
            match progress.deal(&mut plan, &waiting, may_cut(record.tablets.len())) {
                Ok(deal) => {
                    may_begin -= 1;
                    if let Err(refusal) = self.begin(server, table, &deal, progress).await {
                        why = Some(refusal.to_string());
                    }
                }
                Err(waits) => {
                    why = why.or(Some(waits));
                    pause = AGAIN;
                }
            }
        }
        self.note(server, why);
        pause
    }

    fn note(&self, server: ServerId, why: Option<String>) {
        let mut waits = self.waits();
        match why {
            Some(why) => waits.insert(server, why),
            None => waits.remove(&server),
        };
    }

    async fn begin(
        &self,
        server: ServerId,
        table: TableId,
        deal: &Deal,
        progress: &mut Progress,
    ) -> Result<(), Refusal> {
        let request = MigrateTablet {
            table: TableRef::Id(table),
            tablet: WhichTablet::Range(deal.range),
            to: deal.to,
        };
        let begin = move |state: &mut State| state.begin_drain_move(server, &request);
        let reply = self.migrations.begin(deal.to, begin).await?;
        if let Some(id) = reply.migration {
            progress.given = progress.given.saturating_add(deal.bytes);
            progress.begun.push(Begun {
                table,
                id,
                first: reply.range.first,
                to: deal.to,
                bytes: deal.bytes,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
