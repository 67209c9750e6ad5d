//! Commands and their exact replies, those that differ from Redis included.

use crate::bench::{Bench, encode};
use pluvio_client::testing::Fault;
use pluvio_wire::Opcode;

#[test]
fn strings_are_set_and_read() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for (command, reply) in [
        ("GET k", "$-1\r\n"),
        ("SET k v", "+OK\r\n"),
        ("GET k", "$1\r\nv\r\n"),
        ("SET k w NX", "$-1\r\n"),
        ("SET n w XX", "$-1\r\n"),
        ("SET k w XX GET", "$1\r\nv\r\n"),
        ("SET k x IFEQ y", "$-1\r\n"),
        ("SET k x IFEQ w", "+OK\r\n"),
        ("SET k y IFEQ a GET", "$1\r\nx\r\n"),
        ("SET k y KEEPTTL", "+OK\r\n"),
        ("DELIFEQ k a", ":0\r\n"),
        ("DELIFEQ k y", ":1\r\n"),
        ("SETNX k v", ":1\r\n"),
        ("SETNX k v", ":0\r\n"),
        ("GETSET k w", "$1\r\nv\r\n"),
        ("GETDEL k", "$1\r\nw\r\n"),
        ("GETDEL k", "$-1\r\n"),
        ("APPEND k ab", ":2\r\n"),
        ("APPEND k cd", ":4\r\n"),
        ("GETEX k", "$4\r\nabcd\r\n"),
        ("STRLEN k", ":4\r\n"),
        ("GETRANGE k 1 -2", "$2\r\nbc\r\n"),
        ("SETRANGE k 6 x", ":7\r\n"),
        ("MSET a 1 b 2 a 3", "+OK\r\n"),
        ("MGET a none b", "*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n2\r\n"),
        ("INCR a", ":4\r\n"),
        ("DECRBY a 10", ":-6\r\n"),
        ("INCR k", "-ERR value is not an integer or out of range\r\n"),
        ("INCRBYFLOAT a 0.1", "$4\r\n-5.9\r\n"),
        ("EXISTS a b none a", ":3\r\n"),
        ("DEL a b none a", ":2\r\n"),
        ("TYPE k", "+string\r\n"),
        ("TYPE none", "+none\r\n"),
        ("MSETNX m 1 m 2", ":1\r\n"),
        ("GET m", "$1\r\n2\r\n"),
        ("RENAME m m", "+OK\r\n"),
        ("RENAMENX m m", ":0\r\n"),
        ("RENAME none {none}x", "-ERR no such key\r\n"),
        ("DBSIZE", ":2\r\n"),
        ("MEMORY USAGE none", "$-1\r\n"),
        ("OBJECT ENCODING m", "$3\r\nint\r\n"),
        ("WAIT 0 0", ":1\r\n"),
    ] {
        assert_eq!(c.say(command), reply, "{command}");
    }
}

#[test]
fn what_is_not_supported_says_so() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for command in ["SUBSCRIBE a", "PFADD a b"] {
        assert!(c.say(command).starts_with("-ERR unknown command '"));
    }
    let tracking = "-ERR unknown subcommand 'TRACKING'. Try CLIENT HELP.\r\n";
    assert_eq!(c.say("CLIENT TRACKING on"), tracking);
}

// shows: DB-1
#[test]
fn databases_are_tables_that_only_writing_creates() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let names = |bench: &Bench| {
        let tables = bench.cluster.run(bench.cluster.client().list_tables());
        let names = tables.unwrap().into_iter().map(|t| t.name);
        names.collect::<Vec<_>>()
    };
    for command in [
        "GET k",
        "DEL k",
        "EXISTS a b",
        "DBSIZE",
        "KEYS *",
        "SET k v XX",
        "FLUSHDB",
    ] {
        c.say(command);
    }
    assert_eq!(c.say("SELECT 16"), "-ERR DB index is out of range\r\n");
    assert_eq!(c.say("SELECT 3"), "+OK\r\n");
    assert_eq!(c.say("RANDOMKEY"), "$-1\r\n");
    assert!(names(&bench).is_empty());
    c.say("SET k three");
    assert_eq!(names(&bench), ["redis:3"]);
    c.say("SELECT 0");
    assert_eq!(c.say("GET k"), "$-1\r\n");
    c.say("INCR n");
    assert_eq!(c.say("FLUSHALL"), "+OK\r\n");
    assert!(names(&bench).is_empty());
}

