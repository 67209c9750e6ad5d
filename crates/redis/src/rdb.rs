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
//! The two upper bits of a string's first byte say what follows:
//!
//! | bits | meaning |
//! |---|---|
//! | 00 | a length in the six lower bits |
//! | 01 | a length in those and the next byte |
//! | 10 | 0x80: a length of 4 bytes, 0x81: of 8 bytes, big endian |
//! | 11 | 0xC0, 0xC1, 0xC2: an integer of 1, 2 or 4 bytes, little endian; 0xC3: LZF |
//!
//! - RDB-1: the lengths in a payload are compared with the bytes that are there, and with the
//!   longest value, before memory is taken for them.
//!
//! - RDB-2: the sources of a payload are unpacked one by one, so that its reader can stop. A packed
//!   one may grow by a factor of 88.
//!
//! Not here: other types than strings, and files.

use crate::number::{integer, push_integer};
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
pub(crate) const FRAME_BYTES: usize = 1 + FOOTER_BYTES;
/// The type of strings.
const TYPE_STRING: u8 = 0;
/// What stands before the source of a library.
const OPCODE_FUNCTION: u8 = 245;
/// What release candidates of Redis 7.0 wrote instead.
const OPCODE_FUNCTION_EARLY: u8 = 246;
/// Longest text that is looked at as an integer: `-2147483648`.
const INTEGER_TEXT_MAX: usize = 11;

/// Why a payload is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// Its version is not known, or the checksum is another.
    Footer,
    /// It holds no string in a known encoding.
    Format,
    /// Its value is longer than values may be.
    TooLong,
}

/// The payload of a value.
pub(crate) fn dump(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 16);
    out.push(TYPE_STRING);
    if !push_as_integer(value, &mut out) {
        push_length(value.len(), &mut out);
        out.extend_from_slice(value);
    }
    close(out, VERSION)
}

/// The payload of libraries.
pub(crate) fn dump_functions<'s>(sources: impl Iterator<Item = &'s [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources {
        out.push(OPCODE_FUNCTION);
        push_length(source.len(), &mut out);
        out.extend_from_slice(source);
    }
    close(out, FUNCTIONS_VERSION)
}

