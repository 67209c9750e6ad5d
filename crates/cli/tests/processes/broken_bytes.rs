//! Strangers on every port: garbage, half frames, lies about lengths, connections that say next
//! to nothing. The others must not notice.

use crate::support::cluster::Cluster;
use crate::support::patience::LONG;
use crate::support::program::runs;
use crate::support::{Random, Reply, Resp, Setup, http, wait_for};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

/// A port, and what a well-behaved client sends there first.
pub struct Port {
    name: &'static str,
    pub address: String,
    good: Vec<u8>,
}

/// The ports of the coordinator and of the first server.
fn ports(cluster: &Cluster) -> Vec<Port> {
    ports_of(cluster, 0)
}

/// The ports of the coordinator and of one server.
pub fn ports_of(cluster: &Cluster, server: usize) -> Vec<Port> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let server = &cluster.servers()[server];
    let coordinator = &cluster.ready()["coordinator"];
    let http = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    let ping = b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n".to_vec();
    [
        (
            "RPC of the coordinator",
            cluster.coordinator().to_owned(),
            hello(),
        ),
        ("RPC of a server", text(&server["addr"]), hello()),
        ("Redis", text(&server["redis"]), ping),
        ("admin", text(&server["admin"]), http.clone()),
        (
            "admin of the coordinator",
            text(&coordinator["admin"]),
            http,
        ),
    ]
    .map(|(name, address, good)| Port {
        name,
        address,
        good,
    })
    .into()
}

