//! Where dead versions of an object lie: the list of segments that an overwriting object may carry.
//!
//! ```text
//!  bytes 1 B      first         further ones
//! ┌─────────────┬─────────────┬─────────────────────────────────┐
//! │ 1 to 24     │ id varint   │ difference to the one before …  │
//! └─────────────┴─────────────┴─────────────────────────────────┘
//! ```
//!
//! Ids are at least 1 and ascend. An empty list is left out: the object's kind byte says whether
//! there is one.

use crate::varint::{VARINT_MAX, get_varint, put_varint};
use pluvio_units::SegmentId;

/// Most bytes of the ids of one list: about the size of the tombstone of a short key. So an object
/// with a full list is hardly larger than one that is appended with a tombstone. They hold up to 24
/// ids, 10 to 20 of a log in use.
const IDS_MAX: usize = 24;

/// The segments in which dead versions of an object lie: what the object's tombstones have to name
/// when it dies. Borrowed from the object's bytes, or from a [`GraveList`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Graves<'a> {
    /// Well-formed.
    ids: &'a [u8],
}

/// A list of graves being made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraveList {
    ids: [u8; IDS_MAX],
    len: u8,
}

impl<'a> Graves<'a> {
    /// Most bytes of an encoded list.
    pub const BYTES_MAX: usize = 1 + IDS_MAX;
    /// Most segments of a list.
    pub const COUNT_MAX: usize = IDS_MAX;
    /// No segments.
    pub const NONE: Self = Self { ids: &[] };

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Bytes it takes in an object.
    #[must_use]
    #[inline]
    pub fn encoded_len(&self) -> usize {
        match self.ids.len() {
            0 => 0,
            len => 1 + len,
        }
    }

    /// The segments, ascending.
    pub fn segments(&self) -> impl Iterator<Item = SegmentId> + use<'a> {
        let (mut rest, mut before) = (self.ids, 0u64);
        core::iter::from_fn(move || {
            // Whoever made this has seen that it is well-formed, so only its end stops here.
            let (step, len) = get_varint(rest).ok()?;
            rest = &rest[len..];
            before += step;
            Some(SegmentId(before))
        })
    }

    /// Writes it at the start of `to`, which has room for [`Self::BYTES_MAX`] bytes, and gives its
    /// length; nothing when it is empty.
    #[inline]
    pub(crate) fn put(&self, to: &mut [u8]) -> usize {
        if self.is_empty() {
            return 0;
        }
        to[0] = self.ids.len() as u8;
        to[1..=self.ids.len()].copy_from_slice(self.ids);
        1 + self.ids.len()
    }

    /// Reads a list that is not empty at the start of `bytes`: itself, and how many bytes it takes.
    /// `None` when it is malformed.
    #[inline]
    pub(crate) fn take(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (&len, rest) = bytes.split_first()?;
        if len == 0 || usize::from(len) > IDS_MAX {
            return None;
        }
        let ids = rest.get(..usize::from(len))?;
        let (mut left, mut before) = (ids, 0u64);
        while !left.is_empty() {
            let (step, taken) = get_varint(left).ok()?;
            if step == 0 {
                return None;
            }
            before = before.checked_add(step)?;
            left = &left[taken..];
        }
        Some((Self { ids }, 1 + ids.len()))
    }
}

impl GraveList {
    /// No segments.
    pub const EMPTY: Self = Self {
        ids: [0; IDS_MAX],
        len: 0,
    };

    /// The list of these segments, and how many of the first had to be left out because the others
    /// fill it. `None` when they do not ascend, or begin with 0.
    #[must_use]
    pub fn of(segments: &[SegmentId]) -> Option<(Self, usize)> {
        let zero = SegmentId(0);
        let before = core::iter::once(&zero).chain(segments);
        if !before.zip(segments).all(|(before, id)| before < id) {
            return None;
        }
        let mut left_out = segments.len().saturating_sub(Graves::COUNT_MAX);
        loop {
            if let Some(list) = Self::encode(&segments[left_out..]) {
                return Some((list, left_out));
            }
            left_out += 1;
        }
    }

    /// `None` when they are too long.
    fn encode(segments: &[SegmentId]) -> Option<Self> {
        let mut bytes = [0; IDS_MAX + VARINT_MAX];
        let (mut at, mut before) = (0, 0);
        for id in segments {
            at += put_varint(&mut bytes[at..], id.0 - before);
            before = id.0;
            if at > IDS_MAX {
                return None;
            }
        }
        let mut list = Self::default();
        list.ids[..at].copy_from_slice(&bytes[..at]);
        list.len = at as u8;
        Some(list)
    }

    /// The list, to be put into an object.
    #[must_use]
    #[inline]
    pub fn graves(&self) -> Graves<'_> {
        Graves {
            ids: &self.ids[..usize::from(self.len)],
        }
    }
}

impl core::fmt::Debug for Graves<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.segments()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(of: &[u64]) -> Vec<SegmentId> {
        of.iter().copied().map(SegmentId).collect()
    }

    #[test]
    fn the_newest_segments_are_kept_when_a_list_is_full() {
        let all: Vec<SegmentId> = (1000..1060).map(SegmentId).collect();
        let (list, left_out) = GraveList::of(&all).unwrap();
        // The first takes two bytes, every other one.
        assert_eq!(left_out, 60 - 23);
        let kept = list.graves().segments();
        assert!(kept.eq(all[left_out..].iter().copied()));
        let far = ids(&[1, 1 << 40, 1 << 50, u64::MAX]);
        let (list, left_out) = GraveList::of(&far).unwrap();
        assert_eq!(left_out, 1, "the last three take 6, 8 and 10 bytes");
        assert!(list.graves().segments().eq(far[1..].iter().copied()));
    }

    #[test]
    fn what_does_not_ascend_is_no_list() {
        assert_eq!(GraveList::of(&ids(&[0])), None);
        assert_eq!(GraveList::of(&ids(&[3, 3])), None);
        assert_eq!(GraveList::of(&ids(&[4, 3])), None);
        assert_eq!(GraveList::of(&[]), Some((GraveList::default(), 0)));
    }

    #[test]
    fn only_one_form_of_each_list_is_read() {
        let (list, _) = GraveList::of(&ids(&[5, 300, 301])).unwrap();
        let graves = list.graves();
        let mut bytes = [0; Graves::BYTES_MAX];
        let len = graves.put(&mut bytes);
        assert_eq!((len, graves.encoded_len()), (5, 5));
        assert_eq!(Graves::take(&bytes[..len]), Some((graves, len)));
        let refused: [(&[u8], &str); 7] = [
            (&bytes[..len - 1], "cut"),
            (&[0], "empty"),
            (&[2, 5, 0], "an id twice"),
            (&[1, 0], "no segment"),
            (&[2, 0x85, 0], "a longer form"),
            (&[25; 30], "too long"),
            (
                &[11, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
                "over 64 bits",
            ),
        ];
        for (bytes, why) in refused {
            assert_eq!(Graves::take(bytes), None, "{why}");
        }
    }
}
