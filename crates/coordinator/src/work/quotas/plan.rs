//! Sharing the quota of one table among its owners: the arithmetic.
//!
//! - COORD-20: all owners together may let a table grow to its quota and no further. A table that
//!   has more does not grow. So a share is made smaller, and that is confirmed, before another
//!   one is made larger. A server that does not answer is taken to have used all of its share.

use pluvio_units::ServerId;
use pluvio_wire::{QuotaGrant, QuotaUse, TableQuota};
use std::collections::{BTreeMap, BTreeSet};

/// A server that owns something of the table, as long as it does without a break.
type Holder = (ServerId, u64);

/// How large a table was when nothing of it was coming or going.
#[derive(Clone, PartialEq, Debug)]
struct Base {
    bytes: i64,
    /// How far each owner's operations had made it grow then.
    grown: BTreeMap<Holder, i64>,
}

/// The shares of a table, as far as they are known.
#[derive(Clone, Default, Debug)]
pub(super) struct Book {
    base: Option<Base>,
    /// How far each holder may let the table grow. `None`: as far as it likes.
    bounds: BTreeMap<Holder, Option<i64>>,
    /// Operations in a thousand seconds that each owner may do.
    rates: BTreeMap<ServerId, u64>,
    /// Operations that each holder was asked for at the look before the latest one.
    asked: BTreeMap<Holder, u64>,
    uses: BTreeMap<ServerId, QuotaUse>,
    /// Operations asked for between the two latest looks.
    demand: BTreeMap<ServerId, u64>,
    owners: BTreeSet<ServerId>,
}

/// A share as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) grown_max: Option<i64>,
    pub(super) grown_full: Option<i64>,
    pub(super) operations_milli: Option<u64>,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The smaller one of two bounds.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (bound, None) | (None, bound) => bound,
    }
}

impl Book {
    /// Takes note of what owners said. `settled`: all of them did, and nothing of the table comes
    /// or goes.
    pub(super) fn look(
        &mut self,
        owners: &BTreeSet<ServerId>,
        uses: BTreeMap<ServerId, QuotaUse>,
        settled: bool,
    ) {
        self.owners.clone_from(owners);
        self.demand.clear();
        let before = core::mem::take(&mut self.asked);
        for (server, used) in &uses {
            let holder = (*server, used.instance);
            let asked = used.operations + used.refused_operations;
            let since = before.get(&holder).copied().unwrap_or(asked);
            self.demand.insert(*server, asked.saturating_sub(since));
            self.asked.insert(holder, asked);
        }
        self.rates.retain(|server, _| owners.contains(server));
        if settled {
            let grown = uses
                .iter()
                .map(|(id, used)| ((*id, used.instance), used.grown));
            self.base = Some(Base {
                bytes: uses.values().map(|used| signed(used.bytes)).sum(),
                grown: grown.collect(),
            });
            self.bounds.clear();
        }
        self.uses.clear();
        self.confirm(uses);
    }

    /// Takes note of the shares that owners have.
    pub(super) fn confirm(&mut self, uses: BTreeMap<ServerId, QuotaUse>) {
        for (server, used) in uses {
            // It may have grown before it heard of a bound below that.
            let bound = used.grown_max.map(|most| most.max(used.grown));
            self.bounds.insert((server, used.instance), bound);
            match used.operations_milli {
                Some(rate) => self.rates.insert(server, rate),
                None => self.rates.remove(&server),
            };
            self.uses.insert(server, used);
        }
    }

    /// Bytes at the base, and the holders' growth since: as it is, or as it may be. And whether all
    /// of it is known for sure.
    fn growth(&self, of: impl Fn(&QuotaUse) -> Option<i64>) -> Option<(i64, bool)> {
        let base = self.base.as_ref()?;
        let (mut sum, mut is_sure) = (0_i64, true);
        for ((server, instance), bound) in &self.bounds {
            let used = self
                .uses
                .get(server)
                .filter(|used| used.instance == *instance);
            let now = match used {
                Some(used) => of(used)?,
                None => {
                    is_sure = false;
                    (*bound)?
                }
            };
            let then = base.grown.get(&(*server, *instance)).copied().unwrap_or(0);
            sum = sum.saturating_add(now.saturating_sub(then));
        }
        Some((base.bytes.saturating_add(sum), is_sure))
    }

