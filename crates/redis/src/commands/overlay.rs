//! Objects as a transaction sees them whose commands read first and then decide: RENAME, COPY and
//! their kin, alone or inside EXEC, and scripts.
//!
//! 1. The objects of a command are read before it, once each, all at one moment.
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
//!
//! Why that is strictly serializable:
//!
//! 1. One read of several objects is a transaction of its own. All that it tells is true at one
//!    moment, between its request and its answer (TX-1, TX-2, SEVERAL-1), so between command and
//!    reply.
//! 2. The replies follow from the objects that were read. Beside that, the clock begins lifetimes
//!    and tells how much is left of them, but ends none (OVERLAY-2). Replies that scripts fetch
//!    elsewhere are of no certain moment, and the documents say so.
//! 3. So the commands take effect at the moment of their read. They have no change that could have
//!    another place in the order of all.
//! 4. After a second read there is no such moment. An object of the first one may have changed
//!    before the second. Then the commit compares all of them at a third moment, and it is that
//!    one. The same holds for tables that do not exist: those of two databases are looked up one
//!    after the other.
//!
//! Owned by the future of one command.

use super::one_key::Scratch;
use super::plan::plan;
use super::{Data, bit_op, expiry, script};
use crate::block::Block;
use crate::block::Watched;
use crate::database::{DatabaseId, NotTransacted, mutation};
use crate::failure;
use crate::memory::{Building, Share};
use crate::monitor::Told;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use crate::table::{SPECS, Spec, resolve, wrong_arity};
use crate::users::caller::Caller;
use bytes::Bytes;
use pluvio_client::{
    Change, Deadline, Keep, Lifetime, Mutation, Operation, Outcome, Output, Projection,
    RejectRules, Transacted, TransactionStep,
};
use pluvio_env::Moment;
use pluvio_mutation::{Current, Draft, DraftChange, Now};
use pluvio_units::{ObjectVersion, TableId, UnixMs};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most bytes of the values that one command gives: the same large one may be asked for often. Also
/// of those that are read for one transaction, and of those that it changes. A single command or
/// script may need so much; the commands of a block share it, because they are held together.
const VALUES_BYTES_MAX: usize = 64 << 20;

/// A value, and when it expires.
type Held = (Bytes, Option<Deadline>);

/// The place of an object.
pub(crate) type ObjectAt = (DatabaseId, Bytes);

#[derive(Clone)]
pub(super) struct Object {
    /// The version that was read; 0: there was no object.
    read: ObjectVersion,
    /// The table that it was read of; 0 where there was no object.
    table: TableId,
    /// Its version as the next operation sees it.
    version: ObjectVersion,
    held: Option<Held>,
    is_changed: bool,
    /// It was read because a script may want it, and no command has touched it yet.
    is_guess: bool,
}

impl Object {
    /// An object as it was read of a table; `None`: there was none.
    pub(super) fn read(table: TableId, current: Option<Current<'_>>) -> Self {
        let version = current.map_or(ObjectVersion(0), |current| current.version);
        Self {
            read: version,
            table: match current {
                Some(_) => table,
                None => TableId(0),
            },
            version,
            held: current.map(|c| (Bytes::copy_from_slice(c.value), c.deadline)),
            is_changed: false,
            is_guess: false,
        }
    }

    /// The version of what it becomes.
    fn next_version(&self) -> ObjectVersion {
        ObjectVersion(self.read.0.max(1) + 1)
    }

    /// Changes it. Gives the bytes of all changed values, of which there were `all` before.
    fn change_to(&mut self, held: Option<Held>, all: usize) -> usize {
        let bytes = |held: &Option<Held>| held.as_ref().map_or(0, |(value, _)| value.len());
        let before = if self.is_changed {
            bytes(&self.held)
        } else {
            0
        };
        let after = bytes(&held);
        self.version = self.next_version();
        self.held = held;
        self.is_changed = true;
        all.saturating_sub(before).saturating_add(after)
    }

    /// Makes the object what it is here, if it is still as it was read.
    fn change<'o>(&'o self, key: &'o [u8]) -> Mutation<'o> {
        let rules = match self.read {
            ObjectVersion(0) => RejectRules::EXISTS,
            version => RejectRules::unless_version(version),
        };
        let mut mutation = match &self.held {
            Some((value, _)) => Mutation::new(self.table, key, Change::Put(value.into())),
            None => Mutation::new(self.table, key, Change::Delete),
        };
        if let Some((_, Some(deadline))) = self.held {
            mutation.lifetime = Lifetime::Until(deadline);
        }
        Mutation { rules, ..mutation }
    }
}

