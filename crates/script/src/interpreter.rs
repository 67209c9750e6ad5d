//! Running scripts.

use crate::budget::{Budget, SLICE};
use crate::convert::{to_lua, to_value};
use crate::functions::{Function, Library};
use crate::json::number_text;
use crate::sandbox::{ENVIRONMENT, Sandbox};
use crate::shebang::{Flags, Shebang, is_name};
use crate::{Commands, Interrupted, Value};
use core::cell::RefCell;
use mlua::chunk::ChunkMode;
use mlua::{HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, VmState};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most memory of a script, in bytes, what the libraries take included.
pub const MEMORY_MAX: usize = 64 << 20;
/// Compiled scripts that an interpreter keeps.
const COMPILED_MAX: usize = 512;
/// The version of Redis that scripts are told.
const VERSION: &str = "7.2.4";
const VERSION_NUMBER: u32 = 0x0007_0204;

/// How a script ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Ended {
    /// It gave this.
    Value(Value),
    /// It failed; the error as Redis words it.
    Failed(Vec<u8>),
    /// It was interrupted: by [`Commands::call`], or because its budget is used up.
    Interrupted,
    /// It needs more memory than [`MEMORY_MAX`].
    OutOfMemory,
}

/// The script that runs: its budget, and the function that does its commands.
#[derive(Default)]
pub(crate) struct State {
    budget: RefCell<Option<Rc<Budget>>>,
    commands: RefCell<Option<mlua::Function>>,
}

/// See [`State`]; shared with the functions that scripts call.
pub(crate) type Shared = Rc<State>;

impl State {
    fn budget(&self) -> Option<Rc<Budget>> {
        self.budget.borrow().clone()
    }

    fn commands(&self) -> mlua::Result<mlua::Function> {
        let commands = self.commands.borrow().clone();
        commands.ok_or_else(|| mlua::Error::runtime("no script runs"))
    }

    pub(crate) fn with_budget<R>(&self, f: impl FnOnce(&Budget) -> R) -> R {
        let budget = self.budget();
        let budget = budget.unwrap_or_else(|| Rc::new(Budget::new(0, crate::Stop::default())));
        f(&budget)
    }

    pub(crate) fn end_full(&self) {
        if let Some(budget) = self.budget() {
            budget.end_full();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.budget().is_some_and(|budget| budget.is_over())
    }
}

/// An error of a command, raised as `error({err = text})` raises one.
#[derive(Debug)]
struct Raised(Vec<u8>);

impl core::fmt::Display for Raised {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl core::error::Error for Raised {}

/// Something that was raised, as a script sees it: a table or a text of Lua.
pub(crate) fn seen(lua: &Lua, raised: mlua::Value) -> mlua::Result<mlua::Value> {
    let mlua::Value::Error(error) = &raised else {
        return Ok(raised);
    };
    match error.downcast_ref::<Raised>() {
        Some(Raised(text)) => to_lua(lua, &Value::Error(text.clone())),
        None => Ok(mlua::Value::String(lua.create_string(text_of(error))?)),
    }
}

/// The text of an error, without traces.
pub(crate) fn text_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::RuntimeError(text) | mlua::Error::MemoryError(text) => {
            // Lua's own errors come with a trace behind them.
            let text = text.split("\nstack traceback:").next().unwrap_or(text);
            text.to_owned()
        }
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::CallbackError { cause, .. } => text_of(cause),
        mlua::Error::WithContext { cause, .. } => text_of(cause),
        other => other.to_string(),
    }
}

pub(crate) fn is_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            is_memory(cause)
        }
        _ => false,
    }
}

/// Lua, ready to run scripts one after the other.
pub struct Interpreter {
    lua: Lua,
    shared: Shared,
    sandbox: Sandbox,
    handler: mlua::Function,
    compiled: RefCell<BTreeMap<Vec<u8>, mlua::Function>>,
}

impl Interpreter {
    /// A new one. Takes some hundred microseconds.
    ///
    /// # Panics
    /// When there is no memory for it.
    #[must_use]
    pub fn new() -> Self {
        Self::build().expect("Lua has memory for its libraries")
    }

