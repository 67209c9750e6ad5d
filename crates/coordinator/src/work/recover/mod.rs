//! Recovery of a crashed server's tablets: the coordinator's part [RAMCloud §7.4-7.10].
//!
//! One task per crashed server runs [`Recoveries::recover`] until the server has no tablets left,
//! in as many attempts as that takes. The steps of an attempt, with the [`RecoveryStage`] in which
//! people see each:
//!
//! 1. *Prepare*: what is left? What holds nothing goes to other servers (`Reassigning`).
//! 2. *Collect*: backups say which replicas they have, and fence the crashed server (`Collecting`).
//! 3. *Reconstruct*: is the log complete on them? If not, `AwaitingBackups`.
//!    Volatile tablets begin anew meanwhile, empty.
//! 4. *Choose* the recovery masters; without any, `AwaitingMaster`.
//! 5. *Partition* what is left for them; the cuts are stored.
//! 6. *Announce* the partitions to the backups (`Announcing`). The log must be complete on those
//!    that have confirmed.
//! 7. *Replay*: the masters replay, and report (`Replaying`): once when they have replayed, and
//!    again when all of it is durable. Reports are decided by [`Recoveries::replayed`] and
//!    [`Recoveries::finished`].
//!
//! Any failure ends the attempt or a part of it, and the rest is tried again, after a pause
//! (`AwaitingRetry`) or at once. Failures are handled in this way alone.
//!
//! - COORD-21: weak classes are those that are less durable than the cluster's settings say. Where
//!   only their logs lack something, the tablets of all other tables are recovered without those
//!   logs. No entry of theirs is there (CLASS-1). An attempt that left out weak logs recovers no
//!   tablet of a weak class. So a table that asks for fewer replicas never holds up others. The end
//!   of such a log is settled as soon as an attempt finds it; nothing of it is read before.
//!   Volatile classes are weak, too, and nobody looks for their logs (COORD-23).
//!
//! Only these are stored: the crash, the cuts of the tablets, and where the logs end. Of each
//! recovered partition its owner is, too, and whether it still stands on the crashed server
//! (`changes`). An attempt itself is forgotten when the coordinator crashes.

mod anew;
mod attempt;
mod attempts;
mod changes;
mod copies;
mod experience;
mod give_up;
mod history;
mod inventory;
mod masters;
mod partition;
mod plan;
mod replay;

pub(crate) use anew::opened;
pub(crate) use inventory::collect;
pub(crate) use plan::{Inventory, reconstruct_without};

use crate::context::Context;
use attempt::Recovery;
use attempts::{Attempts, Noted};
use history::History;
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{
    PartitionReplayed, PartitionReplayedReply, RecoveryMasterFinished, RecoveryMasterFinishedReply,
    RecoveryStatus, Refusal,
};
use std::sync::Arc;

/// The work of `Work::Recover`, and the reports that concern it.
pub(crate) struct Recoveries {
    context: Arc<Context>,
    attempts: Arc<Attempts>,
    history: History,
}

impl Recoveries {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            attempts: Arc::default(),
            history: History::default(),
        }
    }

    /// Recoveries under way, and the latest that ended, oldest first.
    pub(crate) fn list(&self) -> Vec<RecoveryStatus> {
        self.history.list(self.context.now())
    }

    /// Recovers a crashed server; ends when it is not listed any more.
    pub(super) async fn recover(&self, crashed: ServerId) {
        let state = self.context.state();
        let Some(record) = state.servers.get(&crashed) else {
            return;
        };
        let began = self.context.now();
        let address = record.info.address.clone();
        tracing::info!(%crashed, address, "recovery started");
        self.history.begin(crashed, address, began);
        let (attempts, history) = (&self.attempts, &self.history);
        let recovery = Recovery::new(&self.context, attempts, history, crashed);
        recovery.run(record.info.volatile).await;
        let status = self.history.finish(crashed, self.context.now());
        if let Some(status) = status {
            tracing::info!(
                %crashed, ms = status.duration_ms, attempts = status.attempts,
                tablets = status.tablets, masters = status.masters.len(),
                bytes = status.bytes, objects = status.objects, "recovery done"
            );
        }
    }

    /// A recovery master has replayed a partition, and could answer reads.
    ///
    /// 1. It waits until nobody else answers reads.
    /// 2. The stored state decides whether it may.
    pub(crate) async fn replayed(
        &self,
        report: PartitionReplayed,
    ) -> Result<PartitionReplayedReply, Refusal> {
        if !self.context.options.serve_early {
            return Ok(PartitionReplayedReply { may_read: false });
        }
        self.until_nobody_reads(report.recovery).await;
        let attempts = self.attempts.clone();
        let PartitionReplayed {
            recovery,
            server,
            partition,
            ..
        } = report;
        let settle = self.context.ledger.change(move |state| {
            // Looked at under the writer's turn, which the report of the end takes, too.
            let wanted = attempts.wanted_early(&report);
            state.settle_early(&report, wanted)
        });
        let may_read = settle.await?;
        tracing::info!(%recovery, partition, %server, may_read, "partition replayed");
        Ok(PartitionReplayedReply { may_read })
    }

    /// Waits until the crashed server, and everybody who may have answered reads of its tablets
    /// since, answers none any more.
    async fn until_nobody_reads(&self, recovery: RecoveryId) {
        if let Some(moment) = self.attempts.not_before(recovery) {
            let wait = moment.since(self.context.now());
            if !wait.is_zero() {
                self.context.sleep(wait).await;
            }
        }
    }

    /// A recovery master is done with a partition, or could not do it.
    ///
    /// 1. A success waits until the crashed server has lost its lease.
    /// 2. The stored state decides whether the master gets the tablets, and then has it.
    /// 3. The attempt hears of it.
    pub(crate) async fn finished(
        &self,
        report: RecoveryMasterFinished,
    ) -> Result<RecoveryMasterFinishedReply, Refusal> {
        self.attempts.reported(&report);
        if report.result.is_ok() {
            self.until_nobody_reads(report.recovery).await;
        }
        let (attempts, copy) = (self.attempts.clone(), report.clone());
        let settle = self.context.ledger.change(move |state| {
            // Looked at under the writer's turn: an attempt that has ended wants nothing.
            let wanted = attempts.wanted(copy.recovery, copy.partition, copy.server);
            state.settle(&copy, wanted)
        });
        let accepted = settle.await?;
        if let Some(noted) = self.attempts.note(&report, accepted) {
            self.note_result(&report, noted);
        }
        Ok(RecoveryMasterFinishedReply { accepted })
    }

    fn note_result(&self, report: &RecoveryMasterFinished, noted: Noted) {
        let (recovery, server) = (report.recovery, report.server);
        let (crashed, tablets) = (noted.crashed, noted.tablets);
        match noted.result {
            Ok(stats) => {
                tracing::info!(
                    %crashed, %recovery, partition = report.partition, %server, tablets,
                    bytes = stats.bytes, entries = stats.entries, objects = stats.objects,
                    replay_ms = stats.replay_us / 1000, total_ms = stats.total_us / 1000,
                    "partition recovered"
                );
                self.history.note(crashed, |status| {
                    status.tablets += u32::try_from(tablets).unwrap_or(u32::MAX);
                    status.bytes += stats.bytes;
                    status.objects += stats.objects;
                    status.last_partition = stats;
                    if !status.masters.contains(&server) {
                        status.masters.push(server);
                    }
                });
            }
            Err(why) => {
                tracing::info!(
                    %crashed, %recovery, partition = report.partition, %server, why,
                    "partition not recovered; it will be tried again"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
