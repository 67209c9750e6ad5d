//! Transactions: several reads and changes at one moment, or none of them.
//!
//! 1. [`Client::transact`] sends steps to the server that has all their keys. It does them at one
//!    moment, in one round trip. Keys of several servers are locked first (`several.rs`).
//! 2. A [`Transaction`] is optimistic: it reads objects and remembers their versions, keeps changes
//!    to itself, and commits all of that as such steps. When an object that it read was changed
//!    meanwhile, nothing is done.
//! 3. [`Client::transactionally`] tries one again until it commits.
//!
//! A transaction that committed is strictly serializable. All of its reads and changes are true at
//! one moment between its commit and the answer to that.

use crate::client::Client;
use crate::error::ClientError;
use crate::request::OneOwner;
use crate::table::{Table, TableKey};
use bytes::Bytes;
use pluvio_units::{ObjectVersion, OperationId};
use pluvio_wire::{
    Change, FatalKind, Get, Mutation, Operation, Outcome, Output, Refusal, TransactionStep,
    check_transaction,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A transaction that was begun anew so often has a key kept.
const KEPT_AFTER: u32 = 2;

/// What a transaction came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transacted {
    /// All steps were done; one outcome each.
    Committed(Vec<Outcome>),
    /// Nothing was done: a step that must hold did not.
    Refused {
        /// Which one.
        step: usize,
        /// Its outcome.
        outcome: Outcome,
    },
}

impl Transacted {
    fn of(outcome: Outcome, steps: usize) -> Result<Self, ClientError> {
        let strange = |what: &str| Err(ClientError::Protocol(format!("a transaction {what}")));
        let Outcome::Together {
            committed,
            steps: outcomes,
        } = outcome
        else {
            return strange("was answered with the outcome of one operation");
        };
        match (committed, outcomes.last()) {
            (true, _) if outcomes.len() == steps => Ok(Self::Committed(outcomes.to_vec())),
            (false, Some(last)) if outcomes.len() <= steps => Ok(Self::Refused {
                step: outcomes.len() - 1,
                outcome: last.clone(),
            }),
            _ => strange("was answered with another number of steps"),
        }
    }
}

/// Of volatile tables and others a transaction could not be all or nothing. A part of it is lost
/// with its server, and so may be the proof that it was done.
fn check_goes_together(tables: &[&Table]) -> Result<(), ClientError> {
    let volatile = tables.iter().find(|table| table.is_volatile());
    let other = tables.iter().find(|table| !table.is_volatile());
    let Some((volatile, other)) = volatile.zip(other) else {
        return Ok(());
    };
    let message = format!(
        "table {} is volatile and table {} is not: a transaction may change the one or the other, and read both only if it changes nothing",
        volatile.name(),
        other.name()
    );
    let kind = FatalKind::VolatileWithOthers;
    Err(ClientError::from_final(Refusal::fatal(kind, message)))
}

