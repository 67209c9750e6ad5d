//! What was refused: ACL LOG, and the traces for audits.
//!
//! - DENIALS-1: nothing here holds a password. A name that is no user's is not kept, because it may
//!   be a password in the wrong place.
//! - DENIALS-2: at most [`ENTRIES_MAX`] entries are kept. At most [`TRACES_MAX`] failures are
//!   traced a second, as many logins, and as many connections that protected mode refused.

use crate::clients::ClientEntry;
use core::time::Duration;
use pluvio_env::{Address, Moment};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries that are kept, as in Redis.
pub(crate) const ENTRIES_MAX: usize = 128;
/// Entries of one kind within this time are one.
const TOGETHER: Duration = Duration::from_secs(60);
/// Failures a second that are traced, and logins.
const TRACES_MAX: u64 = 20;
/// In place of a name that is no user's.
const UNKNOWN: &[u8] = b"(unknown)";
/// Longest key that is kept.
const OBJECT_MAX: usize = 128;

/// What was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    Command,
    Key,
    Database,
    Login,
}

impl Reason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Key => "key",
            Self::Database => "database",
            Self::Login => "auth",
        }
    }
}

/// Where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Context {
    Alone,
    Transaction,
    Script,
}

impl Context {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Alone => "toplevel",
            Self::Transaction => "multi",
            Self::Script => "lua",
        }
    }
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) count: u64,
    pub(crate) reason: Reason,
    pub(crate) context: Context,
    /// The command, the key or the number of the database.
    pub(crate) object: Vec<u8>,
    pub(crate) user: Vec<u8>,
    pub(crate) client: String,
    /// When it was changed last.
    pub(crate) changed: Moment,
    /// Milliseconds since 1970.
    pub(crate) created_ms: u64,
    pub(crate) changed_ms: u64,
}

#[derive(Default)]
struct Inner {
    next: u64,
    /// Newest first.
    entries: VecDeque<Entry>,
    refusals: Pace,
    logins: Pace,
    strangers: Pace,
}

/// Bounds traces of one kind.
#[derive(Default)]
struct Pace {
    /// The second of the last traces, and how many there were.
    second: u64,
    traced: u64,
    left_out: u64,
}

