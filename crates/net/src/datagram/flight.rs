//! Datagrams in flight: what each carried, when it is lost, how many may fly.
//!
//! Loss is found as in QUIC (RFC 9002): by three later ones that arrived, or by time. Round trips
//! are measured by acks. If no ack comes, a probe is sent after a time that doubles. The time has a
//! bound, so that a session goes on soon after a cut.
//!
//! Invariants
//! - FLIGHT-1: at most `bytes_max` are in flight, and [`DATAGRAMS_MAX`] datagrams, probes apart.
//!   Probes go on while nothing is acknowledged; then the oldest are forgotten.
//! - FLIGHT-2: a datagram's content is given out as lost at most once, and as acknowledged at most
//!   once. The second may follow the first: a datagram thought lost was only late.

use super::outbox::Piece;
use core::ops::Range;
use core::time::Duration;
use pluvio_env::Moment;
use std::collections::VecDeque;

/// Datagrams in flight, or lost and perhaps acknowledged yet: bounds the memory for them.
const DATAGRAMS_MAX: usize = 8_192;
/// Later datagrams that arrived before one is lost [RFC 9002, 6.1.1].
const REORDER_MIN: u64 = 3;
/// The same, where datagrams turned out to overtake each other.
const REORDER_MAX: u64 = 64;
/// A single datagram is acknowledged after this time, if nothing carries the ack before.
pub(crate) const ACK_PAUSE: Duration = Duration::from_millis(3);
/// How late such an ack may be, by the grain of the other side's timer.
const ACK_DELAY_MAX: Duration = Duration::from_millis(6);
/// Timers are no finer than this.
const GRAIN: Duration = Duration::from_millis(1);
/// The round trip before one was measured.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(50);
/// Longest pause between probes: a session goes on this soon after a cut.
const PROBE_PAUSE_MAX: Duration = Duration::from_millis(400);
/// The window at the beginning, in datagrams: a burst that every receive buffer holds.
const FIRST_DATAGRAMS: usize = 32;
/// The least window, in datagrams. A link that loses a fifth by chance is still used.
const LEAST_DATAGRAMS: usize = 8;

/// What a datagram carried that must arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Carried {
    Piece(Piece),
    Credit,
    Ping,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Flies,
    /// Its content was given out as lost; it still counts as flying.
    Probed,
    Lost,
    Acked,
}

struct Sent {
    number: u64,
    at: Moment,
    bytes: usize,
    tag: u64,
    state: State,
    carried: Vec<Carried>,
}

/// What became of datagrams.
#[derive(Default)]
pub(crate) struct Fate {
    pub(crate) acked: Vec<Carried>,
    pub(crate) lost: Vec<Carried>,
    /// Number of datagrams that were lost.
    pub(crate) lost_count: usize,
}

pub(crate) struct Flight {
    datagram_bytes: usize,
    bytes_max: usize,
    sent: VecDeque<Sent>,
    /// Bytes in flight.
    bytes: usize,
    largest_acked: Option<u64>,
    reorder: u64,
    smoothed: Option<Duration>,
    variation: Duration,
    last_sent: Moment,
    /// Probes since the last ack.
    probes: u32,
    window: usize,
    /// Above it the window grows slowly.
    threshold: usize,
    /// Losses of datagrams sent before it do not shrink the window again.
    shrunk_at: Option<Moment>,
    /// A datagram is lost at this time.
    loss_at: Option<Moment>,
}

impl Flight {
    pub(crate) fn new(datagram_bytes: usize, bytes_max: usize) -> Self {
        let least = LEAST_DATAGRAMS * datagram_bytes;
        Self {
            datagram_bytes,
            bytes_max: bytes_max.max(least),
            sent: VecDeque::new(),
            bytes: 0,
            largest_acked: None,
            reorder: REORDER_MIN,
            smoothed: None,
            variation: Duration::ZERO,
            last_sent: Moment::default(),
            probes: 0,
            window: FIRST_DATAGRAMS * datagram_bytes,
            threshold: usize::MAX,
            shrunk_at: None,
            loss_at: None,
        }
    }

