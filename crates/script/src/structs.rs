//! `struct`: values as the structures of C.
//!
//! `<` and `>` choose the byte order, `!n` alignment. Then come the fields:
//!
//! - `b B h H l L T i[n] I[n]`: whole numbers
//! - `f d`: numbers with a fraction
//! - `x`: a zero byte
//! - `s`: text up to a zero
//! - `c[n]`: `n` bytes; `c0`: as many as the number before says

use crate::sandbox::library;
use mlua::{Lua, MultiValue, Table, Value};

/// Largest alignment and size of a whole number.
const SIZE_MAX: usize = 8;

struct Format<'f> {
    text: &'f [u8],
    at: usize,
    is_little: bool,
    align: usize,
}

/// One field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Whole { size: usize, is_signed: bool },
    Single,
    Double,
    Zero,
    Text,
    Bytes(usize),
}

impl Field {
    fn size(self) -> usize {
        match self {
            Self::Whole { size, .. } => size,
            Self::Single => 4,
            Self::Double => 8,
            Self::Zero => 1,
            Self::Text => 0,
            Self::Bytes(count) => count,
        }
    }

    fn alignment(self, most: usize) -> usize {
        match self {
            Self::Whole { .. } | Self::Single | Self::Double => self.size().min(most).max(1),
            Self::Zero | Self::Text | Self::Bytes(_) => 1,
        }
    }
}

impl<'f> Format<'f> {
    fn new(text: &'f [u8]) -> Self {
        Self {
            text,
            at: 0,
            is_little: true,
            align: 1,
        }
    }

    fn number(&mut self) -> Option<usize> {
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = core::str::from_utf8(&rest[..len]).ok()?;
        self.at += len;
        digits.parse().ok()
    }

    fn next(&mut self) -> mlua::Result<Option<Field>> {
        loop {
            let Some(&code) = self.text.get(self.at) else {
                return Ok(None);
            };
            self.at += 1;
            let whole = |size, is_signed| Ok(Some(Field::Whole { size, is_signed }));
            match code {
                b' ' => {}
                b'<' => self.is_little = true,
                b'>' => self.is_little = false,
                b'!' => {
                    self.align = self.number().unwrap_or(SIZE_MAX);
                    if !self.align.is_power_of_two() {
                        return Err(mlua::Error::runtime("alignment is not a power of 2"));
                    }
                }
                b'b' => return whole(1, true),
                b'B' => return whole(1, false),
                b'h' => return whole(2, true),
                b'H' => return whole(2, false),
                b'l' => return whole(8, true),
                b'L' | b'T' => return whole(8, false),
                b'i' | b'I' => {
                    let size = self.number().unwrap_or(4);
                    if !(1..=SIZE_MAX).contains(&size) {
                        return Err(mlua::Error::runtime(format!(
                            "integral size {size} is larger than limit of {SIZE_MAX}"
                        )));
                    }
                    return whole(size, code == b'i');
                }
                b'f' => return Ok(Some(Field::Single)),
                b'd' | b'n' => return Ok(Some(Field::Double)),
                b'x' => return Ok(Some(Field::Zero)),
                b's' => return Ok(Some(Field::Text)),
                b'c' => return Ok(Some(Field::Bytes(self.number().unwrap_or(1)))),
                other => {
                    let code = char::from(other);
                    return Err(mlua::Error::runtime(format!(
                        "invalid format option '{code}'"
                    )));
                }
            }
        }
    }

    /// Bytes to be left out before a field.
    fn padding(&self, field: Field, at: usize) -> usize {
        at.next_multiple_of(field.alignment(self.align)) - at
    }

    fn ordered(&self, bytes: &[u8; 8], size: usize) -> Vec<u8> {
        let mut bytes = bytes[..size].to_vec();
        if !self.is_little {
            bytes.reverse();
        }
        bytes
    }
}

fn number(value: Option<&Value>) -> mlua::Result<f64> {
    match value {
        Some(Value::Integer(number)) => Ok(*number as f64),
        Some(Value::Number(number)) => Ok(*number),
        Some(Value::String(text)) => {
            let text = text.as_bytes();
            let text = core::str::from_utf8(&text)
                .ok()
                .and_then(|text| text.trim().parse().ok());
            text.ok_or_else(|| mlua::Error::runtime("number expected, got string"))
        }
        _ => Err(mlua::Error::runtime("number expected")),
    }
}

