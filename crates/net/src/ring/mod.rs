//! Connections between processes of one machine: rings in memory that both map.
//!
//! - [`halves`]: one ring, and what each side may do with it.
//! - [`stream`]: two rings and a socket as a connection.
//! - [`poller`]: looks for what comes, before a connection sleeps.
//! - [`handover`]: how two processes come to share the rings.
//! - [`socket`]: the Unix socket at which they meet.
//!
//! No code here is unsafe: memory that another process writes is that of `memory::SharedMemory`.

mod halves;
pub(crate) mod handover;
pub(crate) mod poller;
pub(crate) mod socket;
mod stream;

pub(crate) use stream::RingStream;
