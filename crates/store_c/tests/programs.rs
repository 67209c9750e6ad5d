//! Programs in C, compiled and linked as a user does.

#![allow(clippy::unwrap_used)]

use pluvio_door::{Door, DoorOptions};
use pluvio_store::{Size, Store, StoreError, Table};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put the library: beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles a program with these options.
fn compile(source: &Path, options: &[&str], program: &Path) {
    let library = library();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
        .args(options)
        .arg("-I")
        .arg(folder().join("include"))
        .arg(source)
        .arg("-o")
        .arg(program)
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lpluvio_store_c");
    let compiled = compiler.output().unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{compiler:?}\n{said}");
}

/// Compiles a program with these options, runs it with an empty folder, and gives its output.
fn run(source: &Path, options: &[&str]) -> String {
    let place = tempfile::tempdir().unwrap();
    let (program, data) = (place.path().join("program"), place.path().join("data"));
    compile(source, options, &program);
    let ran = Command::new(&program).arg(&data).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "{}: {}\n{said}",
        source.display(),
        ran.status
    );
    String::from_utf8(ran.stdout).unwrap()
}

// shows: CABI-1, CABI-3
#[test]
fn a_program_of_several_threads_does_all_there_is() {
    assert_eq!(run(&folder().join("tests/c/all.c"), &[]), "all is well\n");
}

/// Lets a program read a store of this process, which changes it and then closes its door.
fn read_by_another(options: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let (program, at) = (place.path().join("program"), place.path().join("door"));
    compile(&folder().join("tests/c/mapped.c"), options, &program);
    let store = Store::builder().memory(Size::mib(64)).shared(true);
    let store = store.build().unwrap();
    let towns = store.create_table("towns").unwrap();
    let put = |key: &[u8], value: &[u8]| {
        while let Err(full) = towns.put(key, value) {
            assert!(matches!(full, StoreError::Full { .. }), "{full}");
            std::thread::yield_now();
        }
    };
    put(b"Bern", b"134794");
    put(b"", b"");
    let change = |count: u32| {
        for key in 0..50 {
            let value = vec![count as u8; 1 + (count * 997 + key * 13) as usize % 100_000];
            put(format!("key {key}").as_bytes(), &value);
        }
    };
    change(0);
    let door = Door::open(&at, Arc::new(store), DoorOptions::default()).unwrap();
    let mut child = Command::new(&program);
    child.arg(&at).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                count += 1;
                change(count);
            }
        });
        said.read_line(&mut line).unwrap();
        over.store(true, Ordering::Relaxed);
    });
    drop(door);
    drop(child.stdin.take());
    said.read_to_string(&mut line).unwrap();
    let ended = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(line, "read\nall is well\n", "{}: {errors}", ended.status);
}

// shows: CABI-1
#[test]
fn a_program_reads_the_memory_of_this_one() {
    read_by_another(&[]);
}

/// A program that runs beside a store of this process, and says lines.
struct Beside {
    // It ends before the store.
    door: Door,
    store: Store,
    child: Child,
    says: BufReader<ChildStdout>,
    _place: TempDir,
}

