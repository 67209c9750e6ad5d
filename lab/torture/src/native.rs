//! Clients that use the client library.

use super::bank;
use super::draw::Draw;
use super::journal::{Journal, Subject};
use super::several;
use bytes::Bytes;
use pluvio_client::{Client, ClientError, ErrorKind, Key, Number, Object, RejectRules, Table};
use pluvio_sim::cluster::values;
use pluvio_sim::history::{
    Action, Begun, Condition, Content, KeyId, KeyKind, Outcome, Plain, WHOLE,
};
use pluvio_units::ObjectVersion;
use std::collections::BTreeMap;

/// Objects of a batch.
const BATCH_MAX: u64 = 8;
/// Bytes of which appends take some.
const APPENDED: &[u8] = &[b'a'; 40];
/// Versions that a client remembers, for conditions.
const VERSIONS_MAX: usize = 256;

/// One client.
pub struct Native {
    /// Where it records.
    pub journal: Journal,
    /// The library.
    pub client: Client,
    /// The tables, in their order.
    pub tables: Vec<Table>,
    /// Names it in the history.
    pub number: u16,
    /// Its dice.
    pub draw: Draw,
    /// Versions that it saw last.
    pub versions: BTreeMap<KeyId, u64>,
}

impl Native {
    /// One operation, or one batch.
    pub async fn step(&mut self) {
        if let Some(deal) = bank::draw(&mut self.draw) {
            self.deal(deal).await;
            return;
        }
        if several::draw(&mut self.draw) {
            self.step_of_several().await;
            return;
        }
        let subject = self.journal.pick_of_all(&mut self.draw);
        let dice = self.draw.below(100);
        match (subject.kind, dice) {
            (_, 0..30) => drop(self.read(&subject).await),
            (KeyKind::Counter, _) if subject.is_length => self.append(&subject).await,
            (KeyKind::Counter, _) => self.increment(&subject).await,
            (KeyKind::Register, 30..40) => self.get_and_set(&subject).await,
            (KeyKind::Register, 40..55) => self.write(&subject, None).await,
            (KeyKind::Register, 55..75) => {
                let condition = self.condition(subject.id);
                self.write(&subject, Some(condition)).await;
            }
            (KeyKind::Register, 75..80) => self.delete(&subject).await,
            (KeyKind::Register, 80..85) => self.get_and_delete(&subject).await,
            (KeyKind::Register, 85..92) => self.multi_read(subject).await,
            (KeyKind::Register, _) => self.multi_write(subject).await,
            (KeyKind::Value | KeyKind::Tokens | KeyKind::Volatile, _) => {
                unreachable!("there are no such keys here")
            }
        }
    }

    fn table_of(&self, subject: &Subject) -> &Table {
        &self.tables[subject.table]
    }

    /// Reads an object.
    ///
    /// # Errors
    /// It could not be read in time.
    pub async fn read(&mut self, subject: &Subject) -> Result<(), ClientError> {
        let begun = self.begin(subject, Action::Read);
        let result = self.client.read(self.table_of(subject), &subject.key).await;
        let error = result.as_ref().err().cloned();
        let outcome = self.found(subject, result);
        self.end("read", subject.id, begun, outcome);
        error.map_or(Ok(()), Err)
    }

    async fn write(&mut self, subject: &Subject, condition: Option<u64>) {
        let (value, content) = new_value(&self.journal, &mut self.draw);
        let begun = self.begin(
            subject,
            Action::Write {
                content,
                condition: condition.map(Condition::version),
            },
        );
        let written = self.client.write_if(
            self.table_of(subject),
            &subject.key,
            value,
            rules(condition),
        );
        let outcome = match written.await {
            Ok(reply) => Outcome::Wrote {
                version: reply.version.0,
                replaced: reply.replaced.0,
            },
            Err(error) => self.failed(&error),
        };
        let kind = condition.map_or("write", |_| "conditional write");
        self.end(kind, subject.id, begun, outcome);
    }

    async fn delete(&mut self, subject: &Subject) {
        let condition = self
            .draw
            .percent(30)
            .then(|| self.condition(subject.id))
            // Version 0 means "only if there is none", which no delete needs.
            .filter(|version| *version > 0);
        let begun = self.begin(
            subject,
            Action::Delete {
                condition: condition.map(Condition::version),
            },
        );
        let deleted = self
            .client
            .delete_if(self.table_of(subject), &subject.key, rules(condition));
        let outcome = match deleted.await {
            Ok(reply) => Outcome::Deleted {
                version: reply.deleted.0,
            },
            Err(error) => self.failed(&error),
        };
        self.end("delete", subject.id, begun, outcome);
    }

