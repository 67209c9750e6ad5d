//! `pluvio backup` and `pluvio restore`: archives of clusters that are used and lose servers.

use crate::support::cluster::Cluster;
use crate::support::resp::Resp;
use crate::support::{Reply, Setup};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::import_export::objects;

/// Objects that nobody changes.
const STILL: usize = 3000;
/// Writes of one key, each of which gives it a higher version.
const WRITES: u64 = 9;

fn fill(cluster: &Cluster) {
    let lines: String = (0..STILL).map(|n| format!("word {n}\n")).collect();
    let import = ["import", "words", "-", "--format", "lines"];
    cluster.run_with(import, lines.as_bytes()).ok();
    let mut redis = cluster.connect(0);
    for _ in 0..WRITES {
        redis.call(&["SET", "for ever", "a"]);
    }
    redis.call(&["SET", "for a day", "b", "EX", "86400"]);
    redis.call(&["SET", "for a moment", "c", "PX", "1"]);
    redis.call(&["ACL", "SETUSER", "bob", "on", ">secret", "~*", "+get"]);
}

/// Lines in an order that does not depend on the seed of a table.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn version(cluster: &Cluster, table: &str, key: &str) -> u64 {
    let object = cluster.run(["get", table, key, "--json"]).json();
    object["version"].as_u64().unwrap()
}

/// Counts a key up until it is stopped, and gives how far it came.
fn count_up(address: String, stop: &AtomicBool) -> u64 {
    let mut counted = 0;
    while !stop.load(Ordering::Relaxed) {
        // A killed server's clients go elsewhere; this one has another server.
        let mut redis = Resp::connect(&address);
        while !stop.load(Ordering::Relaxed) && redis.try_call(&["INCR", "count"]).is_ok() {
            counted += 1;
        }
    }
    counted
}

fn backup(cluster: &Cluster, place: &Path, flags: &[&str]) -> Value {
    let mut arguments = vec!["backup", place.to_str().unwrap(), "--json"];
    arguments.extend(flags);
    cluster.run(arguments).json()
}

fn table<'v>(archive: &'v Value, name: &str) -> &'v Value {
    let mut tables = archive["tables"].as_array().unwrap().iter();
    tables.find(|table| table["name"] == name).unwrap()
}

#[test]
fn a_cluster_comes_back_in_another_size() {
    let cluster = Setup::servers(3).start();
    fill(&cluster);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("archives of it");
    let name = place.to_str().unwrap();
    let stop = AtomicBool::new(false);
    let (before, after) = thread::scope(|scope| {
        let address = cluster.redis(0);
        let counting = scope.spawn(|| count_up(address, &stop));
        let mut redis = cluster.connect(0);
        let before = backup(&cluster, &place, &[]);
        let known = backup(&cluster, &place, &[]);
        assert_eq!(table(&before, "words"), table(&known, "words"));
        assert!(
            known["known_bytes"].as_u64() > known["new_bytes"].as_u64(),
            "the packs that did not change are there: {known}"
        );
        cluster.kill(2);
        let after = backup(&cluster, &place, &["--rate", "4MiB"]);
        stop.store(true, Ordering::Relaxed);
        assert!(counting.join().unwrap() > 0);
        redis.call(&["SET", "for ever", "changed"]);
        (before, after)
    });
    assert_eq!(table(&before, "words")["objects"], STILL);
    // Packs end where tablets do: those of the dead server are cut or joined elsewhere.
    for part in ["objects", "bytes", "newest_version"] {
        let (before, after) = (table(&before, "words"), table(&after, "words"));
        assert_eq!(before[part], after[part], "{part}");
    }
    let listed = cluster.run(["backup", "list", name, "--json"]).json();
    assert_eq!(listed["archives"].as_array().unwrap().len(), 3);
    let words = cluster.run(["scan", "words", "--json"]).ok().text();
    let archived = version(&cluster, "redis:0", "for ever") - 1;
    assert!(archived >= WRITES);
    drop(cluster);

    let smaller = Setup::servers(2).start();
    let restored = smaller.run(["restore", name, "--json"]).json();
    assert_eq!(restored["archive"], after["archive"], "the newest one");
    let restored_words = smaller.run(["scan", "words", "--json"]).ok().text();
    assert_eq!(sorted(&restored_words), sorted(&words), "with versions");
    assert_eq!(version(&smaller, "redis:0", "for ever"), archived);
    assert_eq!(restored["higher_versions"], 0);
    // A new object gets a version above all of them, on every server.
    let newest = table(&after, "redis:0")["newest_version"].as_u64().unwrap();
    for n in 0..8 {
        let key = format!("new {n}");
        smaller.run(["put", "redis:0", &key, "x"]).ok();
        assert!(version(&smaller, "redis:0", &key) > newest);
    }
    let strings: BTreeMap<String, Value> = objects(&smaller, "redis:0");
    assert_eq!(strings["for ever"], "a");
    assert!(!strings.contains_key("for a moment"));
    let mut redis = smaller.connect(1);
    let left = redis.call(&["TTL", "for a day"]);
    assert!(format!("{left:?}").contains("86"), "{left:?}");
    let bob = redis.call(&["ACL", "GETUSER", "bob"]);
    assert!(matches!(bob, Reply::Array(_)), "{bob:?}");
    again(&smaller, &place);
    pruned(&smaller, &place);
    foreign(&smaller, &place);
    refused(&smaller, &place);
    damaged(&smaller, &place);
}

