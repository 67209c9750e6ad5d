//! Metadata stores that are slow, stand still, take no changes, want a password, or hold another
//! cluster's data. The servers of etcd and ZooKeeper are real, and directories lie on disks that
//! are full. The cluster goes on serving, and `pluvio status` says what is wrong and what helps.
//! Everything goes on by itself when the store does.

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

/// The last words of a coordinator with the wrong password.
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
        // A coordinator with another password does not even see the data.
        refused(&place, "wrong");
    }
}

/// Metadata in a directory, on a disk that is full or cannot be written to.
mod needs_small_disk {
    use super::*;
    use crate::support::Running;
    use crate::support::disk::SmallDisk;
    use std::path::Path;
    use std::process::Command;

    /// Far more than fit into what the store's file has left within itself.
    const TABLES_MAX: usize = 1000;
    /// What who creates a table is told.
    const TAKES_NONE: &str = "metadata store takes no changes";
    /// A last try that gets no answer in time hides what those before were told. So often it may.
    const HIDDEN_MAX: usize = 3;

    /// A long name: so few fit into a page of the file.
    fn table(number: usize) -> String {
        format!("{number:04}").repeat(60)
    }

    /// Creates tables with these numbers and above until one is refused because it cannot be
    /// stored; notes those that were acknowledged.
    #[track_caller]
    fn create_until_refused(cluster: &Cluster, first: usize, acknowledged: &mut Vec<String>) {
        let mut hidden = 0;
        for number in first..first + TABLES_MAX {
            let name = table(number);
            let output = cluster.run(["--timeout", "5s", "table", "create", &name]);
            if output.code == Some(0) {
                acknowledged.push(name);
                continue;
            }
            let said = output.fails(1, &["error: not done within 5s"]);
            if said.contains(TAKES_NONE) {
                assert!(said.contains("it may have been executed"), "{said}");
                assert!(said.contains("see `pluvio status`"), "{said}");
                return;
            }
            hidden += 1;
            assert!(hidden <= HIDDEN_MAX, "{said}");
        }
        panic!("the store is never full");
    }

    /// The coordinator knows these tables.
    #[track_caller]
    fn assert_known(cluster: &Cluster, acknowledged: &[String]) {
        let listed = cluster.run(["table", "list", "--json"]).json();
        let tables = listed["tables"].as_array().unwrap();
        for name in acknowledged {
            let is_known = tables.iter().any(|table| table["name"] == name.as_str());
            assert!(is_known, "{name} is lost, of {}", acknowledged.len());
        }
    }

    fn coordinator(listen: &str, data: &Path) -> Command {
        let mut command = command();
        command.args(["coordinator", "--json", "--listen", listen, "--data"]);
        command.arg(data);
        command
    }

    /// Starts the coordinator on a full disk. It has to store that it leads: it does where its file
    /// has room for that, and otherwise ends and says what it needs.
    #[track_caller]
    fn leads_or_says_what_it_needs(cluster: &Cluster, acknowledged: &[String]) {
        let data = cluster.data().join("coordinator");
        let mut again = Running::spawn(&mut coordinator(cluster.coordinator(), &data));
        let leads = wait_for("the coordinator to lead, or to end", || {
            if !again.is_alive() {
                return Ok(false);
            }
            let output = status(cluster);
            match output.code {
                Some(0) => Ok(true),
                _ => Err(output.stderr),
            }
        });
        println!("a coordinator that was started on a full disk leads: {leads}");
        if leads {
            assert_known(cluster, acknowledged);
        } else {
            assert_eq!(again.wait_end(), Some(1));
            wait_for("it to say what it needs", || {
                let said = again.stderr();
                let words = ["error: ", "metadata.redb: no space left", "make room"];
                let all = words.iter().all(|word| said.contains(word));
                all.then_some(()).ok_or(said)
            });
        }
        assert!(!again.stderr().contains("panicked"), "{}", again.stderr());
        again.kill();
    }

    #[test]
    fn a_full_directory_takes_no_changes_and_loses_none() {
        let mut disk = None;
        let cluster = Setup::servers(2).start_on(|data| {
            disk = Some(SmallDisk::mount(&data.join("coordinator"), "4m"));
        });
        let disk = disk.unwrap();
        let mut redis = cluster.connect(0);
        is_served(&mut redis, "1");
        cluster.run(["table", "create", "early"]).ok();
        cluster.run(["put", "early", "k", "v"]).ok();
        let mut acknowledged = vec!["early".to_owned()];

        disk.fill();
        create_until_refused(&cluster, 0, &mut acknowledged);
        is_served(&mut redis, "2");
        assert_eq!(cluster.run(["get", "early", "k"]).ok().text(), "v");
        cluster.run(["put", "early", "k", "w"]).ok();
        assert_known(&cluster, &acknowledged);
        let said = wait_for_words(&cluster, &["no space left"]);
        assert!(said.contains("make room"), "{said}");
        let text = cluster.run(["status"]).ok().text();
        assert!(
            text.contains("can change nothing: metadata store"),
            "{text}"
        );
        let admin = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
        let page = http::get(admin, "/readyz");
        assert!(page.contains("503") && page.contains("make room"), "{page}");
        // It goes on answering.
        wait_for_leader(&cluster, true);
        disk.make_room();
        wait_for_changes(&cluster, "with room");
        acknowledged.push("with room".to_owned());

        // The coordinator dies while it waits for room.
        disk.fill();
        create_until_refused(&cluster, TABLES_MAX, &mut acknowledged);
        assert!(!cluster.traced("panicked"));
        signal(cluster.coordinator_pid(), Signal::KILL);
        is_served(&mut redis, "3");
        leads_or_says_what_it_needs(&cluster, &acknowledged);
        disk.make_room();
        let data = cluster.data().join("coordinator");
        let mut again = Running::spawn(&mut coordinator(cluster.coordinator(), &data));
        again.ready();
        cluster.wait_settled(2);
        assert_known(&cluster, &acknowledged);
        wait_for_changes(&cluster, "at last");
        is_served(&mut redis, "4");
        assert_eq!(cluster.run(["get", "early", "k"]).ok().text(), "w");
        println!("{} tables were acknowledged", acknowledged.len());
    }

    #[test]
    fn a_coordinator_begins_nothing_on_a_full_disk() {
        let _turn = Turn::take();
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("coordinator");
        let disk = SmallDisk::mount(&data, "1m");
        disk.fill();
        let mut command = coordinator("127.0.0.1:0", &data);
        run(&mut command, b"").fails(1, &["error: ", "no space left", "make room"]);
        assert!(!data.join("metadata.redb").exists());
        disk.make_room();
        let mut begun = Running::spawn(&mut command);
        begun.ready();
        assert_eq!(begun.stop(), Some(0));
    }

    #[test]
    fn a_read_only_directory_is_told_and_left_as_it_is() {
        let _turn = Turn::take();
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("coordinator");
        let disk = SmallDisk::mount(&data, "4m");
        let mut command = coordinator("127.0.0.1:0", &data);
        let mut begun = Running::spawn(&mut command);
        begun.ready();
        assert_eq!(begun.stop(), Some(0));
        let file = data.join("metadata.redb");
        let before = std::fs::read(&file).unwrap();
        disk.set_writable(false);
        let words = [
            "error: ",
            "data directory",
            "read-only",
            "mount it for writing",
        ];
        run(&mut command, b"").fails(1, &words);
        assert!(std::fs::read(&file).unwrap() == before);
        disk.set_writable(true);
        let mut again = Running::spawn(&mut command);
        again.ready();
        assert_eq!(again.stop(), Some(0));
    }
}
