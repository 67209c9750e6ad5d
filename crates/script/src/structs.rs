//! `struct`: values as the structures of C.
//!
//! `<` and `>` choose the byte order, `!n` alignment. Then come the fields:
//!
//! - `b B h H l L T i[n] I[n]`: whole numbers
//! - `f d`: numbers with a fraction
//! - `x`: a zero byte
//! - `s`: text up to a zero
//! - `c[n]`: `n` bytes; `c0`: as many as the number before says

use crate::arguments::{Arguments, number_of, of_c, raise, to_integer};
use crate::interpreter::Shared;
use crate::sandbox::library;
use mlua::{Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Largest size of a whole number. Bytes beyond 8 are zeros.
const SIZE_MAX: usize = 32;
/// Alignment of a lone `!`.
const ALIGN_DEFAULT: usize = 8;
/// Most results of a function, about as in Redis.
const RESULTS_MAX: usize = 7900;
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// A format that is being read.
struct Format<'f> {
    lua: &'f Lua,
    text: &'f [u8],
    at: usize,
    is_little: bool,
    align: usize,
}

impl<'f> Format<'f> {
    fn new(lua: &'f Lua, text: &'f [u8]) -> Self {
        Self {
            lua,
            text: of_c(text),
            at: 0,
            is_little: true,
            align: 1,
        }
    }

    /// The next letter, and the size that it stands for; 0 where it has none of its own.
    fn next(&mut self) -> mlua::Result<Option<(u8, usize)>> {
        let Some(&letter) = self.text.get(self.at) else {
            return Ok(None);
        };
        self.at += 1;
        let size = match letter {
            b'B' | b'b' | b'x' => 1,
            b'H' | b'h' => 2,
            b'L' | b'l' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number(1)?,
            b'i' | b'I' => {
                let size = self.number(4)?;
                if size > SIZE_MAX {
                    let why = "integral size";
                    let text = format!("{why} {size} is larger than limit of {SIZE_MAX}");
                    return Err(raise(self.lua, &text));
                }
                size
            }
            _ => 0,
        };
        Ok(Some((letter, size)))
    }

    fn number(&mut self, default: usize) -> mlua::Result<usize> {
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if len == 0 {
            return Ok(default);
        }
        self.at += len;
        let digits = core::str::from_utf8(&rest[..len]).unwrap_or_default();
        let number = digits.parse::<i32>().ok();
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| raise(self.lua, "integral size overflow"))
    }

    /// Does what a letter says that stands for no field.
    fn control(&mut self, arguments: &Arguments<'_>, letter: u8) -> mlua::Result<()> {
        match letter {
            b' ' => {}
            b'>' => self.is_little = false,
            b'<' => self.is_little = true,
            b'!' => {
                let align = self.number(ALIGN_DEFAULT)?;
                if !align.is_power_of_two() {
                    let text = format!("alignment {align} is not a power of 2");
                    return Err(raise(self.lua, &text));
                }
                self.align = align;
            }
            other => {
                let why = format!("invalid format option '{}'", char::from(other));
                return Err(arguments.bad(1, &why));
            }
        }
        Ok(())
    }

    /// Bytes to be left out before a field.
    fn padding(&self, letter: u8, size: usize, at: usize) -> usize {
        if size == 0 || letter == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        size.wrapping_sub(at & (size - 1)) & (size - 1)
    }

    /// Bytes, the least one first, in the order of the format.
    fn push(&self, to: &mut Vec<u8>, bytes: &[u8]) {
        match self.is_little {
            true => to.extend_from_slice(bytes),
            false => to.extend(bytes.iter().rev()),
        }
    }

    /// The first 8 of these bytes, the least one first.
    fn ordered(&self, bytes: &[u8]) -> [u8; 8] {
        let mut ordered = [0; 8];
        let place = |at: usize| match self.is_little {
            true => at,
            false => bytes.len() - 1 - at,
        };
        for (at, to) in ordered.iter_mut().enumerate().take(bytes.len()) {
            *to = bytes[place(at)];
        }
        ordered
    }
}

/// A number as C makes 64 bits of it.
fn whole(number: f64) -> u64 {
    if number < TWO_TO_63 || number.is_nan() {
        return to_integer(number).cast_unsigned();
    }
    let rest = to_integer(number - TWO_TO_63).cast_unsigned();
    rest ^ (1 << 63)
}

/// 64 bits as a number.
fn number(bits: u64, size: usize, is_signed: bool) -> f64 {
    if !is_signed {
        return bits as f64;
    }
    // C shifts modulo 64, for sizes over 8, too.
    let shift = u32::try_from(size).unwrap_or(0).wrapping_mul(8);
    let mask = u64::MAX.wrapping_shl(shift.wrapping_sub(1));
    let bits = if bits & mask == 0 { bits } else { bits | mask };
    bits.cast_signed() as f64
}

