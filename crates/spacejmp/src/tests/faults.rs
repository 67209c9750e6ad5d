//! Files that were cut, grown or scribbled on, and calls that are refused.

use super::{Board, attach, board, registry};
use crate::header::HEADER_BYTES;
use crate::{
    Access, Base, Kind, Lock, Registry, SegBox, SegMap, SegStr, SegVec, SpaceError, seg_struct,
};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// Writes `bytes` into the file of the span `board`.
fn scribble(registry: &Registry, at: u64, bytes: &[u8]) {
    let path = registry.root().join("spans/board.span");
    let file = OpenOptions::new().write(true).open(path).expect("a file");
    file.write_all_at(bytes, at).expect("written");
}

fn resize(registry: &Registry, len: u64) {
    let path = registry.root().join("spans/board.span");
    let file = OpenOptions::new().write(true).open(path).expect("a file");
    file.set_len(len).expect("another length");
}

/// The refusal of `board`, by the checks of its file or of its heap.
fn refusal(registry: &Registry) -> Option<SpaceError> {
    registry
        .find_span("board")
        .and_then(|_| registry.find_space("board")?.check())
        .err()
}

/// The name of a fault, the deed, and a part of the refusal.
type Fault = (&'static str, fn(&Registry), &'static str);

const FAULTS: [Fault; 12] = [
    ("nothing", |_| {}, ""),
    (
        "cut in the data",
        |r| resize(r, HEADER_BYTES + 4096),
        "it was cut",
    ),
    ("cut in the header", |r| resize(r, 100), "too short"),
    ("empty", |r| resize(r, 0), "too short"),
    (
        "grown by a text",
        |r| {
            resize(r, HEADER_BYTES + (2 << 20));
            scribble(r, HEADER_BYTES + (2 << 20), b"appended\n");
        },
        "it has grown",
    ),
    ("another file", |r| scribble(r, 0, &[b'x'; 2048]), "no span"),
    ("header", |r| scribble(r, 44, b"?"), "checksum"),
    (
        "newer format",
        |r| scribble(r, 8, &9_u32.to_le_bytes()),
        "format 9",
    ),
    (
        "change numbers",
        |r| scribble(r, 2048, &77_u64.to_le_bytes()),
        "change numbers",
    ),
    (
        "decided without a journal",
        |r| {
            resize(r, HEADER_BYTES + (2 << 20));
            let written = r.find_span("board").expect("sound").changes;
            scribble(r, 2048, &(written + 1).to_le_bytes());
        },
        "journal",
    ),
    (
        "heap's head",
        |r| scribble(r, HEADER_BYTES + 60, b"?"),
        "head of its heap",
    ),
    (
        "heap's pages",
        |r| scribble(r, HEADER_BYTES + 4096 + 1, &[201]),
        "no possible state",
    ),
];

#[test]
fn damaged_files_are_refused() {
    for (name, damage, expected) in FAULTS {
        let (_place, registry) = registry();
        drop(board(&registry));
        damage(&registry);
        let found = refusal(&registry).map(|error| error.to_string());
        match expected {
            "" => assert_eq!(found, None, "{name}"),
            _ => assert!(
                found.as_ref().is_some_and(|text| text.contains(expected)),
                "{name}: {found:?}"
            ),
        }
    }
}

#[test]
fn damaged_definitions_are_refused() {
    let (_place, registry) = registry();
    drop(board(&registry));
    let path = registry.root().join("spaces/board.space");
    let whole = std::fs::read_to_string(&path).expect("a text");
    for (text, expected) in [
        (whole[..whole.len() - 20].to_owned(), "cut"),
        (String::new(), "no space"),
        (whole.replace("write", "read"), "checksum"),
        (whole.replace("space 1", "space 7"), "format 7"),
        ("x".repeat(100_000), "too long"),
    ] {
        std::fs::write(&path, text).expect("written");
        let error = registry.find_space("board").expect_err("damaged");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_root_of_another_type_is_refused() {
    seg_struct! {
        struct Other<'id> {
            count: u64,
            row: SegVec<'id, i64>,
            names: SegMap<'id, SegStr<'id>, u64>,
        }
    }
    let (_place, registry) = registry();
    let space = board(&registry);
    let mut inside = space.enter().expect("inside");
    let read = inside.read::<Other<'_>, _>("board", |other| {
        (other.count, other.row.len(), other.names.len())
    });
    assert!(
        matches!(read, Err(SpaceError::WrongLayout { .. })),
        "{read:?}"
    );
    let written = inside.write::<u64, _>("board", |_, _| Ok(()));
    assert!(matches!(written, Err(SpaceError::WrongLayout { .. })));
    let again = inside.init::<u64>("board", |_| Ok(1));
    assert!(matches!(again, Err(SpaceError::RootExists(_))));
    let mut part = inside.part("board").expect("a span");
    part.clear().expect("empty");
    let empty = part.read::<u64, _>(|number| *number);
    assert!(matches!(empty, Err(SpaceError::NoRoot(_))));
    assert_eq!(part.check().expect("sound").blocks, 0);
    part.init::<u64>(|_| Ok(1)).expect("a root");
    assert_eq!(part.read::<u64, _>(|number| *number).expect("a root"), 1);
}

