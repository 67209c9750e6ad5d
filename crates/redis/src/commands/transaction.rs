//! WATCH and EXEC, and single commands that read first and then decide.
//!
//! 1. WATCH remembers the versions of its keys.
//! 2. EXEC cuts the commands of its block into parts. A command that does not work on named keys
//!    (FLUSHDB, SCAN, INFO, …) runs by itself; those between are one transaction.
//! 3. A part whose commands all have a [plan](super::plan) is done by the owner of its keys, in one
//!    round trip. Another one is computed on an [overlay](super::overlay), again and again until
//!    nobody has changed its keys meanwhile.
//! 4. The versions of the watched keys are conditions of the first part.
//!
//! - EXEC-1: all replies of a block together have the limit of one reply. Nothing is done behind
//!   replies that reach it, in the order in which commands run (EXEC-4). Replies of what was done
//!   are kept. So a part with plans may exceed it, by what one transaction gives; a part on an
//!   overlay that would is not done.
//! - EXEC-2: when it is not known whether a part was done, nothing behind it is done.
//! - EXEC-3: which server has the keys decides neither what a block may read nor what it may give.
//!   Servers bound the outcomes of a transaction, and those that they keep for retries more. A part
//!   with plans that is refused for its size runs on an overlay.
//! - EXEC-4: commands that need no objects run when the transaction of their part is done, and
//!   those on the connection when all others are. So where EXEC does nothing, they are not done
//!   either.

use super::one_key::Scratch;
use super::overlay::{Committed, Overlay, Reading};
use super::plan::{Gather, plan};
use super::{
    CommandResult, ConnectionContext, Data, Now, Own, cluster, handshake, is_doubtful, run_now,
    run_own, run_single, script,
};
use crate::block::{Block, Queued, Taken, Watched};
use crate::database::{DatabaseId, NotTransacted};
use crate::failure::{self, AFTER_DOUBT, leaves_doubt, reply_too_long};
use crate::give_way::give_way;
use crate::memory::Building;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::session::Session;
use crate::shared::Core;
use crate::table::{Run, SPECS};
use bytes::Bytes;
use core::ops::Range;
use core::time::Duration;
use pluvio_client::{Outcome, Projection, Transacted, TransactionStep};
use pluvio_env::{Backoff, Moment, timeout};
use pluvio_units::{ObjectVersion, TableId};
use std::collections::BTreeSet;

/// Commands that others have overtaken so often have the objects kept that they read.
const KEPT_AFTER: u32 = 2;
/// The pauses before a transaction is computed anew.
const BACKOFF: Backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(10));
/// Keys that WATCH looks up before others get their turn. Each costs some two dozen comparisons.
const WATCH_STEP: usize = 1024;

/// WATCH: the versions are those of one moment for each key.
pub(super) async fn watch(
    core: &Core,
    block: &Block,
    database: DatabaseId,
    command: &Command,
) -> CommandResult {
    if block.is_open() {
        return Err(failure::WATCH_IN_MULTI);
    }
    let mut new = BTreeSet::new();
    let mut rest = 1..command.len();
    while !rest.is_empty() {
        let step = rest.by_ref().take(WATCH_STEP);
        block.unwatched(database, step.map(|at| command.get(at)), &mut new)?;
        if !rest.is_empty() {
            give_way().await;
        }
    }
    let keys: Vec<&[u8]> = new.into_iter().collect();
    let outcomes = core
        .databases
        .multi_get_of(database, &keys, Projection::Nothing);
    let (outcomes, table) = outcomes.await?;
    let keys = keys.into_iter().map(Bytes::copy_from_slice);
    let watched = keys.zip(outcomes).map(|(key, outcome)| {
        let version = match outcome {
            Outcome::Unchanged { version, .. } => version,
            _ => ObjectVersion(0),
        };
        let is_there = version != ObjectVersion(0);
        Watched {
            database,
            key,
            version,
            table: if is_there { table } else { TableId(0) },
        }
    });
    block.watch(watched);
    Ok(Reply::OK)
}

/// A command of a block on its way to a reply.
enum Entry {
    Done(Reply),
    /// It needs nothing of the connection, and no objects. This is its row of the table.
    Now(Now, u16, Command),
    /// It concerns the connection, which runs it when all others are done.
    Own(Own, Command),
    Data(DatabaseId, Data, Command),
}

impl Entry {
    fn is_data(&self) -> bool {
        matches!(self, Self::Data(..))
    }

