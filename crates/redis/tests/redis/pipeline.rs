//! Order, concurrency and bounds of many commands on one connection.

use crate::bench::{Bench, Connection, encode};
use pluvio_client::RetryReason;
use pluvio_client::testing::FakeCluster;
use pluvio_client::testing::Fault;
use pluvio_redis::RedisOptions;
use pluvio_wire::{Opcode, Refusal};
use std::time::Duration;

fn text(replies: &[Vec<u8>]) -> String {
    String::from_utf8(replies.concat()).unwrap()
}

/// Lets a connection find out that its replies are small, so that as many commands as may be fly
/// together. Commands have to wait for something by then.
fn warm_up(c: &mut Connection) {
    for n in 0..40 {
        c.push(&encode(&["SET", &format!("warm{n}"), "up"]));
    }
    assert_eq!(c.replies(40).len(), 40);
}

/// Lets time pass for what a connection waits for.
fn pass(bench: &Bench, c: &mut Connection, time: Duration) {
    c.settle();
    let until = bench.cluster.now() + time;
    bench.cluster.run(bench.cluster.at(until, |_| ()));
    c.settle();
}

// shows: REDIS-1, QUEUE-1
#[test]
fn a_pipeline_is_answered_in_order_in_one_write() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        for n in 0..100 {
            c.push(&encode(&["SET".to_owned(), format!("k{n}"), n.to_string()]));
            c.push(&encode(&["GET".to_owned(), format!("k{n}")]));
            c.push(&encode(&["PING"]));
        }
        let expected: String = (0..100)
            .map(|n| {
                let value = n.to_string();
                format!("+OK\r\n${}\r\n{value}\r\n+PONG\r\n", value.len())
            })
            .collect();
        assert_eq!(text(&c.replies(300)), expected);
    }
}

#[test]
fn commands_for_one_server_wait_together() {
    let cluster = FakeCluster::new(1);
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), RedisOptions::default());
    let mut c = bench.connect();
    bench.cluster.set_latency(Duration::from_millis(10));
    warm_up(&mut c);
    let start = bench.cluster.now();
    for n in 0..256 {
        c.push(&encode(&[
            "SET".to_owned(),
            format!("k{n}"),
            "v".to_owned(),
        ]));
    }
    assert_eq!(c.replies(256).len(), 256);
    // Four runs, each with one message and its answer.
    assert_eq!(bench.cluster.now() - start, Duration::from_millis(80));
}

// shows: QUEUE-2, REDIS-2
#[test]
fn a_flag_is_not_set_before_the_data_that_it_is_about() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let mut reader = bench.connect();
    c.say("SET warm up");
    let later = Refusal::retry(Duration::from_millis(50), RetryReason::Busy);
    bench.cluster.plan(Opcode::Mutate, Fault::Refuse(later), 1);
    c.push(&encode(&["SET", "data", "new"]));
    // Some of the flags have another owner than the data.
    let flags: Vec<_> = (0..10).map(|n| format!("flag{n}")).collect();
    for flag in &flags {
        c.push(&encode(&["SET", flag, "1"]));
    }
    pass(&bench, &mut c, Duration::from_millis(30));
    for flag in &flags {
        assert_eq!(reader.say(&format!("GET {flag}")), "$-1\r\n");
    }
    assert_eq!(c.replies(11).len(), 11);
    assert_eq!(reader.say("GET data"), "$3\r\nnew\r\n");
    for flag in &flags {
        assert_eq!(reader.say(&format!("GET {flag}")), "$1\r\n1\r\n");
    }
}

// shows: REDIS-1, REDIS-2, CONN-1, QUEUE-1, QUEUE-2
#[test]
fn commands_on_one_key_and_commands_without_keys_keep_their_order() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("SET warm up");
    bench.cluster.set_latency(Duration::from_millis(10));
    let start = bench.cluster.now();
    for command in [
        vec!["SET", "a", "1"],
        vec!["INCR", "a"],
        vec!["MSET", "b", "x", "a", "7"],
        vec!["INCR", "a"],
        vec!["DBSIZE"],
        vec!["SELECT", "1"],
        vec!["GET", "a"],
    ] {
        c.push(&encode(&command));
    }
    let expected = "+OK\r\n:2\r\n+OK\r\n:8\r\n:3\r\n+OK\r\n$-1\r\n";
    assert_eq!(text(&c.replies(7)), expected);
    assert!(bench.cluster.now() - start >= Duration::from_millis(100));
}

