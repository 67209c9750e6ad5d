//! Archives of one moment: all or nothing of every transaction, and a prefix of one client's
//! writes.

use crate::support::Random;
use crate::support::cluster::{Cluster, Setup};
use crate::support::patience::wait_for;
use crate::support::resp::{Reply, Resp};
use crate::transactions::{Bank, sum};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};

/// Keys of the chain. They are on all servers.
const LINKS: u64 = 31;

/// A client that writes one key after the other, each when the one before is acknowledged.
struct Chain {
    begun: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    client: JoinHandle<()>,
}

fn link(step: u64) -> String {
    format!("link {}", step * 7 % LINKS)
}

impl Chain {
    /// Through a server that is not killed.
    fn grow(cluster: &Cluster) -> Self {
        let (begun, done) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let is_over = Arc::<AtomicBool>::default();
        let (begins, ends, over) = (Arc::clone(&begun), Arc::clone(&done), Arc::clone(&is_over));
        let address = cluster.redis(0);
        let work = move || {
            let mut redis = Resp::connect(&address);
            for step in 1.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                begins.store(step, Ordering::Relaxed);
                // Again, where its owner is dead for the moment: it is the same value.
                while !matches!(
                    redis.try_call(&["SET", &link(step), &step.to_string()]),
                    Ok(Reply::Simple(_))
                ) {
                    redis = Resp::connect(&address);
                }
                ends.store(step, Ordering::Relaxed);
            }
        };
        Self {
            begun,
            done,
            is_over,
            client: thread::Builder::new()
                .spawn(work)
                .expect("a thread is begun"),
        }
    }

    fn steps(&self) -> (u64, u64) {
        (
            self.done.load(Ordering::Relaxed),
            self.begun.load(Ordering::Relaxed),
        )
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.client.join().unwrap();
    }
}

/// The values of all links after some steps.
fn after(steps: u64) -> Vec<Option<u64>> {
    let mut links = vec![None; LINKS as usize];
    for step in steps.saturating_sub(LINKS) + 1..=steps {
        links[(step * 7 % LINKS) as usize] = Some(step);
    }
    links
}

fn links(redis: &mut Resp) -> Vec<Option<u64>> {
    let link = |n: u64| match redis.call(&["GET", &format!("link {n}")]) {
        Reply::Bulk(text) => Some(core::str::from_utf8(&text).unwrap().parse().unwrap()),
        _ => None,
    };
    (0..LINKS).map(link).collect()
}

/// Restores an archive, and looks whether it is of one moment between these steps of the chain.
fn check(cluster: &Cluster, place: &Path, archive: &Value, (from, to): (u64, u64)) {
    let (name, id) = (
        place.to_str().unwrap(),
        archive["archive"].as_str().unwrap(),
    );
    let restore = ["restore", name, "--archive", id, "--overwrite", "--json"];
    let restored = cluster.run(restore).json();
    assert_eq!(restored["consistency"], "one-moment");
    let mut redis = cluster.connect(0);
    let total = wait_for("all accounts", || {
        sum(&mut redis).ok_or("not yet".to_owned())
    });
    assert_eq!(total, 0, "{archive}");
    let found = links(&mut redis);
    let is_prefix = (from..=to).any(|steps| after(steps) == found);
    assert!(is_prefix, "steps {from} to {to}: {found:?}");
}

/// Objects that nobody changes: there is something to read.
fn fill(cluster: &Cluster) {
    let lines: String = (0..4000)
        .map(|n| format!("word {n} and some more\n"))
        .collect();
    let import = ["import", "words", "-", "--format", "lines"];
    cluster.run_with(import, lines.as_bytes()).ok();
}

