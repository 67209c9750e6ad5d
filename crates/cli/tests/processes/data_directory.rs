//! Data directories that cannot be used, ports that are taken, frames that are damaged.

use crate::support::cluster::{Cluster, files_below, sum};
use crate::support::program::{Output, Running, run};
use crate::support::{Reply, Setup};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a server of this cluster that is expected to end by itself.
#[track_caller]
fn server(cluster: &Cluster, data: &Path, flags: &[&str]) -> Output {
    let mut command = cluster.command();
    command.args(["server", "--memory", "48MiB", "--cores", "1", "--data"]);
    run(command.arg(data).args(flags), b"")
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_cannot_be_used_is_told_and_left_as_it_is() {
    let cluster = Setup::servers(2).start();
    let place = |what: &str| cluster.directory().join(what);
    no_directory(&cluster, &place("file"));
    read_only(&cluster, &place("read-only"));
    in_use(&cluster);
    of_another_cluster(&cluster, &place("foreign"));
    of_another_format(&cluster, &place("newer"));
    ports_in_use(&cluster, &place("ports"));
    options_that_make_no_sense(&cluster, &place("options"));
    // None of this has changed the cluster.
    let status = cluster.wait_settled(2);
    assert!(
        status["recoveries"].as_array().unwrap().is_empty(),
        "{status}"
    );
}

fn no_directory(cluster: &Cluster, file: &Path) {
    fs::write(file, "precious").unwrap();
    server(cluster, file, &[]).fails(1, &["error: ", "data directory", name(file)]);
    server(cluster, &file.join("below"), &[]).fails(1, &["error: ", name(file)]);
    assert_eq!(fs::read(file).unwrap(), b"precious");
    let mut command = cluster.command();
    let coordinator = command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]);
    run(coordinator.arg(file), b"").fails(1, &["error: ", "data directory", name(file)]);
    let mut command = cluster.command();
    run(command.args(["dev", "--data"]).arg(file), b"").fails(1, &["error: ", name(file)]);
}

/// Makes a directory read-only, for root too. Undone when dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let frozen = Self(path.to_owned());
        frozen.attribute("+i").then_some(frozen)
    }

    fn attribute(&self, change: &str) -> bool {
        let mut command = Command::new("chattr");
        let status = command.arg(change).arg(&self.0).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.attribute("-i");
    }
}

fn read_only(cluster: &Cluster, data: &Path) {
    let Some(_frozen) = Frozen::new(data) else {
        println!("SKIPPED: a read-only data directory, because chattr +i is not allowed here");
        return;
    };
    server(cluster, data, &[]).fails(1, &["error: ", "data directory", "permission denied"]);
    server(cluster, &data.join("below"), &[]).fails(1, &["error: ", "permission denied"]);
}

fn in_use(cluster: &Cluster) {
    let data = cluster.data().join("server-1");
    server(cluster, &data, &[]).fails(1, &["error: ", "data directory", "stop that process"]);
    let mut again = cluster.command();
    let data = cluster.data();
    let again = again.args(["dev", "--redis-port", "0", "--data", name(&data)]);
    run(again, b"").fails(1, &["error: ", "stop that process"]);
}

fn of_another_cluster(cluster: &Cluster, data: &Path) {
    let other = Setup::servers(1).start();
    let mut connection = other.connect(0);
    assert!(connection.call(&["SET", "k", "v"]).is_ok());
    // A server that was told the wrong coordinator, with frames and without.
    let mut other = other;
    other.stop();
    copy(&other.data().join("server-1"), data);
    let before = files_below(data).len();
    server(cluster, data, &[]).fails(1, &["error: ", "cluster"]);
    assert_eq!(files_below(data).len(), before, "nothing was removed");
    other.restart();
    assert_eq!(other.connect(0).call(&["GET", "k"]), Reply::bulk("v"));
    // Frames of both clusters in one directory.
    let mixed = cluster.directory().join("mixed");
    copy(&other.data().join("server-1"), &mixed);
    let own = cluster.data().join("server-1/identity.json");
    fs::copy(own, mixed.join("identity.json")).unwrap();
    server(cluster, &mixed, &[]).fails(1, &["error: ", "belongs to cluster"]);
}

