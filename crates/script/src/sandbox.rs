//! What a script finds: tables of libraries that it cannot change, and nothing else (SCRIPT-1,
//! SCRIPT-4).
//!
//! Each run has an environment of its own. Its tables of libraries are empty ones, made anew, which
//! look into the true ones and refuse to be written. The true ones are nowhere to be had. A table
//! is made when the run first looks at it: most scripts use one or two.

use crate::interpreter::Shared;
use crate::{bits, json, msgpack, pattern, structs};
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Functions of the base library that scripts have as they are.
const BASE: [&str; 13] = [
    "assert",
    "error",
    "getmetatable",
    "ipairs",
    "next",
    "pairs",
    "rawequal",
    "rawget",
    "select",
    "setmetatable",
    "tonumber",
    "tostring",
    "type",
];

/// The part that is written in Lua: `pcall` and `xpcall` that do not catch interruptions, and the
/// environment of a run.
const PRELUDE: &str = r#"
local base, libraries, plain, commands, check, seen = ...
local rawset, setmetatable, tostring, error = rawset, setmetatable, tostring, error
local pcall, xpcall, unpack, select, type = pcall, xpcall, unpack, select, type
local randomseed = libraries.math.randomseed

local function readonly()
    error("Attempt to modify a readonly table", 2)
end

-- One result, however many there are: C code has room for few.
local function collected(...) return { n = select('#', ...), ... } end
local function collect(f, ...) return collected(f(...)) end
local function spread(ok, result)
    if ok then return true, unpack(result, 1, result.n) end
    return false, result
end

-- As in Redis, `pcall` gives the text of an error of a command, and `xpcall` its table.
local function told(ok, result)
    if not ok and type(result) == 'table' then
        local text = result.err
        if type(text) == 'string' or type(text) == 'number' then result = text end
    end
    return ok, result
end

base.pcall = function(f, ...) return spread(told(check(pcall(collect, f, ...)))) end
base.xpcall = function(f, handler, ...)
    local arguments = collected(...)
    local function seeing(raised)
        local is_over, value = seen(raised)
        -- Nothing counts instructions here: an interruption is being raised.
        if is_over then return end
        return handler(value)
    end
    local function called() return collect(f, unpack(arguments, 1, arguments.n)) end
    return spread(check(xpcall(called, seeing)))
end
base.rawset = function(t, k, v) return rawset(t, k, v) end
base.unpack = unpack

-- An empty table with it shows what `library` has, and refuses to be written.
local function view_of(library)
    return { __index = library, __newindex = readonly, __metatable = false }
end

local views = {}
for name, library in pairs(libraries) do views[name] = view_of(library) end

local environment = { __newindex = readonly, __metatable = false }
environment.__index = function(made, name)
    local view = views[name]
    if view then
        -- Chance is the same for each script, as in Redis.
        if name == 'math' then randomseed(0) end
        local library = setmetatable({}, view)
        rawset(made, name, library)
        return library
    end
    local value = base[name]
    if value == nil then
        error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end
    return value
end

local redis = view_of(setmetatable(commands, { __index = plain }))

local function new_environment(register)
    local made, view = {}, redis
    if register then
        view = view_of(setmetatable({ register_function = register }, { __index = plain }))
    end
    made.redis = setmetatable({}, view)
    made.server = made.redis
    made._G = made
    return setmetatable(made, environment)
end

local function protected(f, handler, a, b)
    return xpcall(function() return f(a, b) end, handler)
end

return new_environment, protected
"#;

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
    /// A new environment. While a library is loaded, its argument is `redis.register_function`, and
    /// there are no commands.
    pub(crate) new_environment: Function,
    /// Calls a function with two arguments; errors go through a handler.
    pub(crate) protected: Function,
}

