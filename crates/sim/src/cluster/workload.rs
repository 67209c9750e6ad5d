//! What clients do: operations drawn from the plan, each recorded in the history.

use crate::check::accounts::Contents;
use crate::cluster::attempts::Attempts;
use crate::cluster::journal::{Journal, Keys};
use crate::cluster::plan::{OperationKind, Plan};
use crate::cluster::values;
use crate::history::{Action, Begun, Content, KeyId, KeyKind, Outcome, Record, Scan};
use crate::intercept::Intercepted;
use crate::random::Stream;
use crate::sim::SimHandle;
use bytes::Bytes;
use pluvio_client::{
    Client, ClientError, ClientOptions, ErrorKind, Key, Number, Parts, RejectRules, Table,
    WhichTablet,
};
use pluvio_env::Env;
use pluvio_units::{HashRange, KeyHash, ObjectVersion};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most keys of a batch.
const BATCH_MAX: u64 = 12;

/// What all clients of a run share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) sim: SimHandle,
    pub(super) journal: Journal,
    pub(super) keys: Arc<Keys>,
    pub(super) plan: Arc<Plan>,
}

/// One client.
pub(super) struct Worker {
    pub(super) number: u16,
    shared: Shared,
    env: Env,
    client: Client,
    attempts: Attempts,
    tables: Vec<Table>,
    draw: Stream,
    /// The versions this client saw last.
    versions: BTreeMap<KeyId, u64>,
    scratch_last: u32,
}

/// A client whose changes are counted by `attempts`.
pub(super) fn recorded_client(env: &Env, plan: &Plan, attempts: &Attempts) -> Client {
    let parts = Parts {
        clock: env.clock.clone(),
        rng: env.rng.clone(),
        network: Intercepted::new(env.network.clone(), attempts.clone()),
    };
    let options = ClientOptions::new(super::nodes::coordinators(plan))
        .timeout(plan.timeout)
        .attempt_timeout(plan.attempt_timeout);
    Client::new(parts, options)
}

fn rules(condition: Option<u64>) -> RejectRules {
    condition.map_or_else(RejectRules::default, |version| {
        RejectRules::unless_version(ObjectVersion(version))
    })
}

/// What an error says of an operation.
fn failed(journal: &Journal, error: &ClientError) -> Outcome {
    journal.failure(error);
    match error {
        ClientError::Rejected { version } => Outcome::Rejected { version: version.0 },
        other if other.maybe_executed() => Outcome::Unknown,
        _ => Outcome::NotDone,
    }
}

fn found(journal: &Journal, result: Result<Option<pluvio_client::Object>, ClientError>) -> Outcome {
    match result {
        Ok(Some(object)) => Outcome::Found {
            version: object.version.0,
            content: values::content(&object.value),
        },
        Ok(None) => Outcome::Missing,
        // A read changes nothing, whatever happened to it.
        Err(error) => {
            journal.failure(&error);
            Outcome::NotDone
        }
    }
}

fn wrote(journal: &Journal, result: Result<pluvio_client::WriteReply, ClientError>) -> Outcome {
    match result {
        Ok(reply) => Outcome::Wrote {
            version: reply.version.0,
            replaced: reply.replaced.0,
        },
        Err(error) => failed(journal, &error),
    }
}

fn deleted(journal: &Journal, result: Result<pluvio_client::DeleteReply, ClientError>) -> Outcome {
    match result {
        Ok(reply) => Outcome::Deleted {
            version: reply.deleted.0,
        },
        Err(error) => failed(journal, &error),
    }
}

impl Worker {
    pub(super) fn new(number: u16, env: &Env, shared: &Shared) -> Self {
        let attempts = Attempts::default();
        let name = format!("client {number}");
        Self {
            number,
            env: env.clone(),
            client: recorded_client(env, &shared.plan, &attempts),
            attempts,
            tables: Vec::new(),
            draw: Stream::new(shared.sim.seed(), &name),
            versions: BTreeMap::new(),
            scratch_last: 0,
            shared: shared.clone(),
        }
    }

