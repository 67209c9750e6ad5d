//! Patterns of Lua 5.1, in steps that count in the budget: those of the C library cannot be
//! interrupted (SCRIPT-2).
//!
//! `find`, `match`, `gmatch` and `gsub` of strings, as the manual of Lua 5.1 describes them (§5.4).

use crate::arguments::{Arguments, of_c, raise, to_int, type_name};
use crate::budget::Budget;
use crate::interpreter::{Shared, interrupted};
use crate::numbers::number_text;
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Most captures of a pattern.
const CAPTURES_MAX: usize = 32;
/// Deepest recursion of a match. It is by pieces of the pattern, not by bytes of the subject.
const DEPTH_MAX: u32 = 200;
/// Steps between two looks at the budget. Each counts as an instruction of Lua.
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

impl Matcher<'_> {
    /// The match that begins here.
    fn match_at(&mut self, start: usize) -> Matched<Option<Found>> {
        self.depth = 0;
        self.captures.clear();
        let end = self.matches(start, 0)?;
        Ok(end.map(|end| Found {
            start,
            end,
            captures: self.captures.clone(),
        }))
    }

    /// The first match from `from` on.
    fn first_match(&mut self, from: usize) -> Matched<Option<Found>> {
        for start in from..=self.subject.len() {
            if let Some(found) = self.match_at(start)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// The pattern without the circumflex that binds it to the start, and whether there was one.
fn anchored(pattern: &[u8]) -> (&[u8], bool) {
    match pattern.strip_prefix(b"^") {
        Some(rest) => (rest, true),
        None => (pattern, false),
    }
}

fn failed(lua: &Lua, failure: Failure) -> mlua::Error {
    match failure {
        Failure::Malformed(why) => raise(lua, why),
        Failure::Interrupted => interrupted(),
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
            return Err(raise(lua, "invalid capture index"));
        };
        match capture.extent {
            Extent::Place => Ok(Value::Number((capture.start + 1) as f64)),
            Extent::Closed(len) => {
                let text = &subject[capture.start..capture.start + len];
                Ok(Value::String(lua.create_string(text)?))
            }
            Extent::Open => Err(raise(lua, "unfinished capture")),
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
fn start_of(init: i64, len: usize) -> usize {
    let len_signed = i64::try_from(len).unwrap_or(i64::MAX);
    let init = match init < 0 {
        true => init.saturating_add(len_signed).saturating_add(1),
        false => init,
    };
    usize::try_from(init.saturating_sub(1))
        .unwrap_or(0)
        .min(len)
}

/// `string.find` and `string.match`.
fn find(arguments: &Arguments<'_>, budget: &Budget, tells_place: bool) -> mlua::Result<MultiValue> {
    let lua = arguments.lua;
    let (subject, pattern) = (arguments.text(1)?, arguments.text(2)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let from = start_of(arguments.integer_or(3, 1)?, subject.len());
    let none = || Ok(MultiValue::from_vec(vec![Value::Nil]));
    let is_plain = !matches!(arguments.get(4), Value::Nil | Value::Boolean(false));
    let is_special = |byte: &u8| b"^$*+?.([%-".contains(byte);
    if tells_place && (is_plain || !of_c(&pattern).iter().any(is_special)) {
        let found = find_plain(&subject, &pattern, from, budget);
        let Some(start) = found.map_err(|failure| failed(lua, failure))? else {
            return none();
        };
        let (first, last) = ((start + 1) as f64, (start + pattern.len()) as f64);
        return Ok(MultiValue::from_vec(vec![
            Value::Number(first),
            Value::Number(last),
        ]));
    }
    let (pattern, is_anchored) = anchored(of_c(&pattern));
    let mut matcher = Matcher::new(&subject, pattern, budget);
    let found = match is_anchored {
        true => matcher.match_at(from),
        false => matcher.first_match(from),
    };
    let Some(found) = found.map_err(|failure| failed(lua, failure))? else {
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

/// `string.gsub`.
fn substitute(arguments: &Arguments<'_>, shared: &Shared) -> mlua::Result<MultiValue> {
    let lua = arguments.lua;
    let (subject, pattern) = (arguments.text(1)?, arguments.text(2)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let most = match arguments.get(4) {
        Value::Nil => i64::MAX,
        _ => i64::from(to_int(arguments.number(4)?)),
    };
    let with = match arguments.get(3) {
        Value::Integer(_) | Value::Number(_) => Value::String(arguments.text(3)?),
        with @ (Value::String(_) | Value::Table(_) | Value::Function(_)) => with,
        _ => return Err(arguments.bad(3, "string/function/table expected")),
    };
    let (pattern, is_anchored) = anchored(of_c(&pattern));
    let (mut at, mut count, mut result) = (0, 0_i64, Vec::new());
    shared.with_budget(|budget| {
        let mut matcher = Matcher::new(&subject, pattern, budget);
        while count < most {
            let found = matcher
                .match_at(at)
                .map_err(|failure| failed(lua, failure))?;
            let step = match found {
                Some(found) => {
                    count += 1;
                    shared.keeping(result.len(), || {
                        add_substitute(lua, &subject, &found, &with, &mut result)
                    })?;
                    shared.room(result.len())?;
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
                break;
            }
            if is_anchored {
                break;
            }
        }
        Ok::<_, mlua::Error>(())
    })?;
    result.extend_from_slice(subject.get(at..).unwrap_or_default());
    shared.room(result.len())?;
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
            let text = text.as_bytes();
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
                    // As in Lua 5.1, which takes the zero behind a text for a part of it.
                    None => result.push(0),
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
            let text = format!("invalid replacement value (a {})", type_name(&other));
            return Err(raise(lua, &text));
        }
    }
    Ok(())
}

fn push_text(result: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(text) => result.extend_from_slice(&text.as_bytes()),
        Value::Integer(number) => {
            result.extend_from_slice(number_text(*number as f64, 14).as_bytes());
        }
        Value::Number(number) => result.extend_from_slice(number_text(*number, 14).as_bytes()),
        _ => {}
    }
}

/// A step of `string.gmatch` from a place on: the place to go on from, and the captures.
fn next_match(arguments: &Arguments<'_>, budget: &Budget) -> mlua::Result<MultiValue> {
    let lua = arguments.lua;
    let (subject, pattern) = (arguments.text(1)?, arguments.text(2)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let from = usize::try_from(arguments.integer(3)?).unwrap_or(usize::MAX);
    // A circumflex has no meaning here.
    let mut matcher = Matcher::new(&subject, of_c(&pattern), budget);
    let found = matcher
        .first_match(from)
        .map_err(|failure| failed(lua, failure))?;
    let Some(found) = found else {
        return Ok(MultiValue::new());
    };
    let next = found.end + usize::from(found.end == found.start);
    let mut values = vec![Value::Number(next as f64)];
    values.extend(found.all(lua, &subject, true)?);
    Ok(MultiValue::from_vec(values))
}

/// Puts the functions into the table of the string library. Gives a step of `gmatch`.
pub(crate) fn install(lua: &Lua, string: &Table, shared: &Shared) -> mlua::Result<Function> {
    for (name, tells_place) in [("find", true), ("match", false)] {
        let shared = Rc::clone(shared);
        let function = lua.create_function(move |lua, values: MultiValue| {
            let arguments = Arguments::new(lua, values);
            shared.with_budget(|budget| find(&arguments, budget, tells_place))
        })?;
        string.raw_set(name, function)?;
    }
    let state = Rc::clone(shared);
    let function = lua.create_function(move |lua, values: MultiValue| {
        substitute(&Arguments::new(lua, values), &state)
    })?;
    string.raw_set("gsub", function)?;
    let state = Rc::clone(shared);
    lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        state.with_budget(|budget| next_match(&arguments, budget))
    })
}

/// Puts `gmatch` there, too. `matches_of` gives a function of two texts that does its steps.
pub(crate) fn install_matches(lua: &Lua, string: &Table, matches_of: Function) -> mlua::Result<()> {
    let function = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        matches_of.call::<Function>((arguments.text(1)?, arguments.text(2)?))
    })?;
    string.raw_set("gmatch", &function)?;
    string.raw_set("gfind", function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Stop;

    fn found(subject: &str, pattern: &str) -> Matched<Option<(usize, usize)>> {
        let budget = Budget::new(10_000_000, Stop::default());
        let (pattern, is_anchored) = anchored(pattern.as_bytes());
        let mut matcher = Matcher::new(subject.as_bytes(), pattern, &budget);
        let found = match is_anchored {
            true => matcher.match_at(0)?,
            false => matcher.first_match(0)?,
        };
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
