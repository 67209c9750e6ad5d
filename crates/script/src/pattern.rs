//! Patterns of Lua 5.1, in steps that count in the budget: those of the C library cannot be
//! interrupted (SCRIPT-2).
//!
//! `find`, `match`, `gmatch` and `gsub` of strings, as the manual of Lua 5.1 describes them (§5.4).

use crate::budget::Budget;
use mlua::{Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Most captures of a pattern.
const CAPTURES_MAX: usize = 32;
/// Deepest recursion of a match. It is by pieces of the pattern, not by bytes of the subject.
const DEPTH_MAX: u32 = 200;
/// Steps that count as many instructions of Lua as a slice of the budget.
const STEPS: u32 = 1000;

/// Why a match ended without a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The pattern makes no sense.
    Malformed(&'static str),
    /// The budget is used up.
    Interrupted,
}

type Matched<T> = Result<T, Failure>;

/// The extent of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// It is open.
    Open,
    /// This number of bytes.
    Closed(usize),
    /// It is a place, not a text.
    Place,
}

#[derive(Clone, Copy, Debug)]
struct Capture {
    start: usize,
    extent: Extent,
}

struct Matcher<'m> {
    subject: &'m [u8],
    pattern: &'m [u8],
    captures: Vec<Capture>,
    depth: u32,
    steps: u32,
    budget: &'m Budget,
}

impl<'m> Matcher<'m> {
    fn new(subject: &'m [u8], pattern: &'m [u8], budget: &'m Budget) -> Self {
        Self {
            subject,
            pattern,
            captures: Vec::new(),
            depth: 0,
            steps: 0,
            budget,
        }
    }

    fn step(&mut self) -> Matched<()> {
        self.steps += 1;
        if self.steps < STEPS {
            return Ok(());
        }
        self.steps = 0;
        match self.budget.spend(u64::from(STEPS)) {
            true => Ok(()),
            false => Err(Failure::Interrupted),
        }
    }

    /// Where the single-character class that begins at `p` ends.
    fn class_end(&self, p: usize) -> Matched<usize> {
        let first = self.pattern[p];
        let mut at = p + 1;
        match first {
            b'%' => match at < self.pattern.len() {
                true => Ok(at + 1),
                false => Err(Failure::Malformed("malformed pattern (ends with '%')")),
            },
            b'[' => {
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A bracket that comes first stands for itself.
                let mut is_first = true;
                loop {
                    match self.pattern.get(at) {
                        None => return Err(Failure::Malformed("malformed pattern (missing ']')")),
                        Some(b']') if !is_first => return Ok(at + 1),
                        Some(b'%') => at += 2,
                        Some(_) => at += 1,
                    }
                    is_first = false;
                }
            }
            _ => Ok(at),
        }
    }

    /// Whether a byte is of the class `from..end` of the pattern.
    fn is_single(&self, byte: u8, from: usize, end: usize) -> bool {
        match self.pattern[from] {
            b'.' => true,
            b'%' => is_of_class(byte, self.pattern[from + 1]),
            b'[' => self.is_of_set(byte, from, end - 1),
            other => other == byte,
        }
    }

    /// Whether a byte is of the set that begins at `from` and has its bracket at `close`.
    fn is_of_set(&self, byte: u8, from: usize, close: usize) -> bool {
        let mut at = from + 1;
        let is_negated = self.pattern[at] == b'^';
        if is_negated {
            at += 1;
        }
        while at < close {
            let here = self.pattern[at];
            if here == b'%' {
                at += 1;
                if at < self.pattern.len() && is_of_class(byte, self.pattern[at]) {
                    return !is_negated;
                }
                at += 1;
            } else if at + 2 < close && self.pattern[at + 1] == b'-' {
                if (here..=self.pattern[at + 2]).contains(&byte) {
                    return !is_negated;
                }
                at += 3;
            } else {
                if here == byte {
                    return !is_negated;
                }
                at += 1;
            }
        }
        is_negated
    }

