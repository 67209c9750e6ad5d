//! Which tablet moves next for the sake of balance. Pure.
//!
//! 1. *Memory*: between the server that is fullest, in parts of its memory for live entries, and
//!    the one that is emptiest. No more moves than makes both equally full. So a move never calls
//!    for one back: they must grow apart by the whole gap again.
//! 2. *Requests*: between the busiest server and the idlest one, if memory allows it. A tablet that
//!    was moved for this stays for a while. So a hot key does not wander.
//! 3. *Number*: a table with many more tablets than servers. Its smallest tablet moves to the owner
//!    of a neighbour, and is joined with that.

use crate::options::BalanceOptions;
use crate::work::sizes::{End, part_of};
use pluvio_units::{HashRange, ServerId, TableId};
use std::collections::BTreeMap;

/// A table may have this many tablets for each server, and some more, before they are gathered.
const TABLETS_A_SERVER: usize = 2;
const TABLETS_MORE: usize = 8;

/// A server that takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    /// Bytes of live entries.
    pub(super) live: u64,
    /// The most that it takes.
    pub(super) max: u64,
    /// Requests a second, if that is known.
    pub(super) rate: Option<u64>,
}

impl Load {
    /// In thousandths.
    fn fullness(&self) -> u64 {
        let part = u128::from(self.live) * 1000 / u128::from(self.max.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// Whether it has room for this, and an eighth of its memory is left.
    fn has_room(&self, bytes: u64) -> bool {
        self.live.saturating_add(bytes) <= self.max - self.max / 8
    }
}

/// A tablet that can move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tablet {
    pub(super) table: TableId,
    pub(super) range: HashRange,
    pub(super) owner: ServerId,
    /// What it holds, about. 0 until it is asked for.
    pub(super) bytes: u64,
    /// The owners of the next tablets below and above.
    pub(super) lower: Option<ServerId>,
    pub(super) upper: Option<ServerId>,
    /// It was moved a short while ago.
    pub(super) rests: bool,
    /// The table may be cut once more for the sake of balance.
    pub(super) can_cut: bool,
}

impl Tablet {
    fn is_beside(&self, server: ServerId) -> bool {
        self.lower == Some(server) || self.upper == Some(server)
    }
}

/// Why something moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// How full both are, in thousandths.
    Memory(u64, u64),
    /// Requests a second of both.
    Requests(u64, u64),
    /// Tablets of the table.
    Number(usize),
}

impl Why {
    pub(super) fn text(self, from: ServerId, to: ServerId) -> String {
        match self {
            Self::Memory(full, empty) => format!(
                "server {from} is {}.{} % full, server {to} {}.{} %",
                full / 10,
                full % 10,
                empty / 10,
                empty % 10
            ),
            Self::Requests(busy, idle) => {
                format!("server {from} answers {busy} requests a second, server {to} {idle}")
            }
            Self::Number(count) => {
                format!("the table has {count} tablets, and server {to} has the next one")
            }
        }
    }
}

/// What should move from one server to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Want {
    pub(super) from: ServerId,
    pub(super) to: ServerId,
    /// The most bytes.
    bytes: u64,
    /// The most requests a second, of all of them that `from` answers. `None`: any.
    rate: Option<(u64, u64)>,
    pub(super) why: Why,
}

/// The tablet, or part of one, that moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) table: TableId,
    pub(super) range: HashRange,
    pub(super) bytes: u64,
}

pub(super) type Loads = BTreeMap<ServerId, Load>;

