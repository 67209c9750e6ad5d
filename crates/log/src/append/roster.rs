//! The segments of one log, and what the cleaner saw of each when it looked at it last.
//!
//! A look sums counters and follows pointers all over memory, so the cleaner takes few for a
//! choice. The facts that it saw lie side by side, in an order without meaning, and are read
//! instead. Of every group the roster knows the most that a compaction gains there for a copied
//! byte.
//!
//! These facts only order the segments: nothing is cleaned by them without another look. They
//! belong to the log's members, under their lock.

use crate::segments::Segment;
use core::ops::Range;
use pluvio_units::SegmentId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Segments whose greatest worth is known.
const GROUP: usize = 64;

/// What the cleaner saw of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub id: SegmentId,
    /// Bytes that a compaction of it gains for each that it copies; 0 if it cannot be compacted.
    pub worth: f64,
    pub live_bytes: u32,
    /// Of these, tombstones.
    pub tombstone_bytes: u32,
    pub disk_bytes: u32,
    pub created_s: u32,
    pub seglets: u32,
    /// It is closed, durable, and has no writer between append and index. It stays so.
    pub is_cleanable: bool,
    /// It is cleanable, and a combined pass may claim it.
    pub may_scan: bool,
    /// Cleaned alone it gained nothing, and nothing in it has died since.
    pub is_barren: bool,
}

