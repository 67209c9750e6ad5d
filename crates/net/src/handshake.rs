//! The hellos of both sides before the first frame, little endian:
//!
//! ```text
//!  0            8         10       12       14            16         20     28       32
//!  +--------------+---------+--------+--------+-------------+----------+------+--------+------+
//!  | "PLUVIO\r\n" | version | oldest | status | text length | body max | mark | CRC-32C| text |
//!  | 8            | u16     | u16    | u16    | u16         | u32      | u64  | u32    | ...  |
//!  +--------------+---------+--------+--------+-------------+----------+------+--------+------+
//! ```
//!
//! The side that connects speaks first. Both sides name the newest and the oldest protocol they
//! speak, and the largest frame body they take. Status 0 means welcome. Otherwise the text gives
//! the reason, and the connection ends. "mark" is that of the process which the connecting side
//! wants, if its address names one, and else zero. A side with another protocol (HTTP, Redis) gets
//! the answer in its own, as far as its first bytes show it.

use bytes::{Bytes, BytesMut};
use core::time::Duration;
use pluvio_env::{Clock, timeout};
use pluvio_units::crc32c;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The version of the transport protocol: the handshake and the meaning of frames, not their
/// content.
pub const PROTOCOL_VERSION: u16 = 1;
/// The oldest version that this side speaks.
const PROTOCOL_OLDEST: u16 = 1;

const MAGIC: [u8; 8] = *b"PLUVIO\r\n";
const HELLO_BYTES: usize = 32;
/// Longest text of a refusal.
const TEXT_BYTES_MAX: usize = 512;

/// Whether the other side may go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Welcome,
    OtherVersion,
    Full,
    /// The caller wants another process.
    OtherProcess,
    /// The caller does not speak TLS.
    Unsecured,
}

