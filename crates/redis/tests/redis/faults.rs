//! The replies that clients see when the cluster cannot do what they ask.

use crate::bench::{Bench, encode, run_together};
use pluvio_client::testing::Fault;
use pluvio_units::ServerId;
use pluvio_wire::{FatalKind, Opcode, Refusal, RetryReason};
use std::time::Duration;

fn refused(why: RetryReason) -> Fault {
    Fault::Refuse(Refusal::retry(Duration::from_millis(10), why))
}

#[test]
fn waiting_in_vain_gets_the_errors_clients_know() {
    for (why, expected) in [
        (
            RetryReason::MemoryFull,
            "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        ),
        (
            RetryReason::TooFewBackups,
            "-NOREPLICAS Not enough good replicas to write.\r\n",
        ),
    ] {
        let mut bench = Bench::new();
        let mut c = bench.connect();
        c.say("SET k v");
        bench.cluster.plan(Opcode::Mutate, refused(why), 10_000);
        assert_eq!(c.say("SET k w"), expected);
        assert_eq!(c.say("GET k"), "$1\r\nv\r\n");
    }
}

#[test]
fn a_server_that_is_gone_is_a_delay_and_in_the_end_an_error() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for n in 0..20 {
        c.say(&format!("SET k{n} v"));
    }
    bench.cluster.crash(ServerId(2));
    // The first that fails ends its run: those behind it are not tried for as long again.
    let start = bench.cluster.now();
    for n in 0..20 {
        c.push(&encode(&["GET".to_owned(), format!("k{n}")]));
    }
    let replies = c.replies(20);
    let passed = bench.cluster.now() - start;
    assert!(passed < Duration::from_secs(15), "{passed:?}");
    assert!(
        replies
            .iter()
            .any(|r| r.starts_with(b"-TRYAGAIN the cluster did not do it in time"))
    );
    bench.cluster.recover(ServerId(2), ServerId(1));
    for n in 0..20 {
        assert_eq!(c.say(&format!("GET k{n}")), "$1\r\nv\r\n");
    }
}

#[test]
fn a_write_in_doubt_says_so_and_nothing_else_does() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("SET k v");
    for opcode in [Opcode::Mutate, Opcode::Get, Opcode::CreateTable] {
        bench.cluster.plan(opcode, Fault::LoseRequest, 10_000);
    }
    let reply = c.say("SET k w");
    let in_doubt = "-ERR it is not known whether the command was executed: ";
    assert!(reply.starts_with(in_doubt), "{reply}");
    assert!(c.say("GET k").starts_with("-TRYAGAIN "));
    c.say("SELECT 1");
    assert!(c.say("SET k w").starts_with("-TRYAGAIN "));
}

/// Clients flush all nodes of a cluster at a time. So the table that one makes may be dropped
/// before its servers serve it.
#[test]
fn a_table_that_others_drop_while_it_is_made_is_made_again() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let gone = Refusal::fatal(FatalKind::NoSuchTable, "there is no table with id 224");
    bench
        .cluster
        .plan(Opcode::CreateTable, Fault::Refuse(gone.clone()), 2);
    assert_eq!(c.say("SET k v"), "+OK\r\n");
    c.say("SELECT 1");
    bench
        .cluster
        .plan(Opcode::CreateTable, Fault::Refuse(gone), 10_000);
    assert!(c.say("SET k v").starts_with("-ERR there is no table"));
}

const IN_DOUBT: &str = "-ERR it is not known whether the command was executed: ";
const BEHIND: &str = "-TRYAGAIN not executed: it is not known whether an earlier command";

/// The replies of EXEC and of a command behind it when all requests of this kind are lost. The
/// block has these commands.
fn replies_of_lost(lost: Opcode, block: &[&str]) -> Vec<String> {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("SET k v");
    bench.cluster.plan(lost, Fault::LoseRequest, 10_000);
    let all = [&["MULTI"], block, &["EXEC", "SET c 3"]].concat();
    for command in &all {
        c.push(&encode(&command.split(' ').collect::<Vec<_>>()));
    }
    let replies = c.replies(all.len()).split_off(all.len() - 2);
    let lines = replies.concat();
    let lines = String::from_utf8(lines).unwrap();
    lines.lines().map(str::to_owned).collect()
}

// shows: CONN-5, EXEC-2
#[test]
fn nothing_is_executed_behind_a_doubt_inside_a_block() {
    // A part behind others is in doubt.
    let replies = replies_of_lost(Opcode::Transact, &["DBSIZE", "SET b 2", "PING", "DBSIZE"]);
    let [array, size, set, ping, behind, last] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!([&array[..], size], ["*4", ":1"]);
    assert!(set.starts_with(IN_DOUBT), "{set}");
    let not_done = [ping, behind, last];
    assert!(
        not_done.iter().all(|reply| reply.starts_with(BEHIND)),
        "{replies:?}"
    );
    // A command that runs by itself is.
    let replies = replies_of_lost(Opcode::DropTable, &["FLUSHDB", "SET b 2"]);
    let [array, flush, set, last] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!(array, "*2");
    assert!(flush.starts_with(IN_DOUBT), "{flush}");
    assert!(
        set.starts_with(BEHIND) && last.starts_with(BEHIND),
        "{replies:?}"
    );
}

