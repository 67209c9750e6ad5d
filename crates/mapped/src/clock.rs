//! The clock that owner and readers share: `CLOCK_BOOTTIME`. All processes of a machine have it
//! in common unless one is in a time namespace of its own. It goes on while the machine sleeps, so
//! a lease ends then as well.
//!
//! A read must know that a moment has not come yet. It does not need the time for that. So a
//! thread asks the clock about once in half a millisecond, and between by the processor's counter
//! how old the answer is:
//!
//! ```text
//! ask:  counter = C, clock = T           ──► "while the counter is below C + AGE_TICKS,
//! read: counter below C + AGE_TICKS?          the clock shows less than T + AGE_NS"
//! ```
//!
//! The clock of the system keeps the reads of a thread apart: it waits for all loads before it. The
//! bare counter does not, so the processor begins the next read while it waits for memory.
//!
//! Why the bound is right is in `docs/mapped-reads.md`.
//!
//! Invariants:
//! - MAP-3: what [`latest_ns`] gives is no earlier than the clock's time at that moment, and at
//!   most [`AGE_NS`] later.
//!
//! Threads: each has an answer of its own. A forked child goes on with that of its parent. A
//! process leaves the counter for good when it has not kept pace with the clock. The same where
//! the system has another source for its clock ([`look_at_system`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_memory::TickCounter;
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;

/// Ticks for which an answer of the clock does: 0.2 to 1 ms with the 1 to 5 GHz that counters of
/// this kind have.
const AGE_TICKS: u64 = 1 << 20;

/// The clock goes on by less in [`AGE_TICKS`]: a counter of 1 GHz takes a tenth of it. The rest has
/// room for a look at the counter that the processor takes too early.
pub(crate) const AGE_NS: u64 = 10_000_000;

/// A counter that takes longer for a tick, in nanoseconds, is not used. With this one [`AGE_TICKS`]
/// are 4.2 ms, so half of [`AGE_NS`] is left. That covers early looks, and a clock that the system
/// lets run faster than the counter, by a tenth at most.
const NS_A_TICK_MAX: u64 = 4;

/// Where the kernel says which counter its clock is made from.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Its time in nanoseconds. No system call where the system maps its clock, as it does nearly
/// everywhere. The exact clock: a coarse one stands still where the hypervisor takes its processor.
#[must_use]
#[inline]
pub fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (s, ns) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    s.saturating_mul(1_000_000_000).saturating_add(ns)
}

/// What a thread knows of the time.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// The counter it was asked by; without one nothing is known.
    counter: Option<TickCounter>,
    /// The counter before the clock was asked.
    ticks: u64,
    /// The clock.
    ns: u64,
}

impl Answer {
    const NONE: Self = Self {
        counter: None,
        ticks: 0,
        ns: 0,
    };

    /// The bound at that state of the counter, if this answer still tells one. A counter that has
    /// gone back is far above.
    #[inline(always)]
    fn latest_ns(&self, ticks: u64) -> Option<u64> {
        let is_young = ticks.wrapping_sub(self.ticks) < AGE_TICKS;
        is_young.then(|| self.ns.saturating_add(AGE_NS))
    }

    /// Whether the counter has gone on since this answer, up to `ticks`, as far as the clock shows,
    /// which was `ns` before that. Two processors' counters may differ by some ticks.
    fn keeps_pace(&self, ticks: u64, ns: u64) -> bool {
        let passed = i128::from(ticks) - i128::from(self.ticks) + i128::from(AGE_TICKS);
        let needed = i128::from(ns.saturating_sub(self.ns) / NS_A_TICK_MAX);
        passed >= needed
    }
}

/// The clock and the counter that an answer is asked of: those of the machine, or of a test.
trait Times {
    fn ticks(&mut self, counter: TickCounter) -> u64;
    fn clock_ns(&mut self) -> u64;
}

struct OfMachine;

impl Times for OfMachine {
    #[inline]
    fn ticks(&mut self, counter: TickCounter) -> u64 {
        counter.now()
    }

    #[inline]
    fn clock_ns(&mut self) -> u64 {
        boottime_ns()
    }
}

/// Whether a process trusts the counter.
#[derive(Debug)]
struct Trust {
    /// Set once the system has said that its clock is made from it.
    counter: OnceLock<TickCounter>,
    /// It has failed, or the system has left it. It is not trusted again.
    lost: AtomicBool,
}

impl Trust {
    const fn unknown() -> Self {
        Self {
            counter: OnceLock::new(),
            lost: AtomicBool::new(false),
        }
    }

    /// What the system says now.
    fn look(&self, clock_source: Option<&str>) {
        match clock_source.map(str::trim) {
            // Asking the processor takes long in a virtual machine.
            Some("tsc") if self.counter.get().is_some() => {}
            Some("tsc") => match TickCounter::of_this_machine() {
                Some(counter) => _ = self.counter.set(counter),
                None => self.lose(),
            },
            Some(_) | None => self.lose(),
        }
    }

    fn lose(&self) {
        // Relaxed: threads learn nothing else by it.
        self.lost.store(true, Ordering::Relaxed);
    }

    fn counter(&self) -> Option<TickCounter> {
        match self.lost.load(Ordering::Relaxed) {
            true => None,
            false => self.counter.get().copied(),
        }
    }

    /// Asks the clock. Gives the bound, and lets `answer` be what the thread knows from then on.
    fn ask(&self, answer: &mut Answer, times: &mut impl Times) -> u64 {
        let Some(counter) = self.counter() else {
            *answer = Answer::NONE;
            return times.clock_ns();
        };
        let ticks = times.ticks(counter);
        let ns = times.clock_ns();
        let next = Answer {
            counter: Some(counter),
            ticks,
            ns,
        };
        let before = core::mem::replace(answer, next);
        if before.counter.is_some() && !before.keeps_pace(times.ticks(counter), ns) {
            self.lose();
            *answer = Answer::NONE;
        }
        ns
    }
}

static TRUST: Trust = Trust::unknown();

/// Finds out, by a file of the system, whether the counter can be trusted. Before that, and where
/// it cannot, [`latest_ns`] is [`boottime_ns`].
pub(crate) fn look_at_system() {
    TRUST.look(std::fs::read_to_string(CLOCK_SOURCE).ok().as_deref());
}

thread_local! {
    /// Has no destructor, so that reading it is one access.
    static ANSWER: Cell<Answer> = const { Cell::new(Answer::NONE) };
}

/// A time that the clock has not passed (MAP-3). It is no clock: a later call may give an earlier
/// time.
#[inline(always)]
pub(crate) fn latest_ns() -> u64 {
    let answer = ANSWER.get();
    let known = answer
        .counter
        .and_then(|counter| answer.latest_ns(counter.now()));
    known.unwrap_or_else(ask)
}

#[cold]
#[inline(never)]
fn ask() -> u64 {
    let mut answer = ANSWER.get();
    let ns = TRUST.ask(&mut answer, &mut OfMachine);
    ANSWER.set(answer);
    ns
}

#[cfg(test)]
mod tests;
