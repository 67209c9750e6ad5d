//! Histories as files: one operation a line, in JSON, with the name and kind of its key.
//!
//! ```text
//! {"key":"r-0000012","kind":"Register","client":3,"action":{"Write":{"content":{"Bytes":7},"condition":null}},
//!  "invoked":101,"returned":108,"outcome":{"Plain":"Wrote"},"repeats":0,"at":{…},"until":{…}}
//! ```
//!
//! - LINES-1: what is read back is what was written, in any order of lines.

use pluvio_console::failure::Failure;
use pluvio_sim::history::{History, KeyId, KeyKind, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

/// A line.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    kind: KeyKind,
    #[serde(flatten)]
    record: Record,
}

/// Writes a history.
///
/// # Errors
/// The file cannot be written.
pub fn write(history: &History, path: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| Failure::file(path, &error);
    let mut file = BufWriter::new(File::create(path).map_err(fail)?);
    for (_, key) in history.keys() {
        for record in &key.records {
            let line = Line {
                key: key.name.clone(),
                kind: key.kind,
                record: *record,
            };
            serde_json::to_writer(&mut file, &line).map_err(|error| fail(error.into()))?;
            file.write_all(b"\n").map_err(fail)?;
        }
    }
    file.flush().map_err(fail)
}

/// Reads a history.
///
/// # Errors
/// The file cannot be read, or a line of it is no operation.
pub fn read(path: &Path) -> Result<History, Failure> {
    let fail = |error: std::io::Error| Failure::file(path, &error);
    let mut history = History::default();
    let mut keys: BTreeMap<String, KeyId> = BTreeMap::new();
    let file = BufReader::new(File::open(path).map_err(fail)?);
    for (number, line) in file.lines().enumerate() {
        let line = line.map_err(fail)?;
        let Line { key, kind, record } = serde_json::from_str(&line).map_err(|error| {
            let (path, number) = (path.display(), number + 1);
            Failure::new(format!("{path}, line {number}: not an operation: {error}"))
        })?;
        let id = *keys
            .entry(key)
            .or_insert_with_key(|key| history.key(key.as_str(), kind));
        history.add(id, record);
    }
    history.settle();
    Ok(history)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_sim::history::{Action, Condition, Content, Outcome, Plain};
    use std::time::Duration;

    // shows: LINES-1
    #[test]
    fn a_history_is_read_as_it_was_written() {
        let mut history = History::default();
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
            let key = history.key(name, KeyKind::Register);
            for (action, outcome) in actions {
                let begun = history.invoke(key, 2, action, Duration::from_millis(5));
                history.finish(begun, outcome, 1, Duration::from_millis(6));
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        write(&history, &path).unwrap();
        let again = read(&path).unwrap();
        let keys =
            |history: &History| -> Vec<_> { history.keys().map(|(_, key)| key.clone()).collect() };
        assert_eq!(keys(&again), keys(&history));
        std::fs::write(&path, "{}\n").unwrap();
        let failure = read(&path).unwrap_err().to_string();
        assert!(failure.contains("line 1"), "{failure}");
    }
}
