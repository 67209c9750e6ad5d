//! Operations on several objects: grouped by server, servers in parallel (003 fig. 2).
//!
//! A batch goes in rounds. Each round sorts the items that have no result yet by the server that
//! has them, cuts each group into requests within the limits, and sends up to 32 of them at a time.
//! Items that were put off, or whose reply was lost, come again in the next round. Each item that
//! changes data is an operation of its own and keeps its identity over all rounds (CLIENT-1), so it
//! does not matter which items come again together, nor where their tablets are by then. Batches of
//! more than 4096 such items are done one part after the other.

use crate::client::{Again, Client, Object, object};
use crate::error::ClientError;
use crate::local::LocalMaster;
use crate::retry::Attempts;
use crate::sequence::{BATCH_UNDER_WAY_MAX, Ticket};
use crate::table::{Table, TableKey, TableMap, Tablet};
use bytes::Bytes;
use core::ops::Range;
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use pluvio_env::Address;
use pluvio_units::{ClusterId, CoreId, SequenceNumber, ServerId};
use pluvio_wire::{
    Answer, DeleteReply, Header, MULTI_BYTES_MAX, MULTI_ITEMS_MAX, MultiDelete, MultiKey,
    MultiRead, MultiWrite, ReadReply, Refusal, RejectRules, Request, RetryReason, RpcError,
    WriteReply, check_key, check_value,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Requests of one batch under way at a time: enough to keep many servers busy, little enough that
/// a huge batch takes at most 128 MiB for its requests.
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

    fn wire(&self, sequence: SequenceNumber) -> MultiKey {
        MultiKey {
            sequence,
            table: self.table.id(),
            key: self.key.to_vec(),
            rules: self.rules,
        }
    }
}

/// What the three kinds of batches differ in.
trait Kind: Send + Sync {
    type Request: Request;
    type Item: Send;
    /// The object at `index`.
    fn key(&self, index: usize) -> Key<'_>;
    /// The value of an item; empty when it has none.
    fn value(&self, _index: usize) -> &[u8] {
        &[]
    }
    /// `number` gives the number of each item as an operation.
    fn request(
        &self,
        indexes: &[usize],
        number: &(dyn Fn(usize) -> SequenceNumber + Sync),
    ) -> Self::Request;
    fn items(reply: <Self::Request as Request>::Reply) -> Vec<Result<Self::Item, Refusal>>;
    fn local(
        master: &dyn LocalMaster,
        core: CoreId,
        header: &Header,
        request: Self::Request,
    ) -> Answer<<Self::Request as Request>::Reply>;

    fn check(&self, index: usize) -> Result<(), Refusal> {
        check_key(self.key(index).key).and_then(|()| check_value(self.value(index)))
    }

    fn changes_data() -> bool {
        !Self::Request::OPCODE.is_idempotent()
    }
}

struct Reads<'a>(&'a [Key<'a>]);
struct Writes<'a>(&'a [(Key<'a>, Bytes)]);
struct Deletes<'a>(&'a [Key<'a>]);

impl Kind for Reads<'_> {
    type Request = MultiRead;
    type Item = ReadReply;
    fn key(&self, index: usize) -> Key<'_> {
        self.0[index]
    }
    fn request(
        &self,
        indexes: &[usize],
        _number: &(dyn Fn(usize) -> SequenceNumber + Sync),
    ) -> MultiRead {
        MultiRead {
            items: indexes
                .iter()
                .map(|i| self.0[*i].wire(SequenceNumber(0)))
                .collect(),
        }
    }
    fn items(reply: pluvio_wire::MultiReadReply) -> Vec<Result<ReadReply, Refusal>> {
        reply.items
    }
    fn local(
        master: &dyn LocalMaster,
        core: CoreId,
        header: &Header,
        request: MultiRead,
    ) -> Answer<pluvio_wire::MultiReadReply> {
        master.multi_read(core, header, request)
    }
}

impl Kind for Writes<'_> {
    type Request = MultiWrite;
    type Item = WriteReply;
    fn key(&self, index: usize) -> Key<'_> {
        self.0[index].0
    }
    fn value(&self, index: usize) -> &[u8] {
        &self.0[index].1
    }
    fn request(
        &self,
        indexes: &[usize],
        number: &(dyn Fn(usize) -> SequenceNumber + Sync),
    ) -> MultiWrite {
        let objects = indexes.iter().map(|i| {
            let (key, value) = &self.0[*i];
            (key.wire(number(*i)), value.clone())
        });
        MultiWrite::new(objects.collect())
    }
    fn items(reply: pluvio_wire::MultiWriteReply) -> Vec<Result<WriteReply, Refusal>> {
        reply.items
    }
    fn local(
        master: &dyn LocalMaster,
        core: CoreId,
        header: &Header,
        request: MultiWrite,
    ) -> Answer<pluvio_wire::MultiWriteReply> {
        master.multi_write(core, header, request)
    }
}

