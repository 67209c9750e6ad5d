//! What scripts give, and what they cannot do. Texts and conversions are those of redis-server 7.

use super::*;
use crate::redis::VERSION;
use crate::{Parts, Stop};
use core::cell::Cell;

/// A server with one key.
#[derive(Default)]
struct Server {
    value: Vec<u8>,
    protocol: u8,
    log: Vec<(u8, Vec<u8>)>,
    interrupts: bool,
}

impl Commands for Server {
    fn call(&mut self, command: Parts) -> Result<Value, Interrupted> {
        if self.interrupts {
            return Err(Interrupted);
        }
        let words: Vec<_> = command.iter().map(String::from_utf8_lossy).collect();
        let words: Vec<&str> = words.iter().map(|word| &**word).collect();
        Ok(match &words[..] {
            ["set", _, value] => {
                self.value = value.as_bytes().to_vec();
                Value::Status(b"OK".to_vec())
            }
            ["get", _] if self.value.is_empty() => Value::Nil,
            ["get", _] => Value::Bulk(self.value.clone().into()),
            ["list"] => Value::Array(vec![Value::Integer(1), Value::Nil, bulk("x")]),
            ["map"] => Value::Map(vec![(bulk("a"), Value::Integer(1))]),
            ["double"] => Value::Double(1.5),
            ["incr", _] => Value::Error(b"ERR value is not an integer or out of range".to_vec()),
            _ => Value::Error(b"ERR Unknown Redis command called from script".to_vec()),
        })
    }

    fn may_call(&mut self, command: Parts) -> Option<bool> {
        match command.iter().next() {
            Some(b"get") => Some(true),
            Some(b"set") => Some(false),
            _ => None,
        }
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        self.log.push((level, text.to_vec()));
    }

    fn set_protocol(&mut self, version: u8) {
        self.protocol = version;
    }
}

/// No keys and no arguments.
const NOTHING: (&[&[u8]], &[&[u8]]) = (&[], &[]);

fn budget() -> Rc<Budget> {
    Rc::new(Budget::new(1_000_000, Stop::default()))
}

fn server() -> Rc<RefCell<Server>> {
    Rc::default()
}

fn run_on(interpreter: &Interpreter, source: &str, arguments: &[&str]) -> Ended {
    let arguments: Vec<_> = arguments.iter().map(|a| a.as_bytes().to_vec()).collect();
    let keys = [b"k".to_vec()];
    let script = (source.as_bytes(), "SHA");
    interpreter.run(script, (&keys, &arguments), &server(), &budget())
}

fn run(source: &str) -> Ended {
    run_on(&Interpreter::new(), source, &["one", "two"])
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec().into())
}

