//! Commands for operators: logs of commands, times, pauses, MONITOR, lists of connections, INFO.

use crate::bench::{Bench, Connection, encode};
use pluvio_client::Client;
use pluvio_client::testing::FakeCluster;
use pluvio_redis::RedisOptions;
use pluvio_units::ServerId;
use std::time::Duration;

/// The number of a field of INFO.
fn field(c: &mut Connection, section: &str, name: &str) -> String {
    let text = c.say(&format!("INFO {section}"));
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} is not in {text}"))
        .to_owned()
}

#[test]
fn slow_commands_are_logged_with_their_arguments() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    assert_eq!(c.say("SLOWLOG LEN"), ":0\r\n");
    c.say("CLIENT SETNAME me");
    // The other servers are 20 ms away.
    bench.cluster.set_latency(Duration::from_millis(20));
    c.say("SET k v");
    c.say("PING");
    c.say("GET k");
    assert_eq!(c.say("SLOWLOG LEN"), ":2\r\n");
    let log = c.say("SLOWLOG GET 1");
    assert!(log.starts_with("*1\r\n*6\r\n:1\r\n:"), "{log}");
    assert!(log.contains("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"), "{log}");
    assert!(
        log.ends_with("$15\r\n127.0.0.1:40001\r\n$2\r\nme\r\n"),
        "{log}"
    );
    assert!(c.say("COMMANDLOG GET -1 slow").starts_with("*2\r\n"));
    assert_eq!(c.say("CONFIG SET slowlog-max-len 1"), "+OK\r\n");
    assert_eq!(c.say("SLOWLOG LEN"), ":1\r\n");
    assert_eq!(c.say("CONFIG SET slowlog-log-slower-than -1"), "+OK\r\n");
    assert_eq!(c.say("SLOWLOG RESET"), "+OK\r\n");
    c.say("GET k");
    assert_eq!(c.say("SLOWLOG LEN"), ":0\r\n");
    c.say("CONFIG SET slowlog-log-slower-than 0");
    c.say("AUTH default secret");
    let log = c.say("SLOWLOG GET 1");
    assert!(
        log.contains("(redacted)") && !log.contains("secret"),
        "{log}"
    );
}

#[test]
fn large_commands_and_replies_are_logged() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.say("CONFIG SET commandlog-request-larger-than 1000 commandlog-reply-larger-than 1000");
    let value = "v".repeat(2000);
    c.say(&format!("SET k {value}"));
    c.say("GET k");
    c.say("STRLEN k");
    for (kind, name) in [("large-request", "SET"), ("large-reply", "GET")] {
        let length = c.say(&format!("COMMANDLOG LEN {kind}"));
        assert_eq!(length, ":1\r\n", "{kind}");
        let log = c.say(&format!("COMMANDLOG GET 1 {kind}"));
        assert!(log.contains(&format!("$3\r\n{name}\r\n")), "{log}");
        assert_eq!(c.say(&format!("COMMANDLOG RESET {kind}")), "+OK\r\n");
    }
    let unknown = "-ERR type should be one of the following: slow, large-request, large-reply\r\n";
    assert_eq!(c.say("COMMANDLOG LEN fast"), unknown);
}

#[test]
fn writes_that_wait_for_replicas_are_counted_with_their_waits() {
    let mut bench = Bench::local();
    let (mut c, mut look) = (bench.connect(), bench.connect());
    look.say("SET warm up");
    look.say("CONFIG SET commandlog-request-larger-than 1000 slowlog-log-slower-than 20000");
    bench.cluster.hold_local();
    let value = "v".repeat(2000);
    c.push(&[encode(&["SET", "k", &value]), encode(&["GET", "none"])].concat());
    c.settle();
    assert!(c.take().is_empty());
    assert_eq!(look.say("COMMANDLOG LEN large-request"), ":1\r\n");
    let wait = bench.cluster.parts().clock.sleep(Duration::from_millis(50));
    bench.cluster.run(wait);
    bench.cluster.make_durable(1000);
    assert_eq!(c.replies(2), [&b"+OK\r\n"[..], b"$-1\r\n"]);
    let set = field(&mut look, "latencystats", "latency_percentiles_usec_set");
    let most: f64 = set.rsplit('=').next().unwrap().parse().unwrap();
    assert!((50_000.0..51_000.0).contains(&most), "{set}");
    let log = look.say("SLOWLOG GET");
    let parts =
        "*2\r\n$3\r\nSET\r\n$53\r\n... (waited for replicas; the arguments are not kept)\r\n";
    assert!(log.contains(parts), "{log}");
    assert_eq!(field(&mut look, "stats", "keyspace_misses"), "1");
}

