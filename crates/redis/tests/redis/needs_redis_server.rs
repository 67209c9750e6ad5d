//! The same commands to Pluvio and to the real redis-server: the same bytes must come back.

mod dump;
mod fixed;
mod functions;
mod users;

use crate::bench::{Bench, Connection, encode};
use crate::random::{Dice, Parts, command, in_transactions, words};
use crate::real_server::{RealConnection, RealServer};
use pluvio_redis::SPECS;
use std::time::Duration;

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// A reply to ACL GETUSER without the field that Valkey has and Redis has not; others as they are.
fn without_databases(reply: Vec<u8>) -> Vec<u8> {
    let Ok(mut text) = String::from_utf8(reply.clone()) else {
        return reply;
    };
    for (with, without) in [
        ("$9\r\ndatabases\r\n$6\r\nalldbs\r\n", ""),
        ("*14\r\n$5\r\nflags", "*12\r\n$5\r\nflags"),
        ("%7\r\n$5\r\nflags", "%6\r\n$5\r\nflags"),
        ("*8\r\n$8\r\ncommands", "*6\r\n$8\r\ncommands"),
    ] {
        text = text.replace(with, without);
    }
    text.into_bytes()
}

fn is_float_sum(parts: &Parts) -> bool {
    parts[0] == b"INCRBYFLOAT" && parts.len() == 3
}

/// The number in a bulk reply, to the precision that both sides have.
fn rounded(reply: &[u8]) -> Option<f32> {
    let text = std::str::from_utf8(reply.strip_prefix(b"$")?).ok()?;
    text.split("\r\n").nth(1)?.parse().ok()
}

#[test]
fn random_commands_get_the_same_replies() {
    let real = RealServer::start();
    for seed in 0..20 {
        for protocol in ["2", "3"] {
            let mut bench = if seed % 2 == 0 {
                Bench::new()
            } else {
                Bench::local()
            };
            let (mut ours, mut theirs) = (bench.connect(), real.connect());
            ours.call(&["HELLO", protocol]);
            theirs.call(&["HELLO", protocol]);
            theirs.call(&["FLUSHALL"]);
            let mut dice = Dice(seed << 32);
            let mut story = Vec::new();
            for _ in 0..250 {
                let parts = command(&mut dice);
                let (got, expected) = (ours.call(&parts), theirs.call(&parts));
                if is_float_sum(&parts) && rounded(&got) == rounded(&expected) {
                    // Redis adds in 80-bit binary, Pluvio in decimal: the last digits differ.
                    ours.call(&[&b"DEL"[..], &parts[1]]);
                    theirs.call(&[&b"DEL"[..], &parts[1]]);
                    continue;
                }
                story.push(parts.iter().map(|p| show(p)).collect::<Vec<_>>().join(" "));
                assert_eq!(
                    show(&got),
                    show(&expected),
                    "seed {seed}, RESP{protocol}; the last commands: {:#?}",
                    &story[story.len().saturating_sub(8)..]
                );
            }
        }
    }
}

#[test]
fn pipelines_of_random_commands_get_the_same_replies() {
    let real = RealServer::start();
    for seed in 100..120 {
        let (mut bench, mut theirs) = (Bench::new(), real.connect());
        let mut ours = bench.connect();
        bench
            .cluster
            .set_latency(Duration::from_millis(1 + seed % 3));
        theirs.call(&["FLUSHALL"]);
        let mut dice = Dice(seed << 32);
        for _ in 0..10 {
            let commands: Vec<Parts> = (0..40)
                .map(|_| command(&mut dice))
                .filter(|parts| parts[0] != b"INCRBYFLOAT")
                .collect();
            for parts in &commands {
                ours.push(&encode(parts));
            }
            let got = ours.replies(commands.len());
            let expected = theirs.pipeline(&commands);
            for ((got, expected), parts) in got.iter().zip(&expected).zip(&commands) {
                let command = parts.iter().map(|p| show(p)).collect::<Vec<_>>();
                assert_eq!(show(got), show(expected), "seed {seed}: {command:?}");
            }
        }
    }
}

