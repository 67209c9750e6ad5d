//! Keeps the server list of one server up to date [RAMCloud §7.3].

use crate::context::Context;
use core::time::Duration;
use pluvio_units::ServerId;
use pluvio_wire::{ServerInfo, ServerState, UpdateServerList};
use std::sync::Arc;

/// The pause before a list that was not acknowledged is sent again.
const RETRY: Duration = Duration::from_millis(100);

/// The work of `Work::Push`.
pub(crate) struct Pushes {
    context: Arc<Context>,
}

impl Pushes {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Sends each new version to `server` until it acknowledges it or a newer one supersedes it.
    /// Ends when the server is not up any more; then that is what it hears last.
    pub(super) async fn push(&self, server: ServerId) {
        let mut states = self.context.ledger.watch();
        let mut acknowledged = None;
        let mut latest = None;
        loop {
            let state = states.borrow_and_update().clone();
            let record = state.servers.get(&server);
            let Some(record) = record.filter(|record| record.info.state == ServerState::Up) else {
                // One that had nothing to recover may have left the list already.
                if let Some(dead) = record.map(|record| &record.info).or(latest.as_ref()) {
                    self.notify_crashed(dead).await;
                }
                return;
            };
            latest = Some(record.info.clone());
            let list = state.list();
            let version = list.version;
            if acknowledged == Some(version) {
                states
                    .changed()
                    .await
                    .expect("the sender lives as long as this");
                continue;
            }
            let request = UpdateServerList {
                cluster: state.globals.cluster,
                list,
            };
            match self
                .context
                .calls
                .call_while_up(&record.info, &request)
                .await
            {
                None => {}
                Some(Ok(())) => acknowledged = Some(version),
                Some(Err(error)) => {
                    tracing::debug!(%server, %version, %error, "server list not acknowledged");
                    self.context.sleep(RETRY).await;
                }
            }
        }
    }

    /// Sends a server that was declared crashed the list, once: a zombie stops the sooner. It finds
    /// out anyway, from pings and from backups [RAMCloud §7.11].
    async fn notify_crashed(&self, info: &ServerInfo) {
        let state = self.context.state();
        let request = UpdateServerList {
            cluster: state.globals.cluster,
            list: state.list(),
        };
        let limit = self.context.options.call_limit;
        let result = self.context.calls.call(info, &request, limit).await;
        tracing::debug!(server = %info.id, told = result.is_ok(), "told a crashed server");
    }
}
