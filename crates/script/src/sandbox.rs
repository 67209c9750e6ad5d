//! What a script finds: tables of libraries that it cannot change, and nothing else (SCRIPT-1,
//! SCRIPT-4).
//!
//! The environment is a *proxy*: an empty table, which shows what another one has, and refuses to
//! be written. Tables of libraries are shown by proxies, too. The true tables are nowhere to be
//! had. So all scripts have one environment, and only `KEYS` and `ARGV` are made anew. A library
//! that is loaded has one of its own.
//!
//! The table `reals` has the true table of each proxy, for functions that do not ask metatables:
//! `next`, `rawget`, and their like.

use crate::arguments::{Arguments, raise};
use crate::interpreter::{Shared, interrupted, prelude_error};
use crate::{bits, json, msgpack, pattern, random, structs};
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Functions of the base library that scripts have as they are.
const BASE: [&str; 9] = [
    "assert", "error", "ipairs", "rawequal", "select", "tonumber", "tostring", "type", "unpack",
];

const PRELUDE: &str = include_str!("sandbox/prelude.lua");

/// A table of functions.
pub(crate) fn library<const N: usize>(
    lua: &Lua,
    functions: [(&str, Function); N],
) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, N)?;
    for (name, function) in functions {
        table.raw_set(name, function)?;
    }
    Ok(table)
}

/// What the prelude gives.
pub(crate) struct Sandbox {
    /// A new environment to load a library in, with `redis.register_function` and no commands.
    pub(crate) loading_environment: Function,
    /// The library is loaded.
    pub(crate) loaded: Function,
    /// Calls a function with two arguments; errors go through a handler.
    pub(crate) protected: Function,
    /// Calls a script with these `KEYS` and `ARGV`, as `protected` does.
    pub(crate) run: Function,
    /// The same with one key and up to three arguments.
    pub(crate) run_small: Function,
    /// The environment of scripts.
    pub(crate) script_environment: Table,
}

impl Sandbox {
    /// Of `redis`: the part that libraries may use while they are loaded, and all of it.
    pub(crate) fn new(
        lua: &Lua,
        shared: &Shared,
        (loading, redis): (Table, Table),
    ) -> mlua::Result<Self> {
        let globals = lua.globals();
        let base = lua.create_table()?;
        for name in BASE {
            base.raw_set(name, globals.raw_get::<Value>(name)?)?;
        }
        base.raw_set("_VERSION", "Lua 5.1")?;
        base.raw_set("collectgarbage", collect_garbage(lua)?)?;
        base.raw_set("gcinfo", garbage_info(lua)?)?;
        base.raw_set("loadstring", load_string(lua)?)?;
        base.raw_set("load", load(lua, shared)?)?;
        let string: Table = globals.raw_get("string")?;
        let step = pattern::install(lua, &string, shared)?;
        strings(lua, &string, shared)?;
        let libraries = lua.create_table()?;
        libraries.raw_set("string", &string)?;
        for name in ["table", "math", "coroutine"] {
            libraries.raw_set(name, globals.raw_get::<Value>(name)?)?;
        }
        random::install(lua, &libraries.raw_get("math")?, shared)?;
        libraries.raw_set("bit", bits::open(lua)?)?;
        libraries.raw_set("cjson", json::open(lua, shared)?)?;
        libraries.raw_set("cmsgpack", msgpack::open(lua, shared)?)?;
        libraries.raw_set("struct", structs::open(lua, shared)?)?;
        let state = Rc::clone(shared);
        let seen = lua.create_function(move |lua, raised: Value| {
            Ok((state.is_over(), crate::interpreter::seen(lua, raised)?))
        })?;
        let reals = lua.create_table()?;
        let native = lua.create_sequence_from([check(lua, shared)?, seen, step])?;
        let all = (&base, libraries, redis, loading, &reals, native);
        let prelude = lua.load(PRELUDE).set_name("=prelude");
        let (
            loading_environment,
            environment,
            loaded,
            protected,
            runs,
            script_environment,
            complete,
            metatable_of,
            matches,
        ) = prelude.call::<(_, _, _, _, Vec<Function>, _, _, _, _)>(all)?;
        let [run, run_small] = runs
            .try_into()
            .map_err(|_| mlua::Error::runtime("the prelude gives two ways to run a script"))?;
        pattern::install_matches(lua, &string, matches)?;
        lua.set_named_registry_value(ENVIRONMENT, &environment)?;
        let proxies = Proxies {
            reals,
            complete,
            metatable_of,
            environment,
        };
        proxies.install(lua, &base)?;
        // All of it, so that each script sees it in the same order.
        let _all = proxies.real(&script_environment)?;
        Ok(Self {
            loading_environment,
            loaded,
            protected,
            run,
            run_small,
            script_environment,
        })
    }
}

/// What functions know of proxies.
#[derive(Clone)]
struct Proxies {
    reals: Table,
    /// Gives a true table with all that its proxy shows.
    complete: Function,
    /// Gives the metatable of strings, or of the environment.
    metatable_of: Function,
    /// Gives the environment of the script that runs.
    environment: Function,
}