#[test]
fn of_keys_whose_server_is_dead_none_is_changed_unless_they_are_too_many() {
    for (count, expected) in [
        (20, "-TRYAGAIN "),
        (5_000, "-ERR some of the keys were changed, others not: "),
    ] {
        let mut bench = Bench::new();
        let mut c = bench.connect();
        c.say("SET k v");
        bench.cluster.crash(ServerId(2));
        let mut keys: Vec<_> = (0..count).map(|n| format!("k{n}")).collect();
        // The first one has an owner, which finds out that not all keys are there.
        let is_served = |key: &String| c.say(&format!("GET {key}")) == "$-1\r\n";
        let first = keys.iter().position(is_served).unwrap();
        keys.swap(0, first);
        let objects = keys.iter().flat_map(|key| [key.as_str(), "v"]);
        let set: Vec<_> = core::iter::once("MSET").chain(objects).collect();
        let delete: Vec<_> = core::iter::once("DEL")
            .chain(keys.iter().map(String::as_str))
            .collect();
        for command in [set, delete] {
            let reply = String::from_utf8(c.call(&command)).unwrap();
            assert!(reply.starts_with(expected), "{reply}");
        }
        if count == 20 {
            assert_eq!(c.say(&format!("GET {}", keys[0])), "$-1\r\n");
        }
    }
}

#[test]
fn what_was_done_in_part_says_so_whatever_the_rest_met() {
    for (why, cause) in [
        (RetryReason::MemoryFull, "OOM command not allowed"),
        (RetryReason::TooFewBackups, "NOREPLICAS Not enough"),
        (RetryReason::QuotaOperations, "the database has its quota"),
    ] {
        let mut bench = Bench::new();
        let mut c = bench.connect();
        c.say("SET k v");
        let keys: Vec<_> = (0..5_000).map(|n| format!("k{n}")).collect();
        let objects = keys.iter().flat_map(|key| [key.as_str(), "v"]);
        let set: Vec<_> = core::iter::once("MSET").chain(objects).collect();
        assert_eq!(c.call(&set), b"+OK\r\n");
        let delete = ["DEL", "UNLINK"].map(|name| {
            let keys = keys.iter().map(String::as_str);
            core::iter::once(name).chain(keys).collect::<Vec<_>>()
        });
        bench
            .cluster
            .plan_at(ServerId(2), Opcode::Mutate, refused(why), 1_000_000);
        for command in [set].iter().chain(&delete) {
            let reply = String::from_utf8(c.call(command)).unwrap();
            let expected = format!("-ERR some of the keys were changed, others not: {cause}");
            assert!(reply.starts_with(&expected), "{}: {reply}", command[0]);
        }
    }
}

/// A script may answer with any text. Commands behind it in the pipeline are executed.
#[test]
fn scripts_cannot_feign_failures_of_the_cluster() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let doubt = format!("{}x", &IN_DOUBT[1..]);
    let full = "OOM command not allowed when used memory > 'maxmemory'.";
    let feign = "return redis.error_reply(ARGV[1])";
    c.call(&["EVAL", feign, "0", "x"]);
    c.say("SET k v");
    for text in [&doubt[..], full] {
        let feigned = format!("-{text}\r\n");
        c.push(&encode(&["EVAL", feign, "0", text]));
        c.push(&encode(&["SET", "k", "w"]));
        // It waits as if it stood alone.
        let why = refused(RetryReason::MemoryFull);
        bench.cluster.plan(Opcode::Mutate, why, 2);
        let replies = c.replies(2);
        assert_eq!(replies, [feigned.as_bytes(), b"+OK\r\n"], "{text}");
        for command in [&["MULTI"][..], &["EVAL", feign, "0", text], &["EXEC"]] {
            c.push(&encode(command));
        }
        c.push(&encode(&["SET", "k", "w"]));
        let replies = c.replies(4);
        assert_eq!(replies[2], format!("*1\r\n{feigned}").as_bytes());
        assert_eq!(replies[3], b"+OK\r\n", "{text}");
    }
}

#[test]
fn a_lost_reply_does_not_increment_twice() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("INCR n");
    for _ in 0..10 {
        bench.cluster.plan(Opcode::Mutate, Fault::LoseReply, 1);
        c.say("INCR n");
        bench.cluster.plan(Opcode::Mutate, Fault::LoseReply, 1);
        c.say("APPEND a x");
    }
    assert_eq!(c.say("GET n"), "$2\r\n11\r\n");
    assert_eq!(c.say("STRLEN a"), ":10\r\n");
}

