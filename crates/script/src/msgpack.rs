//! `cmsgpack`: MessagePack.

use crate::arguments::{Arguments, raise};
use crate::budget::Meter;
use crate::interpreter::Shared;
use crate::sandbox::library;
use mlua::{Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Deepest nesting when packing. Deeper tables are packed as nil, as in Redis.
const PACK_DEPTH_MAX: usize = 16;
/// Deepest nesting when unpacking: about where Redis runs out of Lua's stack.
const UNPACK_DEPTH_MAX: usize = 3000;
/// Most values that are packed at a time, as in Redis.
const VALUES_MAX: usize = 4000;
/// Most values that are unpacked at a time, about as in Redis.
const RESULTS_MAX: usize = 7900;

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

fn pack_number(to: &mut Vec<u8>, number: f64) {
    let single = number as f32;
    if number.fract() == 0.0 && (-TWO_TO_63..TWO_TO_63).contains(&number) {
        pack_integer(to, number as i64);
    } else if f64::from(single) == number {
        to.push(0xca);
        to.extend_from_slice(&single.to_be_bytes());
    } else {
        to.push(0xcb);
        to.extend_from_slice(&number.to_be_bytes());
    }
}

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// The length of a table whose keys are the whole numbers from 1 to it.
fn list_len(table: &Table, meter: &mut Meter<'_>) -> mlua::Result<Option<usize>> {
    let (mut largest, mut count) = (0, 0);
    for pair in table.pairs::<Value, Value>() {
        meter.step()?;
        match pair?.0 {
            Value::Integer(number @ 1..=0x7fff_ffff) => largest = largest.max(number),
            _ => return Ok(None),
        }
        count += 1;
    }
    Ok((largest == count).then(|| usize::try_from(count).unwrap_or(0)))
}

fn pack(to: &mut Vec<u8>, value: &Value, depth: usize, meter: &mut Meter<'_>) -> mlua::Result<()> {
    meter.step()?;
    meter.room(to.len())?;
    match value {
        Value::Boolean(truth) => to.push(if *truth { 0xc3 } else { 0xc2 }),
        Value::Integer(number) => pack_integer(to, *number),
        Value::Number(number) => pack_number(to, *number),
        Value::String(text) => {
            let text = text.as_bytes();
            meter.room(to.len() + text.len())?;
            match text.len() {
                32..0x100 => to.extend_from_slice(&[0xd9, text.len() as u8]),
                len => head(to, len, (0xa0, 31), (0xda, 0xdb)),
            }
            to.extend_from_slice(&text);
        }
        Value::Table(_) if depth >= PACK_DEPTH_MAX => to.push(0xc0),
        Value::Table(table) => match list_len(table, meter)? {
            Some(len) => {
                head(to, len, (0x90, 15), (0xdc, 0xdd));
                for at in 1..=len {
                    pack(to, &table.raw_get::<Value>(at)?, depth + 1, meter)?;
                }
            }
            None => {
                // Twice, as Lua gives few references to the values of a table at a time.
                let count = table.pairs::<Value, Value>().count();
                head(to, count, (0x80, 15), (0xde, 0xdf));
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    pack(to, &key, depth + 1, meter)?;
                    pack(to, &value, depth + 1, meter)?;
                }
            }
        },
        _ => to.push(0xc0),
    }
    Ok(())
}

/// A table that is being unpacked.
struct Open {
    table: Table,
    /// Members that are to come.
    left: usize,
    next: Next,
}

/// What comes next in it.
enum Next {
    /// The member at this place of a list.
    Item(usize),
    Key,
    /// The value of this key.
    Of(Value),
}

/// A value, or the beginning of a table with this number of members.
enum Token {
    Value(Value),
    List(usize),
    Map(usize),
}

struct Unpacker<'u> {
    lua: &'u Lua,
    bytes: &'u [u8],
    at: usize,
}

impl<'u> Unpacker<'u> {
    fn missing(&self) -> mlua::Error {
        raise(self.lua, "Missing bytes in input.")
    }

