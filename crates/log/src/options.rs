//! Options of a log space and the numbers that follow from them.

use crate::dead::Tombstones;
use crate::durable::Durability;
use crate::error::OpenError;
use pluvio_memory::{CopyMethod, EpochClock};
use pluvio_units::{
    ClusterId, ENTRY_MAX, LOGS_PER_MASTER_MAX, LogId, SEGLET_BYTES, SEGLETS_PER_SEGMENT, ServerId,
    Size,
};

/// Fewest seglets of a segment (2.5 MiB): the largest overwrite (object and tombstone, 1.2 MiB)
/// still fits beside the head's own entries, and at the end of a segment less than half is left
/// unused.
const SEGMENT_SEGLETS_MIN: usize = 40;
const _: () = assert!(SEGMENT_SEGLETS_MIN * SEGLET_BYTES > 2 * ENTRY_MAX);
/// A memory is cut into about this many segments, so that the cleaner's reserve (at least one
/// segment) and what its passes hold stay small against the whole: memory that is missing for dead
/// data makes every copy dearer. More segments would make digests and the choice among them longer.
const SEGMENTS_WANTED: usize = 256;
/// Segments' worth of memory kept for each cleaner. One is enough for progress; what is kept back
/// here is missing for dead data, which costs more copying than larger passes save.
const CLEANER_RESERVE_SEGMENTS: usize = 1;
/// A head with so many seglets of dead data is closed when nothing else can be cleaned.
pub(crate) const HEAD_DEAD_SEGLETS: usize = 3;
/// Seglets of 2 MiB.
const SEGLETS_PER_HUGE_PAGE: usize = (2 << 20) / SEGLET_BYTES;
/// Epoch slots unless the options say otherwise.
const EPOCH_SLOTS: u32 = 512;

/// Largest share of live objects in percent: 2 % is the least that is left for dead data (000 §7).
const LIVE_PERCENT_LIMIT: u32 = 98;

/// Largest disk expansion factor in percent: a table has a row for each segment that there may be.
const DISK_EXPANSION_LIMIT: u32 = 10_000;

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
    /// Number of logs: one per core.
    pub logs: u16,
    /// Whether appends wait for replicas.
    pub durability: Durability,
    /// Live objects may take this share of the memory, in percent; 1 to 98, and never more than the
    /// reserves leave (some 93 % of 256 MiB, 95 % of a gigabyte). New objects are refused above it.
    /// Overwrites that do not grow an object and deletes are not, nor is what a recovery brings
    /// that is known to live ([`AppendClass::Replay`](crate::AppendClass::Replay)): where that has
    /// filled the memory, overwrites are refused too, until something is deleted or moves away.
    pub live_percent_max: u32,
    /// Seglets of a full segment, 40 to 128. `None`: a 256th of the memory within these borders.
    pub segment_seglets: Option<usize>,
    /// The disk expansion factor (000 §5.2) in percent: the log on disk may take this many times
    /// the log memory. 100 to 10 000. More makes combined cleaning cheaper, and recovery read more.
    /// Means nothing without replicas.
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
    /// How entries are copied into log memory, by appends and by the cleaner.
    pub copy: CopyMethod,
    /// How the memory is divided among memory nodes; none: it is not.
    pub parts: Vec<MemoryPart>,
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
            copy: CopyMethod::Library,
            parts: Vec::new(),
        }
    }
}

impl LogOptions {
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

/// Numbers that follow from the options. Pools are counted in seglets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// All seglets.
    pub seglets: usize,
    /// Seglets of a full segment.
    pub segment_seglets: usize,
    /// Only for survivors and compactions: a segment for each cleaner, so that from no memory at
    /// all each can clean a segment (CLEAN-4).
    pub cleaner_reserve: usize,
    /// Only for heads that publish a digest: two for each log (000 §7).
    pub emergency_reserve: usize,
    /// Left over by objects for tombstones, so that deletes work when objects are refused.
    pub delete_reserve: usize,
    /// Left over by what makes the live data more, beside `delete_reserve`: room for dead data,
    /// without which nothing could be overwritten, because no segment would have a seglet to give
    /// (000 §7: 2 %).
    pub overwrite_reserve: usize,
    /// Most segments, in the log or on their way in or out.
    pub slots: usize,
    /// Of these, not for heads opened by appends: for survivors and emergency heads.
    pub slots_reserve: usize,
    /// Of the reserve, not for survivors either: for the heads of the digests by which segments
    /// leave and give their slots back, two for each log.
    pub slots_of_digests: usize,
    /// Most bytes of the log on disk before appends are refused; `u64::MAX` when there is no disk.
    pub disk_bytes_max: u64,
    /// Most bytes of live objects.
    pub live_bytes_max: u64,
    /// Most bytes of them when it is graves that make them more: what there are seglets for beside
    /// the reserves.
    pub live_bytes_with_graves_max: u64,
    /// Epoch slots.
    pub epoch_slots: u32,
}

