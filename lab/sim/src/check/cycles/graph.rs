//! A graph of transactions, and its shortest cycles.
//!
//! Nodes are numbered: transactions first, then joints. A joint stands for a moment, so that
//! "everything before it precedes everything behind it" takes few edges. Edges lie sorted by their
//! origin, with 12 bytes each. Strongly connected components are found by Tarjan's algorithm, in
//! time linear in nodes and edges, without recursion.

use std::collections::VecDeque;

/// Why one transaction precedes another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// It wrote a version before the one of the other.
    WriteWrite,
    /// The other read what it wrote.
    WriteRead,
    /// It read a version, and the other wrote a later one.
    ReadWrite,
    /// By real time, the version that it wrote or read came before that of the other.
    Order,
    /// It had ended before the other began.
    RealTime,
}

impl Why {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of reasons.
#[derive(Clone, Copy, Debug)]
pub struct Reasons(u8);

impl Reasons {
    /// All up to this one.
    pub fn up_to(why: Why) -> Self {
        Self((why.bit() << 1) - 1)
    }

    fn has(self, why: Why) -> bool {
        self.0 & why.bit() != 0
    }
}

/// Stands for no key.
pub const NO_KEY: u32 = u32::MAX;

/// An edge.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The later one.
    pub to: u32,
    /// The key of the reason, or [`NO_KEY`].
    pub key: u32,
    /// The reason.
    pub why: Why,
}

/// A graph that grows.
#[derive(Debug, Default)]
pub struct Growing {
    nodes: u32,
    edges: Vec<(u32, Edge)>,
}

impl Growing {
    /// One with nodes `0..nodes`.
    pub fn new(nodes: u32) -> Self {
        Self {
            nodes,
            edges: Vec::new(),
        }
    }

    /// One more node.
    pub fn joint(&mut self) -> u32 {
        self.nodes += 1;
        self.nodes - 1
    }

    /// One more edge. A node precedes itself never: that is left out.
    pub fn edge(&mut self, from: u32, to: u32, why: Why, key: u32) {
        if from != to {
            self.edges.push((from, Edge { to, key, why }));
        }
    }

    /// The whole.
    pub fn done(self, transactions: u32) -> Graph {
        let mut starts = vec![0_u32; self.nodes as usize + 1];
        for (from, _) in &self.edges {
            starts[*from as usize + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let none = Edge {
            to: 0,
            key: NO_KEY,
            why: Why::RealTime,
        };
        let mut edges = vec![none; self.edges.len()];
        for (from, edge) in self.edges {
            let place = &mut next[from as usize];
            edges[*place as usize] = edge;
            *place += 1;
        }
        Graph {
            transactions,
            starts,
            edges,
        }
    }
}

/// A graph.
#[derive(Debug)]
pub struct Graph {
    transactions: u32,
    starts: Vec<u32>,
    edges: Vec<Edge>,
}

/// No number of Tarjan's algorithm.
const UNSEEN: u32 = u32::MAX;

impl Graph {
    fn out(&self, node: u32) -> &[Edge] {
        let (start, end) = (self.starts[node as usize], self.starts[node as usize + 1]);
        &self.edges[start as usize..end as usize]
    }

    fn nodes(&self) -> u32 {
        u32::try_from(self.starts.len() - 1).unwrap_or(u32::MAX)
    }

    /// The strongly connected components of more than one node, by edges of these reasons.
    pub fn components(&self, reasons: Reasons) -> Vec<Vec<u32>> {
        let nodes = self.nodes() as usize;
        let (mut number, mut low) = (vec![UNSEEN; nodes], vec![UNSEEN; nodes]);
        let mut is_open = vec![false; nodes];
        let (mut open, mut found) = (Vec::new(), Vec::new());
        let mut last = 0;
        // Nodes under way, each with the edge that is looked at next.
        let mut path: Vec<(u32, usize)> = Vec::new();
        for root in 0..self.nodes() {
            if number[root as usize] != UNSEEN {
                continue;
            }
            path.push((root, 0));
            while let Some((node, at)) = path.last_mut() {
                let (node, edge) = (*node, *at);
                *at += 1;
                let own = node as usize;
                if edge == 0 {
                    (number[own], low[own]) = (last, last);
                    last += 1;
                    open.push(node);
                    is_open[own] = true;
                }
                if let Some(edge) = self.out(node).get(edge) {
                    let to = edge.to as usize;
                    if !reasons.has(edge.why) {
                        continue;
                    }
                    if number[to] == UNSEEN {
                        path.push((edge.to, 0));
                    } else if is_open[to] {
                        low[own] = low[own].min(number[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some((parent, _)) = path.last() {
                    let parent = *parent as usize;
                    low[parent] = low[parent].min(low[own]);
                }
                if low[own] == number[own] {
                    let start = open.iter().rposition(|other| *other == node);
                    let component = open.split_off(start.unwrap_or(0));
                    for other in &component {
                        is_open[*other as usize] = false;
                    }
                    if component.len() > 1 {
                        found.push(component);
                    }
                }
            }
        }
        found
    }

    /// The shortest cycle through one of some transactions of a component. Each comes with the
    /// reason why it precedes the next one; the last precedes the first.
    pub fn shortest(&self, component: &[u32], reasons: Reasons) -> Vec<(u32, Edge)> {
        /// Transactions from which a cycle is looked for.
        const STARTS_MAX: usize = 64;
        let mut inside = component.to_vec();
        inside.sort_unstable();
        let starts = inside.iter().filter(|node| **node < self.transactions);
        let cycles = starts
            .take(STARTS_MAX)
            .filter_map(|start| self.cycle(*start, &inside, reasons));
        cycles.min_by_key(Vec::len).unwrap_or_default()
    }

    /// The shortest cycle through `start` inside of a component, which is sorted. Joints count
    /// nothing.
    fn cycle(&self, start: u32, inside: &[u32], reasons: Reasons) -> Option<Vec<(u32, Edge)>> {
        let place = |node: u32| inside.binary_search(&node).ok();
        let mut distance = vec![u32::MAX; inside.len()];
        let mut before: Vec<Option<(u32, Edge)>> = vec![None; inside.len()];
        let mut queue = VecDeque::from([(start, 0)]);
        let mut closing = None;
        while let Some((node, far)) = queue.pop_front() {
            if node != start && distance[place(node)?] < far {
                continue;
            }
            let mut edges = self.out(node).iter().filter(|edge| reasons.has(edge.why));
            if let Some(edge) = edges.find(|edge| edge.to == start) {
                closing = Some((node, *edge));
                break;
            }
            for edge in self.out(node).iter().filter(|edge| reasons.has(edge.why)) {
                let Some(at) = place(edge.to) else { continue };
                let is_joint = edge.to >= self.transactions;
                let there = far + u32::from(!is_joint);
                if edge.to != start && there < distance[at] {
                    distance[at] = there;
                    before[at] = Some((node, *edge));
                    match is_joint {
                        true => queue.push_front((edge.to, there)),
                        false => queue.push_back((edge.to, there)),
                    }
                }
            }
        }
        // Back from the end, with joints left out.
        let mut cycle = Vec::new();
        let mut step = closing?;
        loop {
            let (node, edge) = step;
            if node < self.transactions {
                cycle.push((node, edge));
            }
            if node == start {
                break;
            }
            step = before[place(node)?]?;
        }
        cycle.reverse();
        Some(cycle)
    }
}
