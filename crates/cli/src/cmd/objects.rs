//! `pluvio get`, `put`, `delete`, `incr`: one object.
//!
//! Keys and values are bytes as the shell gives them; other bytes come as hexadecimal digits or
//! through standard input.

use crate::args::Place;
use crate::cmd::lifetime::{Life, put_deadline};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use pluvio_client::{
    Change, Client, ClientError, Deadline, ErrorKind, Get as Read, Lifetime, Mutation, Number,
    Object, Outcome, Output, Projection, RejectRules, Table,
};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{escaped, print_json, print_line};
use pluvio_console::session::{Session, with_session};
use pluvio_units::{ObjectVersion, VALUE_MAX};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::ExitCode;

/// Times that an object is read until its value and its deadline are of one moment. Changes of one
/// object take about as long as reads of it.
const READS_MAX: usize = 100;

/// `pluvio get`.
#[derive(Args, Clone, Debug)]
pub struct Get {
    #[command(flatten)]
    place: Place,
}

/// `pluvio put`.
#[derive(Args, Clone, Debug)]
pub struct Put {
    #[command(flatten)]
    place: Place,
    /// The value; any bytes. `-` reads it from standard input
    value: OsString,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    life: Life,
    /// Keep the deadline of the object that is there
    #[arg(long, conflicts_with_all = ["ttl", "expires_at"])]
    keep_ttl: bool,
}

