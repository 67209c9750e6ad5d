//! Histories as files: in JSON, one operation, transaction or transfer a line.
//!
//! ```text
//! {"key":"r-0000012","kind":"Register","client":3,"action":{"Write":{"content":{"Bytes":7},"condition":null}},
//!  "invoked":101,"returned":108,"outcome":{"Plain":"Wrote"},"repeats":0,"at":{…},"until":{…}}
//! {"transaction":[{"key":"s-000001-0","holds":"Register","what":{"Read":{"saw":[12]}}},
//!                 {"key":"l-000001-1","holds":"List","what":{"Append":{"token":13,"length":4}}}],
//!  "client":3,"invoked":110,"returned":115,"ended":"Done","at":{…},"until":{…}}
//! {"transfer":{"client":2,"invoked":…,"returned":…,"moved":[0,4,17],"did":{"Moved":{"count":5}}}}
//! ```
//!
//! - LINES-1: what is read back is what was written, in any order of lines.

use super::journal::Material;
use pluvio_console::failure::Failure;
use pluvio_sim::check::transfers::Deed;
use pluvio_sim::history::transactions::{Ended, Holds, Step, Transaction, What};
use pluvio_sim::history::{KeyId, KeyKind, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// A line with an operation on one key.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    kind: KeyKind,
    #[serde(flatten)]
    record: Record,
}

/// A line with a transaction. Its first field tells it from the others.
#[derive(Serialize, Deserialize)]
struct TransactionLine {
    transaction: Vec<StepLine>,
    client: u16,
    invoked: u64,
    returned: u64,
    ended: Ended,
    at: Duration,
    until: Duration,
}

#[derive(Serialize, Deserialize)]
struct StepLine {
    key: String,
    holds: Holds,
    what: What,
}

/// A line with a transfer.
#[derive(Serialize, Deserialize)]
struct TransferLine {
    transfer: Deed,
}

/// With what lines begin.
const TRANSACTION: &str = "{\"transaction\":";
const TRANSFER: &str = "{\"transfer\":";

/// Writes a history.
///
/// # Errors
/// The file cannot be written.
pub fn write(material: &Material, path: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| Failure::file(path, &error);
    let mut file = BufWriter::new(File::create(path).map_err(fail)?);
    let mut put = |line: Result<String, serde_json::Error>| {
        let line = line.map_err(|error| fail(error.into()))?;
        writeln!(file, "{line}").map_err(fail)
    };
    for (_, key) in material.history.keys() {
        for record in &key.records {
            let line = Line {
                key: key.name.clone(),
                kind: key.kind,
                record: *record,
            };
            put(serde_json::to_string(&line))?;
        }
    }
    for deed in &material.deeds {
        let transfer = deed.clone();
        put(serde_json::to_string(&TransferLine { transfer }))?;
    }
    for one in &material.transactions.all {
        let steps = one.steps.iter().map(|step| {
            let key = &material.transactions.keys[step.key as usize];
            StepLine {
                key: key.name.clone(),
                holds: key.holds,
                what: step.what.clone(),
            }
        });
        let line = TransactionLine {
            transaction: steps.collect(),
            client: one.client,
            invoked: one.invoked,
            returned: one.returned,
            ended: one.ended,
            at: one.at,
            until: one.until,
        };
        put(serde_json::to_string(&line))?;
    }
    file.flush().map_err(fail)
}

/// Reads a history.
///
/// # Errors
/// The file cannot be read, or a line of it is no operation.
pub fn read(path: &Path) -> Result<Material, Failure> {
    let fail = |error: std::io::Error| Failure::file(path, &error);
    let mut reading = Reading::default();
    let file = BufReader::new(File::open(path).map_err(fail)?);
    for (number, line) in file.lines().enumerate() {
        let line = line.map_err(fail)?;
        reading.line(&line).map_err(|error| {
            let (path, number) = (path.display(), number + 1);
            Failure::new(format!("{path}, line {number}: not an operation: {error}"))
        })?;
    }
    let mut material = reading.material;
    material.history.settle();
    let transactions = &mut material.transactions.all;
    transactions.sort_by_key(|one| (one.invoked, one.returned));
    material
        .deeds
        .sort_by_key(|deed| (deed.invoked, deed.returned));
    Ok(material)
}

/// A history that is being read.
#[derive(Default)]
struct Reading {
    material: Material,
    keys: BTreeMap<String, KeyId>,
    shared: BTreeMap<String, u32>,
}