    async fn increment(&mut self, subject: &Subject) {
        let by = addend(&mut self.draw);
        let begun = self.begin(
            subject,
            Action::Add {
                by: by * WHOLE,
                condition: None,
            },
        );
        let added =
            self.client
                .increment(self.table_of(subject), &subject.key, Number::Integer(by));
        let outcome = match added.await {
            Ok(reply) => match reply.value {
                Number::Integer(sum) => Outcome::Added {
                    version: reply.version.0,
                    sum: sum.saturating_mul(WHOLE),
                },
                Number::Float(sum) => {
                    self.journal
                        .wrong(format!("a sum of integers is {sum}, a fraction"));
                    Outcome::Unknown
                }
            },
            Err(error) => self.failed(&error),
        };
        self.end("increment", subject.id, begun, outcome);
    }

    async fn append(&mut self, subject: &Subject) {
        let bytes = appendix(&mut self.draw);
        let begun = self.begin(subject, appends(bytes));
        let appended = self
            .client
            .append(self.table_of(subject), &subject.key, bytes);
        let outcome = match appended.await {
            Ok(reply) => Outcome::Added {
                version: reply.version.0,
                sum: length(reply.length),
            },
            Err(error) => self.failed(&error),
        };
        self.end("append", subject.id, begun, outcome);
    }

    async fn get_and_set(&mut self, subject: &Subject) {
        let (value, content) = new_value(&self.journal, &mut self.draw);
        let condition = None;
        let begun = self.begin(subject, Action::Write { content, condition });
        let swapped = self
            .client
            .get_and_set(self.table_of(subject), &subject.key, value);
        let outcome = match swapped.await {
            Ok(old) => replaced(old),
            Err(error) => self.failed(&error),
        };
        self.end("get-and-set", subject.id, begun, outcome);
    }

    async fn get_and_delete(&mut self, subject: &Subject) {
        let begun = self.begin(subject, Action::Delete { condition: None });
        let deleted = self
            .client
            .get_and_delete(self.table_of(subject), &subject.key);
        let outcome = match deleted.await {
            Ok(None) => Outcome::Deleted { version: 0 },
            Ok(old) => replaced(old),
            Err(error) => self.failed(&error),
        };
        self.end("get-and-delete", subject.id, begun, outcome);
    }

    async fn multi_read(&mut self, first: Subject) {
        let subjects = self.several(first, false);
        let begun: Vec<Begun> = subjects
            .iter()
            .map(|s| self.begin(s, Action::Read))
            .collect();
        let keys: Vec<_> = subjects
            .iter()
            .map(|s| Key::new(self.table_of(s), &s.key))
            .collect();
        let results = self.client.multi_read(&keys).await;
        for ((subject, begun), result) in subjects.iter().zip(begun).zip(results) {
            let outcome = self.found(subject, result);
            self.end("multi-read", subject.id, begun, outcome);
        }
    }

    async fn multi_write(&mut self, first: Subject) {
        let subjects = self.several(first, true);
        let tables = self.tables.clone();
        let (mut begun, mut objects) = (Vec::new(), Vec::new());
        for subject in &subjects {
            let (value, content) = new_value(&self.journal, &mut self.draw);
            let conditional = self.draw.percent(25);
            let condition = conditional.then(|| self.condition(subject.id));
            begun.push(self.begin(
                subject,
                Action::Write {
                    content,
                    condition: condition.map(Condition::version),
                },
            ));
            let key = Key::new(&tables[subject.table], &subject.key).rules(rules(condition));
            objects.push((key, value));
        }
        let results = self.client.multi_write(&objects).await;
        drop(objects);
        for ((subject, begun), result) in subjects.iter().zip(begun).zip(results) {
            let outcome = match result {
                Ok(reply) => Outcome::Wrote {
                    version: reply.version.0,
                    replaced: reply.replaced.0,
                },
                Err(error) => self.failed(&error),
            };
            self.end("multi-write", subject.id, begun, outcome);
        }
    }

    /// Some different keys.
    fn several(&mut self, first: Subject, only_registers: bool) -> Vec<Subject> {
        let mut all = vec![first];
        for _ in 0..self.draw.below(BATCH_MAX) {
            let next = self.journal.pick_of_all(&mut self.draw);
            let fits = !only_registers || next.kind == KeyKind::Register;
            if fits && all.iter().all(|known| known.id != next.id) {
                all.push(next);
            }
        }
        all
    }

