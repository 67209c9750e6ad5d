//! Writing, deleting and incrementing one object.

use crate::master::Master;
use crate::number;
use pluvio_store::{Change, Current, EngineError, EngineTable, Update, Updated};
use pluvio_units::{LogId, ObjectVersion};
use pluvio_wire::{
    Answer, Delete, DeleteReply, FatalKind, Header, Increment, IncrementReply, Number, Refusal,
    RejectRules, RetryReason, Write, WriteReply,
};
use std::borrow::Cow;
use std::sync::Arc;

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
        self.change(
            log,
            header,
            (request.table, &request.key),
            decide,
            |updated| WriteReply {
                version: updated.version,
                replaced: updated.replaced,
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
        self.change(
            log,
            header,
            (request.table, &request.key),
            decide,
            |updated| DeleteReply {
                deleted: updated.replaced,
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
        let mut sum = Number::Integer(0);
        let decide = |current: Option<Current<'_>>| {
            check(&request.rules, current)?;
            let (value, text) = number::add(current.map(|c| c.value), request.by)?;
            sum = value;
            Ok(Change::Put(Cow::Owned(text)))
        };
        let answer = self.change(
            log,
            header,
            (request.table, &request.key),
            decide,
            |updated| updated.version,
        );
        let reply = move |version| IncrementReply {
            version,
            value: sum,
        };
        match answer {
            Answer::Now(result) => Answer::Now(result.map(reply)),
            Answer::Later(future) => {
                Answer::Later(Box::pin(async move { future.await.map(reply) }))
            }
        }
    }

    /// The way of every change: check the tablet, update the store, wait for the replicas.
    fn change<'v, T: Send + 'static>(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        (table, key): (pluvio_units::TableId, &[u8]),
        decide: impl FnOnce(Option<Current<'_>>) -> Result<Change<'v>, Refusal>,
        reply: impl FnOnce(&Updated) -> T + Send + 'static,
    ) -> Answer<T> {
        let snapshot = self.tablets().snapshot();
        let table = match self.serving_table(&snapshot, header, table, key) {
            Ok(table) => Arc::clone(table),
            Err(refusal) => return Answer::Now(Err(refusal)),
        };
        if let Err(refusal) = self.writes_possible() {
            return Answer::Now(Err(refusal));
        }
        match self.store().update(log, &table, key, self.now_s(), decide) {
            Ok(Update::Done(appended)) => self.acknowledge(table, appended, reply),
            Ok(Update::Unchanged {
                version,
                pending,
                refused,
            }) => {
                let result = match refused {
                    Some(refusal) => Err(refusal),
                    None => Ok(reply(&Updated::nothing(version))),
                };
                self.answer_when_durable(pending, result)
            }
            Err(error) => Answer::Now(Err(refusal_of(&error))),
        }
    }

    /// Turns an append into a reply: the only place where a change is acknowledged.
    fn acknowledge<T: Send + 'static>(
        self: &Arc<Self>,
        table: Arc<EngineTable>,
        appended: pluvio_log::Appended<Updated>,
        reply: impl FnOnce(&Updated) -> T + Send + 'static,
    ) -> Answer<T> {
        match self.store().space().confirm(appended) {
            Ok(durable) => {
                self.store().settle(&table, &durable);
                Answer::Now(Ok(reply(durable.value())))
            }
            Err(appended) => {
                let master = Arc::clone(self);
                Answer::Later(Box::pin(async move {
                    let durable = master.durable(appended).await;
                    master.store().settle(&table, &durable);
                    Ok(reply(durable.value()))
                }))
            }
        }
    }
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
