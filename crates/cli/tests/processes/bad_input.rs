//! Bad input while data of crashed servers is recovered: strangers on every port, keys and values
//! over the limits, servers that do not belong here. The recovery goes on as if they were not
//! there.

use crate::broken_bytes::{nonsense_in_a_frame, ports_of, say};
use crate::data_directory::{copy, server};
use crate::replication::start_again;
use crate::support::cluster::{Cluster, files_below};
use crate::support::program::runs;
use crate::support::{Random, Reply, Setup, wait_for};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Values, of 64 KiB each: some ten MB on each of four servers.
const VALUES: usize = 720;

fn key(n: usize) -> Vec<u8> {
    format!("key{n}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    format!("{n:08}").repeat(8 << 10).into_bytes()
}

fn fill(cluster: &Cluster) {
    let mut redis = cluster.connect(0);
    let all: Vec<usize> = (0..VALUES).collect();
    for some in all.chunks(16) {
        let sets = some
            .iter()
            .map(|&n| vec![b"SET".to_vec(), key(n), value(n)]);
        let sets: Vec<_> = sets.collect();
        for reply in redis.pipeline(&sets) {
            assert!(reply.is_ok(), "{reply:?}");
        }
    }
}

/// A data directory of a server of another cluster.
fn of_another_cluster(cluster: &Cluster) -> PathBuf {
    let mut other = Setup::servers(1).start();
    assert!(other.connect(0).call(&["SET", "k", "v"]).is_ok());
    other.stop();
    let place = cluster.directory().join("foreign");
    copy(&other.data().join("server-1"), &place);
    place
}

/// Those who do what they should not.
struct Strangers<'a> {
    cluster: &'a Cluster,
    /// The servers that live, by their place in the list.
    living: &'a [usize],
    /// A data directory of another cluster.
    foreign: PathBuf,
    seed: u64,
}

impl Strangers<'_> {
    /// Each does all it knows once, one after the other.
    fn once(&self) {
        for one in self.all() {
            one(self, 0);
        }
    }

    /// All at the same time, again and again while `meanwhile` runs, and at least once.
    fn during<T>(&self, meanwhile: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let busy = self.all().map(|one| {
                let over = &over;
                scope.spawn(move || {
                    let mut rounds = 0;
                    while rounds == 0 || !over.load(Ordering::Relaxed) {
                        one(self, rounds);
                        rounds += 1;
                    }
                    rounds
                })
            });
            // Also when it panics: a scope ends only when all its threads have.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
            over.store(true, Ordering::Relaxed);
            let rounds = busy.map(|one| one.join().unwrap());
            println!("rounds of garbage, limits by two ways, strange servers: {rounds:?}");
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn all(&self) -> [fn(&Self, u64); 5] {
        [
            Self::garbage,
            |this, _| this.over_the_limits_of_redis(),
            |this, _| this.over_the_limits_of_programs(),
            |this, _| this.a_server_of_another_cluster(),
            |this, _| this.a_server_on_ports_in_use(),
        ]
    }

    fn garbage(&self, round: u64) {
        let mut random = Random::new(self.seed.wrapping_add(round));
        for server in self.living {
            for port in ports_of(self.cluster, *server) {
                for kind in 0..6 {
                    say(&port.address, &port.garbage(kind, &mut random));
                }
            }
            let rpc = self.cluster.servers()[*server]["addr"].as_str().unwrap();
            for address in [self.cluster.coordinator(), rpc] {
                for opcode in 0..64 {
                    say(address, &nonsense_in_a_frame(opcode, &mut random));
                }
            }
        }
    }

    fn over_the_limits_of_redis(&self) {
        let (key, value) = ("k".repeat((64 << 10) + 1), vec![b'v'; (1 << 20) + 1]);
        for server in self.living {
            let mut redis = self.cluster.connect(*server);
            for (refused, limit) in [
                (redis.call(&["SET", &key, "v"]), "65536"),
                (redis.call(&["GET", &key]), "65536"),
                (redis.call(&[b"SET", &b"k"[..], &value]), "1048576"),
            ] {
                let text = refused.error().unwrap_or_default();
                assert!(text.starts_with("ERR ") && text.contains(limit), "{text}");
            }
            // The connection goes on.
            assert_eq!(redis.call(&["PING"]), Reply::Simple("PONG".into()));
        }
    }

    fn over_the_limits_of_programs(&self) {
        let (key, value) = ("k".repeat((64 << 10) + 1), vec![b'v'; (1 << 20) + 1]);
        let put = self.cluster.run(["put", "redis:0", &key, "v"]);
        put.fails(1, &["error: ", "65536"]);
        let put = self.cluster.run_with(["put", "redis:0", "k", "-"], &value);
        put.fails(1, &["error: ", "1048576"]);
    }

    fn a_server_of_another_cluster(&self) {
        let before = files_below(&self.foreign).len();
        server(self.cluster, &self.foreign, &[]).fails(1, &["error: ", "cluster"]);
        assert_eq!(files_below(&self.foreign).len(), before, "nothing removed");
    }

    fn a_server_on_ports_in_use(&self) {
        let fresh = self.cluster.directory().join("ports");
        let taken = &self.cluster.servers()[self.living[0]];
        for (flag, port) in [
            ("--listen", "addr"),
            ("--redis", "redis"),
            ("--admin", "admin"),
        ] {
            let address = taken[port].as_str().unwrap();
            server(self.cluster, &fresh, &[flag, address])
                .fails(1, &["error: ", address, "in use"]);
        }
    }

    /// The processes are still the same.
    #[track_caller]
    fn assert_all_live(&self) {
        let data = self.cluster.data().display().to_string();
        let servers = self.living.iter().map(|s| self.cluster.pid(*s));
        for pid in servers.chain([self.cluster.coordinator_pid()]) {
            assert!(runs(pid, &data), "process {pid} died");
        }
    }

    /// All values are there, through every server that has lived on.
    #[track_caller]
    fn assert_all_there(&self) {
        for server in self.living {
            let mut redis = self.cluster.connect(*server);
            for n in 0..VALUES {
                let found = redis.call(&[b"GET".to_vec(), key(n)]);
                let said = found.error().unwrap_or("another value");
                assert!(found == Reply::bulk(value(n)), "key{n}: {said}");
            }
        }
    }
}

