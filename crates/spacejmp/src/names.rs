//! Names and ids of spans and spaces.

use crate::error::{Result, SpaceError};
use std::fmt;
use std::str::FromStr;

/// Most bytes of a name: file names may have 255, and some of them are for the ending.
const NAME_MAX: usize = 128;

/// Which span or space it is, whatever its name: 128 random bits, drawn at creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpanId(pub(crate) u128);

impl SpanId {
    /// A new one.
    pub(crate) fn random() -> Result<Self> {
        let mut bytes = [0_u8; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut bytes[filled..], flags).map_err(|errno| {
                SpaceError::of("draw an id for", std::path::Path::new("a file"), errno)
            })?;
        }
        Ok(Self(u128::from_le_bytes(bytes)))
    }

    /// Half of its bits, as a seed.
    pub(crate) fn seed(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SpanId {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        if text.len() != 32 {
            return Err(());
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ())
    }
}

/// Checks that `name` can be a file's name, and stays in its directory.
///
/// # Errors
/// [`SpaceError::BadName`].
pub(crate) fn check(name: &str) -> Result<()> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    let bytes = name.as_bytes();
    let fits = (1..=NAME_MAX).contains(&bytes.len())
        && plain(bytes[0])
        && bytes.iter().all(|&c| plain(c) || c == b'.');
    match fits {
        true => Ok(()),
        false => Err(SpaceError::BadName(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        for good in ["a", "towns-2.old", "_x", "-", "A.b"] {
            assert!(check(good).is_ok(), "{good}");
        }
        let long = "n".repeat(NAME_MAX + 1);
        for bad in ["", ".", "..", ".tmp", "a/b", "a b", "ü", "a\0", &long] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_written_and_read() {
        let id = SpanId::random().expect("random bits");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("12".parse::<SpanId>(), Err(()));
    }
}