    /// A version to ask for: mostly the last one this client saw, sometimes an old one.
    fn condition(&mut self, key: KeyId) -> u64 {
        let last = self.versions.get(&key).copied().unwrap_or(0);
        match self.draw.percent(25) {
            true => last.saturating_sub(1),
            false => last,
        }
    }

    fn begin(&self, subject: &Subject, action: Action) -> Begun {
        self.journal.begin(subject.id, self.number, action)
    }

    fn end(&mut self, kind: &str, key: KeyId, begun: Begun, outcome: Outcome) {
        let seen = match outcome {
            Outcome::Found { version, .. }
            | Outcome::Seen { version }
            | Outcome::Wrote { version, .. }
            | Outcome::Added { version, .. }
            | Outcome::Rejected { version } => Some(version),
            Outcome::Missing | Outcome::Deleted { .. } => Some(0),
            Outcome::Plain(_) | Outcome::NotDone | Outcome::Unknown => None,
        };
        if let Some(version) = seen {
            if self.versions.len() >= VERSIONS_MAX {
                self.versions.clear();
            }
            self.versions.insert(key, version);
        }
        self.journal.end(&format!("native {kind}"), begun, outcome);
    }

    fn found(&self, subject: &Subject, result: Result<Option<Object>, ClientError>) -> Outcome {
        match result {
            Ok(Some(object)) => Outcome::Found {
                version: object.version.0,
                content: match subject.is_length {
                    true => length_of(&object.value),
                    false => values::content(&object.value),
                },
            },
            Ok(None) => Outcome::Missing,
            Err(error) => {
                self.failed(&error);
                // A read changes nothing, whatever happened to it.
                Outcome::NotDone
            }
        }
    }

    /// What an error says of an operation.
    pub(super) fn failed(&self, error: &ClientError) -> Outcome {
        match error.kind() {
            ErrorKind::Rejected => {}
            ErrorKind::TimedOut | ErrorKind::MaybeExecuted => {
                let why = error.retry_reason();
                let why = why.map_or_else(|| "no answer".to_owned(), |why| format!("{why:?}"));
                self.journal.error(format!("{:?}: {why}", error.kind()));
            }
            // Nothing is asked for that could be refused for good.
            kind => self.journal.wrong(format!("{kind:?}: {error}")),
        }
        match error {
            ClientError::Rejected { version } => Outcome::Rejected { version: version.0 },
            other if other.maybe_executed() => Outcome::Unknown,
            _ => Outcome::NotDone,
        }
    }
}

fn rules(condition: Option<u64>) -> RejectRules {
    condition.map_or_else(RejectRules::default, |version| {
        RejectRules::unless_version(ObjectVersion(version))
    })
}

/// A change that told the value from before, and no version.
pub fn replaced(old: Option<Bytes>) -> Outcome {
    let old = old.map(|value| values::content(&value));
    Outcome::Plain(Plain::Replaced { old })
}

/// Bytes to append, at least one.
pub fn appendix(draw: &mut Draw) -> &'static [u8] {
    &APPENDED[..=draw.place(APPENDED.len())]
}

/// An append to an object whose number is its length.
pub fn appends(bytes: &[u8]) -> Action {
    Action::Add {
        by: length(bytes.len() as u64),
        condition: None,
    }
}

/// A length, as counters count.
pub fn length(bytes: u64) -> i64 {
    i64::try_from(bytes)
        .unwrap_or(i64::MAX)
        .saturating_mul(WHOLE)
}

/// The content of a value that was only appended to.
pub fn length_of(value: &[u8]) -> Content {
    match value.iter().all(|byte| *byte == APPENDED[0]) {
        true => Content::Number(length(value.len() as u64)),
        false => values::content(value),
    }
}

/// What to add to a counter: of either sign.
pub fn addend(draw: &mut Draw) -> i64 {
    i64::try_from(draw.below(200)).expect("a small number") - 50
}

/// A value that nobody has written yet; most are short, some as long as small files.
pub fn new_value(journal: &Journal, draw: &mut Draw) -> (Bytes, Content) {
    let longest = match draw.below(100) {
        0..80 => 200,
        80..98 => 4 << 10,
        _ => 64 << 10,
    };
    let length = values::LENGTH_MIN + draw.place(longest);
    values::value(journal.value_number(), length)
}
