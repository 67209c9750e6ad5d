//! Reading numbers and bulk bytes in their order, and writing bulk bytes.

use crate::limits::check_value;
use crate::refusal::Refusal;
use crate::{BitStep, Payload};
use bytes::Bytes;

/// Reads the front of what is left.
pub(super) struct Reader<'a> {
    left: &'a [u8],
}

macro_rules! number {
    ($name:ident) => {
        pub(super) fn $name(&mut self) -> Result<$name, Refusal> {
            let Some((front, left)) = self.left.split_first_chunk() else {
                return Err(too_short());
            };
            self.left = left;
            Ok($name::from_le_bytes(*front))
        }
    };
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    number!(u8);
    number!(u16);
    number!(u32);
    number!(u64);
    number!(i64);

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Refusal> {
        let (front, left) = self.left.split_at_checked(length).ok_or_else(too_short)?;
        self.left = left;
        Ok(front)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.left
    }

    pub(super) fn end(&self) -> Result<(), Refusal> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(Refusal::malformed("a message goes on behind its last item"))
        }
    }
}

fn too_short() -> Refusal {
    Refusal::malformed("a message ends within an item")
}

/// Cuts the payload of a request into the bulk bytes of its items.
pub(super) struct BulkReader<'a> {
    payload: &'a Bytes,
    at: usize,
}

impl<'a> BulkReader<'a> {
    pub(super) fn new(payload: &'a Bytes) -> Self {
        Self { payload, at: 0 }
    }

    /// The next bytes; the payload's own buffer when they are all of it.
    pub(super) fn take(&mut self, length: u32) -> Result<Payload<'a>, Refusal> {
        let length = length as usize;
        if length > self.payload.len() - self.at {
            return Err(bulk_too_short());
        }
        let bytes = &self.payload[self.at..self.at + length];
        check_value(bytes)?;
        self.at += length;
        Ok(if length == self.payload.len() {
            self.payload.into()
        } else {
            bytes.into()
        })
    }

    pub(super) fn end(&self) -> Result<(), Refusal> {
        bulk_end(self.payload.len() - self.at)
    }
}

pub(super) fn bulk_too_short() -> Refusal {
    Refusal::malformed("the payload is shorter than its lengths say")
}

pub(super) fn bulk_end(left: usize) -> Result<(), Refusal> {
    if left == 0 {
        Ok(())
    } else {
        Err(Refusal::malformed(
            "the payload is longer than its lengths say",
        ))
    }
}

/// Collects bulk bytes into a payload. A single piece is shared if it can be; several are joined.
#[derive(Default)]
pub(super) struct BulkWriter<'a> {
    only: Option<Payload<'a>>,
    joined: Vec<u8>,
    /// All pieces, joined before.
    before: Option<&'a Bytes>,
}

impl<'a> BulkWriter<'a> {
    /// For pieces that are these bytes, one behind the other; for any pieces if there are none.
    pub(super) fn with_joined(joined: &'a Bytes) -> Self {
        Self {
            before: (!joined.is_empty()).then_some(joined),
            ..Self::default()
        }
    }

    /// Adds bytes and gives their length as it stands in `meta`.
    pub(super) fn push(&mut self, bulk: Payload<'a>) -> [u8; 4] {
        let bytes = bulk.bytes();
        if !bytes.is_empty() && self.before.is_none() {
            match self.only.take() {
                Some(first) => {
                    self.joined.reserve(first.bytes().len() + bytes.len());
                    self.joined.extend_from_slice(first.bytes());
                    self.joined.extend_from_slice(bytes);
                }
                None if self.joined.is_empty() => self.only = Some(bulk),
                None => self.joined.extend_from_slice(bytes),
            }
        }
        u32::try_from(bytes.len())
            .expect("values are at most VALUE_MAX long")
            .to_le_bytes()
    }

    pub(super) fn finish(self) -> Bytes {
        match (self.before, self.only) {
            (Some(before), _) => before.clone(),
            (None, Some(only)) => only.to_shared(),
            (None, None) => self.joined.into(),
        }
    }
}

/// Where the steps of an item go when it is checked, or come from when it is read again.
pub(super) trait Steps<'a> {
    /// The steps that these bytes encode.
    fn take(
        &mut self,
        bytes: &[u8],
        decode: impl Fn(&[u8]) -> Result<BitStep, Refusal>,
    ) -> Result<&'a [BitStep], Refusal>;
}

/// Bytes of one step.
pub(super) const STEP_BYTES: usize = 18;

impl<'a> Steps<'a> for Vec<BitStep> {
    fn take(
        &mut self,
        bytes: &[u8],
        decode: impl Fn(&[u8]) -> Result<BitStep, Refusal>,
    ) -> Result<&'a [BitStep], Refusal> {
        self.reserve(bytes.len() / STEP_BYTES);
        for step in bytes.chunks_exact(STEP_BYTES) {
            self.push(decode(step)?);
        }
        Ok(&[])
    }
}

impl<'a> Steps<'a> for &'a [BitStep] {
    fn take(
        &mut self,
        bytes: &[u8],
        _: impl Fn(&[u8]) -> Result<BitStep, Refusal>,
    ) -> Result<&'a [BitStep], Refusal> {
        let (these, later) = self.split_at(bytes.len() / STEP_BYTES);
        *self = later;
        Ok(these)
    }
}
