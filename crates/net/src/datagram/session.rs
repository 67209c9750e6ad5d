//! One session between two processes: messages both ways over datagrams that may be lost, doubled,
//! overtaken, damaged or forged. It knows no socket, clock or task: bytes, times and messages go in
//! and come out.
//!
//! Invariants
//! - SESSION-1: a datagram without the session's tag, or with a number that came before, changes
//!   nothing. One with a piece that was refused counts as not received: its content comes again.
//! - SESSION-2: the arrived pieces that a session keeps are within the credit that it gave
//!   (INBOX-2). Its notes of datagrams in flight are bounded as well (FLIGHT-1).
//! - SESSION-3: a session ends when it has datagrams in flight and hears nothing for `silence`, or
//!   when it hears nothing at all for `idle`. It also ends when the rest of a message is late by
//!   `message`.
//! - SESSION-4: a peer hears something whenever pieces of it were refused, so that a refusal never
//!   ends a session as silence does.

use super::flight::{ACK_PAUSE, Carried, Fate, Flight};
use super::inbox::{Delivered, Inbox, room_for};
use super::opening::Terms;
use super::outbox::{Message, Outbox};
use super::packet::{
    self, CREDIT_BYTES, Credit, HEAD_BYTES, Head, Kind, PIECE_BYTES, Part, RANGES_MAX, Take,
};
use super::ranges::Ranges;
use super::siphash::{Key, siphash};
use core::time::Duration;
use pluvio_env::Moment;

/// Ranges of received numbers that are remembered. A datagram older than all of them counts as
/// received: its sender sends what it carried in another one.
const RECEIVED_RANGES_MAX: usize = 4 * RANGES_MAX;
/// When a peer hears something after a refusal. What is refused comes again about this often.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// What an authentic datagram may break. Its sender is no peer of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a datagram whose parts cannot be told")]
    Part,
    #[error("a piece that does not fit its message")]
    Piece,
    #[error("a message over the limit")]
    TooLarge,
    #[error("a message beyond the credit")]
    Credit,
    #[error("an ack of what was not sent")]
    Ack,
    #[error("a message that comes the wrong way")]
    WrongWay,
}

/// Why a session is over.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("the peer closed it: {0}")]
    Closed(String),
    #[error("the peer does not know the session; it has restarted, or gave it up")]
    Reset,
    #[error("no answer from the peer for {0:?}")]
    Silent(Duration),
    #[error("the rest of a message did not come in time")]
    Overdue,
    #[error("the peer stood still, and others needed the memory that it held")]
    Evicted,
    #[error("{0}")]
    Fault(#[from] Fault),
}

/// A message that is about to begin.
pub(crate) struct Beginning<'a> {
    pub(crate) opcode: u16,
    /// Its first bytes, if they are here.
    pub(crate) begun: &'a [u8],
    /// Room for it and all that have come in part, if it is cut.
    pub(crate) room: Option<usize>,
}

/// Says whether a message may begin.
pub(crate) type Gate<'a> = &'a mut dyn FnMut(&Beginning<'_>) -> bool;

/// Why a datagram changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ignored {
    /// Its tag is wrong.
    Forged,
    /// It came before.
    Repeated,
}

/// What a datagram did instead of being taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    Ignored(Ignored),
    End(End),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::End(End::Fault(fault))
    }
}

/// Times and sizes of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long datagrams may go unacknowledged.
    pub(crate) silence: Duration,
    /// How long a side that never answered is kept.
    pub(crate) opening: Duration,
    /// How long nothing may be heard.
    pub(crate) idle: Duration,
    /// How long a message may wait for its next piece.
    pub(crate) message: Duration,
    /// Pause after which an idle peer is asked whether it is there. The other side only answers.
    pub(crate) keepalive: Option<Duration>,
    /// The same while calls wait for replies.
    pub(crate) waiting: Duration,
    /// Most bytes in flight.
    pub(crate) flight_bytes_max: usize,
}

