//! A TCP listener for axum whose connections are bounded in number and time.

use axum::serve::Listener;
use pluvio_env::{BoxFuture, Clock};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The pause when accepting fails for want of files: connections end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listener.
pub struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    limit: Duration,
}

impl Bounded {
    /// At most `connections` at a time, each for at most `limit`.
    pub fn new(
        listener: TcpListener,
        clock: Arc<dyn Clock>,
        connections: usize,
        limit: Duration,
    ) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(connections)),
            clock,
            limit,
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let places = Arc::clone(&self.places);
        let place = places
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let connection = Connection {
                        stream,
                        end: self.clock.sleep(self.limit),
                        _place: place,
                    };
                    return (connection, peer);
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept on the admin port");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that breaks when its time is up.
pub struct Connection {
    stream: TcpStream,
    end: BoxFuture<'static, ()>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            // The future has ended and is not polled again: an error ends the connection.
            Poll::Ready(()) => {
                self.end = Box::pin(std::future::ready(()));
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