    /// The end of a match of the pattern from `p` on at `s`.
    fn matches(&mut self, s: usize, p: usize) -> Matched<Option<usize>> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Failure::Malformed("pattern too complex"));
        }
        let result = self.matches_here(s, p);
        self.depth -= 1;
        result
    }

    fn matches_here(&mut self, mut s: usize, mut p: usize) -> Matched<Option<usize>> {
        loop {
            self.step()?;
            let Some(&first) = self.pattern.get(p) else {
                return Ok(Some(s));
            };
            match first {
                b'(' => {
                    return match self.pattern.get(p + 1) {
                        Some(b')') => self.open(s, p + 2, Extent::Place),
                        _ => self.open(s, p + 1, Extent::Open),
                    };
                }
                b')' => return self.close(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => {
                    return Ok((s == self.subject.len()).then_some(s));
                }
                b'%' => match self.pattern.get(p + 1) {
                    Some(b'b') => match self.balanced(s, p + 2)? {
                        Some(end) => {
                            (s, p) = (end, p + 4);
                            continue;
                        }
                        None => return Ok(None),
                    },
                    Some(b'f') => {
                        p += 2;
                        if self.pattern.get(p) != Some(&b'[') {
                            let why = "missing '[' after '%f' in pattern";
                            return Err(Failure::Malformed(why));
                        }
                        let end = self.class_end(p)?;
                        let before = if s == 0 { 0 } else { self.subject[s - 1] };
                        let here = self.subject.get(s).copied().unwrap_or(0);
                        if self.is_of_set(before, p, end - 1) || !self.is_of_set(here, p, end - 1) {
                            return Ok(None);
                        }
                        p = end;
                        continue;
                    }
                    Some(digit) if digit.is_ascii_digit() => {
                        match self.back_reference(s, *digit)? {
                            Some(end) => {
                                (s, p) = (end, p + 2);
                                continue;
                            }
                            None => return Ok(None),
                        }
                    }
                    _ => {}
                },
                _ => {}
            }
            let end = self.class_end(p)?;
            let is_match = |this: &Self, at: usize| {
                this.subject
                    .get(at)
                    .is_some_and(|byte| this.is_single(*byte, p, end))
            };
            match self.pattern.get(end) {
                Some(b'?') => {
                    if is_match(self, s)
                        && let Some(found) = self.matches(s + 1, end + 1)?
                    {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'-') => loop {
                    if let Some(found) = self.matches(s, end + 1)? {
                        return Ok(Some(found));
                    }
                    if !is_match(self, s) {
                        return Ok(None);
                    }
                    s += 1;
                    self.step()?;
                },
                Some(repeat @ (b'*' | b'+')) => {
                    let least = usize::from(*repeat == b'+');
                    let mut count = 0;
                    while is_match(self, s + count) {
                        count += 1;
                        self.step()?;
                    }
                    while count >= least {
                        if let Some(found) = self.matches(s + count, end + 1)? {
                            return Ok(Some(found));
                        }
                        if count == 0 {
                            break;
                        }
                        count -= 1;
                    }
                    return Ok(None);
                }
                _ => {
                    if !is_match(self, s) {
                        return Ok(None);
                    }
                    (s, p) = (s + 1, end);
                }
            }
        }
    }

    fn balanced(&mut self, s: usize, p: usize) -> Matched<Option<usize>> {
        let (Some(&open), Some(&close)) = (self.pattern.get(p), self.pattern.get(p + 1)) else {
            return Err(Failure::Malformed("unbalanced pattern"));
        };
        if self.subject.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1;
        for at in s + 1..self.subject.len() {
            self.step()?;
            let byte = self.subject[at];
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    fn open(&mut self, s: usize, p: usize, extent: Extent) -> Matched<Option<usize>> {
        if self.captures.len() >= CAPTURES_MAX {
            return Err(Failure::Malformed("too many captures"));
        }
        self.captures.push(Capture { start: s, extent });
        let found = self.matches(s, p)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Matched<Option<usize>> {
        let open = self.captures.iter().rposition(|c| c.extent == Extent::Open);
        let open = open.ok_or(Failure::Malformed("invalid pattern capture"))?;
        self.captures[open].extent = Extent::Closed(s - self.captures[open].start);
        let found = self.matches(s, p)?;
        if found.is_none() {
            self.captures[open].extent = Extent::Open;
        }
        Ok(found)
    }

    fn back_reference(&self, s: usize, digit: u8) -> Matched<Option<usize>> {
        let invalid = Failure::Malformed("invalid capture index");
        let at = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = at
            .and_then(|at| self.captures.get(at))
            .ok_or(invalid.clone())?;
        let Extent::Closed(len) = capture.extent else {
            return Err(invalid);
        };
        let text = &self.subject[capture.start..capture.start + len];
        let found = self.subject[s..].starts_with(text);
        Ok(found.then_some(s + len))
    }
}

/// Whether a byte is of the class of this letter; a capital one stands for all others. Any other
/// byte stands for itself.
fn is_of_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is != class.is_ascii_uppercase()
}

/// A match: its extent, and its captures.
#[derive(Clone, Debug)]
struct Found {
    start: usize,
    end: usize,
    captures: Vec<Capture>,
}

/// The first match from `from` on.
fn find_from(
    subject: &[u8],
    pattern: &[u8],
    from: usize,
    budget: &Budget,
) -> Matched<Option<Found>> {
    let is_anchored = pattern.first() == Some(&b'^');
    let pattern = if is_anchored { &pattern[1..] } else { pattern };
    for start in from..=subject.len() {
        let mut matcher = Matcher::new(subject, pattern, budget);
        if let Some(end) = matcher.matches(start, 0)? {
            let captures = matcher.captures;
            return Ok(Some(Found {
                start,
                end,
                captures,
            }));
        }
        if is_anchored {
            break;
        }
        if start.is_multiple_of(STEPS as usize) && !budget.spend(u64::from(STEPS)) {
            return Err(Failure::Interrupted);
        }
    }
    Ok(None)
}

fn failed(failure: Failure) -> mlua::Error {
    match failure {
        Failure::Malformed(why) => mlua::Error::runtime(why),
        Failure::Interrupted => mlua::Error::runtime("the script was interrupted"),
    }
}

impl Found {
    fn capture(&self, lua: &Lua, subject: &[u8], at: usize) -> mlua::Result<Value> {
        let Some(capture) = self.captures.get(at) else {
            if at == 0 {
                return Ok(Value::String(
                    lua.create_string(&subject[self.start..self.end])?,
                ));
            }
            return Err(mlua::Error::runtime("invalid capture index"));
        };
        match capture.extent {
            Extent::Place => Ok(Value::Number((capture.start + 1) as f64)),
            Extent::Closed(len) => {
                let text = &subject[capture.start..capture.start + len];
                Ok(Value::String(lua.create_string(text)?))
            }
            Extent::Open => Err(mlua::Error::runtime("unfinished capture")),
        }
    }

    /// All captures; where there are none, the whole match if that `is_wanted`.
    fn all(&self, lua: &Lua, subject: &[u8], is_wanted: bool) -> mlua::Result<Vec<Value>> {
        let count = match self.captures.len() {
            0 => usize::from(is_wanted),
            count => count,
        };
        (0..count)
            .map(|at| self.capture(lua, subject, at))
            .collect()
    }
}

/// A start as Lua counts it: from 1, or from the end where it is negative.
fn start_of(init: Option<f64>, len: usize) -> usize {
    let init = init.unwrap_or(1.0) as i64;
    let start = match init {
        1.. => init - 1,
        0 => 0,
        _ => (len as i64 + init).max(0),
    };
    usize::try_from(start).unwrap_or(0)
}

type FindArguments = (mlua::LuaString, mlua::LuaString, Option<f64>, Option<Value>);

fn find(
    lua: &Lua,
    (subject, pattern, init, plain): FindArguments,
    budget: &Budget,
    tells_place: bool,
) -> mlua::Result<MultiValue> {
    let (subject, pattern) = (subject.as_bytes().to_vec(), pattern.as_bytes().to_vec());
    let from = start_of(init, subject.len());
    let none = || Ok(MultiValue::from_vec(vec![Value::Nil]));
    if from > subject.len() {
        return none();
    }
    let is_plain = plain.is_some_and(|plain| !matches!(plain, Value::Nil | Value::Boolean(false)));
    let has_specials = pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte));
    if tells_place && (is_plain || !has_specials) {
        let found = find_plain(&subject, &pattern, from, budget).map_err(failed)?;
        let Some(start) = found else {
            return none();
        };
        let (first, last) = ((start + 1) as f64, (start + pattern.len()) as f64);
        return Ok(MultiValue::from_vec(vec![
            Value::Number(first),
            Value::Number(last),
        ]));
    }
    let Some(found) = find_from(&subject, &pattern, from, budget).map_err(failed)? else {
        return none();
    };
    let mut values = Vec::new();
    if tells_place {
        values.push(Value::Number((found.start + 1) as f64));
        values.push(Value::Number(found.end as f64));
    }
    values.extend(found.all(lua, &subject, !tells_place)?);
    Ok(MultiValue::from_vec(values))
}

fn find_plain(subject: &[u8], text: &[u8], from: usize, budget: &Budget) -> Matched<Option<usize>> {
    if text.is_empty() {
        return Ok(Some(from));
    }
    for start in from..=subject.len().saturating_sub(text.len()) {
        if subject[start..].starts_with(text) {
            return Ok(Some(start));
        }
        if start.is_multiple_of(STEPS as usize) && !budget.spend(u64::from(STEPS)) {
            return Err(Failure::Interrupted);
        }
    }
    Ok(None)
}

fn substitute(
    lua: &Lua,
    (subject, pattern, with, most): (mlua::LuaString, mlua::LuaString, Value, Option<f64>),
    budget: &Budget,
) -> mlua::Result<MultiValue> {
    let (subject, pattern) = (subject.as_bytes().to_vec(), pattern.as_bytes().to_vec());
    let with = match with {
        Value::Integer(number) => Value::String(lua.create_string(number.to_string())?),
        Value::Number(number) => {
            Value::String(lua.create_string(crate::json::number_text(number, 14))?)
        }
        Value::String(_) | Value::Table(_) | Value::Function(_) => with,
        _ => {
            let why = "bad argument #3 to 'gsub' (string/function/table expected)";
            return Err(mlua::Error::runtime(why));
        }
    };
    let most = most.map_or(u64::MAX, |most| if most < 0.0 { 0 } else { most as u64 });
    let is_anchored = pattern.first() == Some(&b'^');
    let (mut at, mut count, mut result) = (0, 0_u64, Vec::new());
    while count < most {
        let anchored = [
            b"^".as_slice(),
            pattern.strip_prefix(b"^").unwrap_or(&pattern),
        ]
        .concat();
        let found = find_from(&subject, &anchored, at, budget).map_err(failed)?;
        let step = match found {
            Some(found) => {
                count += 1;
                add_substitute(lua, &subject, &found, &with, &mut result)?;
                found.end
            }
            None => at,
        };
        if step > at {
            at = step;
        } else if at < subject.len() {
            result.push(subject[at]);
            at += 1;
        } else {
            at += 1;
            break;
        }
        if is_anchored {
            break;
        }
    }
    if at < subject.len() {
        result.extend_from_slice(&subject[at..]);
    }
    Ok(MultiValue::from_vec(vec![
        Value::String(lua.create_string(result)?),
        Value::Number(count as f64),
    ]))
}

fn add_substitute(
    lua: &Lua,
    subject: &[u8],
    found: &Found,
    with: &Value,
    result: &mut Vec<u8>,
) -> mlua::Result<()> {
    let whole = &subject[found.start..found.end];
    let value = match with {
        Value::String(text) => {
            let text = text.as_bytes().to_vec();
            let mut at = 0;
            while at < text.len() {
                if text[at] != b'%' {
                    result.push(text[at]);
                    at += 1;
                    continue;
                }
                match text.get(at + 1) {
                    Some(b'0') => result.extend_from_slice(whole),
                    Some(digit) if digit.is_ascii_digit() => {
                        let number = usize::from(digit - b'1');
                        push_text(result, &found.capture(lua, subject, number)?);
                    }
                    Some(other) => result.push(*other),
                    None => {
                        let why = "invalid use of '%' in replacement string";
                        return Err(mlua::Error::runtime(why));
                    }
                }
                at += 2;
            }
            return Ok(());
        }
        Value::Table(table) => table.get::<Value>(found.capture(lua, subject, 0)?)?,
        Value::Function(function) => {
            let arguments = found.all(lua, subject, true)?;
            function.call::<Value>(MultiValue::from_vec(arguments))?
        }
        _ => Value::Nil,
    };
    match value {
        Value::Nil | Value::Boolean(false) => result.extend_from_slice(whole),
        Value::String(_) | Value::Integer(_) | Value::Number(_) => push_text(result, &value),
        other => {
            let text = format!("invalid replacement value (a {})", other.type_name());
            return Err(mlua::Error::runtime(text));
        }
    }
    Ok(())
}

fn push_text(result: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(text) => result.extend_from_slice(&text.as_bytes()),
        Value::Integer(number) => result.extend_from_slice(number.to_string().as_bytes()),
        Value::Number(number) => {
            result.extend_from_slice(crate::json::number_text(*number, 14).as_bytes());
        }
        _ => {}
    }
}

