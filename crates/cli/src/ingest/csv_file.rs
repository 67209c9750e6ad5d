//! CSV files as records.
//!
//! A file goes through the hands of a watcher on its way to the reader of crate `csv`. It refuses a
//! record that is too long, and knows on which line a record began (INPUT-1, INPUT-2, INPUT-4).

use crate::ingest::records::{BadRecord, Names, RECORD_BYTES_MAX, Record, UTF8_MARK, deadline_of};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of a CSV file that went through the hands of [`Watched`].
#[derive(Default)]
struct Seen {
    /// Bytes since the latest record began.
    since_record: usize,
    /// Bytes in all.
    bytes: u64,
    /// Places of the carriage returns and line feeds that [`Seen::line_at`] has not passed.
    ends: VecDeque<(u64, u8)>,
    /// Line feeds that it has passed.
    lines: u64,
    quotes: Quotes,
    /// There are no more bytes.
    is_all: bool,
}

/// Follows the quotes of a CSV file, by the same rules as its reader.
#[derive(Default)]
struct Quotes {
    place: Place,
    /// The line that the latest quotes were opened on, from 0.
    opened_on: u64,
    line: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    FieldStart,
    Field,
    Quoted,
    /// Behind a quote within quotes: the end, or the first half of a quote that is meant.
    QuotedQuote,
}

impl Quotes {
    fn see(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (Place::FieldStart, b'"') => {
                self.opened_on = self.line;
                Place::Quoted
            }
            (Place::Quoted, b'"') => Place::QuotedQuote,
            (Place::Quoted, _) | (Place::QuotedQuote, b'"') => Place::Quoted,
            (_, b',' | b'\r' | b'\n') => Place::FieldStart,
            (_, _) => Place::Field,
        };
        self.line += u64::from(byte == b'\n');
    }
}

impl Seen {
    /// The line of the record that begins at this byte, or behind the line ends at this byte. The
    /// CSV reader leaves the line feed of a carriage return, and blank lines, to the next record.
    /// Bytes must come in ascending order.
    fn line_at(&mut self, mut byte: u64) -> u64 {
        while let Some(&(place, end)) = self.ends.front()
            && place <= byte
        {
            self.ends.pop_front();
            self.lines += u64::from(end == b'\n');
            if place == byte {
                byte += 1;
            }
        }
        self.lines + 1
    }
}

/// Refuses to read more than a bound between two records, and notes where lines end.
struct Watched {
    input: Box<dyn Read + Send>,
    seen: Arc<Mutex<Seen>>,
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Read for Watched {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut seen = lock(&self.seen);
        if seen.since_record > RECORD_BYTES_MAX {
            return Err(io::Error::other(format!(
                "a record is longer than {RECORD_BYTES_MAX} bytes; is a quote not closed?"
            )));
        }
        let read = self.input.read(into)?;
        seen.is_all = read == 0 && !into.is_empty();
        let start = seen.bytes;
        for (byte, place) in into[..read].iter().zip(start..) {
            if place >= UTF8_MARK.len() as u64 || UTF8_MARK[place as usize] != *byte {
                seen.quotes.see(*byte);
            }
        }
        let ends = into[..read]
            .iter()
            .zip(start..)
            .filter(|(b, _)| matches!(b, b'\r' | b'\n'));
        seen.ends.extend(ends.map(|(end, place)| (place, *end)));
        seen.bytes += read as u64;
        seen.since_record += read;
        Ok(read)
    }
}

/// A CSV file.
pub struct Csv {
    reader: csv::Reader<Watched>,
    seen: Arc<Mutex<Seen>>,
    names: Names,
    /// `None` before the head line.
    head: Option<Head>,
    number: u64,
    ended: bool,
}

/// The first line of a CSV file.
struct Head {
    /// The fields' names as JSON text.
    names: Vec<String>,
    /// Which of them is the key.
    key: Option<usize>,
    /// Which of them is the deadline.
    deadline: Option<usize>,
}

