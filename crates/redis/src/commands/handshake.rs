//! What clients send when they connect: HELLO, AUTH, SELECT.

use super::{CommandResult, client};
use crate::database::DatabaseId;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Protocol, Reply};
use crate::session::Session;
use crate::shared::Core;
use crate::version::{REDIS_VERSION, SERVER_NAME};

const NO_PASSWORD: Failure = Failure::fixed(
    "ERR AUTH <password> called without any password configured for the default user. Are you \
     sure your configuration is correct?",
);
const WRONG_PASSWORD: Failure =
    Failure::fixed("WRONGPASS invalid username-password pair or user is disabled.");
const BAD_PROTOCOL: Failure =
    Failure::fixed("ERR Protocol version is not an integer or out of range");
const NO_PROTOCOL: Failure = Failure::fixed("NOPROTO unsupported protocol version");

/// There is one user, `default`, without a password: every password is right for it.
fn check_user(name: &[u8]) -> Result<(), Failure> {
    if name == b"default" {
        Ok(())
    } else {
        Err(WRONG_PASSWORD)
    }
}

pub(super) fn auth(command: &Command) -> CommandResult {
    match command.len() {
        2 => Err(NO_PASSWORD),
        3 => check_user(command.get(1)).map(|()| Reply::OK),
        _ => Err(failure::SYNTAX),
    }
}

pub(super) fn hello(core: &Core, session: &mut Session, command: &Command) -> CommandResult {
    let mut protocol = None;
    if command.len() > 1 {
        protocol = match integer(command.get(1)).ok_or(BAD_PROTOCOL)? {
            2 => Some(Protocol::Resp2),
            3 => Some(Protocol::Resp3),
            _ => return Err(NO_PROTOCOL),
        };
    }
    let (mut user, mut name) = (None, None);
    let mut at = 2;
    while at < command.len() {
        let more = command.len() - at - 1;
        if command.is(at, "AUTH") && more >= 2 {
            user = Some(at + 1);
            at += 3;
        } else if command.is(at, "SETNAME") && more >= 1 {
            client::check_name(command.get(at + 1))?;
            name = Some(at + 1);
            at += 2;
        } else {
            let option = command.get(at);
            let text = [b"ERR Syntax error in HELLO option '", option, b"'"].concat();
            return Err(Failure::new(text));
        }
    }
    // As in Redis, once all options are understood.
    if let Some(user) = user {
        check_user(command.get(user))?;
    }
    if let Some(name) = name {
        client::set_name(session, command.get(name))?;
    }
    if let Some(protocol) = protocol {
        session.set_protocol(protocol);
    }
    Ok(Reply::Map(vec![
        (Reply::Text("server"), Reply::Text(SERVER_NAME)),
        (Reply::Text("version"), Reply::Text(REDIS_VERSION)),
        (
            Reply::Text("proto"),
            Reply::Integer(session.protocol().number()),
        ),
        (Reply::Text("id"), Reply::count(session.entry().id)),
        (Reply::Text("mode"), Reply::Text(core.options().mode())),
        (Reply::Text("role"), Reply::Text("master")),
        (Reply::Text("modules"), Reply::Array(Vec::new())),
        (
            Reply::Text("pluvio_version"),
            Reply::copy(&core.options().version),
        ),
    ]))
}

pub(super) fn select(core: &Core, session: &mut Session, command: &Command) -> CommandResult {
    session.set_database(selected(core, command)?);
    Ok(Reply::OK)
}

/// The database that SELECT chooses.
pub(super) fn selected(core: &Core, command: &Command) -> Result<DatabaseId, Failure> {
    let number = integer(command.get(1)).ok_or(failure::NOT_INTEGER)?;
    if i32::try_from(number).is_err() {
        return Err(failure::NOT_INT);
    }
    let database = DatabaseId::new(number).ok_or(failure::BAD_DATABASE)?;
    if core.options().cluster.is_some() && database != DatabaseId::default() {
        return Err(failure::NO_SELECT);
    }
    Ok(database)
}
