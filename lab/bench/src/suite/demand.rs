//! The part of our log's memory that objects need, computed from their layout
//! (`docs/log-format.md`).

use super::KEY;
use pluvio_format::{Encoded, Graves, Object, ObjectState};
use pluvio_units::{ObjectVersion, SEGLET_BYTES, TableId, WHOLE_ENTRY_MAX};

/// Bytes of the smallest segment that a log has: 40 seglets. Larger ones leave less of themselves
/// unused.
const SEGMENT_BYTES: f64 = (40 * SEGLET_BYTES) as f64;
/// The need of a small store's heads and reserves: no store of an experiment gets less memory.
pub(super) const MEMORY_LEAST: u64 = 64 << 20;

/// What the live objects of a moment need.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Demand {
    /// Bytes of their entries.
    pub(super) entries: f64,
    /// The same with what must stay unused between them: small entries do not cross seglets'
    /// borders.
    pub(super) with_padding: f64,
}

impl Demand {
    /// The need of `values` bytes of values, whose sizes lie evenly between these two. An object
    /// that takes the place of a deleted one gets a later version. With `turned` the version takes
    /// two bytes, as it does between 128 and 16383.
    pub(super) fn of(values: u64, (least, largest): (u32, u32), turned: bool) -> Self {
        let version = ObjectVersion(if turned { 128 } else { 1 });
        let mean = least.midpoint(largest);
        let objects = values as f64 / f64::from(mean);
        // The length of the length makes steps: the mean size is near enough.
        let entries = objects * entry_bytes(mean, version);
        let padding = padding(entry_bytes(least, version), entry_bytes(largest, version));
        Self {
            entries,
            with_padding: entries / (1.0 - padding),
        }
    }

    /// The memory of which they need this part; at least what a store needs to open. The index is
    /// not in it.
    pub(super) fn memory(self, utilization: f64) -> u64 {
        ((self.with_padding / utilization) as u64).max(MEMORY_LEAST)
    }
}

/// Bytes of an object's entry in the log: in a table whose number takes one byte, with an
/// experiment's key.
fn entry_bytes(value: u32, version: ObjectVersion) -> f64 {
    let value = vec![0; value as usize];
    let object = Object {
        table: TableId(1),
        version,
        timestamp_s: 0,
        graves: Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key: &[0; KEY as usize],
        value: &value,
    };
    Encoded::object_len(&object) as f64
}

/// The part of the memory that stays unused where entries of these lengths lie.
fn padding(least: f64, largest: f64) -> f64 {
    let seglet = SEGLET_BYTES as f64;
    // The rest of a place when the next entry does not fit: half an entry, longer ones more often
    // than short ones.
    let mean = (least + largest) / 2.0;
    let left = (mean + (largest - least).powi(2) / (12.0 * mean)) / 2.0;
    match largest <= WHOLE_ENTRY_MAX as f64 {
        true if least == largest => seglet % least / seglet,
        true => left / seglet,
        // A segment ends with a seglet that is filled in part.
        false => left.min(seglet / 2.0) / SEGMENT_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_versions_and_padding_are_counted() {
        // 21 bytes beside a value of 100: kind, length, checksum, graves and table, version, time,
        // length of the key, key.
        let new = Demand::of(100 * 1000, (100, 100), false);
        assert!((new.entries - 121_000.0).abs() < 1e-6, "{new:?}");
        assert!(new.with_padding < new.entries * 1.002, "{new:?}");
        // The version takes a byte more, and the length from 128 bytes on.
        let turned = Demand::of(100 * 1000, (100, 100), true);
        assert!((turned.entries - 122_000.0).abs() < 1e-6, "{turned:?}");
        let longer = Demand::of(130 * 1000, (130, 130), true);
        assert!((longer.entries - 153_000.0).abs() < 1e-6, "{longer:?}");
        // Of 64 KiB, 203 entries of 322 bytes leave 170 unused.
        let short = Demand::of(300 * 1000, (300, 300), false);
        let unused = short.with_padding / short.entries - 1.0;
        assert!((unused - 170.0 / 65_366.0).abs() < 1e-6, "{unused}");
        // Longer ones cross the borders of seglets.
        let kib = Demand::of(1024 * 1000, (1024, 1024), false);
        let unused = kib.with_padding / kib.entries - 1.0;
        assert!((0.0..0.001).contains(&unused), "{unused}");
        let large = Demand::of(500 << 20, (500 << 10, 500 << 10), false);
        let unused = large.with_padding / large.entries - 1.0;
        assert!((0.012..0.013).contains(&unused), "{unused}");
    }

    #[test]
    fn memory_is_what_the_utilization_asks_for() {
        let demand = Demand::of(80 << 20, (100, 150), true);
        let memory = demand.memory(0.9) as f64;
        assert!((demand.with_padding / memory - 0.9).abs() < 1e-6);
        assert_eq!(
            Demand::of(1 << 20, (100, 150), true).memory(0.9),
            MEMORY_LEAST
        );
    }
}