#[test]
fn commands_are_counted_timed_and_reset() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    bench.cluster.set_latency(Duration::from_millis(2));
    c.say("SET k x");
    for _ in 0..3 {
        c.say("GET k");
    }
    c.say("GET none");
    c.say("INCR k");
    c.say("GET");
    c.say("NOSUCH");
    let get = field(&mut c, "commandstats", "cmdstat_get");
    assert!(get.starts_with("calls=4,usec=") && get.ends_with(",rejected_calls=1,failed_calls=0"));
    let incr = field(&mut c, "commandstats", "cmdstat_incr");
    assert!(incr.ends_with(",rejected_calls=0,failed_calls=1"), "{incr}");
    assert_eq!(field(&mut c, "errorstats", "errorstat_ERR"), "count=3");
    assert_eq!(field(&mut c, "stats", "keyspace_hits"), "3");
    assert_eq!(field(&mut c, "stats", "keyspace_misses"), "1");
    let latency = field(&mut c, "latencystats", "latency_percentiles_usec_get");
    let median: f64 = latency.split(['=', ',']).nth(1).unwrap().parse().unwrap();
    assert!((4000.0..4100.0).contains(&median), "{latency}");
    let histogram = c.say("LATENCY HISTOGRAM get nosuch client");
    assert!(
        histogram.starts_with("*2\r\n$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:4\r\n"),
        "{histogram}"
    );
    assert!(histogram.ends_with(":4\r\n"), "{histogram}");
    c.say("CONFIG SET latency-tracking-info-percentiles 10");
    assert!(field(&mut c, "latencystats", "latency_percentiles_usec_get").starts_with("p10="));
    let before = bench.service.totals().commands["get"];
    assert_eq!(c.say("CONFIG RESETSTAT"), "+OK\r\n");
    assert!(!c.say("INFO commandstats").contains("cmdstat_get"));
    assert_eq!(c.say("LATENCY HISTOGRAM get"), "*0\r\n");
    assert_eq!(field(&mut c, "stats", "keyspace_hits"), "0");
    assert_eq!(
        bench.service.totals().commands["get"],
        before,
        "metrics only grow"
    );
    c.say("CONFIG SET latency-tracking no");
    c.say("GET k");
    assert_eq!(c.say("LATENCY HISTOGRAM get"), "*0\r\n");
    assert!(field(&mut c, "commandstats", "cmdstat_get").starts_with("calls=1,"));
}

// shows: TIMES-1
#[test]
fn commands_that_are_timed_together_are_all_counted() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.say("SET k v");
    bench.cluster.hold_local();
    bench.cluster.make_durable(1_000_000);
    let names = ["GET k", "STRLEN k", "GET none", "GETBIT k x"];
    let mut bytes = Vec::new();
    for at in 0..40 {
        let parts: Vec<_> = names[at / 10].split(' ').collect();
        bytes.extend(encode(&parts));
    }
    c.push(&bytes);
    assert_eq!(c.replies(40).len(), 40);
    for (name, start, end) in [
        ("cmdstat_get", "calls=20,", ",failed_calls=0"),
        ("cmdstat_strlen", "calls=10,", ",failed_calls=0"),
        ("cmdstat_getbit", "calls=10,", ",failed_calls=10"),
    ] {
        let counted = field(&mut c, "commandstats", name);
        assert!(
            counted.starts_with(start) && counted.ends_with(end),
            "{counted}"
        );
    }
    assert_eq!(field(&mut c, "stats", "keyspace_hits"), "20");
    assert_eq!(field(&mut c, "stats", "keyspace_misses"), "10");
    let executed = bench.cluster.executed_at_once();
    assert!(executed >= 20, "{executed} were done at once");
}

