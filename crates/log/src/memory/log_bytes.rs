//! The region with the bytes of all seglets.
//!
//! Seglet *i* lies at offset `(i + 1) * SEGLET_BYTES`. The first seglet's worth of addresses stays
//! unused: offset 0 means "empty" in the index.
//!
//! - LOG-1: bytes below a segment's appended length are never written until the segment was freed
//!   and every guard that could see it is gone. So readers need no lock.
//! - LOG-2: only the one [`SegmentWriter`](crate::append::writer::SegmentWriter) of a segment
//!   writes at or above its appended length.

use crate::options::LogOptions;
use crate::stats::MemoryBinding;
use pluvio_memory::{
    CopyMethod, EpochGuard, REGION_GRANULE_BYTES, RacingBytes, Region, RegionError,
};
use pluvio_units::{EntryRef, SEGLET_BYTES};

/// See the module.
pub(crate) struct LogBytes {
    region: Region,
    copy: CopyMethod,
    binding: MemoryBinding,
}

impl LogBytes {
    /// `parts`: the seglets of each part of the options.
    pub(crate) fn new(
        seglets: usize,
        options: &LogOptions,
        parts: &[u32],
    ) -> Result<Self, RegionError> {
        let len = (seglets as u64 + 1) * SEGLET_BYTES as u64;
        let region = match &options.readers {
            None => Region::anonymous(len, options.huge_pages)?,
            Some(_) => Region::for_readers("pluvio-log", len, options.huge_pages)?,
        };
        Ok(Self {
            binding: bind(&region, options, parts),
            region,
            copy: options.copy,
        })
    }

    /// The memory.
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Whether the pages of seglets can go back to the system ([`Region::gives_back`]).
    pub(crate) fn gives_pages_back(&self) -> bool {
        self.region.gives_back()
    }

    /// Whether other processes read it, so that seglets need pages before they are written (R4).
    pub(crate) fn is_read(&self) -> bool {
        self.region.is_for_readers()
    }

    /// Asks the system for the pages of a seglet.
    pub(crate) fn allocate(&self, seglet: u32) -> Result<(), RegionError> {
        let bytes = SEGLET_BYTES as u64;
        self.region.allocate(Self::base(seglet), bytes)
    }

    /// Bytes of the region.
    pub(crate) fn len(&self) -> u64 {
        self.region.len()
    }

