//! Users, passwords, rights, and protected mode.

use crate::bench::{Bench, Connection, encode, run_together};
use pluvio_client::testing::{FakeCluster, Fault};
use pluvio_redis::{Cost, Password, RedisOptions, Users};
use pluvio_wire::Opcode;
use std::sync::Arc;
use std::time::Duration;

const NO_AUTH: &str = "-NOAUTH Authentication required.\r\n";
const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

/// A server of a cluster.
pub(crate) fn server(cluster: &FakeCluster, password: Option<&str>) -> Bench {
    let password = password.and_then(|text| Password::of_text(text.as_bytes()));
    let mut options = RedisOptions::default();
    options.users = Arc::new(Users::new(password, true, Cost::LEAST));
    Bench::with(cluster.clone(), &cluster.client(), options)
}

pub(crate) fn say_all(c: &mut Connection, story: &[(&str, &str)]) {
    for (command, reply) in story {
        assert_eq!(c.say(command), *reply, "{command}");
    }
}

// shows: PARSE-5
#[test]
fn one_password_guards_the_port() {
    let mut bench = server(&FakeCluster::new(1), Some("secret\n"));
    let mut c = bench.connect();
    let hello = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                 and select the RESP protocol version at the same time\r\n";
    say_all(
        &mut c,
        &[
            ("GET k", NO_AUTH),
            ("PING", NO_AUTH),
            ("ACL WHOAMI", NO_AUTH),
            ("MULTI", NO_AUTH),
            ("HELLO", hello),
            ("HELLO 3", hello),
            ("AUTH wrong", WRONG),
            ("AUTH nobody secret", WRONG),
            ("HELLO 3 AUTH default wrong", WRONG),
            (
                "NOSUCH",
                "-ERR unknown command 'NOSUCH', with args beginning with: \r\n",
            ),
            ("AUTH default secret", "+OK\r\n"),
            ("SET k v", "+OK\r\n"),
            ("ACL WHOAMI", "$7\r\ndefault\r\n"),
            (
                "CONFIG GET requirepass",
                "*2\r\n$11\r\nrequirepass\r\n$10\r\n(redacted)\r\n",
            ),
            ("RESET", "+RESET\r\n"),
            ("GET k", NO_AUTH),
            ("AUTH secret", "+OK\r\n"),
            ("GET k", "$1\r\nv\r\n"),
            ("QUIT", "+OK\r\n"),
        ],
    );
    let mut c = bench.connect();
    assert!(
        c.say("HELLO 3 AUTH default secret SETNAME me")
            .starts_with('%')
    );
    assert_eq!(c.say("CLIENT GETNAME"), "$2\r\nme\r\n");
    // Small commands alone before the login, also of what comes in one piece; large ones after it.
    for (first, second) in [
        ("*11\r\n", "multibulk"),
        ("*2\r\n$3\r\nGET\r\n$16385\r\n", "bulk"),
    ] {
        let mut c = bench.connect();
        c.push(first.as_bytes());
        let error = format!("-ERR Protocol error: unauthenticated {second} length\r\n");
        assert_eq!(String::from_utf8(c.replies(1).concat()).unwrap(), error);
        assert!(c.is_closed());
    }
    let large = "x".repeat(100_000);
    let mut c = bench.connect();
    c.push(&encode(&["AUTH", "secret"]));
    c.push(&encode(&["SET", "large", &large]));
    assert_eq!(c.replies(2).concat(), b"+OK\r\n+OK\r\n");
    let mut c = bench.connect();
    c.push(&encode(&["AUTH", "wrong"]));
    c.push(&encode(&["SET", "large", &large]));
    let replies = c.replies(2).concat();
    assert!(replies.starts_with(WRONG.as_bytes()));
    assert!(
        String::from_utf8(replies)
            .unwrap()
            .contains("unauthenticated bulk")
    );
}

