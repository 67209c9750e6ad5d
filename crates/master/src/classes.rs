//! The logs of durability classes (`docs/classes.md`).
//!
//! - MASTER-8: a master takes no tablet of a class before the log of that class is durably open,
//!   and its other logs say so (LOG-17). The head of that log is replicated as the class says by
//!   then. That holds for tablets that are new, recovered or moved.
//! - MASTER-9: a transaction that changes something is of volatile tables alone, or of none. Its
//!   outcome lies with one of its keys. With a volatile one it would be lost, and a retry would
//!   change the others twice.

use crate::master::{Master, TABLET_RETRY};
use crate::side_log::MEMORY_PAUSE;
use pluvio_store::EngineTable;
use pluvio_units::{HashRange, LogId};
use pluvio_wire::{FatalKind, Refusal, RetryReason, ServerList, TableClass, TabletSpec};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The classes that can take tablets.
#[derive(Default)]
pub(crate) struct OpenClasses(Mutex<Vec<TableClass>>);

impl OpenClasses {
    fn all(&self) -> MutexGuard<'_, Vec<TableClass>> {
        // Held for single steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, class: &TableClass) -> bool {
        self.all().contains(class)
    }

    /// Whether a table of this class number keeps no replicas.
    fn is_volatile(&self, number: u16) -> bool {
        let is_it = |class: &TableClass| class.number == number && class.is_volatile();
        number > 0 && self.all().iter().any(is_it)
    }

    /// Takes out what has this number, and puts a class in its place if there is one.
    fn replace(&self, number: u16, class: Option<TableClass>) {
        let mut all = self.all();
        all.retain(|known| known.number != number);
        all.extend(class);
    }
}

impl Master {
    /// Opens the logs of the classes of this list, unless they are open. Waits as long as backups
    /// and memory for that are missing. To be called for one list at a time.
    pub async fn open_classes(&self, list: &ServerList) {
        if !self.is_replicated() || list.classes.is_empty() {
            return;
        }
        // Heads that are opened from now on are replicated by this list, or a newer one.
        self.replication.server_list_changed(list);
        for class in &list.classes {
            if self.open_classes.has(class) {
                continue;
            }
            self.open_classes.replace(class.number, None);
            let log = self.store().log_of_class(class.number);
            self.open_logs_up_to(log).await;
            // A head that was open before may be replicated as another class said.
            self.roll_durably(log).await;
            let (number, degree) = (class.number, class.degree());
            self.store().set_class(number, class.weaker, degree);
            self.open_classes.replace(number, Some(*class));
            pluvio_units::mark("class-opened");
            tracing::info!(%class, %log, "a durability class has its log");
        }
    }

    /// Opens spare logs, one after the other (LOG-17).
    async fn open_logs_up_to(&self, last: LogId) {
        let space = self.store().space();
        while space.counted_logs() <= last.0 {
            let next = LogId(space.counted_logs());
            if space.logs().count() <= usize::from(next.0) {
                match space.open_log() {
                    Ok(Some(_)) => {}
                    Ok(None) => return,
                    Err(_) => {
                        self.env.clock.sleep(MEMORY_PAUSE).await;
                        continue;
                    }
                }
            }
            self.replication.start_log(next);
            self.replication.log_opened(next).await;
            space.raise_logs(next.0 + 1);
            self.roll_durably(LogId(0)).await;
        }
    }

    /// Opens a new head, and waits until it is durable.
    async fn roll_durably(&self, log: LogId) {
        let space = self.store().space();
        let position = loop {
            match space.roll(log) {
                Ok(position) => break position,
                Err(_) => self.env.clock.sleep(MEMORY_PAUSE).await,
            }
        };
        self.replication.synced(log, position).await;
    }

    /// Whether tablets of this class can be taken (MASTER-8).
    ///
    /// # Errors
    /// `Retry` while its log is not open.
    pub(crate) fn class_is_open(&self, spec: &TabletSpec) -> Result<(), Refusal> {
        match &spec.class {
            Some(class) if !self.open_classes.has(class) => {
                Err(Refusal::retry(TABLET_RETRY, RetryReason::TabletNotReady))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a transaction may change objects of all these tables together (MASTER-9).
    ///
    /// # Errors
    /// `VolatileWithOthers`.
    pub(crate) fn goes_together<'t>(
        &self,
        mut tables: impl Iterator<Item = &'t EngineTable>,
    ) -> Result<(), Refusal> {
        let Some(first) = tables.next().map(EngineTable::class) else {
            return Ok(());
        };
        let is_volatile = |class| self.open_classes.is_volatile(class);
        let differs = |class| class != first && is_volatile(class) != is_volatile(first);
        match tables.map(EngineTable::class).any(differs) {
            true => Err(Refusal::fatal(
                FatalKind::VolatileWithOthers,
                "a transaction may change volatile tables or others, and not both",
            )),
            false => Ok(()),
        }
    }

    /// The log for entries of all these tablets, on a core that has the log `of_core`.
    pub(crate) fn log_of_tablets(
        &self,
        of_core: LogId,
        tablets: &[(Arc<EngineTable>, HashRange)],
    ) -> LogId {
        let tables = tablets.iter().map(|(table, _)| &**table);
        self.store().log_of_all(of_core, tables)
    }
}