#[test]
fn commands_of_a_transaction_are_counted_when_it_is_done() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    for command in [
        "MULTI", "SET k v", "INCR k", "DISCARD", "MULTI", "SET k v", "INCR k", "EXEC",
    ] {
        c.say(command);
    }
    assert!(field(&mut c, "commandstats", "cmdstat_set").starts_with("calls=1,"));
    let incr = field(&mut c, "commandstats", "cmdstat_incr");
    assert!(
        incr.starts_with("calls=1,") && incr.ends_with("failed_calls=1"),
        "{incr}"
    );
}

// shows: MONITOR-1
#[test]
fn monitor_tells_what_others_run() {
    let mut bench = Bench::local();
    let (mut c, mut monitor) = (bench.connect(), bench.connect());
    assert_eq!(monitor.say("MONITOR"), "+OK\r\n");
    c.say("SELECT 3");
    c.say("SET k \"\u{1}");
    c.say("CONFIG GET save");
    c.say("AUTH default secret");
    monitor.settle();
    let lines = String::from_utf8(monitor.take()).unwrap();
    let told: Vec<_> = lines
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(
        told,
        [
            "[0 127.0.0.1:40001] \"SELECT\" \"3\"",
            "[3 127.0.0.1:40001] \"SET\" \"k\" \"\\\"\\x01\"",
            "[3 127.0.0.1:40001] \"AUTH\" \"(redacted)\" \"(redacted)\"",
        ]
    );
    assert!(c.say("CLIENT LIST").contains("flags=O"));
    assert_eq!(monitor.say("RESET"), "+RESET\r\n");
    c.say("PING");
    monitor.settle();
    assert!(monitor.take().is_empty());
    // One that takes nothing is closed when too much waits for it.
    monitor.say("MONITOR");
    monitor.set_room(1);
    let large = "x".repeat(1 << 20);
    for _ in 0..12 {
        c.say(&format!("ECHO {large}"));
        monitor.settle();
    }
    assert!(monitor.is_closed());
    assert_eq!(c.say("PING"), "+PONG\r\n");
}

/// Each command of a script once, in its order, behind the command that ran it.
#[test]
fn monitor_tells_what_scripts_run() {
    let mut bench = Bench::local();
    let (mut c, mut monitor) = (bench.connect(), bench.connect());
    assert_eq!(monitor.say("MONITOR"), "+OK\r\n");
    // Interrupted twice: for a key that it has not named, and for the time.
    let script = "redis.call('select', 2) redis.call('set', KEYS[1], 'v') redis.call('time') \
                  return redis.call('get', 'b')";
    assert_eq!(c.call(&["EVAL", script, "1", "a"]), b"$-1\r\n");
    // Commands before a failure were run, too, though their changes are taken back.
    let failing = "redis.call('incr', KEYS[1]) return redis.call('nothing')";
    c.call(&["EVAL", failing, "1", "n"]);
    monitor.settle();
    let lines = String::from_utf8(monitor.take()).unwrap();
    let told: Vec<_> = lines
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .filter(|line| !line.contains("EVAL"))
        .collect();
    assert_eq!(
        told,
        [
            "[0 lua] \"select\" \"2\"",
            "[2 lua] \"set\" \"a\" \"v\"",
            "[2 lua] \"time\"",
            "[2 lua] \"get\" \"b\"",
            "[0 lua] \"incr\" \"n\"",
        ]
    );
    assert!(lines.contains("[0 127.0.0.1:40001] \"EVAL\""), "{lines}");
}