    /// Bytes of its reply.
    fn bytes(&self) -> usize {
        match self {
            Self::Done(reply) => reply.size(),
            Self::Now(..) | Self::Own(..) | Self::Data(..) => 0,
        }
    }
}

/// Answers those that were not run.
fn refuse(entries: &mut [Entry], failure: &Failure) {
    let is_done = |entry: &Entry| matches!(entry, Entry::Done(_));
    for entry in entries.iter_mut().filter(|entry| !is_done(entry)) {
        *entry = Entry::Done(Reply::Error(failure.clone()));
    }
}

/// A command of a block that the connection runs when the others are done (EXEC-4).
pub(crate) struct Deferred {
    /// The place of its reply in that of EXEC.
    pub(crate) at: usize,
    /// Its row of the table.
    pub(crate) spec: u16,
    pub(crate) what: Own,
    pub(crate) command: Command,
}

/// The commands that EXEC closed. None of them is run.
pub(crate) struct ClosedBlock {
    entries: Vec<Entry>,
    /// Their rows of the table.
    specs: Vec<u16>,
    watched: Vec<Watched>,
    /// The database that SELECT chooses, if all of it is done.
    database: DatabaseId,
}

impl ClosedBlock {
    /// Of what EXEC closed. Commands that `permit` refuses in their database are not to be run.
    pub(crate) fn of(
        core: &Core,
        taken: Taken,
        mut database: DatabaseId,
        permit: impl Fn(u16, DatabaseId, &Command) -> Result<(), Failure>,
    ) -> Self {
        let mut entries = Vec::with_capacity(taken.queued.len());
        let specs = taken.queued.iter().map(|queued| queued.spec).collect();
        for Queued { spec, command } in taken.queued {
            if let Err(failure) = permit(spec, database, &command) {
                entries.push(Entry::Done(Reply::Error(failure)));
                continue;
            }
            entries.push(match SPECS[usize::from(spec)].run {
                Run::Data(what) => Entry::Data(database, what, command),
                Run::Now(what) => Entry::Now(what, spec, command),
                Run::Own(Own::Select) => {
                    let selected = handshake::selected(core, &command);
                    database = selected.clone().unwrap_or(database);
                    Entry::Done(selected.map(|_| Reply::OK).into())
                }
                Run::Own(Own::Monitor) => Entry::Done(Reply::Error(failure::MONITOR_IN_MULTI)),
                Run::Own(what) => Entry::Own(what, command),
                Run::Container => Entry::Done(Reply::Error(failure::SYNTAX)),
            });
        }
        Self {
            entries,
            specs,
            watched: taken.watched,
            database,
        }
    }
}

/// EXEC.
pub(super) async fn exec(core: &Core, connection: ConnectionContext<'_>) -> CommandResult {
    let closed = connection.block.take_closed();
    let ClosedBlock {
        mut entries,
        specs,
        watched,
        database,
    } = closed.ok_or(failure::EXEC_WITHOUT_MULTI)?;
    for entry in &entries {
        if let Entry::Data(db, what, command) = entry
            && !cluster::is_here(core, *what, command)
        {
            cluster::admit(core, *db, *what, command).await?;
        }
    }
    let mut building = connection.account.build();
    building.add(entries.iter().map(Entry::bytes).sum());
    let mut execution = Execution {
        core,
        connection,
        // One time for all of it, however many scripts there are.
        until: end_of_time(core),
        limit: core.options().reply_bytes_max,
        building,
    };
    if execution.run(&mut entries, &watched).await? == PartEnd::WatchedChanged {
        return Ok(Reply::NoList);
    }
    connection.block.choose(database);
    let (mut replies, mut deferred) = (Vec::with_capacity(entries.len()), Vec::new());
    for (entry, spec) in entries.into_iter().zip(specs) {
        let reply = match entry {
            Entry::Done(reply) => reply,
            Entry::Own(what, command) => {
                deferred.push(Deferred {
                    at: replies.len(),
                    spec,
                    what,
                    command,
                });
                replies.push(Reply::Nil);
                continue;
            }
            Entry::Now(..) | Entry::Data(..) => Reply::Error(failure::CONTENDED),
        };
        core.counters.ran_in_block(spec, &reply);
        replies.push(reply);
    }
    connection.block.defer(deferred);
    Ok(Reply::Array(replies))
}

