//! Asking backups for their replicas of a crashed master, and sending them its partitions.

use super::plan::Inventory;
use crate::context::Context;
use futures_util::stream::{self, StreamExt};
use pluvio_units::{LogId, RecoveryId, SegmentId, ServerId};
use pluvio_wire::{
    LogEnd, ServerInfo, SetPartitions, StartRecovery, StartRecoveryReply, TabletSpec,
};

/// Requests of one step of a recovery under way at a time.
pub(super) const CALLS_MAX: usize = 64;

/// Asks all backups what they have of the crashed master. From now on those that answered
/// refuse its writes [RAMCloud §7.11].
pub(crate) async fn collect(context: &Context, crashed: ServerId) -> Vec<Inventory> {
    let state = context.state();
    let backups: Vec<ServerInfo> = state.up().cloned().collect();
    let answers = stream::iter(backups).map(|backup| async move {
        let request = StartRecovery { crashed };
        let answer = context.calls.call_while_up(&backup, &request).await;
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
