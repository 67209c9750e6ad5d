//! The second reading of a file: its strings, one stretch of one database after the other.

use crate::ingest::records::{BadRecord, Record};
use crate::ingest::redis::over_limits;
use crate::ingest::redis::survey::database_of;
use pluvio_client::Deadline;
use pluvio_rdb::reader::{Error, Item, Object, Reader, Text, Value};
use pluvio_redis::DatabaseId;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

type Found = Result<Record, BadRecord>;

struct State<R> {
    reader: Reader<R>,
    only: Option<DatabaseId>,
    /// The first of the next stretch.
    next: Option<(DatabaseId, Found)>,
    /// The database of what was read last.
    database: DatabaseId,
    has_failed: bool,
}

/// A file in stretches, each of one database.
pub struct Sections<R>(Arc<Mutex<State<R>>>);

impl<R: Read> Sections<R> {
    /// `only`: of this database.
    ///
    /// # Errors
    /// It is no RDB file.
    pub fn of(input: R, only: Option<DatabaseId>) -> Result<Self, Error> {
        Ok(Self(Arc::new(Mutex::new(State {
            reader: Reader::new(input)?,
            only,
            next: None,
            database: DatabaseId::default(),
            has_failed: false,
        }))))
    }

    /// The next stretch, when all before it was read.
    pub fn next_section(&self) -> Option<(DatabaseId, Section<R>)> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.next.is_none() {
            state.next = state.read();
        }
        let (database, _) = state.next.as_ref()?;
        let section = Section(self.0.clone(), *database);
        Some((*database, section))
    }
}

/// The records of one stretch.
pub struct Section<R>(Arc<Mutex<State<R>>>, DatabaseId);

impl<R: Read> Iterator for Section<R> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.next.is_none() {
            state.next = state.read();
        }
        let is_mine = |next: &mut (DatabaseId, Found)| next.0 == self.1;
        state.next.take_if(is_mine).map(|(_, found)| found)
    }
}

impl<R: Read> State<R> {
    /// The next string. The survey has told of everything else.
    fn read(&mut self) -> Option<(DatabaseId, Found)> {
        while !self.has_failed {
            match self.reader.next_item() {
                Ok(None) => return None,
                Ok(Some(Item::Library(_) | Item::ModuleData(_))) => {}
                Ok(Some(Item::Object(object))) => {
                    let Some(database) = database_of(&object) else {
                        continue;
                    };
                    if self.only.is_some_and(|only| only != database) {
                        continue;
                    }
                    self.database = database;
                    if let Some(found) = record(object) {
                        return Some((database, found));
                    }
                }
                Err(Error { at, why }) => {
                    self.has_failed = true;
                    let bad = BadRecord {
                        line: at,
                        message: why.to_string(),
                        last: true,
                    };
                    return Some((self.database, Err(bad)));
                }
            }
        }
        None
    }
}

/// The record of a string; `None` of something else.
fn record(object: Object) -> Option<Found> {
    let words = over_limits(&object);
    let line = object.at;
    match (object.key, object.value) {
        (_, Value::Other(_)) => None,
        (Text::Whole(key), Value::String(Text::Whole(value))) if words.is_none() => {
            // Zero and less are moments of long ago, too.
            let deadline = object.expires_at_ms.map(|ms| ms.max(1).cast_unsigned());
            Some(Ok(Record {
                version: None,
                line,
                key: key.to_vec(),
                value,
                deadline: deadline.and_then(Deadline::new),
            }))
        }
        (Text::Whole(_) | Text::TooLong(_), Value::String(_)) => Some(Err(BadRecord {
            line,
            message: words.unwrap_or_default(),
            last: false,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::redis::survey::Survey;
    use pluvio_rdb::writer::Writer;

    /// A file with strings of databases 0, 3 and 0 again, one that is too long, and a list.
    fn file() -> Vec<u8> {
        let long = vec![b'v'; pluvio_units::VALUE_MAX + 1];
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (database, key, value, deadline) in [
            (0, "a", &b"1"[..], None),
            (0, "b", b"2", Some(5)),
            (3, "c", b"3", None),
            (3, "long", &long, None),
            (0, "d", b"4", None),
        ] {
            writer.select(database, 1).unwrap();
            writer.object(key.as_bytes(), value, deadline).unwrap();
        }
        let (mut file, _) = writer.finish().unwrap();
        // A list of one element, before the end; no checksum.
        file.truncate(file.len() - 9);
        file.extend_from_slice(b"\x01\x01l\x01\x01x\xff\0\0\0\0\0\0\0\0");
        file
    }

    fn read(file: &[u8], only: Option<i64>) -> Vec<(u8, Result<String, String>)> {
        let only = only.and_then(DatabaseId::new);
        let sections = Sections::of(file, only).unwrap();
        let mut all = Vec::new();
        while let Some((database, section)) = sections.next_section() {
            all.extend(section.map(|found| {
                let key = found.map(|record| String::from_utf8(record.key).unwrap());
                (database.number(), key.map_err(|bad| bad.message))
            }));
        }
        all
    }

    #[test]
    fn stretches_of_databases_come_in_the_order_of_the_file() {
        let found = read(&file(), None);
        let keys: Vec<_> = found.iter().map(|(n, key)| (*n, key.as_deref())).collect();
        assert_eq!(keys[..3], [(0, Ok("a")), (0, Ok("b")), (3, Ok("c"))]);
        assert!(
            keys[3]
                .1
                .is_err_and(|why| why.contains("\"long\" has 1048577 bytes"))
        );
        assert_eq!(keys[4..], [(0, Ok("d"))]);
        assert_eq!(read(&file(), Some(3)).len(), 2);
    }

    #[test]
    fn damage_behind_the_survey_ends_the_reading() {
        let file = file();
        let found = read(&file[..60], None);
        assert!(
            found.last().is_some_and(|(_, key)| key.is_err()),
            "{found:?}"
        );
    }

    // shows: SURVEY-1
    #[test]
    fn a_survey_refuses_what_cannot_be_taken() {
        let survey = Survey::of(&file()[..], None).unwrap();
        assert_eq!(survey.strings.values().sum::<u64>(), 4);
        assert_eq!(survey.left_out(), 1);
        let refusal = |skip_types, skip_bad| {
            let result = survey.judge(skip_types, skip_bad);
            result.err().map(|failure| failure.to_string())
        };
        assert!(refusal(false, true).is_some_and(|why| why.contains("list: 1 (\"l\")")));
        assert!(refusal(true, false).is_some_and(|why| why.contains(": 1 (\"long\")")));
        assert_eq!(refusal(true, true), None);
        // A database that is not ours is refused whatever is skipped.
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.select(16, 1).unwrap();
        writer.object(b"k", b"v", None).unwrap();
        let file = writer.finish().unwrap().0;
        let survey = Survey::of(&file[..], None).unwrap();
        let why = survey.judge(true, true).unwrap_err().to_string();
        assert!(why.contains("database 16"), "{why}");
        let one = Survey::of(&file[..], DatabaseId::new(0)).unwrap();
        assert!(one.judge(false, false).is_ok());
    }
}
