//! Memory that does not hold what was written to it: what is done when that is found, and, for
//! simulations, a bit that turns over.

use crate::error::{Corruption, CorruptionHook, Fatal};
use crate::space::LogSpace;
use pluvio_units::EntryRef;

impl LogSpace {
    /// Sets what is done when memory is found to be corrupt; only the first call counts. Without,
    /// the process stops at once ([`Fatal::corrupt`]).
    ///
    /// For simulations, in which many servers share one process: the hook ends the server, and what
    /// is still computed on its behalf must reach nobody. It is called by whoever finds the
    /// corruption, who may hold locks: it must not call the log.
    pub fn set_corruption_hook(&self, hook: CorruptionHook) {
        let _first_one_counts = self.corruption_hook.set(hook);
    }

    /// Memory was found to be corrupt: the process must stop. Returns only where a hook was set
    /// that does.
    #[cold]
    pub fn found_corrupt(&self, corruption: &Corruption) {
        pluvio_units::mark("memory-corrupt-server-ends");
        match self.corruption_hook.get() {
            Some(hook) => hook(corruption),
            None => Fatal::corrupt(corruption),
        }
    }

    /// Forgets of everything that it is known to be dead, as if all bits that say so had been lost
    /// (LOG-15): the cleaner has to ask the index. For tests.
    pub fn lose_dead_bits(&self) {
        self.memory.lose_dead();
    }

    /// Turns over a bit of log memory, as a cosmic ray would: bit `bit` from the first byte of
    /// `entry` on. For simulations. The bytes of entries never change otherwise (LOG-1), so nobody
    /// may have a view of them: gives false, and does nothing, while a guard is held by anybody.
    /// The caller sees to it that no other thread uses the log meanwhile.
    pub fn flip_bit(&self, entry: EntryRef, bit: u32) -> bool {
        let epochs = self.memory.epochs();
        let nobody_reads = epochs.is_quiesced(epochs.retire_epoch());
        if nobody_reads {
            self.memory.flip_bit(entry, bit);
        }
        nobody_reads
    }
}
