//! Arguments of functions that scripts call, and errors of such functions, in the words of Lua's
//! own libraries: `luaL_check…` and `luaL_error` of its C interface.

use crate::numbers::number_text;
use mlua::{Lua, LuaString, MultiValue, Table, Value};

/// Digits of a number as text, as Lua shows it.
const DIGITS: usize = 14;

/// Where the caller of the function that runs is: `user_script:1: `, or nothing. The prelude is no
/// caller.
fn place(lua: &Lua) -> String {
    for level in 1..5 {
        let at = lua.inspect_stack(level, |debug| {
            let name = debug.source().short_src.map(|name| name.into_owned());
            (name, debug.current_line().filter(|line| *line > 0))
        });
        match at {
            Some((Some(name), Some(_))) if name == "prelude" => {}
            Some((Some(name), Some(line))) => return format!("{name}:{line}: "),
            Some(_) | None => break,
        }
    }
    String::new()
}

/// An error of the function that runs, with the place of its caller in front.
pub(crate) fn raise(lua: &Lua, text: &str) -> mlua::Error {
    mlua::Error::runtime(place(lua) + text)
}

/// A double as a 64-bit integer, as C makes it on most machines of Redis. A number that does not
/// fit becomes the smallest one.
pub(crate) fn to_integer(number: f64) -> i64 {
    match number > -9_223_372_036_854_777_856.0 && number < 9_223_372_036_854_775_808.0 {
        true => number as i64,
        false => i64::MIN,
    }
}

/// The same for a 32-bit integer, by way of 64 bits, as `luaL_checkint` does it.
pub(crate) fn to_int(number: f64) -> i32 {
    to_integer(number) as i32
}

/// The name of a type, as Lua knows it.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) | Value::Number(_) => "number",
        Value::LightUserData(_) | Value::UserData(_) | Value::Error(_) => "userdata",
        other => other.type_name(),
    }
}

/// What a function was called with. Arguments count from 1.
pub(crate) struct Arguments<'l> {
    pub(crate) lua: &'l Lua,
    values: MultiValue,
}

impl<'l> Arguments<'l> {
    pub(crate) fn new(lua: &'l Lua, values: MultiValue) -> Self {
        Self { lua, values }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Nil where there is none.
    pub(crate) fn get(&self, n: usize) -> Value {
        self.at(n).cloned().unwrap_or(Value::Nil)
    }

    fn at(&self, n: usize) -> Option<&Value> {
        self.values.get(n.checked_sub(1)?)
    }

    fn is_none_or_nil(&self, n: usize) -> bool {
        matches!(self.at(n), None | Some(Value::Nil))
    }

    /// `luaL_argerror`.
    pub(crate) fn bad(&self, n: usize, why: &str) -> mlua::Error {
        let names = self.lua.inspect_stack(0, |debug| {
            let names = debug.names();
            let name = names.name.map(|name| name.into_owned());
            (name, names.name_what == Some("method"))
        });
        let (name, is_method) = names.unwrap_or_default();
        let name = name.unwrap_or_else(|| "?".to_owned());
        let text = match (is_method, n) {
            (true, 1) => format!("calling '{name}' on bad self ({why})"),
            (true, _) => format!("bad argument #{} to '{name}' ({why})", n - 1),
            (false, _) => format!("bad argument #{n} to '{name}' ({why})"),
        };
        raise(self.lua, &text)
    }

    /// `luaL_typerror`.
    pub(crate) fn wrong_type(&self, n: usize, expected: &str) -> mlua::Error {
        let got = self.at(n).map_or("no value", type_name);
        self.bad(n, &format!("{expected} expected, got {got}"))
    }

    /// There is one, even if it is nil.
    pub(crate) fn any(&self, n: usize) -> mlua::Result<Value> {
        let value = self.at(n).cloned();
        value.ok_or_else(|| self.bad(n, "value expected"))
    }

    pub(crate) fn table(&self, n: usize) -> mlua::Result<Table> {
        match self.at(n) {
            Some(Value::Table(table)) => Ok(table.clone()),
            _ => Err(self.wrong_type(n, "table")),
        }
    }

    /// A string, or a number as text.
    pub(crate) fn text(&self, n: usize) -> mlua::Result<LuaString> {
        match self.at(n) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Integer(number)) => {
                let text = number_text(*number as f64, DIGITS);
                self.lua.create_string(text)
            }
            Some(Value::Number(number)) => self.lua.create_string(number_text(*number, DIGITS)),
            _ => Err(self.wrong_type(n, "string")),
        }
    }

    pub(crate) fn text_or_none(&self, n: usize) -> mlua::Result<Option<LuaString>> {
        match self.is_none_or_nil(n) {
            true => Ok(None),
            false => self.text(n).map(Some),
        }
    }

    /// A number, or text that is one.
    pub(crate) fn number_if_any(&self, n: usize) -> Option<f64> {
        number_of(self.lua, self.at(n)?)
    }

    pub(crate) fn number(&self, n: usize) -> mlua::Result<f64> {
        let number = self.number_if_any(n);
        number.ok_or_else(|| self.wrong_type(n, "number"))
    }

    pub(crate) fn integer(&self, n: usize) -> mlua::Result<i64> {
        self.number(n).map(to_integer)
    }

    pub(crate) fn integer_or(&self, n: usize, default: i64) -> mlua::Result<i64> {
        match self.is_none_or_nil(n) {
            true => Ok(default),
            false => self.integer(n),
        }
    }
}

/// A number, or text that is one.
pub(crate) fn number_of(lua: &Lua, value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        Value::String(_) => lua.coerce_number(value.clone()).ok().flatten(),
        _ => None,
    }
}

/// The bytes of a text up to the first zero, where a text of C ends.
pub(crate) fn of_c(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}
