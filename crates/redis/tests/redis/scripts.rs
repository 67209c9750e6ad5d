//! EVAL, EVALSHA, FCALL: scripts are transactions.

use crate::bench::{Bench, Connection, encode, run_together};
use crate::updates::converse;
use pluvio_client::Opcode;
use pluvio_client::testing::FakeCluster;
use pluvio_redis::{Elsewhere, RedisOptions};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

const OK: &str = "+OK\r\n";

fn eval(c: &mut Connection, script: &str, keys: &[&str], arguments: &[&str]) -> String {
    let count = keys.len().to_string();
    let mut parts = vec!["EVAL", script, &count];
    parts.extend(keys);
    parts.extend(arguments);
    String::from_utf8(c.call(&parts)).unwrap()
}

// shows: EVAL-1
#[test]
fn a_script_reads_and_writes_at_one_moment() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        let take = "local n = tonumber(redis.call('get', KEYS[1]) or '10') \
                    if n < tonumber(ARGV[1]) then return redis.error_reply('EMPTY no more') end \
                    redis.call('set', KEYS[1], n - ARGV[1], 'EX', 100) \
                    redis.call('rpush_is_unknown_here_as_pcall', 'x') \
                    return n";
        let reply = eval(&mut c, take, &["{t}stock"], &["4"]);
        assert!(
            reply.starts_with("-ERR Unknown Redis command called from script"),
            "{reply}"
        );
        assert_eq!(
            c.say("GET {t}stock"),
            "$-1\r\n",
            "a script that fails changes nothing"
        );
        let take = take.replace("redis.call('rpush", "redis.pcall('rpush");
        assert_eq!(eval(&mut c, &take, &["{t}stock"], &["4"]), ":10\r\n");
        assert_eq!(eval(&mut c, &take, &["{t}stock"], &["4"]), ":6\r\n");
        assert_eq!(
            eval(&mut c, &take, &["{t}stock"], &["4"]),
            "-EMPTY no more\r\n"
        );
        converse(
            &mut c,
            &[
                ("GET {t}stock", "$1\r\n2\r\n"),
                ("TTL {t}stock", ":100\r\n"),
            ],
        );
        // Keys that it does not name are found all the same.
        let sum = "local sum = 0 for n = 1, 20 do \
                   redis.call('set', '{t}' .. n, n) \
                   sum = sum + redis.call('get', '{t}' .. n) end \
                   redis.call('rename', '{t}1', '{t}renamed') \
                   return {sum, redis.call('exists', '{t}1', '{t}renamed'), redis.call('dbsize')}";
        assert_eq!(eval(&mut c, sum, &[], &[]), "*3\r\n:210\r\n:1\r\n:1\r\n");
        assert_eq!(c.say("GET {t}20"), "$2\r\n20\r\n");
    }
}

/// As caches clear what they hold, and rate limiters their counters.
#[test]
fn a_script_deletes_keys_that_match_a_pattern() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        for key in ["{c}1", "{c}2", "other"] {
            c.say(&format!("SET {key} v"));
        }
        let by_keys =
            "local keys = redis.call('keys', ARGV[1]) return redis.call('del', unpack(keys))";
        assert_eq!(eval(&mut c, by_keys, &[], &["{c}*"]), ":2\r\n");
        c.say("SET {c}3 v");
        let by_scan = "local at, count = '0', 0 repeat \
                       local found = redis.call('scan', at, 'match', ARGV[1], 'count', 1000) \
                       at = found[1] \
                       for _, key in ipairs(found[2]) do count = count + redis.call('del', key) end \
                       until at == '0' return count";
        assert_eq!(eval(&mut c, by_scan, &[], &["{c}*"]), ":1\r\n");
        assert_eq!(c.say("KEYS *"), "*1\r\n$5\r\nother\r\n");
        // Beside other commands between MULTI and EXEC, too.
        c.say("MULTI");
        c.say("SET {c}4 v");
        c.call(&["EVAL", by_keys, "0", "oth*"]);
        assert_eq!(c.say("EXEC"), "*2\r\n+OK\r\n:1\r\n");
        assert_eq!(
            eval(&mut c, "return redis.call('flushdb')", &[], &[])
                .split(':')
                .next(),
            Some("-ERR This Redis command is not allowed from script script")
        );
    }
}

