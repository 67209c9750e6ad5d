//! The cleaner: compaction of single segments in memory, and combined cleaning of several in memory
//! and on disk [LSM-DRAM §3, §5, §6], as state machines.
//!
//! `balance` finds which resource is short, and `choose` the segments to clean for it. A combined
//! pass (`combine`) *scans* its segments for live entries and *relocates* them to survivor segments
//! in the order of their age. It waits until survivors, and everything that made the other entries
//! dead, are *durable*. Then one digest exchanges the old segments for the new ones. A compaction
//! (`compact`) does the same to one segment, into fewer seglets of the same segment, and no digest.
//! Each [`Cleaner::step`] does a bounded piece; between steps nothing is locked. Threads drive it
//! in production, the simulator one step at a time. Several passes may go on at once: a segment is
//! claimed by one of them.
//!
//! - CLEAN-1: only closed, durable segments are cleaned, and only after every guard that was held
//!   when they were closed is gone. So each of their entries has reached the index, or never will.
//! - CLEAN-2: an entry that is not copied stays dead on disk. The pass notes where each log ends at
//!   its last look for dead entries. Each log is durable up to there before a digest drops the
//!   segment, or its bytes become shorter.
//! - CLEAN-3: survivors are listed by a digest only when they are durable; the same digest stops
//!   listing the segments they come from.
//! - CLEAN-4: a pass takes all memory it needs before it copies anything, and not more than it
//!   frees. So it always finishes; one for memory frees at least one seglet, and what its digest
//!   takes. Of segment slots it leaves those of the digests by which cleaned segments leave.
//! - CLEAN-5: a tombstone is dropped only when the segment it names is gone from disk. A combined
//!   pass also drops it when that segment goes with the same digest or an earlier one of the same
//!   log.
//! - CLEAN-6: a survivor holds no copy of an object that the index was not swung to. Such a copy
//!   would be dead on disk without a tombstone that names the survivor. It would come back to life
//!   once the newer version and its tombstone are gone.
//! - CLEAN-7: when the memory of a cleaned segment is used again, nothing in it counts as live.
//! - CLEAN-8: at any moment the bytes of a closed segment are a valid replica of it. With them in
//!   the place of any replica, recovery finds the same.
//! - CLEAN-9: every entry of a cleaned segment, also one that is left behind, has been compared
//!   with its checksum, where entries have one. A bit that turned over in a length leads past
//!   entries that live, and their replicas would be freed.
//! - CLEAN-10: survivors are compared with their checksums when all their replicas are closed,
//!   before the digest that lists them drops the victims. Replicas made of memory in which a bit
//!   had turned over would be the only ones.

mod balance;
mod choose;
mod combine;
mod compact;
mod entries;
mod lists;
mod looks;
#[cfg(feature = "made-up")]
pub mod made_up;
mod pages;
mod shared;

use crate::error::Corruption;
use crate::space::LogSpace;
use crate::stats::CleanerStats;
use choose::{Barren, Choice, WASTE_PERCENT_MIN};
use combine::Pass;
use compact::{Compaction, Finished};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use lists::Lists;
use looks::Turn;
use pages::{PagePolicy, PagesGivenBack};
use pluvio_format::Completion;
use pluvio_memory::PartIndex;
use pluvio_units::{EntryRef, KeyHash, Pace, TableId};
use shared::Shared;
use std::sync::{Arc, Mutex, TryLockError};

/// The questions of the cleaner to the owner of the indexes and of the table of results. Called
/// under a guard, never with a lock of the log.
pub trait Liveness: Send + Sync {
    /// The index of a table, for the length of a pass. `None` when nothing of the table lives here.
    fn table(&self, table: TableId) -> Option<Arc<dyn TableLiveness>>;

    /// Whether the result of this operation is exactly this record and still needed.
    fn needs_completion(&self, record: &Completion, entry: EntryRef) -> bool;

    /// Makes the table of results point to `new`, when it points to `old`; returns whether it did.
    /// `new` has the same content, which is durable (at `old`).
    fn relocate_completion(&self, record: &Completion, old: EntryRef, new: EntryRef) -> bool;
}

