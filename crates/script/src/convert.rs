//! Values of the protocol and of Lua, each as the other side sees them.

use crate::Value;
use crate::arguments::{of_c, to_integer};
use crate::budget::Meter;
use crate::interpreter::Shared;
use bytes::Bytes;
use mlua::{Lua, Table};

/// Deepest nesting of tables in a reply: replies are written by recursion. The error is that of
/// Redis, which gives about 8000.
const DEPTH_MAX: usize = 200;
/// Bytes of an element of a reply, beside its text.
const ELEMENT_BYTES: usize = 32;

/// What a script gives back.
///
/// # Errors
/// Its budget is used up: a small table that has itself in it may be a reply without an end.
pub(crate) fn to_value(value: &mlua::Value, shared: &Shared) -> mlua::Result<Value> {
    let mut giving = Giving {
        meter: Meter::new(shared),
        bytes: 0,
        is_three: shared.protocol.get() == 3,
    };
    giving.of_lua(value, 0)
}

/// A reply that is being made.
struct Giving<'g> {
    meter: Meter<'g>,
    bytes: usize,
    /// Whether the script speaks version 3 of the protocol.
    is_three: bool,
}

impl Giving<'_> {
    fn add(&mut self, bytes: usize) -> mlua::Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.meter.step()?;
        self.meter.room(self.bytes)
    }

    fn of_lua(&mut self, value: &mlua::Value, depth: usize) -> mlua::Result<Value> {
        self.add(ELEMENT_BYTES)?;
        Ok(match value {
            mlua::Value::Boolean(truth) if self.is_three => Value::Boolean(*truth),
            mlua::Value::Boolean(true) => Value::Integer(1),
            mlua::Value::Integer(number) => Value::Integer(*number),
            // As C casts: the fraction goes.
            mlua::Value::Number(number) => Value::Integer(to_integer(*number)),
            mlua::Value::String(bytes) => {
                let bytes = bytes.as_bytes();
                self.add(bytes.len())?;
                Value::Bulk(Bytes::copy_from_slice(&bytes))
            }
            mlua::Value::Table(_) if depth >= DEPTH_MAX => {
                Value::Error(b"ERR reached lua stack limit".to_vec())
            }
            mlua::Value::Table(table) => self.of_table(table, depth)?,
            _ => Value::Nil,
        })
    }

    fn text_of(&mut self, table: &Table, field: &str) -> mlua::Result<Option<Vec<u8>>> {
        let Ok(mlua::Value::String(bytes)) = table.raw_get(field) else {
            return Ok(None);
        };
        let bytes = bytes.as_bytes();
        self.add(bytes.len())?;
        Ok(Some(bytes.to_vec()))
    }

    fn of_table(&mut self, table: &Table, depth: usize) -> mlua::Result<Value> {
        if let Some(error) = self.text_of(table, "err")? {
            return Ok(Value::Error(of_c(&error).to_vec()));
        }
        if let Some(status) = self.text_of(table, "ok")? {
            return Ok(Value::Status(of_c(&status).to_vec()));
        }
        match table.raw_get("double")? {
            mlua::Value::Number(double) => return Ok(Value::Double(double)),
            mlua::Value::Integer(double) => return Ok(Value::Double(double as f64)),
            _ => {}
        }
        if let Some(number) = self.text_of(table, "big_number")? {
            return Ok(Value::BigNumber(number));
        }
        if let mlua::Value::Table(verbatim) = table.raw_get("verbatim_string")?
            && let Some(format) = self.text_of(&verbatim, "format")?
            && let Some(text) = self.text_of(&verbatim, "string")?
        {
            return Ok(Value::Verbatim(of_c(&format).to_vec(), text));
        }
        if let mlua::Value::Table(map) = table.raw_get("map")? {
            let mut pairs = Vec::new();
            for pair in map.pairs::<mlua::Value, mlua::Value>() {
                let (key, value) = pair?;
                let key = self.of_lua(&key, depth + 1)?;
                pairs.push((key, self.of_lua(&value, depth + 1)?));
            }
            return Ok(Value::Map(pairs));
        }
        if let mlua::Value::Table(set) = table.raw_get("set")? {
            let mut members = Vec::new();
            for pair in set.pairs::<mlua::Value, mlua::Value>() {
                members.push(self.of_lua(&pair?.0, depth + 1)?);
            }
            return Ok(Value::Set(members));
        }
        let mut items = Vec::new();
        loop {
            match table.raw_get::<mlua::Value>(items.len() + 1)? {
                mlua::Value::Nil => return Ok(Value::Array(items)),
                item => items.push(self.of_lua(&item, depth + 1)?),
            }
        }
    }
}

/// The result of a command, as a script sees it that speaks a version of the protocol.
pub(crate) fn to_lua(lua: &Lua, value: &Value, protocol: u8) -> mlua::Result<mlua::Value> {
    let field = |name: &str, bytes: &[u8]| {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, lua.create_string(bytes)?)?;
        Ok(mlua::Value::Table(table))
    };
    let list = |name: Option<&str>, items: Table| {
        let Some(name) = name else {
            return Ok(mlua::Value::Table(items));
        };
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, items)?;
        Ok(mlua::Value::Table(table))
    };
    match value {
        Value::Nil if protocol == 3 => Ok(mlua::Value::Nil),
        Value::Nil => Ok(mlua::Value::Boolean(false)),
        Value::Integer(number) => Ok(mlua::Value::Number(*number as f64)),
        Value::Status(text) => field("ok", text),
        Value::Error(text) => error_table(lua, text, true).map(mlua::Value::Table),
        Value::Bulk(bytes) => Ok(mlua::Value::String(lua.create_string(bytes)?)),
        Value::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (at, item) in items.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, item, protocol)?)?;
            }
            list(None, table)
        }
        Value::Map(pairs) => {
            let table = lua.create_table()?;
            for (key, item) in pairs {
                let item = to_lua(lua, item, protocol)?;
                table.raw_set(to_lua(lua, key, protocol)?, item)?;
            }
            list(Some("map"), table)
        }
        Value::Set(items) => {
            let table = lua.create_table()?;
            for item in items {
                table.raw_set(to_lua(lua, item, protocol)?, true)?;
            }
            list(Some("set"), table)
        }
        Value::Double(number) => {
            let table = lua.create_table_with_capacity(0, 1)?;
            table.raw_set("double", *number)?;
            Ok(mlua::Value::Table(table))
        }
        Value::Boolean(truth) => Ok(mlua::Value::Boolean(*truth)),
        Value::BigNumber(text) => field("big_number", text),
        Value::Verbatim(format, text) => {
            let verbatim = lua.create_table_with_capacity(0, 2)?;
            verbatim.raw_set("format", lua.create_string(format)?)?;
            verbatim.raw_set("string", lua.create_string(text)?)?;
            list(Some("verbatim_string"), verbatim)
        }
    }
}

/// An error, as a script sees it. That of a command has a mark, as in Redis.
pub(crate) fn error_table(lua: &Lua, text: &[u8], is_of_command: bool) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 2)?;
    table.raw_set("err", lua.create_string(text)?)?;
    if is_of_command {
        table.raw_set("ignore_error_stats_update", true)?;
    }
    Ok(table)
}