/// Objects in the order of their places. Most commands have one.
#[derive(Clone, Default)]
struct Places(Vec<(ObjectAt, Object)>);

impl Places {
    fn find(&self, db: DatabaseId, key: &[u8]) -> Result<usize, usize> {
        let place = (db, key);
        self.0
            .binary_search_by(|((db, key), _)| (*db, &key[..]).cmp(&place))
    }

    fn get(&self, db: DatabaseId, key: &[u8]) -> Option<&Object> {
        let at = self.find(db, key).ok()?;
        Some(&self.0[at].1)
    }

    fn get_mut(&mut self, db: DatabaseId, key: &[u8]) -> Option<&mut Object> {
        let at = self.find(db, key).ok()?;
        Some(&mut self.0[at].1)
    }

    fn contains(&self, (db, key): &ObjectAt) -> bool {
        self.find(*db, key).is_ok()
    }

    fn insert(&mut self, place: ObjectAt, object: Object) {
        match self.find(place.0, &place.1) {
            Ok(at) => self.0[at].1 = object,
            Err(at) => self.0.insert(at, (place, object)),
        }
    }
}

/// The objects that were read, as the next command sees them.
#[derive(Clone)]
pub(crate) struct Objects {
    places: Places,
    /// Bytes of the values of those that were changed.
    changed_bytes: usize,
    /// How many of them are guesses.
    guesses: usize,
    is_cluster: bool,
    now: Now,
}

const NOT_HERE: Failure =
    Failure::fixed("ERR this command is not supported inside a transaction that reads first");

/// Whether a command reads its objects before it knows what to do with them.
fn reads_first(what: Data) -> bool {
    matches!(
        what,
        Data::BitOp
            | Data::Copy
            | Data::MSetEx
            | Data::MSetNx
            | Data::Move
            | Data::Rename
            | Data::RenameNx
    )
}

/// Objects that a command needs, and that were not read.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) Vec<ObjectAt>);

