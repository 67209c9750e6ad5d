//! Log memory: the bytes of all seglets, and what is known of them.
//!
//! [`LogMemory`] joins the owners: [`LogBytes`] (the region), [`SegletTable`] (which segment a
//! seglet belongs to), [`LiveCounts`] and [`DeadBits`] (what of it lives), and the reclaim epochs.
//! [`Entries`] reads what lies there. Invariants LOG-1 and LOG-2 are in `log_bytes`.

mod dead_bits;
#[allow(unsafe_code)] // reads what lies before a value
mod in_place;
mod live_counts;
#[allow(unsafe_code)] // all access to the bytes of log memory goes through here
mod log_bytes;
mod packing;
mod reader;
mod seglet_table;
#[allow(unsafe_code)] // reads entries in log memory
mod view;

pub(crate) use dead_bits::DeadBits;
pub use in_place::{MutableObject, Overwritable, ScatteredObject, VALUE_HEAD_BYTES};
pub(crate) use live_counts::LiveCounts;
pub(crate) use log_bytes::LogBytes;
pub(crate) use packing::Packing;
pub use reader::{LogReader, ReadEntry};
pub(crate) use seglet_table::{Place, SegletTable};
pub use view::{CutObject, EntryView};
pub(crate) use view::{Entries, Identity};

use crate::durable::Durability;
use crate::geometry::Geometry;
use crate::options::LogOptions;
use pluvio_format::Check;
use pluvio_memory::{
    EpochGuard, GatePage, Interleaving, RacingBytes, ReclaimEpochs, Region, RegionError,
};
use pluvio_units::{EntryRef, LogPosition, SEGLET_BYTES};
use rustix::fd::BorrowedFd;

