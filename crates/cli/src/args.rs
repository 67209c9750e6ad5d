//! What can be said on the command line. The texts of `--help` stand here.
//!
//! Options that a configuration file may set too are found by their long names; see `config`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use pluvio_console::handover::HandedOver;
use pluvio_console::options::{Global, duration, listen_address, redis_address};
use pluvio_coordinator::CoordinatorOptions;
use pluvio_env::{Address, Transport};
use pluvio_local::{Durability, MetadataLogin, SERVERS_MAX};
use pluvio_metadata::Place as MetadataPlace;
use pluvio_server::ServerOptions;
use pluvio_units::{ParseSizeError, Size};
use pluvio_wire::SettingsWish;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::spans::ratio;

use crate::cmd::{
    backup, balance, bench, demo, drain, export, import, lifetime, manual, objects, recover,
    restore, scan, settings, space, status, table, top,
};

/// A durable, strongly consistent key-value store that keeps all data in memory, once.
#[derive(Parser, Debug)]
#[command(
    name = "pluvio",
    version,
    max_term_width = 100,
    infer_subcommands = false
)]
pub struct Cli {
    /// Options of all commands.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a whole cluster on this machine, in the foreground
    Dev(Dev),
    /// Show what Pluvio is for: a data set, a killed server, its recovery
    Demo(demo::Demo),
    /// Run one server
    Server(Server),
    /// Run the coordinator of a cluster
    Coordinator(Coordinator),
    /// Show servers, tables, memory, replication, recoveries and migrations
    Status(status::Status),
    /// Show the keys that are used most, and the largest ones
    Top(top::Top),
    /// Create, set, show, drop, list and split tables, and move their tablets
    Table(table::Table),
    /// Move all tablets of a server away, so that it can be stopped
    Drain(drain::Drain),
    /// Show and change how the cluster keeps its objects
    Settings(settings::Settings),
    /// Let the cluster speak the newest version, once all servers have it
    Finalize(settings::Finalize),
    /// Show or switch how tablets move from full and busy servers to others
    Balance(balance::Balance),
    /// Go on without the part of a dead server's log that is lost for good
    Recover(recover::Recover),
    /// Read one object
    Get(objects::Get),
    /// Write one object
    Put(objects::Put),
    /// Delete one object
    Delete(objects::Delete),
    /// Add to the number that an object holds
    Incr(objects::Incr),
    /// Let an object expire, or at another time
    Expire(lifetime::Expire),
    /// Let an object live for ever
    Persist(lifetime::Persist),
    /// List the objects of a table
    Scan(scan::Scan),
    /// Write the records of a file into a table
    Import(import::Import),
    /// Write the objects of a table into a file
    Export(export::Export),
    /// Make an archive of the tables of a running cluster, and look at archives
    Backup(backup::Backup),
    /// Write the objects of an archive into a cluster of any size
    Restore(restore::Restore),
    /// Measure the speed of a running cluster, and of parts of it (by pluvio-lab)
    Bench(bench::Bench),
    /// Make, list and look at named memory of programs on this machine, and spaces of it
    Space(space::Space),
    /// Print what a shell needs to complete commands and options
    Completions(manual::Completions),
    /// Write the manual pages of all commands
    Man(manual::Man),
    /// Run simulated clusters with faults, from a seed (by pluvio-lab)
    #[command(disable_help_flag = true)]
    Sim(HandedOver),
    /// Simulate one mechanism by itself (by pluvio-lab)
    #[command(disable_help_flag = true)]
    Simulate(HandedOver),
    /// Torment a cluster of real processes, and check that nothing is lost, doubled or out of order
    /// (by pluvio-lab)
    #[command(disable_help_flag = true)]
    Torture(HandedOver),
}

/// Most replicas of a write: far more than anybody wants to pay for.
const REPLICAS_MAX: i64 = 16;

/// Whether memory is to be of huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HugePages {
    /// Pages of 4 KiB
    No,
    /// Where the system has them: fewer TLB misses; memory is used in steps of 2 MiB
    IfPossible,
}

/// Whether something is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    /// It is on
    Yes,
    /// It is off
    No,
}

/// How a write replaces an object that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Update {
    /// Appends a new one; the old one is collected
    Append,
    /// Overwrites it where the new value fits into its place; only with --replicas 0
    InPlace,
}

