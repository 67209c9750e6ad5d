//! Memory that does not hold what was written to it: what is done when that is found.

use super::LogSpace;
use crate::error::{Corruption, CorruptionHook, Fatal};

impl LogSpace {
    /// Sets what is done when memory is found to be corrupt; only the first call counts. Without,
    /// the process stops at once ([`Fatal::corrupt`]).
    ///
    /// For simulations, in which many servers share one process: the hook ends the server, and what
    /// is still computed on its behalf must reach nobody. The caller that found the corruption
    /// may hold locks: the hook must not call the log.
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
}
