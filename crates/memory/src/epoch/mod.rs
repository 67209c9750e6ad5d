//! Reclaim epochs: since when does each thread read, and may freed memory be used again?
//!
//! Owns a table in a region (rule B): one line with the epoch counter, then one line per thread.
//!
//! ```text
//! line 0       | counter | high water | claimed | reused below | ...        |
//! line 1 + i   | active since (0 = idle) | claimed | nested | owner | ... |   one thread each
//! ```
//!
//! "Nested" counts the thread's guards beside the first one. "Owner" is the thread's number,
//! written only in builds with debug assertions.
//!
//! Invariants:
//! - E1: a claimed slot is written by one thread only, its claimer.
//! - E2: a thread's slot is non-zero exactly while one of its guards lives; nested guards keep the
//!   outermost one's epoch.
//! - E3: slots at or above `high water` have never been claimed.
//!
//! Threads: [`ReclaimEpochs::pin`] waits for no other thread, but threads without a slot share a
//! mutex. The argument why a pin protects is in `protocol` and in `docs/memory.md`.
//!
//! Limits: it keeps no list of things to free, and it never waits for readers. The thread that
//! retires something keeps its stamp and asks again later.

mod clock;
mod fence;
mod foreign;
#[cfg(test)]
mod model;
pub mod protocol;
#[cfg(test)]
mod tests;
#[allow(unsafe_code)] // the thread's own slot, without a search
mod thread_slots;

pub use clock::EpochClock;
pub use foreign::{GRACE, GraceClock};

use crate::gate::GatePage;
use crate::region::{CACHE_LINE_BYTES, Region, RegionError};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use fence::ReaderFence;
use foreign::Foreign;
use protocol::IDLE;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stands for everything unlinked before some moment. Stamps of one [`ReclaimEpochs`] ascend; those
/// of different ones must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReclaimStamp(u64);

/// The quiesced stamps, as of one look at all threads: for many stamps at the price of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimFrontier(u64);

impl ReclaimFrontier {
    /// Whether every guard that could reach things unlinked before `stamp` is gone. A stamp given
    /// after this look is not covered.
    #[must_use]
    pub fn covers(self, stamp: ReclaimStamp) -> bool {
        stamp.0 < self.0
    }
}

/// The epoch counter and the table of reading threads.
#[derive(Debug)]
pub struct ReclaimEpochs {
    clock: EpochClock,
    fence: ReaderFence,
    /// Clock and fence are those of nearly every machine: each pin asks for both as one.
    usual: bool,
    /// Unique within the process, so that a thread's memory of a dead table matches no other table.
    id: u64,
    table: Arc<Table>,
    /// Where other processes read.
    foreign: Option<Foreign>,
}

/// Protects everything it could reach when it was made: as long as it lives, things unlinked later
/// are not used again. It stays in its thread, so no task that may move can hold it over an
/// `await`. Keep it short, because no memory is reclaimed meanwhile.
#[derive(Debug)]
pub struct EpochGuard<'a> {
    epochs: &'a ReclaimEpochs,
    place: Place<'a>,
    /// Not `Send`: the slot belongs to this thread (E1).
    thread: PhantomData<*mut ()>,
}

#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    /// The thread's own slot.
    Slot(&'a Slot),
    /// The shared list, where this guard is counted under the epoch it began in.
    Overflow(u64),
}

/// Protects as an [`EpochGuard`] does, but belongs to no thread and borrows nothing: any thread may
/// drop it. Making and dropping one takes a mutex. No memory is reclaimed while it lives.
#[derive(Debug)]
pub struct SharedGuard {
    table: Arc<Table>,
    /// Where it is counted in the table's list.
    epoch: u64,
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        self.table.end_overflow(self.epoch);
    }
}

/// The line of one thread.
type Slot = [AtomicU64; 8];

/// The epoch counter's word.
type Counter = AtomicU64;

/// The part of a `ReclaimEpochs` that lives until its threads let go of it.
#[derive(Debug)]
struct Table {
    region: Arc<Region>,
    /// Where the table begins in `region`.
    offset: u64,
    slots: u32,
    /// Guards of threads without a slot, and shared ones: epoch to their number.
    overflow: Mutex<BTreeMap<u64, u32>>,
    /// How many guards of threads without a slot were made.
    overflow_pins: AtomicU64,
}

impl ReclaimEpochs {
    /// A table for `slots` threads at a time, in memory of its own. More threads work too, but
    /// share a mutex.
    ///
    /// # Errors
    /// As of [`Region::anonymous`].
    pub fn new(slots: u32) -> Result<Self, RegionError> {
        Self::with_clock(slots, EpochClock::Counter)
    }

    /// [`Self::new`] with a clock of choice.
    ///
    /// # Errors
    /// As of [`Region::anonymous`].
    ///
    /// # Panics
    /// When this machine does not have the clock ([`EpochClock::is_available`]).
    pub fn with_clock(slots: u32, clock: EpochClock) -> Result<Self, RegionError> {
        assert!(clock.is_available(), "no {clock:?} for epochs");
        let region = Region::anonymous(Self::bytes(slots), false)?;
        let epochs = Self::in_region(Arc::new(region), 0, slots);
        Ok(Self {
            clock,
            usual: epochs.usual && clock == EpochClock::Counter,
            ..epochs
        })
    }

