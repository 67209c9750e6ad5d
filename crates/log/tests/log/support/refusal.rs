//! A memory that gives no seglets at chosen moments.

use pluvio_log::{LogSpace, SegletClass};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The seglets that a log space's gate refuses, and those that it refused.
#[derive(Clone, Debug)]
pub struct Refusal(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    asked: AtomicU64,
    /// By class.
    refused: [AtomicU64; 3],
    ended: AtomicBool,
}

impl Refusal {
    /// Refuses those of these numbers, counted from 0.
    pub fn of(space: &LogSpace, numbers: Range<u64>) -> Self {
        Self::with(space, move |number| numbers.contains(&number))
    }

    /// Refuses one of `each` at random, in rows of up to eight.
    pub fn at_random(space: &LogSpace, seed: u64, each: u64) -> Self {
        Self::with(space, move |number| {
            // Asked by any thread: a function of the number, not a generator with a state.
            let row = (number / 8).wrapping_add(seed << 32);
            let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20;
            mixed % each == 0 && number % 8 <= mixed / each % 8
        })
    }

    fn with(space: &LogSpace, is_refused: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        let shared = Arc::<Shared>::default();
        let gate = Arc::clone(&shared);
        space.set_seglet_gate(Box::new(move |class, _count| {
            let number = gate.asked.fetch_add(1, Ordering::Relaxed);
            let refuse = !gate.ended.load(Ordering::Relaxed) && is_refused(number);
            if refuse {
                gate.refused[number_of(class)].fetch_add(1, Ordering::Relaxed);
            }
            !refuse
        }));
        Self(shared)
    }

    /// From now on nothing is refused.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }

    /// How often seglets were asked for.
    pub fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// How often they were refused.
    pub fn refused(&self, class: SegletClass) -> u64 {
        self.0.refused[number_of(class)].load(Ordering::Relaxed)
    }
}

fn number_of(class: SegletClass) -> usize {
    match class {
        SegletClass::Default => 0,
        SegletClass::Cleaner => 1,
        SegletClass::Emergency => 2,
    }
}
