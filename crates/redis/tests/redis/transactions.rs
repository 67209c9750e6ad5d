//! MULTI, EXEC, WATCH, and commands on several keys at one moment.

use crate::bench::{Bench, Connection, encode};
use crate::updates::converse;
use pluvio_client::testing::FakeCluster;
use pluvio_redis::RedisOptions;
use pluvio_units::KeySlot;
use std::time::Duration;

const OK: &str = "+OK\r\n";
const QUEUED: &str = "+QUEUED\r\n";
const NO_LIST: &str = "*-1\r\n";

#[test]
fn a_block_is_done_as_a_whole_with_a_reply_for_each_command() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        converse(
            &mut c,
            &[
                ("SET {t}n 5", OK),
                ("MULTI", OK),
                ("INCR {t}n", QUEUED),
                ("PING", QUEUED),
                ("SET {t}text abc", QUEUED),
                ("INCR {t}text", QUEUED),
                ("MGET {t}n {t}text {t}none", QUEUED),
                ("SET {t}text x EX", QUEUED),
                ("DEL {t}n {t}n", QUEUED),
                ("EXISTS {t}n {t}text", QUEUED),
                (
                    "EXEC",
                    "*8\r\n:6\r\n+PONG\r\n+OK\r\n\
                     -ERR value is not an integer or out of range\r\n\
                     *3\r\n$1\r\n6\r\n$3\r\nabc\r\n$-1\r\n\
                     -ERR syntax error\r\n:1\r\n:1\r\n",
                ),
                ("GET {t}text", "$3\r\nabc\r\n"),
                ("EXEC", "-ERR EXEC without MULTI\r\n"),
                ("MULTI", OK),
                ("EXEC", "*0\r\n"),
            ],
        );
    }
}

#[test]
fn a_block_with_a_wrong_command_is_not_done() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    for wrong in ["NOSUCH", "GET", "SET k"] {
        converse(&mut c, &[("MULTI", OK), ("SET k 1", QUEUED)]);
        assert!(c.say(wrong).starts_with("-ERR "), "{wrong}");
        let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        converse(&mut c, &[("EXEC", aborted), ("GET k", "$-1\r\n")]);
    }
    converse(
        &mut c,
        &[
            ("MULTI", OK),
            ("MULTI", "-ERR MULTI calls can not be nested\r\n"),
            ("WATCH k", "-ERR WATCH inside MULTI is not allowed\r\n"),
            ("SET k 1", QUEUED),
            ("DISCARD", OK),
            ("GET k", "$-1\r\n"),
            ("MULTI", OK),
            ("SET k 1", QUEUED),
            ("RESET", "+RESET\r\n"),
            ("GET k", "$-1\r\n"),
        ],
    );
}

#[test]
fn a_watched_key_that_changed_lets_nothing_be_done() {
    for mut bench in [Bench::new(), Bench::local()] {
        let (mut c, mut other) = (bench.connect(), bench.connect());
        for (change, is_done) in [
            ("SET {t}k 2", false),
            ("SET {t}k 1", false),
            ("APPEND {t}k x", false),
            ("DEL {t}k", false),
            ("EXPIRE {t}k 100", false),
            ("GET {t}k", true),
            ("SET {t}k 9 NX", true),
            ("SET {t}other 1", true),
            ("FLUSHALL", false),
            ("RENAME {t}k {t}new", false),
        ] {
            c.say("SET {t}k 1");
            c.say("WATCH {t}k");
            other.say(change);
            let (one, none) = ("*1\r\n+OK\r\n", NO_LIST);
            let expected = if is_done { one } else { none };
            converse(
                &mut c,
                &[("MULTI", OK), ("SET {t}done 1", QUEUED), ("EXEC", expected)],
            );
            // EXEC lets go of the key.
            other.say("SET {t}k 3");
            converse(&mut c, &[("MULTI", OK), ("EXEC", "*0\r\n")]);
        }
        // A key that is not there is watched, too.
        c.say("WATCH {t}absent");
        other.say("SET {t}absent 1");
        converse(
            &mut c,
            &[("MULTI", OK), ("PING", QUEUED), ("EXEC", NO_LIST)],
        );
        c.say("WATCH {t}absent");
        other.say("SET {t}absent 1");
        converse(
            &mut c,
            &[("UNWATCH", OK), ("MULTI", OK), ("EXEC", "*0\r\n")],
        );
        // Keys that expire are changed.
        c.say("SET {t}short 1 PX 20");
        c.say("WATCH {t}short");
        let until = bench.cluster.now() + Duration::from_millis(30);
        bench.cluster.run(bench.cluster.at(until, |_| {}));
        converse(
            &mut c,
            &[("MULTI", OK), ("PING", QUEUED), ("EXEC", NO_LIST)],
        );
    }
}

