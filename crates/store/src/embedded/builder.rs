//! Options of an embedded store.

mod check;

use crate::embedded::error::BuildError;
use crate::embedded::experiments::{Experiments, Topology};
use crate::embedded::heads::{Heads, memory_parts, processors_of};
use crate::embedded::store::{Limits, Store, Workers};
use crate::engine::Engine;
use crate::options::{EngineOptions, IndexMemory};
use pluvio_env::host::{Host, Nodes, ThisMachine};
use pluvio_log::{Durability, LogOptions, ReplicaSink, VALUE_HEAD_BYTES};
use pluvio_memory::GraceClock;
use pluvio_units::{KEY_MAX, ObjectVersion, SEGLET_BYTES, Size, VALUE_MAX};
use std::sync::Arc;

/// What a write does to an object that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpdatePolicy {
    /// Appends a new one; the old one is collected. Readers never wait, and may borrow.
    #[default]
    Append,
    /// Overwrites it where the new value fits into its place [Nibble §6.2].
    InPlace,
}

/// How keys are hashed. Either has a seed that nobody outside knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyHashing {
    /// XXH3: fast, and no defence against somebody who chooses keys and can measure time.
    #[default]
    Fast,
    /// SipHash-1-3 with a random key: for keys chosen by strangers.
    Keyed,
}

/// Whether the store's memory is to be of huge pages (2 MiB): fewer TLB misses. The log has them
/// from its first byte on, the index of a table once it is large.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// Not asked for.
    No,
    /// Where the system has them.
    #[default]
    IfPossible,
    /// A store is refused where the system has none, or has been told to give this process none.
    Required,
}

impl From<bool> for HugePages {
    /// If possible, or not.
    fn from(wanted: bool) -> Self {
        if wanted { Self::IfPossible } else { Self::No }
    }
}

/// Builds a [`Store`]. Every option has a default but for the memory, which is 256 MiB.
#[must_use = "a builder does nothing before `build`"]
pub struct StoreBuilder {
    memory: Size,
    heads: Option<u16>,
    /// Default: one, or one for each part of the memory.
    cleaner_threads: Option<u16>,
    update: UpdatePolicy,
    bind_memory: bool,
    index_memory: IndexMemory,
    sink: Option<Box<dyn ReplicaSink>>,
    first_version: ObjectVersion,
    threads_max: usize,
    key_max: usize,
    /// Default: the most that is possible.
    value_max: Option<usize>,
    live_percent_max: u32,
    hashing: KeyHashing,
    huge_pages: HugePages,
    populate: bool,
    shared: bool,
    host: Arc<dyn Host>,
    experiments: Experiments,
}

impl Default for StoreBuilder {
    fn default() -> Self {
        Self {
            memory: Size::mib(256),
            heads: None,
            cleaner_threads: None,
            update: UpdatePolicy::default(),
            bind_memory: true,
            index_memory: IndexMemory::default(),
            sink: None,
            first_version: ObjectVersion(1),
            threads_max: 512,
            key_max: KEY_MAX,
            value_max: None,
            live_percent_max: 90,
            hashing: KeyHashing::default(),
            huge_pages: HugePages::default(),
            populate: false,
            shared: false,
            host: Arc::new(ThisMachine),
            experiments: Experiments::default(),
        }
    }
}

impl StoreBuilder {
    /// Memory of the log: reserved at once, touched as the store fills. Indexes come on top, with
    /// 10 to 11 bytes for each object ([`StoreStats::index_bytes`](crate::StoreStats)).
    pub fn memory(mut self, memory: impl Into<Size>) -> Self {
        self.memory = memory.into();
        self
    }

    /// Number of heads, 1 to 256: places where threads append side by side. Default: one for each
    /// processor, as far as the memory has room for them.
    pub fn heads(mut self, heads: u16) -> Self {
        self.heads = Some(heads);
        self
    }

    /// Threads that clean, 0 to 64. With 0 the caller drives [`Store::clean_step`]. Default 1, or
    /// one for each node where the memory is divided among nodes ([`Self::bind_memory`]) and has
    /// room for their reserves: a 32nd of it. Where there is a thread for each node, each stays on
    /// the processors of its node.
    pub fn cleaner_threads(mut self, threads: u16) -> Self {
        self.cleaner_threads = Some(threads);
        self
    }

