//! ZooKeeper as a metadata store.
//!
//! All entries are children of one node, the path of the store. A key's name is the key with `/`
//! and `%` escaped. A condition compares the node's value first; the transaction then checks the
//! node's version. A `sync` precedes reads, so that they see the writes of other servers.
//!
//! Sessions mean nothing here, because the coordinator's lease is independent of them. An expired
//! session is replaced.

use crate::login::Login;
use crate::place::{Place, Service};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_coordinator::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use pluvio_env::{BoxFuture, Env, timeout};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, MultiWriteError};

/// ZooKeeper takes messages of 1 MiB, unless it is told otherwise; the rest is for names.
const LIMITS: Limits = Limits {
    changes: 500,
    bytes: 512 << 10,
};
/// Limit for making a connection, and for one request.
const LIMIT: Duration = Duration::from_secs(3);
/// After this time without a word the server forgets the session.
const SESSION: Duration = Duration::from_secs(10);
/// Nodes that are read at a time.
const READS: usize = 64;
/// Tries of a batch while another client makes or removes nodes. Only coordinators do that.
const TRIES: usize = 10;

/// The rights of nodes that anybody may use.
const OPEN: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
/// The rights of nodes that only their maker may use.
const OWN: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::creator_all());

/// Entries below one node of a ZooKeeper ensemble.
pub struct ZooKeeperStore {
    env: Env,
    name: String,
    servers: String,
    path: String,
    login: Option<Login>,
    client: tokio::sync::Mutex<Option<Client>>,
}

fn escaped(key: &str) -> String {
    key.replace('%', "%25").replace('/', "%2F")
}

fn unescaped(name: &str) -> String {
    name.replace("%2F", "/").replace("%25", "%")
}

impl ZooKeeperStore {
    /// The store; it connects at its first use.
    #[must_use]
    pub fn new(env: Env, service: &Service, login: Option<Login>) -> Self {
        Self {
            env,
            name: Place::ZooKeeper(service.clone()).to_string(),
            servers: service.servers.join(","),
            path: service.path.clone(),
            login,
            client: tokio::sync::Mutex::new(None),
        }
    }

    fn failed(&self, what: impl core::fmt::Display) -> StoreError {
        StoreError(format!("{}: {what}", self.name))
    }

    /// The rights of new nodes.
    fn options(&self) -> &'static CreateOptions<'static> {
        match self.login {
            Some(_) => &OWN,
            None => &OPEN,
        }
    }

    fn node(&self, key: &str) -> String {
        format!("{}/{}", self.path, escaped(key))
    }

