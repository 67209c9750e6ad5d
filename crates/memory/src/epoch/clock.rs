//! The clocks that count epochs: a counter in memory, or the processor's time stamp counter [Nibble
//! §4.5].
//!
//! The shared counter is the same protocol with a reader that advances the counter when it loads
//! it. The reader still gets a value of that moment, and more epochs than needed are harmless. It
//! costs a line that all processors write.
//!
//! Why time stamps work as well as the counter:
//! 1. A reader reads its stamp `e`, publishes it by a swap (a full fence, `R`), and only then reads
//!    links.
//! 2. A reclaimer unlinks, passes a full fence, and then reads its stamp `s`. It looks at the slots
//!    behind another fence, `L`.
//! 3. Cases 1 and 2 of `protocol` hold, except for a look that finds an `e` above `s`. There the
//!    counter orders reader and reclaimer by acquire and release, and a time stamp does not.
//! 4. The processor orders them instead. The unlinking was visible to all before `s` was read, and
//!    `e` was read later than `s`. The reader's loads come after `e`, because they come after the
//!    swap that stores it.
//!
//! This is an argument about x86 and not about the language. It needs time stamps that agree
//! between processors. The kernel checks that when it makes them its clock source; [`SLACK`] allows
//! for more than the kernel lets pass.

use super::protocol;
use crate::ticks::TickCounter;
use core::sync::atomic::{AtomicU64, Ordering};

/// The clocks of reclaim epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EpochClock {
    /// A counter that only the reclaimer advances. Right on every machine.
    #[default]
    Counter,
    /// A counter that every reader advances as well: for comparison with distributed epochs [Nibble
    /// §4.5].
    SharedCounter,
    /// The time stamp counter of the processor, which must be invariant: for comparison with
    /// Nibble.
    Tsc,
}

/// Limit on the difference between the time stamps of two processors: 2^16 ticks are some 20 µs, a
/// hundred times what a kernel accepts. Retired memory waits that much longer.
const SLACK: u64 = 1 << 16;

impl EpochClock {
    /// Whether this machine has the clock.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Counter | Self::SharedCounter => true,
            Self::Tsc => TickCounter::of_this_machine().is_some(),
        }
    }

    /// The reader's stamp, which it publishes in its slot.
    #[inline]
    pub(super) fn stamp(self, counter: &AtomicU64) -> u64 {
        match self {
            // Acquire: pairs with the release of the reclaimer's advance.
            Self::Counter => counter.load(Ordering::Acquire),
            // Acquire: as above. Release keeps the reclaimers' releases visible to the readers of
            // this value.
            Self::SharedCounter => counter.fetch_add(1, Ordering::AcqRel),
            Self::Tsc => TickCounter::now_in_order(),
        }
    }

    /// The reclaimer's stamp for the memory it has unlinked.
    pub(super) fn retire(self, counter: &AtomicU64) -> u64 {
        match self {
            Self::Counter | Self::SharedCounter => protocol::advance(counter),
            Self::Tsc => {
                <AtomicU64 as protocol::Word>::full_fence();
                TickCounter::now_in_order()
            }
        }
    }

    /// The part of a frontier that holds for any difference between the processors' clocks.
    pub(super) fn surely(self, frontier: u64) -> u64 {
        match self {
            Self::Counter | Self::SharedCounter => frontier,
            Self::Tsc => frontier.saturating_sub(SLACK),
        }
    }
}