/// See the module.
pub(crate) struct Overlay<'c> {
    core: &'c Core,
    share: &'c Share,
    /// The user, if there is something that it may not do.
    caller: Option<Arc<Caller>>,
    objects: Objects,
    /// When the time of the command is over, and of all its scripts.
    until: Moment,
    /// Whether what is read first is kept from others until the commit.
    keeps: bool,
    /// At how many moments objects were read.
    moments: usize,
    /// The commands of scripts, for MONITOR, which is told when they are committed.
    told: Told,
    /// Bytes of the values that were read.
    read_bytes: usize,
    /// Counts what was read and changed (CLIMEM-1).
    building: Building<'c>,
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
        (share, block): (&'c Share, &Block),
        until: Moment,
        keeps: bool,
    ) -> Self {
        Self {
            core,
            share,
            caller: block.caller(),
            objects: Objects::new(core),
            until,
            keeps,
            moments: 0,
            told: Told::default(),
            read_bytes: 0,
            building: share.build(),
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
    pub(super) fn share(&self) -> &'c Share {
        self.share
    }

    /// Whether there is room for the values of objects that nobody may want.
    pub(super) fn may_guess(&self) -> bool {
        self.read_bytes <= VALUES_BYTES_MAX / 4
    }

    pub(super) fn objects(&mut self) -> &mut Objects {
        &mut self.objects
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
        let reply = self.run_unbounded(db, what, command).await?;
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
        if let Some(call) = script::Call::of(what) {
            return Box::pin(script::run(self, db, call, command)).await;
        }
        let row = match resolve(command, command.len()) {
            Ok(found) => &SPECS[usize::from(found)],
            Err(failure) => return Ok(Reply::Error(failure)),
        };
        loop {
            match self.objects.run(db, (what, row), command) {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(Missing(places))) => self.read(places).await?,
                None => return Ok(Reply::Error(NOT_HERE)),
            }
        }
    }

    /// Reads what has not been read yet, at one moment. Where that is too much for one transaction,
    /// it is read in pieces: the commit compares them (OVERLAY-1).
    ///
    /// # Errors
    /// It could not be read, or all that was read is too much together.
    pub(super) async fn read(&mut self, wanted: Vec<ObjectAt>) -> Result<(), NotTransacted> {
        let mut new = wanted;
        new.retain(|place| !self.objects.places.contains(place));
        new.sort_unstable();
        new.dedup();
        let mut pieces = vec![new];
        while let Some(mut piece) = pieces.pop() {
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
        Ok(())
    }

    /// Reads objects that have not been read yet, at one moment. Gives the bytes of their values.
    async fn read_together(&mut self, new: &[ObjectAt]) -> Result<usize, NotTransacted> {
        if new.is_empty() {
            return Ok(0);
        }
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
        // Who waits for objects keeps no others.
        let keep = match self.keeps && self.moments == 0 {
            true => Keep::Read,
            false => Keep::Not,
        };
        let (outcomes, tables) = match self.core.databases.transact(&steps, keep).await? {
            (Transacted::Committed(outcomes), tables) => (outcomes, tables),
            (Transacted::Refused { .. }, _) => return Err(failure::CONTENDED.into()),
        };
        // Those of several databases may be the moments of their look-ups.
        let databases: BTreeSet<DatabaseId> = new.iter().map(|(db, _)| *db).collect();
        self.moments += databases.len();
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
                    self.objects.is_there_until(*deadline);
                }
            }
            let is_there = version != ObjectVersion(0);
            let object = Object {
                read: version,
                table: if is_there {
                    tables.of(place.0)
                } else {
                    TableId(0)
                },
                version,
                held,
                is_changed: false,
                is_guess: false,
            };
            self.objects.places.insert(place.clone(), object);
        }
        Ok(bytes)
    }

    /// Makes all changes, if the watched keys and all that was read are as they were. Where there
    /// are neither, and one moment was read, all is done already (OVERLAY-1).
    ///
    /// # Errors
    /// Nothing was done, unless the failure says that this is not known.
    pub(crate) async fn commit(self, watched: &[Watched]) -> Result<Committed, NotTransacted> {
        let mut steps: Vec<_> = watched
            .iter()
            .map(|watched| {
                let (key, version) = (&watched.key[..], watched.version);
                let step = TransactionStep::version_is(watched.table, key, version);
                (watched.database, step)
            })
            .collect();
        let places = &self.objects.places;
        let changes = places.0.iter().any(|(_, object)| object.is_changed);
        // OVERLAY-1: what was read at one moment needs no comparing.
        let is_compared = changes || !watched.is_empty() || self.moments > 1 || self.keeps;
        for ((db, key), object) in &places.0 {
            let step = match object.is_changed {
                true => TransactionStep::must_hold(Operation::Mutate(object.change(key))),
                false if is_compared && !object.is_guess => {
                    TransactionStep::version_is(object.table, key, object.read)
                }
                false => continue,
            };
            steps.push((*db, step));
        }
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
        let keep = match self.keeps {
            true => Keep::NoLonger,
            false => Keep::Not,
        };
        Ok(match self.core.databases.transact(&steps, keep).await?.0 {
            Transacted::Committed(_) => done(),
            Transacted::Refused { step, .. } if step < watched.len() => Committed::WatchedChanged,
            Transacted::Refused { .. } => Committed::Conflict,
        })
    }
}

impl Objects {
    fn new(core: &Core) -> Self {
        Self {
            places: Places::default(),
            changed_bytes: 0,
            guesses: 0,
            is_cluster: core.options().cluster.is_some(),
            now: core.wall_ms().into(),
        }
    }

    /// One object, and no other.
    pub(super) fn of_one(core: &Core, place: ObjectAt, object: Object) -> Self {
        let mut objects = Self::new(core);
        if let Some((_, Some(deadline))) = object.held {
            objects.is_there_until(deadline);
        }
        objects.places.0.push((place, object));
        objects
    }