#[test]
fn a_coordinator_that_is_silent_does_not_stop_what_is_known() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("SET k v");
    for opcode in [Opcode::GetTable, Opcode::ListTables, Opcode::CreateTable] {
        bench.cluster.plan(opcode, Fault::Unreachable, 10_000);
    }
    assert_eq!(c.say("GET k"), "$1\r\nv\r\n");
    let before = bench.cluster.now();
    assert!(c.say("INFO").contains("loading:0"));
    assert!(bench.cluster.now() - before <= Duration::from_millis(600));
    c.say("SELECT 1");
    assert!(c.say("GET k").starts_with("-TRYAGAIN "));
}

#[test]
fn a_script_is_loaded_when_the_cluster_keeps_it_and_not_before() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let hash = String::from_utf8(c.call(&["SCRIPT", "LOAD", "return 1"])).unwrap();
    assert!(hash.starts_with("$40\r\n"), "{hash}");
    let why = RetryReason::TooFewBackups;
    bench.cluster.plan(Opcode::Mutate, refused(why), 400);
    let load = |c: &mut crate::bench::Connection| {
        String::from_utf8(c.call(&["SCRIPT", "LOAD", "return 2"])).unwrap()
    };
    for _ in 0..2 {
        let refused = load(&mut c);
        assert!(refused.starts_with("-NOREPLICAS "), "{refused}");
    }
    // It runs all the same, here.
    assert_eq!(c.call(&["EVAL", "return 2", "0"]), b":2\r\n");
    // Also where it is new.
    let before = bench.cluster.now();
    assert_eq!(c.call(&["EVAL", "return 3", "0"]), b":3\r\n");
    assert!(bench.cluster.now() - before < Duration::from_secs(10));
    // Until the refusals are used up.
    assert!((0..50).any(|_| load(&mut c).starts_with("$40\r\n")));
    assert_eq!(load(&mut c), load(&mut c));
}

/// Each of them holds its key for as long as a command may take, and none of the others waits for
/// all of them.
#[test]
fn a_script_waits_for_others_no_longer_than_a_command_may_take() {
    let mut bench = Bench::new();
    let mut connections: Vec<_> = (0..6).map(|_| bench.connect()).collect();
    connections[0].say("SET k v");
    let why = RetryReason::TooFewBackups;
    bench
        .cluster
        .plan(Opcode::Transact, refused(why), 1_000_000);
    let start = bench.cluster.now();
    for c in &mut connections {
        c.push(&encode(&[
            "EVAL",
            "return redis.call('INCR', KEYS[1])",
            "1",
            "n",
        ]));
    }
    let replies = run_together(&bench.cluster, &mut connections, 1);
    let passed = bench.cluster.now() - start;
    assert!(passed < Duration::from_secs(25), "{passed:?}");
    let mut waited = 0;
    for reply in replies {
        let reply = String::from_utf8(reply).unwrap();
        let waits = reply.starts_with("-TRYAGAIN not executed: scripts before it");
        assert!(reply.starts_with("-NOREPLICAS ") || waits, "{reply}");
        waited += u32::from(waits);
    }
    assert!(waited > 0, "some waited for their turns in vain");
}

/// Locks of several servers need memory, and so may the tombstones of many keys.
#[test]
fn keys_are_deleted_one_by_one_where_memory_has_no_room_for_all_at_one_moment() {
    let full = || refused(RetryReason::MemoryFull);
    for command in ["DEL", "UNLINK"] {
        let mut bench = Bench::new();
        let mut c = bench.connect();
        c.say("MSET a 1 b 2 {a}c 3");
        bench.cluster.plan(Opcode::Transact, full(), 1_000_000);
        assert_eq!(c.say(&format!("{command} a b {{a}}c none b")), ":3\r\n");
        assert_eq!(c.say("EXISTS a b {a}c"), ":0\r\n");
        // A block is done at one moment, or it is refused.
        c.say("SET a 1");
        for command in ["MULTI", "DEL a b"] {
            c.say(command);
        }
        assert!(c.say("EXEC").starts_with("-OOM "));
        assert_eq!(c.say("EXISTS a"), ":1\r\n");
        // Other refusals are no reason.
        let mut bench = Bench::new();
        let mut c = bench.connect();
        c.say("MSET a 1 b 2");
        let why = RetryReason::TooFewBackups;
        bench
            .cluster
            .plan(Opcode::Transact, refused(why), 1_000_000);
        assert!(c.say("DEL a b").starts_with("-NOREPLICAS "));
        assert_eq!(c.say("EXISTS a b"), ":2\r\n");
    }
}
