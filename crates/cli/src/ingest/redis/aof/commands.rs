//! The commands of an append-only file, done in memory.

use super::{Content, Done, Held, State, content, key_of, name};
use bytes::Bytes;
use pluvio_client::{Addend, BitAction, BitOverflow, BitStep, Change, Payload, Unfit};
use pluvio_mutation::{Step, change};
use pluvio_rdb::aof::Command;
use pluvio_rdb::number::integer;
use pluvio_rdb::payload::{Bad, restore};
use pluvio_rdb::reader::Text;
use pluvio_units::VALUE_MAX;

/// Bits that a value of Redis can have.
const BIT_OFFSETS: i64 = 1 << 32;

impl State {
    /// The value of a string, where it is whole.
    fn value(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.here().get(key)? {
            Held::String {
                value: Content::Whole(value),
                ..
            } => Some(value.clone()),
            Held::String { .. } | Held::Other(_) => None,
        }
    }

    /// Changes a string as Pluvio does; it keeps its deadline.
    fn change(&mut self, key: &Bytes, what: &Change<'_>) -> Done {
        let (current, until) = match self.here().remove(key) {
            Some(Held::String {
                value: Content::Whole(value),
                until,
            }) => (Some(value), until),
            Some(Held::String {
                value: Content::TooLong(bytes),
                until,
            }) => {
                // It stays so: no change makes it shorter.
                self.put(key, Content::TooLong(bytes), until);
                return Ok(());
            }
            Some(Held::Other(_)) | None => (None, None),
        };
        let new = match change(what, current.as_deref()) {
            Ok(Step::Put(value, _)) => Content::Whole(value.to_vec()),
            Ok(Step::Delete) => return Ok(()),
            Ok(Step::Keep(_)) => match current {
                Some(value) => Content::Whole(value),
                None => return Ok(()),
            },
            Err(Unfit::TooLong) => {
                let before = current.map_or(0, |value| value.len());
                Content::TooLong(before.max(VALUE_MAX) as u64 + 1)
            }
            Err(unfit @ (Unfit::NotANumber | Unfit::Overflow)) => {
                return Err(format!("the value does not allow it: {unfit:?}"));
            }
        };
        self.put(key, new, until);
        Ok(())
    }

    /// Does a command.
    pub(super) fn command(&mut self, command: &Command) -> Done {
        let name = name(command)?;
        let done = self.run(&name, command);
        done.map_err(|why| format!("byte {}: {name}: {why}", command.at))
    }

