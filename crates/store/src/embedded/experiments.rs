//! Options that experiments and tests vary, and programs leave alone.

use pluvio_log::{CleanerOptions, CopyMethod, EpochClock, Tombstones};
use pluvio_units::Size;

/// Options of a store for experiments and tests
/// ([`StoreBuilder::experiments`](crate::StoreBuilder::experiments)). The defaults are what
/// programs use.
#[derive(Clone, PartialEq, Debug)]
pub struct Experiments {
    /// How memory is collected.
    pub cleaning: Cleaning,
    /// What reclaim epochs are counted with.
    pub epochs: EpochKind,
    /// Which head a thread appends to.
    pub head_choice: HeadChoice,
    /// How objects are copied into the log, by writes and by the cleaner.
    pub copy: CopyMethod,
    /// The size of a segment, 2.5 to 8 MiB in steps of 64 KiB: what the cleaner chooses and frees.
    /// `None`: a 256th of the memory, within these limits.
    pub segment_size: Option<Size>,
    /// What keeps dead at the sink what is overwritten. Default: the object that overwrites it
    /// ([`Tombstones::Deletes`]); a tombstone for every overwrite takes more memory and sends more
    /// (`docs/tombstones.md`). Either log can be read back, so the option may change from life to
    /// life. A store without a sink writes no tombstones.
    pub tombstones: Tombstones,
    /// A sink may hold this many times the log memory; 1 to 100. Default 2.
    pub expansion: f64,
    /// Which processors share a memory node.
    pub topology: Topology,
}

impl Default for Experiments {
    fn default() -> Self {
        Self {
            cleaning: Cleaning::default(),
            epochs: EpochKind::default(),
            head_choice: HeadChoice::default(),
            copy: CopyMethod::default(),
            segment_size: None,
            tombstones: Tombstones::default(),
            expansion: 2.0,
            topology: Topology::default(),
        }
    }
}

/// How memory is collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cleaning {
    /// Segments are compacted one by one while memory is not tight, several are combined when it
    /// is.
    #[default]
    TwoLevel,
    /// Several segments are combined into fewer, always.
    OneLevel,
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
    /// A counter that every operation advances: for comparison. All processors write its cache
    /// line.
    SharedCounter,
    /// The processor's time stamp counter [Nibble §4.5].
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
    /// That of the key's hash, wherever the thread runs: for comparison. The heads of other memory
    /// nodes are among them.
    ByHash,
}

impl Cleaning {
    pub(super) fn options(self) -> CleanerOptions {
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
    pub(super) fn clock(self) -> EpochClock {
        match self {
            Self::Counter => EpochClock::Counter,
            Self::SharedCounter => EpochClock::SharedCounter,
            Self::Tsc => EpochClock::Tsc,
        }
    }
}