/// Runs the commands on the connection of a block whose others are done, and puts their replies
/// into that of EXEC.
pub(crate) fn run_deferred(
    core: &Core,
    session: &mut Session,
    block: &Block,
    deferred: Vec<Deferred>,
    reply: &mut Reply,
) {
    let limit = core.options().reply_bytes_max;
    let mut bytes = reply.size();
    let Reply::Array(replies) = reply else {
        return;
    };
    for one in deferred {
        let reply = match bytes < limit {
            true => run_own(core, session, block, one.what, &one.command).into(),
            false => Reply::Error(reply_too_long(limit)),
        };
        bytes += reply.size();
        core.counters.ran_in_block(one.spec, &reply);
        replies[one.at] = reply;
    }
}

/// The end of a part of a block, or of all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PartEnd {
    /// Its commands have their replies.
    Replied,
    /// A watched key has changed: nothing was done.
    WatchedChanged,
}

/// EXEC on its way through the parts of a block.
struct Execution<'b> {
    core: &'b Core,
    connection: ConnectionContext<'b>,
    /// When its time is over.
    until: Moment,
    /// Bytes that all replies may have together (EXEC-1).
    limit: usize,
    /// The replies so far.
    building: Building<'b>,
}

impl Execution<'_> {
    /// Gives all entries their replies: part for part, and those between them by themselves.
    ///
    /// # Errors
    /// The first part was not done, or that is not known.
    async fn run(
        &mut self,
        entries: &mut [Entry],
        mut watched: &[Watched],
    ) -> Result<PartEnd, Failure> {
        let mut from = 0;
        while from < entries.len() || !watched.is_empty() {
            let end = part_end(entries, from);
            if from < end || !watched.is_empty() {
                match self.run_part(&mut entries[from..end], watched).await {
                    Ok(PartEnd::Replied) => {}
                    Ok(PartEnd::WatchedChanged) => return Ok(PartEnd::WatchedChanged),
                    // Nothing was done, or it is not known.
                    Err(failure) if from == 0 => return Err(failure),
                    Err(failure) => {
                        let part = entries[from..end].iter_mut();
                        for entry in part.filter(|entry| entry.is_data()) {
                            *entry = Entry::Done(Reply::Error(failure.clone()));
                        }
                        let is_doubtful = leaves_doubt(&failure);
                        let behind = if is_doubtful { AFTER_DOUBT } else { failure };
                        refuse(&mut entries[from..], &behind);
                        break;
                    }
                }
                watched = &[];
                self.run_now(&mut entries[from..end]);
            }
            from = end;
            if let Some(entry) = entries.get_mut(from) {
                from += 1;
                if self.run_alone(entry).await {
                    refuse(&mut entries[from..], &AFTER_DOUBT);
                    break;
                }
            }
        }
        Ok(PartEnd::Replied)
    }

    /// Runs a part as one transaction.
    async fn run_part(
        &mut self,
        entries: &mut [Entry],
        watched: &[Watched],
    ) -> Result<PartEnd, Failure> {
        let by = PartContext {
            connection: self.connection,
            until: self.until,
            left: self.limit.saturating_sub(self.building.bytes()),
        };
        let Some(replies) = run_together(self.core, by, entries, watched).await? else {
            return Ok(PartEnd::WatchedChanged);
        };
        for (entry, reply) in entries.iter_mut().zip(replies) {
            if entry.is_data() {
                self.building.add(reply.size());
                *entry = Entry::Done(reply);
            }
        }
        Ok(PartEnd::Replied)
    }

    /// Runs those of a part that need no objects, once it is done (EXEC-4).
    fn run_now(&mut self, entries: &mut [Entry]) {
        for entry in entries {
            if let Entry::Now(what, spec, command) = entry {
                let reply = match self.building.bytes() < self.limit {
                    true => run_now(self.core, *what, *spec, command).into(),
                    false => Reply::Error(reply_too_long(self.limit)),
                };
                self.building.add(reply.size());
                *entry = Entry::Done(reply);
            }
        }
    }

    /// Runs a command that is part of no transaction. Gives whether it is not known if it was
    /// executed.
    async fn run_alone(&mut self, entry: &mut Entry) -> bool {
        let Entry::Data(db, what, command) = entry else {
            return false;
        };
        let reply = match self.building.bytes() < self.limit {
            true => {
                let run = run_single(self.core, self.connection, *db, *what, command);
                Box::pin(run).await
            }
            false => Reply::Error(reply_too_long(self.limit)),
        };
        self.building.add(reply.size());
        let in_doubt = is_doubtful(&reply);
        *entry = Entry::Done(reply);
        in_doubt
    }
}

