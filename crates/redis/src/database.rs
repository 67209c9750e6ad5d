//! Databases: database N is the table `redis:N`, created when something is written to it.
//!
//! Owns, for one core, the handles of those tables. Invariants
//! - DB-1: a table that does not exist reads as empty and is not created by reading.
//! - DB-2: an answer that a table does not exist is never older than the question. A task that
//!   waits for another one's look-up takes its result only if it began later. So a key that was
//!   written, through any server, is never missed.
//! - DB-3: the first operation on a table that was dropped (FLUSHDB, here or elsewhere) finds that
//!   out. It then looks the name up again and repeats itself, at most [`TRIES_MAX`] times.
//! - DB-4: conditions of a change are on existence and on values, which mean the same in every
//!   table. Versions of different tables cannot be compared: a condition on one names its table,
//!   and does not hold in another.
//! - DB-5: a change that leaves an absent object absent does not create the table.
//!
//! Threads: used by the event loop of its core. Locks are never held over an await point. The turn
//! to look up is the one exception: it is a queue.

mod in_order;

pub(crate) use in_order::InOrder;

use crate::commands::without_object;
use crate::failure::{BAD_CURSOR, in_part, of_client, of_table, worst};
use crate::give_way::give_way;
use crate::reply::Failure;
use core::time::Duration;
use pluvio_client::{
    AtOnce, Change, Client, ClientError, CountObjectsReply, Cursor, EnumeratedObject, ErrorKind,
    FatalKind, Get, Mutation, Operation, Outcome, Output, Parts, Projection, Table, Transacted,
    TransactionStep,
};
use pluvio_env::{Address, timeout};
use pluvio_mutation::{Current, Now, Verdict, judge, look};
use pluvio_units::{HashKind, HashRange, KeyHash, KeySlot, ObjectVersion, Rank, TableId};
use smallvec::SmallVec;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Databases that SELECT knows.
pub const DATABASES: usize = 16;

/// How often an operation looks a name up again before it gives up. It gets so far only while a
/// client drops and creates the table all the time.
const TRIES_MAX: u32 = 8;

/// Keys of a slot that are counted at a time.
const COUNT_STEP: usize = 1024;

/// The first pause before a name is looked up again; it doubles.
const PAUSE: Duration = Duration::from_millis(1);

/// Keys whose memory is asked for together: as many misses as a core has in flight.
pub(crate) const PREFETCH_MAX: usize = 16;

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

/// A change of a key without conditions, of whichever table its database has by then.
pub(crate) fn mutation<'a>(key: &'a [u8], change: Change<'a>) -> Mutation<'a> {
    Mutation::new(TableId(0), key, change)
}

/// A read of a key, of whichever table its database has by then.
pub(crate) fn reading<'a>(key: &'a [u8], projection: Projection<'a>) -> Get<'a> {
    Get {
        projection,
        ..Get::new(TableId(0), key)
    }
}

/// The outcome of a change that meets no object and makes none.
pub(crate) fn of_nothing(mutation: &Mutation<'_>) -> Option<Outcome> {
    match judge(mutation, None, Now::default()) {
        Verdict::Keep(outcome) => Some(outcome),
        Verdict::Put(..) | Verdict::Delete(_) => None,
    }
}

/// The hash of a key, and its table. Another table may have the name when the hash is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownHash {
    table: TableId,
    hash: KeyHash,
}

impl KnownHash {
    /// The hash, if it is that of a key in this table.
    pub(crate) fn of(self, table: &Table) -> Option<KeyHash> {
        (self.table == table.id()).then_some(self.hash)
    }
}

/// Where to begin to go through keys.
#[derive(Clone, Copy)]
pub(crate) enum ScanFrom {
    /// At the place of this number ([`Cursor::to_number`]).
    Number(u64),
    /// In the tablet of this hash, at this rank; both were drawn.
    Drawn(KeyHash, Rank),
}

