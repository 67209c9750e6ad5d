//! Options of a server.

use crate::membership::PingOptions;
use core::time::Duration;
use pluvio_env::{Address, Disk, DiskError};
use pluvio_log::{Corruption, Tombstones};
use pluvio_redis::{ClientMemory, MachineFn, Password};
use pluvio_store::IndexMemory;
use pluvio_trace::Sampler;
use pluvio_units::Size;
use pluvio_wire::{ClusterSettings, SettingsWish, Versions};
use std::sync::Arc;

/// How long the Redis front end masks failures, unless told otherwise: longer than a recovery
/// takes. Clients with a shorter time-out (many have 2 to 5 s) give up earlier, and do not hear
/// whether their command was executed.
const REDIS_PATIENCE: Duration = Duration::from_secs(10);
/// The least memory of the connections of Redis clients, unless told otherwise: two of the longest
/// replies.
const REDIS_MEMORY: Size = Size::mib(512);

/// One more data directory for frames, on a device of its own.
#[derive(Clone)]
pub struct FurtherDirectory {
    /// For people: its path.
    pub name: String,
    /// Its contents, or why it cannot be used.
    pub disk: Result<Arc<dyn Disk>, DiskError>,
}

impl core::fmt::Debug for FurtherDirectory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("FurtherDirectory").field(&self.name).finish()
    }
}

/// How a server starts whose further data directories are not all there (DATADIR-1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MissingData {
    /// It does not start.
    #[default]
    Refuse,
    /// It starts without them. They may come back at a later start.
    LeaveOut,
    /// It forgets them, and begins anew in those that are empty.
    Forget,
}

/// How a server runs.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where the coordinators are. One that runs is enough if it knows which one leads: not with
    /// metadata in a directory.
    pub coordinators: Vec<Address>,
    /// Where to listen for requests of clients and other servers; port 0 takes any. The host must
    /// be one that others can reach.
    pub listen: Address,
    /// Where to listen for the Redis protocol, if at all.
    pub redis: Option<Address>,
    /// Where to listen for cluster clients of the Redis protocol, if at all.
    pub redis_cluster: Option<Address>,
    /// Where this process answers HTTP, for the server list.
    pub admin: Option<String>,
    /// For people: the path of the data directory that the environment has.
    pub data_name: String,
    /// More data directories for frames: one of all may fail.
    pub further: Vec<FurtherDirectory>,
    /// How to start if one of these is not there.
    pub missing: MissingData,
    /// Log memory.
    pub memory: Size,
    /// Ask for huge pages, for the log and for large indexes: fewer TLB misses; memory is used in
    /// steps of 2 MiB.
    pub huge_pages: bool,
    /// Have the system fetch all of the log memory in the background once the server has started,
    /// and keep it. So no write waits for a page later.
    pub populate: bool,
    /// Which memory nodes indexes come from, and the log's tables of segments and of dead entries.
    pub index_memory: IndexMemory,
    /// This server's expectation of the cluster's settings; the coordinator refuses it if they are
    /// others. `None`: any. The first server of a cluster whose coordinator was given none begins
    /// them. Replicas of every segment on other servers' disks; 0 keeps none:
    /// a crash loses the data.
    pub replicas: Option<u32>,
    /// As `replicas`: replicas without which writes wait.
    pub min_replicas: Option<u32>,
    /// As `replicas`: acknowledge when replicas are on their devices, instead of with the operating
    /// system.
    pub synced: Option<bool>,
    /// Follow the three above, or their defaults, whatever the cluster has. For experiments and
    /// tests.
    pub own_settings: bool,
    /// The versions that it speaks.
    pub versions: Versions,
    /// What keeps overwritten objects dead on disk. For experiments and tests.
    pub tombstones: Tombstones,
    /// Overwrite a value where it lies if the new one fits there, instead of appending it. Only
    /// without replicas.
    pub in_place: bool,
    /// Other processes of this machine may map the memory to read it, once a door lets them in.
    pub mapped_reads: bool,
    /// The rack or power domain this server stands in.
    pub rack: Option<String>,
    /// Most connections of Redis clients, on each port.
    pub redis_connections_max: usize,
    /// Memory that all connections of Redis clients may hold together, on both ports. `None`: a
    /// quarter of the log memory, at least 512 MiB.
    pub redis_memory: Option<Size>,
    /// The password of the Redis user `default`, as long as the cluster keeps no such user. `None`:
    /// it needs none.
    pub redis_password: Option<Password>,
    /// Whether the Redis ports answer only connections of this machine while `default` needs no
    /// password.
    pub redis_protected: bool,
    /// How long the Redis ports mask failures before they answer with an error.
    pub redis_timeout: Duration,
    /// Which commands on the Redis ports begin a trace.
    pub trace: Sampler,
    /// How this server looks after others.
    pub pings: PingOptions,
    /// Process id, for the server list.
    pub pid: u32,
    /// Tells Redis clients what the process uses of the machine; `None` where nobody knows.
    pub machine: Option<MachineFn>,
    /// Ends a server whose memory is found to be corrupt. `None`: the process stops at once, with a
    /// message that says where.
    pub on_corruption: Option<OnCorruption>,
}

