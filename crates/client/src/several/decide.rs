//! The decision about a transaction, and what becomes of it then.

use super::prepare::{ParticipantVote, RefusedStep, Wait};
use super::{DistributedTransaction, Doubt, by_step};
use crate::client::Client;
use crate::error::{ClientError, ErrorKind};
use crate::request::DataRequest;
use crate::retry::Attempts;
use crate::table::Table;
use crate::transaction::Transacted;
use core::time::Duration;
use pluvio_units::{ClientId, DECISION, KeyPlace, Share, TableId, VOTES_KEPT};
use pluvio_wire::{Decide, Decided, Vote};
use std::collections::BTreeMap;

/// How long an aborted transaction is concluded at servers that have no room. Then they go on
/// alone.
const ROOM_TO_ABORT: Duration = Duration::from_millis(100);

/// A transaction that is to be decided, and its keys released, as far as the caller knows it.
#[derive(Clone, Copy)]
struct Conclusion<'t> {
    client: ClientId,
    home: KeyPlace,
    /// Its keys. Needed where the home key, which tells them, is not locked.
    shares: &'t [Share],
    /// Handles of its tables. Others are looked up.
    tables: &'t BTreeMap<TableId, Table>,
    /// Nobody will ask for a vote any more.
    forgets: bool,
}

/// A transaction that is decided.
#[derive(Clone, Copy)]
pub(super) struct Decision {
    pub(super) client: ClientId,
    pub(super) committed: bool,
    /// Nobody will ask for a vote any more.
    pub(super) forgets: bool,
}

/// What an attempt came to.
pub(super) enum Settled {
    /// It is committed, or a step that must hold does not.
    Done(Transacted),
    /// Others were in the way.
    Met,
    /// An owner cannot lock its keys at the moment.
    Waits(Wait),
    /// It cannot be done.
    Failed(ClientError),
}

/// A transaction whose caller has not heard what became of it. Where the caller goes away, it is
/// concluded all the same: otherwise keys stayed locked until their servers looked after them.
pub(super) struct Unsettled<'u> {
    client: &'u Client,
    transaction: &'u DistributedTransaction<'u>,
    /// The decision that is wished then, until it is over.
    wish: Option<bool>,
}

impl<'u> Unsettled<'u> {
    pub(super) fn new(client: &'u Client, transaction: &'u DistributedTransaction<'u>) -> Self {
        let wish = Some(false);
        Self {
            client,
            transaction,
            wish,
        }
    }

    /// The caller hears of it: nothing is to be concluded behind its back.
    pub(super) fn settle(&mut self) {
        self.wish = None;
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        let tasks = &self.client.shared.parts.tasks;
        let (Some(wish), Some(tasks)) = (self.wish, tasks) else {
            return;
        };
        let (client, transaction) = (self.client.clone(), self.transaction);
        let (id, home, shares) = (
            transaction.client,
            transaction.home(),
            transaction.shares.clone(),
        );
        let tables = transaction.tables();
        let conclude = async move {
            let conclusion = Conclusion {
                client: id,
                home,
                shares: &shares,
                tables: &tables,
                // Its messages are on their way.
                forgets: false,
            };
            // Where this fails, the servers go on.
            drop(client.conclude(conclusion, Some(wish)).await);
        };
        // Dropping the handle leaves it running.
        drop(tasks.spawn(self.client.core(), "transaction", conclude));
    }
}