    fn run(&mut self, name: &str, command: &Command) -> Done {
        let words = Words(command);
        if let Some(kind) = kind_of(name) {
            let keys: &[usize] = match name {
                "SMOVE" | "LMOVE" | "BLMOVE" | "RPOPLPUSH" | "BRPOPLPUSH" => &[1, 2],
                "XGROUP" => &[2],
                _ => &[1],
            };
            for at in keys {
                let key = words.key(*at)?;
                self.here().insert(key, Held::Other(kind.clone()));
            }
            return Ok(());
        }
        match name {
            "SELECT" => self.current = words.index(1)?,
            "SET" => self.set(&words)?,
            "SETEX" | "PSETEX" => {
                let unit = if name == "SETEX" { 1000 } else { 1 };
                let until = self.time_from_now(words.number(2)?, unit)?;
                self.put(&words.key(1)?, content(words.get(3)?), Some(until));
            }
            "SETNX" | "GETSET" => self.put(&words.key(1)?, content(words.get(2)?), None),
            "MSET" | "MSETNX" => {
                for at in (1..command.words.len()).step_by(2) {
                    self.put(&words.key(at)?, content(words.get(at + 1)?), None);
                }
            }
            "MSETEX" => self.msetex(&words)?,
            "APPEND" => match words.get(2)? {
                Text::Whole(text) => {
                    self.change(&words.key(1)?, &Change::Append(Payload::from(text)))?;
                }
                Text::TooLong(bytes) => {
                    let until = self.until(&words.key(1)?);
                    self.put(&words.key(1)?, Content::TooLong(*bytes), until);
                }
            },
            "SETRANGE" => {
                let Text::Whole(text) = words.get(3)? else {
                    let until = self.until(&words.key(1)?);
                    self.put(&words.key(1)?, content(words.get(3)?), until);
                    return Ok(());
                };
                let range = Change::SetRange {
                    offset: words.index(2)?,
                    bytes: Payload::from(text),
                };
                self.change(&words.key(1)?, &range)?;
            }
            "INCR" | "DECR" => {
                let by = if name == "INCR" { 1 } else { -1 };
                self.change(&words.key(1)?, &Change::Add(Addend::Integer(by)))?;
            }
            "INCRBY" => {
                let by = words.number(2)?;
                self.change(&words.key(1)?, &Change::Add(Addend::Integer(by)))?;
            }
            "DECRBY" => {
                let by = words.number(2)?.checked_neg().ok_or("no such number")?;
                self.change(&words.key(1)?, &Change::Add(Addend::Integer(by)))?;
            }
            "INCRBYFLOAT" => {
                let by = words.text(2)?;
                self.change(&words.key(1)?, &Change::Add(Addend::Decimal(&by)))?;
            }
            "SETBIT" => {
                let offset = bit_offset(&words.text(2)?, 1)?;
                let step = BitStep::set_bit(offset, words.number(3)? == 1);
                self.change(&words.key(1)?, &Change::Bits(&[step]))?;
            }
            "BITFIELD" => {
                let steps = bit_steps(&words)?;
                if !steps.is_empty() {
                    self.change(&words.key(1)?, &Change::Bits(&steps))?;
                }
            }
            "BITOP" => self.bitop(&words)?,
            "DEL" | "UNLINK" => {
                for at in 1..command.words.len() {
                    let key = words.key(at)?;
                    self.here().remove(&key);
                }
            }
            "GETDEL" | "DELEX" => {
                let key = words.key(1)?;
                self.here().remove(&key);
            }
            "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
                let unit = if name.starts_with('P') { 1 } else { 1000 };
                let number = words.number(2)?;
                let until = match name.ends_with("AT") {
                    true => number.saturating_mul(unit),
                    false => self.time_from_now(number, unit)?,
                };
                self.expire(&words.key(1)?, Some(until));
            }
            "PERSIST" => self.expire(&words.key(1)?, None),
            "GETEX" => {
                if let Some(until) = self.lifetime(&words, 2)? {
                    self.expire(&words.key(1)?, until);
                }
            }
            "RENAME" | "RENAMENX" => {
                let (from, to) = (words.key(1)?, words.key(2)?);
                if let Some(held) = self.here().remove(&from) {
                    self.here().insert(to, held);
                }
            }
            "COPY" => self.copy(&words)?,
            "MOVE" => {
                let (key, to) = (words.key(1)?, words.index(2)?);
                if let Some(held) = self.here().remove(&key) {
                    self.databases.entry(to).or_default().insert(key, held);
                }
            }
            "SWAPDB" => {
                let (one, two) = (words.index(1)?, words.index(2)?);
                let [first, second] = [one, two].map(|n| self.databases.remove(&n));
                self.databases.insert(one, second.unwrap_or_default());
                self.databases.insert(two, first.unwrap_or_default());
            }
            "FLUSHDB" => self.here().clear(),
            "FLUSHALL" => self.databases.clear(),
            "RESTORE" => self.restored(&words)?,
            "SORT" => self.sorted(&words)?,
            "FUNCTION" => self.function(&words)?,
            "PING" | "SCRIPT" | "PUBLISH" | "SPUBLISH" => {}
            _ => return Err("this command is not known".to_owned()),
        }
        Ok(())
    }

    fn until(&mut self, key: &[u8]) -> Option<i64> {
        match self.here().get(key)? {
            Held::String { until, .. } => *until,
            Held::Other(_) => None,
        }
    }

    fn time_from_now(&self, number: i64, unit: i64) -> Result<i64, String> {
        let span = number.checked_mul(unit);
        let until = span.and_then(|span| self.now_ms.checked_add(span));
        until.ok_or_else(|| "no such time".to_owned())
    }

    fn expire(&mut self, key: &[u8], to: Option<i64>) {
        if let Some(Held::String { until, .. }) = self.here().get_mut(key) {
            *until = to;
        }
    }

    /// The lifetime that options name, from this word on. `None`: they name none.
    fn lifetime(&self, words: &Words<'_>, from: usize) -> Result<Option<Option<i64>>, String> {
        for at in from..words.0.words.len() {
            let until = match words.text(at)?.to_ascii_uppercase().as_str() {
                "EX" => self.time_from_now(words.number(at + 1)?, 1000)?,
                "PX" => self.time_from_now(words.number(at + 1)?, 1)?,
                "EXAT" => words.number(at + 1)?.saturating_mul(1000),
                "PXAT" => words.number(at + 1)?,
                "PERSIST" => return Ok(Some(None)),
                _ => continue,
            };
            return Ok(Some(Some(until)));
        }
        Ok(None)
    }

    fn set(&mut self, words: &Words<'_>) -> Done {
        let key = words.key(1)?;
        let mut until = self.lifetime(words, 3)?.flatten();
        let options = 3..words.0.words.len();
        for at in options {
            if words.text(at)?.eq_ignore_ascii_case("KEEPTTL") {
                until = self.until(&key);
            }
        }
        self.put(&key, content(words.get(2)?), until);
        Ok(())
    }

    fn msetex(&mut self, words: &Words<'_>) -> Done {
        let count = usize::try_from(words.index(1)?).unwrap_or(usize::MAX);
        let behind = count.checked_mul(2).and_then(|n| n.checked_add(2));
        let behind = behind.filter(|behind| *behind <= words.0.words.len());
        let behind = behind.ok_or("too few words")?;
        let given = self.lifetime(words, behind)?.flatten();
        let mut keeps = false;
        for at in behind..words.0.words.len() {
            keeps |= words.text(at)?.eq_ignore_ascii_case("KEEPTTL");
        }
        for at in (2..behind).step_by(2) {
            let key = words.key(at)?;
            let until = if keeps { self.until(&key) } else { given };
            self.put(&key, content(words.get(at + 1)?), until);
        }
        Ok(())
    }

    fn copy(&mut self, words: &Words<'_>) -> Done {
        let (from, to) = (words.key(1)?, words.key(2)?);
        let mut database = self.current;
        for at in 3..words.0.words.len() {
            if words.text(at)?.eq_ignore_ascii_case("DB") {
                database = words.index(at + 1)?;
            }
        }
        let copy = match self.here().get(&from) {
            None => return Ok(()),
            Some(Held::Other(kind)) => Held::Other(kind.clone()),
            Some(Held::String { value, until }) => Held::String {
                value: match value {
                    Content::Whole(value) => Content::Whole(value.clone()),
                    Content::TooLong(bytes) => Content::TooLong(*bytes),
                },
                until: *until,
            },
        };
        self.databases.entry(database).or_default().insert(to, copy);
        Ok(())
    }

    fn bitop(&mut self, words: &Words<'_>) -> Done {
        let operation = words.text(1)?.to_ascii_uppercase();
        let mut sources = Vec::new();
        let mut longest = 0;
        for at in 3..words.0.words.len() {
            let key = words.key(at)?;
            if let Some(Held::String {
                value: Content::TooLong(bytes),
                ..
            }) = self.here().get(&key)
            {
                longest = longest.max(*bytes);
            }
            sources.push(self.value(&key).unwrap_or_default());
        }
        let to = words.key(2)?;
        let length = sources.iter().map(Vec::len).max().unwrap_or(0);
        if longest > 0 {
            self.put(&to, Content::TooLong(longest), None);
            return Ok(());
        }
        let byte = |at: usize| {
            let bytes = sources.iter();
            let mut all = bytes.map(|source| source.get(at).copied().unwrap_or(0));
            let first = all.next().unwrap_or(0);
            Some(match operation.as_str() {
                "AND" => all.fold(first, |a, b| a & b),
                "OR" => all.fold(first, |a, b| a | b),
                "XOR" => all.fold(first, |a, b| a ^ b),
                "NOT" => !first,
                "DIFF" => first & !all.fold(0, |a, b| a | b),
                "DIFF1" => !first & all.fold(0, |a, b| a | b),
                "ANDOR" => first & all.fold(0, |a, b| a | b),
                "ONE" => {
                    let (one, more) = all.fold((first, 0), |(one, more), b| {
                        ((one ^ b) & !(more | one & b), more | one & b)
                    });
                    one & !more
                }
                _ => return None,
            })
        };
        let value: Option<Vec<u8>> = (0..length).map(byte).collect();
        match value.ok_or("this operation is not known")? {
            empty if empty.is_empty() => drop(self.here().remove(&to)),
            value => self.put(&to, Content::Whole(value), None),
        }
        Ok(())
    }

    fn restored(&mut self, words: &Words<'_>) -> Done {
        let Text::Whole(payload) = words.get(3)? else {
            self.put(&words.key(1)?, content(words.get(3)?), None);
            return Ok(());
        };
        let mut is_absolute = false;
        for at in 4..words.0.words.len() {
            is_absolute |= words.text(at)?.eq_ignore_ascii_case("ABSTTL");
        }
        let until = match words.number(2)? {
            0 => None,
            moment if is_absolute => Some(moment),
            span => Some(self.time_from_now(span, 1)?),
        };
        let key = words.key(1)?;
        match restore(payload) {
            Ok(value) => self.put(&key, Content::Whole(value.to_vec()), until),
            Err(Bad::TooLong) => self.put(&key, Content::TooLong(VALUE_MAX as u64 + 1), until),
            Err(_) => {
                let other = Held::Other("restored value".to_owned());
                self.here().insert(key, other);
            }
        }
        Ok(())
    }

    fn sorted(&mut self, words: &Words<'_>) -> Done {
        for at in 2..words.0.words.len() {
            if words.text(at)?.eq_ignore_ascii_case("STORE") {
                let key = words.key(at + 1)?;
                self.here().insert(key, Held::Other("list".to_owned()));
            }
        }
        Ok(())
    }

    fn function(&mut self, words: &Words<'_>) -> Done {
        match words.text(1)?.to_ascii_uppercase().as_str() {
            "LOAD" => {
                let last = words.get(words.0.words.len() - 1)?;
                if let Text::Whole(source) = last {
                    let source = source.clone();
                    self.library(&source);
                }
            }
            "DELETE" => drop(self.libraries.remove(&words.text(2)?)),
            "FLUSH" => self.libraries.clear(),
            _ => self.library(b""),
        }
        Ok(())
    }
}

