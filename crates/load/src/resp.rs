//! A small Redis client: sends SET, GET, PING, WAIT and INFO in pipelines, and reads replies.
//!
//! - RESP-1: replies are parsed as they come, in one pass; a reply has at most [`REPLY_MAX`] bytes.

use crate::error::BenchError;
use crate::plan::{KEY_BYTES, key};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest reply: the largest value, and what INFO may say.
const REPLY_MAX: usize = 8 << 20;
/// Deepest nesting of a reply. The commands here have flat ones.
const DEPTH_MAX: usize = 4;

/// What a reply was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// Something else that is no error.
    Good,
    /// A number.
    Integer(i64),
    /// There is no such key.
    Nil,
    /// An error, with its text.
    Error(String),
}

/// A connection to one server.
pub(crate) struct Connection {
    address: String,
    stream: TcpStream,
    out: Vec<u8>,
    input: BytesMut,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Result<Self, BenchError> {
        let fail = |error: std::io::Error| BenchError::Connection {
            address: address.to_owned(),
            message: error.to_string(),
        };
        let stream = TcpStream::connect(address).await.map_err(fail)?;
        stream.set_nodelay(true).map_err(fail)?;
        Ok(Self {
            address: address.to_owned(),
            stream,
            out: Vec::new(),
            input: BytesMut::with_capacity(64 << 10),
        })
    }

    fn broken(&self, message: impl ToString) -> BenchError {
        BenchError::Connection {
            address: self.address.clone(),
            message: message.to_string(),
        }
    }

    /// Adds a GET to what [`Connection::flush`] sends.
    pub(crate) fn get(&mut self, number: u64) {
        self.out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        self.key(number);
    }