impl Client {
    /// Decides by the votes, and releases the keys. Where the votes are not all yes, the
    /// transaction is aborted.
    ///
    /// # Errors
    /// It may be committed, or not.
    pub(super) async fn settle_by(
        &self,
        unsettled: &mut Unsettled<'_>,
        mut votes: Vec<ParticipantVote>,
        attempts: &Attempts<'_>,
    ) -> Result<Settled, ClientError> {
        let transaction = unsettled.transaction;
        if votes.iter().all(is_yes) {
            unsettled.wish = Some(true);
            self.conclude_behind(transaction).await?;
            return Ok(Settled::Done(committed(transaction, votes)));
        }
        let refusal = refusal_among(&mut votes);
        let waits = match self.abort(transaction).await {
            // Those who looked after it found that all had voted yes. The votes are kept.
            Ok(Some(true)) => {
                for (at, vote) in votes.iter_mut().enumerate() {
                    if !is_yes(vote) {
                        *vote = self.prepare(transaction, at, VOTES_KEPT, attempts).await;
                    }
                }
                return match votes.iter().all(is_yes) {
                    true => Ok(Settled::Done(committed(transaction, votes))),
                    false => Err(ClientError::MaybeExecuted(
                        "the outcome of a committed transaction is not known".to_owned(),
                    )),
                };
            }
            Ok(Some(false) | None) => None,
            // A vote that is no is enough to know. So is one that was not given, and never will be.
            Err(error) if refusal.is_some() || votes.iter().any(ParticipantVote::is_never_yes) => {
                Some(error)
            }
            Err(error) => {
                let why = format!("nobody said what became of the transaction: {error}");
                return Err(ClientError::MaybeExecuted(why));
            }
        };
        if let Some(RefusedStep { step, outcome }) = refusal {
            return Ok(Settled::Done(Transacted::Refused { step, outcome }));
        }
        let mut settled = match waits {
            None => Settled::Met,
            Some(error) => match error.full() {
                Some((reason, why)) => Settled::Waits(Wait {
                    reason: Some(reason),
                    why,
                    has_moved: false,
                }),
                None => return Ok(Settled::Failed(error.into_not_executed())),
            },
        };
        for vote in votes {
            match vote.of_aborted() {
                ParticipantVote::Yes(_)
                | ParticipantVote::No(_)
                | ParticipantVote::NotAsked
                | ParticipantVote::Met => {}
                ParticipantVote::Waits(wait) => settled = Settled::Waits(wait),
                ParticipantVote::Failed(error) | ParticipantVote::Unknown(error) => {
                    return Ok(Settled::Failed(error.into_not_executed()));
                }
            }
        }
        Ok(settled)
    }

    /// Aborts a transaction, unless others have decided already; gives what is decided.
    async fn abort(
        &self,
        transaction: &DistributedTransaction<'_>,
    ) -> Result<Option<bool>, ClientError> {
        let tables = transaction.tables();
        let conclusion = Conclusion {
            client: transaction.client,
            home: transaction.home(),
            shares: &transaction.shares,
            tables: &tables,
            forgets: transaction.forgets(),
        };
        let briefly = self.with_full_timeout(ROOM_TO_ABORT);
        briefly.conclude(conclusion, Some(false)).await
    }

    /// Concludes a committed transaction, while the caller goes on if there is somebody to do it.
    /// Of several tables one may be dropped, and the vote of its owner with it. So there the caller
    /// hears of it only when the decision is recorded.
    ///
    /// # Errors
    /// That could not be done in time.
    async fn conclude_behind(
        &self,
        transaction: &DistributedTransaction<'_>,
    ) -> Result<(), ClientError> {
        let client = self.clone();
        let (id, home) = (transaction.client, transaction.home());
        let (shares, forgets) = (transaction.shares.clone(), transaction.forgets());
        let tables = transaction.tables();
        let has_several_tables = tables.len() > 1;
        if has_several_tables {
            self.record_commit(id, home, &tables).await?;
        }
        let conclude = async move {
            if !has_several_tables {
                let recorded = client.record_commit(id, home, &tables).await;
                if recorded.is_err() {
                    // The servers go on.
                    return;
                }
            }
            let decision = Decision {
                client: id,
                committed: true,
                forgets,
            };
            let mut attempts = client.attempts();
            let released = client.release_all(decision, &shares, &tables, &mut attempts);
            // Where this fails, the servers go on.
            drop(released.await);
        };
        match &self.shared.parts.tasks {
            // Dropping the handle leaves it running.
            Some(tasks) => drop(tasks.spawn(self.core(), "transaction", conclude)),
            None => conclude.await,
        }
        Ok(())
    }

    /// Records that a transaction is committed, for which all owners have voted.
    ///
    /// # Errors
    /// Nobody said in time that it is recorded.
    async fn record_commit(
        &self,
        client: ClientId,
        home: KeyPlace,
        tables: &BTreeMap<TableId, Table>,
    ) -> Result<(), ClientError> {
        let decide = Decide {
            client,
            home,
            wish: Some(true),
        };
        match self.decide(decide, tables, &self.attempts()).await {
            Ok(Decided {
                committed: Some(true),
                ..
            }) => Ok(()),
            // Its home key is gone. Only this client knows of the others what became of them.
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(()),
            // The server that had its vote, or the decision, took that along.
            Ok(_) if tables.values().any(Table::is_volatile) => {
                let why = "a server of a volatile table died in the middle of the transaction";
                Err(ClientError::MaybeExecuted(why.to_owned()))
            }
            Ok(other) => Err(ClientError::Protocol(format!(
                "all have voted for what is decided otherwise: {other:?}"
            ))),
            Err(error) => Err(ClientError::MaybeExecuted(error.to_string())),
        }
    }

