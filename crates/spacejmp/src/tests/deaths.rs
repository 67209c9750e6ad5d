//! Processes that die after each system call, and in the middle of changes.

use super::{Board, ROW, attach, board, board_with, child_of, registry};
use crate::steps;
use crate::{Access, Lock, Registry, SegStr, SpaceError};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;

/// Something that changes a registry.
type Action = fn(&Registry);

/// All of them, each with the names of spans and spaces before and after it.
const ACTIONS: [(&str, Action, [&str; 2]); 11] = [
    (
        "create",
        |registry| drop(registry.span("new").size(1 << 20).create().expect("made")),
        ["a=1 b=1 | s:a.1", "a=1 b=1 new=1 | s:a.1"],
    ),
    (
        "rename",
        |registry| registry.rename_span("b", "c").expect("named"),
        ["a=1 b=1 | s:a.1", "a=1 c=1 | s:a.1"],
    ),
    (
        "destroy",
        |registry| registry.destroy_span("b").expect("gone"),
        ["a=1 b=1 | s:a.1", "a=1 | s:a.1"],
    ),
    (
        "grow",
        |registry| registry.grow_span("b", 2 << 20).expect("grown"),
        ["a=1 b=1 | s:a.1", "a=1 b=2 | s:a.1"],
    ),
    (
        "clone",
        |registry| drop(registry.clone_span("b", "c").expect("copied")),
        ["a=1 b=1 | s:a.1", "a=1 b=1 c=1 | s:a.1"],
    ),
    (
        "mode",
        |registry| registry.set_span_mode("b", 0o640).expect("set"),
        ["a=1 b=1 | s:a.1", "a=1 b=1:640 | s:a.1"],
    ),
    (
        "clone-space",
        |registry| drop(registry.clone_space("s", "t").expect("copied")),
        ["a=1 b=1 | s:a.1", "a=1 b=1 | s:a.1 t:a.1"],
    ),
    (
        "create-space",
        |registry| {
            drop(
                registry
                    .create_space("t", &[("b", Access::Read)])
                    .expect("made"),
            )
        },
        ["a=1 b=1 | s:a.1", "a=1 b=1 | s:a.1 t:b.1"],
    ),
    (
        "add",
        |registry| {
            drop(
                registry
                    .add_to_space("s", "b", Access::Write)
                    .expect("added"),
            )
        },
        ["a=1 b=1 | s:a.1", "a=1 b=1 | s:ab.2"],
    ),
    (
        "remove",
        |registry| drop(registry.remove_from_space("s", "a").expect("removed")),
        ["a=1 b=1 | s:a.1", "a=1 b=1 | s:.2"],
    ),
    (
        "destroy-space",
        |registry| registry.destroy_space("s").expect("gone"),
        ["a=1 b=1 | s:a.1", "a=1 b=1 |"],
    ),
];

fn prepared(registry: &Registry) {
    for span in ["a", "b"] {
        registry.span(span).size(1 << 20).create().expect("a span");
    }
    registry
        .create_space("s", &[("a", Access::Write)])
        .expect("a space");
}

/// All spans with their MiB and unusual rights, and all spaces with their spans and generation.
/// Every span has to be sound.
fn picture(registry: &Registry) -> String {
    let mut words = Vec::new();
    for (name, info) in registry.spans().expect("a list") {
        let info = info.unwrap_or_else(|error| panic!("{name}: {error}"));
        let rights = match info.mode {
            0o600 => String::new(),
            mode => format!(":{mode:o}"),
        };
        words.push(format!("{name}={}{rights}", info.size >> 20));
    }
    words.push("|".to_owned());
    for name in registry.spaces().expect("a list") {
        let space = registry.find_space(&name).expect("a space");
        space.check().expect("sound heaps");
        let members: String = space
            .members()
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        words.push(format!("{name}:{members}.{}", space.generation()));
    }
    words.join(" ")
}

/// In a child: does the action, and dies after a number of steps.
pub(super) fn do_and_die(registry: &Registry, action: &str, step: u32) {
    if action == "change" || action == "finish" {
        let space = attach(registry, "board");
        steps::die_after(step);
        let mut inside = space.enter().expect("inside");
        if action == "change" {
            one_change(&mut inside);
        }
        return;
    }
    let (_, act, _) = ACTIONS
        .iter()
        .find(|(name, ..)| *name == action)
        .expect("an action");
    steps::die_after(step);
    act(registry);
}

