//! Which write to backups is a part of a trace: of each log at most one at a time.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_trace::TraceContext;
use pluvio_units::SegmentId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Other writes after which it is over. A backup that is behind gets the bytes a little later than
/// the others.
const OTHERS_MAX: u32 = 8;

/// The trace of the next write of a log. Free as long as there is none: one load.
#[derive(Debug, Default)]
pub(crate) struct TracedWrite {
    is_there: AtomicBool,
    next: Mutex<Option<Next>>,
}

#[derive(Debug)]
struct Next {
    context: TraceContext,
    /// The segment and the end of the first write, once it is known.
    bytes: Option<(SegmentId, u32)>,
    others: u32,
}

impl TracedWrite {
    fn next(&self) -> MutexGuard<'_, Option<Next>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next write is a part of this trace, or of none.
    pub(crate) fn set(&self, context: Option<TraceContext>) {
        *self.next() = context.map(|context| Next {
            context,
            bytes: None,
            others: 0,
        });
        // Relaxed: a late look misses a span, and nothing else.
        self.is_there.store(context.is_some(), Ordering::Relaxed);
    }

    /// The trace of a write of new bytes in this range; `None` stands for writes of other kinds.
    /// The first one with bytes is the one that counts, and those that bring its end to other
    /// backups.
    pub(crate) fn of_write(&self, write: Option<(SegmentId, Range<u32>)>) -> Option<TraceContext> {
        if !self.is_there.load(Ordering::Relaxed) {
            return None;
        }
        let (segment, range) = write.filter(|(_, range)| !range.is_empty())?;
        let mut place = self.next();
        let next = place.as_mut()?;
        let bytes = *next.bytes.get_or_insert((segment, range.end));
        if bytes.0 == segment && range.start < bytes.1 && bytes.1 <= range.end {
            return Some(next.context);
        }
        next.others += 1;
        if next.others >= OTHERS_MAX {
            *place = None;
            self.is_there.store(false, Ordering::Relaxed);
        }
        None
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
        assert_eq!(traced.of_write(write(20, 30)), None, "later bytes");
        assert_eq!(
            traced.of_write(write(0, 30)),
            Some(context),
            "a backup was behind"
        );
        for _ in 1..OTHERS_MAX {
            assert_eq!(traced.of_write(Some((SegmentId(4), 0..20))), None);
        }
        assert_eq!(traced.of_write(write(10, 20)), None, "it is over");
        traced.set(Some(context));
        traced.set(None);
        assert_eq!(traced.of_write(write(30, 40)), None);
    }
}
