//! Cutting a crashed server's tablets into recovery partitions [RAMCloud §7.5]. Pure.
//!
//! Statistics say how much each table holds; within a table, hashes are spread evenly, so a
//! tablet's share is that of its range. Large tablets are cut, then each piece goes to the least
//! loaded partition, largest pieces first. Partitions are small where there are masters for all of
//! them. Where masters are too few, partitions are larger: a partition without a master needs
//! another attempt, which reads every replica again.

use super::plan::{Load, Stats};
use crate::state::{TABLETS_MAX, Width};
use pluvio_units::{
    HashRange, PARTITION_BYTES_MAX, PARTITION_BYTES_MIN, PARTITION_CROWD_MAX,
    PARTITION_ENTRIES_MAX, TableId,
};
use pluvio_wire::TabletSpec;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What the crashed server had of each table.
type Had = BTreeMap<TableId, Width>;

fn share(amount: u64, part: Width, whole: u64) -> u64 {
    let (part, whole) = (u128::from(part.0), u128::from(whole.max(1)));
    // Parts of parts are rounded up, so they can be a little more than the whole.
    u64::try_from(u128::from(amount) * part.min(whole) / whole).expect("a part is not more")
}

/// The expected content of each tablet: its share, by width, of the server's part of the table. It
/// does not matter whether the rest is still to be recovered. Tables that the statistics do not
/// name share what they sum up.
fn loads(tablets: &[TabletSpec], stats: &Stats, had: &Had) -> Vec<Load> {
    let sum = |wanted: &dyn Fn(&TableId) -> bool| -> u64 {
        let widths = had.iter().filter(|(table, _)| wanted(table));
        widths.map(|(_, width)| width.0).sum()
    };
    let (all, others) = (
        sum(&|_| true),
        sum(&|table| !stats.tables.contains_key(table)),
    );
    tablets
        .iter()
        .map(|tablet| {
            let width = Width::of(tablet.range);
            let (load, whole) = match stats.tables.get(&tablet.table) {
                Some(load) => (*load, had.get(&tablet.table).map_or(0, |w| w.0)),
                None => (stats.other, others),
            };
            let unaccounted = share(stats.unaccounted, width, all);
            Load {
                bytes: share(load.bytes, width, whole).saturating_add(unaccounted),
                entries: share(load.entries, width, whole),
            }
        })
        .collect()
}

/// What these tablets are expected to hold together.
pub(crate) fn expected(tablets: &[TabletSpec], stats: &Stats, had: &Had) -> Load {
    sum(&loads(tablets, stats, had))
}

fn sum(loads: &[Load]) -> Load {
    loads.iter().fold(Load::default(), |sum, load| Load {
        bytes: sum.bytes.saturating_add(load.bytes),
        entries: sum.entries.saturating_add(load.entries),
    })
}

/// One recovery partition in the making.
#[derive(Clone, Default)]
struct Bin {
    tablets: Vec<TabletSpec>,
    load: Load,
}

impl Bin {
    /// How full it would be with `more`, in millionths of the goal.
    fn fill(&self, more: Load, goal: Load) -> u128 {
        let part = |have: u64, add: u64, goal: u64| {
            (u128::from(have) + u128::from(add)) * 1_000_000 / u128::from(goal.max(1))
        };
        part(self.load.bytes, more.bytes, goal.bytes).max(part(
            self.load.entries,
            more.entries,
            goal.entries,
        ))
    }

    fn is_over(&self, most: Load) -> bool {
        self.load.bytes > most.bytes || self.load.entries > most.entries
    }
}

/// No more partitions than this are made for the sake of what earlier attempts have shown: they are
/// dealt by the leader's event loop.
const FINER_MAX: u64 = 2048;

/// How finely to cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granularity {
    /// Factor by which there are more partitions than what they hold asks for.
    pub(crate) finer: u64,
    /// Large partitions have not failed.
    pub(crate) may_crowd: bool,
}

/// The most that a partition should hold, and how many of them that takes at least.
fn limit(total: Load, masters: u64, granularity: Granularity) -> (Load, u64) {
    let of = |times: u64| Load {
        bytes: PARTITION_BYTES_MAX * times,
        entries: PARTITION_ENTRIES_MAX * times,
    };
    let needed = |most: Load| {
        let by_bytes = total.bytes.div_ceil(most.bytes);
        by_bytes.max(total.entries.div_ceil(most.entries))
    };
    let (usual, crowded) = (of(1), of(PARTITION_CROWD_MAX));
    match needed(usual) {
        count if count > masters && granularity.may_crowd => {
            pluvio_units::mark("recovery-partitions-crowded");
            (crowded, needed(crowded).max(masters))
        }
        count => (usual, count),
    }
}

