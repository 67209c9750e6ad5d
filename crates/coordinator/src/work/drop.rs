//! Dropped tables: getting them forgotten by the owners of their tablets.
//!
//! 1. A request takes the table's name away, which is free from then on.
//! 2. This work asks each owner to forget the table, until it has.
//! 3. The tablets of an owner that has forgotten them are removed; with the last one, the table.

use super::assign::TABLES_MAX;
use crate::context::Context;
use crate::refusals::{COME_AGAIN, FOLLOW_MAX, no_such_table};
use crate::state::{State, TableRecord};
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::timeout;
use pluvio_units::{ServerId, TableId};
use pluvio_wire::{
    DropTable, DropTablets, FatalKind, Refusal, RetryReason, ServerInfo, TableRef, TabletState,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The pause after an owner did not answer.
const RETRY: Duration = Duration::from_millis(100);

impl State {
    /// Takes a table's name away; its tablets stay listed until their owners have forgotten them.
    /// With `keep_quota` the next table of the name has the quota of this one, and its durability.
    /// Without it, those of a table that was emptied are forgotten, too: `None` if it was that.
    pub(super) fn drop_table(
        &mut self,
        table: &TableRef,
        keep_quota: bool,
    ) -> Result<Option<TableId>, Refusal> {
        if !keep_quota && self.find(table).is_err() && self.forgets_emptied(table) {
            return Ok(None);
        }
        let found = self.find(table)?;
        let (id, name, quota, class) = (found.id, found.name.clone(), found.quota, found.class);
        let quota = quota.filter(|quota| keep_quota && !quota.is_none());
        if let Some(quota) = quota
            && self.globals.kept_quotas.len() < TABLES_MAX
        {
            self.globals.kept_quotas.insert(name.clone(), quota);
        }
        if let Some(class) = class.filter(|_| keep_quota)
            && self.globals.kept_classes.len() < TABLES_MAX
        {
            self.globals.kept_classes.insert(name, class);
        }
        let record = self.table_mut(id).expect("it was just found");
        record.dropping = true;
        record.cuts.clear();
        record.give_up_moves();
        Ok(Some(id))
    }

    /// Whether a table of this name was emptied, and its quota or durability was kept until now.
    fn forgets_emptied(&mut self, table: &TableRef) -> bool {
        let TableRef::Name(name) = table else {
            return false;
        };
        let quota = self.globals.kept_quotas.remove(name).is_some();
        self.globals.kept_classes.remove(name).is_some() || quota
    }

    /// Dropped tables that had the name of this one and that servers still serve.
    fn leaving(&self, table: &TableRef) -> BTreeSet<TableId> {
        let name = match table {
            TableRef::Id(id) => self.tables.get(id).map(|record| &record.name),
            TableRef::Name(name) => Some(name),
        };
        let is_meant = |record: &&Arc<TableRecord>| Some(&record.name) == name;
        let records = self.tables.values().filter(is_meant);
        let dropped = records.filter(|record| record.dropping && record.has(TabletState::Normal));
        dropped.map(|record| record.id).collect()
    }
}

/// The work of `Work::Drop`, and the request that leads to it.
pub(crate) struct Drops {
    context: Arc<Context>,
}

impl Drops {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Answers when the name is free and no server serves a dropped table of this name any more.
    /// The table may have been dropped by an earlier request, whose answer was lost.
    ///
    /// # Errors
    /// There is no such table. Servers have not followed in time: the name is free, and a
    /// caller that asks again waits on.
    pub(crate) async fn drop_table(&self, request: DropTable) -> Result<(), Refusal> {
        let table = request.table.clone();
        let dropped = if request.only_wait {
            Err(no_such_table(&table))
        } else {
            let drop =
                move |state: &mut State| state.drop_table(&request.table, request.keep_quota);
            self.context.ledger.change_for_caller(drop).await
        };
        match &dropped {
            Ok(Some(id)) => tracing::info!(table = %id, "table dropped"),
            Ok(None) => {
                tracing::info!("the quota and durability of an emptied table are forgotten")
            }
            Err(refusal) if refusal.fatal_kind() == Some(FatalKind::NoSuchTable) => {}
            Err(refusal) => return Err(refusal.clone()),
        }
        let leaving = self.context.state().leaving(&table);
        let is_served = |state: &Arc<State>| {
            let mut records = leaving.iter().filter_map(|id| state.tables.get(id));
            records.any(|record| record.has(TabletState::Normal))
        };
        let forgotten = self.context.ledger.until(|state| !is_served(state));
        if timeout(&*self.context.env.clock, FOLLOW_MAX, forgotten)
            .await
            .is_err()
        {
            tracing::info!(
                ?leaving,
                "not all servers have forgotten the dropped table yet"
            );
            let why = match self.context.ledger.tenure().is_stuck() {
                true => RetryReason::MetadataTrouble,
                false => RetryReason::NotReady,
            };
            return Err(Refusal::retry(COME_AGAIN, why));
        }
        dropped.map(|_| ())
    }

    /// Ends when no tablet of the table is left, and no migration of one. Tablets being recovered
    /// are left to the recovery: it drops them before its next attempt, or gives them to a new
    /// owner first.
    pub(super) async fn drop_tablets(&self, table: TableId) {
        let mut states = self.context.ledger.watch();
        loop {
            let state = states.borrow_and_update().clone();
            let Some(record) = state.tables.get(&table) else {
                return;
            };
            let holders: BTreeSet<ServerId> = record
                .tablets
                .iter()
                .filter(|t| t.state != TabletState::Recovering)
                .map(|t| t.owner)
                .collect();
            if holders.is_empty() && !(record.tablets.is_empty() && record.moves.is_empty()) {
                states
                    .changed()
                    .await
                    .expect("the sender lives as long as this");
                continue;
            }
            let dropping = holders
                .into_iter()
                .filter_map(|id| state.servers.get(&id))
                .map(|server| {
                    let version = state.globals.version;
                    self.drop_at(server.info.clone(), DropTablets { version, table })
                });
            let all_done = join_all(dropping).await.into_iter().all(|done| done);
            let removed = self.context.ledger.change(move |state| {
                if state
                    .tables
                    .get(&table)
                    .is_some_and(|t| t.tablets.is_empty() && t.moves.is_empty())
                {
                    state.tables.remove(&table);
                }
                Ok(())
            });
            if removed.await.is_err() || !all_done {
                self.context.sleep(RETRY).await;
            }
        }
    }

    /// Asks one server to forget a table, and notes that it did.
    async fn drop_at(&self, server: ServerInfo, request: DropTablets) -> bool {
        let table = request.table;
        let is_forgotten = match self.context.calls.call_while_up(&server, &request).await {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::debug!(%table, server = %server.id, %error, "table not dropped");
                false
            }
            // It crashed. Its unconfirmed tablets are empty; the rest is now recovering.
            None => true,
        };
        if !is_forgotten {
            return false;
        }
        let id = server.id;
        let stored = self.context.ledger.change(move |state| {
            if let Some(record) = state.table_mut(table) {
                record
                    .tablets
                    .retain(|t| t.owner != id || t.state == TabletState::Recovering);
            }
            Ok(())
        });
        stored.await.is_ok()
    }
}
