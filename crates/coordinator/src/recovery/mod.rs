//! Recovery of a crashed server's tablets: the coordinator's part (003 §7.4-7.10).
//!
//! One task per crashed server runs [`Shared::recover`] until the server has no tablets left, in as
//! many attempts as that takes. An attempt reads like this: *prepare* (what is left?), *collect*
//! (which replicas are there?), *reconstruct* (is the log complete?), *partition*, *announce* (to
//! backups), *assign* (to recovery masters), *await* their reports. Any failure ends the attempt
//! or a part of it, and what is left is tried again; that is the only way failures are handled.
//!
//! Only three things are stored: that the server crashed, how its tablets were cut, and who owns a
//! recovered partition. An attempt itself is forgotten when the coordinator crashes.

mod attempts;
mod history;
mod partition;
mod plan;
mod steps;
mod trouble;

pub(crate) use attempts::Attempts;
pub(crate) use history::History;
pub(crate) use plan::{Inventory, reconstruct};

use crate::shared::Shared;
use crate::state::State;
use attempts::{Attempt, Partition};
use core::time::Duration;
use partition::partition;
use plan::LogMap;
use pluvio_env::{Moment, Rng, timeout};
use pluvio_units::{KeyHash, RecoveryId, ServerId};
use pluvio_wire::{Recover, RecoverySegment, TabletSpec, TabletState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::Notify;
use trouble::{Failure, Masters, Trouble};

/// What an attempt led to.
enum Outcome {
    /// The server has no tablets left and is not listed any more.
    Over,
    /// Something is left; try again after this time, or when the server list changes.
    Again(Duration),
}

/// What there is to do for a crashed server.
pub(crate) enum Prepared {
    /// It has no tablets; it was removed from the list.
    Removed,
    /// Its remaining tablets hold nothing and are being given to others.
    Wait,
    /// Its objects had no replicas and are lost; so many tablets start anew, empty.
    Lost(usize),
    /// These tablets must be recovered.
    Tablets(Vec<TabletSpec>),
}

impl State {
    /// Settles what needs no recovery, and says what does.
    pub(crate) fn prepare_recovery(&mut self, crashed: ServerId, rng: &dyn Rng) -> Prepared {
        let Some(server) = self.servers.get(&crashed) else {
            return Prepared::Removed;
        };
        let is_volatile = server.info.volatile;
        let has = |state: &Self, dropping: bool| {
            let tables = state.tables.values().filter(|t| t.dropping == dropping);
            let tablets = tables.flat_map(|t| {
                t.tablets
                    .iter()
                    .map(|tablet| t.spec(tablet))
                    .zip(&t.tablets)
            });
            let hit =
                tablets.filter(|(_, t)| t.owner == crashed && t.state == TabletState::Recovering);
            hit.map(|(spec, _)| spec).collect::<Vec<_>>()
        };
        for spec in has(self, true) {
            let table = self.table_mut(spec.table).expect("it was just found");
            table.tablets.retain(|t| t.range != spec.range);
        }
        let tablets = has(self, false);
        if !self.has_tablets(crashed) {
            self.servers.remove(&crashed);
            return Prepared::Removed;
        }
        if tablets.is_empty() {
            return Prepared::Wait;
        }
        if !is_volatile {
            return Prepared::Tablets(tablets);
        }
        for spec in &tablets {
            let table = self.table_mut(spec.table).expect("it was just found");
            for tablet in &mut table.tablets {
                if tablet.range == spec.range {
                    tablet.state = TabletState::Assigning;
                }
            }
            self.reassign(spec.table, &BTreeSet::from([crashed]), rng);
        }
        Prepared::Lost(tablets.len())
    }

    /// Numbers an attempt and cuts tablets as its partitions want them.
    fn begin_attempt(&mut self, partitions: &[Vec<TabletSpec>]) -> RecoveryId {
        for spec in partitions.iter().flatten() {
            // At both ends: what comes after it need not be in this attempt.
            let after = spec.range.last.0.checked_add(1).map(KeyHash);
            for at in [Some(spec.range.first), after].into_iter().flatten() {
                if let Some(table) = self.table_mut(spec.table)
                    && table.tablets.iter().any(|t| t.range.contains(at))
                {
                    table.cut(at);
                }
            }
        }
        self.globals.last_recovery = self.globals.last_recovery.next();
        self.globals.last_recovery
    }
}

/// How an attempt's replay ended.
struct Attempted {
    outcome: Outcome,
    /// The masters that recovered their partitions. None: the attempt was in vain.
    recovered: BTreeSet<ServerId>,
    /// The others.
    failed: BTreeMap<ServerId, Failure>,
}

impl Shared {
    /// Recovers a crashed server; ends when it is not listed any more.
    pub(crate) async fn recover(self: &Arc<Self>, crashed: ServerId) {
        let state = self.state();
        let Some(record) = state.servers.get(&crashed) else {
            return;
        };
        let began = self.env.clock.now();
        let address = record.info.address.clone();
        tracing::info!(%crashed, address, "recovery started");
        self.memory().history.begin(crashed, address, began);
        if record.info.volatile {
            // No backup fences it. It serves by the coordinator's word, which it has had no more
            // since it was declared dead (LEASE-4).
            self.phase(crashed, "waiting for its lease to end".into());
            self.env.clock.sleep(self.options.zombie_grace).await;
        }
        let mut trouble = Trouble::default();
        loop {
            let version = self.state().globals.list_version;
            let pause = match self.attempt(crashed, began, &mut trouble).await {
                Outcome::Over => break,
                Outcome::Again(pause) => pause,
            };
            let changed = self.until(|state| state.globals.list_version != version);
            if pause > Duration::ZERO {
                // Both ends mean the same: look again.
                let _ = timeout(&*self.env.clock, pause, changed).await;
            }
        }
        let status = self.memory().history.finish(crashed, self.env.clock.now());
        if let Some(status) = status {
            tracing::info!(
                %crashed, ms = status.duration_ms, attempts = status.attempts,
                tablets = status.tablets, masters = status.masters.len(),
                bytes = status.bytes, objects = status.objects, "recovery done"
            );
        }
    }

    fn phase(&self, crashed: ServerId, phase: String) {
        self.memory().history.note(crashed, |s| s.phase = phase);
    }

    async fn attempt(
        self: &Arc<Self>,
        crashed: ServerId,
        began: Moment,
        trouble: &mut Trouble,
    ) -> Outcome {
        let options = &self.options;
        let rng = self.env.rng.clone();
        let prepared = self.change(move |state| Ok(state.prepare_recovery(crashed, &*rng)));
        let tablets = match prepared.await {
            Ok(Prepared::Removed) => return Outcome::Over,
            Ok(Prepared::Wait) | Err(_) => return Outcome::Again(options.incomplete_retry),
            Ok(Prepared::Lost(count)) => {
                tracing::warn!(
                    %crashed, tablets = count,
                    "THE OBJECTS OF A CRASHED SERVER ARE LOST: it had no replicas (--replicas 0); its tablets start anew, empty"
                );
                return Outcome::Again(options.incomplete_retry);
            }
            Ok(Prepared::Tablets(tablets)) => tablets,
        };
        self.memory().history.note(crashed, |s| s.attempts += 1);
        self.phase(crashed, "collecting replicas".into());
        let inventories = self.collect(crashed).await;
        let fenced = self.env.clock.now();
        let map = match self.complete_log(crashed, &inventories) {
            Ok(map) => map,
            Err(outcome) => return outcome,
        };
        let masters = self.choose_masters(trouble);
        if masters.asked.is_empty() {
            let volatile = self.state().up().any(|info| info.volatile);
            let phase = match volatile {
                true => "waiting for a server that can recover; one with --replicas 0 cannot",
                false => "waiting for a server that can recover",
            };
            self.phase(crashed, phase.into());
            return Outcome::Again(options.incomplete_retry);
        }
        let partitions = self.cut_partitions(crashed, &tablets, &map, &masters, trouble);
        let (total, cut) = (partitions.len(), partitions.clone());
        let begun = self
            .change(move |state| Ok(state.begin_attempt(&cut)))
            .await;
        let Ok(recovery) = begun else {
            return Outcome::Again(options.incomplete_retry);
        };
        let inventories = self
            .announce(crashed, recovery, &partitions, inventories)
            .await;
        let map = match self.complete_log(crashed, &inventories) {
            Ok(map) => map,
            Err(outcome) => return outcome,
        };
        let planning = self.env.clock.now().since(began);
        tracing::info!(
            %crashed, %recovery, ms = planning.as_millis() as u64,
            segments = map.segments.len(), backups = inventories.len(), partitions = total,
            masters = masters.asked.len(), "log complete; replay begins"
        );
        self.memory().history.note(crashed, |status| {
            status.recovery = recovery;
            status.segments = u32::try_from(map.segments.len()).unwrap_or(u32::MAX);
            status.planning_us = u64::try_from(planning.as_micros()).unwrap_or(u64::MAX);
        });
        let partitions: Vec<Partition> = partitions
            .into_iter()
            .zip(masters.asked)
            .map(|(tablets, master)| Partition {
                tablets,
                master,
                result: None,
                tried: false,
            })
            .collect();
        let phase = format!("replaying on {} servers", partitions.len());
        self.phase(crashed, trouble.beside(&phase));
        let attempt = self
            .replay(crashed, recovery, fenced, partitions, map.segments)
            .await;
        trouble.learn(&attempt);
        if matches!(attempt.outcome, Outcome::Again(pause) if !pause.is_zero()) {
            let phase = trouble.beside("waiting to try again what could not be recovered");
            self.phase(crashed, phase);
        }
        attempt.outcome
    }

    /// Proves the log complete, or says in the status what is missing.
    fn complete_log(
        &self,
        crashed: ServerId,
        inventories: &[Inventory],
    ) -> Result<LogMap, Outcome> {
        let state = self.state();
        let epochs = &state.servers[&crashed].epochs;
        reconstruct(inventories, epochs).map_err(|incomplete| {
            pluvio_units::mark("recovery-log-incomplete");
            tracing::debug!(%crashed, %incomplete, "cannot recover yet");
            self.phase(crashed, incomplete.to_string());
            Outcome::Again(self.options.incomplete_retry)
        })
    }

    /// The partitions of this attempt: at most one for each master, the rest comes next time.
    fn cut_partitions(
        &self,
        crashed: ServerId,
        tablets: &[TabletSpec],
        map: &LogMap,
        masters: &Masters,
        trouble: &Trouble,
    ) -> Vec<Vec<TabletSpec>> {
        let state = self.state();
        let had = &state.servers[&crashed].had;
        let tablets_of = |table| state.tables.get(&table).map_or(0, |t| t.tablets.len());
        let experience = trouble.experience();
        let cut_for = masters.cut_for;
        let mut partitions = partition(tablets, &map.stats, had, cut_for, experience, tablets_of);
        partitions.truncate(masters.asked.len());
        partitions
    }

    /// Lets the masters replay, and waits until each has reported, crashed or run out of time.
    async fn replay(
        self: &Arc<Self>,
        crashed: ServerId,
        recovery: RecoveryId,
        fenced: Moment,
        partitions: Vec<Partition>,
        segments: Vec<RecoverySegment>,
    ) -> Attempted {
        let progress = Arc::new(Notify::new());
        let requests: Vec<(ServerId, Recover)> = partitions
            .iter()
            .enumerate()
            .map(|(index, partition)| {
                let request = Recover {
                    recovery,
                    crashed,
                    partition: u32::try_from(index).expect("no more partitions than servers"),
                    tablets: partition.tablets.clone(),
                    segments: segments.clone(),
                };
                (partition.master, request)
            })
            .collect();
        let attempt = Attempt {
            crashed,
            not_before: fenced + self.options.zombie_grace,
            partitions,
            progress: progress.clone(),
        };
        self.memory().attempts.insert(recovery, attempt);
        let work = async {
            self.ask_masters(recovery, requests).await;
            self.await_reports(recovery, &progress).await
        };
        let crashes = timeout(&*self.env.clock, self.options.recovery_limit, work).await;
        if crashes.is_err() {
            tracing::warn!(%crashed, %recovery, "the attempt took too long; what is left is tried again");
        }
        let attempt = self.memory().attempts.remove(&recovery);
        let (mut recovered, mut failed) = (BTreeSet::new(), BTreeMap::new());
        for partition in attempt.into_iter().flat_map(|a| a.partitions) {
            let why = match partition.result {
                Some(Ok(_)) => {
                    recovered.insert(partition.master);
                    continue;
                }
                Some(Err(why)) => why,
                None => "no report".to_owned(),
            };
            let tried = partition.tried;
            failed.insert(partition.master, Failure { tried, why });
        }
        // A crash of a master changes the list, so it need not be waited for; other failures may
        // last.
        let outcome = if !failed.is_empty() && !matches!(crashes, Ok(true)) {
            pluvio_units::mark("recovery-partition-again");
            Outcome::Again(self.options.recovery_retry)
        } else {
            Outcome::Again(Duration::ZERO)
        };
        Attempted {
            outcome,
            recovered,
            failed,
        }
    }
}

#[cfg(test)]
mod tests;