    /// Whether one more may fly.
    pub(crate) fn has_room(&self) -> bool {
        let window = self.window.min(self.bytes_max);
        self.bytes + self.datagram_bytes <= window && self.sent.len() < DATAGRAMS_MAX
    }

    /// Whether something waits for an ack.
    pub(crate) fn is_flying(&self) -> bool {
        self.bytes > 0
    }

    /// Bytes in flight.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes a datagram that must be acknowledged.
    pub(crate) fn note_sent(
        &mut self,
        now: Moment,
        number: u64,
        bytes: usize,
        tag: u64,
        carried: Vec<Carried>,
    ) {
        self.last_sent = now;
        self.bytes += bytes;
        self.sent.push_back(Sent {
            number,
            at: now,
            bytes,
            tag,
            state: State::Flies,
            carried,
        });
    }

    /// Whether a datagram with this number and tag was sent lately.
    pub(crate) fn knows(&self, number: u64, tag: u64) -> bool {
        let at = self.sent.partition_point(|sent| sent.number < number);
        (self.sent.get(at)).is_some_and(|sent| sent.number == number && sent.tag == tag)
    }

    /// Takes an ack. Its ranges were checked against the numbers that were used.
    pub(crate) fn take_ack(&mut self, now: Moment, delay: Duration, ranges: &[Range<u64>]) -> Fate {
        let mut fate = Fate::default();
        let Some(largest) = ranges.iter().map(|range| range.end - 1).max() else {
            return fate;
        };
        let news = self.largest_acked.is_none_or(|before| largest > before);
        self.largest_acked = self.largest_acked.max(Some(largest));
        let was_full = self.bytes + 2 * self.datagram_bytes > self.window;
        let mut arrived = 0;
        for range in ranges {
            let first = self.sent.partition_point(|sent| sent.number < range.start);
            for sent in self.sent.range_mut(first..) {
                if sent.number >= range.end {
                    break;
                }
                match sent.state {
                    State::Acked => continue,
                    State::Lost => {
                        // It was overtaken by more than was thought possible.
                        self.reorder = (self.reorder * 2).min(REORDER_MAX);
                    }
                    State::Flies | State::Probed => {
                        self.bytes -= sent.bytes;
                        arrived += sent.bytes;
                    }
                }
                sent.state = State::Acked;
                fate.acked.append(&mut sent.carried);
                if news && sent.number == largest {
                    let trip = now.since(sent.at).saturating_sub(delay.min(ACK_DELAY_MAX));
                    measure(&mut self.smoothed, &mut self.variation, trip);
                }
            }
        }
        if arrived > 0 {
            self.probes = 0;
            if was_full {
                self.grow(arrived);
            }
        }
        self.find_losses(now, &mut fate);
        self.forget(now);
        fate
    }

    fn grow(&mut self, arrived: usize) {
        let more = if self.window < self.threshold {
            arrived
        } else {
            (self.datagram_bytes * arrived).div_ceil(self.window)
        };
        self.window = (self.window + more).min(self.bytes_max);
    }

    fn shrink(&mut self, now: Moment) {
        let least = LEAST_DATAGRAMS * self.datagram_bytes;
        self.window = (self.window * 7 / 10).max(least);
        self.threshold = self.window;
        self.shrunk_at = Some(now);
    }

