//! The types of values in a file, and how to pass over a value whose type is none of ours.
//!
//! A value has no length of its own. So each type is read as far as it takes to find its end.

use crate::string::Source;
use core::fmt;

/// The system that wrote a file. Above type 21 the two give the numbers different meanings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    /// Redis, and Valkey up to 8.
    Redis,
    /// Valkey from 9 on.
    Valkey,
}

/// The type of a value that is no string.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A list.
    List,
    /// A set.
    Set,
    /// A sorted set.
    SortedSet,
    /// A hash.
    Hash,
    /// A stream.
    Stream,
    /// A value of a module.
    Module,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "zset",
            Self::Hash => "hash",
            Self::Stream => "stream",
            Self::Module => "module value",
        })
    }
}

/// How a value lies in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// One string holds all of it, behind this many bytes.
    Blob { before: u64 },
    /// A number of elements, each of this many strings, and bytes behind them.
    Elements { strings: u8, bytes: u64 },
    /// A number of elements, each a string and a score as text.
    TextScores,
    /// A number of nodes, each a kind and a string.
    Nodes,
    /// Bytes, and a number of fields, each an expiry, a name and a value.
    ExpiringFields { before: u64 },
    /// A stream, in the first to the third edition of its layout.
    Stream { edition: u8 },
    /// A value of a module, with a mark before each part.
    Module,
}

/// What the type of a value says. `None`: where it ends is not known.
pub(crate) fn layout(number: u8, dialect: Dialect) -> Option<(Kind, Layout)> {
    let elements = |strings, bytes| Layout::Elements { strings, bytes };
    let blob = Layout::Blob { before: 0 };
    Some(match (number, dialect) {
        (1 | 14, _) => (Kind::List, elements(1, 0)),
        (2, _) => (Kind::Set, elements(1, 0)),
        (3, _) => (Kind::SortedSet, Layout::TextScores),
        (4, _) => (Kind::Hash, elements(2, 0)),
        (5, _) => (Kind::SortedSet, elements(1, 8)),
        (7, _) => (Kind::Module, Layout::Module),
        (9 | 13 | 16, _) => (Kind::Hash, blob),
        (10, _) => (Kind::List, blob),
        (11 | 20, _) => (Kind::Set, blob),
        (12 | 17, _) => (Kind::SortedSet, blob),
        (15, _) => (Kind::Stream, Layout::Stream { edition: 1 }),
        (18, _) => (Kind::List, Layout::Nodes),
        (19, _) => (Kind::Stream, Layout::Stream { edition: 2 }),
        (21, _) => (Kind::Stream, Layout::Stream { edition: 3 }),
        (22, Dialect::Valkey) => (Kind::Hash, elements(2, 8)),
        (22, Dialect::Redis) => (Kind::Hash, Layout::ExpiringFields { before: 0 }),
        (23, Dialect::Redis) => (Kind::Hash, blob),
        (24, Dialect::Redis) => (Kind::Hash, Layout::ExpiringFields { before: 8 }),
        (25, Dialect::Redis) => (Kind::Hash, Layout::Blob { before: 8 }),
        _ => return None,
    })
}

/// A source whose bytes can be passed over.
pub(crate) trait Passing: Source {
    /// Passes over bytes.
    fn pass(&mut self, bytes: u64) -> Result<(), Self::Error>;
    /// Passes over a string, however long it is.
    fn pass_string(&mut self) -> Result<(), Self::Error>;
}

/// Passes over a value. Each step of a loop reads a byte at least, so a false number of elements
/// ends where the file does.
pub(crate) fn pass_over<S: Passing>(source: &mut S, layout: Layout) -> Result<(), S::Error> {
    match layout {
        Layout::Blob { before } => {
            source.pass(before)?;
            source.pass_string()
        }
        Layout::Elements { strings, bytes } => {
            for _ in 0..source.length()? {
                for _ in 0..strings {
                    source.pass_string()?;
                }
                source.pass(bytes)?;
            }
            Ok(())
        }
        Layout::TextScores => {
            for _ in 0..source.length()? {
                source.pass_string()?;
                match source.byte()? {
                    // Not a number, and the two infinities.
                    253..=255 => {}
                    length => source.pass(u64::from(length))?,
                }
            }
            Ok(())
        }
        Layout::Nodes => {
            for _ in 0..source.length()? {
                source.length()?;
                source.pass_string()?;
            }
            Ok(())
        }
        Layout::ExpiringFields { before } => {
            source.pass(before)?;
            for _ in 0..source.length()? {
                source.length()?;
                source.pass_string()?;
                source.pass_string()?;
            }
            Ok(())
        }
        Layout::Stream { edition } => pass_stream(source, edition),
        Layout::Module => {
            source.length()?;
            pass_module(source)
        }
    }
}

/// The parts of a module's value, up to the mark of its end.
pub(crate) fn pass_module<S: Passing>(source: &mut S) -> Result<(), S::Error> {
    loop {
        match source.length()? {
            0 => return Ok(()),
            1 | 2 => {
                source.length()?;
            }
            3 => source.pass(4)?,
            4 => source.pass(8)?,
            5 => source.pass_string()?,
            _ => return Err(source.nonsense()),
        }
    }
}

fn lengths<S: Passing>(source: &mut S, count: u32) -> Result<(), S::Error> {
    for _ in 0..count {
        source.length()?;
    }
    Ok(())
}

fn pass_stream<S: Passing>(source: &mut S, edition: u8) -> Result<(), S::Error> {
    const ID_BYTES: u64 = 16;
    const TIME_BYTES: u64 = 8;
    // Nodes: the id of the first entry, and the entries.
    for _ in 0..source.length()? {
        source.pass_string()?;
        source.pass_string()?;
    }
    // The number of entries and the last id; then the first id, the greatest of a deleted entry,
    // and how many were ever added.
    lengths(source, if edition >= 2 { 8 } else { 3 })?;
    // Groups: the name, the last id that was delivered, how many were read.
    for _ in 0..source.length()? {
        source.pass_string()?;
        lengths(source, if edition >= 2 { 3 } else { 2 })?;
        // Entries that nobody has acknowledged: the id, when it was delivered, how often.
        for _ in 0..source.length()? {
            source.pass(ID_BYTES + TIME_BYTES)?;
            source.length()?;
        }
        // Consumers: the name, when it was seen and active, and the ids of its entries.
        for _ in 0..source.length()? {
            source.pass_string()?;
            let times = if edition >= 3 { 2 } else { 1 };
            source.pass(times * TIME_BYTES)?;
            for _ in 0..source.length()? {
                source.pass(ID_BYTES)?;
            }
        }
    }
    Ok(())
}
