//! The fake masters: objects and versions, and the outcomes that are kept for retries.
//!
//! They compute with [`judge`] and [`look`], as the engine of a real master does.

use super::State;
use super::clock::unix_time;
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_mutation::{
    Current, Draft, DraftChange, Get, Mutation, Now, Outcome, TransactionStep, Verdict, judge, look,
};
use pluvio_units::{
    ClientId, DECISION, Deadline, HashRange, KeyHash, KeyPlace, LogId, LogPosition, ObjectVersion,
    OperationId, Rank, SequenceNumber, ServerId, ServerListVersion, Share, TableId, UnixMs,
    VALUE_MAX,
};
use pluvio_wire::{
    AwaitDurable, CountObjects, CountObjectsReply, DataOp, Decide, Decided, Enumerate,
    EnumerateReply, EnumeratedObject, FatalKind, GetDoor, GetDoorReply, Header, MasterOp, Opcode,
    Outcomes, Ping, PingReply, Refusal, Release, Request, Results, RetryReason, RoleOp, Seen,
    TabletState, Vote, Voted, Whole, check_key, decode, decode_get, decode_mutate, decode_transact,
    reply, reply_outcomes,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The operation a request belongs to.
pub(super) fn operation(request: &Frame) -> OperationId {
    Header::decode(&request.meta)
        .map(|(header, _)| header.operation)
        .unwrap_or_default()
}

/// How many reads or mutations a request has; 0 for other requests.
pub(super) fn items(opcode: Opcode, request: &Frame) -> usize {
    match opcode {
        Opcode::Get => decode_get(request).map_or(0, |(_, gets)| gets.len()),
        Opcode::Mutate => decode_mutate(request).map_or(0, |(_, mutations)| mutations.len()),
        _ => 0,
    }
}

/// The outcome of an operation that was executed, and of which object.
pub(super) struct KeptOutcome {
    table: TableId,
    hash: KeyHash,
    outcome: Outcome,
}

/// A change that waits for a decision: none, a delete, or a put.
pub(super) type FakeChange = Option<Option<(ObjectVersion, Bytes, Option<Deadline>)>>;

/// A key that a transaction of several servers has locked.
pub(super) struct FakeLock {
    client: ClientId,
    home: KeyPlace,
    shares: Vec<Share>,
    change: FakeChange,
}

impl FakeLock {
    pub(super) fn of(&self) -> (ClientId, KeyPlace) {
        (self.client, self.home)
    }
}

/// When to come again for a locked key.
const LOCKED_RETRY: Duration = Duration::from_micros(300);

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
        match opcode.by_role() {
            RoleOp::Data(DataOp::Get) => {
                let done = decode_get(request)
                    .and_then(|(header, gets)| self.get(server, header, gets.iter()));
                reply_outcomes(opcode, &done.map(Into::into))
            }
            RoleOp::Data(DataOp::Mutate) => {
                let done = decode_mutate(request).and_then(|(header, mutations)| {
                    let (ordered, early) = (mutations.ordered(), mutations.early());
                    let results = self.mutate(server, header, mutations.iter(), ordered)?;
                    let mut outcomes = Outcomes::from(results);
                    if early {
                        outcomes.rests_on = vec![(LogId(0), LogPosition::default())];
                    }
                    Ok(outcomes)
                });
                reply_outcomes(opcode, &done)
            }
            RoleOp::Data(DataOp::Transact) => {
                let done = decode_transact(request).and_then(|(header, steps)| {
                    let whole = steps.whole().cloned();
                    let steps: Vec<_> = steps.iter().collect();
                    self.transact(server, header, whole.as_ref(), &steps)
                });
                reply_outcomes(Opcode::Transact, &done.map(Outcomes::from))
            }
            RoleOp::Data(DataOp::Decide) => {
                answer::<Decide>(request, |h, r| self.decide(server, h, &r))
            }
            RoleOp::Data(DataOp::Vote) => answer::<Vote>(request, |h, r| self.vote(server, h, &r)),
            RoleOp::Data(DataOp::Release) => {
                answer::<Release>(request, |h, r| self.release(server, h, &r))
            }
            RoleOp::Data(DataOp::AwaitDurable) => answer::<AwaitDurable>(request, |_, _| Ok(())),
            RoleOp::Data(DataOp::Enumerate) => {
                answer::<Enumerate>(request, |h, r| self.enumerate(server, h, &r))
            }
            RoleOp::Data(DataOp::CountObjects) => {
                answer::<CountObjects>(request, |h, r| self.count(server, h, &r))
            }
            RoleOp::Master(MasterOp::GetDoor) => answer::<GetDoor>(request, |_, _| {
                let door = self.door(server);
                Ok(GetDoorReply { door })
            }),
            RoleOp::Any(_) if opcode == Opcode::Ping => answer::<Ping>(request, |_, _| {
                Ok(PingReply {
                    server,
                    server_list: ServerListVersion(1),
                    caller_is_member: true,
                    cluster: self.cluster,
                })
            }),
            RoleOp::Master(_) | RoleOp::Backup(_) | RoleOp::Coordinator(_) | RoleOp::Any(_) => {
                refuse(
                    opcode,
                    &Refusal::fatal(FatalKind::Unsupported, "the fake server cannot do this"),
                )
            }
        }
    }

    /// The answer to a retry of an executed operation, by whichever server has the tablet by then.
    fn kept(&mut self, mutation: &Mutation<'_>, hash: KeyHash) -> Option<Result<Outcome, Refusal>> {
        let id = mutation.id;
        if !id.is_some() {
            return None;
        }
        self.acknowledge(id);
        if id.sequence < self.acknowledged[&id.client] {
            return Some(Err(Refusal::fatal(
                FatalKind::ResultForgotten,
                "the client has this operation's result already",
            )));
        }
        let kept = self.results.get(&(id.client, id.sequence))?;
        let is_same = (kept.table, kept.hash) == (mutation.table, hash);
        Some(if is_same && mutation.change.gives(&kept.outcome) {
            Ok(kept.outcome.clone())
        } else {
            Err(Refusal::malformed(
                "the number of this operation belongs to another one of the same client",
            ))
        })
    }

    /// Forgets the outcomes that a client has.
    fn acknowledge(&mut self, id: OperationId) {
        let below = self.acknowledged.entry(id.client).or_default();
        *below = id.acknowledged_below.max(*below);
        let range = (id.client, SequenceNumber(0))..(id.client, *below);
        let old: Vec<_> = self.results.range(range).map(|(key, _)| *key).collect();
        for key in old {
            self.results.remove(&key);
        }
    }

    /// The hash of a key that this server serves now.
    fn hash_here(
        &self,
        server: ServerId,
        h: Header,
        (table, key): (TableId, &[u8]),
        known: Option<KeyHash>,
    ) -> Result<KeyHash, Refusal> {
        check_key(key)?;
        let hash = self.tables.get(&table).ok_or_else(|| no_table(table))?.hash;
        let hash = hash.of(key);
        self.here(server, h, table, hash)?;
        assert_eq!(known.unwrap_or(hash), hash, "the hash belongs to the key");
        if self.locks.contains_key(&(table, (hash, key.to_vec()))) {
            return Err(Refusal::retry(LOCKED_RETRY, RetryReason::Locked));
        }
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

    pub(super) fn object(&self, table: TableId, place: &(KeyHash, Vec<u8>)) -> Option<Current<'_>> {
        let (version, value, deadline) = self.tables.get(&table)?.objects.get(place)?;
        Some(Current {
            version: *version,
            value,
            deadline: *deadline,
        })
    }

    /// The time that deadlines are judged by.
    fn unix_ms(&self) -> Now {
        UnixMs(unix_time(self.now).as_millis() as u64).into()
    }

    /// Reads objects. As real servers: what comes when the reply is full is to come again.
    pub(super) fn get<'g>(
        &self,
        server: ServerId,
        h: Header,
        gets: impl Iterator<Item = Get<'g>>,
    ) -> Result<Results, Refusal> {
        if !h.means(self.cluster, server) {
            return Err(Refusal::Refresh);
        }
        let mut bytes = 0;
        let results = gets.map(|get| {
            if bytes >= self.reply_bytes_max {
                return Err(Refusal::retry(Duration::ZERO, RetryReason::Busy));
            }
            let hash = self.hash_here(server, h, (get.table, get.key), get.hash)?;
            let outcome = {
                let object = self.object(get.table, &(hash, get.key.to_vec()));
                look(&get, object, self.unix_ms())
            };
            bytes += outcome.bulk_len();
            Ok(outcome)
        });
        Ok(results.collect())
    }

    /// Lets `show` look at an object, if it is here.
    pub(super) fn show(
        &self,
        server: ServerId,
        h: Header,
        get: &Get<'_>,
        show: &mut dyn FnMut(Option<Current<'_>>),
    ) -> bool {
        let here = self.hash_here(server, h, (get.table, get.key), get.hash);
        let (true, Ok(hash)) = (h.means(self.cluster, server), here) else {
            return false;
        };
        let object = self.object(get.table, &(hash, get.key.to_vec()));
        show(object.filter(|object| !object.is_gone(self.unix_ms())));
        true
    }

    /// Changes objects. As real servers: an `ordered` batch ends with the first refusal, and a
    /// single mutation may have its identity from the header.
    pub(super) fn mutate<'m>(
        &mut self,
        server: ServerId,
        h: Header,
        mutations: impl ExactSizeIterator<Item = Mutation<'m>>,
        ordered: bool,
    ) -> Result<Results, Refusal> {
        if !h.means(self.cluster, server) {
            return Err(Refusal::Refresh);
        }
        let alone = mutations.len() == 1;
        let mut results = Results::new();
        for mut mutation in mutations {
            if alone && !mutation.id.is_some() {
                mutation.id = h.operation;
            }
            let result = self.mutate_one(server, h, &mutation);
            let ends = ordered && result.is_err();
            results.push(result);
            if ends {
                break;
            }
        }
        Ok(results)
    }

    fn mutate_one(
        &mut self,
        server: ServerId,
        h: Header,
        mutation: &Mutation<'_>,
    ) -> Result<Outcome, Refusal> {
        let (table, key, id) = (mutation.table, mutation.key, mutation.id);
        let hash = self.hash_here(server, h, (table, key), mutation.hash)?;
        if let Some(kept) = self.kept(mutation, hash) {
            return kept;
        }
        let outcome = self.apply(mutation, (hash, key.to_vec()));
        if id.is_some() {
            let kept = KeptOutcome {
                table,
                hash,
                outcome: outcome.clone(),
            };
            self.results.insert((id.client, id.sequence), kept);
        }
        Ok(outcome)
    }

    /// Does all steps, or none.
    pub(super) fn transact(
        &mut self,
        server: ServerId,
        h: Header,
        whole: Option<&Whole>,
        steps: &[TransactionStep<'_>],
    ) -> Result<Results, Refusal> {
        let id = h.operation;
        if let (Some(_), Some(kept)) = (whole, self.results.get(&(id.client, id.sequence))) {
            return Ok(core::iter::once(Ok(kept.outcome.clone())).collect());
        }
        let mut places = Vec::new();
        for step in steps {
            let operation = &step.operation;
            let key = (operation.table(), operation.key());
            let hash = self.hash_here(server, h, key, operation.hash())?;
            places.push((operation.table(), (hash, operation.key().to_vec())));
        }
        if id.is_some() {
            self.acknowledge(id);
            if let Some(kept) = self.results.get(&(id.client, id.sequence)) {
                return Ok(core::iter::once(Ok(kept.outcome.clone())).collect());
            }
        }
        let now = self.unix_ms();
        let mut drafts = BTreeMap::new();
        let mut outcomes = Vec::new();
        let mut committed = !self.results.contains_key(&(id.client, DECISION)) || whole.is_none();
        for (step, place) in steps.iter().zip(&places) {
            let next = self.tables[&place.0].version_last.next();
            let draft = drafts
                .entry(place.clone())
                .or_insert_with(|| Draft::new(self.object(place.0, &place.1), now, next));
            let outcome = draft.apply(&step.operation);
            committed = !(step.must_hold && outcome.is_failure());
            outcomes.push(outcome);
            if !committed {
                break;
            }
        }
        // As of real servers: an outcome that is kept is smaller.
        let bytes: usize = outcomes.iter().map(Outcome::bulk_len).sum();
        if bytes > if id.is_some() { VALUE_MAX } else { 4 << 20 } {
            let why = "the transaction reads more than it may";
            return Err(Refusal::fatal(FatalKind::TransactionTooLarge, why));
        }
        let changes: Vec<_> = drafts
            .iter()
            .map(|(place, draft)| {
                let change = match draft.change() {
                    DraftChange::Nothing => None,
                    DraftChange::Delete => Some(None),
                    DraftChange::Put(value, deadline) => {
                        let value = Bytes::copy_from_slice(value);
                        Some(Some((draft.next_version(), value, deadline)))
                    }
                };
                (place.clone(), change)
            })
            .collect();
        drop(drafts);
        if let Some(whole) = whole {
            for (place, change) in changes.iter().filter(|_| committed).cloned() {
                let lock = FakeLock {
                    client: id.client,
                    home: whole.home,
                    shares: whole.shares.clone(),
                    change,
                };
                self.locks.insert(place, lock);
            }
        }
        let is_now = committed && whole.is_none();
        for ((table, place), change) in changes.into_iter().filter(|_| is_now) {
            let table = self.tables.get_mut(&table).expect("its tablet was found");
            match change {
                None => {}
                Some(None) => drop(table.objects.remove(&place)),
                Some(Some(object)) => {
                    table.version_last = table.version_last.max(object.0);
                    table.objects.insert(place, object);
                }
            }
        }
        let outcome = Outcome::Together {
            committed,
            steps: outcomes.into(),
        };
        if let (true, Some((table, (hash, _)))) = (id.is_some(), places.first()) {
            let kept = KeptOutcome {
                table: *table,
                hash: *hash,
                outcome: outcome.clone(),
            };
            self.results.insert((id.client, id.sequence), kept);
        }
        Ok(core::iter::once(Ok(outcome)).collect())
    }

    /// As real servers decide; whoever asks first, decides.
    pub(super) fn decide(
        &mut self,
        server: ServerId,
        h: Header,
        r: &Decide,
    ) -> Result<Decided, Refusal> {
        let (table, hash) = r.home;
        self.here(server, h, table, hash)?;
        let locked = self
            .locks
            .iter()
            .find(|((of, (at, _)), lock)| (*of, *at) == r.home && lock.client == r.client);
        let shares = locked.map(|(_, lock)| lock.shares.clone());
        let known = self.results.get(&(r.client, DECISION));
        let known = known.map(|kept| !kept.outcome.is_failure());
        let committed = match (known, &shares, r.wish) {
            (Some(known), _, _) => Some(known),
            (None, Some(_), None) => None,
            (None, shares, wish) => {
                let committed = shares.is_some() && wish == Some(true);
                self.keep_verdict((r.client, DECISION), r.home, committed);
                Some(committed)
            }
        };
        Ok(Decided {
            committed,
            shares: shares.unwrap_or_default(),
        })
    }

    fn keep_verdict(
        &mut self,
        id: (ClientId, SequenceNumber),
        (table, hash): KeyPlace,
        committed: bool,
    ) {
        let steps = Vec::new().into();
        let outcome = Outcome::Together { committed, steps };
        self.results.insert(
            id,
            KeptOutcome {
                table,
                hash,
                outcome,
            },
        );
    }

    pub(super) fn vote(&mut self, server: ServerId, h: Header, r: &Vote) -> Result<Voted, Refusal> {
        self.here(server, h, r.key.0, r.key.1)?;
        let id = (r.client, r.sequence);
        if !self.results.contains_key(&id) {
            self.keep_verdict(id, r.key, false);
        }
        let yes = !self.results[&id].outcome.is_failure();
        Ok(Voted { yes })
    }

    pub(super) fn release(&mut self, s: ServerId, h: Header, r: &Release) -> Result<(), Refusal> {
        for (table, hash) in &r.keys {
            self.here(s, h, *table, *hash)?;
        }
        let is_meant = |(table, (hash, _)): &(TableId, (KeyHash, Vec<u8>)), lock: &FakeLock| {
            lock.client == r.client && r.keys.contains(&(*table, *hash))
        };
        let locks = core::mem::take(&mut self.locks);
        for (place, lock) in locks {
            if !is_meant(&place, &lock) {
                self.locks.insert(place, lock);
            } else if let (true, Some(change)) = (r.committed, lock.change) {
                let (id, place) = place;
                let table = self.tables.get_mut(&id).expect("its tablet was found");
                table.version_last = table.version_last.next();
                let version = table.version_last;
                match change {
                    None => drop(table.objects.remove(&place)),
                    Some((_, value, deadline)) => {
                        table.objects.insert(place, (version, value, deadline));
                    }
                }
            }
        }
        for sequence in &r.forget {
            self.results.remove(&(r.client, *sequence));
        }
        Ok(())
    }

    fn apply(&mut self, mutation: &Mutation<'_>, place: (KeyHash, Vec<u8>)) -> Outcome {
        let now = self.unix_ms();
        let current = self.object(mutation.table, &place);
        let replaced = current.filter(|current| !current.is_gone(now));
        let replaced = replaced.map_or(ObjectVersion(0), |current| current.version);
        let verdict = judge(mutation, current, now);
        let table = self
            .tables
            .get_mut(&mutation.table)
            .expect("its tablet was just found");
        match verdict {
            Verdict::Keep(outcome) => outcome,
            Verdict::Put(value, deadline, output) => {
                let least = mutation.change.least_version();
                table.version_last = table.version_last.next().max(least);
                let version = table.version_last;
                let value = Bytes::copy_from_slice(&value);
                table.objects.insert(place, (version, value, deadline));
                Outcome::Written {
                    version,
                    replaced,
                    output,
                }
            }
            Verdict::Delete(output) => {
                table.objects.remove(&place);
                Outcome::Deleted {
                    version: replaced,
                    output,
                }
            }
        }
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
        let last = tablet.range.last.min(r.to);
        let range = HashRange::new(r.from, last);
        let now = self.unix_ms();
        let table = &self.tables[&r.table];
        let kind = table.hash.kind;
        let mut found: Vec<_> = table
            .objects
            .iter()
            .filter(|((hash, _), _)| range.contains(*hash) && kind.rank(*hash) >= r.rank)
            .filter(|(_, (_, _, deadline))| deadline.is_none_or(|at| !at.is_past(now.judged)))
            .map(|((hash, key), object)| (kind.rank(*hash), key, object))
            .collect();
        found.sort_by_key(|(rank, key, _)| (*rank, *key));
        let mut objects: Vec<EnumeratedObject> = Vec::new();
        let mut next = None;
        let mut last_group = None;
        for (rank, key, (version, value, deadline)) in found {
            let group = rank.0 >> kind.group_bits();
            if objects.len() >= r.items as usize && last_group != Some(group) {
                next = Some(Rank(group << kind.group_bits()));
                break;
            }
            last_group = Some(group);
            objects.push(EnumeratedObject {
                key: key.clone(),
                version: *version,
                deadline: *deadline,
                value: if r.values {
                    value.clone()
                } else {
                    Bytes::new()
                },
            });
        }
        Ok(EnumerateReply::new(objects, Seen { last, next }))
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
        let now = self.unix_ms();
        let mut total = CountObjectsReply::default();
        for ((hash, key), (_, value, deadline)) in &table.objects {
            if deadline.is_some_and(|at| at.is_past(now.judged)) {
                continue;
            }
            if self.tablet(r.table, *hash).is_some_and(|t| t.owner == s) {
                total.objects += 1;
                total.bounded += u64::from(deadline.is_some());
                total.bytes += (key.len() + value.len()) as u64;
            }
        }
        Ok(total)
    }
}

fn no_table(table: TableId) -> Refusal {
    Refusal::fatal(FatalKind::NoSuchTable, format!("there is no table {table}"))
}