/// The move that makes the fullest server and the emptiest one equally full.
pub(super) fn uneven(loads: &Loads, options: &BalanceOptions) -> Option<Want> {
    let (from, full) = loads
        .iter()
        .max_by_key(|(id, load)| (load.fullness(), **id))?;
    let (to, empty) = loads
        .iter()
        .min_by_key(|(id, load)| (load.fullness(), **id))?;
    let gap = full.fullness() - empty.fullness();
    if gap < options.gap || full.live < empty.live.saturating_add(options.bytes_min) {
        return None;
    }
    let sum = u128::from(full.max) + u128::from(empty.max);
    let more = (u128::from(full.live) * u128::from(empty.max))
        .saturating_sub(u128::from(empty.live) * u128::from(full.max));
    let level = u64::try_from(more / sum.max(1)).unwrap_or(u64::MAX);
    Some(Want {
        from: *from,
        to: *to,
        bytes: level.min(options.bytes_max),
        rate: None,
        why: Why::Memory(full.fullness(), empty.fullness()),
    })
}

/// The move that makes the busiest server and the idlest one equally busy. Memory stays even.
pub(super) fn busy(loads: &Loads, options: &BalanceOptions) -> Option<Want> {
    let rates = || {
        let known = loads
            .iter()
            .filter_map(|(id, load)| Some((load.rate?, *id)));
        known.collect::<Vec<_>>()
    };
    let (high, from) = rates().into_iter().max()?;
    let (low, to) = rates().into_iter().min()?;
    if high < low.saturating_mul(2) || high - low < options.rate_gap.max(1) {
        return None;
    }
    let (busy, idle) = (loads[&from], loads[&to]);
    // The receiver may become fuller than the giver, but by less than half the gap.
    let spare = |load: &Load| u128::from(load.max) * u128::from(options.gap) / 4000;
    let bytes =
        (spare(&idle) * 2 + u128::from(busy.live)).saturating_sub(u128::from(idle.live)) / 2;
    Some(Want {
        from,
        to,
        bytes: u64::try_from(bytes)
            .unwrap_or(u64::MAX)
            .min(options.bytes_max),
        rate: Some(((high - low) / 2, high)),
        why: Why::Requests(high, low),
    })
}

/// Chooses among the tablets of the server that gives.
pub(super) fn choose(tablets: &[Tablet], loads: &Loads, want: &Want) -> Option<Step> {
    let to = loads.get(&want.to)?;
    let all: u64 = tablets.iter().map(|t| t.bytes).sum();
    // The most bytes, also by requests: those are taken as evenly spread.
    let most = match want.rate {
        None => want.bytes,
        Some((rate, of)) => {
            let part = u128::from(all) * u128::from(rate) / u128::from(of.max(1));
            want.bytes.min(u64::try_from(part).unwrap_or(u64::MAX))
        }
    };
    let by_memory = matches!(want.why, Why::Memory(..));
    let able = tablets
        .iter()
        .filter(|t| t.owner == want.from && t.bytes > 0 && (by_memory || !t.rests));
    let whole = able.clone().filter(|t| t.bytes <= most);
    let whole = whole.max_by_key(|t| {
        let joins = t.is_beside(want.to) && t.bytes >= most / 4;
        (joins, t.bytes, t.table, t.range.first)
    });
    let large = able.filter(|t| t.bytes > most && t.can_cut);
    let large = large.max_by_key(|t| (t.is_beside(want.to), t.bytes, t.table, t.range.first));
    let step = match (whole, large) {
        (Some(whole), None) => whole_of(whole),
        (Some(whole), Some(_)) if whole.bytes >= most / 4 => whole_of(whole),
        (_, Some(large)) if most > 0 => {
            let end = match large.upper == Some(want.to) {
                true => End::Upper,
                false => End::Lower,
            };
            Step {
                table: large.table,
                range: part_of(large.range, most, large.bytes, end),
                bytes: most,
            }
        }
        (Some(whole), Some(_)) => whole_of(whole),
        (None, _) => return None,
    };
    to.has_room(step.bytes).then_some(step)
}

fn whole_of(tablet: &Tablet) -> Step {
    Step {
        table: tablet.table,
        range: tablet.range,
        bytes: tablet.bytes,
    }
}

