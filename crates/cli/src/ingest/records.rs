//! Files as records: CSV, JSON lines, plain lines, and what `pluvio export` writes.
//!
//! - INPUT-1: a record's line is the one a person finds with an editor, counted from 1.
//! - INPUT-2: memory is bounded whatever the input: a line or CSV record over [`RECORD_BYTES_MAX`]
//!   is refused, not collected.
//! - INPUT-3: a bad record does not hide the ones behind it, unless it is [`BadRecord::last`].
//! - INPUT-4: what the file cut off is no record: a CSV file that ends inside quotes ends with a
//!   [`BadRecord`].

use crate::cmd::lifetime::{DEADLINE_FIELD, deadline};
use crate::ingest::csv_file::Csv;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::ValueEnum;
use pluvio_client::Deadline;
use pluvio_units::ObjectVersion;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest line or CSV record in bytes. A value has at most 1 MiB, and at most six times as many
/// bytes as JSON text.
pub const RECORD_BYTES_MAX: usize = 8 << 20;
/// What some editors put before the first line.
pub const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Values between commas; the first line names the fields. A record becomes a JSON object
    Csv,
    /// A JSON object on each line, kept as it stands
    Jsonl,
    /// Each line is a key; its value is the number of the line
    Lines,
    /// What `pluvio export` writes
    Export,
}

/// One object to be written.
#[derive(PartialEq, Eq, Debug)]
pub struct Record {
    /// The line it began on; of an RDB file, the byte.
    pub line: u64,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Bytes,
    /// The version that it had; `None`: it is a new object.
    pub version: Option<ObjectVersion>,
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
}

/// Which fields of a record mean more than a part of its value.
#[derive(Clone, Default, Debug)]
pub struct Names {
    /// Its key; otherwise the key is the record's number, from 1.
    pub key: Option<String>,
    /// Its deadline. Empty text, `null` and a missing field of JSON: it lives for ever.
    pub deadline: Option<String>,
}

/// A record that cannot be used.
#[derive(PartialEq, Eq, Debug)]
pub struct BadRecord {
    /// The line it began on; of an RDB file, the byte.
    pub line: u64,
    /// What is wrong with it.
    pub message: String,
    /// Nothing can be read after it.
    pub last: bool,
}

/// Records in the order of the file.
pub type Records = Box<dyn Iterator<Item = Result<Record, BadRecord>> + Send>;

/// Counts the blank lines that were passed over. Clones count together.
#[derive(Clone, Default, Debug)]
pub struct BlankLines(Arc<AtomicU64>);

impl BlankLines {
    /// How many there were so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads `input`; `names` counts for CSV and JSON lines. Blank lines are no records; those of files
/// of lines are counted. Does not read before the first record is asked for.
pub fn read(
    input: Box<dyn Read + Send>,
    format: Format,
    names: Names,
    blank: BlankLines,
) -> Records {
    match format {
        Format::Csv => Box::new(Csv::new(input, names)),
        Format::Jsonl => Box::new(Lines::new(input, blank, move |line, number, text| {
            json_record(line, number, text, &names)
        })),
        Format::Lines => Box::new(Lines::new(input, blank, |line, _, text| {
            Ok(Record {
                line,
                key: text.to_vec(),
                value: line.to_string().into(),
                version: None,
                deadline: None,
            })
        })),
        Format::Export => Box::new(Lines::new(input, blank, |line, _, text| {
            exported(line, text)
        })),
    }
}

fn bad(line: u64, message: impl Into<String>) -> BadRecord {
    BadRecord {
        line,
        message: message.into(),
        last: false,
    }
}

/// A file of lines. Blank lines are no records.
struct Lines<F> {
    input: BufReader<Box<dyn Read + Send>>,
    line: u64,
    number: u64,
    ended: bool,
    blank: BlankLines,
    record: F,
}

impl<F: FnMut(u64, u64, &[u8]) -> Result<Record, BadRecord>> Lines<F> {
    fn new(input: Box<dyn Read + Send>, blank: BlankLines, record: F) -> Self {
        Self {
            input: BufReader::with_capacity(64 << 10, input),
            line: 0,
            number: 0,
            ended: false,
            blank,
            record,
        }
    }

