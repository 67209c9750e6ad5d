//! Messages on their way in: pieces are put together, each message is given out once.
//!
//! Invariants
//! - INBOX-1: a message is given out once, whole. A piece of one that was given out changes
//!   nothing.
//! - INBOX-2: memory follows the bytes that have arrived, never an announced length. All messages
//!   that are not released have at most the bytes and the number that were granted. Small pieces
//!   beyond a gap have a bound, too: each takes about a hundred bytes more than it brings.
//! - INBOX-3: what a message that is cut holds is within [`room_for`] its length.

use super::packet::{Credit, MessageHead};
use super::ranges::Ranges;
use super::session::Fault;
use bytes::Bytes;
use pluvio_env::buffers::Buffer;
use pluvio_env::{Frame, Moment};
use pluvio_units::FixedMap;
use std::collections::BTreeMap;

/// Pieces of all messages that wait for earlier ones, and may be small: several times what a sender
/// has in flight.
const ISLANDS_MAX: usize = 16_384;
/// More pieces may wait if they have as many bytes in the mean. Only the last one of a message is
/// small.
const ISLAND_BYTES: usize = 512;
/// A message's buffer grows by this when it is full.
const GROWTH: usize = 4;
/// Least size of a buffer for a message of several pieces.
const BUFFER_BYTES_MIN: usize = 16 << 10;

/// Pieces of one message beyond gaps that always have a place.
const ISLANDS_FEW: usize = 16;
/// Bytes around a message that is cut: its records, and those of [`ISLANDS_FEW`] pieces.
const CUT_BYTES: usize = 4 << 10;

/// The most memory that a message of this many bytes takes until it is whole. Its bytes may wait
/// beyond a gap while its buffer has room for all of them.
pub(crate) fn room_for(bytes: u64) -> usize {
    usize::try_from(bytes)
        .unwrap_or(usize::MAX)
        .saturating_mul(2)
        + CUT_BYTES
}

/// A whole message.
pub(crate) struct Delivered {
    pub(crate) head: MessageHead,
    pub(crate) frame: Frame,
}

struct Receiving {
    head: MessageHead,
    /// The first bytes.
    prefix: Buffer,
    /// Bytes beyond a gap, by offset.
    islands: BTreeMap<u64, Bytes>,
    have: Ranges,
    /// The time of the last new bytes.
    touched: Moment,
}

pub(crate) struct Inbox {
    frame_bytes_max: u64,
    partial: FixedMap<u64, Receiving>,
    /// Bytes of the arrived pieces of `partial`.
    bytes: usize,
    /// Pieces beyond a gap, of all of `partial`.
    islands: usize,
    /// Room for all of `partial`.
    room: usize,
    /// New bytes of messages that are cut, since the session began.
    moved: u64,
    /// Messages given out.
    done: Ranges,
    begun_bytes: u64,
    granted: Credit,
}

impl Inbox {
    pub(crate) fn new(frame_bytes_max: u32, granted: Credit) -> Self {
        Self {
            frame_bytes_max: u64::from(frame_bytes_max),
            partial: FixedMap::default(),
            bytes: 0,
            islands: 0,
            room: 0,
            moved: 0,
            done: Ranges::default(),
            begun_bytes: 0,
            granted,
        }
    }

    /// What the other side may begin by now.
    pub(crate) fn granted(&self) -> Credit {
        self.granted
    }

    /// The largest message that is taken.
    pub(crate) fn frame_bytes_max(&self) -> u64 {
        self.frame_bytes_max
    }

