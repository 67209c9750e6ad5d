//! Mutations and reads of an engine, in the short words of tests.

use pluvio_log::Awaited;
use pluvio_mutation::{Change, Get, Mutation, Outcome, Output};
use pluvio_store::{Applied, Engine, EngineError, EngineTable, Execution, Site};
use pluvio_units::{LogId, ObjectVersion};

/// Applies a mutation, of which only the operation's identity is another's business.
pub fn apply(
    store: &Engine,
    log: LogId,
    mutation: &Mutation<'_>,
    table: &EngineTable,
    execution: Option<Execution>,
) -> Result<Awaited<Applied>, EngineError> {
    let site = Site {
        log,
        table,
        hash: table.hash(mutation.key),
        now_s: 1,
        only_this_log: false,
    };
    store.apply(&site, mutation, execution)
}

/// Writes an object.
pub fn put(
    store: &Engine,
    table: &EngineTable,
    log: LogId,
    key: &[u8],
    value: &[u8],
) -> Result<Awaited<Applied>, EngineError> {
    let put = Mutation::new(table.id(), key, Change::Put(value.into()));
    apply(store, log, &put, table, None)
}

/// Deletes an object.
pub fn delete(
    store: &Engine,
    table: &EngineTable,
    log: LogId,
    key: &[u8],
) -> Result<Awaited<Applied>, EngineError> {
    let delete = Mutation::new(table.id(), key, Change::Delete);
    apply(store, log, &delete, table, None)
}

/// The version that a mutation wrote; panics when it wrote nothing.
pub fn written(applied: &Awaited<Applied>) -> ObjectVersion {
    match applied.pending().outcome() {
        Outcome::Written { version, .. } => *version,
        other => panic!("nothing was written: {other:?}"),
    }
}

/// The version that a mutation deleted, 0 when there was no object; panics when it is no delete.
pub fn deleted(applied: &Awaited<Applied>) -> ObjectVersion {
    match applied.pending().outcome() {
        Outcome::Deleted { version, .. } => *version,
        other => panic!("nothing was deleted: {other:?}"),
    }
}

/// Reads an object.
pub fn get(store: &Engine, table: &EngineTable, key: &[u8]) -> Awaited<Outcome> {
    store
        .get(table, table.hash(key), &Get::new(table.id(), key))
        .unwrap()
}

/// Version and value of an object, durable or not.
pub fn read(store: &Engine, table: &EngineTable, key: &[u8]) -> Option<(ObjectVersion, Vec<u8>)> {
    match get(store, table, key).into_pending() {
        Outcome::Unchanged {
            version,
            output: Output::Bytes(value),
        } => Some((version, value.to_vec())),
        Outcome::Unchanged { .. } => None,
        other => panic!("a read gave {other:?}"),
    }
}
