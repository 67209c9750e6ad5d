//! Keys that expire while their owners crash, their tablet moves and wall clocks jump. An object
//! that a client has seen as gone stays gone. None is there long after its deadline, or gone long
//! before it, and memory comes back.

use crate::struck::{self, Message};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Client, Lifetime, Table, TouchIf};
use pluvio_env::{Clock, Frame, Rng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, PartialEq, Debug)]
struct NoMessage;

impl Message for NoMessage {
    fn of(_: &Frame) -> Option<Self> {
        None
    }
}

type Cluster = struck::Cluster<NoMessage>;

const KEYS: u64 = 8;
/// How much longer than its lifetime an object may be seen: the horizon waits for replicas that are
/// made anew.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Keys that outlive the test.
const LASTING: [&str; 2] = ["lasting 0", "lasting 1"];
const LASTING_MS: u64 = 3_600_000;

/// A version that was written, with its latest lifetime.
#[derive(Clone, Copy, Debug)]
struct Written {
    version: u64,
    returned: Duration,
    /// When its last lifetime was over, counted from the answer.
    over: Duration,
}

/// A read, and the version that it saw; 0: there was none.
#[derive(Clone, Copy, Debug)]
struct Read {
    invoked: Duration,
    returned: Duration,
    version: u64,
}

#[derive(Default)]
struct History {
    written: BTreeMap<String, Vec<Written>>,
    read: BTreeMap<String, Vec<Read>>,
}

type Shared = Arc<Mutex<History>>;

struct Worker {
    client: Client,
    table: Table,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    history: Shared,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn below(&self, most: u64) -> u64 {
        self.rng.next_u64() % most
    }

    /// Writes one key again and again, and alone.
    async fn write(self, key: String) {
        while !self.stop.load(Ordering::Relaxed) {
            let ms = 1 + self.below(900);
            let lifetime = Lifetime::For(ms);
            let (own, table) = (&self.client, &self.table);
            let value = Bytes::from_static(b"value");
            let reply = own.write_for(table, key.as_bytes(), value, lifetime).await;
            let returned = self.clock.now().0;
            self.wrote(&key, reply.unwrap().version.0, returned, ms);
            if self.below(3) == 0 {
                let more = 1 + self.below(900);
                let (lifetime, always) = (Lifetime::For(more), TouchIf::Always);
                // A new version, whose number nobody is told here.
                let touched = own.touch(table, key.as_bytes(), lifetime, always).await;
                if touched.unwrap() {
                    let returned = self.clock.now().0;
                    self.wrote(&key, u64::MAX, returned, more);
                }
            }
            self.clock
                .sleep(Duration::from_millis(self.below(1_500)))
                .await;
        }
    }

    fn wrote(&self, key: &str, version: u64, returned: Duration, ms: u64) {
        let mut history = self.history.lock().unwrap();
        let written = history.written.entry(key.to_owned()).or_default();
        // A touched object has the next version.
        let version = match version {
            u64::MAX => written.last().unwrap().version + 1,
            version => version,
        };
        written.push(Written {
            version,
            returned,
            over: returned + Duration::from_millis(ms),
        });
    }

    fn saw(&self, key: String, read: Read) {
        let mut history = self.history.lock().unwrap();
        history.read.entry(key).or_default().push(read);
    }

    async fn read(self) {
        while !self.stop.load(Ordering::Relaxed) {
            let key = match self.below(10) {
                0 => LASTING[self.below(2) as usize].to_owned(),
                _ => format!("key {}", self.below(KEYS)),
            };
            let invoked = self.clock.now().0;
            let object = self.client.read(&self.table, key.as_bytes()).await.unwrap();
            let read = Read {
                invoked,
                returned: self.clock.now().0,
                version: object.map_or(0, |object| object.version.0),
            };
            self.saw(key, read);
            self.clock
                .sleep(Duration::from_millis(self.below(15)))
                .await;
        }
    }
}

