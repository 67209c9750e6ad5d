//! What clients do: operations drawn from the plan, each recorded in the history.

mod cache;
mod exchanges;
mod requests;
mod several;
mod tables;
mod transfers;
mod volatile;

use crate::check::{Check, Violation};
use crate::cluster::attempts::Attempts;
use crate::cluster::journal::{Journal, Keys};
use crate::cluster::memory::Memories;
use crate::cluster::plan::{OperationKind, Plan};
use crate::cluster::values;
use crate::history::{
    Action, Begun, Condition, Content, KeyId, KeyKind, Outcome, WHOLE, in_wholes,
};
use crate::intercept::Intercepted;
use crate::random::Stream;
use crate::sim::SimHandle;
use bytes::Bytes;
use pluvio_client::{
    Client, ClientError, ClientOptions, ErrorKind, Key, Number, Parts, RejectRules, Table,
    TableOptions,
};
use pluvio_env::{Env, MappedMemory};
use pluvio_units::HashKind;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use cache::Cache;
pub(super) use volatile::LIFETIME_MAX;

/// Most keys of a batch.
const BATCH_MAX: u64 = 12;

/// What all clients of a run share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) sim: SimHandle,
    pub(super) journal: Journal,
    pub(super) keys: Arc<Keys>,
    pub(super) plan: Arc<Plan>,
    /// The memory of servers.
    pub(super) memories: Memories,
    /// What is known of the volatile table.
    pub(super) cache: Cache,
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
    /// For conditions and the like: apart, so that they change nothing else of what is drawn.
    rules: Stream,
    /// For keys whose bytes checkers know: apart, too.
    values: Stream,
    /// For keys that expire: apart, too.
    lifetimes: Stream,
    /// For transactions: apart, too.
    transfers: Stream,
    /// The tables of accounts, once they are known.
    accounts: Vec<Table>,
    /// For transactions over registers and lists: apart, too.
    several: Stream,
    /// Their tables, once they are known.
    shared_keys: Vec<Table>,
    /// For durabilities of tables: apart, too.
    durabilities: Stream,
    /// For the volatile table: apart, too.
    caches: Stream,
    /// The volatile table, once it is known.
    cache: Option<Table>,
    /// The versions this client saw last.
    versions: BTreeMap<KeyId, u64>,
    /// The values it saw last of keys whose bytes checkers know.
    seen: BTreeMap<KeyId, Bytes>,
    scratch_last: u32,
}

/// A client whose changes are counted by `attempts`.
fn recorded_client(env: &Env, shared: &Shared, attempts: &Attempts) -> Client {
    let plan = &shared.plan;
    let memories = || Arc::new(shared.memories.clone()) as Arc<dyn MappedMemory>;
    let parts = Parts {
        clock: env.clock.clone(),
        rng: env.rng.clone(),
        network: Intercepted::new(env.network.clone(), attempts.clone()),
        tasks: Some(env.tasks.clone()),
        mapped: plan.mapped_reads.then(memories),
    };
    let options = ClientOptions::new(super::nodes::coordinators(plan))
        .timeout(plan.timeout)
        .attempt_timeout(plan.attempt_timeout);
    Client::new(parts, options)
}