    /// Creates the run's tables, or finds them. `false`: it was not possible in time.
    pub(super) async fn open_tables(&mut self) -> bool {
        for name in &self.shared.keys.tables {
            let span = self.shared.plan.span;
            match self.client.create_table(name, span).await {
                Ok(table) => self.tables.push(table),
                Err(_) => {
                    self.tables.clear();
                    return false;
                }
            }
        }
        true
    }

    /// Works until all steps are done.
    pub(super) async fn run(mut self) {
        while !self.open_tables().await {}
        while self.shared.journal.take_step() {
            let kind = self.shared.plan.operation(&mut self.draw);
            self.step(kind).await;
            let think = self.shared.plan.think_max.as_nanos();
            let pause = self.draw.below(u64::try_from(think).unwrap_or(u64::MAX));
            // Now and then as fast as it can.
            if self.draw.below(4) > 0 {
                let pause = core::time::Duration::from_nanos(pause);
                self.env.clock.sleep(pause).await;
            }
        }
    }

    async fn step(&mut self, kind: OperationKind) {
        match kind {
            OperationKind::Read => {
                let key = self.any_key();
                self.read(kind, key).await;
            }
            OperationKind::Write | OperationKind::ConditionalWrite => {
                let Some(key) = self.key_of(KeyKind::Register) else {
                    return self.increment_any().await;
                };
                let conditional = kind == OperationKind::ConditionalWrite;
                let condition = conditional.then(|| self.condition(key));
                self.write(kind, key, condition).await;
            }
            OperationKind::Delete | OperationKind::ConditionalDelete => {
                let Some(key) = self.key_of(KeyKind::Register) else {
                    return self.increment_any().await;
                };
                let conditional = kind == OperationKind::ConditionalDelete;
                let condition = conditional.then(|| self.condition(key).max(1));
                self.delete(kind, key, condition).await;
            }
            OperationKind::Increment => self.increment_any().await,
            OperationKind::MultiRead => self.multi_read(kind).await,
            OperationKind::MultiWrite => self.multi_write(kind).await,
            OperationKind::MultiDelete => self.multi_delete(kind).await,
            OperationKind::Enumerate => {
                let table = self.draw.below(self.tables.len() as u64) as usize;
                self.enumerate(kind, table).await;
            }
            OperationKind::Split => {
                let table = self.draw.below(self.tables.len() as u64) as usize;
                let result = self.client.split_tablet(&self.tables[table], None).await;
                self.shared.journal.count_only(kind, result.is_ok());
            }
            OperationKind::Migrate => self.migrate(kind).await,
            OperationKind::Scratch => self.scratch(kind).await,
        }
    }

    /// Lets some tablet, or a part of one, move to some server; does not wait for the end.
    async fn migrate(&mut self, kind: OperationKind) {
        let table = self.draw.below(self.tables.len() as u64) as usize;
        let at = KeyHash(self.draw.below(u64::MAX));
        let (some, part) = (self.draw.below(u64::MAX), self.draw.below(8) == 0);
        let Ok(list) = self.client.server_list().await else {
            self.shared.journal.count_only(kind, false);
            return;
        };
        let up: Vec<_> = list.up().map(|info| info.id).collect();
        if up.is_empty() {
            return;
        }
        let to = up[(some % up.len() as u64) as usize];
        let tablet = if part {
            let last = KeyHash(at.0.saturating_add(1 << 61));
            WhichTablet::Range(HashRange::new(at, last))
        } else {
            WhichTablet::Containing(at)
        };
        let asked = self.client.start_migration(&self.tables[table], tablet, to);
        let begun = asked.await.is_ok();
        self.shared.journal.count_only(kind, begun);
    }

    fn any_key(&mut self) -> KeyId {
        let all = self.shared.keys.len() as u64;
        let hot = self.draw.below(100) < u64::from(self.shared.plan.hot_percent);
        let bound = if hot { all.div_ceil(10) } else { all };
        // Hot keys are spread over the tables and both kinds.
        let number = self.draw.below(bound);
        let step = if hot { 10 } else { 1 };
        KeyId(u32::try_from((number * step) % all).expect("as many as there are keys"))
    }

    /// A key of this kind, unless the dice want another one too often.
    fn key_of(&mut self, kind: KeyKind) -> Option<KeyId> {
        let keys = Arc::clone(&self.shared.keys);
        (0..16)
            .map(|_| self.any_key())
            .find(|key| keys.kind(*key) == kind)
    }