    /// A table for `slots` threads in the page by which readers of other processes know whether
    /// what they copied counts. `clock` says how long retired memory has rested.
    ///
    /// # Panics
    /// When the page was made for fewer slots, or has a table already.
    #[must_use]
    pub fn in_gate(gate: &GatePage, slots: u32, clock: GraceClock) -> Self {
        let (region, offset) = gate.epochs();
        Self {
            foreign: Some(Foreign::new(clock)),
            ..Self::in_region(region, offset, slots)
        }
    }

    /// Whether other processes read: retired memory then rests for [`GRACE`] before it is used
    /// again. Their reads are right in any case; without this, slow ones begin anew more often.
    pub fn foreign_readers(&self, are_there: bool) {
        if let Some(foreign) = &self.foreign {
            foreign.are_there(are_there);
        }
    }

    /// A table for `slots` threads in `region` from `offset` on, for regions that another process
    /// maps.
    ///
    /// # Panics
    /// When the region's [`Self::bytes`] from `offset` on do not exist, are not zero (the counter
    /// is checked) or do not begin with a cache line.
    #[must_use]
    pub fn in_region(region: Arc<Region>, offset: u64, slots: u32) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let fits = region.len().checked_sub(offset);
        assert!(
            fits.is_some_and(|room| room >= Self::bytes(slots)),
            "no room for {slots} epoch slots at offset {offset} of a region of {} bytes",
            region.len()
        );
        let table = Table {
            region,
            offset,
            slots,
            overflow: Mutex::new(BTreeMap::new()),
            overflow_pins: AtomicU64::new(0),
        };
        let fresh = table.counter().swap(IDLE + 1, Ordering::SeqCst) == 0;
        assert!(fresh, "the epoch table's memory is used already");
        let fence = ReaderFence::of_this_system();
        Self {
            clock: EpochClock::Counter,
            fence,
            usual: fence == ReaderFence::FromOutside,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            table: Arc::new(table),
            foreign: None,
        }
    }

    /// Bytes a table of `slots` slots takes.
    #[must_use]
    pub fn bytes(slots: u32) -> u64 {
        (u64::from(slots) + 1) * CACHE_LINE_BYTES
    }

    /// Guards made since the start by threads without a slot; each took the mutex. They include the
    /// guards that a thread makes while it exits.
    #[must_use]
    pub fn pins_without_slot(&self) -> u64 {
        self.table.overflow_pins.load(Ordering::Relaxed)
    }

    /// Until the guard is dropped, nothing that this thread can reach is used again. Guards may be
    /// nested. It costs one load of a line that is rarely written, and one store; or one swap where
    /// the system has no `membarrier`.
    #[must_use = "the protection ends when the guard is dropped"]
    #[inline(always)]
    pub fn pin(&self) -> EpochGuard<'_> {
        let place = match thread_slots::place_in(self) {
            Some((counter, slot)) => {
                let [since, _, nested, owner, ..] = slot;
                debug_assert_eq!(
                    owner.load(Ordering::Relaxed),
                    thread_slots::own_mark(),
                    "E1: another thread's slot"
                );
                if since.load(Ordering::Relaxed) == IDLE {
                    debug_assert_eq!(nested.load(Ordering::Relaxed), 0, "E2: guards live");
                    if self.usual {
                        let stamp = EpochClock::Counter.stamp(counter);
                        ReaderFence::FromOutside.publish(since, stamp);
                    } else {
                        self.fence.publish(since, self.clock.stamp(counter));
                    }
                } else {
                    nested.store(nested.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                Place::Slot(slot)
            }
            None => {
                self.table.overflow_pins.fetch_add(1, Ordering::Relaxed);
                Place::Overflow(self.table.begin_overflow(self.clock))
            }
        };
        EpochGuard {
            epochs: self,
            place,
            thread: PhantomData,
        }
    }

    /// [`Self::pin`] for what outlives the call, or goes to another thread.
    #[must_use = "the protection ends when the guard is dropped"]
    pub fn pin_shared(&self) -> SharedGuard {
        SharedGuard {
            epoch: self.table.begin_overflow(self.clock),
            table: Arc::clone(&self.table),
        }
    }

    /// Begins a new epoch. The stamp stands for everything unlinked before this call, by this
    /// thread or by one it has synchronised with since.
    #[must_use = "without the stamp nobody knows when to reclaim"]
    pub fn retire_epoch(&self) -> ReclaimStamp {
        ReclaimStamp(self.clock.retire(self.table.counter()))
    }

    /// Whether all living guards began after `stamp` was given. Then things unlinked before it are
    /// out of every reader's reach (M3). Looks at every slot; see [`Self::frontier`] for many
    /// stamps.
    #[must_use]
    pub fn is_quiesced(&self, stamp: ReclaimStamp) -> bool {
        self.frontier().covers(stamp)
    }

    /// One look at all threads. Later looks cover no less.
    #[must_use]
    pub fn frontier(&self) -> ReclaimFrontier {
        let table = &*self.table;
        let slots = || {
            let used = table.high_water().load(Ordering::Acquire);
            (0..u32::try_from(used).expect("E3: at most the number of slots"))
                .map(|slot| &table.slot(slot)[0])
        };
        // Before the fences: a stamp below this bound was given, and its things unlinked, before
        // it.
        let bound = self.clock.stamp(table.counter());
        if !self.fence.before_look() {
            return ReclaimFrontier(0);
        }
        let own = protocol::frontier_below::<AtomicU64, _>(bound, slots);
        // Looked at after the fence in `frontier`; the mutex orders us with each overflow guard.
        let shared = table.lock_overflow().keys().next().copied();
        let frontier = shared.map_or(own, |shared| shared.min(own));
        let frontier = self.clock.surely(frontier);
        match &self.foreign {
            None => ReclaimFrontier(frontier),
            Some(foreign) => {
                let frontier = frontier.min(foreign.rested_below(bound));
                let reused_below = table.reused_below();
                protocol::reuse_below(reused_below, frontier);
                // What an earlier look covered stays covered.
                ReclaimFrontier(reused_below.load(Ordering::Acquire))
            }
        }
    }
}