    fn take(&mut self, len: usize) -> mlua::Result<&'u [u8]> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.missing())?;
        self.at += len;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> mlua::Result<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| self.missing())
    }

    fn len(&mut self, bytes: usize) -> mlua::Result<usize> {
        let taken = self.take(bytes)?;
        Ok(taken
            .iter()
            .fold(0, |len, byte| len << 8 | usize::from(*byte)))
    }

    fn token(&mut self) -> mlua::Result<Token> {
        let code = self.take(1)?[0];
        let integer = |number: i64| Value::Number(number as f64);
        Ok(Token::Value(match code {
            0..=0x7f => integer(code.into()),
            0xe0..=0xff => integer((code as i8).into()),
            0x80..=0x8f => return Ok(Token::Map(usize::from(code & 15))),
            0x90..=0x9f => return Ok(Token::List(usize::from(code & 15))),
            0xa0..=0xbf => self.text(usize::from(code & 31))?,
            0xc0 => Value::Nil,
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xca => Value::Number(f32::from_be_bytes(self.number()?).into()),
            0xcb => Value::Number(f64::from_be_bytes(self.number()?)),
            0xcc => integer(self.take(1)?[0].into()),
            0xcd => integer(u16::from_be_bytes(self.number()?).into()),
            0xce => integer(u32::from_be_bytes(self.number()?).into()),
            // As in Redis, one of 2^63 or more is taken for a negative one.
            0xcf | 0xd3 => integer(i64::from_be_bytes(self.number()?)),
            0xd0 => integer((self.take(1)?[0] as i8).into()),
            0xd1 => integer(i16::from_be_bytes(self.number()?).into()),
            0xd2 => integer(i32::from_be_bytes(self.number()?).into()),
            0xd9 => self.counted_text(1)?,
            0xda => self.counted_text(2)?,
            0xdb => self.counted_text(4)?,
            0xdc => return Ok(Token::List(self.len(2)?)),
            0xdd => return Ok(Token::List(self.len(4)?)),
            0xde => return Ok(Token::Map(self.len(2)?)),
            0xdf => return Ok(Token::Map(self.len(4)?)),
            _ => return Err(raise(self.lua, "Bad data format in input.")),
        }))
    }

    fn counted_text(&mut self, bytes: usize) -> mlua::Result<Value> {
        let len = self.len(bytes)?;
        self.text(len)
    }

    fn text(&mut self, len: usize) -> mlua::Result<Value> {
        let text = self.take(len)?;
        Ok(Value::String(self.lua.create_string(text)?))
    }

    /// A value. Tables in tables are kept on a stack of their own, as deep ones would overflow that
    /// of the thread.
    fn value(&mut self, meter: &mut Meter<'_>) -> mlua::Result<Value> {
        let mut levels: Vec<Open> = Vec::new();
        loop {
            meter.step()?;
            let (len, next) = match self.token()? {
                Token::Value(value) => match self.put(&mut levels, value)? {
                    Some(done) => return Ok(done),
                    None => continue,
                },
                Token::List(len) => (len, Next::Item(1)),
                Token::Map(len) => (len, Next::Key),
            };
            if levels.len() >= UNPACK_DEPTH_MAX {
                return Err(raise(self.lua, TOO_MANY));
            }
            let table = self.lua.create_table()?;
            levels.push(Open {
                table,
                left: len,
                next,
            });
            if len == 0
                && let Some(done) = self.close(&mut levels)?
            {
                return Ok(done);
            }
        }
    }

    /// Puts a value where it belongs. Gives the outermost value once it is complete.
    fn put(&self, levels: &mut Vec<Open>, value: Value) -> mlua::Result<Option<Value>> {
        let Some(open) = levels.last_mut() else {
            return Ok(Some(value));
        };
        match &mut open.next {
            Next::Item(at) => {
                open.table.raw_set(*at, value)?;
                *at += 1;
            }
            Next::Key => {
                open.next = Next::Of(value);
                return Ok(None);
            }
            Next::Of(Value::Nil) => return Err(mlua::Error::runtime("table index is nil")),
            Next::Of(Value::Number(key)) if key.is_nan() => {
                return Err(mlua::Error::runtime("table index is NaN"));
            }
            Next::Of(key) => {
                open.table.raw_set(&*key, value)?;
                open.next = Next::Key;
            }
        }
        open.left -= 1;
        match open.left {
            0 => self.close(levels),
            _ => Ok(None),
        }
    }

    /// The innermost table is complete.
    fn close(&self, levels: &mut Vec<Open>) -> mlua::Result<Option<Value>> {
        match levels.pop() {
            Some(open) => self.put(levels, Value::Table(open.table)),
            None => Ok(None),
        }
    }
}

