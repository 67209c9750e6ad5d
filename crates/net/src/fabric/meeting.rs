//! How two processes come to know each other's endpoints. Behind the hellos, both sides send this
//! over TCP, little endian:
//!
//! ```text
//!  0        2    4             8         16
//!  +--------+----+-------------+---------+------
//!  | length | 0  | window      | key     | name
//!  | u16    | 2  | u32         | u64     |
//!  +--------+----+-------------+---------+------
//! ```
//!
//! "name" is that of the endpoint, as libfabric knows it, and "length" its bytes. "window" is the
//! number of bytes that may wait at this side, and "key" marks messages to it. Then each side sends
//! one message without bytes, the caller first. So a connection begins only when messages get
//! through both ways.

use crate::client_io::Shared;
use crate::fabric::hub::{Hubs, open};
use crate::fabric::line::Line;
use crate::fabric::stream::{FabricStream, Registered, There};
use crate::ring::handover::{RING_BYTES_MAX, RING_BYTES_MIN, ring_bytes};
use crate::ring::socket::new_mark;
use core::future::poll_fn;
use core::net::IpAddr;
use core::task::Poll;
use pluvio_fabric::NAME_BYTES_MAX;
use pluvio_units::CoreId;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_BYTES: usize = 16;

/// A side of a connection that is being made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// It connected.
    Caller,
    /// It was connected to.
    Server,
}

/// Whether a provider works here, for a port that is to be opened.
///
/// # Errors
/// Text for people.
pub(crate) async fn check(shared: &Shared, provider: &str, node: IpAddr) -> Result<(), String> {
    open(shared, provider, node).await.map(drop)
}

/// Makes a connection over libfabric beside one of TCP. The caller bounds the time.
///
/// # Errors
/// The provider does not work here, the other side broke the protocol, or no message gets through.
pub(crate) async fn meet(
    mut life: TcpStream,
    shared: &Shared,
    core: CoreId,
    provider: &str,
    side: Side,
) -> io::Result<FabricStream> {
    let node = life.local_addr()?.ip().to_canonical();
    let hub = Hubs::get(shared, core, provider, node).await;
    let hub = hub.map_err(io::Error::other)?;
    let window = ring_bytes(&shared.options);
    let line = Line::new(new_mark(), window, shared.clock.now());
    let here = Registered::new(hub, line);
    life.write_all(&introduction(&here, window)).await?;
    let there = read_introduction(&mut life, &here).await?;
    let mut stream = FabricStream::new(life, here, there, Arc::clone(&shared.clock));
    if side == Side::Caller {
        say_hello(&mut stream).await?;
        hear_hello(&mut stream).await?;
    } else {
        hear_hello(&mut stream).await?;
        say_hello(&mut stream).await?;
    }
    Ok(stream)
}

fn introduction(here: &Registered, window: u64) -> Vec<u8> {
    let name = here.hub.endpoint().name();
    let length = u16::try_from(name.len()).expect("at most NAME_BYTES_MAX");
    let window = u32::try_from(window).expect("at most RING_BYTES_MAX");
    let mut bytes = Vec::with_capacity(HEAD_BYTES + name.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&window.to_le_bytes());
    bytes.extend_from_slice(&here.line.key.to_le_bytes());
    bytes.extend_from_slice(name);
    bytes
}

async fn read_introduction(life: &mut TcpStream, here: &Registered) -> io::Result<There> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let length = usize::from(life.read_u16_le().await?);
    let _zero = life.read_u16_le().await?;
    let window = u64::from(life.read_u32_le().await?);
    let key = life.read_u64_le().await?;
    if length > NAME_BYTES_MAX {
        return Err(invalid(format!("its endpoint's name has {length} bytes")));
    }
    if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&window) {
        return Err(invalid(format!("it has a window of {window} bytes")));
    }
    let mut name = vec![0; length];
    life.read_exact(&mut name).await?;
    let peer = here.hub.endpoint().peer(&name)?;
    here.line.peer.get_or_init(|| peer.id());
    Ok(There { peer, key, window })
}

async fn say_hello(stream: &mut FabricStream) -> io::Result<()> {
    poll_fn(|cx| match stream.tell(cx) {
        Ok(true) => Poll::Ready(Ok(())),
        Ok(false) => Poll::Pending,
        Err(error) => Poll::Ready(Err(error)),
    })
    .await
}

async fn hear_hello(stream: &mut FabricStream) -> io::Result<()> {
    poll_fn(|cx| match stream.is_met(cx) {
        Ok(true) => Poll::Ready(Ok(())),
        Ok(false) => Poll::Pending,
        Err(error) => Poll::Ready(Err(error)),
    })
    .await
}
