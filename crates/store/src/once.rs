//! Updates with an identity: what the store does so that an operation is executed once.

use crate::completions::Execution;
use crate::engine::{Engine, EngineError};
use crate::read::Pending;
use pluvio_format::{Entry, Outcome};
use pluvio_log::{AppendClass, Appended};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, LogId, ObjectVersion};

/// What an update comes to, before its result is known to be durable.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'e, E> {
    /// A value is written.
    Put {
        /// The object's new version.
        version: ObjectVersion,
        /// The version before; 0 when there was no object.
        replaced: ObjectVersion,
    },
    /// The object is deleted.
    Deleted {
        /// Its version.
        version: ObjectVersion,
    },
    /// Nothing changes.
    Unchanged {
        /// The object's version; 0 when there is none.
        version: ObjectVersion,
    },
    /// The caller refused.
    Refused(&'e E),
}

/// The identity of an update.
pub struct Once<'o, E> {
    /// Its admission.
    pub execution: Execution,
    /// The result to keep; `None` for refusals after which a retry is to be executed.
    pub outcome: &'o dyn Fn(Effect<'_, E>) -> Option<Outcome>,
}

/// An execution with its result.
pub(crate) struct Kept {
    execution: Execution,
    outcome: Outcome,
}

impl<E> Once<'_, E> {
    /// What to keep of this effect.
    pub(crate) fn keep(self, effect: Effect<'_, E>) -> Option<Kept> {
        let outcome = (self.outcome)(effect)?;
        Some(Kept {
            execution: self.execution,
            outcome,
        })
    }
}

impl Kept {
    /// The record to append, as the last entry of the group.
    pub(crate) fn record(&self) -> Entry<'static> {
        Entry::Completion(self.execution.record(self.outcome))
    }

    /// The group with the record was appended; its guard is still held (COMP-5).
    pub(crate) fn appended<T>(self, group: &Appended<T>, record: EntryRef) {
        let pending = Pending {
            log: group.log(),
            position: group.position(),
        };
        self.execution
            .complete(self.outcome, Some(record), Some(pending));
    }

    /// The result of a store without replicas, or one that is kept in memory only.
    pub(crate) fn volatile(self) {
        self.execution.complete(self.outcome, None, None);
    }
}

impl Engine {
    /// Keeps the result of an operation that changed nothing. `log` is that of `pending`, if there
    /// is one, so what the result rests on is durable when its record is (STORE-5).
    pub(crate) fn keep_unchanged<E>(
        &self,
        log: LogId,
        once: Once<'_, E>,
        effect: Effect<'_, E>,
        pending: Option<Pending>,
        guard: &EpochGuard<'_>,
    ) -> Result<Option<Pending>, EngineError> {
        let Some(kept) = once.keep(effect) else {
            return Ok(pending);
        };
        if !self.is_durable_store() {
            kept.volatile();
            return Ok(pending);
        }
        let group = self.append(log, &[kept.record()], AppendClass::Internal, guard)?;
        let pending = Pending {
            log,
            position: group.position(),
        };
        kept.appended(&group, group.pending()[0]);
        Ok(Some(pending))
    }
}
