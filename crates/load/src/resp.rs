//! The client side of the Redis protocol, RESP2: commands as bytes, replies from bytes.
//!
//! Loads, the torture and the tests of processes share it. Servers parse commands in crate `redis`.
//!
//! - RESP-1: [`parse`] reads a reply whole or not at all, and copies nothing.
//! - RESP-2: a reply nests at most [`DEPTH_MAX`] levels, and a value has at most [`REPLY_MAX`]
//!   bytes; other replies are nonsense.
//!
//! Not here: RESP3, which a server speaks only after `HELLO 3`.

use bytes::{Buf, BytesMut};
use std::borrow::Cow;
use std::io::{self, Write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest value of a reply: the largest object, and the text of INFO, are shorter.
pub const REPLY_MAX: usize = 8 << 20;
/// Deepest nesting of a reply: `COMMAND` nests three levels.
pub const DEPTH_MAX: usize = 4;

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// `+…`, a short text such as OK.
    Simple(Cow<'a, str>),
    /// `-…`, an error.
    Error(Cow<'a, str>),
    /// `:…`, a number.
    Integer(i64),
    /// `$…`, a value.
    Bulk(Cow<'a, [u8]>),
    /// `$-1` or `*-1`: there is no such thing.
    Nil,
    /// `*…`, a list.
    Array(Vec<Self>),
}

impl Reply<'_> {
    /// Whether this is `+OK`.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Simple(text) if text == "OK")
    }

    /// The text of an error.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            Self::Simple(_) | Self::Integer(_) | Self::Bulk(_) | Self::Nil | Self::Array(_) => None,
        }
    }

    /// The same reply with bytes of its own.
    #[must_use]
    pub fn into_owned(self) -> Reply<'static> {
        match self {
            Self::Simple(text) => Reply::Simple(text.into_owned().into()),
            Self::Error(text) => Reply::Error(text.into_owned().into()),
            Self::Integer(number) => Reply::Integer(number),
            Self::Bulk(value) => Reply::Bulk(value.into_owned().into()),
            Self::Nil => Reply::Nil,
            Self::Array(items) => Reply::Array(items.into_iter().map(Reply::into_owned).collect()),
        }
    }
}

impl Reply<'static> {
    /// A value.
    #[must_use]
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec().into())
    }
}

/// Adds a command to `out`.
pub fn command<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    header(out, '*', arguments.len());
    for argument in arguments {
        let argument = argument.as_ref();
        header(out, '$', argument.len());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(out: &mut Vec<u8>, kind: char, length: usize) {
    write!(out, "{kind}{length}\r\n").expect("memory takes all bytes");
}

/// Reads one reply off the front of `input`: the reply and its length, or `None` when more bytes
/// are needed.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`]: the bytes are no reply. Not retryable on this connection.
pub fn parse(input: &[u8]) -> io::Result<Option<(Reply<'_>, usize)>> {
    let mut rest = input;
    let reply = item(&mut rest, 0)?;
    Ok(reply.map(|reply| (reply, input.len() - rest.len())))
}

fn item<'a>(rest: &mut &'a [u8], depth: usize) -> io::Result<Option<Reply<'a>>> {
    let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
        return Ok(None);
    };
    let line = rest[..end].strip_suffix(b"\r").unwrap_or_default();
    let Some((kind, text)) = line.split_first() else {
        return Err(nonsense("a line without an end or without text"));
    };
    *rest = &rest[end + 1..];
    Ok(Some(match kind {
        b'+' => Reply::Simple(String::from_utf8_lossy(text)),
        b'-' => Reply::Error(String::from_utf8_lossy(text)),
        b':' => Reply::Integer(number(text)?),
        b'$' => match usize::try_from(number(text)?) {
            Err(_) => Reply::Nil,
            Ok(length) if length > REPLY_MAX => {
                return Err(nonsense(&format!("a value of {length} bytes")));
            }
            Ok(length) if rest.len() < length + 2 => return Ok(None),
            Ok(length) => {
                let (value, after) = rest.split_at(length);
                *rest = &after[2..];
                Reply::Bulk(value.into())
            }
        },
        b'*' if depth == DEPTH_MAX => return Err(nonsense("a list that is nested too deep")),
        b'*' => match usize::try_from(number(text)?) {
            Err(_) => Reply::Nil,
            Ok(length) => {
                let mut items = Vec::new();
                for _ in 0..length {
                    match item(rest, depth + 1)? {
                        Some(item) => items.push(item),
                        None => return Ok(None),
                    }
                }
                Reply::Array(items)
            }
        },
        other => {
            let other = char::from(*other);
            return Err(nonsense(&format!("a reply that begins with {other:?}")));
        }
    }))
}

fn number(text: &[u8]) -> io::Result<i64> {
    let number = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
    number.ok_or_else(|| nonsense(&format!("a number {:?}", String::from_utf8_lossy(text))))
}

fn nonsense(what: &str) -> io::Error {
    let text = format!("this is not the Redis protocol: {what}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A connection to a Redis port.
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
            input: BytesMut::with_capacity(64 << 10),
        })
    }

    /// Sends bytes that [`command`] made.
    ///
    /// # Errors
    /// The connection broke; some of the bytes may have arrived.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Waits for the next reply, and gives it to `take`.
    ///
    /// # Errors
    /// The connection broke, or the server sent nonsense.
    pub async fn reply<T>(&mut self, take: impl FnOnce(Reply<'_>) -> T) -> io::Result<T> {
        loop {
            if let Some((reply, length)) = parse(&self.input)? {
                let taken = take(reply);
                self.input.advance(length);
                return Ok(taken);
            }
            // A list of many values could grow for ever.
            if self.input.len() > 2 * REPLY_MAX {
                return Err(nonsense("a reply that does not end"));
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                let text = "the server closed it";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// shows: RESP-1
    #[test]
    fn replies_are_parsed_whole_or_not_at_all() {
        let cases = [
            ("+OK\r\n", Reply::Simple("OK".into())),
            ("-ERR no\r\n", Reply::Error("ERR no".into())),
            (":-12\r\n", Reply::Integer(-12)),
            ("$-1\r\n", Reply::Nil),
            ("*-1\r\n", Reply::Nil),
            ("$5\r\na\r\nbc\r\n", Reply::bulk("a\r\nbc")),
            ("$0\r\n\r\n", Reply::bulk("")),
            ("*0\r\n", Reply::Array(Vec::new())),
            (
                "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
                Reply::Array(vec![
                    Reply::bulk("a"),
                    Reply::Array(vec![Reply::Integer(1)]),
                ]),
            ),
        ];
        for (bytes, reply) in cases {
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes.as_bytes()[..cut]).unwrap(), None, "{bytes:?}");
            }
            let more = format!("{bytes}+OK\r\n");
            let parsed = parse(more.as_bytes()).unwrap();
            assert_eq!(parsed, Some((reply, bytes.len())));
        }
    }

    /// shows: RESP-2
    #[test]
    fn nonsense_is_refused() {
        let nested = "*1\r\n".repeat(100);
        let long = format!("${}\r\n", REPLY_MAX + 1);
        let broken = ["\r\n", "+OK\n", "HTTP/1.1 400\r\n", "$x\r\n", ":\r\n"];
        for bytes in broken.into_iter().chain([nested.as_str(), long.as_str()]) {
            let error = parse(bytes.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    #[test]
    fn commands_are_arrays_of_values() {
        let mut out = Vec::new();
        command(&mut out, &["GET", "k\r\n"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n");
    }
}
