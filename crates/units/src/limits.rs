//! Limits of the data model, the geometry of the log, and the sizes of recovery partitions.

/// Longest key in bytes (64 KiB).
pub const KEY_MAX: usize = 64 << 10;
/// Longest value in bytes (1 MiB).
pub const VALUE_MAX: usize = 1 << 20;
/// Longest table name in bytes.
pub const TABLE_NAME_MAX: usize = 255;
/// Bytes of a seglet, the unit in which log memory is given out [LSM-DRAM §3.1].
pub const SEGLET_BYTES: usize = 64 << 10;
/// Bytes of a full segment, the unit of replication and cleaning [RAMCloud §4.1].
pub const SEGMENT_BYTES: usize = 8 << 20;
/// Seglets of a full segment.
pub const SEGLETS_PER_SEGMENT: usize = SEGMENT_BYTES / SEGLET_BYTES;
/// Entries up to this many bytes never cross a seglet boundary, so that the common read is one
/// contiguous slice. Padding then wastes at most 1/128 of a seglet, and 0.1 % with objects of 100
/// bytes. Some longer entries cross a boundary, and their readers put them together: 1.6 % of the
/// entries of 1 KiB.
pub const WHOLE_ENTRY_MAX: usize = SEGLET_BYTES / 128;
/// The same limit where values change in place, because an entry that crosses a boundary cannot. It
/// is also the longest padding.
pub const SMALL_ENTRY_MAX: usize = SEGLET_BYTES / 16;
/// Longest entry with its header: the longest key and value, and room for the header.
pub const ENTRY_MAX: usize = KEY_MAX + VALUE_MAX + 64;
/// Most logs (cores) of one master. Bounds the size of a digest, and the load of a recovery.
pub const LOGS_PER_MASTER_MAX: u16 = 256;
/// Logs of a master for durability classes of tables, beside those of its cores.
pub const CLASS_LOGS: u16 = 2;
/// Most logs of a master's cores: cores beyond these share.
pub const CORE_LOGS_MAX: u16 = LOGS_PER_MASTER_MAX - CLASS_LOGS;
/// Most operations that a client numbers in one piece and acknowledges together: the items of one
/// part of a batch. Servers admit this many of the oldest operations of each client beyond their
/// usual limit. Otherwise a batch could wait for its own end (COMP-4 in crate `store`).
pub const BATCH_UNDER_WAY_MAX: usize = 4 << 10;

/// Bytes of a recovery partition, at most: one recovery master replays them in about a second
/// [RAMCloud §7.5].
pub const PARTITION_BYTES_MAX: u64 = 500_000_000;
/// Entries of a recovery partition, at most. See [`PARTITION_BYTES_MAX`].
pub const PARTITION_ENTRIES_MAX: u64 = 2_000_000;
/// Factor by which a recovery partition may exceed the usual size, where there are fewer recovery
/// masters than partitions. It bounds the work that is lost when a recovery master fails: 4 GB, in
/// an attempt that may take ten minutes.
pub const PARTITION_CROWD_MAX: u64 = 8;
/// Less data than this is not worth another recovery master and another tablet: its replay takes
/// some milliseconds. The limit also bounds the number of tablets into which successive recoveries
/// cut data.
pub const PARTITION_BYTES_MIN: u64 = 1 << 20;

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(SEGLET_BYTES));
// The largest atomic append is an object and the tombstone of its predecessor.
const _: () = assert!(2 * ENTRY_MAX < SEGMENT_BYTES / 2);
