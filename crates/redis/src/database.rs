//! Databases: database N is the table `redis:N`, created when something is written to it.
//!
//! Owns, for one core, the handles of those tables. Invariants
//! - DB-1: a table that does not exist reads as empty and is not created by reading.
//! - DB-2: an answer that a table does not exist is never older than the question: whoever waits
//!   for somebody else's look-up takes its result only if it began later. So a key that was
//!   written, through any server, is never missed.
//! - DB-3: a table that was dropped (FLUSHDB, here or elsewhere) is found out by the first
//!   operation on it, which then looks the name up again and repeats itself, at most [`TRIES_MAX`]
//!   times.
//! - DB-4: a version is compared only within the table it was read from: a write or delete of what
//!   was [`Seen`] in another table does nothing.
//!
//! Threads: used by the event loop of its core; locks are never held over an await point, but for
//! the turn to look up, which is a queue.

use crate::failure::{in_part, of_client, of_table, worst};
use crate::reply::Failure;
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{
    Client, ClientError, CountObjectsReply, DeleteReply, EnumeratedObject, ErrorKind,
    IncrementReply, Key, Number, Object, Parts, RejectRules, Table, WriteReply,
};
use pluvio_units::{KeyHash, ObjectVersion, TableId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Databases that SELECT knows.
pub const DATABASES: usize = 16;

/// How often an operation looks a name up again before it gives up: only a client that does
/// nothing but drop and create the table gets so far.
const TRIES_MAX: u32 = 8;

/// The first pause before a name is looked up again; it doubles.
const PAUSE: Duration = Duration::from_millis(1);

/// The number of a database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct DatabaseId(u8);

impl DatabaseId {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..DATABASES).filter_map(|n| Self::new(i64::try_from(n).ok()?))
    }

    /// The database of this number, if there is one.
    #[must_use]
    pub fn new(number: i64) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        (usize::from(number) < DATABASES).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The name of its table.
    #[must_use]
    pub fn table_name(self) -> String {
        format!("redis:{}", self.0)
    }
}

/// A write that went ahead or met its reject rules.
pub(crate) type Conditional<T> = Result<T, Refused>;

/// The reject rules of a write fired; the version the object has, 0 when there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused(pub(crate) ObjectVersion);

/// An object and the table it was read from: versions of different tables cannot be compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    table: TableId,
    version: ObjectVersion,
    /// Its value.
    pub(crate) value: Bytes,
}

type Found = Option<Arc<Table>>;

#[derive(Default)]
struct Slot {
    table: Mutex<Found>,
    /// Whose turn it is to look up, and what the last one found: with the number it began at.
    turn: tokio::sync::Mutex<Option<(u64, Result<Found, Failure>)>>,
}

/// The databases as one core sees them.
pub(crate) struct Databases {
    client: Client,
    parts: Parts,
    slots: [Slot; DATABASES],
    /// Numbers look-ups and those who wait for them.
    arrivals: AtomicU64,
}

impl Databases {
    pub(crate) fn new(client: Client, parts: Parts) -> Self {
        Self {
            client,
            parts,
            slots: core::array::from_fn(|_| Slot::default()),
            arrivals: AtomicU64::new(0),
        }
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    fn slot(&self, database: DatabaseId) -> &Slot {
        &self.slots[usize::from(database.0)]
    }

    /// The handle this core has.
    pub(crate) fn known(&self, database: DatabaseId) -> Found {
        let table = self.slot(database).table.lock();
        table.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, database: DatabaseId, table: &Found) {
        let known = self.slot(database).table.lock();
        known
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(table);
    }

    /// Forgets a handle of a table that was dropped.
    fn forget(&self, database: DatabaseId, id: TableId) {
        let known = self.slot(database).table.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_some_and(|table| table.id() == id) {
            *known = None;
        }
    }

    /// The table, if it exists.
    async fn look_up(&self, database: DatabaseId) -> Result<Found, Failure> {
        let slot = self.slot(database);
        let arrived = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let mut turn = slot.turn.lock().await;
        if let Some((began, result)) = &*turn
            && *began > arrived
        {
            return result.clone();
        }
        let began = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let result = match self.client.table(&database.table_name()).await {
            Ok(table) => Ok(Some(Arc::new(table))),
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(None),
            Err(error) => Err(of_table(error)),
        };
        if let Ok(found) = &result {
            self.remember(database, found);
        }
        *turn = Some((began, result.clone()));
        result
    }

    /// The table, created if it does not exist.
    async fn create(&self, database: DatabaseId) -> Result<Arc<Table>, Failure> {
        let _turn = self.slot(database).turn.lock().await;
        if let Some(table) = self.known(database) {
            return Ok(table);
        }
        let created = self.client.create_table(&database.table_name(), None).await;
        let table = Arc::new(created.map_err(of_table)?);
        self.remember(database, &Some(table.clone()));
        Ok(table)
    }

    fn tries(&self, database: DatabaseId) -> Tries<'_> {
        Tries {
            databases: self,
            database,
            tries: 0,
        }
    }

