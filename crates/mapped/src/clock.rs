//! The clock that owner and readers share: `CLOCK_BOOTTIME`. All processes of a machine have it
//! in common unless one is in a time namespace of its own. It goes on while the machine sleeps, so
//! a lease ends then as well.

use rustix::time::{ClockId, clock_gettime};

/// Its time in nanoseconds. No system call where the system maps its clock, as it does nearly
/// everywhere. The exact clock: a coarse one stands still where the hypervisor takes its processor.
#[must_use]
#[inline]
pub fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (s, ns) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    s.saturating_mul(1_000_000_000).saturating_add(ns)
}