    /// Runs `work` with a client that is connected.
    async fn with<T, F>(&self, work: impl FnOnce(Client) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let client = self.connected().await?;
        let result = timeout(&*self.env.clock, LIMIT, work(client.clone())).await;
        let error = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => self.failed(match error {
                Error::NotReadOnly => {
                    "it is read-only: most servers of the ensemble are away".to_owned()
                }
                Error::NoAuth => format!(
                    "{error}: this client may not use all of {}; are --metadata-user and its password right, and may that user read, write, create and delete there?",
                    self.path
                ),
                other => other.to_string(),
            }),
            Err(_) => self.failed(format!("does not answer within {LIMIT:?}")),
        };
        if client.state().is_terminated() {
            // The next one connects anew.
            let mut place = self.client.lock().await;
            if place
                .as_ref()
                .is_some_and(|c| c.session_id() == client.session_id())
            {
                *place = None;
            }
        }
        Err(error)
    }

    async fn connected(&self) -> Result<Client, StoreError> {
        let mut place = self.client.lock().await;
        if let Some(client) = &*place {
            return Ok(client.clone());
        }
        let connecting = async {
            let mut connector = Client::connector()
                .with_session_timeout(SESSION)
                .with_connection_timeout(LIMIT)
                .with_fail_eagerly();
            if let Some(Login { user, password }) = &self.login {
                let digest = format!("{user}:{password}");
                connector = connector.with_auth("digest", digest.as_bytes());
            }
            let client = connector.connect(&self.servers).await?;
            if client.check_stat(&self.path).await?.is_none() {
                // Nodes on the way to it belong to everybody: others may have something there, too.
                let above = self.path.rsplit_once('/').map_or("", |(above, _)| above);
                if !above.is_empty() {
                    client.mkdir(above, &OPEN).await?;
                }
                client.mkdir(&self.path, self.options()).await?;
            }
            Ok::<_, Error>(client)
        };
        match timeout(&*self.env.clock, LIMIT, connecting).await {
            Ok(Ok(client)) => Ok(place.insert(client).clone()),
            Ok(Err(error)) => Err(self.failed(format!("cannot connect: {error}"))),
            Err(_) => Err(self.failed(format!("cannot connect within {LIMIT:?}"))),
        }
    }

    async fn list(&self, client: Client, prefix: String) -> Result<Vec<(String, Bytes)>, Error> {
        client.sync(&self.path).await?;
        let children = client.list_children(&self.path).await?;
        let mut keys: Vec<String> = children
            .iter()
            .map(|name| unescaped(name))
            .filter(|key| key.starts_with(&prefix))
            .collect();
        keys.sort();
        let mut found = Vec::new();
        for some in keys.chunks(READS) {
            let nodes: Vec<String> = some.iter().map(|key| self.node(key)).collect();
            let reads = nodes.iter().map(|node| client.get_data(node));
            for (key, read) in some.iter().zip(join_all(reads).await) {
                match read {
                    Ok((value, _)) => found.push((key.clone(), value.into())),
                    // Removed meanwhile.
                    Err(Error::NoNode) => {}
                    Err(other) => return Err(other),
                }
            }
        }
        Ok(found)
    }

    async fn apply(
        &self,
        client: Client,
        condition: Condition,
        batch: Vec<Change>,
    ) -> Result<Outcome, Error> {
        let batch = Change::last_of_each(batch);
        for _ in 0..TRIES {
            if let Some(outcome) = self.try_apply(&client, &condition, &batch).await? {
                return Ok(outcome);
            }
        }
        Err(Error::UnexpectedError(
            "somebody else makes and removes nodes there".into(),
        ))
    }

    /// Applies a batch; `None` when nodes came or went between the look and the transaction.
    async fn try_apply(
        &self,
        client: &Client,
        condition: &Condition,
        batch: &[Change],
    ) -> Result<Option<Outcome>, Error> {
        let guard = self.node(&condition.key);
        client.sync(&self.path).await?;
        let found = match client.get_data(&guard).await {
            Ok((value, stat)) => Some((value, stat.version)),
            Err(Error::NoNode) => None,
            Err(other) => return Err(other),
        };
        let same = found.as_ref().map(|(value, _)| value.as_slice()) == condition.value.as_deref();
        if !same {
            return Ok(Some(Outcome::Refused));
        }
        let nodes: Vec<String> = batch.iter().map(|change| self.node(change.key())).collect();
        let mut there = Vec::with_capacity(nodes.len());
        for some in nodes.chunks(READS) {
            let looks = some.iter().map(|node| client.check_stat(node));
            for look in join_all(looks).await {
                there.push(look?.is_some());
            }
        }
        let mut writer = client.new_multi_writer();
        // The first operation is the condition; the batch's change of its key comes later.
        match &found {
            Some((_, version)) => writer.add_check_version(&guard, *version)?,
            None => writer.add_create(&guard, &[], self.options())?,
        }
        let mut kept = found.is_some();
        for ((change, node), there) in batch.iter().zip(&nodes).zip(there) {
            let is_guard = *node == guard;
            match change {
                Change::Put { value, .. } if there || is_guard => {
                    kept |= is_guard;
                    writer.add_set_data(node, value, None)?;
                }
                Change::Put { value, .. } => writer.add_create(node, value, self.options())?,
                Change::Delete { .. } if there => writer.add_delete(node, None)?,
                Change::Delete { .. } => {}
            }
        }
        if !kept {
            // Made for the condition only.
            writer.add_delete(&guard, None)?;
        }
        match writer.commit().await {
            Ok(_) => Ok(Some(Outcome::Applied)),
            Err(MultiWriteError::OperationFailed { index, source }) => match source {
                Error::BadVersion | Error::NoNode | Error::NodeExists if index == 0 => {
                    Ok(Some(Outcome::Refused))
                }
                Error::NoNode | Error::NodeExists => Ok(None),
                other => Err(other),
            },
            Err(MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }
}

impl MetadataStore for ZooKeeperStore {
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let node = self.node(key);
        Box::pin(self.with(move |client| async move {
            client.sync(&self.path).await?;
            match client.get_data(&node).await {
                Ok((value, _)) => Ok(Some(value.into())),
                Err(Error::NoNode) => Ok(None),
                Err(other) => Err(other),
            }
        }))
    }

    fn list_prefix(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<(String, Bytes)>, StoreError>> {
        let prefix = prefix.to_owned();
        Box::pin(self.with(move |client| self.list(client, prefix)))
    }

    fn apply_if(
        &self,
        condition: Condition,
        batch: Vec<Change>,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(self.with(move |client| self.apply(client, condition, batch)))
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_exclusive(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_give_their_keys_back() {
        for key in ["leader", "server/0001", "a%2Fb", "%", "100%/x%25"] {
            assert_eq!(unescaped(&escaped(key)), key);
            assert!(!escaped(key).contains('/'));
        }
    }
}
