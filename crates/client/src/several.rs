//! Transactions whose keys belong to several servers (`docs/transactions.md`).
//!
//! ```text
//!  client                  server of the home key            other servers
//!    │ prepare ───────────────► locks, votes                       │
//!    │ prepare ──────────────────────────────────────────► locks, votes
//!    │ ◄──────────── yes ───────────┘                              │
//!    │ ◄──────────── yes ──────────────────────────────────────────┘
//!   the caller is told: all votes are durable, so it is committed
//!    │ decide ────────────────► records it                         │
//!    │ release ──────────────────────────────────────────► keys become what they are to be
//!    │ release ───────────────► the home key, last                 │
//! ```
//!
//! - SEVERAL-1: it is committed exactly when all owners vote yes. Then nothing can abort it: the
//!   decision is recorded once, and whoever asks the owners finds the same votes.
//! - SEVERAL-2: the home key is released last. So as long as any key is locked, its owner finds
//!   there which keys there are, and what was decided.
//! - SEVERAL-3: nobody waits for a lock while it holds others, except in the order of servers. So
//!   transactions do not wait for each other in a circle.
//! - SEVERAL-4: nobody waits for room, nor for a tablet, while it holds locks. An owner that locks
//!   nothing at the moment makes the others release their keys. It is tried again after a pause.
//! - SEVERAL-5: a caller that goes away in the middle leaves somebody who concludes it.
//!
//! When the client dies, the servers whose keys are locked go on in its place
//! ([`Client::resolve`]).

mod decide;
mod prepare;
mod reads;
mod release;
mod requests;

pub use reads::ReadFirst;

use crate::client::Client;
use crate::error::ClientError;
use crate::table::Table;
use crate::transaction::Transacted;
use core::time::Duration;
use decide::{Settled, Unsettled};
use pluvio_env::Backoff;
use pluvio_units::{
    ClientId, DECISION, KeyPlace, SequenceNumber, ServerId, Share, TableId, VOTES_KEPT,
};
use pluvio_wire::{Outcome, RetryReason, TransactionStep};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// The pauses before a transaction that met others is tried again.
const BACKOFF: Backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(20));

/// A server that has keys of the transaction, and its steps.
struct Participant<'s> {
    /// The number of its vote.
    sequence: SequenceNumber,
    /// The numbers of the steps among all.
    numbers: Vec<usize>,
    steps: Vec<TransactionStep<'s>>,
    tables: Vec<&'s Table>,
}

impl Participant<'_> {
    /// The key of one of its steps.
    fn key(&self, at: usize) -> KeyPlace {
        let operation = &self.steps[at].operation;
        let hash = operation.hash().expect("it was computed before");
        (operation.table(), hash)
    }

    /// Its keys, each once.
    fn share(&self) -> Share {
        let mut seen = BTreeSet::new();
        let all = (0..self.steps.len()).map(|at| self.key(at));
        let keys = all.filter(|key| seen.insert(*key)).collect();
        Share {
            sequence: self.sequence,
            keys,
        }
    }
}

/// A transaction of several servers, under way.
struct DistributedTransaction<'s> {
    client: ClientId,
    participants: Vec<Participant<'s>>,
    /// The keys of each participant.
    shares: Vec<Share>,
    /// Whether a request to lock keys was not answered. It may arrive late.
    is_one_lost: AtomicBool,
}

impl DistributedTransaction<'_> {
    /// Whether nobody will ask about it once it is over: nothing of it is on its way.
    fn forgets(&self) -> bool {
        !self.is_one_lost.load(Ordering::Relaxed)
    }

    fn home(&self) -> KeyPlace {
        self.shares[0].keys[0]
    }

    fn tables(&self) -> BTreeMap<TableId, Table> {
        let tables = self
            .participants
            .iter()
            .flat_map(|participant| &participant.tables);
        tables.map(|table| (table.id(), (*table).clone())).collect()
    }
}