    /// What a write does to an object that is there.
    pub fn update(mut self, policy: UpdatePolicy) -> Self {
        self.update = policy;
        self
    }

    /// Whether the log memory is divided among the memory nodes, where there are several: each part
    /// lies on its node, and the node's heads append there as long as it has seglets. Default yes.
    /// What the system refuses is told by [`StoreStats::binding`](crate::StoreStats), and works
    /// with pages from wherever they come.
    pub fn bind_memory(mut self, bind: bool) -> Self {
        self.bind_memory = bind;
        self
    }

    /// Which memory nodes the indexes, and the log's tables beside its memory, come from. Default:
    /// all in turn, where there are several. A refusal of the system is told by
    /// [`StoreStats::interleaving`](crate::StoreStats). The store then works with pages from
    /// wherever they come.
    pub fn index_memory(mut self, memory: IndexMemory) -> Self {
        self.index_memory = memory;
        self
    }

    /// Where the log goes: each head is a stream of its own. Objects then say where what they
    /// replace lies dead, and deletions write tombstones; [`Store::sync`] waits for the sink, and
    /// segments are cleaned on both levels (`docs/embedded.md`).
    ///
    /// ```
    /// use pluvio_store::{LogId, ReplicaSink, SegmentId, SinkAnswer, SinkError, SinkWrite, Size, Store};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// /// Counts what it gets, and keeps nothing.
    /// struct Meter(Arc<AtomicUsize>);
    ///
    /// impl ReplicaSink for Meter {
    ///     fn write(&mut self, write: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
    ///         self.0.fetch_add(write.bytes.len(), Ordering::Relaxed);
    ///         Ok(SinkAnswer::Taken)
    ///     }
    ///     fn close(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
    ///         Ok(())
    ///     }
    ///     fn free(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let written = Arc::new(AtomicUsize::new(0));
    /// let meter = Meter(Arc::clone(&written));
    /// let store = Store::builder().memory(Size::mib(64)).sink(meter).build()?;
    /// let table = store.create_table("towns")?;
    /// table.put(b"Bern", &[0; 1000])?;
    /// store.sync()?;
    /// assert!(written.load(Ordering::Relaxed) > 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sink(mut self, sink: impl ReplicaSink + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Versions begin here: above those of a former life of the same objects
    /// ([`Kept::next_version`](crate::Kept::next_version)). 1 to 2^63. Default 1.
    pub fn first_version(mut self, version: ObjectVersion) -> Self {
        self.first_version = version;
        self
    }

    /// Threads that may be inside the store at once without sharing a mutex, up to 65536. Default
    /// 512. The store's own count, so there must be one more than cleaner threads, and one more
    /// with a sink. More callers work as well, slower.
    pub fn threads_max(mut self, threads: usize) -> Self {
        self.threads_max = threads;
        self
    }

    /// Longest key (at most 64 KiB) and value (at most 1 MiB, less 12 bytes with
    /// [`UpdatePolicy::InPlace`]) that are taken, in bytes.
    pub fn limits(mut self, key: usize, value: usize) -> Self {
        (self.key_max, self.value_max) = (key, Some(value));
        self
    }

    /// Share of the memory that live objects may take, in percent, 1 to 98. Default 90. What the
    /// reserves leave is the limit in any case ([`StoreStats::live_bytes_max`](crate::StoreStats)).
    pub fn live_percent_max(mut self, percent: u32) -> Self {
        self.live_percent_max = percent;
        self
    }

    /// How keys are hashed.
    pub fn hashing(mut self, hashing: KeyHashing) -> Self {
        self.hashing = hashing;
        self
    }

    /// Whether to ask the system for huge pages. Default: if possible. The log's memory is then
    /// used in steps of 2 MiB.
    pub fn huge_pages(mut self, huge: impl Into<HugePages>) -> Self {
        self.huge_pages = huge.into();
        self
    }

