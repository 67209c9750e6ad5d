//! The state of the cluster, for people and tools.

use crate::context::Context;
use crate::work::Works;
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use pluvio_wire::{ClusterStatus, GetServerStatus, Refusal, ServerStatus};

/// Servers that do not answer within this time are left out.
const LIMIT: Duration = Duration::from_millis(500);
/// Servers asked at a time.
const CALLS_MAX: usize = 64;

pub(crate) async fn cluster_status(
    context: &Context,
    works: &Works,
) -> Result<ClusterStatus, Refusal> {
    let state = context.state();
    let up: Vec<_> = state.up().cloned().collect();
    let calls = &context.calls;
    let answers = stream::iter(up)
        .map(|info| async move { calls.call(&info, &GetServerStatus {}, LIMIT).await.ok() })
        .buffer_unordered(CALLS_MAX);
    let mut servers: Vec<ServerStatus> = answers.filter_map(|s| async move { s }).collect().await;
    servers.sort_by_key(|s| s.id);
    Ok(ClusterStatus {
        cluster: state.globals.cluster,
        list: state.list(),
        servers,
        tables: { state.infos().into_iter() }
            .map(|info| works.quotas.described(info))
            .collect(),
        recoveries: works.recoveries.list(),
        migrations: works.migrations.list(),
        drains: works.drains.list(),
        balance: works.balances.status(),
        losses: state.globals.losses.clone(),
        begun_anew: state.globals.begun_anew,
        metadata_trouble: context.ledger.tenure().trouble(),
    })
}