#[test]
fn values_are_converted_as_redis_does() {
    for (source, expected) in [
        ("return 3.99", Value::Integer(3)),
        ("return -3.99", Value::Integer(-3)),
        ("return true", Value::Integer(1)),
        ("return false", Value::Nil),
        ("return nil", Value::Nil),
        ("return", Value::Nil),
        ("return 'x'", bulk("x")),
        (
            "return {1,2,nil,3}",
            Value::Array(vec![Value::Integer(1), Value::Integer(2)]),
        ),
        ("return {ok='fine'}", Value::Status(b"fine".to_vec())),
        (
            "return {err='My table err'}",
            Value::Error(b"My table err".to_vec()),
        ),
        (
            "return redis.error_reply('My err')",
            Value::Error(b"My err".to_vec()),
        ),
        (
            "return redis.error_reply('-My err')",
            Value::Error(b"My err".to_vec()),
        ),
        (
            "return redis.status_reply('FINE')",
            Value::Status(b"FINE".to_vec()),
        ),
        (
            "return {KEYS[1], ARGV[1], ARGV[2], #ARGV}",
            Value::Array(vec![bulk("k"), bulk("one"), bulk("two"), Value::Integer(2)]),
        ),
        ("return redis.call('get', 'k')", Value::Nil),
        ("return type(redis.call('get', 'k'))", bulk("boolean")),
        (
            "redis.call('set', 'k', 12.5) return redis.call('get', 'k')",
            bulk("12.5"),
        ),
        (
            "redis.call('set', 'k', 10) return redis.call('get', 'k')",
            bulk("10"),
        ),
        ("return redis.call('set', 'k', 1e15)['ok']", bulk("OK")),
        (
            "return redis.pcall('incr', 'k')['err']",
            bulk("ERR value is not an integer or out of range"),
        ),
        (
            "local ok, e = pcall(redis.call, 'incr', 'k') return {ok, e}",
            Value::Array(vec![
                Value::Nil,
                bulk("ERR value is not an integer or out of range"),
            ]),
        ),
        ("return #redis.call('list')", Value::Integer(3)),
        ("return redis.call('map').map.a", Value::Integer(1)),
        ("return {double=1.5}", Value::Double(1.5)),
        (
            "return {map={a=1}}",
            Value::Map(vec![(bulk("a"), Value::Integer(1))]),
        ),
        ("return {set={a=true}}", Value::Set(vec![bulk("a")])),
        (
            "return redis.sha1hex('a')",
            bulk("86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
        ),
        (
            "return tostring(math.floor(3.7)) .. ('x'):rep(3) .. string.format('%05d', 42)",
            bulk("3xxx00042"),
        ),
        (
            "return {loadstring('return 1+1')()}",
            Value::Array(vec![Value::Integer(2)]),
        ),
        ("return select('#', 1, 2)", Value::Integer(2)),
        ("#!lua flags=no-writes\nreturn 5", Value::Integer(5)),
        (
            "local t = {3,1,2} table.sort(t) return table.concat(t, ',')",
            bulk("1,2,3"),
        ),
        ("return unpack({1, 2})", Value::Integer(1)),
        ("return redis.REDIS_VERSION", bulk(VERSION)),
    ] {
        assert_eq!(run(source), Ended::Value(expected), "{source}");
    }
}

#[test]
fn libraries_do_what_they_do_in_redis() {
    for (source, expected) in [
        ("return cjson.encode({1,2,{a=1.5}})", "[1,2,{\"a\":1.5}]"),
        ("return cjson.encode({})", "{}"),
        (
            "return cjson.encode({a='x/\"\\n'})",
            "{\"a\":\"x\\/\\\"\\n\"}",
        ),
        (
            "return cjson.encode({cjson.null, true, 1e20})",
            "[null,true,1e+20]",
        ),
        (
            "return cjson.encode(cjson.decode('{\"a\":[1,{\"b\":null}],\"c\":\"\\\\u00e9\"}').a)",
            "[1,{\"b\":null}]",
        ),
        ("return cjson.decode('\"\\\\ud83d\\\\ude00\"')", "\u{1f600}"),
        ("return tostring(cjson.decode('[1,2.5e1]')[2])", "25"),
        (
            "return tostring(cjson.decode('null') == cjson.null)",
            "true",
        ),
        ("return cmsgpack.unpack(cmsgpack.pack('text'))", "text"),
        (
            "return cjson.encode({cmsgpack.unpack(cmsgpack.pack(1, -1, 300, -300, 70000, 2^40, 1.5, true))})",
            "[1,-1,300,-300,70000,1099511627776,1.5,true]",
        ),
        (
            "return cjson.encode(cmsgpack.unpack(cmsgpack.pack({1,{a='b'},{}})))",
            "[1,{\"a\":\"b\"},{}]",
        ),
        (
            "local n, v = cmsgpack.unpack_one(cmsgpack.pack(1, 2)) return n .. ' ' .. v",
            "1 1",
        ),
        (
            "return bit.tohex(bit.bxor(0xff00, 0x0ff0)) .. bit.tohex(255, -4)",
            "0000f0f000FF",
        ),
        (
            "return tostring(bit.band(-1, 0xffffffff)) .. bit.lshift(1, 31) .. bit.rshift(-1, 28) .. bit.arshift(-256, 4)",
            "-1-214748364815-16",
        ),
        (
            "return tostring(struct.size('<ihb')) .. #struct.pack('>I4c2s', 1, 'ab', 'cd')",
            "79",
        ),
        (
            "local a, b, c = struct.unpack('>Hbd', struct.pack('>Hbd', 513, -2, 1.25)) return a .. b .. c",
            "513-21.25",
        ),
        (
            "return string.gsub('hello world', '(o)', '<%1>')",
            "hell<o> w<o>rld",
        ),
        ("return string.gsub('abc', '', '-')", "-a-b-c-"),
        (
            "return string.gsub('$name is $age', '%$(%w+)', {name='x', age=3})",
            "x is 3",
        ),
        ("return ('key:1:2'):match('^key:(%d+):(%d+)$')", "1"),
        (
            "local r = '' for k, v in ('a=1,b=2'):gmatch('(%w)=(%w)') do r = r .. k .. v end return r",
            "a1b2",
        ),
        (
            "return table.concat({('a.b'):find('.', 1, true)}, ',')",
            "2,2",
        ),
        ("return tostring(('x'):find('y'))", "nil"),
    ] {
        assert_eq!(run(source), Ended::Value(bulk(expected)), "{source}");
    }
}

#[test]
fn errors_have_the_words_of_redis() {
    for (source, expected) in [
        (
            "return foo",
            "ERR user_script:1: Script attempted to access nonexistent global variable 'foo' script: SHA, on @user_script:1.",
        ),
        (
            "foo=1",
            "ERR user_script:1: Attempt to modify a readonly table script: SHA, on @user_script:1.",
        ),
        (
            "\nstring.x=1",
            "ERR user_script:2: Attempt to modify a readonly table script: SHA, on @user_script:2.",
        ),
        (
            "error('boom')",
            "ERR user_script:1: boom script: SHA, on @user_script:1.",
        ),
        (
            "error({err='X boom'})",
            "X boom script: SHA, on @user_script:1.",
        ),
        (
            "local a = {} ; a.x.y = 1",
            "ERR user_script:1: attempt to index field 'x' (a nil value) script: SHA, on @user_script:1.",
        ),
        (
            "redis.call('incr', 'k')",
            "ERR value is not an integer or out of range script: SHA, on @user_script:1.",
        ),
        (
            "return redis.call('nosuch')",
            "ERR Unknown Redis command called from script script: SHA, on @user_script:1.",
        ),
        (
            "return redis.call()",
            "ERR Please specify at least one argument for this redis lib call script: SHA, on @user_script:1.",
        ),
        (
            "return redis.call({})",
            "ERR Lua redis lib command arguments must be strings or integers script: SHA, on @user_script:1.",
        ),
        (
            "return redis.setresp(4)",
            "ERR RESP version must be 2 or 3. script: SHA, on @user_script:1.",
        ),
        (
            "return cjson.decode('{')",
            "ERR user_script:1: Expected object key string but found T_END at character 2 script: SHA, on @user_script:1.",
        ),
        (
            "return (",
            "ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'",
        ),
    ] {
        let ended = run(source);
        let Ended::Failed(text) = ended else {
            panic!("{source}: {ended:?}");
        };
        assert_eq!(String::from_utf8_lossy(&text), expected, "{source}");
    }
}

// shows: SCRIPT-4
#[test]
fn there_is_no_way_out() {
    for name in [
        "io", "os", "package", "require", "dofile", "loadfile", "print", "newproxy", "setfenv",
        "getfenv", "debug", "module", "jit",
    ] {
        let source = format!("return tostring({name})");
        let ended = run(&source);
        let is_nothing = ended == Ended::Value(bulk("nil"));
        assert!(
            is_nothing || matches!(ended, Ended::Failed(_)),
            "{name}: {ended:?}"
        );
    }
    for source in [
        // Bytecode.
        "return loadstring('\\27Lua')",
        "local n = 0 return load(function() n = n + 1 return n == 1 and '\\27Lua' or nil end)",
        "return string.dump(function() end)",
        "return getmetatable('').__index.x",
        "getmetatable('').__index = {}",
        "setmetatable(_G, {})",
        "setmetatable(string, {})",
        "return getmetatable(_G).__index",
        "setmetatable('', {})",
    ] {
        let ended = run(source);
        let is_refused = matches!(ended, Ended::Failed(_)) || ended == Ended::Value(Value::Nil);
        assert!(is_refused, "{source}: {ended:?}");
    }
}

// shows: SCRIPT-1
#[test]
fn nothing_lasts() {
    let interpreter = Interpreter::new();
    for leak in [
        "rawset(_G, 'leak', 1) return leak",
        "rawset(string, 'leak', 1) return 1",
        "table.insert(string, 'leak') return 1",
        "rawset(redis, 'leak', 1) return 1",
        "rawset(cjson, 'encode', nil) return 1",
        "KEYS.leak = 1 return 1",
        "return math.random(1000)",
    ] {
        run_on(&interpreter, leak, &[]);
    }
    let probe = "return tostring(rawget(_G, 'leak')) .. tostring(rawget(string, 'leak')) \
                 .. tostring(rawget(string, 1)) .. tostring(rawget(redis, 'leak')) \
                 .. tostring(KEYS.leak) .. cjson.encode({1})";
    let expected = Ended::Value(bulk("nilnilnilnilnil[1]"));
    assert_eq!(run_on(&interpreter, probe, &[]), expected);
    let draw = "return math.random(1000)";
    assert_eq!(
        run_on(&interpreter, draw, &[]),
        run_on(&interpreter, draw, &[])
    );
}

// shows: SCRIPT-2, SCRIPT-3
#[test]
fn what_goes_on_for_ever_ends() {
    for source in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() return pcall(f) end while true do f() end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end",
        "local s = 'x' while true do pcall(function() s = s .. s end) end",
        "return ('x'):rep(1e9)",
        "return string.find(('a'):rep(30) .. 'b', ('a?'):rep(30) .. ('a'):rep(31))",
        "while true do pcall(string.find, ('a'):rep(30), ('a?'):rep(30) .. ('a'):rep(31)) end",
        "while true do redis.call('get', 'k') end",
        "while true do redis.pcall('nosuch') end",
        "return ('').rep('', 2147483647) .. ('x'):rep(2147483647)",
        "return ('x'):rep(1e6):gsub('x', ('y'):rep(1e6))",
        "local s = ('x'):rep(1e6) while true do s:gmatch('y') end",
        "local s = ('x'):rep(1e6) while true do s:upper() end",
        "local t, s = {}, ('x'):rep(1e6) for n = 1, 1e4 do t[n] = s end return t",
        "local t, s = {}, ('x'):rep(1e6) for n = 1, 1e4 do t[n] = s end return cjson.encode(t)",
        "local t, s = {}, ('x'):rep(1e6) for n = 1, 1e4 do t[n] = s end return cmsgpack.pack(t)",
        "local t = {} for n = 1, 100 do t[n] = t end return t",
        "local t = {} for n = 1, 100 do t[n] = t end return {map = t}",
        "local t = {} for n = 1, 100 do t[n] = t end return cmsgpack.pack(t)",
        "cjson.encode_max_depth(1e9) local t = {} t[1] = t t[2] = t while true do pcall(cjson.encode, t) end",
        "local s = ('x'):rep(1e6) redis.call('set', s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, \
         s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, \
         s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s)",
        "local co = coroutine.wrap(function() while true do end end) while true do pcall(co) end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "local function f() return coroutine.wrap(f)() end while true do pcall(f) end",
        "load(function() return 'x' end)",
        "local s = ('x'):rep(1e6) local function f() local n = 0 return ('y'):rep(20):gsub('y', \
         function() n = n + 1 if n < 20 then return s end f() return '' end) end f()",
        "load(function() while true do end end)",
        "local t = {} for n = 1, 1000 do t[n] = ('x'):rep(50000) .. n end while true do table.sort(t) end",
        "while true do string.rep('x', 10):gsub('x', function() while true do end end) end",
    ] {
        let interpreter = Interpreter::new();
        let ended = run_on(&interpreter, source, &[]);
        let is_ended = matches!(ended, Ended::Interrupted | Ended::OutOfMemory);
        assert!(is_ended, "{source}: {ended:?}");
        assert_eq!(
            run_on(&interpreter, "return 1", &[]),
            Ended::Value(Value::Integer(1))
        );
    }
    let deep = run("local function f() return f() + 1 end return f()");
    assert!(matches!(deep, Ended::Failed(_)), "{deep:?}");
}

