//! FUNCTION: the libraries of functions of a cluster.
//!
//! In Redis each node of a cluster has libraries of its own, so cluster clients send LOAD, DELETE
//! and RESTORE to every node. Here the first one does it. On the port for such clients a library
//! with the same source may therefore be there already, and one to delete may be gone.

use super::{CommandResult, script};
use crate::failure;
use crate::give_way::give_way;
use crate::parser::Command;
use crate::rdb::{self, BadFunctions};
use crate::reply::{Failure, Reply};
use crate::scripts::{Existing, LIBRARIES_MAX, RunningFunction};
use crate::shared::Core;
use crate::table::wrong_subcommand;
use bytes::Bytes;
use pluvio_client::MULTI_BYTES_MAX;
use pluvio_script::Library;
use std::collections::BTreeSet;

/// Most bytes of sources that one FUNCTION RESTORE takes: they are kept at one moment, and names
/// need some room beside them.
const RESTORED_BYTES_MAX: usize = MULTI_BYTES_MAX / 8 * 7;

/// FUNCTION LOAD.
pub(super) async fn load(core: &Core, command: &Command) -> CommandResult {
    let replaces = command.len() == 4 && command.is(2, "REPLACE");
    if command.len() != 3 && !replaces {
        let option = String::from_utf8_lossy(command.get(2)).into_owned();
        return Err(Failure::new(format!("ERR Unknown option given: {option}")));
    }
    let source = command.share(command.len() - 1);
    let library = script::library(&source, &core.databases.parts().clock)?;
    let name = library.name.clone();
    let scripts = &core.shared.scripts;
    let client = core.databases.client();
    let how = match replaces {
        true => Existing::Replace,
        false => keep(core),
    };
    scripts.load_library(client, library, source, how).await?;
    Ok(Reply::copy(name.as_bytes()))
}

/// How libraries stay that are there.
fn keep(core: &Core) -> Existing {
    match core.options().cluster {
        Some(_) => Existing::KeepEqual,
        None => Existing::Keep,
    }
}

/// FUNCTION DUMP.
pub(super) async fn dump(core: &Core) -> CommandResult {
    let scripts = &core.shared.scripts;
    let libraries = scripts.libraries(core.databases.client()).await?;
    let sources = libraries.values().map(|(_, source)| &source[..]);
    Ok(Reply::Bulk(rdb::dump_functions(sources).into()))
}

/// FUNCTION RESTORE: all libraries of a payload are kept, or none of them.
pub(super) async fn restore(core: &Core, command: &Command) -> CommandResult {
    let how = match command.len() {
        3 => keep(core),
        4 if command.is(3, "APPEND") => keep(core),
        4 if command.is(3, "REPLACE") => Existing::Replace,
        4 if command.is(3, "FLUSH") => Existing::Forget,
        4 => return Err(BAD_POLICY),
        _ => return Err(wrong_subcommand(command)),
    };
    let libraries = loaded(core, &command.share(2)).await?;
    let scripts = &core.shared.scripts;
    let client = core.databases.client();
    scripts.restore_libraries(client, &libraries, how).await?;
    Ok(Reply::OK)
}

const BAD_POLICY: Failure = Failure::fixed(
    "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
);

/// The libraries of a payload. Each is loaded by itself, and other commands go on in between: a
/// hostile payload is full of libraries that take long.
async fn loaded(core: &Core, payload: &Bytes) -> Result<Vec<(Library, Bytes)>, Failure> {
    let mut functions = rdb::Functions::of(payload).map_err(|_| failure::BAD_FOOTER)?;
    let (mut libraries, mut names) = (Vec::new(), [BTreeSet::new(), BTreeSet::new()]);
    let mut bytes = 0;
    while let Some(source) = functions.next_source().map_err(bad)? {
        bytes += source.len();
        if libraries.len() == LIBRARIES_MAX || bytes > RESTORED_BYTES_MAX {
            return Err(Failure::new(format!(
                "ERR the payload is too large: it may have {LIBRARIES_MAX} libraries with \
                 {RESTORED_BYTES_MAX} bytes"
            )));
        }
        let library = script::library(&source, &core.databases.parts().clock)?;
        let [ref mut of_libraries, ref mut of_functions] = names;
        if !of_libraries.insert(library.name.clone()) {
            let name = &library.name;
            return Err(Failure::new(format!("ERR Library '{name}' already exists")));
        }
        for function in &library.functions {
            let name = &function.name;
            if !of_functions.insert(name.clone()) {
                return Err(Failure::new(format!("ERR Function {name} already exists")));
            }
        }
        libraries.push((library, source));
        give_way().await;
    }
    Ok(libraries)
}