/// A user or a group whose processes may map a server's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// This user.
    Uid(u32),
    /// This group.
    Gid(u32),
}

fn reader(text: &str) -> Result<Reader, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
    match text.split_once(':') {
        Some(("uid", uid)) => number(uid).map(Reader::Uid),
        Some(("gid", gid)) => number(gid).map(Reader::Gid),
        Some(_) | None => Err("give uid:NUMBER or gid:NUMBER".into()),
    }
}

/// `pluvio dev`.
#[derive(Args, Clone, Debug)]
pub struct Dev {
    /// Number of servers; with --data of an earlier run as many as there were [default: 4]
    #[arg(long, value_name = "N", env = "PLUVIO_SERVERS", value_parser = clap::value_parser!(u32).range(1..=i64::from(SERVERS_MAX)))]
    pub servers: Option<u32>,
    /// Replicas of every write on other servers' disks, when the cluster begins; 0 keeps none
    #[arg(long, value_name = "R", env = "PLUVIO_REPLICAS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=REPLICAS_MAX))]
    pub replicas: u32,
    /// Replicas without which writes wait, when the cluster begins [default: 1]
    #[arg(long, value_name = "M", env = "PLUVIO_MIN_REPLICAS")]
    pub min_replicas: Option<u32>,
    /// Log memory of each server
    #[arg(
        long,
        value_name = "SIZE",
        env = "PLUVIO_MEMORY",
        default_value = "256MiB"
    )]
    pub memory: Size,
    /// Where to keep the data; the same directory again brings it back [default: a temporary
    /// directory, removed at the end]
    #[arg(long, value_name = "DIR", env = "PLUVIO_DATA")]
    pub data: Option<PathBuf>,
    /// Redis port of the first server; the others follow. 0 takes any free ones
    #[arg(
        long,
        value_name = "P",
        env = "PLUVIO_REDIS_PORT",
        default_value_t = 6379
    )]
    pub redis_port: u16,
    /// Port for cluster clients of Redis of the first server; the others follow [default: any free
    /// ones]
    #[arg(long, value_name = "P", env = "PLUVIO_REDIS_CLUSTER_PORT")]
    pub redis_cluster_port: Option<u16>,
    /// Memory that all connections of Redis clients of a server may hold together [default: a
    /// quarter of --memory, at least 512MiB]
    #[arg(long, value_name = "SIZE", env = "PLUVIO_REDIS_MEMORY", value_parser = redis_memory)]
    pub redis_memory: Option<Size>,
    /// File with the password of the Redis user default; see `pluvio server` [default: none]
    #[arg(long, value_name = "FILE", env = "PLUVIO_REDIS_PASSWORD_FILE")]
    pub redis_password_file: Option<PathBuf>,
    /// Port for metrics and health of the coordinator; the servers' follow [default: any free ones]
    #[arg(long, value_name = "P", env = "PLUVIO_ADMIN_PORT")]
    pub admin_port: Option<u16>,
    /// Let the page of the cluster run commands; see `pluvio coordinator`
    #[arg(long, env = "PLUVIO_ADMIN_CONSOLE")]
    pub admin_console: bool,
    /// Port of the coordinator [default: 7700, or any when that is taken]
    #[arg(long, value_name = "P", env = "PLUVIO_COORDINATOR_PORT")]
    pub coordinator_port: Option<u16>,
    /// Coordinators; one leads, the others take over when it dies
    #[arg(long, value_name = "N", env = "PLUVIO_COORDINATORS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub coordinators: u32,
    /// Where to keep the cluster's metadata, as of `pluvio coordinator`; needs --data [default: a
    /// directory below --data]
    #[arg(long, value_name = "PLACE", env = "PLUVIO_METADATA")]
    pub metadata: Option<MetadataPlace>,
    /// Who its coordinators are there.
    #[command(flatten)]
    pub metadata_login: MetadataLogin,
    /// When a write is acknowledged, when the cluster begins
    #[arg(long, value_enum, env = "PLUVIO_DURABILITY", default_value_t = Durability::Buffered)]
    pub durability: Durability,
    /// Event loops of each server [default: this machine's processors shared out, at least 1]
    #[arg(long, value_name = "N", env = "PLUVIO_CORES", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cores: Option<u16>,
    /// After SIGTERM, how long a server's tablets may take to move, as of `pluvio server`
    #[arg(long, value_name = "TIME", env = "PLUVIO_DRAIN_TIMEOUT", default_value = "25s", value_parser = duration)]
    pub drain_timeout: Duration,
    /// Let servers talk to each other, and to clients of this machine, by rings in shared memory
    #[arg(long)]
    pub rings: bool,
    /// Start processes that died again, on the same data
    #[arg(long)]
    pub respawn: bool,
    /// Show the traces of all processes here, instead of in files below the data directory
    #[arg(long, short)]
    pub verbose: bool,
}

