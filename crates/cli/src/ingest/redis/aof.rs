//! Append-only files of a Redis or Valkey, as an RDB file of the strings that they come to.
//!
//! 1. The files are found: those of a manifest, or one.
//! 2. Their commands are done in memory, on strings. Of keys of other types the type is kept.
//! 3. The strings are written into a temporary RDB file, which goes the way of others.
//!
//! - AOF-4: a command that stands in the file took effect when it was written. So conditions are
//!   not judged again, and a key that a command of strings was done on is a string.
//! - AOF-5: the end of the last file may be cut off in the middle of a command, or between MULTI and
//!   EXEC. What is incomplete is left out and told, as Redis does (`aof-load-truncated`). Any other
//!   damage refuses all.
//!
//! Memory holds all strings that are there at a time.

use crate::ingest::redis::name_of;
use bytes::Bytes;
use pluvio_client::{Addend, BitAction, BitOverflow, BitStep, Change, Output, Payload, Unfit};
use pluvio_console::failure::Failure;
use pluvio_mutation::{Step, change};
use pluvio_rdb::aof::{Command, Log, Manifest};
use pluvio_rdb::number::integer;
use pluvio_rdb::payload::{Bad, restore};
use pluvio_rdb::reader::{Item, Object, Reader, Text, Value as Saved, Why};
use pluvio_rdb::writer::Writer;
use pluvio_units::VALUE_MAX;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek};
use std::path::{Path, PathBuf};

/// Bits that a value of Redis can have.
const BIT_OFFSETS: i64 = 1 << 32;

/// What append-only files come to.
pub struct Loaded {
    /// An RDB file of the strings.
    pub file: File,
    /// Things that are no strings: their types, and how they are called.
    pub others: Vec<(String, String)>,
    /// Keys whose values are too long.
    pub too_long: Vec<String>,
    /// What was left out at the end of the last file.
    pub cut: Option<String>,
}

/// The append-only files at a place, in their order; `None` if there are none.
///
/// # Errors
/// The place cannot be read, or its manifest makes no sense.
pub fn find(place: &Path) -> Result<Option<Vec<PathBuf>>, Failure> {
    if place.is_dir() {
        let inner = place.join("appendonlydir");
        let directory = if inner.is_dir() { &inner } else { place };
        let list = std::fs::read_dir(directory);
        let list = list.map_err(|error| Failure::file(directory, &error))?;
        let paths = list.flatten().map(|entry| entry.path());
        let mut manifests: Vec<_> = paths.filter(|path| is_manifest(path)).collect();
        return match (manifests.pop(), manifests.is_empty()) {
            (Some(manifest), true) => of_manifest(&manifest).map(Some),
            (Some(_), false) => Err(Failure::new(format!(
                "{}: there are several manifests; give one of them",
                directory.display()
            ))),
            (None, _) => Err(Failure::new(format!(
                "{}: a directory without a manifest of append-only files; give an RDB file",
                directory.display()
            ))),
        };
    }
    if is_manifest(place) {
        return of_manifest(place).map(Some);
    }
    // A single file: it is named so, or begins with a command or an annotation.
    let is_named = place.extension().is_some_and(|end| end == "aof");
    let mut first = [0];
    let is_read = place.is_file()
        && File::open(place).is_ok_and(|mut file| file.read_exact(&mut first).is_ok());
    let is_log = is_named || (is_read && matches!(first, [b'*' | b'#']));
    Ok(is_log.then(|| vec![place.to_owned()]))
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "manifest")
}

fn of_manifest(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
    let manifest = Manifest::parse(&text);
    let manifest = manifest.map_err(|bad| Failure::new(format!("{}: {bad}", path.display())))?;
    let directory = path.parent().unwrap_or(Path::new(""));
    Ok(manifest.files().map(|file| directory.join(file)).collect())
}

/// Does the commands of these files, as Redis would when it loads them at this moment.
///
/// # Errors
/// A file cannot be read, is damaged, or has a command that is not known. Nothing was written.
pub fn load(files: &[PathBuf], now_ms: i64) -> Result<Loaded, Failure> {
    let mut state = State {
        now_ms,
        ..State::default()
    };
    let mut cut = None;
    for (at, path) in files.iter().enumerate() {
        let damaged = |why: &dyn core::fmt::Display| {
            Failure::new(format!("{}: {why}; nothing was written", path.display()))
        };
        let is_last = at + 1 == files.len();
        let left_out = state.file(path, is_last).map_err(|why| damaged(&why))?;
        cut = left_out.map(|why| format!("{}: {why}", path.display()));
    }
    state.finish(cut)
}

