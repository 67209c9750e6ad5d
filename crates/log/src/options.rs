//! Options of a log space.

use crate::append::graves::Tombstones;
use crate::durable::Durability;
use crate::error::OpenError;
use crate::geometry::Geometry;
use pluvio_memory::{CopyMethod, EpochClock, GraceClock, NodeSet};
use pluvio_units::{ClusterId, LogId, SEGLET_BYTES, ServerId, Size};

/// Epoch slots unless the options say otherwise.
const EPOCH_SLOTS: u32 = 512;

/// The reserves of added cleaners and of the others take a 32nd of the memory at most. So live
/// objects may take about as much as with one cleaner.
const CLEANERS_SHARE: usize = 32;

/// Most log memory: seglets are counted in 32 bits, and with the unused first one they still fit a
/// region.
pub const LOG_MEMORY_MAX: Size = Size(u32::MAX as u64 * SEGLET_BYTES as u64);

/// How a log space is made.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The cluster; written to every segment.
    pub cluster: ClusterId,
    /// The master; written to every segment.
    pub server: ServerId,
    /// Log memory. At least 32 MiB for one log; [`OpenError::TooSmall`] tells the need. At most
    /// [`LOG_MEMORY_MAX`].
    pub memory: Size,
    /// The time at which the log begins, in seconds of the cluster. Later times are told by appends
    /// and by [`LogSpace::set_time`](crate::LogSpace::set_time).
    pub now_s: u32,
    /// Number of logs with a head from the beginning: one per core.
    pub logs: u16,
    /// Logs behind these, which have no head until [`LogSpace::open_log`] opens one. Their reserves
    /// are taken from the beginning.
    ///
    /// [`LogSpace::open_log`]: crate::LogSpace::open_log
    pub spare_logs: u16,
    /// Whether appends wait for replicas.
    pub durability: Durability,
    /// Live objects may take this share of the memory, in percent: 1 to 98. They never take more
    /// than the reserves leave (some 93 % of 256 MiB, 95 % of a gigabyte). New objects are refused
    /// above it. Overwrites that do not grow an object and deletes are not, nor are objects of a
    /// recovery that are known to live ([`AppendClass::Replay`](crate::AppendClass::Replay)). Where
    /// those have filled the memory, overwrites are refused too, until something is deleted or
    /// moves away.
    pub live_percent_max: u32,
    /// Seglets of a full segment, 40 to 128. `None`: a 256th of the memory within these borders.
    pub segment_seglets: Option<usize>,
    /// The disk expansion factor [LSM-DRAM §5.2] in percent: the log on disk may take this many
    /// times the log memory. 100 to 10 000. More makes combined cleaning cheaper, and recovery read
    /// more. Means nothing without replicas.
    pub disk_expansion_percent: u32,
    /// What keeps overwritten objects dead on disk. Means nothing without replicas.
    pub tombstones: Tombstones,
    /// Passes of the cleaner that may go on at once, each stepped by a thread; each gets a reserve
    /// of its own for survivors. 1 to 64.
    pub cleaners: u16,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Values of objects may be overwritten where they lie
    /// ([`Overwritable::overwrite`](crate::Overwritable::overwrite)). Only without replicas.
    pub in_place: bool,
    /// Threads that can be inside the log at once without sharing an epoch slot.
    pub epoch_slots: u32,
    /// What reclaim epochs are counted with.
    pub epoch_clock: EpochClock,
    /// Other processes may map the memory to read it ([`LogSpace::for_readers`]). The clock says
    /// how long retired memory has rested. Not with `in_place`; only with the usual epoch clock.
    ///
    /// [`LogSpace::for_readers`]: crate::LogSpace::for_readers
    pub readers: Option<GraceClock>,
    /// How entries are copied into log memory, by appends and by the cleaner.
    pub copy: CopyMethod,
    /// How the memory is divided among memory nodes; none: it is not.
    pub parts: Vec<MemoryPart>,
    /// Memory nodes that the tables beside the log memory come from in turn: the seglet table and
    /// the dead bits. With fewer than two they come from the node of the thread that touches them
    /// first.
    pub table_nodes: NodeSet,
}

