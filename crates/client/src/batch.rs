//! Operations on several objects: grouped by server, servers in parallel [RAMCloud fig. 2].
//!
//! A batch goes in rounds. Each round:
//!
//! 1. sorts the items without a result by the server that has them;
//! 2. cuts each group into requests within the limits;
//! 3. sends up to 32 of them at a time.
//!
//! Items that were put off, or whose reply was lost, come again in the next round. Each item that
//! changes data is an operation of its own and keeps its identity over all rounds (CLIENT-1). So
//! items may come again in any groups, wherever their tablets are by then. Batches of more than
//! 4096 such items are done one part after the other.
//!
//! Batches whose items are done in their order are in `batch/in_order.rs`.

mod in_order;

pub use in_order::BatchStopped;

use crate::client::{Again, Client};
use crate::error::ClientError;
use crate::objects::{DeleteReply, Object, WriteReply, deleted, object, written};
use crate::request::{DataRequest, Gets, Mutations, RestsOn};
use crate::retry::Attempts;
use crate::sequence::{BATCH_UNDER_WAY_MAX, Ticket};
use crate::table::{Table, TableKey, TableMap, Tablet};
use bytes::Bytes;
use core::ops::Range;
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use pluvio_env::Address;
use pluvio_units::{ClusterId, KeyHash, OperationId, SequenceNumber, ServerId};
use pluvio_wire::{
    Change, Get, Header, MULTI_BYTES_MAX, MULTI_ITEMS_MAX, Mutation, Outcome, Payload, RejectRules,
    Results, RetryReason, RpcError, check_get, check_mutation,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Requests of one batch under way at a time. They keep many servers busy, and a huge batch takes
/// at most 128 MiB for its requests.
pub(crate) const CALLS_MAX: usize = 32;

/// One object of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// Its table.
    pub table: &'a Table,
    /// Its key.
    pub key: &'a [u8],
    /// When to refuse.
    pub rules: RejectRules,
}

impl<'a> Key<'a> {
    /// An object, without reject rules.
    #[must_use]
    pub fn new(table: &'a Table, key: &'a [u8]) -> Self {
        Self {
            table,
            key,
            rules: RejectRules::default(),
        }
    }

    /// With reject rules.
    #[must_use]
    pub fn rules(mut self, rules: RejectRules) -> Self {
        self.rules = rules;
        self
    }

    fn get(&self) -> (&'a Table, Get<'a>) {
        let get = Get {
            hash: Some(self.table.hash(self.key)),
            rules: self.rules,
            ..Get::new(self.table.id(), self.key)
        };
        (self.table, get)
    }

    fn mutation<'m>(&self, change: Change<'m>) -> (&'a Table, Mutation<'m>)
    where
        'a: 'm,
    {
        let mutation = Mutation {
            hash: Some(self.table.hash(self.key)),
            rules: self.rules,
            ..Mutation::new(self.table.id(), self.key, change)
        };
        (self.table, mutation)
    }
}

/// The items of a batch: all of one kind.
#[derive(Clone, Copy)]
enum Items<'a> {
    Gets(&'a [(&'a Table, Get<'a>)]),
    Mutations(&'a [(&'a Table, Mutation<'a>)]),
}

impl<'a> Items<'a> {
    fn len(self) -> usize {
        match self {
            Self::Gets(items) => items.len(),
            Self::Mutations(items) => items.len(),
        }
    }

    fn table(self, index: usize) -> &'a Table {
        match self {
            Self::Gets(items) => items[index].0,
            Self::Mutations(items) => items[index].0,
        }
    }

    fn hash(self, index: usize) -> KeyHash {
        let (table, key, hash) = match self {
            Self::Gets(items) => (items[index].0, items[index].1.key, items[index].1.hash),
            Self::Mutations(items) => (items[index].0, items[index].1.key, items[index].1.hash),
        };
        hash.unwrap_or_else(|| table.hash(key))
    }

    /// Bytes of a request that an item takes, without its fixed part.
    fn bytes(self, index: usize) -> usize {
        match self {
            Self::Gets(items) => items[index].1.key.len(),
            Self::Mutations(items) => {
                let mutation = &items[index].1;
                let expected = mutation.value_is.map_or(0, <[u8]>::len);
                mutation.key.len() + expected + mutation.change.bulk_len()
            }
        }
    }

    fn check(self, index: usize) -> Result<(), ClientError> {
        match self {
            Self::Gets(items) => check_get(&items[index].1).map_err(ClientError::from_final),
            Self::Mutations(items) => {
                check_mutation(&items[index].1).map_err(ClientError::from_final)
            }
        }
    }

    fn changes_data(self) -> bool {
        matches!(self, Self::Mutations(_))
    }
}

