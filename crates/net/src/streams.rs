//! A connection that carries bytes without frames.

use crate::client_io::Shared;
use crate::counters::add;
use crate::spare::{self, BUFFER_BYTES};
use bytes::BytesMut;
use core::future::poll_fn;
use core::task::Poll;
use pluvio_env::{Address, BoxFuture, ByteStream, Peer, StreamError};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

/// While nothing arrives, an empty buffer of the caller above this size is given back.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// An accepted TCP connection.
pub(crate) struct TcpByteStream {
    stream: TcpStream,
    peer: Peer,
    shared: Arc<Shared>,
}

impl TcpByteStream {
    pub(crate) fn new(stream: TcpStream, peer: Peer, shared: Arc<Shared>) -> Self {
        add(&shared.counters.of(peer.core).streams_accepted, 1);
        Self {
            stream,
            peer,
            shared,
        }
    }

    fn count_received(&self, count: usize) {
        add(
            &self.shared.counters.of(self.peer.core).bytes_received,
            count,
        );
    }

    /// The error that the connection has ended with.
    fn broken(&self, error: &io::Error) -> StreamError {
        let counters = self.shared.counters.of(self.peer.core);
        add(&counters.peers_stalled, usize::from(is_stalled(error)));
        StreamError(error.to_string())
    }
}

impl Drop for TcpByteStream {
    fn drop(&mut self) {
        add(&self.shared.counters.of(self.peer.core).streams_ended, 1);
    }
}

/// The kernel has given up on a peer that took nothing for too long, or has vanished.
fn is_stalled(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

impl ByteStream for TcpByteStream {
    fn read<'a>(&'a mut self, into: &'a mut BytesMut) -> BoxFuture<'a, Result<usize, StreamError>> {
        Box::pin(async move {
            let read = poll_fn(|cx| {
                // Read into a lent buffer, so that a waiting connection holds none.
                let mut buffer = spare::take();
                let read = pin!(self.stream.read_buf(&mut buffer)).poll(cx);
                match &read {
                    Poll::Ready(_) => into.extend_from_slice(&buffer),
                    Poll::Pending => {
                        if into.is_empty() && into.capacity() > IDLE_BYTES_MAX {
                            *into = BytesMut::new();
                        }
                    }
                }
                spare::give(buffer);
                read
            });
            let read = read.await;
            let count = read.map_err(|error| self.broken(&error))?;
            self.count_received(count);
            Ok(count)
        })
    }

    fn try_read(&mut self, into: &mut BytesMut) -> Result<Option<usize>, StreamError> {
        let mut buffer = spare::take();
        debug_assert!(buffer.capacity() >= BUFFER_BYTES, "a lent buffer has room");
        let result = match self.stream.try_read_buf(&mut buffer) {
            Ok(count) => {
                into.extend_from_slice(&buffer);
                self.count_received(count);
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(self.broken(&error)),
        };
        spare::give(buffer);
        result
    }

    fn gone(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // An error of this call means the same.
            let _ = self.stream.ready(Interest::ERROR).await;
        })
    }

    fn write_all<'a>(&'a mut self, data: &'a [u8]) -> BoxFuture<'a, Result<(), StreamError>> {
        Box::pin(async move {
            if let Err(error) = self.stream.write_all(data).await {
                return Err(self.broken(&error));
            }
            let counters = self.shared.counters.of(self.peer.core);
            add(&counters.bytes_sent, data.len());
            Ok(())
        })
    }

    fn peer(&self) -> Peer {
        self.peer.clone()
    }

    fn local(&self) -> Address {
        match self.stream.local_addr() {
            Ok(address) => Address::from(address.to_string().as_str()),
            Err(_) => Address::default(),
        }
    }
}
