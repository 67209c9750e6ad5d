//! The transport's counts, for the metrics page.
//!
//! One set per core, written by that core nearly always (so the cache lines stay there) and read by
//! anyone. Relaxed everywhere: a count orders nothing.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pluvio_units::CoreId;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one core.
        #[derive(Default, Debug)]
        #[repr(align(128))]
        pub(crate) struct CoreCounters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// Sums over all cores since the network was made.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Totals {
            /// Every count with its name, for a metrics page.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }

        impl Counters {
            /// The sums. The counts are read one after the other, so they may be a little apart.
            #[must_use]
            pub fn totals(&self) -> Totals {
                let mut totals = Totals::default();
                for core in &self.cores {
                    $(totals.$name += core.$name.load(Relaxed);)*
                }
                totals
            }
        }
    };
}

counters! {
    /// RPC connections that came in and passed the handshake.
    connections_accepted,
    /// Of these, the ones over rings.
    rings_accepted,
    /// Of the accepted ones, those over libfabric.
    fabrics_accepted,
    /// RPC connections that came in and have ended since (after `connections_accepted`).
    connections_ended,
    /// Connections refused because the port had its most.
    connections_refused,
    /// Connections that came in and did not pass the handshake.
    handshakes_failed,
    /// Connections that came in and got no TLS: for want of it, or of a certificate that counts.
    tls_failed,
    /// Connections made to peers.
    connects,
    /// Of these, the ones over rings.
    rings_made,
    /// Of the connections made, those over libfabric.
    fabrics_made,
    /// Connections to peers that could not be made.
    connects_failed,
    /// Connections to peers that have ended (after `connects`).
    connects_ended,
    /// Byte streams accepted.
    streams_accepted,
    /// Byte streams that have ended.
    streams_ended,
    /// Connections to peers that were replaced, because nothing came on them before a call timed
    /// out.
    connects_replaced,
    /// Requests written to a connection.
    requests_sent,
    /// Requests given to the service.
    requests_received,
    /// Replies written to a connection.
    replies_sent,
    /// Replies given to their calls.
    replies_received,
    /// Replies that came after their call was given up.
    replies_late,
    /// Bytes written to sockets (RPC and byte streams).
    bytes_sent,
    /// Bytes read from sockets (RPC and byte streams).
    bytes_received,
    /// Calls that ended for lack of a reply in time.
    calls_timed_out,
    /// Calls that ended because the connection broke.
    calls_lost,
    /// Calls with an unsent request.
    calls_unreachable,
    /// Connections closed because of bytes that are no frame.
    frames_rejected,
    /// Connections closed because the rest of a frame did not come in time.
    frames_overdue,
    /// Connections closed because the peer took no bytes for too long.
    peers_stalled,
    /// Connections closed because they stood still and others needed the memory that they held.
    connections_evicted,
    /// Times that a connection waited for the memory that others held.
    connections_waited,
    /// Times accepting failed for want of files or memory.
    accepts_failed,
    /// Messages of libfabric ignored: they name no connection.
    fabric_strays,
    /// Datagrams given to sockets.
    datagrams_sent,
    /// Datagrams taken from sockets.
    datagrams_received,
    /// Datagrams that were not acknowledged in time. Their content was sent again.
    datagrams_lost,
    /// Datagrams ignored: their bytes are none of this protocol, or damaged.
    datagrams_garbage,
    /// Datagrams ignored: they are of another version of the protocol.
    datagrams_other_version,
    /// Datagrams ignored: they name a session and lack its tag.
    datagrams_forged,
    /// Datagrams ignored: they came before.
    datagrams_repeated,
    /// Datagrams of sessions that are unknown.
    datagrams_unknown,
}

/// The counts of a [`crate::OsNetwork`].
#[derive(Debug)]
pub struct Counters {
    cores: Vec<CoreCounters>,
}

impl Counters {
    pub(crate) fn new(cores: u16) -> Self {
        Self {
            cores: (0..cores.max(1)).map(|_| CoreCounters::default()).collect(),
        }
    }

    /// The set of `core`; that of core 0 for a core this network does not know.
    pub(crate) fn of(&self, core: CoreId) -> &CoreCounters {
        self.cores
            .get(usize::from(core.0))
            .unwrap_or(&self.cores[0])
    }
}

/// Adds to a count.
pub(crate) fn add(counter: &AtomicU64, by: usize) {
    if by > 0 {
        counter.fetch_add(by as u64, Relaxed);
    }
}