impl Kind for Deletes<'_> {
    type Request = MultiDelete;
    type Item = DeleteReply;
    fn key(&self, index: usize) -> Key<'_> {
        self.0[index]
    }
    fn request(
        &self,
        indexes: &[usize],
        number: &(dyn Fn(usize) -> SequenceNumber + Sync),
    ) -> MultiDelete {
        MultiDelete {
            items: indexes
                .iter()
                .map(|i| self.0[*i].wire(number(*i)))
                .collect(),
        }
    }
    fn items(reply: pluvio_wire::MultiDeleteReply) -> Vec<Result<DeleteReply, Refusal>> {
        reply.items
    }
    fn local(
        master: &dyn LocalMaster,
        core: CoreId,
        header: &Header,
        request: MultiDelete,
    ) -> Answer<pluvio_wire::MultiDeleteReply> {
        master.multi_delete(core, header, request)
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

    /// Whether an item of so many bytes fits the limits of a request; the first one always does.
    fn has_room(&self, bytes: usize) -> bool {
        self.indexes.is_empty()
            || (self.indexes.len() < MULTI_ITEMS_MAX && self.bytes + bytes <= MULTI_BYTES_MAX)
    }

    /// Whether more is known about the tablets of an item than when it was sorted.
    fn has_moved<K: Kind>(&self, kind: &K, maps: &Maps) -> bool {
        self.indexes.iter().any(|&index| {
            let table = kind.key(index).table;
            table.map().generation != maps[&table.unique_key()].generation
        })
    }
}

/// The items of a part of a batch as operations.
struct Numbers<'a> {
    items: Range<usize>,
    /// There from the first request to another server on.
    ticket: Option<Ticket<'a>>,
}

impl Numbers<'_> {
    /// The number of an item; 0 when none has one.
    fn number(&self, index: usize) -> SequenceNumber {
        let number = |ticket: &Ticket<'_>| ticket.number(index - self.items.start);
        self.ticket.as_ref().map_or(SequenceNumber(0), number)
    }
}

/// What became of one chunk.
enum Outcome<T> {
    /// One result an item; some may say "later".
    Items(Vec<Result<T, Refusal>>),
    /// Not done, or not known to be done: sort the items anew.
    Again(Again),
    /// No retry helps.
    Failed(ClientError),
}

/// What a round leaves to do.
#[derive(Default)]
struct Rest {
    pending: Vec<usize>,
    after: Duration,
    /// Tables whose maps were wrong, and the generations of those maps.
    stale: BTreeMap<TableKey, (Table, u64)>,
}

impl Rest {
    fn put_off(&mut self, table: &Table, map: &TableMap, index: usize, again: Again) {
        self.pending.push(index);
        self.after = self.after.max(again.after);
        if again.refresh {
            self.stale
                .entry(table.unique_key())
                .or_insert_with(|| (table.clone(), map.generation));
        }
    }
}

type Results<T> = Vec<Option<Result<T, ClientError>>>;
type Maps = BTreeMap<TableKey, Arc<TableMap>>;