    /// The change of the first object, if there is one.
    pub(super) fn change_of_first(&self) -> Option<Mutation<'_>> {
        let ((_, key), object) = self.places.0.first()?;
        object.is_changed.then(|| object.change(key))
    }

    fn can_run(what: Data, command: &Command) -> bool {
        reads_first(what)
            || plan(what, command, &mut Scratch::default(), &UnixMs::default).is_some()
    }

    /// Takes them out, and leaves none.
    pub(super) fn take(&mut self) -> Self {
        Self {
            places: core::mem::take(&mut self.places),
            ..*self
        }
    }

    /// An object was read that is there until then (OVERLAY-2).
    fn is_there_until(&mut self, deadline: Deadline) {
        if deadline.is_past(self.now.judged) {
            self.now.judged = UnixMs(deadline.ms().saturating_sub(1));
        }
    }

    /// Takes over the changes of another state of the same objects, and keeps what was read and
    /// touched since.
    pub(super) fn restore(&mut self, before: &Self) {
        for (place, object) in &before.places.0 {
            let now = self.places.get(place.0, &place.1);
            let object = Object {
                is_guess: object.is_guess && now.is_none_or(|now| now.is_guess),
                ..object.clone()
            };
            self.places.insert(place.clone(), object);
        }
        self.changed_bytes = before.changed_bytes;
    }

    /// These were read, and may be wanted by nobody.
    pub(super) fn are_guesses(&mut self, places: &[ObjectAt]) {
        for (db, key) in places {
            if let Some(object) = self.places.get_mut(*db, key) {
                self.guesses += usize::from(!object.is_guess);
                object.is_guess = true;
            }
        }
    }

    /// How many objects were guessed and not touched yet.
    pub(super) fn guesses(&self) -> usize {
        self.guesses
    }

    fn touch(&mut self, db: DatabaseId, key: &[u8]) {
        if let Some(object) = self.places.get_mut(db, key) {
            self.guesses -= usize::from(object.is_guess);
            object.is_guess = false;
        }
    }

    /// Puts nothing into places that were not read.
    pub(super) fn imagine_none(&mut self, places: Vec<ObjectAt>) {
        for place in places {
            self.places.insert(place, Object::read(TableId(0), None));
        }
    }

    /// Bytes of the values of the objects that were changed: what they take beside what was read.
    pub(super) fn changed_bytes(&self) -> usize {
        self.changed_bytes
    }

    /// Runs a command, of this row of the table. `None`: it is none of those that can be run here.
    pub(super) fn run(
        &mut self,
        db: DatabaseId,
        (what, row): (Data, &Spec),
        command: &Command,
    ) -> Option<Result<Reply, Missing>> {
        let mut scratch = Scratch::default();
        let judged = self.now.judged;
        let plan = plan(what, command, &mut scratch, &|| judged);
        if plan.is_none() && !reads_first(what) {
            return None;
        }
        if let Err(failure) = check(self.is_cluster, db, (what, judged), command) {
            return Some(Ok(Reply::Error(failure)));
        }
        let keys = || row.keys.of(command);
        if matches!(what, Data::MGet) {
            let bytes: usize = keys().map(|at| self.bytes_at(db, command.get(at))).sum();
            if bytes > VALUES_BYTES_MAX {
                return Some(Ok(Reply::Error(failure::reply_too_long(VALUES_BYTES_MAX))));
            }
        }
        let is_missing = |db, at: &usize| self.places.find(db, command.get(*at)).is_err();
        let missing = keys().filter(|at| is_missing(db, at));
        let mut wanted: Vec<_> = missing.map(|at| (db, command.share(at))).collect();
        if let Some(other) = other_database(what, db, command)
            && let Some(last) = keys().last().filter(|at| is_missing(other, at))
        {
            wanted.push((other, command.share(last)));
        }
        if !wanted.is_empty() {
            return Some(Err(Missing(wanted)));
        }
        if self.guesses > 0 {
            let other = other_database(what, db, command);
            for at in keys() {
                for db in [Some(db), other].into_iter().flatten() {
                    self.touch(db, command.get(at));
                }
            }
        }
        let reply = match (what, plan) {
            (_, Some(plan)) => plan.map(|plan| {
                let each = plan.operations.iter();
                let outcomes: SmallVec<[Outcome; 1]> =
                    each.map(|one| self.apply(db, one)).collect();
                plan.gather.reply(outcomes)
            }),
            (Data::BitOp, None) => self.bit_op(db, command),
            (Data::Copy, None) => self.copy(db, command),
            (Data::MSetEx, None) => self.set_all_expiring(db, command),
            (Data::MSetNx, None) => self.set_all_new(db, command),
            (Data::Move, None) => self.move_elsewhere(db, command),
            (Data::Rename, None) => self.rename(db, command, false),
            (Data::RenameNx, None) => self.rename(db, command, true),
            (_, None) => return None,
        };
        Some(Ok(reply.into()))
    }

    /// Does an operation on an object that was read.
    fn apply(&mut self, db: DatabaseId, operation: &Operation<'_>) -> Outcome {
        let now = self.now;
        let Some(object) = self.places.get_mut(db, operation.key()) else {
            unreachable!("the keys of a command are read before it")
        };
        let current = object.held.as_ref().map(|(value, deadline)| Current {
            version: object.version.max(ObjectVersion(1)),
            value,
            deadline: *deadline,
        });
        let mut draft = Draft::new(current, now, object.next_version());
        let outcome = draft.apply(operation);
        if !draft.is_changed() {
            return outcome;
        }
        let held = match draft.change() {
            DraftChange::Put(value, deadline) => Some((Bytes::copy_from_slice(value), deadline)),
            DraftChange::Nothing | DraftChange::Delete => None,
        };
        self.changed_bytes = object.change_to(held, self.changed_bytes);
        outcome
    }

    /// Bytes of the value of an object.
    fn bytes_at(&self, db: DatabaseId, key: &[u8]) -> usize {
        let object = self.places.get(db, key);
        let held = object.and_then(|object| object.held.as_ref());
        held.map_or(0, |(value, _)| value.len())
    }

    /// The object as the next command sees it.
    fn held(&self, db: DatabaseId, key: &Bytes) -> Option<Held> {
        let now = self.now.judged;
        let (value, deadline) = self.places.get(db, key)?.held.clone()?;
        let is_gone = deadline.is_some_and(|deadline: Deadline| deadline.is_past(now));
        (!is_gone).then_some((value, deadline))
    }

    fn set(&mut self, db: DatabaseId, key: &Bytes, held: Option<Held>) {
        if let Some(object) = self.places.get_mut(db, key) {
            self.changed_bytes = object.change_to(held, self.changed_bytes);
        }
    }

    // --- commands -------------------------------------------------------------------------------

    fn rename(
        &mut self,
        db: DatabaseId,
        command: &Command,
        only_new: bool,
    ) -> Result<Reply, Failure> {
        let (from, to) = (command.share(1), command.share(2));
        let held = self.held(db, &from).ok_or(failure::NO_SUCH_KEY)?;
        let done = |done| match only_new {
            true => Reply::flag(done),
            false => Reply::OK,
        };
        if from == to || (only_new && self.held(db, &to).is_some()) {
            return Ok(done(false));
        }
        self.set(db, &to, Some(held));
        self.set(db, &from, None);
        Ok(done(true))
    }

    fn copy(&mut self, db: DatabaseId, command: &Command) -> Result<Reply, Failure> {
        let options = CopyOptions::of(self.is_cluster, db, command)?;
        let (from, to) = (command.share(1), command.share(2));
        let Some(held) = self.held(db, &from) else {
            return Ok(Reply::flag(false));
        };
        if !options.replaces && self.held(options.database, &to).is_some() {
            return Ok(Reply::flag(false));
        }
        self.set(options.database, &to, Some(held));
        Ok(Reply::flag(true))
    }

    fn move_elsewhere(&mut self, db: DatabaseId, command: &Command) -> Result<Reply, Failure> {
        let to = database(command.get(2))?;
        let key = command.share(1);
        let Some(held) = self.held(db, &key) else {
            return Ok(Reply::flag(false));
        };
        if self.held(to, &key).is_some() {
            return Ok(Reply::flag(false));
        }
        self.set(to, &key, Some(held));
        self.set(db, &key, None);
        Ok(Reply::flag(true))
    }

    fn set_all_new(&mut self, db: DatabaseId, command: &Command) -> Result<Reply, Failure> {
        let pairs = || (1..command.len()).step_by(2);
        if pairs().any(|at| self.held(db, &command.share(at)).is_some()) {
            return Ok(Reply::flag(false));
        }
        for at in pairs() {
            self.set(db, &command.share(at), Some((command.share(at + 1), None)));
        }
        Ok(Reply::flag(true))
    }

    fn set_all_expiring(&mut self, db: DatabaseId, command: &Command) -> Result<Reply, Failure> {
        let now = self.now.judged;
        let options = expiry::set_all_options(command, &|| now)?;
        let pairs = || (2..options.end).step_by(2);
        let is_there = |at| self.held(db, &command.share(at)).is_some();
        let is_refused = match options.if_there {
            None => false,
            Some(wanted) => pairs().any(|at| is_there(at) != wanted),
        };
        if is_refused {
            return Ok(Reply::flag(false));
        }
        for at in pairs() {
            let put = Mutation {
                lifetime: options.lifetime,
                ..mutation(command.get(at), Change::Put(command.get(at + 1).into()))
            };
            let _written = self.apply(db, &Operation::Mutate(put));
        }
        Ok(Reply::flag(true))
    }

    fn bit_op(&mut self, db: DatabaseId, command: &Command) -> Result<Reply, Failure> {
        let operation = bit_op::of(command)?;
        let sources: Vec<_> = (3..command.len())
            .map(|at| self.held(db, &command.share(at)))
            .map(|held| held.map_or_else(Bytes::new, |(value, _)| value))
            .collect();
        let value = operation.compute(&sources);
        let len = value.len() as u64;
        let held = (!value.is_empty()).then(|| (Bytes::from(value), None));
        self.set(db, &command.share(2), held);
        Ok(Reply::count(len))
    }
}