/// The value of a key.
enum Held {
    String {
        value: Content,
        /// Its deadline, in milliseconds since 1970.
        until: Option<i64>,
    },
    /// Something else, of this type.
    Other(String),
}

enum Content {
    Whole(Vec<u8>),
    /// It has this many bytes, more than a value may have.
    TooLong(u64),
}

type Database = BTreeMap<Bytes, Held>;

#[derive(Default)]
struct State {
    now_ms: i64,
    databases: BTreeMap<u64, Database>,
    current: u64,
    libraries: BTreeMap<String, ()>,
}

type Done = Result<(), String>;

impl State {
    /// Reads a file to its end; what was left out there, if it is the last one.
    fn file(&mut self, path: &Path, is_last: bool) -> Result<Option<String>, String> {
        let open = || File::open(path).map_err(|error| error.to_string());
        let mut first = [0; 5];
        let begins = open()?.read_exact(&mut first).is_ok();
        let mut log = match begins && (first == *b"REDIS" || first == *b"VALKE") {
            true => self.saved(open()?)?,
            false => Log::new(open()?),
        };
        // A database that was chosen holds for one file.
        self.current = 0;
        // Commands between MULTI and EXEC, with the place where they begin.
        let mut block: Option<(u64, Vec<Command>)> = None;
        loop {
            let command = match log.next_command() {
                Ok(Some(command)) => command,
                Ok(None) => break,
                Err(error) if is_last && matches!(error.why, Why::Cut) => {
                    let at = block.map_or(error.at, |(at, _)| at);
                    return Ok(Some(format!(
                        "the file is cut off: what begins at byte {at} is left out"
                    )));
                }
                Err(error) => return Err(error.to_string()),
            };
            match (name(&command)?.as_str(), &mut block) {
                ("MULTI", None) => block = Some((command.at, Vec::new())),
                ("EXEC", Some(_)) => {
                    for queued in block.take().into_iter().flat_map(|(_, all)| all) {
                        self.command(&queued)?;
                    }
                }
                ("MULTI", Some(_)) | ("EXEC", None) => {
                    return Err(format!("byte {}: MULTI and EXEC do not match", command.at));
                }
                (_, Some((_, queued))) => queued.push(command),
                (_, None) => self.command(&command)?,
            }
        }
        match block {
            None => Ok(None),
            Some((at, _)) if is_last => Ok(Some(format!(
                "MULTI at byte {at} has no EXEC: what begins there is left out"
            ))),
            Some((at, _)) => Err(format!("byte {at}: MULTI without EXEC")),
        }
    }

    /// Takes the objects of an RDB file, with which append-only files begin.
    fn saved(&mut self, file: File) -> Result<Log<File>, String> {
        let reader = Reader::before_commands(file);
        let mut reader = reader.map_err(|error| error.to_string())?;
        while let Some(item) = reader.next_item().map_err(|error| error.to_string())? {
            match item {
                Item::Object(Object {
                    at,
                    database,
                    key,
                    value,
                    expires_at_ms: until,
                }) => {
                    let key = key_of(&key, at)?;
                    let held = match value {
                        Saved::String(text) => Held::String {
                            value: content(&text),
                            until,
                        },
                        Saved::Other(kind) => Held::Other(kind.to_string()),
                    };
                    self.databases
                        .entry(database)
                        .or_default()
                        .insert(key, held);
                }
                Item::Library(Text::Whole(source)) => self.library(&source),
                Item::Library(Text::TooLong(_)) => self.library(b""),
                Item::ModuleData(_) => {}
            }
        }
        Ok(reader.into_commands())
    }

    fn library(&mut self, source: &[u8]) {
        let line = source.split(|&byte| byte == b'\n').next();
        let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
        let mut words = line.split_whitespace();
        let name = words
            .find_map(|word| word.strip_prefix("name="))
            .unwrap_or("?");
        self.libraries.insert(name.escape_default().to_string(), ());
    }

    fn here(&mut self) -> &mut Database {
        self.databases.entry(self.current).or_default()
    }

    fn put(&mut self, key: &Bytes, value: Content, until: Option<i64>) {
        let held = Held::String { value, until };
        self.here().insert(key.clone(), held);
    }

    /// The value of a string, where it is whole.
    fn value(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.here().get(key)? {
            Held::String {
                value: Content::Whole(value),
                ..
            } => Some(value.clone()),
            Held::String { .. } | Held::Other(_) => None,
        }
    }

