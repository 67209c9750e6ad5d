//! Workers, and processes that die with a worker or in one.
//!
//! Tests have many threads, and workers are made while there is one. So each case runs in a fork of
//! a child process, which has one thread.

use super::sharing::{count_in, count_once, counted};
use super::{attach, board, child_of, registry};
use crate::files;
use crate::lock::place_is_free;
use crate::{
    Access, Base, CALL_BYTES_MAX, Kind, Lock, Registry, Result, Space, SpaceDefinition, SpaceError,
    Worker,
};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Nothing takes so long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Too short for a call that does not end.
const SHORT: Duration = Duration::from_millis(20);

type Case = fn(&Registry);

const CASES: [(&str, Case); 10] = [
    ("at once", at_once),
    ("passed", passed),
    ("late", late),
    ("threads", threads),
    ("killed idle", killed_idle),
    ("dies inside", dies_inside),
    ("killed with locks", killed_with_locks),
    ("gives up", gives_up),
    ("ends", ends),
    ("nested", nested),
];

/// What a child does: a case in a process with one thread, which ends when it takes too long.
#[allow(unsafe_code)] // forks
pub(super) fn child(registry: &Registry, name: &str) {
    let orphan = match name {
        "orphan idle" => Some(false),
        "orphan busy" => Some(true),
        _ => None,
    };
    // SAFETY: the harness's thread waits for this one, with no lock that the case needs.
    let id = unsafe { libc::fork() };
    if id == 0 {
        let case = || match (orphan, CASES.iter().find(|(case, _)| *case == name)) {
            (Some(is_busy), _) => die_first(registry, is_busy),
            (None, Some((_, case))) => case(registry),
            (None, None) => panic!("no case {name}"),
        };
        // SAFETY: a timer, and the end of this process.
        unsafe {
            libc::alarm(PATIENCE.as_secs() as u32 * 2);
            let failed = catch_unwind(AssertUnwindSafe(case)).is_err();
            libc::_exit(i32::from(failed));
        }
    }
    let mut status = 0;
    // SAFETY: waits for the own child.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    assert!(
        orphan.is_some() || status == 0,
        "{name}: status {status:#x}"
    );
}

fn run(case: &str) {
    let (_place, registry) = registry();
    let output = child_of(registry.root(), &format!("worker {case}"), 0)
        .output()
        .expect("a child");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {errors}");
}

fn start(registry: &Registry, space: &str) -> Result<Worker> {
    start_of(&registry.find_space(space)?)
}

#[allow(unsafe_code)] // the tests' own files
fn start_of(definition: &SpaceDefinition) -> Result<Worker> {
    // SAFETY: only tests write the directory, by this crate. The functions that workers call are
    // in this program, and use the space alone, or looks at its own process.
    unsafe { definition.start_worker() }
}

/// Makes a span of words, and a space with it.
fn words(registry: &Registry, name: &str, lock: Lock) {
    let span = registry.span(name).kind(Kind::Words).size(1 << 16);
    span.lock(lock).create().expect("a span");
    registry
        .create_space(name, &[(name, Access::Write)])
        .expect("a space");
}

/// Looks at word 0 until it is `value`.
fn await_word(space: &Space, value: u64) {
    let mut inside = space.enter().expect("inside");
    let part = inside.part("free").expect("a span");
    let word = &part.words().expect("words")[0];
    while word.load(Ordering::Acquire) != value {
        std::thread::yield_now();
    }
}

fn set_word(space: &Space, value: u64) {
    let mut inside = space.enter().expect("inside");
    let part = inside.part("free").expect("a span");
    part.words().expect("words")[0].store(value, Ordering::Release);
}

/// In a worker: says that it is inside, and stays until word 0 is 2.
fn stay(space: &mut Space, (): ()) -> Result<u64> {
    set_word(space, 1);
    await_word(space, 2);
    Ok(1)
}

fn kill(worker: &Worker, signal: Signal) {
    let id = Pid::from_raw(worker.process_id() as i32).expect("a process");
    kill_process(id, signal).expect("killed");
}