/// The first bytes of a connection between processes: a correct greeting (`docs/transport.md`).
fn hello() -> Vec<u8> {
    let mut bytes = b"PLUVIO\r\n".to_vec();
    for word in [1_u16, 1, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend((16_u32 << 20).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

impl Port {
    /// Random bytes; some of them behind a correct beginning, or one bit of a correct one.
    pub fn garbage(&self, round: u64, random: &mut Random) -> Vec<u8> {
        match round % 3 {
            2 => {
                let mut flipped = [&self.good[..], &self.good].concat();
                let place = random.below(flipped.len() as u64) as usize;
                flipped[place] ^= 1 << random.below(8);
                flipped
            }
            begun => {
                let length = random.below(5000);
                let noise = (0..length).map(|_| random.next() as u8);
                let beginning = if begun == 1 { &self.good[..] } else { &[] };
                beginning.iter().copied().chain(noise).collect()
            }
        }
    }
}

/// A request whose frame is right and whose contents are not.
pub fn nonsense_in_a_frame(opcode: u16, random: &mut Random) -> Vec<u8> {
    let noise: Vec<u8> = (0..100).map(|_| random.next() as u8).collect();
    [&hello()[..], &header(opcode, 60, 40), &noise].concat()
}

/// The header of a request that announces these lengths.
fn header(opcode: u16, meta: u32, payload: u32) -> Vec<u8> {
    let mut bytes = b"PV\x01\x00".to_vec();
    bytes.extend(opcode.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(7_u64.to_le_bytes());
    for length in [meta, payload, 0] {
        bytes.extend(length.to_le_bytes());
    }
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1));
    let fold = |crc: u32, &byte: &u8| (0..8).fold(crc ^ u32::from(byte), step);
    !bytes.iter().fold(u32::MAX, fold)
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// Sends `bytes` and nothing more, and reads until the other side closes.
pub fn say(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    // The other side may have closed before everything was sent: that is its right.
    let _ = stream
        .write_all(bytes)
        .and_then(|()| stream.shutdown(Shutdown::Write));
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => said,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => said,
        Err(error) => panic!("{address} does not close: {error}"),
    }
}

/// The processes are still the same, and answer.
#[track_caller]
fn assert_unharmed(cluster: &Cluster, after: &str) {
    let data = cluster.data().display().to_string();
    for pid in [cluster.coordinator_pid(), cluster.pid(0), cluster.pid(1)] {
        assert!(runs(pid, &data), "process {pid} died after {after}");
    }
    for server in 0..2 {
        let mut connection = cluster.connect(server);
        let key = format!("after {after}");
        assert!(connection.call(&["SET", &key, "ok"]).is_ok());
        assert_eq!(connection.call(&["GET", &key]), Reply::bulk("ok"));
    }
    cluster.run(["put", "redis:0", "k", "v"]).ok();
    cluster.run(["status"]).ok();
}

#[test]
fn strangers_on_every_port_harm_nobody() {
    let seed = Random::seed();
    let cluster = Setup::servers(2).start();
    garbage(&cluster, &mut Random::new(seed));
    halves(&cluster);
    lies_about_lengths(&cluster);
    slow_ones(&cluster);
    what_redis_answers(&cluster);
    admin_ports_at_their_bound(&cluster);
}

fn garbage(cluster: &Cluster, random: &mut Random) {
    for port in ports(cluster) {
        for round in 0..30 {
            say(&port.address, &port.garbage(round, random));
        }
        assert_unharmed(cluster, &format!("garbage on {}", port.name));
    }
    // Requests whose frames are right and whose contents are not, for every operation.
    for address in [
        cluster.coordinator(),
        cluster.servers()[0]["addr"].as_str().unwrap(),
    ] {
        for opcode in 0..64 {
            say(address, &nonsense_in_a_frame(opcode, random));
        }
    }
    assert_unharmed(cluster, "garbage in frames");
}

fn halves(cluster: &Cluster) {
    for port in ports(cluster) {
        for part in 1..port.good.len() {
            say(&port.address, &port.good[..part]);
        }
        assert_unharmed(cluster, &format!("halves on {}", port.name));
    }
}

fn lies_about_lengths(cluster: &Cluster) {
    let gigabyte = 1_u32 << 30;
    let memory_before = resident_bytes(cluster.pid(0));
    for port in ports(cluster) {
        let lies: Vec<Vec<u8>> = match port.name {
            "Redis" => vec![
                format!("*2\r\n$3\r\nGET\r\n${gigabyte}\r\nxx").into_bytes(),
                format!("*{gigabyte}\r\n$3\r\nGET\r\n").into_bytes(),
                b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$99999999999999999999\r\n".to_vec(),
                b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$-7\r\n".to_vec(),
            ],
            name if name.starts_with("admin") => vec![
                format!("POST / HTTP/1.1\r\nContent-Length: {gigabyte}\r\n\r\nx").into_bytes(),
                [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat(),
            ],
            _ => [(gigabyte, 0), (0, gigabyte), (u32::MAX, u32::MAX)]
                .map(|(meta, payload)| [hello(), header(1, meta, payload), vec![1; 99]].concat())
                .into(),
        };
        for lie in lies {
            say(&port.address, &lie);
        }
        assert_unharmed(cluster, &format!("lies on {}", port.name));
    }
    let grown = resident_bytes(cluster.pid(0)).saturating_sub(memory_before);
    assert!(
        grown < 100 << 20,
        "memory was taken for announced lengths: {grown}"
    );
}

fn resident_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Many connections that send a byte now and then, while others work.
fn slow_ones(cluster: &Cluster) {
    let mut slow: Vec<(TcpStream, Vec<u8>)> = Vec::new();
    for port in ports(cluster) {
        // Admin ports are for a handful of programs and bound their connections.
        let is_admin = port.name.starts_with("admin");
        let count = if is_admin { 20 } else { 150 };
        for _ in 0..count {
            slow.push((connect(&port.address), port.good.clone()));
        }
    }
    for round in 0..8 {
        for (stream, good) in &mut slow {
            // Those in the handshake between processes may be closed for being slow.
            let _ = stream.write_all(&good[round..=round]);
        }
        assert_unharmed(cluster, "slow ones");
    }
}

/// Broken framing gets Redis's own words, and the connection is closed.
fn what_redis_answers(cluster: &Cluster) {
    for (bytes, words) in [
        (
            &b"*1\r\n:5\r\n"[..],
            "Protocol error: expected '$', got ':'",
        ),
        (b"*x\r\n", "Protocol error: invalid multibulk length"),
        (b"*1\r\n$x\r\n", "Protocol error: invalid bulk length"),
        (
            b"GET \"unbalanced\r\n",
            "Protocol error: unbalanced quotes in request",
        ),
    ] {
        let said = String::from_utf8(say(&cluster.redis(0), bytes)).unwrap();
        assert!(said.starts_with(&format!("-ERR {words}")), "{said:?}");
    }
    for rpc in [
        cluster.coordinator(),
        cluster.servers()[0]["addr"].as_str().unwrap(),
    ] {
        let said = String::from_utf8(say(rpc, b"*1\r\n$4\r\nPING\r\n")).unwrap();
        assert!(said.contains("RPC port"), "{said:?}");
    }
    // A redis client on an admin port is at least not left hanging.
    for port in ports(cluster) {
        if port.name.starts_with("admin") {
            let said = say(&port.address, b"*1\r\n$4\r\nPING\r\n");
            assert!(
                said.starts_with(b"HTTP/1.1 400"),
                "{}: {}",
                port.name,
                String::from_utf8_lossy(&said)
            );
        }
    }
}

/// Admin ports take a bounded number of connections. A newcomer waits for a place, and gets it from
/// those that ask nothing.
fn admin_ports_at_their_bound(cluster: &Cluster) {
    /// What `docs/operations.md` says.
    const MOST: usize = 64;
    for port in ports(cluster) {
        if !port.name.starts_with("admin") {
            continue;
        }
        // Some have an answer and ask nothing more, some never ask, some never finish asking.
        let held = (0..MOST).map(|index| {
            let mut stream = connect(&port.address);
            match index % 3 {
                0 => {
                    stream.write_all(&port.good).unwrap();
                    let mut status = [0; 12];
                    stream.read_exact(&mut status).unwrap();
                    assert_eq!(&status, b"HTTP/1.1 200", "{}", port.name);
                }
                1 => {}
                _ => stream.write_all(&port.good[..5]).unwrap(),
            }
            stream
        });
        let mut held: Vec<TcpStream> = held.collect();
        let mut waiting = connect(&port.address);
        waiting.write_all(&port.good).unwrap();
        let mut status = [0; 12];
        waiting.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200", "{}", port.name);
        let closed = held.iter_mut().map(is_closed).filter(|closed| *closed);
        assert!(closed.count() > 0, "{}: one more than {MOST}", port.name);
        assert_unharmed(cluster, &format!("the bound of {}", port.name));
    }
}

/// Whether the other side has closed a connection, as far as is known here.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Some machines let a process have fewer files.
mod needs_many_files {
    use super::*;

    /// The default bound of a server's Redis port.
    const MOST: usize = 10_000;
    /// As many fit the RPC port of a server beside those, when it may open just enough files.
    const MOST_BESIDE: usize = 3_000;

    #[track_caller]
    fn raise_open_files() {
        let files = pluvio_env_os::raise_open_files();
        assert!(
            files >= 15_000,
            "{files} open files are too few (ulimit -Hn): `cargo xtask test` leaves these tests out"
        );
    }

    /// One port after the other: two at a time would need twice as many files.
    #[test]
    fn ten_thousand_connections_to_one_port_are_served() {
        raise_open_files();
        let cluster = Setup::servers(2).start();
        redis_clients_are_served_and_the_next_is_told(&cluster);
        processes_are_greeted(&cluster);
    }

    fn redis_clients_are_served_and_the_next_is_told(cluster: &Cluster) {
        let address = cluster.redis(0);
        let mut all: Vec<Resp> = (0..MOST).map(|_| Resp::connect(&address)).collect();
        // All have asked before the first one reads its answer.
        for connection in &mut all {
            connection.send(b"INCR visits\r\n").unwrap();
        }
        let mut seen: Vec<i64> = Vec::new();
        for connection in &mut all {
            match connection.reply().unwrap() {
                Reply::Integer(n) => seen.push(n),
                other => panic!("{other:?}"),
            }
        }
        seen.sort_unstable();
        let expected: Vec<i64> = (1..=MOST as i64).collect();
        assert_eq!(seen, expected, "each was served once");
        let mut refused = Resp::connect(&address);
        let said = refused.reply().unwrap();
        assert_eq!(said.error(), Some("ERR max number of clients reached"));
        // Other ports of the server and other servers are as before.
        assert!(cluster.connect(1).call(&["SET", "k", "v"]).is_ok());
        cluster.run(["get", "redis:0", "k"]).ok();
        drop(all);
        wait_for("a place", || {
            let mut again = Resp::connect(&address);
            match again.try_call(&["GET", "visits"]) {
                Ok(reply) if reply == Reply::bulk(MOST.to_string()) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }

    fn processes_are_greeted(cluster: &Cluster) {
        let admin = cluster.servers()[0]["admin"].as_str().unwrap();
        wait_for("earlier connections to be gone", || {
            let open = http::metric(admin, "pluvio_redis_connections_open");
            (open < 100).then_some(()).ok_or(open.to_string())
        });
        for port in ports(cluster) {
            let most = match port.name {
                "RPC of the coordinator" => MOST,
                "RPC of a server" => MOST_BESIDE,
                _ => continue,
            };
            let mut all: Vec<TcpStream> = (0..most)
                .map(|_| {
                    let mut stream = connect(&port.address);
                    stream.write_all(&port.good).unwrap();
                    stream
                })
                .collect();
            // All have greeted before the first one reads what it is answered: a welcome.
            for stream in &mut all {
                let mut welcome = [0; 14];
                stream.read_exact(&mut welcome).unwrap();
                assert_eq!(welcome[..8], *b"PLUVIO\r\n", "{}", port.name);
                assert_eq!(welcome[12..], [0; 2], "{}", port.name);
            }
            assert_unharmed(cluster, &format!("{most} connections to {}", port.name));
        }
    }
}
