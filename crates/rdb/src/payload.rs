//! The bytes of DUMP and RESTORE: a string in the encoding of Redis's RDB files, and a footer.
//!
//! ```text
//!  type 0 │ string                                     │ version, 2 bytes │ CRC-64, 8 bytes
//!         │ length, bytes │ or a small integer, or LZF │ little endian    │ of all before it
//! ```
//!
//! FUNCTION DUMP and RESTORE have any number of libraries, and the same footer. The source of each
//! is a string behind the opcode 245, which stands in place of the type.
//!
//! Lengths in a payload are claims (RDB-1).
//!
//! - RDB-2: the sources of a payload are unpacked one by one, so that its reader can stop. A packed
//!   one may grow by a factor of 88.
//!
//! Not here: other types than strings.

use crate::crc64::Crc64;
use crate::string::{Coded, Source, push_length, push_string, text, unpack};
use bytes::Bytes;
use pluvio_units::VALUE_MAX;

/// The version that DUMP writes: the one of Redis 5 and later. Strings are the same in all of them.
const VERSION: u16 = 9;
/// The version that FUNCTION DUMP writes: the one of Redis 7.0, the first with libraries.
const FUNCTIONS_VERSION: u16 = 10;
/// The versions that RESTORE takes: those of Redis up to 8, and that of Valkey 9.
const VERSIONS: [core::ops::RangeInclusive<u16>; 2] = [1..=13, 80..=80];
/// Version and checksum.
const FOOTER_BYTES: usize = 10;
/// Bytes of a payload beside the encoded string: its type and footer.
pub const FRAME_BYTES: usize = 1 + FOOTER_BYTES;
/// The type of strings.
pub(crate) const TYPE_STRING: u8 = 0;
/// What stands before the source of a library.
pub(crate) const OPCODE_FUNCTION: u8 = 245;
/// What release candidates of Redis 7.0 wrote instead.
pub(crate) const OPCODE_FUNCTION_EARLY: u8 = 246;
/// Why a payload is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// Its version is not known, or the checksum is another.
    Footer,
    /// It holds no string in a known encoding.
    Format,
    /// Its value is longer than values may be.
    TooLong,
}

/// The payload of a value.
pub fn dump(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 16);
    out.push(TYPE_STRING);
    push_string(value, &mut out);
    close(out, VERSION)
}

/// The payload of libraries.
pub fn dump_functions<'s>(sources: impl Iterator<Item = &'s [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources {
        out.push(OPCODE_FUNCTION);
        push_length(source.len() as u64, &mut out);
        out.extend_from_slice(source);
    }
    close(out, FUNCTIONS_VERSION)
}

