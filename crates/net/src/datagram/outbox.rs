//! Messages on their way out: waiting, begun, and partly acknowledged.
//!
//! Invariants
//! - OUTBOX-1: a message is begun only if the other side has given credit for all of it. So nothing
//!   else of its session keeps a begun message from its end. The memory that all sessions of the
//!   other side share may delay its first piece.
//! - OUTBOX-2: each byte of a begun message is in exactly one of three states: to be sent, in
//!   flight (perhaps lost), or acknowledged.
//! - OUTBOX-3: every other piece is of a message that the other side has a part of, if one has
//!   something to send. Such a message has room there, so it ends however many others have none.

use super::packet::{Credit, MessageHead, MessageKind};
use super::ranges::Ranges;
use core::ops::Range;
use pluvio_env::Frame;
use pluvio_units::FixedMap;
use std::collections::VecDeque;

/// A piece smaller than this waits for a datagram of its own, if it is not the rest of its message.
const PIECE_BYTES_MIN: usize = 64;

/// Turns of messages that the other side has nothing of, and of those that it has a part of.
const NEW: usize = 0;
const PARTLY: usize = 1;

/// A message to be sent.
pub(crate) struct Message {
    pub(crate) kind: MessageKind,
    pub(crate) call: u64,
    pub(crate) frame: Frame,
}

struct Sending {
    head: MessageHead,
    frame: Frame,
    /// Ranges to be sent, lost ones first.
    to_send: VecDeque<Range<u32>>,
    acked: Ranges,
    /// Whether it is in one of `turns`.
    in_turn: bool,
}

/// Bytes of a message that went into a datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) message: u64,
    pub(crate) range: Range<u32>,
}

#[derive(Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    begun: FixedMap<u64, Sending>,
    begun_bytes: usize,
    /// Begun messages with something to send, each once in one of the two. In the second are those
    /// that the other side has a part of.
    turns: [VecDeque<u64>; 2],
    /// Where the next piece is taken from, if it has one.
    next_turn: usize,
    /// Bytes that the other side has acknowledged.
    moved: u64,
    /// What was begun since the session began.
    used: Credit,
    /// What may have been begun by now.
    credit: Credit,
    /// A message of at most this many bytes goes in one piece.
    whole_bytes: usize,
}