/// A part of the log memory: for the logs of one memory node, by whose number the parts share the
/// memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryPart {
    /// The node of the machine that its pages are to come from; `None`: from wherever they come.
    pub node: Option<u32>,
    /// The logs that append there, as long as there are seglets. Each log has one part.
    pub logs: Vec<LogId>,
}

impl LogOptions {
    /// Usual values for a memory of this size: one log, no replicas.
    #[must_use]
    pub fn new(memory: Size) -> Self {
        Self {
            cluster: ClusterId(0),
            server: ServerId(0),
            memory,
            now_s: 0,
            logs: 1,
            spare_logs: 0,
            durability: Durability::Volatile,
            live_percent_max: 90,
            segment_seglets: None,
            disk_expansion_percent: 200,
            tombstones: Tombstones::default(),
            cleaners: 1,
            huge_pages: false,
            in_place: false,
            epoch_slots: EPOCH_SLOTS,
            epoch_clock: EpochClock::Counter,
            readers: None,
            copy: CopyMethod::Library,
            parts: Vec::new(),
            table_nodes: NodeSet::EMPTY,
        }
    }
}

impl LogOptions {
    /// All logs that there may be.
    pub(crate) fn all_logs(&self) -> u16 {
        self.logs.saturating_add(self.spare_logs)
    }

    /// As many cleaners as `wanted`, or as the memory has room for: their reserves take a 32nd of
    /// it at most. In any case as many as these options have.
    #[must_use]
    pub fn cleaners_up_to(&self, wanted: u16) -> u16 {
        let fits = |&cleaners: &u16| {
            let with = Self {
                cleaners,
                ..self.clone()
            };
            let geometry = Geometry::of(&with);
            geometry.is_ok_and(|g| g.reserves.cleaner <= g.seglets / CLEANERS_SHARE)
        };
        let more = (self.cleaners.saturating_add(1)..=wanted).rev().find(fits);
        more.unwrap_or(self.cleaners)
    }

    /// The least memory that is enough for the other options, if these make sense.
    #[must_use]
    pub fn memory_min(&self) -> Size {
        // The need grows with the memory, since segments do, but slower than it.
        let mut memory = 1 << 20;
        loop {
            let with = Self {
                memory: Size(memory),
                ..self.clone()
            };
            match Geometry::of(&with) {
                Err(OpenError::TooSmall { minimum, .. }) => memory = minimum,
                Ok(_) | Err(_) => return Size(memory),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cleaners_are_made_where_their_reserves_are_a_small_part_of_the_memory() {
        let cleaners = |mib, logs, wanted| {
            let options = LogOptions {
                logs,
                ..LogOptions::new(Size::mib(mib))
            };
            options.cleaners_up_to(wanted)
        };
        assert_eq!(cleaners(64, 2, 2), 1, "a segment is a 26th of it");
        assert_eq!(cleaners(256, 2, 2), 2);
        assert_eq!(cleaners(256, 8, 8), 3);
        assert_eq!(cleaners(1 << 10, 8, 8), 7, "a segment is a 256th of it");
        assert_eq!(cleaners(64 << 10, 64, 64), 64);
        assert_eq!(cleaners(64 << 10, 64, 65), 64, "there are no more");
        assert_eq!(cleaners(64 << 10, 64, 0), 1);
        // The heads have taken what the second one would need.
        let mut options = LogOptions::new(Size::mib(170));
        assert_eq!(options.cleaners_up_to(2), 2);
        while Geometry::of(&options).is_ok() {
            options.logs += 1;
        }
        options.logs -= 1;
        assert_eq!(options.cleaners_up_to(2), 1, "{} logs", options.logs);
        // As many as the options have, however small the memory is.
        let given = LogOptions {
            cleaners: 4,
            ..LogOptions::new(Size::mib(64))
        };
        assert_eq!(given.cleaners_up_to(8), 4);
    }
}
