//! The data of a running Redis, got as its replica gets them: an RDB file over the network, and a
//! connection on which commands follow.
//!
//! 1. `AUTH` where the address has a user or a password.
//! 2. `REPLCONF capa eof`: the file may be sent while it is made.
//! 3. `PSYNC ? -1`: the server makes a file, and sends line feeds meanwhile.
//! 4. The file: its length and its bytes, or a mark of 40 bytes that also ends it.
//!
//! The file lies in a temporary file. A server that sends nothing for [`SILENCE`] is given up.
//!
//! Blocking, for a thread of its own. The commands are for `follow.rs`.

use core::time::Duration;
use pluvio_console::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::net::{TcpStream, ToSocketAddrs};

/// A server sends a line feed every ten seconds while it makes its file. It may stand still while
/// it forks.
pub const SILENCE: Duration = Duration::from_secs(60);
/// For the connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Longest answer that is looked at.
const LINE_BYTES_MAX: u64 = 4096;
/// Bytes of the mark.
const MARK_BYTES: usize = 40;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 256 << 10;
const PORT: u16 = 6379;

/// Where a Redis is.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    host: String,
    port: u16,
    user: Option<String>,
    password: Option<String>,
    /// The database that is asked for; all of them if none is.
    pub database: Option<i64>,
}

impl Source {
    /// Reads `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`.
    ///
    /// # Errors
    /// It is something else, in words.
    pub fn parse(text: &str, password: Option<String>) -> Result<Self, String> {
        let form = "redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]";
        let rest = text.strip_prefix("redis://");
        let rest = rest.ok_or_else(|| format!("an address has the form {form}"))?;
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let (place, database) = match place.split_once('/') {
            Some((place, "")) => (place, None),
            Some((place, number)) => {
                let number = number.parse::<i64>().ok().filter(|number| *number >= 0);
                (place, Some(number.ok_or("the database is no number")?))
            }
            None => (place, None),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse::<u16>().map_err(|_| "the port is no number")?;
                (host, port)
            }
            _ => (place, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(format!("there is no host; an address has the form {form}"));
        }
        let (user, given) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => (None, None),
            Some((user, given)) => (some(user)?, some(given)?),
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            user,
            password: given.or(password),
            database,
        })
    }

    /// Its address, without secrets.
    pub fn place(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// The words of AUTH, where it needs any.
    pub fn login(&self) -> Option<Vec<&str>> {
        let password = self.password.as_deref()?;
        let user = self.user.as_deref();
        Some(["AUTH"].into_iter().chain(user).chain([password]).collect())
    }
}

/// A part of a login, in which `%40` stands for `@`; none if it is empty.
fn some(part: &str) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.split_at_checked(2);
        let (digits, after) = digits.ok_or("% without two digits in the login")?;
        let digits = str::from_utf8(digits).unwrap_or_default();
        bytes
            .push(u8::from_str_radix(digits, 16).map_err(|_| "% without two digits in the login")?);
        rest = after;
    }
    let text = String::from_utf8(bytes).map_err(|_| "the login is no UTF-8")?;
    Ok((!text.is_empty()).then_some(text))
}

/// The connection of a replica, behind the file.
pub struct Link {
    /// The server sends commands on it. Without an answer for a minute it closes it.
    pub stream: TcpStream,
    /// The place in the server's stream of commands at which they begin.
    pub offset: u64,
    /// What came with the end of the file.
    pub behind: Vec<u8>,
}

/// Gets the file. `seen` is told the number of bytes of each step.
///
/// # Errors
/// The server cannot be reached, refuses, or breaks off.
pub fn fetch(source: &Source, seen: impl FnMut(u64)) -> Result<(File, Link), Failure> {
    let place = source.place();
    let mut file = tempfile::tempfile()
        .map_err(|error| Failure::new(format!("a temporary file cannot be made: {error}")))?;
    let get = || -> io::Result<Link> {
        let mut stream = connect(source)?;
        let (offset, behind) = receive(&mut stream, source, &mut file, seen)?;
        file.rewind()?;
        Ok(Link {
            stream,
            offset,
            behind,
        })
    };
    match get() {
        Ok(link) => Ok((file, link)),
        Err(error) => Err(Failure::new(format!("{place}: {}", words(&error)))),
    }
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        // What a socket gives whose time is over.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {} s", SILENCE.as_secs())
        }
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

