//! Small commands about the server.

use super::CommandResult;
use crate::database::DatabaseId;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::session::Session;
use crate::shared::Core;
use crate::table::wrong_arity;
use crate::version::REDIS_VERSION;

pub(super) fn ping(command: &Command) -> CommandResult {
    match command.len() {
        1 => Ok(Reply::Status("PONG")),
        2 => Ok(Reply::Bulk(command.share(1))),
        _ => Err(wrong_arity("ping")),
    }
}

pub(super) fn time(core: &Core) -> Reply {
    let (seconds, micros) = core.shared.wall_clock();
    Reply::Array(vec![
        Reply::copy(seconds.to_string()),
        Reply::copy(micros.to_string()),
    ])
}

/// Replicas of the log are no Redis replicas: none can be asked for reads or promoted by hand.
pub(super) fn role() -> Reply {
    Reply::Array(vec![
        Reply::Text("master"),
        Reply::Integer(0),
        Reply::Array(Vec::new()),
    ])
}

/// What each acknowledged write of a database has.
struct Kept {
    /// Replicas, whichever server has its key. Most writes have more: those that are wanted.
    replicas: u32,
    /// They are on their devices.
    synced: bool,
}

impl Kept {
    /// As the cluster's settings say, or the class of the database's table.
    fn of(core: &Core, session: &Session) -> Self {
        let replicas = core.shared.replicas_sure();
        let table = core.databases.known(session.database());
        match table.and_then(|table| table.class()) {
            Some(class) => Self {
                replicas: replicas.min(class.replicas),
                synced: class.synced,
            },
            None => Self {
                replicas,
                synced: core.shared.is_synced(),
            },
        }
    }
}

/// Writes are answered when their replicas have them, and this command comes after all earlier
/// replies: there is nothing to wait for.
pub(super) fn wait(core: &Core, session: &Session, command: &Command) -> CommandResult {
    integer(command.get(1)).ok_or(failure::NOT_INTEGER)?;
    let timeout = integer(command.get(2)).ok_or(failure::BAD_TIMEOUT)?;
    if timeout < 0 {
        return Err(failure::NEGATIVE_TIMEOUT);
    }
    Ok(Reply::count(u64::from(Kept::of(core, session).replicas)))
}

const RANGE_0_1: Failure = Failure::fixed("ERR value is out of range, value must between 0 and 1");
const NOT_POSITIVE: Failure = Failure::fixed("ERR value is out of range, must be positive");
const NO_FILES: Failure =
    Failure::fixed("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.");

/// WAITAOF: files that hold every acknowledged write, as far as a device has them; there is nothing
/// to wait for. A write that is in one file of a backup counts as the local one, too: a crash of
/// this server does not lose it.
pub(super) fn wait_for_files(core: &Core, session: &Session, command: &Command) -> CommandResult {
    let local = integer(command.get(1)).ok_or(failure::NOT_INTEGER)?;
    if !(0..=1).contains(&local) {
        return Err(RANGE_0_1);
    }
    let replicas = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    if replicas < 0 {
        return Err(NOT_POSITIVE);
    }
    let timeout = integer(command.get(3)).ok_or(failure::BAD_TIMEOUT)?;
    if timeout < 0 {
        return Err(failure::NEGATIVE_TIMEOUT);
    }
    let kept = Kept::of(core, session);
    if local == 1 && kept.replicas == 0 {
        return Err(NO_FILES);
    }
    let files = if kept.synced { kept.replicas } else { 0 };
    Ok(Reply::Array(vec![
        Reply::count(u64::from(files.min(1))),
        Reply::count(u64::from(files)),
    ]))
}

/// LASTSAVE: what was acknowledged is saved by now.
pub(super) fn last_save(core: &Core) -> Reply {
    Reply::count(core.shared.wall_clock().0)
}

/// BGSAVE.
pub(super) fn save_in_background(command: &Command) -> CommandResult {
    match command.len() {
        1 => Ok(Reply::Status("Background saving started")),
        2 if command.is(1, "SCHEDULE") => Ok(Reply::Status("Background saving scheduled")),
        _ => Err(failure::SYNTAX),
    }
}

/// BGREWRITEAOF.
pub(super) fn rewrite_in_background() -> Reply {
    Reply::Status("Background append only file rewriting started")
}

const NO_SHUTDOWN: Failure = Failure::fixed(
    "ERR SHUTDOWN is not allowed for clients: stop the process of the server (SIGTERM)",
);
const NOT_SHUTTING_DOWN: Failure = Failure::fixed("ERR No shutdown in progress.");

/// SHUTDOWN.
pub(super) fn shut_down(command: &Command) -> Failure {
    let (mut saves, mut aborts) = (None, false);
    for at in 1..command.len() {
        let is_save = command.is(at, "SAVE");
        if is_save || command.is(at, "NOSAVE") {
            if saves.is_some_and(|saves| saves != is_save) {
                return failure::SYNTAX;
            }
            saves = Some(is_save);
        } else if command.is(at, "ABORT") {
            aborts = true;
        } else if !command.is(at, "NOW") && !command.is(at, "FORCE") {
            return failure::SYNTAX;
        }
    }
    match (aborts, command.len()) {
        (true, 2) => NOT_SHUTTING_DOWN,
        (true, _) => failure::SYNTAX,
        (false, _) => NO_SHUTDOWN,
    }
}

const NO_SWAP: Failure = Failure::fixed(
    "ERR SWAPDB is not supported: two tables cannot be exchanged at one moment on all servers",
);
const NO_SWAP_IN_CLUSTER: Failure = Failure::fixed("ERR SWAPDB is not allowed in cluster mode");
const BAD_FIRST: Failure = Failure::fixed("ERR invalid first DB index");
const BAD_SECOND: Failure = Failure::fixed("ERR invalid second DB index");

/// SWAPDB: refused, but for a database and itself.
pub(super) fn swap_databases(core: &Core, command: &Command) -> CommandResult {
    if core.options().cluster.is_some() {
        return Err(NO_SWAP_IN_CLUSTER);
    }
    let number = |at, bad| {
        let number = integer(command.get(at)).filter(|n| i32::try_from(*n).is_ok());
        number.ok_or(bad)
    };
    let (first, second) = (number(1, BAD_FIRST)?, number(2, BAD_SECOND)?);
    let databases = DatabaseId::new(first).zip(DatabaseId::new(second));
    match databases.ok_or(failure::BAD_DATABASE)? {
        (first, second) if first == second => Ok(Reply::OK),
        _ => Err(NO_SWAP),
    }
}

/// LOLWUT: rain.
pub(super) fn lolwut(core: &Core, command: &Command) -> CommandResult {
    const WIDTH: u64 = 40;
    if command.len() > 2 && command.is(1, "VERSION") {
        integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    }
    let rng = &core.databases.parts().rng;
    let mut text = String::new();
    for _ in 0..8 {
        for _ in 0..WIDTH {
            text.push(match rng.below(12) {
                0 => '/',
                1 => '.',
                _ => ' ',
            });
        }
        text.push('\n');
    }
    Ok(Reply::Verbatim(format!(
        "{text}\nRedis ver. {REDIS_VERSION}, Pluvio ver. {}\n",
        core.options().version
    )))
}