/// Seglets of each part of the memory: by its number of logs, and so that a huge page, if there are
/// many, is of one part.
pub(crate) fn part_seglets(options: &LogOptions, seglets: usize) -> Vec<u32> {
    let count = |n: usize| u32::try_from(n).expect("seglets are counted in 32 bits");
    let parts = &options.parts;
    let granule = if seglets / parts.len().max(1) >= 4 * SEGLETS_PER_HUGE_PAGE {
        SEGLETS_PER_HUGE_PAGE
    } else {
        1
    };
    let mut logs = 0;
    let mut first = 0;
    let len = |(number, part): (usize, &MemoryPart)| {
        logs += part.logs.len();
        let end = if number + 1 == parts.len() {
            seglets
        } else {
            // The first seglet lies at the second one's place (`memory`).
            (seglets * logs / usize::from(options.logs) + 1) / granule * granule - 1
        };
        let len = end - first;
        first = end;
        count(len)
    };
    let lens: Vec<u32> = parts.iter().enumerate().map(len).collect();
    if lens.is_empty() {
        return vec![count(seglets)];
    }
    lens
}

impl Geometry {
    pub(crate) fn of(options: &LogOptions) -> Result<Self, OpenError> {
        check(options)?;
        let seglets = usize::try_from(options.memory.bytes() / SEGLET_BYTES as u64)
            .expect("an address space holds the memory");
        let segment_seglets = options
            .segment_seglets
            .unwrap_or((seglets / SEGMENTS_WANTED).clamp(SEGMENT_SEGLETS_MIN, SEGLETS_PER_SEGMENT));
        let logs = usize::from(options.logs);
        let full = (seglets / segment_seglets) as u64;
        let cleaners = usize::from(options.cleaners);
        let slots_of_digests = 2 * logs;
        let slots_reserve = 16 * cleaners + slots_of_digests;
        let expansion = u64::from(options.disk_expansion_percent);
        // Half as many again, because segments that were closed early are not full.
        let slots = (full * expansion / 100 * 3 / 2) as usize + slots_reserve + 2 * logs;
        let emergency_reserve = 2 * logs * head_seglets(slots);
        let cleaner_reserve = CLEANER_RESERVE_SEGMENTS * cleaners * segment_seglets + 2;
        let usable = seglets.saturating_sub(emergency_reserve + cleaner_reserve);
        let delete_reserve = (usable / 200).clamp(2, 32);
        let overwrite_reserve =
            (usable / 50).max(overwrite_seglets(options, usable / segment_seglets));
        // Beside the reserves: room for the heads and for as much again as the cleaner's reserve.
        let minimum = emergency_reserve
            + 2 * cleaner_reserve
            + delete_reserve
            + segment_seglets / 4
            + 8 * logs
            + 8 * segment_seglets;
        if seglets < minimum {
            return Err(OpenError::TooSmall {
                memory: options.memory.bytes(),
                minimum: (minimum * SEGLET_BYTES) as u64,
                logs: options.logs,
                segment_bytes: (segment_seglets * SEGLET_BYTES) as u32,
            });
        }
        let live_seglets = usable - delete_reserve - overwrite_reserve;
        Ok(Self {
            seglets,
            segment_seglets,
            cleaner_reserve,
            emergency_reserve,
            delete_reserve,
            overwrite_reserve,
            slots,
            slots_reserve,
            slots_of_digests,
            disk_bytes_max: match options.durability {
                Durability::Volatile => u64::MAX,
                Durability::Replicated => {
                    let factor = u128::from(options.disk_expansion_percent);
                    let bytes = u128::from(options.memory.bytes()) * factor / 100;
                    u64::try_from(bytes).unwrap_or(u64::MAX)
                }
            },
            live_bytes_max: live_bytes_max(options, live_seglets),
            live_bytes_with_graves_max: (live_seglets * SEGLET_BYTES) as u64,
            epoch_slots: options.epoch_slots,
        })
    }

