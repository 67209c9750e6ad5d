//! Where dead versions of an object lie, and how the log keeps them dead (`docs/tombstones.md`).
//!
//! - LOG-14: an object that is dead on disk has a tombstone that names its segment, or a newer
//!   object of its key that lives, or is not cleaned yet, names it among its graves.

use crate::durable::Durability;
use crate::space::LogSpace;
use core::ops::Deref;
use pluvio_format::{GraveList, Graves};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, SegmentId};
use std::sync::PoisonError;

/// What keeps an overwritten object dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tombstones {
    /// A tombstone for every overwrite, as for every delete (000 §4).
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

/// What must be written so that dead objects stay dead.
#[derive(Clone, Copy, Debug)]
pub struct Burial {
    dead: DeadIn,
    /// So many need tombstones of their own.
    tombstones: usize,
    list: GraveList,
}

/// Objects with longer keys have tombstones, and no graves: all tombstones of a delete together
/// must be small, since a delete has to work when only its reserve is left.
const KEY_WITH_GRAVES_MAX: usize = 1024;

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

impl LogSpace {
    /// Where dead versions of an object lie when the one at `entry` dies, which has these graves:
    /// its own segment and those of its graves that are on disk. `entry` was found under `guard`,
    /// and its bucket is locked.
    #[must_use]
    pub fn dead_with(&self, entry: EntryRef, graves: Graves<'_>, guard: &EpochGuard<'_>) -> DeadIn {
        let own = self.position_of(entry, guard).1.segment;
        let mut dead = DeadIn::NOWHERE;
        let mut push = |id| {
            dead.ids[dead.len] = id;
            dead.len += 1;
        };
        let mut own = Some(own);
        for id in graves.segments() {
            if let Some(first) = own.take_if(|own| *own <= id) {
                push(first);
                if first == id {
                    continue;
                }
            }
            if self.is_on_disk(id) {
                push(id);
            }
        }
        own.into_iter().for_each(push);
        debug_assert!(
            dead.is_sorted_by(|a, b| a < b)
                && dead.contains(&self.position_of(entry, guard).1.segment),
            "LOG-14: {dead:?} are the segments with dead versions, one with the newest"
        );
        dead
    }

    /// How an overwrite of an object with a key of this length is recorded.
    #[must_use]
    #[inline]
    pub fn uses_graves(&self, key_len: usize) -> bool {
        match (self.options.durability, self.options.tombstones) {
            (Durability::Replicated, Tombstones::Deletes) => key_len <= KEY_WITH_GRAVES_MAX,
            (Durability::Volatile, _) | (_, Tombstones::Every) => false,
        }
    }

    /// Whether this segment, which an object names, is on disk.
    fn is_on_disk(&self, id: SegmentId) -> bool {
        self.presence.has(id).unwrap_or_else(|| {
            let on_disk = self.on_disk.read().unwrap_or_else(PoisonError::into_inner);
            on_disk.contains_key(&id)
        })
    }
}
