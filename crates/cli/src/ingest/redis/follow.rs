//! The commands that a running Redis takes after it made its file, played into a Redis port of
//! Pluvio.
//!
//! One task receives them into a [`Spool`] as soon as the file is there. Writing the file's objects
//! takes long, and the server forgets a replica that stands still. Then they are played.
//!
//! - FOLLOW-1: commands are played in the order of the server, each once. A command that the port
//!   refuses ends it, because those behind it may build on it.
//! - FOLLOW-2: commands that wait cost room in temporary files; in memory are one chunk and one
//!   command of at most [`COMMAND_BYTES_MAX`].

use crate::ingest::redis::replica::{Link, SILENCE, Source};
use bytes::{Buf, BytesMut};
use core::time::Duration;
use pluvio_console::failure::Failure;
use pluvio_console::output::{bytes, escaped, say};
use pluvio_console::session::Session;
use pluvio_env::{Clock, Moment};
use pluvio_env_os::StopSignals;
use pluvio_load::resp::{Connection, Reply, command, parse};
use pluvio_units::CoreId;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// How often a replica tells its server how far it is, and how often lag is looked at.
const SECOND: Duration = Duration::from_secs(1);
/// How often lag is told.
const TOLD_EVERY: u32 = 10;
/// Bytes that are received, and played, at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Longest command. A transaction of Pluvio has at most 4 MiB.
const COMMAND_BYTES_MAX: usize = 16 << 20;

/// Bytes of a temporary file that begins the next one. A file goes when all of it was played, so
/// they take little more room than the lag, also where the lag never ends.
const PART_BYTES: u64 = 64 << 20;

/// Commands that were received and not played.
struct Spool {
    /// See [`PART_BYTES`].
    part_bytes: u64,
    waiting: Mutex<Waiting>,
    more: Notify,
}

struct Waiting {
    /// The oldest first; at least one.
    parts: VecDeque<Part>,
    /// Why no more come.
    end: Option<String>,
}

/// A temporary file of them.
struct Part {
    file: File,
    read: u64,
    written: u64,
}

impl Part {
    fn new() -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile()?,
            read: 0,
            written: 0,
        })
    }
}

