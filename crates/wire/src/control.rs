//! Membership, tables, status.

use crate::balance::BalanceStatus;
use crate::classes::{DurabilityWish, TableClass};
use crate::codec::{Fields, Request, is_default};
use crate::data::request;
use crate::drain::DrainStatus;
use crate::give_up::Loss;
use crate::migration::MigrationStatus;
use crate::opcode::Opcode;
use crate::quota::{QuotaState, QuotaWish, TableQuota};
use crate::recovery::ReplayStats;
use crate::recovery_stage::RecoveryStage;
use crate::settings::{ClusterSettings, SettingsWish, Versions};
use pluvio_env::Address;
use pluvio_units::{
    ClusterId, HashKind, HashRange, KeyHash, LogId, MetadataVersion, ObjectVersion, RecoveryId,
    ReplicationEpoch, SegmentId, ServerId, ServerListVersion, TableHash, TableId, TimeSpread,
};
use serde::{Deserialize, Serialize};

/// The state of a server as the cluster sees it [RAMCloud §7.3]. A server that is gone for good is
/// not listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// A member.
    Up,
    /// Declared dead, not recovered yet. Never comes back with this id.
    Crashed,
}

/// One server in the list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Its id.
    pub id: ServerId,
    /// Where it answers requests.
    pub address: String,
    /// Where it speaks the Redis protocol, if it does.
    pub redis: Option<String>,
    /// Where it speaks the Redis protocol to cluster clients, if it does.
    #[serde(default)]
    pub redis_cluster: Option<String>,
    /// Where it answers HTTP for metrics and health, if it does.
    pub admin: Option<String>,
    /// The rack or power domain it stands in, if known.
    pub rack: Option<String>,
    /// Its process id, for people and for tests.
    pub pid: u32,
    /// Event loops, and so logs.
    pub cores: u16,
    /// Whether its objects have no replicas (`--replicas 0`): a crash loses them.
    #[serde(default)]
    pub volatile: bool,
    /// Whether its tablets move away, so that it can be stopped.
    #[serde(default)]
    pub draining: bool,
    /// How fast its disk reads frames, in MB/s; 0 if not measured.
    pub disk_mb_per_s: u32,
    /// The versions that it speaks.
    #[serde(default = "Versions::unsaid")]
    pub versions: Versions,
    /// The state.
    pub state: ServerState,
}

impl ServerInfo {
    /// A server that is up, has one event loop and a disk, and says nothing more of itself. Tests
    /// begin with it. A server that enlists says every field.
    #[must_use]
    pub fn plain(id: ServerId, address: impl Into<String>) -> Self {
        Self {
            id,
            address: address.into(),
            redis: None,
            redis_cluster: None,
            admin: None,
            rack: None,
            pid: 0,
            cores: 1,
            volatile: false,
            draining: false,
            disk_mb_per_s: 0,
            versions: Versions::OWN,
            state: ServerState::Up,
        }
    }

    /// Whether this server has the same address as a process at `address`. Both may have further
    /// endpoints.
    #[must_use]
    pub fn is_at(&self, address: &str) -> bool {
        Address::from(&*self.address).is_same_place(&Address::from(address))
    }
}

/// The server list. A receiver ignores versions that it has passed already. A long one is sent as
/// its differences from the one before ([`ChangeServerList`](crate::ChangeServerList)).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ServerList {
    /// Every change adds one.
    pub version: ServerListVersion,
    /// Members and crashed members, by ascending id.
    pub servers: Vec<ServerInfo>,
    /// Whether the cluster has ever had more than one server. Until then, its only server may keep
    /// its replicas on its own disk.
    pub grown: bool,
    /// How objects are kept; `None` before anybody has said so.
    #[serde(default)]
    pub settings: Option<ClusterSettings>,
    /// The version that the cluster speaks.
    #[serde(default = "Versions::active_unsaid")]
    pub active: u16,
    /// The durability classes of tables, by ascending number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<TableClass>,
}

