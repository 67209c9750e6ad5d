//! Registers: what is known of the order of their versions.
//!
//! A transaction that read a version and wrote made the next one. Such versions are a chain.
//! Nothing comes between its parts. So a chain precedes another one if any operation of it had
//! ended before any of the other began. Every order that real time shows so is in the graph, by
//! joints that stand for moments.
//!
//! That there was no object is the version of some delete, or of nobody. A read of it counts where
//! only one of them is possible.

use super::Search;
use super::graph::Why;
use super::inside::{Left, Use};
use std::collections::BTreeMap;

/// A version of a register.
#[derive(Default)]
struct Version {
    /// `None`: nobody, at the beginning.
    writer: Option<u32>,
    /// Transactions that met it.
    readers: Vec<u32>,
    /// The one that a reader made of it.
    next: Option<usize>,
    has_previous: bool,
}

/// Versions that follow each other.
struct Chain {
    /// The first end of an operation on them, and whose it is; 0 at the beginning.
    first_end: (u64, Option<u32>),
    /// The last beginning of one, and whose it is.
    last_begin: (u64, Option<u32>),
    /// The writer of its first version.
    first: Option<u32>,
    /// Those who precede what comes behind it.
    last: Vec<u32>,
}

/// What is known of a register.
struct Register<'s, 'h> {
    search: &'s mut Search<'h>,
    key: u32,
    /// First the one of nobody.
    versions: Vec<Version>,
    by_token: BTreeMap<u64, usize>,
    deletes: Deletes,
}

/// The writers that may have made that there is no object.
#[derive(Default)]
struct Deletes {
    /// Beginning, end and version, by beginnings.
    done: Vec<(u64, u64, usize)>,
    /// The largest end up to each.
    ends: Vec<u64>,
    /// The first beginning of one that may have been done, or be done later.
    open: Option<u64>,
    /// Ends of all acknowledged writes, with the last beginning of one that had ended then.
    written: Vec<(u64, u64)>,
}

/// Adds what the uses of a register say to the graph. `open`: when a delete began of which nobody
/// knows whether it was done.
pub fn add(search: &mut Search<'_>, key: u32, uses: &[Use<'_>], open: Option<u64>) {
    let mut register = Register {
        search,
        key,
        versions: vec![Version::default()],
        by_token: BTreeMap::new(),
        deletes: Deletes {
            open,
            ..Deletes::default()
        },
    };
    let written = register.take_writes(uses);
    let found = register.take_reads(uses, &written);
    if found {
        register.add_neighbours();
        register.add_order();
    }
}

