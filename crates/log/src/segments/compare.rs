//! Comparing the entries of closed segments with their checksums, a piece at a time.

use super::segment::Segment;
use crate::error::Corruption;
use pluvio_format::ParseErrorKind;

/// Bytes that are compared with their checksums at once.
const COMPARED_BYTES: u32 = 256 << 10;

/// Compares all entries of a closed segment, whose replicas have what it has now, with their
/// checksums.
///
/// # Errors
/// [`Corruption`]: log memory is broken, and replicas may have been made of it; the process must stop.
pub(crate) fn compare_checksums(segment: &Segment) -> Result<(), Corruption> {
    let mut next = Some(0);
    while let Some(from) = next {
        next = compare_piece(segment, from)?;
    }
    Ok(())
}

/// A piece of [`compare_checksums`]: what begins at `from`, 256 KiB or one entry. Gives
/// where the next piece begins, if there is one.
///
/// # Errors
/// As of [`compare_checksums`].
pub(crate) fn compare_piece(segment: &Segment, from: u32) -> Result<Option<u32>, Corruption> {
    let (len, mut piece) = (segment.appended_len(), COMPARED_BYTES);
    if from >= len {
        return Ok(None);
    }
    loop {
        let end = len.min(from.saturating_add(piece));
        let Some(checked) = segment.copy_checked(from, from..end) else {
            // It was freed: nobody needs it any more.
            return Ok(None);
        };
        let (_, next) = checked?;
        if next > from {
            return Ok((next < len).then_some(next));
        }
        if end == len {
            return Err(segment.corruption(from, ParseErrorKind::Truncated));
        }
        // One entry is longer.
        piece = piece.saturating_mul(2);
    }
}
