//! The cluster's settings and an upgrade to another version, as an operator sees them. The builds
//! are one program that is told which versions it speaks.

use crate::contract::free_ports;
use crate::support::patience::wait_for;
use crate::support::program::{command, run, signal};
use crate::support::{Running, Setup, pluvio};
use rustix::process::Signal;
use std::path::Path;

/// Stops a process in order: a server moves its tablets away first.
fn stopped(mut running: Running) {
    assert_eq!(running.stop(), Some(0), "{}", running.stderr());
}

/// Versions of a newer build.
const NEXT: &str = "7-8";

fn spawn(arguments: &[&str], data: &Path, versions: &str) -> Running {
    let mut command = command();
    command.args(arguments).args(["--json", "--data"]).arg(data);
    command.env("PLUVIO_TEST_VERSIONS", versions);
    let mut running = Running::spawn(&mut command);
    running.ready();
    running
}

// shows: SETTINGS-1, SETTINGS-2
#[test]
fn settings_are_shown_and_changed_and_a_server_that_differs_is_refused() {
    let mut cluster = Setup::servers(3).start();
    let shown = cluster.run(["settings"]).ok().text();
    assert_eq!(shown, "replicas=2 min-replicas=1 durability=buffered\n");
    cluster.run(["settings", "set"]).fails(2, &["NAME=VALUE"]);
    cluster
        .run(["settings", "set", "copies=2"])
        .fails(2, &["copies=2: no setting"]);
    cluster
        .run(["settings", "set", "replicas=0"])
        .fails(1, &["from its beginning or never"]);
    cluster
        .run(["settings", "set", "min-replicas=3"])
        .fails(1, &["is more than replicas 2"]);
    let changed = cluster.run([
        "settings",
        "set",
        "replicas=1",
        "durability=synced",
        "--json",
    ]);
    assert_eq!(changed.json()["durability"], "synced");
    let settings = &cluster.status()["settings"];
    assert_eq!(
        (&settings["replicas"], &settings["min_replicas"]),
        (&1.into(), &1.into())
    );

    let data = cluster.data().join("server-3");
    signal(cluster.pid(2), Signal::TERM);
    wait_for("dev to tell of the end", || {
        let said = cluster.dev().stderr();
        said.contains("has stopped in order")
            .then_some(())
            .ok_or(said)
    });
    let mut flags = vec![
        "server",
        "--coordinator",
        cluster.coordinator(),
        "--memory",
        "64MiB",
    ];
    flags.extend(["--cores", "1", "--data", data.to_str().unwrap()]);
    let mut differs = command();
    differs.args(&flags).args(["--replicas", "2"]);
    let refused = run(&mut differs, b"").fails(1, &["--replicas 2 (the cluster has 1)"]);
    assert!(refused.contains("pluvio settings set"), "{refused}");
    let mut agrees = Running::spawn(command().args(&flags).args(["--replicas", "1", "--json"]));
    agrees.ready();
    cluster.wait_settled(3);
}

// shows: VERSION-1, VERSION-2
#[test]
fn a_rolling_upgrade_goes_back_until_it_is_finalized() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let address = format!("127.0.0.1:{}", free_ports(1));
    let (office, data) = (place("coordinator"), [place("server-1"), place("server-2")]);
    let ask = |arguments: &[&str]| pluvio([&["--coordinator", &address], arguments].concat());
    let lead = |versions| spawn(&["coordinator", "--listen", &address], &office, versions);
    let of_server = [
        "server",
        "--coordinator",
        &address,
        "--memory",
        "48MiB",
        "--cores",
        "1",
    ];
    let serve = |n: usize, versions| spawn(&of_server, &data[n], versions);
    let coordinator = lead("7-7");
    let (first, second) = (serve(0, "7-7"), serve(1, "7-7"));
    ask(&["table", "create", "t"]).ok();
    ask(&["put", "t", "k", "v"]).ok();
    // Forward with one server, and back.
    stopped(second);
    let second = serve(1, NEXT);
    let status = ask(&["status"]).ok().text();
    assert!(status.contains("7 to 8 spoken by server"), "{status}");
    ask(&["put", "t", "l", "w"]).ok();
    stopped(second);
    let second = serve(1, "7-7");
    assert_eq!(ask(&["get", "t", "l"]).ok().text(), "w");
    // As `docs/operations.md` has it.
    stopped(coordinator);
    let coordinator = lead(NEXT);
    stopped(second);
    let _second = serve(1, NEXT);
    ask(&["finalize"]).fails(1, &["not everybody speaks 8", "speaks 7"]);
    stopped(first);
    let first = serve(0, NEXT);
    let raised = ask(&["finalize", "--json"]).json();
    assert_eq!(
        (&raised["former"], &raised["active"]),
        (&7.into(), &8.into())
    );
    assert!(ask(&["finalize"]).ok().text().contains("already"));
    assert_eq!(ask(&["get", "t", "k"]).ok().text(), "v");
    // No way back.
    stopped(first);
    let mut old = command();
    old.args(of_server).arg("--data").arg(&data[0]);
    old.env("PLUVIO_TEST_VERSIONS", "7-7");
    run(&mut old, b"").fails(1, &["no way back"]);
    stopped(coordinator);
    let mut old = command();
    old.args(["coordinator", "--listen", &address, "--data"])
        .arg(&office);
    old.env("PLUVIO_TEST_VERSIONS", "7-7");
    run(&mut old, b"").fails(1, &["no way back"]);
}