/// Calls that would take long, or too much of Lua's stack, are refused.
#[test]
fn what_lua_cannot_bear_is_an_error() {
    for source in [
        "table.insert({}, -2147483648, 1)",
        "table.insert({}, 0/0, 1)",
        "return unpack({}, 1, 1e6)",
        "return cmsgpack.pack(unpack({}, 1, 7000))",
        "return cmsgpack.unpack(('\\1'):rep(9000))",
        "return cmsgpack.unpack(('\\145'):rep(100000))",
        "return struct.unpack(('b'):rep(9000), ('x'):rep(9000))",
        "return string.byte(('x'):rep(9000), 1, -1)",
        "cjson.decode_max_depth(1e9) return cjson.decode(('['):rep(100000))",
        "cjson.encode_max_depth(1e9) local t = {} t[1] = t return cjson.encode(t)",
        "local f = function() end for n = 1, 300 do local g = f f = function() return pcall(g) end end \
         return coroutine.yield(f())",
        "local t = {} for n = 1, 7999 do t[n] = 'x' .. n end for n = 7800, 7999 do \
         pcall(redis.call, unpack(t, 1, n)) pcall(cjson.encode, unpack(t, 1, n)) \
         pcall(string.find, unpack(t, 1, n)) pcall(rawget, unpack(t, 1, n)) \
         pcall(coroutine.resume, unpack(t, 1, n)) end error('done')",
    ] {
        let ended = run(source);
        assert!(matches!(ended, Ended::Failed(_)), "{source}: {ended:?}");
    }
    let many = "local t = {} for n = 1, 7000 do t[n] = 'x' .. n end \
                redis.call('nosuch', unpack(t))";
    let Ended::Failed(text) = run(many) else {
        panic!("the command is unknown");
    };
    assert!(
        text.starts_with(b"ERR Unknown Redis command"),
        "a command has room for 7000 arguments"
    );
}