#[test]
fn scripts_are_called_by_their_hash_through_any_server() {
    let mut bench = Bench::new();
    let mut other = bench.another();
    let (mut c, mut d) = (bench.connect(), other.connect());
    let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    let call = format!("EVALSHA {hash} 0");
    let unknown = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    assert_eq!(d.say(&call), unknown);
    assert_eq!(
        c.call(&["SCRIPT", "LOAD", "return 1"]),
        format!("$40\r\n{hash}\r\n").as_bytes()
    );
    assert_eq!(d.say(&call), ":1\r\n");
    assert_eq!(d.say(&call.to_uppercase()), ":1\r\n");
    assert_eq!(
        d.say(&format!("SCRIPT EXISTS {hash} x")),
        "*2\r\n:1\r\n:0\r\n"
    );
    assert_eq!(c.say("SCRIPT FLUSH"), OK);
    assert_eq!(c.say(&call), unknown);
    assert_eq!(c.say("FLUSHALL"), OK);
    // EVAL keeps it, too.
    assert_eq!(eval(&mut c, "return 2", &[], &[]), ":2\r\n");
    let hash = "7f923f79fe76194c868d7e1d0820de36700eb649";
    assert_eq!(c.say(&format!("EVALSHA {hash} 0")), ":2\r\n");
    assert_eq!(d.say(&format!("EVALSHA_RO {hash} 0")), ":2\r\n");
}

#[test]
fn scripts_that_only_read_write_nothing() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    c.say("SET k v");
    let refused = "-ERR Write commands are not allowed from read-only scripts.";
    for script in [
        "return redis.call('set', 'k', 1)",
        "return redis.call('del', 'k')",
    ] {
        let reply = c.call(&["EVAL_RO", script, "0"]);
        assert!(reply.starts_with(refused.as_bytes()), "{script}");
        let flagged = format!("#!lua flags=no-writes\n{script}");
        assert!(eval(&mut c, &flagged, &[], &[]).starts_with(refused));
    }
    assert_eq!(
        c.call(&["EVAL_RO", "return redis.call('get', KEYS[1])", "1", "k"]),
        b"$1\r\nv\r\n"
    );
}

// shows: EVAL-1, EVAL-2
#[test]
fn a_hundred_clients_that_count_in_scripts_lose_nothing() {
    let mut bench = Bench::local();
    let mut other = bench.another();
    let mut connections: Vec<_> = (0..50).map(|_| bench.connect()).collect();
    connections.extend((0..50).map(|_| other.connect()));
    let script = "return redis.call('incr', KEYS[1])";
    for _ in 0..5 {
        for c in &mut connections {
            c.push(&encode(&["EVAL", script, "1", "n"]));
            for command in ["MULTI", "EVAL x 1 n", "EXEC"] {
                let parts: Vec<_> = command
                    .split(' ')
                    .map(|w| if w == "x" { script } else { w })
                    .collect();
                c.push(&encode(&parts));
            }
        }
        for c in &mut connections {
            let replies = c.replies(4);
            assert!(replies[0].starts_with(b":"), "{:?}", replies[0]);
            assert!(replies[3].starts_with(b"*1\r\n:"), "{:?}", replies[3]);
        }
    }
    assert_eq!(bench.connect().say("GET n"), "$4\r\n1000\r\n");
}

#[test]
fn a_script_that_never_ends_is_given_up_and_changes_nothing() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    let forever = "redis.call('set', KEYS[1], 1) for n = 1, 1e7 do local x = n % 3 end \
                   return redis.call('get', KEYS[1])";
    // Beyond what is run at first.
    assert_eq!(eval(&mut c, forever, &["k"], &[]), "$1\r\n1\r\n");
    let eats = "local t = {} while true do t[#t + 1] = ('x'):rep(10000) .. #t end";
    let reply = eval(&mut c, eats, &["k"], &[]);
    assert!(
        reply.starts_with("-ERR the script needs more than"),
        "{reply}"
    );
    assert_eq!(
        c.say("SCRIPT KILL"),
        "-NOTBUSY No scripts in execution right now.\r\n"
    );
}

#[test]
fn functions_are_kept_by_the_cluster() {
    let mut bench = Bench::new();
    let mut other = bench.another();
    let (mut c, mut d) = (bench.connect(), other.connect());
    let library = "#!lua name=lib\n\
        redis.register_function('put', function(keys, args) return redis.call('set', keys[1], args[1]) end)\n\
        redis.register_function{function_name='look', callback=function(keys) return redis.call('get', keys[1]) end, flags={'no-writes'}}";
    assert_eq!(c.call(&["FUNCTION", "LOAD", library]), b"$3\r\nlib\r\n");
    let again = c.call(&["FUNCTION", "LOAD", library]);
    assert_eq!(again, b"-ERR Library 'lib' already exists\r\n");
    assert_eq!(
        c.call(&["FUNCTION", "LOAD", "REPLACE", library]),
        b"$3\r\nlib\r\n"
    );
    converse(
        &mut d,
        &[
            ("FCALL put 1 {t}k v", OK),
            ("FCALL_RO look 1 {t}k", "$1\r\nv\r\n"),
            (
                "FCALL_RO put 1 {t}k v",
                "-ERR Can not execute a script with write flag using *_ro command.\r\n",
            ),
            ("FCALL nosuch 0", "-ERR Function not found\r\n"),
            ("FUNCTION DELETE nosuch", "-ERR Library not found\r\n"),
            ("FUNCTION DELETE lib", OK),
            ("FCALL look 1 {t}k", "-ERR Function not found\r\n"),
            ("FUNCTION LIST", "*0\r\n"),
        ],
    );
}

