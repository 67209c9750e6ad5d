//! Replies, and how both versions of the protocol write them.

use crate::number::push_integer;
use crate::output::Out;
use bytes::Bytes;
use pluvio_client::Output;
use pluvio_script::number_text;
use std::borrow::Cow;

/// Digits of a double: as many as tell it from all others.
const DOUBLE_DIGITS: usize = 17;

/// The version of the protocol a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Protocol {
    /// RESP2, with which every connection begins.
    #[default]
    Resp2,
    /// RESP3, after `HELLO 3`.
    Resp3,
}

impl Protocol {
    /// Its number.
    #[must_use]
    pub fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// What a command has done that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Nothing, or what the failure says.
    None,
    /// It has changed some of its keys, and not the others.
    Part,
    /// That is not known.
    Unknown,
}

/// An error reply: a prefix in capitals that programs look at, and text.
///
/// The connection goes by what stands beside the text. A script may answer with any text, and sets
/// none of that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    text: Cow<'static, [u8]>,
    effect: Effect,
    /// It has waited in vain for memory.
    is_of_full_memory: bool,
}

impl Failure {
    /// A fixed text, with its prefix.
    #[must_use]
    pub const fn fixed(text: &'static str) -> Self {
        Self {
            text: Cow::Borrowed(text.as_bytes()),
            effect: Effect::None,
            is_of_full_memory: false,
        }
    }

    /// [`Failure::fixed`] of a command that has waited in vain for memory.
    pub(crate) const fn of_full_memory(text: &'static str) -> Self {
        Self {
            text: Cow::Borrowed(text.as_bytes()),
            effect: Effect::None,
            is_of_full_memory: true,
        }
    }

    /// A text that was put together, with its prefix. Line ends become blanks.
    #[must_use]
    pub fn new(text: impl Into<Vec<u8>>) -> Self {
        let mut text = text.into();
        while text.last().is_some_and(|b| matches!(b, b'\r' | b'\n')) {
            text.pop();
        }
        for byte in &mut text {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        Self {
            text: Cow::Owned(text),
            effect: Effect::None,
            is_of_full_memory: false,
        }
    }

    /// The same of a command that has done this.
    pub(crate) fn with_effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// The same in other words.
    pub(crate) fn with_text(&self, text: impl Into<Vec<u8>>) -> Self {
        Self {
            effect: self.effect,
            is_of_full_memory: self.is_of_full_memory,
            ..Self::new(text)
        }
    }

    /// What the command has done.
    pub(crate) fn effect(&self) -> Effect {
        self.effect
    }

    /// Whether it has waited in vain for memory.
    pub(crate) fn is_of_full_memory(&self) -> bool {
        self.is_of_full_memory
    }

    /// All of it, without the leading `-`.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// What programs look at: the first word.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        self.text.split(|b| *b == b' ').next().unwrap_or_default()
    }
}

