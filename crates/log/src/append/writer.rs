//! Puts entries into one segment. Owned by the party that owns the segment's end: a log's head
//! lock, a side log, the cleaner.

use super::EntryRefs;
use crate::memory::{LogBytes, LogMemory, Place};
use crate::segments::Segment;
use pluvio_format::{Encoded, Entry};
use pluvio_units::{EntryRef, LogPosition, SEGLET_BYTES, SMALL_ENTRY_MAX};
use std::sync::Arc;

static ZEROS: [u8; SMALL_ENTRY_MAX] = [0; SMALL_ENTRY_MAX];

/// The one writer of a segment (LOG-2).
pub(crate) struct SegmentWriter {
    segment: Arc<Segment>,
    memory: Arc<LogMemory>,
    at: u32,
    /// The segment's seglets, also in the segment itself; here they are read without its lock.
    seglets: Vec<u32>,
    /// The seglets are to take the place of those the segment has.
    rewrites: bool,
}

impl SegmentWriter {
    pub(crate) fn new(segment: Arc<Segment>, memory: Arc<LogMemory>) -> Self {
        Self {
            segment,
            memory,
            at: 0,
            seglets: Vec::new(),
            rewrites: false,
        }
    }

    /// A writer of other bytes for a closed segment (compaction). Only the seglets it is given know
    /// of the segment; the segment gets them with [`Segment::exchange`].
    pub(crate) fn rewriting(segment: Arc<Segment>, memory: Arc<LogMemory>) -> Self {
        Self {
            rewrites: true,
            ..Self::new(segment, memory)
        }
    }

