//! The history itself: all keys, what was done to each, passes through tables, ordered batches.

use super::clocks::Clocks;
use super::exchange::{Answer, Exchange, Request};
use super::{Action, Outcome, Record};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Names a key in a history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct KeyId(pub u32);

/// What kind of operations go to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeyKind {
    /// Reads, writes and deletes.
    Register,
    /// Reads and additions.
    Counter,
    /// Mutations and reads of every kind; checkers know each byte.
    Value,
    /// The same, but what is appended are tokens, each once, and nothing else changes a part.
    Tokens,
    /// Mutations with lifetimes, and reads: objects expire.
    Volatile,
}

impl KeyKind {
    /// Whether its operations are recorded as [`Exchange`]s too.
    #[must_use]
    pub fn has_exchanges(self) -> bool {
        match self {
            Self::Register | Self::Counter => false,
            Self::Value | Self::Tokens | Self::Volatile => true,
        }
    }
}

/// All operations on one key, in the order of their beginnings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyHistory {
    /// The key, for people.
    pub name: String,
    /// Its kind.
    pub kind: KeyKind,
    /// The operations.
    pub records: Vec<Record>,
    /// The operations once more, in the same order, with what they did to the value. Only where
    /// [`KeyKind::has_exchanges`].
    #[serde(skip)]
    pub exchanges: Vec<Exchange>,
}

/// Tokens that one ordered batch appended, in its order. Tokens are numbers used once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OrderedBatch {
    /// When it began (a tick).
    pub invoked: u64,
    /// To which key it appended which token.
    pub appended: Vec<(KeyId, u64)>,
}

/// One pass through a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scan {
    /// When it began (a tick).
    pub invoked: u64,
    /// When it ended.
    pub returned: u64,
    /// The keys of the table.
    pub keys: Vec<KeyId>,
    /// What it found, in its order.
    pub found: Vec<KeyId>,
    /// Keys that it found and nobody ever used, for people.
    pub strangers: Vec<String>,
}

/// A beginning whose end is not recorded yet.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Begun {
    key: KeyId,
    index: usize,
}

/// Everything clients did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct History {
    tick: u64,
    keys: Vec<KeyHistory>,
    scans: Vec<Scan>,
    #[serde(skip)]
    batches: Vec<OrderedBatch>,
    #[serde(skip)]
    clocks: Clocks,
}

impl History {
    /// Adds a key.
    pub fn key(&mut self, name: impl Into<String>, kind: KeyKind) -> KeyId {
        let id = u32::try_from(self.keys.len()).expect("a run has fewer than 2^32 keys");
        self.keys.push(KeyHistory {
            name: name.into(),
            kind,
            records: Vec::new(),
            exchanges: Vec::new(),
        });
        KeyId(id)
    }

    /// The next tick.
    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// An operation begins.
    pub fn invoke(&mut self, key: KeyId, client: u16, action: Action, now: Duration) -> Begun {
        let invoked = self.tick();
        let records = &mut self.keys[key.0 as usize].records;
        records.push(Record {
            client,
            action,
            invoked,
            returned: u64::MAX,
            outcome: Outcome::Unknown,
            repeats: 0,
            at: now,
            until: now,
        });
        Begun {
            key,
            index: records.len() - 1,
        }
    }

    /// It has ended.
    pub fn finish(&mut self, begun: Begun, outcome: Outcome, repeats: u8, now: Duration) {
        let returned = self.tick();
        let record = &mut self.keys[begun.key.0 as usize].records[begun.index];
        record.returned = returned;
        record.outcome = outcome;
        record.repeats = repeats;
        record.until = now;
    }

    /// An operation on a key begins whose values checkers know.
    pub fn ask(&mut self, key: KeyId, client: u16, request: Request, now: Duration) -> Begun {
        let begun = self.invoke(key, client, request.action(), now);
        let history = &mut self.keys[key.0 as usize];
        history.exchanges.push(Exchange {
            client,
            request,
            invoked: history.records[begun.index].invoked,
            returned: u64::MAX,
            answer: Answer::Unknown,
            at: now,
            until: now,
        });
        begun
    }

    /// It has ended. Gives what the other checkers get to know, and the whole.
    pub fn answer(
        &mut self,
        begun: Begun,
        answer: Answer,
        repeats: u8,
        now: Duration,
    ) -> (Outcome, &Exchange) {
        let exchange = &self.keys[begun.key.0 as usize].exchanges[begun.index];
        let outcome = answer.outcome(&exchange.request);
        self.finish(begun, outcome, repeats, now);
        let returned = self.tick;
        let exchange = &mut self.keys[begun.key.0 as usize].exchanges[begun.index];
        exchange.answer = answer;
        exchange.returned = returned;
        exchange.until = now;
        (outcome, exchange)
    }

    /// [`History::add`] with the value that was read.
    pub fn add_read(&mut self, key: KeyId, record: Record, exchange: Exchange) {
        self.add(key, record);
        self.keys[key.0 as usize].exchanges.push(exchange);
    }

    /// An ordered batch that began at `invoked` has ended, or will.
    pub fn ordered(&mut self, batch: OrderedBatch) {
        self.batches.push(batch);
    }

    /// What the owners' clocks showed.
    #[must_use]
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Notes what the owners' clocks showed.
    pub fn set_clocks(&mut self, clocks: Clocks) {
        self.clocks = clocks;
    }

    /// All ordered batches.
    #[must_use]
    pub fn batches(&self) -> &[OrderedBatch] {
        &self.batches
    }

    /// A record that is known only once it has ended, such as an object met in an enumeration.
    /// [`History::settle`] puts it into its place.
    pub fn add(&mut self, key: KeyId, record: Record) {
        self.keys[key.0 as usize].records.push(record);
    }

    /// Puts all records into the order of their beginnings. No operation may be under way whose
    /// end is still to be recorded.
    pub fn settle(&mut self) {
        for key in &mut self.keys {
            key.records.sort_by_key(|r| (r.invoked, r.returned));
            key.exchanges.sort_by_key(|e| (e.invoked, e.returned));
        }
    }

    /// A pass through a table has ended; its beginning was at tick `scan.invoked`.
    pub fn scanned(&mut self, scan: Scan) {
        self.scans.push(scan);
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = (KeyId, &KeyHistory)> {
        (0..).map(KeyId).zip(&self.keys)
    }

    /// The operations on one key.
    #[must_use]
    pub fn of(&self, key: KeyId) -> &KeyHistory {
        &self.keys[key.0 as usize]
    }

    /// For tests that plant errors.
    pub fn of_mut(&mut self, key: KeyId) -> &mut KeyHistory {
        &mut self.keys[key.0 as usize]
    }

    /// All passes through tables.
    #[must_use]
    pub fn scans(&self) -> &[Scan] {
        &self.scans
    }

    /// For tests that plant errors.
    pub fn scans_mut(&mut self) -> &mut Vec<Scan> {
        &mut self.scans
    }

    /// Operations in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.iter().map(|key| key.records.len()).sum()
    }

    /// Whether there were none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
