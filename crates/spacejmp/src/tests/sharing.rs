//! Several processes and threads in one space.

use super::{Board, attach, board, board_with, child_of, registry};
use crate::header::HEADER_BYTES;
use crate::{Access, Backend, Kind, Lock, Registry, SegStr, Space, SpaceError};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Output};

/// How often each process counts.
const COUNTS: u64 = 100;
/// Processes that have a space attached at one time.
const ATTACHERS: usize = 50;
/// Names that several processes want at one time.
const RACES: usize = 30;
/// A user that exists nowhere.
const STRANGER: u32 = 54_321;

/// What a child does.
pub(super) fn child(registry: &Registry, what: &str) {
    match what {
        "count" => count(registry),
        "hold" => hold(registry, "exclusive"),
        "hold-shared" => hold(registry, "shared"),
        "word" => word(registry),
        "stranger" => stranger(registry),
        "guest" => guest(registry),
        "race" => race(registry),
        "store-words" => store(registry, "words"),
        "store-board" => store(registry, "board"),
        _ => panic!("no child {what}"),
    }
}

/// Counts in the map, one change at a time.
fn count(registry: &Registry) {
    let space = attach(registry, "board");
    for _ in 0..COUNTS {
        count_once(&mut space.enter().expect("inside"));
    }
}

pub(super) fn count_once(inside: &mut crate::Entered<'_>) {
    count_in(inside, "board");
}

pub(super) fn count_in(inside: &mut crate::Entered<'_>, span: &str) {
    inside
        .write::<Board<'_>, _>(span, |heap, board| {
            board.count += 1;
            match board.names.get_mut("counted") {
                Some(count) => *count += 1,
                None => {
                    let name = SegStr::from_text(heap, "counted")?;
                    board.names.insert(heap, name, 1)?;
                }
            }
            let name = format!("step {}", board.count);
            board
                .names
                .insert(heap, SegStr::from_text(heap, &name)?, board.count)?;
            board.row.fill(board.count);
            Ok(())
        })
        .expect("changed");
}

/// Stays inside until its input ends.
fn hold(registry: &Registry, how: &str) {
    let space = attach(registry, "board");
    let inside = match how {
        "shared" => space.enter_shared(),
        _ => space.enter(),
    };
    let inside = inside.expect("inside");
    println!("inside");
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).expect("read");
    drop(inside);
}

/// Adds to a word, as another process does.
fn word(registry: &Registry) {
    let space = attach(registry, "words");
    let mut inside = space.enter().expect("inside");
    let part = inside.part("words").expect("a span");
    for _ in 0..COUNTS {
        part.words().expect("words")[3].fetch_add(1, Ordering::Relaxed);
    }
}

/// Another user tries all that it may and may not do.
fn stranger(registry: &Registry) {
    let secret = registry.find_span("secret");
    assert!(
        matches!(secret, Err(SpaceError::Denied { .. })),
        "{secret:?}"
    );
    let open = registry
        .find_space("readers")
        .and_then(|space| space.check());
    assert_eq!(open.expect("may be read").len(), 1);
    let writers = registry.find_space("board").and_then(|space| space.check());
    assert!(
        matches!(writers, Err(SpaceError::Denied { .. })),
        "{writers:?}"
    );
    let made = registry.span("mine").create();
    assert!(matches!(made, Err(SpaceError::Denied { .. })), "{made:?}");
    let destroyed = registry.destroy_span("board");
    assert!(destroyed.is_err());
    println!("looked");
}

/// Another user to whom a list of the file gives the right to read.
fn guest(registry: &Registry) {
    let invited = registry.find_space("invited");
    let invited = invited.and_then(|space| space.check());
    assert_eq!(invited.expect("may be read").len(), 1);
    let changed = registry.find_space("board").and_then(|space| space.check());
    assert!(
        matches!(changed, Err(SpaceError::Denied { .. })),
        "{changed:?}"
    );
    println!("looked");
}

