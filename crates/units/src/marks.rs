//! Coverage marks: which rare branches a simulated run has reached.
//!
//! A branch that only faults lead to says [`mark`] with a name of its own. A simulator counts the
//! marks of the thread that its whole cluster runs in ([`Marks`]). Without a counter, a mark is one
//! look at a thread-local variable. Marks therefore belong on rare branches, and not on the way of
//! every operation.
//!
//! Names are words with hyphens, the room first: `recovery-log-incomplete`. Every test run reaches
//! every mark, by the simulator's seeds (`tests/sim-marks.txt`) or by a test of its own
//! ([`Marks::to_reach`]). `cargo xtask tidy` checks that.
//!
//! Thread rules: each thread counts for itself.

use core::cell::RefCell;
use std::collections::BTreeMap;

/// How often each mark was reached.
pub type MarkCounts = BTreeMap<&'static str, u64>;

thread_local! {
    static COUNTS: RefCell<Option<MarkCounts>> = const { RefCell::new(None) };
}

/// Notes that the branch of this name was reached, if this thread counts.
#[cold]
pub fn mark(name: &'static str) {
    // The destructors of a thread's variables may call this when the counts are gone.
    let _nobody_counts_any_more = COUNTS.try_with(|counts| {
        if let Some(counts) = &mut *counts.borrow_mut() {
            *counts.entry(name).or_default() += 1;
        }
    });
}

/// Counts the marks that this thread reaches, as long as it lives. Only one at a time counts: a
/// second one begins anew.
#[derive(Debug)]
#[must_use = "nothing is counted once it is dropped"]
pub struct Marks {
    /// Marks that must be reached before this is dropped.
    to_reach: &'static [&'static str],
    // Counting belongs to a thread, so this value stays in it.
    _not_send: core::marker::PhantomData<*const ()>,
}

impl Marks {
    /// Begins to count, from nothing.
    pub fn count() -> Self {
        Self::to_reach(&[])
    }

    /// Begins to count, for a test that leads to these marks. They must be reached before the value
    /// is dropped.
    ///
    /// # Panics
    /// When the value is dropped and one of them was not reached, unless the thread panics already.
    pub fn to_reach(marks: &'static [&'static str]) -> Self {
        COUNTS.set(Some(MarkCounts::new()));
        Self {
            to_reach: marks,
            _not_send: core::marker::PhantomData,
        }
    }

    /// The marks reached so far.
    #[must_use]
    pub fn reached(&self) -> MarkCounts {
        COUNTS.with_borrow(|counts| counts.clone().unwrap_or_default())
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        let reached = COUNTS.take().unwrap_or_default();
        if !std::thread::panicking() {
            let missed = |mark: &&&str| !reached.contains_key(**mark);
            let missed: Vec<_> = self.to_reach.iter().filter(missed).collect();
            assert!(missed.is_empty(), "marks that were not reached: {missed:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_only_while_somebody_asks_for_them() {
        mark("before");
        let marks = Marks::count();
        mark("one");
        mark("two");
        mark("two");
        #[expect(clippy::disallowed_methods, reason = "what is tested is a thread")]
        let other = std::thread::spawn(|| mark("elsewhere"));
        other.join().expect("it ends");
        assert_eq!(marks.reached(), MarkCounts::from([("one", 1), ("two", 2)]));
        drop(marks);
        mark("after");
        assert!(Marks::count().reached().is_empty());
    }

    #[test]
    #[should_panic(expected = "not reached: [\"two\"]")]
    fn a_mark_that_a_test_does_not_reach_fails_it() {
        const BOTH: &[&str] = &["one", "two"];
        let _marks = Marks::to_reach(BOTH);
        mark("one");
    }
}