impl Sandbox {
    /// Of `redis`: `plain` is what is always there, `commands` what the server does for a script.
    pub(crate) fn new(
        lua: &Lua,
        shared: &Shared,
        (plain, commands): (Table, Table),
    ) -> mlua::Result<Self> {
        let globals = lua.globals();
        let base = lua.create_table()?;
        for name in BASE {
            base.raw_set(name, globals.raw_get::<Value>(name)?)?;
        }
        base.raw_set("_VERSION", "Lua 5.1")?;
        base.raw_set("collectgarbage", collect_garbage(lua)?)?;
        base.raw_set("loadstring", load_string(lua)?)?;
        let string: Table = globals.raw_get("string")?;
        string.raw_set("dump", Value::Nil)?;
        pattern::install(lua, &string, shared)?;
        if let Value::String(any) = Value::String(lua.create_string("")?)
            && let Ok(Some(metatable)) = metatable_of_strings(lua, &any)
        {
            metatable.raw_set("__metatable", false)?;
        }
        let libraries = lua.create_table()?;
        libraries.raw_set("string", string)?;
        for name in ["table", "math"] {
            libraries.raw_set(name, globals.raw_get::<Value>(name)?)?;
        }
        libraries.raw_set("bit", bits::open(lua)?)?;
        libraries.raw_set("cjson", json::open(lua)?)?;
        libraries.raw_set("cmsgpack", msgpack::open(lua)?)?;
        libraries.raw_set("struct", structs::open(lua)?)?;
        let check = check(lua, shared)?;
        let prelude = lua.load(PRELUDE).set_name("=prelude");
        let state = Rc::clone(shared);
        let seen = lua.create_function(move |lua, raised: Value| {
            Ok((state.is_over(), crate::interpreter::seen(lua, raised)?))
        })?;
        let all = (base, libraries, plain, commands, check, seen);
        let (new_environment, protected) = prelude.call(all)?;
        Ok(Self {
            new_environment,
            protected,
        })
    }
}

fn metatable_of_strings(lua: &Lua, any: &mlua::LuaString) -> mlua::Result<Option<Table>> {
    let get: Function = lua.globals().raw_get("getmetatable")?;
    get.call(any)
}

/// Only tells how much memory is used: a script is not to turn the collector off.
fn collect_garbage(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, what: Option<mlua::LuaString>| {
        let is_count = what.is_some_and(|what| *what.as_bytes() == *b"count");
        Ok(if is_count {
            lua.used_memory() as f64 / 1024.0
        } else {
            0.0
        })
    })
}

/// Text only: bytecode could do anything.
fn load_string(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(
        |lua, (text, name): (mlua::LuaString, Option<mlua::LuaString>)| {
            let text = text.as_bytes().to_vec();
            let name = name.map_or_else(|| "=loadstring".to_owned(), |name| name.to_string_lossy());
            let environment = lua.named_registry_value::<Table>(ENVIRONMENT)?;
            let chunk = lua
                .load(text)
                .set_name(name)
                .set_mode(mlua::chunk::ChunkMode::Text);
            match chunk.set_environment(environment).into_function() {
                Ok(function) => Ok((Value::Function(function), Value::Nil)),
                Err(error) => {
                    let text = lua.create_string(crate::interpreter::text_of(&error))?;
                    Ok((Value::Nil, Value::String(text)))
                }
            }
        },
    )
}

/// The environment of the script that runs.
pub(crate) const ENVIRONMENT: &str = "pluvio environment";

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
            } else if let Value::String(text) = error {
                let text = text.as_bytes().to_vec();
                if text.ends_with(b"not enough memory") {
                    shared.end_full();
                }
                // A place in the prelude is none of the script.
                if text.starts_with(b"prelude:")
                    && let Some(at) = text.windows(2).position(|pair| pair == b": ")
                {
                    *error = Value::String(lua.create_string(&text[at + 2..])?);
                }
            }
        }
        match shared.is_over() {
            true => Err(mlua::Error::runtime("the script was interrupted")),
            false => Ok(caught),
        }
    })
}
