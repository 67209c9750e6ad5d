//! Memory of a server that changes by itself: the server stops and says where, and others have what
//! it had.

use crate::support::{Reply, Setup};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

const KEYS: usize = 200;
const MIB: usize = 1 << 20;

/// Keys are all equally long, and values are found in memory by their first bytes.
fn object(number: usize) -> (String, String) {
    let value = format!("value that a test will corrupt, number {number:04}");
    (format!("key-{number:04}"), value)
}

/// Where a process has private memory of its own, as large as a log at least.
fn large_mappings(pid: u32) -> Vec<(u64, usize)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let large = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (first, end) = fields.next()?.split_once('-')?;
        let is_ours = fields.next()? == "rw-p" && fields.nth(2)? == "0";
        let [first, end] = [first, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        let len = (end - first) as usize;
        (is_ours && len >= 32 * MIB).then_some((first, len))
    });
    large.collect()
}

/// Where the headers of test objects end, in the first bytes of a mapping: the log's memory is used
/// from its start on.
fn headers(memory: &File, first: u64, len: usize) -> Vec<u64> {
    let needle = b"value that a test will corrupt";
    let mut bytes = vec![0; len.min(8 * MIB)];
    if memory.read_exact_at(&mut bytes, first).is_err() {
        return Vec::new();
    }
    let key_len = object(0).0.len() as u64;
    let found = bytes.windows(needle.len()).enumerate();
    let found = found.filter(|(_, window)| window == needle);
    found.map(|(at, _)| first + at as u64 - key_len).collect()
}

mod needs_process_memory {
    use super::*;

    #[test]
    fn a_server_with_corrupt_memory_stops_and_says_where_and_nothing_is_lost() {
        let cluster = Setup::servers(4).memory("64MiB").start();
        let mut redis = cluster.connect(1);
        for (key, value) in (0..KEYS).map(object) {
            assert!(redis.call(&["SET", &key, &value]).is_ok());
        }
        let pid = cluster.pid(0);
        let path = format!("/proc/{pid}/mem");
        let memory = OpenOptions::new().read(true).write(true).open(path);
        let memory = memory.unwrap();
        let mappings = large_mappings(pid);
        let headers = mappings
            .iter()
            .flat_map(|&(first, len)| headers(&memory, first, len));
        let headers: Vec<u64> = headers.collect();
        assert!(!headers.is_empty(), "server 0 has no object: {mappings:x?}");
        for end in headers {
            memory.write_all_at(&[0xff; 16], end - 16).unwrap();
        }
        for (key, value) in (0..KEYS).map(object) {
            assert_eq!(redis.call(&["GET", &key]), Reply::bulk(value));
        }
        cluster.wait_settled(3);
        for part in [
            "log memory is corrupt: entry at region offset 0x",
            "stopping, so that the data is recovered from its replicas",
        ] {
            assert!(cluster.traced(part), "no {part:?}");
        }
    }
}