/// A place in the tablet of a hash.
fn drawn_place(table: &Table, hash: KeyHash, rank: Rank) -> Cursor {
    let kind = table.hash_kind();
    match kind {
        HashKind::Seeded => Cursor::before(kind, hash),
        HashKind::Slots => {
            let stretch = table.tablet_of(hash).map_or(HashRange::ALL, |t| t.range);
            // Never the start, whose stretch is not said.
            let rank = Rank(rank.0 | 1 << kind.group_bits());
            Cursor { stretch, rank }
        }
    }
}

type Found = Option<Arc<Table>>;

#[derive(Default)]
struct Slot {
    table: Mutex<Found>,
    /// The turn to look up, with the result of the last look-up and the number at which that began.
    turn: tokio::sync::Mutex<Option<(u64, Result<Found, Failure>)>>,
}

/// The databases as one core sees them.
pub(crate) struct Databases {
    client: Client,
    /// Whether only keys of this server are gone through and counted, as a node of a cluster does.
    own_only: bool,
    parts: Parts,
    slots: [Slot; DATABASES],
    /// The next number of a look-up, or of a task that waits for one (DB-2).
    arrivals: AtomicU64,
}

impl Databases {
    pub(crate) fn new(client: Client, parts: Parts, own_only: bool) -> Self {
        Self {
            client,
            own_only,
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

    fn lock(&self, database: DatabaseId) -> MutexGuard<'_, Found> {
        let table = self.slot(database).table.lock();
        table.unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle this core has.
    pub(crate) fn known(&self, database: DatabaseId) -> Found {
        self.lock(database).clone()
    }

    fn remember(&self, database: DatabaseId, table: &Found) {
        let mut known = self.lock(database);
        // Commands of a cluster on a table without slots are refused, so none is to find it here.
        let may_be_used =
            |table: &Arc<Table>| !self.own_only || table.hash_kind() == HashKind::Slots;
        *known = table.clone().filter(may_be_used);
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
        let name = database.table_name();
        let mut tries = 0;
        let created = loop {
            let (client, kind) = (&self.client, HashKind::Slots);
            match client.create_table_hashed(&name, None, kind).await {
                // Somebody dropped it while servers began to serve it.
                Err(e) if e.kind() == ErrorKind::NoSuchTable && tries < TRIES_MAX => tries += 1,
                other => break other.map_err(of_table)?,
            }
            self.parts.clock.sleep(PAUSE * (1 << tries.min(6))).await;
        };
        let table = Arc::new(created);
        self.remember(database, &Some(table.clone()));
        Ok(table)
    }

    fn tries(&self, database: DatabaseId) -> TableTries<'_> {
        TableTries {
            databases: self,
            database,
            tries: 0,
        }
    }

    /// The hash of a key in the table that the database has, if that is known.
    pub(crate) fn hash(&self, database: DatabaseId, key: &[u8]) -> Option<KnownHash> {
        let table = self.lock(database);
        let table = table.as_ref()?;
        Some(KnownHash {
            table: table.id(),
            hash: table.hash(key),
        })
    }

    /// Asks for the memory of keys that come next.
    pub(crate) fn prefetch(&self, database: DatabaseId, keys: &[KnownHash]) {
        if let Some(table) = &*self.lock(database) {
            let hashes: SmallVec<[KeyHash; PREFETCH_MAX]> =
                keys.iter().filter_map(|key| key.of(table)).collect();
            self.client.prefetch(table, &hashes);
        }
    }

    /// Lets `show` look at the object of a key, or at its absence, if that is possible at once.
    pub(crate) fn show_at_once(
        &self,
        database: DatabaseId,
        key: &[u8],
        known: Option<KnownHash>,
        show: &mut dyn FnMut(Option<Current<'_>>),
    ) -> bool {
        let table = self.lock(database);
        let Some(table) = &*table else {
            return false;
        };
        let hash = known.and_then(|known| known.of(table));
        let hash = hash.unwrap_or_else(|| table.hash(key));
        self.client.show_at_once(table, hash, key, show)
    }

    /// Asks for one key, if that is possible at once.
    pub(crate) fn at_once(
        &self,
        database: DatabaseId,
        request: &Operation<'_>,
        known: Option<KnownHash>,
    ) -> AtOnce {
        let table = self.lock(database);
        let Some(table) = &*table else {
            return AtOnce::Later;
        };
        let hash = known.and_then(|known| known.of(table));
        let hash = hash.unwrap_or_else(|| table.hash(request.key()));
        match request {
            Operation::Get(get) => self.client.get_at_once(table, hash, get),
            Operation::Mutate(mutation) => self.client.mutate_at_once(table, hash, mutation),
        }
    }

    /// The client, for outcomes that are held.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Applies a change to a key, in one round trip to its owner.
    pub(crate) async fn mutate(
        &self,
        database: DatabaseId,
        mutation: Mutation<'_>,
    ) -> Result<Outcome, Failure> {
        let mut tries = self.tries(database);
        loop {
            let table = match tries.table_or(|| of_nothing(&mutation)).await? {
                Ok(table) => table,
                Err(outcome) => return Ok(outcome),
            };
            match self.client.mutate(&table, mutation).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// Reads what is wanted of a key, in one round trip to its owner.
    pub(crate) async fn get(
        &self,
        database: DatabaseId,
        key: &[u8],
        projection: Projection<'_>,
    ) -> Result<Outcome, Failure> {
        let get = reading(key, projection);
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(look(&get, None, Now::default()));
            };
            match self.client.get(&table, get).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// Does all steps at one moment, or none ([`Client::transact`]). A step that names a table, and
    /// not 0, does not hold when its database has another one by then (DB-4). With `frees`, objects
    /// that were kept are so no longer ([`Databases::read_first`]).
    ///
    /// # Errors
    /// Nothing was done, unless the failure says that this is not known.
    pub(crate) async fn transact(
        &self,
        steps: &[(DatabaseId, TransactionStep<'_>)],
        frees: bool,
    ) -> Result<Together, NotTransacted> {
        self.together(steps, How::AtOneMoment { frees }).await
    }

    /// Reads for a decision ([`Client::read_first`]).
    ///
    /// # Errors
    /// They were not read.
    pub(crate) async fn read_first(
        &self,
        steps: &[(DatabaseId, TransactionStep<'_>)],
        keep: bool,
    ) -> Result<Together, NotTransacted> {
        self.together(steps, How::ReadFirst { keep }).await
    }

    async fn together(
        &self,
        steps: &[(DatabaseId, TransactionStep<'_>)],
        how: How,
    ) -> Result<Together, NotTransacted> {
        let databases: BTreeSet<DatabaseId> = steps.iter().map(|(db, _)| *db).collect();
        let mut tries: Vec<_> = databases.iter().map(|db| self.tries(*db)).collect();
        loop {
            let mut tables = BTreeMap::new();
            for tries in &tries {
                tables.extend(tries.existing().await?.map(|table| (tries.database, table)));
            }
            let ids = |tables: &BTreeMap<DatabaseId, Arc<Table>>| {
                let ids = tables.iter().map(|(db, table)| (*db, table.id()));
                Tables(ids.collect())
            };
            if let Some(step) = of_another_table(steps, &ids(&tables)) {
                let outcome = Outcome::Rejected {
                    version: ObjectVersion(0),
                    output: Output::Nothing,
                };
                return Ok(Together {
                    transacted: Transacted::Refused { step, outcome },
                    moments: 1,
                    tables: ids(&tables),
                });
            }
            if tables.is_empty()
                && let Some(transacted) = without_objects(steps)
            {
                return Ok(Together {
                    transacted,
                    moments: 1,
                    tables: Tables::default(),
                });
            }
            for tries in &tries {
                if let Entry::Vacant(entry) = tables.entry(tries.database) {
                    entry.insert(tries.wanted().await?);
                }
            }
            let items: Vec<_> = steps
                .iter()
                .map(|(db, step)| (&*tables[db], *step))
                .collect();
            let error = match self.on_tables(&items, how).await {
                Ok((transacted, moments)) => {
                    return Ok(Together {
                        transacted,
                        moments,
                        tables: ids(&tables),
                    });
                }
                Err(error) => error,
            };
            match error.fatal_kind() {
                Some(FatalKind::TransactionTooLarge) => {
                    return Err(NotTransacted::TooLarge(of_client(&error)));
                }
                Some(FatalKind::Unsupported) => {
                    return Err(NotTransacted::Unsupported(of_client(&error)));
                }
                Some(_) | None => {}
            }
            // It is not said which of them was dropped.
            for tries in &mut tries {
                let table = Arc::clone(&tables[&tries.database]);
                tries.again(&table, &error).await?;
            }
        }
    }

    /// Gives at how many moments it was done, too.
    async fn on_tables(
        &self,
        items: &[(&Table, TransactionStep<'_>)],
        how: How,
    ) -> Result<(Transacted, usize), ClientError> {
        match how {
            How::AtOneMoment { frees: false } => Ok((self.client.transact(items).await?, 1)),
            How::AtOneMoment { frees: true } => {
                Ok((self.client.transact_and_free(items).await?, 1))
            }
            How::ReadFirst { keep } => {
                let gets = items
                    .iter()
                    .filter_map(|(table, step)| match step.operation {
                        Operation::Get(get) => Some((*table, get)),
                        Operation::Mutate(_) => None,
                    });
                let read = self
                    .client
                    .read_first(&gets.collect::<Vec<_>>(), keep)
                    .await?;
                Ok((Transacted::Committed(read.outcomes), read.moments))
            }
        }
    }

    /// [`Databases::get`] of several keys. One outcome a key, in their order.
    pub(crate) async fn multi_get(
        &self,
        database: DatabaseId,
        keys: &[&[u8]],
        projection: Projection<'_>,
    ) -> Result<Vec<Outcome>, Failure> {
        let (outcomes, _) = self.multi_get_of(database, keys, projection).await?;
        Ok(outcomes)
    }

    /// [`Databases::multi_get`], and the table that was asked; 0 when there is none.
    pub(crate) async fn multi_get_of(
        &self,
        database: DatabaseId,
        keys: &[&[u8]],
        projection: Projection<'_>,
    ) -> Result<(Vec<Outcome>, TableId), Failure> {
        let gets = keys.iter().map(|key| reading(key, projection));
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                let outcomes = gets.map(|get| look(&get, None, Now::default()));
                return Ok((outcomes.collect(), TableId(0)));
            };
            let items: Vec<_> = gets.clone().map(|get| (&*table, get)).collect();
            let results = self.client.multi_get(&items).await;
            match results.into_iter().collect() {
                Ok(outcomes) => return Ok((outcomes, table.id())),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// Applies changes to several different keys, each by itself. One outcome a change, in their
    /// order.
    ///
    /// # Errors
    /// That of one change that could not be made; others may have been.
    pub(crate) async fn multi_mutate(
        &self,
        database: DatabaseId,
        mutations: &[Mutation<'_>],
    ) -> Result<Vec<Outcome>, Failure> {
        let mut tries = self.tries(database);
        loop {
            let of_nothing = || mutations.iter().map(of_nothing).collect();
            let table = match tries.table_or(of_nothing).await? {
                Ok(table) => table,
                Err(outcomes) => return Ok(outcomes),
            };
            let items: Vec<_> = mutations.iter().map(|m| (&*table, *m)).collect();
            let results = self.client.multi_mutate(&items).await;
            if results.iter().all(Result::is_ok) {
                return Ok(results.into_iter().flatten().collect());
            }
            tries.again_in_part(&table, &results).await?;
        }
    }

    /// The next keys of the database from a place on, perhaps none, and where to go on; never 0.
    ///
    /// # Errors
    /// Also when the number is none of a place.
    pub(crate) async fn stretch(
        &self,
        database: DatabaseId,
        from: ScanFrom,
        items: usize,
    ) -> Result<(Vec<EnumeratedObject>, Option<u64>), Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok((Vec::new(), None));
            };
            let kind = table.hash_kind();
            let cursor = match from {
                ScanFrom::Number(number) => Cursor::of_number(kind, number).ok_or(BAD_CURSOR)?,
                ScanFrom::Drawn(hash, rank) => drawn_place(&table, hash, rank),
            };
            let Some(cursor) = self.own_place(&table, cursor) else {
                return Ok((Vec::new(), None));
            };
            let enumeration = self.client.enumerate_from(&table, cursor);
            let mut enumeration = enumeration.keys_only().batch_items(items);
            match enumeration.next_stretch().await {
                Ok(objects) => {
                    let next = enumeration.cursor();
                    let next = next.and_then(|next| self.own_place(&table, next));
                    return Ok((objects, next.map(|next| next.to_number(kind))));
                }
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// The place itself; if other servers' tablets are to be left out, where the next one of this
    /// server begins. A tablet that was begun is gone through to its end, wherever it is by then.
    fn own_place(&self, table: &Table, place: Cursor) -> Option<Cursor> {
        let is_begun = place.rank != Rank(0);
        if !self.own_only || table.hash_kind() == HashKind::Seeded || is_begun {
            return Some(place);
        }
        let first = place.stretch.first;
        let mut tablets = table.tablets().into_iter();
        let own = tablets.find(|tablet| {
            tablet.range.last >= first && self.client.is_local(table, tablet.range.first)
        })?;
        Some(Cursor::before(HashKind::Slots, own.range.first.max(first)))
    }

    /// Whether a server answers within a time.
    pub(crate) async fn answers(&self, address: &str, limit: Duration) -> bool {
        let address = Address::from(address);
        let ping = self.client.ping(&address);
        matches!(timeout(&*self.parts.clock, limit, ping).await, Ok(Ok(())))
    }

    /// Whether this server has a slot, as far as is known.
    pub(crate) fn is_local(&self, table: &Table, slot: KeySlot) -> bool {
        self.client.is_local(table, slot.hashes_to(slot).first)
    }

    /// The table of a database, created if it does not exist: its slots have to be somewhere.
    pub(crate) async fn slots(&self, database: DatabaseId) -> Result<Arc<Table>, Failure> {
        match self.known(database) {
            Some(table) => Ok(table),
            None => self.slots_anew(database).await,
        }
    }

    /// [`Databases::slots`], with its tablets as the coordinator knows them after this was called.
    pub(crate) async fn slots_anew(&self, database: DatabaseId) -> Result<Arc<Table>, Failure> {
        match self.look_up(database).await? {
            Some(table) => Ok(table),
            None => self.create(database).await,
        }
    }

    /// The keys of one slot. Looks at all keys of its tablet.
    pub(crate) async fn count_in_slot(&self, table: &Table, slot: KeySlot) -> Result<u64, Failure> {
        // From the smallest rank that is not the start, because that has no end.
        let cursor = Cursor {
            stretch: slot.hashes_to(slot),
            rank: Rank(1),
        };
        let enumeration = self.client.enumerate_from(table, cursor).keys_only();
        let mut enumeration = enumeration.batch_items(COUNT_STEP);
        let mut count = 0;
        let is_in = |place: &Cursor| place.stretch.last <= cursor.stretch.last;
        while enumeration.cursor().as_ref().is_some_and(is_in) {
            let objects = enumeration.next_stretch().await;
            count += objects.map_err(|error| of_client(&error))?.len() as u64;
            give_way().await;
        }
        Ok(count)
    }

    pub(crate) async fn count(&self, database: DatabaseId) -> Result<CountObjectsReply, Failure> {
        let mut tries = self.tries(database);
        loop {
            let Some(table) = tries.existing().await? else {
                return Ok(CountObjectsReply::default());
            };
            let counted = match self.own_only {
                true => self.client.count_here(&table).await,
                false => self.client.count(&table).await,
            };
            match counted {
                Ok(count) => return Ok(count),
                Err(error) => tries.again(&table, &error).await?,
            }
        }
    }

    /// Drops the table; the next write creates a new one, with the same quota. Ends when no server
    /// serves a dropped table of this database any more, whoever dropped it.
    pub(crate) async fn flush(&self, database: DatabaseId) -> Result<(), Failure> {
        let dropped = self.client.empty_table(&database.table_name()).await;
        match dropped {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {}
            Err(error) => return Err(of_client(&error)),
        }
        self.remember(database, &None);
        if self.own_only {
            // Slots have to be somewhere.
            self.slots(database).await?;
        }
        Ok(())
    }

    /// The tables of all databases.
    pub(crate) async fn table_ids(&self) -> Result<BTreeSet<TableId>, Failure> {
        let names: BTreeSet<String> = DatabaseId::all().map(DatabaseId::table_name).collect();
        let tables = self.client.list_tables().await;
        let tables = tables.map_err(|error| of_client(&error))?;
        let ours = tables
            .into_iter()
            .filter(|table| names.contains(&table.name));
        Ok(ours.map(|table| table.id).collect())
    }

    /// The databases whose tables exist; of a cluster, the only one that there is.
    pub(crate) async fn existing(&self) -> Result<Vec<DatabaseId>, Failure> {
        if self.own_only {
            return Ok(vec![DatabaseId::default()]);
        }
        let tables = self.client.list_tables().await;
        let tables = tables.map_err(|error| of_client(&error))?;
        let is_there = |database: &DatabaseId| {
            let name = database.table_name();
            tables.iter().any(|table| table.name == name)
        };
        Ok(DatabaseId::all().filter(is_there).collect())
    }
}

/// How steps are done together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    AtOneMoment { frees: bool },
    ReadFirst { keep: bool },
}

/// What steps came to that were done together.
#[derive(Debug)]
pub(crate) struct Together {
    pub(crate) transacted: Transacted,
    /// At how many moments: reads for a decision have one a server.
    pub(crate) moments: usize,
    /// The tables of the databases then.
    pub(crate) tables: Tables,
}

/// Why a transaction was not done.
#[derive(Debug)]
pub(crate) enum NotTransacted {
    /// It has more steps or bytes than one may have. Nothing was done.
    TooLarge(Failure),
    /// A server takes no part in transactions of several. Nothing was done.
    Unsupported(Failure),
    /// Another reason.
    Failure(Failure),
}

impl From<Failure> for NotTransacted {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<NotTransacted> for Failure {
    fn from(why: NotTransacted) -> Self {
        match why {
            NotTransacted::TooLarge(failure)
            | NotTransacted::Unsupported(failure)
            | NotTransacted::Failure(failure) => failure,
        }
    }
}

/// The tables that databases had when a transaction was done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tables(BTreeMap<DatabaseId, TableId>);

impl Tables {
    /// That of a database; 0 when it had none.
    pub(crate) fn of(&self, database: DatabaseId) -> TableId {
        self.0.get(&database).copied().unwrap_or(TableId(0))
    }
}

/// The first step that names another table than its database has.
fn of_another_table(steps: &[(DatabaseId, TransactionStep<'_>)], tables: &Tables) -> Option<usize> {
    steps.iter().position(|(db, step)| {
        let named = step.operation.table();
        named != TableId(0) && named != tables.of(*db)
    })
}

/// The end of a transaction where there are no objects, unless it makes one.
fn without_objects(steps: &[(DatabaseId, TransactionStep<'_>)]) -> Option<Transacted> {
    let mut outcomes = Vec::with_capacity(steps.len());
    for (at, (_, step)) in steps.iter().enumerate() {
        let outcome = without_object(&step.operation)?;
        if step.must_hold && outcome.is_failure() {
            return Some(Transacted::Refused { step: at, outcome });
        }
        outcomes.push(outcome);
    }
    Some(Transacted::Committed(outcomes))
}

/// One operation's tries to find its table.
struct TableTries<'a> {
    databases: &'a Databases,
    database: DatabaseId,
    tries: u32,
}

impl TableTries<'_> {
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

    /// The table that changes go to, created unless there is an outcome of them without objects;
    /// that outcome when there is no table.
    async fn table_or<T>(
        &self,
        of_nothing: impl FnOnce() -> Option<T>,
    ) -> Result<Result<Arc<Table>, T>, Failure> {
        if let Some(table) = self.databases.known(self.database) {
            return Ok(Ok(table));
        }
        match of_nothing() {
            Some(outcome) => Ok(self.existing().await?.ok_or(outcome)),
            None => Ok(Ok(self.wanted().await?)),
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

    /// [`TableTries::again`] for a write or delete of several keys of which at least one failed.
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