    /// A version to ask for: mostly the last one this client saw, sometimes an old one.
    fn condition(&mut self, key: KeyId) -> u64 {
        let last = self.versions.get(&key).copied().unwrap_or(0);
        match self.draw.below(4) {
            0 => last.saturating_sub(1),
            _ => last,
        }
    }

    fn begin(&self, key: KeyId, action: Action) -> Begun {
        self.shared
            .journal
            .invoke(key, self.number, action, self.shared.sim.now())
    }

    /// Ends an operation on one key.
    fn end(&mut self, kind: OperationKind, key: KeyId, begun: Begun, outcome: Outcome) {
        let repeats = self.attempts.repeats(outcome == Outcome::Unknown);
        self.end_item(kind, key, begun, outcome, repeats);
    }

    fn end_item(
        &mut self,
        kind: OperationKind,
        key: KeyId,
        begun: Begun,
        outcome: Outcome,
        repeats: u8,
    ) {
        match outcome {
            Outcome::Found { version, .. }
            | Outcome::Wrote { version, .. }
            | Outcome::Added { version, .. }
            | Outcome::Rejected { version } => {
                self.versions.insert(key, version);
            }
            Outcome::Missing | Outcome::Deleted { .. } => {
                self.versions.insert(key, 0);
            }
            Outcome::Plain(_) | Outcome::NotDone | Outcome::Unknown => {}
        }
        let now = self.shared.sim.now();
        self.shared
            .journal
            .finish(kind, begun, outcome, repeats, now);
    }

    pub(super) async fn read(&mut self, kind: OperationKind, key: KeyId) -> Outcome {
        let begun = self.begin(key, Action::Read);
        let keys = Arc::clone(&self.shared.keys);
        let result = self
            .client
            .read(&self.tables[keys.table(key)], keys.bytes(key))
            .await;
        let outcome = found(&self.shared.journal, result);
        self.end(kind, key, begun, outcome);
        outcome
    }

    fn new_value(&mut self) -> (Bytes, Content) {
        let length = self.shared.plan.value_length(&mut self.draw);
        values::value(self.shared.journal.value_number(), length)
    }

    pub(super) async fn write(
        &mut self,
        kind: OperationKind,
        key: KeyId,
        condition: Option<u64>,
    ) -> Outcome {
        let (bytes, content) = self.new_value();
        let begun = self.begin(key, Action::Write { content, condition });
        let keys = Arc::clone(&self.shared.keys);
        let table = &self.tables[keys.table(key)];
        let result = self
            .client
            .write_if(table, keys.bytes(key), bytes, rules(condition))
            .await;
        let outcome = wrote(&self.shared.journal, result);
        self.end(kind, key, begun, outcome);
        outcome
    }

    /// Writes once more to see whether that is possible.
    pub(super) async fn probe(&mut self, key: KeyId) -> Result<(), ClientError> {
        let (bytes, content) = values::value(self.shared.journal.value_number(), 64);
        let action = Action::Write {
            content,
            condition: None,
        };
        let begun = self.begin(key, action);
        let keys = Arc::clone(&self.shared.keys);
        let table = &self.tables[keys.table(key)];
        let result = self.client.write(table, keys.bytes(key), bytes).await;
        let error = result.as_ref().err().cloned();
        self.end(
            OperationKind::Write,
            key,
            begun,
            wrote(&self.shared.journal, result),
        );
        error.map_or(Ok(()), Err)
    }

    async fn delete(&mut self, kind: OperationKind, key: KeyId, condition: Option<u64>) {
        let begun = self.begin(key, Action::Delete { condition });
        let keys = Arc::clone(&self.shared.keys);
        let table = &self.tables[keys.table(key)];
        let result = self
            .client
            .delete_if(table, keys.bytes(key), rules(condition))
            .await;
        self.end(kind, key, begun, deleted(&self.shared.journal, result));
    }

    async fn increment_any(&mut self) {
        if let Some(key) = self.key_of(KeyKind::Counter) {
            self.increment(OperationKind::Increment, key).await;
        }
    }

