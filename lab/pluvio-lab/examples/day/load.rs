//! The clients of the day: journals with a pace and a record of latencies, and a stock client.

use crate::Asked;
use crate::crew::Crew;
use crate::support::journal::{Journal, Load, NativeWay, RedisWay, Trouble, Way};
use crate::support::patience::{Watch, pause};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause of a writer after each operation: real clients do not wait for each other, and two cores
/// serve all processes.
const PACE: Duration = Duration::from_millis(1);
/// Refused operations that are shown.
const SHOWN: usize = 3;
/// Requests of one round of the stock client, and the pause behind it.
const STOCK_REQUESTS: &str = "1000";
const STOCK_PAUSE: Duration = Duration::from_millis(500);

/// Latencies of operations that were answered, or whose connection broke.
type Latencies = Arc<Mutex<Vec<Duration>>>;

/// A way with a pace, and a record of how long each operation took.
struct Paced {
    way: Box<dyn Way>,
    latencies: Latencies,
}

impl Paced {
    fn timed<T>(&mut self, operation: impl FnOnce(&mut dyn Way) -> T) -> T {
        let watch = Watch::start();
        let came = operation(&mut *self.way);
        let took = watch.passed();
        let latencies = self.latencies.lock();
        latencies.unwrap_or_else(PoisonError::into_inner).push(took);
        pause(PACE);
        came
    }
}

impl Way for Paced {
    fn change(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), Trouble> {
        self.timed(|way| way.change(key, value))
    }

    fn read(&mut self, key: &str) -> Result<Option<Vec<u8>>, Trouble> {
        self.timed(|way| way.read(key))
    }
}

/// redis-benchmark in rounds, until it is told to end.
struct Stock {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, String>>,
}

impl Stock {
    fn start(address: &str) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (seen, address) = (Arc::clone(&stop), address.to_owned());
        let rounds = move || {
            let mut rounds = 0;
            // Relaxed: only says when to end.
            while !seen.load(Ordering::Relaxed) {
                match round(&address)? {
                    true => rounds += 1,
                    false => return Ok(0),
                }
                pause(STOCK_PAUSE);
            }
            Ok(rounds)
        };
        let thread = std::thread::Builder::new().spawn(rounds).expect("a thread");
        Self { stop, thread }
    }

    /// How many rounds there were; 0 without the program.
    fn end(self) -> Result<u64, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

/// Whether the program is there.
fn round(address: &str) -> Result<bool, String> {
    let (host, port) = address.rsplit_once(':').expect("it has a port");
    let mut benchmark = Command::new("redis-benchmark");
    benchmark
        .args(["-h", host, "-p", port, "-t", "set,get,incr", "--csv"])
        .args(["-n", STOCK_REQUESTS, "-r", "5000", "-d", "100", "-c", "4"])
        .stdin(Stdio::null());
    let Ok(ended) = benchmark.output() else {
        return Ok(false);
    };
    let said = String::from_utf8_lossy(&ended.stderr);
    // It warns of a missing CONFIG, which is no error.
    let is_good = ended.status.success() && !said.to_lowercase().contains("error");
    match is_good {
        true => Ok(true),
        false => Err(format!("redis-benchmark at {address}: {}", said.trim())),
    }
}

/// All clients.
pub struct Clients {
    /// Empty while they work.
    journals: Vec<Journal>,
    load: Option<Load>,
    stock: Option<Stock>,
    latencies: Latencies,
    /// Where the stock client may work.
    redis: Vec<String>,
    /// Where it must not work in the next hour.
    avoided: Option<String>,
    seed: u64,
}

impl Clients {
    /// Half of them over the Redis protocol, half over the client library.
    pub fn new(asked: &Asked, crew: &Crew) -> Self {
        let mut this = Self {
            journals: Vec::new(),
            load: None,
            stock: None,
            latencies: Latencies::default(),
            redis: crew.redis(),
            avoided: None,
            seed: asked.seed,
        };
        let each = (asked.keys / asked.clients).max(1);
        for n in 0..asked.clients {
            let seed = asked.seed.wrapping_add(n as u64);
            let name = format!("client{n}");
            let way = way(n, asked.seed, crew);
            let journal = Journal::with_keys(each, name, seed, way, asked.bytes);
            this.journals.push(journal);
        }
        this
    }

    /// Writes each key once, at full speed.
    pub fn fill(&mut self) -> Result<(), String> {
        let fill = |mut journal: Journal| {
            let work = move || {
                journal.fill();
                journal
            };
            std::thread::Builder::new().spawn(work).expect("a thread")
        };
        let threads: Vec<_> = self.journals.drain(..).map(fill).collect();
        for thread in threads {
            self.journals
                .push(thread.join().expect("it does not panic"));
        }
        let troubles = self.take_troubles();
        match troubles.first() {
            None => Ok(()),
            Some(trouble) => Err(format!("FAILED: a write of the first hour: {trouble:?}")),
        }
    }

