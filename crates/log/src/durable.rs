//! Durability as a type: `append` gives an [`Appended`], only
//! [`LogSpace::confirm`](crate::LogSpace::confirm) turns it into a [`Durable`], and only a
//! `Durable` should become a success reply.

use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_units::{LogId, LogPosition, SegmentId};

/// What must have happened before an append counts as durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Nothing: there are no replicas, an append is durable at once.
    Volatile,
    /// Replication reports how far each log is safe on its backups.
    Replicated,
}

/// Something that is in the log, up to a position, and not yet known to be durable.
#[derive(Debug)]
#[must_use = "what was appended is not durable before LogSpace::confirm says so"]
pub struct Appended<T> {
    log: LogId,
    position: LogPosition,
    value: T,
}

impl<T> Appended<T> {
    /// A value that counts only once `log` is durable up to `position`: for what `append` gives
    /// back, and for answers that tell of somebody else's append (a rejected write that saw a
    /// pending value).
    pub fn new(log: LogId, position: LogPosition, value: T) -> Self {
        Self {
            log,
            position,
            value,
        }
    }

    /// The log to wait for.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// The position to wait for: the end of what was appended.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// The value, to be looked at but not to be shown to a client.
    #[must_use]
    pub fn pending(&self) -> &T {
        &self.value
    }

    /// The same wait for another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Appended<U> {
        Appended {
            log: self.log,
            position: self.position,
            value: f(self.value),
        }
    }

    pub(crate) fn into_durable(self) -> Durable<T> {
        Durable {
            log: self.log,
            position: self.position,
            value: self.value,
        }
    }
}

/// Something that survives the loss of this server. Cannot be made outside of this crate.
#[derive(Debug)]
pub struct Durable<T> {
    log: LogId,
    position: LogPosition,
    value: T,
}

impl<T> Durable<T> {
    /// The log it is in.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Where it ends in the log.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The value, without the proof.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }

    /// Another value with the same proof.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Durable<U> {
        Durable {
            log: self.log,
            position: self.position,
            value: f(self.value),
        }
    }
}

/// Bits of a packed position that hold the offset: a closed segment of 8 MiB ends at 2^23.
const OFFSET_BITS: u32 = 24;

/// A position that many threads read and one advances, in one word: 40 bits of segment id (2^40
/// segments of 8 MiB are 8 EiB written by one server in one life) and 24 bits of offset.
pub(crate) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    pub(crate) fn new(durability: Durability) -> Self {
        Self(AtomicU64::new(match durability {
            Durability::Volatile => u64::MAX,
            Durability::Replicated => 0,
        }))
    }

    pub(crate) fn pack(position: LogPosition) -> u64 {
        assert!(
            position.segment.0 < 1 << (64 - OFFSET_BITS) && position.offset < 1 << OFFSET_BITS,
            "position {position} is outside of what a log can reach"
        );
        position.segment.0 << OFFSET_BITS | u64::from(position.offset)
    }

    /// Never moves backwards. Returns whether it moved.
    pub(crate) fn advance(&self, to: LogPosition) -> bool {
        // Release: whoever sees the new position sees what the replicator did before.
        let to = Self::pack(to);
        self.0.fetch_max(to, Ordering::AcqRel) < to
    }

    pub(crate) fn covers(&self, position: LogPosition) -> bool {
        // Acquire: pairs with `advance`.
        Self::pack(position) <= self.0.load(Ordering::Acquire)
    }

    /// `None` when everything is durable at once.
    pub(crate) fn get(&self) -> Option<LogPosition> {
        let packed = self.0.load(Ordering::Acquire);
        (packed != u64::MAX).then_some(LogPosition {
            segment: SegmentId(packed >> OFFSET_BITS),
            offset: (packed & ((1 << OFFSET_BITS) - 1)) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u64, offset: u32) -> LogPosition {
        LogPosition {
            segment: SegmentId(segment),
            offset,
        }
    }

    #[test]
    fn durable_positions_only_move_forward() {
        let position = AtomicPosition::new(Durability::Replicated);
        assert!(position.advance(at(5, 100)));
        assert!(!position.advance(at(4, 8 << 20)));
        assert!(!position.advance(at(5, 100)));
        assert!(position.covers(at(5, 100)) && position.covers(at(4, 8 << 20)));
        assert!(!position.covers(at(5, 101)) && !position.covers(at(6, 0)));
        assert_eq!(position.get(), Some(at(5, 100)));
        assert!(AtomicPosition::new(Durability::Volatile).covers(at(1 << 39, 8 << 20)));
    }
}
