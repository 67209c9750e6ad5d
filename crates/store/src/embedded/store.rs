//! The store: its tables by name, its cleaner, its numbers.

use crate::embedded::builder::{KeyHashing, StoreBuilder};
use crate::embedded::cleaning;
use crate::embedded::error::{BuildError, StoreError};
use crate::embedded::expiry::Sweep;
use crate::embedded::heads::Heads;
use crate::embedded::sink::{Deletions, Sink};
use crate::embedded::table::Table;
use crate::engine::Engine;
use crate::readers::{ReadableMap, ReadableTable};
use crate::table::{EngineTable, KeyHasher};
use pluvio_env::host::{Host, Worker};
use pluvio_log::{Cleaner, CleanerStats, Interleaving, MemoryBinding, ReplicaSink, SinkError};
use pluvio_memory::{EpochGuard, GatePage};
use pluvio_units::{HashRange, SEGLET_BYTES, TableId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store inside this process; see the module's text. Cloning gives another handle of the same
/// store.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

/// What all handles share. Fields are dropped in their order: first the sink's thread, which has
/// handles of the cleaners', then those (EMBED-2).
pub(crate) struct Shared {
    pub(crate) sink: Option<Sink>,
    cleaners: Arc<[Worker]>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) heads: Heads,
    pub(crate) limits: Limits,
    cleaner: Arc<Cleaner>,
    sweep: Arc<Sweep>,
    host: Arc<dyn Host>,
    names: Mutex<Names>,
}

/// What works beside the callers' threads.
pub(crate) struct Workers {
    pub cleaner: Arc<Cleaner>,
    pub cleaner_threads: u16,
    /// The processors of each part of the memory, where it is divided.
    pub near: Vec<Vec<usize>>,
    pub sink: Option<Box<dyn ReplicaSink>>,
}

#[derive(Default)]
struct Names {
    tables: BTreeMap<String, Arc<EngineTable>>,
    last_id: u64,
}

/// What is taken, and how it is hashed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub key_max: usize,
    pub value_max: usize,
    pub hashing: KeyHashing,
}

/// Sizes and counts of a store. A snapshot: its parts are read one after the other.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StoreStats {
    /// Objects in all tables. One that has expired counts until it is dropped, a second later as a
    /// rule.
    pub objects: u64,
    /// Objects dropped since the start because their deadlines were past.
    pub expired: u64,
    /// Bytes of their keys and values.
    pub object_bytes: u64,
    /// Bytes live objects take in the log, headers included.
    pub live_bytes: u64,
    /// Most that they may take.
    pub live_bytes_max: u64,
    /// Bytes of log memory in use, live or dead.
    pub log_bytes: u64,
    /// Bytes of log memory that were ever touched and not given back, in use or not.
    pub log_resident_bytes: u64,
    /// Bytes of all indexes: memory touched and not given back.
    pub index_bytes: u64,
    /// Entries the indexes have slots for.
    pub index_slots: u64,
    /// Overflow lines of the longest chain that an index of a present table ever had. A few while
    /// keys are spread evenly; many say that keys were chosen to collide (see
    /// [`KeyHashing::Keyed`]), and make operations on these slow.
    pub index_longest_chain: u64,
    /// Memory that was ever touched and not given back: log, indexes and tables.
    pub resident_bytes: u64,
    /// Log memory that is free for appends.
    pub free_bytes: u64,
    /// Log memory, reserves included: the builder's option.
    pub memory_bytes: u64,
    /// Number of heads.
    pub heads: u16,
    /// Memory nodes that the log memory is divided among.
    pub memory_nodes: u16,
    /// Whether each node's part lies on it.
    pub binding: MemoryBinding,
    /// Whether the log's tables are interleaved over the memory nodes. Indexes are asked for in the
    /// same way, table by table.
    pub interleaving: Interleaving,
    /// Bytes of log memory that heads of one node took from another one's part since the start,
    /// because their own had none.
    pub away_bytes: u64,
    /// Guards made since the start by threads that found no epoch slot free: each call of such a
    /// thread makes one or two, and waits for a mutex to do it. If it grows while the program runs,
    /// [`StoreBuilder::threads_max`] is too small.
    pub pins_without_slot: u64,
    /// Bytes of the log at the sink, open segments counted as full; 0 without a sink.
    pub sink_bytes: u64,
    /// The cleaner's work.
    pub cleaner: CleanerStats,
}

