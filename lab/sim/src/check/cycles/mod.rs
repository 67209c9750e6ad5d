//! Transactions over several keys: strictly serializable, by a search for cycles in what must come
//! before what.
//!
//! ```text
//! transactions ──► what each says of each key ──► orders of versions ──► graph ──► cycles
//!                      (inside)              (lists, registers)
//! ```
//!
//! A transaction precedes another one if the other read what it wrote, or wrote the next version,
//! if it read a version and the other wrote a later one, or if it had ended before the other began.
//! Where there is a cycle of these, no order of all explains the history. Every edge is forced, so
//! a history that some correct cluster could give has no cycle. Lists show all there is to know about
//! their orders, registers a part of it.
//!
//! A transaction of unknown outcome counts once another one has seen a token of it. What it did may
//! have happened at any time after its beginning.
//!
//! Real time takes few edges: a joint stands for each moment at which one begins after others have
//! ended. So time and memory grow as the number of operations does, but for sorting. A million
//! operations take two seconds and 0.3 GB, with their history.
//!
//! What is found, by the names of Adya: aborted reads (G1a), intermediate reads (G1b), and cycles
//! of writes (G0), of writes and reads (G1c), with one read that a later write overtook (G-single),
//! with several (G2), and those that only real time shows.

mod graph;
mod inside;
mod lists;
mod registers;
#[cfg(test)]
mod tests;

use super::{Check, Violation};
use crate::history::transactions::{Ended, Holds, Transactions, What};
use graph::{Edge, Growing, NO_KEY, Reasons, Why};
use inside::{Left, Use};

/// Cycles that are told; more of them do not help.
const CYCLES_MAX: usize = 8;
/// Other violations that are told.
const TOLD_MAX: usize = 20;

/// Who wrote a token.
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// The transaction.
    node: u32,
    /// To which key.
    key: u32,
    /// Whether it is the last that the transaction wrote to the key.
    is_last: bool,
}

/// A search under way.
struct Search<'h> {
    transactions: &'h Transactions,
    /// By tokens.
    writers: Vec<(u64, Writer)>,
    /// Whether each was done, as far as somebody knows.
    happened: Vec<bool>,
    graph: Growing,
    found: Vec<Violation>,
}

/// What does not hold.
#[must_use]
pub fn strictly_serializable(transactions: &Transactions) -> Vec<Violation> {
    let count = u32::try_from(transactions.all.len()).expect("fewer than 2^32 transactions");
    let mut search = Search {
        transactions,
        writers: writers(transactions),
        happened: Vec::new(),
        graph: Growing::new(count),
        found: Vec::new(),
    };
    search.tokens_are_used_once();
    search.see_who_happened();
    search.add_keys();
    search.add_real_time();
    search.tell_cycles(count);
    search.found
}

/// The writer of each token.
fn writers(transactions: &Transactions) -> Vec<(u64, Writer)> {
    let mut writers = Vec::new();
    for (node, transaction) in (0..).zip(&transactions.all) {
        for (at, step) in transaction.steps.iter().enumerate() {
            if let Some(token) = step.what.token() {
                let mut later = transaction.steps[at + 1..].iter();
                let is_last = !later.any(|later| later.key == step.key && !later.what.is_read());
                let key = step.key;
                writers.push((token, Writer { node, key, is_last }));
            }
        }
    }
    writers.sort_unstable_by_key(|(token, writer)| (*token, writer.node));
    writers
}

