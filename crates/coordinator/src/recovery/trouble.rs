//! What earlier attempts to recover a server failed at, most often for want of memory: it decides
//! who is asked next and how finely the rest is cut, and people are told.

use super::Attempted;
use super::partition::Experience;
use pluvio_units::ServerId;
use std::collections::{BTreeMap, BTreeSet};

/// Partitions are cut finer so often at most for attempts in vain.
const CUTS_MAX: u32 = 6;
/// Reasons that people are told.
const REASONS_MAX: usize = 3;
/// Servers that are named with each of them.
const NAMES_MAX: usize = 8;
/// Characters of each of them.
const REASON_CHARS_MAX: usize = 160;

/// Why a master did not recover its partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    /// It tried, and reported that it cannot. Others have refused at once, or were not heard of.
    pub(super) tried: bool,
    pub(super) why: String,
}

/// Who is asked to recover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Masters {
    /// Each gets a partition, the first one first.
    pub(super) asked: Vec<ServerId>,
    /// What is left is cut for so many.
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

/// See the module.
#[derive(Default)]
pub(super) struct Trouble {
    /// The masters that failed, until they crash.
    failed: BTreeMap<ServerId, Failed>,
    /// Attempts in vain, less those that recovered a partition since; as many as count.
    in_vain: u32,
    /// There was an attempt in vain.
    was_in_vain: bool,
}

impl Trouble {
    /// How many times as many partitions the next attempt has as what is left asks for, where
    /// tablets can be cut. After one attempt in vain other masters are asked; each further one
    /// doubles it, since what fits no master as a whole may fit several in parts, and each one that
    /// recovers a partition halves it.
    fn finer(&self) -> u64 {
        1 << self.in_vain.saturating_sub(1)
    }

    /// How the next attempt is to cut. What was too much for a master is not tried again as large.
    pub(super) fn experience(&self) -> Experience {
        Experience {
            finer: self.finer(),
            may_crowd: !self.was_in_vain,
        }
    }

    pub(super) fn learn(&mut self, attempt: &Attempted) {
        for master in &attempt.recovered {
            if let Some(known) = self.failed.get_mut(master) {
                (known.times, known.tried) = (0, false);
            }
        }
        for (master, failure) in &attempt.failed {
            let known = self.failed.entry(*master).or_default();
            known.times = known.times.saturating_add(1);
            known.tried |= failure.tried;
            known.why.clone_from(&failure.why);
        }
        self.in_vain = match attempt.recovered.is_empty() {
            true => {
                pluvio_units::mark("recovery-attempt-in-vain");
                self.was_in_vain = true;
                (self.in_vain + 1).min(CUTS_MAX + 1)
            }
            // What is left is as hard, but who has recovered a part has less room now.
            false => self.in_vain.saturating_sub(1),
        };
    }

    /// Chooses among `masters`, which are all that can recover. Who tried and could not, most often
    /// for want of memory, holds an attempt for long, so it is not asked again as long as there is
    /// one that has not failed. Who failed least comes first, and of these who is not `busy`; the
    /// rest is as it was. Forgets who is not among them.
    pub(super) fn choose(
        &mut self,
        mut masters: Vec<ServerId>,
        busy: &BTreeSet<ServerId>,
    ) -> Masters {
        self.failed.retain(|server, _| masters.contains(server));
        let all = masters.len();
        let failed = |master: &ServerId| self.failed.get(master);
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

    /// A phase of the recovery with who failed, and why.
    pub(super) fn beside(&self, phase: &str) -> String {
        let mut reasons: BTreeMap<&str, Vec<ServerId>> = BTreeMap::new();
        for (server, failed) in self.failed.iter().filter(|(_, f)| f.times > 0) {
            reasons.entry(&failed.why).or_default().push(*server);
        }
        if reasons.is_empty() {
            return phase.to_owned();
        }
        let reason = |(why, servers): (&&str, &Vec<ServerId>)| {
            let names = servers.iter().take(NAMES_MAX).map(ToString::to_string);
            let names = names.collect::<Vec<_>>().join(", ");
            let more = match servers.len().saturating_sub(NAMES_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let why: String = why.chars().take(REASON_CHARS_MAX).collect();
            format!("server {names}{more} ({why})")
        };
        let mut told: Vec<String> = reasons.iter().take(REASONS_MAX).map(reason).collect();
        if reasons.len() > REASONS_MAX {
            told.push("others for other reasons".to_owned());
        }
        format!("{phase}; failed on {}", told.join(", "))
    }
}
