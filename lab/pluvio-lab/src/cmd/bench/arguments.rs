//! Arguments that several experiments have.

use crate::experiment::Files;
use clap::Args;
use pluvio_bench::contestant::{Allocator, Contender, Kind, is_installed};
use pluvio_bench::suite;
use pluvio_bench::workload::Distribution;

/// How long, and how often.
#[derive(Args, Clone, Copy, Debug)]
pub struct Rounds {
    /// How long each round is, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Rounds, taken in turn by all contestants
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Seed of keys, values and sizes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl From<Rounds> for suite::Rounds {
    fn from(rounds: Rounds) -> Self {
        Self {
            seconds: rounds.seconds,
            rounds: rounds.rounds,
            seed: rounds.seed,
        }
    }
}

/// Options of experiments that measure our store for a time.
#[derive(Args, Clone, Debug)]
pub struct Timed {
    /// Cleaner threads of our store
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cleaner_threads: u16,
    #[command(flatten)]
    pub rounds: Rounds,
    #[command(flatten)]
    pub files: Files,
}

/// The mixes of an experiment.
#[derive(Args, Clone, Debug)]
pub struct Mixes {
    /// How many of a hundred operations read; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [100, 50, 0])]
    pub get_percent: Vec<u8>,
    /// Which keys: uniform, zipfian, zipfian:SKEW, hot-cold, exponential; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["uniform"])]
    pub distribution: Vec<Distribution>,
}

/// Who else takes part.
#[derive(Args, Clone, Debug)]
pub struct Peers {
    /// Other contestants: dashmap, dashmap-in-place, papaya, scc or malloc, each with @glibc,
    /// @jemalloc, @tcmalloc or @mimalloc behind it (an allocator alone stands for malloc). Or
    /// slab-lru; redis, memcached; or none [default: those that are installed and built in, as far
    /// as they fit the experiment]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = peer)]
    peer: Vec<Option<Contender>>,
}

impl Peers {
    /// Our store, in the ways that are asked for, and then the others: those named, or `usual`
    /// ones.
    pub fn contenders(
        &self,
        ours: &[Kind],
        usual: impl FnOnce() -> Vec<Contender>,
    ) -> Vec<Contender> {
        let mut all: Vec<Contender> = ours.iter().copied().map(on_glibc).collect();
        let others = match self.peer.is_empty() {
            true => usual(),
            false => self.peer.iter().flatten().copied().collect(),
        };
        for other in others {
            if !all.contains(&other) {
                all.push(other);
            }
        }
        all
    }
}

fn on_glibc(kind: Kind) -> Contender {
    Contender {
        kind,
        allocator: Allocator::Glibc,
    }
}

/// Maps of others and slabs. Without `--features peers` they are not built in.
pub fn maps() -> Vec<Contender> {
    if !cfg!(feature = "peers") {
        return Vec::new();
    }
    let mut all = Vec::new();
    for kind in [Kind::Dashmap, Kind::DashmapInPlace, Kind::Papaya, Kind::Scc] {
        for allocator in [Allocator::Glibc, Allocator::Mimalloc] {
            if allocator.path().is_ok() {
                all.push(Contender { kind, allocator });
            }
        }
    }
    all.push(on_glibc(Kind::SlabLru));
    all
}

/// The allocators that are installed, and slabs if they are built in.
fn allocators() -> Vec<Contender> {
    let installed = Allocator::ALL.into_iter().filter(|a| a.path().is_ok());
    let mut all: Vec<Contender> = installed
        .map(|allocator| Contender {
            kind: Kind::Malloc,
            allocator,
        })
        .collect();
    if cfg!(feature = "peers") {
        all.push(on_glibc(Kind::SlabLru));
    }
    all
}

/// [`allocators`], and the servers that are installed.
pub fn allocators_and_servers() -> Vec<Contender> {
    let servers = [Kind::Redis, Kind::Memcached].into_iter();
    let mut all = allocators();
    all.extend(servers.filter(|kind| is_installed(*kind)).map(on_glibc));
    all
}

/// Reads a contestant's name, or `none`, which stands for nobody.
fn peer(text: &str) -> Result<Option<Contender>, String> {
    match text {
        "none" => Ok(None),
        other => other.parse().map(Some),
    }
}
