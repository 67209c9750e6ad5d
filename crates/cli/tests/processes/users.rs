//! Passwords and users of the Redis ports, in real processes.

use crate::support::Setup;
use crate::support::cluster::Cluster;
use crate::support::patience::wait_for;
use crate::support::program::{Output, command, run};
use redis::Commands;
use std::io::Write;
use std::process::Command;

const PASSWORD: &str = "a-word-of-default";
const OF_BOB: &str = "a-word-of-bob";

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{text}").unwrap();
    file
}

fn start(password: &tempfile::NamedTempFile) -> Cluster {
    let path = password.path().to_str().unwrap();
    Setup::servers(3)
        .flags(&["--redis-password-file", path])
        .start()
}

/// A connection to a server as a user.
fn log_in(
    cluster: &Cluster,
    server: usize,
    user: &str,
    password: &str,
) -> Result<redis::Connection, String> {
    let address = format!("redis://{user}:{password}@{}", cluster.redis(server));
    let client = redis::Client::open(address).map_err(|error| error.to_string())?;
    client.get_connection().map_err(|error| error.to_string())
}

fn query<T: redis::FromRedisValue>(
    connection: &mut redis::Connection,
    words: &str,
) -> Result<T, String> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    command.query(connection).map_err(|error| error.to_string())
}

#[test]
fn users_are_known_by_all_servers_and_outlive_the_cluster() {
    let password = file(PASSWORD);
    let mut cluster = start(&password);
    let refused = log_in(&cluster, 0, "default", "wrong").err().unwrap();
    assert!(
        refused.contains("WRONGPASS") || refused.contains("authentication"),
        "{refused}"
    );
    let mut admin = log_in(&cluster, 0, "default", PASSWORD).unwrap();
    let () = admin.set("b:1", "v").unwrap();
    let rules = format!("ACL SETUSER bob on >{OF_BOB} ~b:* +@read +acl|whoami +hello +client");
    let () = query(&mut admin, &rules).unwrap();
    let bob =
        |cluster: &Cluster| wait_for("the user to be known", || log_in(cluster, 2, "bob", OF_BOB));
    let mut connection = bob(&cluster);
    assert_eq!(query::<String>(&mut connection, "GET b:1").unwrap(), "v");
    for denied in ["SET b:1 w", "GET a", "FLUSHALL", "ACL LIST"] {
        let error = query::<()>(&mut connection, denied).unwrap_err();
        assert!(
            error.contains("NOPERM") || error.contains("ermission"),
            "{denied}: {error}"
        );
    }
    cluster.wait_replicated();
    cluster.kill_all();
    cluster.restart();
    let mut connection = bob(&cluster);
    assert_eq!(
        query::<String>(&mut connection, "ACL WHOAMI").unwrap(),
        "bob"
    );
    // A deleted user's connections are closed, at every server.
    let mut admin = log_in(&cluster, 0, "default", PASSWORD).unwrap();
    assert_eq!(query::<i64>(&mut admin, "ACL DELUSER bob").unwrap(), 1);
    wait_for("the connection to be closed", || {
        match query::<String>(&mut connection, "ACL WHOAMI") {
            Ok(name) => Err(name),
            Err(error) => Ok(error),
        }
    });
    assert!(log_in(&cluster, 2, "bob", OF_BOB).is_err());
    for secret in [PASSWORD, OF_BOB] {
        assert!(!cluster.traced(secret), "{secret}");
    }
    assert!(cluster.traced("audit"));
}

#[test]
fn an_empty_password_is_none_and_refused() {
    let empty = file("");
    let path = empty.path().to_str().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let start = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = command();
        command.envs(variables.iter().copied());
        command.args(["server", "--redis", "127.0.0.1:0", "--data"]);
        run(command.arg(&data).args(flags), b"")
    };
    let of_file = start(&[], &["--redis-password-file", path]);
    of_file.fails(2, &["--redis-password-file", "the password is empty"]);
    let of_environment = start(&[("PLUVIO_REDIS_PASSWORD", "")], &[]);
    of_environment.fails(2, &["PLUVIO_REDIS_PASSWORD", "the password is empty"]);
    let missing = start(&[], &["--redis-password-file", "/nowhere/at-all"]);
    missing.fails(1, &["/nowhere/at-all"]);
}

mod needs_redis_cli {
    use super::*;

    fn cli(cluster: &Cluster, server: usize, arguments: &[&str]) -> Output {
        let address = cluster.redis(server);
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = Command::new("redis-cli");
        command.args(["-h", host, "-p", port, "--no-auth-warning"]);
        run(command.args(arguments), b"")
    }

    #[test]
    fn redis_cli_logs_in() {
        let password = file(PASSWORD);
        let cluster = start(&password);
        let said = cli(&cluster, 0, &["PING"]).text();
        assert!(said.starts_with("NOAUTH"), "{said}");
        assert_eq!(cli(&cluster, 1, &["-a", PASSWORD, "PING"]).text(), "PONG\n");
        let user = [
            "-3", "--user", "default", "--pass", PASSWORD, "ACL", "WHOAMI",
        ];
        assert_eq!(cli(&cluster, 2, &user).text(), "default\n");
        let said = cli(&cluster, 0, &["-a", PASSWORD, "CONFIG", "GET", "*"]).text();
        assert!(
            said.contains("requirepass") && !said.contains(PASSWORD),
            "{said}"
        );
    }
}
