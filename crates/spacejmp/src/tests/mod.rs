//! Tests of whole spans and spaces, some with processes that die.
//!
//! A child process is this test program again, with the one test `child`, which does what its
//! environment says.

mod deaths;
mod faults;
mod model;
mod robust;
mod sharing;
mod worker;

use crate::{Access, Lock, Registry, SegMap, SegStr, SegVec, Space, seg_struct};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

seg_struct! {
    /// The root of most tests.
    pub(crate) struct Board<'id> {
        /// How many changes there were.
        pub count: u64,
        /// All the same number, over several pages.
        pub row: SegVec<'id, u64>,
        pub names: SegMap<'id, SegStr<'id>, u64>,
    }
}

/// Long enough for a dozen pages.
pub(crate) const ROW: usize = 6000;

/// A registry in memory, where there is one.
pub(crate) fn registry() -> (TempDir, Registry) {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let place = place.expect("a temporary directory");
    let registry = Registry::open(place.path()).expect("a registry");
    (place, registry)
}

/// Makes the span and the space `board`, and attaches it.
pub(crate) fn board(registry: &Registry) -> Space {
    board_with(registry, Lock::Kernel)
}

/// The same with this lock.
pub(crate) fn board_with(registry: &Registry, lock: Lock) -> Space {
    let span = registry.span("board").size(2 << 20).lock(lock);
    span.create().expect("a span");
    registry
        .create_space("board", &[("board", Access::Write)])
        .expect("a space");
    let space = attach(registry, "board");
    space
        .enter()
        .expect("inside")
        .init::<Board<'_>>("board", |heap| {
            Ok(Board {
                count: 0,
                row: SegVec::from_slice(heap, &[0; ROW])?,
                names: SegMap::new(),
            })
        })
        .expect("a root");
    space
}

/// Attaches a space of a test.
#[allow(unsafe_code)] // the tests' own files
pub(crate) fn attach(registry: &Registry, name: &str) -> Space {
    let definition = registry.find_space(name).expect("a space");
    // SAFETY: only tests write the directory, by this crate, and those that damage a file look only
    // at the refusal.
    unsafe { definition.attach() }.expect("attached")
}

/// This program again, as a child that does `what`.
pub(crate) fn child_of(root: &Path, what: &str, step: u32) -> Command {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command
        .args([
            "--exact",
            "--ignored",
            "--nocapture",
            "--quiet",
            "tests::child",
        ])
        .env("SPACEJMP_CHILD", what)
        .env("SPACEJMP_ROOT", root)
        .env("SPACEJMP_STEP", step.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
#[ignore = "a child process of other tests"]
fn child() {
    let set = |name| std::env::var(name).ok();
    let (Some(what), Some(root)) = (set("SPACEJMP_CHILD"), set("SPACEJMP_ROOT")) else {
        return;
    };
    let step = set("SPACEJMP_STEP").and_then(|step| step.parse().ok());
    let registry = Registry::open(root).expect("a registry");
    match what.split_once(' ').unwrap_or((&what, "")) {
        ("dies", action) => deaths::do_and_die(&registry, action, step.unwrap_or(0)),
        ("robust", role) => robust::child(&registry, role, step.unwrap_or(0)),
        ("worker", case) => worker::child(&registry, case),
        ("changes", _) => deaths::change_for_ever(&registry),
        (sharer, _) => sharing::child(&registry, sharer),
    }
}
