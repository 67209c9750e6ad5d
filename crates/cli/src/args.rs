//! What can be said on the command line. The texts of `--help` stand here.
//!
//! Options that a configuration file may set too are found by their long names; see `config`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use pluvio_coordinator::CoordinatorOptions;
use pluvio_metadata::Place as MetadataPlace;
use pluvio_units::Size;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cmd::{
    bench, demo, export, import, objects, scan, sim, simulate, status, table, torture,
};

/// Where the coordinator of a cluster on this machine listens, unless it is told otherwise.
pub const COORDINATOR_PORT: u16 = 7700;

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

/// Options of all commands.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of all commands")]
pub struct Global {
    /// Where the cluster's coordinator listens; several with commas. One that runs is enough to
    /// find the one that leads
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        env = "PLUVIO_COORDINATOR",
        default_value = "127.0.0.1:7700",
        value_parser = addresses
    )]
    pub coordinator: String,
    /// How long an operation may take, all retries included
    #[arg(long, global = true, value_name = "TIME", env = "PLUVIO_TIMEOUT", default_value = "10s", value_parser = time_limit)]
    pub timeout: Duration,
    /// Report as JSON on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// A configuration file (TOML); the environment and flags win over it
    #[arg(long, global = true, value_name = "FILE", env = "PLUVIO_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print the options in force, as a configuration file, and do nothing
    #[arg(long, global = true)]
    pub print_config: bool,
    /// What to trace on standard error: off, error, warn, info, debug, trace, or a filter such as
    /// pluvio_net=debug [default: info for server and coordinator, warn for others]
    #[arg(long, global = true, value_name = "LEVEL", env = "PLUVIO_LOG")]
    pub log: Option<String>,
    /// How to write traces
    #[arg(long, global = true, value_enum, env = "PLUVIO_LOG_FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// How traces are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

impl LogFormat {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a whole cluster on this machine, in the foreground
    Dev(Dev),
    /// Show what Pluvio is for: real data, a killed server, its recovery
    Demo(demo::Demo),
    /// Run one server
    Server(Server),
    /// Run the coordinator of a cluster
    Coordinator(Coordinator),
    /// Show servers, tables, memory, replication, recoveries and migrations
    Status(status::Status),
    /// Create, drop, list and split tables, and move their tablets
    Table(table::Table),
    /// Read one object
    Get(objects::Get),
    /// Write one object
    Put(objects::Put),
    /// Delete one object
    Delete(objects::Delete),
    /// Add to the number that an object holds
    Incr(objects::Incr),
    /// List the objects of a table
    Scan(scan::Scan),
    /// Write the records of a file into a table
    Import(import::Import),
    /// Write the objects of a table into a file
    Export(export::Export),
    /// Measure speed
    Bench(bench::Bench),
    /// Run simulated clusters with faults, from a seed
    Sim(sim::Sim),
    /// Simulate one mechanism by itself
    Simulate(simulate::Simulate),
    /// Torment a cluster of real processes, and check that nothing is lost, doubled or out of order
    Torture(torture::Torture),
}

const NO_ADDRESS: &str = "not an address: write host:port, for example 127.0.0.1:7700";
/// Most servers of a cluster on one machine.
pub const SERVERS_MAX: u32 = 64;
/// Most replicas of a write: far more than anybody wants to pay for.
const REPLICAS_MAX: i64 = 16;

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Durability {
    /// When all replicas are with the operating systems of their servers: survives the death of
    /// processes, and of all machines but one that have a replica
    Buffered,
    /// When all replicas are on their devices: survives a power loss too
    Synced,
}

impl Durability {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Synced => "synced",
        }
    }
}

/// Whether memory is to be of huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HugePages {
    /// Pages of 4 KiB
    No,
    /// Where the system has them: fewer TLB misses; memory is used in steps of 2 MiB
    IfPossible,
}

