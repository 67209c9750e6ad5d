//! `cjson`: JSON, as the library of that name does it.

use crate::sandbox::library;
use mlua::{Function, Lua, LuaString, Table, Value};

/// Deepest nesting, when encoding and when decoding.
const DEPTH_MAX: usize = 1000;

/// A number as C prints it with `%.*g`.
pub(crate) fn number_text(number: f64, digits: usize) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_owned();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{number:.decimals$}"))
}

/// A table that is being encoded.
struct Level {
    table: Table,
    place: Place,
}

enum Place {
    /// The members that are written, of all.
    List(usize, usize),
    /// The last key that is written; nil in front of the first one.
    Map(Value),
}

fn refused<T>(why: impl Into<String>) -> mlua::Result<T> {
    Err(mlua::Error::runtime(why.into()))
}

/// Encodes a value. Tables in tables are kept on a stack of their own, as deep ones would overflow
/// that of the thread. `next` is the function of Lua.
fn encode(next: &Function, value: Value, to: &mut Vec<u8>) -> mlua::Result<()> {
    let mut levels: Vec<Level> = Vec::new();
    let mut value = Some(value);
    loop {
        match value.take() {
            Some(Value::Table(_)) if levels.len() >= DEPTH_MAX => {
                let depth = levels.len() + 1;
                return refused(format!("Cannot serialise, excessive nesting ({depth})"));
            }
            Some(Value::Table(table)) => levels.push(begin_table(table, to)?),
            Some(plain) => encode_plain(&plain, to)?,
            None => {}
        }
        let Some(Level { table, place }) = levels.last_mut() else {
            return Ok(());
        };
        match place {
            Place::List(done, len) if done == len => {
                to.push(b']');
                levels.pop();
            }
            Place::List(done, _) => {
                if *done > 0 {
                    to.push(b',');
                }
                *done += 1;
                value = Some(table.raw_get(*done)?);
            }
            Place::Map(last) => {
                let (key, of_key): (Value, Value) = next.call((&*table, last.clone()))?;
                if key.is_nil() {
                    to.push(b'}');
                    levels.pop();
                    continue;
                }
                if !last.is_nil() {
                    to.push(b',');
                }
                encode_key(&key, to)?;
                *last = key;
                value = Some(of_key);
            }
        }
    }
}

fn encode_plain(value: &Value, to: &mut Vec<u8>) -> mlua::Result<()> {
    match value {
        Value::Nil => to.extend_from_slice(b"null"),
        Value::LightUserData(pointer) if pointer.0.is_null() => to.extend_from_slice(b"null"),
        Value::Boolean(truth) => to.extend_from_slice(truth.to_string().as_bytes()),
        Value::Integer(number) => to.extend_from_slice(number_text(*number as f64, 14).as_bytes()),
        Value::Number(number) if !number.is_finite() => {
            return refused("Cannot serialise number: must not be NaN or Inf");
        }
        Value::Number(number) => to.extend_from_slice(number_text(*number, 14).as_bytes()),
        Value::String(text) => encode_text(&text.as_bytes(), to),
        other => {
            let kind = other.type_name();
            return refused(format!("Cannot serialise {kind}: type not supported"));
        }
    }
    Ok(())
}

fn encode_key(key: &Value, to: &mut Vec<u8>) -> mlua::Result<()> {
    match key {
        Value::String(text) => encode_text(&text.as_bytes(), to),
        Value::Integer(number) => encode_text(number_text(*number as f64, 14).as_bytes(), to),
        Value::Number(number) => encode_text(number_text(*number, 14).as_bytes(), to),
        _ => return refused("Cannot serialise table: table key must be a number or string"),
    }
    to.push(b':');
    Ok(())
}

fn encode_text(text: &[u8], to: &mut Vec<u8>) {
    to.push(b'"');
    for byte in text {
        match byte {
            b'"' => to.extend_from_slice(b"\\\""),
            b'\\' => to.extend_from_slice(b"\\\\"),
            b'/' => to.extend_from_slice(b"\\/"),
            8 => to.extend_from_slice(b"\\b"),
            12 => to.extend_from_slice(b"\\f"),
            b'\n' => to.extend_from_slice(b"\\n"),
            b'\r' => to.extend_from_slice(b"\\r"),
            b'\t' => to.extend_from_slice(b"\\t"),
            0..0x20 | 0x7f => to.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            other => to.push(*other),
        }
    }
    to.push(b'"');
}

