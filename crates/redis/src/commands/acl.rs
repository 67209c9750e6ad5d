//! ACL: the one user, `default`, which needs no password and may do everything.

use super::CommandResult;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::table::SPECS;
use std::collections::BTreeSet;

/// The categories that commands of the table may have.
fn categories() -> BTreeSet<&'static str> {
    let all = SPECS.iter().flat_map(|spec| spec.categories.split(' '));
    all.filter(|word| !word.is_empty()).collect()
}

pub(super) fn who_am_i() -> Reply {
    Reply::Text("default")
}

pub(super) fn users() -> Reply {
    Reply::Array(vec![who_am_i()])
}

pub(super) fn list() -> Reply {
    let rules = "user default on nopass ~* &* +@all";
    Reply::Array(vec![Reply::Text(rules)])
}

pub(super) fn user(command: &Command) -> Reply {
    if command.get(2) != b"default" {
        return Reply::Nil;
    }
    let flags = ["on", "nopass"].map(Reply::Text);
    Reply::Map(vec![
        (Reply::Text("flags"), Reply::Set(flags.to_vec())),
        (Reply::Text("passwords"), Reply::Array(Vec::new())),
        (Reply::Text("commands"), Reply::Text("+@all")),
        (Reply::Text("keys"), Reply::Text("~*")),
        (Reply::Text("channels"), Reply::Text("&*")),
        (Reply::Text("selectors"), Reply::Array(Vec::new())),
    ])
}

/// ACL CAT: the categories, or the commands of one.
pub(super) fn categories_or_commands(command: &Command) -> CommandResult {
    match command.len() {
        2 => Ok(Reply::Array(
            categories().into_iter().map(Reply::Text).collect(),
        )),
        3 => {
            let name = command.get(2);
            let is = |word: &str| word.as_bytes().eq_ignore_ascii_case(name);
            if !categories().into_iter().any(is) {
                let text = [b"ERR Unknown category '", name, b"'"].concat();
                return Err(Failure::new(text));
            }
            let has = SPECS
                .iter()
                .filter(|spec| spec.categories.split(' ').any(is));
            Ok(Reply::Array(
                has.map(|spec| Reply::Text(spec.name)).collect(),
            ))
        }
        _ => Err(crate::table::wrong_subcommand("ACL", "cat")),
    }
}
