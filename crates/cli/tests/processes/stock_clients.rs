//! Clients of others, as they come: the `redis` crate, redis-cli, redis-py.

use crate::support::Setup;
use crate::support::cluster::Cluster;
use crate::support::program::{Output, run};
use redis::Commands;
use std::process::Command;

#[test]
fn the_redis_crate_works_as_it_comes() {
    let cluster = Setup::servers(3).start();
    for (server, protocol) in [(0, ""), (1, "?protocol=resp3"), (2, "?protocol=resp2")] {
        let address = format!("redis://{}/{server}{protocol}", cluster.redis(server));
        let client = redis::Client::open(address).unwrap();
        let mut connection = client.get_connection().unwrap();
        let () = connection.set("name", "Zoë").unwrap();
        assert_eq!(connection.get::<_, String>("name").unwrap(), "Zoë");
        assert_eq!(
            connection.get::<_, Option<String>>("nothing").unwrap(),
            None
        );
        assert_eq!(connection.incr::<_, _, i64>("n", 5).unwrap(), 5);
        assert_eq!(connection.incr::<_, _, f64>("f", 0.5).unwrap(), 0.5);
        let binary: Vec<u8> = (0..=255).collect();
        let () = connection.set(&binary, &binary).unwrap();
        assert_eq!(connection.get::<_, Vec<u8>>(&binary).unwrap(), binary);
        let () = connection.mset(&[("a", 1), ("b", 2)]).unwrap();
        let many: Vec<Option<i64>> = connection.mget(&["a", "x", "b"]).unwrap();
        assert_eq!(many, [Some(1), None, Some(2)]);
        assert!(!connection.set_nx::<_, _, bool>("a", 9).unwrap());
        let mut pipeline = redis::pipe();
        for n in 0..100 {
            pipeline.set(format!("p{n}"), n).ignore();
        }
        pipeline.get("p42");
        let (found,): (i64,) = pipeline.query(&mut connection).unwrap();
        assert_eq!(found, 42);
        let mut seen: Vec<String> = connection
            .scan_match("p*")
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        seen.sort();
        assert_eq!(seen.len(), 100);
        assert_eq!(connection.del::<_, i64>(&["a", "b", "x"]).unwrap(), 2);
        let error = redis::cmd("NONSENSE")
            .query::<()>(&mut connection)
            .unwrap_err();
        assert!(error.to_string().contains("unknown command"), "{error}");
        assert_eq!(connection.ping::<String>().unwrap(), "PONG");
    }
    // Databases are tables, and one does not see the other.
    let client = redis::Client::open(format!("redis://{}/9", cluster.redis(0))).unwrap();
    let mut connection = client.get_connection().unwrap();
    assert!(!connection.exists::<_, bool>("name").unwrap());
    let listed = cluster.run(["table", "list"]).ok().text();
    for database in ["redis:0", "redis:1", "redis:2"] {
        assert!(listed.contains(database), "{listed}");
    }
}

mod needs_redis_cli {
    use super::*;

    /// redis-cli on one of the servers.
    fn cli(cluster: &Cluster, server: usize, arguments: &[&str], input: &str) -> Output {
        let address = cluster.redis(server);
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = Command::new("redis-cli");
        command.args(["-h", host, "-p", port]).args(arguments);
        run(&mut command, input.as_bytes())
    }

    /// redis-cli follows where it is sent; without `-c` it shows that.
    #[test]
    fn redis_cli_finds_the_owner_of_a_key() {
        let cluster = Setup::servers(3).start();
        let text = |server: usize, arguments: &[&str]| {
            let address = cluster.redis_cluster(server);
            let (host, port) = address.rsplit_once(':').unwrap();
            let mut command = Command::new("redis-cli");
            command.args(["-h", host, "-p", port]).args(arguments);
            run(&mut command, b"").ok().text()
        };
        let mut moved = 0;
        for n in 0..30 {
            let key = format!("key {n}");
            assert_eq!(text(n % 3, &["-c", "SET", &key, "v"]), "OK\n");
            moved += usize::from(text(0, &["GET", &key]).starts_with("MOVED "));
        }
        assert!(moved > 5, "{moved} of 30 keys are elsewhere");
        assert!(text(1, &["CLUSTER", "INFO"]).contains("cluster_slots_ok:16384"));
        let keys: usize = (0..3)
            .map(|server| text(server, &["DBSIZE"]).trim().parse::<usize>().unwrap())
            .sum();
        assert_eq!(keys, 30);
        let listed = cluster.run(["scan", "redis:0", "--keys-only"]).ok().text();
        assert_eq!(
            listed.lines().count(),
            30,
            "the native client sees the same"
        );
    }

