//! Gets the tablets of a new table taken by their owners.
//!
//! An owner may crash before it has confirmed. Nothing is lost then, because clients are sent to
//! confirmed owners only; but it may have taken its tablets, its answer lost on the way, and not
//! know that it was declared dead. So others get them as they get recovered ones: only after the
//! crashed owner has lost its lease (LEASE-2; what remains is in the weaknesses of
//! `docs/membership.md`). The other owners are asked meanwhile.

use crate::recovery::reconstruct;
use crate::shared::Shared;
use crate::state::State;
use core::time::Duration;
use futures_util::future::{join, join_all};
use pluvio_env::CallError;
use pluvio_units::{HashRange, ServerId, TableId};
use pluvio_wire::{
    Refusal, RetryReason, RpcError, ServerInfo, TabletSpec, TabletState, TakeTablets,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The pause after an owner could not take its tablets.
const RETRY: Duration = Duration::from_millis(100);

/// The tablets of a table that nobody has confirmed yet, by owner.
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
            }
        }
    }
}

impl Shared {
    /// Ends when all tablets are confirmed, or the table is dropped.
    pub(crate) async fn assign(self: &Arc<Self>, table: TableId) {
        loop {
            let state = self.state();
            let unconfirmed = unconfirmed(&state, table);
            if unconfirmed.is_empty() {
                self.memory().troubles.remove(&table);
                return;
            }
            let (living, crashed): (BTreeMap<_, _>, BTreeMap<_, _>) = unconfirmed
                .into_iter()
                .partition(|(owner, _)| state.is_up(*owner));
            let takings = living.into_iter().map(|(owner, tablets)| {
                let info = state.servers[&owner].info.clone();
                let version = state.globals.version;
                self.take(table, info, TakeTablets { version, tablets })
            });
            let replacing = self.replace_owners(table, crashed.into_keys().collect());
            let (taken, replaced) = join(join_all(takings), replacing).await;
            if !replaced || !taken.into_iter().all(|taken| taken) {
                self.until(|state| state.up().next().is_some()).await;
                self.env.clock.sleep(RETRY).await;
            }
        }
    }

    /// Gives the unconfirmed tablets of crashed owners to others. False when that must be tried
    /// again.
    async fn replace_owners(self: &Arc<Self>, table: TableId, crashed: BTreeSet<ServerId>) -> bool {
        if crashed.is_empty() {
            return true;
        }
        let fences = crashed.iter().map(|owner| self.fence(*owner));
        if !join_all(fences).await.into_iter().all(|fenced| fenced) {
            return false;
        }
        self.env.clock.sleep(self.options.zombie_grace).await;
        let rng = self.env.rng.clone();
        let done = self.change(move |state| Ok(state.reassign(table, &crashed, &*rng)));
        done.await == Ok(true)
    }

    /// Lets the servers that are up take part in the recovery of a crashed one, so that none of
    /// them is a witness of its lease any more (LEASE-1). False when too few answered.
    async fn fence(self: &Arc<Self>, crashed: ServerId) -> bool {
        let before = self.state();
        let Some(record) = before.servers.get(&crashed) else {
            return true;
        };
        if record.info.volatile {
            // It has no witnesses, and had the coordinator's word for the last time before it
            // crashed (LEASE-4).
            return true;
        }
        let inventories = self.collect(crashed).await;
        if reconstruct(&inventories, &record.epochs).is_ok() {
            // As in a recovery: a witness is among those that answered (LEASE-2).
            return true;
        }
        // Its logs may never have been open. A server that crashed meanwhile is not waited for.
        let answered: BTreeSet<ServerId> = inventories.iter().map(|i| i.backup).collect();
        let after = self.state();
        let mut silent = before.up().filter(|s| !answered.contains(&s.id));
        silent.all(|server| !after.is_up(server.id))
    }

    /// Asks one owner to take its tablets.
    async fn take(
        self: &Arc<Self>,
        table: TableId,
        owner: ServerInfo,
        request: TakeTablets,
    ) -> bool {
        let ranges: Vec<HashRange> = request.tablets.iter().map(|t| t.range).collect();
        match self.call_while_up(&owner, &request).await {
            Some(Ok(())) => {
                let id = owner.id;
                let stored = self.change(move |state| {
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
                self.memory().troubles.insert(table, why);
                false
            }
            None => false,
        }
    }
}