// shows: DB-3
#[test]
fn a_flush_elsewhere_is_found_out() {
    let mut bench = Bench::new();
    let mut other = bench.another();
    let (mut a, mut b) = (bench.connect(), other.connect());
    a.say("SET k v");
    assert_eq!(b.say("GET k"), "$1\r\nv\r\n");
    for _ in 0..3 {
        assert_eq!(a.say("FLUSHDB"), "+OK\r\n");
        assert_eq!(b.say("GET k"), "$-1\r\n");
        assert_eq!(b.say("APPEND k w"), ":1\r\n");
        assert_eq!(a.say("MGET k k"), "*2\r\n$1\r\nw\r\n$1\r\nw\r\n");
        a.say("FLUSHALL ASYNC");
        assert_eq!(b.say("DEL k x"), ":0\r\n");
        assert_eq!(b.say("MSET k v l v"), "+OK\r\n");
        assert_eq!(a.say("DBSIZE"), ":2\r\n");
    }
}

// shows: DB-3, DB-4
#[test]
fn a_change_that_meets_a_flush_is_made_in_the_new_table() {
    for (command, reply, left) in [
        ("DELIFEQ k 1", ":0\r\n", "$1\r\n2\r\n"),
        ("GETDEL k", "$1\r\n2\r\n", "$-1\r\n"),
        ("GETSET k 5", "$1\r\n2\r\n", "$1\r\n5\r\n"),
        ("SET k 5 GET", "$1\r\n2\r\n", "$1\r\n5\r\n"),
        ("SET k 5 IFEQ 1", "$-1\r\n", "$1\r\n2\r\n"),
        ("APPEND k 5", ":2\r\n", "$2\r\n25\r\n"),
        ("SETRANGE k 1 5", ":2\r\n", "$2\r\n25\r\n"),
        ("SETBIT k 7 1", ":0\r\n", "$1\r\n3\r\n"),
        ("BITFIELD k INCRBY u8 0 1", "*1\r\n:51\r\n", "$1\r\n3\r\n"),
        ("INCRBYFLOAT k 1", "$1\r\n3\r\n", "$1\r\n3\r\n"),
    ] {
        let mut bench = Bench::new();
        let mut other = bench.another();
        let (mut a, mut b) = (bench.connect(), other.connect());
        a.say("SET k 1");
        // The change is on its way until its first attempt is given up.
        bench.cluster.plan(Opcode::Mutate, Fault::LoseRequest, 1);
        a.push(&encode(&command.split(' ').collect::<Vec<_>>()));
        a.settle();
        assert_eq!(b.say("FLUSHDB"), "+OK\r\n");
        assert_eq!(b.say("SET k 2"), "+OK\r\n");
        assert_eq!(a.replies(1).concat(), reply.as_bytes(), "{command}");
        assert_eq!(b.say("GET k"), left, "{command}");
    }
}

// shows: DB-2
#[test]
fn a_missing_database_is_looked_for_again_by_every_read() {
    let mut bench = Bench::new();
    let mut other = bench.another();
    let (mut a, mut b) = (bench.connect(), other.connect());
    assert_eq!(a.say("GET k"), "$-1\r\n");
    b.say("SET k v");
    assert_eq!(a.say("GET k"), "$1\r\nv\r\n");
}

