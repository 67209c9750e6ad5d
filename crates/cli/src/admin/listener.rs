//! A TCP listener for axum whose connections are bounded in number and time.

use axum::serve::Listener;
use pluvio_env::{BoxFuture, Clock};
use pluvio_net::Tls;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::Accept;
use tokio_rustls::server::TlsStream;

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
    tls: Option<Arc<Tls>>,
    places: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    bounds: Bounds,
}

impl Bounded {
    /// Connections of `listener`, within `bounds`; inside `tls` if there is any.
    pub fn new(
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        clock: Arc<dyn Clock>,
        bounds: Bounds,
    ) -> Self {
        Self {
            listener,
            tls,
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
                    let stream = match &self.tls {
                        None => Carrier::Plain(stream),
                        // The handshake is a part of the first read.
                        Some(tls) => Carrier::Greeting(Box::new(tls.web().accept(stream))),
                    };
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
    stream: Carrier,
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

/// The bytes of a connection.
enum Carrier {
    Plain(TcpStream),
    /// TLS has not begun.
    Greeting(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Bytes both ways.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl Carrier {
    /// The stream, once TLS has begun if it is to have any.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Duplex>>> {
        if let Self::Greeting(accept) = self {
            let begun = ready!(Pin::new(&mut **accept).poll(cx))?;
            *self = Self::Tls(Box::new(begun));
        }
        Poll::Ready(Ok(match self {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(&mut **stream),
            Self::Greeting(_) => unreachable!("it has begun"),
        }))
    }
}

impl AsyncRead for Carrier {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_begun(cx))?.poll_read(cx, into)
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_begun(cx))?.poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_begun(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_begun(cx))?.poll_shutdown(cx)
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