/// Waits until the process is dead, whether or not somebody has waited for it.
fn await_death(process: u32, case: &str) {
    let id = Pid::from_raw(process as i32).expect("a process");
    if let Ok(handle) = pidfd_open(id, PidfdFlags::empty()) {
        let time = Timespec::try_from(PATIENCE).expect("a time");
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        assert_eq!(poll(&mut ended, Some(&time)), Ok(1), "{case}");
    }
}

fn is_dead(called: Result<u64>, wanted: &str) {
    match called {
        Err(SpaceError::WorkerDied { how, .. }) => assert_eq!(how, wanted),
        other => panic!("{other:?}"),
    }
}

/// Two heaps with the same addresses, and one that overlaps them.
fn at_once(registry: &Registry) {
    let space = board(registry);
    registry.clone_span("board", "copy").expect("a copy");
    registry.clone_span("board", "parked").expect("a copy");
    for name in ["copy", "parked"] {
        registry
            .create_space(name, &[(name, Access::Write)])
            .expect("a space");
    }
    // A window with a parked span is not in the way either.
    let parked = attach(registry, "parked");
    count_in(&mut parked.enter().expect("inside"), "parked");
    drop(space.enter().expect("inside"));
    let other = tempfile::tempdir().expect("a directory");
    let other = Registry::open(other.path()).expect("a registry");
    let base = registry.find_span("board").expect("a span").base - (1 << 20);
    let across = other.span("free").kind(Kind::Words).size(4 << 20);
    across.base(Base::At(base)).create().expect("a span");
    other
        .create_space("free", &[("free", Access::Write)])
        .expect("a space");

    let workers = [
        start(registry, "copy").expect("a worker"),
        start(registry, "board").expect("a worker"),
    ];
    let across = start(&other, "free").expect("a worker");
    {
        // All while this thread is inside the first.
        let mut inside = space.enter().expect("inside");
        count_once(&mut inside);
        let copied = workers[0].call((), |space, ()| {
            count_in(&mut space.enter()?, "copy");
            count_in(&mut space.enter()?, "copy");
            Ok(counted(space, "copy"))
        });
        assert_eq!(copied.expect("an answer"), 2);
        let set = across.call(7, |space, value: u64| {
            set_word(space, value);
            Ok(())
        });
        set.expect("an answer");
        // The lock is the one of all processes.
        let taken = workers[1].call((), |space, ()| Ok(u64::from(space.try_enter().is_err())));
        assert_eq!(taken.expect("an answer"), 1);
    }
    assert_eq!(counted(&space, "board"), 1);
    assert_eq!(counted(&parked, "parked"), 1);
    let more = workers[1].call((), |space, ()| {
        count_once(&mut space.enter()?);
        Ok(())
    });
    more.expect("an answer");
    assert_eq!(counted(&space, "board"), 2);
}

#[test]
fn spaces_with_the_same_addresses_are_used_at_once() {
    run("at once");
}

