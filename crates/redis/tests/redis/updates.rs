//! Changes at the owner of a key: every option, one round trip each, atomic, executed once.

use crate::bench::{Bench, Connection, encode, run_together};
use pluvio_client::testing::{FakeCluster, Fault};
use pluvio_redis::RedisOptions;
use pluvio_wire::Opcode;
use std::time::Duration;

const NOT_FLOAT: &str = "-ERR value is not a valid float\r\n";
const NOT_FINITE: &str = "-ERR increment would produce NaN or Infinity\r\n";
const NOT_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";

/// Says each command and compares its reply.
pub fn converse(c: &mut Connection, script: &[(&str, &str)]) {
    for (command, reply) in script {
        assert_eq!(c.say(command), *reply, "{command}");
    }
}

#[test]
fn set_takes_all_combinations_of_its_conditions_with_get() {
    const NONE: &str = "$-1\r\n";
    const OLD: &str = "$3\r\nold\r\n";
    const NEW: &str = "$3\r\nnew\r\n";
    const OK: &str = "+OK\r\n";
    for (held, options, reply, after) in [
        (false, "", OK, NEW),
        (true, "", OK, NEW),
        (false, " GET", NONE, NEW),
        (true, " GET", OLD, NEW),
        (false, " NX", OK, NEW),
        (true, " NX", NONE, OLD),
        (false, " NX GET", NONE, NEW),
        (true, " GET NX", OLD, OLD),
        (false, " XX", NONE, NONE),
        (true, " XX", OK, NEW),
        (false, " GET XX", NONE, NONE),
        (true, " XX GET", OLD, NEW),
        (false, " IFEQ old", NONE, NONE),
        (true, " IFEQ old", OK, NEW),
        (true, " IFEQ other", NONE, OLD),
        (false, " IFEQ old GET", NONE, NONE),
        (true, " GET IFEQ old", OLD, NEW),
        (true, " IFEQ other GET", OLD, OLD),
        (true, " XX KEEPTTL GET", OLD, NEW),
        (true, " nx get keepttl", OLD, OLD),
    ] {
        for mut bench in [Bench::new(), Bench::local()] {
            let mut c = bench.connect();
            if held {
                c.say("SET k old");
            }
            let command = format!("SET k new{options}");
            assert_eq!(c.say(&command), reply, "{command}, held: {held}");
            assert_eq!(c.say("GET k"), after, "{command}, held: {held}");
        }
    }
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for options in [
        "NX XX",
        "NX IFEQ a",
        "IFEQ a XX",
        "IFEQ",
        "IFEQ a IFEQ b",
        "GET FOO",
    ] {
        let reply = c.say(&format!("SET k v {options}"));
        assert_eq!(reply, "-ERR syntax error\r\n", "{options}");
    }
    assert_eq!(c.say("EXISTS k"), ":0\r\n");
}

