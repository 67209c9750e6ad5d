//! Who takes part in an experiment: our store with its options, maps of others, plain allocators,
//! servers.
//!
//! Every contestant runs in a process of its own (`process`), which holds it (`host`) and runs the
//! workloads inside itself; the parent only gives orders. So each has its own allocator (preloaded:
//! glibc's, jemalloc, tcmalloc or mimalloc). Its memory is its process's, as the system counts it,
//! and rounds of all contestants can be interleaved.
//!
//! - CON-1: a value that is read is compared with its key; damage is counted and fails the
//!   experiment.
//! - CON-2: all contestants get the same operations: streams are functions of their seeds.

mod disk;
mod host;
#[cfg(feature = "peers")]
mod maps;
mod memory;
mod name;
mod plain;
mod pluvio;
mod process;
mod servers;
mod setup;
#[cfg(any(test, feature = "peers"))]
mod slab_lru;

pub use host::serve;
pub use name::{Allocator, Contender, Kind};
pub use process::{Process, Program};
pub use servers::is_installed;
pub use setup::{Copying, Disk, Epochs, HeadChoice, Setup, Tombstones};

use crate::error::ExperimentError;
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Keys that our store looks for together: larger batches are cut.
pub(crate) const TOGETHER: usize = 16;

/// What a contestant holds and has done.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Holdings {
    /// Bytes of the process in memory, without what it had before the first object.
    pub resident: u64,
    /// Objects, where the contestant knows.
    pub objects: u64,
    /// Bytes of their keys and values, where our store tells.
    pub object_bytes: u64,
    /// Bytes live objects take in our log, headers included.
    pub live_log: u64,
    /// Bytes of our log's memory.
    pub log_memory: u64,
    /// Most bytes live objects may take in it.
    pub live_log_max: u64,
    /// Bytes of it in use, live or dead.
    pub log_in_use: u64,
    /// Bytes of it that were touched and not given back, in use or not.
    pub log_resident: u64,
    /// Bytes of our indexes.
    pub index: u64,
    /// Live bytes our cleaner has copied, on both levels.
    pub moved: u64,
    /// Of these, bytes copied by combined passes: a store with replicas sends them to its backups.
    pub combined: u64,
    /// Bytes of the segments that our cleaner has cleaned.
    pub cleaned: u64,
    /// Bytes that our simulated disk was given.
    pub to_disk: u64,
}

impl Holdings {
    /// Bytes that an object's entry in our log has beside key and value, the mean of all live
    /// objects; `None` when there are none.
    #[must_use]
    pub fn entry_header_bytes(&self) -> Option<f64> {
        self.of_each(self.live_log as f64 - self.object_bytes as f64)
    }

    /// Bytes of our indexes for each object; `None` when there are none.
    #[must_use]
    pub fn index_bytes_per_key(&self) -> Option<f64> {
        self.of_each(self.index as f64)
    }

    fn of_each(&self, bytes: f64) -> Option<f64> {
        (self.objects > 0).then(|| bytes / self.objects as f64)
    }
}

/// An operation was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Memory is full; worth a retry after this time.
    Full(Duration),
    /// It will not work.
    Fatal(String),
}

/// A store inside this process, or behind a socket of it. Any number of threads call it.
pub(crate) trait KeyValue: Sync {
    /// Copies the value out, in place of what was in the buffer; false when there is none.
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool;

    /// Stores a value, whatever was there.
    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal>;

    /// Removes the object; says whether there was one.
    fn delete(&self, key: u64) -> Result<bool, Refusal>;

    /// Copies the values of several keys out, one after the other into the buffer; shows each.
    fn get_batch(&self, keys: &[u64], into: &mut Vec<u8>, see: &mut dyn FnMut(u64, Option<&[u8]>)) {
        for &key in keys {
            let found = self.get(key, into);
            see(key, found.then_some(into.as_slice()));
        }
    }

    /// Stores some pairs, [`TOGETHER`] at most, one after the other: all of them, if there is no
    /// error. The first refusal comes with how many were stored before it, which is fewer than
    /// there are.
    fn put_batch(&self, pairs: &[(u64, &[u8])]) -> Result<(), (usize, Refusal)> {
        for (at, &(key, value)) in pairs.iter().enumerate() {
            self.put(key, value).map_err(|refusal| (at, refusal))?;
        }
        Ok(())
    }

    /// A run begins; only a measured one is held to the rate of a simulated disk.
    fn begin(&self, _measured: bool) {}

    /// All holdings and counts except the bytes in memory, which take a while to count.
    fn counts(&self) -> Holdings {
        Holdings::default()
    }

    /// Whether it has a thread that gives memory back to the system while nobody calls it.
    fn gives_back_by_itself(&self) -> bool {
        false
    }

    /// Bytes of the contestant's process in memory.
    fn resident(&self) -> u64 {
        memory::resident(None)
    }

    /// What is held and what was done.
    fn holdings(&self) -> Holdings {
        Holdings {
            resident: self.resident(),
            ..self.counts()
        }
    }
}

/// Memory in which one that evicts need not: four times what our store has, for what cannot be
/// given back, and a gigabyte.
fn ample(memory: u64) -> u64 {
    memory * 4 + (1 << 30)
}

/// A contestant that cannot take part.
fn refused(kind: Kind, problem: impl Into<String>) -> ExperimentError {
    ExperimentError::Contestant {
        contestant: kind.name().into(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_object_costs_is_the_mean_of_all() {
        let held = Holdings {
            objects: 1000,
            object_bytes: 108_000,
            live_log: 121_500,
            index: 10_400,
            ..Holdings::default()
        };
        assert_eq!(held.entry_header_bytes(), Some(13.5));
        assert_eq!(held.index_bytes_per_key(), Some(10.4));
        assert_eq!(Holdings::default().entry_header_bytes(), None);
        assert_eq!(Holdings::default().index_bytes_per_key(), None);
    }
}