/// The memory of a log that other processes may map: each file with its bytes.
#[derive(Debug, Clone, Copy)]
pub struct ReadableLog<'a> {
    /// The page that says what counts.
    pub gate: &'a GatePage,
    /// The seglets.
    pub bytes: (BorrowedFd<'a>, u64),
    /// Their table.
    pub table: (BorrowedFd<'a>, u64),
}

/// See the module.
pub(crate) struct LogMemory {
    raw: LogBytes,
    table: SegletTable,
    dead: DeadBits,
    /// Whether these two are interleaved over the nodes of the options.
    interleaving: Interleaving,
    live: LiveCounts,
    epochs: ReclaimEpochs,
    /// Where other processes read.
    gate: Option<GatePage>,
    /// Whether entries have checksums: without replicas there is nothing to compare them for.
    check: Check,
    /// Whether values may be overwritten.
    in_place: bool,
    packing: Packing,
}

impl Drop for LogMemory {
    fn drop(&mut self) {
        // The files give their memory back when they are dropped, and read as zero from then on.
        // Nothing counts before that (GATE-2).
        if let Some(gate) = &self.gate {
            gate.close();
        }
    }
}

impl LogMemory {
    /// `parts`: the seglets of each part of the options.
    pub(crate) fn new(
        geometry: &Geometry,
        options: &LogOptions,
        parts: &[u32],
    ) -> Result<Self, RegionError> {
        let raw = LogBytes::new(geometry.seglets, options, parts)?;
        let slots = options.epoch_slots;
        let (gate, epochs) = match &options.readers {
            None => (None, ReclaimEpochs::with_clock(slots, options.epoch_clock)?),
            Some(clock) => {
                let gate = GatePage::new(slots)?;
                let epochs = ReclaimEpochs::in_gate(&gate, slots, clock.clone());
                (Some(gate), epochs)
            }
        };
        let nodes = &options.table_nodes;
        let (dead, of_dead) = DeadBits::new(raw.len(), options.huge_pages, nodes)?;
        let is_read = options.readers.is_some();
        let (table, of_table) = SegletTable::new(geometry.seglets, is_read, nodes)?;
        let check = match options.durability {
            Durability::Volatile => Check::Structure,
            Durability::Replicated => Check::Checksum,
        };
        Ok(Self {
            dead,
            raw,
            table,
            interleaving: of_table.and(of_dead),
            epochs,
            gate,
            // Heads are locked for several operations only where nobody waits for replicas.
            live: LiveCounts::new(
                options.all_logs(),
                geometry.slots.all,
                check == Check::Structure,
            ),
            check,
            in_place: options.in_place,
            packing: Packing::new(options.in_place),
        })
    }

    /// What other processes map, if they may.
    pub(crate) fn for_readers(&self) -> Option<ReadableLog<'_>> {
        let file_of = |region| Some((Region::memfd(region)?, Region::len(region)));
        Some(ReadableLog {
            gate: self.gate.as_ref()?,
            bytes: file_of(self.raw.region())?,
            table: file_of(self.table.region())?,
        })
    }

    /// The bytes of all seglets.
    #[inline(always)]
    pub(crate) fn raw(&self) -> &LogBytes {
        &self.raw
    }

    /// The entries that lie there, to be read.
    #[inline(always)]
    pub(crate) fn entries(&self) -> Entries<'_> {
        Entries::of(self)
    }

    /// Which segment each seglet belongs to.
    #[inline(always)]
    pub(crate) fn table(&self) -> &SegletTable {
        &self.table
    }

    /// Whether the tables are interleaved over the nodes of the options.
    pub(crate) fn interleaving(&self) -> Interleaving {
        self.interleaving
    }

    /// What counts as live.
    #[inline(always)]
    pub(crate) fn live(&self) -> &LiveCounts {
        &self.live
    }

    #[inline(always)]
    pub(crate) fn epochs(&self) -> &ReclaimEpochs {
        &self.epochs
    }

    #[inline]
    pub(super) fn seglet_of(entry: EntryRef) -> u32 {
        let seglet = (entry.offset() / SEGLET_BYTES as u64)
            .checked_sub(1)
            .expect("no entry lies in the unused first seglet");
        u32::try_from(seglet).expect("seglets are counted in 32 bits")
    }

    /// A seglet that was just taken from the pool belongs to `place`; `previous` is the seglet
    /// before it in the segment. Nothing in it is dead.
    pub(crate) fn assign(&self, seglet: u32, place: Place, previous: Option<u32>) {
        self.dead.clear(LogBytes::base(seglet));
        self.table.assign(seglet, place, previous);
    }

    /// Segment and slot of an entry, and the position of its first byte.
    #[inline]
    pub(crate) fn locate(&self, entry: EntryRef) -> (Place, LogPosition) {
        self.table.locate(entry)
    }

    /// Seglet of an entry and the entry's offset in it.
    #[inline]
    pub(crate) fn split(entry: EntryRef) -> (u32, usize) {
        let within = entry.offset() % SEGLET_BYTES as u64;
        (Self::seglet_of(entry), within as usize)
    }

    /// Gives the page with the bits of a seglet back to the system, none of whose seglets
    /// ([`DeadBits::beside`]) is used. (One that is used by now loses its bits, which costs the
    /// cleaner a look at the index.)
    pub(crate) fn discard_dead(&self, seglet: u32) {
        self.dead.discard(LogBytes::base(seglet));
    }

    /// Loses the bits of all that is known to be dead.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) fn lose_dead(&self) {
        for seglet in 0..self.raw.seglets() {
            self.dead.clear(LogBytes::base(seglet));
        }
    }

    /// Has the system not join what is resident with what was given back to huge pages.
    pub(crate) fn prefer_small_pages(&self) {
        self.raw.prefer_small_pages();
        self.dead.prefer_small_pages();
    }

    /// Asks for huge pages.
    pub(crate) fn prefer_huge_pages(&self) -> Result<(), RegionError> {
        self.dead.prefer_huge_pages();
        self.raw.prefer_huge_pages()
    }

    /// How entries are laid into its seglets.
    #[inline]
    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }

    #[inline]
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The bytes of an entry within its seglet, to be accessed as what others change.
    #[inline(always)]
    pub(crate) fn racing(&self, entry: EntryRef, len: usize) -> RacingBytes<'_> {
        assert!(self.in_place, "LOG-12: values do not change here");
        self.raw.racing(entry, len)
    }

    /// How much of an entry can be checked.
    #[inline]
    pub(crate) fn check(&self) -> Check {
        self.check
    }

    /// What of `wanted` can be checked.
    pub(crate) fn possible(&self, wanted: Check) -> Check {
        match self.check {
            Check::Structure => Check::Structure,
            Check::Checksum => wanted,
        }
    }

    /// Notes that nothing points to the object at `entry` any more; it was found under `_guard`
    /// (LOG-15).
    #[inline(always)]
    pub(crate) fn set_dead(&self, entry: EntryRef, _guard: &EpochGuard<'_>) {
        self.dead.set(entry);
    }

    /// Whether the object at `entry` is known to be dead (LOG-15).
    #[inline(always)]
    pub(crate) fn is_dead(&self, entry: EntryRef) -> bool {
        self.dead.is_set(entry)
    }

    /// Asks for what [`Self::set_dead`] will change.
    #[inline(always)]
    pub(crate) fn prefetch_dead(&self, entry: EntryRef) {
        self.dead.prefetch(entry);
    }

    /// Bytes the tables take beside the log itself, of which `resident_seglets` are resident.
    pub(crate) fn table_bytes(&self, resident_seglets: usize) -> u64 {
        self.table.bytes() + self.live.bytes() + DeadBits::bytes_of(resident_seglets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_memory::{GraceClock, NodeSet};
    use pluvio_units::Size;

    #[test]
    fn both_tables_are_interleaved_over_the_nodes_of_the_options() {
        for readers in [None, Some(GraceClock::new(|| core::time::Duration::ZERO))] {
            let memory = |nodes: &[u32]| {
                let options = LogOptions {
                    table_nodes: nodes.iter().copied().collect(),
                    readers: readers.clone(),
                    ..LogOptions::new(Size::mib(64))
                };
                let geometry = Geometry::of(&options).expect("enough memory");
                let parts = [geometry.seglets as u32];
                LogMemory::new(&geometry, &options, &parts).expect("enough memory")
            };
            let over = |memory: &LogMemory| {
                let table = memory.table.region().interleaved_over(0);
                [table, memory.dead.interleaved_over()]
            };
            let one = memory(&[0]);
            assert_eq!(one.interleaving(), Interleaving::FirstTouch);
            if over(&one)[0].is_none() {
                return; // The system does not tell.
            }
            assert_eq!(over(&one), [Some(NodeSet::EMPTY); 2]);
            // The second node may be there or not; the first one is on every machine.
            let two = memory(&[0, 1]);
            assert_eq!(two.interleaving(), Interleaving::Interleaved);
            for nodes in over(&two) {
                let nodes = nodes.expect("it told before");
                assert!(nodes.numbers().any(|node| node == 0), "{nodes:?}");
            }
        }
    }
}
