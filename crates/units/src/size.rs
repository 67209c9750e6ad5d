//! Sizes in bytes as people write them.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes. Read from and shown as `256MiB`, `1GB`, `65536`; never rounded when read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Size(pub u64);

impl Size {
    /// `n` mebibytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// The text is not a size. Not retryable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseSizeError(String);

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a size: give bytes or a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB, for example 256MiB",
            self.0
        )
    }
}

impl std::error::Error for ParseSizeError {}

const UNITS: [(&str, u64); 15] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("bytes", 1),
    ("b", 1),
    ("", 1),
];

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let wrong = || ParseSizeError(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let factor = UNITS
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .ok_or_else(wrong)?
            .1;
        let bytes = if let Ok(whole) = number.parse::<u64>() {
            whole.checked_mul(factor).ok_or_else(wrong)?
        } else {
            let value = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
            if !(0.0..=9.0e15).contains(&value) || value.fract() != 0.0 {
                return Err(wrong());
            }
            value as u64
        };
        Ok(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, factor) in [
            ("TiB", 1u64 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ] {
            if self.0 >= factor {
                return if self.0.is_multiple_of(factor) {
                    write!(f, "{}{name}", self.0 / factor)
                } else {
                    write!(f, "{:.1}{name}", self.0 as f64 / factor as f64)
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Bytes(u64),
            Text(String),
        }
        match Raw::deserialize(from)? {
            Raw::Bytes(n) => Ok(Self(n)),
            Raw::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly_or_refused() {
        for (text, bytes) in [
            ("256MiB", 256 << 20),
            ("1GB", 1_000_000_000),
            ("65536", 65536),
            ("1.5 GiB", 3 << 29),
            ("8k", 8192),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "1XB",
            "1.0000001k",
            "99999999999999999999",
            "18446744073709551615k",
            "nan",
            "1e3",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn shown_sizes_can_be_read_again_when_whole() {
        assert_eq!(Size::mib(256).to_string(), "256MiB");
        assert_eq!(Size(1000).to_string(), "1000B");
        assert_eq!(Size(1536 << 10).to_string(), "1.5MiB");
    }
}