    fn fail(&mut self, error: &io::Error) -> BadRecord {
        self.ended = true;
        BadRecord {
            line: self.line,
            message: format!("cannot read on: {error}"),
            last: true,
        }
    }

    /// Passes the rest of a line that is too long.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let there = self.input.fill_buf()?;
            if there.is_empty() {
                return Ok(());
            }
            let end = there.iter().position(|&b| b == b'\n');
            let used = end.map_or(there.len(), |at| at + 1);
            self.input.consume(used);
            if end.is_some() {
                return Ok(());
            }
        }
    }
}

impl<F: FnMut(u64, u64, &[u8]) -> Result<Record, BadRecord>> Iterator for Lines<F> {
    type Item = Result<Record, BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut text = Vec::new();
        while !self.ended {
            text.clear();
            self.line += 1;
            let limit = RECORD_BYTES_MAX as u64 + 1;
            match (&mut self.input).take(limit).read_until(b'\n', &mut text) {
                Ok(0) => {
                    self.ended = true;
                    return None;
                }
                Ok(_) => {}
                Err(error) => return Some(Err(self.fail(&error))),
            }
            let whole = text.last() == Some(&b'\n');
            if !whole && text.len() > RECORD_BYTES_MAX {
                if let Err(error) = self.skip_line() {
                    return Some(Err(self.fail(&error)));
                }
                let message = format!("the line is longer than {RECORD_BYTES_MAX} bytes");
                return Some(Err(bad(self.line, message)));
            }
            let mut line = text.strip_suffix(b"\n").unwrap_or(&text);
            line = line.strip_suffix(b"\r").unwrap_or(line);
            if self.line == 1 {
                line = line.strip_prefix(UTF8_MARK).unwrap_or(line);
            }
            if line.trim_ascii().is_empty() {
                self.blank.0.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.number += 1;
            return Some((self.record)(self.line, self.number, line));
        }
        None
    }
}

fn object(line: u64, text: &[u8]) -> Result<Map<String, Value>, BadRecord> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad(line, "not a JSON object")),
        Err(error) => Err(bad(line, format!("not JSON: {error}"))),
    }
}

/// The text of a field.
fn as_it_stands(line: u64, text: &[u8], name: &str) -> Result<String, BadRecord> {
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_slice(text).map_err(|error| bad(line, format!("not JSON: {error}")))?;
    let field = fields.get(name);
    let field = field.ok_or_else(|| bad(line, format!("there is no field {name:?}")))?;
    Ok(field.get().to_owned())
}

fn json_record(line: u64, number: u64, text: &[u8], names: &Names) -> Result<Record, BadRecord> {
    let object = object(line, text)?;
    let key = match names.key.as_deref() {
        None => number.to_string(),
        Some(name) => match object.get(name) {
            Some(Value::String(text)) => text.clone(),
            // As a value it is rounded, and may be the same as another one.
            Some(Value::Number(n)) if n.is_f64() => as_it_stands(line, text, name)?,
            Some(Value::Number(n)) => n.to_string(),
            Some(_) => {
                return Err(bad(
                    line,
                    format!("field {name:?} is no text and no number"),
                ));
            }
            None => return Err(bad(line, format!("there is no field {name:?}"))),
        },
    };
    let deadline = names.deadline.as_deref();
    Ok(Record {
        line,
        key: key.into_bytes(),
        value: Bytes::copy_from_slice(text.trim_ascii()),
        version: None,
        deadline: deadline.map_or(Ok(None), |name| deadline_in(line, &object, name))?,
    })
}

/// The deadline that a field of a JSON object has. A number as JSON has them, or its digits as
/// text.
fn deadline_in(
    line: u64,
    object: &Map<String, Value>,
    name: &str,
) -> Result<Option<Deadline>, BadRecord> {
    let text = match object.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    deadline_of(line, name, &text)
}

/// The deadline that the text of a field gives; `None` when it is empty.
pub fn deadline_of(line: u64, name: &str, text: &str) -> Result<Option<Deadline>, BadRecord> {
    if text.is_empty() {
        return Ok(None);
    }
    let deadline = deadline(text);
    let why = |why| bad(line, format!("field {name:?}: {why}"));
    deadline.map(Some).map_err(why)
}

