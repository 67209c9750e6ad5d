//! A bit of an object that turns over in memory, and looking for such: for simulations.

use crate::engine::Engine;
use crate::table::EngineTable;
use pluvio_format::{Entry, EntryHead};
use pluvio_units::{EntryRef, HashRange, Rank, SEGLET_BYTES};

/// Stretches of an index that are looked at until an object is found.
const TRIES: u32 = 64;
/// Bytes of objects that are looked at together.
const LOOK_BYTES: usize = 1 << 20;
const CHECKSUM_BITS: u32 = 32;

/// Bits of a kind byte that make another kind of an object's than there is, or padding: whoever
/// meets it sees that. The bits for graves and a deadline are not among them: they change what the
/// body means.
const NO_KIND_BITS: [u32; 3] = [0, 3, 4];
/// The bit of a kind byte that says that the group goes on.
const GROUP_BIT: u32 = 7;

impl Engine {
    /// Turns over a bit in the header of an object that is durable; `below` draws a number below
    /// another one. It is a bit that nobody takes for something else: of the kind, which whoever
    /// reads the object sees at once, or of what readers do not look at, and who copies the object
    /// does (`docs/log.md`, Weaknesses). Gives false, and does nothing, when no such object was
    /// found.
    ///
    /// For simulations: nobody else may use the store meanwhile.
    pub fn flip_bit(&self, mut below: impl FnMut(u64) -> u64) -> bool {
        let tables = self.tables.all();
        if tables.is_empty() {
            return false;
        }
        let table = &tables[below(tables.len() as u64) as usize];
        let Some((entry, head)) = self.some_durable_object(table, &mut below) else {
            return false;
        };
        let bit = if below(2) == 0 {
            NO_KIND_BITS[below(NO_KIND_BITS.len() as u64) as usize]
        } else {
            match below(u64::from(CHECKSUM_BITS) + 1) as u32 {
                CHECKSUM_BITS => GROUP_BIT,
                bit => head.header_len as u32 * 8 - CHECKSUM_BITS + bit,
            }
        };
        self.space.flip_bit(entry, bit)
    }

    fn some_durable_object(
        &self,
        table: &EngineTable,
        below: &mut impl FnMut(u64) -> u64,
    ) -> Option<(EntryRef, EntryHead)> {
        let mut from = Rank(below(u64::MAX));
        let guard = self.space.pin();
        for _ in 0..TRIES {
            let mut slots = Vec::new();
            let last = table.indexes.scan(HashRange::ALL, from, &mut slots);
            let durable = slots.iter().filter_map(|slot| {
                // One that is broken already is left to others.
                let view = self.space.entry(slot.entry, &guard).ok()?;
                let is_durable = self.pending(*slot, view.total_len(), &guard).is_none();
                let is_object = matches!(view.entry(), Entry::Object(_));
                let head = EntryHead::read(view.bytes()).ok()?;
                // The bits are counted from the entry on: not across the end of its seglet.
                let left = SEGLET_BYTES - slot.entry.offset() as usize % SEGLET_BYTES;
                let is_whole = head.header_len <= left;
                (is_durable && is_object && is_whole).then_some((slot.entry, head))
            });
            let durable: Vec<_> = durable.collect();
            if !durable.is_empty() {
                return Some(durable[below(durable.len() as u64) as usize]);
            }
            from = Rank(last.0.wrapping_add(1));
        }
        None
    }

    /// Compares every object with its checksum, as who copies it does. What is corrupt stops the
    /// process (STORE-4). Takes long, and all the time of its thread.
    pub fn compare_checksums(&self) {
        for table in self.tables.all() {
            let mut next = Some(Rank(0));
            while let Some(from) = next {
                let copied = self.copy_objects(&table, HashRange::ALL, from, LOOK_BYTES);
                next = copied.next;
            }
        }
    }
}
