//! Durability classes: which log takes the entries of a table (`docs/classes.md`).
//!
//! - CLASS-1: an entry lies in a log that is at least as durable as its table asks. Entries of one
//!   group lie in the log of the most durable of their tables.

use super::{Engine, EngineTable};
use core::sync::atomic::{AtomicU32, Ordering};
use pluvio_units::{CLASS_LOGS, LogId};

/// The rank of the logs of cores, whose durability is that of the cluster.
const OF_CORES: u32 = 1000;

/// How durable the logs of classes are, in comparison: a larger number stands for a log that
/// outlives whatever the others do. 0: the class is not open.
#[derive(Default)]
pub(crate) struct Classes([AtomicU32; CLASS_LOGS as usize]);

impl Engine {
    /// A class can take entries from now on, or is compared anew. How two classes compare never
    /// changes while either has a table. `is_weaker` says whether it is less durable than the logs
    /// of cores; `degree` compares those that are on the same side.
    pub fn set_class(&self, class: u16, is_weaker: bool, degree: u32) {
        let degree = degree.clamp(1, OF_CORES - 1);
        let rank = match is_weaker {
            true => degree,
            false => OF_CORES + degree,
        };
        if let Some(known) = self.classes.0.get(usize::from(class).wrapping_sub(1)) {
            known.store(rank, Ordering::Release);
        }
    }

    /// The log of a class: 1 to [`CLASS_LOGS`].
    #[must_use]
    pub fn log_of_class(&self, class: u16) -> LogId {
        LogId(self.space.first_logs() + class - 1)
    }

    /// The log that takes entries of this table, on a core that has the log `of_core`.
    #[must_use]
    #[inline]
    pub fn log_of(&self, of_core: LogId, table: &EngineTable) -> LogId {
        match table.class() {
            0 => of_core,
            class => self.log_of_class(class),
        }
    }

    /// The log that takes entries of all these tables in one group.
    #[must_use]
    pub fn log_of_all<'t>(
        &self,
        of_core: LogId,
        tables: impl Iterator<Item = &'t EngineTable>,
    ) -> LogId {
        let logs = tables.map(|table| self.log_of(of_core, table));
        let best = logs.max_by_key(|log| self.rank(*log));
        best.unwrap_or(of_core)
    }

    /// The open logs that may have entries of this table (CLASS-1).
    pub fn logs_with(&self, table: &EngineTable) -> impl Iterator<Item = LogId> + use<'_> {
        let least = self.rank(self.log_of(LogId(0), table));
        let logs = self.space.logs();
        logs.filter(move |log| self.rank(*log) >= least)
    }

    /// The most durable log: for what transactions of several owners must remember. None of their
    /// tables outlives it, whichever those are.
    pub(super) fn most_durable_log(&self, of_core: LogId) -> LogId {
        let classes = (1..=CLASS_LOGS).map(|class| self.log_of_class(class));
        let better = classes.filter(|log| self.rank(*log) > OF_CORES);
        better.max_by_key(|log| self.rank(*log)).unwrap_or(of_core)
    }

    /// See [`Classes`].
    pub(super) fn rank(&self, log: LogId) -> u32 {
        match log.0.checked_sub(self.space.first_logs()) {
            None => OF_CORES,
            Some(class) => {
                let rank = self.classes.0.get(usize::from(class));
                rank.map_or(OF_CORES, |rank| rank.load(Ordering::Acquire))
            }
        }
    }

    /// The log for what concerns the tables of all classes: one of a core.
    pub(super) fn log_of_core(&self, log: LogId) -> LogId {
        match log.0 < self.space.first_logs() {
            true => log,
            false => LogId(0),
        }
    }

    /// An entry of this table is about to be appended there (CLASS-1).
    #[inline]
    pub(super) fn check_class(&self, log: LogId, table: &EngineTable) {
        if table.class() > 0 || log.0 >= self.space.first_logs() {
            let least = self.rank(self.log_of(LogId(0), table));
            assert!(
                self.rank(log) >= least,
                "CLASS-1: log {log} is not durable enough for table {}",
                table.id()
            );
        }
    }
}
