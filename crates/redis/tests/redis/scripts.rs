//! EVAL, EVALSHA, FCALL: scripts are transactions.

use crate::bench::{Bench, Connection, encode};
use crate::updates::converse;

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