#[test]
fn parts_of_values_are_changed_and_read_as_in_redis() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("APPEND a Hello", ":5\r\n"),
            ("APPEND a _World", ":11\r\n"),
            ("APPEND a ", ":11\r\n"),
            ("GET a", "$11\r\nHello_World\r\n"),
            ("APPEND empty ", ":0\r\n"),
            ("EXISTS empty", ":1\r\n"),
            ("SETRANGE a 6 Redis", ":11\r\n"),
            ("GET a", "$11\r\nHello_Redis\r\n"),
            ("SETRANGE a 3 ", ":11\r\n"),
            ("SETRANGE a 99999999 ", ":11\r\n"),
            ("SETRANGE none 7 ", ":0\r\n"),
            ("EXISTS none", ":0\r\n"),
            ("SETRANGE b 2 x", ":3\r\n"),
            ("GET b", "$3\r\n\0\0x\r\n"),
            ("SETRANGE b -1 x", "-ERR offset is out of range\r\n"),
            ("SETRANGE b -1 ", "-ERR offset is out of range\r\n"),
            ("SETRANGE b x y", NOT_INTEGER),
            (
                "SETRANGE b 1048576 y",
                "-ERR string exceeds maximum allowed size (1048576 bytes)\r\n",
            ),
            (
                "SETRANGE none 9223372036854775807 y",
                "-ERR string exceeds maximum allowed size (1048576 bytes)\r\n",
            ),
            ("EXISTS none", ":0\r\n"),
            ("GET b", "$3\r\n\0\0x\r\n"),
            ("SETRANGE b 1048575 y", ":1048576\r\n"),
            (
                "APPEND b z",
                "-ERR string exceeds maximum allowed size (1048576 bytes)\r\n",
            ),
            ("STRLEN b", ":1048576\r\n"),
            ("STRLEN none", ":0\r\n"),
            ("GETRANGE a 0 4", "$5\r\nHello\r\n"),
            ("GETRANGE a -5 -1", "$5\r\nRedis\r\n"),
            ("GETRANGE a 3 1", "$0\r\n\r\n"),
            ("GETRANGE a 0 -100", "$1\r\nH\r\n"),
            ("GETRANGE a 100 200", "$0\r\n\r\n"),
            ("GETRANGE none 0 -1", "$0\r\n\r\n"),
            ("GETRANGE none x -1", NOT_INTEGER),
            ("SUBSTR a 6 100", "$5\r\nRedis\r\n"),
            ("SUBSTR b 1048575 -1", "$1\r\ny\r\n"),
        ],
    );
}

#[test]
fn values_are_compared_and_taken_as_in_redis() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("GETSET k a", "$-1\r\n"),
            ("GETSET k b", "$1\r\na\r\n"),
            ("GETDEL k", "$1\r\nb\r\n"),
            ("GETDEL k", "$-1\r\n"),
            ("SET k ", "+OK\r\n"),
            ("GETSET k c", "$0\r\n\r\n"),
            ("DELIFEQ none ", ":0\r\n"),
            ("DELIFEQ k ", ":0\r\n"),
            ("DELIFEQ k cc", ":0\r\n"),
            ("DELIFEQ k c", ":1\r\n"),
            ("DELIFEQ k c", ":0\r\n"),
            ("SETNX k d", ":1\r\n"),
            ("SETNX k e", ":0\r\n"),
            ("GET k", "$1\r\nd\r\n"),
            ("MSETNX k e", ":0\r\n"),
            ("MEMORY USAGE k", ":22\r\n"),
            ("MEMORY USAGE none", "$-1\r\n"),
            ("OBJECT ENCODING k", "$6\r\nembstr\r\n"),
            ("OBJECT ENCODING none", "$-1\r\n"),
            ("SETRANGE k 43 x", ":44\r\n"),
            ("OBJECT ENCODING k", "$6\r\nembstr\r\n"),
            ("APPEND k x", ":45\r\n"),
            ("OBJECT ENCODING k", "$3\r\nraw\r\n"),
            ("SET k ", "+OK\r\n"),
            ("OBJECT ENCODING k", "$6\r\nembstr\r\n"),
            ("MEMORY USAGE k", ":21\r\n"),
        ],
    );
}

