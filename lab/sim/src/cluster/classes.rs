//! Durability classes of a run's tables (`docs/classes.md`).
//!
//! Faults stay within those that the weakest class of a run survives. Where one server may lose
//! what it has, no class has a single replica. Where all may lose power, every class is synced. So
//! checkers judge all tables alike.

use crate::cluster::faults::Fault;
use crate::cluster::plan::{OperationKind, Plan};
use crate::random::Stream;
use pluvio_client::DurabilityWish;
use pluvio_wire::TableInfo;
use serde::{Deserialize, Serialize};

/// A durability that tables ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Durability {
    /// Replicas of each segment.
    pub replicas: u32,
    /// Whether replicas are on their devices before writes are acknowledged.
    pub synced: bool,
}

impl Durability {
    fn is_at_least(self, other: Self) -> bool {
        self.replicas >= other.replicas && self.synced >= other.synced
    }

    /// Whether there can be both in a cluster (COORD-22).
    fn goes_with(self, other: Self) -> bool {
        self.is_at_least(other) || other.is_at_least(self)
    }

    fn wish(self) -> DurabilityWish {
        DurabilityWish {
            replicas: Some(self.replicas),
            synced: Some(self.synced),
        }
    }
}

impl Plan {
    /// In half of the runs tables ask for one or two durabilities of their own. Drawn apart, so
    /// that the other half is as it would be without.
    pub(super) fn choose_classes(&mut self, seed: u64) {
        let mut draw = Stream::new(seed, "classes");
        if draw.below(2) == 0 {
            return;
        }
        let own = Durability {
            replicas: self.replicas,
            synced: self.synced,
        };
        let mut chosen = vec![own];
        let most = 2 + draw.below(3).min(1) as usize;
        while chosen.len() < most {
            let mut all = self.durabilities();
            all.retain(|one| chosen.iter().all(|other| one.goes_with(*other)));
            // Mostly another one than that of the settings.
            if draw.below(8) > 0 && all.iter().any(|one| !chosen.contains(one)) {
                all.retain(|one| !chosen.contains(one));
            }
            chosen.push(all[draw.below(all.len() as u64) as usize]);
        }
        chosen.remove(0);
        chosen.dedup();
        self.first_class = draw.below(chosen.len() as u64 + 1) as u32;
        self.classes = chosen;
        if !self.is_heavy() {
            self.tables = self.tables.max(self.durabilities_in_use() as u32);
        }
    }

    /// A third of the runs have a volatile table, where there may be one more class. Drawn apart,
    /// too.
    pub(super) fn choose_cache(&mut self, seed: u64) {
        let is_drawn = Stream::new(seed, "caches").below(3) == 0;
        let classes = usize::from(pluvio_units::CLASS_LOGS);
        if is_drawn && self.classes.len() < classes && self.servers > 1 {
            self.operations.push(OperationKind::CACHE);
        }
    }

    /// All durabilities that survive this run's faults.
    fn durabilities(&self) -> Vec<Durability> {
        // The weak server may lose what it has.
        let least = if self.weak_server.is_some() { 2 } else { 1 };
        let only_synced = self.faults.has(Fault::Power) && self.synced;
        let counts = least..=self.replicas_max();
        let both =
            counts.flat_map(|replicas| [true, false].map(|synced| Durability { replicas, synced }));
        both.filter(|one| one.synced || !only_synced).collect()
    }

    /// The most replicas that any table of the run has.
    pub(super) fn most_replicas(&self) -> u32 {
        match self.classes.is_empty() {
            true => self.replicas,
            false => self.replicas_max(),
        }
    }

    /// The most replicas for which there are servers.
    fn replicas_max(&self) -> u32 {
        3.min(self.servers.saturating_sub(1)).max(1)
    }

    /// How many durabilities tables have: that of the settings, and the others.
    pub(super) fn durabilities_in_use(&self) -> usize {
        1 + self.classes.len()
    }

    /// The durability that the table with this number asks for. As many tables as there are
    /// durabilities, one behind the other, have all of them.
    pub(super) fn durability(&self, table: usize) -> DurabilityWish {
        let number = (table + self.first_class as usize) % self.durabilities_in_use();
        let class = number.checked_sub(1).map(|n| self.classes[n].wish());
        class.unwrap_or_default()
    }

    /// The durability of a table that clients make meanwhile: mostly one that others have, at times
    /// any that survives the run. That may be refused.
    pub(super) fn some_durability(&self, draw: &mut Stream) -> DurabilityWish {
        if self.classes.is_empty() || draw.below(2) == 0 {
            return DurabilityWish::default();
        }
        if draw.below(2) == 0 {
            return self.durability(draw.below(3) as usize);
        }
        let all = self.durabilities();
        all[draw.below(all.len() as u64) as usize].wish()
    }

    /// A table that does not have the durability it asked for. `names` are those of the run's
    /// tables, in their order.
    pub(super) fn wrong_durability(
        &self,
        names: &[String],
        tables: &[TableInfo],
    ) -> Option<String> {
        names.iter().enumerate().find_map(|(number, name)| {
            let wish = self.durability(number);
            let info = tables.iter().find(|info| info.name == *name)?;
            let has = info.class.map_or_else(DurabilityWish::default, |class| {
                let (replicas, synced) = (class.replicas, class.synced);
                Durability { replicas, synced }.wish()
            });
            (has != wish).then(|| format!("table {name} asked for {wish:?} and has {has:?}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::faults::Faults;

    fn plans() -> impl Iterator<Item = Plan> {
        (0..400).map(|seed| Plan::draw(seed, None, &Faults::all(), 1_000))
    }

    #[test]
    fn half_of_the_runs_have_tables_of_other_durabilities() {
        let with = plans().filter(|plan| !plan.classes.is_empty());
        let count = with.count();
        assert!((150..250).contains(&count), "{count}");
        let two = plans().filter(|plan| plan.classes.len() == 2).count();
        assert!(two > 50, "{two}");
        let all = plans().flat_map(|plan| plan.classes.clone());
        let all: Vec<Durability> = all.collect();
        for replicas in 1..=3 {
            for synced in [false, true] {
                assert!(all.contains(&Durability { replicas, synced }));
            }
        }
    }

    #[test]
    fn every_durability_survives_the_faults_and_goes_with_the_others() {
        for plan in plans().filter(|plan| !plan.classes.is_empty()) {
            let settings = Durability {
                replicas: plan.replicas,
                synced: plan.synced,
            };
            let loses_power = plan.faults.has(Fault::Power) && plan.weak_server.is_none();
            for one in &plan.classes {
                assert!(one.replicas > 1 || plan.weak_server.is_none(), "{plan:?}");
                assert!(one.synced || !loses_power, "{plan:?}");
                assert!(one.replicas < plan.servers.max(2), "{plan:?}");
                assert!(one.goes_with(settings), "{plan:?}");
                assert!(plan.classes.iter().all(|other| one.goes_with(*other)));
            }
        }
    }
}
