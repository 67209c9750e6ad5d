//! Data directories that cannot be used, ports that are taken, frames that are damaged.

use crate::support::cluster::{Cluster, files_below, sum};
use crate::support::program::{Output, Running, binary, command, command_through, run};
use crate::support::{Reply, Setup, wait_for};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs a server of this cluster that is expected to end by itself.
#[track_caller]
pub fn server(cluster: &Cluster, data: &Path, flags: &[&str]) -> Output {
    let mut command = cluster.command();
    command.args(["server", "--cores", "1", "--data"]).arg(data);
    if !flags.contains(&"--memory") {
        command.args(["--memory", "48MiB"]);
    }
    run(command.args(flags), b"")
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_cannot_be_used_is_told_and_left_as_it_is() {
    let cluster = Setup::servers(2).start();
    let place = |what: &str| cluster.directory().join(what);
    no_directory(&cluster, &place("file"));
    something_in_the_way(&cluster, &place("in-the-way"));
    read_only(&cluster, &place("read-only"));
    in_use(&cluster);
    a_copy_of_one_in_use(&cluster, &place("copy"));
    of_another_cluster(&cluster, &place("foreign"));
    of_another_format(&cluster, &place("newer"));
    of_older_metadata(&cluster, &place("older"));
    metadata_that_was_lost(&cluster, &place("lost"));
    ports_in_use(&cluster, &place("ports"));
    of_another_role(&cluster, &place("roles"));
    metadata_to_begin_with(&cluster, &place("metadata"));
    addresses_that_nobody_reaches(&cluster, &place("addresses"));
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
    // Nobody makes a directory there.
    let mut command = cluster.command();
    let dev = run(command.args(["dev", "--data", "/proc/nothing"]), b"");
    dev.fails(1, &["error: ", "/proc/nothing", "choose another --data"]);
}

/// Something else stands where a server keeps something.
fn something_in_the_way(cluster: &Cluster, place: &Path) {
    let directory = "a directory stands where a file belongs";
    let file = "a file stands where a directory belongs";
    for (what, words) in [
        (".pluvio-lock", directory),
        ("identity.json", directory),
        ("frames", file),
    ] {
        let data = place.join(format!("with-{what}"));
        fs::create_dir_all(&data).unwrap();
        match words == file {
            true => fs::write(data.join(what), "precious").unwrap(),
            false => fs::create_dir(data.join(what)).unwrap(),
        }
        let words = format!("{what}: {words}");
        server(cluster, &data, &[]).fails(1, &["error: ", name(&data), &words]);
    }
}

/// A server that may not write into its data directory. Root may write everywhere: it gives that
/// right up.
fn read_only(cluster: &Cluster, data: &Path) {
    fs::create_dir_all(data).unwrap();
    fs::set_permissions(data, fs::Permissions::from_mode(0o555)).unwrap();
    let above_rights = fs::write(data.join("try"), "").is_ok();
    for place in [data.to_owned(), data.join("below")] {
        let mut command = match above_rights {
            false => command(),
            true => {
                let mut command = command_through("setpriv");
                command.args(["--bounding-set", "-dac_override", "--"]);
                command.arg(binary());
                command
            }
        };
        command.env("PLUVIO_COORDINATOR", cluster.coordinators());
        command.args(["server", "--memory", "48MiB", "--cores", "1", "--data"]);
        let refused = run(command.arg(place), b"");
        refused.fails(1, &["error: ", "data directory", "permission denied"]);
    }
    let left: Vec<_> = files_below(data);
    assert!(left.iter().all(|file| file.ends_with("try")), "{left:?}");
}

fn in_use(cluster: &Cluster) {
    let data = cluster.data().join("server-1");
    server(cluster, &data, &[]).fails(1, &["error: ", "data directory", "stop that process"]);
    let mut again = cluster.command();
    let data = cluster.data();
    let again = again.args(["dev", "--redis-port", "0", "--data", name(&data)]);
    run(again, b"").fails(1, &["error: ", "stop that process"]);
}

/// The server that uses the other one goes on.
fn a_copy_of_one_in_use(cluster: &Cluster, data: &Path) {
    copy(&cluster.data().join("server-1"), data);
    server(cluster, data, &[]).fails(1, &["error: ", "is a copy", "which runs at"]);
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
    // Its identity is lost: the frames tell, and its own cluster takes it.
    fs::remove_file(data.join("identity.json")).unwrap();
    let before = files_below(data);
    server(cluster, data, &[]).fails(1, &["error: ", "belongs to cluster"]);
    assert_eq!(files_below(data), before, "nothing was written");
    let mut command = other.command();
    command.args(["server", "--json", "--memory", "48MiB", "--cores", "1"]);
    let mut again = Running::spawn(command.arg("--data").arg(data));
    again.ready();
    assert!(data.join("identity.json").exists());
}

/// A copy of the metadata was restored that is older than the directory.
fn of_older_metadata(cluster: &Cluster, data: &Path) {
    fs::create_dir_all(data).unwrap();
    let known = cluster.data().join("server-1/identity.json");
    let text = fs::read_to_string(known).unwrap();
    let mut identity: serde_json::Value = serde_json::from_str(&text).unwrap();
    identity["server"] = 9999.into();
    let (file, text) = (data.join("identity.json"), identity.to_string());
    fs::write(&file, &text).unwrap();
    let words = ["error: ", "metadata is older", "server 9999", "newest copy"];
    server(cluster, data, &[]).fails(1, &words);
    assert_eq!(fs::read_to_string(file).unwrap(), text);
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

/// Runs a coordinator that is expected to end by itself.
#[track_caller]
fn coordinator(cluster: &Cluster, data: &Path, flags: &[&str]) -> Output {
    let mut command = cluster.command();
    command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]);
    run(command.arg(data).args(flags), b"")
}

