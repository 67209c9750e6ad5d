//! What a connection has to send.
//!
//! Small replies are written one behind the other into a buffer. A large value is a piece of its
//! own, which shares the memory of the reply: it is not copied again. Pieces are freed as they are
//! sent.

use crate::number::push_integer;
use crate::reply::{Protocol, Reply};
use bytes::Bytes;
use pluvio_env::buffers::Buffer;
use std::collections::VecDeque;

/// Shorter values are copied: that costs less than another call of the kernel.
const SHARED_BYTES_MIN: usize = 64 << 10;
/// A buffer of small replies is closed from this size on. It never grows to the size of a reply.
const TAIL_BYTES_MAX: usize = 256 << 10;

/// A place that replies are written to.
pub(crate) trait Out {
    /// The buffer, for what is small.
    fn small(&mut self) -> &mut Vec<u8>;

    /// Appends the bytes of a value.
    fn value(&mut self, value: &Bytes) {
        self.small().extend_from_slice(value);
    }
}

impl Out for Vec<u8> {
    fn small(&mut self) -> &mut Vec<u8> {
        self
    }
}

/// What waits to be sent.
#[derive(Default)]
pub(crate) struct Output {
    /// Sent before the tail.
    pieces: VecDeque<Bytes>,
    pieces_bytes: usize,
    tail: Vec<u8>,
}

impl Out for Output {
    fn small(&mut self) -> &mut Vec<u8> {
        if self.tail.len() >= TAIL_BYTES_MAX {
            self.close_tail();
        }
        &mut self.tail
    }

    fn value(&mut self, value: &Bytes) {
        if value.len() < SHARED_BYTES_MIN {
            self.small().extend_from_slice(value);
        } else {
            self.close_tail();
            self.push(value.clone());
        }
    }
}

impl Output {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.pieces_bytes + self.tail.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that it holds.
    pub(crate) fn bytes_held(&self) -> usize {
        self.pieces_bytes + self.tail.capacity()
    }

    fn push(&mut self, piece: Bytes) {
        self.pieces_bytes += piece.len();
        self.pieces.push_back(piece);
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            let tail = core::mem::take(&mut self.tail);
            self.push(tail.into());
        }
    }

    /// Appends a reply; its parts are freed as they are written.
    pub(crate) fn reply(&mut self, reply: Reply, protocol: Protocol) {
        reply.write_to(protocol, self);
    }

    /// Appends a value that is elsewhere, or its absence.
    pub(crate) fn value_or_nil(&mut self, value: Option<&[u8]>, protocol: Protocol) {
        let Some(value) = value else {
            Reply::Nil.write_to(protocol, self);
            return;
        };
        if value.len() < SHARED_BYTES_MIN {
            Reply::write_value(Some(value), protocol, self.small());
            return;
        }
        self.close_tail();
        // A buffer that is used again: fresh memory of this size costs more than the copy.
        let mut piece = Buffer::with_capacity(value.len() + 32);
        piece.push(b'$');
        push_integer(&mut piece, i64::try_from(value.len()).unwrap_or(i64::MAX));
        piece.extend_from_slice(b"\r\n");
        piece.extend_from_slice(value);
        piece.extend_from_slice(b"\r\n");
        self.push(piece.freeze());
    }

    /// The bytes to be sent next; empty when there are none.
    pub(crate) fn first(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail, |piece| piece)
    }

    /// The bytes that [`Self::first`] gave were sent.
    pub(crate) fn sent_first(&mut self) {
        match self.pieces.pop_front() {
            Some(piece) => self.pieces_bytes -= piece.len(),
            None if self.tail.capacity() > TAIL_BYTES_MAX => self.tail = Vec::new(),
            None => self.tail.clear(),
        }
    }

    /// Nothing is to be sent any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back memory above `bytes_max` when nothing waits.
    pub(crate) fn shrink(&mut self, bytes_max: usize) {
        if self.is_empty() {
            self.pieces = VecDeque::new();
            if self.tail.capacity() > bytes_max {
                self.tail = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(output: &mut Output) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut pieces) = (Vec::new(), Vec::new());
        while !output.is_empty() {
            let first = output.first();
            bytes.extend_from_slice(first);
            pieces.push(first.len());
            output.sent_first();
        }
        (bytes, pieces)
    }

    #[test]
    fn what_is_sent_is_the_same_in_pieces_and_in_one() {
        let large = Bytes::from(vec![b'x'; 3 * SHARED_BYTES_MIN]);
        let small: Vec<_> = (0..TAIL_BYTES_MAX / 1000)
            .map(|_| Reply::copy(vec![b'y'; 1500]))
            .collect();
        let replies = [
            Reply::OK,
            Reply::Bulk(large.clone()),
            Reply::Array(small),
            Reply::Map(vec![(Reply::Text("k"), Reply::Bulk(large.clone()))]),
            Reply::Integer(7),
        ];
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let (mut output, mut expected) = (Output::default(), Vec::new());
            for reply in &replies {
                reply.write(protocol, &mut expected);
                output.reply(reply.clone(), protocol);
            }
            output.value_or_nil(Some(&large), protocol);
            Reply::Bulk(large.clone()).write(protocol, &mut expected);
            output.value_or_nil(None, protocol);
            Reply::Nil.write(protocol, &mut expected);
            assert_eq!(output.len(), expected.len());
            let (bytes, pieces) = sent(&mut output);
            assert!(bytes == expected && pieces.len() >= 6, "{pieces:?}");
            assert!(pieces.iter().all(|piece| *piece < 2 * TAIL_BYTES_MAX));
        }
    }
}