/// One request of a round.
struct Chunk {
    cluster: ClusterId,
    owner: ServerId,
    address: Address,
    /// Bytes of the items' keys and values.
    bytes: usize,
    indexes: Vec<usize>,
}

impl Chunk {
    fn new(cluster: ClusterId, tablet: &Tablet) -> Self {
        Self {
            cluster,
            owner: tablet.owner,
            address: tablet.address.clone(),
            bytes: 0,
            indexes: Vec::new(),
        }
    }

    fn push(&mut self, index: usize, bytes: usize) {
        self.bytes += bytes;
        self.indexes.push(index);
    }

    /// Whether an item of this size fits the limits of a request; the first one always does.
    fn has_room(&self, bytes: usize) -> bool {
        self.indexes.is_empty()
            || (self.indexes.len() < MULTI_ITEMS_MAX && self.bytes + bytes <= MULTI_BYTES_MAX)
    }
}

/// The items of a part of a batch as operations.
struct Numbers<'a> {
    items: Range<usize>,
    /// There from the first request to another server on.
    ticket: Option<Ticket<'a>>,
}

impl Numbers<'_> {
    /// The first `count` items have their results.
    fn finished(&mut self, count: usize) {
        if let Some(ticket) = &mut self.ticket {
            ticket.finished(count);
        }
    }

    /// The number of an item; 0 when none has one.
    fn number(&self, index: usize) -> SequenceNumber {
        let number = |ticket: &Ticket<'_>| ticket.number(index - self.items.start);
        self.ticket.as_ref().map_or(SequenceNumber(0), number)
    }
}

/// In which order the items of a chunk are done.
#[derive(Clone, Copy)]
enum Order<'a> {
    Any,
    /// In theirs. With a place for what the answer rests on, it may come early.
    InOrder(Option<&'a RestsOn>),
}

/// What became of one chunk.
enum Sent {
    /// Results of the items, in their order; some may say "later". Of an ordered chunk those that
    /// were looked at.
    Items(Results),
    /// Not done, or not known to be done: sort the items anew.
    Again(Again),
    /// No retry helps.
    Failed(ClientError),
}

/// A round: its items, the maps by which they are sorted, and the rest for the next round.
struct Round<'i> {
    items: Items<'i>,
    /// The maps by which the items were sorted.
    maps: BTreeMap<TableKey, Arc<TableMap>>,
    /// Items that come again in the next round.
    pending: Vec<usize>,
    /// How long to wait before that.
    after: Duration,
    /// Tables whose maps were wrong, and the generations of those maps.
    stale: BTreeMap<TableKey, (Table, u64)>,
}

impl<'i> Round<'i> {
    fn new(items: Items<'i>) -> Self {
        Self {
            items,
            maps: BTreeMap::new(),
            pending: Vec::new(),
            after: Duration::ZERO,
            stale: BTreeMap::new(),
        }
    }

    /// The tablet of an item; `None` when that has no owner.
    fn locate(&mut self, index: usize) -> Option<&Tablet> {
        let table = self.items.table(index);
        let map = self.maps.entry(table.unique_key());
        map.or_insert_with(|| table.map())
            .locate(self.items.hash(index))
    }

    /// The tablet of an item has no owner.
    fn not_served(&mut self, index: usize, attempts: &mut Attempts<'_>) {
        let table = self.items.table(index);
        attempts.failed(
            format!("a tablet of table {:?} is not served", table.name()),
            Some(RetryReason::TabletNotReady),
        );
        let again = Again {
            after: Duration::ZERO,
            refresh: true,
        };
        self.put_off(index, again);
    }

    fn put_off(&mut self, index: usize, again: Again) {
        self.pending.push(index);
        self.after = self.after.max(again.after);
        if again.refresh {
            let table = self.items.table(index);
            let seen = self.maps[&table.unique_key()].generation;
            self.stale
                .entry(table.unique_key())
                .or_insert_with(|| (table.clone(), seen));
        }
    }

    /// Whether more is known about the tablets of a chunk than when it was sorted.
    fn has_moved(&self, chunk: &Chunk) -> bool {
        chunk.indexes.iter().any(|&index| {
            let table = self.items.table(index);
            table.map().generation != self.maps[&table.unique_key()].generation
        })
    }
}

