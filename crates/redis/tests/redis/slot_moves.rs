//! A client of the port for cluster clients asks a server that has just lost the slot.

use crate::bench::{Bench, Connection, encode};
use crate::cluster::{bench, call, key_of};
use pluvio_client::Table;
use pluvio_client::testing::Fault;
use pluvio_units::{HashKind, KeySlot, ServerId};
use pluvio_wire::Opcode;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// How long a command waits for the cluster.
const LIMIT: Duration = Duration::from_secs(10);

/// The table of database 0, which a command has made.
fn table(bench: &Bench) -> Table {
    let client = bench.cluster.client();
    let table = bench
        .cluster
        .run(async { client.table("redis:0").await.unwrap() });
    assert_eq!(table.hash_kind(), HashKind::Slots);
    table
}

/// Gives the slots of a key to a server.
fn give(bench: &Bench, key: &str, to: u64) {
    let table = table(bench);
    let hash = table.hash(key.as_bytes());
    bench.cluster.move_tablet(table.id(), hash, ServerId(to));
}

/// Nobody serves the slots of a key until they are given to a server.
fn withhold(bench: &Bench, key: &str) {
    let table = table(bench);
    let hash = table.hash(key.as_bytes());
    bench.cluster.withhold_tablet(table.id(), hash);
}

fn moved(key: &str, to: u64) -> String {
    let slot = KeySlot::of(key.as_bytes());
    format!("-MOVED {slot} 10.0.0.{to}:7000\r\n")
}

fn push(c: &mut Connection, commands: &[&[&str]]) {
    for command in commands {
        c.push(&encode(command));
    }
}

fn texts(replies: Vec<Vec<u8>>) -> Vec<String> {
    let text = |reply| String::from_utf8(reply).unwrap();
    replies.into_iter().map(text).collect()
}

/// Requests about objects that servers were sent, by address.
fn asked(bench: &Bench, server: u64) -> usize {
    let name = format!("server-{server}");
    let is_about_objects = |opcode| matches!(opcode, Opcode::Get | Opcode::Mutate);
    let sent = bench.cluster.sent().into_iter();
    sent.filter(|sent| *sent.to.0 == *name && is_about_objects(sent.opcode))
        .count()
}

// shows: SLOT-1
#[test]
fn a_server_that_has_lost_a_slot_answers_no_more_for_it() {
    for holds in [false, true] {
        let mut bench = bench(None);
        let mut elsewhere = bench.another();
        let (mut c, mut d) = (bench.connect(), elsewhere.connect());
        let key = key_of(0, 0);
        assert_eq!(call(&mut c, &["SET", &key, "old"]), "+OK\r\n");
        if holds {
            bench.cluster.hold_local();
        }
        give(&bench, &key, 2);
        assert_eq!(call(&mut d, &["SET", &key, "new"]), "+OK\r\n");
        // This server does not know of the move. It asks the new owner, and learns of it.
        let before = asked(&bench, 2);
        assert_eq!(call(&mut c, &["GET", &key]), "$3\r\nnew\r\n");
        assert_eq!(asked(&bench, 2), before + 1);
        let same = format!("{{{key}}}2");
        for command in [
            &["GET", &key][..],
            &["SET", &key, "lost"],
            &["INCR", &key],
            &["DEL", &key],
            &["MGET", &key, &same],
            &["MSET", &key, "lost", &same, "lost"],
            &["EXISTS", &key, &same],
            &["RENAME", &key, &same],
            &["EVAL", "return redis.call('DEL', KEYS[1])", "1", &key],
        ] {
            let before = bench.cluster.executed_at_once();
            assert_eq!(call(&mut c, command), moved(&key, 2), "{command:?}");
            assert_eq!(bench.cluster.executed_at_once(), before, "{command:?}");
        }
        assert_eq!(asked(&bench, 2), before + 1, "nothing was passed on");
        assert_eq!(
            call(&mut d, &["MGET", &key, &same]),
            "*2\r\n$3\r\nnew\r\n$-1\r\n"
        );
    }
}

// shows: SLOT-1
#[test]
fn the_map_is_never_older_than_the_one_a_client_came_by() {
    let mut bench = bench(None);
    let mut c = bench.connect();
    let key = key_of(1, 0);
    let slot = KeySlot::of(key.as_bytes());
    // Another server sends clients on as soon as it knows. This one is told nothing.
    assert_eq!(call(&mut c, &["GET", &key]), moved(&key, 2));
    give(&bench, &key, 3);
    assert_eq!(call(&mut c, &["GET", &key]), moved(&key, 3));
    give(&bench, &key, 2);
    let slots = c.say("CLUSTER SLOTS");
    let rows: Vec<_> = slots.split("*3\r\n:").collect();
    let row = rows.iter().find(|row| {
        let mut ends = row.split("\r\n").take(2);
        let mut end = || ends.next().unwrap().trim_start_matches(':').parse::<u16>();
        matches!((end(), end()), (Ok(first), Ok(last)) if (first..=last).contains(&slot.number()))
    });
    assert!(row.is_some_and(|row| row.contains("10.0.0.2")), "{slots}");
    // A client that server 2 sends here is not sent back: there would be no end to it.
    give(&bench, &key, 1);
    assert_eq!(call(&mut c, &["SET", &key, "v"]), "+OK\r\n");
    assert_eq!(call(&mut c, &["GET", &key]), "$1\r\nv\r\n");
    // Nobody is sent by a map of which it is not known how old it is.
    give(&bench, &key, 2);
    call(&mut c, &["GET", &key]);
    let gone = Fault::Unreachable;
    bench.cluster.plan(Opcode::GetTable, gone, 10_000);
    assert_eq!(call(&mut c, &["GET", &key]), "$1\r\nv\r\n");
}

