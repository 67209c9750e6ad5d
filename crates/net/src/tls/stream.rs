//! A byte stream inside TLS.

use crate::client_io::Shared;
use crate::counters::add;
use crate::spare;
use bytes::BytesMut;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use pluvio_env::{Address, BoxFuture, ByteStream, Peer, StreamError};
use std::io::{self, Write};
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// While nothing arrives, an empty buffer of the caller above this size is given back.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// An accepted TCP connection with TLS.
pub(crate) struct TlsByteStream {
    stream: Box<TlsStream<TcpStream>>,
    peer: Peer,
    shared: Arc<Shared>,
}

impl TlsByteStream {
    pub(crate) fn new(stream: Box<TlsStream<TcpStream>>, peer: Peer, shared: Arc<Shared>) -> Self {
        add(&shared.counters.of(peer.core).streams_accepted, 1);
        Self {
            stream,
            peer,
            shared,
        }
    }

    /// Reads once, into a lent buffer, so that a waiting connection holds none.
    fn poll_read(
        &mut self,
        into: &mut BytesMut,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, StreamError>> {
        let mut buffer = spare::take();
        let read = pin!(self.stream.read_buf(&mut buffer)).poll(context);
        into.extend_from_slice(&buffer);
        spare::give(buffer);
        let counters = self.shared.counters.of(self.peer.core);
        read.map(|read| match read {
            Ok(count) => {
                add(&counters.bytes_received, count);
                Ok(count)
            }
            // Closed without the goodbye of TLS: requests are whole or not, so nothing is cut.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => {
                let is_stalled = error.kind() == io::ErrorKind::TimedOut;
                add(&counters.peers_stalled, usize::from(is_stalled));
                Err(StreamError(error.to_string()))
            }
        })
    }
}

impl Drop for TlsByteStream {
    fn drop(&mut self) {
        add(&self.shared.counters.of(self.peer.core).streams_ended, 1);
        // The goodbye of TLS: some clients take an end without it for an attack. It is sent as far
        // as the socket takes it at once.
        let (socket, session) = self.stream.get_mut();
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

impl ByteStream for TlsByteStream {
    fn read<'a>(&'a mut self, into: &'a mut BytesMut) -> BoxFuture<'a, Result<usize, StreamError>> {
        Box::pin(poll_fn(|context| {
            let read = self.poll_read(into, context);
            if read.is_pending() && into.is_empty() && into.capacity() > IDLE_BYTES_MAX {
                *into = BytesMut::new();
            }
            read
        }))
    }

    fn try_read(&mut self, into: &mut BytesMut) -> Result<Option<usize>, StreamError> {
        // The next `read` registers who is to be woken.
        match self.poll_read(into, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read.map(Some),
            Poll::Pending => Ok(None),
        }
    }

    fn gone(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // An error of this call means the same.
            let _ = self.stream.get_ref().0.ready(Interest::ERROR).await;
        })
    }

    fn write_all<'a>(&'a mut self, data: &'a [u8]) -> BoxFuture<'a, Result<(), StreamError>> {
        Box::pin(async move {
            let written = match self.stream.write_all(data).await {
                Ok(()) => self.stream.flush().await,
                Err(error) => Err(error),
            };
            let counters = self.shared.counters.of(self.peer.core);
            if let Err(error) = written {
                let is_stalled = error.kind() == io::ErrorKind::TimedOut;
                add(&counters.peers_stalled, usize::from(is_stalled));
                return Err(StreamError(error.to_string()));
            }
            add(&counters.bytes_sent, data.len());
            Ok(())
        })
    }

    fn peer(&self) -> Peer {
        self.peer.clone()
    }

    fn local(&self) -> Address {
        match self.stream.get_ref().0.local_addr() {
            Ok(address) => Address::from(address.to_string().as_str()),
            Err(_) => Address::default(),
        }
    }
}
