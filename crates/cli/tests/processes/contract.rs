//! The contract of the command line: names, flags, JSON fields, exit codes.

use crate::support::cluster::{Cluster, Turn};
use crate::support::program::{Running, binary, command, command_through, run, runs, signal};
use crate::support::{Reply, Setup, http, pluvio, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports in a row that were free a moment ago. No two tests of this process get the same.
pub fn free_ports(count: u16) -> u16 {
    /// Ports below those that the kernel gives out by itself.
    const PORTS: u32 = 10_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Other processes mostly begin elsewhere.
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..PORTS / u32::from(count) {
        let place = TAKEN.fetch_add(u32::from(count), Ordering::Relaxed);
        let first = 20_000 + (start.wrapping_add(place) % PORTS) as u16;
        let all = first..first + count;
        let held: Vec<_> = all
            .map(|port| TcpListener::bind(("127.0.0.1", port)))
            .collect();
        if held.iter().all(Result::is_ok) {
            return first;
        }
    }
    panic!("no free ports");
}

#[test]
fn dev_says_where_everything_is_and_ends_when_asked() {
    let redis = free_ports(7);
    let admin = redis + 3;
    let ports = [redis.to_string(), admin.to_string()];
    let flags = ["--redis-port", &ports[0], "--admin-port", &ports[1]];
    let mut setup = Setup::servers(3);
    setup.flags.extend(flags.map(str::to_owned));
    let mut cluster = setup.start();
    let ready = cluster.ready().clone();
    assert_eq!(ready["ready"], true);
    let data = cluster.data().display().to_string();
    assert!(runs(cluster.coordinator_pid(), &data), "{ready}");
    TcpStream::connect(cluster.coordinator()).unwrap();
    let mut ids: Vec<u64> = Vec::new();
    for server in 0..3 {
        let entry = &cluster.servers()[server];
        ids.push(entry["id"].as_u64().unwrap());
        assert!(runs(cluster.pid(server), &data), "{ready}");
        TcpStream::connect(entry["addr"].as_str().unwrap()).unwrap();
        let expected = format!("127.0.0.1:{}", usize::from(redis) + server);
        assert_eq!(entry["redis"], json!(expected), "the ports count up");
        let pong = cluster.connect(server).call(&["PING"]);
        assert_eq!(pong, Reply::Simple("PONG".into()));
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ready}");
    admin_ports(admin);

    let pids: Vec<u32> = (0..3).map(|s| cluster.pid(s)).collect();
    cluster.stop();
    for pid in pids {
        assert!(!runs(pid, &data), "a server is left");
    }
    // The same data again is a cold start, and the number of servers is known.
    cluster.restart();
    assert_eq!(cluster.servers().len(), 3);
    // Nobody outlives a parent that is killed.
    let pid = cluster.pid(0);
    cluster.dev().kill();
    wait_for("the children to be gone", || {
        (!runs(pid, &data)).then_some(()).ok_or("one runs".into())
    });
}

/// Whoever started a process may be gone when it is ready, or the disk full that its output goes
/// to.
#[test]
fn processes_that_cannot_say_that_they_are_ready_serve() {
    let _turn = Turn::take();
    let directory = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_ports(1));
    let unheard = |arguments: &[&str], data: &str| {
        let mut shell = command_through("sh");
        shell
            .args(["-c", "exec \"$0\" \"$@\" >/dev/full"])
            .arg(binary())
            .args(arguments)
            .args(["--json", "--data"])
            .arg(directory.path().join(data));
        Running::spawn(&mut shell)
    };
    let mut coordinator = unheard(&["coordinator", "--listen", &address], "coordinator");
    let mut of_server = vec!["server", "--coordinator", &address];
    of_server.extend(["--memory", "48MiB", "--replicas", "1"]);
    let mut first = unheard(&of_server, "server-1");
    let mut second = command();
    let parent = std::process::id().to_string();
    second.args(of_server).args(["--json", "--parent", &parent]);
    second.arg("--data").arg(directory.path().join("server-2"));
    // A pipe whose reader is gone.
    let mut second = second
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(second.stdout.take());
    wait_for("the cluster to serve", || {
        let status = pluvio([
            "--coordinator",
            &address,
            "--timeout",
            "2s",
            "status",
            "--json",
        ]);
        let up = status.text().matches("\"answers\":true").count();
        (up == 2)
            .then_some(())
            .ok_or(status.text() + &status.stderr)
    });
    pluvio(["--coordinator", &address, "table", "create", "t"]).ok();
    pluvio(["--coordinator", &address, "put", "t", "k", "v"]).ok();
    assert!(coordinator.is_alive() && first.is_alive());
    assert!(second.try_wait().unwrap().is_none());
    for process in [&coordinator, &first] {
        wait_for("the trace", || {
            let said = process.stderr();
            let told = said.contains("does not take the line");
            told.then_some(()).ok_or(said)
        });
    }
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn closing_the_terminal_stops_a_cluster() {
    let mut cluster = Setup::servers(2).start();
    let data = cluster.data().display().to_string();
    let pids = [cluster.pid(0), cluster.pid(1), cluster.coordinator_pid()];
    let dev = cluster.dev().pid();
    signal(dev, Signal::HUP);
    if hang_ups_are_ignored() {
        // As `nohup` wants it, under which these tests run.
        cluster.run(["status"]).ok();
        assert!(pids.into_iter().all(|pid| runs(pid, &data)));
        signal(dev, Signal::TERM);
    }
    assert_eq!(cluster.dev().wait_end(), Some(0), "it ends by itself");
    assert!(!pids.into_iter().any(|pid| runs(pid, &data)));
}

/// Whether this process, and so its children, were started to ignore SIGHUP.
fn hang_ups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 1 == 1
}