impl History {
    /// Gives how many versions were seen as gone, and how many there were.
    fn check(&self, what: &str) -> (usize, usize) {
        let (mut gone, mut all) = (0, 0);
        for key in LASTING {
            let reads = &self.read[key];
            assert!(
                reads.iter().all(|read| read.version > 0),
                "{what}: {key} is gone early"
            );
        }
        for (key, written) in &self.written {
            let Some(reads) = self.read.get(key) else {
                continue;
            };
            all += written.len();
            let versions = written.windows(2);
            assert!(
                { versions }.all(|two| two[0].version < two[1].version),
                "{what}: {key}"
            );
            for (i, one) in written.iter().enumerate() {
                // Absent to a read that began when this had been written: it is gone for good.
                let absent = reads
                    .iter()
                    .filter(|read| read.version == 0 && read.invoked >= one.returned)
                    .map(|read| read.returned)
                    .min();
                let seen = |read: &&Read| read.version > 0 && read.version <= one.version;
                if let Some(absent) = absent {
                    gone += 1;
                    let back = reads.iter().filter(|read| read.invoked >= absent);
                    let back = back.clone().find(seen);
                    assert!(back.is_none(), "{what}: {key} {one:?} is back: {back:?}");
                }
                let next = written.get(i + 1).map_or(one.version, |next| next.version);
                let late = |read: &&Read| {
                    let over = one.over.max(one.returned) + LATE_MAX;
                    read.version >= one.version
                        && read.version < next.max(one.version + 1)
                        && read.invoked > over
                };
                let late = reads.iter().find(late);
                assert!(
                    late.is_none(),
                    "{what}: {key} {one:?} is still there: {late:?}"
                );
            }
        }
        (gone, all)
    }
}

// shows: EXPIRY-1, EXPIRY-2, EXPIRY-3
#[test]
fn what_was_seen_as_gone_stays_gone_while_owners_crash_and_clocks_jump() {
    for seed in 0..8 {
        let what = format!("seed {seed}");
        let mut cluster = Cluster::new(seed, 4);
        let client = cluster.new_client(&cluster.client);
        let table = cluster.table(&client);
        let (history, stop) = (Shared::default(), Arc::new(AtomicBool::new(false)));
        let (own, all) = (client.clone(), table.clone());
        cluster.block_on(async move {
            for key in LASTING {
                let value = Bytes::from_static(b"value");
                let lifetime = Lifetime::For(LASTING_MS);
                let written = own.write_for(&all, key.as_bytes(), value, lifetime);
                written.await.unwrap();
            }
        });
        let worker = |cluster: &Cluster| Worker {
            client: client.clone(),
            table: table.clone(),
            clock: cluster.client.env.clock.clone(),
            rng: cluster.client.env.rng.clone(),
            history: Arc::clone(&history),
            stop: Arc::clone(&stop),
        };
        let id = cluster.client.id;
        for key in 0..KEYS {
            let work = worker(&cluster).write(format!("key {key}"));
            cluster.sim.spawn(id, "writer", work);
        }
        for _ in 0..4 {
            let work = worker(&cluster).read();
            cluster.sim.spawn(id, "reader", work);
        }
        for round in 0..6 {
            for _ in 0..1_000 {
                cluster.tend();
            }
            let owner = cluster.owner(&client, &table);
            let process = cluster.process_of(owner);
            match (round + seed) % 3 {
                0 => {
                    // The next owner's wall clock is an hour behind, also where it began with it.
                    for id in cluster.server_ids() {
                        let other = cluster.process_of(id);
                        if other != process {
                            cluster.sim.jump_unix_seconds(other, -3_600);
                        }
                    }
                    cluster.crash(process);
                }
                1 => {
                    let to = cluster
                        .server_ids()
                        .into_iter()
                        .find(|id| *id != owner)
                        .unwrap();
                    cluster.migrate(&client, &table, to);
                }
                _ => cluster.sim.jump_unix_seconds(process, -3_600),
            }
            cluster.until_healthy(&client);
        }
        stop.store(true, Ordering::Relaxed);
        for _ in 0..8_000 {
            cluster.tend();
        }
        let (gone, all) = history.lock().unwrap().check(&what);
        assert!(
            gone > 20 && all > 50,
            "{what}: {gone} of {all} were seen as gone"
        );
        let (own, all) = (client.clone(), table.clone());
        let left = cluster.block_on(async move { own.count(&all).await.unwrap() });
        assert_eq!(
            left.objects,
            LASTING.len() as u64,
            "{what}: memory does not come back"
        );
    }
}
