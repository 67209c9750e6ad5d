//! The cost of a read to a client, by request and in the memory of a server of this machine.
//!
//! `cargo run --release -p pluvio-client --example reads -- ADDR`, with the address of the
//! coordinator. The cluster has one server, which runs with `--mapped-reads`. Each figure is the
//! median of some rounds of one caller.

#![allow(
    clippy::disallowed_methods,
    reason = "it measures time, outside of any event loop"
)]

use bytes::Bytes;
use pluvio_client::{Client, ClientError, ClientOptions, Key, Table};
use pluvio_env_os::{NoDisk, OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEYS: u64 = 100_000;
const VALUE: usize = 100;
const ROUNDS: usize = 9;
/// Keys of a multi-read.
const BATCH: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().nth(1);
    let coordinators = given.unwrap_or_else(|| "127.0.0.1:7700".to_owned());
    let runtime = OsRuntime::start(&OsOptions::with_cores(1))?;
    let network = OsNetwork::new(
        NetOptions::default(),
        runtime.tasks(),
        runtime.clock(),
        current_core,
    );
    let env = runtime.env(Arc::new(network), Arc::new(NoDisk));
    let options = || ClientOptions::new(coordinators.split(','));
    let by_request = Client::new(&env, options().mapped_reads(false));
    let in_memory = Client::new(&env, options());
    let done = runtime.block_on(async move {
        let table = by_request.create_table("reads", None).await?;
        fill(&by_request, &table).await?;
        measure("by request", &by_request, &table, 5_000).await?;
        // The door is looked for behind the first reads.
        while in_memory.mapped_servers().is_empty() {
            in_memory.read(&table, &0_u64.to_le_bytes()).await?;
        }
        measure("in memory", &in_memory, &table, 200_000).await
    });
    runtime.shutdown(Duration::from_secs(1));
    Ok(done?)
}

async fn fill(client: &Client, table: &Table) -> Result<(), ClientError> {
    for first in (0..KEYS).step_by(1000) {
        let keys: Vec<_> = (first..first + 1000).map(u64::to_le_bytes).collect();
        let object = |key| (Key::new(table, key), Bytes::from(vec![1; VALUE]));
        let objects: Vec<_> = keys.iter().map(|key| object(&key[..])).collect();
        for written in client.multi_write(&objects).await {
            written?;
        }
    }
    Ok(())
}

async fn measure(how: &str, client: &Client, table: &Table, reads: u64) -> Result<(), ClientError> {
    let (mut single, mut several) = (Vec::new(), Vec::new());
    for _round in 0..ROUNDS {
        let begin = Instant::now();
        for at in 0..reads {
            let key = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS;
            client.read(table, &key.to_le_bytes()).await?;
        }
        single.push(begin.elapsed() / u32::try_from(reads).unwrap_or(u32::MAX));
        let begin = Instant::now();
        for at in 0..reads / BATCH {
            let first = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS;
            let keys: Vec<_> = (first..first + BATCH)
                .map(|key| (key % KEYS).to_le_bytes())
                .collect();
            let keys: Vec<_> = keys.iter().map(|key| Key::new(table, key)).collect();
            for object in client.multi_read(&keys).await {
                object?;
            }
        }
        several.push(begin.elapsed() / u32::try_from(reads).unwrap_or(u32::MAX));
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[ROUNDS / 2]
    };
    println!(
        "{how}: a read {:?}, of a multi-read of {BATCH} {:?}",
        median(single),
        median(several)
    );
    Ok(())
}
