//! Cuts the bytes of a socket into frames.
//!
//! Invariants
//! - READ-1: memory is allocated only in proportion to the bytes that have arrived, never for an
//!   announced length. An unused buffer of the process may serve for one: such buffers are bounded
//!   together, and a frame's time is bounded.
//! - READ-2: between frames an idle reader holds no buffer; within a small piece of a frame it
//!   holds a small one.

use crate::frame::{FrameFault, HEADER_BYTES, Header};
use crate::spare::{self, BUFFER_BYTES};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use core::task::{Context, Poll};
use pluvio_env::Frame;
use pluvio_env::buffers::Buffer;
use std::io;
use std::pin::pin;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Frames up to this size are copied out of the buffer. The buffer can then be used again, and a
/// kept small value does not keep a big buffer alive. Larger frames are slices of the buffer, up to
/// its size. A still larger frame gets a buffer of its own.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Least room for a read.
const ROOM_BYTES_MIN: usize = BUFFER_BYTES / 2;
/// A large body's buffer grows by this when it is full.
const LARGE_GROWTH: usize = 4;
/// A piece of a frame below this is moved to a buffer of its size when the wait for more begins.
const SMALL_PIECE_BYTES: usize = BUFFER_BYTES / 8;

pub(crate) struct FrameReader {
    buffer: BytesMut,
    /// The header of the frame whose body is awaited, taken off the buffer.
    header: Option<Header>,
    /// The arrived part of a large body; `buffer` is empty meanwhile.
    body: Option<Buffer>,
    body_bytes_max: usize,
}

impl FrameReader {
    pub(crate) fn new(body_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            header: None,
            body: None,
            body_bytes_max,
        }
    }

    /// Whether a part of a frame is here and the rest is not, once [`Self::next_frame`] gave
    /// `None`.
    pub(crate) fn is_inside_frame(&self) -> bool {
        self.header.is_some() || !self.buffer.is_empty()
    }

    /// The header of the next frame, if it has arrived, and whether all of the frame has.
    ///
    /// # Errors
    /// The bytes that follow are no frame.
    pub(crate) fn next_header(&mut self) -> Result<Option<(Header, bool)>, FrameFault> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.buffer.first_chunk::<HEADER_BYTES>() else {
                    return Ok(None);
                };
                let header = Header::decode(bytes, self.body_bytes_max)?;
                self.buffer.advance(HEADER_BYTES);
                self.header = Some(header);
                header
            }
        };
        Ok(Some((header, self.here() >= body_bytes(&header))))
    }

    /// The next whole frame, if it has arrived.
    ///
    /// # Errors
    /// The bytes that follow are no frame.
    pub(crate) fn next_frame(&mut self) -> Result<Option<(Header, Frame)>, FrameFault> {
        let Some((header, true)) = self.next_header()? else {
            return Ok(None);
        };
        let meta_bytes = header.meta_bytes as usize;
        let body_bytes = body_bytes(&header);
        self.header = None;
        let (meta, payload) = if let Some(body) = self.body.take() {
            let mut body = body.freeze();
            let meta = body.split_to(meta_bytes);
            (meta, body)
        } else if body_bytes <= COPY_BYTES_MAX {
            let meta = Bytes::copy_from_slice(&self.buffer[..meta_bytes]);
            let payload = Bytes::copy_from_slice(&self.buffer[meta_bytes..body_bytes]);
            self.buffer.advance(body_bytes);
            (meta, payload)
        } else {
            let mut body = self.buffer.split_to(body_bytes).freeze();
            let meta = body.split_to(meta_bytes);
            (meta, body)
        };
        let frame = Frame {
            opcode: header.opcode,
            meta,
            payload,
        };
        Ok(Some((header, frame)))
    }

    /// The bytes that have come of the body whose header is here.
    pub(crate) fn begun(&self) -> &[u8] {
        let here: &[u8] = self.body.as_ref().map_or(&self.buffer, |body| body);
        &here[..here.len().min(self.awaited_bytes().unwrap_or(0))]
    }

    /// Bytes of the body that is awaited, once its header is here.
    pub(crate) fn awaited_bytes(&self) -> Option<usize> {
        self.header.as_ref().map(body_bytes)
    }

    /// Bytes of memory that the arrived part of a frame takes. Room in an unused buffer of the
    /// process does not count (READ-1).
    pub(crate) fn bytes_held(&self) -> usize {
        let body = self.body.as_ref();
        let body = body.map_or(0, |body| body.capacity().min(enough(body.len())));
        self.buffer.capacity() + body
    }

    /// The same once more of the awaited body is read.
    pub(crate) fn bytes_held_next(&self) -> usize {
        let here = self.here();
        match self.awaited_bytes() {
            Some(bytes) if bytes > BUFFER_BYTES && here >= ROOM_BYTES_MIN => {
                let is_full = self.body.as_ref().is_none_or(|b| b.capacity() == here);
                match is_full {
                    true => bytes.min(enough(here)),
                    false => self.bytes_held(),
                }
            }
            Some(_) | None => self.buffer.capacity().max(BUFFER_BYTES + ROOM_BYTES_MIN),
        }
    }

    /// Reads the bytes that the socket has, once, and `most` of them outside of a large body.
    /// `Ok(0)`: the other side has closed.
    pub(crate) fn poll_fill(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        if let (Some(header), Some(body)) = (self.header, &mut self.body) {
            let missing = body_bytes(&header) - body.len();
            assert!(missing > 0, "a whole frame is taken before more is read");
            let mut room = BufMut::limit(&mut **body, missing);
            return pin!(stream.read_buf(&mut room)).poll(cx);
        }
        // The future holds nothing but borrows; making it anew for each poll loses nothing.
        let mut room = BufMut::limit(&mut self.buffer, most);
        let read = pin!(stream.read_buf(&mut room)).poll(cx);
        if read.is_pending() {
            self.settle();
        }
        read
    }

    /// Arrived bytes of a header or a body.
    fn here(&self) -> usize {
        self.body.as_ref().map_or(self.buffer.len(), |b| b.len())
    }

    fn make_room(&mut self) {
        let here = self.here();
        if let Some(header) = self.header
            && body_bytes(&header) > BUFFER_BYTES
            && here >= ROOM_BYTES_MIN
        {
            return self.make_room_for_large(body_bytes(&header));
        }
        if self.buffer.capacity() < ROOM_BYTES_MIN {
            let piece = core::mem::replace(&mut self.buffer, spare::take());
            self.buffer.extend_from_slice(&piece);
        }
        if self.buffer.capacity() - here < ROOM_BYTES_MIN {
            self.buffer.reserve(ROOM_BYTES_MIN);
        }
    }

    /// A body that gets a buffer of its own. It takes an unused buffer that fits the body, if there
    /// is one. Otherwise it takes one that the arrived bytes fill to a fourth (READ-1).
    fn make_room_for_large(&mut self, body_bytes: usize) {
        let here = self.here();
        if self
            .body
            .as_ref()
            .is_some_and(|body| body.capacity() > here)
        {
            return;
        }
        let fits = Buffer::recycled(body_bytes);
        let mut room = fits.unwrap_or_else(|| Buffer::with_capacity(body_bytes.min(enough(here))));
        match &self.body {
            Some(body) => room.extend_from_slice(body),
            None => {
                room.extend_from_slice(&self.buffer);
                self.buffer.clear();
                spare::give(core::mem::take(&mut self.buffer));
            }
        }
        self.body = Some(room);
    }

    /// Gives up room that is unneeded while waiting.
    pub(crate) fn settle(&mut self) {
        if self.buffer.is_empty() {
            spare::give(core::mem::take(&mut self.buffer));
        } else if self.buffer.len() < SMALL_PIECE_BYTES
            && self.buffer.capacity() > 2 * SMALL_PIECE_BYTES
        {
            let piece = BytesMut::from(&self.buffer[..]);
            spare::give(core::mem::replace(&mut self.buffer, piece));
        }
    }
}