    /// A message of this many bytes is used up: as much more may be begun.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.granted.bytes += bytes as u64;
        self.granted.messages += 1;
    }

    /// Bytes of arrived pieces that wait for others.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Room for the messages that have come in part (INBOX-3).
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// New bytes of messages that are cut, since the session began.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether nothing of this message has come, or was kept.
    pub(crate) fn is_new(&self, message: u64) -> bool {
        !self.done.contains(message) && !self.partial.contains_key(&message)
    }

    /// Whether a piece at this place would wait beyond a gap, and as many do as may. More would
    /// take more than the room of their message (INBOX-3).
    pub(crate) fn is_scattered(&self, message: u64, offset: u32) -> bool {
        self.partial.get(&message).is_some_and(|receiving| {
            let most = ISLANDS_FEW + receiving.head.bytes() as usize / ISLAND_BYTES;
            u64::from(offset) > receiving.prefix.len() as u64 && receiving.islands.len() >= most
        })
    }

    /// The last progress of the message that has waited longest for its rest.
    pub(crate) fn waits_since(&self) -> Option<Moment> {
        self.partial.values().map(|message| message.touched).min()
    }

    /// Whether nothing waits for its rest.
    pub(crate) fn is_idle(&self) -> bool {
        self.partial.is_empty()
    }

    /// Takes a piece, and gives the message that it completes.
    ///
    /// # Errors
    /// The piece breaks the rules of the protocol; the session cannot go on.
    pub(crate) fn take(
        &mut self,
        now: Moment,
        message: u64,
        head: MessageHead,
        offset: u32,
        bytes: &[u8],
    ) -> Result<Option<Delivered>, Fault> {
        let length = head.bytes();
        let range = u64::from(offset)..u64::from(offset) + bytes.len() as u64;
        if range.end > length || (bytes.is_empty() && length > 0) {
            return Err(Fault::Piece);
        }
        if self.done.contains(message) {
            return Ok(None);
        }
        if let Some(known) = self.partial.get(&message) {
            if known.head != head {
                return Err(Fault::Piece);
            }
        } else {
            self.check_new(message, length)?;
            if range == (0..length) {
                self.begun_bytes += length;
                self.done.add(message..message + 1);
                let body = Bytes::copy_from_slice(bytes);
                return Ok(Some(whole(head, body)));
            }
            self.begun_bytes += length;
            self.room += room_for(length);
            let receiving = Receiving {
                head,
                prefix: Buffer::default(),
                islands: BTreeMap::new(),
                have: Ranges::default(),
                touched: now,
            };
            self.partial.insert(message, receiving);
        }
        let receiving = self
            .partial
            .get_mut(&message)
            .expect("inserted if it was missing");
        for gap in receiving.have.gaps(range.clone()) {
            let part = &bytes[(gap.start - range.start) as usize..(gap.end - range.start) as usize];
            self.bytes += part.len();
            self.moved += part.len() as u64;
            receiving.touched = now;
            let before = receiving.islands.len();
            receiving.put(gap.start, part);
            self.islands = self.islands - before + receiving.islands.len();
        }
        receiving.have.add(range);
        if self.islands > ISLANDS_MAX + self.bytes / ISLAND_BYTES {
            return Err(Fault::Piece);
        }
        if (receiving.prefix.len() as u64) < length {
            return Ok(None);
        }
        let Some(mut receiving) = self.partial.remove(&message) else {
            return Ok(None);
        };
        self.bytes -= receiving.prefix.len();
        self.room -= room_for(length);
        self.done.add(message..message + 1);
        let body = core::mem::take(&mut receiving.prefix).freeze();
        Ok(Some(whole(head, body)))
    }

    /// INBOX-2, before anything is kept for a message.
    fn check_new(&self, message: u64, length: u64) -> Result<(), Fault> {
        if length > self.frame_bytes_max {
            return Err(Fault::TooLarge);
        }
        let begun = self.begun_bytes.saturating_add(length);
        if message >= self.granted.messages || begun > self.granted.bytes {
            return Err(Fault::Credit);
        }
        Ok(())
    }
}

impl Receiving {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        if offset > self.prefix.len() as u64 {
            self.islands.insert(offset, Bytes::copy_from_slice(bytes));
            return;
        }
        self.append(bytes);
        while let Some(island) = self.islands.remove(&(self.prefix.len() as u64)) {
            self.append(&island);
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        let after = self.prefix.len() + bytes.len();
        if after > self.prefix.capacity() {
            let whole = self.head.bytes() as usize;
            let room = whole.min((GROWTH * after).max(BUFFER_BYTES_MIN));
            let mut larger = Buffer::with_capacity(room);
            larger.extend_from_slice(&self.prefix);
            self.prefix = larger;
        }
        self.prefix.extend_from_slice(bytes);
    }
}

fn whole(head: MessageHead, mut body: Bytes) -> Delivered {
    let meta = body.split_to(head.meta_bytes as usize);
    let frame = Frame {
        opcode: head.opcode,
        meta,
        payload: body,
    };
    Delivered { head, frame }
}

#[cfg(test)]
mod tests {
    use super::super::packet::MessageKind;
    use super::*;

    const NOW: Moment = Moment(core::time::Duration::ZERO);

    fn head(meta_bytes: u32, payload_bytes: u32) -> MessageHead {
        MessageHead {
            kind: MessageKind::Request,
            opcode: 5,
            meta_bytes,
            payload_bytes,
            call: 9,
        }
    }

    fn inbox() -> Inbox {
        let granted = Credit {
            bytes: 1_000,
            messages: 4,
        };
        Inbox::new(600, granted)
    }

