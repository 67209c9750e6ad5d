//! The questions that the door asks of the owner of the memory.

use core::time::Duration;
use pluvio_store::{Engine, ReadableMap, Store};
use pluvio_units::{ClusterId, ServerId};

/// How long the page stays fresh without the door's thread: a reader of an owner that is stopped
/// or gone notices by then. As long as a server's lease at most.
pub const FRESH_FOR: Duration = Duration::from_millis(500);

/// The owner of the memory.
pub trait Owner: Send + Sync {
    /// Its engine, whose options allow readers.
    fn engine(&self) -> &Engine;

    /// The cluster; 0 for a store inside a program.
    fn cluster(&self) -> ClusterId;

    /// The server; 0 for a store inside a program.
    fn server(&self) -> ServerId;

    /// Whether readers have nobody to ask by RPC.
    fn is_alone(&self) -> bool;

    /// What may be read now. It must not change while this is called.
    fn map(&self) -> ReadableMap;

    /// Until when what is in memory is the truth at least, of `CLOCK_BOOTTIME`, whose time was
    /// `now` before this call. No later than [`FRESH_FOR`] after it.
    fn fresh_until(&self, now: Duration) -> Duration;
}

impl Owner for Store {
    fn engine(&self) -> &Engine {
        Store::engine(self)
    }

    fn cluster(&self) -> ClusterId {
        ClusterId(0)
    }

    fn server(&self) -> ServerId {
        ServerId(0)
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn map(&self) -> ReadableMap {
        self.readable()
    }

    fn fresh_until(&self, now: Duration) -> Duration {
        now + FRESH_FOR
    }
}
