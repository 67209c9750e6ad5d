//! Which masters may be asked to recover: by their free memory, and by the failures of earlier
//! attempts, most often for want of memory.

use super::attempts::Attempted;
use core::cmp::Reverse;
use pluvio_units::{PARTITION_BYTES_MAX, PARTITION_CROWD_MAX, ServerId};
use pluvio_wire::{MasterRoom, RecoveryFailure, RecoveryFailures};
use std::collections::{BTreeMap, BTreeSet};

/// Reasons that the status names.
const REASONS_MAX: usize = 3;
/// Servers that are named with each of them.
const NAMES_MAX: usize = 8;
/// Characters of each of them.
const REASON_CHARS_MAX: usize = 160;
/// Masters are equally full within one of this number of steps. A step is large enough that chance
/// deals among servers that have about the same, and recoveries side by side choose different ones.
const FULLNESS_STEPS: u64 = 8;

/// How full masters are. One that has not said so has room.
pub(super) type Rooms = BTreeMap<ServerId, MasterRoom>;

/// The masters that are asked to recover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Masters {
    /// Each gets a partition, the first one first.
    pub(super) asked: Vec<ServerId>,
    /// What is left is cut for this many.
    pub(super) cut_for: usize,
}

impl Masters {
    /// Leaves out the fullest masters, if they have no room for their share of `bytes` and the
    /// others have room for theirs. A full master would refuse only after it has replayed, and its
    /// partition would wait for that. If all of them together have too little room, all are asked:
    /// some parts of it fit. Each gets one of `finer` parts of its share.
    pub(super) fn with_room(mut self, rooms: &Rooms, bytes: u64, finer: u64) -> Self {
        let free = |master: &ServerId| rooms.get(master).map_or(u64::MAX, |r| r.free_bytes());
        let mut by_room = self.asked.clone();
        by_room.sort_by_key(|master| Reverse(free(master)));
        let fits = |count: &usize| {
            let parts = (*count as u64).saturating_mul(finer);
            let share = bytes
                .div_ceil(parts)
                .min(PARTITION_BYTES_MAX * PARTITION_CROWD_MAX);
            // Statistics are as old as the newest head, and hashes are not spread quite evenly.
            free(&by_room[count - 1]) >= share.saturating_add(share / 8)
        };
        let all = self.asked.len();
        let Some(count) = (1..=all).rev().find(fits).filter(|count| *count < all) else {
            return self;
        };
        pluvio_units::mark("recovery-only-masters-with-room");
        by_room.truncate(count);
        self.asked.retain(|master| by_room.contains(master));
        if self.cut_for == all {
            self.cut_for = count;
        }
        self
    }
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
    /// Those that failed least come first, of these those that are not `busy`, and of these the
    /// emptiest; the rest is as it was. Forgets masters that are not among them.
    pub(super) fn choose(
        &mut self,
        mut masters: Vec<ServerId>,
        busy: &BTreeSet<ServerId>,
        rooms: &Rooms,
    ) -> Masters {
        self.0.retain(|server, _| masters.contains(server));
        let all = masters.len();
        let failed = |master: &ServerId| self.0.get(master);
        let could_not = |master: &ServerId| failed(master).is_some_and(|f| f.tried);
        masters.sort_by_key(|master| {
            let times = failed(master).map_or(0, |f| f.times);
            let full = rooms.get(master).map_or(0, |room| fullness(*room));
            (could_not(master), times, busy.contains(master), full)
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

/// In which of the [`FULLNESS_STEPS`] a master is.
fn fullness(room: MasterRoom) -> u64 {
    let steps = u128::from(room.live_bytes) * u128::from(FULLNESS_STEPS);
    let step = steps / u128::from(room.live_bytes_max.max(1));
    u64::try_from(step).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
