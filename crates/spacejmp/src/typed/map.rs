//! A hash map in a heap span.
//!
//! Open addressing with linear probing: an array of hashes, 0 for a free slot, and one of entries
//! beside it. A removed entry's successors move up, so nothing marks it. Hashes are XXH3 with the
//! span's own seed, the same in all programs.

use super::{Heap, SegStr, SegVec};
use crate::active;
use crate::error::Result;
use crate::layout::{Brand, LayoutWalk, SegSafe};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use pluvio_units::KeyHash;

/// Slots of the first table.
const SLOTS_MIN: usize = 8;
/// Set in the hash of every entry, so that none is 0.
const FULL: u64 = 1 << 63;

/// Something by which entries with keys `K` are found: a key, or what stands for one.
pub trait SegKey<K: ?Sized> {
    /// Its hash, the same as that of the key it stands for.
    fn hash(&self, seed: u64) -> u64;

    /// Whether it stands for this key.
    fn is(&self, key: &K) -> bool;
}

macro_rules! number_keys {
    ($($type:ty),*) => {$(
        impl SegKey<$type> for $type {
            #[inline]
            fn hash(&self, seed: u64) -> u64 {
                // Eight bytes are hashed inline; u128 has more.
                KeyHash::of(seed, &self.to_le_bytes()).0
            }

            #[inline]
            fn is(&self, key: &$type) -> bool {
                self == key
            }
        }
    )*};
}

number_keys!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl SegKey<SegStr<'_>> for str {
    fn hash(&self, seed: u64) -> u64 {
        KeyHash::of(seed, self.as_bytes()).0
    }

    fn is(&self, key: &SegStr<'_>) -> bool {
        self == &**key
    }
}

impl SegKey<SegStr<'_>> for SegStr<'_> {
    fn hash(&self, seed: u64) -> u64 {
        (**self).hash(seed)
    }

    fn is(&self, key: &SegStr<'_>) -> bool {
        **self == **key
    }
}

/// An entry in its slot.
#[repr(C)]
struct Entry<K, V> {
    key: K,
    value: V,
}

/// A hash map in the heap of its span.
#[repr(C)]
pub struct SegMap<'id, K, V> {
    /// One for each slot; a power of two of them, or none.
    hashes: SegVec<'id, u64>,
    /// The slots. Those with a hash hold an entry. Dangling while there are none.
    entries: NonNull<Entry<K, V>>,
    len: usize,
    seed: u64,
    brand: PhantomData<(Brand<'id>, Entry<K, V>)>,
}

impl<K, V> Default for SegMap<'_, K, V> {
    fn default() -> Self {
        Self {
            hashes: SegVec::default(),
            entries: NonNull::dangling(),
            len: 0,
            seed: 0,
            brand: PhantomData,
        }
    }
}