impl Client {
    /// Does all steps at one moment, in their order, or none of them. Each sees what those before
    /// it did. A step that must hold ends it where it does not.
    ///
    /// # Errors
    /// - [`FatalKind::Unsupported`] when the keys belong to several servers, and one of them
    ///   overwrites values in place. Nothing was done.
    /// - [`FatalKind::TransactionTooLarge`] when it has more steps or bytes than one may have.
    /// - [`FatalKind::VolatileWithOthers`] when it changes something, and some of the tables are
    ///   volatile. Nothing was done.
    /// - As every operation ([`Client`]).
    pub async fn transact(
        &self,
        steps: &[(&Table, TransactionStep<'_>)],
    ) -> Result<Transacted, ClientError> {
        self.transact_by(steps, OperationId::default()).await
    }

    /// [`Client::transact`], behind a read that had its objects kept ([`Client::read_first`]): they
    /// are kept no longer, also if nothing is changed.
    ///
    /// # Errors
    /// As of [`Client::transact`].
    pub async fn transact_and_free(
        &self,
        steps: &[(&Table, TransactionStep<'_>)],
    ) -> Result<Transacted, ClientError> {
        let by = OperationId {
            client: self.shared.sequence.client(),
            ..OperationId::default()
        };
        self.transact_by(steps, by).await
    }

    async fn transact_by(
        &self,
        steps: &[(&Table, TransactionStep<'_>)],
        by: OperationId,
    ) -> Result<Transacted, ClientError> {
        let placed: Vec<_> = steps
            .iter()
            .map(|(table, step)| {
                let hash = table.hash(step.operation.key());
                let operation = step.operation.placed(table.id(), Some(hash));
                TransactionStep { operation, ..*step }
            })
            .collect();
        check_transaction(&placed).map_err(ClientError::from_final)?;
        let tables: Vec<_> = steps.iter().map(|(table, _)| *table).collect();
        let Some((table, first)) = tables.first().zip(placed.first()) else {
            return Ok(Transacted::Committed(Vec::new()));
        };
        let hash = first.operation.hash().expect("it was just computed");
        let changes = placed
            .iter()
            .any(|step| step.operation.mutation().is_some());
        if changes {
            check_goes_together(&tables)?;
        }
        let outcome = match changes {
            true => {
                let request = OneOwner::<true> {
                    steps: &placed,
                    tables: &tables,
                    by,
                };
                self.on_hash(table, hash, &request).await
            }
            false => {
                let request = OneOwner::<false> {
                    steps: &placed,
                    tables: &tables,
                    by,
                };
                self.on_hash(table, hash, &request).await
            }
        };
        match outcome {
            Err(error) if error.fatal_kind() == Some(FatalKind::SeveralOwners) => {
                let work = Box::pin(self.transact_several(&placed, &tables));
                self.traced("transaction of several servers", work).await
            }
            outcome => Transacted::of(outcome?, steps.len()),
        }
    }

    /// Asks for the tablets of these tables anew.
    pub(crate) async fn learn_tablets(&self, tables: &[&Table]) -> Result<(), ClientError> {
        let each: BTreeMap<TableKey, &Table> = tables
            .iter()
            .map(|table| (table.unique_key(), *table))
            .collect();
        for table in each.into_values() {
            let mut attempts = self.attempts();
            self.refresh(table, table.map().generation, &mut attempts)
                .await?;
        }
        Ok(())
    }

    /// Begins a transaction. Nothing is sent.
    pub fn transaction(&self) -> Transaction {
        Transaction {
            client: self.clone(),
            objects: Arc::new(Mutex::new(Objects::new())),
            keeps: false,
        }
    }

    /// Runs `body` on a transaction and commits it, anew whenever an object that it read was
    /// changed meanwhile. Other things that `body` does are done each time.
    ///
    /// The future is `Send` where that of `body` is, so that tasks can run it:
    ///
    /// ```
    /// use pluvio_client::{Client, ClientError, Table};
    ///
    /// fn take_one(
    ///     client: Client,
    ///     table: Table,
    /// ) -> impl Future<Output = Result<u64, ClientError>> + Send + 'static {
    ///     async move {
    ///         client
    ///             .transactionally(async |transaction| {
    ///                 let stock = transaction.get(&table, b"stock").await?;
    ///                 let stock = stock.map_or(0, |bytes| bytes.len() as u64).saturating_sub(1);
    ///                 transaction.put(&table, b"stock", vec![b'x'; stock as usize]);
    ///                 Ok(stock)
    ///             })
    ///             .await
    ///     }
    /// }
    /// ```
    ///
    /// `body` borrows what is around it. An `async move` closure that owns things does not compile
    /// here, as its futures would borrow from the closure.
    ///
    /// # Errors
    /// - Those of `body`, at once.
    /// - As [`Client::transact`].
    /// - [`ClientError::TimedOut`] when others changed the objects again and again, until the time
    ///   of an operation was up. Nothing was done.
    /// - [`FatalKind::Unsupported`] when `body` has put its transaction somewhere. Nothing was
    ///   done.
    pub async fn transactionally<T, F>(
        &self,
        mut body: impl FnMut(Transaction) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut attempts = self.attempts();
        let mut conflicts = 0;
        loop {
            let mut transaction = self.transaction();
            transaction.keeps = conflicts >= KEPT_AFTER;
            let result = body(transaction.handle()).await?;
            match transaction.commit().await? {
                Commit::Done => return Ok(result),
                Commit::Conflict(_) => conflicts += 1,
            }
            if attempts.is_over() {
                let why = "others changed the objects of the transaction each time";
                attempts.failed(why.to_owned(), None);
                return Err(attempts.timed_out());
            }
            self.pause_after(conflicts).await;
        }
    }
}

/// What a commit came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commit {
    /// All reads are true and all changes were made, at one moment.
    Done,
    /// An object that was read has this version by now, 0 when there is none. Nothing was changed.
    Conflict(ObjectVersion),
}

/// An optimistic transaction ([`Client::transaction`]). Dropping it changes nothing.
#[must_use = "nothing is done before the commit"]
pub struct Transaction {
    client: Client,
    /// Shared by the transaction and the handle of it that the body of
    /// [`Client::transactionally`] has.
    objects: Arc<Mutex<Objects>>,
    /// Others have overtaken it again and again: the first object that it reads is kept.
    keeps: bool,
}

type Objects = BTreeMap<(TableKey, Vec<u8>), Touched>;

/// An object that the transaction has read or is to change.
struct Touched {
    table: Table,
    read: Option<(ObjectVersion, Option<Bytes>)>,
    /// `Some(None)`: it is to be deleted.
    write: Option<Option<Bytes>>,
}

impl Touched {
    /// The value as the transaction sees it, if it need not be read.
    fn known(&self) -> Option<Option<Bytes>> {
        let read = self.read.as_ref().map(|(_, value)| value);
        self.write.as_ref().or(read).cloned()
    }
}

impl Transaction {
    /// The same transaction, for somebody who drops it before the commit.
    fn handle(&self) -> Self {
        Self {
            client: self.client.clone(),
            objects: Arc::clone(&self.objects),
            keeps: self.keeps,
        }
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch<T>(&self, table: &Table, key: &[u8], then: impl FnOnce(&mut Touched) -> T) -> T {
        let place = (table.unique_key(), key.to_vec());
        let mut objects = self.objects();
        then(objects.entry(place).or_insert_with(|| Touched {
            table: table.clone(),
            read: None,
            write: None,
        }))
    }

    /// The value of an object: as this transaction has changed it, or as it read it the first time.
    /// Values that were read one after the other may be of different moments; then the commit says
    /// so.
    ///
    /// # Errors
    /// As of [`Client::get`].
    pub async fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Bytes>, ClientError> {
        let known = self.touch(table, key, |touched| touched.known());
        if let Some(value) = known {
            return Ok(value);
        }
        let get = Get::new(table.id(), key);
        // The first object only: who waits for one keeps no other.
        let is_first = self
            .objects()
            .values()
            .all(|touched| touched.read.is_none());
        let outcome = match self.keeps && is_first {
            false => Some(self.client.get(table, get).await?),
            true => {
                let read = self.client.read_first(&[(table, get)], true).await?;
                read.outcomes.into_iter().next()
            }
        };
        let Some(Outcome::Unchanged { version, output }) = outcome else {
            return Err(ClientError::Protocol("a read changed something".to_owned()));
        };
        let value = match output {
            Output::Bytes(value) => Some(value),
            Output::Nothing | Output::Integer(_) | Output::Integers(_) => None,
        };
        // Where several reads of one object ran together, the first one to end counts for all.
        Ok(self.touch(table, key, |touched| {
            touched.read.get_or_insert((version, value));
            touched.known().flatten()
        }))
    }

    /// Sets a value, when this is committed.
    pub fn put(&self, table: &Table, key: &[u8], value: impl Into<Bytes>) {
        let value = value.into();
        self.touch(table, key, |touched| touched.write = Some(Some(value)));
    }

    /// Deletes an object, when this is committed.
    pub fn delete(&self, table: &Table, key: &[u8]) {
        self.touch(table, key, |touched| touched.write = Some(None));
    }

    /// Makes all changes at one moment, if all objects are then as they were read.
    ///
    /// # Errors
    /// - As of [`Client::transact`].
    /// - [`FatalKind::Unsupported`] inside [`Client::transactionally`], which commits by itself.
    ///   Nothing was done.
    pub async fn commit(self) -> Result<Commit, ClientError> {
        let Some(objects) = Arc::into_inner(self.objects) else {
            return Err(ClientError::Refused {
                kind: FatalKind::Unsupported,
                message: "the body of `transactionally` neither commits nor keeps its transaction"
                    .to_owned(),
            });
        };
        let objects = objects.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut steps = Vec::new();
        for ((_, key), touched) in &objects {
            let table = &touched.table;
            if let Some((version, _)) = touched.read {
                steps.push((table, TransactionStep::version_is(table.id(), key, version)));
            }
        }
        for ((_, key), touched) in &objects {
            let change = match &touched.write {
                Some(Some(value)) => Change::Put(value.into()),
                Some(None) => Change::Delete,
                None => continue,
            };
            let table = &touched.table;
            let mutation = Mutation::new(table.id(), key, change);
            steps.push((table, TransactionStep::new(Operation::Mutate(mutation))));
        }
        let done = match self.keeps {
            true => self.client.transact_and_free(&steps).await?,
            false => self.client.transact(&steps).await?,
        };
        match done {
            Transacted::Committed(_) => Ok(Commit::Done),
            Transacted::Refused { outcome, .. } => Ok(Commit::Conflict(match outcome {
                Outcome::Rejected { version, .. } => version,
                _ => ObjectVersion(0),
            })),
        }
    }
}
