//! A connection to a Redis port: commands in pipelines, replies with their values.
//!
//! - REPLY-1: replies are flat; one that nests, or is longer than [`REPLY_MAX`], breaks the
//!   connection.

use bytes::{Buf, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest reply: the largest value and its header.
const REPLY_MAX: usize = 2 << 20;

/// What a reply was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A short text such as OK.
    Text(String),
    /// A value.
    Value(Bytes),
    /// A number.
    Integer(i64),
    /// Nothing.
    Nil,
    /// An error, with its text.
    Error(String),
}

/// A connection to one server.
pub struct Connection {
    stream: TcpStream,
    input: BytesMut,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            input: BytesMut::new(),
        })
    }

    /// Sends bytes that [`command`] made.
    ///
    /// # Errors
    /// The connection broke; some of them may have arrived.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// The connection broke, or what came is no reply.
    pub async fn reply(&mut self) -> io::Result<Reply> {
        loop {
            if let Some((reply, length)) = parse(&self.input)? {
                self.input.advance(length);
                return Ok(reply);
            }
            if self.input.len() > REPLY_MAX {
                return Err(nonsense());
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Adds a command to `out`.
pub fn command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

fn nonsense() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "not a reply of the Redis protocol",
    )
}

/// Reads one reply off the front of `input`: what it was and its bytes; `None` when more is needed.
fn parse(input: &[u8]) -> io::Result<Option<(Reply, usize)>> {
    let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let (kind, rest) = input[..end].split_first().ok_or_else(nonsense)?;
    let text = std::str::from_utf8(rest).map_err(|_| nonsense())?;
    let number = || text.parse::<i64>().map_err(|_| nonsense());
    let after = end + 2;
    let reply = match kind {
        b'+' => Reply::Text(text.to_owned()),
        b'-' => Reply::Error(text.to_owned()),
        b':' => Reply::Integer(number()?),
        b'_' => Reply::Nil,
        b'$' => match usize::try_from(number()?) {
            Err(_) => Reply::Nil,
            Ok(length) if length > REPLY_MAX => return Err(nonsense()),
            Ok(length) if input.len() < after + length + 2 => return Ok(None),
            Ok(length) => {
                let value = Bytes::copy_from_slice(&input[after..after + length]);
                return Ok(Some((Reply::Value(value), after + length + 2)));
            }
        },
        _ => return Err(nonsense()),
    };
    Ok(Some((reply, after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_parsed_whole_or_not_at_all() {
        let cases: [(&[u8], Reply); 7] = [
            (b"+OK\r\n", Reply::Text("OK".into())),
            (b"-ERR no\r\n", Reply::Error("ERR no".into())),
            (b":-12\r\n", Reply::Integer(-12)),
            (b"$-1\r\n", Reply::Nil),
            (b"_\r\n", Reply::Nil),
            (b"$5\r\na\r\nbc\r\n", Reply::Value("a\r\nbc".into())),
            (b"$0\r\n\r\n", Reply::Value(Bytes::new())),
        ];
        for (bytes, reply) in cases {
            assert_eq!(parse(bytes).unwrap(), Some((reply, bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]).unwrap(), None);
            }
        }
        for bytes in [
            &b"\r\n"[..],
            b"HTTP/1.1 400\r\n",
            b"*1\r\n:1\r\n",
            b"$99999999\r\n",
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn commands_are_arrays_of_values() {
        let mut out = Vec::new();
        command(&mut out, &[b"GET", b"k\r\n"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n");
    }
}