impl Spool {
    fn new(part_bytes: u64) -> io::Result<Self> {
        Ok(Self {
            part_bytes,
            waiting: Mutex::new(Waiting {
                parts: VecDeque::from([Part::new()?]),
                end: None,
            }),
            more: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, received: &[u8]) -> io::Result<()> {
        let mut waiting = self.lock();
        if waiting
            .parts
            .back()
            .is_none_or(|part| part.written >= self.part_bytes)
        {
            waiting.parts.push_back(Part::new()?);
        }
        if let Some(part) = waiting.parts.back_mut() {
            part.file.write_all_at(received, part.written)?;
            part.written += received.len() as u64;
        }
        drop(waiting);
        self.more.notify_one();
        Ok(())
    }

    fn end(&self, why: String) {
        self.lock().end.get_or_insert(why);
        self.more.notify_one();
    }

    /// The next bytes. None: there are none yet.
    ///
    /// # Errors
    /// No more come, and all are played; the file cannot be read.
    fn take(&self) -> Result<Vec<u8>, String> {
        let mut waiting = self.lock();
        let is_last = waiting.parts.len() <= 1;
        let Some(part) = waiting
            .parts
            .front_mut()
            .filter(|part| part.read < part.written)
        else {
            return waiting.end.clone().map_or(Ok(Vec::new()), Err);
        };
        let length = (part.written - part.read).min(CHUNK_BYTES as u64);
        let mut chunk = vec![0; usize::try_from(length).unwrap_or(0)];
        let read = part.file.read_exact_at(&mut chunk, part.read);
        read.map_err(|error| error.to_string())?;
        part.read += length;
        if part.read == part.written {
            // Room for those that come.
            if is_last {
                part.file.set_len(0).map_err(|error| error.to_string())?;
                (part.read, part.written) = (0, 0);
            } else {
                waiting.parts.pop_front();
            }
        }
        Ok(chunk)
    }
}

/// Receives the commands.
pub struct Follower {
    spool: Arc<Spool>,
    /// The place in the server's stream at which they begin.
    start: u64,
}

impl Follower {
    /// Begins to receive.
    ///
    /// # Errors
    /// There is no room for a temporary file, or no event loop for the connection.
    pub fn start(link: Link, session: &Session) -> Result<Self, Failure> {
        let spool = Arc::new(Spool::new(PART_BYTES)?);
        spool.append(&link.behind)?;
        link.stream.set_nonblocking(true)?;
        let (into, clock) = (Arc::clone(&spool), Arc::clone(&session.env.clock));
        let (stream, start) = (link.stream, link.offset);
        let first = start + link.behind.len() as u64;
        session.env.tasks.spawn(CoreId(0), "receive", async move {
            let received = match TcpStream::from_std(stream) {
                Ok(stream) => receive(stream, &into, &*clock, first).await,
                Err(error) => Err(error),
            };
            let why = received.err().map(|error| error.to_string());
            into.end(why.unwrap_or_else(|| "it closed the connection".to_owned()));
        });
        Ok(Self { spool, start })
    }
}

/// Receives until the server closes the connection.
async fn receive(
    mut stream: TcpStream,
    spool: &Spool,
    clock: &dyn Clock,
    mut offset: u64,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let (mut tick, mut heard) = (clock.sleep(Duration::ZERO), clock.now());
    loop {
        let count = tokio::select! {
            biased;
            () = &mut tick => {
                if clock.now().since(heard) > SILENCE {
                    return Err(io::Error::other("it is silent"));
                }
                let mut answer = Vec::new();
                command(&mut answer, &["REPLCONF", "ACK", &offset.to_string()]);
                stream.write_all(&answer).await?;
                tick = clock.sleep(SECOND);
                continue;
            }
            count = stream.read(&mut buffer) => count?,
        };
        if count == 0 {
            return Ok(());
        }
        heard = clock.now();
        spool.append(&buffer[..count])?;
        offset += count as u64;
    }
}

/// Where commands are played, and until when.
pub struct Goal<'a> {
    /// The server that is followed.
    pub source: &'a Source,
    /// A Redis port of Pluvio.
    pub port: &'a Source,
    /// The lag in bytes with which it ends; without one a signal ends it.
    pub until_lag: Option<u64>,
}

impl Follower {
    /// Plays what comes. A signal makes the place that the server has then the last one; another
    /// one ends it at once. Gives the number of commands.
    ///
    /// # Errors
    /// One of the two servers is gone, or a command was refused. Those before it were played.
    pub async fn play(
        self,
        goal: &Goal<'_>,
        clock: &dyn Clock,
        signals: &mut StopSignals,
    ) -> Result<u64, Failure> {
        let mut port = login(goal.port).await?;
        let mut source = login(goal.source).await?;
        let place = goal.source.place();
        say(format_args!(
            "follows {place}; end it with SIGINT or SIGTERM when nobody writes there any more"
        ));
        let mut pending = BytesMut::new();
        let (mut offset, mut played, mut last) = (self.start, 0, None);
        let mut look = Look {
            next: clock.now(),
            count: 0,
        };
        loop {
            let chunk = self.spool.take();
            let chunk = chunk.map_err(|why| Failure::new(format!("{place}: {why}{AGAIN}")))?;
            let is_idle = chunk.is_empty();
            pending.extend_from_slice(&chunk);
            let (bytes, commands) = play_all(&mut port, &mut pending).await?;
            (offset, played) = (offset + bytes, played + commands);
            if last.is_some_and(|last| offset >= last) {
                return Ok(played);
            }
            if look.is_due(clock.now()) {
                let lag = place_of(&mut source, &place).await?.saturating_sub(offset);
                look.tell(lag, clock.now());
                if goal.until_lag.is_some_and(|enough| lag <= enough) {
                    return Ok(played);
                }
            }
            let more = async {
                if is_idle {
                    tokio::select! {
                        biased;
                        () = self.spool.more.notified() => {}
                        () = clock.sleep(SECOND) => {}
                    }
                }
            };
            tokio::select! {
                biased;
                _ = signals.next() => match last {
                    None => last = Some(place_of(&mut source, &place).await?),
                    Some(_) => return Err(Failure::new(format!("stopped before the end{AGAIN}"))),
                },
                () = more => {}
            }
        }
    }
}

/// What helps when following has ended too early.
const AGAIN: &str = "; begin again with empty databases";

struct Look {
    next: Moment,
    count: u32,
}

impl Look {
    fn is_due(&self, now: Moment) -> bool {
        now >= self.next
    }