/// Whether the arguments of a command make sense, before anything is read.
fn check(
    is_cluster: bool,
    db: DatabaseId,
    (what, now): (Data, UnixMs),
    command: &Command,
) -> Result<(), Failure> {
    match what {
        Data::BitOp => bit_op::of(command).map(drop),
        Data::Copy => {
            let options = CopyOptions::of(is_cluster, db, command)?;
            match command.get(1) == command.get(2) && options.database == db {
                true => Err(failure::SAME_OBJECT),
                false => Ok(()),
            }
        }
        Data::MSetEx => expiry::set_all_options(command, &|| now).map(drop),
        Data::MSetNx if command.len().is_multiple_of(2) => Err(wrong_arity("msetnx")),
        Data::Move if is_cluster => Err(failure::NO_MOVE),
        Data::Move if database(command.get(2))? == db => Err(failure::SAME_OBJECT),
        _ => Ok(()),
    }
}

/// The options of COPY.
struct CopyOptions {
    database: DatabaseId,
    replaces: bool,
}

impl CopyOptions {
    fn of(is_cluster: bool, db: DatabaseId, command: &Command) -> Result<Self, Failure> {
        let mut options = Self {
            database: db,
            replaces: false,
        };
        let mut at = 3;
        while at < command.len() {
            if command.is(at, "REPLACE") {
                options.replaces = true;
            } else if command.is(at, "DB") && at + 1 < command.len() {
                at += 1;
                options.database = database(command.get(at))?;
            } else {
                return Err(failure::SYNTAX);
            }
            at += 1;
        }
        if is_cluster && options.database != db {
            return Err(failure::NO_COPY_ELSEWHERE);
        }
        Ok(options)
    }
}