/// The rules that reject what the condition does not allow.
fn rules(condition: Option<Condition>) -> RejectRules {
    condition.unwrap_or_default().rules()
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
        Err(ClientError::Rejected { version }) => Outcome::Rejected { version: version.0 },
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

/// The sum that an increment by `amount` answered, in quarters; `None`: it cannot be one of such
/// numbers.
fn sum_of(amount: Number, answer: Number) -> Option<i64> {
    match (amount, answer) {
        (Number::Integer(_), Number::Integer(sum)) => sum.checked_mul(WHOLE),
        (Number::Float(_), Number::Float(sum)) => values::quarters(sum),
        (Number::Integer(_), Number::Float(_)) | (Number::Float(_), Number::Integer(_)) => None,
    }
}

impl Worker {
    pub(super) fn new(number: u16, env: &Env, shared: &Shared) -> Self {
        let attempts = Attempts::default();
        let name = format!("client {number}");
        Self {
            number,
            env: env.clone(),
            client: recorded_client(env, shared, &attempts),
            attempts,
            tables: Vec::new(),
            draw: Stream::new(shared.sim.seed(), &name),
            rules: Stream::new(shared.sim.seed(), &format!("rules of {name}")),
            values: Stream::new(shared.sim.seed(), &format!("values of {name}")),
            lifetimes: Stream::new(shared.sim.seed(), &format!("lifetimes of {name}")),
            transfers: Stream::new(shared.sim.seed(), &format!("transfers of {name}")),
            accounts: Vec::new(),
            several: Stream::new(shared.sim.seed(), &format!("several of {name}")),
            shared_keys: Vec::new(),
            durabilities: Stream::new(shared.sim.seed(), &format!("durabilities of {name}")),
            caches: Stream::new(shared.sim.seed(), &format!("caches of {name}")),
            cache: None,
            versions: BTreeMap::new(),
            seen: BTreeMap::new(),
            scratch_last: 0,
            shared: shared.clone(),
        }
    }

    /// Creates the run's tables, or finds them. `false`: it was not possible in time.
    pub(super) async fn open_tables(&mut self) -> bool {
        let kinds = [HashKind::Seeded, HashKind::Slots];
        let first = usize::from(!self.shared.sim.seed().is_multiple_of(2));
        let kinds = kinds.into_iter().cycle().skip(first);
        let keys = Arc::clone(&self.shared.keys);
        for ((number, name), kind) in keys.tables.iter().enumerate().zip(kinds) {
            let span = self.shared.plan.span;
            match self.open_table(name, span, kind, number).await {
                Ok(table) => self.tables.push(table),
                Err(_) => {
                    self.tables.clear();
                    return false;
                }
            }
        }
        true
    }

    /// Creates a table of the durability that the one with this number has, or finds it.
    async fn open_table(
        &self,
        name: &str,
        span: Option<u32>,
        hash: HashKind,
        number: usize,
    ) -> Result<Table, ClientError> {
        let durability = self.shared.plan.durability(number);
        let options = TableOptions {
            durability,
            hash: Some(hash),
            ..TableOptions::default()
        };
        self.client.create_table_with(name, span, options).await
    }

    /// As many tables as there are durabilities, each of another one; none when that failed.
    async fn open_one_of_each(&self, name: &str, span: Option<u32>) -> Vec<Table> {
        let mut tables = Vec::new();
        for number in 0..self.shared.plan.durabilities_in_use() {
            let name = match number {
                0 => name.to_owned(),
                _ => format!("{name} {number}"),
            };
            match self.open_table(&name, span, HashKind::Slots, number).await {
                Ok(table) => tables.push(table),
                Err(_) => return Vec::new(),
            }
        }
        tables
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
            OperationKind::Read | OperationKind::ConditionalRead => {
                let key = self.any_key();
                match self.some_condition(key) {
                    None => drop(self.read(OperationKind::Read, key).await),
                    Some(condition) => self.read_if(key, condition).await,
                }
            }
            OperationKind::Write | OperationKind::ConditionalWrite => {
                let Some(key) = self.key_of(KeyKind::Register) else {
                    return self.increment_any().await;
                };
                let conditional = kind == OperationKind::ConditionalWrite;
                let condition = conditional.then(|| self.condition(key, 0));
                self.write(kind, key, condition).await;
            }
            OperationKind::Delete | OperationKind::ConditionalDelete => {
                let Some(key) = self.key_of(KeyKind::Register) else {
                    return self.increment_any().await;
                };
                let conditional = kind == OperationKind::ConditionalDelete;
                let condition = conditional.then(|| self.condition(key, 1));
                self.delete(kind, key, condition).await;
            }
            OperationKind::Increment | OperationKind::IncrementFloat => self.increment_any().await,
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
            OperationKind::Append
            | OperationKind::SetRange
            | OperationKind::Bits
            | OperationKind::AddInteger
            | OperationKind::AddDecimal
            | OperationKind::CompareAndSet
            | OperationKind::CompareAndDelete
            | OperationKind::GetAndSet
            | OperationKind::GetAndDelete
            | OperationKind::PutVersion
            | OperationKind::Project => self.exchange(kind).await,
            OperationKind::MultiMutate => self.multi_mutate(kind).await,
            OperationKind::MultiGet => self.multi_get(kind).await,
            OperationKind::InOrder => self.in_order(kind).await,
            OperationKind::Audit => self.audit(kind).await,
            OperationKind::WriteVolatile | OperationKind::Touch | OperationKind::ReadVolatile => {
                self.volatile(kind).await;
            }
            OperationKind::Transfer => self.transfer(kind).await,
            OperationKind::Several => self.several(kind).await,
            OperationKind::Cache => self.use_cache(kind).await,
        }
    }

    fn any_key(&mut self) -> KeyId {
        let all = self.shared.keys.plain() as u64;
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

    /// What to ask for: mostly the version that this client saw last, sometimes an old one, or what
    /// other rules say of it.
    fn condition(&mut self, key: KeyId, version_min: u64) -> Condition {
        let last = self.versions.get(&key).copied().unwrap_or(0);
        let version = match self.draw.below(4) {
            0 => last.saturating_sub(1),
            _ => last,
        };
        let version = version.max(version_min);
        let percent = u64::from(self.shared.plan.other_rules_percent);
        if self.rules.below(100) < percent {
            Condition::draw(&mut self.rules, version)
        } else {
            Condition::version(version)
        }
    }

    /// A condition for some of the operations that usually have none.
    fn some_condition(&mut self, key: KeyId) -> Option<Condition> {
        let percent = u64::from(self.shared.plan.other_rules_percent / 4);
        let last = self.versions.get(&key).copied().unwrap_or(0);
        let wanted = self.rules.below(100) < percent;
        wanted.then(|| Condition::draw(&mut self.rules, last))
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
        self.remember(key, outcome);
        let now = self.shared.sim.now();
        self.shared
            .journal
            .finish(kind, begun, outcome, repeats, now);
    }

    /// Remembers the version that an operation left or found.
    fn remember(&mut self, key: KeyId, outcome: Outcome) {
        match outcome {
            Outcome::Found { version, .. }
            | Outcome::Seen { version }
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
    }

    /// Reads the whole of any key.
    pub(super) async fn read_any(&mut self, key: KeyId) -> Outcome {
        match self.shared.keys.kind(key).has_exchanges() {
            true => self.read_value(key).await,
            false => self.read(OperationKind::Read, key).await,
        }
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

    async fn read_if(&mut self, key: KeyId, condition: Condition) {
        let begun = self.begin(key, Action::ReadIf { condition });
        let keys = Arc::clone(&self.shared.keys);
        let table = &self.tables[keys.table(key)];
        let rules = rules(Some(condition));
        let result = self.client.read_if(table, keys.bytes(key), rules).await;
        let outcome = found(&self.shared.journal, result);
        self.end(OperationKind::ConditionalRead, key, begun, outcome);
    }

    fn new_value(&mut self) -> (Bytes, Content) {
        let length = self.shared.plan.value_length(&mut self.draw);
        values::value(self.shared.journal.value_number(), length)
    }

    pub(super) async fn write(
        &mut self,
        kind: OperationKind,
        key: KeyId,
        condition: Option<Condition>,
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

    async fn delete(&mut self, kind: OperationKind, key: KeyId, condition: Option<Condition>) {
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
            self.increment(key).await;
        }
    }

    async fn increment(&mut self, key: KeyId) {
        let by = i64::try_from(self.draw.below(200)).expect("a small number") - 50;
        let keys = Arc::clone(&self.shared.keys);
        // To a number with a fraction no integer can be added: now and then that is tried.
        let is_integer = !keys.is_float(key) || self.rules.below(8) == 0;
        let (kind, amount, by) = if is_integer {
            (OperationKind::Increment, Number::Integer(by), by * WHOLE)
        } else {
            let amount = Number::Float(in_wholes(by));
            (OperationKind::IncrementFloat, amount, by)
        };
        let condition = self.some_condition(key);
        let begun = self.begin(key, Action::Add { by, condition });
        let table = &self.tables[keys.table(key)];
        let rules = rules(condition);
        let added = self
            .client
            .increment_if(table, keys.bytes(key), amount, rules);
        let outcome = match added.await {
            Ok(reply) => match (sum_of(amount, reply.value), reply.version) {
                (Some(sum), version) => Outcome::Added {
                    version: version.0,
                    sum,
                },
                (None, _) => {
                    self.wrong_sum(key, amount, format!("gave {:?}", reply.value));
                    Outcome::Unknown
                }
            },
            Err(error) => {
                let may_be_refused = is_integer && keys.is_float(key);
                if error.kind() == ErrorKind::BadNumber && !may_be_refused {
                    self.wrong_sum(key, amount, error.to_string());
                }
                failed(&self.shared.journal, &error)
            }
        };
        self.end(kind, key, begun, outcome);
    }

    fn wrong_sum(&self, key: KeyId, amount: Number, answer: String) {
        let journal = &self.shared.journal;
        journal.violation(Violation {
            check: Check::CountersAddUp,
            message: format!(
                "key {}: {amount:?} added to it {answer}",
                journal.name_of(key)
            ),
            evidence: Vec::new(),
        });
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

    /// Begins a batch, some of whose items have conditions.
    fn begin_batch(
        &mut self,
        ids: &[KeyId],
        action: impl Fn(Option<Condition>) -> Action,
    ) -> (Vec<Begun>, Vec<Option<Condition>>) {
        let conditions = ids.iter().map(|key| self.some_condition(*key));
        let conditions: Vec<_> = conditions.collect();
        let all = ids.iter().zip(&conditions);
        let begun = all.map(|(key, condition)| self.begin(*key, action(*condition)));
        (begun.collect(), conditions)
    }

    fn wanted<'a>(
        &'a self,
        keys: &'a Keys,
        ids: &[KeyId],
        conditions: &[Option<Condition>],
    ) -> Vec<Key<'a>> {
        let all = ids.iter().zip(conditions);
        all.map(|(key, condition)| {
            let table = &self.tables[keys.table(*key)];
            Key::new(table, keys.bytes(*key)).rules(rules(*condition))
        })
        .collect()
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
        let read_if = |condition| Action::ReadIf { condition };
        let (begun, conditions) = self.begin_batch(&ids, |c| c.map_or(Action::Read, read_if));
        let wanted = self.wanted(&keys, &ids, &conditions);
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
            let condition = conditional.then(|| self.condition(*key, 0));
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
        let (begun, conditions) = self.begin_batch(&ids, |condition| Action::Delete { condition });
        let wanted = self.wanted(&keys, &ids, &conditions);
        let results = self.client.multi_delete(&wanted).await;
        let ended = ids.iter().zip(begun).zip(results);
        let ended = ended
            .map(|((key, begun), result)| (*key, begun, deleted(&self.shared.journal, result)));
        self.end_batch(kind, ended.collect());
    }
}