impl Pace {
    /// Whether one more may be traced, and how many were left out since the last one.
    fn may_trace(&mut self, second: u64) -> Option<u64> {
        if self.second != second {
            self.second = second;
            self.traced = 0;
        }
        if self.traced >= TRACES_MAX {
            self.left_out += 1;
            return None;
        }
        self.traced += 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Denials {
    inner: Mutex<Inner>,
    logins: AtomicU64,
    commands: AtomicU64,
    keys: AtomicU64,
    databases: AtomicU64,
}

/// What is known of a refusal.
pub(crate) struct Denial<'d> {
    pub(crate) reason: Reason,
    pub(crate) context: Context,
    pub(crate) object: &'d [u8],
    /// `None`: there is no such user.
    pub(crate) user: Option<&'d [u8]>,
    pub(crate) client: &'d ClientEntry,
    pub(crate) now: Moment,
    /// Seconds since 1970, and microseconds.
    pub(crate) wall: (u64, u32),
}

impl Denials {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logins, commands, keys and databases that were refused.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let counts = [&self.logins, &self.commands, &self.keys, &self.databases];
        counts.map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn push(&self, denial: &Denial<'_>) {
        let count = match denial.reason {
            Reason::Login => &self.logins,
            Reason::Command => &self.commands,
            Reason::Key => &self.keys,
            Reason::Database => &self.databases,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let user = denial.user.unwrap_or(UNKNOWN);
        let object = &denial.object[..denial.object.len().min(OBJECT_MAX)];
        let ms = denial.wall.0 * 1000 + u64::from(denial.wall.1) / 1000;
        let mut inner = self.inner();
        let is_same = |entry: &Entry| {
            entry.reason == denial.reason
                && entry.context == denial.context
                && entry.object == object
                && entry.user == user
                && denial.now.since(entry.changed) <= TOGETHER
        };
        let same = inner.entries.iter().position(is_same);
        let before = same.and_then(|at| inner.entries.remove(at));
        let entry = match before {
            Some(before) => Entry {
                count: before.count + 1,
                client: denial.client.describe(denial.now),
                changed: denial.now,
                changed_ms: ms,
                ..before
            },
            None => {
                let id = inner.next;
                inner.next += 1;
                Entry {
                    id,
                    count: 1,
                    reason: denial.reason,
                    context: denial.context,
                    object: object.to_vec(),
                    user: user.to_vec(),
                    client: denial.client.describe(denial.now),
                    changed: denial.now,
                    created_ms: ms,
                    changed_ms: ms,
                }
            }
        };
        inner.entries.push_front(entry);
        inner.entries.truncate(ENTRIES_MAX);
        let left_out = inner.refusals.may_trace(denial.wall.0);
        drop(inner);
        if let Some(left_out) = left_out {
            let user = String::from_utf8_lossy(user);
            let (reason, peer) = (denial.reason.word(), &denial.client.address);
            // A key belongs to the users.
            let object = match denial.reason {
                Reason::Key => "a key".into(),
                Reason::Command | Reason::Database | Reason::Login => {
                    String::from_utf8_lossy(object)
                }
            };
            tracing::info!(target: "audit", %user, %peer, reason, %object, left_out, "refused");
        }
    }

    /// Traces a login, unless there were many in this second.
    pub(crate) fn trace_login(&self, user: &[u8], client: &ClientEntry, second: u64) {
        let left_out = self.inner().logins.may_trace(second);
        if let Some(left_out) = left_out {
            let (user, peer) = (String::from_utf8_lossy(user), &client.address);
            tracing::info!(target: "audit", %user, %peer, left_out, "logged in");
        }
    }

    /// Traces a connection that protected mode has refused, unless there were many in this second.
    pub(crate) fn trace_stranger(&self, peer: &Address, second: u64) {
        let left_out = self.inner().strangers.may_trace(second);
        if let Some(left_out) = left_out {
            tracing::info!(target: "audit", %peer, left_out, "refused: protected mode");
        }
    }

    /// The newest entries.
    pub(crate) fn newest(&self, count: usize) -> Vec<Entry> {
        self.inner().entries.iter().take(count).cloned().collect()
    }

    pub(crate) fn clear(&self) {
        self.inner().entries.clear();
    }
}

/// What an audit is told that was done.
pub(crate) fn trace_done(what: &'static str, user: &[u8], by: &[u8], client: &ClientEntry) {
    let (user, by) = (String::from_utf8_lossy(user), String::from_utf8_lossy(by));
    tracing::info!(target: "audit", %user, %by, peer = %client.address, "{what}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Clients;

    // shows: DENIALS-1, DENIALS-2
    #[test]
    fn refusals_of_one_kind_are_one_entry_and_names_of_nobody_are_not_kept() {
        let clients = Clients::default();
        let address = || Address::from("127.0.0.1:1");
        let now = Moment::default();
        let client = clients.enter(address(), address(), now);
        let denials = Denials::default();
        let push = |object: &[u8], user, now| {
            denials.push(&Denial {
                reason: Reason::Key,
                context: Context::Alone,
                object,
                user,
                client: &client,
                now,
                wall: (1, 0),
            });
        };
        push(b"a", Some(b"u"), now);
        push(b"b", None, now);
        push(b"a", Some(b"u"), now);
        let [first, second] = &denials.newest(9)[..] else {
            panic!("two entries");
        };
        assert_eq!((first.count, first.id, &first.user[..]), (2, 0, &b"u"[..]));
        assert_eq!(second.user, UNKNOWN);
        push(b"a", Some(b"u"), now + TOGETHER + Duration::from_secs(1));
        assert_eq!(denials.newest(1)[0].count, 1);
        for n in 0..2 * ENTRIES_MAX {
            push(n.to_string().as_bytes(), Some(b"u"), now);
        }
        assert_eq!(denials.newest(usize::MAX).len(), ENTRIES_MAX);
        assert_eq!(denials.counts()[2], 4 + 2 * ENTRIES_MAX as u64);
        denials.clear();
        assert!(denials.newest(1).is_empty());
    }

    #[test]
    fn traces_are_bounded_a_second() {
        let mut pace = Pace::default();
        let traced = (0..100).filter(|_| pace.may_trace(5).is_some());
        assert_eq!(traced.count(), 20);
        assert_eq!(pace.may_trace(6), Some(80), "the rest is counted");
    }
}
