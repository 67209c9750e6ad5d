//! Coverage marks: which rare branches a simulated run has reached.
//!
//! A branch that only faults lead to says [`mark`] with a name of its own. Whoever simulates counts
//! them for the thread that the whole cluster runs in ([`Marks`]); nobody else does, and then a
//! mark is one look at a thread-local variable. So marks belong on rare branches, not on the way of
//! every operation.
//!
//! Names are words with hyphens, the room first: `recovery-log-incomplete`. Every mark is reached
//! in every test run: by the simulator's seeds (`tests/sim-marks.txt`), or by a test of its own
//! ([`Marks::to_reach`]). `cargo xtask tidy` sees to that.
//!
//! Thread rules: each thread counts for itself.

use core::cell::RefCell;
use std::collections::BTreeMap;

/// How often each mark was reached.
pub type MarkCounts = BTreeMap<&'static str, u64>;

thread_local! {
    static COUNTS: RefCell<Option<MarkCounts>> = const { RefCell::new(None) };
}

/// Notes that the branch of this name was reached, if anybody counts.
#[cold]
pub fn mark(name: &'static str) {
    // A thread that ends may write from the destructors of its variables, when this one is gone.
    let _nobody_counts_any_more = COUNTS.try_with(|counts| {
        if let Some(counts) = &mut *counts.borrow_mut() {
            *counts.entry(name).or_default() += 1;
        }
    });
}

/// Counts the marks that this thread reaches, as long as it lives. One at a time: a second one
/// begins anew.
#[derive(Debug)]
#[must_use = "nothing is counted once it is dropped"]
pub struct Marks {
    /// What must have been reached when this is dropped.
    to_reach: &'static [&'static str],
    // Counting is of a thread: this value stays in it.
    _not_send: core::marker::PhantomData<*const ()>,
}

impl Marks {
    /// Begins to count, from nothing.
    pub fn count() -> Self {
        Self::to_reach(&[])
    }

    /// Begins to count, for a test that leads to these marks: when the value is dropped, they must
    /// have been reached.
    ///
    /// # Panics
    /// When it is dropped and one of them was not reached, unless the thread panics already.
    pub fn to_reach(marks: &'static [&'static str]) -> Self {
        COUNTS.set(Some(MarkCounts::new()));
        Self {
            to_reach: marks,
            _not_send: core::marker::PhantomData,
        }
    }

    /// What was reached so far.
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
