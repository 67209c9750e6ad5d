//! Which server gets which tablet of one that is drained.

use pluvio_units::{HashRange, KeyHash, ServerId};

/// A tablet is cut for want of room into parts of this size or more. Each is one more tablet of its
/// table, and the number of those is limited.
const PART_MIN: u64 = 4 << 20;

/// A server that may have a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Receiver {
    pub(super) id: ServerId,
    /// Live bytes that it has room for.
    pub(super) free: u64,
    /// Tablets that it has.
    pub(super) tablets: usize,
}

impl Receiver {
    /// What may be planned with. An eighth is left: it is written to meanwhile, and sizes of
    /// tablets are guessed from those of tables.
    fn usable(&self) -> u64 {
        self.free - self.free / 8
    }
}

/// What all of them together have room for.
pub(super) fn room(receivers: &[Receiver]) -> u64 {
    let usable = receivers.iter().map(Receiver::usable);
    usable.fold(0, u64::saturating_add)
}

/// What is to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Deal {
    /// The tablet, or the lower part of it.
    pub(super) range: HashRange,
    pub(super) to: ServerId,
    /// What that has, about.
    pub(super) bytes: u64,
}

/// Receivers, and what they have been dealt.
pub(super) struct Plan(Vec<Receiver>);

impl Plan {
    pub(super) fn new(receivers: Vec<Receiver>) -> Self {
        Self(receivers)
    }

    /// Whether something holds for all receivers.
    pub(super) fn all(&self, which: impl Fn(ServerId) -> bool) -> bool {
        self.0.iter().all(|receiver| which(receiver.id))
    }

    /// Deals a tablet to the receiver with the most room, of those that `excluded` does not name.
    /// Among equals it is the one with the fewest tablets. If the tablet is too large for that one,
    /// it gets the lower part that fits. `None` when there is no room.
    pub(super) fn deal(
        &mut self,
        range: HashRange,
        bytes: u64,
        can_cut: bool,
        excluded: impl Fn(ServerId) -> bool,
    ) -> Option<Deal> {
        let candidates = self.0.iter_mut().filter(|r| !excluded(r.id));
        let best = candidates.max_by_key(|r| (r.free, core::cmp::Reverse((r.tablets, r.id))))?;
        let usable = best.usable();
        let (range, bytes) = match bytes <= usable {
            true => (range, bytes),
            false if can_cut && usable >= PART_MIN => (lower_part(range, usable, bytes), usable),
            false => return None,
        };
        best.free = best.free.saturating_sub(bytes);
        best.tablets += 1;
        let to = best.id;
        Some(Deal { range, to, bytes })
    }
}

/// The lower `part` of `whole` of a range.
fn lower_part(range: HashRange, part: u64, whole: u64) -> HashRange {
    let width = range.last.0 - range.first.0;
    let kept = u128::from(width) * u128::from(part) / u128::from(whole.max(1));
    let kept = u64::try_from(kept).unwrap_or(width).min(width);
    HashRange::new(range.first, KeyHash(range.first.0 + kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(free: &[u64]) -> Plan {
        let receiver = |(id, free): (u64, &u64)| Receiver {
            id: ServerId(id),
            free: *free << 20,
            tablets: 1,
        };
        Plan::new((1..).zip(free).map(receiver).collect())
    }

    fn deal(plan: &mut Plan, mib: u64) -> Option<(u64, HashRange)> {
        let dealt = plan.deal(HashRange::ALL, mib << 20, true, |_| false);
        dealt.map(|deal| (deal.to.0, deal.range))
    }

    #[test]
    fn tablets_go_where_the_most_room_is_left() {
        let mut plan = plan(&[100, 160, 120]);
        let order: Vec<u64> = (0..6)
            .map(|_| {
                let (to, range) = deal(&mut plan, 40).unwrap();
                assert_eq!(range, HashRange::ALL);
                to
            })
            .collect();
        // 100 160 120; 100 120 120; 100 120 80 (equal room: the fewest tablets); 100 80 80; …
        assert_eq!(order, [2, 3, 2, 1, 3, 2]);
    }

    #[test]
    fn one_that_fits_nowhere_is_cut_and_what_fits_moves() {
        let mut plan = plan(&[80, 64]);
        let (to, range) = deal(&mut plan, 140).unwrap();
        // 70 of 140 MiB.
        assert_eq!((to, range.first), (1, KeyHash(0)));
        assert!((range.last.0 >> 32).abs_diff(u64::MAX >> 33) < 2, "{range}");
        let (to, range) = deal(&mut plan, 70).unwrap();
        assert_eq!(to, 2);
        assert!(range.last < KeyHash(u64::MAX));
    }

    #[test]
    fn nothing_is_dealt_where_no_room_is_or_nobody_may_have_it() {
        assert_eq!(deal(&mut plan(&[4, 3]), 5), None);
        assert_eq!(deal(&mut plan(&[]), 0), None);
        let whole = HashRange::ALL;
        let mut wide = plan(&[100]);
        assert_eq!(wide.deal(whole, 1, true, |_| true), None);
        assert_eq!(wide.deal(whole, 200 << 20, false, |_| false), None);
        // An empty tablet goes anywhere.
        assert_eq!(deal(&mut plan(&[0, 0]), 0).unwrap().0, 1);
    }
}