#[test]
fn decimal_numbers_are_added_as_redis_documents_it() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("SET k 10.50", "+OK\r\n"),
            ("INCRBYFLOAT k 0.1", "$4\r\n10.6\r\n"),
            ("INCRBYFLOAT k -5", "$3\r\n5.6\r\n"),
            ("SET k 5.0e3", "+OK\r\n"),
            ("INCRBYFLOAT k 2.0e2", "$4\r\n5200\r\n"),
            ("INCRBY k 1", ":5201\r\n"),
            ("INCRBYFLOAT k 0.5", "$6\r\n5201.5\r\n"),
            ("INCRBY k 1", NOT_INTEGER),
            ("INCRBYFLOAT new 3.0e3", "$4\r\n3000\r\n"),
            ("INCRBYFLOAT k abc", NOT_FLOAT),
            ("INCRBYFLOAT k ", NOT_FLOAT),
            ("INCRBYFLOAT k 1x", NOT_FLOAT),
            ("INCRBYFLOAT k nan", NOT_FLOAT),
            ("INCRBYFLOAT k inf", NOT_FINITE),
            ("INCRBYFLOAT k -Infinity", NOT_FINITE),
            ("INCRBYFLOAT none abc", NOT_FLOAT),
            ("EXISTS none", ":0\r\n"),
            ("GET k", "$6\r\n5201.5\r\n"),
            ("SET k abc", "+OK\r\n"),
            ("INCRBYFLOAT k 1", NOT_FLOAT),
            ("INCRBYFLOAT k inf", NOT_FLOAT),
            ("INCRBY k 1", NOT_INTEGER),
            ("SET k 9223372036854775807", "+OK\r\n"),
            ("INCR k", "-ERR increment or decrement would overflow\r\n"),
            ("INCRBYFLOAT k 0.25", "$22\r\n9223372036854775807.25\r\n"),
        ],
    );
    let reply = c.call(&[&b"INCRBYFLOAT"[..], b"k", b"1\xff"]);
    assert_eq!(reply, NOT_FLOAT.as_bytes());
}

#[test]
fn numbers_of_thousands_of_digits_are_numbers() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    // As a value and as an argument; the sum keeps 17 digits after the point.
    let third = format!("0.{}", "3".repeat(5000));
    assert_eq!(
        c.say(&format!("INCRBYFLOAT a {third}")),
        "$19\r\n0.33333333333333333\r\n"
    );
    assert_eq!(c.say(&format!("SET b {third}")), "+OK\r\n");
    assert_eq!(c.say("INCRBYFLOAT b 1"), "$19\r\n1.33333333333333333\r\n");
    let large = "7".repeat(4900);
    let sum = format!("$4900\r\n{large}\r\n");
    assert_eq!(c.say(&format!("INCRBYFLOAT c {large}")), sum);
    assert_eq!(c.say("INCRBYFLOAT c 0"), sum);
    let (longest, longer) = ("0".repeat(5119), "0".repeat(5120));
    assert_eq!(c.say(&format!("INCRBYFLOAT d {longest}")), "$1\r\n0\r\n");
    assert_eq!(c.say(&format!("INCRBYFLOAT d {longer}")), NOT_FLOAT);
    assert_eq!(c.say(&format!("SET d {longer}")), "+OK\r\n");
    assert_eq!(c.say("INCRBYFLOAT d 1"), NOT_FLOAT);
}

/// Commands on one key, each for a key that holds 12.
const SINGLE: [&str; 37] = [
    "APPEND k x",
    "BITCOUNT k 0 0 BIT",
    "BITFIELD k GET u8 0",
    "BITFIELD k SET u8 0 65 INCRBY u8 #1 1",
    "BITFIELD_RO k GET u8 0",
    "BITPOS k 1 1",
    "DECRBY k 5",
    "DEL k",
    "DELIFEQ k 12",
    "EXPIRE k 100 NX",
    "EXPIRETIME k",
    "EXISTS k",
    "GET k",
    "GETBIT k 3",
    "GETDEL k",
    "GETEX k",
    "GETEX k EX 100",
    "GETRANGE k 1 1",
    "GETSET k v",
    "INCR k",
    "INCRBYFLOAT k 0.5",
    "MEMORY USAGE k",
    "OBJECT ENCODING k",
    "PERSIST k",
    "PEXPIRE k 0",
    "SET k v",
    "SET k v GET",
    "SET k v PX 100000",
    "SET k v NX GET",
    "SET k v XX",
    "SET k v IFEQ 12 GET",
    "SETBIT k 9 1",
    "SETEX k 100 v",
    "SETNX k v",
    "SETRANGE k 5 v",
    "STRLEN k",
    "TYPE k",
];

