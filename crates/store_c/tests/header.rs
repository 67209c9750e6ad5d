//! The header is the one that cbindgen makes of the source.

#![allow(clippy::unwrap_used)]

use std::path::Path;

/// In the order of the header.
const SOURCES: [&str; 7] = [
    "code",
    "arguments",
    "open",
    "data",
    "batches",
    "walk",
    "mapped",
];

#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder.join(format!("src/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let header = String::from_utf8(header).unwrap();
    let path = folder.join("include/pluvio_store.h");
    if std::env::var("PLUVIO_WRITE").is_ok() {
        std::fs::write(&path, &header).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap();
    assert!(
        there == header,
        "{} is not up to date: PLUVIO_WRITE=1 cargo test -p pluvio-store-c --test header",
        path.display()
    );
}
