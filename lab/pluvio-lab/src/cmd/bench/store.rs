//! `pluvio bench store|cleaner|latency-cdf|breakdown|fragmentation|copy|placement`: their
//! arguments.

use super::arguments::{Mixes, Peers, Rounds, Timed, allocators_and_servers, maps};
use super::conduct;
use crate::experiment::Files;
use clap::Args;
use pluvio_bench::contestant::{Disk, Kind, Tombstones};
use pluvio_bench::suite::{
    self, BreakdownOptions, CleanerOptions, CopyOptions, FragmentationOptions, LatencyOptions,
    Part, PlacementOptions, StoreOptions, Update,
};
use pluvio_bench::workload::Distribution;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_units::Size;
use std::process::ExitCode;

/// `pluvio bench store`.
#[derive(Args, Clone, Debug)]
pub struct Store {
    /// Threads; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Bytes of a value; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [100])]
    value_size: Vec<usize>,
    #[command(flatten)]
    mixes: Mixes,
    /// Reads asked for together; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 16])]
    batch: Vec<usize>,
    /// Make puts in batches as large, too; others than our store put those of a batch one by one
    #[arg(long)]
    batch_puts: bool,
    #[command(flatten)]
    peers: Peers,
    /// Keys
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    keys: u64,
    /// Live objects in percent of our log; several give a store of ours each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [50])]
    utilization: Vec<u8>,
    /// Heads of our store [default: one for each processor]
    #[arg(long, value_name = "N")]
    heads: Option<u16>,
    #[command(flatten)]
    timed: Timed,
}

/// Runs `pluvio bench store`.
pub fn store(global: &Global, store: &Store) -> Result<ExitCode, Failure> {
    let ours = [Kind::Pluvio, Kind::PluvioInPlace];
    let options = StoreOptions {
        contenders: store.peers.contenders(&ours, maps),
        threads: store.threads.clone(),
        value_sizes: store.value_size.clone(),
        get_percents: store.mixes.get_percent.clone(),
        distributions: store.mixes.distribution.clone(),
        batches: store.batch.clone(),
        batch_puts: store.batch_puts,
        objects: store.keys,
        utilizations: store.utilization.clone(),
        rounds: store.timed.rounds.into(),
        cleaner_threads: store.timed.cleaner_threads,
        heads: store.heads,
    };
    conduct(global, &store.timed.files, |program, watch| {
        suite::store(program, &options, watch)
    })
}

/// `pluvio bench cleaner`.
#[derive(Args, Clone, Debug)]
pub struct Cleaner {
    /// Memory of each store. Reserves take a larger part of less than 2 GiB, which shows at 80 and
    /// 90 %. [default: 2GiB, or half of this machine's memory over the stores of a panel]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Live objects in percent of the log, headers included; up to 98, as far as the store's
    /// reserves leave it
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [30, 50, 70, 80, 90])]
    utilization: Vec<u8>,
    /// Bytes of a value; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [100, 1000, 10_000])]
    value_size: Vec<usize>,
    /// Which keys: uniform, hot-cold, zipfian, zipfian:SKEW, exponential
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["uniform", "hot-cold"])]
    distribution: Vec<Distribution>,
    /// How memory is collected: two (compaction and combined cleaning), one (combined only). They
    /// differ only with --disk-bandwidth
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = level, default_values = ["two"])]
    level: Vec<bool>,
    /// How overwritten objects are kept dead on the disk. deletes: the new object says where the
    /// old one lies, and only deletes write tombstones. every: a tombstone for every overwrite,
    /// which needs --disk-bandwidth. Several give a store each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["deletes"])]
    tombstones: Vec<Tombstones>,
    /// The log's bandwidth to a simulated disk, in megabytes a second: none (no disk), unlimited,
    /// or numbers
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["none"])]
    disk_bandwidth: Vec<Disk>,
    /// Threads that write
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// How long a store may warm up, in seconds: until its memory was written twice, if that is
    /// sooner
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    warmup_seconds: f64,
    #[command(flatten)]
    timed: Timed,
}

