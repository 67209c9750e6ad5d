//! Doors that no owner opens: of another version, another clock, another owner, and such as send
//! rubbish. A reader says what is wrong, and maps nothing of it.

#![allow(clippy::unwrap_used)]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pluvio_index::IndexLayout;
use pluvio_mapped::messages::{IndexEntry, Message, PACKET_MAX, TableEntry, Welcome};
use pluvio_mapped::socket::{receive, send};
use pluvio_mapped::{Answer, OnlyOwner, OpenError, Reader, Why, boottime_ns};
use pluvio_memory::{GatePage, Region};
use pluvio_units::{ClusterId, HashKind, HashRange, KeyHash, ServerId, TableHash, TableId};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};
use std::path::Path;

/// Its lines begin after 2 MiB.
const INDEX_BYTES: u64 = 4 << 20;
const HOUR_NS: u64 = 3_600_000_000_000;

fn new_socket() -> OwnedFd {
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
    socket_with(AddressFamily::UNIX, kind, flags, None).unwrap()
}

/// Ends the thread of a door.
struct Over<'a>(&'a AtomicBool, SocketAddrUnix);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _woken = rustix::net::connect(new_socket(), &self.1);
    }
}

/// A door that serves those who connect one after another, as `serve` does.
fn beside<T>(serve: impl Fn(&OwnedFd) + Sync, then: impl FnOnce(&Path) -> T) -> T {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("door");
    let address = SocketAddrUnix::new(&path).unwrap();
    let listening = new_socket();
    rustix::net::bind(&listening, &address).unwrap();
    rustix::net::listen(&listening, 16).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _over = Over(&over, address);
        threads.spawn(|| {
            loop {
                let socket = rustix::net::accept(&listening).unwrap();
                if over.load(Ordering::Relaxed) {
                    return;
                }
                serve(&socket);
            }
        });
        then(&path)
    })
}

/// The next message of the reader; none when it has gone.
fn hear(socket: &OwnedFd) -> Option<Message> {
    let (packet, _files) = receive(socket, RecvFlags::empty()).ok()?;
    Message::decode(&packet).ok()
}