fn exported(line: u64, text: &[u8]) -> Result<Record, BadRecord> {
    let mut object = object(line, text)?;
    let mut part = |name: &str| {
        let coded = format!("{name}_base64");
        match (object.remove(name), object.remove(&coded)) {
            (Some(_), Some(_)) => Err(bad(
                line,
                format!("has both fields {name:?} and {coded:?}: which one counts?"),
            )),
            (Some(Value::String(text)), None) => Ok(text.into_bytes()),
            (Some(_), None) => Err(bad(line, format!("field {name:?} is no text"))),
            (None, Some(Value::String(text))) => STANDARD
                .decode(text)
                .map_err(|error| bad(line, format!("field {coded:?}: {error}"))),
            (None, Some(_) | None) => Err(bad(
                line,
                format!("there is no field {name:?} and no {coded:?}"),
            )),
        }
    };
    let (key, value) = (part("key")?, part("value")?.into());
    let deadline = deadline_in(line, &object, DEADLINE_FIELD)?;
    object.remove(DEADLINE_FIELD);
    // A deadline with a wrong name would be lost in silence.
    if let Some(name) = object.keys().next() {
        let known = format!("key, value and {DEADLINE_FIELD}");
        let message = format!("field {name:?} is unknown; there are {known}, or NAME_base64");
        return Err(bad(line, message));
    }
    Ok(Record {
        line,
        key,
        value,
        version: None,
        deadline,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], format: Format, key: Option<&str>) -> Vec<Result<Record, BadRecord>> {
        let input = Box::new(io::Cursor::new(text.to_vec()));
        let names = Names {
            key: key.map(str::to_owned),
            deadline: None,
        };
        read(input, format, names, BlankLines::default()).collect()
    }

    fn shown(text: &[u8], format: Format, key: Option<&str>) -> Vec<String> {
        all(text, format, key)
            .into_iter()
            .map(|record| match record {
                Ok(r) => format!(
                    "{} {} {}",
                    r.line,
                    String::from_utf8_lossy(&r.key),
                    String::from_utf8_lossy(&r.value)
                ),
                Err(b) => format!(
                    "{} BAD{} {}",
                    b.line,
                    if b.last { "!" } else { "" },
                    b.message
                ),
            })
            .collect()
    }

    #[test]
    fn csv_records_become_objects_in_the_order_of_the_fields() {
        let text = b"\xef\xbb\xbfname,cc,note\r\nBern,CH,\"a \"\"b\"\"\nc\"\r\nUlm,DE,\r\n";
        assert_eq!(
            shown(text, Format::Csv, Some("name")),
            [
                r#"2 Bern {"name":"Bern","cc":"CH","note":"a \"b\"\nc"}"#,
                r#"4 Ulm {"name":"Ulm","cc":"DE","note":""}"#,
            ]
        );
        assert_eq!(
            shown(b"a\nx\ny\n", Format::Csv, None),
            ["2 1 {\"a\":\"x\"}", "3 2 {\"a\":\"y\"}"]
        );
    }

    // shows: INPUT-1, INPUT-3
    #[test]
    fn bad_csv_records_are_told_by_line_and_passed() {
        let text = b"a,b\n1,2\n3\n4,\xff\n5,6\n";
        assert_eq!(
            shown(text, Format::Csv, Some("a")),
            [
                r#"2 1 {"a":"1","b":"2"}"#,
                "3 BAD the record has 1 fields, the first line names 2",
                "4 BAD the record is not UTF-8",
                r#"5 5 {"a":"5","b":"6"}"#,
            ]
        );
        for (text, key) in [
            (&b""[..], None),
            (b"a,a\n1,2\n", None),
            (b"a,b\n1,2\n", Some("c")),
        ] {
            let records = all(text, Format::Csv, key);
            assert!(
                matches!(
                    &records[..],
                    [Err(BadRecord {
                        line: 1,
                        last: true,
                        ..
                    })]
                ),
                "{records:?}"
            );
        }
    }

    // shows: INPUT-4
    #[test]
    fn a_csv_file_that_ends_inside_quotes_is_refused() {
        let text = b"a,b\n1,2\n3,\"x\ny\n";
        assert_eq!(
            shown(text, Format::Csv, Some("a")),
            [
                r#"2 1 {"a":"1","b":"2"}"#,
                "3 BAD! the file ends inside quotes, which are opened on line 3",
            ]
        );
        let head = shown(b"\xef\xbb\xbf\"a,b\n1,2\n", Format::Csv, None);
        assert_eq!(
            head,
            ["1 BAD! the file ends inside quotes, which are opened on line 1"]
        );
        for closed in [
            &b"a\n\"x\"\"\""[..],
            b"a\n\"x\"",
            b"a\nx\"",
            b"\xef\xbb\xbf\"a\"\n1\n",
        ] {
            let records = all(closed, Format::Csv, None);
            assert!(records.len() == 1 && records[0].is_ok(), "{records:?}");
        }
    }

    #[test]
    fn blank_lines_are_counted() {
        for (format, count) in [(Format::Lines, 2), (Format::Jsonl, 2), (Format::Export, 2)] {
            let blank = BlankLines::default();
            let input = Box::new(io::Cursor::new(b"\nx\n \r\ny".to_vec()));
            assert_eq!(
                read(input, format, Names::default(), blank.clone()).count(),
                2
            );
            assert_eq!(blank.count(), count);
        }
    }

    // shows: INPUT-2
    #[test]
    fn an_open_quote_does_not_collect_the_rest_of_a_huge_file() {
        let mut text = b"a\n\"".to_vec();
        text.resize(3 * RECORD_BYTES_MAX, b'x');
        let records = all(&text, Format::Csv, None);
        assert!(matches!(&records[..], [Err(BadRecord { last: true, .. })]));
    }

    #[test]
    fn json_lines_are_kept_as_they_stand() {
        let text =
            b"{\"id\": 7, \"b\": [1 ,2]}\n\n {\"id\":\"x\"} \r\n[1]\n{\"id\":null}\n{\"jd\":1}\n{";
        let records = shown(text, Format::Jsonl, Some("id"));
        assert_eq!(records[0], r#"1 7 {"id": 7, "b": [1 ,2]}"#);
        assert_eq!(records[1], r#"3 x {"id":"x"}"#);
        assert_eq!(records[2], "4 BAD not a JSON object");
        assert!(records[3].starts_with("5 BAD field \"id\""));
        assert!(records[4].starts_with("6 BAD there is no field \"id\""));
        assert!(records[5].starts_with("7 BAD not JSON"));
        assert_eq!(shown(b"{}\n{}", Format::Jsonl, None), ["1 1 {}", "2 2 {}"]);
    }

    #[test]
    fn numbers_are_keys_as_they_stand() {
        let text = b"{\"id\":123456789012345678901}\n{\"id\":123456789012345678902}\n{\"id\": 1.10 }\n{\"id\":-7}";
        let records = all(text, Format::Jsonl, Some("id"));
        let keys = records
            .iter()
            .map(|record| &record.as_ref().unwrap().key[..]);
        let expected: [&[u8]; 4] = [
            b"123456789012345678901",
            b"123456789012345678902",
            b"1.10",
            b"-7",
        ];
        assert_eq!(keys.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn lines_are_keys_and_their_numbers_values() {
        assert_eq!(
            shown(b"abc\r\n\nd\xff", Format::Lines, None),
            ["1 abc 1", "3 d\u{fffd} 3"]
        );
    }

    // shows: INPUT-2
    #[test]
    fn a_line_without_an_end_is_not_collected() {
        let mut text = vec![b'x'; 2 * RECORD_BYTES_MAX];
        text.extend_from_slice(b"\nnext");
        let records = shown(&text, Format::Lines, None);
        assert_eq!(records.len(), 2);
        assert!(records[0].starts_with("1 BAD the line is longer"));
        assert_eq!(records[1], "2 next 2");
    }

    #[test]
    fn exported_bytes_come_back() {
        let text = b"{\"key\":\"a\\tb\",\"value_base64\":\"/wA=\"}\n{\"key_base64\":\"\",\"value\":\"\"}\n{\"key\":1}\n{\"key\":\"a\"}\n{\"key_base64\":\"?\",\"value\":\"\"}\n{\"key\":\"a\",\"key_base64\":\"YQ==\",\"value\":\"\"}\n{\"key\":\"a\",\"value\":\"\",\"value_base64\":null}";
        let records = all(text, Format::Export, None);
        let first = records[0].as_ref().unwrap();
        assert_eq!(
            (&first.key[..], &first.value[..]),
            (&b"a\tb"[..], &b"\xff\x00"[..])
        );
        let second = records[1].as_ref().unwrap();
        assert_eq!((&second.key[..], &second.value[..]), (&b""[..], &b""[..]));
        assert!(
            records[2..]
                .iter()
                .all(|r| r.as_ref().is_err_and(|b| !b.last))
        );
    }

    /// The deadlines of records, by their lines; `Err` has what is wrong.
    fn deadlines(text: &str, format: Format, name: Option<&str>) -> Vec<Result<u64, String>> {
        let input = Box::new(io::Cursor::new(text.as_bytes().to_vec()));
        let names = Names {
            key: None,
            deadline: name.map(str::to_owned),
        };
        let records = read(input, format, names, BlankLines::default());
        let shown = |record: Result<Record, BadRecord>| match record {
            Ok(record) => Ok(record.deadline.map_or(0, Deadline::ms)),
            Err(bad) => Err(format!("{} {}", bad.line, bad.message)),
        };
        records.map(shown).collect()
    }

    const NONSENSE: [&str; 8] = [
        "0",
        "-1",
        "1.5",
        "1e300",
        "9223372036854775808",
        "99999999999999999999999",
        "true",
        "{}",
    ];

    #[test]
    fn deadlines_of_exported_objects_come_back_and_old_files_have_none() {
        let file: Vec<String> = ["1", "9223372036854775807", "null", "\"77\""]
            .iter()
            .map(|ms| format!(r#"{{"key":"k","value":"","expires_at_ms":{ms}}}"#))
            .chain([r#"{"key":"k","value":""}"#.to_owned()])
            .collect();
        let found = deadlines(&file.join("\n"), Format::Export, None);
        let expected = [1, i64::MAX as u64, 0, 77, 0].map(Ok);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_field_of_an_exported_object_that_nobody_knows_is_told() {
        let text = r#"{"key":"k","value":"","expires_at":5}"#;
        let found = deadlines(text, Format::Export, None);
        let why = found[0].as_ref().unwrap_err();
        assert!(why.contains("field \"expires_at\" is unknown"), "{why}");
    }

    // shows: INPUT-3
    #[test]
    fn nonsense_is_no_deadline_in_any_format() {
        for ms in NONSENSE {
            let export = format!(
                "{{\"key\":\"k\",\"value\":\"\",\"expires_at_ms\":{ms}}}\n{{\"key\":\"k\",\"value\":\"\"}}"
            );
            let jsonl = format!("{{\"until\":{ms}}}\n{{\"until\":5}}");
            for (text, format, name, second) in [
                (export, Format::Export, None, 0),
                (jsonl, Format::Jsonl, Some("until"), 5),
                (format!("until\n{ms}\n5"), Format::Csv, Some("until"), 5),
            ] {
                let found = deadlines(&text, format, name);
                let why = found[0].as_ref().unwrap_err();
                let is_told = why.contains("not a deadline") && why.contains("field");
                assert!(is_told, "{format:?} {ms}: {why}");
                assert_eq!(found[1..], [Ok(second)], "{format:?} {ms}");
            }
        }
    }

    #[test]
    fn a_field_of_csv_and_json_lines_may_be_the_deadline() {
        let csv = "id,until\na,\nb,5\n";
        assert_eq!(
            deadlines(csv, Format::Csv, Some("until")),
            [Ok(0), Ok(5)],
            "an empty one lives for ever"
        );
        let missing = deadlines(csv, Format::Csv, Some("end"));
        assert!(
            missing[0]
                .as_ref()
                .is_err_and(|why| why.contains("\"end\""))
        );
        let jsonl = "{\"until\":5}\n{}\n{\"until\":null}";
        assert_eq!(
            deadlines(jsonl, Format::Jsonl, Some("until")),
            [Ok(5), Ok(0), Ok(0)]
        );
        assert_eq!(deadlines(jsonl, Format::Jsonl, None), [Ok(0), Ok(0), Ok(0)]);
    }

    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("torn"))
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_on_ends_with_an_error() {
        for format in [Format::Csv, Format::Jsonl, Format::Lines, Format::Export] {
            let blank = BlankLines::default();
            let records: Vec<_> = read(Box::new(Broken), format, Names::default(), blank).collect();
            assert!(
                matches!(&records[..], [Err(BadRecord { last: true, .. })]),
                "{format:?}"
            );
        }
    }
}