fn admin_ports(first: u16) {
    for port in first..first + 4 {
        let address = format!("127.0.0.1:{port}");
        for (path, words) in [
            ("/healthz", &["HTTP/1.1 200"][..]),
            ("/readyz", &["HTTP/1.1 200"]),
            ("/metrics", &["HTTP/1.1 200", "# TYPE pluvio_", "# EOF"]),
            ("/nothing", &["HTTP/1.1 404"]),
        ] {
            // A server is confirmed as a member a moment after it has joined.
            wait_for("the page", || {
                let answer = http::get(&address, path);
                let is_there = words.iter().all(|word| answer.contains(word));
                is_there
                    .then_some(())
                    .ok_or_else(|| format!("{address}{path}: {answer}"))
            });
        }
        // The coordinator comes first, then the servers.
        let metrics = http::get(&address, "/metrics");
        let of_cluster = metrics.contains("pluvio_cluster_servers_up 3");
        assert_eq!(of_cluster, port == first, "{metrics}");
        assert_eq!(metrics.contains("pluvio_memory_total_bytes"), port != first);
    }
}

#[test]
fn commands_keep_their_words_and_exit_codes() {
    let cluster = Setup::servers(2).start();
    tables(&cluster);
    objects(&cluster);
    conditions(&cluster);
    scans(&cluster);
    who_wants_no_more_is_left_in_peace(&cluster);
    status_has_its_fields(&cluster);
    top_keys_are_told(&cluster);
    a_redis_port_that_was_free_is_told(&cluster);
    options_come_from_file_environment_and_flags(&cluster);
}