/// A reply.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// `+OK` and other fixed words.
    Status(&'static str),
    /// A word that was put together, sent as `+` does; it must hold no line end.
    Word(String),
    /// Bytes that are sent as `+` does; line ends become blanks.
    Line(Vec<u8>),
    /// An error.
    Error(Failure),
    /// An integer.
    Integer(i64),
    /// A number with a fraction: bytes in RESP2.
    Double(f64),
    /// A truth value: 1 or 0 in RESP2.
    Boolean(bool),
    /// An integer of any size, in decimal: bytes in RESP2.
    BigNumber(Vec<u8>),
    /// Bytes.
    Bulk(Bytes),
    /// Fixed text, sent as bytes.
    Text(&'static str),
    /// Text for people: marked as such in RESP3, plain bytes in RESP2.
    Verbatim(String),
    /// Text with its format, of which three letters are sent: plain bytes in RESP2.
    Marked(Vec<u8>, Vec<u8>),
    /// Nothing there.
    Nil,
    /// No list there.
    NoList,
    /// A list.
    Array(Vec<Self>),
    /// A list of bytes, written in advance.
    Bulks(Bulks),
    /// Pairs: a map in RESP3, a list of twice the length in RESP2.
    Map(Vec<(Self, Self)>),
    /// A set in RESP3, a list in RESP2.
    Set(Vec<Self>),
}

impl From<Result<Self, Failure>> for Reply {
    fn from(result: Result<Self, Failure>) -> Self {
        result.unwrap_or_else(Self::Error)
    }
}

impl From<Output> for Reply {
    fn from(output: Output) -> Self {
        let number = |number: Option<i64>| number.map_or(Self::Nil, Self::Integer);
        match output {
            Output::Nothing => Self::Nil,
            Output::Integer(value) => Self::Integer(value),
            Output::Bytes(bytes) => Self::Bulk(bytes),
            Output::Integers(numbers) => Self::Array(numbers.iter().copied().map(number).collect()),
        }
    }
}

impl Reply {
    /// `+OK`.
    pub const OK: Self = Self::Status("OK");

    /// Bytes that are copied.
    #[must_use]
    pub fn copy(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(Bytes::copy_from_slice(bytes.as_ref()))
    }

    /// A count.
    #[must_use]
    pub fn count(count: u64) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// 1 or 0.
    #[must_use]
    pub fn flag(flag: bool) -> Self {
        Self::Integer(i64::from(flag))
    }

    /// Bytes or nothing.
    #[must_use]
    pub fn bulk_or_nil(bytes: Option<Bytes>) -> Self {
        bytes.map_or(Self::Nil, Self::Bulk)
    }

    /// About how many bytes it takes.
    #[must_use]
    pub fn size(&self) -> usize {
        const HEAD: usize = 16;
        HEAD + match self {
            Self::Status(text) | Self::Text(text) => text.len(),
            Self::Error(failure) => failure.text().len(),
            Self::Integer(_) | Self::Double(_) | Self::Boolean(_) | Self::Nil | Self::NoList => 0,
            Self::Line(text) | Self::BigNumber(text) | Self::Marked(_, text) => text.len(),
            Self::Bulk(bytes) => bytes.len(),
            Self::Verbatim(text) | Self::Word(text) => text.len(),
            Self::Array(items) | Self::Set(items) => items.iter().map(Self::size).sum(),
            Self::Bulks(bulks) => bulks.bytes,
            Self::Map(pairs) => pairs.iter().map(|(k, v)| k.size() + v.size()).sum(),
        }
    }

    /// How many values it has: those of a list, or one.
    pub(crate) fn values(&self) -> usize {
        match self {
            Self::Array(items) | Self::Set(items) => items.len(),
            Self::Bulks(bulks) => bulks.count,
            _ => 1,
        }
    }

    /// Appends what is sent for a value, or for its absence.
    pub fn write_value(value: Option<&[u8]>, protocol: Protocol, out: &mut Vec<u8>) {
        match value {
            Some(value) => bulk(out, value),
            None => Self::Nil.write(protocol, out),
        }
    }

    /// Appends what is sent.
    pub fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        self.clone().write_to(protocol, out);
    }

    /// Appends what is sent. Parts are freed as they are written, so that a large reply is not in
    /// memory twice.
    pub(crate) fn write_to(self, protocol: Protocol, out: &mut impl Out) {
        match self {
            Self::Status(text) => line(out.small(), b'+', text.as_bytes()),
            Self::Word(text) => line(out.small(), b'+', text.as_bytes()),
            Self::Line(text) => line(out.small(), b'+', &one_line(text)),
            Self::Error(failure) => line(out.small(), b'-', failure.text()),
            Self::Integer(value) => head(out.small(), b':', value),
            Self::Double(number) => {
                let text = number_text(number, DOUBLE_DIGITS);
                match protocol {
                    Protocol::Resp2 => bulk(out.small(), text.as_bytes()),
                    Protocol::Resp3 => line(out.small(), b',', text.as_bytes()),
                }
            }
            Self::Boolean(truth) => match protocol {
                Protocol::Resp2 => head(out.small(), b':', i64::from(truth)),
                Protocol::Resp3 => line(out.small(), b'#', if truth { b"t" } else { b"f" }),
            },
            Self::BigNumber(digits) => match protocol {
                Protocol::Resp2 => bulk(out.small(), &one_line(digits)),
                Protocol::Resp3 => line(out.small(), b'(', &one_line(digits)),
            },
            Self::Bulk(bytes) => {
                head_count(out.small(), b'$', bytes.len());
                out.value(&bytes);
                out.small().extend_from_slice(b"\r\n");
            }
            Self::Text(text) => bulk(out.small(), text.as_bytes()),
            Self::Verbatim(text) => match protocol {
                Protocol::Resp2 => bulk(out.small(), text.as_bytes()),
                Protocol::Resp3 => marked(out.small(), b"txt", text.as_bytes()),
            },
            Self::Marked(format, text) => match protocol {
                Protocol::Resp2 => bulk(out.small(), &text),
                Protocol::Resp3 => marked(out.small(), &format, &text),
            },
            Self::Nil => out.small().extend_from_slice(match protocol {
                Protocol::Resp2 => b"$-1\r\n",
                Protocol::Resp3 => b"_\r\n",
            }),
            Self::NoList => out.small().extend_from_slice(match protocol {
                Protocol::Resp2 => b"*-1\r\n",
                Protocol::Resp3 => b"_\r\n",
            }),
            Self::Array(items) => list(out, protocol, b'*', items),
            Self::Bulks(bulks) => {
                head_count(out.small(), b'*', bulks.count);
                for part in bulks.parts {
                    out.value(&part.into());
                }
            }
            Self::Set(items) => match protocol {
                Protocol::Resp2 => list(out, protocol, b'*', items),
                Protocol::Resp3 => list(out, protocol, b'~', items),
            },
            Self::Map(pairs) => {
                match protocol {
                    Protocol::Resp2 => head_count(out.small(), b'*', pairs.len() * 2),
                    Protocol::Resp3 => head_count(out.small(), b'%', pairs.len()),
                }
                for (key, value) in pairs {
                    key.write_to(protocol, out);
                    value.write_to(protocol, out);
                }
            }
        }
    }
}

