//! `pluvio space`: named memory of programs on this machine, and the spaces that list it.
//!
//! It talks to no server: a registry is a directory.

use clap::{Args, Subcommand};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{
    bytes, number_of, print_json, print_line, table as new_table, table_text,
};
use pluvio_spacejmp::{Access, HeapReport, Registry, SpaceDefinition, SpaceError, SpanInfo};
use pluvio_units::Size;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// `pluvio space`.
#[derive(Args, Clone, Debug)]
pub struct Space {
    /// The directory of the spans and spaces [default: pluvio-spaces in XDG_RUNTIME_DIR, else in
    /// /dev/shm with the user's number]
    #[arg(long, global = true, value_name = "DIR", env = "PLUVIO_SPACES")]
    spaces: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Make a space of spans, and those spans that are not there
    Create {
        /// Its name
        name: String,
        /// Spans, each with =read or =write behind its name [default: write]
        #[arg(value_name = "SPAN", value_parser = member)]
        spans: Vec<(String, Access)>,
        /// Make spans that are not there, as empty heaps of this size
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
        /// The rights of spans that are made, as of chmod
        #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode, requires = "size")]
        mode: u32,
    },
    /// List all spaces, and all spans
    List,
    /// Show a space or a span as it is defined
    Show(Named),
    /// Attach a space, enter it, look at its heaps, and detach: whether programs could use it
    Attach {
        /// Its name
        name: String,
    },
    /// Add a span to a space
    Add {
        /// The space
        name: String,
        /// The span, with =read or =write behind its name [default: write]
        #[arg(value_name = "SPAN", value_parser = member)]
        span: (String, Access),
    },
    /// Take a span out of a space
    Remove {
        /// The space
        name: String,
        /// The span
        span: String,
    },
    /// Copy a space, which shares its spans; or copy a span with its data
    Clone {
        /// What to copy
        #[command(flatten)]
        from: Named,
        /// The name of the copy
        to: String,
    },
    /// Let a span grow; programs have to attach it again
    Grow {
        /// The span
        name: String,
        /// Its new size
        size: Size,
    },
    /// Destroy a space, whose spans stay; or a span that no space lists
    Destroy(Named),
}

/// A space or a span.
#[derive(Args, Clone, Debug)]
struct Named {
    /// Its name
    name: String,
    /// It is a span, not a space
    #[arg(long)]
    span: bool,
}

fn member(text: &str) -> Result<(String, Access), String> {
    match text.split_once('=') {
        None => Ok((text.to_owned(), Access::Write)),
        Some((name, "read")) => Ok((name.to_owned(), Access::Read)),
        Some((name, "write")) => Ok((name.to_owned(), Access::Write)),
        Some((name, _)) => Err(format!("write {name}=read or {name}=write")),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "not a mode: give three octal digits, for example 640".to_owned())
}

fn failure(error: SpaceError) -> Failure {
    match error {
        SpaceError::BadName(_) | SpaceError::BadRange(_) => Failure::usage(error.to_string()),
        error => Failure::new(error.to_string()),
    }
}

/// Runs the command.
pub fn run(global: &Global, space: &Space) -> Result<ExitCode, Failure> {
    let root = space.spaces.clone().unwrap_or_else(Registry::usual_root);
    act(&root, &space.action, global.json)?;
    Ok(ExitCode::SUCCESS)
}

fn act(root: &std::path::Path, action: &Action, json: bool) -> Result<(), Failure> {
    let registry = Registry::open(root).map_err(failure)?;
    match action {
        Action::Create {
            name,
            spans,
            size,
            mode,
        } => {
            let made = create(&registry, name, spans, size.map(|size| (size, *mode)))?;
            show_space(&registry, &made, json)
        }
        Action::List => list(&registry, json),
        Action::Show(Named { name, span: true }) => {
            let info = registry.find_span(name).map_err(failure)?;
            show_span(&info, json)
        }
        Action::Show(Named { name, span: false }) => {
            let definition = registry.find_space(name).map_err(failure)?;
            show_space(&registry, &definition, json)
        }
        Action::Attach { name } => {
            let definition = registry.find_space(name).map_err(failure)?;
            attach(&definition, json)
        }
        Action::Add { name, span } => {
            let (span, access) = span;
            let changed = registry.add_to_space(name, span, *access);
            show_space(&registry, &changed.map_err(failure)?, json)
        }
        Action::Remove { name, span } => {
            let changed = registry.remove_from_space(name, span);
            show_space(&registry, &changed.map_err(failure)?, json)
        }
        Action::Clone { from, to } => {
            if from.span {
                let copy = registry.clone_span(&from.name, to).map_err(failure)?;
                return show_span(&copy, json);
            }
            let copy = registry.clone_space(&from.name, to).map_err(failure)?;
            show_space(&registry, &copy, json)
        }
        Action::Grow { name, size } => {
            registry.grow_span(name, size.bytes()).map_err(failure)?;
            show_span(&registry.find_span(name).map_err(failure)?, json)
        }
        Action::Destroy(Named { name, span }) => {
            let destroyed = match span {
                true => registry.destroy_span(name),
                false => registry.destroy_space(name),
            };
            destroyed.map_err(failure)?;
            match json {
                true => print_json(&json!({ "destroyed": name })),
                false => print_line(&format!("{name} is destroyed")),
            }
        }
    }
}

