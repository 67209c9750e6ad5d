//! Memory and disks that are full.

use crate::support::cluster::{Cluster, Turn, sum};
use crate::support::program::{binary, command, command_through, signal};
use crate::support::{Random, Reply, Resp, Running, Setup, http, wait_for};
use rustix::process::Signal;
use std::net::TcpStream;

/// A value that fills memory in few steps.
fn large(n: usize) -> String {
    format!("{n:08}").repeat(12 << 10)
}

/// Writes `prefix0`, `prefix1`, … until a write is refused; gives how many were acknowledged and
/// the refusal.
fn fill(cluster: &Cluster, prefix: &str) -> (usize, String) {
    let mut redis = cluster.connect(0);
    for n in 0..10_000 {
        match redis.call(&["SET".to_owned(), format!("{prefix}{n}"), large(n)]) {
            Reply::Error(text) => return (n, text.into_owned()),
            reply => assert!(reply.is_ok(), "{reply:?}"),
        }
    }
    panic!("nothing was ever full");
}

#[track_caller]
fn assert_there(cluster: &Cluster, prefix: &str, from: usize, to: usize) {
    let mut redis = cluster.connect(0);
    for n in from..to {
        let found = redis.call(&["GET".to_owned(), format!("{prefix}{n}")]);
        let said = found.error().unwrap_or("another value");
        assert!(
            found == Reply::bulk(large(n)),
            "{prefix}{n} of {to}: {said}"
        );
    }
}

#[test]
fn full_memory_refuses_writes_and_nothing_else_and_ends_with_deletes() {
    let cluster = Setup::servers(2).replicas(1).memory("48MiB").start();
    let (written, refusal) = fill(&cluster, "k");
    assert!(refusal.starts_with("OOM "), "{refusal}");
    let held = written * large(0).len();
    let memory = sum(&cluster.status(), "memory_total") as usize;
    assert!(
        held > memory / 3,
        "{held} of {memory} bytes is all it holds"
    );
    // The native way says what to do; the key is one of the server that is full.
    let refused = format!("k{written}");
    let value = vec![b'x'; 1 << 20];
    let put = cluster.run_with(["put", "redis:0", &refused, "-", "--timeout", "1s"], &value);
    put.fails(1, &["error: ", "memory"]);
    // Reads and deletes go on, through every server.
    assert_there(&cluster, "k", 0, written);
    let mut redis = cluster.connect(1);
    let deleted = written / 2;
    for n in 0..deleted {
        assert_eq!(
            redis.call(&["DEL".to_owned(), format!("k{n}")]),
            Reply::Integer(1)
        );
    }
    // Writes work again, and overwrite for ever.
    for round in 0..3 {
        for n in 0..deleted / 2 {
            let set = ["SET".to_owned(), format!("again{n}"), large(n)];
            let reply = redis.call(&set);
            assert!(reply.is_ok(), "round {round}, {n}: {reply:?}");
        }
    }
    assert_there(&cluster, "again", 0, deleted / 2);
    assert_there(&cluster, "k", deleted, written);
}

/// Commands that free memory or only read are done when no others are. That holds on one server,
/// and on several, where their keys are locked.
#[test]
fn full_memory_takes_deletes_of_many_keys_and_blocks_that_delete_or_read() {
    for servers in [1, 2] {
        let cluster = Setup::servers(servers)
            .replicas(servers - 1)
            .memory("48MiB")
            .start();
        let (written, refusal) = fill(&cluster, "k");
        assert!(refusal.starts_with("OOM "), "{refusal}");
        let mut redis = cluster.connect(0);
        let keys = |from: usize, to: usize| (from..to).map(|n| format!("k{n}"));
        let with = |name: &str, keys: &mut dyn Iterator<Item = String>| {
            core::iter::once(name.to_owned())
                .chain(keys)
                .collect::<Vec<_>>()
        };
        // A block that only reads.
        assert!(redis.call(&["MULTI"]).is_ok());
        for key in keys(0, 8) {
            redis.call(&["STRLEN".to_owned(), key]);
        }
        let lengths = vec![Reply::Integer(large(0).len() as i64); 8];
        assert_eq!(redis.call(&["EXEC"]), Reply::Array(lengths), "{servers}");
        // A block that only deletes.
        assert!(redis.call(&["MULTI"]).is_ok());
        for key in keys(0, 8) {
            redis.call(&["DEL".to_owned(), key]);
        }
        let ones = vec![Reply::Integer(1); 8];
        assert_eq!(redis.call(&["EXEC"]), Reply::Array(ones), "{servers}");
        // Full again.
        fill(&cluster, "m");
        let command = with("DEL", &mut keys(8, 40));
        assert_eq!(redis.call(&command), Reply::Integer(32), "{servers}");
        fill(&cluster, "n");
        let command = with("UNLINK", &mut keys(40, written));
        let deleted = Reply::Integer((written - 40) as i64);
        assert_eq!(redis.call(&command), deleted, "{servers}");
        assert!(redis.call(&["SET", "new", "v"]).is_ok());
    }
}

