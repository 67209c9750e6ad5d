//! Gets the tablets of a new table taken by their owners.

use crate::shared::Shared;
use crate::state::State;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::CallError;
use pluvio_units::{HashRange, ServerId, TableId};
use pluvio_wire::{
    Refusal, RetryReason, RpcError, ServerInfo, TabletSpec, TabletState, TakeTablets,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pause after an owner could not take its tablets.
const RETRY: Duration = Duration::from_millis(100);

/// The tablets of a table that nobody has confirmed yet, by owner, for owners that are up.
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
            let by_owner = unconfirmed(&state, table);
            if by_owner.is_empty() {
                self.memory().troubles.remove(&table);
                return;
            }
            if by_owner.keys().any(|owner| !state.is_up(*owner)) {
                let rng = self.env.rng.clone();
                let done = self.change(move |state| Ok(state.reassign(table, &*rng)));
                if done.await != Ok(true) {
                    self.until(|state| state.up().next().is_some()).await;
                    self.env.clock.sleep(RETRY).await;
                }
                continue;
            }
            let takings = by_owner.into_iter().map(|(owner, tablets)| {
                let info = state.servers[&owner].info.clone();
                self.take(table, info, tablets)
            });
            if !join_all(takings).await.into_iter().all(|taken| taken) {
                self.env.clock.sleep(RETRY).await;
            }
        }
    }

    /// Asks one owner to take its tablets.
    async fn take(
        self: &Arc<Self>,
        table: TableId,
        owner: ServerInfo,
        tablets: Vec<TabletSpec>,
    ) -> bool {
        let ranges: Vec<HashRange> = tablets.iter().map(|t| t.range).collect();
        let request = TakeTablets { tablets };
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
