//! The memory that all connections hold together, and whose turn it is on their core.

use crate::bench::{Bench, Connection, encode, split};
use pluvio_client::testing::{FakeCluster, Fault};
use pluvio_client::{Client, RetryReason};
use pluvio_redis::{ClientMemory, RedisOptions};
use pluvio_units::ServerId;
use pluvio_wire::{Opcode, Refusal};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A service inside the only server of a cluster, whose connections may hold so much.
fn bench(bound: usize) -> Bench {
    let cluster = FakeCluster::new(1);
    let master = cluster.local_master(ServerId(1));
    let client = Client::embedded(cluster.parts(), cluster.options(), master);
    let options = RedisOptions::default().with_memory(ClientMemory::new(bound));
    Bench::with(cluster, &client, options)
}

/// The start of a SET whose value of a mebibyte lacks its last byte.
fn unfinished() -> Vec<u8> {
    let mut set = encode(&[b"SET".as_slice(), b"k", &vec![b'v'; MIB]]);
    set.truncate(set.len() - 3);
    set
}

/// Sets keys to values of a mebibyte.
fn fill(c: &mut Connection, keys: usize) {
    for n in 0..keys {
        let key = format!("large{n}");
        let reply = c.call(&[b"SET".as_slice(), key.as_bytes(), &vec![b'v'; MIB - 100]]);
        assert_eq!(reply, b"+OK\r\n");
    }
}

fn read_all(keys: usize) -> Vec<u8> {
    let keys = (0..keys).map(|n| format!("large{n}"));
    encode(
        &core::iter::once("MGET".to_owned())
            .chain(keys)
            .collect::<Vec<_>>(),
    )
}

// shows: CLIMEM-1, CLIMEM-2, REDIS-4
#[test]
fn connections_that_hold_most_are_closed_and_the_others_go_on() {
    let mut bench = bench(16 * MIB);
    let memory = bench.service.memory();
    let mut small = bench.connect();
    assert_eq!(small.say("SET a 1"), "+OK\r\n");
    let mut large: Vec<_> = (0..40).map(|_| bench.connect()).collect();
    for c in &mut large {
        c.push(&unfinished());
        c.settle();
        assert!(memory.stats().used <= 17 * MIB as u64, "{memory:?}");
    }
    assert_eq!(small.say("GET a"), "$1\r\n1\r\n");
    for c in &mut large {
        c.settle();
    }
    let stats = memory.stats();
    assert!(stats.used <= 16 * MIB as u64, "{stats:?}");
    let closed: Vec<_> = large.iter_mut().filter(|c| c.is_closed()).collect();
    assert_eq!(closed.len() as u64, stats.evicted);
    assert!(closed.len() >= 24, "{} of 40", closed.len());
    for c in closed {
        let words = String::from_utf8(c.take()).unwrap();
        assert!(
            words.starts_with("-OOM this connection is closed"),
            "{words}"
        );
    }
    let info = small.say("INFO everything");
    assert!(info.contains(&format!("evicted_clients:{}\r\n", stats.evicted)));
    drop(large);
    assert_eq!(memory.stats().used, 0);
}

// shows: CLIMEM-1, CLIMEM-3
#[test]
fn large_replies_wait_for_each_other() {
    let mut bench = bench(32 * MIB);
    let memory = bench.service.memory();
    let mut c = bench.connect();
    fill(&mut c, 12);
    let mut readers: Vec<_> = (0..8).map(|_| bench.connect()).collect();
    for reader in &mut readers {
        reader.set_room(1000);
        reader.push(&read_all(12));
        reader.settle();
        assert!(memory.stats().used <= 32 * MIB as u64, "{memory:?}");
    }
    // Those that take their replies make room for the others. Nobody is closed.
    let mut left: Vec<_> = readers.iter_mut().collect();
    while !left.is_empty() {
        left.retain_mut(|reader| {
            reader.set_room(0);
            let mut taken = 0;
            for _ in 0..3 {
                reader.settle();
                taken += reader.take().len();
            }
            taken < MIB
        });
        bench.cluster.run(
            bench
                .cluster
                .at(bench.cluster.now() + Duration::from_millis(3), |_| ()),
        );
    }
    assert_eq!(memory.stats().evicted, 0);
    assert!(memory.stats().waited > 0);
}

