//! ACL: users, their passwords and their rights.

use super::{CommandResult, ConnectionContext};
use crate::database::DatabaseId;
use crate::failure::{self, reason};
use crate::memory::MemoryAccount;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::session::Session;
use crate::shared::Core;
use crate::table::{SPECS, find_called, wrong_arity, wrong_subcommand};
use crate::users::denials::{Entry, trace_done};
use crate::users::password::hex;
use crate::users::rights::{CATEGORIES, Denied, Rights, is_in};
use crate::users::rules::{DEFAULT, User, merged};
use bytes::Bytes;
use std::sync::Arc;

const NO_ACL_FILE: Failure = Failure::fixed(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users \
     via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis \
     configuration file set) in order to store users in the Redis configuration.",
);
const DEFAULT_STAYS: Failure = Failure::fixed("ERR The 'default' user cannot be removed");
const BAD_BITS: Failure = Failure::fixed(
    "ERR ACL GENPASS argument must be the number of bits for the output password, a positive \
     number up to 4096",
);
/// Bits of a password, unless told otherwise.
const BITS_DEFAULT: i64 = 256;
const BITS_MAX: i64 = 4096;
/// Entries that ACL LOG gives, unless told otherwise.
const ENTRIES_DEFAULT: usize = 10;

pub(super) fn who_am_i(session: &Session) -> Reply {
    Reply::copy(&session.user().name)
}

/// ACL SAVE and ACL LOAD.
pub(super) fn no_file() -> Failure {
    NO_ACL_FILE
}

/// ACL USERS.
pub(super) async fn users(core: &Core) -> CommandResult {
    core.read_users().await?;
    let all = core.options().users.all();
    Ok(Reply::Array(all.keys().map(Reply::copy).collect()))
}

/// ACL LIST.
pub(super) async fn list(core: &Core) -> CommandResult {
    core.read_users().await?;
    let all = core.options().users.all();
    let line = |user: &Arc<User>| {
        let line = [b"user ", &user.name[..], b" ", &user.text()[..]].concat();
        Reply::Bulk(line.into())
    };
    Ok(Reply::Array(all.values().map(line).collect()))
}

/// ACL GETUSER.
pub(super) async fn user(core: &Core, command: &Command) -> CommandResult {
    core.read_users().await?;
    let Some(user) = core.options().users.get(command.get(2)) else {
        return Ok(Reply::Nil);
    };
    let flags = user.flags().into_iter().map(Reply::Text);
    let passwords = user.passwords.iter();
    let passwords = passwords.map(|kept| Reply::copy(kept.text()));
    let mut fields = vec![
        (Reply::Text("flags"), Reply::Set(flags.collect())),
        (Reply::Text("passwords"), Reply::Array(passwords.collect())),
    ];
    fields.extend(shown(&user.rights));
    let selectors = user.selectors.iter();
    let selectors = selectors.map(|selector| Reply::Map(shown(selector)));
    fields.push((Reply::Text("selectors"), Reply::Array(selectors.collect())));
    Ok(Reply::Map(fields))
}

fn shown(rights: &Rights) -> Vec<(Reply, Reply)> {
    let bytes = |text: Vec<u8>| Reply::Bulk(Bytes::from(text));
    vec![
        (
            Reply::Text("commands"),
            bytes(rights.commands_text().into_bytes()),
        ),
        (Reply::Text("keys"), bytes(rights.keys_text())),
        (Reply::Text("channels"), bytes(rights.channels_text())),
        (
            Reply::Text("databases"),
            bytes(rights.databases_text().into_bytes()),
        ),
    ]
}

/// ACL SETUSER.
pub(super) async fn set(core: &Core, account: &MemoryAccount, command: &Command) -> CommandResult {
    let words: Vec<&[u8]> = command.from(3).collect();
    let rules = merged(&words)?;
    let name = command.get(2);
    let (users, entry) = (&core.options().users, account.entry());
    let is_new = users.change(core.tools(), name, rules).await?;
    let what = if is_new { "user made" } else { "user changed" };
    trace_done(what, name, &entry.user().0, entry);
    core.shared.close_gone(None);
    Ok(Reply::OK)
}

