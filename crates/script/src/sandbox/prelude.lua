-- The part of the sandbox that is written in Lua. Its chunk is called "prelude".

local base, libraries, redis, loading, reals, native = ...
local check, seen, match = unpack(native)
local setmetatable, tostring, tonumber, error = setmetatable, tostring, tonumber, error
local pcall, xpcall, unpack, select, type = pcall, xpcall, unpack, select, type
local pairs, rawget, setfenv = pairs, rawget, setfenv

local function readonly()
    error("Attempt to modify a readonly table", 2)
end

-- One result, however many there are: C code has room for few.
local function collected(...) return { n = select('#', ...), ... } end
-- A function without a name: errors of what is called so tell none, as in Lua's own `pcall`.
local function itself(f) return f end
local function collect(f, ...) return collected(itself(f)(...)) end
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

-- `pcall` and `xpcall` that do not catch interruptions.
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

-- Neither does a coroutine that is resumed. What goes in and out of it is one value, too.
local coroutine = libraries.coroutine
local create, wrap, resume, yield =
    coroutine.create, coroutine.wrap, coroutine.resume, coroutine.yield
local function body_of(f) return function(...) return collected(f(...)) end end
coroutine.yield = function(...) return yield(collected(...)) end
coroutine.create = function(f)
    -- It refuses what is no function of Lua.
    create(f)
    return create(body_of(f))
end
coroutine.resume = function(...)
    local ok, value = check(resume(...))
    if ok then return true, unpack(value, 1, value.n) end
    return ok, value
end
coroutine.wrap = function(f)
    wrap(f)
    local made = create(body_of(f))
    return function(...)
        local ok, value = check(resume(made, ...))
        if ok then return unpack(value, 1, value.n) end
        error(value, 2)
    end
end

-- Of `string.gmatch`. The texts are held by Lua, which knows what they take.
local function matches_of(subject, pattern)
    local at = 0
    local function step(next, ...)
        if next == nil then return nil end
        at = next
        return ...
    end
    return function() return step(match(subject, pattern, at)) end
end

-- To compare long texts takes long. So it is done by instructions, which are counted.
local sort = libraries.table.sort
local function is_less(a, b) return a < b end
libraries.table.sort = function(list, comparator)
    if comparator == nil and type(list) == 'table' then
        for at = 1, #list do
            local item = rawget(list, at)
            if type(item) == 'string' and #item > 200 then
                return sort(list, is_less)
            end
        end
        return sort(list)
    end
    return sort(list, comparator)
end

-- Lua moves all members between the place and the end, if there are any or not.
local insert = libraries.table.insert
libraries.table.insert = function(...)
    local list, place = ...
    -- It asks no metatables.
    if reals[list] then error("Attempt to modify a readonly table", 2) end
    if select('#', ...) == 3 then
        place = tonumber(place)
        if place and not (place > -1000000 and place < 2147483648) then
            error("bad argument #2 to 'insert' (position far out of the list)", 2)
        end
    end
    return insert(...)
end

-- A table that shows what another one has, and refuses to be changed. Functions of the base that
-- do not ask metatables know it by `reals`.
local function shown(real, metatable)
    local proxy = setmetatable({}, metatable)
    reals[proxy] = real
    return proxy
end

local function view_of(real)
    return { __index = real, __newindex = readonly, __metatable = false }
end

-- The proxies that only the script that runs has. All others are there for all scripts, as nothing
-- can be changed through them.
local own = {}

local function shown_to_one(real, view)
    local proxy = shown(real, view)
    own[#own + 1] = proxy
    return proxy
end

local scripts = shown(redis, view_of(redis))
local shown_libraries = {}
for name, library in pairs(libraries) do
    shown_libraries[name] = shown(library, view_of(library))
end

-- Of the globals of an environment: most scripts use few, so they are fetched when they are looked
-- at.
local function missing(globals, name)
    local value = base[name] or shown_libraries[name]
    if value == nil then
        name = tostring(name)
        error("Script attempted to access nonexistent global variable '" .. name .. "'", 2)
    end
    globals[name] = value
    return value
end

local lazy = { __index = missing }
-- The environment of the script that runs.
local current
-- The proxy of `redis` for the library that is being loaded, and its metatable.
local loaded, loaded_view

local function environment() return current end

-- What the script before had is forgotten.
local function forget()
    for at = #own, 1, -1 do
        reals[own[at]] = nil
        own[at] = nil
    end
end

-- A new environment.
local function environment_of(globals)
    forget()
    setmetatable(globals, lazy)
    current = shown_to_one(globals, view_of(globals))
    globals._G = current
    return current
end

-- That of a library that is loaded: there are no commands.
local function loading_environment(register)
    local globals = {}
    local made = environment_of(globals)
    local real = setmetatable({ register_function = register }, { __index = loading })
    loaded_view = view_of(real)
    loaded = shown_to_one(real, loaded_view)
    globals.redis, globals.server = loaded, loaded
    return made
end

-- The library is loaded: from now on its `redis` is that of scripts.
local function is_loaded()
    loaded_view.__index = redis
    reals[loaded] = redis
end

-- The true table of a proxy, with all that is shown.
local function complete(real)
    if rawget(real, '_G') then
        for name in pairs(shown_libraries) do local _ = real[name] end
        for name in pairs(base) do local _ = real[name] end
    end
    return real
end

-- The metatable of strings and of the environment, as `getmetatable` gives it.
local function metatable_of(is_string)
    local real = { __index = is_string and current.string or nil }
    return shown_to_one(real, view_of(real))
end

-- One result, however many there are, as above.
local function protected(f, handler, a, b)
    return xpcall(function() return (f(a, b)) end, handler)
end

-- The environment of scripts. Nothing can be changed through it, so it is there for all of them,
-- and only `KEYS` and `ARGV` are those of one.
local script_globals = setmetatable(
    { redis = scripts, server = scripts, KEYS = false, ARGV = false, _G = false }, lazy)
local script_environment = shown(script_globals, view_of(script_globals))
script_globals._G = script_environment

-- The script that runs. It takes no arguments, so one function calls them all.
local body
local function once() return (body()) end

local function run(f, handler, keys, arguments)
    if own[1] then forget() end
    current = script_environment
    script_globals.KEYS, script_globals.ARGV = keys, arguments
    body = f
    return xpcall(once, handler)
end

-- Of one key and at most three arguments: the tables are made here, which takes less time.
local function run_small(f, handler, key, a, b, c)
    return run(f, handler, { key }, { a, b, c })
end

return loading_environment, environment, is_loaded, protected, { run, run_small },
    script_environment, complete, metatable_of, matches_of