impl EpochGuard<'_> {
    /// Whether this guard protects memory reclaimed by `epochs`.
    #[must_use]
    #[inline]
    pub fn is_of(&self, epochs: &ReclaimEpochs) -> bool {
        self.epochs.id == epochs.id
    }

    /// The epochs it belongs to. A thread that unlinks something under a guard asks them when to
    /// use it again.
    #[must_use]
    #[inline]
    pub fn epochs(&self) -> &ReclaimEpochs {
        self.epochs
    }
}

impl Drop for EpochGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.place {
            Place::Slot(slot) => {
                let [since, _, nested, ..] = slot;
                debug_assert_ne!(since.load(Ordering::Relaxed), IDLE, "E2: a guard lives");
                // Any order of their ends will do: guards of one thread protect the same.
                match nested.load(Ordering::Relaxed) {
                    0 => protocol::end(since),
                    others => nested.store(others - 1, Ordering::Relaxed),
                }
            }
            Place::Overflow(epoch) => self.epochs.table.end_overflow(epoch),
        }
    }
}

impl Table {
    #[inline]
    fn counter(&self) -> &Counter {
        &self.region.line(self.offset)[0]
    }

    fn high_water(&self) -> &AtomicU64 {
        self.region.word(self.offset + 8)
    }

    fn claimed(&self) -> &AtomicU64 {
        self.region.word(self.offset + 16)
    }

    /// What readers of other processes are told (`protocol::reuse_below`).
    fn reused_below(&self) -> &AtomicU64 {
        self.region.word(self.offset + protocol::REUSED_BELOW_AT)
    }

    fn slot(&self, slot: u32) -> &Slot {
        debug_assert!(slot < self.slots, "M1: slot {slot} of {}", self.slots);
        self.region
            .line(self.offset + (u64::from(slot) + 1) * CACHE_LINE_BYTES)
    }

    /// Claims a free slot for the calling thread; none when all are claimed.
    fn claim(&self) -> Option<u32> {
        if self.claimed().load(Ordering::Relaxed) >= u64::from(self.slots) {
            return None;
        }
        let free = (0..self.slots).find(|&slot| {
            let owner = &self.slot(slot)[1];
            protocol::claim(owner, self.high_water(), u64::from(slot))
        })?;
        self.claimed().fetch_add(1, Ordering::Relaxed);
        Some(free)
    }

    /// Gives the slot of the calling thread, which exits, to others. A slot whose guard still lives
    /// (kept in another thread-local, or leaked) is lost instead: safe, and rare.
    fn unclaim(&self, slot: u32) {
        let [since, owner, ..] = self.slot(slot);
        if since.load(Ordering::Relaxed) == IDLE {
            self.claimed().fetch_sub(1, Ordering::Relaxed);
            protocol::unclaim(owner);
        }
    }

    /// The clock is read under the mutex. A later look finds this guard. An earlier look has handed
    /// its view of unlinked memory to this thread through the mutex.
    #[cold]
    fn begin_overflow(&self, clock: EpochClock) -> u64 {
        let mut guards = self.lock_overflow();
        let epoch = clock.stamp(self.counter());
        *guards.entry(epoch).or_insert(0) += 1;
        epoch
    }

    #[cold]
    fn end_overflow(&self, epoch: u64) {
        let mut guards = self.lock_overflow();
        let count = guards.get_mut(&epoch).expect("counted when it began");
        *count -= 1;
        if *count == 0 {
            guards.remove(&epoch);
        }
    }

    fn lock_overflow(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        // The critical sections cannot panic half way.
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
