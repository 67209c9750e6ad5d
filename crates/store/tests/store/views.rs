//! Values that are kept readable for longer than a call, and writes with conditions and a lifetime.

use pluvio_store::{
    Lifetime, PutOptions, RejectRules, Size, Store, StoreError, Table, UpdatePolicy, View,
};

fn store() -> (Store, Table) {
    let store = Store::builder().memory(Size::mib(64)).heads(1).build();
    let store = store.unwrap();
    let table = store.create_table("t").unwrap();
    (store, table)
}

fn bytes(view: &View) -> (*const u8, Vec<u8>) {
    view.with(|value| (value.as_ptr(), value.to_vec()))
}

// shows: EMBED-6
#[test]
fn a_view_stays_where_it_is_while_all_else_is_overwritten_until_memory_is_full() {
    let (store, table) = store();
    let text = vec![7; 10_000];
    let version = table.put(b"kept", &text).unwrap();
    let view = table.view(b"kept").unwrap();
    let (at, value) = bytes(&view);
    assert_eq!((&value, view.version()), (&text, version));
    table.delete(b"kept").unwrap();
    let full =
        (0..100_000_u32).find_map(|n| table.put(b"other", &n.to_le_bytes().repeat(2500)).err());
    assert!(matches!(full, Some(StoreError::Full { .. })), "{full:?}");
    assert_eq!(bytes(&view), (at, text));
    // Dropped by another thread, memory comes back.
    std::thread::scope(|scope| scope.spawn(move || drop(view)).join()).unwrap();
    while table.put(b"other", b"1").is_err() {
        store.clean_step();
    }
}

// shows: EMBED-2
#[test]
fn a_view_keeps_the_store_alive() {
    let (store, table) = store();
    table.put(b"key", b"value").unwrap();
    let view = table.view(b"key").unwrap();
    drop((store, table));
    assert_eq!(view.with(<[u8]>::to_vec), b"value");
}

#[test]
fn values_that_are_cut_in_two_or_may_be_overwritten_are_copied() {
    let (_store, table) = store();
    let large: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
    table.put(b"large", &large).unwrap();
    let view = table.view(b"large").unwrap();
    table.delete(b"large").unwrap();
    assert_eq!(view.with(<[u8]>::to_vec), large);

    let store = Store::builder()
        .memory(Size::mib(64))
        .update(UpdatePolicy::InPlace);
    let table = store.build().unwrap().create_table("t").unwrap();
    table.put(b"key", b"one").unwrap();
    let view = table.view(b"key").unwrap();
    table.put(b"key", b"two").unwrap();
    assert_eq!(view.with(<[u8]>::to_vec), b"one");
    assert!(table.view(b"none").is_none());
}

// shows: EMBED-5
#[test]
fn conditions_and_lifetimes_go_together() {
    let (_store, table) = store();
    let once = PutOptions {
        rules: RejectRules::EXISTS,
        lifetime: Lifetime::For(3_600_000),
    };
    let first = table.put_with(b"key", b"one", once).unwrap();
    assert!(table.deadline(b"key").flatten().is_some());
    let found = Some(first);
    assert_eq!(
        table.put_with(b"key", b"two", once),
        Err(StoreError::Condition { found })
    );
    let second = table.put_with(b"key", b"two", RejectRules::unless_version(first).into());
    assert!(second.unwrap() > first);
    assert_eq!(table.deadline(b"key"), Some(None), "a put ends a lifetime");
    table
        .put_with(b"key", b"three", Lifetime::For(0).into())
        .unwrap();
    assert!(table.view(b"key").is_none(), "it is over at once");

    let absent = Err(StoreError::Condition { found: None });
    assert_eq!(table.delete_if(b"key", RejectRules::ABSENT), absent);
    let version = table.put(b"key", b"four").unwrap();
    let other = table.delete_if(b"key", RejectRules::unless_version(first));
    assert_eq!(
        other,
        Err(StoreError::Condition {
            found: Some(version)
        })
    );
    assert_eq!(
        table.delete_if(b"key", RejectRules::unless_version(version)),
        Ok(true)
    );
    assert_eq!(table.delete_if(b"key", RejectRules::NONE), Ok(false));
}