#[test]
fn coroutines_run_and_their_errors_are_those_of_scripts() {
    for (source, expected) in [
        (
            "local co = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end) \
             return co(1) + co(5)",
            Value::Integer(12),
        ),
        (
            "local co = coroutine.create(function() return redis.call('get', 'k') end) \
             local ok, got = coroutine.resume(co) return {tostring(ok), coroutine.status(co)}",
            Value::Array(vec![bulk("true"), bulk("dead")]),
        ),
        (
            "local co = coroutine.create(function() redis.call('incr', 'k') end) \
             local ok, error = coroutine.resume(co) return {tostring(ok), error.err}",
            Value::Array(vec![
                bulk("false"),
                bulk("ERR value is not an integer or out of range"),
            ]),
        ),
    ] {
        assert_eq!(run(source), Ended::Value(expected), "{source}");
    }
}

// shows: SCRIPT-2
#[test]
fn a_script_ends_when_its_time_is_over() {
    let looks = Rc::new(Cell::new(0));
    let seen = Rc::clone(&looks);
    let is_late = move || seen.replace(seen.get() + 1) >= 3;
    let budget = Rc::new(Budget::new(u64::MAX, Stop::default()).until(is_late));
    let source = "while true do pcall(string.rep, 'x', 100000) end";
    let script = (source.as_bytes(), "SHA");
    let ended = Interpreter::new().run(script, NOTHING, &server(), &budget);
    assert_eq!(ended, Ended::Interrupted);
    assert_eq!(looks.get(), 4);
    assert!(!budget.is_used());
}