    /// Changes a string as Pluvio does; it keeps its deadline.
    fn change(&mut self, key: &Bytes, what: &Change<'_>) -> Done {
        let (current, until) = match self.here().remove(key) {
            Some(Held::String {
                value: Content::Whole(value),
                until,
            }) => (Some(value), until),
            Some(Held::String {
                value: Content::TooLong(bytes),
                until,
            }) => {
                // It stays so: no change makes it shorter.
                self.put(key, Content::TooLong(bytes), until);
                return Ok(());
            }
            Some(Held::Other(_)) | None => (None, None),
        };
        let new = match change(what, current.as_deref()) {
            Ok(Step::Put(value, _)) => Content::Whole(value.to_vec()),
            Ok(Step::Delete) => return Ok(()),
            Ok(Step::Keep(Output::Nothing | Output::Integer(_) | Output::Bytes(_)))
            | Ok(Step::Keep(Output::Integers(_))) => match current {
                Some(value) => Content::Whole(value),
                None => return Ok(()),
            },
            Err(Unfit::TooLong) => {
                let before = current.map_or(0, |value| value.len());
                Content::TooLong(before.max(VALUE_MAX) as u64 + 1)
            }
            Err(unfit @ (Unfit::NotANumber | Unfit::Overflow)) => {
                return Err(format!("the value does not allow it: {unfit:?}"));
            }
        };
        self.put(key, new, until);
        Ok(())
    }

    fn command(&mut self, command: &Command) -> Done {
        let name = name(command)?;
        let done = self.run(&name, command);
        done.map_err(|why| format!("byte {}: {name}: {why}", command.at))
    }

