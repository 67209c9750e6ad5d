//! The embedded library: a log-structured store inside a process.
//!
//! ```
//! use pluvio_store::{Size, Store};
//!
//! let store = Store::builder().memory(Size::mib(64)).build()?;
//! let table = store.create_table("towns")?;
//! table.put(b"Bern", b"134794")?;
//! assert_eq!(table.get(b"Bern").as_deref(), Some(&b"134794"[..]));
//! assert_eq!(table.increment(b"visits", 1)?, 1);
//! assert!(table.delete(b"Bern")?);
//! assert_eq!(table.get(b"Bern"), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it owns: names of tables, the worker threads of the cleaner, and which head a thread
//! appends to. Its operations have fast paths of their own, by the kind of store: `read` and `put`
//! where values are appended, `in_place` where they are overwritten. A slow path or
//! [`Engine::apply`](crate::Engine::apply) does the rest.
//!
//! - EMBED-1: a store without a sink writes no tombstones and marks nothing pending.
//! - EMBED-2: when the last handle of a store (store, table, iterator) is dropped, its threads have
//!   ended and its memory is given back.
//! - EMBED-3: a panic inside a closure or a thread that dies between calls leaves the store usable.
//!   A panic of the store itself in the middle of an append (a broken invariant) poisons that head:
//!   later appends to it panic as well, reads go on.
//! - EMBED-4: with a sink every change is in the log with what keeps dead what it replaces, and
//!   [`Store::sync`] returns when the sink has all changes that returned before the call.
//! - EMBED-5: an object whose deadline is past is absent for every call that begins then, and stays
//!   so. With a sink [`read_back`] does not give it back either: nothing is judged by a time later
//!   than a horizon that the sink has (EXPIRY-2).
//!
//! Threads: every method takes `&self`. Any number of threads may call, also more than there are
//! epoch slots ([`StoreBuilder::threads_max`]); those beyond share a mutex. No call waits for
//! another one for longer than a bucket or a head is locked.
//!
//! What it does not do: no I/O of its own, no async.

mod builder;
mod cleaning;
mod conditions;
mod error;
mod experiments;
mod expiry;
mod heads;
mod in_place;
mod iter;
mod put;
mod read;
mod read_back;
mod sink;
mod store;
mod table;
mod view;

pub use builder::{HugePages, KeyHashing, StoreBuilder, UpdatePolicy};
pub use conditions::PutOptions;
pub use error::{BuildError, IncrementError, StoreError};
pub use experiments::{Cleaning, EpochKind, Experiments, HeadChoice, Topology};
pub use iter::Iter;
pub use read_back::{Kept, KeptObject, KeptSegment, ReadBackError, read_back};
pub use store::{Store, StoreGuard, StoreStats};
pub use table::{Borrowed, Table};
pub use view::View;