impl Csv {
    /// Reads nothing yet.
    pub fn new(input: Box<dyn Read + Send>, names: Names) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let watched = Watched {
            input,
            seen: seen.clone(),
        };
        Self {
            reader: csv::ReaderBuilder::new()
                .buffer_capacity(64 << 10)
                .from_reader(watched),
            seen,
            names,
            head: None,
            number: 0,
            ended: false,
        }
    }

    fn read_head(&mut self) -> Result<(), BadRecord> {
        let fail = |message: String| BadRecord {
            line: 1,
            message,
            last: true,
        };
        let head = self.reader.headers().cloned().map_err(|error| {
            fail(format!(
                "the first line must name the fields: {}",
                csv_words(&error)
            ))
        })?;
        if head.is_empty() {
            return Err(fail(
                "the file is empty; its first line must name the fields".into(),
            ));
        }
        if let Some(message) = cut_off(&lock(&self.seen), self.reader.position().byte()) {
            return Err(fail(message));
        }
        let names: Vec<&str> = head.iter().collect();
        if let Some(twice) = names
            .iter()
            .enumerate()
            .find(|(i, n)| names[..*i].contains(n))
        {
            return Err(fail(format!("two fields are named {:?}", twice.1)));
        }
        let place = |wanted: &Option<String>| match wanted {
            None => Ok(None),
            Some(wanted) => names
                .iter()
                .position(|n| n == wanted)
                .map(Some)
                .ok_or_else(|| {
                    fail(format!(
                        "there is no field {wanted:?}; there are {}",
                        names.join(", ")
                    ))
                }),
        };
        let (key, deadline) = (place(&self.names.key)?, place(&self.names.deadline)?);
        let quoted = names.iter().map(|name| Value::from(*name).to_string());
        self.head = Some(Head {
            names: quoted.collect(),
            key,
            deadline,
        });
        Ok(())
    }

    fn record(&mut self, fields: &csv::StringRecord, line: u64) -> Result<Record, BadRecord> {
        self.number += 1;
        let head = self.head.as_ref().expect("read before the first record");
        let deadline = match (head.deadline, &self.names.deadline) {
            (Some(at), Some(name)) => deadline_of(line, name, &fields[at])?,
            _ => None,
        };
        let mut json = String::with_capacity(fields.as_slice().len() + head.names.len() * 12);
        for (name, field) in head.names.iter().zip(fields) {
            json.push(if json.is_empty() { '{' } else { ',' });
            json.push_str(name);
            json.push(':');
            json.push_str(&Value::from(field).to_string());
        }
        json.push('}');
        let key = match head.key {
            Some(at) => fields[at].to_owned(),
            None => self.number.to_string(),
        };
        Ok(Record {
            line,
            key: key.into_bytes(),
            value: json.into(),
            version: None,
            deadline,
        })
    }
}

impl Iterator for Csv {
    type Item = Result<Record, BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        if self.head.is_none()
            && let Err(problem) = self.read_head()
        {
            self.ended = true;
            return Some(Err(problem));
        }
        lock(&self.seen).since_record = 0;
        let mut fields = csv::StringRecord::new();
        let result = self.reader.read_record(&mut fields);
        let place = match &result {
            Ok(_) => fields.position(),
            Err(error) => error.position(),
        };
        let line = place.map_or(0, |place| lock(&self.seen).line_at(place.byte()));
        let cut_off = cut_off(&lock(&self.seen), self.reader.position().byte());
        Some(match (result, cut_off) {
            (Ok(true) | Err(_), Some(message)) => {
                self.ended = true;
                Err(BadRecord {
                    line: line.max(1),
                    message,
                    last: true,
                })
            }
            (result, _) => match result {
                Ok(true) => self.record(&fields, line),
                Ok(false) => {
                    self.ended = true;
                    return None;
                }
                Err(error) => {
                    let last = matches!(error.kind(), csv::ErrorKind::Io(_));
                    self.ended = last;
                    // The number counts bad records too, so that keys do not depend on them.
                    self.number += 1;
                    Err(BadRecord {
                        line: line.max(1),
                        message: csv_words(&error),
                        last,
                    })
                }
            },
        })
    }
}

/// The fault of a record that ends at this byte, if the file ends there and inside quotes.
fn cut_off(seen: &Seen, byte: u64) -> Option<String> {
    let is_open = seen.is_all && seen.bytes == byte && seen.quotes.place == Place::Quoted;
    is_open.then(|| {
        format!(
            "the file ends inside quotes, which are opened on line {}",
            seen.quotes.opened_on + 1
        )
    })
}

fn csv_words(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            format!("the record has {len} fields, the first line names {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "the record is not UTF-8".to_owned(),
        csv::ErrorKind::Io(error) => format!("cannot read on: {error}"),
        _ => error.to_string(),
    }
}