impl Seen {
    fn nothing_of(segment: &Segment) -> Self {
        Self {
            id: segment.id(),
            worth: 0.0,
            live_bytes: 0,
            tombstone_bytes: 0,
            disk_bytes: 0,
            created_s: segment.created_s(),
            seglets: 0,
            is_cleanable: false,
            may_scan: false,
            is_barren: false,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Roster {
    places: BTreeMap<SegmentId, usize>,
    segments: Vec<Arc<Segment>>,
    /// Of each of `segments`.
    seen: Vec<Seen>,
    /// The greatest worth in each group of `seen`.
    best: Vec<f64>,
    /// The place to be looked at next.
    next: usize,
    /// The sum of what was seen of tombstones.
    tombstone_bytes: u64,
}

impl Roster {
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(crate) fn contains_key(&self, id: &SegmentId) -> bool {
        self.places.contains_key(id)
    }

    pub(crate) fn get(&self, id: &SegmentId) -> Option<&Arc<Segment>> {
        self.places.get(id).map(|&place| &self.segments[place])
    }

    /// The ids, ascending.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &SegmentId> {
        self.places.keys()
    }

    /// The segments, in the order of their ids.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.places.values().map(|&place| &self.segments[place])
    }

    /// Gives the segment that had this id before.
    pub(crate) fn insert(&mut self, id: SegmentId, segment: Arc<Segment>) -> Option<Arc<Segment>> {
        let before = self.remove(&id);
        let place = self.segments.len();
        self.seen.push(Seen::nothing_of(&segment));
        self.segments.push(segment);
        self.places.insert(id, place);
        self.find_best(place / GROUP);
        before
    }

    pub(crate) fn remove(&mut self, id: &SegmentId) -> Option<Arc<Segment>> {
        let place = self.places.remove(id)?;
        let last = self.segments.len() - 1;
        let segment = self.segments.swap_remove(place);
        let seen = self.seen.swap_remove(place);
        self.tombstone_bytes -= u64::from(seen.tombstone_bytes);
        if let Some(moved) = self.segments.get(place) {
            self.places.insert(moved.id(), place);
        }
        self.find_best(place / GROUP);
        self.find_best(last / GROUP);
        Some(segment)
    }

    // --- what was seen ---------------------------------------------------------------------------

    /// What was seen of all, in no order.
    pub(crate) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// The greatest worth of all.
    pub(crate) fn most(&self) -> f64 {
        self.best.iter().copied().fold(0.0, f64::max)
    }

    /// The segment of the greatest worth among those that are wanted, with its worth. Of equals in
    /// a group, the oldest. Groups whose greatest is less than what was found are passed over.
    pub(crate) fn best_of(&self, is_wanted: impl Fn(&Seen) -> bool) -> Option<(SegmentId, f64)> {
        let most = self.most();
        let first = self.best.iter().position(|best| *best == most)?;
        let others = (0..self.best.len()).filter(|&group| group != first);
        let mut found: Option<(SegmentId, f64)> = None;
        for group in core::iter::once(first).chain(others) {
            if found.is_some_and(|(_, worth)| worth >= self.best[group]) {
                continue;
            }
            let wanted = self.seen[self.places_of(group)]
                .iter()
                .filter(|s| is_wanted(s));
            let best = wanted.max_by(|a, b| a.worth.total_cmp(&b.worth).then(b.id.cmp(&a.id)));
            let best = best.map(|seen| (seen.id, seen.worth));
            found = best.filter(|b| found.is_none_or(|f| b.1 > f.1)).or(found);
        }
        found
    }

    /// Bytes of tombstones that were seen.
    pub(crate) fn tombstone_bytes(&self) -> u64 {
        self.tombstone_bytes
    }

    /// Looks at the segment with this id; gives it with what is seen now.
    pub(crate) fn look_at(
        &mut self,
        id: SegmentId,
        look: impl Fn(&Segment, &mut Seen),
    ) -> Option<(&Arc<Segment>, &Seen)> {
        let place = *self.places.get(&id)?;
        self.look_from(place..place + 1, look);
        Some((&self.segments[place], &self.seen[place]))
    }

    /// Looks at up to `count` segments, in turn. Gives how many it looked at, and whether the last
    /// one was among them.
    pub(crate) fn look_on(
        &mut self,
        count: usize,
        look: impl Fn(&Segment, &mut Seen),
    ) -> (usize, bool) {
        let from = self.next.min(self.segments.len());
        let to = from.saturating_add(count).min(self.segments.len());
        self.look_from(from..to, look);
        let is_round = to == self.segments.len();
        self.next = if is_round { 0 } else { to };
        (to - from, is_round)
    }

    fn look_from(&mut self, places: Range<usize>, look: impl Fn(&Segment, &mut Seen)) {
        if places.is_empty() {
            return;
        }
        for place in places.clone() {
            let seen = &mut self.seen[place];
            self.tombstone_bytes -= u64::from(seen.tombstone_bytes);
            look(&self.segments[place], seen);
            self.tombstone_bytes += u64::from(seen.tombstone_bytes);
        }
        for group in places.start / GROUP..=(places.end - 1) / GROUP {
            self.find_best(group);
        }
    }

    fn places_of(&self, group: usize) -> Range<usize> {
        let end = (group * GROUP + GROUP).min(self.seen.len());
        (group * GROUP).min(end)..end
    }

    fn find_best(&mut self, group: usize) {
        self.best.resize(self.seen.len().div_ceil(GROUP), 0.0);
        let worths = self.seen[self.places_of(group)].iter().map(|s| s.worth);
        let best = worths.fold(0.0, f64::max);
        if let Some(known) = self.best.get_mut(group) {
            *known = best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::AppendClass;
    use crate::options::LogOptions;
    use crate::space::LogSpace;
    use pluvio_format::Entry;
    use pluvio_units::{LogId, ObjectVersion, Size};

    /// Segments that were never used otherwise.
    fn segments() -> Vec<Arc<Segment>> {
        let space = LogSpace::new(LogOptions::new(Size::mib(640))).expect("enough memory");
        let entry = [Entry::SafeVersion(ObjectVersion(1))];
        while space.segments(LogId(0)).len() < 200 {
            let appended = space.append(LogId(0), &entry, AppendClass::Internal, &space.pin());
            let _never_waited_for = appended.expect("there is room");
            space.roll(LogId(0)).expect("there is room");
        }
        space.segments(LogId(0))
    }

    #[test]
    fn what_was_seen_stays_with_its_segment() {
        let all = segments();
        let (mut roster, mut known) = (Roster::default(), BTreeMap::new());
        // The worth of a segment follows from its id, and from the round in which it was seen.
        let worth = |id: SegmentId, round: u64| ((id.0 * 7919 + round * 104_729) % 1009) as f64;
        for round in 0..2000 {
            let segment = &all[(round * 31 + round / 7) as usize % all.len()];
            let id = segment.id();
            if known.remove(&id).is_some() {
                let gone = roster.remove(&id).map(|segment| segment.id());
                assert_eq!(gone, Some(id));
            } else {
                assert!(roster.insert(id, Arc::clone(segment)).is_none());
                known.insert(id, 0.0);
            }
            let seen = core::cell::RefCell::new(Vec::new());
            let look = |segment: &Segment, found: &mut Seen| {
                found.worth = worth(segment.id(), round);
                found.tombstone_bytes = found.worth as u32;
                seen.borrow_mut().push((segment.id(), found.worth));
            };
            let (looks, _) = roster.look_on(9, look);
            assert_eq!(looks, seen.borrow().len());
            known.extend(seen.take());
            let found = roster.seen().iter().map(|seen| (seen.id, seen.worth));
            assert_eq!(found.collect::<BTreeMap<_, _>>(), known);
            assert!(roster.values().map(|s| s.id()).eq(known.keys().copied()));
            assert!(roster.keys().eq(known.keys()));
            let tombstones = known.values().map(|&worth| worth as u64).sum::<u64>();
            assert_eq!(roster.tombstone_bytes(), tombstones);
            let most = known.values().copied().fold(0.0, f64::max);
            assert_eq!(roster.most(), most);
            let is_wanted = |seen: &Seen| seen.worth < 900.0;
            let wanted = known.values().copied().filter(|worth| *worth < 900.0);
            let best = roster.best_of(is_wanted).map(|(id, worth)| {
                assert_eq!(known[&id], worth);
                worth
            });
            assert_eq!(best, wanted.max_by(f64::total_cmp));
        }
    }

    #[test]
    fn each_segment_has_its_turn() {
        let mut roster = Roster::default();
        let all = segments();
        for segment in &all {
            assert!(roster.insert(segment.id(), Arc::clone(segment)).is_none());
        }
        let mut left = all.len();
        loop {
            let (looks, is_round) = roster.look_on(70, |_, seen| seen.live_bytes += 1);
            left -= looks;
            assert_eq!(is_round, left == 0);
            if is_round {
                break;
            }
        }
        assert!(roster.seen().iter().all(|seen| seen.live_bytes == 1));
        assert_eq!(roster.look_on(70, |_, _| ()), (70, false));
    }
}