fn pack(lua: &Lua, arguments: MultiValue) -> mlua::Result<mlua::LuaString> {
    let mut arguments = arguments.into_iter();
    let Some(Value::String(format)) = arguments.next() else {
        return Err(mlua::Error::runtime(
            "bad argument #1 to 'pack' (string expected)",
        ));
    };
    let format = format.as_bytes().to_vec();
    let mut format = Format::new(&format);
    let mut bytes = Vec::new();
    while let Some(field) = format.next()? {
        bytes.resize(bytes.len() + format.padding(field, bytes.len()), 0);
        match field {
            Field::Zero => bytes.push(0),
            Field::Whole { size, .. } => {
                let value = number(arguments.next().as_ref())?;
                let whole = if value < 0.0 {
                    value as i64
                } else {
                    (value as u64).cast_signed()
                };
                bytes.extend(format.ordered(&whole.to_le_bytes(), size));
            }
            Field::Single => {
                let single = (number(arguments.next().as_ref())? as f32).to_le_bytes();
                let mut wide = [0; 8];
                wide[..4].copy_from_slice(&single);
                bytes.extend(format.ordered(&wide, 4));
            }
            Field::Double => {
                let value = number(arguments.next().as_ref())?;
                bytes.extend(format.ordered(&value.to_le_bytes(), 8));
            }
            Field::Text | Field::Bytes(_) => {
                let Some(Value::String(text)) = arguments.next() else {
                    return Err(mlua::Error::runtime("string expected"));
                };
                let text = text.as_bytes();
                match field {
                    Field::Bytes(0) => bytes.extend_from_slice(&text),
                    Field::Bytes(count) if text.len() >= count => {
                        bytes.extend_from_slice(&text[..count]);
                    }
                    Field::Bytes(_) => return Err(mlua::Error::runtime("string too short")),
                    _ => {
                        bytes.extend_from_slice(&text);
                        bytes.push(0);
                    }
                }
            }
        }
    }
    lua.create_string(bytes)
}

fn unpack(
    lua: &Lua,
    (format, bytes, init): (mlua::LuaString, mlua::LuaString, Option<f64>),
) -> mlua::Result<MultiValue> {
    let (format, bytes) = (format.as_bytes().to_vec(), bytes.as_bytes().to_vec());
    let mut format = Format::new(&format);
    let short = || mlua::Error::runtime("data string too short");
    let init = init.unwrap_or(1.0);
    if init < 1.0 {
        return Err(mlua::Error::runtime("offset must be 1 or greater"));
    }
    let mut at = init as usize - 1;
    let mut values: Vec<Value> = Vec::new();
    while let Some(field) = format.next()? {
        at += format.padding(field, at);
        let size = match field {
            Field::Text => {
                let rest = bytes.get(at..).ok_or_else(short)?;
                let end = rest.iter().position(|byte| *byte == 0);
                end.ok_or_else(|| mlua::Error::runtime("unfinished string in data"))? + 1
            }
            Field::Bytes(0) => match values.pop() {
                Some(Value::Number(count)) if count >= 0.0 => count as usize,
                _ => {
                    let why = "format 'c0' needs a previous size";
                    return Err(mlua::Error::runtime(why));
                }
            },
            other => other.size(),
        };
        let end = at.checked_add(size).ok_or_else(short)?;
        let taken = bytes.get(at..end).ok_or_else(short)?;
        at = end;
        let mut ordered = [0; 8];
        if size <= 8 {
            let is_little = format.is_little;
            for (to, byte) in ordered.iter_mut().zip((0..size).map(|n| match is_little {
                true => taken[n],
                false => taken[size - 1 - n],
            })) {
                *to = byte;
            }
        }
        match field {
            Field::Zero => {}
            Field::Whole { size, is_signed } => {
                let whole = u64::from_le_bytes(ordered);
                let unused = 64 - 8 * size as u32;
                values.push(Value::Number(match is_signed {
                    true => (whole.cast_signed() << unused >> unused) as f64,
                    false => whole as f64,
                }));
            }
            Field::Single => {
                let single = [ordered[0], ordered[1], ordered[2], ordered[3]];
                values.push(Value::Number(f32::from_le_bytes(single).into()));
            }
            Field::Double => values.push(Value::Number(f64::from_le_bytes(ordered))),
            Field::Text => {
                let text = &taken[..size - 1];
                values.push(Value::String(lua.create_string(text)?));
            }
            Field::Bytes(_) => values.push(Value::String(lua.create_string(taken)?)),
        }
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

fn size(format: &[u8]) -> mlua::Result<f64> {
    let mut format = Format::new(format);
    let mut at = 0_usize;
    while let Some(field) = format.next()? {
        if matches!(field, Field::Text | Field::Bytes(0)) {
            return Err(mlua::Error::runtime(
                "variable-size format for option 's' or 'c0'",
            ));
        }
        at = at
            .saturating_add(format.padding(field, at))
            .saturating_add(field.size());
    }
    Ok(at as f64)
}

/// The library.
pub(crate) fn open(lua: &Lua) -> mlua::Result<Table> {
    library(
        lua,
        [
            ("pack", lua.create_function(pack)?),
            ("unpack", lua.create_function(unpack)?),
            (
                "size",
                lua.create_function(|_, format: mlua::LuaString| size(&format.as_bytes()))?,
            ),
        ],
    )
}
