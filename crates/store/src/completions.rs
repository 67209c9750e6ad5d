//! Outcomes of operations with an identity, kept until their client has them: a retry is answered
//! and not done again [RAMCloud §10.3]. `docs/exactly-once.md` is about the whole mechanism.
//!
//! Each outcome is a completion record in the log, appended in one group with the change. The table
//! here finds it by client and number. It is to records what the index is to objects: the cleaner
//! keeps a record while the table points to it, and replay fills the table. A store without
//! replicas keeps outcomes in the table only.
//!
//! - COMP-1: of one operation at most one execution is running or done here.
//! - COMP-2: an operation that its client has acknowledged is never executed while the client is
//!   known.
//! - COMP-3: a client is known, with all its unacknowledged results, for [`kept_for`] after each of
//!   its operations came or was replayed. Then it is forgotten, as a whole.
//! - COMP-4: memory is bounded, and at the bound an operation is refused, never forgotten. The
//!   bounds are [`CLIENTS_MAX`] clients, [`OPERATIONS_MAX`] results each, and [`RESULTS_MAX`] in
//!   all. The oldest operations of a client are admitted beyond that: [`BATCH_UNDER_WAY_MAX`]
//!   numbers from the first that it has not acknowledged. Refusing one of them would refuse
//!   everything, because nothing behind it can be acknowledged. In all there is room for
//!   [`OLDEST_RESULTS_MAX`] of these; beyond that, the very first of each known client is admitted.
//!   Results that a recovery or a migration brings are kept beyond the bounds, or an operation
//!   could be done again. The log of this server, which has a copy of each record, bounds those.
//!   Meanwhile new clients and newer operations are refused.
//! - COMP-5: a record is live in its segment exactly while the table points to it. It is counted
//!   with the append and counted off when it leaves the table, under a guard older than that.
//! - COMP-6: a master that gets keys from a living one also gets its knowledge of acknowledgements,
//!   and keeps that for as long. Otherwise a late copy of an acknowledged operation would be
//!   executed when the keys come back to a master that had them: no record of its client need lie
//!   with them.
//! - COMP-7: values in outcomes are bounded in bytes: [`Completions::values_max`] in all and
//!   [`CLIENT_VALUES_MAX`] of a client. Its oldest operation is admitted beside that, and as much
//!   again is room for the oldest alone. So results of younger operations cannot keep clients from
//!   acknowledging. Room is made before anything changes. Without room the operation is refused.
//!
//! Threads: any; no other lock is taken under a shard's lock. It is held for single steps, and by
//! migrations and the forgetting of clients for a walk of the shard.