    fn build() -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        // Lua's own `pcall`: nothing here panics.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(libraries, options)?;
        let shared = Shared::default();
        let sandbox = Sandbox::new(
            &lua,
            &shared,
            (redis_table(&lua)?, commands(&lua, &shared)?),
        )?;
        let handler = handler(&lua, &shared)?;
        lua.set_memory_limit(MEMORY_MAX)?;
        let counted = Rc::clone(&shared);
        let triggers = HookTriggers::new().every_nth_instruction(SLICE);
        lua.set_hook(triggers, move |_, _| {
            match counted.with_budget(|budget| budget.spend(u64::from(SLICE))) {
                true => Ok(VmState::Continue),
                false => Err(mlua::Error::runtime("the script was interrupted")),
            }
        })?;
        Ok(Self {
            lua,
            shared,
            sandbox,
            handler,
            compiled: RefCell::default(),
        })
    }

    /// Compiles a script, or finds it compiled.
    fn compile(&self, source: &[u8], name: &str) -> Result<mlua::Function, Vec<u8>> {
        if let Some(known) = self.compiled.borrow().get(source) {
            return Ok(known.clone());
        }
        // The first line stays, empty, so that lines keep their numbers.
        let from = match source.starts_with(b"#!") {
            true => source
                .iter()
                .position(|byte| *byte == b'\n')
                .unwrap_or(source.len()),
            false => 0,
        };
        let chunk = self.lua.load(&source[from..]).set_name(name);
        let function = chunk.set_mode(ChunkMode::Text).into_function();
        let function = function.map_err(|error| text_of(&error).into_bytes())?;
        let mut compiled = self.compiled.borrow_mut();
        if compiled.len() >= COMPILED_MAX {
            compiled.clear();
        }
        compiled.insert(source.to_vec(), function.clone());
        Ok(function)
    }

    /// Whether a script can be compiled.
    ///
    /// # Errors
    /// It cannot; the error as Redis words it.
    pub fn check(&self, source: &[u8]) -> Result<(), Vec<u8>> {
        self.compile_script(source).map(drop)
    }

    fn compile_script(&self, source: &[u8]) -> Result<mlua::Function, Vec<u8>> {
        let compiled = self.compile(source, "@user_script");
        let words = b"ERR Error compiling script (new function): ".as_slice();
        compiled.map_err(|why| [words, &why].concat())
    }

    /// Runs a script. `name` is its hash, for errors.
    pub fn run(
        &self,
        (source, name): (&[u8], &str),
        (keys, arguments): (&[Vec<u8>], &[Vec<u8>]),
        commands: &mut dyn Commands,
        budget: &Rc<Budget>,
    ) -> Ended {
        let function = match self.compile_script(source) {
            Ok(function) => function,
            Err(error) => return Ended::Failed(error),
        };
        self.run_in(name, "@user_script", commands, budget, |environment| {
            environment.raw_set("KEYS", self.list(keys)?)?;
            environment.raw_set("ARGV", self.list(arguments)?)?;
            function.set_environment(environment.clone())?;
            Ok((function.clone(), mlua::Value::Nil, mlua::Value::Nil))
        })
    }

    /// Loads a library, to see what it registers.
    ///
    /// # Errors
    /// It makes no sense, or fails; the error as Redis words it, without its code.
    pub fn load_library(&self, source: &[u8], budget: &Rc<Budget>) -> Result<Library, Vec<u8>> {
        let shebang = Shebang::of_library(source).map_err(|error| error.0)?;
        let registered = self.register(source, budget)?;
        if registered.is_empty() {
            return Err(b"No functions registered".to_vec());
        }
        Ok(Library {
            name: shebang.name.unwrap_or_default(),
            functions: registered
                .into_iter()
                .map(|(function, _)| function)
                .collect(),
        })
    }

    /// Runs a function of a library.
    pub fn run_function(
        &self,
        (source, name): (&[u8], &str),
        (keys, arguments): (&[Vec<u8>], &[Vec<u8>]),
        commands: &mut dyn Commands,
        budget: &Rc<Budget>,
    ) -> Ended {
        let registered = match self.register(source, budget) {
            Ok(registered) => registered,
            Err(_) if budget.is_over() => return Ended::Interrupted,
            Err(error) => return Ended::Failed([b"ERR ".as_slice(), &error].concat()),
        };
        let found = registered
            .into_iter()
            .find(|(function, _)| function.name == name);
        let Some((_, callback)) = found else {
            return Ended::Failed(b"ERR Function not found".to_vec());
        };
        self.run_in(name, "@user_function", commands, budget, |environment| {
            callback.set_environment(environment.clone())?;
            let (keys, arguments) = (self.list(keys)?, self.list(arguments)?);
            let (keys, arguments) = (mlua::Value::Table(keys), mlua::Value::Table(arguments));
            Ok((callback.clone(), keys, arguments))
        })
    }

    /// Runs the body of a library: the functions that it registers, and their code.
    fn register(
        &self,
        source: &[u8],
        budget: &Rc<Budget>,
    ) -> Result<Vec<(Function, mlua::Function)>, Vec<u8>> {
        let words = |why: Vec<u8>| [b"Error compiling function: ".as_slice(), &why].concat();
        let body = self.compile(source, "@user_function").map_err(words)?;
        let registered = Rc::new(RefCell::new(Vec::new()));
        *self.shared.budget.borrow_mut() = Some(Rc::clone(budget));
        let result = self.within_memory(budget, || self.run_body(&body, &registered));
        *self.shared.budget.borrow_mut() = None;
        match result {
            Ok(None) => Ok(registered.take()),
            Ok(Some(error)) => Err([b"Error registering functions: ".as_slice(), &error].concat()),
            Err(error) => Err(text_of(&error).into_bytes()),
        }
    }

    fn run_body(
        &self,
        body: &mlua::Function,
        registered: &Rc<RefCell<Vec<(Function, mlua::Function)>>>,
    ) -> mlua::Result<Option<Vec<u8>>> {
        let taken = Rc::clone(registered);
        let register = self.lua.create_function(move |_, arguments: MultiValue| {
            let registered = registration(&arguments).map_err(mlua::Error::runtime)?;
            let mut taken = taken.borrow_mut();
            if taken
                .iter()
                .any(|(known, _): &(Function, _)| known.name == registered.0.name)
            {
                return Err(mlua::Error::runtime(
                    "Function already exists in the library",
                ));
            }
            taken.push(registered);
            Ok(())
        })?;
        let environment: Table = self.sandbox.new_environment.call(register)?;
        self.lua
            .set_named_registry_value(ENVIRONMENT, &environment)?;
        body.set_environment(environment)?;
        let nothing = mlua::Value::Nil;
        let result = self.sandbox.protected.call::<(bool, mlua::Value)>((
            body.clone(),
            self.handler.clone(),
            nothing.clone(),
            nothing,
        ))?;
        Ok(match result {
            (true, _) => None,
            (false, mlua::Value::Table(error)) => {
                let text: mlua::Value = error.raw_get("err")?;
                let text = text.to_string().unwrap_or_default();
                Some(
                    text.strip_prefix("ERR ")
                        .unwrap_or(&text)
                        .as_bytes()
                        .to_vec(),
                )
            }
            (false, _) => Some(b"interrupted".to_vec()),
        })
    }

    fn list(&self, items: &[Vec<u8>]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(items.len(), 0)?;
        for (at, item) in items.iter().enumerate() {
            table.raw_set(at + 1, self.lua.create_string(item)?)?;
        }
        Ok(table)
    }

    /// Runs what `prepare` makes of a new environment.
    fn run_in(
        &self,
        name: &str,
        chunk: &str,
        commands: &mut dyn Commands,
        budget: &Rc<Budget>,
        prepare: impl FnOnce(&Table) -> mlua::Result<(mlua::Function, mlua::Value, mlua::Value)>,
    ) -> Ended {
        *self.shared.budget.borrow_mut() = Some(Rc::clone(budget));
        let result = self.within_memory(budget, || self.run_scoped(commands, budget, prepare));
        *self.shared.budget.borrow_mut() = None;
        *self.shared.commands.borrow_mut() = None;
        let ended = match result {
            Ok((true, value)) if !budget.is_over() => Ended::Value(to_value(&value)),
            Ok(_) | Err(_) if budget.is_full() => Ended::OutOfMemory,
            Ok(_) | Err(_) if budget.is_over() => Ended::Interrupted,
            Ok((_, mlua::Value::Table(error))) => Ended::Failed(uncaught(&error, name, chunk)),
            Ok((_, other)) => {
                let text = other.to_string().unwrap_or_default();
                match text.ends_with("not enough memory") {
                    true => Ended::OutOfMemory,
                    false => Ended::Failed(format!("ERR {text}").into_bytes()),
                }
            }
            Err(error) if is_memory(&error) => Ended::OutOfMemory,
            Err(error) => Ended::Failed(format!("ERR {}", text_of(&error)).into_bytes()),
        };
        // Garbage of this script would else count against the next one.
        if self.lua.used_memory() > MEMORY_MAX / 8 {
            let _full = self.lua.gc_collect();
        }
        ended
    }

    /// Does something with no more memory than a budget has.
    fn within_memory<T>(
        &self,
        budget: &Budget,
        work: impl FnOnce() -> mlua::Result<T>,
    ) -> mlua::Result<T> {
        let most = self.lua.used_memory().saturating_add(budget.memory_max());
        self.lua.set_memory_limit(most.min(MEMORY_MAX))?;
        let result = work();
        self.lua.set_memory_limit(MEMORY_MAX)?;
        result
    }

    fn run_scoped(
        &self,
        commands: &mut dyn Commands,
        budget: &Rc<Budget>,
        prepare: impl FnOnce(&Table) -> mlua::Result<(mlua::Function, mlua::Value, mlua::Value)>,
    ) -> mlua::Result<(bool, mlua::Value)> {
        let commands = RefCell::new(commands);
        self.lua.scope(|scope| {
            // One function does all: to make one costs as much as a short script.
            let run = scope.create_function(|lua, (way, arguments): (usize, MultiValue)| {
                let commands = &mut **commands.borrow_mut();
                match WAYS.get(way) {
                    Some((_, Way::Call)) => match command(&arguments, commands, budget)? {
                        Value::Error(text) => Err(mlua::Error::external(Raised(text))),
                        value => to_lua(lua, &value),
                    },
                    Some((_, Way::PCall)) => to_lua(lua, &command(&arguments, commands, budget)?),
                    Some((_, Way::MayCall)) => may_call(&arguments, commands),
                    Some((_, Way::Log)) => log(&arguments, commands),
                    Some((_, Way::SetProtocol)) => set_protocol(&arguments, commands),
                    None => Err(mlua::Error::runtime("no such function")),
                }
            })?;
            *self.shared.commands.borrow_mut() = Some(run);
            let environment: Table = self.sandbox.new_environment.call(())?;
            self.lua
                .set_named_registry_value(ENVIRONMENT, &environment)?;
            let (function, a, b) = prepare(&environment)?;
            let protected = &self.sandbox.protected;
            protected.call::<(bool, mlua::Value)>((function, self.handler.clone(), a, b))
        })
    }
}