impl ServerList {
    /// The entry of a server.
    #[must_use]
    pub fn get(&self, id: ServerId) -> Option<&ServerInfo> {
        let found = self.servers.binary_search_by_key(&id, |s| s.id).ok()?;
        self.servers.get(found)
    }

    /// Members that are up.
    pub fn up(&self) -> impl Iterator<Item = &ServerInfo> {
        self.servers.iter().filter(|s| s.state == ServerState::Up)
    }

    /// Whether a server is a member that is up.
    #[must_use]
    pub fn is_up(&self, id: ServerId) -> bool {
        self.get(id).is_some_and(|s| s.state == ServerState::Up)
    }
}

/// A tablet: one range of key hashes of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TabletSpec {
    /// The table.
    pub table: TableId,
    /// The seed of the table's key hash.
    pub seed: u64,
    /// How the table hashes keys.
    #[serde(default)]
    pub hash: HashKind,
    /// The range of hashes; in a slot table whole slots.
    pub range: HashRange,
    /// Where its owner's log of it begins: entries in earlier segments are of an earlier ownership,
    /// and do not count (`docs/migration.md`).
    #[serde(default)]
    pub since: SegmentId,
    /// The quota of the table. A new owner lets nothing grow until it has a share of it.
    #[serde(default, skip_serializing_if = "TableQuota::is_none")]
    pub quota: TableQuota,
    /// The durability class of the table, if it has one of its own. Its owner takes no tablet
    /// before it has logs of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<TableClass>,
}

impl TabletSpec {
    /// What decides the hash of a key.
    #[must_use]
    pub fn table_hash(&self) -> TableHash {
        let (kind, seed) = (self.hash, self.seed);
        TableHash { kind, seed }
    }
}

/// Are you alive? Sent by servers to a random other one, and by the coordinator [RAMCloud §7.2].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ping {
    /// Who asks; 0 for clients.
    pub from: ServerId,
}
impl Fields for Ping {}
request!(Ping => PingReply);

/// I am alive.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PingReply {
    /// The server that answers; 0 for the coordinator and for servers that are not enlisted yet.
    pub server: ServerId,
    /// The server list it has.
    pub server_list: ServerListVersion,
    /// Whether it takes the asker for a member that is up (or cannot know). When not, the asker
    /// must ask the coordinator before it serves anything more [RAMCloud §7.11].
    pub caller_is_member: bool,
    /// The cluster of the process that answers; 0 for servers that are not enlisted yet.
    #[serde(default)]
    pub cluster: ClusterId,
}
impl Fields for PingReply {}

impl PingReply {
    /// Whether this life of a server of this cluster answered. Another cluster has a server of the
    /// same id.
    #[must_use]
    pub fn is_by(&self, cluster: ClusterId, server: ServerId) -> bool {
        self.server == server && self.is_of(cluster)
    }

    /// Whether a member of this cluster answered, or somebody who is in none yet.
    #[must_use]
    pub fn is_of(&self, cluster: ClusterId) -> bool {
        self.cluster == cluster || self.cluster == ClusterId(0)
    }
}

/// A new server list for a server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UpdateServerList {
    /// The cluster.
    pub cluster: ClusterId,
    /// The list.
    pub list: ServerList,
}
impl Fields for UpdateServerList {}
request!(UpdateServerList => ());

/// Own these tablets, which hold nothing yet. Answered once every log of the master is durably
/// open, so that a crash afterwards can be recovered from. A server that was told something newer
/// of the table, or has given the tablet away, refuses it as [`Stale`](crate::FatalKind::Stale). A
/// coordinator that still leads looks at what is stored, and asks with that.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TakeTablets {
    /// The version of the metadata that says so.
    #[serde(default)]
    pub version: MetadataVersion,
    /// The tablets.
    pub tablets: Vec<TabletSpec>,
    /// They may have been elsewhere before, and begin anew: their objects, if there were any, are
    /// lost, and no version below this is given again. 0: they are new.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_version: ObjectVersion,
}
impl Fields for TakeTablets {}
request!(TakeTablets => ());

fn is_zero(version: &ObjectVersion) -> bool {
    *version == ObjectVersion(0)
}

