//! The transaction that a connection is about to make: the commands between MULTI and EXEC, and the
//! keys that it watches.
//!
//! 1. MULTI opens the block. Commands are put into it instead of being run.
//! 2. A command that cannot be put into it spoils it: EXEC then does nothing.
//! 3. EXEC takes it, and DISCARD throws it away. Both let go of the watched keys.
//!
//! Its commands and watched keys count in what the connection holds (CLIMEM-1), until the run of
//! EXEC has ended. Its commands have the limit of one command.
//!
//! Shared by a connection and its run under way, on one core: the lock is never waited for.

use crate::commands::Prepared;
use crate::database::DatabaseId;
use crate::failure::{
    DISCARD_WITHOUT_MULTI, EXEC_ABORT, EXEC_WITHOUT_MULTI, NESTED_MULTI, TOO_MANY_WATCHED,
};
use crate::parser::Command;
use crate::reply::{Failure, Protocol};
use crate::users::caller::Caller;
use crate::users::rules::User;
use bytes::Bytes;
use pluvio_client::TRANSACTION_STEPS_MAX;
use pluvio_units::{ObjectVersion, TableId};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A key that must be as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Watched {
    pub(crate) database: DatabaseId,
    pub(crate) key: Bytes,
    /// 0: there was no object.
    pub(crate) version: ObjectVersion,
    /// The table of that version; 0 where there was no object.
    pub(crate) table: TableId,
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

/// What EXEC has to do.
pub(crate) struct Taken {
    pub(crate) queued: Vec<Queued>,
    pub(crate) watched: Vec<Watched>,
}

#[derive(Default)]
struct Inner {
    /// `None`: there was no MULTI.
    queued: Option<Vec<Queued>>,
    is_spoiled: bool,
    /// Of the commands that wait for EXEC.
    bytes: usize,
    /// Of the commands and watched keys that the run of EXEC has.
    running_bytes: usize,
    watched: Vec<Watched>,
    /// The work of EXEC, until its run begins.
    prepared: Option<Prepared>,
    /// The database that the last EXEC has chosen, until the connection has it.
    chosen: Option<DatabaseId>,
    /// A login that was done, until the connection has it.
    login: Option<Login>,
    /// The connection is to end behind the next reply.
    ends: bool,
    caller: Option<Arc<Caller>>,
}

impl Inner {
    fn watched_bytes(&self) -> usize {
        let bytes = |watched: &Watched| size_of::<Watched>() + watched.key.len();
        self.watched.iter().map(bytes).sum()
    }
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

    /// Bytes of its commands and watched keys, also of those that the run of EXEC has.
    pub(crate) fn bytes(&self) -> usize {
        let inner = self.inner();
        inner.bytes + inner.watched_bytes() + inner.running_bytes
    }

    /// The run of EXEC has ended.
    pub(crate) fn ran(&self) {
        self.inner().running_bytes = 0;
    }

    /// Puts a command into it. It may hold `bytes_max` bytes.
    ///
    /// # Errors
    /// It has too many; it is spoiled then.
    pub(crate) fn queue(&self, queued: Queued, bytes_max: usize) -> Result<(), Failure> {
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
        let bytes = core::mem::take(&mut inner.bytes) + inner.watched_bytes();
        let watched = core::mem::take(&mut inner.watched);
        if core::mem::take(&mut inner.is_spoiled) {
            return Err(EXEC_ABORT);
        }
        inner.running_bytes = bytes;
        Ok(Taken { queued, watched })
    }

    /// What the run of EXEC is to do.
    pub(crate) fn prepare(&self, prepared: Prepared) {
        self.inner().prepared = Some(prepared);
    }

    /// What the connection has prepared.
    pub(crate) fn take_prepared(&self) -> Option<Prepared> {
        self.inner().prepared.take()
    }

    /// EXEC was done, and this is the database from now on.
    pub(crate) fn choose(&self, database: DatabaseId) {
        self.inner().chosen = Some(database);
    }

    /// What a run has left for the connection: the database that EXEC has chosen, a login, and
    /// whether it is to end.
    pub(crate) fn take_news(&self) -> (Option<DatabaseId>, Option<Login>, bool) {
        let mut inner = self.inner();
        (inner.chosen.take(), inner.login.take(), inner.ends)
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
        self.inner().watched = Vec::new();
    }

    /// RESET.
    pub(crate) fn reset(&self) {
        *self.inner() = Inner::default();
    }

    /// The keys among these that are not watched yet, in bytes of their own.
    ///
    /// # Errors
    /// There would be too many.
    pub(crate) fn unwatched<'k>(
        &self,
        database: DatabaseId,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Vec<Bytes>, Failure> {
        let inner = self.inner();
        let here = inner.watched.iter().filter(|w| w.database == database);
        let watched: BTreeSet<&[u8]> = here.map(|watched| &watched.key[..]).collect();
        let mut new = BTreeSet::new();
        for key in keys.filter(|key| !watched.contains(key)) {
            new.insert(key);
            if inner.watched.len() + new.len() > TRANSACTION_STEPS_MAX {
                return Err(TOO_MANY_WATCHED);
            }
        }
        Ok(new.into_iter().map(Bytes::copy_from_slice).collect())
    }

    /// WATCH.
    pub(crate) fn watch(&self, watched: impl Iterator<Item = Watched>) {
        self.inner().watched.extend(watched);
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

    #[test]
    fn a_block_is_executed_once_and_lets_go_of_its_keys() {
        let block = Block::default();
        let refused = |block: &Block| block.close().map(|_| ());
        assert_eq!(refused(&block), Err(EXEC_WITHOUT_MULTI));
        assert_eq!(block.discard(), Err(DISCARD_WITHOUT_MULTI));
        let key = Bytes::from_static(b"k");
        let database = DatabaseId::default();
        let watch = || {
            let version = ObjectVersion(3);
            block.watch(core::iter::once(Watched {
                database,
                key: key.clone(),
                version,
                table: TableId(1),
            }));
        };
        watch();
        let again = block.unwatched(database, [&key[..]].into_iter());
        assert_eq!(again, Ok(Vec::new()), "the first version counts");
        block.begin().unwrap();
        assert_eq!(block.begin(), Err(NESTED_MULTI));
        block.queue(queued(), 1000).unwrap();
        let taken = block.close().unwrap();
        assert_eq!((taken.queued.len(), taken.watched.len()), (1, 1));
        assert!(!block.is_open() && block.bytes() > 0, "the run has them");
        block.ran();
        assert_eq!(block.bytes(), 0);
        watch();
        block.begin().unwrap();
        block.discard().unwrap();
        let unwatched = block.unwatched(database, [&key[..]].into_iter());
        assert_eq!(unwatched.unwrap().len(), 1, "DISCARD lets go of them, too");
    }

    #[test]
    fn watched_keys_are_few_and_have_bytes_of_their_own() {
        let block = Block::default();
        let database = DatabaseId::default();
        let input = Bytes::from(vec![b'k'; 1 << 20]);
        let same = core::iter::repeat_n(&input[..1], 100_000);
        let new = block.unwatched(database, same).unwrap();
        assert_eq!(new.len(), 1);
        assert_ne!(
            new[0].as_ptr(),
            input.as_ptr(),
            "the input is not kept for it"
        );
        block.watch(new.into_iter().map(|key| Watched {
            database,
            key,
            version: ObjectVersion(0),
            table: TableId(0),
        }));
        assert!((1..1000).contains(&block.bytes()));
        let names: Vec<_> = (0..TRANSACTION_STEPS_MAX).map(|n| n.to_string()).collect();
        let keys = || names.iter().map(|name| name.as_bytes());
        assert_eq!(block.unwatched(database, keys()), Err(TOO_MANY_WATCHED));
        let fewer = block.unwatched(database, keys().skip(1)).unwrap();
        assert_eq!(fewer.len(), TRANSACTION_STEPS_MAX - 1);
        block.unwatch();
        assert_eq!(block.bytes(), 0);
    }

    #[test]
    fn a_block_that_is_spoiled_or_too_large_is_not_executed() {
        let block = Block::default();
        block.spoil();
        block.begin().unwrap();
        assert!(block.queue(queued(), 10).is_err());
        let refused = || block.close().map(|_| ());
        assert_eq!(refused(), Err(EXEC_ABORT));
        block.begin().unwrap();
        block.spoil();
        assert_eq!(refused(), Err(EXEC_ABORT));
        block.begin().unwrap();
        assert_eq!(refused(), Ok(()), "the next one is as new");
    }
}
