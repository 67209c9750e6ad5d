//! Replies of commands that were executed at once and are not durable.

use crate::bench::{Bench, Connection, encode};
use std::time::Duration;

fn push(c: &mut Connection, commands: &[&str]) {
    for command in commands {
        let words: Vec<_> = command.split(' ').collect();
        c.push(&encode(&words));
    }
    c.settle();
}

fn taken(c: &mut Connection) -> String {
    c.settle();
    String::from_utf8(c.take()).unwrap()
}

/// A bench whose server owns every key and holds outcomes.
fn holding() -> Bench {
    let mut bench = Bench::local();
    bench.connect().say("SET warm up");
    bench.cluster.hold_local();
    bench
}

// shows: HELD-1, QUEUE-1, QUEUE-4
#[test]
fn replies_leave_in_order_as_their_outcomes_become_durable() {
    let mut bench = holding();
    let mut c = bench.connect();
    push(
        &mut c,
        &["SET a 1", "INCR a", "PING", "GET a", "APPEND a x"],
    );
    assert_eq!(bench.cluster.executed_at_once(), 4);
    assert_eq!(taken(&mut c), "", "nothing is durable");
    bench.cluster.make_durable(1);
    assert_eq!(taken(&mut c), "+OK\r\n");
    bench.cluster.make_durable(2);
    assert_eq!(taken(&mut c), ":2\r\n+PONG\r\n");
    bench.cluster.make_durable(4);
    assert_eq!(taken(&mut c), "$1\r\n2\r\n:2\r\n");
}

// shows: QUEUE-4, CONN-4, CONN-5
#[test]
fn held_replies_are_given_up_in_time_and_nothing_is_executed_behind_a_doubt() {
    let mut bench = holding();
    let mut c = bench.connect();
    push(&mut c, &["GET warm", "SET a 1", "SET b 1"]);
    let start = bench.cluster.now();
    let replies = c.replies(3);
    assert_eq!(bench.cluster.now() - start, Duration::from_secs(10));
    let begins = |at: usize, text: &str| replies[at].starts_with(text.as_bytes());
    let doubt = "-ERR it is not known whether the command was executed";
    assert!(begins(0, "-TRYAGAIN ") && begins(1, doubt) && begins(2, doubt));
    // They were executed, and are durable later.
    bench.cluster.make_durable(1000);
    assert_eq!(c.say("GET a"), "$1\r\n1\r\n");
    bench.cluster.make_durable(bench.cluster.executed_at_once());
    let executed = bench.cluster.executed_at_once();
    let sets: Vec<_> = (0..300).map(|n| format!("SET c{n} 1")).collect();
    push(&mut c, &sets.iter().map(String::as_str).collect::<Vec<_>>());
    let replies = c.replies(300);
    let begins = |reply: &Vec<u8>, text: &str| reply.starts_with(text.as_bytes());
    assert!(replies[..256].iter().all(|reply| begins(reply, doubt)));
    let behind = "-TRYAGAIN not executed";
    assert!(replies[256..].iter().all(|reply| begins(reply, behind)));
    assert_eq!(bench.cluster.executed_at_once() - executed, 256);
}

// shows: CONN-5
#[test]
fn a_block_behind_a_doubt_is_discarded() {
    let mut bench = holding();
    let mut c = bench.connect();
    push(&mut c, &["SET a 1", "MULTI", "SET b 2", "EXEC"]);
    let replies = c.replies(4);
    assert!(replies[0].starts_with(b"-ERR it is not known whether the command was executed"));
    assert_eq!(replies[1..3], [&b"+OK\r\n"[..], b"+QUEUED\r\n"]);
    let aborted = "-EXECABORT Transaction discarded because of: TRYAGAIN not executed: ";
    let reply = String::from_utf8_lossy(&replies[3]);
    assert!(reply.starts_with(aborted), "{reply}");
    bench.cluster.make_durable(1000);
    assert_eq!(c.say("GET a"), "$1\r\n1\r\n");
    assert_eq!(c.say("GET b"), "$-1\r\n");
    assert_eq!(c.say("EXEC"), "-ERR EXEC without MULTI\r\n");
}

