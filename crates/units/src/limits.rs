//! Limits of the data model and the geometry of the log.

/// Longest key in bytes (64 KiB).
pub const KEY_MAX: usize = 64 << 10;
/// Longest value in bytes (1 MiB).
pub const VALUE_MAX: usize = 1 << 20;
/// Longest table name in bytes.
pub const TABLE_NAME_MAX: usize = 255;
/// Bytes of a seglet, the unit in which log memory is given out (000 §3.1).
pub const SEGLET_BYTES: usize = 64 << 10;
/// Bytes of a full segment, the unit of replication and cleaning (003 §4.1).
pub const SEGMENT_BYTES: usize = 8 << 20;
/// Seglets of a full segment.
pub const SEGLETS_PER_SEGMENT: usize = SEGMENT_BYTES / SEGLET_BYTES;
/// Entries up to this many bytes never cross a seglet boundary, so that the common read is one
/// contiguous slice. Padding then wastes at most 1/16 of a seglet; with 100-byte objects 0.1 %.
pub const SMALL_ENTRY_MAX: usize = SEGLET_BYTES / 16;
/// Longest entry with its header: the longest key and value, and room for the header.
pub const ENTRY_MAX: usize = KEY_MAX + VALUE_MAX + 64;
/// Most logs (cores) of one master. Bounds what a digest and a recovery have to carry.
pub const LOGS_PER_MASTER_MAX: u16 = 256;

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(SEGLET_BYTES));
// The largest atomic append is an object and the tombstone of its predecessor.
const _: () = assert!(2 * ENTRY_MAX < SEGMENT_BYTES / 2);
