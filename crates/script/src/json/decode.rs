//! Decoding: the tokens of `cjson`, its errors, and the numbers of C that it takes.

use super::{DEPTH_MAX, Settings};
use crate::arguments::raise;
use crate::budget::Meter;
use mlua::{Lua, LuaString, Table, Value};

/// A part of the text, and where it begins.
struct Token {
    kind: Kind,
    at: usize,
}

enum Kind {
    ObjectBegin,
    ObjectEnd,
    ListBegin,
    ListEnd,
    Text(Vec<u8>),
    Number(f64),
    Truth(bool),
    Null,
    Colon,
    Comma,
    End,
    /// None at all, for this reason.
    Wrong(&'static str),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ListBegin => "T_ARR_BEGIN",
            Self::ListEnd => "T_ARR_END",
            Self::Text(_) => "T_STRING",
            Self::Number(_) => "T_NUMBER",
            Self::Truth(_) => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Wrong(why) => why,
        }
    }
}

/// A table that is being decoded.
struct Open {
    table: Table,
    /// The key of the next member of an object; a list has the number of members so far.
    key: Result<LuaString, usize>,
}

/// Decodes a text, with the settings of a library.
pub(super) struct Decoder<'d> {
    lua: &'d Lua,
    text: &'d [u8],
    at: usize,
    settings: &'d Settings,
    meter: Meter<'d>,
}

impl<'d> Decoder<'d> {
    pub(super) fn new(
        lua: &'d Lua,
        text: &'d [u8],
        settings: &'d Settings,
        meter: Meter<'d>,
    ) -> Self {
        Self {
            lua,
            text,
            at: 0,
            settings,
            meter,
        }
    }

    /// The value of the whole text.
    pub(super) fn all(mut self) -> mlua::Result<Value> {
        if matches!(self.text, [0, _, ..] | [_, 0, ..]) {
            let text = "JSON parser does not support UTF-16 or UTF-32";
            return Err(raise(self.lua, text));
        }
        let value = self.value()?;
        match self.next()? {
            Token {
                kind: Kind::End, ..
            } => Ok(value),
            other => Err(self.expected("the end", &other)),
        }
    }

    fn expected(&self, what: &str, found: &Token) -> mlua::Error {
        let (name, place) = (found.kind.name(), found.at + 1);
        let text = format!("Expected {what} but found {name} at character {place}");
        raise(self.lua, &text)
    }

    /// A value. Tables in tables are kept on a stack of their own, as deep ones would overflow that
    /// of the thread.
    fn value(&mut self) -> mlua::Result<Value> {
        let mut levels: Vec<Open> = Vec::new();
        let mut token = self.next()?;
        loop {
            let mut done = match token.kind {
                Kind::ObjectBegin | Kind::ListBegin => {
                    let is_object = matches!(token.kind, Kind::ObjectBegin);
                    let table = self.descend(levels.len())?;
                    let first = self.next()?;
                    let key = match (&first.kind, is_object) {
                        (Kind::ObjectEnd, true) | (Kind::ListEnd, false) => None,
                        (_, true) => {
                            let key = Some(Ok(self.key(first)?));
                            token = self.next()?;
                            key
                        }
                        (_, false) => {
                            token = first;
                            Some(Err(0))
                        }
                    };
                    match key {
                        Some(key) => {
                            levels.push(Open { table, key });
                            continue;
                        }
                        None => Value::Table(table),
                    }
                }
                Kind::Text(text) => Value::String(self.lua.create_string(text)?),
                Kind::Number(number) => Value::Number(number),
                Kind::Truth(truth) => Value::Boolean(truth),
                Kind::Null => Value::NULL,
                _ => return Err(self.expected("value", &token)),
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
                let behind = self.next()?;
                match (&behind.kind, &mut open.key) {
                    (Kind::Comma, Err(_)) => break,
                    (Kind::Comma, Ok(key)) => {
                        let next = self.next()?;
                        *key = self.key(next)?;
                        break;
                    }
                    (Kind::ObjectEnd, Ok(_)) | (Kind::ListEnd, Err(_)) => {
                        done = Value::Table(open.table.clone());
                        levels.pop();
                    }
                    (_, Ok(_)) => return Err(self.expected("comma or object end", &behind)),
                    (_, Err(_)) => return Err(self.expected("comma or array end", &behind)),
                }
            }
            token = self.next()?;
        }
    }

    /// A table inside `depth` others.
    fn descend(&self, depth: usize) -> mlua::Result<Table> {
        if depth >= self.settings.decode_depth.get().min(DEPTH_MAX) {
            let (depth, at) = (depth + 1, self.at);
            let text = "Found too many nested data structures";
            let text = format!("{text} ({depth}) at character {at}");
            return Err(raise(self.lua, &text));
        }
        self.lua.create_table()
    }