fn tables(cluster: &Cluster) {
    let run = |arguments: &[&str]| cluster.run(arguments);
    let created = run(&["table", "create", "things", "--json"]).json();
    assert_eq!(created["name"], "things");
    let tablets = created["tablets"].as_array().unwrap().len();
    assert!(tablets >= 2, "spread over the servers: {created}");
    assert_eq!(created["created"], true);
    // Creating it again is no error.
    let again = run(&["table", "create", "things", "--json"]).json();
    assert_eq!(again["created"], false);
    let said = run(&["table", "create", "things"]).ok().text();
    assert!(said.contains("was there already"), "{said}");
    let split = run(&["table", "split", "things", "--json"]).json();
    assert_eq!(split["tablets"].as_array().unwrap().len(), tablets + 1);
    let at = run(&["table", "split", "things", "--at", "1234", "--json"]).json();
    assert_eq!(at["tablets"][1]["first"], "0000000000001234", "{at}");
    run(&["table", "split", "things", "--at", "xyz"]).fails(2, &["--at"]);
    let listed = run(&["table", "list", "--json"]).json();
    assert_eq!(listed["tables"].as_array().unwrap().len(), 1);
    let shown = run(&["table", "list"]).ok().text();
    assert!(shown.contains("things"), "{shown}");
    run(&["table", "create", "gone"]).ok();
    run(&["table", "drop", "gone"]).ok();
    run(&["table", "drop", "gone"]).fails(1, &["error: ", "gone"]);
    run(&["get", "gone", "k"]).fails(1, &["error: ", "pluvio table list"]);
    for write in [
        &["put", "gone", "k", "v"][..],
        &["incr", "gone", "k"],
        &["table", "set", "gone", "--quota-ops", "9"],
    ] {
        run(write).fails(1, &["error: ", "`pluvio table create gone` makes it"]);
    }
    run(&["table", "create", ""]).fails(1, &["error: "]);
}

fn objects(cluster: &Cluster) {
    let run = |arguments: &[&str]| cluster.run(arguments);
    run(&["get", "things", "a"]).fails(1, &["error: not found"]);
    run(&["put", "things", "a", "one"]).ok();
    let got = run(&["get", "things", "a"]).ok();
    assert_eq!(got.stdout, b"one", "the value and nothing else");
    let got = run(&["get", "things", "a", "--json"]).json();
    assert_eq!((&got["key"], &got["value"]), (&json!("a"), &json!("one")));
    let first = got["version"].as_u64().unwrap();
    let put = run(&["put", "things", "a", "two", "--json"]).json();
    assert_eq!(put["replaced"], first);
    assert!(put["version"].as_u64().unwrap() > first);
    // Any bytes, from standard input and in hexadecimal digits.
    let binary: Vec<u8> = (0..=255).collect();
    cluster
        .run_with(["put", "things", "bin", "-"], &binary)
        .ok();
    assert_eq!(run(&["get", "things", "bin"]).ok().stdout, binary);
    run(&["put", "things", "00ff0a", "x", "--key-hex"]).ok();
    let got = run(&["get", "things", "00FF0A", "--key-hex", "--json"]).json();
    assert_eq!(got["key_base64"], "AP8K");
    run(&["get", "things", "0", "--key-hex"]).fails(2, &["--key-hex"]);
    // Deleting, also an object that does not exist.
    let deleted = run(&["delete", "things", "a", "--json"]).json();
    assert_eq!(deleted["deleted"], true);
    run(&["delete", "things", "a"]).ok();
    run(&["get", "things", "a"]).fails(1, &["not found"]);
    // A deleted object's version still grows.
    let again = run(&["put", "things", "a", "three", "--json"]).json();
    assert!(again["version"].as_u64() > put["version"].as_u64());

    assert_eq!(run(&["incr", "things", "n"]).ok().text(), "1\n");
    assert_eq!(run(&["incr", "things", "n", "-5"]).ok().text(), "-4\n");
    let incremented = run(&["incr", "things", "n", "10", "--json"]).json();
    assert_eq!(incremented["value"], 6);
    run(&["incr", "things", "a"]).fails(1, &["error: table things, key a: "]);
    run(&["incr", "things", "n", "much"]).fails(2, &["error: ", "number"]);
    assert_eq!(run(&["incr", "things", "f", "0.5"]).ok().text(), "0.5\n");
}

fn conditions(cluster: &Cluster) {
    let run = |arguments: &[&str]| cluster.run(arguments);
    let put = run(&["put", "things", "c", "1", "--if-absent", "--json"]).json();
    let version = put["version"].to_string();
    run(&["put", "things", "c", "2", "--if-absent"]).fails(1, &["not done", &version]);
    run(&["put", "things", "c", "2", "--if-version", "999999"]).fails(1, &["not done"]);
    run(&["put", "things", "c", "2", "--if-version", &version]).ok();
    run(&["delete", "things", "c", "--if-version", &version]).fails(1, &["not done"]);
    run(&[
        "put",
        "things",
        "c",
        "3",
        "--if-absent",
        "--if-version",
        "1",
    ])
    .fails(2, &["--if-absent"]);
    assert_eq!(run(&["get", "things", "c"]).ok().text(), "2");
}

