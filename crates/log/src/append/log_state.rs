//! The state of one log: head, members, what replication has and has not done.
//!
//! Lock order, outermost first: `head`, `members`, `queue`, then `map` of the segment table,
//! then the tombstones of one segment at a time. The list of what is retired comes before a
//! segment's list of seglets. Under that list, `free_slots` and the lock of the seglet pool no
//! other is taken.

use super::roster::Roster;
use super::writer::SegmentWriter;
use crate::durable::{AtomicPosition, Durability};
use crate::segments::{Departure, OnTheirWay, Segment};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_memory::PartIndex;
use pluvio_units::{LogId, SegmentId};
use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Called when something happened that another party may wait for. Must be short and must not
/// block. A hook of appends must not call the log. A hook of durability may look at entries.
pub type Hook = Box<dyn Fn() + Send + Sync>;

/// Which segments a log consists of.
#[derive(Default)]
pub(crate) struct Members {
    /// What the next digest lists: heads and committed side segments, without those that leave.
    pub in_log: Roster,
    /// Out of `in_log` and not yet out of a digest.
    pub leaving: Vec<Arc<Segment>>,
    /// `in_log` has changed since the newest digest was written.
    pub unpublished: bool,
    /// For each head whose digest is not yet durable: what is freed once it is. Ascending.
    pub dropped_by: VecDeque<(SegmentId, Vec<Arc<Segment>>)>,
    /// Segments whose replicas are to be freed.
    pub freeable: Vec<SegmentId>,
}

impl Members {
    /// Takes what the digests up to `head` dropped.
    pub(crate) fn take_dropped(&mut self, head: SegmentId) -> Vec<Arc<Segment>> {
        let mut all = Vec::new();
        while let Some((id, dropped)) = self.dropped_by.pop_front() {
            if id > head {
                self.dropped_by.push_front((id, dropped));
                break;
            }
            all.extend(dropped);
        }
        all
    }

    /// Takes segments out whose entries nothing points to, to leave with the next digest. Returns
    /// the ids that are not there.
    fn drop_committed(&mut self, segments: &[SegmentId]) -> Vec<SegmentId> {
        let mut unknown = Vec::new();
        for id in segments {
            match self.in_log.remove(id) {
                Some(segment) => {
                    segment.leave(Departure::Dropped);
                    self.leaving.push(segment);
                    self.unpublished = true;
                }
                None => unknown.push(*id),
            }
        }
        unknown
    }

    /// Adds what waits for a digest to be written, or to become durable.
    pub(crate) fn add_to(&self, way: &mut OnTheirWay) {
        let dropped = self.dropped_by.iter().flat_map(|(_, segments)| segments);
        for segment in self.leaving.iter().chain(dropped) {
            way.seglets += segment.contents().seglets();
            way.slots += 1;
            way.disk_bytes += u64::from(segment.disk_len());
        }
    }
}

/// See the module. Two logs share no cache line, nor a pair of lines that is fetched together: each
/// core works on its own.
#[repr(align(128))]
pub(crate) struct LogState {
    pub id: LogId,
    /// The part of the memory that its seglets are of, as long as there are some.
    pub part: PartIndex,
    /// `None` only while the log space is being made.
    head: SpinMutex<Option<SegmentWriter>>,
    /// A thread panicked while it had the head.
    broken: AtomicBool,
    members: Mutex<Members>,
    /// Segments that replication has not seen yet; ids ascend because they are given out under
    /// this lock.
    queue: Mutex<VecDeque<Arc<Segment>>>,
    pub durable: AtomicPosition,
    /// Nothing that is appended becomes durable before a backup has space again.
    pub is_stalled: AtomicBool,
    pub append_hook: OnceLock<Hook>,
    pub durable_hook: OnceLock<Hook>,
}

/// How often a waiter spins before it gives its processor away. An append takes less than a
/// microsecond, unless its thread was preempted or opens a head; then spinning is in the way.
const SPINS: u32 = 100;

/// See [`LogState::head`].
pub(crate) struct HeadGuard<'a> {
    guard: SpinMutexGuard<'a, Option<SegmentWriter>>,
    broken: &'a AtomicBool,
    /// The thread was panicking when it took the head, which is then as it was.
    was_panicking: bool,
}

impl Deref for HeadGuard<'_> {
    type Target = Option<SegmentWriter>;

    #[inline(always)]
    fn deref(&self) -> &Option<SegmentWriter> {
        &self.guard
    }
}

impl DerefMut for HeadGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Option<SegmentWriter> {
        &mut self.guard
    }
}

impl Drop for HeadGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            // Relaxed: giving the head back releases it.
            self.broken.store(true, Ordering::Relaxed);
        }
    }
}

impl LogState {
    pub(crate) fn new(id: LogId, part: PartIndex, durability: Durability) -> Self {
        Self {
            id,
            part,
            head: SpinMutex::new(None),
            broken: AtomicBool::new(false),
            members: Mutex::default(),
            queue: Mutex::default(),
            durable: AtomicPosition::new(durability),
            is_stalled: AtomicBool::new(false),
            append_hook: OnceLock::new(),
            durable_hook: OnceLock::new(),
        }
    }

    /// The head, for this thread alone: any other that wants it spins, and then yields.
    ///
    /// A lock that waiters sleep in would have to be given back by a locked instruction, to learn
    /// of them. That instruction waits for the stores of the entry, so the cache misses of two
    /// operations would not overlap. A core's head is rarely wanted by two threads at once.
    ///
    /// # Panics
    /// When a thread panicked while it had the head.
    #[inline(always)]
    pub(crate) fn head(&self) -> HeadGuard<'_> {
        let guard = self.head.try_lock().unwrap_or_else(|| self.wait_for_head());
        assert!(
            !self.broken.load(Ordering::Relaxed),
            "a thread panicked while it changed the head; the log cannot go on"
        );
        HeadGuard {
            guard,
            broken: &self.broken,
            was_panicking: std::thread::panicking(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_head(&self) -> SpinMutexGuard<'_, Option<SegmentWriter>> {
        let mut attempt = 0_u32;
        loop {
            if attempt < SPINS {
                core::hint::spin_loop();
                attempt += 1;
            } else {
                std::thread::yield_now();
            }
            if !self.head.is_locked()
                && let Some(guard) = self.head.try_lock()
            {
                return guard;
            }
        }
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        self.members
            .lock()
            .expect("a thread panicked while it changed the log; the log cannot go on")
    }

    /// Lets the cleaner have segments that were committed while they were held.
    pub(crate) fn release(&self, segments: &[SegmentId]) {
        let members = self.members();
        for segment in segments.iter().filter_map(|id| members.in_log.get(id)) {
            segment.uses().release();
        }
    }

    /// Removes segments that a side log had committed. Returns the ids that are not in the log.
    pub(crate) fn drop_committed(&self, segments: &[SegmentId]) -> Vec<SegmentId> {
        self.members().drop_committed(segments)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, VecDeque<Arc<Segment>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn call(hook: &OnceLock<Hook>) {
        if let Some(hook) = hook.get() {
            hook();
        }
    }
}