impl Reading {
    /// Takes one line.
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.starts_with(TRANSACTION) {
            return self.transaction(parsed(line)?);
        }
        if line.starts_with(TRANSFER) {
            let TransferLine { transfer } = parsed(line)?;
            self.material.deeds.push(transfer);
            return Ok(());
        }
        let Line { key, kind, record } = parsed(line)?;
        let history = &mut self.material.history;
        let id =
            *{ self.keys.entry(key) }.or_insert_with_key(|key| history.key(key.as_str(), kind));
        history.add(id, record);
        Ok(())
    }

    fn transaction(&mut self, line: TransactionLine) -> Result<(), String> {
        let transactions = &mut self.material.transactions;
        let mut steps = Vec::new();
        for StepLine { key, holds, what } in line.transaction {
            if !what.fits(holds) {
                return Err(format!("key {key} is a {holds:?}: {what} is not possible"));
            }
            let key = *{ self.shared.entry(key) }
                .or_insert_with_key(|key| transactions.key(key.as_str(), holds));
            if transactions.keys[key as usize].holds != holds {
                return Err("a key is a register and a list".to_owned());
            }
            steps.push(Step { key, what });
        }
        transactions.all.push(Transaction {
            client: line.client,
            steps,
            invoked: line.invoked,
            returned: line.returned,
            ended: line.ended,
            at: line.at,
            until: line.until,
        });
        Ok(())
    }
}

fn parsed<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_sim::check::transfers::Did;
    use pluvio_sim::history::{Action, Condition, Content, Outcome, Plain};

    // shows: LINES-1
    #[test]
    fn a_history_is_read_as_it_was_written() {
        let mut material = Material::default();
        let actions = [
            (Action::Read, Outcome::Missing),
            (
                Action::Write {
                    content: Content::Bytes(7),
                    condition: Some(Condition::version(0)),
                },
                Outcome::Wrote {
                    version: 3,
                    replaced: 0,
                },
            ),
            (Action::Delete { condition: None }, Outcome::Unknown),
            (
                Action::Read,
                Outcome::Plain(Plain::Found {
                    content: Content::Damaged(9),
                }),
            ),
        ];
        for name in ["a", "b"] {
            let history = &mut material.history;
            let key = history.key(name, KeyKind::Register);
            for (action, outcome) in actions {
                let begun = history.invoke(key, 2, action, Duration::from_millis(5));
                history.finish(begun, outcome, 1, Duration::from_millis(6));
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        material.deeds = vec![Deed {
            client: 2,
            invoked: 5,
            returned: 9,
            moved: Some((0, 1, 7)),
            did: Did::Moved { count: 1 },
        }];
        let transactions = &mut material.transactions;
        let (register, list) = (
            transactions.key("s", Holds::Register),
            transactions.key("l", Holds::List),
        );
        let saw = Some(vec![1, 2]);
        let (token, length, found) = (3, Some(2), None);
        let step = |key, what| Step { key, what };
        for (ended, steps) in [
            (Ended::Done, vec![step(register, What::Set { token })]),
            (
                Ended::Unknown,
                vec![step(list, What::Append { token, length })],
            ),
            (Ended::NotDone, vec![step(register, What::Delete { found })]),
            (Ended::Done, vec![step(list, What::Read { saw })]),
        ] {
            let tick = material.history.tick();
            let begun =
                { &mut material.transactions }.begin(1, steps.clone(), tick, Duration::ZERO);
            let tick = material.history.tick();
            { &mut material.transactions }.end(begun, ended, steps, tick, Duration::ZERO);
        }
        write(&material, &path).unwrap();
        let again = read(&path).unwrap();
        let keys = |material: &Material| -> Vec<_> {
            let keys = material.history.keys();
            keys.map(|(_, key)| key.clone()).collect()
        };
        assert_eq!(keys(&again), keys(&material));
        assert_eq!(again.deeds, material.deeds);
        assert_eq!(again.transactions, material.transactions);
        for wrong in [
            "{}",
            "{\"transaction\":[]}",
            "{\"transaction\":[{\"key\":\"l\",\"holds\":\"List\",\"what\":{\"Set\":{\"token\":1}}}],\"client\":1,\"invoked\":1,\"returned\":2,\"ended\":\"Done\",\"at\":{\"secs\":0,\"nanos\":0},\"until\":{\"secs\":0,\"nanos\":0}}",
        ] {
            std::fs::write(&path, wrong).unwrap();
            let failure = read(&path).unwrap_err().to_string();
            assert!(failure.contains("line 1"), "{failure}");
        }
    }
}
