//! Keeps the server list of one server up to date (003 §7.3).

use crate::shared::Shared;
use core::time::Duration;
use pluvio_units::ServerId;
use pluvio_wire::{ServerState, UpdateServerList};
use std::sync::Arc;

/// The pause before a list that was not acknowledged is sent again.
const RETRY: Duration = Duration::from_millis(100);

impl Shared {
    /// Sends each new version to `server` until it acknowledges it or a newer one supersedes it;
    /// ends when the server is not up any more, which it is told.
    pub(crate) async fn push(self: &Arc<Self>, server: ServerId) {
        let mut states = self.watch();
        let mut acknowledged = None;
        let mut latest = None;
        loop {
            let state = states.borrow_and_update().clone();
            let record = state.servers.get(&server);
            let Some(record) = record.filter(|record| record.info.state == ServerState::Up) else {
                // One that had nothing to recover may have left the list already.
                if let Some(dead) = record.map(|record| &record.info).or(latest.as_ref()) {
                    self.tell_the_dead(dead).await;
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
            match self.call_while_up(&record.info, &request).await {
                None => {}
                Some(Ok(())) => acknowledged = Some(version),
                Some(Err(error)) => {
                    tracing::debug!(%server, %version, %error, "server list not acknowledged");
                    self.env.clock.sleep(RETRY).await;
                }
            }
        }
    }

    /// Tells a server that was declared crashed, once: if it is a zombie it stops the sooner. It
    /// finds out anyway, from pings and from backups (003 §7.11).
    async fn tell_the_dead(&self, info: &pluvio_wire::ServerInfo) {
        let state = self.state();
        let request = UpdateServerList {
            cluster: state.globals.cluster,
            list: state.list(),
        };
        let result = self.call(info, &request, self.options.call_limit).await;
        tracing::debug!(server = %info.id, told = result.is_ok(), "told a crashed server");
    }
}