/// Makes spans and spaces, and says which ones.
fn race(registry: &Registry) {
    println!("ready");
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).expect("read");
    for index in 0..RACES {
        let name = format!("race-{index}");
        match registry.span(&name).create() {
            Ok(_) => println!("made span {name}"),
            Err(SpaceError::Exists { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        match registry.create_space(&name, &[(name.as_str(), Access::Write)]) {
            Ok(_) => println!("made space {name}"),
            Err(SpaceError::Exists { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Stores to the first word of a span's data, as a stray pointer would.
#[allow(unsafe_code)] // what no safe code can do
fn store(registry: &Registry, span: &str) {
    let space = attach(registry, &format!("{span}-reader"));
    let _inside = space.enter().expect("inside");
    let data = registry.find_span(span).expect("a span").base + HEADER_BYTES;
    println!("stores");
    // SAFETY: none; the processor refuses it, which is what the test shows.
    unsafe { (data as usize as *mut u64).write_volatile(1) };
    println!("stored");
}

/// Reads what a child says until it says this.
fn await_line(output: &mut BufReader<ChildStdout>, wanted: &str) {
    let mut line = String::new();
    while line.trim_end() != wanted {
        line.clear();
        assert!(output.read_line(&mut line).expect("a line") > 0, "it ended");
    }
}

fn start(registry: &Registry, what: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = child_of(registry.root(), what, 0).spawn().expect("a child");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    (child, output)
}

/// Starts a child and waits until it says so.
fn inside(registry: &Registry, what: &str) -> (Child, BufReader<ChildStdout>) {
    let (child, mut output) = start(registry, what);
    await_line(&mut output, "inside");
    (child, output)
}

// shows: JUMP-5
#[test]
fn two_programs_share_a_map() {
    let (_place, registry) = registry();
    let space = board(&registry);
    let children: Vec<Child> = (0..2)
        .map(|_| {
            child_of(registry.root(), "count", 0)
                .spawn()
                .expect("a child")
        })
        .collect();
    // This one counts, too, and looks: nobody ever sees a part of a change.
    for _ in 0..COUNTS {
        count_once(&mut space.enter().expect("inside"));
        let inside = space.enter_shared().expect("inside");
        let whole = inside.read::<Board<'_>, _>("board", |board| {
            board.row.iter().all(|place| *place == board.count)
                && board.names.get("counted") == Some(&board.count)
                && board.names.len() as u64 == board.count + 1
        });
        assert!(whole.expect("a board"));
    }
    for child in children {
        let output = child.wait_with_output().expect("a child");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let inside = space.enter().expect("inside");
    let count = inside.read::<Board<'_>, _>("board", |board| {
        let last = format!("step {}", 3 * COUNTS);
        assert_eq!(board.names.get(last.as_str()), Some(&(3 * COUNTS)));
        board.names.get("counted").copied()
    });
    assert_eq!(count.expect("a board"), Some(3 * COUNTS));
}

#[test]
fn locks_hold_among_processes_and_go_with_their_holder() {
    let (_place, registry) = registry();
    let space = board(&registry);
    let (mut reader, _output) = inside(&registry, "hold-shared");
    drop(space.try_enter_shared().expect("readers share"));
    assert!(matches!(space.try_enter(), Err(SpaceError::WouldBlock(_))));
    drop(reader.stdin.take());
    assert!(reader.wait().expect("a child").success());

    let (mut writer, _output) = inside(&registry, "hold");
    assert!(matches!(
        space.try_enter_shared(),
        Err(SpaceError::WouldBlock(_))
    ));
    let late = space.enter_shared_within(Duration::from_millis(3));
    assert!(matches!(late, Err(SpaceError::TimedOut(_))));
    // A waiting thread gets the lock of a writer that is killed.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| space.enter().map(drop));
        writer.kill().expect("killed");
        writer.wait().expect("dead");
        assert!(waiting.join().expect("a thread").is_ok());
    });
    drop(space.try_enter().expect("free"));
}

#[test]
fn locks_hold_among_threads() {
    let (_place, registry) = registry();
    let space = board(&registry);
    let other = attach(&registry, "board");
    let inside = space.enter_shared().expect("inside");
    assert!(matches!(other.enter(), Err(SpaceError::Nested)));
    assert!(matches!(other.try_enter(), Err(SpaceError::WouldBlock(_))));
    drop(other.try_enter_shared().expect("readers share"));
    std::thread::scope(|scope| {
        let outcome = scope.spawn(|| {
            let late = other.enter_within(Duration::from_millis(1)).map(drop);
            (late, other.enter_shared().map(drop))
        });
        let (late, shared) = outcome.join().expect("a thread");
        assert!(matches!(late, Err(SpaceError::TimedOut(_))));
        assert!(shared.is_ok());
    });
    drop(inside);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..COUNTS {
                    let mut inside = other.enter().expect("inside");
                    let more = inside.write::<Board<'_>, _>("board", |_, board| {
                        board.count += 1;
                        Ok(())
                    });
                    more.expect("changed");
                }
            });
        }
    });
    let inside = space.enter().expect("inside");
    let count = inside.read::<Board<'_>, _>("board", |board| board.count);
    assert_eq!(count.expect("a board"), 4 * COUNTS);
}

