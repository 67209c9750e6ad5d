//! The changes of the state by recoveries: tablets that are left to recover, their cuts, and the
//! owners of recovered partitions.
//!
//! A partition changes owner in one of two places, and by the stored state alone (COORD-6).
//! [`State::settle_early`] does it when the partition is replayed, [`State::settle`] when it is
//! durable at its new owner. In between its tablets stand on the crashed server (COORD-14). An
//! attempt in memory only says whether a partition is still wanted from a master. Whether a master
//! has got it already is written in the tablets.

use crate::state::{Ends, FORMAT_EARLY, Places, ServerRecord, State, TabletRecord};
use crate::work::assign::Candidates;
use pluvio_env::Rng;
use pluvio_units::{KeyHash, LogId, RecoveryId, ServerId, TableId};
use pluvio_wire::{PartitionReplayed, RecoveryMasterFinished, Refusal, TabletSpec, TabletState};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The next step for a crashed server.
pub(super) enum Prepared {
    /// It has no tablets; it was removed from the list.
    Removed,
    /// Its remaining tablets hold nothing and are being given to others, or others serve them and
    /// stand on it.
    Wait,
    /// Its objects had no replicas and are lost; this number of tablets starts anew, empty.
    Lost(usize),
    /// These tablets must be recovered.
    Tablets(Vec<TabletSpec>),
}

/// Where the logs of a crashed server end, as an attempt has found them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LogEnds {
    /// Another attempt may find more or less.
    Open,
    /// Each attempt to come can find as much.
    At(Ends),
    /// They were settled, and the replicas of one have lost what was there. A loss of power does
    /// that where writes are only buffered.
    Lost,
}

/// Writes down where the logs of a crashed server end, unless an attempt before has settled it
/// (COORD-13).
fn note_ends(record: &mut ServerRecord, ends: &LogEnds) {
    match ends {
        // Of weak logs that the attempts before had to leave out (COORD-21) the ends were not found
        // before.
        LogEnds::At(ends) if record.ends_bind => {
            let settled = record.ends.clone();
            let is_new = |log: &LogId| !settled.contains_key(log);
            let new = |places: &Places| {
                let places = places.clone().into_iter();
                places.filter(|(log, _)| is_new(log)).collect::<Places>()
            };
            record.ends.append(&mut new(&ends.last));
            record.before_ends.append(&mut new(&ends.before));
        }
        LogEnds::Open if record.ends_bind => {}
        LogEnds::Open => record.set_ends(Ends::default()),
        LogEnds::At(ends) => record.set_ends(ends.clone()),
        LogEnds::Lost => {
            record.set_ends(Ends::default());
            record.ends_bind = false;
        }
    }
}

impl State {
    /// Settles what needs no recovery, and says what does.
    pub(super) fn prepare_recovery(
        &mut self,
        crashed: ServerId,
        now_s: u64,
        rng: &dyn Rng,
    ) -> Prepared {
        let Some(server) = self.servers.get(&crashed) else {
            return Prepared::Removed;
        };
        let is_volatile = server.info.volatile;
        // Nobody wants what is left of tables that are being dropped.
        for spec in self.left_to_recover(crashed, true) {
            let table = self.table_mut(spec.table).expect("it was just found");
            table.tablets.retain(|t| t.range != spec.range);
        }
        let tablets = self.left_to_recover(crashed, false);
        if !self.is_needed(crashed) {
            self.servers.remove(&crashed);
            return Prepared::Removed;
        }
        if tablets.is_empty() {
            return Prepared::Wait;
        }
        if !is_volatile {
            return Prepared::Tablets(tablets);
        }
        Prepared::Lost(self.begin_anew(crashed, &tablets, now_s, &Candidates::All, rng))
    }

    /// The tablets of a crashed server that nobody serves: those of tables that are being dropped,
    /// or of the others.
    fn left_to_recover(&self, crashed: ServerId, dropping: bool) -> Vec<TabletSpec> {
        let is_left = |t: &&TabletRecord| t.owner == crashed && t.state == TabletState::Recovering;
        let tables = self.tables.values().filter(|t| t.dropping == dropping);
        tables
            .flat_map(|table| {
                let left = table.tablets.iter().filter(is_left);
                left.map(move |tablet| table.spec(tablet))
            })
            .collect()
    }

