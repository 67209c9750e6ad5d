//! Which server gets which tablet of one that is drained.
//!
//! Whole tablets alone would fill one server after the other to the brim, and the next drains would
//! hand that on. So a tablet is cut where a whole one leaves its receiver much less free memory
//! than an even distribution would.

use crate::work::sizes::{End, part_of};
use pluvio_units::{HashRange, ServerId};

/// A tablet is cut into parts of this size or more. Each is one more tablet of its
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

/// Whether a tablet may be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cut {
    /// Its table has as many tablets as a table can have.
    Never,
    /// If it fits nowhere.
    ForRoom,
    /// Also if one receiver would get much fuller by it than it has to.
    Evenly,
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
pub(super) struct Plan {
    receivers: Vec<Receiver>,
    /// Bytes that the drained server still has to give, about.
    left: u64,
}

impl Plan {
    pub(super) fn new(receivers: Vec<Receiver>, left: u64) -> Self {
        Self { receivers, left }
    }

    /// Whether something holds for all receivers.
    pub(super) fn all(&self, which: impl Fn(ServerId) -> bool) -> bool {
        self.receivers.iter().all(|receiver| which(receiver.id))
    }

    /// Free memory that a receiver keeps where tablets can be cut. It is three quarters of what
    /// each would have after an even distribution. The last quarter saves cuts.
    fn kept(&self, bytes: u64) -> u64 {
        let free = self.receivers.iter().map(|receiver| receiver.free);
        let free = free.fold(0, u64::saturating_add);
        let after = free.saturating_sub(self.left.max(bytes));
        after / (self.receivers.len() as u64).max(1) / 4 * 3
    }

    /// Deals a tablet to the receiver with the most room, of those that `excluded` does not name.
    /// Among equals it is the one with the fewest tablets. If the tablet is too large for that one,
    /// it gets the lower part that fits. `None` when there is no room.
    pub(super) fn deal(
        &mut self,
        range: HashRange,
        bytes: u64,
        cut: Cut,
        excluded: impl Fn(ServerId) -> bool,
    ) -> Option<Deal> {
        let kept = self.kept(bytes);
        let candidates = self.receivers.iter_mut().filter(|r| !excluded(r.id));
        let best = candidates.max_by_key(|r| (r.free, core::cmp::Reverse((r.tablets, r.id))))?;
        let usable = best.usable();
        let even = usable.min(best.free.saturating_sub(kept));
        let is_worth_it = even >= PART_MIN && bytes.saturating_sub(even) >= PART_MIN;
        let bytes_now = if cut == Cut::Evenly && is_worth_it {
            even
        } else if bytes <= usable {
            bytes
        } else if cut != Cut::Never && usable >= PART_MIN {
            usable
        } else {
            return None;
        };
        let range = match bytes_now == bytes {
            true => range,
            false => part_of(range, bytes_now, bytes, End::Lower),
        };
        best.free = best.free.saturating_sub(bytes_now);
        best.tablets += 1;
        let to = best.id;
        self.left = self.left.saturating_sub(bytes_now);
        Some(Deal {
            range,
            to,
            bytes: bytes_now,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::KeyHash;

    /// Receivers with so many free MiB, for a server that has `left` to give.
    fn plan(free: &[u64], left: u64) -> Plan {
        let receiver = |(id, free): (u64, &u64)| Receiver {
            id: ServerId(id),
            free: *free << 20,
            tablets: 1,
        };
        Plan::new((1..).zip(free).map(receiver).collect(), left << 20)
    }

    fn deal(plan: &mut Plan, mib: u64) -> Option<(u64, HashRange)> {
        let dealt = plan.deal(HashRange::ALL, mib << 20, Cut::Evenly, |_| false);
        dealt.map(|deal| (deal.to.0, deal.range))
    }

    #[test]
    fn tablets_go_where_the_most_room_is_left() {
        let mut plan = plan(&[100, 160, 120], 240);
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
        let mut plan = plan(&[80, 64], 140);
        let (to, range) = deal(&mut plan, 140).unwrap();
        // 70 of 140 MiB.
        assert_eq!((to, range.first), (1, KeyHash(0)));
        assert!((range.last.0 >> 32).abs_diff(u64::MAX >> 33) < 2, "{range}");
        let (to, range) = deal(&mut plan, 70).unwrap();
        assert_eq!(to, 2);
        assert!(range.last < KeyHash(u64::MAX));
    }

    /// Deals one tablet to the end; gives what is free then, in MiB, and the number of parts.
    fn spread(free: &[u64], mib: u64, cut: Cut) -> (Vec<u64>, usize) {
        let mut plan = plan(free, mib);
        let (mut rest, mut parts) = (mib << 20, 0);
        while rest > 0 {
            let dealt = plan.deal(HashRange::ALL, rest, cut, |_| false);
            rest -= dealt.unwrap().bytes;
            parts += 1;
        }
        let left = plan.receivers.iter().map(|r| r.free >> 20);
        (left.collect(), parts)
    }

    #[test]
    fn a_large_tablet_does_not_fill_one_server_while_others_are_empty() {
        // Four servers of 100 MiB at 60 %, of which one is drained: 20 MiB are left on average.
        let (left, parts) = spread(&[40, 40, 40], 60, Cut::Evenly);
        assert!(left.iter().all(|mib| *mib >= 14), "{left:?}");
        assert_eq!(parts, 3);
        let (left, _) = spread(&[40, 40, 40], 60, Cut::ForRoom);
        assert_eq!(left.iter().min(), Some(&5), "{left:?}");
        // Of many servers few get a part.
        let (left, parts) = spread(&[50; 100], 50, Cut::Evenly);
        assert!(left.iter().all(|mib| *mib >= 36), "{left:?}");
        assert!(parts <= 4, "{parts}");
        assert_eq!(spread(&[90, 90, 90], 20, Cut::Evenly).1, 1);
    }

    #[test]
    fn nothing_is_dealt_where_no_room_is_or_nobody_may_have_it() {
        assert_eq!(deal(&mut plan(&[4, 3], 5), 5), None);
        assert_eq!(deal(&mut plan(&[], 0), 0), None);
        let whole = HashRange::ALL;
        let mut wide = plan(&[100], 0);
        assert_eq!(wide.deal(whole, 1, Cut::Evenly, |_| true), None);
        assert_eq!(wide.deal(whole, 200 << 20, Cut::Never, |_| false), None);
        // An empty tablet goes anywhere.
        assert_eq!(deal(&mut plan(&[0, 0], 0), 0).unwrap().0, 1);
    }
}