/// Tablets of tables with many, the smallest first, each with the owner of a neighbour. `counts`
/// says how many tablets each table has.
pub(super) fn gather(
    tablets: &[Tablet],
    loads: &Loads,
    counts: &BTreeMap<TableId, usize>,
) -> Vec<(Tablet, Want)> {
    let usual = loads.len() * TABLETS_A_SERVER + TABLETS_MORE;
    let many = |t: &&Tablet| !t.rests && counts.get(&t.table).is_some_and(|n| *n > usual);
    let target = |t: &Tablet| {
        let beside = [t.lower, t.upper].into_iter().flatten();
        let other = beside.filter(|server| *server != t.owner);
        other
            .filter_map(|server| Some((loads.get(&server)?.fullness(), server)))
            .min()
    };
    let found = tablets
        .iter()
        .filter(many)
        .filter_map(|t| Some((t, target(t)?)));
    let width = |t: &Tablet| t.range.last.0 - t.range.first.0;
    let want = |(tablet, (_, to)): (&Tablet, (_, ServerId))| {
        let want = Want {
            from: tablet.owner,
            to,
            bytes: u64::MAX,
            rate: None,
            why: Why::Number(counts[&tablet.table]),
        };
        (*tablet, want)
    };
    let mut found: Vec<_> = found.map(want).collect();
    found.sort_by_key(|(t, _)| (width(t), t.table, t.range.first));
    found
}

