//! Checks of what users give us, so that client and server refuse it with the same words.

use crate::refusal::{FatalKind, Refusal};
use pluvio_units::{KEY_MAX, TABLE_NAME_MAX, VALUE_MAX};

/// Checks the length of a key. The empty key is a key.
///
/// # Errors
/// [`FatalKind::KeyTooLong`] over [`KEY_MAX`] bytes.
pub fn check_key(key: &[u8]) -> Result<(), Refusal> {
    if key.len() <= KEY_MAX {
        return Ok(());
    }
    Err(Refusal::fatal(
        FatalKind::KeyTooLong,
        format!(
            "the key has {} bytes, at most {KEY_MAX} are allowed",
            key.len()
        ),
    ))
}

/// Checks the length of a value.
///
/// # Errors
/// [`FatalKind::ValueTooLong`] over [`VALUE_MAX`] bytes.
pub fn check_value(value: &[u8]) -> Result<(), Refusal> {
    if value.len() <= VALUE_MAX {
        return Ok(());
    }
    Err(Refusal::fatal(
        FatalKind::ValueTooLong,
        format!(
            "the value has {} bytes, at most {VALUE_MAX} are allowed: split it into several objects",
            value.len()
        ),
    ))
}

/// Checks the name of a table.
///
/// # Errors
/// [`FatalKind::BadTableName`] when it is empty, longer than [`TABLE_NAME_MAX`] bytes, or holds
/// control characters.
pub fn check_table_name(name: &str) -> Result<(), Refusal> {
    let bad = if name.is_empty() {
        "is empty".to_owned()
    } else if name.len() > TABLE_NAME_MAX {
        format!(
            "has {} bytes, at most {TABLE_NAME_MAX} are allowed",
            name.len()
        )
    } else if name.chars().any(char::is_control) {
        "holds control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(Refusal::fatal(
        FatalKind::BadTableName,
        format!("the table name {bad}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive() {
        assert_eq!(check_key(&[]), Ok(()));
        assert_eq!(check_key(&vec![0; KEY_MAX]), Ok(()));
        assert!(check_key(&vec![0; KEY_MAX + 1]).is_err());
        assert_eq!(check_value(&vec![0; VALUE_MAX]), Ok(()));
        assert!(check_value(&vec![0; VALUE_MAX + 1]).is_err());
        assert_eq!(check_table_name(&"t".repeat(TABLE_NAME_MAX)), Ok(()));
        for name in ["", "a\nb", &"t".repeat(TABLE_NAME_MAX + 1)] {
            assert!(check_table_name(name).is_err(), "{name:?}");
        }
    }
}