#[test]
fn without_a_password_auth_says_so() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut c = bench.connect();
    let none = "-ERR AUTH <password> called without any password configured for the default user. \
                Are you sure your configuration is correct?\r\n";
    say_all(
        &mut c,
        &[
            ("AUTH x", none),
            ("AUTH default x", "+OK\r\n"),
            ("AUTH nobody x", WRONG),
            (
                "CONFIG GET requirepass",
                "*2\r\n$11\r\nrequirepass\r\n$0\r\n\r\n",
            ),
            ("PING", "+PONG\r\n"),
        ],
    );
}

#[test]
fn protected_mode_lets_only_this_machine_in() {
    let cluster = FakeCluster::new(1);
    let start = |password: Option<&str>| {
        let password = password.and_then(|text| Password::of_text(text.as_bytes()));
        let mut options = RedisOptions::default().with_protected_mode(true);
        options.users = Arc::new(Users::new(password, true, Cost::LEAST));
        Bench::with(cluster.clone(), &cluster.client(), options)
    };
    let mut open = start(None);
    for (peer, is_answered) in [
        ("127.0.0.1:5", true),
        ("127.8.8.8:5", true),
        ("[::1]:5", true),
        ("[::ffff:127.0.0.1]:5", true),
        ("10.0.0.7:5", false),
        ("[2001:db8::1]:5", false),
        ("nowhere", false),
    ] {
        let mut c = open.connect_from(peer);
        c.push(&encode(&["PING"]));
        let reply = String::from_utf8(c.replies(1).concat()).unwrap();
        match is_answered {
            true => assert_eq!(reply, "+PONG\r\n", "{peer}"),
            false => {
                assert!(reply.starts_with("-DENIED Redis is running in protected mode"));
                assert!(c.is_closed());
            }
        }
    }
    let mut c = open.connect();
    assert_eq!(
        c.say("CONFIG GET protected-mode"),
        "*2\r\n$14\r\nprotected-mode\r\n$3\r\nyes\r\n"
    );
    assert_eq!(c.say("CONFIG SET protected-mode no"), "+OK\r\n");
    assert_eq!(open.connect_from("10.0.0.7:5").say("PING"), "+PONG\r\n");
    let mut guarded = start(Some("secret"));
    let mut c = guarded.connect_from("10.0.0.7:5");
    assert_eq!(c.say("PING"), NO_AUTH);
    assert_eq!(c.say("AUTH secret"), "+OK\r\n");
}

pub(crate) fn admin_makes(bench: &mut Bench, rules: &str) -> Connection {
    let mut admin = bench.connect();
    assert_eq!(admin.say(&format!("ACL SETUSER {rules}")), "+OK\r\n");
    admin
}

// shows: REDIS-5
#[test]
fn users_run_what_they_may_and_nothing_else() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut admin = admin_makes(
        &mut bench,
        "bob on >pw ~b:* +@all -@dangerous -acl +acl|whoami -mget",
    );
    admin.say("SET a:1 secret");
    let mut c = bench.connect();
    let command =
        |name: &str| format!("-NOPERM User bob has no permissions to run the '{name}' command\r\n");
    let key = "-NOPERM No permissions to access a key\r\n";
    say_all(
        &mut c,
        &[
            ("AUTH bob pw", "+OK\r\n"),
            ("ACL WHOAMI", "$3\r\nbob\r\n"),
            ("SET b:1 v", "+OK\r\n"),
            ("GET b:1", "$1\r\nv\r\n"),
            ("GET a:1", key),
            ("RENAME b:1 a:2", key),
            ("MSET b:1 v a:1 v", key),
            ("MGET b:1", &command("mget")),
            ("FLUSHALL", &command("flushall")),
            ("ACL LIST", &command("acl|list")),
            ("CONFIG GET *", &command("config|get")),
            ("EVAL return 1 a:1", key),
        ],
    );
    // A pipeline of commands that are forwarded together.
    for parts in [
        ["GET", "b:1"],
        ["GET", "a:1"],
        ["GET", "b:1"],
        ["GET", "a:1"],
    ] {
        c.push(&encode(&parts));
    }
    let expected = format!("$1\r\nv\r\n{key}$1\r\nv\r\n{key}");
    assert_eq!(String::from_utf8(c.replies(4).concat()).unwrap(), expected);
    assert!(c.say("CLIENT INFO").contains(" user=bob "));
    assert_eq!(admin.say("GET a:1"), "$6\r\nsecret\r\n");
}

