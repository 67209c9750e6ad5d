//! Programs in C, compiled and linked as a user does.

#![allow(clippy::unwrap_used)]

use pluvio_door::{Door, DoorOptions};
use pluvio_store::{Size, Store, StoreError};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