    fn run(&mut self, name: &str, command: &Command) -> Done {
        let words = Words(command);
        if let Some(kind) = kind_of(name) {
            let keys: &[usize] = match name {
                "SMOVE" | "LMOVE" | "BLMOVE" | "RPOPLPUSH" | "BRPOPLPUSH" => &[1, 2],
                "XGROUP" => &[2],
                _ => &[1],
            };
            for at in keys {
                let key = words.key(*at)?;
                self.here().insert(key, Held::Other(kind.clone()));
            }
            return Ok(());
        }
        match name {
            "SELECT" => self.current = words.index(1)?,
            "SET" => self.set(&words)?,
            "SETEX" | "PSETEX" => {
                let unit = if name == "SETEX" { 1000 } else { 1 };
                let until = self.from_now(words.number(2)?, unit)?;
                self.put(&words.key(1)?, content(words.get(3)?), Some(until));
            }
            "SETNX" | "GETSET" => self.put(&words.key(1)?, content(words.get(2)?), None),
            "MSET" | "MSETNX" => {
                for at in (1..command.words.len()).step_by(2) {
                    self.put(&words.key(at)?, content(words.get(at + 1)?), None);
                }
            }
            "MSETEX" => self.msetex(&words)?,
            "APPEND" => match words.get(2)? {
                Text::Whole(text) => {
                    self.change(&words.key(1)?, &Change::Append(Payload::from(text)))?;
                }
                Text::TooLong(bytes) => {
                    let until = self.until(&words.key(1)?);
                    self.put(&words.key(1)?, Content::TooLong(*bytes), until);
                }
            },
            "SETRANGE" => {
                let Text::Whole(text) = words.get(3)? else {
                    let until = self.until(&words.key(1)?);
                    self.put(&words.key(1)?, content(words.get(3)?), until);
                    return Ok(());
                };
                let range = Change::SetRange {
                    offset: words.index(2)?,
                    bytes: Payload::from(text),
                };
                self.change(&words.key(1)?, &range)?;
            }
            "INCR" | "DECR" => {
                let by = if name == "INCR" { 1 } else { -1 };
                self.change(&words.key(1)?, &Change::Add(Addend::Integer(by)))?;
            }
            "INCRBY" => {
                let by = words.number(2)?;
                self.change(&words.key(1)?, &Change::Add(Addend::Integer(by)))?;
            }
            "DECRBY" => {
                let by = words.number(2)?.checked_neg().ok_or("no such number")?;
                self.change(&words.key(1)?, &Change::Add(Addend::Integer(by)))?;
            }
            "INCRBYFLOAT" => {
                let by = words.text(2)?;
                self.change(&words.key(1)?, &Change::Add(Addend::Decimal(&by)))?;
            }
            "SETBIT" => {
                let offset = bit_offset(&words.text(2)?, 1)?;
                let step = BitStep::set_bit(offset, words.number(3)? == 1);
                self.change(&words.key(1)?, &Change::Bits(&[step]))?;
            }
            "BITFIELD" => {
                let steps = bit_steps(&words)?;
                if !steps.is_empty() {
                    self.change(&words.key(1)?, &Change::Bits(&steps))?;
                }
            }
            "BITOP" => self.bitop(&words)?,
            "DEL" | "UNLINK" => {
                for at in 1..command.words.len() {
                    let key = words.key(at)?;
                    self.here().remove(&key);
                }
            }
            "GETDEL" | "DELEX" => {
                let key = words.key(1)?;
                self.here().remove(&key);
            }
            "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
                let unit = if name.starts_with('P') { 1 } else { 1000 };
                let number = words.number(2)?;
                let until = match name.ends_with("AT") {
                    true => number.saturating_mul(unit),
                    false => self.from_now(number, unit)?,
                };
                self.expire(&words.key(1)?, Some(until));
            }
            "PERSIST" => self.expire(&words.key(1)?, None),
            "GETEX" => {
                if let Some(until) = self.lifetime(&words, 2)? {
                    self.expire(&words.key(1)?, until);
                }
            }
            "RENAME" | "RENAMENX" => {
                let (from, to) = (words.key(1)?, words.key(2)?);
                if let Some(held) = self.here().remove(&from) {
                    self.here().insert(to, held);
                }
            }
            "COPY" => self.copy(&words)?,
            "MOVE" => {
                let (key, to) = (words.key(1)?, words.index(2)?);
                if let Some(held) = self.here().remove(&key) {
                    self.databases.entry(to).or_default().insert(key, held);
                }
            }
            "SWAPDB" => {
                let (one, two) = (words.index(1)?, words.index(2)?);
                let [first, second] = [one, two].map(|n| self.databases.remove(&n));
                self.databases.insert(one, second.unwrap_or_default());
                self.databases.insert(two, first.unwrap_or_default());
            }
            "FLUSHDB" => self.here().clear(),
            "FLUSHALL" => self.databases.clear(),
            "RESTORE" => self.restored(&words)?,
            "SORT" => self.sorted(&words)?,
            "FUNCTION" => self.function(&words)?,
            "PING" | "SCRIPT" | "PUBLISH" | "SPUBLISH" => {}
            _ => return Err("this command is not known".to_owned()),
        }
        Ok(())
    }

    fn until(&mut self, key: &[u8]) -> Option<i64> {
        match self.here().get(key)? {
            Held::String { until, .. } => *until,
            Held::Other(_) => None,
        }
    }

    fn from_now(&self, number: i64, unit: i64) -> Result<i64, String> {
        let span = number.checked_mul(unit);
        let until = span.and_then(|span| self.now_ms.checked_add(span));
        until.ok_or_else(|| "no such time".to_owned())
    }

    fn expire(&mut self, key: &[u8], to: Option<i64>) {
        if let Some(Held::String { until, .. }) = self.here().get_mut(key) {
            *until = to;
        }
    }

    /// The lifetime that options name, from this word on. `None`: they name none.
    fn lifetime(&self, words: &Words<'_>, from: usize) -> Result<Option<Option<i64>>, String> {
        for at in from..words.0.words.len() {
            let until = match words.text(at)?.to_ascii_uppercase().as_str() {
                "EX" => self.from_now(words.number(at + 1)?, 1000)?,
                "PX" => self.from_now(words.number(at + 1)?, 1)?,
                "EXAT" => words.number(at + 1)?.saturating_mul(1000),
                "PXAT" => words.number(at + 1)?,
                "PERSIST" => return Ok(Some(None)),
                _ => continue,
            };
            return Ok(Some(Some(until)));
        }
        Ok(None)
    }

    fn set(&mut self, words: &Words<'_>) -> Done {
        let key = words.key(1)?;
        let mut until = self.lifetime(words, 3)?.flatten();
        let options = 3..words.0.words.len();
        for at in options {
            if words.text(at)?.eq_ignore_ascii_case("KEEPTTL") {
                until = self.until(&key);
            }
        }
        self.put(&key, content(words.get(2)?), until);
        Ok(())
    }

    fn msetex(&mut self, words: &Words<'_>) -> Done {
        let count = usize::try_from(words.index(1)?).unwrap_or(usize::MAX);
        let behind = count.checked_mul(2).and_then(|n| n.checked_add(2));
        let behind = behind.filter(|behind| *behind <= words.0.words.len());
        let behind = behind.ok_or("too few words")?;
        let given = self.lifetime(words, behind)?.flatten();
        let mut keeps = false;
        for at in behind..words.0.words.len() {
            keeps |= words.text(at)?.eq_ignore_ascii_case("KEEPTTL");
        }
        for at in (2..behind).step_by(2) {
            let key = words.key(at)?;
            let until = if keeps { self.until(&key) } else { given };
            self.put(&key, content(words.get(at + 1)?), until);
        }
        Ok(())
    }

    fn copy(&mut self, words: &Words<'_>) -> Done {
        let (from, to) = (words.key(1)?, words.key(2)?);
        let mut database = self.current;
        for at in 3..words.0.words.len() {
            if words.text(at)?.eq_ignore_ascii_case("DB") {
                database = words.index(at + 1)?;
            }
        }
        let copy = match self.here().get(&from) {
            None => return Ok(()),
            Some(Held::Other(kind)) => Held::Other(kind.clone()),
            Some(Held::String { value, until }) => Held::String {
                value: match value {
                    Content::Whole(value) => Content::Whole(value.clone()),
                    Content::TooLong(bytes) => Content::TooLong(*bytes),
                },
                until: *until,
            },
        };
        self.databases.entry(database).or_default().insert(to, copy);
        Ok(())
    }

    fn bitop(&mut self, words: &Words<'_>) -> Done {
        let operation = words.text(1)?.to_ascii_uppercase();
        let mut sources = Vec::new();
        let mut longest = 0;
        for at in 3..words.0.words.len() {
            let key = words.key(at)?;
            if let Some(Held::String {
                value: Content::TooLong(bytes),
                ..
            }) = self.here().get(&key)
            {
                longest = longest.max(*bytes);
            }
            sources.push(self.value(&key).unwrap_or_default());
        }
        let to = words.key(2)?;
        let length = sources.iter().map(Vec::len).max().unwrap_or(0);
        if longest > 0 {
            self.put(&to, Content::TooLong(longest), None);
            return Ok(());
        }
        let byte = |at: usize| {
            let mut all = sources.iter();
            let mut all = all.by_ref().map(|s| s.get(at).copied().unwrap_or(0));
            let first = all.next().unwrap_or(0);
            Some(match operation.as_str() {
                "AND" => all.fold(first, |a, b| a & b),
                "OR" => all.fold(first, |a, b| a | b),
                "XOR" => all.fold(first, |a, b| a ^ b),
                "NOT" => !first,
                "DIFF" => first & !all.fold(0, |a, b| a | b),
                "DIFF1" => !first & all.fold(0, |a, b| a | b),
                "ANDOR" => first & all.fold(0, |a, b| a | b),
                "ONE" => {
                    let (one, more) = all.fold((first, 0), |(one, more), b| {
                        ((one ^ b) & !(more | one & b), more | one & b)
                    });
                    one & !more
                }
                _ => return None,
            })
        };
        let value: Option<Vec<u8>> = (0..length).map(byte).collect();
        match value.ok_or("this operation is not known")? {
            empty if empty.is_empty() => drop(self.here().remove(&to)),
            value => self.put(&to, Content::Whole(value), None),
        }
        Ok(())
    }

    fn restored(&mut self, words: &Words<'_>) -> Done {
        let Text::Whole(payload) = words.get(3)? else {
            self.put(&words.key(1)?, content(words.get(3)?), None);
            return Ok(());
        };
        let mut is_absolute = false;
        for at in 4..words.0.words.len() {
            is_absolute |= words.text(at)?.eq_ignore_ascii_case("ABSTTL");
        }
        let until = match words.number(2)? {
            0 => None,
            moment if is_absolute => Some(moment),
            span => Some(self.from_now(span, 1)?),
        };
        let key = words.key(1)?;
        match restore(payload) {
            Ok(value) => self.put(&key, Content::Whole(value.to_vec()), until),
            Err(Bad::TooLong) => self.put(&key, Content::TooLong(VALUE_MAX as u64 + 1), until),
            Err(_) => {
                let other = Held::Other("restored value".to_owned());
                self.here().insert(key, other);
            }
        }
        Ok(())
    }

    fn sorted(&mut self, words: &Words<'_>) -> Done {
        for at in 2..words.0.words.len() {
            if words.text(at)?.eq_ignore_ascii_case("STORE") {
                let key = words.key(at + 1)?;
                self.here().insert(key, Held::Other("list".to_owned()));
            }
        }
        Ok(())
    }

    fn function(&mut self, words: &Words<'_>) -> Done {
        match words.text(1)?.to_ascii_uppercase().as_str() {
            "LOAD" => {
                let last = words.get(words.0.words.len() - 1)?;
                if let Text::Whole(source) = last {
                    let source = source.clone();
                    self.library(&source);
                }
            }
            "DELETE" => drop(self.libraries.remove(&words.text(2)?)),
            "FLUSH" => self.libraries.clear(),
            _ => self.library(b""),
        }
        Ok(())
    }

    fn finish(self, cut: Option<String>) -> Result<Loaded, Failure> {
        let mut others = Vec::new();
        let mut too_long = Vec::new();
        let mut writer = Writer::new(BufWriter::new(tempfile::tempfile()?))?;
        for (number, database) in &self.databases {
            let is_whole = |held: &&Held| {
                matches!(
                    held,
                    Held::String {
                        value: Content::Whole(_),
                        ..
                    }
                )
            };
            let count = database.values().filter(is_whole).count();
            if count > 0 {
                writer.select(*number, count as u64)?;
            }
            for (key, held) in database {
                let name = || name_of(&Text::Whole(key.clone()));
                match held {
                    Held::Other(kind) => others.push((kind.clone(), name())),
                    Held::String {
                        value: Content::TooLong(_),
                        ..
                    } => too_long.push(name()),
                    Held::String {
                        value: Content::Whole(value),
                        until,
                    } => {
                        let until = until.map(|until| until.max(1).cast_unsigned());
                        writer.object(key, value, until)?;
                    }
                }
            }
        }
        for library in self.libraries.into_keys() {
            others.push(("function library".to_owned(), format!("\"{library}\"")));
        }
        let (out, _) = writer.finish()?;
        let mut file = out.into_inner().map_err(|error| error.into_error())?;
        file.rewind()?;
        Ok(Loaded {
            file,
            others,
            too_long,
            cut,
        })
    }
}

