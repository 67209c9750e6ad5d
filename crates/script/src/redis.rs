//! The table `redis` of scripts: what it does by itself, and what it asks the server for.

use crate::Parts;
use crate::arguments::{Arguments, of_c, to_int, to_integer};
use crate::convert::error_table;
use crate::interpreter::{Raised, Shared};
use crate::numbers::number_text;
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// The version of Redis that scripts are told.
pub(crate) const VERSION: &str = "7.2.4";
const VERSION_NUMBER: u32 = 0x0007_0204;

/// What a script asks the server for.
pub(crate) enum Request {
    /// To run a command.
    Command(Parts, Way),
    /// Whether it may run one.
    MayCall(Parts),
    /// To write a line to the log.
    Log(u8, Vec<u8>),
    /// To give replies of a version of the protocol.
    SetProtocol(u8),
}

/// Most bytes of a number as text.
const NUMBER_BYTES: usize = 24;

/// What becomes of an error of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// It is raised.
    Call,
    /// It is given.
    PCall,
}

/// The parts of a command, each text or a number as text, or why they are none.
fn parts(shared: &Shared, arguments: &MultiValue) -> mlua::Result<Result<Parts, &'static str>> {
    if arguments.is_empty() {
        let why = "ERR Please specify at least one argument for this redis lib call";
        return Ok(Err(why));
    }
    let len = |value: &Value| match value {
        Value::String(text) => text.as_bytes().len(),
        _ => NUMBER_BYTES,
    };
    let bytes = arguments.iter().map(len).sum();
    shared.room(bytes)?;
    let mut parts = Parts::with_capacity(bytes);
    for value in arguments {
        match value {
            Value::String(text) => parts.push(&text.as_bytes()),
            Value::Integer(number) => parts.push(number.to_string().as_bytes()),
            Value::Number(number) => parts.push(number_text(*number, 17).as_bytes()),
            _ => {
                let why = "ERR Lua redis lib command arguments must be strings or integers";
                return Ok(Err(why));
            }
        }
    }
    Ok(Ok(parts))
}

/// `redis.call` and `redis.pcall`. They are no functions of Lua. A script that ends in a call of
/// one loses its place on the stack, and errors tell their line by that.
fn calling(lua: &Lua, shared: &Shared, way: Way) -> mlua::Result<Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, arguments: MultiValue| {
        let parts = parts(&shared, &arguments)?;
        // Their references are needed again.
        drop(arguments);
        match (parts, way) {
            (Ok(parts), _) => shared.ask(lua, Request::Command(parts, way)),
            (Err(why), Way::Call) => Err(Raised::error(why)),
            (Err(why), Way::PCall) => error_table(lua, why.as_bytes(), false).map(Value::Table),
        }
    })
}

/// `redis.acl_check_cmd`.
fn checking(lua: &Lua, shared: &Shared) -> mlua::Result<Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, arguments: MultiValue| {
        let parts = parts(&shared, &arguments)?;
        drop(arguments);
        shared.ask(lua, Request::MayCall(parts.map_err(Raised::error)?))
    })
}

/// `redis.log`.
fn logging(lua: &Lua, shared: &Shared) -> mlua::Result<Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        if arguments.len() < 2 {
            let why = "ERR redis.log() requires two arguments or more.";
            return Err(Raised::error(why));
        }
        let level = arguments.number_if_any(1).map(to_int);
        let Some(level) = level else {
            let why = "ERR First argument must be a number (log level).";
            return Err(Raised::error(why));
        };
        let level = u8::try_from(level).ok().filter(|level| *level <= 3);
        let Some(level) = level else {
            return Err(Raised::error("ERR Invalid debug level."));
        };
        let mut text = Vec::new();
        for n in 2..=arguments.len() {
            // Others than texts and numbers are left out.
            if let Value::String(_) | Value::Integer(_) | Value::Number(_) = arguments.get(n) {
                if n > 2 {
                    text.push(b' ');
                }
                let word = arguments.text(n)?;
                shared.room(text.len() + word.as_bytes().len())?;
                text.extend_from_slice(&word.as_bytes());
            }
        }
        drop(arguments);
        shared.ask(lua, Request::Log(level, text))
    })
}

