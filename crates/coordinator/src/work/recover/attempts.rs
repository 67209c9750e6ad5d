//! Attempts under way: which master recovers which partition, and what became of it.
//!
//! An attempt is forgotten when the coordinator crashes. The owners of recovered tablets
//! are decided by the stored state (see `changes`).

use pluvio_env::Moment;
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{PartitionReplayed, RecoveryMasterFinished, ReplayStats, TabletSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// See the module.
#[derive(Default)]
pub(super) struct Attempts(Mutex<BTreeMap<RecoveryId, Attempt>>);

/// One attempt to recover one server.
pub(super) struct Attempt {
    pub(super) crashed: ServerId,
    /// Tablets are not given away before [RAMCloud §7.11].
    pub(super) not_before: Moment,
    pub(super) partitions: Vec<Partition>,
    /// Wakes the recovery when a partition has its result.
    pub(super) progress: Arc<Notify>,
}

/// One partition of an attempt.
pub(super) struct Partition {
    pub(super) tablets: Vec<TabletSpec>,
    pub(super) master: ServerId,
    pub(super) result: Option<Result<ReplayStats, String>>,
    /// Its master reported that it tried and could not.
    pub(super) tried: bool,
    /// Its master reported the end, which may not be stored yet: it asks for nothing more.
    pub(super) reported: bool,
}

/// What a report made of a partition.
pub(super) struct Noted {
    pub(super) crashed: ServerId,
    pub(super) tablets: usize,
    pub(super) result: Result<ReplayStats, String>,
}

/// How an attempt ended.
#[derive(Default)]
pub(super) struct Attempted {
    /// The masters that recovered their partitions. None: the attempt was in vain.
    pub(super) recovered: BTreeSet<ServerId>,
    /// The others.
    pub(super) failed: BTreeMap<ServerId, Failure>,
    /// One of the masters crashed, and all the others have reported.
    pub(super) master_crashed: bool,
}

/// Why a master did not recover its partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    /// It tried, and reported that it cannot. Others have refused at once, or were not heard of.
    pub(super) tried: bool,
    pub(super) why: String,
}

impl Partition {
    pub(super) fn new(tablets: Vec<TabletSpec>, master: ServerId) -> Self {
        Self {
            tablets,
            master,
            result: None,
            tried: false,
            reported: false,
        }
    }
}

impl Attempt {
    fn open_partition(&mut self, partition: u32, master: ServerId) -> Option<&mut Partition> {
        let partition = self.partitions.get_mut(partition as usize)?;
        let is_open = partition.master == master && partition.result.is_none();
        is_open.then_some(partition)
    }
}

impl Attempts {
    fn map(&self) -> MutexGuard<'_, BTreeMap<RecoveryId, Attempt>> {
        // Held for single steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, recovery: RecoveryId, attempt: Attempt) {
        self.map().insert(recovery, attempt);
    }

    /// Forgets an attempt; gives its partitions with what became of them.
    pub(super) fn end(&self, recovery: RecoveryId) -> Vec<Partition> {
        let attempt = self.map().remove(&recovery);
        attempt.map_or_else(Vec::new, |attempt| attempt.partitions)
    }

    /// The masters that recover something.
    pub(super) fn busy(&self) -> BTreeSet<ServerId> {
        let attempts = self.map();
        let partitions = attempts.values().flat_map(|a| &a.partitions);
        let open = partitions.filter(|p| p.result.is_none());
        open.map(|p| p.master).collect()
    }

    /// When the tablets of an attempt may be given away; `None` when it has ended.
    pub(super) fn not_before(&self, recovery: RecoveryId) -> Option<Moment> {
        self.map().get(&recovery).map(|attempt| attempt.not_before)
    }

    /// A master reports that its partition is durable, or that it could not recover it. A request
    /// to read that comes later is late. If it counted, a master that has given up would own the
    /// tablets.
    pub(super) fn reported(&self, report: &RecoveryMasterFinished) {
        let mut attempts = self.map();
        let attempt = attempts.get_mut(&report.recovery);
        let open = attempt.and_then(|a| a.open_partition(report.partition, report.server));
        if let Some(partition) = open {
            partition.reported = true;
        }
    }

    /// The crashed server and the tablets that are wanted from a master that has replayed them and
    /// has not reported the end.
    pub(super) fn wanted_early(
        &self,
        report: &PartitionReplayed,
    ) -> Option<(ServerId, Vec<TabletSpec>)> {
        let mut attempts = self.map();
        let attempt = attempts.get_mut(&report.recovery)?;
        let crashed = attempt.crashed;
        let partition = attempt.open_partition(report.partition, report.server)?;
        (!partition.reported).then(|| (crashed, partition.tablets.clone()))
    }

    /// The crashed server and the tablets that are still wanted from a master.
    pub(super) fn wanted(
        &self,
        recovery: RecoveryId,
        partition: u32,
        master: ServerId,
    ) -> Option<(ServerId, Vec<TabletSpec>)> {
        let mut attempts = self.map();
        let attempt = attempts.get_mut(&recovery)?;
        let crashed = attempt.crashed;
        let partition = attempt.open_partition(partition, master)?;
        Some((crashed, partition.tablets.clone()))
    }

    /// Notes what a master reports, and whether it got the partition. `None` when the partition is
    /// not waited for.
    pub(super) fn note(&self, report: &RecoveryMasterFinished, accepted: bool) -> Option<Noted> {
        let mut attempts = self.map();
        let attempt = attempts.get_mut(&report.recovery)?;
        let crashed = attempt.crashed;
        let partition = attempt.open_partition(report.partition, report.server)?;
        let result = match &report.result {
            Ok(_) if !accepted => Err("its tablets are not wanted any more".to_owned()),
            result => result.clone(),
        };
        partition.result = Some(result.clone());
        partition.tried = report.result.is_err();
        let tablets = partition.tablets.len();
        attempt.progress.notify_one();
        Some(Noted {
            crashed,
            tablets,
            result,
        })
    }

    /// Leaves a partition to the next attempt.
    pub(super) fn give_up(&self, recovery: RecoveryId, partition: u32, why: String) {
        let mut attempts = self.map();
        let attempt = attempts.get_mut(&recovery);
        let Some(partition) = attempt.and_then(|a| a.partitions.get_mut(partition as usize)) else {
            return;
        };
        if partition.result.is_none() {
            tracing::info!(%recovery, server = %partition.master, why, "no recovery on this server");
            partition.result = Some(Err(why));
        }
    }

    /// Leaves the partitions of masters that are not up to the next attempt; whether there are any.
    pub(super) fn give_up_crashed(
        &self,
        recovery: RecoveryId,
        is_up: impl Fn(ServerId) -> bool,
    ) -> bool {
        let mut crashes = false;
        let mut attempts = self.map();
        let partitions = attempts.get_mut(&recovery).map(|a| &mut a.partitions);
        for partition in partitions.into_iter().flatten() {
            if partition.result.is_none() && !is_up(partition.master) {
                partition.result = Some(Err("the server crashed".to_owned()));
                crashes = true;
            }
        }
        crashes
    }

    /// Whether each partition of an attempt has its result.
    pub(super) fn has_all_results(&self, recovery: RecoveryId) -> bool {
        let attempts = self.map();
        let attempt = attempts.get(&recovery);
        attempt.is_some_and(|a| a.partitions.iter().all(|p| p.result.is_some()))
    }
}