/// What keeps an overwritten object dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Tombstones {
    /// A tombstone for every overwrite, as for every delete
    Every,
    /// The new object, which says where the dead ones lie; only deletes write tombstones
    Deletes,
}

/// `pluvio dev`.
#[derive(Args, Clone, Debug)]
pub struct Dev {
    /// Number of servers; with --data of an earlier run as many as there were [default: 4]
    #[arg(long, value_name = "N", env = "PLUVIO_SERVERS", value_parser = clap::value_parser!(u32).range(1..=i64::from(SERVERS_MAX)))]
    pub servers: Option<u32>,
    /// Replicas of every write on other servers' disks; 0 keeps none
    #[arg(long, value_name = "R", env = "PLUVIO_REPLICAS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=REPLICAS_MAX))]
    pub replicas: u32,
    /// Replicas without which writes wait [default: one less than --replicas, at least 1]
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
    /// Port for metrics and health of the coordinator; the servers' follow [default: any free ones]
    #[arg(long, value_name = "P", env = "PLUVIO_ADMIN_PORT")]
    pub admin_port: Option<u16>,
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
    /// When a write is acknowledged
    #[arg(long, value_enum, env = "PLUVIO_DURABILITY", default_value_t = Durability::Buffered)]
    pub durability: Durability,
    /// Event loops of each server [default: this machine's processors shared out, at least 1]
    #[arg(long, value_name = "N", env = "PLUVIO_CORES", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cores: Option<u16>,
    /// Start processes that died again, on the same data
    #[arg(long)]
    pub respawn: bool,
    /// Show the traces of all processes here, instead of in files below the data directory
    #[arg(long, short)]
    pub verbose: bool,
}

/// `pluvio server`.
#[derive(Args, Clone, Debug)]
pub struct Server {
    /// Where to listen for clients and other servers; port 0 takes any. Others must be able to
    /// reach this host by this address
    #[arg(
        long,
        value_name = "ADDR",
        env = "PLUVIO_LISTEN",
        default_value = "127.0.0.1:0",
        value_parser = own_address
    )]
    pub listen: String,
    /// Where to keep replicas of other servers' data
    #[arg(long, value_name = "DIR", env = "PLUVIO_DATA")]
    pub data: PathBuf,
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
    /// Where to listen for Redis clients [default: nowhere]
    #[arg(long, value_name = "ADDR", env = "PLUVIO_REDIS", value_parser = listen_address)]
    pub redis: Option<String>,
    /// Where to answer HTTP for metrics and health [default: nowhere]
    #[arg(long, value_name = "ADDR", env = "PLUVIO_ADMIN", value_parser = listen_address)]
    pub admin: Option<String>,
    /// The rack or power domain of this machine: replicas go to other ones first
    #[arg(long, value_name = "NAME", env = "PLUVIO_RACK", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub rack: Option<String>,
    /// Replicas of every write on other servers' disks; 0 keeps none
    #[arg(long, value_name = "R", env = "PLUVIO_REPLICAS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=REPLICAS_MAX))]
    pub replicas: u32,
    /// Replicas without which writes wait [default: one less than --replicas, at least 1]
    #[arg(long, value_name = "M", env = "PLUVIO_MIN_REPLICAS")]
    pub min_replicas: Option<u32>,
    /// When a write is acknowledged
    #[arg(long, value_enum, env = "PLUVIO_DURABILITY", default_value_t = Durability::Buffered)]
    pub durability: Durability,
    /// What keeps an overwritten object dead when the log is recovered
    #[arg(long, value_enum, env = "PLUVIO_TOMBSTONES", default_value_t = Tombstones::Deletes)]
    pub tombstones: Tombstones,
    /// Most connections of Redis clients
    #[arg(
        long,
        value_name = "N",
        env = "PLUVIO_REDIS_CONNECTIONS_MAX",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub redis_connections_max: u32,
    /// What both kinds of processes have.
    #[command(flatten)]
    pub process: Process,
}

