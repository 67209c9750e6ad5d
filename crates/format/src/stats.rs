//! Table statistics: how much each table holds, for cutting recovery partitions.

use crate::varint::{Fields, push_varint};
use pluvio_units::TableId;

/// Live data of one table on one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableStat {
    /// The table.
    pub table: TableId,
    /// Bytes of its live objects in the log, headers included.
    pub live_bytes: u64,
    /// Number of its live objects.
    pub live_entries: u64,
}

/// Live data of all tables of a master when a head was opened [RAMCloud §7.4]. It stands in every
/// head of every log and is always about the whole master: of several, the one in the segment with
/// the largest id is the newest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableStats {
    /// The largest tables, one by one, in ascending order of their ids.
    pub exact: Vec<TableStat>,
    /// How many tables are summed up in the two fields below.
    pub other_tables: u64,
    /// Live bytes of the tables that are not in `exact`.
    pub other_bytes: u64,
    /// Live objects of the tables that are not in `exact`.
    pub other_entries: u64,
}

impl TableStats {
    /// Most tables described one by one: keeps the record below 8 KiB (256 × at most 30 bytes), so
    /// that it is no burden for a head. A master with more tables has mostly small ones, and those
    /// need no partition of their own.
    pub const EXACT_MAX: usize = 256;

    /// Sorts the largest tables into `exact` and sums up the rest.
    #[must_use]
    pub fn of(mut tables: Vec<TableStat>) -> Self {
        tables.sort_by_key(|t| (core::cmp::Reverse(t.live_bytes), t.table));
        let rest = tables.split_off(tables.len().min(Self::EXACT_MAX));
        tables.sort_by_key(|t| t.table);
        Self {
            exact: tables,
            other_tables: rest.len() as u64,
            other_bytes: rest.iter().map(|t| t.live_bytes).sum(),
            other_entries: rest.iter().map(|t| t.live_entries).sum(),
        }
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.exact.len() <= Self::EXACT_MAX
            && self
                .exact
                .windows(2)
                .all(|pair| pair[0].table < pair[1].table)
    }

    pub(crate) fn encode_body(&self, to: &mut Vec<u8>) {
        push_varint(to, self.exact.len() as u64);
        for stat in &self.exact {
            push_varint(to, stat.table.0);
            push_varint(to, stat.live_bytes);
            push_varint(to, stat.live_entries);
        }
        push_varint(to, self.other_tables);
        push_varint(to, self.other_bytes);
        push_varint(to, self.other_entries);
    }

    pub(crate) fn decode_body(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(body);
        let count = usize::try_from(fields.varint()?).ok()?;
        if count > Self::EXACT_MAX {
            return None;
        }
        let mut exact = Vec::with_capacity(count);
        for _ in 0..count {
            exact.push(TableStat {
                table: TableId(fields.varint()?),
                live_bytes: fields.varint()?,
                live_entries: fields.varint()?,
            });
        }
        let stats = Self {
            exact,
            other_tables: fields.varint()?,
            other_bytes: fields.varint()?,
            other_entries: fields.varint()?,
        };
        fields.end()?;
        stats.is_ordered().then_some(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_largest_tables_are_told_one_by_one() {
        let tables: Vec<_> = (0..300u64)
            .map(|i| TableStat {
                table: TableId(300 - i),
                live_bytes: i * 10,
                live_entries: i,
            })
            .collect();
        let stats = TableStats::of(tables);
        assert_eq!(stats.exact.len(), TableStats::EXACT_MAX);
        assert_eq!(stats.other_tables, 44);
        assert_eq!(stats.other_entries, (0..44).sum::<u64>());
        assert!(stats.is_ordered());
        assert!(stats.exact.iter().all(|t| t.live_entries >= 44));
    }
}
