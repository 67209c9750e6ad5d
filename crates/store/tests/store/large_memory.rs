//! Stores with much memory, of which only address space is taken here: some megabytes of tables
//! beside what is written.

use crate::ops;
use pluvio_log::LogOptions;
use pluvio_store::{Engine, EngineOptions, Size, Store};
use pluvio_units::{HashRange, LogId, TableId};

#[test]
fn a_store_of_a_hundred_gibibytes_holds_tables() {
    let store = Store::builder()
        .memory(Size::mib(100 << 10))
        .heads(1)
        .cleaner_threads(0)
        .bind_memory(false)
        .huge_pages(false)
        .build()
        .unwrap();
    for name in ["first", "second"] {
        let table = store.create_table(name).unwrap();
        table.put(b"key", name.as_bytes()).unwrap();
        assert_eq!(table.get(b"key").unwrap(), name.as_bytes());
    }
    assert!(store.stats().index_bytes < 1 << 20);
}

/// As a server that recovers many tablets.
#[test]
fn sixty_four_gibibytes_have_address_space_for_a_thousand_tablets() {
    let log = LogOptions::new(Size::mib(64 << 10));
    let store = Engine::open(EngineOptions { log }).unwrap();
    let tablets = HashRange::ALL.split(1000);
    assert_eq!(tablets.len(), 1000);
    for range in &tablets {
        store.table(TableId(1), 7, *range).unwrap();
    }
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    for key in 0..1000_u64 {
        let key = key.to_le_bytes();
        let _ = ops::put(&store, &table, LogId(0), &key, b"value").unwrap();
        assert!(ops::read(&store, &table, &key).is_some());
    }
}