fn connect(source: &Source) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in (source.host.as_str(), source.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SILENCE))?;
                stream.set_write_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The conversation with a server. Gives the place of the commands behind the file, and those that
/// have come already.
fn receive(
    stream: &mut (impl Read + Write),
    source: &Source,
    file: &mut impl Write,
    seen: impl FnMut(u64),
) -> io::Result<(u64, Vec<u8>)> {
    if let Some(words) = source.login() {
        ask(stream, &words)?;
    }
    ask(stream, &["REPLCONF", "capa", "eof", "capa", "psync2"])?;
    send(stream, &["PSYNC", "?", "-1"])?;
    let mut input = BufReader::with_capacity(CHUNK_BYTES, stream);
    let answer = line_after_waiting(&mut input)?;
    let offset = answer.strip_prefix("+FULLRESYNC ");
    let offset = offset.and_then(|answer| answer.rsplit_once(' ')?.1.parse().ok());
    let offset = offset.ok_or_else(|| io::Error::other(refusal("PSYNC", &answer)))?;
    let head = line_after_waiting(&mut input)?;
    let length = head.strip_prefix('$').unwrap_or_default();
    let mark = length.strip_prefix("EOF:");
    if let Some(mark) = mark.filter(|mark| mark.len() == MARK_BYTES) {
        until_mark(&mut input, mark.as_bytes(), file, seen)?;
    } else if let Ok(length) = length.parse() {
        exactly(&mut input, length, file, seen)?;
    } else {
        return Err(io::Error::other(refusal("PSYNC", &head)));
    }
    Ok((offset, input.buffer().to_vec()))
}

fn refusal(command: &str, answer: &str) -> String {
    let answer = answer.escape_debug();
    format!("the server answered {command} with \"{answer}\"")
}

fn send(stream: &mut impl Write, words: &[&str]) -> io::Result<()> {
    let mut bytes = Vec::new();
    pluvio_load::resp::command(&mut bytes, words);
    stream.write_all(&bytes)
}

/// A command that is answered with one line. Read byte by byte: few, and nothing behind it is lost.
fn ask(stream: &mut (impl Read + Write), words: &[&str]) -> io::Result<()> {
    send(stream, words)?;
    let answer = line(&mut BufReader::with_capacity(1, stream))?;
    match answer.starts_with('+') {
        true => Ok(()),
        false => Err(io::Error::other(refusal(words[0], &answer))),
    }
}

/// The line behind the line feeds of a server that waits or makes its file.
fn line_after_waiting(input: &mut impl BufRead) -> io::Result<String> {
    loop {
        match line(input)? {
            empty if empty.is_empty() => {}
            line => return Ok(line),
        }
    }
}

fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()),
        Some(_) if line.len() as u64 + 1 == LINE_BYTES_MAX => {
            Err(io::Error::other("the server's answer is no line"))
        }
        Some(_) | None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn exactly(
    input: &mut impl BufRead,
    mut left: u64,
    file: &mut impl Write,
    mut seen: impl FnMut(u64),
) -> io::Result<()> {
    while left > 0 {
        let there = input.fill_buf()?;
        if there.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(there.len());
        file.write_all(&there[..count])?;
        input.consume(count);
        left -= count as u64;
        seen(count as u64);
    }
    Ok(())
}

