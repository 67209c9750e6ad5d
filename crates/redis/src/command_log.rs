//! The logs of commands that were slow, or large, or had large replies: SLOWLOG and COMMANDLOG.
//!
//! - CMDLOG-1: a log keeps its newest entries, at most [`ENTRIES_MAX`]; an entry keeps
//!   [`PARTS_MAX`] parts of a command, and [`PART_BYTES_MAX`] bytes of each.
//!
//! A command is slow by the time from its start to its outcome. Of a write that was slow because
//! its replicas were, the name alone is known: its arguments are let go of while it waits. So it is
//! with commands of a pipeline that were timed together.
//!
//! Shared by all cores of a server. A lock is taken only for commands that belong into a log.

use crate::parameters::{Number, Parameters};
use crate::parser::Command;
use crate::table::{SPECS, Spec};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries of a log, whatever its length is set to: some 40 MB at most.
const ENTRIES_MAX: usize = 10_000;
/// Parts of a command that are kept, as in Redis.
const PARTS_MAX: usize = 32;
/// Bytes of a part that are kept, as in Redis.
const PART_BYTES_MAX: usize = 128;

/// Which log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Commands that took long.
    Slow,
    /// Commands with many bytes.
    Request,
    /// Commands whose replies have many bytes.
    Reply,
}

impl Kind {
    const ALL: [(Self, Number, Number); 3] = [
        (Self::Slow, Number::SlowMicros, Number::SlowLength),
        (Self::Request, Number::RequestBytes, Number::RequestLength),
        (Self::Reply, Number::ReplyBytes, Number::ReplyLength),
    ];
}

/// A command in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Counts up, for ever.
    pub(crate) id: u64,
    /// Seconds since 1970.
    pub(crate) at: u64,
    /// Microseconds or bytes.
    pub(crate) amount: u64,
    pub(crate) parts: Vec<Vec<u8>>,
    pub(crate) address: String,
    pub(crate) name: String,
}

#[derive(Debug, Default)]
struct Log {
    next: u64,
    /// Newest first.
    entries: VecDeque<Entry>,
}

/// The logs of a server.
#[derive(Debug, Default)]
pub(crate) struct CommandLogs([Mutex<Log>; 3]);

impl CommandLogs {
    fn log(&self, kind: Kind) -> MutexGuard<'_, Log> {
        let log = self.0[kind as usize].lock();
        log.unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry; its id is chosen here.
    pub(crate) fn push(&self, parameters: &Parameters, kind: Kind, entry: Entry) {
        let mut log = self.log(kind);
        let id = log.next;
        log.next += 1;
        log.entries.push_front(Entry { id, ..entry });
        log.entries.truncate(length_max(parameters, kind));
    }

    /// Drops what is beyond the lengths.
    pub(crate) fn trim(&self, parameters: &Parameters) {
        for (kind, ..) in Kind::ALL {
            let length = length_max(parameters, kind);
            self.log(kind).entries.truncate(length);
        }
    }

    pub(crate) fn len(&self, kind: Kind) -> usize {
        self.log(kind).entries.len()
    }

    pub(crate) fn clear(&self, kind: Kind) {
        self.log(kind).entries.clear();
    }

    /// The newest entries.
    pub(crate) fn newest(&self, kind: Kind, count: usize) -> Vec<Entry> {
        self.log(kind).entries.iter().take(count).cloned().collect()
    }
}

fn length_max(parameters: &Parameters, kind: Kind) -> usize {
    let (.., length) = Kind::ALL[kind as usize];
    let length = usize::try_from(parameters.number(length)).unwrap_or(0);
    length.min(ENTRIES_MAX)
}

/// Whether a command of this time belongs into the log of slow ones.
pub(crate) fn is_slow(parameters: &Parameters, took: Duration) -> bool {
    let limit = parameters.number(Number::SlowMicros);
    u64::try_from(limit).is_ok_and(|limit| took >= Duration::from_micros(limit))
}

/// Whether a command, or a reply, of this size belongs into a log.
pub(crate) fn is_large(parameters: &Parameters, limit: Number, bytes: usize) -> bool {
    let limit = parameters.number(limit);
    usize::try_from(limit).is_ok_and(|limit| bytes > limit)
}

/// The parts of a command that are kept (CMDLOG-1). Passwords are left out.
pub(crate) fn kept_parts(spec: &Spec, command: &Command) -> Vec<Vec<u8>> {
    if let Some(first) = first_hidden(spec, command) {
        let parts = command.from(0).take(PARTS_MAX).enumerate();
        let shown = parts.map(|(at, part)| if at < first { part } else { HIDDEN });
        return shown.map(<[u8]>::to_vec).collect();
    }
    let is_long = command.len() > PARTS_MAX;
    let whole = if is_long { PARTS_MAX - 1 } else { PARTS_MAX };
    let mut parts: Vec<_> = command.from(0).take(whole).map(kept_part).collect();
    if is_long {
        let more = command.len() - whole;
        parts.push(format!("... ({more} more arguments)").into_bytes());
    }
    parts
}

