//! MONITOR: what all connections run, told to those that ask for it.
//!
//! 1. A connection that sent MONITOR has a [`Feed`]. It sends what the feed holds between its
//!    replies.
//! 2. Each command becomes a line in every feed, when it is started or put into a transaction.
//! 3. The commands of a script follow once its changes are made.
//!
//! - MONITOR-1: a feed holds at most [`FEED_BYTES_MAX`]. A connection that takes its lines more
//!   slowly is closed.
//!
//! Commands for administrators are not told, as in Redis. Shared by all cores of a port. Without
//! MONITOR, a command looks at one number that hardly ever changes.

use crate::clients::ClientEntry;
use crate::command_log::{HIDDEN, first_hidden};
use crate::database::DatabaseId;
use crate::parser::Command;
use crate::session::Session;
use crate::table::Spec;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of lines that wait for their connection.
const FEED_BYTES_MAX: usize = 4 << 20;

/// The lines for one connection.
pub(crate) struct Feed {
    lines: Mutex<Vec<u8>>,
    entry: Arc<ClientEntry>,
}

impl Feed {
    /// Whether lines wait.
    pub(crate) fn has_lines(&self) -> bool {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        !lines.is_empty()
    }

    /// Takes the lines that wait.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut lines)
    }

    fn push(&self, line: &[u8]) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() + line.len() > FEED_BYTES_MAX {
            *lines = Vec::new();
            drop(lines);
            self.entry.kill();
            return;
        }
        lines.extend_from_slice(line);
        drop(lines);
        self.entry.wake();
    }
}

/// The feeds of a port.
#[derive(Default)]
pub(crate) struct Monitors {
    /// How many there are. Relaxed: a command that is started beside MONITOR may be told or not.
    count: AtomicUsize,
    feeds: Mutex<Vec<Arc<Feed>>>,
}

impl Monitors {
    /// A feed for this connection.
    pub(crate) fn enter(&self, entry: Arc<ClientEntry>) -> Arc<Feed> {
        let feed = Arc::new(Feed {
            lines: Mutex::default(),
            entry,
        });
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.push(Arc::clone(&feed));
        self.count.store(feeds.len(), Ordering::Relaxed);
        feed
    }

    /// The feed of this connection ends.
    pub(crate) fn leave(&self, id: u64) {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.retain(|feed| feed.entry.id != id);
        self.count.store(feeds.len(), Ordering::Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Tells a command.
    pub(crate) fn tell(
        &self,
        (seconds, micros): (u64, u32),
        session: &Session,
        spec: &Spec,
        command: &Command,
    ) {
        if spec.has_flag("admin") {
            return;
        }
        let (database, address) = (session.database().number(), &session.entry().address);
        let mut line = format!("+{seconds}.{micros:06} [{database} {address}]");
        push_parts(&mut line, command, first_hidden(spec, command));
        self.push(&line);
    }

    /// Tells the commands of scripts.
    pub(crate) fn tell_scripted(&self, (seconds, micros): (u64, u32), told: &Told) {
        for (database, command) in &told.commands {
            let number = database.number();
            let mut line = format!("+{seconds}.{micros:06} [{number} lua]");
            push_parts(&mut line, command, None);
            self.push(&line);
        }
    }

    fn push(&self, line: &str) {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        for feed in &*feeds {
            feed.push(line.as_bytes());
        }
    }
}

/// Ends a line with the parts of a command: those before `hidden`, if some are not shown.
fn push_parts(line: &mut String, command: &Command, hidden: Option<usize>) {
    let hidden = hidden.unwrap_or(usize::MAX);
    for (at, part) in command.from(0).enumerate() {
        let part = if at < hidden { part } else { HIDDEN };
        // Writing to a string cannot fail.
        let _ = write!(line, " \"{}\"", Quoted(part));
    }
    line.push_str("\r\n");
}

/// The commands that scripts of one transaction ran, in their order.
///
/// Those that no feed can hold are left out: their connections are closed at the ones before.
#[derive(Default)]
pub(crate) struct Told {
    commands: Vec<(DatabaseId, Command)>,
    bytes: usize,
}

impl Told {
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// A command was run.
    pub(crate) fn add(&mut self, database: DatabaseId, command: Command) {
        if self.bytes <= FEED_BYTES_MAX {
            self.bytes += command.bytes_held();
            self.commands.push((database, command));
        }
    }

    /// Those of another script were run after these.
    pub(crate) fn append(&mut self, later: Self) {
        for (database, command) in later.commands {
            self.add(database, command);
        }
    }
}

/// Bytes as Redis shows them between quotes.
struct Quoted<'a>(&'a [u8]);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0 {
            match byte {
                b'\\' | b'"' => write!(f, "\\{}", char::from(*byte))?,
                b'\n' => f.write_str("\\n")?,
                b'\r' => f.write_str("\\r")?,
                b'\t' => f.write_str("\\t")?,
                7 => f.write_str("\\a")?,
                8 => f.write_str("\\b")?,
                b' '..=b'~' => f.write_char(char::from(*byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_quoted_as_in_redis() {
        let quoted = Quoted(b"a\"\\\r\n\t\x07\x08\0\xff").to_string();
        assert_eq!(quoted, r#"a\"\\\r\n\t\a\b\x00\xff"#);
    }
}