/// The functions of `redis` that the server does for a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Call,
    PCall,
    MayCall,
    Log,
    SetProtocol,
}

const WAYS: [(&str, Way); 5] = [
    ("call", Way::Call),
    ("pcall", Way::PCall),
    ("acl_check_cmd", Way::MayCall),
    ("log", Way::Log),
    ("setresp", Way::SetProtocol),
];

/// These functions. They are made once, and hand their arguments to the function of the script that
/// runs. They are none of Lua: a script that ends in a call of a Lua function loses its place on
/// the stack. The line of an error is told by that place.
fn commands(lua: &Lua, shared: &Shared) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, WAYS.len())?;
    for (number, (name, _)) in WAYS.into_iter().enumerate() {
        let shared = Rc::clone(shared);
        let function = lua.create_function(move |_, arguments: MultiValue| {
            shared.commands()?.call::<mlua::Value>((number, arguments))
        })?;
        table.raw_set(name, function)?;
    }
    Ok(table)
}

/// `redis.acl_check_cmd`.
fn may_call(arguments: &MultiValue, commands: &mut dyn Commands) -> mlua::Result<mlua::Value> {
    let raise = |text: &str| Err(mlua::Error::external(Raised(text.into())));
    if arguments.is_empty() {
        return raise(
            "ERR Please specify at least one argument for this redis.acl_check_cmd() call",
        );
    }
    let parts: Option<Vec<_>> = arguments.iter().map(argument).collect();
    let Some(parts) = parts else {
        return raise("ERR redis.acl_check_cmd() command arguments must be strings or integers");
    };
    match commands.may_call(parts) {
        Some(may) => Ok(mlua::Value::Boolean(may)),
        None => raise("ERR Invalid command passed to redis.acl_check_cmd()"),
    }
}

