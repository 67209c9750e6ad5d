//! The trace that the code of this thread runs for.

use crate::span::Span;
use core::cell::Cell;
use core::future::poll_fn;
use pluvio_env::BoxFuture;
use pluvio_units::TraceContext;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// The place in a trace that this thread works for right now, if the work is sampled.
#[must_use]
pub fn current() -> Option<TraceContext> {
    CURRENT.get()
}

/// Puts back what was there before, also when the work panics.
struct Before(Option<TraceContext>);

impl Drop for Before {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Does work for this place in a trace.
pub fn within<T>(context: TraceContext, work: impl FnOnce() -> T) -> T {
    let _before = Before(CURRENT.replace(Some(context)));
    work()
}

/// Runs a future under a span, which ends with it. Dropping the future ends the span, too.
pub fn follow<'a, T: Send + 'a>(span: Span, mut future: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    let context = span.context();
    Box::pin(async move {
        let result = poll_fn(|cx| within(context, || future.as_mut().poll(cx))).await;
        drop(span);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn work_ends_with_the_trace_that_was_current_before() {
        let outer = TraceContext::sampled(1, 1);
        let inner = TraceContext::sampled(1, 2);
        assert_eq!(current(), None);
        within(outer, || {
            within(inner, || assert_eq!(current(), Some(inner)));
            assert_eq!(current(), Some(outer));
            let panicked = catch_unwind(AssertUnwindSafe(|| within(inner, || panic!("at work"))));
            assert!(panicked.is_err());
            assert_eq!(current(), Some(outer));
        });
        assert_eq!(current(), None);
    }
}