// shows: CLIMEM-1
#[test]
fn who_takes_nothing_makes_room_in_the_end() {
    let mut bench = bench(32 * MIB);
    let memory = bench.service.memory();
    let mut c = bench.connect();
    fill(&mut c, 12);
    let mut idle: Vec<_> = (0..3).map(|_| bench.connect()).collect();
    for reader in &mut idle {
        reader.set_room(1000);
        reader.push(&read_all(12));
        reader.settle();
    }
    let start = bench.cluster.now();
    let reply = c.call(&["MGET", "large0", "large1"]);
    assert_eq!(reply.len(), 4 + 2 * (MIB - 100 + 12));
    let waited = bench.cluster.now() - start;
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(3));
    assert!(memory.stats().evicted >= 1);
}

// shows: CONN-7
#[test]
fn a_reply_is_not_built_on_when_its_client_is_gone() {
    let mut bench = bench(512 * MIB);
    let memory = bench.service.memory();
    let mut c = bench.connect();
    fill(&mut c, 8);
    let mut reader = bench.connect();
    let keys = (0..200).map(|n| format!("large{}", n % 8));
    let read: Vec<_> = core::iter::once("MGET".to_owned()).chain(keys).collect();
    // The first one tells the core how large the values are.
    c.call(&["MGET", "large0", "large1"]);
    reader.push(&encode(&read));
    reader.turns(8);
    let built = memory.stats().used;
    assert!(built > 0 && built < 50 * MIB as u64, "{built}");
    reader.hang_up();
    reader.settle();
    assert!(reader.is_closed());
    drop(reader);
    assert!(memory.stats().used < 4 * MIB as u64);
}

// shows: CONN-6
#[test]
fn a_large_value_leaves_in_pieces_between_which_others_have_their_turn() {
    let mut bench = bench(512 * MIB);
    let mut c = bench.connect();
    fill(&mut c, 1);
    c.push(&encode(&["GET", "large0"]));
    let (mut bytes, mut turns) = (0, 0);
    while bytes < MIB - 100 {
        c.turns(1);
        let taken = c.take().len();
        assert!(taken <= 256 << 10, "{taken} bytes in one turn");
        bytes += taken;
        turns += 1;
    }
    assert!(turns >= 8, "{turns} turns");
}

// shows: CONN-3
#[test]
fn a_pipeline_that_nobody_reads_holds_little_while_memory_is_scarce() {
    let mut bench = bench(16 * MIB);
    let memory = bench.service.memory();
    let mut c = bench.connect();
    c.call(&[b"SET".as_slice(), b"k", &[b'v'; 1000]]);
    let mut held: Vec<_> = (0..11).map(|_| bench.connect()).collect();
    for c in &mut held {
        c.push(&unfinished());
        c.settle();
    }
    let before = memory.stats().used;
    assert!(before > 8 * MIB as u64, "{before}");
    let mut deep = bench.connect();
    deep.set_room(100);
    for _ in 0..2000 {
        deep.push(&encode(&["GET", "k"]));
    }
    deep.settle();
    let more = memory.stats().used - before;
    assert!(more < 512 << 10, "{more} bytes");
}

#[test]
fn memory_that_stays_full_is_waited_for_once_in_a_pipeline() {
    let cluster = FakeCluster::new(1);
    let patience = Duration::from_millis(1500);
    let options = cluster.options().full_timeout(patience);
    let client = Client::new(cluster.parts(), options);
    let mut bench = Bench::with(cluster.clone(), &client, RedisOptions::default());
    let mut c = bench.connect();
    c.say("SET warm up");
    let full = Refusal::retry(Duration::from_millis(10), RetryReason::MemoryFull);
    cluster.plan(Opcode::Mutate, Fault::Refuse(full.clone()), u32::MAX);
    cluster.plan(Opcode::Transact, Fault::Refuse(full), u32::MAX);
    for _ in 0..2 {
        let start = cluster.now();
        for n in 0..10 {
            c.push(&encode(&["SET", &format!("k{n}"), "v"]));
            c.push(&encode(&["GET", "warm"]));
            c.push(&encode(&["MSET", "a", "v", "b", "v"]));
        }
        let replies = c.replies(30);
        for reply in replies.chunks(3) {
            assert!(reply[0].starts_with(b"-OOM ") && reply[2].starts_with(b"-OOM "));
            assert_eq!(reply[1], b"$2\r\nup\r\n");
        }
        let took = cluster.now() - start;
        assert!(took >= patience && took < 2 * patience, "{took:?}");
    }
}

