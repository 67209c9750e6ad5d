//! What other processes of this machine may read in memory (`docs/mapped-reads.md`).
//!
//! Only tablets that are simply served: one that stands on a crashed server is judged by a time of
//! its own, and is asked for by RPC.

use crate::master::Master;
use crate::tablets::{TabletMap, TabletPhase};
use pluvio_store::GatePage;
use pluvio_store::{ReadableMap, ReadableTable};
use std::time::Duration;

impl TabletPhase {
    /// Whether other processes may read the tablet in memory.
    fn is_read(self) -> bool {
        match self {
            Self::Serving | Self::Copying => true,
            Self::Standing | Self::Recovering | Self::Frozen | Self::Left => false,
        }
    }
}

impl TabletMap {
    /// What may be read under the version that the gate has.
    fn readable(&self, gate: &GatePage) -> ReadableMap {
        self.unchanged(|map| {
            let tables = map.values().filter_map(|local| {
                let tablets = local.tablets.iter().filter(|t| t.phase.is_read());
                let served: Vec<_> = tablets.map(|t| t.range).collect();
                let is_any = !served.is_empty();
                ReadableTable::of(&local.table, "", served).filter(|_| is_any)
            });
            ReadableMap {
                version: gate.version(),
                tables: tables.collect(),
            }
        })
    }
}

impl Master {
    /// What other processes may read now; nothing where the store is not shared.
    #[must_use]
    pub fn readable(&self) -> ReadableMap {
        match self.store().gate() {
            Some(gate) => self.tablets().readable(gate),
            None => ReadableMap::default(),
        }
    }

    /// How much longer this master may answer for sure, as of now (MASTER-4).
    #[must_use]
    pub fn serves_for(&self) -> Duration {
        self.serves_until().0.saturating_sub(self.env.clock.now().0)
    }
}
