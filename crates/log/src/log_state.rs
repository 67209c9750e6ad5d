//! The state of one log: head, members, what replication has and has not done.
//!
//! Lock order, outermost first: `head`, `members`, `queue`, then `on_disk` of the log space, then `tombstones` of one segment
//! at a time. `retired` of the log space comes before a segment's list of seglets. Under that list, `free_slots` and the lock
//! of the seglet pool no other is taken.

use crate::durable::{AtomicPosition, Durability};
use crate::segment::Segment;
use crate::writer::SegmentWriter;
use pluvio_memory::PartIndex;
use pluvio_units::{LogId, SegmentId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Called when something happened that another party may wait for. Must be short, must not block,
/// must not call the log.
pub type Hook = Box<dyn Fn() + Send + Sync>;

/// Which segments a log consists of.
#[derive(Default)]
pub(crate) struct Members {
    /// What the next digest lists: heads and committed side segments, without those that leave.
    pub in_log: BTreeMap<SegmentId, Arc<Segment>>,
    /// Out of `in_log` and not yet out of a digest.
    pub leaving: Vec<Arc<Segment>>,
    /// `in_log` has changed since the newest digest was written.
    pub unpublished: bool,
    /// For each head whose digest is not yet durable: what is freed once it is. Ascending.
    pub dropped_by: VecDeque<(SegmentId, Vec<Arc<Segment>>)>,
    /// Segments whose replicas are to be freed.
    pub freeable: Vec<SegmentId>,
}

/// See the module. Two logs share no cache line, nor a pair of lines that is fetched together: each core works on its own.
#[repr(align(128))]
pub(crate) struct LogState {
    pub id: LogId,
    /// The part of the memory that its seglets are of, as long as there are some.
    pub part: PartIndex,
    /// `None` only while the log space is being made.
    head: Mutex<Option<SegmentWriter>>,
    members: Mutex<Members>,
    /// Segments that replication has not seen yet; ids ascend because they are given out under
    /// this lock.
    queue: Mutex<VecDeque<Arc<Segment>>>,
    pub durable: AtomicPosition,
    pub append_hook: OnceLock<Hook>,
    pub durable_hook: OnceLock<Hook>,
}

impl LogState {
    pub(crate) fn new(id: LogId, part: PartIndex, durability: Durability) -> Self {
        Self {
            id,
            part,
            head: Mutex::new(None),
            members: Mutex::default(),
            queue: Mutex::default(),
            durable: AtomicPosition::new(durability),
            append_hook: OnceLock::new(),
            durable_hook: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn head(&self) -> MutexGuard<'_, Option<SegmentWriter>> {
        self.head
            .lock()
            .expect("a thread panicked while it changed the head; the log cannot go on")
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        self.members
            .lock()
            .expect("a thread panicked while it changed the log; the log cannot go on")
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
