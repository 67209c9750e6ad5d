//! Where dead versions of an object lie, and how the log keeps them dead (`docs/tombstones.md`).
//!
//! - LOG-14: an object that is dead on disk has a tombstone that names its segment. Or a newer
//!   object of its key, which lives or is not cleaned yet, names the segment among its graves.

use core::ops::Deref;
use pluvio_format::{GraveList, Graves};
use pluvio_units::SegmentId;

/// What keeps an overwritten object dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tombstones {
    /// A tombstone for every overwrite, as for every delete [LSM-DRAM §4].
    Every,
    /// The object that overwrites it: its version is higher, and its graves name the segments that
    /// need tombstones when it is deleted.
    #[default]
    Deletes,
}

/// Segments in which dead versions of one object lie, ascending.
#[derive(Clone, Copy, Debug)]
pub struct DeadIn {
    ids: [SegmentId; Graves::COUNT_MAX + 1],
    len: usize,
}

/// The tombstones and graves to be written so that dead objects stay dead.
#[derive(Clone, Copy, Debug)]
pub struct Burial {
    dead: DeadIn,
    /// The number of those that need a tombstone each, from the first on.
    tombstones: usize,
    list: GraveList,
}

/// Objects with longer keys have tombstones, and no graves. All tombstones of a delete together
/// must be small, since a delete has to work when only its reserve is left.
pub(crate) const KEY_WITH_GRAVES_MAX: usize = 1024;

impl Deref for DeadIn {
    type Target = [SegmentId];

    fn deref(&self) -> &[SegmentId] {
        &self.ids[..self.len]
    }
}

impl DeadIn {
    const NOWHERE: Self = Self {
        ids: [SegmentId(0); Graves::COUNT_MAX + 1],
        len: 0,
    };

    /// The segment of the newest version, and those of its graves that are on disk.
    pub(crate) fn of(
        newest: SegmentId,
        graves: Graves<'_>,
        is_on_disk: impl Fn(SegmentId) -> bool,
    ) -> Self {
        let mut dead = DeadIn::NOWHERE;
        let mut push = |id| {
            dead.ids[dead.len] = id;
            dead.len += 1;
        };
        let mut own = Some(newest);
        for id in graves.segments() {
            if let Some(first) = own.take_if(|own| *own <= id) {
                push(first);
                if first == id {
                    continue;
                }
            }
            if is_on_disk(id) {
                push(id);
            }
        }
        own.into_iter().for_each(push);
        debug_assert!(
            dead.is_sorted_by(|a, b| a < b) && dead.contains(&newest),
            "LOG-14: {dead:?} are the segments with dead versions, one with the newest"
        );
        dead
    }

    /// Tombstones for all of them.
    #[must_use]
    pub fn all_tombstones(self) -> Burial {
        Burial {
            tombstones: self.len,
            list: GraveList::EMPTY,
            dead: self,
        }
    }

    /// As many of them as possible in the graves of the object that takes the place of the dead
    /// one.
    #[must_use]
    pub fn in_graves(self) -> Burial {
        let (list, tombstones) = GraveList::of(&self).expect("they ascend");
        debug_assert_eq!(
            list.graves().segments().count() + tombstones,
            self.len,
            "LOG-14: each segment has a grave or a tombstone"
        );
        Burial {
            dead: self,
            tombstones,
            list,
        }
    }
}

impl Burial {
    /// Nothing is dead.
    pub const NOTHING: Self = Self {
        dead: DeadIn::NOWHERE,
        tombstones: 0,
        list: GraveList::EMPTY,
    };

    /// The segments to be named by a tombstone each.
    #[must_use]
    pub fn tombstones(&self) -> &[SegmentId] {
        &self.dead[..self.tombstones]
    }

    /// The graves of the new object.
    #[must_use]
    pub fn graves(&self) -> Graves<'_> {
        self.list.graves()
    }
}
