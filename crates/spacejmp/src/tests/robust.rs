//! Locks that are words in the header. Processes wait for each other, and die at each step.

use super::deaths::{changes, died, one_change};
use super::{Board, attach, board_with, child_of, registry};
use crate::header::{HEADER_BYTES, MARK_AT};
use crate::{Access, Entered, Kind, Lock, Registry, Space, SpaceError, steps};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Child;
use tempfile::TempDir;

/// Nobody waits for so long unless the lock is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// A space with one span of words. Writers count in both of the first two.
fn words() -> (TempDir, Registry) {
    words_with(Lock::Robust)
}

fn words_with(lock: Lock) -> (TempDir, Registry) {
    let (place, registry) = registry();
    let span = registry.span("words").kind(Kind::Words).size(1 << 16);
    span.lock(lock).create().expect("a span");
    registry
        .create_space("words", &[("words", Access::Write)])
        .expect("a space");
    (place, registry)
}

/// A word of the span's file, whatever is locked.
fn word_in_file(registry: &Registry, at: u64) -> u64 {
    let mut word = [0; 8];
    let file = File::open(registry.root().join("spans/words.span")).expect("the file");
    file.read_exact_at(&mut word, at).expect("a word");
    u64::from_le_bytes(word)
}

/// Whether a writer has left half of a change.
fn is_half_changed(registry: &Registry) -> bool {
    word_in_file(registry, HEADER_BYTES) != word_in_file(registry, HEADER_BYTES + 8)
}

fn both_of(inside: &mut Entered<'_>) -> [u64; 2] {
    let part = inside.part("words").expect("a span");
    let words = part.words_to_read().expect("words");
    [0, 1].map(|at| words.load(at).expect("a word"))
}

/// Counts by loads and stores, so that two at a time are seen.
fn count(words: &[AtomicU64]) {
    for word in &words[..2] {
        let before = word.load(Ordering::Relaxed);
        crate::files::step();
        word.store(before + 1, Ordering::Relaxed);
    }
}

fn write(space: &Space) -> Result<(), SpaceError> {
    let mut inside = space.enter_within(PATIENCE)?;
    let part = inside.part("words").expect("a span");
    count(part.words().expect("words"));
    Ok(())
}

fn read(space: &Space) -> Result<u64, SpaceError> {
    let mut inside = space.enter_shared_within(PATIENCE)?;
    let [one, two] = both_of(&mut inside);
    assert_eq!(one, two, "JUMP-7: half of a change is seen");
    Ok(one)
}

/// Makes the words right, and says what they are.
fn recover(space: &Space) -> u64 {
    space
        .recover("words", |words| {
            let one = words[0].load(Ordering::Relaxed);
            crate::files::step();
            words[1].store(one, Ordering::Relaxed);
            crate::files::step();
            one
        })
        .expect("recovered")
}

/// What a child does.
pub(super) fn child(registry: &Registry, role: &str, step: u32) {
    if role == "heap" {
        let space = attach(registry, "board");
        steps::die_after(step);
        return one_change(&mut space.enter().expect("inside"));
    }
    if role == "count" {
        return count_for_ever(registry);
    }
    if let Some(waits) = role.strip_prefix("waiting ") {
        let space = attach(registry, "words");
        let inside = match waits {
            "reader" => space.enter_shared(),
            _ => space.enter(),
        };
        panic!("it is inside: {inside:?}");
    }
    steps::die_after(step);
    let space = attach(registry, "words");
    match role {
        "reader" => drop(read(&space).expect("inside")),
        "writer" => write(&space).expect("inside"),
        "recover" => drop(recover(&space)),
        _ => panic!("no {role}"),
    }
}

