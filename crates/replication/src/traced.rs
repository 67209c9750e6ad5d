//! Which write to backups is a part of a trace: of each log at most one at a time.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_trace::TraceContext;
use pluvio_units::SegmentId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of a write: they are the same for all backups.
type Bytes = (SegmentId, u32);

/// The trace of the next write of a log. Free as long as there is none: one load.
#[derive(Debug, Default)]
pub(crate) struct TracedWrite {
    is_there: AtomicBool,
    /// The trace, and the write once it is known.
    next: Mutex<Option<(TraceContext, Option<Bytes>)>>,
}

impl TracedWrite {
    fn next(&self) -> MutexGuard<'_, Option<(TraceContext, Option<Bytes>)>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next write is a part of this trace, or of none.
    pub(crate) fn set(&self, context: Option<TraceContext>) {
        *self.next() = context.map(|context| (context, None));
        // Relaxed: a late look misses a span, and nothing else.
        self.is_there.store(context.is_some(), Ordering::Relaxed);
    }

    /// The trace of a write of new bytes in this range; `None` stands for writes of other kinds.
    /// The first one with bytes is the one that counts, and its copies for other backups.
    pub(crate) fn of_write(&self, write: Option<(SegmentId, Range<u32>)>) -> Option<TraceContext> {
        if !self.is_there.load(Ordering::Relaxed) {
            return None;
        }
        let (segment, range) = write.filter(|(_, range)| !range.is_empty())?;
        let bytes = (segment, range.end);
        let mut next = self.next();
        let (context, of) = (*next)?;
        match of {
            None => {
                *next = Some((context, Some(bytes)));
                Some(context)
            }
            Some(of) if of == bytes => Some(context),
            Some(_) => {
                *next = None;
                self.is_there.store(false, Ordering::Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_write_and_its_copies_are_a_part_of_the_trace() {
        let traced = TracedWrite::default();
        let write = |from, to| Some((SegmentId(3), from..to));
        assert_eq!(traced.of_write(write(0, 10)), None);
        let context = TraceContext::sampled(1, 2);
        traced.set(Some(context));
        assert_eq!(traced.of_write(None), None, "another kind of write");
        assert_eq!(traced.of_write(write(10, 10)), None, "no bytes");
        assert_eq!(traced.of_write(write(10, 20)), Some(context));
        assert_eq!(
            traced.of_write(write(0, 20)),
            Some(context),
            "it was behind"
        );
        assert_eq!(traced.of_write(write(20, 30)), None);
        assert_eq!(traced.of_write(write(10, 20)), None, "it is over");
        traced.set(Some(context));
        traced.set(None);
        assert_eq!(traced.of_write(write(30, 40)), None);
    }
}
