//! The tablets that this master has, and the phase of each.
//!
//! The map is small, read by every operation and changed rarely. Readers take a snapshot without a
//! lock; a change replaces the whole map.
//!
//! - TAB-1: ranges of one table do not overlap.
//! - TAB-2: an operation is done only under a snapshot in which the tablet is served, and holds
//!   that snapshot until its effect is in memory. So after changing a phase, wait until every
//!   earlier map is dropped ([`OldMaps`]): then no operation that began under one of them is
//!   running. All of them count, not only the latest: an operation may have begun several changes
//!   ago.
//! - TAB-3: every tablet has indexes for all its hashes, and an index goes with the last tablet
//!   that uses it. Both come and go under one lock.

use crate::master::Master;
use arc_swap::ArcSwap;
use pluvio_env::Clock;
use pluvio_store::EngineTable;
use pluvio_store::GatePage;
use pluvio_units::{HashRange, KeyHash, TableId};
use pluvio_wire::{Refusal, TrackedRange};
use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// When to look again whether [`OldMaps`] are gone: a task that holds one waits for nothing.
pub(crate) const OLD_MAPS_PAUSE: Duration = Duration::from_micros(100);

/// Waits until nobody has any of some replaced maps. Operations under them end soon.
pub(crate) async fn until_gone(clock: &dyn Clock, mut are_gone: impl FnMut() -> bool) {
    while !are_gone() {
        clock.sleep(OLD_MAPS_PAUSE).await;
    }
}

/// The phase of a tablet that is here: it says which operations are allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TabletPhase {
    /// Being replayed, from a crashed server's log or from the server that has it: operations must
    /// come again later.
    Recovering,
    /// Replayed, and not durable here yet: the crashed server's replicas stand for it. Reads are
    /// served, changes must come again later (REC-7).
    Standing,
    /// All operations are served.
    Serving,
    /// All operations are served, and changes are noted for the server that copies the tablet.
    Copying,
    /// Another server has all of it, and the coordinator has not decided yet whose it is:
    /// operations must come again later.
    Frozen,
    /// It belongs to another server: operations go there. What is left of it is being forgotten.
    Left,
}

impl TabletPhase {
    /// Whether objects of such a tablet are read.
    #[must_use]
    pub fn is_served(self) -> bool {
        match self {
            Self::Standing | Self::Serving | Self::Copying => true,
            Self::Recovering | Self::Frozen | Self::Left => false,
        }
    }

    /// Whether it is served elsewhere.
    #[must_use]
    pub fn is_left(self) -> bool {
        match self {
            Self::Left => true,
            Self::Standing | Self::Serving | Self::Copying | Self::Recovering | Self::Frozen => {
                false
            }
        }
    }
}

/// One tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tablet {
    /// Its range of key hashes.
    pub range: HashRange,
    /// What may be done with it.
    pub phase: TabletPhase,
    /// Whether its changes are noted for a cut (CUT-2).
    pub tracked: Option<Tracked>,
}

/// Changes are noted for a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracked {
    /// Since when: each stay of a tablet has another number.
    pub number: u64,
    /// Whether changes are refused while a hold lasts.
    pub is_held: bool,
}

/// A table of which this master has at least one tablet.
#[derive(Clone)]
pub struct LocalTable {
    /// The table's index and statistics.
    pub table: Arc<EngineTable>,
    /// Tablets by ascending range.
    pub tablets: Vec<Tablet>,
}

impl LocalTable {
    /// The tablet that contains `hash`.
    #[must_use]
    pub fn tablet_of(&self, hash: KeyHash) -> Option<&Tablet> {
        let after = self.tablets.partition_point(|t| t.range.first <= hash);
        self.tablets[..after]
            .last()
            .filter(|t| t.range.contains(hash))
    }

    /// The tablets that overlap a range.
    fn overlapping(&self, range: HashRange) -> impl Iterator<Item = &Tablet> {
        let tablets = self.tablets.iter();
        tablets.filter(move |tablet| tablet.range.overlaps(&range))
    }

