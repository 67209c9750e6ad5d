//! A caller: a process that uses one of the stores. It says when it is ready, begins at a word of
//! the experiment, and tells what it has done.

use super::load::{Done, Load, Operation, key_of, value_of};
use super::resp::Servers;
use super::span::Store;
use crate::error::{JumpError, Result};
use bytes::Bytes;
use pluvio_client::{Client, ClientOptions, Key, Table};
use pluvio_env_os::{NoDisk, OsOptions, OsRuntime, current_core};
use pluvio_mapped::{Answer, Reader, Why};
use pluvio_net::{NetOptions, OsNetwork};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The table of our servers.
const TABLE: &str = "jump";
/// Objects of a batch when a server is filled.
const BATCH: usize = 500;
/// How long a client may take to end.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Which store, and how it is reached.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// A span; `--at` is the registry
    Space,
    /// The memory of a server of ours; `--at` is the coordinator, and the door
    Mapped,
    /// A server of ours; `--at` is the coordinator
    Rpc,
    /// Redis servers; `--at` is each one's socket
    Redis,
}

/// What a caller is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Caller {
    /// Which store
    #[arg(value_enum)]
    pub way: Way,
    /// Where it is
    #[arg(long, required = true)]
    pub at: Vec<String>,
    /// Keys
    #[arg(long)]
    pub keys: u64,
    /// Of a hundred operations, how many write
    #[arg(long, default_value_t = 0)]
    pub set_percent: u64,
    /// How long
    #[arg(long, default_value_t = 0)]
    pub millis: u64,
    /// Which caller it is
    #[arg(long, default_value_t = 0)]
    pub number: u64,
}

impl Way {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Space => "space",
            Self::Mapped => "mapped",
            Self::Rpc => "rpc",
            Self::Redis => "redis",
        }
    }
}

impl Caller {
    fn path(&self, number: usize) -> Result<&Path> {
        let at = self.at.get(number).map(Path::new);
        at.ok_or_else(|| JumpError::Parameters("too few --at".to_owned()))
    }

    fn sockets(&self) -> Vec<PathBuf> {
        self.at.iter().map(PathBuf::from).collect()
    }

    fn load(&self) -> Load {
        let time = Duration::from_millis(self.millis);
        Load::new(self.keys, self.set_percent, time, self.number)
    }

    /// All keys with their first values.
    fn pairs(&self) -> Vec<(String, String)> {
        let pair = |number| {
            let (mut key, mut value) = (String::new(), String::new());
            key_of(number, &mut key);
            value_of(&key, 0, &mut value);
            (key, value)
        };
        (0..self.keys).map(pair).collect()
    }
}

fn failed(error: impl std::fmt::Display) -> JumpError {
    JumpError::of("the client", error)
}

/// Fills a store.
///
/// # Errors
/// It refuses.
pub(crate) fn fill(caller: &Caller) -> Result<()> {
    let pairs = caller.pairs();
    match caller.way {
        Way::Space => Store::make(caller.path(0)?, &pairs),
        Way::Redis => {
            let pairs = pairs
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str()));
            Servers::connect(&caller.sockets())?.fill(pairs)
        }
        Way::Mapped | Way::Rpc => with_client(caller, async move |client| {
            let table = client.create_table(TABLE, None).await.map_err(failed)?;
            for some in pairs.chunks(BATCH) {
                let objects: Vec<_> = some
                    .iter()
                    .map(|(key, value)| {
                        let value = Bytes::from(value.clone());
                        (Key::new(&table, key.as_bytes()), value)
                    })
                    .collect();
                for written in client.multi_write(&objects).await {
                    written.map_err(failed)?;
                }
            }
            Ok(())
        }),
    }
}

