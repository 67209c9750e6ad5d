//! Keys that expire, by the virtual clock.

use crate::bench::{Bench, Connection};
use crate::updates::converse;
use std::time::Duration;

/// Lets time pass.
fn pass(bench: &Bench, ms: u64) {
    let until = bench.cluster.now() + Duration::from_millis(ms);
    bench.cluster.run(bench.cluster.at(until, |_| {}));
}

fn number(c: &mut Connection, command: &str) -> i64 {
    let reply = c.say(command);
    let number = reply
        .strip_prefix(':')
        .and_then(|rest| rest.trim_end().parse().ok());
    number.unwrap_or_else(|| panic!("{command}: {reply}"))
}

#[test]
fn a_key_is_absent_from_its_deadline_on_to_every_command() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        let set = "SET k 5 PX 1000";
        for (command, there, gone) in [
            ("GET k", "$1\r\n5\r\n", "$-1\r\n"),
            ("EXISTS k", ":1\r\n", ":0\r\n"),
            ("STRLEN k", ":1\r\n", ":0\r\n"),
            ("TYPE k", "+string\r\n", "+none\r\n"),
            (
                "MGET k k",
                "*2\r\n$1\r\n5\r\n$1\r\n5\r\n",
                "*2\r\n$-1\r\n$-1\r\n",
            ),
            ("KEYS *", "*1\r\n$1\r\nk\r\n", "*0\r\n"),
            ("RANDOMKEY", "$1\r\nk\r\n", "$-1\r\n"),
            ("DEL k", ":1\r\n", ":0\r\n"),
            ("GETDEL k", "$1\r\n5\r\n", "$-1\r\n"),
            ("SETNX k 6", ":0\r\n", ":1\r\n"),
            ("SET k 6 XX", "+OK\r\n", "$-1\r\n"),
            ("SET k 6 GET", "$1\r\n5\r\n", "$-1\r\n"),
            ("INCR k", ":6\r\n", ":1\r\n"),
            ("APPEND k 6", ":2\r\n", ":1\r\n"),
            ("PERSIST k", ":1\r\n", ":0\r\n"),
            ("EXPIRE k 10", ":1\r\n", ":0\r\n"),
            ("GETEX k EX 10", "$1\r\n5\r\n", "$-1\r\n"),
        ] {
            for (ms, expected) in [(998, there), (1001, gone)] {
                c.say("DEL k");
                assert_eq!(c.say(set), "+OK\r\n");
                pass(&bench, ms);
                // What asks waits a little itself.
                let reply = c.say(command);
                assert!(reply == expected, "{command} after {ms} ms: {reply}");
            }
        }
    }
}

