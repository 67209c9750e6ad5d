//! The way from Redis to Pluvio and back.

use crate::support::cluster::Cluster;
use crate::support::resp::Reply;
use crate::support::{Setup, root};
use serde_json::json;
use std::fs;

/// What redis-server saved: strings of databases 0 and 3, and a library.
const STRINGS: &str = "redis-7.0-strings.rdb";
/// Values of all its types.
const KINDS: &str = "redis-7.0-kinds.rdb";

fn path(name: &str) -> String {
    let folder = root().join("crates/rdb/tests/data");
    folder.join(name).display().to_string()
}

#[track_caller]
fn no_tables(cluster: &Cluster) {
    let tables = cluster.run(["table", "list"]).ok().text();
    assert!(!tables.contains("redis:"), "{tables}");
}

// shows: SURVEY-1
#[test]
fn rdb_files_are_taken_whole_or_not_at_all() {
    let cluster = Setup::servers(1).start();
    let refused = cluster.run(["import", "--from", &path(KINDS)]);
    refused.fails(1, &["list: 2 (", "stream: 1 (\"st\")", "--skip-types"]);
    let bytes = fs::read(path(STRINGS)).unwrap();
    let from_input = ["import", "--from", "-", "--skip-types", "--json"];
    let mut bad = bytes.clone();
    bad[250] ^= 1;
    cluster
        .run_with(from_input, &bad)
        .fails(1, &["byte ", "nothing was written"]);
    cluster
        .run_with(from_input, &bytes[..200])
        .fails(1, &["the file is cut off"]);
    cluster
        .run_with(from_input, b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n")
        .fails(1, &["no RDB file", "append-only"]);
    cluster
        .run(["import", "--from", &path(STRINGS), "table"])
        .fails(2, &["--from"]);
    cluster
        .run(["import", "--from", "redis://127.0.0.1:1"])
        .fails(1, &["127.0.0.1:1"]);
    no_tables(&cluster);
    let summary = cluster.run_with(from_input, &bytes).json();
    assert_eq!(
        (&summary["records"], &summary["left_out"]),
        (&json!(11), &json!(1))
    );
    let mut c = cluster.connect(0);
    assert_eq!(c.call(&["GET", "i32"]), Reply::bulk("1234567"));
    let deadline = c.call(&["PEXPIRETIME", "later"]);
    assert_eq!(deadline, Reply::Integer(4_102_444_800_123));
    c.call(&["SELECT", "3"]);
    assert_eq!(c.call(&["GET", "three"]), Reply::bulk("3"));
}

mod needs_redis_server {
    use super::*;
    use crate::support::metadata::free_port;
    use crate::support::patience::wait_for;
    use crate::support::program::Running;
    use crate::support::resp::Resp;
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::process::Command;

    /// A redis-server with a password, and files in `directory`.
    struct Server {
        _running: Running,
        port: u16,
    }

    const PASSWORD: &str = "p@ss";

    impl Server {
        fn start(directory: &Path, file: &str) -> Self {
            Self::start_with(directory, file, &[])
        }

        fn start_with(directory: &Path, file: &str, more: &[&str]) -> Self {
            let port = free_port();
            let mut command = Command::new("redis-server");
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
            command.args(["--dir", &directory.display().to_string()]);
            command.args([
                "--dbfilename",
                file,
                "--save",
                "",
                "--requirepass",
                PASSWORD,
            ]);
            // The file is sent while it is made, and at once.
            command.args([
                "--repl-diskless-sync",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
            ]);
            let running = Running::spawn(command.args(more));
            let this = Self {
                _running: running,
                port,
            };
            wait_for("redis-server to answer", || {
                let connection = this.try_connect().map(drop);
                connection.ok_or_else(|| "it does not".to_owned())
            });
            this
        }

        fn try_connect(&self) -> Option<Resp> {
            let mut connection = Resp::try_connect(&format!("127.0.0.1:{}", self.port)).ok()?;
            let answer = connection.try_call(&["AUTH", PASSWORD]).ok()?;
            answer.is_ok().then_some(connection)
        }

        fn address(&self, more: &str) -> String {
            format!("redis://:p%40ss@127.0.0.1:{}{more}", self.port)
        }

        /// Values and deadlines of all keys, by database.
        fn all(&self) -> BTreeMap<(u8, Vec<u8>), (Reply, Reply)> {
            let mut c = self.try_connect().unwrap();
            let mut all = BTreeMap::new();
            for database in 0..16 {
                c.call(&["SELECT", &database.to_string()]);
                let Reply::Array(keys) = c.call(&["KEYS", "*"]) else {
                    panic!("no list of keys");
                };
                for key in keys {
                    let Reply::Bulk(key) = key else {
                        panic!("{key:?} is no key");
                    };
                    let value = c.call(&[&b"GET"[..], &key]);
                    let deadline = c.call(&[&b"PEXPIRETIME"[..], &key]);
                    all.insert((database, key.into_owned()), (value, deadline));
                }
            }
            all
        }
    }

    /// Keys and values of all encodings.
    fn fill(server: &Server) -> u64 {
        let mut c = server.try_connect().unwrap();
        let mut count = 0;
        for database in ["0", "3", "15"] {
            c.call(&["SELECT", database]);
            for n in 0_u32..500 {
                let key = match n % 3 {
                    0 => n.to_string().into_bytes(),
                    1 => format!("key:{n}").into_bytes(),
                    _ => [&b"\xff\0\r\n"[..], &n.to_le_bytes()].concat(),
                };
                let value = match n % 5 {
                    0 => (1_i64 << (n % 63)).to_string().into_bytes(),
                    1 => format!("-{n}").into_bytes(),
                    2 => b"abcabd".repeat(n as usize),
                    3 => n
                        .wrapping_mul(2_654_435_761)
                        .to_be_bytes()
                        .repeat(1 + n as usize % 7),
                    _ => Vec::new(),
                };
                let deadline = (4_000_000_000_000_u64 + u64::from(n)).to_string();
                let mut words = vec![&b"SET"[..], &key, &value];
                if n % 4 == 0 {
                    words.extend([&b"PXAT"[..], deadline.as_bytes()]);
                }
                assert!(c.call(&words).is_ok());
                count += 1;
            }
        }
        assert!(c.call(&["SAVE"]).is_ok());
        count
    }

    #[test]
    fn a_running_server_is_followed_until_the_user_cuts_over() {
        let cluster = Setup::servers(1).start();
        let directory = cluster.directory().join("redis");
        fs::create_dir(&directory).unwrap();
        let server = Server::start(&directory, "dump.rdb");
        fill(&server);
        let mut c = server.try_connect().unwrap();
        let (from, port) = (server.address(""), format!("redis://{}", cluster.redis(0)));
        let follow = ["import", "--from", &from, "--follow", &port];
        // Into itself it would never end.
        cluster
            .run(["import", "--from", &from, "--follow", &from])
            .fails(1, &["no Redis port of Pluvio"]);
        let mut command = cluster.command();
        let mut following = Running::spawn(command.args(follow));
        wait_for("the command to follow", || {
            let told = following.stderr();
            told.contains("follows ").then_some(()).ok_or(told)
        });
        for line in [
            "SET new value",
            "SET other value PX 4000000000",
            "INCRBY counter 5",
            "APPEND counter 7",
            "DEL 0",
            "PERSIST 12",
            "SELECT 3",
            "RENAME 3 three",
            "MULTI",
            "SET a 1",
            "INCR a",
            "EXEC",
            "SETRANGE a 3 x",
            "EVAL return(redis.call('SET',KEYS[1],'scripted')) 1 s",
            "PUBLISH a b",
            "SELECT 7",
            "SET seven 7",
        ] {
            let reply = c.call(&line.split(' ').collect::<Vec<_>>());
            assert_eq!(reply.error(), None, "{line}");
        }
        assert_eq!(following.stop(), Some(0), "{}", following.stderr());
        let file = directory.join("back.rdb").display().to_string();
        cluster.run(["export", "--to", &file]).ok();
        let back = Server::start(&directory, "back.rdb");
        assert!(
            back.all() == server.all(),
            "keys, values or deadlines differ"
        );
        cluster.run(follow).fails(1, &["redis:0 has ", "FLUSHALL"]);
        cluster.connect(0).call(&["FLUSHALL"]);
        let until = [&follow[..], &["--until-lag", "0"]].concat();
        let told = cluster.run(until).ok().stderr;
        assert!(told.contains("played 0 commands"), "{told}");
    }

    // shows: APPENDED-1, APPENDED-2
    #[test]
    fn append_only_files_are_taken_as_redis_loads_them() {
        let cluster = Setup::servers(1).start();
        let directory = cluster.directory().join("redis");
        fs::create_dir(&directory).unwrap();
        let flags = ["--appendonly", "yes", "--appendfsync", "always"];
        let server = Server::start_with(&directory, "dump.rdb", &flags);
        fill(&server);
        let mut c = server.try_connect().unwrap();
        assert!(c.call(&["BGREWRITEAOF"]).error().is_none());
        wait_for("the base to be written", || {
            let Reply::Bulk(told) = c.call(&["INFO", "persistence"]) else {
                panic!("INFO has no text");
            };
            let told = String::from_utf8_lossy(&told).into_owned();
            let is_done = told.contains("aof_rewrite_in_progress:0")
                && told.contains("aof_rewrite_scheduled:0");
            is_done.then_some(()).ok_or(told)
        });
        for line in [
            "SET new value",
            "SET other value PX 4000000000",
            "INCRBY counter 5",
            "INCRBYFLOAT counter 1.5",
            "APPEND counter 7",
            "DEL 0",
            "GETDEL 3",
            "PERSIST 12",
            "GETEX 24 EX 100000",
            "SELECT 3",
            "RENAME 3 three",
            "COPY three four DB 4",
            "MULTI",
            "SET a 1",
            "INCR a",
            "EXEC",
            "SETRANGE a 3 x",
            "SETBIT bits 77 1",
            "BITFIELD bits SET u8 8 66 OVERFLOW SAT INCRBY i5 #3 9",
            "BITOP XOR xor bits a",
            "EVAL return(redis.call('SET',KEYS[1],'scripted')) 1 s",
            "MSET x 1 y 2",
            "MOVE x 7",
            "SWAPDB 7 8",
            "SELECT 9",
            "RPUSH was list",
            "SET was string",
            "RPUSH gone list",
            "DEL gone",
            "SET flushed 1",
            "FLUSHDB",
            "SET kept 1",
        ] {
            let reply = c.call(&line.split(' ').collect::<Vec<_>>());
            assert_eq!(reply.error(), None, "{line}");
        }
        let before = server.all();
        let set = directory.display().to_string();
        let taken = cluster.run(["import", "--from", &set, "--json"]).json();
        assert_eq!(taken["records"], before.len());
        let file = |name: &str| directory.join(name).display().to_string();
        cluster.run(["export", "--to", &file("back.rdb")]).ok();
        let back = Server::start(&directory, "back.rdb");
        assert!(back.all() == before, "keys, values or deadlines differ");
        drop(back);
        // Another type, and an end that is cut off.
        c.call(&["RPUSH", "list", "a"]);
        c.call(&["SET", "last", "x"]);
        drop(server);
        let refused = cluster.run(["import", "--from", &set]);
        refused.fails(
            1,
            &["list: 1 (\"list\")", "nothing was written", "--skip-types"],
        );
        let logs = directory.join("appendonlydir");
        let names = fs::read_dir(&logs)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let names: Vec<_> = names.collect();
        let named = |end: &str| {
            let is_it = |path: &&std::path::PathBuf| path.display().to_string().ends_with(end);
            names.iter().find(is_it).unwrap().clone()
        };
        let last = fs::OpenOptions::new()
            .write(true)
            .open(named(".incr.aof"))
            .unwrap();
        last.set_len(last.metadata().unwrap().len() - 3).unwrap();
        for table in ["0", "3", "4", "8", "9", "15"] {
            cluster
                .run(["table", "drop", &format!("redis:{table}")])
                .ok();
        }
        no_tables(&cluster);
        let cut = cluster.run(["import", "--from", &set, "--skip-types"]).ok();
        assert!(cut.stderr.contains("cut off"), "{}", cut.stderr);
        let mut c = cluster.connect(0);
        c.call(&["SELECT", "9"]);
        assert_eq!(c.call(&["GET", "kept"]), Reply::bulk("1"));
        assert_eq!(c.call(&["GET", "last"]), Reply::Nil);
        // Damage is another thing.
        let base = named(".base.rdb");
        let mut bytes = fs::read(&base).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&base, bytes).unwrap();
        let refused = cluster.run(["import", "--from", &set, "--skip-types"]);
        refused.fails(1, &[".base.rdb", "byte ", "nothing was written"]);
    }

    #[test]
    fn keys_and_deadlines_go_to_pluvio_and_back() {
        let cluster = Setup::servers(1).start();
        let directory = cluster.directory().join("redis");
        fs::create_dir(&directory).unwrap();
        let server = Server::start(&directory, "dump.rdb");
        let count = fill(&server);
        let before = server.all();
        assert_eq!(before.len() as u64, count);
        let file = |name: &str| directory.join(name).display().to_string();
        let taken = cluster.run(["import", "--from", &file("dump.rdb"), "--json"]);
        assert_eq!(taken.json()["records"], count);
        let given = cluster.run(["export", "--to", &file("back.rdb"), "--json"]);
        assert_eq!(given.json()["objects"], count);
        let back = Server::start(&directory, "back.rdb");
        assert!(back.all() == before, "keys, values or deadlines differ");
        // The same from the running server, of one database.
        for database in ["0", "3", "15"] {
            let table = format!("redis:{database}");
            cluster.run(["table", "drop", &table]).ok();
        }
        no_tables(&cluster);
        let taken = cluster.run(["import", "--from", &server.address("/3"), "--json"]);
        assert_eq!(taken.json()["records"], 500);
        let mut c = server.try_connect().unwrap();
        c.call(&["RPUSH", "l", "a"]);
        let refused = cluster.run(["import", "--from", &server.address("")]);
        let told = refused.fails(1, &["list: 1 (\"l\")", "--skip-types"]);
        assert!(
            !told.contains("p%40ss") && !told.contains(PASSWORD),
            "{told}"
        );
        let taken = cluster.run([
            "import",
            "--from",
            &server.address(""),
            "--skip-types",
            "--json",
        ]);
        let summary = taken.json();
        assert_eq!(
            (&summary["records"], &summary["left_out"]),
            (&json!(count), &json!(1))
        );
        cluster.run(["export", "--to", &file("again.rdb")]).ok();
        let again = Server::start(&directory, "again.rdb");
        assert!(again.all() == before, "keys, values or deadlines differ");
        let wrong = format!("redis://:wrong@127.0.0.1:{}", server.port);
        cluster
            .run(["import", "--from", &wrong])
            .fails(1, &["AUTH", "WRONGPASS"]);
    }
}
