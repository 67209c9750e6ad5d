//! The Rust blocks of docs/spacejmp.md, which stand here as they stand there, and run.
//!
//! A worker is made while its process has one thread, so this test has a `main` of its own.

use pluvio_spacejmp::Result;
use pluvio_spacejmp::{Access, Registry, SegMap, SegStr};
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/spacejmp.md");
const HERE: &str = include_str!("tutorial.rs");
/// Set in the process that runs the blocks.
const RUNS: &str = "SPACEJMP_TUTORIAL";

type Towns<'id> = SegMap<'id, SegStr<'id>, u64>;

/// The first block makes a span and a space, and enters it.
#[allow(unsafe_code)] // as the page has it
fn begin() -> Result<Registry> {
    let registry = Registry::open(Registry::usual_root())?;
    registry.span("towns").size(64 << 20).create()?;
    registry.create_space("atlas", &[("towns", Access::Write)])?;
    // SAFETY: only programs that use this crate write the directory.
    let space = unsafe { registry.find_space("atlas")?.attach()? };

    let mut inside = space.enter()?;
    inside.init::<Towns<'_>>("towns", |_| Ok(SegMap::new()))?;
    inside.write::<Towns<'_>, _>("towns", |heap, towns| {
        towns.insert(heap, SegStr::from_text(heap, "Bern")?, 134_794)?;
        Ok(())
    })?;
    let people = inside.read::<Towns<'_>, _>("towns", |towns| towns.get("Bern").copied())?;

    assert_eq!(people, Some(134_794));
    Ok(registry)
}

/// The second block calls a worker, in a copy of the span.
#[allow(unsafe_code)] // as the page has it
fn work(registry: &Registry) -> Result<()> {
    registry.clone_span("towns", "copy")?;
    registry.create_space("copy", &[("copy", Access::Write)])?;

    // Early in main, while there is one thread.
    // SAFETY: only programs that use this crate write the directory. All of the code is loaded.
    let worker = unsafe { registry.find_space("copy")?.start_worker()? };

    let people = worker.call(100_000, |space, least: u64| {
        let inside = space.enter_shared()?;
        inside.read::<Towns<'_>, _>("copy", |towns| {
            towns.iter().filter(|(_, people)| **people > least).count() as u64
        })
    })?;

    assert_eq!(people, 1);
    Ok(())
}

/// Beginnings of lines that stand outside of functions here.
const OUTSIDE: [&str; 2] = ["use ", "type "];

/// Without what stands outside, and without spaces, in which the formatter may differ.
fn inside(text: &str) -> String {
    let is_outside = |line: &&str| OUTSIDE.iter().any(|word| line.starts_with(word));
    let lines = text.lines().map(str::trim).filter(|line| !is_outside(line));
    lines.flat_map(str::split_whitespace).collect()
}

/// How many blocks the page has. All of them stand here.
fn blocks() -> usize {
    let here = inside(HERE);
    let blocks = PAGE.split("```rust\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
    let stands_here = |block: &&str| {
        let mut outside = block
            .lines()
            .filter(|line| OUTSIDE.iter().any(|word| line.starts_with(word)));
        assert!(
            outside.all(|line| HERE.lines().any(|own| own == line)),
            "not used:\n{block}"
        );
        assert!(here.contains(&inside(block)), "not run:\n{block}");
    };
    blocks.inspect(stands_here).count()
}

fn main() {
    if std::env::var_os(RUNS).is_some() {
        let done = begin().and_then(|registry| work(&registry));
        return done.expect("the page is right");
    }
    assert!(blocks() >= 2, "the page has no blocks");
    let place = tempfile::tempdir().expect("a directory");
    let own = std::env::current_exe().expect("this program");
    let mut again = Command::new(own);
    again.env(RUNS, "1").env("PLUVIO_SPACES", place.path());
    assert!(again.status().expect("this program again").success());
    println!("the blocks of the page have run");
}
