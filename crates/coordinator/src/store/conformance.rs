//! The promises of a [`MetadataStore`], as a test that runs against any of them: here against the
//! stores of this crate, in `crates/cli/tests` against real servers of etcd and ZooKeeper.
//!
//! Give it a store that holds nothing. It panics at the first promise that is not kept.

use super::{Change, Condition, MetadataStore, Outcome};
use bytes::Bytes;
use futures_util::future::join_all;

/// Contenders of [`check`] for one key.
const CONTENDERS: usize = 20;

fn put(key: &str, value: impl Into<Bytes>) -> Change {
    let (key, value) = (key.to_owned(), value.into());
    Change::Put { key, value }
}

fn delete(key: &str) -> Change {
    Change::Delete { key: key.into() }
}

fn is(key: &str, value: &'static str) -> Condition {
    Condition {
        key: key.into(),
        value: Some(Bytes::from_static(value.as_bytes())),
    }
}

fn absent(key: &str) -> Condition {
    Condition {
        key: key.into(),
        value: None,
    }
}

async fn value(store: &dyn MetadataStore, key: &str) -> Option<Bytes> {
    store.get(key).await.expect("a healthy store can be read")
}

async fn keys(store: &dyn MetadataStore, prefix: &str) -> Vec<String> {
    let found = store.list_prefix(prefix).await;
    let found = found.expect("a healthy store can be listed");
    found.into_iter().map(|(key, _)| key).collect()
}

async fn apply(store: &dyn MetadataStore, condition: Condition, batch: Vec<Change>) -> Outcome {
    let applied = store.apply_if(condition, batch).await;
    applied.expect("a healthy store takes batches")
}

/// Checks all promises on an empty store. Leaves behind what [`check_kept`] looks for.
///
/// # Panics
/// A promise is not kept.
pub async fn check(store: &dyn MetadataStore) {
    behaves_as_a_map(store).await;
    applies_only_if_the_condition_holds(store).await;
    lets_one_of_many_win(store).await;
    takes_batches_up_to_its_limits(store).await;
}

/// Checks that a store, opened again, has what [`check`] left behind.
///
/// # Panics
/// It has not.
pub async fn check_kept(store: &dyn MetadataStore) {
    assert_eq!(value(store, "t/2").await.as_deref(), Some(&b"newer"[..]));
    assert_eq!(keys(store, "").await, ["contended", "t/2"]);
}

async fn behaves_as_a_map(store: &dyn MetadataStore) {
    assert_eq!(value(store, "a").await, None);
    assert_eq!(keys(store, "").await, [""; 0]);
    let batch = vec![put("t/2", "two"), put("t/1", "one"), put("u", "other")];
    assert_eq!(apply(store, absent("x"), batch).await, Outcome::Applied);
    assert_eq!(keys(store, "t/").await, ["t/1", "t/2"]);
    assert_eq!(keys(store, "t").await, ["t/1", "t/2"]);
    assert_eq!(keys(store, "").await, ["t/1", "t/2", "u"]);
    assert_eq!(value(store, "t/2").await.as_deref(), Some(&b"two"[..]));
    assert_eq!(value(store, "t/").await, None);
    assert_eq!(value(store, "t").await, None);
    // A key may come more than once in a batch, and what is deleted need not be there.
    let batch = vec![
        delete("t/1"),
        put("t/2", "new"),
        delete("t/1"),
        put("t/2", "newer"),
        delete("nothing"),
        put("v", ""),
    ];
    assert_eq!(
        apply(store, is("u", "other"), batch).await,
        Outcome::Applied
    );
    assert_eq!(value(store, "t/1").await, None);
    assert_eq!(value(store, "t/2").await.as_deref(), Some(&b"newer"[..]));
    assert_eq!(value(store, "v").await.as_deref(), Some(&b""[..]));
    // Any bytes are a value.
    let bytes: Vec<u8> = (0..=255).collect();
    let batch = vec![put("v", bytes.clone())];
    assert_eq!(apply(store, is("v", ""), batch).await, Outcome::Applied);
    assert_eq!(value(store, "v").await.as_deref(), Some(&bytes[..]));
    let batch = vec![delete("u"), delete("v")];
    assert_eq!(
        apply(store, is("u", "other"), batch).await,
        Outcome::Applied
    );
    assert_eq!(keys(store, "").await, ["t/2"]);
}