// shows: SCRIPT-3
#[test]
fn a_script_has_the_memory_of_its_budget() {
    let interpreter = Interpreter::new();
    let run = |source: &str, bytes| {
        let budget = Rc::new(Budget::new(3_000_000, Stop::default()).memory(bytes));
        let script = (source.as_bytes(), "SHA");
        interpreter.run(script, NOTHING, &server(), &budget)
    };
    let large = "return #string.rep('x', 1000000)";
    let caught = "local ok = pcall(string.rep, 'x', 1000000) return 7";
    for source in [large, caught] {
        assert_eq!(run(source, 500_000), Ended::OutOfMemory);
    }
    let length = Ended::Value(Value::Integer(1_000_000));
    assert_eq!(run(large, 10_000_000), length);
    // The garbage of one does not count against the next.
    for _ in 0..100 {
        assert_eq!(
            run("return #string.rep('x', 100000)", 500_000),
            Ended::Value(Value::Integer(100_000))
        );
    }
}

#[test]
fn another_thread_stops_a_script() {
    let stop = Stop::default();
    let budget = Rc::new(Budget::new(u64::MAX, stop.clone()));
    #[expect(clippy::disallowed_methods, reason = "what is tested is a thread")]
    let stopper = std::thread::spawn(move || stop.stop());
    let script = ("while true do end".as_bytes(), "SHA");
    let ended = Interpreter::new().run(script, NOTHING, &server(), &budget);
    assert_eq!(ended, Ended::Interrupted);
    assert!(!budget.is_used());
    stopper.join().expect("it does not panic");
}

