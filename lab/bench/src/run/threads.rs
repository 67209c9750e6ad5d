//! Threads that begin at the same moment.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;

/// Does `work` with each part in a thread of its own, and gives the results in their order. No
/// thread begins before all are ready. Each calls the function it is given when it is ready, and
/// all may meet again later by calling it again. A panic of one ends the process.
pub(crate) fn side_by_side<T: Send, R: Send>(
    parts: impl IntoIterator<Item = T>,
    work: impl Fn(T, &dyn Fn()) -> R + Sync,
) -> Vec<R> {
    let parts: Vec<T> = parts.into_iter().collect();
    let start = Barrier::new(parts.len());
    let ready = || {
        start.wait();
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .into_iter()
            .map(|part| {
                scope.spawn(|| {
                    let ended = catch_unwind(AssertUnwindSafe(|| work(part, &ready)));
                    // The others may wait for this one for ever; its panic has been written.
                    ended.unwrap_or_else(|_| std::process::abort())
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|panic| resume_unwind(panic))
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn nobody_begins_before_all_are_ready() {
        let arrived = AtomicU32::new(0);
        let seen = side_by_side(0..8, |part, ready| {
            arrived.fetch_add(1, Ordering::SeqCst);
            ready();
            (part, arrived.load(Ordering::SeqCst))
        });
        let expected: Vec<_> = (0..8).map(|part| (part, 8)).collect();
        assert_eq!(seen, expected);
    }
}