/// The questions of the cleaner to the index of a table. Called under a guard, never with a lock of
/// the log.
pub trait TableLiveness: Send + Sync {
    /// The hash of a key.
    fn hash(&self, key: &[u8]) -> KeyHash;

    /// Asks the processor for what the other calls with these hashes will look at first.
    fn prefetch_each(&self, _hashes: &[KeyHash]) {}

    /// Whether the index points to exactly this object. For assertions.
    fn points_to(&self, hash: KeyHash, entry: EntryRef) -> bool;

    /// Whether the index points to exactly this tombstone, which is durable. It may be taken out of
    /// the index instead: that it is needed on disk is the log's own business.
    fn needs_tombstone(&self, hash: KeyHash, entry: EntryRef) -> bool;

    /// Makes the index point to `new`, when it points to `old`; returns whether it did. `new` has
    /// the same content, which is durable (at `old`): a pending mark can be cleared.
    fn relocate(&self, hash: KeyHash, old: EntryRef, new: EntryRef) -> bool;
}

/// How memory is cleaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cleaning {
    /// Memory by compaction, disk by combined passes [LSM-DRAM §5]. Without replicas there is no
    /// disk to spare, and combined passes do everything.
    #[default]
    TwoLevel,
    /// Combined passes only.
    OneLevel,
}

/// Bounds and thresholds of the cleaner's work. Percentages above 100 count as 100.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanerOptions {
    /// One or two levels.
    pub cleaning: Cleaning,
    /// Cleaning of memory begins when less than this share of it is free [LSM-DRAM §5.2], in
    /// percent. A part of what live objects leave counts instead, if that is less
    /// ([`Self::idle_percent`]).
    pub compact_free_percent: u32,
    /// Below this share of free memory, in percent, combined passes alternate with compactions when
    /// there are many tombstones [LSM-DRAM §5.2]. Half of the share at which compaction begins
    /// counts instead, if that is less.
    pub combine_free_percent: u32,
    /// Combined passes begin when the log on disk is within this share of its limit [LSM-DRAM
    /// §5.2], in percent of the limit.
    pub disk_slack_percent: u32,
    /// Of the memory that live objects leave, so much may lie idle before it is cleaned, in
    /// percent. The more lies idle, the less dead data there is, and the more is copied for each
    /// byte gained.
    pub idle_percent: u32,
    /// A segment with less dead data than this, in percent, is cleaned only as a last choice
    /// [LSM-DRAM §7]. The copy costs more than it gains.
    pub dead_percent_min: u32,
    /// About as many bytes are scanned or copied by one step: 256 KiB are some 50 µs.
    pub slice_bytes: usize,
    /// Live bytes of one combined pass, as a multiple of a segment's size. More give a better
    /// sorting by age, and hold more memory until the pass is through.
    pub pass_segments_max: usize,
    /// How much more memory than live data, in percent, the log of an idle store may take. Above
    /// it, a store that is written little or not at all is cleaned to a quarter of it. Free memory
    /// goes back to the system then (`docs/memory.md`). `None` keeps every page.
    pub waste_percent: Option<u32>,
}

impl Default for CleanerOptions {
    fn default() -> Self {
        Self {
            cleaning: Cleaning::TwoLevel,
            compact_free_percent: 10,
            combine_free_percent: 2,
            disk_slack_percent: 10,
            idle_percent: 10,
            dead_percent_min: 2,
            slice_bytes: 256 << 10,
            pass_segments_max: 10,
            waste_percent: Some(20),
        }
    }
}

/// What a pass is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// It frees seglets.
    Memory,
    /// It makes the log on disk shorter, so that tombstones die, and takes no more seglets than it
    /// frees.
    Disk,
    /// It takes fewer segments than it frees, also with the head of its digest, and no more
    /// seglets.
    Slots,
}

/// A step found nothing to do, or waits for replicas or readers. The pause is the time in which a
/// full-speed writer fills a few seglets; a refused append and the durable hook may end it.
const IDLE: Pace = Pace::After(Duration::from_millis(2));