// shows: QUEUE-3, REDIS-4
#[test]
fn the_number_of_commands_under_way_is_bounded() {
    let cluster = FakeCluster::new(1);
    let mut options = RedisOptions::default();
    options.queue_max = 10;
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), options);
    let mut c = bench.connect();
    c.say("SET warm up");
    cluster.set_latency(Duration::from_millis(10));
    let start = cluster.now();
    for n in 0..100 {
        c.push(&encode(&["GET".to_owned(), format!("k{n}")]));
    }
    assert_eq!(c.replies(100).len(), 100);
    // Ten at a time.
    assert_eq!(cluster.now() - start, Duration::from_millis(200));
}

// shows: QUEUE-3
#[test]
fn until_there_was_a_reply_replies_are_taken_for_large_ones() {
    let cluster = FakeCluster::new(1);
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), RedisOptions::default());
    bench.connect().say("SET warm up");
    let latency = Duration::from_millis(10);
    cluster.set_latency(latency);
    let mut c = bench.connect();
    for n in 0..100 {
        c.push(&encode(&["GET", &format!("k{n}")]));
    }
    assert_eq!(c.replies(32).len(), 32);
    c.settle();
    assert!(c.take().is_empty(), "the first run has 32 commands");
    assert_eq!(c.replies(68).len(), 68);
}

// shows: QUEUE-1, REDIS-1
#[test]
fn a_time_that_is_refused_gives_no_command_the_value_of_another_key() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("SET a 1");
    c.say("SET k other");
    // The sum of this time and the clock is beyond what Redis has. So GETEX only reads.
    let refused = ["GETEX", "k", "PX", "9223372036854775807"];
    let wrong = "-ERR invalid expire time in 'getex' command\r\n";
    for key in ["a", "none"] {
        let get = format!("GET {key}");
        let value = c.say(&get);
        c.push(&encode(&["GET", key]));
        c.push(&encode(&refused));
        c.push(&encode(&["GET", key]));
        assert_eq!(text(&c.replies(3)), format!("{value}{wrong}{value}"));
    }
    assert_eq!(c.say("TTL k"), ":-1\r\n");
}

#[test]
fn many_keys_are_read_in_steps() {
    let cluster = FakeCluster::new(1);
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), RedisOptions::default());
    let mut c = bench.connect();
    c.say("SET k199 v");
    let keys = (0..200).map(|n| format!("k{n}"));
    let command: Vec<_> = core::iter::once("MGET".to_owned()).chain(keys).collect();
    let reply = String::from_utf8(c.call(&command)).unwrap();
    assert!(reply.starts_with("*200\r\n$-1\r\n") && reply.ends_with("$1\r\nv\r\n"));
    assert_eq!(cluster.count_sent_batches(Opcode::Get), 4);
}

#[test]
fn commands_on_many_local_keys_give_way_to_others() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    let key = |n| format!("k{n}");
    let objects = (0..20_000).flat_map(|n| [key(n), "v".to_owned()]);
    let set: Vec<_> = core::iter::once("MSET".to_owned()).chain(objects).collect();
    assert_eq!(c.call(&set), b"+OK\r\n");
    let get: Vec<_> = core::iter::once("MGET".to_owned())
        .chain((0..20_000).map(key))
        .collect();
    let keys = ["KEYS", "*"].map(str::to_owned).to_vec();
    for command in [keys, get] {
        c.push(&encode(&command));
        c.turns(1);
        assert!(c.take().is_empty(), "{} keeps its core", command[0]);
        assert!(c.replies(1).concat().starts_with(b"*20000\r\n"));
    }
}

