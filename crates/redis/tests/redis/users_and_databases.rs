//! Rights by database, as in Valkey 9.1.

use crate::bench::{Connection, encode};
use crate::users::{admin_makes, say_all, server};
use pluvio_client::testing::FakeCluster;
use std::time::Duration;

const DENIED: &str = "-NOPERM No permissions to access database\r\n";
const ABORT: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Sends commands in one piece, and gives all replies.
fn pipeline(c: &mut Connection, commands: &[&str]) -> String {
    let parts = |words: &&str| encode(&words.split(' ').collect::<Vec<_>>());
    let bytes: Vec<u8> = commands.iter().flat_map(parts).collect();
    c.push(&bytes);
    String::from_utf8(c.replies(commands.len()).concat()).unwrap()
}

fn eval(c: &mut Connection, script: &str) -> String {
    String::from_utf8(c.call(&["EVAL", script, "0"])).unwrap()
}

#[test]
fn rules_of_databases_are_shown_as_they_were_given() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut c = bench.connect();
    let shown = |c: &mut Connection, rule: &str| {
        let list = c.say("ACL LIST");
        assert!(
            list.contains(&bulk(&format!("user bob off resetchannels{rule} -@all"))),
            "{list}"
        );
        let user = c.say("ACL GETUSER bob");
        let databases = user.split("$9\r\ndatabases\r\n").nth(1).unwrap();
        databases.split("\r\n").nth(1).unwrap().to_owned()
    };
    for (rules, rule, field) in [
        ("", "", "alldbs"),
        ("db=3,1,3", " db=1,3", "db=1,3"),
        // The last one counts, as in Valkey.
        ("db=0 DB=2", " db=2", "db=2"),
        ("resetdbs", " resetdbs", ""),
        ("db=15", " db=15", "db=15"),
        ("AllDbs", "", "alldbs"),
        ("db=7 alldbs db=00", " db=0", "db=0"),
        ("reset", "", "alldbs"),
    ] {
        let command = format!("ACL SETUSER bob {rules}");
        assert_eq!(c.say(command.trim()), "+OK\r\n");
        if rules == "reset" {
            let list = c.say("ACL LIST");
            assert!(list.contains("user bob off sanitize-payload resetchannels -@all"));
            continue;
        }
        assert_eq!(shown(&mut c, rule), field, "{rules}");
    }
    assert_eq!(
        c.say("ACL SETUSER ann (db=0,1 +get ~x) (resetdbs +@all)"),
        "+OK\r\n"
    );
    let rest = "(~x resetchannels db=0,1 -@all +get) (resetchannels resetdbs +@all)";
    let list = c.say("ACL LIST");
    assert!(list.contains(rest), "{list}");
    let fields = "*8\r\n$8\r\ncommands\r\n$10\r\n-@all +get\r\n$4\r\nkeys\r\n$2\r\n~x\r\n\
                  $8\r\nchannels\r\n$0\r\n\r\n$9\r\ndatabases\r\n$6\r\ndb=0,1\r\n";
    let user = c.say("ACL GETUSER ann");
    assert!(user.contains(fields), "{user}");
}

#[test]
fn numbers_of_no_database_are_refused_and_change_nothing() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut c = admin_makes(&mut bench, "bob db=4");
    let range = "The provided database ID is out of range";
    for (rule, why) in [
        ("db=16", range),
        ("db=-1", range),
        ("db=1,99", range),
        ("db=123456789012345678901234567890", range),
        ("db=", "Syntax error"),
        ("db=x", "Syntax error"),
        ("db=,1", "Syntax error"),
        ("db=1,", "Syntax error"),
        ("db=1,,2", "Syntax error"),
        ("db=1;2", "Syntax error"),
        ("db", "Syntax error"),
        ("(db=16)", range),
    ] {
        let command = format!("ACL SETUSER bob {rule}");
        let reply = format!("-ERR Error in ACL SETUSER modifier '{rule}': {why}\r\n");
        assert_eq!(c.say(&command), reply);
    }
    assert!(c.say("ACL LIST").contains(" db=4 "));
}