/// Give up all tablets of a table and forget its objects. Never refused as stale: ids of tables are
/// not given twice, so what was dropped once stays dropped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DropTablets {
    /// The version of the metadata in which the table is being dropped.
    #[serde(default)]
    pub version: MetadataVersion,
    /// The table.
    pub table: TableId,
}
impl Fields for DropTablets {}
request!(DropTablets => ());

/// Cut a tablet in two; both stay on this server. Refused as
/// [`NotFound`](crate::FatalKind::NotFound) when it has none with that hash, and as
/// [`Stale`](crate::FatalKind::Stale) as [`TakeTablets`] is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SplitTabletLocal {
    /// The version of the metadata that has the cut.
    #[serde(default)]
    pub version: MetadataVersion,
    /// The table.
    pub table: TableId,
    /// The first hash of the upper part.
    pub at: KeyHash,
}
impl Fields for SplitTabletLocal {}
request!(SplitTabletLocal => ());

/// Serve neighbouring tablets as one. Answered when all hashes of the range are served here, and no
/// recovery or migration of any of them waits for an answer. Refused as
/// [`NotFound`](crate::FatalKind::NotFound) when that is not so, and as
/// [`Stale`](crate::FatalKind::Stale) as [`TakeTablets`] is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JoinTabletsLocal {
    /// The version of the metadata in which they are neighbours.
    pub version: MetadataVersion,
    /// The table.
    pub table: TableId,
    /// All of them together.
    pub range: HashRange,
}
impl Fields for JoinTabletsLocal {}
request!(JoinTabletsLocal => ());

/// Join the cluster. Repeating it with the same `attempt` gives the same id.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Enlist {
    /// The newest protocol it speaks; `info` has all. A coordinator that was built before versions
    /// were negotiated looks at this one.
    pub protocol: u16,
    /// The settings that it expects the cluster to have. `None`: it does not say, and takes those
    /// that it was given.
    #[serde(default)]
    pub expects: Option<SettingsWish>,
    /// The cluster its data directory belongs to, if it has been in one.
    pub cluster: Option<ClusterId>,
    /// The id it had in its former life, if its data directory has one. That life is over: the
    /// coordinator declares it crashed and recovers it if it had tablets.
    pub replaces: Option<ServerId>,
    /// Random number drawn once per process.
    pub attempt: u64,
    /// How many logs its cores have: those of durability classes come behind them. 0: it does not
    /// say.
    #[serde(default, skip_serializing_if = "is_default")]
    pub logs: u16,
    /// Its entry in the list; `id` and `state` are ignored.
    pub info: ServerInfo,
}
impl Fields for Enlist {}
request!(Enlist => EnlistReply);

/// Welcome.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EnlistReply {
    /// The new server's id.
    pub server: ServerId,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The server list, with the new server in it.
    pub list: ServerList,
}
impl Fields for EnlistReply {}

/// A server does not answer: look whether it crashed. The coordinator pings it; the word of
/// others declares nobody dead.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HintServerCrashed {
    /// The suspect.
    pub suspect: ServerId,
    /// The server that noticed. Only the hints of members count (DETECT-3).
    #[serde(default)]
    pub from: ServerId,
}
impl Fields for HintServerCrashed {}
request!(HintServerCrashed => ());

/// The server list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetServerList {}
impl Fields for GetServerList {}
request!(GetServerList => GetServerListReply);

/// The server list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetServerListReply {
    /// The cluster.
    pub cluster: ClusterId,
    /// The list.
    pub list: ServerList,
}
impl Fields for GetServerListReply {}

/// Replicas of this open segment below this epoch are stale, and so are open replicas of all
/// earlier heads of the same log. Durable at the coordinator when answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SetReplicationEpoch {
    /// The cluster.
    pub cluster: ClusterId,
    /// The master.
    pub server: ServerId,
    /// The log.
    pub log: LogId,
    /// The open segment that lost a replica.
    pub segment: SegmentId,
    /// The new epoch.
    pub epoch: ReplicationEpoch,
}
impl Fields for SetReplicationEpoch {}
request!(SetReplicationEpoch => ());

