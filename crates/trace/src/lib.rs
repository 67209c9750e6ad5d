//! Spans of sampled requests: who records them, and how they follow a request over processes.
//!
//! ```text
//!  client or Redis port        owner                     backup
//!  ┌ root span ──────────┐     ┌ "Mutate" ─────────┐     ┌ "WriteReplica" ┐
//!  │ ┌ "Mutate" ───────┐ │ ──► │ execute │ wait    │ ──► │                │
//!  │ └─────────────────┘ │     │ ┌ "WriteReplica" ┐│     └────────────────┘
//!  └─────────────────────┘     └─┴────────────────┴┘
//! ```
//!
//! Where a request enters (a client, a Redis port), it is decided whether it is sampled
//! ([`Sampler`]). A sampled one runs under its [`TraceContext`]. That is a value of the thread
//! while a future of the request is polled ([`follow`]). [`Traceable`], a network, puts requests
//! that are sent meanwhile into an envelope. [`answer`] takes them out on the other side. A
//! [`Span`] records itself when it is dropped.
//!
//! Invariants
//! - TRACE-1: nobody waits for the recording of a span. The ring of the [`Recorder`] is bounded; a
//!   span that finds it full is dropped and counted.
//! - TRACE-2: an unsampled request has no envelope and no span, and allocates nothing for either.
//! - TRACE-3: a request whose envelope a process does not know is sent again without it. Nothing
//!   was executed before (WIRE-6), so it is executed once.
//!
//! A process has one recorder ([`install`]), or none: then it hands on the contexts that it gets.
//!
//! Limits: no export (crate `otlp` does that), no sampling by outcome.

mod current;
mod network;
mod recorder;
mod sampler;
mod span;

pub use current::{current, follow, within};
pub use network::{Traceable, answer};
pub use pluvio_units::TraceContext;
pub use recorder::{Counts, Recorder, install, recorder};
pub use sampler::Sampler;
pub use span::{Span, SpanKind, SpanRecord, Value};
