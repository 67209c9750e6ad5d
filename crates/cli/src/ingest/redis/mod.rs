//! The data of a Redis or Valkey: its RDB files, and its own copy as a replica gets it.
//!
//! Append-only files become such a file first ([`aof`]). A file is read twice: [`survey`] finds
//! everything that cannot be taken, before anything is written; [`sections`] gives the objects.

pub mod aof;
pub mod follow;
pub mod replica;
pub mod sections;
pub mod survey;

use pluvio_console::output::escaped;
use pluvio_rdb::reader::{Object, Text, Value};
use pluvio_units::KEY_MAX;

/// Whether an object is over the limits of the data model, in words.
fn over_limits(object: &Object) -> Option<String> {
    let (bytes, what, max) = match (&object.key, &object.value) {
        (Text::TooLong(bytes), _) => (*bytes, "key", KEY_MAX),
        (Text::Whole(key), _) if key.len() > KEY_MAX => (key.len() as u64, "key", KEY_MAX),
        (Text::Whole(_), Value::String(Text::TooLong(bytes))) => {
            (*bytes, "value", pluvio_units::VALUE_MAX)
        }
        (Text::Whole(_), Value::String(Text::Whole(_)) | Value::Other(_)) => return None,
    };
    let name = name_of(&object.key);
    Some(format!(
        "the {what} of {name} has {bytes} bytes, at most {max} are allowed"
    ))
}

/// Longest part of a key that is shown.
const SHOWN_BYTES: usize = 64;

/// A key as it is shown to a person.
fn name_of(key: &Text) -> String {
    match key {
        Text::TooLong(_) => "a key".to_owned(),
        Text::Whole(key) if key.len() > SHOWN_BYTES => {
            format!("\"{}…\"", escaped(&key[..SHOWN_BYTES]))
        }
        Text::Whole(key) => format!("\"{}\"", escaped(key)),
    }
}