// shows: QUEUE-3
#[test]
fn the_number_of_held_commands_is_bounded() {
    let mut bench = holding();
    let mut c = bench.connect();
    for n in 0..1000 {
        c.push(&encode(&["SET", &format!("k{n}"), "v"]));
    }
    c.settle();
    assert_eq!(bench.cluster.executed_at_once(), 256);
    bench.cluster.make_durable(10_000);
    assert_eq!(c.replies(1000).len(), 1000);
}

/// Releases a lock if it is the caller's.
const RELEASE: &str = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end \
                       return redis.call('del', KEYS[1])";

fn push_script(c: &mut Connection, hash: &str, key: &str, token: &str) {
    c.push(&encode(&["EVALSHA", hash, "1", key, token]));
}

/// A bench whose server holds outcomes and shows objects, and the hash of a script that it has.
fn showing(script: &str) -> (Bench, Connection, String) {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    let hash = c.call(&["SCRIPT", "LOAD", script]);
    let hash = String::from_utf8(hash[5..45].to_vec()).unwrap();
    bench.cluster.show_local();
    (bench, c, hash)
}

// shows: EVAL-1, QUEUE-1, QUEUE-4
#[test]
fn scripts_of_a_pipeline_run_at_once_and_are_told_when_their_changes_are_durable() {
    let (bench, mut c, hash) = showing(RELEASE);
    for command in ["SET a mine PX 10000", "SET b others", "SET c mine"] {
        assert_eq!(c.say(command), "+OK\r\n");
    }
    bench.cluster.hold_local();
    for key in ["a", "b", "c", "a"] {
        push_script(&mut c, &hash, key, "mine");
    }
    push(&mut c, &["PING"]);
    // Two of them change something.
    assert_eq!(bench.cluster.executed_at_once(), 2);
    assert_eq!(taken(&mut c), "", "the first one is not durable");
    bench.cluster.make_durable(1);
    assert_eq!(taken(&mut c), ":1\r\n:0\r\n");
    bench.cluster.make_durable(2);
    assert_eq!(taken(&mut c), ":1\r\n:0\r\n+PONG\r\n");
    bench.cluster.make_durable(1000);
    assert_eq!(c.say("EXISTS a b c"), ":1\r\n");
}

// shows: EVAL-1
#[test]
fn a_script_that_cannot_be_done_at_once_takes_the_long_way_from_its_beginning() {
    let counts = "for n = 1, tonumber(ARGV[1]) do redis.call('incr', KEYS[1]) end \
                  if ARGV[2] then redis.call('incr', ARGV[2]) end \
                  if ARGV[3] then return redis.error_reply('NO') end \
                  return redis.call('get', KEYS[1])";
    let (mut bench, mut c, hash) = showing(counts);
    bench.connect().say("SET warm up");
    bench.cluster.hold_local();
    bench.cluster.make_durable(1_000_000);
    let mut run = |parts: &[&str]| {
        let before = bench.cluster.executed_at_once();
        let reply = c.call(&[&["EVALSHA", &hash], parts].concat());
        let reply = String::from_utf8(reply).unwrap();
        (reply, bench.cluster.executed_at_once() - before)
    };
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    assert_eq!(run(&["1", "n", "3"]), (bulk("3"), 1));
    // It uses a key that it has not named.
    assert_eq!(run(&["1", "n", "3", "other"]), (bulk("6"), 0));
    // It takes long.
    assert_eq!(run(&["1", "n", "1000"]), (bulk("1006"), 0));
    // It names two keys.
    assert_eq!(run(&["2", "n", "m", "1"]), (bulk("1007"), 0));
    // It returns an error.
    let returned = ("-ERR NO\r\n".to_owned(), 1);
    assert_eq!(run(&["1", "n", "1", "n", "x"]), returned);
    // It fails, and changes nothing.
    let (reply, changes) = run(&["1", "n", "x"]);
    assert!(reply.starts_with("-ERR ") && changes == 0, "{reply}");
    assert_eq!(run(&["1", "n", "0"]), (bulk("1009"), 0));
    assert_eq!(run(&["1", "other", "0"]), (bulk("1"), 0));
}