/// The scripts of redis-py's lock, of a fixed window and of a token bucket.
#[test]
fn scripts_of_known_libraries_work() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let release = "local token = redis.call('get', KEYS[1])\n\
        if not token or token ~= ARGV[1] then return 0 end\n\
        redis.call('del', KEYS[1])\nreturn 1";
    let extend = "local token = redis.call('get', KEYS[1])\n\
        if not token or token ~= ARGV[1] then return 0 end\n\
        local expiration = redis.call('pttl', KEYS[1])\n\
        if not expiration then expiration = 0 end\n\
        if expiration < 0 then return 0 end\n\
        local newttl = ARGV[2]\n\
        if ARGV[3] == '0' then newttl = ARGV[2] + expiration end\n\
        redis.call('pexpire', KEYS[1], newttl)\nreturn 1";
    assert_eq!(c.say("SET lock token NX PX 10000"), OK);
    assert_eq!(
        eval(&mut c, extend, &["lock"], &["other", "5000", "0"]),
        ":0\r\n"
    );
    assert_eq!(
        eval(&mut c, extend, &["lock"], &["token", "5000", "0"]),
        ":1\r\n"
    );
    assert_eq!(eval(&mut c, release, &["lock"], &["other"]), ":0\r\n");
    assert_eq!(eval(&mut c, release, &["lock"], &["token"]), ":1\r\n");
    assert_eq!(c.say("GET lock"), "$-1\r\n");
    let window = "local current = redis.call('incrby', KEYS[1], ARGV[2])\n\
        if tonumber(current) == tonumber(ARGV[2]) then redis.call('expire', KEYS[1], ARGV[1]) end\n\
        return current";
    for n in 1..4 {
        assert_eq!(
            eval(&mut c, window, &["window"], &["60", "1"]),
            format!(":{n}\r\n")
        );
    }
    assert_eq!(c.say("TTL window"), ":60\r\n");
}

/// Of queues and the like, which work on lists, hashes and sorted sets.
#[test]
fn a_script_on_a_type_that_is_not_here_is_told_so_and_changes_nothing() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for (call, what) in [
        ("'lpush', KEYS[1], 'x'", "lists (lpush)"),
        ("'BRPOPLPUSH', KEYS[1], 'x', '0'", "lists (brpoplpush)"),
        ("'HGETALL', KEYS[1]", "hashes (hgetall)"),
        ("'zadd', KEYS[1], '1', 'x'", "sorted sets (zadd)"),
        ("'sadd', KEYS[1], 'x'", "sets (sadd)"),
        ("'XADD', KEYS[1], '*', 'a', 'b'", "streams (xadd)"),
        ("'publish', 'x', 'y'", "publish and subscribe (publish)"),
        ("'pfadd', 'x', 'y'", "HyperLogLogs (pfadd)"),
    ] {
        let script = format!("redis.call('set', KEYS[1], 'v') return redis.call({call})");
        let reply = eval(&mut c, &script, &["{t}k"], &[]);
        let expected = "-ERR Unknown Redis command called from script: this server has no";
        assert!(
            reply.starts_with(&format!("{expected} {what} script: ")),
            "{reply}"
        );
        assert_eq!(c.say("EXISTS {t}k"), ":0\r\n", "{call}");
        // Some look first whether they can.
        let script = format!("return redis.pcall({call}).err and 'fallback'");
        assert_eq!(eval(&mut c, &script, &["{t}k"], &[]), "$8\r\nfallback\r\n");
    }
}