/// The name of a command, in capitals.
fn name(command: &Command) -> Result<String, String> {
    match command.words.first() {
        Some(Text::Whole(name)) if name.len() <= 64 => {
            Ok(String::from_utf8_lossy(name).to_ascii_uppercase())
        }
        Some(_) | None => Err(format!("byte {}: a command has no name", command.at)),
    }
}

fn content(text: &Text) -> Content {
    match text {
        Text::Whole(text) => Content::Whole(text.to_vec()),
        Text::TooLong(bytes) => Content::TooLong(*bytes),
    }
}

fn key_of(text: &Text, at: u64) -> Result<Bytes, String> {
    match text {
        // Those over the limit of Pluvio are told with the others.
        Text::Whole(key) => Ok(key.clone()),
        Text::TooLong(bytes) => Err(format!("byte {at}: a key has {bytes} bytes")),
    }
}

/// The words of a command.
struct Words<'c>(&'c Command);

impl Words<'_> {
    fn get(&self, at: usize) -> Result<&Text, String> {
        self.0
            .words
            .get(at)
            .ok_or_else(|| "too few words".to_owned())
    }

    fn key(&self, at: usize) -> Result<Bytes, String> {
        key_of(self.get(at)?, self.0.at)
    }

    fn text(&self, at: usize) -> Result<String, String> {
        match self.get(at)? {
            Text::Whole(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            Text::TooLong(_) => Err("a word is too long".to_owned()),
        }
    }

    fn number(&self, at: usize) -> Result<i64, String> {
        let text = self.text(at)?;
        integer(text.as_bytes()).ok_or_else(|| format!("{text:?} is no number"))
    }

    fn index(&self, at: usize) -> Result<u64, String> {
        u64::try_from(self.number(at)?).map_err(|_| "a number is below zero".to_owned())
    }
}