/// Names a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum TableRef {
    /// By its name.
    Name(String),
    /// By its id.
    Id(TableId),
}

/// A table and its tablets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetTable {
    /// Which.
    pub table: TableRef,
}
impl Fields for GetTable {}
request!(GetTable => TableInfo);

/// A table, as the coordinator knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TableInfo {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub id: TableId,
    /// Its name.
    pub name: String,
    /// The seed of its key hash.
    pub seed: u64,
    /// How it hashes keys.
    #[serde(default)]
    pub hash: HashKind,
    /// What it may have at most.
    #[serde(default, skip_serializing_if = "TableQuota::is_none")]
    pub quota: TableQuota,
    /// How much of that it has, if it has a quota and its owners have said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_state: Option<QuotaState>,
    /// How its objects are kept, if not as the cluster's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<TableClass>,
    /// Its tablets, by ascending range; together they cover every hash.
    pub tablets: Vec<TabletInfo>,
    /// The addresses of the servers that own a tablet.
    pub addresses: Vec<(ServerId, String)>,
}
impl Fields for TableInfo {}

impl TableInfo {
    /// What decides the hash of a key.
    #[must_use]
    pub fn table_hash(&self) -> TableHash {
        let (kind, seed) = (self.hash, self.seed);
        TableHash { kind, seed }
    }
}

/// A tablet and where it is.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TabletInfo {
    /// The range of hashes.
    pub range: HashRange,
    /// Its owner. While recovering: the crashed one.
    pub owner: ServerId,
    /// What can be done with it.
    pub state: TabletState,
}

/// The state of a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TabletState {
    /// Its owner has not confirmed it yet; it holds nothing.
    Assigning,
    /// Its owner serves it.
    Normal,
    /// Its owner crashed; it is being recovered.
    Recovering,
}

/// Create a table, or find the one that has this name already, whatever its kind of hash.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CreateTable {
    /// The name.
    pub name: String,
    /// Over how many servers to spread it; all of them when `None`.
    pub span: Option<u32>,
    /// How it is to hash keys.
    #[serde(default)]
    pub hash: HashKind,
    /// Its quota.
    #[serde(default)]
    pub quota: QuotaWish,
    /// How its objects are to be kept.
    #[serde(default, skip_serializing_if = "DurabilityWish::is_empty")]
    pub durability: DurabilityWish,
}
impl Fields for CreateTable {}
request!(CreateTable => TableInfo);

/// Drop a table and all its objects. Answered when no server serves it any more. A table that does
/// not exist is refused as `NoSuchTable`, once no server serves one of this name that was dropped
/// before. Refused as `NotReady` when that takes long: the table has no name any more, and is to be
/// asked for again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DropTable {
    /// Which.
    pub table: TableRef,
    /// An existing table stays. A drop that was begun before is waited for, and the answer is
    /// `NoSuchTable`.
    pub only_wait: bool,
    /// The next table of this name gets the quota of this one, and its durability.
    #[serde(default)]
    pub keep_quota: bool,
}

impl DropTable {
    /// Drops this one.
    #[must_use]
    pub fn of(table: TableRef) -> Self {
        Self {
            table,
            only_wait: false,
            keep_quota: false,
        }
    }
}
impl Fields for DropTable {}
request!(DropTable => ());

/// All tables.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ListTables {}
impl Fields for ListTables {}
request!(ListTables => ListTablesReply);

/// All tables, by name.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ListTablesReply {
    /// The tables.
    pub tables: Vec<TableInfo>,
}
impl Fields for ListTablesReply {}

/// Cut a tablet in two.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SplitTablet {
    /// The table.
    pub table: TableRef,
    /// The first hash of the upper part; the middle of the widest tablet when `None`. In a slot
    /// table the tablet is cut before the slot that has it.
    pub at: Option<KeyHash>,
}
impl Fields for SplitTablet {}
request!(SplitTablet => TableInfo);

/// Which coordinator leads? Coordinators that do not lead answer it, too.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetLeader {}
impl Fields for GetLeader {}
request!(GetLeader => GetLeaderReply);

