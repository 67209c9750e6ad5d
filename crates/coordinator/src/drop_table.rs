//! Gets a dropped table forgotten by its owners.

use crate::shared::Shared;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_units::{ServerId, TableId};
use pluvio_wire::{DropTablets, ServerInfo, TabletState};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The pause after an owner did not answer.
const RETRY: Duration = Duration::from_millis(100);

impl Shared {
    /// Ends when no tablet of the table is left, and no migration of one. Tablets being recovered
    /// are left to the recovery: it drops them before its next attempt, or gives them to a new
    /// owner first.
    pub(crate) async fn drop_tablets(self: &Arc<Self>, table: TableId) {
        let mut states = self.watch();
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
            let removed = self.change(move |state| {
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
                self.env.clock.sleep(RETRY).await;
            }
        }
    }

    /// Asks one server to forget a table, and notes that it did.
    async fn drop_at(self: &Arc<Self>, server: ServerInfo, request: DropTablets) -> bool {
        let table = request.table;
        let is_forgotten = match self.call_while_up(&server, &request).await {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::debug!(%table, server = %server.id, %error, "table not dropped");
                false
            }
            // It crashed. What it had not confirmed holds nothing; the rest is now recovering.
            None => true,
        };
        if !is_forgotten {
            return false;
        }
        let id = server.id;
        let stored = self.change(move |state| {
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
