//! Programs keep pointer-rich data in named spans of memory at fixed addresses, and enter address
//! spaces that list them. This is SpaceJMP (chapters 7 to 10 of the Nibble dissertation) on stock
//! Linux.
//!
//! - [`Registry`]: a directory with all spans and spaces; [`SpanBuilder`] makes a span.
//! - [`SpaceDefinition`]: a named list of spans. [`Space`]: one that is attached to this process.
//! - [`Entered`]: a thread inside a space. [`Part`]: one span of it.
//! - [`Worker`]: a process that has a space attached, for spaces that this process cannot attach.
//! - [`SegBox`], [`SegVec`], [`SegStr`], [`SegMap`], [`seg_struct!`]: what may lie in a heap.
//!
//! ```
//! use pluvio_spacejmp::{Access, Registry, SegMap, SegStr};
//!
//! type Towns<'id> = SegMap<'id, SegStr<'id>, u64>;
//!
//! # fn main() -> pluvio_spacejmp::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let root = directory.path();
//! let registry = Registry::open(root)?;
//! registry.span("towns").size(1 << 20).create()?;
//! registry.create_space("atlas", &[("towns", Access::Write)])?;
//!
//! // SAFETY: nothing but this program writes the directory.
//! let space = unsafe { registry.find_space("atlas")?.attach()? };
//! let mut inside = space.enter()?;
//! inside.init::<Towns<'_>>("towns", |_| Ok(SegMap::new()))?;
//! inside.write::<Towns<'_>, _>("towns", |heap, towns| {
//!     towns.insert(heap, SegStr::from_text(heap, "Bern")?, 134_000)?;
//!     Ok(())
//! })?;
//! let people = inside.read::<Towns<'_>, _>("towns", |towns| towns.get("Bern").copied())?;
//! assert_eq!(people, Some(134_000));
//! # Ok(())
//! # }
//! ```
//!
//! Rules: JUMP-1 in `journal`, JUMP-2 in `registry` and JUMP-13 in `map` say what a kill leaves.
//! JUMP-3 in `map`, JUMP-4 and JUMP-6 in `window` say what is mapped. JUMP-5 in `space` says who
//! reads and changes, and JUMP-7 to JUMP-9 in `robust` say how. JUMP-10 to JUMP-12 in `worker` are
//! about processes that work for others.
//!
//! Limits: Linux with 64-bit addresses. A machine that loses its power may keep a part of a change,
//! because nothing is forced to disk; spans usually lie in memory. See `docs/spacejmp.md`.

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
)))]
compile_error!(
    "spans are shared as they are, by Linux programs with little-endian 64-bit addresses"
);

mod active;
mod copies;
mod definition;
mod error;
mod files;
mod header;
mod heap;
mod journal;
mod layout;
mod lock;
mod map;
mod names;
mod part;
mod registry;
mod robust;
mod space;
mod span;
mod typed;
mod window;
mod worker;

#[cfg(test)]
mod steps;
#[cfg(test)]
mod tests;

pub use definition::{Access, MEMBERS_MAX, Member, SpaceDefinition};
pub use error::{Result, SpaceError};
pub use header::{FORMAT, GRANULE_BYTES, Kind, Lock};
pub use heap::HeapReport;
pub use layout::{LayoutWalk, SegSafe};
pub use names::SpanId;
pub use part::{Part, Words};
pub use registry::Registry;
pub use space::{Backend, Entered, Space, SpanReport};
pub use span::{Base, SpanBuilder, SpanInfo};
pub use typed::{Heap, SegBox, SegKey, SegMap, SegStr, SegVec};
pub use worker::{CALL_BYTES_MAX, Worker};