#[test]
fn all_functions_of_a_library_find_the_commands() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let source = "#!lua name=lib\n\
        local redis_at_first, count = redis, 0\n\
        local function helper(key)\n\
            count = count + 1\n\
            redis_at_first.call('incr', key)\n\
            return redis.call('get', key) .. count\n\
        end\n\
        redis.log(redis.LOG_NOTICE, 'loading')\n\
        redis.register_function('f', function(keys) return helper(keys[1]) end)";
    assert_eq!(c.call(&["FUNCTION", "LOAD", source]), b"$3\r\nlib\r\n");
    assert_eq!(c.say("FCALL f 1 {t}k"), "$2\r\n11\r\n");
    assert_eq!(c.say("FCALL f 1 {t}k"), "$2\r\n21\r\n");
    let calls = "#!lua name=other\nredis.call('get', 'k') redis.register_function('g', print)";
    let reply = c.call(&["FUNCTION", "LOAD", calls]);
    assert!(reply.starts_with(b"-ERR"), "there are no commands yet");
}

#[test]
fn what_a_script_changes_and_reads_is_bounded() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    // 100 values of 1 MiB each, from commands of a few bytes.
    let keys: Vec<String> = (0..100).map(|n| format!("{{t}}{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(|key| &key[..]).collect();
    let fills = "for _, key in ipairs(KEYS) do redis.call('setrange', key, 1048575, 'x') end";
    let reply = eval(&mut c, fills, &keys, &[]);
    assert!(
        reply.starts_with("-ERR the script needs more than"),
        "{reply}"
    );
    assert_eq!(c.say("EXISTS {t}0"), ":0\r\n");
    // One value that is changed again and again takes no more than it does.
    let again = "for n = 1, 100 do redis.call('setrange', KEYS[1], 1048575, 'x') \
                 redis.call('del', KEYS[1]) end return redis.call('setrange', KEYS[1], 9, 'x')";
    assert_eq!(eval(&mut c, again, &["{t}k"], &[]), ":10\r\n");
    // The same value, given again and again.
    let gives = "redis.call('setrange', KEYS[1], 1048575, 'x') local keys = {} \
                 for n = 1, 100 do keys[n] = KEYS[1] end return #redis.call('mget', unpack(keys))";
    let reply = eval(&mut c, gives, &["{t}k"], &[]);
    assert!(reply.starts_with("-ERR"), "{reply}");
    // A number that is no cursor is an end.
    let scan = "local found = redis.call('scan', '-1') return {found[1], #found[2]}";
    assert_eq!(eval(&mut c, scan, &[], &[]), "*2\r\n$1\r\n0\r\n:0\r\n");
}

fn bulk(reply: &[u8]) -> Vec<u8> {
    let start = reply.windows(2).position(|w| w == b"\r\n").unwrap() + 2;
    reply[start..reply.len() - 2].to_vec()
}

fn load(c: &mut Connection, name: &str, function: &str) -> String {
    let source = format!(
        "#!lua name={name}\nredis.register_function('{function}', function() return '{name}' end)"
    );
    String::from_utf8(c.call(&["FUNCTION", "LOAD", &source])).unwrap()
}

// shows: FUNCTION-1
#[test]
fn libraries_are_restored_all_or_none() {
    let mut bench = Bench::new();
    let mut other = bench.another();
    let (mut c, mut d) = (bench.connect(), other.connect());
    // Nothing is made by looking, and by forgetting nothing.
    let none = bulk(&c.call(&["FUNCTION", "DUMP"]));
    assert_eq!(none.len(), 10);
    assert_eq!(c.say("FUNCTION FLUSH"), OK);
    load(&mut c, "one", "f1");
    load(&mut d, "two", "f2");
    let both = bulk(&c.call(&["FUNCTION", "DUMP"]));
    assert_eq!(both, bulk(&d.call(&["FUNCTION", "DUMP"])));
    let restore = |c: &mut Connection, policy: &str| {
        let reply = c.call(&[&b"FUNCTION"[..], b"RESTORE", &both, policy.as_bytes()]);
        String::from_utf8(reply).unwrap()
    };
    let names = |c: &mut Connection| {
        let list = c.say("FUNCTION LIST");
        let all = ["one", "two", "three"].into_iter();
        all.filter(|name| list.contains(&format!("\r\n{name}\r\n")))
            .collect::<Vec<_>>()
    };
    assert_eq!(c.say("FUNCTION DELETE one"), OK);
    // One of them is there: neither is restored.
    assert_eq!(
        restore(&mut d, "APPEND"),
        "-ERR Library two already exists\r\n"
    );
    assert_eq!(names(&mut c), ["two"]);
    // A function of one of them is there in another library.
    assert_eq!(c.say("FUNCTION FLUSH"), OK);
    load(&mut c, "three", "f2");
    for policy in ["APPEND", "REPLACE"] {
        assert_eq!(
            restore(&mut d, policy),
            "-ERR Function f2 already exists\r\n"
        );
    }
    assert_eq!(names(&mut c), ["three"]);
    assert_eq!(restore(&mut d, "FLUSH"), OK);
    assert_eq!(names(&mut c), ["one", "two"]);
    assert_eq!(restore(&mut c, "REPLACE"), OK);
    // An empty one forgets all.
    let flush = [&b"FUNCTION"[..], b"RESTORE", &none, b"FLUSH"];
    assert_eq!(d.call(&flush), OK.as_bytes());
    assert_eq!(names(&mut c), <[&str; 0]>::default());
}

// shows: FUNCTION-1
#[test]
fn libraries_that_are_loaded_together_never_share_a_function() {
    let mut bench = Bench::new();
    let mut other = bench.another();
    let (mut c, mut d) = (bench.connect(), other.connect());
    load(&mut c, "zero", "f0");
    for round in 0..5 {
        let source = |name: &str| {
            format!("#!lua name={name}{round}\nredis.register_function('g{round}', function() end)")
        };
        c.push(&encode(&["FUNCTION", "LOAD", &source("left")]));
        d.push(&encode(&["FUNCTION", "LOAD", &source("right")]));
        let replies = [c.replies(1), d.replies(1)].concat();
        let failed = format!("-ERR Function g{round} already exists\r\n");
        let failures = replies.iter().filter(|reply| **reply == failed.as_bytes());
        assert_eq!(failures.count(), 1, "{replies:?}");
    }
}

// shows: OVERLAY-1
#[test]
fn what_was_read_at_one_moment_is_not_committed() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    assert_eq!(c.say("MSET {t}a 1 {t}b 2"), OK);
    let sum = "return redis.call('get', '{t}a') + redis.call('get', '{t}b')";
    let both = ["{t}a", "{t}b"];
    let named = [&["EVAL_RO", sum, "2"][..], &both].concat();
    let transactions = |c: &mut Connection, command: &[&str], reply: &str| {
        let before = bench.cluster.count_sent(Opcode::Transact);
        assert_eq!(c.call(command), reply.as_bytes(), "{command:?}");
        bench.cluster.count_sent(Opcode::Transact) - before
    };
    // The first time, EVAL keeps the script: a write of another kind.
    assert_eq!(transactions(&mut c, &named, ":3\r\n"), 1);
    let written = [&["EVAL", sum, "2"][..], &both].concat();
    assert_eq!(transactions(&mut c, &written, ":3\r\n"), 1);
    assert_eq!(
        transactions(&mut c, &["COPY", "{t}no", "{t}c"], ":0\r\n"),
        1
    );
    // Without an identity: its owner keeps nothing for retries.
    let sent = bench.cluster.sent();
    let mut reads = sent.iter().filter(|sent| sent.opcode == Opcode::Transact);
    assert_eq!(
        reads.next_back().map(|read| read.operation.is_some()),
        Some(false)
    );
    // Two reads, and a commit that compares them.
    assert_eq!(transactions(&mut c, &["EVAL_RO", sum, "0"], ":3\r\n"), 3);
    // A change is committed.
    let change = "return redis.call('incr', KEYS[1])";
    let change = ["EVAL", change, "1", "{t}a"];
    assert_eq!(transactions(&mut c, &change, ":2\r\n"), 2);
    // A script that fails has changed nothing.
    let fails = "redis.call('incr', KEYS[1]) return redis.call('incr', KEYS[1], 1)";
    let before = bench.cluster.count_sent(Opcode::Transact);
    assert!(eval(&mut c, fails, &["{t}a"], &[]).starts_with("-ERR "));
    assert_eq!(bench.cluster.count_sent(Opcode::Transact) - before, 1);
    // An error that it returns is a reply.
    let returns = "redis.call('incr', KEYS[1]) return redis.error_reply('NO')";
    assert_eq!(eval(&mut c, returns, &["{t}a"], &[]), "-ERR NO\r\n");
    assert_eq!(c.say("GET {t}a"), "$1\r\n3\r\n");
}

