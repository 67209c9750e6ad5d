//! Fault injection, for tests and simulations: memory breaks as hardware would break it. No product
//! code calls it.

use super::LogSpace;
use pluvio_units::EntryRef;

impl LogSpace {
    /// Forgets of everything that it is known to be dead, as if all bits that say so had been lost
    /// (LOG-15). The cleaner then has to ask the index. For tests.
    pub fn lose_dead_bits(&self) {
        self.memory().lose_dead();
    }

    /// From now on the system refuses pages for seglets that have none, or does not, where other
    /// processes may read (R4). For tests.
    pub fn refuse_pages(&self, refuses: bool) {
        self.storage().seglets.refuse_pages(refuses);
    }

    /// Turns over a bit of log memory, as a cosmic ray would: bit `bit` from the first byte of
    /// `entry` on. For simulations. The bytes of entries never change otherwise (LOG-1), so nobody
    /// may have a view of them. Gives false, and does nothing, while anybody holds a guard. The
    /// caller sees to it that no other thread uses the log meanwhile.
    pub fn flip_bit(&self, entry: EntryRef, bit: u32) -> bool {
        let epochs = self.memory().epochs();
        let nobody_reads = epochs.is_quiesced(epochs.retire_epoch());
        if nobody_reads {
            self.memory().raw().flip_bit(entry, bit);
        }
        nobody_reads
    }
}
