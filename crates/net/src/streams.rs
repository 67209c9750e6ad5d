//! A connection that carries bytes without frames, inside TLS or not.

use crate::client_io::Shared;
use crate::counters::add;
use crate::spare::{self, BUFFER_BYTES};
use bytes::BytesMut;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker, ready};
use pluvio_env::{Address, BoxFuture, ByteStream, Peer, StreamError};
use std::io::{self, Write};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// While nothing arrives, an empty buffer of the caller above this size is given back.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// The way of the bytes of a stream.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {
    fn socket(&self) -> &TcpStream;

    /// Reads the bytes that are there. The next read registers its waker.
    fn try_read(&mut self, into: &mut BytesMut) -> io::Result<usize>;

    /// Says that the stream ends here, as far as the socket takes it at once.
    fn say_end(&mut self);
}

impl Carrier for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }

    fn try_read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        self.try_read_buf(into)
    }

    fn say_end(&mut self) {}
}

impl Carrier for Box<TlsStream<TcpStream>> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }

    fn try_read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        match pin!(self.read_buf(into)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Some clients take an end without the goodbye of TLS for an attack.
    fn say_end(&mut self) {
        let (socket, session) = self.get_mut();
        session.send_close_notify();
        let _the_peer_may_be_gone = session.write_tls(&mut AtOnce(socket));
    }
}

/// Writes what the socket takes at once.
struct AtOnce<'a>(&'a TcpStream);

impl Write for AtOnce<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.try_write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An accepted TCP connection.
pub(crate) struct OsByteStream<C: Carrier> {
    carrier: C,
    peer: Peer,
    shared: Arc<Shared>,
}

impl<C: Carrier> OsByteStream<C> {
    pub(crate) fn new(carrier: C, peer: Peer, shared: Arc<Shared>) -> Self {
        add(&shared.counters.of(peer.core).streams_accepted, 1);
        Self {
            carrier,
            peer,
            shared,
        }
    }

    /// What a read came to.
    fn received(&self, read: io::Result<usize>) -> Result<usize, StreamError> {
        let counters = self.shared.counters.of(self.peer.core);
        match read {
            Ok(count) => {
                add(&counters.bytes_received, count);
                Ok(count)
            }
            // TLS without its goodbye: requests are whole or not, so no request is cut.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// The error that the connection has ended with.
    fn broken(&self, error: &io::Error) -> StreamError {
        let counters = self.shared.counters.of(self.peer.core);
        add(&counters.peers_stalled, usize::from(is_stalled(error)));
        StreamError(error.to_string())
    }
}

impl<C: Carrier> Drop for OsByteStream<C> {
    fn drop(&mut self) {
        add(&self.shared.counters.of(self.peer.core).streams_ended, 1);
        self.carrier.say_end();
    }
}

/// The kernel has given up on a peer that took nothing for too long, or has vanished.
fn is_stalled(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

impl<C: Carrier> ByteStream for OsByteStream<C> {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<Result<usize, StreamError>> {
        // Read into a lent buffer, so that a waiting connection holds none.
        let mut buffer = spare::take();
        let read = pin!(self.carrier.read_buf(&mut buffer)).poll(context);
        match &read {
            Poll::Ready(_) => into.extend_from_slice(&buffer),
            Poll::Pending => {
                if into.is_empty() && into.capacity() > IDLE_BYTES_MAX {
                    *into = BytesMut::new();
                }
            }
        }
        spare::give(buffer);
        read.map(|read| self.received(read))
    }

    fn try_read(&mut self, into: &mut BytesMut) -> Result<Option<usize>, StreamError> {
        let mut buffer = spare::take();
        debug_assert!(buffer.capacity() >= BUFFER_BYTES, "a lent buffer has room");
        let result = match self.carrier.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            read => {
                into.extend_from_slice(&buffer);
                self.received(read).map(Some)
            }
        };
        spare::give(buffer);
        result
    }

    fn gone(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // An error of this call means the same.
            let _ = self.carrier.socket().ready(Interest::ERROR).await;
        })
    }

    fn poll_write_all(
        &mut self,
        context: &mut Context<'_>,
        rest: &mut &[u8],
    ) -> Poll<Result<(), StreamError>> {
        while !rest.is_empty() {
            let count = match ready!(Pin::new(&mut self.carrier).poll_write(context, rest)) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                written => written,
            };
            let count = count.map_err(|error| self.broken(&error))?;
            add(&self.shared.counters.of(self.peer.core).bytes_sent, count);
            *rest = &rest[count..];
        }
        // TLS may keep a part in its own buffer.
        let flushed = Pin::new(&mut self.carrier).poll_flush(context);
        flushed.map_err(|error| self.broken(&error))
    }

    fn peer(&self) -> Peer {
        self.peer.clone()
    }

    fn local(&self) -> Address {
        match self.carrier.socket().local_addr() {
            Ok(address) => Address::from(address.to_string().as_str()),
            Err(_) => Address::default(),
        }
    }
}