/// A run that misses one key tells which ones it may want next.
#[test]
fn many_keys_that_are_not_named_are_read_together() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        let set = "for n = 1, 400 do redis.call('set', '{t}' .. n, n) end";
        let sum = "local sum = 0 for n = 1, 400 do \
                   sum = sum + (redis.call('get', '{t}' .. n) or 0) end return sum";
        for (script, reply) in [(set, "$-1\r\n"), (sum, ":80200\r\n")] {
            let before = bench.cluster.count_sent(Opcode::Transact);
            assert_eq!(eval(&mut c, script, &[], &[]), reply, "{script}");
            let sent = bench.cluster.count_sent(Opcode::Transact) - before;
            assert!(sent <= 12, "{sent} transactions for {script}");
        }
    }
}

/// Without its first key, this script would go on for ever, look for keys that nobody has, be
/// refused one of them, and complain.
#[test]
fn a_script_notices_nothing_of_wrong_guesses() {
    let mut bench = Bench::new();
    let (mut c, mut admin) = (bench.connect(), bench.connect());
    let walk = "local at, sum = 'first', 0 \
                repeat at = redis.call('get', '{t}' .. tostring(at)) \
                if not at then redis.call('get', 'secret') redis.log(3, 'lost') end \
                sum = sum + 1 until at == 'end' return sum";
    admin.say("SET {t}first 1");
    for n in 1..40 {
        admin.say(&format!("SET {{t}}{n} {}", n + 1));
    }
    admin.say("SET {t}40 end");
    admin.say("ACL SETUSER walker on nopass ~{t}* +@all");
    c.say("AUTH walker x");
    assert_eq!(eval(&mut c, walk, &[], &[]), ":41\r\n");
    assert_eq!(admin.say("ACL LOG"), "*0\r\n");
}

