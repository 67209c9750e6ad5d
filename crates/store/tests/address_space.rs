//! A process that may not have more address space. Alone in its file: the limit is the process's.

#![allow(clippy::unwrap_used)]

use pluvio_store::{BuildError, Size, Store, StoreError};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Address space of this process now.
fn taken() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.unwrap().split_whitespace().next().unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn a_store_or_a_table_without_address_space_is_refused_and_named() {
    let limit = taken() + (300 << 20);
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    setrlimit(Resource::As, limit).unwrap();
    let builder = |memory| Store::builder().memory(memory).cleaner_threads(0);
    let refused = builder(Size::mib(512)).build().unwrap_err();
    assert!(matches!(refused, BuildError::Unreservable(_)), "{refused}");
    let text = refused.to_string();
    assert!(text.starts_with("option memory: cannot reserve "), "{text}");
    assert!(text.contains("ulimit -v"), "{text}");
    // There is room for this log, and for the index of a table or some.
    let store = builder(Size::mib(64)).build().unwrap();
    let first = store.create_table("0").unwrap();
    first.put(b"k", b"v").unwrap();
    let refused = (1..20)
        .find_map(|number| store.create_table(&number.to_string()).err())
        .unwrap();
    assert!(matches!(refused, StoreError::NoTable(_)), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("cannot reserve "), "{text}");
    assert_eq!(first.get(b"k").unwrap(), b"v");
}