/// Objects of mixed sizes that know what they are: the n-th value of a key has a size and bytes of
/// its own.
struct Mixed {
    /// How often each key was written.
    written: Vec<u64>,
    bytes: u64,
}

impl Mixed {
    /// Most bytes that an object has in the log beside its value, and its share of results that are
    /// kept.
    const OVERHEAD_MAX: u64 = 160;
    const BATCH: usize = 32;

    /// Mostly some hundred bytes, now and then up to 32 KiB.
    fn value(key: usize, nth: u64) -> Vec<u8> {
        let mut random = Random::new((key as u64) << 32 | nth);
        let size = match random.below(8) {
            0 => random.below(32 << 10),
            _ => 100 + random.below(1000),
        };
        let text = format!("{key} for the {nth}. time, ");
        let bytes = text.bytes().cycle().take(usize::try_from(size).unwrap());
        bytes.collect()
    }

    /// Writes some keys anew; none may be refused.
    #[track_caller]
    fn write(&mut self, redis: &mut Resp, keys: &[usize]) {
        let mut sets = Vec::new();
        for &key in keys {
            self.written[key] += 1;
            let value = Self::value(key, self.written[key]);
            self.bytes += value.len() as u64;
            sets.push(vec![b"SET".to_vec(), key.to_string().into(), value]);
        }
        for reply in redis.pipeline(&sets) {
            assert!(reply.is_ok(), "after {} bytes: {reply:?}", self.bytes);
        }
    }

    /// Bytes of all values that are there.
    fn value_bytes(&self) -> u64 {
        let versions = self.written.iter().enumerate();
        let values = versions.map(|(key, &version)| Self::value(key, version).len() as u64);
        values.sum()
    }

    #[track_caller]
    fn assert_there(&self, redis: &mut Resp) {
        let keys: Vec<usize> = (0..self.written.len()).collect();
        for some in keys.chunks(Self::BATCH) {
            let gets: Vec<_> = some
                .iter()
                .map(|key| vec![b"GET".to_vec(), key.to_string().into()])
                .collect();
            for (&key, found) in some.iter().zip(redis.pipeline(&gets)) {
                let expected = Self::value(key, self.written[key]);
                assert!(found == Reply::bulk(expected), "{key} has another value");
            }
        }
    }
}

#[test]
fn with_80_percent_live_overwriting_goes_on_without_an_error() {
    /// How often the whole memory is written once it is that full.
    const TURNS: u64 = 4;
    let mut random = Random::new(Random::seed());
    let mut cluster = Setup::servers(1).memory("96MiB").start();
    let mut redis = cluster.connect(0);
    let mut objects = Mixed {
        written: Vec::new(),
        bytes: 0,
    };
    let live_percent = |cluster: &Cluster| {
        let status = cluster.status();
        sum(&status, "memory_live") * 100 / sum(&status, "memory_total")
    };
    while live_percent(&cluster) < 80 {
        for _ in 0..16 {
            let first = objects.written.len();
            objects.written.resize(first + Mixed::BATCH, 0);
            let keys: Vec<usize> = (first..objects.written.len()).collect();
            objects.write(&mut redis, &keys);
        }
    }
    let memory = sum(&cluster.status(), "memory_total");
    let keys = objects.written.len() as u64;
    let enough = objects.bytes + TURNS * memory;
    while objects.bytes < enough {
        let some = (0..Mixed::BATCH).map(|_| random.below(keys) as usize);
        let some: Vec<usize> = some.collect();
        objects.write(&mut redis, &some);
    }
    // Sizes go with versions, so the live share wanders about. The live bytes with their headers
    // are counted.
    let live = sum(&cluster.status(), "memory_live");
    let there = objects.value_bytes();
    assert!(
        (there..=there + keys * Mixed::OVERHEAD_MAX).contains(&live),
        "{live} bytes are counted as live, and {keys} values have {there}"
    );
    assert!(
        (70..=90).contains(&live_percent(&cluster)),
        "{live} of {memory} bytes are live at the end"
    );
    let admin = cluster.servers()[0]["admin"].as_str().unwrap();
    let freed = http::metric(admin, "pluvio_cleaner_freed_bytes_total");
    assert!(freed > memory, "{freed} bytes were freed");
    objects.assert_there(&mut redis);
    // Objects that cleaning has moved or dropped come back as they should.
    cluster.kill_all();
    cluster.restart();
    objects.assert_there(&mut cluster.connect(0));
}

