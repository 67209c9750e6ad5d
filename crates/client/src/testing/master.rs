//! The fake masters: objects, versions, reject rules, operation ids.

use super::State;
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{KeyHash, ObjectVersion, OperationId, SequenceNumber, ServerId, TableId};
use pluvio_wire::{
    CountObjects, CountObjectsReply, Delete, DeleteReply, Enumerate, EnumerateReply,
    EnumeratedObject, FatalKind, Header, Increment, IncrementReply, MultiDelete, MultiDeleteReply,
    MultiKey, MultiRead, MultiReadReply, MultiWrite, MultiWriteReply, Number, Opcode, Read,
    ReadReply, Refusal, RejectRules, Request, RetryReason, TabletState, Write, WriteReply,
    check_key, check_value, decode, reply,
};
use std::time::Duration;

/// The operation a request belongs to.
pub(super) fn operation(request: &Frame) -> OperationId {
    Header::decode(&request.meta)
        .map(|(header, _)| header.operation)
        .unwrap_or_default()
}

/// The result of an operation that changed something.
#[derive(Clone, Copy)]
pub(super) enum Kept {
    Write(WriteReply),
    Delete(DeleteReply),
    Increment(IncrementReply),
}

/// Each item of a batch is an operation of its own.
fn of_item(mut header: Header, item: &MultiKey) -> Header {
    header.operation.sequence = item.sequence;
    header
}

/// Decodes a request, does it, and encodes the reply.
pub(super) fn answer<R: Request>(
    request: &Frame,
    act: impl FnOnce(Header, R) -> Result<R::Reply, Refusal>,
) -> Frame {
    reply::<R>(&decode::<R>(request).and_then(|(header, r)| act(header, r)))
}

/// A refusal of any operation. All refusals are encoded alike.
pub(super) fn refuse(opcode: Opcode, refusal: &Refusal) -> Frame {
    Frame {
        opcode: opcode as u16,
        ..reply::<CountObjects>(&Err(refusal.clone()))
    }
}

impl State {
    pub(super) fn serve(&mut self, server: ServerId, opcode: Opcode, request: &Frame) -> Frame {
        match opcode {
            Opcode::Read => answer::<Read>(request, |h, r| self.read(server, h, &r)),
            Opcode::Write => answer::<Write>(request, |h, r| self.write(server, h, &r)),
            Opcode::Delete => answer::<Delete>(request, |h, r| self.delete(server, h, &r)),
            Opcode::Increment => answer::<Increment>(request, |h, r| self.increment(server, h, &r)),
            Opcode::MultiRead => {
                answer::<MultiRead>(request, |h, r| self.multi_read(server, h, &r))
            }
            Opcode::MultiWrite => {
                answer::<MultiWrite>(request, |h, r| self.multi_write(server, h, &r))
            }
            Opcode::MultiDelete => {
                answer::<MultiDelete>(request, |h, r| self.multi_delete(server, h, &r))
            }
            Opcode::Enumerate => answer::<Enumerate>(request, |h, r| self.enumerate(server, h, &r)),
            Opcode::CountObjects => {
                answer::<CountObjects>(request, |h, r| self.count(server, h, &r))
            }
            other => refuse(
                other,
                &Refusal::fatal(FatalKind::Unsupported, "the fake server cannot do this"),
            ),
        }
    }

    /// What a retry of an executed operation is told, by whichever server has the tablet by then.
    fn kept(&self, h: &Header) -> Option<Kept> {
        let id = h.operation;
        self.results.get(&(id.client, id.sequence)).copied()
    }

    /// As real servers: only what was executed is kept, until the client has it.
    fn keep(&mut self, h: &Header, result: Kept) {
        let id = h.operation;
        if id.is_some() {
            self.results.insert((id.client, id.sequence), result);
            let (first, below) = (SequenceNumber(0), id.acknowledged_below);
            let range = (id.client, first)..(id.client, below);
            let old: Vec<_> = self.results.range(range).map(|(key, _)| *key).collect();
            for key in old {
                self.results.remove(&key);
            }
        }
    }

    /// Whether this server serves `key` now.
    fn hash_here(
        &self,
        server: ServerId,
        h: Header,
        t: TableId,
        key: &[u8],
    ) -> Result<KeyHash, Refusal> {
        let Some(table) = self.tables.get(&t) else {
            return Err(no_table(t));
        };
        let hash = KeyHash::of(table.seed, key);
        self.here(server, h, t, hash)?;
        Ok(hash)
    }