#[test]
fn commands_that_read_first_stand_in_blocks_too() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        converse(
            &mut c,
            &[
                ("SET {t}a 1 EX 100", OK),
                ("MULTI", OK),
                ("INCR {t}a", QUEUED),
                ("RENAME {t}a {t}b", QUEUED),
                ("COPY {t}b {t}c", QUEUED),
                ("COPY {t}b {t}c", QUEUED),
                ("TTL {t}b", QUEUED),
                ("MSETNX {t}b 1 {t}d 2", QUEUED),
                ("MSETNX {t}e 1 {t}d 2", QUEUED),
                ("BITOP OR {t}or {t}c {t}d {t}none", QUEUED),
                ("RENAME {t}none {t}x", QUEUED),
                ("GET {t}c", QUEUED),
                (
                    "EXEC",
                    "*10\r\n:2\r\n+OK\r\n:1\r\n:0\r\n:100\r\n:0\r\n:1\r\n:1\r\n\
                     -ERR no such key\r\n$1\r\n2\r\n",
                ),
                (
                    "MGET {t}a {t}b {t}c {t}d {t}e {t}or",
                    "*6\r\n$-1\r\n$1\r\n2\r\n$1\r\n2\r\n$1\r\n2\r\n$1\r\n1\r\n$1\r\n2\r\n",
                ),
                ("TTL {t}c", ":100\r\n"),
                ("MOVE {t}c 1", ":1\r\n"),
                ("EXISTS {t}c", ":0\r\n"),
                ("COPY {t}b {t}c DB 1", ":0\r\n"),
                ("COPY {t}b {t}c DB 1 REPLACE", ":1\r\n"),
                ("MSETEX 2 {t}x 1 {t}y 2 EX 100 NX", ":1\r\n"),
                ("MSETEX 2 {t}x 1 {t}z 2 NX", ":0\r\n"),
                ("MSETEX 2 {t}x 3 {t}y 4 XX KEEPTTL", ":1\r\n"),
                ("TTL {t}y", ":100\r\n"),
                ("MSETEX 0 {t}x 3", "-ERR invalid numkeys value\r\n"),
            ],
        );
    }
}

#[test]
fn a_copy_goes_to_the_database_that_is_named_last() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("SET {t}a 1", OK),
            ("COPY {t}a {t}b DB 1 DB 2", ":1\r\n"),
            ("COPY {t}a {t}c DB 0 DB 2", ":1\r\n"),
            ("COPY {t}a {t}d DB 2 DB 0", ":1\r\n"),
            (
                "COPY {t}a {t}a DB 2 DB 0",
                "-ERR source and destination objects are the same\r\n",
            ),
            ("EXISTS {t}b {t}c {t}d", ":1\r\n"),
            ("SELECT 1", OK),
            ("EXISTS {t}b {t}c {t}d", ":0\r\n"),
            ("SELECT 2", OK),
            ("MGET {t}b {t}c {t}d", "*3\r\n$1\r\n1\r\n$1\r\n1\r\n$-1\r\n"),
        ],
    );
}

/// MSETNX, MSETEX, BITOP and EVAL of this number of keys.
fn of_many_keys(count: usize) -> [Vec<String>; 4] {
    let keys = || (0..count).map(|n| format!("k{n}"));
    let pairs = || keys().flat_map(|key| [key, "v".to_owned()]);
    let start = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let with = |mut start: Vec<String>, rest: &mut dyn Iterator<Item = String>| {
        start.extend(rest);
        start
    };
    let number = count.to_string();
    [
        with(start(&["MSETNX"]), &mut pairs()),
        with(start(&["MSETEX", &number]), &mut pairs()),
        with(start(&["BITOP", "OR", "k0"]), &mut keys().skip(1)),
        with(start(&["EVAL", "return 7", &number]), &mut keys()),
    ]
}