    /// They know the servers of this cluster from here on, and work at their pace.
    pub fn stay(&mut self, crew: &Crew) {
        self.redis = crew.redis();
        let seed = self.seed;
        for (n, journal) in self.journals.iter_mut().enumerate() {
            journal.go(Box::new(Paced {
                way: way(n, seed, crew),
                latencies: Arc::clone(&self.latencies),
            }));
        }
    }

    /// The stock client stays away from a server that will stop: it makes no connection anew.
    pub fn avoid(&mut self, redis: String) {
        self.avoided = Some(redis);
    }

    /// They begin to work.
    pub fn begin(&mut self) {
        self.lock().clear();
        // Another server each hour.
        self.redis.rotate_left(1);
        let avoided = self.avoided.take();
        let mut redis = self.redis.iter();
        let stock = redis.find(|address| Some(*address) != avoided.as_ref());
        self.stock = stock.map(|address| Stock::start(address));
        self.load = Some(Load::start(std::mem::take(&mut self.journals)));
    }

    /// They stop, and the hour is told.
    ///
    /// # Errors
    /// A client found a value lost, older or damaged, or was refused something.
    pub fn end(&mut self, name: &str, took: Duration) -> Result<(), String> {
        let stock = self.stock.take().map_or(Ok(0), Stock::end);
        let journals = self.load.take().expect("they began to work").finish();
        self.journals = journals.map_err(|fault| format!("LOST: {name}: {}", fault.trim()))?;
        let troubles = self.take_troubles();
        let refused: Vec<&Trouble> = troubles.iter().filter(|t| !t.broken).collect();
        let broken = troubles.len() - refused.len();
        let told = format!(
            "{}, {} refused, {broken} broken, {} stock rounds",
            latencies(&mut self.lock()),
            refused.len(),
            stock.as_ref().unwrap_or(&0)
        );
        tell(name, took, &told);
        if let Err(error) = stock {
            return Err(format!("FAILED: {name}: a stock client failed: {error}"));
        }
        if !refused.is_empty() {
            let shown: Vec<&str> = refused.iter().map(|t| &*t.text).take(SHOWN).collect();
            return Err(format!("FAILED: {name}: clients were refused: {shown:?}"));
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Duration>> {
        self.latencies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations that failed since the last time.
    fn take_troubles(&mut self) -> Vec<Trouble> {
        let each = self.journals.iter_mut();
        each.flat_map(|journal| std::mem::take(&mut journal.troubles))
            .collect()
    }

    /// Latencies of the last hour.
    pub fn latencies(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.lock())
    }

    /// What each journal knows to have happened.
    pub fn known(&self) -> Vec<BTreeMap<String, u64>> {
        self.journals.iter().map(Journal::known).collect()
    }

    /// From here on they use another cluster, with the changes `known` or later ones.
    pub fn move_to(&mut self, crew: &Crew, known: &[BTreeMap<String, u64>]) {
        self.redis = crew.redis();
        for (journal, known) in self.journals.iter_mut().zip(known) {
            journal.forget_since(known);
        }
    }

    /// Reads every key, at full speed.
    ///
    /// # Errors
    /// One has neither its last change known to have happened nor a later one.
    pub fn compare_all(&mut self, crew: &Crew) -> Result<(), String> {
        for (n, journal) in self.journals.iter_mut().enumerate() {
            journal.go(way(n, self.seed, crew));
            let compared = journal.compare_all();
            compared.map_err(|fault| format!("LOST: {fault}"))?;
        }
        Ok(())
    }
}

fn way(n: usize, seed: u64, crew: &Crew) -> Box<dyn Way> {
    match n.is_multiple_of(2) {
        true => Box::new(RedisWay::new(crew.redis(), seed.wrapping_add(n as u64))),
        false => Box::new(NativeWay::new(&crew.coordinators())),
    }
}

/// Latencies in a line.
pub fn latencies(all: &mut [Duration]) -> String {
    all.sort_unstable();
    let [p50, p99, p999, longest] = [500, 990, 999, 1000].map(|part_of| part(all, part_of));
    let count = all.len();
    format!("{count} operations, p50 {p50} p99 {p99} p99.9 {p999} longest {longest} ms")
}

/// The latency that this number of thousandths of the operations have at most, in milliseconds.
fn part(sorted: &[Duration], thousandths: usize) -> String {
    let at = (sorted.len() * thousandths).div_ceil(1000).max(1) - 1;
    let latency = sorted.get(at).copied().unwrap_or_default();
    format!("{:.2}", latency.as_secs_f64() * 1000.0)
}

/// Tells an hour.
pub fn tell(name: &str, took: Duration, what: &str) {
    println!("{name:36} {:6.1} s  {what}", took.as_secs_f64());
}