/// How a server starts whose data directories are not all there.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingData {
    /// Do not start
    Refuse,
    /// Start without it; it may come back at a later start
    LeaveOut,
    /// Its frames are lost for good; one that is empty is begun anew
    Forget,
}

/// `pluvio server`.
#[derive(Args, Clone, Debug)]
pub struct Server {
    /// Where to listen for clients and other servers; port 0 takes any. Others must be able to
    /// reach this host by this address. ADDR+shm:PATH adds rings in shared memory for processes of
    /// this machine, which meet at the socket PATH
    #[arg(
        long,
        value_name = "ADDR",
        env = "PLUVIO_LISTEN",
        default_value = "127.0.0.1:0",
        value_parser = own_addresses
    )]
    pub listen: String,
    /// Where to keep replicas of other servers' data. Again, or a list with commas, for several
    /// devices, of which one may fail; the server's identity is in the first one
    #[arg(
        long,
        value_name = "DIR",
        env = "PLUVIO_DATA",
        required = true,
        value_delimiter = ','
    )]
    pub data: Vec<PathBuf>,
    /// How to start if one of several data directories is missing, or has lost its files. The first
    /// one must be there
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        env = "PLUVIO_MISSING_DATA",
        default_value_t = MissingData::Refuse
    )]
    pub missing_data: MissingData,
    /// Log memory
    #[arg(
        long,
        value_name = "SIZE",
        env = "PLUVIO_MEMORY",
        default_value = "256MiB"
    )]
    pub memory: Size,
    /// Whether to ask for huge pages, for the log and for the indexes of large tables
    #[arg(long, value_enum, env = "PLUVIO_HUGE_PAGES", default_value_t = HugePages::No)]
    pub huge_pages: HugePages,
    /// Fetch all of --memory from the system after the start, and keep it
    #[arg(long, env = "PLUVIO_POPULATE", value_parser = clap::builder::BoolishValueParser::new())]
    pub populate: bool,
    /// Where to listen for Redis clients [default: nowhere]
    #[arg(long, value_name = "ADDR", env = "PLUVIO_REDIS", value_parser = redis_address)]
    pub redis: Option<String>,
    /// Where to listen for cluster clients of Redis [default: nowhere]
    #[arg(long, value_name = "ADDR", env = "PLUVIO_REDIS_CLUSTER", value_parser = listen_address)]
    pub redis_cluster: Option<String>,
    /// Where to answer HTTP for metrics and health [default: nowhere]
    #[arg(long, value_name = "ADDR", env = "PLUVIO_ADMIN", value_parser = listen_address)]
    pub admin: Option<String>,
    /// The rack or power domain of this machine: replicas go to other ones first
    #[arg(long, value_name = "NAME", env = "PLUVIO_RACK", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub rack: Option<String>,
    /// After SIGTERM, how long the tablets may take to move to other servers before this one ends.
    /// Those that are left are recovered; with 0s all are
    #[arg(long, value_name = "TIME", env = "PLUVIO_DRAIN_TIMEOUT", default_value = "25s", value_parser = duration)]
    pub drain_timeout: Duration,
    /// What it expects of the cluster's settings.
    #[command(flatten)]
    pub expects: Expects,
    /// How a write replaces an object that is there
    #[arg(long, value_enum, env = "PLUVIO_UPDATE", default_value_t = Update::Append)]
    pub update: Update,
    /// Socket at which processes of this machine get the right to map this server's memory, to read
    /// it without asking. They see all tables [default: none]
    #[arg(long, value_name = "PATH", env = "PLUVIO_MAPPED_READS")]
    pub mapped_reads: Option<PathBuf>,
    /// Other users and groups whose processes may do so, beside the user of this server: such as
    /// uid:1001,gid:50
    #[arg(
        long,
        value_name = "WHO",
        env = "PLUVIO_MAPPED_READS_ALLOW",
        value_delimiter = ',',
        value_parser = reader,
        requires = "mapped_reads"
    )]
    pub mapped_reads_allow: Vec<Reader>,
    /// Most connections of Redis clients, on all its ports together
    #[arg(
        long,
        value_name = "N",
        env = "PLUVIO_REDIS_CONNECTIONS_MAX",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub redis_connections_max: u32,
    /// Memory that all connections of Redis clients may hold together, in requests and replies.
    /// Beyond it the connection that holds most is closed [default: a quarter of --memory, at least
    /// 512MiB]
    #[arg(long, value_name = "SIZE", env = "PLUVIO_REDIS_MEMORY", value_parser = redis_memory)]
    pub redis_memory: Option<Size>,
    /// File with the password of the Redis user default, as long as the cluster keeps no such user.
    /// Or the environment variable PLUVIO_REDIS_PASSWORD holds the password [default: none]
    #[arg(long, value_name = "FILE", env = "PLUVIO_REDIS_PASSWORD_FILE")]
    pub redis_password_file: Option<PathBuf>,
    /// Whether Redis clients of other machines are refused while user default needs no password
    #[arg(
        long,
        value_name = "YES|NO",
        env = "PLUVIO_REDIS_PROTECTED_MODE",
        value_enum,
        default_value_t = Switch::Yes
    )]
    pub redis_protected_mode: Switch,
    /// Which part of the commands of Redis clients begins a trace: 0.001 is one of a thousand.
    /// Spans go to the collector of OTEL_EXPORTER_OTLP_ENDPOINT [default: as OTEL_TRACES_SAMPLER
    /// says, or 0]
    #[arg(long, value_name = "PART", env = "PLUVIO_TRACE_SAMPLE", value_parser = ratio)]
    pub trace_sample: Option<f64>,
    /// Note the times of requests, and write them into the data directory at the end: for
    /// experiments
    #[arg(long, hide = true)]
    pub stamps: bool,
    /// What both kinds of processes have.
    #[command(flatten)]
    pub process: Process,
}

