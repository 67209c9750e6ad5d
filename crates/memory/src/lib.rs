//! Regions, seglets and reclaim epochs: the memory under the log and the index.
//!
//! Owns the mappings ([`Region`]), the free seglets of a log region ([`SegletPool`]) and the answer
//! to "may anybody still read this?" ([`ReclaimEpochs`]).
//!
//! Invariants (cited as M1.. in asserts and tests):
//! - M1: an offset handed to a region is checked against the region's length, always.
//! - M2: a seglet is either free, in exactly one pool, or taken; giving back a free one stops the
//!   process.
//! - M3: everything unlinked before [`ReclaimEpochs::retire_epoch`] is out of every reader's reach
//!   once [`ReclaimEpochs::is_quiesced`] says so of its stamp.
//! - M4: what a reader of another process has copied counts only if no byte of it was used again
//!   meanwhile ([`GateView::check`]).
//! - M5: pages that other processes read go back to the system as memory that is used again. So
//!   that comes behind the word that says so ([`ReclaimEpochs::frontier`]). The zeroes of a hole
//!   are its new content, and a copy of them does not count (M4). The reader begins anew, and finds
//!   the new links. Nobody waits for it. Its look may make pages in the hole. They are zero, and
//!   their next user finds them so.
//!
//! Threads: every type is `Send + Sync` and takes `&self`. An [`EpochGuard`] stays in its thread; a
//! [`SharedGuard`] may move.
//!
//! Limits: it knows no segments and no entries, and reads no clock but the processor's counter. It
//! blocks on another thread only for a short critical section, and until readers of a value that
//! was replaced are done. See `docs/memory.md`.

#[allow(unsafe_code)] // three system calls
mod binding;
#[allow(unsafe_code)] // copies to where its callers may write
mod copy;
#[allow(unsafe_code)] // values that are found by a pointer
mod current;
mod epoch;
mod gate;
#[allow(unsafe_code)] // one call of the C library
mod heap;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // copies bytes that others change
mod racing;
#[allow(unsafe_code)] // the same, and by atomics
mod racing_bytes;
#[cfg_attr(test, allow(unsafe_code))] // tests try what must be refused
mod read_region;
#[allow(unsafe_code)] // the one door to mapped memory
mod region;
mod seglets;
#[allow(unsafe_code)] // copies bytes that another process changes
mod shared;
#[allow(unsafe_code)] // instructions that touch no memory
mod ticks;
#[allow(unsafe_code)] // discards words, and looks at eight of them at once
mod words;

pub use binding::{BindRefused, InterleaveRefused, Interleaving, NodeSet};
pub use copy::CopyMethod;
pub use current::{Current, Held, StillRead};
#[doc(hidden)] // for models of the crates above: stores use `ReclaimEpochs`
pub use epoch::protocol as epoch_protocol;
pub use epoch::{
    EpochClock, EpochGuard, GRACE, GraceClock, ReclaimEpochs, ReclaimFrontier, ReclaimStamp,
    SharedGuard,
};
pub use gate::{GatePage, GateView, GateWord, NotCounted, Since};
pub use heap::{bound_heap, give_back_heap};
pub use racing_bytes::RacingBytes;
pub use read_region::ReadRegion;
pub use region::{
    CACHE_LINE_BYTES, REGION_GRANULE_BYTES, REGION_LEN_MAX, Region, RegionError, page_bytes,
};
pub use seglets::{
    FreeSeglets, PartIndex, Reserves, SegletClass, SegletIndex, SegletPool, SegletPoolError,
};
pub use shared::{SharedMemory, SharedMemoryError};
pub use ticks::TickCounter;
pub use words::{WordRegion, words_with_top};
