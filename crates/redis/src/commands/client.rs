//! The CLIENT command.

use super::CommandResult;
use crate::clients::ClientEntry;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::pause::Paused;
use crate::reply::{Failure, Reply};
use crate::session::{Answers, Session};
use crate::shared::Core;
use crate::table::wrong_subcommand;
use crate::users::Users;
use core::time::Duration;

const BAD_NAME: Failure =
    Failure::fixed("ERR Client names cannot contain spaces, newlines or special characters.");
const NO_SUCH_CLIENT: Failure = Failure::fixed("ERR No such client");
const BAD_ID: Failure = Failure::fixed("ERR client-id should be greater than 0");
const BAD_AGE: Failure = Failure::fixed("ERR maxage should be greater than 0");
const INVALID_ID: Failure = Failure::fixed("ERR Invalid client ID");

/// Longest name or library text that is kept; Redis keeps any, but these show in every list.
const TEXT_MAX: usize = 1024;

fn is_plain(text: &[u8]) -> bool {
    text.len() <= TEXT_MAX && text.iter().all(|b| (b'!'..=b'~').contains(b))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn check_name(name: &[u8]) -> Result<(), Failure> {
    if is_plain(name) {
        Ok(())
    } else {
        Err(BAD_NAME)
    }
}

pub(super) fn set_name(entry: &ClientEntry, name: &[u8]) -> CommandResult {
    check_name(name)?;
    entry.change_texts(|texts| texts.name = text(name));
    Ok(Reply::OK)
}

pub(super) fn get_name(session: &Session) -> Reply {
    let name = session.entry().texts().name;
    if name.is_empty() {
        Reply::Nil
    } else {
        Reply::copy(name)
    }
}

pub(super) fn set_info(session: &Session, command: &Command) -> CommandResult {
    let (option, value) = (command.get(2), command.get(3));
    let library = option.eq_ignore_ascii_case(b"lib-name");
    if !library && !option.eq_ignore_ascii_case(b"lib-ver") {
        let text = [b"ERR Unrecognized option '", option, b"'"].concat();
        return Err(Failure::new(text));
    }
    if !is_plain(value) {
        let option = option.to_ascii_lowercase();
        let text = [
            &option[..],
            b" cannot contain spaces, newlines or special characters.",
        ];
        return Err(Failure::new([b"ERR ", text.concat().as_slice()].concat()));
    }
    session.entry().change_texts(|texts| {
        if library {
            texts.library = text(value);
        } else {
            texts.library_version = text(value);
        }
    });
    Ok(Reply::OK)
}

pub(super) fn on_or_off(command: &Command) -> CommandResult {
    if command.is(2, "on") || command.is(2, "off") {
        Ok(Reply::OK)
    } else {
        Err(failure::SYNTAX)
    }
}

pub(super) fn reply(session: &mut Session, command: &Command) -> CommandResult {
    if command.is(2, "on") {
        session.set_answers(Answers::On);
    } else if command.is(2, "off") {
        session.set_answers(Answers::Off);
    } else if command.is(2, "skip") {
        session.skip_next();
    } else {
        return Err(failure::SYNTAX);
    }
    Ok(Reply::OK)
}

pub(super) fn unblock(command: &Command) -> CommandResult {
    let known = command.is(3, "timeout") || command.is(3, "error");
    if command.len() > 4 || (command.len() == 4 && !known) {
        return Err(Failure::fixed(
            "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
        ));
    }
    integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    Ok(Reply::Integer(0))
}

const BAD_PAUSE: Failure = Failure::fixed("ERR CLIENT PAUSE mode must be WRITE or ALL");

/// CLIENT PAUSE.
pub(super) fn pause(core: &Core, command: &Command) -> CommandResult {
    let paused = match command.len() {
        3 => Paused::All,
        4 if command.is(3, "WRITE") => Paused::Writes,
        4 if command.is(3, "ALL") => Paused::All,
        4 => return Err(BAD_PAUSE),
        _ => return Err(wrong_subcommand(command)),
    };
    let time = integer(command.get(2)).ok_or(failure::BAD_TIMEOUT)?;
    let time = u64::try_from(time).map_err(|_| failure::NEGATIVE_TIMEOUT)?;
    let now = core.shared.now();
    core.shared
        .pause
        .begin(paused, now, Duration::from_millis(time));
    Ok(Reply::OK)
}

/// CLIENT UNPAUSE.
pub(super) fn unpause(core: &Core) -> Reply {
    core.shared.pause.end();
    for entry in core.shared.clients.all() {
        entry.wake();
    }
    Reply::OK
}

/// CLIENT TRACKINGINFO: tracking is never on.
pub(super) fn tracking_info() -> Reply {
    Reply::Map(vec![
        (Reply::Text("flags"), Reply::Set(vec![Reply::Text("off")])),
        (Reply::Text("redirect"), Reply::Integer(-1)),
        (Reply::Text("prefixes"), Reply::Array(Vec::new())),
    ])
}

pub(super) fn info(core: &Core, session: &Session) -> Reply {
    let line = session.entry().describe(core.shared.now());
    Reply::Verbatim(line + "\n")
}

/// Whether all our connections are of this type.
fn is_type(name: &[u8]) -> Result<bool, Failure> {
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if is("normal") {
        Ok(true)
    } else if is("master") || is("replica") || is("slave") || is("pubsub") {
        Ok(false)
    } else {
        let text = [b"ERR Unknown client type '", name, b"'"].concat();
        Err(Failure::new(text))
    }
}

fn positive(id: &[u8]) -> Option<u64> {
    let id = u64::try_from(integer(id)?).ok()?;
    (id > 0).then_some(id)
}

pub(super) fn list(core: &Core, command: &Command) -> CommandResult {
    let mut wanted: Box<dyn Fn(&ClientEntry) -> bool> = Box::new(|_| true);
    if command.len() == 4 && command.is(2, "TYPE") {
        let all = is_type(command.get(3))?;
        wanted = Box::new(move |_| all);
    } else if command.len() > 3 && command.is(2, "ID") {
        let ids: Option<Vec<i64>> = command.from(3).map(integer).collect();
        let ids = ids.ok_or(INVALID_ID)?;
        wanted = Box::new(move |entry| i64::try_from(entry.id).is_ok_and(|id| ids.contains(&id)));
    } else if command.len() != 2 {
        return Err(failure::SYNTAX);
    }
    let now = core.shared.now();
    let mut lines = String::new();
    for entry in core.shared.clients.alive() {
        if wanted(&entry) {
            lines += &entry.describe(now);
            lines.push('\n');
        }
    }
    Ok(Reply::Verbatim(lines))
}

/// Which connections CLIENT KILL means.
struct Victims<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    of_type: bool,
    /// Seconds that they have been open at least.
    age: u64,
    skip_me: bool,
}