/// `pluvio coordinator`.
#[derive(Args, Clone, Debug)]
pub struct Coordinator {
    /// Where to listen for servers and clients; port 0 takes any. Others must be able to reach this
    /// host by this address
    #[arg(
        long,
        value_name = "ADDR",
        env = "PLUVIO_LISTEN",
        default_value = "127.0.0.1:7700",
        value_parser = own_address
    )]
    pub listen: String,
    /// Where to keep the cluster's metadata: short for --metadata embedded:DIR
    #[arg(long, value_name = "DIR", env = "PLUVIO_DATA")]
    pub data: Option<PathBuf>,
    /// Where to keep the cluster's metadata: embedded:DIR, etcd://HOST:PORT,...[/PATH] or
    /// zookeeper://HOST:PORT,...[/PATH]. Coordinators of one cluster name the same place: one
    /// leads, the others wait
    #[arg(long, value_name = "PLACE", env = "PLUVIO_METADATA")]
    pub metadata: Option<MetadataPlace>,
    /// Who it is there.
    #[command(flatten)]
    pub metadata_login: MetadataLogin,
    /// With metadata in a directory: wait while another coordinator uses it
    #[arg(long)]
    pub standby: bool,
    /// Where to answer HTTP for metrics and health [default: nowhere]
    #[arg(long, value_name = "ADDR", env = "PLUVIO_ADMIN", value_parser = listen_address)]
    pub admin: Option<String>,
    /// Let the page at --admin run commands at the Redis ports of servers, with the rights of the
    /// user that logs in there. Only on the loopback or with TLS
    #[arg(long, env = "PLUVIO_ADMIN_CONSOLE")]
    pub admin_console: bool,
    /// How long a server may be silent before it is declared crashed
    #[arg(long, value_name = "TIME", env = "PLUVIO_DEAD_SERVER_TIMEOUT", default_value = "1s", value_parser = silence)]
    pub dead_server_timeout: Duration,
    /// The settings of a cluster that begins.
    #[command(flatten)]
    pub begins: Begins,
    /// What both kinds of processes have.
    #[command(flatten)]
    pub process: Process,
}