    /// Bytes of a full segment.
    pub(crate) fn segment_bytes(&self) -> u32 {
        (self.segment_seglets * SEGLET_BYTES) as u32
    }

    /// What appends that make live data more leave free.
    pub(crate) fn reserves_of_growth(&self) -> usize {
        self.delete_reserve + self.overwrite_reserve
    }

    /// Seglets that are no reserve.
    pub(crate) fn usable(&self) -> usize {
        self.seglets - self.cleaner_reserve - self.emergency_reserve
    }
}

/// The share that was asked for, or what there are seglets for beside the reserves.
fn live_bytes_max(options: &LogOptions, seglets: usize) -> u64 {
    let share = options.memory.bytes() / 100 * u64::from(options.live_percent_max);
    share.min((seglets * SEGLET_BYTES) as u64)
}

/// Seglets of a head with nothing but its own entries: statistics take less than 8 KiB, a digest
/// about two, surely less than three bytes for each segment.
pub(crate) fn head_seglets(slots: usize) -> usize {
    (16 * 1024 + 3 * slots).div_ceil(SEGLET_BYTES)
}

/// Seglets of dead data with which some segment, or some that fit the cleaners' reserve together,
/// have a seglet to give, however the dead data is spread; so many `full` segments fit the memory
/// (`docs/cleaning.md`, "No deadlock").
fn overwrite_seglets(options: &LogOptions, full: usize) -> usize {
    let of_segments = match options.durability {
        Durability::Volatile => 2 * full,
        Durability::Replicated => {
            let on_disk = full.saturating_mul(options.disk_expansion_percent as usize) / 100;
            on_disk.clamp(2 * full, 3 * full)
        }
    };
    of_segments + HEAD_DEAD_SEGLETS * usize::from(options.logs)
}

fn check(options: &LogOptions) -> Result<(), OpenError> {
    let bad = |name, problem: String| Err(OpenError::BadOption { name, problem });
    let (memory, limit) = (options.memory.bytes(), LOG_MEMORY_MAX.bytes());
    if memory > limit {
        let problem = format!("{memory} bytes are more than {limit}");
        return bad("memory", problem);
    }
    if options.logs == 0 || options.logs > LOGS_PER_MASTER_MAX {
        return bad(
            "logs",
            format!("{} is not 1 to {LOGS_PER_MASTER_MAX}", options.logs),
        );
    }
    if !(1..=LIVE_PERCENT_LIMIT).contains(&options.live_percent_max) {
        let problem = format!(
            "{} is not 1 to {LIVE_PERCENT_LIMIT}",
            options.live_percent_max
        );
        return bad("live_percent_max", problem);
    }
    if options.disk_expansion_percent < 100 {
        let problem = format!(
            "{} is less than 100: the log on disk holds at least what is in memory",
            options.disk_expansion_percent
        );
        return bad("disk_expansion_percent", problem);
    }
    if options.disk_expansion_percent > DISK_EXPANSION_LIMIT {
        let problem = format!(
            "{} is more than {DISK_EXPANSION_LIMIT}",
            options.disk_expansion_percent
        );
        return bad("disk_expansion_percent", problem);
    }
    if !(1..=64).contains(&options.cleaners) {
        return bad("cleaners", format!("{} is not 1 to 64", options.cleaners));
    }
    if options.in_place && options.durability != Durability::Volatile {
        return bad("in_place", "replicas would keep the old value".into());
    }
    if let Some(problem) = parts_problem(options) {
        return bad("parts", problem);
    }
    if let Some(n) = options.segment_seglets
        && !(SEGMENT_SEGLETS_MIN..=SEGLETS_PER_SEGMENT).contains(&n)
    {
        let problem = format!("{n} is not {SEGMENT_SEGLETS_MIN} to {SEGLETS_PER_SEGMENT}");
        return bad("segment_seglets", problem);
    }
    Ok(())
}

