//! The numbers that follow from the options of a log space, which it checks.
//!
//! [`Geometry::of`] reserves nothing: options can be checked without opening a log space.

use crate::durable::Durability;
use crate::error::OpenError;
use crate::options::{LOG_MEMORY_MAX, LogOptions, MemoryPart};
use pluvio_memory::EpochClock;
use pluvio_units::{ENTRY_MAX, KEY_MAX, LOGS_PER_MASTER_MAX, SEGLET_BYTES, SEGLETS_PER_SEGMENT};

/// Fewest seglets of a segment (2.5 MiB). The largest overwrite still fits beside the head's own
/// entries: an object, a tombstone, and a completion record with the value from before (2.3 MB).
const SEGMENT_SEGLETS_MIN: usize = 40;
const _: () = assert!(SEGMENT_SEGLETS_MIN * SEGLET_BYTES > 2 * ENTRY_MAX + KEY_MAX + 1024);
/// A memory is cut into about this many segments. So the cleaner's reserve (at least one segment)
/// and the memory of its passes stay small against the whole. Memory that is missing for dead data
/// makes every copy dearer. More segments would make digests and the choice among them longer.
const SEGMENTS_WANTED: usize = 256;
/// Segments' worth of memory kept for each cleaner. One is enough for progress. Memory kept back
/// here is missing for dead data, which costs more copying than larger passes save.
const CLEANER_RESERVE_SEGMENTS: usize = 1;
/// A head with this many seglets of dead data is closed when nothing else can be cleaned.
pub(crate) const HEAD_DEAD_SEGLETS: usize = 3;
/// Seglets of 2 MiB.
const SEGLETS_PER_HUGE_PAGE: usize = (2 << 20) / SEGLET_BYTES;
/// Largest share of live objects in percent: 2 % is the least that is left for dead data [LSM-DRAM
/// §7].
const LIVE_PERCENT_LIMIT: u32 = 98;

/// Largest disk expansion factor in percent: a table has a row for each segment that there may be.
const DISK_EXPANSION_LIMIT: u32 = 10_000;

/// Numbers that follow from the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// All seglets.
    pub(crate) seglets: usize,
    /// Seglets of a full segment.
    pub(crate) segment_seglets: usize,
    pub(crate) reserves: SegletReserves,
    pub(crate) slots: Slots,
    pub(crate) limits: Limits,
}

/// Seglets that not every append may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegletReserves {
    /// Only for survivors and compactions: a segment for each cleaner, so that from no memory at
    /// all each can clean a segment (CLEAN-4).
    pub cleaner: usize,
    /// Only for heads that publish a digest: two for each log [LSM-DRAM §7].
    pub emergency: usize,
    /// Left over by objects for tombstones, so that deletes work when objects are refused.
    pub delete: usize,
    /// Left over by appends that make the live data more, beside `delete`: room for dead data (2 %,
    /// as [LSM-DRAM §7] has it). Without it no segment would have a seglet to give, and nothing
    /// could be overwritten.
    pub overwrite: usize,
}

/// How many segments there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slots {
    /// Most segments, in the log or on their way in or out.
    pub all: usize,
    /// Of these, not for heads opened by appends: for survivors and emergency heads.
    pub reserve: usize,
    /// Of the reserve, the part for heads, and not for survivors: two for each log. Their digests
    /// let segments leave and give their slots back.
    pub digests: usize,
}

/// Bytes above which appends are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Most bytes of the log on disk; `u64::MAX` when there is no disk.
    pub disk_bytes: u64,
    /// Most bytes of live objects.
    pub live_bytes: u64,
    /// Limit on live bytes when an overwrite grows only by its graves: all seglets beside the
    /// reserves.
    pub live_bytes_with_graves: u64,
}

impl Slots {
    /// For a memory of `full` segments.
    fn of(options: &LogOptions, full: usize) -> Self {
        let digests = 2 * usize::from(options.all_logs());
        let reserve = 16 * usize::from(options.cleaners) + digests;
        let on_disk = full as u64 * u64::from(options.disk_expansion_percent) / 100;
        // Half as many again, because segments that were closed early are not full.
        let all = (on_disk * 3 / 2) as usize + reserve + 2 * usize::from(options.all_logs());
        Self {
            all,
            reserve,
            digests,
        }
    }
}

impl SegletReserves {
    fn of(options: &LogOptions, seglets: usize, segment_seglets: usize, slots: &Slots) -> Self {
        let emergency = 2 * usize::from(options.all_logs()) * head_seglets(slots.all);
        let cleaner =
            CLEANER_RESERVE_SEGMENTS * usize::from(options.cleaners) * segment_seglets + 2;
        let usable = seglets.saturating_sub(emergency + cleaner);
        Self {
            cleaner,
            emergency,
            delete: (usable / 200).clamp(2, 32),
            overwrite: (usable / 50).max(overwrite_seglets(options, usable / segment_seglets)),
        }
    }
}