/// What a session is made of.
pub(crate) struct Setup {
    /// The peer's id of the session.
    pub(crate) peer_session: u64,
    /// For what is sent.
    pub(crate) key_out: Key,
    /// For what is received.
    pub(crate) key_in: Key,
    pub(crate) ours: Terms,
    pub(crate) theirs: Terms,
    pub(crate) limits: Limits,
}

pub(crate) struct Session {
    peer_session: u64,
    key_out: Key,
    key_in: Key,
    limits: Limits,
    datagram_bytes: usize,
    window: Credit,
    frame_bytes_max: usize,

    received: Ranges,
    /// Lower numbers count as received.
    received_floor: u64,
    /// The highest number received, and when it came.
    largest: Option<(u64, Moment)>,
    /// Datagrams to be acknowledged.
    unacked: usize,
    /// When to acknowledge at the latest.
    ack_by: Option<Moment>,
    inbox: Inbox,
    /// When to look for messages that wait for their rest.
    look_at: Option<Moment>,

    next_number: u64,
    flight: Flight,
    outbox: Outbox,
    /// The credit that was told last.
    told: Credit,
    credit_due: bool,
    ping_due: bool,
    /// Datagrams that may be sent beyond the window.
    probes: usize,
    /// Datagrams found lost, since they were last counted.
    lost: usize,

    is_confirmed: bool,
    /// Whether replies are waited for.
    is_waiting: bool,
    heard_at: Moment,
    asked_at: Moment,
    /// Since when datagrams fly and nothing was heard.
    unanswered_since: Option<Moment>,
}

impl Session {
    pub(crate) fn new(now: Moment, setup: &Setup) -> Self {
        let (ours, theirs) = (&setup.ours, &setup.theirs);
        let datagram_bytes = ours.datagram_bytes_max.min(theirs.datagram_bytes_max) as usize;
        let whole_bytes = datagram_bytes - HEAD_BYTES - CREDIT_BYTES - PIECE_BYTES;
        Self {
            peer_session: setup.peer_session,
            key_out: setup.key_out,
            key_in: setup.key_in,
            limits: setup.limits,
            datagram_bytes,
            window: ours.credit,
            frame_bytes_max: theirs.frame_bytes_max as usize,
            received: Ranges::default(),
            received_floor: 0,
            largest: None,
            unacked: 0,
            ack_by: None,
            inbox: Inbox::new(ours.frame_bytes_max, ours.credit),
            look_at: None,
            next_number: 0,
            flight: Flight::new(datagram_bytes, setup.limits.flight_bytes_max),
            outbox: Outbox::new(theirs.credit, whole_bytes),
            told: ours.credit,
            credit_due: false,
            ping_due: false,
            probes: 0,
            lost: 0,
            is_confirmed: false,
            is_waiting: false,
            heard_at: now,
            asked_at: now,
            unanswered_since: None,
        }
    }

    /// The largest meta and payload that the peer takes.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Queues a message that is within [`Self::frame_bytes_max`].
    pub(crate) fn push(&mut self, message: Message) {
        self.outbox.push(message);
    }

    /// Messages that wait for the peer's credit.
    pub(crate) fn waiting(&self) -> usize {
        self.outbox.waiting()
    }

    /// Bytes of messages that the peer has not acknowledged.
    pub(crate) fn unacked_bytes(&self) -> usize {
        self.outbox.bytes()
    }

    /// Bytes of arrived pieces that wait for others.
    #[cfg(test)]
    pub(crate) fn partial_bytes(&self) -> usize {
        self.inbox.bytes()
    }

