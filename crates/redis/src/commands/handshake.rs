//! What clients send when they connect: HELLO, AUTH, SELECT.
//!
//! A password that was right lately is known at once. Another one takes time. AUTH and HELLO are
//! then a run, like commands on the database, and no other command begins before its end.

use super::{CommandResult, ConnectionContext, Own, client};
use crate::block::{Block, Login};
use crate::clients::ClientEntry;
use crate::database::DatabaseId;
use crate::failure::{self, NO_AUTH_HELLO, WRONG_PASSWORD};
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Protocol, Reply};
use crate::session::Session;
use crate::shared::Core;
use crate::users::Glance;
use crate::users::denials::{Context, Denial, Reason};
use crate::users::password::Sha;
use crate::users::rules::{DEFAULT, User};
use crate::version::{REDIS_VERSION, SERVER_NAME};
use std::sync::Arc;

const NO_PASSWORD: Failure = Failure::fixed(
    "ERR AUTH <password> called without any password configured for the default user. Are you \
     sure your configuration is correct?",
);
const BAD_PROTOCOL: Failure =
    Failure::fixed("ERR Protocol version is not an integer or out of range");
const NO_PROTOCOL: Failure = Failure::fixed("NOPROTO unsupported protocol version");

/// A name and a password.
struct Credentials<'c> {
    name: &'c [u8],
    password: &'c [u8],
}

/// What HELLO asks for.
struct Hello<'c> {
    protocol: Option<Protocol>,
    login: Option<Credentials<'c>>,
    name: Option<&'c [u8]>,
}

fn read_hello(command: &Command) -> Result<Hello<'_>, Failure> {
    let mut hello = Hello {
        protocol: None,
        login: None,
        name: None,
    };
    if command.len() > 1 {
        hello.protocol = match integer(command.get(1)).ok_or(BAD_PROTOCOL)? {
            2 => Some(Protocol::Resp2),
            3 => Some(Protocol::Resp3),
            _ => return Err(NO_PROTOCOL),
        };
    }
    let mut at = 2;
    while at < command.len() {
        let more = command.len() - at - 1;
        if command.is(at, "AUTH") && more >= 2 {
            hello.login = Some(Credentials {
                name: command.get(at + 1),
                password: command.get(at + 2),
            });
            at += 3;
        } else if command.is(at, "SETNAME") && more >= 1 {
            client::check_name(command.get(at + 1))?;
            hello.name = Some(command.get(at + 1));
            at += 2;
        } else {
            let option = command.get(at);
            let text = [b"ERR Syntax error in HELLO option '", option, b"'"].concat();
            return Err(Failure::new(text));
        }
    }
    Ok(hello)
}

fn read_auth<'c>(core: &Core, command: &'c Command) -> Result<Credentials<'c>, Failure> {
    match command.len() {
        2 if core.options().users.default_user().needs_none => Err(NO_PASSWORD),
        2 => Ok(Credentials {
            name: DEFAULT,
            password: command.get(1),
        }),
        3 => Ok(Credentials {
            name: command.get(1),
            password: command.get(2),
        }),
        _ => Err(failure::SYNTAX),
    }
}

/// The login that a command is, if it is one.
fn login_of<'c>(core: &Core, what: Own, command: &'c Command) -> Option<Credentials<'c>> {
    match what {
        Own::Auth => read_auth(core, command).ok(),
        Own::Hello => read_hello(command).ok().and_then(|hello| hello.login),
        _ => None,
    }
}

/// Whether a command would change the user of its connection.
pub(crate) fn logs_in(core: &Core, what: Own, command: &Command) -> bool {
    login_of(core, what, command).is_some()
}

/// Whether a command has a password that has to be computed.
pub(crate) fn takes_time(core: &Core, what: Own, command: &Command) -> bool {
    let login = login_of(core, what, command);
    login.is_some_and(|login| matches!(glance(core, &login), Glance::Unknown))
}

fn glance(core: &Core, login: &Credentials<'_>) -> Glance {
    let users = &core.options().users;
    users.glance(login.name, Sha::of(login.password))
}

