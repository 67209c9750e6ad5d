//! Clients that write and read while the demo kills a server, and remember what was acknowledged.

use super::data;
use pluvio_client::{Client, Table};
use pluvio_console::failure::Failure;
use pluvio_console::session::Session;
use pluvio_env::{Clock, Env};
use pluvio_units::CoreId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// Clients at work.
pub const CLIENTS: usize = 16;
/// Keys that each of them writes, in turn.
const KEYS: u64 = 64;

/// What the clients were told by the cluster.
#[derive(Default, Debug)]
pub struct Seen {
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Reads of records that came back empty, though none is ever deleted.
    pub wrong_reads: u64,
    /// The slowest operation before the kill.
    pub longest_before: Duration,
    /// The slowest operation that ended after the kill.
    pub longest_after: Duration,
    /// For each client, how often each of its keys was written: the value it must have.
    written: Vec<Vec<u64>>,
}

/// The running clients.
pub struct Load {
    shared: Arc<Shared>,
    ends: Vec<oneshot::Receiver<Result<Seen, Failure>>>,
}

/// Relaxed: flags that order nothing.
#[derive(Default)]
struct Shared {
    killed: AtomicBool,
    stop: AtomicBool,
}

impl Load {
    /// Starts the clients: they write into `counters`, and read from `weather`.
    pub fn start(session: &Session, weather: &Table, counters: &Table) -> Self {
        let shared = Arc::<Shared>::default();
        let mut ends = Vec::new();
        for number in 0..CLIENTS {
            let (done, end) = oneshot::channel();
            let one = One {
                env: session.env.clone(),
                client: session.client.clone(),
                weather: weather.clone(),
                counters: counters.clone(),
                number,
                shared: shared.clone(),
            };
            session.env.tasks.spawn(CoreId(0), "load", async move {
                // Nobody waits any more when the demo has failed.
                let _ = done.send(one.run().await);
            });
            ends.push(end);
        }
        Self { shared, ends }
    }

    /// From here on delays are those after the kill.
    pub fn mark(&self) {
        self.shared.killed.store(true, Ordering::Relaxed);
    }

    /// Stops the clients; gives what they saw together.
    ///
    /// # Errors
    /// An operation failed: the cluster promises delays, no errors.
    pub async fn stop(self) -> Result<Seen, Failure> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut total = Seen::default();
        for end in self.ends {
            let stopped = || Failure::new("a client of the demo was stopped");
            let one = end.await.map_err(|_| stopped())??;
            total.acknowledged += one.acknowledged;
            total.reads += one.reads;
            total.wrong_reads += one.wrong_reads;
            total.longest_before = total.longest_before.max(one.longest_before);
            total.longest_after = total.longest_after.max(one.longest_after);
            total.written.extend(one.written);
        }
        Ok(total)
    }
}

impl Seen {
    /// Reads every key that was written. Gives how many acknowledged writes are lost: how far
    /// values are behind what was acknowledged.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub async fn verify(&self, session: &Session, counters: &Table) -> Result<u64, Failure> {
        let mut lost = 0;
        for (number, keys) in self.written.iter().enumerate() {
            for (at, &written) in keys.iter().enumerate() {
                let key = key(number, at as u64);
                let object = session.client.read(counters, key.as_bytes()).await?;
                let text = object.and_then(|o| String::from_utf8(o.value.to_vec()).ok());
                let there = text.and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
                lost += written.saturating_sub(there);
            }
        }
        Ok(lost)
    }
}

fn key(client: usize, at: u64) -> String {
    format!("client {client}, counter {at}")
}

/// One client.
struct One {
    env: Env,
    client: Client,
    weather: Table,
    counters: Table,
    number: usize,
    shared: Arc<Shared>,
}

impl One {
    async fn run(self) -> Result<Seen, Failure> {
        let records = data::records();
        let mut seen = Seen::default();
        let mut written = vec![0; KEYS as usize];
        let mut turn = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let at = turn % KEYS;
            turn += 1;
            let next = written[at as usize] + 1;
            let start = self.env.clock.now();
            let key = key(self.number, at);
            let value = next.to_string();
            self.client
                .write(&self.counters, key.as_bytes(), value.into())
                .await?;
            self.note(&mut seen, start);
            written[at as usize] = next;
            seen.acknowledged += 1;
            let record = (self.env.rng.below(records) + 1).to_string();
            let start = self.env.clock.now();
            let found = self.client.read(&self.weather, record.as_bytes()).await?;
            self.note(&mut seen, start);
            seen.reads += 1;
            seen.wrong_reads += u64::from(found.is_none());
        }
        seen.written = vec![written];
        Ok(seen)
    }

    fn note(&self, seen: &mut Seen, start: pluvio_env::Moment) {
        let clock: &dyn Clock = &*self.env.clock;
        let took = clock.now().since(start);
        let longest = match self.shared.killed.load(Ordering::Relaxed) {
            true => &mut seen.longest_after,
            false => &mut seen.longest_before,
        };
        *longest = (*longest).max(took);
    }
}
