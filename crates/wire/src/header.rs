//! The fixed part of every request.

use crate::refusal::Refusal;
use core::time::Duration;
use pluvio_units::{ClientId, ClusterId, OperationId, SequenceNumber, ServerId};

/// The fixed little-endian header of a request.
///
/// ```text
///  0        8         16                   24       32           36         40        48
///  | client | sequence | acknowledged_below | target | deadline_us | retry_ms | cluster | the message
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The operation's identity. Each item of a batch has a number of its own; here stands that of
    /// any.
    pub operation: OperationId,
    /// The server life the caller means; 0 means whoever listens at the address. A server with
    /// another id refuses, because an address can be reused.
    pub target: ServerId,
    /// The cluster the caller means; 0 when the request does not depend on it, or the caller does
    /// not know. Each cluster numbers its servers and tables from 1, so without it a client that
    /// outlives its cluster could change the next one's objects.
    pub cluster: ClusterId,
    /// The caller stops waiting after this many microseconds; 0 means unknown.
    pub deadline_us: u32,
}

impl Header {
    /// Where `deadline_us` stands.
    pub(crate) const DEADLINE: core::ops::Range<usize> = 32..36;
    /// Bytes of the encoded header.
    pub const LEN: usize = 48;

    /// A header for a request to one life of a server.
    #[must_use]
    pub fn to(target: ServerId) -> Self {
        Self {
            target,
            ..Self::default()
        }
    }

    /// A header for a request to one life of a server of this cluster.
    #[must_use]
    pub fn within(cluster: ClusterId, target: ServerId) -> Self {
        Self {
            cluster,
            ..Self::to(target)
        }
    }

    /// The header of a caller that stops waiting after `limit`.
    #[must_use]
    pub fn waiting(self, limit: Duration) -> Self {
        Self {
            deadline_us: u32::try_from(limit.as_micros()).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// Whether the caller means this life of a server, or whoever listens at its address.
    #[must_use]
    pub fn means(&self, cluster: ClusterId, server: ServerId) -> bool {
        (self.target == server || self.target == ServerId(0))
            && (self.cluster == cluster || self.cluster == ClusterId(0))
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.operation.client.0.to_le_bytes());
        into.extend_from_slice(&self.operation.sequence.0.to_le_bytes());
        into.extend_from_slice(&self.operation.acknowledged_below.0.to_le_bytes());
        into.extend_from_slice(&self.target.0.to_le_bytes());
        into.extend_from_slice(&self.deadline_us.to_le_bytes());
        into.extend_from_slice(&self.operation.retry_ms.to_le_bytes());
        into.extend_from_slice(&self.cluster.0.to_le_bytes());
    }

    /// Cuts the header off the `meta` part of a request.
    ///
    /// # Errors
    /// A final refusal when there are too few bytes.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Refusal> {
        let Some((fixed, rest)) = bytes.split_at_checked(Self::LEN) else {
            return Err(Refusal::malformed("a request is shorter than its header"));
        };
        let word =
            |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        let half =
            |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
        let header = Self {
            operation: OperationId {
                client: ClientId(word(0)),
                sequence: SequenceNumber(word(8)),
                acknowledged_below: SequenceNumber(word(16)),
                retry_ms: half(36),
            },
            target: ServerId(word(24)),
            cluster: ClusterId(word(40)),
            deadline_us: half(32),
        };
        Ok((header, rest))
    }
}