/// Runs a child that dies after `step`. Whether it did.
pub(super) fn died(registry: &Registry, what: &str, step: u32) -> bool {
    let output = child_of(registry.root(), what, step)
        .output()
        .expect("a child");
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.signal() {
        Some(9) => true,
        _ => {
            assert!(output.status.success(), "{what} at {step}: {errors}");
            false
        }
    }
}

// shows: JUMP-2
#[test]
fn a_death_at_any_step_leaves_the_old_or_the_new() {
    for (name, act, [old, new]) in ACTIONS {
        let mut seen = [0, 0];
        for step in 0.. {
            let (_place, registry) = registry();
            prepared(&registry);
            let died = died(&registry, &format!("dies {name}"), step);
            let found = picture(&registry);
            let is_new = found == new;
            assert!(is_new || found == old, "{name} at {step}: {found}");
            seen[usize::from(is_new)] += 1;
            if !died {
                assert!(is_new, "{name} was done");
                assert!(step > 0, "{name} has no step");
                break;
            }
            if !is_new {
                act(&registry);
                assert_eq!(
                    picture(&registry),
                    new,
                    "{name} again, after a death at {step}"
                );
            }
            let begun = ["spans", "spaces"].map(|folder| registry.root().join(folder));
            let begun = begun
                .iter()
                .flat_map(|folder| std::fs::read_dir(folder).expect("a directory").flatten());
            let left = begun.filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
            assert!(is_new || left.count() == 0, "{name} at {step} leaves files");
        }
        assert!(seen[1] > 0, "{name} never ended");
    }
}

/// A change of many pages, with steps in its middle.
pub(super) fn one_change(inside: &mut crate::Entered<'_>) {
    inside
        .write::<Board<'_>, _>("board", |heap, board| {
            board.count += 1;
            crate::files::step();
            for place in board.row.iter_mut() {
                *place += 1;
            }
            crate::files::step();
            let name = format!("name {}", board.count);
            board
                .names
                .insert(heap, SegStr::from_text(heap, &name)?, board.count)?;
            crate::files::step();
            Ok(())
        })
        .expect("changed");
}

/// The number of changes, of which all have to be whole.
pub(super) fn changes(board: &Board<'_>) -> u64 {
    assert_eq!(board.row.len(), ROW);
    assert!(board.row.iter().all(|place| *place == board.count));
    assert_eq!(board.names.len() as u64, board.count);
    for count in 1..=board.count {
        assert_eq!(
            board.names.get(format!("name {count}").as_str()),
            Some(&count)
        );
    }
    board.count
}

// shows: JUMP-1
#[test]
fn a_death_at_any_step_of_a_change_leaves_all_or_nothing() {
    let (_place, registry) = registry();
    drop(board(&registry));
    registry
        .create_space("reader", &[("board", Access::Read)])
        .expect("a space");
    let (mut count, mut taken_back, mut finished, mut unfinished) = (0, 0, 0, 0);
    for step in 0.. {
        let died = died(&registry, "dies change", step);
        // A program that may only read is told to wait; it never sees a part.
        {
            let reader = attach(&registry, "reader");
            match reader.enter() {
                Ok(inside) => {
                    let now = inside.read::<Board<'_>, _>("board", changes);
                    assert!([count, count + 1].contains(&now.expect("a board")));
                }
                Err(SpaceError::Unfinished(_)) => unfinished += 1,
                Err(error) => panic!("{error}"),
            }
        }
        let space = attach(&registry, "board");
        // Readers that may write finish the change, and so do writers.
        let inside = match step % 2 {
            0 => space.enter_shared(),
            _ => space.enter(),
        };
        let now = inside
            .expect("inside")
            .read::<Board<'_>, _>("board", changes)
            .expect("a board");
        let definition = registry.find_space("board").expect("a space");
        drop(space);
        definition.check().expect("a sound heap");
        assert!(
            [count, count + 1].contains(&now),
            "{now} after {count} at {step}"
        );
        match (died, now > count) {
            (true, true) => finished += 1,
            (true, false) => taken_back += 1,
            (false, done) => {
                assert!(done);
                break;
            }
        }
        count = now;
    }
    // Three steps in the change, and some in the journal; and from the decision on.
    assert!(taken_back > 3 && finished > 3 && unfinished > 3);
}

