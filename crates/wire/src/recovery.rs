//! Crash recovery of a master [RAMCloud §7].

use crate::codec::{Fields, Request};
use crate::control::TabletSpec;
use crate::data::{payload_is, request};
use crate::opcode::Opcode;
use bytes::Bytes;
use pluvio_units::{ClusterId, LogId, RecoveryId, ReplicationEpoch, SegmentId, ServerId, TableId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Asks a backup which replicas of a crashed master it has. From then on the backup refuses
/// writes of that master, whatever the server list says [RAMCloud §7.11].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StartRecovery {
    /// The crashed master.
    pub crashed: ServerId,
    /// Segments before this one are left out: an earlier answer had them.
    #[serde(default)]
    pub from: SegmentId,
}
impl StartRecovery {
    /// Asks for all replicas, or the first page of them.
    #[must_use]
    pub fn of(crashed: ServerId) -> Self {
        Self {
            crashed,
            from: SegmentId(0),
        }
    }
}

impl Fields for StartRecovery {}
request!(StartRecovery => StartRecoveryReply);

/// The replicas a backup has of a crashed master, or as many as fit into a message.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StartRecoveryReply {
    /// Complete replicas.
    pub replicas: Vec<ReplicaInfo>,
    /// Replicas that cannot be used, and why. For people.
    pub damaged: Vec<(SegmentId, String)>,
    /// How much the master beside this backup may take. `None` when it does not say.
    #[serde(default)]
    pub room: Option<MasterRoom>,
    /// There is more from this segment on: to be asked for. `None`: these were the last.
    #[serde(default)]
    pub next: Option<SegmentId>,
}
impl Fields for StartRecoveryReply {}

/// How full a master is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MasterRoom {
    /// Bytes of objects that it has, headers included.
    pub live_bytes: u64,
    /// Its limit for these.
    pub live_bytes_max: u64,
}

impl MasterRoom {
    /// Bytes of objects that it may take yet.
    #[must_use]
    pub fn free_bytes(self) -> u64 {
        self.live_bytes_max.saturating_sub(self.live_bytes)
    }
}

/// One replica on one backup.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// The segment.
    pub segment: SegmentId,
    /// The log it belongs to.
    pub log: LogId,
    /// Whether it is a side segment.
    pub side: bool,
    /// Its replication epoch; means nothing once closed.
    pub epoch: ReplicationEpoch,
    /// Whether it was closed, that is, is complete for ever.
    pub closed: bool,
    /// Whether it should be read first.
    pub primary: bool,
    /// Certified bytes.
    pub length: u32,
    /// The content of the head's first entries; only for heads that are open.
    pub head: Option<HeadInfo>,
}

/// The first entries of a head: what the log consisted of when it was opened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HeadInfo {
    /// How many logs the master has.
    pub logs: u16,
    /// Every segment of this log, this one included.
    pub digest: Vec<SegmentId>,
    /// Live bytes and entries of the biggest tables.
    pub tables: Vec<TableLoad>,
    /// Live bytes of all other tables together.
    pub other_bytes: u64,
    /// Live entries of all other tables together.
    pub other_entries: u64,
    /// Whether anything follows these first entries: then all heads before it were closed.
    pub has_data: bool,
    /// How many open replicas of this segment must be found before this one may end the log. It is
    /// 1, unless the newest writes may be missing. Then it is the number that an acknowledgement
    /// needed, which may be 1, too.
    pub copies: u8,
    /// Whether the newest writes may be missing: the backup's machine was started anew since, and
    /// they were buffered.
    #[serde(default)]
    pub may_lack: bool,
    /// The number of replicas that an acknowledgement needed; 0 is unknown.
    #[serde(default)]
    pub needed: u8,
}

/// How much of one table a master holds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TableLoad {
    /// The table.
    pub table: TableId,
    /// Live bytes in the log.
    pub bytes: u64,
    /// Live entries.
    pub entries: u64,
}

/// Asks a backup to keep a replica of a crashed master's segment, as another backup has it. It is
/// the end of a log that too few have (COORD-13). Answered when it is on the device. Idempotent: a
/// backup that has as much of the segment changes nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CopyReplica {
    /// The crashed master.
    pub crashed: ServerId,
    /// The segment: a head of the master.
    pub segment: SegmentId,
    /// The log it belongs to.
    pub log: LogId,
    /// The replication epoch of the replica.
    pub epoch: ReplicationEpoch,
    /// How many bytes of the segment to copy. They end with a whole group of entries.
    pub length: u32,
    /// Whether the replica is closed.
    pub closed: bool,
    /// Replicas that the master needed for an acknowledgement.
    pub needed: u8,
    /// The backup that has it.
    pub from: ServerId,
}
impl Fields for CopyReplica {}
request!(CopyReplica => ());

/// Asks a backup for the bytes of a replica of a crashed master, for another one that is to keep
/// them, too ([`CopyReplica`]).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReadReplica {
    /// The crashed master.
    pub crashed: ServerId,
    /// The segment.
    pub segment: SegmentId,
    /// How many bytes of it.
    pub length: u32,
}
impl Fields for ReadReplica {}
request!(ReadReplica => ReadReplicaReply);