#[test]
fn a_pause_holds_up_writes_or_everything() {
    let mut bench = Bench::local();
    let (mut c, mut other) = (bench.connect(), bench.connect());
    c.say("SET k 1");
    assert_eq!(other.say("CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    assert_eq!(c.say("GET k"), "$1\r\n1\r\n");
    c.say("MULTI");
    assert_eq!(c.say("INCR k"), "+QUEUED\r\n");
    c.push(&encode(&["EXEC"]));
    c.settle();
    assert!(c.take().is_empty(), "EXEC would write");
    assert_eq!(other.say("GET k"), "$1\r\n1\r\n");
    assert_eq!(other.say("CLIENT UNPAUSE"), "+OK\r\n");
    assert_eq!(c.replies(1), [b"*1\r\n:2\r\n"]);
    // Scripts may write, as Redis sees them, unless they are called as ones that only read.
    let script = "return redis.call('GET', KEYS[1])";
    let eval = |name| encode(&[name, script, "1", "k"]);
    other.call(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=l\nredis.register_function('f', function() return 1 end)",
    ]);
    other.say("CLIENT PAUSE 100000 WRITE");
    c.push(&eval("EVAL_RO"));
    assert_eq!(c.replies(1), [b"$1\r\n2\r\n"]);
    let in_block = [&encode(&["MULTI"])[..], &eval("EVAL"), &encode(&["EXEC"])].concat();
    for (command, replies) in [
        (eval("EVAL"), vec!["$1\r\n2\r\n"]),
        (encode(&["FCALL", "f", "0"]), vec![":1\r\n"]),
        (
            in_block,
            vec!["+OK\r\n", "+QUEUED\r\n", "*1\r\n$1\r\n2\r\n"],
        ),
    ] {
        let (last, others) = replies.split_last().unwrap();
        c.push(&command);
        c.settle();
        assert_eq!(String::from_utf8(c.take()).unwrap(), others.concat());
        other.say("CLIENT UNPAUSE");
        assert_eq!(c.replies(1), [last.as_bytes()]);
        other.say("CLIENT PAUSE 100000 WRITE");
    }
    other.say("CLIENT UNPAUSE");
    // A pause of everything ends by itself.
    other.say("CLIENT PAUSE 50");
    c.push(&[encode(&["GET", "k"]), encode(&["INCR", "k"])].concat());
    c.settle();
    assert!(c.take().is_empty());
    assert_eq!(c.replies(2), [&b"$1\r\n2\r\n"[..], b":3\r\n"]);
    // And can be ended, although it is one of everything.
    other.say("CLIENT PAUSE 100000 ALL");
    c.push(&encode(&["PING"]));
    c.settle();
    assert!(c.take().is_empty());
    assert_eq!(other.say("CLIENT UNPAUSE"), "+OK\r\n");
    assert_eq!(c.replies(1), [b"+PONG\r\n"]);
}

#[test]
fn connections_are_killed_by_every_filter() {
    let mut bench = Bench::local();
    let (mut me, mut one, mut two) = (bench.connect(), bench.connect(), bench.connect());
    one.say("PING");
    two.say("PING");
    me.say("PING");
    assert_eq!(
        me.say("CLIENT KILL ADDR 127.0.0.1:40002 TYPE pubsub"),
        ":0\r\n"
    );
    assert_eq!(
        me.say("CLIENT KILL USER default LADDR 127.0.0.1:6379 MAXAGE 1000"),
        ":0\r\n"
    );
    bench
        .cluster
        .run(bench.cluster.parts().clock.sleep(Duration::from_secs(2000)));
    let mut young = bench.connect();
    young.say("PING");
    assert_eq!(
        me.say("CLIENT KILL ADDR 127.0.0.1:40002 MAXAGE 1000"),
        ":1\r\n"
    );
    one.settle();
    assert_eq!(me.say("CLIENT KILL MAXAGE 1000 SKIPME yes"), ":1\r\n");
    for c in [&mut one, &mut two] {
        c.settle();
        assert!(c.is_closed());
    }
    assert_eq!(
        me.say("CLIENT KILL MAXAGE 0"),
        "-ERR maxage should be greater than 0\r\n"
    );
    assert_eq!(
        me.say("CLIENT KILL TYPE normal ID 4 USER default"),
        ":1\r\n"
    );
    young.settle();
    assert!(young.is_closed());
    assert_eq!(me.say("CLIENT CAPA redirect"), "+OK\r\n");
    me.say("MULTI");
    me.say("GET k");
    me.say("GET k");
    let mut look = bench.connect();
    assert!(
        look.say("CLIENT LIST ID 3")
            .contains(" flags=x db=0 sub=0 psub=0 ssub=0 multi=2 ")
    );
}

#[test]
fn parameters_are_set_together_or_not_at_all() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    let wrong = c.say("CONFIG SET timeout 60 slowlog-max-len x");
    assert!(
        wrong.contains("(possibly related to argument 'slowlog-max-len')"),
        "{wrong}"
    );
    assert_eq!(
        c.say("CONFIG GET timeout"),
        "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n"
    );
    for (set, get) in [
        ("timeout 60", "*2\r\n$7\r\ntimeout\r\n$2\r\n60\r\n"),
        (
            "notify-keyspace-events xKE",
            "*2\r\n$22\r\nnotify-keyspace-events\r\n$3\r\nxKE\r\n",
        ),
        // What is so stays so.
        ("appendonly no", "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n"),
        (
            "maxmemory-policy noeviction",
            "*2\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n",
        ),
    ] {
        assert_eq!(c.say(&format!("CONFIG SET {set}")), "+OK\r\n", "{set}");
        let name = set.split(' ').next().unwrap();
        assert_eq!(c.say(&format!("CONFIG GET {name}")), get);
    }
    let fixed = c.say("CONFIG SET maxmemory-policy allkeys-lru");
    assert!(
        fixed.ends_with("- can't set immutable config\r\n"),
        "{fixed}"
    );
}