fn level(text: &str) -> Result<bool, String> {
    match text {
        "two" | "two-level" => Ok(true),
        "one" | "one-level" => Ok(false),
        _ => Err("give one or two".into()),
    }
}

/// Runs `pluvio bench cleaner`.
pub fn cleaner(global: &Global, cleaner: &Cleaner) -> Result<ExitCode, Failure> {
    let stores = cleaner.utilization.len() * cleaner.level.len() * cleaner.tombstones.len();
    let usual = || CleanerOptions::usual_memory(stores);
    let options = CleanerOptions {
        memory: cleaner.memory.map_or_else(usual, |size| size.bytes()),
        utilizations: cleaner.utilization.clone(),
        value_sizes: cleaner.value_size.clone(),
        distributions: cleaner.distribution.clone(),
        two_level: cleaner.level.clone(),
        tombstones: cleaner.tombstones.clone(),
        disks: cleaner.disk_bandwidth.clone(),
        threads: cleaner.threads,
        warmup_seconds: cleaner.warmup_seconds,
        cleaner_threads: cleaner.timed.cleaner_threads,
        rounds: cleaner.timed.rounds.into(),
    };
    conduct(global, &cleaner.timed.files, |program, watch| {
        suite::cleaner(program, &options, watch)
    })
}

/// `pluvio bench latency-cdf`.
#[derive(Args, Clone, Debug)]
pub struct LatencyCdf {
    /// Memory of the store that is cleaned
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: Size,
    /// Its live objects in percent of the log
    #[arg(long, value_name = "PERCENT", default_value_t = 90)]
    utilization: u8,
    /// Bytes of a value; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [100])]
    value_size: Vec<usize>,
    /// How the store that is cleaned writes a key that is there: append, in-place; several give a
    /// store each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["append"])]
    update: Vec<Update>,
    /// Measure inserts beside updates: writes of keys that were deleted long before. Deletions are
    /// not in the latencies
    #[arg(long)]
    insert: bool,
    /// Threads that read and write
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// How many of a hundred operations read; reads and writes are measured alike
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    get_percent: u8,
    /// Leave out the store without a cleaner, which needs memory for all that is written: for long
    /// runs
    #[arg(long)]
    cleaner_only: bool,
    #[command(flatten)]
    timed: Timed,
}

/// Runs `pluvio bench latency-cdf`.
pub fn latency_cdf(global: &Global, latency: &LatencyCdf) -> Result<ExitCode, Failure> {
    let options = LatencyOptions {
        memory: latency.memory.bytes(),
        utilization: latency.utilization,
        value_sizes: latency.value_size.clone(),
        updates: latency.update.clone(),
        inserts: latency.insert,
        threads: latency.threads,
        get_percent: latency.get_percent,
        cleaner_threads: latency.timed.cleaner_threads,
        baseline: !latency.cleaner_only,
        rounds: latency.timed.rounds.into(),
    };
    conduct(global, &latency.timed.files, |program, watch| {
        suite::latency(program, &options, watch)
    })
}

/// `pluvio bench breakdown`.
#[derive(Args, Clone, Debug)]
pub struct Breakdown {
    /// Keys
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a value; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [100])]
    value_size: Vec<usize>,
    #[command(flatten)]
    mixes: Mixes,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// The parts to compare with the usual store: epochs, heads, cleaner-threads, segment, copy,
    /// update [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    part: Vec<Part>,
    /// Numbers of heads to compare
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 4])]
    heads: Vec<u16>,
    /// Numbers of cleaner threads to compare
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2, 4])]
    cleaner_threads: Vec<u16>,
    /// Sizes of segments to compare
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["4MiB", "8MiB"])]
    segment: Vec<Size>,
    /// Live objects in percent of the log; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [70])]
    utilization: Vec<u8>,
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    files: Files,
}