    /// Numbers an attempt and cuts tablets as its partitions want them. `ends` is where the logs
    /// end in this attempt. None of `ended` answers reads any more when it gives tablets away.
    pub(super) fn begin_attempt(
        &mut self,
        crashed: ServerId,
        partitions: &[Vec<TabletSpec>],
        ends: &LogEnds,
        ended: &BTreeSet<ServerId>,
    ) -> RecoveryId {
        if let Some(record) = self.servers.get_mut(&crashed) {
            let record = Arc::make_mut(record);
            record.readers.retain(|reader| !ended.contains(reader));
            note_ends(record, ends);
        }
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

    /// Lets a recovery master answer reads of the partition that it has replayed: all of its
    /// tablets, or none. They stand on the crashed server from then on. Says whether it may.
    ///
    /// # Errors
    /// See [`Self::settle`].
    pub(super) fn settle_early(
        &mut self,
        report: &PartitionReplayed,
        wanted: Option<(ServerId, Vec<TabletSpec>)>,
    ) -> Result<bool, Refusal> {
        let by = (report.recovery, report.partition);
        let server = report.server;
        self.check_report(report.cluster, server)?;
        if self.got(server, by).next().is_some() {
            return Ok(true);
        }
        let Some((crashed, specs)) = wanted else {
            return Ok(false);
        };
        if !self.has_ends(crashed, &specs) {
            pluvio_units::mark("recovery-not-early");
            return Ok(false);
        }
        let given = self.give(crashed, &specs, |tablet| {
            tablet.owner = server;
            tablet.state = TabletState::Normal;
            tablet.recovered_by = Some(by);
            tablet.moved_by = None;
            tablet.stands_on = Some(crashed);
        });
        if given {
            pluvio_units::mark("recovery-serves-early");
            self.globals.format = self.globals.format.max(FORMAT_EARLY);
            self.bind_ends(crashed);
        }
        Ok(given)
    }

    /// Whether other attempts replay these tablets as far as this one. Where the ends of their logs
    /// are open, another one could replay less (COORD-13).
    fn has_ends(&self, crashed: ServerId, specs: &[TabletSpec]) -> bool {
        let Some(record) = self.servers.get(&crashed) else {
            return false;
        };
        let classes = specs.iter().filter_map(|spec| spec.class);
        let mut logs = classes.map(|class| record.log_of_class(&class));
        !record.ends.is_empty() && logs.all(|log| record.ends.contains_key(&log))
    }

    /// From now on each attempt replays the logs up to the ends that were found, if they were.
    fn bind_ends(&mut self, crashed: ServerId) {
        if let Some(record) = self.servers.get_mut(&crashed)
            && !record.ends.is_empty()
        {
            Arc::make_mut(record).ends_bind = true;
        }
    }

    /// Tablets that a master got by a partition.
    fn got(
        &self,
        server: ServerId,
        by: (RecoveryId, u32),
    ) -> impl Iterator<Item = (TableId, &TabletRecord)> {
        let tables = self.tables.values();
        let tablets = tables.flat_map(|t| t.tablets.iter().map(|tablet| (t.id, tablet)));
        tablets.filter(move |(_, t)| t.owner == server && t.recovered_by == Some(by))
    }

    /// Changes the records of tablets of a crashed server, if it still has all of them.
    fn give(
        &mut self,
        crashed: ServerId,
        specs: &[TabletSpec],
        change: impl Fn(&mut TabletRecord),
    ) -> bool {
        let place = |spec: &TabletSpec| {
            let tablets = &self.tables.get(&spec.table)?.tablets;
            tablets.iter().position(|t| {
                t.range == spec.range && t.owner == crashed && t.state == TabletState::Recovering
            })
        };
        let Some(places) = specs.iter().map(place).collect::<Option<Vec<usize>>>() else {
            return false;
        };
        for (spec, index) in specs.iter().zip(places) {
            let record = self.table_mut(spec.table).expect("it was just found");
            change(&mut record.tablets[index]);
        }
        true
    }

    /// Gives a recovered partition to its recovery master for good: all of its tablets, or none.
    /// Says whether the master has it. Tablets that a master answered reads of and could not
    /// finish go back.
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
        if report.result.is_err() {
            // It has stopped answering (REC-7).
            self.give_back(server, |tablet| tablet.recovered_by == Some(by));
        }
        let got: Vec<_> = self
            .got(server, by)
            .map(|(t, tablet)| (t, *tablet))
            .collect();
        for (table, tablet) in got.iter().filter(|(_, t)| t.stands_on.is_some()) {
            let record = self.table_mut(*table).expect("it was just found");
            let mut tablets = record.tablets.iter_mut();
            if let Some(record) = tablets.find(|t| t.range == tablet.range) {
                record.stands_on = None;
                record.since = report.since;
            }
        }
        if !got.is_empty() {
            return Ok(true);
        }
        let Some((crashed, specs)) = wanted.filter(|_| report.result.is_ok()) else {
            return Ok(false);
        };
        let given = self.give(crashed, &specs, |tablet| {
            tablet.owner = server;
            tablet.state = TabletState::Normal;
            tablet.recovered_by = Some(by);
            tablet.moved_by = None;
            tablet.since = report.since;
        });
        if given {
            // Its other partitions end where this one does. So a group of entries is whole, and
            // what stands behind another change is not there without that (COORD-13).
            self.bind_ends(crashed);
        }
        Ok(given)
    }
}