    async fn increment(&mut self, kind: OperationKind, key: KeyId) {
        let by = i64::try_from(self.draw.below(200)).expect("a small number") - 50;
        let begun = self.begin(key, Action::Add { by });
        let keys = Arc::clone(&self.shared.keys);
        let result = self
            .client
            .increment(
                &self.tables[keys.table(key)],
                keys.bytes(key),
                Number::Integer(by),
            )
            .await;
        let outcome = match result {
            Ok(reply) => match reply.value {
                Number::Integer(sum) => Outcome::Added {
                    version: reply.version.0,
                    sum,
                },
                Number::Float(_) => Outcome::Unknown,
            },
            Err(error) => failed(&self.shared.journal, &error),
        };
        self.end(kind, key, begun, outcome);
    }

    /// Some different keys, with a table and bytes for each.
    fn some_keys(&mut self, only_registers: bool) -> Vec<KeyId> {
        let count = 1 + self.draw.below(BATCH_MAX);
        let mut keys: Vec<KeyId> = (0..count).map(|_| self.any_key()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| !only_registers || self.shared.keys.kind(*key) == KeyKind::Register);
        keys
    }

    /// Ends a batch: all items may have been sent again if one was.
    fn end_batch(&mut self, kind: OperationKind, ended: Vec<(KeyId, Begun, Outcome)>) {
        let repeats = self.attempts.repeats(false);
        for (key, begun, outcome) in ended {
            let beside = repeats.saturating_sub(u8::from(outcome == Outcome::Unknown));
            self.end_item(kind, key, begun, outcome, beside);
        }
    }

    async fn multi_read(&mut self, kind: OperationKind) {
        let ids = self.some_keys(false);
        let keys = Arc::clone(&self.shared.keys);
        let begun: Vec<Begun> = ids.iter().map(|k| self.begin(*k, Action::Read)).collect();
        let wanted: Vec<Key<'_>> = ids
            .iter()
            .map(|k| Key::new(&self.tables[keys.table(*k)], keys.bytes(*k)))
            .collect();
        let results = self.client.multi_read(&wanted).await;
        let ended = ids.iter().zip(begun).zip(results);
        let ended =
            ended.map(|((key, begun), result)| (*key, begun, found(&self.shared.journal, result)));
        self.end_batch(kind, ended.collect());
    }

    async fn multi_write(&mut self, kind: OperationKind) {
        let ids = self.some_keys(true);
        let keys = Arc::clone(&self.shared.keys);
        let mut begun = Vec::new();
        let mut objects = Vec::new();
        for key in &ids {
            let (bytes, content) = self.new_value();
            let conditional = self.draw.below(4) == 0;
            let condition = conditional.then(|| self.condition(*key));
            begun.push(self.begin(*key, Action::Write { content, condition }));
            objects.push((*key, condition, bytes));
        }
        let wanted: Vec<(Key<'_>, Bytes)> = objects
            .into_iter()
            .map(|(key, condition, bytes)| {
                let table = &self.tables[keys.table(key)];
                let key = Key::new(table, keys.bytes(key)).rules(rules(condition));
                (key, bytes)
            })
            .collect();
        let results = self.client.multi_write(&wanted).await;
        let ended = ids.iter().zip(begun).zip(results);
        let ended =
            ended.map(|((key, begun), result)| (*key, begun, wrote(&self.shared.journal, result)));
        self.end_batch(kind, ended.collect());
    }

    async fn multi_delete(&mut self, kind: OperationKind) {
        let ids = self.some_keys(true);
        let keys = Arc::clone(&self.shared.keys);
        let action = Action::Delete { condition: None };
        let begun: Vec<Begun> = ids.iter().map(|k| self.begin(*k, action)).collect();
        let wanted: Vec<Key<'_>> = ids
            .iter()
            .map(|k| Key::new(&self.tables[keys.table(*k)], keys.bytes(*k)))
            .collect();
        let results = self.client.multi_delete(&wanted).await;
        let ended = ids.iter().zip(begun).zip(results);
        let ended = ended
            .map(|((key, begun), result)| (*key, begun, deleted(&self.shared.journal, result)));
        self.end_batch(kind, ended.collect());
    }

    /// Goes through a whole table; `None` when that failed.
    pub(super) async fn enumerate(
        &mut self,
        kind: OperationKind,
        table: usize,
    ) -> Option<Contents> {
        let journal = self.shared.journal.clone();
        let keys = Arc::clone(&self.shared.keys);
        let items = 1 + self.draw.below(64) as usize;
        let mut enumeration = self
            .client
            .enumerate(&self.tables[table])
            .batch_items(items);
        let invoked = journal.tick();
        let (mut found, mut strangers) = (Vec::new(), Vec::new());
        let mut contents = Contents::default();
        let mut records = Vec::new();
        loop {
            let (began, at) = (journal.tick(), self.shared.sim.now());
            let batch = match enumeration.next_batch().await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(_) => {
                    journal.count_only(kind, false);
                    return None;
                }
            };
            let (returned, until) = (journal.tick(), self.shared.sim.now());
            for object in batch {
                contents.add(object.key.len() + object.value.len());
                let Some(key) = keys.find(table, &object.key) else {
                    strangers.push(format!("{:?}", Bytes::from(object.key)));
                    continue;
                };
                found.push(key);
                let outcome = Outcome::Found {
                    version: object.version.0,
                    content: values::content(&object.value),
                };
                let record = Record {
                    client: self.number,
                    action: Action::Read,
                    invoked: began,
                    returned,
                    outcome,
                    repeats: 0,
                    at,
                    until,
                };
                records.push((key, record));
            }
        }
        let scan = Scan {
            invoked,
            returned: journal.tick(),
            keys: keys.of_table(table),
            found,
            strangers,
        };
        journal.scanned(kind, scan, records);
        Some(contents)
    }

