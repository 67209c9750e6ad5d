//! Who pays for the full fences of the protocol: the reader at each pin, or the reclaimer alone.
//!
//! A reader needs a full fence between publishing its epoch and its first access (`R` in
//! `protocol`). The kernel can give it one from outside: `membarrier` has every running thread of
//! the process pass a full fence before it returns; threads that do not run pass one when they are
//! scheduled. So the reader only stores, with nothing that the compiler may move across, and the
//! reclaimer calls `membarrier` where it looks at the slots (`L`). Whatever a reader did before its
//! fence from outside is seen by the look; whatever it does after it comes after the unlinking: the
//! two cases of `protocol`, with `R` wherever the kernel put it. It saves the reader some
//! nanoseconds and lets the cache misses of one operation overlap with those of the next.
//!
//! This argument is about the kernel and the processor, as that of `clock`. Where the kernel
//! refuses, readers pass their own fences.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use rustix::thread::{MembarrierCommand, membarrier};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReaderFence {
    /// Each reader passes its own.
    Own,
    /// The reclaimer has the kernel do it.
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
                // Nothing is moved across, by the compiler; the processor is seen to from outside.
                compiler_fence(Ordering::SeqCst);
            }
        }
    }

    /// Before the reclaimer looks at the slots. False when the fence could not be had: then nothing
    /// is known.
    #[must_use]
    pub(super) fn before_look(self) -> bool {
        match self {
            Self::Own => true,
            Self::FromOutside => membarrier(MembarrierCommand::PrivateExpedited).is_ok(),
        }
    }
}