/// Dies after each step in turn, of attaching, entering, changing and leaving. Sometimes this
/// process has a place before, and sometimes it takes that of the dead one.
// shows: JUMP-8, JUMP-13
#[test]
fn a_death_at_any_step_of_a_lock_holds_up_nobody() {
    let locks = [Lock::Kernel, Lock::Robust];
    let cases = locks.map(|lock| [(lock, "reader"), (lock, "writer")]);
    for (lock, role) in cases.into_iter().flatten() {
        let (_place, registry) = words_with(lock);
        let (mut poisoned, mut clean, mut before) = (0, 0, 0);
        for step in 0.. {
            let early = (step % 2 == 0).then(|| attach(&registry, "words"));
            let is_dead = died(&registry, &format!("robust {role}"), step);
            let space = early.unwrap_or_else(|| attach(&registry, "words"));
            let found = match step % 3 {
                0 => write(&space).map(|()| read(&space).expect("inside") - 1),
                _ => read(&space),
            };
            let found = match found {
                Ok(found) => {
                    clean += 1;
                    found
                }
                Err(SpaceError::Poisoned(_)) => {
                    assert!(is_dead && role == "writer", "{role} at {step}");
                    assert!(matches!(space.enter(), Err(SpaceError::Poisoned(_))));
                    assert!(matches!(read(&space), Err(SpaceError::Poisoned(_))));
                    poisoned += 1;
                    recover(&space)
                }
                Err(other) => panic!("{role} at {step}: {other}"),
            };
            assert!((before..=before + 1).contains(&found), "{role} at {step}");
            write(&space).expect("a lock that is free");
            before = read(&space).expect("inside");
            if !is_dead {
                assert!(step > 1, "{role} has {step} steps");
                break;
            }
        }
        assert!(clean > 2, "{clean}");
        assert_eq!(poisoned > 1, role == "writer", "{lock:?} {poisoned}");
    }
}

/// Dies after each step of making words right that a dead writer has left half changed.
// shows: JUMP-8, JUMP-13
#[test]
fn a_death_in_a_recovery_leaves_poison_or_right_words() {
    for lock in [Lock::Kernel, Lock::Robust] {
        let (_place, registry) = words_with(lock);
        let (mut middle, mut still, mut healed) = (0, 0, 0);
        for step in 0.. {
            while !is_half_changed(&registry) {
                // The step of a writer between its two words.
                let is_dead = died(&registry, "robust writer", middle);
                assert!(is_dead, "{lock:?}: no step leaves half of a change");
                if !is_half_changed(&registry) {
                    let space = attach(&registry, "words");
                    if matches!(read(&space), Err(SpaceError::Poisoned(_))) {
                        recover(&space);
                    }
                    middle += 1;
                }
            }
            {
                let space = attach(&registry, "words");
                assert!(matches!(read(&space), Err(SpaceError::Poisoned(_))));
                assert!(matches!(space.enter(), Err(SpaceError::Poisoned(_))));
            }
            let is_dead = died(&registry, "robust recover", step);
            let space = attach(&registry, "words");
            match read(&space) {
                Ok(_) => healed += 1,
                Err(SpaceError::Poisoned(_)) => {
                    assert!(is_dead, "{lock:?} at {step}");
                    still += 1;
                    recover(&space);
                }
                Err(other) => panic!("{lock:?} at {step}: {other}"),
            }
            write(&space).expect("a lock that is free");
            read(&space).expect("right words");
            if !is_dead {
                break;
            }
        }
        assert!(still > 2 && healed > 1, "{lock:?}: {still} {healed}");
    }
}

/// A fix that panics leaves the poison, and one of words without poison leaves none.
// shows: JUMP-13
#[test]
fn words_stay_as_they_are_when_their_fix_panics() {
    for lock in [Lock::Kernel, Lock::Robust] {
        let (_place, registry) = words_with(lock);
        let space = attach(&registry, "words");
        let fails = || {
            let fix = std::panic::AssertUnwindSafe(|| {
                space.recover::<()>("words", |_| panic!("for the test"))
            });
            assert!(std::panic::catch_unwind(fix).is_err());
        };
        fails();
        write(&space).expect("no poison");
        for step in 0.. {
            assert!(died(&registry, "robust writer", step), "{lock:?}");
            if is_half_changed(&registry) {
                break;
            }
            recover(&space);
        }
        fails();
        assert!(matches!(read(&space), Err(SpaceError::Poisoned(_))));
        // Neither is a poisoned span copied, nor does it grow.
        let copied = registry.clone_span("words", "copy");
        assert!(matches!(copied, Err(SpaceError::Poisoned(_))), "{copied:?}");
        let grown = registry.grow_span("words", 1 << 17);
        assert!(matches!(grown, Err(SpaceError::Poisoned(_))), "{grown:?}");
        recover(&space);
        write(&space).expect("no poison");
        registry.clone_span("words", "copy").expect("copied");
    }
}

