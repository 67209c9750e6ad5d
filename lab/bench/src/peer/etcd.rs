//! One connection to etcd: its gRPC calls `Range` and `Put`, over HTTP/2 without TLS.
//!
//! It speaks as much of HTTP/2 as one call at a time needs: header blocks without compression are
//! sent, and those that come are skipped. A call that ends without a message was refused.
//!
//! ```text
//! frame    length:24  type:8  flags:8  stream:32  payload
//! message  0:8  length:32  protobuf
//! ```

use bytes::{Buf, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Most bytes of a frame's payload; etcd keeps to HTTP/2's usual 16 KiB.
const FRAME_MAX: usize = 16 << 10;
/// Longest value. A request must fit the room that HTTP/2 gives a sender at first, 64 KiB, since
/// more room is not waited for. The server gives room back after a fourth of it.
const VALUE_MAX: usize = 48 << 10;
/// Received bytes after which the server is given as much room again: a part of the usual window of
/// 64 KiB.
const WINDOW_STEP: u32 = 16 << 10;

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flags of frames: the end of a stream, and the answer to SETTINGS or PING, are the same bit.
const END_STREAM: u8 = 1;
const ACKNOWLEDGES: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection.
#[derive(Debug)]
pub struct Etcd {
    stream: TcpStream,
    input: BytesMut,
    out: Vec<u8>,
    authority: String,
    /// The number of the next call's stream.
    next: u32,
    /// Bytes received since the server was last given room.
    received: u32,
}

impl Etcd {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn open(address: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut out = PREFACE.to_vec();
        frame(&mut out, SETTINGS, 0, 0, &[]);
        stream.write_all(&out).await?;
        Ok(Self {
            stream,
            input: BytesMut::with_capacity(64 << 10),
            out: Vec::new(),
            authority: address.to_owned(),
            next: 1,
            received: 0,
        })
    }

    /// Reads a value; whether it is there. The read is linearizable, as etcd's are by default.
    ///
    /// # Errors
    /// The connection broke, or the server refused.
    pub async fn get(&mut self, key: &str) -> io::Result<bool> {
        let mut request = Vec::with_capacity(key.len() + 8);
        field(&mut request, 1, key.as_bytes());
        let answer = self.call("/etcdserverpb.KV/Range", &request).await?;
        has_field(&answer, 2).ok_or_else(|| nonsense("a message that is no protobuf"))
    }

    /// Writes a value of at most 48 KiB.
    ///
    /// # Errors
    /// The value is longer, the connection broke, or the server refused.
    pub async fn put(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        if value.len() > VALUE_MAX {
            return Err(nonsense("a value of more than 48 KiB"));
        }
        let mut request = Vec::with_capacity(key.len() + value.len() + 16);
        field(&mut request, 1, key.as_bytes());
        field(&mut request, 2, value);
        self.call("/etcdserverpb.KV/Put", &request)
            .await
            .map(|_| ())
    }

    /// One call: its request's message goes out, its answer's message comes back.
    async fn call(&mut self, path: &str, request: &[u8]) -> io::Result<Vec<u8>> {
        let stream = self.next;
        self.next += 2;
        self.out.clear();
        let headers = headers(path, &self.authority);
        frame(&mut self.out, HEADERS, END_HEADERS, stream, &headers);
        let mut message = vec![0];
        message.extend_from_slice(&(request.len() as u32).to_be_bytes());
        message.extend_from_slice(request);
        let parts = message.len().div_ceil(FRAME_MAX);
        for (number, part) in message.chunks(FRAME_MAX).enumerate() {
            let flags = if number + 1 == parts { END_STREAM } else { 0 };
            frame(&mut self.out, DATA, flags, stream, part);
        }
        self.stream.write_all(&self.out).await?;
        let mut answer = Vec::new();
        while !self.take_frame(stream, &mut answer).await? {}
        let message = answer.get(5..);
        message
            .map(<[u8]>::to_vec)
            .ok_or_else(|| nonsense("a call was refused"))
    }

    /// Takes one frame; whether it ended the call.
    async fn take_frame(&mut self, call: u32, answer: &mut Vec<u8>) -> io::Result<bool> {
        self.at_least(HEAD).await?;
        let head: [u8; HEAD] = self.input[..HEAD].try_into().unwrap_or_default();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5] & 0x7F, head[6], head[7], head[8]]);
        if length > FRAME_MAX {
            return Err(nonsense("a frame that is too long"));
        }
        self.at_least(HEAD + length).await?;
        self.input.advance(HEAD);
        let payload = self.input.split_to(length);
        self.out.clear();
        match kind {
            SETTINGS if flags & ACKNOWLEDGES == 0 => {
                frame(&mut self.out, SETTINGS, ACKNOWLEDGES, 0, &[]);
            }
            PING if flags & ACKNOWLEDGES == 0 => {
                frame(&mut self.out, PING, ACKNOWLEDGES, 0, &payload);
            }
            DATA => {
                if stream == call {
                    answer.extend_from_slice(&payload);
                }
                self.received += length as u32;
                if self.received >= WINDOW_STEP {
                    let room = self.received.to_be_bytes();
                    self.received = 0;
                    frame(&mut self.out, WINDOW_UPDATE, 0, 0, &room);
                    frame(&mut self.out, WINDOW_UPDATE, 0, call, &room);
                }
            }
            RESET if stream == call => return Err(nonsense("a call was reset")),
            GO_AWAY => return Err(nonsense("the server goes away")),
            // Other settings, and headers, say nothing that is needed here.
            _ => {}
        }
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).await?;
        }
        let can_end = kind == DATA || kind == HEADERS;
        Ok(can_end && stream == call && flags & END_STREAM != 0)
    }

    async fn at_least(&mut self, bytes: usize) -> io::Result<()> {
        while self.input.len() < bytes {
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::other(format!("etcd: {what}"))
}

/// Adds a frame to `out`.
fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The header block of a call: names by their numbers in HPACK's static table, values as they are.
fn headers(path: &str, authority: &str) -> Vec<u8> {
    // :method POST, :scheme http.
    let mut block = vec![0x83, 0x86];
    let mut add = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        // Shorter than 127 bytes: one byte of length, without Huffman's code.
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    // :path, :authority and content-type.
    add(&[0x04], path);
    add(&[0x01], authority);
    add(&[0x0F, 0x10], "application/grpc");
    add(b"\x00\x02te", "trailers");
    block
}

/// Adds a field of bytes to a protobuf message.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

/// Whether a protobuf message has a field of bytes with this number; `None` when it is none.
fn has_field(message: &[u8], wanted: u64) -> Option<bool> {
    let mut rest = message;
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        match tag & 7 {
            0 => {
                varint(&mut rest)?;
            }
            2 if tag >> 3 == wanted => return Some(true),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
            }
            _ => return None,
        }
    }
    Some(false)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_again() {
        let mut message = Vec::new();
        field(&mut message, 1, &[7; 300]);
        assert_eq!(has_field(&message, 2), Some(false));
        field(&mut message, 2, b"x");
        assert_eq!(has_field(&message, 2), Some(true));
        assert_eq!(has_field(&message[..100], 2), None);
        assert_eq!(has_field(&[0x80], 2), None);
        assert_eq!(has_field(&[], 2), Some(false));
    }

    #[test]
    fn a_frame_has_its_length_in_three_bytes() {
        let mut out = Vec::new();
        frame(&mut out, PING, ACKNOWLEDGES, 0, &[1; 8]);
        assert_eq!(out[..HEAD], [0, 0, 8, PING, 1, 0, 0, 0, 0]);
        assert_eq!(out.len(), HEAD + 8);
    }
}