/// `redis.log`.
fn log(arguments: &MultiValue, commands: &mut dyn Commands) -> mlua::Result<mlua::Value> {
    let mut parts = arguments.iter();
    let level = match parts.next() {
        Some(mlua::Value::Integer(level @ 0..=3)) => *level as u8,
        Some(mlua::Value::Integer(_)) => {
            return Err(mlua::Error::runtime("Invalid log level."));
        }
        _ => {
            return Err(mlua::Error::runtime(
                "First argument must be a number (log level).",
            ));
        }
    };
    let words: Vec<_> = parts.filter_map(argument).collect();
    commands.log(level, &words.join(&b' '));
    Ok(mlua::Value::Nil)
}

/// `redis.setresp`.
fn set_protocol(arguments: &MultiValue, commands: &mut dyn Commands) -> mlua::Result<mlua::Value> {
    match arguments.front() {
        Some(mlua::Value::Integer(version @ (2 | 3))) => {
            commands.set_protocol(*version as u8);
            Ok(mlua::Value::Nil)
        }
        _ => {
            let text = b"ERR RESP version must be 2 or 3.".to_vec();
            Err(mlua::Error::external(Raised(text)))
        }
    }
}

/// The text of an error with its code. A single word is no code.
fn with_code(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    match text.contains(&b' ') {
        true => text.to_vec(),
        false => [b"ERR ".as_slice(), text].concat(),
    }
}

