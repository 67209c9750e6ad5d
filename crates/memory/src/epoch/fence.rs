//! The full fences of the protocol: the reader pays for one at each pin, or the reclaimer pays for
//! all.
//!
//! A reader needs a full fence between publishing its epoch and its first access (`R` in
//! `protocol`). The kernel can give it one from outside, with `membarrier`. Every running thread of
//! the process passes a full fence before that call returns; other threads pass one when they are
//! scheduled.
//!
//! 1. The reader only stores, with nothing that the compiler may move across.
//! 2. The reclaimer calls `membarrier` where it looks at the slots (`L`).
//! 3. The look sees everything that a reader did before its fence from outside. Everything that the
//!    reader does after that fence comes after the unlinking.
//!
//! These are the two cases of `protocol`, with `R` wherever the kernel put it. It saves the reader
//! some nanoseconds, and lets the cache misses of one operation overlap with those of the next.
//!
//! Like that of `clock`, this argument is about the kernel and the processor. Where the kernel
//! refuses, readers pass their own fences.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use rustix::thread::{MembarrierCommand, membarrier};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReaderFence {
    /// Each reader passes its own.
    Own,
    /// The kernel does it for the reclaimer.
    FromOutside,
}

impl ReaderFence {
    /// The best that the system allows.
    pub(super) fn of_this_system() -> Self {
        match membarrier(MembarrierCommand::RegisterPrivateExpedited) {
            Ok(()) if cfg!(target_arch = "x86_64") => Self::FromOutside,
            Ok(()) | Err(_) => Self::Own,
        }
    }

    /// Publishes a reader's epoch, before its first access.
    #[inline]
    pub(super) fn publish(self, slot: &AtomicU64, epoch: u64) {
        match self {
            Self::Own => super::protocol::Word::publish(slot, epoch),
            Self::FromOutside => {
                slot.store(epoch, Ordering::Release);
                // The compiler moves nothing across; the fence from outside covers the processor.
                compiler_fence(Ordering::SeqCst);
            }
        }
    }

    /// Runs before the reclaimer looks at the slots. False if there was no fence: then nothing is
    /// known.
    #[must_use]
    pub(super) fn before_look(self) -> bool {
        match self {
            Self::Own => true,
            Self::FromOutside => membarrier(MembarrierCommand::PrivateExpedited).is_ok(),
        }
    }
}
