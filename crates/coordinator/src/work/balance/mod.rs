//! Moving tablets from full or busy servers to others.
//!
//! One task looks at the cluster every few seconds, and begins at most one migration
//! ([`super::migrate`]) at a time:
//!
//! 1. It gives way to everything else: recoveries, drains, and migrations that somebody asked for.
//! 2. It asks all servers how full they are, and how many requests they have answered.
//! 3. `plan` says from where to where, and what.
//! 4. It counts the objects of the server that gives, and begins the migration.
//!
//! Nothing of it has to be remembered. A migration that has begun is stored as any other, and a
//! coordinator that takes over looks anew. `docs/balance.md` tells the whole way.

mod plan;

use super::migrate::Migrations;
use super::sizes::{live_max, log_bytes, share_of};
use crate::context::Context;
use crate::refusals::COME_AGAIN;
use crate::state::{State, TABLETS_MAX};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use plan::{Load, Loads, Step, Tablet, Want};
use pluvio_env::{Moment, timeout};
use pluvio_units::{HashRange, KeyHash, MigrationId, ServerId, TableId};
use pluvio_wire::{
    BalanceMove, BalanceStatus, BalanceWish, CountObjects, GetServerStatus, MigrateTablet,
    MigrateTabletReply, Refusal, RetryReason, ServerInfo, ServerState, TableRef, WhichTablet,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Servers that do not say within this time how full they are take no part.
const LIMIT: Duration = Duration::from_millis(500);
/// Servers asked at a time.
const CALLS_MAX: usize = 64;
/// Tables of the server that gives whose objects are counted: those with the widest tablets there.
const TABLES_MAX: usize = 64;
/// Moves that a plan shows.
const PLAN_MAX: usize = 32;
/// Tables with more tablets than this are not cut for the sake of balance: the rest is for
/// recoveries.
const TABLETS_CUT_MAX: usize = TABLETS_MAX / 2;
/// Tablets that are looked at to gather one.
const GATHERED_MAX: usize = 8;
/// Moves that are remembered.
const REMEMBERED_MAX: usize = 1024;

/// Counts of what was done since this coordinator leads.
#[derive(Default)]
pub(super) struct Counters {
    begun: AtomicU64,
    bytes: AtomicU64,
    joined: AtomicU64,
}

impl Counters {
    /// Tablets were joined, this often.
    pub(super) fn joined(&self, count: u64) {
        // Relaxed: a count, nothing is published by it.
        self.joined.fetch_add(count, Ordering::Relaxed);
    }

    fn begun(&self, bytes: u64) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl State {
    /// Whether tablets are balanced at all.
    pub(in crate::work) fn wants_balance(&self) -> bool {
        let receivers = self.up().filter(|info| Self::may_receive(info)).count();
        !self.globals.balance_off && receivers > 1 && !self.tables.is_empty()
    }

    /// What balancing gives way to.
    fn busy_with(&self) -> Option<String> {
        let mut servers = self.servers.values();
        if let Some(crashed) = servers.find(|s| s.info.state == ServerState::Crashed) {
            return Some(format!("waits: server {} is recovered", crashed.info.id));
        }
        let mut servers = self.servers.keys();
        if let Some(drained) = servers.find(|id| self.wants_drain(**id)) {
            return Some(format!("waits: server {drained} is drained"));
        }
        let moves = self.tables.values().map(|t| t.moves.len()).sum::<usize>();
        (moves > 0).then(|| "waits: a tablet moves".to_owned())
    }

    /// Whether balancing may begin a move.
    fn may_balance(&self) -> bool {
        self.wants_balance() && self.busy_with().is_none()
    }

    /// Stores that a tablet shall move, if balancing still may. It looks at the cluster for a while
    /// before this, and somebody may have switched it off, or asked for something else.
    ///
    /// # Errors
    /// See [`State::begin_move`]. Balancing may not begin a move now: come again.
    fn begin_balance_move(
        &mut self,
        request: &MigrateTablet,
    ) -> Result<MigrateTabletReply, Refusal> {
        if !self.may_balance() {
            return Err(Refusal::retry(COME_AGAIN, RetryReason::Busy));
        }
        self.begin_move(request)
    }

    /// All tablets that can move, without what they hold.
    fn balanced(&self, rests: impl Fn(TableId, HashRange) -> bool) -> Vec<Tablet> {
        let mut found = Vec::new();
        for table in self.tables.values().filter(|t| !t.dropping) {
            let all = &table.tablets;
            for (at, tablet) in all.iter().enumerate() {
                if !tablet.is_settled() || table.moves_within(tablet.range) {
                    continue;
                }
                let beside = |at: usize| Some(all.get(at)?.owner);
                found.push(Tablet {
                    table: table.id,
                    range: tablet.range,
                    owner: tablet.owner,
                    bytes: 0,
                    lower: at.checked_sub(1).and_then(beside),
                    upper: beside(at + 1),
                    rests: rests(table.id, tablet.range),
                    can_cut: all.len() < TABLETS_CUT_MAX,
                });
            }
        }
        found
    }
}

/// A migration that was begun for the sake of balance.
#[derive(Clone, Copy, Debug)]
struct Begun {
    table: TableId,
    first: KeyHash,
    id: MigrationId,
    to: ServerId,
}

/// Tablets, by their first hash when they were noted, and when that was.
#[derive(Clone, Default, Debug)]
struct Noted(BTreeMap<(TableId, KeyHash), Moment>);

impl Noted {
    fn note(&mut self, table: TableId, first: KeyHash, now: Moment) {
        self.0.insert((table, first), now);
    }

    /// Forgets what was noted `rest` ago.
    fn settle(&mut self, now: Moment, rest: Duration) {
        self.0.retain(|_, since| now.since(*since) < rest);
        while self.0.len() > REMEMBERED_MAX {
            self.0.pop_first();
        }
    }

    /// Whether any part of a tablet was noted. A tablet that has moved, or was cut for a move, may
    /// have been joined with the one below it since.
    fn touches(&self, table: TableId, range: HashRange) -> bool {
        let mut within = self.0.range((table, range.first)..=(table, range.last));
        within.next().is_some()
    }
}

/// Knowledge of the work, beside the state.
#[derive(Clone, Default, Debug)]
struct Memory {
    /// Requests of each server at the latest look, and when that was.
    requests: Option<(Moment, BTreeMap<ServerId, u64>)>,
    last: Option<Begun>,
    /// When tablets were moved.
    moved: Noted,
    /// When tablets could not be moved.
    failed: Noted,
}

impl Memory {
    /// Looks how the latest migration has ended.
    fn settle(&mut self, state: &State, now: Moment, rest: Duration) {
        self.moved.settle(now, rest);
        self.failed.settle(now, rest);
        let Some(last) = self.last else { return };
        let table = state.tables.get(&last.table).filter(|t| !t.dropping);
        if table.is_some_and(|t| t.moves.iter().any(|m| m.id == last.id)) {
            return;
        }
        self.last = None;
        let mut tablets = table.into_iter().flat_map(|t| &t.tablets);
        if tablets.any(|t| t.range.contains(last.first) && t.owner != last.to) {
            self.failed.note(last.table, last.first, now);
        }
    }

    /// Requests a second of each server since the latest look, if nothing has moved since.
    fn rates(&mut self, now: Moment, requests: BTreeMap<ServerId, u64>) -> BTreeMap<ServerId, u64> {
        let before = self.requests.replace((now, requests));
        let Some((then, before)) = before else {
            return BTreeMap::new();
        };
        let (_, requests) = self.requests.as_ref().expect("it was just noted");
        let millis = now.since(then).as_millis().max(1);
        let rate = |(id, count): (&ServerId, &u64)| {
            let more = count.checked_sub(*before.get(id)?)?;
            let rate = u128::from(more) * 1000 / millis;
            Some((*id, u64::try_from(rate).unwrap_or(u64::MAX)))
        };
        requests.iter().filter_map(rate).collect()
    }
}

/// The cluster as balancing sees it, and as it would be after moves.
struct View {
    state: Arc<State>,
    loads: Loads,
    tablets: Vec<Tablet>,
    failed: Noted,
    /// Servers whose objects were counted.
    counted: BTreeSet<ServerId>,
}

impl View {
    fn counts(&self) -> BTreeMap<TableId, usize> {
        let tables = self.state.tables.values();
        tables.map(|t| (t.id, t.tablets.len())).collect()
    }

    fn of(&self, server: ServerId) -> Vec<Tablet> {
        let own = self.tablets.iter().filter(|t| t.owner == server);
        own.filter(|t| !self.failed.touches(t.table, t.range))
            .copied()
            .collect()
    }

    /// As if it had moved. Nobody knows how many requests each server has then.
    fn apply(&mut self, want: &Want, step: &Step) {
        let loads = &mut self.loads;
        for load in loads.values_mut() {
            load.rate = None;
        }
        if let Some(from) = loads.get_mut(&want.from) {
            from.live = from.live.saturating_sub(step.bytes);
        }
        if let Some(to) = loads.get_mut(&want.to) {
            to.live = to.live.saturating_add(step.bytes);
        }
        for tablet in &mut self.tablets {
            if tablet.table != step.table || !tablet.range.overlaps(&step.range) {
                continue;
            }
            if tablet.range == step.range {
                (tablet.owner, tablet.rests) = (want.to, true);
                continue;
            }
            // What is left.
            tablet.bytes = tablet.bytes.saturating_sub(step.bytes);
            if tablet.range.first == step.range.first {
                tablet.range.first = KeyHash(step.range.last.0.saturating_add(1));
                tablet.lower = Some(want.to);
            } else {
                tablet.range.last = KeyHash(step.range.first.0.saturating_sub(1));
                tablet.upper = Some(want.to);
            }
        }
    }
}

/// The work of `Work::Balance`, and the requests that concern it.
pub(crate) struct Balances {
    context: Arc<Context>,
    migrations: Arc<Migrations>,
    counters: Arc<Counters>,
    /// What it does.
    phase: Mutex<String>,
    /// What it knew at its latest step.
    known: Mutex<Memory>,
}

impl Balances {
    pub(super) fn new(
        context: Arc<Context>,
        migrations: Arc<Migrations>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            context,
            migrations,
            counters,
            phase: Mutex::default(),
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Memory> {
        // Held for single steps.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn phase(&self) -> MutexGuard<'_, String> {
        // Held for single steps.
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What balancing does, without a plan.
    pub(crate) fn status(&self) -> BalanceStatus {
        let state = self.context.state();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let phase = match (state.globals.balance_off, state.wants_balance()) {
            (true, _) => "off".to_owned(),
            (false, false) => "nothing to balance: fewer than two servers, or no table".to_owned(),
            (false, true) => self.phase().clone(),
        };
        BalanceStatus {
            on: !state.globals.balance_off,
            phase,
            begun: read(&self.counters.begun),
            begun_bytes: read(&self.counters.bytes),
            joined: read(&self.counters.joined),
            moves: Vec::new(),
        }
    }

    /// Switches it, or says what it does and would do.
    pub(crate) async fn ask(&self, wish: BalanceWish) -> Result<BalanceStatus, Refusal> {
        match wish {
            BalanceWish::Look => {}
            BalanceWish::Plan => {
                let moves = self.plan().await;
                return Ok(BalanceStatus {
                    moves,
                    ..self.status()
                });
            }
            BalanceWish::On | BalanceWish::Off => {
                let off = wish == BalanceWish::Off;
                let switch = move |state: &mut State| {
                    state.globals.balance_off = off;
                    Ok(())
                };
                self.context.ledger.change_for_caller(switch).await?;
                tracing::info!(on = !off, "balance");
            }
        }
        Ok(self.status())
    }

    /// Runs until there is nothing to balance, or it is switched off.
    pub(super) async fn balance(&self) {
        let mut memory = Memory::default();
        loop {
            // First: a cluster that has just changed is not looked at.
            let over = self.context.ledger.until(|state| !state.wants_balance());
            let pause = self.context.options.balance.pause;
            if timeout(&*self.context.env.clock, pause, over).await.is_ok() {
                return;
            }
            let phase = self.step(&mut memory).await;
            *self.phase() = phase;
            *self.known() = memory.clone();
        }
    }

    /// Begins at most one move. Gives what it does, for people.
    async fn step(&self, memory: &mut Memory) -> String {
        let state = self.context.state();
        let options = &self.context.options.balance;
        let now = self.context.now();
        memory.settle(&state, now, options.rest);
        if let Some(waits) = state.busy_with() {
            memory.requests = None;
            return waits;
        }
        let mut view = self.view(state, memory).await;
        let Some((want, step)) = self.next(&mut view).await else {
            return "even".to_owned();
        };
        // The look took a while.
        let state = self.context.state();
        if let Some(waits) = state.busy_with() {
            return waits;
        }
        memory.requests = None;
        let why = want.why.text(want.from, want.to);
        let request = MigrateTablet {
            table: TableRef::Id(step.table),
            tablet: WhichTablet::Range(step.range),
            to: want.to,
        };
        let begin = move |state: &mut State| state.begin_balance_move(&request);
        match self.migrations.begin(want.to, begin).await {
            Ok(reply) => {
                let Some(id) = reply.migration else {
                    return "even".to_owned();
                };
                pluvio_units::mark("balance-move");
                tracing::info!(table = %step.table, range = %reply.range, from = %want.from, to = %want.to, bytes = step.bytes, why, "balance moves a tablet");
                self.counters.begun(step.bytes);
                let (table, first, to) = (step.table, reply.range.first, want.to);
                memory.moved.note(table, first, now);
                memory.last = Some(Begun {
                    table,
                    first,
                    id,
                    to,
                });
                format!("moves {} to server {to}: {why}", reply.range)
            }
            Err(refusal) => {
                if self.context.state().may_balance() {
                    memory.failed.note(step.table, step.range.first, now);
                }
                format!("waits: {refusal}")
            }
        }
    }

    /// The moves that it would make from here, one after the other.
    async fn plan(&self) -> Vec<BalanceMove> {
        let state = self.context.state();
        let mut known = self.known().clone();
        let mut view = self.view(state, &mut known).await;
        let mut moves = Vec::new();
        while moves.len() < PLAN_MAX {
            let Some((want, step)) = self.next(&mut view).await else {
                break;
            };
            view.apply(&want, &step);
            let name = |table: TableId| Some(view.state.tables.get(&table)?.name.clone());
            moves.push(BalanceMove {
                table: step.table,
                name: name(step.table).unwrap_or_default(),
                range: step.range,
                from: want.from,
                to: want.to,
                bytes: step.bytes,
                why: want.why.text(want.from, want.to),
            });
        }
        moves
    }

    async fn next(&self, view: &mut View) -> Option<(Want, Step)> {
        let options = &self.context.options.balance;
        for want in [
            plan::uneven(&view.loads, options),
            plan::busy(&view.loads, options),
        ] {
            let Some(want) = want else { continue };
            self.count(view, want.from).await;
            if let Some(step) = plan::choose(&view.of(want.from), &view.loads, &want) {
                return Some((want, step));
            }
        }
        let able: Vec<Tablet> = { view.loads.keys().copied() }
            .flat_map(|server| view.of(server))
            .collect();
        let found = plan::gather(&able, &view.loads, &view.counts());
        for (tablet, want) in found.into_iter().take(GATHERED_MAX) {
            self.count(view, want.from).await;
            let is_it = |t: &&Tablet| (t.table, t.range) == (tablet.table, tablet.range);
            let Some(bytes) = view.tablets.iter().find(is_it).map(|counted| counted.bytes) else {
                continue;
            };
            if plan::may_gather(&view.loads, &want, bytes, options) {
                let step = Step {
                    table: tablet.table,
                    range: tablet.range,
                    bytes,
                };
                return Some((want, step));
            }
        }
        None
    }

    /// Asks all servers how full and busy they are.
    async fn view(&self, state: Arc<State>, memory: &mut Memory) -> View {
        let servers: Vec<ServerInfo> = { state.up() }
            .filter(|info| State::may_receive(info))
            .cloned()
            .collect();
        let calls = &self.context.calls;
        let answers = stream::iter(servers).map(|info| async move {
            let status = calls.call(&info, &GetServerStatus {}, LIMIT).await.ok()?;
            Some((info.id, status))
        });
        let answers = answers.buffer_unordered(CALLS_MAX);
        let answers: BTreeMap<_, _> = answers.filter_map(|a| async move { a }).collect().await;
        let now = self.context.now();
        let requests = answers.iter().map(|(id, s)| (*id, s.requests)).collect();
        let rates = memory.rates(now, requests);
        let load = |(id, status): (ServerId, pluvio_wire::ServerStatus)| {
            let load = Load {
                live: status.memory_live,
                max: live_max(&status),
                rate: rates.get(&id).copied(),
            };
            (id, load)
        };
        let rests = |table, range| memory.moved.touches(table, range);
        View {
            tablets: state.balanced(rests),
            loads: answers.into_iter().map(load).collect(),
            failed: memory.failed.clone(),
            counted: BTreeSet::new(),
            state,
        }
    }

    /// Asks a server what its tablets hold, if it was not asked yet.
    async fn count(&self, view: &mut View, server: ServerId) {
        if !view.counted.insert(server) {
            return;
        }
        let Some(info) = view.state.servers.get(&server).map(|s| s.info.clone()) else {
            return;
        };
        let mut widths: BTreeMap<TableId, u64> = BTreeMap::new();
        for tablet in view.tablets.iter().filter(|t| t.owner == server) {
            let width = (tablet.range.last.0 - tablet.range.first.0) >> 1;
            let sum = widths.entry(tablet.table).or_default();
            *sum = sum.saturating_add(width);
        }
        let mut tables: Vec<TableId> = widths.keys().copied().collect();
        tables.sort_by_key(|table| core::cmp::Reverse(widths[table]));
        tables.truncate(TABLES_MAX);
        let (calls, info) = (&self.context.calls, &info);
        let answers = stream::iter(tables).map(|table| async move {
            let count = calls
                .call(info, &CountObjects { table }, LIMIT)
                .await
                .ok()?;
            Some((table, log_bytes(&count)))
        });
        let answers = answers.buffer_unordered(CALLS_MAX);
        let bytes: BTreeMap<TableId, u64> =
            answers.filter_map(|a| async move { a }).collect().await;
        for tablet in view.tablets.iter_mut().filter(|t| t.owner == server) {
            if let (Some(all), Some(record)) = (
                bytes.get(&tablet.table),
                view.state.tables.get(&tablet.table),
            ) {
                tablet.bytes = share_of(record, server, tablet.range, *all);
            }
        }
    }
}

#[cfg(test)]
mod tests;
