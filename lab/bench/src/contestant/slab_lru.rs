//! Memcached's way of keeping objects, in this process: slabs of chunks of one size, and a bounded
//! memory whose longest unused objects make room.
//!
//! Pages of 1 MiB belong to a size class for ever, and are cut into its chunks. Each class is a
//! quarter larger than the one below. A class without a free chunk takes a new page, and when all
//! pages are in use it evicts. Eviction is a second chance in the order of chunks: close to the
//! least recently used, with one byte written on a read. Keys are dealt to shards, each behind a
//! mutex with a part of the memory.
//!
//! - SLAB-1: a chunk is free, in its class's list, or the one that the map has for its key.

#![expect(
    clippy::disallowed_types,
    reason = "nothing walks over the map, and it hashes as those of the other contestants do"
)]

use super::{KeyValue, Refusal};
use foldhash::fast::RandomState;
use pluvio_units::VALUE_MAX;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: usize = 1 << 20;
/// Smallest chunk, and the step between classes in percent, as memcached has them.
const CHUNK_MIN: usize = 48;
const STEP_PERCENT: usize = 125;
/// More than there are threads in any experiment, so that few meet.
const SHARDS: usize = 16;
/// Pages that each shard may have at least: one for each of the few sizes that a workload has at a
/// time.
const PAGES_MIN: usize = 8;

/// Where an object is.
#[derive(Clone, Copy)]
struct Place {
    class: u8,
    chunk: u32,
}

/// What is known of a chunk.
struct Chunk {
    key: u64,
    length: u32,
    used: bool,
    /// Read or overwritten since the hand passed. A new one is not: it is far from the hand.
    touched: bool,
}

/// All chunks of one size.
struct Class {
    size: usize,
    pages: Vec<Box<[u8]>>,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    /// Where the search for something to evict goes on.
    hand: usize,
}

struct Shard {
    map: HashMap<u64, Place, RandomState>,
    classes: Vec<Class>,
    pages_left: usize,
}

/// See the module.
pub(crate) struct SlabLru {
    shards: Vec<Mutex<Shard>>,
}

impl Class {
    fn new(size: usize) -> Self {
        Self {
            size,
            pages: Vec::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            hand: 0,
        }
    }

    fn per_page(&self) -> usize {
        PAGE_BYTES / self.size
    }

    fn bytes(&mut self, chunk: u32) -> &mut [u8] {
        let (page, at) = (
            chunk as usize / self.per_page(),
            chunk as usize % self.per_page(),
        );
        &mut self.pages[page][at * self.size..(at + 1) * self.size]
    }

    fn add_page(&mut self) {
        // Zeros from the system: not touched before they are used.
        self.pages.push(vec![0; PAGE_BYTES].into());
        let first = self.chunks.len();
        let count = self.per_page();
        self.chunks.extend((0..count).map(|_| Chunk {
            key: 0,
            length: 0,
            used: false,
            touched: false,
        }));
        self.free
            .extend((first..first + count).rev().map(|chunk| chunk as u32));
    }

    /// The next chunk in use that was not touched for a round.
    fn victim(&mut self) -> Option<u32> {
        for _ in 0..2 * self.chunks.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.chunks.len();
            let chunk = &mut self.chunks[at];
            if chunk.used && !std::mem::take(&mut chunk.touched) {
                return Some(at as u32);
            }
        }
        None
    }
}

impl Shard {
    fn new(objects: usize, pages: usize) -> Self {
        let sizes = std::iter::successors(Some(CHUNK_MIN), |size| {
            Some((size * STEP_PERCENT / 100).next_multiple_of(8))
        });
        let mut classes: Vec<Class> = sizes
            .take_while(|&size| size < VALUE_MAX / 2)
            .map(Class::new)
            .collect();
        classes.push(Class::new(VALUE_MAX));
        Self {
            map: HashMap::with_capacity_and_hasher(objects, RandomState::default()),
            classes,
            pages_left: pages,
        }
    }

    /// A chunk of a class; `None` when the memory is full and the class has nothing to evict.
    fn take(&mut self, class: usize) -> Option<u32> {
        let of = &mut self.classes[class];
        if of.free.is_empty() && self.pages_left > 0 {
            self.pages_left -= 1;
            of.add_page();
        }
        if let Some(chunk) = of.free.pop() {
            return Some(chunk);
        }
        let victim = of.victim()?;
        self.map.remove(&of.chunks[victim as usize].key);
        Some(victim)
    }

