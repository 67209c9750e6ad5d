//! Neighbouring tablets of one owner become one again.
//!
//! Cuts come from recoveries, migrations and drains, and the number of tablets of a table is
//! limited. Nothing moves for a join:
//!
//! 1. This work finds tablets that are neighbours, belong to one server that is up, and need not
//!    stay apart.
//! 2. It asks the owner. That one says yes when all of the range is served there, and no recovery
//!    or migration of it waits for an answer from here. From then on it has one tablet, too.
//! 3. It stores the join if the records are still those of step 1.
//!
//! That is COORD-18. Between steps 2 and 3 an owner may have one tablet where the coordinator has
//! several. It cuts a part that moves out of that.

use super::balance::Counters;
use crate::context::Context;
use crate::state::{State, TableRecord, TabletRecord};
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use pluvio_env::timeout;
use pluvio_units::{HashRange, TableId};
use pluvio_wire::JoinTabletsLocal;
use std::sync::Arc;

/// The pause before owners are asked again that did not agree.
const RETRY: Duration = Duration::from_millis(500);
/// Joins asked for at a time.
const CALLS_MAX: usize = 16;

impl TableRecord {
    /// Each maximal run of neighbours that may be one tablet.
    fn runs(&self) -> Vec<&[TabletRecord]> {
        let mut runs = Vec::new();
        let mut from = 0;
        for at in 1..=self.tablets.len() {
            if at < self.tablets.len() && self.may_join(&self.tablets[at - 1], &self.tablets[at]) {
                continue;
            }
            if at - from > 1 {
                runs.push(&self.tablets[from..at]);
            }
            from = at;
        }
        runs
    }

    fn may_join(&self, lower: &TabletRecord, upper: &TabletRecord) -> bool {
        let border = upper.range.first;
        let free = |t: &TabletRecord| t.is_settled() && !self.moves_within(t.range);
        lower.owner == upper.owner
            && lower.since == upper.since
            && !self.kept.contains(&border)
            && !self.cuts.contains(&border)
            && free(lower)
            && free(upper)
    }

    /// Makes one tablet of these, if they are still as they were and may still be one. Says whether
    /// it did. Somebody may have asked for a cut between two of them while their owner was asked.
    fn join(&mut self, run: &[TabletRecord]) -> bool {
        let [first, .., last] = run else {
            return false;
        };
        let is_there = |at: &usize| self.tablets[*at..].starts_with(run);
        let Some(at) = (0..self.tablets.len()).find(is_there) else {
            return false;
        };
        if !run.windows(2).all(|pair| self.may_join(&pair[0], &pair[1])) {
            return false;
        }
        let mut joined = *first;
        joined.range.last = last.range.last;
        if run.iter().any(|t| t.recovered_by != first.recovered_by) {
            joined.recovered_by = None;
        }
        if run.iter().any(|t| t.moved_by != first.moved_by) {
            joined.moved_by = None;
        }
        self.tablets.splice(at..at + run.len(), [joined]);
        true
    }
}

impl State {
    /// Whether a table has tablets that may become one.
    pub(in crate::work) fn wants_join(&self, table: &TableRecord) -> bool {
        let mut runs = table.runs().into_iter();
        !table.dropping && runs.any(|run| self.is_up(run[0].owner))
    }
}

/// The work of `Work::Join`.
pub(crate) struct Joins {
    context: Arc<Context>,
    counters: Arc<Counters>,
}

impl Joins {
    pub(super) fn new(context: Arc<Context>, counters: Arc<Counters>) -> Self {
        Self { context, counters }
    }

    /// Ends when no neighbours of the table may be one tablet.
    pub(super) async fn join(&self, table: TableId) {
        loop {
            let state = self.context.state();
            let Some(record) = state.tables.get(&table) else {
                return;
            };
            if !state.wants_join(record) {
                return;
            }
            if !self.join_once(&state, record).await {
                let before = record.clone();
                let changed = self
                    .context
                    .ledger
                    .until(|state| state.tables.get(&table) != Some(&before));
                // Both ends mean the same: look again.
                let _ = timeout(&*self.context.env.clock, RETRY, changed).await;
            }
        }
    }

