//! The memory that connections of Redis clients hold, as the system sees it: bounded while they
//! live, and given back when they are gone.

use crate::support::cluster::Cluster;
use crate::support::{Reply, Resp, Setup, wait_for};
use std::fs;

const MIB: u64 = 1 << 20;
/// The bound that these servers have.
const BOUND: u64 = 64 * MIB;

fn server() -> Cluster {
    Setup::servers(1)
        .replicas(0)
        .flags(&["--redis-memory", "64MiB"])
        .start()
}

/// Bytes of memory that a process has.
fn resident(cluster: &Cluster) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.pid(0))).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.unwrap().split_whitespace().nth(1);
    words.unwrap().parse::<u64>().unwrap() << 10
}

/// A field of INFO.
fn field(c: &mut Resp, name: &str) -> u64 {
    let Reply::Bulk(info) = c.call(&["INFO", "everything"]) else {
        panic!("INFO has no text");
    };
    let info = String::from_utf8(info.to_vec()).unwrap();
    let prefix = format!("{name}:");
    let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("{name}: {info}"))
        .parse()
        .unwrap()
}

fn wait_until_small(cluster: &Cluster, before: u64) {
    wait_for("the memory to be given back", || {
        let now = resident(cluster);
        let is_small = now < before + 16 * MIB;
        is_small
            .then_some(())
            .ok_or(format!("{before} before, {now} now"))
    });
}

#[test]
fn unfinished_commands_of_many_connections_are_bounded() {
    let cluster = server();
    let mut small = cluster.connect(0);
    assert!(small.call(&["SET", "a", "1"]).is_ok());
    let before = resident(&cluster);
    // Twelve mebibytes each, of the sixteen that a command may have.
    let mut start = b"*31\r\n$4\r\nMSET\r\n".to_vec();
    for n in 0..12 {
        start.extend(format!("$2\r\nk{}\r\n$1048576\r\n", n % 10).bytes());
        start.extend(vec![b'v'; 1 << 20]);
        start.extend(b"\r\n");
    }
    let mut open = Vec::new();
    let mut most = before;
    for _ in 0..30 {
        let mut c = cluster.connect(0);
        // It may be closed in the middle.
        let _ = c.send(&start);
        open.push(c);
        most = most.max(resident(&cluster));
        assert_eq!(small.call(&["GET", "a"]), Reply::bulk("1"));
    }
    assert!(most < before + 2 * BOUND, "{most} bytes, {before} before");
    assert!(field(&mut small, "evicted_clients") >= 15);
    assert!(field(&mut small, "mem_clients_normal") <= BOUND);
    drop(open);
    wait_until_small(&cluster, before);
}

#[test]
fn replies_that_nobody_takes_are_bounded() {
    let cluster = server();
    let mut c = cluster.connect(0);
    let value = vec![b'v'; 1_000_000];
    let keys: Vec<_> = (0..20).map(|n| format!("k{n}")).collect();
    for key in &keys {
        assert!(c.call(&[b"SET", key.as_bytes(), &value]).is_ok());
    }
    let before = resident(&cluster);
    let mut most = before;
    for _ in 0..2 {
        let read: Vec<_> = core::iter::once("MGET")
            .chain(keys.iter().map(String::as_str))
            .collect();
        let mut all: Vec<_> = (0..30).map(|_| cluster.connect(0)).collect();
        for reader in &mut all {
            reader.ask(&read);
        }
        for mut reader in all {
            // The start of the reply, or an error: its turn did not come in time. It may also be
            // closed.
            let _ = reader.skip_some();
            most = most.max(resident(&cluster));
        }
    }
    assert!(most < before + 2 * BOUND, "{most} bytes, {before} before");
    wait_until_small(&cluster, before);
    // It held little, and was never closed.
    assert_eq!(c.call(&["STRLEN", "k0"]), Reply::Integer(1_000_000));
}
