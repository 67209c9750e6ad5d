//! etcd as a metadata store, over its JSON gateway.
//!
//! The gateway is part of every etcd server since version 3, on the same port as gRPC, and needs no more
//! than HTTP. An entry's key is the path of the store, a slash and the key. Reads are linearizable, as etcd's
//! are unless asked otherwise, and a batch is one transaction.

use crate::http::Http;
use crate::place::{Place, Service};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pluvio_coordinator::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use pluvio_env::{BoxFuture, Env};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// etcd takes 128 operations in a transaction and requests of 1.5 MiB, unless it is told otherwise.
const LIMITS: Limits = Limits {
    changes: 100,
    bytes: 512 << 10,
};
/// Entries of one page of a list. Most are below a kilobyte, the largest a few hundred.
const PAGE: usize = 64;

/// Entries below one path of an etcd cluster.
pub struct EtcdStore {
    name: String,
    prefix: String,
    http: Http,
}

/// A key or a value in base64, as the gateway has bytes.
fn text(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// What a range gives. Fields that are empty are left out by the gateway.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Range {
    kvs: Vec<Entry>,
    more: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    key: String,
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Transaction {
    succeeded: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Problem {
    error: String,
    message: String,
}

/// The smallest text beyond all that begin with `prefix`, which ends with an ASCII character.
fn beyond(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        // All keys.
        None => end.push(0),
    }
    end
}

impl EtcdStore {
    /// The store; connected to when it is used.
    #[must_use]
    pub fn new(env: Env, service: &Service) -> Self {
        Self {
            name: Place::Etcd(service.clone()).to_string(),
            prefix: format!("{}/", service.path),
            http: Http::new(env, service.servers.clone()),
        }
    }

    fn failed(&self, what: impl core::fmt::Display) -> StoreError {
        StoreError(format!("{}: {what}", self.name))
    }

    fn key(&self, key: &str) -> String {
        text(format!("{}{key}", self.prefix))
    }

    async fn ask<A: for<'a> Deserialize<'a>>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<A, StoreError> {
        let body = serde_json::to_vec(request).map_err(|error| self.failed(error))?;
        let posted = self.http.post(path, &Bytes::from(body)).await;
        let (status, body) = posted.map_err(|error| self.failed(error))?;
        if status.is_success() {
            let answer = serde_json::from_slice(&body);
            return answer.map_err(|error| self.failed(format!("cannot understand it: {error}")));
        }
        let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        let words = match (problem.message, problem.error) {
            (message, _) if !message.is_empty() => message,
            (_, error) if !error.is_empty() => error,
            (..) => format!("it answers {status}; is this an etcd server of version 3.4 or later?"),
        };
        let advice = match words.contains("space exceeded") {
            true => "; compact its history, defragment it and disarm the alarm with etcdctl",
            false => "",
        };
        Err(self.failed(format!("{words}{advice}")))
    }

    fn decoded(&self, entry: &Entry) -> Result<(String, Bytes), StoreError> {
        let decode = |text: &str| STANDARD.decode(text).map_err(|error| self.failed(error));
        let key = String::from_utf8(decode(&entry.key)?).map_err(|error| self.failed(error))?;
        let key = key.strip_prefix(&self.prefix).unwrap_or(&key).to_owned();
        Ok((key, decode(&entry.value)?.into()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError> {
        let full = format!("{}{prefix}", self.prefix);
        let end = text(beyond(&full));
        let mut from = full.into_bytes();
        let mut found = Vec::new();
        loop {
            let request =
                json!({ "key": text(&from), "range_end": end, "limit": PAGE.to_string() });
            let page: Range = self.ask("/v3/kv/range", &request).await?;
            for entry in &page.kvs {
                found.push(self.decoded(entry)?);
            }
            match found.last() {
                Some((last, _)) if page.more => {
                    // The smallest key after the last one.
                    from = format!("{}{last}\0", self.prefix).into_bytes();
                }
                Some(_) | None => return Ok(found),
            }
        }
    }

    fn operation(&self, change: &Change) -> Value {
        match change {
            Change::Put { key, value } => {
                json!({ "requestPut": { "key": self.key(key), "value": text(value) } })
            }
            Change::Delete { key } => json!({ "requestDeleteRange": { "key": self.key(key) } }),
        }
    }
}

impl MetadataStore for EtcdStore {
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let request = json!({ "key": self.key(key) });
        Box::pin(async move {
            let found: Range = self.ask("/v3/kv/range", &request).await?;
            let entry = found.kvs.first().map(|entry| self.decoded(entry));
            Ok(entry.transpose()?.map(|(_, value)| value))
        })
    }

    fn list_prefix(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<(String, Bytes)>, StoreError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.list(&prefix).await })
    }

    fn apply_if(
        &self,
        condition: Condition,
        batch: Vec<Change>,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(async move {
            let key = self.key(&condition.key);
            let compare = match &condition.value {
                Some(value) => {
                    json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": text(value) })
                }
                // A key that is not there was never created.
                None => {
                    json!({ "key": key, "target": "CREATE", "result": "EQUAL", "createRevision": "0" })
                }
            };
            // A transaction may not change a key twice.
            let batch = Change::last_of_each(batch);
            let changes: Vec<Value> = batch.iter().map(|c| self.operation(c)).collect();
            let request = json!({ "compare": [compare], "success": changes });
            let answer: Transaction = self.ask("/v3/kv/txn", &request).await?;
            Ok(match answer.succeeded {
                true => Outcome::Applied,
                false => Outcome::Refused,
            })
        })
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_exclusive(&self) -> bool {
        false
    }
}
