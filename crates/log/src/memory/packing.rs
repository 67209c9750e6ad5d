//! How entries are laid into seglets: a short one lies in one seglet, behind padding if it must.

use pluvio_units::{SEGLET_BYTES, SMALL_ENTRY_MAX, WHOLE_ENTRY_MAX};

/// How entries are laid into seglets: the same for all segments of a log space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// Entries up to this many bytes lie in one seglet.
    whole_max: usize,
}

impl Packing {
    /// Of a log space whose values change in place, or do not.
    pub(crate) fn new(in_place: bool) -> Self {
        let whole_max = match in_place {
            true => SMALL_ENTRY_MAX,
            false => WHOLE_ENTRY_MAX,
        };
        Self { whole_max }
    }

    /// The place of an entry of `len` bytes when the segment ends at `at`. It goes there, or behind
    /// padding when it is small and would cross a seglet border. Ascends with `at`.
    pub(crate) fn place(self, at: u32, len: usize) -> u32 {
        let left = SEGLET_BYTES - at as usize % SEGLET_BYTES;
        if len > left && len <= self.whole_max {
            at + left as u32
        } else {
            at
        }
    }

    /// Where the segment ends after entries of these lengths were put at `at`.
    pub(crate) fn end_after(self, at: u32, lens: impl Iterator<Item = usize>) -> u32 {
        lens.fold(at, |at, len| self.place(at, len).saturating_add(len as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_entries_lie_in_one_seglet_and_longer_ones_cross() {
        const BORDER: u32 = SEGLET_BYTES as u32;
        for (in_place, whole_max) in [(false, WHOLE_ENTRY_MAX), (true, SMALL_ENTRY_MAX)] {
            let packing = Packing::new(in_place);
            for at in [BORDER - 1, 3 * BORDER - 100] {
                let border = at.next_multiple_of(BORDER);
                assert_eq!(packing.place(at, whole_max), border);
                assert_eq!(packing.place(at, whole_max + 1), at);
            }
            let exactly = BORDER - whole_max as u32;
            assert_eq!(packing.place(exactly, whole_max), exactly, "it fits");
            assert_eq!(packing.end_after(exactly, [whole_max].into_iter()), BORDER);
        }
    }
}