// shows: JUMP-3
#[test]
fn a_change_that_fails_or_panics_is_taken_back() {
    let (_place, registry) = registry();
    let space = board(&registry);
    let mut inside = space.enter().expect("inside");
    let before = inside.part("board").and_then(|part| part.check());
    let failed = inside.write::<Board<'_>, ()>("board", |heap, board| {
        board.row.fill(7);
        board.row.push(heap, 7)?;
        Err(SpaceError::GivenUp("for the test".to_owned()))
    });
    assert!(matches!(failed, Err(SpaceError::GivenUp(_))));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        inside.write::<Board<'_>, ()>("board", |_, board| {
            board.row.clear();
            board.count = 1;
            panic!("for the test");
        })
    }));
    assert!(panicked.is_err());
    let full = inside.write::<Board<'_>, ()>("board", |heap, board| {
        board.count = 2;
        loop {
            board.row.extend_from_slice(heap, &[1; 1000])?;
        }
    });
    assert!(matches!(full, Err(SpaceError::Full { .. })));
    let now = inside.read::<Board<'_>, _>("board", |board| {
        (board.count, board.row.len(), board.row.iter().sum::<u64>())
    });
    assert_eq!(now.expect("a board"), (0, super::ROW, 0));
    let after = inside.part("board").and_then(|part| part.check());
    assert_eq!(before.expect("sound"), after.expect("sound"));
}

// shows: JUMP-4
#[test]
fn taken_addresses_are_refused() {
    let (_place, registry) = registry();
    let first = registry.span("a").create().expect("a span");
    let at = |base| registry.span("b").base(Base::At(base)).create();
    let taken = at(first.base + (1 << 20));
    assert!(
        matches!(taken, Err(SpaceError::RangeTaken { .. })),
        "{taken:?}"
    );
    let crooked = at(first.base + 4096);
    assert!(matches!(crooked, Err(SpaceError::BadRange(_))));
    let high = at((1 << 47) - (1 << 20));
    assert!(matches!(high, Err(SpaceError::BadRange(_))));
    // A copy of a heap lies where the heap lies: one of the two at a time.
    registry.clone_span("a", "c").expect("a copy");
    let both = registry.create_space("s", &[("a", Access::Read), ("c", Access::Read)]);
    assert!(matches!(both, Err(SpaceError::RangeTaken { .. })));
    for name in ["a", "c"] {
        registry
            .create_space(name, &[(name, Access::Read)])
            .expect("a space");
    }
    let mut space = attach(&registry, "a");
    let overlap = space.add_private("c", Access::Read);
    assert!(matches!(overlap, Err(SpaceError::RangeTaken { .. })));
    // Ranges that overlap and are not the same are in each other's way.
    let other = tempfile::tempdir().expect("a directory");
    let other = Registry::open(other.path()).expect("a registry");
    let base = Base::At(first.base - (1 << 20));
    other
        .span("d")
        .base(base)
        .create()
        .expect("no span of this registry is there");
    other
        .create_space("d", &[("d", Access::Read)])
        .expect("a space");
    let conflict = other.find_space("d").and_then(|space| space.check());
    assert!(
        matches!(conflict, Err(SpaceError::Conflict { .. })),
        "{conflict:?}"
    );
    drop(space);
    other
        .find_space("d")
        .and_then(|space| space.check())
        .expect("the addresses are free");
}

