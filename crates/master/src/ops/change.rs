//! Writing, deleting and incrementing one object, each operation once.

use crate::master::Master;
use crate::number;
use pluvio_format::Outcome;
use pluvio_store::{
    Admission, Change, Current, Effect, EngineError, EngineTable, Execution, Once, Pending, Update,
    Updated,
};
use pluvio_units::{LogId, ObjectVersion, OperationId, TableId};
use pluvio_wire::{
    Answer, Delete, DeleteReply, FatalKind, Header, Increment, IncrementReply, Number, Refusal,
    RejectRules, RetryReason, Write, WriteReply,
};
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// How long the sender of a duplicate should wait for the original to end: it runs on another core
/// right now.
const DUPLICATE_RETRY: Duration = Duration::from_micros(500);
/// How long to wait for others' results to be acknowledged.
const RESULTS_RETRY: Duration = Duration::from_millis(5);

impl Master {
    /// Writes one object; answers when it is durable.
    pub fn write(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        request: &Write,
    ) -> Answer<WriteReply> {
        let decide = |current: Option<Current<'_>>| {
            check(&request.rules, current)?;
            Ok(Change::Put(Cow::Borrowed(&request.value[..])))
        };
        let outcome = |effect: Effect<'_, Refusal>| match effect {
            Effect::Put { version, replaced } => Some(Outcome::Written { version, replaced }),
            Effect::Refused(refusal) => refused(refusal),
            Effect::Deleted { .. } | Effect::Unchanged { .. } => None,
        };
        self.change(
            log,
            header,
            (request.table, &request.key),
            decide,
            &outcome,
            |outcome| match outcome {
                Outcome::Written { version, replaced } => Ok(WriteReply { version, replaced }),
                other => Err(refusal_again(other, None)),
            },
        )
    }

    /// Deletes one object; answers when that is durable.
    pub fn delete(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        request: &Delete,
    ) -> Answer<DeleteReply> {
        let decide = |current: Option<Current<'_>>| {
            check(&request.rules, current)?;
            Ok(Change::Delete)
        };
        let outcome = |effect: Effect<'_, Refusal>| match effect {
            Effect::Deleted { version } | Effect::Unchanged { version } => {
                Some(Outcome::Deleted { version })
            }
            Effect::Refused(refusal) => refused(refusal),
            Effect::Put { .. } => None,
        };
        self.change(
            log,
            header,
            (request.table, &request.key),
            decide,
            &outcome,
            |outcome| match outcome {
                Outcome::Deleted { version } => Ok(DeleteReply { deleted: version }),
                other => Err(refusal_again(other, None)),
            },
        )
    }

    /// Adds to the number in one object; answers when the sum is durable.
    pub fn increment(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        request: &Increment,
    ) -> Answer<IncrementReply> {
        let sum = Cell::new(Number::Integer(0));
        let decide = |current: Option<Current<'_>>| {
            check(&request.rules, current)?;
            let (value, text) = number::add(current.map(|c| c.value), request.by)?;
            sum.set(value);
            Ok(Change::Put(Cow::Owned(text)))
        };
        let outcome = |effect: Effect<'_, Refusal>| match effect {
            Effect::Put { version, .. } => Some(match sum.get() {
                Number::Integer(sum) => Outcome::Added { version, sum },
                Number::Float(sum) => Outcome::AddedFloat {
                    version,
                    sum_bits: sum.to_bits(),
                },
            }),
            Effect::Refused(refusal) => refused(refusal),
            Effect::Deleted { .. } | Effect::Unchanged { .. } => None,
        };
        let by = request.by;
        self.change(
            log,
            header,
            (request.table, &request.key),
            decide,
            &outcome,
            move |outcome| match outcome {
                Outcome::Added { version, sum } => Ok(IncrementReply {
                    version,
                    value: Number::Integer(sum),
                }),
                Outcome::AddedFloat { version, sum_bits } => Ok(IncrementReply {
                    version,
                    value: Number::Float(f64::from_bits(sum_bits)),
                }),
                other => Err(refusal_again(other, Some(by))),
            },
        )
    }

    /// The way of every change: check the tablet, look whether it is a retry, update the store,
    /// wait for the replicas. First answers and those to retries are made from the same outcome
    /// (EO-2).
    fn change<'v, T: Send + 'static>(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        (table, key): (TableId, &[u8]),
        decide: impl FnOnce(Option<Current<'_>>) -> Result<Change<'v>, Refusal>,
        outcome: &dyn Fn(Effect<'_, Refusal>) -> Option<Outcome>,
        reply: impl FnOnce(Outcome) -> Result<T, Refusal> + Send + 'static,
    ) -> Answer<T> {
        let snapshot = self.tablets().snapshot();
        // Held until the change is noted (TAB-2).
        let (table, phase) = match self.serving_table(&snapshot, header, table, key) {
            Ok((table, phase)) => (Arc::clone(table), phase),
            Err(refusal) => return Answer::Now(Err(refusal)),
        };
        let copying = match self.leaving.of(phase, &table, key) {
            Ok(copying) => copying,
            Err(refusal) => return Answer::Now(Err(refusal)),
        };
        let once = match self.admit(&header.operation, &table, key) {
            Ok(execution) => execution.map(|execution| Once { execution, outcome }),
            Err(Retried::Refuse(refusal)) => return Answer::Now(Err(refusal)),
            Err(Retried::Answer { outcome, pending }) => {
                return self.answer_when_durable(pending, reply(outcome));
            }
        };
        if let Err(refusal) = self.writes_possible(log) {
            return Answer::Now(Err(refusal));
        }
        let store = self.store();
        match store.update_once(log, &table, key, self.now_s(), once, decide) {
            Ok(Update::Done(appended)) => {
                let effect = appended.pending().effect();
                if let Some(leaving) = copying {
                    leaving.note(key, &effect);
                }
                let outcome = outcome(effect).expect("a change has an outcome");
                self.acknowledge(table, appended, reply(outcome))
            }
            Ok(Update::Unchanged {
                version,
                pending,
                refused,
            }) => {
                let result = match refused {
                    Some(refusal) => Err(refusal),
                    None => reply(
                        outcome(Effect::Unchanged { version })
                            .expect("nothing to do is an outcome"),
                    ),
                };
                self.answer_when_durable(pending, result)
            }
            Err(error) => Answer::Now(Err(refusal_of(&error))),
        }
    }

    /// Looks whether an operation with an identity was executed before (COMP-1).
    fn admit(
        &self,
        operation: &OperationId,
        table: &EngineTable,
        key: &[u8],
    ) -> Result<Option<Execution>, Retried> {
        if !operation.is_some() {
            return Ok(None);
        }
        let place = (table.id(), table.hash(key));
        let refuse = |refusal| Err(Retried::Refuse(refusal));
        match self
            .store()
            .completions()
            .admit(*operation, place, self.monotonic())
        {
            Admission::Execute(execution) => Ok(Some(execution)),
            Admission::Answer { outcome, pending } => {
                pluvio_units::mark("completion-answers-retry");
                Err(Retried::Answer { outcome, pending })
            }
            Admission::InProgress => {
                pluvio_units::mark("completion-in-progress");
                refuse(Refusal::retry(DUPLICATE_RETRY, RetryReason::InProgress))
            }
            Admission::Busy => refuse(Refusal::retry(RESULTS_RETRY, RetryReason::Busy)),
            Admission::Forgotten => refuse(Refusal::fatal(
                FatalKind::ResultForgotten,
                "the client has this operation's result already",
            )),
            Admission::OtherKey => refuse(reused()),
        }
    }

    /// Turns an append into a reply: the only place where a change is acknowledged.
    fn acknowledge<T: Send + 'static>(
        self: &Arc<Self>,
        table: Arc<EngineTable>,
        appended: pluvio_log::Appended<Updated>,
        result: Result<T, Refusal>,
    ) -> Answer<T> {
        match self.store().space().confirm(appended) {
            Ok(durable) => {
                self.store().settle(&table, &durable);
                Answer::Now(result)
            }
            Err(appended) => {
                let master = Arc::clone(self);
                Answer::Later(Box::pin(async move {
                    let durable = master.durable(appended).await;
                    master.store().settle(&table, &durable);
                    result
                }))
            }
        }
    }
}

