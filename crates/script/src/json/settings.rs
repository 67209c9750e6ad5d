//! The settings of `cjson`, and the functions that change them.

use crate::arguments::{Arguments, to_int};
use core::cell::Cell;
use mlua::{Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// The fate of numbers that JSON does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Invalid {
    /// They are refused.
    Refused,
    /// They are written as C writes them.
    Allowed,
    /// They are written as `null`.
    Null,
}

/// The settings of a library. Those of `cjson` itself begin each script anew (SCRIPT-1).
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) sparse_converts: Cell<bool>,
    pub(super) sparse_ratio: Cell<i32>,
    pub(super) sparse_safe: Cell<i32>,
    pub(super) encode_depth: Cell<usize>,
    pub(super) decode_depth: Cell<usize>,
    pub(super) precision: Cell<usize>,
    pub(super) encode_invalid: Cell<Invalid>,
    pub(super) decode_invalid: Cell<bool>,
    /// It changes nothing here.
    keeps_buffer: Cell<bool>,
    is_changed: Cell<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sparse_converts: Cell::new(false),
            sparse_ratio: Cell::new(2),
            sparse_safe: Cell::new(10),
            encode_depth: Cell::new(1000),
            decode_depth: Cell::new(1000),
            precision: Cell::new(14),
            encode_invalid: Cell::new(Invalid::Refused),
            decode_invalid: Cell::new(true),
            keeps_buffer: Cell::new(true),
            is_changed: Cell::new(false),
        }
    }
}

impl Settings {
    /// Makes them what they are at first.
    pub(crate) fn reset(&self) {
        if !self.is_changed.replace(false) {
            return;
        }
        let first = Self::default();
        self.sparse_converts.swap(&first.sparse_converts);
        self.sparse_ratio.swap(&first.sparse_ratio);
        self.sparse_safe.swap(&first.sparse_safe);
        self.encode_depth.swap(&first.encode_depth);
        self.decode_depth.swap(&first.decode_depth);
        self.precision.swap(&first.precision);
        self.encode_invalid.swap(&first.encode_invalid);
        self.decode_invalid.swap(&first.decode_invalid);
        self.keeps_buffer.swap(&first.keeps_buffer);
    }
}

/// Reads whole numbers between two bounds. The library tells of the first argument, whichever it
/// was.
fn integer(arguments: &Arguments<'_>, n: usize, least: i32, most: i32) -> mlua::Result<i32> {
    let value = to_int(arguments.number(n)?);
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => {
            let why = format!("expected integer between {least} and {most}");
            Err(arguments.bad(1, &why))
        }
    }
}

/// Reads a word; a truth value stands for the first or the second one.
fn choice(arguments: &Arguments<'_>, n: usize, words: &[&str]) -> mlua::Result<usize> {
    if let Value::Boolean(truth) = arguments.get(n) {
        return Ok(usize::from(truth));
    }
    let word = arguments.text(n)?;
    let word = word.as_bytes();
    let found = words.iter().position(|known| known.as_bytes() == &*word);
    found.ok_or_else(|| {
        let why = format!("invalid option '{}'", String::from_utf8_lossy(&word));
        arguments.bad(n, &why)
    })
}

const OFF_ON: &[&str] = &["off", "on"];

/// The functions of a library that change its settings.
pub(super) struct Switches<'s> {
    pub(super) lua: &'s Lua,
    pub(super) settings: &'s Rc<Settings>,
}

impl Switches<'_> {
    /// A function of at most this number of arguments. It changes settings and gives them.
    fn put<R: mlua::IntoLuaMulti + 'static>(
        &self,
        json: &Table,
        (name, most): (&str, usize),
        change: fn(&Settings, &Arguments<'_>) -> mlua::Result<R>,
    ) -> mlua::Result<()> {
        let settings = Rc::clone(self.settings);
        let function = self.lua.create_function(move |lua, values: MultiValue| {
            let arguments = Arguments::new(lua, values);
            if arguments.len() > most {
                return Err(arguments.bad(most + 1, "found too many arguments"));
            }
            settings.is_changed.set(true);
            change(&settings, &arguments)
        })?;
        json.raw_set(name, function)
    }

    pub(super) fn install(&self, json: &Table) -> mlua::Result<()> {
        self.put(json, ("encode_sparse_array", 3), |settings, arguments| {
            if !arguments.get(1).is_nil() {
                let converts = choice(arguments, 1, OFF_ON)? == 1;
                settings.sparse_converts.set(converts);
            }
            for (n, setting) in [(2, &settings.sparse_ratio), (3, &settings.sparse_safe)] {
                if !arguments.get(n).is_nil() {
                    setting.set(integer(arguments, n, 0, i32::MAX)?);
                }
            }
            let converts = settings.sparse_converts.get();
            Ok((
                converts,
                settings.sparse_ratio.get(),
                settings.sparse_safe.get(),
            ))
        })?;
        self.put(json, ("encode_max_depth", 1), |settings, arguments| {
            set_count(&settings.encode_depth, arguments, i32::MAX)
        })?;
        self.put(json, ("decode_max_depth", 1), |settings, arguments| {
            set_count(&settings.decode_depth, arguments, i32::MAX)
        })?;
        self.put(
            json,
            ("encode_number_precision", 1),
            |settings, arguments| set_count(&settings.precision, arguments, 14),
        )?;
        self.put(json, ("encode_keep_buffer", 1), |settings, arguments| {
            set_truth(&settings.keeps_buffer, arguments)
        })?;
        self.put(
            json,
            ("decode_invalid_numbers", 1),
            |settings, arguments| set_truth(&settings.decode_invalid, arguments),
        )?;
        self.put(
            json,
            ("encode_invalid_numbers", 1),
            |settings, arguments| {
                if !arguments.get(1).is_nil() {
                    let invalid = match choice(arguments, 1, &["off", "on", "null"])? {
                        0 => Invalid::Refused,
                        1 => Invalid::Allowed,
                        _ => Invalid::Null,
                    };
                    settings.encode_invalid.set(invalid);
                }
                Ok(match settings.encode_invalid.get() {
                    Invalid::Refused => Value::Boolean(false),
                    Invalid::Allowed => Value::Boolean(true),
                    Invalid::Null => Value::String(arguments.lua.create_string("null")?),
                })
            },
        )
    }
}

fn set_count(setting: &Cell<usize>, arguments: &Arguments<'_>, most: i32) -> mlua::Result<usize> {
    if !arguments.get(1).is_nil() {
        let count = integer(arguments, 1, 1, most)?;
        setting.set(usize::try_from(count).unwrap_or(1));
    }
    Ok(setting.get())
}

fn set_truth(setting: &Cell<bool>, arguments: &Arguments<'_>) -> mlua::Result<bool> {
    if !arguments.get(1).is_nil() {
        setting.set(choice(arguments, 1, OFF_ON)? == 1);
    }
    Ok(setting.get())
}
