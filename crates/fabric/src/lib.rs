//! An endpoint of libfabric for messages between processes, over whatever the machine has: RDMA
//! hardware, TCP, shared memory. `net` carries the bytes of its connections over it.
//!
//! libfabric's entry points are inline functions of its header files. So this crate has a C half
//! (`shim.c`), which owns all memory that the library may touch. The Rust half keeps its rules.
//!
//! Rules of the C half
//! - FABRIC-4: the library reads and writes the slots only. They live until the endpoint is closed,
//!   and a slot is used again only when its operation has ended. Bytes are copied in and out.
//!
//! Of its functions `pf_open` and `pf_close` may wait, and no other.
//!
//! It is empty without the feature `libfabric`, and so the ordinary build needs no C library.

#[cfg(feature = "libfabric")]
mod endpoint;
#[cfg(feature = "libfabric")]
mod watch;

#[cfg(feature = "libfabric")]
pub use endpoint::{Broken, Endpoint, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, Peer, PeerId, Taken};
#[cfg(feature = "libfabric")]
pub use watch::Watch;