/// Makes the spans that are not there, of this size and with these rights, and then the space. All
/// names are looked at before anything is made.
///
/// # Errors
/// Something cannot be made. Spans that were made are destroyed again.
fn create(
    registry: &Registry,
    name: &str,
    spans: &[(String, Access)],
    make: Option<(Size, u32)>,
) -> Result<SpaceDefinition, Failure> {
    if let Some((Size(0), _)) = make {
        return Err(Failure::usage(
            "--size 0: a span has some bytes at least; give a size such as 1MiB",
        ));
    }
    let mut names = BTreeSet::new();
    if let Some((twice, _)) = spans.iter().find(|(span, _)| !names.insert(span)) {
        return Err(Failure::usage(format!(
            "{twice} is named twice; a space has each span once"
        )));
    }
    match registry.find_space(name) {
        Ok(_) => {
            let (what, name) = ("space", name.to_owned());
            return Err(failure(SpaceError::Exists { what, name }));
        }
        Err(SpaceError::NotFound { .. }) => {}
        Err(error) => return Err(failure(error)),
    }
    let mut missing = Vec::new();
    for (span, _) in spans {
        match (registry.find_span(span), make) {
            (Err(SpaceError::NotFound { .. }), Some((size, mode))) => {
                missing.push((span, size, mode));
            }
            (found, _) => drop(found.map_err(failure)?),
        }
    }
    let mut made = Vec::new();
    let all = || {
        for (span, size, mode) in missing {
            registry.span(span).size(size.bytes()).mode(mode).create()?;
            made.push(span);
        }
        let spans = spans.iter().map(|(span, access)| (span.as_str(), *access));
        registry.create_space(name, &spans.collect::<Vec<_>>())
    };
    let created = all();
    if created.is_err() {
        for span in made {
            // Another space may list it by now: then it stays.
            let _may_stay = registry.destroy_span(span);
        }
    }
    created.map_err(failure)
}

fn list(registry: &Registry, json: bool) -> Result<(), Failure> {
    let names = registry.spaces().map_err(failure)?;
    let spaces: Vec<_> = names
        .into_iter()
        .map(|name| {
            let found = registry.find_space(&name);
            (name, found)
        })
        .collect();
    let spans = registry.spans().map_err(failure)?;
    if json {
        let spaces = spaces.iter().map(|(name, found)| match found {
            Ok(definition) => space_json(registry, definition),
            Err(error) => json!({ "name": name, "error": error.to_string() }),
        });
        let spans = spans.iter().map(|(name, found)| match found {
            Ok(info) => span_json(info),
            Err(error) => json!({ "name": name, "error": error.to_string() }),
        });
        let (spaces, spans) = (spaces.collect::<Vec<_>>(), spans.collect::<Vec<_>>());
        return print_json(&json!({
            "directory": registry.root(),
            "spaces": spaces,
            "spans": spans,
        }));
    }
    if spaces.is_empty() && spans.is_empty() {
        let root = registry.root().display();
        return print_line(&format!("no spaces and no spans in {root}"));
    }
    let mut table = new_table(&["space", "spans", "changed"], &[2]);
    for (name, found) in &spaces {
        let (members, changed) = match found {
            Ok(definition) => (members_text(definition), changes(definition).to_string()),
            Err(error) => (error.to_string(), String::new()),
        };
        table.add_row([name.clone(), members, changed]);
    }
    print_line(&table_text(&table))?;
    print_line("")?;
    print_line(&span_table(&spans))
}

/// How often it was changed. A file that somebody has written by hand may say anything.
fn changes(definition: &SpaceDefinition) -> u64 {
    definition.generation().saturating_sub(1)
}

fn members_text(definition: &SpaceDefinition) -> String {
    let members = definition
        .members()
        .iter()
        .map(|member| format!("{}={}", member.name, member.access.name()));
    members.collect::<Vec<_>>().join(" ")
}

const SPAN_HEADS: [&str; 7] = [
    "span", "address", "size", "reach", "rights", "kind", "changes",
];

