//! Sends the segments of a log space to a sink, in their order.

use super::{ReplicaSink, SinkAnswer, SinkError, SinkWrite};
use crate::segments::Segment;
use crate::space::LogSpace;
use core::time::Duration;
use pluvio_format::SegmentKind;
use pluvio_units::{LogId, LogPosition, Pace, SegmentId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Most bytes of one write: survivors and heads take turns, so that no write of a head waits for a
/// whole segment.
const WRITE_MAX: u32 = 256 << 10;
/// Pause of a driver whose sink has everything.
const PAUSE: Duration = Duration::from_millis(1);

/// A segment on its way to the sink.
struct Sending {
    segment: Arc<Segment>,
    sent: u32,
    /// The length that the bytes under way will be certified with.
    target: u32,
    certified: u32,
}

/// What trying to send came to.
enum Sent {
    /// All there was to send was sent before.
    Nothing,
    Piece,
    /// The segment was freed: nobody needs it.
    Gone,
    Wait(Duration),
}

impl Sending {
    fn new(segment: Arc<Segment>) -> Self {
        Self {
            segment,
            sent: 0,
            target: 0,
            certified: 0,
        }
    }

    /// Hands over a piece of what lies below `limit`, which is the end of a group.
    fn send(
        &mut self,
        sink: &mut dyn ReplicaSink,
        written: &mut BTreeSet<SegmentId>,
        limit: u32,
    ) -> Result<Sent, SinkError> {
        if self.sent == self.target {
            self.target = limit;
        }
        if self.sent == self.target {
            return Ok(Sent::Nothing);
        }
        let end = self.target.min(self.sent + WRITE_MAX);
        let Some(bytes) = self.segment.copy_out(self.sent..end) else {
            return Ok(Sent::Gone);
        };
        let certified = end == self.target;
        debug_assert!(
            self.sent < end && bytes.len() == (end - self.sent) as usize,
            "SINK-2: a piece of segment {} begins where the last one ended",
            self.segment.id()
        );
        // Noted first: a sink that fails may have kept something of it.
        written.insert(self.segment.id());
        let answer = sink.write(&SinkWrite {
            log: self.segment.log(),
            segment: self.segment.id(),
            offset: self.sent,
            bytes: &bytes,
            certified,
        });
        if answer.is_err() {
            // SINK-2.
            (self.sent, self.target) = (self.certified, self.certified);
        }
        match answer? {
            SinkAnswer::After(pause) => Ok(Sent::Wait(pause)),
            SinkAnswer::Taken => {
                self.sent = end;
                if certified {
                    self.certified = end;
                }
                Ok(Sent::Piece)
            }
        }
    }

    fn is_opened(&self) -> bool {
        self.certified >= self.segment.opening_len()
    }

    /// Whether the sink has all of a segment that takes no more.
    fn is_complete(&self) -> bool {
        self.segment.is_closed() && self.certified == self.segment.appended_len()
    }
}

/// One log on its way.
struct Stream {
    log: LogId,
    /// The head whose digest counts.
    head: Option<Sending>,
    next_heads: VecDeque<Sending>,
    sides: VecDeque<Sending>,
    /// Segments that the sink has something of.
    written: BTreeSet<SegmentId>,
    to_free: Vec<SegmentId>,
}

/// Steps the streams of a log space: hands their pieces to a sink and tells the log what that has.
pub struct SinkDriver {
    space: Arc<LogSpace>,
    sink: Box<dyn ReplicaSink>,
    streams: Vec<Stream>,
    /// Which stream comes first: a sink that takes little takes it from all in turn.
    turn: usize,
}

impl SinkDriver {
    /// A driver for a log space with [`Durability::Replicated`](crate::Durability::Replicated), of
    /// which nothing was sent anywhere yet.
    #[must_use]
    pub fn new(space: Arc<LogSpace>, sink: Box<dyn ReplicaSink>) -> Self {
        let stream = |log| Stream {
            log,
            head: None,
            next_heads: VecDeque::new(),
            sides: VecDeque::new(),
            written: BTreeSet::new(),
            to_free: Vec::new(),
        };
        Self {
            streams: space.logs().map(stream).collect(),
            space,
            sink,
            turn: 0,
        }
    }

    /// Hands at most a piece of a head and one of a side segment of each log to the sink.
    ///
    /// # Errors
    /// The sink failed. Pieces it took before are accounted for; the next step tries again.
    pub fn step(&mut self) -> Result<Pace, SinkError> {
        let (space, sink) = (&*self.space, &mut *self.sink);
        let mut pace = None;
        let count = self.streams.len();
        for at in 0..count {
            let stream = &mut self.streams[(self.turn + at) % count];
            let sides_first = (self.turn / count).is_multiple_of(2);
            if sides_first {
                pace = sooner(pace, stream.step_sides(sink)?);
            }
            pace = sooner(pace, stream.step_heads(space, sink)?);
            if !sides_first {
                pace = sooner(pace, stream.step_sides(sink)?);
            }
            stream.free(space, sink)?;
        }
        if pace == Some(Pace::Again) {
            self.turn = self.turn.wrapping_add(1);
        }
        Ok(pace.unwrap_or(Pace::After(PAUSE)))
    }
}

impl Sent {
    /// The pace of the stream; `None` when the sink has all of it.
    fn pace(&self) -> Option<Pace> {
        match self {
            Self::Nothing => None,
            Self::Piece | Self::Gone => Some(Pace::Again),
            Self::Wait(pause) => Some(Pace::After(*pause)),
        }
    }
}

/// The pace that comes sooner, if any.
fn sooner(one: Option<Pace>, other: Option<Pace>) -> Option<Pace> {
    one.into_iter().chain(other).min()
}

impl Stream {
    fn take_new(&mut self, space: &LogSpace) {
        for segment in space.take_new_segments(self.log) {
            let sending = Sending::new(segment);
            match sending.segment.kind() {
                SegmentKind::Head => self.next_heads.push_back(sending),
                SegmentKind::Side => self.sides.push_back(sending),
            }
        }
    }

    /// The order of heads [RAMCloud §7.4]: the next one's first group, the rest of this one and its
    /// end, then the next one.
    fn step_heads(
        &mut self,
        space: &LogSpace,
        sink: &mut dyn ReplicaSink,
    ) -> Result<Option<Pace>, SinkError> {
        self.take_new(space);
        if let Some(next) = self.next_heads.front_mut()
            && !next.is_opened()
        {
            let opening = next.segment.opening_len();
            let sent = next.send(sink, &mut self.written, opening)?;
            return Ok(sent.pace());
        }
        let has_next = !self.next_heads.is_empty();
        if let Some(head) = &mut self.head {
            // Read before the length: once closed, that is the last one.
            let closed = head.segment.is_closed();
            let sent = head.send(sink, &mut self.written, head.segment.appended_len())?;
            report(space, head);
            if !(has_next && closed && head.is_complete()) {
                return Ok(sent.pace());
            }
            assert!(
                self.next_heads.front().is_some_and(Sending::is_opened),
                "SINK-1: head {} is closed while no later one is open",
                head.segment.id()
            );
            sink.close(self.log, head.segment.id())?;
            head.segment.release_bytes();
        }
        let Some(next) = self.next_heads.pop_front() else {
            return Ok(None);
        };
        space.digest_durable(self.log, next.segment.id());
        report(space, &next);
        self.head = Some(next);
        Ok(Some(Pace::Again))
    }

    fn step_sides(&mut self, sink: &mut dyn ReplicaSink) -> Result<Option<Pace>, SinkError> {
        let Some(side) = self.sides.front_mut() else {
            return Ok(None);
        };
        let sent = side.send(sink, &mut self.written, side.segment.appended_len())?;
        match sent {
            Sent::Gone => {
                self.sides.pop_front();
                return Ok(Some(Pace::Again));
            }
            Sent::Nothing | Sent::Piece | Sent::Wait(_) => {}
        }
        if side.is_complete() {
            sink.close(self.log, side.segment.id())?;
            side.segment.mark_durable();
            side.segment.release_bytes();
            self.sides.pop_front();
            return Ok(Some(Pace::Again));
        }
        // One that is still being written holds up none that is complete.
        if let Sent::Nothing = sent {
            self.sides.rotate_left(1);
        }
        Ok(sent.pace())
    }

    fn free(&mut self, space: &LogSpace, sink: &mut dyn ReplicaSink) -> Result<(), SinkError> {
        let freeable = space.take_freeable(self.log);
        let head = self.head.as_ref().map(|head| head.segment.id());
        assert!(
            freeable
                .iter()
                .all(|id| head.is_none_or(|head| head != *id)),
            "SINK-3: the head whose digest counts is freed"
        );
        self.to_free.extend(freeable);
        while let Some(&id) = self.to_free.last() {
            // An aborted side segment may never have been sent.
            if self.written.contains(&id) {
                sink.free(self.log, id)?;
                self.written.remove(&id);
            }
            self.to_free.pop();
        }
        Ok(())
    }
}

fn report(space: &LogSpace, head: &Sending) {
    let position = LogPosition {
        segment: head.segment.id(),
        offset: head.certified,
    };
    space.advance_durable(head.segment.log(), position);
}

impl core::fmt::Debug for SinkDriver {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SinkDriver")
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}
