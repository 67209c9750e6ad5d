//! Options of an embedded store.

use crate::embedded::error::BuildError;
use crate::embedded::heads::{Heads, memory_parts};
use crate::embedded::store::{Limits, Store, Workers};
use crate::engine::Engine;
use crate::options::EngineOptions;
use pluvio_host::{Host, Nodes, ThisMachine};
use pluvio_log::{
    CleanerOptions, CopyMethod, Durability, EpochClock, LOG_MEMORY_MAX, LogOptions, OpenError,
    ReplicaSink, Tombstones, VALUE_HEAD_BYTES,
};
use pluvio_units::{
    KEY_MAX, LOGS_PER_MASTER_MAX, ObjectVersion, SEGLET_BYTES, SEGMENT_BYTES, Size, VALUE_MAX,
};
use std::sync::Arc;

/// How memory is collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cleaning {
    /// Segments are compacted one by one while memory is not tight, several are combined when it is.
    #[default]
    TwoLevel,
    /// Several segments are combined into fewer, always.
    OneLevel,
}

/// What a write does to an object that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpdatePolicy {
    /// Appends a new one; the old one is collected. Readers never wait, and may borrow.
    #[default]
    Append,
    /// Overwrites it where the new value fits into its place (Nibble-2, 004 ch. 6).
    InPlace,
}

/// Which processors share a memory node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Topology {
    /// As the system says.
    #[default]
    Detect,
    /// The processors of each node; nodes have the numbers 0, 1, …
    Nodes(Vec<Vec<usize>>),
    /// The processors of each node, with the number that the system gives it.
    Numbered(Vec<(u32, Vec<usize>)>),
}

/// What reclaim epochs are counted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EpochKind {
    /// A counter in memory that readers only load.
    #[default]
    Counter,
    /// A counter that every operation advances: for comparison. All processors write its cache line.
    SharedCounter,
    /// The processor's time stamp counter (004 §4.5).
    Tsc,
}

/// Which head a thread appends to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeadChoice {
    /// That of the processor it runs on.
    #[default]
    ByProcessor,
    /// Any one, drawn for each append: for comparison.
    Random,
}

impl Cleaning {
    fn options(self) -> CleanerOptions {
        CleanerOptions {
            cleaning: match self {
                Self::TwoLevel => pluvio_log::Cleaning::TwoLevel,
                Self::OneLevel => pluvio_log::Cleaning::OneLevel,
            },
            ..CleanerOptions::default()
        }
    }
}

impl EpochKind {
    fn clock(self) -> EpochClock {
        match self {
            Self::Counter => EpochClock::Counter,
            Self::SharedCounter => EpochClock::SharedCounter,
            Self::Tsc => EpochClock::Tsc,
        }
    }
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

/// Whether the store's memory is to be of huge pages (2 MiB): fewer TLB misses. The log has them from its first byte on, the
/// index of a table once it is large.
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
    cleaner_threads: u16,
    cleaning: Cleaning,
    update: UpdatePolicy,
    topology: Topology,
    bind_memory: bool,
    epochs: EpochKind,
    head_choice: HeadChoice,
    copy: CopyMethod,
    segment: Option<Size>,
    sink: Option<Box<dyn ReplicaSink>>,
    tombstones: Tombstones,
    first_version: ObjectVersion,
    threads_max: usize,
    key_max: usize,
    /// Default: the most that is possible.
    value_max: Option<usize>,
    live_percent_max: u32,
    expansion: f64,
    hashing: KeyHashing,
    huge_pages: HugePages,
    host: Arc<dyn Host>,
}

/// Most worker threads of one store.
const CLEANER_THREADS_MAX: u16 = 64;
/// Largest share of the memory that live objects may be allowed.
const LIVE_PERCENT_LIMIT: usize = 98;
/// Sizes a segment may have; whole seglets.
const SEGMENT_MIN: usize = 40 * SEGLET_BYTES;
/// Most epoch slots; one takes a cache line, and each look at all of them reads those in use.
const THREADS_MAX: usize = 1 << 16;
/// Half of all versions are left for those that follow.
const FIRST_VERSION_MAX: usize = 1 << 63;