    fn here(&self, server: ServerId, h: Header, t: TableId, hash: KeyHash) -> Result<(), Refusal> {
        if !h.means(self.cluster, server) {
            return Err(Refusal::Refresh);
        }
        let tablet = self.tablet(t, hash).ok_or_else(|| no_table(t))?;
        if tablet.owner != server {
            return Err(Refusal::Refresh);
        }
        if tablet.state != TabletState::Normal {
            return Err(Refusal::retry(
                Duration::from_millis(1),
                RetryReason::TabletNotReady,
            ));
        }
        Ok(())
    }

    /// The object of a key, unless it is rejected, and where it is.
    fn open(
        &self,
        server: ServerId,
        h: Header,
        item: (TableId, &[u8], RejectRules),
    ) -> Result<(KeyHash, Option<(ObjectVersion, Bytes)>), Refusal> {
        let (table, key, rules) = item;
        check_key(key)?;
        let hash = self.hash_here(server, h, table, key)?;
        let place = (hash, key.to_vec());
        let object = self.tables[&table].objects.get(&place).cloned();
        let version = object.as_ref().map(|(v, _)| *v);
        if rules.reject(version) {
            return Err(Refusal::Rejected {
                version: version.unwrap_or_default(),
            });
        }
        Ok((hash, object))
    }

    fn put(&mut self, table: TableId, hash: KeyHash, key: &[u8], value: Bytes) -> ObjectVersion {
        let table = self.tables.get_mut(&table).expect("it was opened");
        table.version_last = table.version_last.next();
        let version = table.version_last;
        table.objects.insert((hash, key.to_vec()), (version, value));
        version
    }

    pub(super) fn read(&mut self, s: ServerId, h: Header, r: &Read) -> Result<ReadReply, Refusal> {
        let (_, object) = self.open(s, h, (r.table, &r.key, r.rules))?;
        let (version, value) = object.unwrap_or_default();
        Ok(ReadReply { version, value })
    }

    pub(super) fn write(
        &mut self,
        s: ServerId,
        h: Header,
        r: &Write,
    ) -> Result<WriteReply, Refusal> {
        check_value(&r.value)?;
        self.hash_here(s, h, r.table, &r.key)?;
        if let Some(Kept::Write(reply)) = self.kept(&h) {
            return Ok(reply);
        }
        let (hash, object) = self.open(s, h, (r.table, &r.key, r.rules))?;
        let version = self.put(r.table, hash, &r.key, r.value.clone());
        let reply = WriteReply {
            version,
            replaced: object.map_or(ObjectVersion(0), |(v, _)| v),
        };
        self.keep(&h, Kept::Write(reply));
        Ok(reply)
    }

    pub(super) fn delete(
        &mut self,
        s: ServerId,
        h: Header,
        r: &Delete,
    ) -> Result<DeleteReply, Refusal> {
        self.hash_here(s, h, r.table, &r.key)?;
        if let Some(Kept::Delete(reply)) = self.kept(&h) {
            return Ok(reply);
        }
        let (hash, object) = self.open(s, h, (r.table, &r.key, r.rules))?;
        let table = self.tables.get_mut(&r.table).expect("it was opened");
        table.objects.remove(&(hash, r.key.clone()));
        let reply = DeleteReply {
            deleted: object.map_or(ObjectVersion(0), |(v, _)| v),
        };
        self.keep(&h, Kept::Delete(reply));
        Ok(reply)
    }

    pub(super) fn increment(
        &mut self,
        s: ServerId,
        h: Header,
        r: &Increment,
    ) -> Result<IncrementReply, Refusal> {
        self.hash_here(s, h, r.table, &r.key)?;
        if let Some(Kept::Increment(reply)) = self.kept(&h) {
            return Ok(reply);
        }
        let (hash, object) = self.open(s, h, (r.table, &r.key, r.rules))?;
        let text = object.map_or_else(|| Bytes::from_static(b"0"), |(_, value)| value);
        let value = add(&text, r.by)?;
        let text = match value {
            Number::Integer(n) => n.to_string(),
            Number::Float(n) => n.to_string(),
        };
        let version = self.put(r.table, hash, &r.key, text.into());
        let reply = IncrementReply { version, value };
        self.keep(&h, Kept::Increment(reply));
        Ok(reply)
    }