/// Recoveries that have ended, and all of them.
fn recoveries(status: &Value) -> (usize, usize) {
    let all = status["recoveries"].as_array().unwrap();
    let done = all.iter().filter(|one| one["done"] == true).count();
    (done, all.len())
}

/// Waits until the coordinator knows of this many crashes.
fn wait_for_crashes(cluster: &Cluster, count: usize) {
    wait_for("the crashes to be known", || {
        let status = cluster.status();
        let known = recoveries(&status).1 == count;
        known.then_some(()).ok_or_else(|| status.to_string())
    });
}

#[test]
fn a_recovery_goes_on_among_strangers() {
    let cluster = Setup::servers(4).start();
    let strangers = Strangers {
        cluster: &cluster,
        living: &[0, 1, 2],
        foreign: of_another_cluster(&cluster),
        seed: Random::seed(),
    };
    fill(&cluster);
    cluster.kill(3);
    let status = strangers.during(|| {
        wait_for_crashes(&cluster, 1);
        cluster.wait_settled(3)
    });
    strangers.assert_all_live();
    strangers.assert_all_there();
    // Nobody else was taken for dead.
    assert_eq!(recoveries(&status), (1, 1), "{status}");
    assert_eq!(recoveries(&cluster.status()), (1, 1));
    cluster.wait_replicated();
}

/// The same when it is certain that they come in the middle: one server alone recovers nothing, for
/// want of data and of backups.
#[test]
fn a_recovery_that_waits_ends_among_strangers_too() {
    let cluster = Setup::servers(4).start();
    let strangers = Strangers {
        cluster: &cluster,
        living: &[0],
        foreign: of_another_cluster(&cluster),
        seed: Random::seed(),
    };
    fill(&cluster);
    for server in 1..4 {
        cluster.kill(server);
    }
    wait_for_crashes(&cluster, 3);
    strangers.once();
    strangers.assert_all_live();
    let status = cluster.status();
    assert_eq!(recoveries(&status), (0, 3), "{status}");
    let _back = strangers.during(|| {
        let back = [2, 3].map(|number| start_again(&cluster, number, "2", "1"));
        cluster.wait_settled(3);
        back
    });
    strangers.assert_all_live();
    strangers.assert_all_there();
    let status = cluster.status();
    assert_eq!(recoveries(&status), (3, 3), "{status}");
}