const READ_ONLY: &str = "Attempt to modify a readonly table";

impl Proxies {
    /// The true table of a proxy.
    fn real(&self, table: &Table) -> mlua::Result<Option<Table>> {
        match self.reals.raw_get(table)? {
            Value::Table(real) => self.complete.call(real).map(Some),
            _ => Ok(None),
        }
    }

    fn is_proxy(&self, table: &Table) -> mlua::Result<bool> {
        Ok(!self.reals.raw_get::<Value>(table)?.is_nil())
    }

    fn put(
        &self,
        lua: &Lua,
        base: &Table,
        name: &'static str,
        run: fn(&Self, &Arguments<'_>, &Function) -> mlua::Result<MultiValue>,
    ) -> mlua::Result<()> {
        let native: Function = lua.globals().raw_get(name)?;
        let this = self.clone();
        let function = lua.create_function(move |lua, values: MultiValue| {
            run(&this, &Arguments::new(lua, values), &native)
        })?;
        base.raw_set(name, function)
    }

    /// The functions of the base library that do not ask metatables, and those on metatables.
    fn install(&self, lua: &Lua, base: &Table) -> mlua::Result<()> {
        self.put(lua, base, "next", |this, arguments, native| {
            let table = arguments.table(1)?;
            let table = this.real(&table)?.unwrap_or(table);
            native.call((table, arguments.get(2)))
        })?;
        let next: Function = base.raw_get("next")?;
        let this = self.clone();
        let native: Function = lua.globals().raw_get("next")?;
        let pairs = lua.create_function(move |lua, values: MultiValue| {
            let table = Arguments::new(lua, values).table(1)?;
            let next = if this.is_proxy(&table)? {
                &next
            } else {
                &native
            };
            Ok((next.clone(), table, Value::Nil))
        })?;
        base.raw_set("pairs", pairs)?;
        self.put(lua, base, "rawget", |this, arguments, native| {
            let table = arguments.table(1)?;
            let table = this.real(&table)?.unwrap_or(table);
            native.call((table, arguments.any(2)?))
        })?;
        self.put(lua, base, "rawset", |this, arguments, native| {
            let table = arguments.table(1)?;
            let (key, value) = (arguments.any(2)?, arguments.any(3)?);
            match this.is_proxy(&table)? {
                true => Err(mlua::Error::runtime(READ_ONLY)),
                false => native.call((table, key, value)),
            }
        })?;
        self.put(lua, base, "setmetatable", |this, arguments, native| {
            let table = arguments.table(1)?;
            let metatable = arguments.get(2);
            if !matches!(metatable, Value::Nil | Value::Table(_)) || arguments.len() < 2 {
                return Err(arguments.bad(2, "nil or table expected"));
            }
            if this.is_proxy(&table)? {
                return Err(mlua::Error::runtime(READ_ONLY));
            }
            let set = native.call((table, metatable));
            set.map_err(|_| raise(arguments.lua, "cannot change a protected metatable"))
        })?;
        self.put(lua, base, "getmetatable", |this, arguments, native| {
            let value = arguments.any(1)?;
            match &value {
                Value::String(_) => this.metatable_of.call(true),
                Value::Table(table) if this.is_proxy(table)? => {
                    match *table == this.environment.call::<Table>(())? {
                        true => this.metatable_of.call(false),
                        false => Ok(MultiValue::from_vec(vec![Value::Nil])),
                    }
                }
                _ => native.call(value),
            }
        })
    }
}

/// Changes bytes in place.
type Change = fn(&mut [u8]);

/// Functions of `string` that take long, or much memory: what they do is counted (SCRIPT-2,
/// SCRIPT-3). Bytecode is refused.
fn strings(lua: &Lua, string: &Table, shared: &Shared) -> mlua::Result<()> {
    let state = Rc::clone(shared);
    let repeat = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let text = arguments.text(1)?;
        let count = crate::arguments::to_int(arguments.number(2)?);
        let text = text.as_bytes();
        let count = usize::try_from(count).unwrap_or(0);
        let len = text.len().saturating_mul(count);
        state.room(len)?;
        state.spend(cost(len))?;
        lua.create_string(text.repeat(if text.is_empty() { 0 } else { count }))
    })?;
    string.raw_set("rep", repeat)?;
    let changes: [(&str, Change); 3] = [
        ("upper", <[u8]>::make_ascii_uppercase),
        ("lower", <[u8]>::make_ascii_lowercase),
        ("reverse", <[u8]>::reverse),
    ];
    for (name, change) in changes {
        let state = Rc::clone(shared);
        let changed = lua.create_function(move |lua, values: MultiValue| {
            let text = Arguments::new(lua, values).text(1)?;
            let mut text = text.as_bytes().to_vec();
            state.spend(cost(text.len()))?;
            change(&mut text);
            lua.create_string(text)
        })?;
        string.raw_set(name, changed)?;
    }
    let dump = lua.create_function(|lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        match arguments.get(1) {
            Value::Function(_) => Err::<(), _>(raise(lua, "unable to dump given function")),
            _ => Err(arguments.wrong_type(1, "function")),
        }
    })?;
    string.raw_set("dump", dump)
}

