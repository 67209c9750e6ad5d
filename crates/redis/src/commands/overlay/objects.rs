//! Objects as commands see them that read first and then decide, and those commands. The rules are
//! told in the module above.

use super::super::bit_op::{self, Combining};
use super::super::one_key::Scratch;
use super::super::plan::plan;
use super::super::{Data, EachKey, ReadsFirst, expiry};
use super::{ObjectAt, VALUES_BYTES_MAX};
use crate::database::{DatabaseId, mutation};
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use crate::table::{Spec, wrong_arity};
use bytes::Bytes;
use pluvio_client::{
    Change, Deadline, Lifetime, Mutation, Operation, Outcome, RejectRules, TransactionStep,
};
use pluvio_mutation::{Current, Draft, DraftChange, Now};
use pluvio_units::{ObjectVersion, TableId, UnixMs};
use smallvec::SmallVec;

/// Why the objects of a command are there.
const IS_READ: &str = "the keys of a command are read before it";

/// A value, and when it expires.
type StoredValue = (Bytes, Option<Deadline>);

#[derive(Clone)]
pub(crate) struct Object {
    /// The version that was read; 0: there was no object.
    read: ObjectVersion,
    /// The table that it was read of; 0 where there was no object.
    table: TableId,
    /// Its version as the next operation sees it.
    version: ObjectVersion,
    held: Option<StoredValue>,
    is_changed: bool,
    /// It was read because a script may want it, and no command has touched it yet.
    is_guess: bool,
}

impl Object {
    /// An object as it was read of a table; `None`: there was none.
    pub(crate) fn read(table: TableId, current: Option<Current<'_>>) -> Self {
        let version = current.map_or(ObjectVersion(0), |current| current.version);
        let table = match current {
            Some(_) => table,
            None => TableId(0),
        };
        let held = current.map(|c| (Bytes::copy_from_slice(c.value), c.deadline));
        Self::found(version, table, held)
    }

    /// An object of a table, in this version.
    pub(super) fn found(version: ObjectVersion, table: TableId, held: Option<StoredValue>) -> Self {
        Self {
            read: version,
            table,
            version,
            held,
            is_changed: false,
            is_guess: false,
        }
    }

    /// The part of a commit that it has: its change, or a comparison with the version that was
    /// read. A mere guess has none.
    fn step<'o>(&'o self, key: &'o [u8], is_compared: bool) -> Option<TransactionStep<'o>> {
        match self.is_changed {
            true => Some(TransactionStep::must_hold(Operation::Mutate(
                self.change(key),
            ))),
            false => (is_compared && !self.is_guess)
                .then(|| TransactionStep::version_is(self.table, key, self.read)),
        }
    }

    /// The version of what it becomes.
    fn next_version(&self) -> ObjectVersion {
        ObjectVersion(self.read.0.max(1) + 1)
    }

    /// Changes it. Gives the bytes of all changed values, of which there were `all` before.
    fn change_to(&mut self, held: Option<StoredValue>, all: usize) -> usize {
        let bytes = |held: &Option<StoredValue>| held.as_ref().map_or(0, |(value, _)| value.len());
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
    /// Bytes that commands have copied since somebody asked.
    copied_bytes: usize,
    /// How many of them are guesses.
    guesses: usize,
    is_cluster: bool,
    now: Now,
}

/// What a command came to.
pub(crate) enum Ran {
    Reply(Reply),
    /// It is BITOP, and its values are to be combined step by step ([`Objects::set_combined`]).
    Combining(Combining),
}

/// Objects that a command needs, and that were not read.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) Vec<ObjectAt>);

impl Objects {
    pub(super) fn new(core: &Core) -> Self {
        Self {
            places: Places::default(),
            changed_bytes: 0,
            copied_bytes: 0,
            guesses: 0,
            is_cluster: core.options().cluster.is_some(),
            now: core.wall_ms().into(),
        }
    }

