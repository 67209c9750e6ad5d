//! Durability classes of tables (`docs/classes.md`).
//!
//! - COORD-22: of two classes that are in use, one is at least as durable as the other. It has as
//!   many replicas, and an acknowledgement waits for as much. So it is with each of them and the
//!   cluster's settings. How they compare does not change while one of them is in use. So entries
//!   may stay in the log of a more durable class.

use super::{FORMAT_CLASSES, FORMAT_VOLATILE, ServerRecord, State};
use pluvio_units::{CLASS_LOGS, LogId};
use pluvio_wire::{CLASSES_SINCE, ClusterSettings, DurabilityWish, FatalKind, Refusal, TableClass};
use std::collections::BTreeSet;

/// How durable something is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Strength {
    replicas: u32,
    synced: bool,
}

impl From<&TableClass> for Strength {
    fn from(class: &TableClass) -> Self {
        let (replicas, synced) = (class.replicas, class.synced);
        Self { replicas, synced }
    }
}

impl From<&ClusterSettings> for Strength {
    fn from(settings: &ClusterSettings) -> Self {
        let (replicas, synced) = (settings.replicas, settings.synced);
        Self { replicas, synced }
    }
}

impl Strength {
    /// Without replicas.
    const VOLATILE: Self = Self {
        replicas: 0,
        synced: false,
    };

    fn is_at_least(self, other: Self) -> bool {
        self.replicas >= other.replicas && self.synced >= other.synced
    }

    fn can_be_compared(self, other: Self) -> bool {
        self.is_at_least(other) || other.is_at_least(self)
    }
}

fn refused<T>(message: String) -> Result<T, Refusal> {
    Err(Refusal::fatal(FatalKind::Other, message))
}

/// The durability that a wish asks for in a cluster of these settings.
///
/// # Errors
/// No table of this cluster can have it.
fn wanted(wish: &DurabilityWish, settings: &ClusterSettings) -> Result<Strength, Refusal> {
    if settings.replicas == 0 {
        return refused(
            "this cluster keeps no replicas (replicas=0), so no table can have any: begin another cluster"
                .to_owned(),
        );
    }
    let replicas = wish.replicas.unwrap_or(settings.replicas);
    if replicas == 0 {
        return match wish.synced {
            Some(true) => refused(
                "replicas 0 and synced: a table without replicas has nothing on devices; leave one of them out"
                    .to_owned(),
            ),
            Some(false) | None => Ok(Strength::VOLATILE),
        };
    }
    if replicas > ClusterSettings::REPLICAS_MAX {
        let most = ClusterSettings::REPLICAS_MAX;
        return refused(format!("replicas {replicas}: {most} are the most"));
    }
    let synced = wish.synced.unwrap_or(settings.synced);
    Ok(Strength { replicas, synced })
}

/// Refuses a new class beside `other`, which is in use as `use_of_other` says, if they cannot be
/// compared (COORD-22).
fn check_can_be_compared(
    class: &TableClass,
    other: Strength,
    use_of_other: impl FnOnce() -> String,
) -> Result<(), Refusal> {
    if Strength::from(class).can_be_compared(other) {
        return Ok(());
    }
    refused(format!(
        "durability {class}: {}; a table's durability must be more than that, or less, in both: a transaction over both is written to the more durable log",
        use_of_other()
    ))
}

/// Logs of durability classes that are less durable than the cluster's settings say. No entry of
/// another table lies there (CLASS-1).
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakLogs {
    /// Those that have replicas.
    pub(crate) logs: BTreeSet<LogId>,
    /// The rest is wanted without them (COORD-21).
    pub(crate) left_out: bool,
    /// Those of volatile classes, which nobody can find (COORD-23).
    pub(crate) volatile: BTreeSet<LogId>,
}

impl WeakLogs {
    /// The proof that a server answers no more lies in the logs of cores: weak ones need not be
    /// there for it.
    pub(crate) fn all_left_out(self) -> Self {
        Self {
            left_out: true,
            ..self
        }
    }

    pub(crate) fn leaves_out(&self, log: LogId) -> bool {
        self.left_out && self.logs.contains(&log) || self.volatile.contains(&log)
    }
}

impl ServerRecord {
    /// The log of a class on this server.
    pub(crate) fn log_of_class(&self, class: &TableClass) -> LogId {
        LogId(self.logs.saturating_add(class.number - 1))
    }
}

impl State {
    /// The logs of a server whose durability classes are less durable than the cluster's settings
    /// say. None where it has not said how many logs its cores have.
    pub(crate) fn weak_logs(&self, server: &ServerRecord) -> WeakLogs {
        let classes = self.globals.classes.iter();
        let weaker = classes.filter(|class| class.weaker && server.logs > 0);
        let (volatile, others): (Vec<_>, Vec<_>) = weaker.partition(|class| class.is_volatile());
        let logs = |classes: Vec<&TableClass>| {
            let logs = classes.into_iter().map(|class| server.log_of_class(class));
            logs.collect()
        };
        WeakLogs {
            logs: logs(others),
            left_out: false,
            volatile: logs(volatile),
        }
    }