    /// Gives out what is lost by now.
    fn find_losses(&mut self, now: Moment, fate: &mut Fate) {
        self.loss_at = None;
        let Some(largest) = self.largest_acked else {
            return;
        };
        let patience = self.round_trip().mul_f64(1.125).max(GRAIN);
        let mut shrinks = false;
        for sent in &mut self.sent {
            if sent.number >= largest {
                break;
            }
            if !matches!(sent.state, State::Flies | State::Probed) {
                continue;
            }
            let lost_at = sent.at + patience;
            if sent.number + self.reorder > largest && lost_at > now {
                self.loss_at = Some(self.loss_at.map_or(lost_at, |at| at.min(lost_at)));
                continue;
            }
            self.bytes -= sent.bytes;
            fate.lost_count += 1;
            if sent.state == State::Flies {
                fate.lost.extend_from_slice(&sent.carried);
            }
            sent.state = State::Lost;
            shrinks |= self.shrunk_at.is_none_or(|at| sent.at > at);
        }
        if shrinks {
            self.shrink(now);
        }
    }

    /// Drops what is of no more use. Lost ones are kept for a while: they may only be late.
    fn forget(&mut self, now: Moment) {
        let late = 3 * self.probe_pause();
        while let Some(first) = self.sent.front() {
            let is_over = match first.state {
                State::Flies | State::Probed => false,
                State::Acked => true,
                State::Lost => now.since(first.at) > late || self.sent.len() > DATAGRAMS_MAX / 2,
            };
            if !is_over {
                return;
            }
            self.sent.pop_front();
        }
    }

    fn round_trip(&self) -> Duration {
        self.smoothed.unwrap_or(FIRST_ROUND_TRIP)
    }

    fn probe_pause(&self) -> Duration {
        let pause = self.round_trip() + (4 * self.variation).max(GRAIN) + ACK_DELAY_MAX;
        let doubled = pause.saturating_mul(1 << self.probes.min(10));
        doubled
            .min(PROBE_PAUSE_MAX)
            .max(pause.min(4 * PROBE_PAUSE_MAX))
    }

    /// When [`Self::alarm`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        let probe = self
            .is_flying()
            .then(|| self.last_sent + self.probe_pause());
        match (self.loss_at, probe) {
            (Some(loss), Some(probe)) => Some(loss.min(probe)),
            (loss, probe) => loss.or(probe),
        }
    }

    /// Time has passed. Gives what is to be sent again, and whether to send it as a probe, beyond
    /// the window.
    pub(crate) fn alarm(&mut self, now: Moment) -> (Fate, bool) {
        let mut fate = Fate::default();
        if self.loss_at.is_some_and(|at| at <= now) {
            self.find_losses(now, &mut fate);
            self.forget(now);
        }
        let is_due = self.is_flying() && self.last_sent + self.probe_pause() <= now;
        if is_due {
            self.probes += 1;
            // Counts as sent, even if the socket has no room: the next probe comes later.
            self.last_sent = now;
            // Nobody acknowledges anything, and the oldest were sent again long ago.
            while self.sent.len() >= DATAGRAMS_MAX
                && let Some(oldest) = self.sent.front()
                && oldest.state == State::Probed
            {
                self.bytes -= oldest.bytes;
                self.sent.pop_front();
            }
            let flying = self
                .sent
                .iter_mut()
                .filter(|sent| sent.state == State::Flies);
            for sent in flying.take(2) {
                sent.state = State::Probed;
                fate.lost.extend_from_slice(&sent.carried);
            }
            if self.probes == 3 {
                // Not a lost datagram but a broken way.
                self.window = LEAST_DATAGRAMS * self.datagram_bytes;
            }
        }
        (fate, is_due)
    }
}

