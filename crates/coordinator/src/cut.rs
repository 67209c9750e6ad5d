//! Tells owners where their tablets were cut.

use crate::shared::Shared;
use core::time::Duration;
use pluvio_units::{KeyHash, TableId};
use pluvio_wire::{FatalKind, RpcError, SplitTabletLocal, TabletState};
use std::sync::Arc;

/// The pause after an owner did not answer.
const RETRY: Duration = Duration::from_millis(100);

impl Shared {
    /// Ends when all cuts of the table are confirmed. A cut of a tablet whose owner crashed needs
    /// none: who recovers it is given the parts.
    pub(crate) async fn tell_cuts(self: &Arc<Self>, table: TableId) {
        loop {
            let state = self.state();
            let Some(record) = state.tables.get(&table) else {
                return;
            };
            let Some(&at) = record.cuts.first() else {
                return;
            };
            let owner = record
                .tablets
                .iter()
                .find(|t| t.range.contains(at) && t.state == TabletState::Normal)
                .and_then(|t| state.servers.get(&t.owner));
            let is_told = match owner {
                None => true,
                Some(owner) => {
                    let version = state.globals.version;
                    let request = SplitTabletLocal { version, table, at };
                    match self.call_while_up(&owner.info, &request).await {
                        None | Some(Ok(())) => true,
                        Some(Err(error)) => {
                            tracing::debug!(%table, %at, %error, "cut not confirmed");
                            // It has no such tablet: then it has nothing to cut either.
                            matches!(&error, RpcError::Refused(r) if r.fatal_kind() == Some(FatalKind::NotFound))
                        }
                    }
                }
            };
            if !(is_told && self.forget_cut(table, at).await) {
                self.env.clock.sleep(RETRY).await;
            }
        }
    }

    async fn forget_cut(self: &Arc<Self>, table: TableId, at: KeyHash) -> bool {
        let stored = self.change(move |state| {
            if let Some(record) = state.table_mut(table) {
                record.cuts.retain(|cut| *cut != at);
            }
            Ok(())
        });
        stored.await.is_ok()
    }
}
