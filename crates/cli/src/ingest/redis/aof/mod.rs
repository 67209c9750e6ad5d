//! Append-only files of a Redis or Valkey, as an RDB file of the strings that they come to.
//!
//! 1. The files are found: those of a manifest, or one.
//! 2. Their commands are done in memory, on strings. Of keys of other types the type is kept.
//! 3. The strings are written into a temporary RDB file, which goes the way of others.
//!
//! - APPENDED-1: a command that stands in the file took effect when it was written. So conditions are
//!   not judged again, and a key that a command of strings was done on is a string.
//! - APPENDED-2: the end of the last file may be cut off in the middle of a command, or between MULTI
//!   and EXEC. The incomplete part is left out and told, as Redis does (`aof-load-truncated`). Any
//!   other damage refuses all.
//!
//! Memory holds all strings that are there at a time.

mod commands;
#[cfg(test)]
mod tests;

use crate::ingest::redis::name_of;
use bytes::Bytes;
use pluvio_console::failure::Failure;
use pluvio_rdb::aof::{Command, Log, Manifest};
use pluvio_rdb::reader::{Item, Object, Reader, Text, Value as Saved, Why};
use pluvio_rdb::writer::Writer;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek};
use std::path::{Path, PathBuf};

/// What append-only files come to.
pub struct Loaded {
    /// An RDB file of the strings.
    pub file: File,
    /// Things that are no strings: their types, and how they are called.
    pub others: Vec<(String, String)>,
    /// Keys whose values are too long.
    pub too_long: Vec<String>,
    /// The part that was left out at the end of the last file.
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
    /// Reads a file to its end. Gives the part that was left out there, if it is the last one.
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
