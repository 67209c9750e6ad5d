//! Lookups by another process, which has the index's memory mapped to be read.
//!
//! The steps are those of [`Table::lookup`](crate::table::Table) and
//! [`Table::read_all`](crate::table::Table), which say why a result is right. They differ in what
//! they believe: any word may be rubbish, because the owner may have died in the middle of
//! anything. So every number is checked before it is used, and every loop ends.
//!
//! Invariants:
//! - X6: whatever the memory holds, a lookup ends, and reads nothing outside of it.
//!
//! Threads: any. The caller sees afterwards whether the memory was used again meanwhile
//! ([`pluvio_memory::GateView::check`]).

use crate::index::Index;
use crate::slot::{self, Slot};
use crate::spread::{Address, Spread};
use crate::table::{MOVING, Table, next_of, reach_of, unmoved};
use crate::words::Lines;
use pluvio_memory::{CACHE_LINE_BYTES, ReadRegion, SharedMemoryError, WordRegion};
use pluvio_units::{HashKind, HashRange, KeyHash};
use rustix::fd::BorrowedFd;

/// Views of a block that a lookup without a result takes before it gives up. Others change a block
/// within a microsecond, unless they are preempted in the middle.
const ATTEMPTS_MAX: u32 = 64;

/// Most overflow lines of one block that are looked at. Only chosen keys make such chains.
const CHAIN_MAX: u32 = 1 << 12;

const BLOCK_LOG: u32 = <WordRegion as Lines>::BLOCK_LOG;

/// How an index lies in its memory: what a reader needs beside the memory itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexLayout {
    /// Its number: no other index of its process has, had or will have the same one.
    pub id: u64,
    /// Bytes of its memory.
    pub bytes: u64,
    /// The least number of lines.
    pub lines_min: u64,
    /// The most.
    pub lines_max: u64,
    /// The range of hashes it is made for.
    pub expected: HashRange,
    /// How they are made.
    pub kind: HashKind,
}

/// An index of another process.
#[derive(Debug)]
pub struct IndexReader {
    memory: ReadRegion,
    layout: IndexLayout,
    first_line: u64,
    /// Overflow lines have numbers from 1 to this.
    overflow_max: u64,
    spread: Spread,
}

/// What a lookup has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The taken result.
    Found(T),
    /// There is no entry.
    Absent,
    /// Others were changing its block all the time.
    Busy,
    /// The memory holds what no index holds.
    Broken,
}

impl Index {
    /// The layout and the file of an index for readers; `None` of others.
    #[must_use]
    pub fn for_readers(&self) -> Option<(IndexLayout, BorrowedFd<'_>)> {
        let file = self.table.memory.memfd()?;
        let layout = IndexLayout {
            id: self.id,
            bytes: self.table.memory.len(),
            lines_min: self.table.lines_min,
            lines_max: self.table.lines_max,
            expected: self.spread.expected(),
            kind: self.spread.kind(),
        };
        Some((layout, file))
    }
}

impl IndexReader {
    /// Maps an index of another process.
    ///
    /// # Errors
    /// As of [`ReadRegion::open`], and [`SharedMemoryError::Unfit`] for a layout that is none.
    pub fn open(file: BorrowedFd<'_>, layout: IndexLayout) -> Result<Self, SharedMemoryError> {
        let unfit = SharedMemoryError::Unfit("an index of another layout");
        let count = layout.bytes / CACHE_LINE_BYTES;
        let is_possible = (1 << BLOCK_LOG..=layout.lines_max).contains(&layout.lines_min)
            && layout.lines_max < count
            && layout.expected.first <= layout.expected.last;
        if !is_possible {
            return Err(unfit);
        }
        let first_line = Table::<WordRegion>::first_line(layout.lines_max);
        let lines_end = first_line + layout.lines_max;
        let Some(overflow_max) = count.checked_sub(lines_end).filter(|max| *max > 0) else {
            return Err(unfit);
        };
        Ok(Self {
            memory: ReadRegion::open(file, layout.bytes)?,
            layout,
            first_line,
            overflow_max,
            spread: Spread::new(layout.expected, layout.kind),
        })
    }

    /// The result of `take` for the entry with this hash. It is asked about slots with the right
    /// tag until it gives something, possibly more than once about the same one.
    #[inline]
    pub fn lookup<T>(&self, hash: KeyHash, mut take: impl FnMut(Slot) -> Option<T>) -> Lookup<T> {
        let place = self.spread.place(hash);
        let Some(address) = self.address(place) else {
            return Lookup::Broken;
        };
        match self.line(&address, 0) {
            Some(home) => match see(&home, address.tag, &mut take) {
                Some(taken) => Lookup::Found(taken),
                None => self.lookup_away(place, &mut take),
            },
            None => Lookup::Broken,
        }
    }

