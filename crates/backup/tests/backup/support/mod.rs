//! A backup on a simulated disk, and segments to write to it.

use bytes::Bytes;
use pluvio_backup::{Backup, BackupError, BackupOptions};
use pluvio_env::{BoxFuture, Disk, DiskError, Env, File, OpenMode};
use pluvio_format::{
    Completion, Encoded, Entry, FORMAT_VERSION, Graves, LogDigest, Object, ObjectState,
    SegmentHeader, SegmentKind, TableStat, TableStats, Tombstone,
};
use pluvio_mutation::Outcome;
use pluvio_sim::{ProcessId, Sim, SimOptions};
use pluvio_units::{
    ClientId, ClusterId, CoreId, KeyHash, LogId, ObjectVersion, ReplicationEpoch, SegmentId,
    SequenceNumber, ServerId, ServerListVersion, TableId, UnixMs,
};
use pluvio_wire::{
    Refusal, ReplicaInfo, ServerInfo, ServerList, ServerState, StartRecovery, WriteReplica,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub const CLUSTER: ClusterId = ClusterId(77);
pub const MASTER: ServerId = ServerId(3);
pub const CORE: CoreId = CoreId(0);
/// The seed of the key hash of table 1.
pub const SEED: u64 = 42;
const LIMIT: Duration = Duration::from_secs(60);

pub fn server(id: u64, state: ServerState) -> ServerInfo {
    ServerInfo {
        disk_mb_per_s: 100,
        state,
        ..ServerInfo::plain(ServerId(id), format!("server-{id}"))
    }
}

pub fn list(version: u64, servers: &[(u64, ServerState)]) -> ServerList {
    ServerList {
        version: ServerListVersion(version),
        servers: servers
            .iter()
            .map(|(id, state)| server(*id, *state))
            .collect(),
        grown: true,
        ..ServerList::default()
    }
}

/// One machine with a backup.
pub struct Node {
    pub sim: Sim,
    pub process: ProcessId,
    pub env: Env,
}

impl Node {
    pub fn new(seed: u64) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let process = sim.process("backup");
        Self {
            process: process.id,
            env: process.env,
            sim,
        }
    }

    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim
            .block_on(self.process, work, LIMIT)
            .expect("ends in time")
    }

    pub fn try_start(&self, options: BackupOptions) -> Result<Backup, BackupError> {
        let env = self.env.clone();
        self.run(async move { Backup::start(env, options).await })
    }

    /// A backup that is server 1, with the masters 3 and 4 up.
    pub fn start_with(&self, options: BackupOptions) -> Backup {
        let backup = self.try_start(options).expect("starts");
        backup
            .enlisted(ServerId(1), CLUSTER)
            .expect("is the right cluster");
        backup.server_list_changed(&list(
            1,
            &[
                (1, ServerState::Up),
                (3, ServerState::Up),
                (4, ServerState::Up),
            ],
        ));
        backup
    }

    pub fn start(&self) -> Backup {
        self.start_with(BackupOptions::default())
    }

    pub fn restart(&mut self) {
        self.env = self.sim.restart(self.process).env;
    }

    pub fn write(&self, backup: &Backup, request: WriteReplica) -> Result<(), Refusal> {
        let backup = backup.clone();
        self.run(async move { backup.write_replica(CORE, request).await })
    }

    /// Changes a file behind the backup's back.
    pub fn rewrite(&self, path: &'static str, change: impl FnOnce(&mut Vec<u8>)) {
        let disk = self.env.disk.clone();
        let bytes = self.run(async move {
            let file = disk.open(path, OpenMode::Existing).await.expect("is there");
            let size = file.size().await.expect("is known");
            let bytes = file.read_at(0, size as usize).await.expect("is read");
            disk.remove(path).await.expect("is removed");
            bytes
        });
        let mut bytes = bytes.to_vec();
        change(&mut bytes);
        let disk = self.env.disk.clone();
        self.run(async move {
            let file = disk.open(path, OpenMode::New).await.expect("is new");
            let written = file.write_at(0, bytes.into());
            written.await.expect("is written");
        });
    }

    pub fn frames(&self) -> Vec<String> {
        self.sim
            .files(self.process)
            .into_iter()
            .filter(|path| path.starts_with("frames/"))
            .collect()
    }
}

/// The replicas that a backup offers to a recovery of the master. It refuses the master then.
pub fn replicas(node: &Node, backup: &Backup) -> Vec<ReplicaInfo> {
    let backup = backup.clone();
    let listed = node.run(async move { backup.start_recovery(StartRecovery::of(MASTER)).await });
    listed.expect("lists").replicas
}

/// The bytes of a segment, and where its groups end.
pub struct Image {
    pub bytes: Vec<u8>,
    pub ends: Vec<u32>,
}

