//! Objects as a transaction sees them whose commands read first and then decide: RENAME, COPY and
//! their kin, alone or inside EXEC, and scripts.
//!
//! 1. The objects of a command are read before it, once each. Those of one server are read at one
//!    moment. So are all of them for a script that may change nothing.
//! 2. The command is computed on what was read, and on what the commands before it changed.
//! 3. The commit compares the versions of all objects that were read and makes all changes, at one
//!    moment. When one has another version by then, nothing is done, and all of it is run again.
//!
//! Nothing of it is seen by others before the commit.
//!
//! - OVERLAY-1: commands that change nothing need a commit only if their objects were read at
//!   several moments.
//! - OVERLAY-2: an object that was read as there is there, however far this server's clock is ahead
//!   of its owner's.
//! - OVERLAY-3: commands that use more objects than a commit may have steps are refused before
//!   these are read.
//!
//! Why that is strictly serializable:
//!
//! 1. A read of several objects of one server, or at one moment, is a transaction of its own. All
//!    that it tells is true at one moment, between its request and its answer (TX-1, TX-2,
//!    SEVERAL-1), so between command and reply.
//! 2. The replies follow from the objects that were read. Beside that, the clock begins lifetimes
//!    and tells how much is left of them, but ends none (OVERLAY-2). Replies that scripts fetch
//!    elsewhere are of no certain moment, and the documents say so.
//! 3. So the commands take effect at the moment of their read. They have no change that could have
//!    another place in the order of all.
//! 4. After a second read, and after one of several servers, there is no such moment. An object of
//!    the first one may have changed before the second. Then the commit compares all of them at a
//!    third moment, and it is that one. A reply that follows from objects of several moments is
//!    never sent without. The same holds for tables that do not exist: those of two databases are
//!    looked up one after the other.
//!
//! The objects, and what commands do with them, are in `overlay/objects.rs`. Here they are read and
//! committed.
//!
//! Owned by the future of one command.

mod objects;

pub(super) use objects::{Missing, Object, Objects, Ran};

use super::{ConnectionContext, Data, script};
use crate::block::Watched;
use crate::database::{DatabaseId, NotTransacted};
use crate::failure;
use crate::give_way::give_way;
use crate::memory::{Building, MemoryAccount};
use crate::monitor::Told;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use crate::table::{SPECS, resolve};
use crate::users::caller::Caller;
use bytes::Bytes;
use pluvio_client::{
    Deadline, Operation, Outcome, Output, Projection, TRANSACTION_STEPS_MAX, Transacted,
    TransactionStep,
};
use pluvio_env::Moment;
use pluvio_units::{ObjectVersion, TableId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most bytes of the values that one command gives: the same large one may be asked for often. Also
/// of those that are read for one transaction, and of those that it changes. A single command or
/// script may need so much; the commands of a block share it, because they are held together.
pub(super) const VALUES_BYTES_MAX: usize = 64 << 20;

/// Bytes that commands copy before others get their turn: about a tenth of a millisecond.
const WORK_BYTES: usize = 1 << 20;
/// Work of a command beside what it copies, in such bytes.
const COMMAND_BYTES: usize = 4 << 10;

/// Most objects that are read together: two steps each.
const TOGETHER_MAX: usize = TRANSACTION_STEPS_MAX / 2;

const NOT_HERE: Failure =
    Failure::fixed("ERR this command is not supported inside a transaction that reads first");

/// The place of an object.
pub(crate) type ObjectAt = (DatabaseId, Bytes);

/// See the module.
pub(crate) struct Overlay<'c> {
    core: &'c Core,
    account: &'c MemoryAccount,
    /// The user, if there is something that it may not do.
    caller: Option<Arc<Caller>>,
    objects: Objects,
    /// When the time of the command is over, and of all its scripts.
    until: Moment,
    reading: Reading,
    /// At how many moments objects were read.
    moments: usize,
    /// The commands of scripts, for MONITOR, which is told when they are committed.
    told: Told,
    /// Bytes of the values that were read.
    read_bytes: usize,
    /// Bytes of work since others had their turn.
    worked: usize,
    /// Counts what was read and changed (CLIMEM-1).
    building: Building<'c>,
    /// The failure of a script that was killed.
    killed: Option<Failure>,
}

/// How objects are read before the commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// All at one moment, with locks where several servers have them. Commands that change nothing
    /// are done then (OVERLAY-1).
    AtOneMoment,
    /// Those of each server at one moment. With `keep`, they are kept from others until the commit.
    ByServer { keep: bool },
}

/// What a commit came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Committed {
    /// All was done.
    Done,
    /// A watched key had changed; nothing was done.
    WatchedChanged,
    /// An object had changed since it was read; nothing was done.
    Conflict,
}

impl<'c> Overlay<'c> {
    pub(crate) fn new(
        core: &'c Core,
        connection: ConnectionContext<'c>,
        until: Moment,
        reading: Reading,
    ) -> Self {
        Self {
            core,
            account: connection.account,
            caller: connection.block.caller(),
            objects: Objects::new(core),
            until,
            reading,
            moments: 0,
            told: Told::default(),
            read_bytes: 0,
            worked: 0,
            building: connection.account.build(),
            killed: None,
        }
    }

