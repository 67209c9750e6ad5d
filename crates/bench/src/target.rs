//! Whom to measure, and one caller of it.

use crate::error::BenchError;
use crate::plan::key;
use crate::resp::{Connection, Reply};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_client::{Client, Table};
use pluvio_env::Clock;
use std::sync::Arc;

/// Whom to measure.
#[derive(Clone)]
pub enum Target {
    /// Servers that speak the Redis protocol; connections are spread over them.
    Redis(Vec<String>),
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
            Self::Redis(addresses) => {
                let first = addresses.first().ok_or_else(no_address)?;
                let about = Connection::open(first).await?.describe().await?;
                Ok(format!("Redis protocol, {} ({about})", addresses.join(" ")))
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
            Self::Redis(addresses) => {
                let address = addresses.get(number % addresses.len().max(1));
                Caller::Redis(Box::new(
                    Connection::open(address.ok_or_else(no_address)?).await?,
                ))
            }
            Self::Native { client, table } => Caller::Native {
                client: client.clone(),
                table: table.clone(),
            },
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
    fn refused(&mut self, text: String) {
        self.errors += 1;
        self.error.get_or_insert(text);
    }
}

/// One connection, or one caller of the native client.
pub(crate) enum Caller {
    Redis(Box<Connection>),
    Native { client: Client, table: Table },
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
            Self::Redis(connection) => {
                for operation in operations {
                    match *operation {
                        Operation::Get(number) => connection.get(number),
                        Operation::Set(number) => connection.set(number, value),
                    }
                }
                let start = clock.now();
                connection.flush().await?;
                for _ in operations {
                    match connection.reply().await? {
                        Reply::Good => {}
                        Reply::Nil => outcome.misses += 1,
                        Reply::Error(text) => {
                            outcome.refused(text);
                            continue;
                        }
                    }
                    outcome.done.push(clock.now().since(start));
                }
            }
            Self::Native { client, table } => {
                let one = |operation: &Operation| {
                    let (client, table, operation) = (&*client, &*table, *operation);
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
