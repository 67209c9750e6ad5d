//! Clients that write, read, and know what they must find.
//!
//! Each client has keys of its own and numbers its changes to a key: 1, 2, 3 … Every eighth change
//! deletes. A read must find one of the changes from the last one known to have happened
//! (acknowledged, or read) to the last one tried.
//!
//! A change whose outcome is unknown may still happen later; its key is never changed again, only
//! read. So whatever the order in which late requests arrive, the rule above holds for each key.

use super::Random;
use super::native::{Native, native};
use super::resp::{Reply, Resp};
use pluvio_client::Table;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

/// Keys that a client changes at a time, usually. Few, so that each is overwritten often.
const KEYS: usize = 200;
/// Every so manieth change deletes.
const DELETES: u64 = 8;

/// A failed operation.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// The connection broke, as it does when its server is killed.
    pub broken: bool,
    /// What went wrong.
    pub text: String,
}

/// A way to a cluster.
pub trait Way: Send {
    /// Writes, or deletes when there is no value.
    ///
    /// # Errors
    /// The outcome is unknown.
    fn change(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), Trouble>;
    /// Reads.
    ///
    /// # Errors
    /// No answer.
    fn read(&mut self, key: &str) -> Result<Option<Vec<u8>>, Trouble>;
}

/// Over the Redis protocol, through one server after the other.
pub struct RedisWay {
    addresses: Vec<String>,
    random: Random,
    connection: Option<Resp>,
}

impl RedisWay {
    /// Through any of `addresses`.
    pub fn new(addresses: Vec<String>, seed: u64) -> Self {
        Self {
            addresses,
            random: Random::new(seed),
            connection: None,
        }
    }

