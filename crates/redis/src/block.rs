//! The transaction that a connection is about to make: the commands between MULTI and EXEC, and the
//! keys that it watches.
//!
//! 1. MULTI opens the block. Commands are put into it instead of being run.
//! 2. A command that cannot be put into it spoils it: EXEC then does nothing.
//! 3. EXEC takes it, and DISCARD throws it away. Both let go of the watched keys.
//!
//! Its commands and watched keys count in what the connection holds (CLIMEM-1). The commands have
//! the limit of one command together.
//!
//! Shared by a connection and its run under way, on one core: the lock is never waited for.

use crate::commands::{ClosedBlock, Deferred};
use crate::database::DatabaseId;
use crate::failure::{
    DISCARD_WITHOUT_MULTI, EXEC_ABORT, EXEC_WITHOUT_MULTI, NESTED_MULTI, TOO_MANY_WATCHED,
};
use crate::parser::Command;
use crate::reply::{Failure, Protocol};
use crate::users::caller::Caller;
use crate::users::rules::User;
use bytes::Bytes;
use pluvio_client::{TRANSACTION_STEPS_MAX, TransactionStep};
use pluvio_units::{ObjectVersion, TableId};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A key that must be as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Watched {
    pub(crate) database: DatabaseId,
    /// In memory of its own: the command that named it may be large.
    pub(crate) key: Bytes,
    /// 0: there was no object.
    pub(crate) version: ObjectVersion,
    /// The table of that version; 0 where there was no object.
    pub(crate) table: TableId,
}

impl Watched {
    fn place(&self) -> (DatabaseId, &[u8]) {
        (self.database, &self.key)
    }

    /// The step that compares its version.
    pub(crate) fn step(&self) -> (DatabaseId, TransactionStep<'_>) {
        let step = TransactionStep::version_is(self.table, &self.key, self.version);
        (self.database, step)
    }
}

/// A command that waits for EXEC, with its row of the table.
pub(crate) struct Queued {
    pub(crate) spec: u16,
    pub(crate) command: Command,
}

/// What a login changes of a connection.
pub(crate) struct Login {
    pub(crate) user: Arc<User>,
    /// By HELLO.
    pub(crate) protocol: Option<Protocol>,
}

/// What a run leaves for its connection.
pub(crate) struct News {
    /// The database that EXEC has chosen.
    pub(crate) database: Option<DatabaseId>,
    /// The rest of EXEC.
    pub(crate) deferred: Vec<Deferred>,
    pub(crate) login: Option<Login>,
    /// Whether the connection is to end.
    pub(crate) ends: bool,
}

/// What EXEC has to do.
pub(crate) struct Taken {
    pub(crate) queued: Vec<Queued>,
    pub(crate) watched: Vec<Watched>,
}

#[derive(Default)]
struct Inner {
    /// `None`: there was no MULTI.
    queued: Option<Vec<Queued>>,
    /// The database of the last SELECT among them.
    selected: Option<DatabaseId>,
    is_spoiled: bool,
    /// Bytes of the commands.
    bytes: usize,
    /// In the order of their databases and keys.
    watched: Vec<Watched>,
    watched_bytes: usize,
    /// The work of EXEC, until its run begins.
    closed: Option<ClosedBlock>,
    /// Commands that the last EXEC has left to the connection, until they are done.
    deferred: Vec<Deferred>,
    /// The database that the last EXEC has chosen, until the connection has it.
    chosen: Option<DatabaseId>,
    /// A login that was done, until the connection has it.
    login: Option<Login>,
    /// The connection is to end behind the next reply.
    ends: bool,
    caller: Option<Arc<Caller>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Block(Mutex<Inner>);

impl Block {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// MULTI.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        let mut inner = self.inner();
        if inner.queued.is_some() {
            return Err(NESTED_MULTI);
        }
        inner.queued = Some(Vec::new());
        Ok(())
    }

    /// Whether commands are put into it.
    pub(crate) fn is_open(&self) -> bool {
        self.inner().queued.is_some()
    }

    /// How many commands wait for EXEC, if there was MULTI, and how many keys are watched.
    pub(crate) fn counts(&self) -> (Option<usize>, usize) {
        let inner = self.inner();
        (inner.queued.as_ref().map(Vec::len), inner.watched.len())
    }

    /// Whether EXEC would run a command of such a row.
    pub(crate) fn has(&self, is_such: impl Fn(u16) -> bool) -> bool {
        let inner = self.inner();
        let mut queued = inner.queued.iter().flatten();
        queued.any(|queued| is_such(queued.spec))
    }

    /// Bytes of its commands and of the watched keys.
    pub(crate) fn bytes(&self) -> usize {
        let inner = self.inner();
        inner.bytes + inner.watched_bytes
    }

