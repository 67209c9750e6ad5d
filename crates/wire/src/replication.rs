//! Replicas: what masters ask of backups [RAMCloud §7.1, §7.4, §8].

use crate::codec::{Fields, Request, is_default};
use crate::data::{payload_is, request};
use crate::opcode::Opcode;
use bytes::Bytes;
use pluvio_units::{ClusterId, LogId, ReplicationEpoch, SegmentId, ServerId};
use serde::{Deserialize, Serialize};

/// Opens, appends to, or closes the replica of one segment. All three are one message, so that a
/// small segment costs one. Idempotent: bytes the replica has already are compared by position
/// only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WriteReplica {
    /// The cluster.
    pub cluster: ClusterId,
    /// The master whose segment it is.
    pub master: ServerId,
    /// The segment.
    pub segment: SegmentId,
    /// The log it belongs to.
    pub log: LogId,
    /// Whether it is a side segment (survivors, recovered data) instead of a head.
    #[serde(default, skip_serializing_if = "is_default")]
    pub side: bool,
    /// Replicas with a smaller epoch are stale.
    pub epoch: ReplicationEpoch,
    /// Create the replica if it is not there. Without it, a missing replica is refused as
    /// `NotFound`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub open: bool,
    /// A replacement for a lost replica: starts from nothing, counts only when `atomic` writes are
    /// over, that is after the first write without this flag. Until then it is invisible to
    /// recovery.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rewriting: bool,
    /// This replica is the one that recovery should read first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub primary: bool,
    /// Where `data` goes.
    pub offset: u32,
    /// Bytes of the segment that are valid after this write: whole groups of entries only.
    pub certified: u32,
    /// No more appends will follow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub close: bool,
    /// Reply only when the data is on the device (fdatasync).
    #[serde(default, skip_serializing_if = "is_default")]
    pub synced: bool,
    /// Replicas that the master needs for an acknowledgement.
    pub needed: u8,
    /// Bytes of the segment (the payload).
    #[serde(skip)]
    pub data: Bytes,
}
payload_is!(WriteReplica.data);
request!(WriteReplica => ());

/// Frees the replica of one segment. A replica that is not there is no error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FreeReplica {
    /// The cluster of the master. Without it, as programs that do not name it send it, nothing is
    /// freed.
    #[serde(default)]
    pub cluster: ClusterId,
    /// The master whose segment it is.
    pub master: ServerId,
    /// The segment.
    pub segment: SegmentId,
}
impl Fields for FreeReplica {}
request!(FreeReplica => ());

/// Asks a master whether replicas that a restarted backup found on its disk are still needed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IsReplicaNeeded {
    /// The cluster of the backup. Without it, as programs that do not name it send it, the answer
    /// is a refusal.
    #[serde(default)]
    pub cluster: ClusterId,
    /// The backup that asks. A master whose server list does not show it yet may still count on the
    /// former life of that server. It needs these replicas, which that life wrote.
    #[serde(default)]
    pub backup: ServerId,
    /// The segments, at most 1024.
    pub segments: Vec<SegmentId>,
}
impl Fields for IsReplicaNeeded {}
request!(IsReplicaNeeded => IsReplicaNeededReply);

/// Which replicas are needed, in the order of the request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct IsReplicaNeededReply {
    /// Whether the replica must be kept.
    pub needed: Vec<bool>,
}
impl Fields for IsReplicaNeededReply {}
