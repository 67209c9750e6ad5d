//! How a session begins:
//!
//! 1. The client sends a hello, with half of a key and no cookie.
//! 2. The server answers with a cookie, and remembers nothing. So a forged source address costs it
//!    one datagram, no longer than the one that came.
//! 3. The client sends the hello again with the cookie, which shows that it receives at its
//!    address.
//! 4. The server makes the session, with the other half of the key, and sends its welcome.
//!
//! Bodies, little endian:
//!
//! ```text
//!  hello    oldest u8 | newest u8 | 0 u16 | terms | key half u64 | cookie | zeros up to 256 bytes
//!  cookie   cookie
//!  welcome  0 u32 | terms | key half u64 | server's session id u64
//!  refused  reason u8 | oldest u8 | newest u8 | length u8 | text
//!  terms    frame max u32 | datagram max u32 | credit bytes u64 | credit messages u64
//!  cookie   made at (ms) u64 | check u64
//! ```
//!
//! "number" in the head of a hello is the client's session id; the other three carry it as
//! "session id".

use super::packet::{self, Credit, DATAGRAM_VERSION, Kind, Take};
use super::siphash::{Key, siphash};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use pluvio_env::Moment;

/// A hello has this size, so that no answer to it is longer: a server is no amplifier.
pub(crate) const HELLO_BYTES: usize = 256;
/// How long a cookie serves: far longer than a way there and back.
const COOKIE_LIFE: Duration = Duration::from_secs(10);
/// Longest text of a refusal.
const TEXT_BYTES_MAX: usize = 200;

/// The least room for a datagram that a side may offer. IPv6 carries 1 280 bytes everywhere.
const DATAGRAM_BYTES_MIN: u32 = 512;

/// What one side takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// Largest meta and payload together.
    pub(crate) frame_bytes_max: u32,
    /// Largest datagram.
    pub(crate) datagram_bytes_max: u32,
    /// What the other side may begin at first.
    pub(crate) credit: Credit,
}

impl Terms {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.frame_bytes_max.to_le_bytes());
        into.extend_from_slice(&self.datagram_bytes_max.to_le_bytes());
        into.extend_from_slice(&self.credit.bytes.to_le_bytes());
        into.extend_from_slice(&self.credit.messages.to_le_bytes());
    }

    fn take(from: &mut Take<'_>) -> Option<Self> {
        let terms = Self {
            frame_bytes_max: from.u32()?,
            datagram_bytes_max: from.u32()?,
            credit: Credit {
                bytes: from.u64()?,
                messages: from.u64()?,
            },
        };
        (terms.datagram_bytes_max >= DATAGRAM_BYTES_MIN).then_some(terms)
    }
}

/// Shows that its bearer receives at its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cookie {
    made_at_ms: u64,
    check: u64,
}

impl Cookie {
    /// The cookie for a hello that came from `from`.
    pub(crate) fn bake(key: Key, now: Moment, from: SocketAddr, hello: &Hello) -> Self {
        let made_at_ms = millis(now);
        Self {
            made_at_ms,
            check: cookie_check(key, made_at_ms, from, hello),
        }
    }

    /// Whether it is of this server, for this hello, and fresh.
    pub(crate) fn is_good(&self, key: Key, now: Moment, from: SocketAddr, hello: &Hello) -> bool {
        let age = millis(now).checked_sub(self.made_at_ms);
        age.is_some_and(|age| u128::from(age) <= COOKIE_LIFE.as_millis())
            && self.check == cookie_check(key, self.made_at_ms, from, hello)
    }

    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.made_at_ms.to_le_bytes());
        into.extend_from_slice(&self.check.to_le_bytes());
    }

    fn take(from: &mut Take<'_>) -> Option<Self> {
        Some(Self {
            made_at_ms: from.u64()?,
            check: from.u64()?,
        })
    }
}

fn millis(now: Moment) -> u64 {
    u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX)
}

fn cookie_check(key: Key, made_at_ms: u64, from: SocketAddr, hello: &Hello) -> u64 {
    let mut bytes = Vec::with_capacity(64);
    match from.ip() {
        IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
    }
    bytes.extend_from_slice(&from.port().to_le_bytes());
    for word in [made_at_ms, hello.session, hello.key_half] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    siphash(key, &bytes)
}