#[test]
fn scans_give_every_key_once() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for n in 0..100 {
        c.say(&format!("SET key:{n} v"));
    }
    for options in [
        "",
        " COUNT 1",
        " COUNT 7",
        " COUNT 100000",
        " TYPE string MATCH *",
    ] {
        let mut cursor = "0".to_owned();
        let mut seen = Vec::new();
        loop {
            let reply = c.say(&format!("SCAN {cursor}{options}"));
            let lines: Vec<_> = reply.split("\r\n").collect();
            cursor = lines[2].to_owned();
            seen.extend(
                lines[4..]
                    .iter()
                    .filter(|l| l.starts_with("key:"))
                    .map(|l| (*l).to_owned()),
            );
            if cursor == "0" {
                break;
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 100, "{options}");
    }
    assert!(
        c.say("SCAN 0 COUNT 1000 MATCH key:?5")
            .matches("key:")
            .count()
            == 9
    );
    assert_eq!(
        c.say("SCAN 0 COUNT 1000 TYPE list"),
        "*2\r\n$1\r\n0\r\n*0\r\n"
    );
    assert!(c.say("KEYS key:1*").starts_with("*11\r\n"));
    assert!(c.say("RANDOMKEY").contains("key:"));
}

#[test]
fn values_and_keys_over_their_limits_are_refused_and_the_connection_stays() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let too_long = b"-ERR string exceeds maximum allowed size (1048576 bytes)\r\n";
    let (largest, larger) = (vec![b'v'; 1 << 20], vec![b'v'; (1 << 20) + 1]);
    assert_eq!(c.call(&[b"SET", &b"k"[..], &largest]), b"+OK\r\n");
    assert_eq!(c.call(&[b"SET", &b"k"[..], &larger]), too_long);
    assert_eq!(c.call(&[b"APPEND", &b"k"[..], b"x"]), too_long);
    assert_eq!(
        c.call(&[b"SETRANGE", &b"k"[..], b"1048576", b"x"]),
        too_long
    );
    assert_eq!(c.call(&[b"STRLEN", &b"k"[..]]), b":1048576\r\n");
    let (key, longer) = (vec![b'k'; 64 << 10], vec![b'k'; (64 << 10) + 1]);
    assert_eq!(c.call(&[b"SET", &key[..], b""]), b"+OK\r\n");
    assert_eq!(c.call(&[b"GET", &key[..]]), b"$0\r\n\r\n");
    assert!(
        c.call(&[b"SET", &longer[..], b""])
            .starts_with(b"-ERR the key has 65537 bytes")
    );
    assert_eq!(c.call(&[&b"SET"[..], b"", b"empty key"]), b"+OK\r\n");
    assert_eq!(c.call(&[&b"GET"[..], b""]), b"$9\r\nempty key\r\n");
    let binary = [0, 255, b'\r', b'\n', 0];
    assert_eq!(c.call(&[b"SET", &binary[..], &binary]), b"+OK\r\n");
    assert_eq!(c.call(&[b"GET", &binary[..]]), b"$5\r\n\0\xff\r\n\0\r\n");
    assert_eq!(
        c.call(&[b"NOSUCH", &larger[..]])[..25],
        *b"-ERR unknown command 'NOS"
    );
    assert!(!c.is_closed());
}

