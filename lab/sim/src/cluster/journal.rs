//! What a run writes down while it runs: the history, counts of operations, and the keys.

use crate::check::Violation;
use crate::check::transfers::{Deed, Did};
use crate::cluster::plan::{OperationKind, Plan};
use crate::cluster::report::OperationCounts;
use crate::cluster::several::Shared;
use crate::history::transactions::{Ended, Holds, Step, Transactions};
use crate::history::{
    Action, Answer, Begun, Clocks, Exchange, History, KeyId, KeyKind, OrderedBatch, Outcome, Plain,
    Record, Request, Scan,
};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::ClientError;
use pluvio_units::ServerId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Operations that are begun on a group of keys, before another one takes its place.
const GROUP_OPERATIONS: u64 = 120;

/// One key of the run.
struct Place {
    table: usize,
    bytes: Vec<u8>,
    kind: KeyKind,
    /// Whether it is a counter of floating-point numbers.
    is_float: bool,
}

/// All keys that clients use, numbered as in the history.
pub(super) struct Keys {
    pub(super) tables: Vec<String>,
    places: Vec<Place>,
    /// How many of them, the first ones, are registers and counters.
    plain: usize,
    by_bytes: BTreeMap<(usize, Vec<u8>), KeyId>,
}

impl Keys {
    /// The keys of a plan; adds them to the history.
    pub(super) fn new(plan: &Plan, journal: &Journal) -> Self {
        let mut keys = Self {
            tables: (0..plan.tables).map(|t| format!("table {t}")).collect(),
            places: Vec::new(),
            plain: 0,
            by_bytes: BTreeMap::new(),
        };
        for number in 0..plan.keys {
            for table in 0..keys.tables.len() {
                let is_counter = (number % 100 * 37 + 50) % 100 < plan.counters_percent;
                let kind = if is_counter {
                    KeyKind::Counter
                } else {
                    KeyKind::Register
                };
                let is_float = is_counter && (number * 53 + 20) % 100 < plan.floats_percent;
                // Key 0 is the empty key; some others are long.
                let bytes = match number {
                    0 => Vec::new(),
                    n if n % 50 == 7 => format!("{n:0300}").into_bytes(),
                    n => format!("key {n}").into_bytes(),
                };
                let name = format!("{number} of {}", keys.tables[table]);
                let place = Place {
                    table,
                    bytes,
                    kind,
                    is_float,
                };
                keys.add(journal, name, place);
            }
        }
        keys.plain = keys.places.len();
        for number in 0..plan.values {
            let table = number as usize % keys.tables.len();
            let (word, kind) = match number % 5 {
                0 | 3 => ("value", KeyKind::Value),
                _ => ("tokens", KeyKind::Tokens),
            };
            let place = Place {
                table,
                bytes: format!("{word} {number}").into_bytes(),
                kind,
                is_float: false,
            };
            let name = format!("{word} {number} of {}", keys.tables[table]);
            keys.add(journal, name, place);
        }
        for number in 0..plan.volatiles {
            let table = number as usize % keys.tables.len();
            let place = Place {
                table,
                bytes: format!("volatile {number}").into_bytes(),
                kind: KeyKind::Volatile,
                is_float: false,
            };
            let name = format!("volatile {number} of {}", keys.tables[table]);
            keys.add(journal, name, place);
        }
        keys
    }

    fn add(&mut self, journal: &Journal, name: String, place: Place) {
        let id = journal.new_key(name, place.kind);
        self.by_bytes.insert((place.table, place.bytes.clone()), id);
        self.places.push(place);
    }

    /// How many registers and counters there are: the first keys.
    pub(super) fn plain(&self) -> usize {
        self.plain
    }

    /// All keys of this kind.
    pub(super) fn of_kind(&self, kind: KeyKind) -> Vec<KeyId> {
        self.all().filter(|key| self.kind(*key) == kind).collect()
    }

    /// All keys whose values checkers know.
    pub(super) fn with_exchanges(&self) -> Vec<KeyId> {
        let has = |key: &KeyId| self.kind(*key).has_exchanges();
        self.all().filter(has).collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = KeyId> + use<> {
        let count = u32::try_from(self.places.len()).expect("counted with 32 bits");
        (0..count).map(KeyId)
    }

    fn place(&self, key: KeyId) -> &Place {
        &self.places[key.0 as usize]
    }

    pub(super) fn table(&self, key: KeyId) -> usize {
        self.place(key).table
    }

    pub(super) fn bytes(&self, key: KeyId) -> &[u8] {
        &self.place(key).bytes
    }

    pub(super) fn kind(&self, key: KeyId) -> KeyKind {
        self.place(key).kind
    }

    pub(super) fn is_float(&self, key: KeyId) -> bool {
        self.place(key).is_float
    }

    pub(super) fn find(&self, table: usize, bytes: &[u8]) -> Option<KeyId> {
        self.by_bytes.get(&(table, bytes.to_vec())).copied()
    }

    pub(super) fn of_table(&self, table: usize) -> Vec<KeyId> {
        self.all().filter(|k| self.table(*k) == table).collect()
    }
}

impl OperationCounts {
    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Found { .. }
            | Outcome::Seen { .. }
            | Outcome::Missing
            | Outcome::Wrote { .. }
            | Outcome::Deleted { .. }
            | Outcome::Added { .. } => self.done += 1,
            Outcome::Rejected { .. } | Outcome::Plain(Plain::Refused) => self.rejected += 1,
            Outcome::Plain(_) => self.done += 1,
            Outcome::NotDone => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
    }
}