    // shows: INBOX-1
    #[test]
    fn pieces_in_any_order_and_overlapping_make_one_message_once() {
        let body: Vec<u8> = (0..200).collect();
        let mut inbox = inbox();
        let pieces = [150..200, 100..160, 20..110, 20..30, 0..25, 0..200, 150..200];
        let mut out = Vec::new();
        for range in pieces {
            let (offset, bytes) = (range.start as u32, &body[range]);
            out.extend(inbox.take(NOW, 0, head(10, 190), offset, bytes).unwrap());
        }
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].frame.meta, body[..10]);
        assert_eq!(out[0].frame.payload, body[10..]);
        assert!(inbox.is_idle() && inbox.bytes() == 0);
    }

    // shows: INBOX-2
    #[test]
    fn what_was_not_granted_or_contradicts_itself_is_a_fault() {
        let mut inbox = inbox();
        let mut take = |message, head, offset, bytes: &[u8]| {
            (inbox.take(NOW, message, head, offset, bytes)).map(|whole| whole.is_some())
        };
        assert_eq!(take(0, head(0, 601), 0, b"x"), Err(Fault::TooLarge));
        assert_eq!(take(4, head(0, 1), 0, b"x"), Err(Fault::Credit));
        assert_eq!(take(0, head(0, 600), 0, b"x"), Ok(false));
        assert_eq!(take(1, head(0, 401), 0, b"x"), Err(Fault::Credit));
        assert_eq!(take(0, head(1, 599), 0, b"x"), Err(Fault::Piece));
        assert_eq!(take(0, head(0, 600), 599, b"xy"), Err(Fault::Piece));
        assert_eq!(take(0, head(0, 600), 7, b""), Err(Fault::Piece));
        assert_eq!(take(1, head(0, 0), 0, b""), Ok(true));
    }

    // shows: INBOX-2
    #[test]
    fn an_announced_length_allocates_nothing() {
        let granted = Credit {
            bytes: 1 << 30,
            messages: 4,
        };
        let mut inbox = Inbox::new(1 << 30, granted);
        inbox
            .take(NOW, 0, head(0, 1 << 30), 0, &[1; 1_000])
            .unwrap();
        inbox
            .take(NOW, 0, head(0, 1 << 30), 1 << 29, &[1; 1_000])
            .unwrap();
        assert_eq!(inbox.bytes(), 2_000);
        assert!(inbox.partial[&0].prefix.capacity() <= 2 * BUFFER_BYTES_MIN);
    }

    // shows: INBOX-2
    #[test]
    fn pieces_beyond_gaps_have_a_bound_over_all_messages() {
        let granted = Credit {
            bytes: 1 << 30,
            messages: 1 << 10,
        };
        let mut inbox = Inbox::new(1 << 20, granted);
        let mut taken = 0;
        let fault = 'full: loop {
            for message in 0..1 << 10 {
                let offset = 2 * (taken >> 10) + 1;
                match inbox.take(NOW, message, head(0, 1 << 20), offset, b"x") {
                    Ok(none) => assert!(none.is_none()),
                    Err(fault) => break 'full fault,
                }
                taken += 1;
            }
        };
        assert_eq!(fault, Fault::Piece);
        assert!(
            (ISLANDS_MAX..2 * ISLANDS_MAX).contains(&(taken as usize)),
            "{taken}"
        );
    }

    // shows: INBOX-3
    #[test]
    fn a_message_in_small_pieces_stays_within_its_room() {
        let granted = Credit {
            bytes: 1 << 30,
            messages: 4,
        };
        let mut inbox = Inbox::new(1 << 20, granted);
        assert!(inbox.is_new(0));
        let (whole, mut taken) = (100_000, 0);
        for offset in (1..whole).step_by(2) {
            if !inbox.is_scattered(0, offset) {
                taken += 1;
                inbox.take(NOW, 0, head(0, whole), offset, b"x").unwrap();
            }
        }
        assert_eq!(taken, ISLANDS_FEW + whole as usize / ISLAND_BYTES);
        assert!(!inbox.is_new(0) && !inbox.is_scattered(0, 0));
        assert_eq!(inbox.room(), room_for(whole.into()));
        // About a hundred bytes for each, and the buffer.
        assert!(100 * taken + whole as usize <= inbox.room());
        let rest = inbox.take(NOW, 0, head(0, whole), 0, &vec![0; whole as usize]);
        assert!(rest.unwrap().is_some());
        assert_eq!((inbox.room(), inbox.moved()), (0, whole.into()));
    }
}
