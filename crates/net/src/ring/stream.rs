//! A connection over two rings, which carries bytes like a socket.
//!
//! A Unix socket stands beside the rings for as long as the connection lives. A byte on it wakes
//! the other side, and its end is the other side's end: the kernel closes it when a process dies.
//!
//! Invariants
//! - DUPLEX-1: no system call here waits, whatever the other side does. Its bytes on the socket are
//!   read and thrown away, a bounded number of them in one turn.
//! - DUPLEX-2: bytes that were in the ring when the other side ended are read before the end is.

use crate::ring::halves::{Consumer, Garbage, Producer};
use crate::ring::handover::Sides;
use crate::ring::poller::{Poller, Watched};
use core::pin::Pin;
use core::task::{Context, Poll};
use rustix::net::SendFlags;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Wake-ups that are read at once.
const WAKES_BYTES: usize = 64;
/// Reads of the socket in one turn, before other tasks have theirs.
const READS_MAX: usize = 4;
/// Slices of one write that may lie in one record.
const PARTS_MAX: usize = 32;

/// One end of the connection.
pub(crate) struct RingStream {
    socket: UnixStream,
    producer: Producer,
    consumer: Consumer,
    /// Of the core whose task runs the connection.
    poller: Arc<Poller>,
    watched: Arc<Watched>,
    /// The other side has ended.
    is_ended: bool,
}

impl Drop for RingStream {
    fn drop(&mut self) {
        self.poller.forget(&self.watched);
    }
}

impl RingStream {
    pub(super) fn new(socket: UnixStream, sides: Sides, poller: &Arc<Poller>) -> Self {
        let Sides { outgoing, incoming } = sides;
        Self {
            socket,
            poller: Arc::clone(poller),
            watched: Watched::new(incoming.clone()),
            producer: Producer::new(outgoing),
            consumer: Consumer::new(incoming),
            is_ended: false,
        }
    }

    /// Wakes the other side.
    fn wake(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Without room there are wake-ups that it has not read yet. If it has ended, reading shows
        // that, behind the last bytes (DUPLEX-2).
        let _full_or_ended = rustix::net::send(&self.socket, &[0], flags);
    }

    /// Takes what is here.
    fn try_take(&mut self, into: &mut ReadBuf<'_>) -> io::Result<usize> {
        let mut taken = 0;
        loop {
            let here = self.consumer.here().map_err(broken)?;
            let len = here.min(into.remaining());
            if len == 0 {
                break;
            }
            self.consumer.take(into.initialize_unfilled_to(len));
            into.advance(len);
            taken += len;
        }
        if taken > 0 {
            self.poller.note_news(&self.watched);
            if self.consumer.must_wake() {
                self.wake();
            }
        }
        Ok(taken)
    }

    /// Has the task woken when something comes. `false`: it has come.
    fn rest(&mut self, cx: &Context<'_>) -> bool {
        let next = self.consumer.next_at();
        if self.poller.watch(&self.watched, next, cx.waker()) {
            return true;
        }
        self.poller.note_sleep(&self.watched);
        self.consumer.sleep()
    }

    /// Reads wake-ups until there are none, then has the task woken by the next one. Notes the end.
    fn poll_socket(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut thrown = [0; WAKES_BYTES];
        for _ in 0..READS_MAX {
            match self.socket.poll_read_ready(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(ready) => ready?,
            }
            match self.socket.try_read(&mut thrown) {
                Ok(0) => {
                    self.is_ended = true;
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It ended without reading a wake-up.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    self.is_ended = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }
}

fn broken(garbage: Garbage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, garbage)
}

impl AsyncRead for RingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if into.remaining() == 0 || this.try_take(into)? > 0 {
            return Poll::Ready(Ok(()));
        }
        if !this.is_ended {
            this.poll_socket(cx)?;
        }
        if !this.is_ended && this.rest(cx) {
            return Poll::Pending;
        }
        // DUPLEX-2
        this.try_take(into)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RingStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let count = slices.len().min(PARTS_MAX);
        for (part, slice) in parts.iter_mut().zip(slices) {
            *part = slice;
        }
        let parts = &parts[..count];
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let mut written = this.producer.put(parts).map_err(broken)?;
        if written == 0 {
            this.poll_socket(cx)?;
            if this.is_ended {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if this.producer.sleep().map_err(broken)? {
                return Poll::Pending;
            }
            written = this.producer.put(parts).map_err(broken)?;
        }
        if this.producer.must_wake() {
            this.wake();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flags = std::net::Shutdown::Write;
        Poll::Ready(socket2::SockRef::from(&self.socket).shutdown(flags))
    }
}
