//! Cuts a stream of bytes into commands, without I/O.
//!
//! Owns the limits of what one command may look like. It follows Redis to the byte: multibulk
//! commands (`*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`), inline commands (`GET k\r\n` with quotes), and the
//! texts of protocol errors. `docs/redis.md` lists the few differences.
//!
//! Invariants
//! - PARSE-1: how the stream is cut into reads changes nothing.
//! - PARSE-2: memory is taken for bytes that have arrived, never for a length that was announced.
//!   An argument over [`Limits::argument_bytes_max`], or a command over
//!   [`Limits::command_bytes_max`], is skipped as it arrives and then reported; the stream stays
//!   usable.
//! - PARSE-3: any bytes give commands, a wish for more bytes, or a [`ProtocolError`]; never a
//!   panic. After a protocol error nothing more can be read from the stream.
//! - PARSE-4: looking for the end of a line never looks at a byte twice.
//! - PARSE-5: before its login, a peer's commands have at most 10 arguments of 16 KiB.

use crate::number::integer;
use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;

/// What is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest line: an inline command, or the header of a count or length.
    pub line_bytes_max: usize,
    /// Most arguments of a command.
    pub arguments_max: usize,
    /// Longest length that may be announced for an argument; more is a protocol error.
    pub bulk_bytes_max: usize,
    /// Longest argument that is kept; a longer one makes its command [`Parsed::TooLarge`].
    pub argument_bytes_max: usize,
    /// Most bytes of a command that are kept; a longer one is [`Parsed::TooLarge`].
    pub command_bytes_max: usize,
}

impl Default for Limits {
    /// Lines and announced lengths as in Redis, counts as in Redis before 7.0, values as in Pluvio.
    fn default() -> Self {
        Self {
            line_bytes_max: 64 << 10,
            arguments_max: 1 << 20,
            bulk_bytes_max: 512 << 20,
            argument_bytes_max: pluvio_units::VALUE_MAX,
            // An MSET of 63 of the largest values; a connection never holds more input than this
            // and one read.
            command_bytes_max: 64 << 20,
        }
    }
}

/// Bytes that a payload of RESTORE has beside its value.
const PAYLOAD_OVERHEAD: usize = 32;

/// The place of an argument in its command's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    start: u32,
    end: u32,
}

/// Most commands have few parts.
type Spans = SmallVec<[Span; 5]>;

/// A command: a name and arguments, all of them plain bytes. Never empty.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    bytes: Bytes,
    spans: Spans,
}

impl Command {
    /// A command from its parts.
    ///
    /// # Panics
    /// When there is no part, or they are longer than 4 GiB together.
    pub fn from_parts<T: AsRef<[u8]>>(parts: &[T]) -> Self {
        assert!(!parts.is_empty(), "a command has a name");
        let mut bytes = Vec::new();
        let spans = parts
            .iter()
            .map(|part| {
                let start = bytes.len();
                bytes.extend_from_slice(part.as_ref());
                span(start, bytes.len())
            })
            .collect();
        Self {
            bytes: bytes.into(),
            spans,
        }
    }

    /// A command from its parts, one behind the other, and where each ends.
    pub(crate) fn from_joined(bytes: Vec<u8>, ends: &[usize]) -> Self {
        let mut start = 0;
        let spans = ends.iter().map(|end| {
            let span = span(start, *end);
            start = *end;
            span
        });
        Self {
            spans: spans.collect(),
            bytes: bytes.into(),
        }
    }

    /// Number of parts, the name included; at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Bytes that the command holds in memory.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>()
    }

    /// A part; 0 is the name. Empty when there is no such part.
    #[must_use]
    pub fn get(&self, index: usize) -> &[u8] {
        self.spans.get(index).map_or(&[], |span| {
            &self.bytes[span.start as usize..span.end as usize]
        })
    }

    /// A part that shares the command's memory.
    #[must_use]
    pub fn share(&self, index: usize) -> Bytes {
        self.spans.get(index).map_or_else(Bytes::new, |span| {
            self.bytes.slice(span.start as usize..span.end as usize)
        })
    }

    /// The parts from `first` on.
    pub fn from(&self, first: usize) -> impl ExactSizeIterator<Item = &[u8]> {
        let first = first.min(self.len());
        (first..self.len()).map(|index| self.get(index))
    }

    /// Whether a part is this word, in any case.
    #[must_use]
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).eq_ignore_ascii_case(word.as_bytes())
    }
}