fn again(cluster: &Cluster, place: &Path) {
    let name = place.to_str().unwrap();
    let refused = cluster.run(["restore", name, "--table", "words"]);
    refused.fails(1, &["words", "nothing was written", "--overwrite"]);
    let restored = cluster.run(["restore", name, "--table", "words", "--overwrite", "--json"]);
    assert_eq!(restored.json()["objects"], STILL);
    let missing = cluster.run(["restore", name, "--table", "none"]);
    missing.fails(1, &["no table \"none\"", "words"]);
    let missing = cluster.run(["restore", name, "--archive", "none"]);
    missing.fails(1, &["no archive \"none\"", "backup list"]);
}

fn pruned(cluster: &Cluster, place: &Path) {
    let name = place.to_str().unwrap();
    let prune = ["backup", "prune", name, "--keep", "1", "--json"];
    let removed = cluster.run(prune).json();
    assert_eq!(
        removed["archives"].as_array().unwrap().len(),
        2,
        "{removed}"
    );
    assert_eq!(removed["files"], 0, "packs are young: {removed}");
    let listed = cluster.run(["backup", "list", name, "--json"]).json();
    assert_eq!(listed["archives"].as_array().unwrap().len(), 1);
    let no_archives = tempfile::tempdir().unwrap();
    let prune = ["backup", "prune", no_archives.path().to_str().unwrap()];
    cluster.run(prune).fails(2, &["--keep"]);
    let refused = cluster.run([prune.as_slice(), &["--keep", "1"]].concat());
    refused.fails(1, &["no archive"]);
    let refused = cluster.run([prune.as_slice(), &["--keep", "0"]].concat());
    refused.fails(2, &["give 1 or more"]);
    let empty = no_archives.path().to_str().unwrap();
    let makes = format!("`pluvio backup {empty}` makes one");
    cluster.run(["backup", "list", empty]).fails(1, &[&makes]);
}

/// Files in a place that are no archives are left out, with a notice.
fn foreign(cluster: &Cluster, place: &Path) {
    let name = place.to_str().unwrap();
    let archives = place.join("archives");
    let (file, directory) = (archives.join("zz.json"), archives.join("zzz.json"));
    fs::write(&file, b"{\"name\":\"x\"}").unwrap();
    fs::create_dir(&directory).unwrap();
    for arguments in [
        &["backup", "list", name][..],
        &["backup", "verify", name],
        &["backup", "prune", name, "--keep", "1"],
        &["restore", name, "--overwrite"],
    ] {
        let done = cluster.run(arguments).ok();
        for path in [&file, &directory] {
            let notice = format!("{}: no archive has this name", path.display());
            assert!(done.stderr.contains(&notice), "{}", done.stderr);
        }
    }
    let pruned = cluster.run(["backup", "prune", name, "--keep", "1"]).ok();
    assert!(pruned.text().ends_with("1 archive stays\n"));
    fs::remove_file(file).unwrap();
    fs::remove_dir(directory).unwrap();
}

/// A manifest that is cut, of something else, or of a later program.
fn refused(cluster: &Cluster, place: &Path) {
    let name = place.to_str().unwrap();
    let mut archives = fs::read_dir(place.join("archives")).unwrap();
    let path = archives.next().unwrap().unwrap().path();
    let whole = fs::read(&path).unwrap();
    for (bytes, word) in [
        (&whole[..whole.len() / 2], "damaged"),
        (b"{\"name\":\"x\"}", "no manifest of an archive"),
        (b"{\"pluvio_archive\":4,\"else\":[]}", "its format is 4"),
    ] {
        fs::write(&path, bytes).unwrap();
        for arguments in [
            &["restore", name, "--overwrite"][..],
            &["backup", "verify", name],
            &["backup", "prune", name, "--keep", "1"],
        ] {
            cluster
                .run(arguments)
                .fails(1, &[word, path.to_str().unwrap()]);
        }
    }
    fs::write(&path, whole).unwrap();
}

fn damaged(cluster: &Cluster, place: &Path) {
    let name = place.to_str().unwrap();
    cluster.run(["backup", "verify", name]).ok();
    let packs = fs::read_dir(place.join("packs")).unwrap();
    for pack in packs {
        let path = pack.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let verified = cluster.run(["backup", "verify", name]);
    verified.fails(1, &["damaged", "another archive"]);
    cluster.run(["table", "drop", "words"]).ok();
    let refused = cluster.run(["restore", name, "--table", "words"]);
    refused.fails(1, &["damaged"]);
    let listed = cluster.run(["table", "list"]).text();
    assert!(!listed.contains("words"), "nothing was begun: {listed}");
    // A new archive does not rest on damaged packs.
    cluster.run(["backup", name]).ok();
    cluster.run(["backup", "verify", name]).ok();
    // A place that is broken gets no archive, and keeps its old ones.
    let ids = cluster.run(["backup", "list", name]).text();
    fs::remove_dir_all(place.join("packs")).unwrap();
    fs::write(place.join("packs"), "in the way").unwrap();
    let failed = cluster.run(["backup", name]);
    failed.fails(1, &["packs"]);
    assert_eq!(cluster.run(["backup", "list", name]).text(), ids);
}