// shows: OVERLAY-1
#[test]
fn only_what_a_script_has_used_is_compared_at_its_commit() {
    // The second try reads together all that the first one used.
    for (changed, transactions) in [("{t}false", 3), ("{t}b", 5)] {
        let mut bench = Bench::new();
        let (mut c, mut d) = (bench.connect(), bench.connect());
        bench.cluster.set_latency(Duration::from_millis(1));
        d.say("MSET {t}a b {t}b a");
        // It reads `a`, then `b` and, in vain, `false`; then it asks for something else.
        let script = "local at = redis.call('get', '{t}a') \
                      for n = 1, 2 do at = redis.call('get', '{t}' .. tostring(at)) end \
                      redis.call('dbsize') return redis.call('set', '{t}a', 'b')";
        let before = bench.cluster.count_sent(Opcode::Transact);
        c.push(&encode(&["EVAL", script, "0"]));
        let cluster = bench.cluster.clone();
        let is_behind_reads = || {
            let sent = cluster.sent();
            let reads = sent.iter().filter(|sent| sent.opcode == Opcode::Transact);
            let is_other = sent
                .last()
                .is_some_and(|sent| sent.opcode != Opcode::Transact);
            reads.count() == before + 2 && is_other
        };
        c.work_until(is_behind_reads);
        assert_eq!(d.say(&format!("SET {changed} a")), OK);
        assert_eq!(c.replies(1), [OK.as_bytes()]);
        let sent = cluster.count_sent(Opcode::Transact) - before;
        assert_eq!(sent, transactions, "{changed}");
    }
}

// shows: OVERLAY-1
#[test]
fn readers_see_a_sum_that_never_changes() {
    for keys in [["{t}a", "{t}b"], ["{1}a", "{2}b"]] {
        let mut bench = Bench::new();
        let mut other = bench.another();
        bench.cluster.set_latency(Duration::from_millis(1));
        let mut c = bench.connect();
        c.call(&["SET", keys[0], "50"]);
        c.call(&["SET", keys[1], "50"]);
        let transfer = "redis.call('decr', KEYS[1]) redis.call('incr', KEYS[2]) return 100";
        let named = "return redis.call('get', KEYS[1]) + redis.call('get', KEYS[2])";
        let unnamed = "return redis.call('get', ARGV[1]) + redis.call('get', ARGV[2])";
        let [a, b] = keys;
        let commands = [
            ["EVAL", transfer, "2", a, b],
            ["EVAL_RO", named, "2", a, b],
            ["EVAL", unnamed, "0", a, b],
            ["EVAL", transfer, "2", b, a],
        ];
        let mut connections: Vec<_> = (0..4).map(|_| bench.connect()).collect();
        connections.extend((0..4).map(|_| other.connect()));
        for (n, connection) in connections.iter_mut().enumerate() {
            let command = encode(&commands[n % commands.len()]);
            (0..20).for_each(|_| connection.push(&command));
        }
        for replies in run_together(&bench.cluster, &mut connections, 20) {
            assert_eq!(replies, b":100\r\n".repeat(20));
        }
    }
}

/// Work that was handed to another thread, and the end of it.
type Work = (Box<dyn FnOnce() + Send>, oneshot::Sender<()>);

/// A bench where scripts that take long are not run before the test does so.
fn bench_with_held_work() -> (Bench, Arc<Mutex<Vec<Work>>>) {
    let held = Arc::<Mutex<Vec<Work>>>::default();
    let place = Arc::clone(&held);
    let mut options = RedisOptions::default();
    options.elsewhere = Some(Elsewhere::new(move |work| {
        let (done, end) = oneshot::channel();
        place.lock().unwrap().push((work, done));
        Box::pin(async move { drop(end.await) })
    }));
    let cluster = FakeCluster::new(1);
    let client = cluster.client();
    (Bench::with(cluster, &client, options), held)
}

