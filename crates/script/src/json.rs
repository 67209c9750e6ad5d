//! `cjson`: JSON, as the library of that name does it.

mod decode;
mod settings;

use crate::arguments::{Arguments, raise, to_int, type_name};
use crate::budget::Meter;
use crate::interpreter::Shared;
use crate::numbers::number_text;
use crate::sandbox::library;
use decode::Decoder;
use mlua::{Function, Lua, MultiValue, Table, Value};
pub(crate) use settings::Settings;
use settings::{Invalid, Switches};
use std::rc::Rc;

/// Deepest nesting, whatever the settings say: about where Redis runs out of Lua's stack.
const DEPTH_MAX: usize = 3000;

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

/// Encodes values, with the settings of a library.
struct Encoder<'e> {
    lua: &'e Lua,
    settings: &'e Settings,
    /// The function of Lua.
    next: &'e Function,
    meter: Meter<'e>,
    to: Vec<u8>,
}

impl Encoder<'_> {
    fn refused<T>(&self, value: &Value, why: &str) -> mlua::Result<T> {
        let text = format!("Cannot serialise {}: {why}", type_name(value));
        Err(raise(self.lua, &text))
    }

    /// Encodes a value. Tables in tables are kept on a stack of their own, as deep ones would
    /// overflow that of the thread.
    fn encode(&mut self, value: Value) -> mlua::Result<()> {
        let mut levels: Vec<Level> = Vec::new();
        let mut value = Some(value);
        let depth_max = self.settings.encode_depth.get().min(DEPTH_MAX);
        loop {
            self.meter.step()?;
            self.meter.room(self.to.len())?;
            match value.take() {
                Some(Value::Table(_)) if levels.len() >= depth_max => {
                    let depth = levels.len() + 1;
                    let text = format!("Cannot serialise, excessive nesting ({depth})");
                    return Err(raise(self.lua, &text));
                }
                Some(Value::Table(table)) => {
                    let level = self.begin_table(table)?;
                    levels.push(level);
                }
                Some(plain) => self.plain(&plain)?,
                None => {}
            }
            let Some(Level { table, place }) = levels.last_mut() else {
                return Ok(());
            };
            match place {
                Place::List(done, len) if done == len => {
                    self.to.push(b']');
                    levels.pop();
                }
                Place::List(done, _) => {
                    if *done > 0 {
                        self.to.push(b',');
                    }
                    *done += 1;
                    value = Some(table.raw_get(*done)?);
                }
                Place::Map(last) => {
                    let (key, of_key): (Value, Value) = self.next.call((&*table, last.clone()))?;
                    if key.is_nil() {
                        self.to.push(b'}');
                        levels.pop();
                        continue;
                    }
                    if !last.is_nil() {
                        self.to.push(b',');
                    }
                    self.key(&key)?;
                    *last = key;
                    value = Some(of_key);
                }
            }
        }
    }

    fn plain(&mut self, value: &Value) -> mlua::Result<()> {
        match value {
            Value::Nil => self.to.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => {
                self.to.extend_from_slice(b"null");
            }
            Value::Boolean(true) => self.to.extend_from_slice(b"true"),
            Value::Boolean(false) => self.to.extend_from_slice(b"false"),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.text(&text.as_bytes())?,
            other => return self.refused(other, "type not supported"),
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> mlua::Result<()> {
        let text = match self.settings.encode_invalid.get() {
            _ if number.is_finite() => number_text(number, self.settings.precision.get()),
            Invalid::Refused => {
                let number = Value::Number(number);
                return self.refused(&number, "must not be NaN or Inf");
            }
            Invalid::Allowed if number.is_nan() => "nan".to_owned(),
            Invalid::Allowed => number_text(number, self.settings.precision.get()),
            Invalid::Null => "null".to_owned(),
        };
        self.to.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn key(&mut self, key: &Value) -> mlua::Result<()> {
        match key {
            Value::String(text) => self.text(&text.as_bytes())?,
            Value::Integer(_) | Value::Number(_) => {
                self.to.push(b'"');
                self.plain(key)?;
                self.to.push(b'"');
            }
            _ => return self.refused(key, "table key must be a number or string"),
        }
        self.to.push(b':');
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> mlua::Result<()> {
        // Each byte becomes one to six.
        self.meter.room(self.to.len() + text.len())?;
        let to = &mut self.to;
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
        Ok(())
    }

    /// The length of a table that is a list: only whole keys from 1 on, and not too sparse.
    fn list_len(&mut self, table: &Table) -> mlua::Result<Option<usize>> {
        let (mut largest, mut count) = (0_i32, 0_i32);
        for pair in table.pairs::<Value, Value>() {
            self.meter.step()?;
            let number = match pair?.0 {
                Value::Integer(number @ 1..) => number as f64,
                Value::Number(number) if number >= 1.0 && number.floor() == number => number,
                _ => return Ok(None),
            };
            // As C does it: beyond 32 bits it is the smallest of all.
            let number = match number < 2_147_483_648.0 {
                true => to_int(number),
                false => i32::MIN,
            };
            largest = largest.max(number);
            count = count.wrapping_add(1);
        }
        let ratio = self.settings.sparse_ratio.get();
        let is_sparse = ratio > 0
            && largest > count.wrapping_mul(ratio)
            && largest > self.settings.sparse_safe.get();
        if is_sparse {
            return match self.settings.sparse_converts.get() {
                true => Ok(None),
                false => {
                    let table = Value::Table(table.clone());
                    self.refused(&table, "excessively sparse array")
                }
            };
        }
        Ok(usize::try_from(largest).ok().filter(|len| *len > 0))
    }

    fn begin_table(&mut self, table: Table) -> mlua::Result<Level> {
        let place = match self.list_len(&table)? {
            Some(len) => Place::List(0, len),
            None => Place::Map(Value::Nil),
        };
        self.to.push(match place {
            Place::List(..) => b'[',
            Place::Map(_) => b'{',
        });
        Ok(Level { table, place })
    }
}

/// One argument, neither more nor fewer.
fn single(lua: &Lua, values: MultiValue) -> mlua::Result<Arguments<'_>> {
    let arguments = Arguments::new(lua, values);
    match arguments.len() {
        1 => Ok(arguments),
        _ => Err(arguments.bad(1, "expected 1 argument")),
    }
}

/// The library, with settings that are its own.
fn with_settings(lua: &Lua, shared: &Shared, settings: &Rc<Settings>) -> mlua::Result<Table> {
    let next: Function = lua.globals().get("next")?;
    let (state, own) = (Rc::clone(shared), Rc::clone(settings));
    let encode = lua.create_function(move |lua, values: MultiValue| {
        let arguments = single(lua, values)?;
        let mut encoder = Encoder {
            lua,
            settings: &own,
            next: &next,
            meter: Meter::new(&state),
            to: Vec::new(),
        };
        encoder.encode(arguments.get(1))?;
        lua.create_string(encoder.to)
    })?;
    let (state, own) = (Rc::clone(shared), Rc::clone(settings));
    let decode = lua.create_function(move |lua, values: MultiValue| {
        let text = single(lua, values)?.text(1)?;
        Decoder::new(lua, &text.as_bytes(), &own, Meter::new(&state)).all()
    })?;
    let state = Rc::clone(shared);
    let new = lua.create_function(move |lua, _: MultiValue| {
        with_settings(lua, &state, &Rc::new(Settings::default()))
    })?;
    let json = library(lua, [("encode", encode), ("decode", decode), ("new", new)])?;
    Switches { lua, settings }.install(&json)?;
    json.raw_set("null", Value::NULL)?;
    json.raw_set("_NAME", "cjson")?;
    json.raw_set("_VERSION", "2.1.0")?;
    Ok(json)
}

/// The library.
pub(crate) fn open(lua: &Lua, shared: &Shared) -> mlua::Result<Table> {
    with_settings(lua, shared, &shared.json)
}