    /// Seglets.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) fn seglets(&self) -> u32 {
        (self.region.len() / SEGLET_BYTES as u64 - 1) as u32
    }

    /// Whether the parts lie on their nodes.
    pub(crate) fn binding(&self) -> MemoryBinding {
        self.binding
    }

    /// The memory node on which the page of an entry lies, if the system tells.
    pub(crate) fn node_of(&self, entry: EntryRef) -> Option<u32> {
        self.region.node_of_page(entry.offset())
    }

    /// Region offset of the first byte of a seglet.
    #[inline]
    pub(crate) fn base(seglet: u32) -> u64 {
        (u64::from(seglet) + 1) * SEGLET_BYTES as u64
    }

    #[inline]
    pub(crate) fn prefetch(&self, entry: EntryRef, lines: u64) {
        for line in 0..lines {
            self.region.prefetch(entry.offset() + line * 64);
        }
    }

    /// The bytes of a piece of one seglet.
    ///
    /// # Safety
    /// The bytes lie below the appended length of the seglet's segment, and `_guard` was taken
    /// before the segment was freed (LOG-1).
    #[inline]
    pub(crate) unsafe fn bytes<'g>(
        &'g self,
        seglet: u32,
        within: usize,
        len: usize,
        _guard: &'g EpochGuard<'_>,
    ) -> &'g [u8] {
        assert!(within + len <= SEGLET_BYTES, "a piece ends in its seglet");
        // SAFETY: nobody writes there while the guard lives, as the caller promises.
        unsafe { self.region.bytes(Self::base(seglet) + within as u64, len) }
    }

    /// The first bytes of an entry, within its seglet.
    ///
    /// # Safety
    /// As of [`Self::bytes`].
    #[inline(always)]
    pub(crate) unsafe fn piece<'g>(
        &'g self,
        entry: EntryRef,
        len: usize,
        _guard: &'g EpochGuard<'_>,
    ) -> &'g [u8] {
        const { assert!(SEGLET_BYTES as u64 == REGION_GRANULE_BYTES) };
        // SAFETY: nobody writes there while the guard lives, as the caller promises.
        unsafe { self.region.bytes_in_granule(entry.offset(), len) }
    }

    /// Writes a piece of one seglet.
    ///
    /// # Safety
    /// The caller is the seglet's only writer and the bytes lie at or above the appended length of
    /// its segment (LOG-2).
    #[inline]
    pub(crate) unsafe fn write(&self, seglet: u32, within: usize, bytes: &[u8]) {
        assert!(
            within + bytes.len() <= SEGLET_BYTES,
            "a piece ends in its seglet"
        );
        // SAFETY: nobody else reads or writes there, as the caller promises.
        unsafe {
            self.region
                .write_by(self.copy, Self::base(seglet) + within as u64, bytes);
        }
    }

    /// Whether entries are copied by `memcpy`, and not by another method that is compared with it.
    #[inline]
    pub(crate) fn copies_as_usual(&self) -> bool {
        self.copy == CopyMethod::Library
    }

    /// The `len` bytes of one seglet to be written, whatever the method of copying.
    ///
    /// # Safety
    /// As of [`Self::write`], as long as what this gives lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // as the caller promises, nobody else has these bytes
    pub(crate) unsafe fn room(&self, seglet: u32, within: usize, len: usize) -> &mut [u8] {
        // SAFETY: nobody else reads or writes there, as the caller promises.
        unsafe {
            self.region
                .room_in_granule(Self::base(seglet) + within as u64, len)
        }
    }

    /// Turns a bit over, counted from the first byte of an entry on. Nobody has a view of the
    /// entry.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) fn flip_bit(&self, entry: EntryRef, bit: u32) {
        let at = entry.offset() + u64::from(bit / 8);
        let mut mask = [0; 8];
        mask[(at % 8) as usize] = 1 << (bit % 8);
        let word = self.region.word(at - at % 8);
        word.fetch_xor(
            u64::from_ne_bytes(mask),
            core::sync::atomic::Ordering::Relaxed,
        );
    }

    /// Gives the pages of a seglet back to the system. It was taken from the pool for this, and no
    /// guard is left that could see its former entries (LOG-5). Readers of other processes were
    /// told before it came into the pool that it is used again. A copy of its zeroes does not count
    /// (M5).
    pub(crate) fn discard(&self, seglet: u32) {
        // SAFETY: the caller alone has the seglet, and readers of its former entries are gone.
        let done = unsafe { self.region.discard(Self::base(seglet), SEGLET_BYTES as u64) };
        // Refused, it stays resident: memory is lost to the system, not to us.
        let _stays_resident = done;
    }

    /// Has the system not join what is resident with what was given back to huge pages: it would
    /// give all of it pages again.
    pub(crate) fn prefer_small_pages(&self) {
        self.region.prefer_small_pages(0, self.region.len());
    }

    /// Asks for huge pages.
    pub(crate) fn prefer_huge_pages(&self) -> Result<(), RegionError> {
        self.region.prefer_huge_pages(0, self.region.len())
    }

    /// Fetches the pages of `len` bytes at `from`, or of those up to the end. Gives where they end,
    /// or `None` at the end of the memory.
    pub(crate) fn populate(&self, from: u64, len: u64) -> Result<Option<u64>, RegionError> {
        let len = len.min(self.region.len() - from);
        self.region.populate(from, len)?;
        Ok(Some(from + len).filter(|end| *end < self.region.len()))
    }

    /// The bytes of an entry within its seglet, to be accessed as what others change.
    #[inline(always)]
    pub(crate) fn racing(&self, entry: EntryRef, len: usize) -> RacingBytes<'_> {
        self.region.racing_in_granule(entry.offset(), len)
    }
}

/// Has the pages of each part come from its node. A part that is refused works as well, with pages
/// from elsewhere.
fn bind(region: &Region, options: &LogOptions, parts: &[u32]) -> MemoryBinding {
    let mut binding = MemoryBinding::NoNodes;
    let mut first = 0;
    for (part, &len) in options.parts.iter().zip(parts) {
        let (from, bytes) = (LogBytes::base(first), u64::from(len) * SEGLET_BYTES as u64);
        first += len;
        let Some(node) = part.node else {
            continue;
        };
        match (region.prefer_node(from, bytes, node), binding) {
            (Ok(()), MemoryBinding::NoNodes) => binding = MemoryBinding::Bound,
            // The first refusal stays: others have the same cause.
            (Ok(()), _) | (Err(_), MemoryBinding::Refused(_)) => {}
            (Err(why), MemoryBinding::NoNodes | MemoryBinding::Bound) => {
                binding = MemoryBinding::Refused(why);
            }
        }
    }
    binding
}
