//! The name of an operation.

use crate::{ClientId, SequenceNumber};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Names one operation of one client for ever, so that a server can tell a retry from a new
/// operation (003 §10.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OperationId {
    /// The client; 0 for operations that need no identity.
    pub client: ClientId,
    /// The operation. Operations count from 1; 0 stands where there is none.
    pub sequence: SequenceNumber,
    /// The client has the results of all its operations below this number, or does not want them
    /// any more: they may be forgotten.
    pub acknowledged_below: SequenceNumber,
    /// The client repeats this operation for at most so many milliseconds after it sent this
    /// attempt. What has to be kept for a retry need not be kept longer.
    pub retry_ms: u32,
}

/// What a client has acknowledged, as one server tells another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The client.
    pub client: ClientId,
    /// See [`OperationId::acknowledged_below`].
    pub below: SequenceNumber,
    /// For so many seconds an operation of the client may still come that was sent before it
    /// acknowledged this.
    pub known_s: u32,
}

impl OperationId {
    /// Whether retries can be told from new operations.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.client != ClientId(0) && self.sequence != SequenceNumber(0)
    }

    /// How long the client may repeat this operation.
    #[must_use]
    pub fn retry(&self) -> Duration {
        Duration::from_millis(u64::from(self.retry_ms))
    }
}