/// Appends the footer.
fn close(mut out: Vec<u8>, version: u16) -> Vec<u8> {
    out.extend_from_slice(&version.to_le_bytes());
    let sum = Crc64::of(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The value of a payload. Bytes behind the string are passed over, as in Redis.
///
/// # Errors
/// It is none of a string.
pub fn restore(payload: &Bytes) -> Result<Bytes, Bad> {
    let mut input = Input::of(payload)?;
    match input.byte()? {
        TYPE_STRING => input.string(),
        _ => Err(Bad::Format),
    }
}

/// Why a payload of libraries is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadFunctions {
    /// It has something else where a library should begin.
    NoFunction,
    /// It has a library of a release candidate of Redis 7.0.
    TooEarly,
    /// The source of a library is no string in a known encoding.
    Format,
    /// The source of a library is longer than values may be.
    TooLong,
}

/// Reads the sources of libraries from a payload.
pub struct Functions(Input);

impl Functions {
    /// Of a payload whose footer is right.
    ///
    /// # Errors
    /// [`Bad::Footer`].
    pub fn of(payload: &Bytes) -> Result<Self, Bad> {
        Input::of(payload).map(Self)
    }

    /// The next source (RDB-2).
    ///
    /// # Errors
    /// The payload makes no sense from here on.
    pub fn next_source(&mut self) -> Result<Option<Bytes>, BadFunctions> {
        let Ok(opcode) = self.0.byte() else {
            return Ok(None);
        };
        match opcode {
            OPCODE_FUNCTION => self.0.string().map(Some).map_err(|bad| match bad {
                Bad::TooLong => BadFunctions::TooLong,
                Bad::Footer | Bad::Format => BadFunctions::Format,
            }),
            OPCODE_FUNCTION_EARLY => Err(BadFunctions::TooEarly),
            _ => Err(BadFunctions::NoFunction),
        }
    }
}

/// The payload without its footer.
///
/// # Errors
/// [`Bad::Footer`].
fn open(payload: &Bytes) -> Result<Bytes, Bad> {
    let end = payload.len().checked_sub(FOOTER_BYTES).ok_or(Bad::Footer)?;
    let (version, sum) = payload[end..].split_at(2);
    let version = u16::from_le_bytes(version.try_into().map_err(|_| Bad::Footer)?);
    let sum = u64::from_le_bytes(sum.try_into().map_err(|_| Bad::Footer)?);
    let is_known = VERSIONS.iter().any(|versions| versions.contains(&version));
    if !is_known || Crc64::of(&payload[..end + 2]) != sum {
        return Err(Bad::Footer);
    }
    Ok(payload.slice(..end))
}

struct Input {
    bytes: Bytes,
    at: usize,
}

impl Input {
    fn of(payload: &Bytes) -> Result<Self, Bad> {
        let bytes = open(payload)?;
        Ok(Self { bytes, at: 0 })
    }

    fn take(&mut self, length: u64) -> Result<Bytes, Bad> {
        let length = usize::try_from(length).map_err(|_| Bad::Format)?;
        let end = self.at.checked_add(length).ok_or(Bad::Format)?;
        if end > self.bytes.len() {
            return Err(Bad::Format);
        }
        let bytes = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(bytes)
    }

    fn string(&mut self) -> Result<Bytes, Bad> {
        match self.coded()? {
            Coded::Integer(number) => Ok(text(number)),
            Coded::Plain(length) => {
                let value = self.take(length)?;
                match value.len() <= VALUE_MAX {
                    true => Ok(value),
                    false => Err(Bad::TooLong),
                }
            }
            Coded::Packed { packed, length } => {
                let packed = self.take(packed)?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if length > VALUE_MAX {
                    return Err(Bad::TooLong);
                }
                unpack(&packed, length).map(Bytes::from).ok_or(Bad::Format)
            }
        }
    }
}

impl Source for Input {
    type Error = Bad;

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let bytes = self.bytes[self.at..].first_chunk().ok_or(Bad::Format)?;
        self.at += N;
        Ok(*bytes)
    }

    fn nonsense(&self) -> Bad {
        Bad::Format
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn payload(body: &[u8]) -> Bytes {
        close(body.to_vec(), 11).into()
    }

    fn functions(payload: &Bytes) -> Result<Vec<Bytes>, BadFunctions> {
        let mut functions = Functions::of(payload).expect("its footer is right");
        let mut all = Vec::new();
        while let Some(source) = functions.next_source()? {
            all.push(source);
        }
        Ok(all)
    }

    #[test]
    fn integers_are_kept_as_such() {
        for (text, body) in [
            ("0", &b"\0\xc0\0"[..]),
            ("-128", b"\0\xc0\x80"),
            ("128", b"\0\xc1\x80\0"),
            ("-32769", b"\0\xc2\xff\x7f\xff\xff"),
            ("2147483648", b"\0\x0a2147483648"),
            ("01", b"\0\x0201"),
        ] {
            let payload = dump(text.as_bytes());
            assert_eq!(&payload[..payload.len() - FOOTER_BYTES], body, "{text}");
            assert_eq!(restore(&payload.into()), Ok(Bytes::from(text)));
        }
    }

    #[test]
    fn long_values_survive() {
        for length in [0, 1, 63, 64, 0x3fff, 0x4000, 70_000, VALUE_MAX] {
            let value = Bytes::from(vec![b'v'; length]);
            assert_eq!(restore(&dump(&value).into()), Ok(value));
        }
    }

    // shows: RDB-1
    #[test]
    fn hostile_payloads_are_refused() {
        let good: Bytes = dump(b"value").into();
        for cut in 0..good.len() {
            assert_eq!(restore(&good.slice(..cut)), Err(Bad::Footer), "{cut}");
        }
        let far = [&b"\0"[..], b"\x81", &u64::MAX.to_be_bytes()].concat();
        let bomb = [
            &b"\0\xc3\x02\x80"[..],
            &(1_u32 << 20).to_be_bytes(),
            b"\xff\xff",
        ]
        .concat();
        let too_long = [&b"\0\xc3\x02\x80"[..], &u32::MAX.to_be_bytes(), b"\xff\xff"].concat();
        for (body, why) in [
            (&b""[..], Bad::Format),
            (b"\x01\x00", Bad::Format),
            (b"\0", Bad::Format),
            (b"\0\x05abc", Bad::Format),
            (b"\0\x82aaaa", Bad::Format),
            (b"\0\xc2aa", Bad::Format),
            (b"\0\xc4a", Bad::Format),
            (&far, Bad::Format),
            (&bomb, Bad::Format),
            (&too_long, Bad::TooLong),
            // A reference to before the start.
            (b"\0\xc3\x02\x03\x20\x00", Bad::Format),
            // More and fewer bytes than announced.
            (b"\0\xc3\x02\x00\x00a", Bad::Format),
            (b"\0\xc3\x02\x02\x00a", Bad::Format),
        ] {
            assert_eq!(restore(&payload(body)), Err(why), "{body:?}");
        }
        let packed = payload(b"\0\xc3\x05\x0a\x00a\xe0\x00\x00");
        assert_eq!(restore(&packed), Ok(Bytes::from("aaaaaaaaaa")));
    }

    #[test]
    fn payloads_of_libraries_are_those_of_redis() {
        // What redis-server 7.0 gave.
        let source = b"#!lua name=a\nredis.register_function('f', function(k,a) return 1 end)";
        let theirs = [
            b"\xf5\x40\x45",
            &source[..],
            b"\n\0Q\xc6\xe8\r\x1d\x1e\xcb\xe8",
        ]
        .concat();
        assert_eq!(dump_functions([&source[..]].into_iter()), theirs);
        assert_eq!(
            dump_functions([].into_iter()),
            b"\n\0]\x9b\\@\x0f\x7f\xa2\xda"
        );
        let sources = functions(&theirs.into());
        assert_eq!(sources, Ok(vec![Bytes::from_static(source)]));
    }

    // shows: RDB-2
    #[test]
    fn sources_are_unpacked_one_by_one() {
        let bad = b"\xf5\x01a\xf5\x05ab";
        let mut input = Functions::of(&payload(bad)).expect("its footer is right");
        assert_eq!(input.next_source(), Ok(Some(Bytes::from("a"))));
        assert_eq!(input.next_source(), Err(BadFunctions::Format));
        for (body, why) in [
            (&b"\0\x01a"[..], BadFunctions::NoFunction),
            (b"\xf6\x01a", BadFunctions::TooEarly),
            (b"\xf5", BadFunctions::Format),
            (b"\xf5\x82a", BadFunctions::Format),
            (
                b"\xf5\x81\xff\xff\xff\xff\xff\xff\xff\xff",
                BadFunctions::Format,
            ),
            (
                b"\xf5\xc3\x02\x80\xff\xff\xff\xff\xff\xff",
                BadFunctions::TooLong,
            ),
        ] {
            assert_eq!(functions(&payload(body)), Err(why), "{body:?}");
        }
        assert_eq!(
            Functions::of(&Bytes::from("short")).err(),
            Some(Bad::Footer)
        );
    }

    proptest! {
        #[test]
        fn libraries_survive_the_round_trip(sources: Vec<Vec<u8>>) {
            let dumped = dump_functions(sources.iter().map(|source| &source[..]));
            let sources = sources.into_iter().map(Bytes::from).collect();
            prop_assert_eq!(functions(&dumped.into()), Ok(sources));
        }

        #[test]
        fn any_body_is_libraries_or_an_error(body: Vec<u8>) {
            let _ = functions(&payload(&[&[OPCODE_FUNCTION], &body[..]].concat()));
        }

        #[test]
        fn values_survive_the_round_trip(value: Vec<u8>) {
            prop_assert_eq!(restore(&dump(&value).into()), Ok(Bytes::from(value)));
        }

        #[test]
        fn any_body_is_a_value_or_an_error(body: Vec<u8>, packed: Vec<u8>, length in 0_u16..4096) {
            let _ = restore(&payload(&[&[0], &body[..]].concat()));
            if let Some(out) = unpack(&packed, usize::from(length)) {
                prop_assert_eq!(out.len(), usize::from(length));
            }
        }

        #[test]
        fn a_changed_byte_is_noticed(value: Vec<u8>, at: prop::sample::Index, by in 1_u8..) {
            let mut payload = dump(&value);
            let at = at.index(payload.len());
            payload[at] ^= by;
            prop_assert_eq!(restore(&payload.into()), Err(Bad::Footer));
        }
    }
}
