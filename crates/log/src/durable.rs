//! Durability as a type (rule C).
//!
//! ```text
//!  append ──► Appended<T> ──LogSpace::confirm──► Durable<T> ──► success reply
//!                 ▲                                  ▲
//!  a slot that is marked pending ──PendingMarks──────┤  a slot without the mark, or no slot
//! ```
//!
//! - DURABLE-1: only the log makes an [`Appended`], from its own appends or for the owner of the
//!   pending marks. Only the durable position of a log, or the absence of a mark, makes a
//!   [`Durable`].
//! - DURABLE-2: a success reply is made from a `Durable` only. A caller cannot build one:
//!
//! ```compile_fail,E0423
//! // The field is private.
//! let forged = pluvio_log::Durable("a reply that nothing stands for");
//! ```
//!
//! ```compile_fail,E0451
//! use pluvio_log::Appended;
//! use pluvio_units::{LogId, LogPosition, Waits};
//! // The fields are private.
//! let forged = Appended { waits: Waits::new(LogId(0), LogPosition::default()), value: () };
//! ```
//!
//! ```compile_fail,E0423
//! // Only a log space gives the marks away, and only once.
//! let forged = pluvio_log::PendingMarks(());
//! ```
//!
//! Plain values; any thread. The durable position is advanced by one thread and read by many.

use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_units::{LogId, LogPosition, SegmentId, Waits};

/// The condition under which an append counts as durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Nothing: there are no replicas, an append is durable at once.
    Volatile,
    /// Replication reports how far each log is safe on its backups.
    Replicated,
}

/// Something that is in the log, up to a position, and not yet known to be durable. A value that
/// rests on entries of several logs waits for a position in each of them.
#[derive(Debug)]
#[must_use = "what was appended is not durable before LogSpace::confirm says so"]
pub struct Appended<T> {
    waits: Waits,
    value: T,
}

impl<T> Appended<Option<T>> {
    /// The same wait for a value that is there; `None` when it is not.
    #[must_use]
    pub fn transpose(self) -> Option<Appended<T>> {
        let waits = self.waits;
        self.value.map(|value| Appended { waits, value })
    }
}

impl<T> Appended<T> {
    /// A value that counts only once `log` is durable up to `position`.
    pub(crate) fn new(log: LogId, position: LogPosition, value: T) -> Self {
        Self {
            waits: Waits::new(log, position),
            value,
        }
    }

    /// The log to wait for.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.waits.first().0
    }

    /// The position to wait for: the end of what was appended.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        self.waits.first().1
    }

    /// Everything to wait for: one position in each log.
    pub fn waits(&self) -> impl Iterator<Item = (LogId, LogPosition)> + '_ {
        self.waits.iter()
    }

    /// The value, to be looked at but not to be shown to a client.
    #[must_use]
    pub fn pending(&self) -> &T {
        &self.value
    }

    /// The same wait for another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Appended<U> {
        Appended {
            waits: self.waits,
            value: f(self.value),
        }
    }

    /// The same wait for another value as well.
    pub fn and<U>(&self, value: U) -> Appended<U> {
        Appended {
            waits: self.waits.clone(),
            value,
        }
    }

    /// The same wait for two values.
    pub fn split<U, V>(self, f: impl FnOnce(T) -> (U, V)) -> (Appended<U>, Appended<V>) {
        let (first, second) = f(self.value);
        let split = Appended {
            waits: self.waits.clone(),
            value: first,
        };
        let rest = Appended {
            waits: self.waits,
            value: second,
        };
        (split, rest)
    }

    /// The positions to wait for, and the value without any proof: for a holder that opens it only
    /// once they are durable.
    #[must_use]
    pub fn into_parts(self) -> (Waits, T) {
        (self.waits, self.value)
    }

    pub(crate) fn into_durable(self) -> Durable<T> {
        Durable(self.value)
    }
}

/// Something that survives the loss of this server, as far as its store promises that.
#[derive(Debug)]
pub struct Durable<T>(T);

impl<T> Durable<T> {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.0
    }

    /// The value, without the proof.
    #[must_use]
    pub fn into_value(self) -> T {
        self.0
    }

    /// Another value with the same proof.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Durable<U> {
        Durable(f(self.0))
    }
}

/// A value that is durable, or will be.
#[derive(Debug)]
#[must_use = "what is not durable yet must not be shown to a client"]
pub enum Awaited<T> {
    /// It is.
    Now(Durable<T>),
    /// It will be, unless this server is lost before.
    Later(Appended<T>),
}

impl<T> Awaited<T> {
    /// The value, to be looked at but not to be shown to a client.
    #[must_use]
    pub fn pending(&self) -> &T {
        match self {
            Self::Now(durable) => durable.value(),
            Self::Later(appended) => appended.pending(),
        }
    }

    /// The value without any proof: for a process that looks into its own store.
    #[must_use]
    pub fn into_pending(self) -> T {
        match self {
            Self::Now(durable) => durable.0,
            Self::Later(appended) => appended.value,
        }
    }

    /// The same wait for another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Awaited<U> {
        match self {
            Self::Now(durable) => Awaited::Now(durable.map(f)),
            Self::Later(appended) => Awaited::Later(appended.map(f)),
        }
    }
}

impl<T> From<Appended<T>> for Awaited<T> {
    fn from(appended: Appended<T>) -> Self {
        Self::Later(appended)
    }
}

/// The right to interpret the pending marks of index slots: the owner of the index has it.
/// [`LogSpace::pending_marks`](crate::LogSpace::pending_marks) gives it away once.
///
/// A slot is marked when an entry is appended that the slot points to, and the mark is taken off
/// when that entry is durable. A deleted key keeps its slot until its tombstone is durable. So a
/// slot without the mark is final, and so is the absence of a slot.
#[derive(Debug)]
pub struct PendingMarks(());

impl PendingMarks {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// A value that rests on slots without marks, or on a store whose logs have no replicas: it
    /// makes no promise about crashes.
    pub fn unmarked<T>(&self, value: T) -> Durable<T> {
        Durable(value)
    }

    /// A value that rests on entries of marked slots, or of results: the end of the last one of
    /// each log. Without any it is durable.
    pub fn marked<T>(
        &self,
        ends: impl IntoIterator<Item = (LogId, LogPosition)>,
        value: T,
    ) -> Awaited<T> {
        let mut ends = ends.into_iter();
        let Some((log, position)) = ends.next() else {
            return Awaited::Now(Durable(value));
        };
        let mut appended = Appended::new(log, position, value);
        for (log, position) in ends {
            appended.waits.also(log, position);
        }
        Awaited::Later(appended)
    }
}

/// Bits of a packed position that hold the offset: a closed segment of 8 MiB ends at 2^23.
const OFFSET_BITS: u32 = 24;

/// A position that many threads read and one advances, in one word: 40 bits of segment id and 24
/// bits of offset. 2^40 segments of 8 MiB are 8 EiB written by one server in one life.
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
        // Release: a thread that sees the new position sees what the replicator did before.
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