impl StoreStats {
    /// Bytes of index that one object takes; `None` when there are none.
    #[must_use]
    pub fn index_bytes_per_object(&self) -> Option<f64> {
        (self.objects > 0).then(|| self.index_bytes as f64 / self.objects as f64)
    }

    /// How full the slots of the indexes are, from 0 to 1; more when hashes collide. `None` when
    /// there are no tables.
    #[must_use]
    pub fn index_load(&self) -> Option<f64> {
        (self.index_slots > 0).then(|| self.objects as f64 / self.index_slots as f64)
    }
}

/// Keeps what was borrowed from a store readable. Hold it briefly: no memory is reclaimed
/// meanwhile. It stays in its thread.
#[derive(Debug)]
pub struct StoreGuard<'a>(pub(crate) EpochGuard<'a>);

impl Store {
    /// The options of a new store.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    pub(crate) fn start(
        engine: Arc<Engine>,
        heads: Heads,
        limits: Limits,
        host: Arc<dyn Host>,
        workers: Workers,
    ) -> Result<Self, BuildError> {
        let cleaner = workers.cleaner;
        let deletions = Arc::<Deletions>::default();
        let sweep = Arc::new(Sweep::start(&engine, &host, &deletions));
        let (threads, near) = (workers.cleaner_threads, &workers.near);
        let cleaners: Arc<[Worker]> =
            cleaning::start(&cleaner, &sweep, &host, threads, near)?.into();
        let sink = workers
            .sink
            .map(|sink| Sink::start(&engine, &host, sink, Arc::clone(&cleaners), deletions))
            .transpose()?;
        let shared = Shared {
            sink,
            cleaners,
            engine,
            heads,
            limits,
            cleaner,
            sweep,
            host,
            names: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Makes a table.
    ///
    /// # Errors
    /// [`StoreError::TableExists`], [`StoreError::NoTable`].
    pub fn create_table(&self, name: &str) -> Result<Table, StoreError> {
        let mut names = self.shared.names();
        if names.tables.contains_key(name) {
            return Err(StoreError::TableExists(name.into()));
        }
        let id = TableId(names.last_id + 1);
        let hasher = match self.shared.limits.hashing {
            KeyHashing::Fast => KeyHasher::Fixed(self.shared.host.random().into()),
            KeyHashing::Keyed => KeyHasher::keyed(),
        };
        let engine_table = self.shared.engine.create_whole_table(id, hasher)?;
        names.last_id = id.0;
        names.tables.insert(name.into(), Arc::clone(&engine_table));
        self.shared.map_changes();
        Ok(Table::new(&self.shared, engine_table, name))
    }

    /// The table with this name.
    ///
    /// # Errors
    /// [`StoreError::UnknownTable`].
    pub fn table(&self, name: &str) -> Result<Table, StoreError> {
        let found = self.shared.names().tables.get(name).cloned();
        let found = found.ok_or_else(|| StoreError::UnknownTable(name.into()))?;
        Ok(Table::new(&self.shared, found, name))
    }

    /// The names of all tables, in their order.
    #[must_use]
    pub fn table_names(&self) -> Vec<String> {
        self.shared.names().tables.keys().cloned().collect()
    }

    /// Forgets a table and all it holds; false when there is none with this name. Handles of it
    /// find nothing any more, and their writes are refused. The memory comes back as the cleaner
    /// passes.
    pub fn drop_table(&self, name: &str) -> bool {
        let dropped = {
            let mut names = self.shared.names();
            let dropped = names.tables.remove(name);
            // Before anything of it goes (GATE-1).
            self.shared.map_changes();
            dropped
        };
        let was_there = dropped.is_some();
        if let Some(table) = dropped {
            self.shared.engine.drop_table(table.id());
        }
        was_there
    }

    /// The engine, for crate `pluvio-door`.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// The tables that other processes may read, for crate `pluvio-door`.
    #[doc(hidden)]
    #[must_use]
    pub fn readable(&self) -> ReadableMap {
        // The lock keeps the version as it is.
        let names = self.shared.names();
        let tables = names.tables.iter();
        let whole = || vec![HashRange::ALL];
        ReadableMap {
            version: self.shared.engine.gate().map_or(0, GatePage::version),
            tables: tables
                .filter_map(|(name, table)| ReadableTable::of(table, name, whole()))
                .collect(),
        }
    }

    /// What is borrowed under the guard stays as it is until the guard is dropped.
    #[must_use]
    pub fn pin(&self) -> StoreGuard<'_> {
        StoreGuard(self.shared.engine.space().pin())
    }

    /// Waits until the sink has everything that was written by calls which returned before this
    /// one. Many threads may wait together. Without a sink there is nothing to wait for.
    ///
    /// # Errors
    /// The sink failed since the call began. What was written stays, and goes to the sink when it
    /// works again; a retry waits for that.
    pub fn sync(&self) -> Result<(), SinkError> {
        match &self.shared.sink {
            Some(sink) => sink.sync(self.shared.engine.space()),
            None => Ok(()),
        }
    }

    /// Does a bounded piece of the cleaner's work, and drops some objects whose deadlines are past;
    /// says whether there is more. For stores without cleaner threads, and for callers who want to
    /// help. Call it once a second at least, also when
    /// nothing is written: pauses that are longer are taken for those of a process that stood
    /// still, and no memory is given back. In a store with a sink, time stands still for deadlines
    /// as well.
    pub fn clean_step(&self) -> bool {
        cleaning::step(&self.shared.cleaner, &self.shared.sweep, &*self.shared.host)
    }

    /// Sizes and counts.
    ///
    /// ```
    /// # use pluvio_store::{Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// towns.put(b"Bern", b"134794")?;
    /// let stats = store.stats();
    /// assert_eq!((stats.objects, stats.object_bytes), (1, 10));
    /// assert_eq!(stats.memory_bytes, 64 << 20);
    /// assert!(stats.live_bytes > stats.object_bytes, "headers are included");
    /// assert!(stats.live_bytes < stats.live_bytes_max);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let engine = self.shared.engine.stats();
        let log = self.shared.engine.space().stats();
        let log_bytes = log.memory_bytes - log.free_bytes - log.reserve_free_bytes;
        StoreStats {
            objects: engine.objects,
            expired: self.shared.engine.expiry().dropped(),
            object_bytes: engine.object_bytes,
            live_bytes: log.live_bytes,
            live_bytes_max: log.live_bytes_max,
            log_bytes,
            log_resident_bytes: log.resident_bytes,
            index_bytes: engine.index_bytes,
            index_slots: engine.index_slots,
            index_longest_chain: engine.index_longest_chain,
            resident_bytes: log.resident_bytes + engine.index_bytes + log.table_bytes,
            free_bytes: log.free_bytes,
            memory_bytes: log.memory_bytes,
            heads: self.shared.heads.count(),
            memory_nodes: log.memory_parts,
            binding: log.binding,
            interleaving: log.interleaving,
            away_bytes: log.seglets_away * SEGLET_BYTES as u64,
            pins_without_slot: log.pins_without_slot,
            sink_bytes: match &self.shared.sink {
                Some(_) => log.disk_bytes,
                None => 0,
            },
            cleaner: log.cleaner,
        }
    }
}

impl Shared {
    fn names(&self) -> MutexGuard<'_, Names> {
        // Every change is one insert or remove: nothing is half done after a panic.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tables that other processes may read are about to change; the caller has the names.
    fn map_changes(&self) {
        if let Some(gate) = self.engine.gate() {
            gate.raise_version();
        }
    }

    /// An append was refused for want of memory: the cleaner should look now.
    #[cold]
    pub(crate) fn memory_is_short(&self) {
        self.cleaners.iter().for_each(Worker::wake);
        if let Some(sink) = &self.sink {
            sink.wake();
        }
    }
}

impl core::fmt::Debug for Store {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Store")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