/// The data directory of a coordinator is none for a server, nor the other way round.
fn of_another_role(cluster: &Cluster, place: &Path) {
    let of_server = place.join("server");
    fs::create_dir_all(of_server.join("frames")).unwrap();
    let of_coordinator = place.join("coordinator");
    fs::create_dir_all(&of_coordinator).unwrap();
    fs::write(of_coordinator.join("metadata.redb"), "precious").unwrap();
    let before = files_below(place);
    let words = ["error: ", "that of a server", name(&of_server), "frames"];
    coordinator(cluster, &of_server, &[]).fails(1, &words);
    let words = ["error: ", "that of a coordinator", name(&of_coordinator)];
    server(cluster, &of_coordinator, &[]).fails(1, &words);
    assert_eq!(files_below(place), before, "nothing was written");
}

/// A file of anything but metadata begins no cluster. A missing file begins one, also when an
/// earlier beginning was interrupted.
fn metadata_to_begin_with(cluster: &Cluster, place: &Path) {
    type Make = fn(&Path);
    let words: [(&str, Make, &str); 3] = [
        ("empty", |file| fs::write(file, "").unwrap(), "restore"),
        (
            "directory",
            |file| fs::create_dir(file).unwrap(),
            "move it away",
        ),
        (
            "dangling",
            |file| std::os::unix::fs::symlink("nothing", file).unwrap(),
            "mounted",
        ),
    ];
    for (what, make, words) in words {
        let data = place.join(what);
        fs::create_dir_all(&data).unwrap();
        let file = data.join("metadata.redb");
        make(&file);
        coordinator(cluster, &data, &[]).fails(1, &["error: ", name(&file), words]);
        assert!(!data.join("metadata.redb.new").exists(), "{what}");
        assert!(!data.join("nothing").exists(), "{what}");
    }
    let empty = fs::metadata(place.join("empty/metadata.redb")).unwrap();
    assert_eq!(empty.len(), 0, "left as it is");
    let data = place.join("interrupted");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("metadata.redb.new"), "not whole").unwrap();
    for _ in ["begins", "goes on"] {
        let mut command = cluster.command();
        command.args(["coordinator", "--json", "--listen", "127.0.0.1:0", "--data"]);
        let mut running = Running::spawn(command.arg(&data));
        running.ready();
        assert!(!data.join("metadata.redb.new").exists());
        assert!(data.join("metadata.redb").exists());
        assert_eq!(running.stop(), Some(0));
    }
}

/// `dev` begins no new cluster beside the data of another one.
fn metadata_that_was_lost(cluster: &Cluster, data: &Path) {
    copy(&cluster.data().join("server-1"), &data.join("server-1"));
    let before = files_below(data);
    let file = data.join("coordinator/metadata.redb");
    let mut command = cluster.command();
    let dev = command.args(["dev", "--redis-port", "0", "--data", name(data)]);
    let words = [
        "error: ",
        name(&file),
        "is missing",
        "server-1",
        "Put it back",
        "--data",
        "docs/operations.md",
    ];
    run(dev, b"").fails(1, &words);
    assert_eq!(files_below(data), before, "nothing was written");
    assert!(!data.join("logs").exists() && !data.join("coordinator").exists());
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
    run(dev, b"").fails(1, &["error: ", &address, "in use", "--redis-port"]);
    let mut command = cluster.command();
    let overlapping = command.args(["dev", "--redis-port", "7000", "--admin-port", "7003"]);
    run(overlapping, b"").fails(2, &["error: ", "--redis-port", "--admin-port"]);
    for bad in ["nonsense", "127.0.0.1", "127.0.0.1:99999", "300.1.1.1:0"] {
        let output = server(cluster, data, &["--listen", bad]);
        assert!(matches!(output.code, Some(1 | 2)), "{output:?}");
        assert!(output.stderr.contains("error: "), "{output:?}");
    }
}

/// The cluster takes only an address for the address of a process.
fn addresses_that_nobody_reaches(cluster: &Cluster, data: &Path) {
    let words = ["error: ", "the others reach"];
    for all in ["0.0.0.0:0", "[::]:0"] {
        server(cluster, data, &["--listen", all]).fails(2, &words);
        let mut command = cluster.command();
        let coordinator = command.args(["coordinator", "--listen", all, "--data"]);
        run(coordinator.arg(data), b"").fails(2, &words);
    }
    assert!(!data.exists(), "nothing was begun");
    // An address for documents, which no machine has.
    let elsewhere = ["--coordinator", "192.0.2.1:7700"];
    server(cluster, data, &elsewhere).fails(2, &["error: --listen", "reach this machine"]);
    assert!(!data.exists(), "nothing was begun");
    // A name for the same.
    server(cluster, data, &["--listen", "0:0"]).fails(1, &words);
}