// shows: RIGHTS-2
#[test]
fn a_user_uses_only_its_databases() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut admin = admin_makes(&mut bench, "bob on nopass ~* +@all db=1,2");
    admin.say("SET k secret");
    let mut c = bench.connect();
    // It begins in database 0, where it may do what needs no database.
    say_all(
        &mut c,
        &[
            ("AUTH bob x", "+OK\r\n"),
            ("PING", "+PONG\r\n"),
            ("ACL WHOAMI", "$3\r\nbob\r\n"),
            ("UNWATCH", "+OK\r\n"),
        ],
    );
    for command in [
        "GET k",
        "SET k v",
        "MGET k",
        "DBSIZE",
        "SCAN 0",
        "KEYS *",
        "RANDOMKEY",
        "FLUSHDB",
        "FLUSHALL",
        "WATCH k",
        "OBJECT ENCODING k",
        "MEMORY USAGE k",
        "DEBUG OBJECT k",
        "EVAL return(1) 0",
        "EVAL_RO return(1) 0",
        "FCALL f 0",
        "SELECT 0",
        "SELECT 3",
        "MOVE k 1",
        "COPY k k DB 1",
        "COPY k k2 REPLACE",
        "SWAPDB 0 1",
        "SWAPDB 1 3",
    ] {
        assert_eq!(c.say(command), DENIED, "{command}");
    }
    say_all(
        &mut c,
        &[
            ("SELECT 1", "+OK\r\n"),
            ("SET k v", "+OK\r\n"),
            ("DBSIZE", ":1\r\n"),
            ("EVAL return(1) 0", ":1\r\n"),
            ("COPY k k2 DB 2", ":1\r\n"),
            ("COPY k k3 REPLACE", ":1\r\n"),
            ("COPY k k DB 0", DENIED),
            ("COPY k k REPLACE DB 0", DENIED),
            ("COPY k k DB 2 DB 0", DENIED),
            ("MOVE k 0", DENIED),
            ("MOVE k 2", ":1\r\n"),
            ("FLUSHALL", DENIED),
            ("FLUSHDB", "+OK\r\n"),
            ("SELECT 99", "-ERR DB index is out of range\r\n"),
            (
                "SELECT x",
                "-ERR value is not an integer or out of range\r\n",
            ),
            ("SWAPDB 2 2", "+OK\r\n"),
            ("SELECT 2", "+OK\r\n"),
            ("GET k", "$1\r\nv\r\n"),
            ("RESET", "+RESET\r\n"),
            ("GET k", "$6\r\nsecret\r\n"),
        ],
    );
    // All databases, one by one, are all.
    let all: Vec<_> = (0..16).map(|n: u8| n.to_string()).collect();
    admin.say(&format!("ACL SETUSER bob db={}", all.join(",")));
    assert_eq!(c.say("AUTH bob x"), "+OK\r\n");
    assert_eq!(c.say("FLUSHALL"), "+OK\r\n");
}

#[test]
fn selectors_have_databases_of_their_own() {
    let mut bench = server(&FakeCluster::new(1), None);
    let rules = "bob on nopass (db=0,1 +set +select ~w*) (db=1,2 +get +select ~r*)";
    let _admin = admin_makes(&mut bench, rules);
    let mut c = bench.connect();
    let command =
        |name: &str| format!("-NOPERM User bob has no permissions to run the '{name}' command\r\n");
    let key = "-NOPERM No permissions to access a key\r\n";
    // Of several reasons the one is told that got furthest: the first rights have all databases.
    say_all(
        &mut c,
        &[
            ("AUTH bob x", "+OK\r\n"),
            ("SET w v", "+OK\r\n"),
            ("GET r", &command("get")),
            ("SELECT 1", "+OK\r\n"),
            ("SET w v", "+OK\r\n"),
            ("SET r v", key),
            ("GET r", "$-1\r\n"),
            ("SELECT 2", "+OK\r\n"),
            ("SET w v", &command("set")),
            ("GET r", "$-1\r\n"),
            ("SELECT 3", &command("select")),
        ],
    );
}

#[test]
fn rights_by_database_change_at_once() {
    let cluster = FakeCluster::new(1);
    let mut bench = server(&cluster, None);
    let mut admin = admin_makes(&mut bench, "bob on nopass ~* +@all db=0,1");
    let mut c = bench.connect();
    say_all(
        &mut c,
        &[
            ("AUTH bob x", "+OK\r\n"),
            ("SELECT 1", "+OK\r\n"),
            ("SET k v", "+OK\r\n"),
        ],
    );
    admin.say("ACL SETUSER bob db=0");
    say_all(&mut c, &[("GET k", DENIED), ("SELECT 0", "+OK\r\n")]);
    admin.say("ACL SETUSER bob resetdbs");
    say_all(&mut c, &[("GET k", DENIED), ("SELECT 0", DENIED)]);
    admin.say("ACL SETUSER bob alldbs");
    say_all(&mut c, &[("SELECT 1", "+OK\r\n"), ("GET k", "$1\r\nv\r\n")]);
    // A server that starts later reads the same.
    admin.say("ACL SETUSER bob db=1");
    let mut late = server(&cluster, None).connect();
    say_all(
        &mut late,
        &[
            ("AUTH bob x", "+OK\r\n"),
            ("GET k", DENIED),
            ("SELECT 1", "+OK\r\n"),
            ("GET k", "$1\r\nv\r\n"),
        ],
    );
}