fn of_another_format(cluster: &Cluster, data: &Path) {
    fs::create_dir_all(data).unwrap();
    let identity = data.join("identity.json");
    for (text, words) in [
        (
            r#"{"format_version":9999,"cluster":1,"server":1}"#,
            "newer program",
        ),
        ("{", "damaged"),
        ("", "damaged"),
        (r#"{"format_version":"one"}"#, "damaged"),
    ] {
        fs::write(&identity, text).unwrap();
        server(cluster, data, &[]).fails(1, &["error: ", name(data), words]);
        assert_eq!(
            fs::read_to_string(&identity).unwrap(),
            text,
            "left as it is"
        );
    }
}

fn ports_in_use(cluster: &Cluster, data: &Path) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--redis", "--admin"] {
        server(cluster, data, &[flag, &address]).fails(1, &["error: ", &address, "in use"]);
    }
    let mut command = cluster.command();
    let coordinator = command.args(["coordinator", "--listen", &address, "--data"]);
    run(coordinator.arg(data.join("c")), b"").fails(1, &["error: ", &address, "in use"]);
    let port = taken.local_addr().unwrap().port().to_string();
    let fresh = data.join("dev");
    let mut command = cluster.command();
    let dev = command.args([
        "dev",
        "--servers",
        "1",
        "--redis-port",
        &port,
        "--data",
        name(&fresh),
    ]);
    run(dev, b"").fails(1, &["error: ", &address, "in use"]);
    for bad in ["nonsense", "127.0.0.1", "127.0.0.1:99999", "300.1.1.1:0"] {
        let output = server(cluster, data, &["--listen", bad]);
        assert!(matches!(output.code, Some(1 | 2)), "{output:?}");
        assert!(output.stderr.contains("error: "), "{output:?}");
    }
}

fn options_that_make_no_sense(cluster: &Cluster, data: &Path) {
    for (flags, words) in [
        (
            &["--replicas", "2", "--min-replicas", "3"][..],
            "min-replicas",
        ),
        (&["--replicas", "2", "--min-replicas", "0"], "min-replicas"),
        (&["--memory", "1KiB"], "memory"),
    ] {
        let output = server(cluster, data, flags);
        assert!(matches!(output.code, Some(1 | 2)), "{output:?}");
        assert!(output.stderr.contains(words), "{output:?}");
    }
}

fn copy(from: &Path, to: &Path) {
    for file in files_below(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap();
    }
}

#[test]
fn damaged_frames_are_found_and_other_replicas_serve() {
    let mut cluster = Setup::servers(3).start();
    let mut redis = cluster.connect(0);
    // Enough for closed segments on every server.
    let value = |n: usize| format!("{n:08}").repeat(8 << 10);
    for n in 0..900 {
        assert!(
            redis
                .call(&["SET".to_owned(), format!("k{n}"), value(n)])
                .is_ok()
        );
    }
    cluster.stop();
    // One replica of a segment each: all damage is on the disk of one server.
    let frames = files_below(&cluster.data().join("server-1/frames"));
    assert!(frames.len() >= 4, "{frames:?}");
    for (n, path) in frames.iter().enumerate() {
        let length = fs::metadata(path).unwrap().len();
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        match n % 2 {
            0 => file.set_len(length / 2).unwrap(),
            _ => {
                let place = SeekFrom::Start(4096 + (length - 4096) / 3);
                let mut byte = [0];
                file.seek(place).unwrap();
                file.read_exact(&mut byte).unwrap();
                file.seek(place).unwrap();
                file.write_all(&[byte[0] ^ 0x10]).unwrap();
            }
        }
    }
    cluster.restart();
    for n in 0..900 {
        let found = cluster
            .connect(n % 3)
            .call(&["GET".to_owned(), format!("k{n}")]);
        assert!(found == Reply::bulk(value(n)), "k{n}: {found:?}");
    }
    let status = cluster.status();
    let damaged = sum(&status, "frames_damaged");
    assert!(damaged > 0, "{status}");
    let text = cluster.run(["status"]).ok().text();
    assert!(text.contains("damaged"), "{text}");
    // The trace says which.
    let trace = fs::read_to_string(cluster.data().join("logs/server-1.log")).unwrap();
    assert!(trace.contains("frames/"), "{trace}");
}

#[test]
fn a_server_that_waits_for_its_coordinator_can_be_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut server = Running::start([
        "server",
        "--coordinator",
        "127.0.0.1:1",
        "--data",
        name(&data),
    ]);
    crate::support::wait_for("the server to say that it waits", || {
        let said = server.stderr();
        said.contains("127.0.0.1:1").then_some(()).ok_or(said)
    });
    assert!(server.is_alive());
    assert_eq!(server.stop(), Some(0));
}