/// `pluvio delete`.
#[derive(Args, Clone, Debug)]
pub struct Delete {
    #[command(flatten)]
    place: Place,
    /// Delete only if the object has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

/// `pluvio incr`.
#[derive(Args, Clone, Debug)]
pub struct Incr {
    #[command(flatten)]
    place: Place,
    /// What to add: an integer or a decimal number
    #[arg(default_value = "1", allow_negative_numbers = true)]
    by: String,
}

/// When to write.
#[derive(Args, Clone, Debug)]
struct Conditions {
    /// Write only if the object has this version
    #[arg(long, value_name = "VERSION", conflicts_with = "if_absent")]
    if_version: Option<u64>,
    /// Write only if there is no such object
    #[arg(long)]
    if_absent: bool,
}

/// Reads one object. A missing one is exit code 1 and `not found` on standard error.
pub fn get(global: &Global, get: &Get) -> Result<ExitCode, Failure> {
    let (key, json) = (key_of(&get.place)?, global.json);
    let name = get.place.table.clone();
    with_session(global, 1, move |Session { client, .. }| async move {
        let table = client.table(&name).await?;
        let missing = || Failure::new("not found");
        if json {
            let read = read_whole(&client, &table, &key).await?;
            let (object, deadline) = read.ok_or_else(missing)?;
            let mut shown = Map::new();
            put_bytes(&mut shown, "key", &key);
            put_bytes(&mut shown, "value", &object.value);
            shown.insert("version".into(), object.version.0.into());
            put_deadline(&mut shown, deadline);
            print_json(&shown)?;
        } else {
            let object = client.read(&table, &key).await?.ok_or_else(missing)?;
            // The value as it is, so that it can go into a file; a terminal wants a line's end.
            let mut out = std::io::stdout().lock();
            out.write_all(&object.value)?;
            if std::io::IsTerminal::is_terminal(&out) {
                out.write_all(b"\n")?;
            }
            out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Writes one object.
pub fn put(global: &Global, put: &Put) -> Result<ExitCode, Failure> {
    let key = key_of(&put.place)?;
    let value = value_of(&put.value)?;
    let rules = match (put.conditions.if_version, put.conditions.if_absent) {
        (Some(version), _) => RejectRules::unless_version(ObjectVersion(version)),
        (None, true) => RejectRules::unless_version(ObjectVersion(0)),
        (None, false) => RejectRules::default(),
    };
    let (name, json) = (put.place.table.clone(), global.json);
    let new_only = put.conditions.if_absent;
    let lifetime = match put.keep_ttl {
        true => Lifetime::Keep,
        false => put.life.lifetime().unwrap_or(Lifetime::Endless),
    };
    with_session(global, 1, move |Session { client, .. }| async move {
        let table = table_to_write(&client, &name).await?;
        let put = Mutation {
            rules,
            lifetime,
            ..Mutation::new(table.id(), &key, Change::Put((&value).into()))
        };
        let (version, replaced) = match client.mutate(&table, put).await? {
            Outcome::Written {
                version, replaced, ..
            } => (version, replaced),
            Outcome::Rejected { version, .. } if new_only => {
                let why = format!("not done: the object is there (version {version})");
                return Err(Failure::new(why));
            }
            other => return Err(strange(&outcome_of(other)?)),
        };
        if json {
            print_json(&json!({ "version": version, "replaced": replaced }))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// An object and its deadline, both of one moment: each change of a deadline gives the object
/// another version.
async fn read_whole(
    client: &Client,
    table: &Table,
    key: &[u8],
) -> Result<Option<(Object, Option<Deadline>)>, Failure> {
    for _ in 0..READS_MAX {
        let Some(object) = client.read(table, key).await? else {
            return Ok(None);
        };
        let get = Read {
            rules: RejectRules::unless_version(object.version),
            projection: Projection::Deadline,
            ..Read::new(table.id(), key)
        };
        match client.get(table, get).await? {
            Outcome::Unchanged {
                output: Output::Integer(ms),
                ..
            } => {
                let deadline = u64::try_from(ms).ok().and_then(Deadline::new);
                return Ok(Some((object, deadline)));
            }
            // Changed meanwhile, or gone.
            Outcome::Rejected { .. } => {}
            other => return Err(strange(&other)),
        }
    }
    Err(Failure::new(
        "the object changes all the time; read it without --json, or try again",
    ))
}

/// Deletes one object; one that is not there is no error.
pub fn delete(global: &Global, delete: &Delete) -> Result<ExitCode, Failure> {
    let key = key_of(&delete.place)?;
    let rules = delete.if_version.map_or_else(RejectRules::default, |v| {
        RejectRules::unless_version(ObjectVersion(v))
    });
    let (name, json) = (delete.place.table.clone(), global.json);
    with_session(global, 1, move |Session { client, .. }| async move {
        let table = client.table(&name).await?;
        let deleted = client.delete_if(&table, &key, rules).await;
        let deleted = deleted.map_err(rejected)?.deleted;
        if json {
            print_json(&json!({ "deleted": deleted != ObjectVersion(0), "version": deleted }))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Adds to a number.
pub fn incr(global: &Global, incr: &Incr) -> Result<ExitCode, Failure> {
    let key = key_of(&incr.place)?;
    let by = number(&incr.by)?;
    let (name, json) = (incr.place.table.clone(), global.json);
    with_session(global, 1, move |Session { client, .. }| async move {
        let table = table_to_write(&client, &name).await?;
        let reply = client.increment(&table, &key, by).await;
        let reply = reply.map_err(|error| match error.kind() {
            ErrorKind::BadNumber => {
                let key = escaped(&key);
                Failure::new(format!("table {name}, key {key}: {error}"))
            }
            _ => error.into(),
        })?;
        let value = match reply.value {
            Number::Integer(n) => json!(n),
            Number::Float(n) => json!(n),
        };
        if json {
            print_json(&json!({ "value": value, "version": reply.version }))?;
        } else {
            print_line(&value.to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The table that something is to be written to.
async fn table_to_write(client: &Client, name: &str) -> Result<Table, Failure> {
    let table = client.table(name).await;
    table.map_err(|error| missing_to_change(error, name))
}

/// The failure to change a table or its objects. One that is not there can be made.
pub fn missing_to_change(error: ClientError, name: &str) -> Failure {
    match error.kind() {
        ErrorKind::NoSuchTable => {
            Failure::new(format!("{error}; `pluvio table create {name}` makes it"))
        }
        _ => error.into(),
    }
}

/// Puts bytes into a JSON object: as text under `name` when they are UTF-8, else in base64 under
/// `name_base64`.
pub fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_base64"), STANDARD.encode(bytes).into()),
    };
}

/// The key that is named.
pub fn key_of(place: &Place) -> Result<Vec<u8>, Failure> {
    if !place.key_hex {
        return Ok(place.key.clone().into_vec());
    }
    hex(place.key.as_bytes()).ok_or_else(|| {
        Failure::usage("--key-hex: KEY must be an even number of hexadecimal digits")
    })
}

fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|&[high, low]| u8::try_from(digit(high)? << 4 | digit(low)?).ok())
        .collect()
}

fn value_of(argument: &OsString) -> Result<Bytes, Failure> {
    if argument != "-" {
        return Ok(argument.clone().into_vec().into());
    }
    let mut value = Vec::new();
    // One byte more than is allowed, so that a longer one is refused and not cut.
    let limit = VALUE_MAX as u64 + 1;
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut value)
        .map_err(|error| {
            Failure::new(format!(
                "cannot read the value from standard input: {error}"
            ))
        })?;
    if value.len() > VALUE_MAX {
        return Err(Failure::new(format!(
            "the value on standard input has more than the {VALUE_MAX} bytes that a value may have"
        )));
    }
    Ok(value.into())
}

fn number(text: &str) -> Result<Number, Failure> {
    if let Ok(n) = text.parse::<i64>() {
        return Ok(Number::Integer(n));
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(Failure::usage(format!(
            "{text} is no integer from {} to {}",
            i64::MIN,
            i64::MAX
        )));
    }
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() => Ok(Number::Float(n)),
        _ => Err(Failure::usage(format!(
            "{text:?} is no number; give an integer or a decimal number"
        ))),
    }
}

/// The outcome of a change, unless a condition did not hold.
pub fn outcome_of(outcome: Outcome) -> Result<Outcome, Failure> {
    match outcome {
        Outcome::Rejected { version, .. } => Err(rejected(ClientError::Rejected { version })),
        other => Ok(other),
    }
}

/// An answer to something else.
pub fn strange(outcome: &Outcome) -> Failure {
    Failure::new(format!("a server gave a strange answer: {outcome:?}"))
}

fn rejected(error: ClientError) -> Failure {
    match error {
        ClientError::Rejected {
            version: ObjectVersion(0),
        } => Failure::new("not done: there is no such object; read it again"),
        ClientError::Rejected { version } => Failure::new(format!(
            "not done: the object has version {version}; read it again"
        )),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_keys_are_exact() {
        assert_eq!(hex(b"00ffA1"), Some(vec![0, 255, 161]));
        assert_eq!(hex(b""), Some(vec![]));
        for bad in ["0", "0g", "  ", "0x12"] {
            assert_eq!(hex(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn integers_stay_integers() {
        assert!(matches!(number("-3"), Ok(Number::Integer(-3))));
        assert!(matches!(number("0.5"), Ok(Number::Float(_))));
        assert!(number("1e400").is_err());
        assert!(
            number("99999999999999999999").is_err(),
            "no integer becomes another kind of number"
        );
        assert!(number("-9223372036854775809").is_err());
        assert!(number("nan").is_err());
        assert!(number("one").is_err());
    }

    #[test]
    fn bytes_in_json_are_lossless() {
        let mut object = Map::new();
        put_bytes(&mut object, "key", b"caf\xc3\xa9");
        put_bytes(&mut object, "value", b"\xff\x00");
        assert_eq!(
            json!(object),
            json!({"key": "café", "value_base64": "/wA="})
        );
    }
}