// shows: SLOT-2
#[test]
fn commands_wait_while_a_slot_moves() {
    for (third, to) in [(0, 2), (1, 1), (1, 3)] {
        let mut bench = bench(None);
        let mut c = bench.connect();
        let key = key_of(third, 0);
        let other = key_of(0, 1);
        c.say("CLUSTER INFO");
        withhold(&bench, &key);
        push(
            &mut c,
            &[&["SET", &key, "v"], &["APPEND", &key, "w"], &["GET", &key]],
        );
        let start = bench.cluster.now();
        c.work_until(|| bench.cluster.now() - start >= 5 * SECOND);
        assert_eq!(c.take(), b"", "they wait");
        // Those of other slots are served meanwhile, if their server is this one.
        let mut d = bench.connect();
        if third != 0 {
            assert_eq!(call(&mut d, &["SET", &other, "v"]), "+OK\r\n");
        }
        give(&bench, &key, to);
        let replies = texts(c.replies(3));
        assert!(bench.cluster.now() - start < 6 * SECOND, "{third}, {to}");
        // What waited is passed on: a run of changes of its own slots, or one command of others'.
        // Those behind it find out where the slot is.
        let second = match (third, to) {
            (1, 3) => moved(&key, 3),
            _ => ":2\r\n".to_owned(),
        };
        let third_one = match to {
            1 => "$2\r\nvw\r\n".to_owned(),
            to => moved(&key, to),
        };
        let expected = ["+OK\r\n".to_owned(), second, third_one];
        assert_eq!(replies, expected, "{third}, {to}");
    }
}

// shows: SLOT-2, SLOT-3
#[test]
fn a_command_of_a_slot_that_nobody_serves_is_given_up_and_was_not_executed() {
    for third in [0, 1] {
        let mut bench = bench(None);
        let mut c = bench.connect();
        let key = key_of(third, 0);
        c.say("CLUSTER INFO");
        withhold(&bench, &key);
        for command in [&["SET", &key, "v"][..], &["GET", &key], &["MGET", &key]] {
            let start = bench.cluster.now();
            let reply = call(&mut c, command);
            assert!(reply.starts_with("-TRYAGAIN "), "{command:?}: {reply}");
            let took = bench.cluster.now() - start;
            assert!(
                (LIMIT - SECOND..=LIMIT).contains(&took),
                "{command:?}: {took:?}"
            );
        }
        // To clients the slot belongs to the server that they ask.
        let nodes = c.say("CLUSTER NODES");
        let myself = nodes.lines().find(|line| line.contains("myself")).unwrap();
        let own = match third {
            0 => " 0-5460",
            _ => " 0-10921",
        };
        assert!(myself.ends_with(own), "{nodes}");
        give(&bench, &key, 1);
        assert_eq!(
            call(&mut c, &["GET", &key]),
            "$-1\r\n",
            "it was not executed"
        );
    }
}

// shows: SLOT-1, QUEUE-1
#[test]
fn replies_of_what_was_executed_before_the_move_leave_when_it_is_durable() {
    let mut bench = bench(None);
    let mut c = bench.connect();
    let key = key_of(0, 0);
    c.say("CLUSTER INFO");
    bench.cluster.hold_local();
    push(&mut c, &[&["SET", &key, "v"]]);
    c.settle();
    let executed = bench.cluster.executed_at_once();
    assert_eq!(executed, 1);
    give(&bench, &key, 2);
    push(&mut c, &[&["APPEND", &key, "w"], &["GET", &key]]);
    c.settle();
    assert_eq!(c.take(), b"", "nothing is durable");
    bench.cluster.make_durable(executed);
    // The first behind the move is passed on to the new owner.
    let expected = ["+OK\r\n".to_owned(), ":2\r\n".to_owned(), moved(&key, 2)];
    assert_eq!(texts(c.replies(3)), expected);
    assert_eq!(bench.cluster.executed_at_once(), executed, "by others");
}

// shows: SLOT-4
#[test]
fn nobody_is_sent_to_a_server_that_does_not_answer_a_ping() {
    let mut bench = bench(None);
    let mut c = bench.connect();
    let key = key_of(2, 0);
    c.say("CLUSTER INFO");
    // Until its answers to earlier pings are old.
    let start = bench.cluster.now();
    let mut d = bench.connect();
    withhold(&bench, &key_of(0, 0));
    push(&mut d, &[&["GET", &key_of(0, 0)]]);
    d.work_until(|| bench.cluster.now() - start >= SECOND);
    give(&bench, &key, 3);
    let silent = Fault::LoseRequest;
    bench
        .cluster
        .plan_at(ServerId(3), Opcode::Ping, silent, 1_000);
    assert_eq!(
        call(&mut c, &["SET", &key, "v"]),
        "+OK\r\n",
        "it is passed on"
    );
    assert!(!c.say("CLUSTER SLOTS").contains("10.0.0.3"));
    bench.cluster.forget_plans();
    d.work_until(|| bench.cluster.now() - start >= 3 * SECOND);
    assert_eq!(call(&mut c, &["GET", &key]), moved(&key, 3));
}
