//! The steps of an attempt that talk to servers.

use super::plan::Inventory;
use super::trouble::{Masters, Trouble};
use crate::shared::Shared;
use futures_util::stream::{self, StreamExt};
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{
    Recover, Refusal, RpcError, ServerInfo, SetPartitions, StartRecovery, StartRecoveryReply,
    TabletSpec,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;

/// Requests of one step under way at a time.
const CALLS_MAX: usize = 64;
/// How often a master is asked to recover before its partition goes to the next attempt. The
/// request is answered at once, so only loss makes more than one necessary.
const ASK_MAX: usize = 3;

impl Shared {
    /// Asks all backups what they have of the crashed master. From now on those that answered
    /// refuse its writes (003 §7.11).
    pub(crate) async fn collect(self: &Arc<Self>, crashed: ServerId) -> Vec<Inventory> {
        let state = self.state();
        let backups: Vec<ServerInfo> = state.up().cloned().collect();
        let answers = stream::iter(backups).map(|backup| async move {
            let request = StartRecovery { crashed };
            let answer = self.call_while_up(&backup, &request).await;
            (backup, answer)
        });
        let mut inventories = Vec::new();
        let mut answers = answers.buffer_unordered(CALLS_MAX);
        while let Some((backup, answer)) = answers.next().await {
            match answer {
                Some(Ok(StartRecoveryReply { replicas, damaged })) => {
                    for (segment, why) in damaged {
                        tracing::warn!(%crashed, backup = %backup.id, %segment, why, "damaged replica");
                    }
                    inventories.push(Inventory {
                        backup: backup.id,
                        disk_mb_per_s: backup.disk_mb_per_s,
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

    /// Tells backups the partitions; gives those that know them now.
    pub(super) async fn announce(
        self: &Arc<Self>,
        crashed: ServerId,
        recovery: RecoveryId,
        partitions: &[Vec<TabletSpec>],
        inventories: Vec<Inventory>,
    ) -> Vec<Inventory> {
        let state = self.state();
        let request = SetPartitions {
            recovery,
            crashed,
            partitions: partitions.to_vec(),
        };
        let (state, request) = (&state, &request);
        let answers = stream::iter(inventories).map(|inventory| async move {
            let backup = &state.servers.get(&inventory.backup)?.info;
            match self.call_while_up(backup, request).await? {
                Ok(()) => Some(inventory),
                Err(error) => {
                    tracing::debug!(%crashed, backup = %backup.id, %error, "partitions not set");
                    None
                }
            }
        });
        let told = answers.buffer_unordered(CALLS_MAX);
        let mut told: Vec<Inventory> = told.filter_map(|i| async move { i }).collect().await;
        told.sort_by_key(|i| i.backup);
        told
    }

    /// Whom of the servers that are up and keep replicas to ask, in random order but for what
    /// [`Trouble::choose`] says; those that recover something already are busy. What has replicas
    /// must not end on a server that keeps none.
    pub(super) fn choose_masters(&self, trouble: &mut Trouble) -> Masters {
        let state = self.state();
        let mut masters: Vec<ServerId> = state
            .up()
            .filter(|info| !info.volatile)
            .map(|info| info.id)
            .collect();
        self.env.rng.shuffle(&mut masters);
        let memory = self.memory();
        let busy: BTreeSet<ServerId> = memory
            .attempts
            .values()
            .flat_map(|a| &a.partitions)
            .filter(|p| p.result.is_none())
            .map(|p| p.master)
            .collect();
        drop(memory);
        trouble.choose(masters, &busy)
    }

    /// Asks every master to recover its partition.
    pub(super) async fn ask_masters(
        self: &Arc<Self>,
        recovery: RecoveryId,
        requests: Vec<(ServerId, Recover)>,
    ) {
        stream::iter(requests)
            .for_each_concurrent(CALLS_MAX, |(master, request)| async move {
                if let Err(why) = self.ask_master(master, &request).await {
                    self.give_up(recovery, request.partition, why);
                }
            })
            .await;
    }

    async fn ask_master(
        self: &Arc<Self>,
        master: ServerId,
        request: &Recover,
    ) -> Result<(), String> {
        let state = self.state();
        let gone = || "the server crashed".to_owned();
        let info = &state.servers.get(&master).ok_or_else(gone)?.info;
        let mut last = String::new();
        for _ in 0..ASK_MAX {
            match self.call_while_up(info, request).await.ok_or_else(gone)? {
                Ok(()) => return Ok(()),
                Err(RpcError::Refused(Refusal::Retry { after_us, why })) => {
                    last = why.to_string();
                    let after = core::time::Duration::from_micros(u64::from(after_us));
                    self.env
                        .clock
                        .sleep(after.min(self.options.call_limit))
                        .await;
                }
                Err(RpcError::Call(error)) => last = error.to_string(),
                Err(other) => return Err(other.to_string()),
            }
        }
        Err(last)
    }

    /// Leaves a partition to the next attempt.
    fn give_up(&self, recovery: RecoveryId, partition: u32, why: String) {
        let mut memory = self.memory();
        let attempt = memory.attempts.get_mut(&recovery);
        let Some(partition) = attempt.and_then(|a| a.partitions.get_mut(partition as usize)) else {
            return;
        };
        if partition.result.is_none() {
            tracing::info!(%recovery, server = %partition.master, why, "no recovery on this server");
            partition.result = Some(Err(why));
        }
    }

    /// Waits until every master has reported or crashed; says whether one crashed.
    pub(super) async fn await_reports(&self, recovery: RecoveryId, progress: &Notify) -> bool {
        let mut states = self.watch();
        let mut crashes = false;
        loop {
            let state = states.borrow_and_update().clone();
            if let Some(attempt) = self.memory().attempts.get_mut(&recovery) {
                for partition in &mut attempt.partitions {
                    if partition.result.is_none() && !state.is_up(partition.master) {
                        partition.result = Some(Err("the server crashed".to_owned()));
                        crashes = true;
                    }
                }
                if attempt.partitions.iter().all(|p| p.result.is_some()) {
                    return crashes;
                }
            }
            tokio::select! {
                biased;
                () = progress.notified() => {}
                changed = states.changed() => changed.expect("the sender lives as long as this"),
            }
        }
    }
}
