//! Key hash to log reference: an optimistic hash index that grows step by step.
//!
//! What it owns: the buckets of one table, in a [`pluvio_memory::Region`], and how many entries they
//! hold. A slot is one word: 15 bits of tag, the *pending* bit and the 48-bit log offset. What lies
//! at that offset is the log's; whether it is the wanted key, the caller's closures say.
//!
//! Invariants (cited as X1.. in asserts and tests):
//! - X1: an entry is in the chain of the one bucket its hash addresses, and in one slot of it.
//! - X2: a chain is dense: only its last bucket has empty slots.
//! - X3: an entry changes its slot, or a chain its buckets, only while the head says *moving*; each
//!   such change ends with a new version.
//! - X4: a bucket holds all hashes of one contiguous range and no others.
//!
//! Threads: lookups and scans store nothing. A lookup that finds its key waits for nobody; one that
//! does not repeats while entries of that bucket are being moved. Writers lock one bucket, briefly.
//! Who looks up, scans, locks or grows holds an epoch guard from before the call until it has
//! finished with the references it got; so no entry it can see is reclaimed.
//!
//! What it does not do: it reads no log, compares no keys, knows no versions, and never shrinks. See
//! `docs/index.md`.

mod block;
mod index;
#[cfg(test)]
mod model;
mod resize;
mod scan;
mod slot;
mod spread;
mod table;
#[cfg(test)]
mod tests;
mod words;

pub use index::{BucketGuard, Index, IndexError, IndexFull, IndexOptions};
pub use slot::Slot;
