//! An RDB file, read once from its beginning to its end.
//!
//! ```text
//!  REDIS0011 │ records …                                          │ 255 │ CRC-64, 8 bytes
//!  VALKEY080 │ a byte that says which, and what belongs to it     │     │ of all before it
//! ```
//!
//! A record whose first byte is below 242 is an object: its type, its key, its value. Others say
//! what is true of the records behind them, such as the database, or of the next object, such as
//! its deadline.
//!
//! - RDB-3: reading is total. Any bytes give objects or an error that names a place, and no panic.
//! - RDB-4: memory is bounded whatever the file says: texts longer than [`VALUE_MAX`] are passed
//!   over, and shorter ones cost memory as they arrive.

use crate::aof::Log;
use crate::crc64::Crc64;
pub use crate::pass::Kind;
use crate::pass::{Dialect, Passing, layout, pass_module, pass_over};
use crate::payload::{OPCODE_FUNCTION, OPCODE_FUNCTION_EARLY, TYPE_STRING};
use crate::string::{Coded, Source, text, unpack};
use bytes::Bytes;
use pluvio_units::VALUE_MAX;
use std::io::{self, BufRead, BufReader, Read};

/// Redis up to 8.6 writes this version or an earlier one.
const REDIS_VERSION_MAX: u16 = 13;
/// Valkey 9 writes this version; earlier ones write as Redis 7.2 does.
const VALKEY_VERSION: u16 = 80;
/// The first version with a checksum at the end.
const SUMMED_VERSION: u16 = 5;
/// Bytes read at a time.
const BUFFER_BYTES: usize = 256 << 10;

const TYPE_MODULE_EARLY: u8 = 6;
const OPCODES: u8 = 242;
const OPCODE_SLOT_INFO: u8 = 244;
const OPCODE_MODULE_AUX: u8 = 247;
const OPCODE_IDLE: u8 = 248;
const OPCODE_FREQ: u8 = 249;
pub(crate) const OPCODE_AUX: u8 = 250;
pub(crate) const OPCODE_RESIZE: u8 = 251;
pub(crate) const OPCODE_EXPIRE_MS: u8 = 252;
const OPCODE_EXPIRE_S: u8 = 253;
pub(crate) const OPCODE_SELECT: u8 = 254;
pub(crate) const OPCODE_END: u8 = 255;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("byte {at}: {why}")]
pub struct Error {
    /// The number of the byte, from 0, behind which nothing could be read.
    pub at: u64,
    /// What is wrong there.
    pub why: Why,
}

/// What is wrong with a file. None of these goes away by trying again, but perhaps the first.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The system gave an error.
    #[error("cannot read on: {0}")]
    Io(io::Error),
    /// The file ends where it must not.
    #[error("the file is cut off")]
    Cut,
    /// It begins like no RDB file.
    #[error("this is no RDB file: it begins neither with REDIS nor with VALKEY")]
    NoRdb,
    /// Its version is not known.
    #[error(
        "the file has the RDB version {0}; known are 1 to {redis} (Redis up to 8.6), and {valkey} \
         with VALKEY (Valkey 9)",
        redis = REDIS_VERSION_MAX,
        valkey = VALKEY_VERSION
    )]
    Version(String),
    /// No command of an append-only file begins so.
    #[error("no command of an append-only file begins here; the file is damaged")]
    NoCommand,
    /// Neither a length nor a string begins so.
    #[error("neither a length nor a string begins so; the file is damaged")]
    Nonsense,
    /// A packed string gives something else than its length says.
    #[error("a compressed string cannot be unpacked; the file is damaged")]
    Packed,
    /// A record begins with a byte that is not known.
    #[error("a record of type {0} is not known, so nothing behind it can be read")]
    Record(u8),
    /// A library or a module's value of a release candidate of Redis.
    #[error("{0} of a release candidate of Redis cannot be read")]
    Early(&'static str),
    /// Commands follow, as in append-only files, or another file.
    #[error("more bytes follow the end, as in an append-only file")]
    More,
    /// The checksum is that of other bytes.
    #[error("the checksum is wrong: the file is damaged")]
    Checksum,
}

/// A string of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Text {
    /// All of it.
    Whole(Bytes),
    /// It has this many bytes, more than [`VALUE_MAX`], and was passed over.
    TooLong(u64),
}

/// The value of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A string.
    String(Text),
    /// Something else, which was passed over.
    Other(Kind),
}