#[test]
fn commands_end_keep_and_change_lifetimes_as_in_redis() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        converse(
            &mut c,
            &[
                ("TTL none", ":-2\r\n"),
                ("PEXPIRETIME none", ":-2\r\n"),
                ("SET k 1", "+OK\r\n"),
                ("TTL k", ":-1\r\n"),
                ("EXPIRETIME k", ":-1\r\n"),
                ("EXPIRE k 100", ":1\r\n"),
                ("TTL k", ":100\r\n"),
                ("INCR k", ":2\r\n"),
                ("APPEND k 0", ":2\r\n"),
                ("SETBIT k 100 0", ":0\r\n"),
                ("TTL k", ":100\r\n"),
                ("SET k 3 KEEPTTL", "+OK\r\n"),
                ("TTL k", ":100\r\n"),
                ("EXPIRE k 50 GT", ":0\r\n"),
                ("EXPIRE k 50 LT", ":1\r\n"),
                ("EXPIRE k 60 NX", ":0\r\n"),
                ("EXPIRE k 60 XX GT", ":1\r\n"),
                ("TTL k", ":60\r\n"),
                ("GETEX k", "$1\r\n3\r\n"),
                ("TTL k", ":60\r\n"),
                ("GETEX k PERSIST", "$1\r\n3\r\n"),
                ("TTL k", ":-1\r\n"),
                // An option that is given again counts as the last one.
                ("GETEX k EX 100 EX 300", "$1\r\n3\r\n"),
                ("TTL k", ":300\r\n"),
                ("GETEX k PERSIST PERSIST", "$1\r\n3\r\n"),
                ("SET k 3 EX 100 EX 200", "+OK\r\n"),
                ("TTL k", ":200\r\n"),
                ("SET k 3 KEEPTTL KEEPTTL", "+OK\r\n"),
                ("SET k 3 EX 100 PX 1", "-ERR syntax error\r\n"),
                ("GETEX k EX 100 PX 5", "-ERR syntax error\r\n"),
                ("PEXPIRE k 9223370000000000000", ":1\r\n"),
                ("PERSIST k", ":1\r\n"),
                ("EXPIRE k 60 GT", ":0\r\n"),
                ("EXPIRE k 60 XX LT", ":0\r\n"),
                ("EXPIRE k 60 LT", ":1\r\n"),
                ("PERSIST k", ":1\r\n"),
                ("PERSIST k", ":0\r\n"),
                ("SETEX k 70 4", "+OK\r\n"),
                ("TTL k", ":70\r\n"),
                ("SET k 4", "+OK\r\n"),
                ("TTL k", ":-1\r\n"),
                ("PSETEX k 70000 5", "+OK\r\n"),
                ("TTL k", ":70\r\n"),
                ("GETSET k 6", "$1\r\n5\r\n"),
                ("TTL k", ":-1\r\n"),
                ("EXPIREAT k 9999999999", ":1\r\n"),
                ("PEXPIRETIME k", ":9999999999000\r\n"),
                ("EXPIRETIME k", ":9999999999\r\n"),
                ("EXPIRE k 0", ":1\r\n"),
                ("EXISTS k", ":0\r\n"),
                ("SET k 7 EXAT 1", "+OK\r\n"),
                ("GET k", "$-1\r\n"),
            ],
        );
        c.say("SET k 1 PX 2500");
        let (first, at) = (number(&mut c, "PTTL k"), number(&mut c, "PEXPIRETIME k"));
        assert!((2400..=2500).contains(&first), "{first}");
        pass(&bench, 1000);
        let second = number(&mut c, "PTTL k");
        assert!((1300..=first - 1000).contains(&second), "{second}");
        assert_eq!(number(&mut c, "PEXPIRETIME k"), at);
    }
}

#[test]
fn a_lifetime_whose_end_has_no_number_is_refused_by_the_clock_of_the_server() {
    // Half a minute around the longest one at the beginning of the bench's clock.
    for (unit, fits, over) in [
        ("EX", "9223370336854745", "9223370336854776"),
        ("PX", "9223370336854745000", "9223370336854775808"),
    ] {
        let p = if unit == "PX" { "P" } else { "" };
        for (name, before, behind, done) in [
            ("set", format!("SET k 1 {unit} "), "", "+OK"),
            ("getex", format!("GETEX k {unit} "), "", "$1\r\n1"),
            (
                &format!("{p}setex").to_lowercase(),
                format!("{p}SETEX k "),
                " 1",
                "+OK",
            ),
            (
                &format!("{p}expire").to_lowercase(),
                format!("{p}EXPIRE k "),
                "",
                ":1",
            ),
            ("msetex", format!("MSETEX 1 k 1 {unit} "), "", ":1"),
        ] {
            for mut bench in [Bench::new(), Bench::local()] {
                let mut c = bench.connect();
                c.say("SET k 1");
                let (fits, over) = (
                    format!("{before}{fits}{behind}"),
                    format!("{before}{over}{behind}"),
                );
                let refusal = format!("-ERR invalid expire time in '{name}' command\r\n");
                assert_eq!(c.say(&fits), format!("{done}\r\n"), "{fits}");
                c.say("PERSIST k");
                assert_eq!(c.say(&over), refusal, "{over}");
                assert_eq!(number(&mut c, "TTL k"), -1, "{over}");
                for (command, reply) in [(&fits, format!("{done}\r\n")), (&over, refusal)] {
                    c.say("MULTI");
                    assert_eq!(c.say(command), "+QUEUED\r\n");
                    assert_eq!(c.say("EXEC"), format!("*1\r\n{reply}"), "{command}");
                }
            }
        }
    }
}