/// Ends a server whose memory is corrupt, where servers share a process: in simulations. The caller
/// is whatever finds the corruption, in the middle of anything. From there on nothing of the server
/// may run, and any part that still runs must stay unheard.
#[derive(Clone)]
pub struct OnCorruption(Arc<dyn Fn(&Corruption) + Send + Sync>);

impl OnCorruption {
    /// Calls `end`.
    pub fn new(end: impl Fn(&Corruption) + Send + Sync + 'static) -> Self {
        Self(Arc::new(end))
    }

    pub(crate) fn call(&self, corruption: &Corruption) {
        (self.0)(corruption);
    }
}

impl core::fmt::Debug for OnCorruption {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("OnCorruption")
    }
}

impl ServerOptions {
    /// The least that connections of Redis clients may be allowed to hold.
    pub const REDIS_MEMORY_MIN: Size = Size(ClientMemory::BOUND_MIN as u64);

    /// Usual values: 256 MiB, three replicas, acknowledged when with the operating system.
    #[must_use]
    pub fn new(coordinator: Address, listen: Address) -> Self {
        Self {
            coordinators: vec![coordinator],
            listen,
            redis: None,
            redis_cluster: None,
            admin: None,
            data_name: "given first".to_owned(),
            further: Vec::new(),
            missing: MissingData::default(),
            memory: Size::mib(256),
            huge_pages: false,
            populate: false,
            index_memory: IndexMemory::default(),
            replicas: None,
            min_replicas: None,
            synced: None,
            own_settings: false,
            versions: Versions::OWN,
            tombstones: Tombstones::default(),
            in_place: false,
            mapped_reads: false,
            rack: None,
            redis_connections_max: 10_000,
            redis_memory: None,
            redis_password: None,
            redis_protected: false,
            redis_timeout: REDIS_PATIENCE,
            trace: Sampler::OFF,
            pings: PingOptions::default(),
            pid: 0,
            machine: None,
            on_corruption: None,
        }
    }

    /// What it expects of the cluster's settings.
    #[must_use]
    pub fn expects(&self) -> SettingsWish {
        SettingsWish {
            replicas: self.replicas,
            min_replicas: self.min_replicas,
            synced: self.synced,
            strict_racks: None,
        }
    }

    /// The settings of a cluster that this server begins.
    ///
    /// # Errors
    /// They make no sense, and why, for people.
    pub fn settings(&self) -> Result<ClusterSettings, String> {
        ClusterSettings::USUAL.with(&self.expects().completed())
    }

    /// Memory that all connections of Redis clients may hold together.
    #[must_use]
    pub fn redis_memory(&self) -> Size {
        let quarter = Size(self.memory.bytes() / 4);
        self.redis_memory.unwrap_or(quarter.max(REDIS_MEMORY))
    }

    /// What is wrong with the options, for people.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let replicas = self.replicas;
        if self.in_place && replicas != Some(0) {
            return Some(match replicas {
                Some(replicas) => format!(
                    "update in-place needs replicas 0, not {replicas}: replicas would keep the old values"
                ),
                None => "update in-place is for clusters without replicas: give --replicas 0, too"
                    .into(),
            });
        }
        if self.in_place && self.mapped_reads {
            return Some(
                "update in-place and mapped reads exclude each other: others do not read what is overwritten in place"
                    .into(),
            );
        }
        match self.settings() {
            // With replicas that the cluster has and this server does not name, they may fit.
            Ok(_) => None,
            Err(_) if replicas.is_none() && self.min_replicas.is_some_and(|n| n > 0) => None,
            Err(why) => Some(why),
        }
    }
}