/// The length of a table that is a list: only whole keys from 1 on, and not too sparse.
pub(crate) fn list_len(table: &Table) -> mlua::Result<Option<usize>> {
    let (mut largest, mut count) = (0_i64, 0_i64);
    for pair in table.pairs::<Value, Value>() {
        let (key, _) = pair?;
        let number = match key {
            Value::Integer(number) => number,
            Value::Number(number) if number.fract() == 0.0 => number as i64,
            _ => return Ok(None),
        };
        if number < 1 {
            return Ok(None);
        }
        largest = largest.max(number);
        count += 1;
    }
    Ok((count > 0).then(|| usize::try_from(largest).unwrap_or(0)))
}

fn begin_table(table: Table, to: &mut Vec<u8>) -> mlua::Result<Level> {
    let place = match list_len(&table)? {
        Some(len) if len > 10 && len > 2 * table.raw_len().max(1) => {
            return refused("Cannot serialise table: excessively sparse array");
        }
        Some(len) => Place::List(0, len),
        None => Place::Map(Value::Nil),
    };
    to.push(match place {
        Place::List(..) => b'[',
        Place::Map(_) => b'{',
    });
    Ok(Level { table, place })
}

/// A table that is being decoded.
struct Open {
    table: Table,
    /// The key of the next member of an object; a list has the number of members so far.
    key: Result<LuaString, usize>,
}

struct Decoder<'d> {
    lua: &'d Lua,
    text: &'d [u8],
    at: usize,
}

impl Decoder<'_> {
    fn expected<T>(&self, what: &str) -> mlua::Result<T> {
        let (found, at) = match self.text.get(self.at) {
            None => ("T_END", self.at),
            Some(b'{') => ("T_OBJ_BEGIN", self.at),
            Some(b'}') => ("T_OBJ_END", self.at),
            Some(b'[') => ("T_ARR_BEGIN", self.at),
            Some(b']') => ("T_ARR_END", self.at),
            Some(b'"') => ("T_STRING", self.at),
            Some(b':') => ("T_COLON", self.at),
            Some(b',') => ("T_COMMA", self.at),
            Some(b'-' | b'0'..=b'9') => ("T_NUMBER", self.at),
            Some(_) => ("invalid token", self.at),
        };
        let place = at + 1;
        Err(mlua::Error::runtime(format!(
            "Expected {what} but found {found} at character {place}"
        )))
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// A value. Tables in tables are kept on a stack of their own, see [`encode`].
    fn value(&mut self) -> mlua::Result<Value> {
        let mut levels: Vec<Open> = Vec::new();
        loop {
            self.skip_blanks();
            let mut done = match self.text.get(self.at) {
                Some(b'{' | b'[') => match self.begin(levels.len())? {
                    Ok(open) => {
                        levels.push(open);
                        continue;
                    }
                    Err(empty) => Value::Table(empty),
                },
                _ => self.plain()?,
            };
            loop {
                let Some(open) = levels.last_mut() else {
                    return Ok(done);
                };
                match &mut open.key {
                    Ok(key) => open.table.raw_set(&*key, done)?,
                    Err(count) => {
                        *count += 1;
                        open.table.raw_set(*count, done)?;
                    }
                }
                self.skip_blanks();
                match (self.text.get(self.at), &mut open.key) {
                    (Some(b','), Err(_)) => {
                        self.at += 1;
                        break;
                    }
                    (Some(b','), Ok(key)) => {
                        self.at += 1;
                        *key = self.key()?;
                        break;
                    }
                    (Some(b'}'), Ok(_)) | (Some(b']'), Err(_)) => {
                        self.at += 1;
                        done = Value::Table(open.table.clone());
                        levels.pop();
                    }
                    (_, Ok(_)) => return self.expected("comma or object end"),
                    (_, Err(_)) => return self.expected("comma or array end"),
                }
            }
        }
    }

    /// Begins the object or list that is here inside `depth` others; an empty one has its end here.
    fn begin(&mut self, depth: usize) -> mlua::Result<Result<Open, Table>> {
        let is_object = self.text[self.at] == b'{';
        self.at += 1;
        if depth >= DEPTH_MAX {
            let (depth, at) = (depth + 1, self.at);
            return refused(format!(
                "Found too many nested data structures ({depth}) at character {at}"
            ));
        }
        let table = self.lua.create_table()?;
        self.skip_blanks();
        let end = if is_object { b'}' } else { b']' };
        if self.text.get(self.at) == Some(&end) {
            self.at += 1;
            return Ok(Err(table));
        }
        let key = if is_object { Ok(self.key()?) } else { Err(0) };
        Ok(Ok(Open { table, key }))
    }

    /// The key of a member of an object, and the colon behind it.
    fn key(&mut self) -> mlua::Result<LuaString> {
        self.skip_blanks();
        if self.text.get(self.at) != Some(&b'"') {
            return self.expected("object key string");
        }
        let key = self.text()?;
        self.skip_blanks();
        if self.text.get(self.at) != Some(&b':') {
            return self.expected("colon");
        }
        self.at += 1;
        self.lua.create_string(key)
    }

    fn plain(&mut self) -> mlua::Result<Value> {
        let rest = &self.text[self.at..];
        for (word, value) in [
            (&b"true"[..], Value::Boolean(true)),
            (b"false", Value::Boolean(false)),
            (b"null", Value::NULL),
        ] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        match rest.first() {
            Some(b'"') => {
                let text = self.text()?;
                Ok(Value::String(self.lua.create_string(text)?))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.expected("value"),
        }
    }

    fn number(&mut self) -> mlua::Result<Value> {
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let rest = &self.text[self.at..];
        let len = rest
            .iter()
            .position(|byte| !is_part(byte))
            .unwrap_or(rest.len());
        let text = core::str::from_utf8(&rest[..len]).unwrap_or("");
        match text.parse::<f64>() {
            Ok(number) => {
                self.at += len;
                Ok(Value::Number(number))
            }
            Err(_) => self.expected("value"),
        }
    }

    fn text(&mut self) -> mlua::Result<Vec<u8>> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let Some(&byte) = self.text.get(self.at) else {
                return self.expected("string end");
            };
            self.at += 1;
            match byte {
                b'"' => return Ok(text),
                b'\\' => {
                    let escape = self.text.get(self.at).copied().unwrap_or(0);
                    self.at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' => text.push(escape),
                        b'b' => text.push(8),
                        b'f' => text.push(12),
                        b'n' => text.push(b'\n'),
                        b'r' => text.push(b'\r'),
                        b't' => text.push(b'\t'),
                        b'u' => self.unicode(&mut text)?,
                        _ => {
                            self.at -= 1;
                            return self.expected("valid escape");
                        }
                    }
                }
                other => text.push(other),
            }
        }
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let unit = u32::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()?;
        self.at += 4;
        Some(unit)
    }

    fn unicode(&mut self, text: &mut Vec<u8>) -> mlua::Result<()> {
        let Some(first) = self.unit() else {
            return self.expected("valid unicode escape");
        };
        let mut point = first;
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with(b"\\u") {
            self.at += 2;
            match self.unit() {
                Some(second @ 0xdc00..0xe000) => {
                    point = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                }
                _ => return self.expected("valid unicode escape"),
            }
        }
        let point = char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER);
        text.extend_from_slice(point.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }
}