const TOO_MANY: &str = "stack overflow (too many return values at once; use unpack_one or \
                        unpack_limit instead.)";

/// Some values from an offset on; in front of them the offset to go on with, unless both are 0.
fn unpack(
    arguments: &Arguments<'_>,
    (limit, offset): (i64, i64),
    shared: &Shared,
) -> mlua::Result<MultiValue> {
    let lua = arguments.lua;
    let text = arguments.text(1)?;
    let bytes = text.as_bytes();
    let len = bytes.len();
    let (Ok(most), Ok(at)) = (usize::try_from(limit), usize::try_from(offset)) else {
        let text = format!("Invalid request to unpack with offset of {offset} and limit of {len}.");
        return Err(raise(lua, &text));
    };
    if at > len {
        let text = format!("Start offset {offset} greater than input length {len}.");
        return Err(raise(lua, &text));
    }
    let is_all = limit == 0 && offset == 0;
    let most = if is_all { usize::MAX } else { most };
    let bytes = &bytes;
    let mut unpacker = Unpacker { lua, bytes, at };
    let mut values = Vec::new();
    let mut meter = Meter::new(shared);
    while values.len() < most && unpacker.at < bytes.len() {
        if values.len() >= RESULTS_MAX {
            return Err(raise(lua, TOO_MANY));
        }
        values.push(unpacker.value(&mut meter)?);
    }
    if !is_all {
        let is_end = unpacker.at == bytes.len();
        let next = if is_end { -1.0 } else { unpacker.at as f64 };
        values.insert(0, Value::Number(next));
    }
    Ok(MultiValue::from_vec(values))
}

/// The library.
pub(crate) fn open(lua: &Lua, shared: &Shared) -> mlua::Result<Table> {
    let state = Rc::clone(shared);
    let packing = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        match arguments.len() {
            0 => return Err(arguments.bad(0, "MessagePack pack needs input.")),
            1..=VALUES_MAX => {}
            _ => return Err(arguments.bad(0, "Too many arguments for MessagePack pack.")),
        }
        let mut bytes = Vec::new();
        let mut meter = Meter::new(&state);
        for n in 1..=arguments.len() {
            pack(&mut bytes, &arguments.get(n), 0, &mut meter)?;
        }
        lua.create_string(bytes)
    })?;
    let state = Rc::clone(shared);
    let all = lua.create_function(move |lua, values: MultiValue| {
        unpack(&Arguments::new(lua, values), (0, 0), &state)
    })?;
    let state = Rc::clone(shared);
    let one = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let offset = arguments.integer_or(2, 0)?;
        unpack(&arguments, (1, offset), &state)
    })?;
    let state = Rc::clone(shared);
    let limit = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let limit = arguments.integer(2)?;
        let offset = arguments.integer_or(3, 0)?;
        unpack(&arguments, (limit, offset), &state)
    })?;
    let all = [
        ("pack", packing),
        ("unpack", all),
        ("unpack_one", one),
        ("unpack_limit", limit),
    ];
    let library = library(lua, all)?;
    library.raw_set("_NAME", "cmsgpack")?;
    library.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    library.raw_set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    library.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    Ok(library)
}
