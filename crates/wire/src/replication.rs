//! Replicas: what masters ask of backups [RAMCloud §7.1, §7.4, §8].

use crate::codec::{Body, Fields, Request};
use crate::data::request;
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use bytes::Bytes;
use pluvio_units::{ClusterId, LogId, ReplicationEpoch, SegmentId, ServerId};
use serde::{Deserialize, Serialize};

/// Opens, appends to, or closes the replica of one segment. All three are one message, so that a
/// small segment costs one. Idempotent: bytes the replica has already are compared by position
/// only.
///
/// Its fields have fixed places:
///
/// ```text
///  0 cluster u64   8 master u64   16 segment u64   24 epoch u32   28 offset u32   32 certified u32
/// 36 log u16   38 needed u8   39 flags u8: 1 side, 2 open, 4 rewriting, 8 primary, 16 close, 32 synced
/// ```
#[derive(Clone, PartialEq, Debug)]
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
    pub side: bool,
    /// Replicas with a smaller epoch are stale.
    pub epoch: ReplicationEpoch,
    /// Create the replica if it is not there. Without it, a missing replica is refused as
    /// `NotFound`.
    pub open: bool,
    /// A replacement for a lost replica: starts from nothing, counts only when such writes are
    /// over, that is after the first write without this flag. Until then it is invisible to
    /// recovery.
    pub rewriting: bool,
    /// This replica is the one that recovery should read first.
    pub primary: bool,
    /// Where `data` goes.
    pub offset: u32,
    /// Bytes of the segment that are valid after this write: whole groups of entries only.
    pub certified: u32,
    /// No more appends will follow.
    pub close: bool,
    /// Reply only when the data is on the device (fdatasync).
    pub synced: bool,
    /// Replicas that the master needs for an acknowledgement.
    pub needed: u8,
    /// Bytes of the segment (the payload).
    pub data: Bytes,
}
request!(WriteReplica => ());

const SIDE: u8 = 1;
const OPEN: u8 = 2;
const REWRITING: u8 = 4;
const PRIMARY: u8 = 8;
const CLOSE: u8 = 16;
const SYNCED: u8 = 32;
/// Bytes of the fields.
const WRITE_BYTES: usize = 40;

impl Body for WriteReplica {
    fn encode(&self, meta: &mut Vec<u8>) -> Bytes {
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let flags = flag(self.side, SIDE)
            | flag(self.open, OPEN)
            | flag(self.rewriting, REWRITING)
            | flag(self.primary, PRIMARY)
            | flag(self.close, CLOSE)
            | flag(self.synced, SYNCED);
        for long in [self.cluster.0, self.master.0, self.segment.0] {
            meta.extend_from_slice(&long.to_le_bytes());
        }
        for number in [self.epoch.0, self.offset, self.certified] {
            meta.extend_from_slice(&number.to_le_bytes());
        }
        meta.extend_from_slice(&self.log.0.to_le_bytes());
        meta.extend_from_slice(&[self.needed, flags]);
        self.data.clone()
    }

    fn decode(fields: &[u8], data: Bytes) -> Result<Self, Refusal> {
        let Ok(fields) = <&[u8; WRITE_BYTES]>::try_from(fields) else {
            let length = fields.len();
            return Err(Refusal::malformed(format!(
                "a write to a replica has {WRITE_BYTES} bytes of fields, here are {length}"
            )));
        };
        let (longs, rest) = fields.as_chunks::<8>();
        let [cluster, master, segment, first, second] =
            [0, 1, 2, 3, 4].map(|i| u64::from_le_bytes(longs[i]));
        assert!(rest.is_empty(), "five times eight bytes");
        let flags = (second >> 56) as u8;
        if flags & !(SIDE | OPEN | REWRITING | PRIMARY | CLOSE | SYNCED) != 0 {
            return Err(Refusal::malformed(format!(
                "a write with unknown flags: {flags}"
            )));
        }
        Ok(Self {
            cluster: ClusterId(cluster),
            master: ServerId(master),
            segment: SegmentId(segment),
            log: LogId((second >> 32) as u16),
            side: flags & SIDE != 0,
            epoch: ReplicationEpoch(first as u32),
            open: flags & OPEN != 0,
            rewriting: flags & REWRITING != 0,
            primary: flags & PRIMARY != 0,
            offset: (first >> 32) as u32,
            certified: second as u32,
            close: flags & CLOSE != 0,
            synced: flags & SYNCED != 0,
            needed: (second >> 48) as u8,
            data,
        })
    }
}

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

/// Tells a master that a backup has lost replicas of its segments, though it goes on. It has them
/// in this life no more.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplicasLost {
    /// The cluster of the backup.
    pub cluster: ClusterId,
    /// The backup.
    pub backup: ServerId,
    /// The segments, at most 1024.
    pub segments: Vec<SegmentId>,
}
impl Fields for ReplicasLost {}
request!(ReplicasLost => ());