    /// The database that the last SELECT in it chooses.
    pub(crate) fn selected(&self) -> Option<DatabaseId> {
        self.inner().selected
    }

    /// Puts a command into it, which may be a SELECT of a database. It may hold `bytes_max` bytes.
    ///
    /// # Errors
    /// It has too many; it is spoiled then.
    pub(crate) fn queue(
        &self,
        queued: Queued,
        selected: Option<DatabaseId>,
        bytes_max: usize,
    ) -> Result<(), Failure> {
        let mut inner = self.inner();
        let bytes = inner.bytes + queued.command.bytes_held();
        let Some(before) = &mut inner.queued else {
            return Ok(());
        };
        if before.len() >= TRANSACTION_STEPS_MAX || bytes > bytes_max {
            inner.is_spoiled = true;
            return Err(Failure::new(format!(
                "ERR a transaction has at most {TRANSACTION_STEPS_MAX} commands of {bytes_max} \
                 bytes together"
            )));
        }
        before.push(queued);
        inner.selected = selected.or(inner.selected);
        inner.bytes = bytes;
        Ok(())
    }

    /// EXEC is to do nothing.
    pub(crate) fn spoil(&self) {
        let mut inner = self.inner();
        inner.is_spoiled |= inner.queued.is_some();
    }

    /// EXEC, its first part: closes the block.
    ///
    /// # Errors
    /// There is nothing to be executed.
    pub(crate) fn close(&self) -> Result<Taken, Failure> {
        let mut inner = self.inner();
        let Some(queued) = inner.queued.take() else {
            return Err(EXEC_WITHOUT_MULTI);
        };
        let watched = core::mem::take(&mut inner.watched);
        let is_spoiled = core::mem::take(&mut inner.is_spoiled);
        inner.selected = None;
        inner.bytes = 0;
        inner.watched_bytes = 0;
        if is_spoiled {
            return Err(EXEC_ABORT);
        }
        Ok(Taken { queued, watched })
    }

    /// Keeps the work of EXEC until its run begins.
    pub(crate) fn set_closed(&self, closed: ClosedBlock) {
        self.inner().closed = Some(closed);
    }

    /// The work of EXEC, once.
    pub(crate) fn take_closed(&self) -> Option<ClosedBlock> {
        self.inner().closed.take()
    }

    /// EXEC was done, but for these.
    pub(crate) fn defer(&self, deferred: Vec<Deferred>) {
        self.inner().deferred = deferred;
    }

    /// EXEC was done, and this is the database from now on.
    pub(crate) fn choose(&self, database: DatabaseId) {
        self.inner().chosen = Some(database);
    }

    /// News of a run for the connection, once.
    pub(crate) fn take_news(&self) -> News {
        let mut inner = self.inner();
        News {
            database: inner.chosen.take(),
            deferred: core::mem::take(&mut inner.deferred),
            login: inner.login.take(),
            ends: inner.ends,
        }
    }

    /// A password was right.
    pub(crate) fn log_in(&self, login: Login) {
        self.inner().login = Some(login);
    }

    /// The connection is to end.
    pub(crate) fn end(&self) {
        self.inner().ends = true;
    }

    /// Sets the caller of commands from now on, if there is something that it may not do.
    pub(crate) fn set_caller(&self, caller: Option<Arc<Caller>>) {
        self.inner().caller = caller;
    }

    /// The caller of commands, if there is something that it may not do.
    pub(crate) fn caller(&self) -> Option<Arc<Caller>> {
        self.inner().caller.clone()
    }

    /// DISCARD.
    ///
    /// # Errors
    /// There was no MULTI.
    pub(crate) fn discard(&self) -> Result<(), Failure> {
        let mut inner = self.inner();
        if inner.queued.is_none() {
            return Err(DISCARD_WITHOUT_MULTI);
        }
        let caller = inner.caller.take();
        *inner = Inner {
            caller,
            ..Inner::default()
        };
        Ok(())
    }

    /// UNWATCH.
    pub(crate) fn unwatch(&self) {
        let mut inner = self.inner();
        inner.watched = Vec::new();
        inner.watched_bytes = 0;
    }

    /// RESET.
    pub(crate) fn reset(&self) {
        *self.inner() = Inner::default();
    }