    /// The seglets it was given.
    pub(crate) fn into_seglets(self) -> Vec<u32> {
        self.seglets
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Bytes written, published or not.
    pub(crate) fn at(&self) -> u32 {
        self.at
    }

    pub(crate) fn position(&self) -> LogPosition {
        LogPosition {
            segment: self.segment.id(),
            offset: self.at,
        }
    }

    /// Where the segment ends after entries of these lengths more.
    pub(crate) fn end_after(&self, lens: impl Iterator<Item = usize>) -> u32 {
        self.memory.packing().end_after(self.at, lens)
    }

    /// Seglets that are missing for the segment to reach `end`.
    pub(crate) fn missing_seglets(&self, end: u32) -> usize {
        (end as usize)
            .div_ceil(SEGLET_BYTES)
            .saturating_sub(self.seglets.len())
    }

    /// Adds seglets that the caller took from the pool.
    pub(crate) fn extend(&mut self, seglets: impl IntoIterator<Item = u32>) {
        for seglet in seglets {
            let place = Place {
                segment: self.segment.id(),
                slot: self.segment.slot(),
                log: self.segment.log(),
                index: u16::try_from(self.seglets.len())
                    .expect("a segment has at most 128 seglets"),
            };
            self.memory
                .assign(seglet, place, self.seglets.last().copied());
            self.seglets.push(seglet);
            if !self.rewrites {
                self.segment.contents().push(seglet);
            }
        }
    }

    /// Writes one entry, given in parts. The seglets for it are there. The entry is not visible to
    /// replication before [`Self::publish`].
    pub(crate) fn put(&mut self, parts: &[&[u8]]) -> EntryRef {
        self.check_end();
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let start = self.memory.packing().place(self.at, len);
        let padding = (start - self.at) as usize;
        if padding > 0 {
            self.write(&ZEROS[..padding]);
        }
        let offset = LogBytes::base(self.seglets[start as usize / SEGLET_BYTES])
            + u64::from(start) % SEGLET_BYTES as u64;
        for part in parts {
            self.write(part);
        }
        debug_assert_eq!(self.at as usize, start as usize + len);
        EntryRef::new(offset)
    }

    /// Writes a group for which there is room, counts it, and shows it to replication.
    pub(crate) fn put_group(
        &mut self,
        entries: &[Entry<'_>],
        encoded: &[Encoded<'_>],
    ) -> EntryRefs {
        let mut refs = EntryRefs::new();
        for (entry, bytes) in entries.iter().zip(encoded) {
            refs.push(self.put(&bytes.parts()));
            self.count(entry, bytes.len());
        }
        self.publish();
        refs
    }

    /// Counts an entry as live in its segment.
    fn count(&self, entry: &Entry<'_>, len: usize) {
        let segment = &self.segment;
        match entry {
            Entry::Object(_) | Entry::Completion(_) => {
                self.memory
                    .live()
                    .add(segment.slot(), segment.log(), len as i64)
            }
            Entry::Tombstone(tombstone) => {
                segment.tombstones().add(tombstone.segment, len as u32);
            }
            // Every head has its own: they are dead as soon as there is a newer one.
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Horizon(_) => {}
        }
    }

    /// [`Self::put`] for an entry that fits the rest of the seglet the segment ends in. `None`, and
    /// nothing was written, when it does not, or when the segment takes no entries.
    #[inline]
    pub(crate) fn put_within(&mut self, parts: &[&[u8]; 3]) -> Option<EntryRef> {
        self.check_end();
        let within = self.at as usize % SEGLET_BYTES;
        let seglet = *self.seglets.get(self.at as usize / SEGLET_BYTES)?;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if within + len > SEGLET_BYTES || self.segment.is_emergency() {
            return None;
        }
        let mut to = within;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            // SAFETY: as in `write`.
            unsafe { self.memory.raw().write(seglet, to, part) };
            to += part.len();
        }
        self.at += len as u32;
        Some(EntryRef::new(LogBytes::base(seglet) + within as u64))
    }

    /// [`Self::put_within`] for an entry of `len` bytes that the caller writes where it will lie.
    #[inline(always)]
    pub(crate) fn room_within(&mut self, len: usize) -> Option<(EntryRef, &mut [u8])> {
        self.check_end();
        let within = self.at as usize % SEGLET_BYTES;
        let seglet = *self.seglets.get(self.at as usize / SEGLET_BYTES)?;
        if within + len > SEGLET_BYTES || self.segment.is_emergency() {
            return None;
        }
        self.at += len as u32;
        // SAFETY: as in `write`; and it is written before this writer does anything else.
        let bytes = unsafe { self.memory.raw().room(seglet, within, len) };
        Some((EntryRef::new(LogBytes::base(seglet) + within as u64), bytes))
    }

    /// Nothing is written below what others may see, and nothing to a closed segment.
    #[inline]
    fn check_end(&self) {
        debug_assert!(
            self.rewrites || (self.at >= self.segment.appended_len() && !self.segment.is_closed()),
            "LOG-2: the writer of {:?} is at {}",
            self.segment,
            self.at
        );
    }

    /// Appends bytes, going on in the next seglet where one ends.
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let within = self.at as usize % SEGLET_BYTES;
            let (now, later) = bytes.split_at(bytes.len().min(SEGLET_BYTES - within));
            let seglet = self.seglets[self.at as usize / SEGLET_BYTES];
            // SAFETY: this writer is the segment's only one, and `at` is at or above the appended
            // length. The seglet belongs to the segment until it is freed.
            unsafe { self.memory.raw().write(seglet, within, now) };
            self.at += now.len() as u32;
            bytes = later;
        }
    }

    /// Takes back what was put since the writer was at `to`; none of it was published, and no
    /// reference to it is left anywhere.
    pub(crate) fn rewind(&mut self, to: u32) {
        let seen = if self.rewrites {
            0
        } else {
            self.segment.appended_len()
        };
        assert!(
            seen <= to && to <= self.at,
            "LOG-1: only what nobody has seen can be taken back"
        );
        self.at = to;
    }

    /// Makes everything written visible to replication: the end of a group.
    pub(crate) fn publish(&mut self) {
        debug_assert!(
            !self.rewrites,
            "CLEAN-8: a compaction is seen only as a whole"
        );
        self.segment.set_appended(self.at);
    }
}
