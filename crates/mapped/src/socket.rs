//! Packets with files, over a socket of this machine.

use crate::messages::{FILES_MAX, PACKET_MAX};
use core::mem::MaybeUninit;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};

/// Sends a packet with some files. A full socket is `EAGAIN` with `flags` that say so.
///
/// # Errors
/// The system's.
pub fn send(
    socket: impl AsFd,
    packet: &[u8],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    let sent = retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(packet)], &mut control, flags)
    })?;
    match sent == packet.len() {
        true => Ok(()),
        false => Err(Errno::MSGSIZE),
    }
}

/// Receives a packet and its files; an empty one means that the other side has gone.
///
/// # Errors
/// The system's; `EMSGSIZE` for a packet that is longer than any message.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut packet = vec![0; PACKET_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut room = [IoSliceMut::new(&mut packet)];
    // A process that was stopped meanwhile is told so, and goes on.
    let received = retry_on_intr(|| rustix::net::recvmsg(&socket, &mut room, &mut control, flags))?;
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            files.extend(some);
        }
    }
    if received.bytes > PACKET_MAX {
        return Err(Errno::MSGSIZE);
    }
    packet.truncate(received.bytes);
    Ok((packet, files))
}