    fn call(&mut self, command: &[&[u8]]) -> Result<Reply, Trouble> {
        let broken = |error: std::io::Error| Trouble {
            broken: true,
            text: error.to_string(),
        };
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            // Nothing was sent: another server answers for every key as well.
            None => self.connect().map_err(broken)?,
        };
        let reply = connection.try_call(command).map_err(broken)?;
        self.connection = Some(connection);
        match reply {
            Reply::Error(text) => Err(Trouble {
                broken: false,
                text: text.into_owned(),
            }),
            other => Ok(other),
        }
    }

    fn connect(&mut self) -> std::io::Result<Resp> {
        let first = self.random.next() as usize % self.addresses.len();
        let mut last = Err(std::io::Error::other("no address"));
        for turn in 0..self.addresses.len() {
            let address = &self.addresses[(first + turn) % self.addresses.len()];
            last = Resp::try_connect(address);
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

impl Way for RedisWay {
    fn change(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), Trouble> {
        let unexpected = |reply| Trouble {
            broken: false,
            text: format!("an unexpected reply: {reply:?}"),
        };
        match value {
            Some(value) => match self.call(&[b"SET", key.as_bytes(), value])? {
                reply if reply.is_ok() => Ok(()),
                other => Err(unexpected(other)),
            },
            None => match self.call(&[b"DEL", key.as_bytes()])? {
                Reply::Integer(_) => Ok(()),
                other => Err(unexpected(other)),
            },
        }
    }

    fn read(&mut self, key: &str) -> Result<Option<Vec<u8>>, Trouble> {
        match self.call(&[b"GET", key.as_bytes()])? {
            Reply::Bulk(value) => Ok(Some(value.into_owned())),
            Reply::Nil => Ok(None),
            other => Err(Trouble {
                broken: false,
                text: format!("an unexpected reply: {other:?}"),
            }),
        }
    }
}

/// With the native client.
pub struct NativeWay {
    client: Native,
    table: Table,
}

impl NativeWay {
    /// To the table of Redis database 0, so that both ways see the same objects.
    pub fn new(coordinator: &str) -> Self {
        let client = native(coordinator);
        let table = client.create_table("redis:0", None).expect("a table");
        Self { client, table }
    }
}

fn native_trouble(error: &pluvio_client::ClientError) -> Trouble {
    Trouble {
        broken: false,
        text: format!("native client: {error}"),
    }
}

impl Way for NativeWay {
    fn change(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), Trouble> {
        let key = key.as_bytes();
        match value {
            Some(value) => {
                let value = bytes::Bytes::copy_from_slice(value);
                let written = self.client.write(&self.table, key, value);
                written.map(drop).map_err(|error| native_trouble(&error))
            }
            None => {
                let deleted = self.client.delete(&self.table, key);
                deleted.map(drop).map_err(|error| native_trouble(&error))
            }
        }
    }

    fn read(&mut self, key: &str) -> Result<Option<Vec<u8>>, Trouble> {
        let read = self.client.read(&self.table, key.as_bytes());
        let object = read.map_err(|error| native_trouble(&error))?;
        Ok(object.map(|object| object.value.to_vec()))
    }
}

/// What is known of a key.
struct Key {
    name: String,
    /// The last change known to have happened.
    floor: u64,
    /// The last change tried.
    tried: u64,
}

/// One client and its keys.
pub struct Journal {
    name: String,
    random: Random,
    way: Box<dyn Way>,
    keys: Vec<Key>,
    /// Keys with a change of unknown outcome.
    doubtful: Vec<Key>,
    named: u64,
    /// Changes that were acknowledged.
    pub acknowledged: u64,
    /// Reads that were compared.
    pub compared: u64,
    /// Operations that failed.
    pub troubles: Vec<Trouble>,
    longest: usize,
}

/// Longest list of failed operations that is kept.
const TROUBLES_MAX: usize = 10_000;

impl Journal {
    /// A client with keys that begin with `name`; values have up to `longest` bytes.
    pub fn new(name: String, seed: u64, way: Box<dyn Way>, longest: usize) -> Self {
        Self::with_keys(KEYS, name, seed, way, longest)
    }

    /// The same with `keys` keys at a time.
    pub fn with_keys(
        keys: usize,
        name: String,
        seed: u64,
        way: Box<dyn Way>,
        longest: usize,
    ) -> Self {
        let mut journal = Self {
            name,
            random: Random::new(seed),
            way,
            keys: Vec::new(),
            doubtful: Vec::new(),
            named: 0,
            acknowledged: 0,
            compared: 0,
            troubles: Vec::new(),
            longest,
        };
        for _ in 0..keys {
            let key = journal.new_key();
            journal.keys.push(key);
        }
        journal
    }

    /// Goes another way from now on.
    pub fn go(&mut self, way: Box<dyn Way>) {
        self.way = way;
    }

    fn new_key(&mut self) -> Key {
        self.named += 1;
        Key {
            name: format!("{}:{}", self.name, self.named),
            floor: 0,
            tried: 0,
        }
    }

    fn trouble(&mut self, trouble: Trouble) {
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push(trouble);
        }
    }

    /// One change or one comparison.
    ///
    /// # Errors
    /// Something acknowledged or read is gone.
    pub fn step(&mut self) -> Result<(), String> {
        let all = self.keys.len() + self.doubtful.len();
        let choice = usize::try_from(self.random.below(all as u64)).unwrap_or(0);
        let read = self.random.below(4) == 0;
        if read || choice >= self.keys.len() {
            return self.compare(choice);
        }
        self.change(choice);
        Ok(())
    }

    /// Changes each key once.
    pub fn fill(&mut self) {
        for choice in 0..self.keys.len() {
            self.change(choice);
        }
    }

    fn change(&mut self, choice: usize) {
        let key = &mut self.keys[choice];
        key.tried += 1;
        let number = key.tried;
        let value =
            (!number.is_multiple_of(DELETES)).then(|| value_of(&key.name, number, self.longest));
        match self.way.change(&key.name, value.as_deref()) {
            Ok(()) => {
                key.floor = number;
                self.acknowledged += 1;
            }
            Err(trouble) => {
                let fresh = self.new_key();
                let doubtful = std::mem::replace(&mut self.keys[choice], fresh);
                self.doubtful.push(doubtful);
                self.trouble(trouble);
            }
        }
    }

    /// For each key the last change known to have happened.
    pub fn known(&self) -> BTreeMap<String, u64> {
        let all = self.keys.iter().chain(&self.doubtful);
        all.map(|key| (key.name.clone(), key.floor)).collect()
    }

    /// The cluster was restored from a copy of the time of `known`, or a later one: changes since
    /// then may be gone.
    pub fn forget_since(&mut self, known: &BTreeMap<String, u64>) {
        for key in self.keys.iter_mut().chain(&mut self.doubtful) {
            key.floor = known.get(&key.name).copied().unwrap_or(0);
        }
    }

    fn compare(&mut self, choice: usize) -> Result<(), String> {
        let doubtful = choice.checked_sub(self.keys.len());
        let key = match doubtful {
            None => &mut self.keys[choice],
            Some(choice) => &mut self.doubtful[choice],
        };
        match self.way.read(&key.name) {
            Ok(found) => {
                key.floor = check(key, found.as_deref(), self.longest)?;
                self.compared += 1;
            }
            Err(trouble) => self.trouble(trouble),
        }
        Ok(())
    }

    /// Compares all keys. Reads must succeed.
    ///
    /// # Errors
    /// Something acknowledged or read is gone, or a read failed.
    pub fn compare_all(&mut self) -> Result<(), String> {
        for choice in 0..self.keys.len() + self.doubtful.len() {
            let before = self.troubles.len();
            self.compare(choice)?;
            if let Some(trouble) = self.troubles.get(before) {
                return Err(format!("a read failed: {trouble:?}"));
            }
        }
        Ok(())
    }

    /// Failed operations, without broken connections.
    pub fn refusals(&self) -> Vec<&str> {
        let refusals = self.troubles.iter().filter(|trouble| !trouble.broken);
        refusals.map(|trouble| &trouble.text[..]).collect()
    }
}

/// Checks what was found; gives the change that it proves.
fn check(key: &Key, found: Option<&[u8]>, longest: usize) -> Result<u64, String> {
    let Key { name, floor, tried } = key;
    let say = |what: &str| {
        format!(
            "key {name}: {what}; changes {floor} (known to have happened) to {tried} (tried) are possible"
        )
    };
    let number = match found {
        None => floor.next_multiple_of(DELETES),
        Some(value) => {
            let text = String::from_utf8_lossy(&value[..value.len().min(200)]).into_owned();
            let number = text
                .strip_prefix(&format!("{name}="))
                .and_then(|rest| rest.split(':').next()?.parse().ok())
                .ok_or_else(|| say(&format!("foreign value {text:?}")))?;
            if value != value_of(name, number, longest) {
                return Err(say(&format!("damaged value of change {number}: {text:?}")));
            }
            number
        }
    };
    if number < *floor || number > *tried {
        let found = if found.is_some() {
            "found"
        } else {
            "not there, as after"
        };
        return Err(say(&format!("{found} change {number}")));
    }
    Ok(number)
}

/// The value of a change: says whose it is, and every byte can be checked.
fn value_of(name: &str, number: u64, longest: usize) -> Vec<u8> {
    let mut value = format!("{name}={number}:").into_bytes();
    let mix = |seed: u64, byte: &u8| seed.wrapping_mul(257).wrapping_add(u64::from(*byte));
    let mut random = Random::new(value.iter().fold(0, mix));
    let length = value.len() as u64 + random.below(longest as u64);
    while (value.len() as u64) < length {
        value.extend_from_slice(&random.next().to_le_bytes());
    }
    value
}

/// Clients in threads of their own.
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<Journal, String>>>,
}

