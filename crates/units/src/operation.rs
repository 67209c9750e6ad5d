//! The name of an operation.

use crate::{ClientId, KeyHash, SequenceNumber, TableId};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Names one operation of one client for ever. A server tells a retry from a new operation by it
/// [RAMCloud §10.3].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OperationId {
    /// The client; 0 for operations that need no identity.
    pub client: ClientId,
    /// The operation. Operations count from 1; 0 means that there is none.
    pub sequence: SequenceNumber,
    /// The client has the results of all its operations below this number, or has given them up.
    /// They may be forgotten.
    pub acknowledged_below: SequenceNumber,
    /// The client repeats this operation for at most this many milliseconds after it sent this
    /// attempt. Records for a retry may be dropped after that time.
    pub retry_ms: u32,
}

/// The operations that a client has acknowledged, as one server tells another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The client.
    pub client: ClientId,
    /// See [`OperationId::acknowledged_below`].
    pub below: SequenceNumber,
    /// For this many seconds an operation of the client may still arrive that it sent before this
    /// acknowledgement.
    pub known_s: u32,
}

/// Where a key is: its table and its hash there.
pub type KeyPlace = (TableId, KeyHash);

/// The keys of a transaction of several owners that one of them was asked for, with one identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The number of the operation that prepares them. Its outcome is kept with the first key.
    pub sequence: SequenceNumber,
    /// The keys; there is one at least.
    pub keys: Vec<KeyPlace>,
}

/// For how long servers keep the votes and the decision of a transaction of several owners after
/// they were asked for. No client tries longer to prepare one.
pub const VOTES_KEPT: Duration = Duration::from_secs(60);

/// Keys that a transaction of several owners has locked for so long are looked after by their
/// servers. It needs some round trips, so its client has most likely gone.
pub const LOCKED_LONG: Duration = Duration::from_secs(1);

/// The number of the operation that decides about a transaction of several owners. Its client has
/// no other operations than those of the transaction.
pub const DECISION: SequenceNumber = SequenceNumber(1);

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
