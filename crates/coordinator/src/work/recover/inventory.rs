//! Asking backups for their replicas of a crashed master, and sending them its partitions.

use super::plan::Inventory;
use crate::context::Context;
use futures_util::stream::{self, StreamExt};
use pluvio_units::{LogId, RecoveryId, SegmentId, ServerId};
use pluvio_wire::{
    LogEnd, RpcError, ServerInfo, SetPartitions, StartRecovery, StartRecoveryReply, TabletSpec,
};

/// Requests of one step of a recovery under way at a time.
pub(super) const CALLS_MAX: usize = 64;

/// Asks all backups what they have of the crashed master. From now on those that answered
/// refuse its writes [RAMCloud §7.11].
pub(crate) async fn collect(context: &Context, crashed: ServerId) -> Vec<Inventory> {
    let backups = context.state().up().cloned().collect();
    collect_from(context, crashed, backups).await
}

/// The same of these backups.
pub(super) async fn collect_from(
    context: &Context,
    crashed: ServerId,
    backups: Vec<ServerInfo>,
) -> Vec<Inventory> {
    let answers = stream::iter(backups).map(|backup| async move {
        let answer = listed(context, crashed, &backup).await;
        (backup, answer)
    });
    let mut inventories = Vec::new();
    let mut answers = answers.buffer_unordered(CALLS_MAX);
    while let Some((backup, answer)) = answers.next().await {
        match answer {
            Some(Ok(reply)) => {
                let StartRecoveryReply {
                    replicas,
                    damaged,
                    room,
                    next: _,
                } = reply;
                for (segment, why) in damaged {
                    tracing::warn!(%crashed, backup = %backup.id, %segment, why, "damaged replica");
                }
                inventories.push(Inventory {
                    backup: backup.id,
                    disk_mb_per_s: backup.disk_mb_per_s,
                    room,
                    replicas,
                });
            }
            Some(Err(error)) => {
                tracing::debug!(%crashed, backup = %backup.id, %error, "no list of replicas");
            }
            None => {}
        }
    }
    // The order of answers must not matter.
    inventories.sort_by_key(|i| i.backup);
    inventories
}

/// Everything that one backup has of the crashed master, page by page. `None`: it is not up any
/// more.
async fn listed(
    context: &Context,
    crashed: ServerId,
    backup: &ServerInfo,
) -> Option<Result<StartRecoveryReply, RpcError>> {
    let mut all = StartRecoveryReply::default();
    let mut from = SegmentId(0);
    loop {
        let request = StartRecovery { crashed, from };
        let page = match context.calls.call_while_up(backup, &request).await? {
            Ok(page) => page,
            Err(error) => return Some(Err(error)),
        };
        all.replicas.extend(page.replicas);
        all.damaged.extend(page.damaged);
        all.room = page.room;
        match page.next {
            Some(next) if next > from => from = next,
            Some(_) | None => return Some(Ok(all)),
        }
    }
}

/// Sends backups the partitions, and where the logs end in this attempt, as it is stored; gives
/// those that know them now.
pub(super) async fn announce(
    context: &Context,
    crashed: ServerId,
    recovery: RecoveryId,
    partitions: Vec<Vec<TabletSpec>>,
    inventories: Vec<Inventory>,
) -> Vec<Inventory> {
    let state = context.state();
    let ends = state.servers.get(&crashed).map(|record| &record.ends);
    let end = |(log, (segment, length)): (&LogId, &(SegmentId, u32))| LogEnd {
        log: *log,
        segment: *segment,
        length: *length,
    };
    let request = SetPartitions {
        recovery,
        crashed,
        partitions,
        ends: ends.into_iter().flatten().map(end).collect(),
    };
    let (state, request) = (&state, &request);
    let answers = stream::iter(inventories).map(|inventory| async move {
        let backup = &state.servers.get(&inventory.backup)?.info;
        match context.calls.call_while_up(backup, request).await? {
            Ok(()) => Some(inventory),
            Err(error) => {
                tracing::debug!(%crashed, backup = %backup.id, %error, "partitions not set");
                None
            }
        }
    });
    let informed = answers.buffer_unordered(CALLS_MAX);
    let mut informed: Vec<Inventory> = informed.filter_map(|i| async move { i }).collect().await;
    informed.sort_by_key(|i| i.backup);
    informed
}
