//! The word of one slot.
//!
//! ```text
//! 63             49   48   47                              0
//! |  tag, 15 bits | pend | offset of the entry in the log   |     0 = empty
//! ```
//!
//! An empty slot is the word zero, because the log places no entry at offset zero.

use pluvio_units::EntryRef;

/// Bits of a tag.
pub(crate) const TAG_BITS: u32 = 15;

const TAG_SHIFT: u32 = 64 - TAG_BITS;
const PENDING: u64 = 1 << EntryRef::BITS;
const OFFSET_MASK: u64 = PENDING - 1;

/// The word of an empty slot.
pub(crate) const EMPTY: u64 = 0;

/// The index's knowledge of one entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// The entry's place in the log.
    pub entry: EntryRef,
    /// Not durable yet: an answer built on it waits for its log's durable mark.
    pub pending: bool,
}

impl Slot {
    /// The slot in a word that is not empty.
    #[inline]
    pub(crate) fn of(word: u64) -> Self {
        Self {
            entry: entry_of(word),
            pending: word & PENDING != 0,
        }
    }
}

/// # Panics
/// When the entry is at offset zero: it would look like an empty slot.
#[inline]
pub(crate) fn pack(tag: u64, entry: EntryRef, pending: bool) -> u64 {
    assert!(
        entry.offset() != 0,
        "the log places no entry at offset zero"
    );
    tag << TAG_SHIFT | if pending { PENDING } else { 0 } | entry.offset()
}

#[inline]
pub(crate) fn entry_of(word: u64) -> EntryRef {
    EntryRef::new(word & OFFSET_MASK)
}

#[inline]
pub(crate) fn tag_of(word: u64) -> u64 {
    word >> TAG_SHIFT
}

/// The word with another tag.
pub(crate) fn with_tag(word: u64, tag: u64) -> u64 {
    word & !(u64::MAX << TAG_SHIFT) | tag << TAG_SHIFT
}

/// Whether the word is an entry with this tag.
#[inline]
pub(crate) fn has_tag(word: u64, tag: u64) -> bool {
    // One comparison: the words of entries with this tag follow each other, except the word with
    // offset zero.
    word.wrapping_sub((tag << TAG_SHIFT) + 1) < (1 << TAG_SHIFT) - 1
}

/// Whether the word refers to this entry.
#[inline]
pub(crate) fn refers_to(word: u64, entry: EntryRef) -> bool {
    // No entry is at offset zero, so this part of the answer is the same for all words.
    entry.offset() != 0 && word & OFFSET_MASK == entry.offset()
}
