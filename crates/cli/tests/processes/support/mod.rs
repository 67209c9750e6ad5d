//! What tests of real processes share: starting and ending them, waiting for states, clients,
//! and clients that check what they read.

#![allow(
    dead_code,
    unused_imports,
    reason = "several programs share this: tests of both binaries, the soak and the day; each leaves out something"
)]

pub mod cluster;
pub mod disk;
pub mod gate;
pub mod http;
pub mod journal;
pub mod metadata;
pub mod native;
pub mod patience;
pub mod program;
pub mod resp;

pub use cluster::Setup;
pub use patience::wait_for;
pub use program::{Output, Running, pluvio};
pub use resp::{Reply, Resp};

use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The block trace, which must be there.
#[track_caller]
pub fn block_trace() -> PathBuf {
    let file = std::env::var_os("PLUVIO_TEST_BLOCK_TRACE").map_or_else(
        || root().join("../shared/data/cloudPhysicsIO.csv"),
        PathBuf::from,
    );
    assert!(
        file.exists(),
        "{} is missing: `cargo xtask test` leaves these tests out",
        file.display()
    );
    file
}

/// A small generator; the same seed gives the same numbers.
pub struct Random(u64);

impl Random {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of `PLUVIO_TEST_SEED`, or a new one. Printed, so that a failure shows it.
    pub fn seed() -> u64 {
        let given = std::env::var("PLUVIO_TEST_SEED").ok();
        let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            let fresh = std::collections::hash_map::RandomState::new();
            fresh.build_hasher().finish() >> 32
        });
        println!("PLUVIO_TEST_SEED={seed}");
        seed
    }

    /// The next number (splitmix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// One of `of`.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}
