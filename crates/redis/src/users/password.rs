//! Passwords: how they are kept, and how one is compared with what is kept.
//!
//! A password is turned into its SHA-256, as in Redis, and that into Argon2id with a salt. So the
//! hashes that Redis shows can be taken over, and a copy of what is kept is of little use.
//!
//! - PASSWORD-1: what is kept, shown or traced is never a password, nor its bare SHA-256.
//! - PASSWORD-2: hashes that come from outside cost no more memory and time than [`Cost::MOST`].

use argon2::{Algorithm, Argon2, Params, Version};
use core::fmt;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use subtle::ConstantTimeEq;

/// A password of a configuration. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    /// Longest argument of a connection that has not logged in.
    pub const BYTES_MAX: usize = 16 << 10;

    /// From the bytes of a file or an environment variable: one line break at the end does not
    /// count. `None`: it is empty, or longer than a client may send it ([`Password::BYTES_MAX`]).
    #[must_use]
    pub fn of_text(text: &[u8]) -> Option<Self> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let is_usable = (1..=Self::BYTES_MAX).contains(&text.len());
        is_usable.then(|| Self(text.to_vec()))
    }

    pub(super) fn digest(&self) -> Sha {
        Sha::of(&self.0)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// The SHA-256 of a password. As secret as the password itself: `Debug` does not show it.
#[derive(Clone, Copy)]
pub(crate) struct Sha([u8; 32]);

impl Sha {
    pub(crate) fn of(password: &[u8]) -> Self {
        Self(Sha256::digest(password).into())
    }

    /// From 64 hexadecimal digits in lower case.
    pub(crate) fn from_hex(text: &[u8]) -> Option<Self> {
        Some(Self(from_hex(text)?))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sha(..)")
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// What it costs to compute a hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cost {
    /// KiB of memory.
    pub memory_kib: u32,
    /// Passes over that memory.
    pub passes: u32,
}

impl Cost {
    /// About 20 ms of a processor.
    pub const USUAL: Self = Self {
        memory_kib: 19 << 10,
        passes: 2,
    };
    /// The most that a hash from outside may cost: some 100 ms.
    pub const MOST: Self = Self {
        memory_kib: 64 << 10,
        passes: 4,
    };
    /// Next to nothing, for tests.
    pub const LEAST: Self = Self {
        memory_kib: Params::MIN_M_COST,
        passes: 1,
    };

    fn is_bearable(self) -> bool {
        (Params::MIN_M_COST..=Self::MOST.memory_kib).contains(&self.memory_kib)
            && (1..=Self::MOST.passes).contains(&self.passes)
    }
}

/// How a hash is computed. Hashes of one user share it, as far as they can: then a password is
/// computed once, whatever number of them there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Recipe {
    pub(crate) cost: Cost,
    pub(crate) salt: [u8; 16],
}

impl Recipe {
    /// Takes long: not on an event loop.
    pub(crate) fn hash(&self, sha: Sha) -> Stored {
        let params = Params::new(self.cost.memory_kib, self.cost.passes, 1, Some(32))
            .expect("costs are checked where they are read");
        let mut hash = [0; 32];
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(&sha.0, &self.salt, &mut hash)
            .expect("a digest and a salt have good lengths");
        Stored {
            recipe: *self,
            hash,
        }
    }
}

/// A password as it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) recipe: Recipe,
    hash: [u8; 32],
}

impl Stored {
    const NAME: &str = "argon2id";

    /// Whether both are of the same password. Takes the same time wherever they differ.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.recipe == other.recipe && bool::from(self.hash.ct_eq(&other.hash))
    }

    pub(super) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// `argon2id:KIB:PASSES:SALT:HASH`, both in hexadecimal digits.
    pub(crate) fn text(&self) -> String {
        let Recipe { cost, salt } = self.recipe;
        let (memory, passes) = (cost.memory_kib, cost.passes);
        let (salt, hash) = (hex(&salt), hex(&self.hash));
        format!("{}:{memory}:{passes}:{salt}:{hash}", Self::NAME)
    }

    /// From [`Stored::text`]. `None`: it is none, or would cost too much (PASSWORD-2).
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(text).ok()?;
        let parts: Vec<&str> = text.split(':').collect();
        let [name, memory, passes, salt, hash] = parts[..] else {
            return None;
        };
        let cost = Cost {
            memory_kib: memory.parse().ok()?,
            passes: passes.parse().ok()?,
        };
        let stored = Self {
            recipe: Recipe {
                cost,
                salt: from_hex(salt.as_bytes())?,
            },
            hash: from_hex(hash.as_bytes())?,
        };
        (name == Self::NAME && cost.is_bearable()).then_some(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe {
        cost: Cost::LEAST,
        salt: [7; 16],
    };

    // shows: PASSWORD-1, PASSWORD-2
    #[test]
    fn a_password_is_kept_as_a_hash_that_can_be_read_again() {
        let sha = Sha::of(b"secret");
        let stored = RECIPE.hash(sha);
        let text = stored.text();
        assert!(text.starts_with("argon2id:8:1:07070707"), "{text}");
        assert!(!text.contains(&hex(sha.bytes())));
        assert!(Stored::parse(text.as_bytes()).unwrap().is(&stored));
        assert!(!RECIPE.hash(Sha::of(b"Secret")).is(&stored));
        let other = Recipe {
            salt: [8; 16],
            ..RECIPE
        };
        assert!(!other.hash(sha).is(&stored));
        for bad in [
            text.replace(":8:", ":4000000:"),
            text.replace(":1:", ":100000:"),
            text.replace(":1:", ":0:"),
            text.replace("argon2id", "argon2d"),
            text[..text.len() - 1].to_owned(),
            String::new(),
        ] {
            assert!(Stored::parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn hashes_of_redis_are_read() {
        // SHA-256 of "pw".
        let text = b"30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
        let sha = Sha::from_hex(text).unwrap();
        assert!(RECIPE.hash(sha).is(&RECIPE.hash(Sha::of(b"pw"))));
        assert!(Sha::from_hex(&text.to_ascii_uppercase()).is_none());
        assert!(Sha::from_hex(&text[1..]).is_none());
    }

    #[test]
    fn a_configured_password_is_not_shown() {
        let password = Password::of_text(b"s3cret\r\n").unwrap();
        assert_eq!(password, Password::of_text(b"s3cret").unwrap());
        assert_eq!(format!("{password:?}"), "Password(..)");
        assert_eq!(Password::of_text(b"\n"), None);
        let sha = format!("{:?}", password.digest());
        assert_eq!(sha, "Sha(..)");
    }
}
