//! Our store as a contestant.

use super::disk::{Meter, SimulatedDisk};
use super::{
    Copying, Disk, Epochs, HeadChoice, Holdings, KeyValue, Kind, Refusal, Setup, TOGETHER,
    Tombstones, refused,
};
use crate::error::ExperimentError;
use core::cell::Cell;
use pluvio_store::{
    Cleaning, CopyMethod, EpochKind, Experiments, Size, Store, StoreError, Table, UpdatePolicy,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Live objects may take this much: the utilization is that of the experiment, not of the limit.
const LIVE_PERCENT_MAX: u32 = 98;
/// With a disk, a thread waits for it after this many bytes of values. Clients of a server also
/// have some writes under way, and wait for the oldest (in [LSM-DRAM §8.1], ten requests of 75
/// writes).
const UNSYNCED_MAX: usize = 256 << 10;

thread_local! {
    /// Bytes that the thread wrote since it waited for the disk.
    static UNSYNCED: Cell<usize> = const { Cell::new(0) };
}

/// The store with its one table.
pub(crate) struct Ours {
    store: Store,
    table: Table,
    disk: Option<Arc<Meter>>,
}

impl Ours {
    pub(crate) fn open(setup: &Setup) -> Result<Self, ExperimentError> {
        let experiments = Experiments {
            cleaning: match setup.two_level {
                true => Cleaning::TwoLevel,
                false => Cleaning::OneLevel,
            },
            epochs: match setup.epochs {
                Epochs::Counter => EpochKind::Counter,
                Epochs::SharedCounter => EpochKind::SharedCounter,
                Epochs::Tsc => EpochKind::Tsc,
            },
            head_choice: match setup.head_choice {
                HeadChoice::ByProcessor => pluvio_store::HeadChoice::ByProcessor,
                HeadChoice::Random => pluvio_store::HeadChoice::Random,
                HeadChoice::ByHash => pluvio_store::HeadChoice::ByHash,
            },
            copy: match setup.copying {
                Copying::Library => CopyMethod::Library,
                Copying::Streaming => CopyMethod::Streaming,
                Copying::StringMove => CopyMethod::StringMove,
            },
            segment_size: setup.segment.map(Size),
            tombstones: match (setup.disk, setup.tombstones) {
                (Disk::None, _) | (_, Tombstones::Deletes) => pluvio_store::Tombstones::Deletes,
                (_, Tombstones::Every) => pluvio_store::Tombstones::Every,
            },
            ..Experiments::default()
        };
        let mut builder = Store::builder()
            .memory(Size(setup.memory))
            .cleaner_threads(setup.cleaner_threads)
            .live_percent_max(LIVE_PERCENT_MAX)
            .populate(setup.populate)
            .experiments(experiments)
            .update(match setup.kind == Kind::PluvioInPlace {
                true => UpdatePolicy::InPlace,
                false => UpdatePolicy::Append,
            });
        if let Some(heads) = setup.heads {
            builder = builder.heads(heads);
        }
        let meter = Arc::<Meter>::default();
        let disk = SimulatedDisk::new(setup.disk, &meter);
        let has_disk = disk.is_some();
        if let Some(disk) = disk {
            builder = builder.sink(disk);
        }
        let failed = |problem: String| refused(setup.kind, problem);
        let store = builder.build().map_err(|error| failed(error.to_string()))?;
        let table = store
            .create_table("bench")
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            store,
            table,
            disk: has_disk.then_some(meter),
        })
    }

    /// Waits for the disk when this thread is far enough ahead of it.
    fn keep_pace(&self, written: usize) -> Result<(), Refusal> {
        let unsynced = UNSYNCED.get() + written;
        UNSYNCED.set(unsynced);
        if unsynced < UNSYNCED_MAX {
            return Ok(());
        }
        UNSYNCED.set(0);
        let synced = self.store.sync();
        synced.map_err(|error| Refusal::Fatal(error.to_string()))
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
            Ok(_) if self.disk.is_some() => self.keep_pace(value.len()),
            Ok(_) => Ok(()),
            Err(error) => Err(refusal(error)),
        }
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        self.table.delete(&key.to_le_bytes()).map_err(refusal)
    }

    fn get_batch(&self, keys: &[u64], into: &mut Vec<u8>, see: &mut dyn FnMut(u64, Option<&[u8]>)) {
        for keys in keys.chunks(TOGETHER) {
            let bytes: [[u8; 8]; TOGETHER] =
                core::array::from_fn(|at| keys.get(at).map_or([0; 8], |key| key.to_le_bytes()));
            let slices: [&[u8]; TOGETHER] = core::array::from_fn(|at| bytes[at].as_slice());
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

    fn put_batch(&self, pairs: &[(u64, &[u8])]) -> Result<(), (usize, Refusal)> {
        let keys: [[u8; 8]; TOGETHER] =
            core::array::from_fn(|at| pairs.get(at).map_or([0; 8], |(key, _)| key.to_le_bytes()));
        let bytes: [(&[u8], &[u8]); TOGETHER] = core::array::from_fn(|at| {
            let value = pairs.get(at).map(|(_, value)| *value);
            (keys[at].as_slice(), value.unwrap_or_default())
        });
        let put = self.table.put_batch(&bytes[..pairs.len()]);
        put.map_err(|(stored, error)| (stored, refusal(error)))?;
        if self.disk.is_some()
            && let Some(last) = pairs.len().checked_sub(1)
        {
            let written: usize = pairs.iter().map(|(_, value)| value.len()).sum();
            self.keep_pace(written).map_err(|fatal| (last, fatal))?;
        }
        Ok(())
    }

    fn begin(&self, measured: bool) {
        if let Some(meter) = &self.disk {
            meter.limited.store(measured, Ordering::Relaxed);
        }
    }

    fn gives_back_by_itself(&self) -> bool {
        true
    }

    fn counts(&self) -> Holdings {
        let stats = self.store.stats();
        Holdings {
            resident: 0,
            objects: stats.objects,
            object_bytes: stats.object_bytes,
            live_log: stats.live_bytes,
            log_memory: stats.memory_bytes,
            live_log_max: stats.live_bytes_max,
            log_in_use: stats.log_bytes,
            log_resident: stats.log_resident_bytes,
            index: stats.index_bytes,
            moved: stats.cleaner.bytes_copied(),
            combined: stats.cleaner.bytes_moved,
            cleaned: stats.cleaner.bytes_cleaned,
            to_disk: match &self.disk {
                Some(meter) => meter.written.load(Ordering::Relaxed),
                None => 0,
            },
        }
    }
}