impl Image {
    fn push(&mut self, entries: &[Entry<'_>]) {
        for (i, entry) in entries.iter().enumerate() {
            let encoded = Encoded::new(entry, i + 1 < entries.len()).expect("is a good entry");
            self.bytes.extend_from_slice(&encoded.to_vec());
        }
        assert!(
            self.bytes.len() <= pluvio_units::SEGLET_BYTES,
            "these images have no padding"
        );
        self.ends.push(self.bytes.len() as u32);
    }

    /// A segment of `objects` objects named `k0`, `k1`, … of table 1, each with a tombstone and a
    /// completion record.
    pub fn new(segment: u64, kind: SegmentKind, objects: usize) -> Self {
        let mut image = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        let header = Entry::SegmentHeader(SegmentHeader {
            format_version: FORMAT_VERSION,
            cluster: CLUSTER,
            server: MASTER,
            log: LogId(0),
            segment: SegmentId(segment),
            kind,
            created_s: 0,
        });
        match kind {
            SegmentKind::Head => {
                let segments = (1..=segment).map(SegmentId).collect();
                let digest = Entry::LogDigest(LogDigest {
                    log: LogId(0),
                    logs_of_master: 1,
                    segments,
                });
                let stat = TableStat {
                    table: TableId(1),
                    live_bytes: 1000,
                    live_entries: 10,
                };
                let stats = Entry::TableStats(TableStats::of(vec![stat]));
                let safe_version = Entry::SafeVersion(ObjectVersion(5));
                let horizon = Entry::Horizon(UnixMs(7));
                image.push(&[header, digest, stats, safe_version, horizon]);
            }
            SegmentKind::Side => image.push(&[header]),
        }
        for i in 0..objects {
            let key = format!("k{i}");
            let object = Object {
                table: TableId(1),
                version: ObjectVersion(9),
                timestamp_s: 1,
                graves: Graves::NONE,
                deadline: None,
                state: ObjectState::Plain,
                key: key.as_bytes(),
                value: &[i as u8; 50],
            };
            let tombstone = Tombstone {
                table: TableId(1),
                version: ObjectVersion(8),
                segment: SegmentId(1),
                timestamp_s: 1,
                key: key.as_bytes(),
            };
            let completion = Completion {
                client: ClientId(3),
                sequence: SequenceNumber(i as u64 + 1),
                acknowledged_below: SequenceNumber(1),
                retry_s: 10,
                table: TableId(1),
                hash: KeyHash::of(SEED, key.as_bytes()),
                outcome: Outcome::Written {
                    version: object.version,
                    replaced: tombstone.version,
                    output: pluvio_mutation::Output::Nothing,
                },
            };
            image.push(&[
                Entry::Object(object),
                Entry::Tombstone(tombstone),
                Entry::Completion(completion),
            ]);
        }
        image
    }

    pub fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Writes groups `from..to` (0 is the opening one).
    pub fn request(&self, segment: u64, kind: SegmentKind, from: usize, to: usize) -> WriteReplica {
        let start = if from == 0 { 0 } else { self.ends[from - 1] };
        let end = if to == 0 { 0 } else { self.ends[to - 1] };
        WriteReplica {
            cluster: CLUSTER,
            master: MASTER,
            segment: SegmentId(segment),
            log: LogId(0),
            side: kind == SegmentKind::Side,
            epoch: ReplicationEpoch(0),
            open: from == 0,
            rewriting: false,
            primary: true,
            offset: start,
            certified: end,
            close: false,
            synced: true,
            needed: 2,
            data: Bytes::copy_from_slice(&self.bytes[start as usize..end as usize]),
        }
    }

    /// Writes everything and closes.
    pub fn whole(&self, segment: u64, kind: SegmentKind) -> WriteReplica {
        WriteReplica {
            close: true,
            ..self.request(segment, kind, 0, self.ends.len())
        }
    }
}

/// A disk that passes on each file that is opened, as it is or as another one.
pub struct FilesThrough<P> {
    pub disk: Arc<dyn Disk>,
    pub pass: P,
}

impl<P: Fn(Arc<dyn File>) -> Arc<dyn File> + Send + Sync> Disk for FilesThrough<P> {
    fn open(&self, path: &str, mode: OpenMode) -> BoxFuture<'_, Result<Arc<dyn File>, DiskError>> {
        let opened = self.disk.open(path, mode);
        Box::pin(async move { Ok((self.pass)(opened.await?)) })
    }

    fn remove(&self, path: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        self.disk.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        self.disk.rename(from, to)
    }

    fn list(&self, directory: &str) -> BoxFuture<'_, Result<Vec<String>, DiskError>> {
        self.disk.list(directory)
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        self.disk.sync_directory(directory)
    }

    fn boot(&self) -> u64 {
        self.disk.boot()
    }
}