/// Values, errors and panics.
fn passed(registry: &Registry) {
    words(registry, "free", Lock::None);
    let worker = start(registry, "free").expect("a worker");
    assert_eq!(worker.space(), "free");
    let mut all = [0_u8; CALL_BYTES_MAX];
    all[0] = 1;
    all[CALL_BYTES_MAX - 1] = 2;
    let turned = worker.call(all, |_, mut all: [u8; CALL_BYTES_MAX]| {
        all.reverse();
        Ok(all)
    });
    all.reverse();
    assert_eq!(turned.expect("an answer"), all);
    let given_up = worker.call((), |_, ()| -> Result<()> {
        Err(SpaceError::GivenUp("as asked".to_owned()))
    });
    assert!(matches!(given_up, Err(SpaceError::GivenUp(why)) if why == "as asked"));
    let missing = worker.call((), |space, ()| {
        space.enter()?.part("missing")?;
        Ok(())
    });
    assert!(matches!(missing, Err(SpaceError::NotAttached(name)) if name == "missing"));
    let kind = worker.call((), |space, ()| {
        space.enter()?.read::<u64, ()>("free", |_| ())
    });
    assert!(matches!(kind, Err(SpaceError::WorkerFailed(text)) if text.contains("`free` holds")));
    let panicked = worker.call(3, |_, number: u64| -> Result<()> { panic!("no {number}") });
    assert!(matches!(panicked, Err(SpaceError::WorkerPanicked(text)) if text == "no 3"));
    let long = worker.call((), |_, ()| -> Result<()> {
        panic!("x{}", "é".repeat(5000))
    });
    match long {
        Err(SpaceError::WorkerPanicked(text)) => assert_eq!(text.len(), CALL_BYTES_MAX - 1),
        other => panic!("{other:?}"),
    }
    // A guard that a panic has dropped is left.
    let inside = worker.call((), |space, ()| -> Result<()> {
        let _inside = space.enter()?;
        panic!("inside")
    });
    assert!(inside.is_err());
    assert!(worker.call((), |_, ()| Ok(true)).expect("an answer"));
    // A space that cannot be attached is refused as by `attach`, and nothing stays.
    let before = registry.find_space("free").expect("a space");
    registry
        .remove_from_space("free", "free")
        .and_then(|_| registry.destroy_span("free"))
        .expect("destroyed");
    let gone = start_of(&before);
    assert!(matches!(gone, Err(SpaceError::WorkerFailed(text)) if text.contains("destroyed")));
}

#[test]
fn answers_errors_and_panics_come_back() {
    run("passed");
}

/// A call that ends too late goes on, and nobody gets its answer.
fn late(registry: &Registry) {
    words(registry, "free", Lock::None);
    let worker = start(registry, "free").expect("a worker");
    let space = attach(registry, "free");
    let called = worker.call_within(SHORT, (), stay);
    assert!(
        matches!(called, Err(SpaceError::WorkerLate(_))),
        "{called:?}"
    );
    for _ in 0..2 {
        let next = worker.call_within(SHORT, 5_u64, |_, number| Ok(number));
        assert!(matches!(next, Err(SpaceError::WorkerBusy(_))), "{next:?}");
    }
    await_word(&space, 1);
    set_word(&space, 2);
    let next = worker.call_within(PATIENCE, 5_u64, |_, number| Ok(number));
    assert_eq!(next.expect("an answer"), 5);
    // A thread that waits for another one gives up as well.
    set_word(&space, 0);
    std::thread::scope(|threads| {
        let first = threads.spawn(|| worker.call((), stay));
        await_word(&space, 1);
        let second = worker.call_within(SHORT, (), stay);
        assert!(
            matches!(second, Err(SpaceError::WorkerBusy(_))),
            "{second:?}"
        );
        set_word(&space, 2);
        assert_eq!(first.join().expect("a thread").expect("an answer"), 1);
    });
    // One that is busy for ever ends with its `Worker`.
    set_word(&space, 0);
    let called = worker.call_within(SHORT, (), stay);
    assert!(
        matches!(called, Err(SpaceError::WorkerLate(_))),
        "{called:?}"
    );
    drop(worker);
}

// shows: JUMP-10
#[test]
fn a_call_that_takes_too_long_is_given_up() {
    run("late");
}

/// Threads call one after the other, and each gets its own answer.
fn threads(registry: &Registry) {
    words(registry, "free", Lock::None);
    let worker = start(registry, "free").expect("a worker");
    let calls = 200;
    let sum = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (worker, sum) = (&worker, &sum);
            threads.spawn(move || {
                for call in 0..calls {
                    let args = [thread, call];
                    let answer = worker.call(args, |space, args: [u64; 2]| {
                        let mut inside = space.enter()?;
                        let words = inside.part("free")?;
                        // Two at a time would be seen.
                        let word = &words.words()?[1];
                        let before = word.load(Ordering::Relaxed);
                        word.store(before + 1, Ordering::Relaxed);
                        Ok([args[0], args[1], before])
                    });
                    let [its_thread, its_call, before] = answer.expect("an answer");
                    assert_eq!([its_thread, its_call], args);
                    sum.fetch_add(before, Ordering::Relaxed);
                }
            });
        }
    });
    let all = 4 * calls;
    assert_eq!(sum.into_inner(), all * (all - 1) / 2);
}

