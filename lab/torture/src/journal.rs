//! What all clients of a torture share: the keys in use, and the history of everything they did.
//!
//! - TORT-2: an operation is in the history before its first byte is sent, and has its end there
//!   after its answer came. So the recorded times enclose the real ones.
//! - TORT-3: a key has at most [`OPERATIONS_MAX`] operations of clients at work, some more of those
//!   that overlap with its end, and the last reads. Then another key takes its place, so each
//!   history stays short enough to be searched.

use super::draw::Draw;
use super::several::{self, Shared};
use super::tables;
use pluvio_env::{Clock, Moment};
use pluvio_sim::check::transfers::{Deed, Did};
use pluvio_sim::check::{Check, Violation};
use pluvio_sim::history::transactions::{Ended, Step, Transactions};
use pluvio_sim::history::{Action, Begun, History, KeyId, KeyKind, Outcome, Plain};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keys in use at a time that all clients know.
const KEYS: usize = 32;
/// Keys of other durabilities beside them.
const OTHER_KEYS: usize = 24;
/// One key of this many is a counter.
const COUNTER_EVERY: usize = 4;
/// One counter of this number counts bytes.
const LENGTH_EVERY: usize = 2;
/// With what names of keys begin whose numbers are lengths.
pub const LENGTH: char = 'a';
/// Operations that are begun on one key.
pub const OPERATIONS_MAX: u64 = 120;
const OPERATIONS_MIN: u64 = 30;
/// Violations that clients tell of themselves; more of the same do not help.
const TOLD_MAX: usize = 20;

/// How operations of one kind ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// With an answer.
    pub done: u64,
    /// A condition did not hold.
    pub rejected: u64,
    /// Failed, and certainly not executed; reads that failed are among them.
    pub not_done: u64,
    /// Nobody knows.
    pub unknown: u64,
}

/// Everything that was recorded. Operations that are under way have no end yet, and an unknown
/// outcome.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// What clients did.
    pub material: Material,
    /// How they ended, by kind.
    pub operations: BTreeMap<String, Counts>,
    /// Why they failed, by the words of the client library or the first word of Redis's answer.
    pub errors: BTreeMap<String, u64>,
    /// Answers that are wrong by themselves.
    pub violations: Vec<Violation>,
    /// The keys of each group of transactions.
    pub groups: Vec<Vec<Shared>>,
    groups_used: Vec<Group>,
    /// One of keys in all tables.
    group_of_all: Option<Group>,
    tokens_made: u64,
    keys: Vec<Active>,
    keys_made: u64,
    value_last: u64,
}

/// What clients did: it is judged, and kept.
#[derive(Clone, Debug, Default)]
pub struct Material {
    /// Operations on one key.
    pub history: History,
    /// Transfers between accounts.
    pub deeds: Vec<Deed>,
    /// Transactions over several keys.
    pub transactions: Transactions,
}

impl Material {
    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.history.is_empty() && self.deeds.is_empty() && self.transactions.all.is_empty()
    }
}

/// A group of keys in use.
#[derive(Clone, Copy, Debug)]
struct Group {
    number: usize,
    left: u64,
}

/// A key in use.
#[derive(Clone, Copy, Debug)]
struct Active {
    id: KeyId,
    kind: KeyKind,
    is_length: bool,
    left: u64,
}

/// A key to work on.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its number in the history.
    pub id: KeyId,
    /// What operations it takes.
    pub kind: KeyKind,
    /// Whether its number is the length of its value: appends add to it.
    pub is_length: bool,
    /// Its bytes.
    pub key: Vec<u8>,
    /// The number of its table.
    pub table: usize,
}

/// The shared journal. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    pages: Arc<Mutex<Pages>>,
    stop: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    began: Moment,
}