/// The room that a large body gets when this number of bytes is here (READ-1).
fn enough(here: usize) -> usize {
    LARGE_GROWTH * here.next_power_of_two().max(ROOM_BYTES_MIN)
}

fn body_bytes(header: &Header) -> usize {
    header.meta_bytes as usize + header.payload_bytes as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;

    const MAX: usize = 16 << 20;

    fn bytes_of(id: u64, body: usize) -> Vec<u8> {
        let frame = Frame {
            opcode: 7,
            meta: Bytes::from_static(b"meta"),
            payload: vec![id as u8; body - 4].into(),
        };
        let mut bytes = Header::of(Kind::Request, id, &frame).encode().to_vec();
        bytes.extend_from_slice(&frame.meta);
        bytes.extend_from_slice(&frame.payload);
        bytes
    }

    /// Feeds `input` in pieces of `piece` bytes, with a wait after each, and collects the frames.
    /// Looks at the buffer's size in every wait.
    fn feed(input: &[u8], piece: usize, mut waiting: impl FnMut(&FrameReader)) -> Vec<u64> {
        let mut reader = FrameReader::new(MAX);
        let mut cx = Context::from_waker(core::task::Waker::noop());
        let mut ids = Vec::new();
        for piece in input.chunks(piece) {
            let mut source = piece;
            while !source.is_empty() {
                assert!(
                    reader
                        .poll_fill(&mut source, &mut cx, usize::MAX)
                        .is_ready()
                );
                while let Some((header, frame)) = reader.next_frame().expect("frames") {
                    assert_eq!(&frame.meta[..], b"meta");
                    assert!(frame.payload.iter().all(|&byte| byte == header.id as u8));
                    ids.push(header.id);
                }
            }
            reader.settle();
            waiting(&reader);
        }
        assert!(!reader.is_inside_frame());
        ids
    }

    #[test]
    fn frames_come_out_the_same_however_they_are_cut() {
        let sizes = [4, 100, 5_000, 4, 70_000, 300_000, 4_096, 4];
        let input: Vec<u8> = (0..)
            .zip(sizes)
            .flat_map(|(id, n)| bytes_of(id, n))
            .collect();
        for piece in [1, 31, 33, 4_000, 65_536, input.len()] {
            let ids = feed(&input, piece, |_| {});
            assert_eq!(ids, (0..sizes.len() as u64).collect::<Vec<_>>(), "{piece}");
        }
    }

    // shows: READ-2
    #[test]
    fn an_idle_reader_holds_no_buffer_and_a_started_frame_a_small_one() {
        let input = bytes_of(1, 100);
        feed(&input, input.len(), |reader| {
            assert_eq!(reader.buffer.capacity(), 0)
        });
        let mut largest = 0;
        feed(&input, 10, |reader| {
            largest = largest.max(reader.buffer.capacity())
        });
        assert!(largest < 1_024, "{largest}");
    }

    // shows: READ-1
    #[test]
    fn room_follows_what_has_come_not_what_was_announced() {
        let input = bytes_of(1, 12 << 20);
        feed(&input, 10_000, |reader| {
            let own = reader.body.as_ref().map_or(0, |body| body.capacity());
            let (here, room) = (reader.here(), reader.buffer.capacity() + own);
            assert!(room <= 4 * here + 2 * BUFFER_BYTES, "{room} for {here}");
        });
    }
}