/// Appends the footer.
fn close(mut out: Vec<u8>, version: u16) -> Vec<u8> {
    out.extend_from_slice(&version.to_le_bytes());
    let sum = crc64(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

fn push_as_integer(value: &[u8], out: &mut Vec<u8>) -> bool {
    let small = (value.len() <= INTEGER_TEXT_MAX).then(|| integer(value));
    let Some(number) = small.flatten() else {
        return false;
    };
    if let Ok(number) = i8::try_from(number) {
        out.push(0xc0);
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        out.push(0xc1);
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(0xc2);
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        return false;
    }
    true
}

fn push_length(length: usize, out: &mut Vec<u8>) {
    let wide = length as u64;
    if let Ok(short @ ..64) = u8::try_from(length) {
        out.push(short);
    } else if let Ok(middle @ ..0x4000) = u16::try_from(length) {
        out.extend_from_slice(&(middle | 0x4000).to_be_bytes());
    } else if let Ok(long) = u32::try_from(wide) {
        out.push(0x80);
        out.extend_from_slice(&long.to_be_bytes());
    } else {
        out.push(0x81);
        out.extend_from_slice(&wide.to_be_bytes());
    }
}

/// The value of a payload. Bytes behind the string are passed over, as in Redis.
///
/// # Errors
/// It is none of a string.
pub(crate) fn restore(payload: &Bytes) -> Result<Bytes, Bad> {
    let mut input = Input::of(payload)?;
    match input.byte()? {
        TYPE_STRING => input.string(),
        _ => Err(Bad::Format),
    }
}

/// Why a payload of libraries is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadFunctions {
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
pub(crate) struct Functions(Input);

impl Functions {
    /// Of a payload whose footer is right.
    ///
    /// # Errors
    /// [`Bad::Footer`].
    pub(crate) fn of(payload: &Bytes) -> Result<Self, Bad> {
        Input::of(payload).map(Self)
    }

    /// The next source (RDB-2).
    ///
    /// # Errors
    /// The payload makes no sense from here on.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, BadFunctions> {
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
    if !is_known || crc64(&payload[..end + 2]) != sum {
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

    fn byte(&mut self) -> Result<u8, Bad> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let bytes = self.bytes[self.at..].first_chunk().ok_or(Bad::Format)?;
        self.at += N;
        Ok(*bytes)
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

    /// A length whose first byte was read.
    fn length(&mut self, first: u8) -> Result<u64, Bad> {
        Ok(match first {
            0..0x40 => u64::from(first),
            0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(self.byte()?),
            0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            0x81 => u64::from_be_bytes(self.array()?),
            0x82.. => return Err(Bad::Format),
        })
    }

    fn next_length(&mut self) -> Result<u64, Bad> {
        let first = self.byte()?;
        self.length(first)
    }

    fn string(&mut self) -> Result<Bytes, Bad> {
        let number = match self.byte()? {
            0xc0 => i64::from(i8::from_le_bytes(self.array()?)),
            0xc1 => i64::from(i16::from_le_bytes(self.array()?)),
            0xc2 => i64::from(i32::from_le_bytes(self.array()?)),
            0xc3 => return self.compressed(),
            first => {
                let length = self.length(first)?;
                let value = self.take(length)?;
                return match value.len() <= VALUE_MAX {
                    true => Ok(value),
                    false => Err(Bad::TooLong),
                };
            }
        };
        let mut text = Vec::new();
        push_integer(&mut text, number);
        Ok(text.into())
    }

    fn compressed(&mut self) -> Result<Bytes, Bad> {
        let (packed, length) = (self.next_length()?, self.next_length()?);
        let packed = self.take(packed)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > VALUE_MAX {
            return Err(Bad::TooLong);
        }
        unpack(&packed, length).map(Bytes::from).ok_or(Bad::Format)
    }
}

/// Unpacks LZF: control bytes, each followed by literal bytes or by a reference to what was written
/// before. `None` if that makes no sense, or not `length` bytes.
fn unpack(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    // The longest reference makes 264 bytes of three (RDB-1).
    if length > packed.len().saturating_mul(264 / 3 + 1) {
        return None;
    }
    let mut out = Vec::with_capacity(length);
    let mut rest = packed;
    while let Some((&control, after)) = rest.split_first() {
        rest = after;
        let count = usize::from(control);
        if count < 32 {
            let (literal, after) = rest.split_at_checked(count + 1)?;
            out.extend_from_slice(literal);
            rest = after;
        } else {
            let mut copied = (count >> 5) + 2;
            if copied == 9 {
                let (&more, after) = rest.split_first()?;
                copied += usize::from(more);
                rest = after;
            }
            let (&low, after) = rest.split_first()?;
            rest = after;
            let back = ((count & 0x1f) << 8 | usize::from(low)) + 1;
            let start = out.len().checked_sub(back)?;
            if out.len() + copied > length {
                return None;
            }
            // The two may overlap: what was just written repeats itself.
            for at in start..start + copied {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

/// The polynomial of Redis's CRC-64 (Jones), its bits reversed.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// For each byte, and for its place among eight, what it adds to the sum.
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ POLYNOMIAL
            } else {
                sum >> 1
            };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut place = 1;
    while place < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[place - 1][byte];
            tables[place][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        place += 1;
    }
    tables
}

/// Redis's CRC-64, eight bytes a step.
fn crc64(bytes: &[u8]) -> u64 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut sum: u64 = 0;
    for eight in eights {
        sum ^= u64::from_le_bytes(*eight);
        let places = sum.to_le_bytes().into_iter().zip(TABLES.iter().rev());
        sum = places.fold(0, |sum, (byte, table)| sum ^ table[usize::from(byte)]);
    }
    for byte in rest {
        let [low, ..] = sum.to_le_bytes();
        sum = sum >> 8 ^ TABLES[0][usize::from(low ^ byte)];
    }
    sum
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
        while let Some(source) = functions.next()? {
            all.push(source);
        }
        Ok(all)
    }

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
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
        assert_eq!(input.next(), Ok(Some(Bytes::from("a"))));
        assert_eq!(input.next(), Err(BadFunctions::Format));
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
