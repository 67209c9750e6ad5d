//! A cluster of ours for an experiment.

use super::{System, Way};
use pluvio_client::Table;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::session::Session;
use pluvio_env::Env;
use pluvio_local::{Announcement, Durability, LocalCluster, LocalOptions, Program};
use pluvio_units::Size;
use pluvio_wire::BalanceWish;
use std::path::Path;
use std::time::Duration;

/// How long a client waits for an operation.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a write is kept before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum Keeps {
    /// On nothing: in the memory of one process only
    #[value(name = "none")]
    Nothing,
    /// On the server's own disk, synced
    Synced,
    /// On two backups of three servers, with their operating systems
    Replicated,
}

impl Keeps {
    /// All, from the cheapest.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Synced, Self::Replicated];

    /// In words, for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Synced => "own disk, synced",
            Self::Replicated => "2 replicas, buffered",
        }
    }

    fn servers(self) -> u32 {
        match self {
            Self::Nothing | Self::Synced => 1,
            Self::Replicated => 3,
        }
    }

    /// The options of such a cluster, with `memory` for each server, below `data`.
    pub fn options(self, memory: Size, data: &Path) -> LocalOptions {
        let replicas = match self {
            Self::Nothing => 0,
            Self::Synced => 1,
            Self::Replicated => 2,
        };
        let durability = match self {
            Self::Synced => Durability::Synced,
            Self::Nothing | Self::Replicated => Durability::Buffered,
        };
        LocalOptions {
            durability,
            ..LocalOptions::for_a_while(self.servers(), replicas, memory, data)
        }
    }
}

/// A running cluster.
pub struct Ours {
    cluster: LocalCluster,
    /// A client of it.
    pub session: Session,
    durability: &'static str,
}

impl Ours {
    /// Starts one with `memory` for each server, each on one core, below `data`.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(
        env: &Env,
        global: &Global,
        keeps: Keeps,
        memory: Size,
        data: &Path,
    ) -> Result<Self, Failure> {
        let options = keeps.options(memory, data);
        Self::with(env, global, options, keeps.name()).await
    }

    /// Starts one with these options, each server on one core; `durability` tells of it in tables.
    /// Tablets stay where they are: an experiment says which server it measures.
    ///
    /// # Errors
    /// It does not start.
    pub async fn with(
        env: &Env,
        global: &Global,
        options: LocalOptions,
        durability: &'static str,
    ) -> Result<Self, Failure> {
        let options = LocalOptions {
            cores: Some(1),
            log: global.log.clone(),
            log_format: global.log_format,
            ..options
        };
        let program = Program::beside_own()?;
        let cluster = LocalCluster::start(env.clone(), program, options).await?;
        let session = cluster.session(PATIENCE);
        session.client.balance(BalanceWish::Off).await?;
        Ok(Self {
            session,
            cluster,
            durability,
        })
    }

    /// Numbers of the table's server and of the others, from 1: their data lies in `server-N`.
    ///
    /// # Errors
    /// The table is not on one server of this cluster.
    pub async fn master_and_backups(&self, table: &Table) -> Result<(usize, Vec<usize>), Failure> {
        let info = self.session.client.table_info(table).await?;
        let owner = info.tablets.first().map(|tablet| tablet.owner.0);
        let servers: Vec<Option<u64>> = self.cluster.servers().map(|server| server.id).collect();
        let master = servers.iter().position(|id| id.is_some() && *id == owner);
        let master = master.ok_or_else(|| Failure::new("the table is on no server of ours"))?;
        let others = (0..servers.len()).filter(|other| *other != master);
        Ok((master + 1, others.map(|other| other + 1).collect()))
    }

    /// The cluster's processes.
    pub fn pids(&self) -> Vec<u32> {
        let coordinators = self.cluster.coordinators();
        coordinators
            .chain(self.cluster.servers())
            .map(|one| one.pid)
            .collect()
    }

    /// What the servers that are there announced.
    pub fn servers(&self) -> impl Iterator<Item = &Announcement> {
        self.cluster.servers()
    }

    /// The cluster by its native client and this table.
    pub fn native(&self, table: Table) -> System {
        let client = self.session.client.clone();
        self.system("pluvio", Way::Native { client, table })
    }

    /// The cluster by the Redis port of its first server.
    ///
    /// # Errors
    /// It has none.
    pub fn redis(&self) -> Result<System, Failure> {
        let mut ports = self
            .cluster
            .servers()
            .filter_map(|server| server.redis.clone());
        let address = ports.next();
        let address = address.ok_or_else(|| Failure::new("no server has a Redis port"))?;
        Ok(self.system("pluvio-redis", Way::Redis(address)))
    }

    fn system(&self, name: &str, way: Way) -> System {
        System {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            durability: self.durability,
            way,
            pids: self.pids(),
        }
    }

    /// Stops all of it.
    pub async fn stop(mut self) {
        self.cluster.stop().await;
    }
}