#[test]
fn users_that_were_kept_without_databases_have_all() {
    let cluster = FakeCluster::new(1);
    let mut bench = server(&cluster, None);
    let mut c = admin_makes(&mut bench, "ann on nopass");
    let client = cluster.client();
    let table = cluster.run(client.table("redis:users")).unwrap();
    let record: &[u8] =
        b"life=0000000000000007 on nopass ~* resetchannels +@all (resetchannels -@all)";
    cluster
        .run(client.write(&table, b"bob", record[..].into()))
        .unwrap();
    cluster.run(cluster.at(cluster.now() + Duration::from_secs(1), |_| {}));
    cluster.run(bench.service.refresh_users());
    say_all(
        &mut c,
        &[
            ("AUTH bob x", "+OK\r\n"),
            ("SELECT 9", "+OK\r\n"),
            ("SET k v", "+OK\r\n"),
        ],
    );
    let user = c.say("ACL GETUSER bob");
    assert_eq!(user.matches("$6\r\nalldbs\r\n").count(), 2, "{user}");
    let list = c.say("ACL LIST");
    let text = "user bob on nopass ~* resetchannels +@all (resetchannels -@all)";
    assert!(list.contains(&bulk(text)), "{list}");
}

#[test]
fn transactions_are_checked_in_the_database_that_each_command_has() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut admin = admin_makes(&mut bench, "bob on nopass ~* +@all db=1,2");
    let mut c = bench.connect();
    say_all(
        &mut c,
        &[
            ("AUTH bob x", "+OK\r\n"),
            // In database 0, from where it goes on.
            ("MULTI", "+OK\r\n"),
            ("PING", "+QUEUED\r\n"),
            ("SELECT 1", "+QUEUED\r\n"),
            ("SET k v", "+QUEUED\r\n"),
            ("SELECT 99", "+QUEUED\r\n"),
            ("DBSIZE", "+QUEUED\r\n"),
            (
                "EXEC",
                "*5\r\n+PONG\r\n+OK\r\n+OK\r\n-ERR DB index is out of range\r\n:1\r\n",
            ),
            ("GET k", "$1\r\nv\r\n"),
            ("MULTI", "+OK\r\n"),
            ("SELECT 2", "+QUEUED\r\n"),
            ("DISCARD", "+OK\r\n"),
            ("GET k", "$1\r\nv\r\n"),
            ("MULTI", "+OK\r\n"),
            ("SELECT 0", DENIED),
            ("EXEC", ABORT),
            ("RESET", "+RESET\r\n"),
            ("AUTH bob x", "+OK\r\n"),
            ("MULTI", "+OK\r\n"),
            ("GET k", DENIED),
            ("EXEC", ABORT),
            // What the last block has chosen is forgotten.
            ("MULTI", "+OK\r\n"),
            ("DBSIZE", DENIED),
            ("EXEC", ABORT),
            ("SELECT 1", "+OK\r\n"),
            ("MULTI", "+OK\r\n"),
            ("SELECT 2", "+QUEUED\r\n"),
            ("DBSIZE", "+QUEUED\r\n"),
            ("SELECT 1", "+QUEUED\r\n"),
            ("DBSIZE", "+QUEUED\r\n"),
        ],
    );
    // At EXEC the rights of that moment count. The refused SELECT chooses nothing.
    admin.say("ACL SETUSER bob db=1");
    let reason = "-NOPERM ACLs rules changed between the moment the transaction was accumulated \
                  and the EXEC call. This command is no longer allowed for the following reason: \
                  no permission\r\n";
    assert_eq!(c.say("EXEC"), format!("*4\r\n{reason}:1\r\n+OK\r\n:1\r\n"));
}

// shows: CONN-8
#[test]
fn what_follows_exec_in_a_pipeline_has_its_database() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut admin = admin_makes(&mut bench, "bob on nopass ~* +@all db=1");
    pipeline(
        &mut admin,
        &["SET k zero", "SELECT 1", "SET k one", "SELECT 0"],
    );
    let only_select = ["MULTI", "SELECT 1", "EXEC", "GET k"];
    let with_data = ["MULTI", "SELECT 1", "SET j v", "DBSIZE", "EXEC", "GET k"];
    let expected = [
        "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n$3\r\none\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n+OK\r\n:2\r\n$3\r\none\r\n",
    ];
    for (commands, expected) in [&only_select[..], &with_data].into_iter().zip(expected) {
        for user in ["default", "bob"] {
            let mut c = bench.connect();
            c.say(&format!("AUTH {user} x"));
            assert_eq!(pipeline(&mut c, commands), expected, "{user}");
        }
    }
}

