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
