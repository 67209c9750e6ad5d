//! The COMMAND command: the table, told to clients that route by it.

use super::CommandResult;
use crate::failure;
use crate::glob;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::table::{Keys, Run, SPECS, Spec, find, find_called};

fn top_level() -> impl Iterator<Item = &'static Spec> {
    SPECS.iter().filter(|spec| spec.container().is_none())
}

fn spec(number: u16) -> &'static Spec {
    &SPECS[usize::from(number)]
}

fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split(' ').filter(|word| !word.is_empty())
}

fn statuses(words: impl Iterator<Item = &'static str>) -> Reply {
    Reply::Set(words.map(Reply::Status).collect())
}

fn integer(value: usize) -> Reply {
    Reply::count(value as u64)
}

pub(super) fn count() -> Reply {
    integer(top_level().count())
}

pub(super) fn all() -> Reply {
    Reply::Array(top_level().map(describe).collect())
}

pub(super) fn info(command: &Command) -> Reply {
    if command.len() == 2 {
        return all();
    }
    let one = |name| find(name).map_or(Reply::Nil, |n| describe(spec(n)));
    Reply::Array(command.from(2).map(one).collect())
}

/// The ten fields of COMMAND INFO.
fn describe(spec: &'static Spec) -> Reply {
    let categories = words(spec.categories).map(|word| Reply::Word(format!("@{word}")));
    // Where their number is given, their places are not.
    let keys = match spec.keys.count_at {
        0 => spec.keys,
        _ => Keys::NONE,
    };
    let last = i64::try_from(keys.last).unwrap_or_default();
    Reply::Array(vec![
        Reply::Text(spec.name),
        Reply::Integer(spec.arity),
        statuses(words(spec.flags)),
        integer(keys.first),
        Reply::Integer(last),
        integer(keys.step),
        Reply::Set(categories.collect()),
        Reply::Set(words(spec.tips).map(Reply::Text).collect()),
        Reply::Array(key_specs(spec)),
        Reply::Array(spec.subcommands().map(describe).collect()),
    ])
}

/// Where the keys are and what is done with them; two keys that are used differently are two.
fn key_specs(spec: &'static Spec) -> Vec<Reply> {
    if spec.keys == Keys::NONE {
        return Vec::new();
    }
    if spec.keys.count_at > 0 {
        let count = vec![(Reply::Text("index"), integer(spec.keys.count_at))];
        let keys = vec![
            (Reply::Text("keynumidx"), Reply::Integer(0)),
            (Reply::Text("firstkey"), Reply::Integer(1)),
            (Reply::Text("keystep"), integer(spec.keys.step)),
        ];
        return vec![Reply::Map(vec![
            (Reply::Text("flags"), statuses(words(spec.access))),
            (Reply::Text("begin_search"), typed("index", count)),
            (Reply::Text("find_keys"), typed("keynum", keys)),
        ])];
    }
    let uses: Vec<_> = spec.access.split('/').collect();
    let separate = uses.len() > 1;
    let one = |(index, access): (usize, &&'static str)| {
        let last = match (separate, spec.keys.last) {
            (false, last) if last < 0 => Reply::Integer(-1),
            _ => Reply::Integer(0),
        };
        let range = vec![
            (Reply::Text("lastkey"), last),
            (Reply::Text("keystep"), integer(spec.keys.step)),
            (Reply::Text("limit"), Reply::Integer(0)),
        ];
        let first = spec.keys.first + if separate { index } else { 0 };
        let begin = vec![(Reply::Text("index"), integer(first))];
        Reply::Map(vec![
            (Reply::Text("flags"), statuses(words(access))),
            (Reply::Text("begin_search"), typed("index", begin)),
            (Reply::Text("find_keys"), typed("range", range)),
        ])
    };
    uses.iter().enumerate().map(one).collect()
}

fn typed(kind: &'static str, fields: Vec<(Reply, Reply)>) -> Reply {
    Reply::Map(vec![
        (Reply::Text("type"), Reply::Text(kind)),
        (Reply::Text("spec"), Reply::Map(fields)),
    ])
}

pub(super) fn docs(command: &Command) -> Reply {
    let described: Vec<_> = if command.len() == 2 {
        top_level().collect()
    } else {
        command.from(2).filter_map(find).map(spec).collect()
    };
    let pairs = described
        .into_iter()
        .map(|s| (Reply::Text(s.name), document(s)));
    Reply::Map(pairs.collect())
}

fn document(spec: &'static Spec) -> Reply {
    let mut fields = vec![
        (Reply::Text("summary"), Reply::Text(spec.summary)),
        (Reply::Text("since"), Reply::Text(spec.since)),
        (Reply::Text("group"), Reply::Text(spec.group)),
    ];
    let subcommands = spec
        .subcommands()
        .map(|s| (Reply::Text(s.name), document(s)));
    let subcommands: Vec<_> = subcommands.collect();
    if !subcommands.is_empty() {
        fields.push((Reply::Text("subcommands"), Reply::Map(subcommands)));
    }
    Reply::Map(fields)
}

/// What a command does with its keys. That of SET depends on its options.
fn access_of(spec: &'static Spec, command: &Command) -> &'static str {
    if spec.name != "set" {
        return spec.access;
    }
    // `COMMAND GETKEYSANDFLAGS SET key value` comes before the options.
    let reads = (5..command.len()).any(|at| command.is(at, "GET"));
    if reads {
        "RW access update"
    } else {
        "OW update"
    }
}

pub(super) fn keys(command: &Command, with_flags: bool) -> CommandResult {
    let parts = command.len() - 2;
    let sub = (parts > 1).then(|| command.get(3));
    let found = find_called(command.get(2), sub);
    let spec = spec(found.ok_or(Failure::fixed("ERR Invalid command specified"))?);
    if spec.keys == Keys::NONE || spec.run == Run::Container {
        return Err(Failure::fixed("ERR The command has no key arguments"));
    }
    if !spec.accepts(parts) {
        return Err(Failure::fixed(
            "ERR Invalid number of arguments specified for command",
        ));
    }
    let uses: Vec<_> = access_of(spec, command).split('/').collect();
    let key = |(index, at): (usize, usize)| {
        let key = Reply::Bulk(command.share(at + 2));
        if !with_flags {
            return key;
        }
        let access = uses.get(index).or(uses.last()).copied().unwrap_or_default();
        Reply::Array(vec![key, statuses(words(access))])
    };
    let called: Vec<&[u8]> = command.from(2).collect();
    let keys = spec.keys.of(&Command::from_parts(&called));
    let keys = keys.enumerate().map(key);
    Ok(Reply::Array(keys.collect()))
}

pub(super) fn list(command: &Command) -> CommandResult {
    let names = |wanted: &dyn Fn(&Spec) -> bool, all: bool| {
        let shown = SPECS.iter().filter(|s| all || s.container().is_none());
        let names = shown.filter(|s| wanted(s)).map(|s| Reply::Text(s.name));
        Ok(Reply::Array(names.collect()))
    };
    if command.len() == 2 {
        return names(&|_| true, false);
    }
    if command.len() != 5 || !command.is(2, "FILTERBY") {
        return Err(failure::SYNTAX);
    }
    let text = command.get(4);
    if command.is(3, "PATTERN") {
        names(&|s| glob::matches_any_case(text, s.name.as_bytes()), true)
    } else if command.is(3, "ACLCAT") {
        names(
            &|s| words(s.categories).any(|c| text.eq_ignore_ascii_case(c.as_bytes())),
            true,
        )
    } else if command.is(3, "MODULE") {
        names(&|_| false, true)
    } else {
        Err(failure::SYNTAX)
    }
}