impl Default for StoreBuilder {
    fn default() -> Self {
        Self {
            memory: Size::mib(256),
            heads: None,
            cleaner_threads: 1,
            cleaning: Cleaning::default(),
            update: UpdatePolicy::default(),
            topology: Topology::default(),
            bind_memory: true,
            epochs: EpochKind::default(),
            head_choice: HeadChoice::default(),
            copy: CopyMethod::default(),
            segment: None,
            sink: None,
            tombstones: Tombstones::default(),
            first_version: ObjectVersion(1),
            threads_max: 512,
            key_max: KEY_MAX,
            value_max: None,
            live_percent_max: 90,
            expansion: 2.0,
            hashing: KeyHashing::default(),
            huge_pages: HugePages::default(),
            host: Arc::new(ThisMachine),
        }
    }
}

impl StoreBuilder {
    /// Memory of the log: reserved at once, touched as the store fills. Indexes come on top, with 10 to 11 bytes for each
    /// object ([`StoreStats::index_bytes`](crate::StoreStats)).
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

    /// Threads that clean, 0 to 64. Default 1. With 0 the caller drives [`Store::clean_step`].
    pub fn cleaner_threads(mut self, threads: u16) -> Self {
        self.cleaner_threads = threads;
        self
    }

    /// How memory is collected.
    pub fn cleaning(mut self, cleaning: Cleaning) -> Self {
        self.cleaning = cleaning;
        self
    }

    /// What a write does to an object that is there.
    pub fn update(mut self, policy: UpdatePolicy) -> Self {
        self.update = policy;
        self
    }

    /// Which processors share a memory node.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Whether the log memory is divided among the memory nodes, where there are several: each part lies on its node, and
    /// the node's heads append there as long as it has seglets. Default yes. What the system refuses is told by
    /// [`StoreStats::binding`](crate::StoreStats), and works with pages from wherever they come.
    pub fn bind_memory(mut self, bind: bool) -> Self {
        self.bind_memory = bind;
        self
    }

    /// What reclaim epochs are counted with.
    pub fn epochs(mut self, kind: EpochKind) -> Self {
        self.epochs = kind;
        self
    }

    /// Which head a thread appends to.
    pub fn head_choice(mut self, choice: HeadChoice) -> Self {
        self.head_choice = choice;
        self
    }

    /// How objects are copied into the log, by writes and by the cleaner.
    pub fn copy(mut self, method: CopyMethod) -> Self {
        self.copy = method;
        self
    }

    /// The size of a segment, 2.5 to 8 MiB in steps of 64 KiB: what the cleaner chooses and frees. Default: a 256th of
    /// the memory, within these limits.
    pub fn segment_size(mut self, size: impl Into<Size>) -> Self {
        self.segment = Some(size.into());
        self
    }

    /// Where the log goes: each head is a stream of its own. Objects then say where what they replace lies dead, and
    /// deletions write tombstones; [`Store::sync`] waits for the sink, and segments are cleaned on both levels (`docs/embedded.md`).
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

    /// What keeps dead at the sink what is overwritten. Default: the object that overwrites it
    /// ([`Tombstones::Deletes`]); a tombstone for every overwrite takes more memory and sends more (`docs/tombstones.md`). Either
    /// log can be read back, so the option may change from life to life. A store without a sink writes no tombstones.
    pub fn tombstones(mut self, tombstones: Tombstones) -> Self {
        self.tombstones = tombstones;
        self
    }

    /// Versions begin here: above those of a former life of the same objects
    /// ([`Kept::next_version`](crate::Kept::next_version)). 1 to 2^63. Default 1.
    pub fn first_version(mut self, version: ObjectVersion) -> Self {
        self.first_version = version;
        self
    }

    /// Threads that may be inside the store at once without sharing a mutex, up to 65536. Default 512. The store's own
    /// count, so there must be one more than cleaner threads, and one more with a sink. More callers work as well, slower.
    pub fn threads_max(mut self, threads: usize) -> Self {
        self.threads_max = threads;
        self
    }

    /// Longest key (at most 64 KiB) and value (at most 1 MiB, less 12 bytes with [`UpdatePolicy::InPlace`]) that are taken,
    /// in bytes.
    pub fn limits(mut self, key: usize, value: usize) -> Self {
        (self.key_max, self.value_max) = (key, Some(value));
        self
    }