#[test]
fn threads_call_one_after_the_other() {
    run("threads");
}

#[test]
fn a_process_with_several_threads_starts_no_worker() {
    let (_place, registry) = registry();
    words(&registry, "free", Lock::None);
    let refused = std::thread::scope(|threads| {
        let other = threads.spawn(|| start(&registry, "free"));
        other.join().expect("a thread")
    });
    assert!(matches!(refused, Err(SpaceError::Threads(found)) if found > 1));
}

fn killed_idle(registry: &Registry) {
    words(registry, "free", Lock::None);
    let worker = start(registry, "free").expect("a worker");
    // These are for the program, which decides.
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        kill(&worker, signal);
    }
    assert_eq!(worker.call((), |_, ()| Ok(1_u64)).expect("an answer"), 1);
    kill(&worker, Signal::KILL);
    await_death(worker.process_id(), "idle");
    for _ in 0..2 {
        is_dead(worker.call((), |_, ()| Ok(1)), "killed by signal 9");
        let timed = worker.call_within(PATIENCE, (), |_, ()| Ok(1));
        is_dead(timed, "killed by signal 9");
    }
}

/// Deaths by the function itself, and one by another process.
fn dies_inside(registry: &Registry) {
    words(registry, "free", Lock::None);
    type Dies = fn(&mut Space, ()) -> Result<u64>;
    let ways: [(Dies, &str); 3] = [
        (|_, ()| std::process::abort(), "killed by signal 6"),
        (|_, ()| std::process::exit(3), "it has exited with 3"),
        (segfault, "killed by signal 11"),
    ];
    for (dies, how) in ways {
        let worker = start(registry, "free").expect("a worker");
        is_dead(worker.call((), dies), how);
        is_dead(worker.call((), |_, ()| Ok(1)), how);
    }
    let worker = start(registry, "free").expect("a worker");
    let space = attach(registry, "free");
    std::thread::scope(|threads| {
        let called = threads.spawn(|| worker.call((), stay));
        await_word(&space, 1);
        kill(&worker, Signal::KILL);
        is_dead(called.join().expect("a thread"), "killed by signal 9");
    });
}

#[allow(unsafe_code)] // raises a signal
fn segfault(_: &mut Space, (): ()) -> Result<u64> {
    // SAFETY: what a wild pointer brings.
    unsafe { libc::raise(libc::SIGSEGV) };
    Ok(0)
}

// shows: JUMP-10
#[test]
fn a_death_of_the_worker_is_an_error_at_once() {
    run("killed idle");
    run("dies inside");
}

/// In a worker: is inside all spans until it is killed.
fn hold(space: &mut Space, (): ()) -> Result<u64> {
    let mut inside = space.enter()?;
    for name in ["robust", "free"] {
        let part = inside.part(name)?;
        part.words()?[0].store(1, Ordering::Release);
    }
    loop {
        std::thread::park();
    }
}

fn killed_with_locks(registry: &Registry) {
    let heap = board(registry);
    words(registry, "robust", Lock::Robust);
    words(registry, "free", Lock::None);
    let members = ["board", "robust", "free"].map(|name| (name, Access::Write));
    registry.create_space("all", &members).expect("a space");
    let [robust, free] = ["robust", "free"].map(|name| attach(registry, name));
    let worker = start(registry, "all").expect("a worker");
    let called = worker.call_within(SHORT, (), hold);
    assert!(
        matches!(called, Err(SpaceError::WorkerLate(_))),
        "{called:?}"
    );
    await_word(&free, 1);
    for space in [&heap, &robust] {
        let refused = space.try_enter_shared();
        assert!(matches!(refused, Err(SpaceError::WouldBlock(_))));
    }
    kill(&worker, Signal::KILL);
    drop(heap.enter_within(PATIENCE).expect("a lock that is free"));
    let poisoned = robust.enter_within(PATIENCE);
    assert!(
        matches!(poisoned, Err(SpaceError::Poisoned(_))),
        "{poisoned:?}"
    );
    is_dead(worker.call((), hold), "killed by signal 9");
    let found = robust.recover("robust", |words| words[0].load(Ordering::Relaxed));
    assert_eq!(found.expect("recovered"), 1);
    drop(robust.enter_within(PATIENCE).expect("a lock that is free"));
}