    pub(crate) async fn read(
        &self,
        database: DatabaseId,
        key: &[u8],
    ) -> Result<Option<Object>, Failure> {
        let seen = self.see(database, key).await?;
        Ok(seen.map(|seen| Object {
            version: seen.version,
            value: seen.value,
        }))
    }

    /// [`Databases::read`] for a command that then writes or deletes what it read.
    pub(crate) async fn see(
        &self,
        database: DatabaseId,
        key: &[u8],
    ) -> Result<Option<Seen>, Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(None);
            };
            match self.client.read(&table, key).await {
                Err(error) => tries.again(&table, &error).await?,
                Ok(object) => {
                    return Ok(object.map(|object| Seen {
                        table: table.id(),
                        version: object.version,
                        value: object.value,
                    }));
                }
            }
        }
    }

    /// Writes a key if it is as it was seen, `None` for a key that did not exist; whether it was
    /// written.
    pub(crate) async fn replace(
        &self,
        database: DatabaseId,
        key: &[u8],
        value: Bytes,
        seen: Option<&Seen>,
    ) -> Result<bool, Failure> {
        let Some(seen) = seen else {
            // That a key does not exist means the same in every table.
            let rules = RejectRules::unless_version(ObjectVersion(0));
            return Ok(self.write(database, key, value, rules).await?.is_ok());
        };
        let Some(table) = self.table_of(database, seen) else {
            return Ok(false);
        };
        let rules = RejectRules::unless_version(seen.version);
        let written = self.client.write_if(&table, key, value, rules).await;
        self.as_seen(database, &table, written.map(|_| ()))
    }

    /// Deletes a key if it is as it was seen; whether it was deleted.
    pub(crate) async fn remove(
        &self,
        database: DatabaseId,
        key: &[u8],
        seen: &Seen,
    ) -> Result<bool, Failure> {
        let Some(table) = self.table_of(database, seen) else {
            return Ok(false);
        };
        let rules = RejectRules::unless_version(seen.version);
        let deleted = self.client.delete_if(&table, key, rules).await;
        self.as_seen(database, &table, deleted.map(|_| ()))
    }

    /// The table of what was seen, unless this core knows of another one by now or of none.
    fn table_of(&self, database: DatabaseId, seen: &Seen) -> Found {
        let known = self.known(database);
        known.filter(|table| table.id() == seen.table)
    }

    /// Whether a change of what was seen went ahead: not if the object or the table is another one
    /// by now.
    fn as_seen(
        &self,
        database: DatabaseId,
        table: &Table,
        changed: Result<(), ClientError>,
    ) -> Result<bool, Failure> {
        match changed {
            Ok(()) => Ok(true),
            Err(ClientError::Rejected { .. }) => Ok(false),
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                self.forget(database, table.id());
                Ok(false)
            }
            Err(error) => Err(of_client(&error)),
        }
    }

    /// Whether a key exists, without fetching its value.
    pub(crate) async fn exists(&self, database: DatabaseId, key: &[u8]) -> Result<bool, Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(false);
            };
            match self.client.read_if(&table, key, NOT_IF_THERE).await {
                Ok(object) => return Ok(object.is_some()),
                Err(ClientError::Rejected { .. }) => return Ok(true),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    pub(crate) async fn write(
        &self,
        database: DatabaseId,
        key: &[u8],
        value: Bytes,
        rules: RejectRules,
    ) -> Result<Conditional<WriteReply>, Failure> {
        let mut tries = self.tries(database);
        loop {
            let table = if rules.does_not_exist {
                match tries.existing().await? {
                    Some(table) => table,
                    None => return Ok(Err(Refused(ObjectVersion(0)))),
                }
            } else {
                tries.wanted().await?
            };
            match self
                .client
                .write_if(&table, key, value.clone(), rules)
                .await
            {
                Ok(reply) => return Ok(Ok(reply)),
                Err(ClientError::Rejected { version }) => return Ok(Err(Refused(version))),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    pub(crate) async fn delete(
        &self,
        database: DatabaseId,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<Conditional<DeleteReply>, Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(if rules.does_not_exist {
                    Err(Refused(ObjectVersion(0)))
                } else {
                    Ok(DeleteReply::default())
                });
            };
            match self.client.delete_if(&table, key, rules).await {
                Ok(reply) => return Ok(Ok(reply)),
                Err(ClientError::Rejected { version }) => return Ok(Err(Refused(version))),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    pub(crate) async fn increment(
        &self,
        database: DatabaseId,
        key: &[u8],
        by: i64,
    ) -> Result<IncrementReply, Failure> {
        let mut tries = self.tries(database);
        loop {
            let table = tries.wanted().await?;
            match self
                .client
                .increment(&table, key, Number::Integer(by))
                .await
            {
                Ok(reply) => return Ok(reply),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// Reads several keys. One result a key, in their order.
    pub(crate) async fn multi_read(
        &self,
        database: DatabaseId,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Object>>, Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(vec![None; keys.len()]);
            };
            let items: Vec<_> = keys.iter().map(|key| Key::new(&table, key)).collect();
            let results = self.client.multi_read(&items).await;
            match results.into_iter().collect() {
                Ok(objects) => return Ok(objects),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// Counts the keys that exist; a key counts as often as it is given.
    pub(crate) async fn count_existing(
        &self,
        database: DatabaseId,
        keys: &[&[u8]],
    ) -> Result<u64, Failure> {
        let mut tries = self.tries(database);
        'again: loop {
            let Some(table) = tries.existing().await? else {
                return Ok(0);
            };
            let item = |key| Key::new(&table, key).rules(NOT_IF_THERE);
            let items: Vec<_> = keys.iter().map(|key| item(key)).collect();
            let mut count = 0;
            for result in self.client.multi_read(&items).await {
                match result {
                    Ok(object) => count += u64::from(object.is_some()),
                    Err(ClientError::Rejected { .. }) => count += 1,
                    Err(error) => {
                        tries.again(&table, &error).await?;
                        continue 'again;
                    }
                }
            }
            return Ok(count);
        }
    }

    /// Writes several keys, each by itself.
    ///
    /// # Errors
    /// That of one key that could not be written; others may have been.
    pub(crate) async fn multi_write(
        &self,
        database: DatabaseId,
        objects: &[(&[u8], Bytes)],
    ) -> Result<(), Failure> {
        let mut tries = self.tries(database);
        loop {
            let table = tries.wanted().await?;
            let items: Vec<_> = objects
                .iter()
                .map(|(key, value)| (Key::new(&table, key), value.clone()))
                .collect();
            let results = self.client.multi_write(&items).await;
            if results.iter().all(Result::is_ok) {
                return Ok(());
            }
            tries.again_in_part(&table, &results).await?;
        }
    }

    /// Deletes several different keys, each by itself: how many there were.
    ///
    /// # Errors
    /// That of one key that could not be deleted; others may have been.
    pub(crate) async fn multi_delete(
        &self,
        database: DatabaseId,
        keys: &[&[u8]],
    ) -> Result<u64, Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(0);
            };
            let items: Vec<_> = keys.iter().map(|key| Key::new(&table, key)).collect();
            let results = self.client.multi_delete(&items).await;
            if results.iter().all(Result::is_ok) {
                let replies = results.iter().flatten();
                let deleted = replies.filter(|reply| reply.deleted != ObjectVersion(0));
                return Ok(deleted.count() as u64);
            }
            tries.again_in_part(&table, &results).await?;
        }
    }

    /// The next keys of the database from a hash on, perhaps none, and where to go on.
    pub(crate) async fn stretch(
        &self,
        database: DatabaseId,
        from: KeyHash,
        items: usize,
    ) -> Result<(Vec<EnumeratedObject>, Option<KeyHash>), Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok((Vec::new(), None));
            };
            let enumeration = self.client.enumerate_from(&table, from);
            let mut enumeration = enumeration.keys_only().batch_items(items);
            match enumeration.next_stretch().await {
                Ok(objects) => return Ok((objects, enumeration.cursor())),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    pub(crate) async fn count(&self, database: DatabaseId) -> Result<CountObjectsReply, Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(CountObjectsReply::default());
            };
            match self.client.count(&table).await {
                Ok(count) => return Ok(count),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// Drops the table; the next write creates a new one. Ends when no server serves a dropped
    /// table of this database any more, whoever dropped it.
    pub(crate) async fn flush(&self, database: DatabaseId) -> Result<(), Failure> {
        let dropped = self.client.drop_table(&database.table_name()).await;
        match dropped {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {}
            Err(error) => return Err(of_client(&error)),
        }
        self.remember(database, &None);
        Ok(())
    }

    /// The databases whose tables exist.
    pub(crate) async fn existing(&self) -> Result<Vec<DatabaseId>, Failure> {
        let tables = self.client.list_tables().await;
        let tables = tables.map_err(|error| of_client(&error))?;
        let is_there = |database: &DatabaseId| {
            let name = database.table_name();
            tables.iter().any(|table| table.name == name)
        };
        Ok(DatabaseId::all().filter(is_there).collect())
    }
}

const NOT_IF_THERE: RejectRules = RejectRules {
    exists: true,
    does_not_exist: false,
    version_equal: None,
    version_not_equal: None,
    version_less: None,
};

/// One operation's tries to find its table.
struct Tries<'a> {
    databases: &'a Databases,
    database: DatabaseId,
    tries: u32,
}

impl Tries<'_> {
    /// The table, if it exists.
    async fn existing(&self) -> Result<Found, Failure> {
        match self.databases.known(self.database) {
            Some(table) => Ok(Some(table)),
            None => Box::pin(self.databases.look_up(self.database)).await,
        }
    }

    /// The table, created if it does not exist.
    async fn wanted(&self) -> Result<Arc<Table>, Failure> {
        match self.databases.known(self.database) {
            Some(table) => Ok(table),
            None => Box::pin(self.databases.create(self.database)).await,
        }
    }

    /// Forgets a table that was dropped, so that the caller can try again.
    ///
    /// # Errors
    /// It failed for another reason, or too often.
    async fn again(&mut self, table: &Table, error: &ClientError) -> Result<(), Failure> {
        if error.kind() != ErrorKind::NoSuchTable || self.tries >= TRIES_MAX {
            return Err(of_client(error));
        }
        self.databases.forget(self.database, table.id());
        // Mostly the name is free or taken again already.
        if self.tries > 0 {
            let pause = PAUSE * (1 << self.tries.min(6));
            self.databases.parts.clock.sleep(pause).await;
        }
        self.tries += 1;
        Ok(())
    }

    /// [`Tries::again`] for a write or delete of several keys of which at least one failed.
    async fn again_in_part<T>(
        &mut self,
        table: &Table,
        results: &[Result<T, ClientError>],
    ) -> Result<(), Failure> {
        let errors = results.iter().filter_map(|result| result.as_ref().err());
        let error = worst(errors).expect("one of them failed");
        let again = self.again(table, error).await;
        again.map_err(|failure| {
            if results.iter().any(Result::is_ok) {
                in_part(failure)
            } else {
                failure
            }
        })
    }
}
