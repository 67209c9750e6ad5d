//! The bounds of the transport. `docs/transport.md` has them in one table.

use core::time::Duration;

/// Bounds and time limits of a [`crate::OsNetwork`]. The defaults suit a server.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NetOptions {
    /// Largest meta and payload of one frame together, in bytes. The default carries two whole
    /// segments (8 MiB each) and 64 KiB around them.
    pub frame_bytes_max: usize,
    /// Most connections open to one RPC port at a time; a further one is refused and closed. Each
    /// costs one file descriptor, so the process's limit of open files must be higher.
    pub connections_max: usize,
    /// Most connections over rings to one RPC port at a time. A further one is refused, and its
    /// caller takes another endpoint of the address, if there is one. Each costs one file
    /// descriptor on either side, and the memory of two rings.
    pub ring_connections_max: usize,
    /// The same over libfabric. Each costs one file descriptor and up to `ring_bytes` of memory.
    pub fabric_connections_max: usize,
    /// Bytes of one ring: a power of two from 4 KiB to 16 MiB. A connection has two. So many bytes
    /// of a connection over libfabric wait at a side that does not read.
    pub ring_bytes: u32,
    /// How long an event loop looks at its rings, and at libfabric, after each arrival before they
    /// sleep, at least.
    pub spin: Duration,
    /// The same, at most. Up to here the time adapts itself: it grows while looking finds
    /// something, and shrinks to `spin` while it does not.
    pub ring_spin_max: Duration,
    /// Most peers that one core is connected to at a time.
    pub peers_max: usize,
    /// Most calls of one connection that wait for a reply; further ones wait before they are sent.
    pub calls_max: usize,
    /// Bytes of requests that wait to be sent on one connection before further calls wait. One
    /// frame may pass the limit.
    pub send_queue_bytes_max: usize,
    /// Most requests of one connection in the hands of the service. At this number reading stops
    /// until one is answered.
    pub requests_max: usize,
    /// Bytes of those requests at which reading stops. One frame may pass the limit.
    pub request_bytes_max: usize,
    /// Bytes of replies for a slow reader at which reading of requests stops.
    pub reply_queue_bytes_max: usize,
    /// Bytes that all connections of the RPC ports hold together. Counted are frames that have come
    /// in part, and replies that wait for their peers or until they are durable. It is at least
    /// sixteen times the largest frame and what is around it.
    pub connections_bytes_max: usize,
    /// How long a peer that holds some of that may stand still while others wait for room.
    pub standstill_limit: Duration,
    /// Limit for finding the addresses behind a name and connecting to one of them, without the
    /// handshake.
    pub connect_limit: Duration,
    /// How long the other side may take for its part of the handshake.
    pub handshake_limit: Duration,
    /// How long the rest of a frame may take once its first byte has come.
    pub frame_limit: Duration,
    /// How long a peer may take none of the bytes that wait for it. The kernel has the same limit
    /// (`TCP_USER_TIMEOUT`), and then gives up on a machine that has vanished.
    pub stall_limit: Duration,
    /// The same for byte streams, by the kernel alone; vanished peers are given up after it. It is
    /// longer, because their peers may have good reasons not to read for a while. The service
    /// bounds the bytes that wait for each.
    pub stream_stall_limit: Duration,
    /// After this long without traffic the kernel asks whether the other machine is still there.
    pub keepalive: Duration,
    /// Largest datagram to send and to take, in bytes without the headers of IP and UDP. It must
    /// fit the links between the machines whole.
    pub datagram_bytes_max: usize,
    /// Most bytes of one session of datagrams that are sent and not acknowledged. The default fits
    /// the receive buffer that Linux gives without being asked.
    pub flight_bytes_max: usize,
}

impl Default for NetOptions {
    fn default() -> Self {
        Self {
            frame_bytes_max: (16 << 20) + (64 << 10),
            connections_max: 16_384,
            ring_connections_max: 256,
            fabric_connections_max: 256,
            ring_bytes: 256 << 10,
            spin: Duration::ZERO,
            ring_spin_max: Duration::from_micros(50),
            peers_max: 4_096,
            calls_max: 16_384,
            send_queue_bytes_max: 16 << 20,
            requests_max: 1_024,
            request_bytes_max: 64 << 20,
            reply_queue_bytes_max: 4 << 20,
            connections_bytes_max: 1 << 30,
            standstill_limit: Duration::from_secs(1),
            connect_limit: Duration::from_secs(2),
            handshake_limit: Duration::from_secs(5),
            frame_limit: Duration::from_secs(30),
            stall_limit: Duration::from_secs(30),
            stream_stall_limit: Duration::from_secs(600),
            keepalive: Duration::from_secs(60),
            datagram_bytes_max: 1_400,
            flight_bytes_max: 256 << 10,
        }
    }
}
