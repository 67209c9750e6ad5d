//! The clients of a torture: which there are, and how long each waits.
//!
//! Every other client uses the client library, the others the Redis ports. Half of the latter are
//! cluster clients. Half of each kind are patient. Half of those that use the library read in the
//! memory of servers.

use super::draw::Draw;
use super::journal::Journal;
use super::native::Native;
use super::redis::Redis;
use super::slots::Slots;
use super::tables;
use pluvio_console::failure::Failure;
use pluvio_local::LocalCluster;
use pluvio_units::CoreId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest pause of a client between two steps. It bounds the length of the history: twelve clients
/// do some 500 operations a second, which take about 300 MB an hour.
const PACE_MS_MAX: u64 = 60;
/// How long operations may take: half of the clients are patient, half give up early, so that many
/// outcomes are unknown.
const PATIENCES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(1)];

/// How long the operations of a client may take.
fn patience(client: u16) -> Duration {
    PATIENCES[usize::from(client / 2) % PATIENCES.len()]
}

/// Where the Redis ports of all servers are.
struct Ports {
    redis: Vec<String>,
    /// Those for cluster clients.
    cluster: Vec<String>,
}

/// Whether a client of the Redis ports is a cluster client: of both the patient ones and the
/// others.
fn is_of_cluster(client: u16) -> bool {
    client / 4 % 2 == 1
}

/// Whether a client of the library reads in the memory of servers: of both the patient ones and the
/// others.
fn is_mapping(client: u16) -> bool {
    (client / 4).is_multiple_of(2)
}

/// The clients at work.
pub struct Clients(Vec<oneshot::Receiver<()>>);

impl Clients {
    /// Lets this number of clients work on a cluster whose tables are made, until the journal is
    /// stopped.
    ///
    /// # Errors
    /// The cluster does not tell its tables.
    pub async fn start(
        count: u16,
        seed: u64,
        journal: &Journal,
        cluster: &LocalCluster,
    ) -> Result<Self, Failure> {
        let ports = Ports {
            redis: cluster.servers().filter_map(|s| s.redis.clone()).collect(),
            cluster: { cluster.servers() }
                .filter_map(|s| s.redis_cluster.clone())
                .collect(),
        };
        let mut ends = Vec::new();
        for number in 0..count {
            let session = match is_mapping(number) {
                true => cluster.session(patience(number)),
                false => cluster.session_by_requests(patience(number)),
            };
            let (journal, clock) = (journal.clone(), session.env.clock.clone());
            let draw = Draw::new(seed, "client", u64::from(number));
            let mut pauses = Draw::new(seed, "pauses", u64::from(number));
            let (done, end) = oneshot::channel();
            ends.push(end);
            let mut worker = match number % 2 {
                0 => Worker::Native(Native {
                    journal: journal.clone(),
                    client: session.client.clone(),
                    tables: tables::open(&session.client).await?,
                    number,
                    draw,
                    versions: BTreeMap::new(),
                }),
                _ => Worker::Redis(Redis {
                    journal: journal.clone(),
                    clock: clock.clone(),
                    servers: ports.redis.clone(),
                    // The server itself gives up after 10 s, and says so.
                    patience: patience(number) + Duration::from_secs(1),
                    number,
                    draw,
                    connection: None,
                    slots: is_of_cluster(number).then(|| Slots::new(ports.cluster.clone())),
                }),
            };
            session.env.tasks.spawn(CoreId(0), "torture", async move {
                while !journal.is_stopped() {
                    match &mut worker {
                        Worker::Native(native) => native.step().await,
                        Worker::Redis(redis) => redis.step().await,
                    }
                    clock.sleep(pauses.millis(0, PACE_MS_MAX)).await;
                }
                // Nobody waits any more when the run has failed.
                let _unheard = done.send(());
            });
        }
        Ok(Self(ends))
    }

    /// Waits until all have ended the operations they were at.
    ///
    /// # Errors
    /// A client was stopped by something else.
    pub async fn ended(self) -> Result<(), Failure> {
        for end in self.0 {
            let stopped = |_| Failure::new("a client was stopped");
            end.await.map_err(stopped)?;
        }
        Ok(())
    }
}

enum Worker {
    Native(Native),
    Redis(Redis),
}