/// Whether memory stays even enough when a tablet is gathered.
pub(super) fn may_gather(loads: &Loads, want: &Want, bytes: u64, options: &BalanceOptions) -> bool {
    let (Some(to), Some(least)) = (
        loads.get(&want.to),
        loads.values().map(Load::fullness).min(),
    ) else {
        return false;
    };
    let after = Load {
        live: to.live.saturating_add(bytes),
        ..*to
    };
    after.fullness() < least.saturating_add(options.gap.max(1)) && to.has_room(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::KeyHash;

    const MIB: u64 = 1 << 20;

    fn loads(live: &[u64]) -> Loads {
        let load = |(id, live): (u64, &u64)| {
            let load = Load {
                live: live * MIB,
                max: 1000 * MIB,
                rate: None,
            };
            (ServerId(id), load)
        };
        (1..).zip(live).map(load).collect()
    }

    fn tablet(owner: u64, number: usize, mib: u64) -> Tablet {
        Tablet {
            table: TableId(1),
            range: HashRange::ALL.split(16)[number],
            owner: ServerId(owner),
            bytes: mib * MIB,
            lower: None,
            upper: None,
            rests: false,
            can_cut: true,
        }
    }

    fn options() -> BalanceOptions {
        BalanceOptions::default()
    }

    /// Moves until nothing wants to; gives how many moves.
    fn settle(loads: &mut Loads, tablets: &mut Vec<Tablet>) -> usize {
        for moves in 0..1000 {
            let Some(want) = uneven(loads, &options()) else {
                return moves;
            };
            let own: Vec<Tablet> = tablets
                .iter()
                .copied()
                .filter(|t| t.owner == want.from)
                .collect();
            let Some(step) = choose(&own, loads, &want) else {
                return moves;
            };
            let at = tablets
                .iter()
                .position(|t| t.range.overlaps(&step.range))
                .unwrap();
            let mut rest = tablets[at];
            tablets[at] = Tablet {
                range: step.range,
                bytes: step.bytes,
                owner: want.to,
                ..rest
            };
            if step.range != rest.range {
                rest.bytes -= step.bytes;
                rest.range.first = KeyHash(step.range.last.0 + 1);
                tablets.push(rest);
            }
            loads.get_mut(&want.from).unwrap().live -= step.bytes;
            loads.get_mut(&want.to).unwrap().live += step.bytes;
        }
        panic!("it never ends");
    }

    #[test]
    fn new_servers_get_their_share_and_then_nothing_moves() {
        let mut loads = loads(&[600, 600, 600, 0, 0]);
        let mut tablets = vec![tablet(1, 0, 600), tablet(2, 1, 600), tablet(3, 2, 600)];
        let moves = settle(&mut loads, &mut tablets);
        assert!((2..20).contains(&moves), "{moves}");
        let lives: Vec<u64> = loads.values().map(|load| load.live / MIB).collect();
        assert!(
            lives.iter().all(|live| (300..=440).contains(live)),
            "{lives:?}"
        );
        assert_eq!(settle(&mut loads, &mut tablets), 0);
    }

    #[test]
    fn a_small_difference_moves_nothing() {
        assert_eq!(uneven(&loads(&[300, 210]), &options()), None);
        let mut small = loads(&[0, 0]);
        for (load, live) in small.values_mut().zip([15, 0]) {
            (load.live, load.max) = (live * MIB, 20 * MIB);
        }
        assert_eq!(uneven(&small, &options()), None, "it is not worth it");
        assert_eq!(uneven(&Loads::new(), &options()), None);
    }

    #[test]
    fn a_tablet_beside_the_receivers_moves_first_and_cuts_are_made_there() {
        let loads = loads(&[600, 200]);
        let want = uneven(&loads, &options()).unwrap();
        assert_eq!((want.from, want.to), (ServerId(1), ServerId(2)));
        let mut tablets = [tablet(1, 0, 150), tablet(1, 1, 100)];
        assert_eq!(
            choose(&tablets, &loads, &want).unwrap().range,
            tablets[0].range
        );
        tablets[1].upper = Some(ServerId(2));
        assert_eq!(
            choose(&tablets, &loads, &want).unwrap().range,
            tablets[1].range
        );
        let whole = Tablet {
            upper: Some(ServerId(2)),
            ..tablet(1, 3, 600)
        };
        let step = choose(&[whole], &loads, &want).unwrap();
        assert_eq!(step.bytes, 200 * MIB);
        assert_eq!(step.range.last, whole.range.last);
        assert!(step.range.first > whole.range.first);
        assert_eq!(
            choose(
                &[Tablet {
                    can_cut: false,
                    ..whole
                }],
                &loads,
                &want
            ),
            None
        );
    }

    #[test]
    fn nothing_moves_where_there_is_no_room() {
        let mut loads = loads(&[990, 850]);
        assert!(uneven(&loads, &options()).is_some());
        loads.get_mut(&ServerId(2)).unwrap().live = 870 * MIB;
        let want = uneven(&loads, &options()).unwrap();
        assert_eq!(choose(&[tablet(1, 0, 50)], &loads, &want), None);
    }

    #[test]
    fn a_busy_server_gives_requests_but_not_what_has_just_come() {
        let mut loads = loads(&[300, 300]);
        for (load, rate) in loads.values_mut().zip([100_000, 10_000]) {
            load.rate = Some(rate);
        }
        assert_eq!(uneven(&loads, &options()), None);
        let want = busy(&loads, &options()).unwrap();
        let step = choose(&[tablet(1, 0, 300)], &loads, &want).unwrap();
        // Less than 5 % of a receiver's memory beyond what makes both even.
        assert_eq!(step.bytes, 25 * MIB);
        let rests = Tablet {
            rests: true,
            ..tablet(1, 0, 300)
        };
        assert_eq!(choose(&[rests], &loads, &want), None);
        loads.get_mut(&ServerId(2)).unwrap().rate = Some(60_000);
        assert_eq!(busy(&loads, &options()), None);
    }

    #[test]
    fn of_many_tablets_the_smallest_goes_to_a_neighbours_owner() {
        let loads = loads(&[100, 100, 100]);
        let mut tablets: Vec<Tablet> = (0..15).map(|n| tablet(1, n, 1)).collect();
        tablets[7].upper = Some(ServerId(3));
        let counts = |n| BTreeMap::from([(TableId(1), n)]);
        assert!(gather(&tablets, &loads, &counts(14)).is_empty());
        let found = gather(&tablets, &loads, &counts(15));
        let (tablet, want) = found[0];
        assert_eq!((tablet.range, want.to), (tablets[7].range, ServerId(3)));
        assert!(may_gather(&loads, &want, MIB, &options()));
        assert!(!may_gather(&loads, &want, 120 * MIB, &options()));
    }
}