/// The outcomes of all steps, in the order of the steps, from those of each participant.
fn by_step<'p>(
    each: impl IntoIterator<Item = (&'p Participant<'p>, Vec<Outcome>)>,
) -> Vec<Outcome> {
    let mut all: Vec<(usize, Outcome)> = Vec::new();
    for (participant, outcomes) in each {
        all.extend(participant.numbers.iter().copied().zip(outcomes));
    }
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// A key that a transaction has locked for long, as its server found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// The client of the transaction.
    pub client: ClientId,
    /// Its home key.
    pub home: KeyPlace,
    /// Locked keys of this server.
    pub keys: Vec<KeyPlace>,
}

impl Client {
    /// Does all steps at one moment, or none, where they have several owners.
    pub(crate) async fn transact_several(
        &self,
        steps: &[TransactionStep<'_>],
        tables: &[&Table],
    ) -> Result<Transacted, ClientError> {
        let mut attempts = self.attempts().at_most(VOTES_KEPT);
        let mut conflicts = 0;
        loop {
            let Some(transaction) = self.divide(steps, tables) else {
                attempts.failed(
                    "a tablet of the transaction is not served".to_owned(),
                    Some(RetryReason::TabletNotReady),
                );
                attempts.pause(Duration::ZERO).await?;
                self.learn_tablets(tables).await?;
                continue;
            };
            let mut unsettled = Unsettled::new(self, &transaction);
            let votes = self.prepare_all(&transaction, conflicts, &attempts).await;
            let settled = self.settle_by(&mut unsettled, votes, &attempts).await;
            unsettled.settle();
            match settled? {
                Settled::Done(transacted) => return Ok(transacted),
                Settled::Failed(error) => return Err(error),
                Settled::Waits(wait) => {
                    attempts.failed(wait.why, wait.reason);
                    attempts.pause(Duration::ZERO).await?;
                    if wait.has_moved {
                        self.learn_tablets(tables).await?;
                    }
                }
                Settled::Met => {
                    // It met something else than a full memory.
                    attempts.progressed();
                    if attempts.is_over() {
                        let why = RetryReason::Locked;
                        attempts.failed(why.to_string(), Some(why));
                        return Err(attempts.timed_out());
                    }
                    conflicts += 1;
                    self.pause_after(conflicts).await;
                }
            }
        }
    }

    /// Waits before the next try of a transaction with this number of conflicts, at least one.
    pub(crate) async fn pause_after(&self, conflicts: u32) {
        let parts = &self.shared.parts;
        BACKOFF
            .pause(&*parts.clock, &*parts.rng, conflicts - 1)
            .await;
    }

    /// The participants of a transaction, in the order of their servers; `None` while the owner of
    /// a key is not known.
    fn divide<'s>(
        &self,
        steps: &'s [TransactionStep<'_>],
        tables: &'s [&'s Table],
    ) -> Option<DistributedTransaction<'s>> {
        let mut participants: BTreeMap<ServerId, Participant<'s>> = BTreeMap::new();
        for (number, (step, table)) in steps.iter().zip(tables).enumerate() {
            let owner = table.owner(step.operation.hash()?)?;
            let participant = participants.entry(owner).or_insert_with(|| Participant {
                sequence: SequenceNumber(0),
                numbers: Vec::new(),
                steps: Vec::new(),
                tables: Vec::new(),
            });
            participant.numbers.push(number);
            participant.steps.push(*step);
            participant.tables.push(table);
        }
        let mut participants: Vec<_> = participants.into_values().collect();
        for (at, participant) in participants.iter_mut().enumerate() {
            participant.sequence = SequenceNumber(DECISION.0 + 1 + at as u64);
        }
        let shares = participants.iter().map(Participant::share).collect();
        // Zero means "no identity".
        let client = ClientId(self.shared.parts.rng.next_u64().max(1));
        Some(DistributedTransaction {
            client,
            participants,
            shares,
            is_one_lost: AtomicBool::new(false),
        })
    }
}