    /// One object, and no other.
    pub(crate) fn of_one(core: &Core, place: ObjectAt, object: Object) -> Self {
        let mut objects = Self::new(core);
        if let Some((_, Some(deadline))) = object.held {
            objects.keep_until(deadline);
        }
        objects.places.0.push((place, object));
        objects
    }

    /// The change of the first object, if there is one.
    pub(crate) fn change_of_first(&self) -> Option<Mutation<'_>> {
        let ((_, key), object) = self.places.0.first()?;
        object.is_changed.then(|| object.change(key))
    }

    /// Whether a command is one of those that can be run here.
    pub(super) fn can_run(what: Data, command: &Command) -> bool {
        matches!(what, Data::ReadsFirst(_))
            || plan(what, command, &mut Scratch::default(), &UnixMs::default).is_some()
    }

    /// Takes them out, and leaves none.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            places: core::mem::take(&mut self.places),
            ..*self
        }
    }

    pub(super) fn contains(&self, place: &ObjectAt) -> bool {
        self.places.contains(place)
    }

    pub(super) fn insert(&mut self, place: ObjectAt, object: Object) {
        self.places.insert(place, object);
    }

    /// Whether any object was changed.
    pub(super) fn is_changed(&self) -> bool {
        self.places.0.iter().any(|(_, object)| object.is_changed)
    }

    /// The steps of a commit: all changes, and whether the other objects are as they were read, if
    /// that `is_compared`.
    pub(super) fn steps(
        &self,
        is_compared: bool,
    ) -> impl Iterator<Item = (DatabaseId, TransactionStep<'_>)> {
        let each = self.places.0.iter();
        each.filter_map(move |((db, key), object)| Some((*db, object.step(key, is_compared)?)))
    }

    /// Keeps an object there that was read, and that is there until then (OVERLAY-2).
    pub(super) fn keep_until(&mut self, deadline: Deadline) {
        if deadline.is_past(self.now.judged) {
            self.now.judged = UnixMs(deadline.ms().saturating_sub(1));
        }
    }

    /// Takes over the changes of another state of the same objects, and keeps what was read and
    /// touched since.
    pub(crate) fn restore(&mut self, before: &Self) {
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

    /// Marks those that were read, and may be wanted by nobody.
    pub(super) fn mark_guesses(&mut self, places: &[ObjectAt]) {
        for (db, key) in places {
            if let Some(object) = self.places.get_mut(*db, key) {
                self.guesses += usize::from(!object.is_guess);
                object.is_guess = true;
            }
        }
    }

    /// The places of those that are no guesses.
    pub(super) fn used(&self) -> Vec<ObjectAt> {
        let all = self.places.0.iter();
        let used = all.filter(|(_, object)| !object.is_guess);
        used.map(|(place, _)| place.clone()).collect()
    }

    /// How many those are.
    pub(super) fn count_used(&self) -> usize {
        self.places.0.len() - self.guesses
    }

    /// How many objects were guessed and not touched yet.
    pub(crate) fn guesses(&self) -> usize {
        self.guesses
    }

    fn touch(&mut self, db: DatabaseId, key: &[u8]) {
        if let Some(object) = self.places.get_mut(db, key) {
            self.guesses -= usize::from(object.is_guess);
            object.is_guess = false;
        }
    }

    /// Puts nothing into places that were not read.
    pub(crate) fn imagine_none(&mut self, places: Vec<ObjectAt>) {
        for place in places {
            self.places.insert(place, Object::read(TableId(0), None));
        }
    }

    /// Bytes of the values of the objects that were changed: what they take beside what was read.
    pub(crate) fn changed_bytes(&self) -> usize {
        self.changed_bytes
    }

    /// Bytes that commands have copied since this was last asked.
    pub(super) fn take_copied(&mut self) -> usize {
        core::mem::take(&mut self.copied_bytes)
    }

    /// Runs a command, of this row of the table. `None`: it is none of those that can be run here.
    pub(crate) fn run(
        &mut self,
        db: DatabaseId,
        of: (Data, &Spec),
        command: &Command,
    ) -> Option<Result<Reply, Missing>> {
        Some(match self.begin(db, of, command)? {
            Ok(Ran::Reply(reply)) => Ok(reply),
            Ok(Ran::Combining(mut combining)) => {
                while !combining.step() {}
                Ok(self.set_combined(db, command, combining))
            }
            Err(missing) => Err(missing),
        })
    }

    /// [`Self::run`], up to work that takes long.
    pub(super) fn begin(
        &mut self,
        db: DatabaseId,
        (what, row): (Data, &Spec),
        command: &Command,
    ) -> Option<Result<Ran, Missing>> {
        let mut scratch = Scratch::default();
        let judged = self.now.judged;
        let plan = plan(what, command, &mut scratch, &|| judged);
        let decides = match what {
            Data::ReadsFirst(which) => Some(which),
            _ if plan.is_some() => None,
            _ => return None,
        };
        let mut other = None;
        if let Some(which) = decides {
            if let Err(failure) = self.check(db, which, command) {
                return Some(Ok(Ran::Reply(Reply::Error(failure))));
            }
            other = other_database(which, db, command);
        }
        let keys = || row.keys.of(command);
        if what == Data::EachKey(EachKey::MGet) {
            let bytes: usize = keys().map(|at| self.bytes_at(db, command.get(at))).sum();
            if bytes > VALUES_BYTES_MAX {
                let failure = failure::reply_too_long(VALUES_BYTES_MAX);
                return Some(Ok(Ran::Reply(Reply::Error(failure))));
            }
        }
        let is_missing = |db, at: &usize| self.places.find(db, command.get(*at)).is_err();
        let missing = keys().filter(|at| is_missing(db, at));
        let mut wanted: Vec<_> = missing.map(|at| (db, command.share(at))).collect();
        if let Some(other) = other
            && let Some(last) = keys().last().filter(|at| is_missing(other, at))
        {
            wanted.push((other, command.share(last)));
        }
        if !wanted.is_empty() {
            return Some(Err(Missing(wanted)));
        }
        if self.guesses > 0 {
            for at in keys() {
                for db in [Some(db), other].into_iter().flatten() {
                    self.touch(db, command.get(at));
                }
            }
        }
        let reply = match (plan, decides) {
            (Some(plan), _) => plan.map(|plan| {
                let each = plan.operations.iter();
                let outcomes: SmallVec<[Outcome; 1]> =
                    each.map(|one| self.apply(db, one)).collect();
                Ran::Reply(plan.gather.reply(outcomes))
            }),
            (None, Some(which)) => self.decide(db, which, command),
            (None, None) => return None,
        };
        Some(Ok(
            reply.unwrap_or_else(|failure| Ran::Reply(Reply::Error(failure)))
        ))
    }

    /// Runs a command that follows from what its objects are.
    fn decide(
        &mut self,
        db: DatabaseId,
        which: ReadsFirst,
        command: &Command,
    ) -> Result<Ran, Failure> {
        let reply = match which {
            ReadsFirst::BitOp => return self.combining(db, command).map(Ran::Combining),
            ReadsFirst::Copy => self.copy(db, command),
            ReadsFirst::MSetEx => self.set_all_expiring(db, command),
            ReadsFirst::MSetNx => self.set_all_new(db, command),
            ReadsFirst::Move => self.move_elsewhere(db, command),
            ReadsFirst::Rename => self.rename(db, command, false),
            ReadsFirst::RenameNx => self.rename(db, command, true),
        };
        reply.map(Ran::Reply)
    }

    /// Does an operation on an object that was read.
    fn apply(&mut self, db: DatabaseId, operation: &Operation<'_>) -> Outcome {
        let now = self.now;
        let object = self.places.get_mut(db, operation.key()).expect(IS_READ);
        let current = object.held.as_ref().map(|(value, deadline)| Current {
            version: object.version.max(ObjectVersion(1)),
            value,
            deadline: *deadline,
        });
        let mut draft = Draft::new(current, now, object.next_version());
        let outcome = draft.apply(operation);
        self.copied_bytes += outcome.bulk_len();
        if !draft.is_changed() {
            return outcome;
        }
        let held = match draft.change() {
            DraftChange::Put(value, deadline) => {
                self.copied_bytes += value.len();
                Some((Bytes::copy_from_slice(value), deadline))
            }
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
    fn held(&self, db: DatabaseId, key: &Bytes) -> Option<StoredValue> {
        let now = self.now.judged;
        let object = self.places.get(db, key).expect(IS_READ);
        let (value, deadline) = object.held.clone()?;
        let is_gone = deadline.is_some_and(|deadline: Deadline| deadline.is_past(now));
        (!is_gone).then_some((value, deadline))
    }

    fn set(&mut self, db: DatabaseId, key: &Bytes, held: Option<StoredValue>) {
        let object = self.places.get_mut(db, key).expect(IS_READ);
        self.changed_bytes = object.change_to(held, self.changed_bytes);
    }

    /// Whether the arguments of a command make sense, before anything is read.
    fn check(&self, db: DatabaseId, which: ReadsFirst, command: &Command) -> Result<(), Failure> {
        match which {
            ReadsFirst::BitOp => bit_op::of(command).map(drop),
            ReadsFirst::Copy => {
                let options = CopyOptions::of(self.is_cluster, db, command)?;
                match command.get(1) == command.get(2) && options.database == db {
                    true => Err(failure::SAME_OBJECT),
                    false => Ok(()),
                }
            }
            ReadsFirst::MSetEx => {
                let now = self.now.judged;
                expiry::set_all_options(command, &|| now).map(drop)
            }
            ReadsFirst::MSetNx if command.len().is_multiple_of(2) => Err(wrong_arity("msetnx")),
            ReadsFirst::Move if self.is_cluster => Err(failure::NO_MOVE),
            ReadsFirst::Move if database(command.get(2))? == db => Err(failure::SAME_OBJECT),
            ReadsFirst::MSetNx | ReadsFirst::Move | ReadsFirst::Rename | ReadsFirst::RenameNx => {
                Ok(())
            }
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

    /// The values of BITOP.
    fn combining(&self, db: DatabaseId, command: &Command) -> Result<Combining, Failure> {
        let sources = (3..command.len())
            .map(|at| self.held(db, &command.share(at)))
            .map(|held| held.map_or_else(Bytes::new, |(value, _)| value));
        Combining::of(bit_op::of(command)?, sources.collect())
    }

    /// The rest of BITOP, when its values are combined.
    pub(super) fn set_combined(
        &mut self,
        db: DatabaseId,
        command: &Command,
        combined: Combining,
    ) -> Reply {
        let value = combined.into_value();
        let len = value.len() as u64;
        let held = (!value.is_empty()).then(|| (Bytes::from(value), None));
        self.set(db, &command.share(2), held);
        Reply::count(len)
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

/// The database where the last key of a command is wanted, too, whose arguments make sense.
fn other_database(which: ReadsFirst, db: DatabaseId, command: &Command) -> Option<DatabaseId> {
    let other = match which {
        ReadsFirst::Move => database(command.get(2)).ok(),
        // Whether it may be another one was looked at.
        ReadsFirst::Copy => CopyOptions::of(false, db, command)
            .ok()
            .map(|options| options.database),
        ReadsFirst::BitOp
        | ReadsFirst::MSetEx
        | ReadsFirst::MSetNx
        | ReadsFirst::Rename
        | ReadsFirst::RenameNx => None,
    }?;
    Some(other).filter(|other| *other != db)
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
            copied_bytes: 0,
            guesses: 0,
            is_cluster: false,
            now: UnixMs(5000).into(),
        };
        assert_eq!(objects.held(place.0, &place.1), None);
        objects.keep_until(deadline);
        assert!(objects.held(place.0, &place.1).is_some());
        // Lifetimes begin with the clock all the same.
        assert_eq!(objects.now.shown, UnixMs(5000));
        objects.keep_until(Deadline::MAX);
        assert_eq!(objects.now.judged, UnixMs(999));
    }
}
