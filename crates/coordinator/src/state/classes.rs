//! Durability classes of tables (`docs/classes.md`).
//!
//! - COORD-22: of two classes that are in use, one is at least as durable as the other. It has as
//!   many replicas, and an acknowledgement waits for as much. So it is with each of them and the
//!   cluster's settings. How they compare does not change while one of them is in use. So entries
//!   may stay in the log of a more durable class.

use super::{FORMAT_CLASSES, ServerRecord, State};
use crate::work::WeakLogs;
use pluvio_units::{CLASS_LOGS, LogId};
use pluvio_wire::{CLASSES_SINCE, ClusterSettings, DurabilityWish, FatalKind, Refusal, TableClass};

/// What decides how durable something is.
type Strength = (u32, bool);

fn of_class(class: &TableClass) -> Strength {
    (class.replicas, class.synced)
}

fn of_cluster(settings: &ClusterSettings) -> Strength {
    (settings.replicas, settings.synced)
}

fn is_at_least(one: Strength, other: Strength) -> bool {
    one.0 >= other.0 && one.1 >= other.1
}

fn can_be_compared(one: Strength, other: Strength) -> bool {
    is_at_least(one, other) || is_at_least(other, one)
}

fn refused<T>(message: String) -> Result<T, Refusal> {
    Err(Refusal::fatal(FatalKind::Other, message))
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
        WeakLogs {
            logs: weaker.map(|class| server.log_of_class(class)).collect(),
            left_out: false,
        }
    }

    /// A table that has this class, or whose next of the name has it.
    fn table_of_class(&self, number: u16) -> Option<&str> {
        let is_it = |class: &Option<TableClass>| class.is_some_and(|c| c.number == number);
        let tables = self.tables.values().filter(|table| is_it(&table.class));
        let kept = self.globals.kept_classes.iter();
        let kept = kept.filter(|(_, class)| class.number == number);
        let names = tables.map(|table| table.name.as_str());
        names.chain(kept.map(|(name, _)| name.as_str())).next()
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
        if settings.replicas == 0 {
            return refused(
                "this cluster keeps no replicas (replicas=0), so no table can have any: begin another cluster"
                    .to_owned(),
            );
        }
        let replicas = wish.replicas.unwrap_or(settings.replicas);
        if replicas == 0 {
            return refused(
                "replicas 0: a table without replicas is not possible in a cluster with replicas; give 1 or more"
                    .to_owned(),
            );
        }
        if replicas > ClusterSettings::REPLICAS_MAX {
            let most = ClusterSettings::REPLICAS_MAX;
            return refused(format!("replicas {replicas}: {most} are the most"));
        }
        let synced = wish.synced.unwrap_or(settings.synced);
        let wanted = (replicas, synced);
        let known = self.globals.classes.iter();
        if let Some(class) = known.clone().find(|class| of_class(class) == wanted) {
            return Ok(Some(*class));
        }
        let mut class = TableClass {
            number: 0,
            replicas,
            synced,
            weaker: !is_at_least(wanted, of_cluster(&settings)),
        };
        if !can_be_compared(wanted, of_cluster(&settings)) {
            return refused(format!(
                "durability {class}: the cluster has {settings}; a table's durability must be more than that, or less, in both: a transaction over both is written to the more durable log"
            ));
        }
        for other in known {
            if let Some(table) = self.table_of_class(other.number)
                && !can_be_compared(wanted, of_class(other))
            {
                return refused(format!(
                    "durability {class}: table {table} has {other}; a table's durability must be more than that, or less, in both: a transaction over both is written to the more durable log"
                ));
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
        self.globals.format = self.globals.format.max(FORMAT_CLASSES);
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
        let wanted = of_class(class);
        let is_free = |former: &&TableClass| {
            let mut others = classes.iter().filter(|o| o.number != former.number);
            self.table_of_class(former.number).is_none()
                && former.weaker == class.weaker
                && others.all(|other| {
                    let other = of_class(other);
                    is_at_least(of_class(former), other) == is_at_least(wanted, other)
                        && can_be_compared(wanted, other)
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
        let new = of_cluster(changed);
        let mut classes = self.globals.classes.clone();
        for class in &mut classes {
            let own = of_class(class);
            let stays = match class.weaker {
                true => is_at_least(new, own) && new != own,
                false => is_at_least(own, new),
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
                    "table {table} has a durability of its own ({class}), which must stay {how} than the cluster's, and this would make that {changed}"
                ));
            }
            (class.replicas, class.synced) = match class.weaker {
                true => (own.0.min(new.0), own.1 && new.1),
                false => (own.0.max(new.0), own.1 || new.1),
            };
        }
        self.globals.classes = classes;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