    #[test]
    fn redis_benchmark_goes_to_all_nodes() {
        let cluster = Setup::servers(3).start();
        let address = cluster.redis_cluster(1);
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = Command::new("redis-benchmark");
        command.args(["--cluster", "-h", host, "-p", port, "-t", "set,get"]);
        command.args(["-n", "3000", "-r", "3000", "-c", "30", "-q"]);
        let said = run(&mut command, b"").ok().text();
        assert!(said.contains("Cluster has 3 master nodes"), "{said}");
        assert!(said.contains("GET:"), "{said}");
    }

    #[test]
    fn redis_cli_talks_to_every_server() {
        let cluster = Setup::servers(3).start();
        let text = |server, arguments: &[&str]| cli(&cluster, server, arguments, "").ok().text();
        assert_eq!(text(0, &["SET", "greeting", "hello"]), "OK\n");
        assert_eq!(text(2, &["GET", "greeting"]), "hello\n");
        assert_eq!(text(1, &["-3", "GET", "nothing"]), "\n");
        assert_eq!(text(1, &["-n", "5", "INCRBY", "n", "7"]), "7\n");
        assert_eq!(text(1, &["EXISTS", "n"]), "0\n", "another database");
        assert!(text(0, &["INFO", "server"]).contains("redis_version:7.2"));
        assert!(text(0, &["GETX", "a"]).contains("unknown command"));
        assert_eq!(text(0, &["EXPIRE", "greeting", "100"]), "1\n");
        assert_eq!(text(2, &["TTL", "greeting"]), "100\n");
        assert_eq!(text(1, &["PERSIST", "greeting"]), "1\n");
        assert_eq!(text(0, &["DBSIZE"]), "1\n");
        // A session, as typed.
        let session =
            "SET a 1\nAPPEND a 2\nGET a\nSELECT 1\nGET a\nSELECT 0\nSTRLEN a\nDEL a greeting\n";
        let said = cli(&cluster, 0, &[], session).ok().text();
        assert_eq!(said, "OK\n2\n12\nOK\n\nOK\n2\n2\n");
        // Mass insertion: raw commands through a pipe.
        let raw: String = (0..5000)
            .map(|n| format!("*3\r\n$3\r\nSET\r\n$5\r\nk{n:04}\r\n$1\r\nv\r\n"))
            .collect();
        let said = cli(&cluster, 1, &["--pipe"], &raw).ok().text();
        assert!(said.contains("errors: 0, replies: 5000"), "{said}");
        let scanned = text(2, &["--scan", "--pattern", "k00*"]);
        assert_eq!(scanned.lines().count(), 100, "{scanned}");
        assert_eq!(text(0, &["FLUSHALL"]), "OK\n");
        assert_eq!(text(0, &["DBSIZE"]), "0\n");
    }
}

mod needs_redis_py {
    use super::*;