    /// Whether all of a range is here, in tablets of these phases.
    fn has_all(&self, range: HashRange, phases: &[TabletPhase]) -> bool {
        let mut next = Some(range.first);
        for tablet in self.overlapping(range) {
            let follows = next.is_some_and(|next| tablet.range.contains(next));
            if !(follows && phases.contains(&tablet.phase)) {
                return false;
            }
            next = tablet.range.last.0.checked_add(1).map(KeyHash);
        }
        // None: the last tablet ends with the last hash.
        next.is_none_or(|next| next > range.last)
    }

    /// Adds a tablet that overlaps none.
    fn insert(&mut self, tablet: Tablet) {
        let before = |other: &Tablet| other.range.first < tablet.range.first;
        let at = self.tablets.partition_point(before);
        self.tablets.insert(at, tablet);
    }

    /// Cuts the tablet that contains `at` so that a tablet begins there. False when there is none.
    fn cut(&mut self, at: KeyHash) -> bool {
        let Some(index) = self.tablets.iter().position(|t| t.range.contains(at)) else {
            return false;
        };
        let whole = self.tablets[index];
        if whole.range.first < at {
            self.tablets[index].range = HashRange::new(whole.range.first, KeyHash(at.0 - 1));
            let upper = Tablet {
                range: HashRange::new(at, whole.range.last),
                ..whole
            };
            self.tablets.insert(index + 1, upper);
        }
        true
    }
}

/// All maps that were replaced before a moment, as far as somebody has them.
pub(crate) struct OldMaps(Vec<Weak<Snapshot>>);

impl OldMaps {
    /// Whether nobody has any of them any more (TAB-2). Once true it stays true.
    pub(crate) fn is_gone(&mut self) -> bool {
        forget_unheld(&mut self.0);
        self.0.is_empty()
    }
}

/// Leaves those of the replaced maps that are still held. Operations under the others have happened
/// before this returns.
///
/// The strong count of a replaced map counts all its holders. A guard of `ArcSwap` need not be
/// counted, but `ArcSwap::swap` counts all guards on the map that it takes away before it returns.
/// A load while that happens gets a counted guard or another map. Nobody takes a replaced map anew,
/// so its count only falls.
fn forget_unheld(maps: &mut Vec<Weak<Snapshot>>) {
    maps.retain(|map| map.strong_count() > 0);
    // The count is read relaxed; this pairs with the release by which each holder let its map go.
    fence(Ordering::Acquire);
}

/// The tables of a master at one moment.
pub type Snapshot = BTreeMap<TableId, LocalTable>;

/// All tablets of a master.
#[derive(Default)]
pub struct TabletMap {
    current: ArcSwap<Snapshot>,
    /// The replaced maps that are still held. The lock is held by a task that replaces the map.
    older: Mutex<Vec<Weak<Snapshot>>>,
    /// Where other processes read: it is told of each change before that (GATE-1).
    gate: Option<GatePage>,
}

impl TabletMap {
    /// An empty map that tells readers of other processes of its changes.
    pub(crate) fn telling(gate: Option<GatePage>) -> Self {
        Self {
            gate,
            ..Self::default()
        }
    }

    /// Looks at the map while it does not change.
    pub(crate) fn unchanged<T>(&self, look: impl FnOnce(&Snapshot) -> T) -> T {
        let _older = self.older.lock().unwrap_or_else(PoisonError::into_inner);
        look(&self.current.load())
    }