/// The server sends the mark, and then nothing until it is answered. So the file has ended when the
/// mark stands at the end of all that has come.
fn until_mark(
    input: &mut impl BufRead,
    mark: &[u8],
    file: &mut impl Write,
    mut seen: impl FnMut(u64),
) -> io::Result<()> {
    // What may belong to the mark.
    let mut held = Vec::new();
    loop {
        let there = input.fill_buf()?;
        if there.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        held.extend_from_slice(there);
        let count = there.len();
        input.consume(count);
        seen(count as u64);
        let is_all = held.ends_with(mark);
        let sure = held.len().saturating_sub(MARK_BYTES);
        file.write_all(&held[..sure])?;
        held.drain(..sure);
        if is_all {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::parse(text, None).unwrap()
    }

    #[test]
    fn addresses_have_parts_that_may_be_left_out() {
        let plain = source("redis://host");
        assert_eq!(
            (plain.place().as_str(), plain.database),
            ("host:6379", None)
        );
        let full = source("redis://us%40er:p%3Aw%2F@host:7/5");
        assert_eq!((full.place().as_str(), full.database), ("host:7", Some(5)));
        assert_eq!(full.user.as_deref(), Some("us@er"));
        assert_eq!(full.password.as_deref(), Some("p:w/"));
        assert_eq!(source("redis://:pw@[::1]:7/").place(), "[::1]:7");
        assert_eq!(source("redis://[::1]").place(), "[::1]:6379");
        let elsewhere = Source::parse("redis://u@h", Some("kept".to_owned())).unwrap();
        assert_eq!(elsewhere.password.as_deref(), Some("kept"));
        for bad in [
            "rediss://h",
            "redis://",
            "redis://h:x",
            "redis://h/x",
            "redis://h/-1",
            "redis://%4@h",
        ] {
            assert!(Source::parse(bad, None).is_err(), "{bad}");
        }
    }

    /// A server that sends its answers in steps, and what it was sent.
    struct Server {
        steps: std::vec::IntoIter<Vec<u8>>,
        step: io::Cursor<Vec<u8>>,
        sent: Vec<u8>,
    }

    impl Read for Server {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.step.read(into)? {
                0 => match self.steps.next() {
                    Some(step) => {
                        self.step = io::Cursor::new(step);
                        self.step.read(into)
                    }
                    None => Ok(0),
                },
                count => Ok(count),
            }
        }
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.sent.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The file, the place behind it, and what stands there.
    type Received = (Vec<u8>, u64, Vec<u8>);

    fn received(address: &str, steps: &[&[u8]]) -> Result<Received, String> {
        let steps: Vec<_> = steps.iter().map(|step| step.to_vec()).collect();
        let mut server = Server {
            steps: steps.into_iter(),
            step: io::Cursor::default(),
            sent: Vec::new(),
        };
        let mut file = Vec::new();
        match receive(&mut server, &source(address), &mut file, |_| {}) {
            Ok((offset, behind)) => Ok((file, offset, behind)),
            Err(error) => Err(words(&error)),
        }
    }

    /// The server waits before it answers, and before it sends.
    const SYNC: &[u8] = b"\n\n+FULLRESYNC 0123 7\r\n\n\n";
    const MARK: &[u8] = b"0123456789012345678901234567890123456789";

    #[test]
    fn a_file_comes_with_its_length_or_with_a_mark() {
        let head = [b"$EOF:", MARK, b"\r\nab"].concat();
        let plain: &[&[u8]] = &[b"+OK\r\n", SYNC, b"$4\r\nab", b"cd*1\r", b"\n"];
        let expected = (b"abcd".to_vec(), 7, b"*1\r".to_vec());
        assert_eq!(received("redis://h", plain), Ok(expected));
        // The mark comes in two parts, and its beginning stands in the file, too.
        let (first, second) = MARK.split_at(10);
        let file = [b"ab", first, b"x"].concat();
        let marked: &[&[u8]] = &[b"+OK\r\n+OK\r\n", SYNC, &head, first, b"x", first, second];
        assert_eq!(received("redis://:pw@h", marked), Ok((file, 7, Vec::new())));
    }

    #[test]
    fn refusals_and_breaks_are_told() {
        let cases: [(&[&[u8]], &str); 8] = [
            (&[b"-NOAUTH Authentication required.\r\n"], "NOAUTH"),
            (
                &[b"+OK\r\n", b"-NOMASTERLINK Can't SYNC\r\n"],
                "NOMASTERLINK",
            ),
            (&[b"+OK\r\n", SYNC, b"-ERR fork failed\r\n"], "fork failed"),
            (&[b"+OK\r\n", SYNC, b"$9\r\nabc"], "closed"),
            (&[b"+OK\r\n", SYNC, b"$-1\r\n"], "$-1"),
            (&[b"+OK\r\n", SYNC, b"$EOF:12\r\n"], "EOF:12"),
            (&[b"+OK\r\n", SYNC], "closed"),
            (&[&[b'a'; 5000]], "no line"),
        ];
        for (steps, why) in cases {
            let error = received("redis://h", steps).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
