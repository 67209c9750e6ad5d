//! Frames on their way into a socket. Small ones are joined in one buffer, so that many leave in
//! one system call; large payloads are written from where they are (`writev`).

use crate::frame::Header;
use crate::spare;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use pluvio_env::Frame;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use tokio::io::AsyncWrite;

/// Parts up to this size are copied: cheaper than a slice of their own.
const COPY_BYTES_MAX: usize = 8 << 10;
/// Fewer joined bytes than these are moved to a buffer of their size while they wait.
const SMALL_TAIL_BYTES: usize = 4 << 10;
/// Slices given to one `writev`.
const SLICES_MAX: usize = 32;

#[derive(Default)]
pub(crate) struct WriteQueue {
    /// Before `tail` in order.
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    bytes: usize,
    /// Bytes taken by the socket so far.
    sent: u64,
    /// Whether the carrier may hold bytes that it has taken: TLS makes records of them.
    is_behind: bool,
}

impl WriteQueue {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes_held(&self) -> usize {
        self.bytes - self.tail.len() + self.tail.capacity()
    }

    /// Gives up room that is unneeded while the socket takes nothing.
    pub(crate) fn settle(&mut self) {
        let (here, room) = (self.tail.len(), self.tail.capacity());
        if here < SMALL_TAIL_BYTES && room > 2 * SMALL_TAIL_BYTES {
            let rest = BytesMut::from(&self.tail[..]);
            spare::give(core::mem::replace(&mut self.tail, rest));
        }
    }

    /// Whether everything has left this process.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && !self.is_behind
    }

    /// Bytes taken by the socket since the connection began.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn push(&mut self, header: &Header, frame: Frame) {
        self.copy(&header.encode());
        self.push_part(frame.meta);
        self.push_part(frame.payload);
    }

    /// A frame without body.
    pub(crate) fn push_header(&mut self, header: &Header) {
        self.copy(&header.encode());
    }

    fn push_part(&mut self, part: Bytes) {
        if part.len() <= COPY_BYTES_MAX {
            self.copy(&part);
            return;
        }
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.bytes += part.len();
        self.chunks.push_back(part);
    }

    fn copy(&mut self, bytes: &[u8]) {
        if self.tail.capacity() == 0 {
            self.tail = spare::take();
        }
        self.tail.put_slice(bytes);
        self.bytes += bytes.len();
    }

    /// Writes until the socket takes no more (`Pending`) or nothing waits.
    pub(crate) fn poll_flush(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.bytes > 0 {
            let written = if self.chunks.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(cx, &self.tail))?
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let parts = self.chunks.iter().map(Bytes::as_ref);
                let parts = parts.chain(core::iter::once(self.tail.as_ref()));
                let mut count = 0;
                for (slice, part) in slices.iter_mut().zip(parts) {
                    *slice = IoSlice::new(part);
                    count += 1;
                }
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.is_behind = true;
            self.consume(written);
        }
        if self.tail.capacity() > 0 {
            spare::give(core::mem::take(&mut self.tail));
        }
        if self.is_behind {
            ready!(Pin::new(&mut *stream).poll_flush(cx))?;
            self.is_behind = false;
        }
        Poll::Ready(Ok(()))
    }

    fn consume(&mut self, mut written: usize) {
        assert!(
            written <= self.bytes,
            "the socket took more than it was given"
        );
        self.bytes -= written;
        self.sent += written as u64;
        while let Some(first) = self.chunks.front_mut() {
            if first.len() > written {
                first.advance(written);
                return;
            }
            written -= first.len();
            self.chunks.pop_front();
        }
        self.tail.advance(written);
    }
}