    /// Decides, as wished where nothing was decided yet, and releases all keys. Without a wish the
    /// votes decide. Gives what is decided; `None` where nothing is known of the transaction any
    /// more.
    async fn conclude(
        &self,
        conclusion: Conclusion<'_>,
        wish: Option<bool>,
    ) -> Result<Option<bool>, ClientError> {
        let Conclusion {
            client,
            home,
            shares: known,
            tables,
            forgets,
        } = conclusion;
        let decide = |wish| Decide { client, home, wish };
        let mut attempts = self.attempts();
        let mut decided = match self.decide(decide(wish), tables, &attempts).await {
            // Its home key is gone: nobody can have told that it is committed, but the client.
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Decided {
                committed: Some(false),
                shares: Vec::new(),
            },
            decided => decided?,
        };
        if decided.committed.is_none() {
            let mut all_yes = true;
            for share in &decided.shares {
                let Some(key) = share.keys.first().copied() else {
                    let why = "a share of a transaction has no keys";
                    return Err(ClientError::Protocol(why.to_owned()));
                };
                let vote = Vote {
                    client,
                    sequence: share.sequence,
                    key,
                };
                let voted = self.on_place(vote.key, &vote, tables, &attempts).await;
                all_yes &= match voted {
                    Ok(voted) => voted.yes,
                    // A dropped table holds nothing that could be committed.
                    Err(error) if error.kind() == ErrorKind::NoSuchTable => false,
                    Err(error) => return Err(error),
                };
            }
            let decide = decide(Some(all_yes));
            decided = self.decide(decide, tables, &attempts).await?;
        }
        let Some(committed) = decided.committed else {
            return Ok(None);
        };
        let decision = Decision {
            client,
            committed,
            forgets,
        };
        let shares = match decided.shares.is_empty() {
            true => known,
            false => &decided.shares,
        };
        self.release_all(decision, shares, tables, &mut attempts)
            .await?;
        Ok(Some(committed))
    }

    async fn decide(
        &self,
        decide: Decide,
        tables: &BTreeMap<TableId, Table>,
        attempts: &Attempts<'_>,
    ) -> Result<Decided, ClientError> {
        self.on_place(decide.home, &decide, tables, attempts).await
    }

    pub(super) async fn on_place<R: DataRequest>(
        &self,
        (table, hash): KeyPlace,
        request: &R,
        tables: &BTreeMap<TableId, Table>,
        attempts: &Attempts<'_>,
    ) -> Result<R::Done, ClientError> {
        let table = match tables.get(&table) {
            Some(table) => table.clone(),
            None => self.table_by_id(table).await?,
        };
        self.on_hash_within(&table, hash, request, attempts.clone())
            .await
    }

    /// Goes on with a transaction in place of its client, which may be gone: for servers whose keys
    /// it has locked for long. Gives whether it is over.
    ///
    /// # Errors
    /// See [`Client`]. Nothing is lost by trying again.
    pub async fn resolve(&self, doubt: &Doubt) -> Result<Option<bool>, ClientError> {
        let none = BTreeMap::new();
        let asked = Conclusion {
            client: doubt.client,
            home: doubt.home,
            shares: &[],
            tables: &none,
            forgets: false,
        };
        let known = self.conclude(asked, None).await?;
        // Locks of messages that came late: the transaction is over, and its keys were released
        // before its home key was.
        let late = Share {
            sequence: DECISION,
            keys: doubt.keys.clone(),
        };
        let mut attempts = self.attempts();
        let decision = Decision {
            client: doubt.client,
            committed: false,
            forgets: false,
        };
        self.release_all(decision, &[late], &none, &mut attempts)
            .await?;
        Ok(known)
    }
}

fn is_yes(vote: &ParticipantVote) -> bool {
    matches!(vote, ParticipantVote::Yes(_))
}

/// The result of a transaction for which all have voted.
fn committed(transaction: &DistributedTransaction<'_>, votes: Vec<ParticipantVote>) -> Transacted {
    let voted = transaction.participants.iter().zip(votes);
    let yes = voted.filter_map(|(participant, vote)| match vote {
        ParticipantVote::Yes(outcomes) => Some((participant, outcomes)),
        _ => None,
    });
    Transacted::Committed(by_step(yes))
}

/// The first step that must hold and does not, as far as owners said.
fn refusal_among(votes: &mut [ParticipantVote]) -> Option<RefusedStep> {
    let refused = votes.iter_mut().filter_map(|vote| match vote {
        ParticipantVote::No(refusal) => refusal.take(),
        _ => None,
    });
    refused.min_by_key(|refused| refused.step)
}