type Done = Vec<Option<Result<Outcome, ClientError>>>;

impl Client {
    /// Reads several objects, also of several tables. One result an item, in their order.
    pub async fn multi_read(&self, keys: &[Key<'_>]) -> Vec<Result<Option<Object>, ClientError>> {
        let gets: Vec<_> = keys.iter().map(Key::get).collect();
        let results = self.batch(Items::Gets(&gets)).await;
        results.into_iter().map(|r| r.and_then(object)).collect()
    }

    /// Reads of several objects, also of several tables, what is wanted of each. One outcome an
    /// item, in their order; see [`Client::get`].
    pub async fn multi_get(&self, gets: &[(&Table, Get<'_>)]) -> Vec<Result<Outcome, ClientError>> {
        let gets: Vec<_> = gets
            .iter()
            .map(|(table, get)| {
                let get = Get {
                    table: table.id(),
                    hash: Some(table.hash(get.key)),
                    ..*get
                };
                (*table, get)
            })
            .collect();
        self.batch(Items::Gets(&gets)).await
    }

    /// Writes several objects, also of several tables. Each one succeeds or fails by itself; one
    /// result an item, in their order. The order of two writes to one key is not fixed.
    pub async fn multi_write(
        &self,
        objects: &[(Key<'_>, Bytes)],
    ) -> Vec<Result<WriteReply, ClientError>> {
        let put = |(key, value)| Key::mutation(key, Change::Put(Payload::from(value)));
        let puts: Vec<_> = objects
            .iter()
            .map(|(key, value)| put((key, value)))
            .collect();
        let results = self.batch(Items::Mutations(&puts)).await;
        results.into_iter().map(|r| r.and_then(written)).collect()
    }

    /// Deletes several objects, also of several tables. Each one succeeds or fails by itself; one
    /// result an item, in their order.
    pub async fn multi_delete(&self, keys: &[Key<'_>]) -> Vec<Result<DeleteReply, ClientError>> {
        let deletes: Vec<_> = keys
            .iter()
            .map(|key| key.mutation(Change::Delete))
            .collect();
        let results = self.batch(Items::Mutations(&deletes)).await;
        results.into_iter().map(|r| r.and_then(deleted)).collect()
    }

    /// Applies several mutations, also of several tables, in no fixed order. Each one succeeds or
    /// fails by itself; one outcome an item, in their order; see [`Client::mutate`].
    pub async fn multi_mutate(
        &self,
        mutations: &[(&Table, Mutation<'_>)],
    ) -> Vec<Result<Outcome, ClientError>> {
        let mutations: Vec<_> = mutations
            .iter()
            .map(|(t, m)| (*t, of_table(t, m)))
            .collect();
        self.batch(Items::Mutations(&mutations)).await
    }

    async fn batch(&self, items: Items<'_>) -> Vec<Result<Outcome, ClientError>> {
        self.traced("batch", self.batch_untraced(items)).await
    }

    async fn batch_untraced(&self, items: Items<'_>) -> Vec<Result<Outcome, ClientError>> {
        let (count, mut attempts) = (items.len(), self.attempts());
        let mut results: Done = (0..count).map(|_| None).collect();
        let part = match items.changes_data() {
            true => BATCH_UNDER_WAY_MAX,
            false => count.max(1),
        };
        let mut first = 0;
        while first < count {
            let range = first..count.min(first + part);
            first = range.end;
            self.part(items, range, &mut results, &mut attempts).await;
        }
        results
            .into_iter()
            .map(|r| r.expect("an item leaves the pending ones only with its result"))
            .collect()
    }

    /// The outcome of an item that is read in mapped memory.
    fn of_memory(&self, items: Items<'_>, index: usize) -> Option<Outcome> {
        let Items::Gets(gets) = items else {
            return None;
        };
        let (table, get) = &gets[index];
        self.get_mapped(table, items.hash(index), get)
    }

    /// Does a part of a batch.
    async fn part(
        &self,
        items: Items<'_>,
        range: Range<usize>,
        results: &mut Done,
        attempts: &mut Attempts<'_>,
    ) {
        let mut pending = Vec::with_capacity(range.len());
        for index in range.clone() {
            match items.check(index) {
                Ok(()) => match self.of_memory(items, index) {
                    Some(outcome) => results[index] = Some(Ok(outcome)),
                    None => pending.push(index),
                },
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        attempts.begin_unsent();
        if attempts.is_over() {
            // The parts before have taken all of the time.
            fail(results, &mut pending, &attempts.timed_out(), |_| true);
        }
        let mut numbers = Numbers {
            items: range,
            ticket: None,
        };
        while !pending.is_empty() {
            let before = pending.len();
            let round = self.round(items, pending, &mut numbers, results, attempts);
            let round = round.await;
            pending = round.pending;
            if pending.len() < before {
                attempts.progressed();
                let oldest = pending.iter().copied().min().unwrap_or(numbers.items.end);
                numbers.finished(oldest - numbers.items.start);
            }
            if pending.is_empty() {
                break;
            }
            if let Err(error) = attempts.pause(round.after).await {
                fail(results, &mut pending, &error, |_| true);
            }
            for (table, seen) in round.stale.into_values() {
                if let Err(error) = self.refresh(&table, seen, attempts).await {
                    // Out of time hits all; anything else only the objects of this table.
                    fail(results, &mut pending, &error, |index| {
                        error.is_retryable()
                            || items.table(index).unique_key() == table.unique_key()
                    });
                }
            }
        }
    }

    /// Sends every pending item once.
    async fn round<'a, 'i>(
        &'a self,
        items: Items<'i>,
        pending: Vec<usize>,
        numbers: &mut Numbers<'a>,
        results: &mut Done,
        attempts: &mut Attempts<'_>,
    ) -> Round<'i> {
        let mut round = Round::new(items);
        let chunks = self.sort(&mut round, pending, attempts);
        if items.changes_data() && chunks.iter().any(|c| self.local(c.owner).is_none()) {
            let count = u32::try_from(numbers.items.len()).expect("a part of a batch is small");
            if let Err(error) = self.identify(&mut numbers.ticket, count, attempts).await {
                for index in chunks.iter().flat_map(|chunk| &chunk.indexes) {
                    results[*index] = Some(Err(error.clone()));
                }
                return round;
            }
        }
        let (sorted, shared, numbers) = (&round, &*attempts, &*numbers);
        let mut done = stream::iter(chunks)
            .map(|chunk| async move {
                let mut own = shared.clone();
                let sent = self.send(sorted, &chunk, numbers, Order::Any, &mut own);
                (sent.await, chunk, own)
            })
            .buffer_unordered(CALLS_MAX);
        let mut ended = Vec::new();
        while let Some(one) = done.next().await {
            ended.push(one);
        }
        drop(done);
        for (sent, chunk, own) in ended {
            attempts.absorb(own);
            self.take_sent(&mut round, sent, chunk, results, attempts);
        }
        round
    }

    /// Takes what became of a chunk: its items have their results, or are put off.
    fn take_sent(
        &self,
        round: &mut Round<'_>,
        sent: Sent,
        chunk: Chunk,
        results: &mut Done,
        attempts: &mut Attempts<'_>,
    ) {
        match sent {
            Sent::Items(answered) => {
                for (index, item) in chunk.indexes.into_iter().zip(answered) {
                    let refusal = match item {
                        Ok(item) => {
                            results[index] = Some(Ok(item));
                            continue;
                        }
                        Err(refusal) => RpcError::Refused(refusal),
                    };
                    match self.after_failure(refusal, round.items.changes_data(), attempts) {
                        Ok(again) => round.put_off(index, again),
                        Err(error) => results[index] = Some(Err(error)),
                    }
                }
            }
            Sent::Again(again) => {
                for index in chunk.indexes {
                    round.put_off(index, again);
                }
            }
            Sent::Failed(error) => {
                for index in chunk.indexes {
                    results[index] = Some(Err(error.clone()));
                }
            }
        }
    }

    /// Groups items by server, in requests within the limits.
    fn sort(
        &self,
        round: &mut Round<'_>,
        pending: Vec<usize>,
        attempts: &mut Attempts<'_>,
    ) -> Vec<Chunk> {
        let items = round.items;
        let mut full = Vec::new();
        let mut open: BTreeMap<(ClusterId, ServerId), Chunk> = BTreeMap::new();
        for index in pending {
            let Some(tablet) = round.locate(index) else {
                round.not_served(index, attempts);
                continue;
            };
            let bytes = items.bytes(index);
            let cluster = items.table(index).cluster();
            let chunk = open
                .entry((cluster, tablet.owner))
                .or_insert_with(|| Chunk::new(cluster, tablet));
            if !chunk.has_room(bytes) {
                full.push(std::mem::replace(chunk, Chunk::new(cluster, tablet)));
            }
            chunk.push(index, bytes);
        }
        full.extend(open.into_values());
        full
    }

    /// Sends one request, unless the time is up.
    async fn send(
        &self,
        round: &Round<'_>,
        chunk: &Chunk,
        numbers: &Numbers<'_>,
        order: Order<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Sent {
        if attempts.is_over() {
            return Sent::Failed(attempts.timed_out());
        }
        let indexes = || chunk.indexes.iter().copied();
        match round.items {
            Items::Gets(all) => {
                let gets: Vec<Get<'_>> = indexes().map(|index| all[index].1).collect();
                let request = Gets(&gets);
                self.send_request(round, chunk, numbers, &request, attempts)
                    .await
            }
            Items::Mutations(all) => {
                let id = |index: usize| match &numbers.ticket {
                    // Before an answer was lost, no other server can have executed any of them.
                    Some(ticket)
                        if self.local(chunk.owner).is_none() || attempts.is_ambiguous() =>
                    {
                        OperationId {
                            sequence: numbers.number(index),
                            ..ticket.id(attempts.until_deadline())
                        }
                    }
                    Some(_) | None => OperationId::default(),
                };
                let mutation = |index: usize| Mutation {
                    id: id(index),
                    ..all[index].1
                };
                let mutations: Vec<Mutation<'_>> = indexes().map(mutation).collect();
                let request = Mutations {
                    items: &mutations,
                    ordered: matches!(order, Order::InOrder(_)),
                    early: match order {
                        Order::InOrder(early) => early,
                        Order::Any => None,
                    },
                };
                let sent = self.send_request(round, chunk, numbers, &request, attempts);
                sent.await
            }
        }
    }

    async fn send_request<R: DataRequest<Reply = Results>>(
        &self,
        round: &Round<'_>,
        chunk: &Chunk,
        numbers: &Numbers<'_>,
        request: &R,
        attempts: &mut Attempts<'_>,
    ) -> Sent {
        let result = if let Some(master) = self.local(chunk.owner) {
            let limit = attempts.remaining();
            let header = Self::local_header(chunk.cluster, chunk.owner, limit);
            let answer = request.local(master, self.core(), &header);
            match self.finish_local::<R>(answer, attempts).await {
                Ok(result) => result,
                Err(error) => return Sent::Failed(error),
            }
        } else {
            let moved = || round.has_moved(chunk);
            let _place = match self.place(chunk.owner, attempts, moved).await {
                Ok(Some(place)) => place,
                Ok(None) => return Sent::Again(Again::AT_ONCE),
                Err(error) => return Sent::Failed(error),
            };
            let mut header = Header::within(chunk.cluster, chunk.owner);
            if let Some(ticket) = &numbers.ticket {
                header.operation = ticket.id(attempts.until_deadline());
            }
            let limit = attempts.next_limit();
            let network = &*self.shared.parts.network;
            request.call(network, &chunk.address, header, limit).await
        };
        match result {
            Ok(results) => {
                let (answered, asked) = (results.len(), chunk.indexes.len());
                let refused_last = results.last().is_some_and(Result::is_err);
                let ended_early = request.ordered() && answered < asked && refused_last;
                if answered == asked || ended_early {
                    return Sent::Items(results);
                }
                Sent::Failed(ClientError::Protocol(format!(
                    "{} answered {answered} of {asked} items",
                    chunk.address
                )))
            }
            Err(error) => match self.after_failure(error, R::CHANGES_DATA, attempts) {
                Ok(again) => Sent::Again(again),
                Err(error) => Sent::Failed(error),
            },
        }
    }
}

/// A mutation of this table.
fn of_table<'m>(table: &Table, mutation: &Mutation<'m>) -> Mutation<'m> {
    Mutation {
        table: table.id(),
        hash: Some(table.hash(mutation.key)),
        ..*mutation
    }
}

/// Gives `error` to the pending items that it hits.
fn fail(
    results: &mut Done,
    pending: &mut Vec<usize>,
    error: &ClientError,
    hits: impl Fn(usize) -> bool,
) {
    pending.retain(|&index| {
        let hit = hits(index);
        if hit {
            results[index] = Some(Err(error.clone()));
        }
        !hit
    });
}