impl Outbox {
    /// `whole_bytes`: room for a piece that every datagram has which carries nothing else.
    pub(crate) fn new(credit: Credit, whole_bytes: usize) -> Self {
        Self {
            credit,
            whole_bytes,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, message: Message) {
        self.waiting_bytes += message.frame.len();
        self.waiting.push_back(message);
        self.begin();
    }

    /// Messages that wait for credit.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes of all messages that are not acknowledged.
    pub(crate) fn bytes(&self) -> usize {
        self.waiting_bytes + self.begun_bytes
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.begun.is_empty()
    }

    /// Takes new credit. One that came out of order changes nothing.
    pub(crate) fn grant(&mut self, credit: Credit) {
        self.credit.bytes = self.credit.bytes.max(credit.bytes);
        self.credit.messages = self.credit.messages.max(credit.messages);
        self.begin();
    }

    /// Begins what the credit allows.
    fn begin(&mut self) {
        while let Some(first) = self.waiting.front() {
            let bytes = first.frame.len();
            let after = Credit {
                bytes: self.used.bytes + bytes as u64,
                messages: self.used.messages + 1,
            };
            if after.bytes > self.credit.bytes || after.messages > self.credit.messages {
                return;
            }
            let Some(message) = self.waiting.pop_front() else {
                return;
            };
            let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("within the frame limit");
            let head = MessageHead {
                kind: message.kind,
                opcode: message.frame.opcode,
                meta_bytes: length(&message.frame.meta),
                payload_bytes: length(&message.frame.payload),
                call: message.call,
            };
            let id = self.used.messages;
            self.used = after;
            self.waiting_bytes -= bytes;
            self.begun_bytes += bytes;
            self.begun.insert(
                id,
                Sending {
                    head,
                    frame: message.frame,
                    to_send: core::iter::once(0..head.meta_bytes + head.payload_bytes).collect(),
                    acked: Ranges::default(),
                    in_turn: true,
                },
            );
            self.turns[NEW].push_back(id);
        }
    }

    /// Bytes that the other side has acknowledged since the session began.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether a begun message has something to send.
    pub(crate) fn has_pieces(&self) -> bool {
        self.turns.iter().any(|turn| !turn.is_empty())
    }

    /// Writes the next piece, of at most `room` bytes without its head. Messages take turns, so
    /// that small ones pass large ones. `None`: nothing to send, or it wants more room.
    pub(crate) fn next_piece(
        &mut self,
        room: usize,
        write: impl FnOnce(u64, &MessageHead, u32, [&[u8]; 2]),
    ) -> Option<Piece> {
        let from = match self.turns[self.next_turn].is_empty() {
            true => 1 - self.next_turn,
            false => self.next_turn,
        };
        let id = *self.turns[from].front()?;
        let sending = self.begun.get_mut(&id).expect("it is begun while in turn");
        let next = sending.to_send.front_mut().expect("OUTBOX-2: it has some");
        let left = next.len();
        // Small messages are not cut, so that they keep their order.
        if left > room && (room < PIECE_BYTES_MIN || left <= self.whole_bytes) {
            return None;
        }
        let end = next.start + left.min(room) as u32;
        let range = next.start..end;
        next.start = end;
        if next.start == next.end {
            sending.to_send.pop_front();
        }
        write(
            id,
            &sending.head,
            range.start,
            slices(&sending.frame, &range),
        );
        self.turns[from].pop_front();
        self.next_turn = 1 - from;
        sending.in_turn = !sending.to_send.is_empty();
        if sending.in_turn {
            self.turns[from].push_back(id);
        }
        Some(Piece { message: id, range })
    }

    /// The other side has these bytes.
    pub(crate) fn acked(&mut self, piece: &Piece) {
        let Some(sending) = self.begun.get_mut(&piece.message) else {
            return;
        };
        self.moved += piece.range.len() as u64;
        if sending.in_turn && sending.turn() == NEW {
            // It has room there.
            self.turns[NEW].retain(|&id| id != piece.message);
            self.turns[PARTLY].push_back(piece.message);
        }
        sending.acked.add(wide(&piece.range));
        let whole = 0..sending.head.bytes();
        // The only piece of an empty message is empty.
        if sending.acked.covers(&whole) {
            self.begun_bytes -= sending.frame.len();
            if sending.in_turn {
                self.turns[PARTLY].retain(|&id| id != piece.message);
            }
            self.begun.remove(&piece.message);
        }
    }

    /// These bytes are probably lost, and are sent again.
    pub(crate) fn lost(&mut self, piece: &Piece) {
        let Some(sending) = self.begun.get_mut(&piece.message) else {
            return;
        };
        if piece.range.is_empty() {
            sending.to_send.push_front(piece.range.clone());
        } else {
            for gap in sending.acked.gaps(wide(&piece.range)) {
                sending.to_send.push_front(gap.start as u32..gap.end as u32);
            }
        }
        if !sending.in_turn && !sending.to_send.is_empty() {
            sending.in_turn = true;
            let turn = sending.turn();
            let is_cut = sending.frame.len() > self.whole_bytes;
            match is_cut && turn == NEW {
                // There may be no room for it: it leaves the turn to others.
                true => self.turns[turn].push_back(piece.message),
                // Before what was never sent: others may wait for its rest.
                false => self.turns[turn].push_front(piece.message),
            }
        }
    }
}

impl Sending {
    /// Which of the turns it takes part in.
    fn turn(&self) -> usize {
        match self.acked.as_slice().is_empty() {
            true => NEW,
            false => PARTLY,
        }
    }
}

fn wide(range: &Range<u32>) -> Range<u64> {
    u64::from(range.start)..u64::from(range.end)
}

/// The bytes `range` of meta and payload in a row.
fn slices<'a>(frame: &'a Frame, range: &Range<u32>) -> [&'a [u8]; 2] {
    let (start, end) = (range.start as usize, range.end as usize);
    let meta_bytes = frame.meta.len();
    let meta = &frame.meta[start.min(meta_bytes)..end.min(meta_bytes)];
    let payload =
        &frame.payload[start.max(meta_bytes) - meta_bytes..end.max(meta_bytes) - meta_bytes];
    [meta, payload]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(meta: usize, payload: usize) -> Message {
        Message {
            kind: MessageKind::Request,
            call: 7,
            frame: Frame {
                opcode: 1,
                meta: vec![1; meta].into(),
                payload: vec![2; payload].into(),
            },
        }
    }

    fn credit(bytes: u64, messages: u64) -> Credit {
        Credit { bytes, messages }
    }

    fn piece(outbox: &mut Outbox, room: usize) -> Option<(u64, Range<u32>)> {
        let piece = outbox.next_piece(room, |_, _, _, _| {})?;
        Some((piece.message, piece.range))
    }

    // shows: OUTBOX-1
    #[test]
    fn a_message_without_credit_for_all_of_it_is_not_begun() {
        let mut outbox = Outbox::new(credit(100, 2), 0);
        outbox.push(message(10, 80));
        outbox.push(message(0, 11));
        outbox.push(message(0, 0));
        assert_eq!(piece(&mut outbox, 1_000), Some((0, 0..90)));
        assert_eq!(piece(&mut outbox, 1_000), None, "11 bytes are too much");
        outbox.grant(credit(101, 2));
        assert_eq!(piece(&mut outbox, 1_000), Some((1, 0..11)));
        assert_eq!(
            piece(&mut outbox, 1_000),
            None,
            "a third message is one too many"
        );
        outbox.grant(credit(50, 3));
        assert_eq!(piece(&mut outbox, 1_000), Some((2, 0..0)));
        assert_eq!((outbox.waiting(), outbox.bytes()), (0, 101));
    }

    // shows: OUTBOX-2
    #[test]
    fn lost_pieces_are_sent_again_without_what_was_acknowledged() {
        let mut outbox = Outbox::new(credit(1_000, 10), 0);
        outbox.push(message(50, 150));
        assert_eq!(piece(&mut outbox, 120), Some((0, 0..120)));
        assert_eq!(piece(&mut outbox, 120), Some((0, 120..200)));
        let part = |range| Piece { message: 0, range };
        outbox.lost(&part(0..120));
        assert_eq!(piece(&mut outbox, 100), Some((0, 0..100)));
        // The first copy arrived after all.
        outbox.acked(&part(0..120));
        outbox.lost(&part(0..100));
        outbox.lost(&part(120..200));
        assert_eq!(piece(&mut outbox, 30), None, "too little room for so much");
        let rest: Vec<_> = core::iter::from_fn(|| piece(&mut outbox, 500)).collect();
        assert!(rest.contains(&(0, 120..200)), "{rest:?}");
        outbox.acked(&part(120..200));
        assert!(outbox.is_empty() && outbox.bytes() == 0);
        outbox.lost(&part(120..200));
        assert!(
            !outbox.has_pieces(),
            "a message that is done is sent no more"
        );
    }

    #[test]
    fn small_messages_pass_large_ones_and_keep_their_order() {
        let mut outbox = Outbox::new(credit(10_000, 10), 0);
        outbox.push(message(0, 300));
        outbox.push(message(0, 10));
        outbox.push(message(0, 20));
        let order: Vec<_> = core::iter::from_fn(|| piece(&mut outbox, 100)).collect();
        assert_eq!(
            order,
            [
                (0, 0..100),
                (1, 0..10),
                (2, 0..20),
                (0, 100..200),
                (0, 200..300)
            ]
        );
    }

    #[test]
    fn a_message_that_fits_a_datagram_waits_for_room_and_others_wait_behind_it() {
        let mut outbox = Outbox::new(credit(10_000, 10), 200);
        outbox.push(message(0, 150));
        outbox.push(message(0, 10));
        assert_eq!(piece(&mut outbox, 149), None);
        assert_eq!(piece(&mut outbox, 150), Some((0, 0..150)));
        assert_eq!(piece(&mut outbox, 150), Some((1, 0..10)));
    }

    #[test]
    fn pieces_carry_the_bytes_of_both_parts() {
        let mut outbox = Outbox::new(credit(10_000, 10), 0);
        outbox.push(message(5, 6));
        let mut all = Vec::new();
        while outbox.has_pieces() {
            outbox.next_piece(64, |id, head, offset, parts| {
                assert_eq!((id, head.call, offset as usize), (0, 7, all.len()));
                all.extend(parts.concat());
            });
        }
        assert_eq!(all, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    }

    // shows: OUTBOX-3
    #[test]
    fn a_message_with_room_moves_on_among_many_that_are_refused() {
        let mut outbox = Outbox::new(credit(1 << 20, 100), 1_000);
        for _ in 0..50 {
            outbox.push(message(0, 2_000));
        }
        // Only the last one finds room. Pieces of all others are lost again and again.
        let (mut rounds, mut small) = (0, false);
        while outbox.begun.contains_key(&49) {
            rounds += 1;
            let sent = outbox.next_piece(1_000, |_, _, _, _| {}).unwrap();
            match sent.message {
                49 => outbox.acked(&sent),
                50 => small = true,
                _ => outbox.lost(&sent),
            }
            if rounds == 10 {
                outbox.push(message(0, 10));
            }
        }
        // One turn among the new, and the next piece right away.
        assert!(rounds <= 60, "{rounds}");
        for _ in 0..60 {
            let sent = outbox.next_piece(1_000, |_, _, _, _| {}).unwrap();
            small |= sent.message == 50;
            outbox.lost(&sent);
        }
        assert!(small, "a small one passes those that are refused");
    }
}