/// `redis.setresp`.
fn setting_protocol(lua: &Lua, shared: &Shared) -> mlua::Result<Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        if arguments.len() != 1 {
            return Err(Raised::error("ERR redis.setresp() requires one argument."));
        }
        match to_integer(arguments.number_if_any(1).unwrap_or(0.0)) {
            2 => shared.ask(lua, Request::SetProtocol(2)),
            3 => shared.ask(lua, Request::SetProtocol(3)),
            _ => Err(Raised::error("ERR RESP version must be 2 or 3.")),
        }
    })
}

/// `redis.set_repl`, which changes nothing here.
fn setting_replication(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        if arguments.len() != 1 {
            let why = "ERR redis.set_repl() requires two arguments.";
            return Err(Raised::error(why));
        }
        match to_int(arguments.number_if_any(1).unwrap_or(0.0)) {
            0..=3 => Ok(()),
            _ => Err(Raised::error(
                "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
            )),
        }
    })
}

/// The text of an error with its code. A single word is no code.
fn with_code(text: &[u8]) -> Vec<u8> {
    let text = of_c(text);
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let blank = text.iter().position(|byte| *byte == b' ');
    let (code, rest) = match blank {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (b"ERR".as_slice(), text),
    };
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let from = rest.iter().take_while(|byte| is_end(byte)).count();
    let end = rest.iter().rposition(|byte| !is_end(byte));
    let rest = rest.get(from..end.map_or(from, |end| end + 1));
    [code, b" ", rest.unwrap_or_default()].concat()
}

/// `redis.error_reply` and `redis.status_reply`.
fn replying(lua: &Lua, is_error: bool) -> mlua::Result<Function> {
    lua.create_function(move |lua, arguments: MultiValue| {
        match (arguments.len(), arguments.front()) {
            (1, Some(Value::String(text))) if is_error => {
                error_table(lua, &with_code(&text.as_bytes()), false)
            }
            (1, Some(Value::String(text))) => {
                let table = lua.create_table_with_capacity(0, 1)?;
                table.raw_set("ok", text)?;
                Ok(table)
            }
            _ => error_table(lua, b"ERR wrong number or type of arguments", false),
        }
    })
}

fn hashing(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        if arguments.len() != 1 {
            return Err(Raised::error("ERR wrong number of arguments"));
        }
        // Others than texts and numbers count as empty.
        let hash = match arguments.get(1) {
            Value::String(_) | Value::Integer(_) | Value::Number(_) => {
                crate::sha1_hex(&arguments.text(1)?.as_bytes())
            }
            _ => crate::sha1_hex(b""),
        };
        lua.create_string(hash)
    })
}

/// The table while a library is loaded, and the one of scripts.
pub(crate) fn open(lua: &Lua, shared: &Shared) -> mlua::Result<(Table, Table)> {
    let plain = lua.create_table()?;
    plain.raw_set("error_reply", replying(lua, true)?)?;
    plain.raw_set("status_reply", replying(lua, false)?)?;
    plain.raw_set("sha1hex", hashing(lua)?)?;
    let yes = lua.create_function(|_, _: MultiValue| Ok(true))?;
    let no = lua.create_function(|_, _: MultiValue| Ok(false))?;
    let nothing = lua.create_function(|_, _: MultiValue| Ok(()))?;
    plain.raw_set("replicate_commands", yes)?;
    plain.raw_set("breakpoint", no)?;
    plain.raw_set("debug", nothing)?;
    plain.raw_set("log", logging(lua, shared)?)?;
    plain.raw_set("set_repl", setting_replication(lua)?)?;
    for (name, number) in [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
        ("REDIS_VERSION_NUM", VERSION_NUMBER),
        ("SERVER_VERSION_NUM", VERSION_NUMBER),
    ] {
        plain.raw_set(name, number)?;
    }
    plain.raw_set("REDIS_VERSION", VERSION)?;
    plain.raw_set("SERVER_VERSION", VERSION)?;
    plain.raw_set("SERVER_NAME", "redis")?;
    let full = lua.create_table()?;
    for pair in plain.pairs::<Value, Value>() {
        let (name, value) = pair?;
        full.raw_set(name, value)?;
    }
    full.raw_set("call", calling(lua, shared, Way::Call)?)?;
    full.raw_set("pcall", calling(lua, shared, Way::PCall)?)?;
    full.raw_set("acl_check_cmd", checking(lua, shared)?)?;
    full.raw_set("setresp", setting_protocol(lua, shared)?)?;
    Ok((plain, full))
}
