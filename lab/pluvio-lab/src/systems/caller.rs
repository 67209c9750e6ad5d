//! One caller of a system: one request at a time.

use super::pipeline::Pipeline;
use bytes::Bytes;
use pluvio_bench::peer::{Etcd, Memcached};
use pluvio_client::{Client, Table};
use pluvio_console::failure::Failure;
use pluvio_load::resp::Reply;
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
            Self::Redis(address) => Caller::Redis(Box::new(Pipeline::open(address).await?)),
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
    Redis(Box<Pipeline>),
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
            Self::Redis(pipeline) => {
                let reply = pipeline.call(&[b"GET", key.as_bytes()]).await?;
                return Ok(reply != Reply::Nil);
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
            Self::Redis(pipeline) => {
                pipeline.call(&[b"SET", key.as_bytes(), value]).await?;
                return Ok(());
            }
            Self::Memcached(connection) => connection.set(key, value).await,
            Self::Etcd(connection) => connection.put(key, value).await,
        };
        asked.map_err(|error| Failure::new(format!("a write failed: {error}")))
    }
}