#[test]
fn what_cannot_be_done_says_so_and_does_no_harm() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.say("SET k abc");
    for (command, start) in [
        ("SAVE", "+OK"),
        ("BGSAVE", "+Background saving started"),
        ("BGSAVE SCHEDULE", "+Background saving scheduled"),
        (
            "BGREWRITEAOF",
            "+Background append only file rewriting started",
        ),
        ("SHUTDOWN NOSAVE", "-ERR SHUTDOWN is not allowed"),
        ("SWAPDB 0 1", "-ERR SWAPDB is not supported"),
        ("DEBUG SLEEP 5", "-ERR DEBUG command not allowed"),
        ("OBJECT IDLETIME k", "-ERR the time of the last access"),
        (
            "OBJECT FREQ k",
            "-ERR An LFU maxmemory policy is not selected",
        ),
        ("OBJECT REFCOUNT k", ":1"),
        ("WAITAOF 0 1 0", "*2\r\n:0\r\n:0"),
        (
            "WAITAOF 2 1 0",
            "-ERR value is out of range, value must between 0 and 1",
        ),
        (
            "WAITAOF 1 -1 0",
            "-ERR value is out of range, must be positive",
        ),
        ("WAITAOF 1 1 -1", "-ERR timeout is negative"),
        ("MEMORY PURGE", "+OK"),
        ("MEMORY DOCTOR", "$"),
        ("MEMORY STATS", "*"),
        ("MEMORY MALLOC-STATS", "$"),
        ("LATENCY DOCTOR", "$"),
        ("LOLWUT", "$"),
        ("LOLWUT VERSION 5", "$"),
        ("ACL CAT string", "*"),
        ("OBJECT HELP", "*"),
    ] {
        let reply = c.say(command);
        assert!(reply.starts_with(start), "{command}: {reply}");
    }
    assert!(!c.is_closed());
    let time = c.say("LASTSAVE");
    assert!(time.starts_with(':'), "{time}");
}

#[test]
fn what_is_synced_is_in_files() {
    let cluster = FakeCluster::new(1);
    let client = Client::embedded(
        cluster.parts(),
        cluster.options(),
        cluster.local_master(ServerId(1)),
    );
    let mut options = RedisOptions::default();
    options.synced = true;
    options.debug = true;
    let mut bench = Bench::with(cluster, &client, options);
    let (mut c, mut other) = (bench.connect(), bench.connect());
    assert_eq!(c.say("WAITAOF 1 1 0"), "*2\r\n:1\r\n:1\r\n");
    c.say("SET k 123");
    assert!(
        c.say("DEBUG OBJECT k")
            .contains("encoding:int serializedlength:2 ")
    );
    assert_eq!(c.say("DEBUG SET-ACTIVE-EXPIRE 0"), "+OK\r\n");
    assert_eq!(c.say("DEBUG JMAP"), "-ERR DEBUG JMAP is not supported\r\n");
    assert!(
        c.say("DEBUG SEGFAULT")
            .starts_with("-ERR unknown subcommand or wrong number")
    );
    // Others are served while one sleeps.
    c.push(&encode(&["DEBUG", "SLEEP", "5"]));
    c.settle();
    assert_eq!(other.say("PING"), "+PONG\r\n");
    assert!(c.take().is_empty());
    assert_eq!(c.replies(1), [b"+OK\r\n"]);
}

