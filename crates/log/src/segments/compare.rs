//! Comparing the entries of closed segments with their checksums, a piece at a time. Entries are
//! compared where they lie. Those that lie in several seglets are copied for it.

use super::segment::Segment;
use crate::error::Corruption;
use pluvio_format::ParseErrorKind;
use pluvio_units::SEGLET_BYTES;

/// Bytes that are compared with their checksums at once.
const COMPARED_BYTES: u32 = 256 << 10;
/// Bytes that are copied at first of the next seglet, where an entry goes on there.
const BEYOND_BYTES: u32 = 4 << 10;

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
    let len = segment.appended_len();
    let end = len.min(from.saturating_add(COMPARED_BYTES));
    let mut at = from;
    while at < end {
        let Some(checked) = segment.check_in_place(at, end) else {
            // It was freed: nobody needs it any more.
            return Ok(None);
        };
        let next = checked?;
        if next == at {
            break;
        }
        at = next;
    }
    if at == from && at < end {
        // It goes on in the next seglet, or is broken.
        let Some(next) = compare_copy(segment, from)? else {
            return Ok(None);
        };
        at = next;
    }
    Ok((at < len).then_some(at))
}

/// As [`compare_piece`], for an entry that lies in several seglets: they are put together. `None`
/// when the segment was freed.
fn compare_copy(segment: &Segment, from: u32) -> Result<Option<u32>, Corruption> {
    let seglet = SEGLET_BYTES as u32;
    let (len, mut piece) = (
        segment.appended_len(),
        seglet - from % seglet + BEYOND_BYTES,
    );
    loop {
        let end = len.min(from.saturating_add(piece));
        let Some(checked) = segment.copy_checked(from, from..end) else {
            return Ok(None);
        };
        let (_, next) = checked?;
        if next > from {
            return Ok(Some(next));
        }
        if end == len {
            return Err(segment.corruption(from, ParseErrorKind::Truncated));
        }
        piece = piece.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppendClass, Durability, LogOptions, LogSpace, SideLog};
    use pluvio_format::{Entry, Graves, Object, ObjectState};
    use pluvio_units::{LogId, ObjectVersion, Size, TableId};
    use std::sync::Arc;

    // shows: CLEAN-10
    #[test]
    fn a_bit_that_turns_over_is_found_in_entries_of_every_length() {
        let options = LogOptions {
            durability: Durability::Replicated,
            ..LogOptions::new(Size::mib(64))
        };
        let space = LogSpace::new(options).expect("enough memory");
        let mut side = SideLog::new(Arc::clone(&space), LogId(0));
        let value = vec![7; 300_000];
        let mut entries = Vec::new();
        // Some fill a seglet to its end, some go on in the next one or in several.
        for length in [100, 3_000, 5_000, 100, 70_000, 4_000, 300_000, 1].repeat(5) {
            let object = Entry::Object(Object {
                table: TableId(1),
                version: ObjectVersion(1),
                timestamp_s: 1,
                graves: Graves::NONE,
                deadline: None,
                state: ObjectState::Plain,
                key: b"key",
                value: &value[..length],
            });
            let class = AppendClass::Replay;
            let refs = side.append(&[object], class, &space.pin());
            entries.push(refs.expect("there is room")[0]);
        }
        let segments = side.close();
        let compare = || segments.iter().try_for_each(|s| compare_checksums(s));
        assert_eq!(compare(), Ok(()));
        for entry in entries {
            assert!(space.flip_bit(entry, 8 * 10));
            let corruption = compare().expect_err("a bit has turned over");
            assert_eq!(corruption.entry, entry, "{corruption}");
            assert!(space.flip_bit(entry, 8 * 10));
        }
        assert_eq!(compare(), Ok(()));
    }
}
