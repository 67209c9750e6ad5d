//! The changes of the state by recoveries: tablets that are left to recover, their cuts, and the
//! owners of recovered partitions.
//!
//! The owner of a recovered tablet is decided in one place, [`State::settle`], and by the stored
//! state alone (COORD-6). An attempt in memory only says whether a partition is still wanted from a
//! master. Whether a master has got it already is written in the tablets.

use crate::state::State;
use pluvio_env::Rng;
use pluvio_units::{KeyHash, RecoveryId, ServerId};
use pluvio_wire::{RecoveryMasterFinished, Refusal, TabletSpec, TabletState};
use std::collections::BTreeSet;

/// The next step for a crashed server.
pub(super) enum Prepared {
    /// It has no tablets; it was removed from the list.
    Removed,
    /// Its remaining tablets hold nothing and are being given to others.
    Wait,
    /// Its objects had no replicas and are lost; this number of tablets starts anew, empty.
    Lost(usize),
    /// These tablets must be recovered.
    Tablets(Vec<TabletSpec>),
}

impl State {
    /// Settles what needs no recovery, and says what does.
    pub(super) fn prepare_recovery(&mut self, crashed: ServerId, rng: &dyn Rng) -> Prepared {
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
    pub(super) fn begin_attempt(&mut self, partitions: &[Vec<TabletSpec>]) -> RecoveryId {
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

    /// Gives a recovered partition to its recovery master: all of its tablets, or none. Says
    /// whether the master has it.
    ///
    /// # Errors
    /// The master is of another cluster, or no member any more. It may have been given the
    /// partition before: its log is recovered, and must keep what was replayed to it (COORD-11).
    pub(super) fn settle(
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