impl Limits {
    /// `live_seglets`: those beside all reserves.
    fn of(options: &LogOptions, live_seglets: usize) -> Self {
        let memory = options.memory.bytes();
        let live_bytes_with_graves = (live_seglets * SEGLET_BYTES) as u64;
        let share = memory / 100 * u64::from(options.live_percent_max);
        Self {
            disk_bytes: match options.durability {
                Durability::Volatile => u64::MAX,
                Durability::Replicated => {
                    let factor = u128::from(options.disk_expansion_percent);
                    u64::try_from(u128::from(memory) * factor / 100).unwrap_or(u64::MAX)
                }
            },
            live_bytes: share.min(live_bytes_with_graves),
            live_bytes_with_graves,
        }
    }
}

/// Seglets of each part of the memory, by its number of logs. If there are many huge pages, each
/// belongs to one part.
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
    /// Checks the options and works the numbers out. Takes no memory.
    ///
    /// # Errors
    /// [`OpenError::BadOption`] and [`OpenError::TooSmall`], as of
    /// [`LogSpace::new`](crate::LogSpace::new).
    pub fn of(options: &LogOptions) -> Result<Self, OpenError> {
        check(options)?;
        let seglets = usize::try_from(options.memory.bytes() / SEGLET_BYTES as u64)
            .expect("an address space holds the memory");
        let segment_seglets = options
            .segment_seglets
            .unwrap_or((seglets / SEGMENTS_WANTED).clamp(SEGMENT_SEGLETS_MIN, SEGLETS_PER_SEGMENT));
        let slots = Slots::of(options, seglets / segment_seglets);
        let reserves = SegletReserves::of(options, seglets, segment_seglets, &slots);
        // Beside the reserves: room for the heads and for as much again as the cleaner's reserve.
        let minimum = reserves.emergency
            + 2 * reserves.cleaner
            + reserves.delete
            + segment_seglets / 4
            + 8 * usize::from(options.all_logs())
            + 8 * segment_seglets;
        if seglets < minimum {
            return Err(OpenError::TooSmall {
                memory: options.memory.bytes(),
                minimum: (minimum * SEGLET_BYTES) as u64,
                logs: options.logs,
                segment_bytes: (segment_seglets * SEGLET_BYTES) as u32,
            });
        }
        let unreserved = seglets - reserves.cleaner - reserves.emergency;
        let live_seglets = unreserved - reserves.delete - reserves.overwrite;
        Ok(Self {
            seglets,
            segment_seglets,
            reserves,
            slots,
            limits: Limits::of(options, live_seglets),
        })
    }

    /// Bytes of a full segment.
    pub(crate) fn segment_bytes(&self) -> u32 {
        (self.segment_seglets * SEGLET_BYTES) as u32
    }

    /// The seglets that appends leave free when they make live data more.
    pub(crate) fn reserves_of_growth(&self) -> usize {
        self.reserves.delete + self.reserves.overwrite
    }

    /// Seglets that are no reserve.
    pub(crate) fn usable(&self) -> usize {
        self.seglets - self.reserves.cleaner - self.reserves.emergency
    }
}

/// Seglets of a head with nothing but its own entries. Statistics take less than 8 KiB, and a
/// digest about two bytes for each segment, surely less than three.
pub(crate) fn head_seglets(slots: usize) -> usize {
    (16 * 1024 + 3 * slots).div_ceil(SEGLET_BYTES)
}

/// Seglets of dead data with which cleaning can always free one, however the dead data is spread.
/// Some segment has a seglet to give then, or some segments that fit the cleaners' reserve together
/// have one. The memory holds `full` segments (`docs/cleaning.md`, "No deadlock").
fn overwrite_seglets(options: &LogOptions, full: usize) -> usize {
    let of_segments = match options.durability {
        Durability::Volatile => 2 * full,
        Durability::Replicated => {
            let on_disk = full.saturating_mul(options.disk_expansion_percent as usize) / 100;
            on_disk.clamp(2 * full, 3 * full)
        }
    };
    of_segments + HEAD_DEAD_SEGLETS * usize::from(options.all_logs())
}

fn check(options: &LogOptions) -> Result<(), OpenError> {
    let bad = |name, problem: String| Err(OpenError::BadOption { name, problem });
    let (memory, limit) = (options.memory.bytes(), LOG_MEMORY_MAX.bytes());
    if memory > limit {
        let problem = format!("{memory} bytes are more than {limit}");
        return bad("memory", problem);
    }
    if options.logs == 0 || options.all_logs() > LOGS_PER_MASTER_MAX {
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
    if options.readers.is_some() && options.in_place {
        return bad(
            "readers",
            "other processes do not read what is overwritten in place".into(),
        );
    }
    if options.readers.is_some() && options.epoch_clock != EpochClock::Counter {
        return bad(
            "readers",
            "other processes know the usual epoch clock only".into(),
        );
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
    use pluvio_units::{LogId, Size};

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