pub(super) fn counted(space: &Space, span: &str) -> u64 {
    let inside = space.enter_shared().expect("inside");
    let count = inside.read::<Board<'_>, _>(span, |board| {
        assert!(board.row.iter().all(|place| *place == board.count));
        board.count
    });
    count.expect("a board")
}

// shows: JUMP-6
#[test]
fn copies_of_a_heap_take_turns_at_its_addresses() {
    let (_place, registry) = registry();
    let space = board(&registry);
    count_once(&mut space.enter().expect("inside"));
    registry.clone_span("board", "copy").expect("a copy");
    registry.grow_span("copy", 3 << 20).expect("grown");
    registry
        .create_space("copy", &[("copy", Access::Write)])
        .expect("a space");
    assert_eq!(space.backend(), Backend::Resident);
    let copy = attach(&registry, "copy");
    assert_eq!([space.backend(), copy.backend()], [Backend::Window; 2]);
    for turn in 1..10 {
        count_once(&mut space.enter().expect("inside"));
        assert_eq!(counted(&copy, "copy"), 1);
        assert_eq!(counted(&space, "board"), turn + 1);
    }
    // A change that is given up leaves no copied page behind to be moved.
    let failed = space
        .enter()
        .expect("inside")
        .write::<Board<'_>, ()>("board", |_, board| {
            board.row.fill(77);
            Err(SpaceError::GivenUp(String::new()))
        });
    assert!(failed.is_err());
    assert_eq!(counted(&copy, "copy"), 1);
    assert_eq!(counted(&space, "board"), 10);
    // One at a time, also among threads.
    let inside = space.enter_shared().expect("inside");
    assert!(matches!(
        copy.try_enter_shared(),
        Err(SpaceError::WouldBlock(_))
    ));
    drop(space.try_enter_shared().expect("the same one"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| counted(&copy, "copy"));
        let late = scope.spawn(|| copy.enter_shared_within(Duration::from_millis(1)).map(drop));
        assert!(matches!(
            late.join().expect("a thread"),
            Err(SpaceError::TimedOut(_))
        ));
        drop(inside);
        assert_eq!(waiting.join().expect("a thread"), 1);
    });
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..COUNTS).for_each(|_| assert_eq!(counted(&copy, "copy"), 1)));
            scope.spawn(|| (0..COUNTS).for_each(|_| assert_eq!(counted(&space, "board"), 10)));
        }
    });
    // Detached in any order.
    drop(space);
    assert_eq!(copy.backend(), Backend::Resident);
    assert_eq!(counted(&copy, "copy"), 1);
    let space = attach(&registry, "board");
    drop(copy);
    assert_eq!(counted(&space, "board"), 10);
}

