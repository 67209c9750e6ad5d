//! The transport's speed on this machine: latency of one call at a time, many calls at once, large
//! frames. Also the memory of idle connections.
//!
//! `cargo run --release -p pluvio-net --example loopback -- [spin microseconds] [connections]
//! [address]`
//!
//! Server and client are two runtimes of one core each in one process.

use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Address, Clock, Frame, Handled, Network, Peer, Service, Transport};
use pluvio_env_os::{OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork};
use std::net::TcpStream;
use std::sync::Arc;

const LIMIT: Duration = Duration::from_secs(60);

/// Answers with as many bytes as the first four of the request say.
struct Answer(Bytes);

impl Service for Answer {
    fn handle(&self, _peer: Peer, request: Frame) -> Handled {
        let wanted = request
            .meta
            .first_chunk()
            .map_or(0, |n| u32::from_le_bytes(*n));
        Handled::Now(Frame {
            opcode: request.opcode,
            meta: Bytes::new(),
            payload: self.0.slice(..(wanted as usize).min(self.0.len())),
        })
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn network(runtime: &OsRuntime, spin: u64) -> Arc<OsNetwork> {
    let mut options = NetOptions::default();
    options.spin = Duration::from_micros(spin);
    Arc::new(OsNetwork::new(
        options,
        runtime.tasks(),
        runtime.clock(),
        current_core,
    ))
}

fn request(reply_bytes: u32, payload: Bytes) -> Frame {
    Frame {
        opcode: 1,
        meta: Bytes::copy_from_slice(&reply_bytes.to_le_bytes()),
        payload,
    }
}

/// Resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

async fn one_at_a_time(
    network: &OsNetwork,
    clock: &dyn Clock,
    to: &Address,
) -> Result<(), Failure> {
    let mut times = Vec::new();
    for _ in 0..50_000 {
        let before = clock.now();
        network.call(to, request(100, Bytes::new()), LIMIT).await?;
        times.push(clock.now().since(before));
    }
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    println!(
        "one at a time, 100 B replies: p50 {:?}  p99 {:?}  p99.9 {:?}",
        at(0.5),
        at(0.99),
        at(0.999)
    );
    Ok(())
}

async fn many_at_once(
    network: &OsNetwork,
    clock: &dyn Clock,
    to: &Address,
    callers: u32,
) -> Result<(), Failure> {
    let per_caller = 400_000 / callers;
    let before = clock.now();
    let one = || async {
        for _ in 0..per_caller {
            network.call(to, request(100, Bytes::new()), LIMIT).await?;
        }
        Ok::<_, Failure>(())
    };
    for end in join_all((0..callers).map(|_| one())).await {
        end?;
    }
    let seconds = clock.now().since(before).as_secs_f64();
    println!(
        "{callers} callers, 100 B replies: {:.0} calls/s",
        f64::from(per_caller * callers) / seconds
    );
    Ok(())
}

async fn large(network: &OsNetwork, clock: &dyn Clock, to: &Address) -> Result<(), Failure> {
    for (kib, count) in [(64u32, 4_000u32), (1_024, 500), (8_192, 60)] {
        let payload = Bytes::from(vec![1; (kib << 10) as usize]);
        for (what, reply_bytes, payload) in
            [("sent", 0, payload), ("received", kib << 10, Bytes::new())]
        {
            let before = clock.now();
            let one = || async {
                for _ in 0..count / 4 {
                    let request = request(reply_bytes, payload.clone());
                    network.call(to, request, LIMIT).await?;
                }
                Ok::<_, Failure>(())
            };
            for end in join_all((0..4).map(|_| one())).await {
                end?;
            }
            let seconds = clock.now().since(before).as_secs_f64();
            let mib = f64::from(kib) * f64::from(count) / 1024.0;
            println!("frames of {kib} KiB {what}: {:.0} MiB/s", mib / seconds);
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let spin = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let connections: usize = arguments.next().map_or(Ok(5_000), |text| text.parse())?;
    let mut options = OsOptions::with_cores(1);
    options.spin = Duration::from_micros(spin);
    let (servers, clients) = (OsRuntime::start(&options)?, OsRuntime::start(&options)?);
    let (server, client) = (network(&servers, spin), network(&clients, spin));
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listening = servers.block_on(async move {
        let service = Answer(Bytes::from(vec![2; 8 << 20]));
        let any = Address::from(&*address);
        server.listen(&any, Arc::new(service)).await
    })?;
    let (to, clock) = (listening.address.clone(), clients.clock());
    clients.block_on(async move {
        one_at_a_time(&client, &*clock, &to).await?;
        for callers in [16, 256] {
            many_at_once(&client, &*clock, &to, callers).await?;
        }
        large(&client, &*clock, &to).await
    })?;
    let Some(place) = listening.address.place_of(Transport::Tcp) else {
        return Ok(());
    };
    let before = resident_kib();
    let idle: Result<Vec<_>, _> = (0..connections)
        .map(|_| TcpStream::connect(place))
        .collect();
    let idle = idle?;
    // An answer to the last means that the server has accepted all.
    let probe = network(&clients, spin);
    let to = listening.address.clone();
    clients.block_on(async move { probe.call(&to, request(0, Bytes::new()), LIMIT).await })?;
    let grown = resident_kib().saturating_sub(before);
    println!(
        "{} idle connections: {} bytes each",
        idle.len(),
        grown * 1024 / idle.len().max(1) as u64
    );
    Ok(())
}
