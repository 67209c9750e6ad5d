//! etcd as a metadata store, over its JSON gateway.
//!
//! The gateway is part of every etcd server since version 3, on the same port as gRPC, and needs
//! only HTTP. An entry's key is the path of the store, a slash and the key. Reads are linearizable,
//! as etcd's are unless asked otherwise. A batch is one transaction.

use crate::http::Http;
use crate::login::Login;
use crate::place::{Place, Service};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pluvio_coordinator::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use pluvio_env::{BoxFuture, Env};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    login: Option<Login>,
    /// The token that etcd gave for the login. It ends after five minutes without use, or when etcd
    /// starts again. A JSON web token ends at its time, and with each change of users or roles.
    token: Mutex<Option<String>>,
}

/// etcd's answer to a token that has ended, before it does anything. Either it does not know the
/// token, or the token is a JSON web token older than the last change of users or roles.
const ENDED: [&str; 2] = ["invalid auth token", "revision of auth store is old"];

/// Whether etcd's words say that a token has ended.
fn has_ended(words: &str) -> bool {
    ENDED.iter().any(|ended| words.contains(ended))
}

/// A key or a value in base64, as the gateway carries bytes.
fn text(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The answer to a range request. The gateway leaves empty fields out.
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

#[derive(Deserialize)]
struct Token {
    token: String,
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
    /// The store; it connects at its first use.
    #[must_use]
    pub fn new(env: Env, service: &Service, login: Option<Login>) -> Self {
        Self {
            name: Place::Etcd(service.clone()).to_string(),
            prefix: format!("{}/", service.path),
            http: Http::new(env, service.servers.clone()),
            login,
            token: Mutex::default(),
        }
    }

    fn kept_token(&self) -> MutexGuard<'_, Option<String>> {
        // Held for single steps.
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
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
        let body = Bytes::from(body);
        let first = match self.post(path, &body).await {
            // Not executed; the next one logs in anew. Another request may have done so meanwhile,
            // and a second login does no harm.
            Err(words) if self.login.is_some() && has_ended(&words) => {
                *self.kept_token() = None;
                self.post(path, &body).await
            }
            other => other,
        };
        let answer = first.map_err(|words| {
            let advice = self.advice(&words);
            self.failed(format!("{words}{advice}"))
        })?;
        serde_json::from_slice(&answer)
            .map_err(|error| self.failed(format!("cannot understand it: {error}")))
    }

    /// The remedy for this answer of etcd.
    fn advice(&self, words: &str) -> String {
        if words.contains("space exceeded") {
            return "; compact its history, defragment it and disarm the alarm with etcdctl".into();
        }
        if words.contains("user name is empty") {
            return "; it wants to know who asks: give --metadata-user and its password".into();
        }
        if words.contains("permission denied") {
            let prefix = &self.prefix;
            return format!("; let its user read and write all keys that begin with {prefix}");
        }
        String::new()
    }

    /// Asks as the user of the login, which is logged in if need be.
    ///
    /// # Errors
    /// etcd's words, or the reason why it did not answer.
    async fn post(&self, path: &str, body: &Bytes) -> Result<Bytes, String> {
        let kept = self.kept_token().clone();
        let token = match (&self.login, kept) {
            (None, _) => None,
            (Some(_), Some(token)) => Some(token),
            (Some(login), None) => {
                let token = self.log_in(login).await?;
                *self.kept_token() = Some(token.clone());
                Some(token)
            }
        };
        self.post_as(token.as_deref(), path, body).await
    }

    async fn log_in(&self, login: &Login) -> Result<String, String> {
        let request = json!({ "name": login.user, "password": login.password });
        let body = Bytes::from(request.to_string());
        let answer = self.post_as(None, "/v3/auth/authenticate", &body).await;
        let answer = answer.map_err(|words| format!("user {:?}: {words}", login.user))?;
        let token: Token = serde_json::from_slice(&answer)
            .map_err(|error| format!("cannot understand it: {error}"))?;
        Ok(token.token)
    }

    async fn post_as(
        &self,
        token: Option<&str>,
        path: &str,
        body: &Bytes,
    ) -> Result<Bytes, String> {
        let (status, body) = self.http.post(path, token, body).await?;
        if status.is_success() {
            return Ok(body);
        }
        let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        Err(match (problem.message, problem.error) {
            (message, _) if !message.is_empty() => message,
            (_, error) if !error.is_empty() => error,
            (..) => format!("it answers {status}; is this an etcd server of version 3.4 or later?"),
        })
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
                // A missing key was never created.
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