fn span_table(spans: &[(String, pluvio_spacejmp::Result<SpanInfo>)]) -> String {
    let mut table = new_table(&SPAN_HEADS, &[1, 2, 3, 6]);
    for (name, found) in spans {
        match found {
            Ok(info) => table.add_row(span_row(info)),
            Err(error) => table.add_row([name.clone(), error.to_string()]),
        };
    }
    table_text(&table)
}

fn span_row(info: &SpanInfo) -> [String; 7] {
    [
        info.name.clone(),
        format!("{:#x}", info.base),
        bytes(info.size),
        bytes(info.reach),
        format!("{:03o}", info.mode),
        info.kind.name().to_owned(),
        info.changes.to_string(),
    ]
}

fn span_json(info: &SpanInfo) -> Value {
    json!({
        "name": info.name,
        "id": info.id.to_string(),
        "address": info.base,
        "bytes": info.size,
        "reach_bytes": info.reach,
        "mode": format!("{:03o}", info.mode),
        "kind": info.kind.name(),
        "changes": info.changes,
    })
}

fn space_json(registry: &Registry, definition: &SpaceDefinition) -> Value {
    let members = definition.members().iter().map(|member| {
        let mut value = match registry.find_span(&member.name) {
            Ok(info) if info.id == member.id => span_json(&info),
            Ok(_) => {
                json!({ "name": member.name, "error": "destroyed; another span has its name" })
            }
            Err(error) => json!({ "name": member.name, "error": error.to_string() }),
        };
        value["access"] = json!(member.access.name());
        value
    });
    json!({
        "name": definition.name(),
        "id": definition.id().to_string(),
        "generation": definition.generation(),
        "spans": members.collect::<Vec<_>>(),
    })
}

fn show_span(info: &SpanInfo, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&span_json(info));
    }
    let name = info.name.clone();
    print_line(&span_table(&[(name, Ok(info.clone()))]))
}

fn show_space(
    registry: &Registry,
    definition: &SpaceDefinition,
    json: bool,
) -> Result<(), Failure> {
    if json {
        return print_json(&space_json(registry, definition));
    }
    let count = definition.members().len() as u64;
    print_line(&format!(
        "space {} has {}; changed {}",
        definition.name(),
        number_of(count, "span"),
        number_of(changes(definition), "time"),
    ))?;
    if count == 0 {
        return Ok(());
    }
    let mut heads = SPAN_HEADS.to_vec();
    heads.insert(1, "access");
    let mut table = new_table(&heads, &[2, 3, 4, 7]);
    for member in definition.members() {
        let mut row = match registry.find_span(&member.name) {
            Ok(info) if info.id == member.id => span_row(&info).to_vec(),
            Ok(_) => vec![member.name.clone(), "destroyed".to_owned()],
            Err(error) => vec![member.name.clone(), error.to_string()],
        };
        row.insert(1, member.access.name().to_owned());
        table.add_row(row);
    }
    print_line(&table_text(&table))
}

fn heap_json(heap: &HeapReport) -> Value {
    json!({
        "blocks": heap.blocks,
        "block_bytes": heap.block_bytes,
        "free_bytes": heap.free_bytes,
        "unused_bytes": heap.unused_bytes,
        "root_layout": heap.root_layout.map(|layout| format!("{layout:016x}")),
    })
}

