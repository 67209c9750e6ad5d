//! How the side that was connected to shares its rings with the one that connected.
//!
//! Behind its hello it sends eight bytes, and with them the memory file:
//!
//! ```text
//!  0                     4          8
//!  +---------------------+----------+   memory file: control words of both rings, 4 KiB in all,
//!  | bytes of one ring   | 0        |   then the ring of the side that connected,
//!  | u32                 | 4        |   then the other one
//!  +---------------------+----------+
//! ```

use crate::options::NetOptions;
use crate::ring::halves::{CONTROL_BYTES, Place};
use crate::ring::poller::Poller;
use crate::ring::stream::RingStream;
use core::mem::MaybeUninit;
use pluvio_memory::SharedMemory;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Bytes before the rings: a page, so that they begin at one.
const HEAD_BYTES: u64 = 4 << 10;
/// A ring of one page would have records of less than a KiB.
pub(crate) const RING_BYTES_MIN: u64 = 4 << 10;
/// Larger rings only leave the processor's cache.
pub(crate) const RING_BYTES_MAX: u64 = 16 << 20;
/// Bytes of one ring, within what both sides take.
pub(crate) fn ring_bytes(options: &NetOptions) -> u64 {
    let wanted = u64::from(options.ring_bytes);
    wanted
        .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
        .next_power_of_two()
}

/// The name of the memory file in `/proc/PID/maps`.
const NAME: &str = "pluvio-ring";

/// The rings of one side.
pub(super) struct Sides {
    pub(super) outgoing: Place,
    pub(super) incoming: Place,
}

impl Sides {
    fn of(memory: SharedMemory, ring_bytes: u64) -> Self {
        let memory = Arc::new(memory);
        let ring = |number: u64| Place {
            memory: Arc::clone(&memory),
            control: number * CONTROL_BYTES,
            data: HEAD_BYTES + number * ring_bytes,
            capacity: ring_bytes,
        };
        Self {
            outgoing: ring(0),
            incoming: ring(1),
        }
    }

    fn turned(self) -> Self {
        Self {
            outgoing: self.incoming,
            incoming: self.outgoing,
        }
    }
}

fn memory_bytes(ring_bytes: u64) -> u64 {
    HEAD_BYTES + 2 * ring_bytes
}

/// Makes rings of `ring_bytes` and shares them with the side that connected.
///
/// # Errors
/// The system has no memory or files left, or the other side has gone.
pub(crate) async fn give(
    socket: UnixStream,
    ring_bytes: u64,
    poller: &Arc<Poller>,
) -> io::Result<RingStream> {
    let (memory, file) =
        SharedMemory::make(NAME, memory_bytes(ring_bytes)).map_err(io::Error::other)?;
    let mut message = [0; 8];
    let length = u32::try_from(ring_bytes).expect("at most RING_BYTES_MAX");
    message[..4].copy_from_slice(&length.to_le_bytes());
    socket
        .async_io(Interest::WRITABLE, || send(&socket, &message, &file))
        .await?;
    Ok(RingStream::new(
        socket,
        Sides::of(memory, ring_bytes).turned(),
        poller,
    ))
}

fn send(socket: &UnixStream, message: &[u8], file: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    let fits = control.push(SendAncillaryMessage::ScmRights(&files));
    assert!(fits, "the space is that of one file");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)?;
    // The socket's buffer holds a hello and this at most.
    match sent == message.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Maps the rings that the side that was connected to shares.
///
/// # Errors
/// It has gone, or what it sent are no rings.
pub(crate) async fn take(socket: UnixStream, poller: &Arc<Poller>) -> io::Result<RingStream> {
    let (message, file) = socket
        .async_io(Interest::READABLE, || receive(&socket))
        .await?;
    let [a, b, c, d, ..] = message;
    let ring_bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
    let fits = (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes);
    if !fits || !ring_bytes.is_power_of_two() {
        let what = format!("it has rings of {ring_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let memory = SharedMemory::open(file.as_fd(), memory_bytes(ring_bytes));
    let memory = memory.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(RingStream::new(
        socket,
        Sides::of(memory, ring_bytes),
        poller,
    ))
}

fn receive(socket: &UnixStream) -> io::Result<([u8; 8], OwnedFd)> {
    let mut message = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut message)],
        &mut control,
        flags,
    )?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let file = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    // Both come in one piece from a side that keeps to the protocol.
    match file.filter(|_| received.bytes == message.len()) {
        Some(file) => Ok((message, file)),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it shared no memory",
        )),
    }
}