#[test]
fn rights_count_inside_transactions() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut admin = admin_makes(&mut bench, "bob on >pw ~b:* +@all");
    let mut c = bench.connect();
    let key = "-NOPERM No permissions to access a key\r\n";
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    say_all(
        &mut c,
        &[
            ("AUTH bob pw", "+OK\r\n"),
            ("WATCH a:1", key),
            ("MULTI", "+OK\r\n"),
            ("SET b:1 v", "+QUEUED\r\n"),
            ("SET a:1 v", key),
            ("EXEC", abort),
            ("MULTI", "+OK\r\n"),
            ("SET b:1 v", "+QUEUED\r\n"),
            ("GET b:1", "+QUEUED\r\n"),
        ],
    );
    admin.say("ACL SETUSER bob -set");
    let reason = "ACLs rules changed between the moment the transaction was accumulated and the \
                  EXEC call. This command is no longer allowed for the following reason: no \
                  permission to execute the command or subcommand";
    let expected = format!("*2\r\n-NOPERM {reason}\r\n$-1\r\n");
    assert_eq!(c.say("EXEC"), expected);
    // The user of a block stays the same.
    let auth = "-ERR AUTH is not allowed inside a transaction: it would change the user\r\n";
    say_all(
        &mut c,
        &[
            ("MULTI", "+OK\r\n"),
            ("AUTH bob pw", auth),
            ("HELLO 2 AUTH bob pw", auth),
            ("EXEC", abort),
        ],
    );
}

#[test]
fn who_may_not_say_exec_is_out_of_the_block() {
    let mut bench = server(&FakeCluster::new(1), None);
    let _admin = admin_makes(&mut bench, "bob on >pw ~* +@all -exec");
    let mut c = bench.connect();
    let aborted = "-EXECABORT Transaction discarded because of: NOPERM User bob has no permissions \
                   to run the 'exec' command\r\n";
    say_all(
        &mut c,
        &[
            ("AUTH bob pw", "+OK\r\n"),
            ("MULTI", "+OK\r\n"),
            ("SET a v", "+QUEUED\r\n"),
            ("EXEC", aborted),
            ("GET a", "$-1\r\n"),
        ],
    );
}

#[test]
fn a_change_of_a_user_is_bounded_before_it_is_looked_at() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut c = bench.connect();
    for rules in [vec!["+get"; 1025], [">a", "<a"].repeat(17)] {
        let command = [&["ACL", "SETUSER", "u"][..], &rules].concat();
        let reply = String::from_utf8(c.call(&command)).unwrap();
        assert!(reply.contains("32 of them about passwords"), "{reply}");
    }
    assert_eq!(c.say("ACL GETUSER u"), "$-1\r\n");
}

#[test]
fn rights_count_inside_scripts() {
    let mut bench = server(&FakeCluster::new(1), None);
    let _admin = admin_makes(&mut bench, "bob on >pw ~b:* %R~r:* +@all -set");
    let mut c = bench.connect();
    c.say("AUTH bob pw");
    let mut eval = |script: &str, keys: &[&str]| {
        let count = keys.len().to_string();
        let mut parts = vec!["EVAL", script, &count];
        parts.extend(keys);
        String::from_utf8(c.call(&parts)).unwrap()
    };
    assert_eq!(
        eval("return redis.call('get', KEYS[1])", &["b:1"]),
        "$-1\r\n"
    );
    assert_eq!(
        eval("return 1", &["a:1"]),
        "-NOPERM No permissions to access a key\r\n"
    );
    let denied = eval("return redis.call('set', KEYS[1], 'x')", &["b:1"]);
    let words = "-ERR ACL failure in script: User bob has no permissions to run the 'set' command";
    assert!(denied.starts_with(words), "{denied}");
    let denied = eval("return redis.call('get', 'a:1')", &[]);
    let words = "-ERR ACL failure in script: No permissions to access a key";
    assert!(denied.starts_with(words), "{denied}");
    for (call, may) in [
        ("'get', 'b:1'", ":1\r\n"),
        ("'get', 'a:1'", "$-1\r\n"),
        ("'set', 'b:1', 'x'", "$-1\r\n"),
        ("'append', 'r:1', 'x'", "$-1\r\n"),
        ("'strlen', 'r:1'", ":1\r\n"),
    ] {
        let script = format!("return redis.acl_check_cmd({call})");
        assert_eq!(eval(&script, &[]), may, "{call}");
    }
    let invalid = eval("return redis.acl_check_cmd('nosuch')", &[]);
    let words = "-ERR Invalid command passed to redis.acl_check_cmd()";
    assert!(invalid.starts_with(words), "{invalid}");
    let log = c.say("ACL LOG");
    assert!(
        log.contains("$3\r\nlua\r\n") && log.contains("$3\r\nset\r\n"),
        "{log}"
    );
}