/// The words of a command.
struct Words<'c>(&'c Command);

impl Words<'_> {
    fn get(&self, at: usize) -> Result<&Text, String> {
        self.0
            .words
            .get(at)
            .ok_or_else(|| "too few words".to_owned())
    }

    fn key(&self, at: usize) -> Result<Bytes, String> {
        key_of(self.get(at)?, self.0.at)
    }

    fn text(&self, at: usize) -> Result<String, String> {
        match self.get(at)? {
            Text::Whole(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            Text::TooLong(_) => Err("a word is too long".to_owned()),
        }
    }

    fn number(&self, at: usize) -> Result<i64, String> {
        let text = self.text(at)?;
        integer(text.as_bytes()).ok_or_else(|| format!("{text:?} is no number"))
    }

    fn index(&self, at: usize) -> Result<u64, String> {
        u64::try_from(self.number(at)?).map_err(|_| "a number is below zero".to_owned())
    }
}

fn bit_offset(text: &str, width: i64) -> Result<u64, String> {
    let (text, unit) = match text.strip_prefix('#') {
        Some(text) => (text, width),
        None => (text, 1),
    };
    let offset = integer(text.as_bytes()).and_then(|number| number.checked_mul(unit));
    let offset = offset.filter(|offset| (0..BIT_OFFSETS).contains(offset));
    let offset = offset.map(i64::unsigned_abs);
    offset.ok_or_else(|| "no such bit".to_owned())
}

