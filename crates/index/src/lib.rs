//! Key hash to log reference: an optimistic hash index that grows and shrinks line by line.
//!
//! Owns the lines of one table's index, in a [`pluvio_memory::WordRegion`], and the number of their
//! entries. A line is a cache line of eight slots. A slot is one word: 15 bits of tag, the
//! *pending* bit and the 48-bit log offset. The bytes at that offset belong to the log. The
//! caller's closures say whether they hold the wanted key.
//!
//! Words: 8 to 15 lines are a *block*, which has one lock and one version. An entry's hash
//! addresses a block and one line of it, its *home*. Callers lock and scan a *bucket*: all entries
//! with one home.
//!
//! Invariants (cited as X1.. in asserts and tests):
//! - X1: an entry is in the one block its hash addresses, in one slot of it.
//! - X2: an entry lies in the first possible of three places. It is at home. Or its home is full,
//!   and it is in a line at most as far behind its home as the block's displacements say. Or all
//!   lines of the block are full, and it is in the block's chain of overflow lines. Only the last
//!   line of a chain has empty slots.
//! - X3: an entry changes its slot, or a chain its lines, only while the block's head says
//!   *moving*. Each such change ends with a new version.
//! - X4: a home is that of all ranks of one contiguous range and of no others.
//! - X5: memory behind the last line is empty. It goes back to the system only after the end of
//!   every epoch guard that is older than the line's becoming the last.
//!
//! Threads:
//! - Lookups and scans store nothing. A lookup that finds its key waits for no thread. A lookup
//!   without a result repeats while entries of that block are being moved.
//! - Writers lock one block, briefly. One thread at a time resizes, a line in a step, and locks one
//!   block or two.
//! - A caller of a lookup, scan, lock or resize holds an epoch guard. It begins before the call and
//!   ends after the last use of the references from it. So no visible entry or line is reclaimed.
//! - [`Index::approach`] alone needs no guard. Its home counts only if the number of lines is still
//!   the same under the guard.
//!
//! Limits: it reads no log, compares no keys and knows no versions of objects. See
//! `docs/key-index.md`.

mod block;
mod index;
#[cfg(test)]
mod model;
mod reader;
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
pub use reader::{IndexLayout, IndexReader, Lookup};
pub use slot::Slot;
pub use table::{Approach, Home};