    /// Share of the memory that live objects may take, in percent, 1 to 98. Default 90. What the reserves leave
    /// is the limit in any case ([`StoreStats::live_bytes_max`](crate::StoreStats)).
    pub fn live_percent_max(mut self, percent: u32) -> Self {
        self.live_percent_max = percent;
        self
    }

    /// A sink may hold this many times the log memory; at least 1. Default 2.
    pub fn expansion(mut self, factor: f64) -> Self {
        self.expansion = factor;
        self
    }

    /// How keys are hashed.
    pub fn hashing(mut self, hashing: KeyHashing) -> Self {
        self.hashing = hashing;
        self
    }

    /// Whether to ask the system for huge pages. Default: if possible. The log's memory is then used in steps of 2 MiB.
    pub fn huge_pages(mut self, huge: impl Into<HugePages>) -> Self {
        self.huge_pages = huge.into();
        self
    }

    /// The machine, for tests and for programs with threads of their own kind.
    pub fn host(mut self, host: Arc<dyn Host>) -> Self {
        self.host = host;
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
        let nodes = match &self.topology {
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
        let engine = Engine::open(EngineOptions { log }).map_err(|why| self.refused(why, heads))?;
        if self.huge_pages == HugePages::Required {
            let asked = engine.space().prefer_huge_pages();
            asked.map_err(|why| BuildError::NoHugePages(why.to_string()))?;
        }
        let limits = Limits {
            key_max: self.key_max,
            value_max: self.value_max(),
            hashing: self.hashing,
        };
        engine.space().raise_safe_version(self.first_version);
        let heads = Heads::new(Arc::clone(&self.host), &nodes, heads, self.head_choice);
        let cleaner = Arc::new(engine.cleaner(self.cleaning.options()));
        let workers = Workers {
            cleaner,
            cleaner_threads: self.cleaner_threads,
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
                .segment
                .map(|size| size.bytes() as usize / SEGLET_BYTES),
            cleaners: self.cleaner_threads.max(1),
            live_percent_max: self.live_percent_max,
            disk_expansion_percent: (self.expansion * 100.0) as u32,
            tombstones: self.tombstones,
            huge_pages: self.huge_pages != HugePages::No,
            in_place: self.update == UpdatePolicy::InPlace,
            epoch_slots: self.threads_max as u32,
            epoch_clock: self.epochs.clock(),
            copy: self.copy,
            ..LogOptions::new(self.memory)
        }
    }

    fn check(&self) -> Result<(), BuildError> {
        let within = |option, value: usize, first: usize, last: usize| {
            if (first..=last).contains(&value) {
                return Ok(());
            }
            Err(BuildError::OutOfRange {
                option,
                value: value.to_string(),
                limit: format!("{first} to {last} are possible"),
            })
        };
        let memory = self.memory.bytes();
        if memory > LOG_MEMORY_MAX.bytes() {
            return Err(BuildError::OutOfRange {
                option: "memory",
                value: format!("{memory} bytes"),
                limit: format!("at most {} are possible", LOG_MEMORY_MAX.bytes()),
            });
        }
        let heads = usize::from(self.heads.unwrap_or(1));
        within("heads", heads, 1, usize::from(LOGS_PER_MASTER_MAX))?;
        let cleaners = usize::from(self.cleaner_threads);
        within(
            "cleaner_threads",
            cleaners,
            0,
            usize::from(CLEANER_THREADS_MAX),
        )?;
        // A slot for each thread of the store's own, and one for a caller.
        let threads = cleaners + usize::from(self.sink.is_some()) + 1;
        within("threads_max", self.threads_max, threads, THREADS_MAX)?;
        let version = usize::try_from(self.first_version.0).unwrap_or(usize::MAX);
        within("first_version", version, 1, FIRST_VERSION_MAX)?;
        within("limits (key)", self.key_max, 1, KEY_MAX)?;
        within("limits (value)", self.value_max(), 0, self.value_limit())?;
        let percent = self.live_percent_max as usize;
        within("live_percent_max", percent, 1, LIVE_PERCENT_LIMIT)?;
        if let Some(size) = self.segment {
            let bytes = usize::try_from(size.bytes()).unwrap_or(usize::MAX);
            within("segment_size", bytes, SEGMENT_MIN, SEGMENT_BYTES)?;
        }
        if self.sink.is_some() && self.update == UpdatePolicy::InPlace {
            return Err(BuildError::OutOfRange {
                option: "update",
                value: format!("{:?}", self.update),
                limit: "a store with a sink appends, because the sink keeps what was written"
                    .into(),
            });
        }
        if self.sink.is_none() && self.tombstones == Tombstones::Every {
            return Err(BuildError::OutOfRange {
                option: "tombstones",
                value: format!("{:?}", self.tombstones),
                limit: "a store without a sink writes none: nothing keeps what is dead".into(),
            });
        }
        check_epochs(self.epochs, self.epochs.clock().is_available())?;
        if !(1.0..=100.0).contains(&self.expansion) {
            return Err(BuildError::OutOfRange {
                option: "expansion",
                value: self.expansion.to_string(),
                limit: "1 to 100 are possible".into(),
            });
        }
        Ok(())
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

    /// The memory a store with so many heads needs.
    fn minimum(&self, heads: u16) -> u64 {
        self.log_options(heads).memory_min().bytes()
    }

    fn check_heads(&self, heads: u16) -> Result<(), BuildError> {
        let memory = self.memory.bytes();
        if memory >= self.minimum(heads) || memory < self.minimum(1) {
            return Ok(());
        }
        Err(BuildError::TooManyHeads {
            heads,
            limit: self.heads_limit(heads),
            memory,
        })
    }

    /// The most heads up to `wanted` that the memory has room for, at least one.
    fn heads_limit(&self, wanted: u16) -> u16 {
        let fits = |&heads: &u16| self.minimum(heads) <= self.memory.bytes();
        (1..=wanted).rev().find(fits).unwrap_or(1)
    }

    fn default_heads(&self, nodes: &Nodes) -> u16 {
        let wanted = nodes.processors().min(usize::from(LOGS_PER_MASTER_MAX));
        self.heads_limit(wanted as u16)
    }

    fn refused(&self, why: OpenError, heads: u16) -> BuildError {
        match why {
            OpenError::TooSmall {
                memory, minimum, ..
            } => BuildError::MemoryTooSmall {
                memory,
                minimum,
                heads,
            },
            OpenError::BadOption { name, problem } => BuildError::OutOfRange {
                option: option_of(name),
                value: "refused by the log".into(),
                limit: problem,
            },
            OpenError::Memory(why) => BuildError::Unreservable(why),
        }
    }
}

/// Whether the machine has what epochs of this kind are counted with.
fn check_epochs(kind: EpochKind, is_available: bool) -> Result<(), BuildError> {
    if is_available {
        return Ok(());
    }
    Err(BuildError::OutOfRange {
        option: "epochs",
        value: format!("{kind:?}"),
        limit: "this machine has no invariant time stamp counter".into(),
    })
}

/// The builder's method that an option of the log comes from. All are checked before the log sees them; what it would refuse
/// all the same is told by the name that the caller knows.
fn option_of(of_log: &'static str) -> &'static str {
    match of_log {
        "logs" => "heads",
        "disk_expansion_percent" => "expansion",
        "cleaners" => "cleaner_threads",
        "in_place" => "update",
        "segment_seglets" => "segment_size",
        "parts" => "topology",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_time_stamps_need_a_machine_that_has_them() {
        assert!(check_epochs(EpochKind::Tsc, true).is_ok());
        let refused = check_epochs(EpochKind::Tsc, false).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "option epochs: Tsc; this machine has no invariant time stamp counter"
        );
    }

    #[test]
    fn what_the_log_refuses_is_told_by_the_builders_name_and_with_the_limit() {
        let refused = |name, problem: &str| {
            let why = OpenError::BadOption {
                name,
                problem: problem.into(),
            };
            StoreBuilder::default().refused(why, 1).to_string()
        };
        assert_eq!(
            refused("disk_expansion_percent", "99 is less than 100"),
            "option expansion: refused by the log; 99 is less than 100"
        );
        assert_eq!(
            refused("live_percent_max", "99 is not 1 to 98"),
            "option live_percent_max: refused by the log; 99 is not 1 to 98"
        );
    }
}