/// A list of bytes, written in advance: a small part of the memory that as many replies take.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bulks {
    count: usize,
    bytes: usize,
    parts: Vec<Vec<u8>>,
}

impl Bulks {
    /// Most bytes of a part, unless one of its items is longer. A part never grows to the size of
    /// the list.
    const PART_BYTES: usize = 256 << 10;

    /// Appends an item.
    pub fn push(&mut self, item: &[u8]) {
        let is_full = |part: &Vec<u8>| part.len() + item.len() > Self::PART_BYTES;
        if self.parts.last().is_none_or(is_full) {
            self.parts.push(Vec::new());
        }
        if let Some(part) = self.parts.last_mut() {
            let before = part.len();
            bulk(part, item);
            self.bytes += part.len() - before;
        }
        self.count += 1;
    }

    /// The items.
    pub(crate) fn items(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.parts.iter().flat_map(|part| {
            let mut rest = &part[..];
            core::iter::from_fn(move || {
                let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
                let len: usize = core::str::from_utf8(&rest[1..end]).ok()?.parse().ok()?;
                let item = rest.get(end + 2..end + 2 + len)?.to_vec();
                rest = &rest[end + 4 + len..];
                Some(item)
            })
        })
    }

    /// Bytes of all items.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Without line ends, which would break the framing.
fn one_line(mut text: Vec<u8>) -> Vec<u8> {
    for byte in &mut text {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    text
}

/// Text with the first three letters of its format.
fn marked(out: &mut Vec<u8>, format: &[u8], text: &[u8]) {
    head_count(out, b'=', text.len() + 4);
    out.extend((0..3).map(|at| format.get(at).copied().unwrap_or(b' ')));
    out.push(b':');
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn head(out: &mut Vec<u8>, kind: u8, value: i64) {
    out.push(kind);
    push_integer(out, value);
    out.extend_from_slice(b"\r\n");
}

fn head_count(out: &mut Vec<u8>, kind: u8, count: usize) {
    head(out, kind, i64::try_from(count).unwrap_or(i64::MAX));
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 16);
    head_count(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn list(out: &mut impl Out, protocol: Protocol, kind: u8, items: Vec<Reply>) {
    head_count(out.small(), kind, items.len());
    for item in items {
        item.write_to(protocol, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, protocol: Protocol) -> String {
        let mut out = Vec::new();
        reply.write(protocol, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn both_protocols_write_every_kind() {
        let pairs = vec![(Reply::Text("k"), Reply::Integer(-3))];
        for (reply, two, three) in [
            (Reply::OK, "+OK\r\n", "+OK\r\n"),
            (Reply::Nil, "$-1\r\n", "_\r\n"),
            (Reply::NoList, "*-1\r\n", "_\r\n"),
            (Reply::copy(b"ab"), "$2\r\nab\r\n", "$2\r\nab\r\n"),
            (
                Reply::Verbatim("x".into()),
                "$1\r\nx\r\n",
                "=5\r\ntxt:x\r\n",
            ),
            (
                Reply::Marked(b"mk".to_vec(), b"x".to_vec()),
                "$1\r\nx\r\n",
                "=5\r\nmk :x\r\n",
            ),
            (Reply::Line(b"a\r\nb".to_vec()), "+a  b\r\n", "+a  b\r\n"),
            (Reply::Boolean(true), ":1\r\n", "#t\r\n"),
            (Reply::Boolean(false), ":0\r\n", "#f\r\n"),
            (
                Reply::BigNumber(b"-12".to_vec()),
                "$3\r\n-12\r\n",
                "(-12\r\n",
            ),
            (
                Reply::Double(2.1),
                "$18\r\n2.1000000000000001\r\n",
                ",2.1000000000000001\r\n",
            ),
            (
                Reply::Double(1e300),
                "$23\r\n1.0000000000000001e+300\r\n",
                ",1.0000000000000001e+300\r\n",
            ),
            (
                Reply::Double(f64::NEG_INFINITY),
                "$4\r\n-inf\r\n",
                ",-inf\r\n",
            ),
            (Reply::Set(vec![Reply::Nil]), "*1\r\n$-1\r\n", "~1\r\n_\r\n"),
            (
                Reply::Map(pairs),
                "*2\r\n$1\r\nk\r\n:-3\r\n",
                "%1\r\n$1\r\nk\r\n:-3\r\n",
            ),
            (Reply::Array(vec![]), "*0\r\n", "*0\r\n"),
        ] {
            assert_eq!(written(&reply, Protocol::Resp2), two);
            assert_eq!(written(&reply, Protocol::Resp3), three);
        }
    }

    #[test]
    fn error_texts_cannot_break_the_framing() {
        let failure = Failure::new(b"ERR a\r\nb\n".to_vec());
        assert_eq!(
            written(&Reply::Error(failure.clone()), Protocol::Resp2),
            "-ERR a  b\r\n"
        );
        assert_eq!(failure.prefix(), b"ERR");
    }
}