    /// The map as it is now.
    pub fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.current.load()
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Snapshot) -> T) -> T {
        self.exchange(edit).0
    }

    fn exchange<T>(&self, edit: impl FnOnce(&mut Snapshot) -> T) -> (T, OldMaps) {
        let mut older = self.older.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = (**self.current.load()).clone();
        let result = edit(&mut next);
        if let Some(gate) = &self.gate {
            gate.raise_version();
        }
        let old = self.current.swap(Arc::new(next));
        older.push(Arc::downgrade(&old));
        drop(old);
        forget_unheld(&mut older);
        (result, OldMaps(older.clone()))
    }

    /// Gives the tablets that lie in `range` another phase if all of it is here, in one of the
    /// phases `from`. Cuts them first so that one begins and one ends with it. Otherwise gives
    /// `None` and changes nothing.
    pub(crate) fn shift(
        &self,
        table: TableId,
        range: HashRange,
        from: &[TabletPhase],
        to: TabletPhase,
    ) -> Option<OldMaps> {
        let (shifted, old) = self.exchange(|map| {
            let local = map.get_mut(&table)?;
            if !local.has_all(range, from) {
                return None;
            }
            local.cut(range.first);
            if let Some(after) = range.last.0.checked_add(1) {
                local.cut(KeyHash(after));
            }
            for tablet in local.tablets.iter_mut() {
                if range.contains(tablet.range.first) {
                    tablet.phase = to;
                }
            }
            Some(())
        });
        shifted.map(|()| old)
    }

    /// Takes away the tablets that lie in `range`; the table goes with its last one.
    pub(crate) fn remove_within(&self, table: TableId, range: HashRange) {
        self.change(|map| {
            if let Some(local) = map.get_mut(&table) {
                local.tablets.retain(|t| !range.contains(t.range.first));
                if local.tablets.is_empty() {
                    map.remove(&table);
                }
            }
        });
    }

    /// Adds a tablet.
    ///
    /// # Errors
    /// The tablet that is in the way, when the range overlaps one that is here (TAB-1), the same
    /// one included. Nothing was changed.
    pub fn add(&self, table: Arc<EngineTable>, tablet: Tablet) -> Result<(), Tablet> {
        self.change(|map| {
            let local = map.entry(table.id()).or_insert_with(|| LocalTable {
                table,
                tablets: Vec::new(),
            });
            if let Some(other) = local.overlapping(tablet.range).next() {
                return Err(*other);
            }
            local.insert(tablet);
            Ok(())
        })
    }

    /// Serves the tablets that lie in `range`: it may have been cut since it was added. Gives false
    /// when there are none.
    pub fn serve_within(&self, table: TableId, range: HashRange) -> bool {
        self.set_within(table, range, TabletPhase::Serving)
    }

    /// Gives the tablets that lie in `range` a phase. Gives false when there are none.
    pub(crate) fn set_within(&self, table: TableId, range: HashRange, phase: TabletPhase) -> bool {
        self.change(|map| {
            let Some(local) = map.get_mut(&table) else {
                return false;
            };
            let inside = |t: &&mut Tablet| range.contains(t.range.first);
            let mut found = false;
            for tablet in local.tablets.iter_mut().filter(inside) {
                tablet.phase = phase;
                found = true;
            }
            found
        })
    }

    /// Takes a tablet away; the table goes with its last one. Gives the table if it had the tablet.
    pub fn remove(&self, table: TableId, range: HashRange) -> Option<Arc<EngineTable>> {
        self.change(|map| {
            let local = map.get_mut(&table)?;
            let before = local.tablets.len();
            local.tablets.retain(|t| t.range != range);
            let gone = (local.tablets.len() < before).then(|| Arc::clone(&local.table));
            if local.tablets.is_empty() {
                map.remove(&table);
            }
            gone
        })
    }

    /// Takes all tablets of a table away. No operation on them is under way when the maps that this
    /// gives are gone, also when they were taken away before.
    pub(crate) fn remove_table(&self, table: TableId) -> OldMaps {
        self.exchange(|map| map.remove(&table)).1
    }

    /// Cuts the tablet that contains `at` so that a tablet begins there. Gives false when there is
    /// no such tablet; a tablet that begins there already is left as it is.
    pub fn split(&self, table: TableId, at: KeyHash) -> bool {
        self.change(|map| {
            let Some(local) = map.get_mut(&table) else {
                return false;
            };
            local.cut(at)
        })
    }

    /// Makes one tablet of those in `range`, if all of it is here and simply served. Gives false,
    /// and changes nothing, when it is not.
    pub(crate) fn join(&self, table: TableId, range: HashRange) -> bool {
        self.change(|map| {
            let Some(local) = map.get_mut(&table) else {
                return false;
            };
            if !local.has_all(range, &[TabletPhase::Serving]) {
                return false;
            }
            let parts: Vec<Tablet> = local.overlapping(range).copied().collect();
            let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
                return false;
            };
            let joined = Tablet {
                range: HashRange::new(first.range.first, last.range.last),
                phase: TabletPhase::Serving,
                // One number for all, or none (CUT-2).
                tracked: first
                    .tracked
                    .filter(|track| parts.iter().all(|part| part.tracked == Some(*track))),
            };
            local.tablets.retain(|t| !t.range.overlaps(&joined.range));
            local.insert(joined);
            true
        })
    }

    /// Lets changes of the tablet with this hash be noted from now on under `number`, unless they
    /// are noted already under a number that `is_known`. All operations that do not note them began
    /// under the maps that this gives.
    ///
    /// # Errors
    /// No such tablet is here, or it takes no changes.
    pub(crate) fn track(
        &self,
        table: TableId,
        hash: KeyHash,
        number: u64,
        is_known: impl FnOnce(u64) -> bool,
    ) -> Result<(TrackedRange, OldMaps), Refusal> {
        let (tracked, old) = self.exchange(|map| {
            let local = map.get_mut(&table).ok_or(Refusal::Refresh)?;
            let mut tablets = local.tablets.iter_mut();
            let tablet = tablets.find(|tablet| tablet.range.contains(hash));
            let tablet = tablet.ok_or(Refusal::Refresh)?;
            Master::must_take_changes(tablet.phase)?;
            let known = tablet.tracked.filter(|known| is_known(known.number));
            let tracked = known.unwrap_or(Tracked {
                number,
                is_held: false,
            });
            tablet.tracked = Some(tracked);
            Ok(TrackedRange {
                table,
                range: tablet.range,
                track: tracked.number,
            })
        });
        tracked.map(|tracked| (tracked, old))
    }

    /// Changes something of every tablet.
    pub(crate) fn edit_all(&self, edit: impl Fn(&mut Tablet)) -> OldMaps {
        let edit_each = |map: &mut Snapshot| {
            let tablets = map.values_mut().flat_map(|local| &mut local.tablets);
            tablets.for_each(edit);
        };
        self.exchange(edit_each).1
    }

    /// Whether changes of a tablet are noted for a cut.
    pub(crate) fn is_any_tracked(&self) -> bool {
        self.is_any(|tablet| tablet.tracked.is_some())
    }

    /// Whether the map says of a tablet that its changes are refused.
    pub(crate) fn is_any_held(&self) -> bool {
        self.is_any(|tablet| tablet.tracked.is_some_and(|tracked| tracked.is_held))
    }

    fn is_any(&self, of: impl Fn(&Tablet) -> bool) -> bool {
        let map = self.snapshot();
        map.values().flat_map(|local| &local.tablets).any(of)
    }

    /// Takes everything away.
    pub fn clear(&self) {
        self.change(BTreeMap::clear);
    }

    /// The tablets that are served, for checkers.
    #[must_use]
    pub fn served(&self) -> Vec<(TableId, HashRange)> {
        let map = self.snapshot();
        let tablets = map
            .iter()
            .flat_map(|(table, local)| local.tablets.iter().map(move |t| (*table, t)));
        tablets
            .filter(|(_, t)| t.phase.is_served())
            .map(|(table, t)| (table, t.range))
            .collect()
    }

    /// Number of tablets that are served.
    #[must_use]
    pub fn serving(&self) -> u64 {
        let map = self.snapshot();
        let tablets = map.values().flat_map(|t| &t.tablets);
        tablets.filter(|t| t.phase.is_served()).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_log::LogOptions;
    use pluvio_store::{Engine, EngineOptions};
    use pluvio_units::Size;

    fn tablet(range: HashRange, phase: TabletPhase) -> Tablet {
        let tracked = None;
        Tablet {
            range,
            phase,
            tracked,
        }
    }

    // shows: CUT-2
    #[test]
    fn a_tablet_is_tracked_as_long_as_it_stays() {
        let map = map_of(TabletPhase::Serving);
        let table = Arc::clone(&map.snapshot()[&TableId(1)].table);
        let track_anew = |hash, number, is_known: fn(u64) -> bool| {
            let tracked = map.track(TableId(1), KeyHash(hash), number, is_known);
            tracked.map(|(tracked, _old)| (tracked.range, tracked.track))
        };
        let track = |hash, number| track_anew(hash, number, |known| known > 1);
        assert!(map.split(TableId(1), KeyHash(100)));
        let (lower, number) = track(7, 5).unwrap();
        assert_eq!((lower.last, number), (KeyHash(99), 5));
        assert_eq!(track(8, 6).unwrap().1, 5, "asked again");
        assert_eq!(track_anew(7, 7, |known| known > 6).unwrap().1, 7);
        let tracked = || -> Vec<Option<u64>> {
            let map = map.snapshot();
            let tablets = map[&TableId(1)].tablets.iter();
            tablets.map(|t| t.tracked.map(|t| t.number)).collect()
        };
        assert!(map.split(TableId(1), KeyHash(50)));
        assert_eq!(tracked(), [Some(7), Some(7), None]);
        let to = |last| HashRange::new(KeyHash(0), KeyHash(last));
        assert!(map.join(TableId(1), to(99)));
        assert_eq!(tracked(), [Some(7), None]);
        map.remove_within(TableId(1), to(99));
        let back = tablet(to(99), TabletPhase::Frozen);
        map.add(table, back).unwrap();
        assert_eq!(tracked(), [None, None]);
        assert!(track(7, 8).is_err(), "it takes no changes");
        assert!(track(100, 9).is_ok() && map.is_any_tracked() && !map.is_any_held());
        assert!(map.set_within(TableId(1), to(99), TabletPhase::Serving));
        assert!(map.join(TableId(1), HashRange::ALL));
        assert_eq!(tracked(), [None]);
    }

    fn map_of(phase: TabletPhase) -> TabletMap {
        let log = LogOptions::new(Size::mib(32));
        let store = Engine::open(EngineOptions { log }).unwrap();
        let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
        let map = TabletMap::default();
        let range = HashRange::ALL;
        map.add(table, tablet(range, phase)).unwrap();
        map
    }

    // shows: TAB-2
    #[test]
    fn who_shifts_a_tablet_knows_when_nobody_sees_its_phase_before() {
        let map = map_of(TabletPhase::Serving);
        let operation = map.snapshot();
        let from = &[TabletPhase::Serving];
        let shift = |to| map.shift(TableId(1), HashRange::ALL, from, to);
        let mut old = shift(TabletPhase::Copying).unwrap();
        assert!(!old.is_gone());
        let later = map.snapshot();
        drop(operation);
        assert!(old.is_gone() && old.is_gone());
        assert_eq!(later[&TableId(1)].tablets[0].phase, TabletPhase::Copying);
        assert!(shift(TabletPhase::Frozen).is_none(), "it is not serving");
    }

    // shows: MIG-3, TAB-2
    #[test]
    fn an_operation_that_began_several_changes_ago_is_waited_for() {
        let map = map_of(TabletPhase::Copying);
        let operation = map.snapshot();
        assert!(map.split(TableId(1), KeyHash(1 << 63)));
        let later = map.snapshot();
        assert!(map.split(TableId(1), KeyHash(1 << 62)));
        let from = &[TabletPhase::Copying];
        let shifted = map.shift(TableId(1), HashRange::ALL, from, TabletPhase::Frozen);
        let mut old = shifted.unwrap();
        assert!(!old.is_gone());
        drop(later);
        assert!(!old.is_gone(), "the first one is under way");
        let mut dropped = map.remove_table(TableId(1));
        assert!(!dropped.is_gone());
        assert!(!map.remove_table(TableId(1)).is_gone(), "asked again");
        drop(operation);
        assert!(old.is_gone() && dropped.is_gone());
        assert!(map.remove_table(TableId(1)).is_gone());
    }

    #[test]
    fn only_maps_that_somebody_has_are_remembered() {
        let map = map_of(TabletPhase::Serving);
        let operation = map.snapshot();
        for at in 1..100 {
            assert!(map.split(TableId(1), KeyHash(at)));
        }
        let remembered = || map.older.lock().unwrap().len();
        assert_eq!(remembered(), 1);
        drop(operation);
        assert!(map.split(TableId(1), KeyHash(100)));
        assert_eq!(remembered(), 0);
    }

    // shows: TAB-1
    #[test]
    fn a_tablet_that_is_there_stays_as_it_is_and_is_shown_to_who_adds_it_again() {
        let map = map_of(TabletPhase::Recovering);
        let table = Arc::clone(&map.snapshot()[&TableId(1)].table);
        let [lower, upper] = [(0, 9), (10, u64::MAX)]
            .map(|(first, last)| HashRange::new(KeyHash(first), KeyHash(last)));
        let add = |range| {
            let phase = TabletPhase::Serving;
            map.add(Arc::clone(&table), tablet(range, phase))
        };
        let there = tablet(HashRange::ALL, TabletPhase::Recovering);
        assert_eq!(add(HashRange::ALL), Err(there));
        assert_eq!(add(lower), Err(there));
        assert!(map.remove(TableId(1), HashRange::ALL).is_some());
        assert_eq!((add(upper), add(lower)), (Ok(()), Ok(())));
        assert_eq!(map.snapshot()[&TableId(1)].tablets.len(), 2);
    }

    #[test]
    fn neighbours_are_joined_where_all_are_simply_served_and_not_else() {
        let map = map_of(TabletPhase::Serving);
        let range = |first, last| HashRange::new(KeyHash(first), KeyHash(last));
        for at in [100, 200, 300] {
            assert!(map.split(TableId(1), KeyHash(at)));
        }
        let ranges = || -> Vec<HashRange> {
            let map = map.snapshot();
            map[&TableId(1)].tablets.iter().map(|t| t.range).collect()
        };
        let upper = range(300, u64::MAX);
        let from = &[TabletPhase::Serving];
        assert!(
            map.shift(TableId(1), upper, from, TabletPhase::Copying)
                .is_some()
        );
        assert!(!map.join(TableId(1), range(200, 400)), "some of it moves");
        assert!(!map.join(TableId(2), range(0, 99)), "no such table");
        assert_eq!(ranges().len(), 4);
        assert!(map.join(TableId(1), range(0, 199)) && map.join(TableId(1), range(0, 199)));
        assert_eq!(ranges(), [range(0, 199), range(200, 299), upper]);
        // A part of it is one tablet already.
        assert!(map.join(TableId(1), range(50, 120)));
        assert_eq!(ranges().len(), 3);
        map.remove_within(TableId(1), range(200, 299));
        assert!(!map.join(TableId(1), range(100, 250)), "some of it is away");
    }

    // shows: MIG-1
    #[test]
    fn a_range_is_shifted_whole_or_not_at_all_and_cut_out_of_larger_tablets() {
        let map = map_of(TabletPhase::Serving);
        let range = |first, last| HashRange::new(KeyHash(first), KeyHash(last));
        let shift = |range, from, to| map.shift(TableId(1), range, &[from], to).is_some();
        let (serving, copying) = (TabletPhase::Serving, TabletPhase::Copying);
        assert!(shift(range(10, 19), serving, copying));
        assert_eq!(map.snapshot()[&TableId(1)].tablets.len(), 3);
        assert!(!shift(range(5, 14), serving, copying));
        assert!(!shift(range(0, u64::MAX), copying, TabletPhase::Frozen));
        assert!(map.split(TableId(1), KeyHash(15)));
        assert!(shift(range(10, 19), copying, TabletPhase::Frozen));
        assert_eq!(map.serving(), 2);
        map.remove_within(TableId(1), range(10, 19));
        assert!(!shift(range(9, 20), serving, copying), "a part is gone");
        assert!(shift(range(20, u64::MAX), serving, copying));
    }

    #[test]
    fn a_recovered_tablet_that_was_cut_meanwhile_is_served_in_all_its_parts() {
        let map = map_of(TabletPhase::Recovering);
        assert!(map.split(TableId(1), KeyHash(1 << 63)));
        assert_eq!(map.serving(), 0);
        assert!(map.serve_within(TableId(1), HashRange::ALL));
        assert_eq!(map.serving(), 2);
        map.remove_table(TableId(1));
        assert!(!map.serve_within(TableId(1), HashRange::ALL));
    }
}
