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

/// How much connections are granted.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many at a time.
    pub connections: usize,
    /// How long each lives.
    pub life: Duration,
    /// How long each may wait for the first byte of a request, and from there for the first byte of
    /// its answer.
    pub quiet: Duration,
}

/// The listener.
pub struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    bounds: Bounds,
}

impl Bounded {
    /// Connections of `listener`, within `bounds`.
    pub fn new(listener: TcpListener, clock: Arc<dyn Clock>, bounds: Bounds) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(bounds.connections)),
            clock,
            bounds,
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
                        end: self.clock.sleep(self.bounds.life),
                        quiet: self.clock.sleep(self.bounds.quiet),
                        is_asked: false,
                        clock: Arc::clone(&self.clock),
                        quiet_limit: self.bounds.quiet,
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
    /// Ends when nothing has happened for too long.
    quiet: BoxFuture<'static, ()>,
    /// Whether bytes have come since something was written last.
    is_asked: bool,
    clock: Arc<dyn Clock>,
    quiet_limit: Duration,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        not_over(&mut self.end, cx)
    }

    /// Nothing more can be read or written now; that must not last.
    fn waits(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        not_over(&mut self.quiet, cx)
    }

    /// Bytes have come. Only the first ones since the last answer give more time: a request that
    /// comes byte by byte gets no more for each.
    fn has_read(&mut self) {
        if !self.is_asked {
            self.is_asked = true;
            self.quiet = self.clock.sleep(self.quiet_limit);
        }
    }

    fn has_written(&mut self) {
        self.is_asked = false;
        self.quiet = self.clock.sleep(self.quiet_limit);
    }
}

/// An error when the time is up.
fn not_over(time: &mut BoxFuture<'static, ()>, cx: &mut Context<'_>) -> io::Result<()> {
    match time.as_mut().poll(cx) {
        Poll::Pending => Ok(()),
        // The future has ended and is not polled again: an error ends the connection.
        Poll::Ready(()) => {
            *time = Box::pin(std::future::ready(()));
            Err(io::ErrorKind::TimedOut.into())
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
        // Bytes that came in time are taken, however late they are looked at.
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if into.filled().len() > before {
            self.has_read();
        } else if read.is_pending() {
            self.waits(cx)?;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.in_time(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        match written {
            Poll::Ready(Ok(_)) => self.has_written(),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.waits(cx)?,
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
