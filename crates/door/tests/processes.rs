//! Readers in processes of their own: killed, stopped, strangers, and such as speak rubbish.

#![allow(clippy::unwrap_used)]

mod support;

use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_door::{Allowed, DoorOptions};
use pluvio_mapped::messages::Message;
use pluvio_mapped::socket::receive;
use pluvio_mapped::{Answer, OpenError, ReadError, Reader, Why};
use pluvio_store::{Size, Store};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::{Shared, count_of, put, value_of};

const KEYS: u64 = 256;

/// The place of the door, for a child.
const PLACE: &str = "PLUVIO_DOOR_TEST_PLACE";
/// What the child does.
const ROLE: &str = "PLUVIO_DOOR_TEST_ROLE";

/// A process that runs [`child`] in this role.
fn start(place: &Path, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture", "--test-threads", "1"])
        .env(PLACE, place)
        .env(ROLE, role)
        .stdout(Stdio::null());
    command
}

/// The other processes; without a role it is a test that does nothing.
#[test]
fn child() {
    let (Ok(place), Ok(role)) = (std::env::var(PLACE), std::env::var(ROLE)) else {
        return;
    };
    let code = match role.as_str() {
        "read" => read_until_it_ends(Path::new(&place)),
        "once" => read_once(Path::new(&place)),
        "million" => read_a_million(Path::new(&place)),
        other => panic!("no role {other}"),
    };
    std::process::exit(code);
}