// shows: USERS-1
#[test]
fn users_belong_to_the_cluster_and_last() {
    let cluster = FakeCluster::new(3);
    let (mut here, mut there) = (server(&cluster, None), server(&cluster, None));
    let mut admin = here.connect();
    let mut other = there.connect();
    assert_eq!(other.say("AUTH bob pw"), WRONG);
    say_all(
        &mut admin,
        &[
            ("ACL SETUSER bob on >pw ~* +get +ping", "+OK\r\n"),
            ("ACL SETUSER ann", "+OK\r\n"),
            (
                "ACL USERS",
                "*3\r\n$3\r\nann\r\n$3\r\nbob\r\n$7\r\ndefault\r\n",
            ),
        ],
    );
    cluster.run(there.service.refresh_users());
    // Its knowledge of a moment ago is new enough, until half a second later.
    cluster.run(cluster.at(cluster.now() + Duration::from_secs(1), |_| {}));
    cluster.run(there.service.refresh_users());
    assert_eq!(other.say("AUTH bob pw"), "+OK\r\n");
    assert_eq!(
        other.say("SET k v"),
        "-NOPERM User bob has no permissions to run the 'set' command\r\n"
    );
    // New rights count for connections that are open.
    admin.say("ACL SETUSER bob +set");
    cluster.run(cluster.at(cluster.now() + Duration::from_secs(1), |_| {}));
    cluster.run(there.service.refresh_users());
    assert_eq!(other.say("SET k v"), "+OK\r\n");
    // A deleted user's connections are closed, also if there is one of that name again.
    say_all(
        &mut admin,
        &[
            ("ACL DELUSER bob nobody", ":1\r\n"),
            ("ACL SETUSER bob on >pw ~* +@all", "+OK\r\n"),
        ],
    );
    cluster.run(cluster.at(cluster.now() + Duration::from_secs(1), |_| {}));
    cluster.run(there.service.refresh_users());
    other.settle();
    assert!(other.is_closed());
    // A server that starts later knows them.
    let mut late = server(&cluster, None).connect();
    assert_eq!(late.say("AUTH bob pw"), "+OK\r\n");
    assert!(late.say("ACL GETUSER bob").contains("argon2id:"));
}

#[test]
fn a_user_may_delete_itself_and_default_stays() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut admin = admin_makes(&mut bench, "bob on nopass ~* +@all");
    let mut c = bench.connect();
    let mut second = bench.connect();
    c.say("AUTH bob x");
    second.say("AUTH bob x");
    assert_eq!(
        c.say("ACL DELUSER default"),
        "-ERR The 'default' user cannot be removed\r\n"
    );
    c.push(&encode(&["ACL", "DELUSER", "bob"]));
    c.push(&encode(&["PING"]));
    assert_eq!(c.replies(2).concat(), b":1\r\n", "nothing behind it is run");
    assert!(c.is_closed());
    second.settle();
    assert!(second.is_closed());
    assert_eq!(admin.say("AUTH bob x"), WRONG);
    assert_eq!(admin.say("PING"), "+PONG\r\n");
}