// shows: OVERLAY-3
#[test]
fn what_reads_first_is_refused_at_once_where_it_names_too_many_keys() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("SET k v");
    c.call(&["EVAL", "return 7", "0"]);
    let before = bench.cluster.sent().len();
    for command in of_many_keys(5000) {
        let reply = String::from_utf8(c.call(&command)).unwrap();
        assert_eq!(
            reply,
            "-ERR a transaction has 5000 steps, at most 4096 are allowed: use several\r\n"
        );
        c.say("MULTI");
        c.call(&command);
        c.say("INCR n");
        assert_eq!(c.say("EXEC"), reply, "nothing of the block is done");
    }
    assert_eq!(bench.cluster.sent().len(), before, "nobody was asked");
    // As many as a transaction may have.
    for (command, reply) in of_many_keys(4096).iter().zip([1, 1, 1, 7]) {
        let expected = format!(":{reply}\r\n");
        assert_eq!(c.call(command), expected.as_bytes(), "{}", command[0]);
    }
    // Together they are more.
    let sum = "return #redis.call('MGET', 'other', unpack(KEYS, 1, 1000))";
    let keys = (0..4096).map(|n| format!("k{n}"));
    let all: Vec<_> = ["EVAL", sum, "4096"]
        .map(str::to_owned)
        .into_iter()
        .chain(keys)
        .collect();
    let reply = String::from_utf8(c.call(&all)).unwrap();
    assert!(
        reply.starts_with("-ERR a transaction has 4097 steps"),
        "{reply}"
    );
    assert_eq!(c.say("EXISTS n"), ":0\r\n");
}

#[test]
fn commands_on_no_key_part_a_block() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("SET old 1", OK),
            ("MULTI", OK),
            ("FLUSHALL", QUEUED),
            ("SET new 1", QUEUED),
            ("DBSIZE", QUEUED),
            ("SELECT 1", QUEUED),
            ("SET other 1", QUEUED),
            ("KEYS *", QUEUED),
            (
                "EXEC",
                "*6\r\n+OK\r\n+OK\r\n:1\r\n+OK\r\n+OK\r\n*1\r\n$5\r\nother\r\n",
            ),
            ("SELECT 0", OK),
            ("KEYS *", "*1\r\n$3\r\nnew\r\n"),
        ],
    );
}

#[test]
fn keys_of_several_servers_change_together() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("SET {t}a 1");
    let slot = |key: &str| KeySlot::of(key.as_bytes());
    let far = (0..100).map(|n| format!("key-{n}"));
    // Some of them are on another server than the first.
    let keys: Vec<String> = far.filter(|key| slot(key) != slot("{t}a")).collect();
    for (n, key) in keys.iter().enumerate() {
        converse(&mut c, &[("MULTI", OK), ("INCR {t}a", QUEUED)]);
        c.say(&format!("SET {key} 1"));
        let reply = c.say("EXEC");
        assert_eq!(reply, format!("*2\r\n:{}\r\n+OK\r\n", n + 2));
        assert_eq!(c.say(&format!("WATCH {key}")), OK);
        c.say(&format!("SET {key} 2"));
        converse(&mut c, &[("MULTI", OK), ("INCR {t}a", QUEUED)]);
        assert_eq!(c.say("EXEC"), "*-1\r\n", "nothing was done");
        assert_eq!(c.say(&format!("RENAME {key} {{t}}b")), OK);
        assert_eq!(c.say("GET {t}b"), "$1\r\n2\r\n");
        let script = "return redis.call('INCR', KEYS[1]) + redis.call('INCR', KEYS[2])";
        assert_eq!(c.call(&["EVAL", script, "2", "{t}b", key]), b":4\r\n");
        c.say(&format!("DEL {key}"));
    }
    assert_eq!(c.say("MSET a 1 b 2 c 3 d 4 e 5"), OK);
    assert_eq!(c.say("DEL a b c d e"), ":5\r\n");
}

