//! Walking a table, some hundred objects at a time.

use crate::embedded::table::Table;
use crate::scan::{ScanItem, ScanOptions};
use pluvio_units::{HashRange, Rank};

/// Objects and bytes fetched at a time: a reclaim guard is held for one index bucket only, and this
/// bounds the iterator's memory.
const OBJECTS_PER_FETCH: usize = 256;
const BYTES_PER_FETCH: usize = 1 << 20;

/// See [`Table::iter`].
pub struct Iter {
    table: Table,
    /// The next rank.
    next: Option<Rank>,
    fetched: std::vec::IntoIter<ScanItem>,
}

impl Iter {
    pub(crate) fn new(table: Table) -> Self {
        Self {
            table,
            next: Some(Rank(0)),
            fetched: Vec::new().into_iter(),
        }
    }
}

impl Iterator for Iter {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.fetched.next() {
                return Some((item.key, item.value));
            }
            let from = self.next?;
            let engine = &self.table.shared.engine;
            let options = ScanOptions {
                from,
                items: OBJECTS_PER_FETCH,
                bytes: BYTES_PER_FETCH,
                values: true,
            };
            let scan = engine.scan(&self.table.table, HashRange::ALL, options);
            let scan = scan.into_pending();
            self.next = (!scan.is_end).then(|| Rank(scan.last.0 + 1));
            self.fetched = scan.items.into_iter();
        }
    }
}

impl core::fmt::Debug for Iter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Iter")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
