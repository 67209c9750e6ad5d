//! Packs: objects of one table, one behind the other.
//!
//! ```text
//! 0 magic "PLUVIOPK"   8 format u32   12 records u32   16 records …
//! record: kind u8 (1) · version u64 · deadline u64 · key length u32 · value length u32 · key · value
//! ```
//!
//! Integers are little-endian. A deadline is milliseconds since 1970; 0 is none. Nothing follows
//! the last record.
//!
//! A pack ends behind a key whose hash says so. So objects that did not change come to the same
//! packs in the next archive, also when others before them did.

use crate::error::ArchiveError;
use pluvio_units::{Deadline, KEY_MAX, KeyHash, ObjectVersion, VALUE_MAX};
use std::path::Path;

/// The format of packs that this program writes. It reads all from 1 on.
const PACK_FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"PLUVIOPK";
const HEADER_BYTES: usize = 16;
const RECORD_BYTES: usize = 25;
const OBJECT: u8 = 1;
/// A pack is not ended before it has this: smaller files cost more than they save.
const PACK_BYTES_MIN: usize = 1 << 20;
/// A pack is ended when it has this, whatever the keys say: it is held in memory.
const PACK_BYTES_FULL: usize = 8 << 20;
/// Most bytes of a pack: a full one and one more object.
pub const PACK_BYTES_MAX: usize = PACK_BYTES_FULL + RECORD_BYTES + KEY_MAX + VALUE_MAX;
/// One key of this number ends a pack.
const ENDS_ONE_IN: u64 = 1024;

/// A cluster takes no higher version back.
const VERSION_MAX: ObjectVersion = ObjectVersion(1 << 63);

/// One object of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArchivedObject<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Its version when it was read.
    pub version: ObjectVersion,
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
}

/// A pack in the making.
#[derive(Debug)]
pub struct PackBuilder {
    bytes: Vec<u8>,
    objects: u32,
    may_end: bool,
}

impl Default for PackBuilder {
    fn default() -> Self {
        Self {
            bytes: vec![0; HEADER_BYTES],
            objects: 0,
            may_end: false,
        }
    }
}

impl PackBuilder {
    /// Adds an object. Its key and value are within the limits of a cluster.
    pub fn add(&mut self, object: &ArchivedObject<'_>) {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("keys and values are short");
        let deadline = object.deadline.map_or(0, |deadline| deadline.ms());
        self.bytes.push(OBJECT);
        self.bytes.extend(object.version.0.to_le_bytes());
        self.bytes.extend(deadline.to_le_bytes());
        self.bytes.extend(len(object.key).to_le_bytes());
        self.bytes.extend(len(object.value).to_le_bytes());
        self.bytes.extend(object.key);
        self.bytes.extend(object.value);
        self.objects += 1;
        self.may_end = KeyHash::of(0, object.key).0.is_multiple_of(ENDS_ONE_IN);
    }

    /// Whether the pack ends here.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= PACK_BYTES_FULL || (self.may_end && self.bytes.len() >= PACK_BYTES_MIN)
    }

    /// How many objects it has.
    #[must_use]
    pub fn objects(&self) -> u32 {
        self.objects
    }

    /// The bytes of the pack; a new one begins.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        let Self {
            mut bytes, objects, ..
        } = core::mem::take(self);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&PACK_FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&objects.to_le_bytes());
        bytes
    }
}

/// The objects of a pack. After an error there are none.
#[derive(Debug)]
pub struct Records<'a> {
    path: &'a Path,
    rest: &'a [u8],
    left: u32,
}

/// The objects of the pack that lies at `path`, for messages, and has these bytes.
///
/// # Errors
/// Something else, a later format.
pub fn records<'a>(path: &'a Path, bytes: &'a [u8]) -> Result<Records<'a>, ArchiveError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(ArchiveError::damaged(path, "it is cut off"));
    };
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| header[at + n]));
    if header[..8] != *MAGIC {
        return Err(ArchiveError::damaged(path, "it is no pack"));
    }
    match number(8) {
        0 => Err(ArchiveError::damaged(path, "it has no format")),
        1..=PACK_FORMAT => {
            let left = number(12);
            Ok(Records { path, rest, left })
        }
        found => Err(ArchiveError::Future {
            path: path.to_owned(),
            found,
            known: PACK_FORMAT,
        }),
    }
}

impl<'a> Records<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or("it is cut off")?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let bytes = self.take(8)?.first_chunk().ok_or("it is cut off")?;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn length(&mut self, most: usize) -> Result<usize, &'static str> {
        let bytes = self.take(4)?.first_chunk().ok_or("it is cut off")?;
        let length = usize::try_from(u32::from_le_bytes(*bytes)).unwrap_or(usize::MAX);
        match length <= most {
            true => Ok(length),
            false => Err("an object is too long"),
        }
    }

    fn object(&mut self) -> Result<ArchivedObject<'a>, &'static str> {
        if self.take(1)? != [OBJECT] {
            return Err("an unknown kind of record");
        }
        let version = ObjectVersion(self.number()?);
        if !(ObjectVersion(1)..=VERSION_MAX).contains(&version) {
            return Err("an impossible version");
        }
        let deadline = match self.number()? {
            0 => None,
            ms => Some(Deadline::new(ms).ok_or("an impossible deadline")?),
        };
        let key_len = self.length(KEY_MAX)?;
        let value_len = self.length(VALUE_MAX)?;
        Ok(ArchivedObject {
            key: self.take(key_len)?,
            value: self.take(value_len)?,
            version,
            deadline,
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<ArchivedObject<'a>, ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = match self.left {
            0 if self.rest.is_empty() => return None,
            0 => Err("bytes are left over"),
            _ => {
                self.left -= 1;
                self.object()
            }
        };
        Some(read.map_err(|what| {
            (self.left, self.rest) = (0, &[]);
            ArchiveError::damaged(self.path, what)
        }))
    }
}