/// The first bytes of a segment, all of them certified, checked by their checksums.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReadReplicaReply {
    /// As many as were asked for (the payload).
    #[serde(skip)]
    pub data: Bytes,
}
payload_is!(ReadReplicaReply.data);

/// Tells a backup how the tablets of a crashed master are partitioned, so that it can sort the
/// entries of each replica in one pass.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SetPartitions {
    /// The attempt; data of earlier attempts is dropped.
    pub recovery: RecoveryId,
    /// The crashed master.
    pub crashed: ServerId,
    /// The tablets of each partition.
    pub partitions: Vec<Vec<TabletSpec>>,
    /// Where the logs end, if that is settled: of these segments only so much is given out.
    #[serde(default)]
    pub ends: Vec<LogEnd>,
}
impl Fields for SetPartitions {}
request!(SetPartitions => ());

/// Where one log of a crashed master ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogEnd {
    /// The log.
    pub log: LogId,
    /// Its last segment, which is an open head.
    pub segment: SegmentId,
    /// How many bytes of it belong to the log.
    pub length: u32,
}

/// Fetches the entries of one segment that belong to one partition.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetRecoveryData {
    /// The attempt.
    pub recovery: RecoveryId,
    /// The crashed master.
    pub crashed: ServerId,
    /// The segment.
    pub segment: SegmentId,
    /// The index of the partition in [`SetPartitions`].
    pub partition: u32,
}
impl Fields for GetRecoveryData {}
request!(GetRecoveryData => GetRecoveryDataReply);

/// Entries of one segment: whole groups, checked by their checksums, each entry as it stands in
/// the log.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GetRecoveryDataReply {
    /// Number of entries.
    pub entries: u32,
    /// The entries, one after the other without padding (the payload).
    #[serde(skip)]
    pub data: Bytes,
}
payload_is!(GetRecoveryDataReply.data);

/// Asks a master to recover one partition. Answered at once; the end is reported with
/// [`RecoveryMasterFinished`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recover {
    /// The attempt.
    pub recovery: RecoveryId,
    /// The crashed master.
    pub crashed: ServerId,
    /// The index of the partition.
    pub partition: u32,
    /// Its tablets.
    pub tablets: Vec<TabletSpec>,
    /// Every segment of the log and the backups to read it from, best first. All masters of an
    /// attempt are sent the same.
    pub segments: Arc<[RecoverySegment]>,
    /// It is settled where the logs end: the master may ask for reads once it has replayed
    /// ([`PartitionReplayed`]).
    #[serde(default)]
    pub early: bool,
}
impl Fields for Recover {}
request!(Recover => ());

/// A segment to read.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoverySegment {
    /// The segment.
    pub segment: SegmentId,
    /// The backups that have it, best first.
    pub backups: Vec<ServerId>,
}

/// Reports that a partition is replayed, but not yet durable here. Answered once the crashed
/// server's read leases have ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartitionReplayed {
    /// The cluster.
    pub cluster: ClusterId,
    /// The attempt.
    pub recovery: RecoveryId,
    /// The recovery master.
    pub server: ServerId,
    /// The index of the partition.
    pub partition: u32,
}
impl Fields for PartitionReplayed {}
request!(PartitionReplayed => PartitionReplayedReply);

/// The coordinator's word on a replayed partition.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartitionReplayedReply {
    /// The recovery master owns the tablets, and may answer reads of them. It takes no writes
    /// before [`RecoveryMasterFinished`] is accepted. Otherwise it goes on as if it had not asked.
    pub may_read: bool,
}
impl Fields for PartitionReplayedReply {}

/// Reports the end of one partition's recovery.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryMasterFinished {
    /// The cluster; 0 from servers that do not name it yet.
    #[serde(default)]
    pub cluster: ClusterId,
    /// The attempt.
    pub recovery: RecoveryId,
    /// The recovery master.
    pub server: ServerId,
    /// The index of the partition.
    pub partition: u32,
    /// Where the master's log of these tablets begins; see [`TabletSpec::since`].
    #[serde(default)]
    pub since: SegmentId,
    /// What was done, or why it failed.
    pub result: Result<ReplayStats, String>,
}
impl Fields for RecoveryMasterFinished {}
request!(RecoveryMasterFinished => RecoveryMasterFinishedReply);

/// What a replay did.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReplayStats {
    /// Bytes fetched from backups.
    pub bytes: u64,
    /// Entries replayed.
    pub entries: u64,
    /// Objects alive afterwards.
    pub objects: u64,
    /// Microseconds from the start to the last segment replayed.
    pub replay_us: u64,
    /// Microseconds of these in which there was nothing to replay: backups were reading and
    /// sorting.
    #[serde(default)]
    pub waiting_us: u64,
    /// Microseconds from the start until everything was durable again.
    pub total_us: u64,
}

/// The coordinator's word on a finished partition.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryMasterFinishedReply {
    /// The recovery master owns the tablets now. Otherwise it must forget what it replayed.
    pub accepted: bool,
}
impl Fields for RecoveryMasterFinishedReply {}