impl Client {
    /// Reads several objects, also of several tables. One result an item, in their order.
    pub async fn multi_read(&self, keys: &[Key<'_>]) -> Vec<Result<Option<Object>, ClientError>> {
        let results = Box::pin(self.batch(&Reads(keys), keys.len())).await;
        results.into_iter().map(|r| r.map(object)).collect()
    }

    /// Writes several objects, also of several tables. Each one succeeds or fails by itself; one
    /// result an item, in their order. The order of two writes to one key is not fixed.
    pub async fn multi_write(
        &self,
        objects: &[(Key<'_>, Bytes)],
    ) -> Vec<Result<WriteReply, ClientError>> {
        Box::pin(self.batch(&Writes(objects), objects.len())).await
    }

    /// Deletes several objects, also of several tables. Each one succeeds or fails by itself; one
    /// result an item, in their order.
    pub async fn multi_delete(&self, keys: &[Key<'_>]) -> Vec<Result<DeleteReply, ClientError>> {
        Box::pin(self.batch(&Deletes(keys), keys.len())).await
    }

    async fn batch<K: Kind>(&self, kind: &K, count: usize) -> Vec<Result<K::Item, ClientError>> {
        let mut results: Results<K::Item> = (0..count).map(|_| None).collect();
        let mut attempts = self.attempts();
        let part = if K::changes_data() {
            BATCH_UNDER_WAY_MAX
        } else {
            count.max(1)
        };
        let mut first = 0;
        while first < count {
            let last = count.min(first + part);
            self.part(kind, first..last, &mut results, &mut attempts)
                .await;
            first = last;
        }
        results
            .into_iter()
            .map(|r| r.expect("an item leaves the pending ones only with its result"))
            .collect()
    }

    /// Does a part of a batch.
    async fn part<K: Kind>(
        &self,
        kind: &K,
        items: Range<usize>,
        results: &mut Results<K::Item>,
        attempts: &mut Attempts<'_>,
    ) {
        let mut pending = Vec::with_capacity(items.len());
        for index in items.clone() {
            match kind.check(index) {
                Ok(()) => pending.push(index),
                Err(refusal) => results[index] = Some(Err(ClientError::from_final(refusal))),
            }
        }
        attempts.begin_unsent();
        if attempts.is_over() {
            // The parts before have taken all of the time.
            fail(results, &mut pending, &attempts.timed_out(), |_| true);
        }
        let mut numbers = Numbers {
            items,
            ticket: None,
        };
        while !pending.is_empty() {
            let before = pending.len();
            let rest = self
                .round(kind, pending, &mut numbers, results, attempts)
                .await;
            pending = rest.pending;
            if pending.len() < before {
                attempts.progressed();
            }
            if pending.is_empty() {
                break;
            }
            if let Err(error) = attempts.pause(rest.after).await {
                fail(results, &mut pending, &error, |_| true);
            }
            for (table, seen) in rest.stale.into_values() {
                if let Err(error) = self.refresh(&table, seen, attempts).await {
                    // Out of time hits all; anything else only the objects of this table.
                    fail(results, &mut pending, &error, |index| {
                        error.is_retryable()
                            || kind.key(index).table.unique_key() == table.unique_key()
                    });
                }
            }
        }
    }

    /// Sends every pending item once.
    async fn round<'a, K: Kind>(
        &'a self,
        kind: &K,
        pending: Vec<usize>,
        numbers: &mut Numbers<'a>,
        results: &mut Results<K::Item>,
        attempts: &mut Attempts<'_>,
    ) -> Rest {
        let mut rest = Rest::default();
        let mut maps = Maps::new();
        let chunks = self.sort(kind, pending, &mut maps, &mut rest, attempts);
        if K::changes_data() && chunks.iter().any(|c| self.local(c.owner).is_none()) {
            let count = u32::try_from(numbers.items.len()).expect("a part of a batch is small");
            if let Err(error) = self.identify(&mut numbers.ticket, count, attempts).await {
                for index in chunks.iter().flat_map(|chunk| &chunk.indexes) {
                    results[*index] = Some(Err(error.clone()));
                }
                return rest;
            }
        }
        let (maps, shared, numbers) = (&maps, &*attempts, &*numbers);
        let mut done = stream::iter(chunks)
            .map(|chunk| async move {
                let mut own = shared.clone();
                let outcome = self.send(kind, &chunk, maps, numbers, &mut own).await;
                (chunk, outcome, own)
            })
            .buffer_unordered(CALLS_MAX);
        let mut ended = Vec::new();
        while let Some(one) = done.next().await {
            ended.push(one);
        }
        drop(done);
        for (chunk, outcome, own) in ended {
            attempts.absorb(own);
            let table = |index: usize| kind.key(index).table;
            match outcome {
                Outcome::Items(items) => {
                    for (&index, item) in chunk.indexes.iter().zip(items) {
                        let refusal = match item {
                            Ok(item) => {
                                results[index] = Some(Ok(item));
                                continue;
                            }
                            Err(refusal) => RpcError::Refused(refusal),
                        };
                        match self.judge(refusal, K::changes_data(), attempts) {
                            Ok(again) => {
                                let table = table(index);
                                rest.put_off(table, &maps[&table.unique_key()], index, again);
                            }
                            Err(error) => results[index] = Some(Err(error)),
                        }
                    }
                }
                Outcome::Again(again) => {
                    for index in chunk.indexes {
                        let table = table(index);
                        rest.put_off(table, &maps[&table.unique_key()], index, again);
                    }
                }
                Outcome::Failed(error) => {
                    for index in chunk.indexes {
                        results[index] = Some(Err(error.clone()));
                    }
                }
            }
        }
        rest
    }

    /// Groups items by server, in requests within the limits.
    fn sort<K: Kind>(
        &self,
        kind: &K,
        pending: Vec<usize>,
        maps: &mut Maps,
        rest: &mut Rest,
        attempts: &mut Attempts<'_>,
    ) -> Vec<Chunk> {
        let mut full = Vec::new();
        let mut open: BTreeMap<(ClusterId, ServerId), Chunk> = BTreeMap::new();
        for index in pending {
            let key = kind.key(index);
            let map = &*maps
                .entry(key.table.unique_key())
                .or_insert_with(|| key.table.map());
            let Some(tablet) = map.locate(key.table.hash(key.key)) else {
                attempts.failed(
                    format!("a tablet of table {:?} is not served", key.table.name()),
                    Some(RetryReason::TabletNotReady),
                );
                let again = Again {
                    after: Duration::ZERO,
                    refresh: true,
                };
                rest.put_off(key.table, map, index, again);
                continue;
            };
            let bytes = key.key.len() + kind.value(index).len();
            let cluster = key.table.cluster();
            let chunk = open
                .entry((cluster, tablet.owner))
                .or_insert_with(|| Chunk::new(cluster, tablet));
            if !chunk.has_room(bytes) {
                full.push(std::mem::replace(chunk, Chunk::new(cluster, tablet)));
            }
            chunk.bytes += bytes;
            chunk.indexes.push(index);
        }
        full.extend(open.into_values());
        full
    }

    /// Sends one request, unless the time is up.
    async fn send<K: Kind>(
        &self,
        kind: &K,
        chunk: &Chunk,
        maps: &Maps,
        numbers: &Numbers<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Outcome<K::Item> {
        if attempts.is_over() {
            return Outcome::Failed(attempts.timed_out());
        }
        let request = kind.request(&chunk.indexes, &|index| numbers.number(index));
        let result = if let Some(master) = self.local(chunk.owner) {
            let limit = attempts.remaining();
            let mut header = Self::local_header(chunk.cluster, chunk.owner, limit);
            // Before, no other server can have executed any of them.
            if let Some(ticket) = numbers.ticket.as_ref().filter(|_| attempts.is_ambiguous()) {
                header.operation = ticket.id(attempts.until_deadline());
            }
            let answer = K::local(master, self.core(), &header, request);
            match self.finish_local::<K::Request>(answer, attempts).await {
                Ok(result) => result,
                Err(error) => return Outcome::Failed(error),
            }
        } else {
            let moved = || chunk.has_moved(kind, maps);
            let _place = match self.place(chunk.owner, attempts, moved).await {
                Ok(Some(place)) => place,
                Ok(None) => return Outcome::Again(Again::AT_ONCE),
                Err(error) => return Outcome::Failed(error),
            };
            let mut header = Header::within(chunk.cluster, chunk.owner);
            if let Some(ticket) = &numbers.ticket {
                header.operation = ticket.id(attempts.until_deadline());
            }
            let limit = attempts.next_limit();
            let network = &*self.shared.parts.network;
            pluvio_wire::call(network, &chunk.address, header, &request, limit).await
        };
        match result {
            Ok(reply) => {
                let items = K::items(reply);
                if items.len() == chunk.indexes.len() {
                    return Outcome::Items(items);
                }
                Outcome::Failed(ClientError::Protocol(format!(
                    "{} answered {} of {} items",
                    chunk.address,
                    items.len(),
                    chunk.indexes.len()
                )))
            }
            Err(error) => match self.judge(error, K::changes_data(), attempts) {
                Ok(again) => Outcome::Again(again),
                Err(error) => Outcome::Failed(error),
            },
        }
    }
}

/// Gives `error` to the pending items that it hits.
fn fail<T>(
    results: &mut Results<T>,
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