/// The limits of a part of a block, and the connection for which it is run.
#[derive(Clone, Copy)]
struct PartContext<'b> {
    connection: ConnectionContext<'b>,
    /// When the time of EXEC is over.
    until: Moment,
    /// Bytes of replies that the parts before it leave (EXEC-1).
    left: usize,
}

/// Where the part of a block that begins here ends: before a command that runs by itself.
fn part_end(entries: &[Entry], from: usize) -> usize {
    let runs_alone = |entry: &Entry| match entry {
        Entry::Data(_, what, command) => !Overlay::can_run(*what, command),
        Entry::Done(_) | Entry::Now(..) | Entry::Own(..) => false,
    };
    let rest = &entries[from..];
    from + rest.iter().position(runs_alone).unwrap_or(rest.len())
}

/// The source of a command's reply, while the transaction is under way.
enum Awaited {
    /// It has its reply.
    Nothing,
    /// Its arguments make no sense.
    Failure(Failure),
    /// The outcomes of these steps.
    Outcomes(Gather, Range<usize>),
}

/// Runs commands as one transaction. `None`: a watched key has changed.
async fn run_together(
    core: &Core,
    by: PartContext<'_>,
    entries: &[Entry],
    watched: &[Watched],
) -> Result<Option<Vec<Reply>>, Failure> {
    if by.left == 0 && entries.iter().any(Entry::is_data) {
        return Err(reply_too_long(core.options().reply_bytes_max));
    }
    let mut scratches: Vec<Scratch> = entries.iter().map(|_| Scratch::default()).collect();
    let mut steps: Vec<_> = watched.iter().map(Watched::step).collect();
    let mut awaited = Vec::with_capacity(entries.len());
    for (entry, scratch) in entries.iter().zip(&mut scratches) {
        let Entry::Data(db, what, command) = entry else {
            awaited.push(Awaited::Nothing);
            continue;
        };
        awaited.push(match plan(*what, command, scratch, &|| core.wall_ms()) {
            None => return run_on_overlay(core, by, entries, watched).await,
            Some(Err(failure)) => Awaited::Failure(failure),
            Some(Ok(plan)) => {
                let first = steps.len();
                let operations = plan.operations.into_iter();
                steps.extend(operations.map(|one| (*db, TransactionStep::new(one))));
                Awaited::Outcomes(plan.gather, first..steps.len())
            }
        });
    }
    let outcomes = match steps.is_empty() {
        true => Vec::new(),
        false => match core.databases.transact(&steps, false).await {
            Ok(done) => match done.transacted {
                Transacted::Committed(outcomes) => outcomes,
                Transacted::Refused { .. } => return Ok(None),
            },
            // EXEC-3.
            Err(NotTransacted::TooLarge(_)) => {
                return run_on_overlay(core, by, entries, watched).await;
            }
            Err(other) => return Err(other.into()),
        },
    };
    let replies = awaited.into_iter().map(|awaited| match awaited {
        Awaited::Outcomes(gather, range) => gather.reply(outcomes[range].iter().cloned()),
        Awaited::Failure(failure) => Reply::Error(failure),
        Awaited::Nothing => Reply::Nil,
    });
    Ok(Some(replies.collect()))
}

/// Computes commands as often as others change their objects meanwhile, until the time is over.
async fn run_on_overlay(
    core: &Core,
    by: PartContext<'_>,
    entries: &[Entry],
    watched: &[Watched],
) -> Result<Option<Vec<Reply>>, Failure> {
    let mut tries = CommitTries::new(core, by.until);
    let may_change = entries.iter().any(|entry| match entry {
        Entry::Done(_) | Entry::Now(..) | Entry::Own(..) => false,
        Entry::Data(_, what, _) => may_change(*what),
    });
    let mut used = Vec::new();
    loop {
        let reading = tries.reading(may_change);
        let mut overlay = Overlay::new(core, by.connection, by.until, reading);
        overlay.read_used(core::mem::take(&mut used)).await?;
        let mut building = by.connection.account.build();
        let mut replies = Vec::with_capacity(entries.len());
        for entry in entries {
            replies.push(match entry {
                Entry::Done(_) | Entry::Now(..) | Entry::Own(..) => Reply::Nil,
                Entry::Data(db, what, command) => {
                    let reply = overlay.run(*db, *what, command).await?;
                    // Nothing is done before the commit.
                    let grown = building.grow(reply.size(), by.left);
                    grown.map_err(|_| reply_too_long(core.options().reply_bytes_max))?;
                    reply
                }
            });
        }
        match overlay.commit(watched).await? {
            Committed::Done => return Ok(Some(replies)),
            Committed::WatchedChanged => return Ok(None),
            Committed::Conflict => {
                if let Some(killed) = overlay.killed() {
                    return Err(killed.clone());
                }
                used = overlay.used();
                tries.again().await?;
            }
        }
    }
}

