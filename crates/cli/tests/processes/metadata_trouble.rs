//! Metadata stores that are slow, stand still, take no changes, want a password, or hold another cluster's data, with real
//! servers of etcd and ZooKeeper: what the cluster serves it serves on, `pluvio status` says what is wrong and what helps, and
//! everything goes on by itself when the store does.

use crate::support::cluster::{Cluster, Turn};
use crate::support::metadata::{Kind, MetadataServer};
use crate::support::native::runtime;
use crate::support::program::{Output, command, run, signal};
use crate::support::{Reply, Resp, Setup, http, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use zookeeper_client::{Acl, AuthId, Client, Permission};

const USER: &str = "pluvio";
const PASSWORD: &str = "not for other eyes";
/// Longer than a leader may answer without a word of its store.
const SLOW: Duration = Duration::from_millis(1500);

fn status(cluster: &Cluster) -> Output {
    cluster.run(["--timeout", "2s", "status", "--json"])
}

/// Waits until `pluvio status` says what is wrong, with any of these words.
fn wait_for_words(cluster: &Cluster, words: &[&str]) -> String {
    wait_for("the status to say what is wrong", || {
        let output = status(cluster);
        let said = match output.code {
            Some(0) => output.json()["metadata_trouble"].to_string(),
            _ => output.stderr,
        };
        match words.iter().any(|words| said.contains(words)) {
            true => Ok(said),
            false => Err(said),
        }
    })
}

/// Reads and writes go on, and are acknowledged.
fn is_served(redis: &mut Resp, value: &str) {
    assert!(redis.call(&["SET", "k", value]).is_ok());
    assert_eq!(redis.call(&["GET", "k"]), Reply::bulk(value));
}

fn wait_for_changes(cluster: &Cluster, name: &str) {
    wait_for("the cluster to change again", || {
        let output = cluster.run(["--timeout", "5s", "table", "create", name]);
        (output.code == Some(0)).then_some(()).ok_or(output.stderr)
    });
    let trouble = cluster.status()["metadata_trouble"].clone();
    assert_eq!(trouble, Value::Null);
}

/// Waits until the coordinator's metrics say that it leads, or does not.
fn wait_for_leader(cluster: &Cluster, leads: bool) {
    let admin = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
    wait_for("the coordinator's metrics to say so", || {
        let found = http::metric(admin, "pluvio_coordinator_leads");
        (found == u64::from(leads))
            .then_some(())
            .ok_or(found.to_string())
    });
}

fn a_slow_store_is_told_and_waited_for(kind: Kind) {
    let _turn = Turn::take();
    let store = MetadataServer::start(kind);
    let (gate, place) = store.gate("/slow");
    let cluster = Setup::servers(2).flags(&["--metadata", &place]).start();
    let mut redis = cluster.connect(0);
    is_served(&mut redis, "1");
    gate.delay(SLOW);
    wait_for_words(&cluster, &["slow", "does not answer"]);
    is_served(&mut redis, "2");
    gate.delay(Duration::ZERO);
    wait_for_changes(&cluster, "after");
    // It stands still as a whole, with its connections open.
    signal(store.pid(), Signal::STOP);
    let said = wait_for_words(&cluster, &["does not answer", "cannot connect"]);
    assert!(said.contains(&place), "{said}");
    is_served(&mut redis, "3");
    // One that may not act does not count as leader.
    wait_for_leader(&cluster, false);
    signal(store.pid(), Signal::CONT);
    wait_for_changes(&cluster, "at last");
    wait_for_leader(&cluster, true);
}

fn another_clusters_data_are_not_touched(kind: Kind) {
    let _turn = Turn::take();
    let (mut ours, mut others) = (MetadataServer::start(kind), MetadataServer::start(kind));
    let place = ours.place("/same");
    let cluster = Setup::servers(1).flags(&["--metadata", &place]).start();
    drop(
        Setup::servers(1)
            .flags(&["--metadata", &others.place("/same")])
            .start(),
    );
    let mut redis = cluster.connect(0);
    is_served(&mut redis, "1");
    ours.kill();
    others.kill();
    ours.exchange_files(&mut others);
    ours.restart(true);
    wait_for("the coordinator to see whose data that is", || {
        let found = cluster.traced("holds cluster") && cluster.traced("restore the store's data");
        found.then_some(()).ok_or("nothing is said".to_owned())
    });
    is_served(&mut redis, "2");
}

/// A file with the password, and the flags that name it.
fn login(directory: &tempfile::TempDir, password: &str) -> [String; 4] {
    let file: PathBuf = directory.path().join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    let file = file.display().to_string();
    ["--metadata-user", USER, "--metadata-password-file", &file].map(str::to_owned)
}

/// What a coordinator with the wrong password says at its end.
fn refused(place: &str, password: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut command = command();
    command.args([
        "coordinator",
        "--listen",
        "127.0.0.1:0",
        "--metadata",
        place,
    ]);
    command.args(login(&directory, password));
    let said = run(&mut command, b"").fails(1, &["error: ", place]);
    assert!(!said.contains(password), "{said}");
    said
}

/// A cluster whose store wants a password, and loses the right to write to it meanwhile.
fn a_store_may_be_read_only_for_a_while(place: &str, may_write: &mut dyn FnMut(bool)) {
    let directory = tempfile::tempdir().unwrap();
    let flags = login(&directory, PASSWORD);
    let flags = flags.each_ref().map(String::as_str);
    let setup = Setup::servers(2).flags(&["--metadata", place]);
    let cluster = setup.flags(&flags).start();
    let mut redis = cluster.connect(0);
    is_served(&mut redis, "1");
    may_write(false);
    let create = ["--timeout", "2s", "table", "create", "waits"];
    cluster.run(create).fails(1, &["error: "]);
    let said = wait_for_words(&cluster, &[place]);
    assert!(
        said.contains("read and write") || said.contains("read, write"),
        "{said}"
    );
    assert!(!said.contains(PASSWORD), "{said}");
    is_served(&mut redis, "2");
    may_write(true);
    wait_for_changes(&cluster, "waits");
    assert!(!cluster.traced(PASSWORD));
}

#[test]
fn logins_are_for_stores_that_know_users() {
    let fails = |arguments: &[&str], words: &[&str]| {
        let mut command = command();
        let common = ["coordinator", "--listen", "127.0.0.1:0", "--metadata"];
        run(command.args(common).args(arguments), b"").fails(2, words);
    };
    let place = "etcd://127.0.0.1:1";
    fails(
        &[place, "--metadata-user", "u"],
        &["PLUVIO_METADATA_PASSWORD"],
    );
    fails(
        &[place, "--metadata-password-file", "f"],
        &["--metadata-user"],
    );
    fails(&["embedded:x", "--metadata-user", "u"], &["knows no users"]);
}

mod needs_etcd {
    use super::*;

    #[test]
    fn an_etcd_that_is_slow_is_told_and_waited_for() {
        a_slow_store_is_told_and_waited_for(Kind::Etcd);
    }

    #[test]
    fn another_clusters_data_in_etcd_are_not_touched() {
        another_clusters_data_are_not_touched(Kind::Etcd);
    }

    /// What an administrator of etcd does.
    struct Administrator<'a> {
        server: &'a MetadataServer,
        token: String,
    }

    impl Administrator<'_> {
        fn ask(&self, what: &str, request: &Value) -> Value {
            self.server
                .post(&format!("/v3/auth/{what}"), &self.token, request)
        }

        fn text(bytes: &[u8]) -> String {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.encode(bytes)
        }

        /// All keys below a path, for coordinators.
        fn range() -> (String, String) {
            (Self::text(b"/locked/"), Self::text(b"/locked0"))
        }

        fn grant(&self, right: &str) {
            let (key, range_end) = Self::range();
            let permission = json!({ "permType": right, "key": key, "range_end": range_end });
            self.ask(
                "role/grant",
                &json!({ "name": "coordinators", "perm": permission }),
            );
        }
    }

    #[test]
    fn an_etcd_with_passwords_may_be_read_only_for_a_while() {
        let _turn = Turn::take();
        let server = MetadataServer::start(Kind::Etcd);
        let mut admin = Administrator {
            server: &server,
            token: String::new(),
        };
        admin.ask("user/add", &json!({ "name": "root", "password": "root" }));
        admin.ask("role/add", &json!({ "name": "root" }));
        admin.ask("user/grant", &json!({ "user": "root", "role": "root" }));
        admin.ask("user/add", &json!({ "name": USER, "password": PASSWORD }));
        admin.ask("role/add", &json!({ "name": "coordinators" }));
        admin.ask(
            "user/grant",
            &json!({ "user": USER, "role": "coordinators" }),
        );
        admin.grant("READWRITE");
        admin.ask("enable", &json!({}));
        let root = json!({ "name": "root", "password": "root" });
        let token = admin.ask("authenticate", &root)["token"].clone();
        admin.token = token.as_str().unwrap().to_owned();

        let place = server.place("/locked");
        refused(&place, "wrong");
        let mut anonymous = command();
        anonymous.args([
            "coordinator",
            "--listen",
            "127.0.0.1:0",
            "--metadata",
            &place,
        ]);
        run(&mut anonymous, b"").fails(1, &[&place, "--metadata-user"]);
        a_store_may_be_read_only_for_a_while(&place, &mut |may| {
            admin.grant(if may { "READWRITE" } else { "READ" });
        });
    }
}