/// As `pluvio scan | head` closes the pipe, before anything is written.
fn who_wants_no_more_is_left_in_peace(cluster: &Cluster) {
    for arguments in [
        &["scan", "scanned"][..],
        &["export", "scanned", "-"],
        &["status"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = cluster.command();
        let command = command.args(arguments).stdout(writer);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        assert_eq!(said, "", "{arguments:?}");
    }
}

fn scans(cluster: &Cluster) {
    cluster.run(["table", "create", "scanned"]).ok();
    for n in 0..20 {
        let (key, value) = (format!("k{n}"), format!("v\t{n}"));
        cluster.run(["put", "scanned", &key, &value]).ok();
    }
    let text = cluster.run(["scan", "scanned"]).ok().text();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> = (0..20).map(|n| format!("k{n}\tv\\t{n}")).collect();
    expected.sort();
    assert_eq!(lines, expected);
    for limit in ["0", "7", "100"] {
        let text = cluster
            .run(["scan", "scanned", "--limit", limit])
            .ok()
            .text();
        let wanted = limit.parse::<usize>().unwrap().min(20);
        assert_eq!(text.lines().count(), wanted);
    }
    let text = cluster
        .run(["scan", "scanned", "--prefix", "k1", "--json"])
        .ok()
        .text();
    let objects: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(objects.len(), 11, "{text}");
    assert!(objects.iter().all(|o| o["version"].as_u64().unwrap() > 0));
    let text = cluster.run(["scan", "scanned", "--keys-only"]).ok().text();
    assert!(!text.contains('v'), "{text}");
}

fn status_has_its_fields(cluster: &Cluster) {
    let status = cluster.status();
    let has = |value: &Value, fields: &[&str]| {
        for field in fields {
            assert!(value.get(field).is_some(), "no {field} in {value}");
        }
    };
    has(
        &status,
        &[
            "cluster",
            "servers",
            "tables",
            "recoveries",
            "server_list_version",
        ],
    );
    for server in status["servers"].as_array().unwrap() {
        has(
            server,
            &[
                "id",
                "state",
                "pid",
                "addr",
                "redis",
                "admin",
                "memory_total",
                "memory_log",
                "memory_live",
                "memory_index",
                "objects",
                "tablets",
                "segments",
                "segments_under_replicated",
                "replicas_wanted",
                "replicas_needed",
                "backups_up",
                "writes_wait",
                "frames",
                "frame_bytes",
                "frames_damaged",
                "requests",
            ],
        );
        assert_eq!(server["state"], "up");
        assert_eq!(server["memory_total"], 64 << 20);
    }
    for table in status["tables"].as_array().unwrap() {
        has(table, &["id", "name", "tablets"]);
        has(&table["tablets"][0], &["first", "last", "server", "state"]);
    }
    let text = cluster.run(["status"]).ok().text();
    assert!(
        text.contains("2 servers up") && text.contains("things"),
        "{text}"
    );
}

fn top_keys_are_told(cluster: &Cluster) {
    let run = |arguments: &[&str]| cluster.run(arguments);
    let mut redis = cluster.connect(0);
    redis.call(&[&b"SET"[..], b"\xff\n", &[7; 70_000]]);
    for _ in 0..500 {
        redis.call(&["GET", "hot"]);
    }
    let top = run(&["top", "keys", "--table", "redis:0", "--json"]).json();
    assert_eq!((&top["by"], &top["silent"]), (&json!("reads"), &json!([])));
    let hot = &top["keys"][0];
    assert_eq!(
        (&hot["table"], &hot["key"]),
        (&json!("redis:0"), &json!("hot"))
    );
    assert_eq!(
        (&hot["key_bytes"], hot["server"].is_u64()),
        (&json!(3), true)
    );
    let range = hot["range"].as_array().unwrap();
    let bounds = range[0].as_f64().unwrap()..=range[1].as_f64().unwrap();
    assert!(bounds.contains(&hot["per_s"].as_f64().unwrap()), "{hot}");
    assert_eq!(top["servers"].as_array().unwrap().len(), 2, "{top}");
    let text = run(&["top", "keys"]).ok().text();
    assert!(text.contains("reads/s") && text.contains("hot"), "{text}");
    let text = run(&["top", "keys", "--by", "bytes", "--count", "1"])
        .ok()
        .text();
    assert!(
        text.contains("\\xff\\n") && text.contains("68.4KiB"),
        "{text}"
    );
    run(&["top", "keys", "--count", "0"]).fails(2, &["--count"]);
    run(&["top", "keys", "--table", "nosuch"]).fails(1, &["error: ", "nosuch"]);
}

fn a_redis_port_that_was_free_is_told(cluster: &Cluster) {
    let address = cluster.redis(0);
    let (_, port) = address.rsplit_once(':').unwrap();
    let mut redis = cluster.connect(0);
    let info = redis.call(&["INFO", "server"]);
    let Reply::Bulk(info) = info else {
        panic!("{info:?}");
    };
    let info = String::from_utf8(info.into_owned()).unwrap();
    assert!(info.contains(&format!("tcp_port:{port}\r\n")), "{info}");
    let config = redis.call(&["CONFIG", "GET", "port"]);
    let expected = [Reply::bulk("port"), Reply::bulk(port)];
    assert_eq!(config, Reply::Array(expected.into()));
}

fn options_come_from_file_environment_and_flags(cluster: &Cluster) {
    let file = cluster.directory().join("pluvio.toml");
    let nowhere = "127.0.0.1:1";
    let config = file.to_str().unwrap();
    let with = |coordinator: &str| format!("[global]\ncoordinator = \"{coordinator}\"\n");
    let list = |environment: Option<&str>, flags: &[&str]| {
        let mut command = command();
        if let Some(address) = environment {
            command.env("PLUVIO_COORDINATOR", address);
        }
        command.args(["table", "list", "--timeout", "500ms", "--config", config]);
        run(command.args(flags), b"").code
    };
    let there = cluster.coordinator();
    fs::write(&file, with(there)).unwrap();
    assert_eq!(list(None, &[]), Some(0), "the file wins over the default");
    assert_eq!(
        list(Some(nowhere), &[]),
        Some(1),
        "the environment wins over the file"
    );
    fs::write(&file, with(nowhere)).unwrap();
    assert_eq!(list(None, &[]), Some(1));
    assert_eq!(list(Some(there), &[]), Some(0));
    let flag = ["--coordinator", there];
    assert_eq!(list(Some(nowhere), &flag), Some(0), "flags win over all");
    fs::write(&file, "[global]\ncoordinater = \"x\"\n").unwrap();
    pluvio(["status", "--config", config]).fails(2, &["error: ", "coordinater", config]);
    fs::write(&file, "[dev]\nservers = \"many\"\n").unwrap();
    pluvio(["dev", "--config", config]).fails(2, &["error: ", "many", "not a number", config]);
    let mut of_environment = command();
    of_environment.args(["dev", "--config", config, "--servers", "2"]);
    of_environment.env("PLUVIO_REPLICAS", "abc");
    run(&mut of_environment, b"").fails(2, &["error: ", "not a number", "PLUVIO_REPLICAS"]);
    fs::write(&file, "[global\n").unwrap();
    pluvio(["status", "--config", config]).fails(2, &["error: ", config, "line 1"]);
    pluvio(["status", "--config", "/nowhere/x.toml"]).fails(2, &["error: ", "/nowhere/x.toml"]);
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_what_is_wrong() {
    for (arguments, words) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["status", "--frobnicate"], "--frobnicate"),
        (&["dev", "--servers", "0"], "--servers"),
        (&["dev", "--servers", "many"], "many"),
        (&["dev", "--memory", "lots"], "lots"),
        (&["dev", "--durability", "eternal"], "eternal"),
        (
            &[
                "dev",
                "--redis-port",
                "65535",
                "--servers",
                "3",
                "--data",
                "/tmp",
            ],
            "--redis-port",
        ),
        (&["server"], "--data"),
        (&["server", "--data", "x", "--listen", "foo"], "host:port"),
        (
            &["server", "--data", "x", "--redis", "127.0.0.1:99999"],
            "host:port, for example 127.0.0.1:6379",
        ),
        (
            &["server", "--data", "x", "--replicas", "99999999"],
            "0..=16",
        ),
        (&["server", "--data", "x", "--rack", ""], "--rack"),
        (
            &["server", "--data", "x", "--redis-connections-max", "0"],
            "--redis-connections-max",
        ),
        (&["incr", "t", "k", "99999999999999999999"], "no integer"),
        (&["get", "table"], "<KEY>"),
        (&["import", "t", "f"], "--format"),
        (&["import", "t", "f", "--format", "xml"], "xml"),
        (
            &["import", "t", "f", "--format", "lines", "--key", "k"],
            "--key",
        ),
        (&["status", "--timeout", "soon"], "soon"),
        (&["status", "--timeout", "0s"], "--timeout"),
        (&["status", "--coordinator", ""], "empty"),
        (&["status", "--coordinator", "host"], "host:port"),
        (&["status", "--coordinator", "host:99999"], "host:port"),
        (
            &[
                "dev",
                "--servers",
                "2",
                "--replicas",
                "9",
                "--min-replicas",
                "8",
            ],
            "8 backups, and with --servers 2 there are 1",
        ),
        (
            &["dev", "--replicas", "2", "--min-replicas", "3"],
            "min-replicas 3 is more than replicas 2",
        ),
        (&["dev", "--metadata-user", "u"], "knows no users"),
    ] {
        pluvio(arguments).fails(2, &["error: ", words]);
    }
    let version = pluvio(["--version"]).ok().text();
    assert!(version.starts_with("pluvio "), "{version}");
    for subcommand in [
        "dev",
        "server",
        "coordinator",
        "status",
        "table",
        "get",
        "import",
        "bench",
    ] {
        pluvio([subcommand, "--help"]).ok();
    }
}

