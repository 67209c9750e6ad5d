//! Connections whose bytes travel as messages of libfabric: over RDMA hardware, or over a provider
//! in software.
//!
//! - [`line`]: what one connection has received, and what it may send.
//! - [`hub`]: the endpoint of a core, and the task that takes its messages.
//! - [`stream`]: a connection that carries bytes like a socket.
//! - [`meeting`]: how two processes come to know each other's endpoints.
//!
//! No code here is unsafe: the endpoint is that of crate `fabric`.

mod hub;
mod line;
mod meeting;
mod stream;

pub(crate) use hub::Hubs;
pub(crate) use meeting::{Side, check, meet};
pub(crate) use stream::FabricStream;

/// Whether this build has the transport.
pub(crate) const IS_BUILT: bool = true;