#[test]
fn replies_that_land_together_are_sent_in_parts() {
    let cluster = FakeCluster::new(1);
    let mut options = RedisOptions::default();
    options.output_bytes_max = 200_000;
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), options);
    let (mut c, mut other) = (bench.connect(), bench.connect());
    let value = vec![b'v'; 100_000];
    for n in 0..20 {
        c.call(&[b"SET".as_slice(), format!("k{n}").as_bytes(), &value]);
    }
    cluster.set_latency(Duration::from_millis(10));
    c.set_room(1000);
    for n in 0..20 {
        c.push(&encode(&["GET", &format!("k{n}")]));
    }
    for _ in 0..2 {
        pass(&bench, &mut c, Duration::from_millis(10));
    }
    let mut all = c.take();
    assert_eq!(all.len(), 1000);
    let list = other.say("CLIENT LIST ID 1");
    let held = list.split(" obl=").nth(1).unwrap();
    let held: usize = held.split(' ').next().unwrap().parse().unwrap();
    assert!(held <= 300_100, "{held} bytes");
    c.set_room(0);
    while all.len() < 20 * (value.len() + 11) {
        c.settle();
        all.extend(c.take());
    }
    assert_eq!(crate::bench::split(&all).len(), 20);
}

// shows: CONN-3, REDIS-4
#[test]
fn a_peer_that_does_not_read_is_held_up_and_nothing_is_lost() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    let value = vec![b'v'; 100_000];
    c.call(&[b"SET", &b"k"[..], &value]);
    c.set_room(1000);
    let wanted = 200;
    for _ in 0..wanted {
        c.push(&encode(&["GET", "k"]));
    }
    c.settle();
    let mut all = c.take();
    assert_eq!(all.len(), 1000);
    let run = bench.service.totals().commands["get"].calls;
    assert!(run < 100, "{run} commands run although nobody reads");
    c.set_room(0);
    while all.len() < wanted * (value.len() + 11) {
        c.settle();
        all.extend(c.take());
    }
    assert_eq!(crate::bench::split(&all).len(), wanted);
}

#[test]
fn a_peer_that_sends_and_shuts_down_still_gets_its_replies() {
    let mut bench = Bench::new();
    bench.cluster.set_latency(Duration::from_millis(10));
    let mut c = bench.connect();
    c.push(&encode(&["SET", "k", "v"]));
    c.push(&encode(&["GET", "k"]));
    c.push(b"*2\r\n$3\r\nGE");
    c.finish();
    assert_eq!(text(&c.replies(3)), "+OK\r\n$1\r\nv\r\n");
    assert!(c.is_closed());
}

// shows: PARSE-3
#[test]
fn garbage_after_commands_is_answered_after_them() {
    let mut bench = Bench::new();
    bench.cluster.set_latency(Duration::from_millis(10));
    let mut c = bench.connect();
    c.push(&encode(&["SET", "k", "v"]));
    c.push(b"*1\r\nGET\r\n*1\r\n$4\r\nPING\r\n");
    let expected = "+OK\r\n-ERR Protocol error: expected '$', got 'G'\r\n";
    assert_eq!(text(&c.replies(3)), expected);
    assert!(c.is_closed());
    let mut c = bench.connect();
    c.push(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(c.replies(1).is_empty() && c.is_closed());
}

#[test]
fn nothing_of_a_web_page_is_executed() {
    // A browser can be tricked into sending any body, but not into leaving out its headers. The
    // reply to what comes before them must not keep the connection alive. Redis drops it too.
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.push(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nSET k v\r\n");
    assert!(c.replies(2).is_empty() && c.is_closed());
    let mut c = bench.connect();
    assert_eq!(c.say("EXISTS k"), ":0\r\n");
}

#[test]
fn local_commands_that_wait_for_replicas_wait_together() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    bench
        .cluster
        .set_local_waits(Some(Duration::from_millis(5)));
    warm_up(&mut c);
    let start = bench.cluster.now();
    for n in 0..50 {
        c.push(&encode(&[
            "SET".to_owned(),
            format!("k{n}"),
            "v".to_owned(),
        ]));
    }
    assert_eq!(c.replies(50).len(), 50);
    assert_eq!(bench.cluster.now() - start, Duration::from_millis(5));
}

#[test]
fn an_idle_connection_is_small() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    c.say("PING");
    let size = c.size();
    assert!(size <= 2048, "the future of a connection has {size} bytes");
}