mod needs_zookeeper {
    use super::*;

    #[test]
    fn a_zookeeper_that_is_slow_is_told_and_waited_for() {
        a_slow_store_is_told_and_waited_for(Kind::ZooKeeper);
    }

    #[test]
    fn another_clusters_data_in_zookeeper_are_not_touched() {
        another_clusters_data_are_not_touched(Kind::ZooKeeper);
    }

    /// Lets the user of coordinators write to the leader's record, or only read it.
    fn set_right(address: &str, may: bool) {
        let address = address.to_owned();
        let (runtime, _) = runtime();
        runtime.block_on(async move {
            let digest = format!("{USER}:{PASSWORD}");
            let connector = Client::connector().with_auth("digest", digest.as_bytes());
            let client = connector.connect(&address).await.unwrap();
            let node = "/locked/leader";
            let right = match may {
                true => Permission::ALL,
                false => Permission::READ | Permission::ADMIN,
            };
            let acl = [Acl::new(right, AuthId::authed())];
            client.set_acl(node, &acl, None).await.unwrap();
        });
    }

    #[test]
    fn a_zookeeper_with_passwords_may_be_read_only_for_a_while() {
        let _turn = Turn::take();
        let server = MetadataServer::start(Kind::ZooKeeper);
        let place = server.place("/locked");
        let address = place.strip_prefix("zookeeper://").unwrap();
        let address = address.strip_suffix("/locked").unwrap();
        a_store_may_be_read_only_for_a_while(&place, &mut |may| set_right(address, may));
        // Whoever has another password does not even see what is there.
        refused(&place, "wrong");
    }
}