impl core::fmt::Debug for Command {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut list = f.debug_list();
        for part in self.from(0) {
            list.entry(&part.escape_ascii().to_string());
        }
        list.finish()
    }
}

fn span(start: usize, end: usize) -> Span {
    let narrow = |at| u32::try_from(at).expect("commands are cut off far below 4 GiB");
    Span {
        start: narrow(start),
        end: narrow(end),
    }
}

/// Why a command was not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooLarge {
    /// An argument of this many bytes.
    Argument(usize),
    /// The command as a whole.
    Command,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// A command.
    Command(Command),
    /// A command that was skipped.
    TooLarge {
        /// Its name, and its first argument if that was kept.
        start: Command,
        /// How many parts it had.
        parts: usize,
        /// Why.
        why: TooLarge,
    },
}

/// The stream cannot be understood from here on. The text is Redis's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// An inline command is longer than a line may be.
    LongInline,
    /// The line with the number of arguments is longer than a line may be.
    LongCount,
    /// The line with the length of an argument is longer than a line may be.
    LongLength,
    /// Not a number, or too many arguments.
    BadCount,
    /// Not a number, or too long an argument.
    BadLength,
    /// Quotes of an inline command do not close.
    Quotes,
    /// An argument does not begin with `$` but with this.
    Expected(u8),
    /// More arguments than a command may have before a login.
    StrangerCount,
    /// A longer argument than a command may have before a login.
    StrangerLength,
}

impl ProtocolError {
    /// The text that Redis sends before it closes the connection.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let what: &[u8] = match self {
            Self::LongInline => b"too big inline request",
            Self::LongCount => b"too big mbulk count string",
            Self::LongLength => b"too big bulk count string",
            Self::BadCount => b"invalid multibulk length",
            Self::BadLength => b"invalid bulk length",
            Self::StrangerCount => b"unauthenticated multibulk length",
            Self::StrangerLength => b"unauthenticated bulk length",
            Self::Quotes => b"unbalanced quotes in request",
            Self::Expected(got) => {
                return [
                    b"ERR Protocol error: expected '$', got '",
                    &[*got][..],
                    b"'",
                ]
                .concat();
            }
        };
        [b"ERR Protocol error: ", what].concat()
    }
}

/// A command that is being skipped.
#[derive(Debug)]
struct Skip {
    start: Command,
    parts: usize,
    why: TooLarge,
    /// Bytes of the current argument, with its line end, that have not arrived.
    left: usize,
}

/// Most arguments of a command before a login, as in Redis.
const STRANGER_ARGUMENTS_MAX: usize = 10;
/// Longest argument before a login, as in Redis.
const STRANGER_BULK_MAX: usize = 16 << 10;

/// The state between two reads.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// Whether the peer has to log in first.
    is_of_stranger: bool,
    /// Where in the input the next header or argument of the current command begins.
    at: usize,
    /// Bytes after `at` that are known not to end the line.
    scanned: usize,
    /// Arguments still to come.
    left: usize,
    /// The announced length of the argument at `at`.
    length: Option<usize>,
    spans: Spans,
    skip: Option<Skip>,
}