impl<'id, K: SegSafe + SegKey<K>, V: SegSafe> SegMap<'id, K, V> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of a key.
    #[inline]
    pub fn get<Q: SegKey<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        self.find(key).map(|slot| &self.entry(slot).value)
    }

    /// The value of a key, to be changed.
    pub fn get_mut<Q: SegKey<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        let slot = self.find(key)?;
        Some(&mut self.entry_mut(slot).value)
    }

    /// Whether there is an entry with this key.
    pub fn contains<Q: SegKey<K> + ?Sized>(&self, key: &Q) -> bool {
        self.find(key).is_some()
    }

    /// Adds an entry, or replaces the value of the one with this key. Gives the old value.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]: nothing was added; key and value are dropped.
    pub fn insert(&mut self, heap: &Heap<'id>, key: K, value: V) -> Result<Option<V>> {
        if let Some(slot) = self.find(&key) {
            let old = &mut self.entry_mut(slot).value;
            return Ok(Some(core::mem::replace(old, value)));
        }
        if (self.len + 1) * 8 > self.hashes.len() * 7 {
            self.grow(heap)?;
        }
        self.put(key.hash(self.seed) | FULL, Entry { key, value });
        self.len += 1;
        Ok(None)
    }

    /// Takes the entry with this key.
    #[allow(unsafe_code)] // moves entries between slots
    pub fn remove<Q: SegKey<K> + ?Sized>(&mut self, key: &Q) -> Option<(K, V)> {
        let mut hole = self.find(key)?;
        // SAFETY: the slot holds an entry, whose hash is overwritten below.
        let taken = unsafe { self.entries.add(hole).read() };
        let mask = self.hashes.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let hash = self.hashes[at];
            if hash == 0 {
                break;
            }
            // An entry may move up to its first slot, and not before it.
            let home = hash as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.hashes[hole] = hash;
                // SAFETY: `at` holds an entry and `hole` none; afterwards it is the other way.
                unsafe {
                    let from = self.entries.add(at);
                    self.entries.add(hole).copy_from_nonoverlapping(from, 1);
                }
                hole = at;
            }
        }
        self.hashes[hole] = 0;
        self.len -= 1;
        Some((taken.key, taken.value))
    }

    /// Drops all entries and gives the room back.
    pub fn clear(&mut self) {
        drop(core::mem::take(self));
    }

    fn find<Q: SegKey<K> + ?Sized>(&self, key: &Q) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let hash = key.hash(self.seed) | FULL;
        let mask = self.hashes.len() - 1;
        let mut slot = hash as usize & mask;
        // Ends, because an eighth of the slots is free.
        loop {
            match self.hashes[slot] {
                0 => return None,
                found if found == hash && key.is(&self.entry(slot).key) => return Some(slot),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Puts an entry that is not there into its first free slot, of which there is one.
    #[allow(unsafe_code)] // writes to a slot
    fn put(&mut self, hash: u64, entry: Entry<K, V>) {
        let mask = self.hashes.len() - 1;
        let mut slot = hash as usize & mask;
        while self.hashes[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        self.hashes[slot] = hash;
        // SAFETY: the slot is there, and held no entry.
        unsafe { self.entries.add(slot).write(entry) };
    }

    /// Moves all entries to a table of twice the size.
    #[allow(unsafe_code)] // moves entries between blocks
    fn grow(&mut self, heap: &Heap<'id>) -> Result<()> {
        let slots = (self.hashes.len() * 2).max(SLOTS_MIN);
        let mut hashes = SegVec::with_room(heap, slots)?;
        for _ in 0..slots {
            hashes.push(heap, 0)?;
        }
        let entries = heap.room::<Entry<K, V>>(slots)?;
        let seed = match self.hashes.is_empty() {
            true => heap.seed(),
            false => self.seed,
        };
        let old = core::mem::replace(&mut self.hashes, hashes);
        let old_entries = core::mem::replace(&mut self.entries, entries);
        self.seed = seed;
        for (slot, &hash) in old.iter().enumerate() {
            if hash != 0 {
                // SAFETY: the slot holds an entry; its table is given back without it.
                let entry = unsafe { old_entries.add(slot).read() };
                self.put(hash, entry);
            }
        }
        if !old.is_empty() {
            // SAFETY: the map owned the block, and all of its entries have moved.
            unsafe { active::free(old_entries.cast()) };
        }
        Ok(())
    }
}

impl<K, V> SegMap<'_, K, V> {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in an order of no meaning.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let slots = self.hashes.iter().enumerate();
        slots.filter(|(_, hash)| **hash != 0).map(|(slot, _)| {
            let entry = self.entry(slot);
            (&entry.key, &entry.value)
        })
    }

    /// The entry of a slot that has one.
    #[inline]
    #[allow(unsafe_code)] // a reference into the span
    fn entry(&self, slot: usize) -> &Entry<K, V> {
        assert!(self.hashes[slot] != 0, "no entry in slot {slot}");
        // SAFETY: the slot holds an entry, which the map owns.
        unsafe { self.entries.add(slot).as_ref() }
    }

    #[inline]
    #[allow(unsafe_code)] // a reference into the span
    fn entry_mut(&mut self, slot: usize) -> &mut Entry<K, V> {
        assert!(self.hashes[slot] != 0, "no entry in slot {slot}");
        // SAFETY: as in `entry`, for a map that is reached by `&mut`.
        unsafe { self.entries.add(slot).as_mut() }
    }
}

impl<K, V> Drop for SegMap<'_, K, V> {
    #[allow(unsafe_code)] // drops entries in their place
    fn drop(&mut self) {
        let hashes = core::mem::take(&mut self.hashes);
        for (slot, &hash) in hashes.iter().enumerate() {
            if hash != 0 {
                // SAFETY: the slot holds an entry, and the map forgets it with its hashes.
                unsafe { self.entries.add(slot).drop_in_place() };
            }
        }
        if !hashes.is_empty() {
            // SAFETY: the map owns the block, and no entry of it is used.
            unsafe { active::free(self.entries.cast()) };
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SegMap<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

// SAFETY: pointers into the span of its brand, and numbers, in the order of `repr(C)`.
#[allow(unsafe_code)]
unsafe impl<K: SegSafe, V: SegSafe> SegSafe for SegMap<'_, K, V> {
    type In<'id> = SegMap<'id, K::In<'id>, V::In<'id>>;

    fn describe(walk: &mut LayoutWalk) {
        walk.word("SegMap");
        K::describe(walk);
        V::describe(walk);
    }
}
