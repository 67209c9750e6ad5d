//! `pluvio bench trace|postmark`: their arguments.

use super::arguments::{Peers, maps};
use super::{conduct, failure};
use crate::experiment::Files;
use clap::Args;
use pluvio_bench::contestant::Kind;
use pluvio_bench::experiment::Row;
use pluvio_bench::suite::{self, StreamOptions, VALUE_MAX_IN_PLACE, Volume};
use pluvio_bench::workload::{Plan, Postmark as PostmarkPlan, ProfilePlan, TracePlan};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::say;
use pluvio_units::{Size, VALUE_MAX};
use std::process::ExitCode;

/// Streams end when they are through: of the length of a round nothing depends.
const STREAM_SECONDS: f64 = 1.0;

/// A stream with what it needs.
struct Load {
    parameters: Row,
    plan: Plan,
    /// Whether each thread has objects of its own: then the volume is that of one thread.
    own_objects: bool,
    volume: Volume,
    /// Most bytes of a value.
    largest: usize,
    /// Whether the report tells what the stream consists of.
    census: bool,
}

/// What both have.
#[derive(Args, Clone, Debug)]
struct Common {
    /// Threads; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2])]
    threads: Vec<usize>,
    #[command(flatten)]
    peers: Peers,
    /// Live objects in percent of our log, where there are most; several give a store of ours each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [70])]
    utilization: Vec<u8>,
    /// Bytes of a segment of our log, 2.5 to 8 MiB in steps of 64 KiB. Several give a store of ours
    /// each [default: a 256th of the memory, within these limits]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    segment: Vec<Size>,
    /// Cleaner threads of our store
    #[arg(long, value_name = "N", default_value_t = 1)]
    cleaner_threads: u16,
    /// Fetch our store's memory from the system before the load begins
    #[arg(long)]
    populate: bool,
    /// Rounds, taken in turn by all contestants, each in new processes
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Seed of keys and sizes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// `pluvio bench trace`.
#[derive(Args, Clone, Debug)]
pub struct Trace {
    /// The trace: comma-separated values whose first line names the columns time, operation, key
    /// and size. Block traces with op, size and lbn are understood too. Times are ignored: it is
    /// replayed as fast as it goes
    #[arg(value_name = "FILE", required_unless_present = "profile")]
    file: Option<String>,
    /// Instead of a file: a load with the sizes, the mix and the skew of production cluster N, as
    /// twitter:N
    #[arg(long, value_name = "NAME", conflicts_with = "file", value_parser = profile)]
    profile: Option<u32>,
    /// How often the file is replayed, one after the other
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeat: u32,
    /// With --profile: different keys of each thread
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    keys: u64,
    /// With --profile: operations of each thread
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    operations: u64,
    #[command(flatten)]
    common: Common,
}

/// `pluvio bench postmark`.
#[derive(Args, Clone, Debug)]
pub struct Postmark {
    /// Files of each thread at the beginning
    #[arg(long, value_name = "N", default_value_t = 60_000)]
    keys: u64,
    /// Transactions of each thread
    #[arg(long, value_name = "N", default_value_t = 960_000)]
    transactions: u64,
    /// Least size of a new file
    #[arg(long, value_name = "BYTES", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    size_min: u32,
    /// Largest size of a new file
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    size_max: u32,
    /// Sub-directories of each thread, among which new files are dealt out: a file's key is its
    /// path; 0 for none
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    subdirectories: u64,
    #[command(flatten)]
    common: Common,
}

fn profile(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("twitter:").and_then(|n| n.parse().ok());
    number.ok_or_else(|| "give twitter:N, with N from 1 to 54".into())
}

/// Runs `pluvio bench trace`.
pub fn trace(global: &Global, trace: &Trace) -> Result<ExitCode, Failure> {
    let load = match (&trace.file, trace.profile) {
        (_, Some(cluster)) => {
            let plan = ProfilePlan::new(cluster, trace.keys, trace.operations).map_err(failure)?;
            let parameters = Row::new()
                .with("profile", format!("twitter:{cluster}"))
                .with("keys", trace.keys)
                .with("operations", trace.operations);
            let largest = plan.bytes_max() as usize;
            Load {
                parameters,
                own_objects: true,
                volume: Volume {
                    objects: trace.keys,
                    bytes: trace.keys * u64::from(plan.bytes_mean()),
                    // A place has the room of the largest value that its key had.
                    bytes_in_place: trace.keys * largest as u64,
                },
                largest,
                census: false,
                plan: Plan::Profile(plan),
            }
        }
        (Some(file), None) => {
            let plan = TracePlan {
                path: file.clone(),
                repeat: trace.repeat,
            };
            let facts = plan.facts().map_err(failure)?;
            let name = file.rsplit('/').next().unwrap_or(file);
            let parameters = Row::new()
                .with("file", name)
                .with("repeat", trace.repeat)
                .with("keys", facts.objects)
                .with("operations", facts.operations)
                .with("sizes_cut", facts.cut);
            if facts.cut > 0 {
                let most = Size(VALUE_MAX as u64);
                say(format_args!(
                    "{} operations have more than {most}, the most a value can have: they are cut to it",
                    facts.cut
                ));
            }
            Load {
                parameters,
                plan: Plan::Trace(plan),
                own_objects: false,
                volume: Volume {
                    objects: facts.objects,
                    bytes: facts.bytes,
                    bytes_in_place: facts.bytes,
                },
                largest: facts.largest as usize,
                census: false,
            }
        }
        (None, None) => return Err(Failure::usage("give a trace file or --profile")),
    };
    replay(global, &trace.common, "trace", load)
}

/// Runs `pluvio bench postmark`.
pub fn postmark(global: &Global, postmark: &Postmark) -> Result<ExitCode, Failure> {
    if postmark.size_min > postmark.size_max || postmark.keys == 0 {
        return Err(Failure::usage(
            "--size-min must be at most --size-max, and --keys at least 1",
        ));
    }
    let plan = PostmarkPlan {
        files: postmark.keys,
        transactions: postmark.transactions,
        sizes: (postmark.size_min, postmark.size_max),
        subdirectories: postmark.subdirectories,
    };
    plan.check().map_err(failure)?;
    let parameters = Row::new()
        .with("keys", plan.files)
        .with("transactions", plan.transactions)
        .with("size_min", plan.sizes.0)
        .with("size_max", plan.sizes.1)
        .with("subdirectories", plan.subdirectories);
    // Creations and deletions are a random walk: it rarely leaves the beginning by more than four
    // of its standard deviations. Appends let files grow by a tenth to a half of their size.
    let walk = 4 * (postmark.transactions as f64).sqrt() as u64;
    let objects = postmark.keys + walk;
    let mean = u64::from(plan.sizes.0 + plan.sizes.1) / 2;
    let appended = postmark.transactions / 2 * u64::from(plan.sizes.0) / 2;
    // Files die while they grow; half of what is appended is with files that live.
    let bytes = objects * mean + appended / 2;
    let load = Load {
        parameters,
        own_objects: true,
        volume: Volume {
            objects,
            bytes,
            // Files only grow.
            bytes_in_place: bytes,
        },
        largest: plan.largest() as usize,
        census: true,
        plan: Plan::Postmark(plan),
    };
    replay(global, &postmark.common, "postmark", load)
}

fn replay(global: &Global, common: &Common, name: &str, load: Load) -> Result<ExitCode, Failure> {
    let ours: &[Kind] = match load.largest <= VALUE_MAX_IN_PLACE {
        true => &[Kind::Pluvio, Kind::PluvioInPlace],
        false => &[Kind::Pluvio],
    };
    let options = StreamOptions {
        name: name.to_owned(),
        parameters: load.parameters,
        census: load.census,
        plan: load.plan,
        contenders: common.peers.contenders(ours, maps),
        threads: common.threads.clone(),
        own_objects: load.own_objects,
        volume: load.volume,
        utilizations: common.utilization.clone(),
        segments: common.segment.iter().map(|size| size.bytes()).collect(),
        cleaner_threads: common.cleaner_threads,
        populate: common.populate,
        rounds: suite::Rounds {
            seconds: STREAM_SECONDS,
            rounds: common.rounds,
            seed: common.seed,
        },
    };
    conduct(global, &common.files, |program, watch| {
        suite::stream(program, &options, watch)
    })
}