impl Journal {
    /// An empty one; its clock starts here.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            pages: Arc::default(),
            stop: Arc::default(),
            began: clock.now(),
            clock,
        }
    }

    /// The time since the beginning.
    pub fn now(&self) -> Duration {
        self.clock.now().since(self.began)
    }

    /// Asks clients to end after the operation they are at.
    pub fn stop(&self) {
        // Relaxed: it orders nothing.
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether they shall end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Everything, locked.
    pub fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key for one operation. A quarter of the keys gets half of the operations, so that clients
    /// meet.
    pub fn pick(&self, draw: &mut Draw) -> Subject {
        self.pages().pick(draw)
    }

    /// A key of any table.
    pub fn pick_of_all(&self, draw: &mut Draw) -> Subject {
        match draw.percent(60) {
            true => self.pages().pick(draw),
            false => self.pages().pick_other(draw),
        }
    }

    /// A number for a value, used once.
    pub fn value_number(&self) -> u64 {
        let mut pages = self.pages();
        pages.value_last += 1;
        pages.value_last
    }

    /// An operation is about to be sent.
    pub fn begin(&self, key: KeyId, client: u16, action: Action) -> Begun {
        let now = self.now();
        self.pages()
            .material
            .history
            .invoke(key, client, action, now)
    }

    /// It has ended.
    pub fn end(&self, kind: &str, begun: Begun, outcome: Outcome) {
        let now = self.now();
        let mut pages = self.pages();
        pages.material.history.finish(begun, outcome, 0, now);
        let counts = match pages.operations.get_mut(kind) {
            Some(counts) => counts,
            None => pages.operations.entry(kind.to_owned()).or_default(),
        };
        match outcome {
            Outcome::Rejected { .. } | Outcome::Plain(Plain::Refused) => counts.rejected += 1,
            Outcome::NotDone => counts.not_done += 1,
            Outcome::Unknown => counts.unknown += 1,
            Outcome::Found { .. }
            | Outcome::Seen { .. }
            | Outcome::Missing
            | Outcome::Wrote { .. }
            | Outcome::Deleted { .. }
            | Outcome::Added { .. }
            | Outcome::Plain(_) => counts.done += 1,
        }
    }

    /// A transaction is about to be sent. Until it has ended, nobody knows what came of it.
    pub fn begin_deed(&self, client: u16, moved: Option<(usize, usize, i64)>) -> usize {
        let invoked = self.tick();
        let mut pages = self.pages();
        pages.material.deeds.push(Deed {
            client,
            invoked,
            returned: u64::MAX,
            moved,
            did: moved.map_or(Did::Nothing, |_| Did::Unknown),
        });
        pages.material.deeds.len() - 1
    }

    /// It has ended.
    pub fn end_deed(&self, kind: &str, begun: usize, did: Did) {
        let returned = self.tick();
        let mut pages = self.pages();
        let counts = pages.operations.entry(kind.to_owned()).or_default();
        match did {
            Did::Moved { .. } | Did::Read { .. } | Did::Strange => counts.done += 1,
            Did::Nothing => counts.not_done += 1,
            Did::Unknown => counts.unknown += 1,
        }
        let deed = &mut pages.material.deeds[begun];
        // One that nobody knows of may still be done later.
        if did != Did::Unknown {
            deed.returned = returned;
        }
        deed.did = did;
    }

    /// Keys for one transaction: those of a group, or of two.
    pub fn pick_several(&self, draw: &mut Draw) -> Vec<Shared> {
        self.pages().pick_several(draw)
    }

    /// The same, at times with keys in all tables.
    pub fn pick_several_of_all(&self, draw: &mut Draw) -> Vec<Shared> {
        match draw.percent(50) {
            true => self.pages().pick_several(draw),
            false => self.pages().pick_of_all_tables(draw),
        }
    }

    /// A number for a write of a transaction, used once.
    pub fn token(&self) -> u64 {
        let mut pages = self.pages();
        pages.tokens_made += 1;
        pages.tokens_made
    }

    /// A transaction over several keys is about to be sent. Until it has ended, nobody knows what
    /// came of it.
    pub fn begin_transaction(&self, client: u16, steps: Vec<Step>) -> usize {
        let now = self.now();
        let Material {
            history,
            transactions,
            ..
        } = &mut self.pages().material;
        transactions.begin(client, steps, history.tick(), now)
    }

    /// It has ended.
    pub fn end_transaction(&self, kind: &str, begun: usize, ended: Ended, steps: Vec<Step>) {
        let now = self.now();
        let mut pages = self.pages();
        let counts = pages.operations.entry(kind.to_owned()).or_default();
        match ended {
            Ended::Done => counts.done += 1,
            Ended::NotDone => counts.not_done += 1,
            Ended::Unknown => counts.unknown += 1,
        }
        let material = &mut pages.material;
        let tick = material.history.tick();
        { &mut material.transactions }.end(begun, ended, steps, tick, now);
    }

    fn tick(&self) -> u64 {
        u64::try_from(self.now().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts why an operation failed, or was sent once more.
    pub fn error(&self, why: String) {
        *self.pages().errors.entry(why).or_default() += 1;
    }

    /// An answer that no correct cluster gives.
    pub fn wrong(&self, message: String) {
        let mut pages = self.pages();
        if pages.violations.len() < TOLD_MAX {
            pages.violations.push(Violation {
                check: Check::KeepsRunning,
                message,
                evidence: Vec::new(),
            });
        }
    }
}

/// The number of the table of the keys that are in use at this place, one after the other.
fn table_of_place(at: usize) -> usize {
    let other = at.checked_sub(KEYS);
    other.map_or(0, |other| 1 + other % (tables::NAMES.len() - 1))
}

impl Pages {
    fn pick(&mut self, draw: &mut Draw) -> Subject {
        let at = match draw.percent(34) {
            // Hot ones are spread over both kinds.
            true => draw.place(KEYS / 4),
            false => draw.place(KEYS),
        };
        self.subject(at, draw)
    }

    fn pick_other(&mut self, draw: &mut Draw) -> Subject {
        self.subject(KEYS + draw.place(OTHER_KEYS), draw)
    }

    fn subject(&mut self, at: usize, draw: &mut Draw) -> Subject {
        while self.keys.len() < KEYS + OTHER_KEYS {
            let new = self.new_key(self.keys.len(), draw);
            self.keys.push(new);
        }
        if self.keys[at].left == 0 {
            self.keys[at] = self.new_key(at, draw);
        }
        let active = &mut self.keys[at];
        active.left -= 1;
        let Active {
            id,
            kind,
            is_length,
            ..
        } = *active;
        Subject {
            id,
            kind,
            is_length,
            key: self.material.history.of(id).name.clone().into_bytes(),
            table: table_of_place(at),
        }
    }

    fn pick_several(&mut self, draw: &mut Draw) -> Vec<Shared> {
        while self.groups_used.len() < several::GROUPS {
            let new = self.new_group(draw, false);
            self.groups_used.push(new);
        }
        let first = draw.place(several::GROUPS);
        let others = draw.percent(several::BRIDGES_PERCENT);
        let mut keys = Vec::new();
        for at in 0..several::GROUPS {
            if at != first && !others {
                continue;
            }
            if self.groups_used[at].left == 0 {
                self.groups_used[at] = self.new_group(draw, false);
            }
            let group = &mut self.groups_used[at];
            group.left -= 1;
            keys.extend(self.groups[group.number].iter().cloned());
        }
        keys
    }

    fn pick_of_all_tables(&mut self, draw: &mut Draw) -> Vec<Shared> {
        let used = self.group_of_all.filter(|group| group.left > 0);
        let mut group = used.unwrap_or_else(|| self.new_group(draw, true));
        group.left -= 1;
        self.group_of_all = Some(group);
        self.groups[group.number].clone()
    }

    /// The next group, for operations from now on. Its keys lie in one table, or in all.
    fn new_group(&mut self, draw: &mut Draw, of_all: bool) -> Group {
        let number = self.groups.len();
        let keys = several::GROUP
            .iter()
            .enumerate()
            .map(|(at, (holds, letter))| {
                let table = if of_all { at % tables::NAMES.len() } else { 0 };
                let name = format!("{letter}-{number:06}-{at}{}", tables::suffix(table));
                let key = name.clone().into_bytes();
                let id = self.material.transactions.key(name, *holds);
                let holds = *holds;
                Shared {
                    id,
                    holds,
                    key,
                    table,
                }
            });
        let keys = keys.collect();
        self.groups.push(keys);
        let (least, most) = (several::GROUP_OPERATIONS_MIN, several::GROUP_OPERATIONS_MAX);
        Group {
            number,
            left: least + draw.below(most - least + 1),
        }
    }

    fn new_key(&mut self, at: usize, draw: &mut Draw) -> Active {
        self.keys_made += 1;
        let is_counter = at.is_multiple_of(COUNTER_EVERY);
        let is_length = is_counter && (at / COUNTER_EVERY).is_multiple_of(LENGTH_EVERY);
        let (letter, kind) = match (is_counter, is_length) {
            (_, true) => (LENGTH, KeyKind::Counter),
            (true, false) => ('c', KeyKind::Counter),
            (false, false) => ('r', KeyKind::Register),
        };
        let suffix = tables::suffix(table_of_place(at));
        let name = format!("{letter}-{:07}{suffix}", self.keys_made);
        Active {
            id: self.material.history.key(name, kind),
            kind,
            is_length,
            left: OPERATIONS_MIN + draw.below(OPERATIONS_MAX - OPERATIONS_MIN + 1),
        }
    }
}