const FOREVER: &str = "while true do end";

#[test]
fn all_scripts_of_a_block_have_one_time() {
    let (mut bench, _held) = bench_with_held_work();
    let mut c = bench.connect();
    c.say("SET {t}k v");
    let start = bench.cluster.now();
    c.say("MULTI");
    c.say("SET {t}done yes");
    for _ in 0..5 {
        c.call(&["EVAL", FOREVER, "1", "{t}k"]);
    }
    c.call(&[
        "EVAL",
        "return redis.call('set', KEYS[1], 'late')",
        "1",
        "{t}k",
    ]);
    let reply = c.say("EXEC");
    let passed = bench.cluster.now() - start;
    assert!(passed < Duration::from_secs(11), "{passed:?}");
    let over = "-ERR Error running script: its time was over; ";
    assert!(
        reply.starts_with(&format!("*7\r\n+OK\r\n{over}")),
        "{reply}"
    );
    assert_eq!(reply.matches(over).count(), 6, "{reply}");
    // As after any error of one command.
    assert_eq!(c.say("MGET {t}done {t}k"), "*2\r\n$3\r\nyes\r\n$1\r\nv\r\n");
}

#[test]
fn scripts_that_run_and_those_that_wait_for_them_are_killed() {
    let (mut bench, held) = bench_with_held_work();
    let (mut c, mut d, mut e) = (bench.connect(), bench.connect(), bench.connect());
    c.push(&encode(&["EVAL", FOREVER, "1", "k"]));
    c.work_until(|| !held.lock().unwrap().is_empty());
    d.push(&encode(&[
        "EVAL",
        "return redis.call('incr', KEYS[1])",
        "1",
        "k",
    ]));
    d.settle();
    assert_eq!(d.take(), b"", "it waits for its turn");
    assert_eq!(e.say("SCRIPT KILL"), OK);
    let killed = "-ERR Error running script: Script killed by user with SCRIPT KILL; ";
    let reply = String::from_utf8(d.replies(1).concat()).unwrap();
    assert!(reply.starts_with(killed), "{reply}");
    let (work, done) = held.lock().unwrap().pop().unwrap();
    work();
    done.send(()).unwrap();
    let reply = String::from_utf8(c.replies(1).concat()).unwrap();
    assert!(reply.starts_with(killed), "{reply}");
    let none = "-NOTBUSY No scripts in execution right now.\r\n";
    assert_eq!(e.say("SCRIPT KILL"), none);
    assert_eq!(
        eval(&mut d, "return redis.call('incr', KEYS[1])", &["k"], &[]),
        ":1\r\n"
    );
    // One is not run anew because its objects have changed.
    let other = "redis.call('get', 'other') while true do end";
    c.push(&encode(&["EVAL", other, "1", "k"]));
    c.work_until(|| !held.lock().unwrap().is_empty());
    assert_eq!(e.say("SET other v"), OK);
    assert_eq!(e.say("SCRIPT KILL"), OK);
    let (work, done) = held.lock().unwrap().pop().unwrap();
    work();
    done.send(()).unwrap();
    let reply = String::from_utf8(c.replies(1).concat()).unwrap();
    assert!(reply.starts_with(killed), "{reply}");
    // Nobody kills this one.
    c.push(&encode(&["EVAL", FOREVER, "1", "k"]));
    let reply = String::from_utf8(c.replies(1).concat()).unwrap();
    let over = "-ERR Error running script: its time was over; ";
    assert!(reply.starts_with(over), "{reply}");
    assert_eq!(e.say("SCRIPT KILL"), none);
}

/// More than one transaction may read.
#[test]
fn scripts_that_name_many_large_values_delete_and_read_them() {
    for mut bench in [Bench::new(), Bench::local()] {
        let mut c = bench.connect();
        let keys: Vec<String> = (0..70).map(|n| format!("{{t}}{n}")).collect();
        let keys: Vec<&str> = keys.iter().map(|key| &key[..]).collect();
        for key in &keys {
            assert_eq!(c.say(&format!("SETRANGE {key} 1048575 x")), ":1048576\r\n");
        }
        let lengths = "local sum = 0 for _, key in ipairs(KEYS) do \
                       sum = sum + redis.call('strlen', key) end return sum";
        assert_eq!(eval(&mut c, lengths, &keys[..60], &[]), ":62914560\r\n");
        let deletes = "return redis.call('del', unpack(KEYS))";
        let reply = eval(&mut c, deletes, &keys, &[]);
        let expected = "-ERR the keys that are named hold more than 67108864 bytes";
        assert!(reply.starts_with(expected), "{reply}");
        assert_eq!(eval(&mut c, deletes, &keys[..60], &[]), ":60\r\n");
        assert_eq!(c.say("DBSIZE"), ":10\r\n");
    }
}