#[test]
fn the_clusters_default_replaces_that_of_the_file() {
    let cluster = FakeCluster::new(1);
    let mut bench = server(&cluster, Some("first"));
    let mut c = bench.connect();
    let mut idle = bench.connect();
    say_all(
        &mut c,
        &[
            ("AUTH first", "+OK\r\n"),
            ("ACL SETUSER default >second", "+OK\r\n"),
            ("PING", "+PONG\r\n"),
            ("AUTH first", "+OK\r\n"),
            ("AUTH second", "+OK\r\n"),
            ("ACL SETUSER default <first", "+OK\r\n"),
            ("AUTH first", WRONG),
            ("ACL SETUSER default nopass", "+OK\r\n"),
        ],
    );
    assert!(bench.service.password_is_unused());
    assert_eq!(
        idle.say("PING"),
        "+PONG\r\n",
        "nobody has to log in any more"
    );
    let mut c = bench.connect();
    assert_eq!(c.say("ACL SETUSER default off"), "+OK\r\n");
    assert_eq!(c.say("PING"), "+PONG\r\n", "it goes on, as in Redis");
    assert_eq!(bench.connect().say("PING"), NO_AUTH);
    // The way back in.
    let client = cluster.client();
    let table = cluster.run(client.table("redis:users")).unwrap();
    cluster.run(client.delete(&table, b"default")).unwrap();
    cluster.run(cluster.at(cluster.now() + Duration::from_secs(1), |_| {}));
    cluster.run(bench.service.refresh_users());
    assert_eq!(bench.connect().say("AUTH first"), "+OK\r\n");
}

// shows: USERS-1
#[test]
fn two_operators_at_a_time_both_get_what_they_want() {
    let cluster = FakeCluster::new(3);
    cluster.set_latency(Duration::from_millis(2));
    let (mut here, mut there) = (server(&cluster, None), server(&cluster, None));
    let mut both = [here.connect(), there.connect()];
    both[0].say("ACL SETUSER bob on nopass");
    for n in 0..20 {
        both[0].push(&encode(&["ACL", "SETUSER", "bob", &format!("~a{n}")]));
        both[1].push(&encode(&["ACL", "SETUSER", "bob", &format!("~b{n}")]));
        let replies = run_together(&cluster, &mut both, 1);
        assert!(replies.iter().all(|reply| reply == b"+OK\r\n"), "{n}");
    }
    let user = both[1].say("ACL GETUSER bob");
    for n in 0..20 {
        assert!(
            user.contains(&format!("~a{n}")) && user.contains(&format!("~b{n}")),
            "{n}"
        );
    }
}

// shows: USERS-2
#[test]
fn nobody_is_let_in_before_the_users_are_known() {
    let cluster = FakeCluster::new(1);
    let mut first = server(&cluster, None);
    let mut admin = admin_makes(&mut first, "default resetpass >pw");
    cluster.plan(Opcode::GetTable, Fault::Unreachable, 1000);
    let mut blind = server(&cluster, None);
    let mut c = blind.connect();
    c.push(&encode(&["GET", "k"]));
    let reply = String::from_utf8(c.replies(1).concat()).unwrap();
    assert!(reply.starts_with("-TRYAGAIN") && c.is_closed(), "{reply}");
    // Those who come while somebody asks for them wait no longer than that.
    let (mut both, begun) = ([blind.connect(), blind.connect()], cluster.now());
    for c in &mut both {
        c.push(&encode(&["GET", "k"]));
    }
    let replies = run_together(&cluster, &mut both, 1);
    let is_refused = |reply: &Vec<u8>| reply.starts_with(b"-TRYAGAIN");
    assert!(replies.iter().all(is_refused), "{replies:?}");
    let took = cluster.now() - begun;
    assert!(took < Duration::from_secs(15), "{took:?}");
    // One that knows them goes on.
    cluster.run(first.service.refresh_users());
    assert_eq!(admin.say("PING"), "+PONG\r\n");
    assert_eq!(first.connect().say("PING"), NO_AUTH);
}