#[test]
fn random_transactions_get_the_same_replies() {
    let real = RealServer::start();
    for seed in 200..230 {
        let mut bench = Bench::local();
        let (mut ours, mut theirs) = (bench.connect(), real.connect());
        let (mut our_other, mut their_other) = (bench.connect(), real.connect());
        let protocol = if seed % 2 == 0 { "2" } else { "3" };
        ours.call(&["HELLO", protocol]);
        theirs.call(&["HELLO", protocol]);
        theirs.call(&["FLUSHALL"]);
        let mut dice = Dice(seed << 32);
        let mut story = Vec::new();
        let mut say = |parts: &Parts, ours: &mut Connection, theirs: &mut RealConnection| {
            story.push(parts.iter().map(|p| show(p)).collect::<Vec<_>>().join(" "));
            let got = ours.call(parts);
            let expected = theirs.call(parts);
            assert_eq!(
                show(&got),
                show(&expected),
                "seed {seed}; the last commands: {:#?}",
                &story[story.len().saturating_sub(20)..]
            );
        };
        for _ in 0..40 {
            for _ in 0..dice.below(3) {
                say(&in_transactions(&mut dice), &mut ours, &mut theirs);
            }
            if dice.below(3) == 0 {
                say(&words("WATCH a b c"), &mut ours, &mut theirs);
            }
            if dice.below(3) == 0 {
                let change = words(dice.one(&["SET a 1", "GET a", "DEL b", "INCR c"]));
                say(&change, &mut our_other, &mut their_other);
            }
            say(&words("MULTI"), &mut ours, &mut theirs);
            for _ in 0..dice.below(8) {
                say(&in_transactions(&mut dice), &mut ours, &mut theirs);
            }
            let end = words(dice.one(&["EXEC", "EXEC", "EXEC", "EXEC", "DISCARD"]));
            say(&end, &mut ours, &mut theirs);
        }
    }
}

/// Scripts whose replies depend on nothing.
const SCRIPTS: &[&str] = &[
    "return foo",
    "foo=1",
    "return redis.call('set')",
    "return redis.call('nosuch')",
    "return redis.pcall('incr','a','b')",
    "return redis.error_reply('My err')",
    "return redis.status_reply('FINE')",
    "return {err='My table err'}",
    "error('boom')",
    "error({err='X boom'})",
    "return {1,2,nil,3}",
    "return 3.99",
    "return {1,{2,'a'},false,true}",
    "return (",
    "string.x=1",
    "return redis.call()",
    "return redis.call({})",
    "return pcall(redis.call,'set')",
    "redis.call('set','k','v'); return redis.pcall('incr','k')",
    "redis.call('set','k','v'); redis.call('incr','k')",
    "return redis.setresp(4)",
    "return cjson.encode({1,2,{a=1.5,b='x'}})",
    "return cjson.decode('[1,{\"a\":null}]')[2]['a'] == cjson.null",
    "return cjson.decode('{')",
    "return redis.call('multi')",
    "return redis.call('set', 'k', 'v', 'px', '9223370400000000000')",
    "return redis.call('watch', 'k')",
    "return redis.call('exec', 'k')",
    "return redis.call('config', 'get', 'x')",
    "return redis.call('acl', 'cat', 'a', 'b')",
    "return redis.call('object', 'encoding')",
    "return redis.call('eval','return 1',0)",
    "return redis.call('incr','k','x')",
    "local a = {} ; a.x.y = 1",
    "return redis.call('mset','a','1','b','2')",
    "return redis.call('mget','a','b','none')",
    "return redis.call('set','a','1','xx','get')",
    "return redis.call('ping')",
    "return redis.call('echo', 'x')",
    "return redis.call('select', 1)",
    "return redis.call('type', 'a')",
    "return tostring(redis.call('get', 'none'))",
    "return redis.call('setbit', 'bits', 7, 1)",
    "return redis.call('bitfield', 'bits', 'get', 'u8', 0)",
    "return {redis.call('incrby', 'n', 5), redis.call('append', 'n', 'x'), redis.call('strlen', 'n')}",
    "return string.format('%5.2f|%-5s|%05d|%x', 3.14159, 'ab', 42, 255)",
    "return {string.find('hello', 'l'), string.match('a1b22', '%d+')}",
    "return {string.gsub('hello', 'l', 'L')}",
    "return string.rep('ab', 3) .. string.reverse('abc') .. string.upper('x') .. string.byte('A')",
    "local t = {5,2,8,1} table.sort(t) return t",
    "return tostring(2^53) .. ' ' .. tostring(1e100) .. ' ' .. tostring(0.1) .. ' ' .. tostring(-1/3)",
    "return bit.band(0xff, 0x0f)",
    "return cmsgpack.pack({1,2,{a=1}}, 'x', 1.5, -100, 70000)",
    "return struct.pack('>I2<i4', 258, -2)",
    "return #ARGV",
    "return redis.sha1hex('')",
    "return tostring(KEYS[1]) .. type(nil)",
    "return tonumber('0x10') + tonumber('  12  ')",
    "return next({}) == nil",
    "return select(2, 'a', 'b')",
    "local ok, e = pcall(error, 'x') return e",
    "local ok, e = pcall(error, {code=5}) return e.code",
    "return redis.REPL_ALL",
    "return {ok='a', 1, 2}",
    "redis.call('set',KEYS[1],'x') return redis.error_reply('LIMIT')",
    "return redis.call('get',KEYS[1])",
    "redis.call('incr','kept') return {err='LIMIT'}",
    "redis.call('incr','kept') return redis.pcall('incr','a','b')",
    "return redis.call('get','kept')",
    "return {double=3.5}",
    "for i=1,3 do redis.call('incr','loop') end return redis.call('get','loop')",
];