impl Beside {
    fn start(source: &str, memory: Size, store: impl FnOnce(&Store)) -> Self {
        let place = tempfile::tempdir().unwrap();
        let (program, at) = (place.path().join("program"), place.path().join("door"));
        compile(&folder().join("tests/c").join(source), &[], &program);
        let shared = Store::builder().memory(memory).shared(true);
        let shared = shared.build().unwrap();
        store(&shared);
        let door = Door::open(&at, Arc::new(shared.clone()), DoorOptions::default()).unwrap();
        let mut child = Command::new(&program);
        child.arg(&at).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        Self {
            door,
            store: shared,
            says: BufReader::new(child.stdout.take().unwrap()),
            child,
            _place: place,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        if line.is_empty() {
            panic!("it ends early: {}", self.child.wait().unwrap());
        }
        line.trim_end().to_owned()
    }

    fn go(&mut self) {
        let mut input = self.child.stdin.as_ref().unwrap();
        input.write_all(b"\n").unwrap();
    }

    /// Waits for its good end.
    fn ends_well(mut self) {
        assert_eq!(self.line(), "all is well");
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Ends the threads of a test that fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts a round of values with those lengths, each of one byte again and again.
fn change(table: &Table, count: u32, length: fn(u32) -> u32) {
    for key in 0..50 {
        let value = vec![count as u8; length(count * 997 + key * 13) as usize];
        while let Err(full) = table.put(format!("key {key}").as_bytes(), &value) {
            assert!(matches!(full, StoreError::Full { .. }), "{full}");
            std::thread::yield_now();
        }
    }
}

/// A child reads on with the mapping of its parent. Where it needs the owner it has a session of
/// its own, and that of its parent goes on.
#[test]
fn a_forked_child_reads_on_and_does_its_parent_no_harm() {
    let towns = |store: &Store| {
        let table = store.create_table("towns").unwrap();
        change(&table, 0, |seed| 1 + seed % 100_000);
    };
    let mut program = Beside::start("forked.c", Size::mib(64), towns);
    let over = AtomicBool::new(false);
    let towns = program.store.table("towns").unwrap();
    std::thread::scope(|threads| {
        let _over = Over(&over);
        threads.spawn(|| {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                count += 1;
                change(&towns, count, |seed| 1 + seed % 100_000);
            }
        });
        let line = program.line();
        let mut pids: Vec<i32> = line.split(' ').map(|pid| pid.parse().unwrap()).collect();
        pids.sort_unstable();
        let readers = |program: &Beside| {
            let stats = program.door.stats();
            let mut pids: Vec<i32> = stats.readers.iter().map(|reader| reader.pid).collect();
            pids.sort_unstable();
            (pids, stats.let_in)
        };
        // The door counts its readers after it has answered.
        while readers(&program).0 != pids {
            std::thread::yield_now();
        }
        let both = readers(&program);
        let later = program.store.create_table("later").unwrap();
        later.put(b"key 1", &[77; 500]).unwrap();
        program.go();
        assert_eq!(program.line(), "both");
        assert_eq!(readers(&program), both, "each keeps its session");
        program.go();
        program.ends_well();
    });
}

#[test]
fn the_example_counts_words() {
    let said = run(&folder().join("examples/words.c"), &[]);
    assert!(said.contains("the 3\n"), "{said}");
}

#[test]
fn the_header_is_cpp_as_well() {
    let options = ["-xc++", "-std=c++17", "-fsyntax-only"];
    let mut compiler = Command::new("cc");
    compiler.args(options).args(["-Wall", "-Wextra", "-Werror"]);
    compiler.arg(folder().join("include/pluvio_store.h"));
    let parsed = compiler.output().unwrap();
    // A C compiler without C++ says that it cannot run the other one.
    let said = String::from_utf8_lossy(&parsed.stderr);
    assert!(
        parsed.status.success() || said.contains("cc1plus"),
        "{said}"
    );
}

/// The steps of the page, in their order, are one program.
#[test]
fn the_tutorial_of_the_page_runs() {
    let page = folder().join("../../docs/embedded-c-and-python.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```c\n").skip(1);
    let code: String = blocks.filter_map(|rest| rest.split("```").next()).collect();
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("tutorial.c");
    std::fs::write(&source, code).unwrap();
    assert_eq!(run(&source, &[]), "134794\n1 object\n");
}

mod needs_sanitizers {
    use super::*;

    #[test]
    fn the_sanitizers_see_no_error() {
        let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let said = run(&folder().join("tests/c/all.c"), &options);
        assert_eq!(said, "all is well\n");
        read_by_another(&options);
    }
}

/// A right over other processes: the program single-steps a reader.
mod needs_process_memory {
    use super::*;

    /// A reader stands still at some instruction while all memory is used again, or is killed
    /// there. It reads a whole value, no older than before. The writer goes on.
    // shows: MAP-2
    #[test]
    fn a_reader_is_stopped_and_killed_at_each_part_of_a_get() {
        const MEMORY: u64 = 32 << 20;
        let length: fn(u32) -> u32 = |seed| 20_000 + seed % 100;
        let towns = |store: &Store| change(&store.create_table("towns").unwrap(), 0, length);
        let mut program = Beside::start("stepped.c", Size::mib(MEMORY >> 20), towns);
        let towns = program.store.table("towns").unwrap();
        let cleaned = |program: &Beside| program.store.stats().cleaner.bytes_cleaned;
        let (mut count, mut ends) = (0, Vec::new());
        while ends.len() <= 30 {
            assert!(program.line().starts_with("at "));
            let wanted = cleaned(&program) + MEMORY;
            let before = count;
            while cleaned(&program) < wanted {
                count += 1;
                change(&towns, count, length);
            }
            assert!(count - before < 128, "its byte would come again");
            program.go();
            ends.push(program.line());
        }
        // Before the slot is read the new value is found, and after the check the old one stays.
        assert_eq!((&*ends[0], &*ends[30]), ("new", "old"), "{ends:?}");
        println!("{}", ends.join(" "));
        program.ends_well();
    }
}
