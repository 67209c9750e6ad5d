//! Queues that the connections of a thread lend each other.
//!
//! A connection holds the memory of a queue only while something is in it. So thousands of idle
//! ones cost no memory of queues, and a busy one gets the same warm memory again.

use core::cell::RefCell;
use std::collections::VecDeque;
use std::thread::LocalKey;

/// Empty queues of a thread.
pub(crate) struct Spare<T> {
    places_max: usize,
    queues_max: usize,
    queues: RefCell<Vec<VecDeque<T>>>,
}

impl<T> Spare<T> {
    /// Keeps at most `queues_max` queues, of at most `places_max` places each. Others are given
    /// back to the allocator.
    pub(crate) const fn new(places_max: usize, queues_max: usize) -> Self {
        Self {
            places_max,
            queues_max,
            queues: RefCell::new(Vec::new()),
        }
    }
}

/// Gives `queue` memory, if it has none and some is spare.
pub(crate) fn take<T>(spare: &'static LocalKey<Spare<T>>, queue: &mut VecDeque<T>) {
    if queue.capacity() == 0
        && let Some(lent) = spare.with(|spare| spare.queues.borrow_mut().pop())
    {
        *queue = lent;
    }
}

/// Takes the memory of `queue`, which is empty.
pub(crate) fn give<T>(spare: &'static LocalKey<Spare<T>>, queue: &mut VecDeque<T>) {
    debug_assert!(queue.is_empty(), "only an idle queue is given back");
    let mut queue = core::mem::take(queue);
    queue.clear();
    spare.with(|spare| {
        let mut queues = spare.queues.borrow_mut();
        if (1..=spare.places_max).contains(&queue.capacity()) && queues.len() < spare.queues_max {
            queues.push(queue);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static SPARE: Spare<u64> = const { Spare::new(8, 2) };
    }

    fn lent() -> usize {
        let mut queue = VecDeque::new();
        take(&SPARE, &mut queue);
        queue.capacity()
    }

    #[test]
    fn memory_is_lent_again_within_bounds() {
        assert_eq!(lent(), 0);
        let mut queues = [9, 0, 8, 8, 8].map(VecDeque::with_capacity);
        for queue in &mut queues {
            give(&SPARE, queue);
            assert_eq!(queue.capacity(), 0);
        }
        assert_eq!([lent(), lent(), lent()], [8, 8, 0]);
    }

    #[test]
    fn a_queue_that_has_memory_keeps_it() {
        give(&SPARE, &mut VecDeque::with_capacity(8));
        let mut queue = VecDeque::from([1, 2]);
        take(&SPARE, &mut queue);
        assert_eq!(queue, [1, 2]);
        assert_eq!(lent(), 8);
    }
}