#[test]
fn what_is_used_stays_and_what_is_gone_is_told() {
    let (_place, registry) = registry();
    let mut space = board(&registry);
    let used = registry.destroy_span("board");
    assert!(matches!(used, Err(SpaceError::InUse { .. })));
    assert!(!space.is_stale().expect("there"));
    registry
        .remove_from_space("board", "board")
        .expect("removed");
    assert!(space.is_stale().expect("there"));
    registry.destroy_span("board").expect("gone");
    // A process that has it attached keeps it.
    let kept = space
        .enter()
        .expect("inside")
        .read::<Board<'_>, _>("board", |board| board.row.len());
    assert_eq!(kept.expect("a board"), super::ROW);
    space.refresh().expect("without it");
    let gone = space.enter().expect("inside").part("board").map(|_| ());
    assert!(matches!(gone, Err(SpaceError::NotAttached(_))));
    // A new span of the old name is another one.
    let one = registry.span("one").create().expect("a span");
    registry
        .add_to_space("board", "one", Access::Read)
        .expect("added");
    std::fs::remove_file(registry.root().join("spans/one.span")).expect("removed");
    let gone = registry.find_space("board").and_then(|space| space.check());
    assert!(matches!(gone, Err(SpaceError::Gone { .. })), "{gone:?}");
    let again = registry.span("one").create().expect("a span");
    assert_ne!(one.id, again.id);
    let gone = registry.find_space("board").and_then(|space| space.check());
    assert!(matches!(gone, Err(SpaceError::Gone { .. })));
}

#[test]
fn a_grown_span_is_attached_again() {
    let (_place, registry) = registry();
    let space = board(&registry);
    let inside = space.enter().expect("inside");
    let locked = registry.grow_span("board", 4 << 20);
    assert!(
        matches!(locked, Err(SpaceError::WouldBlock(_))),
        "{locked:?}"
    );
    drop(inside);
    registry.grow_span("board", 4 << 20).expect("grown");
    assert!(matches!(space.enter(), Err(SpaceError::Stale(_))));
    let less = registry.grow_span("board", 1 << 20);
    assert!(matches!(less, Err(SpaceError::BadRange(_))));
    for more in [2 << 30, u64::MAX] {
        let more = registry.grow_span("board", more);
        assert!(matches!(more, Err(SpaceError::BadRange(_))));
    }
    registry.grow_span("board", (4 << 20) + 1).expect("grown");
    let size = registry.find_span("board").expect("there").size;
    assert_eq!(size, (4 << 20) + (64 << 10));
    drop(space);
    let space = attach(&registry, "board");
    space
        .enter()
        .expect("inside")
        .write::<Board<'_>, _>("board", |heap, board| {
            // More than it had room for before.
            board.row.extend_from_slice(heap, &[0; 300_000])
        })
        .expect("room");
    drop(space);
    let reports = registry.find_space("board").and_then(|space| space.check());
    let heap = reports.expect("sound")[0].heap.expect("a heap");
    assert!(heap.block_bytes > 2 << 20, "{heap:?}");
}

#[test]
fn kinds_and_rights_are_kept_apart() {
    let (_place, registry) = registry();
    let space = board(&registry);
    let no_lock = registry.span("x").lock(Lock::None).create();
    assert!(matches!(no_lock, Err(SpaceError::BadRange(_))));
    let small = registry.span("x").size(1).create();
    assert!(matches!(small, Err(SpaceError::BadRange(_))));
    let words = registry.span("words").kind(Kind::Words).size(1).create();
    assert_eq!(words.expect("a span").size, 64 << 10);
    let mut space = space;
    space.add_private("words", Access::Read).expect("added");
    let twice = space.add_private("words", Access::Read);
    assert!(matches!(twice, Err(SpaceError::Exists { .. })));
    let mut inside = space.enter_shared().expect("inside");
    let part = inside.part("words").expect("a span");
    assert!(matches!(part.words(), Err(SpaceError::NotWritable(_))));
    assert_eq!(part.words_to_read().expect("words").load(8191), Some(0));
    assert_eq!(part.words_to_read().expect("words").load(8192), None);
    let heap = part.read::<u64, _>(|number| *number);
    assert!(matches!(heap, Err(SpaceError::WrongKind { .. })));
    let shared = inside.write::<Board<'_>, _>("board", |_, _| Ok(()));
    assert!(matches!(shared, Err(SpaceError::NotWritable(_))));
    drop(inside);
    space.detach("words").expect("detached");
    assert!(matches!(
        space.detach("words"),
        Err(SpaceError::NotAttached(_))
    ));
}

