//! Values of the protocol and of Lua, each as the other side sees them.

use crate::Value;
use mlua::{Lua, Table};

/// Deepest nesting of tables in a reply, as in Redis.
const DEPTH_MAX: usize = 200;

/// What a script gives back.
pub(crate) fn to_value(value: &mlua::Value) -> Value {
    of_lua(value, 0)
}

fn of_lua(value: &mlua::Value, depth: usize) -> Value {
    match value {
        mlua::Value::Boolean(true) => Value::Integer(1),
        mlua::Value::Integer(number) => Value::Integer(*number),
        // As C casts: the fraction goes.
        mlua::Value::Number(number) => Value::Integer(*number as i64),
        mlua::Value::String(bytes) => Value::Bulk(bytes.as_bytes().to_vec()),
        mlua::Value::Table(_) if depth >= DEPTH_MAX => {
            Value::Error(b"ERR reached lua stack limit".to_vec())
        }
        mlua::Value::Table(table) => of_table(table, depth),
        _ => Value::Nil,
    }
}

fn bytes_of(table: &Table, field: &str) -> Option<Vec<u8>> {
    match table.raw_get(field) {
        Ok(mlua::Value::String(bytes)) => Some(bytes.as_bytes().to_vec()),
        _ => None,
    }
}

fn of_table(table: &Table, depth: usize) -> Value {
    if let Some(error) = bytes_of(table, "err") {
        return Value::Error(error);
    }
    if let Some(status) = bytes_of(table, "ok") {
        return Value::Status(status);
    }
    if let Ok(mlua::Value::Number(double)) = table.raw_get("double") {
        return Value::Double(double);
    }
    if let Ok(mlua::Value::Integer(double)) = table.raw_get("double") {
        return Value::Double(double as f64);
    }
    if let Some(number) = bytes_of(table, "big_number") {
        return Value::BigNumber(number);
    }
    if let Ok(mlua::Value::Table(map)) = table.raw_get("map") {
        let pairs = map.pairs::<mlua::Value, mlua::Value>().flatten();
        let pair =
            |(k, v): (mlua::Value, mlua::Value)| (of_lua(&k, depth + 1), of_lua(&v, depth + 1));
        return Value::Map(pairs.map(pair).collect());
    }
    if let Ok(mlua::Value::Table(set)) = table.raw_get("set") {
        let members = set.pairs::<mlua::Value, mlua::Value>().flatten();
        return Value::Set(members.map(|(k, _)| of_lua(&k, depth + 1)).collect());
    }
    if let Ok(mlua::Value::Table(verbatim)) = table.raw_get("verbatim_string")
        && let Some(text) = bytes_of(&verbatim, "string")
        && let Some(format) = bytes_of(&verbatim, "format")
    {
        return Value::Verbatim(format, text);
    }
    let mut items = Vec::new();
    loop {
        match table.raw_get::<mlua::Value>(items.len() + 1) {
            Ok(mlua::Value::Nil) | Err(_) => return Value::Array(items),
            Ok(item) => items.push(of_lua(&item, depth + 1)),
        }
    }
}

/// The result of a command, as a script sees it.
pub(crate) fn to_lua(lua: &Lua, value: &Value) -> mlua::Result<mlua::Value> {
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
        Value::Nil => Ok(mlua::Value::Boolean(false)),
        Value::Integer(number) => Ok(mlua::Value::Number(*number as f64)),
        Value::Status(text) => field("ok", text),
        Value::Error(text) => field("err", text),
        Value::Bulk(bytes) => Ok(mlua::Value::String(lua.create_string(bytes)?)),
        Value::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (at, item) in items.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, item)?)?;
            }
            list(None, table)
        }
        Value::Map(pairs) => {
            let table = lua.create_table()?;
            for (key, item) in pairs {
                table.raw_set(to_lua(lua, key)?, to_lua(lua, item)?)?;
            }
            list(Some("map"), table)
        }
        Value::Set(items) => {
            let table = lua.create_table()?;
            for item in items {
                table.raw_set(to_lua(lua, item)?, true)?;
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