    /// The key of a member of an object, and the colon behind it.
    fn key(&mut self, token: Token) -> mlua::Result<LuaString> {
        let Kind::Text(key) = token.kind else {
            return Err(self.expected("object key string", &token));
        };
        match self.next()? {
            Token {
                kind: Kind::Colon, ..
            } => self.lua.create_string(key),
            other => Err(self.expected("colon", &other)),
        }
    }

    /// The byte at a distance from here. Behind the end there is a zero, as in C.
    fn ahead(&self, distance: usize) -> u8 {
        self.text.get(self.at + distance).copied().unwrap_or(0)
    }

    fn starts_with(&self, word: &str) -> bool {
        self.text[self.at..].starts_with(word.as_bytes())
    }

    fn next(&mut self) -> mlua::Result<Token> {
        self.meter.step()?;
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
            self.meter.step()?;
        }
        let at = self.at;
        let kind = match self.ahead(0) {
            b'{' => self.one(Kind::ObjectBegin),
            b'}' => self.one(Kind::ObjectEnd),
            b'[' => self.one(Kind::ListBegin),
            b']' => self.one(Kind::ListEnd),
            b',' => self.one(Kind::Comma),
            b':' => self.one(Kind::Colon),
            0 => Kind::End,
            b'"' => self.string()?,
            b'-' | b'0'..=b'9' => match self.settings.decode_invalid.get() {
                false if self.is_invalid_number() => Kind::Wrong("invalid number"),
                _ => self.number(),
            },
            b't' if self.starts_with("true") => self.word(4, Kind::Truth(true)),
            b'f' if self.starts_with("false") => self.word(5, Kind::Truth(false)),
            b'n' if self.starts_with("null") => self.word(4, Kind::Null),
            b'f' | b'i' | b'I' | b'n' | b'N' | b't' | b'+'
                if self.settings.decode_invalid.get() && self.is_invalid_number() =>
            {
                self.number()
            }
            _ => Kind::Wrong("invalid token"),
        };
        let at = match kind {
            Kind::Wrong(_) => self.at,
            _ => at,
        };
        Ok(Token { kind, at })
    }

    fn one(&mut self, kind: Kind) -> Kind {
        self.word(1, kind)
    }

    fn word(&mut self, len: usize, kind: Kind) -> Kind {
        self.at += len;
        kind
    }

    /// Whether there is a number here that C reads and JSON does not have.
    fn is_invalid_number(&self) -> bool {
        let from = match self.ahead(0) {
            b'+' => return true,
            b'-' => 1,
            _ => 0,
        };
        match self.ahead(from) {
            b'0' => matches!(self.ahead(from + 1), b'x' | b'X' | b'0'..=b'9'),
            ..=b'9' => false,
            _ => {
                let word = self.text.get(self.at + from..self.at + from + 3);
                word.is_some_and(|word| {
                    word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")
                })
            }
        }
    }

    fn number(&mut self) -> Kind {
        match number_at(&self.text[self.at..]) {
            Some((number, len)) => {
                self.at += len;
                Kind::Number(number)
            }
            None => Kind::Wrong("invalid number"),
        }
    }

    fn string(&mut self) -> mlua::Result<Kind> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            self.meter.step()?;
            match self.ahead(0) {
                0 => return Ok(Kind::Wrong("unexpected end of string")),
                b'"' => {
                    self.at += 1;
                    return Ok(Kind::Text(text));
                }
                b'\\' => {
                    let plain = match self.ahead(1) {
                        same @ (b'"' | b'\\' | b'/') => same,
                        b'b' => 8,
                        b'f' => 12,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'u' => {
                            let Some((point, len)) = self.unicode() else {
                                return Ok(Kind::Wrong("invalid unicode escape code"));
                            };
                            text.extend_from_slice(point.encode_utf8(&mut [0; 4]).as_bytes());
                            self.at += len;
                            continue;
                        }
                        _ => return Ok(Kind::Wrong("invalid escape code")),
                    };
                    text.push(plain);
                    self.at += 2;
                }
                _ => {
                    // All up to the next special byte together.
                    let rest = &self.text[self.at..];
                    let is_special = |byte: &u8| matches!(byte, 0 | b'"' | b'\\');
                    let len = rest.iter().position(is_special).unwrap_or(rest.len());
                    text.extend_from_slice(&rest[..len]);
                    self.at += len;
                }
            }
        }
    }

    /// The character of an escape, or of two that make a pair, and its length.
    fn unicode(&self) -> Option<(char, usize)> {
        let unit = |distance: usize| {
            let from = self.at + distance;
            let digits = self.text.get(from..from + 4)?;
            let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
            let digits = core::str::from_utf8(digits).ok().filter(|_| is_hex)?;
            u32::from_str_radix(digits, 16).ok()
        };
        let first = unit(2)?;
        if !(0xd800..0xe000).contains(&first) {
            return Some((char::from_u32(first)?, 6));
        }
        if first >= 0xdc00 || self.ahead(6) != b'\\' || self.ahead(7) != b'u' {
            return None;
        }
        let second = unit(8).filter(|second| (0xdc00..0xe000).contains(second))?;
        let point = 0x10000 + ((first & 0x3ff) << 10) + (second & 0x3ff);
        Some((char::from_u32(point)?, 12))
    }
}