/// An object of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// The number of the byte at which it begins.
    pub at: u64,
    /// The number of its database. Files may have any.
    pub database: u64,
    /// Its key.
    pub key: Text,
    /// Its value.
    pub value: Value,
    /// When it expires, in milliseconds since 1970; files may have any number.
    pub expires_at_ms: Option<i64>,
}

/// What a file has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// An object.
    Object(Object),
    /// The source of a library of functions.
    Library(Text),
    /// Data of this module that belong to no key. They were passed over.
    ModuleData(String),
}

/// Reads a file.
#[derive(Debug)]
pub struct Reader<R> {
    input: BufReader<R>,
    at: u64,
    sum: Crc64,
    dialect: Dialect,
    version: u16,
    database: u64,
    is_at_end: bool,
    /// Whether commands may stand behind the end.
    may_have_more: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the head of a file.
    ///
    /// # Errors
    /// It is no RDB file, or one of a version that is not known.
    pub fn new(input: R) -> Result<Self, Error> {
        let mut reader = Self {
            input: BufReader::with_capacity(BUFFER_BYTES, input),
            at: 0,
            sum: Crc64::default(),
            dialect: Dialect::Redis,
            version: 0,
            database: 0,
            is_at_end: false,
            may_have_more: false,
        };
        let head: [u8; 9] = reader.array()?;
        let (dialect, digits) = if let Some(digits) = head.strip_prefix(b"REDIS") {
            (Dialect::Redis, digits)
        } else if let Some(digits) = head.strip_prefix(b"VALKEY") {
            (Dialect::Valkey, digits)
        } else {
            return Err(Error {
                at: 0,
                why: Why::NoRdb,
            });
        };
        let digits = String::from_utf8_lossy(digits);
        let is_known = |version: &u16| match dialect {
            Dialect::Redis => (1..=REDIS_VERSION_MAX).contains(version),
            Dialect::Valkey => *version == VALKEY_VERSION,
        };
        match digits.parse().ok().filter(is_known) {
            Some(version) => {
                (reader.dialect, reader.version) = (dialect, version);
                Ok(reader)
            }
            None => Err(reader.error(Why::Version(digits.into_owned()))),
        }
    }

