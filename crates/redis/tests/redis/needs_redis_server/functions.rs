//! FUNCTION DUMP and RESTORE beside those of the real redis-server: payloads go both ways.

use super::show;
use crate::bench::{Bench, Connection};
use crate::real_server::{RealConnection, RealServer};

fn library(name: &str, function: &str, body: &str) -> Vec<u8> {
    let register = format!("redis.register_function('{function}', function(k, a) {body} end)");
    format!("#!lua name={name}\n{register}").into_bytes()
}

/// The bytes of a bulk reply.
fn bulk(reply: &[u8]) -> Vec<u8> {
    let start = reply.windows(2).position(|w| w == b"\r\n").unwrap() + 2;
    reply[start..reply.len() - 2].to_vec()
}

struct Both {
    ours: Connection,
    theirs: RealConnection,
}

impl Both {
    /// Says the same to both. What they answered.
    fn say(&mut self, parts: &[&[u8]]) -> Vec<u8> {
        let (got, expected) = (self.ours.call(parts), self.theirs.call(parts));
        let parts: Vec<_> = parts.iter().map(|part| show(part)).collect();
        assert_eq!(show(&got), show(&expected), "{parts:?}");
        got
    }

    fn begin_anew(&mut self) {
        self.say(&[b"FUNCTION", b"FLUSH"]);
        self.say(&[b"FUNCTION", b"LOAD", &library("a", "f", "return 'old'")]);
    }
}

#[test]
fn libraries_are_exchanged_with_the_real_server() {
    let (real, mut bench) = (RealServer::start(), Bench::local());
    let (mut ours, mut theirs) = (bench.connect(), real.connect());
    let long = format!("local x = '{}' return #x", "abcab".repeat(3000));
    let sources = [
        library("one", "f1", "return k[1] .. a[1]"),
        library("two", "f2", &long),
        library("three", "f3", "return redis.call('incr', k[1])"),
    ];
    let empty = ["FUNCTION", "DUMP"];
    assert_eq!(ours.call(&empty), theirs.call(&empty));
    for source in &sources {
        let load = [&b"FUNCTION"[..], b"LOAD", source];
        assert_eq!(ours.call(&load), theirs.call(&load));
    }
    let dumps = [
        bulk(&ours.call(&["FUNCTION", "DUMP"])),
        bulk(&theirs.call(&["FUNCTION", "DUMP"])),
    ];
    let calls = [
        "FCALL f1 1 key argument",
        "FCALL f1 x key argument",
        "FCALL f1 3 key argument",
        "FCALL f1 -1 key argument",
        "FCALL_RO f1 x key argument",
        "FCALL_RO f1 3 key argument",
        "FCALL f2 0",
        "FCALL f3 1 counter",
        "FUNCTION LIST LIBRARYNAME two WITHCODE",
        "FUNCTION STATS",
    ];
    for dump in &dumps {
        for policy in ["FLUSH", "REPLACE", "append"] {
            let restore = [&b"FUNCTION"[..], b"RESTORE", dump, policy.as_bytes()];
            if policy == "append" {
                let flush = ["FUNCTION", "FLUSH"];
                assert_eq!(ours.call(&flush), theirs.call(&flush));
            }
            assert_eq!(show(&ours.call(&restore)), "+OK\\r\\n", "{policy}");
            assert_eq!(show(&theirs.call(&restore)), "+OK\\r\\n", "{policy}");
            for call in calls {
                let parts = crate::random::words(call);
                assert_eq!(
                    show(&ours.call(&parts)),
                    show(&theirs.call(&parts)),
                    "{call}"
                );
            }
        }
    }
}

/// A payload with these libraries, closed by a footer.
fn payload(parts: &[&[u8]], version: u16) -> Vec<u8> {
    let mut bytes = parts.concat();
    bytes.extend(version.to_le_bytes());
    // Redis's CRC-64, bit by bit.
    let mut sum = 0;
    for byte in &bytes {
        sum ^= u64::from(*byte);
        for _ in 0..8 {
            let is_odd = sum & 1 == 1;
            sum >>= 1;
            if is_odd {
                sum ^= 0x95ac_9329_ac4b_c9b5;
            }
        }
    }
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// A library in a payload.
fn packed(source: &[u8]) -> Vec<u8> {
    let length = u32::try_from(source.len()).unwrap().to_be_bytes();
    [b"\xf5\x80", &length[..], source].concat()
}

#[test]
fn bad_payloads_of_libraries_are_answered_as_by_the_real_server() {
    let (real, mut bench) = (RealServer::start(), Bench::local());
    let mut both = Both {
        ours: bench.connect(),
        theirs: real.connect(),
    };
    let of = |name, function| packed(&library(name, function, "return 'new'"));
    let bodies: [&[&[u8]]; 21] = [
        &[b""],
        &[b"\xf5"],
        &[b"\xf5\x3fab"],
        &[b"\xf5\xc3\x05\x01a"],
        &[b"\xf5\x81\xff\xff\xff\xff\xff\xff\xff\xff"],
        &[b"\xf5\x82a"],
        &[b"\xf5\xc0\x05"],
        &[b"\0\x01v"],
        &[b"\xff"],
        &[&packed(b"x")],
        &[&packed(b"#!lua name=q\n")],
        &[&packed(b"#!lua name=q\nreturn (")],
        &[&packed(b"#!js name=q\n x=1")],
        &[&of("b", "g"), &of("b", "h")],
        &[&of("b", "g"), &of("c", "g")],
        &[&of("b", "f")],
        &[&of("a", "g")],
        &[&of("b", "g"), b"\0"],
        &[&of("b", "g"), &packed(b"x")],
        &[&of("b", "g"), &of("a", "f")],
        &[&of("b", "g"), &of("c", "h")],
    ];
    for body in bodies {
        for policy in [&b"APPEND"[..], b"REPLACE", b"FLUSH"] {
            both.begin_anew();
            both.say(&[b"FUNCTION", b"RESTORE", &payload(body, 10), policy]);
            for function in [&b"f"[..], b"g", b"h"] {
                both.say(&[b"FCALL", function, b"0"]);
            }
        }
    }
    both.begin_anew();
    let good = payload(&[&of("b", "g")], 10);
    let mut broken = good.clone();
    broken[20] ^= 1;
    for bad in [&payload(&[], 1000), &broken, &good[1..], b"", b"\xf5"] {
        both.say(&[b"FUNCTION", b"RESTORE", bad, b"FLUSH"]);
    }
    both.say(&[b"FUNCTION", b"RESTORE", &good, b"KEEP"]);
    both.say(&[b"FUNCTION", b"RESTORE", &good, b"FLUSH", b"x"]);
    both.say(&[b"FUNCTION", b"RESTORE"]);
    both.say(&[b"FUNCTION", b"DUMP", b"x"]);
    both.say(&[b"FUNCTION", b"LIST"]);
}