    /// Bytes of the table, and whether that is sure.
    fn bytes(&self) -> Option<(i64, bool)> {
        self.growth(|used| Some(used.grown))
    }

    /// Bytes that the table may have at most, as its owners' shares are. `None`: there is no bound.
    pub(super) fn most(&self) -> Option<i64> {
        self.growth(|used| used.grown_max.map(|most| most.max(used.grown)))
            .map(|(most, _)| most)
    }

    /// The shares that the owners that answered should have.
    pub(super) fn targets(&self, quota: TableQuota) -> BTreeMap<ServerId, Target> {
        let count = self.uses.len().max(1);
        let bytes = quota.bytes.map(|quota| {
            let known = self.bytes();
            let left = known.map_or(0, |(bytes, _)| signed(quota).saturating_sub(bytes).max(0));
            (left, known.is_some_and(|(_, is_sure)| is_sure))
        });
        let mut left = bytes.map_or(0, |(left, _)| left);
        let mut grants: BTreeMap<ServerId, i64> = BTreeMap::new();
        // First what was refused, as far as there is something left: then equal parts.
        for (server, used) in &self.uses {
            let wanted = signed(used.wanted).min(left);
            left -= wanted;
            grants.insert(*server, wanted);
        }
        let part = left / i64::try_from(count).unwrap_or(i64::MAX);
        let rates = quota.operations.map(|quota| self.rates_of(quota * 1000));
        let target = |(server, used): (&ServerId, &QuotaUse)| {
            let grant = part + grants.get(server).copied().unwrap_or(0);
            let given = used.grown.saturating_add(grant);
            // Until the table is known whole, all keep what an earlier leader gave them.
            let kept = used.grown_max.filter(|_| self.base.is_none());
            let target = Target {
                grown_max: bytes.map(|_| kept.unwrap_or(given)),
                grown_full: bytes
                    .filter(|(_, is_sure)| *is_sure)
                    .map(|(left, _)| used.grown.saturating_add(left)),
                operations_milli: rates.as_ref().map(|rates| rates[server]),
            };
            (*server, target)
        };
        self.uses.iter().map(target).collect()
    }

    /// A quarter in equal parts, the rest as operations were asked for. Owners that do not answer
    /// keep what they have.
    fn rates_of(&self, quota: u64) -> BTreeMap<ServerId, u64> {
        let silent = self.owners.iter().filter(|id| !self.uses.contains_key(*id));
        let kept: u64 = silent.filter_map(|id| self.rates.get(id)).sum();
        let quota = quota.saturating_sub(kept);
        let count = self.uses.len().max(1) as u64;
        let all: u64 = self.demand.values().sum();
        let floor = match all {
            0 => quota / count,
            _ => quota / 4 / count,
        };
        let rest = quota - floor * count;
        let rate = |server: &ServerId| {
            let demand = self.demand.get(server).copied().unwrap_or(0);
            let part = u128::from(rest) * u128::from(demand) / u128::from(all.max(1));
            (*server, floor + u64::try_from(part).unwrap_or(rest))
        };
        self.uses.keys().map(rate).collect()
    }

    /// The owners that have more than they should, and what they are to have first.
    pub(super) fn lowered(
        &self,
        targets: &BTreeMap<ServerId, Target>,
    ) -> BTreeMap<ServerId, Target> {
        let lower = |(server, target): (&ServerId, &Target)| {
            let used = self.uses.get(server)?;
            let grown_max = least(used.grown_max, target.grown_max);
            let operations_milli = least(used.operations_milli, target.operations_milli);
            let is_lower = target.grown_max.is_some() && grown_max != used.grown_max
                || target.operations_milli.is_some() && operations_milli != used.operations_milli;
            let lowered = Target {
                grown_max,
                operations_milli,
                ..*target
            };
            is_lower.then_some((*server, lowered))
        };
        targets.iter().filter_map(lower).collect()
    }