/// Runs a command with several keys at one moment. `None`, with nothing done, where there are too
/// many.
pub(super) async fn at_one_moment(
    core: &Core,
    db: DatabaseId,
    what: Data,
    command: &Command,
) -> Result<Option<Reply>, Failure> {
    let mut scratch = Scratch::default();
    let Some(plan) = plan(what, command, &mut scratch, &|| core.wall_ms()) else {
        return Ok(None);
    };
    let plan = plan?;
    let each = plan.operations.iter();
    let steps: Vec<_> = each.map(|one| (db, TransactionStep::new(*one))).collect();
    let done = core.databases.transact(&steps, false).await;
    match done.map(|done| done.transacted) {
        Ok(Transacted::Committed(outcomes)) => Ok(Some(plan.gather.reply(outcomes))),
        Ok(Transacted::Refused { .. }) => Err(failure::CONTENDED),
        Err(NotTransacted::TooLarge(_) | NotTransacted::Unsupported(_)) => Ok(None),
        Err(NotTransacted::Failure(failure)) => Err(failure),
    }
}

/// Runs one command that reads first and then decides.
pub(super) async fn alone(
    core: &Core,
    connection: ConnectionContext<'_>,
    db: DatabaseId,
    what: Data,
    command: &Command,
) -> CommandResult {
    Overlay::check_count(command)?;
    let _turns = match script::Call::of(what) {
        Some(call) if !call.is_read_only() => {
            let turns = core.shared.scripts.turns(script::named_keys(command));
            let clock = &core.databases.parts().clock;
            let within = timeout(&**clock, core.databases.client().timeout(), turns).await;
            let taken = within.map_err(|_| failure::NO_TURN)?;
            taken.ok_or_else(|| call.killed())?
        }
        Some(_) | None => Vec::new(),
    };
    let until = end_of_time(core);
    let mut tries = CommitTries::new(core, until);
    let mut used = Vec::new();
    loop {
        let mut overlay = Overlay::new(core, connection, until, tries.reading(may_change(what)));
        overlay.read_used(core::mem::take(&mut used)).await?;
        let reply = overlay.run(db, what, command).await?;
        if let Some(killed) = overlay.killed() {
            return Err(killed.clone());
        }
        match overlay.commit(&[]).await? {
            Committed::Done => return Ok(reply),
            Committed::WatchedChanged | Committed::Conflict => {
                used = overlay.used();
                tries.again().await?;
            }
        }
    }
}

/// Whether a command may change its objects.
fn may_change(what: Data) -> bool {
    !script::Call::of(what).is_some_and(script::Call::is_read_only)
}

/// When the time of a command is over that begins now.
fn end_of_time(core: &Core) -> Moment {
    core.shared.now() + core.databases.client().timeout()
}

/// The tries of one transaction whose objects others change meanwhile.
struct CommitTries<'c> {
    core: &'c Core,
    until: Moment,
    tries: u32,
}

impl<'c> CommitTries<'c> {
    fn new(core: &'c Core, until: Moment) -> Self {
        Self {
            core,
            until,
            tries: 0,
        }
    }

    /// How the objects are to be read for the next try.
    fn reading(&self, may_change: bool) -> Reading {
        match may_change {
            true => Reading::ByServer {
                keep: self.tries >= KEPT_AFTER,
            },
            false => Reading::AtOneMoment,
        }
    }

    /// Waits for the next try.
    ///
    /// # Errors
    /// The time is over.
    async fn again(&mut self) -> Result<(), Failure> {
        if self.core.shared.now() >= self.until {
            return Err(failure::CONTENDED);
        }
        let parts = self.core.databases.parts();
        let earlier = self.tries;
        self.tries += 1;
        BACKOFF.pause(&*parts.clock, &*parts.rng, earlier).await;
        Ok(())
    }
}