    pub(super) fn multi_read(
        &mut self,
        s: ServerId,
        h: Header,
        r: &MultiRead,
    ) -> Result<MultiReadReply, Refusal> {
        let mut room = self.reply_bytes_max;
        let items = r.items.iter().enumerate().map(|(i, item)| {
            let read = Read {
                table: item.table,
                key: item.key.clone(),
                rules: item.rules,
            };
            let reply = self.read(s, h, &read)?;
            if i > 0 && reply.value.len() > room {
                return Err(Refusal::retry(Duration::ZERO, RetryReason::Busy));
            }
            room = room.saturating_sub(reply.value.len());
            Ok(reply)
        });
        Ok(MultiReadReply::new(items.collect()))
    }

    pub(super) fn multi_write(
        &mut self,
        s: ServerId,
        h: Header,
        r: &MultiWrite,
    ) -> Result<MultiWriteReply, Refusal> {
        let objects = r.items.iter().zip(&r.values);
        let items = objects.map(|(item, value)| {
            let write = Write {
                table: item.table,
                key: item.key.clone(),
                rules: item.rules,
                value: value.clone(),
            };
            self.write(s, of_item(h, item), &write)
        });
        Ok(MultiWriteReply {
            items: items.collect(),
        })
    }

    pub(super) fn multi_delete(
        &mut self,
        s: ServerId,
        h: Header,
        r: &MultiDelete,
    ) -> Result<MultiDeleteReply, Refusal> {
        let items = r.items.iter().map(|item| {
            let delete = Delete {
                table: item.table,
                key: item.key.clone(),
                rules: item.rules,
            };
            self.delete(s, of_item(h, item), &delete)
        });
        Ok(MultiDeleteReply {
            items: items.collect(),
        })
    }

    pub(super) fn enumerate(
        &mut self,
        s: ServerId,
        h: Header,
        r: &Enumerate,
    ) -> Result<EnumerateReply, Refusal> {
        if !self.tables.contains_key(&r.table) {
            return Err(no_table(r.table));
        }
        self.here(s, h, r.table, r.from)?;
        let tablet = self.tablet(r.table, r.from).expect("it is here");
        let mut objects: Vec<EnumeratedObject> = Vec::new();
        let mut next = None;
        let mut last_hash = None;
        for ((hash, key), (version, value)) in
            self.tables[&r.table].objects.range((r.from, Vec::new())..)
        {
            if *hash > tablet.range.last {
                break;
            }
            if objects.len() >= r.items as usize && last_hash != Some(*hash) {
                next = Some(*hash);
                break;
            }
            last_hash = Some(*hash);
            objects.push(EnumeratedObject {
                key: key.clone(),
                version: *version,
                value: if r.values {
                    value.clone()
                } else {
                    Bytes::new()
                },
            });
        }
        let next = next.or_else(|| tablet.range.last.0.checked_add(1).map(KeyHash));
        Ok(EnumerateReply::new(objects, next))
    }

    pub(super) fn count(
        &mut self,
        s: ServerId,
        h: Header,
        r: &CountObjects,
    ) -> Result<CountObjectsReply, Refusal> {
        if !h.means(self.cluster, s) {
            return Err(Refusal::Refresh);
        }
        let table = self.tables.get(&r.table).ok_or_else(|| no_table(r.table))?;
        // As real servers: who has a part of the table does not know of those that are elsewhere.
        if !table.tablets.iter().any(|tablet| tablet.owner == s) {
            return Err(Refusal::Refresh);
        }
        let mut total = CountObjectsReply::default();
        for ((hash, key), (_, value)) in &table.objects {
            if self.tablet(r.table, *hash).is_some_and(|t| t.owner == s) {
                total.objects += 1;
                total.bytes += (key.len() + value.len()) as u64;
            }
        }
        Ok(total)
    }
}

fn no_table(table: TableId) -> Refusal {
    Refusal::fatal(FatalKind::NoSuchTable, format!("there is no table {table}"))
}

fn add(text: &[u8], by: Number) -> Result<Number, Refusal> {
    let not = || Refusal::fatal(FatalKind::NotANumber, "the value is not a number");
    let over = || Refusal::fatal(FatalKind::Overflow, "the result does not fit");
    let text = std::str::from_utf8(text).map_err(|_| not())?;
    match by {
        Number::Integer(by) => {
            let old: i64 = text.parse().map_err(|_| not())?;
            // As real servers: only the text that printing the number gives.
            if old.to_string() != text {
                return Err(not());
            }
            old.checked_add(by).map(Number::Integer).ok_or_else(over)
        }
        Number::Float(by) => {
            let sum = text.parse::<f64>().map_err(|_| not())? + by;
            sum.is_finite()
                .then_some(Number::Float(sum))
                .ok_or_else(over)
        }
    }
}
