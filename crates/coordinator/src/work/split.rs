//! Tablets that are cut in two: letting their owners know.
//!
//! 1. A request stores the cut: the table has both parts from then on, with the same owner.
//! 2. This work sends the owner the cut, until it has confirmed it.
//! 3. The cut is removed from those that are not confirmed.

use crate::context::Context;
use crate::refusals::COME_AGAIN;
use crate::state::{State, TABLETS_MAX};
use core::time::Duration;
use pluvio_units::{KeyHash, TableId};
use pluvio_wire::{
    FatalKind, Refusal, RetryReason, RpcError, SplitTablet, SplitTabletLocal, TableInfo, TableRef,
    TabletState,
};
use std::sync::Arc;

/// The pause after an owner did not answer.
const RETRY: Duration = Duration::from_millis(100);

impl State {
    /// Cuts a tablet in two. A cut that is there already is no error.
    pub(in crate::work) fn split(&mut self, request: &SplitTablet) -> Result<TableId, Refusal> {
        let table = self.find(&request.table)?;
        let id = table.id;
        let widest = table
            .tablets
            .iter()
            .max_by_key(|t| t.range.last.0 - t.range.first.0)
            .expect("a table has tablets (COORD-5)");
        let halves = table.hash.split(widest.range, 2);
        let middle = halves.last().expect("one part at least").first;
        let at = table.hash.border(request.at.unwrap_or(middle));
        let tablet = table
            .tablets
            .iter()
            .find(|t| t.range.contains(at))
            .expect("tablets cover every hash (COORD-5)");
        if tablet.range.first == at {
            if at.0 > 0 {
                let record = self.table_mut(id).expect("it was just found");
                record.kept.insert(at);
            }
            return Ok(id);
        }
        if !tablet.is_settled() || table.moves_within(tablet.range) {
            return Err(Refusal::retry(COME_AGAIN, RetryReason::TabletNotReady));
        }
        if table.tablets.len() >= TABLETS_MAX {
            let message = format!("the table has {TABLETS_MAX} tablets, the most it can have");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        let record = self.table_mut(id).expect("it was just found");
        if record.cut(at) {
            record.cuts.push(at);
            record.kept.insert(at);
        }
        Ok(id)
    }
}

/// The work of `Work::Split`, and the request that leads to it.
pub(crate) struct Splits {
    context: Arc<Context>,
}

impl Splits {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    pub(crate) async fn split_tablet(&self, request: SplitTablet) -> Result<TableInfo, Refusal> {
        let split = move |state: &mut State| state.split(&request);
        let id = self.context.ledger.change_for_caller(split).await?;
        // Whether the owner has heard of it makes no difference to anybody: it has both parts.
        let state = self.context.state();
        Ok(state.info(state.find(&TableRef::Id(id))?))
    }

    /// Ends when all cuts of the table are confirmed. A cut of a tablet whose owner crashed needs
    /// none: its recovery masters get the parts.
    pub(super) async fn announce_cuts(&self, table: TableId) {
        loop {
            let state = self.context.state();
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
            let is_known = match owner {
                None => true,
                Some(owner) => {
                    let version = state.globals.version;
                    let request = SplitTabletLocal { version, table, at };
                    match self
                        .context
                        .calls
                        .call_while_up(&owner.info, &request)
                        .await
                    {
                        None | Some(Ok(())) => true,
                        Some(Err(error)) => {
                            tracing::debug!(%table, %at, %error, "cut not confirmed");
                            // It has no such tablet: then it has nothing to cut either.
                            matches!(&error, RpcError::Refused(r) if r.fatal_kind() == Some(FatalKind::NotFound))
                        }
                    }
                }
            };
            if !(is_known && self.forget_cut(table, at).await) {
                self.context.sleep(RETRY).await;
            }
        }
    }

    async fn forget_cut(&self, table: TableId, at: KeyHash) -> bool {
        let stored = self.context.ledger.change(move |state| {
            if let Some(record) = state.table_mut(table) {
                record.cuts.retain(|cut| *cut != at);
            }
            Ok(())
        });
        stored.await.is_ok()
    }
}
