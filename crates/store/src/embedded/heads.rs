//! Which head a thread appends to: that of the processor it runs on.
//!
//! Heads are numbered node by node, so the log of a memory node is a contiguous run of heads. A thread
//! remembers its head and asks for its processor again after some appends: threads seldom move, and a
//! thread that has moved appends to another processor's head for a while, which is only slower.

use crate::embedded::builder::HeadChoice;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_host::{Host, Nodes};
use pluvio_units::LogId;
use std::sync::Arc;

/// Appends between two looks at the processor: the look costs some nanoseconds.
const APPENDS_PER_LOOK: u32 = 64;

thread_local! {
    /// Store of the last append, its head, and how many appends may go on without a look. No destructor,
    /// so it is one access. Zero is no store's id.
    static LAST: Cell<(u64, u16, u32)> = const { Cell::new((0, 0, 0)) };
}

thread_local! {
    /// The thread's random numbers, for [`HeadChoice::Random`]: the number of threads that have drawn before, stirred.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// A number below `count`.
fn draw(count: u16) -> u16 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    let mut word = RANDOM.get();
    if word == 0 {
        let thread = THREADS.fetch_add(1, Ordering::Relaxed);
        word = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    // xorshift64
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    RANDOM.set(word);
    ((u128::from(word) * u128::from(count)) >> 64) as u16
}

/// The heads of one store.
pub(crate) struct Heads {
    /// Never given twice in a process.
    id: u64,
    host: Arc<dyn Host>,
    /// Head by processor; processors that are not in the topology take them in turn.
    of_processor: Vec<u16>,
    count: u16,
    choice: HeadChoice,
}

impl Heads {
    pub(crate) fn new(host: Arc<dyn Host>, nodes: &Nodes, count: u16, choice: HeadChoice) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            host,
            of_processor: spread(nodes, count),
            count,
            choice,
        }
    }

    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// The head of the calling thread.
    #[inline]
    pub(crate) fn mine(&self) -> LogId {
        let (id, head, left) = LAST.get();
        if id == self.id && left > 0 {
            LAST.set((id, head, left - 1));
            return LogId(head);
        }
        self.look()
    }

    #[cold]
    fn look(&self) -> LogId {
        match self.choice {
            HeadChoice::ByProcessor => self.of_processor(),
            HeadChoice::Random => LogId(draw(self.count)),
        }
    }

    fn of_processor(&self) -> LogId {
        let processor = self.host.processor();
        let head = match self.of_processor.get(processor) {
            Some(head) => *head,
            None => (processor % usize::from(self.count)) as u16,
        };
        LAST.set((self.id, head, APPENDS_PER_LOOK));
        LogId(head)
    }
}

/// Deals the heads to the nodes by their number of processors, and in each node to the processors in turn.
/// A node without a head of its own, because there are more nodes than heads, shares one.
fn spread(nodes: &Nodes, count: u16) -> Vec<u16> {
    let processors = nodes.processors();
    let last = nodes.iter().flatten().max().copied().unwrap_or(0);
    let mut heads: Vec<u16> = (0..=last)
        .map(|p| (p % usize::from(count)) as u16)
        .collect();
    let mut before = 0;
    for node in nodes.iter() {
        let border = |p: usize| p * usize::from(count) / processors;
        let first = border(before).min(usize::from(count) - 1);
        before += node.len();
        let own = border(before).saturating_sub(first).max(1);
        for (i, &processor) in node.iter().enumerate() {
            heads[processor] = (first + i % own) as u16;
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(nodes: &[&[usize]], count: u16) -> Vec<u16> {
        let nodes = nodes.iter().map(|n| n.to_vec()).collect();
        spread(&Nodes::new(nodes).unwrap(), count)
    }

    #[test]
    fn every_processor_has_a_head_of_its_own_where_there_are_enough() {
        assert_eq!(heads(&[&[0, 1, 2, 3]], 4), [0, 1, 2, 3]);
        assert_eq!(heads(&[&[0, 2], &[1, 3]], 4), [0, 2, 1, 3], "node by node");
    }

    #[test]
    fn nodes_share_heads_only_when_there_are_too_few() {
        assert_eq!(
            heads(&[&[0, 1, 2, 3], &[4, 5, 6, 7]], 2),
            [0, 0, 0, 0, 1, 1, 1, 1]
        );
        assert_eq!(heads(&[&[0], &[1], &[2]], 1), [0, 0, 0]);
        assert_eq!(heads(&[&[0, 1], &[2, 3]], 3), [0, 0, 1, 2]);
        assert_eq!(heads(&[&[0, 1]], 4), [0, 1], "more heads than processors");
    }
}