/// Cuts tablets into partitions:
///
/// 1. None is over 500 MB or 2 million entries, as far as cutting can do that and there are masters
///    for them. Where there are too few, [`PARTITION_CROWD_MAX`] times as much.
/// 2. There is about one for each of the `masters` that could help, but none below
///    [`PARTITION_BYTES_MIN`] for the sake of it.
/// 3. There are as many more as `granularity` asks for.
///
/// `tablets_of` says how many tablets a table has in all, which bounds how often it can be cut.
pub(crate) fn partition(
    tablets: &[TabletSpec],
    stats: &Stats,
    had: &Had,
    masters: usize,
    granularity: Granularity,
    tablets_of: impl Fn(TableId) -> usize,
) -> Vec<Vec<TabletSpec>> {
    let loads = loads(tablets, stats, had);
    let total = sum(&loads);
    let (most, needed) = limit(total, masters as u64, granularity);
    let worthwhile = (total.bytes / PARTITION_BYTES_MIN).min(masters as u64);
    let finer = needed.max(1).saturating_mul(granularity.finer);
    let count = finer.min(FINER_MAX).max(needed).max(worthwhile).max(1);
    let goal = Load {
        bytes: total.bytes.div_ceil(count).max(1),
        entries: total.entries.div_ceil(count).max(1),
    };
    let mut pieces = cut(tablets, &loads, goal, tablets_of);
    pieces.sort_by_key(|(piece, load)| {
        let fill = Bin::default().fill(*load, goal);
        (Reverse(fill), piece.table, piece.range.first)
    });
    let mut count = usize::try_from(count).unwrap_or(usize::MAX);
    loop {
        let bins = pack(&pieces, count.min(pieces.len()), goal);
        let over = bins.iter().any(|b| b.is_over(most) && b.tablets.len() > 1);
        if over && count < pieces.len() {
            // Few steps, also for many partitions.
            count = (count + count / 8 + 1).min(pieces.len());
            continue;
        }
        return bins.into_iter().map(|bin| bin.tablets).collect();
    }
}

/// The same partitions, each with tablets of one durability class: a recovery master replays a
/// partition into one log.
pub(crate) fn of_one_class(partitions: Vec<Vec<TabletSpec>>) -> Vec<Vec<TabletSpec>> {
    let mut all = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let mut by_class: BTreeMap<u16, Vec<TabletSpec>> = BTreeMap::new();
        for tablet in partition {
            let class = tablet.class.map_or(0, |class| class.number);
            by_class.entry(class).or_default().push(tablet);
        }
        all.extend(by_class.into_values());
    }
    all
}

/// A first part is this fraction of its partition: replayed while the crashed server's leases end.
const FIRST_PART: u64 = 8;
/// Tables with more tablets than this are cut no more for the sake of a first part. The rest of
/// [`TABLETS_MAX`] is for cuts without which partitions fit no master.
const FIRST_PART_TABLETS_MAX: usize = TABLETS_MAX / 4;

