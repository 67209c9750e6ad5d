//! DUMP, RESTORE and LCS beside those of the real redis-server: payloads go both ways.

use crate::bench::Bench;
use crate::random::{Dice, Parts};
use crate::real_server::RealServer;

/// The bytes of a bulk reply.
fn bulk(reply: &[u8]) -> Vec<u8> {
    let start = reply.windows(2).position(|w| w == b"\r\n").unwrap() + 2;
    reply[start..reply.len() - 2].to_vec()
}

fn restore(key: &str, payload: &[u8], words: &[&str]) -> Parts {
    let mut parts: Parts = ["RESTORE", key, "0"]
        .map(|w| w.as_bytes().to_vec())
        .to_vec();
    parts.push(payload.to_vec());
    parts.extend(words.iter().map(|word| word.as_bytes().to_vec()));
    parts
}

fn values() -> Vec<Vec<u8>> {
    let mut dice = Dice(7 << 32);
    let mut values: Vec<Vec<u8>> = [
        "",
        "0",
        "-1",
        "127",
        "128",
        "-128",
        "-129",
        "32767",
        "32768",
        "-32769",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "9223372036854775807",
        "01",
        "+1",
        " 1",
        "hello",
        "1234567890123456789012345678901234567890",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    for length in [63, 64, 300, 16_383, 16_384, 70_000, 1 << 20] {
        // One that LZF packs well, and one that it cannot pack.
        values.push(b"abcabcabd".iter().copied().cycle().take(length).collect());
        let random = (0..length).map(|_| u8::try_from(dice.below(256)).unwrap());
        values.push(random.collect());
    }
    for _ in 0..200 {
        let letters = dice.below(4) + 1;
        let length = dice.below(400);
        let value = (0..length).map(|_| b'a' + u8::try_from(dice.below(letters)).unwrap());
        values.push(value.collect());
    }
    values
}

#[test]
fn payloads_are_exchanged_with_the_real_server() {
    let real = RealServer::start();
    let mut bench = Bench::local();
    let (mut ours, mut theirs) = (bench.connect(), real.connect());
    for value in values() {
        let set = [&b"SET"[..], b"k", &value];
        ours.call(&set);
        theirs.call(&set);
        let (mine, other) = (
            bulk(&ours.call(&["DUMP", "k"])),
            bulk(&theirs.call(&["DUMP", "k"])),
        );
        if mine.len() == other.len() {
            let body = mine.len() - 10;
            assert_eq!(mine[..body], other[..body], "{} bytes", value.len());
        }
        assert_eq!(
            ours.call(&restore("k", &other, &[])),
            b"-BUSYKEY Target key name already exists.\r\n"
        );
        for payload in [&mine, &other] {
            ours.call(&["DEL", "r"]);
            theirs.call(&["DEL", "r"]);
            assert_eq!(ours.call(&restore("r", payload, &[])), b"+OK\r\n");
            assert_eq!(theirs.call(&restore("r", payload, &[])), b"+OK\r\n");
            assert_eq!(bulk(&ours.call(&["GET", "r"])), value);
            assert_eq!(bulk(&theirs.call(&["GET", "r"])), value);
        }
    }
}

#[test]
fn restore_answers_as_the_real_server_does() {
    let real = RealServer::start();
    let mut bench = Bench::local();
    let (mut ours, mut theirs) = (bench.connect(), real.connect());
    ours.call(&["SET", "k", "value"]);
    theirs.call(&["SET", "k", "value"]);
    let good = bulk(&theirs.call(&["DUMP", "k"]));
    theirs.call(&["RPUSH", "list", "a"]);
    let mut broken = good.clone();
    broken[2] ^= 1;
    let mut newer = good.clone();
    let version = newer.len() - 10;
    newer[version] = 0xff;
    let payloads = [good, broken, newer, b"short".to_vec()];
    let mut dice = Dice(11 << 32);
    for _ in 0..600 {
        let name = |text: &str| text.as_bytes().to_vec();
        let key = name(dice.one(&["k", "l", "m"]));
        let mut parts = match dice.below(4) {
            0 => vec![name("DEL"), key],
            1 => vec![name("PEXPIRETIME"), key],
            2 => vec![name("GET"), key],
            _ => {
                let ttl = name(dice.one(&["0", "0", "99999999999999", "1", "-1", "x"]));
                let payload = payloads[dice.below(2) * dice.below(payloads.len())].clone();
                vec![name("RESTORE"), key, ttl, payload, name("ABSTTL")]
            }
        };
        if parts[0] == b"RESTORE" {
            for word in ["REPLACE", "IDLETIME 5", "FREQ 7", "FOO"] {
                if dice.below(4) == 0 && (word != "FOO" || dice.below(4) == 0) {
                    parts.extend(word.split(' ').map(name));
                }
            }
        }
        let (got, expected) = (ours.call(&parts), theirs.call(&parts));
        let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let parts: Vec<_> = parts.iter().map(|part| show(part)).collect();
        assert_eq!(show(&got), show(&expected), "{parts:?}");
    }
    // A payload of another type: there are only strings here.
    let list = bulk(&theirs.call(&["DUMP", "list"]));
    assert_eq!(
        ours.call(&restore("x", &list, &[])),
        b"-ERR Bad data format\r\n"
    );
}

#[test]
fn common_parts_are_those_of_the_real_server() {
    let real = RealServer::start();
    let mut bench = Bench::local();
    let (mut ours, mut theirs) = (bench.connect(), real.connect());
    let mut dice = Dice(13 << 32);
    for _ in 0..300 {
        let letters = dice.below(3) + 1;
        for key in ["a", "b"] {
            let length = dice.below(40);
            let value = (0..length).map(|_| b'a' + u8::try_from(dice.below(letters)).unwrap());
            let value: Vec<u8> = value.collect();
            let set = [&b"SET"[..], key.as_bytes(), &value];
            assert_eq!(ours.call(&set), theirs.call(&set));
        }
        for options in [
            "",
            " LEN",
            " IDX",
            " IDX WITHMATCHLEN",
            " IDX MINMATCHLEN 2 WITHMATCHLEN",
        ] {
            let command = format!("LCS a b{options}");
            let parts = crate::random::words(&command);
            let (got, expected) = (ours.call(&parts), theirs.call(&parts));
            assert_eq!(
                got.escape_ascii().to_string(),
                expected.escape_ascii().to_string(),
                "{command}"
            );
        }
    }
}
