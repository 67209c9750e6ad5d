//! Which closed segments have tombstones that name a segment.
//!
//! When a segment leaves the disk, these tombstones die. Those of other segments need not be looked
//! at. A segment that is gone itself may be listed for a while.

use pluvio_units::SegmentId;
use std::collections::BTreeMap;

/// A list that is shorter is not looked through for segments that are gone.
const PRUNED_FROM: usize = 8;

#[derive(Debug)]
struct Namers {
    ids: Vec<SegmentId>,
    /// When there are as many ids as this, those that are gone are left out.
    prune_at: usize,
}

/// See the module. Under the lock of the map of all segments.
#[derive(Default, Debug)]
pub(super) struct Naming(BTreeMap<SegmentId, Namers>);

impl Naming {
    /// Tombstones of `namer` name `target`.
    pub(super) fn add(
        &mut self,
        target: SegmentId,
        namer: SegmentId,
        is_there: impl Fn(SegmentId) -> bool,
    ) {
        let namers = self.0.entry(target).or_insert_with(|| Namers {
            ids: Vec::new(),
            prune_at: PRUNED_FROM,
        });
        if namers.ids.len() >= namers.prune_at {
            namers.ids.sort_unstable();
            namers.ids.dedup();
            namers.ids.retain(|id| is_there(*id));
            namers.prune_at = PRUNED_FROM.max(2 * namers.ids.len());
        }
        namers.ids.push(namer);
    }

    /// The segments whose tombstones name `target`, which is gone.
    pub(super) fn take(&mut self, target: SegmentId) -> Vec<SegmentId> {
        self.0
            .remove(&target)
            .map_or(Vec::new(), |namers| namers.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_are_gone_are_left_out() {
        let mut naming = Naming::default();
        let target = SegmentId(1);
        for namer in 2..1000 {
            // Each is gone when the third after it comes.
            naming.add(target, SegmentId(namer), |id| id.0 + 3 > namer);
            assert!(naming.0[&target].ids.len() <= PRUNED_FROM);
        }
        assert!(naming.take(target).contains(&SegmentId(999)));
        assert!(naming.take(target).is_empty());
        for namer in 2..1000 {
            naming.add(target, SegmentId(namer), |_| true);
            naming.add(target, SegmentId(namer), |_| true);
        }
        let mut all = naming.take(target);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 998);
    }
}