async fn applies_only_if_the_condition_holds(store: &dyn MetadataStore) {
    let batch = || vec![put("c/1", "x"), delete("t/2"), put("t/3", "x")];
    for condition in [absent("t/2"), is("t/2", "new"), is("t/2", ""), is("c", "x")] {
        let outcome = apply(store, condition.clone(), batch()).await;
        assert_eq!(outcome, Outcome::Refused, "{condition:?}");
        assert_eq!(keys(store, "").await, ["t/2"]);
    }
    // The condition's key may be one of those that are changed, and it may be created by that.
    let created = vec![put("c/1", "1"), put("c/2", "1")];
    assert_eq!(
        apply(store, absent("c/1"), created.clone()).await,
        Outcome::Applied
    );
    assert_eq!(apply(store, absent("c/1"), created).await, Outcome::Refused);
    let changed = vec![put("c/1", "2"), delete("c/2")];
    assert_eq!(
        apply(store, is("c/1", "1"), changed.clone()).await,
        Outcome::Applied
    );
    assert_eq!(
        apply(store, is("c/1", "1"), changed).await,
        Outcome::Refused
    );
    assert_eq!(
        apply(store, is("c/1", "2"), Vec::new()).await,
        Outcome::Applied
    );
    assert_eq!(
        apply(store, is("c/1", "1"), Vec::new()).await,
        Outcome::Refused
    );
    // Back at a former value: it is the value that counts.
    let back = vec![put("c/1", "1")];
    assert_eq!(apply(store, is("c/1", "2"), back).await, Outcome::Applied);
    let removed = vec![delete("c/1")];
    assert_eq!(
        apply(store, is("c/1", "1"), removed).await,
        Outcome::Applied
    );
    assert_eq!(keys(store, "").await, ["t/2"]);
}

/// Each step of the contended key is won by one of those that try it at the same time.
async fn lets_one_of_many_win(store: &dyn MetadataStore) {
    let key = "contended";
    let mut before = None;
    for round in 0..3 {
        let tries = (0..CONTENDERS).map(|who| {
            let name = format!("{round}-{who}");
            let value = before.clone();
            let condition = Condition {
                key: key.into(),
                value,
            };
            async move {
                let batch = vec![put(key, name.clone()), put("won", name.clone())];
                (apply(store, condition, batch).await, name)
            }
        });
        let won: Vec<String> = join_all(tries)
            .await
            .into_iter()
            .filter(|(outcome, _)| *outcome == Outcome::Applied)
            .map(|(_, name)| name)
            .collect();
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        before = value(store, key).await;
        assert_eq!(before.as_deref(), Some(won[0].as_bytes()));
        assert_eq!(value(store, "won").await, before);
    }
    let condition = Condition {
        key: key.into(),
        value: before,
    };
    assert_eq!(
        apply(store, condition, vec![delete("won")]).await,
        Outcome::Applied
    );
}

async fn takes_batches_up_to_its_limits(store: &dyn MetadataStore) {
    let limits = store.limits();
    let changes = limits.changes.min(500);
    let names: Vec<String> = (0..changes).map(|n| format!("many/{n:04}")).collect();
    let all = names.iter().map(|name| put(name, name.clone())).collect();
    assert_eq!(
        apply(store, is("t/2", "newer"), all).await,
        Outcome::Applied
    );
    assert_eq!(keys(store, "many/").await, names);
    let none = names.iter().map(|name| delete(name)).collect();
    assert_eq!(
        apply(store, is("t/2", "newer"), none).await,
        Outcome::Applied
    );
    let bytes = limits.bytes.min(1 << 20);
    let parts = 4.min(changes);
    let names: Vec<String> = (0..parts).map(|n| format!("large/{n}")).collect();
    let size = bytes / parts - names[0].len();
    let large = names.iter().map(|name| put(name, vec![7; size])).collect();
    assert_eq!(
        apply(store, is("t/2", "newer"), large).await,
        Outcome::Applied
    );
    assert_eq!(value(store, "large/0").await.map(|v| v.len()), Some(size));
    let none = names.iter().map(|name| delete(name)).collect();
    assert_eq!(
        apply(store, is("t/2", "newer"), none).await,
        Outcome::Applied
    );
}
