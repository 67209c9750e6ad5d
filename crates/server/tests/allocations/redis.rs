//! Commands on the Redis port. None of them allocates, and neither does their connection when it
//! turns from waiting to work and back:
//!
//! - The futures that read and write a `ByteStream` are not boxed.
//! - The thread lends the queue of commands that are parsed ahead, and that of replies that wait
//!   for replicas. An idle connection gives both back.
//!
//! A connection allocates for buffers over 4 KiB, which it gives back when it is idle. So it does
//! for the replies to a long pipeline of GETs: once whenever their buffer doubles.

use crate::rig::{Coordinator, Member};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Commands of a measurement.
const COMMANDS: u32 = 10_000;
/// Bytes of a value.
const VALUE: usize = 100;
/// How long a test waits for what must happen; only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Commands that a client sends before it reads replies, and the most allocations for each. Counted
/// are at most 0.02, 0.01, and 0.01 (SET) or 0.07 (GET).
const PIPELINES: [(u32, f64); 3] = [(1, 0.8), (16, 0.4), (128, 0.3)];

/// A connection that repeats the same commands.
struct Redis {
    stream: TcpStream,
    replies: Vec<u8>,
}

impl Redis {
    /// Connects, and makes the table.
    fn connect(member: &Member) -> Self {
        let stream = TcpStream::connect(member.redis()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let replies = Vec::new();
        let mut this = Self { stream, replies };
        this.ask(&set("key"), b"+OK\r\n", 1, 1);
        this
    }

    /// Has a command executed `times` times, `pipeline` of them before it reads their replies.
    fn ask(&mut self, command: &[u8], reply: &[u8], times: u32, pipeline: u32) {
        let (commands, wanted) = (
            command.repeat(pipeline as usize),
            reply.repeat(pipeline as usize),
        );
        self.replies.resize(wanted.len(), 0);
        for _ in 0..times / pipeline {
            self.stream.write_all(&commands).unwrap();
            self.stream.read_exact(&mut self.replies).unwrap();
            assert!(
                self.replies == wanted,
                "{}",
                String::from_utf8_lossy(&self.replies)
            );
        }
    }
}

fn get(key: &str) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes()
}

fn value() -> String {
    "v".repeat(VALUE)
}

fn set(key: &str) -> Vec<u8> {
    let (length, value) = (key.len(), value());
    format!("*3\r\n$3\r\nSET\r\n${length}\r\n{key}\r\n${VALUE}\r\n{value}\r\n").into_bytes()
}

fn value_reply() -> Vec<u8> {
    format!("${VALUE}\r\n{}\r\n", value()).into_bytes()
}

/// A server without replicas, and a connection to it.
fn alone() -> (Coordinator, Member, Redis) {
    let coordinator = Coordinator::start();
    let member = Member::start(&coordinator, 0);
    let redis = Redis::connect(&member);
    (coordinator, member, redis)
}

/// Two servers that keep each other's replicas, a connection to the first one, and a key of it.
fn with_a_backup() -> (Coordinator, [Member; 2], Redis, String) {
    let coordinator = Coordinator::start();
    let members = [(); 2].map(|()| Member::start(&coordinator, 1));
    let redis = Redis::connect(&members[0]);
    let (own, client) = coordinator.client();
    let table = async move { client.table("redis:0").await };
    let table = own.runtime.block_on(table).unwrap();
    let mut keys = (0..).map(|number| format!("key {number}"));
    let is_its_own = |key: &String| {
        let tablet = table.tablet_of(table.hash(key.as_bytes()));
        tablet.unwrap().owner == members[0].id()
    };
    let key = keys.find(is_its_own).unwrap();
    (coordinator, members, redis, key)
}

#[test]
fn sets_allocate_nothing() {
    let (_coordinator, member, mut redis) = alone();
    let set = set("key");
    for (pipeline, most) in PIPELINES {
        let what = format!("SET, {pipeline} at a time");
        member.assert_at_most(&what, most, COMMANDS, |times| {
            redis.ask(&set, b"+OK\r\n", times, pipeline);
        });
    }
}

#[test]
fn gets_allocate_nothing_but_the_buffer_of_many_replies() {
    let (_coordinator, member, mut redis) = alone();
    let (get, reply) = (get("key"), value_reply());
    for (pipeline, most) in PIPELINES {
        let what = format!("GET, {pipeline} at a time");
        member.assert_at_most(&what, most, COMMANDS, |times| {
            redis.ask(&get, &reply, times, pipeline);
        });
    }
}

/// The reply to each is a record while it waits for the replica. To send what was appended to the
/// backup and to take its answer makes 13 allocations, which all commands of a pipeline share.
/// Counted are 13.1, 0.89 and 0.11.
#[test]
fn sets_that_wait_for_a_replica_share_what_its_write_allocates() {
    let (_coordinator, members, mut redis, key) = with_a_backup();
    let set = set(&key);
    for (pipeline, most) in [(1, 18.0), (16, 2.0), (128, 0.6)] {
        let what = format!("SET with a replica, {pipeline} at a time");
        members[0].assert_at_most(&what, most, COMMANDS, |times| {
            redis.ask(&set, b"+OK\r\n", times, pipeline);
        });
    }
}
