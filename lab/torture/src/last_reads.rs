//! The last reads of a torture: everything is read when faults have ended, and again after a cold
//! start.

use super::bank;
use super::draw::Draw;
use super::journal::{self, Journal, Subject};
use super::native::Native;
use super::report::Report;
use super::several;
use super::tables;
use pluvio_client::{Client, ClientError, Table};
use pluvio_console::failure::Failure;
use pluvio_env::Env;
use pluvio_sim::check::{Check, Violation};
use pluvio_units::CoreId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long one of the last reads may take.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Readers of keys.
const READERS: u16 = 16;

/// The means to read everything at the end.
pub struct LastReads<'a> {
    /// The reads run here.
    pub env: &'a Env,
    /// The journal of the run.
    pub journal: &'a Journal,
    /// A client that waits for [`PATIENCE`].
    pub client: &'a Client,
    /// All tables, in the order of `tables`.
    pub tables: &'a [Table],
    /// The seed of the run.
    pub seed: u64,
}

impl LastReads<'_> {
    /// Reads every key, account and group once, for this round of last reads.
    ///
    /// # Errors
    /// A reader was stopped.
    pub async fn read_everything(&self, report: &mut Report, round: u16) -> Result<(), Failure> {
        let number = u16::MAX - round * 100;
        report.violations.extend(self.read_keys(number).await?);
        let begun = self.journal.begin_deed(number, None);
        match bank::by_library(self.client, &self.tables[0], None).await {
            Ok(did) => self.journal.end_deed("last transaction", begun, did),
            Err(error) => {
                let unread = unreadable("the accounts", &error);
                report.violations.push(unread);
            }
        }
        report.violations.extend(self.read_groups(number).await);
        Ok(())
    }

    /// Reads every key, by several readers. The first one has this number, each of the others one
    /// less.
    async fn read_keys(&self, number: u16) -> Result<Vec<Violation>, Failure> {
        let keys: Arc<[Subject]> = {
            let pages = self.journal.pages();
            let keys = pages.material.history.keys();
            keys.map(|(id, key)| Subject {
                id,
                kind: key.kind,
                is_length: key.name.starts_with(journal::LENGTH),
                key: key.name.clone().into_bytes(),
                table: tables::of_key(&key.name),
            })
            .collect()
        };
        let next = Arc::new(AtomicUsize::new(0));
        let mut ends = Vec::new();
        for reader in 0..READERS {
            let number = number - reader;
            let mut native = Native {
                journal: self.journal.clone(),
                client: self.client.clone(),
                tables: self.tables.to_vec(),
                number,
                draw: Draw::new(self.seed, "last", u64::from(number)),
                versions: BTreeMap::new(),
            };
            let (keys, next) = (Arc::clone(&keys), Arc::clone(&next));
            let (done, end) = oneshot::channel();
            self.env.tasks.spawn(CoreId(0), "last reads", async move {
                let mut failed = Vec::new();
                // Relaxed: a ticket counter.
                while let Some(subject) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = native.read(subject).await {
                        let key = String::from_utf8_lossy(&subject.key);
                        failed.push(unreadable(&format!("key {key}"), &error));
                        break;
                    }
                }
                let _unheard = done.send(failed);
            });
            ends.push(end);
        }
        let mut violations = Vec::new();
        for end in ends {
            let stopped = |_| Failure::new("a reader was stopped");
            violations.extend(end.await.map_err(stopped)?);
        }
        Ok(violations)
    }

    /// Reads all keys of transactions, a group at one moment.
    async fn read_groups(&self, number: u16) -> Option<Violation> {
        let groups = self.journal.pages().groups.clone();
        for keys in groups {
            let names = keys.iter().map(|key| String::from_utf8_lossy(&key.key));
            let names = names.collect::<Vec<_>>().join(", ");
            let place = (self.client, self.tables);
            let read = several::read_all(self.journal, place, number, keys);
            if let Err(error) = read.await {
                return Some(unreadable(&names, &error));
            }
        }
        None
    }
}

/// The cluster said that it is healthy, so everything can be read.
fn unreadable(what: &str, error: &ClientError) -> Violation {
    Violation {
        check: Check::Progress,
        message: format!("{what} cannot be read from a healthy cluster: {error}"),
        evidence: Vec::new(),
    }
}
