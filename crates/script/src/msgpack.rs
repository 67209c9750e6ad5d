//! `cmsgpack`: MessagePack.

use crate::json::list_len;
use crate::sandbox::library;
use mlua::{Lua, MultiValue, Table, Value, Variadic};

/// Deepest nesting. Deeper tables are packed as nil, as in Redis, and refused when unpacked.
const DEPTH_MAX: usize = 16;

fn head(to: &mut Vec<u8>, len: usize, (fix, fix_max): (u8, usize), (short, long): (u8, u8)) {
    match len {
        len if len <= fix_max => to.push(fix | len as u8),
        0..0x1_0000 => {
            to.push(short);
            to.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            to.push(long);
            to.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

fn pack_integer(to: &mut Vec<u8>, number: i64) {
    match number {
        0..0x80 => to.push(number as u8),
        -32..0 => to.push(number as i8 as u8),
        0x80..0x100 => to.extend_from_slice(&[0xcc, number as u8]),
        0x100..0x1_0000 => {
            to.push(0xcd);
            to.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            to.push(0xce);
            to.extend_from_slice(&(number as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            to.push(0xcf);
            to.extend_from_slice(&number.to_be_bytes());
        }
        -0x80..-32 => to.extend_from_slice(&[0xd0, number as i8 as u8]),
        -0x8000..-0x80 => {
            to.push(0xd1);
            to.extend_from_slice(&(number as i16).to_be_bytes());
        }
        -0x8000_0000..-0x8000 => {
            to.push(0xd2);
            to.extend_from_slice(&(number as i32).to_be_bytes());
        }
        _ => {
            to.push(0xd3);
            to.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn pack(to: &mut Vec<u8>, value: &Value, depth: usize) -> mlua::Result<()> {
    match value {
        Value::Boolean(truth) => to.push(if *truth { 0xc3 } else { 0xc2 }),
        Value::Integer(number) => pack_integer(to, *number),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 9.2e18 => {
            pack_integer(to, *number as i64);
        }
        Value::Number(number) => {
            let single = *number as f32;
            if f64::from(single) == *number {
                to.push(0xca);
                to.extend_from_slice(&single.to_be_bytes());
            } else {
                to.push(0xcb);
                to.extend_from_slice(&number.to_be_bytes());
            }
        }
        Value::String(text) => {
            let text = text.as_bytes();
            match text.len() {
                32..0x100 => to.extend_from_slice(&[0xd9, text.len() as u8]),
                len => head(to, len, (0xa0, 31), (0xda, 0xdb)),
            }
            to.extend_from_slice(&text);
        }
        Value::Table(_) if depth >= DEPTH_MAX => to.push(0xc0),
        Value::Table(table) if table.is_empty() => to.push(0x90),
        Value::Table(table) => match list_len(table)? {
            Some(len) if len == table.raw_len() => {
                head(to, len, (0x90, 15), (0xdc, 0xdd));
                for at in 1..=len {
                    pack(to, &table.raw_get::<Value>(at)?, depth + 1)?;
                }
            }
            Some(_) | None => {
                // Twice, as Lua gives few references to the values of a table at a time.
                head(
                    to,
                    table.pairs::<Value, Value>().count(),
                    (0x80, 15),
                    (0xde, 0xdf),
                );
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    pack(to, &key, depth + 1)?;
                    pack(to, &value, depth + 1)?;
                }
            }
        },
        _ => to.push(0xc0),
    }
    Ok(())
}

struct Unpacker<'u> {
    lua: &'u Lua,
    bytes: &'u [u8],
    at: usize,
}

impl<'u> Unpacker<'u> {
    fn take(&mut self, len: usize) -> mlua::Result<&'u [u8]> {
        let missing = || mlua::Error::runtime("Missing bytes in input.");
        let end = self.at.checked_add(len).ok_or_else(missing)?;
        let taken = self.bytes.get(self.at..end).ok_or_else(missing)?;
        self.at = end;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> mlua::Result<[u8; N]> {
        let taken = self.take(N)?;
        taken
            .try_into()
            .map_err(|_| mlua::Error::runtime("Missing bytes in input."))
    }

    fn len(&mut self, bytes: usize) -> mlua::Result<usize> {
        let taken = self.take(bytes)?;
        Ok(taken
            .iter()
            .fold(0, |len, byte| len << 8 | usize::from(*byte)))
    }

    fn value(&mut self, depth: usize) -> mlua::Result<Value> {
        if depth > DEPTH_MAX {
            return Err(mlua::Error::runtime("Too many nested data structures."));
        }
        let code = self.take(1)?[0];
        let integer = |number: i64| Ok(Value::Number(number as f64));
        match code {
            0..=0x7f => integer(code.into()),
            0xe0..=0xff => integer((code as i8).into()),
            0x80..=0x8f => self.map(usize::from(code & 15), depth),
            0x90..=0x9f => self.array(usize::from(code & 15), depth),
            0xa0..=0xbf => self.text(usize::from(code & 31)),
            0xc0 => Ok(Value::Nil),
            0xc2 => Ok(Value::Boolean(false)),
            0xc3 => Ok(Value::Boolean(true)),
            0xca => Ok(Value::Number(f32::from_be_bytes(self.number()?).into())),
            0xcb => Ok(Value::Number(f64::from_be_bytes(self.number()?))),
            0xcc => integer(self.take(1)?[0].into()),
            0xcd => integer(u16::from_be_bytes(self.number()?).into()),
            0xce => integer(u32::from_be_bytes(self.number()?).into()),
            0xcf => Ok(Value::Number(u64::from_be_bytes(self.number()?) as f64)),
            0xd0 => integer((self.take(1)?[0] as i8).into()),
            0xd1 => integer(i16::from_be_bytes(self.number()?).into()),
            0xd2 => integer(i32::from_be_bytes(self.number()?).into()),
            0xd3 => integer(i64::from_be_bytes(self.number()?)),
            0xc4 | 0xd9 => self.counted_text(1),
            0xc5 | 0xda => self.counted_text(2),
            0xc6 | 0xdb => self.counted_text(4),
            0xdc => {
                let len = self.len(2)?;
                self.array(len, depth)
            }
            0xdd => {
                let len = self.len(4)?;
                self.array(len, depth)
            }
            0xde => {
                let len = self.len(2)?;
                self.map(len, depth)
            }
            0xdf => {
                let len = self.len(4)?;
                self.map(len, depth)
            }
            _ => Err(mlua::Error::runtime("Bad data format in input.")),
        }
    }

    fn counted_text(&mut self, bytes: usize) -> mlua::Result<Value> {
        let len = self.len(bytes)?;
        self.text(len)
    }

    fn text(&mut self, len: usize) -> mlua::Result<Value> {
        let text = self.take(len)?;
        Ok(Value::String(self.lua.create_string(text)?))
    }

    fn array(&mut self, len: usize, depth: usize) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        for at in 1..=len {
            table.raw_set(at, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, len: usize, depth: usize) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        for _ in 0..len {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            if !matches!(key, Value::Nil) {
                table.raw_set(key, value)?;
            }
        }
        Ok(Value::Table(table))
    }
}

/// Some values from an offset on; in front of them the offset to go on with, if `tells_offset`.
fn unpack(
    lua: &Lua,
    text: &mlua::LuaString,
    (offset, limit): (f64, f64),
    tells_offset: bool,
) -> mlua::Result<MultiValue> {
    let bytes = text.as_bytes().to_vec();
    if offset < 0.0 || limit < 0.0 {
        let why =
            format!("Invalid request to unpack with offset of {offset} and limit of {limit}.");
        return Err(mlua::Error::runtime(why));
    }
    if offset as usize > bytes.len() {
        let why = format!(
            "Start offset {offset} greater than input length {}.",
            bytes.len()
        );
        return Err(mlua::Error::runtime(why));
    }
    let mut unpacker = Unpacker {
        lua,
        bytes: &bytes,
        at: offset as usize,
    };
    let most = if limit == 0.0 {
        usize::MAX
    } else {
        limit as usize
    };
    let mut values = Vec::new();
    while values.len() < most && unpacker.at < bytes.len() {
        values.push(unpacker.value(0)?);
    }
    if tells_offset {
        let is_end = unpacker.at == bytes.len();
        let next = if is_end { -1.0 } else { unpacker.at as f64 };
        values.insert(0, Value::Number(next));
    }
    Ok(MultiValue::from_vec(values))
}

/// The library.
pub(crate) fn open(lua: &Lua) -> mlua::Result<Table> {
    let pack = lua.create_function(|lua, values: Variadic<Value>| {
        if values.is_empty() {
            return Err(mlua::Error::runtime(
                "bad argument #0 to 'pack' (MessagePack pack needs input.)",
            ));
        }
        let mut bytes = Vec::new();
        for value in values.iter() {
            pack(&mut bytes, value, 0)?;
        }
        lua.create_string(bytes)
    })?;
    let all =
        lua.create_function(|lua, text: mlua::LuaString| unpack(lua, &text, (0.0, 0.0), false))?;
    let one = lua.create_function(|lua, (text, offset): (mlua::LuaString, Option<f64>)| {
        unpack(lua, &text, (offset.unwrap_or(0.0), 1.0), true)
    })?;
    let limit = lua.create_function(
        |lua, (text, limit, offset): (mlua::LuaString, f64, Option<f64>)| {
            unpack(lua, &text, (offset.unwrap_or(0.0), limit), true)
        },
    )?;
    library(
        lua,
        [
            ("pack", pack),
            ("unpack", all),
            ("unpack_one", one),
            ("unpack_limit", limit),
        ],
    )
}
