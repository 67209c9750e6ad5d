//! Programs in C, compiled and linked as a user does.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put the library: beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles a program with these options, runs it with an empty folder, and gives its output.
fn run(source: &Path, options: &[&str]) -> String {
    let place = tempfile::tempdir().unwrap();
    let (program, data) = (place.path().join("program"), place.path().join("data"));
    let library = library();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
        .args(options)
        .arg("-I")
        .arg(folder().join("include"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lpluvio_store_c");
    let compiled = compiler.output().unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{compiler:?}\n{said}");
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
    }
}