#[test]
fn locks_of_a_worker_go_with_it() {
    run("killed with locks");
}

/// Whether the file with this number is `/dev/null`, in the process that asks.
fn is_nothing(number: u64) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
    link.is_ok_and(|path| path.as_os_str() == "/dev/null")
}

fn gives_up(registry: &Registry) {
    words(registry, "free", Lock::None);
    words(registry, "robust", Lock::Robust);
    let robust = attach(registry, "robust");
    let (hear, ring) = rustix::pipe::pipe().expect("a pipe");
    let first = start(registry, "free").expect("a worker");
    let second = start(registry, "free").expect("a worker");
    for worker in [&first, &second] {
        let number = ring.as_raw_fd() as u64;
        let looked = worker.call(number, |_, number| Ok([is_nothing(number), is_nothing(0)]));
        assert_eq!(looked.expect("an answer"), [true; 2]);
    }
    // No other process has the end that rings.
    drop(ring);
    assert_eq!(rustix::io::read(&hear, &mut [0; 1]), Ok(0));
    // Nor the file that has the place of this process at the lock.
    let path = registry.root().join("spans/robust.span");
    let file = files::open(&path, true).expect("the file");
    assert_eq!(place_is_free(file.as_fd(), 0), Ok(false));
    drop(robust);
    assert_eq!(place_is_free(file.as_fd(), 0), Ok(true));
    drop(first);
    assert_eq!(second.call((), |_, ()| Ok(2_u64)).expect("an answer"), 2);
}

// shows: JUMP-12
#[test]
fn a_worker_gives_up_what_it_has_inherited() {
    run("gives up");
}

fn ends(registry: &Registry) {
    words(registry, "free", Lock::None);
    let worker = start(registry, "free").expect("a worker");
    let process = format!("/proc/{}", worker.process_id());
    let process = std::path::Path::new(&process);
    assert!(process.exists());
    drop(worker);
    assert!(!process.exists(), "it was ended, and waited for");
}

/// Starts a worker, says its number, and dies.
fn die_first(registry: &Registry, is_busy: bool) {
    words(registry, "free", Lock::None);
    let worker = start(registry, "free").expect("a worker");
    println!("worker {}", worker.process_id());
    if is_busy {
        let called = worker.call_within(SHORT, (), stay);
        assert!(called.is_err());
        await_word(&attach(registry, "free"), 1);
    }
    kill_process(rustix::process::getpid(), Signal::KILL).expect("killed");
}

// shows: JUMP-11
#[test]
fn a_worker_ends_with_its_owner_and_with_its_process() {
    run("ends");
    for case in ["orphan idle", "orphan busy"] {
        let (_place, registry) = registry();
        let mut child = child_of(registry.root(), &format!("worker {case}"), 0);
        let mut child = child.spawn().expect("a child");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut said = output.lines().map_while(|line| line.ok());
        let worker = said.find_map(|line| line.split_once("worker ")?.1.parse().ok());
        await_death(worker.expect("a number"), case);
        assert!(child.wait().expect("a child").success());
    }
}

/// A thread that is inside would leave its locks to the fork.
fn nested(registry: &Registry) {
    let space = board(registry);
    let inside = space.enter().expect("inside");
    assert!(matches!(start(registry, "board"), Err(SpaceError::Nested)));
    drop(inside);
    drop(start(registry, "board").expect("a worker"));
}

#[test]
fn a_thread_that_is_inside_starts_no_worker() {
    run("nested");
}