fn bad(why: BadFunctions) -> Failure {
    match why {
        BadFunctions::NoFunction => Failure::fixed("ERR given type is not a function"),
        BadFunctions::TooEarly => Failure::fixed("ERR Pre-GA function format not supported"),
        BadFunctions::Format => Failure::fixed("ERR Failed loading library payload"),
        BadFunctions::TooLong => failure::too_long(),
    }
}

/// FUNCTION DELETE.
pub(super) async fn delete(core: &Core, command: &Command) -> CommandResult {
    let client = core.databases.client();
    core.shared
        .scripts
        .delete_library(client, command.get(2), core.options().cluster.is_some())
        .await?;
    Ok(Reply::OK)
}

/// FUNCTION FLUSH.
pub(super) async fn flush(core: &Core, command: &Command) -> CommandResult {
    let is_mode = command.is(2, "SYNC") || command.is(2, "ASYNC");
    if command.len() > 3 {
        return Err(wrong_subcommand(command));
    }
    if command.len() == 3 && !is_mode {
        return Err(Failure::fixed(
            "ERR FUNCTION FLUSH only supports SYNC|ASYNC option",
        ));
    }
    core.shared
        .scripts
        .flush_libraries(core.databases.client())
        .await?;
    Ok(Reply::OK)
}

const NO_LIBRARY_NAME: Failure = Failure::fixed("ERR library name argument was not given");

/// FUNCTION LIST.
pub(super) async fn list(core: &Core, command: &Command) -> CommandResult {
    let (mut with_code, mut pattern) = (false, None);
    let mut at = 2;
    while at < command.len() {
        if command.is(at, "WITHCODE") && !with_code {
            with_code = true;
        } else if command.is(at, "LIBRARYNAME") && pattern.is_none() {
            at += 1;
            if at == command.len() {
                return Err(NO_LIBRARY_NAME);
            }
            pattern = Some(command.share(at));
        } else {
            let option = String::from_utf8_lossy(command.get(at)).into_owned();
            return Err(Failure::new(format!("ERR Unknown argument {option}")));
        }
        at += 1;
    }
    let libraries = core
        .shared
        .scripts
        .libraries(core.databases.client())
        .await?;
    let shown = libraries.values().filter(|(library, _)| {
        let name = library.name.as_bytes();
        pattern
            .as_ref()
            .is_none_or(|pattern| crate::glob::matches_any_case(pattern, name))
    });
    Ok(Reply::Array(
        shown
            .map(|(library, source)| described(library, source, with_code))
            .collect(),
    ))
}

fn described(library: &Library, source: &Bytes, with_code: bool) -> Reply {
    let functions = library.functions.iter().map(|function| {
        let flags = function.flags.names().into_iter().map(Reply::Status);
        let description = function.description.clone().map(Bytes::from);
        Reply::Map(vec![
            (Reply::Text("name"), Reply::copy(function.name.as_bytes())),
            (Reply::Text("description"), Reply::bulk_or_nil(description)),
            (Reply::Text("flags"), Reply::Set(flags.collect())),
        ])
    });
    let mut fields = vec![
        (
            Reply::Text("library_name"),
            Reply::copy(library.name.as_bytes()),
        ),
        (Reply::Text("engine"), Reply::Text("LUA")),
        (Reply::Text("functions"), Reply::Array(functions.collect())),
    ];
    if with_code {
        fields.push((Reply::Text("library_code"), Reply::Bulk(source.clone())));
    }
    Reply::Map(fields)
}

/// FUNCTION STATS.
pub(super) async fn stats(core: &Core) -> CommandResult {
    let libraries = core
        .shared
        .scripts
        .libraries(core.databases.client())
        .await?;
    let functions: usize = libraries
        .values()
        .map(|(library, _)| library.functions.len())
        .sum();
    let lua = Reply::Map(vec![
        (
            Reply::Text("libraries_count"),
            Reply::count(libraries.len() as u64),
        ),
        (
            Reply::Text("functions_count"),
            Reply::count(functions as u64),
        ),
    ]);
    let running = core.shared.scripts.running_function();
    Ok(Reply::Map(vec![
        (
            Reply::Text("running_script"),
            running.map_or(Reply::Nil, |function| running_script(core, &function)),
        ),
        (
            Reply::Text("engines"),
            Reply::Map(vec![(Reply::Text("LUA"), lua)]),
        ),
    ]))
}

/// A function that runs: as in Redis, its name, the command that called it, and for how long.
fn running_script(core: &Core, function: &RunningFunction) -> Reply {
    let parts = 0..function.command.len();
    let parts = parts.map(|at| Reply::Bulk(function.command.share(at)));
    let since = core.shared.now().since(function.since).as_millis();
    Reply::Map(vec![
        (Reply::Text("name"), Reply::copy(function.name.as_bytes())),
        (Reply::Text("command"), Reply::Array(parts.collect())),
        (
            Reply::Text("duration_ms"),
            Reply::count(u64::try_from(since).unwrap_or(u64::MAX)),
        ),
    ])
}
