//! Reads of another process's store, whose memory is mapped: without a system call, and without
//! anything that the owner has to do [SpaceJMP §10.4].
//!
//! The owner is a server (`pluvio server --mapped-reads PATH`) or a store inside another program
//! (crate `pluvio-door`). Its log and its indexes lie in memory files, which it hands to readers
//! that it trusts. The system lets them read, and nothing else.
//!
//! ```no_run
//! let store = pluvio_mapped::Store::open("/run/app/cache.sock")?;
//! let towns = store.table("towns")?;
//! let mut value = Vec::new();
//! if towns.get_into(b"Bern", &mut value)? {
//!     println!("{} bytes", value.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants: MAP-1 and MAP-2 in `reader`, MAP-3 in `clock`.
//!
//! Threads: any number use one reader. A forked child may go on with it.
//!
//! Limits: no writes, no enumeration, no values that are overwritten in place. See
//! `docs/mapped-reads.md`.

mod clock;
mod map;
pub mod messages;
mod reader;
mod session;
pub mod socket;
mod store;

pub use clock::boottime_ns;
pub use reader::{Answer, Reader, Why};
pub use session::{OnlyOwner, OpenError};
pub use store::{ReadError, Store, Table};