#[test]
fn words_are_shared_at_once() {
    let (_place, registry) = registry();
    registry
        .span("words")
        .kind(Kind::Words)
        .create()
        .expect("a span");
    registry
        .create_space("words", &[("words", Access::Write)])
        .expect("a space");
    let space = attach(&registry, "words");
    let mut entered = space.enter().expect("inside");
    let part = entered.part("words").expect("a span");
    let words = part.words().expect("words");
    let child = child_of(registry.root(), "word", 0).spawn();
    for _ in 0..COUNTS {
        words[3].fetch_add(1, Ordering::Relaxed);
    }
    let output = child.and_then(Child::wait_with_output).expect("a child");
    assert!(output.status.success());
    assert_eq!(words[3].load(Ordering::Relaxed), 2 * COUNTS);
}

/// Makes spans and spaces in one moment: each exists once, and is sound.
// shows: JUMP-2
#[test]
fn processes_that_want_one_name_get_it_once() {
    let (_place, registry) = registry();
    let mut children: Vec<_> = (0..4).map(|_| start(&registry, "race")).collect();
    for (_, output) in &mut children {
        await_line(output, "ready");
    }
    for (child, _) in &mut children {
        drop(child.stdin.take());
    }
    let mut made = Vec::new();
    for (mut child, output) in children {
        let said = output.lines().map_while(Result::ok);
        made.extend(said.filter(|line| line.starts_with("made ")));
        assert!(child.wait().expect("a child").success());
    }
    made.sort();
    let whole = |what: &'static str| (0..RACES).map(move |race| format!("made {what} race-{race}"));
    let mut expected: Vec<String> = whole("space").chain(whole("span")).collect();
    expected.sort();
    assert_eq!(made, expected);
    let mut ends = 0;
    for (range, name) in registry.ranges().expect("ranges") {
        assert!(range.base >= ends, "{name} overlaps another one");
        ends = range.base + range.reach;
        registry
            .find_space(&name)
            .and_then(|space| space.check())
            .expect("a sound heap");
    }
}

/// Threads attach and detach a space and a copy at the same addresses.
// shows: JUMP-4, JUMP-6
#[test]
fn threads_that_attach_at_once_share_mappings() {
    let (_place, registry) = registry();
    drop(board(&registry));
    registry.clone_span("board", "copy").expect("a copy");
    registry
        .create_space("copy", &[("copy", Access::Write)])
        .expect("a space");
    std::thread::scope(|scope| {
        for span in ["board", "copy", "board", "copy"] {
            let registry = &registry;
            scope.spawn(move || {
                for _ in 0..COUNTS {
                    let space = attach(registry, span);
                    count_in(&mut space.enter().expect("inside"), span);
                }
            });
        }
    });
    for span in ["board", "copy"] {
        assert_eq!(counted(&attach(&registry, span), span), 2 * COUNTS);
    }
}

#[test]
fn fifty_processes_are_inside_at_once() {
    for lock in [Lock::Kernel, Lock::Robust] {
        let (_place, registry) = registry();
        let space = board_with(&registry, lock);
        count_once(&mut space.enter().expect("inside"));
        let mut children: Vec<_> = (0..ATTACHERS)
            .map(|_| start(&registry, "hold-shared"))
            .collect();
        for (_, output) in &mut children {
            await_line(output, "inside");
        }
        assert!(matches!(space.try_enter(), Err(SpaceError::WouldBlock(_))));
        assert_eq!(counted(&space, "board"), 1);
        for (child, _) in &mut children {
            drop(child.stdin.take());
        }
        for (mut child, _) in children {
            assert!(child.wait().expect("a child").success());
        }
        count_once(&mut space.enter().expect("inside"));
        assert_eq!(counted(&space, "board"), 2);
    }
}

