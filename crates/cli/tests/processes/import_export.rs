//! Files in and out: formats, bad records, round trips.

use crate::support::cluster::{Cluster, files_below};
use crate::support::{Output, Setup};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn import(cluster: &Cluster, table: &str, format: &str, text: &[u8], flags: &[&str]) -> Output {
    let mut arguments = vec!["import", table, "-", "--format", format, "--json"];
    arguments.extend(flags);
    cluster.run_with(arguments, text)
}

/// All objects of a table.
pub fn objects(cluster: &Cluster, table: &str) -> BTreeMap<String, Value> {
    let text = cluster.run(["scan", table, "--json"]).ok().text();
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap();
        let name = |part: &str| object.get(part).cloned();
        let key = name("key").or(name("key_base64")).unwrap();
        let value = name("value").or(name("value_base64")).unwrap();
        (key.as_str().unwrap().to_owned(), value)
    };
    text.lines().map(object).collect()
}

/// A value that is JSON text.
fn inside(value: &Value) -> Value {
    serde_json::from_str(value.as_str().unwrap()).unwrap()
}

#[test]
fn files_go_in_and_come_out() {
    let cluster = Setup::servers(2).start();
    csv(&cluster);
    json_lines(&cluster);
    lines(&cluster);
    bad_records(&cluster);
    round_trip(&cluster);
    exports_leave_devices_and_links_where_they_are(&cluster);
}

fn csv(cluster: &Cluster) {
    let text = b"\xef\xbb\xbfcity,country,\"note, quoted\"\r\nBern,CH,\"two\nlines\"\r\nGen\xc3\xa8ve,CH,\"a \"\"word\"\"\"\r\nBern,DE,\r\n";
    let summary = import(cluster, "csv", "csv", text, &["--key", "city"]).json();
    assert_eq!(
        (&summary["records"], &summary["duplicates"]),
        (&json!(3), &json!(1))
    );
    let found = objects(cluster, "csv");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["Bern", "Genève"]);
    let geneva = inside(&found["Genève"]);
    assert_eq!(geneva["note, quoted"], "a \"word\"");
    assert_eq!(inside(&found["Bern"])["country"], "DE", "the last one wins");
    // Without a key field: the number of the record.
    import(cluster, "numbered", "csv", b"a,b\n1,2\n3,4\n", &[]).ok();
    let found = objects(cluster, "numbered");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["1", "2"]);
    let refused = import(cluster, "mistaken", "csv", text, &["--key", "nothing"]);
    refused.fails(1, &["error: ", "nothing"]);
    let tables = cluster.run(["table", "list"]).ok().text();
    assert!(!tables.contains("mistaken"), "{tables}");
    // No records at all.
    let summary = import(cluster, "empty", "csv", b"a,b\n", &[]).json();
    assert_eq!(summary["records"], 0);
}

fn json_lines(cluster: &Cluster) {
    let text = "{\"id\":7,\"name\":\"Zoë\"}\n\n{\"id\":\"x\", \"deep\":{\"a\":[1,2]}}";
    let summary = import(cluster, "jsonl", "jsonl", text.as_bytes(), &["--key", "id"]).json();
    assert_eq!(
        (&summary["records"], &summary["bad"]),
        (&json!(2), &json!(0))
    );
    let found = objects(cluster, "jsonl");
    assert_eq!(inside(&found["7"])["name"], "Zoë");
    assert_eq!(inside(&found["x"])["deep"]["a"][1], 2);
}

fn lines(cluster: &Cluster) {
    let summary = import(cluster, "lines", "lines", b"one\ntwo\r\none\n\xff\n", &[]).json();
    assert_eq!(
        (&summary["records"], &summary["duplicates"]),
        (&json!(4), &json!(1))
    );
    let found = objects(cluster, "lines");
    assert_eq!(found["one"], "3");
    assert_eq!(found["two"], "2");
    assert_eq!(found["/w=="], "4", "bytes that are no text");
}