#[test]
fn a_hundred_clients_that_read_and_write_in_blocks_lose_no_update() {
    let mut bench = Bench::local();
    let mut connections: Vec<_> = (0..100).map(|_| bench.connect()).collect();
    for _ in 0..10 {
        for c in &mut connections {
            for command in ["MULTI", "INCR n", "RENAME n m", "RENAME m n", "EXEC"] {
                c.push(&encode(&command.split(' ').collect::<Vec<_>>()));
            }
        }
        for c in &mut connections {
            let replies = c.replies(5);
            assert!(replies[4].starts_with(b"*3\r\n:"), "{:?}", replies[4]);
        }
    }
    assert_eq!(bench.connect().say("GET n"), "$4\r\n1000\r\n");
}

#[test]
fn a_block_is_bounded() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.say("MULTI");
    for n in 0..4096 {
        c.push(&encode(&["SET", &n.to_string(), "v"]));
    }
    c.push(&encode(&["SET", "more", "v"]));
    let replies = c.replies(4097);
    assert!(replies[4096].starts_with(b"-ERR a transaction has at most 4096 commands"));
    assert!(c.say("EXEC").starts_with("-EXECABORT "));
    c.say("MULTI");
    let value = vec![b'x'; 1 << 20];
    for n in 0..5 {
        c.call(&[&b"SET"[..], n.to_string().as_bytes(), &value]);
    }
    assert!(c.say("EXEC").starts_with("-ERR a transaction has 5 steps"));
    assert_eq!(c.say("DBSIZE"), ":0\r\n");
}

/// Sends a block of this command, many times, and gives the reply to EXEC.
fn exec_many(c: &mut Connection, command: &str, times: usize, rest: &[&str]) -> Vec<u8> {
    c.push(&encode(&["MULTI"]));
    let commands = core::iter::repeat_n(command, times).chain(rest.iter().copied());
    for command in commands {
        c.push(&encode(&command.split(' ').collect::<Vec<_>>()));
    }
    c.push(&encode(&["EXEC"]));
    c.replies(times + rest.len() + 2).pop().unwrap()
}

// shows: EXEC-1, EXEC-3
#[test]
fn a_block_gives_as_much_wherever_its_keys_are() {
    let large = vec![b'x'; 1 << 20];
    for local in [false, true] {
        let mut bench = if local { Bench::local() } else { Bench::new() };
        let mut c = bench.connect();
        c.call(&[b"SET".as_slice(), b"{t}k", &large]);
        // More than servers give for one transaction, and than they keep of one that changes.
        for (gets, rest) in [
            (6, &[][..]),
            (2, &["INCR {t}n"][..]),
            (6, &["INCR {t}n"][..]),
        ] {
            let reply = exec_many(&mut c, "GET {t}k", gets, rest);
            let head = format!("*{}\r\n$1048576\r\n", gets + rest.len());
            assert!(reply.starts_with(head.as_bytes()), "{local} {gets}");
            assert!(reply.len() > gets * large.len());
        }
        assert_eq!(c.say("GET {t}n"), "$1\r\n2\r\n");
        // An error of one command leaves the others done.
        let reply = exec_many(&mut c, "APPEND {t}k x", 1, &["GET {t}k"]);
        let too_long = "-ERR string exceeds maximum allowed size (1048576 bytes)\r\n";
        assert!(reply.starts_with(format!("*2\r\n{too_long}$1048576\r\n").as_bytes()));
        // A watched key still decides.
        c.say("WATCH {t}k");
        bench.connect().say("SETRANGE {t}k 0 y");
        let reply = exec_many(&mut c, "GET {t}k", 6, &["INCR {t}n"]);
        assert_eq!(reply, NO_LIST.as_bytes());
    }
}

// shows: EXEC-1, EXEC-3, REDIS-4
#[test]
fn a_block_whose_replies_are_too_large_is_told_so_and_not_done() {
    let cluster = FakeCluster::new(1);
    let mut options = RedisOptions::default();
    options.reply_bytes_max = 8 << 20;
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), options);
    let mut c = bench.connect();
    c.call(&[b"SET".as_slice(), b"k", &vec![b'x'; 1 << 20]]);
    let reply = exec_many(&mut c, "GET k", 4000, &["INCR n"]);
    let expected = "-ERR the reply would be longer than 8388608 bytes: ask for fewer keys at a \
                    time, or use SCAN\r\n";
    assert_eq!(String::from_utf8(reply).unwrap(), expected);
    assert_eq!(c.say("EXISTS n"), ":0\r\n");
}

