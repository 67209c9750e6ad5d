//! Alignments in a binary file: each record's numbers and tail as they are in memory. At the end it
//! says where each record begins. It can be read whole, or mapped.
//!
//! ```text
//! records   numbers (32 bytes) and tail, one behind the other
//! offsets   8 bytes for each record, and for the end of the last one
//! count     8 bytes
//! ```

use super::record::{CORE_BYTES, Core, Loaded, Records};
use crate::error::{JumpError, Result};
use std::io::Write;

/// Writes all records, in this order.
pub(crate) fn write(
    records: &(impl Records + ?Sized),
    order: impl IntoIterator<Item = usize>,
    into: &mut impl Write,
) -> std::io::Result<()> {
    let (mut offsets, mut offset, mut line) = (Vec::new(), 0_u64, Vec::new());
    for number in order {
        offsets.push(offset);
        line.clear();
        let core = records.core(number);
        core.encode(&mut line);
        line.extend(records.tail(number));
        into.write_all(&line)?;
        offset += line.len() as u64;
    }
    let count = offsets.len() as u64;
    offsets.push(offset);
    for number in offsets.iter().chain([&count]) {
        into.write_all(&number.to_le_bytes())?;
    }
    into.flush()
}

/// A file, which somebody read or mapped.
pub(crate) struct File<'b> {
    records: &'b [u8],
    offsets: &'b [u8],
    count: usize,
}

fn word(bytes: &[u8], number: usize) -> Option<u64> {
    let eight = bytes.get(8 * number..8 * number + 8)?;
    Some(u64::from_le_bytes(eight.try_into().ok()?))
}

impl<'b> File<'b> {
    /// Looks at the end of the file; records are looked at when they are used.
    ///
    /// # Errors
    /// It is no such file.
    pub(crate) fn new(bytes: &'b [u8]) -> Result<Self> {
        let file = || {
            let (rest, count) = bytes.split_last_chunk::<8>()?;
            let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
            let offsets = count.checked_add(1)?.checked_mul(8)?;
            let (records, offsets) = rest.split_at_checked(rest.len().checked_sub(offsets)?)?;
            Some(Self {
                records,
                offsets,
                count,
            })
        };
        file().ok_or_else(|| JumpError::of("the binary file", "it is cut"))
    }

    fn record(&self, number: usize) -> &'b [u8] {
        let range = || {
            let begin = usize::try_from(word(self.offsets, number)?).ok()?;
            let end = usize::try_from(word(self.offsets, number + 1)?).ok()?;
            self.records.get(begin..end)
        };
        range().unwrap_or_default()
    }

    /// All records, in memory of their own.
    ///
    /// # Errors
    /// A record is cut.
    pub(crate) fn load(&self) -> Result<Vec<Loaded>> {
        let cut = |number| JumpError::of("the binary file", format!("record {number} is cut"));
        let load = |number| {
            let core = Core::decode(self.record(number)).ok_or_else(|| cut(number))?;
            let tail = self.tail(number).to_vec();
            match tail.len() == core.tail_bytes() {
                true => Ok(Loaded { core, tail }),
                false => Err(cut(number)),
            }
        };
        (0..self.count).map(load).collect()
    }
}

impl Records for File<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn core(&self, number: usize) -> Core {
        Core::decode(self.record(number)).unwrap_or_default()
    }

    fn tail(&self, number: usize) -> &[u8] {
        self.record(number).get(CORE_BYTES..).unwrap_or_default()
    }
}