fn database(number: &[u8]) -> Result<DatabaseId, Failure> {
    let number = integer(number).ok_or(failure::NOT_INTEGER)?;
    DatabaseId::new(number).ok_or(failure::BAD_DATABASE)
}

/// The database where the last key of a command is wanted, too.
fn other_database(what: Data, db: DatabaseId, command: &Command) -> Option<DatabaseId> {
    let at = match what {
        Data::Move => Some(2),
        Data::Copy => (3..command.len())
            .find(|at| command.is(*at, "DB"))
            .map(|at| at + 1),
        _ => None,
    }?;
    database(command.get(at)).ok().filter(|other| *other != db)
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: OVERLAY-2
    #[test]
    fn an_object_that_was_read_is_there_when_this_clock_is_ahead() {
        let place = (DatabaseId::default(), Bytes::from("k"));
        let deadline = Deadline::new(1000).expect("it is a deadline");
        let object = Object {
            read: ObjectVersion(1),
            table: TableId(1),
            version: ObjectVersion(1),
            held: Some((Bytes::from("v"), Some(deadline))),
            is_changed: false,
            is_guess: false,
        };
        let mut objects = Objects {
            places: Places(vec![(place.clone(), object)]),
            changed_bytes: 0,
            guesses: 0,
            is_cluster: false,
            now: UnixMs(5000).into(),
        };
        assert_eq!(objects.held(place.0, &place.1), None);
        objects.is_there_until(deadline);
        assert!(objects.held(place.0, &place.1).is_some());
        // Lifetimes begin with the clock all the same.
        assert_eq!(objects.now.shown, UnixMs(5000));
        objects.is_there_until(Deadline::MAX);
        assert_eq!(objects.now.judged, UnixMs(999));
    }
}