fn bad_records(cluster: &Cluster) {
    let text = b"{\"id\":1}\n{\"id\":\n[1]\n{\"no\":1}\n{\"id\":2}\n";
    let refused = import(cluster, "bad", "jsonl", text, &["--key", "id"]);
    refused.fails(1, &["error: ", "line 2", "--skip-bad"]);
    let output = import(
        cluster,
        "bad",
        "jsonl",
        text,
        &["--key", "id", "--skip-bad"],
    )
    .ok();
    for line in ["line 2", "line 3", "line 4"] {
        assert!(output.stderr.contains(line), "{output:?}");
    }
    let summary = output.json();
    assert_eq!(
        (&summary["records"], &summary["bad"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(objects(cluster, "bad").len(), 2);
    // Too few fields; a quote that never ends; over the limits of a key and of a value.
    import(cluster, "bad", "csv", b"a,b\n1,2\n3\n", &[]).fails(1, &["error: ", "line 3"]);
    let open = [b"a,b\n\"".to_vec(), vec![b'x'; 9 << 20]].concat();
    import(cluster, "bad", "csv", &open, &[]).fails(1, &["error: ", "quote"]);
    let long = [b"ok\n".to_vec(), vec![b'k'; (64 << 10) + 1]].concat();
    import(cluster, "bad", "lines", &long, &[]).fails(1, &["error: ", "line 2", "65536"]);
    let huge = format!("{{\"id\":1,\"v\":\"{}\"}}\n", "x".repeat(1 << 20));
    let refused = import(cluster, "bad", "jsonl", huge.as_bytes(), &["--key", "id"]);
    refused.fails(1, &["error: ", "line 1", "1048576"]);
    // Binary garbage is refused, not swallowed.
    let noise: Vec<u8> = (0..100_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    import(cluster, "bad", "jsonl", &noise, &[]).fails(1, &["error: ", "line 1"]);
    let directory = cluster.directory().display().to_string();
    let refused = cluster.run(["import", "t", &directory, "--format", "csv"]);
    refused.fails(1, &["error: ", "is a directory"]);
}

fn round_trip(cluster: &Cluster) {
    cluster.run(["table", "create", "from"]).ok();
    let binary: Vec<u8> = (0..=255).collect();
    cluster
        .run_with(["put", "from", "00ff", "-", "--key-hex"], &binary)
        .ok();
    cluster.run(["put", "from", "", ""]).ok();
    cluster
        .run(["put", "from", "a\tb\n\"", "ünï \u{1F600}"])
        .ok();
    cluster
        .run_with(["put", "from", "large", "-"], &vec![7; 1 << 20])
        .ok();
    let many: String = (0..5000).map(|n| format!("word{n}\n")).collect();
    import(
        cluster,
        "from",
        "lines",
        many.as_bytes(),
        &["--threads", "3"],
    )
    .ok();

    let file = cluster.directory().join("out.jsonl");
    let file = file.to_str().unwrap();
    let summary = cluster.run(["export", "from", file, "--json"]).json();
    assert_eq!(summary["objects"], 5004);
    let summary = cluster
        .run(["import", "to", file, "--format", "export", "--json"])
        .json();
    assert_eq!(
        (&summary["records"], &summary["duplicates"]),
        (&json!(5004), &json!(0))
    );
    assert_eq!(objects(cluster, "from"), objects(cluster, "to"));
    let shown = cluster.run(["export", "to", "-"]).ok().text();
    let mut shown: Vec<&str> = shown.lines().collect();
    let written = fs::read_to_string(file).unwrap();
    let mut written: Vec<&str> = written.lines().collect();
    shown.sort_unstable();
    written.sort_unstable();
    assert!(shown == written, "a file and standard output differ");
    // A target that cannot be written is told before anything else happens.
    let refused = cluster.run(["export", "from", "/nowhere/out"]);
    refused.fails(1, &["error: ", "/nowhere/out"]);
    cluster
        .run(["export", "missing", file])
        .fails(1, &["error: ", "missing"]);
    assert!(
        !fs::read(file).unwrap().is_empty(),
        "an export that fails leaves the old file"
    );
}

/// A device or a pipe is written to: a file that took its place would be gone for everybody. Links
/// stand for them here, so that a mistake replaces the link.
fn exports_leave_devices_and_links_where_they_are(cluster: &Cluster) {
    let at = |name: &str| cluster.directory().join(name);
    let is_link = |path: &Path| path.symlink_metadata().unwrap().is_symlink();
    let (null, full) = (at("null"), at("full"));
    symlink("/dev/null", &null).unwrap();
    symlink("/dev/full", &full).unwrap();
    let export = |to: &Path| cluster.run(["export", "from", to.to_str().unwrap()]);
    export(&null).ok();
    export(&full).fails(1, &["error: ", "No space left"]);
    assert!(is_link(&null) && is_link(&full));
    // A link to a file goes on to point at it.
    let (link, file) = (at("link"), at("linked"));
    fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    export(&link).ok();
    assert!(is_link(&link) && fs::metadata(&file).unwrap().len() > 3);
    export(cluster.directory()).fails(1, &["error: ", "is a directory"]);
    let left = files_below(cluster.directory());
    let partial = |path: &PathBuf| path.to_string_lossy().ends_with(".partial");
    assert!(!left.iter().any(partial), "{left:?}");
}