    fn tell(&mut self, lag: u64, now: Moment) {
        if self.count.is_multiple_of(TOLD_EVERY) {
            say(format_args!("lag: {}", bytes(lag)));
        }
        self.count += 1;
        self.next = now + SECOND;
    }
}

async fn login(source: &Source) -> Result<Connection, Failure> {
    let place = source.place();
    let fail = |error: io::Error| Failure::new(format!("{place}: {error}"));
    let mut connection = Connection::open(&place).await.map_err(fail)?;
    if let Some(words) = source.login() {
        let answer = ask(&mut connection, &words).await.map_err(fail)?;
        if !answer.is_ok() {
            let why = answer.error().unwrap_or("a strange answer").to_owned();
            return Err(Failure::new(format!("{place}: AUTH: {why}")));
        }
    }
    Ok(connection)
}

async fn ask(connection: &mut Connection, words: &[&str]) -> io::Result<Reply<'static>> {
    let mut bytes = Vec::new();
    command(&mut bytes, words);
    connection.send(&bytes).await?;
    connection.reply(|reply| reply.into_owned()).await
}

/// A section of INFO.
async fn info(connection: &mut Connection, section: &str) -> io::Result<String> {
    match ask(connection, &["INFO", section]).await? {
        Reply::Bulk(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        other => {
            let why = other.error().unwrap_or("a strange answer");
            Err(io::Error::other(format!("INFO: {why}")))
        }
    }
}

/// The place in its stream that a server has.
async fn place_of(connection: &mut Connection, place: &str) -> Result<u64, Failure> {
    let fail = |why: &dyn core::fmt::Display| Failure::new(format!("{place}: {why}{AGAIN}"));
    let text = info(connection, "replication")
        .await
        .map_err(|error| fail(&error))?;
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("master_repl_offset:"));
    let number = number.and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| fail(&"INFO tells no place"))
}

/// Makes sure that commands are played into Pluvio, and not into what is followed.
///
/// # Errors
/// It is another server, or cannot be reached.
pub async fn check_port(port: &Source) -> Result<(), Failure> {
    let place = port.place();
    let mut connection = login(port).await?;
    let text = info(&mut connection, "server").await;
    let text = text.map_err(|error| Failure::new(format!("{place}: {error}")))?;
    match text.lines().any(|line| line == "server_name:pluvio") {
        true => Ok(()),
        false => Err(Failure::new(format!("{place} is no Redis port of Pluvio"))),
    }
}

/// Commands that can be sent on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    /// As they came.
    bytes: Vec<u8>,
    /// The beginning of each, for a person.
    names: Vec<String>,
    /// How much was read for them, with those that are for the replica itself.
    read: usize,
}

/// Cuts commands from what came.
///
/// # Errors
/// This is no stream of commands.
fn batch(mut input: &[u8]) -> Result<Batch, String> {
    let mut batch = Batch::default();
    while batch.bytes.len() < CHUNK_BYTES {
        let parsed = parse(input).map_err(|error| error.to_string())?;
        let Some((reply, length)) = parsed else {
            break;
        };
        let words = words(&reply).ok_or("something else than a command came")?;
        if !is_for_replica(words[0]) {
            batch.bytes.extend_from_slice(&input[..length]);
            let shown = words
                .iter()
                .take(2)
                .map(|word| escaped(&word[..word.len().min(64)]));
            batch.names.push(shown.collect::<Vec<_>>().join(" "));
        }
        input = &input[length..];
        batch.read += length;
    }
    Ok(batch)
}

fn words<'a>(reply: &'a Reply<'_>) -> Option<Vec<&'a [u8]>> {
    let Reply::Array(items) = reply else {
        return None;
    };
    let word = |item: &'a Reply<'_>| match item {
        Reply::Bulk(word) => Some(&word[..]),
        _ => None,
    };
    let words: Option<Vec<_>> = items.iter().map(word).collect();
    words.filter(|words| !words.is_empty())
}

