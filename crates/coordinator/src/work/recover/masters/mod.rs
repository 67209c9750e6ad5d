//! Which masters may be asked to recover, by the failures of earlier attempts, most often for want
//! of memory.

use super::attempts::Attempted;
use pluvio_units::ServerId;
use pluvio_wire::{RecoveryFailure, RecoveryFailures};
use std::collections::{BTreeMap, BTreeSet};

/// Reasons that the status names.
const REASONS_MAX: usize = 3;
/// Servers that are named with each of them.
const NAMES_MAX: usize = 8;
/// Characters of each of them.
const REASON_CHARS_MAX: usize = 160;

/// The masters that are asked to recover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Masters {
    /// Each gets a partition, the first one first.
    pub(super) asked: Vec<ServerId>,
    /// What is left is cut for this many.
    pub(super) cut_for: usize,
}

/// A master that failed at least once.
#[derive(Default)]
struct Failed {
    /// How often since it recovered a partition.
    times: u32,
    /// In one of these it tried.
    tried: bool,
    /// The latest reason.
    why: String,
}

/// The masters that failed, until they crash.
#[derive(Default)]
pub(super) struct FailedMasters(BTreeMap<ServerId, Failed>);

impl FailedMasters {
    /// Takes in an attempt.
    pub(super) fn learn(&mut self, attempt: &Attempted) {
        for master in &attempt.recovered {
            if let Some(known) = self.0.get_mut(master) {
                (known.times, known.tried) = (0, false);
            }
        }
        for (master, failure) in &attempt.failed {
            let known = self.0.entry(*master).or_default();
            known.times = known.times.saturating_add(1);
            known.tried |= failure.tried;
            known.why.clone_from(&failure.why);
        }
    }

    /// Chooses among `masters`, which are all that can recover. A master that tried and could not
    /// holds an attempt for long. So it is asked again only when every other one has failed, too.
    /// Those that failed least come first, and of these those that are not `busy`; the rest is as
    /// it was. Forgets masters that are not among them.
    pub(super) fn choose(
        &mut self,
        mut masters: Vec<ServerId>,
        busy: &BTreeSet<ServerId>,
    ) -> Masters {
        self.0.retain(|server, _| masters.contains(server));
        let all = masters.len();
        let failed = |master: &ServerId| self.0.get(master);
        let could_not = |master: &ServerId| failed(master).is_some_and(|f| f.tried);
        masters.sort_by_key(|master| {
            let times = failed(master).map_or(0, |f| f.times);
            (could_not(master), times, busy.contains(master))
        });
        let others = masters.iter().filter(|master| !could_not(master)).count();
        // One that refuses at once, however often, keeps nobody from being asked.
        let some_unfailed = masters
            .iter()
            .any(|master| failed(master).is_none_or(|f| f.times == 0));
        if some_unfailed && others < all {
            pluvio_units::mark("recovery-only-who-has-not-failed");
            masters.truncate(others);
        }
        // They get all that is left, unless that may have been too much for one of them already.
        let unhurt = masters.iter().all(|master| failed(master).is_none());
        let cut_for = if unhurt { masters.len() } else { all };
        Masters {
            asked: masters,
            cut_for,
        }
    }

    /// Which masters failed and why, for the status: bounded, however many they are.
    pub(super) fn summary(&self) -> RecoveryFailures {
        let mut by_reason: BTreeMap<&str, Vec<ServerId>> = BTreeMap::new();
        for (server, failed) in self.0.iter().filter(|(_, f)| f.times > 0) {
            by_reason.entry(&failed.why).or_default().push(*server);
        }
        let others = by_reason.len() > REASONS_MAX;
        let reason = |(why, mut servers): (&str, Vec<ServerId>)| {
            let more = servers.len().saturating_sub(NAMES_MAX);
            servers.truncate(NAMES_MAX);
            RecoveryFailure {
                why: why.chars().take(REASON_CHARS_MAX).collect(),
                servers,
                more: u32::try_from(more).unwrap_or(u32::MAX),
            }
        };
        let reasons = by_reason.into_iter().take(REASONS_MAX);
        RecoveryFailures {
            reasons: reasons.map(reason).collect(),
            others,
        }
    }
}

#[cfg(test)]
mod tests;