/// Reads all keys again and again, until there is a key `over`. Each value is whole, and none older
/// than one that was seen before.
fn read_until_it_ends(place: &Path) -> i32 {
    let table = pluvio_mapped::Store::open(place)
        .unwrap()
        .table("t")
        .unwrap();
    let (mut seen, mut into) = (vec![0; KEYS as usize], Vec::new());
    loop {
        for key in 0..KEYS {
            match table.get_into(&key.to_le_bytes(), &mut into) {
                Ok(true) => {
                    let count = count_of(key, &into);
                    assert!(seen[key as usize] <= count, "key {key} goes back");
                    seen[key as usize] = count;
                }
                Ok(false) => panic!("key {key} is missing"),
                // Its owner does not run.
                Err(ReadError::Stalled(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        match table.get_into(b"over", &mut into) {
            Ok(true) => return 0,
            Ok(false) | Err(ReadError::Stalled(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// 0 for a value, 1 for none, 3 if it may not read.
fn read_once(place: &Path) -> i32 {
    match pluvio_mapped::Store::open(place) {
        Ok(store) => {
            let found = store.table("t").unwrap().get(&1_u64.to_le_bytes());
            i32::from(found.unwrap().is_none())
        }
        Err(OpenError::Refused(_) | OpenError::Connect { .. }) => 3,
        Err(other) => panic!("{other}"),
    }
}

/// Gets of the test with the trace.
const MILLION: u64 = 1_000_000;
/// Paths that are not there. A look at one shows in the trace, in this order.
const MARKS: [&str; 4] = [
    "/pluvio-clock-is-asked",
    "/pluvio-clock-was-asked",
    "/pluvio-gets-begin",
    "/pluvio-gets-end",
];

fn mark(at: usize) {
    assert!(std::fs::metadata(MARKS[at]).is_err(), "{}", MARKS[at]);
}

/// A million gets that are answered in memory, one in ten of an absent key; then 0.
fn read_a_million(place: &Path) -> i32 {
    let reader = Reader::open(place).unwrap();
    let table = reader.table_named("t").unwrap();
    let mut into = Vec::with_capacity(1 << 16);
    let mut gets = |wanted: u64| {
        let (mut answered, mut absent) = (0, 0);
        for attempt in 0..100 * wanted {
            let key = match attempt % 10 {
                0 => attempt | 1 << 63,
                _ => attempt % KEYS,
            };
            match reader.read(table, &key.to_le_bytes(), &mut into) {
                Answer::Found(_) => assert_eq!(into[..8], key.to_le_bytes()),
                Answer::Absent => absent += 1,
                // The owner got no processor, or this process lost its own within the read.
                Answer::Ask(Why::NotFresh | Why::Reused | Why::Busy) => continue,
                Answer::Ask(why) => panic!("{why:?}"),
            }
            answered += 1;
            if answered == wanted {
                return absent;
            }
        }
        panic!("{answered} of {wanted} gets were answered");
    };
    gets(10 * KEYS);
    // An entry in several pieces is joined in the heap, which has the room from now on.
    drop(core::hint::black_box(vec![1_u8; 100_000]));
    mark(0);
    let asked = pluvio_mapped::boottime_ns();
    mark(1);
    mark(2);
    let absent = gets(MILLION);
    mark(3);
    assert!(asked > 0 && (MILLION / 20..MILLION / 5).contains(&absent));
    0
}

fn filled(memory: Size, options: DoorOptions) -> (Shared, pluvio_store::Table) {
    let shared = Shared::with(Store::builder().memory(memory), options);
    let table = shared.store.create_table("t").unwrap();
    round(&table, 0);
    (shared, table)
}

/// Overwrites all keys with longer and shorter values, some 1.3 MB together.
fn round(table: &pluvio_store::Table, count: u64) {
    for key in 0..KEYS {
        let len = (key * 37 + count * 4099) % 10_000;
        put(
            table,
            &key.to_le_bytes(),
            &value_of(key, count, len as usize),
        );
    }
}

fn attached(shared: &Shared) -> usize {
    shared.door.stats().readers.len()
}

fn wait_for(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Readers are killed whatever they are doing; the writer has the memory that it needs, and those
/// that live read what is right.
#[test]
fn a_reader_that_is_killed_holds_up_nothing() {
    let (shared, table) = filled(Size::mib(32), DoorOptions::default());
    let mut steady = start(&shared.place, "read").spawn().unwrap();
    let mut count = 0;
    for _victim in 0..6 {
        let before = shared.door.stats().let_in;
        let mut victim = start(&shared.place, "read").spawn().unwrap();
        wait_for(|| shared.door.stats().let_in > before);
        for _ in 0..20 {
            count += 1;
            round(&table, count);
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        for _ in 0..20 {
            count += 1;
            round(&table, count);
        }
    }
    table.put(b"over", b"").unwrap();
    assert!(steady.wait().unwrap().success());
    wait_for(|| attached(&shared) == 0);
    assert!(
        shared.store.stats().cleaner.bytes_cleaned > 0,
        "nothing was cleaned"
    );
}

/// The memory that stopped readers were reading is used again many times before they go on. What
/// they have copied half does not count.
// shows: MAP-2
#[test]
fn a_reader_that_is_stopped_holds_up_nothing_and_goes_on_rightly() {
    let (shared, table) = filled(Size::mib(32), DoorOptions::default());
    let mut readers: Vec<Child> = (0..3)
        .map(|_| start(&shared.place, "read").spawn().unwrap())
        .collect();
    wait_for(|| attached(&shared) == 3);
    let mut count = 0;
    for _stop in 0..8 {
        for reader in &readers {
            kill_process(pid_of(reader), Signal::STOP).unwrap();
        }
        let before = shared.store.stats().cleaner.bytes_cleaned;
        while shared.store.stats().cleaner.bytes_cleaned < before + (40 << 20) {
            count += 1;
            round(&table, count);
        }
        for reader in &readers {
            kill_process(pid_of(reader), Signal::CONT).unwrap();
        }
        count += 1;
        round(&table, count);
    }
    table.put(b"over", b"").unwrap();
    for reader in &mut readers {
        assert!(reader.wait().unwrap().success());
    }
}

#[test]
fn the_policy_names_users_and_groups() {
    let allowed = Allowed {
        uids: vec![7],
        gids: vec![8],
    };
    let may = |uid, gid| allowed.allows(uid, gid, 1000);
    assert!(may(1000, 1) && may(7, 1) && may(2, 8));
    assert!(!may(0, 0) && !may(8, 7));
    assert!(!Allowed::default().allows(0, 0, 1000));
}

/// A connection with the door that has said nothing yet.
fn connect(place: &Path) -> OwnedFd {
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    let address = SocketAddrUnix::new(place).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

/// Connections that say nothing, rubbish, or the same thing again and again, beside an honest
/// reader.
// shows: DOOR-1, DOOR-2
#[test]
fn readers_that_speak_rubbish_are_let_go_and_others_are_served() {
    let options = DoorOptions {
        readers_max: 8,
        ..DoorOptions::default()
    };
    let (shared, table) = filled(Size::mib(32), options);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let hello = Message::Hello.encode();
            let ask = Message::GetMap.encode();
            let mut turn = 0_usize;
            while !over.load(Ordering::Relaxed) {
                turn += 1;
                let socket = connect(&shared.place);
                let say = |bytes: &[u8]| {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    let _refused = rustix::net::send(&socket, bytes, flags);
                };
                match turn % 5 {
                    0 => {}
                    1 => say(&vec![turn as u8; turn % 5000 + 1]),
                    2 => say(&ask),
                    3 => {
                        say(&hello);
                        say(&hello);
                    }
                    // It asks, and takes nothing.
                    _ => {
                        say(&hello);
                        (0..2000).for_each(|_| say(&ask));
                    }
                }
            }
        });
        let mut served = 0;
        while served < 20 {
            match pluvio_mapped::Store::open(&shared.place) {
                Ok(store) => {
                    let found = store.table("t").unwrap().get(&1_u64.to_le_bytes());
                    assert!(found.unwrap().is_some());
                    served += 1;
                }
                // Others have taken all places, or the processor.
                Err(OpenError::Refused(_) | OpenError::Clocks) => {}
                Err(OpenError::Connect { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            round(&table, served);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(shared.door.stats().refused > 0 || shared.door.stats().let_in > 20);
}

/// A reader whose greeting has another number of the protocol, or is none.
#[test]
fn a_reader_of_another_version_is_told_so() {
    let (shared, _table) = filled(Size::mib(32), DoorOptions::default());
    let mut later = Message::Hello.encode();
    *later.last_mut().unwrap() += 1;
    for greeting in [&later[..], &[77, 1, 2, 3]] {
        let socket = connect(&shared.place);
        rustix::net::send(&socket, greeting, SendFlags::NOSIGNAL).unwrap();
        let next = || receive(&socket, RecvFlags::empty()).unwrap();
        let (packet, files) = next();
        assert_eq!(Message::decode(&packet), Ok(Message::Hello));
        assert_eq!((files.len(), next().0.len()), (0, 0), "and the end");
    }
    wait_for(|| attached(&shared) == 0);
}

/// The rights of root, which alone becomes another user.
mod needs_root {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    // shows: DOOR-3
    #[test]
    fn another_user_reads_only_if_it_is_allowed() {
        let mut options = DoorOptions::default();
        for (allowed, expected) in [(None, 3), (Some(12_346), 3), (Some(12_345), 0)] {
            options.allowed.uids = allowed.into_iter().collect();
            let (shared, _table) = filled(Size::mib(32), options.clone());
            let directory = shared.place.parent().unwrap();
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
            // A place where the other user finds this program.
            let program = directory.join("reader");
            std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            let mut command = Command::new(&program);
            command
                .args(["--exact", "child", "--nocapture"])
                .env(PLACE, &shared.place)
                .env(ROLE, "once")
                .stdout(Stdio::null())
                .current_dir("/");
            let status = command.uid(12_345).gid(12_345).status().unwrap();
            assert_eq!(status.code(), Some(expected), "{allowed:?}");
        }
    }
}

/// A trace of a process's system calls.
mod needs_strace {
    use super::*;

    /// Which of the calls of a thread lie between two marks.
    fn between<'a>(calls: &[&'a str], first: usize) -> Vec<&'a str> {
        let at = |mark: usize| {
            let mut found = calls.iter().enumerate();
            let found = found.find(|(_, call)| call.contains(MARKS[mark]));
            found
                .unwrap_or_else(|| panic!("no {}: {calls:?}", MARKS[mark]))
                .0
        };
        calls[at(first) + 1..at(first + 1)].to_vec()
    }

    /// Beside a writer, whose memory is used again all the time.
    #[test]
    fn a_million_gets_make_no_system_call() {
        let (shared, table) = filled(Size::mib(32), DoorOptions::default());
        let trace = shared.place.with_file_name("trace");
        let reader = start(&shared.place, "million");
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o"]).arg(&trace);
        traced.arg(reader.get_program()).args(reader.get_args());
        for (name, value) in reader.get_envs() {
            traced.env(name, value.unwrap());
        }
        let mut traced = traced.stdout(Stdio::null()).spawn().unwrap();
        let mut count = 0;
        let status = loop {
            count += 1;
            round(&table, count);
            if let Some(status) = traced.try_wait().unwrap() {
                break status;
            }
        };
        assert!(status.success(), "{status}");
        let trace = std::fs::read_to_string(trace).unwrap();
        let marked = trace.lines().find(|line| line.contains(MARKS[0])).unwrap();
        let thread = marked.split_whitespace().next().unwrap();
        let calls: Vec<&str> = trace
            .lines()
            .filter_map(|line| line.strip_prefix(thread)?.strip_prefix(' '))
            .map(str::trim_start)
            // The end of a call that has a line already.
            .filter(|call| !call.starts_with("<... "))
            .collect();
        // The clock of some virtual machines is a system call for everybody.
        let clock = between(&calls, 0);
        let is_clock = |call: &&str| call.contains("clock_gettime");
        assert!(clock.len() <= 1 && clock.iter().all(is_clock), "{clock:?}");
        let mut made = between(&calls, 2);
        if !clock.is_empty() {
            made.retain(|call| !is_clock(call));
        }
        assert_eq!(made, Vec::<&str>::new());
        println!(
            "a get asks {} clock; {count} rounds of writes meanwhile",
            match clock.is_empty() {
                true => "the mapped",
                false => "the system's",
            }
        );
    }
}