    /// The shares that owners can have now: as they should be, as far as others have not too much
    /// (COORD-20). They count as given from now on.
    pub(super) fn raised(
        &mut self,
        quota: TableQuota,
        targets: &BTreeMap<ServerId, Target>,
    ) -> BTreeMap<ServerId, Target> {
        let mut left = quota.bytes.map_or(i64::MAX, |quota| {
            let most = self.most();
            most.map_or(0, |most| signed(quota).saturating_sub(most).max(0))
        });
        let is_bounded = |id: &ServerId| self.rates.contains_key(id);
        let mut free = quota.operations.map_or(u64::MAX, |quota| {
            match self
                .owners
                .iter()
                .all(|id| is_bounded(id) || !self.uses.contains_key(id))
            {
                true => (quota * 1000).saturating_sub(self.rates.values().sum()),
                false => 0,
            }
        });
        let mut raised = BTreeMap::new();
        for (server, target) in targets {
            let Some(used) = self.uses.get(server).copied() else {
                continue;
            };
            let mut given = *target;
            if let (Some(wanted), Some(has)) = (target.grown_max, used.grown_max) {
                // An unused part of its share counts as given.
                let more = wanted.saturating_sub(has.max(used.grown)).clamp(0, left);
                left -= more;
                given.grown_max = Some(wanted.min(has.max(used.grown).saturating_add(more)));
            } else if target.grown_max.is_some() {
                given.grown_max = used.grown_max;
            }
            if let (Some(wanted), Some(has)) = (target.operations_milli, used.operations_milli) {
                let more = wanted.saturating_sub(has).min(free);
                free -= more;
                given.operations_milli = Some(wanted.min(has + more));
            } else if target.operations_milli.is_some() {
                given.operations_milli = used.operations_milli;
            }
            // It may not hear of a share that is smaller than the one it has.
            let has = used.grown_max.map(|has| has.max(used.grown));
            let bound = given.grown_max.zip(has).map(|(given, has)| given.max(has));
            self.bounds.insert((*server, used.instance), bound);
            if let Some(rate) = given.operations_milli {
                let has = used.operations_milli.unwrap_or(0);
                self.rates.insert(*server, rate.max(has));
            }
            raised.insert(*server, given);
        }
        raised
    }

    /// The message with a share.
    pub(super) fn grant(
        &self,
        server: ServerId,
        target: &Target,
        (name, quota): (&str, TableQuota),
    ) -> Option<QuotaGrant> {
        let used = self.uses.get(&server)?;
        Some(QuotaGrant {
            instance: used.instance,
            name: name.to_owned(),
            quota,
            grown_max: target.grown_max,
            grown_full: target.grown_full,
            operations_milli: target.operations_milli,
        })
    }

    /// Bytes of the table, as well as it is known; operations asked for and refused.
    pub(super) fn shown(&self) -> (u64, u64, u64) {
        let said = self.uses.values().map(|used| used.bytes).sum();
        let bytes = self
            .bytes()
            .map_or(said, |(bytes, _)| bytes.max(0).unsigned_abs());
        let sum = |of: fn(&QuotaUse) -> u64| self.uses.values().map(of).sum();
        (
            bytes,
            sum(|used| used.refused_bytes),
            sum(|used| used.refused_operations),
        )
    }

    /// Operations done so far, by those that own something now.
    pub(super) fn operations(&self) -> BTreeMap<Holder, u64> {
        let uses = self.uses.iter();
        uses.map(|(id, used)| ((*id, used.instance), used.operations))
            .collect()
    }
}

#[cfg(test)]
mod tests;