/// Calls until the time is over, and prints what was done.
///
/// # Errors
/// The store refuses, or gives a wrong value.
pub(crate) fn call(caller: &Caller) -> Result<()> {
    let done = match caller.way {
        Way::Space => {
            let store = Store::attach(caller.path(0)?)?;
            let get = |key: &str, into: &mut Vec<u8>| store.get(key, into);
            drive(caller.load(), get, |key, value| store.set(key, value))?
        }
        Way::Redis => {
            let servers = std::cell::RefCell::new(Servers::connect(&caller.sockets())?);
            let get = |key: &str, into: &mut Vec<u8>| servers.borrow_mut().get(key, into);
            drive(caller.load(), get, |key, value| {
                servers.borrow_mut().set(key, value)
            })?
        }
        Way::Mapped => {
            let reader = Reader::open(caller.path(1)?).map_err(failed)?;
            let load = caller.load();
            with_client(caller, async move |client| {
                let table = client.table(TABLE).await.map_err(failed)?;
                drive_client(load, &client, &table, Some(&reader)).await
            })?
        }
        Way::Rpc => {
            let load = caller.load();
            with_client(caller, async move |client| {
                let table = client.table(TABLE).await.map_err(failed)?;
                drive_client(load, &client, &table, None).await
            })?
        }
    };
    let line = serde_json::to_string(&done).map_err(failed)?;
    say(&line)
}

/// Writes a line for the experiment.
fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    let said = writeln!(output, "{line}").and_then(|()| output.flush());
    said.map_err(failed)
}

/// Says that the caller is ready, and waits for the word.
fn wait_for_word() -> Result<()> {
    say("ready")?;
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map(drop)
        .map_err(failed)
}

fn drive(
    mut load: Load,
    mut get: impl FnMut(&str, &mut Vec<u8>) -> Result<bool>,
    mut set: impl FnMut(&str, &str) -> Result<()>,
) -> Result<Done> {
    let mut into = Vec::new();
    wait_for_word()?;
    load.begin();
    while let Some(operation) = load.next() {
        match operation {
            Operation::Set => set(&load.key, &load.value)?,
            Operation::Get => {
                let found = get(&load.key, &mut into)?;
                load.check(found.then_some(&into))?;
            }
        }
        load.done();
    }
    Ok(load.end())
}

/// The same by our client; reads in memory if there is a reader.
async fn drive_client(
    mut load: Load,
    client: &Client,
    table: &Table,
    reader: Option<&Reader>,
) -> Result<Done> {
    let mut into = Vec::new();
    wait_for_word()?;
    load.begin();
    while let Some(operation) = load.next() {
        match operation {
            Operation::Set => {
                let value = Bytes::copy_from_slice(load.value.as_bytes());
                let written = client.write(table, load.key.as_bytes(), value).await;
                written.map_err(failed)?;
            }
            Operation::Get => {
                let answer = reader.map(|reader| {
                    let answer = reader.read(table.id(), load.key.as_bytes(), &mut into);
                    if matches!(answer, Answer::Ask(Why::OldMap | Why::NotFresh)) {
                        // The server is asked this time, whatever comes of it.
                        let _known_anew = reader.refresh();
                    }
                    answer
                });
                match answer {
                    Some(Answer::Found(_)) => load.check(Some(&into))?,
                    Some(Answer::Absent) => load.check(None)?,
                    Some(Answer::Ask(_)) | None => {
                        let object = client.read(table, load.key.as_bytes()).await;
                        let object = object.map_err(failed)?;
                        load.check(object.as_ref().map(|object| &object.value[..]))?;
                    }
                }
            }
        }
        load.done();
    }
    Ok(load.end())
}

/// Runs something with a client of the cluster, on an event loop.
fn with_client<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    caller: &Caller,
    work: impl FnOnce(Client) -> F + Send + 'static,
) -> Result<T> {
    let coordinator = caller.at.first().cloned().unwrap_or_default();
    let runtime = OsRuntime::start(&OsOptions::with_cores(1)).map_err(failed)?;
    let network = OsNetwork::new(
        NetOptions::default(),
        runtime.tasks(),
        runtime.clock(),
        current_core,
    );
    let env = runtime.env(Arc::new(network), Arc::new(NoDisk));
    // Whether memory is read is the way's business.
    let options = ClientOptions::new([coordinator.as_str()]).mapped_reads(false);
    let client = Client::new(&env, options);
    let done = runtime.block_on(work(client));
    runtime.shutdown(END_LIMIT);
    done
}
