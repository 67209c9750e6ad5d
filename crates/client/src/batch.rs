//! Operations on several objects: grouped by server, servers in parallel (003 fig. 2).
//!
//! A batch goes in rounds. Each round sorts the items that have no result yet by the server that
//! has them, cuts each group into requests within the limits, and sends up to 32 of them at a
//! time. Items that were put off come again in the next round; a request whose reply was
//! lost is repeated as it was, with its identity, while its server stays the right one for all of
//! its items.

use crate::client::{Again, Client, Object, object};
use crate::error::ClientError;
use crate::local::LocalMaster;
use crate::retry::Attempts;
use crate::table::{Table, TableMap, Tablet};
use bytes::Bytes;
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use pluvio_env::Address;
use pluvio_units::{CoreId, ServerId, TableId};
use pluvio_wire::{
    Answer, DeleteReply, Header, MULTI_BYTES_MAX, MULTI_ITEMS_MAX, MultiDelete, MultiKey,
    MultiRead, MultiWrite, ReadReply, Refusal, RejectRules, Request, RetryReason, RpcError,
    WriteReply, check_key, check_value,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Requests of one batch under way at a time: enough to keep many servers busy, little enough that
/// a huge batch takes at most 128 MiB for its requests.
const CALLS_MAX: usize = 32;

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

    fn wire(&self) -> MultiKey {
        MultiKey {
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
    fn request(&self, indexes: &[usize]) -> Self::Request;
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
    fn request(&self, indexes: &[usize]) -> MultiRead {
        MultiRead {
            items: indexes.iter().map(|i| self.0[*i].wire()).collect(),
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
    fn request(&self, indexes: &[usize]) -> MultiWrite {
        let objects = indexes.iter().map(|i| {
            let (key, value) = &self.0[*i];
            (key.wire(), value.clone())
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
    fn request(&self, indexes: &[usize]) -> MultiDelete {
        MultiDelete {
            items: indexes.iter().map(|i| self.0[*i].wire()).collect(),
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
    owner: ServerId,
    address: Address,
    /// Bytes of the items' keys and values.
    bytes: usize,
    indexes: Vec<usize>,
}

impl Chunk {
    fn new(tablet: &Tablet) -> Self {
        Self {
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
            table.map().generation != maps[&table.id()].generation
        })
    }
}

/// What became of one chunk.
enum Outcome<T> {
    /// One result an item; some may say "later".
    Items(Vec<Result<T, Refusal>>),
    /// Not done, or not known to be done by a server that lost its tablets: sort the items anew.
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
    stale: BTreeMap<TableId, (Table, u64)>,
}

impl Rest {
    fn put_off(&mut self, table: &Table, map: &TableMap, index: usize, again: Again) {
        self.pending.push(index);
        self.after = self.after.max(again.after);
        if again.refresh {
            self.stale
                .entry(table.id())
                .or_insert_with(|| (table.clone(), map.generation));
        }
    }
}

type Results<T> = Vec<Option<Result<T, ClientError>>>;
type Maps = BTreeMap<TableId, Arc<TableMap>>;

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
        let mut pending = Vec::with_capacity(count);
        for (index, result) in results.iter_mut().enumerate() {
            match kind.check(index) {
                Ok(()) => pending.push(index),
                Err(refusal) => *result = Some(Err(ClientError::from_final(refusal))),
            }
        }
        let mut attempts = self.attempts();
        while !pending.is_empty() {
            let before = pending.len();
            let rest = self.round(kind, pending, &mut results, &mut attempts).await;
            pending = rest.pending;
            if pending.len() < before {
                attempts.progressed();
            }
            if pending.is_empty() {
                break;
            }
            if let Err(error) = attempts.pause(rest.after).await {
                fail(&mut results, &mut pending, &error, |_| true);
            }
            for (table, seen) in rest.stale.into_values() {
                if let Err(error) = self.refresh(&table, seen, &mut attempts).await {
                    // Out of time hits all; anything else only the objects of this table.
                    fail(&mut results, &mut pending, &error, |index| {
                        error.is_retryable() || kind.key(index).table.id() == table.id()
                    });
                }
            }
        }
        results
            .into_iter()
            .map(|r| r.expect("an item leaves the pending ones only with its result"))
            .collect()
    }

    /// Sends every pending item once.
    async fn round<K: Kind>(
        &self,
        kind: &K,
        pending: Vec<usize>,
        results: &mut Results<K::Item>,
        attempts: &mut Attempts<'_>,
    ) -> Rest {
        let mut rest = Rest::default();
        let mut maps = Maps::new();
        let chunks = self.sort(kind, pending, &mut maps, &mut rest, attempts);
        let (maps, shared) = (&maps, &*attempts);
        let mut done = stream::iter(chunks)
            .map(|chunk| async move {
                let mut own = shared.clone();
                let outcome = self.send(kind, &chunk, maps, &mut own).await;
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
                                rest.put_off(table, &maps[&table.id()], index, again);
                            }
                            Err(error) => results[index] = Some(Err(error)),
                        }
                    }
                }
                Outcome::Again(again) => {
                    for index in chunk.indexes {
                        let table = table(index);
                        rest.put_off(table, &maps[&table.id()], index, again);
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
        let mut open: BTreeMap<ServerId, Chunk> = BTreeMap::new();
        for index in pending {
            let key = kind.key(index);
            let map = &*maps
                .entry(key.table.id())
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
            let chunk = open
                .entry(tablet.owner)
                .or_insert_with(|| Chunk::new(tablet));
            if !chunk.has_room(bytes) {
                full.push(std::mem::replace(chunk, Chunk::new(tablet)));
            }
            chunk.bytes += bytes;
            chunk.indexes.push(index);
        }
        full.extend(open.into_values());
        full
    }

    /// Sends one request until its result is known, or its server is not the right one any more.
    async fn send<K: Kind>(
        &self,
        kind: &K,
        chunk: &Chunk,
        maps: &Maps,
        attempts: &mut Attempts<'_>,
    ) -> Outcome<K::Item> {
        let mut ticket = None;
        loop {
            let request = kind.request(&chunk.indexes);
            let result = if let Some(master) = self.local(chunk.owner) {
                let header = self.local_header(chunk.owner, attempts.remaining());
                let answer = K::local(master, self.core(), &header, request);
                match self.finish_local::<K::Request>(answer, attempts).await {
                    Ok(result) => result,
                    Err(error) => return Outcome::Failed(error),
                }
            } else {
                // Once it may have been executed, the other server is found below.
                let moved = || !attempts.is_ambiguous() && chunk.has_moved(kind, maps);
                let _place = match self.place(chunk.owner, attempts, moved).await {
                    Ok(Some(place)) => place,
                    Ok(None) => return Outcome::Again(Again::AT_ONCE),
                    Err(error) => return Outcome::Failed(error),
                };
                let mut header = Header::to(chunk.owner);
                if K::changes_data() {
                    match self.identity(&mut ticket, attempts).await {
                        Ok(operation) => header.operation = operation,
                        Err(error) => return Outcome::Failed(error),
                    }
                }
                let limit = attempts.next_limit();
                let network = &*self.shared.parts.network;
                pluvio_wire::call(network, &chunk.address, header, &request, limit).await
            };
            let error = match result {
                Ok(reply) => {
                    let items = K::items(reply);
                    return if items.len() == chunk.indexes.len() {
                        Outcome::Items(items)
                    } else {
                        Outcome::Failed(ClientError::Protocol(format!(
                            "{} answered {} of {} items",
                            chunk.address,
                            items.len(),
                            chunk.indexes.len()
                        )))
                    };
                }
                Err(error) => error,
            };
            let again = match self.judge(error, K::changes_data(), attempts) {
                Ok(again) => again,
                Err(error) => return Outcome::Failed(error),
            };
            if !(K::changes_data() && attempts.is_ambiguous()) {
                return Outcome::Again(again);
            }
            // It may have been executed: only the same request with the same identity finds out.
            if let Err(error) = attempts.pause(again.after).await {
                return Outcome::Failed(error);
            }
            match self.still_there(kind, chunk, maps, attempts).await {
                Ok(true) => {}
                Ok(false) => return Outcome::Again(again),
                Err(error) => return Outcome::Failed(error),
            }
        }
    }

    /// Whether all items of a chunk are still on its server, by the coordinator's latest word.
    async fn still_there<K: Kind>(
        &self,
        kind: &K,
        chunk: &Chunk,
        maps: &Maps,
        attempts: &mut Attempts<'_>,
    ) -> Result<bool, ClientError> {
        let mut seen = BTreeMap::new();
        for &index in &chunk.indexes {
            let table = kind.key(index).table;
            if let Entry::Vacant(place) = seen.entry(table.id()) {
                let old = table.map().generation.max(maps[&table.id()].generation);
                self.refresh(table, old, attempts).await?;
                place.insert(table.map());
            }
        }
        Ok(chunk.indexes.iter().all(|&index| {
            let key = kind.key(index);
            seen[&key.table.id()]
                .locate(key.table.hash(key.key))
                .is_some_and(|tablet| tablet.owner == chunk.owner)
        }))
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
