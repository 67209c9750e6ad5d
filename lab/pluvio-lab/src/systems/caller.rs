//! One caller of a system: one request at a time.

use bytes::Bytes;
use pluvio_bench::peer::{Etcd, Memcached};
use pluvio_client::{Client, Table};
use pluvio_console::failure::Failure;
use pluvio_load::resp::{self, Reply, command};
use std::io;

/// How a system is asked.
#[derive(Clone)]
pub enum Way {
    /// By the native client: one for all callers, as an application has it.
    Native {
        /// The client.
        client: Client,
        /// Where the objects are.
        table: Table,
    },
    /// By the Redis protocol, at this address.
    Redis(String),
    /// By memcached's text protocol, at this address.
    Memcached(String),
    /// By etcd's gRPC, at this address.
    Etcd(String),
}

impl Way {
    /// A caller, with a connection of its own where the protocol has connections.
    ///
    /// # Errors
    /// Nobody answers there.
    pub async fn caller(&self) -> Result<Caller, Failure> {
        Ok(match self {
            Self::Native { client, table } => Caller::Native {
                client: client.clone(),
                table: table.clone(),
            },
            Self::Redis(address) => {
                let connection = resp::Connection::open(address).await;
                Caller::Redis {
                    connection: Box::new(connection.map_err(|error| broken(address, &error))?),
                    out: Vec::new(),
                }
            }
            Self::Memcached(address) => {
                let opened = Memcached::open(address).await;
                Caller::Memcached(Box::new(opened.map_err(|error| broken(address, &error))?))
            }
            Self::Etcd(address) => {
                let opened = Etcd::open(address).await;
                Caller::Etcd(Box::new(opened.map_err(|error| broken(address, &error))?))
            }
        })
    }
}

fn broken(address: &str, error: &io::Error) -> Failure {
    Failure::new(format!("{address}: {error}"))
}

/// One caller.
pub enum Caller {
    /// By the native client.
    Native {
        /// The client.
        client: Client,
        /// Where the objects are.
        table: Table,
    },
    /// By the Redis protocol.
    Redis {
        /// Its connection.
        connection: Box<resp::Connection>,
        /// The request that is made.
        out: Vec<u8>,
    },
    /// By memcached's protocol.
    Memcached(Box<Memcached>),
    /// By etcd's.
    Etcd(Box<Etcd>),
}

impl Caller {
    /// Reads; whether there is a value.
    ///
    /// # Errors
    /// The system refused, or the connection broke.
    pub async fn read(&mut self, key: &str) -> Result<bool, Failure> {
        let asked = match self {
            Self::Native { client, table } => {
                return Ok(client.read(table, key.as_bytes()).await?.is_some());
            }
            Self::Redis { connection, out } => {
                call(connection, out, &[b"GET", key.as_bytes()]).await
            }
            Self::Memcached(connection) => connection.get(key).await.map(|found| found.is_some()),
            Self::Etcd(connection) => connection.get(key).await,
        };
        asked.map_err(|error| Failure::new(format!("a read failed: {error}")))
    }

    /// Writes.
    ///
    /// # Errors
    /// The system refused, or the connection broke.
    pub async fn write(&mut self, key: &str, value: &Bytes) -> Result<(), Failure> {
        let asked = match self {
            Self::Native { client, table } => {
                client.write(table, key.as_bytes(), value.clone()).await?;
                return Ok(());
            }
            Self::Redis { connection, out } => {
                let done = call(connection, out, &[b"SET", key.as_bytes(), value]).await;
                done.map(|_| ())
            }
            Self::Memcached(connection) => connection.set(key, value).await,
            Self::Etcd(connection) => connection.put(key, value).await,
        };
        asked.map_err(|error| Failure::new(format!("a write failed: {error}")))
    }
}

/// One command of the Redis protocol: whether it gave something.
async fn call(
    connection: &mut resp::Connection,
    out: &mut Vec<u8>,
    arguments: &[&[u8]],
) -> io::Result<bool> {
    out.clear();
    command(out, arguments);
    connection.send(out).await?;
    connection
        .reply(|reply| match reply {
            Reply::Error(text) => Err(io::Error::other(text.into_owned())),
            Reply::Nil => Ok(false),
            Reply::Simple(_) | Reply::Integer(_) | Reply::Bulk(_) | Reply::Array(_) => Ok(true),
        })
        .await?
}