/// A client's wish for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    /// The client's id of the session.
    pub(crate) session: u64,
    pub(crate) oldest: u8,
    pub(crate) newest: u8,
    pub(crate) terms: Terms,
    pub(crate) key_half: u64,
    pub(crate) cookie: Cookie,
}

impl Hello {
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        packet::begin(into);
        into.extend_from_slice(&[self.oldest, self.newest, 0, 0]);
        self.terms.put(into);
        into.extend_from_slice(&self.key_half.to_le_bytes());
        self.cookie.put(into);
        into.resize(HELLO_BYTES, 0);
        packet::seal(into, Kind::Hello, 0, self.session, |_| 0);
    }

    /// `None` if it is none, or shorter than what it may be answered with.
    pub(crate) fn decode(session: u64, body: &[u8]) -> Option<Self> {
        if body.len() + packet::HEAD_BYTES < HELLO_BYTES {
            return None;
        }
        let mut take = Take(body);
        let (oldest, newest) = (take.u8()?, take.u8()?);
        take.u16()?;
        Some(Self {
            session,
            oldest,
            newest,
            terms: Terms::take(&mut take)?,
            key_half: take.u64()?,
            cookie: Cookie::take(&mut take)?,
        })
    }

    /// Whether the client speaks the version of this side.
    pub(crate) fn speaks_ours(&self) -> bool {
        (self.oldest..=self.newest).contains(&DATAGRAM_VERSION)
    }
}

/// Writes the answer to a hello without a good cookie.
pub(crate) fn encode_cookie(client_session: u64, cookie: &Cookie, into: &mut Vec<u8>) {
    packet::begin(into);
    cookie.put(into);
    packet::seal(into, Kind::Cookie, client_session, 0, |_| 0);
}

pub(crate) fn decode_cookie(body: &[u8]) -> Option<Cookie> {
    Cookie::take(&mut Take(body))
}

/// A server's answer that opens the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Welcome {
    pub(crate) terms: Terms,
    pub(crate) key_half: u64,
    /// The server's id of the session.
    pub(crate) session: u64,
}

impl Welcome {
    pub(crate) fn encode(&self, client_session: u64, keys: &Keys, into: &mut Vec<u8>) {
        packet::begin(into);
        into.extend_from_slice(&[0; 4]);
        self.terms.put(into);
        into.extend_from_slice(&self.key_half.to_le_bytes());
        into.extend_from_slice(&self.session.to_le_bytes());
        packet::seal(into, Kind::Welcome, client_session, 0, |head| {
            siphash(keys.to_client, head)
        });
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut take = Take(body);
        take.u32()?;
        Some(Self {
            terms: Terms::take(&mut take)?,
            key_half: take.u64()?,
            session: take.u64()?,
        })
    }
}

/// The keys of a session, one for each way: a datagram sent back to its sender is none.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) to_server: Key,
    pub(crate) to_client: Key,
}

impl Keys {
    pub(crate) fn new(client_half: u64, server_half: u64) -> Self {
        let both = Key(client_half, server_half);
        Self {
            to_server: both.derive(1),
            to_client: both.derive(2),
        }
    }
}

/// Writes a refusal. Readers of every version understand it.
pub(crate) fn encode_refusal(client_session: u64, text: &str, into: &mut Vec<u8>) {
    let text = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
    packet::begin(into);
    into.extend_from_slice(&[1, DATAGRAM_VERSION, DATAGRAM_VERSION, text.len() as u8]);
    into.extend_from_slice(text);
    packet::seal(into, Kind::Refused, client_session, 0, |_| 0);
}

/// The text of a refusal.
pub(crate) fn decode_refusal(body: &[u8]) -> Option<String> {
    let mut take = Take(body);
    take.bytes(3)?;
    let length = take.u8()?;
    let text = take.bytes(usize::from(length))?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The text for a side that speaks another version.
pub(crate) fn other_version(oldest: u8, newest: u8) -> String {
    format!(
        "the datagrams are of another version: {oldest}..={newest} there and \
         {DATAGRAM_VERSION}..={DATAGRAM_VERSION} here; use programs of one release"
    )
}