/// The fields that the exporter for Prometheus, RedisInsight, Sidekiq's page and BullMQ read, as
/// far as the thing exists here.
const READ_BY_OTHERS: &[&str] = &[
    "redis_version",
    "redis_mode",
    "os",
    "process_id",
    "run_id",
    "tcp_port",
    "uptime_in_seconds",
    "uptime_in_days",
    "connected_clients",
    "blocked_clients",
    "maxclients",
    "used_memory",
    "used_memory_human",
    "used_memory_peak",
    "used_memory_peak_human",
    "used_memory_overhead",
    "used_memory_dataset",
    "maxmemory",
    "maxmemory_human",
    "maxmemory_policy",
    "mem_clients_normal",
    "mem_allocator",
    "loading",
    "rdb_changes_since_last_save",
    "rdb_bgsave_in_progress",
    "rdb_last_save_time",
    "rdb_last_bgsave_status",
    "aof_enabled",
    "aof_rewrite_in_progress",
    "aof_last_write_status",
    "total_connections_received",
    "total_commands_processed",
    "instantaneous_ops_per_sec",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "rejected_connections",
    "expired_keys",
    "evicted_keys",
    "keyspace_hits",
    "keyspace_misses",
    "pubsub_channels",
    "pubsub_patterns",
    "latest_fork_usec",
    "total_error_replies",
    "total_reads_processed",
    "total_writes_processed",
    "role",
    "connected_slaves",
    "master_repl_offset",
    "repl_backlog_size",
    "cluster_enabled",
    "db0",
];

#[test]
fn info_has_the_fields_that_others_read() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.say("SET k v");
    let text = c.say("INFO");
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    for name in READ_BY_OTHERS {
        assert!(names.contains(name), "{name} is missing in {text}");
    }
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len(), "a field is there twice");
    assert!(c.say("INFO everything").contains("# Latencystats\r\n"));
}

// shows: GLOB-1
#[test]
fn patterns_of_an_enemy_do_not_hold_up_other_connections() {
    let mut bench = Bench::local();
    let (mut c, mut other) = (bench.connect(), bench.connect());
    let key = "a".repeat(60_000);
    c.say(&format!("SET {key} v"));
    let many = "a".repeat(30_000);
    for command in [vec!["KEYS"], vec!["SCAN", "0", "MATCH"]] {
        let pattern = format!("*{many}?b*");
        let parts = [&command[..], &[&pattern]].concat();
        c.push(&encode(&parts));
        // Between its turns, the other one is answered again and again.
        for _ in 0..20 {
            c.turns(2);
            assert!(c.take().is_empty());
            assert_eq!(other.say("PING"), "+PONG\r\n");
        }
        c.hang_up();
        c.settle();
        c = bench.connect();
    }
    // Plain bytes between stars are found in time in proportion to the key.
    let pattern = format!("*{many}b");
    c.push(&encode(&["KEYS", &pattern]));
    assert_eq!(c.replies(1), [b"*0\r\n"]);
}

#[test]
fn lcs_gives_way_and_is_bounded() {
    let mut bench = Bench::local();
    let (mut c, mut other) = (bench.connect(), bench.connect());
    c.say(&format!("SET a {}", "ab".repeat(2_000)));
    c.say(&format!("SET b {}", "ba".repeat(2_000)));
    c.push(&encode(&["LCS", "a", "b", "LEN"]));
    c.turns(1);
    assert!(c.take().is_empty());
    assert_eq!(other.say("PING"), "+PONG\r\n");
    assert_eq!(c.replies(1), [b":3999\r\n"]);
    c.say(&format!("SET a {}", "a".repeat(20_000)));
    c.say(&format!("SET b {}", "b".repeat(20_000)));
    let refused = c.say("LCS a b");
    assert!(refused.starts_with("-ERR the lengths of the two values, multiplied, are over"));
}