fn options_that_make_no_sense(cluster: &Cluster, data: &Path) {
    for (flags, words) in [
        (
            &["--replicas", "2", "--min-replicas", "3"][..],
            "min-replicas",
        ),
        (&["--replicas", "2", "--min-replicas", "0"], "min-replicas"),
        (
            &["--replicas", "2", "--update", "in-place"],
            "update in-place needs replicas 0, not 2",
        ),
        (&["--memory", "0"], "--memory 0B: too little"),
        (
            &["--memory", "1KiB"],
            "--memory 1KiB: too little for 1 event loop (--cores); give 28MiB or more",
        ),
        (&["--memory", "256TiB"], "--memory 256TiB: "),
        (
            &["--memory", "256TiB"],
            "log option memory: 281474976710656 bytes are more than 281474976645120",
        ),
        (
            &["--listen", "127.0.0.1:7999", "--redis", "0.0.0.0:7999"],
            "--listen 127.0.0.1:7999 and --redis 0.0.0.0:7999 are the same port",
        ),
    ] {
        let output = server(cluster, data, flags);
        assert!(matches!(output.code, Some(1 | 2)), "{output:?}");
        assert!(output.stderr.contains(words), "{output:?}");
    }
}

/// Copies all files below `from`.
pub fn copy(from: &Path, to: &Path) {
    for file in files_below(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap();
    }
}

/// Enough for closed segments on every server.
const VALUES: usize = 900;

fn value(n: usize) -> String {
    format!("{n:08}").repeat(8 << 10)
}

/// Damages the frames of server `number` while nobody uses them, one after the other; gives their
/// names.
fn damage(cluster: &Cluster, number: u32, how: impl Fn(&Path)) -> Vec<String> {
    let frames = files_below(&cluster.data().join(format!("server-{number}/frames")));
    assert!(frames.len() >= 4, "{frames:?}");
    for path in &frames {
        how(path);
    }
    let names = frames.iter().map(|path| path.file_name().unwrap());
    names.map(|n| n.to_str().unwrap().to_owned()).collect()
}

/// Everything is there, and server `number` has said which of its frames are damaged: some of
/// `names` and no others.
#[track_caller]
fn assert_served_and_told(cluster: &Cluster, number: u32, names: &[String]) {
    let traces = cluster.data().join(format!("logs/server-{number}.log"));
    for n in 0..VALUES {
        let found = cluster
            .connect(n % 3)
            .call(&["GET".to_owned(), format!("k{n}")]);
        assert!(found == Reply::bulk(value(n)), "k{n}: {found:?}");
    }
    let status = cluster.status();
    let damaged = sum(&status, "frames_damaged");
    assert!(
        (1..=names.len() as u64).contains(&damaged),
        "{damaged} of {names:?}: {status}"
    );
    let text = cluster.run(["status"]).ok().text();
    assert!(text.contains("damaged"), "{text}");
    let trace = fs::read_to_string(traces).unwrap();
    let named = names.iter().filter(|name| trace.contains(*name)).count();
    assert!(named > 0, "{trace}");
}

#[test]
fn damaged_frames_are_found_and_other_replicas_serve() {
    let mut cluster = Setup::servers(3).start();
    let mut redis = cluster.connect(0);
    for n in 0..VALUES {
        assert!(
            redis
                .call(&["SET".to_owned(), format!("k{n}"), value(n)])
                .is_ok()
        );
    }
    // All damage is on the disk of one server: every segment has another replica. Killed
    // servers leave open frames, whose bytes are looked at when the next life starts.
    cluster.kill_all();
    let flipped = damage(&cluster, 1, |path| {
        let length = fs::metadata(path).unwrap().len();
        // Within the first entries, which every frame has.
        let place = SeekFrom::Start(4096 + 100);
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut byte = [0];
        file.seek(place).unwrap();
        file.read_exact(&mut byte).unwrap();
        file.seek(place).unwrap();
        file.write_all(&[byte[0] ^ 0x10]).unwrap();
        assert_eq!(fs::metadata(path).unwrap().len(), length);
    });
    cluster.restart();
    assert_served_and_told(&cluster, 1, &flipped);
    // Recovered, and so replicated anew: now another disk.
    cluster.wait_settled(3);
    cluster.wait_replicated();
    cluster.kill_all();
    let halved = damage(&cluster, 2, |path| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(fs::metadata(path).unwrap().len() / 2).unwrap();
    });
    cluster.restart();
    assert_served_and_told(&cluster, 2, &halved);
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
    wait_for("the server to say that it waits", || {
        let said = server.stderr();
        said.contains("127.0.0.1:1").then_some(()).ok_or(said)
    });
    assert!(server.is_alive());
    assert_eq!(server.stop(), Some(0));
}
