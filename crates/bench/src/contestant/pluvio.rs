//! Our store as a contestant.

use super::{Holdings, KeyValue, Kind, Refusal, Setup, refused};
use crate::error::ExperimentError;
use pluvio_store::{Cleaning, EpochKind, Size, Store, StoreError, Table, UpdatePolicy};

/// Live objects may take this much: the utilization is that of the experiment, not of the limit.
const LIVE_PERCENT_MAX: u32 = 95;

/// The store with its one table.
pub(crate) struct Ours {
    store: Store,
    table: Table,
}

impl Ours {
    pub(crate) fn open(setup: &Setup) -> Result<Self, ExperimentError> {
        let mut builder = Store::builder()
            .memory(Size(setup.memory))
            .cleaner_threads(setup.cleaner_threads)
            .live_percent_max(LIVE_PERCENT_MAX)
            .cleaning(match setup.two_level {
                true => Cleaning::TwoLevel,
                false => Cleaning::OneLevel,
            })
            .epochs(match setup.tsc_epochs {
                true => EpochKind::Tsc,
                false => EpochKind::Counter,
            })
            .update(match setup.kind == Kind::PluvioInPlace {
                true => UpdatePolicy::InPlace,
                false => UpdatePolicy::Append,
            });
        if let Some(heads) = setup.heads {
            builder = builder.heads(heads);
        }
        let failed = |problem: String| refused(setup.kind, problem);
        let store = builder.build().map_err(|error| failed(error.to_string()))?;
        let table = store
            .create_table("bench")
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { store, table })
    }
}

fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::Full { retry_after } => Refusal::Full(retry_after),
        other => Refusal::Fatal(other.to_string()),
    }
}

impl KeyValue for Ours {
    #[inline]
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
        self.table.get_into(&key.to_le_bytes(), into)
    }

    #[inline]
    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        match self.table.put(&key.to_le_bytes(), value) {
            Ok(_) => Ok(()),
            Err(error) => Err(refusal(error)),
        }
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        self.table.delete(&key.to_le_bytes()).map_err(refusal)
    }

    fn get_batch(&self, keys: &[u64], into: &mut Vec<u8>, see: &mut dyn FnMut(u64, Option<&[u8]>)) {
        /// Keys asked for together; larger batches are cut.
        const TOGETHER: usize = 64;
        for keys in keys.chunks(TOGETHER) {
            let mut bytes = [[0; 8]; TOGETHER];
            let mut slices: [&[u8]; TOGETHER] = [&[]; TOGETHER];
            for (bytes, key) in bytes.iter_mut().zip(keys) {
                *bytes = key.to_le_bytes();
            }
            for (slice, bytes) in slices.iter_mut().zip(&bytes) {
                *slice = bytes;
            }
            self.table.get_batch(&slices[..keys.len()], |at, value| {
                // Copied, as the others do, though the value could be used where it lies.
                let copied = value.map(|value| {
                    into.clear();
                    into.extend_from_slice(value);
                    into.as_slice()
                });
                see(keys[at], copied);
            });
        }
    }

    fn counts(&self) -> Holdings {
        let stats = self.store.stats();
        Holdings {
            resident: 0,
            objects: stats.objects,
            live_log: stats.live_bytes,
            log_memory: stats.memory_bytes,
            index: stats.index_bytes,
            moved: stats.cleaner.bytes_copied(),
            combined: stats.cleaner.bytes_moved,
            cleaned: stats.cleaner.bytes_cleaned,
        }
    }
}
