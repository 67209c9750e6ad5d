//! A small Redis client over a blocking socket.

use super::patience::LONG;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// A reply of RESP2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `+…`
    Simple(String),
    /// `-…`
    Error(String),
    /// `:…`
    Integer(i64),
    /// `$…`
    Bulk(Vec<u8>),
    /// `$-1`
    Nothing,
    /// `*…`
    Array(Vec<Reply>),
}

impl Reply {
    /// `+OK`.
    pub fn is_ok(&self) -> bool {
        *self == Self::Simple("OK".into())
    }

    /// A bulk of this.
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    /// The text of an error.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }
}

/// A connection.
pub struct Resp {
    stream: BufReader<TcpStream>,
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
            stream: BufReader::new(stream),
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
        self.send(&encode(arguments))?;
        self.reply()
    }

    /// Many commands at once, then all their replies.
    #[track_caller]
    pub fn pipeline(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Reply> {
        let bytes: Vec<u8> = commands.iter().flat_map(|c| encode(c)).collect();
        self.send(&bytes).unwrap();
        commands.iter().map(|_| self.reply().unwrap()).collect()
    }

    /// Bytes as they are.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// One reply.
    ///
    /// # Errors
    /// The connection broke, or no reply came.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(io::Error::other(format!("closed after {line:?}")));
        };
        let (kind, rest) = line.split_at(1.min(line.len()));
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        match kind {
            "+" => Ok(Reply::Simple(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Integer(number()?)),
            "$" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Nothing),
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Ok(Reply::Bulk(bytes))
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Nothing),
                Ok(length) => (0..length)
                    .map(|_| self.reply())
                    .collect::<io::Result<_>>()
                    .map(Reply::Array),
            },
            _ => Err(io::Error::other(format!("not a reply: {line:?}"))),
        }
    }
}

/// A command as bytes.
pub fn encode<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