/// Whether the span `board` has a change that counts and is not written whole.
fn is_unfinished(registry: &Registry) -> bool {
    let (_, found) = registry.open_span("board", false).expect("a span");
    found.decided != found.written
}

// shows: JUMP-1
#[test]
fn a_death_while_the_change_of_a_dead_process_is_finished_leaves_it_to_the_next() {
    for lock in [Lock::Kernel, Lock::Robust] {
        let (_place, registry) = registry();
        drop(board_with(&registry, lock));
        let count = || {
            let space = attach(&registry, "board");
            let inside = space.enter().expect("inside");
            let now = inside.read::<Board<'_>, _>("board", changes);
            now.expect("a board")
        };
        for step in 0.. {
            assert!(died(&registry, "dies change", step), "no death decides");
            if is_unfinished(&registry) {
                break;
            }
            assert_eq!(count(), 0);
        }
        // The state in which nothing of the change is written; nobody has the file attached.
        let path = registry.root().join("spans/board.span");
        let unfinished = std::fs::read(&path).expect("a file");
        let (mut left, mut done) = (0, 0);
        for step in 0.. {
            std::fs::write(&path, &unfinished).expect("written");
            let mut is_dead = died(&registry, "dies finish", step);
            if is_dead && step % 2 == 1 && is_unfinished(&registry) {
                // The next one dies as well.
                is_dead = died(&registry, "dies finish", step);
            }
            match is_unfinished(&registry) {
                true => left += 1,
                false => done += 1,
            }
            assert_eq!(count(), 1, "after a death at {step}");
            assert!(!is_unfinished(&registry));
            let definition = registry.find_space("board").expect("a space");
            definition.check().expect("a sound heap");
            if !is_dead {
                break;
            }
        }
        // Each page of the change is a step, and there are a dozen.
        assert!(left > 12 && done > 1, "{left} {done}");
    }
}

/// In a child: changes one after the other, and says so.
pub(super) fn change_for_ever(registry: &Registry) {
    let space = attach(registry, "board");
    for count in 1_u64.. {
        change_some(&mut space.enter().expect("inside"), count);
        println!("changed {count}");
    }
}

/// The `count`th change of many: adds, replaces and removes names.
fn change_some(inside: &mut crate::Entered<'_>, count: u64) {
    inside
        .write::<Board<'_>, _>("board", |heap, board| {
            for (name, value) in orders(count) {
                match value {
                    0 => drop(board.names.remove(name.as_str())),
                    value => {
                        let name = SegStr::from_text(heap, &name)?;
                        board.names.insert(heap, name, value)?;
                    }
                }
            }
            board.count = count;
            Ok(())
        })
        .expect("changed");
}

/// The orders of the `count`th change: values for names; 0 removes one.
fn orders(count: u64) -> impl Iterator<Item = (String, u64)> {
    (0..20_u64).map(move |index| {
        let mixed = (count * 20 + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let name = format!("{:0width$}", mixed % 500, width = (mixed % 97) as usize);
        (name, (mixed / 500) % 4 * count)
    })
}

// shows: JUMP-1
#[test]
fn a_killed_writer_leaves_whole_changes() {
    for wanted in [1, 7, 40] {
        let (_place, registry) = registry();
        drop(board(&registry));
        let mut child = child_of(registry.root(), "changes", 0)
            .spawn()
            .expect("a child");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let said = output
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("changed ")?.parse::<u64>().ok())
            .find(|count| *count >= wanted)
            .expect("it changes");
        child.kill().expect("killed");
        child.wait().expect("dead");
        let space = attach(&registry, "board");
        let inside = space.enter().expect("inside");
        let found = inside.read::<Board<'_>, _>("board", |board| {
            let names = board.names.iter();
            let names: BTreeMap<String, u64> = names
                .map(|(name, value)| (name.to_string(), *value))
                .collect();
            (board.count, names)
        });
        let (count, names) = found.expect("a board");
        assert!(count >= said, "{count} after {said} were said");
        let mut model = BTreeMap::new();
        for (name, value) in (1..=count).flat_map(orders) {
            match value {
                0 => drop(model.remove(&name)),
                value => drop(model.insert(name, value)),
            }
        }
        assert_eq!(names, model);
        drop(inside);
        drop(space);
        registry
            .find_space("board")
            .and_then(|space| space.check())
            .expect("a sound heap");
    }
}