/// Puts the functions into the table of the string library.
pub(crate) fn install(
    lua: &Lua,
    string: &Table,
    budget: &crate::interpreter::Shared,
) -> mlua::Result<()> {
    let shared = Rc::clone(budget);
    let function = lua.create_function(move |lua, arguments: FindArguments| {
        shared.with_budget(|budget| find(lua, arguments, budget, true))
    })?;
    string.raw_set("find", function)?;
    let shared = Rc::clone(budget);
    let function = lua.create_function(move |lua, arguments: FindArguments| {
        shared.with_budget(|budget| find(lua, arguments, budget, false))
    })?;
    string.raw_set("match", function)?;
    let shared = Rc::clone(budget);
    let function = lua.create_function(move |lua, arguments| {
        shared.with_budget(|budget| substitute(lua, arguments, budget))
    })?;
    string.raw_set("gsub", function)?;
    let shared = Rc::clone(budget);
    let each = move |lua: &Lua, (subject, pattern): (mlua::LuaString, mlua::LuaString)| {
        let (subject, pattern) = (subject.as_bytes().to_vec(), pattern.as_bytes().to_vec());
        // A circumflex has no meaning here.
        let shared = Rc::clone(&shared);
        let mut at = Some(0);
        lua.create_function_mut(move |lua, (): ()| {
            let Some(from) = at else {
                return Ok(MultiValue::from_vec(vec![Value::Nil]));
            };
            let found = shared.with_budget(|budget| {
                let mut from = from;
                loop {
                    if from > subject.len() {
                        return Ok::<_, mlua::Error>(None);
                    }
                    let mut matcher = Matcher::new(&subject, &pattern, budget);
                    if let Some(end) = matcher.matches(from, 0).map_err(failed)? {
                        let captures = matcher.captures;
                        return Ok(Some(Found {
                            start: from,
                            end,
                            captures,
                        }));
                    }
                    from += 1;
                }
            })?;
            match found {
                None => {
                    at = None;
                    Ok(MultiValue::from_vec(vec![Value::Nil]))
                }
                Some(found) => {
                    at = Some(found.end + usize::from(found.end == found.start));
                    Ok(MultiValue::from_vec(found.all(lua, &subject, true)?))
                }
            }
        })
    };
    string.raw_set("gmatch", lua.create_function(each)?)?;
    string.raw_set("gfind", string.raw_get::<Value>("gmatch")?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Stop;

    fn found(subject: &str, pattern: &str) -> Matched<Option<(usize, usize)>> {
        let budget = Budget::new(10_000_000, Stop::default());
        let found = find_from(subject.as_bytes(), pattern.as_bytes(), 0, &budget)?;
        Ok(found.map(|found| (found.start, found.end)))
    }

    #[test]
    fn patterns_match_as_the_manual_says() {
        for (subject, pattern, expected) in [
            ("hello", "l+", Some((2, 4))),
            ("hello", "^h.-o$", Some((0, 5))),
            ("hello", "x*", Some((0, 0))),
            ("key = value", "(%w+) = (%w+)", Some((0, 11))),
            ("f(a(b)c)d", "%b()", Some((1, 8))),
            ("THE (quick) fox", "%f[%a]%a+%f[%A]", Some((0, 3))),
            ("abab", "(ab)%1", Some((0, 4))),
            ("a-b", "[%-x]", Some((1, 2))),
            ("a]b", "[]]", Some((1, 2))),
            ("a^b", "[^a]", Some((1, 2))),
            ("2026-11-27", "^%d%d%d%d%-%d%d%-%d%d$", Some((0, 10))),
            ("none", "z", None),
            ("", "^$", Some((0, 0))),
            ("x", "x?y?", Some((0, 1))),
        ] {
            assert_eq!(found(subject, pattern), Ok(expected), "{subject} {pattern}");
        }
        for wrong in ["%", "[a", "(a", "a)", "%1", "%f", "%b"] {
            let result = found("aaa", wrong);
            let is_open = wrong == "(a" && result == Ok(Some((0, 1)));
            assert!(
                is_open || matches!(result, Err(Failure::Malformed(_))),
                "{wrong}: {result:?}"
            );
        }
    }

    // shows: SCRIPT-2
    #[test]
    fn a_pattern_bomb_ends() {
        let subject = "a".repeat(30);
        let pattern = format!("{}{}b", "a?".repeat(30), "a".repeat(30));
        assert_eq!(found(&subject, &pattern), Err(Failure::Interrupted));
        let long = "a".repeat(100_000);
        assert_eq!(found(&long, ".-.-.-.-b"), Err(Failure::Interrupted));
    }
}