#[test]
fn an_archive_is_of_one_moment_while_money_moves() {
    let cluster = Setup::servers(3).start();
    let place = cluster.directory().join("archives");
    let name = place.to_str().unwrap();
    fill(&cluster);
    let (bank, chain) = (Bank::open(&cluster, Random::seed()), Chain::grow(&cluster));
    bank.wait_for(100);
    let mut archives = Vec::new();
    for _ in 0..4 {
        let (done, _) = chain.steps();
        let archive = cluster.run(["backup", name, "--json"]).json();
        let (_, begun) = chain.steps();
        assert_eq!(archive["consistency"], "one-moment", "{archive}");
        let held = archive["held_us"].as_u64().unwrap();
        assert!((1..1_000_000).contains(&held), "{archive}");
        archives.push((archive, (done, begun)));
        bank.wait_for(50);
    }
    let said = cluster.run(["backup", name]).ok().text();
    assert!(
        said.contains("at one moment") && said.contains("stood still for"),
        "{said}"
    );
    let each = cluster
        .run(["backup", name, "--each-object", "--json"])
        .json();
    assert_eq!(each["consistency"], "each-object");
    assert!(each["held_us"].is_null());
    bank.close();
    chain.end();
    at_once(&cluster);
    let last = cluster.run(["backup", name, "--json"]).json();
    assert!(
        last["known_bytes"].as_u64() > Some(0),
        "words are there: {last}"
    );
    cluster.run(["backup", "verify", name]).ok();
    let listed = cluster.run(["backup", "list", name]).ok().text();
    assert!(
        listed.contains("one") && listed.contains("each object's own"),
        "{listed}"
    );
    let other = Setup::servers(2).start();
    for (archive, steps) in &archives {
        check(&other, &place, archive, *steps);
    }
    let prune = ["backup", "prune", name, "--keep", "1", "--json"];
    let pruned = cluster.run(prune).json();
    assert_eq!(
        pruned["archives"].as_array().unwrap().len(),
        archives.len() + 2
    );
    cluster.run(["backup", "verify", name]).ok();
}

/// Backups that begin at the same time get archives of their own; those that wait begin later.
fn at_once(cluster: &Cluster) {
    let place = cluster.directory().join("at once");
    let name = place.to_str().unwrap();
    let begun = Barrier::new(3);
    let archives: Vec<Value> = thread::scope(|scope| {
        let backup = || {
            begun.wait();
            cluster.run(["backup", name, "--json"]).json()
        };
        let running = [(); 3].map(|()| scope.spawn(backup));
        running.map(|backup| backup.join().unwrap()).into()
    });
    let ids: BTreeSet<&str> = archives
        .iter()
        .map(|archive| archive["archive"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 3, "{archives:?}");
    for id in ids {
        let verify = ["backup", "verify", name, "--archive", id];
        cluster.run(verify).ok();
    }
}

#[test]
fn an_archive_is_of_one_moment_when_a_server_is_killed_meanwhile() {
    let cluster = Setup::servers(3).start();
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("archives");
    let name = place.to_str().unwrap();
    fill(&cluster);
    let (bank, chain) = (Bank::open(&cluster, Random::seed()), Chain::grow(&cluster));
    bank.wait_for(100);
    let (done, _) = chain.steps();
    let first = thread::scope(|scope| {
        // Some seconds.
        let slow = ["backup", name, "--rate", "30KiB", "--json"];
        let runs = &cluster;
        let backup = scope.spawn(move || runs.run(slow));
        bank.wait_for(100);
        cluster.kill(2);
        backup.join().unwrap()
    });
    let (_, begun) = chain.steps();
    let mut archives = Vec::new();
    match first.code == Some(0) {
        true => archives.push((first.json(), (done, begun))),
        false => drop(first.fails(1, &["Run the command again", "there is no new archive"])),
    }
    bank.wait_for(50);
    let (done, _) = chain.steps();
    let again = cluster.run(["backup", name, "--json"]).json();
    archives.push((again, (done, chain.steps().1)));
    bank.wait_for(50);
    bank.close();
    chain.end();
    drop(cluster);
    let other = Setup::servers(2).start();
    for (archive, steps) in &archives {
        check(&other, &place, archive, *steps);
    }
}