/// Where a pass stands.
enum Stage {
    /// No pass: look whether one is needed, choose segments.
    Choose,
    /// Read the chosen segments and note what lives.
    Scan(Pass),
    /// Copy what lives and tell the index.
    Relocate(Pass),
    /// Wait until survivors and the heads of all logs are durable, then exchange the segments.
    AwaitDurable(Pass),
    /// Read a segment and note what lives.
    CompactScan(Compaction),
    /// Copy what lives to fewer seglets and tell the index.
    CompactCopy(Compaction),
}

/// One of the passes that may go on at once.
struct State {
    stage: Stage,
    /// The part of memory whose logs it cleans [Nibble §4.4]. Nothing where there is one part, or
    /// where not every part gets one.
    home: Option<PartIndex>,
    /// Compactions that wait for all logs to be durable.
    finished: Finished,
    /// Combined cleaning was last; compaction is next when both are due.
    combined_last: bool,
    barren: Barren,
    pages: PagePolicy,
}

impl State {
    fn new(home: Option<PartIndex>) -> Self {
        Self {
            stage: Stage::Choose,
            home,
            finished: Finished::default(),
            combined_last: false,
            barren: Barren::default(),
            pages: PagePolicy::default(),
        }
    }
}

/// See the module. One for a log space, to be kept as long as that: a pass cannot be taken up by
/// another one. Any number of threads may step it; as many passes go on at once as
/// [`LogOptions::cleaners`](crate::LogOptions::cleaners) says.
pub struct Cleaner {
    shared: Shared,
    /// One for each pass that may go on at once; locked for a step.
    states: Box<[Mutex<State>]>,
    /// Whether each pass has a part of memory that it cleans first.
    has_homes: bool,
    /// Which state is stepped next, so that none is left in the middle of a pass.
    next: AtomicUsize,
}

impl Cleaner {
    /// A cleaner that has nothing to do yet.
    #[must_use]
    pub fn new(space: Arc<LogSpace>, liveness: Arc<dyn Liveness>, options: CleanerOptions) -> Self {
        let log_options = &space.storage().options;
        let (count, parts) = (log_options.cleaners, log_options.parts.len() as u16);
        let has_homes = (2..=count).contains(&parts);
        let state = |number| State::new(has_homes.then(|| PartIndex(number % parts)));
        Self {
            states: (0..count).map(|number| Mutex::new(state(number))).collect(),
            has_homes,
            next: AtomicUsize::new(0),
            shared: Shared {
                given_back: PagesGivenBack::default(),
                lists: Lists::new(usize::from(count)),
                turn: Turn::default(),
                space,
                liveness,
                options,
            },
        }
    }

    /// Does a bounded piece of work. `now_s` is the cluster's time in seconds. Never waits for
    /// another thread that steps this cleaner: when all passes are being stepped, there is nothing
    /// to do.
    ///
    /// # Errors
    /// [`Corruption`]: the process must stop.
    pub fn step(&self, now_s: u32) -> Result<Pace, Corruption> {
        self.step_from(self.next.fetch_add(1, Ordering::Relaxed), now_s)
    }