/// ACL DELUSER.
pub(super) async fn delete(
    core: &Core,
    connection: ConnectionContext<'_>,
    command: &Command,
) -> CommandResult {
    if command.from(2).any(|name| name == DEFAULT) {
        return Err(DEFAULT_STAYS);
    }
    let (users, entry) = (&core.options().users, connection.account.entry());
    let own = entry.user().0;
    let deleted = users.delete(core.tools(), command.from(2)).await?;
    for name in &deleted {
        trace_done("user deleted", name, &own, entry);
        if **name == *own {
            // The answer is still sent.
            connection.block.end();
        }
    }
    core.shared.close_gone(Some(entry.id));
    Ok(Reply::count(deleted.len() as u64))
}

/// ACL DRYRUN, in a database.
pub(super) async fn dry_run(core: &Core, database: DatabaseId, command: &Command) -> CommandResult {
    core.read_users().await?;
    let name = command.get(2);
    let Some(user) = core.options().users.get(name) else {
        return Err(Failure::new([b"ERR User '", name, b"' not found"].concat()));
    };
    let parts: Vec<&[u8]> = command.from(3).collect();
    let called = Command::from_parts(&parts);
    let Some(spec) = find_called(called.get(0), parts.get(1).copied()) else {
        let text = [b"ERR Command '", called.get(0), b"' not found"];
        return Err(Failure::new(text.concat()));
    };
    let row = &SPECS[usize::from(spec)];
    if !row.accepts(parts.len()) {
        return Err(wrong_arity(row.name));
    }
    Ok(match user.check(spec, database, &called) {
        Ok(()) => Reply::OK,
        Err(denied) => {
            let object = match denied {
                Denied::Key(at) | Denied::Database(at) => Some(called.get(at)),
                Denied::Command => None,
            };
            Reply::Bulk(reason(denied, name, row, object).into())
        }
    })
}

/// ACL GENPASS.
pub(super) fn password(core: &Core, command: &Command) -> CommandResult {
    let bits = match command.len() {
        2 => BITS_DEFAULT,
        3 => integer(command.get(2)).ok_or(failure::NOT_INTEGER)?,
        _ => return Err(wrong_subcommand(command)),
    };
    if !(1..=BITS_MAX).contains(&bits) {
        return Err(BAD_BITS);
    }
    let digits = usize::try_from(bits).unwrap_or(0).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    core.databases.parts().rng.fill_secret(&mut bytes);
    Ok(Reply::copy(&hex(&bytes)[..digits]))
}

/// ACL LOG.
pub(super) fn log(core: &Core, command: &Command) -> CommandResult {
    let denials = &core.options().users.denials;
    let count = match command.len() {
        2 => ENTRIES_DEFAULT,
        3 if command.is(2, "RESET") => {
            denials.clear();
            return Ok(Reply::OK);
        }
        3 => {
            let count = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
            usize::try_from(count).unwrap_or(0)
        }
        _ => return Err(wrong_subcommand(command)),
    };
    let now = core.shared.now();
    let show = |entry: Entry| {
        let age = now.since(entry.changed).as_secs_f64();
        let ms = |ms: u64| Reply::count(ms);
        Reply::Map(vec![
            (Reply::Text("count"), Reply::count(entry.count)),
            (Reply::Text("reason"), Reply::Text(entry.reason.word())),
            (Reply::Text("context"), Reply::Text(entry.context.word())),
            (Reply::Text("object"), Reply::Bulk(entry.object.into())),
            (Reply::Text("username"), Reply::Bulk(entry.user.into())),
            (Reply::Text("age-seconds"), Reply::Double(age)),
            (Reply::Text("client-info"), Reply::copy(entry.client)),
            (Reply::Text("entry-id"), Reply::count(entry.id)),
            (Reply::Text("timestamp-created"), ms(entry.created_ms)),
            (Reply::Text("timestamp-last-updated"), ms(entry.changed_ms)),
        ])
    };
    let entries = denials.newest(count).into_iter().map(show);
    Ok(Reply::Array(entries.collect()))
}

/// ACL CAT: the categories, or the commands of one.
pub(super) fn categories_or_commands(command: &Command) -> CommandResult {
    match command.len() {
        2 => Ok(Reply::Array(CATEGORIES.map(Reply::Text).to_vec())),
        3 => {
            let name = command.get(2);
            let is = |word: &&&str| word.as_bytes().eq_ignore_ascii_case(name);
            if !CATEGORIES.iter().any(|word| is(&word)) {
                let text = [b"ERR Unknown category '", name, b"'"].concat();
                return Err(Failure::new(text));
            }
            let has = SPECS.iter().filter(|spec| is_in(spec, name));
            Ok(Reply::Array(
                has.map(|spec| Reply::Text(spec.name)).collect(),
            ))
        }
        _ => Err(wrong_subcommand(command)),
    }
}