    /// Says whether anything was joined.
    async fn join_once(&self, state: &State, record: &TableRecord) -> bool {
        let (table, version) = (record.id, state.globals.version);
        let runs = record.runs().into_iter();
        let asked = runs.map(|run| async move {
            let owner = state.servers.get(&run[0].owner)?;
            let range = HashRange::new(run[0].range.first, run[run.len() - 1].range.last);
            let request = JoinTabletsLocal {
                version,
                table,
                range,
            };
            match self
                .context
                .calls
                .call_while_up(&owner.info, &request)
                .await?
            {
                Ok(()) => Some(run.to_vec()),
                Err(error) => {
                    tracing::debug!(%table, %range, %error, "tablets are not joined yet");
                    None
                }
            }
        });
        let asked: Vec<_> = asked.collect();
        let agreed = stream::iter(asked).buffer_unordered(CALLS_MAX);
        let agreed: Vec<Vec<TabletRecord>> = agreed.filter_map(|run| async { run }).collect().await;
        if agreed.is_empty() {
            return false;
        }
        let stored = self.context.ledger.change(move |state| {
            let Some(record) = state.table_mut(table).filter(|t| !t.dropping) else {
                return Ok(0);
            };
            Ok(agreed.iter().filter(|run| record.join(run)).count() as u64)
        });
        match stored.await {
            Ok(count) if count > 0 => {
                pluvio_units::mark("tablets-joined");
                self.counters.joined(count);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::{HashKind, KeyHash, RecoveryId, SegmentId, ServerId};
    use std::collections::BTreeSet;

    /// A table whose tablets have these owners.
    fn table(owners: &[u64]) -> TableRecord {
        let ranges = HashRange::ALL.split(owners.len() as u64);
        let tablets = ranges.into_iter().zip(owners).map(|(range, owner)| {
            let mut tablet = TabletRecord::new(range, ServerId(*owner));
            tablet.state = pluvio_wire::TabletState::Normal;
            tablet
        });
        TableRecord {
            id: TableId(1),
            name: "t".into(),
            seed: 1,
            hash: HashKind::Seeded,
            dropping: false,
            tablets: tablets.collect(),
            cuts: Vec::new(),
            kept: BTreeSet::new(),
            moves: Vec::new(),
            quota: None,
            class: None,
        }
    }

    fn lengths(table: &TableRecord) -> Vec<usize> {
        table.runs().iter().map(|run| run.len()).collect()
    }

    #[test]
    fn runs_are_neighbours_of_one_owner_that_need_not_stay_apart() {
        let mut table = table(&[1, 1, 2, 1, 1, 1]);
        assert_eq!(lengths(&table), [2, 3]);
        table.kept.insert(table.tablets[1].range.first);
        assert_eq!(lengths(&table), [3]);
        table.cuts.push(table.tablets[4].range.first);
        assert_eq!(lengths(&table), [2]);
        table.tablets[5].since = SegmentId(7);
        assert_eq!(lengths(&table), [0; 0]);
        table.cuts.clear();
        table.tablets[3].stands_on = Some(ServerId(9));
        assert_eq!(lengths(&table), [0; 0]);
    }

    // shows: COORD-18
    #[test]
    fn only_tablets_that_are_as_their_owner_was_asked_about_are_joined() {
        let mut table = table(&[1, 1, 2]);
        let run = table.runs()[0].to_vec();
        let mut changed = table.clone();
        changed.tablets[0].recovered_by = Some((RecoveryId(4), 0));
        assert!(!changed.join(&run));
        // Somebody asked for the cut meanwhile, or a part moves.
        let border = run[1].range.first;
        let mut kept = table.clone();
        kept.kept.insert(border);
        assert!(!kept.join(&run));
        let mut cut = table.clone();
        cut.cuts.push(border);
        assert!(!cut.join(&run));
        assert!(table.join(&run) && !table.join(&run));
        assert_eq!(table.tablets.len(), 2);
        assert_eq!(table.tablets[0].range.first, KeyHash(0));
        assert_eq!(table.cover_holds(), Ok(()));
    }
}