#[test]
fn commands_on_one_key_take_one_round_trip() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let sent = |bench: &Bench| {
        let count = |opcode| bench.cluster.count_sent(opcode);
        (
            bench.cluster.sent().len(),
            count(Opcode::Get) + count(Opcode::Mutate),
        )
    };
    for held in [true, false] {
        for command in SINGLE {
            c.say(if held { "SET k 12" } else { "DEL k" });
            let (all, data) = sent(&bench);
            let reply = c.say(command);
            assert!(!reply.starts_with('-'), "{command}: {reply}");
            assert_eq!(sent(&bench), (all + 1, data + 1), "{command}, held: {held}");
        }
    }
}

#[test]
fn what_is_sent_again_after_a_lost_reply_is_done_once_and_answered_alike() {
    for held in [true, false] {
        for command in SINGLE {
            let run = |lost: bool| {
                let mut bench = Bench::new();
                let mut c = bench.connect();
                c.say("SET k 12");
                if !held {
                    c.say("DEL k");
                }
                if lost {
                    for opcode in [Opcode::Mutate, Opcode::Get] {
                        bench.cluster.plan(opcode, Fault::LoseReply, 1);
                    }
                }
                let before = bench.cluster.count_sent(Opcode::Mutate);
                let reply = c.say(command);
                let mutations = bench.cluster.count_sent(Opcode::Mutate) - before;
                (reply, c.say("GET k"), mutations)
            };
            let (plain, retried) = (run(false), run(true));
            let what = format!("{command}, held: {held}");
            assert_eq!((&plain.0, &plain.1), (&retried.0, &retried.1), "{what}");
            assert_eq!(retried.2, 2 * plain.2, "{what}");
        }
    }
}

#[test]
fn a_hundred_clients_change_one_key_a_hundred_times_each() {
    let cluster = FakeCluster::new(2);
    cluster.set_latency(Duration::from_millis(1));
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), RedisOptions::default());
    let mut connections: Vec<_> = (0..100).map(|_| bench.connect()).collect();
    connections[0].say("SET log ");
    let before = cluster.count_sent(Opcode::Mutate);
    for c in &mut connections {
        for _ in 0..100 {
            c.push(&encode(&["APPEND", "log", "x"]));
            c.push(&encode(&["INCRBYFLOAT", "sum", "0.1"]));
        }
    }
    for replies in run_together(&cluster, &mut connections, 200) {
        let text = String::from_utf8(replies).unwrap();
        assert!(!text.contains('-'), "an error among {text}");
    }
    // None of them was tried twice.
    assert_eq!(cluster.count_sent(Opcode::Mutate) - before, 20_000);
    assert_eq!(connections[0].say("STRLEN log"), ":10000\r\n");
    assert_eq!(connections[0].say("GET sum"), "$4\r\n1000\r\n");
    assert_eq!(bench.service.totals().errors.len(), 0);
}

// shows: DB-1, DB-5
#[test]
fn what_makes_no_object_makes_no_table() {
    for command in [
        "BITCOUNT k",
        "BITFIELD k GET u8 0",
        "BITFIELD_RO k GET u8 0",
        "BITPOS k 0",
        "DELIFEQ k v",
        "GETBIT k 0",
        "GETDEL k",
        "GETEX k",
        "GETEX k EX 100",
        "GETRANGE k 0 1",
        "INCRBYFLOAT k abc",
        "MEMORY USAGE k",
        "MGET k l",
        "OBJECT ENCODING k",
        "PERSIST k",
        "PEXPIRE k 0",
        "SET k v IFEQ w",
        "SET k v XX GET",
        "SETBIT k 4294967295 1",
        "SETRANGE k 0 ",
        "SETRANGE k 1048576 x",
        "STRLEN k",
        "TOUCH k l",
        "TYPE k",
        "UNLINK k l",
    ] {
        let mut bench = Bench::new();
        bench.connect().say(command);
        let tables = bench.cluster.run(bench.cluster.client().list_tables());
        assert_eq!(tables.unwrap().len(), 0, "{command}");
    }
}
