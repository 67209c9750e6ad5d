//! `tracing` events with virtual time, in the trace's text and in the list of warnings.

use crate::executor::Shared;
use core::fmt::{self, Write};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Receives the events of one simulation, while it runs. Spans are accepted and ignored: the
/// process and task that run say where an event comes from.
pub(crate) struct SimSubscriber {
    pub(crate) shared: Weak<Shared>,
    pub(crate) level: Level,
    pub(crate) span_last: AtomicU64,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = if field.name() == "message" {
            write!(self.0, " {value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
        written.expect("writing to a string does not fail");
    }
}

impl Subscriber for SimSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.span_last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        // The values' own code runs here, before the lock is taken (SIM-3).
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let metadata = event.metadata();
        let mut state = shared.lock();
        let place = state.current.as_ref().map_or_else(
            || "-".to_string(),
            |current| format!("{} [{}]", state.name(current.owner.process), current.name),
        );
        let level = metadata.level();
        let line = format!("{place} {level} {}:{}", metadata.target(), fields.0);
        let now = state.now;
        state.trace.line(now, &line);
        if *level <= Level::WARN {
            state.trace.warning(now, &line);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