/// Cuts a partition that holds at least `bytes_min` into about an eighth, to be recovered first,
/// and the rest. `None` for one that cannot be cut like this. `tablets_of` is that of
/// [`partition`].
pub(crate) fn first_part(
    tablets: &[TabletSpec],
    stats: &Stats,
    had: &Had,
    bytes_min: u64,
    tablets_of: impl Fn(TableId) -> usize,
) -> Option<(Vec<TabletSpec>, Vec<TabletSpec>)> {
    let loads = loads(tablets, stats, had);
    let total = sum(&loads).bytes;
    if total < bytes_min {
        return None;
    }
    let mut by_size: Vec<(TabletSpec, Load)> = tablets.iter().copied().zip(loads).collect();
    by_size.sort_by_key(|(tablet, load)| (load.bytes, tablet.table, tablet.range.first));
    let (mut first, mut rest, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (tablet, load) in &by_size {
        if bytes + load.bytes <= total / FIRST_PART {
            bytes += load.bytes;
            first.push(*tablet);
        } else {
            rest.push(*tablet);
        }
    }
    if bytes < total / FIRST_PART / 2 {
        let (largest, load) = by_size.last()?;
        if tablets_of(largest.table) > FIRST_PART_TABLETS_MAX {
            return None;
        }
        let parts = share(FIRST_PART, Width(load.bytes), total).max(2);
        let pieces = largest.hash.split(largest.range, parts);
        let [piece, .., last] = &pieces[..] else {
            return None;
        };
        let [piece, others] = [*piece, HashRange::new(pieces[1].first, last.last)]
            .map(|range| TabletSpec { range, ..*largest });
        first.push(piece);
        rest.pop();
        rest.push(others);
    }
    for part in [&mut first, &mut rest] {
        part.sort_by_key(|t| (t.table, t.range.first));
    }
    (!first.is_empty() && !rest.is_empty()).then_some((first, rest))
}

/// The partitions of all masters: the first parts of those that have one, then everything else.
/// `first_part` cuts a partition in two if it should be.
pub(crate) fn first_parts_first<Master: Copy>(
    partitions: impl Iterator<Item = (Vec<TabletSpec>, Master)>,
    first_part: impl Fn(&[TabletSpec]) -> Option<(Vec<TabletSpec>, Vec<TabletSpec>)>,
) -> Vec<(Vec<TabletSpec>, Master)> {
    let (mut firsts, mut rests) = (Vec::new(), Vec::new());
    for (tablets, master) in partitions {
        match first_part(&tablets) {
            Some((first, rest)) => {
                pluvio_units::mark("recovery-first-part");
                firsts.push((first, master));
                rests.push((rest, master));
            }
            None => rests.push((tablets, master)),
        }
    }
    firsts.append(&mut rests);
    firsts
}

/// Cuts tablets that hold more than the goal. Where a table would get too many tablets, each of its
/// tablets is cut into fewer pieces.
fn cut(
    tablets: &[TabletSpec],
    loads: &[Load],
    goal: Load,
    tablets_of: impl Fn(TableId) -> usize,
) -> Vec<(TabletSpec, Load)> {
    let cuts_wanted = |load: &Load| {
        let by_bytes = load.bytes.div_ceil(goal.bytes);
        let parts = by_bytes.max(load.entries.div_ceil(goal.entries));
        parts.saturating_sub(1)
    };
    let mut of_table: BTreeMap<TableId, u64> = BTreeMap::new();
    for (tablet, load) in tablets.iter().zip(loads) {
        let all = of_table.entry(tablet.table).or_default();
        *all = all.saturating_add(cuts_wanted(load));
    }
    let mut pieces = Vec::new();
    for (tablet, load) in tablets.iter().zip(loads) {
        let room = TABLETS_MAX.saturating_sub(tablets_of(tablet.table)) as u64;
        let (wanted, all) = (cuts_wanted(load), of_table[&tablet.table]);
        let share = u128::from(wanted) * u128::from(room) / u128::from(all.max(1));
        let parts = wanted.min(u64::try_from(share).unwrap_or(room)) + 1;
        let ranges = tablet.hash.split(tablet.range, parts);
        let parts = ranges.len() as u64;
        for range in ranges {
            let piece = TabletSpec { range, ..*tablet };
            let load = Load {
                bytes: load.bytes / parts,
                entries: load.entries / parts,
            };
            pieces.push((piece, load));
        }
    }
    pieces
}

/// Each piece to the partition that it fills least.
fn pack(pieces: &[(TabletSpec, Load)], count: usize, goal: Load) -> Vec<Bin> {
    let mut bins = vec![Bin::default(); count];
    for (piece, load) in pieces {
        let bin = bins
            .iter_mut()
            .min_by_key(|bin| (bin.fill(*load, goal), bin.tablets.len()))
            .expect("there is at least one partition for at least one piece");
        bin.tablets.push(*piece);
        bin.load.bytes = bin.load.bytes.saturating_add(load.bytes);
        bin.load.entries = bin.load.entries.saturating_add(load.entries);
    }
    bins.retain(|bin| !bin.tablets.is_empty());
    for bin in &mut bins {
        bin.tablets.sort_by_key(|t| (t.table, t.range.first));
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::{HashKind, KeyHash, SegmentId};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// The first attempt.
    const FIRST: Granularity = Granularity {
        finer: 1,
        may_crowd: true,
    };

    /// The crashed server had exactly these tablets.
    fn had(tablets: &[TabletSpec]) -> Had {
        let mut had = Had::new();
        for tablet in tablets {
            had.entry(tablet.table).or_default().0 += Width::of(tablet.range).0;
        }
        had
    }

    fn partition_all(
        tablets: &[TabletSpec],
        stats: &Stats,
        masters: usize,
        tablets_of: impl Fn(TableId) -> usize,
    ) -> Vec<Vec<TabletSpec>> {
        partition(tablets, stats, &had(tablets), masters, FIRST, tablets_of)
    }

    #[test]
    fn a_first_part_holds_about_an_eighth_and_leaves_nothing_out() {
        let stats = stats(&[(1, 800, 10), (2, 40, 10), (3, 160, 10)]);
        let halves = |tablets: &[TabletSpec], bytes_min, count| {
            let (first, rest) = first_part(tablets, &stats, &had(tablets), bytes_min, |_| count)?;
            let all = [first.as_slice(), &rest].concat();
            let widths = |tablets: &[TabletSpec]| -> u128 {
                tablets
                    .iter()
                    .map(|t| u128::from(Width::of(t.range).0))
                    .sum()
            };
            // Parts of a unit are rounded up.
            assert!(widths(&all) - widths(tablets) <= 1);
            Some((first, rest))
        };
        // One tablet is cut.
        let (first, rest) = halves(&[whole(1)], 800, 1).expect("cut");
        assert_eq!((first.len(), rest.len()), (1, 1));
        assert_eq!(first[0].range, HashRange::ALL.split(8)[0]);
        // A small one goes first, with a part of the largest.
        let (first, rest) = halves(&[whole(1), whole(2), whole(3)], 800, 1).expect("cut");
        assert_eq!(first, [tablet(1, HashRange::ALL.split(6)[0]), whole(2)]);
        assert_eq!(rest.len(), 2);
        // Of many none is cut.
        let ranges = HashRange::ALL.split(16).into_iter();
        let many: Vec<_> = ranges.map(|range| tablet(1, range)).collect();
        let (first, rest) = halves(&many, 800, TABLETS_MAX).expect("dealt");
        assert_eq!((first, rest), (many[..2].to_vec(), many[2..].to_vec()));
        // Too little data, too many tablets.
        assert_eq!(halves(&[whole(1)], 801, 1), None);
        assert_eq!(halves(&[whole(1)], 800, TABLETS_MAX), None);
    }

    #[test]
    fn a_partition_has_tablets_of_one_durability() {
        let of_class = |number, table| TabletSpec {
            class: Some(pluvio_wire::TableClass {
                number,
                replicas: 3,
                synced: true,
                weaker: false,
            }),
            ..whole(table)
        };
        let (plain, one, other) = (whole(1), of_class(1, 2), of_class(2, 3));
        let found = of_one_class(vec![
            vec![one, plain, other],
            vec![plain],
            vec![other, other],
        ]);
        let expected = [vec![plain], vec![one], vec![other], vec![plain]];
        assert_eq!(found[..4], expected);
        assert_eq!(found[4..], [vec![other, other]]);
    }

    #[test]
    fn first_parts_come_before_everything_else() {
        let (a, b, c) = (whole(1), whole(2), whole(3));
        let partitions = [(vec![a], 'x'), (vec![b, c], 'y'), (vec![c, a], 'z')];
        let first = |tablets: &[TabletSpec]| match tablets {
            [first, rest] => Some((vec![*first], vec![*rest])),
            _ => None,
        };
        let dealt = first_parts_first(partitions.into_iter(), first);
        let expected = [(b, 'y'), (c, 'z'), (a, 'x'), (c, 'y'), (a, 'z')];
        assert_eq!(
            dealt,
            expected.map(|(tablet, master)| (vec![tablet], master))
        );
    }

    #[test]
    fn what_is_left_of_a_tablet_is_not_taken_for_all_of_it() {
        let stats = stats(&[(1, 6 * PARTITION_BYTES_MAX, 1000)]);
        let all = [whole(1)];
        let pieces: Vec<_> = partition_all(&all, &stats, 6, |_| 1).concat();
        assert_eq!(pieces.len(), 6);
        let left = partition(&pieces[..2], &stats, &had(&all), 2, FIRST, |_| 6);
        assert_eq!(left.concat().len(), 2);
        assert_eq!(left.len(), 2);
    }

    #[test]
    fn what_fits_nowhere_is_cut_finer_however_little_it_is() {
        let stats = stats(&[(1, 1000, 10)]);
        let all = [whole(1)];
        let four = Granularity { finer: 4, ..FIRST };
        let parts = partition(&all, &stats, &had(&all), 2, four, |_| 1);
        assert_eq!(parts.len(), 4);
        assert_eq!(parts.concat().len(), 4);
    }

    #[test]
    fn what_fits_nowhere_is_cut_finer_however_much_it_is() {
        let stats = stats(&[(1, 100 * PARTITION_BYTES_MAX, 1000)]);
        let all = [whole(1)];
        for (finer, count) in [(1, 100), (2, 200), (64, 6400)] {
            let granularity = Granularity {
                finer,
                may_crowd: false,
            };
            let parts = partition(&all, &stats, &had(&all), 100, granularity, |_| 1);
            assert_eq!(parts.concat().len(), count.min(TABLETS_MAX));
        }
    }

    #[test]
    fn the_room_for_tablets_of_a_table_is_shared_by_all_that_are_cut() {
        let stats = stats(&[(1, 20 * PARTITION_BYTES_MAX, 1000)]);
        let all: Vec<_> = HashRange::ALL
            .split(20)
            .into_iter()
            .map(|range| tablet(1, range))
            .collect();
        let granularity = Granularity {
            finer: 64,
            may_crowd: false,
        };
        let parts = partition(&all, &stats, &had(&all), 2, granularity, |_| 20);
        let pieces = parts.concat();
        assert!(pieces.len() > TABLETS_MAX * 9 / 10 && pieces.len() <= TABLETS_MAX);
        let widest = |piece: &TabletSpec| Width::of(piece.range).0;
        let widths = || pieces.iter().map(widest);
        let (most, least) = (widths().max(), widths().min());
        assert!(most.expect("some") <= 2 * least.expect("some"));
    }

    fn tablet(table: u64, range: HashRange) -> TabletSpec {
        TabletSpec {
            table: TableId(table),
            seed: table,
            hash: HashKind::Seeded,
            range,
            since: SegmentId(0),
            quota: pluvio_wire::TableQuota::NONE,
            class: None,
        }
    }

    fn whole(table: u64) -> TabletSpec {
        tablet(table, HashRange::ALL)
    }

    fn stats(tables: &[(u64, u64, u64)]) -> Stats {
        Stats {
            tables: tables
                .iter()
                .map(|&(id, bytes, entries)| (TableId(id), Load { bytes, entries }))
                .collect(),
            ..Stats::default()
        }
    }

    fn sizes(partitions: &[Vec<TabletSpec>]) -> Vec<usize> {
        partitions.iter().map(Vec::len).collect()
    }

    #[test]
    fn little_data_is_one_partition() {
        let stats = stats(&[(1, 2 * PARTITION_BYTES_MIN - 1, 1000)]);
        let partitions = partition_all(&[whole(1), whole(2)], &stats, 8, |_| 1);
        assert_eq!(sizes(&partitions), [2]);
    }

    #[test]
    fn without_statistics_nothing_is_cut() {
        let partitions = partition_all(&[whole(1)], &Stats::default(), 8, |_| 1);
        assert_eq!(partitions, [vec![whole(1)]]);
    }

    #[test]
    fn enough_data_goes_to_all_masters() {
        let stats = stats(&[(1, 8 * PARTITION_BYTES_MIN, 1000)]);
        let partitions = partition_all(&[whole(1)], &stats, 4, |_| 1);
        assert_eq!(sizes(&partitions), [1, 1, 1, 1]);
        // So much is worth at most 8 masters.
        assert_eq!(partition_all(&[whole(1)], &stats, 100, |_| 1).len(), 8);
    }

    /// How many partitions.
    fn crowd(total: Load, masters: usize, may_crowd: bool) -> usize {
        let stats = stats(&[(1, total.bytes, total.entries)]);
        let all = [whole(1)];
        let granularity = Granularity { may_crowd, ..FIRST };
        partition(&all, &stats, &had(&all), masters, granularity, |_| 1).len()
    }

    #[test]
    fn partitions_are_larger_where_there_are_too_few_masters() {
        let _marks = pluvio_units::Marks::to_reach(&["recovery-partitions-crowded"]);
        let by_bytes = Load {
            bytes: 16 * PARTITION_BYTES_MAX,
            entries: 1000,
        };
        let by_entries = Load {
            bytes: 1000,
            entries: 16 * PARTITION_ENTRIES_MAX,
        };
        for total in [by_bytes, by_entries] {
            let counts = [1, 2, 3, 15, 16].map(|masters| crowd(total, masters, true));
            assert_eq!(counts, [2, 2, 3, 15, 16]);
        }
    }

    #[test]
    fn large_data_needs_more_partitions_than_masters() {
        let by_bytes = Load {
            bytes: 3 * PARTITION_CROWD_MAX * PARTITION_BYTES_MAX,
            entries: 1000,
        };
        assert_eq!(crowd(by_bytes, 1, true), 3);
        let by_entries = Load {
            bytes: 1000,
            entries: 5 * PARTITION_CROWD_MAX * PARTITION_ENTRIES_MAX,
        };
        assert_eq!(crowd(by_entries, 1, true), 5);
    }

    #[test]
    fn after_attempts_in_vain_partitions_are_small_again() {
        let total = Load {
            bytes: 3 * PARTITION_BYTES_MAX,
            entries: 5 * PARTITION_ENTRIES_MAX,
        };
        assert_eq!(crowd(total, 1, true), 1);
        assert_eq!(crowd(total, 1, false), 5);
    }

    #[test]
    fn a_tablets_share_is_that_of_its_range() {
        let halves = HashRange::ALL.split(2);
        let quarter = halves[0].split(2)[0];
        let tablets = [tablet(1, quarter), tablet(1, halves[1]), whole(2), whole(3)];
        let mut stats = stats(&[(1, 300, 30)]);
        stats.other = Load {
            bytes: 80,
            entries: 8,
        };
        let loads = loads(&tablets, &stats, &had(&tablets));
        let bytes: Vec<_> = loads.iter().map(|l| l.bytes).collect();
        assert_eq!(bytes, [100, 200, 40, 40]);
        assert_eq!(loads[1].entries, 20);
    }

    #[test]
    fn open_heads_count_for_parallelism() {
        let stats = Stats {
            unaccounted: 2 * PARTITION_BYTES_MIN,
            ..Stats::default()
        };
        assert_eq!(partition_all(&[whole(1)], &stats, 4, |_| 1).len(), 2);
    }

    #[test]
    fn a_table_is_not_cut_beyond_its_limit() {
        let stats = stats(&[(1, 64 * MIB, 1)]);
        let partitions = partition_all(&[whole(1)], &stats, 4, |_| TABLETS_MAX);
        assert_eq!(sizes(&partitions), [1]);
        let partitions = partition_all(&[whole(1)], &stats, 4, |_| TABLETS_MAX - 1);
        assert_eq!(sizes(&partitions), [1, 1]);
    }

    fn some_tablets() -> impl Strategy<Value = Vec<TabletSpec>> {
        proptest::collection::vec((1u64..6, any::<u64>(), any::<u64>()), 1..20).prop_map(|raw| {
            // Disjoint ranges within a table: cut the whole range at the given points.
            let mut cuts: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for (table, a, b) in raw {
                cuts.entry(table).or_default().extend([a, b]);
            }
            let mut tablets = Vec::new();
            for (table, mut at) in cuts {
                at.extend([0]);
                at.sort_unstable();
                at.dedup();
                for (i, first) in at.iter().enumerate() {
                    let last = at.get(i + 1).map_or(u64::MAX, |next| next - 1);
                    let range = HashRange::new(KeyHash(*first), KeyHash(last));
                    tablets.push(tablet(table, range));
                }
            }
            tablets
        })
    }

    proptest! {
        #[test]
        fn partitions_cover_every_tablet_exactly_once(
            tablets in some_tablets(),
            tables in proptest::collection::vec((1u64..6, 0u64..u64::MAX, 0u64..u64::MAX / 4), 0..5),
            unaccounted in 0u64..1 << 34,
            masters in 1usize..20,
        ) {
            // Up to 64 GB and 16 million entries.
            let tables: Vec<_> = tables.into_iter().map(|(t, b, e)| (t, b >> 28, e >> 38)).collect();
            let stats = Stats { unaccounted, ..stats(&tables) };
            let partitions = partition_all(&tablets, &stats, masters, |_| 1);
            let mut pieces: Vec<_> = partitions.iter().flatten().copied().collect();
            pieces.sort_by_key(|p| (p.table, p.range.first));
            prop_assert!(partitions.iter().all(|p| !p.is_empty()));
            let mut pieces = pieces.into_iter();
            for tablet in &tablets {
                let mut next = Some(tablet.range.first.0);
                while next != tablet.range.last.0.checked_add(1) {
                    let piece = pieces.next().unwrap();
                    prop_assert_eq!(piece.table, tablet.table);
                    prop_assert_eq!(Some(piece.range.first.0), next);
                    prop_assert!(piece.range.last <= tablet.range.last);
                    next = piece.range.last.0.checked_add(1);
                }
            }
            prop_assert!(pieces.next().is_none());
        }
    }
}