impl Register<'_, '_> {
    /// Makes a version of each write. Gives it, by the use.
    fn take_writes(&mut self, uses: &[Use<'_>]) -> Vec<Option<usize>> {
        let mut written = Vec::new();
        for one in uses {
            let Left::Only(token) = one.left else {
                written.push(None);
                continue;
            };
            let version = self.versions.len();
            self.versions.push(Version {
                writer: Some(one.node),
                ..Version::default()
            });
            written.push(Some(version));
            let (begin, end) = self.search.times(one.node);
            match token {
                Some(token) => drop(self.by_token.insert(token, version)),
                None => self.deletes.done.push((begin, end, version)),
            }
            if end < u64::MAX {
                self.deletes.written.push((end, begin));
            }
        }
        self.deletes.settle();
        written
    }

    /// Finds the version that each use met. False: something was met that nobody wrote.
    fn take_reads(&mut self, uses: &[Use<'_>], written: &[Option<usize>]) -> bool {
        for (one, own) in uses.iter().zip(written) {
            let Some(met) = one.met else { continue };
            let version = match met {
                [] => match self.absent(one, *own) {
                    Ok(Some(version)) => version,
                    Ok(None) => continue,
                    Err(()) => return false,
                },
                [token] => match self.by_token.get(token) {
                    Some(version) => *version,
                    None => {
                        self.no_version(*token, one.node);
                        return false;
                    }
                },
                _ => {
                    let message = format!("a register held {met:?}, which nobody wrote");
                    self.search.complain(self.key, &message, &[one.node]);
                    return false;
                }
            };
            self.versions[version].readers.push(one.node);
            if let Some(own) = *own {
                let before = self.versions[version].next.replace(own);
                self.versions[own].has_previous = true;
                if let Some(other) = before.and_then(|other| self.versions[other].writer) {
                    let message = "an update was lost: two transactions met the same and wrote";
                    self.search.complain(self.key, message, &[other, one.node]);
                    return false;
                }
            }
        }
        true
    }

    /// Complains of a token without a version.
    fn no_version(&mut self, token: u64, reader: u32) {
        let writer = self.search.writer(token);
        match writer {
            Some(writer) if writer.key == self.key && self.search.happened(writer.node) => {
                let message = format!("a part of a transaction was seen: token {token} (G1b)");
                self.search
                    .complain(self.key, &message, &[writer.node, reader]);
            }
            other => self.search.strange_token(self.key, token, other, reader),
        }
    }

    /// The version of no object that a use met, if only one is possible.
    fn absent(&mut self, one: &Use<'_>, own: Option<usize>) -> Result<Option<usize>, ()> {
        let (begin, end) = self.search.times(one.node);
        match self.deletes.possible(begin, end, own) {
            Possible::None => {
                let message = "there was no object, although it was written and not deleted";
                self.search.complain(self.key, message, &[one.node]);
                Err(())
            }
            Possible::One(version) => Ok(Some(version)),
            Possible::More => Ok(None),
        }
    }

    /// Edges between a version, its readers, and the next one.
    fn add_neighbours(&mut self) {
        let (graph, key) = (&mut self.search.graph, self.key);
        for version in &self.versions {
            let next = version.next.and_then(|next| self.versions[next].writer);
            for reader in &version.readers {
                if let Some(writer) = version.writer {
                    graph.edge(writer, *reader, Why::WriteRead, key);
                }
                if let Some(next) = next {
                    graph.edge(*reader, next, Why::ReadWrite, key);
                }
            }
            if let (Some(writer), Some(next)) = (version.writer, next) {
                graph.edge(writer, next, Why::WriteWrite, key);
            }
        }
    }

    /// The chains, by their first ends.
    fn chains(&self) -> Vec<Chain> {
        let heads = (0..self.versions.len()).filter(|at| !self.versions[*at].has_previous);
        let mut chains: Vec<Chain> = heads.map(|head| self.chain(head)).collect();
        chains.sort_by_key(|chain| chain.first_end.0);
        chains
    }

    fn chain(&self, head: usize) -> Chain {
        let first = self.versions[head].writer;
        let mut chain = Chain {
            first_end: (if first.is_some() { u64::MAX } else { 0 }, None),
            last_begin: (0, None),
            first,
            last: Vec::new(),
        };
        let mut at = Some(head);
        while let Some(version) = at.map(|at| &self.versions[at]) {
            for node in version.writer.iter().chain(&version.readers) {
                let (begin, end) = self.search.times(*node);
                if end < chain.first_end.0 {
                    chain.first_end = (end, Some(*node));
                }
                if begin > chain.last_begin.0 {
                    chain.last_begin = (begin, Some(*node));
                }
            }
            at = version.next;
            if at.is_none() {
                let all = version.writer.iter().chain(&version.readers);
                chain.last = all.copied().collect();
            }
        }
        chain
    }

    /// Edges between chains, as real time orders them: `a` precedes `b` if `a` has its first end
    /// before the last beginning of `b`.
    fn add_order(&mut self) {
        let chains = self.chains();
        let mut joints: Vec<u32> = Vec::new();
        for (at, chain) in chains.iter().enumerate() {
            // Those whose first end is later, and before this one's last beginning. They are of
            // operations that overlap, so there are few.
            for other in &chains[at + 1..] {
                if other.first_end.0 >= chain.last_begin.0 {
                    break;
                }
                if chain.first_end.0 < other.last_begin.0 {
                    return self.both_ways(chain, other);
                }
                self.precedes(other, chain);
            }
            // All that had their first end before this one's last beginning, and stand before it.
            let before = chains[..at].partition_point(|o| o.first_end.0 < chain.last_begin.0);
            if let (Some(joint), Some(first)) = (before.checked_sub(1), chain.first) {
                let graph = &mut self.search.graph;
                graph.edge(joints[joint], first, Why::Order, self.key);
            }
            let graph = &mut self.search.graph;
            let joint = graph.joint();
            if let Some(previous) = joints.last() {
                graph.edge(*previous, joint, Why::Order, self.key);
            }
            for node in &chain.last {
                graph.edge(*node, joint, Why::Order, self.key);
            }
            joints.push(joint);
        }
    }

    fn precedes(&mut self, chain: &Chain, later: &Chain) {
        if let Some(first) = later.first {
            for node in &chain.last {
                let graph = &mut self.search.graph;
                graph.edge(*node, first, Why::Order, self.key);
            }
        }
    }

    fn both_ways(&mut self, one: &Chain, other: &Chain) {
        let ends = [one.first_end.1, other.last_begin.1];
        let back = [other.first_end.1, one.last_begin.1];
        let mut nodes: Vec<u32> = ends.into_iter().chain(back).flatten().collect();
        nodes.dedup();
        let message = "by real time, each of two values came before the other";
        self.search.complain(self.key, message, &nodes);
    }
}

/// The writers that may have made that there is no object, at some time.
enum Possible {
    None,
    One(usize),
    More,
}

impl Deletes {
    /// Puts all into their order.
    fn settle(&mut self) {
        self.done.sort_unstable();
        let mut largest = 0;
        self.ends = Vec::with_capacity(self.done.len());
        for (_, end, _) in &self.done {
            largest = largest.max(*end);
            self.ends.push(largest);
        }
        self.written.sort_unstable();
        let mut last = 0;
        for (_, begin) in &mut self.written {
            last = last.max(*begin);
            *begin = last;
        }
    }

    /// Whose version an operation with these times may have met. It is not `own`.
    fn possible(&self, begin: u64, end: u64, own: Option<usize>) -> Possible {
        if self.open.is_some_and(|open| open < end) {
            return Possible::More;
        }
        // The last beginning of a write that had ended before: what had ended before that is
        // replaced.
        let ended = self.written.partition_point(|(end, _)| *end < begin);
        let replaced = ended.checked_sub(1).map_or(0, |at| self.written[at].1);
        let mut found = (replaced == 0).then_some(0);
        let begun = self.done.partition_point(|(begun, _, _)| *begun < end);
        for (at, (_, ended, version)) in self.done[..begun].iter().enumerate().rev() {
            if self.ends[at] < replaced {
                break;
            }
            if *ended < replaced || Some(*version) == own {
                continue;
            }
            if found.replace(*version).is_some() {
                return Possible::More;
            }
        }
        found.map_or(Possible::None, Possible::One)
    }
}