    /// Adds a SET to what [`Connection::flush`] sends.
    pub(crate) fn set(&mut self, number: u64, value: &[u8]) {
        self.out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        self.key(number);
        self.out
            .extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Adds a PING to what [`Connection::flush`] sends.
    pub(crate) fn ping(&mut self) {
        self.out.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
    }

    /// Adds a WAIT to what [`Connection::flush`] sends: as long as it takes.
    pub(crate) fn wait(&mut self, replicas: u32) {
        self.out
            .extend_from_slice(format!("WAIT {replicas} 0\r\n").as_bytes());
    }

    fn key(&mut self, number: u64) {
        self.out
            .extend_from_slice(format!("${KEY_BYTES}\r\n").as_bytes());
        self.out.extend_from_slice(&key(number));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Sends what was added.
    pub(crate) async fn flush(&mut self) -> Result<(), BenchError> {
        let sent = self.stream.write_all(&self.out).await;
        self.out.clear();
        sent.map_err(|error| self.broken(error))
    }

    /// The next reply.
    pub(crate) async fn reply(&mut self) -> Result<Reply, BenchError> {
        let (reply, length) = self.whole_reply().await?;
        self.input.advance(length);
        Ok(reply)
    }

    /// Waits for the next reply; gives it and its length, and leaves its bytes at the front of the
    /// input.
    async fn whole_reply(&mut self) -> Result<(Reply, usize), BenchError> {
        loop {
            match parse(&self.input, 0) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) if self.input.len() > REPLY_MAX => {
                    return Err(self.nonsense(format!("a reply of over {REPLY_MAX} bytes")));
                }
                Ok(None) => {}
                Err(message) => return Err(self.nonsense(message)),
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) => return Err(self.broken("the server closed it")),
                Ok(_) => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn nonsense(&self, message: String) -> BenchError {
        BenchError::Protocol {
            address: self.address.clone(),
            message,
        }
    }

    /// What the server says it is: the first line of `INFO server` with a version, if any.
    pub(crate) async fn describe(&mut self) -> Result<String, BenchError> {
        self.out
            .extend_from_slice(b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n");
        self.flush().await?;
        let (reply, length) = self.whole_reply().await?;
        let text = self.input.split_to(length);
        Ok(match reply {
            Reply::Error(_) | Reply::Nil => "unknown".to_owned(),
            Reply::Good | Reply::Integer(_) => versions(&String::from_utf8_lossy(&text)),
        })
    }
}

/// The lines that tell name and version.
fn versions(info: &str) -> String {
    let wanted = [
        "server_name:",
        "redis_version:",
        "pluvio_version:",
        "valkey_version:",
    ];
    let lines = info.lines().map(str::trim);
    let found: Vec<_> = lines
        .filter(|l| wanted.iter().any(|w| l.starts_with(w)))
        .collect();
    match found.is_empty() {
        true => "unknown".to_owned(),
        false => found.join(" "),
    }
}

/// Reads one reply off the front of `input`: what it was and its bytes; `None` when more is needed.
fn parse(input: &[u8], depth: usize) -> Result<Option<(Reply, usize)>, String> {
    let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let (line, after) = (&input[..end], end + 2);
    let Some((kind, rest)) = line.split_first() else {
        return Err("an empty line".into());
    };
    let number = || {
        let text = std::str::from_utf8(rest).map_err(|_| "a length that is no number")?;
        text.parse::<i64>()
            .map_err(|_| format!("a length of {text:?}"))
    };
    match kind {
        b':' => Ok(Some((Reply::Integer(number()?), after))),
        b'+' | b',' | b'#' | b'(' => Ok(Some((Reply::Good, after))),
        b'-' => {
            let text = String::from_utf8_lossy(rest).into_owned();
            Ok(Some((Reply::Error(text), after)))
        }
        b'_' => Ok(Some((Reply::Nil, after))),
        b'$' | b'=' => match usize::try_from(number()?) {
            Err(_) => Ok(Some((Reply::Nil, after))),
            Ok(length) if length > REPLY_MAX => Err(format!("a value of {length} bytes")),
            Ok(length) if input.len() < after + length + 2 => Ok(None),
            Ok(length) => Ok(Some((Reply::Good, after + length + 2))),
        },
        b'*' | b'~' | b'>' | b'%' => {
            if depth >= DEPTH_MAX {
                return Err("a reply that is nested too deep".into());
            }
            let Ok(mut items) = usize::try_from(number()?) else {
                return Ok(Some((Reply::Nil, after)));
            };
            if *kind == b'%' {
                items = items.saturating_mul(2);
            }
            let mut used = after;
            for _ in 0..items {
                match parse(&input[used..], depth + 1)? {
                    Some((_, more)) => used += more,
                    None => return Ok(None),
                }
            }
            Ok(Some((Reply::Good, used)))
        }
        other => Err(format!("a reply that begins with {:?}", char::from(*other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_parsed_whole_or_not_at_all() {
        let cases: [(&[u8], Reply); 9] = [
            (b"+OK\r\n", Reply::Good),
            (b"-ERR no\r\n", Reply::Error("ERR no".into())),
            (b":12\r\n", Reply::Integer(12)),
            (b"$-1\r\n", Reply::Nil),
            (b"_\r\n", Reply::Nil),
            (b"$5\r\na\r\nbc\r\n", Reply::Good),
            (b"*2\r\n$1\r\na\r\n:1\r\n", Reply::Good),
            (b"%1\r\n+a\r\n*0\r\n", Reply::Good),
            (b"$0\r\n\r\n", Reply::Good),
        ];
        for (bytes, reply) in cases {
            assert_eq!(parse(bytes, 0), Ok(Some((reply, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut], 0), Ok(None), "{:?}", &bytes[..cut]);
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [
            &b"\r\n"[..],
            b"HTTP/1.1 400\r\n",
            b"$x\r\n",
            b"$99999999999\r\n",
        ] {
            assert!(parse(bytes, 0).is_err(), "{bytes:?}");
        }
        assert!(parse(&b"*1\r\n".repeat(100), 0).is_err());
    }

    #[test]
    fn versions_are_found_in_info() {
        let info = "$60\r\n# Server\r\nredis_version:7.2.5\r\nserver_name:pluvio\r\n\r\n";
        assert_eq!(versions(info), "redis_version:7.2.5 server_name:pluvio");
        assert_eq!(versions(""), "unknown");
    }
}