    const SCRIPT: &str = r#"
import sys, redis, threading
hosts = [h.rsplit(":", 1) for h in sys.argv[1:]]
def client(n, **more):
    return redis.Redis(host=hosts[n][0], port=int(hosts[n][1]), **more)

r = client(0)                       # HELLO 3 is its default
assert r.ping() is True
assert r.set("k", "v") is True and r.get("k") == b"v"
assert client(1, decode_responses=True).get("k") == "v"
assert client(1, protocol=2).get("k") == b"v"
assert r.get("nothing") is None
assert r.set("k", "w", nx=True) is None and r.set("k", "w", xx=True, get=True) == b"v"
assert r.incr("n") == 1 and r.incrby("n", 41) == 42 and r.decr("n") == 41
assert abs(r.incrbyfloat("f", 0.1) + 0 - 0.1) < 1e-12
assert r.append("k", "xyz") == 4 and r.getrange("k", 1, 2) == b"xy" and r.strlen("k") == 4
assert r.mset({"a": 1, "b": 2}) is True and r.mget("a", "x", "b") == [b"1", None, b"2"]
assert r.exists("a", "b", "x") == 2 and r.delete("a", "x") == 1 and r.type("b") == b"string"
binary = bytes(range(256))
assert r.set(binary, binary) and r.get(binary) == binary and r.getdel(binary) == binary

p = r.pipeline(transaction=False)
for i in range(1000):
    p.set(f"p{i}", i)
    p.get(f"p{i}")
replies = p.execute()
assert replies[0::2] == [True] * 1000 and replies[1::2] == [str(i).encode() for i in range(1000)]
assert len(set(r.scan_iter("p*", count=100))) == 1000
assert len(r.keys("p99*")) == 11

# One pool, many threads, one counter.
pool = redis.ConnectionPool(host=hosts[2][0], port=int(hosts[2][1]), max_connections=8)
def count():
    mine = redis.Redis(connection_pool=pool)
    for _ in range(50):
        mine.incr("together")
threads = [threading.Thread(target=count) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert r.get("together") == b"400"

try:
    r.execute_command("NONSENSE", "x")
    raise SystemExit("an unknown command was taken")
except redis.ResponseError as e:
    assert "unknown command" in str(e), e
assert r.set("e", "v", ex=10) and 9 <= r.ttl("e") <= 10 and 9000 < r.pttl("e") <= 10000
assert r.getex("e", persist=True) == b"v" and r.ttl("e") == -1 and r.ttl("nothing") == -2
assert r.expire("e", 100, nx=True) and not r.expire("e", 50, gt=True)
at = r.pexpiretime("e")
assert r.set("e", "w", keepttl=True) and r.pexpiretime("e") == at and r.persist("e")
assert r.setex("s", 1, "v") and r.psetex("t", 100, "v") and r.delete("e") == 1
held = client(2).lock("lock", timeout=0.3)
assert held.acquire(blocking=False) and not client(1).lock("lock").acquire(blocking=False)
assert client(0).lock("lock", timeout=1).acquire(blocking_timeout=5)
r.incr("n")
try:
    r.incr("k")
    raise SystemExit("text was incremented")
except redis.ResponseError as e:
    assert "not an integer" in str(e), e
assert r.info()["redis_version"].startswith("7.2")
assert r.client_id() > 0 and r.client_setname("me") and r.client_getname() == "me"
assert client(0, db=3).dbsize() == 0 and client(0, db=3).set("x", "y") and not r.exists("x")
assert r.wait(1, 100) >= 0 and r.echo("hi") == b"hi" and r.randomkey() is not None
r.flushdb()
assert r.dbsize() == 0 and client(0, db=3).dbsize() == 1
print("all held")
"#;

    /// A cluster client works while a server is killed; it is not to see more than a delay.
    const CLUSTER_SCRIPT: &str = r#"
import os, signal, sys, threading, time
from redis.cluster import RedisCluster
host, port = sys.argv[1].rsplit(":", 1)
victim = int(sys.argv[2])
def client():
    return RedisCluster(host=host, port=int(port), decode_responses=True)
r = client()
assert len(r.get_nodes()) == 3
for i in range(300):
    r.set(f"k{i}", i)
assert r.get("k7") == "7" and r.dbsize(target_nodes="primaries") == 300
assert len(set(r.scan_iter("k*", count=20))) == 300
assert r.mset_nonatomic({f"m{i}": i for i in range(50)})
assert r.mget_nonatomic([f"m{i}" for i in range(50)]) == [str(i) for i in range(50)]
assert r.mset({"{t}a": 1, "{t}b": 2}) and r.mget("{t}a", "{t}b") == ["1", "2"]
p = r.pipeline()
for i in range(100):
    p.get(f"k{i}")
assert p.execute() == [str(i) for i in range(100)]

written, errors, stop = [{} for _ in range(3)], [], []
def work(mine, name):
    c, n = client(), 0
    while not stop:
        key = f"w{name}-{n % 500}"
        try:
            c.set(key, n)
            mine[key] = str(n)
            assert c.get(key) == str(n)
        except Exception as e:
            errors.append(repr(e))
            return
        n += 1
threads = [threading.Thread(target=work, args=(w, n)) for n, w in enumerate(written)]
[t.start() for t in threads]
time.sleep(1)
os.kill(victim, signal.SIGKILL)
time.sleep(4)
stop.append(True)
[t.join() for t in threads]
assert not errors, errors
assert all(len(w) > 100 for w in written)
r = client()
lost = [k for w in written for k, v in w.items() if r.get(k) != v]
assert not lost, lost
print("all held")
"#;

    fn python() -> std::ffi::OsString {
        std::env::var_os("PLUVIO_TEST_PYTHON").unwrap_or_else(|| {
            let venv = "../../target/test-tools/venv/bin/python";
            (concat!(env!("CARGO_MANIFEST_DIR"), "/").to_owned() + venv).into()
        })
    }

    #[test]
    fn redis_py_as_a_cluster_client_sees_a_crash_as_a_delay() {
        let cluster = Setup::servers(3).start();
        let mut command = Command::new(python());
        command.args(["-c", CLUSTER_SCRIPT, &cluster.redis_cluster(0)]);
        command.arg(cluster.pid(2).to_string());
        let said = run(&mut command, b"").ok().text();
        assert_eq!(said, "all held\n");
    }

    #[test]
    fn redis_py_works_with_its_defaults() {
        let cluster = Setup::servers(3).start();
        let mut command = Command::new(python());
        command.args(["-c", SCRIPT]).args(cluster.all_redis());
        let said = run(&mut command, b"").ok().text();
        assert_eq!(said, "all held\n");
    }
}