impl Search<'_> {
    fn writer(&self, token: u64) -> Option<Writer> {
        let at = self
            .writers
            .binary_search_by_key(&token, |(token, _)| *token);
        at.ok().map(|at| self.writers[at].1)
    }

    fn happened(&self, node: u32) -> bool {
        self.happened[node as usize]
    }

    /// When a transaction began, and when it had ended.
    fn times(&self, node: u32) -> (u64, u64) {
        let transaction = &self.transactions.all[node as usize];
        (transaction.invoked, transaction.returned)
    }

    fn tell(&mut self, message: String, evidence: Vec<String>) {
        if self.found.len() < TOLD_MAX {
            self.found.push(Violation {
                check: Check::StrictlySerializable,
                message,
                evidence,
            });
        }
    }

    /// Tells what is wrong at a key, with transactions that show it.
    fn complain(&mut self, key: u32, message: &str, nodes: &[u32]) {
        let words = nodes.iter();
        let words = words.map(|node| self.transactions.in_words(*node as usize));
        let evidence = words.collect();
        let name = self.name(key);
        self.tell(format!("key {name}: {message}"), evidence);
    }

    fn name(&self, key: u32) -> &str {
        let known = self.transactions.keys.get(key as usize);
        known.map_or("?", |key| key.name.as_str())
    }

    /// Tells of a token that was read and should not be there.
    fn strange_token(&mut self, key: u32, token: u64, writer: Option<Writer>, reader: u32) {
        let why = lists::strange(writer, key);
        let nodes: Vec<u32> = writer.iter().map(|w| w.node).chain([reader]).collect();
        self.complain(key, &format!("token {token} was read, which {why}"), &nodes);
    }

    /// TRANS-1.
    fn tokens_are_used_once(&mut self) {
        let twice = { self.writers.windows(2) }.find(|pair| pair[0].0 == pair[1].0);
        if let Some([(token, one), (_, other)]) = twice {
            let message = format!("the history writes token {token} twice: it tells nothing");
            self.complain(one.key, &message, &[one.node, other.node]);
        }
    }

    /// Transactions of unknown outcome were done if one that was done saw a token of theirs.
    fn see_who_happened(&mut self) {
        let all = &self.transactions.all;
        self.happened = all.iter().map(|t| t.ended == Ended::Done).collect();
        let mut open: Vec<u32> = (0..)
            .zip(&self.happened)
            .filter_map(|(node, is_done)| is_done.then_some(node))
            .collect();
        while let Some(node) = open.pop() {
            for step in &all[node as usize].steps {
                let What::Read { saw: Some(saw) } = &step.what else {
                    continue;
                };
                for token in saw {
                    let Some(writer) = self.writer(*token) else {
                        continue;
                    };
                    let place = writer.node as usize;
                    if !self.happened[place] && all[place].ended == Ended::Unknown {
                        self.happened[place] = true;
                        open.push(writer.node);
                    }
                }
            }
        }
    }

    /// Adds what each key says.
    fn add_keys(&mut self) {
        let transactions = self.transactions;
        let mut uses: Vec<Vec<Use<'_>>> = Vec::new();
        uses.resize_with(transactions.keys.len(), Vec::new);
        let mut open: Vec<Option<u64>> = vec![None; transactions.keys.len()];
        for (node, transaction) in (0..).zip(&transactions.all) {
            for (at, step) in transaction.steps.iter().enumerate() {
                let key = step.key;
                if transaction.steps[..at].iter().any(|s| s.key == key) {
                    continue;
                }
                if self.happened(node) {
                    match inside::look(transaction, node, key) {
                        Ok(looked) => uses[key as usize].push(looked),
                        Err(message) => {
                            let message = format!("a transaction {message}");
                            self.complain(key, &message, &[node]);
                        }
                    }
                } else if transaction.ended == Ended::Unknown
                    && let Ok(looked) = inside::look(transaction, node, key)
                    && looked.left == Left::Only(None)
                {
                    // In the order of beginnings: the first one stays.
                    open[key as usize].get_or_insert(transaction.invoked);
                }
            }
        }
        for ((key, uses), open) in (0..).zip(uses).zip(open) {
            match transactions.keys[key as usize].holds {
                Holds::List => lists::add(self, key, &uses),
                Holds::Register => registers::add(self, key, &uses, open),
            }
        }
    }

    /// One that had ended precedes all that began later. A joint stands for each moment between
    /// an end and a beginning.
    fn add_real_time(&mut self) {
        let mut moments = Vec::new();
        for node in (0..).take(self.happened.len()) {
            if self.happened(node) {
                let (begin, end) = self.times(node);
                moments.push((begin, true, node));
                if end < u64::MAX {
                    moments.push((end, false, node));
                }
            }
        }
        // Of one tick, beginnings come first: what ends then has not ended before.
        moments.sort_unstable_by_key(|(tick, begins, _)| (*tick, !begins));
        let mut joint: Option<u32> = None;
        let mut ended = Vec::new();
        for (_, begins, node) in moments {
            if !begins {
                ended.push(node);
                continue;
            }
            if !ended.is_empty() {
                let next = self.graph.joint();
                for node in joint.into_iter().chain(ended.drain(..)) {
                    self.graph.edge(node, next, Why::RealTime, NO_KEY);
                }
                joint = Some(next);
            }
            if let Some(joint) = joint {
                self.graph.edge(joint, node, Why::RealTime, NO_KEY);
            }
        }
    }

    /// Tells the cycles, those first that need the fewest kinds of edges.
    fn tell_cycles(&mut self, transactions: u32) {
        let graph = core::mem::take(&mut self.graph).done(transactions);
        let all = Reasons::up_to(Why::RealTime);
        if graph.components(all).is_empty() {
            return;
        }
        let kinds = [
            Why::WriteWrite,
            Why::WriteRead,
            Why::ReadWrite,
            Why::RealTime,
        ];
        let mut told: Vec<bool> = vec![false; self.happened.len()];
        let mut cycles = 0;
        for reasons in kinds.map(Reasons::up_to) {
            for component in graph.components(reasons) {
                let nodes = component.iter().map(|node| *node as usize);
                let nodes: Vec<usize> = nodes.filter(|node| *node < told.len()).collect();
                if cycles == CYCLES_MAX || nodes.iter().any(|node| told[*node]) {
                    continue;
                }
                nodes.iter().for_each(|node| told[*node] = true);
                cycles += 1;
                let cycle = graph.shortest(&component, reasons);
                self.tell_cycle(&cycle);
            }
        }
    }

    fn tell_cycle(&mut self, cycle: &[(u32, Edge)]) {
        let name = |at: usize| format!("T{}", at % cycle.len() + 1);
        let mut evidence = Vec::new();
        for (at, (node, _)) in cycle.iter().enumerate() {
            let words = self.transactions.in_words(*node as usize);
            evidence.push(format!("{}: {words}", name(at)));
        }
        for (at, (_, edge)) in cycle.iter().enumerate() {
            let (one, next, key) = (name(at), name(at + 1), self.name(edge.key));
            evidence.push(match edge.why {
                Why::WriteWrite => format!("{next} wrote key {key} after {one}"),
                Why::WriteRead => format!("{next} read from key {key} what {one} wrote"),
                Why::ReadWrite => {
                    format!("{next} wrote key {key} after the version that {one} read")
                }
                Why::Order => {
                    format!("{next} wrote key {key} later than what {one} read or wrote there, by real time")
                }
                Why::RealTime => format!("{next} began after {one} had ended"),
            });
        }
        let message = format!(
            "{} transactions, each before the next: {}",
            cycle.len(),
            kind(cycle)
        );
        self.tell(message, evidence);
    }
}

/// What a cycle is called.
fn kind(cycle: &[(u32, Edge)]) -> String {
    let count = |why| cycle.iter().filter(|(_, edge)| edge.why == why).count();
    let reads = count(Why::WriteRead) > 0;
    let basic = match (count(Why::ReadWrite), reads) {
        (0, false) => "writes go around (G0)",
        (0, true) => "information goes around (G1c)",
        (1, _) => "a read was overtaken (G-single)",
        (2.., _) => "reads were overtaken (G2)",
    };
    match count(Why::RealTime) + count(Why::Order) {
        0 => basic.to_owned(),
        _ => format!("{basic}, as real time shows"),
    }
}