impl Parser {
    /// A parser at the beginning of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            is_of_stranger: false,
            at: 0,
            scanned: 0,
            left: 0,
            length: None,
            spans: Spans::new(),
            skip: None,
        }
    }

    /// Says whether the peer has to log in first: its commands have to be small then (PARSE-5).
    pub fn set_stranger(&mut self, is_of_stranger: bool) {
        self.is_of_stranger = is_of_stranger;
    }

    /// Whether the stream is between two commands.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.left == 0
    }

    /// Takes the next command from the front of `input`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// See [`ProtocolError`].
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Parsed>, ProtocolError> {
        while self.left == 0 {
            match input.first() {
                None => return Ok(None),
                Some(b'*') => match self.count(input)? {
                    None => return Ok(None),
                    Some(0) => {
                        input.advance(self.at);
                        self.at = 0;
                    }
                    Some(count) => {
                        self.left = count;
                        self.spans = Spans::with_capacity(count.min(8));
                    }
                },
                Some(_) => match self.inline(input)? {
                    None => return Ok(None),
                    Some(parts) if parts.is_empty() => {}
                    Some(parts) => return Ok(Some(Parsed::Command(Command::from_parts(&parts)))),
                },
            }
        }
        while self.left > 0 {
            let length = match self.length {
                Some(length) => length,
                None => match self.bulk_length(input)? {
                    None => return Ok(None),
                    Some(length) => length,
                },
            };
            self.length = Some(length);
            if !self.argument(input, length) {
                return Ok(None);
            }
            self.length = None;
            self.left -= 1;
        }
        Ok(Some(self.finish(input)))
    }

    /// Takes the argument at `at`; whether all of it was there.
    fn argument(&mut self, input: &mut BytesMut, length: usize) -> bool {
        if let Some(skip) = &mut self.skip {
            let gone = skip.left.min(input.len());
            input.advance(gone);
            skip.left -= gone;
            return skip.left == 0;
        }
        // The two bytes behind an argument are taken for a line end without a look, as Redis does.
        let end = self.at + length;
        if input.len() < end + 2 {
            return false;
        }
        self.spans.push(span(self.at, end));
        self.at = end + 2;
        true
    }

    fn finish(&mut self, input: &mut BytesMut) -> Parsed {
        if let Some(skip) = self.skip.take() {
            return Parsed::TooLarge {
                start: skip.start,
                parts: skip.parts,
                why: skip.why,
            };
        }
        let bytes = input.split_to(self.at).freeze();
        self.at = 0;
        Parsed::Command(Command {
            bytes,
            spans: core::mem::take(&mut self.spans),
        })
    }

    /// From here on the command is skipped.
    fn start_skip(&mut self, input: &mut BytesMut, why: TooLarge) {
        let kept = self.spans.iter().take(2);
        let start: Vec<&[u8]> = kept
            .map(|s| &input[s.start as usize..s.end as usize])
            .collect();
        let start = if start.is_empty() {
            Command::from_parts(&[b""])
        } else {
            Command::from_parts(&start)
        };
        self.skip = Some(Skip {
            start,
            parts: self.spans.len() + self.left,
            why,
            left: 0,
        });
        self.spans = Spans::new();
        input.advance(self.at);
        self.at = 0;
    }

    /// The line at `at`, without its first byte and its end, and where it ends.
    fn line<'a>(
        &mut self,
        input: &'a [u8],
        too_long: ProtocolError,
    ) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
        let rest = &input[self.at..];
        let found = rest[self.scanned..].iter().position(|b| *b == b'\r');
        let Some(end) = found.map(|n| n + self.scanned) else {
            if rest.len() > self.limits.line_bytes_max {
                return Err(too_long);
            }
            self.scanned = rest.len();
            return Ok(None);
        };
        if end > self.limits.line_bytes_max {
            return Err(too_long);
        }
        self.scanned = end;
        if rest.len() < end + 2 {
            return Ok(None);
        }
        self.scanned = 0;
        Ok(Some((&rest[1.min(end)..end], self.at + end + 2)))
    }

    /// The number of arguments of the command that begins here.
    fn count(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some((digits, next)) = self.line(input, ProtocolError::LongCount)? else {
            return Ok(None);
        };
        let count = integer(digits).ok_or(ProtocolError::BadCount)?;
        self.at = next;
        match usize::try_from(count) {
            Ok(count) if count > self.limits.arguments_max => Err(ProtocolError::BadCount),
            Ok(count) if self.is_of_stranger && count > STRANGER_ARGUMENTS_MAX => {
                Err(ProtocolError::StrangerCount)
            }
            Ok(count) => Ok(Some(count)),
            // Redis takes a negative count for an empty command.
            Err(_) => Ok(Some(0)),
        }
    }

    /// The length of the argument that begins here; starts to skip when it is too large.
    fn bulk_length(&mut self, input: &mut BytesMut) -> Result<Option<usize>, ProtocolError> {
        let Some((digits, next)) = self.line(input, ProtocolError::LongLength)? else {
            return Ok(None);
        };
        if input[self.at] != b'$' {
            return Err(ProtocolError::Expected(input[self.at]));
        }
        let length = integer(digits)
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| *n <= self.limits.bulk_bytes_max)
            .ok_or(ProtocolError::BadLength)?;
        if self.is_of_stranger && length > STRANGER_BULK_MAX {
            return Err(ProtocolError::StrangerLength);
        }
        self.at = next;
        if self.skip.is_none() {
            let held = self.at + length + (self.spans.len() + 1) * size_of::<Span>();
            let is_long = length > self.limits.argument_bytes_max;
            if is_long && length > self.longest_argument(input) {
                self.start_skip(input, TooLarge::Argument(length));
            } else if held > self.limits.command_bytes_max {
                self.start_skip(input, TooLarge::Command);
            }
        } else {
            input.advance(self.at);
            self.at = 0;
        }
        if let Some(skip) = &mut self.skip {
            skip.left = length + 2;
        }
        Ok(Some(length))
    }

    /// Most bytes of the next argument: those of a value, and of what DUMP wraps it in.
    fn longest_argument(&self, input: &BytesMut) -> usize {
        let name = self.spans.first();
        let name = name.map(|span| &input[span.start as usize..span.end as usize]);
        let is_restore = name.is_some_and(|name| {
            let names: [&[u8]; 2] = [b"restore", b"restore-asking"];
            names.iter().any(|known| name.eq_ignore_ascii_case(known))
        });
        let wrapping = if is_restore { PAYLOAD_OVERHEAD } else { 0 };
        self.limits.argument_bytes_max.saturating_add(wrapping)
    }

    /// The inline command that begins here.
    fn inline(&mut self, input: &mut BytesMut) -> Result<Option<Vec<Vec<u8>>>, ProtocolError> {
        let found = input[self.scanned..].iter().position(|b| *b == b'\n');
        let Some(end) = found.map(|n| n + self.scanned) else {
            if input.len() > self.limits.line_bytes_max {
                return Err(ProtocolError::LongInline);
            }
            self.scanned = input.len();
            return Ok(None);
        };
        if end > self.limits.line_bytes_max {
            return Err(ProtocolError::LongInline);
        }
        self.scanned = 0;
        let line = input.split_to(end + 1);
        let line = &line[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        split_words(line).map(Some).ok_or(ProtocolError::Quotes)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Splits a line into words as a shell would: `"..."` knows `\n \r \t \b \a \xHH` and `\` before
/// any other byte, `'...'` only `\'`. `None` when quotes do not close, or something other than a
/// blank follows them.
#[must_use]
pub fn split_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && is_space(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        loop {
            match rest {
                [] => break,
                [b' ' | b'\n' | b'\r' | b'\t', ..] => break,
                [quote @ (b'"' | b'\''), tail @ ..] => {
                    rest = quoted(tail, *quote, &mut word)?;
                    if rest.first().is_some_and(|b| !is_space(*b)) {
                        return None;
                    }
                    break;
                }
                [byte, tail @ ..] => {
                    word.push(*byte);
                    rest = tail;
                }
            }
        }
        words.push(word);
    }
}

/// Reads up to the closing quote; gives the bytes behind it.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let hex = |digit: u8| char::from(digit).to_digit(16);
    loop {
        rest = match rest {
            [] => return None,
            [end, tail @ ..] if *end == quote => return Some(tail),
            [b'\\', b'\'', tail @ ..] if quote == b'\'' => {
                word.push(b'\'');
                tail
            }
            [b'\\', b'x', high, low, tail @ ..]
                if quote == b'"' && hex(*high).is_some() && hex(*low).is_some() =>
            {
                let digits = [hex(*high), hex(*low)].map(|d| d.unwrap_or(0));
                word.push(u8::try_from(digits[0] * 16 + digits[1]).expect("two hex digits"));
                tail
            }
            [b'\\', escaped, tail @ ..] if quote == b'"' => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                tail
            }
            [byte, tail @ ..] => {
                word.push(*byte);
                tail
            }
        };
    }
}
