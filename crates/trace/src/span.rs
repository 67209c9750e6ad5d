//! One span: from its beginning to the record of it.

use crate::recorder::{Recorder, recorder};
use core::time::Duration;
use pluvio_env::{Moment, Rng};
use pluvio_units::TraceContext;
use std::sync::Arc;

/// The side of a request that a span stands for, as OpenTelemetry tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanKind {
    /// Work inside a process.
    Internal,
    /// A request that was answered.
    Server,
    /// A request that was sent.
    Client,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// A span that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpanRecord {
    /// Itself.
    pub context: TraceContext,
    /// The span that it belongs to; 0 if it begins the trace.
    pub parent: u64,
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: SpanKind,
    /// When it began, since 1970 by the wall clock.
    pub began: Duration,
    /// How long it took, by the monotonic clock.
    pub took: Duration,
    /// What else is known of it. Never keys or values of users.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// A span under way. It ends, and is recorded, when it is dropped.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    context: TraceContext,
    /// `None` where nobody records.
    open: Option<Box<Open>>,
}

#[derive(Debug)]
struct Open {
    recorder: Arc<Recorder>,
    began: Moment,
    record: SpanRecord,
}

impl Span {
    /// Begins a trace.
    pub fn root(rng: &dyn Rng, kind: SpanKind, name: &'static str) -> Self {
        let trace = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        Self::begin(TraceContext::sampled(trace, rng.next_u64()), 0, kind, name)
    }

    /// Begins a part of what has this place in a trace. Without a recorder it is that place itself.
    pub fn child(of: TraceContext, kind: SpanKind, name: &'static str) -> Self {
        match recorder() {
            Some(recorder) if of.is_sampled() => {
                let context = of.with_span(recorder.rng.next_u64());
                Self::begin(context, of.span, kind, name)
            }
            Some(_) | None => Self {
                context: of,
                open: None,
            },
        }
    }

    fn begin(context: TraceContext, parent: u64, kind: SpanKind, name: &'static str) -> Self {
        let open = recorder().map(|recorder| {
            Box::new(Open {
                began: recorder.clock.now(),
                record: SpanRecord {
                    context,
                    parent,
                    name,
                    kind,
                    began: recorder.clock.unix_time(),
                    took: Duration::ZERO,
                    attributes: Vec::new(),
                    error: None,
                },
                recorder,
            })
        });
        Self { context, open }
    }

    /// Its place in the trace: the parent of what it makes happen.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// Notes something of it. `value` is asked only if it is recorded.
    pub fn note(&mut self, name: &'static str, value: impl FnOnce() -> Value) {
        if let Some(open) = &mut self.open {
            open.record.attributes.push((name, value()));
        }
    }

    /// Notes that it failed, and why.
    pub fn fail(&mut self, why: impl FnOnce() -> String) {
        if let Some(open) = &mut self.open {
            open.record.error = Some(why());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let Open {
                recorder,
                began,
                mut record,
            } = *open;
            record.took = recorder.clock.now().since(began);
            recorder.record(record);
        }
    }
}