/// What a server expects of the cluster's settings.
#[derive(Args, Clone, Debug)]
pub struct Expects {
    /// Replicas of every write on other servers' disks, 0 for none. The server does not join a
    /// cluster that has another number. Without settings of the coordinator's, the first server
    /// begins them [default: that of the cluster; 3 when it begins]
    #[arg(long, value_name = "R", env = "PLUVIO_REPLICAS", value_parser = clap::value_parser!(u32).range(0..=REPLICAS_MAX))]
    pub replicas: Option<u32>,
    /// As --replicas: replicas without which writes wait [default: that of the cluster; 1 when it
    /// begins]
    #[arg(long, value_name = "M", env = "PLUVIO_MIN_REPLICAS")]
    pub min_replicas: Option<u32>,
    /// As --replicas: when a write is acknowledged [default: that of the cluster; buffered when it
    /// begins]
    #[arg(long, value_enum, env = "PLUVIO_DURABILITY")]
    pub durability: Option<Durability>,
}

/// The settings of a cluster that begins. Later, `pluvio settings set` changes them.
#[derive(Args, Clone, Debug)]
pub struct Begins {
    /// Replicas of every write on other servers' disks, when the cluster begins; 0 keeps none. Then
    /// `pluvio settings set` changes it [default: that of the first server]
    #[arg(long, value_name = "R", env = "PLUVIO_REPLICAS", value_parser = clap::value_parser!(u32).range(0..=REPLICAS_MAX))]
    pub replicas: Option<u32>,
    /// As --replicas: replicas without which writes wait [default: that of the first server]
    #[arg(long, value_name = "M", env = "PLUVIO_MIN_REPLICAS")]
    pub min_replicas: Option<u32>,
    /// As --replicas: when a write is acknowledged [default: that of the first server]
    #[arg(long, value_enum, env = "PLUVIO_DURABILITY")]
    pub durability: Option<Durability>,
}

impl Begins {
    /// As the coordinator takes it.
    pub fn settings(&self) -> SettingsWish {
        SettingsWish {
            replicas: self.replicas,
            min_replicas: self.min_replicas,
            synced: self.durability.map(|d| d == Durability::Synced),
            strict_racks: None,
        }
    }
}

/// What servers and coordinators have in common.
#[derive(Args, Clone, Debug)]
pub struct Process {
    /// Event loops [default: one for each processor; the coordinator needs one]
    #[arg(long, value_name = "N", env = "PLUVIO_CORES", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cores: Option<u16>,
    /// Bind each event loop to a processor; for machines that do nothing else
    #[arg(long)]
    pub pin: bool,
    /// How long an event loop looks for more work before it sleeps. 50us about halves latency and
    /// takes a processor for each event loop
    #[arg(long, value_name = "TIME", env = "PLUVIO_SPIN", default_value = "0s", value_parser = duration)]
    pub spin: Duration,
    /// Memory that all connections of the RPC port may hold together, in half requests and replies
    /// that are not taken. Near it connections wait for each other, and those that stand still are
    /// closed [default: a quarter of --memory, 512MiB to 1GiB]
    #[arg(long, value_name = "SIZE", env = "PLUVIO_RPC_MEMORY", value_parser = rpc_memory)]
    pub rpc_memory: Option<Size>,
    /// The process to die with
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<u32>,
}

/// Names an object: its table and its key.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// The table
    pub table: String,
    /// The key; any bytes
    pub key: OsString,
    /// KEY is given in hexadecimal digits
    #[arg(long)]
    pub key_hex: bool,
}

/// How long a server may be silent: not shorter than it takes to ask it a few times.
fn silence(text: &str) -> Result<Duration, String> {
    let silence = duration(text)?;
    let shortest = CoordinatorOptions::DEAD_SERVER_TIMEOUT_MIN;
    if silence < shortest {
        return Err(format!(
            "a server that is well cannot answer several times in that; give {shortest:?} or more"
        ));
    }
    Ok(silence)
}

