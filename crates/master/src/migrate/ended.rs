//! Which migrations have ended here (MOVE-3, MIG-7).

use pluvio_units::MigrationId;
use std::collections::BTreeSet;

/// Ids that are remembered one by one: far more migrations than can end while a message is on its
/// way.
const REMEMBERED: usize = 4096;

/// See the module. Of very many the oldest are remembered as a whole: everything below one of them
/// counts as ended.
#[derive(Default)]
pub(crate) struct Ended {
    latest: BTreeSet<MigrationId>,
    below: MigrationId,
}

impl Ended {
    pub(crate) fn has(&self, id: MigrationId) -> bool {
        id < self.below || self.latest.contains(&id)
    }

    pub(crate) fn add(&mut self, id: MigrationId) {
        self.latest.insert(id);
        if self.latest.len() > REMEMBERED
            && let Some(oldest) = self.latest.pop_first()
        {
            self.below = self.below.max(oldest.next());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: MIG-7, MOVE-3
    #[test]
    fn what_has_ended_stays_ended_however_many_follow() {
        let mut ended = Ended::default();
        assert!(!ended.has(MigrationId(0)));
        for id in 10..10_000 {
            assert!(!ended.has(MigrationId(id)));
            ended.add(MigrationId(id));
            assert!(ended.has(MigrationId(id)) && ended.has(MigrationId(10)));
        }
        assert!(!ended.has(MigrationId(10_000)));
        assert!(ended.latest.len() <= REMEMBERED);
    }
}
