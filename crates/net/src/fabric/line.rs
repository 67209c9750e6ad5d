//! One connection as its messages see it: bytes that have come, and bytes that may be sent.
//!
//! ```text
//!  0               8                16              24
//!  +---------------+----------------+---------------+---------
//!  | key           | number         | taken         | bytes …
//!  | u64           | u64            | u64           |
//!  +---------------+----------------+---------------+---------
//! ```
//!
//! "key" is that of the receiving side's connection; the receiver chose it at random. "number"
//! counts the bytes of this way before these. "taken" counts the bytes of the other way that the
//! sender's connection has read. Numbers are little endian. A message without bytes carries its
//! header alone.
//!
//! Invariants
//! - LINE-1: the bytes that wait here are at most `window`. The other side has been told so, and
//!   one that sends more is cut off.
//! - LINE-2: bytes come out in the order in which they went in, and without a gap. A message whose
//!   number is not the next one ends the connection.
//!
//! Threads: the tasks of one core use it. Its lock is for the compiler; nobody waits for it.

use crate::lock;
use bytes::{Buf, BytesMut};
use core::task::Waker;
use pluvio_env::Moment;
use pluvio_fabric::PeerId;
use std::io;
use std::sync::{Mutex, OnceLock};
use tokio::io::ReadBuf;

/// Bytes of a message's header.
pub(super) const HEAD_BYTES: usize = 24;
/// An empty buffer above this is given back.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// The other side is told what was taken when it is this share of the window.
const TELL_SHARE: u64 = 4;

/// A header that came from the other side, with nothing checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) key: u64,
    pub(super) number: u64,
    pub(super) taken: u64,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let words = [self.key, self.number, self.taken];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The header of a message and the bytes behind it. `None`: it is too short for one.
    pub(super) fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (key, rest) = message.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (taken, rest) = rest.split_first_chunk()?;
        let head = Self {
            key: u64::from_le_bytes(*key),
            number: u64::from_le_bytes(*number),
            taken: u64::from_le_bytes(*taken),
        };
        Some((head, rest))
    }
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("a message is missing: byte {expected} was due, and {came} came")]
    Gap { expected: u64, came: u64 },
    #[error("it sent more than there is room for")]
    Flood,
    #[error("it says that it has read {said} of {sent} bytes, after {before}")]
    Taken { said: u64, before: u64, sent: u64 },
    #[error("a message to it was not delivered")]
    Undelivered,
    #[error("the endpoint failed")]
    Endpoint,
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let kind = match fault {
            Fault::Gap { .. } | Fault::Flood | Fault::Taken { .. } => io::ErrorKind::InvalidData,
            Fault::Undelivered | Fault::Endpoint => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, fault)
    }
}

pub(super) struct Line {
    /// Of this side.
    pub(super) key: u64,
    /// Bytes that may wait here.
    window: u64,
    /// The other side's endpoint, once it is known.
    pub(super) peer: OnceLock<PeerId>,
    state: Mutex<State>,
}

struct State {
    waiting: BytesMut,
    /// Bytes that have come and that were read.
    came: u64,
    taken: u64,
    /// The number of bytes read that the other side was told last.
    told: u64,
    sent: u64,
    /// The part of `sent` that the other side has read.
    read_there: u64,
    /// A message has come.
    is_met: bool,
    fault: Option<Fault>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    heard: Moment,
}

impl Line {
    pub(super) fn new(key: u64, window: u64, now: Moment) -> Self {
        Self {
            key,
            window,
            peer: OnceLock::new(),
            state: Mutex::new(State {
                waiting: BytesMut::new(),
                came: 0,
                taken: 0,
                told: 0,
                sent: 0,
                read_there: 0,
                is_met: false,
                fault: None,
                reader: None,
                writer: None,
                heard: now,
            }),
        }
    }

    /// Takes a message that names this line.
    pub(super) fn arrive(&self, head: Head, bytes: &[u8], now: Moment) {
        let (reader, writer) = {
            let mut state = lock(&self.state);
            state.heard = now;
            if state.fault.is_none() {
                state.fault = state.arrive(head, bytes, self.window).err();
            }
            let has_room = state.read_there != head.taken || state.fault.is_some();
            state.read_there = head.taken;
            let writer = if has_room { state.writer.take() } else { None };
            (state.reader.take(), writer)
        };
        for waker in [reader, writer].into_iter().flatten() {
            waker.wake();
        }
    }

    /// Ends it.
    pub(super) fn fail(&self, fault: Fault) {
        let wakers = {
            let mut state = lock(&self.state);
            state.fault.get_or_insert(fault);
            [state.reader.take(), state.writer.take()]
        };
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }

