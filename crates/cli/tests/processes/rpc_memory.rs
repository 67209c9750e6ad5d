//! The memory that RPC connections hold, as the system sees it.

use crate::support::Setup;
use crate::support::http;
use crate::support::native::native;
use bytes::Bytes;
use pluvio_units::crc32c;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

const MIB: usize = 1 << 20;
/// A quarter of the bound that a small server has by default. It is for frames of clients that have
/// come in part.
const QUARTER: usize = 128 * MIB;
/// Their half frames are 300 MiB.
const PEERS: usize = 20;

/// Bytes of memory that a process has.
fn resident(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.unwrap().split_whitespace().nth(1);
    words.unwrap().parse::<usize>().unwrap() << 10
}

fn sealed(mut bytes: [u8; 32]) -> [u8; 32] {
    let checksum = crc32c(&[&bytes[..28]]);
    bytes[28..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A hello, and the header of a frame with 16 MiB of payload.
fn beginning() -> Vec<u8> {
    let mut hello = [0; 32];
    hello[..12].copy_from_slice(b"PLUVIO\r\n\x01\0\x01\0");
    hello[16..20].copy_from_slice(&(16_u32 << 20).to_le_bytes());
    let mut header = [0; 32];
    header[..4].copy_from_slice(b"PV\x01\0");
    header[20..24].copy_from_slice(&(16_u32 << 20).to_le_bytes());
    [sealed(hello), sealed(header)].concat()
}

/// Sends 15 MiB of a frame, or as much as is taken at once.
fn half_a_frame(to: &str, piece: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(&beginning()).unwrap();
    stream.read_exact(&mut [0; 32]).unwrap();
    stream.set_nonblocking(true).unwrap();
    for _ in 0..15 {
        // The other side takes no more at once.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    stream
}

#[test]
fn half_frames_of_many_connections_are_bounded() {
    let cluster = Setup::servers(1).replicas(0).start();
    let server = &cluster.servers()[0];
    let (to, admin) = (
        server["addr"].as_str().unwrap(),
        server["admin"].as_str().unwrap(),
    );
    let client = native(cluster.coordinator());
    let table = client.create_table("t", None).unwrap();
    let large = Bytes::from(vec![7; MIB]);
    client.write(&table, b"key", large.clone()).unwrap();
    let before = resident(cluster.pid(0));
    let piece = vec![1; MIB];
    let mut most = 0;
    let mut open = Vec::new();
    for _ in 0..PEERS {
        open.push(half_a_frame(to, &piece));
        most = most.max(resident(cluster.pid(0)));
    }
    for _ in 0..20 {
        client.write(&table, b"key", large.clone()).unwrap();
        most = most.max(resident(cluster.pid(0)));
    }
    assert!(
        most < before + QUARTER + 64 * MIB,
        "{most} bytes, {before} before"
    );
    let metric = |name: &str| http::metric(admin, &format!("pluvio_net_connections_{name}"));
    assert_eq!(metric("memory_max_bytes"), 4 * QUARTER as u64);
    assert!(metric("memory_bytes") <= QUARTER as u64 + 2 * MIB as u64);
    assert!(metric("waited_total") > 0 && metric("evicted_total") > 0);
}
