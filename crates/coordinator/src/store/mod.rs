//! Where the coordinator keeps what it must not forget.
//!
//! A [`MetadataStore`] is a small ordered map of names to bytes. It has atomic batches that are
//! applied only if one key still has a given value. The coordinator is its only user; the interface
//! asks for no more than ZooKeeper, etcd and an embedded database all have [RAMCloud §9]. `lead`
//! makes several coordinators on one store safe with it. [`conformance`] is the same test for all
//! of them.

pub mod conformance;
mod memory;
mod redb_file;

use bytes::Bytes;
use pluvio_env::BoxFuture;

pub use memory::{MemoryStore, Stop};
pub use redb_file::{FileDoor, RedbStore};

/// One change of a batch.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
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

impl Change {
    /// The key that it changes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    /// Bytes of key and value.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
        }
    }

    /// A batch in which each key is changed once, with the same effect: for stores that refuse to
    /// change a key twice in one transaction.
    #[must_use]
    pub fn last_of_each(batch: Vec<Self>) -> Vec<Self> {
        let mut seen = std::collections::BTreeSet::new();
        let mut kept: Vec<Self> = batch
            .into_iter()
            .rev()
            .filter(|change| seen.insert(change.key().to_owned()))
            .collect();
        kept.reverse();
        kept
    }
}

/// The condition for a batch to be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The key that is looked at.
    pub key: String,
    /// The value that it must have; `None`: it must not be there.
    pub value: Option<Bytes>,
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Outcome {
    /// All of it is applied, and survives the loss of power.
    Applied,
    /// The condition did not hold; nothing was changed.
    Refused,
}

/// How large a batch may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most changes.
    pub changes: usize,
    /// Most bytes of keys and values together.
    pub bytes: usize,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        changes: usize::MAX,
        bytes: usize::MAX,
    };
}

/// The store failed. Whether a batch was applied is not known. Retryable: disks are emptied,
/// daemons come back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("metadata store {0}")]
pub struct StoreError(pub String);

/// A small, durable, ordered map. Reads see everything that was applied before they began.
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

    /// Applies all changes if the condition holds, in one step.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn apply_if(
        &self,
        condition: Condition,
        batch: Vec<Change>,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>>;

    /// How large a batch may be.
    fn limits(&self) -> Limits {
        Limits::NONE
    }

    /// Whether nobody else can use the store while this process has it open. A coordinator on such
    /// a store leads at once and for ever; on others it holds a lease.
    fn is_exclusive(&self) -> bool;

    /// Looks whether what is stored would be found again. Asked now and then by a leader that has
    /// nothing to store.
    ///
    /// # Errors
    /// Why it would not.
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(core::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests;