    /// Whether a message has come; if not, `waker` is woken by the first one.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub(super) fn is_met(&self, waker: &Waker) -> io::Result<bool> {
        let mut state = lock(&self.state);
        match state.fault {
            Some(fault) => Err(fault.into()),
            None if state.is_met => Ok(true),
            None => {
                state.reader = Some(waker.clone());
                Ok(false)
            }
        }
    }

    /// Reads what is here. Gives its length.
    pub(super) fn read(&self, into: &mut ReadBuf<'_>) -> usize {
        let mut state = lock(&self.state);
        let len = state.waiting.len().min(into.remaining());
        into.put_slice(&state.waiting[..len]);
        state.waiting.advance(len);
        state.taken += len as u64;
        if state.waiting.is_empty() && state.waiting.capacity() > KEPT_BYTES_MAX {
            state.waiting = BytesMut::new();
        }
        len
    }

    /// Has `waker` woken by the next bytes. `false`: some are here.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub(super) fn wait_to_read(&self, waker: &Waker) -> io::Result<bool> {
        let mut state = lock(&self.state);
        if !state.waiting.is_empty() {
            return Ok(false);
        }
        if let Some(fault) = state.fault {
            return Err(fault.into());
        }
        keep(&mut state.reader, waker);
        Ok(true)
    }

    /// Whether the other side should be told what was read.
    pub(super) fn has_to_tell(&self) -> bool {
        let state = lock(&self.state);
        state.taken - state.told >= self.window / TELL_SHARE
    }

    /// The bytes that the other side has room for, of the `window` there.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub(super) fn room(&self, window: u64) -> io::Result<u64> {
        let state = lock(&self.state);
        match state.fault {
            Some(fault) => Err(fault.into()),
            None => Ok(window - (state.sent - state.read_there)),
        }
    }

    /// Has `waker` woken when there is more room. `false`: there is.
    pub(super) fn wait_to_write(&self, window: u64, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let is_full = state.sent - state.read_there == window && state.fault.is_none();
        if is_full {
            keep(&mut state.writer, waker);
        }
        is_full
    }

    /// The header of the next message, to the side with this key.
    pub(super) fn head(&self, key: u64) -> Head {
        let state = lock(&self.state);
        Head {
            key,
            number: state.sent,
            taken: state.taken,
        }
    }

    /// Notes that a message with this header and this number of bytes is on its way.
    pub(super) fn note_sent(&self, head: Head, bytes: usize) {
        let mut state = lock(&self.state);
        state.sent += bytes as u64;
        state.told = head.taken;
    }

    /// The time of the last message.
    pub(super) fn heard(&self) -> Moment {
        lock(&self.state).heard
    }
}

impl State {
    fn arrive(&mut self, head: Head, bytes: &[u8], window: u64) -> Result<(), Fault> {
        // LINE-2
        if head.number != self.came {
            return Err(Fault::Gap {
                expected: self.came,
                came: head.number,
            });
        }
        if head.taken < self.read_there || head.taken > self.sent {
            return Err(Fault::Taken {
                said: head.taken,
                before: self.read_there,
                sent: self.sent,
            });
        }
        // LINE-1
        if (self.waiting.len() + bytes.len()) as u64 > window {
            return Err(Fault::Flood);
        }
        self.is_met = true;
        self.waiting.extend_from_slice(bytes);
        self.came += bytes.len() as u64;
        Ok(())
    }
}

fn keep(place: &mut Option<Waker>, waker: &Waker) {
    if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
        *place = Some(waker.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const NOW: Moment = Moment(Duration::ZERO);

    fn head(number: u64, taken: u64) -> Head {
        Head {
            key: 1,
            number,
            taken,
        }
    }

    fn line() -> Line {
        Line::new(1, 8, NOW)
    }

    fn fault_after(messages: &[(Head, &[u8])]) -> Option<String> {
        let line = line();
        line.note_sent(head(0, 0), 4);
        for (head, bytes) in messages {
            line.arrive(*head, bytes, NOW);
        }
        line.room(8).err().map(|error| error.to_string())
    }

    #[test]
    fn a_header_survives_and_a_short_message_has_none() {
        let there = head(7, u64::MAX);
        let mut bytes = there.encode().to_vec();
        bytes.push(9);
        assert_eq!(Head::decode(&bytes), Some((there, &[9][..])));
        assert_eq!(Head::decode(&bytes[..HEAD_BYTES - 1]), None);
        assert_eq!(Head::decode(&[]), None);
    }

    // shows: LINE-1, LINE-2
    #[test]
    fn what_cannot_be_ends_the_line() {
        let good: (Head, &[u8]) = (head(0, 0), b"1234");
        assert_eq!(fault_after(&[good, (head(4, 4), b"5678")]), None);
        for (bad, word) in [
            ((head(3, 0), &b"5"[..]), "missing"),
            ((head(5, 0), b"5"), "missing"),
            ((head(u64::MAX, 0), b"5"), "missing"),
            ((head(4, 5), b"5"), "has read"),
            ((head(4, u64::MAX), b""), "has read"),
            ((head(4, 0), b"56789"), "more than"),
        ] {
            let fault = fault_after(&[good, bad]).unwrap();
            assert!(fault.contains(word), "{fault}");
            // It stays the first one.
            assert_eq!(fault_after(&[good, bad, good]), Some(fault));
        }
        let back = fault_after(&[(head(0, 3), b""), (head(0, 2), b"")]).unwrap();
        assert!(back.contains("has read"), "{back}");
    }

    #[test]
    fn bytes_before_a_fault_are_read() {
        let line = line();
        line.arrive(head(0, 0), b"123", NOW);
        line.fail(Fault::Undelivered);
        let mut space = [0; 8];
        let mut into = ReadBuf::new(&mut space);
        assert_eq!(line.wait_to_read(Waker::noop()).ok(), Some(false));
        assert_eq!(line.read(&mut into), 3);
        assert!(line.wait_to_read(Waker::noop()).is_err());
        assert!(line.is_met(Waker::noop()).is_err());
    }

    #[test]
    fn the_other_side_is_told_when_a_share_was_read() {
        let line = line();
        line.arrive(head(0, 0), b"12345678", NOW);
        let read = |count: usize| {
            let mut space = vec![0; count];
            line.read(&mut ReadBuf::new(&mut space));
            line.has_to_tell()
        };
        assert!(!read(1));
        assert!(read(1));
        line.note_sent(line.head(2), 0);
        assert!(!line.has_to_tell());
    }
}
