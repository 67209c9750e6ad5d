//! What epochs are counted with: a counter in memory, or the processor's time stamp counter (004
//! §4.5).
//!
//! The shared counter is the same protocol with a reader that advances the counter when it loads
//! it: what it reads is what a load at that moment gives, and more epochs than needed harm nobody.
//! It costs a line that all processors write.
//!
//! Why time stamps do as well as the counter. A reader reads its stamp `e`, publishes it by a swap
//! (a full fence, `R`), and only then reads links. A reclaimer unlinks, passes a full fence, and
//! then reads its stamp `s`; it looks at the slots behind another fence, `L`. Cases 1 and 2 of
//! `protocol` stand as they are, but for a look that finds an `e` above `s`. There the counter
//! orders reader and reclaimer by acquire and release, and a time stamp does not; what orders them
//! is the processor: the unlinking was visible to all before `s` was read, `e` was read later than
//! `s`, and the reader's loads come after `e`, since they come after the swap that stores it. This
//! is an argument about x86, not about the language, and it needs time stamps that agree between
//! processors. The kernel checks that they do when it makes them its clock source; [`SLACK`] allows
//! for more than it lets pass.

use super::protocol;
use core::sync::atomic::{AtomicU64, Ordering};

/// What reclaim epochs are counted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EpochClock {
    /// A counter that only the reclaimer advances. Right on every machine.
    #[default]
    Counter,
    /// A counter that every reader advances as well: for comparison with epochs that are
    /// distributed [Nibble §4.5].
    SharedCounter,
    /// The time stamp counter of the processor, which must be invariant: for comparison with
    /// Nibble.
    Tsc,
}

/// By how much the time stamps of two processors may differ: 2^16 ticks are some 20 µs, a hundred
/// times what a kernel accepts. What is retired waits so much longer.
const SLACK: u64 = 1 << 16;

impl EpochClock {
    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Counter | Self::SharedCounter => true,
            Self::Tsc => tsc::is_invariant(),
        }
    }

    /// The reader's stamp: what it publishes in its slot.
    #[inline]
    pub(super) fn stamp(self, counter: &AtomicU64) -> u64 {
        match self {
            // Acquire: pairs with the release of the reclaimer's advance.
            Self::Counter => counter.load(Ordering::Acquire),
            // Acquire: as above. Release keeps the reclaimers' releases visible to those who read
            // this one's value.
            Self::SharedCounter => counter.fetch_add(1, Ordering::AcqRel),
            Self::Tsc => tsc::now(),
        }
    }

    /// The reclaimer's stamp for what it has unlinked.
    pub(super) fn retire(self, counter: &AtomicU64) -> u64 {
        match self {
            Self::Counter | Self::SharedCounter => protocol::advance(counter),
            Self::Tsc => {
                <AtomicU64 as protocol::Word>::full_fence();
                tsc::now()
            }
        }
    }

    /// The part of a frontier that holds whatever the clocks of processors differ by.
    pub(super) fn surely(self, frontier: u64) -> u64 {
        match self {
            Self::Counter | Self::SharedCounter => frontier,
            Self::Tsc => frontier.saturating_sub(SLACK),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // two instructions that touch no memory
mod tsc {
    use core::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

    /// The leaf that tells of power management, and its bit for a time stamp counter that never
    /// stops or changes its pace.
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    /// Not before what stands before it.
    #[inline]
    pub(super) fn now() -> u64 {
        // SAFETY: every x86-64 processor has both; neither touches memory.
        unsafe {
            _mm_lfence();
            _rdtsc()
        }
    }

    #[allow(unused_unsafe)] // asking the processor is safe in newer toolchains
    pub(super) fn is_invariant() -> bool {
        // SAFETY: every x86-64 processor can be asked; the first leaf tells whether there is the
        // other one.
        unsafe {
            __cpuid(0x8000_0000).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & INVARIANT_TSC != 0
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod tsc {
    pub(super) fn now() -> u64 {
        unreachable!("is_available said no")
    }

    pub(super) fn is_invariant() -> bool {
        false
    }
}