    /// A received message of this many bytes is used up: the peer may begin another.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.inbox.release(bytes);
        let (granted, told) = (self.inbox.granted(), self.told);
        let enough = |window: u64| (window / 4).max(1);
        self.credit_due |= granted.bytes - told.bytes >= enough(self.window.bytes)
            || granted.messages - told.messages >= enough(self.window.messages);
    }

    /// Notes whether replies are waited for: a silent peer is then asked sooner.
    pub(crate) fn set_waiting(&mut self, is_waiting: bool) {
        self.is_waiting = is_waiting;
    }

    /// Whether the peer refers to a datagram of this session in a reset.
    pub(crate) fn knows(&self, number: u64, tag: u64) -> bool {
        self.flight.knows(number, tag)
    }

    /// Takes a data datagram of this session; whole messages go to `out`.
    pub(crate) fn receive(
        &mut self,
        now: Moment,
        head: &Head,
        datagram: &[u8],
        body: &[u8],
        gate: Gate<'_>,
        out: &mut Vec<Delivered>,
    ) -> Result<(), Trouble> {
        // SESSION-1
        let is_ours = siphash(self.key_in, packet::tagged(datagram)) == head.tag;
        if !is_ours || head.number == u64::MAX {
            return Err(Trouble::Ignored(Ignored::Forged));
        }
        let number = head.number;
        if number < self.received_floor || self.received.contains(number) {
            return Err(Trouble::Ignored(Ignored::Repeated));
        }
        self.is_confirmed = true;
        self.heard_at = now;
        let (mut wants_ack, mut is_refused) = (false, false);
        let mut take = Take(body);
        while !take.0.is_empty() {
            let part = packet::next_part(&mut take).ok_or(Fault::Part)?;
            if self.is_refused(&part, gate) {
                is_refused = true;
            } else {
                wants_ack |= self.take_part(now, part, out)?;
            }
        }
        self.unanswered_since = self.flight.is_flying().then_some(now);
        if is_refused {
            self.refuse(now);
        } else {
            self.note_received(now, number, wants_ack);
        }
        if self.inbox.is_idle() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(now + self.limits.message);
        }
        Ok(())
    }

    /// Notes a datagram that was taken, and whether it must be acknowledged.
    fn note_received(&mut self, now: Moment, number: u64, wants_ack: bool) {
        self.received.add(number..number + 1);
        if let Some(floor) = self.received.keep_highest(RECEIVED_RANGES_MAX) {
            self.received_floor = floor;
        }
        let is_next = self.largest.map_or(0, |(largest, _)| largest + 1) == number;
        if self.largest.is_none_or(|(largest, _)| number > largest) {
            self.largest = Some((number, now));
        }
        if wants_ack {
            self.unacked += 1;
            let at_once = !is_next || self.unacked >= 2;
            let by = if at_once { now } else { now + ACK_PAUSE };
            self.ack_by = Some(self.ack_by.map_or(by, |before| before.min(by)));
        }
    }

    /// Whether a piece finds no room. A message that has begun finds it always.
    fn is_refused(&self, part: &Part<'_>, gate: Gate<'_>) -> bool {
        let Part::Piece {
            message,
            head,
            offset,
            bytes,
        } = part
        else {
            return false;
        };
        if !self.inbox.is_new(*message) {
            return self.inbox.is_scattered(*message, *offset);
        }
        let is_cut = bytes.len() as u64 != head.bytes();
        let most = self.inbox.frame_bytes_max();
        if head.bytes() > most || (is_cut && bytes.is_empty()) {
            // A fault, and no wish for room.
            return false;
        }
        !gate(&Beginning {
            opcode: head.opcode,
            begun: if *offset == 0 { bytes } else { &[] },
            room: is_cut.then(|| self.inbox.room() + room_for(head.bytes())),
        })
    }

    /// Lets the peer hear something although its datagram is not acknowledged (SESSION-4): an ack
    /// of others, or a ping if there are none.
    fn refuse(&mut self, now: Moment) {
        if self.received.as_slice().is_empty() {
            self.ping_due |= !self.flight.is_flying();
            return;
        }
        self.unacked = self.unacked.max(1);
        self.ack_by.get_or_insert(now + REFUSED_PAUSE);
    }

    /// Bytes that have moved since the session began: of messages that came cut, and of those that
    /// the peer acknowledged.
    pub(crate) fn moved(&self) -> [u64; 2] {
        [self.inbox.moved(), self.outbox.moved()]
    }

    /// Room for the messages that have come in part.
    pub(crate) fn partial_room(&self) -> usize {
        self.inbox.room()
    }

    /// Takes one part. Gives whether the datagram must be acknowledged for it.
    fn take_part(
        &mut self,
        now: Moment,
        part: Part<'_>,
        out: &mut Vec<Delivered>,
    ) -> Result<bool, Trouble> {
        match part {
            Part::Piece {
                message,
                head,
                offset,
                bytes,
            } => {
                out.extend(self.inbox.take(now, message, head, offset, bytes)?);
                Ok(true)
            }
            Part::Ack { delay_us, ranges } => {
                let is_sent = |range: &core::ops::Range<u64>| {
                    range.start < range.end && range.end <= self.next_number
                };
                if !ranges.iter().all(is_sent) {
                    return Err(Fault::Ack.into());
                }
                let delay = Duration::from_micros(u64::from(delay_us));
                let fate = self.flight.take_ack(now, delay, &ranges);
                self.meet(fate);
                Ok(false)
            }
            Part::Credit(credit) => {
                self.outbox.grant(credit);
                Ok(true)
            }
            Part::Ping => Ok(true),
            Part::Close(text) => {
                let text = String::from_utf8_lossy(text).into_owned();
                Err(Trouble::End(End::Closed(text)))
            }
        }
    }

    fn meet(&mut self, fate: Fate) {
        self.lost += fate.lost_count;
        for carried in &fate.acked {
            match carried {
                Carried::Piece(piece) => self.outbox.acked(piece),
                Carried::Credit | Carried::Ping => {}
            }
        }
        for carried in &fate.lost {
            match carried {
                Carried::Piece(piece) => self.outbox.lost(piece),
                Carried::Credit => self.credit_due = true,
                Carried::Ping => {}
            }
        }
    }

    /// Writes the next datagram, if one is to be sent now.
    pub(crate) fn transmit(&mut self, now: Moment, into: &mut Vec<u8>) -> bool {
        let may_fly = self.probes > 0 || self.flight.has_room();
        let wants_to_fly = self.outbox.has_pieces() || self.credit_due || self.ping_due;
        let ack_is_due = self.ack_by.is_some_and(|by| by <= now);
        if !(ack_is_due || may_fly && wants_to_fly) {
            return false;
        }
        packet::begin(into);
        if self.unacked > 0 {
            self.put_ack(now, into);
        }
        let mut carried = Vec::new();
        if may_fly {
            self.put_content(into, &mut carried);
        }
        if into.len() == HEAD_BYTES {
            return false;
        }
        let number = self.next_number;
        self.next_number += 1;
        let tag = packet::seal(into, Kind::Data, self.peer_session, number, |head| {
            siphash(self.key_out, head)
        });
        if !carried.is_empty() {
            self.probes = self.probes.saturating_sub(1);
            self.asked_at = now;
            self.unanswered_since.get_or_insert(now);
            self.flight.note_sent(now, number, into.len(), tag, carried);
        }
        true
    }

    fn put_ack(&mut self, now: Moment, into: &mut Vec<u8>) {
        let since = self.largest.map_or(now, |(_, at)| at);
        let delay_us = u32::try_from(now.since(since).as_micros()).unwrap_or(u32::MAX);
        // At most half of a datagram, so that content has room as well.
        let room = (self.datagram_bytes - HEAD_BYTES) / 2;
        if packet::put_ack(into, delay_us, self.received.as_slice(), room) {
            self.unacked = 0;
            self.ack_by = None;
        }
    }

    fn put_content(&mut self, into: &mut Vec<u8>, carried: &mut Vec<Carried>) {
        let room = |into: &Vec<u8>| self.datagram_bytes.saturating_sub(into.len());
        let granted = self.inbox.granted();
        let is_news = granted != self.told && self.outbox.has_pieces();
        if (self.credit_due || is_news) && room(into) >= CREDIT_BYTES {
            packet::put_credit(into, granted);
            self.told = granted;
            self.credit_due = false;
            carried.push(Carried::Credit);
        }
        while let Some(room) = room(into).checked_sub(PIECE_BYTES) {
            let piece = self
                .outbox
                .next_piece(room, |message, head, offset, parts| {
                    let length = parts.iter().map(|part| part.len()).sum::<usize>();
                    let length = u16::try_from(length).expect("a datagram's length fits");
                    packet::put_piece(into, message, head, offset, length);
                    for part in parts {
                        into.extend_from_slice(part);
                    }
                });
            match piece {
                Some(piece) => carried.push(Carried::Piece(piece)),
                None => break,
            }
        }
        if carried.is_empty() && self.ping_due {
            packet::put_ping(into);
            carried.push(Carried::Ping);
        }
        self.ping_due = false;
    }

    /// Writes a last datagram that tells the peer that the session is over.
    pub(crate) fn farewell(&mut self, text: &str, into: &mut Vec<u8>) {
        packet::begin(into);
        packet::put_close(into, text);
        let number = self.next_number;
        self.next_number += 1;
        packet::seal(into, Kind::Data, self.peer_session, number, |head| {
            siphash(self.key_out, head)
        });
    }

    /// When to ask the peer whether it is there.
    fn ping_at(&self) -> Option<Moment> {
        let waiting = self.is_waiting.then_some(self.limits.waiting);
        let pause = waiting.or(self.limits.keepalive)?;
        let is_needed = !self.flight.is_flying() && !self.ping_due;
        is_needed.then(|| self.heard_at.max(self.asked_at) + pause)
    }

    /// When the session is over for want of an answer.
    fn over_at(&self) -> (Moment, Duration) {
        let quiet = match self.is_confirmed {
            true => self.limits.idle,
            false => self.limits.opening,
        };
        let idle = (self.heard_at + quiet, quiet);
        let silent =
            (self.unanswered_since).map(|at| (at + self.limits.silence, self.limits.silence));
        silent.map_or(idle, |silent| silent.min(idle))
    }

    /// When [`Self::alarm`] has something to do, at the latest.
    pub(crate) fn deadline(&self) -> Moment {
        let times = [
            self.ack_by,
            self.flight.deadline(),
            self.ping_at(),
            self.look_at,
        ];
        times
            .into_iter()
            .flatten()
            .fold(self.over_at().0, Moment::min)
    }

    /// The number of datagrams found lost since the last time.
    pub(crate) fn take_lost(&mut self) -> usize {
        core::mem::take(&mut self.lost)
    }

    /// Time has passed.
    ///
    /// # Errors
    /// The session is over.
    pub(crate) fn alarm(&mut self, now: Moment) -> Result<(), End> {
        let (over_at, limit) = self.over_at();
        if over_at <= now {
            return Err(End::Silent(limit));
        }
        if self.look_at.is_some_and(|at| at <= now) {
            let since = self.inbox.waits_since();
            self.look_at = since.map(|since| since + self.limits.message);
            if self.look_at.is_some_and(|at| at <= now) {
                return Err(End::Overdue);
            }
        }
        if self.ping_at().is_some_and(|at| at <= now) {
            self.ping_due = true;
        }
        let (fate, is_probe) = self.flight.alarm(now);
        self.meet(fate);
        if is_probe {
            self.probes = 2;
            self.ping_due |= !self.outbox.has_pieces() && !self.credit_due;
        }
        Ok(())
    }
}
