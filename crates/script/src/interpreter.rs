//! Running scripts.

use crate::arguments::of_c;
use crate::budget::{Budget, SLICE};
use crate::convert::{error_table, to_lua, to_value};
use crate::functions::{Function, Library};
use crate::json::Settings;
use crate::random::Random;
use crate::redis::{Request, Way};
use crate::sandbox::Sandbox;
use crate::shebang::{Flags, Shebang, is_name};
use crate::{Commands, Interrupted, Value};
use core::cell::{Cell, RefCell};
use mlua::chunk::ChunkMode;
use mlua::{
    HookTriggers, Lua, LuaOptions, LuaString, MultiValue, RegistryKey, StdLib, Table, VmState,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most memory of a script, in bytes, what the libraries take included.
pub const MEMORY_MAX: usize = 64 << 20;
/// Most arguments of a script whose tables Lua makes.
const SMALL_MAX: usize = 3;
/// Bytes that Lua needs for a text, beside its own.
const TEXT_OVERHEAD: usize = 64;
/// Compiled scripts that an interpreter keeps.
const COMPILED_MAX: usize = 512;

/// Whether a function of Lua ended well, and what it gave.
type Returned = (bool, mlua::Value);

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

/// How much memory there is when garbage is collected next, in percent of what was left.
const GC_PAUSE: i32 = 400;

/// The script that runs.
#[derive(Default)]
pub(crate) struct State {
    budget: RefCell<Option<Rc<Budget>>>,
    /// The server, as long as a script runs.
    commands: RefCell<Option<Rc<RefCell<dyn Commands>>>>,
    /// The version of the protocol that the script wants.
    pub(crate) protocol: Cell<u8>,
    /// Bytes that functions keep while they call others.
    kept: Cell<usize>,
    /// Memory that Lua may have; 0 where it is not limited.
    limit: Cell<usize>,
    pub(crate) random: Random,
    /// The settings of `cjson`.
    pub(crate) json: Rc<Settings>,
}

/// See [`State`]; shared with the functions that scripts call.
pub(crate) type Shared = Rc<State>;

/// The error by which a script ends that must. Nothing catches it (SCRIPT-2, SCRIPT-3).
pub(crate) fn interrupted() -> mlua::Error {
    mlua::Error::runtime("the script was interrupted")
}

impl State {
    fn budget(&self) -> Option<Rc<Budget>> {
        self.budget.borrow().clone()
    }

    /// Everything is as it is at the beginning of a script (SCRIPT-1).
    fn begin(&self, budget: &Rc<Budget>) {
        *self.budget.borrow_mut() = Some(Rc::clone(budget));
        self.protocol.set(2);
        self.kept.set(0);
        self.random.seed(0);
        self.json.reset();
    }

    fn end(&self) {
        *self.budget.borrow_mut() = None;
        *self.commands.borrow_mut() = None;
    }

    pub(crate) fn with_budget<R>(&self, f: impl FnOnce(&Budget) -> R) -> R {
        let budget = self.budget();
        let budget = budget.unwrap_or_else(|| Rc::new(Budget::new(0, crate::Stop::default())));
        f(&budget)
    }

    /// Takes a part of the budget.
    pub(crate) fn spend(&self, instructions: u64) -> mlua::Result<()> {
        match self.with_budget(|budget| budget.spend(instructions)) {
            true => Ok(()),
            false => Err(interrupted()),
        }
    }

    /// Something takes these bytes, and Lua does not know of them. The script ends if that is more
    /// memory than it may have (SCRIPT-3).
    pub(crate) fn room(&self, bytes: usize) -> mlua::Result<()> {
        let all = bytes.saturating_add(self.kept.get());
        if self.with_budget(|budget| all <= budget.memory_max()) {
            return Ok(());
        }
        self.end_full();
        Err(interrupted())
    }

    /// Does something while so much is kept: it may call functions that take memory, too.
    pub(crate) fn keeping<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        let before = self.kept.get();
        self.kept.set(before.saturating_add(bytes));
        let result = work();
        self.kept.set(before);
        result
    }

    pub(crate) fn end_full(&self) {
        if let Some(budget) = self.budget() {
            budget.end_full();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.budget().is_some_and(|budget| budget.is_over())
    }

    /// A text for the script. Where there is room for it for certain, memory is not limited
    /// meanwhile: else it would be a step that may fail, which costs more.
    fn text(&self, lua: &Lua, bytes: &[u8]) -> mlua::Result<mlua::Value> {
        let limit = self.limit.get();
        let used = lua.used_memory();
        // The table of all texts may grow by a part of what they take.
        let needed = used / 2 + bytes.len() + TEXT_OVERHEAD;
        if used.saturating_add(needed) > limit {
            return lua.create_string(bytes).map(mlua::Value::String);
        }
        lua.set_memory_limit(0)?;
        let text = lua.create_string(bytes);
        lua.set_memory_limit(limit)?;
        text.map(mlua::Value::String)
    }

    /// Has the server do something.
    pub(crate) fn ask(&self, lua: &Lua, request: Request) -> mlua::Result<mlua::Value> {
        let commands = self.commands.borrow().clone();
        let (commands, request) = match (commands, request) {
            (Some(commands), request) => (commands, request),
            // While a library is loaded, nobody listens.
            (None, Request::Log(..)) => return Ok(mlua::Value::Nil),
            (None, _) => return Err(mlua::Error::runtime("no script runs")),
        };
        // Nothing in there calls Lua, which might ask again.
        let mut server = commands.borrow_mut();
        match request {
            Request::Command(parts, way) => {
                self.spend(100)?;
                let value = server.call(parts).map_err(|Interrupted| {
                    self.with_budget(Budget::end);
                    interrupted()
                })?;
                drop(server);
                match value {
                    Value::Error(text) if way == Way::Call => Err(mlua::Error::external(Raised {
                        text,
                        is_of_command: true,
                    })),
                    Value::Bulk(bytes) => self.text(lua, &bytes),
                    value => to_lua(lua, &value, self.protocol.get()),
                }
            }
            Request::MayCall(parts) => match server.may_call(parts) {
                Some(may) => Ok(mlua::Value::Boolean(may)),
                None => Err(Raised::error(
                    "ERR Invalid command passed to redis.acl_check_cmd()",
                )),
            },
            Request::Log(level, text) => {
                server.log(level, &text);
                Ok(mlua::Value::Nil)
            }
            Request::SetProtocol(version) => {
                self.protocol.set(version);
                server.set_protocol(version);
                Ok(mlua::Value::Nil)
            }
        }
    }
}

/// An error that is raised as `error({err = text})` raises one.
#[derive(Debug)]
pub(crate) struct Raised {
    text: Vec<u8>,
    is_of_command: bool,
}

impl Raised {
    /// An error of a function of `redis`.
    pub(crate) fn error(text: &str) -> mlua::Error {
        mlua::Error::external(Self {
            text: text.into(),
            is_of_command: false,
        })
    }
}

impl core::fmt::Display for Raised {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl core::error::Error for Raised {}

/// Something that was raised, as a script sees it: a table or a text of Lua.
pub(crate) fn seen(lua: &Lua, raised: mlua::Value) -> mlua::Result<mlua::Value> {
    let mlua::Value::Error(error) = &raised else {
        return Ok(raised);
    };
    match error.downcast_ref::<Raised>() {
        Some(raised) => {
            error_table(lua, &raised.text, raised.is_of_command).map(mlua::Value::Table)
        }
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
    /// Lua gives few references, and a call may need thousands of them.
    compiled: RefCell<BTreeMap<Vec<u8>, RegistryKey>>,
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
        // Most scripts leave little behind, so the libraries need no looking at again so soon.
        let pause = mlua::state::GcIncParams::default().pause(GC_PAUSE);
        let _before = lua.gc_set_mode(mlua::state::GcMode::Incremental(pause));
        let shared = Shared::default();
        let sandbox = Sandbox::new(&lua, &shared, crate::redis::open(&lua, &shared)?)?;
        let handler = handler(&lua, &shared)?;
        let counted = Rc::clone(&shared);
        let triggers = HookTriggers::new().every_nth_instruction(SLICE);
        // Coroutines take it over from where they are made.
        lua.set_global_hook(triggers, move |_, _| {
            counted.spend(u64::from(SLICE)).map(|()| VmState::Continue)
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
        let failed = |error| text_of(&error).into_bytes();
        if let Some(known) = self.compiled.borrow().get(source) {
            return self.lua.registry_value(known).map_err(failed);
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
        let chunk = chunk.set_mode(ChunkMode::Text);
        let function = self.with_memory(MEMORY_MAX, || chunk.into_function());
        let function = function.map_err(failed)?;
        let mut compiled = self.compiled.borrow_mut();
        if compiled.len() >= COMPILED_MAX {
            compiled.clear();
            self.lua.expire_registry_values();
        }
        // A library gets another one when it is loaded.
        let environment = self.sandbox.script_environment.clone();
        function.set_environment(environment).map_err(failed)?;
        let key = self.lua.create_registry_value(&function).map_err(failed)?;
        compiled.insert(source.to_vec(), key);
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
    pub fn run<P: AsRef<[u8]>>(
        &self,
        (source, name): (&[u8], &str),
        (keys, arguments): (&[P], &[P]),
        commands: &Rc<RefCell<impl Commands + 'static>>,
        budget: &Rc<Budget>,
    ) -> Ended {
        let function = match self.compile_script(source) {
            Ok(function) => function,
            Err(error) => return Ended::Failed(error),
        };
        self.shared.begin(budget);
        let commands = Rc::clone(commands) as Rc<RefCell<dyn Commands>>;
        let handler = &self.handler;
        let ([key], 0..=SMALL_MAX) = (keys, arguments.len()) else {
            let given = self
                .list(keys)
                .and_then(|keys| Ok((keys, self.list(arguments)?)));
            return self.run_in(name, commands, budget, given, |(keys, arguments)| {
                let run = &self.sandbox.run;
                run.call::<Returned>((function, handler, keys, arguments))
            });
        };
        let argument = |at| arguments.get(at).map(|part| self.text(part)).transpose();
        let given = || Ok((self.text(key)?, argument(0)?, argument(1)?, argument(2)?));
        self.run_in(name, commands, budget, given(), |(key, a, b, c)| {
            let run = &self.sandbox.run_small;
            run.call::<Returned>((function, handler, key, a, b, c))
        })
    }

    /// Loads a library, to see what it registers.
    ///
    /// # Errors
    /// It makes no sense, or fails; the error as Redis words it, without its code.
    pub fn load_library(&self, source: &[u8], budget: &Rc<Budget>) -> Result<Library, Vec<u8>> {
        let shebang = Shebang::of_library(source).map_err(|error| error.0)?;
        let registered = self.register(source, budget);
        self.shared.end();
        let registered = registered?;
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
    pub fn run_function<P: AsRef<[u8]>>(
        &self,
        (source, name): (&[u8], &str),
        (keys, arguments): (&[P], &[P]),
        commands: &Rc<RefCell<impl Commands + 'static>>,
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
        let prepare = || {
            // From now on `redis` is what it is for scripts.
            self.sandbox.loaded.call::<()>(())?;
            Ok((self.list(keys)?, self.list(arguments)?))
        };
        let commands = Rc::clone(commands) as Rc<RefCell<dyn Commands>>;
        let handler = &self.handler;
        self.run_in(name, commands, budget, prepare(), |(keys, arguments)| {
            let run = &self.sandbox.protected;
            run.call::<Returned>((callback, handler, keys, arguments))
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
        self.shared.begin(budget);
        let before = self.lua.used_memory();
        let run = || self.run_body(&body, &registered);
        let result = self.within_memory(before, budget, run);
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
        let environment: Table = self.sandbox.loading_environment.call(register)?;
        body.set_environment(environment)?;
        let protected = &self.sandbox.protected;
        let result = protected.call::<(bool, mlua::Value)>((body, &self.handler))?;
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

    fn list<P: AsRef<[u8]>>(&self, items: &[P]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(items.len(), 0)?;
        for (at, item) in items.iter().enumerate() {
            table.raw_set(at + 1, self.text(item)?)?;
        }
        Ok(table)
    }

    fn text(&self, item: impl AsRef<[u8]>) -> mlua::Result<LuaString> {
        self.lua.create_string(item.as_ref())
    }

    /// Has `run` call a function with what it is given, and tells what became of it.
    fn run_in<G>(
        &self,
        name: &str,
        commands: Rc<RefCell<dyn Commands>>,
        budget: &Rc<Budget>,
        given: mlua::Result<G>,
        run: impl FnOnce(G) -> mlua::Result<Returned>,
    ) -> Ended {
        *self.shared.commands.borrow_mut() = Some(commands);
        let before = self.lua.used_memory();
        let result = given.and_then(|given| self.within_memory(before, budget, || run(given)));
        let given = match &result {
            Ok((true, value)) if !budget.is_over() => to_value(value, &self.shared).ok(),
            _ => None,
        };
        self.shared.end();
        let ended = match (given, result) {
            (Some(value), _) => Ended::Value(value),
            (None, _) if budget.is_full() => Ended::OutOfMemory,
            (None, _) if budget.is_over() => Ended::Interrupted,
            (None, result) => Self::failed(result, name),
        };
        // Garbage of this script would else count against the next one.
        if self.lua.used_memory() > MEMORY_MAX / 8 {
            let _full = self.lua.gc_collect();
        }
        ended
    }

    /// The end of a script that failed by itself.
    fn failed(result: mlua::Result<Returned>, name: &str) -> Ended {
        match result {
            Ok((_, mlua::Value::Table(error))) => Ended::Failed(uncaught(&error, name)),
            Ok((_, other)) => {
                let text = other.to_string().unwrap_or_default();
                match text.ends_with("not enough memory") {
                    true => Ended::OutOfMemory,
                    false => Ended::Failed(format!("ERR {text}").into_bytes()),
                }
            }
            Err(error) if is_memory(&error) => Ended::OutOfMemory,
            Err(error) => Ended::Failed(format!("ERR {}", text_of(&error)).into_bytes()),
        }
    }

    /// Does something with no more memory than a budget has, beside what was used before.
    fn within_memory<T>(
        &self,
        before: usize,
        budget: &Budget,
        work: impl FnOnce() -> mlua::Result<T>,
    ) -> mlua::Result<T> {
        let most = before.saturating_add(budget.memory_max());
        self.with_memory(most.min(MEMORY_MAX), work)
    }

    /// Does something with so much memory. Elsewhere there is no limit: each step of the library
    /// would be one that may fail, which costs more than a short script.
    fn with_memory<T>(
        &self,
        most: usize,
        work: impl FnOnce() -> mlua::Result<T>,
    ) -> mlua::Result<T> {
        self.lua.set_memory_limit(most)?;
        self.shared.limit.set(most);
        let result = work();
        self.shared.limit.set(0);
        self.lua.set_memory_limit(0)?;
        result
    }
}

impl Default for Interpreter {
    fn default() -> Self {
        Self::new()
    }
}

/// Turns what was raised into a table with its place: the function of the script that raised it.
fn handler(lua: &Lua, shared: &Shared) -> mlua::Result<mlua::Function> {
    let shared = Rc::clone(shared);
    lua.create_function(move |lua, raised: mlua::Value| {
        if shared.is_over() {
            return Ok(mlua::Value::Nil);
        }
        let place = place_of(lua);
        let raised = match &raised {
            mlua::Value::Error(error) if is_memory(error) => {
                shared.end_full();
                return Ok(mlua::Value::Nil);
            }
            _ => seen(lua, raised)?,
        };
        let table = match &raised {
            mlua::Value::Table(table) => table.clone(),
            other => {
                let text = match other {
                    mlua::Value::String(text) => text.as_bytes().to_vec(),
                    other => other.to_string().unwrap_or_default().into_bytes(),
                };
                if text.ends_with(b"not enough memory") {
                    shared.end_full();
                    return Ok(mlua::Value::Nil);
                }
                // An error of the prelude is one of the script that called it.
                let text = match (prelude_error(&text), &place) {
                    (Some(rest), Some(place)) => {
                        let before = format!("{}:{}: ", place.name, place.line);
                        [before.as_bytes(), rest].concat()
                    }
                    (Some(rest), None) => rest.to_vec(),
                    (None, _) => text,
                };
                let text = [b"ERR ".as_slice(), of_c(&text)].concat();
                error_table(lua, &text, false)?
            }
        };
        if let Some(place) = place {
            table.raw_set("source", place.source)?;
            table.raw_set("line", place.line)?;
        }
        Ok(mlua::Value::Table(table))
    })
}

/// The text of an error of the prelude, without its place, which is none of the script.
pub(crate) fn prelude_error(text: &[u8]) -> Option<&[u8]> {
    let rest = text.strip_prefix(b"prelude:")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    rest[digits..].strip_prefix(b": ")
}

/// Where a script is.
struct Place {
    source: String,
    name: String,
    line: usize,
}

/// The innermost function of the script that runs.
fn place_of(lua: &Lua) -> Option<Place> {
    (1..40).find_map(|level| {
        lua.inspect_stack(level, |debug| {
            let source = debug.source();
            let name = source.short_src?.into_owned();
            let line = debug.current_line().filter(|line| *line > 0)?;
            let source = source.source?.into_owned();
            let place = Place { source, name, line };
            (place.name != "prelude").then_some(place)
        })?
    })
}

/// The error of a script that nobody caught.
fn uncaught(error: &Table, name: &str) -> Vec<u8> {
    let field = |field: &str| match error.raw_get(field) {
        Ok(mlua::Value::String(text)) => Some(of_c(&text.as_bytes()).to_vec()),
        Ok(mlua::Value::Integer(number)) => Some(number.to_string().into_bytes()),
        Ok(mlua::Value::Number(number)) => Some(number.to_string().into_bytes()),
        _ => None,
    };
    let text = field("err").unwrap_or_else(|| b"ERR unknown error".to_vec());
    let (Some(source), Some(line)) = (field("source"), field("line")) else {
        return text;
    };
    let middle = format!(" script: {name}, on ");
    [&text[..], middle.as_bytes(), &source, b":", &line, b"."].concat()
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
