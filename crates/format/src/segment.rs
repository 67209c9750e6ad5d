//! Walks over the image of a segment, group by group.
//!
//! An image is the certified prefix of a segment: it ends after a whole group. Entries follow one
//! another; a zero kind byte says that the rest of the seglet is padding. Padding is written
//! together with the small entry behind it. So it is shorter than such an entry may be, and an
//! image never ends in it: zeros there are lost bytes.

use crate::entry::{Check, Entry, ParseError, ParseErrorKind, Parsed};
use core::ops::Range;
use pluvio_units::SMALL_ENTRY_MAX;

/// Iterates the groups of a segment image, oldest first. Every entry of a group has been read and
/// its checksum compared before the group is given out (FORMAT-4). After an error there is nothing
/// more: what lies behind a broken entry cannot be found.
#[derive(Clone, Debug)]
pub struct SegmentIter<'a> {
    bytes: &'a [u8],
    seglet_bytes: usize,
    at: usize,
    failed: bool,
}

impl<'a> SegmentIter<'a> {
    /// Walks `bytes`, the image from the segment's first byte on, laid out in seglets of
    /// `seglet_bytes` (`pluvio_units::SEGLET_BYTES` except in tests).
    ///
    /// # Panics
    /// When `seglet_bytes` is zero.
    #[must_use]
    pub fn new(bytes: &'a [u8], seglet_bytes: usize) -> Self {
        assert!(seglet_bytes > 0, "a seglet has bytes");
        Self {
            bytes,
            seglet_bytes,
            at: 0,
            failed: false,
        }
    }

    /// The offset behind the last group given out, and behind padding once it was skipped.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Skips padding at `at` and returns where the next entry begins.
    fn skip_padding(&self, mut at: usize) -> Result<usize, ParseError> {
        while at < self.bytes.len() && self.bytes[at] == 0 {
            let border = at - at % self.seglet_bytes + self.seglet_bytes;
            let is_padding = border < self.bytes.len()
                && border - at < SMALL_ENTRY_MAX.min(self.seglet_bytes)
                && self.bytes[at..border].iter().all(|&b| b == 0);
            if !is_padding {
                return Err(ParseError::new(at, ParseErrorKind::BadPadding));
            }
            at = border;
        }
        Ok(at)
    }

    fn next_group(&mut self) -> Result<Option<Group<'a>>, ParseError> {
        let start = self.skip_padding(self.at)?;
        if start == self.bytes.len() {
            self.at = start;
            return Ok(None);
        }
        let mut at = start;
        let mut entries = 0;
        loop {
            let parsed =
                Parsed::read(&self.bytes[at..], Check::Checksum).map_err(|e| e.shifted_by(at))?;
            at += parsed.head.total_len();
            entries += 1;
            if !parsed.head.group_continues {
                break;
            }
            at = self.skip_padding(at)?;
            if at == self.bytes.len() {
                return Err(ParseError::new(start, ParseErrorKind::IncompleteGroup));
            }
        }
        self.at = at;
        Ok(Some(Group {
            image: &self.bytes[..at],
            seglet_bytes: self.seglet_bytes,
            start,
            entries,
        }))
    }
}

impl<'a> Iterator for SegmentIter<'a> {
    type Item = Result<Group<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let group = self.next_group();
        self.failed = group.is_err();
        group.transpose()
    }
}

/// Compares the checksums of what lies whole in a piece of a segment. `bytes` begin at `offset` of
/// the segment, where an entry or padding begins, and end anywhere, be it inside of an entry. Gives
/// the offset in the segment behind the last whole entry: the end of the piece, or where the next
/// piece has to begin.
///
/// # Errors
/// The first entry that is broken, or padding that is not zero or is too long. The offset is the
/// one in the segment.
///
/// # Panics
/// When `seglet_bytes` is zero.
pub fn check_piece(bytes: &[u8], offset: usize, seglet_bytes: usize) -> Result<usize, ParseError> {
    assert!(seglet_bytes > 0, "a seglet has bytes");
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == 0 {
            let within = (offset + at) % seglet_bytes;
            let end = (at + seglet_bytes - within).min(bytes.len());
            let is_padding = seglet_bytes - within < SMALL_ENTRY_MAX.min(seglet_bytes)
                && bytes[at..end].iter().all(|&b| b == 0);
            if !is_padding {
                return Err(ParseError::new(offset + at, ParseErrorKind::BadPadding));
            }
            at = end;
            continue;
        }
        match Parsed::read(&bytes[at..], Check::Checksum) {
            Ok(parsed) => at += parsed.head.total_len(),
            Err(e) if e.kind == ParseErrorKind::Truncated => break,
            Err(e) => return Err(e.shifted_by(offset + at)),
        }
    }
    Ok(offset + at)
}

/// Entries that were appended together and must be replayed together.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The image up to the end of this group.
    image: &'a [u8],
    seglet_bytes: usize,
    start: usize,
    entries: usize,
}

impl<'a> Group<'a> {
    /// Offset of the first entry in the segment.
    #[must_use]
    pub fn start(&self) -> usize {
        self.start
    }

    /// Offset behind the last entry.
    #[must_use]
    pub fn end(&self) -> usize {
        self.image.len()
    }

    /// Number of entries, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// The entries with their offsets in the segment.
    #[must_use]
    pub fn entries(&self) -> GroupEntries<'a> {
        GroupEntries {
            group: *self,
            at: self.start,
        }
    }
}

/// Iterates the entries of one [`Group`].
#[derive(Clone, Debug)]
pub struct GroupEntries<'a> {
    group: Group<'a>,
    at: usize,
}

impl<'a> GroupEntries<'a> {
    /// The same, with where each entry ends.
    pub fn with_ends(mut self) -> impl Iterator<Item = (Range<usize>, Entry<'a>)> {
        core::iter::from_fn(move || {
            let (start, entry) = self.next()?;
            Some((start..self.at, entry))
        })
    }
}

impl<'a> Iterator for GroupEntries<'a> {
    type Item = (usize, Entry<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let image = self.group.image;
        if self.at == image.len() {
            return None;
        }
        if image[self.at] == 0 {
            self.at += self.group.seglet_bytes - self.at % self.group.seglet_bytes;
        }
        let parsed = Parsed::read(&image[self.at..], Check::Structure)
            .expect("the group was read with checksums before it was given out");
        let entry = (self.at, parsed.entry);
        self.at += parsed.head.total_len();
        Some(entry)
    }
}