/// Signs of life, questions to the replica, and messages, which change nothing.
fn is_for_replica(name: &[u8]) -> bool {
    let names = ["PING", "REPLCONF", "PUBLISH", "SPUBLISH"];
    names
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Plays all commands that have come whole. Gives their bytes and their number.
async fn play_all(port: &mut Connection, pending: &mut BytesMut) -> Result<(u64, u64), Failure> {
    let (mut bytes, mut commands) = (0, 0);
    loop {
        let batch = batch(pending).map_err(|why| Failure::new(format!("{why}{AGAIN}")))?;
        if batch.read == 0 {
            break;
        }
        let fail =
            |error: io::Error| Failure::new(format!("the Redis port of Pluvio: {error}{AGAIN}"));
        port.send(&batch.bytes).await.map_err(fail)?;
        for name in &batch.names {
            let refusal = port.reply(|reply| refusal(&reply)).await.map_err(fail)?;
            if let Some(why) = refusal {
                return Err(Failure::new(format!("{name} was refused: {why}{AGAIN}")));
            }
        }
        pending.advance(batch.read);
        bytes += batch.read as u64;
        commands += batch.names.len() as u64;
    }
    if pending.len() > COMMAND_BYTES_MAX {
        return Err(Failure::new(format!(
            "a command has more than {COMMAND_BYTES_MAX} bytes{AGAIN}"
        )));
    }
    Ok((bytes, commands))
}

/// The error in a reply, also in one of a transaction.
fn refusal(reply: &Reply<'_>) -> Option<String> {
    match reply {
        Reply::Error(why) => Some(why.clone().into_owned()),
        Reply::Array(items) => items.iter().find_map(refusal),
        Reply::Simple(_) | Reply::Integer(_) | Reply::Bulk(_) | Reply::Nil => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(commands: &[&[&str]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for words in commands {
            command(&mut bytes, words);
        }
        bytes
    }

    // shows: FOLLOW-1
    #[test]
    fn whole_commands_are_sent_on_in_order_and_those_for_replicas_are_not() {
        let all = stream(&[
            &["SELECT", "0"],
            &["ping"],
            &["SET", "k", "v"],
            &["REPLCONF", "GETACK", "*"],
            &["DEL", "k"],
        ]);
        let found = batch(&all).unwrap();
        let kept = stream(&[&["SELECT", "0"], &["SET", "k", "v"], &["DEL", "k"]]);
        assert_eq!((&found.bytes, found.read), (&kept, all.len()));
        assert_eq!(found.names, ["SELECT 0", "SET k", "DEL k"]);
        for cut in 0..all.len() {
            let first = batch(&all[..cut]).unwrap();
            let rest = batch(&all[first.read..]).unwrap();
            assert_eq!([first.bytes, rest.bytes].concat(), kept, "{cut}");
        }
        for nonsense in [&b"+OK\r\n"[..], b"*0\r\n", b"*1\r\n:1\r\n", b"x\r\n"] {
            assert!(batch(nonsense).is_err(), "{nonsense:?}");
        }
    }

    #[test]
    fn errors_in_transactions_are_found() {
        let fine = Reply::Array(vec![Reply::Integer(1), Reply::Nil]);
        assert_eq!(refusal(&fine), None);
        let bad = Reply::Array(vec![Reply::Integer(1), Reply::Error("ERR no".into())]);
        assert_eq!(refusal(&bad).as_deref(), Some("ERR no"));
    }

    /// Bytes of its files.
    fn room(spool: &Spool) -> u64 {
        let waiting = spool.lock();
        let files = waiting.parts.iter().map(|part| part.file.metadata());
        files.map(|file| file.unwrap().len()).sum()
    }

    // shows: FOLLOW-2
    #[test]
    fn a_spool_that_is_never_empty_takes_little_more_room_than_what_waits() {
        let spool = Spool::new(10).unwrap();
        let mut played = Vec::new();
        for n in 0..100_u8 {
            spool.append(&[n; 4]).unwrap();
            if n > 2 {
                played.extend(spool.take().unwrap());
            }
            assert!(room(&spool) <= 36, "{n}: {}", room(&spool));
        }
        spool.end("gone".to_owned());
        while let Ok(more) = spool.take() {
            played.extend(more);
        }
        let all: Vec<u8> = (0..100).flat_map(|n| [n; 4]).collect();
        assert!(played == all && room(&spool) == 0);
    }

    // shows: FOLLOW-2
    #[test]
    fn a_spool_gives_what_it_got_and_takes_no_room_when_it_is_empty() {
        let spool = Spool::new(PART_BYTES).unwrap();
        assert_eq!(spool.take(), Ok(Vec::new()));
        spool.append(b"ab").unwrap();
        spool.append(&vec![7; CHUNK_BYTES]).unwrap();
        assert_eq!(spool.take().unwrap().len(), CHUNK_BYTES);
        spool.append(b"c").unwrap();
        spool.end("gone".to_owned());
        assert_eq!(spool.take(), Ok(vec![7, 7, b'c']));
        assert_eq!(room(&spool), 0);
        assert_eq!(spool.take(), Err("gone".to_owned()));
    }
}