#[test]
fn scripts_are_checked_in_the_database_that_they_have() {
    let mut bench = server(&FakeCluster::new(1), None);
    let _admin = admin_makes(&mut bench, "bob on nopass ~* +@all db=1,2");
    let mut c = bench.connect();
    let library = "#!lua name=l\nredis.register_function('f', function() \
                   redis.call('select', '3') return redis.call('get', 'k') end)";
    assert_eq!(c.call(&["FUNCTION", "LOAD", library]), b"$1\r\nl\r\n");
    say_all(
        &mut c,
        &[("AUTH bob x", "+OK\r\n"), ("SELECT 1", "+OK\r\n")],
    );
    let denied = "-ERR ACL failure in script: No permissions to access database";
    for script in [
        "return redis.call('select', '0')",
        "redis.call('select', '2') return redis.call('copy', 'k', 'k', 'DB', '0')",
        "return redis.call('move', 'k', '5')",
        "return redis.call('flushall')",
    ] {
        let reply = eval(&mut c, script);
        assert!(reply.starts_with(denied), "{script}: {reply}");
    }
    let reply = c.say("FCALL f 0");
    assert!(reply.starts_with(denied), "{reply}");
    let script = "redis.call('select', '2') return redis.call('append', 'k', 'v')";
    assert_eq!(eval(&mut c, script), ":1\r\n");
    // The refused SELECT leaves the script where it was.
    let script = "redis.pcall('select', '0') return redis.call('strlen', 'k')";
    assert_eq!(eval(&mut c, script), ":0\r\n");
    for (call, may) in [
        ("'get', 'k'", ":1\r\n"),
        ("'select', '2'", ":1\r\n"),
        ("'select', '0'", "$-1\r\n"),
        ("'move', 'k', '0'", "$-1\r\n"),
    ] {
        let script = format!("return redis.acl_check_cmd({call})");
        assert_eq!(eval(&mut c, &script), may, "{call}");
    }
}

#[test]
fn dry_runs_and_the_log_tell_of_databases() {
    let mut bench = server(&FakeCluster::new(1), None);
    let mut admin = admin_makes(&mut bench, "bob on nopass ~* +@all db=1");
    let why = |object: &str| {
        bulk(&format!(
            "User bob has no permissions to access database {object}"
        ))
    };
    for (command, object) in [
        ("SELECT 2", Some("2")),
        ("SELECT 1", None),
        ("SWAPDB 1 5", Some("5")),
        ("GET k", Some("GET")),
        ("MOVE k 2", Some("MOVE")),
        ("FLUSHALL", Some("FLUSHALL")),
        ("PING", None),
    ] {
        let expected = object.map_or("+OK\r\n".to_owned(), why);
        let reply = admin.say(&format!("ACL DRYRUN bob {command}"));
        assert_eq!(reply, expected, "{command}");
    }
    // The database is that of the connection which asks.
    admin.say("SELECT 1");
    for (command, object) in [
        ("GET k", None),
        ("MOVE k 2", Some("2")),
        ("COPY k k2", None),
        ("COPY k k DB 2", Some("2")),
        ("FLUSHALL", Some("FLUSHALL")),
    ] {
        let expected = object.map_or("+OK\r\n".to_owned(), why);
        let reply = admin.say(&format!("ACL DRYRUN bob {command}"));
        assert_eq!(reply, expected, "{command}");
    }
    let mut c = bench.connect();
    c.say("AUTH bob x");
    c.say("GET k");
    c.say("SELECT 7");
    pipeline(&mut c, &["MULTI", "SELECT 8", "DISCARD", "SELECT 1"]);
    eval(&mut c, "return redis.call('select', '9')");
    let mut log = c.say("ACL LOG").into_bytes();
    log.retain(|byte| *byte != b'\r');
    let log = String::from_utf8(log).unwrap();
    for (context, object) in [
        ("toplevel", "get"),
        ("toplevel", "7"),
        ("multi", "8"),
        ("lua", "9"),
    ] {
        let size = |text: &str| format!("${}\n{text}\n", text.len());
        let entry = [
            &size("reason"),
            &size("database"),
            &size("context"),
            &size(context),
            &size("object"),
            &size(object),
        ];
        assert!(log.contains(&entry.map(String::as_str).concat()), "{log}");
    }
    assert!(c.say("INFO stats").contains("acl_access_denied_db:4\r\n"));
    assert_eq!(bench.service.denied()[3], 4);
}
