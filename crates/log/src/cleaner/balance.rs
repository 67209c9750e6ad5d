//! The balancer: which of slots, disk and memory is short [LSM-DRAM §5.2].

use super::{Cleaning, Goal, Shared};
use crate::durable::Durability;
use crate::geometry::head_seglets;
use crate::segments::{OnTheirWay, Storage};
use pluvio_units::SEGLET_BYTES;

/// Combined passes also begin when this share of the segment slots is in use, in percent. Segments
/// that were closed early take slots and digest space beyond their bytes.
const SLOTS_PERCENT: usize = 90;

/// The resource that is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pressure {
    /// There are nearly as many segments as there may be.
    Slots,
    /// The log on disk is nearly as long as it may be.
    Disk,
    /// Seglets.
    Memory,
    /// Seglets, so few that compaction alone does not keep up.
    MemoryCritical,
}

/// With room for so many segments of dead data, appends that make live data more need not be
/// refused.
const ROOMY_SEGMENTS: u64 = 4;

/// What appends that make live data more need.
struct Growth {
    /// Seglets that they leave free.
    reserves: usize,
    /// Seglets that these and live data leave to dead data.
    room: u64,
    /// With fewer free seglets beyond these, cleaning begins.
    start: u64,
}

impl Growth {
    /// Seglets that are free for them, or will be.
    fn free(&self, balance: &Balance<'_>, coming: usize) -> u64 {
        balance
            .free_seglets(coming)
            .saturating_sub(self.reserves as u64)
    }
}

/// The state of the store, as the cleaner judges it.
#[derive(Clone, Copy)]
pub(super) struct Balance<'c> {
    shared: &'c Shared,
}

impl<'c> Balance<'c> {
    pub(super) fn of(shared: &'c Shared) -> Self {
        Self { shared }
    }

