//! What the options of an embedded store may be, also together: the bounds of each, how many heads
//! the memory has room for, and how a refusal is told by the name that the caller knows.

use crate::embedded::builder::{KeyHashing, StoreBuilder, UpdatePolicy};
use crate::embedded::error::BuildError;
use crate::embedded::experiments::EpochKind;
use pluvio_env::host::Nodes;
use pluvio_log::{LOG_MEMORY_MAX, LogOptions, OpenError, Tombstones};
use pluvio_units::{KEY_MAX, LOGS_PER_MASTER_MAX, SEGLET_BYTES, SEGMENT_BYTES};

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

impl StoreBuilder {
    pub(super) fn check(&self) -> Result<(), BuildError> {
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
        let cleaners = usize::from(self.cleaner_threads.unwrap_or(1));
        within(
            "cleaner_threads",
            cleaners,
            0,
            usize::from(CLEANER_THREADS_MAX),
        )?;
        let threads = cleaners + self.slots_beside_cleaners();
        within("threads_max", self.threads_max, threads, THREADS_MAX)?;
        let version = usize::try_from(self.first_version.0).unwrap_or(usize::MAX);
        within("first_version", version, 1, FIRST_VERSION_MAX)?;
        within("limits (key)", self.key_max, 1, KEY_MAX)?;
        within("limits (value)", self.value_max(), 0, self.value_limit())?;
        let percent = self.live_percent_max as usize;
        within("live_percent_max", percent, 1, LIVE_PERCENT_LIMIT)?;
        if let Some(size) = self.experiments.segment_size {
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
        if self.shared && self.update == UpdatePolicy::InPlace {
            return Err(BuildError::OutOfRange {
                option: "update",
                value: format!("{:?}", self.update),
                limit: "a shared store appends, because others read what it has written".into(),
            });
        }
        if self.shared && self.hashing == KeyHashing::Keyed {
            return Err(BuildError::OutOfRange {
                option: "hashing",
                value: format!("{:?}", self.hashing),
                limit: "the readers of a shared store hash keys as well".into(),
            });
        }
        if self.sink.is_none() && self.experiments.tombstones == Tombstones::Every {
            return Err(BuildError::OutOfRange {
                option: "tombstones",
                value: format!("{:?}", self.experiments.tombstones),
                limit: "a store without a sink writes none: nothing keeps what is dead".into(),
            });
        }
        check_epochs(
            self.experiments.epochs,
            self.experiments.epochs.clock().is_available(),
        )?;
        if !(1.0..=100.0).contains(&self.experiments.expansion) {
            return Err(BuildError::OutOfRange {
                option: "expansion",
                value: self.experiments.expansion.to_string(),
                limit: "1 to 100 are possible".into(),
            });
        }
        Ok(())
    }

    /// Epoch slots for threads that do not clean: for that of the sink, and for a caller.
    fn slots_beside_cleaners(&self) -> usize {
        usize::from(self.sink.is_some()) + 1
    }

    /// The threads that clean, of a store with this log. One for each part of the memory, or one in
    /// all: some that are fewer than the parts have no part of their own.
    pub(super) fn cleaners(&self, log: &LogOptions) -> u16 {
        if let Some(threads) = self.cleaner_threads {
            return threads;
        }
        let parts = log.parts.len();
        let slots = self.threads_max - self.slots_beside_cleaners();
        match u16::try_from(parts) {
            Ok(parts) if usize::from(parts) <= slots && log.cleaners_up_to(parts) == parts => parts,
            Ok(_) | Err(_) => 1,
        }
    }

    /// The memory a store with so many heads needs.
    fn minimum(&self, heads: u16) -> u64 {
        self.log_options(heads).memory_min().bytes()
    }

    pub(super) fn check_heads(&self, heads: u16) -> Result<(), BuildError> {
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

    pub(super) fn default_heads(&self, nodes: &Nodes) -> u16 {
        let wanted = nodes.processors().min(usize::from(LOGS_PER_MASTER_MAX));
        self.heads_limit(wanted as u16)
    }

    pub(super) fn refused(&self, why: OpenError, heads: u16) -> BuildError {
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

/// The builder's method, or the field of its experiments, that an option of the log comes from. All
/// are checked before the log sees them. A refusal of the log names the option as the caller knows
/// it.
fn option_of(of_log: &'static str) -> &'static str {
    match of_log {
        "logs" => "heads",
        "disk_expansion_percent" => "expansion",
        "cleaners" => "cleaner_threads",
        "in_place" => "update",
        "segment_seglets" => "segment_size",
        "parts" => "topology",
        "readers" => "shared",
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
