//! What the cluster has and does, for people and tools.

use crate::shared::Shared;
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use pluvio_wire::{ClusterStatus, GetServerStatus, Refusal, ServerStatus};
use std::sync::Arc;

/// Servers that do not answer within this time are left out.
const LIMIT: Duration = Duration::from_millis(500);
/// Servers asked at a time.
const CALLS_MAX: usize = 64;

impl Shared {
    pub(crate) async fn cluster_status(self: Arc<Self>) -> Result<ClusterStatus, Refusal> {
        let state = self.state();
        let up: Vec<_> = state.up().cloned().collect();
        let shared = &self;
        let answers = stream::iter(up)
            .map(|info| async move { shared.call(&info, &GetServerStatus {}, LIMIT).await.ok() })
            .buffer_unordered(CALLS_MAX);
        let mut servers: Vec<ServerStatus> =
            answers.filter_map(|s| async move { s }).collect().await;
        servers.sort_by_key(|s| s.id);
        let now = self.env.clock.now();
        let recoveries = self.memory().history.list(now);
        let migrations = self.memory().moves.list(now);
        Ok(ClusterStatus {
            cluster: state.globals.cluster,
            list: state.list(),
            servers,
            tables: state.infos(),
            recoveries,
            migrations,
            metadata_trouble: self.tenure.trouble(),
        })
    }
}