/// Runs `pluvio bench breakdown`.
pub fn breakdown(global: &Global, breakdown: &Breakdown) -> Result<ExitCode, Failure> {
    let options = BreakdownOptions {
        objects: breakdown.keys,
        value_sizes: breakdown.value_size.clone(),
        get_percents: breakdown.mixes.get_percent.clone(),
        distributions: breakdown.mixes.distribution.clone(),
        threads: breakdown.threads,
        parts: match breakdown.part.is_empty() {
            true => Part::ALL.to_vec(),
            false => breakdown.part.clone(),
        },
        heads: breakdown.heads.clone(),
        cleaner_threads: breakdown.cleaner_threads.clone(),
        segments: breakdown.segment.iter().map(|size| size.bytes()).collect(),
        utilizations: breakdown.utilization.clone(),
        rounds: breakdown.rounds.into(),
    };
    conduct(global, &breakdown.files, |program, watch| {
        suite::breakdown(program, &options, watch)
    })
}

/// `pluvio bench fragmentation`.
#[derive(Args, Clone, Debug)]
pub struct Fragmentation {
    /// Workloads: W1 to W8, P1 to P6 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workload: Vec<String>,
    /// Live bytes of values
    #[arg(long, value_name = "SIZE", default_value = "96MiB")]
    live: Size,
    #[command(flatten)]
    peers: Peers,
    /// Live objects in percent of our log, where a workload has most of them, with the space that
    /// must stay unused between them. The reserves of a small memory limit it
    #[arg(long, value_name = "PERCENT", default_value_t = 90)]
    utilization: u8,
    /// Cleaner threads of our store
    #[arg(long, value_name = "N", default_value_t = 1)]
    cleaner_threads: u16,
    /// Run our store for its speed too, once more with memory for everything, and compare them
    #[arg(long)]
    performance: bool,
    /// Rounds, taken in turn by all contestants
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// Seed of sizes and deletions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// Runs `pluvio bench fragmentation`.
pub fn fragmentation(global: &Global, all: &Fragmentation) -> Result<ExitCode, Failure> {
    let options = FragmentationOptions {
        contenders: all
            .peers
            .contenders(&[Kind::Pluvio], allocators_and_servers),
        workloads: all.workload.clone(),
        live: all.live.bytes(),
        utilization: all.utilization,
        cleaner_threads: all.cleaner_threads,
        performance: all.performance,
        rounds: all.rounds,
        seed: all.seed,
    };
    conduct(global, &all.files, |program, watch| {
        suite::fragmentation(program, &options, watch)
    })
}

/// `pluvio bench copy`.
#[derive(Args, Clone, Debug)]
pub struct Copy {
    /// Bytes of a copy; several give rows each
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_values_t = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536, 262_144, 1_048_576]
    )]
    size: Vec<usize>,
    /// Memory that is copied from; as much is copied to. A small one shows the caches
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: Size,
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    files: Files,
}

/// Runs `pluvio bench copy`.
pub fn copy(global: &Global, copy: &Copy) -> Result<ExitCode, Failure> {
    let options = CopyOptions {
        sizes: copy.size.clone(),
        memory: copy.memory.bytes(),
        rounds: copy.rounds.into(),
    };
    conduct(global, &copy.files, |_, watch| suite::copy(&options, watch))
}

/// `pluvio bench placement`.
#[derive(Args, Clone, Debug)]
pub struct Placement {
    /// Threads, dealt to the memory nodes in turn; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    threads: Vec<usize>,
    /// Memory of the table; it is there twice
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    memory: Size,
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    files: Files,
}

/// Runs `pluvio bench placement`.
pub fn placement(global: &Global, placement: &Placement) -> Result<ExitCode, Failure> {
    let options = PlacementOptions {
        threads: placement.threads.clone(),
        memory: placement.memory.bytes(),
        rounds: placement.rounds.into(),
    };
    conduct(global, &placement.files, |_, watch| {
        suite::placement(&options, watch)
    })
}