/// The library.
pub(crate) fn open(lua: &Lua) -> mlua::Result<Table> {
    let next: Function = lua.globals().get("next")?;
    let encode = lua.create_function(move |lua, value: Value| {
        let mut text = Vec::new();
        encode(&next, value, &mut text)?;
        lua.create_string(text)
    })?;
    let decode = lua.create_function(|lua, text: LuaString| {
        let text = text.as_bytes().to_vec();
        let mut decoder = Decoder {
            lua,
            text: &text,
            at: 0,
        };
        let value = decoder.value()?;
        decoder.skip_blanks();
        match decoder.at == text.len() {
            true => Ok(value),
            false => decoder.expected("the end"),
        }
    })?;
    // Settings of the library are taken, and change nothing.
    let setting = lua.create_function(|_, value: Value| Ok(value))?;
    let json = library(lua, [("encode", encode), ("decode", decode)])?;
    for name in [
        "encode_sparse_array",
        "encode_max_depth",
        "decode_max_depth",
        "encode_number_precision",
        "encode_keep_buffer",
        "encode_invalid_numbers",
        "decode_invalid_numbers",
        "decode_array_with_array_mt",
    ] {
        json.raw_set(name, setting.clone())?;
    }
    json.raw_set("null", Value::NULL)?;
    json.raw_set("_NAME", "cjson")?;
    json.raw_set("_VERSION", "2.1.0")?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_c_does() {
        for (number, digits, text) in [
            (0.1, 14, "0.1"),
            (0.1, 17, "0.10000000000000001"),
            (1e15, 14, "1e+15"),
            (1e15, 17, "1000000000000000"),
            (123_456.0, 14, "123456"),
            (1.5e-7, 14, "1.5e-07"),
            (-2.5, 14, "-2.5"),
            (0.0, 14, "0"),
            (1e100, 14, "1e+100"),
            (100.0, 14, "100"),
        ] {
            assert_eq!(number_text(number, digits), text);
        }
    }
}