/// Whether a process waits in the kernel for a lock on the span's file, or for its robust lock.
fn is_waited_for(registry: &Registry, lock: Lock) -> bool {
    if lock == Lock::Robust {
        // Behind an owner it says so; behind readers it is the owner.
        let (owner, waiting) = (word_in_file(registry, 4096), word_in_file(registry, 4160));
        return waiting != 0 || owner & 0xffff == 2;
    }
    let file = std::fs::metadata(registry.root().join("spans/words.span"));
    let of_file = format!(":{} ", file.expect("the file").ino());
    let locks = std::fs::read_to_string("/proc/locks").expect("the kernel's locks");
    let mut waiting = locks.lines().filter(|line| line.contains("->"));
    waiting.any(|line| line.contains(&of_file))
}

/// The rows of those who wait: reader and writer, behind a writer and behind a reader.
// shows: JUMP-8
#[test]
fn a_process_that_is_killed_while_it_waits_holds_up_nobody() {
    let rows = [("reader", false), ("writer", false), ("writer", true)];
    let locks = [Lock::Kernel, Lock::Robust];
    for (lock, (role, behind_reader)) in locks.map(|lock| rows.map(|row| (lock, row))).concat() {
        let (_place, registry) = words_with(lock);
        let space = attach(&registry, "words");
        let inside = match behind_reader {
            true => space.enter_shared(),
            false => space.enter(),
        };
        let inside = inside.expect("inside");
        let child = child_of(registry.root(), &format!("robust waiting {role}"), 0).spawn();
        let mut child = child.expect("a child");
        while !is_waited_for(&registry, lock) {
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "{lock:?} {role}: {ended:?}");
            std::thread::yield_now();
        }
        child.kill().expect("killed");
        child.wait().expect("dead");
        drop(inside);
        write(&space).expect("a lock that is free");
        assert_eq!(read(&space).expect("inside"), 1, "{lock:?} {role}");
    }
}

// shows: JUMP-1
#[test]
fn heaps_are_not_poisoned_and_changes_stay_whole() {
    let (_place, registry) = registry();
    let space = board_with(&registry, Lock::Robust);
    let mut before = 0;
    for step in 0.. {
        let is_dead = died(&registry, "robust heap", step);
        let inside = space.enter_within(PATIENCE).expect("inside");
        let now = inside
            .read::<Board<'_>, _>("board", changes)
            .expect("a board");
        assert!((before..=before + 1).contains(&now), "{now} after {before}");
        before = now;
        if !is_dead {
            break;
        }
    }
    assert!(before > 1, "{before}");
    let recovered = space.recover("board", |_| ());
    assert!(matches!(recovered, Err(SpaceError::WrongKind { .. })));
}

/// In a child: counts, and says so now and then.
fn count_for_ever(registry: &Registry) {
    let space = attach(registry, "words");
    for round in 0_u64.. {
        match write(&space).and_then(|()| read(&space)) {
            Ok(_) => {}
            Err(SpaceError::Poisoned(_)) => drop(recover(&space)),
            Err(other) => panic!("{other}"),
        }
        if round % 100 == 50 {
            println!("counted {round}");
        }
    }
}

/// Processes and threads read and write, and some are killed wherever they are.
// shows: JUMP-7, JUMP-9
#[test]
fn processes_that_are_killed_leave_whole_words_or_poison() {
    let (_place, registry) = words();
    let start = || {
        let mut child = child_of(registry.root(), "robust count", 0);
        let mut child = child.spawn().expect("a child");
        let output = child.stdout.take().expect("its output");
        (child, BufReader::new(output))
    };
    let end = |mut child: Child| {
        child.kill().expect("killed");
        child.wait().expect("dead");
    };
    let space = attach(&registry, "words");
    let (over, counted) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for thread in 0..2 {
            let (space, over, counted) = (&space, &over, &counted);
            threads.spawn(move || {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    let done = match thread {
                        0 => write(space).and_then(|()| read(space)),
                        _ => read(space),
                    };
                    match done {
                        Ok(now) => {
                            assert!(now >= last, "{now} after {last}");
                            last = now;
                            counted.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(SpaceError::Poisoned(_)) => drop(recover(space)),
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        let mut children = vec![start(), start()];
        for _ in 0..20 {
            let (child, output) = children.remove(0);
            // It is at work, so it dies anywhere.
            let said = output.lines().map_while(Result::ok);
            let said = said.filter(|line| line.starts_with("counted ")).take(2);
            assert_eq!(said.count(), 2);
            end(child);
            children.push(start());
        }
        children.into_iter().for_each(|(child, _)| end(child));
        over.store(true, Ordering::Relaxed);
    });
    assert!(counted.load(Ordering::Relaxed) > 0);
    match read(&space) {
        Err(SpaceError::Poisoned(_)) => drop(recover(&space)),
        found => drop(found.expect("inside")),
    }
    read(&space).expect("inside");
}

#[test]
fn readers_that_follow_each_other_do_not_starve_a_writer() {
    let (_place, registry) = words();
    let space = attach(&registry, "words");
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    read(&space).expect("inside");
                }
            });
        }
        for _ in 0..100 {
            write(&space).expect("inside");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(read(&space).expect("inside"), 100);
}