fn victims<'c>(users: &Users, command: &'c Command) -> Result<Victims<'c>, Failure> {
    let mut victims = Victims {
        id: None,
        address: None,
        local: None,
        user: None,
        of_type: true,
        age: 0,
        skip_me: true,
    };
    let mut at = 2;
    while at < command.len() {
        if at + 1 >= command.len() {
            return Err(failure::SYNTAX);
        }
        let value = command.get(at + 1);
        if command.is(at, "ID") {
            victims.id = Some(positive(value).ok_or(BAD_ID)?);
        } else if command.is(at, "TYPE") {
            victims.of_type = is_type(value)?;
        } else if command.is(at, "ADDR") {
            victims.address = Some(value);
        } else if command.is(at, "LADDR") {
            victims.local = Some(value);
        } else if command.is(at, "USER") {
            if users.get(value).is_none() {
                let text = [b"ERR No such user '", value, b"'"].concat();
                return Err(Failure::new(text));
            }
            victims.user = Some(value);
        } else if command.is(at, "MAXAGE") {
            let age = integer(value).ok_or(failure::NOT_INTEGER)?;
            victims.age = u64::try_from(age)
                .ok()
                .filter(|age| *age > 0)
                .ok_or(BAD_AGE)?;
        } else if command.is(at, "SKIPME") && command.is(at + 1, "yes") {
            victims.skip_me = true;
        } else if command.is(at, "SKIPME") && command.is(at + 1, "no") {
            victims.skip_me = false;
        } else {
            return Err(failure::SYNTAX);
        }
        at += 2;
    }
    Ok(victims)
}

pub(super) fn kill(core: &Core, session: &mut Session, command: &Command) -> CommandResult {
    let old_form = command.len() == 3;
    let victims = if old_form {
        Victims {
            id: None,
            address: Some(command.get(2)),
            local: None,
            user: None,
            of_type: true,
            age: 0,
            skip_me: false,
        }
    } else {
        victims(&core.options().users, command)?
    };
    let mut killed = 0;
    let now = core.shared.now();
    for entry in core.shared.clients.alive() {
        let hit = victims.id.is_none_or(|id| id == entry.id)
            && victims
                .address
                .is_none_or(|a| a == entry.address.0.as_bytes())
            && victims.user.is_none_or(|user| *entry.user().0 == *user)
            && victims.local.is_none_or(|a| a == entry.local.0.as_bytes())
            && entry.age(now).as_secs() >= victims.age
            && victims.of_type;
        let me = entry.id == session.entry().id;
        if !hit || (me && victims.skip_me) {
            continue;
        }
        killed += 1;
        if me {
            // The reply is still sent.
            session.close();
        } else {
            entry.kill();
        }
    }
    match (old_form, killed) {
        (true, 0) => Err(NO_SUCH_CLIENT),
        (true, _) => Ok(Reply::OK),
        (false, killed) => Ok(Reply::count(killed)),
    }
}