/// The number at the beginning of a text and its length, as `strtod` of C reads it.
fn number_at(text: &[u8]) -> Option<(f64, usize)> {
    let (sign, digits_at) = match text.first() {
        Some(b'-') => (-1.0, 1),
        Some(b'+') => (1.0, 1),
        _ => (1.0, 0),
    };
    let rest = &text[digits_at..];
    let is_word = |word: &[u8]| {
        let start = rest.get(..word.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(word))
    };
    if is_word(b"infinity") {
        return Some((sign * f64::INFINITY, digits_at + 8));
    }
    if is_word(b"inf") {
        return Some((sign * f64::INFINITY, digits_at + 3));
    }
    if is_word(b"nan") {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let inside = match rest.get(3) {
            Some(b'(') => rest[4..].iter().position(|byte| !is_part(byte)),
            _ => None,
        };
        let len = match inside {
            Some(len) if rest.get(4 + len) == Some(&b')') => 5 + len,
            _ => 3,
        };
        return Some((f64::NAN.copysign(sign), digits_at + len));
    }
    if is_word(b"0x")
        && let Some((number, len)) = hexadecimal_at(&rest[2..])
    {
        return Some((sign * number, digits_at + 2 + len));
    }
    let len = decimal_len(rest)?;
    let number = core::str::from_utf8(&rest[..len])
        .ok()?
        .parse::<f64>()
        .ok()?;
    Some((number.copysign(sign), digits_at + len))
}

fn count_digits(text: &[u8], is_digit: fn(&u8) -> bool) -> usize {
    text.iter().take_while(|byte| is_digit(byte)).count()
}

/// The length of an exponent with its letter; 0: there is none.
fn exponent_len(text: &[u8], letter: u8) -> usize {
    if !text
        .first()
        .is_some_and(|byte| byte.eq_ignore_ascii_case(&letter))
    {
        return 0;
    }
    let sign = usize::from(matches!(text.get(1), Some(b'-' | b'+')));
    match count_digits(&text[1 + sign..], u8::is_ascii_digit) {
        0 => 0,
        digits => 1 + sign + digits,
    }
}

fn decimal_len(text: &[u8]) -> Option<usize> {
    let whole = count_digits(text, u8::is_ascii_digit);
    let mut len = whole;
    if text.get(len) == Some(&b'.') {
        let fraction = count_digits(&text[len + 1..], u8::is_ascii_digit);
        if whole + fraction == 0 {
            return None;
        }
        len += 1 + fraction;
    } else if whole == 0 {
        return None;
    }
    Some(len + exponent_len(&text[len..], b'e'))
}

/// What stands behind `0x`. Digits beyond those that a double holds are not rounded.
fn hexadecimal_at(text: &[u8]) -> Option<(f64, usize)> {
    let whole = count_digits(text, u8::is_ascii_hexdigit);
    let mut len = whole;
    let mut fraction: &[u8] = &[];
    if text.get(len) == Some(&b'.') {
        let count = count_digits(&text[len + 1..], u8::is_ascii_hexdigit);
        fraction = &text[len + 1..len + 1 + count];
        len += 1 + count;
    }
    if whole + fraction.len() == 0 {
        return None;
    }
    let digits = text[..whole].iter().chain(fraction);
    let value = |digit: &u8| f64::from(char::from(*digit).to_digit(16).unwrap_or(0));
    let mantissa = digits.fold(0.0, |sum, digit| sum * 16.0 + value(digit));
    let exponent = exponent_len(&text[len..], b'p');
    let shift = match exponent {
        0 => 0,
        _ => {
            let digits = core::str::from_utf8(&text[len + 1..len + exponent]).unwrap_or("0");
            let digits = digits.strip_prefix('+').unwrap_or(digits);
            digits
                .parse::<i32>()
                .unwrap_or(match digits.starts_with('-') {
                    true => -100_000,
                    false => 100_000,
                })
        }
    };
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX / 4);
    let shift = shift.saturating_sub(places.saturating_mul(4));
    // In two steps, as each factor alone must be a double.
    let half = shift / 2;
    let number = mantissa * 2_f64.powi(half) * 2_f64.powi(shift - half);
    Some((number, len + exponent))
}