use crate::engine::EngineError;
use crate::engine::read::Pending;
use core::time::Duration;
use pluvio_format::{Completion, Entry};
use pluvio_log::{Awaited, LogSpace, PendingMarks};
use pluvio_memory::EpochGuard;
use pluvio_mutation::Outcome;
use pluvio_units::{
    Acknowledged, BATCH_UNDER_WAY_MAX, ClientId, EntryRef, FixedMap, HashRange, KeyHash,
    OperationId, SequenceNumber, TableId, VALUE_MAX,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clients that are known at a time. A newcomer beyond is refused until others have been forgotten,
/// unless a replay brings it.
pub const CLIENTS_MAX: usize = 128 << 10;
/// Unacknowledged results of one client, beside those of its oldest operations: twice what a client
/// has under way.
pub const OPERATIONS_MAX: usize = 16 << 10;
/// Unacknowledged results of all clients: some 100 MB of table and 40 MB of log.
pub const RESULTS_MAX: usize = 1 << 20;
/// Room for the oldest operations of clients beyond [`RESULTS_MAX`]. Later operations take none of
/// it, so their results cannot keep batches from their end. It is enough for 256 parts of batches
/// that are half done. More of them may hold up each other until their time is over: then their
/// clients acknowledge or leave them (COMP-3).
pub const OLDEST_RESULTS_MAX: usize = RESULTS_MAX;
/// Bytes of values in the outcomes of all clients, on a server with much memory. The oldest
/// operations of clients have as much again.
pub const VALUES_MAX: usize = 64 << 20;
/// The part of the live data's memory that these values may take at most: each lies in the log,
/// too.
const MEMORY_SHARE: u64 = 16;
/// Bytes of values in the outcomes of one client, beside that of its oldest operation.
pub const CLIENT_VALUES_MAX: usize = 1 << 20;
/// When to try an operation again whose outcome has no room: clients acknowledge outcomes with
/// their next operations.
const VALUES_RETRY: Duration = Duration::from_millis(5);
/// Independent parts of the table, so that cores seldom meet.
const SHARDS: usize = 64;
/// Longer than a message stays on its way between two machines that both live.
const ON_THE_WAY_MAX: Duration = Duration::from_secs(10);

/// How long a client is known after an operation that it may repeat for `retry` (EO-4): its clock
/// may run at half our speed, and its last attempt may be late.
#[must_use]
pub fn kept_for(retry: Duration) -> Duration {
    2 * retry + ON_THE_WAY_MAX
}

/// A result.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Done {
    outcome: Outcome,
    table: TableId,
    hash: KeyHash,
    /// Its record; `None` in a store without replicas.
    entry: Option<EntryRef>,
    /// What must be durable before it may be told.
    pending: Option<Pending>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Record {
    Running,
    Done(Done),
}

#[derive(Default)]
struct Client {
    acknowledged_below: SequenceNumber,
    /// By ascending number, which is about the order in which they come.
    records: VecDeque<(SequenceNumber, Record)>,
    /// When it may be forgotten (COMP-3).
    until: Duration,
    /// Bytes of values in its outcomes (COMP-7).
    value_bytes: usize,
}

impl Record {
    /// Bytes of a value in its outcome.
    fn value_bytes(&self) -> usize {
        match self {
            Self::Running => 0,
            Self::Done(done) => done.outcome.bulk_len(),
        }
    }
}

impl Client {
    fn find(&self, sequence: SequenceNumber) -> Result<usize, usize> {
        self.records.binary_search_by_key(&sequence, |(s, _)| *s)
    }

    fn get_mut(&mut self, sequence: SequenceNumber) -> Option<&mut Record> {
        let at = self.find(sequence).ok()?;
        Some(&mut self.records[at].1)
    }

    fn done_mut(&mut self, sequence: SequenceNumber) -> Option<&mut Done> {
        match self.get_mut(sequence)? {
            Record::Done(done) => Some(done),
            Record::Running => None,
        }
    }

    /// Takes out what is acknowledged.
    fn acknowledge(&mut self, below: SequenceNumber, gone: &mut Vec<Record>) {
        if below <= self.acknowledged_below {
            return;
        }
        self.acknowledged_below = below;
        let count = self.records.partition_point(|(s, _)| *s < below);
        let left = self.records.drain(..count).map(|(_, record)| record);
        let before = gone.len();
        gone.extend(left);
        self.give_back(gone[before..].iter().map(Record::value_bytes).sum());
    }

    /// What it has acknowledged, for another master; `None` if that is nothing, or none of its
    /// operations can come any more.
    fn acknowledged(&self, client: ClientId, now: Duration) -> Option<Acknowledged> {
        let left = self.until.checked_sub(now)?;
        let below = self.acknowledged_below;
        // Operations count from 1.
        (below > SequenceNumber(1)).then(|| Acknowledged {
            client,
            below,
            known_s: u32::try_from(left.as_secs() + 1).unwrap_or(u32::MAX),
        })
    }

    /// Gives back what was reserved. The client may have been forgotten since, and be a new one.
    fn give_back(&mut self, reserved: usize) {
        self.value_bytes = self.value_bytes.saturating_sub(reserved);
    }

    fn is_running(&self) -> bool {
        let running = |(_, record): &(_, Record)| matches!(record, Record::Running);
        self.records.iter().any(running)
    }
}

/// Whoever sends operations chooses his client id. With ids that meet in one place of the map he
/// makes the server look through as many as it knows, [`CLIENTS_MAX`] at most, for each of his
/// operations; but he needs nothing of the kind to keep it busy, or to delete what it has: nobody
/// may reach a server's port who is not trusted (`docs/transport.md`).
type Shard = FixedMap<ClientId, Client>;

/// See the module's text.
pub struct Completions {
    space: Arc<LogSpace>,
    shards: Vec<Mutex<Shard>>,
    clients: AtomicUsize,
    results: AtomicUsize,
    /// Bytes of values in outcomes, and of what is reserved for them (COMP-7).
    value_bytes: AtomicUsize,
    values_max: usize,
}

/// What leaves with keys for another master.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeavingResults {
    /// The results of operations on the keys.
    pub records: Vec<Completion>,
    /// What clients have acknowledged, also of operations on other keys (COMP-6).
    pub acknowledged: Vec<Acknowledged>,
}

