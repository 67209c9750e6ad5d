//! Batches whose items are done one after the other.
//!
//! Items go in runs: those from the first that is not done on that one server owns. A server ends
//! with the first that it refuses, and the next run begins there. Runs may be answered before they
//! are durable (`early.rs`).

use super::{Chunk, Items, Numbers, Order, Round, Sent, of_table};
use crate::client::{Again, Client};
use crate::early::Early;
use crate::error::ClientError;
use crate::request::RestsOn;
use crate::retry::Attempts;
use crate::sequence::BATCH_UNDER_WAY_MAX;
use crate::table::Table;
use pluvio_units::{LogId, LogPosition};
use pluvio_wire::{FatalKind, Get, Mutation, Outcome, Refusal, Results, RpcError};

/// The end of a batch in order whose items are not all done.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchStopped {
    /// The outcomes of the first items.
    pub done: Vec<Outcome>,
    /// Why the next one could not be done.
    pub error: ClientError,
}

impl Client {
    /// Applies mutations one after the other: none takes effect before all that stand before it
    /// have. Runs of them that one server owns are sent together, and that server stops at the
    /// first that it cannot do. Outcomes that changed nothing, as a rule that rejects, end nothing.
    ///
    /// # Errors
    /// The first of the rest could not be done; see [`Client`]. At most 4096 mutations are taken at
    /// a time.
    pub async fn mutate_in_order(
        &self,
        mutations: &[(&Table, Mutation<'_>)],
    ) -> Result<Vec<Outcome>, BatchStopped> {
        self.all_in_order(mutations, false).await
    }

    /// [`Client::mutate_in_order`] that goes on as soon as a server has executed its run, without
    /// waiting for replicas. All outcomes are durable when this ends. The order is that of
    /// execution: when a server dies meanwhile, mutations behind one that is lost may be there. It
    /// and all behind it are told as such that may have been executed, and are not tried again.
    ///
    /// # Errors
    /// As there.
    pub async fn mutate_in_order_early(
        &self,
        mutations: &[(&Table, Mutation<'_>)],
    ) -> Result<Vec<Outcome>, BatchStopped> {
        self.all_in_order(mutations, true).await
    }

    async fn all_in_order(
        &self,
        mutations: &[(&Table, Mutation<'_>)],
        early: bool,
    ) -> Result<Vec<Outcome>, BatchStopped> {
        let mutations: Vec<_> = mutations
            .iter()
            .map(|(t, m)| (*t, of_table(t, m)))
            .collect();
        let mut done = Vec::with_capacity(mutations.len());
        match self
            .in_order(Items::Mutations(&mutations), early, &mut done)
            .await
        {
            Ok(()) => Ok(done),
            Err(error) => Err(BatchStopped { done, error }),
        }
    }

    /// Reads one after the other: none is older than those that stand before it. Otherwise as
    /// [`Client::mutate_in_order`].
    ///
    /// # Errors
    /// As there.
    pub async fn get_in_order(
        &self,
        gets: &[(&Table, Get<'_>)],
    ) -> Result<Vec<Outcome>, BatchStopped> {
        let gets: Vec<_> = gets
            .iter()
            .map(|(table, get)| {
                (
                    *table,
                    Get {
                        table: table.id(),
                        ..*get
                    },
                )
            })
            .collect();
        let mut done = Vec::with_capacity(gets.len());
        match self.in_order(Items::Gets(&gets), false, &mut done).await {
            Ok(()) => Ok(done),
            Err(error) => Err(BatchStopped { done, error }),
        }
    }

    async fn in_order(
        &self,
        items: Items<'_>,
        may_be_early: bool,
        done: &mut Vec<Outcome>,
    ) -> Result<(), ClientError> {
        let work = self.in_order_untraced(items, may_be_early, done);
        self.traced("batch in order", work).await
    }

    async fn in_order_untraced(
        &self,
        items: Items<'_>,
        may_be_early: bool,
        done: &mut Vec<Outcome>,
    ) -> Result<(), ClientError> {
        let mut attempts = self.attempts();
        let mut early = Vec::new();
        let ended = self
            .run_in_order(
                items,
                done,
                may_be_early.then_some(&mut early),
                &mut attempts,
            )
            .await;
        match self.settle(early, &mut attempts).await {
            Ok(()) => ended,
            Err((first, error)) => {
                done.truncate(first);
                Err(error)
            }
        }
    }

    /// The outcomes of items that are in `early` may be told only once [`Client::settle`] says so.
    async fn run_in_order(
        &self,
        items: Items<'_>,
        done: &mut Vec<Outcome>,
        mut early: Option<&mut Vec<Early>>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), ClientError> {
        check_all(items)?;
        let mut numbers = Numbers {
            items: 0..items.len(),
            ticket: None,
        };
        let mut may_be_early = early.is_some();
        while done.len() < items.len() {
            let mut round = Round::new(items);
            let first = done.len();
            let Some(chunk) = run_of(&mut round, first, attempts) else {
                self.pause(round, attempts).await?;
                continue;
            };
            if items.changes_data() && self.local(chunk.owner).is_none() {
                let count = u32::try_from(items.len()).expect("it is bounded");
                self.identify(&mut numbers.ticket, count, attempts).await?;
            }
            let rests_on = RestsOn::new();
            // An answer for all of them may as well come when it is durable.
            let is_only = chunk.indexes.len() == items.len();
            let order = Order::InOrder((may_be_early && !is_only).then_some(&rests_on));
            let sent = self.send(&round, &chunk, &numbers, order, attempts).await;
            if let Some(early) = &mut early
                && let Some(positions) = rests_on.into_inner()
            {
                early.push(early_of(&chunk, positions));
            }
            let again = match sent {
                // An earlier program, which gives no early answers, refuses to be asked for one.
                Sent::Failed(error)
                    if may_be_early && error.fatal_kind() == Some(FatalKind::Unsupported) =>
                {
                    may_be_early = false;
                    continue;
                }
                Sent::Failed(error) => return Err(error),
                Sent::Again(again) => Some(again),
                Sent::Items(results) => {
                    self.take_run(results, items.changes_data(), done, attempts)?
                }
            };
            if done.len() > first {
                attempts.progressed();
                numbers.finished(done.len());
            }
            if let Some(again) = again {
                round.put_off(done.len(), again);
                self.pause(round, attempts).await?;
            }
        }
        Ok(())
    }

    /// Takes the results of a run, up to the first that was refused: when that is to come again.
    /// Items that a server did behind it all the same are asked for again.
    fn take_run(
        &self,
        results: Results,
        changes_data: bool,
        done: &mut Vec<Outcome>,
        attempts: &mut Attempts<'_>,
    ) -> Result<Option<Again>, ClientError> {
        for result in results {
            match result {
                Ok(outcome) => done.push(outcome),
                Err(refusal) => {
                    let refused = RpcError::Refused(refusal);
                    return self
                        .after_failure(refused, changes_data, attempts)
                        .map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Waits as the items that were put off ask for, and looks for their tablets.
    async fn pause(
        &self,
        round: Round<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), ClientError> {
        attempts.pause(round.after).await?;
        for (table, seen) in round.stale.into_values() {
            self.refresh(&table, seen, attempts).await?;
        }
        Ok(())
    }
}

/// # Errors
/// There are too many items, or one makes no sense. Nothing was done.
fn check_all(items: Items<'_>) -> Result<(), ClientError> {
    if items.len() > BATCH_UNDER_WAY_MAX {
        return Err(ClientError::from_final(Refusal::malformed(format!(
            "{} items in order are over the limit of {BATCH_UNDER_WAY_MAX}",
            items.len()
        ))));
    }
    (0..items.len()).try_for_each(|index| items.check(index))
}

/// The items from `first` on that one server owns, as many as a request takes.
fn run_of(round: &mut Round<'_>, first: usize, attempts: &mut Attempts<'_>) -> Option<Chunk> {
    let items = round.items;
    let mut run: Option<Chunk> = None;
    for index in first..items.len() {
        let Some(tablet) = round.locate(index) else {
            if run.is_none() {
                round.not_served(index, attempts);
            }
            break;
        };
        let cluster = items.table(index).cluster();
        let chunk = run.get_or_insert_with(|| Chunk::new(cluster, tablet));
        let bytes = items.bytes(index);
        let fits = chunk.has_room(bytes);
        if (chunk.cluster, chunk.owner) != (cluster, tablet.owner) || !fits {
            break;
        }
        chunk.push(index, bytes);
    }
    run
}

/// The early answer to a chunk.
fn early_of(chunk: &Chunk, positions: Vec<(LogId, LogPosition)>) -> Early {
    Early {
        first: chunk.indexes[0],
        cluster: chunk.cluster,
        owner: chunk.owner,
        address: chunk.address.clone(),
        positions,
    }
}
