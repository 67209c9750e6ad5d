//! Stands for module `fabric` in a build without libfabric: no connection is ever made.

use crate::client_io::Shared;
use core::convert::Infallible;
use core::net::IpAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use pluvio_units::CoreId;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Whether this build has the transport.
pub(crate) const IS_BUILT: bool = false;
/// The reason to open no such port.
const NOT_BUILT: &str = "this program was built without libfabric (cargo feature `fabric`)";

/// A side of a connection that is being made.
pub(crate) enum Side {
    Caller,
    Server,
}

/// Says that there is none.
pub(crate) async fn check(_: &Shared, _: &str, _: IpAddr) -> Result<(), String> {
    Err(NOT_BUILT.to_owned())
}

/// Says that there is none.
pub(crate) async fn meet(
    _: TcpStream,
    _: &Shared,
    _: CoreId,
    _: &str,
    _: Side,
) -> io::Result<FabricStream> {
    Err(io::Error::new(io::ErrorKind::Unsupported, NOT_BUILT))
}

/// A connection that cannot be.
pub(crate) struct FabricStream(Infallible);

impl AsyncRead for FabricStream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.0 {}
    }
}

impl AsyncWrite for FabricStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match self.0 {}
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }
}