/// Instructions that take as long as work on this number of bytes.
fn cost(bytes: usize) -> u64 {
    u64::try_from(bytes / 64).unwrap_or(u64::MAX)
}

fn kibibytes(lua: &Lua) -> f64 {
    lua.used_memory() as f64 / 1024.0
}

/// Only tells how much memory is used: a script is not to turn the collector off.
fn collect_garbage(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let what = arguments.text_or_none(1)?;
        let what = what.map_or_else(|| b"collect".to_vec(), |what| what.as_bytes().to_vec());
        arguments.integer_or(2, 0)?;
        Ok(match &what[..] {
            b"count" => Value::Number(kibibytes(lua)),
            b"collect" | b"stop" | b"restart" => Value::Number(0.0),
            b"step" => Value::Boolean(false),
            // What they are.
            b"setpause" | b"setstepmul" => Value::Number(200.0),
            other => {
                let other = String::from_utf8_lossy(other);
                return Err(arguments.bad(1, &format!("invalid option '{other}'")));
            }
        })
    })
}

fn garbage_info(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, _: MultiValue| Ok(kibibytes(lua).floor()))
}

/// A function of a source, or nil and why there is none. Text only: bytecode could do anything.
fn compiled(lua: &Lua, text: &[u8], name: &[u8]) -> mlua::Result<MultiValue> {
    let environment = lua.named_registry_value::<Function>(ENVIRONMENT)?;
    let environment = environment.call::<Table>(())?;
    let name = crate::arguments::of_c(name);
    let chunk = lua
        .load(text)
        .set_name(String::from_utf8_lossy(name))
        .set_mode(mlua::chunk::ChunkMode::Text);
    match chunk.set_environment(environment).into_function() {
        Ok(function) => Ok(MultiValue::from_vec(vec![Value::Function(function)])),
        Err(error) if crate::interpreter::is_memory(&error) => Err(error),
        Err(error) => why_not(lua, &crate::interpreter::text_of(&error)),
    }
}

fn why_not(lua: &Lua, why: &str) -> mlua::Result<MultiValue> {
    let why = Value::String(lua.create_string(why)?);
    Ok(MultiValue::from_vec(vec![Value::Nil, why]))
}

fn load_string(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let text = arguments.text(1)?;
        let name = arguments.text_or_none(2)?;
        let name = name.as_ref().unwrap_or(&text);
        compiled(lua, &text.as_bytes(), &name.as_bytes())
    })
}

/// `load`: the source comes in pieces, from a function.
fn load(lua: &Lua, shared: &Shared) -> mlua::Result<Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let Value::Function(reader) = arguments.get(1) else {
            return Err(arguments.wrong_type(1, "function"));
        };
        let name = arguments.text_or_none(2)?;
        let name = name.map_or_else(|| b"=(load)".to_vec(), |name| name.as_bytes().to_vec());
        let mut text = Vec::new();
        loop {
            match shared.keeping(text.len(), || reader.call::<Value>(())) {
                Ok(Value::Nil) => break,
                Ok(Value::String(piece)) if piece.as_bytes().is_empty() => break,
                Ok(piece @ (Value::String(_) | Value::Integer(_) | Value::Number(_))) => {
                    let piece = lua.coerce_string(piece)?;
                    text.extend(piece.iter().flat_map(|piece| piece.as_bytes().to_vec()));
                    shared.room(text.len())?;
                }
                Ok(_) => return why_not(lua, "reader function must return a string"),
                Err(_) if shared.is_over() => return Err(interrupted()),
                Err(error) if crate::interpreter::is_memory(&error) => return Err(error),
                Err(error) => {
                    let raised = crate::interpreter::seen(lua, Value::Error(error.into()))?;
                    return Ok(MultiValue::from_vec(vec![Value::Nil, raised]));
                }
            }
        }
        compiled(lua, &text, &name)
    })
}

/// The name of the function that gives the environment of the script that runs.
const ENVIRONMENT: &str = "pluvio environment";

/// The things that `pcall` caught, unless the script must end (SCRIPT-2, SCRIPT-3).
fn check(lua: &Lua, shared: &Shared) -> mlua::Result<Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, mut caught: MultiValue| {
        let mut values = caught.iter_mut();
        if let (Some(Value::Boolean(false)), Some(error)) = (values.next(), values.next()) {
            if let Value::Error(inner) = error {
                if crate::interpreter::is_memory(inner) {
                    shared.end_full();
                }
                *error = crate::interpreter::seen(lua, error.clone())?;
            }
            if let Value::String(text) = error {
                let bytes = text.as_bytes().to_vec();
                if bytes.ends_with(b"not enough memory") {
                    shared.end_full();
                }
                if let Some(rest) = prelude_error(&bytes) {
                    *error = Value::String(lua.create_string(rest)?);
                }
            }
        }
        match shared.is_over() {
            true => Err(interrupted()),
            false => Ok(caught),
        }
    })
}