#[test]
fn a_cluster_that_is_not_there_is_told() {
    for arguments in [
        &["status"][..],
        &["get", "t", "k"],
        &["table", "list"],
        &["scan", "t"],
    ] {
        let mut command = command();
        command
            .args(arguments)
            .args(["--timeout", "300ms", "--coordinator", "127.0.0.1:1"]);
        run(&mut command, b"").fails(1, &["error: ", "--coordinator"]);
    }
    let late = ["--timeout", "1500ms", "--coordinator", "127.0.0.1:1"];
    let words = ["tries for 1.5s at most", "error: "];
    pluvio(["status"].into_iter().chain(late)).fails(1, &words);
    let unknown = ["--timeout", "300ms", "--coordinator", "nohost.invalid:7700"];
    pluvio(["status"].into_iter().chain(unknown)).fails(1, &["resolve host \"nohost.invalid\""]);
    pluvio(["import", "t", "/nowhere/file", "--format", "csv"])
        .fails(1, &["error: ", "/nowhere/file"]);
}

#[test]
fn the_demo_verifies_what_it_shows_and_cleans_up() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().unwrap();
    let mut demo = command();
    demo.args(["demo", "--json", "--servers", "3", "--memory", "96MiB"]);
    let facts = run(demo.env("TMPDIR", folder.path()), b"").json();
    assert_eq!(facts["ok"], true, "{facts}");
    let records = facts["imported"]["records"].as_u64().unwrap();
    assert!(records >= 100_000, "{facts}");
    for step in ["read_back", "verified"] {
        assert_eq!(facts[step]["records"], records, "{facts}");
        assert_eq!(facts[step]["wrong"], 0, "{facts}");
    }
    assert_eq!(facts["load"]["lost_writes"], 0, "{facts}");
    assert!(facts["load"]["acknowledged_writes"].as_u64().unwrap() > 0);
    assert!(
        facts["recovery"]["objects"].as_u64().unwrap() > 0,
        "{facts}"
    );
    assert!(facts["recovery"]["mb_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "files are left"
    );
}
