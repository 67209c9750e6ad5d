//! The first reading of a file: whether all of it can be taken.
//!
//! - SURVEY-1: a file is read to its end, and its checksum compared, before the first write.

use crate::ingest::redis::{name_of, over_limits};
use pluvio_console::failure::Failure;
use pluvio_console::output::count;
use pluvio_rdb::reader::{Error, Item, Object, Reader, Text, Value};
use pluvio_redis::DatabaseId;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// Names of keys that are told for a type.
const NAMED: usize = 5;

/// Things of one kind that cannot be taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Group {
    number: u64,
    /// Some of their names.
    names: Vec<String>,
}

impl Group {
    fn add(&mut self, name: impl FnOnce() -> String) {
        self.number += 1;
        if self.names.len() < NAMED {
            self.names.push(name());
        }
    }

    fn words(&self, what: &str) -> String {
        let more = if self.number > self.names.len() as u64 {
            ", …"
        } else {
            ""
        };
        let names = self.names.join(", ");
        format!("{what}: {} ({names}{more})", count(self.number))
    }
}

/// What a file has.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Strings that can be taken, by their databases.
    pub strings: BTreeMap<DatabaseId, u64>,
    others: BTreeMap<String, Group>,
    too_long: Group,
    databases: BTreeSet<u64>,
    modules: BTreeSet<String>,
}

impl Survey {
    /// Reads a file to its end. `only`: of this database.
    ///
    /// # Errors
    /// The file is none, damaged, or of a version that is not known.
    pub fn of(input: impl Read, only: Option<DatabaseId>) -> Result<Self, Error> {
        let mut reader = Reader::new(input)?;
        let mut survey = Self::default();
        while let Some(item) = reader.next_item()? {
            match item {
                Item::Object(object) => survey.see(&object, only),
                Item::Library(source) => survey.others("function library").add(|| library(&source)),
                Item::ModuleData(name) => {
                    survey.modules.insert(name);
                }
            }
        }
        Ok(survey)
    }

    /// Adds what append-only files had beside the strings of this file.
    pub fn add(&mut self, others: &[(String, String)], too_long: &[String]) {
        for (kind, name) in others {
            self.others(kind).add(|| name.clone());
        }
        for name in too_long {
            self.too_long.add(|| name.clone());
        }
    }

    fn others(&mut self, what: &str) -> &mut Group {
        self.others.entry(what.to_owned()).or_default()
    }

    fn see(&mut self, object: &Object, only: Option<DatabaseId>) {
        if only.is_some_and(|only| u64::from(only.number()) != object.database) {
            return;
        }
        let Some(database) = database_of(object) else {
            self.databases.insert(object.database);
            return;
        };
        match &object.value {
            Value::Other(kind) => self.others(&kind.to_string()).add(|| name_of(&object.key)),
            Value::String(_) if over_limits(object).is_some() => {
                self.too_long.add(|| name_of(&object.key));
            }
            Value::String(_) => *self.strings.entry(database).or_default() += 1,
        }
    }

    /// How many things of other types there are, libraries included.
    pub fn left_out(&self) -> u64 {
        self.others.values().map(|group| group.number).sum()
    }

    /// Says what is left out, if anything is.
    pub fn words(&self) -> Option<String> {
        let words = self.others.iter().map(|(what, group)| group.words(what));
        let words: Vec<_> = words.collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// The modules whose data belong to no key.
    pub fn modules(&self) -> Option<String> {
        let names: Vec<_> = self.modules.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Refuses what cannot be taken.
    ///
    /// # Errors
    /// There are keys in databases that Pluvio has not. Without `skip_types`: there are values of
    /// other types. Without `skip_bad`: there are keys or values over the limits.
    pub fn judge(&self, skip_types: bool, skip_bad: bool) -> Result<(), Failure> {
        if let Some(number) = self.databases.first() {
            return Err(Failure::new(format!(
                "database {number} has keys; Pluvio has the databases 0 to {}: nothing was written",
                DatabaseId::all().count() - 1
            )));
        }
        if let Some(words) = self.words()
            && !skip_types
        {
            return Err(Failure::new(format!(
                "Pluvio takes only strings, and there are others: {words}; nothing was written; \
                 --skip-types leaves them out"
            )));
        }
        if self.too_long.number > 0 && !skip_bad {
            return Err(Failure::new(format!(
                "{}; nothing was written; --skip-bad leaves them out",
                self.too_long
                    .words("keys or values over the limits, 64 KiB and 1 MiB")
            )));
        }
        Ok(())
    }
}

/// The database of an object, if Pluvio has it.
pub fn database_of(object: &Object) -> Option<DatabaseId> {
    DatabaseId::new(i64::try_from(object.database).ok()?)
}

/// The name of a library, which its first line gives.
fn library(source: &Text) -> String {
    let Text::Whole(source) = source else {
        return "a library".to_owned();
    };
    let line = source.split(|&byte| byte == b'\n').next();
    let line = String::from_utf8_lossy(line.unwrap_or_default());
    let name = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("name="));
    format!("\"{}\"", name.unwrap_or("?").escape_default())
}