#[test]
fn a_pattern_of_an_enemy_keeps_nobody_waiting() {
    let mut bench = bench(512 * MIB);
    let mut c = bench.connect();
    let key = "a".repeat(20_000);
    assert_eq!(c.call(&["SET", &key, "v"]), b"+OK\r\n");
    let pattern = format!("*{}?b*", "a".repeat(10_000));
    c.push(&encode(&["KEYS", &pattern]));
    c.turns(100);
    assert!(c.take().is_empty(), "keeps its core");
    assert_eq!(c.replies(1).concat(), b"*0\r\n");
}

/// Sends a block, and gives the reply of EXEC.
fn exec(c: &mut Connection, block: &[&str]) -> Vec<u8> {
    c.say("MULTI");
    for command in block {
        assert_eq!(c.say(command), "+QUEUED\r\n");
    }
    c.call(&["EXEC"])
}

// shows: CLIMEM-1, CONN-3, EXEC-1
#[test]
fn the_reply_of_a_block_is_bounded_as_others_are() {
    // Half of it is the limit of a reply.
    let mut bench = bench(16 * MIB);
    let memory = bench.service.memory();
    let mut c = bench.connect();
    fill(&mut c, 3);
    let too_long = b"-ERR the reply would be longer than 8388608 bytes";
    // Each DBSIZE parts the block.
    let reads = ["MGET large0 large1 large2", "DBSIZE"].repeat(5);
    let block = [&reads[..], &["SET last 1", "PING", "KEYS *"]].concat();
    let reply = exec(&mut c, &block);
    let items = split(&reply[reply.iter().position(|byte| *byte == b'\n').unwrap() + 1..]);
    assert_eq!(items.len(), block.len());
    let (done, rest) = items.split_at(6);
    for pair in done.chunks(2) {
        assert!(
            pair[0].starts_with(b"*3\r\n$") && pair[1].starts_with(b"-ERR ")
                || pair[1] == b":3\r\n"
        );
    }
    let is_read = |item: &&[u8]| item.starts_with(b"*3\r\n");
    assert_eq!(
        items.iter().copied().filter(|item| is_read(item)).count(),
        3
    );
    let refused = rest.iter().filter(|item| item.starts_with(too_long));
    assert_eq!(refused.count(), rest.len(), "PING, too");
    assert_eq!(c.say("EXISTS last"), ":0\r\n");
    // A transaction that reads first is refused as a whole.
    let reads = ["MGET large0 large1 large2"].repeat(3);
    let block = [&["SET last 1", "RENAME last first"], &reads[..]].concat();
    assert!(exec(&mut c, &block).starts_with(too_long));
    assert_eq!(c.say("EXISTS last first"), ":0\r\n");
    assert_eq!(
        exec(&mut c, &block[..4]).len(),
        6 * (MIB - 100 + 12) + 4 + 2 * 5 + 2 * 4
    );
    c.settle();
    assert_eq!(memory.stats().evicted, 0);
}