/// Mean and variation of round trips [RFC 9002, 5.3].
fn measure(smoothed: &mut Option<Duration>, variation: &mut Duration, trip: Duration) {
    match smoothed {
        None => {
            *variation = trip / 2;
            *smoothed = Some(trip);
        }
        Some(mean) => {
            *variation = (3 * *variation + mean.abs_diff(trip)) / 4;
            *mean = (7 * *mean + trip) / 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    fn piece(message: u64) -> Carried {
        Carried::Piece(Piece {
            message,
            range: 0..10,
        })
    }

    fn flight(count: u64) -> Flight {
        let mut flight = Flight::new(1_000, 100_000);
        for number in 0..count {
            flight.note_sent(at(2), number, 1_000, number, vec![piece(number)]);
        }
        flight
    }

    // shows: FLIGHT-2
    #[test]
    fn three_later_arrivals_make_one_lost_and_a_late_ack_is_understood() {
        let mut flight = flight(6);
        let fate = flight.take_ack(at(5), Duration::ZERO, core::slice::from_ref(&(1..3)));
        assert_eq!((fate.acked, fate.lost), (vec![piece(1), piece(2)], vec![]));
        let fate = flight.take_ack(at(5), Duration::ZERO, core::slice::from_ref(&(1..4)));
        assert_eq!((fate.acked, fate.lost), (vec![piece(3)], vec![piece(0)]));
        assert_eq!(flight.bytes(), 2_000);
        let fate = flight.take_ack(at(6), Duration::ZERO, core::slice::from_ref(&(0..4)));
        assert_eq!((fate.acked, fate.lost), (vec![piece(0)], vec![]));
        assert_eq!(flight.bytes(), 2_000);
    }

    #[test]
    fn silence_makes_probes_that_come_later_and_later_up_to_a_bound() {
        let mut flight = flight(3);
        let mut pauses = Vec::new();
        let mut now = at(2);
        for _ in 0..9 {
            let next = flight.deadline().unwrap();
            pauses.push(next.since(now));
            now = next;
            let (fate, is_probe) = flight.alarm(now);
            assert!(is_probe);
            assert_eq!(fate.lost_count, 0);
        }
        assert!(
            pauses.windows(2).all(|pair| pair[0] <= pair[1]),
            "{pauses:?}"
        );
        assert_eq!(pauses[8], PROBE_PAUSE_MAX);
        // All still count as flying, and an ack of the first is no surprise.
        assert_eq!(flight.bytes(), 3_000);
        let fate = flight.take_ack(now, Duration::ZERO, core::slice::from_ref(&(0..1)));
        assert_eq!(fate.acked, [piece(0)]);
    }

    // shows: FLIGHT-1
    #[test]
    fn probes_of_hours_of_silence_are_forgotten() {
        let mut flight = flight(3);
        for number in 0..2 * DATAGRAMS_MAX as u64 {
            let now = flight.deadline().unwrap();
            let (fate, is_probe) = flight.alarm(now);
            assert!(is_probe && !fate.lost.is_empty());
            for (carried, more) in fate.lost.into_iter().zip(0..) {
                let number = 3 + 2 * number + more;
                flight.note_sent(now, number, 1_000, number, vec![carried]);
            }
            assert!(flight.sent.len() <= DATAGRAMS_MAX + 2);
        }
        assert_eq!(flight.bytes(), 1_000 * flight.sent.len());
    }

    // shows: FLIGHT-1
    #[test]
    fn the_window_grows_with_arrivals_and_shrinks_once_for_losses_of_one_round() {
        let mut flight = Flight::new(1_000, 40_000);
        let (mut number, mut round) = (0, 0);
        while flight.window < 40_000 {
            let first = number;
            while flight.has_room() {
                flight.note_sent(at(round), number, 1_000, 0, vec![]);
                number += 1;
            }
            round += 1;
            flight.take_ack(
                at(round),
                Duration::ZERO,
                core::slice::from_ref(&(first..number)),
            );
        }
        let first = number;
        while flight.has_room() {
            flight.note_sent(at(round), number, 1_000, 0, vec![]);
            number += 1;
        }
        assert_eq!(flight.bytes(), 40_000);
        let fate = flight.take_ack(
            at(round + 1),
            Duration::ZERO,
            core::slice::from_ref(&(first + 20..first + 30)),
        );
        assert_eq!(fate.lost_count, 20);
        let fate = flight.take_ack(
            at(round + 1),
            Duration::ZERO,
            core::slice::from_ref(&(first + 35..first + 40)),
        );
        assert_eq!((fate.lost_count, flight.window), (5, 28_000));
    }
}