fn bit_offset(text: &str, width: i64) -> Result<u64, String> {
    let (text, unit) = match text.strip_prefix('#') {
        Some(text) => (text, width),
        None => (text, 1),
    };
    let offset = integer(text.as_bytes()).and_then(|number| number.checked_mul(unit));
    let offset = offset.filter(|offset| (0..BIT_OFFSETS).contains(offset));
    let offset = offset.map(i64::unsigned_abs);
    offset.ok_or_else(|| "no such bit".to_owned())
}

/// The steps of a BITFIELD that change something.
fn bit_steps(words: &Words<'_>) -> Result<Vec<BitStep>, String> {
    let mut steps = Vec::new();
    let mut overflow = BitOverflow::Wrap;
    let mut at = 2;
    while at < words.0.words.len() {
        let verb = words.text(at)?.to_ascii_uppercase();
        if verb == "OVERFLOW" {
            overflow = match words.text(at + 1)?.to_ascii_uppercase().as_str() {
                "WRAP" => BitOverflow::Wrap,
                "SAT" => BitOverflow::Saturate,
                "FAIL" => BitOverflow::Fail,
                _ => return Err("no such OVERFLOW".to_owned()),
            };
            at += 2;
            continue;
        }
        let field = words.text(at + 1)?;
        let (signed, width) = match field.split_at_checked(1) {
            Some(("i" | "I", width)) => (true, width),
            Some(("u" | "U", width)) => (false, width),
            Some(_) | None => return Err("no such field".to_owned()),
        };
        let most = if signed { 64 } else { 63 };
        let width = width
            .parse()
            .ok()
            .filter(|width| (1..=most).contains(width));
        let width: u8 = width.ok_or("no such field")?;
        let offset = bit_offset(&words.text(at + 2)?, width.into())?;
        let action = match verb.as_str() {
            "GET" => {
                at += 3;
                continue;
            }
            "SET" => BitAction::Set(words.number(at + 3)?),
            "INCRBY" => BitAction::Add(words.number(at + 3)?),
            _ => return Err("no such part of BITFIELD".to_owned()),
        };
        steps.push(BitStep {
            action,
            signed,
            width,
            offset,
            overflow,
        });
        at += 4;
    }
    Ok(steps)
}