    /// Whether the system is to fetch all of the log's memory when the store is built: no write
    /// waits for a page later. The store keeps this memory. Default: no.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Whether other processes of this machine may map the store's memory, to read it without a
    /// system call. Crate `pluvio-door` lets them in, and they use crate `pluvio-mapped`. Default:
    /// no. Such a store appends ([`UpdatePolicy::Append`]) and hashes fast ([`KeyHashing::Fast`]).
    /// Memory that it has touched is not given back to the system before it is dropped.
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// The machine, for tests and for programs with threads of their own kind.
    pub fn host(mut self, host: Arc<dyn Host>) -> Self {
        self.host = host;
        self
    }

    /// Options for experiments and tests.
    pub fn experiments(mut self, experiments: Experiments) -> Self {
        self.experiments = experiments;
        self
    }

    /// Reserves the memory, opens the heads and starts the cleaner threads.
    ///
    /// # Errors
    /// See [`BuildError`]; nothing is left behind.
    pub fn build(self) -> Result<Store, BuildError> {
        self.check()?;
        if self.huge_pages == HugePages::Required {
            self.host.huge_pages().map_err(BuildError::NoHugePages)?;
        }
        let nodes = match &self.experiments.topology {
            Topology::Detect => self.host.nodes()?,
            Topology::Nodes(nodes) => Nodes::new(nodes.clone())?,
            Topology::Numbered(nodes) => Nodes::numbered(nodes.clone())?,
        };
        let heads = match self.heads {
            Some(heads) => {
                self.check_heads(heads)?;
                heads
            }
            None => self.default_heads(&nodes),
        };
        let mut log = self.log_options(heads);
        if self.bind_memory {
            log.parts = memory_parts(&nodes, heads);
        }
        log.table_nodes = self.index_memory.nodes(nodes.numbers());
        let cleaner_threads = self.cleaners(&log);
        log.cleaners = cleaner_threads.max(1);
        let near = processors_of(&nodes, &log.parts);
        let engine = Engine::open(EngineOptions { log }).map_err(|why| self.refused(why, heads))?;
        if self.huge_pages == HugePages::Required {
            let asked = engine.space().prefer_huge_pages();
            asked.map_err(|why| BuildError::NoHugePages(why.to_string()))?;
        }
        if self.populate {
            // Bound to its nodes, and asked for as huge pages: so it is fetched.
            let fetched = engine.space().populate();
            fetched.map_err(BuildError::Unreservable)?;
        }
        let limits = Limits {
            key_max: self.key_max,
            value_max: self.value_max(),
            hashing: self.hashing,
        };
        engine.space().raise_safe_version(self.first_version);
        let heads = Heads::new(
            Arc::clone(&self.host),
            &nodes,
            heads,
            self.experiments.head_choice,
        );
        let mut cleaner = self.experiments.cleaning.options();
        if self.populate {
            cleaner.waste_percent = None;
        }
        let cleaner = Arc::new(engine.cleaner(cleaner));
        let workers = Workers {
            cleaner,
            cleaner_threads,
            near,
            sink: self.sink,
        };
        Store::start(engine, heads, limits, self.host, workers)
    }

    fn log_options(&self, heads: u16) -> LogOptions {
        LogOptions {
            now_s: self.host.unix_seconds(),
            logs: heads,
            durability: match self.sink {
                None => Durability::Volatile,
                Some(_) => Durability::Replicated,
            },
            segment_seglets: self
                .experiments
                .segment_size
                .map(|size| size.bytes() as usize / SEGLET_BYTES),
            cleaners: self.cleaner_threads.unwrap_or(1).max(1),
            live_percent_max: self.live_percent_max,
            disk_expansion_percent: (self.experiments.expansion * 100.0) as u32,
            tombstones: self.experiments.tombstones,
            huge_pages: self.huge_pages != HugePages::No,
            in_place: self.update == UpdatePolicy::InPlace,
            epoch_slots: self.threads_max as u32,
            epoch_clock: self.experiments.epochs.clock(),
            copy: self.experiments.copy,
            readers: self.shared.then(|| {
                let host = Arc::clone(&self.host);
                GraceClock::new(move || host.monotonic())
            }),
            ..LogOptions::new(self.memory)
        }
    }

    fn value_limit(&self) -> usize {
        match self.update {
            UpdatePolicy::Append => VALUE_MAX,
            UpdatePolicy::InPlace => VALUE_MAX - VALUE_HEAD_BYTES,
        }
    }

    fn value_max(&self) -> usize {
        self.value_max.unwrap_or(self.value_limit())
    }
}
