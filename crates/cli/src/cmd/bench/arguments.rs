//! Arguments that several experiments have.

use clap::Args;
use pluvio_bench::contestant::{Allocator, Contender, Kind};

/// How long, and how often.
#[derive(Args, Clone, Debug)]
pub struct Rounds {
    /// How long each round is, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// Rounds, taken in turn by all contestants
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: usize,
    /// Seed of keys, values and sizes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Who takes part beside us. Without `--features peers` maps of others are not built in.
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
    all
}

/// The allocators that are installed.
pub fn allocators() -> Vec<Contender> {
    let installed = Allocator::ALL.into_iter().filter(|a| a.path().is_ok());
    installed
        .map(|allocator| Contender {
            kind: Kind::Malloc,
            allocator,
        })
        .collect()
}

/// Our store, in the ways that are asked for, and then the others: those named, or `usual` ones.
pub fn contenders(
    ours: &[Kind],
    named: Option<&[Contender]>,
    usual: impl FnOnce() -> Vec<Contender>,
) -> Vec<Contender> {
    let mut all: Vec<Contender> = ours
        .iter()
        .map(|&kind| Contender {
            kind,
            allocator: Allocator::Glibc,
        })
        .collect();
    let others = named.map_or_else(usual, <[Contender]>::to_vec);
    for other in others {
        if !all.contains(&other) {
            all.push(other);
        }
    }
    all
}

/// Reads a contestant's name, or `none`, which stands for nobody.
pub fn peer(text: &str) -> Result<Option<Contender>, String> {
    match text {
        "none" => Ok(None),
        other => other.parse().map(Some),
    }
}

/// The peers that were named, without `none`.
pub fn named(peers: &[Option<Contender>]) -> Option<Vec<Contender>> {
    (!peers.is_empty()).then(|| peers.iter().flatten().copied().collect())
}