/// Clients that are connected and do nothing take up files; a server keeps the files that it needs
/// for replicas.
#[test]
fn connections_that_use_up_the_files_stop_no_writes() {
    /// More than a server of so few files takes.
    const IDLE: usize = 400;
    let _turn = Turn::take();
    let directory = tempfile::tempdir().unwrap();
    let mut coordinator = command();
    coordinator.args(["coordinator", "--json", "--listen", "127.0.0.1:0", "--data"]);
    let mut coordinator = Running::spawn(coordinator.arg(directory.path().join("coordinator")));
    let coordinator = coordinator.ready()["addr"].as_str().unwrap().to_owned();
    let mut shell = command_through("sh");
    shell
        .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
        .arg(binary())
        .args(["server", "--json", "--coordinator", &coordinator])
        .args([
            "--redis",
            "127.0.0.1:0",
            "--memory",
            "64MiB",
            "--cores",
            "1",
        ])
        .arg("--data")
        .arg(directory.path().join("server"));
    let mut server = Running::spawn(&mut shell);
    let ready = server.ready();
    wait_for("the server to say that it takes fewer", || {
        let said = server.stderr();
        said.contains("256 files").then_some(()).ok_or(said)
    });
    let redis = ready["redis"].as_str().unwrap();
    let mut first = Resp::connect(redis);
    assert!(first.call(&["SET", "k", "v"]).is_ok());
    let idle: Vec<TcpStream> = (0..IDLE)
        .map(|_| TcpStream::connect(redis).unwrap())
        .collect();
    // Some segments: each is a new frame.
    for n in 0..200 {
        let reply = first.call(&["SET".to_owned(), format!("k{n}"), large(n)]);
        assert!(reply.is_ok(), "{n}: {reply:?}: {}", server.stderr());
    }
    drop(idle);
    wait_for("a place", || {
        let mut again = Resp::try_connect(redis).map_err(|error| error.to_string())?;
        match again.try_call(&["SET", "k", "w"]) {
            Ok(reply) if reply.is_ok() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(!server.stderr().contains("a replica is lost"));
    assert_eq!(server.stop(), Some(0));
}

/// Traces go to a file on some disk, or into a pipe whose reader may go: neither ends a server.
#[test]
fn processes_that_cannot_write_their_traces_go_on() {
    let _turn = Turn::take();
    let directory = tempfile::tempdir().unwrap();
    let mut shell = command_through("sh");
    shell
        .args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"])
        .arg(binary())
        .args(["dev", "--json", "--verbose", "--log", "debug"])
        .args(["--servers", "3", "--memory", "64MiB", "--cores", "1"])
        .args(["--redis-port", "0", "--coordinator-port", "0", "--data"])
        .arg(directory.path());
    let mut dev = Running::spawn(&mut shell);
    let ready = dev.ready();
    let redis = |server: usize| ready["servers"][server]["redis"].as_str().unwrap();
    assert!(Resp::connect(redis(0)).call(&["SET", "k", "v"]).is_ok());
    // All that are left tell of this failure.
    let dead = ready["servers"][0]["pid"].as_u64().unwrap();
    signal(u32::try_from(dead).unwrap(), Signal::KILL);
    let mut left = Resp::connect(redis(1));
    wait_for("the value on a server that is left", || {
        match left.call(&["GET", "k"]) {
            reply if reply == Reply::bulk("v") => Ok(()),
            reply => Err(format!("{reply:?}")),
        }
    });
    assert!(dev.is_alive());
    assert_eq!(dev.stop(), Some(0));
}

/// Disks that are full soon; not every machine lets its users, or its containers, mount one.
mod needs_small_disk {
    use super::*;
    use crate::data_directory::server;
    use crate::replication::start_again;
    use crate::support::disk::SmallDisk;

    /// A cluster whose server `number` has its data on a small disk.
    fn with_small_disk(setup: Setup, number: u32, size: &str) -> (Cluster, SmallDisk) {
        let mut disk = None;
        let cluster = setup.start_on(|data| {
            disk = Some(SmallDisk::mount(
                &data.join(format!("server-{number}")),
                size,
            ));
        });
        (cluster, disk.unwrap())
    }

    #[test]
    fn a_full_disk_refuses_writes_and_loses_nothing() {
        let (mut cluster, disk) = with_small_disk(Setup::servers(1), 1, "24m");
        let (written, refusal) = fill(&cluster, "k");
        let in_doubt = "ERR it is not known whether the command was executed: ";
        let prefixes = ["NOREPLICAS ", "OOM ", "TRYAGAIN ", in_doubt];
        assert!(
            prefixes.iter().any(|prefix| refusal.starts_with(prefix)),
            "{refusal}"
        );
        assert!(written > 100, "only {written} fitted");
        // It tries again now and then; between two attempts nothing waits.
        wait_for("status to say that writes wait", || {
            let text = cluster.run(["status"]).ok().text();
            text.contains("writes wait: ").then_some(()).ok_or(text)
        });
        let trace = std::fs::read_to_string(cluster.data().join("logs/server-1.log")).unwrap();
        assert!(trace.contains("no space left"), "{trace}");
        // Reads go on, and with room so do writes; nothing has to be restarted.
        assert_there(&cluster, "k", 0, written);
        disk.grow("64m");
        assert!(cluster.connect(0).call(&["SET", "more", "v"]).is_ok());
        // What was acknowledged is on the disk, whole.
        cluster.kill_all();
        cluster.restart();
        assert_there(&cluster, "k", 0, written);
        assert_eq!(cluster.connect(0).call(&["GET", "more"]), Reply::bulk("v"));
        cluster.kill_all();
    }

    #[test]
    fn one_full_disk_of_many_is_only_less_room() {
        let setup = Setup::servers(3).replicas(1);
        let (mut cluster, disk) = with_small_disk(setup, 2, "20m");
        let mut redis = cluster.connect(0);
        // Far more than the small disk's share.
        for n in 0..700 {
            let reply = redis.call(&["SET".to_owned(), format!("k{n}"), large(n)]);
            assert!(reply.is_ok(), "{n}: {reply:?}");
        }
        assert_there(&cluster, "k", 0, 700);
        cluster.kill_all();
        disk.grow("256m");
        cluster.restart();
        assert_there(&cluster, "k", 0, 700);
        cluster.kill_all();
    }

    #[test]
    fn a_new_server_on_a_full_disk_does_not_join() {
        let cluster = Setup::servers(1).start();
        let admin = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
        let changes = || http::metric(admin, "pluvio_cluster_server_list_version");
        let before = changes();
        let data = cluster.directory().join("full");
        let disk = SmallDisk::mount(&data, "1m");
        disk.fill();
        server(&cluster, &data, &[]).fails(1, &["error: ", "no space left", "make room"]);
        assert_eq!(changes(), before, "the cluster has not heard of it");
    }

    #[test]
    fn a_server_starts_again_on_a_full_disk() {
        let (mut cluster, disk) = with_small_disk(Setup::servers(3).replicas(2), 2, "64m");
        let mut redis = cluster.connect(0);
        for n in 0..20 {
            let reply = redis.call(&["SET".to_owned(), format!("k{n}"), large(n)]);
            assert!(reply.is_ok(), "{n}: {reply:?}");
        }
        disk.fill();
        cluster.kill(1);
        // It has kept the files that it needs to start, also for the next time.
        for _ in 0..2 {
            let mut again = start_again(&cluster, 2, "2", "1");
            assert_there(&cluster, "k", 0, 20);
            again.kill();
        }
        cluster.kill_all();
    }
}