/// Which coordinator leads, as far as the one that answers knows.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GetLeaderReply {
    /// The number that the answering process drew at its start.
    pub candidate: u64,
    /// Whether it leads itself, for sure.
    #[serde(default, skip_serializing_if = "is_default")]
    pub leads: bool,
    /// Where the leader answers, when that is known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub leader: Option<String>,
    /// The leader does not answer, and this one is about to take over or to hear from it: it is
    /// best asked again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub deciding: bool,
    /// It leads, but its pings hardly reach any server: whoever does better may take its place.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost_servers: bool,
    /// Why the metadata store does not do what it is asked, if it does not; for people.
    #[serde(default, skip_serializing_if = "is_default")]
    pub trouble: Option<String>,
}
impl Fields for GetLeaderReply {}

/// What a server has and does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetServerStatus {}
impl Fields for GetServerStatus {}
request!(GetServerStatus => ServerStatus);

/// What a server has and does. Sizes in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Its id.
    pub id: ServerId,
    /// Log memory it may use.
    pub memory_total: u64,
    /// Log memory in segments.
    pub memory_log: u64,
    /// Log memory of live entries.
    pub memory_live: u64,
    /// Live entries that its log takes at most; 0 from servers that do not say so.
    pub memory_live_max: u64,
    /// Memory of the indexes and of the log's tables.
    pub memory_index: u64,
    /// Memory of the indexes alone.
    pub index_bytes: u64,
    /// Entries in the indexes: objects, and deletions that are not durable yet.
    pub index_entries: u64,
    /// Entries the indexes have slots for.
    pub index_slots: u64,
    /// Objects.
    pub objects: u64,
    /// Keys' and values' bytes of those objects.
    pub object_bytes: u64,
    /// Keys that are noted because they have a deadline, about.
    pub objects_noted: u64,
    /// Objects dropped since the start because their deadlines were past.
    pub objects_expired: u64,
    /// Keys that transactions of several servers have locked now.
    pub keys_locked: u64,
    /// Milliseconds for which the one of them that was locked first has been; 0: there are none.
    pub keys_locked_ms_max: u64,
    /// Tablets it serves.
    pub tablets: u64,
    /// Segments in its log.
    pub segments: u64,
    /// Segments with fewer replicas than wanted.
    pub segments_under_replicated: u64,
    /// Replicas wanted.
    pub replicas_wanted: u32,
    /// Replicas needed for an acknowledgement.
    pub replicas_needed: u32,
    /// Whether replicas are on their devices when a write is acknowledged.
    pub synced: bool,
    /// Backups it can use.
    pub backups_up: u32,
    /// Why writes wait, if they do.
    pub writes_wait: Option<String>,
    /// Frames its backup holds for others.
    pub frames: u64,
    /// Bytes of those frames.
    pub frame_bytes: u64,
    /// Frames found damaged since the start.
    pub frames_damaged: u64,
    /// Bytes the cleaner has freed and moved since the start.
    pub cleaner_freed: u64,
    /// See `cleaner_freed`.
    pub cleaner_moved: u64,
    /// Requests answered since the start.
    pub requests: u64,
    /// Milliseconds since its process started.
    pub uptime_ms: u64,
    /// Microseconds for which each of its event loops has worked since the start.
    pub loops_busy_us: Vec<u64>,
    /// How long commands of Redis clients took since the start.
    pub command_times: TimeSpread,
    /// How long backups took to acknowledge what it wrote to them since the start.
    pub replica_write_times: TimeSpread,
    /// Bytes that backups acknowledged since the start, of each replica.
    pub replica_bytes: u64,
    /// Replicas that its log lost since the start: servers that died or refused them.
    pub replicas_lost: u64,
    /// Writes to replicas that failed since the start and were repeated.
    pub replica_write_failures: u64,
    /// Segments compacted in memory since the start.
    pub compactions: u64,
    /// Combined passes of the cleaner since the start.
    pub cleaner_passes: u64,
    /// Bytes of entries that came with tablets from other servers since the start.
    pub moved_here: u64,
    /// How often changes were held for an archive of one moment since the start.
    pub holds: u64,
    /// For how long altogether, in microseconds.
    pub held_us: u64,
    /// Writes refused since the start because a table had its quota of bytes.
    pub quota_refused_bytes: u64,
    /// Operations refused since the start because a table had its quota of operations.
    pub quota_refused_operations: u64,
    /// Processes of its machine that read its memory.
    pub mapped: MappedReaders,
    /// Its data directories, the first one first. Empty from servers that do not say so.
    pub data: Vec<DataDirectoryStatus>,
}
impl Fields for ServerStatus {}