// shows: USERS-3
#[test]
fn a_flood_of_wrong_passwords_holds_up_nobody_else() {
    let cluster = FakeCluster::new(1);
    let mut bench = server(&cluster, Some("secret"));
    let _admin = {
        let mut admin = bench.connect();
        admin.say("AUTH secret");
        admin.say("ACL SETUSER bob on >pw ~* +@all");
        admin
    };
    let mut flood: Vec<_> = (0..200)
        .map(|n| {
            let mut c = bench.connect_from(&format!("10.0.{}.1:{n}", n % 20));
            c.push(&encode(&["AUTH", &format!("wrong{n}")]));
            c.settle();
            c
        })
        .collect();
    // While they wait, the password that is known needs no time.
    let began = cluster.now();
    let mut c = bench.connect();
    assert_eq!(c.say("AUTH secret"), "+OK\r\n");
    assert_eq!(c.say("GET k"), "$-1\r\n");
    let took = cluster.now() - began;
    assert!(took < Duration::from_millis(20), "{took:?}");
    let began = cluster.now();
    let replies = run_together(&cluster, &mut flood, 1);
    let wrong = replies
        .iter()
        .filter(|reply| *reply == WRONG.as_bytes())
        .count();
    let many = b"-ERR too many passwords wait to be checked: try again later\r\n";
    let refused = replies.iter().filter(|reply| *reply == many).count();
    // The first one was checked at once, and its place was free again.
    assert_eq!((wrong, refused), (65, 135));
    let took = cluster.now() - began;
    assert!(
        took > Duration::from_secs(3),
        "one after the other: {took:?}"
    );
    // One address has a smaller share.
    let mut one: Vec<_> = (0..40)
        .map(|n| {
            let mut c = bench.connect_from(&format!("10.9.9.9:{n}"));
            c.push(&encode(&["AUTH", "wrong"]));
            c.settle();
            c
        })
        .collect();
    let replies = run_together(&cluster, &mut one, 1);
    assert_eq!(replies.iter().filter(|reply| *reply == many).count(), 24);
    let log = c.say("ACL LOG 1");
    assert!(
        log.contains("$4\r\nauth\r\n") && log.contains("$4\r\nAUTH\r\n"),
        "{log}"
    );
    assert_eq!(bench.service.denied()[0], 65 + 16);
    let info = c.say("INFO stats");
    assert!(info.contains("acl_access_denied_auth:81\r\n"), "{info}");
}

#[test]
fn a_login_comes_before_what_follows_it() {
    let mut bench = server(&FakeCluster::new(1), None);
    let _admin = admin_makes(&mut bench, "bob on >pw ~b +get +set +ping +echo");
    for (second, expected) in [
        (&["PING"][..], "+PONG\r\n"),
        (&["ECHO", "x"], "$1\r\nx\r\n"),
        (&["SET", "b", "v"], "+OK\r\n"),
        (&["GET", "c"], "-NOPERM No permissions to access a key\r\n"),
    ] {
        let mut c = bench.connect();
        c.push(&encode(&["GET", "b"]));
        c.push(&encode(&["AUTH", "bob", "wrong"]));
        c.push(&encode(&["DBSIZE"]));
        c.push(&encode(&["AUTH", "bob", "pw"]));
        c.push(&encode(second));
        let replies = c.replies(5);
        assert_eq!(replies[1], WRONG.as_bytes());
        assert!(replies[2].starts_with(b":"), "still default");
        assert_eq!(replies[3], b"+OK\r\n");
        assert_eq!(String::from_utf8_lossy(&replies[4]), expected);
    }
    // A client that hangs up during a login leaves nothing behind.
    for _ in 0..100 {
        let mut c = bench.connect();
        c.push(&encode(&["AUTH", "bob", "wrong"]));
        c.hang_up();
        c.settle();
    }
    assert_eq!(bench.connect().say("AUTH bob pw"), "+OK\r\n");
}