fn say(socket: &OwnedFd, packet: &[u8], files: &[BorrowedFd<'_>]) {
    // A reader that has heard enough goes.
    let _gone = send(socket, packet, files, SendFlags::empty());
}

/// What an owner shares: an empty log.
struct Memory {
    gate: GatePage,
    log: Region,
    seglets: Region,
}

impl Memory {
    fn new() -> Self {
        let region = |len| Region::for_readers("pluvio-test", len, false).unwrap();
        Self {
            gate: GatePage::new(4).unwrap(),
            log: region(2 << 16),
            seglets: region(1 << 16),
        }
    }

    fn files(&self) -> [BorrowedFd<'_>; 3] {
        let (log, seglets) = (self.log.memfd(), self.seglets.memfd());
        [self.gate.file(), log.unwrap(), seglets.unwrap()]
    }

    /// As an owner greets now.
    fn welcome(&self) -> Welcome {
        Welcome {
            cluster: ClusterId(7),
            server: ServerId(8),
            alone: false,
            gate: self.gate.bytes(),
            log: self.log.len(),
            seglets: self.seglets.len(),
            boottime_ns: boottime_ns(),
        }
    }

    /// Greets like an owner, and gives whether the reader then asks for the map.
    fn let_in(&self, socket: &OwnedFd) -> bool {
        // A reader that finds another user here says nothing.
        if hear(socket) != Some(Message::Hello) {
            return false;
        }
        let welcome = Message::Welcome(self.welcome());
        say(socket, &welcome.encode(), &self.files());
        hear(socket) == Some(Message::GetMap)
    }
}

fn open(path: &Path) -> Result<Reader, OpenError> {
    Reader::open(path)
}

fn say_map(socket: &OwnedFd, parts: &[Message]) {
    for part in parts {
        say(socket, &part.encode(), &[]);
    }
}

#[track_caller]
fn is_other_version(found: Result<Reader, OpenError>, case: &str) {
    match found {
        Err(OpenError::OtherVersion(_)) => {}
        other => panic!("{case}: {other:?}"),
    }
}

/// The doors of this file differ from an owner's by what they do wrong.
#[test]
fn a_door_that_does_all_rightly_opens() {
    let memory = Memory::new();
    let map = [Message::Map(1), Message::MapEnd(1)];
    let serve = |socket: &OwnedFd| {
        if memory.let_in(socket) {
            say_map(socket, &map);
        }
    };
    beside(serve, |path| {
        let reader = Reader::open(path).unwrap();
        assert_eq!(reader.owner(), (ClusterId(7), ServerId(8)));
        let answer = reader.read(TableId(1), b"key", &mut Vec::new());
        assert_eq!(answer, Answer::Ask(Why::NotHere));
        let uid = rustix::process::geteuid().as_raw();
        let only = OnlyOwner {
            cluster: ClusterId(7),
            server: ServerId(8),
            uid,
        };
        Reader::open_server(path, only).unwrap();
        for other in [
            OnlyOwner {
                server: ServerId(9),
                ..only
            },
            OnlyOwner {
                cluster: ClusterId(9),
                ..only
            },
        ] {
            match Reader::open_server(path, other) {
                Err(OpenError::OtherOwner(ClusterId(7), ServerId(8))) => {}
                found => panic!("{found:?}"),
            }
        }
        let other = OnlyOwner {
            uid: uid + 1,
            ..only
        };
        match Reader::open_server(path, other) {
            Err(OpenError::OtherUser(user)) => assert_eq!(user, uid),
            found => panic!("{found:?}"),
        }
    });
}

#[test]
fn an_owner_with_another_clock_is_not_read() {
    let memory = Memory::new();
    let wrong: [fn(u64) -> u64; 6] = [
        |now| now + HOUR_NS,
        |now| now.saturating_sub(HOUR_NS),
        // A namespace that differs by a second, and by what a lease allows.
        |now| now + 1_000_000_000,
        |now| now.saturating_sub(50_000_001),
        |_| 0,
        |_| u64::MAX,
    ];
    for (at, wrong) in wrong.into_iter().enumerate() {
        let greetings = AtomicU32::new(0);
        let serve = |socket: &OwnedFd| {
            greetings.fetch_add(1, Ordering::Relaxed);
            assert_eq!(hear(socket), Some(Message::Hello));
            let welcome = Welcome {
                boottime_ns: wrong(boottime_ns()),
                ..memory.welcome()
            };
            say(socket, &Message::Welcome(welcome).encode(), &memory.files());
        };
        let found = beside(serve, open);
        assert!(matches!(found, Err(OpenError::Clocks)), "{at}: {found:?}");
        // One greeting alone could be late.
        assert_eq!(greetings.load(Ordering::Relaxed), 20, "{at}");
    }
}

/// An answer that comes late tells nothing about the clock: the reader greets again.
#[test]
fn an_owner_that_answers_late_is_greeted_again() {
    let memory = Memory::new();
    let greetings = AtomicU32::new(0);
    let serve = |socket: &OwnedFd| {
        let is_late = greetings.fetch_add(1, Ordering::Relaxed) < 3;
        assert_eq!(hear(socket), Some(Message::Hello));
        let welcome = memory.welcome();
        while is_late && boottime_ns() - welcome.boottime_ns < 51_000_000 {
            std::thread::yield_now();
        }
        let welcome = match is_late {
            true => welcome,
            false => memory.welcome(),
        };
        say(socket, &Message::Welcome(welcome).encode(), &memory.files());
        if hear(socket) == Some(Message::GetMap) {
            say_map(socket, &[Message::Map(1), Message::MapEnd(1)]);
        }
    };
    beside(serve, open).unwrap();
    assert!(greetings.load(Ordering::Relaxed) > 3);
}

/// The greeting of a later protocol: the message is the same, its number is not.
fn later_hello() -> Vec<u8> {
    let mut hello = Message::Hello.encode();
    *hello.last_mut().unwrap() += 1;
    hello
}

#[test]
fn an_owner_that_speaks_something_else_is_another_version() {
    let welcome = Message::Welcome(Memory::new().welcome()).encode();
    let longer = [&welcome[..], &[0]].concat();
    let cases = [
        ("a later protocol", later_hello()),
        ("its own greeting", Message::Hello.encode()),
        ("a map", Message::Map(1).encode()),
        ("a cut welcome", welcome[..welcome.len() - 1].to_vec()),
        ("a longer welcome", longer),
        ("an unknown kind", vec![99; 40]),
        ("zeroes", vec![0; 1000]),
    ];
    for (case, packet) in cases {
        let memory = Memory::new();
        let serve = |socket: &OwnedFd| {
            hear(socket);
            say(socket, &packet, &memory.files());
        };
        is_other_version(beside(serve, open), case);
    }
}

#[test]
fn a_session_that_breaks_off_is_no_other_version() {
    let memory = Memory::new();
    let hears_and_goes = |socket: &OwnedFd| _ = hear(socket);
    let lets_in_and_goes = |socket: &OwnedFd| _ = memory.let_in(socket);
    let ends_within_the_map = |socket: &OwnedFd| {
        memory.let_in(socket);
        say_map(socket, &[Message::Map(1)]);
    };
    let sends_too_much = |socket: &OwnedFd| {
        hear(socket);
        say(socket, &vec![1; PACKET_MAX + 1], &[]);
    };
    let doors: [&(dyn Fn(&OwnedFd) + Sync); 4] = [
        &hears_and_goes,
        &lets_in_and_goes,
        &ends_within_the_map,
        &sends_too_much,
    ];
    for (at, door) in doors.into_iter().enumerate() {
        let found = beside(door, open);
        assert!(
            matches!(found, Err(OpenError::Broken(_))),
            "{at}: {found:?}"
        );
    }
    let refuses = |socket: &OwnedFd| say(socket, &Message::Refused("no".into()).encode(), &[]);
    match beside(refuses, open) {
        Err(OpenError::Refused(why)) => assert_eq!(why, "no"),
        found => panic!("{found:?}"),
    }
}

#[test]
fn files_that_are_not_an_owners_are_another_version() {
    let memory = Memory::new();
    let [gate, log, seglets] = memory.files();
    let empty = Region::for_readers("pluvio-test", memory.gate.bytes(), false).unwrap();
    let changeable = Region::with_memfd("pluvio-test", memory.log.len()).unwrap();
    let on_disk = tempfile::tempfile().unwrap();
    on_disk.set_len(memory.log.len()).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let right = memory.welcome();
    let with = |change: fn(&mut Welcome)| {
        let mut welcome = right;
        change(&mut welcome);
        welcome
    };
    let cases: [(&str, Welcome, Vec<BorrowedFd<'_>>); 15] = [
        ("no files", right, vec![]),
        ("two files", right, vec![gate, log]),
        ("in another order", right, vec![log, gate, seglets]),
        (
            "a gate of another layout",
            right,
            vec![empty.memfd().unwrap(), log, seglets],
        ),
        (
            "a log that may shrink",
            right,
            vec![gate, changeable.memfd().unwrap(), seglets],
        ),
        (
            "a log on a disk",
            right,
            vec![gate, on_disk.as_fd(), seglets],
        ),
        ("a device", right, vec![null.as_fd(), log, seglets]),
        ("a socket", right, vec![]),
        (
            "a longer gate",
            with(|w| w.gate += 1 << 16),
            memory.files().into(),
        ),
        ("an empty gate", with(|w| w.gate = 0), memory.files().into()),
        (
            "a longer log",
            with(|w| w.log += 1 << 16),
            memory.files().into(),
        ),
        (
            "a shorter log",
            with(|w| w.log -= 1 << 16),
            memory.files().into(),
        ),
        (
            "a log without end",
            with(|w| w.log = u64::MAX),
            memory.files().into(),
        ),
        (
            "another table of seglets",
            with(|w| w.seglets *= 2),
            memory.files().into(),
        ),
        (
            "half a granule",
            with(|w| w.seglets /= 2),
            memory.files().into(),
        ),
    ];
    for (case, welcome, files) in cases {
        let serve = |socket: &OwnedFd| {
            hear(socket);
            let welcome = Welcome {
                boottime_ns: boottime_ns(),
                ..welcome
            };
            let own = [gate, log, socket.as_fd()];
            let files = match case {
                "a socket" => &own[..],
                _ => &files[..],
            };
            say(socket, &Message::Welcome(welcome).encode(), files);
        };
        is_other_version(beside(serve, open), case);
    }
}

fn table(id: u64, served: &[(u64, u64)]) -> Message {
    let range = |&(first, last): &(u64, u64)| HashRange::new(KeyHash(first), KeyHash(last));
    Message::Table(TableEntry {
        id: TableId(id),
        name: "t".into(),
        hash: TableHash {
            kind: HashKind::Seeded,
            seed: 1,
        },
        served: served.iter().map(range).collect(),
    })
}

fn index(table: u64, id: u64, has_file: bool) -> Message {
    Message::Index(IndexEntry {
        table: TableId(table),
        range: HashRange::ALL,
        layout: IndexLayout {
            id,
            bytes: INDEX_BYTES,
            lines_min: 1 << 12,
            lines_max: 1 << 12,
            expected: HashRange::ALL,
            kind: HashKind::Seeded,
        },
        has_file,
    })
}

#[test]
fn a_map_that_no_owner_sends_is_another_version() {
    let cases = [
        ("none", vec![Message::Hello]),
        ("its end alone", vec![Message::MapEnd(1)]),
        (
            "the end of another",
            vec![Message::Map(1), Message::MapEnd(2)],
        ),
        ("two beginnings", vec![Message::Map(1), Message::Map(1)]),
        (
            "ranges that overlap",
            vec![
                Message::Map(1),
                table(1, &[(0, 9), (9, 12)]),
                Message::MapEnd(1),
            ],
        ),
        (
            "the same in two parts",
            vec![
                Message::Map(1),
                table(1, &[(0, 9)]),
                table(1, &[(3, 4)]),
                Message::MapEnd(1),
            ],
        ),
        (
            "an index without its file",
            vec![Message::Map(1), table(1, &[(0, 9)]), index(1, 5, false)],
        ),
        (
            "an index whose file is missing",
            vec![Message::Map(1), table(1, &[(0, 9)]), index(1, 5, true)],
        ),
    ];
    let memory = Memory::new();
    for (case, parts) in cases {
        let serve = |socket: &OwnedFd| {
            if memory.let_in(socket) {
                say_map(socket, &parts);
            }
        };
        is_other_version(beside(serve, open), case);
    }
}

#[test]
fn an_index_of_another_file_or_table_is_another_version() {
    let memory = Memory::new();
    let right = Region::for_readers("pluvio-test", INDEX_BYTES, false).unwrap();
    let opens = |table_sent: u64, layout_of: u64, file: Option<BorrowedFd<'_>>| {
        let serve = |socket: &OwnedFd| {
            if !memory.let_in(socket) {
                return;
            }
            say_map(socket, &[Message::Map(1), table(table_sent, &[(0, 9)])]);
            let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
            say(socket, &index(layout_of, 5, true).encode(), &files);
            say_map(socket, &[Message::MapEnd(1)]);
        };
        beside(serve, open)
    };
    let opened = opens(1, 1, right.memfd());
    assert!(opened.is_ok(), "{opened:?}");
    is_other_version(opens(1, 2, right.memfd()), "of a table that is not there");
    is_other_version(opens(1, 1, memory.log.memfd()), "another length");
    let null = std::fs::File::open("/dev/null").unwrap();
    is_other_version(opens(1, 1, Some(null.as_fd())), "a device");
}

/// A session that goes wrong later: the reader keeps what it knew, and begins anew.
#[test]
fn a_reader_whose_owner_turns_into_another_says_so_and_finds_the_right_one_again() {
    let memory = Memory::new();
    let sessions = AtomicU32::new(0);
    let serve = |socket: &OwnedFd| match sessions.load(Ordering::Relaxed) {
        // Its second map is rubbish.
        0 => {
            if memory.let_in(socket) {
                say_map(socket, &[Message::Map(1), Message::MapEnd(1)]);
                // A greeting that was late was made again before.
                sessions.store(1, Ordering::Relaxed);
                hear(socket);
                say(socket, &[99], &[]);
            }
        }
        1 => {
            sessions.store(2, Ordering::Relaxed);
            hear(socket);
            say(socket, &later_hello(), &[]);
        }
        _ => {
            if memory.let_in(socket) {
                say_map(
                    socket,
                    &[Message::Map(1), table(3, &[]), Message::MapEnd(1)],
                );
            }
        }
    };
    beside(serve, |path| {
        let reader = Reader::open(path).unwrap();
        let refreshed = reader.refresh();
        assert!(
            matches!(refreshed, Err(OpenError::OtherVersion(_))),
            "{refreshed:?}"
        );
        let answer = reader.read(TableId(3), b"key", &mut Vec::new());
        assert_eq!(answer, Answer::Ask(Why::NotHere));
        reader.refresh().unwrap();
        assert_eq!(reader.table_named("t"), Some(TableId(3)));
        assert_eq!(sessions.load(Ordering::Relaxed), 2);
    });
}