/// A login with a password that is known to be right.
fn log_in_at_once(
    core: &Core,
    session: &mut Session,
    block: &Block,
    login: &Credentials<'_>,
) -> Result<(), Failure> {
    match glance(core, login) {
        Glance::In(user) => {
            let_in(core, session.entry(), &user);
            session.log_in(user);
            block.set_caller(session.caller(&core.shared));
            Ok(())
        }
        // `takes_time` knew it a moment ago: the user has been changed since.
        Glance::Unknown => Err(WRONG_PASSWORD),
    }
}

fn let_in(core: &Core, entry: &ClientEntry, user: &User) {
    let second = core.shared.wall_clock().0;
    core.options()
        .users
        .denials
        .trace_login(&user.name, entry, second);
}

/// AUTH with a password that is known to be right, or is not looked at.
pub(super) fn auth(
    core: &Core,
    session: &mut Session,
    block: &Block,
    command: &Command,
) -> CommandResult {
    let login = read_auth(core, command)?;
    log_in_at_once(core, session, block, &login)?;
    Ok(Reply::OK)
}

/// HELLO, if it has no password that takes time.
pub(super) fn hello(
    core: &Core,
    session: &mut Session,
    block: &Block,
    command: &Command,
) -> CommandResult {
    let hello = read_hello(command)?;
    // As in Redis, once all options are understood.
    if let Some(login) = &hello.login {
        log_in_at_once(core, session, block, login)?;
    }
    if !session.is_in() {
        return Err(NO_AUTH_HELLO);
    }
    if let Some(name) = hello.name {
        client::set_name(session.entry(), name)?;
    }
    if let Some(protocol) = hello.protocol {
        session.set_protocol(protocol);
    }
    Ok(welcome(core, session.protocol(), session.entry().id))
}

/// AUTH or HELLO with a password that takes time.
pub(super) async fn log_in(
    core: &Core,
    connection: ConnectionContext<'_>,
    command: &Command,
) -> CommandResult {
    let entry = connection.account.entry();
    let (login, hello) = match command.is(0, "HELLO") {
        true => {
            let mut hello = read_hello(command)?;
            let login = hello.login.take().ok_or(failure::SYNTAX)?;
            (login, Some(hello))
        }
        false => (read_auth(core, command)?, None),
    };
    let users = &core.options().users;
    let sha = Sha::of(login.password);
    let checked = users.check(core.tools(), &entry.address.0, login.name, sha);
    let user = match checked.await {
        Ok(user) => user,
        Err(failure) => {
            if failure == WRONG_PASSWORD {
                let known = users.get(login.name).is_some();
                users.denials.push(&Denial {
                    reason: Reason::Login,
                    context: Context::Alone,
                    object: command.get(0),
                    user: known.then_some(login.name),
                    client: entry,
                    now: core.shared.now(),
                    wall: core.shared.wall_clock(),
                });
            }
            return Err(failure);
        }
    };
    let_in(core, entry, &user);
    let protocol = hello.as_ref().and_then(|hello| hello.protocol);
    connection.block.log_in(Login {
        user: Arc::clone(&user),
        protocol,
    });
    let Some(hello) = hello else {
        return Ok(Reply::OK);
    };
    if let Some(name) = hello.name {
        client::set_name(entry, name)?;
    }
    let protocol = protocol.unwrap_or(entry.protocol());
    Ok(welcome(core, protocol, entry.id))
}

/// What HELLO answers.
fn welcome(core: &Core, protocol: Protocol, id: u64) -> Reply {
    Reply::Map(vec![
        (Reply::Text("server"), Reply::Text(SERVER_NAME)),
        (Reply::Text("version"), Reply::Text(REDIS_VERSION)),
        (Reply::Text("proto"), Reply::Integer(protocol.number())),
        (Reply::Text("id"), Reply::count(id)),
        (Reply::Text("mode"), Reply::Text(core.options().mode())),
        (Reply::Text("role"), Reply::Text("master")),
        (Reply::Text("modules"), Reply::Array(Vec::new())),
        (
            Reply::Text("pluvio_version"),
            Reply::copy(&core.options().version),
        ),
    ])
}

pub(super) fn select(core: &Core, session: &mut Session, command: &Command) -> CommandResult {
    session.set_database(selected(core, command)?);
    Ok(Reply::OK)
}

/// The database that SELECT chooses.
pub(crate) fn selected(core: &Core, command: &Command) -> Result<DatabaseId, Failure> {
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