/// What the connections of Redis clients may hold: some of the largest values at least.
fn redis_memory(text: &str) -> Result<Size, String> {
    let size: Size = text
        .parse()
        .map_err(|error: ParseSizeError| error.to_string())?;
    let least = ServerOptions::REDIS_MEMORY_MIN;
    if size < least {
        return Err(format!(
            "some of the largest values must fit; give {least} or more"
        ));
    }
    Ok(size)
}

/// Parses the memory of the connections of the RPC port: some of the largest frames at least.
fn rpc_memory(text: &str) -> Result<Size, String> {
    let size: Size = text
        .parse()
        .map_err(|error: ParseSizeError| error.to_string())?;
    let least = RPC_MEMORY_MIN;
    if size < least {
        return Err(format!(
            "some of the largest messages must fit; give {least} or more"
        ));
    }
    Ok(size)
}

/// The least memory for connections of the RPC port: sixteen of the largest frames, and some.
const RPC_MEMORY_MIN: Size = Size::mib(320);

/// An address to listen at that the whole cluster is told, so it must be one. Names are looked up
/// when they are used.
fn own_address(text: &str) -> Result<String, String> {
    let text = listen_address(text)?;
    let at = text.parse::<SocketAddr>();
    if at.is_ok_and(|at| at.ip().to_canonical().is_unspecified()) {
        return Err(
            "the cluster is told this address, and from another machine it leads nowhere: give the address by which the others reach this machine"
                .into(),
        );
    }
    Ok(text)
}

/// Addresses of one process, joined by `+`: one of TCP, and perhaps others; or one of datagrams
/// alone.
fn own_addresses(text: &str) -> Result<String, String> {
    let address = Address::from(text.trim());
    let mut whole = match address.first().transport {
        Transport::Tcp => Address::from(&*own_address(address.first().place)?),
        // Alone: callers would take none of those behind it but TCP, which comes first then.
        Transport::Datagrams if address.endpoints().nth(1).is_none() => {
            let place = own_address(address.first().place)?;
            return Ok(format!("{}:{place}", Transport::Datagrams.scheme()));
        }
        Transport::Ring | Transport::Datagrams | Transport::Fabric => {
            return Err("the first address must be one of TCP: host:port".into());
        }
    };
    for endpoint in address.endpoints().skip(1) {
        match endpoint.transport {
            Transport::Ring => {}
            // Its place is that of TCP, behind the name of a provider.
            Transport::Fabric => {
                let place = endpoint.place.split_once(':').map(|(_, place)| place);
                drop(own_address(place.unwrap_or_default())?);
            }
            Transport::Tcp | Transport::Datagrams => drop(own_address(endpoint.place)?),
        }
        whole = whole.and(&Address::from(&*endpoint.to_string()));
    }
    Ok(whole.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_silence_in_which_nobody_can_answer_is_refused() {
        assert_eq!(silence("40ms"), Ok(Duration::from_millis(40)));
        assert_eq!(silence("1s"), Ok(Duration::from_secs(1)));
        for text in ["0s", "0", "39ms", "1us"] {
            let refused = silence(text).unwrap_err();
            assert!(refused.contains("40ms or more"), "{text}: {refused}");
        }
    }

    #[test]
    fn a_server_listens_by_several_transports() {
        for (text, expected) in [
            ("host:7700", "host:7700"),
            ("tcp:host:7700", "host:7700"),
            ("host:7700+shm:/run/a", "host:7700+shm:/run/a"),
            ("host:1+udp:host:2+shm:/a", "host:1+udp:host:2+shm:/a"),
            ("udp:host:1", "udp:host:1"),
        ] {
            assert_eq!(own_addresses(text).as_deref(), Ok(expected));
        }
        for text in [
            "",
            "shm:/a",
            "udp:host:1+shm:/a",
            "udp:0.0.0.0:1",
            "host:1+udp:0.0.0.0:1",
            "host",
        ] {
            assert!(own_addresses(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_the_cluster_is_told_is_one_address() {
        for text in ["127.0.0.1:0", "10.0.0.1:7700", "[::1]:7700", "host:7700"] {
            assert_eq!(own_address(text), Ok(text.to_owned()));
        }
        for text in ["0.0.0.0:7700", "[::]:0", "[::ffff:0.0.0.0]:7700"] {
            assert!(listen_address(text).is_ok(), "{text}");
            let refused = own_address(text).unwrap_err();
            assert!(refused.contains("the others reach"), "{refused}");
        }
    }
}
