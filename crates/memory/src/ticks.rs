//! The processor's counter of time stamps, where it has one of a steady pace.
//!
//! Owns the instructions that read it. The counter says how many ticks have passed, and nothing of
//! the time of day.
//!
//! Threads: any. The counters of two processors may differ by some ticks.
//!
//! Limits: on x86-64 only.

/// The counter of a processor on which it never stops and never changes its pace.
#[derive(Clone, Copy, Debug)]
pub struct TickCounter(Steady);

/// Shown once the processor has said that its counter is steady.
#[derive(Clone, Copy, Debug)]
struct Steady;

impl TickCounter {
    /// The counter, if this processor has a steady one.
    #[must_use]
    pub fn of_this_machine() -> Option<Self> {
        instructions::is_invariant().then_some(Self(Steady))
    }

    /// Ticks. No fence keeps the look in its place: the processor may take it before earlier loads
    /// have ended, or after later ones have begun. It takes none before an interrupt and uses it
    /// behind that one, because an interrupt throws away all that is not complete.
    #[must_use]
    #[inline(always)]
    pub fn now(self) -> u64 {
        let Self(Steady) = self;
        instructions::now()
    }

    /// Ticks, looked at only after everything that stands before it.
    #[inline]
    pub(crate) fn now_in_order() -> u64 {
        instructions::now_in_order()
    }
}

#[cfg(target_arch = "x86_64")]
mod instructions {
    use core::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

    /// The leaf with the power management, and its bit for a time stamp counter that never stops or
    /// changes its pace.
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    #[inline(always)]
    pub(super) fn now() -> u64 {
        // SAFETY: every x86-64 processor has it, and it touches no memory.
        unsafe { _rdtsc() }
    }

    #[inline]
    pub(super) fn now_in_order() -> u64 {
        // SAFETY: every x86-64 processor has both; neither touches memory.
        unsafe {
            _mm_lfence();
            _rdtsc()
        }
    }

    #[allow(unused_unsafe)] // asking the processor is safe in newer toolchains
    pub(super) fn is_invariant() -> bool {
        // SAFETY: every x86-64 processor can be asked; the first leaf tells whether the other one
        // exists.
        unsafe {
            __cpuid(0x8000_0000).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & INVARIANT_TSC != 0
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod instructions {
    pub(super) fn now() -> u64 {
        unreachable!("there is no counter of this machine")
    }

    pub(super) fn now_in_order() -> u64 {
        unreachable!("there is no counter of this machine")
    }

    pub(super) fn is_invariant() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_there_goes_on() {
        let Some(counter) = TickCounter::of_this_machine() else {
            println!("skipped: no steady counter");
            return;
        };
        let before = TickCounter::now_in_order();
        while counter.now().wrapping_sub(before) < 1 << 16 {
            core::hint::spin_loop();
        }
    }
}