    /// Counts what was read and changed.
    fn count(&mut self) {
        let all = self.read_bytes + self.objects.changed_bytes();
        self.building.add(all.saturating_sub(self.building.bytes()));
    }

    /// The user, if there is something that it may not do.
    pub(super) fn caller(&self) -> Option<Arc<Caller>> {
        self.caller.clone()
    }

    /// Whether a command names no more keys than a commit may have steps (OVERLAY-3).
    ///
    /// # Errors
    /// It names more. Nobody is asked.
    pub(super) fn check_count(command: &Command) -> Result<(), NotTransacted> {
        let count = resolve(command, command.len()).map_or(0, |found| {
            let keys = SPECS[usize::from(found)].keys;
            keys.of(command).count()
        });
        match count > TRANSACTION_STEPS_MAX {
            true => Err(NotTransacted::TooLarge(failure::too_many_steps(count))),
            false => Ok(()),
        }
    }

    /// Whether a command can be run here.
    pub(crate) fn can_run(what: Data, command: &Command) -> bool {
        script::Call::of(what).is_some() || Objects::can_run(what, command)
    }

    pub(super) fn core(&self) -> &'c Core {
        self.core
    }

    /// When the time of the command is over.
    pub(super) fn until(&self) -> Moment {
        self.until
    }

    /// The connection's part of the memory.
    pub(super) fn account(&self) -> &'c MemoryAccount {
        self.account
    }

    /// Whether there is room for the values of objects that nobody may want.
    pub(super) fn may_guess(&self) -> bool {
        self.read_bytes <= VALUES_BYTES_MAX / 4
    }

    pub(super) fn objects(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// Notes that a script was killed. So nothing is to be run again.
    pub(super) fn set_killed(&mut self, failure: Failure) {
        self.killed = Some(failure);
    }

    /// The failure of a script that was killed.
    pub(crate) fn killed(&self) -> Option<&Failure> {
        self.killed.as_ref()
    }

    /// The objects that commands used, for a try that follows.
    pub(crate) fn used(&self) -> Vec<ObjectAt> {
        self.objects.used()
    }

    /// Reads objects that a try before this one used. So all are read together, and kept, also
    /// those that scripts do not name.
    ///
    /// # Errors
    /// As [`Overlay::run`].
    pub(crate) async fn read_used(&mut self, used: Vec<ObjectAt>) -> Result<(), NotTransacted> {
        self.read(used, 0).await
    }

    /// MONITOR is told of these commands of a script if the commit is made.
    pub(super) fn tell(&mut self, told: Told) {
        self.told.append(told);
    }

    /// Runs a command.
    ///
    /// # Errors
    /// Its objects could not be read, or all changes are too much together. An error of the command
    /// itself is a reply.
    pub(crate) async fn run(
        &mut self,
        db: DatabaseId,
        what: Data,
        command: &Command,
    ) -> Result<Reply, NotTransacted> {
        if self.worked >= WORK_BYTES {
            self.worked = 0;
            give_way().await;
        }
        let reply = self.run_unbounded(db, what, command).await?;
        self.worked += COMMAND_BYTES + self.objects.take_copied();
        self.count();
        match self.objects.changed_bytes() > VALUES_BYTES_MAX {
            true => Err(failure::changes_too_much(VALUES_BYTES_MAX).into()),
            false => Ok(reply),
        }
    }

    async fn run_unbounded(
        &mut self,
        db: DatabaseId,
        what: Data,
        command: &Command,
    ) -> Result<Reply, NotTransacted> {
        Self::check_count(command)?;
        if let Some(call) = script::Call::of(what) {
            return Box::pin(script::run(self, db, call, command)).await;
        }
        let row = match resolve(command, command.len()) {
            Ok(found) => &SPECS[usize::from(found)],
            Err(failure) => return Ok(Reply::Error(failure)),
        };
        loop {
            match self.objects.begin(db, (what, row), command) {
                Some(Ok(Ran::Reply(reply))) => return Ok(reply),
                Some(Ok(Ran::Combining(mut combining))) => {
                    while !combining.step() {
                        give_way().await;
                    }
                    return Ok(self.objects.set_combined(db, command, combining));
                }
                Some(Err(Missing(places))) => {
                    let sure = places.len();
                    self.read(places, sure).await?;
                }
                None => return Ok(Reply::Error(NOT_HERE)),
            }
        }
    }

    /// Reads what has not been read yet, at one moment. Where that is too much for one transaction,
    /// it is read in pieces: the commit compares them (OVERLAY-1). The first objects are `sure` to
    /// be used; the others are guesses.
    ///
    /// # Errors
    /// It could not be read, or all that was read is too much together, or to be committed
    /// (OVERLAY-3).
    pub(super) async fn read(
        &mut self,
        mut wanted: Vec<ObjectAt>,
        sure: usize,
    ) -> Result<(), NotTransacted> {
        let guesses = wanted.split_off(sure);
        wanted.retain(|place| !self.objects.contains(place));
        wanted.sort_unstable();
        wanted.dedup();
        let used = self.objects.count_used() + wanted.len();
        if used > TRANSACTION_STEPS_MAX {
            return Err(NotTransacted::TooLarge(failure::too_many_steps(used)));
        }
        let new_guesses = guesses.iter().filter(|at| !self.objects.contains(at));
        wanted.extend(new_guesses.cloned());
        wanted.sort_unstable();
        wanted.dedup();
        let pieces = wanted.chunks(TOGETHER_MAX).rev();
        let mut pieces: Vec<_> = pieces.map(<[ObjectAt]>::to_vec).collect();
        let mut is_later = false;
        while let Some(mut piece) = pieces.pop() {
            if core::mem::replace(&mut is_later, true) {
                give_way().await;
            }
            match self.read_together(&piece).await {
                Ok(more) => self.read_bytes += more,
                Err(NotTransacted::TooLarge(_)) if piece.len() > 1 => {
                    pieces.push(piece.split_off(piece.len() / 2));
                    pieces.push(piece);
                }
                Err(other) => return Err(other),
            }
            self.count();
            if self.read_bytes > VALUES_BYTES_MAX {
                return Err(failure::keys_hold_too_much(VALUES_BYTES_MAX).into());
            }
        }
        self.objects.mark_guesses(&guesses);
        Ok(())
    }

    /// Reads objects that have not been read yet, at one moment. Gives the bytes of their values.
    async fn read_together(&mut self, new: &[ObjectAt]) -> Result<usize, NotTransacted> {
        let get = |key, projection| {
            let get = crate::database::reading(key, projection);
            TransactionStep::new(Operation::Get(get))
        };
        let steps: Vec<_> = new
            .iter()
            .flat_map(|(db, key)| {
                let value = (*db, get(&key[..], Projection::Value));
                let deadline = (*db, get(&key[..], Projection::Deadline));
                [value, deadline]
            })
            .collect();
        let of = &self.core.databases;
        let read = match self.reading {
            Reading::AtOneMoment => of.transact(&steps, false).await?,
            // Only the first read keeps objects: a later one may have to wait.
            Reading::ByServer { keep } => {
                let keep = keep && self.moments == 0;
                of.read_first(&steps, keep).await?
            }
        };
        let Transacted::Committed(outcomes) = read.transacted else {
            return Err(failure::CONTENDED.into());
        };
        // Those of several databases may be the moments of their look-ups.
        let databases: BTreeSet<DatabaseId> = new.iter().map(|(db, _)| *db).collect();
        self.moments += databases.len().max(read.moments);
        let mut outcomes = outcomes.into_iter();
        let mut bytes = 0;
        for place in new {
            let (value, deadline) = (outcomes.next(), outcomes.next());
            let Some((Outcome::Unchanged { version, output }, deadline)) = value.zip(deadline)
            else {
                return Err(failure::CONTENDED.into());
            };
            let deadline = match deadline.into_output() {
                Output::Integer(ms) => u64::try_from(ms).ok().and_then(Deadline::new),
                _ => None,
            };
            let held = match output {
                Output::Bytes(value) => Some((value, deadline)),
                _ => None,
            };
            if let Some((value, deadline)) = &held {
                bytes += value.len();
                if let Some(deadline) = deadline {
                    self.objects.keep_until(*deadline);
                }
            }
            let object = match version {
                ObjectVersion(0) => Object::read(TableId(0), None),
                version => Object::found(version, read.tables.of(place.0), held),
            };
            self.objects.insert(place.clone(), object);
        }
        Ok(bytes)
    }

    /// Makes all changes, if the watched keys and all that was read are as they were. Where there
    /// are neither, and one moment was read, all is done already (OVERLAY-1).
    ///
    /// # Errors
    /// Nothing was done, unless the failure says that this is not known.
    pub(crate) async fn commit(&self, watched: &[Watched]) -> Result<Committed, NotTransacted> {
        let mut steps: Vec<_> = watched.iter().map(Watched::step).collect();
        // OVERLAY-1: what was read at one moment needs no comparing.
        let keeps = self.reading == Reading::ByServer { keep: true };
        let is_compared =
            self.objects.is_changed() || !watched.is_empty() || self.moments > 1 || keeps;
        steps.extend(self.objects.steps(is_compared));
        let done = || {
            let shared = &self.core.shared;
            if !self.told.is_empty() {
                let at = shared.wall_clock();
                shared.monitors.tell_scripted(at, &self.told);
            }
            Committed::Done
        };
        if steps.is_empty() {
            return Ok(done());
        }
        let done_together = self.core.databases.transact(&steps, keeps).await?;
        Ok(match done_together.transacted {
            Transacted::Committed(_) => done(),
            Transacted::Refused { step, .. } if step < watched.len() => Committed::WatchedChanged,
            Transacted::Refused { .. } => Committed::Conflict,
        })
    }
}
