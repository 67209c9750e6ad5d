//! Where the coordinator keeps what it must not forget.
//!
//! A [`MetadataStore`] is a small ordered map of names to bytes with atomic batches. The
//! coordinator is its only user; the interface asks for no more than ZooKeeper, etcd and an
//! embedded database all have (003 §9).

mod memory;
mod redb_file;

use bytes::Bytes;
use pluvio_env::BoxFuture;

pub use memory::{MemoryStore, Stop};
pub use redb_file::RedbStore;

/// One change of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Sets a key.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: Bytes,
    },
    /// Removes a key; one that is not there is no error.
    Delete {
        /// The key.
        key: String,
    },
}

/// The store failed. Whether a batch was applied is not known; applying it again is always
/// allowed, and needed to find out. Retryable: disks are emptied, daemons come back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("metadata store: {0}")]
pub struct StoreError(pub String);

/// A small, durable, ordered map.
pub trait MetadataStore: Send + Sync {
    /// The value of a key.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>>;

    /// All keys with this prefix and their values, by ascending key.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn list_prefix(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<(String, Bytes)>, StoreError>>;

    /// Applies all changes or none. When it returns, they survive the loss of power.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn apply(&self, batch: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Sets one key.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn put(&self, key: &str, value: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        let key = key.to_owned();
        self.apply(vec![Change::Put { key, value }])
    }

    /// Removes one key.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn delete(&self, key: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        self.apply(vec![Change::Delete {
            key: key.to_owned(),
        }])
    }
}

#[cfg(test)]
mod tests;
