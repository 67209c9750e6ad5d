//! `pluvio space`: each word of it, on a registry of the test's own.

use crate::support::program::{Output, pluvio};
use serde_json::Value;
use tempfile::TempDir;

/// Runs `pluvio space` with these words.
fn space(registry: &TempDir, words: &str) -> Output {
    let registry = registry.path().to_str().unwrap();
    pluvio(
        ["space", "--spaces", registry]
            .into_iter()
            .chain(words.split(' ')),
    )
}

fn json(registry: &TempDir, words: &str) -> Value {
    space(registry, &format!("{words} --json")).json()
}

/// The names in a list.
fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap().iter();
    list.map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn spaces_are_made_looked_at_changed_and_destroyed() {
    let registry = tempfile::tempdir().unwrap();
    let empty = space(&registry, "list").ok().text();
    assert!(empty.contains("no spaces and no spans"), "{empty}");
    let missing = "create atlas towns roads=read";
    space(&registry, missing).fails(1, &["no span `towns`"]);

    let made = json(&registry, &format!("{missing} --size 1MiB --mode 640"));
    assert_eq!(
        (&made["name"], &made["generation"]),
        (&"atlas".into(), &1.into())
    );
    assert_eq!(names(&made["spans"]), ["towns", "roads"]);
    assert_eq!(made["spans"][0]["access"], "write");
    assert_eq!(made["spans"][1]["access"], "read");
    assert_eq!(made["spans"][1]["mode"], "640");
    space(&registry, missing).fails(1, &["the space `atlas` exists"]);
    assert_eq!(json(&registry, "show atlas"), made);
    let shown = space(&registry, "show atlas").ok().text();
    assert!(shown.contains("space atlas has 2 spans"), "{shown}");
    assert_eq!(json(&registry, "show --span towns")["bytes"], 1 << 20);

    let attached = json(&registry, "attach atlas");
    assert_eq!(names(&attached["spans"]).len(), 2);
    assert_eq!(attached["spans"][0]["heap"]["blocks"], 0);
    let sound = space(&registry, "attach atlas").ok().text();
    assert!(sound.contains("its heaps are sound"), "{sound}");

    assert_eq!(json(&registry, "grow towns 2MiB")["bytes"], 2 << 20);
    space(&registry, "grow towns 1MiB").fails(2, &["spans do not shrink"]);

    let copy = json(&registry, "clone --span towns villages");
    assert_eq!(copy["bytes"], 2 << 20);
    assert_ne!(copy["id"], json(&registry, "show --span towns")["id"]);
    assert_eq!(
        names(&json(&registry, "clone atlas plan")["spans"]),
        ["towns", "roads"]
    );
    space(&registry, "add plan villages").fails(1, &["overlap"]);
    assert_eq!(
        names(&json(&registry, "remove plan towns")["spans"]),
        ["roads"]
    );
    let added = json(&registry, "add plan villages=read");
    assert_eq!(names(&added["spans"]), ["roads", "villages"]);
    assert_eq!(added["generation"], 3);
    space(&registry, "attach plan").ok();

    let all = json(&registry, "list");
    assert_eq!(names(&all["spaces"]), ["atlas", "plan"]);
    assert_eq!(names(&all["spans"]), ["roads", "towns", "villages"]);

    space(&registry, "destroy --span towns").fails(1, &["is listed by the space `atlas`"]);
    for word in [
        "atlas",
        "plan",
        "--span towns",
        "--span roads",
        "--span villages",
    ] {
        space(&registry, &format!("destroy {word}")).ok();
    }
    space(&registry, "show atlas").fails(1, &["no space `atlas`"]);
    let all = json(&registry, "list");
    assert_eq!(
        (names(&all["spaces"]).len(), names(&all["spans"]).len()),
        (0, 0)
    );
}