impl Load {
    /// Starts a thread for each client; they run until one finds a fault or [`Load::finish`].
    pub fn start(journals: Vec<Journal>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let acknowledged = Arc::<AtomicU64>::default();
        let threads = journals
            .into_iter()
            .map(|mut journal| {
                let (stop, count) = (Arc::clone(&stop), Arc::clone(&acknowledged));
                let run = move || {
                    // Relaxed: only says when to end.
                    while !stop.load(Ordering::Relaxed) {
                        let before = journal.acknowledged;
                        if let Err(fault) = journal.step() {
                            stop.store(true, Ordering::Relaxed);
                            return Err(fault);
                        }
                        count.fetch_add(journal.acknowledged - before, Ordering::Relaxed);
                    }
                    Ok(journal)
                };
                Builder::new().spawn(run).expect("a thread")
            })
            .collect();
        Self {
            stop,
            acknowledged,
            threads,
        }
    }

    /// Changes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Whether a client has found a fault.
    pub fn failed(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends all clients and gives them back.
    ///
    /// # Errors
    /// What they found wrong.
    pub fn finish(self) -> Result<Vec<Journal>, String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut journals = Vec::new();
        let mut faults = String::new();
        for thread in self.threads {
            match thread.join() {
                Ok(Ok(journal)) => journals.push(journal),
                Ok(Err(fault)) => writeln!(faults, "{fault}").expect("text grows"),
                Err(_) => faults.push_str("a client panicked\n"),
            }
        }
        if faults.is_empty() {
            Ok(journals)
        } else {
            Err(faults)
        }
    }
}