/// The steps of a BITFIELD that change something.
fn bit_steps(words: &Words<'_>) -> Result<Vec<BitStep>, String> {
    let mut steps = Vec::new();
    let mut overflow = BitOverflow::Wrap;
    let mut at = 2;
    while at < words.0.words.len() {
        let verb = words.text(at)?.to_ascii_uppercase();
        if verb == "OVERFLOW" {
            overflow = match words.text(at + 1)?.to_ascii_uppercase().as_str() {
                "WRAP" => BitOverflow::Wrap,
                "SAT" => BitOverflow::Saturate,
                "FAIL" => BitOverflow::Fail,
                _ => return Err("no such OVERFLOW".to_owned()),
            };
            at += 2;
            continue;
        }
        let field = words.text(at + 1)?;
        let (signed, width) = match field.split_at_checked(1) {
            Some(("i" | "I", width)) => (true, width),
            Some(("u" | "U", width)) => (false, width),
            Some(_) | None => return Err("no such field".to_owned()),
        };
        let most = if signed { 64 } else { 63 };
        let width = width
            .parse()
            .ok()
            .filter(|width| (1..=most).contains(width));
        let width: u8 = width.ok_or("no such field")?;
        let offset = bit_offset(&words.text(at + 2)?, width.into())?;
        let action = match verb.as_str() {
            "GET" => {
                at += 3;
                continue;
            }
            "SET" => BitAction::Set(words.number(at + 3)?),
            "INCRBY" => BitAction::Add(words.number(at + 3)?),
            _ => return Err("no such part of BITFIELD".to_owned()),
        };
        steps.push(BitStep {
            action,
            signed,
            width,
            offset,
            overflow,
        });
        at += 4;
    }
    Ok(steps)
}

/// The type of what a command makes or changes, if that is no string.
fn kind_of(name: &str) -> Option<String> {
    let kind = match name {
        "LPUSH" | "RPUSH" | "LPUSHX" | "RPUSHX" | "LINSERT" | "LSET" | "LREM" | "LTRIM"
        | "LPOP" | "RPOP" | "LMOVE" | "BLMOVE" | "RPOPLPUSH" | "BRPOPLPUSH" => "list",
        "SADD" | "SREM" | "SPOP" | "SMOVE" | "SUNIONSTORE" | "SINTERSTORE" | "SDIFFSTORE" => "set",
        "GEOADD" | "GEOSEARCHSTORE" => "sorted set",
        "PFADD" | "PFMERGE" => "HyperLogLog",
        // A command of a module.
        _ if name.contains('.') => return Some(format!("value of {name}")),
        _ => match name.split_at_checked(1)? {
            ("Z", _) => "sorted set",
            ("H", rest) if rest != "ELLO" => "hash",
            ("X", _) => "stream",
            _ => return None,
        },
    };
    Some(kind.to_owned())
}
