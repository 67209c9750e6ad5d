//! Scripts that are done without waiting: those that name one key, which is here, and use no other.
//!
//! 1. The script is known to this server, and its turn is free (EVAL-2).
//! 2. The object is read where it lies, if it is durable.
//! 3. The script runs, with a tenth of what it may use on the event loop.
//! 4. Its change is one mutation with a condition on the version that was read. So it is made at
//!    one moment, like a commit (EVAL-1), and its reply waits until it is durable.
//!
//! Where one of these is not so, nothing was done, and the script takes the long way from its
//! beginning. Nobody else of this core runs meanwhile, so the turn is held for a moment only.

use super::super::overlay::{Object, Objects};
use super::{Attempt, Call, INLINE, INLINE_TIME, Limits, Lookup, arguments, attempt, job_of};
use crate::commands::{Data, cluster};
use crate::database::{DatabaseId, KnownHash};
use crate::parser::Command;
use crate::reply::Reply;
use crate::shared::Core;
use crate::users::caller::Caller;
use pluvio_client::{AtOnce, HeldOutcome};
use pluvio_mutation::Current;
use std::sync::Arc;

/// The part of the time and the instructions of the event loop that such a script may use. Else it
/// takes the long way, and what it has used is lost.
const PART: u32 = 10;

/// The result of a script that was not to wait.
pub(crate) enum ScriptAtOnce {
    /// It has run, and its reply may be sent.
    Done(Reply),
    /// It has run. Its reply may be sent once its change is durable.
    Held(HeldOutcome, Reply),
    /// Nothing was done.
    Later,
}

/// Runs a script without waiting, if that is possible: in a database, where the hash of its key may
/// be known.
pub(crate) fn at_once(
    core: &Core,
    caller: impl FnOnce() -> Option<Arc<Caller>>,
    at: (DatabaseId, Option<KnownHash>),
    what: Data,
    command: &Command,
) -> ScriptAtOnce {
    run(core, caller, at, what, command).unwrap_or(ScriptAtOnce::Later)
}

fn run(
    core: &Core,
    caller: impl FnOnce() -> Option<Arc<Caller>>,
    (db, known): (DatabaseId, Option<KnownHash>),
    what: Data,
    command: &Command,
) -> Option<ScriptAtOnce> {
    let call = Call::of(what)?;
    let is_one = arguments(command) == Ok(1);
    if !is_one || !core.shared.monitors.is_empty() || !cluster::is_here(core, what, command) {
        return None;
    }
    let scripts = &core.shared.scripts;
    let body = match call.by {
        Lookup::Source => scripts.of_source(command.get(1))?,
        Lookup::Hash => scripts.remembered(core::str::from_utf8(command.get(1)).ok()?)?,
        // Which libraries there are is asked for anew.
        Lookup::Function => return None,
    };
    let mut job = job_of(core, db, call, (command, 1), body).ok()?;
    job.caller = caller();
    let key = job.keys().next()?;
    let _turn = match call.is_read_only() {
        true => None,
        false => Some(scripts.turn_now(key)?),
    };

    let (client, table) = (core.databases.client(), core.databases.known(db)?);
    let hash = known.and_then(|known| known.of(&table));
    let hash = hash.unwrap_or_else(|| table.hash(key));
    let mut object = None;
    let mut take = |current: Option<Current<'_>>| object = Some(Object::read(table.id(), current));
    if !client.show_at_once(&table, hash, key, &mut take) {
        return None;
    }
    let mut objects = Objects::of_one(core, (db, command.share(super::FIRST_KEY)), object?);

    let clock = &core.databases.parts().clock;
    let limits = Limits {
        instructions: INLINE / u64::from(PART),
        ..Limits::inline(clock, INLINE_TIME / PART)
    };
    let reply = match attempt(&job, &mut objects, &None, limits) {
        Attempt::Done(reply, _) => reply,
        Attempt::Failed(failure, _) => {
            return Some(ScriptAtOnce::Done(Reply::Error(failure)));
        }
        Attempt::Wants(_) | Attempt::TooLong | Attempt::Killed => return None,
    };
    // OVERLAY-1: what was read at one moment needs no comparing.
    let Some(change) = objects.change_of_first() else {
        return Some(ScriptAtOnce::Done(reply));
    };
    match client.mutate_at_once(&table, hash, &change) {
        AtOnce::Done(outcome) if !outcome.is_failure() => Some(ScriptAtOnce::Done(reply)),
        AtOnce::Held(held) if !held.is_failure() => Some(ScriptAtOnce::Held(held, reply)),
        // Somebody else has changed the object, or it has to wait.
        AtOnce::Done(_) | AtOnce::Held(_) | AtOnce::Later => None,
    }
}