#[test]
fn values_move_between_stack_and_heap() {
    let (_place, registry) = registry();
    registry.span("s").create().expect("a span");
    registry
        .create_space("s", &[("s", Access::Write)])
        .expect("a space");
    let space = attach(&registry, "s");
    let mut inside = space.enter().expect("inside");
    seg_struct! {
        struct List<'id> { value: u64, next: Option<SegBox<'id, List<'id>>> }
    }
    inside
        .init::<List<'_>>("s", |_| {
            Ok(List {
                value: 0,
                next: None,
            })
        })
        .expect("a root");
    inside
        .write::<List<'_>, _>("s", |heap, root| {
            for value in 1..=100 {
                let next = root.next.take();
                root.next = Some(SegBox::new(heap, List { value, next })?);
            }
            Ok(())
        })
        .expect("changed");
    let values = inside.read::<List<'_>, _>("s", |root| {
        let mut values = Vec::new();
        let mut at = Some(root);
        while let Some(node) = at {
            values.push(node.value);
            at = node.next.as_deref();
        }
        values
    });
    let expected: Vec<u64> = [0].into_iter().chain((1..=100).rev()).collect();
    assert_eq!(values.expect("a list"), expected);
    let taken = inside.write::<List<'_>, _>("s", |_, root| {
        let first = root.next.take().map(SegBox::into_inner);
        Ok(first.map(|node| (node.value, node.next.is_some())))
    });
    assert_eq!(taken.expect("changed"), Some((100, true)));
    // The rest of the list was dropped with its first node.
    let report = inside.part("s").and_then(|part| part.check());
    assert_eq!(report.expect("sound").blocks, 1);
}

/// A small file system in memory, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// None where this user may not mount.
    fn mount(kind: &str, options: &str) -> Option<Self> {
        let place = tempfile::tempdir().expect("a directory");
        let mounted = std::process::Command::new("mount")
            .args(["-t", kind, "-o", options, "none"])
            .arg(place.path())
            .output();
        match mounted.is_ok_and(|output| output.status.success()) {
            true => Some(Self(place)),
            false => None,
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _stays = std::process::Command::new("umount")
            .arg(self.0.path())
            .output();
    }
}

#[test]
fn a_file_system_of_huge_pages_is_refused() {
    let Some(disk) = SmallDisk::mount("hugetlbfs", "mode=700") else {
        eprintln!("skipped: this user may not mount a file system of huge pages");
        return;
    };
    let registry = Registry::open(disk.0.path()).expect("a registry");
    let made = registry.span("board").size(2 << 20).create();
    let why = made.expect_err("refused").to_string();
    assert!(why.contains("a file system of huge pages"), "{why}");
    let names = registry.names(crate::registry::What::Span).expect("names");
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn a_full_file_system_is_an_error_and_changes_nothing() {
    let Some(disk) = SmallDisk::mount("tmpfs", "size=3m") else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let registry = Registry::open(disk.0.path()).expect("a registry");
    let space = board(&registry);
    let full = registry.span("more").size(4 << 20).create();
    assert!(matches!(full, Err(SpaceError::NoSpace { .. })), "{full:?}");
    let names: Vec<String> = registry.names(crate::registry::What::Span).expect("names");
    assert_eq!(names, ["board"]);
    let mut inside = space.enter().expect("inside");
    let large = inside.write::<Board<'_>, _>("board", |heap, board| {
        board.count = 1;
        board.row.extend_from_slice(heap, &[1; 150_000])
    });
    assert!(
        matches!(large, Err(SpaceError::NoSpace { .. })),
        "{large:?}"
    );
    let small = inside.write::<Board<'_>, _>("board", |_, board| {
        assert_eq!((board.count, board.row.len()), (0, super::ROW));
        board.count = 2;
        Ok(())
    });
    small.expect("room for one page");
    let count = inside.read::<Board<'_>, _>("board", |board| board.count);
    assert_eq!(count.expect("a board"), 2);
    drop(inside);
    let grown = registry.grow_span("board", 64 << 20);
    assert!(
        matches!(grown, Err(SpaceError::NoSpace { .. })),
        "{grown:?}"
    );
    drop(space);
    assert_eq!(refusal(&registry).map(|error| error.to_string()), None);
}