    /// Adds those of these keys to `new` that are not watched yet. It looks at none behind the
    /// first one that is too much.
    ///
    /// # Errors
    /// There would be too many.
    pub(crate) fn unwatched<'k>(
        &self,
        database: DatabaseId,
        keys: impl Iterator<Item = &'k [u8]>,
        new: &mut BTreeSet<&'k [u8]>,
    ) -> Result<(), Failure> {
        let inner = self.inner();
        for key in keys {
            let place = (database, key);
            let watched = &inner.watched;
            if watched
                .binary_search_by(|one| one.place().cmp(&place))
                .is_ok()
            {
                continue;
            }
            new.insert(key);
            if watched.len() + new.len() > TRANSACTION_STEPS_MAX {
                return Err(TOO_MANY_WATCHED);
            }
        }
        Ok(())
    }

    /// WATCH, of keys that are not watched yet.
    pub(crate) fn watch(&self, new: impl Iterator<Item = Watched>) {
        let mut inner = self.inner();
        let before = inner.watched.len();
        inner.watched.extend(new);
        inner.watched_bytes += inner.watched[before..]
            .iter()
            .map(|watched| watched.key.len() + size_of::<Watched>())
            .sum::<usize>();
        // It finds that most of them are in order.
        inner.watched.sort_by(|a, b| a.place().cmp(&b.place()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued() -> Queued {
        Queued {
            spec: 0,
            command: Command::from_parts(&["set", "k", "v"]),
        }
    }

    fn watched(key: &str) -> Watched {
        Watched {
            database: DatabaseId::default(),
            key: Bytes::copy_from_slice(key.as_bytes()),
            version: ObjectVersion(3),
            table: TableId(1),
        }
    }

    #[test]
    fn a_block_is_executed_once_and_lets_go_of_its_keys() {
        let block = Block::default();
        let refused = |block: &Block| block.close().map(|_| ());
        assert_eq!(refused(&block), Err(EXEC_WITHOUT_MULTI));
        assert_eq!(block.discard(), Err(DISCARD_WITHOUT_MULTI));
        let watch = || block.watch([watched("k")].into_iter());
        let unwatched = || {
            let mut new = BTreeSet::new();
            let found = block.unwatched(DatabaseId::default(), [&b"k"[..]].into_iter(), &mut new);
            found.map(|()| new.len())
        };
        watch();
        assert_eq!(unwatched(), Ok(0), "the first version counts");
        block.begin().unwrap();
        assert_eq!(block.begin(), Err(NESTED_MULTI));
        block.queue(queued(), None, 1000).unwrap();
        let taken = block.close().unwrap();
        assert_eq!((taken.queued.len(), taken.watched.len()), (1, 1));
        assert!(!block.is_open() && block.bytes() == 0);
        watch();
        block.begin().unwrap();
        block.discard().unwrap();
        assert_eq!(unwatched(), Ok(1), "DISCARD lets go of them, too");
        assert_eq!(block.bytes(), 0);
    }

    // shows: CLIMEM-1
    #[test]
    fn watched_keys_count_until_they_are_let_go_of() {
        let block = Block::default();
        let exec = |block: &Block| {
            block.begin().unwrap();
            block.close().map(drop).unwrap();
        };
        let ends: [fn(&Block); 3] = [Block::unwatch, Block::reset, exec];
        for end in ends {
            let key = "k".repeat(1000);
            block.watch([watched(&key), watched("a")].into_iter());
            block.watch([watched("other")].into_iter());
            let bytes = block.bytes();
            assert!(bytes >= key.len() + 3 * size_of::<Watched>(), "{bytes}");
            end(&block);
            assert_eq!(block.bytes(), 0);
        }
    }

    #[test]
    fn keys_are_looked_at_only_until_they_are_too_many() {
        let block = Block::default();
        let keys: Vec<_> = (0..100_000).map(|n: u32| n.to_string()).collect();
        // Not in their order.
        for part in keys[..4000].rchunks(7) {
            block.watch(part.iter().map(|key| watched(key)));
        }
        let mut looked_at = 0;
        let all = keys.iter().inspect(|_| looked_at += 1);
        let mut new = BTreeSet::new();
        let database = DatabaseId::default();
        let found = block.unwatched(database, all.map(String::as_bytes), &mut new);
        assert_eq!(found, Err(TOO_MANY_WATCHED));
        assert_eq!(looked_at, TRANSACTION_STEPS_MAX + 1);
        let mut new = BTreeSet::new();
        let twice = keys[..4096].iter().chain(&keys[3990..4096]);
        let found = block.unwatched(database, twice.map(String::as_bytes), &mut new);
        assert_eq!((found, new.len()), (Ok(()), 96));
    }

    #[test]
    fn a_block_that_is_spoiled_or_too_large_is_not_executed() {
        let block = Block::default();
        block.spoil();
        block.begin().unwrap();
        assert!(block.queue(queued(), None, 10).is_err());
        let refused = || block.close().map(|_| ());
        assert_eq!(refused(), Err(EXEC_ABORT));
        block.begin().unwrap();
        block.spoil();
        assert_eq!(refused(), Err(EXEC_ABORT));
        block.begin().unwrap();
        assert_eq!(refused(), Ok(()), "the next one is as new");
    }
}