#[test]
fn a_command_may_interrupt_and_a_script_may_log() {
    let interpreter = Interpreter::new();
    let server = server();
    server.borrow_mut().interrupts = true;
    let script = ("pcall(redis.call, 'get', 'k') return 1".as_bytes(), "SHA");
    let ended = interpreter.run(script, NOTHING, &server, &budget());
    assert_eq!(ended, Ended::Interrupted);
    let server = self::server();
    let script = (
        "redis.log(redis.LOG_WARNING, 'a', 1) redis.setresp(3)".as_bytes(),
        "SHA",
    );
    interpreter.run(script, NOTHING, &server, &budget());
    let server = server.borrow();
    assert_eq!(server.log, [(3, b"a 1".to_vec())]);
    assert_eq!(server.protocol, 3);
}

#[test]
fn libraries_register_functions() {
    let interpreter = Interpreter::new();
    let source = b"#!lua name=lib\n\
        local count = 0\n\
        redis.register_function('f', function(keys, args) count = count + 1 return {keys[1], args[1], count} end)\n\
        redis.register_function{function_name='g', callback=function() return redis.call('get', 'k') end, flags={'no-writes'}, description='reads'}";
    let library = interpreter
        .load_library(source, &budget())
        .expect("it is right");
    assert_eq!(library.name, "lib");
    assert_eq!(library.functions.len(), 2);
    assert!(library.functions[1].flags.no_writes);
    for _ in 0..2 {
        let ended = interpreter.run_function(
            (source, "f"),
            (&[b"k".to_vec()], &[b"x".to_vec()]),
            &server(),
            &budget(),
        );
        let expected = Value::Array(vec![bulk("k"), bulk("x"), Value::Integer(1)]);
        assert_eq!(
            ended,
            Ended::Value(expected),
            "its variables are new each time"
        );
    }
    for (wrong, text) in [
        ("x", "Missing library metadata"),
        ("#!lua name=lib\nreturn 1", "No functions registered"),
        (
            "#!lua name=lib\nreturn (",
            "Error compiling function: user_function:2: unexpected symbol near '<eof>'",
        ),
    ] {
        let error = interpreter.load_library(wrong.as_bytes(), &budget());
        assert_eq!(
            String::from_utf8_lossy(&error.expect_err("it is wrong")),
            text
        );
    }
}

// shows: SCRIPT-1
#[test]
fn nothing_is_put_into_tables_that_all_scripts_see() {
    let interpreter = Interpreter::new();
    for table in ["redis", "string", "cjson", "_G", "getmetatable('')"] {
        let source = format!("table.insert({table}, 'left')");
        let text = "ERR user_script:1: Attempt to modify a readonly table script: SHA, on \
                    @user_script:1.";
        let failed = Ended::Failed(text.into());
        assert_eq!(run_on(&interpreter, &source, &[]), failed, "{table}");
        let source = format!("table.insert({table}, 3, 'left')");
        assert_eq!(run_on(&interpreter, &source, &[]), failed, "{table}");
        let left = format!("return rawget({table}, 1) or rawget({table}, 3)");
        let nothing = Ended::Value(Value::Nil);
        assert_eq!(run_on(&interpreter, &left, &[]), nothing, "{table}");
    }
}

// shows: SCRIPT-1
#[test]
fn each_script_has_its_own_keys_and_arguments() {
    let interpreter = Interpreter::new();
    let source = b"local all = {#KEYS, #ARGV} \
                   for _, key in ipairs(KEYS) do all[#all + 1] = key end \
                   for _, argument in ipairs(ARGV) do all[#all + 1] = argument end \
                   KEYS[#KEYS + 1], ARGV[#ARGV + 1] = 'left', 'left' \
                   all[#all + 1] = #KEYS + #ARGV \
                   return all";
    for (keys, arguments) in (0..4).flat_map(|keys| (0..6).map(move |more| (keys, more))) {
        let named = |name: &str, count| (0..count).map(|n| format!("{name}{n}")).collect();
        let (keys, arguments): (Vec<String>, Vec<String>) =
            (named("k", keys), named("a", arguments));
        let count = |count: usize| Value::Integer(i64::try_from(count).unwrap());
        let mut all = vec![count(keys.len()), count(arguments.len())];
        all.extend(keys.iter().chain(&arguments).map(|text| bulk(text)));
        all.push(count(keys.len() + arguments.len() + 2));
        let given = (&keys[..], &arguments[..]);
        let ended = interpreter.run((&source[..], "SHA"), given, &server(), &budget());
        assert_eq!(ended, Ended::Value(Value::Array(all)));
    }
}