fn attach(definition: &SpaceDefinition, json: bool) -> Result<(), Failure> {
    let reports = definition.check().map_err(failure)?;
    if json {
        let spans = reports.iter().map(|report| {
            let mut value = span_json(&report.info);
            value["access"] = json!(report.access.name());
            value["heap"] = report.heap.as_ref().map_or(Value::Null, heap_json);
            value
        });
        return print_json(&json!({
            "name": definition.name(),
            "spans": spans.collect::<Vec<_>>(),
        }));
    }
    let heads = [
        "span", "access", "address", "size", "blocks", "in use", "free", "unused", "root",
    ];
    let mut table = new_table(&heads, &[2, 3, 4, 5, 6, 7]);
    for report in &reports {
        let info = &report.info;
        let mut row = vec![
            info.name.clone(),
            report.access.name().to_owned(),
            format!("{:#x}", info.base),
            bytes(info.size),
        ];
        if let Some(heap) = &report.heap {
            row.extend([
                heap.blocks.to_string(),
                bytes(heap.block_bytes),
                bytes(heap.free_bytes),
                bytes(heap.unused_bytes),
                heap.root_layout
                    .map_or_else(|| "none".to_owned(), |layout| format!("{layout:016x}")),
            ]);
        }
        table.add_row(row);
    }
    print_line(&format!(
        "space {} was attached and entered; its heaps are sound",
        definition.name()
    ))?;
    print_line(&table_text(&table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_named_with_their_access() {
        assert_eq!(member("a"), Ok(("a".to_owned(), Access::Write)));
        assert_eq!(member("a=read"), Ok(("a".to_owned(), Access::Read)));
        assert_eq!(member("a=write"), Ok(("a".to_owned(), Access::Write)));
        assert!(member("a=").is_err() && member("a=rw").is_err());
        assert_eq!(mode("640"), Ok(0o640));
        assert!(mode("1777").is_err() && mode("rw").is_err());
    }

    #[test]
    fn a_space_that_cannot_be_made_leaves_no_spans_behind() {
        let place = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(place.path()).expect("a registry");
        let create = |name: &str, spans: &[&str], size: Size| {
            let spans = spans.iter().map(|span| member(span).expect("a span"));
            let action = Action::Create {
                name: name.to_owned(),
                spans: spans.collect(),
                size: Some(size),
                mode: 0o600,
            };
            act(place.path(), &action, true).map_err(|failure| failure.to_string())
        };
        let refused = |name: &str, spans: &[&str], size: Size, word: &str| {
            let before = registry.spans().expect("a list").len();
            let why = create(name, spans, size).expect_err(word);
            assert!(why.contains(word), "{why}");
            assert_eq!(registry.spans().expect("a list").len(), before, "{word}");
        };
        refused("s", &["p", "p"], Size::mib(1), "p is named twice");
        refused("s", &["p", "p=read"], Size::mib(1), "p is named twice");
        refused("s", &["p", "no/name"], Size::mib(1), "`no/name`");
        refused("no/name", &["p"], Size::mib(1), "`no/name`");
        refused("s", &["p"], Size(0), "--size 0");
        refused("s", &["p"], Size(u64::MAX), "");
        create("s", &["p"], Size::mib(1)).expect("made");
        refused("s", &["q"], Size::mib(1), "the space `s` exists");
        // The first one is made, and the last step finds two spans at the same addresses.
        registry.clone_span("p", "copy").expect("copied");
        refused("t", &["new", "p", "copy"], Size::mib(1), "overlap");
    }

    #[test]
    fn a_span_that_cannot_grow_so_far_says_how_far_it_can() {
        let place = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(place.path()).expect("a registry");
        registry.span("p").size(1 << 20).create().expect("made");
        let grow = Action::Grow {
            name: "p".to_owned(),
            size: Size::mib(1 << 30),
        };
        let why = act(place.path(), &grow, true).expect_err("too far");
        let why = why.to_string();
        let most = registry.find_span("p").expect("there").reach - (64 << 10);
        for word in [&bytes(most), "1024TiB", "make a new span"] {
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_space_is_made_looked_at_and_destroyed() {
        let place = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(place.path()).expect("a registry");
        let named = |name: &str, span| Named {
            name: name.to_owned(),
            span,
        };
        let spans = vec![
            member("towns").expect("a span"),
            member("roads=read").expect("a span"),
        ];
        let create = |size| Action::Create {
            name: "atlas".to_owned(),
            spans: spans.clone(),
            size,
            mode: 0o640,
        };
        let act = |action: &Action| act(place.path(), action, true);
        assert!(act(&create(None)).is_err(), "its spans are not there");
        assert!(registry.spaces().expect("a list").is_empty());
        act(&create(Some(Size::mib(1)))).expect("made");
        assert_eq!(registry.find_span("roads").expect("made").mode, 0o640);
        act(&Action::List).expect("listed");
        act(&Action::Show(named("atlas", false))).expect("shown");
        act(&Action::Show(named("towns", true))).expect("shown");
        act(&Action::Attach {
            name: "atlas".to_owned(),
        })
        .expect("sound");
        act(&Action::Grow {
            name: "towns".to_owned(),
            size: Size::mib(2),
        })
        .expect("grown");
        assert_eq!(registry.find_span("towns").expect("there").size, 2 << 20);
        let far = Action::Grow {
            name: "towns".to_owned(),
            size: Size(u64::MAX),
        };
        assert!(act(&far).is_err());
        act(&Action::Clone {
            from: named("atlas", false),
            to: "other".to_owned(),
        })
        .expect("copied");
        act(&Action::Clone {
            from: named("towns", true),
            to: "villages".to_owned(),
        })
        .expect("copied");
        act(&Action::Remove {
            name: "other".to_owned(),
            span: "towns".to_owned(),
        })
        .expect("removed");
        act(&Action::Add {
            name: "other".to_owned(),
            span: member("villages=read").expect("a span"),
        })
        .expect("added");
        assert!(act(&Action::Destroy(named("towns", true))).is_err());
        for space in ["atlas", "other"] {
            act(&Action::Destroy(named(space, false))).expect("destroyed");
        }
        for span in ["towns", "roads", "villages"] {
            act(&Action::Destroy(named(span, true))).expect("destroyed");
        }
        assert!(act(&Action::Show(named("atlas", false))).is_err());
        assert!(registry.spans().expect("a list").is_empty());
    }
}
