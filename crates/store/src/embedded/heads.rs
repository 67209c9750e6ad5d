//! Which head a thread appends to: that of the processor it runs on. Experiments choose otherwise.
//!
//! Heads are numbered node by node, so the log of a memory node is a contiguous run of heads. A
//! thread remembers its head and asks for its processor again after some appends: threads seldom
//! move, and a thread that has moved appends to another processor's head for a while, which is only
//! slower.

use crate::embedded::experiments::HeadChoice;
use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_env::host::{Host, Nodes};
use pluvio_log::MemoryPart;
use pluvio_units::{KeyHash, LogId};
use std::sync::Arc;

/// Appends between two looks at the processor: the look costs some nanoseconds.
const APPENDS_PER_LOOK: u32 = 64;

thread_local! {
    /// Store of the last append, its head, and how many appends may go on without a look. No
    /// destructor, so it is one access. Zero is no store's id.
    static LAST: Cell<(u64, u16, u32)> = const { Cell::new((0, 0, 0)) };
}

thread_local! {
    /// The thread's random numbers, for [`HeadChoice::Random`]: the number of threads that have
    /// drawn before, stirred.
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
    share(word, count)
}

/// A number below `count`, by the upper bits of a word.
fn share(word: u64, count: u16) -> u16 {
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

    /// The head of the calling thread, for a key with this hash.
    #[inline]
    pub(crate) fn mine(&self, hash: KeyHash) -> LogId {
        let (id, head, left) = LAST.get();
        if id == self.id && left > 0 {
            LAST.set((id, head, left - 1));
            return LogId(head);
        }
        self.look(hash)
    }

    #[cold]
    fn look(&self, hash: KeyHash) -> LogId {
        match self.choice {
            HeadChoice::ByProcessor => self.of_processor(),
            HeadChoice::Random => LogId(draw(self.count)),
            HeadChoice::ByHash => LogId(share(hash.0, self.count)),
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

/// The heads of each node, in the nodes' order: by its number of processors, one at least. A node
/// without a head of its own, because there are more nodes than heads, shares one.
fn of_nodes(nodes: &Nodes, count: u16) -> Vec<Range<u16>> {
    let (count, processors) = (usize::from(count), nodes.processors());
    let border = |p: usize| p * count / processors;
    let mut before = 0;
    let of_node = |node: &Vec<usize>| {
        let first = border(before).min(count - 1);
        before += node.len();
        let own = border(before).saturating_sub(first).max(1);
        first as u16..(first + own) as u16
    };
    nodes.iter().map(of_node).collect()
}

/// The parts of the memory: one for each node with heads of its own, if there are several. A head
/// that nodes share is of the first one.
pub(crate) fn memory_parts(nodes: &Nodes, count: u16) -> Vec<MemoryPart> {
    let mut dealt = 0;
    let mut parts = Vec::new();
    for (heads, node) in of_nodes(nodes, count).into_iter().zip(nodes.numbers()) {
        let own = heads.start.max(dealt)..heads.end;
        dealt = heads.end;
        if !own.is_empty() {
            parts.push(MemoryPart {
                node: Some(*node),
                logs: own.map(LogId).collect(),
            });
        }
    }
    if parts.len() > 1 { parts } else { Vec::new() }
}

/// The processors of the nodes of these parts.
pub(crate) fn processors_of(nodes: &Nodes, parts: &[MemoryPart]) -> Vec<Vec<usize>> {
    let of_part = |part: &MemoryPart| {
        let mut all = nodes.numbers().iter().zip(nodes.iter());
        let found = all.find(|(number, _)| part.node == Some(**number));
        found.map_or_else(Vec::new, |(_, processors)| processors.clone())
    };
    parts.iter().map(of_part).collect()
}

/// Deals the heads of each node to its processors in turn.
fn spread(nodes: &Nodes, count: u16) -> Vec<u16> {
    let last = nodes.iter().flatten().max().copied().unwrap_or(0);
    let mut heads: Vec<u16> = (0..=last)
        .map(|p| (p % usize::from(count)) as u16)
        .collect();
    for (own, node) in of_nodes(nodes, count).into_iter().zip(nodes.iter()) {
        for (head, &processor) in own.cycle().zip(node) {
            heads[processor] = head;
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_env::host::ThisMachine;

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

    #[test]
    fn a_key_always_goes_to_the_head_of_its_hash_and_every_head_has_keys() {
        let nodes = Nodes::new(vec![vec![0, 1], vec![2, 3]]).unwrap();
        let by = |choice| Heads::new(Arc::new(ThisMachine), &nodes, 4, choice);
        let (heads, others) = (by(HeadChoice::ByHash), by(HeadChoice::ByProcessor));
        let mut used = [0; 4];
        for key in 0..1000_u64 {
            let hash = KeyHash::of(7, &key.to_le_bytes());
            let head = heads.mine(hash);
            // A thread remembers its head of another store, which changes nothing.
            let _other = others.mine(hash);
            assert_eq!(heads.mine(hash), head);
            used[usize::from(head.0)] += 1;
        }
        assert!(
            used.iter().all(|keys| (150..350).contains(keys)),
            "{used:?}"
        );
    }

    #[test]
    fn each_node_with_heads_of_its_own_has_a_part_of_the_memory() {
        let numbered = |nodes: &[(u32, &[usize])]| {
            let nodes = nodes.iter().map(|(number, list)| (*number, list.to_vec()));
            Nodes::numbered(nodes.collect()).unwrap()
        };
        let parts = |nodes: &[(u32, &[usize])], count: u16| {
            let parts = memory_parts(&numbered(nodes), count);
            let of =
                |part: MemoryPart| (part.node.unwrap(), part.logs.iter().map(|l| l.0).collect());
            parts.into_iter().map(of).collect::<Vec<(u32, Vec<u16>)>>()
        };
        let two: &[(u32, &[usize])] = &[(0, &[0, 1]), (2, &[2, 3])];
        let nodes = numbered(two);
        let near = processors_of(&nodes, &memory_parts(&nodes, 4));
        assert_eq!(near, [[0, 1], [2, 3]]);
        assert!(processors_of(&nodes, &memory_parts(&nodes, 1)).is_empty());
        assert_eq!(parts(two, 4), [(0, vec![0, 1]), (2, vec![2, 3])]);
        assert_eq!(parts(two, 3), [(0, vec![0]), (2, vec![1, 2])]);
        assert_eq!(parts(two, 1), [], "one head, one part");
        assert_eq!(parts(&[(1, &[0, 1, 2])], 3), [], "one node, one part");
        let more: &[(u32, &[usize])] = &[(0, &[0]), (1, &[1]), (2, &[2])];
        assert_eq!(parts(more, 2), [(0, vec![0]), (2, vec![1])]);
    }
}