// shows: REDIS-4
#[test]
fn a_key_that_bitop_names_again_and_again_counts_each_time() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.call(&[b"SET".as_slice(), b"k", &vec![b'x'; 1 << 20]]);
    let bit_op = |count: usize| {
        let start = ["BITOP", "XOR", "to"].into_iter();
        start
            .chain(core::iter::repeat_n("k", count))
            .collect::<Vec<_>>()
    };
    let reply = String::from_utf8(c.call(&bit_op(4000))).unwrap();
    assert!(
        reply.starts_with("-ERR the keys that are named hold more than 67108864 bytes"),
        "{reply}"
    );
    assert_eq!(c.say("EXISTS to"), ":0\r\n");
    // Others have their turn while it is computed.
    c.push(&encode(&bit_op(63)));
    c.turns(20);
    assert!(c.take().is_empty(), "it keeps its core");
    assert_eq!(c.replies(1), [b":1048576\r\n"]);
    assert_eq!(c.say("BITOP XOR to k to"), ":1048576\r\n");
    assert_eq!(c.say("BITCOUNT to"), ":0\r\n");
}

#[test]
fn a_block_that_changes_a_large_value_often_gives_way_to_others() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.call(&[b"SET".as_slice(), b"k", &vec![b'x'; 1_000_000]]);
    c.say("SET a 1");
    for command in ["MULTI", "RENAME a b"] {
        c.say(command);
    }
    for _ in 0..100 {
        c.say("APPEND k x");
    }
    c.push(&encode(&["EXEC"]));
    c.turns(20);
    assert!(c.take().is_empty(), "it keeps its core");
    assert!(
        c.replies(1)
            .concat()
            .starts_with(b"*101\r\n+OK\r\n:1000001\r\n")
    );
    assert_eq!(c.say("STRLEN k"), ":1000100\r\n");
}

// shows: EXEC-4
#[test]
fn where_exec_does_nothing_its_commands_on_no_key_are_not_done_either() {
    for mut bench in [Bench::new(), Bench::local()] {
        let (mut c, mut other) = (bench.connect(), bench.connect());
        let block = |c: &mut Connection| {
            for command in [
                "MULTI",
                "CONFIG SET slowlog-max-len 7",
                "CLIENT SETNAME somebody",
                "CLIENT GETNAME",
                "SET {t}done 1",
            ] {
                c.say(command);
            }
            c.say("EXEC")
        };
        let parameter = "*2\r\n$15\r\nslowlog-max-len\r\n";
        let before = c.say("CONFIG GET slowlog-max-len");
        c.say("WATCH {t}k");
        other.say("SET {t}k 2");
        assert_eq!(block(&mut c), NO_LIST);
        assert_eq!(c.say("CONFIG GET slowlog-max-len"), before);
        assert_eq!(c.say("CLIENT GETNAME"), "$-1\r\n");
        assert_eq!(
            block(&mut c),
            "*4\r\n+OK\r\n+OK\r\n$8\r\nsomebody\r\n+OK\r\n"
        );
        let now = c.say("CONFIG GET slowlog-max-len");
        assert_eq!(now, format!("{parameter}$1\r\n7\r\n"));
        assert_eq!(c.say("CLIENT GETNAME"), "$8\r\nsomebody\r\n");
        let stats = bench.service.totals().commands;
        assert_eq!(stats["client|setname"].calls, 1, "it ran once");
        // Also by themselves.
        converse(
            &mut c,
            &[
                ("MULTI", OK),
                ("SELECT 1", QUEUED),
                ("CLIENT SETNAME nobody", QUEUED),
                ("PING", QUEUED),
                ("EXEC", "*3\r\n+OK\r\n+OK\r\n+PONG\r\n"),
                ("CLIENT GETNAME", "$6\r\nnobody\r\n"),
                ("EXISTS {t}done", ":0\r\n"),
                ("SELECT 0", OK),
                ("EXISTS {t}done", ":1\r\n"),
            ],
        );
    }
}