#[test]
fn scripts_give_the_same_replies() {
    let real = RealServer::start();
    for protocol in ["2", "3"] {
        let mut bench = Bench::local();
        let (mut ours, mut theirs) = (bench.connect(), real.connect());
        ours.call(&["HELLO", protocol]);
        theirs.call(&["HELLO", protocol]);
        theirs.call(&["FLUSHALL"]);
        for script in SCRIPTS {
            let command = ["EVAL", script, "1", "key", "one", "two"];
            let (got, expected) = (ours.call(&command), theirs.call(&command));
            assert_eq!(show(&got), show(&expected), "RESP{protocol}: {script}");
        }
    }
}

/// A line of a file of scripts, in which `\\\\` and `\\xNN` stand for bytes.
fn unescaped(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let length = match rest.strip_prefix('x') {
            Some(digits) => {
                bytes.push(u8::from_str_radix(&digits[..2], 16).unwrap());
                3
            }
            None => {
                bytes.push(b'\\');
                1
            }
        };
        rest = &rest[length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[test]
fn scripts_of_all_libraries_give_the_same_replies() {
    let real = RealServer::start();
    let mut differences = Vec::new();
    for protocol in ["2", "3"] {
        let mut bench = Bench::local();
        let (mut ours, mut theirs) = (bench.connect(), real.connect());
        ours.call(&["HELLO", protocol]);
        theirs.call(&["HELLO", protocol]);
        theirs.call(&["FLUSHALL"]);
        for line in include_str!("../data/scripts.txt").lines() {
            let source = unescaped(line);
            let command: [&[u8]; 7] = [b"EVAL", &source, b"2", b"k1", b"k2", b"a1", b"a2"];
            let (got, expected) = (ours.call(&command), theirs.call(&command));
            if got != expected {
                let (got, expected) = (show(&got), show(&expected));
                let difference = format!("{line}\n  ours  {got}\n  redis {expected}");
                differences.push(format!("RESP{protocol}: {difference}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn broken_streams_get_the_same_answers() {
    let real = RealServer::start();
    let pieces: [&[u8]; 28] = [
        b"*1\r\n$4\r\nPING\r\n",
        b"PING\r\n",
        b"*",
        b"$",
        b"\r\n",
        b"\n",
        b"\"",
        b"'",
        b" ",
        b"*2\r\n",
        b"$4\r\nECHO\r\n",
        b"$1\r\nx\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"*a\r\n",
        b"ECHO \"a\\x41\\n\"\r\n",
        b"ECHO 'a b'\n",
        b"ECHO a\"b\" c\r\n",
        b"1",
        b"\xff",
        b"echo \"a\"b\r\n",
        b"$536870913\r\n",
        b"*3\r\n$3\r\nFOO\r\n",
        b"\\",
        b"Host: x\r\n",
        b"POST / HTTP/1.1\r\n",
    ];
    for seed in 0..400 {
        let mut dice = Dice(seed << 32);
        let count = dice.below(8) + 1;
        let bytes: Vec<u8> = (0..count)
            .flat_map(|_| dice.one(&pieces).to_vec())
            .collect();
        let mut bench = Bench::new();
        let mut ours = bench.connect();
        ours.push(&bytes);
        ours.finish();
        ours.settle();
        let expected = real.connect().exchange(&bytes);
        assert_eq!(show(&ours.take()), show(&expected), "{}", show(&bytes));
    }
}

/// What our table says otherwise than Redis 7.0: since 7.2 these take 3 parts, so that
/// `COMMAND GETKEYS PING` gets an error of its own.
const YOUNGER: [&str; 2] = ["command|getkeys", "command|getkeysandflags"];

/// COMMAND INFO up to the categories: what clients route by. After them come tips, which are left
/// out here.
fn described(reply: &[u8]) -> String {
    let text = String::from_utf8(reply.to_vec()).unwrap();
    let own = text
        .split("\r\n*10\r\n")
        .take(2)
        .collect::<Vec<_>>()
        .join(" ");
    let own = format!("*10\r\n{own}");
    let last = own.rfind("+@").unwrap_or(own.len());
    let end = own[last..].find("\r\n").map_or(own.len(), |n| last + n);
    own[..end].to_owned()
}

#[test]
fn arities_flags_and_key_positions_are_those_of_redis() {
    let real = RealServer::start();
    let mut bench = Bench::new();
    let (mut ours, mut theirs) = (bench.connect(), real.connect());
    let mut compared = 0;
    for spec in SPECS.iter().filter(|s| !YOUNGER.contains(&s.name)) {
        let theirs = theirs.call(&["COMMAND", "INFO", spec.name]);
        // Younger than the server we compare with.
        if theirs.ends_with(b"\r\n$-1\r\n") || theirs.ends_with(b"\r\n*-1\r\n") {
            continue;
        }
        let ours = ours.call(&["COMMAND", "INFO", spec.name]);
        assert_eq!(described(&ours), described(&theirs), "{}", spec.name);
        compared += 1;
    }
    assert!(compared > 90, "{compared} commands were compared");
}
