//! Key hash to log reference: an optimistic hash index that grows and shrinks line by line.
//!
//! What it owns: the lines of one table's index, in a [`pluvio_memory::WordRegion`], and how many
//! entries they hold. A line is a cache line of eight slots. A slot is one word: 15 bits of tag,
//! the *pending* bit and the 48-bit log offset. What lies at that offset is the log's; whether it
//! is the wanted key, the caller's closures say.
//!
//! Words: 8 to 15 lines are a *block*, which has one lock and one version. An entry's hash
//! addresses a block and one line of it, its *home*. *Bucket* is what callers lock and scan: all
//! entries with one home.
//!
//! Invariants (cited as X1.. in asserts and tests):
//! - X1: an entry is in the one block its hash addresses, in one slot of it.
//! - X2: an entry is at home, or its home is full and it is in a line as far behind its home as the
//!   block's displacements say or nearer, or all lines of the block are full and it is in the
//!   block's chain of overflow lines, of which only the last has empty slots.
//! - X3: an entry changes its slot, or a chain its lines, only while the block's head says
//!   *moving*; each such change ends with a new version.
//! - X4: a home is that of all hashes of one contiguous range and of no others.
//! - X5: memory behind the last line is empty, and is given back to the system only when every
//!   epoch guard has ended that was there before the line was the last one.
//!
//! Threads: lookups and scans store nothing. A lookup that finds its key waits for nobody; one that
//! does not repeats while entries of that block are being moved. Writers lock one block, briefly;
//! one thread at a time resizes, a line in a step, and locks one block or two. Who looks up, scans,
//! locks or resizes holds an epoch guard from before the call until it has finished with the
//! references it got; so no entry and no line it can see is reclaimed. [`Index::approach`] alone
//! needs none: where it said that a hash is at home counts only if, under the guard, there are as
//! many lines as then.
//!
//! What it does not do: it reads no log, compares no keys and knows no versions of objects. See
//! `docs/index.md`.

mod block;
mod index;
#[cfg(test)]
mod model;
#[cfg(test)]
mod reclaim_model;
mod resize;
mod scan;
mod slot;
mod spread;
#[cfg(test)]
mod steps;
mod table;
#[cfg(test)]
mod tests;
mod words;

pub use index::{
    BucketChange, BucketGuard, Index, IndexError, IndexFull, IndexOptions, LikelySlot, Room,
    StableHome,
};
pub use slot::Slot;
pub use table::{Approach, Home};
