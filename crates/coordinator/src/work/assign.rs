//! Tables that are new: choosing owners, and getting the tablets taken by them.
//!
//! 1. A request stores the table, each tablet with an owner that has not confirmed it.
//! 2. This work asks each owner to take its tablets, until it has.
//! 3. The confirmation is stored. Clients are sent to confirmed owners only.
//!
//! An owner may crash before step 3. Nothing is lost then, as no client has written there. But its
//! answer may have been lost on the way, and it may not know that it was declared dead. So others
//! get its tablets as they get recovered ones: after the crashed owner has lost its lease (LEASE-2;
//! see the weaknesses in `docs/membership.md`). The other owners are asked meanwhile. Tablets that
//! begin anew are not new to all clients (COORD-24).

use super::recover::{collect, opened, reconstruct_without};
use crate::context::Context;
use crate::refusals::{COME_AGAIN, FOLLOW_MAX};
use crate::state::{FORMAT_SLOTS, State, TABLETS_MAX, TableRecord, TabletRecord};
use core::time::Duration;
use futures_util::future::{join, join_all};
use pluvio_env::{CallError, Rng, timeout};
use pluvio_units::{HashKind, HashRange, ServerId, TableId};
use pluvio_wire::{
    CreateTable, FatalKind, Refusal, RetryReason, RpcError, ServerInfo, TableInfo, TableRef,
    TabletSpec, TabletState, TakeTablets, check_table_name,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most tables. Lists of them travel whole, and every change looks at all of them.
pub(super) const TABLES_MAX: usize = 4096;
/// The pause after an owner could not take its tablets.
const RETRY: Duration = Duration::from_millis(100);

/// The servers that may be given tablets.
pub(crate) enum Candidates {
    /// All that are up.
    All,
    /// These, as far as they are up.
    Only(BTreeSet<ServerId>),
}

impl Candidates {
    /// Whether there is nobody to choose, whoever is up.
    pub(crate) fn is_nobody(&self) -> bool {
        match self {
            Self::All => false,
            Self::Only(some) => some.is_empty(),
        }
    }

    fn has(&self, server: ServerId) -> bool {
        match self {
            Self::All => true,
            Self::Only(some) => some.contains(&server),
        }
    }
}

impl State {
    /// Stores a new table, its tablets not yet confirmed; or finds the one of that name.
    pub(crate) fn create_table(
        &mut self,
        request: CreateTable,
        seed: u64,
        rng: &dyn Rng,
    ) -> Result<TableId, Refusal> {
        check_table_name(&request.name)?;
        if request.span == Some(0) {
            let message = "a table spans at least one server";
            return Err(Refusal::fatal(FatalKind::Malformed, message));
        }
        if let Ok(table) = self.find(&TableRef::Name(request.name.clone())) {
            return Ok(table.id);
        }
        if self.tables.len() >= TABLES_MAX {
            let message = format!("the cluster has {TABLES_MAX} tables, the most it can have");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        let mut owners = self.choose_owners(request.span, rng);
        // A table that is made again, as by FLUSHALL, lies as before: clients that go straight to
        // owners know where.
        owners.sort_unstable();
        if owners.is_empty() {
            let after = Duration::from_millis(200);
            return Err(Refusal::retry(after, RetryReason::NotServing));
        }
        let kept = self.globals.kept_quotas.get(&request.name).copied();
        let quota = self.changed_quota(kept, &request.quota)?;
        let kept = self.globals.kept_classes.get(&request.name);
        let class = match kept.filter(|_| request.durability.is_empty()) {
            Some(kept) => Some(*kept),
            None => self.class_for(&request.durability)?,
        };
        self.globals.kept_quotas.remove(&request.name);
        self.globals.kept_classes.remove(&request.name);
        let id = self.globals.last_table.next();
        self.globals.last_table = id;
        if request.hash == HashKind::Slots {
            self.globals.format = self.globals.format.max(FORMAT_SLOTS);
        }
        let tablets = request
            .hash
            .split(HashRange::ALL, owners.len() as u64)
            .into_iter()
            .zip(owners)
            .map(|(range, owner)| TabletRecord::new(range, owner))
            .collect();
        let record = TableRecord {
            id,
            name: request.name,
            seed,
            hash: request.hash,
            dropping: false,
            tablets,
            cuts: Vec::new(),
            kept: BTreeSet::new(),
            moves: Vec::new(),
            quota,
            class,
        };
        self.tables.insert(id, Arc::new(record));
        Ok(id)
    }

    /// Which servers get new tablets only where no others are up. They are those that keep no
    /// replicas, while others do, and those that are drained (COORD-16).
    fn reluctance(info: &ServerInfo) -> (bool, bool) {
        (info.volatile, info.draining)
    }

    /// The servers with the fewest tablets; among equals, any.
    fn choose_owners(&self, span: Option<u32>, rng: &dyn Rng) -> Vec<ServerId> {
        self.choose_owners_of(span, &Candidates::All, rng)
    }

    /// The same, of some servers.
    fn choose_owners_of(&self, span: Option<u32>, of: &Candidates, rng: &dyn Rng) -> Vec<ServerId> {
        let up = self.up().filter(|info| of.has(info.id));
        let best = up.map(Self::reluctance).min();
        let mut candidates: Vec<(usize, ServerId)> = self
            .loads()
            .into_iter()
            .filter(|(server, _)| of.has(*server))
            .filter(|(server, _)| Some(Self::reluctance(&self.servers[server].info)) == best)
            .map(|(server, load)| (load, server))
            .collect();
        rng.shuffle(&mut candidates);
        candidates.sort_by_key(|(load, _)| *load);
        let wanted = span.map_or(TABLETS_MAX, |n| n as usize).min(TABLETS_MAX);
        candidates.truncate(wanted);
        candidates.into_iter().map(|(_, server)| server).collect()
    }

    /// Gives tablets that nobody confirmed, of owners that crashed and serve nothing any more, to
    /// servers that are up. False when there is none.
    pub(crate) fn reassign(
        &mut self,
        table: TableId,
        crashed: &BTreeSet<ServerId>,
        to: &Candidates,
        rng: &dyn Rng,
    ) -> bool {
        let Some(record) = self.tables.get(&table) else {
            return true;
        };
        let orphans: Vec<usize> = (0..record.tablets.len())
            .filter(|i| {
                let tablet = &record.tablets[*i];
                tablet.state == TabletState::Assigning && crashed.contains(&tablet.owner)
            })
            .collect();
        for index in orphans {
            let Some(owner) = self.choose_owners_of(Some(1), to, rng).pop() else {
                return false;
            };
            let record = self.table_mut(table).expect("it was just there");
            record.tablets[index].owner = owner;
        }
        true
    }
}

/// The tablets of a table that are not confirmed yet, by owner.
fn unconfirmed(state: &State, table: TableId) -> BTreeMap<ServerId, Vec<TabletSpec>> {
    let mut by_owner: BTreeMap<_, Vec<_>> = BTreeMap::new();
    if let Some(record) = state.tables.get(&table).filter(|t| !t.dropping) {
        for tablet in &record.tablets {
            if tablet.state == TabletState::Assigning {
                let specs = by_owner.entry(tablet.owner).or_default();
                specs.push(record.spec(tablet));
            }
        }
    }
    by_owner
}

/// Notes that `owner` has taken these tablets, as far as they are still meant for it.
fn confirm(state: &mut State, table: TableId, owner: ServerId, ranges: &[HashRange]) {
    if let Some(record) = state.table_mut(table) {
        for tablet in &mut record.tablets {
            if tablet.owner == owner
                && tablet.state == TabletState::Assigning
                && ranges.contains(&tablet.range)
            {
                tablet.state = TabletState::Normal;
                tablet.anew = false;
            }
        }
    }
}

/// The work of `Work::Assign`, and the request that leads to it.
pub(crate) struct Assignments {
    context: Arc<Context>,
    /// Why the owners of a new table's tablets do not take them yet.
    refusals: Mutex<BTreeMap<TableId, RetryReason>>,
}

impl Assignments {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            refusals: Mutex::default(),
        }
    }

    fn refusals(&self) -> MutexGuard<'_, BTreeMap<TableId, RetryReason>> {
        // Held for single steps.
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers when all owners have taken their tablets.
    ///
    /// # Errors
    /// They have not taken them in time: the table is there, and a caller that asks again waits on.
    pub(crate) async fn create_table(&self, request: CreateTable) -> Result<TableInfo, Refusal> {
        let known = self.context.state();
        let known = known.find(&TableRef::Name(request.name.clone()));
        let id = match known {
            // Nothing has to be stored, which may be impossible now.
            Ok(table) if !table.has(TabletState::Assigning) => table.id,
            Ok(_) | Err(_) => self.create(request).await?,
        };
        let not_taken = |state: &Arc<State>| {
            let table = state.tables.get(&id);
            table.is_some_and(|t| !t.dropping && t.has(TabletState::Assigning))
        };
        let taken = self.context.ledger.until(|state| !not_taken(state));
        if timeout(&*self.context.env.clock, FOLLOW_MAX, taken)
            .await
            .is_err()
        {
            let why = match self.context.ledger.tenure().is_stuck() {
                // Its servers have it perhaps, and nobody can store that.
                true => RetryReason::MetadataTrouble,
                false => {
                    let known = self.refusals().get(&id).copied();
                    known.unwrap_or(RetryReason::TabletNotReady)
                }
            };
            return Err(Refusal::retry(COME_AGAIN, why));
        }
        let state = self.context.state();
        Ok(state.info(state.find(&TableRef::Id(id))?))
    }

    /// Stores a new table, unless another caller just did.
    async fn create(&self, request: CreateTable) -> Result<TableId, Refusal> {
        let seed = self.context.env.rng.next_u64();
        let rng = self.context.env.rng.clone();
        let name = request.name.clone();
        let create = move |state: &mut State| {
            let last = state.globals.last_table;
            let id = state.create_table(request, seed, &*rng)?;
            Ok((id, state.globals.last_table != last))
        };
        let created = self.context.ledger.change_for_caller(create);
        let (id, is_new) = created.await?;
        if is_new {
            tracing::info!(table = %id, name, "table created");
        }
        Ok(id)
    }

    /// Ends when all tablets are confirmed, or the table is dropped.
    pub(super) async fn assign(&self, table: TableId) {
        loop {
            let state = self.context.state();
            let unconfirmed = unconfirmed(&state, table);
            if unconfirmed.is_empty() {
                self.refusals().remove(&table);
                return;
            }
            let (living, crashed): (BTreeMap<_, _>, BTreeMap<_, _>) = unconfirmed
                .into_iter()
                .partition(|(owner, _)| state.is_up(*owner));
            let takings = living.into_iter().map(|(owner, tablets)| {
                let info = state.servers[&owner].info.clone();
                let request = TakeTablets {
                    version: state.globals.version,
                    first_version: state.first_version(&state.tables[&table], &info),
                    tablets,
                };
                self.take(table, info, request)
            });
            let replacing = self.replace_owners(table, crashed.into_keys().collect());
            let (taken, replaced) = join(join_all(takings), replacing).await;
            if !replaced || !taken.into_iter().all(|taken| taken) {
                self.context
                    .ledger
                    .until(|state| state.up().next().is_some())
                    .await;
                self.context.sleep(RETRY).await;
            }
        }
    }

    /// Gives the unconfirmed tablets of crashed owners to others. False when that must be tried
    /// again.
    async fn replace_owners(&self, table: TableId, crashed: BTreeSet<ServerId>) -> bool {
        if crashed.is_empty() {
            return true;
        }
        let fences = crashed.iter().map(|owner| self.fence(*owner, table));
        if !join_all(fences).await.into_iter().all(|fenced| fenced) {
            return false;
        }
        self.context.sleep(self.context.options.zombie_grace).await;
        let state = self.context.state();
        let anew = crashed.iter().any(|owner| state.begins_anew(table, *owner));
        let to = match anew {
            true => Candidates::Only(opened(&self.context).await),
            false => Candidates::All,
        };
        if to.is_nobody() {
            return false;
        }
        let now_s = self.context.env.clock.unix_seconds();
        let rng = self.context.env.rng.clone();
        let change = move |state: &mut State| {
            if anew {
                state.raise_first_version(now_s);
            }
            Ok(state.reassign(table, &crashed, &to, &*rng))
        };
        self.context.ledger.change(change).await == Ok(true)
    }

    /// Lets the servers that are up take part in the recovery of a crashed one. From then on none
    /// of them is a witness of its lease (LEASE-1). False when too few answered to take tablets of
    /// this table from it.
    async fn fence(&self, crashed: ServerId, table: TableId) -> bool {
        let before = self.context.state();
        let Some(record) = before.servers.get(&crashed) else {
            return true;
        };
        if record.info.volatile {
            // It has no witnesses, and had the coordinator's word for the last time before it
            // crashed (LEASE-4).
            return true;
        }
        let inventories = collect(&self.context, crashed).await;
        let weak = before.weak_logs(record).all_left_out();
        // Of new tablets, what was given up proves nothing: no witness may have been asked.
        let anew = before.begins_anew(table, crashed);
        let given_up = record.given_up.as_ref().filter(|_| anew);
        if reconstruct_without(&inventories, &record.epochs, None, given_up, &weak).is_ok() {
            // As in a recovery: a witness is among those that answered (LEASE-2).
            return true;
        }
        if anew {
            // It may serve what it had before (COORD-24).
            return false;
        }
        // Its logs may never have been open. A server that crashed meanwhile is not waited for.
        let answered: BTreeSet<ServerId> = inventories.iter().map(|i| i.backup).collect();
        let after = self.context.state();
        let mut silent = before.up().filter(|s| !answered.contains(&s.id));
        silent.all(|server| !after.is_up(server.id))
    }

    /// Asks one owner to take its tablets.
    async fn take(&self, table: TableId, owner: ServerInfo, request: TakeTablets) -> bool {
        let ranges: Vec<HashRange> = request.tablets.iter().map(|t| t.range).collect();
        match self.context.calls.call_while_up(&owner, &request).await {
            Some(Ok(())) => {
                let id = owner.id;
                let stored = self.context.ledger.change(move |state| {
                    // An owner that crashed meanwhile was asked for nothing that it could lose.
                    if state.is_up(id) {
                        confirm(state, table, id, &ranges);
                    }
                    Ok(())
                });
                stored.await.is_ok()
            }
            Some(Err(error)) => {
                let why = match &error {
                    RpcError::Refused(Refusal::Retry { why, .. }) => *why,
                    // It answers once its logs are open, and for that it needs backups.
                    RpcError::Call(CallError::TimedOut(..)) => RetryReason::TooFewBackups,
                    RpcError::Refused(_) | RpcError::Call(_) | RpcError::BadReply(..) => {
                        RetryReason::TabletNotReady
                    }
                };
                tracing::debug!(%table, server = %owner.id, %error, "tablets not taken");
                self.refusals().insert(table, why);
                false
            }
            None => false,
        }
    }
}
