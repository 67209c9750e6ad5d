//! Small commands about the server.

use super::CommandResult;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use crate::table::wrong_arity;

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

const NEGATIVE_TIMEOUT: Failure = Failure::fixed("ERR timeout is negative");
const BAD_TIMEOUT: Failure = Failure::fixed("ERR timeout is not an integer or out of range");

/// Writes are answered when their replicas have them, and this command comes after all earlier
/// replies: there is nothing to wait for.
pub(super) fn wait(core: &Core, command: &Command) -> CommandResult {
    integer(command.get(1)).ok_or(failure::NOT_INTEGER)?;
    let timeout = integer(command.get(2)).ok_or(BAD_TIMEOUT)?;
    if timeout < 0 {
        return Err(NEGATIVE_TIMEOUT);
    }
    Ok(Reply::count(u64::from(core.shared.replicas_sure())))
}

const BAD_COUNT: Failure = Failure::fixed("ERR count should be greater than or equal to -1");

const SLOWLOG_SYNTAX: Failure = Failure::fixed(
    "ERR unknown subcommand or wrong number of arguments for 'get'. Try SLOWLOG HELP.",
);

pub(super) fn slow_log_get(command: &Command) -> CommandResult {
    match command.len() {
        2 => {}
        3 => {
            let count = integer(command.get(2)).ok_or(BAD_COUNT)?;
            if count < -1 {
                return Err(BAD_COUNT);
            }
        }
        _ => return Err(SLOWLOG_SYNTAX),
    }
    Ok(Reply::Array(Vec::new()))
}