    /// A table that has this class, or was emptied and will have it again; for people.
    fn table_of_class(&self, number: u16) -> Option<String> {
        let is_it = |class: &Option<TableClass>| class.is_some_and(|c| c.number == number);
        let tables = self.tables.values().filter(|table| is_it(&table.class));
        let kept = self.globals.kept_classes.iter();
        let kept = kept.filter(|(_, class)| class.number == number);
        let emptied = |name: &String| {
            format!("table {name}, emptied and kept in mind until `pluvio table drop {name}`,")
        };
        let names = tables.map(|table| format!("table {}", table.name));
        names.chain(kept.map(|(name, _)| emptied(name))).next()
    }

    /// The class of a new table with this wish. `None`: it is kept as the cluster's settings say.
    ///
    /// # Errors
    /// There can be no such class beside those that are in use.
    pub(crate) fn class_for(
        &mut self,
        wish: &DurabilityWish,
    ) -> Result<Option<TableClass>, Refusal> {
        if wish.is_empty() {
            return Ok(None);
        }
        let active = self.globals.active;
        if active < CLASSES_SINCE {
            let message = format!(
                "tables with a durability of their own need version {CLASSES_SINCE} of the cluster, which speaks {active}: run the newer version of pluvio everywhere, then `pluvio finalize`"
            );
            return Err(Refusal::fatal(FatalKind::WrongVersion, message));
        }
        let Some(settings) = self.globals.settings else {
            return refused(
                "nobody has said yet how this cluster keeps its objects: start a server first"
                    .to_owned(),
            );
        };
        let wanted = wanted(wish, &settings)?;
        let known = self.globals.classes.iter();
        if let Some(class) = known.clone().find(|class| Strength::from(*class) == wanted) {
            return Ok(Some(*class));
        }
        let own = Strength::from(&settings);
        let mut class = TableClass {
            number: 0,
            replicas: wanted.replicas,
            synced: wanted.synced,
            weaker: !wanted.is_at_least(own),
        };
        check_can_be_compared(&class, own, || format!("the cluster has {settings}"))?;
        for other in known {
            if let Some(table) = self.table_of_class(other.number) {
                let has = || format!("{table} has {other}");
                check_can_be_compared(&class, other.into(), has)?;
            }
        }
        let Some(number) = self.free_class(&class) else {
            let all = self.globals.classes.iter().map(ToString::to_string);
            return refused(format!(
                "durability {class}: the cluster has tables of {CLASS_LOGS} other durabilities beside its own settings ({settings}), and no more are possible: take one of them ({})",
                all.collect::<Vec<_>>().join("; ")
            ));
        };
        class.number = number;
        let classes = &mut self.globals.classes;
        classes.retain(|other| other.number != number);
        classes.push(class);
        classes.sort_unstable_by_key(|class| class.number);
        let format = match class.is_volatile() {
            true => FORMAT_VOLATILE,
            false => FORMAT_CLASSES,
        };
        self.globals.format = self.globals.format.max(format);
        Ok(Some(class))
    }

    /// A number for a class: one that was never given, or one that is not in use. Of the latter the
    /// class compares with all others as the former class did (COORD-22).
    fn free_class(&self, class: &TableClass) -> Option<u16> {
        let classes = &self.globals.classes;
        let is_new = |number: &u16| classes.iter().all(|other| other.number != *number);
        if let Some(number) = (1..=CLASS_LOGS).find(is_new) {
            return Some(number);
        }
        let wanted = Strength::from(class);
        let is_free = |former: &&TableClass| {
            let mut others = classes.iter().filter(|o| o.number != former.number);
            self.table_of_class(former.number).is_none()
                && former.weaker == class.weaker
                // Segments that never had replicas get none later (REP-20).
                && former.is_volatile() == class.is_volatile()
                && others.all(|other| {
                    let (former, other) = (Strength::from(*former), Strength::from(other));
                    former.is_at_least(other) == wanted.is_at_least(other)
                        && wanted.can_be_compared(other)
                })
        };
        let former = classes.iter().find(is_free)?;
        Some(former.number)
    }

    /// Keeps COORD-22 while the cluster's settings change. Classes that are not in use follow.
    ///
    /// # Errors
    /// One that is in use would compare otherwise.
    pub(super) fn keep_classes(&mut self, changed: &ClusterSettings) -> Result<(), Refusal> {
        let new = Strength::from(changed);
        let mut classes = self.globals.classes.clone();
        for class in &mut classes {
            let own = Strength::from(&*class);
            let stays = match class.weaker {
                true => new.is_at_least(own) && new != own,
                false => own.is_at_least(new),
            };
            if stays {
                continue;
            }
            if let Some(table) = self.table_of_class(class.number) {
                let how = match class.weaker {
                    true => "less",
                    false => "no less",
                };
                return refused(format!(
                    "{table} has a durability of its own ({class}), which must stay {how} than the cluster's, and this would make that {changed}"
                ));
            }
            (class.replicas, class.synced) = match class.weaker {
                true => (own.replicas.min(new.replicas), own.synced && new.synced),
                false => (own.replicas.max(new.replicas), own.synced || new.synced),
            };
        }
        self.globals.classes = classes;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