/// One data directory of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DataDirectoryStatus {
    /// Its path, for people.
    pub name: String,
    /// Why the server goes on without it, if it does.
    pub left: Option<String>,
    /// Why it fails or hangs, while the server uses it all the same.
    pub trouble: Option<String>,
    /// Frames in it; if it was left, those that are lost with it.
    pub frames: u64,
    /// Bytes of these.
    pub frame_bytes: u64,
    /// Bytes that the file system has left, if that is known.
    pub room: Option<u64>,
    /// How fast it was at start, in MB/s.
    pub mb_per_s: u32,
}

/// Processes that read a server's memory without asking it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedReaders {
    /// Those that read now.
    pub readers: Vec<MappedReader>,
    /// Processes that were let in since the start.
    pub let_in: u64,
    /// Processes that were refused since the start.
    pub refused: u64,
}

/// A process that reads a server's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedReader {
    /// Its process id.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Milliseconds since it came.
    pub since_ms: u64,
}

/// What the whole cluster has and does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetClusterStatus {}
impl Fields for GetClusterStatus {}
request!(GetClusterStatus => ClusterStatus);

/// What the whole cluster has and does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: ClusterId,
    /// The server list.
    pub list: ServerList,
    /// The status of each server that answered.
    pub servers: Vec<ServerStatus>,
    /// All tables.
    pub tables: Vec<TableInfo>,
    /// Recoveries under way, and the latest finished ones, oldest first.
    pub recoveries: Vec<RecoveryStatus>,
    /// Migrations under way, and the latest that ended, oldest first.
    #[serde(default)]
    pub migrations: Vec<MigrationStatus>,
    /// Servers that are drained, by ascending id.
    #[serde(default)]
    pub drains: Vec<DrainStatus>,
    /// What balancing does.
    #[serde(default)]
    pub balance: BalanceStatus,
    /// Parts of crashed servers' logs that were given up, oldest first: the latest 16.
    #[serde(default)]
    pub losses: Vec<Loss>,
    /// How often tablets without replicas have begun anew, empty, because their server had died.
    #[serde(default)]
    pub begun_anew: u64,
    /// Why the metadata store takes no changes, if it takes none; for people. What the cluster
    /// serves it serves on.
    #[serde(default)]
    pub metadata_trouble: Option<String>,
}
impl Fields for ClusterStatus {}

/// A recovery, under way or finished.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryStatus {
    /// The latest attempt.
    pub recovery: RecoveryId,
    /// The crashed master.
    pub crashed: ServerId,
    /// Its address, for people.
    pub address: String,
    /// Whether all tablets are back.
    pub done: bool,
    /// What it is doing or waiting for.
    #[serde(default)]
    pub stage: RecoveryStage,
    /// Attempts so far.
    pub attempts: u32,
    /// Milliseconds from the crash being known to the end, or so far.
    pub duration_ms: u64,
    /// Tablets that were recovered.
    pub tablets: u32,
    /// Servers that recovered a partition.
    pub masters: Vec<ServerId>,
    /// Bytes of log that recovery masters fetched.
    pub bytes: u64,
    /// Objects alive after replay.
    pub objects: u64,
    /// Segments of the crashed log.
    pub segments: u32,
    /// Microseconds from the crash being known until the recovery masters of the latest attempt
    /// were asked: the log was found complete, and cut into partitions.
    #[serde(default)]
    pub planning_us: u64,
    /// The work of the recovery master whose report came last. The others did their part meanwhile.
    #[serde(default)]
    pub last_partition: ReplayStats,
}