// shows: EVAL-1
#[test]
fn values_that_are_read_in_pieces_are_those_of_one_moment() {
    let mut bench = Bench::new();
    let mut other = bench.another();
    bench.cluster.set_latency(Duration::from_millis(1));
    let mut c = bench.connect();
    let keys: Vec<String> = (0..8).map(|n| format!("{{t}}{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(|key| &key[..]).collect();
    // Each ends with a number, and all numbers are the same.
    let large = "x".repeat(1_000_000);
    let all = |number: &str| {
        let pairs = keys
            .iter()
            .map(|key| [(*key).to_owned(), format!("{large}{number}")]);
        let command = core::iter::once("MSET".to_owned()).chain(pairs.flatten().take(6));
        encode(&command.collect::<Vec<_>>())
    };
    c.push(&all("0"));
    c.replies(1);
    for key in &keys[3..] {
        c.call(&["SET", key, &large]);
    }
    let same = "local ends = {} for n, key in ipairs(KEYS) do \
                local value = redis.call('get', key) ends[n] = value:sub(1000001) end \
                return ends[1] == ends[2] and ends[2] == ends[3] and 1 or 0";
    let read = encode(&[&["EVAL_RO", same, "8"][..], &keys].concat());
    let mut connections = [bench.connect(), other.connect()];
    for round in 0..20 {
        connections[0].push(&all(&round.to_string()));
        connections[1].push(&read);
    }
    let replies = run_together(&bench.cluster, &mut connections, 20);
    assert_eq!(replies[1], b":1\r\n".repeat(20));
}

#[test]
fn a_function_that_takes_long_is_shown_and_stopped() {
    let (mut bench, held) = bench_with_held_work();
    let (mut c, mut d) = (bench.connect(), bench.connect());
    let source = "#!lua name=slow\n\
                  redis.register_function('turns', function() while true do end end)";
    c.call(&["FUNCTION", "LOAD", source]);
    let nothing = "*4\r\n$14\r\nrunning_script\r\n$-1\r\n";
    assert!(d.say("FUNCTION STATS").starts_with(nothing));
    c.push(&encode(&["FCALL", "turns", "1", "key", "argument"]));
    c.work_until(|| !held.lock().unwrap().is_empty());
    let shown = d.say("FUNCTION STATS");
    let expected = "*4\r\n$14\r\nrunning_script\r\n*6\r\n$4\r\nname\r\n$5\r\nturns\r\n\
                    $7\r\ncommand\r\n*5\r\n$5\r\nFCALL\r\n$5\r\nturns\r\n$1\r\n1\r\n\
                    $3\r\nkey\r\n$8\r\nargument\r\n$11\r\nduration_ms\r\n:";
    assert!(shown.starts_with(expected), "{shown}");
    assert_eq!(d.say("FUNCTION KILL"), OK);
    let (work, done) = held.lock().unwrap().pop().unwrap();
    work();
    done.send(()).unwrap();
    let reply = c.replies(1).concat();
    let killed = b"-ERR Error running script: Script killed by user with FUNCTION KILL";
    assert!(reply.starts_with(killed), "{reply:?}");
    assert!(d.say("FUNCTION STATS").starts_with(nothing));
}

// shows: REDIS-4
#[test]
fn going_through_keys_ends_where_there_is_no_room_for_them() {
    let cluster = FakeCluster::new(1);
    let mut options = RedisOptions::default();
    options.reply_bytes_max = 1000;
    let mut bench = Bench::with(cluster.clone(), &cluster.client(), options);
    let mut c = bench.connect();
    c.call(&["SET", "large", &"x".repeat(1000)]);
    let refused = "the reply would be longer than 1000 bytes";
    for call in ["'KEYS', '*'", "'SCAN', '0'"] {
        // The value that the script has read takes all the room.
        let script = format!("redis.call('GET', KEYS[1]) return redis.call({call})");
        let reply = eval(&mut c, &script, &["large"], &[]);
        assert!(reply.contains(refused), "{call}: {reply}");
    }
    assert_eq!(c.say("KEYS *"), "*1\r\n$5\r\nlarge\r\n");
    // The first keys are as much as the reply may be, and there are more.
    for n in 0..2000 {
        c.push(&encode(&["SET", &n.to_string(), "v"]));
    }
    assert_eq!(c.replies(2000).len(), 2000);
    assert!(c.say("KEYS *").contains(refused));
}