fn pack(arguments: &Arguments<'_>, shared: &Shared) -> mlua::Result<mlua::LuaString> {
    let lua = arguments.lua;
    let format = arguments.text(1)?.as_bytes().to_vec();
    let mut format = Format::new(lua, &format);
    let mut bytes: Vec<u8> = Vec::new();
    let mut n = 2;
    while let Some((letter, size)) = format.next()? {
        let padding = format.padding(letter, size, bytes.len());
        bytes.resize(bytes.len() + padding, 0);
        match letter {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let mut wide = [0; SIZE_MAX];
                wide[..8].copy_from_slice(&whole(arguments.number(n)?).to_le_bytes());
                format.push(&mut bytes, &wide[..size]);
                n += 1;
            }
            b'x' => bytes.push(0),
            b'f' => {
                let single = arguments.number(n)? as f32;
                format.push(&mut bytes, &single.to_le_bytes());
                n += 1;
            }
            b'd' => {
                let double = arguments.number(n)?;
                format.push(&mut bytes, &double.to_le_bytes());
                n += 1;
            }
            b'c' | b's' => {
                let text = arguments.text(n)?;
                let text = text.as_bytes();
                n += 1;
                let size = if size == 0 { text.len() } else { size };
                let taken = text.get(..size);
                let taken = taken.ok_or_else(|| arguments.bad(n, "string too short"))?;
                shared.room(bytes.len() + size)?;
                bytes.extend_from_slice(taken);
                if letter == b's' {
                    bytes.push(0);
                }
            }
            other => format.control(arguments, other)?,
        }
    }
    lua.create_string(bytes)
}

fn unpack(arguments: &Arguments<'_>) -> mlua::Result<MultiValue> {
    let lua = arguments.lua;
    let format = arguments.text(1)?.as_bytes().to_vec();
    let mut format = Format::new(lua, &format);
    let bytes = arguments.text(2)?;
    let bytes = bytes.as_bytes();
    let short = || arguments.bad(2, "data string too short");
    let init = arguments.integer_or(3, 1)?.cast_unsigned();
    if init == 0 {
        return Err(arguments.bad(3, "offset must be 1 or greater"));
    }
    let mut at = usize::try_from(init - 1).unwrap_or(usize::MAX);
    let mut values: Vec<Value> = Vec::new();
    while let Some((letter, size)) = format.next()? {
        at = at.wrapping_add(format.padding(letter, size, at));
        let taken = |size: usize| {
            let end = at.checked_add(size);
            end.and_then(|end| bytes.get(at..end)).ok_or_else(short)
        };
        let mut part = taken(size)?;
        if values.len() >= RESULTS_MAX {
            return Err(raise(lua, "stack overflow (too many results)"));
        }
        let value = match letter {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                // Of a long number the last bytes count.
                let low = match format.is_little {
                    true => &part[..size.min(8)],
                    false => &part[size - size.min(8)..],
                };
                let bits = u64::from_le_bytes(format.ordered(low));
                Some(Value::Number(number(
                    bits,
                    size,
                    letter.is_ascii_lowercase(),
                )))
            }
            b'f' => {
                let wide = format.ordered(part);
                let single = f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]);
                Some(Value::Number(single.into()))
            }
            b'd' => Some(Value::Number(f64::from_le_bytes(format.ordered(part)))),
            b'c' => {
                if size == 0 {
                    let count = values.last().and_then(|value| number_of(lua, value));
                    let why = "format 'c0' needs a previous size";
                    let count = count.ok_or_else(|| raise(lua, why))?;
                    values.pop();
                    part = taken(usize::try_from(to_integer(count)).unwrap_or(usize::MAX))?;
                }
                Some(Value::String(lua.create_string(part)?))
            }
            b's' => {
                let rest = bytes.get(at..).ok_or_else(short)?;
                let end = rest.iter().position(|byte| *byte == 0);
                let end = end.ok_or_else(|| raise(lua, "unfinished string in data"))?;
                part = &rest[..=end];
                Some(Value::String(lua.create_string(&rest[..end])?))
            }
            b'x' => None,
            other => {
                format.control(arguments, other)?;
                None
            }
        };
        at += part.len();
        values.extend(value);
    }
    values.push(Value::Number((at as f64) + 1.0));
    Ok(MultiValue::from_vec(values))
}

fn size(arguments: &Arguments<'_>) -> mlua::Result<f64> {
    let format = arguments.text(1)?.as_bytes().to_vec();
    let mut format = Format::new(arguments.lua, &format);
    let mut at = 0_usize;
    while let Some((letter, size)) = format.next()? {
        at = at.wrapping_add(format.padding(letter, size, at));
        match (letter, size) {
            (b's', _) => return Err(arguments.bad(1, "option 's' has no fixed size")),
            (b'c', 0) => return Err(arguments.bad(1, "option 'c0' has no fixed size")),
            _ if !letter.is_ascii_alphanumeric() => format.control(arguments, letter)?,
            _ => {}
        }
        at = at.wrapping_add(size);
    }
    Ok(at as f64)
}

/// The library.
pub(crate) fn open(lua: &Lua, shared: &Shared) -> mlua::Result<Table> {
    let shared = Rc::clone(shared);
    let packing = lua.create_function(move |lua, mut values: MultiValue| {
        // As there, a value that is missing counts as nil.
        if !values.is_empty() {
            values.push_back(Value::Nil);
        }
        pack(&Arguments::new(lua, values), &shared)
    })?;
    let unpacking =
        lua.create_function(|lua, values: MultiValue| unpack(&Arguments::new(lua, values)))?;
    let sizing =
        lua.create_function(|lua, values: MultiValue| size(&Arguments::new(lua, values)))?;
    library(
        lua,
        [("pack", packing), ("unpack", unpacking), ("size", sizing)],
    )
}
