//! Attempts under way: who recovers which partition, and what became of it.
//!
//! Who owns recovered tablets is decided in one place, [`Shared::finished`], and by the stored
//! state alone (COORD-6): an attempt in memory only says whether a partition is still wanted from a
//! master; whether a master has got it already is written in the tablets.

use crate::shared::Shared;
use crate::state::State;
use pluvio_env::Moment;
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{
    RecoveryMasterFinished, RecoveryMasterFinishedReply, Refusal, ReplayStats, TabletSpec,
    TabletState,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Attempts under way.
pub(crate) type Attempts = BTreeMap<RecoveryId, Attempt>;

/// One attempt to recover one server.
pub(crate) struct Attempt {
    pub(crate) crashed: ServerId,
    /// Tablets are not given away before (003 §7.11).
    pub(crate) not_before: Moment,
    pub(crate) partitions: Vec<Partition>,
    /// Wakes the recovery when a partition has its result.
    pub(crate) progress: Arc<Notify>,
}

/// One partition of an attempt.
pub(crate) struct Partition {
    pub(crate) tablets: Vec<TabletSpec>,
    pub(crate) master: ServerId,
    pub(crate) result: Option<Result<ReplayStats, String>>,
    /// Its master reported that it tried and could not.
    pub(crate) tried: bool,
}

impl Attempt {
    fn open_partition(&self, report: &RecoveryMasterFinished) -> Option<&Partition> {
        let partition = self.partitions.get(report.partition as usize)?;
        let is_open = partition.master == report.server && partition.result.is_none();
        is_open.then_some(partition)
    }
}

impl State {
    /// Gives a recovered partition to its recovery master: all of its tablets, or none. Says
    /// whether the master has it.
    ///
    /// # Errors
    /// The master is of another cluster, or no member any more. It may have been given the
    /// partition before: its log is recovered, and must keep what was replayed to it (COORD-11).
    pub(crate) fn settle(
        &mut self,
        report: &RecoveryMasterFinished,
        wanted: Option<(ServerId, Vec<TabletSpec>)>,
    ) -> Result<bool, Refusal> {
        let by = (report.recovery, report.partition);
        let server = report.server;
        self.check_report(report.cluster, server)?;
        let mut tablets = self.tables.values().flat_map(|t| &t.tablets);
        if tablets.any(|t| t.owner == server && t.recovered_by == Some(by)) {
            return Ok(true);
        }
        let Some((crashed, specs)) = wanted.filter(|_| report.result.is_ok()) else {
            return Ok(false);
        };
        let place = |state: &Self, spec: &TabletSpec| {
            let tablets = &state.tables.get(&spec.table)?.tablets;
            tablets.iter().position(|t| {
                t.range == spec.range && t.owner == crashed && t.state == TabletState::Recovering
            })
        };
        let Some(places) = specs
            .iter()
            .map(|spec| place(self, spec))
            .collect::<Option<Vec<usize>>>()
        else {
            return Ok(false);
        };
        for (spec, index) in specs.iter().zip(places) {
            let record = self.table_mut(spec.table).expect("it was just found");
            let tablet = &mut record.tablets[index];
            tablet.owner = server;
            tablet.state = TabletState::Normal;
            tablet.recovered_by = Some(by);
            tablet.moved_by = None;
            tablet.since = report.since;
        }
        Ok(true)
    }
}

impl Shared {
    /// A recovery master is done with a partition, or could not do it.
    pub(crate) async fn finished(
        self: Arc<Self>,
        report: RecoveryMasterFinished,
    ) -> Result<RecoveryMasterFinishedReply, Refusal> {
        let not_before = {
            let memory = self.memory();
            memory.attempts.get(&report.recovery).map(|a| a.not_before)
        };
        if let Some(moment) = not_before {
            let wait = moment.since(self.env.clock.now());
            if report.result.is_ok() && !wait.is_zero() {
                self.env.clock.sleep(wait).await;
            }
        }
        let (shared, copy) = (self.clone(), report.clone());
        let accepted = self
            .change(move |state| {
                // Looked at under the writer's turn: an attempt that has ended wants nothing.
                let wanted = shared.wanted(&copy);
                state.settle(&copy, wanted)
            })
            .await?;
        self.note_result(&report, accepted);
        Ok(RecoveryMasterFinishedReply { accepted })
    }

    fn wanted(&self, report: &RecoveryMasterFinished) -> Option<(ServerId, Vec<TabletSpec>)> {
        let memory = self.memory();
        let attempt = memory.attempts.get(&report.recovery)?;
        let partition = attempt.open_partition(report)?;
        Some((attempt.crashed, partition.tablets.clone()))
    }

    fn note_result(&self, report: &RecoveryMasterFinished, accepted: bool) {
        let mut memory = self.memory();
        let Some(attempt) = memory.attempts.get_mut(&report.recovery) else {
            return;
        };
        if attempt.open_partition(report).is_none() {
            return;
        }
        let crashed = attempt.crashed;
        let partition = &mut attempt.partitions[report.partition as usize];
        let result = match &report.result {
            Ok(_) if !accepted => Err("its tablets are not wanted any more".to_owned()),
            result => result.clone(),
        };
        let tablets = partition.tablets.len();
        partition.result = Some(result.clone());
        partition.tried = report.result.is_err();
        attempt.progress.notify_one();
        let (recovery, server) = (report.recovery, report.server);
        match result {
            Ok(stats) => {
                tracing::info!(
                    %crashed, %recovery, partition = report.partition, %server, tablets,
                    bytes = stats.bytes, entries = stats.entries, objects = stats.objects,
                    replay_ms = stats.replay_us / 1000, total_ms = stats.total_us / 1000,
                    "partition recovered"
                );
                memory.history.note(crashed, |status| {
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
