//! Servers with several data directories.

use crate::support::cluster::Cluster;
use crate::support::program::run;
use crate::support::{Output, Reply, Running, Setup, wait_for};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A server of this cluster with these data directories.
fn command(cluster: &Cluster, data: &[&Path], flags: &[&str]) -> Command {
    let mut command = cluster.command();
    command.args(["server", "--json", "--cores", "1", "--memory", "48MiB"]);
    for directory in data {
        command.arg("--data").arg(directory);
    }
    command.args(flags);
    command
}

#[track_caller]
fn start(cluster: &Cluster, data: &[&Path], flags: &[&str]) -> Running {
    let mut server = Running::spawn(&mut command(cluster, data, flags));
    server.ready();
    server
}

#[track_caller]
fn end(cluster: &Cluster, data: &[&Path], flags: &[&str]) -> Output {
    run(&mut command(cluster, data, flags), b"")
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Whether some server goes on without a data directory.
fn goes_on_without(cluster: &Cluster, directory: &Path) -> bool {
    let text = cluster.run(["status"]).ok().text();
    text.contains(&format!(
        "goes on without data directory {}",
        name(directory)
    ))
}

#[test]
fn directories_that_do_not_belong_together_are_refused() {
    let cluster = Setup::servers(2).start();
    let place = |name: &str| cluster.directory().join(name);
    let [a, b, c, away] = ["a", "b", "c", "away"].map(place);
    end(&cluster, &[&a, &b], &[]).fails(1, &["error: ", name(&b), "does not exist"]);
    fs::create_dir(&b).unwrap();
    let twice = end(&cluster, &[&a, &b, &b], &[]);
    twice.fails(2, &["error: ", name(&b), "is named twice"]);
    start(&cluster, &[&a, &b], &[]).kill();
    assert!(a.join("directories.json").exists() && b.join("directory.json").exists());

    // One that is missing, or not given, or something else in its place.
    let words = ["error: ", name(&b), "--missing-data leave-out"];
    end(&cluster, &[&a], &[]).fails(1, &words);
    fs::rename(&b, &away).unwrap();
    end(&cluster, &[&a, &b], &[]).fails(1, &words);
    assert!(!b.exists(), "it is not made");
    fs::create_dir(&b).unwrap();
    end(&cluster, &[&a, &b], &[]).fails(1, &words);
    assert!(!b.join("directory.json").exists(), "it is not taken in");

    // It may be left out, and comes back.
    let mut server = start(&cluster, &[&a, &b], &["--missing-data", "leave-out"]);
    assert!(goes_on_without(&cluster, &b));
    assert!(!b.join("directory.json").exists());
    server.kill();
    fs::remove_dir_all(&b).unwrap();
    fs::rename(&away, &b).unwrap();
    let mut server = start(&cluster, &[&a, &b], &[]);
    assert!(!goes_on_without(&cluster, &b));
    server.kill();

    // Each belongs to one server, and in its place.
    end(&cluster, &[&b, &a], &[]).fails(1, &["error: ", name(&b), "give that one first"]);
    end(&cluster, &[&c, &b], &[]).fails(1, &["error: ", name(&b), "belongs to", name(&a)]);
    end(&cluster, &[&c, &a], &[]).fails(1, &["error: ", name(&a), "identity.json"]);

    // What is lost for good is begun anew.
    fs::remove_dir_all(&b).unwrap();
    fs::create_dir(&b).unwrap();
    end(&cluster, &[&a, &b], &[]).fails(1, &words);
    start(&cluster, &[&a, &b], &["--missing-data", "forget"]).kill();
    start(&cluster, &[&a, &b], &[]).kill();
}

/// Files that are open go on working, so no write fails.
#[test]
fn data_directories_that_are_removed_are_missed() {
    let cluster = Setup::servers(2).start();
    let [a, b, only] = ["a", "b", "only"].map(|name| cluster.directory().join(name));
    fs::create_dir(&b).unwrap();
    let mut two = start(&cluster, &[&a, &b], &[]);
    let mut one = start(&cluster, &[&only], &[]);
    let all = [&a, &b, &only];
    wait_for("the first trials", || {
        let tried = all.iter().all(|data| data.join("frames").is_dir());
        tried.then_some(()).ok_or("there are none".to_owned())
    });
    let shown = cluster.run(["status", "--directories"]).ok().text();
    assert!(all.iter().all(|data| shown.contains(name(data))), "{shown}");
    fs::remove_dir_all(b.join("frames")).unwrap();
    wait_for("the directory to be left", || {
        let left = goes_on_without(&cluster, &b);
        left.then_some(()).ok_or("it is used".to_owned())
    });
    let shown = cluster.run(["status"]).ok().text();
    let why = "the directory is not there any more";
    assert!(shown.contains("left: ") && shown.contains(why), "{shown}");
    assert!(two.is_alive() && one.is_alive());
    fs::remove_dir_all(&only).unwrap();
    wait_for("the server to end", || {
        (!one.is_alive())
            .then_some(())
            .ok_or("it is alive".to_owned())
    });
    let said = one.stderr();
    assert!(said.contains(name(&only)) && said.contains(why), "{said}");
    cluster.wait_settled(3);
    two.kill();
}

/// The names of the frames of a server that counts from 1.
fn frame_names(cluster: &Cluster, server: u32) -> BTreeSet<String> {
    let frames = cluster.data().join(format!("server-{server}/frames"));
    // Trials make it, perhaps a little later.
    let files = fs::read_dir(frames).into_iter().flatten();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Those that are open go on working, so no write fails.
// shows: BACKUP-17
#[test]
fn frames_that_are_removed_are_missed_and_made_again_elsewhere() {
    // Each segment still has a server for its replica when one has lost it and another one dies.
    let cluster = Setup::servers(4).replicas(1).start();
    let set = |from: usize| {
        let mut redis = cluster.connect(0);
        for n in from..from + 100 {
            let set = ["SET".to_owned(), format!("k{n}"), format!("v{n}")];
            assert!(redis.call(&set).is_ok());
        }
    };
    set(0);
    cluster.wait_replicated();
    // The first server may have kept its own replica for a moment, before there were others. So
    // somebody needs only those whose names no other server has.
    let only_at = |server: u32| {
        let others = (1..=4).filter(|other| *other != server);
        let elsewhere: BTreeSet<_> = others
            .flat_map(|other| frame_names(&cluster, other))
            .collect();
        let names = frame_names(&cluster, server);
        names
            .difference(&elsewhere)
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    let all = (1..=4).map(|server| (server, only_at(server)));
    let mut some = all.filter(|(_, names)| !names.is_empty());
    let (loses, removed): (u32, BTreeSet<String>) = some.next().expect("somebody has them");
    for name in &removed {
        let frames = cluster.data().join(format!("server-{loses}/frames"));
        fs::remove_file(frames.join(name)).unwrap();
    }
    wait_for("the files to be missed", || {
        let said = cluster.traced("files of frames were removed or exchanged");
        said.then_some(()).ok_or("nobody says so".to_owned())
    });
    wait_for("the replicas to be made again", || {
        let others = (1..=4).filter(|server| *server != loses);
        let there: BTreeSet<_> = others
            .flat_map(|other| frame_names(&cluster, other))
            .collect();
        let is_missing = |name: &&String| !there.contains(*name);
        let missing: Vec<_> = removed.iter().filter(is_missing).collect();
        missing
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("{missing:?} are missing"))
    });
    cluster.wait_replicated();
    set(100);
    // The directory is used still.
    let shown = cluster.run(["status", "--directories"]).ok().text();
    assert!(!shown.contains("left: "), "{shown}");
    // Another one: the numbers of processes begin with 0.
    cluster.kill(loses as usize % 4);
    cluster.wait_settled(3);
    let mut redis = cluster.connect(loses as usize - 1);
    for n in 0..200 {
        let found = redis.call(&["GET".to_owned(), format!("k{n}")]);
        assert_eq!(found, Reply::bulk(format!("v{n}")), "k{n}");
    }
}

/// Devices that fail; not every machine lets its users, or its containers, mount one.
mod needs_small_disk {
    use super::*;
    use crate::support::disk::SmallDisk;

    fn fill(cluster: &Cluster, from: usize) {
        let mut redis = cluster.connect(0);
        for n in from..from + 300 {
            let value = format!("{n}-").repeat(8000);
            let set = ["SET".to_owned(), format!("k{n}"), value];
            assert!(redis.call(&set).is_ok());
        }
    }

    #[track_caller]
    fn assert_filled(cluster: &Cluster, server: usize, until: usize) {
        let mut redis = cluster.connect(server);
        for n in 0..until {
            let found = redis.call(&["GET".to_owned(), format!("k{n}")]);
            assert_eq!(found, Reply::bulk(format!("{n}-").repeat(8000)), "k{n}");
        }
    }

    fn frames_in(directory: &Path) -> usize {
        fs::read_dir(directory.join("frames")).map_or(0, Iterator::count)
    }

    #[test]
    fn a_server_goes_on_without_a_device_that_fails() {
        let cluster = Setup::servers(3).start();
        let [a, b] = ["a", "b"].map(|name| cluster.directory().join(name));
        // Of one size: a small device would get its first frame late.
        let devices = [&a, &b].map(|device| SmallDisk::mount(device, "160m"));
        let mut server = start(&cluster, &[&a, &b], &[]);
        let mut filled = 0;
        while frames_in(&a) == 0 || frames_in(&b) < 2 {
            fill(&cluster, filled);
            filled += 300;
            assert!(filled < 6000, "no frames in both directories");
        }
        // Every file is refused from now on, as by a device that was lost.
        let cover = SmallDisk::mount(&b, "1m,ro");
        wait_for("the directory to be left", || {
            // The same objects again: two servers have to hold all of them in the end.
            fill(&cluster, filled - 300);
            goes_on_without(&cluster, &b)
                .then_some(())
                .ok_or_else(|| format!("{filled} objects were written"))
        });
        cluster.wait_replicated();
        // Another one dies, and then this one, both without a word.
        cluster.kill(2);
        cluster.wait_settled(3);
        assert_filled(&cluster, 1, filled);
        server.kill();
        cluster.wait_settled(2);
        assert_filled(&cluster, 1, filled);
        end(&cluster, &[&a, &b], &[]).fails(1, &["error: ", name(&b), "--missing-data"]);
        let mut server = start(&cluster, &[&a, &b], &["--missing-data", "leave-out"]);
        fill(&cluster, 0);
        server.kill();
        // It is back, with its earlier frames.
        drop(cover);
        assert!(frames_in(&b) > 0);
        let mut server = start(&cluster, &[&a, &b], &[]);
        cluster.wait_settled(3);
        cluster.wait_replicated();
        assert!(!goes_on_without(&cluster, &b));
        cluster.kill(1);
        cluster.wait_settled(2);
        assert_filled(&cluster, 0, filled);
        server.kill();
        drop(devices);
    }
}