    /// Asks for the home of `hash` to come near.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        if let Some(address) = self.address(self.spread.place(hash)) {
            let line = self.first_line + address.block.line(address.home);
            self.memory.prefetch(line * CACHE_LINE_BYTES);
        }
    }

    /// [`Self::lookup`] for an entry that is behind its home, or missing.
    #[inline(never)]
    fn lookup_away<T>(&self, place: u64, take: &mut impl FnMut(Slot) -> Option<T>) -> Lookup<T> {
        for _attempt in 0..ATTEMPTS_MAX {
            match self.view(place, take) {
                Lookup::Busy => core::hint::spin_loop(),
                known => return known,
            }
        }
        Lookup::Busy
    }

    /// One view of all slots where an entry of `place` can be; `Busy` if it is not complete.
    fn view<T>(&self, place: u64, take: &mut impl FnMut(Slot) -> Option<T>) -> Lookup<T> {
        let Some(address) = self.address(place) else {
            return Lookup::Broken;
        };
        let head_at = self.head_at(&address);
        let heads = self.memory.load(head_at);
        let reaches = self.memory.load(head_at + 8);
        let (Some(head), Some(reaches)) = (heads, reaches) else {
            return Lookup::Broken;
        };
        let reach = reach_of(reaches, address.home).min(address.block.lines - 1);
        for step in 0..=reach {
            let Some(line) = self.line(&address, step) else {
                return Lookup::Broken;
            };
            if let Some(taken) = see(&line, address.tag, take) {
                return Lookup::Found(taken);
            }
        }
        let is_unmoved = || {
            self.memory
                .load(head_at)
                .is_some_and(|now| unmoved(head, now))
        };
        let mut next = next_of(head);
        let mut lines = 0;
        while next != 0 {
            if !is_unmoved() {
                return Lookup::Busy;
            }
            lines += 1;
            if lines > CHAIN_MAX {
                return Lookup::Busy;
            }
            let Some([link, slots @ ..]) = self.overflow_line(next) else {
                return match is_unmoved() {
                    true => Lookup::Broken,
                    false => Lookup::Busy,
                };
            };
            if let Some(taken) = see(&slots, address.tag, take) {
                return Lookup::Found(taken);
            }
            next = next_of(link);
        }
        // The number of lines, then the head, as in `Table::read_all`.
        let is_same = self.address(place) == Some(address);
        match is_same && head & MOVING == 0 && is_unmoved() {
            true => Lookup::Absent,
            false => Lookup::Busy,
        }
    }

    #[inline(always)]
    fn address(&self, place: u64) -> Option<Address> {
        let lines = self.memory.load(0)?;
        let possible = self.layout.lines_min..=self.layout.lines_max;
        possible
            .contains(&lines)
            .then(|| Address::of(place, lines, BLOCK_LOG))
    }

    #[inline(always)]
    fn head_at(&self, address: &Address) -> u64 {
        let (line, at) = Table::<WordRegion>::head_place(address.block.number);
        line * CACHE_LINE_BYTES + at * 8
    }

    /// The line `step` behind the home of an address.
    #[inline(always)]
    fn line(&self, address: &Address, step: u64) -> Option<[u64; 8]> {
        let line = address.block.behind(address.home, step);
        let number = self.first_line + address.block.line(line);
        self.memory.load_line(number * CACHE_LINE_BYTES)
    }

    fn overflow_line(&self, number: u64) -> Option<[u64; 8]> {
        if !(1..=self.overflow_max).contains(&number) {
            return None;
        }
        let line = self.layout.bytes / CACHE_LINE_BYTES - number;
        self.memory.load_line(line * CACHE_LINE_BYTES)
    }
}