fn kept_part(part: &[u8]) -> Vec<u8> {
    let Some((start, rest)) = part.split_at_checked(PART_BYTES_MAX) else {
        return part.to_vec();
    };
    if rest.is_empty() {
        return part.to_vec();
    }
    let more = format!("... ({} more bytes)", rest.len());
    [start, more.as_bytes()].concat()
}

/// In place of what is not shown, as in Redis.
pub(crate) const HIDDEN: &[u8] = b"(redacted)";

/// From where on the parts of a command are not shown, because passwords may be among them.
pub(crate) fn first_hidden(spec: &Spec, command: &Command) -> Option<usize> {
    let is_password = |name: &[u8]| name.eq_ignore_ascii_case(b"requirepass");
    match spec.name {
        "auth" | "hello" => Some(1),
        "acl|setuser" => Some(2),
        "config|set" if command.from(2).any(is_password) => Some(2),
        _ => None,
    }
}

/// The parts that stand for commands of a pipeline that were slow together.
pub(crate) fn parts_of_several(spec: u16, count: u64) -> Vec<Vec<u8>> {
    let name = SPECS.get(usize::from(spec)).map_or("", |spec| spec.name);
    let rest = format!("... ({count} commands of a pipeline; the arguments are not kept)");
    vec![name.to_uppercase().into_bytes(), rest.into_bytes()]
}

/// The parts of a write whose arguments were let go of while it waited for its replicas.
pub(crate) fn parts_of_held(spec: u16) -> Vec<Vec<u8>> {
    let name = SPECS.get(usize::from(spec)).map_or("", |spec| spec.name);
    let rest = "... (waited for replicas; the arguments are not kept)";
    vec![name.to_uppercase().into_bytes(), rest.as_bytes().to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            id: 0,
            at: 1,
            amount: 2,
            parts: Vec::new(),
            address: String::new(),
            name: String::new(),
        }
    }

    // shows: CMDLOG-1
    #[test]
    fn a_log_keeps_its_newest_entries_and_counts_all() {
        let parameters = Parameters::default();
        let logs = &parameters.logs;
        for _ in 0..200 {
            logs.push(&parameters, Kind::Slow, entry());
        }
        assert_eq!((logs.len(Kind::Slow), logs.len(Kind::Reply)), (128, 0));
        assert_eq!(logs.newest(Kind::Slow, 1)[0].id, 199);
        parameters.set_number(Number::SlowLength, 5);
        assert_eq!(logs.len(Kind::Slow), 5);
        logs.clear(Kind::Slow);
        logs.push(&parameters, Kind::Slow, entry());
        assert_eq!(logs.newest(Kind::Slow, 9)[0].id, 200, "ids go on");
        parameters.set_number(Number::SlowLength, i64::MAX);
        for _ in 0..ENTRIES_MAX + 5 {
            logs.push(&parameters, Kind::Slow, entry());
        }
        assert_eq!(logs.len(Kind::Slow), ENTRIES_MAX);
    }

    #[test]
    fn long_commands_are_cut_as_in_redis() {
        let spec = |name| {
            let found = crate::table::find(name).unwrap();
            &SPECS[usize::from(found)]
        };
        let long = "x".repeat(200);
        let mut words = vec!["mget", &long];
        words.resize(40, "k");
        let parts = kept_parts(spec(b"mget"), &Command::from_parts(&words));
        assert_eq!(parts.len(), PARTS_MAX);
        assert_eq!(parts[31], b"... (9 more arguments)");
        assert!(parts[1].ends_with(b"xx... (72 more bytes)"));
        let auth = Command::from_parts(&["auth", "secret"]);
        assert_eq!(kept_parts(spec(b"auth"), &auth)[1], b"(redacted)");
        let set = Command::from_parts(&["acl", "setuser", "u", ">secret"]);
        let parts = kept_parts(spec(b"acl|setuser"), &set);
        let hidden = b"(redacted)".as_slice();
        assert_eq!(parts, [b"acl", b"setuser".as_slice(), hidden, hidden]);
        let config = Command::from_parts(&["config", "set", "RequirePass", "secret"]);
        assert_eq!(kept_parts(spec(b"config|set"), &config)[3], hidden);
        let config = Command::from_parts(&["config", "set", "timeout", "3"]);
        assert_eq!(kept_parts(spec(b"config|set"), &config)[3], b"3");
    }
}