#[test]
fn who_may_not_wait_is_told_so() {
    let (_place, registry) = words();
    let space = attach(&registry, "words");
    let other = |look: &(dyn Fn() + Sync)| {
        std::thread::scope(|threads| threads.spawn(look).join().expect("it looked"));
    };
    let short = Duration::from_millis(20);
    let shared = space.enter_shared().expect("inside");
    other(&|| {
        assert!(matches!(space.try_enter(), Err(SpaceError::WouldBlock(_))));
        let late = space.enter_within(short);
        assert!(matches!(late, Err(SpaceError::TimedOut(_))));
        drop(space.try_enter_shared().expect("readers share"));
    });
    let grown = registry.grow_span("words", 1 << 17);
    assert!(matches!(
        grown,
        Err(SpaceError::InUse { .. } | SpaceError::WouldBlock(_))
    ));
    drop(shared);
    let alone = space.enter().expect("inside");
    other(&|| {
        assert!(matches!(space.try_enter(), Err(SpaceError::WouldBlock(_))));
        let shared = space.try_enter_shared();
        assert!(matches!(shared, Err(SpaceError::WouldBlock(_))));
        let late = space.enter_shared_within(short);
        assert!(matches!(late, Err(SpaceError::TimedOut(_))));
    });
    let copied = registry.clone_span("words", "copy");
    assert!(matches!(copied, Err(SpaceError::WouldBlock(_))));
    drop(alone);
    registry.clone_span("words", "copy").expect("copied");
    registry.grow_span("words", 1 << 17).expect("grown");
    assert!(matches!(space.enter(), Err(SpaceError::Stale(_))));
    drop(space);
    write(&attach(&registry, "words")).expect("inside");
}

/// A mark that no version of this crate has written counts as that of a dead writer.
#[test]
fn rubbish_in_the_mark_is_poison() {
    let (_place, registry) = words_with(Lock::Kernel);
    let space = attach(&registry, "words");
    write(&space).expect("inside");
    assert_eq!(word_in_file(&registry, MARK_AT), 0);
    let inside = space.enter().expect("inside");
    assert_eq!(word_in_file(&registry, MARK_AT), 1);
    drop(inside);
    let path = registry.root().join("spans/words.span");
    let file = File::options().write(true).open(path).expect("the file");
    file.write_all_at(&[7], MARK_AT + 3).expect("written");
    assert!(matches!(read(&space), Err(SpaceError::Poisoned(_))));
    recover(&space);
    assert_eq!(word_in_file(&registry, MARK_AT), 0);
    read(&space).expect("inside");
}

/// Rubbish in the header ends in an error, or is overcome.
#[test]
fn rubbish_in_the_lock_is_an_error() {
    let (_place, registry) = words();
    let path = registry.root().join("spans/words.span");
    let put = |at: u64, word: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(&path);
        let file = file.expect("the file");
        file.write_all_at(&word.to_le_bytes(), at).expect("written");
    };
    let space = attach(&registry, "words");
    for place in [256, 0xffff] {
        put(4096, place);
        for entered in [space.enter(), space.enter_shared()] {
            assert!(
                matches!(entered, Err(SpaceError::Damaged { .. })),
                "{place}"
            );
        }
    }
    // The place of nobody: as if it had died, inside or not.
    put(4096, 200);
    read(&space).expect("inside");
    put(4096, 1 << 17 | 200);
    assert!(matches!(read(&space), Err(SpaceError::Poisoned(_))));
    recover(&space);
    // Counts of nobody, waiters that are none, and places that nobody has taken.
    for at in [4096 + 64, 4096 + 128, 4096 + 192 + 64 * 77] {
        put(at, u64::MAX / 3);
        write(&space).expect("inside");
        read(&space).expect("inside");
    }
}
