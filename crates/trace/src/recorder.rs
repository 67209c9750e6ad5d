//! Where spans of a process wait for the one that exports them.

use crate::span::SpanRecord;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_env::{Clock, Rng};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Spans that wait at most: about two megabytes.
const WAITING_MAX: usize = 8192;

/// Keeps the spans of a process until they are taken.
pub struct Recorder {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    waiting: Mutex<VecDeque<SpanRecord>>,
    recorded: AtomicU64,
    exported: AtomicU64,
    dropped: AtomicU64,
}

/// What became of spans since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Recorded.
    pub recorded: u64,
    /// Of them taken by the collector.
    pub exported: u64,
    /// Of them dropped: too many waited, or the collector did not take them.
    pub dropped: u64,
}

impl Recorder {
    /// An empty one.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            clock,
            rng,
            waiting: Mutex::default(),
            recorded: AtomicU64::new(0),
            exported: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<SpanRecord>> {
        // Held for single steps.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a span, or drops it if too many wait (TRACE-1).
    pub(crate) fn record(&self, span: SpanRecord) {
        self.recorded.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.waiting();
        if waiting.len() < WAITING_MAX {
            waiting.push_back(span);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many spans wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting().len()
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the oldest spans, at most this many. The taker says what became of them
    /// ([`Recorder::left`]).
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<SpanRecord> {
        let mut waiting = self.waiting();
        let count = waiting.len().min(most);
        waiting.drain(..count).collect()
    }

    /// Counts spans that were taken: whether they were exported, or are dropped.
    pub fn left(&self, count: usize, is_exported: bool) {
        let counter = match is_exported {
            true => &self.exported,
            false => &self.dropped,
        };
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// What became of spans.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            recorded: self.recorded.load(Ordering::Relaxed),
            exported: self.exported.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

static RECORDER: OnceLock<Arc<Recorder>> = OnceLock::new();

/// Makes it the recorder of this process. False: there is another one, which stays.
pub fn install(recorder: Arc<Recorder>) -> bool {
    RECORDER.set(recorder).is_ok()
}

/// The recorder of this process, if it has one.
#[must_use]
pub fn recorder() -> Option<Arc<Recorder>> {
    RECORDER.get().cloned()
}