    /// [`Self::step`] for the thread with this number, from 0 on. Where memory is divided and each
    /// part has a thread, the thread goes on with a pass of its own. The pass is over segments of
    /// logs of part `thread % parts` [Nibble §4.4, §12.1.1]. The thread sees to other parts when
    /// that one has no work, or when another part has much less free.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn step_as(&self, thread: u16, now_s: u32) -> Result<Pace, Corruption> {
        if self.has_homes {
            self.step_from(usize::from(thread), now_s)
        } else {
            self.step(now_s)
        }
    }

    /// The memory node of the part that the thread with this number cleans first
    /// ([`Self::step_as`]): the place for it. `None` where it has no part, or the part no node.
    #[must_use]
    pub fn node_of(&self, thread: u16) -> Option<u32> {
        let parts = &self.shared.storage().options.parts;
        let own = self.has_homes.then(|| usize::from(thread) % parts.len());
        parts[own?].node
    }

    fn step_from(&self, first: usize, now_s: u32) -> Result<Pace, Corruption> {
        self.shared.storage().clock.follow(now_s);
        let mut pace = IDLE;
        if self.shared.storage().reclaim() > 0 {
            pace = Pace::Again;
        }
        for turn in 0..self.states.len() {
            let state = &self.states[first.wrapping_add(turn) % self.states.len()];
            let mut state = match state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Poisoned(_)) => {
                    panic!("a cleaner step panicked; its pass cannot go on")
                }
            };
            if self.step_one(&mut state)? == Pace::Again {
                return Ok(Pace::Again);
            }
        }
        Ok(pace)
    }

    fn step_one(&self, state: &mut State) -> Result<Pace, Corruption> {
        let shared = &self.shared;
        state.pages.note_step(shared.storage().clock.now_s());
        let exchanged = state.finished.exchange_ready(shared);
        let (next, pace) = match core::mem::replace(&mut state.stage, Stage::Choose) {
            Stage::Choose => self.choose(state),
            Stage::Scan(pass) => pass.scan(shared, &mut state.barren)?,
            Stage::Relocate(pass) => pass.relocate(shared)?,
            Stage::AwaitDurable(pass) => pass.await_durable(shared)?,
            Stage::CompactScan(compaction) => compaction.scan(shared)?,
            Stage::CompactCopy(compaction) => compaction.copy(shared, &mut state.finished)?,
        };
        state.stage = next;
        Ok(if exchanged { Pace::Again } else { pace })
    }

    /// The first stage of a pass.
    fn choose(&self, state: &mut State) -> (Stage, Pace) {
        let shared = &self.shared;
        let balance = shared.balance();
        shared.given_back.look_at_growth(shared.storage());
        let wanted = shared.space.heads.admission.take_wanted();
        let way = shared.space.heads.on_their_way();
        let waiting = way.seglets;
        if waiting > 0 && (wanted || balance.waits_for_digests()) {
            // Appends that are refused write no digest. Neither do passes: one after the other
            // would copy what lives, and nothing would leave the disk.
            shared.publish();
        }
        let Some(pressure) = balance.pressure(wanted, &way) else {
            state.pages.look_at_waste(shared);
            if waiting > 0 && balance.memory_low(0) {
                shared.publish();
            } else if state.pages.is_shrinking(shared.storage().clock.now_s()) {
                if let Some(stage) =
                    Choice::new(shared).combine(Goal::Memory, WASTE_PERCENT_MIN, state)
                {
                    state.pages.found_waste();
                    return (stage, Pace::Again);
                }
                shared.publish();
                state.pages.look_for_waste_in_heads(shared);
            }
            return (Stage::Choose, IDLE);
        };
        if let Some(stage) = Choice::new(shared).begin(pressure, wanted, state) {
            return (stage, Pace::Again);
        }
        // Cleaning is wanted still: others took the segments, or memory was refused.
        if wanted {
            shared.space.heads.admission.want_cleaning();
        }
        if waiting > 0 {
            shared.publish();
        } else if wanted && state.finished.is_empty() {
            shared.close_emptiest_head(0);
        }
        (Stage::Choose, IDLE)
    }
}

impl core::fmt::Debug for Cleaner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cleaner")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

/// The counters behind [`CleanerStats`].
#[derive(Default)]
pub(crate) struct CleanerCounters {
    pub passes: AtomicU64,
    pub compactions: AtomicU64,
    pub barren_passes: AtomicU64,
    pub segments_cleaned: AtomicU64,
    pub bytes_cleaned: AtomicU64,
    pub bytes_freed: AtomicU64,
    pub survivors: AtomicU64,
    pub bytes_moved: AtomicU64,
    pub bytes_compacted: AtomicU64,
    pub bytes_given_back: AtomicU64,
}

impl CleanerCounters {
    pub(crate) fn read(&self) -> CleanerStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CleanerStats {
            passes: read(&self.passes),
            compactions: read(&self.compactions),
            barren_passes: read(&self.barren_passes),
            segments_cleaned: read(&self.segments_cleaned),
            bytes_cleaned: read(&self.bytes_cleaned),
            bytes_freed: read(&self.bytes_freed),
            survivors: read(&self.survivors),
            bytes_moved: read(&self.bytes_moved),
            bytes_compacted: read(&self.bytes_compacted),
            bytes_given_back: read(&self.bytes_given_back),
            // Heads count their own.
            ..CleanerStats::default()
        }
    }
}