#[derive(Default)]
struct Pages {
    history: History,
    operations: BTreeMap<OperationKind, OperationCounts>,
    failures: BTreeMap<String, u64>,
    violations: Vec<Violation>,
    recovered: BTreeSet<ServerId>,
    listed: BTreeSet<ServerId>,
    deeds: Vec<Deed>,
    transactions: Transactions,
    /// The keys of each group of transactions.
    groups: Vec<Vec<Shared>>,
    /// Operations that may still be begun on the last group.
    group_left: u64,
    steps_left: u64,
    steps_done: u64,
    value_last: u64,
    workers: u32,
}

/// Clones are the same journal.
#[derive(Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Pages>>);

impl Journal {
    pub(super) fn new(steps: u64) -> Self {
        let journal = Self::default();
        journal.pages().steps_left = steps;
        journal
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Every change is one step, so a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another step is to be done; it is taken.
    pub(super) fn take_step(&self) -> bool {
        let mut pages = self.pages();
        if pages.steps_left == 0 {
            return false;
        }
        pages.steps_left -= 1;
        pages.steps_done += 1;
        true
    }

    /// No more steps.
    pub(super) fn stop_steps(&self) {
        self.pages().steps_left = 0;
    }

    pub(super) fn steps_done(&self) -> u64 {
        self.pages().steps_done
    }

    /// A worker has begun.
    pub(super) fn worker_begins(&self) {
        self.pages().workers += 1;
    }

    /// A worker has ended.
    pub(super) fn worker_ends(&self) {
        self.pages().workers -= 1;
    }

    pub(super) fn workers(&self) -> u32 {
        self.pages().workers
    }

    /// A number for a value, used once.
    pub(super) fn value_number(&self) -> u64 {
        let mut pages = self.pages();
        pages.value_last += 1;
        pages.value_last
    }

    pub(super) fn new_key(&self, name: String, kind: KeyKind) -> KeyId {
        self.pages().history.key(name, kind)
    }

    pub(super) fn name_of(&self, key: KeyId) -> String {
        self.pages().history.of(key).name.clone()
    }

    pub(super) fn tick(&self) -> u64 {
        self.pages().history.tick()
    }

    pub(super) fn invoke(&self, key: KeyId, client: u16, action: Action, now: Duration) -> Begun {
        self.pages().history.invoke(key, client, action, now)
    }

    /// An operation on a key begins whose values checkers know.
    pub(super) fn ask(&self, key: KeyId, client: u16, request: Request, now: Duration) -> Begun {
        self.pages().history.ask(key, client, request, now)
    }

    /// It has ended: gives its outcome, and the value that it showed.
    pub(super) fn answer(
        &self,
        kind: OperationKind,
        begun: Begun,
        answer: Answer,
        repeats: u8,
        now: Duration,
    ) -> (Outcome, Option<Bytes>) {
        let mut pages = self.pages();
        let refused = matches!(answer, Answer::Given(pluvio_client::Outcome::Refused(_)));
        let (outcome, exchange) = pages.history.answer(begun, answer, repeats, now);
        let shown = exchange.shows().map(Bytes::copy_from_slice);
        let counts = pages.operations.entry(kind).or_default();
        match refused {
            true => counts.rejected += 1,
            false => counts.add(outcome),
        }
        counts.sent_again += u64::from(repeats > 0);
        (outcome, shown)
    }

    /// An ordered batch whose last item has just begun.
    pub(super) fn ordered(&self, appended: Vec<(KeyId, u64)>) {
        let mut pages = self.pages();
        let invoked = pages.history.tick();
        let batch = OrderedBatch { invoked, appended };
        pages.history.ordered(batch);
    }

    pub(super) fn finish(
        &self,
        kind: OperationKind,
        begun: Begun,
        outcome: Outcome,
        repeats: u8,
        now: Duration,
    ) {
        let mut pages = self.pages();
        pages.history.finish(begun, outcome, repeats, now);
        let counts = pages.operations.entry(kind).or_default();
        counts.add(outcome);
        counts.sent_again += u64::from(repeats > 0);
    }

    /// Counts an operation that has no place in the history.
    pub(super) fn count_only(&self, kind: OperationKind, done: bool) {
        let mut pages = self.pages();
        let counts = pages.operations.entry(kind).or_default();
        if done {
            counts.done += 1;
        } else {
            counts.failed += 1;
        }
    }

    /// A transaction begins. Gives its number.
    pub(super) fn begin_deed(&self, client: u16, moved: Option<(usize, usize, i64)>) -> usize {
        let mut pages = self.pages();
        let invoked = pages.history.tick();
        pages.deeds.push(Deed {
            client,
            invoked,
            returned: u64::MAX,
            moved,
            did: Did::Unknown,
        });
        pages.deeds.len() - 1
    }

    /// A transaction has ended.
    pub(super) fn end_deed(&self, number: usize, did: Did) {
        let mut pages = self.pages();
        let returned = pages.history.tick();
        let deed = &mut pages.deeds[number];
        (deed.returned, deed.did) = (returned, did);
    }

    /// Keys for transactions: two registers and two lists, for [`GROUP_OPERATIONS`] of them.
    pub(super) fn pick_several(&self) -> Vec<Shared> {
        let mut pages = self.pages();
        if pages.group_left == 0 {
            pages.group_left = GROUP_OPERATIONS;
            let number = pages.groups.len();
            let kinds = [Holds::Register, Holds::List, Holds::Register, Holds::List];
            let keys = kinds.into_iter().enumerate().map(|(at, holds)| {
                let name = format!("{number} {at}");
                let key = name.clone().into_bytes();
                let id = pages.transactions.key(name, holds);
                Shared {
                    id,
                    holds,
                    key,
                    table: at,
                }
            });
            let keys = keys.collect();
            pages.groups.push(keys);
        }
        pages.group_left -= 1;
        pages.groups.last().cloned().unwrap_or_default()
    }

    /// All keys of transactions.
    pub(super) fn shared_keys(&self) -> Vec<Shared> {
        self.pages().groups.concat()
    }

    /// A transaction over several keys begins. Gives its number.
    pub(super) fn begin_transaction(&self, client: u16, steps: Vec<Step>, now: Duration) -> usize {
        let mut pages = self.pages();
        let tick = pages.history.tick();
        pages.transactions.begin(client, steps, tick, now)
    }

    /// It has ended.
    pub(super) fn end_transaction(
        &self,
        number: usize,
        ended: Ended,
        steps: Vec<Step>,
        now: Duration,
    ) {
        let mut pages = self.pages();
        let tick = pages.history.tick();
        pages.transactions.end(number, ended, steps, tick, now);
        let kind = OperationKind::Several;
        let counts = pages.operations.entry(kind).or_default();
        match ended {
            Ended::Done => counts.done += 1,
            Ended::NotDone => counts.failed += 1,
            Ended::Unknown => counts.unknown += 1,
        }
    }

    /// Counts why an operation failed.
    pub(super) fn failure(&self, error: &ClientError) {
        let kind = match error.retry_reason() {
            Some(reason) => format!("{:?}: {reason:?}", error.kind()),
            None => format!("{:?}", error.kind()),
        };
        *self.pages().failures.entry(kind).or_default() += 1;
    }

    pub(super) fn scanned(
        &self,
        kind: OperationKind,
        scan: Scan,
        records: Vec<(KeyId, Record, Option<Exchange>)>,
    ) {
        let mut pages = self.pages();
        pages.history.scanned(scan);
        for (key, record, exchange) in records {
            match exchange {
                Some(exchange) => pages.history.add_read(key, record, exchange),
                None => pages.history.add(key, record),
            }
        }
        pages.operations.entry(kind).or_default().done += 1;
    }

    pub(super) fn violation(&self, violation: Violation) {
        /// More of the same do not help.
        const SAME_MAX: usize = 3;
        let mut pages = self.pages();
        let same = pages
            .violations
            .iter()
            .filter(|v| v.check == violation.check);
        if same.count() < SAME_MAX {
            pages.violations.push(violation);
        }
    }

    /// A crashed server whose recovery has ended.
    pub(super) fn recovered(&self, server: ServerId) {
        self.pages().recovered.insert(server);
    }

    /// Notes what the owners' clocks showed.
    pub(super) fn set_clocks(&self, clocks: Clocks) {
        self.pages().history.set_clocks(clocks);
    }

    /// These servers are on the coordinator's list.
    pub(super) fn listed(&self, servers: BTreeSet<ServerId>) {
        self.pages().listed = servers;
    }

    /// Whether a server that was a member is on the coordinator's list no more: nobody holds
    /// anything for it. Ids ascend, so that a list without any later one may be an old one.
    pub(super) fn is_forgotten(&self, server: ServerId) -> bool {
        let pages = self.pages();
        let is_later = pages.listed.last().is_some_and(|last| *last > server);
        is_later && !pages.listed.contains(&server)
    }

    /// Takes everything out, the history in its order.
    pub(super) fn close(&self) -> Closed {
        let mut open = self.pages();
        let mut pages = std::mem::take(&mut *open);
        // Workers that hang are counted down when the simulation ends.
        open.workers = pages.workers;
        drop(open);
        pages.history.settle();
        Closed {
            history: pages.history,
            operations: pages.operations,
            failures: pages.failures,
            violations: pages.violations,
            deeds: pages.deeds,
            transactions: pages.transactions,
            recoveries: pages.recovered.len() as u64,
        }
    }
}

/// What was in a journal.
pub(super) struct Closed {
    pub(super) history: History,
    pub(super) operations: BTreeMap<OperationKind, OperationCounts>,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) violations: Vec<Violation>,
    pub(super) deeds: Vec<Deed>,
    pub(super) transactions: Transactions,
    pub(super) recoveries: u64,
}