#[test]
fn a_store_to_a_span_for_reading_ends_the_process() {
    let (_place, registry) = registry();
    drop(board(&registry));
    registry
        .span("words")
        .kind(Kind::Words)
        .create()
        .expect("a span");
    let run = |span: &str, access| {
        let space = format!("{span}-reader");
        registry
            .create_space(&space, &[(span, access)])
            .expect("a space");
        let child = child_of(registry.root(), &format!("store-{span}"), 0).output();
        registry.destroy_space(&space).expect("gone");
        let output = child.expect("a child");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("stores"), "{said}");
        (output.status.signal(), said.contains("stored"))
    };
    let first = || {
        use std::os::unix::fs::FileExt;
        ["words", "board"].map(|span| {
            let path = registry.root().join(format!("spans/{span}.span"));
            let mut word = [0; 8];
            let file = std::fs::File::open(path).expect("the file");
            file.read_exact_at(&mut word, HEADER_BYTES).expect("read");
            u64::from_le_bytes(word)
        })
    };
    let before = first();
    for span in ["words", "board"] {
        let (signal, went_on) = run(span, Access::Read);
        assert_eq!((signal, went_on), (Some(libc::SIGSEGV), false), "{span}");
    }
    assert_eq!(first(), before);
    // The same store by a program that may write.
    assert_eq!(run("words", Access::Write), (None, true));
    assert_eq!(first()[0], 1);
}

/// Starts a child as another user, who may enter all directories. None where that cannot be.
fn of_another_user(place: &Path, what: &str) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return None;
    }
    let folders = ["", "spans", "spaces"];
    for path in folders.map(|folder| place.join(folder)) {
        let rights = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, rights).expect("rights");
    }
    // The other user may be unable to reach this program where it was built. Another process copies
    // it: a child that a test forks meanwhile would keep the copy open for writing, and nobody
    // could run it.
    let program = place.join("program");
    let mut copy = std::process::Command::new("cp");
    copy.arg(std::env::current_exe().expect("this program"));
    assert!(copy.arg(&program).status().expect("cp runs").success());
    let template = child_of(place, what, 0);
    let mut command = std::process::Command::new(program);
    command.args(template.get_args());
    for (name, value) in template.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    match command.uid(STRANGER).gid(STRANGER).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: no process of another user: {error}");
            None
        }
    }
}

fn check_looked(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let _ = std::io::stderr().write_all(&output.stderr);
    assert!(output.status.success() && said.contains("looked"), "{said}");
}

/// The list that `setfacl -m u:STRANGER:r` makes of the rights 600.
fn list_with_stranger() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut list = 2_u32.to_le_bytes().to_vec();
    // The owner, one user, the group, the mask, and all others.
    for (tag, rights, id) in [
        (1_u16, 6_u16, NOBODY),
        (2, 4, STRANGER),
        (4, 0, NOBODY),
        (0x10, 4, NOBODY),
        (0x20, 0, NOBODY),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn an_access_control_list_lets_one_user_in() {
    let (place, registry) = registry();
    drop(board(&registry));
    registry
        .create_space("invited", &[("board", Access::Read)])
        .expect("a space");
    let file = place.path().join("spans/board.span");
    let Some(refused) = of_another_user(place.path(), "guest") else {
        return;
    };
    assert!(!refused.status.success(), "it has no right yet");
    let (list, flags) = (list_with_stranger(), rustix::fs::XattrFlags::empty());
    let set = rustix::fs::setxattr(file, "system.posix_acl_access", &list, flags);
    if let Err(error) = set {
        eprintln!("skipped: this file system has no access control lists: {error}");
        return;
    }
    check_looked(&of_another_user(place.path(), "guest").expect("as before"));
}

#[test]
fn the_file_system_keeps_the_rights() {
    let (place, registry) = registry();
    drop(board(&registry));
    registry.set_span_mode("board", 0o644).expect("readable");
    registry.span("secret").create().expect("a span");
    registry
        .create_space("readers", &[("board", Access::Read)])
        .expect("a space");
    if let Some(output) = of_another_user(place.path(), "stranger") {
        check_looked(&output);
    }
}