#[test]
fn handshakes_of_clients_work() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let hello = c.say("HELLO 3 AUTH default x SETNAME me");
    assert!(
        hello.starts_with("%8\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
        "{hello}"
    );
    assert!(hello.contains("$5\r\nproto\r\n:3\r\n"));
    assert_eq!(c.say("GET none"), "_\r\n");
    assert_eq!(c.say("CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(c.say("CLIENT SETINFO LIB-NAME redis-py"), "+OK\r\n");
    assert_eq!(c.say("CLIENT SETINFO lib-ver 8.1.0"), "+OK\r\n");
    let maintenance = c.say("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none");
    assert!(maintenance.starts_with("-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT"));
    let list = c.say("CLIENT LIST");
    assert!(
        list.starts_with('=') && list.contains("name=me ") && list.contains("lib-name=redis-py")
    );
    assert!(list.contains(" resp=3 ") && list.contains(" cmd=client|list "));
    let info = c.say("INFO");
    for line in [
        "redis_version:7.2.4",
        "loading:0",
        "role:master",
        "pluvio_version:",
        "# Keyspace",
    ] {
        assert!(info.contains(line), "{line}");
    }
    assert_eq!(c.say("INFO nosuch"), "=4\r\ntxt:\r\n");
    assert_eq!(
        c.say("CONFIG GET sav* appendonly"),
        "%2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n$4\r\nsave\r\n$0\r\n\r\n"
    );
    assert_eq!(
        c.say("CLUSTER SLOTS"),
        "-ERR This instance has cluster support disabled\r\n"
    );
    assert_eq!(
        c.say("HELLO 4"),
        "-NOPROTO unsupported protocol version\r\n"
    );
    assert_eq!(
        c.say("HELLO 2 AUTH nobody x SETNAMES you"),
        "-ERR Syntax error in HELLO option 'SETNAMES'\r\n"
    );
    assert_eq!(
        c.say("HELLO 2 AUTH nobody x SETNAME you"),
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    );
    assert_eq!(c.say("CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(c.say("RESET"), "+RESET\r\n");
    assert_eq!(c.say("GET none"), "$-1\r\n");
    assert_eq!(c.say("CLIENT GETNAME"), "$-1\r\n");
    assert_eq!(c.say("QUIT"), "+OK\r\n");
    c.settle();
    assert!(c.is_closed());
}

#[test]
fn connections_list_and_kill_each_other() {
    let mut bench = Bench::new();
    let (mut a, mut b) = (bench.connect(), bench.connect());
    assert_eq!(
        (a.say("CLIENT ID"), b.say("CLIENT ID")),
        (":1\r\n".into(), ":2\r\n".into())
    );
    assert_eq!(a.say("CLIENT LIST").matches("id=").count(), 2);
    assert_eq!(
        a.say("CLIENT LIST ID 2")
            .matches(" addr=127.0.0.1:40002 ")
            .count(),
        1
    );
    assert_eq!(a.say("CLIENT KILL 1.2.3.4:5"), "-ERR No such client\r\n");
    assert_eq!(a.say("CLIENT KILL ID 1"), ":0\r\n");
    // At once: it is not listed, nor killed again, though it has not noticed yet.
    let kill = ["CLIENT", "KILL", "ADDR", "127.0.0.1:40002"];
    for command in [&kill[..], &kill, &["CLIENT", "LIST"]] {
        a.push(&encode(command));
    }
    a.settle();
    let text = String::from_utf8(a.take()).unwrap();
    assert!(text.starts_with(":1\r\n:0\r\n"), "{text}");
    assert!(
        text.contains(" addr=127.0.0.1:40001 ") && !text.contains(":40002 "),
        "{text}"
    );
    b.settle();
    assert!(b.is_closed() && !a.is_closed());
    assert_eq!(a.say("CLIENT KILL ID 1 SKIPME no"), ":1\r\n");
    a.settle();
    assert!(a.is_closed());
    assert_eq!(bench.service.totals().connections_open(), 0);
}

#[test]
fn a_connection_that_never_waits_is_killed_too() {
    let mut bench = Bench::local();
    let (mut a, mut b) = (bench.connect(), bench.connect());
    assert_eq!(a.say("PING"), "+PONG\r\n");
    let value = vec![b'v'; 1 << 20];
    b.call(&[b"SET".as_slice(), b"k", &value]);
    for _ in 0..100 {
        b.push(&encode(&["GET", "k"]));
    }
    b.turns(1);
    assert!(!b.is_closed());
    assert_eq!(a.say("CLIENT KILL ID 2"), ":1\r\n");
    b.turns(1);
    assert!(b.is_closed());
    let run = bench.service.totals().commands["get"].calls;
    assert!(run < 50, "{run} commands were run");
}

#[test]
fn replies_can_be_turned_off() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.push(&encode(&["CLIENT", "REPLY", "SKIP"]));
    c.push(&encode(&["SET", "k", "v"]));
    assert_eq!(c.say("GET k"), "$1\r\nv\r\n");
    c.push(&encode(&["CLIENT", "REPLY", "OFF"]));
    c.push(&encode(&["GET", "k"]));
    c.push(&encode(&["NOSUCH"]));
    // There is nothing to skip.
    c.push(&encode(&["CLIENT", "REPLY", "SKIP"]));
    c.push(&encode(&["GET", "k"]));
    c.push(&encode(&["GET", "k"]));
    assert_eq!(c.say("CLIENT REPLY ON"), "+OK\r\n");
    assert_eq!(c.say("GET k"), "$1\r\nv\r\n");
    c.push(&encode(&["CLIENT", "REPLY", "SKIP"]));
    c.push(&encode(&["RESET"]));
    assert_eq!(c.say("PING"), "+PONG\r\n");
    c.push(&encode(&["CLIENT", "REPLY", "OFF"]));
    assert_eq!(c.say("RESET"), "+RESET\r\n");
    c.push(&encode(&["CLIENT", "REPLY", "OFF"]));
    c.push(b"*1\r\nx\r\n");
    c.settle();
    assert!(c.is_closed() && c.take().is_empty());
}

#[test]
fn a_subcommand_is_not_called_by_the_name_of_its_row() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    assert_eq!(c.say("OBJECT ENCODING k"), "$-1\r\n");
    let reply = c.say("object|encoding x k");
    assert!(reply.starts_with("-ERR unknown command"), "{reply}");
}

#[test]
fn commands_describe_themselves() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let top = pluvio_redis::SPECS
        .iter()
        .filter(|s| !s.name.contains('|'))
        .count();
    assert_eq!(c.say("COMMAND COUNT"), format!(":{top}\r\n"));
    assert!(c.say("COMMAND").starts_with(&format!("*{top}\r\n")));
    assert_eq!(
        c.say("COMMAND GETKEYS MSET a 1 b 2"),
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n"
    );
    assert_eq!(c.say("COMMAND GETKEYS MEMORY USAGE k"), "*1\r\n$1\r\nk\r\n");
    assert_eq!(
        c.say("COMMAND GETKEYS PING"),
        "-ERR The command has no key arguments\r\n"
    );
    assert_eq!(c.say("COMMAND INFO nosuch"), "*1\r\n$-1\r\n");
    assert_eq!(
        c.say("COMMAND LIST FILTERBY PATTERN get??"),
        "*1\r\n$5\r\ngetex\r\n"
    );
    assert!(
        c.say("COMMAND DOCS get")
            .starts_with("*2\r\n$3\r\nget\r\n*6\r\n$7\r\nsummary\r\n")
    );
    assert!(c.say("CLIENT HELP").starts_with("*"));
}

#[test]
fn what_is_counted_adds_up() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for command in ["SET k v", "GET k", "GET k", "INCR k", "nosuch", "GET"] {
        c.say(command);
    }
    c.push(b"*1\r\nx\r\n");
    assert_eq!(c.replies(1).len(), 1);
    c.settle();
    let totals = bench.service.totals();
    assert_eq!(totals.commands["get"].calls, 2);
    assert_eq!(totals.commands["get"].rejected, 1);
    assert_eq!(totals.commands_unknown, 1);
    assert_eq!(totals.commands_total(), 5);
    assert_eq!(totals.errors["ERR"], 4);
    assert_eq!((totals.connections, totals.connections_open()), (1, 0));
    assert_eq!(totals.protocol_errors, 1);
    assert!(totals.bytes_in > 0 && totals.bytes_out > 0);
}
