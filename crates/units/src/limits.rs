//! Limits of the data model, the geometry of the log, and the sizes of recovery partitions.

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
/// contiguous slice. Padding then wastes at most 1/128 of a seglet; with 100-byte objects 0.1 %. Of
/// longer ones some cross, 1.6 % of those of 1 KiB, and are put together by whoever reads them.
pub const WHOLE_ENTRY_MAX: usize = SEGLET_BYTES / 128;
/// The same where values change where they lie, which those that cross a boundary cannot. No
/// padding is longer.
pub const SMALL_ENTRY_MAX: usize = SEGLET_BYTES / 16;
/// Longest entry with its header: the longest key and value, and room for the header.
pub const ENTRY_MAX: usize = KEY_MAX + VALUE_MAX + 64;
/// Most logs (cores) of one master. Bounds what a digest and a recovery have to carry.
pub const LOGS_PER_MASTER_MAX: u16 = 256;
/// Most operations that a client numbers in one piece and acknowledges together: the items of one
/// part of a batch. Servers admit the oldest so many of each client beyond what they keep of one
/// otherwise, or a batch could wait for its own end (COMP-4 in crate `store`).
pub const BATCH_UNDER_WAY_MAX: usize = 4 << 10;

/// Bytes of a recovery partition, at most: what one recovery master can replay in about a second
/// (003 §7.5).
pub const PARTITION_BYTES_MAX: u64 = 500_000_000;
/// Entries of a recovery partition, at most. See [`PARTITION_BYTES_MAX`].
pub const PARTITION_ENTRIES_MAX: u64 = 2_000_000;
/// How many times as much a recovery partition holds at most where there are fewer recovery masters
/// than partitions of the usual size. It bounds what is done in vain when a recovery master fails:
/// 4 GB, in an attempt that may take ten minutes.
pub const PARTITION_CROWD_MAX: u64 = 8;
/// Less than this is not worth another recovery master, and another tablet: replaying it takes some
/// milliseconds. It also bounds into how many tablets data is cut by recoveries, one after the
/// other.
pub const PARTITION_BYTES_MIN: u64 = 1 << 20;

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(SEGLET_BYTES));
// The largest atomic append is an object and the tombstone of its predecessor.
const _: () = assert!(2 * ENTRY_MAX < SEGMENT_BYTES / 2);