    /// Reads the head of an append-only file that begins with an RDB file.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn before_commands(input: R) -> Result<Self, Error> {
        let reader = Self::new(input)?;
        Ok(Self {
            may_have_more: true,
            ..reader
        })
    }

    /// The commands behind the end, which was read.
    pub fn into_commands(self) -> Log<R> {
        Log::behind(self.input, self.at)
    }

    /// The next thing that the file has. `None` at its end, when the checksum was right.
    ///
    /// # Errors
    /// Nothing can be read from here on.
    pub fn next_item(&mut self) -> Result<Option<Item>, Error> {
        let mut expires_at_ms = None;
        while !self.is_at_end {
            let at = self.at;
            match self.byte()? {
                OPCODE_END => self.end()?,
                OPCODE_SELECT => self.database = self.length()?,
                OPCODE_RESIZE => {
                    self.length()?;
                    self.length()?;
                }
                OPCODE_SLOT_INFO => {
                    for _ in 0..3 {
                        self.length()?;
                    }
                }
                OPCODE_AUX => {
                    self.pass_string()?;
                    self.pass_string()?;
                }
                OPCODE_EXPIRE_MS => expires_at_ms = Some(i64::from_le_bytes(self.array()?)),
                OPCODE_EXPIRE_S => {
                    let second = i32::from_le_bytes(self.array()?);
                    expires_at_ms = Some(i64::from(second) * 1000);
                }
                OPCODE_IDLE => {
                    self.length()?;
                }
                OPCODE_FREQ => {
                    self.byte()?;
                }
                OPCODE_FUNCTION => return self.string().map(Item::Library).map(Some),
                OPCODE_FUNCTION_EARLY => return Err(self.error(Why::Early("a library"))),
                OPCODE_MODULE_AUX => return self.module_data().map(Some),
                number if number < OPCODES => {
                    let (key, value) = self.object(number)?;
                    return Ok(Some(Item::Object(Object {
                        at,
                        database: self.database,
                        key,
                        value,
                        expires_at_ms,
                    })));
                }
                number => return Err(Error::new(at, Why::Record(number))),
            }
        }
        Ok(None)
    }

    fn object(&mut self, number: u8) -> Result<(Text, Value), Error> {
        let at = self.at - 1;
        if number == TYPE_MODULE_EARLY {
            return Err(self.error(Why::Early("a module's value")));
        }
        let layout = layout(number, self.dialect);
        if number != TYPE_STRING && layout.is_none() {
            return Err(Error::new(at, Why::Record(number)));
        }
        let key = self.string()?;
        let value = match layout {
            None => Value::String(self.string()?),
            Some((kind, layout)) => {
                pass_over(self, layout)?;
                Value::Other(kind)
            }
        };
        Ok((key, value))
    }

    fn module_data(&mut self) -> Result<Item, Error> {
        let name = module_name(self.length()?);
        // When it was saved: a mark and a number, as the parts that follow.
        pass_module(self)?;
        Ok(Item::ModuleData(name))
    }

    /// The end: the checksum, and nothing behind it. Eight zeros mean that the file was written
    /// without one.
    fn end(&mut self) -> Result<(), Error> {
        self.is_at_end = true;
        if self.version >= SUMMED_VERSION {
            let sum = self.sum.get();
            let found = u64::from_le_bytes(self.array()?);
            if found != sum && found != 0 {
                return Err(self.error(Why::Checksum));
            }
        }
        match self.input.fill_buf() {
            Ok(_) if self.may_have_more => Ok(()),
            Ok([]) => Ok(()),
            Ok(_) => Err(self.error(Why::More)),
            Err(error) => Err(self.error(Why::Io(error))),
        }
    }

    fn string(&mut self) -> Result<Text, Error> {
        let max = VALUE_MAX as u64;
        match self.coded()? {
            Coded::Integer(number) => Ok(Text::Whole(text(number))),
            Coded::Plain(length) if length > max => {
                self.pass(length)?;
                Ok(Text::TooLong(length))
            }
            Coded::Plain(length) => self.take(length).map(|text| Text::Whole(text.into())),
            Coded::Packed { packed, length } if length > max => {
                self.pass(packed)?;
                Ok(Text::TooLong(length))
            }
            // Redis packs a string only where that makes it shorter.
            Coded::Packed { packed, .. } if packed > max => Err(self.error(Why::Packed)),
            Coded::Packed { packed, length } => {
                let packed = self.take(packed)?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                match unpack(&packed, length) {
                    Some(text) => Ok(Text::Whole(text.into())),
                    None => Err(self.error(Why::Packed)),
                }
            }
        }
    }

    /// At most [`VALUE_MAX`] bytes.
    fn take(&mut self, length: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(length).read_to_end(&mut bytes);
        self.at += bytes.len() as u64;
        self.sum.add(&bytes);
        match read {
            Ok(_) if bytes.len() as u64 == length => Ok(bytes),
            Ok(_) => Err(self.error(Why::Cut)),
            Err(error) => Err(self.error(Why::Io(error))),
        }
    }

    fn error(&self, why: Why) -> Error {
        Error::new(self.at, why)
    }
}

impl Error {
    fn new(at: u64, why: Why) -> Self {
        Self { at, why }
    }
}

impl<R: Read> Source for Reader<R> {
    type Error = Error;

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => {
                self.at += N as u64;
                self.sum.add(&bytes);
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.error(Why::Cut)),
            Err(error) => Err(self.error(Why::Io(error))),
        }
    }

    fn nonsense(&self) -> Error {
        self.error(Why::Nonsense)
    }
}

impl<R: Read> Passing for Reader<R> {
    fn pass(&mut self, mut bytes: u64) -> Result<(), Error> {
        while bytes > 0 {
            let there = match self.input.fill_buf() {
                Ok([]) => return Err(self.error(Why::Cut)),
                Ok(there) => there,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.error(Why::Io(error))),
            };
            let count = usize::try_from(bytes).unwrap_or(usize::MAX);
            let count = count.min(there.len());
            self.sum.add(&there[..count]);
            self.input.consume(count);
            self.at += count as u64;
            bytes -= count as u64;
        }
        Ok(())
    }

    fn pass_string(&mut self) -> Result<(), Error> {
        match self.coded()? {
            Coded::Integer(_) => Ok(()),
            Coded::Plain(length) => self.pass(length),
            Coded::Packed { packed, .. } => self.pass(packed),
        }
    }
}

/// The name in a module's number: nine characters of six bits, above ten bits of a version.
fn module_name(number: u64) -> String {
    const CHARACTERS: &[u8; 64] =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let character = |n: u64| {
        let at = number >> (10 + 6 * (8 - n)) & 63;
        char::from(CHARACTERS[usize::try_from(at).unwrap_or(0)])
    };
    (0..9).map(character).collect()
}