#[inline(always)]
fn see<T>(words: &[u64], tag: u64, take: &mut impl FnMut(Slot) -> Option<T>) -> Option<T> {
    let mut tagged = words.iter().filter(|word| slot::has_tag(**word, tag));
    tagged.find_map(|word| take(Slot::of(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IndexOptions;
    use crate::tests::{copy_of, hash_of_key, key_of};
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use pluvio_memory::{GatePage, GateView, GraceClock, NodeSet, ReclaimEpochs};
    use std::sync::Arc;

    fn index(entries_max: u64) -> Index {
        let options = IndexOptions {
            entries_max,
            expected: HashRange::ALL,
            kind: HashKind::Seeded,
            huge_pages: false,
            nodes: NodeSet::EMPTY,
        };
        Index::new_for_readers(options).unwrap()
    }

    fn reader(index: &Index) -> IndexReader {
        let (layout, file) = index.for_readers().unwrap();
        IndexReader::open(file, layout).unwrap()
    }

    fn find(reader: &IndexReader, key: u64) -> Lookup<Slot> {
        reader.lookup(hash_of_key(key), |slot| {
            (key_of(slot.entry) == key).then_some(slot)
        })
    }

    #[test]
    fn a_reader_finds_what_is_there_and_nothing_else_while_the_index_grows_and_shrinks() {
        let (index, epochs) = (index(100_000), ReclaimEpochs::new(4).unwrap());
        let reader = reader(&index);
        let resize = || {
            index.resize(&epochs.pin(), |entry| hash_of_key(key_of(entry)));
        };
        for key in 0..20_000 {
            let done = index
                .lock(hash_of_key(key))
                .insert(copy_of(key, 0), key % 2 == 0);
            done.unwrap();
            resize();
            if key % 64 == 0 {
                for known in (0..=key).step_by(37) {
                    let Lookup::Found(slot) = find(&reader, known) else {
                        panic!("key {known} of {key} is not found");
                    };
                    assert_eq!(
                        (slot.entry, slot.pending),
                        (copy_of(known, 0), known % 2 == 0)
                    );
                }
                assert_eq!(find(&reader, key + 1), Lookup::Absent);
            }
        }
        for key in 0..20_000 {
            assert!(index.lock(hash_of_key(key)).remove(copy_of(key, 0)));
            resize();
            assert_eq!(find(&reader, key), Lookup::Absent);
            if key % 64 == 0 && key < 19_900 {
                assert!(matches!(find(&reader, key + 50), Lookup::Found(_)));
            }
        }
    }

    /// Colliding keys are in chains of overflow lines.
    #[test]
    fn a_reader_follows_chains() {
        let (index, hash) = (index(1000), KeyHash(7));
        let reader = reader(&index);
        for key in 0..500 {
            index.lock(hash).insert(copy_of(key, 0), false).unwrap();
        }
        for key in 0..501 {
            let found = reader.lookup(hash, |slot| (key_of(slot.entry) == key).then_some(()));
            let expected = if key < 500 {
                Lookup::Found(())
            } else {
                Lookup::Absent
            };
            assert_eq!(found, expected);
        }
    }

    /// Keys that stay are always found, while others come and go and the index is resized. Keys
    /// that are in no entry are absent.
    #[test]
    fn a_reader_beside_writers_misses_no_key() {
        const STAY: u64 = 2_000;
        let page = GatePage::new(8).unwrap();
        let clock = GraceClock::new(core::time::Duration::default);
        let epochs = ReclaimEpochs::in_gate(&page, 8, clock);
        let gate = GateView::open(page.file(), page.bytes()).unwrap();
        let index = Arc::new(index(100_000));
        for key in 0..STAY {
            index
                .lock(hash_of_key(key))
                .insert(copy_of(key, 0), false)
                .unwrap();
        }
        let reader = reader(&index);
        let (over, absent) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut key = 0;
                while !over.load(Ordering::Relaxed) {
                    key = (key + 7) % STAY;
                    let since = gate.begin();
                    let found = find(&reader, key);
                    let missing = find(&reader, key + 1_000_000);
                    if gate.check(since, 1).is_ok() {
                        assert!(
                            matches!(found, Lookup::Found(_) | Lookup::Busy),
                            "{found:?}"
                        );
                        assert!(matches!(missing, Lookup::Absent | Lookup::Busy));
                        if missing == Lookup::Absent {
                            absent.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
            let hash_of = |entry| hash_of_key(key_of(entry));
            for _round in 0..4 {
                for key in STAY..20_000 {
                    let done = index.lock(hash_of_key(key)).insert(copy_of(key, 0), false);
                    done.unwrap();
                    index.resize(&epochs.pin(), hash_of);
                }
                for key in STAY..20_000 {
                    assert!(index.lock(hash_of_key(key)).remove(copy_of(key, 0)));
                    index.resize(&epochs.pin(), hash_of);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(absent.load(Ordering::Relaxed) > 0, "no read counted");
    }

    // shows: X6
    #[test]
    fn rubbish_in_the_memory_is_answered() {
        let index = index(1000);
        let reader = reader(&index);
        let words = (0..reader.layout.bytes / 8).map(|word| word * 8);
        let words: Vec<u64> = words.collect();
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            random ^ (random >> 31)
        };
        for round in 0..20_000 {
            for _ in 0..8 {
                let at = words[next() as usize % words.len()] % (1 << 14);
                let line = index.table.memory.line(at / 64 * 64);
                let value = match round % 3 {
                    0 => next(),
                    1 => next() >> (next() % 64),
                    _ => ((next() % 64) << 32) | (next() % 8),
                };
                line[at as usize / 8 % 8].store(value, Ordering::Relaxed);
            }
            if round % 2 == 0 {
                // A number of lines that is possible.
                index.table.memory.line(0)[0].store(16 + next() % 400, Ordering::Relaxed);
            }
            let _any = reader.lookup(KeyHash(next()), |slot| {
                (slot.entry.offset() % 5 == 0).then_some(())
            });
        }
    }

    #[test]
    fn a_layout_that_is_none_is_refused() {
        let index = index(1000);
        let (layout, file) = index.for_readers().unwrap();
        let refused = |change: &dyn Fn(&mut IndexLayout)| {
            let mut other = layout;
            change(&mut other);
            IndexReader::open(file, other).is_err()
        };
        assert!(refused(&|l| l.lines_min = 7));
        assert!(refused(&|l| l.lines_min = l.lines_max + 1));
        assert!(refused(&|l| l.lines_max = u64::MAX));
        assert!(refused(&|l| l.lines_max = l.bytes / 64 - 1));
        assert!(refused(&|l| l.bytes += 1 << 16));
        assert!(refused(&|l| l.bytes = 0));
    }
}
