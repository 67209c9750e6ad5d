//! The part of an owner in the trace of a sampled operation.

use pluvio_env::{BoxFuture, Handled};
use pluvio_master::Master;
use pluvio_trace::{Span, SpanKind, TraceContext, follow, within};
use pluvio_units::LogId;
use pluvio_wire::Answer;
use std::sync::Arc;

/// What an operation gives at once: its answer, or a future of it.
pub(crate) trait Executed: Sized {
    /// What the future gives.
    type Answer: Send + 'static;
    /// The future, if there is one.
    fn into_later(self) -> Result<BoxFuture<'static, Self::Answer>, Self>;
    /// The other way.
    fn later(future: BoxFuture<'static, Self::Answer>) -> Self;
}

impl Executed for Handled {
    type Answer = pluvio_env::Frame;

    fn into_later(self) -> Result<BoxFuture<'static, Self::Answer>, Self> {
        match self {
            Self::Later(future) => Ok(future),
            Self::Now(_) => Err(self),
        }
    }

    fn later(future: BoxFuture<'static, Self::Answer>) -> Self {
        Self::Later(future)
    }
}

impl<T: Send + 'static> Executed for Answer<T> {
    type Answer = Result<T, pluvio_wire::Refusal>;

    fn into_later(self) -> Result<BoxFuture<'static, Self::Answer>, Self> {
        match self {
            Self::Later(future) => Ok(future),
            Self::Now(_) => Err(self),
        }
    }

    fn later(future: BoxFuture<'static, Self::Answer>) -> Self {
        Self::Later(future)
    }
}

/// Executes a sampled operation and follows it to its end. If it may append (`master`), the write
/// to backups that has its bytes is a part of the trace.
pub(crate) fn execute_traced<A: Executed>(
    master: Option<&Arc<Master>>,
    log: LogId,
    context: TraceContext,
    operation: impl FnOnce() -> A,
) -> A {
    if let Some(master) = master {
        master.replication().trace_next(log, Some(context));
    }
    let executed = {
        let span = Span::child(context, SpanKind::Internal, "execute");
        within(span.context(), operation)
    };
    match executed.into_later() {
        Ok(future) => {
            let span = Span::child(context, SpanKind::Internal, "wait");
            A::later(follow(span, future))
        }
        Err(now) => {
            // It appended nothing, or all of it is durable.
            if let Some(master) = master {
                master.replication().trace_next(log, None);
            }
            now
        }
    }
}
