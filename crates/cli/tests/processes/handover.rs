//! Commands that another binary does, where that is not installed.

use crate::support::program::{binary, command_through, run};
use std::fs;

#[test]
fn without_the_laboratory_its_commands_say_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("pluvio");
    // A link would lead back to where the other one is.
    fs::hard_link(binary(), &alone)
        .or_else(|_| fs::copy(binary(), &alone).map(drop))
        .unwrap();
    for line in [
        &["sim", "--seed", "1"][..],
        &["bench", "store", "--help"],
        &["simulate", "cleaner"],
        &["torture"],
    ] {
        run(command_through(&alone).args(line), b"").fails(
            1,
            &[
                "error: this needs the program pluvio-lab",
                "cargo build --release -p pluvio-lab",
                alone.with_file_name("pluvio-lab").to_str().unwrap(),
            ],
        );
    }
    // A page of help is there without the other program.
    let page = run(command_through(&alone).args(["bench", "--help"]), b"");
    assert!(page.ok().text().contains("(by pluvio-lab"));
}
