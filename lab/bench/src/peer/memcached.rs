//! One connection to memcached, in its text protocol.

use bytes::{Buf, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest answer: the largest value with its head.
const ANSWER_MAX: usize = (1 << 20) + 1024;

/// A connection.
#[derive(Debug)]
pub struct Memcached {
    stream: TcpStream,
    input: BytesMut,
    out: Vec<u8>,
}

impl Memcached {
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
            out: Vec::new(),
        })
    }

    /// Reads a value; gives its length, or `None` when there is none.
    ///
    /// # Errors
    /// The connection broke, or the server refused.
    pub async fn get(&mut self, key: &str) -> io::Result<Option<usize>> {
        self.out.clear();
        self.out
            .extend_from_slice(format!("get {key}\r\n").as_bytes());
        self.stream.write_all(&self.out).await?;
        let head = self.line().await?;
        let Some(about) = head.strip_prefix("VALUE ") else {
            return match head.as_str() {
                "END" => Ok(None),
                _ => Err(io::Error::other(head)),
            };
        };
        let length = about
            .rsplit(' ')
            .next()
            .and_then(|n| n.parse::<usize>().ok());
        let length = length.ok_or_else(|| io::Error::other(head.clone()))?;
        let rest = length + b"\r\nEND\r\n".len();
        while self.input.len() < rest {
            self.more().await?;
        }
        self.input.advance(rest);
        Ok(Some(length))
    }

    /// Writes a value.
    ///
    /// # Errors
    /// The connection broke, or the server refused.
    pub async fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        self.out.clear();
        let head = format!("set {key} 0 0 {}\r\n", value.len());
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
        self.stream.write_all(&self.out).await?;
        match self.line().await? {
            stored if stored == "STORED" => Ok(()),
            other => Err(io::Error::other(other)),
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.input.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.input[..end]).into_owned();
                self.input.advance(end + 2);
                return Ok(line);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.input.len() > ANSWER_MAX {
            return Err(io::Error::other("an answer that does not end"));
        }
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}