fn parts_problem(options: &LogOptions) -> Option<String> {
    let parts = &options.parts;
    let mut logs: Vec<u16> = parts
        .iter()
        .flat_map(|p| &p.logs)
        .map(|log| log.0)
        .collect();
    logs.sort_unstable();
    let empty = parts.iter().any(|part| part.logs.is_empty());
    let divided = parts.is_empty() || logs == Vec::from_iter(0..options.logs);
    (empty || !divided).then(|| {
        format!(
            "{parts:?} do not divide {} logs: each is of one part, and each part has one",
            options.logs
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(logs: &[u16]) -> MemoryPart {
        MemoryPart {
            node: None,
            logs: logs.iter().map(|log| LogId(*log)).collect(),
        }
    }

    #[test]
    fn parts_share_the_memory_by_their_logs() {
        let with = |mib, logs, parts: &[&[u16]]| LogOptions {
            logs,
            parts: parts.iter().map(|logs| part(logs)).collect(),
            ..LogOptions::new(Size::mib(mib))
        };
        assert_eq!(part_seglets(&with(64, 1, &[]), 1024), [1024]);
        let lens = part_seglets(&with(64, 4, &[&[3, 1, 0], &[2]]), 1024);
        assert_eq!(lens, [767, 257], "a border at a multiple of 2 MiB");
        let lens = part_seglets(&with(32, 8, &[&[0], &[1], &[2], &[3, 4, 5, 6, 7]]), 500);
        assert_eq!((lens.iter().sum::<u32>(), lens[0]), (500, 62));
        for parts in [
            &[&[0_u16][..], &[]][..],
            &[&[0], &[0]],
            &[&[0]],
            &[&[0, 1, 2]],
        ] {
            let refused = Geometry::of(&with(64, 2, parts));
            assert!(
                matches!(refused, Err(OpenError::BadOption { name: "parts", .. })),
                "{parts:?}"
            );
        }
    }

    #[test]
    fn small_and_large_memories_keep_most_of_it_usable() {
        for (mib, logs, percent) in [(64, 1, 95), (256, 2, 96), (4096, 16, 96), (65536, 64, 96)] {
            let mut options = LogOptions::new(Size::mib(mib));
            options.logs = logs;
            let geometry = Geometry::of(&options).unwrap();
            assert!(
                geometry.usable() * 100 >= geometry.seglets * percent,
                "{mib} MiB: {geometry:?}"
            );
        }
        assert!(Geometry::of(&LogOptions::new(Size::mib(32))).is_ok());
        assert!(matches!(
            Geometry::of(&LogOptions::new(Size::mib(20))),
            Err(OpenError::TooSmall { .. })
        ));
    }

    #[test]
    fn senseless_options_are_named() {
        let with = |change: fn(&mut LogOptions)| {
            let mut options = LogOptions::new(Size::mib(64));
            change(&mut options);
            match Geometry::of(&options) {
                Err(OpenError::BadOption { name, .. }) => name,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(with(|o| o.logs = 0), "logs");
        assert_eq!(with(|o| o.memory = Size(1 << 48)), "memory");
        assert_eq!(with(|o| o.memory = Size(u64::MAX)), "memory");
        assert_eq!(with(|o| o.live_percent_max = 99), "live_percent_max");
        assert_eq!(with(|o| o.segment_seglets = Some(39)), "segment_seglets");
        assert_eq!(
            with(|o| o.disk_expansion_percent = 99),
            "disk_expansion_percent"
        );
        assert_eq!(
            with(|o| o.disk_expansion_percent = 10_001),
            "disk_expansion_percent"
        );
        assert_eq!(with(|o| o.cleaners = 0), "cleaners");
    }

    #[test]
    fn the_largest_memory_is_one_whose_seglets_can_be_counted() {
        for logs in [1, 256] {
            let options = LogOptions {
                logs,
                ..LogOptions::new(LOG_MEMORY_MAX)
            };
            let geometry = Geometry::of(&options).unwrap();
            assert_eq!(part_seglets(&options, geometry.seglets), [u32::MAX]);
        }
    }
}
