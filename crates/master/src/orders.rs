//! What the coordinator has said of tables so far, so that what comes late is known (MASTER-6).

use pluvio_units::{MetadataVersion, TableId};
use pluvio_wire::{FatalKind, Refusal};
use std::collections::BTreeMap;

/// Tables remembered: twice as many as a cluster has, so that a dropped one stays known for long.
const TABLES_MAX: usize = 8192;

/// The newest that was said of one table.
#[derive(Clone, Copy)]
struct Newest {
    version: MetadataVersion,
    is_dropped: bool,
}

/// The newest that was said of each table. Whoever does what was said does it under the same lock.
#[derive(Default)]
pub(crate) struct Orders {
    tables: BTreeMap<TableId, Newest>,
    /// Of the tables that are not remembered: nothing newer than this was said of any.
    forgotten: MetadataVersion,
}

impl Orders {
    /// Notes that this was said of a table that is there. Of what has no number (0) only that its
    /// table is dropped can be known.
    ///
    /// # Errors
    /// `Stale` when something newer was said, the table was dropped, or neither can be told because
    /// it was too long ago. Whoever leads reads the metadata again and says what they say then, if
    /// anything.
    pub(crate) fn admit(
        &mut self,
        table: TableId,
        version: MetadataVersion,
    ) -> Result<(), Refusal> {
        let is_numbered = version != MetadataVersion::default();
        let is_late = match self.tables.get(&table) {
            Some(newest) => newest.is_dropped || (is_numbered && version < newest.version),
            None => is_numbered && version < self.forgotten,
        };
        if is_late {
            let message = format!(
                "table {table} was dropped, or changed after version {version} of the metadata"
            );
            return Err(Refusal::fatal(FatalKind::Stale, message));
        }
        if is_numbered {
            let newest = Newest {
                version,
                is_dropped: false,
            };
            self.note(table, newest);
        }
        Ok(())
    }

    /// Notes that a table is dropped. That is for ever, so it never comes too late.
    pub(crate) fn dropped(&mut self, table: TableId, version: MetadataVersion) {
        let before = self.tables.get(&table).map(|newest| newest.version);
        let newest = Newest {
            version: before.map_or(version, |before| before.max(version)),
            is_dropped: true,
        };
        self.note(table, newest);
    }

    fn note(&mut self, table: TableId, newest: Newest) {
        self.tables.insert(table, newest);
        if self.tables.len() > TABLES_MAX {
            let oldest = self.tables.iter().min_by_key(|(_, newest)| newest.version);
            let (table, version) = oldest
                .map(|(t, n)| (*t, n.version))
                .expect("there are many");
            self.tables.remove(&table);
            self.forgotten = self.forgotten.max(version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(1);

    fn version(number: u64) -> MetadataVersion {
        MetadataVersion(number)
    }

    // shows: COORD-12, MASTER-6
    #[test]
    fn what_is_older_is_refused_and_what_is_repeated_is_not() {
        let mut orders = Orders::default();
        orders.admit(TABLE, version(5)).unwrap();
        orders.admit(TABLE, version(5)).unwrap();
        orders.admit(TABLE, version(7)).unwrap();
        let late = orders.admit(TABLE, version(6)).unwrap_err();
        assert_eq!(late.fatal_kind(), Some(FatalKind::Stale));
        orders.admit(TableId(2), version(1)).unwrap();
    }

    // shows: COORD-12, MASTER-6
    #[test]
    fn what_has_no_number_is_never_late_but_for_a_dropped_table() {
        let mut orders = Orders::default();
        orders.admit(TABLE, version(5)).unwrap();
        orders.admit(TABLE, version(0)).unwrap();
        orders.admit(TABLE, version(4)).unwrap_err();
        orders.dropped(TABLE, version(0));
        orders.admit(TABLE, version(0)).unwrap_err();
    }

    // shows: COORD-12, MASTER-6
    #[test]
    fn nothing_is_taken_of_a_dropped_table() {
        let mut orders = Orders::default();
        orders.admit(TABLE, version(5)).unwrap();
        orders.dropped(TABLE, version(4));
        orders.admit(TABLE, version(9)).unwrap_err();
        // It was never here.
        orders.dropped(TableId(2), version(3));
        orders.admit(TableId(2), version(9)).unwrap_err();
    }

    // shows: COORD-12, MASTER-6
    #[test]
    fn of_what_is_forgotten_only_what_is_newer_is_taken() {
        let mut orders = Orders::default();
        let tables = TABLES_MAX as u64;
        for id in 1..=tables + 3 {
            orders.dropped(TableId(id), version(100 + id));
        }
        assert_eq!(orders.tables.len(), TABLES_MAX);
        orders.admit(TableId(1), version(102)).unwrap_err();
        orders.admit(TableId(tables + 9), version(102)).unwrap_err();
        orders.admit(TableId(tables + 9), version(103)).unwrap();
        orders.admit(TableId(4), version(9)).unwrap_err();
    }
}
