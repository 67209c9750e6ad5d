//! A connection over libfabric, which carries bytes like a socket.
//!
//! A TCP socket stands beside it for as long as the connection lives. Its end is the other side's
//! end, because many providers never tell that. A byte on it wakes a side whose provider has no
//! descriptor to sleep on.
//!
//! - STREAM-1: messages that have come when the other side's end is noticed are read before the
//!   end is. Those on their way are lost, as calls without a reply are.

use crate::fabric::hub::{Hub, PIECE_BYTES_MAX};
use crate::fabric::line::Line;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use pluvio_env::{Clock, Moment};
use pluvio_fabric::Peer;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Messages of one write, before other tasks have their turn.
const PIECES_MAX: usize = 16;
/// Wake-ups that are read at once, and reads of the socket in one turn.
const WAKES_BYTES: usize = 64;
const READS_MAX: usize = 4;
/// A side that was not heard for so long may sleep, and is woken by the socket.
const QUIET: Duration = Duration::from_micros(50);

/// The line of a connection in its hub, for as long as this value lives.
pub(super) struct Registered {
    pub(super) hub: Arc<Hub>,
    pub(super) line: Arc<Line>,
}

impl Registered {
    pub(super) fn new(hub: Arc<Hub>, line: Line) -> Self {
        let line = Arc::new(line);
        hub.add(&line);
        Self { hub, line }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.hub.remove(&self.line);
    }
}

/// The other side of a connection.
pub(super) struct There {
    pub(super) peer: Peer,
    /// The key of the line there.
    pub(super) key: u64,
    /// The bytes that may wait there.
    pub(super) window: u64,
}

/// One end of the connection.
pub(crate) struct FabricStream {
    life: TcpStream,
    here: Registered,
    there: There,
    clock: Arc<dyn Clock>,
    woke: Moment,
    /// The other side has ended.
    is_ended: bool,
}

/// What became of a message.
#[derive(PartialEq, Eq)]
enum Sent {
    Yes,
    /// The provider takes none now.
    NotNow,
}

impl FabricStream {
    pub(super) fn new(
        life: TcpStream,
        here: Registered,
        there: There,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            life,
            here,
            there,
            woke: clock.now(),
            clock,
            is_ended: false,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<Sent> {
        let head = self.here.line.head(self.there.key);
        let encoded = head.encode();
        if !self.there.peer.send(&encoded, bytes)? {
            // Taking completions makes room.
            self.here.hub.turn();
            if !self.there.peer.send(&encoded, bytes)? {
                return Ok(Sent::NotNow);
            }
        }
        self.here.line.note_sent(head, bytes.len());
        self.here.hub.nudge();
        Ok(Sent::Yes)
    }

    /// Sends a message without bytes. `false`: not now; the task is woken then.
    pub(super) fn tell(&mut self, cx: &Context<'_>) -> io::Result<bool> {
        let sent = self.send(&[])?;
        if sent == Sent::NotNow {
            self.here.hub.block(cx.waker());
        }
        self.wake_if_quiet();
        Ok(sent == Sent::Yes)
    }

    /// Whether a message has come; if not, the task is woken by the first one.
    pub(super) fn is_met(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let is_met = self.here.line.is_met(cx.waker())?;
        if !is_met {
            self.poll_life(cx)?;
            if self.is_ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(is_met)
    }

    /// Wakes the other side if it may sleep where its provider does not wake it.
    fn wake_if_quiet(&mut self) {
        if !self.here.hub.has_no_descriptor() {
            return;
        }
        let now = self.clock.now();
        if now.since(self.here.line.heard()) >= QUIET && now.since(self.woke) >= QUIET {
            self.woke = now;
            // Without room there are wake-ups that it has not read. Its end shows in reading.
            let _full_or_ended = self.life.try_write(&[0]);
        }
    }

    /// Reads wake-ups until there are none, then has the task woken by the next one. Notes the end.
    fn poll_life(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut thrown = [0; WAKES_BYTES];
        for _ in 0..READS_MAX {
            match self.life.poll_read_ready(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(ready) => ready?,
            }
            match self.life.try_read(&mut thrown) {
                Ok(0) => {
                    self.is_ended = true;
                    return Ok(());
                }
                Ok(_) => self.here.hub.nudge(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
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

    /// Reads what is here, and tells the other side if there is reason to.
    fn read_here(&mut self, cx: &Context<'_>, into: &mut ReadBuf<'_>) -> io::Result<usize> {
        let count = self.here.line.read(into);
        if self.here.line.has_to_tell() {
            self.tell(cx)?;
        }
        Ok(count)
    }
}

impl AsyncRead for FabricStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if into.remaining() == 0 || this.read_here(cx, into)? > 0 {
            return Poll::Ready(Ok(()));
        }
        if !this.is_ended {
            this.poll_life(cx)?;
        }
        if this.is_ended {
            // STREAM-1
            this.here.hub.turn();
        } else if this.here.line.wait_to_read(cx.waker())? {
            return Poll::Pending;
        }
        this.here.line.read(into);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FabricStream {
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
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        loop {
            let (written, sent) = this.send_pieces(slices)?;
            if written > 0 {
                this.wake_if_quiet();
                return Poll::Ready(Ok(written));
            }
            if this.is_ended {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if sent == Sent::NotNow {
                this.here.hub.block(cx.waker());
                return Poll::Pending;
            }
            if this.here.line.wait_to_write(this.there.window, cx.waker()) {
                return Poll::Pending;
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.life).poll_shutdown(cx)
    }
}

impl FabricStream {
    /// Sends the first of these bytes, as far as there is room. Gives their number.
    fn send_pieces(&mut self, slices: &[IoSlice<'_>]) -> io::Result<(usize, Sent)> {
        let mut written = 0;
        let pieces = slices
            .iter()
            .flat_map(|slice| slice.chunks(PIECE_BYTES_MAX));
        for piece in pieces.take(PIECES_MAX) {
            let room = self.here.line.room(self.there.window)?;
            let len = usize::try_from(room).map_or(piece.len(), |room| room.min(piece.len()));
            if len == 0 {
                break;
            }
            if self.send(&piece[..len])? == Sent::NotNow {
                return Ok((written, Sent::NotNow));
            }
            written += len;
            if len < piece.len() {
                break;
            }
        }
        Ok((written, Sent::Yes))
    }
}