    fn give_back(&mut self, place: Place) {
        let class = &mut self.classes[usize::from(place.class)];
        class.chunks[place.chunk as usize].used = false;
        class.free.push(place.chunk);
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        let class = self
            .classes
            .partition_point(|class| class.size < value.len());
        if class == self.classes.len() {
            return Err(Refusal::Fatal("the value is larger than a page".into()));
        }
        let (place, touched) = match self.map.get(&key).copied() {
            // memcached overwrites what fits; so do we.
            Some(place) if usize::from(place.class) == class => (place, true),
            old => {
                if let Some(old) = old {
                    self.map.remove(&key);
                    self.give_back(old);
                }
                let chunk = self.take(class).ok_or(Refusal::Fatal(
                    "no page is left for this size, and nothing of it can be evicted".into(),
                ))?;
                let place = Place {
                    class: class as u8,
                    chunk,
                };
                self.map.insert(key, place);
                (place, false)
            }
        };
        let class = &mut self.classes[class];
        class.bytes(place.chunk)[..value.len()].copy_from_slice(value);
        class.chunks[place.chunk as usize] = Chunk {
            key,
            length: value.len() as u32,
            used: true,
            touched,
        };
        Ok(())
    }

    fn get(&mut self, key: u64, into: &mut Vec<u8>) -> bool {
        into.clear();
        let Some(&place) = self.map.get(&key) else {
            return false;
        };
        let class = &mut self.classes[usize::from(place.class)];
        let chunk = &mut class.chunks[place.chunk as usize];
        chunk.touched = true;
        let length = chunk.length as usize;
        into.extend_from_slice(&class.bytes(place.chunk)[..length]);
        true
    }
}

impl SlabLru {
    /// A store of `bytes` bytes in pages, sized for `objects` objects.
    pub(crate) fn new(objects: u64, bytes: u64) -> Self {
        let pages = (bytes as usize / PAGE_BYTES / SHARDS).max(PAGES_MIN);
        let objects = objects as usize / SHARDS;
        let shard = |_| Mutex::new(Shard::new(objects, pages));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
        }
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // Keys are dense numbers: stirred, or neighbours would meet.
        let at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS;
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyValue for SlabLru {
    #[inline]
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
        self.shard(key).get(key, into)
    }

    #[inline]
    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        self.shard(key).put(key, value)
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        let mut shard = self.shard(key);
        let found = shard.map.remove(&key);
        if let Some(place) = found {
            shard.give_back(place);
        }
        Ok(found.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_load::Random;
    use std::collections::BTreeMap;

    #[test]
    fn it_holds_what_a_map_holds() {
        let (slab, mut model) = (SlabLru::new(1000, 1 << 30), BTreeMap::new());
        let mut random = Random::new(1, 0);
        let mut into = Vec::new();
        for _ in 0..50_000 {
            let key = random.below(1000);
            match random.below(4) {
                0 => assert_eq!(slab.delete(key), Ok(model.remove(&key).is_some())),
                1 => {
                    let length = random.below(3000) as usize;
                    let value = random.bytes(length);
                    slab.put(key, &value).unwrap();
                    model.insert(key, value);
                }
                _ => {
                    assert_eq!(slab.get(key, &mut into), model.contains_key(&key));
                    if let Some(value) = model.get(&key) {
                        assert_eq!(&into, value);
                    }
                }
            }
        }
        let large = vec![3; VALUE_MAX];
        slab.put(7, &large).unwrap();
        assert!(slab.get(7, &mut into) && into == large);
    }

    #[test]
    fn what_was_not_used_for_long_makes_room() {
        let slab = SlabLru::new(0, 0);
        let room = (SHARDS * PAGES_MIN * PAGE_BYTES / 1000) as u64;
        let (value, mut into) = ([1; 900], Vec::new());
        for key in 0..2 * room {
            slab.put(key, &value).unwrap();
            // In use all the time.
            assert!(key < 100 || slab.get(key % 100, &mut into), "{key}");
        }
        let kept = (0..2 * room)
            .filter(|&key| slab.get(key, &mut into))
            .count();
        assert!(
            (kept as u64) < room && kept as u64 > room / 2,
            "{kept} of {room}"
        );
        let newest = (2 * room - 100..2 * room).filter(|&key| slab.get(key, &mut into));
        assert!(newest.count() > 90);
    }
}