/// What to do with an operation.
pub enum Admission {
    /// New: execute it.
    Execute(Execution),
    /// Done before: this came of it.
    Answer(Awaited<Outcome>),
    /// It is being executed.
    InProgress,
    /// There are too many results to be kept (COMP-4).
    Busy,
    /// The client has its result already (COMP-2).
    Forgotten,
    /// The number belongs to an operation on another key: an error of the client.
    OtherKey,
}

/// An operation being executed. Dropping it means that nothing was done, so that a retry is
/// executed.
pub struct Execution {
    completions: Arc<Completions>,
    id: OperationId,
    table: TableId,
    hash: KeyHash,
    /// Bytes reserved for a value in the outcome.
    reserved: usize,
    is_complete: bool,
}

impl Completions {
    /// An empty table for the records in `space`.
    pub(crate) fn new(space: Arc<LogSpace>) -> Arc<Self> {
        let share = space.stats().live_bytes_max / MEMORY_SHARE;
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        let values_max = share.clamp(VALUE_MAX, VALUES_MAX);
        Arc::new(Self {
            space,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            clients: AtomicUsize::new(0),
            results: AtomicUsize::new(0),
            value_bytes: AtomicUsize::new(0),
            values_max,
        })
    }

    fn shard(&self, client: ClientId) -> MutexGuard<'_, Shard> {
        // Client ids are random numbers: their low bits spread them well.
        Self::lock(&self.shards[(client.0 % SHARDS as u64) as usize])
    }

    fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Results that are kept or being made.
    #[must_use]
    pub fn results(&self) -> usize {
        self.results.load(Ordering::Relaxed)
    }

    /// Most bytes of values in outcomes: [`VALUES_MAX`], or a sixteenth of the memory for live
    /// data.
    #[must_use]
    pub fn values_max(&self) -> usize {
        self.values_max
    }

    /// Bytes of values in the outcomes that are kept.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.value_bytes.load(Ordering::Relaxed)
    }

    /// See [`Engine::admit`](crate::Engine::admit).
    pub(crate) fn admit(
        self: &Arc<Self>,
        marks: &PendingMarks,
        id: OperationId,
        (table, hash): (TableId, KeyHash),
        now: Duration,
    ) -> Admission {
        let guard = self.space.pin();
        let mut gone = Vec::new();
        let mut shard = self.shard(id.client);
        if !shard.contains_key(&id.client) && self.clients.load(Ordering::Relaxed) >= CLIENTS_MAX {
            return Admission::Busy;
        }
        let client = self.client(&mut shard, id.client);
        client.until = client.until.max(now + kept_for(id.retry()));
        client.acknowledge(id.acknowledged_below, &mut gone);
        let admission = self.admit_to(client, marks, id, (table, hash));
        drop(shard);
        self.count_off(gone, &guard);
        admission
    }

    fn admit_to(
        self: &Arc<Self>,
        client: &mut Client,
        marks: &PendingMarks,
        id: OperationId,
        (table, hash): (TableId, KeyHash),
    ) -> Admission {
        if id.sequence < client.acknowledged_below {
            return Admission::Forgotten;
        }
        let at = match client.find(id.sequence) {
            Ok(at) => {
                return match &client.records[at].1 {
                    Record::Running => Admission::InProgress,
                    Record::Done(done) if (done.table, done.hash) != (table, hash) => {
                        Admission::OtherKey
                    }
                    Record::Done(done) => {
                        let wait = done.pending;
                        let wait = wait.filter(|p| !self.space.is_durable(p.log, p.position));
                        let outcome = done.outcome.clone();
                        Admission::Answer(marks.marked(wait.map(Pending::end), outcome))
                    }
                };
            }
            Err(at) => at,
        };
        if !self.has_room(client, id.sequence) {
            return Admission::Busy;
        }
        client.records.insert(at, (id.sequence, Record::Running));
        self.results.fetch_add(1, Ordering::Relaxed);
        Admission::Execute(Execution {
            completions: Arc::clone(self),
            id,
            table,
            hash,
            reserved: 0,
            is_complete: false,
        })
    }

    /// Whether there is room for the result of an operation that its client has not acknowledged
    /// (COMP-4, EO-5).
    fn has_room(&self, client: &Client, sequence: SequenceNumber) -> bool {
        let before = sequence.0 - client.acknowledged_below.0;
        if before == 0 {
            return true;
        }
        if before < BATCH_UNDER_WAY_MAX as u64 {
            return self.results() < RESULTS_MAX + OLDEST_RESULTS_MAX;
        }
        client.records.len() < OPERATIONS_MAX && self.results() < RESULTS_MAX
    }

    fn client<'s>(&self, shard: &'s mut Shard, id: ClientId) -> &'s mut Client {
        shard.entry(id).or_insert_with(|| {
            self.clients.fetch_add(1, Ordering::Relaxed);
            Client::default()
        })
    }

    /// Counts off what left the table. `guard` is older than that.
    fn count_off(&self, gone: Vec<Record>, guard: &EpochGuard<'_>) {
        self.results.fetch_sub(gone.len(), Ordering::Relaxed);
        let bytes: usize = gone.iter().map(Record::value_bytes).sum();
        if bytes > 0 {
            self.value_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        for record in gone {
            if let Record::Done(Done {
                entry: Some(entry), ..
            }) = record
            {
                let view = match self.space.entry(entry, guard) {
                    Ok(view) => view,
                    Err(corruption) => {
                        self.space.found_corrupt(&corruption);
                        return;
                    }
                };
                debug_assert!(
                    matches!(view.entry(), Entry::Completion(_)),
                    "COMP-5: the table points to {:?}",
                    view.entry().kind()
                );
                self.space.mark_dead(entry, view.total_len(), guard);
            }
        }
    }

    // --- replay ---------------------------------------------------------------------------------

    /// Whether the table has use for the record of another master: not if it has it, or its client
    /// has acknowledged it. What it says of acknowledgements is taken over. Of a client that is not
    /// known every record is wanted, since none acknowledges itself; it comes to be known beyond
    /// the bound, too (COMP-4). The client is known anew from `now` on: how long ago its operation
    /// was, nobody can say (COMP-3).
    pub(crate) fn wants(&self, record: &Completion, now: Duration, guard: &EpochGuard<'_>) -> bool {
        let mut gone = Vec::new();
        let mut shard = self.shard(record.client);
        let client = self.client(&mut shard, record.client);
        let retry = Duration::from_secs(u64::from(record.retry_s));
        client.until = client.until.max(now + kept_for(retry));
        client.acknowledge(record.acknowledged_below, &mut gone);
        let wanted =
            record.sequence >= client.acknowledged_below && client.find(record.sequence).is_err();
        drop(shard);
        self.count_off(gone, guard);
        wanted
    }

    /// Takes over a record that was copied to `entry`, under the guard of that append. The bounds
    /// of COMP-4 do not hold for it.
    pub(crate) fn restore(&self, record: &Completion, entry: EntryRef, guard: &EpochGuard<'_>) {
        let done = Record::Done(Done {
            outcome: record.outcome.clone(),
            table: record.table,
            hash: record.hash,
            entry: Some(entry),
            pending: None,
        });
        self.value_bytes
            .fetch_add(done.value_bytes(), Ordering::Relaxed);
        let mut shard = self.shard(record.client);
        let client = self.client(&mut shard, record.client);
        let place = client.find(record.sequence);
        self.results.fetch_add(1, Ordering::Relaxed);
        match place {
            Err(at) if record.sequence >= client.acknowledged_below => {
                client.value_bytes += done.value_bytes();
                client.records.insert(at, (record.sequence, done));
            }
            // Acknowledged, or replayed by another recovery, since it was asked for.
            Err(_) | Ok(_) => {
                drop(shard);
                self.count_off(vec![done], guard);
            }
        }
    }

    /// Takes over what clients have acknowledged to another master (COMP-6, EO-6). Those that are
    /// not known come to be known beyond the bound, too (COMP-4). `now` is the clock of
    /// [`Engine::admit`](crate::Engine::admit).
    pub fn take_acknowledged(&self, clients: &[Acknowledged], now: Duration) {
        for told in clients {
            let guard = self.space.pin();
            let mut gone = Vec::new();
            let mut shard = self.shard(told.client);
            let client = self.client(&mut shard, told.client);
            let known = Duration::from_secs(u64::from(told.known_s));
            client.until = client.until.max(now + known);
            client.acknowledge(told.below, &mut gone);
            drop(shard);
            self.count_off(gone, &guard);
        }
    }

    /// The results of operations on these keys and all acknowledgements, for whoever gets the keys.
    /// Of each client both are of one moment: a result that is not among them is acknowledged
    /// (COMP-6). How long a client may still ask for one is told as if it had just come: rather too
    /// long than too short (COMP-3).
    pub(crate) fn of_range(
        &self,
        table: TableId,
        range: HashRange,
        now: Duration,
    ) -> LeavingResults {
        let mut found = LeavingResults::default();
        for shard in &self.shards {
            for (id, client) in Self::lock(shard).iter() {
                found.acknowledged.extend(client.acknowledged(*id, now));
                let left = client.until.saturating_sub(now).as_secs() / 2 + 1;
                for (sequence, record) in &client.records {
                    if let Record::Done(done) = record
                        && done.table == table
                        && range.contains(done.hash)
                    {
                        found.records.push(Completion {
                            client: *id,
                            sequence: *sequence,
                            acknowledged_below: client.acknowledged_below,
                            retry_s: u32::try_from(left).unwrap_or(u32::MAX),
                            table,
                            hash: done.hash,
                            outcome: done.outcome.clone(),
                        });
                    }
                }
            }
        }
        found
    }

    /// Forgets the results of operations on these keys: they are not here any more.
    pub(crate) fn forget_range(&self, table: TableId, range: HashRange) {
        for shard in &self.shards {
            let guard = self.space.pin();
            let mut gone = Vec::new();
            for client in Self::lock(shard).values_mut() {
                let value_bytes = &mut client.value_bytes;
                client.records.retain(|(_, record)| match record {
                    Record::Done(done) if done.table == table && range.contains(done.hash) => {
                        *value_bytes -= record.value_bytes();
                        gone.push(record.clone());
                        false
                    }
                    Record::Done(_) | Record::Running => true,
                });
            }
            self.count_off(gone, &guard);
        }
    }

    // --- transactions of several owners ---------------------------------------------------------

    /// Whether an operation is running or done here.
    pub(crate) fn knows(&self, client: ClientId, sequence: SequenceNumber) -> bool {
        let shard = self.shard(client);
        let known = shard.get(&client);
        known.is_some_and(|client| client.find(sequence).is_ok())
    }

    /// Keeps what is known of a client at least until then.
    pub(crate) fn keep(&self, client: ClientId, until: Duration) {
        if let Some(client) = self.shard(client).get_mut(&client) {
            client.until = client.until.max(until);
        }
    }

    /// Forgets the result of an operation that its client will not ask for again, and the client
    /// with its last.
    pub fn forget(&self, client: ClientId, sequence: SequenceNumber) {
        let guard = self.space.pin();
        let mut gone = Vec::new();
        let mut shard = self.shard(client);
        let Some(known) = shard.get_mut(&client) else {
            return;
        };
        if let Ok(at) = known.find(sequence)
            && let Some((_, record @ Record::Done(_))) = known.records.get(at)
        {
            let bytes = record.value_bytes();
            gone.extend(known.records.remove(at).map(|(_, record)| record));
            known.give_back(bytes);
        }
        if known.records.is_empty() {
            shard.remove(&client);
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
        drop(shard);
        self.count_off(gone, &guard);
    }

    // --- expiry ---------------------------------------------------------------------------------

    /// Forgets clients of one part of the table that gave up their last operation long ago
    /// (COMP-3). Called with ever increasing `turn` it comes to every part: [`Completions::TURNS`]
    /// calls are a round.
    pub fn forget_clients(&self, turn: usize, now: Duration) {
        let guard = self.space.pin();
        let mut gone = Vec::new();
        let mut forgotten = 0;
        Self::lock(&self.shards[turn % SHARDS]).retain(|_, client| {
            let keep = now <= client.until || client.is_running();
            if !keep {
                forgotten += 1;
                gone.extend(client.records.drain(..).map(|(_, record)| record));
            }
            keep
        });
        self.clients.fetch_sub(forgotten, Ordering::Relaxed);
        self.count_off(gone, &guard);
    }

    /// Calls of [`Completions::forget_clients`] that look at every client.
    pub const TURNS: usize = SHARDS;

    // --- the cleaner ----------------------------------------------------------------------------

    /// Whether the table points to this entry.
    pub(crate) fn points_to(&self, record: &Completion, entry: EntryRef) -> bool {
        let mut shard = self.shard(record.client);
        let client = shard.get_mut(&record.client);
        let done = client.and_then(|c| c.done_mut(record.sequence));
        done.is_some_and(|done| done.entry == Some(entry))
    }

    /// Makes the table point to `new` if it points to `old`. Gives whether it did.
    pub(crate) fn relocate(&self, record: &Completion, old: EntryRef, new: EntryRef) -> bool {
        let mut shard = self.shard(record.client);
        let client = shard.get_mut(&record.client);
        let done = client.and_then(|c| c.done_mut(record.sequence));
        let Some(done) = done.filter(|done| done.entry == Some(old)) else {
            return false;
        };
        // What the cleaner moves is durable.
        (done.entry, done.pending) = (Some(new), None);
        true
    }
}

impl Execution {
    /// The record of this operation with its result.
    pub(crate) fn record(&self, outcome: Outcome) -> Completion {
        Completion::new(&self.id, self.table, self.hash, outcome)
    }

    /// Makes room for a value of `bytes` bytes in the outcome (COMP-7).
    ///
    /// # Errors
    /// There is none now.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), EngineError> {
        debug_assert_eq!(self.reserved, 0, "an outcome holds one value");
        let full = EngineError::OutcomesFull {
            retry_after: VALUES_RETRY,
        };
        let completions = &self.completions;
        let mut shard = completions.shard(self.id.client);
        let Some(client) = shard.get_mut(&self.id.client) else {
            return Err(full);
        };
        // The client can acknowledge nothing before it has the result of its oldest operation, so
        // that one has room of its own, which younger ones do not take.
        let is_oldest = self.id.sequence <= client.acknowledged_below;
        let has_share = is_oldest || client.value_bytes + bytes <= CLIENT_VALUES_MAX;
        let most = self.completions.values_max * if is_oldest { 2 } else { 1 };
        let before = completions.value_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !has_share || before + bytes > most {
            pluvio_units::mark("completion-values-full");
            completions.value_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(full);
        }
        client.value_bytes += bytes;
        self.reserved = bytes;
        Ok(())
    }

    /// The operation was executed. `entry` is its record, appended under a guard that is still
    /// held.
    pub(crate) fn complete(
        mut self,
        outcome: Outcome,
        entry: Option<EntryRef>,
        pending: Option<Pending>,
    ) {
        self.is_complete = true;
        debug_assert_eq!(
            self.reserved,
            outcome.bulk_len(),
            "COMP-7: room was made for the value in the outcome"
        );
        let mut shard = self.completions.shard(self.id.client);
        let client = shard.get_mut(&self.id.client);
        let record = client.and_then(|c| c.get_mut(self.id.sequence));
        let done = Record::Done(Done {
            outcome,
            table: self.table,
            hash: self.hash,
            entry,
            pending,
        });
        match record {
            Some(record) => {
                debug_assert_eq!(*record, Record::Running, "COMP-1: executed twice");
                *record = done;
            }
            // The client acknowledged it while it ran: it has given it up.
            None => {
                if let Some(client) = shard.get_mut(&self.id.client) {
                    client.give_back(self.reserved);
                }
                drop(shard);
                let completions = &self.completions;
                completions.results.fetch_add(1, Ordering::Relaxed);
                completions.count_off(vec![done], &completions.space.pin());
            }
        }
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        let mut shard = self.completions.shard(self.id.client);
        if let Some(client) = shard.get_mut(&self.id.client) {
            client.give_back(self.reserved);
            if let Ok(at) = client.find(self.id.sequence) {
                client.records.remove(at);
                self.completions.results.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let bytes = &self.completions.value_bytes;
        bytes.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}