// shows: CLIMEM-1
#[test]
fn keys_that_are_found_inside_a_block_count_in_its_reply() {
    let cluster = FakeCluster::new(1);
    let master = cluster.local_master(ServerId(1));
    let client = Client::embedded(cluster.parts(), cluster.options(), master);
    let mut options = RedisOptions::default();
    options.reply_bytes_max = 100_000;
    let mut bench = Bench::with(cluster, &client, options);
    let mut c = bench.connect();
    let long = "k".repeat(1000);
    for n in 0..40 {
        c.say(&format!("SET {long}{n} v"));
    }
    let reply = String::from_utf8(exec(&mut c, &["KEYS *", "KEYS *", "KEYS *", "PING"])).unwrap();
    assert_eq!(reply.matches("*40\r\n").count(), 2);
    let refused = "-ERR the reply would be longer than ";
    assert_eq!(reply.matches(refused).count(), 1);
    assert!(reply.ends_with("+PONG\r\n"));
    // Those that concern the connection alone are counted, too.
    let commands = ["COMMAND"].repeat(20);
    let reply = String::from_utf8(exec(&mut c, &commands)).unwrap();
    let refused_some = reply.matches(refused).count();
    assert!((1..20).contains(&refused_some), "{refused_some}");
    // The transaction of their part is done before them.
    let block = [&["SELECT 1"], &commands[..], &["SET a 1"]].concat();
    let reply = String::from_utf8(exec(&mut c, &block)).unwrap();
    assert!(reply.starts_with("*22\r\n+OK\r\n") && reply.ends_with("\r\n+OK\r\n"));
    assert_eq!(reply.matches(refused).count(), refused_some);
    // A part behind them is not.
    let block = [&commands[..], &["DBSIZE", "SET b 1"]].concat();
    let reply = String::from_utf8(exec(&mut c, &block)).unwrap();
    assert_eq!(reply.matches(refused).count(), refused_some + 2);
    assert_eq!(c.say("DBSIZE"), ":1\r\n");
    assert_eq!(
        exec(&mut c, &["SELECT 0", "DBSIZE"]),
        b"*2\r\n+OK\r\n:40\r\n"
    );
}

// shows: CLIMEM-1
#[test]
fn what_a_block_reads_or_changes_is_bounded_as_that_of_one_command() {
    fn of(more: &[String]) -> Vec<&str> {
        let renames = ["SET a 1", "RENAME a b"].into_iter();
        renames.chain(more.iter().map(String::as_str)).collect()
    }
    let mut bench = Bench::local();
    let mut c = bench.connect();
    fill(&mut c, 70);
    let reads: Vec<_> = (0..70).map(|n| format!("STRLEN large{n}")).collect();
    let reply = exec(&mut c, &of(&reads));
    let expected = b"-ERR the keys that are named hold more than 67108864 bytes";
    assert!(
        reply.starts_with(expected),
        "{}",
        String::from_utf8_lossy(&reply)
    );
    assert!(exec(&mut c, &of(&reads[..60])).starts_with(b"*62\r\n+OK\r\n+OK\r\n:"));
    let changes: Vec<_> = (0..70)
        .map(|n| format!("SETRANGE new{n} 1048575 x"))
        .collect();
    let reply = exec(&mut c, &of(&changes));
    let expected = b"-ERR the changed values take more than 67108864 bytes";
    assert!(
        reply.starts_with(expected),
        "{}",
        String::from_utf8_lossy(&reply)
    );
    assert_eq!(c.say("DBSIZE"), ":71\r\n");
}

// shows: CLIMEM-1, CLIMEM-2
#[test]
fn the_commands_of_a_block_count_until_it_is_done() {
    let mut bench = Bench::new();
    let memory = bench.service.memory();
    let mut c = bench.connect();
    c.say("SET {t}k v");
    c.say("MULTI");
    for n in 0..3 {
        let key = format!("{{t}}{n}");
        c.call(&[b"SET".as_slice(), key.as_bytes(), &vec![b'v'; MIB]]);
    }
    c.settle();
    let queued = memory.stats().used;
    assert!(queued >= 3 * MIB as u64, "{queued}");
    bench
        .cluster
        .plan(Opcode::Transact, Fault::LoseRequest, 10_000);
    c.push(&encode(&["EXEC"]));
    c.settle();
    let running = memory.stats().used;
    assert!(running >= 3 * MIB as u64, "{running}");
    assert!(c.replies(1)[0].starts_with(b"-ERR it is not known"));
    c.settle();
    let left = memory.stats().used;
    assert!(left < MIB as u64, "{left}");
}

// shows: CLIMEM-1, CONN-3
#[test]
fn watched_keys_count_and_hold_nothing_else() {
    let mut bench = Bench::local();
    let memory = bench.service.memory();
    let mut c = bench.connect();
    let large: Vec<_> = (0..100).map(|n| format!("{n:060000}")).collect();
    let mut watch = vec!["WATCH"];
    watch.extend(large.iter().map(String::as_str));
    assert_eq!(c.call(&watch), b"+OK\r\n");
    c.settle();
    let used = memory.stats().used;
    assert!((6_000_000..7_000_000).contains(&used), "{used}");
    assert_eq!(c.say("UNWATCH"), "+OK\r\n");
    c.settle();
    assert!(memory.stats().used < 100_000);
}