/// What `redis` has beside what the server does.
fn redis_table(lua: &Lua) -> mlua::Result<Table> {
    let single = |field: &'static str, is_error: bool| {
        lua.create_function(move |lua, text: MultiValue| {
            let table = lua.create_table_with_capacity(0, 1)?;
            match (text.len(), text.front()) {
                (1, Some(mlua::Value::String(text))) => {
                    let text = text.as_bytes();
                    let text = match is_error {
                        true => with_code(&text),
                        false => text.to_vec(),
                    };
                    table.raw_set(field, lua.create_string(text)?)?;
                }
                _ => table.raw_set("err", "ERR wrong number or type of arguments")?,
            }
            Ok(table)
        })
    };
    let redis = lua.create_table()?;
    redis.raw_set("error_reply", single("err", true)?)?;
    redis.raw_set("status_reply", single("ok", false)?)?;
    let sha1 = |lua: &Lua, text: MultiValue| match (text.len(), text.front()) {
        (1, Some(text)) => {
            let text = argument(text).unwrap_or_default();
            lua.create_string(crate::sha1_hex(&text))
        }
        _ => Err(mlua::Error::runtime("wrong number of arguments")),
    };
    redis.raw_set("sha1hex", lua.create_function(sha1)?)?;
    let yes = lua.create_function(|_, _: MultiValue| Ok(true))?;
    let no = lua.create_function(|_, _: MultiValue| Ok(false))?;
    let nothing = lua.create_function(|_, _: MultiValue| Ok(()))?;
    redis.raw_set("replicate_commands", yes)?;
    redis.raw_set("breakpoint", no)?;
    redis.raw_set("debug", nothing.clone())?;
    redis.raw_set("set_repl", nothing)?;
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
        redis.raw_set(name, number)?;
    }
    redis.raw_set("REDIS_VERSION", VERSION)?;
    redis.raw_set("SERVER_VERSION", VERSION)?;
    redis.raw_set("SERVER_NAME", "redis")?;
    Ok(redis)
}

/// Runs a command. What it refuses is a value, too.
fn command(
    arguments: &MultiValue,
    commands: &mut dyn Commands,
    budget: &Budget,
) -> mlua::Result<Value> {
    let refuse = |text: &str| Ok(Value::Error(text.as_bytes().to_vec()));
    if arguments.is_empty() {
        return refuse("ERR Please specify at least one argument for this redis lib call");
    }
    let parts: Option<Vec<_>> = arguments.iter().map(argument).collect();
    let Some(parts) = parts else {
        return refuse("ERR Lua redis lib command arguments must be strings or integers");
    };
    if !budget.spend(100) {
        return Err(mlua::Error::runtime("the script was interrupted"));
    }
    commands.call(parts).map_err(|Interrupted| {
        budget.end();
        mlua::Error::runtime("the script was interrupted")
    })
}

impl Default for Interpreter {
    fn default() -> Self {
        Self::new()
    }
}

/// An argument of a command: text, or a number as text.
fn argument(value: &mlua::Value) -> Option<Vec<u8>> {
    match value {
        mlua::Value::String(text) => Some(text.as_bytes().to_vec()),
        mlua::Value::Integer(number) => Some(number.to_string().into_bytes()),
        mlua::Value::Number(number) => Some(number_text(*number, 17).into_bytes()),
        _ => None,
    }
}