/// Why an operation is not executed.
enum Retried {
    /// It was executed before.
    Answer {
        outcome: Outcome,
        pending: Option<Pending>,
    },
    /// It must not be.
    Refuse(Refusal),
}

/// What to keep of a refusal: those that depend on the object, so that a retry is told the same.
fn refused(refusal: &Refusal) -> Option<Outcome> {
    match refusal {
        Refusal::Rejected { version } => Some(Outcome::Rejected { version: *version }),
        Refusal::Fatal { kind, .. } if *kind == FatalKind::NotANumber => Some(Outcome::NotANumber),
        Refusal::Fatal { kind, .. } if *kind == FatalKind::Overflow => Some(Outcome::Overflow),
        Refusal::Fatal { .. } => None,
        Refusal::Retry { .. } | Refusal::Refresh => None,
    }
}

/// The refusal that a kept outcome stands for. `by`: of an increment, what was to be added.
fn refusal_again(outcome: Outcome, by: Option<Number>) -> Refusal {
    match (outcome, by) {
        (Outcome::Rejected { version }, _) => Refusal::Rejected { version },
        (Outcome::NotANumber, Some(by)) => number::not_a_number(by),
        (Outcome::Overflow, Some(by)) => number::overflow(by),
        (
            Outcome::Written { .. }
            | Outcome::Deleted { .. }
            | Outcome::Added { .. }
            | Outcome::AddedFloat { .. }
            | Outcome::NotANumber
            | Outcome::Overflow,
            _,
        ) => reused(),
    }
}

fn reused() -> Refusal {
    Refusal::malformed("the number of this operation belongs to another one of the same client")
}

fn check(rules: &RejectRules, current: Option<Current<'_>>) -> Result<(), Refusal> {
    let version = current.map(|c| c.version);
    if rules.reject(version) {
        return Err(Refusal::Rejected {
            version: version.unwrap_or(ObjectVersion(0)),
        });
    }
    Ok(())
}

pub(crate) fn refusal_of(error: &EngineError) -> Refusal {
    match error {
        EngineError::Full { retry_after } => Refusal::retry(*retry_after, RetryReason::MemoryFull),
        EngineError::NotHere => Refusal::Refresh,
        EngineError::KeyTooLong(_) => Refusal::fatal(FatalKind::KeyTooLong, error.to_string()),
        EngineError::ValueTooLong(_) => Refusal::fatal(FatalKind::ValueTooLong, error.to_string()),
    }
}