    fn storage(&self) -> &'c Storage {
        self.shared.storage()
    }

    /// What to clean for, if anything. `wanted` says that an append was refused; `waiting` is on
    /// its way to be free.
    pub(super) fn pressure(&self, wanted: bool, waiting: &OnTheirWay) -> Option<Pressure> {
        if self.slots_low(waiting.slots) {
            return Some(Pressure::Slots);
        }
        if self.disk_low(waiting.disk_bytes) {
            return Some(Pressure::Disk);
        }
        let coming = waiting.seglets + self.storage().seglets.expected_gains();
        let combine = u64::from(self.shared.options.combine_free_percent);
        let critical = self.free_permille(coming) < (self.start_permille() / 2).min(combine * 10);
        let growth_critical = self.growth().is_some_and(|growth| {
            let usable = self.storage().geometry.usable() as u64;
            growth.free(self, coming) < (growth.start / 2).min(usable * combine / 100)
        });
        if critical || growth_critical {
            return Some(Pressure::MemoryCritical);
        }
        // An append was refused: what is on its way may be all it needs; if nothing is, clean.
        (self.memory_low(coming) || (wanted && coming == 0)).then_some(Pressure::Memory)
    }

    /// Whether this store has a log on disk that can be longer than the one in memory.
    pub(super) fn has_two_levels(&self) -> bool {
        match (
            self.storage().options.durability,
            self.shared.options.cleaning,
        ) {
            (Durability::Replicated, Cleaning::TwoLevel) => true,
            (Durability::Volatile, _) | (_, Cleaning::OneLevel) => false,
        }
    }

    /// Whether slots or disk are low as long as the digests by which cleaned segments leave are not
    /// durable. A store that is written little, or whose appends are refused, does not write them
    /// soon.
    pub(super) fn waits_for_digests(&self) -> bool {
        self.slots_low(0) || self.disk_low(0)
    }

    /// Whether slots are low, with `coming` taken as free.
    fn slots_low(&self, coming: usize) -> bool {
        let geometry = &self.storage().geometry;
        let slots = geometry.slots.all - geometry.slots.reserve;
        let free = self.storage().table.free_slot_count() + coming;
        let usable = free.saturating_sub(geometry.slots.reserve);
        usable * 100 < slots * (100 - SLOTS_PERCENT)
    }

    /// Whether the log on disk is too long, with `leaving` bytes of it taken as gone.
    fn disk_low(&self, leaving: u64) -> bool {
        let slack = u64::from(self.shared.options.disk_slack_percent.min(100));
        let max = self.storage().geometry.limits.disk_bytes;
        self.storage().table.disk_bytes().saturating_sub(leaving) > max - max / 100 * slack
    }

    /// Whether memory is low, with `coming` seglets taken as free.
    pub(super) fn memory_low(&self, coming: usize) -> bool {
        let geometry = &self.storage().geometry;
        let floor = (geometry.reserves.delete + geometry.segment_seglets / 4) as u64;
        let (free, start) = (self.free_permille(coming), self.start_permille());
        free < start
            || self.free_seglets(coming) < floor
            || self.part_low(free, start)
            || self
                .growth()
                .is_some_and(|growth| growth.free(self, coming) < growth.start)
    }

    /// The needs of appends that make live data more, if there were any of late. They leave the
    /// reserves of deletes and overwrites alone, so for them memory is out when that much is free.
    fn growth(&self) -> Option<Growth> {
        if !self.storage().seglets.is_growing() {
            return None;
        }
        let geometry = &self.storage().geometry;
        let reserves = geometry.reserves_of_growth();
        let live = self.storage().live_bytes().div_ceil(SEGLET_BYTES as u64);
        let usable = geometry.usable() as u64;
        let room = usable.saturating_sub(reserves as u64 + live);
        let idle = room * u64::from(self.shared.options.idle_percent.min(100)) / 100;
        let most = usable * u64::from(self.shared.options.compact_free_percent.min(100)) / 100;
        // Room for the writes while a few seglets are gained; with little room, a quarter of it, so
        // that most is left to dead data.
        let ahead = (geometry.segment_seglets as u64 / 4).min(room / 4);
        Some(Growth {
            reserves,
            room,
            start: idle.min(most).max(ahead),
        })
    }

    /// Whether the seglets of one memory node run out. Then cleaning that is due soon in any case
    /// should begin, so that its logs need not take those of others. Never with twice as much free
    /// as it begins at otherwise. A node with more live data than others would keep the cleaner
    /// busy for ever.
    fn part_low(&self, free_permille: u64, start_permille: u64) -> bool {
        free_permille < 2 * start_permille
            && self
                .storage()
                .seglets
                .poorest()
                .is_some_and(|(_, free)| free < start_permille / 2)
    }

    /// The free share, in thousandths, below which cleaning begins.
    fn start_permille(&self) -> u64 {
        let usable = (self.storage().geometry.usable() * SEGLET_BYTES) as u64;
        let dead = 1000 - (self.storage().live_bytes() * 1000 / usable).min(1000);
        let idle = dead * u64::from(self.shared.options.idle_percent.min(100)) / 100;
        idle.min(u64::from(self.shared.options.compact_free_percent.min(100)) * 10)
    }

    fn free_permille(&self, coming: usize) -> u64 {
        self.free_seglets(coming) * 1000 / self.storage().geometry.usable() as u64
    }

    /// Seglets that are free for appends, or will be.
    fn free_seglets(&self, coming: usize) -> u64 {
        let free = self.storage().seglets.free();
        let free = (free.default + free.cleaner) as usize + coming;
        free.saturating_sub(self.storage().geometry.reserves.cleaner) as u64
    }

    /// Seglets that survivors may take now: the cleaners' own, and half of what is free beyond what
    /// appends leave to others. Where dead data has little room these are refused in any case. Then
    /// it is half of the seglets beyond those of deletes, since together segments gain more than
    /// each alone.
    pub(super) fn survivor_budget(&self) -> usize {
        let pool = self.storage().seglets.free();
        let free = pool.default as usize;
        let has_room = |growth: &Growth| {
            let segments = growth.room / self.storage().geometry.segment_seglets as u64;
            segments >= ROOMY_SEGMENTS && free > growth.reserves
        };
        let kept = match self.growth().filter(has_room) {
            Some(growth) => growth.reserves,
            None => self.storage().geometry.reserves.delete,
        };
        pool.cleaner as usize + free.saturating_sub(kept) / 2
    }

    /// Seglets, or slots, that a combined pass must gain: its digest needs a head, which may be
    /// opened for that alone and takes one. With less, passes would go on for ever about the heads
    /// of the passes before. On disk such a head is as long as its digest.
    pub(super) fn least_gain(&self, goal: Goal) -> usize {
        match (self.storage().options.durability, goal) {
            (Durability::Volatile, Goal::Memory | Goal::Disk | Goal::Slots) => 1,
            (Durability::Replicated, Goal::Disk) => {
                1 + head_seglets(self.storage().geometry.slots.all)
            }
            (Durability::Replicated, Goal::Memory | Goal::Slots) => 2,
        }
    }

    /// Whether segments that free memory alone are for passes: there is no compaction that would
    /// see to them.
    pub(super) fn cleans_alone(&self, goal: Goal) -> bool {
        let is_for_memory = match goal {
            Goal::Memory => true,
            Goal::Disk | Goal::Slots => false,
        };
        is_for_memory && !self.has_two_levels()
    }
}
