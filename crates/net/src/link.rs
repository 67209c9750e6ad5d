//! The carrier of a connection's bytes between two processes, once their hellos are over.

use crate::fabric::FabricStream;
use crate::ring::RingStream;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A connection of any transport that carries bytes in order.
pub(crate) enum Link {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Ring(Box<RingStream>),
    Fabric(Box<FabricStream>),
}

impl Link {
    /// Whether it goes over rings.
    pub(crate) fn is_ring(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Fabric(_) => false,
            Self::Ring(_) => true,
        }
    }

    /// Whether it goes over libfabric.
    pub(crate) fn is_fabric(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Ring(_) => false,
            Self::Fabric(_) => true,
        }
    }
}

impl AsyncRead for Link {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, into),
            Self::Ring(stream) => Pin::new(&mut **stream).poll_read(cx, into),
            Self::Fabric(stream) => Pin::new(&mut **stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, data),
            Self::Ring(stream) => Pin::new(&mut **stream).poll_write(cx, data),
            Self::Fabric(stream) => Pin::new(&mut **stream).poll_write(cx, data),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
            Self::Ring(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
            Self::Fabric(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
            Self::Ring(stream) => Pin::new(&mut **stream).poll_flush(cx),
            Self::Fabric(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            Self::Ring(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            Self::Fabric(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