/// The type of what a command makes or changes, if that is no string.
fn kind_of(name: &str) -> Option<String> {
    let kind = match name {
        "LPUSH" | "RPUSH" | "LPUSHX" | "RPUSHX" | "LINSERT" | "LSET" | "LREM" | "LTRIM"
        | "LPOP" | "RPOP" | "LMOVE" | "BLMOVE" | "RPOPLPUSH" | "BRPOPLPUSH" => "list",
        "SADD" | "SREM" | "SPOP" | "SMOVE" | "SUNIONSTORE" | "SINTERSTORE" | "SDIFFSTORE" => "set",
        "GEOADD" | "GEOSEARCHSTORE" => "sorted set",
        "PFADD" | "PFMERGE" => "HyperLogLog",
        // A command of a module.
        _ if name.contains('.') => return Some(format!("value of {name}")),
        _ => match name.split_at_checked(1)? {
            ("Z", _) => "sorted set",
            ("H", rest) if rest != "ELLO" => "hash",
            ("X", _) => "stream",
            _ => return None,
        },
    };
    Some(kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::redis::sections::Sections;
    use std::io::Write;

    const NOW: i64 = 1_700_000_000_000;

    /// The commands of some lines; a word may not have blanks.
    fn log(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            bytes.extend(format!("*{}\r\n", words.len()).bytes());
            for word in words {
                bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
            }
        }
        bytes
    }

    fn write(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = directory.join(name);
        File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    }

    fn load_all(files: &[Vec<u8>]) -> Result<Loaded, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let named = files.iter().enumerate();
        let paths = named.map(|(at, bytes)| write(directory.path(), &at.to_string(), bytes));
        load(&paths.collect::<Vec<_>>(), NOW)
    }

    /// Database, key, value and deadline of all strings.
    fn strings(loaded: Loaded) -> Vec<(u8, String, String, Option<u64>)> {
        let sections = Sections::of(loaded.file, None).unwrap();
        let mut all = Vec::new();
        while let Some((database, section)) = sections.next_section() {
            all.extend(section.map(|record| {
                let record = record.map_err(|bad| bad.message).unwrap();
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let until = record.deadline.map(|deadline| deadline.ms());
                (
                    database.number(),
                    text(&record.key),
                    text(&record.value),
                    until,
                )
            }));
        }
        all
    }

    fn after(lines: &[&str]) -> Vec<(u8, String, String, Option<u64>)> {
        strings(
            load_all(&[log(lines)])
                .map_err(|why| why.to_string())
                .unwrap(),
        )
    }

    fn is(
        database: u8,
        key: &str,
        value: &str,
        until: Option<u64>,
    ) -> (u8, String, String, Option<u64>) {
        (database, key.to_owned(), value.to_owned(), until)
    }

    // shows: AOF-4
    #[test]
    fn commands_of_strings_come_to_what_redis_has() {
        let found = after(&[
            "SELECT 0",
            "SET a 1",
            "INCRBY a 41",
            "DECR a",
            "SET b x PXAT 1800000000000",
            "APPEND b yz",
            "SETRANGE b 1 Q",
            "SET c 1 EX 10",
            "SET c 2 KEEPTTL",
            "SETNX d v",
            "SET gone v",
            "DEL gone none",
            "SELECT 3",
            "MSET m1 1 m2 2",
            "PEXPIREAT m1 1800000000001",
            "RENAME m2 m3",
            "COPY m3 far DB 5 REPLACE",
            "PERSIST m1",
            "SETBIT bits 1 1",
            "BITFIELD bits SET u8 8 66 GET u8 0 OVERFLOW SAT INCRBY u8 8 1",
            "BITOP NOT not bits",
            "SETEX s 5 v",
            "GETEX s PERSIST",
            "INCRBYFLOAT f 1.5",
        ]);
        let not = String::from_utf8_lossy(&[0xbf, 0xbc]).into_owned();
        assert_eq!(
            found,
            [
                is(0, "a", "41", None),
                is(0, "b", "xQz", Some(1_800_000_000_000)),
                is(0, "c", "2", Some(1_700_000_010_000)),
                is(0, "d", "v", None),
                is(3, "bits", "@C", None),
                is(3, "f", "1.5", None),
                is(3, "m1", "1", None),
                is(3, "m3", "2", None),
                is(3, "not", &not, None),
                is(3, "s", "v", None),
                is(5, "far", "2", None),
            ]
        );
        let swapped = after(&["SELECT 1", "SET a 1", "SWAPDB 1 2", "SET b 2", "MOVE b 4"]);
        assert_eq!(swapped, [is(2, "a", "1", None), is(4, "b", "2", None)]);
        assert_eq!(after(&["SET a 1", "FLUSHALL"]), []);
    }

    #[test]
    fn other_types_are_counted_and_a_string_takes_their_place() {
        let loaded = load_all(&[log(&[
            "RPUSH list 1 2",
            "HSET hash f v",
            "ZADD z 1 m",
            "XADD stream 1-1 f v",
            "SADD set m",
            "SMOVE set set2 m",
            "JSON.SET j . 1",
            "RPUSH was 1",
            "SET was string",
            "SADD dropped m",
            "DEL dropped",
            "SET string v",
            "FUNCTION LOAD #!lua\tname=lib",
        ])]);
        let loaded = loaded.map_err(|why| why.to_string()).unwrap();
        let shown: Vec<_> = loaded
            .others
            .iter()
            .map(|(k, n)| format!("{k} {n}"))
            .collect();
        assert_eq!(
            shown,
            [
                "hash \"hash\"",
                "value of JSON.SET \"j\"",
                "list \"list\"",
                "set \"set\"",
                "set \"set2\"",
                "stream \"stream\"",
                "sorted set \"z\"",
                "function library \"lib\"",
            ]
        );
        assert_eq!(strings(loaded).len(), 2);
    }

    // shows: AOF-5
    #[test]
    fn only_the_end_of_the_last_file_may_be_cut() {
        let whole = log(&["SET a 1", "SET b 2"]);
        let cut = whole[..whole.len() - 3].to_vec();
        let loaded = load_all(&[whole.clone(), cut.clone()]);
        let loaded = loaded.map_err(|why| why.to_string()).unwrap();
        let told = loaded.cut.clone().unwrap();
        assert!(told.contains("begins at byte 27"), "{told}");
        assert_eq!(strings(loaded).len(), 2);
        let refused = load_all(&[cut, whole.clone()]).err().unwrap().to_string();
        assert!(refused.contains("cut off"), "{refused}");

        let open = log(&["SET a 1", "MULTI", "SET a 2", "SET b 2"]);
        let loaded = load_all(&[open.clone()])
            .map_err(|why| why.to_string())
            .unwrap();
        assert!(loaded.cut.as_ref().unwrap().contains("no EXEC"));
        assert_eq!(strings(loaded), [is(0, "a", "1", None)]);
        assert!(load_all(&[open, whole]).is_err());
        let closed = after(&["MULTI", "SET a 2", "SET b 2", "EXEC"]);
        assert_eq!(closed.len(), 2);
        for (bad, words) in [
            (&["EVAL x 0"][..], "EVAL: this command is not known"),
            (&["SET a"], "too few words"),
            (&["EXEC"], "do not match"),
            (&["SELECT -1"], "below zero"),
            (&["SET a x", "INCR a"], "does not allow"),
        ] {
            let refused = load_all(&[log(bad)]).err().unwrap().to_string();
            assert!(refused.contains(words), "{bad:?}: {refused}");
        }
    }

    #[test]
    fn a_set_is_found_by_its_directory_its_manifest_and_single_files_by_their_first_byte() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("appendonlydir");
        std::fs::create_dir(&inner).unwrap();
        let found = |path: &Path| {
            let found = find(path).map_err(|why| why.to_string())?;
            let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            Ok::<_, String>(found.map(|all| all.iter().map(name).collect::<Vec<_>>()))
        };
        assert!(
            found(directory.path())
                .unwrap_err()
                .contains("without a manifest")
        );
        let manifest = write(
            &inner,
            "x.manifest",
            b"file b.rdb seq 1 type b\nfile i.aof seq 1 type i\n",
        );
        let both = Some(vec!["b.rdb".to_owned(), "i.aof".to_owned()]);
        for path in [directory.path(), &inner, &manifest] {
            assert_eq!(found(path), Ok(both.clone()));
        }
        write(&inner, "y.manifest", b"");
        assert!(found(&inner).unwrap_err().contains("several"));
        let rdb = write(&inner, "dump", b"REDIS0011");
        assert_eq!(found(&rdb), Ok(None));
        let log = write(&inner, "log", b"*1");
        assert_eq!(found(&log), Ok(Some(vec!["log".to_owned()])));
        let named = write(&inner, "old.aof", b"REDIS0011");
        assert_eq!(found(&named), Ok(Some(vec!["old.aof".to_owned()])));
        assert_eq!(found(&inner.join("none")), Ok(None));
    }
}
