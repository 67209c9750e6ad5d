//! A small Redis client over a blocking socket.

use super::patience::LONG;
use bytes::{Buf, BytesMut};
pub use pluvio_load::resp::Reply as AnyReply;
use pluvio_load::resp::{command, parse};
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A reply with bytes of its own.
pub type Reply = AnyReply<'static>;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// A connection.
pub struct Resp {
    stream: TcpStream,
    input: BytesMut,
}

impl Resp {
    /// Connects.
    #[track_caller]
    pub fn connect(address: &str) -> Self {
        Self::try_connect(address).unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    /// Connects, if that is possible.
    ///
    /// # Errors
    /// It is not.
    pub fn try_connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LONG))?;
        stream.set_write_timeout(Some(LONG))?;
        Ok(Self {
            stream,
            input: BytesMut::new(),
        })
    }

    /// One command, whose connection must not break.
    #[track_caller]
    pub fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Reply {
        self.try_call(arguments)
            .unwrap_or_else(|error| panic!("the connection broke: {error}"))
    }

    /// One command.
    ///
    /// # Errors
    /// The connection broke, or no reply came.
    pub fn try_call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Reply> {
        let mut bytes = Vec::new();
        command(&mut bytes, arguments);
        self.send(&bytes)?;
        self.reply()
    }

    /// Many commands at once, then all their replies.
    #[track_caller]
    pub fn pipeline(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        for arguments in commands {
            command(&mut bytes, arguments);
        }
        self.send(&bytes).unwrap();
        commands.iter().map(|_| self.reply().unwrap()).collect()
    }

    /// Sends a command and takes no reply.
    #[track_caller]
    pub fn ask<A: AsRef<[u8]>>(&mut self, arguments: &[A]) {
        let mut bytes = Vec::new();
        command(&mut bytes, arguments);
        self.send(&bytes).unwrap();
    }

    /// Waits for the next bytes and takes some, whatever they are. How many; 0 at the end.
    ///
    /// # Errors
    /// The connection broke before.
    pub fn skip_some(&mut self) -> io::Result<usize> {
        self.stream.read(&mut [0; 1000])
    }

    /// Bytes as they are.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// One reply.
    ///
    /// # Errors
    /// The connection broke, or no reply came.
    pub fn reply(&mut self) -> io::Result<Reply> {
        loop {
            if let Some((reply, length)) = parse(&self.input)? {
                let reply = reply.into_owned();
                self.input.advance(length);
                return Ok(reply);
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes)? {
                0 => return Err(io::Error::other("closed before a reply")),
                read => self.input.extend_from_slice(&bytes[..read]),
            }
        }
    }
}
