//! Whom to measure, and one caller of it.

use crate::error::BenchError;
use crate::plan::key;
use crate::redis::Connection;
use crate::resp::Reply;
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_client::{Client, Table};
use pluvio_env::{Address, Clock};
use std::sync::Arc;

/// Whom to measure.
#[derive(Clone)]
pub enum Target {
    /// Servers that speak the Redis protocol.
    Redis {
        /// Where they are; connections are spread over them.
        addresses: Vec<String>,
        /// After writes, wait until this many replicas have them (`WAIT`). With zero, do not ask.
        wait: u32,
    },
    /// A Pluvio cluster by its own protocol.
    Native {
        /// The client. One for all callers, as an application has it.
        client: Client,
        /// Where the objects go.
        table: Table,
    },
}

impl Target {
    /// What it is, for the report.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn describe(&self) -> Result<String, BenchError> {
        match self {
            Self::Redis { addresses, wait } => {
                let first = addresses.first().ok_or_else(no_address)?;
                let about = Connection::open(first).await?.describe().await?;
                let wait = match wait {
                    0 => String::new(),
                    n => format!(", WAIT {n} after writes"),
                };
                Ok(format!(
                    "Redis protocol, {} ({about}){wait}",
                    addresses.join(" ")
                ))
            }
            Self::Native { client, table } => {
                let servers = client.server_list().await?.up().count();
                Ok(format!(
                    "native client, table {:?}, {servers} servers",
                    table.name()
                ))
            }
        }
    }

    pub(crate) async fn caller(&self, number: usize) -> Result<Caller, BenchError> {
        Ok(match self {
            Self::Redis { addresses, wait } => {
                let address = addresses.get(number % addresses.len().max(1));
                let connection = Connection::open(address.ok_or_else(no_address)?).await?;
                Caller::Redis {
                    connection: Box::new(connection),
                    wait: *wait,
                }
            }
            Self::Native { client, table } => {
                let list = client.server_list().await?;
                let servers: Vec<_> = list
                    .up()
                    .map(|server| Address::from(server.address.as_str()))
                    .collect();
                let server = servers.get(number % servers.len().max(1));
                Caller::Native {
                    client: client.clone(),
                    table: table.clone(),
                    server: server.ok_or_else(no_address)?.clone(),
                }
            }
        })
    }
}

fn no_address() -> BenchError {
    BenchError::Parameters("give the address of at least one server".into())
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Get(u64),
    Set(u64),
    /// A round trip that does nothing.
    Ping,
}

/// What became of operations.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outcome {
    /// Operations that were answered without an error, and how long each took.
    pub(crate) done: Vec<Duration>,
    /// Reads that found nothing.
    pub(crate) misses: u64,
    /// Operations that were refused.
    pub(crate) errors: u64,
    /// The first refusal.
    pub(crate) error: Option<String>,
}

impl Outcome {
    /// Counts a reply that is a miss or a refusal; whether the operation was done.
    fn answered(&mut self, reply: &Reply<'_>) -> bool {
        match reply {
            Reply::Simple(_) | Reply::Integer(_) | Reply::Bulk(_) | Reply::Array(_) => {}
            Reply::Nil => self.misses += 1,
            Reply::Error(text) => self.refused(text.to_string()),
        }
        reply.error().is_none()
    }

    fn refused(&mut self, text: String) {
        self.errors += 1;
        self.error.get_or_insert(text);
    }
}

/// One connection, or one caller of the native client.
pub(crate) enum Caller {
    Redis {
        connection: Box<Connection>,
        wait: u32,
    },
    Native {
        client: Client,
        table: Table,
        /// Who is pinged.
        server: Address,
    },
}

impl Caller {
    /// Sends all operations at once and waits for all replies.
    pub(crate) async fn round(
        &mut self,
        clock: &Arc<dyn Clock>,
        operations: &[Operation],
        value: &Bytes,
    ) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        match self {
            Self::Redis { connection, wait } => {
                let writes = operations.iter().any(|o| matches!(o, Operation::Set(_)));
                let wait = if writes { *wait } else { 0 };
                for operation in operations {
                    match *operation {
                        Operation::Get(number) => connection.get(number),
                        Operation::Set(number) => connection.set(number, value),
                        Operation::Ping => connection.ping(),
                    }
                }
                if wait > 0 {
                    connection.wait(wait);
                }
                let start = clock.now();
                connection.flush().await?;
                for _ in operations {
                    let take = |reply: Reply<'_>| outcome.answered(&reply);
                    if connection.reply(take).await? {
                        outcome.done.push(clock.now().since(start));
                    }
                }
                if wait > 0 {
                    // Nothing is done before the replicas have it.
                    let take = |reply: Reply<'_>| match reply {
                        Reply::Integer(replicas) if replicas >= i64::from(wait) => {}
                        other => outcome.refused(format!("WAIT {wait} answered {other:?}")),
                    };
                    connection.reply(take).await?;
                    let all = clock.now().since(start);
                    outcome.done.iter_mut().for_each(|took| *took = all);
                }
            }
            Self::Native {
                client,
                table,
                server,
            } => {
                let one = |operation: &Operation| {
                    let (client, table, operation) = (&*client, &*table, *operation);
                    let server = &*server;
                    async move {
                        let start = clock.now();
                        let found = match operation {
                            Operation::Get(number) => {
                                client.read(table, &key(number)).await.map(|o| o.is_some())
                            }
                            Operation::Set(number) => {
                                let key = key(number);
                                client.write(table, &key, value.clone()).await.map(|_| true)
                            }
                            Operation::Ping => client.ping(server).await.map(|()| true),
                        };
                        (found, clock.now().since(start))
                    }
                };
                for (found, took) in join_all(operations.iter().map(one)).await {
                    match found {
                        Ok(found) => {
                            outcome.misses += u64::from(!found);
                            outcome.done.push(took);
                        }
                        Err(error) => outcome.refused(error.to_string()),
                    }
                }
            }
        }
        Ok(outcome)
    }
}
