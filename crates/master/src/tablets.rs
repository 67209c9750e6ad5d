//! Which tablets this master has, and what may be done with them.
//!
//! The map is small and read by every operation, changed rarely: readers take a snapshot without
//! a lock, a change replaces the whole map.
//!
//! - TAB-1: ranges of one table do not overlap.
//! - TAB-2: an operation is done only under a snapshot in which the tablet is `Serving`.

use arc_swap::ArcSwap;
use pluvio_store::EngineTable;
use pluvio_units::{HashRange, KeyHash, TableId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What may be done with a tablet that is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TabletPhase {
    /// Being replayed: operations must come again later.
    Recovering,
    /// All operations are served.
    Serving,
}

/// One tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tablet {
    /// Its range of key hashes.
    pub range: HashRange,
    /// What may be done with it.
    pub phase: TabletPhase,
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
}

type Snapshot = BTreeMap<TableId, LocalTable>;

/// All tablets of a master.
#[derive(Default)]
pub struct TabletMap {
    current: ArcSwap<Snapshot>,
    /// Held by those who replace the map.
    changing: Mutex<()>,
}

impl TabletMap {
    /// The map as it is now.
    pub fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.current.load()
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Snapshot) -> T) -> T {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = (**self.current.load()).clone();
        let result = edit(&mut next);
        self.current.store(Arc::new(next));
        result
    }

    /// Adds a tablet; one that is there already, with the same range, only changes its phase.
    /// Gives whether it was new.
    ///
    /// # Errors
    /// The tablet that is in the way, when the range overlaps another one (TAB-1).
    pub fn add(&self, table: Arc<EngineTable>, tablet: Tablet) -> Result<bool, Tablet> {
        self.change(|map| {
            let local = map.entry(table.id()).or_insert_with(|| LocalTable {
                table,
                tablets: Vec::new(),
            });
            if let Some(known) = local.tablets.iter_mut().find(|t| t.range == tablet.range) {
                known.phase = tablet.phase;
                return Ok(false);
            }
            if let Some(other) = local
                .tablets
                .iter()
                .find(|t| t.range.overlaps(&tablet.range))
            {
                return Err(*other);
            }
            let at = local
                .tablets
                .partition_point(|t| t.range.first < tablet.range.first);
            local.tablets.insert(at, tablet);
            Ok(true)
        })
    }

    /// Serves the tablets that lie in `range`: it may have been cut since it was added. Gives false
    /// when there are none.
    pub fn serve_within(&self, table: TableId, range: HashRange) -> bool {
        self.change(|map| {
            let Some(local) = map.get_mut(&table) else {
                return false;
            };
            let inside = |t: &&mut Tablet| range.contains(t.range.first);
            let mut found = false;
            for tablet in local.tablets.iter_mut().filter(inside) {
                tablet.phase = TabletPhase::Serving;
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

    /// Takes all tablets of a table away.
    pub fn remove_table(&self, table: TableId) -> Option<LocalTable> {
        self.change(|map| map.remove(&table))
    }

    /// Cuts the tablet that contains `at` so that a tablet begins there. Gives false when there is
    /// no such tablet; a tablet that begins there already is left as it is.
    pub fn split(&self, table: TableId, at: KeyHash) -> bool {
        self.change(|map| {
            let Some(local) = map.get_mut(&table) else {
                return false;
            };
            let Some(index) = local.tablets.iter().position(|t| t.range.contains(at)) else {
                return false;
            };
            let whole = local.tablets[index];
            if whole.range.first < at {
                local.tablets[index].range = HashRange::new(whole.range.first, KeyHash(at.0 - 1));
                let upper = Tablet {
                    range: HashRange::new(at, whole.range.last),
                    ..whole
                };
                local.tablets.insert(index + 1, upper);
            }
            true
        })
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
            .filter(|(_, t)| t.phase == TabletPhase::Serving)
            .map(|(table, t)| (table, t.range))
            .collect()
    }

    /// Number of tablets that are served.
    #[must_use]
    pub fn serving(&self) -> u64 {
        let map = self.snapshot();
        let tablets = map.values().flat_map(|t| &t.tablets);
        tablets.filter(|t| t.phase == TabletPhase::Serving).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_log::LogOptions;
    use pluvio_store::{Engine, EngineOptions};
    use pluvio_units::Size;

    #[test]
    fn a_recovered_tablet_that_was_cut_meanwhile_is_served_in_all_its_parts() {
        let log = LogOptions::new(Size::mib(32));
        let store = Engine::open(EngineOptions { log }).unwrap();
        let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
        let map = TabletMap::default();
        let tablet = Tablet {
            range: HashRange::ALL,
            phase: TabletPhase::Recovering,
        };
        map.add(table, tablet).unwrap();
        assert!(map.split(TableId(1), KeyHash(1 << 63)));
        assert_eq!(map.serving(), 0);
        assert!(map.serve_within(TableId(1), HashRange::ALL));
        assert_eq!(map.serving(), 2);
        map.remove_table(TableId(1));
        assert!(!map.serve_within(TableId(1), HashRange::ALL));
    }
}
