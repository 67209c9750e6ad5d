//! The cleaner: combined cleaning of one log at a time (000 §3, §6), as a state machine.
//!
//! A pass goes through the stages of `Stage`: segments are *scanned* for live entries, these are
//! *relocated* to survivor segments in the order of their age, the survivors and everything that made the
//! other entries dead become *durable*, and one digest exchanges the old segments for the new ones.
//! Each [`Cleaner::step`] does a bounded piece; between steps nothing is locked. Threads drive it in
//! production, the simulator one step at a time.
//!
//! - CLEAN-1: only closed, durable segments are cleaned, and only after every guard that was held when they
//!   were closed is gone. So each of their entries has reached the index, or never will.
//! - CLEAN-2: an entry that is not copied stays dead on disk: before the digest, each log is
//!   durable up to where it was when the pass looked at the index for the last time.
//! - CLEAN-3: survivors are listed by a digest only when they are durable; the same digest stops
//!   listing the segments they come from.
//! - CLEAN-4: a pass takes all memory it needs before it copies anything, less than what it frees.
//!   So it always finishes, and frees at least one seglet.
//! - CLEAN-5: a tombstone is dropped only when the segment it names is gone from disk, or goes with
//!   the same digest or an earlier one of the same log.
//! - CLEAN-6: a survivor holds no copy of an object that the index was not swung to. Such a copy would
//!   be dead on disk without a tombstone that names the survivor, and would come back to life once the
//!   newer version and its tombstone are gone.

mod choose;
mod pass;

use crate::error::Corruption;
use crate::space::LogSpace;
use crate::stats::CleanerStats;
use crate::view::EntryView;
use core::sync::atomic::{AtomicU64, Ordering};
use pass::Pass;
use pluvio_units::EntryRef;
use std::sync::{Arc, Mutex};

/// What the cleaner asks the owner of the index and of the completion records. Called under a guard, never with a lock of the log.
pub trait Liveness: Send + Sync {
    /// Whether the index points to exactly this object or tombstone, or the record of this operation is
    /// this entry and still needed. A tombstone that is needed only on disk is the log's own business.
    fn is_live(&self, entry: EntryRef, view: &EntryView<'_>) -> bool;

    /// Makes what points to `old` point to `new`; returns whether anything did. `new` has
    /// the same bytes, which are durable (at `old`): a pending mark can be cleared.
    fn relocate(&self, old: EntryRef, new: EntryRef, view: &EntryView<'_>) -> bool;
}

/// Bounds of the cleaner's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanerOptions {
    /// About as many bytes are scanned or copied by one step: 256 KiB are some 50 µs.
    pub slice_bytes: usize,
    /// Live bytes of one pass, as a multiple of a segment's size. More give a better sorting by
    /// age, and hold more memory until the pass is through.
    pub pass_segments_max: usize,
}

impl Default for CleanerOptions {
    fn default() -> Self {
        Self {
            slice_bytes: 256 << 10,
            pass_segments_max: 10,
        }
    }
}

/// What the driver should do after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum CleanerPace {
    /// There is more to do: call again soon.
    Again,
    /// Nothing to do, or waiting for replicas or readers: call again after some milliseconds, or
    /// when an append was refused, or after the durable hook.
    Idle,
}

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
}

/// See the module. One for a log space; it may be stepped by any thread, one at a time.
pub struct Cleaner {
    space: Arc<LogSpace>,
    liveness: Arc<dyn Liveness>,
    options: CleanerOptions,
    stage: Mutex<Stage>,
}

impl Cleaner {
    /// A cleaner that has nothing to do yet.
    #[must_use]
    pub fn new(space: Arc<LogSpace>, liveness: Arc<dyn Liveness>, options: CleanerOptions) -> Self {
        Self {
            space,
            liveness,
            options,
            stage: Mutex::new(Stage::Choose),
        }
    }

    /// Does a bounded piece of work. `now_s` is the cluster's time in seconds.
    ///
    /// # Errors
    /// [`Corruption`]: the process must stop.
    pub fn step(&self, now_s: u32) -> Result<CleanerPace, Corruption> {
        self.space.set_time(now_s);
        let mut stage = self
            .stage
            .lock()
            .expect("a cleaner step panicked; its pass cannot go on");
        let reclaimed = self.space.reclaim() > 0;
        let (next, pace) = match core::mem::replace(&mut *stage, Stage::Choose) {
            Stage::Choose => self.choose(),
            Stage::Scan(pass) => self.scan(pass)?,
            Stage::Relocate(pass) => self.relocate(pass)?,
            Stage::AwaitDurable(pass) => self.await_durable(pass),
        };
        *stage = next;
        Ok(if reclaimed { CleanerPace::Again } else { pace })
    }
}

impl core::fmt::Debug for Cleaner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cleaner")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The counters behind [`CleanerStats`].
#[derive(Default)]
pub(crate) struct CleanerCounters {
    pub passes: AtomicU64,
    pub barren_passes: AtomicU64,
    pub segments_cleaned: AtomicU64,
    pub bytes_cleaned: AtomicU64,
    pub survivors: AtomicU64,
    pub bytes_moved: AtomicU64,
    pub forced_digests: AtomicU64,
    pub emergency_heads: AtomicU64,
}

impl CleanerCounters {
    pub(crate) fn read(&self) -> CleanerStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CleanerStats {
            passes: read(&self.passes),
            barren_passes: read(&self.barren_passes),
            segments_cleaned: read(&self.segments_cleaned),
            bytes_cleaned: read(&self.bytes_cleaned),
            survivors: read(&self.survivors),
            bytes_moved: read(&self.bytes_moved),
            forced_digests: read(&self.forced_digests),
            emergency_heads: read(&self.emergency_heads),
        }
    }
}