/// Turns what was raised into a table with its place: the first line of the script on the stack.
fn handler(lua: &Lua, shared: &Shared) -> mlua::Result<mlua::Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, raised: mlua::Value| {
        if shared.is_over() {
            return Ok(mlua::Value::Nil);
        }
        let line = line_of(lua);
        let is_raised = |error: &mlua::Error| error.downcast_ref::<Raised>().is_some();
        let raised = match &raised {
            mlua::Value::Error(error) if is_raised(error) => seen(lua, raised)?,
            _ => raised,
        };
        let table = match &raised {
            mlua::Value::Table(table) => table.clone(),
            other => {
                let text = match other {
                    mlua::Value::String(text) => text.to_string_lossy(),
                    mlua::Value::Error(error) if is_memory(error) => {
                        shared.end_full();
                        return Ok(mlua::Value::Nil);
                    }
                    mlua::Value::Error(error) => {
                        let (chunk, line) = line.clone().unwrap_or(("user_script".into(), 0));
                        format!("{chunk}:{line}: {}", text_of(error))
                    }
                    other => other.to_string().unwrap_or_default(),
                };
                if text.ends_with("not enough memory") {
                    shared.end_full();
                    return Ok(mlua::Value::Nil);
                }
                let table = lua.create_table_with_capacity(0, 2)?;
                table.raw_set("err", format!("ERR {text}"))?;
                table
            }
        };
        if let Some((_, line)) = line {
            table.raw_set("line", line)?;
        }
        Ok(mlua::Value::Table(table))
    })
}

/// The chunk and the line of the script that runs.
fn line_of(lua: &Lua) -> Option<(String, usize)> {
    (0..40).find_map(|level| {
        lua.inspect_stack(level, |debug| {
            let source = debug.source();
            let name = source.short_src?.into_owned();
            let is_script = name == "user_script" || name == "user_function";
            Some((name, debug.current_line()?)).filter(|_| is_script)
        })?
    })
}

/// The error of a script that nobody caught.
fn uncaught(error: &Table, name: &str, chunk: &str) -> Vec<u8> {
    let text = match error.raw_get("err") {
        Ok(mlua::Value::String(text)) => text.as_bytes().to_vec(),
        _ => b"ERR unknown error".to_vec(),
    };
    let line = error.raw_get::<Option<usize>>("line").ok().flatten();
    let line = line.map_or_else(|| "0".to_owned(), |line| line.to_string());
    let place = format!(" script: {name}, on {chunk}:{line}.");
    [&text[..], place.as_bytes()].concat()
}

/// The arguments of `redis.register_function`: a name and a function, or a table.
fn registration(arguments: &MultiValue) -> Result<(Function, mlua::Function), String> {
    let mut values = arguments.iter();
    let (name, callback, description, flags) = match (values.next(), values.next(), arguments.len())
    {
        (Some(mlua::Value::Table(table)), None, 1) => {
            let field = |name: &str| {
                table
                    .raw_get::<mlua::Value>(name)
                    .unwrap_or(mlua::Value::Nil)
            };
            (
                field("function_name"),
                field("callback"),
                field("description"),
                field("flags"),
            )
        }
        (Some(name), Some(callback), 2) => {
            let nothing = mlua::Value::Nil;
            (name.clone(), callback.clone(), nothing.clone(), nothing)
        }
        _ => return Err("wrong number of arguments to redis.register_function".to_owned()),
    };
    let mlua::Value::String(name) = name else {
        return Err(
            "function_name argument given to redis.register_function must be a string".to_owned(),
        );
    };
    let mlua::Value::Function(callback) = callback else {
        return Err(
            "callback argument given to redis.register_function must be a function".to_owned(),
        );
    };
    let name = name.to_string_lossy();
    if !is_name(&name) {
        return Err("Library names can only contain letters, numbers, or underscores(_) and must be at least one character long".to_owned());
    }
    let description = match description {
        mlua::Value::String(text) => Some(text.as_bytes().to_vec()),
        _ => None,
    };
    let mut set = Flags::default();
    if let mlua::Value::Table(flags) = flags {
        for flag in flags.sequence_values::<String>() {
            let flag = flag.map_err(|_| "unknown flag given".to_owned())?;
            if !set.set(&flag) {
                return Err("unknown flag given".to_owned());
            }
        }
    }
    let function = Function {
        name,
        description,
        flags: set,
    };
    Ok((function, callback))
}

#[cfg(test)]
mod tests;