/// The environment variable with the password of `--metadata-user`, unless that is in a file.
pub const METADATA_PASSWORD: &str = "PLUVIO_METADATA_PASSWORD";

/// Who coordinators are for etcd or ZooKeeper. Passwords are no arguments: everybody on a machine
/// sees those.
#[derive(Args, Clone, Debug, Default)]
pub struct MetadataLogin {
    /// The user that etcd or ZooKeeper knows coordinators by, with the password of
    /// --metadata-password-file
    #[arg(long, value_name = "NAME", env = "PLUVIO_METADATA_USER")]
    pub metadata_user: Option<String>,
    /// The file with the password of --metadata-user [default: what the environment variable
    /// PLUVIO_METADATA_PASSWORD has]
    #[arg(long, value_name = "FILE", env = "PLUVIO_METADATA_PASSWORD_FILE")]
    pub metadata_password_file: Option<PathBuf>,
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
    /// How long a server may be silent before it is declared crashed
    #[arg(long, value_name = "TIME", env = "PLUVIO_DEAD_SERVER_TIMEOUT", default_value = "1s", value_parser = silence)]
    pub dead_server_timeout: Duration,
    /// What both kinds of processes have.
    #[command(flatten)]
    pub process: Process,
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

/// A duration as people write it: `500ms`, `10s`, `2m`; a bare number means seconds.
///
/// # Errors
/// Anything else.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let seconds = number.parse::<f64>().unwrap_or(f64::NAN) * factor;
    // A year is more than anything here waits for.
    if !(0.0..=31_536_000.0).contains(&seconds) {
        return Err("not a time: give a number with us, ms, s, m or h, for example 500ms".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A time that something can be done in.
fn time_limit(text: &str) -> Result<Duration, String> {
    let limit = duration(text)?;
    if limit.is_zero() {
        return Err("nothing can be done in no time; give more than 0".into());
    }
    Ok(limit)
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

/// One address or several with commas.
fn addresses(text: &str) -> Result<String, String> {
    let all: Result<Vec<String>, String> = text.split(',').map(address).collect();
    Ok(all?.join(","))
}

/// An address as it has to look; whether the host exists is found out when it is used.
fn address(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("it is empty; give the address of the cluster's coordinator".into());
    }
    match port_of(text) {
        Some(1..) => Ok(text.to_owned()),
        Some(0) | None => Err(NO_ADDRESS.into()),
    }
}

/// An address to listen at: port 0 is any free one.
fn listen_address(text: &str) -> Result<String, String> {
    let text = text.trim();
    match port_of(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(NO_ADDRESS.into()),
    }
}

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

/// What follows the colon, when something is before it.
fn port_of(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse().ok().filter(|_| !host.is_empty())
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
    fn addresses_are_host_and_port() {
        for text in ["127.0.0.1:7000", "[::1]:7000", "host:65535"] {
            assert_eq!(address(text), Ok(text.to_owned()));
            assert_eq!(listen_address(text), Ok(text.to_owned()));
        }
        assert!(address("host:0").is_err());
        assert!(listen_address("host:0").is_ok());
        for text in ["", "host", ":7000", "host:", "host:65536", "host:-1"] {
            assert!(address(text).is_err(), "{text}");
            assert!(listen_address(text).is_err(), "{text}");
        }
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

    #[test]
    fn times_are_read_or_refused() {
        for (text, time) in [
            ("500ms", Duration::from_millis(500)),
            ("1.5s", Duration::from_millis(1500)),
            ("2m", Duration::from_secs(120)),
            ("7", Duration::from_secs(7)),
            ("50us", Duration::from_micros(50)),
            ("0", Duration::ZERO),
        ] {
            assert_eq!(duration(text), Ok(time), "{text}");
        }
        for text in [
            "",
            "ms",
            "-1s",
            "1 fortnight",
            "1e9h",
            "nan",
            "inf",
            "9999999999h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