    /// What is in tables that are not the run's, such as those of clients that died while they used one.
    pub(super) async fn contents_of_others(&self) -> Result<Contents, ClientError> {
        let mut contents = Contents::default();
        for info in self.client.list_tables().await? {
            if self.shared.keys.tables.contains(&info.name) {
                continue;
            }
            let table = self.client.table(&info.name).await?;
            let mut enumeration = self.client.enumerate(&table);
            while let Some(batch) = enumeration.next_batch().await? {
                let sizes = batch.iter().map(|o| o.key.len() + o.value.len());
                sizes.for_each(|bytes| contents.add(bytes));
            }
        }
        Ok(contents)
    }

    /// Number of objects of a table.
    pub(super) async fn count(&self, table: usize) -> Result<u64, ClientError> {
        let reply = self.client.count(&self.tables[table]).await?;
        Ok(reply.objects)
    }

    /// The client library, for questions to the coordinator.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Creates a table, uses it, drops it, creates it again: nothing of it may be left.
    async fn scratch(&mut self, kind: OperationKind) {
        self.scratch_last += 1;
        let name = format!("scratch {} {}", self.number, self.scratch_last);
        let bytes = b"key";
        let journal = self.shared.journal.clone();
        let made = self.client.create_table(&name, Some(1)).await;
        let Ok(table) = made else {
            journal.count_only(kind, false);
            return;
        };
        let key = journal.new_key(format!("key of table {name}"), KeyKind::Register);
        let (value, content) = self.new_value();
        let action = Action::Write {
            content,
            condition: None,
        };
        let begun = self.begin(key, action);
        let result = self.client.write(&table, bytes, value).await;
        self.end(
            OperationKind::Write,
            key,
            begun,
            wrote(&self.shared.journal, result),
        );
        let begun = self.begin(key, Action::Read);
        let result = self.client.read(&table, bytes).await;
        self.end(
            OperationKind::Read,
            key,
            begun,
            found(&self.shared.journal, result),
        );
        if let Err(error) = self.client.drop_table(&name).await {
            let gone = error.kind() == ErrorKind::NoSuchTable;
            journal.count_only(kind, gone);
            return;
        }
        let Ok(again) = self.client.create_table(&name, None).await else {
            journal.count_only(kind, false);
            return;
        };
        // A key of its own: whatever is found in it, nobody wrote.
        let key = journal.new_key(format!("key of the second table {name}"), KeyKind::Register);
        let begun = self.begin(key, Action::Read);
        let result = self.client.read(&again, bytes).await;
        self.end(
            OperationKind::Read,
            key,
            begun,
            found(&self.shared.journal, result),
        );
        let dropped = self.client.drop_table(&name).await;
        journal.count_only(kind, dropped.is_ok());
    }
}