// shows: DENIALS-1
#[test]
fn passwords_are_shown_nowhere() {
    let mut bench = server(&FakeCluster::new(1), Some("topsecret"));
    let mut admin = bench.connect();
    admin.say("AUTH topsecret");
    admin.say("CONFIG SET slowlog-log-slower-than 0");
    let mut watcher = bench.connect();
    watcher.say("AUTH topsecret");
    watcher.say("MONITOR");
    let mut c = bench.connect();
    // The password in the place of the name.
    c.say("AUTH topsecret default");
    c.say("AUTH default wrongsecret");
    c.say("HELLO 3 AUTH default topsecret");
    c.say("HELLO 2");
    c.say("ACL SETUSER bob on >bobsecret");
    c.say("ACL SETUSER bob <othersecret");
    c.say("CONFIG SET requirepass newsecret");
    c.say("AUTH bob bobsecret");
    for command in [
        "SLOWLOG GET -1",
        "COMMANDLOG GET -1 slow",
        "ACL LOG",
        "ACL LIST",
        "ACL GETUSER bob",
        "ACL GETUSER default",
        "CONFIG GET *",
        "CLIENT LIST",
        "INFO everything",
    ] {
        let shown = admin.say(command);
        assert!(!shown.contains("secret"), "{command}: {shown}");
    }
    watcher.settle();
    let lines = String::from_utf8(watcher.take()).unwrap();
    assert!(
        lines.contains("\"AUTH\" \"(redacted)\"") && !lines.contains("secret"),
        "{lines}"
    );
}

#[test]
fn rules_are_shown_and_refused_in_the_words_of_redis() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut c = bench.connect();
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let modifier =
        |rule: &str, why: &str| format!("-ERR Error in ACL SETUSER modifier '{rule}': {why}\r\n");
    let unknown = "Unknown command or category name in ACL";
    for (command, reply) in [
        ("ACL SETUSER a +nosuch", modifier("+nosuch", unknown)),
        ("ACL SETUSER a on foo", modifier("foo", "Syntax error")),
        (
            "ACL SETUSER a >secret <other",
            modifier(
                "<(redacted)",
                "The password you are trying to remove from the user does not exist",
            ),
        ),
        (
            "ACL LIST",
            "*1\r\n".to_owned() + &bulk("user default on nopass ~* &* +@all"),
        ),
        ("ACL SETUSER a", "+OK\r\n".to_owned()),
        (
            "ACL SETUSER b on nopass ~x* +@read -get (+get ~y)",
            "+OK\r\n".to_owned(),
        ),
        (
            "ACL LIST",
            "*3\r\n".to_owned()
                + &bulk("user a off resetchannels -@all")
                + &bulk(
                    "user b on nopass ~x* resetchannels -@all +@read -get (~y resetchannels -@all +get)",
                )
                + &bulk("user default on nopass ~* &* +@all"),
        ),
        ("ACL DRYRUN b get y", "+OK\r\n".to_owned()),
        (
            "ACL DRYRUN b get x",
            bulk("User b has no permissions to access the 'x' key"),
        ),
        (
            "ACL DRYRUN b set x 1",
            bulk("User b has no permissions to run the 'set' command"),
        ),
        (
            "ACL DRYRUN nobody get x",
            "-ERR User 'nobody' not found\r\n".to_owned(),
        ),
        (
            "ACL DRYRUN b nosuch",
            "-ERR Command 'nosuch' not found\r\n".to_owned(),
        ),
        (
            "ACL DRYRUN b get",
            "-ERR wrong number of arguments for 'get' command\r\n".to_owned(),
        ),
        ("ACL GETUSER nobody", "$-1\r\n".to_owned()),
        (
            "ACL LOG x",
            "-ERR value is not an integer or out of range\r\n".to_owned(),
        ),
        ("ACL LOG", "*0\r\n".to_owned()),
        ("ACL LOG RESET", "+OK\r\n".to_owned()),
    ] {
        assert_eq!(c.say(command), reply, "{command}");
    }
    let drawn = c.say("ACL GENPASS");
    assert_eq!(drawn.len(), "$64\r\n".len() + 64 + 2);
    assert_ne!(drawn, c.say("ACL GENPASS"));
    assert!(c.say("ACL GENPASS 5").starts_with("$2\r\n"));
    assert!(
        c.say("ACL SAVE")
            .contains("not configured to use an ACL file")
    );
    assert_eq!(c.say("CLIENT KILL USER b"), ":0\r\n");
    assert_eq!(
        c.say("CLIENT KILL USER nobody"),
        "-ERR No such user 'nobody'\r\n"
    );
}