impl Status {
    fn to_wire(self) -> u16 {
        match self {
            Self::Welcome => 0,
            Self::OtherVersion => 1,
            Self::Full => 2,
            Self::OtherProcess => 3,
            Self::Unsecured => 4,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Hello {
    version: u16,
    oldest: u16,
    /// As on the wire: a newer side may have reasons that are unknown here.
    status: u16,
    text_bytes: u16,
    body_bytes_max: u32,
    mark: u64,
}

impl Hello {
    fn encode(
        status: Status,
        text_bytes: u16,
        body_bytes_max: usize,
        mark: u64,
    ) -> [u8; HELLO_BYTES] {
        let body_bytes_max = u32::try_from(body_bytes_max).unwrap_or(u32::MAX);
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&PROTOCOL_OLDEST.to_le_bytes());
        bytes[12..14].copy_from_slice(&status.to_wire().to_le_bytes());
        bytes[14..16].copy_from_slice(&text_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&body_bytes_max.to_le_bytes());
        bytes[20..28].copy_from_slice(&mark.to_le_bytes());
        let checksum = crc32c(&[&bytes[..28]]);
        bytes[28..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are damaged. The magic was checked before.
    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        (crc32c(&[&bytes[..28]]) == word(28)).then(|| Self {
            version: half(8),
            oldest: half(10),
            status: half(12),
            text_bytes: half(14),
            body_bytes_max: word(16),
            mark: u64::from(word(20)) | u64::from(word(24)) << 32,
        })
    }
}

/// A connection on which both sides can say hello.
pub(crate) trait Talk: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Talk for T {}

/// What this side brings to a handshake.
pub(crate) struct Terms<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) limit: Duration,
    pub(crate) body_bytes_max: usize,
    /// The mark of the process that is wanted, or of this one; 0 if there is none.
    pub(crate) mark: u64,
}

/// Why a handshake of the side that connects failed, as text for people. Nothing was executed
/// there.
#[derive(Debug)]
pub(crate) enum Ungreeted {
    /// The other side does not take this connection. Another endpoint of its address may.
    Refused(String),
    /// It is broken, silent, or no process of a cluster.
    Broken(String),
}

impl Ungreeted {
    pub(crate) fn into_words(self) -> String {
        match self {
            Self::Refused(words) | Self::Broken(words) => words,
        }
    }
}

/// The handshake of the side that connects. Gives the largest body that the other side takes.
///
/// # Errors
/// [`Ungreeted`].
pub(crate) async fn greet(stream: &mut impl Talk, terms: &Terms<'_>) -> Result<usize, Ungreeted> {
    match timeout(terms.clock, terms.limit, greet_unlimited(stream, terms)).await {
        Ok(result) => result,
        Err(_) => Err(Ungreeted::Broken(format!(
            "no answer to the handshake within {:?}; is it a Pluvio RPC port?",
            terms.limit
        ))),
    }
}

async fn greet_unlimited(stream: &mut impl Talk, terms: &Terms<'_>) -> Result<usize, Ungreeted> {
    let broken = |error: io::Error| {
        Ungreeted::Broken(format!(
            "the connection broke during the handshake: {error}"
        ))
    };
    let hello = Hello::encode(Status::Welcome, 0, terms.body_bytes_max, terms.mark);
    stream.write_all(&hello).await.map_err(broken)?;
    let bytes = match read_hello(stream).await.map_err(broken)? {
        Spoken::Hello(bytes) => bytes,
        Spoken::Foreign(start) if start.is_empty() => {
            let why = "it closed the connection during the handshake";
            return Err(Ungreeted::Broken(why.to_owned()));
        }
        Spoken::Foreign(start) => {
            return Err(Ungreeted::Broken(format!(
                "it is not a Pluvio RPC port (it answered \"{}\")",
                start.escape_ascii()
            )));
        }
    };
    let Some(hello) = Hello::decode(&bytes) else {
        return Err(Ungreeted::Broken("its handshake is damaged".to_owned()));
    };
    if hello.status != Status::Welcome.to_wire() {
        let mut text = vec![0; usize::from(hello.text_bytes).min(TEXT_BYTES_MAX)];
        stream.read_exact(&mut text).await.map_err(broken)?;
        let why = format!("it refused: {}", String::from_utf8_lossy(&text));
        return Err(Ungreeted::Refused(why));
    }
    if PROTOCOL_VERSION < hello.oldest || hello.version < PROTOCOL_OLDEST {
        return Err(Ungreeted::Broken(other_version(&hello)));
    }
    Ok(hello.body_bytes_max as usize)
}

fn other_version(theirs: &Hello) -> String {
    format!(
        "transport protocol {}..={} there and {PROTOCOL_OLDEST}..={PROTOCOL_VERSION} here have \
         no version in common; upgrade the older side",
        theirs.oldest, theirs.version
    )
}

/// The reason to refuse a connection that came in.
pub(crate) enum Unwelcome {
    /// It was closed before a byte came, as by a client that only checks whether the port is open.
    Wordless,
    /// It is a stranger, or broken.
    Stranger {
        /// For the trace.
        why: String,
        /// The answer to the other side, if it would understand any.
        answer: Option<Bytes>,
    },
}

/// The handshake of the side that was connected to. Gives the largest body the other side takes.
///
/// # Errors
/// The other side cannot be served, and does not know it yet.
pub(crate) async fn welcome(stream: &mut impl Talk, terms: &Terms<'_>) -> Result<usize, Unwelcome> {
    let silent = |why: String| Unwelcome::Stranger { why, answer: None };
    let spoken = match timeout(terms.clock, terms.limit, read_hello(stream)).await {
        Ok(Ok(spoken)) => spoken,
        Ok(Err(error)) => return Err(silent(format!("broke during the handshake: {error}"))),
        Err(_) => return Err(silent(format!("no handshake within {:?}", terms.limit))),
    };
    let bytes = match spoken {
        Spoken::Hello(bytes) => bytes,
        Spoken::Foreign(start) if start.is_empty() => return Err(Unwelcome::Wordless),
        Spoken::Foreign(start) => {
            let shown = start.escape_ascii();
            return Err(Unwelcome::Stranger {
                why: format!("does not speak Pluvio's RPC protocol (it began with \"{shown}\")"),
                answer: Some(explain(&start)),
            });
        }
    };
    let Some(theirs) = Hello::decode(&bytes) else {
        return Err(silent("sent a damaged handshake".to_owned()));
    };
    if PROTOCOL_VERSION < theirs.oldest || theirs.version < PROTOCOL_OLDEST {
        let why = other_version(&theirs);
        let answer = Some(refusal(Status::OtherVersion, &why));
        return Err(Unwelcome::Stranger { why, answer });
    }
    if theirs.mark != 0 && theirs.mark != terms.mark {
        let why = "wants another process, whose address this is no more".to_owned();
        let text = "this is another process than the one that is wanted";
        let answer = Some(refusal(Status::OtherProcess, text));
        return Err(Unwelcome::Stranger { why, answer });
    }
    let hello = Hello::encode(Status::Welcome, 0, terms.body_bytes_max, 0);
    match timeout(terms.clock, terms.limit, stream.write_all(&hello)).await {
        Ok(Ok(())) => Ok(theirs.body_bytes_max as usize),
        Ok(Err(error)) => Err(silent(format!("broke during the handshake: {error}"))),
        Err(_) => Err(silent(format!(
            "took no handshake within {:?}",
            terms.limit
        ))),
    }
}

/// A hello that refuses, with the reason.
pub(crate) fn refusal(status: Status, text: &str) -> Bytes {
    let text = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
    let text_bytes = u16::try_from(text.len()).expect("cut to a limit below 64 KiB");
    let mut bytes = BytesMut::from(&Hello::encode(status, text_bytes, 0, 0)[..]);
    bytes.extend_from_slice(text);
    bytes.freeze()
}

/// The first bytes of the other side.
enum Spoken {
    Hello([u8; HELLO_BYTES]),
    /// Not this protocol, or the end; with the bytes so far.
    Foreign(Vec<u8>),
}

/// Reads a hello, and no byte after it. Stops at the first wrong byte.
async fn read_hello(stream: &mut impl Talk) -> io::Result<Spoken> {
    let mut bytes = [0; HELLO_BYTES];
    let mut filled = 0;
    while filled < HELLO_BYTES {
        let count = stream.read(&mut bytes[filled..]).await?;
        filled += count;
        let seen = filled.min(MAGIC.len());
        if count == 0 || bytes[..seen] != MAGIC[..seen] {
            return Ok(Spoken::Foreign(bytes[..filled].to_vec()));
        }
    }
    Ok(Spoken::Hello(bytes))
}

/// An answer that programs for other protocols show to their users.
fn explain(start: &[u8]) -> Bytes {
    const HTTP: [&[u8]; 7] = [
        b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC",
    ];
    if HTTP.iter().any(|method| start.starts_with(method)) {
        Bytes::from_static(
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\
              Content-Length: 66\r\n\r\n\
              This is Pluvio's RPC port. The web page is on the admin web port.\n",
        )
    } else {
        Bytes::from_static(
            b"-ERR this is Pluvio's RPC port; connect to the Redis port, or use the pluvio client\r\n",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_http_answer_has_the_length_it_says() {
        let answer = explain(b"GET / HTTP/1.1");
        let text = std::str::from_utf8(&answer).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
    }

    #[test]
    fn a_hello_survives_and_a_damaged_one_does_not() {
        let bytes = Hello::encode(Status::Full, 7, 1 << 20, 1 << 40);
        let hello = Hello::decode(&bytes).expect("whole");
        assert_eq!(
            (hello.version, hello.oldest, hello.status, hello.text_bytes),
            (PROTOCOL_VERSION, PROTOCOL_OLDEST, 2, 7)
        );
        assert_eq!((hello.body_bytes_max, hello.mark), (1 << 20, 1 << 40));
        let mut bad = bytes;
        bad[17] ^= 1;
        assert!(Hello::decode(&bad).is_none());
    }
}
