//! Walking a table, some hundred objects at a time.

use crate::embedded::table::Table;
use crate::scan::ScanItem;
use pluvio_units::{HashRange, KeyHash};

/// Objects and bytes fetched at a time: a reclaim guard is held for one index bucket only, and this
/// bounds the iterator's memory.
const OBJECTS_PER_FETCH: usize = 256;
const BYTES_PER_FETCH: usize = 1 << 20;

/// See [`Table::iter`].
pub struct Iter {
    table: Table,
    /// What is left of the hashes.
    left: Option<HashRange>,
    fetched: std::vec::IntoIter<ScanItem>,
}

impl Iter {
    pub(crate) fn new(table: Table) -> Self {
        Self {
            table,
            left: Some(HashRange::ALL),
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
            let range = self.left?;
            let engine = &self.table.shared.engine;
            let scan = engine.scan(
                &self.table.table,
                range,
                OBJECTS_PER_FETCH,
                BYTES_PER_FETCH,
                true,
            );
            let scan = scan.into_pending();
            let next = scan.last.0.checked_add(1).map(KeyHash);
            self.left = next
                .filter(|next| *next <= range.last)
                .map(|next| HashRange::new(next, range.last));
            self.fetched = scan.items.into_iter();
        }
    }
}

impl core::fmt::Debug for Iter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Iter")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
