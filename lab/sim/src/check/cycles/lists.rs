//! Lists: the longest read of one shows the order of all appends before it.
//!
//! Every other read is a beginning of that. An append that is in none came after all reads.

use super::graph::Why;
use super::inside::{Left, Use};
use super::{Search, Writer};
use std::collections::BTreeSet;

/// What is known of a list.
struct List<'a> {
    key: u32,
    /// All tokens that were seen, in their order.
    order: Vec<u64>,
    /// The transaction of each.
    writers: Vec<u32>,
    uses: &'a [Use<'a>],
}

/// The tokens that were there after a use, if it says so.
fn after(one: &Use<'_>) -> Option<Vec<u64>> {
    let mut tokens = one.met?.to_vec();
    if let Left::Appended(own) = &one.left {
        tokens.extend(own);
    }
    Some(tokens)
}

/// Adds what the uses of a list say to the graph.
pub fn add(search: &mut Search<'_>, key: u32, uses: &[Use<'_>]) {
    let seen = uses.iter().filter_map(|one| Some((one, after(one)?)));
    let Some((longest, order)) = seen.max_by_key(|(_, tokens)| tokens.len()) else {
        return add_unseen(search, key, uses, &[], &[]);
    };
    let forks = |one: &&Use<'_>| {
        let own = after(one).is_some_and(|tokens| !order.starts_with(&tokens));
        own || one.met.is_some_and(|met| !order.starts_with(met))
    };
    if let Some(other) = uses.iter().find(forks) {
        let message = "two transactions saw appends in different orders, or one was lost";
        search.complain(key, message, &[longest.node, other.node]);
        return;
    }
    let mut there = BTreeSet::new();
    if let Some(token) = order.iter().find(|token| !there.insert(**token)) {
        let message = format!("token {token} is there twice: it was appended twice");
        let writer = search.writer(*token).map(|writer| writer.node);
        let nodes: Vec<u32> = writer.into_iter().chain([longest.node]).collect();
        search.complain(key, &message, &nodes);
        return;
    }
    let mut writers = Vec::new();
    for token in &order {
        match search.writer(*token) {
            Some(writer) if writer.key == key && search.happened(writer.node) => {
                writers.push(writer.node);
            }
            other => return search.strange_token(key, *token, other, longest.node),
        }
    }
    let list = List {
        key,
        order,
        writers,
        uses,
    };
    list.check_places(search);
    list.add(search);
    add_unseen(search, key, uses, &list.order, &list.last());
}

/// Appends that no read shows came behind all that were seen.
fn add_unseen(
    search: &mut Search<'_>,
    key: u32,
    uses: &[Use<'_>],
    order: &[u64],
    last: &[(u32, Why)],
) {
    let seen: BTreeSet<u64> = order.iter().copied().collect();
    for one in uses {
        let Left::Appended(own) = &one.left else {
            continue;
        };
        if own.iter().any(|token| !seen.contains(token)) {
            for (node, why) in last {
                search.graph.edge(*node, one.node, *why, key);
            }
        }
    }
}

impl List<'_> {
    /// Those who know the whole order: the last writer, and the readers of all.
    fn last(&self) -> Vec<(u32, Why)> {
        let all = self.order.len();
        let readers = self.uses.iter().filter(|one| {
            let appends = matches!(one.left, Left::Appended(_));
            one.met.is_some_and(|met| met.len() == all) && !appends
        });
        let readers = readers.map(|one| (one.node, Why::ReadWrite));
        let writer = self.writers.last().map(|node| (*node, Why::WriteWrite));
        readers.chain(writer).collect()
    }

    /// A length that an append was told is its place.
    fn check_places(&self, search: &mut Search<'_>) {
        for one in self.uses {
            for (token, length) in &one.placed {
                let place = usize::try_from(*length)
                    .ok()
                    .and_then(|at| at.checked_sub(1));
                let there = place.and_then(|place| self.order.get(place));
                if there.is_some_and(|there| there != token) {
                    let message = format!("token {token} is not at its place, {length}");
                    search.complain(self.key, &message, &[one.node]);
                }
            }
        }
    }

    fn add(&self, search: &mut Search<'_>) {
        for pair in self.writers.windows(2) {
            search
                .graph
                .edge(pair[0], pair[1], Why::WriteWrite, self.key);
        }
        for one in self.uses {
            let Some(met) = one.met else { continue };
            if let Some(next) = self.writers.get(met.len()) {
                search.graph.edge(one.node, *next, Why::ReadWrite, self.key);
            }
            let Some(token) = met.last() else { continue };
            let writer = self.writers[met.len() - 1];
            search
                .graph
                .edge(writer, one.node, Why::WriteRead, self.key);
            let is_last = search.writer(*token).is_some_and(|writer| writer.is_last);
            if !is_last && writer != one.node {
                let message = format!("a part of a transaction was seen: token {token} (G1b)");
                search.complain(self.key, &message, &[writer, one.node]);
            }
        }
    }
}

/// The fault of a token that was read, in words.
pub fn strange(writer: Option<Writer>, key: u32) -> &'static str {
    match writer {
        None => "nobody wrote",
        Some(writer) if writer.key != key => "was written to another key",
        Some(_) => "a transaction wrote that was not done (G1a)",
    }
}
